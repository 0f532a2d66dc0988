"""Retrieval metrics: arrays in, numbers out, no model.

Scores are higher-is-better. The rank of a query is the number of non-positive items that score at least as high as
its best positive: 0-based, ties count against the model, and the positive's own score is taken from the same matrix.
Scores below float32 are raised to float32 first (bfloat16 ties in 13% of rows).
"""
import numpy as np
import torch

RECALLS = (1, 5, 10)


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
        raise ValueError(f"{given} lists of positives were given for {queries} queries; give one for each row of scores")
    missing = np.flatnonzero(np.bincount(query, minlength=queries) == 0)
    if len(missing):
        raise ValueError(f"{len(missing)} queries have no positive, the first is query {missing[0]}; leave them out")
    return query, item


def _as_scores(scores) -> np.ndarray:
    """(Q, G) array of at least float32 without NaN or +inf; -inf means "not in this query's gallery"."""
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy()
    scores = np.asarray(scores)
    scores = scores.astype(np.promote_types(scores.dtype, np.float32), copy=False)
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError("the scores hold NaN or infinity, so they cannot be ranked; check the embeddings")
    return scores


def best_ranks(scores, positives) -> np.ndarray:
    """0-based rank of each query's best positive: scores (Q, G), positives bool (Q, G) or index lists -> (Q,) int64.

    A query itself is kept out of its own gallery by a score of -inf. Raises ValueError on NaN, +inf, or a query without
    positives.
    """
    scores = _as_scores(scores)
    query, item = _pairs(positives, len(scores))
    own = scores[query, item]
    best = np.full(len(scores), -np.inf, scores.dtype)
    np.maximum.at(best, query, own)
    if np.isneginf(best).any():
        raise ValueError(f"query {np.flatnonzero(np.isneginf(best))[0]} has all its positives outside its gallery (-inf)")
    at_least = np.count_nonzero(scores >= best[:, None], axis=1)
    return at_least - np.bincount(query[own >= best[query]], minlength=len(scores))


def r_precision(scores, positives) -> np.ndarray:
    """Share of positives among each query's top R, R the number of its positives: (Q, G) -> (Q,) in [0, 1].

    `ucmr` 4.3. Where a positive ties with a non-positive the non-positive stands first.
    """
    scores = _as_scores(scores)
    query, item = _pairs(positives, len(scores))
    relevant = np.zeros(scores.shape, bool)
    relevant[query, item] = True
    total = relevant.sum(1)
    result = np.empty(len(scores))
    for q in range(len(scores)):
        top = np.lexsort((relevant[q], -scores[q]))[:total[q]]
        result[q] = relevant[q, top].mean()
    return result


def summary(ranks) -> dict:
    """Recall at 1, 5, 10 in percent, median and mean rank (1-based) and number of queries, from 0-based ranks (Q,)."""
    ranks = np.asarray(ranks)
    if not len(ranks):
        raise ValueError("there are no queries to summarise")
    return {**{f"r{k}": float(100 * np.mean(ranks < k)) for k in RECALLS},
            "medr": float(np.floor(np.median(ranks)) + 1), "meanr": float(ranks.mean() + 1), "queries": len(ranks)}


def both_directions(i2t, t2i) -> dict:
    """`summary` of image-to-text and text-to-image ranks and rsum, the sum of the six recalls (0 to 600)."""
    result = {"i2t": summary(i2t), "t2i": summary(t2i)}
    result["rsum"] = sum(result[side][f"r{k}"] for side in ("i2t", "t2i") for k in RECALLS)
    return result


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
        raise ValueError("there are no captions to rank")
    if caption_image.min() < 0 or caption_image.max() >= n_images:
        raise ValueError(f"caption_image holds {caption_image.min()} to {caption_image.max()}; there are images 0 to "
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
            raise ValueError("the scores hold NaN or infinity, so they cannot be ranked; check the embeddings")
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
        raise ValueError(f"scores of shape {tuple(scores.shape)} do not fit {len(caption_image)} captions; rows are "
                         "images, columns captions")
    i2t, t2i = ranks(lambda i, c: scores[i, c], caption_image, len(scores))
    return both_directions(i2t[i2t >= 0], t2i)
