"""How well a confidence tells right answers from wrong ones, and how far a probability can be taken
at its word.

Every function takes arrays of one number per query: confidence (Q,), where more is surer, or a
probability p (Q,) in [0, 1], and right (Q,) bool: whether the query's first answer is right. Shares
are in [0, 1].
"""
import numpy as np
import torch

from metrics import recall_in_bins, risk_coverage

BINS = 15                 # of equal mass, for the calibration error (Roelofs et al. 2022)
# of abstention (Gisserot-Boukhlef et al. 2024, arXiv 2402.12997)
RATES = np.linspace(0, 1, 11)[:-1]
CACHED = 2 ** 18          # weights that are summed at a time, 1 MiB: every pass finds them cached
LEAST = 1e-12             # a probability of 0 or 1 counts as this far from it in a logarithm
SAMPLES = 1000            # of the bootstrap over images
DRAWS = 200               # of the right answers that perfect probabilities would show


def levelled(values) -> np.ndarray:
    """Values (Q,) in which those that rounding alone tells apart are equal, for all that looks at
    their order: equal queries get numbers that differ in their last bits, by the product or the
    processor that made the scores.

    Neighbours in rising order join where the gap between them is at most a hundredth of deviation /
    Q. That is above the rounding of some hundred queries, where a tie counts, and joins few by
    chance however many there are.
    """
    order, result = np.argsort(values, kind="stable"), np.empty_like(values)
    rising = values[order].astype(float)
    begins = np.append(True, ~(np.diff(rising) <= rising.std() / (100 * len(rising))))
    result[order] = rising[begins][begins.cumsum() - 1]
    return result


def auroc(confidence, right) -> float:
    """The chance that a right answer has more confidence than a wrong one; ties count half. NaN
    where one is missing."""
    return float(aurocs(confidence, right, np.ones((1, len(right))))[0])


