"""The kinds of features of captions that features.extract writes: from word vectors, from counts of
words, or sentence vectors of a frozen network.

Every kind has `size`, how many numbers a caption gets; `line`, its description; `arrays` with the
keys `names`, which were fitted or stored before; and `encode`, which turns the captions of a split
into features.
"""
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain

import numpy as np
from scipy.sparse import csr_array
from tqdm import tqdm

from cli import check
from data import Split, chunks, read_split
from features.hglmm import HGLMM, fit_ica, fit_pca, project, signed_square_root, unit
from features.minilm import MiniLM
from files import checksum
from methods.word_vectors import read_word_vectors
from vocab import Vocabulary, is_function

SCALE = 10                            # of unit word vectors before the mixture, as in the originals
ROWS = 1024                           # captions whose features of words are held at a time
SORTED = 4096               # captions that are sorted by length, so that those of a batch are alike
BATCH = 64                            # captions per step of a network
FITTING = {                           # of a fit: its kind, default, least, help
    "n_clusters": ("hglmm", 30, 1, "number of clusters of the mixture"),
    "n_iter": ("hglmm", 10, 0, "number of EM iterations"),
    "n_words": ("hglmm", 300_000, 1, "number of words sampled to fit the mixture"),
    "pca": ("hglmm", 0, 0, "number of principal components to keep (0: no PCA)"),
    "pca_captions": ("hglmm", 20_000, 2, "number of captions sampled to fit the PCA"),
    "seed": ("hglmm", 0, 0, "random seed of the samples and of the starting points"),
    "vocab_threshold": (
        "tfidf", 4, 1, "count only words that occur at least this often in the training captions"),
    "ica": ("hglmm", False, 0, "transform the word vectors to independent components first")}


def places(captions: list[list[str]], index: dict[str, int]) -> np.ndarray:
    """Where the words of the index stand in tokenised captions, one after another: (2, T), the
    caption and the number of the word."""
    pairs = [(m, index[word]) for m, words in enumerate(captions)
             for word in words if word in index]
    return np.array(pairs, np.int64).reshape(-1, 2).T


def word_counts(captions: list[list[str]], index: dict[str, int]) -> csr_array:
    """How often each word of the index occurs in each tokenised caption: sparse (M, V) float32."""
    pairs = places(captions, index)
    return csr_array((np.ones(pairs.shape[1], np.float32), pairs), (len(captions), len(index)))


def read_text(data_path: str, data_name: str, split: str) -> Split:
    """A split whose captions are read alone."""
    return read_split(data_path, data_name, split, dev_images=0, text_only=True)


def read_words(data_path: str, data_name: str, content: bool, split: str, read=read_text) -> Split:
    """A split whose captions are read alone. content: their function words and punctuation do not
    count."""
    found = read(data_path, data_name, split)
    if content:
        found.words = [[word for word in words if not is_function(word)] for words in found.words]
    return found


class OfWords:
    """Features that depend on how often each word occurs: `index` numbers the words, and `rows`
    turns counts (n, V) into features (n, size). A caption without a word of the index has zeros."""

    def encode(self, split: Split) -> tuple[np.ndarray, Iterator]:
        """Which captions have no word that counts, (M,) bool, and pairs (a slice of the captions,
        their features)."""
        counts = word_counts(split.words, self.index)                               # (M, V)
        empty = np.asarray(counts.sum(1)) == 0                                      # (M,)
        parts = [slice(start, start + ROWS) for start in range(0, len(empty), ROWS)]
        return empty, ((part, np.where(empty[part, None], 0, self.rows(counts[part])))
                       for part in parts)


class MeanVectors(OfWords):
    """The mean of the l2-normalised vectors of a caption's words, l2-normalised again (`jwae` 5.1).

    words: the words of all captions. word_vectors: the file to read. `index` numbers the words that
    have a vector, and `table` holds these, (V, D).
    """
    names = ()

    def __init__(self, words: list[str], word_vectors: str):
        table, has_vector = read_word_vectors(words, word_vectors)
        self.index = {word: i for i, word in enumerate(
            word for word, has in zip(words, has_vector) if has)}
        self.table, self.arrays, self.size = unit(table[has_vector]), {}, table.shape[1]
        self.word_vectors = word_vectors
        with open(word_vectors, "rb") as f:
            self.vectors = f"vectors {os.path.basename(word_vectors)} {checksum([f.read(1 << 20)])}"
        self.line = f"mean, {self.vectors}"

    def rows(self, counts) -> np.ndarray:
        """Word counts (n, V) -> features (n, D)."""
        return unit(counts @ self.table)                                   # (n, V) (V, D) -> (n, D)


