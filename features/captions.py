"""Write features of captions: word vectors, word counts, or a frozen network.

    python -m features.captions --data_name coco_vgg_precomp --kind minilm
    python -m features.captions --data_name coco_vgg_precomp --name w2v --word_vectors FILE
    python -m features.captions --data_name coco_vgg_precomp --kind hglmm --ica --pca 6000
        --word_vectors GoogleNews.bin

Adds {split}_{name}.npy to a data set, (M, F) float32, one row per caption. features.json says in
one line what made each file, with checksums, because a model reads only features of the extractor
that it was trained on.

Each kind has `size`, the numbers that a caption gets; `line`, its description; `fitted`, the arrays
that were fitted on the training captions; and `rows(split, part)`, the features (n, size) of a part
of the captions of a split.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_array
from tqdm import tqdm

import utils
from data import Split, chunks, named_splits, read_split
from features.hglmm import HGLMM, fit_ica, fit_pca, project, signed_square_root, unit_rows
from features.sentences import SENTENCE_NETWORKS
from features.store import SPLITS, record_extractor
from images import Photos
from methods.pretrained import load_texts
from methods.word_vectors import read_word_vectors
from utils import (
    Arguments,
    InputError,
    checksum,
    data_set,
    filename,
    mapped,
    natural,
    positive,
    save_json,
    torch_device,
)
from vocab import SPECIALS, Vocabulary, as_words, is_function

VECTOR_SCALE = 10  # of unit word vectors before the mixture, as in the originals
PCA_CAPTIONS = 20_000  # captions sampled to fit the PCA
MIN_TFIDF_COUNT = 4  # TF-IDF counts words that occur so often in the training captions
CAPTIONS_PER_BLOCK = 1024  # captions whose features are computed at a time
CAPTIONS_PER_STEP = 64  # that a pretrained network reads at a time
# Other files of a split have these names.
RESERVED_NAMES = ("ims", "caps", "ids", "img_ids", "ann_ids")

FEATURE_KINDS = {  # kind: its options
    "mean": ("word_vectors", "content_words"),
    "hglmm": ("word_vectors", "content_words", "n_clusters", "ica", "pca"),
    "tfidf": ("content_words",),
    **dict.fromkeys(SENTENCE_NETWORKS, ()),
    "pretrained": ("model",),
}
READ = partial(read_split, dev_images=0, text_only=True)  # captions, perhaps without images


def find_words(captions: Sequence[list[str]], index: dict[str, int]) -> np.ndarray:
    """List the indexed words in captions: (2, T), caption and number of the word."""
    words = as_words(captions)
    indexed = np.array([index.get(word, -1) for word in words.distinct], np.int64)  # (U,)
    number = indexed[words.number]  # (S,)
    owner = np.repeat(np.arange(len(words)), words.length)
    return np.stack([owner, number])[:, number >= 0]


def count_indexed_words(captions: Sequence[list[str]], index: dict[str, int]) -> csr_array:
    """Count the indexed words in each tokenized caption: sparse (M, V) float32."""
    pairs = find_words(captions, index)
    ones = np.ones(pairs.shape[1], np.float32)
    return csr_array((ones, pairs), (len(captions), len(index)))


# ---- kinds


class WordFeatures:
    """Features of the occurrences of words.

    `index` numbers the words, and `weigh` turns counts (n, V) into features (n, size). A caption
    without a word of the index has zeros.
    """

    fitted = ()

    def rows(self, split: Split, part: slice) -> np.ndarray:
        counts = count_indexed_words(split.words[part], self.index)  # (n, V)
        has_words = counts.sum(1)[:, None] > 0
        return np.where(has_words, self.weigh(counts), 0)


class MeanVectors(WordFeatures):
    """Normalized mean of the normalized vectors of a caption's words (`jwae` 5.1).

    words: the words of all captions. word_vectors: the file to read. `table` holds the vectors of
    the words that have one, (V, D).
    """

    def __init__(self, words: list[str], word_vectors: str):
        table, has_vector = read_word_vectors(words, word_vectors)
        known = [word for word, has in zip(words, has_vector) if has]
        self.index = {word: number for number, word in enumerate(known)}
        self.table = unit_rows(table[has_vector])
        self.size = table.shape[1]
        with open(word_vectors, "rb") as f:
            start = f.read(1 << 20)
        self.source = f"vectors {os.path.basename(word_vectors)} {checksum([start])}"
        self.line = f"mean, {self.source}"

    def weigh(self, counts) -> np.ndarray:
        return unit_rows(counts @ self.table)


class FisherVectors(MeanVectors):
    """Fisher vectors of a mixture of word vectors (Klein et al. 2015), computed by hglmm.py.

    The steps: unit word vectors, their independent components (with `ica`), unit again, mixture,
    signed square root, l2 norm, PCA (to `pca` numbers, unless it is 0). ICA, mixture and PCA are
    fitted on the tokenized training captions.
    """

    def __init__(
        self,
        words: list[str],
        word_vectors: str,
        train: list[list[str]],
        n_clusters: int = 30,
        pca: int = 0,
        ica: bool = False,
    ):
        super().__init__(words, word_vectors)
        counts = count_indexed_words(train, self.index)  # (M, V)
        often = np.asarray(counts.sum(0))  # (V,)
        rows = np.flatnonzero(often)  # words of the training captions
        self.fitted = ()
        self.line = f"hglmm {n_clusters} clusters"
        if ica:
            axes = fit_ica(self.table[rows], self.size, often[rows])
            self.table = unit_rows(project(self.table, *axes))
            self.fitted = axes
            self.line += f", ica {self.size}"

        self.table = VECTOR_SCALE * self.table.astype(np.float64)
        self.mixture = HGLMM.fit(self.table[rows], often[rows], n_clusters)
        self.size = 2 * self.mixture.location.size
        self.fitted = (*astuple(self.mixture), *self.fitted)

        self.pca = ()
        if pca:
            self.pca = self.fit_axes(counts, pca)
            self.size = pca
            self.fitted = (*self.fitted, *self.pca)
            self.line += f", pca {pca}"
        self.line += f", {self.source}"

    def fit_axes(self, counts, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Fit PCA to the Fisher vectors of a sample of captions, given by word counts (M, V)."""
        filled = np.flatnonzero(counts.sum(1))
        sample = np.sort(np.random.default_rng(0).permutation(filled)[:PCA_CAPTIONS])
        blocks = chunks(sample, CAPTIONS_PER_BLOCK)
        bar = tqdm(blocks, desc="captions for the PCA", disable=None, leave=False)
        return fit_pca(np.concatenate([self.fisher(counts[part]) for part in bar]), size)

    def fisher(self, counts) -> np.ndarray:
        """Compute Fisher vectors (n, 2 K D) of the words in word counts (n, V)."""
        rows = np.unique(counts.indices)
        return signed_square_root(self.mixture.fisher_of_counts(self.table[rows], counts[:, rows]))

    def weigh(self, counts) -> np.ndarray:
        fisher = self.fisher(counts)
        if self.pca:
            return project(fisher, *self.pca)
        return fisher


