"""Word vectors: read word2vec and GloVe files as a table for a vocabulary, or learn vectors from the captions
themselves.

    python -m features.word_vectors --data_path data --data_name f30k_precomp --dim 300 --output f30k_vectors.txt

Three forms are read and told apart by their content: word2vec's text (`n D`, then lines `word x1 ... xD`), GloVe's text
(the same without the first line) and word2vec's binary form (`n D`, then word, blank, D float32), as in GoogleNews.
Vectors learned from captions need no download. They stand in for vectors of news text, and know nothing beyond the
captions.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import os
import re
from collections import Counter

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import eigsh
from tqdm import tqdm

import cli
from cli import Arguments, InputError, data_set, filename, positive, reason, width
from data import read_split
from features.hglmm import unit
from files.writing import atomic, output
from text import is_function

CHUNK = 1 << 24                       # bytes of a binary file held at a time
LONGEST = 1 << 12                     # bytes of a word in a binary file; a longer one means that it is none
COMPRESSED = {b"\x1f\x8b": "gunzip", b"PK": "unzip", b"BZ": "bunzip2"}
FORMS = "word vectors are word2vec's text or .bin form or GloVe's text"


def read_vectors(path: str, words: list[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Words (n,) in the order of the file and their vectors (n, D) float32; the first vector of a word that occurs
    twice.

    With `words` only these are kept, so memory does not grow with the file; still it is read to its end. Raises
    InputError on a missing file, another format, rows of different lengths, NaN, and a header that does not agree with
    the rows.
    """
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; {FORMS}, and `python -m features.word_vectors` learns a file from "
                         "captions")
    wanted = None if words is None else {word.encode() for word in words}
    try:
        opened = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); check its permissions") from error
    with opened as f, tqdm(total=os.path.getsize(path), desc="word vectors", unit="B", unit_scale=True, disable=None,
                           leave=False) as bar:
        mark = 3 * (f.read(3) == b"\xef\xbb\xbf")           # some editors write one first
        f.seek(mark)
        start = f.read(1 << 16)
        if start[:2] in COMPRESSED and b"\0" in start:
            raise InputError(f"{path} is compressed; {FORMS}, so unpack it first ({COMPRESSED[start[:2]]})")
        header = re.match(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,8})[ \t]*\r?\n", start)
        count, dim = map(int, header.groups()) if header else (None, None)
        f.seek(mark + (header.end() if header else 0))
        line = start[header.end():].split(b"\n")[0].split() if header else []
        text = not header or b"\0" not in start and (not line or _is_number(line[-1])
                                                     or all(part.isascii() for part in line))
        vectors_of = (_text_rows if text else _binary_rows)(f, path, count, dim, wanted, bar)
    if not vectors_of and wanted is None:
        raise InputError(f"{path} is empty; {FORMS}")
    vectors = np.stack([*vectors_of.values()]) if vectors_of else np.zeros((0, dim or 0), np.float32)
    return [word.decode() for word in vectors_of], vectors


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text_rows(f, path, count, dim, wanted, bar) -> dict[bytes, np.ndarray]:
    """{word: (D,)} of a text file from after its header. A word may contain blanks (GloVe 840B has some)."""
    vectors_of, rows, announced = {}, 0, count is not None
    for number, line in enumerate(f, 1 + announced):
        bar.update(len(line))
        parts = line.split()                                                        # at ASCII blanks only
        if parts and dim is None:                                                   # GloVe: the first line decides
            if b"\0" in line or len(parts) < 2 or not all(map(_is_number, parts[1:])):
                raise InputError(f"{path} holds no word vectors: its first line is not a word and numbers; {FORMS}")
            dim = len(parts) - 1
        if not parts:
            continue
        rows += 1
        word, extra = parts[0], parts[1:-dim]                                       # extra: of the word, or of the row
        if len(parts) < dim + 1 or any(map(_is_number, extra)):
            raise InputError(f"{path}, line {number}: {len(parts) - 1} values where the first line says {dim}; every "
                             "word has the same number of values, so fetch or write the file again")
        _check_text(word, f"{path}, line {number}")
        word = b" ".join([word, *extra]) if extra else word
        if (wanted is not None and word not in wanted) or word in vectors_of:
            continue
        values = [float(x) if _is_number(x) else np.nan for x in parts[-dim:]]
        vectors_of[word] = _check_numbers(values, f"{path}, line {number}")
    if announced and rows != count:
        raise InputError(f"{path} has {rows} words where its first line announces {count}; it was cut or changed, so "
                         "fetch or write it again")
    return vectors_of


