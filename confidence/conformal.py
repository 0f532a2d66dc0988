"""Prediction sets with a given coverage: split-conformal prediction (Vovk et al. 2005).

A set holds the items whose posterior is at least a limit (LAC), which is fitted on dev. The
coverage holds for queries that are exchangeable with the calibration queries, on average over
calibrations. Captions of one image are not exchangeable one by one, so one caption of each image is
drawn. It holds for galleries of one size.
"""

import math

import numpy as np
import torch

from confidence.posterior import Rows, rows_of
from evaluation.embeddings import Embeddings
from evaluation.report import SIDES, number, table
from utils import InputError


def one_query_per_image(e: Embeddings, side: str, seed: int = 0) -> Rows:
    """Return the rows of all images that have captions, or of one random caption of each."""
    if side == "i2t":
        return rows_of(e, side)
    order = np.random.default_rng(seed).permutation(len(e.caption_image))
    _, first = np.unique(e.caption_image[order], return_index=True)
    return rows_of(e, side, np.sort(order[first]))


def compute_nonconformity(scores: torch.Tensor, right: torch.Tensor, t: float) -> torch.Tensor:
    """Compute -log p of the best right item of each query: (b,).

    scores (b, G), right (b, G) bool, t the temperature.
    """
    best = torch.where(right, scores, -torch.inf).amax(1)  # (b,)
    return torch.logsumexp(t * scores, 1) - t * best


def count_items(scores: torch.Tensor, t: float, limit: float) -> torch.Tensor:
    """Count the items with -log p of at most the limit: scores (b, G) -> (b,)."""
    nonconformity = -(t * scores).softmax(1).log()
    return (nonconformity <= limit).sum(1)


def conformal_rank(n: int, alpha: float) -> int:
    """Compute the rank, from 1, of the limit for 1 - alpha among n nonconformity scores."""
    return math.ceil((n + 1) * (1 - alpha))


def judge_sets(rows: Rows, t: float, alpha: float, limit: float, n: int) -> dict:
    """Compute coverage and size of the sets, shares in [0, 1].

    Args:
        rows: the queries to judge, with their galleries.
        t: the temperature.
        alpha: the sets are to hold a right item with 1 - alpha.
        limit: largest nonconformity of an item in a set.
        n: number of queries that the limit was fitted to.

    Returns {"alpha", "coverage", "low", "high", "mean_size", "median_size", "singletons",
    "singletons_right", "queries"}. Between low and high the coverage of so many queries lies in 95%
    of all calibrations with n exchangeable queries, by the beta-binomial distribution.
    """
    from scipy import stats  # takes a second to import, and a search needs none of it

    queries = len(rows.queries)
    rank = conformal_rank(n, alpha)
    distribution = stats.betabinom(queries, rank, n + 1 - rank)
    low, high = distribution.ppf([0.025, 0.975]) / queries

    sizes = []
    covered = []
    for scores, right in rows.blocks():
        sizes.append(count_items(scores, t, limit))
        covered.append(compute_nonconformity(scores, right, t) <= limit)
    sizes = torch.cat(sizes).cpu().numpy()
    covered = torch.cat(covered).cpu().numpy()

    single = sizes == 1
    singletons_right = float("nan")
    if single.any():
        singletons_right = float(covered[single].mean())
    return {
        "alpha": alpha,
        "coverage": float(covered.mean()),
        "low": float(low),
        "high": float(high),
        "mean_size": float(sizes.mean()),
        "median_size": float(np.median(sizes)),
        "singletons": float(single.mean()),
        "singletons_right": singletons_right,
        "queries": queries,
    }


@torch.no_grad()
def fit_and_judge(
    dev: Embeddings, test: Embeddings, temperatures: dict[str, float], alpha: float
) -> tuple[dict, dict]:
    """Fit sets on dev and judge them on test, of the larger of which random images are drawn.

    Their limit is the largest nonconformity, for 1 - alpha of the queries. Returns
    {direction: {"lac": `judge_sets`}} and the "sets" of calibration.json. Raises InputError where
    dev is too small for alpha.
    """
    # a limit fitted to few items promises too much for many
    size = min(dev.n_images, test.n_images)
    dev = draw_images(dev, size)
    test = draw_images(test, size)

    results = {}
    limits = {"alpha": alpha, "images": size}
    for side, t in temperatures.items():
        rows = one_query_per_image(dev, side)
        n = len(rows.queries)
        rank = conformal_rank(n, alpha)
        if rank > n:
            raise InputError(
                f"--sets {alpha:g} needs at least {math.ceil(1 / alpha) - 1:,} images to calibrate "
                f"on, and there are {n:,}; give a larger ALPHA, or more images"
            )

        blocks = [compute_nonconformity(scores, right, t) for scores, right in rows.blocks()]
        rising = torch.cat(blocks).sort().values
        limit = float(rising[rank - 1])
        limits[side] = {"lac": limit}
        judged = one_query_per_image(test, side, seed=2)
        results[side] = {"lac": judge_sets(judged, t, alpha, limit, n)}
    return results, limits


def draw_images(e: Embeddings, size: int) -> Embeddings:
    """Draw so many of the images, with their captions."""
    if e.n_images == size:
        return e
    order = np.random.default_rng(1).permutation(e.n_images)
    return e.subset(np.sort(order[:size]))


# ---- tables

COLUMNS_OF_SETS = {
    "coverage": "coverage",
    "low": "95% from",
    "high": "to",
    "mean_size": "mean size",
    "median_size": "median",
    "singletons": "single",
    "singletons_right": "right",
}


def find_cell_of_sets(key: str, numbers: dict) -> str:
    """Format a size, or a share in percent."""
    value = numbers[key]
    if not key.endswith("_size"):
        value = 100 * value
    return number(value)


def tabulate_sets(results: dict, size: int) -> list:
    """Build the tables of `judge_sets` by direction, of galleries of `size` images."""
    made = []
    for side, sets in results.items():
        numbers = sets["lac"]
        title = (
            f"{SIDES[side]}: sets that hold a right answer for {100 * (1 - numbers['alpha']):g}% "
            f"of {numbers['queries']:,} queries, one per image, among {size:,} images"
        )
        rows = {"posterior above a limit (LAC)": numbers}
        made.append(table(title, COLUMNS_OF_SETS, rows, find_cell_of_sets))
    return made