class TfIdf(WordFeatures):
    """TF-IDF: n_w log(M / M_w), l2-normalized.

    A caption has word w n_w times, and M_w of the M tokenized training captions have it. Words are
    those that occur MIN_TFIDF_COUNT times there. Raises InputError without one.
    """

    def __init__(self, train: list[list[str]]):
        words = Vocabulary.build(train, MIN_TFIDF_COUNT).words[len(SPECIALS) :]
        if not words:
            raise InputError(
                f"no word occurs {MIN_TFIDF_COUNT} times in the training captions; give more "
                "captions"
            )
        captions_with = Counter()
        for caption in train:
            captions_with.update(set(caption))
        number_with = np.array([captions_with[word] for word in words])
        self.idf = np.log(len(train) / number_with)  # (V,)
        self.index = {word: number for number, word in enumerate(words)}
        self.fitted = (np.array(words), self.idf)
        self.size = len(words)
        self.line = f"tfidf {len(words)} words"

    def weigh(self, counts) -> np.ndarray:
        return unit_rows(counts.toarray() * self.idf.astype(np.float32))


class Sentences:
    """Sentence vectors by a frozen network, which reads every caption as it is written."""

    fitted = ()

    def __init__(self, kind: str, device):
        self.network = SENTENCE_NETWORKS[kind](device)
        self.size = self.network.size
        self.line = self.network.line

    def rows(self, split: Split, part: slice) -> np.ndarray:
        return self.network.embed(split.captions[part]).cpu().numpy()


