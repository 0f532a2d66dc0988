"""Regularised canonical correlation analysis (CCA): a linear baseline in closed form, from
covariances alone.

    python -m methods.cca --data_name f8k_precomp --text tfidf --eta_image auto --output cca_test.npz
    python -m methods.cca --data_name f30k_precomp --test_name coco_precomp --text w2v   # fit to one, embed another
    python evaluate.py --embeddings cca_test.npz

It follows Klein et al. 2015 (Fisher vectors of word vectors), and is the CCA of `jwae` Table 3
(joint Wasserstein autoencoders).
"""
if __name__ == "__main__":
    import cli
    cli.start()

import argparse
import contextlib
import itertools
import os

import numpy as np
import torch
from scipy import linalg, sparse
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, number, positive, split_names
from data import Features, NoImages, Split, check_extractors, chunks, read_split
from evaluation.embeddings import Member, export, items_of
from evaluation.report import foreign_words
from features.captions import TfIdf, word_counts
from features.hglmm import svd, unit
from files import output
from losses import Embedding, cosine
from metrics import chance, retrieval_blocks
from model import Precomputed

BLOCK = 4096                          # rows that are read at a time
# the values that "auto" tries on the dev split
ETAS, DIMS = (1e-4, 1e-3, 1e-2, 1e-1), (64, 128, 256, 512)


