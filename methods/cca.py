"""Regularised canonical correlation analysis (CCA): a linear baseline in closed form, from covariances alone.

    python -m methods.cca --data_name f8k_precomp --text tfidf --eta_image auto --output cca_test.npz
    python -m methods.cca --data_name f30k_precomp --test_name coco_precomp --text w2v   # fit to one, embed another
    python evaluate.py --embeddings cca_test.npz

It follows Klein et al. 2015 (Fisher vectors of word vectors), and is the CCA of `jwae` Table 3.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import argparse
import contextlib
import itertools
import os
from collections import Counter

import numpy as np
import torch
from scipy import linalg, sparse
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, number, positive, split_name
from data import Features, Split, check_extractors, chunks, read_split
from evaluation.embeddings import Member, export, list_items
from evaluation.report import foreign_words
from files import output
from losses import Embedding, cosine
from metrics import chance, retrieval_blocks
from model import Precomputed
from vocab import SPECIALS, Vocabulary

BLOCK = 4096                          # rows that are read at a time
ETAS, DIMS = (1e-4, 1e-3, 1e-2, 1e-1), (64, 128, 256, 512)      # that "auto" tries on the dev split


class CCA:
    """Linear maps of two views, x and y, whose projections correlate most.

    The covariances Cxx and Cyy are regularised: Rxx = Cxx + eta_x lambda_max(Cxx) I = Lx Lx^T, and Ryy = Ly Ly^T
    likewise. From Lx^-1 Cxy Ly^-T = U S V^T come the maps Wx = Lx^-T U and Wy = Ly^-T V, so that Wx^T Rxx Wx = I and
    Wx^T Cxy Wy = S. The embedding of an item is (x - mean) Wx S, l2-normalised. This is Klein's scaling by the
    correlations, after which the cosine is the score. All numbers are float64.
    """

    def collect(self, x, y, owner=None) -> "CCA":
        """Means (F,), (G,) and covariances (F, F), (G, G), (G, F) over the M pairs, a block of pairs at a time.

        x (N, F), y (M, G): arrays, mapped or not, sparse arrays, or anything that has a shape and returns rows by their
        numbers. Row m of y belongs to row owner[m] of x (None: to row m). Raises InputError where the rows make no
        pairs, and on features that are not finite.
        """
        n, m, total = x.shape[0], y.shape[0], []
        owner = np.arange(n) if owner is None else np.asarray(owner)
        check(len(owner) == m >= 2,
              f"{n} rows x, {m} rows y and {len(owner)} owners make no pairs; give at least 2 "
              "rows y, and for each the row of x that it belongs to")
        first = np.arange(min(m, BLOCK))
        shifts = [0.0 if sparse.issparse(rows) else dense(rows[numbers]).mean(0)
                  for rows, numbers in ((x, np.unique(owner[first])), (y, first))]
        for k in tqdm(range(0, m, BLOCK), desc="covariances", disable=None, leave=False):
            # an item is read once per block, and shifted near the mean, so that nothing cancels
            items, place = np.unique(owner[k:k + BLOCK], return_inverse=True)
            a, b = (rows if sparse.issparse(rows) else dense(rows) - shift for rows, shift in zip(
                (x[items], y[np.arange(k, min(m, k + BLOCK))]), shifts))           # (n, F), (b, G)
            pairs = sparse.csr_array((np.ones(len(place)), (place, np.arange(len(place)))))         # (n, b)
            weighted = sparse.diags_array(pairs.sum(1)) @ a         # (n, F), times the pairs of an item
            sums = weighted.sum(0), b.sum(0), a.T @ weighted, b.T @ b, (pairs @ b).T @ a
            total = [new + old for new, old in zip(sums, total)] if total else sums
        x_mean, y_mean, *products = (dense(t) / m for t in total)
        self.xx, self.yy, self.yx = (                                       # (F, F), (G, G), (G, F)
            product - np.outer(left, right) for product, left, right
            in zip(products, (x_mean, y_mean, y_mean), (x_mean, y_mean, x_mean)))
        check(np.isfinite(self.yx).all(), "x or y holds NaN or infinity; every feature has to be a finite number, "
                                          "so extract them again")
        self.means = x_mean + shifts[0], y_mean + shifts[1]
        self.largest = largest_eigenvalue(self.xx), largest_eigenvalue(self.yy)
        return self

    def solve(self, dim: int, eta_x: float, eta_y: float) -> "CCA":
        """The maps of `dim` directions, (F, dim) and (G, dim), and `correlations` (dim,): the S of the class, falling
        from at most 1. Raises InputError where there are fewer directions, and where a covariance cannot be
        inverted."""
        most = min(self.yx.shape)
        check(1 <= dim <= most, f"{dim} directions cannot be had from {self.yx.shape[1]} and "
                                f"{self.yx.shape[0]} features; give from 1 to {most}")
        left = cholesky(self.xx, eta_x * self.largest[0], f"{eta_x:g} (image side, x)")         # (F, F)
        right = cholesky(self.yy, eta_y * self.largest[1], f"{eta_y:g} (text side, y)")         # (G, G)
        whitened = linalg.solve_triangular(right, self.yx, lower=True)                      # (G, F)
        v, s, ut = svd(linalg.solve_triangular(left, whitened.T, lower=True).T)
        self.correlations = s[:dim]
        self.maps = (linalg.solve_triangular(left, ut[:dim].T, lower=True, trans="T"),    # (F, dim)
                     linalg.solve_triangular(right, v[:, :dim], lower=True, trans="T"))   # (G, dim)
        return self

    def project(self, side: int, rows, dim: int | None = None) -> np.ndarray:
        """Embeddings of x (N, F) (side 0) or y (M, G) (side 1), in rows of unit length: (N, dim) or (M, dim). `dim`
        takes only the first directions."""
        maps = self.maps[side] * self.correlations                                      # (F, dim)
        z = np.concatenate([rows[numbers] @ maps - self.means[side] @ maps
                            for numbers in chunks(np.arange(rows.shape[0]), BLOCK)])[:, :dim]
        return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)


def dense(rows) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows, np.float64)


def largest_eigenvalue(c: np.ndarray) -> float:
    """Largest eigenvalue of a symmetric matrix (F, F)."""
    if len(c) < 1000 or not c.any():
        return float(np.linalg.eigvalsh(c)[-1])
    # v0: random otherwise
    return float(sparse.linalg.eigsh(c, 1, v0=np.ones(len(c)), return_eigenvectors=False)[0])


def cholesky(c: np.ndarray, ridge: float, eta: str) -> np.ndarray:
    """The lower L (F, F) with L L^T = c + ridge I. Raises InputError, which names `eta`, where there is none."""
    try:
        lower = linalg.cholesky(c + ridge * np.eye(len(c)), lower=True)
        if np.diag(lower).min() ** 2 <= len(c) * np.finfo(float).eps * np.diag(c).max():
            raise linalg.LinAlgError("singular, but for rounding")
    except linalg.LinAlgError as error:
        raise InputError(f"the covariance of {len(c)} features cannot be inverted with eta {eta}; give a larger eta, "
                         "1e-4 is usual, and features that are not all constant") from error
    return lower


def svd(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (G, F) = (G, K) * (K,) @ (K, F), singular values falling. LAPACK's fast way (gesdd) finds no end for some
    matrices, by the processor and the number of threads; the slower one (gesvd) does."""
    try:
        return linalg.svd(x, full_matrices=False)
    except linalg.LinAlgError:
        return linalg.svd(x, full_matrices=False, lapack_driver="gesvd")


