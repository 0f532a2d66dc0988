"""Word vectors of a file: word2vec's text or binary form, or GloVe's text."""
import os
import re

import numpy as np
from tqdm import tqdm

from cli import check
from files import need, refusing

FORMS = "word vectors are word2vec's text or .bin form or GloVe's text, unpacked"


def read_word_vectors(words: list[str], path: str, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Read vectors (V, D) float32 of a vocabulary, and which words have one (V,).
    Words without a vector have zeros. The file is word2vec's text (`n D`, then lines `word x1 ... xD`), GloVe's text
    (the same without the first line) or word2vec's binary form, as in GoogleNews. Words are compared letter by letter;
    captions are lower-cased. Of a word that stands twice the first vector counts."""
    need(path, f"{FORMS}, and `python -m features.word_vectors` learns a file from captions")
    row, vectors = {word.encode(): i for i, word in enumerate(words)}, {}
    with refusing(f"{path} cannot be read", "check its permissions", OSError), open(path, "rb", 1 << 16) as f:
        mark = 3 * f.peek().startswith(b"\xef\xbb\xbf")     # of UTF-8, which some editors write first
        header, first, *_ = [*f.peek()[mark:].split(b"\n", 2), b""]
        numbers = re.fullmatch(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,8})\s*", header)          # None in GloVe
        count, size = map(int, numbers.groups()) if numbers else (None, None)
        f.seek(mark + (numbers.end() + 1 if numbers else 0))
        text = not numbers or not first.strip() or is_number(first.split()[-1])
        rows = (text_rows if text else binary_rows)(f, path, count, size)
        for place, word, values in tqdm(rows, total=count, desc="word vectors", disable=None, leave=False):
            if word in row and row[word] not in vectors:
                fault = f"{path}, {place} has values that are not finite numbers"
                fix = "a word and D finite numbers are allowed, so fetch or write the file again"
                with refusing(fault, fix, ValueError):
                    vectors[row[word]] = np.asarray(values).astype(np.float32)
                check(np.isfinite(vectors[row[word]]).all(), f"{fault}; {fix}")
    check(vectors, f"{path} has a vector for none of the {len(row)} words of the vocabulary; give a file with words of "
                   "the captions' language, in lower case")
    size = len(next(iter(vectors.values())))
    check(dim in (None, size), f"the word vectors of {path} have {size} values and {dim} are asked for; give the word "
                               f"dimension {size}, or another file")
    table, known = np.zeros((len(words), size), np.float32), np.zeros(len(words), bool)
    table[[*vectors]], known[[*vectors]] = np.stack([*vectors.values()]), True
    return table, known


def is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def text_rows(f, path: str, count: int | None, dim: int | None):
    """Yield (place, word, values (D,)) of a text file; words of GloVe have blanks."""
    rows, header = 0, count is not None
    for number, line in enumerate(f, 1 + header):
        parts = line.split()                                # at ASCII blanks only
        if not parts:
            continue
        if dim is None:                                     # GloVe: the first line decides
            check(b"\0" not in line and len(parts) > 1 and all(map(is_number, parts[1:])),
                  f"{path} holds no word vectors: its first line is not a word and numbers; {FORMS}")
            dim = len(parts) - 1
        rows += 1
        check(len(parts) > dim and not any(map(is_number, parts[1:-dim])),           # of the row, not a word
              f"{path}, line {number}: {len(parts) - 1} values where the first line says {dim}; every word has the "
              "same number of values, so fetch or write the file again")
        yield f"line {number}", b" ".join(parts[:-dim]), parts[-dim:]
    check(not header or rows == count, f"{path} has {rows} words where its first line announces {count}; it was cut or "
                                       "changed, so fetch or write it again")


def binary_rows(f, path: str, count: int, dim: int):
    """Yield (place, word, values (D,)) of a binary file after its header."""
    for row in range(1, count + 1):
        word = bytearray()
        while (letter := f.read(1)) not in (b" ", b""):
            word += letter
        values = f.read(min(4 * dim, os.path.getsize(path)))
        check(letter == b" " and len(values) == 4 * dim,
              f"{path} ends early or is not a word2vec file: no word and {dim} values at row {row} of the {count} that "
              "its first line announces; fetch it again")
        yield f"row {row}", bytes(word).lstrip(b"\n"), np.frombuffer(values, "<f4")  # the original ends rows with \n
    check(not f.read(2).strip(), f"{path} continues after the {count} words of its first line; fetch it again")
