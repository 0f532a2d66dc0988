"""Write features of captions: word vectors, word counts, or a frozen network.

    python -m features.captions --data_name coco_vgg_precomp --name w2v --word_vectors GoogleNews.bin
    python -m features.captions --data_name coco_vgg_precomp --kind hglmm --ica --pca 6000 --word_vectors FILE
    python -m features.captions --data_name coco_vgg_precomp --kind minilm

Adds {split}_{name}.npy to a data set, (M, F) float32, a row a caption. features.json says in one line what made each
file, with checksums, because a model reads only features of the extractor that it was trained on.

Each kind has `size`, the numbers that a caption gets; `line`, its description; `fitted`, the arrays that were fitted on
the training captions; and `rows(split, part)`, the features (n, size) of a part of the captions of a split.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from itertools import chain

import numpy as np
from scipy.sparse import csr_array
from tqdm import tqdm

import cli
from cli import Arguments, check, data_set, filename, natural, positive, torch_device
from data import Split, chunks, named_splits, read_split
from features.hglmm import HGLMM, fit_ica, fit_pca, project, signed_square_root, unit_rows
from features.sentences import SENTENCE_NETWORKS
from features.store import SPLITS, record_extractor
from files import checksum, mapped, save_json
from images import Photos
from methods.word_vectors import read_word_vectors
from vocab import SPECIALS, Vocabulary, as_words, is_function

SCALE = 10                            # of unit word vectors before the mixture, as in the originals
PCA_CAPTIONS = 20_000                 # captions sampled to fit the PCA
RARE = 4                              # TF-IDF counts words that occur so often in the training captions
ROWS = 1024                           # captions whose features are computed at a time
KINDS = {"mean": ("word_vectors", "content_words"),                             # kind: its options
         "hglmm": ("word_vectors", "content_words", "n_clusters", "ica", "pca"), "tfidf": ("content_words",),
         **dict.fromkeys(SENTENCE_NETWORKS, ())}
READ = partial(read_split, dev_images=0, text_only=True)            # captions, perhaps without images


def find_words(captions: Sequence[list[str]], index: dict[str, int]) -> np.ndarray:
    """List the indexed words in captions: (2, T), caption and number of the word."""
    words = as_words(captions)
    indexed = np.array([index.get(word, -1) for word in words.distinct], np.int64)                  # (U,)
    number = indexed[words.number]                                                                  # (S,)
    owner = np.repeat(np.arange(len(words)), words.length)
    return np.stack([owner, number])[:, number >= 0]


def count_words(captions: Sequence[list[str]], index: dict[str, int]) -> csr_array:
    """Count the indexed words in each tokenised caption: sparse (M, V) float32."""
    pairs = find_words(captions, index)
    return csr_array((np.ones(pairs.shape[1], np.float32), pairs), (len(captions), len(index)))


# ---- kinds

class WordFeatures:
    """Features of the occurrences of words.

    `index` numbers the words, and `weigh` turns counts (n, V) into features (n, size). A caption without a word of the
    index has zeros.
    """
    fitted = ()

    def rows(self, split: Split, part: slice) -> np.ndarray:
        counts = count_words(split.words[part], self.index)                                                 # (n, V)
        return np.where(counts.sum(1)[:, None] > 0, self.weigh(counts), 0)


class MeanVectors(WordFeatures):
    """Normalised mean of the normalised vectors of a caption's words (`jwae` 5.1).

    words: the words of all captions. word_vectors: the file to read. `table` holds the vectors that are there, (V, D).
    """

    def __init__(self, words: list[str], word_vectors: str):
        table, has_vector = read_word_vectors(words, word_vectors)
        self.index = {word: i for i, word in enumerate(word for word, has in zip(words, has_vector) if has)}
        self.table, self.size = unit_rows(table[has_vector]), table.shape[1]
        with open(word_vectors, "rb") as f:
            self.source = f"vectors {os.path.basename(word_vectors)} {checksum([f.read(1 << 20)])}"
        self.line = f"mean, {self.source}"

    def weigh(self, counts) -> np.ndarray:
        return unit_rows(counts @ self.table)


class FisherVectors(MeanVectors):
    """Fisher vectors of a mixture of word vectors (Klein et al. 2015).
    hglmm.py computes them.

    The steps: unit word vectors, their independent components (with `ica`), unit again, mixture, signed square root, l2
    norm, PCA (to `pca` numbers, unless it is 0). ICA, mixture and PCA are fitted on the tokenised training captions.
    """

    def __init__(self, words: list[str], word_vectors: str, train: list[list[str]], n_clusters: int = 30,
                 pca: int = 0, ica: bool = False):
        super().__init__(words, word_vectors)
        counts = count_words(train, self.index)                                             # (M, V)
        often = np.asarray(counts.sum(0))                                                   # (V,)
        rows, axes, self.pca = np.flatnonzero(often), (), ()
        if ica:
            axes = fit_ica(self.table[rows], self.size, often[rows])
            self.table = unit_rows(project(self.table, *axes))
        sizes = f", ica {self.size}" * ica + f", pca {pca}" * bool(pca)
        self.table = SCALE * self.table.astype(np.float64)
        self.mixture = HGLMM.fit(self.table[rows], often[rows], n_clusters)
        if pca:
            filled = np.flatnonzero(counts.sum(1))
            sample = np.sort(np.random.default_rng(0).permutation(filled)[:PCA_CAPTIONS])
            bar = tqdm(chunks(sample, ROWS), desc="captions for the PCA", disable=None, leave=False)
            self.pca = fit_pca(np.concatenate([self.fisher(counts[part]) for part in bar]), pca)
        self.fitted = (*astuple(self.mixture), *axes, *self.pca)
        self.size = pca or 2 * self.mixture.location.size
        self.line = f"hglmm {n_clusters} clusters{sizes}, {self.source}"

    def fisher(self, counts) -> np.ndarray:
        """Compute Fisher vectors (n, 2 K D) of the words in word counts (n, V)."""
        rows = np.unique(counts.indices)
        return signed_square_root(self.mixture.fisher_of_counts(self.table[rows], counts[:, rows]))

    def weigh(self, counts) -> np.ndarray:
        fisher = self.fisher(counts)
        return project(fisher, *self.pca) if self.pca else fisher


class TfIdf(WordFeatures):
    """TF-IDF: n_w log(M / M_w), l2-normalised.

    A caption has word w n_w times, and M_w of the M tokenised training captions have it. Words are those that occur
    RARE times there. Raises InputError without one.
    """

    def __init__(self, train: list[list[str]]):
        words = Vocabulary.build(train, RARE).words[len(SPECIALS):]
        check(words, f"no word stands {RARE} times in the training captions; give more captions")
        captions_with = Counter(word for caption in train for word in set(caption))
        self.idf = np.log(len(train) / np.array([captions_with[word] for word in words]))           # (V,)
        self.index, self.fitted = {word: i for i, word in enumerate(words)}, (np.array(words), self.idf)
        self.size, self.line = len(words), f"tfidf {len(words)} words"

    def weigh(self, counts) -> np.ndarray:
        return unit_rows(counts.toarray() * self.idf.astype(np.float32))


class Sentences:
    """Sentence vectors by a frozen network, which reads every caption as it is written."""
    fitted = ()

    def __init__(self, kind: str, device):
        self.network = SENTENCE_NETWORKS[kind](device)
        self.size, self.line = self.network.size, self.network.line

    def rows(self, split: Split, part: slice) -> np.ndarray:
        return self.network.embed(split.captions[part]).cpu().numpy()


# ---- the command

def feature_name(text: str) -> str:
    """The type of a name of features, part of names of files."""
    check(re.fullmatch(r"\w+", text) and text not in ("ims", "caps", "ids", "img_ids", "ann_ids"),
          f"{text} cannot name features of captions; give letters, digits and _, such as w2v")
    return text


def build_kind(opt, splits: dict[str, Split]):
    """Fit or load the features of --kind for the captions of {name: split}. Raises InputError."""
    if opt.kind in SENTENCE_NETWORKS:
        return Sentences(opt.kind, torch_device(opt.device))
    words = sorted(set(chain(*(as_words(split.words).distinct for split in splits.values()))))
    if opt.kind == "mean":
        return MeanVectors(words, opt.word_vectors)
    check("train" in splits, f"--kind {opt.kind} is fitted on training captions, and {opt.data_name} has none; add "
                             "train_caps.txt, or take another kind")
    train = splits["train"].words
    if opt.kind == "tfidf":
        return TfIdf(train)
    return FisherVectors(words, opt.word_vectors, train, opt.n_clusters or 30, opt.pca, opt.ica)


def list_splits(folder: str) -> list[str]:
    """List the splits of a folder that have captions: a file each, or a line in captions.tsv; a folder may have both.
    Without any, the usual three, whose absence the reader explains."""
    lined = [split for split in SPLITS if os.path.isfile(os.path.join(folder, f"{split}_caps.txt"))]
    named = named_splits(folder)
    if lined:                                               # lists of photos alone have no captions to embed
        named = [split for split in named if os.path.isfile(os.path.join(folder, f"{split}_ims.npy"))]
    return [*lined, *named] or ["train", "dev", "test"]


def write(opt, read=READ) -> None:
    """Write features of all splits. read: (data_path, data_name, split) -> Split. Raises InputError."""
    for option in KINDS["hglmm"]:
        value = getattr(opt, option)
        check(not value or option in KINDS[opt.kind], f"--{option} {value} is not for --kind {opt.kind}; leave it out")
    check(opt.word_vectors or "word_vectors" not in KINDS[opt.kind],
          f"--kind {opt.kind} needs --word_vectors FILE (word2vec, GloVe); features.word_vectors learns one")
    name, folder = opt.name or opt.kind, os.path.join(opt.data_path, opt.data_name)
    splits = {split: read(opt.data_path, opt.data_name, split).require_sound(images=False)
              for split in list_splits(folder)}
    check(not any(isinstance(split.images, Photos) for split in splits.values()),
          f"--data_name {opt.data_name} holds photos, and features of captions are read beside precomputed ones; write "
          "those first with features.images, and name their folder")
    for split in splits.values() if opt.content_words else ():
        split.words = [[word for word in words if not is_function(word)] for words in split.words]
    kind = build_kind(opt, splits)
    line = kind.line + ", content words" * opt.content_words
    line += f", fitted {checksum(kind.fitted)}" if kind.fitted else ""
    record_extractor(folder, name, line)
    for split in splits.values():
        path, shape = os.path.join(folder, f"{split.name}_{name}.npy"), (len(split.captions), kind.size)
        with mapped(path, shape, np.float32) as rows:
            for start in tqdm(range(0, len(rows), ROWS), desc=split.name, disable=None, leave=False):
                part = slice(start, start + ROWS)
                rows[part] = kind.rows(split, part)
            empty = ~rows.any(1)
        save_json({"captions_sha256": split.fingerprint()["captions_sha256"]}, f"{path.removesuffix('.npy')}.json")
        print(f"{path}: {shape} of {line}")
        if empty.any():
            print(f"warning: {empty.sum()} of {len(empty)} captions of {split.name} have no word that counts, the "
                  f"first is '{split.captions[empty.argmax()]}'; their rows are zeros", file=sys.stderr)


def main(argv=None, prog: str = "features.captions", read=READ) -> None:
    p = Arguments("Write features of captions.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp",
        help="folder of the captions, a data set below --data_path")
    add("--kind", choices=KINDS, default="mean", help="mean of the word vectors, hglmm (Fisher vectors), tfidf, "
        "minilm (sentence vectors of MiniLM-L6) or sentences (those of MiniLM-L6 and the multilingual USE)")
    add("--name", type=feature_name, help="name of the features, for files {split}_NAME.npy (default: the kind)")
    add("--word_vectors", type=filename, metavar="FILE",
        help="mean, hglmm: file of word vectors, in word2vec's text or .bin form or GloVe's text")
    add("--content_words", action="store_true",
        help="mean, hglmm, tfidf: leave function words and punctuation out, as CITE does of phrases")
    add("--n_clusters", type=positive, metavar="N", help="hglmm: number of clusters of the mixture (default: 30)")
    add("--ica", action="store_true", help="hglmm: transform the word vectors to independent components first")
    add("--pca", type=natural, default=0, metavar="N", help="hglmm: principal components to keep (0: no PCA)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="minilm, sentences: auto: CUDA if present")
    cli.run(prog, write, p.parse_args(argv), read)


if __name__ == "__main__":
    main()
