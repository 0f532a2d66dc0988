"""Hybrid Gaussian-Laplacian mixtures and their Fisher vectors, PCA and ICA.

Klein et al. 2015, Associating Neural Word Embeddings with Deep Image Representations using Fisher
Vectors. A caption is a set of word vectors, and a mixture is fitted to the words of all captions.
The Fisher vector of a caption says in which direction its words would move each location and scale
of the mixture. features.captions runs the recipe.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import polar
from scipy.sparse import csr_array
from tqdm import tqdm

from utils import InputError

# Of scales: a median is the value of a word, and the sign of its difference from itself must not
# depend on rounding.
NEAR_MEDIAN = 1e-4
MAX_ICA_STEPS = 200  # of FastICA
MIN_COSINE_CHANGE = 1e-4  # of FastICA's rows in a step, after which it has converged
MIN_MIXTURE_SCALE = 0.1  # of a component, in standard deviations of the dimension


@dataclass
class HGLMM:
    """Mixture p(x) = sum_k w_k prod_d p_kd(x_d), each p_kd a Gaussian or a Laplacian.

    A Laplacian with median m and mean absolute deviation s is exp(-|x - m| / s) / 2s.
    """

    weight: np.ndarray  # (K,)
    location: np.ndarray  # (K, D): mean or median
    scale: np.ndarray  # (K, D): standard deviation (not variance) or mean absolute deviation
    laplacian: np.ndarray  # (K, D) bool: which of the two fits better

    @classmethod
    def fit(
        cls, x: np.ndarray, count: np.ndarray, n_clusters: int = 30, n_iter: int = 10
    ) -> "HGLMM":
        """Maximize the likelihood of x (N, D) by n_iter steps of EM.

        count (N,): occurrences of each row. No step lowers the likelihood. Scales stay above
        MIN_MIXTURE_SCALE: a cluster on one word, such as "a", would have an infinite likelihood.
        Raises InputError if there are fewer different vectors than clusters.
        """
        x = np.asarray(x, np.float64)
        count = np.asarray(count, np.float64)
        distinct = len(np.unique(x[count > 0], axis=0))
        if n_clusters > distinct:
            raise InputError(
                f"--n_clusters {n_clusters} is more than the {distinct} different word vectors; "
                "give fewer clusters, or more captions"
            )

        share = count / count.sum()  # (N,)
        mean = share @ x  # (D,)
        deviation = np.sqrt(share @ (x - mean) ** 2)  # (D,)
        floor = np.maximum(MIN_MIXTURE_SCALE * deviation, 1e-6)
        near = _find_nearest(x, share, n_clusters, np.random.default_rng(0))  # (N,)

        size = (n_clusters, x.shape[1])
        mixture = cls(np.zeros(n_clusters), np.zeros(size), np.ones(size), np.zeros(size, bool))
        mixture._maximize(x, np.eye(n_clusters)[near] * share[:, None], floor)
        for _ in tqdm(range(n_iter), desc="mixture", disable=None, leave=False):
            mixture._maximize(x, mixture.posterior(x) * share[:, None], floor)
        return mixture

    def _maximize(self, x, part, floor) -> None:
        """Take the M-step for `part` (N, K), responsibilities times shares, of sum 1.

        Mean and variance maximize the weighted likelihood of a Gaussian, median and mean absolute
        deviation that of a Laplacian. Their maxima are -log(sd) - log(2 pi) / 2 - var / 2 sd^2 and
        -log(2 s) - mad / s, and the greater one wins; var / sd^2 and mad / s are 1 unless the floor
        holds.
        """
        mass = part.sum(0)  # (K,)
        alive = mass > 1e-12  # empty clusters stay as they are
        unit = part[:, alive] / mass[alive]  # (N, K'), columns of sum 1

        mean = unit.T @ x  # (K', D)
        medians = []
        for weights in unit.T:  # (N,)
            medians.append(np.quantile(x, 0.5, axis=0, method="inverted_cdf", weights=weights))
        median = np.stack(medians)  # (K', D)
        var = np.empty_like(mean)
        mad = np.empty_like(mean)
        for k in range(len(mean)):  # (N, D) at a time
            var[k] = unit[:, k] @ (x - mean[k]) ** 2
            mad[k] = unit[:, k] @ np.abs(x - median[k])

        sd = np.maximum(np.sqrt(var), floor)
        s = np.maximum(mad, floor / np.sqrt(2))
        gaussian_likelihood = -np.log(sd) - np.log(2 * np.pi) / 2 - var / (2 * sd**2)
        laplacian = -np.log(2 * s) - mad / s > gaussian_likelihood  # (K', D)
        self.weight = mass / mass.sum()
        self.laplacian[alive] = laplacian
        self.location[alive] = np.where(laplacian, median, mean)
        self.scale[alive] = np.where(laplacian, s, sd)

    def joint(self, x) -> np.ndarray:
        """Compute log w_k + log p(x | k): (N, D) -> (N, K)."""
        x = np.asarray(x, np.float64)
        log_sd = np.log(self.scale) + np.log(2 * np.pi) / 2
        log_norm = np.where(self.laplacian, np.log(2 * self.scale), log_sd).sum(1)  # (K,)
        with np.errstate(divide="ignore"):
            constant = np.log(self.weight) - log_norm  # (K,)

        out = np.empty((len(x), len(self.weight)))
        for k, laplacian in enumerate(self.laplacian):
            z = np.abs(x - self.location[k]) / self.scale[k]  # (N, D)
            out[:, k] = constant[k] - z @ laplacian - (z * z) @ ~laplacian / 2
        return out

    def posterior(self, x) -> np.ndarray:
        """Compute p(k | x): (N, D) -> (N, K), rows of sum 1."""
        joint = self.joint(x)
        top = joint.max(1, keepdims=True)
        log_sum = top + np.log(np.exp(joint - top).sum(1, keepdims=True))  # faster than scipy's
        return np.exp(joint - log_sum)

    def fisher_of_counts(self, x: np.ndarray, counts) -> np.ndarray:
        """Compute Fisher vectors of sets of words: (n, 2 K D) float32, locations, scales.

        x (V, D): different words. counts: occurrences of each in each set, sparse (n, V). An empty
        set gives zeros. A Fisher vector is the gradient of the mean log-likelihood of a set's T
        words, each entry divided by the square root of its Fisher information (diagonal, with
        posteriors of nearly 0 or 1: Perronnin and Dance 2007). With g = p(k | x) and
        z = (x - location) / scale:

                        location                        scale
            Gaussian    sum g z / (T sqrt(w))           sum g (z^2 - 1) / (T sqrt(2 w))
            Laplacian   sum g sign(z) / (T sqrt(w))     sum g (|z| - 1) / (T sqrt(w))

        The information is w / sd^2 and 2 w / sd^2 for a Gaussian, w / s^2 twice for a Laplacian.
        """
        clusters, dim = self.location.shape
        length = np.asarray(counts.sum(1)).ravel()  # (n,)
        per_word = 1 / np.maximum(length, 1)[:, None]
        mean = csr_array(counts.multiply(per_word)).astype(np.float32)  # (n, V)
        pull = self.posterior(x) / np.sqrt(np.maximum(self.weight, 1e-12))  # (V, K)

        out = np.empty((mean.shape[0], 2, clusters, dim), np.float32)
        for k, laplacian in enumerate(self.laplacian):
            z = (x - self.location[k]) / self.scale[k]  # (V, D)
            sign = np.sign(z) * (np.abs(z) > NEAR_MEDIAN)
            location = np.where(laplacian, sign, z)
            scale = np.where(laplacian, np.abs(z) - 1, (z * z - 1) / np.sqrt(2))
            weight = pull[:, k : k + 1]  # (V, 1)
            out[:, 0, k] = mean @ (weight * location).astype(np.float32)  # (n, V) (V, D)
            out[:, 1, k] = mean @ (weight * scale).astype(np.float32)
        return out.reshape(len(out), -1)  # (n, 2, K, D) -> (n, 2 K D)


def _find_nearest(x, share, clusters, rng) -> np.ndarray:
    """Draw centers as k-means++ does, and return the nearest one of each row, (N,)."""
    centers = [rng.choice(len(x), p=share)]
    distance = np.full(len(x), np.inf)
    near = np.zeros(len(x), int)
    for k in range(clusters):
        new = ((x - x[centers[k]]) ** 2).sum(1)  # (N,)
        near[new < distance] = k
        distance = np.minimum(distance, new)
        chance = distance * share
        if chance.sum() > 0:
            centers.append(rng.choice(len(x), p=chance / chance.sum()))
        else:
            centers.append(centers[0])
    return near


def signed_square_root(fisher: np.ndarray) -> np.ndarray:
    """Take the signed square root, then the unit norm (Perronnin et al. 2010)."""
    return unit_rows(np.sign(fisher) * np.sqrt(np.abs(fisher)))


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Scale rows (n, F) to l2 norm 1; rows of zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def fit_pca(x: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean (F,) and principal axes, orthonormal rows (size, F), of x (N, F).

    Four rounds of subspace iteration with a tenth more axes (Halko et al. 2011, 4.4). Raises
    InputError if there are not so many axes.
    """
    most = min(x.shape[0] - 1, x.shape[1])
    if not 1 <= size <= most:
        raise InputError(
            f"{x.shape[0]} captions of {x.shape[1]} values have at most {max(0, most)} principal "
            f"axes, not {size}; give a smaller --pca or more captions"
        )
    mean = x.mean(0, dtype=np.float64).astype(x.dtype)
    centered = torch.from_numpy(x - mean)
    rank = min(most, size + max(20, size // 10))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, _, axes = torch.pca_lowrank(centered, rank, center=False, niter=4)  # (F, rank)
    return mean, axes.numpy().T[:size]


def project(x: np.ndarray, mean: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Coordinates on axes of PCA or ICA: (N, F), (F,), (size, F) -> (N, size)."""
    return (x - mean) @ axes.T


def fit_ica(x: np.ndarray, size: int, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit ICA to x (N, D): mean (D,) and unmixing axes (size, D).

    FastICA (Hyvarinen 1999): whiten x to z. Then, for all rows w of an orthogonal W at once,
    w <- E[z t] - E[1 - t^2] w with t = tanh(w z), and W <- (W W^T)^-1/2 W, until the cosine of
    every row with its last value is above 1 - MIN_COSINE_CHANGE. count (N,): how often each row
    occurs. Raises InputError if x spans fewer dimensions than `size`.
    """
    x = x.astype(np.float64)
    share = count / count.sum()
    mean = share @ x
    centered = x - mean
    covariance = (centered * share[:, None]).T @ centered
    value, vector = np.linalg.eigh(covariance)  # (D,), (D, D)
    spanned = (value > 1e-10 * value[-1]).sum()
    if not 1 <= size <= spanned:
        raise InputError(
            f"word vectors that span {spanned} dimensions have no {size} independent components; "
            "leave --ica out, or give vectors of fewer values"
        )

    largest_first = np.maximum(value[::-1], 1e-300)
    white = (vector[:, ::-1] / np.sqrt(largest_first))[:, :size].T  # (size, D)
    z = centered @ white.T  # (N, size)
    W, _ = polar(np.random.default_rng(0).standard_normal((size, size)))
    for _ in range(MAX_ICA_STEPS):
        t = np.tanh(z @ W.T)  # (N, size)
        new, _ = polar((t * share[:, None]).T @ z - (share @ (1 - t**2))[:, None] * W)
        change = np.abs(np.abs((new * W).sum(1)) - 1).max()
        W = new
        if change < MIN_COSINE_CHANGE:
            break
    return mean, W @ white