def _binary_rows(f, path, count, dim, wanted, bar) -> dict[bytes, np.ndarray]:
    """{word: (D,)} of a binary file from after its header; at most about `CHUNK` bytes of it are held."""
    vectors_of, size, data, at = {}, 4 * dim, b"", 0
    if count * (size + 1) > os.path.getsize(path):
        raise InputError(f"{path} announces {count} words of {dim} values, which needs more than the file's "
                         f"{os.path.getsize(path)} bytes; it was cut or is no word2vec file, so fetch it again")
    for row in range(1, count + 1):
        if len(data) - at < size + LONGEST:
            data, at = data[at:] + f.read(CHUNK + size), 0
        blank = data.find(b" ", at, at + LONGEST)
        if blank < 0 or blank + 1 + size > len(data):
            raise InputError(f"{path} is broken off or is no word2vec file: no word and {dim} values at row {row} of "
                             f"the {count} that its first line announces; fetch it again")
        word = data[at:blank].lstrip(b"\n")                                         # the original ends rows with it
        if (wanted is None or word in wanted) and word not in vectors_of:
            _check_text(word, f"{path}, row {row}")
            vectors_of[word] = _check_numbers(np.frombuffer(data, "<f4", dim, blank + 1), f"{path}, row {row}")
        bar.update(blank + 1 + size - at)
        at = blank + 1 + size
    if (data[at:] + f.read(1)).strip():
        raise InputError(f"{path} goes on behind the {count} words that its first line announces; fetch it again")
    return vectors_of


def _check_text(word: bytes, where: str) -> None:
    try:
        word.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: the word {word!r} is not UTF-8 text; convert the file with iconv") from error


def _check_numbers(values, where: str) -> np.ndarray:
    if not np.isfinite(values).all() or np.abs(values).max() > 1e30:
        raise InputError(f"{where} has values that are no finite numbers; a word and D numbers are allowed, so fetch "
                         "or write the file again")
    return np.array(values, np.float32)                                             # (D,)


