"""Retrieval metrics of arrays: scores, ranks or uncertainties.

Scores are higher-is-better. The rank of a query is the number of non-positive items that score at least as high as its
best positive. It is 0-based, and ties count against the model. A positive and another item are compared by their scores
in the same matrix. Scores of fewer bits than float32 are converted to float32 first (in bfloat16, 13% of rows hold
ties).
"""
from typing import NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from cli import check
from losses import Embedding, cosine, dot, unit

RECALLS = (1, 5, 10)
SCORES = 2 ** 23                      # of a block, 32 MiB
# Vectors with a largest number between these are squared by float32, and normalised by losses.unit, without loss.
SMALLEST_SQUARABLE, LARGEST_SQUARABLE = 1e-5, 1e18
MOST_SCORES = 2 ** 28                 # that are held at once, 1 GiB
ROWS = 64                             # images that are ranked at once: the processor's cache holds them; below 256
NOT_FINITE = ("the scores hold NaN or infinity, or numbers beyond float32, so they cannot be "
              "ranked; check them, or the means and variances that they are of")


# ---- queries with several positives: scores (Q, G); positives as pairs of indices, query (P,), rising, and item (P,)

def best_ranks(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Compute the 0-based rank (Q,) of each query's best positive, or -1 without one.
    A score of -inf keeps an item, such as the query itself, out of the gallery of a query."""
    score = scores[query, item]                                                     # (P,)
    best = np.full(len(scores), -np.inf, scores.dtype)
    np.maximum.at(best, query, score)
    positives = np.bincount(query[score >= best[query]], minlength=len(scores))
    return np.where(np.isneginf(best), -1, np.count_nonzero(scores >= best[:, None], axis=1) - positives)


def average_precisions(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """AP@R (Q,) in [0, 1]; NaN without a positive.
    (1 / R) sum_{k <= R} (precision@k if item k is positive, else 0), R the number of the query's positives. The mean
    over queries is mAP@R (ECCV Caption, Chun et al. 2022). Of items that tie, non-positives stand first."""
    result = np.full(len(scores), np.nan)
    bounds = np.searchsorted(query, np.arange(len(scores) + 1))
    for q in np.flatnonzero(np.diff(bounds)):
        row, own = scores[q], item[bounds[q]:bounds[q + 1]]
        r, positive = len(own), np.zeros(len(row), bool)
        positive[own] = True
        near = np.flatnonzero(row >= np.partition(row, len(row) - r)[len(row) - r])     # and ties with the last
        hits = positive[near[np.lexsort((positive[near], -row[near]))][:r]]
        result[q] = (hits * hits.cumsum() / np.arange(1, r + 1)).sum() / r
    return result


def ndcgs(scores: np.ndarray, query: np.ndarray, item: np.ndarray, k: int = 10) -> np.ndarray:
    """nDCG@k (Q,) in [0, 1] of items that are right or not; NaN without a positive.

    sum over the positives among the k best of 1 / log2(1 + rank), by its largest possible value
    (Jaervelin and Kekaelaeinen 2002). Of items that tie, non-positives stand first.
    """
    result = np.full(len(scores), np.nan)
    discount = 1 / np.log2(np.arange(2, k + 2))                                     # (k,)
    bounds = np.searchsorted(query, np.arange(len(scores) + 1))
    for q in np.flatnonzero(np.diff(bounds)):
        row = scores[q]
        own = item[bounds[q]:bounds[q + 1]]
        positive = np.zeros(len(row), bool)
        positive[own] = True
        positive &= row > -np.inf                           # such items are not in the gallery
        depth = min(k, len(row))
        limit = np.partition(row, len(row) - depth)[len(row) - depth]
        near = np.flatnonzero(row >= limit)                 # the best, and ties with the last
        hits = positive[near[np.lexsort((positive[near], -row[near]))][:depth]]
        best = discount[:min(k, len(own))].sum()
        result[q] = (hits * discount[:depth]).sum() / best
    return result


def r_precisions(scores: np.ndarray, sets) -> list[np.ndarray]:
    """Compute the shares (Q,) of positives among the R best items of each query.
    R is the number of its positives (`ucmr` 4.3).
    sets: several sets of positives, each (query (P,), item (P,)). Returns an array for each, with NaN for a query
    without positives. Items that tie with the R-th largest score t fill the places left, non-positives first."""
    n, gallery = scores.shape
    counts = np.array([np.bincount(query, minlength=n) for query, _ in sets])       # (sets, Q): R
    place = gallery - np.maximum(counts, 1)                                         # of the R-th largest, rising
    limits = np.array([np.partition(row, at)[at] for row, at in zip(scores, place.T)]).T.reshape(len(sets), n)
    results = []
    for count, t, (query, item) in zip(counts, limits, sets):
        score = scores[query, item]
        above, tied = (np.bincount(query[which], minlength=n) for which in (score > t[query], score == t[query]))
        places = count - np.count_nonzero(scores > t[:, None], axis=1)
        others = np.count_nonzero(scores == t[:, None], axis=1) - tied
        results.append(np.where(count > 0, (above + np.maximum(0, places - others)) / np.maximum(count, 1), np.nan))
    return results


# ---- ranks, and their summaries

def summary(ranks) -> dict:
    """Summarise 0-based ranks (Q,): recalls in percent, 1-based median and mean rank.
    Raises InputError where there is no query."""
    ranks = np.asarray(ranks)
    check(len(ranks), "there are no queries to summarise")
    return {**{f"r{k}": float(100 * np.mean(ranks < k)) for k in RECALLS},
            "medr": float(np.floor(np.median(ranks)) + 1), "meanr": float(ranks.mean() + 1),
            "queries": len(ranks)}


def best_rank_means(ranks) -> dict:
    """Average 1-based ranks, harmonic and arithmetic mean: HBR and ABR of `dmsm` 4.2.
    ranks (Q,): 0-based ranks of the best positives of images."""
    places = np.asarray(ranks, dtype=float) + 1
    return {"hbr": float(len(places) / (1 / places).sum()), "abr": float(places.mean())}


def both_directions(i2t: dict, t2i: dict) -> dict:
    """Join summaries of images and captions with rsum, the sum of their six recalls."""
    return {"i2t": i2t, "t2i": t2i, "rsum": sum(result[f"r{k}"] for result in (i2t, t2i) for k in RECALLS)}


def chance(caption_image, n_images: int) -> dict:
    """Compute expected results of galleries in random order, as `both_directions`.
    The best of c positives among G items has rank k or more (0-based) with probability prod_{j < k} (G - c - j) /
    (G - j). "medr" is the median over all queries and orders. caption_image (M,): the row of each caption's image.
    Images without a caption do not count as queries."""
    captions, results = np.bincount(caption_image, minlength=n_images), []          # (N,) of each image
    for positives, gallery in ((captions[captions > 0], len(caption_image)), (np.ones_like(caption_image), n_images)):
        counts, share = np.unique(positives, return_counts=True)
        share, j = share / share.sum(), np.arange(gallery)                          # (U,), (G,)
        above = np.cumprod(np.clip((gallery - counts[:, None] - j) / (gallery - j), 0, 1), axis=1)      # (U, G)
        at_most = 100 * (1 - share @ above)                                         # (G,): rank at most j, percent
        results.append({**{f"r{k}": float(at_most[min(k, gallery) - 1]) for k in RECALLS},
                        "medr": float(1 + np.argmax(at_most >= 50 - 1e-9)),
                        "meanr": float(1 + share @ ((gallery - counts) / (counts + 1))), "queries": len(positives)})
    return both_directions(*results)


def average(results: list[dict]) -> dict:
    """Mean of every number over several results, such as five folds; sum of "queries"."""
    def mean(values, key):
        if isinstance(values[0], dict):
            return {k: mean([v[k] for v in values], k) for k in values[0]}
        return sum(values) if key == "queries" else float(np.mean(values))
    return mean(results, "")


def scale_rows(x: Tensor) -> Tensor:
    """Multiply rows (N, D) by powers of two where float32 cannot square their numbers.

    Their directions stay, to the bit; other rows and rows of zeros stay as they are.
    """
    largest = x.abs().amax(1, keepdim=True)                                         # (N, 1)
    odd = (largest > 0) & ((largest < SMALLEST_SQUARABLE) | (largest > LARGEST_SQUARABLE))
    if not odd.any():
        return x
    exponent = torch.frexp(largest).exponent.clamp(-1000, 1000)                     # 2^1000 is a float64
    scaled = torch.ldexp(x.double(), -exponent).to(x.dtype)
    return torch.where(odd, scaled, x)


@torch.no_grad()
def score_blocks(members, block: int):
    """Yield (rows, scores (b, M)) of blocks of images against all captions.
    Scores are the mean over models (the papers' ensembles). members: (similarity, images, captions) of each model,
    the `Embedding` of N images and of M captions."""
    n = len(members[0][1].mean)
    # the cosine as an inner product of unit vectors, which no block has to normalise again
    members = [(dot, *(Embedding(unit(scale_rows(e.mean))) for e in sides)) if similarity is cosine else
               (similarity, *sides) for similarity, *sides in members]
    for start in range(0, n, block):
        rows = slice(start, min(n, start + block))
        scores, *others = (similarity(images.rows(rows), captions) for similarity, images, captions in members)
        yield rows, sum(others, scores) / len(members) if others else scores       # (b, M)


def score_matrix(members) -> np.ndarray:
    """Scores (N, M) of `score_blocks` in float32, of SCORES at once."""
    n, m = (len(e.mean) for e in members[0][1:])
    if n <= 1 + SCORES // m:
        return next(read_blocks(members))[1]
    scores = np.empty((n, m), np.float32)
    for rows, part in read_blocks(members):
        scores[rows] = part
    return scores


def ranks(scores, caption_image) -> tuple[np.ndarray, np.ndarray]:
    """Compute 0-based ranks of images (N,), -1 without captions, and of captions (M,).
    scores (N, M): an array or tensor; caption_image (M,): the row of each caption's image. Raises InputError where
    there are no captions, where caption_image names other rows, and on scores that are not finite."""
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy()
    scores, owner = np.asarray(scores), np.asarray(caption_image, np.int64)         # (N, M), (M,)
    n, m = len(scores), len(owner)
    check(m, "there are no captions to rank")
    check(0 <= owner.min() and owner.max() < n,
          f"caption_image holds {owner.min()} to {owner.max()}; there are images 0 to {n - 1}")
    own = check_finite(scores[owner, np.arange(m)])                                       # (M,)
    return count_ranks([(slice(0, n), scores)], own, owner, n)


def count_ranks(blocks, own: np.ndarray, owner: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute 0-based ranks of images (N,), -1 without captions, and of captions (M,), from blocks of scores.

    Args:
        blocks: (rows, scores (b, M)) of slices of the N images.
        own: the score of each caption with its own image (M,).
        owner: the row of each caption's image (M,).
        n: number of images.
    """
    best = best_of_images(own, owner, n)                                            # (N,)
    i2t = -np.bincount(owner[own == best[owner]], minlength=n)
    t2i = np.full(len(owner), -1)
    for rows, scores in blocks:
        for start in range(rows.start, rows.stop, ROWS):
            here = slice(start, min(start + ROWS, rows.stop))
            part = check_finite(scores[here.start - rows.start:here.stop - rows.start])   # (b, M)
            i2t[here] += (part >= best[here, None]).sum(1)
            t2i += (part >= own).view(np.uint8).sum(0, dtype=np.uint8)              # at most ROWS
    i2t[best == -np.inf] = -1
    return i2t, t2i


def best_of_images(own: np.ndarray, owner: np.ndarray, n: int) -> np.ndarray:
    """Largest score of each image with a caption of its own, own (M,): (n,), -inf without any."""
    best = np.full(n, -np.inf, own.dtype)
    np.maximum.at(best, owner, own)
    return best


def count_ties(scores: np.ndarray, caption_image, i2t: np.ndarray, t2i: np.ndarray) -> dict:
    """Count queries with ties that lower their rank, and R@1 if ties counted for the model.

    scores (N, M), caption_image (M,); i2t (N,), t2i (M,): of `ranks`. Returns {direction:
    {"queries", "r1"}} of directions that have ties.
    """
    owner = np.asarray(caption_image, np.int64)
    own = scores[owner, np.arange(len(owner))]                                      # (M,)
    best = best_of_images(own, owner, len(scores))                                  # (N,)
    above_i2t = np.zeros_like(i2t)
    above_t2i = np.zeros_like(t2i)
    for start in range(0, len(scores), ROWS):
        rows = slice(start, start + ROWS)
        above_i2t[rows] = (scores[rows] > best[rows, None]).sum(1)
        above_t2i += (scores[rows] > own).sum(0)

    result = {}
    for side, ranked, above in (("i2t", i2t, above_i2t), ("t2i", t2i, above_t2i)):
        asked = ranked >= 0
        tied = int((above[asked] < ranked[asked]).sum())
        if tied:
            result[side] = {"queries": tied, "r1": float(100 * np.mean(above[asked] < 1))}
    return result


def rank_members(members, caption_image) -> tuple[np.ndarray, np.ndarray]:
    """Compute `ranks` of the scores of `score_blocks`, and hold no more than MOST_SCORES of them.
    Of more, dmsm's 20,252 x 101,260 take 8 GB. They are computed twice: the first time for the scores of each caption
    with its own image, which the others are compared with."""
    n, m = (len(e.mean) for e in members[0][1:])
    if n * m <= MOST_SCORES:
        return ranks(score_matrix(members), caption_image)

    owner = np.asarray(caption_image, np.int64)
    own = np.empty(m, np.float32)

    def find_own(rows: slice) -> tuple[tuple, np.ndarray]:
        """Places in a block of the scores of captions with their own images, and these captions."""
        captions = np.flatnonzero((owner >= rows.start) & (owner < rows.stop))
        return (owner[captions] - rows.start, captions), captions

    def compute_again():
        """Yield the blocks, in which own scores are what they were, to the last bit."""
        for rows, scores in read_blocks(members):
            places, captions = find_own(rows)
            scores[places] = own[captions]
            yield rows, scores

    for rows, scores in read_blocks(members):
        places, captions = find_own(rows)
        own[captions] = scores[places]
    return count_ranks(compute_again(), check_finite(own), owner, n)


def read_blocks(members):
    """Yield (rows, scores (b, M)) of `score_blocks` as arrays in float32, SCORES at once."""
    block = 1 + SCORES // len(members[0][2].mean)
    for rows, scores in score_blocks(members, block):
        yield rows, scores.float().cpu().numpy()


def check_finite(scores: np.ndarray) -> np.ndarray:
    """Scores in float32 or more. Raises InputError where one is not finite."""
    scores = np.asarray(scores, np.promote_types(scores.dtype, np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        total = scores.sum()                                # faster than a look at each
    check(np.isfinite(total) or np.isfinite(scores).all(), NOT_FINITE)
    return scores


def retrieval(scores, caption_image) -> dict:
    """Compute image-to-text and text-to-image recall of a whole score matrix.
    scores (N, M): images x captions; caption_image (M,): the row of each caption's image, in any order, with any number
    of captions per image. Returns {"i2t": {"r1", "r5", "r10", "medr", "meanr", "queries"}, "t2i": {...}, "rsum"} in
    percent and 1-based ranks. Images without captions do not count as queries. Raises InputError, a ValueError, on
    scores that are not finite or of another shape."""
    check(len(scores.shape) == 2 and scores.shape[1] == len(caption_image),
          f"scores of shape {tuple(scores.shape)} do not fit {len(caption_image)} captions; rows are images, columns "
          "captions")
    i2t, t2i = ranks(scores, caption_image)
    return both_directions(summary(i2t[i2t >= 0]), summary(t2i))


def spearman(x, y) -> float:
    """Compute Spearman's rank correlation of x (K,) and y (K,) in [-1, 1].
    Ties get their mean rank. NaN where x or y is constant."""
    return spearman_of_codes(*(np.unique(v, return_inverse=True)[1] for v in (x, y)))


def spearman_of_codes(x: np.ndarray, y: np.ndarray) -> float:
    """Compute `spearman` of whole numbers from 0, by counting instead of sorting."""
    ranked = []
    for number in (x, y):
        count = np.bincount(number)
        ranked.append((np.cumsum(count) - (count - 1) / 2)[number] - (len(number) + 1) / 2)
    norm = np.sqrt((ranked[0] ** 2).sum() * (ranked[1] ** 2).sum())
    return float((ranked[0] * ranked[1]).sum() / norm) if norm > 0 else float("nan")


def rank_correlations(codes: list[np.ndarray], weight: np.ndarray) -> np.ndarray:
    """Compute Spearman's correlations of V variables of K items: (V, V), NaN where one is constant.

    codes: whole numbers from 0 (K,) in the order of the values, as np.unique(..., return_inverse=True)
    gives them. weight (K,): how often each item counts, as in a bootstrap sample.
    """
    centred = []
    for code in codes:
        count = np.bincount(code, weight)
        mean_rank = np.cumsum(count) - (count - 1) / 2
        rank = mean_rank[code]
        centred.append(rank - np.average(rank, weights=weight))

    centred = np.array(centred)                                                     # (V, K)
    covariance = (centred * weight) @ centred.T
    deviation = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        return covariance / np.outer(deviation, deviation)


def partial_correlation(correlation: np.ndarray, x: int, y: int, given: list[int]) -> float:
    """Compute the partial correlation of two variables given others, from all correlations (V, V).

    It is the correlation of what is left of each after a linear regression on the others. NaN where a
    variable is constant or follows from the others.
    """
    chosen = [x, y, *given]
    part = correlation[np.ix_(chosen, chosen)]
    if not np.isfinite(part).all() or np.linalg.cond(part) > 1e10:
        return float("nan")
    precision = np.linalg.inv(part)
    return float(-precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1]))


def sampled_spearman(query, x, y, samples: int = 1000, seed: int = 0) -> dict:
    """Compute Spearman's correlation over bootstrap samples of rated pairs.
    Mean and standard deviation (Parekh et al. 2021).
    query (K,), x (K,), y (K,): the item that each pair was rated for, its rating and its score. A sample takes half of
    the items, and one pair of each. "shuffled" is the first sample's with its scores in random order, as by chance."""
    order = np.argsort(query, kind="stable")
    x, y = (np.unique(np.asarray(v)[order], return_inverse=True)[1] for v in (x, y))
    _, start, count = np.unique(np.asarray(query)[order], return_index=True, return_counts=True)
    rng, values, control = np.random.default_rng(seed), [], float("nan")
    for _ in range(samples):
        items = rng.choice(len(start), max(2, len(start) // 2), replace=False, shuffle=False)
        pair = start[items] + rng.integers(count[items])
        values.append(spearman_of_codes(x[pair], y[pair]))
        control = control if len(values) > 1 else spearman_of_codes(x[pair], rng.permutation(y[pair]))
    return {"spearman": float(np.mean(values)), "std": float(np.std(values)), "shuffled": control,
            "pairs": len(x), "items": len(start)}


# ---- uncertainty

def recall_in_bins(uncertainty, hits, bins: int = 10) -> dict:
    """Compute recall, percent, in equal bins from certain to uncertain (PCME++ 4.3).
    uncertainty (Q,), hits (Q,) bool. "rho" is Spearman's correlation of the number of the bin and its recall (-1:
    recall falls with every bin), "rho_queries" that of uncertainty and hit of single queries."""
    order = np.argsort(uncertainty, kind="stable")
    means, shares = ([float(part.mean()) for part in np.array_split(x, bins) if len(part)]
                     for x in (np.asarray(v, dtype=float)[order] for v in (uncertainty, hits)))
    recall = [100 * share for share in shares]
    return {"uncertainty": means, "recall": recall, "rho": spearman(np.arange(len(recall)), recall),
            "rho_queries": spearman(uncertainty, hits)}


def join_rounded(values) -> np.ndarray:
    """Make values (Q,) equal that differ by rounding, as those of equal queries do.
    Neighbours in rising order join where the gap between them is at most a hundredth of deviation / Q. That is above
    the rounding of some hundred queries, where a tie counts, and joins few by chance however many there are."""
    order, result = np.argsort(values, kind="stable"), np.empty_like(values)
    rising = values[order].astype(float)
    begins = np.append(True, ~(np.diff(rising) <= rising.std() / (100 * len(rising))))
    result[order] = rising[begins][begins.cumsum() - 1]
    return result


def risk_coverage(uncertainty, hits, points: int = 100) -> dict:
    """Compute the risk if only the queries of least uncertainty are answered.
    uncertainty (Q,), hits (Q,) bool -> coverage (points,), the share of queries that are answered, and risk (points,),
    the share of wrong answers among those given, in percent. "area" is the mean risk over all coverages 1/Q ... 1
    (AURC, Geifman and El-Yaniv 2017), "area_random" that of a random and "area_best" that of a perfect order. Ties in
    uncertainty share their wrong answers evenly."""
    wrong = 1 - np.asarray(hits, dtype=float)
    _, group, size = np.unique(uncertainty, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(group, wrong) / size, size)             # by rising uncertainty
    answers = np.arange(1, len(wrong) + 1)
    risk = 100 * np.cumsum(expected) / answers
    at = np.unique(np.linspace(0, len(wrong) - 1, points).astype(int))
    return {"coverage": (answers[at] / len(wrong)).tolist(), "risk": risk[at].tolist(),
            "area": float(risk.mean()), "area_random": float(100 * wrong.mean()),
            "area_best": float(100 * (np.cumsum(np.sort(wrong)) / answers).mean())}


def paired_bootstrap(a: dict | list[dict], b: dict | list[dict], sums: dict, samples: int = 10000,
                     seed: int = 0, pairs: bool = False) -> dict:
    """Test the difference between two models by a paired bootstrap over images.

    a, b: one run of each model, or a list of its runs with several seeds. A run is {metric: (total (N,), count (N,))}:
    for each image, the sum over its queries and their number. The metric is total.sum() / count.sum(), as for a recall
    or a mean rank. sums: {name: metrics to add up}, such as rsum. Returns {metric: {"a", "b", "difference" (b - a),
    "low" and "high" (95% interval), "p" (two-sided), "least" (true where no sample was on the other side; then p is at
    most the number given)}}.

    Images are resampled with replacement, each with all its queries, and every run gets the same sample. Several seeds
    of a model are resampled too (a hierarchical bootstrap). Few seeds show too little of their spread: S - 1 of S are
    drawn (Rao and Wu 1988), and their distance from the mean of all is stretched by Student's t. One run says nothing
    about other seeds, so its interval covers the choice of images alone. pairs: a[s] and b[s] are of one seed, so the
    same seeds are drawn of both, and what a seed does to both sides is not part of the interval.
    """
    a, b = ([side] if isinstance(side, dict) else side for side in (a, b))
    runs = [*a, *b]
    names = [name for name in runs[0] if all(name in run for run in runs)]
    n = len(runs[0][names[0]][0])
    table = np.array([[run[name] for name in names] for run in runs], dtype=np.float64)             # (S, K, 2, N)
    flat = table.reshape(-1, n).T                                                   # (N, 2 S K)
    rng, draws, step = np.random.default_rng(seed), [], max(1, 2 ** 22 // n)
    for done in range(-1, samples, step):                           # the first row: each image once
        rows = min(step, samples - done)
        weight = np.array([np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(rows)], dtype=np.float64)
        if done < 0:
            weight[0] = 1
        total, count = np.moveaxis((weight @ flat).reshape(rows, len(runs), len(names), 2), 3, 0)   # (rows, S, K)
        with np.errstate(invalid="ignore"):          # NaN where no image that was drawn has a query
            draws.append(total / count)
    draws = np.concatenate(draws)                                              # (1 + samples, S, K)
    picks, again = (np.random.default_rng([seed, 1]) for _ in range(2))
    freedom = len(a) - 1 if pairs else len(runs) - 2
    stretch = special.stdtrit(freedom, 0.975) / special.ndtri(0.975) if freedom else 1.0
    first = _with_other_seeds(draws[:, :len(a)], picks, stretch)
    second = _with_other_seeds(draws[:, len(a):], again if pairs else picks, stretch)
    columns = {name: (first[:, k], second[:, k]) for k, name in enumerate(names)}
    for name, terms in sums.items():
        columns[name] = tuple(sum(columns[term][side] for term in terms) for side in (0, 1))
    return {name: _interval(x[0], y[0], y[1:] - x[1:]) for name, (x, y) in columns.items()}


def _with_other_seeds(draws: np.ndarray, rng, stretch: float) -> np.ndarray:
    """Average each draw of images over seeds: (1 + samples, S, K) -> (1 + samples, K).
    Several seeds are drawn too, except for the first row. `stretch`: see `paired_bootstrap`."""
    mean, seeds = draws.mean(1), draws.shape[1]
    if seeds > 1:
        picked = rng.integers(seeds, size=(len(draws) - 1, seeds - 1))
        of_picked = draws[np.arange(1, len(draws))[:, None], picked].mean(1)        # (samples, K)
        mean[1:] += stretch * (of_picked - mean[1:])
    return mean


def _interval(a: float, b: float, differences: np.ndarray) -> dict:
    """Summarise differences (samples,) of `paired_bootstrap` for one metric."""
    differences = differences[~np.isnan(differences)]
    low, high = np.percentile(differences, [2.5, 97.5])
    tail = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return {"a": float(a), "b": float(b), "difference": float(b - a), "low": float(low),
            "high": float(high), "p": float(min(1, 2 * (tail + 1) / (len(differences) + 1))),
            "least": bool(tail == 0)}


# ---- the probability that a pair fits, by its score

class Sigmoid(NamedTuple):
    """Probability that a photo fits a caption: sigmoid(slope s + bias + log_det v).
    s is their score and v the mean log-variance of the caption; log_det is 0 where captions are points."""
    slope: float
    bias: float
    log_det: float = 0.0

    def __call__(self, s, v=0.0) -> Tensor:
        return torch.as_tensor(self.slope * s + self.bias + self.log_det * v).sigmoid()

    @classmethod
    def fit(cls, s, right, votes=None, v=None) -> "Sigmoid":
        """Fit by the least mean log loss (Platt 1999) to K pairs.
        s, v (K,): scores and, where given, log-variances; right (K,) in [0, 1]; votes (K,): how often a pair counts."""
        x = torch.stack([torch.as_tensor(values) for values in (s, v) if values is not None])       # (F, K)
        (slope, *log_det), bias = fit_logistic(x, right, votes)
        return cls(slope, bias, *log_det)


def fit_logistic(x: Tensor, y, count=None) -> tuple[list[float], float]:
    """Fit weights (F,) and bias of p = sigmoid(w . x + b) by the least mean log loss.
    x (F, K), y (K,) in [0, 1], count (K,): how often each counts. Newton's method in float64; the loss is convex."""
    x, y = x.double(), torch.as_tensor(y).double()
    n = torch.ones_like(y) if count is None else torch.as_tensor(count).double()
    mean, std, share = x.mean(1), x.std(1, correction=0), float((n * y).sum() / n.sum())
    check((std > 0).all() and 0 < share < 1,
          "all scores are equal, or all pairs right or wrong, so no probability of a pair fits them")
    z = torch.cat([(x - mean[:, None]) / std[:, None], torch.ones_like(y)[None]])   # (F + 1, K)
    w = z.new_zeros(len(z))
    w[-1] = torch.tensor(share).logit()
    for _ in range(100):
        p = (w @ z).sigmoid()
        hessian = (z * (n * p * (1 - p) + 1e-9)) @ z.T
        step = torch.linalg.solve(hessian, z @ (n * (p - y)))
        w = w - step.clamp(-5, 5)
        if step.abs().max() < 1e-9:
            break
    weights = w[:-1] / std
    return weights.tolist(), float(w[-1] - weights @ mean)
