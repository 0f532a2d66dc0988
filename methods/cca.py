"""Regularized canonical correlation analysis (CCA), a linear baseline.

    python -m features.captions --data_name f8k_precomp --kind tfidf
    python -m methods.cca --data_name f8k_precomp --text tfidf --eta_image auto --output test.npz
    python evaluate.py --embeddings test.npz

Fit to one data set, and embed another:

    python -m methods.cca --data_name f30k_precomp --text w2v --test_name coco_precomp

It follows Klein et al. 2015 (Fisher vectors of word vectors), and is the CCA of `jwae` Tables 3 and
5.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import itertools

import numpy as np
import torch
from scipy import linalg
from tqdm import tqdm

import utils
from data import Split, check_extractors, chunks, read_split
from evaluation.embeddings import Member, export, list_items
from images import Features, count_regions
from losses import Embedding, cosine
from metrics import chance, retrieval, score_matrix
from model import Precomputed
from utils import (
    Arguments,
    InputError,
    data_set,
    filename,
    limited,
    output,
    positive,
    refusing,
    split_name,
)

FEATURE_ROWS_PER_BLOCK = 4096  # that are read at a time
# What "auto" tries on the dev split.
TRIED_ETAS = (1e-4, 1e-3, 1e-2, 1e-1)
TRIED_DIMS = (64, 128, 256, 512)
USUAL_DIM = 256


class CCA:
    """Linear maps of two views, x and y, whose projections correlate most, in float64.

    The covariances Cxx and Cyy are regularized: Rxx = Cxx + eta_x lambda_max(Cxx) I = Lx Lx^T, and
    Ryy = Ly Ly^T likewise. T = Lx^-1 Cxy Ly^-T = U S V^T gives the maps Wx = Lx^-T U and Wy = Ly^-T
    V, so that Wx^T Rxx Wx = I and Wx^T Cxy Wy = S. The embedding of an item is (x - mean) Wx S,
    l2-normalized: Klein's scaling by the correlations, after which the cosine is the score.
    """

    def __init__(self, x, y, owner: np.ndarray):
        """Compute means and covariances of M pairs, rows x[owner[m]] and y[m].

        x (N, F) and y (M, G) are arrays, or objects that return rows by their numbers.
        """
        count = len(owner)
        total = 0
        mean = 0
        blocks = chunks(np.arange(count), FEATURE_ROWS_PER_BLOCK)
        for numbers in tqdm(blocks, desc="covariances", disable=None, leave=False):
            x_rows = x[owner[numbers]]
            z = np.concatenate([x_rows, y[numbers]], 1, dtype=np.float64)  # (b, F + G)
            total = total + z.T @ z / count
            mean = mean + z.sum(0) / count
        total -= np.outer(mean, mean)

        f = x_rows.shape[1]
        self.means = (mean[:f], mean[f:])
        self.xx = total[:f, :f]
        self.yy = total[f:, f:]
        self.xy = total[:f, f:]
        self.largest_xx = find_largest_eigenvalue(self.xx)
        self.largest_yy = find_largest_eigenvalue(self.yy)

    def solve(self, dim: int, eta_x: float, eta_y: float) -> "CCA":
        """Compute `maps`, Wx S (F, dim) and Wy S (G, dim), and `correlations`, S (dim,).

        Raises InputError where there are fewer directions, or where a covariance cannot be
        inverted.
        """
        f, g = self.xy.shape
        if dim > min(f, g):
            raise InputError(
                f"{dim} directions cannot be had from {f} and {g} features; give --dim "
                f"{min(f, g)} or less"
            )
        with refusing(
            f"the covariances cannot be inverted with eta {eta_x:g} and {eta_y:g}",
            "give a larger --eta_image, 1e-4 is usual, and features that differ",
            linalg.LinAlgError,
        ):
            left = factorize(self.xx, eta_x * self.largest_xx)  # Lx
            right = factorize(self.yy, eta_y * self.largest_yy)  # Ly

        t = linalg.solve_triangular(left, self.xy, lower=True)
        t = linalg.solve_triangular(right, t.T, lower=True).T  # (F, G)
        square, u = linalg.eigh(t @ t.T, subset_by_index=[f - dim, f - 1])  # rising
        u = u[:, ::-1]
        self.correlations = np.sqrt(np.maximum(square[::-1], 0))
        self.maps = (
            linalg.solve_triangular(left, u * self.correlations, lower=True, trans="T"),  # (F, dim)
            linalg.solve_triangular(right, t.T @ u, lower=True, trans="T"),  # (G, dim)
        )
        return self

    def project(self, side: int, rows, count: int, dim: int | None = None) -> np.ndarray:
        """Embed `count` rows of side 0 (x) or 1 (y): (count, dim), of norm 1."""
        matrix = self.maps[side][:, :dim]
        blocks = []
        for numbers in chunks(np.arange(count), FEATURE_ROWS_PER_BLOCK):
            blocks.append((rows[numbers] - self.means[side]) @ matrix)
        z = np.concatenate(blocks)
        norm = np.linalg.norm(z, axis=1, keepdims=True)
        return z / np.maximum(norm, 1e-12)


def find_largest_eigenvalue(covariance: np.ndarray) -> float:
    last = len(covariance) - 1
    return linalg.eigvalsh(covariance, subset_by_index=[last, last])[0]


def factorize(covariance: np.ndarray, added: float) -> np.ndarray:
    """Compute L of C + added I = L L^T, of a covariance C (F, F)."""
    identity = np.eye(len(covariance))
    return linalg.cholesky(covariance + added * identity, lower=True)


class FeatureRows:
    """Rows (n, F) of stored features, averaged and normalized as in training."""

    def __init__(self, features: Features):
        self.features = features
        self.trunk = Precomputed(features.dim)

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        features = self.features.gather(numbers)
        return self.trunk(features, count_regions(features)).numpy()


# ---- the command


def read_views(opt, data_name: str, split: str) -> tuple[Split, tuple[FeatureRows, FeatureRows]]:
    """Read a split and the rows of its images and captions."""
    data = read_split(opt.data_path, data_name, split, dev_images=0, text_features=opt.text)
    data.require_sound()
    return data, (FeatureRows(data.images), FeatureRows(data.text))


def embed_views(cca: CCA, split: Split, views, dim: int | None = None) -> list[Embedding]:
    """Embed the images (N, dim) and captions (M, dim) of a split as points."""
    counts = (len(split.images), len(split.captions))
    embeddings = []
    for side in (0, 1):
        projected = cca.project(side, views[side], counts[side], dim)
        embeddings.append(Embedding(torch.from_numpy(projected.astype(np.float32))))
    return embeddings


def measure_rsum(sides: list[Embedding], split: Split) -> float:
    """Compute the sum of recalls of a split."""
    scores = score_matrix([(cosine, *sides)])
    return retrieval(scores, split.caption_image)["rsum"]


def choose(cca: CCA, split: Split, views, dims, etas) -> tuple[int, float, float]:
    """Choose the (dim, eta_x, eta_y) of the highest rsum on dev; print all rsums."""
    rsums = {}
    for eta_x, eta_y in etas:
        cca.solve(max(dims), eta_x, eta_y)
        for dim in dims:
            rsum = measure_rsum(embed_views(cca, split, views, dim), split)
            rsums[dim, eta_x, eta_y] = rsum
            print(f"eta_image {eta_x:g}, eta_text {eta_y:g}, dim {dim}: dev rsum {rsum:.1f}")
    return max(rsums, key=rsums.get)


def choose_settings(opt, cca: CCA) -> tuple[int, float, float]:
    """Settle (dim, eta_x, eta_y) by --dim and --eta_image, and by dev where one is "auto"."""
    automatic = "auto" in (opt.dim, opt.eta)
    largest = min(cca.xy.shape)
    if isinstance(opt.dim, int):
        dims = [opt.dim]
    elif automatic:
        dims = [dim for dim in TRIED_DIMS if dim <= largest] or [largest]
    else:
        dims = [min(USUAL_DIM, largest)]

    etas = [(opt.eta, opt.eta)]
    if opt.eta == "auto":
        etas = list(itertools.product(TRIED_ETAS, TRIED_ETAS))
    if not automatic:
        return dims[0], *etas[0]
    dev, views = read_views(opt, opt.data_name, "dev")
    return choose(cca, dev, views, dims, etas)


def fit_and_embed(opt) -> None:
    """Fit to the training split; embed and rank a split and write its embeddings."""
    if not opt.text:
        raise InputError(
            "--text names no features of captions; give a name such as tfidf, for {split}_tfidf.npy"
        )
    output(opt.output, overwrite=opt.overwrite)
    target = opt.test_name or opt.data_name
    train, views = read_views(opt, opt.data_name, "train")
    test, test_views = read_views(opt, target, opt.split)
    check_extractors(train.extractors, test, opt.text, opt.data_name)
    check_same_size(train.images, test.images)
    check_same_size(train.text, test.text)

    cca = CCA(*views, train.caption_image)
    dim, eta_x, eta_y = choose_settings(opt, cca)
    cca.solve(dim, eta_x, eta_y)
    items = list_items(test, target)
    items.similarity = "cosine"
    items.members = [Member(cosine, *embed_views(cca, test, test_views))]

    rsum = retrieval(items.scores, test.caption_image)["rsum"]
    by_chance = chance(test.caption_image, len(test.images))["rsum"]
    first = cca.correlations[0]
    last = cca.correlations[-1]
    print(
        f"dim {dim}, eta_image {eta_x:g}, eta_text {eta_y:g}, correlations {first:.3f} to "
        f"{last:.3f}; {target} {opt.split}: rsum {rsum:.1f} (chance {by_chance:.1f})"
    )
    export(opt.output, items)


def check_same_size(fitted: Features, features: Features) -> None:
    """Raise InputError where features are of another size than those of the training split."""
    if fitted.dim != features.dim:
        raise InputError(
            f"{features.path} has features of {features.dim} numbers, {fitted.path} of "
            f"{fitted.dim}; extract both with the same network or vectors"
        )


def or_auto(read):
    """Return the type of an option that is read by `read`, or "auto"."""

    def read_or_auto(text: str):
        if text == "auto":
            return text
        return read(text)

    return read_or_auto


def main(argv=None) -> None:
    p = Arguments(
        "Fit a regularized CCA to the training split and write the embeddings of another."
    )
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        default="coco_precomp",
        help="folder of the data set below --data_path",
    )
    add(
        "--text",
        default="tfidf",
        metavar="NAME",
        help="features of captions, {split}_NAME.npy of features.captions",
    )
    add(
        "--dim",
        type=or_auto(positive),
        help="number of directions, or auto: the best on dev (default: 256, or as many as there "
        "are features; auto with --eta_image auto)",
    )
    add(
        "--eta_image",
        dest="eta",
        default=1e-4,
        metavar="ETA",
        type=or_auto(limited("auto, or a number above 0 and at most 1e6", above=0, most=1e6)),
        help="weight of the identity that is added to the covariances of images and of text, in "
        "units of their largest eigenvalues, or auto: the best two on dev, by rsum",
    )
    add("--split", type=split_name, default="test", help="split to embed")
    add(
        "--test_name",
        type=data_set,
        metavar="NAME",
        help="data set whose split is embedded (default: --data_name, to which the maps are "
        "fitted)",
    )
    add(
        "--output",
        type=filename,
        default="cca_test.npz",
        metavar="FILE.npz",
        help="file of embeddings to write, for evaluate.py --embeddings",
    )
    add("--overwrite", action="store_true", help="replace an existing file")
    utils.run(p.prog, fit_and_embed, p.parse_args(argv))


if __name__ == "__main__":
    main()