# ---- the command

class FeatureRows:
    """Stored features as float32 rows (n, F), read by their numbers. As in training, regions are averaged and rows
    l2-normalised. Raises InputError where there are no features, or not `count` rows."""

    def __init__(self, features, count: int):
        check(isinstance(features, Features),
              "CCA takes precomputed features, {split}_ims.npy, and these data are photos or text "
              "only; name data with features (--data_name f8k_precomp)")
        check(len(features) == count, f"{features.path} has {len(features)} rows for {count} "
                                      "captions; there must be one for each")
        self.features, self.shape = features, (count, features.dim)
        self.trunk = Precomputed(features.dim, normalise=True)

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return self.trunk(self.features.gather(numbers)).numpy()


class WordRows:
    """Captions as sparse rows (M, V) of tf-idf: counts of words times log(captions / captions with it), of l2 norm 1.

    Words count that stand at least `threshold` times in `train`. A caption without any is a row of zeros. Raises
    InputError where no word is that frequent.
    """

    def __init__(self, train: Split, threshold: int = 4):
        words = Vocabulary.build(train.words, threshold).words[len(SPECIALS):]
        check(words, f"no word stands {threshold} times in the training captions; give more captions")
        self.index = {word: i for i, word in enumerate(words)}
        captions_with = Counter(word for caption in train.words for word in set(caption))
        self.idf = np.log(len(train.words) / np.array([captions_with[word] for word in words]))

    def __call__(self, split: Split) -> sparse.csr_array:
        pairs = [(m, self.index[word]) for m, words in enumerate(split.words) for word in words if word in self.index]
        places = np.array(pairs, np.int64).reshape(-1, 2).T                                 # (2, T)
        counts = sparse.csr_array((np.ones(places.shape[1]), places), (len(split.words), len(self.index)))
        rows = counts @ sparse.diags_array(self.idf)                                     # (M, V)
        norm = np.maximum(sparse.linalg.norm(rows, axis=1), 1e-12)
        return (sparse.diags_array(1 / norm) @ rows).tocsr()


