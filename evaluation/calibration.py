"""Turns scores into probabilities: one temperature per direction, and monotone or linear maps fitted on the dev split.

The posterior of item j of a gallery for query q is p_qj = exp(T s_qj) / sum_k exp(T s_qk) (Hama et al. 2021, arXiv
1904.08504; temperature scaling of Guo et al. 2017). All fits see the dev split alone.
"""
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize, special

from cli import InputError

RIDGE = 1e-2                          # weight of the squares of the logistic's weights, beside the mean loss
CACHED = 2 ** 18                      # scores that are passed over at a time, 1 MiB: every pass finds them cached
NOTHING = -80.0                       # the exponential of less, 2e-35, is nothing beside 1, and slow to compute
SPREADS = (1e-3, 1e3)                 # temperatures are sought between these, in units of 1 / deviation of the scores


def masses(below: torch.Tensor, t: float) -> torch.Tensor:
    """exp(T (s - max s)) from s - max s, at most 0, of any shape: the posterior times a number that a query has."""
    return (t * below).clamp_(min=NOTHING).exp_()


def deviation(scores: torch.Tensor) -> float:
    """The root of the mean variance of a query's scores (Q, G), -inf left out."""
    outside = torch.isneginf(scores)
    if not outside.any():
        return float(scores.var(1, correction=0).mean().sqrt())
    inside = scores.masked_fill(outside, torch.nan)
    return float((inside - inside.nanmean(1, keepdim=True)).square().nanmean(1).mean().sqrt())


def temperature(scores: torch.Tensor, right: torch.Tensor, each: bool = False) -> float:
    """T = argmin_T -1/Q sum_q log sum_{j in right(q)} p_qj.

    scores (Q, G), where -inf is not in the gallery of the query; right (Q, G) bool, at least one in each row. With one
    right item per query the mean is convex in T.
    each: instead, the mean of -log p_qj over all right pairs. Then the posterior has to find all right items of a query
    and not only one, so it is wider where there are several.
    A grid on log T finds the neighbourhood of the minimum, and Brent's method the minimum itself, in float64: a loss is
    flat there, and the last bits of float32 would move T by 1e-3. Raises InputError where the scores do not differ, or
    where no T within SPREADS is best, which means that they do not tell what is right.
    """
    spread = deviation(scores)
    if not spread > 0:
        raise InputError("all scores of a query are equal, so no temperature fits them; check the embeddings")
    scores = scores - scores.amax(1, keepdim=True)                                  # at most 0
    parts = scores.split(max(1, CACHED // scores.shape[1]))
    query, of_right = right.nonzero()[:, 0], scores[right].double()                 # (P,)
    best = of_right.new_full((len(scores),), -torch.inf).scatter_reduce(0, query, of_right, "amax")     # (Q,)
    below_best = of_right - best[query]

    def loss(log_t: float, kind=torch.float64) -> float:
        t = float(np.exp(log_t))
        mass = torch.cat([masses(part.to(kind), t).sum(1) for part in parts]).double()
        if each:
            return float((mass.log()[query] - t * of_right).mean())
        mass_right = torch.zeros_like(mass).index_add_(0, query, masses(below_best, t))
        return float((mass.log() - t * best - mass_right.log()).mean())
    grid = np.linspace(*np.log(np.array(SPREADS) / spread), 41)
    losses = [loss(x, torch.float32) for x in grid]
    lowest = int(np.argmin(losses))
    if lowest in (0, len(grid) - 1):
        raise InputError("no temperature fits: the scores of the dev split do not tell which items are right (the best "
                         f"T is {'0' if lowest == 0 else 'infinite'}); train longer, or leave --confidence out")
    found = optimize.minimize_scalar(loss, bounds=(grid[lowest - 1], grid[lowest + 1]), method="bounded",
                                     options={"xatol": 1e-7})
    return float(np.exp(found.x))


class Isotonic(NamedTuple):
    """A rising map from a confidence to a probability: linear between knots, flat beyond them."""
    x: list[float]
    y: list[float]

    @classmethod
    def fit(cls, confidence, right) -> "Isotonic":
        """The rising map of least squares (pool adjacent violators), within [1 / (n + 2), (n + 1) / (n + 2)]."""
        x, which, n = *np.unique(confidence, return_inverse=True), len(confidence)
        size = np.bincount(which)
        y = optimize.isotonic_regression(np.bincount(which, np.asarray(right, float)) / size, weights=size).x
        y = np.clip(y, 1 / (n + 2), (n + 1) / (n + 2))
        kept = np.flatnonzero(np.append(True, y[1:] != y[:-1]) | np.append(y[1:] != y[:-1], True))     # ends of steps
        return cls(x[kept].tolist(), y[kept].tolist())

    def __call__(self, confidence) -> np.ndarray:
        return np.interp(confidence, self.x, self.y)


class Logistic(NamedTuple):
    """P(right) = sigmoid(w . z + b) of standardised features z (Q, F)."""
    names: list[str]
    mean: list[float]
    std: list[float]
    weights: list[float]
    bias: float

    @classmethod
    def fit(cls, features: dict[str, np.ndarray], right) -> "Logistic":
        """The minimum of the mean log loss + RIDGE |w|^2. A feature that is constant gets a weight of zero."""
        x = np.stack(list(features.values()), 1).astype(float)                      # (Q, F)
        mean, std = x.mean(0), x.std(0)
        std = np.where(std > 1e-9 * (1 + abs(mean)), std, np.inf)                   # z = 0: it says nothing
        z, y = np.c_[(x - mean) / std, np.ones(len(x))], np.asarray(right, float)
        penalty = 2 * RIDGE * np.append(np.ones(x.shape[1]), 0)
        w = np.zeros(z.shape[1])
        for _ in range(100):                                # Newton's method; the loss is strictly convex
            p = special.expit(z @ w)
            slope = z.T @ (p - y) / len(y) + penalty * w
            step = np.linalg.solve((z.T * (p * (1 - p))) @ z / len(y) + np.diag(penalty + 1e-9), slope)
            w -= step
            if abs(step).max() < 1e-10:
                break
        std = np.where(np.isinf(std), 0, std)               # JSON has no infinity; 0 stands for a feature unused
        return cls(list(features), mean.tolist(), std.tolist(), w[:-1].tolist(), float(w[-1]))

    def __call__(self, features: dict[str, np.ndarray]) -> np.ndarray:
        logit = np.full(len(next(iter(features.values()))), self.bias)
        for name, mean, std, weight in zip(self.names, self.mean, self.std, self.weights):
            if std:
                logit += weight * (features[name] - mean) / std
        return special.expit(logit)
