"""Regularised canonical correlation analysis (CCA), a linear baseline.

    python -m features.captions --data_name f8k_precomp --kind tfidf
    python -m methods.cca --data_name f8k_precomp --text tfidf --eta_image auto --output cca_test.npz
    python -m methods.cca --data_name f30k_precomp --text w2v --test_name coco_precomp   # fit to one, embed another
    python evaluate.py --embeddings cca_test.npz

It follows Klein et al. 2015 (Fisher vectors of word vectors), and is the CCA of `jwae` Tables 3 and 5.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import itertools

import numpy as np
import torch
from scipy import linalg
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, positive, split_name, within
from data import Split, check_extractors, chunks, read_split
from evaluation.embeddings import Member, export, list_items
from files import output, refusing
from images import Features
from losses import Embedding, cosine
from metrics import chance, retrieval, score_matrix
from model import Precomputed

BLOCK = 4096                          # pairs that are read at a time
ETAS, DIMS = (1e-4, 1e-3, 1e-2, 1e-1), (64, 128, 256, 512)      # that "auto" tries on the dev split


class CCA:
    """Linear maps of two views, x and y, whose projections correlate most, in float64.

    The covariances Cxx and Cyy are regularised: Rxx = Cxx + eta_x lambda_max(Cxx) I = Lx Lx^T, and Ryy = Ly Ly^T
    likewise. T = Lx^-1 Cxy Ly^-T = U S V^T gives the maps Wx = Lx^-T U and Wy = Ly^-T V, so that Wx^T Rxx Wx = I and
    Wx^T Cxy Wy = S. The embedding of an item is (x - mean) Wx S, l2-normalised: Klein's scaling by the correlations,
    after which the cosine is the score.
    """

    def __init__(self, x, y, owner: np.ndarray):
        """Compute means and covariances of M pairs, rows x[owner[m]] and y[m].
        x (N, F) and y (M, G) are arrays, or objects that return rows by their numbers."""
        total = mean = 0
        for numbers in tqdm(chunks(np.arange(len(owner)), BLOCK), desc="covariances", disable=None, leave=False):
            sides = [x[owner[numbers]], y[numbers]]
            z = np.concatenate(sides, 1, dtype=np.float64)                                          # (b, F + G)
            total, mean = total + z.T @ z / len(owner), mean + z.sum(0) / len(owner)
        total -= np.outer(mean, mean)
        f = sides[0].shape[1]
        self.means = mean[:f], mean[f:]
        self.xx, self.yy, self.xy = total[:f, :f], total[f:, f:], total[:f, f:]
        self.largest = [linalg.eigvalsh(c, subset_by_index=[len(c) - 1] * 2)[0] for c in (self.xx, self.yy)]

    def solve(self, dim: int, eta_x: float, eta_y: float) -> "CCA":
        """Compute `maps`, Wx S (F, dim) and Wy S (G, dim), and `correlations`, S (dim,).
        Raises InputError where there are fewer directions, or where a covariance cannot be inverted."""
        check(dim <= min(self.xy.shape), f"{dim} directions cannot be had from {self.xy.shape[0]} and "
                                         f"{self.xy.shape[1]} features; give --dim {min(self.xy.shape)} or less")
        with refusing(f"the covariances cannot be inverted with eta {eta_x:g} and {eta_y:g}",
                      "give a larger --eta_image, 1e-4 is usual, and features that differ", linalg.LinAlgError):
            left, right = (linalg.cholesky(c + eta * largest * np.eye(len(c)), lower=True) for c, eta, largest in
                           zip((self.xx, self.yy), (eta_x, eta_y), self.largest))
        t = linalg.solve_triangular(left, self.xy, lower=True)
        t = linalg.solve_triangular(right, t.T, lower=True).T                                       # (F, G)
        square, u = linalg.eigh(t @ t.T, subset_by_index=[len(t) - dim, len(t) - 1])                # rising
        self.correlations, u = np.sqrt(np.maximum(square[::-1], 0)), u[:, ::-1]
        self.maps = (linalg.solve_triangular(left, u * self.correlations, lower=True, trans="T"),   # (F, dim)
                     linalg.solve_triangular(right, t.T @ u, lower=True, trans="T"))                # (G, dim)
        return self

    def project(self, side: int, rows, count: int, dim: int | None = None) -> np.ndarray:
        """Embed `count` rows of side 0 (x) or 1 (y): (count, dim), of norm 1."""
        z = np.concatenate([(rows[numbers] - self.means[side]) @ self.maps[side][:, :dim]
                            for numbers in chunks(np.arange(count), BLOCK)])
        return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)


class FeatureRows:
    """Rows (n, F) of stored features, averaged and normalised as in training."""

    def __init__(self, features: Features):
        self.features, self.trunk = features, Precomputed(features.dim)

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return self.trunk(self.features.gather(numbers)).numpy()


# ---- the command

def read_views(opt, data_name: str, split: str) -> tuple[Split, tuple]:
    """Read a split and the rows of its images and captions."""
    data = read_split(opt.data_path, data_name, split, dev_images=0, text_features=opt.text).require_sound()
    return data, (FeatureRows(data.images), FeatureRows(data.text))


def embed_views(cca: CCA, split: Split, views, dim: int | None = None) -> list[Embedding]:
    """Points of the images (N, dim) and captions (M, dim) of a split."""
    counts = len(split.images), len(split.captions)
    return [Embedding(torch.from_numpy(cca.project(side, rows, count, dim).astype(np.float32)))
            for side, (rows, count) in enumerate(zip(views, counts))]


def choose(cca: CCA, split: Split, views, dims, etas) -> tuple[int, float, float]:
    """Choose the (dim, eta_x, eta_y) of the highest rsum on dev; print all rsums."""
    rsums = {}
    for pair in etas:
        cca.solve(max(dims), *pair)
        for dim in dims:
            sides = embed_views(cca, split, views, dim)
            rsums[dim, *pair] = retrieval(score_matrix([(cosine, *sides)]), split.caption_image)["rsum"]
            print("eta_image {:g}, eta_text {:g}, dim {}: dev rsum {:.1f}".format(*pair, dim, rsums[dim, *pair]))
    return max(rsums, key=rsums.get)


def fit_and_embed(opt) -> None:
    """Fit to the training split; embed and rank a split and write its embeddings."""
    if not opt.text:
        raise InputError("--text names no features of captions; give a name such as tfidf, for {split}_tfidf.npy")
    output(opt.output, overwrite=opt.overwrite)
    target, automatic = opt.test_name or opt.data_name, "auto" in (opt.dim, opt.eta)
    train, views = read_views(opt, opt.data_name, "train")
    test, test_views = read_views(opt, target, opt.split)
    check_extractors(train.extractors, test, opt.text, opt.data_name)
    for a, b in ((train.images, test.images), (train.text, test.text)):
        check(a.dim == b.dim, f"{b.path} has features of {b.dim} numbers, {a.path} of {a.dim}; extract both with the "
                              "same network or vectors")
    cca = CCA(*views, train.caption_image)
    most = min(cca.xy.shape)
    dims = [dim for dim in (DIMS if automatic else (256,)) if dim <= most] or [most]
    dims = [opt.dim] if isinstance(opt.dim, int) else dims
    etas = [*itertools.product(ETAS, ETAS)] if opt.eta == "auto" else [(opt.eta, opt.eta)]
    dim, *etas = choose(cca, *read_views(opt, opt.data_name, "dev"), dims, etas) if automatic else (*dims, *etas[0])
    cca.solve(dim, *etas)
    items = list_items(test, target)
    items.similarity, items.members = "cosine", [Member(cosine, *embed_views(cca, test, test_views))]
    print("dim {}, eta_image {:g}, eta_text {:g}, correlations {:.3f} to {:.3f}; {} {}: rsum {:.1f} (chance {:.1f})"
          .format(dim, *etas, *cca.correlations[[0, -1]], target, opt.split,
                  *(result["rsum"] for result in (retrieval(items.scores, test.caption_image),
                                                  chance(test.caption_image, len(test.images))))))
    export(opt.output, items)


def or_auto(read):
    """Return the type of an option that is read by `read`, or "auto"."""
    return lambda text: text if text == "auto" else read(text)


def main(argv=None) -> None:
    p = Arguments("Fit a regularised CCA to the training split and write the embeddings of another.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--text", default="tfidf", metavar="NAME", help="features of captions, {split}_NAME.npy of features.captions")
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
    add("--overwrite", action="store_true", help="replace an existing file")
    cli.run(p.prog, fit_and_embed, p.parse_args(argv))


if __name__ == "__main__":
    main()