def points(x: np.ndarray) -> Embedding:
    return Embedding(torch.from_numpy(x.astype(np.float32)))


def choose(cca: CCA, x, y, caption_image: np.ndarray, dims, etas_x, etas_y) -> tuple[int, float, float]:
    """Choose the (dim, eta_x, eta_y) of the highest rsum on a dev split, x (N, F) and y (M, G); print all rsums.
    caption_image (M,): the row of each caption's image."""
    most, rsums = min(cca.yx.shape), {}
    dims = [dim for dim in dims if dim <= most] or [most]
    print("dev rsum\neta_image  eta_text" + "".join(f"{f'dim {dim}':>10}" for dim in dims))
    for etas in itertools.product(etas_x, etas_y):
        cca.solve(max(dims), *etas)
        for dim in dims:
            sides = (points(cca.project(side, rows, dim)) for side, rows in enumerate((x, y)))
            rsums[(dim, *etas)] = retrieval_blocks(cosine, *sides, caption_image)["rsum"]
        print("{:9g} {:9g}".format(*etas) + "".join(f"{rsums[(dim, *etas)]:10.1f}" for dim in dims), flush=True)
    return max(rsums, key=rsums.get)


def build_views(opt, splits: dict[tuple, Split]) -> dict[tuple, tuple]:
    """{(folder, name): (x, y)} of splits; the first is the one that is fitted to."""
    source, train = next(iter(splits.items()))
    words = WordRows(train) if opt.text == "tfidf" else None
    views = {}
    for (folder, name), split in splits.items():
        path = os.path.join(opt.data_path, folder, f"{name}_{opt.text}.npy")
        check(words or os.path.isfile(path),
              f"there is no file {path}; --text takes tfidf, or the NAME of {{split}}_NAME.npy files")
        check_extractors(train.extractors, split, None if words else opt.text, opt.data_name)
        views[folder, name] = (
            FeatureRows(split.images, len(split.images)),
            words(split) if words else FeatureRows(Features(path), len(split.captions)))
        for rows, fitted in zip(views[folder, name], views[source]):
            check(rows.shape[1] == fitted.shape[1],
                  f"{folder} {name} has features of {rows.shape[1]} numbers, {opt.data_name} "
                  f"train of {fitted.shape[1]}; extract both with the same network or vectors")
        if words and folder != opt.data_name:
            print(foreign_words(folder, split.unknown_words(words)))
    return views


