"""Discrimination and calibration of confidences.

Every function takes one number per query: a confidence (Q,), larger where surer, or a probability p (Q,) in [0, 1], and
right (Q,) bool, whether the query's first answer is right.
"""
import numpy as np

from metrics import risk_coverage

BINS = 15                 # of equal mass, for the calibration error (Roelofs et al. 2022)
LEAST = 1e-12             # a probability of 0 or 1 counts as this far from it in a logarithm
DRAWS = 200               # of the right answers that perfect probabilities would show


def auroc(confidence: np.ndarray, right: np.ndarray) -> float:
    """Compute how probably a right answer has more confidence than a wrong one.
    Ties count half; NaN where one kind is missing."""
    hit, miss = confidence[right], np.sort(confidence[~right])
    if not len(hit) or not len(miss):
        return float("nan")
    below = sum(np.searchsorted(miss, hit, side).sum(dtype=float) for side in ("left", "right")) / 2
    return float(below / (len(hit) * len(miss)))


def bins_of_equal_mass(p: np.ndarray) -> list[np.ndarray]:
    """Divide the positions of p (Q,) into bins of equal size, from the least p."""
    return [part for part in np.array_split(np.argsort(p, kind="stable"), BINS) if len(part)]


def reliability(p: np.ndarray, right: np.ndarray) -> dict:
    """Compute mean probability, share of right answers and size of each bin."""
    p, parts = p.astype(float), bins_of_equal_mass(p)
    return {"p": [float(p[part].mean()) for part in parts], "right": [float(right[part].mean()) for part in parts],
            "queries": list(map(len, parts))}


def judge_order(confidence: np.ndarray, right: np.ndarray) -> dict:
    """AUROC, and in percent AURC and its value in a random order, "aurc_flat".
    As `metrics.risk_coverage`."""
    risk = risk_coverage(-confidence, right)
    return {"auroc": auroc(confidence, right), "aurc": risk["area"], "aurc_flat": risk["area_random"]}


def judge_probability(p: np.ndarray, right: np.ndarray) -> dict:
    """Judge a probability: {"brier", "nll" in nats, "ece", "ece_floor", "mean"}.
    ECE is the mean distance of mean probability and share of right answers in bins of equal mass. Its floor is the mean
    ECE that a perfectly calibrated p would show with so few queries: right answers drawn with these probabilities."""
    p, rng = p.astype(float), np.random.default_rng(0)
    happened = np.clip(np.where(right, p, 1 - p), LEAST, 1 - LEAST)
    rows = np.concatenate([right[None], rng.random((DRAWS, len(p))) < p])       # (1 + DRAWS, Q)
    errors = sum(abs(p[part].sum() - rows[:, part].sum(1)) for part in bins_of_equal_mass(p)) / len(p)
    return {"brier": float(np.mean((p - right) ** 2)), "nll": float(-np.log(happened).mean()),
            "ece": float(errors[0]), "ece_floor": float(errors[1:].mean()), "mean": float(p.mean())}
