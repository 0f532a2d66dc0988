"""Retrieval metrics of arrays: scores, ranks or uncertainties.

Scores are higher-is-better. The rank of a query is the number of non-positive items that score at
least as high as its best positive. It is 0-based, and ties count against the model. A positive and
another item are compared by their scores in the same matrix. Scores of fewer bits than float32 are
converted to float32 first (in bfloat16, 13% of rows hold ties).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize, special
from torch import Tensor

from losses import Embedding, cosine, dot, unit
from utils import InputError

RECALLS = (1, 5, 10)
SCORES_PER_BLOCK = 2**23  # 32 MiB
# Vectors with a largest number between these are squared by float32, and normalized by losses.unit,
# without loss.
SMALLEST_SQUARABLE = 1e-5
LARGEST_SQUARABLE = 1e18
MAX_SCORES_HELD = 2**28  # 1 GiB
# Images that are ranked at once: the processor's cache holds them. Below 256, so that a number of
# them fits a byte.
ROWS_PER_BLOCK = 64
SPREADS = (1e-3, 1e3)  # bounds of a temperature times the deviation of the scores
POINTS_OF_GRID = 41  # of temperatures, from one bound to the other
# Bootstrap samples are computed in blocks of at most so many numbers.
CODES_OF_SAMPLES = 2**14  # to rank, 128 KiB
WEIGHTS_OF_SAMPLES = 2**18  # of queries, 2 MiB
CALIBRATED_DRAWS = 200  # of right answers, for the ECE of a perfectly calibrated model
NOT_FINITE = (
    "the scores hold NaN or infinity, or numbers beyond float32, so they cannot be "
    "ranked; check them, or the means and variances that they are of"
)


# ---- boxes


def box_areas(boxes: np.ndarray) -> np.ndarray:
    """Count the pixels of boxes x1, y1, x2, y2, both corners inside: (..., 4) -> (...,) float64."""
    boxes = np.asarray(boxes, np.float64)
    sides = boxes[..., 2:] - boxes[..., :2] + 1
    return np.prod(sides, -1)


def box_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the intersection over union of boxes: (n, 4), (m, 4) -> (n, m) float64 in [0, 1].

    Boxes are x1, y1, x2, y2 in pixels, and both corners are inside, as in Flickr30k Entities
    (Plummer et al. 2017).
    """
    a = np.asarray(a, np.float64)[:, None]  # (n, 1, 4)
    b = np.asarray(b, np.float64)[None]  # (1, m, 4)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + 1
    shared = np.prod(np.maximum(sides, 0), -1)  # (n, m)
    return shared / (box_areas(a) + box_areas(b) - shared)


# ---- queries with several positives: scores (Q, G) of queries and the items of their gallery;
# ---- positives are pairs of indices, query (P,), rising, and item (P,)