class CCA:
    """Linear maps of two views, x and y, whose projections correlate most.

    The covariances Cxx and Cyy are regularised: Rxx = Cxx + eta_x lambda_max(Cxx) I = Lx Lx^T, and
    Ryy = Ly Ly^T likewise. From Lx^-1 Cxy Ly^-T = U S V^T come the maps Wx = Lx^-T U and Wy = Ly^-T
    V, so that Wx^T Rxx Wx = I and Wx^T Cxy Wy = S. The embedding of an item is (x - mean) Wx S,
    l2-normalised. This is Klein's scaling by the correlations, after which the cosine is the score.
    All numbers are float64.
    """

    def collect(self, x, y, owner=None) -> "CCA":
        """Means (F,), (G,) and covariances (F, F), (G, G), (G, F) over the M pairs, a block of
        pairs at a time.

        x (N, F), y (M, G): arrays, mapped or not, sparse arrays, or anything that has a shape and
        returns rows by their numbers. Row m of y belongs to row owner[m] of x (None: to row m).
        Raises InputError where the rows make no pairs, and on features that are not finite.
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
            pairs = sparse.csr_array(                                                     # (n, b)
                (np.ones(len(place)), (place, np.arange(len(place)))))
            weighted = sparse.diags_array(pairs.sum(1)) @ a     # (n, F), times the pairs of an item
            sums = weighted.sum(0), b.sum(0), a.T @ weighted, b.T @ b, (pairs @ b).T @ a
            total = [new + old for new, old in zip(sums, total)] if total else sums
        x_mean, y_mean, *products = (dense(t) / m for t in total)
        self.xx, self.yy, self.yx = (                                       # (F, F), (G, G), (G, F)
            product - np.outer(left, right) for product, left, right
            in zip(products, (x_mean, y_mean, y_mean), (x_mean, y_mean, x_mean)))
        check(np.isfinite(self.yx).all(),
              "x or y holds NaN or infinity; every feature has to be a finite number, "
              "so extract them again")
        self.means = x_mean + shifts[0], y_mean + shifts[1]
        self.largest = largest_eigenvalue(self.xx), largest_eigenvalue(self.yy)
        return self

    def solve(self, dim: int, eta_x: float, eta_y: float) -> "CCA":
        """The maps of `dim` directions, (F, dim) and (G, dim), and `correlations` (dim,): the S of
        the class, falling from at most 1. Raises InputError where there are fewer directions, and
        where a covariance cannot be inverted."""
        most = min(self.yx.shape)
        check(1 <= dim <= most, f"{dim} directions cannot be had from {self.yx.shape[1]} and "
                                f"{self.yx.shape[0]} features; give from 1 to {most}")
        left = factor(self.xx, eta_x * self.largest[0], f"{eta_x:g} (image side, x)")       # (F, F)
        right = factor(self.yy, eta_y * self.largest[1], f"{eta_y:g} (text side, y)")       # (G, G)
        whitened = linalg.solve_triangular(right, self.yx, lower=True)                      # (G, F)
        v, s, ut = svd(linalg.solve_triangular(left, whitened.T, lower=True).T)
        self.correlations = s[:dim]
        self.maps = (linalg.solve_triangular(left, ut[:dim].T, lower=True, trans="T"),    # (F, dim)
                     linalg.solve_triangular(right, v[:, :dim], lower=True, trans="T"))   # (G, dim)
        return self

    def project(self, side: int, rows, dim: int | None = None) -> np.ndarray:
        """Embeddings of x (N, F) (side 0) or y (M, G) (side 1), in rows of unit length: (N, dim) or
        (M, dim). `dim` takes only the first directions."""
        maps = self.maps[side] * self.correlations                                      # (F, dim)
        z = np.concatenate([rows[numbers] @ maps - self.means[side] @ maps
                            for numbers in chunks(np.arange(rows.shape[0]), BLOCK)])[:, :dim]
        return unit(z)


def dense(rows) -> np.ndarray:
    """Sparse or dense rows as an array."""
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows, np.float64)


def largest_eigenvalue(c: np.ndarray) -> float:
    """The largest eigenvalue of a symmetric matrix (F, F)."""
    if len(c) < 1000 or not c.any():
        return float(np.linalg.eigvalsh(c)[-1])
    # v0: random otherwise
    return float(sparse.linalg.eigsh(c, 1, v0=np.ones(len(c)), return_eigenvectors=False)[0])


def factor(c: np.ndarray, ridge: float, eta: str) -> np.ndarray:
    """The lower L (F, F) with L L^T = c + ridge I. Raises InputError where there is none, which
    names `eta`."""
    try:
        lower = linalg.cholesky(c + ridge * np.eye(len(c)), lower=True)
        if np.diag(lower).min() ** 2 <= len(c) * np.finfo(float).eps * np.diag(c).max():
            raise linalg.LinAlgError("singular, but for rounding")
    except linalg.LinAlgError as error:
        raise InputError(f"the covariance of {len(c)} features cannot be inverted with eta {eta}; "
                         "give a larger eta, 1e-4 is usual, and features that are not all "
                         "constant") from error
    return lower


# ---- the command

class Rows:
    """Stored features as float32 rows (n, F), read by their numbers. As in training, regions are
    averaged and, with `normalise`, rows l2-normalised. Raises InputError where there are no
    features, or not `count` rows."""

    def __init__(self, features, normalise: bool, count: int):
        check(isinstance(features, Features),
              "CCA takes precomputed features, {split}_ims.npy, and these data are photos or text "
              "only; name data with features (--data_name f8k_precomp)")
        check(len(features) == count, f"{features.path} has {len(features)} rows for {count} "
                                      "captions; there must be one for each")
        self.features, self.shape = features, (count, features.dim)
        self.trunk = Precomputed(features.dim, normalise)

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return self.trunk(self.features.gather(numbers)).numpy()


class WordRows:
    """Captions as sparse rows (M, V) of word counts, l2-normalised. With `tfidf`, counts are
    multiplied by log(captions / captions with the word) first.

    Words count that stand at least `threshold` times in `train`. A caption without any is a row of
    zeros. Raises InputError where no word is that frequent.
    """

    def __init__(self, train: Split, tfidf: bool, threshold: int = 4):
        words = TfIdf.fit(train.words, threshold)
        self.index, self.weight = words.index, words.idf if tfidf else np.ones(words.size)

    def __call__(self, split: Split) -> sparse.csr_array:
        rows = word_counts(split.words, self.index) @ sparse.diags_array(self.weight)       # (M, V)
        norm = np.maximum(sparse.linalg.norm(rows, axis=1), 1e-12)
        return (sparse.diags_array(1 / norm) @ rows).tocsr()


def points(x: np.ndarray) -> Embedding:
    """Means (N, D) as points in float32."""
    return Embedding(torch.from_numpy(x.astype(np.float32)))


def choose(cca: CCA, x, y, caption_image: np.ndarray, dims, etas_x,
           etas_y) -> tuple[int, float, float]:
    """The (dim, eta_x, eta_y) with the highest rsum on a dev split, x (N, F) and y (M, G); prints
    the table of all rsums. caption_image (M,): the row of each caption's image."""
    most, rsums = min(cca.yx.shape), {}
    dims = [dim for dim in dims if dim <= most] or [most]
    print("dev rsum\neta_image  eta_text" + "".join(f"{f'dim {dim}':>10}" for dim in dims))
    for etas in itertools.product(etas_x, etas_y):
        cca.solve(max(dims), *etas)
        for dim in dims:
            sides = (points(cca.project(side, rows, dim)) for side, rows in enumerate((x, y)))
            rsums[(dim, *etas)] = retrieval_blocks(cosine, *sides, caption_image)["rsum"]
        print("{:9g} {:9g}".format(*etas)
              + "".join(f"{rsums[(dim, *etas)]:10.1f}" for dim in dims), flush=True)
    return max(rsums, key=rsums.get)


