"""Answers with a promise: sets that hold a right item with a given chance, and thresholds for
"nothing matches".

Split-conformal sets (Vovk et al. 2005) are calibrated on the dev split. Their coverage holds for
queries that are exchangeable with those of the calibration, on average over calibrations. Captions
of one image are not exchangeable one by one, so one caption of each image is drawn.
"""
import math

import numpy as np
import torch
from scipy.special import betaincinv

from cli import check
from evaluation import selective
from evaluation.confidence import best_name, of_answers, table
from evaluation.posterior import Rows, answers, expected, rows_of, within
from evaluation.report import SIDES
from evaluation.subjects import Subject
from evaluation.volume import Sigmoid

SCORES = 2 ** 25  # scores that sets are counted in; of larger galleries fewer queries are taken
METHODS = {"lac": "least mass by the posterior (LAC)", "aps": "adaptive (APS)",
           "topk": "the K best", "threshold": "score above a threshold"}
CONFIDENT = 0.95                      # of the certificate of a threshold
NAMES = {"expected": "expected number"}


def one_each(subject: Subject, side: str, seed: int = 0) -> Rows:
    """The rows of exchangeable queries: one random caption of each image, or the images, and at
    most SCORES scores."""
    rng, owner = np.random.default_rng(seed), subject.caption_image
    order = rng.permutation(len(owner))
    queries, gallery = np.unique(owner), len(owner)
    if side == "t2i":                                       # a random caption of each image
        first = np.unique(owner[order], return_index=True)[1]
        queries, gallery = np.sort(order[first]), subject.n_images
    most = max(1, SCORES // gallery)
    if len(queries) > most:
        queries = np.sort(rng.choice(queries, most, replace=False))
    return rows_of(subject, side, queries)


def blocks(rows: Rows, seed: int):
    """Yields (scores (b, G), right (b, G) bool, uniform numbers (b,)) of all rows, in runs."""
    drawn = torch.rand(rows.queries, generator=torch.Generator().manual_seed(seed))
    for scores, right in rows.whole():
        yield scores, right, drawn[:len(scores)].to(scores.device)
        drawn = drawn[len(scores):]


def strangeness(scores: torch.Tensor, right: torch.Tensor, t: float,
                u: torch.Tensor) -> dict[str, torch.Tensor]:
    """How strange the best right item of each query is by each of METHODS: {method: (b,)}; sets
    hold what is at most as strange as a limit.

    scores (b, G); right (b, G) bool; t: the temperature of the posterior; u (b,): uniform numbers,
    which make APS exact. LAC: -log p of the item. APS: the mass above it, plus u of its own. topk:
    how many items stand above it or tie with it. threshold: minus its score.
    """
    best = torch.where(right, scores, -torch.inf).amax(1)                           # (b,)
    log_p = (t * scores).log_softmax(1)
    of_best = t * best - torch.logsumexp(t * scores, 1)
    gap = within(best, scores.std(1, correction=0))
    above = torch.where(scores > (best + gap)[:, None], log_p, -torch.inf).exp().sum(1)
    ahead = ((scores >= (best - gap)[:, None]) & ~right).sum(1)
    return {"lac": -of_best, "aps": above + u * of_best.exp(), "topk": ahead.float(),
            "threshold": -best}


def set_sizes(scores: torch.Tensor, t: float, u: torch.Tensor,
              limits: dict[str, float]) -> dict[str, torch.Tensor]:
    """How many items of each row are within the limits: {method: (b,)}; shapes as in
    `strangeness`."""
    p = (t * scores).softmax(1)
    falling = p.sort(1, descending=True).values
    mass = falling.double().cumsum(1) - falling * (1 - u[:, None])
    fixed = min(int(limits["topk"]) + 1, scores.shape[1])
    return {"lac": (-p.log() <= limits["lac"]).sum(1), "aps": (mass <= limits["aps"]).sum(1),
            "topk": torch.full_like(u, fixed),
            "threshold": (-scores <= limits["threshold"]).sum(1)}


def place(n: int, alpha: float) -> int:
    """Which of n strangenesses, in rising order from 1, is the limit of sets that hold a right item
    for 1 - alpha."""
    return math.ceil((n + 1) * (1 - alpha))


@torch.no_grad()
def calibrate_sets(subject: Subject, side: str, t: float,
                   alpha: float) -> tuple[dict[str, float], int]:
    """{method: the largest strangeness that a set for 1 - alpha holds}, from n queries, and n.
    Raises InputError where n is too small for alpha."""
    rows = one_each(subject, side)
    n = rows.queries
    check(place(n, alpha) <= n,
          f"--sets {alpha:g} needs at least {math.ceil(1 / alpha) - 1:,} images to calibrate on, "
          f"and there are {n:,}; give a larger ALPHA, or more images")
    strange = [strangeness(scores, right, t, u) for scores, right, u in blocks(rows, 1)]
    return {name: float(torch.cat([of[name] for of in strange]).sort().values[place(n, alpha) - 1])
            for name in METHODS}, n


@torch.no_grad()
def judge_sets(subject: Subject, side: str, t: float, alpha: float, limits: dict[str, float],
               n: int) -> dict:
    """Coverage and size of the sets of each method: {method: {"alpha", "coverage", "low", "high",
    "mean_size", "median_size", "singletons", "singletons_right", "queries"}}, shares in [0, 1].

    low and high: between these the coverage of so many queries lies in 95% of all calibrations with
    n exchangeable queries, by the beta-binomial distribution; without end to the queries it is
    Beta(k, n + 1 - k).
    """
    from scipy import stats  # takes a second to import, and a search needs none of it

    rows, k = one_each(subject, side, seed=2), place(n, alpha)
    low, high = stats.betabinom(rows.queries, k, n + 1 - k).ppf([0.025, 0.975]) / rows.queries
    parts = [(set_sizes(scores, t, u, limits), strangeness(scores, right, t, u))
             for scores, right, u in blocks(rows, 3)]
    results = {}
    for name, limit in limits.items():
        size = torch.cat([sizes[name] for sizes, _ in parts]).cpu().numpy()
        inside = torch.cat([strange[name] <= limit for _, strange in parts]).cpu().numpy()
        single = size == 1
        results[name] = {"alpha": alpha, "coverage": float(inside.mean()), "low": float(low),
                         "high": float(high), "mean_size": float(size.mean()),
                         "median_size": float(np.median(size)), "singletons": float(single.mean()),
                         "singletons_right": share(inside[single]), "queries": rows.queries}
    return results


def share(right: np.ndarray) -> float:
    """The share that is right of (K,) bool; NaN where there are none."""
    return float(right.mean()) if len(right) else float("nan")


def sets(dev: Subject, test: Subject, t: dict[str, float], alpha: float) -> tuple[dict, dict]:
    """{direction: `judge_sets` on test of what dev calibrates}, and what calibration.json holds of
    it. t: the temperature of each direction."""
    results, limits = {}, {"alpha": alpha, "images": dev.n_images}
    for side in t:
        limits[side], n = calibrate_sets(dev, side, t[side], alpha)
        results[side] = judge_sets(test, side, t[side], alpha, limits[side], n)
    return results, limits


# ---- "nothing matches"

def certified_threshold(confidence: np.ndarray, rate: float) -> float:
    """The lowest threshold whose false-answer rate is certified.

    confidence (n,): of queries without an answer. From the strictest threshold downwards, it is
    lowered as long as the upper bound of Clopper and Pearson on the share of negatives at or above
    it is at most `rate`, with a confidence of CONFIDENT (fixed-sequence testing, so that the choice
    of the threshold is paid for). Raises InputError where so few negatives cannot certify any.
    """
    n, false = len(confidence), np.arange(len(confidence))            # of 0 ... n - 1 false answers
    bound = betaincinv(false + 1, n - false, CONFIDENT)
    allowed = int(np.searchsorted(bound, rate, "right")) - 1
    need = math.ceil(math.log(1 - CONFIDENT) / math.log(1 - rate))
    check(allowed >= 0, f"--absent {rate:g} needs at least {need:,} queries without an answer to "
                        f"certify a threshold, and there are {n:,}; "
                        "give a higher rate, or more images")
    return float(np.nextafter(np.sort(confidence)[::-1][allowed], np.inf))


def judge_absent(dev: Subject, test: Subject, side: str, t: float, rate: float, pair: Sigmoid,
                 negatives: np.ndarray | None = None) -> dict:
    """Can one tell a query without an answer? {"auroc": {measure: ...}, "ceiling": ...,
    "threshold": {...}}.

    The AUROC is that of one query per image as it is, against the same query with its right items
    taken out. One measure is how many items fit, by the probability of a pair. The ceiling is that
    of the largest score: with a share r of right first answers, 1 - r of the queries say the same
    both ways, so that no AUROC is above 1 - (1 - r)^2 / 2. The threshold of the
    posterior, at temperature t, is certified on dev to answer at most `rate` of the queries without
    an answer, or on `negatives` (n,), the posteriors of queries that have none. On test, its false
    answers, the share of present queries that it answers, and how many of these are right.
    """
    rows, others = one_each(test, side, seed=2), one_each(dev, side)
    check(all(of.gallery > max(np.bincount(of.right.query)) for of in (rows, others)),
          "--absent takes the right items of a query out of the gallery, which leaves none; "
          "give more images")
    here = answers(rows, t)
    present, absent = (of_answers(of) | {"expected": expected(rows, pair, of is not here)}
                       for of in (here, answers(rows, t, absent=True)))
    label = np.repeat([True, False], len(here.first))
    auroc = {name: selective.auroc(selective.levelled(np.append(value, absent[name])), label)
             for name, value in present.items()}
    best, own = best_name(auroc), negatives is not None
    if not own:
        negatives = of_answers(answers(others, t, absent=True))[best]
    threshold = certified_threshold(negatives, rate)
    answered = present[best] >= threshold
    return {"auroc": auroc, "ceiling": 1 - (1 - float(here.right.mean())) ** 2 / 2,
            "queries": len(here.first),
            "threshold": {"measure": best, "value": threshold, "rate": rate,
                          "negatives": len(negatives), "own": own,
                          "false_answers": float((absent[best] >= threshold).mean()),
                          "answered": float(answered.mean()),
                          "answered_right": share(here.right[answered])}}


# ---- tables and sentences

COLUMNS = {"coverage": "coverage", "low": "95% from", "high": "to", "mean_size": "mean size",
           "median_size": "median", "singletons": "single", "singletons_right": "right"}
SIZES = {"mean_size": 1, "median_size": 0}                 # digits; all others are percentages


def set_tables(results: dict) -> list:
    """Tables of `judge_sets` by direction."""
    def cell(key: str, of: dict) -> str:
        return (f"{of[key]:.{SIZES[key]}f}" if key in SIZES else
                f"{100 * of[key]:.1f}".replace("nan", "-"))
    return [table(f"{SIDES[side]}: sets that hold a right answer for "
                  f"{100 * (1 - methods['lac']['alpha']):g}% of {methods['lac']['queries']:,} "
                  "queries, one per image", COLUMNS,
                  {METHODS[name]: of for name, of in methods.items()}, cell)
            for side, methods in results.items()]


def absent_sentences(results: dict):
    """What `judge_absent` found, by direction."""
    for side, of in results.items():
        auroc, t = of["auroc"], of["threshold"]
        best = max(auroc, key=auroc.get)
        told = ", ".join(f"{auroc[name]:.3f} ({NAMES.get(name, name)})" for name in dict.fromkeys(
            (best, t["measure"], "expected", "max")))
        yield (f"{side}: present or absent? AUROC at best {told}; no maximum score gets above "
               f"{of['ceiling']:.3f}, as where the first answer is wrong it stays the same")
        right = f", {100 * t['answered_right']:.1f}% of them right" * (t["answered"] > 0)
        yield (f"{side}: answering from {t['measure']} {t['value']:.3g} up gives at most "
               f"{100 * t['rate']:g}% false answers to queries without one "
               f"({100 * CONFIDENT:g}% sure, from {t['negatives']:,} of "
               f"{'--negatives' if t['own'] else 'dev'}); here {100 * t['false_answers']:.1f}%, "
               f"and {100 * t['answered']:.1f}% of the others are answered{right}")
