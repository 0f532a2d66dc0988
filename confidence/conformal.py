"""Prediction sets with a given coverage: split-conformal prediction (Vovk et al. 2005).

A set holds the items whose posterior is at least a limit (LAC), which is fitted on dev. The coverage holds for queries
that are exchangeable with the calibration queries, on average over calibrations. Captions of one image are not
exchangeable one by one, so one caption of each image is drawn. It holds for galleries of one size.
"""
import math

import numpy as np
import torch

from cli import check
from confidence.posterior import Rows, rows_of
from evaluation.embeddings import Embeddings
from evaluation.report import SIDES, number, table


def one_query_per_image(e: Embeddings, side: str, seed: int = 0) -> Rows:
    """The rows of all images that have captions, or of one random caption of each."""
    if side == "i2t":
        return rows_of(e, side)
    order = np.random.default_rng(seed).permutation(len(e.caption_image))
    first = np.unique(e.caption_image[order], return_index=True)[1]
    return rows_of(e, side, np.sort(order[first]))


def compute_strangeness(scores: torch.Tensor, right: torch.Tensor, t: float) -> torch.Tensor:
    """Compute -log p of the best right item of each query: (b,).
    scores (b, G), right (b, G) bool, t the temperature."""
    best = torch.where(right, scores, -torch.inf).amax(1)                           # (b,)
    return torch.logsumexp(t * scores, 1) - t * best


def count_items(scores: torch.Tensor, t: float, limit: float) -> torch.Tensor:
    """Number of items with -log p of at most the limit: scores (b, G) -> (b,)."""
    return (-(t * scores).softmax(1).log() <= limit).sum(1)


def conformal_rank(n: int, alpha: float) -> int:
    """Compute the rank, from 1, of the limit for 1 - alpha among n strangenesses."""
    return math.ceil((n + 1) * (1 - alpha))


def judge_sets(rows: Rows, t: float, alpha: float, limit: float, n: int) -> dict:
    """Coverage and size of the sets, shares in [0, 1].
    Returns {"alpha", "coverage", "low", "high", "mean_size", "median_size", "singletons", "singletons_right",
    "queries"}. Between low and high the coverage of so many queries lies in 95% of all calibrations with n exchangeable
    queries, by the beta-binomial distribution."""
    from scipy import stats  # takes a second to import, and a search needs none of it

    queries, k = len(rows.queries), conformal_rank(n, alpha)
    low, high = stats.betabinom(queries, k, n + 1 - k).ppf([0.025, 0.975]) / queries
    parts = [(count_items(scores, t, limit), compute_strangeness(scores, right, t) <= limit)
             for scores, right in rows.blocks()]
    size, covered = (torch.cat(part).cpu().numpy() for part in zip(*parts))
    single = size == 1
    return {"alpha": alpha, "coverage": float(covered.mean()), "low": float(low), "high": float(high),
            "mean_size": float(size.mean()), "median_size": float(np.median(size)), "singletons": float(single.mean()),
            "singletons_right": float(covered[single].mean()) if single.any() else float("nan"), "queries": queries}


@torch.no_grad()
def fit_and_judge(dev: Embeddings, test: Embeddings, temperatures: dict[str, float], alpha: float) -> tuple[dict, dict]:
    """Fit sets on dev and judge them on test, of the larger of which random images are drawn.
    Their limit is the largest strangeness, for 1 - alpha of the queries. Returns {direction: {"lac": `judge_sets`}} and
    the "sets" of calibration.json. Raises InputError where dev is too small for alpha."""
    size = min(dev.n_images, test.n_images)                 # a limit fitted to few items promises too much for many
    dev, test = (e if e.n_images == size else e.subset(
        np.sort(np.random.default_rng(1).permutation(e.n_images)[:size])) for e in (dev, test))
    results, limits = {}, {"alpha": alpha, "images": size}
    for side, t in temperatures.items():
        rows = one_query_per_image(dev, side)
        n = len(rows.queries)
        check(conformal_rank(n, alpha) <= n,
              f"--sets {alpha:g} needs at least {math.ceil(1 / alpha) - 1:,} images to calibrate on, and there are "
              f"{n:,}; give a larger ALPHA, or more images")
        values = torch.cat([compute_strangeness(scores, right, t) for scores, right in rows.blocks()])
        limit = float(values.sort().values[conformal_rank(n, alpha) - 1])
        limits[side] = {"lac": limit}
        results[side] = {"lac": judge_sets(one_query_per_image(test, side, seed=2), t, alpha, limit, n)}
    return results, limits


# ---- tables

COLUMNS = {"coverage": "coverage", "low": "95% from", "high": "to", "mean_size": "mean size", "median_size": "median",
           "singletons": "single", "singletons_right": "right"}


def tabulate_sets(results: dict, size: int) -> list:
    """Build the tables of `judge_sets` by direction, of galleries of `size` images."""
    def cell(key: str, numbers: dict) -> str:
        return number(numbers[key] * (1 if key.endswith("_size") else 100))
    return [table(f"{SIDES[side]}: sets that hold a right answer for {100 * (1 - sets['lac']['alpha']):g}% of "
                  f"{sets['lac']['queries']:,} queries, one per image, among {size:,} images", COLUMNS,
                  {"least mass by the posterior (LAC)": sets["lac"]}, cell) for side, sets in results.items()]