def table_for(vocab_words: list[str], path: str, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (V, D) float32 of a vocabulary, zeros for words without one, and which words have one, (V,) bool.

    Words are compared letter by letter; captions are lower-cased. Raises InputError if D is not `dim` or no word has a
    vector.
    """
    words, vectors = read_vectors(path, vocab_words)
    if not words:
        raise InputError(f"{path} has a vector for none of the {len(vocab_words)} words of the vocabulary; give a file "
                         "with words of the captions' language, in lower case")
    if dim is not None and vectors.shape[1] != dim:
        raise InputError(f"the word vectors of {path} have {vectors.shape[1]} values and {dim} are asked for; give the "
                         f"word dimension {vectors.shape[1]}, or another file")
    row = {word: i for i, word in enumerate(words)}
    place = np.array([row.get(word, -1) for word in vocab_words])                   # (V,)
    return np.where(place[:, None] < 0, 0, vectors[place]), place >= 0


def train_vectors(captions: list[list[str]], dim: int, threshold: int = 1,
                  window: int = 5) -> tuple[list[str], np.ndarray]:
    """Words (V,) that occur `threshold` times, the most frequent first, and vectors (V, dim) float32 learned from
    captions.

    Words that occur near the same words get similar vectors (Levy and Goldberg 2014, 3.3). n_wc says how often c occurs
    within `window` places of w, M_wc = max(0, log(n_wc n / (n_w n_c))) is the positive pointwise mutual information in
    nats, M ~ U S V^T is its truncated SVD, and the vectors are U sqrt(S). M is symmetric. The largest entry of each
    column is made positive. Raises InputError if there are too few words.
    """
    counts = Counter(word for caption in captions for word in caption)
    words = sorted((word for word, n in counts.items() if n >= threshold), key=lambda word: (-counts[word], word))
    size = len(words)
    if not 1 <= dim < size:
        raise InputError(f"vectors of {dim} values cannot be learned from {size} words; at least 1 and at most "
                         f"{size - 1} can, so give a smaller --dim or more captions")
    index = {word: i for i, word in enumerate(words)}
    kept = [[index[word] for word in caption if word in index] for caption in captions]
    flat = np.array([i for caption in kept for i in caption])                       # (T,) rarer words are left out
    whose = np.repeat(np.arange(len(kept)), [len(caption) for caption in kept])     # (T,)
    near = coo_array((size, size), dtype=np.float64).tocsr()
    for step in range(1, window + 1):
        same = whose[:-step] == whose[step:]
        left, right = flat[:-step][same], flat[step:][same]
        near = near + coo_array((np.ones(len(left)), (left, right)), (size, size)).tocsr()
    near = (near + near.T).tocoo()                                                  # (V, V), n_wc
    if not near.nnz:
        raise InputError(f"no two words of the {len(captions)} captions stand within {window} places of each other; "
                         "vectors need captions of several words and a --window of 1 or more")
    total = np.asarray(near.sum(1)).ravel()                                         # (V,), n_w
    near.data = np.maximum(0, np.log(near.data * total.sum() / (total[near.row] * total[near.col])))
    value, u = eigsh(near.tocsr(), k=dim, v0=np.ones(size), rng=0)                  # (D,), (V, D); S = |value|
    order = np.argsort(-np.abs(value), kind="stable")
    vectors = (u * np.sqrt(np.abs(value)))[:, order]
    large = np.abs(vectors) > (1 - 1e-6) * np.abs(vectors).max(0)                   # of equal ones the first decides
    vectors = vectors * np.where(vectors[large.argmax(0), np.arange(dim)] < 0, -1, 1)
    return words, vectors.astype(np.float32)


def write_vectors(path: str, words: list[str], vectors: np.ndarray) -> None:
    """Write words and vectors (n, D) in word2vec's text form."""
    with atomic(path) as f:
        f.write(f"{len(words)} {vectors.shape[1]}\n")
        for word, row in zip(words, vectors):
            f.write(f"{word} {' '.join(f'{x:.6g}' for x in row)}\n")


def neighbours(words: list[str], vectors: np.ndarray, word: str, count: int = 5) -> list[str]:
    """The `count` words with the greatest cosine with `word`, without the word itself."""
    rows = unit(vectors)                                                            # (n, D)
    order = np.argsort(-rows @ rows[words.index(word)], kind="stable")
    return [words[i] for i in order if words[i] != word][:count]


def learn(opt) -> None:
    """The command: learn vectors, write them, and print the nearest words of some frequent content words."""
    output(opt.output)                                      # a file of vectors may be anybody's, so none is replaced
    split = read_split(opt.data_path, opt.data_name, "train", text_only=True).require_sound()
    words, vectors = train_vectors(split.words, opt.dim, opt.vocab_threshold, opt.window)
    write_vectors(opt.output, words, vectors)
    print(f"{opt.output}: vectors of {opt.dim} values for {len(words):,} words of {len(split.captions):,} captions")
    counts = Counter(word for caption in split.words for word in caption)
    frequent = [i for i, word in enumerate(words) if counts[word] >= 10 and not is_function(word)]
    content = [words[i] for i in frequent]
    for word in content[:8]:
        print(f"  near {word}: {', '.join(neighbours(content, vectors[frequent], word))}")


def main(argv=None) -> None:
    p = Arguments("Learn word vectors from the training captions of a data set, and print neighbours of a few words.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, default="coco_precomp",
                   help="folder of the data set below --data_path")
    p.add_argument("--dim", type=width, default=300, help="number of values per vector")
    p.add_argument("--window", type=positive, default=5,
                   help="words count as near if they are at most this many places apart")
    p.add_argument("--vocab_threshold", type=positive, default=1,
                   help="give a vector to words that occur at least this often")
    p.add_argument("--output", type=filename, required=True, metavar="FILE.txt",
                   help="file to write, in word2vec's text form")
    cli.run("features.word_vectors", learn, p.parse_args(argv))


if __name__ == "__main__":
    main()
