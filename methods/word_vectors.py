"""Word vectors of a file: word2vec's text or binary form, or GloVe's text.

The text form of word2vec begins with a line `n D`, the number of words and of values; then come
lines `word x1 ... xD`. GloVe's text is the same without the first line. word2vec's binary form, as
in GoogleNews, has the first line, then for each word its name, a blank and D float32.
"""

import os
import re
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from utils import InputError, need, refusing

FORMS = "word vectors are word2vec's text or .bin form or GloVe's text, unpacked"
UTF8_MARK = b"\xef\xbb\xbf"  # which some editors write first


def read_word_vectors(
    words: list[str], path: str, dim: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read vectors (V, D) float32 of a vocabulary, and which words have one (V,).

    Words without a vector have zeros. Words are compared character by character; captions are
    lower-cased. Of a word that stands twice the first vector counts. Raises InputError where the
    file cannot be read, or has vectors of none of the words, or of another size than `dim`.
    """
    need(path, f"{FORMS}, and `python -m features.word_vectors` learns a file from captions")
    vectors = read_vectors_of(words, path)
    if not vectors:
        raise InputError(
            f"{path} has a vector for none of the {len(words)} words of the vocabulary; give a "
            "file with words of the captions' language, in lower case"
        )
    numbers = list(vectors)
    values = np.stack(list(vectors.values()))
    size = values.shape[1]
    if dim is not None and dim != size:
        raise InputError(
            f"the word vectors of {path} have {size} values and {dim} are asked for; give the word "
            f"dimension {size}, or another file"
        )

    table = np.zeros((len(words), size), np.float32)
    table[numbers] = values
    known = np.zeros(len(words), bool)
    known[numbers] = True
    return table, known


def read_vectors_of(words: list[str], path: str) -> dict[int, np.ndarray]:
    """Read the vectors (D,) of words that a file has, by their numbers."""
    number_of = {word.encode(): number for number, word in enumerate(words)}
    vectors = {}
    with refusing(f"{path} cannot be read", "check its permissions", OSError):
        with open(path, "rb", 1 << 16) as f:
            count, rows = open_rows(f, path)
            bar = tqdm(rows, total=count, desc="word vectors", disable=None, leave=False)
            for position, word, values in bar:
                number = number_of.get(word)
                if number is not None and number not in vectors:
                    vectors[number] = to_vector(values, f"{path}, {position}")
    return vectors


def open_rows(f, path: str) -> tuple[int | None, Iterator]:
    """Find out which form a file has; return its number of words, or None, and its rows."""
    start = f.peek()
    mark = 0
    if start.startswith(UTF8_MARK):
        mark = len(UTF8_MARK)
    header, _, rest = start[mark:].partition(b"\n")
    first, _, _ = rest.partition(b"\n")

    numbers = re.fullmatch(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,8})\s*", header)
    if numbers is None:  # GloVe
        f.seek(mark)
        return None, text_rows(f, path, None, None)

    f.seek(mark + numbers.end() + 1)
    count = int(numbers[1])
    dim = int(numbers[2])
    if not first.strip() or is_number(first.split()[-1]):
        return count, text_rows(f, path, count, dim)
    return count, binary_rows(f, path, count, dim)


def to_vector(values, where: str) -> np.ndarray:
    """Convert values to float32 (D,). Raises InputError unless they are finite numbers."""
    fault = f"{where} has values that are not finite numbers"
    fix = "a word and D finite numbers are allowed, so fetch or write the file again"
    with refusing(fault, fix, ValueError):
        vector = np.asarray(values).astype(np.float32)
    if not np.isfinite(vector).all():
        raise InputError(f"{fault}; {fix}")
    return vector


def is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def text_rows(f, path: str, count: int | None, dim: int | None) -> Iterator:
    """Yield (position, word, values (D,)) of a text file; words of GloVe have spaces."""
    first_line = 1
    if count is not None:
        first_line = 2
    rows = 0
    for number, line in enumerate(f, first_line):
        parts = line.split()  # at ASCII spaces only
        if not parts:
            continue
        if dim is None:  # GloVe: the first line decides
            dim = count_values(line, path)
        rows += 1
        too_few = len(parts) <= dim
        if too_few or any(map(is_number, parts[1:-dim])):  # of the row, not a word
            raise InputError(
                f"{path}, line {number}: {len(parts) - 1} values where the first line says {dim}; "
                "every word has the same number of values, so fetch or write the file again"
            )
        yield f"line {number}", b" ".join(parts[:-dim]), parts[-dim:]

    if count is not None and rows != count:
        raise InputError(
            f"{path} has {rows} words where its first line announces {count}; it was cut or "
            "changed, so fetch or write it again"
        )


def count_values(line: bytes, path: str) -> int:
    """Count the values of GloVe's first line, a word and numbers, else InputError."""
    parts = line.split()
    if b"\0" in line or len(parts) < 2 or not all(map(is_number, parts[1:])):
        raise InputError(
            f"{path} holds no word vectors: its first line is not a word and numbers; {FORMS}"
        )
    return len(parts) - 1


def binary_rows(f, path: str, count: int, dim: int) -> Iterator:
    """Yield (position, word, values (D,)) of a binary file after its header."""
    size = 4 * dim  # bytes of a vector
    for row in range(1, count + 1):
        word = bytearray()
        while (character := f.read(1)) not in (b" ", b""):
            word += character
        values = f.read(min(size, os.path.getsize(path)))
        if character != b" " or len(values) != size:
            raise InputError(
                f"{path} ends early or is not a word2vec file: no word and {dim} values at row "
                f"{row} of the {count} that its first line announces; fetch it again"
            )
        name = bytes(word).lstrip(b"\n")  # the original ends rows with \n
        yield f"row {row}", name, np.frombuffer(values, "<f4")
    if f.read(2).strip():
        raise InputError(
            f"{path} continues after the {count} words of its first line; fetch it again"
        )