def fit_and_embed(opt) -> None:
    """Fit to the training split, print the recalls of the split to embed, and write its embeddings."""
    output(opt.output, overwrite=opt.overwrite)
    target = opt.test_name or opt.data_name
    train, dev, test = (opt.data_name, "train"), (opt.data_name, "dev"), (target, opt.split)
    automatic = "auto" in (opt.dim, opt.eta_image, opt.eta_text)
    splits = {key: read_split(opt.data_path, *key, dev_images=0).require_sound()
              for key in dict.fromkeys([train, *[dev] * automatic, test])}
    views = build_views(opt, splits)
    cca = CCA().collect(*views[train], splits[train].caption_image)
    values = opt.dim or min(256, *cca.yx.shape), opt.eta_image, opt.eta_text
    if automatic:
        grids = (grid if value == "auto" else [value] for value, grid in zip(values, (DIMS, ETAS, ETAS)))
        values = choose(cca, *views[dev], splits[dev].caption_image, *grids)
    cca.solve(*values)
    print("{:,} x {:,} features, dim {}, eta_image {:g}, eta_text {:g}{}, correlations {:.3f} to {:.3f}".format(
        *cca.yx.T.shape, *values, " (chosen on dev)" * automatic, *cca.correlations[[0, -1]]))
    split, sides = splits[test], [points(cca.project(side, rows)) for side, rows in enumerate(views[test])]
    result = retrieval_blocks(cosine, *sides, split.caption_image)
    recalls = ", ".join("{} {r1:.1f} / {r5:.1f} / {r10:.1f}".format(side, **result[side]) for side in ("i2t", "t2i"))
    print(f"{target} {opt.split}, {len(split.images):,} images, {len(split.captions):,} "
          f"captions: R@1 / R@5 / R@10 {recalls}, rsum {result['rsum']:.1f} (chance "
          f"{chance(split.caption_image, len(split.images))['rsum']:.1f})")
    for note in split.notes:
        print(f"note: {note}")
    e = list_items(split, target)
    e.similarity, e.members = "cosine", [Member(cosine, *sides)]
    export(opt.output, e)
    print(f"embeddings in {opt.output}")


def ridge(text: str) -> float | str:
    """The type of --eta_image and --eta_text: a number above 0 and at most 1e6, or "auto"."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if text == "auto" or 0 < number(text) <= 1e6:
            return text if text == "auto" else number(text)
    raise argparse.ArgumentTypeError(f"'{text}' is neither a number above 0 and at most 1e6 nor auto")


def main(argv=None) -> None:
    p = Arguments("Fit a regularised CCA to the training split and write the embeddings of another.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--text", default="tfidf", help="tfidf, or NAME: files {split}_NAME.npy with a row per caption")
    add("--dim", type=lambda text: text if text == "auto" else positive(text),
        help="number of directions, or auto: the best on dev (default: 256, or as many as there are features; auto "
        "with --eta_image auto)")
    add("--eta_image", type=ridge, default=1e-4, help="weight of the identity that is added to the covariance of the "
        "images, in units of its largest eigenvalue, or auto: the best on dev, by rsum")
    add("--eta_text", type=ridge, help="the same for the text (default: 1e-4; auto with --eta_image auto)")
    add("--split", type=split_name, default="test", help="split to embed")
    add("--test_name", type=data_set, metavar="NAME",
        help="data set whose split is embedded (default: --data_name, to which the maps are fitted)")
    add("--output", type=filename, default="cca_test.npz", metavar="FILE.npz",
        help="file of embeddings to write, for evaluate.py --embeddings")
    add("--overwrite", action="store_true", help="replace the file that is there")
    opt = p.parse_args(argv)
    if opt.eta_image == "auto":
        opt.dim, opt.eta_text = opt.dim or "auto", opt.eta_text or "auto"
    opt.eta_text = opt.eta_text or 1e-4
    cli.run(p.prog, fit_and_embed, opt)


if __name__ == "__main__":
    main()