class FisherVectors(MeanVectors):
    """Fisher vectors of a mixture of word vectors (hglmm.py), as Klein et al. 2015 compute them.

    The steps: unit word vectors, their independent components, unit again, mixture, signed square
    root, l2 norm, PCA. Call `fit` or `take` before `rows`.
    """
    names = ("weight", "location", "scale", "laplacian", "ica_mean", "ica_axes", "pca_mean",
             "pca_axes")

    def __init__(self, words: list[str], word_vectors: str):
        super().__init__(words, word_vectors)
        self.arrays = dict.fromkeys(self.names, np.zeros((0, 0)))

    def fit(self, train: list[list[str]], *, ica: bool, n_clusters: int, n_iter: int, n_words: int,
            pca: int, pca_captions: int, seed: int) -> "FisherVectors":
        """Fit ICA, mixture and PCA on the tokenised training captions; prints how well the mixture
        fits.

        n_words: sample of all occurrences of words, without replacement. pca: values to keep, 0 for
        no PCA. The other arguments are the options of the command. Returns self.
        """
        counts, rng, a = word_counts(train, self.index), np.random.default_rng(seed), self.arrays
        sampled = np.asarray(counts.sum(0)).astype(np.int64)               # of counts (M, V): (V,)
        if sampled.sum() > n_words:                                            # without replacement
            sampled = rng.multivariate_hypergeometric(sampled, n_words, method="marginals")
        rows = np.flatnonzero(sampled)
        if ica:
            a["ica_mean"], a["ica_axes"] = fit_ica(
                self.table[rows], self.size, seed=seed, count=sampled[rows])
        self.scale_table()
        self.mixture = HGLMM.fit(self.table[rows], n_clusters, n_iter, seed, count=sampled[rows])
        first, last = self.mixture.history[0], self.mixture.history[-1]
        print(f"mixture: mean log-likelihood {first:.1f} -> {last:.1f} nats a word, "
              f"{100 * self.mixture.laplacian.mean():.0f}% of the components Laplacian")
        a |= asdict(self.mixture)
        if pca:
            self.fit_pca(counts, rng, pca, pca_captions, seed)
        return self.describe()

    def take(self, arrays: dict) -> "FisherVectors":
        """Take the arrays that an earlier fit stored. Returns self.

        Raises InputError if they do not fit each other or the word vectors.
        """
        a = self.arrays = arrays
        clusters, size = a["weight"].shape, a["location"].shape
        check(
            len(size) == 2 and clusters == size[:1]
            and {a[name].shape for name in ("scale", "laplacian")} == {size},
            f"the mixture of --fitted has weights {clusters} and locations {size} that do not fit "
            "each other; give the .npz file that `python -m features.extract captions` wrote",
        )
        fits = (a["ica_axes"] if a["ica_axes"].size else a["location"]).shape[1]
        check(fits == self.size,
              f"the vectors of {self.word_vectors} have {self.size} values and the model of "
              f"--fitted is of {fits}; give the word vectors that it was fitted on")
        self.scale_table()
        self.mixture = HGLMM(*(a[name] for name in self.names[:4]))
        return self.describe()

    def scale_table(self) -> None:
        """Replace the word vectors by their independent components, if there are any, at the scale
        of the mixture."""
        a = self.arrays
        if a["ica_axes"].size:
            self.table = unit(project(self.table, a["ica_mean"], a["ica_axes"]))
        self.table = SCALE * self.table.astype(np.float64)

    def describe(self) -> "FisherVectors":
        """Set size and line from the fitted arrays. Returns self."""
        a = self.arrays
        self.size = len(a["pca_axes"]) or 2 * a["location"].size
        axes = {name: len(a[f"{name}_axes"]) for name in ("ica", "pca")}
        sizes = "".join(f", {name} {count}" for name, count in axes.items() if count)
        self.line = f"hglmm {len(a['weight'])} clusters{sizes}, {self.vectors}"
        return self

    def fit_pca(self, counts, rng, size: int, captions: int, seed: int) -> None:
        """Fit the principal axes of the Fisher vectors of a sample of captions. counts: (M, V)."""
        some = np.sort(rng.permutation(np.flatnonzero(np.asarray(counts.sum(1))))[:captions])
        fisher = np.empty((len(some), 2 * self.mixture.location.size), np.float32)
        for start in tqdm(range(0, len(some), ROWS), desc="captions for the PCA", disable=None,
                          leave=False):
            fisher[start:start + ROWS] = self.fisher(counts[some[start:start + ROWS]])
        print(f"PCA of {fisher.shape[1]:,} values to {size:,}, on {len(some):,} captions")
        self.arrays["pca_mean"], self.arrays["pca_axes"] = fit_pca(fisher, size, seed)

    def fisher(self, counts) -> np.ndarray:
        """Word counts (n, V) -> Fisher vectors (n, 2 K D). Only words that occur are looked at."""
        rows = np.unique(counts.indices)
        return signed_square_root(self.mixture.fisher_of_counts(self.table[rows], counts[:, rows]))

    def rows(self, counts) -> np.ndarray:
        """Word counts (n, V) -> Fisher vectors (n, size), projected on the principal axes if there
        are any."""
        fisher, a = self.fisher(counts), self.arrays
        return project(fisher, a["pca_mean"], a["pca_axes"]) if a["pca_axes"].size else fisher