class PretrainedSentences:
    """Vectors by a pretrained network of a folder, frozen: CLIP's text embeddings, BERT's mean.

    Raises InputError where `load_texts` cannot read it.
    """

    fitted = ()

    def __init__(self, folder: str, device):
        self.network, self.pieces = load_texts(folder, "model")
        weights = checksum(x.numpy() for x in self.network.state_dict().values())
        tokenizer = checksum([self.pieces.words[1].encode()])
        self.network.to(device)
        self.device = device
        self.size = self.network.dim
        self.line = (
            f"pretrained {self.network.kind}, {self.size} numbers, weights {weights}, word pieces "
            f"{tokenizer}"
        )

    @torch.no_grad()
    def rows(self, split: Split, part: slice) -> np.ndarray:
        tokens = self.pieces.encode_captions(split.captions[part])
        order = np.argsort(-tokens.length, kind="stable")  # similar lengths: little padding
        rows = np.empty((len(order), self.size), np.float32)
        for index in chunks(order, CAPTIONS_PER_STEP):
            numbers, lengths = tokens.batch(index)
            rows[index] = self.network(numbers.to(self.device), lengths).cpu().numpy()
        return rows


# ---- the command


def feature_name(text: str) -> str:
    """The type of a name of features, part of names of files."""
    if not re.fullmatch(r"\w+", text) or text in RESERVED_NAMES:
        raise InputError(
            f"{text} cannot name features of captions; give letters, digits and _, such as w2v"
        )
    return text


def build_kind(opt, splits: dict[str, Split]):
    """Fit or load the features of --kind for the captions of {name: split}. Raises InputError."""
    if opt.kind == "pretrained":
        return PretrainedSentences(opt.model, torch_device(opt.device))
    if opt.kind in SENTENCE_NETWORKS:
        return Sentences(opt.kind, torch_device(opt.device))
    words = set()
    for split in splits.values():
        words.update(as_words(split.words).distinct)
    words = sorted(words)
    if opt.kind == "mean":
        return MeanVectors(words, opt.word_vectors)
    if "train" not in splits:
        raise InputError(
            f"--kind {opt.kind} is fitted on training captions, and {opt.data_name} has none; add "
            "train_caps.txt, or take another kind"
        )
    train = splits["train"].words
    if opt.kind == "tfidf":
        return TfIdf(train)
    clusters = opt.n_clusters or 30
    return FisherVectors(words, opt.word_vectors, train, clusters, opt.pca, opt.ica)


def list_splits(folder: str) -> list[str]:
    """List the splits of a folder that have captions.

    They have a file each, or a line in captions.tsv; a folder may have both. If there are none, the
    usual three, so that the reader explains what is missing.
    """

    def has(split: str, ending: str) -> bool:
        return os.path.isfile(os.path.join(folder, f"{split}_{ending}"))

    lined = [split for split in SPLITS if has(split, "caps.txt")]
    named = named_splits(folder)
    if lined:  # lists of photos alone have no captions to embed
        named = [split for split in named if has(split, "ims.npy")]
    return [*lined, *named] or ["train", "dev", "test"]


def settle_kind(opt) -> None:
    """Fill in --kind. Raises InputError on options that do not go with it."""
    if opt.kind is None:
        opt.kind = "mean"
        if opt.model:
            opt.kind = "pretrained"
    if opt.kind == "pretrained" and not opt.model:
        raise InputError(
            "--kind pretrained needs --model FOLDER, which save_pretrained of transformers wrote"
        )
    for option in (*FEATURE_KINDS["hglmm"], "model"):
        value = getattr(opt, option)
        if value and option not in FEATURE_KINDS[opt.kind]:
            raise InputError(f"--{option} {value} is not for --kind {opt.kind}; leave it out")
    if "word_vectors" in FEATURE_KINDS[opt.kind] and not opt.word_vectors:
        raise InputError(
            f"--kind {opt.kind} needs --word_vectors FILE (word2vec, GloVe); features.word_vectors "
            "learns one"
        )


