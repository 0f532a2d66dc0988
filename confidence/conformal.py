"""Sets of answers that hold a right item with a given chance.

Split-conformal sets (Vovk et al. 2005) are calibrated on the dev split. Their coverage holds for
queries that are exchangeable with those of the calibration, on average over calibrations. Captions
of one image are not exchangeable one by one, so one caption of each image is drawn.
"""
import math

import numpy as np
import torch

from cli import check
from confidence.posterior import Rows, rows_of
from evaluation.embeddings import Embeddings
from evaluation.report import SIDES, table

SCORES = 2 ** 25  # scores that sets are counted in; of larger galleries fewer queries are taken
METHODS = {"lac": "least mass by the posterior (LAC)"}


def one_each(e: Embeddings, side: str, seed: int = 0) -> Rows:
    """The rows of exchangeable queries: one random caption of each image, or the images, and at
    most SCORES scores."""
    rng, owner = np.random.default_rng(seed), e.caption_image
    order = rng.permutation(len(owner))
    queries, gallery = np.unique(owner), len(owner)
    if side == "t2i":                                       # a random caption of each image
        first = np.unique(owner[order], return_index=True)[1]
        queries, gallery = np.sort(order[first]), e.n_images
    most = max(1, SCORES // gallery)
    if len(queries) > most:
        queries = np.sort(rng.choice(queries, most, replace=False))
    return rows_of(e, side, queries)


def strangeness(scores: torch.Tensor, right: torch.Tensor, t: float) -> torch.Tensor:
    """-log p of the best right item of each query (b,), at the temperature t of the posterior: scores
    (b, G), right (b, G) bool. A set holds what is at most as strange as a limit."""
    best = torch.where(right, scores, -torch.inf).amax(1)                           # (b,)
    return torch.logsumexp(t * scores, 1) - t * best


def set_sizes(scores: torch.Tensor, t: float, limit: float) -> torch.Tensor:
    """How many items of each row of scores (b, G) are within the limit: (b,)."""
    return (-(t * scores).softmax(1).log() <= limit).sum(1)


def place(n: int, alpha: float) -> int:
    """Which of n strangenesses, in rising order from 1, is the limit of sets that hold a right item
    for 1 - alpha."""
    return math.ceil((n + 1) * (1 - alpha))


@torch.no_grad()
def calibrate_sets(e: Embeddings, side: str, t: float,
                   alpha: float) -> tuple[dict[str, float], int]:
    """{"lac": the largest strangeness that a set for 1 - alpha holds}, from n queries, and n.
    Raises InputError where n is too small for alpha."""
    rows = one_each(e, side)
    n = rows.queries
    check(place(n, alpha) <= n,
          f"--sets {alpha:g} needs at least {math.ceil(1 / alpha) - 1:,} images to calibrate on, "
          f"and there are {n:,}; give a larger ALPHA, or more images")
    strange = torch.cat([strangeness(scores, right, t) for scores, right in rows.whole()])
    return {"lac": float(strange.sort().values[place(n, alpha) - 1])}, n


@torch.no_grad()
def judge_sets(e: Embeddings, side: str, t: float, alpha: float, limits: dict[str, float],
               n: int) -> dict:
    """Coverage and size of the sets: {"lac": {"alpha", "coverage", "low", "high",
    "mean_size", "median_size", "singletons", "singletons_right", "queries"}}, shares in [0, 1].

    low and high: between these the coverage of so many queries lies in 95% of all calibrations with
    n exchangeable queries, by the beta-binomial distribution; without end to the queries it is
    Beta(k, n + 1 - k).
    """
    from scipy import stats  # takes a second to import, and a search needs none of it

    rows, k = one_each(e, side, seed=2), place(n, alpha)
    low, high = stats.betabinom(rows.queries, k, n + 1 - k).ppf([0.025, 0.975]) / rows.queries
    limit = limits["lac"]
    parts = [(set_sizes(scores, t, limit), strangeness(scores, right, t) <= limit)
             for scores, right in rows.whole()]
    size, inside = (torch.cat(part).cpu().numpy() for part in zip(*parts))
    single = size == 1
    return {"lac": {"alpha": alpha, "coverage": float(inside.mean()), "low": float(low),
                    "high": float(high), "mean_size": float(size.mean()),
                    "median_size": float(np.median(size)), "singletons": float(single.mean()),
                    "singletons_right": share(inside[single]), "queries": rows.queries}}


def share(right: np.ndarray) -> float:
    """The share that is right of (K,) bool; NaN where there are none."""
    return float(right.mean()) if len(right) else float("nan")


def judge_both(dev: Embeddings, test: Embeddings, t: dict[str, float], alpha: float) -> tuple[dict, dict]:
    """{direction: `judge_sets` on test of what dev calibrates}, and what calibration.json holds of
    it. t: the temperature of each direction."""
    results, limits = {}, {"alpha": alpha, "images": dev.n_images}
    for side in t:
        limits[side], n = calibrate_sets(dev, side, t[side], alpha)
        results[side] = judge_sets(test, side, t[side], alpha, limits[side], n)
    return results, limits


# ---- tables

COLUMNS = {"coverage": "coverage", "low": "95% from", "high": "to", "mean_size": "mean size",
           "median_size": "median", "singletons": "single", "singletons_right": "right"}
SIZES = {"mean_size": 1, "median_size": 0}                 # digits; all others are percentages


def tables(results: dict) -> list:
    """Tables of `judge_sets` by direction."""
    def cell(key: str, of: dict) -> str:
        return (f"{of[key]:.{SIZES[key]}f}" if key in SIZES else
                f"{100 * of[key]:.1f}".replace("nan", "-"))
    return [table(f"{SIDES[side]}: sets that hold a right answer for "
                  f"{100 * (1 - methods['lac']['alpha']):g}% of {methods['lac']['queries']:,} "
                  "queries, one per image", COLUMNS,
                  {METHODS[name]: of for name, of in methods.items()}, cell)
            for side, methods in results.items()]