def best_ranks(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Compute the 0-based rank (Q,) of each query's best positive, or -1 without one.

    A score of -inf keeps an item, such as the query itself, out of the gallery of a query.
    """
    score = scores[query, item]  # (P,)
    best = np.full(len(scores), -np.inf, scores.dtype)  # (Q,)
    np.maximum.at(best, query, score)

    # positives that score as high as the best, itself among them, do not count against it
    positives = np.bincount(query[score >= best[query]], minlength=len(scores))
    at_least = np.count_nonzero(scores >= best[:, None], axis=1)
    return np.where(np.isneginf(best), -1, at_least - positives)


def average_precisions(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Compute AP@R (Q,) in [0, 1]; NaN without a positive.

    (1 / R) sum_{k <= R} (precision@k if item k is positive, else 0), R the number of the query's
    positives. The mean over queries is mAP@R (ECCV Caption, Chun et al. 2022).
    """
    result = np.full(len(scores), np.nan)
    bounds = np.searchsorted(query, np.arange(len(scores) + 1))
    for q in np.flatnonzero(np.diff(bounds)):
        own = item[bounds[q] : bounds[q + 1]]
        r = len(own)
        positive = np.zeros(scores.shape[1], bool)
        positive[own] = True

        hits = positive[best_items(scores[q], positive, r)]
        rank = np.arange(1, r + 1)
        result[q] = (hits * hits.cumsum() / rank).sum() / r
    return result


def ndcgs(scores: np.ndarray, query: np.ndarray, item: np.ndarray, k: int = 10) -> np.ndarray:
    """Compute nDCG@k (Q,) in [0, 1] of items that are right or not; NaN without a positive.

    sum over the positives among the k best of 1 / log2(1 + rank), by its largest possible value
    (Jaervelin and Kekaelaeinen 2002).
    """
    result = np.full(len(scores), np.nan)
    discount = 1 / np.log2(np.arange(2, k + 2))  # (k,)
    bounds = np.searchsorted(query, np.arange(len(scores) + 1))
    for q in np.flatnonzero(np.diff(bounds)):
        row = scores[q]
        own = item[bounds[q] : bounds[q + 1]]
        positive = np.zeros(len(row), bool)
        positive[own] = True
        positive &= row > -np.inf  # such items are not in the gallery

        depth = min(k, len(row))
        hits = positive[best_items(row, positive, depth)]
        best = discount[: min(k, len(own))].sum()
        result[q] = (hits * discount[:depth]).sum() / best
    return result


def best_items(scores: np.ndarray, positive: np.ndarray, depth: int) -> np.ndarray:
    """Find the `depth` best items of a query, (depth,) positions, from the best one on.

    Of items that tie, non-positives stand first. scores (G,), positive (G,) bool.
    """
    position = len(scores) - depth
    limit = np.partition(scores, position)[position]
    near = np.flatnonzero(scores >= limit)  # the best, and ties with the last
    order = np.lexsort((positive[near], -scores[near]))
    return near[order][:depth]


def r_precisions(scores: np.ndarray, sets) -> list[np.ndarray]:
    """Compute the shares (Q,) of positives among the R best items of each query.

    R is the number of its positives (`ucmr` 4.3). sets: several sets of positives, each
    (query (P,), item (P,)). Returns an array for each, with NaN for a query without positives.
    Items that tie with the R-th largest score t fill the ranks left, non-positives first.
    """
    n, gallery = scores.shape
    counts = np.array([np.bincount(query, minlength=n) for query, _ in sets])  # (sets, Q): R

    # one partition of a row serves all sets
    position = gallery - np.maximum(counts, 1)  # (sets, Q), of the R-th largest, rising
    limits = []
    for row, at in zip(scores, position.T):
        limits.append(np.partition(row, at)[at])
    limits = np.array(limits).T.reshape(len(sets), n)

    results = []
    for count, t, (query, item) in zip(counts, limits, sets):
        score = scores[query, item]  # (P,)
        above = np.bincount(query[score > t[query]], minlength=n)
        tied = np.bincount(query[score == t[query]], minlength=n)

        ranks_left = count - np.count_nonzero(scores > t[:, None], axis=1)
        others = np.count_nonzero(scores == t[:, None], axis=1) - tied
        hits = above + np.maximum(0, ranks_left - others)
        share = hits / np.maximum(count, 1)
        results.append(np.where(count > 0, share, np.nan))
    return results


# ---- ranks, and their summaries


def summary(ranks) -> dict:
    """Summarize 0-based ranks (Q,): recalls in percent, 1-based median and mean rank.

    Raises InputError where there is no query.
    """
    ranks = np.asarray(ranks)
    if not len(ranks):
        raise InputError("there are no queries to summarize")

    result = {}
    for k in RECALLS:
        result[f"r{k}"] = float(100 * np.mean(ranks < k))
    result["medr"] = float(np.floor(np.median(ranks)) + 1)
    result["meanr"] = float(ranks.mean() + 1)
    result["queries"] = len(ranks)
    return result


def best_rank_means(ranks) -> dict:
    """Average 1-based ranks, harmonic and arithmetic mean: HBR and ABR of `dmsm` 4.2.

    ranks (Q,): 0-based ranks of the best positives of images.
    """
    from_one = np.asarray(ranks, dtype=float) + 1
    harmonic = len(from_one) / (1 / from_one).sum()
    return {"hbr": float(harmonic), "abr": float(from_one.mean())}


def both_directions(i2t: dict, t2i: dict) -> dict:
    """Join summaries of images and captions with rsum, the sum of their six recalls."""
    recalls = [i2t[f"r{k}"] for k in RECALLS]
    recalls += [t2i[f"r{k}"] for k in RECALLS]
    return {"i2t": i2t, "t2i": t2i, "rsum": sum(recalls)}


def chance(caption_image, n_images: int) -> dict:
    """Compute expected results of galleries in random order, as `both_directions`.

    The best of c positives among G items has rank k or more (0-based) with probability
    prod_{j < k} (G - c - j) / (G - j). "medr" is the median over all queries and orders.
    caption_image (M,): the row of each caption's image. Images without a caption do not count as
    queries.
    """
    captions = np.bincount(caption_image, minlength=n_images)  # (N,) of each image
    of_images = captions[captions > 0]
    of_captions = np.ones_like(caption_image)

    results = []
    for positives, gallery in ((of_images, len(caption_image)), (of_captions, n_images)):
        counts, share = np.unique(positives, return_counts=True)  # (U,)
        share = share / share.sum()
        j = np.arange(gallery)  # (G,)

        factors = (gallery - counts[:, None] - j) / (gallery - j)  # (U, G)
        factors = np.clip(factors, 0, 1)
        above = np.cumprod(factors, axis=1)
        at_most = 100 * (1 - share @ above)  # (G,): rank at most j, percent

        result = {}
        for k in RECALLS:
            result[f"r{k}"] = float(at_most[min(k, gallery) - 1])
        result["medr"] = float(1 + np.argmax(at_most >= 50 - 1e-9))
        mean_rank = (gallery - counts) / (counts + 1)  # (U,), 0-based
        result["meanr"] = float(1 + share @ mean_rank)
        result["queries"] = len(positives)
        results.append(result)

    i2t, t2i = results
    return both_directions(i2t, t2i)


def average(results: list[dict]) -> dict:
    """Average every number over several results, such as five folds; "queries" are summed."""

    def mean(values, key):
        if isinstance(values[0], dict):
            return {k: mean([v[k] for v in values], k) for k in values[0]}
        if key == "queries":
            return sum(values)
        return float(np.mean(values))

    return mean(results, "")


def scale_rows(x: Tensor) -> Tensor:
    """Multiply rows (N, D) by powers of two where float32 cannot square their numbers.

    Their directions stay, to the bit; other rows and rows of zeros stay as they are.
    """
    largest = x.abs().amax(1, keepdim=True)  # (N, 1)
    too_small = largest < SMALLEST_SQUARABLE
    too_large = largest > LARGEST_SQUARABLE
    odd = (largest > 0) & (too_small | too_large)
    if not odd.any():
        return x

    # on the CPU, since the GPU of a Mac has no float64
    exponent = torch.frexp(largest.cpu()).exponent
    exponent = exponent.clamp(-1000, 1000)  # 2^1000 is a float64
    scaled = torch.ldexp(x.cpu().double(), -exponent).to(x)
    return torch.where(odd, scaled, x)


@torch.no_grad()
def score_blocks(members, block: int):
    """Yield (rows, scores (b, M)) of blocks of images against all captions.

    Scores are the mean over models (the papers' ensembles). members: (similarity, images, captions)
    of each model, the `Embedding` of N images and of M captions.
    """
    n = len(members[0][1].mean)

    prepared = []
    for similarity, images, captions in members:
        if similarity is cosine:
            # an inner product of unit vectors, which no block has to normalize again
            similarity = dot
            images = Embedding(unit(scale_rows(images.mean)))
            captions = Embedding(unit(scale_rows(captions.mean)))
        prepared.append((similarity, images, captions))
    members = prepared

    for start in range(0, n, block):
        rows = slice(start, min(n, start + block))
        scores = [
            similarity(images.rows(rows), captions)  # (b, M)
            for similarity, images, captions in members
        ]
        if len(scores) == 1:
            yield rows, scores[0]
        else:
            yield rows, sum(scores[1:], scores[0]) / len(scores)


def score_matrix(members) -> np.ndarray:
    """Compute the scores (N, M) of `score_blocks` in float32, SCORES_PER_BLOCK at once."""
    _, images, captions = members[0]
    n = len(images.mean)
    m = len(captions.mean)

    # a single block is the matrix, and need not be copied
    if n <= 1 + SCORES_PER_BLOCK // m:
        _, scores = next(read_blocks(members))
        return scores

    scores = np.empty((n, m), np.float32)
    for rows, part in read_blocks(members):
        scores[rows] = part
    return scores


def ranks(scores, caption_image) -> tuple[np.ndarray, np.ndarray]:
    """Compute 0-based ranks of images (N,), -1 without captions, and of captions (M,).

    scores (N, M): an array or tensor; caption_image (M,): the row of each caption's image. Raises
    InputError where there are no captions, where caption_image names other rows, and on scores that
    are not finite.
    """
    if isinstance(scores, torch.Tensor):
        dtype = torch.promote_types(scores.dtype, torch.float32)
        scores = scores.detach().to("cpu", dtype).numpy()
    scores = np.asarray(scores)  # (N, M)
    owner = np.asarray(caption_image, np.int64)  # (M,)
    n = len(scores)
    m = len(owner)

    if m == 0:
        raise InputError("there are no captions to rank")
    if owner.min() < 0 or owner.max() >= n:
        raise InputError(
            f"caption_image holds {owner.min()} to {owner.max()}; there are images 0 to {n - 1}"
        )

    own = check_finite(scores[owner, np.arange(m)])  # (M,)
    whole = (slice(0, n), scores)
    return count_ranks([whole], own, owner, n)


def count_ranks(
    blocks, own: np.ndarray, owner: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute 0-based ranks of images (N,), -1 without captions, and of captions (M,), from blocks.

    Args:
        blocks: (rows, scores (b, M)) of slices of the N images.
        own: the score of each caption with its own image (M,).
        owner: the row of each caption's image (M,).
        n: number of images.

    Raises InputError on scores that are not finite.
    """
    best = best_of_images(own, owner, n)  # (N,)

    # all that score as high as a positive are counted below; here go the positives themselves
    i2t = -np.bincount(owner[own == best[owner]], minlength=n)
    t2i = np.full(len(owner), -1)

    for rows, scores in blocks:
        for start in range(rows.start, rows.stop, ROWS_PER_BLOCK):
            here = slice(start, min(start + ROWS_PER_BLOCK, rows.stop))
            first = here.start - rows.start
            last = here.stop - rows.start
            part = check_finite(scores[first:last])  # (b, M)
            i2t[here] += (part >= best[here, None]).sum(1)
            t2i += (part >= own).view(np.uint8).sum(0, dtype=np.uint8)  # at most ROWS_PER_BLOCK

    i2t[best == -np.inf] = -1
    return i2t, t2i


def best_of_images(own: np.ndarray, owner: np.ndarray, n: int) -> np.ndarray:
    """Find the largest score of each image with a caption of its own: (n,), -inf without any.

    own (M,): the scores of captions with their own images; owner (M,): the rows of these images.
    """
    best = np.full(n, -np.inf, own.dtype)
    np.maximum.at(best, owner, own)
    return best


def count_ties(scores: np.ndarray, caption_image, i2t: np.ndarray, t2i: np.ndarray) -> dict:
    """Count queries with ties that lower their rank, and R@1 if ties counted for the model.

    scores (N, M), caption_image (M,); i2t (N,), t2i (M,): of `ranks`. Returns {direction:
    {"queries", "r1"}} of directions that have ties.
    """
    owner = np.asarray(caption_image, np.int64)
    own = scores[owner, np.arange(len(owner))]  # (M,)
    best = best_of_images(own, owner, len(scores))  # (N,)

    above_i2t = np.zeros_like(i2t)
    above_t2i = np.zeros_like(t2i)
    for start in range(0, len(scores), ROWS_PER_BLOCK):
        rows = slice(start, start + ROWS_PER_BLOCK)
        above_i2t[rows] = (scores[rows] > best[rows, None]).sum(1)
        above_t2i += (scores[rows] > own).sum(0)

    result = {}
    for side, ranked, above in (("i2t", i2t, above_i2t), ("t2i", t2i, above_t2i)):
        asked = ranked >= 0
        tied = int((above[asked] < ranked[asked]).sum())
        if tied:
            r1 = float(100 * np.mean(above[asked] < 1))
            result[side] = {"queries": tied, "r1": r1}
    return result


def rank_members(members, caption_image) -> tuple[np.ndarray, np.ndarray]:
    """Compute `ranks` of the scores of `score_blocks`, and hold at most MAX_SCORES_HELD of them.

    Of more, dmsm's 20,252 x 101,260 take 8 GB. They are computed twice: the first time for the
    scores of each caption with its own image, which the others are compared with. Raises InputError
    on scores that are not finite.
    """
    n = len(members[0][1].mean)
    m = len(members[0][2].mean)
    if n * m <= MAX_SCORES_HELD:
        return ranks(score_matrix(members), caption_image)

    owner = np.asarray(caption_image, np.int64)
    own = np.empty(m, np.float32)

    def find_own(rows: slice) -> tuple[tuple, np.ndarray]:
        """Find the captions of a block's images, and the positions of their own scores in it."""
        captions = np.flatnonzero((owner >= rows.start) & (owner < rows.stop))
        positions = (owner[captions] - rows.start, captions)
        return positions, captions

    def compute_again():
        """Yield the blocks, in which own scores are what they were, to the last bit."""
        for rows, scores in read_blocks(members):
            positions, captions = find_own(rows)
            scores[positions] = own[captions]
            yield rows, scores

    for rows, scores in read_blocks(members):
        positions, captions = find_own(rows)
        own[captions] = scores[positions]
    return count_ranks(compute_again(), check_finite(own), owner, n)


def read_blocks(members):
    """Yield (rows, scores (b, M)) of `score_blocks` in float32, SCORES_PER_BLOCK at once."""
    _, _, captions = members[0]
    block = 1 + SCORES_PER_BLOCK // len(captions.mean)
    for rows, scores in score_blocks(members, block):
        yield rows, scores.float().cpu().numpy()


def check_finite(scores: np.ndarray) -> np.ndarray:
    """Convert scores to float32 or more. Raises InputError where one is not finite."""
    dtype = np.promote_types(scores.dtype, np.float32)
    scores = np.asarray(scores, dtype)

    # A sum is faster than a look at each, but it can overflow where every score is finite.
    with np.errstate(over="ignore", invalid="ignore"):
        total = scores.sum()
    if not np.isfinite(total) and not np.isfinite(scores).all():
        raise InputError(NOT_FINITE)
    return scores


def retrieval(scores, caption_image) -> dict:
    """Compute image-to-text and text-to-image recall of a whole score matrix.

    scores (N, M): images x captions; caption_image (M,): the row of each caption's image, in any
    order, with any number of captions per image. Returns {"i2t": {"r1", "r5", "r10", "medr",
    "meanr", "queries"}, "t2i": {...}, "rsum"} in percent and 1-based ranks. Images without captions
    do not count as queries. Raises InputError, a ValueError, on scores that are not finite or of
    another shape.
    """
    if len(scores.shape) != 2 or scores.shape[1] != len(caption_image):
        raise InputError(
            f"scores of shape {tuple(scores.shape)} do not fit {len(caption_image)} "
            "captions; rows are images, columns captions"
        )

    i2t, t2i = ranks(scores, caption_image)
    of_images = summary(i2t[i2t >= 0])
    of_captions = summary(t2i)
    return both_directions(of_images, of_captions)


# ---- correlations of ranks


def spearman(x, y) -> float:
    """Compute Spearman's rank correlation of x (K,) and y (K,) in [-1, 1].

    Ties get their mean rank. NaN where x or y is constant.
    """
    _, codes_of_x = np.unique(x, return_inverse=True)
    _, codes_of_y = np.unique(y, return_inverse=True)
    return float(spearman_of_codes(codes_of_x[None], codes_of_y[None])[0])


def spearman_of_codes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute `spearman` of the rows of x and y (S, K), whole numbers from 0: (S,)."""
    x = center_ranks(x)
    y = center_ranks(y)
    norm = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    with np.errstate(invalid="ignore"):  # NaN where a row is constant
        return (x * y).sum(1) / norm


def center_ranks(codes: np.ndarray) -> np.ndarray:
    """Rank each row of whole numbers from 0 (S, K), less the mean rank: (S, K).

    By counting instead of sorting. Equal numbers get their mean rank.
    """
    n_rows, n_items = codes.shape
    n_codes = codes.max() + 1
    in_table = codes + n_codes * np.arange(n_rows)[:, None]  # position in a table (S, n_codes)

    count = np.bincount(in_table.ravel(), minlength=n_rows * n_codes).reshape(n_rows, n_codes)
    mean_rank = np.cumsum(count, 1) - (count - 1) / 2  # of each code
    return mean_rank.ravel()[in_table] - (n_items + 1) / 2


def rank_correlations(codes: list[np.ndarray], weight: np.ndarray) -> np.ndarray:
    """Compute Spearman's correlations of V variables of K items: (V, V), NaN where one is constant.

    codes: whole numbers from 0 (K,) in the order of the values, as np.unique(...,
    return_inverse=True) gives them. weight (K,): how often each item counts, as in a bootstrap
    sample.
    """
    centered = []
    for code in codes:
        count = np.bincount(code, weight)
        mean_rank = np.cumsum(count) - (count - 1) / 2
        rank = mean_rank[code]
        centered.append(rank - np.average(rank, weights=weight))

    centered = np.array(centered)  # (V, K)
    covariance = (centered * weight) @ centered.T
    deviation = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        return covariance / np.outer(deviation, deviation)


def partial_correlations(correlations: np.ndarray, x: int, y: int, given: list[int]) -> np.ndarray:
    """Compute the partial correlations of two variables given others, in each of S samples: (S,).

    It is the correlation of what is left of each after a linear regression on the others. NaN where
    a variable is constant or follows from the others. correlations (S, V, V): of all variables.
    """
    chosen = [x, y, *given]
    parts = correlations[:, chosen][:, :, chosen]
    usable = np.isfinite(parts).all((1, 2))  # (S,)
    usable[usable] = np.linalg.cond(parts[usable]) <= 1e10

    precision = np.linalg.inv(parts[usable])
    norm = np.sqrt(precision[:, 0, 0] * precision[:, 1, 1])
    result = np.full(len(parts), np.nan)
    result[usable] = -precision[:, 0, 1] / norm
    return result


def sampled_spearman(query, x, y, samples: int = 1000, seed: int = 0) -> dict:
    """Compute Spearman's correlation over bootstrap samples of rated pairs.

    Mean and standard deviation (Parekh et al. 2021). query (K,), x (K,), y (K,): the item that each
    pair was rated for, its rating and its score. A sample takes half of the items, and one pair of
    each. "shuffled" is the first sample's with its scores in random order, as by chance.
    """
    # the pairs of an item side by side: `count` of them from `start`
    order = np.argsort(query, kind="stable")
    query = np.asarray(query)[order]
    _, start, count = np.unique(query, return_index=True, return_counts=True)
    _, x = np.unique(np.asarray(x)[order], return_inverse=True)
    _, y = np.unique(np.asarray(y)[order], return_inverse=True)

    rng = np.random.default_rng(seed)
    n_items = max(2, len(start) // 2)
    shuffled = float("nan")
    values = []
    step = max(1, CODES_OF_SAMPLES // len(x))  # samples at once
    for done in range(0, samples, step):
        pairs = []
        for _ in range(min(step, samples - done)):
            items = rng.choice(len(start), n_items, replace=False, shuffle=False)
            pair = start[items] + rng.integers(count[items])
            if not done and not pairs:
                by_chance = rng.permutation(y[pair])
                shuffled = float(spearman_of_codes(x[pair][None], by_chance[None])[0])
            pairs.append(pair)
        pairs = np.array(pairs)  # (b, items)
        values.append(spearman_of_codes(x[pairs], y[pairs]))
    values = np.concatenate(values)  # (samples,)

    return {
        "spearman": float(np.mean(values)),
        "std": float(np.std(values)),
        "shuffled": shuffled,
        "pairs": len(x),
        "items": len(start),
    }


# ---- uncertainty


def recall_in_bins(uncertainty, hits, bins: int = 10) -> dict:
    """Compute recall, percent, in equal bins from certain to uncertain (PCME++ 4.3).

    uncertainty (Q,), hits (Q,) bool. "rho" is Spearman's correlation of the number of the bin and
    its recall (-1: recall falls with every bin), "rho_queries" that of uncertainty and hit of
    single queries.
    """
    order = np.argsort(uncertainty, kind="stable")
    rising = np.asarray(uncertainty, dtype=float)[order]
    hits_rising = np.asarray(hits, dtype=float)[order]

    means = []
    recall = []
    parts = np.array_split(rising, bins)
    hit_parts = np.array_split(hits_rising, bins)
    for part, hit in zip(parts, hit_parts):
        if len(part):  # with few queries, bins are empty
            means.append(float(part.mean()))
            recall.append(100 * float(hit.mean()))

    return {
        "uncertainty": means,
        "recall": recall,
        "rho": spearman(np.arange(len(recall)), recall),
        "rho_queries": spearman(uncertainty, hits),
    }


def join_rounded(values) -> np.ndarray:
    """Make values (Q,) equal that differ by rounding, as those of equal queries do.

    Neighbours in rising order join where the gap between them is at most a hundredth of deviation /
    Q. That is above the rounding of some hundred queries, where a tie counts, and joins few by
    chance however many there are.
    """
    order = np.argsort(values, kind="stable")
    rising = values[order].astype(float)
    largest_gap = rising.std() / (100 * len(rising))

    joins = np.diff(rising) <= largest_gap
    begins = np.append(True, ~joins)  # (Q,): a group of equal values
    group = begins.cumsum() - 1

    result = np.empty_like(values)
    result[order] = rising[begins][group]
    return result


def risk_coverage(uncertainty, hits, points: int = 100) -> dict:
    """Compute the risk if only the queries of least uncertainty are answered.

    uncertainty (Q,), hits (Q,) bool -> coverage (points,), the share of queries that are answered,
    and risk (points,), the share of wrong answers among those given, in percent. "area" is the mean
    risk over all coverages 1/Q ... 1 (AURC, Geifman and El-Yaniv 2017), "area_random" that of a
    random and "area_best" that of a perfect order. Ties in uncertainty share their wrong answers
    evenly.
    """
    wrong = 1 - np.asarray(hits, dtype=float)  # (Q,)
    answers = np.arange(1, len(wrong) + 1)

    _, group, size = np.unique(uncertainty, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(group, wrong) / size, size)  # (Q,) by rising uncertainty
    risk = 100 * np.cumsum(expected) / answers
    least_risk = np.cumsum(np.sort(wrong)) / answers  # wrong answers last

    at = np.linspace(0, len(wrong) - 1, points).astype(int)
    at = np.unique(at)  # fewer where there are fewer queries
    return {
        "coverage": (answers[at] / len(wrong)).tolist(),
        "risk": risk[at].tolist(),
        "area": float(risk.mean()),
        "area_random": float(100 * wrong.mean()),
        "area_best": float(100 * least_risk.mean()),
    }


# ---- confidences: numbers (Q,), larger is more confident, and right (Q,) bool


def auroc(confidence: np.ndarray, right: np.ndarray) -> float:
    """Compute the probability that a right answer has more confidence than a wrong one.

    Ties count half; NaN where one kind is missing.
    """
    hit = confidence[right]
    miss = np.sort(confidence[~right])
    if not len(hit) or not len(miss):
        return float("nan")

    below = np.searchsorted(miss, hit, "left").sum(dtype=float)
    at_most = np.searchsorted(miss, hit, "right").sum(dtype=float)
    return float((below + at_most) / 2 / (len(hit) * len(miss)))


def sample_auroc(
    confidence: np.ndarray, right: np.ndarray, drawn: np.ndarray, image: np.ndarray
) -> np.ndarray:
    """Compute `auroc` of samples of images: (samples,).

    drawn (samples, C): how often each image was drawn; image (Q,): the image of each query.
    """
    order = np.argsort(confidence, kind="stable")
    rising = confidence[order]
    is_hit = right[order]
    # of each right query: how many queries are below it, and how many are not above it
    below = np.searchsorted(rising, rising[is_hit], "left")
    at_most = np.searchsorted(rising, rising[is_hit], "right")

    result = np.full(len(drawn), np.nan)
    step = max(1, WEIGHTS_OF_SAMPLES // len(order))  # samples at once
    for start in range(0, len(drawn), step):
        samples = slice(start, start + step)
        times = drawn[samples][:, image[order]]  # (b, Q): how often each query was drawn
        hits = times[:, is_hit]
        misses = np.zeros((len(times), len(order) + 1))
        np.cumsum(times * ~is_hit, axis=1, out=misses[:, 1:])

        wins = hits * (misses[:, below] + misses[:, at_most]) / 2  # ties count half
        pairs = hits.sum(1) * misses[:, -1]
        with np.errstate(invalid="ignore"):  # NaN where one kind is missing
            result[samples] = wins.sum(1) / pairs
    return result


def find_interval(samples: np.ndarray) -> list[float]:
    """Find the middle 95% of the samples that are numbers: [low, high]; NaN without any."""
    samples = samples[~np.isnan(samples)]
    if not len(samples):
        return [float("nan"), float("nan")]
    return np.quantile(samples, [0.025, 0.975]).tolist()


def bins_of_equal_mass(p: np.ndarray, bins: int) -> list[np.ndarray]:
    """Divide the positions of p (Q,) into bins of equal size, from the least p."""
    rising = np.argsort(p, kind="stable")
    return [part for part in np.array_split(rising, bins) if len(part)]


class Minimum(NamedTuple):
    """The temperature of the least loss, and whether it is a bound of the search.

    It multiplies the scores: the inverse of the temperature of Guo et al. (2017).
    """

    temperature: float
    at_low: bool  # T near 0: the scores do not tell what is right
    at_high: bool  # T near infinity: nearly every top-1 answer is right


def minimize_temperature(
    loss: Callable[[float], float],
    deviation: float,
    rough_loss: Callable[[float], float] | None = None,
) -> Minimum:
    """Find the T within SPREADS of the least loss.

    A grid on log T finds the neighborhood of the minimum, since a loss with several right items
    need not be convex, and Brent's method the minimum itself.

    Args:
        loss: of log T.
        deviation: of a query's scores.
        rough_loss: a faster one for the grid; None: the same.
    """
    low, high = np.log(np.array(SPREADS) / deviation)
    grid = np.linspace(low, high, POINTS_OF_GRID)
    if rough_loss is None:
        rough_loss = loss
    lowest = int(np.argmin([rough_loss(log_t) for log_t in grid]))
    bounds = (grid[max(lowest - 1, 0)], grid[min(lowest + 1, POINTS_OF_GRID - 1)])
    options = {"xatol": 1e-7}
    minimum = optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options=options)
    return Minimum(float(np.exp(minimum.x)), lowest == 0, lowest == POINTS_OF_GRID - 1)


def calibration_error(p: np.ndarray, right: np.ndarray, bins: int) -> tuple[float, float]:
    """Compute the expected calibration error (ECE) of probabilities p (Q,), and its floor.

    ECE is the mean distance of mean probability and share of right answers in bins of equal mass
    (Roelofs et al. 2022). Its floor is the mean ECE that a perfectly calibrated p would show with
    so few queries: right answers drawn with these probabilities.
    """
    p = p.astype(float)
    drawn = np.random.default_rng(0).random((CALIBRATED_DRAWS, len(p))) < p
    rows = np.concatenate([right[None], drawn])  # (1 + draws, Q)
    errors = 0.0
    for part in bins_of_equal_mass(p, bins):
        errors = errors + abs(p[part].sum() - rows[:, part].sum(1))
    errors = errors / len(p)
    return float(errors[0]), float(errors[1:].mean())


# ---- the difference between two models


def paired_bootstrap(
    a: dict | list[dict],
    b: dict | list[dict],
    sums: dict,
    samples: int = 10000,
    seed: int = 0,
    pairs: bool = False,
) -> dict:
    """Test the difference between two models by a paired bootstrap over images.

    Images are resampled with replacement, each with all its queries, and every run gets the same
    sample. Several seeds of a model are resampled too (a hierarchical bootstrap). Few seeds show
    too little of their spread: S - 1 of S are drawn (Rao and Wu 1988), and their distance from the
    mean of all is stretched by Student's t. One run says nothing about other seeds, so its interval
    covers the choice of images alone.

    Args:
        a, b: one run of each model, or a list of its runs with several seeds. A run is
            {metric: (total (N,), count (N,))}: for each image, the sum over its queries and their
            number. The metric is total.sum() / count.sum(), as for a recall or a mean rank.
        sums: {name: metrics to add up}, such as rsum.
        samples: how many samples of the images are drawn.
        seed: of the random numbers.
        pairs: a[s] and b[s] are of one seed, so the same seeds are drawn of both, and what a seed
            does to both sides is not part of the interval.

    Returns {metric: {"a", "b", "difference" (b - a), "low" and "high" (95% interval), "p"
    (two-sided), "least" (true where no sample was on the other side; then p is at most the number
    given)}}.
    """
    if isinstance(a, dict):
        a = [a]
    if isinstance(b, dict):
        b = [b]
    runs = [*a, *b]
    names = [name for name in runs[0] if all(name in run for run in runs)]
    table = []
    for run in runs:
        table.append([run[name] for name in names])
    table = np.array(table, dtype=np.float64)  # (S, K, 2, N)
    draws = _draw_images(table, samples, np.random.default_rng(seed))  # (1 + samples, S, K)

    if pairs:
        freedom = len(a) - 1
    else:
        freedom = len(runs) - 2
    stretch = 1.0
    if freedom:
        stretch = special.stdtrit(freedom, 0.975) / special.ndtri(0.975)

    rng_a = np.random.default_rng([seed, 1])
    rng_b = rng_a
    if pairs:
        rng_b = np.random.default_rng([seed, 1])  # draws what rng_a draws
    first = _with_other_seeds(draws[:, : len(a)], rng_a, stretch)  # (1 + samples, K)
    second = _with_other_seeds(draws[:, len(a) :], rng_b, stretch)

    columns = {}
    for k, name in enumerate(names):
        columns[name] = (first[:, k], second[:, k])
    for name, terms in sums.items():
        sum_a = sum(columns[term][0] for term in terms)
        sum_b = sum(columns[term][1] for term in terms)
        columns[name] = (sum_a, sum_b)

    result = {}
    for name, (x, y) in columns.items():
        differences = y[1:] - x[1:]
        result[name] = _interval(x[0], y[0], differences)
    return result


def bootstrap_intervals(
    totals: dict, samples: int = 10000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Compute 95% intervals by a bootstrap over images, each with all its queries.

    totals: {metric: (total (N,), count (N,))}, as a run of `paired_bootstrap`; each image has a
    query. Returns {metric: (low, high)}.
    """
    table = np.array([list(totals.values())], dtype=np.float64)  # (1, K, 2, N)
    draws = _draw_images(table, samples, np.random.default_rng(seed))[1:, 0]  # (samples, K)
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return dict(zip(totals, zip(low.tolist(), high.tolist())))


def _draw_images(table: np.ndarray, samples: int, rng) -> np.ndarray:
    """Compute the metrics of S runs for each sample of images: (1 + samples, S, K).

    The first row takes each image once. table (S, K, 2, N): total and count of K metrics for each
    of N images.
    """
    n_runs, n_metrics, _, n = table.shape
    flat = table.reshape(-1, n).T  # (N, 2 S K)

    draws = []
    step = max(1, 2**22 // n)  # samples at once
    for done in range(-1, samples, step):
        rows = min(step, samples - done)
        drawn = rng.integers(n, size=(rows, n))
        drawn += n * np.arange(rows)[:, None]  # position in a table (rows, N)
        weight = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        weight = weight.astype(np.float64)  # how often an image is drawn
        if done < 0:
            weight[0] = 1

        sums = (weight @ flat).reshape(rows, n_runs, n_metrics, 2)
        total, count = np.moveaxis(sums, 3, 0)  # (rows, S, K)
        with np.errstate(invalid="ignore"):  # NaN where no image drawn has a query
            draws.append(total / count)
    return np.concatenate(draws)


def _with_other_seeds(draws: np.ndarray, rng, stretch: float) -> np.ndarray:
    """Average each draw of images over seeds: (1 + samples, S, K) -> (1 + samples, K).

    Several seeds are drawn too, except for the first row. `stretch`: see `paired_bootstrap`.
    """
    mean = draws.mean(1)
    seeds = draws.shape[1]
    if seeds > 1:
        picked = rng.integers(seeds, size=(len(draws) - 1, seeds - 1))
        sample = np.arange(1, len(draws))[:, None]
        of_picked = draws[sample, picked].mean(1)  # (samples, K)
        mean[1:] += stretch * (of_picked - mean[1:])
    return mean


def _interval(a: float, b: float, differences: np.ndarray) -> dict:
    """Summarize differences (samples,) of `paired_bootstrap` for one metric."""
    differences = differences[~np.isnan(differences)]
    low, high = np.percentile(differences, [2.5, 97.5])

    not_above = np.count_nonzero(differences <= 0)
    not_below = np.count_nonzero(differences >= 0)
    tail = min(not_above, not_below)
    p = 2 * (tail + 1) / (len(differences) + 1)

    return {
        "a": float(a),
        "b": float(b),
        "difference": float(b - a),
        "low": float(low),
        "high": float(high),
        "p": float(min(1, p)),
        "least": bool(tail == 0),
    }


# ---- the probability that a pair fits, by its score


class Sigmoid(NamedTuple):
    """Probability that a photo fits a caption: sigmoid(slope s + bias + log_det v).

    s is their score and v the mean log-variance of the caption; log_det is 0 where captions are
    points.
    """

    slope: float
    bias: float
    log_det: float = 0.0

    def __call__(self, s, v=0.0) -> Tensor:
        logit = self.slope * s + self.bias + self.log_det * v
        return torch.as_tensor(logit).sigmoid()

    @classmethod
    def fit(cls, s, right, votes=None, v=None) -> "Sigmoid":
        """Fit by the least mean log loss (Platt 1999) to K pairs.

        s, v (K,): scores and, where given, log-variances; right (K,) in [0, 1]; votes (K,): how
        often a pair counts. Raises InputError where no sigmoid fits.
        """
        variables = [torch.as_tensor(s)]
        if v is not None:
            variables.append(torch.as_tensor(v))
        x = torch.stack(variables)  # (F, K)

        weights, bias = fit_logistic(x, right, votes)
        slope, *log_det = weights
        return cls(slope, bias, *log_det)


def fit_logistic(x: Tensor, y, count=None) -> tuple[list[float], float]:
    """Fit weights (F,) and bias of p = sigmoid(w . x + b) by the least mean log loss.

    x (F, K), y (K,) in [0, 1], count (K,): how often each counts. Newton's method in float64; the
    loss is convex. Raises InputError where a row of x is constant, or all of y is 0 or 1.
    """
    x = x.double()
    y = torch.as_tensor(y).double()
    if count is None:
        n = torch.ones_like(y)
    else:
        n = torch.as_tensor(count).double()

    mean = x.mean(1)
    std = x.std(1, correction=0)
    share = float((n * y).sum() / n.sum())
    if not (std > 0).all() or not 0 < share < 1:
        raise InputError(
            "all scores are equal, or all pairs right or wrong, so no probability of "
            "a pair fits them"
        )

    # standardized, so that one size of a step suits all weights; the bias is the last
    z = (x - mean[:, None]) / std[:, None]
    z = torch.cat([z, torch.ones_like(y)[None]])  # (F + 1, K)
    w = z.new_zeros(len(z))
    w[-1] = torch.tensor(share).logit()

    for _ in range(100):
        p = (w @ z).sigmoid()
        gradient = z @ (n * (p - y))
        hessian = (z * (n * p * (1 - p) + 1e-9)) @ z.T
        step = torch.linalg.solve(hessian, gradient)
        w = w - step.clamp(-5, 5)
        if step.abs().max() < 1e-9:
            break

    weights = w[:-1] / std
    bias = w[-1] - weights @ mean
    return weights.tolist(), float(bias)