def one_gallery(splits: list[Split]) -> Split:
    """Several splits as one, with ids, names and texts where all of them have these."""
    starts = np.cumsum([0, *(len(s.images) for s in splits)])

    def all_of(name):
        lists = [getattr(s, name) for s in splits]
        return None if any(x is None for x in lists) else list(itertools.chain(*lists))
    return Split("+".join(s.name for s in splits), NoImages(int(starts[-1])), all_of("captions"),
                 np.concatenate([s.caption_image + start for s, start in zip(splits, starts)]),
                 splits[0].source, all_of("image_ids"), all_of("caption_ids"),
                 all_of("photo_names"), notes=all_of("notes"))


def build_views(opt, splits: dict[tuple, Split]) -> dict[tuple, tuple]:
    """{(folder, name): (x, y)} of splits; the first is the one that is fitted to."""
    source, train = next(iter(splits.items()))
    words = None
    if opt.text in ("tfidf", "words"):
        words = WordRows(train, opt.text == "tfidf")
    views = {}
    for (folder, name), split in splits.items():
        path = os.path.join(opt.data_path, folder, f"{name}_{opt.text}.npy")
        check(words or os.path.isfile(path),
              f"there is no file {path}; --text takes tfidf, words, or the NAME of "
              "{split}_NAME.npy files")
        check_extractors(train.extractors, split, None if words else opt.text, opt.data_name)
        views[folder, name] = (
            Rows(split.images, opt.feature_norm, len(split.images)),
            words(split) if words else Rows(Features(path), opt.feature_norm, len(split.captions)))
        for rows, fitted in zip(views[folder, name], views[source]):
            check(rows.shape[1] == fitted.shape[1],
                  f"{folder} {name} has features of {rows.shape[1]} numbers, {opt.data_name} "
                  f"train of {fitted.shape[1]}; extract both with the same network or vectors")
        if words and folder != opt.data_name:
            print(foreign_words(folder, split.unknown_words(words)))
    return views


