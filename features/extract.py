"""Write features of photos by a network, or of captions by word vectors, as files that data sets are read from.

    python -m features.extract images --data_name coco --cnn_type vgg19 --layer fc7 --output_name coco_vgg_precomp
    python -m features.extract captions --data_name coco_vgg_precomp --name w2v --word_vectors GoogleNews.bin
    python -m features.extract captions --data_name coco_vgg_precomp --kind hglmm --ica --pca 6000 --word_vectors FILE
    python -m features.extract captions --data_name f30k_vgg_precomp --fitted data/coco_vgg_precomp/hglmm_model.npz \\
        --word_vectors FILE

`images` writes a folder in the layout of `*_precomp`; stopped at any moment it goes on where it was, and called again it
computes the photos that are new or changed. `captions` adds {split}_{name}.npy (M, F)
float32, a row a caption. features.json beside them says in one line what made each file, with checksums: a model fits only
features of its own extractor. Mixture, PCA or idf, fitted on the training captions, go to {name}_model.npz; --fitted takes
them for another data set.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import os
import re
import sys
from collections import Counter
from functools import partial

import numpy as np
from scipy.sparse import csr_array
from tqdm import tqdm

import cli
from cli import Arguments, InputError, Stopped, data_set, filename, positive, torch_device, workers
from data import Split, extractors, read_split, told_of
from encoders import CNNS
from features.hglmm import HGLMM, fit_ica, fit_pca, improve, load_arrays, project, unit
from features.photos import Extraction, checksum, in_order, network, write_texts
from features.word_vectors import table_for
from files import holds_arrays, locked, mapped, output, save_arrays, save_json
from inputs import Photos
from vocab import Vocabulary

SPLITS = ("train", "restval", "dev", "val", "test", "testall")
NOT_NAMES = ("ims", "caps", "ids", "img_ids", "ann_ids")
SCALE = 10                            # of unit word vectors before the mixture, as in the originals
ROWS = 1024                           # captions whose Fisher vectors are held at a time
FITTING = {                           # numbers of a fit: its kind, default, least, help
    "n_clusters": ("hglmm", 30, 1, "clusters of the mixture"), "n_iter": ("hglmm", 10, 0, "iterations of EM"),
    "n_words": ("hglmm", 300_000, 1, "words sampled for the mixture"), "pca": ("hglmm", 0, 0, "values to keep; 0: all of them"),
    "pca_captions": ("hglmm", 20_000, 2, "captions sampled for the PCA"), "seed": ("hglmm", 0, 0, "of samples and starts"),
    "vocab_threshold": ("tfidf", 4, 1, "words seen at least this often count")}


def write_rows(path: str, shape: tuple, dtype, blocks, title: str) -> None:
    """Blocks of rows into a mapped .npy file of this shape, which has its name only when it is whole."""
    with mapped(path, shape, dtype) as out, tqdm(total=shape[0], desc=title, disable=None, leave=False) as bar:
        at = 0
        for rows in blocks:
            out[at:at + len(rows)] = rows
            at += len(rows)
            bar.update(len(rows))
        assert at == shape[0], (at, shape)


def claim(folder: str, suffix: str, line: str) -> None:
    """Write down what makes {split}_{suffix}.npy here. Raises InputError where they are there of another extractor.

    Files of an earlier fit by the same recipe are deleted, so that a folder never holds two.
    """
    files = [path for path in (os.path.join(folder, f"{split}_{suffix}.npy") for split in SPLITS) if os.path.isfile(path)]
    before = extractors(folder).get(suffix, "an extractor that no features.json names")
    if files and before.split(", fitted")[0] != line.split(", fitted")[0]:
        raise InputError(f"{files[0]} is of '{before}' and these are of '{line}'; give another name, or delete the old files")
    for path in files if before != line else ():
        os.remove(path)
    save_json({**extractors(folder), suffix: line}, os.path.join(folder, "features.json"))


# ---- images

def extract_images(opt) -> None:
    folder = os.path.join(opt.data_path, opt.output_name)
    splits = [read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval, dev_images=0) for name in opt.splits]
    if not all(isinstance(split.images, Photos) for split in splits):
        raise InputError(f"--data_name {opt.data_name} holds features, not photos; give a data set of photos, such as coco")
    if os.path.realpath(folder) == os.path.realpath(os.path.join(opt.data_path, opt.data_name)):
        raise InputError(f"--output_name {opt.output_name} is the folder of the photos; give the features another name")
    orders = [in_order(split.require_sound(images=not opt.skip_broken), opt.captions_per_image) for split in splits]
    device = torch_device(opt.device)
    cnn, line = network(opt.cnn_type, opt.layer, opt.cnn_weights)
    check_own(folder, splits)
    output(os.path.join(folder, "features.json"), lambda path: extractors(folder) is not None)
    with locked(folder, "extracting into"):
        claim(folder, "ims", line)
        cnn = cnn.to(device)
        for split, order in zip(splits, orders):
            for note in split.notes:
                print(f"note: {note}")
            shape, dtype = ((49, cnn.dim), np.float16) if cnn.cells else ((cnn.dim,), np.float32)
            work = Extraction(folder, split, line, shape, dtype)
            if work.prepare():
                write_texts(folder, split, order)
                print(f"{work.path}: done already")
                continue
            try:
                work.run(cnn, opt, device)
            except Stopped as stop:
                done = sum(row is not None for row in work.rows)
                stop.advice = f"{done:,} of {len(work.rows):,} photos of {split.name} are done, and the same command goes on"
                raise
            work.commit(order)
            broken = [row for row in work.rows if len(row) == 2]
            print(f"{work.path}: {(len(work.rows) - len(broken), *work.shape[1:])} of {line}, "
                  f"{len(order) - len(broken) * len(order) // len(work.rows):,} captions")
            if broken:
                print(f"warning: {len(broken):,} of {len(work.rows):,} photos of {split.name} cannot be read and are left out "
                      f"with their captions, the first: {broken[0][1]}", file=sys.stderr)


def check_own(folder: str, splits: list[Split]) -> None:
    """Raise InputError where files of a split are in the folder that no extraction of images put there. (Of features by
    another extractor, or none that is known, `claim` speaks.)"""
    for split in splits:
        of = os.path.join(folder, f"{split.name}_{{}}").format
        found = [of(name) for name in ("caps.txt", "ids.txt", "img_ids.npy", "ann_ids.npy") if os.path.exists(of(name))]
        if found and "ims" not in extractors(folder) and not os.path.isfile(of("ims.npy")):
            raise InputError(f"{found[0]} is there already, and no features that features.extract wrote; give --output_name a "
                             "folder "
                             "of its own")


# ---- captions

def word_counts(captions: list[list[str]], index: dict[str, int]) -> csr_array:
    """How often each word of the index stands in each tokenised caption: sparse (M, V)."""
    pairs = np.array([(m, index[word]) for m, words in enumerate(captions) for word in words if word in index]).reshape(-1, 2)
    return csr_array((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])), (len(captions), len(index)))


class Mean:
    """The mean of the l2-normalised vectors of a caption's words, l2-normalised again (`jwae` 5.1).

    `words` are those of all captions; `index` numbers those that have a vector, `table` (V, D). A kind tells in a line what it
    is, gives rows (n, size) for word counts (n, V), and has `arrays`, named `names`, that were fitted or are taken as `stored`.
    """
    names = ()

    def __init__(self, opt, words: list[str], train: list[list[str]] | None, stored: dict | None):
        table, known = table_for(words, opt.word_vectors)
        self.index = {word: i for i, word in enumerate(word for word, has in zip(words, known) if has)}
        self.table, self.arrays, self.size = unit(table[known]), {}, table.shape[1]
        with open(opt.word_vectors, "rb") as f:
            self.vectors = f"vectors {os.path.basename(opt.word_vectors)} {checksum([f.read(1 << 20)])}"
        self.line = f"mean, {self.vectors}"

    def rows(self, counts) -> np.ndarray:
        return unit(counts @ self.table)                                            # (n, V) (V, D) -> (n, D)


class Fisher(Mean):
    """Fisher vectors: unit word vectors, their independent components, unit again, mixture, signed root, l2, PCA (hglmm.py)."""
    names = ("weight", "location", "scale", "laplacian", "ica_mean", "ica_axes", "pca_mean", "pca_axes")

    def __init__(self, opt, words, train, stored):
        super().__init__(opt, words, train, stored)
        counts = None if stored else word_counts(train, self.index)                 # (M, V)
        rng = np.random.default_rng(opt.seed)
        a = self.arrays = stored or dict.fromkeys(self.names, np.zeros((0, 0)))
        if stored:
            clusters, size = a["weight"].shape, a["location"].shape
            if len(size) != 2 or clusters != size[:1] or {a[name].shape for name in ("scale", "laplacian")} != {size}:
                raise InputError(f"the mixture of {opt.fitted} has weights {clusters} and locations {size} that do not fit "
                                 "each other; give the .npz file that `python -m features.extract captions` wrote")
            fits = (a["ica_axes"] if a["ica_axes"].size else a["location"]).shape[1]
            if fits != self.size:
                raise InputError(f"the vectors of {opt.word_vectors} have {self.size} values and {opt.fitted} was fitted on "
                                 f"{fits}; give the word vectors that it was fitted on")
        else:                                                                       # of all words n_words, without replacement
            often = np.asarray(counts.sum(0)).astype(np.int64)                      # (V,)
            if often.sum() > opt.n_words:
                often = rng.multivariate_hypergeometric(often, opt.n_words, method="marginals")
            seen = np.flatnonzero(often)
            if opt.ica:
                a["ica_mean"], a["ica_axes"] = fit_ica(self.table[seen], self.size, seed=opt.seed, count=often[seen])
        if a["ica_axes"].size:
            self.table = unit(project(self.table, a["ica_mean"], a["ica_axes"]))
        self.table = SCALE * self.table.astype(np.float64)
        if stored:
            self.mixture = HGLMM(*(a[name] for name in self.names[:4]))
        else:
            self.mixture = HGLMM.fit(self.table[seen], opt.n_clusters, opt.n_iter, opt.seed, count=often[seen])
            print(f"mixture: mean log-likelihood {self.mixture.history[0]:.1f} -> {self.mixture.history[-1]:.1f} nats a word, "
                  f"{100 * self.mixture.laplacian.mean():.0f}% of the components Laplacian")
            a |= self.mixture.arrays()
            if opt.pca:
                self.fit_pca(counts, rng, opt)
        self.size = len(a["pca_axes"]) or 2 * a["location"].size
        sizes = [f", {name} {len(a[f'{name}_axes'])}" for name in ("ica", "pca") if a[f"{name}_axes"].size]
        self.line = f"hglmm {len(a['weight'])} clusters{''.join(sizes)}, {self.vectors}"

    def fit_pca(self, counts, rng, opt) -> None:
        """Principal axes of the Fisher vectors of a sample of captions."""
        some = np.sort(rng.permutation(np.flatnonzero(np.asarray(counts.sum(1))))[:opt.pca_captions])
        fisher = np.empty((len(some), 2 * self.mixture.location.size), np.float32)
        for start in tqdm(range(0, len(some), ROWS), desc="captions for the PCA", disable=None, leave=False):
            fisher[start:start + ROWS] = self.fisher(counts[some[start:start + ROWS]])
        print(f"PCA of {fisher.shape[1]:,} values to {opt.pca:,}, on {len(some):,} captions")
        self.arrays["pca_mean"], self.arrays["pca_axes"] = fit_pca(fisher, opt.pca, opt.seed)

    def fisher(self, counts) -> np.ndarray:
        """(n, V) -> (n, 2 K D), looking only at words that stand there."""
        used = np.unique(counts.indices)
        return improve(self.mixture.fisher_of_counts(self.table[used], counts[:, used]))

    def rows(self, counts) -> np.ndarray:
        fisher, a = self.fisher(counts), self.arrays
        return project(fisher, a["pca_mean"], a["pca_axes"]) if a["pca_axes"].size else fisher


class TfIdf:
    """n_w log(M / M_w), l2-normalised: how often a caption has a word that M_w of the M training captions have."""
    names = ("words", "idf")

    def __init__(self, opt, words, train, stored):
        self.arrays = stored
        if not stored:
            kept = Vocabulary.build(train, opt.vocab_threshold).words[4:]
            if not kept:
                raise InputError(f"no word stands {opt.vocab_threshold} times in the captions; give a lower --vocab_threshold")
            having = Counter(word for caption in train for word in set(caption))
            self.arrays = {"words": np.array(kept), "idf": np.log(len(train) / np.array([having[word] for word in kept]))}
        self.index = {str(word): i for i, word in enumerate(self.arrays["words"])}
        self.size, self.line = len(self.index), f"tfidf {len(self.index)} words"

    def rows(self, counts) -> np.ndarray:
        return unit(counts.toarray() * self.arrays["idf"].astype(np.float32))       # (n, V)


KINDS = {"mean": Mean, "hglmm": Fisher, "tfidf": TfIdf}


def checked(opt) -> dict | None:
    """Fill in kind and name, refuse what cannot be, and read the arrays of --fitted."""
    if opt.fitted:
        kind = str(load_arrays(opt.fitted, ["kind"])["kind"])
        if opt.kind not in (None, kind) or kind not in KINDS:
            raise InputError(f"--kind {opt.kind}: {opt.fitted} is a model of kind {kind}; leave --kind out")
        opt.kind = kind
    opt.kind = opt.kind or "mean"
    opt.name = opt.name or opt.kind
    if opt.name in NOT_NAMES or not re.fullmatch(r"\w+", opt.name):
        raise InputError(f"--name {opt.name} cannot name features of captions; give letters, digits and _, and none of "
                         f"{', '.join(NOT_NAMES)}")
    for name, (kind, default, least, _) in {**FITTING, "ica": ("hglmm", False, False, "")}.items():
        value = getattr(opt, name)
        if value < least:
            raise InputError(f"--{name} {value} is too small; give {least} or more")
        if value != default and (opt.fitted or kind != opt.kind):
            given = f"--fitted {opt.fitted}" if opt.fitted else f"--kind {opt.kind}"
            raise InputError(f"--{name} is for fitting --kind {kind}, not for {given}; leave it out")
    if opt.kind == "tfidf" and opt.word_vectors:
        raise InputError(f"--word_vectors {opt.word_vectors}: --kind tfidf counts words and has no vectors; leave it out")
    if opt.kind != "tfidf" and not opt.word_vectors:
        raise InputError(f"--kind {opt.kind} needs --word_vectors FILE (word2vec, GloVe); `python -m features.word_vectors` "
                         "learns one")
    return load_arrays(opt.fitted, KINDS[opt.kind].names) if opt.fitted else None


def extract_captions(opt) -> None:
    stored, folder = checked(opt), os.path.join(opt.data_path, opt.data_name)
    found = [name for name in SPLITS if os.path.isfile(os.path.join(folder, f"{name}_caps.txt"))] or ["train", "dev", "test"]
    read = partial(read_split, opt.data_path, opt.data_name, dev_images=0, text_only=True)
    splits = {name: read(name).require_sound(images=False) for name in opt.splits or found}
    if any(isinstance(split.images, Photos) for split in splits.values()):
        raise InputError(f"--data_name {opt.data_name} holds photos, and features of captions are read beside precomputed "
                         "ones; write those first with features.extract images, and name their folder")
    output(os.path.join(folder, "features.json"), lambda path: extractors(folder) is not None)
    train = None if stored or opt.kind == "mean" else (splits.get("train") or read("train")).words
    words = {word for split in splits.values() for caption in split.words for word in caption}
    kind = KINDS[opt.kind](opt, sorted(words.union(*train or ())), train, stored)
    if kind.names:
        kind.line += f", fitted {checksum(kind.arrays[name] for name in kind.names)}"
    claim(folder, opt.name, kind.line)
    if kind.names:
        path = os.path.join(folder, f"{opt.name}_model.npz")
        output(path, holds_arrays("kind", *kind.names), [opt.fitted or ""])
        save_arrays(path, {"kind": np.array(opt.kind), **kind.arrays})
    for split in splits.values():
        counts = word_counts(split.words, kind.index)                               # (M, V)
        empty = np.asarray(counts.sum(1)) == 0                                      # (M,)
        parts = [slice(start, start + ROWS) for start in range(0, len(empty), ROWS)]
        blocks = (np.where(empty[part, None], 0, kind.rows(counts[part])) for part in parts)
        path = os.path.join(folder, f"{split.name}_{opt.name}.npy")
        write_rows(path, (len(empty), kind.size), np.float32, blocks, split.name)
        save_json(told_of(split.captions), path.replace(".npy", ".json"))
        print(f"{path}: ({len(empty)}, {kind.size}) of {kind.line}")
        if empty.any():
            print(f"warning: {empty.sum()} of {len(empty)} captions of {split.name} have no word that counts, the first is "
                  f"'{split.captions[empty.argmax()]}'; their rows are zeros", file=sys.stderr)


def arguments(what: str) -> Arguments:
    p = Arguments(f"Write features of {what}.")
    p.prog += f" {what}"
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    if what == "images":
        p.add_argument("--data_name", type=data_set, default="coco", help="photos to read: a folder below --data_path")
        p.add_argument("--output_name", type=data_set, required=True, help="folder to write below --data_path")
        p.add_argument("--splits", nargs="+", choices=SPLITS, default=["train", "dev", "test"], help="splits to read")
        p.add_argument("--use_restval", action="store_true", help="COCO: add the restval images to train")
        p.add_argument("--captions_per_image", type=positive, metavar="N", help="write the first N captions of every image")
        p.add_argument("--cnn_type", choices=CNNS, default="vgg19", help="network")
        p.add_argument("--layer", choices=["fc6", "fc7", "pooled", "cells"],
                       help="fc6 or fc7 (VGG, default: fc7), pooled (the others), or cells: 7 x 7 of the last map, in float16")
        p.add_argument("--cnn_weights", type=filename, metavar="FILE",
                       help="weights of the network (default: ImageNet's, as in train.py)")
        p.add_argument("--batch_size", type=positive, default=64, help="photos at a time")
        p.add_argument("--workers", type=workers, default=min(4, os.cpu_count() or 1), help="processes that read photos")
        p.add_argument("--skip_broken", action="store_true",
                       help="leave out photos that cannot be read, with their captions, and say how many")
        p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
        return p
    p.add_argument("--data_name", type=data_set, default="coco_precomp", help="captions to read: a folder below --data_path")
    p.add_argument("--splits", nargs="+", choices=SPLITS, help="splits to write (default: all)")
    p.add_argument("--kind", choices=KINDS, help="mean of word vectors, hglmm Fisher vectors, or tfidf (default: mean)")
    p.add_argument("--name", help="writes {split}_NAME.npy (default: the kind)")
    p.add_argument("--word_vectors", type=filename, metavar="FILE", help="word2vec's text or .bin, or GloVe's text")
    p.add_argument("--fitted", type=filename, metavar="MODEL.npz",
                   help="take mixture, PCA or idf from this file instead of fitting them")
    for name, (kind, default, _, told) in FITTING.items():
        p.add_argument(f"--{name}", type=int, default=default, help=f"{kind}: {told}")
    p.add_argument("--ica", action="store_true", help="hglmm: take independent components of the word vectors first")
    return p


def main(argv=None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    kinds = {"images": extract_images, "captions": extract_captions}
    if argv[:1] not in [[kind] for kind in kinds]:
        p = Arguments("Write features of photos or of captions; `features.extract images --help` and `captions --help` say "
                      "more.")
        p.add_argument("what", choices=kinds, help="what to write features of")
        p.parse_args(argv[:1])
    cli.run("features.extract", kinds[argv[0]], arguments(argv[0]).parse_args(argv[1:]))


if __name__ == "__main__":
    main()
