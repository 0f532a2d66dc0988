"""Reads word2vec and GloVe files as a table of vectors for a vocabulary.

Three forms are told apart by their content: word2vec's text (`n D`, then lines `word x1 ... xD`),
GloVe's text (the same without the first line) and word2vec's binary form (`n D`, then word, blank,
D float32), as in GoogleNews.
"""
import os
import re

import numpy as np
from tqdm import tqdm

from cli import InputError, check
from files.reading import need, refusing

CHUNK = 1 << 24                       # bytes of a binary file held at a time
LONGEST = 1 << 12                     # bytes of a word in a binary file; a longer one is none
COMPRESSED = {b"\x1f\x8b": "gunzip", b"PK": "unzip", b"BZ": "bunzip2"}
FORMS = "word vectors are word2vec's text or .bin form or GloVe's text"


def table_for(vocab_words: list[str], path: str,
              dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (V, D) float32 of a vocabulary, zeros for words without one, and which words have
    one, (V,) bool. Of a word that stands twice in the file the first vector counts.

    Words are compared letter by letter; captions are lower-cased. The file is read to its end, and
    only vectors of the vocabulary are kept. Raises InputError on a missing file, another format,
    rows of different lengths, NaN, a header that does not agree with the rows, if D is not `dim`,
    and if no word has a vector.
    """
    need(path, f"{FORMS}, and `python -m features.word_vectors` learns a file from captions")
    row, vectors = {word.encode(): i for i, word in enumerate(vocab_words)}, {}
    with (refusing(f"{path} cannot be read", "check its permissions", OSError),
          open(path, "rb") as f, tqdm(total=os.path.getsize(path), desc="word vectors", unit="B",
                                      unit_scale=True, disable=None, leave=False) as bar):
        mark = 3 * (f.read(3) == b"\xef\xbb\xbf")           # some editors write one first
        f.seek(mark)
        start = f.read(1 << 16)
        if start[:2] in COMPRESSED and b"\0" in start:
            raise InputError(f"{path} is compressed; {FORMS}, so unpack it first "
                             f"({COMPRESSED[start[:2]]})")
        header = re.match(rb"(?:\s*(\d{1,12})[ \t]+([1-9]\d{0,8})[ \t]*\r?\n)?", start)
        count, size = (number and int(number) for number in header.groups())        # None in GloVe
        f.seek(mark + header.end())
        line = start[header.end():].split(b"\n")[0].split()
        text = count is None or b"\0" not in start and (
            not line or _is_number(line[-1]) or all(part.isascii() for part in line))
        for where, word, values in (_text_rows if text else _binary_rows)(f, path, count, size, bar):
            if word in row and row[word] not in vectors:
                vectors[row[word]] = _vector(f"{path}, {where}", values)
    check(vectors, f"{path} has a vector for none of the {len(row)} words of the vocabulary; give "
                   "a file with words of the captions' language, in lower case")
    rows, values = [*vectors], np.stack([*vectors.values()])
    size = values.shape[1]
    check(dim in (None, size), f"the word vectors of {path} have {size} values and {dim} are asked "
                               f"for; give the word dimension {size}, or another file")
    table, known = np.zeros((len(vocab_words), size), np.float32), np.zeros(len(vocab_words), bool)
    table[rows], known[rows] = values, True
    return table, known


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text_rows(f, path, count, dim, bar):
    """Yield (where, word, values (D,)) of a text file from after its header. A word may contain
    blanks (GloVe 840B has some)."""
    rows, header = 0, count is not None
    for number, line in enumerate(f, 1 + header):
        bar.update(len(line))
        parts = line.split()                                        # at ASCII blanks only
        if parts and dim is None:                                   # GloVe: the first line decides
            if b"\0" in line or len(parts) < 2 or not all(map(_is_number, parts[1:])):
                raise InputError(f"{path} holds no word vectors: its first line is not a word and "
                                 f"numbers; {FORMS}")
            dim = len(parts) - 1
        if not parts:
            continue
        rows += 1
        if len(parts) < dim + 1 or any(map(_is_number, parts[1:-dim])):     # of the row, not a word
            raise InputError(f"{path}, line {number}: {len(parts) - 1} values where the first line "
                             f"says {dim}; every word has the same number of values, so fetch or "
                             "write the file again")
        yield f"line {number}", b" ".join(parts[:-dim]), parts[-dim:]
    check(not header or rows == count,
          f"{path} has {rows} words where its first line announces {count}; it was cut or changed, "
          "so fetch or write it again")


def _binary_rows(f, path, count, dim, bar):
    """Yield (where, word, values (D,)) of a binary file from after its header; at most about
    `CHUNK` bytes of it are held."""
    size, data, at, held = 4 * dim, b"", 0, os.path.getsize(path)
    check(count * (size + 1) <= held,
          f"{path} announces {count} words of {dim} values, which needs more than the file's "
          f"{held} bytes; it was cut or is no word2vec file, so fetch it again")
    for row in range(1, count + 1):
        if len(data) - at < size + LONGEST:
            data, at = data[at:] + f.read(CHUNK + size), 0
        blank = data.find(b" ", at, at + LONGEST)
        if blank < 0 or blank + 1 + size > len(data):
            raise InputError(f"{path} is broken off or is no word2vec file: no word and {dim} "
                             f"values at row {row} of the {count} that its first line announces; "
                             "fetch it again")
        yield (f"row {row}", data[at:blank].lstrip(b"\n"),     # the original ends rows with it
               np.frombuffer(data, "<f4", dim, blank + 1))
        bar.update(blank + 1 + size - at)
        at = blank + 1 + size
    check(not (data[at:] + f.read(1)).strip(),
          f"{path} goes on behind the {count} words that its first line announces; fetch it again")


def _vector(where: str, values) -> np.ndarray:
    """The vector (D,) of a word, from numbers or texts. Raises InputError for other values."""
    if isinstance(values, list):
        values = [float(x) if _is_number(x) else np.nan for x in values]
    if not np.isfinite(values).all() or np.abs(values).max() > 1e30:
        raise InputError(f"{where} has values that are no finite numbers; a word and D numbers are "
                         "allowed, so fetch or write the file again")
    return np.array(values, np.float32)                                             # (D,)