def aurocs(confidence, right, weights, owner=None) -> np.ndarray:
    """`auroc` under each row of weights (S, Q), or (S, N) of the images that owner (Q,) names ->
    (S,)."""
    order = np.argsort(confidence, kind="stable")
    hit, miss = order[right[order]], order[~right[order]]        # right and wrong ones, rising
    low, high = (np.searchsorted(confidence[miss], confidence[hit], side)
                 for side in ("left", "right"))
    hit, miss = (hit, miss) if owner is None else (owner[hit], owner[miss])
    values, step = [], max(1, CACHED // max(1, len(order)))
    for some in (weights[k:k + step] for k in range(0, len(weights), step)):
        sums = np.zeros((len(some), len(miss) + 1), some.dtype)
        torch.cumsum(torch.from_numpy(some.take(miss, 1)), 1, out=torch.from_numpy(sums)[:, 1:])
        hits, below = some.take(hit, 1), sums.take(low, 1)   # (s, hits) wrong answers below each
        if (low < high).any():
            below = (below + sums.take(high, 1)) / 2         # ties count half
        with np.errstate(invalid="ignore", divide="ignore"):
            values.append(np.einsum("sq,sq->s", hits, below) / (hits.sum(1) * sums[:, -1]))
    return np.concatenate(values)


def abstention_nauc(confidence, values) -> float:
    """The normalised area under the abstention curve, nAUC, as MTEB prints it: 0 for no knowledge,
    1 at best.

    At each of RATES the least confident queries are left out and the values (Q,), such as R@1 of
    each query, of the rest are averaged. The area under that curve is given from flat (0) to that
    of an order by the values themselves (1). NaN where the two are the same.
    """
    n = len(values)
    left_out = [min(round(rate * n), n - 1) for rate in RATES]

    def area(by):
        rest = np.cumsum(values[np.argsort(by, kind="stable")][::-1])[::-1]  # sums of what is left
        return np.trapezoid([rest[k] / (n - k) for k in left_out], RATES)
    flat, best = values.mean() * (RATES[-1] - RATES[0]), area(values)
    if np.isclose(best, flat, rtol=1e-12):
        return float("nan")
    return float((area(confidence) - flat) / (best - flat))


def coverage_at_risk(confidence, right, risk: float = 0.1) -> float:
    """The largest share of queries, the surest first, of whose answers at most `risk` are wrong; 0
    where none is.

    Queries of equal confidence are answered together.
    """
    order = np.argsort(confidence, kind="stable")[::-1]
    ranked = confidence[order]
    wrong, answered = np.cumsum(~right[order]), np.arange(1, len(order) + 1)
    whole = np.append(ranked[1:] != ranked[:-1], True)      # the last of those with this confidence
    return float(answered[whole & (wrong <= risk * answered)].max(initial=0) / len(order))


def steady_fall(confidence, right) -> tuple[float, float]:
    """Spearman's rho of ten bins and -S R2 (ProbVLM, Upadhyay et al. 2023): how steadily R@1 falls
    from the surest bin.

    rho is -1 where R@1 falls from every bin to the next. R2 is that of a straight line through the
    bins' recalls.
    """
    report = recall_in_bins(-confidence, right)
    recall, rho = report["recall"], report["rho"]
    if np.isnan(rho):
        return rho, rho
    r = np.corrcoef(np.arange(len(recall)), recall)[0, 1]
    return rho, float(-rho * r ** 2)


def _parts(p: np.ndarray) -> list[np.ndarray]:
    """The positions of each bin of equal mass, from the least p (Q,)."""
    return [part for part in np.array_split(np.argsort(p, kind="stable"), BINS) if len(part)]


def reliability(p, right) -> dict:
    """Mean probability, share of right answers and size of each bin of equal mass, for a
    reliability diagram."""
    p, parts = p.astype(float), _parts(p)
    return {"p": [float(p[part].mean()) for part in parts],
            "right": [float(right[part].mean()) for part in parts],
            "queries": list(map(len, parts))}


def ranking(confidence, right) -> dict:
    """What any confidence is judged by; NaN where all answers are right, or all wrong.

    AURC, its value in random order ("aurc_flat") and the excess over a perfect order ("e_aurc") are
    in percent, as `metrics.risk_coverage` has them.
    """
    risk = risk_coverage(-confidence, right)
    rho, minus_s_r2 = steady_fall(confidence, right)
    return {"auroc": auroc(confidence, right), "aurc": risk["area"],
            "aurc_flat": risk["area_random"], "e_aurc": risk["area"] - risk["area_best"],
            "nauc": abstention_nauc(confidence, right),
            "coverage_at_10": 100 * coverage_at_risk(confidence, right), "rho": rho,
            "minus_s_r2": minus_s_r2}


def probability(p, right) -> dict:
    """What a probability is judged by beyond `ranking`.

    Brier score: the mean squared distance from what happened. NLL: the mean negative log-likelihood
    of that, in nats. ECE: the mean distance of mean probability and share of right answers in bins
    of equal mass. Its floor: the ECE that a perfectly calibrated p would show with so few queries,
    its mean where right answers are drawn with these probabilities. And the mean of p.
    """
    p, rng = p.astype(float), np.random.default_rng(0)
    happened = np.clip(np.where(right, p, 1 - p), LEAST, 1 - LEAST)
    rows = np.concatenate([right[None], rng.random((DRAWS, len(p))) < p])       # (1 + DRAWS, Q)
    errors = sum(abs(p[part].sum() - rows[:, part].sum(1)) for part in _parts(p)) / len(p)
    return {"brier": float(np.mean((p - right) ** 2)), "nll": float(-np.log(happened).mean()),
            "ece": float(errors[0]), "ece_floor": float(errors[1:].mean()), "mean": float(p.mean())}


def interval(draws: np.ndarray) -> dict[str, float]:
    """{"low", "high"}: the 95% interval of the samples of a bootstrap."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return {"low": float(low), "high": float(high)}


def auroc_differences(confidences: dict[str, np.ndarray], right, owner,
                      pairs: list[tuple[str, str]]) -> dict[tuple[str, str], dict]:
    """How far the AUROC of one confidence is above that of another, for `pairs` of their names:
    {pair: {"difference", "low", "high"}}, with a 95% interval by a paired bootstrap over images.

    owner (Q,): the image that a query belongs to. Images are drawn with replacement, each with all
    its queries.
    """
    owner = np.unique(owner, return_inverse=True)[1]
    n, rng = owner.max() + 1, np.random.default_rng(0)
    weights = np.empty((SAMPLES, n), np.float32)            # how often each sample has each image
    for row in weights:
        row[:] = np.bincount(rng.integers(n, size=n), minlength=n)
    draws = {name: aurocs(of, right, weights, owner) for name, of in confidences.items()}
    known = ~np.isnan(draws[pairs[0][0]])       # the others are samples where all are right, or wrong
    point = {name: auroc(of, right) for name, of in confidences.items()}
    return {(a, b): {"difference": point[a] - point[b], **interval((draws[a] - draws[b])[known])}
            for a, b in pairs}