class TfIdf(OfWords):
    """n_w log(M / M_w), l2-normalised, where a caption has word w n_w times and M_w of the M
    training captions have it.

    words (V,) and idf (V,), the logarithms. `index` numbers the words.
    """
    names = ("words", "idf")

    def __init__(self, words: np.ndarray, idf: np.ndarray):
        self.arrays, self.idf = {"words": words, "idf": idf}, idf
        self.index = {str(word): i for i, word in enumerate(words)}
        self.size, self.line = len(self.index), f"tfidf {len(self.index)} words"

    @classmethod
    def fit(cls, train: list[list[str]], vocab_threshold: int) -> "TfIdf":
        """Words that occur so often in tokenised captions, and their idf. Raises InputError if
        there is none."""
        words = Vocabulary.build(train, vocab_threshold).words[4:]
        check(words, f"no word stands {vocab_threshold} times in the training captions; give more "
                     "captions, or a lower --vocab_threshold")
        captions_with = Counter(word for caption in train for word in set(caption))
        return cls(np.array(words),
                   np.log(len(train) / np.array([captions_with[word] for word in words])))

    def rows(self, counts) -> np.ndarray:
        """Word counts (n, V) -> features (n, V)."""
        return unit(counts.toarray() * self.idf.astype(np.float32))                 # (n, V)


class Sentences:
    """Sentence vectors by a frozen network, which sees every caption as it is written.

    network: turns captions into word pieces by `pieces`, and those of a batch into vectors (B,
    size) when it is called.
    """
    names, arrays = (), {}

    def __init__(self, network: MiniLM):
        self.network, self.size, self.line = network, network.size, network.line

    def encode(self, split: Split) -> tuple[np.ndarray, Iterator]:
        """No caption is without a word, (M,) bool, and pairs (rows of the captions of a batch (B,),
        their vectors)."""
        return np.zeros(len(split.captions), bool), self.batches(split.captions)

    def batches(self, captions: list[str]) -> Iterator:
        for start in range(0, len(captions), SORTED):
            pieces = self.network.pieces(captions[start:start + SORTED])
            order = np.argsort([-len(numbers) for numbers in pieces], kind="stable")
            for index in chunks(order, BATCH):
                yield start + index, self.network([pieces[m] for m in index]).cpu().numpy()


KINDS = {"mean": MeanVectors, "hglmm": FisherVectors, "tfidf": TfIdf, "minilm": Sentences}


def of_words(kind: str, splits: list[Split], train: list[list[str]], word_vectors: str | None,
             fitting: dict, arrays: dict | None) -> OfWords:
    """The features of this kind, fitted on the tokenised captions `train` as FITTING says, or taken
    from the `arrays` of an earlier fit. splits: those whose words need a vector."""
    if kind == "tfidf":
        return TfIdf(**arrays) if arrays else TfIdf.fit(train, **fitting)
    words = {word for some in [train, *(split.words for split in splits)] for word in chain(*some)}
    features = KINDS[kind](sorted(words), word_vectors)
    if kind == "mean":
        return features
    return features.take(arrays) if arrays else features.fit(train, **fitting)
