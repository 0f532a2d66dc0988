"""Retrieval metrics: arrays in, numbers out, no model.

Scores are higher-is-better. The rank of a query is the number of non-positive items that score at least as high as
its best positive: 0-based, ties count against the model, and the positive's own score is taken from the same matrix.
Scores below float32 are raised to float32 first (bfloat16 ties in 13% of rows).
"""
import numpy as np
import torch
from scipy import special

from cli import InputError

RECALLS = (1, 5, 10)
NOT_FINITE = ("the scores hold NaN or infinity, or numbers beyond float32, so they cannot be ranked; check them, or the means "
              "and variances that they are of")


def _pairs(positives, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Positives as (query, item) index pairs; takes a bool matrix (Q, G) or, for each query, one index or several."""
    if isinstance(positives, torch.Tensor):
        positives = positives.detach().cpu().numpy()
    if isinstance(positives, np.ndarray) and positives.dtype == bool:
        query, item = np.nonzero(positives)
        given = len(positives)
    else:
        items = [np.unique(np.asarray(p, dtype=np.int64).reshape(-1)) for p in positives]
        query = np.repeat(np.arange(len(items)), [len(p) for p in items])
        item = np.concatenate(items) if items else np.zeros(0, np.int64)
        given = len(items)
    if given != queries:
        raise InputError(f"{given} lists of positives were given for {queries} queries; give one for each row of scores")
    missing = np.flatnonzero(np.bincount(query, minlength=queries) == 0)
    if len(missing):
        raise InputError(f"{len(missing)} queries have no positive, the first is query {missing[0]}; leave them out")
    return query, item


def _as_scores(scores) -> np.ndarray:
    """(Q, G) array of at least float32 without NaN or +inf; -inf means "not in this query's gallery"."""
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy()
    scores = np.asarray(scores)
    scores = scores.astype(np.promote_types(scores.dtype, np.float32), copy=False)
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise InputError(NOT_FINITE)
    return scores


def best_ranks(scores, positives) -> np.ndarray:
    """0-based rank of each query's best positive: scores (Q, G), positives bool (Q, G) or index lists -> (Q,) int64.

    A query itself is kept out of its own gallery by a score of -inf. Raises ValueError on NaN, +inf, or a query without
    positives.
    """
    scores = _as_scores(scores)
    result = ranks_of_pairs(scores, *_pairs(positives, len(scores)))
    if (result < 0).any():
        raise InputError(f"query {np.flatnonzero(result < 0)[0]} has all its positives outside its gallery (-inf)")
    return result


def r_precision(scores, positives) -> np.ndarray:
    """Share of positives among each query's top R, R the number of its positives: (Q, G) -> (Q,) in [0, 1].

    `ucmr` 4.3. Where a positive ties with a non-positive the non-positive stands first.
    """
    scores = _as_scores(scores)
    return r_precisions(scores, [_pairs(positives, len(scores))])[0]


def average_precision(scores, positives) -> np.ndarray:
    """AP@R of each query: (1 / R) sum over k <= R of precision@k where item k is positive, else 0: (Q, G) -> (Q,) in [0, 1].

    mAP@R is its mean (ECCV Caption, Chun et al. 2022). Where a positive ties with a non-positive the latter stands first.
    """
    scores = _as_scores(scores)
    query, item = _pairs(positives, len(scores))
    result, bounds = np.empty(len(scores)), np.searchsorted(query, np.arange(len(scores) + 1))
    for q, row in enumerate(scores):
        own = np.sort(row[item[bounds[q]:bounds[q + 1]]])[::-1]                     # (R,) best first
        top = np.sort(np.partition(row, len(row) - len(own))[len(row) - len(own):])  # (R,) the R best of all, rising
        at_least = len(top) - np.searchsorted(top, own)                             # items that score at least as high
        at_least[own == top[0]] = np.count_nonzero(row >= top[0])                   # ties with the last of them included
        at_least[own < top[0]] = 2 * len(row)                                       # out of the top, wherever
        others = at_least - np.searchsorted(-own, -own, "right")
        hits = np.arange(1, len(own) + 1)
        place = others + hits                                                       # 1-based place of each positive
        result[q] = (hits / place * (place <= len(own))).sum() / len(own)
    return result


def ranks_of_pairs(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """`best_ranks` of positives given as pairs: (Q, G), (P,), (P,) -> (Q,) int64; -1 without a positive in the gallery."""
    own = scores[query, item]                                                       # (P,)
    best = np.full(len(scores), -np.inf, scores.dtype)
    np.maximum.at(best, query, own)
    result = np.count_nonzero(scores >= best[:, None], axis=1) - np.bincount(query[own >= best[query]], minlength=len(scores))
    return np.where(np.isneginf(best), -1, result)


def r_precisions(scores: np.ndarray, sets) -> list[np.ndarray]:
    """`r_precision` of one block of scores (Q, G) for several sets of positives, each (query (P,), item (P,)): (Q,) each.

    NaN for a query without positives. The top R need not be put in order: they are what exceeds the R-th largest score t,
    and as many of the items that tie with t as there are places left, non-positives first.
    """
    n, gallery = scores.shape
    counts = np.array([np.bincount(query, minlength=n) for query, _ in sets])       # (sets, Q): R
    place = gallery - np.maximum(counts, 1)                                         # of the R-th largest in rising order
    limits = np.array([np.partition(row, at)[at] for row, at in zip(scores, place.T)]).T.reshape(len(sets), n)
    results = []
    for count, t, (query, item) in zip(counts, limits, sets):
        own = scores[query, item]
        above, tied = np.bincount(query[own > t[query]], minlength=n), np.bincount(query[own == t[query]], minlength=n)
        places = count - np.count_nonzero(scores > t[:, None], axis=1)
        others = np.count_nonzero(scores == t[:, None], axis=1) - tied
        results.append(np.where(count > 0, (above + np.maximum(0, places - others)) / np.maximum(count, 1), np.nan))
    return results


def summary(ranks) -> dict:
    """Recall at 1, 5, 10 in percent, median and mean rank (1-based) and number of queries, from 0-based ranks (Q,)."""
    ranks = np.asarray(ranks)
    if not len(ranks):
        raise InputError("there are no queries to summarise")
    return {**{f"r{k}": float(100 * np.mean(ranks < k)) for k in RECALLS},
            "medr": float(np.floor(np.median(ranks)) + 1), "meanr": float(ranks.mean() + 1), "queries": len(ranks)}


def best_rank_means(ranks) -> dict:
    """Harmonic and arithmetic mean of the 1-based best ranks: HBR and ABR of `dmsm` 4.2 where queries are images."""
    places = np.asarray(ranks, dtype=float) + 1
    return {"hbr": float(len(places) / (1 / places).sum()), "abr": float(places.mean())}


def both_directions(i2t, t2i) -> dict:
    """`summary` of image-to-text and text-to-image ranks and rsum, the sum of the six recalls (0 to 600)."""
    result = {"i2t": summary(i2t), "t2i": summary(t2i)}
    result["rsum"] = sum(result[side][f"r{k}"] for side in ("i2t", "t2i") for k in RECALLS)
    return result


def chance(caption_image, n_images: int) -> dict:
    """What a random order of every gallery gives in expectation, as `both_directions`; `medr` is the median over all queries
    and orders. caption_image (M,): whose caption each is; images without a caption are no queries."""
    captions = np.bincount(caption_image, minlength=n_images)                       # (N,) of each image
    result = {"i2t": _random_order(captions[captions > 0], len(caption_image)),
              "t2i": _random_order(np.ones(len(caption_image), int), n_images)}
    result["rsum"] = sum(result[side][f"r{k}"] for side in ("i2t", "t2i") for k in RECALLS)
    return result


def _random_order(positives: np.ndarray, gallery: int) -> dict:
    """`summary` of queries with c positives each, (Q,), in a gallery of G in random order: the best positive has rank k or
    more (0-based, counting the others before it) with probability prod_{j < k} (G - c - j) / (G - j)."""
    counts, share = np.unique(positives, return_counts=True)
    share = share / share.sum()                                                     # (U,)
    j = np.arange(gallery)
    left = np.cumprod(np.clip((gallery - counts[:, None] - j) / (gallery - j), 0, 1), axis=1)   # (U, G): rank above j
    found = 100 * (1 - share @ left)                                                # (G,): rank at most j, percent
    return {**{f"r{k}": float(found[min(k, gallery) - 1]) for k in RECALLS}, "medr": float(1 + np.argmax(found >= 50 - 1e-9)),
            "meanr": float(1 + share @ ((gallery - counts) / (counts + 1))), "queries": len(positives)}


def average(results: list[dict]) -> dict:
    """Mean of every number of several `both_directions` results (five folds); `queries` is their sum."""
    def mean(values, key):
        if isinstance(values[0], dict):
            return {k: mean([v[k] for v in values], k) for k in values[0]}
        return sum(values) if key == "queries" else float(np.mean(values))
    return mean(results, "")


def ranks(tile, caption_image, n_images: int, block: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of both directions from one pass over blocks of scores.

    `tile(i, c)` returns the scores (n, m) of images `i` (a slice) and captions `c` (an index tensor), in a tensor of its
    own. Captions are taken in the order of their images, so all positives lie in the tiles on the diagonal: those come
    first and fix each query's best positive, every other tile only counts, and no score is computed twice.
    Returns image ranks (N,), -1 for an image without captions, and caption ranks (M,), both 0-based.
    """
    caption_image = np.asarray(caption_image)
    if not len(caption_image):
        raise InputError("there are no captions to rank")
    if caption_image.min() < 0 or caption_image.max() >= n_images:
        raise InputError(f"caption_image holds {caption_image.min()} to {caption_image.max()}; there are images 0 to "
                         f"{n_images - 1}")
    order = np.argsort(caption_image, kind="stable")                                # captions by image
    starts = np.arange(0, n_images, block)
    image_blocks = [slice(int(s), int(min(s + block, n_images))) for s in starts]
    caption_blocks = [torch.from_numpy(c) for c in np.split(order, np.searchsorted(caption_image[order], starts[1:]))]
    image_of = torch.from_numpy(caption_image.astype(np.int64))
    best, own = None, None
    i2t, t2i = torch.zeros(n_images, dtype=torch.int64), torch.zeros(len(order), dtype=torch.int64)

    def scores_of(i, c):
        scores = tile(i, c)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if not torch.isfinite(scores.sum()) and not torch.isfinite(scores).all():
            raise InputError(NOT_FINITE)
        return scores

    def count(scores, i, c):
        i2t[i] += (scores >= best[i, None]).sum(1, dtype=torch.int32).cpu()         # int32 sums are much faster than int64
        t2i[c] += (scores >= own[None, c]).sum(0, dtype=torch.int32).cpu()

    for i, c in zip(image_blocks, caption_blocks):
        scores = scores_of(i, c)
        if best is None:
            best, own = scores.new_full((n_images,), -torch.inf), scores.new_empty(len(order))
        row = (image_of[c] - i.start).to(scores.device)                             # (m,) the row of each caption's image
        own[c] = scores.gather(0, row[None])[0]
        best[i] = best[i].scatter_reduce(0, row, own[c], "amax")
        count(scores.scatter(0, row[None], -torch.inf), i, c)                       # positives do not count
    for k, c in enumerate(caption_blocks):
        for j, i in enumerate(image_blocks):
            if j != k and len(c):
                count(scores_of(i, c), i, c)
    i2t[best.cpu() == -torch.inf] = -1
    return i2t.numpy(), t2i.numpy()


def mean_cosine(means: torch.Tensor) -> float:
    """The mean cosine of two different items, (N, D) or, of parts that are averaged, (N, P, D): 1 where all are one point."""
    rows = torch.nn.functional.normalize((means.mean(1) if means.ndim == 3 else means).double(), dim=1)      # (N, D)
    pairs = rows.sum(0).square().sum() - rows.square().sum()                        # sum over i != j of cos(i, j)
    return float(pairs / max(1, len(rows) * (len(rows) - 1)))


def retrieval_blocks(similarity, images, captions, caption_image, block: int = 1000) -> dict:
    """Both directions from embeddings, a block of the score matrix at a time; what `retrieval` returns.

    `similarity` is a module of losses.py; `images` (N items) and `captions` (M items) are its `Embedding`s.
    """
    with torch.no_grad():
        i2t, t2i = ranks(similarity.tiles(images, captions), caption_image, len(images.mean), block)
    return both_directions(i2t[i2t >= 0], t2i)


def retrieval(scores, caption_image) -> dict:
    """Image-to-text and text-to-image recall of a whole score matrix.

    scores (N, M): images x captions; caption_image (M,): whose caption each is, in any order, any number an image.
    Returns {"i2t": {"r1", "r5", "r10", "medr", "meanr", "queries"}, "t2i": {...}, "rsum"}; percent, 1-based ranks.
    Images without captions are no queries. Raises ValueError on non-finite scores.
    """
    scores = torch.as_tensor(scores)
    if scores.ndim != 2 or scores.shape[1] != len(caption_image):
        raise InputError(f"scores of shape {tuple(scores.shape)} do not fit {len(caption_image)} captions; rows are "
                         "images, columns captions")
    i2t, t2i = ranks(lambda i, c: scores[i, c], caption_image, len(scores))
    return both_directions(i2t[i2t >= 0], t2i)


def spearman(x, y) -> float:
    """Spearman's rank correlation of (K,) and (K,), ties at their mean rank; NaN where one of them is constant."""
    return _spearman(*(np.unique(v, return_inverse=True)[1] for v in (x, y)))


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    """The same of values numbered in their order, from 0, with gaps or without: ranks by counting instead of sorting."""
    ranked = []
    for number in (x, y):
        count = np.bincount(number)
        ranked.append((np.cumsum(count) - (count - 1) / 2)[number] - (len(number) + 1) / 2)
    norm = np.sqrt((ranked[0] ** 2).sum() * (ranked[1] ** 2).sum())
    return float((ranked[0] * ranked[1]).sum() / norm) if norm > 0 else float("nan")


def sampled_spearman(query, x, y, samples: int = 1000, seed: int = 0) -> dict:
    """Mean and standard deviation of Spearman's correlation over bootstrap samples of rated pairs (Parekh et al. 2021).

    query (K,), x (K,), y (K,): the item that each pair was rated for, rating and score. A sample takes half of the items
    and of each one pair, so that items with many pairs do not dominate. "shuffled" is the correlation of the first sample's
    ratings with its scores in random order: what chance gives.
    """
    order = np.argsort(query, kind="stable")
    x, y = (np.unique(np.asarray(v)[order], return_inverse=True)[1] for v in (x, y))
    _, start, count = np.unique(np.asarray(query)[order], return_index=True, return_counts=True)
    rng, values, control = np.random.default_rng(seed), [], float("nan")
    for _ in range(samples):
        chosen = rng.choice(len(start), max(2, len(start) // 2), replace=False, shuffle=False)
        pair = start[chosen] + rng.integers(count[chosen])
        values.append(_spearman(x[pair], y[pair]))
        control = control if len(values) > 1 else _spearman(x[pair], rng.permutation(y[pair]))
    return {"spearman": float(np.mean(values)), "std": float(np.std(values)), "shuffled": control, "pairs": len(x),
            "items": len(start)}


def recall_in_bins(uncertainty, hits, bins: int = 10) -> dict:
    """Recall of queries in bins of equal size from the least to the most uncertain (PCME++ 4.3), in percent.

    uncertainty (Q,), hits (Q,) bool. `rho` is Spearman's between the number of the bin and its recall (-1: recall falls with
    every bin); `rho_queries` the one between uncertainty and hit of single queries.
    """
    order = np.argsort(uncertainty, kind="stable")
    parts = np.array_split(np.asarray(hits, dtype=float)[order], bins)
    recall = [float(100 * part.mean()) for part in parts if len(part)]
    edges = [float(part.mean()) for part in np.array_split(np.asarray(uncertainty, dtype=float)[order], bins) if len(part)]
    return {"uncertainty": edges, "recall": recall, "rho": spearman(np.arange(len(recall)), recall),
            "rho_queries": spearman(uncertainty, hits)}


def risk_coverage(uncertainty, hits, points: int = 100) -> dict:
    """Risk of answering only the surest queries: (Q,), (Q,) bool -> coverage (points,), risk (points,), area.

    Risk is the share of wrong answers among those given, in percent; the area is its mean over all coverages 1/Q ... 1
    (AURC, Geifman and El-Yaniv 2017). Beside it what no knowledge gives (`area_random`) and what a perfect order would
    (`area_best`). Ties in uncertainty share their wrong answers evenly.
    """
    wrong = 1 - np.asarray(hits, dtype=float)
    _, group, size = np.unique(uncertainty, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(group, wrong) / size, size)                    # by rising uncertainty
    given = np.arange(1, len(wrong) + 1)
    risk = 100 * np.cumsum(expected) / given
    at = np.unique(np.linspace(0, len(wrong) - 1, points).astype(int))
    return {"coverage": (given[at] / len(wrong)).tolist(), "risk": risk[at].tolist(), "area": float(risk.mean()),
            "area_random": float(100 * wrong.mean()), "area_best": float(100 * (np.cumsum(np.sort(wrong)) / given).mean())}


def paired_bootstrap(a: dict | list[dict], b: dict | list[dict], sums: dict, samples: int = 10000, seed: int = 0) -> dict:
    """Is the difference between two models real? a, b: one run of each, or a list of several seeds.

    A run is {metric: (total (N,), count (N,))}, the sum over the queries of each image and their number, so that the metric is
    total.sum() / count.sum(), as a recall or a mean rank is. sums: {name: metrics to add up} (rsum). Returns {metric: {"a",
    "b", "difference" (b - a), "low", "high" (95% interval), "p" (two-sided), "least" (no sample was on the other side: p is at
    most what is given)}}.

    Images are resampled with replacement, for all runs alike, each with all that belongs to it; and the seeds of a model that
    has several (a hierarchical bootstrap). Few seeds show too little of their spread, so S - 1 of S are drawn (Rao and Wu
    1988) and their distance from the mean of all is stretched by Student's t. One run says nothing of other seeds: its
    interval covers the choice of images alone.
    """
    a, b = ([side] if isinstance(side, dict) else side for side in (a, b))
    runs = [*a, *b]
    names = [name for name in runs[0] if all(name in run for run in runs)]
    n = len(runs[0][names[0]][0])
    table = np.array([[run[name] for name in names] for run in runs], dtype=np.float64)          # (S, K, 2, N)
    flat = table.reshape(-1, n).T                                                   # (N, 2 S K)
    rng, draws, step = np.random.default_rng(seed), [], max(1, 2 ** 22 // n)
    for done in range(-1, samples, step):                                           # the first row takes each image once
        rows = min(step, samples - done)
        weight = np.array([np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(rows)], dtype=np.float64)
        if done < 0:
            weight[0] = 1
        total, count = np.moveaxis((weight @ flat).reshape(rows, len(runs), len(names), 2), 3, 0)    # (rows, S, K)
        with np.errstate(invalid="ignore"):                                         # NaN where no image drawn has a query
            draws.append(total / count)
    draws = np.concatenate(draws)                                                   # (1 + samples, S, K)
    picks, freedom = np.random.default_rng([seed, 1]), len(runs) - 2
    stretch = special.stdtrit(freedom, 0.975) / special.ndtri(0.975) if freedom else 1.0
    first, second = (_with_other_seeds(side, picks, stretch) for side in (draws[:, :len(a)], draws[:, len(a):]))
    columns = {name: (first[:, k], second[:, k]) for k, name in enumerate(names)}
    for name, terms in sums.items():
        columns[name] = tuple(sum(columns[term][side] for term in terms) for side in (0, 1))
    return {name: _interval(x[0], y[0], y[1:] - x[1:]) for name, (x, y) in columns.items()}


def _with_other_seeds(draws: np.ndarray, rng, stretch: float) -> np.ndarray:
    """The mean over S seeds of each draw of images, (1 + samples, S, K) -> (1 + samples, K), with seeds drawn too."""
    mean, seeds = draws.mean(1), draws.shape[1]
    if seeds > 1:
        picked = rng.integers(seeds, size=(len(draws) - 1, seeds - 1))
        chosen = draws[np.arange(1, len(draws))[:, None], picked].mean(1)           # (samples, K)
        mean[1:] += stretch * (chosen - mean[1:])
    return mean


def _interval(a: float, b: float, differences: np.ndarray) -> dict:
    differences = differences[~np.isnan(differences)]
    low, high = np.percentile(differences, [2.5, 97.5])
    tail = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return {"a": float(a), "b": float(b), "difference": float(b - a), "low": float(low), "high": float(high),
            "p": float(min(1, 2 * (tail + 1) / (len(differences) + 1))), "least": bool(tail == 0)}