def fit_and_embed(opt) -> None:
    """Fits to the training split, prints the recalls of the split to embed and writes its
    embeddings."""
    output(opt.output, overwrite=opt.overwrite)
    values, target = (opt.dim, opt.eta_image, opt.eta_text), opt.test_name or opt.data_name
    train, dev = (opt.data_name, "train"), (opt.data_name, "dev")
    gallery = [(target, name) for name in opt.split.split("+")]
    splits = {key: read_split(opt.data_path, *key, dev_images=0).require_sound()
              for key in dict.fromkeys([train, *[dev] * ("auto" in values), *gallery])}
    views = build_views(opt, splits)
    cca, chosen = CCA().collect(*views[train], splits[train].caption_image), ""
    if "auto" in values:
        grids = (grid if value == "auto" else [value]
                 for value, grid in zip(values, (DIMS, ETAS, ETAS)))
        values, chosen = choose(cca, *views[dev], splits[dev].caption_image,
                                *grids), " (chosen on dev)"
    cca.solve(*values)
    print("{:,} x {:,} features, dim {}, eta_image {:g}, eta_text {:g}{}, correlations {:.3f} to "
          "{:.3f}".format(*cca.yx.T.shape, *values, chosen, *cca.correlations[[0, -1]]))
    tested = one_gallery([splits[key] for key in gallery])
    sides = [points(np.concatenate([cca.project(side, views[key][side]) for key in gallery]))
             for side in (0, 1)]
    result = retrieval_blocks(cosine, *sides, tested.caption_image)
    recalls = ", ".join("{} {r1:.1f} / {r5:.1f} / {r10:.1f}".format(side, **result[side])
                        for side in ("i2t", "t2i"))
    print(f"{target} {opt.split}, {len(tested.images):,} images, {len(tested.captions):,} "
          f"captions: R@1 / R@5 / R@10 {recalls}, rsum {result['rsum']:.1f} (chance "
          f"{chance(tested.caption_image, len(tested.images))['rsum']:.1f})")
    for note in tested.notes:
        print(f"note: {note}")
    e = items_of(tested, target)
    e.similarity, e.members = "cosine", [Member(cosine, *sides)]
    export(opt.output, e)
    print(f"embeddings in {opt.output}")


def ridge(text: str) -> float | str:
    """The type of --eta_image and --eta_text: a number above 0 and at most 1e6, beyond which
    nothing of the features would be left, or "auto"."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if text == "auto" or 0 < number(text) <= 1e6:
            return text if text == "auto" else number(text)
    raise argparse.ArgumentTypeError(
        f"'{text}' is neither a number above 0 and at most 1e6 nor auto")


def main(argv=None) -> None:
    p = Arguments(
        "Fit a regularised CCA to the training split and write the embeddings of another.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp",
        help="folder of the data set below --data_path")
    add("--text", default="tfidf", help="tfidf, words (counts of words), or NAME: files "
        "{split}_NAME.npy with a row per caption")
    add("--dim", type=lambda text: text if text == "auto" else positive(text),
        help="number of directions, or auto: the best on dev (default: 256; auto with "
        "--eta_image auto)")
    add("--eta_image", type=ridge, default=1e-4,
        help="weight of the identity that is added to the covariance of the images, in units of "
        "its largest eigenvalue, or auto: the best on dev, by rsum")
    add("--eta_text", type=ridge,
        help="the same for the text (default: 1e-4; auto with --eta_image auto)")
    add("--feature_norm", action=argparse.BooleanOptionalAction, default=True,
        help="l2-normalise stored features")
    add("--split", type=lambda text: split_names(text, "+"), default="test",
        help="split to embed; dev+test makes one gallery of two splits")
    add("--test_name", type=data_set, metavar="NAME",
        help="data set whose split is embedded (default: --data_name, to which the maps are "
        "fitted)")
    add("--output", type=filename, default="cca_test.npz", metavar="FILE.npz",
        help="file of embeddings to write, for evaluate.py --embeddings")
    add("--overwrite", action="store_true", help="replace the file that is there")
    opt = p.parse_args(argv)
    automatic = "auto" if opt.eta_image == "auto" else None
    opt.dim, opt.eta_text = opt.dim or automatic or 256, opt.eta_text or automatic or 1e-4
    cli.run("cca.py", fit_and_embed, opt)


if __name__ == "__main__":
    main()
