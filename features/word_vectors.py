"""Learn word vectors from the training captions of a data set.

    python -m features.word_vectors --data_name f30k_precomp --dim 300 --output f30k_vectors.txt

They need no download, and replace vectors of news text such as those of word2vec and GloVe.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh

import utils
from data import read_split
from features.captions import find_words
from utils import Arguments, InputError, atomic, data_set, filename, output, width
from vocab import SPECIALS, Vocabulary

WINDOW = 5  # positions: words at most so far apart are near each other


def train_vectors(captions: list[list[str]], dim: int) -> tuple[list[str], np.ndarray]:
    """Learn vectors (V, dim) float32 of words (V,), the most frequent word first.

    Words that occur near the same words get similar vectors (Levy and Goldberg 2014, 3.3). n_wc
    counts c within WINDOW positions of w, M_wc = max(0, log(n_wc n / (n_w n_c))) is the positive
    pointwise mutual information in nats, M ~ U S V^T is its truncated SVD, and the vectors are
    U sqrt(S). M is symmetric. The largest entry of each column is made positive. Raises InputError
    if there are too few words.
    """
    words = Vocabulary.build(captions, 1).words[len(SPECIALS) :]
    size = len(words)
    if dim >= size:
        raise InputError(
            f"vectors of {dim} values cannot be learned from {size} words, only vectors of up to "
            f"{size - 1} values; give a smaller --dim or more captions"
        )

    near = count_near_words(captions, words)
    if not near.nnz:
        raise InputError(
            f"no two words of the {len(captions)} captions are within {WINDOW} positions of each "
            "other; vectors need captions of several words"
        )
    total = np.asarray(near.sum(1)).ravel()  # (V,), n_w
    ratio = near.data * total.sum() / (total[near.row] * total[near.col])
    near.data = np.maximum(0, np.log(ratio))  # M

    value, u = eigsh(near.tocsr(), k=dim, v0=np.ones(size), rng=0)  # (D,), (V, D); S = |value|
    order = np.argsort(-np.abs(value), kind="stable")
    vectors = (u * np.sqrt(np.abs(value)))[:, order]
    large = np.abs(vectors) > (1 - 1e-6) * np.abs(vectors).max(0)
    first = large.argmax(0)  # (D,): the first of equally large entries decides the sign
    sign = np.where(vectors[first, np.arange(dim)] < 0, -1, 1)
    return words, (vectors * sign).astype(np.float32)


def count_near_words(captions: list[list[str]], words: list[str]):
    """Count how often words are within WINDOW positions of each other, n_wc: sparse (V, V)."""
    size = len(words)
    index = {word: k for k, word in enumerate(words)}
    owner, number = find_words(captions, index)  # (T,), (T,): caption and number of each word
    near = csr_array((size, size))
    for step in range(1, WINDOW + 1):
        same = owner[:-step] == owner[step:]  # in one caption
        pairs = (number[:-step][same], number[step:][same])
        near = near + csr_array((np.ones(same.sum()), pairs), (size, size))
    return (near + near.T).tocoo()


def write_vectors(path: str, words: list[str], vectors: np.ndarray) -> None:
    """Write words and vectors (n, D) in word2vec's text form."""
    with atomic(path) as f:
        f.write(f"{len(words)} {vectors.shape[1]}\n")
        for word, row in zip(words, vectors):
            numbers = " ".join(f"{x:.6g}" for x in row)
            f.write(f"{word} {numbers}\n")


def learn(opt) -> None:
    """Learn and write vectors. Raises InputError."""
    output(opt.output, overwrite=opt.overwrite)
    split = read_split(opt.data_path, opt.data_name, "train", text_only=True).require_sound()
    words, vectors = train_vectors(split.words, opt.dim)
    write_vectors(opt.output, words, vectors)
    print(
        f"{opt.output}: vectors of {opt.dim} values for {len(words):,} words of "
        f"{len(split.captions):,} captions"
    )


def main(argv=None) -> None:
    p = Arguments("Learn word vectors from the training captions of a data set.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        default="coco_precomp",
        help="folder of the data set below --data_path",
    )
    add("--dim", type=width, default=300, help="number of values per vector")
    add(
        "--output",
        type=filename,
        required=True,
        metavar="FILE.txt",
        help="file to write, in word2vec's text form",
    )
    add("--overwrite", action="store_true", help="replace an existing file")
    utils.run("features.word_vectors", learn, p.parse_args(argv))


if __name__ == "__main__":
    main()