def write(opt, read=READ) -> None:
    """Write features of all splits. read: (data_path, data_name, split) -> Split.

    Raises InputError.
    """
    settle_kind(opt)
    name = opt.name or opt.kind
    folder = os.path.join(opt.data_path, opt.data_name)
    splits = {}
    for split in list_splits(folder):
        captions = read(opt.data_path, opt.data_name, split)
        splits[split] = captions.require_sound(images=False)
    for split in splits.values():
        if isinstance(split.images, Photos):
            raise InputError(
                f"--data_name {opt.data_name} holds photos, but features of captions are only used "
                "together with those of images; write the latter first with features.images, and "
                "give their folder as --data_name"
            )
    if opt.content_words:
        for split in splits.values():
            split.words = [keep_content_words(words) for words in split.words]

    kind = build_kind(opt, splits)
    line = kind.line
    if opt.content_words:
        line += ", content words"
    if kind.fitted:
        line += f", fitted {checksum(kind.fitted)}"
    record_extractor(folder, name, line)
    for split in splits.values():
        write_split_features(os.path.join(folder, f"{split.name}_{name}"), split, kind, line)


def keep_content_words(words: list[str]) -> list[str]:
    return [word for word in words if not is_function(word)]


def write_split_features(start: str, split: Split, kind, line: str) -> None:
    """Write the features of the captions of a split, start.npy, and of which captions they are."""
    path = f"{start}.npy"
    shape = (len(split.captions), kind.size)
    with mapped(path, shape, np.float32) as rows:
        blocks = range(0, len(rows), CAPTIONS_PER_BLOCK)
        for first in tqdm(blocks, desc=split.name, disable=None, leave=False):
            part = slice(first, first + CAPTIONS_PER_BLOCK)
            rows[part] = kind.rows(split, part)
        empty = ~rows.any(1)
    save_json({"captions_sha256": split.fingerprint()["captions_sha256"]}, f"{start}.json")
    print(f"{path}: {shape} of {line}")
    if empty.any():
        print(
            f"warning: {empty.sum()} of {len(empty)} captions of {split.name} have no word that "
            f"counts (first: '{split.captions[empty.argmax()]}'); their rows are zeros",
            file=sys.stderr,
        )


def main(argv=None, prog: str = "features.captions", read=READ) -> None:
    p = Arguments("Write features of captions.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        default="coco_precomp",
        help="folder of the captions, a data set below --data_path",
    )
    add(
        "--kind",
        choices=FEATURE_KINDS,
        help="mean of the word vectors (default), hglmm (Fisher vectors), tfidf, minilm (sentence "
        "vectors of MiniLM-L6), sentences (those of MiniLM-L6 and the multilingual USE) or "
        "pretrained (of --model, its default)",
    )
    add(
        "--model",
        type=filename,
        metavar="FOLDER",
        help="pretrained network (CLIP, SigLIP, BERT, MiniLM), a folder that save_pretrained of "
        "transformers wrote",
    )
    add(
        "--name",
        type=feature_name,
        help="name of the features, for files {split}_NAME.npy (default: the kind)",
    )
    add(
        "--word_vectors",
        type=filename,
        metavar="FILE",
        help="mean, hglmm: file of word vectors, in word2vec's text or .bin form or GloVe's text",
    )
    add(
        "--content_words",
        action="store_true",
        help="mean, hglmm, tfidf: leave function words and punctuation out, as CITE does for "
        "phrases",
    )
    add(
        "--n_clusters",
        type=positive,
        metavar="N",
        help="hglmm: number of clusters of the mixture (default: 30)",
    )
    add(
        "--ica",
        action="store_true",
        help="hglmm: transform the word vectors to independent components first",
    )
    add(
        "--pca",
        type=natural,
        default=0,
        metavar="N",
        help="hglmm: principal components to keep (0: no PCA)",
    )
    utils.add_device(p, only_for="minilm, sentences, pretrained")
    utils.run(prog, write, p.parse_args(argv), read)


if __name__ == "__main__":
    main()
