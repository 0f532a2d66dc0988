"""Regularised canonical correlation analysis (CCA): a linear baseline in closed form, from covariances alone.

    python -m methods.cca --data_name f8k_precomp --text tfidf --eta_image auto --output cca_test.npz
    python -m methods.cca --data_name f30k_precomp --test_name coco_precomp --text w2v   # fit to one, embed another
    python evaluate.py --embeddings cca_test.npz

It follows Klein et al. 2015 (Fisher vectors of word vectors), and is the CCA of `jwae` Table 3.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import itertools
import os
from collections import Counter

import numpy as np
import torch
from scipy import linalg, sparse
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, positive, split_name, within
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

    def collect(self, x, y, owner: np.ndarray) -> "CCA":
        """Means (F,), (G,) and covariances (F, F), (G, G), (G, F) over the M pairs, a block of pairs at a time.

        x (N, F), y (M, G): arrays, sparse arrays, or anything that has a shape and returns rows by their numbers. Row m
        of y belongs to row owner[m] of x. Raises InputError on features that are not finite.
        """
        totals = []
        for numbers in tqdm(list(chunks(np.arange(len(owner)), BLOCK)), desc="covariances", disable=None, leave=False):
            rows, place = np.unique(owner[numbers], return_inverse=True)        # an image is read once per block
            a, b = to_float64(x[rows]), to_float64(y[numbers])                                      # (n, F), (b, G)
            pairs = sparse.csr_array((np.ones(len(place)), (place, np.arange(len(place)))))         # (n, b)
            weighted = sparse.diags_array(pairs.sum(1)) @ a                     # (n, F), times the pairs of an image
            sums = weighted.sum(0), b.sum(0), a.T @ weighted, b.T @ b, (pairs @ b).T @ a
            totals = [old + new for old, new in zip(totals, sums)] if totals else sums
        x_mean, y_mean, xx, yy, yx = (to_dense(total) / len(owner) for total in totals)
        self.means = x_mean, y_mean
        self.xx, self.yy = xx - np.outer(x_mean, x_mean), yy - np.outer(y_mean, y_mean)             # (F, F), (G, G)
        self.yx = yx - np.outer(y_mean, x_mean)                                                     # (G, F)
        check(np.isfinite(self.yx).all(), "x or y holds NaN or infinity; every feature has to be a finite number, "
                                          "so extract them again")
        self.largest = [linalg.eigvalsh(c, subset_by_index=[len(c) - 1] * 2)[0] for c in (self.xx, self.yy)]
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


def to_dense(rows) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else rows


def to_float64(rows):
    return rows if sparse.issparse(rows) else np.asarray(rows, np.float64)


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
              "CCA takes precomputed features, {split}_ims.npy, and these data are photos or text only; name data with "
              "features (--data_name f8k_precomp)")
        check(len(features) == count,
              f"{features.path} has {len(features)} rows for {count} captions; there must be one for each")
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


def embed(cca: CCA, views, dim: int | None = None) -> list[Embedding]:
    """Points of images (N, dim) and captions (M, dim), from their features x and y."""
    return [Embedding(torch.from_numpy(cca.project(side, rows, dim).astype(np.float32)))
            for side, rows in enumerate(views)]


def choose(cca: CCA, views, caption_image: np.ndarray, dims, etas) -> tuple[int, float, float]:
    """Choose the (dim, eta_x, eta_y) of the highest rsum on a dev split; print all rsums. views: its features x (N, F)
    and y (M, G); caption_image (M,): the row of each caption's image; etas: pairs to try."""
    most, rsums = min(cca.yx.shape), {}
    dims = [dim for dim in dims if dim <= most] or [most]
    print("dev rsum\neta_image  eta_text" + "".join(f"{f'dim {dim}':>10}" for dim in dims))
    for pair in etas:
        cca.solve(max(dims), *pair)
        for dim in dims:
            rsums[(dim, *pair)] = retrieval_blocks(cosine, *embed(cca, views, dim), caption_image)["rsum"]
        print("{:9g} {:9g}".format(*pair) + "".join(f"{rsums[(dim, *pair)]:10.1f}" for dim in dims), flush=True)
    return max(rsums, key=rsums.get)


def read_views(opt, splits: dict[tuple, Split]) -> dict[tuple, tuple]:
    """{(folder, name): (x, y)} of splits; the first is the one that is fitted to. Raises InputError where their
    features differ in size or extractor."""
    source, train = next(iter(splits.items()))
    words = WordRows(train) if opt.text == "tfidf" else None
    views = {}
    for (folder, name), split in splits.items():
        path = os.path.join(opt.data_path, folder, f"{name}_{opt.text}.npy")
        check(words or os.path.isfile(path),
              f"there is no file {path}; --text takes tfidf, or the NAME of {{split}}_NAME.npy files")
        check_extractors(train.extractors, split, None if words else opt.text, opt.data_name)
        captions = words(split) if words else FeatureRows(Features(path), len(split.captions))
        views[folder, name] = FeatureRows(split.images, len(split.images)), captions
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
    automatic = "auto" in (opt.dim, opt.eta)
    splits = {key: read_split(opt.data_path, *key, dev_images=0).require_sound()
              for key in dict.fromkeys([train, *[dev] * automatic, test])}
    views = read_views(opt, splits)
    cca = CCA().collect(*views[train], splits[train].caption_image)
    dim, etas = opt.dim or min(256, *cca.yx.shape), (opt.eta, opt.eta)
    if automatic:
        dim, *etas = choose(cca, views[dev], splits[dev].caption_image, DIMS if dim == "auto" else [dim],
                            itertools.product(ETAS, ETAS) if opt.eta == "auto" else [etas])
    cca.solve(dim, *etas)
    print("{:,} x {:,} features, dim {}, eta_image {:g}, eta_text {:g}{}, correlations {:.3f} to {:.3f}".format(
        *cca.yx.T.shape, dim, *etas, " (chosen on dev)" * automatic, *cca.correlations[[0, -1]]))
    split, sides = splits[test], embed(cca, views[test])
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


def or_auto(read):
    """The type of an option that is read by `read`, or "auto"."""
    return lambda text: text if text == "auto" else read(text)


def main(argv=None) -> None:
    p = Arguments("Fit a regularised CCA to the training split and write the embeddings of another.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--text", default="tfidf", help="tfidf, or NAME: files {split}_NAME.npy with a row per caption")
    add("--dim", type=or_auto(positive), help="number of directions, or auto: the best on dev (default: 256, or as "
        "many as there are features; auto with --eta_image auto)")
    add("--eta_image", dest="eta", default=1e-4, metavar="ETA",
        type=or_auto(within(lambda x: 0 < x <= 1e6, "auto, or a number above 0 and at most 1e6")),
        help="weight of the identity that is added to the covariances of images and of text, in units of their largest "
        "eigenvalues, or auto: the best two on dev, by rsum")
    add("--split", type=split_name, default="test", help="split to embed")
    add("--test_name", type=data_set, metavar="NAME",
        help="data set whose split is embedded (default: --data_name, to which the maps are fitted)")
    add("--output", type=filename, default="cca_test.npz", metavar="FILE.npz",
        help="file of embeddings to write, for evaluate.py --embeddings")
    add("--overwrite", action="store_true", help="replace the file that is there")
    opt = p.parse_args(argv)
    opt.dim = opt.dim or ("auto" if opt.eta == "auto" else None)
    cli.run(p.prog, fit_and_embed, opt)


if __name__ == "__main__":
    main()
