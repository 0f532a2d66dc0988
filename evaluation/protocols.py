"""Evaluation protocols: what is retrieved from what, which items count as matches, and what is
averaged.

Each protocol returns its numbers and adds the outcome of every single query to a `Record`, for
files of ranks and for tests of differences. `assess.PROTOCOLS` lists the protocols and says how to
add one.

Papers: `ucmr`; PCME (Chun et al. 2021) for PMRP; CxC (Parekh et al. 2021); ECCV Caption (Chun et
al. 2022).
"""
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

import metrics
from cli import check
from evaluation.annotations import Pairs, Ratings
from evaluation.selective import levelled
from evaluation.subjects import BLOCK, Gallery, Record, Subject, finite, slices, within_modality

ROWS = 250                            # queries whose whole rows of scores are ranked at once
ZETAS = (0, 1, 2)                     # by how many categories a match may differ (PMRP)


# ---- recalls of the original pairs

def columns_of_gallery(columns, images: np.ndarray, captions: np.ndarray):
    """Columns of the scores of one gallery of sequential images, whose images and captions are
    counted from 0."""
    first, index = int(images[0]), torch.from_numpy(captions)

    def column(c):
        score = columns(index[c])
        return lambda i: score(slice(first + i.start, first + i.stop))
    return column


def recalls(subject: Subject, columns, galleries: list[Gallery], record: Record, name: str,
            block: int = BLOCK) -> dict:
    """Recalls of both directions, `metrics.both_directions`, as the mean over galleries.

    columns: scores in blocks. The ranks are kept in `record` under `name`. Raises InputError on
    scores that are not finite.
    """
    results = []
    for images, captions in galleries:
        ranks = metrics.ranks_by_blocks(columns_of_gallery(columns, images, captions),
                                        subject.caption_image[captions] - images[0], len(images),
                                        block)
        for side, count, queries, rank in zip(("i2t", "t2i"), (subject.n_images, len(subject.caption_image)),
                                              (images, captions), ranks):
            record.add(name, side, count, queries, rank=rank)
        i2t, t2i = ranks
        results.append(metrics.both_directions(i2t[i2t >= 0], t2i))
    return metrics.average(results)


# ---- rules with several matches

def r_precisions(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """`metrics.r_precision` for positives given as pairs of indices; NaN for a query without."""
    return metrics.r_precisions_of_sets(scores, [(query, item)])[0]


# What is measured of every query, from scores (Q, G) and pairs of matches: ranks and shares.
OUTCOMES = {"rank": metrics.best_ranks_of_pairs, "rp": r_precisions, "rpc2": r_precisions,
            "map_at_r": metrics.average_precisions_of_pairs}


def outcomes(rows, pairs: Pairs, n_queries: int, names) -> dict[str, np.ndarray]:
    """OUTCOMES (Q,) of these names; a query without a match gets NaN or -1.

    rows(start, stop) returns the scores of queries against the whole gallery; only rows with a
    match are scored.
    """
    found = {name: np.full(n_queries, np.nan) for name in names}

    def block(some: slice):
        query, item = pairs.of_block(some)
        if len(query):
            scores = rows(some.start, some.stop)
            for name, values in found.items():
                values[some] = OUTCOMES[name](scores, query, item)
    in_threads(block, slices(n_queries, ROWS))
    return found


def in_threads(function, blocks: list[slice]) -> None:
    """function(block) for every block, on as many threads as torch has; numpy lets them run side by
    side."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(function, blocks))


def rows_of_gallery(scores: np.ndarray, queries: np.ndarray, items: np.ndarray):
    """rows(start, stop) of some queries and items: the scores (b, G), in float32. The queries are
    rows of `scores`."""
    whole = scores.shape == (len(queries), len(items))

    def rows(a, b):
        block = scores[a:b] if whole else scores[np.ix_(queries[a:b], items)]
        return finite(np.ascontiguousarray(block, np.float32))
    return rows


def recalls_of_matches(scores: np.ndarray, pairs: dict[str, Pairs], galleries: list[Gallery],
                       record: Record, name: str, *precisions: str) -> dict:
    """Recalls and precisions of i2t and t2i, or of one of them, in percent, as the mean over
    galleries.

    scores (N, M); pairs: the matches of each direction; precisions: which of OUTCOMES. "r1" is the
    share of queries whose best item is a match, the precision at 1. The outcome of every query is
    stored in `record` under `name`. "rsum" is there where both directions are. Raises InputError
    where no query of a direction has a match in its gallery, and on scores that are not finite.
    """
    results = []
    for images, captions in galleries:
        result = {}
        for side, matches in pairs.items():
            matrix, queries, items = ((scores, images, captions) if side == "i2t" else
                                      (scores.T, captions, images))
            found = outcomes(rows_of_gallery(matrix, queries, items), matches.among(queries, items),
                             len(queries), ("rank", *precisions))
            rank = found["rank"][found["rank"] >= 0]
            check(len(rank), f"no {side} query of '{name}' has a match in its gallery; give at "
                             "least one, or leave it out")
            result[side] = metrics.summary(rank) | {key: float(100 * np.nanmean(found[key]))
                                                    for key in precisions}
            record.add(name, side, len(matrix), queries, **found)
        if len(result) == 2:
            result["rsum"] = metrics.rsum(result)
        results.append(result)
    return metrics.average(results)


# ---- Crisscrossed Captions

def cxc_between(scores: np.ndarray, ratings: dict[str, Ratings], pairs: dict[str, Pairs],
                galleries: dict[str, list[Gallery]], record: Record,
                samples: int = 1000) -> dict[str, dict]:
    """Crisscrossed Captions between images and captions: {name: {i2t, t2i, rsum, sits}} for each of
    the `galleries`.

    i2t and t2i carry "rpc2", RPC^2 (`ucmr` 4.3): R-precision over the CxC matches, in percent. sits
    stands in the first of the galleries: the rank correlation of the scores (N, M) with the ratings
    (`metrics.sampled_spearman`).
    """
    matches, rated = {side: pairs[side] for side in ("i2t", "t2i")}, ratings["sits"]
    results = {name: recalls_of_matches(scores, matches, parts, record, name, "rpc2")
               for name, parts in galleries.items()}
    whole = next(iter(results.values()))
    whole["sits"] = metrics.sampled_spearman(rated.first, rated.score,
                                             scores[rated.second, rated.first], samples)
    return results


def cxc_within(subject: Subject, ratings: dict[str, Ratings], pairs: dict[str, Pairs],
               galleries: dict[str, list[Gallery]], record: Record,
               samples: int = 1000) -> dict[str, dict]:
    """Crisscrossed Captions within a modality: {name: {t2t, i2i, sts, sis}} for each of the
    `galleries`.

    The first of the galleries is that of all items, and holds sts and sis: rank correlations of the
    scores with the ratings (`metrics.sampled_spearman`). i2i and sis are left out where there are
    no images.
    """
    results = {name: {} for name in galleries}
    first, *others = galleries
    for side, modality, kind in (("t2t", "captions", "sts"), ("i2i", "images", "sis")):
        if modality == "images" and not subject.has_images:
            continue
        n = len(subject.caption_image) if modality == "captions" else subject.n_images
        parts = [getattr(gallery, modality) for name in others for gallery in galleries[name]]
        whole, folded, rated = same_modality(within_modality(subject, modality), pairs[side], n,
                                             parts, ratings[kind])
        record.add(first, side, n, np.arange(n), rank=whole)
        results[first] |= {side: metrics.summary(whole[whole >= 0]),
                           kind: metrics.sampled_spearman(ratings[kind].first, ratings[kind].score,
                                                          rated, samples)}
        for name in others:
            record.add(name, side, n, np.arange(n), rank=folded)
            ranks = [folded[part] for part in parts]
            results[name][side] = metrics.average([metrics.summary(rank[rank >= 0])
                                                   for rank in ranks])
    return results


@torch.no_grad()
def same_modality(columns, pairs: Pairs, n: int, parts: list[np.ndarray], ratings: Ratings):
    """Retrieval of captions by captions or of images by images, the query kept out of its own
    gallery.

    columns: scores among the n items, in blocks; parts: disjoint parts of the items. Returns the
    0-based ranks (n,) of the best match in the whole gallery, those (n,) within the parts, both -1
    where a query has no match, and the scores (K,) of the rated pairs. Raises InputError on scores
    that are not finite.
    """
    whole, folded = np.full(n, -1), np.full(n, -1)
    rated, score = np.full(len(ratings.first), np.nan), columns(slice(None))
    for block in slices(n, 2 * ROWS):
        start, stop = block.start, block.stop
        scores = finite(score(block).cpu().numpy())                                 # (b, n)
        here = np.flatnonzero((ratings.first >= start) & (ratings.first < stop))
        rated[here] = scores[ratings.first[here] - start, ratings.second[here]]
        np.fill_diagonal(scores[:, block], -np.inf)
        matches = pairs.of_block(block)
        whole[block] = metrics.best_ranks_of_pairs(scores, *matches)
        for part in parts:
            queries = part[(part >= start) & (part < stop)] - start
            folded[start + queries] = metrics.best_ranks_of_pairs(
                scores[np.ix_(queries, part)], *matches.among(queries, part))
    return whole, folded, rated


# ---- categories of images, ECCV Caption

def pmrp(scores: np.ndarray, codes: np.ndarray, caption_image: np.ndarray, galleries: list[Gallery],
         record: Record, name: str) -> dict:
    """Plausible Match R-Precision in percent, as the mean over galleries (PCME 4.1; `ucmr` 4.3).

    An item matches if the sets of categories that the two images show differ in at most zeta
    categories, zeta in {0, 1, 2}. Images without any instance are left out, and their captions.
    scores (N, M); codes (N, K) bool: the categories that an image shows. Returns {"i2t": {"pmrp",
    "zeta0", "zeta1", "zeta2", "queries"}, "t2i": ...}. Raises InputError where a gallery has no
    image with an instance, and on scores that are not finite.
    """
    results, shown, number = [], codes.any(1), codes.astype(np.float32)
    for images, captions in galleries:
        images, captions = images[shown[images]], captions[shown[caption_image[captions]]]
        check(len(images) and len(captions), "no image of a gallery has an instance; give the "
                                             "instances of these images with --instances")
        of_images, of_captions, result = number[images], number[caption_image[captions]], {}
        for side, matrix, queries, items, of_queries, of_items in (
                ("i2t", scores, images, captions, of_images, of_captions),
                ("t2i", scores.T, captions, images, of_captions, of_images)):
            precisions = precisions_of_categories(rows_of_gallery(matrix, queries, items),
                                                  of_queries, of_items)
            means = {f"zeta{zeta}": float(100 * np.nanmean(precision))
                     for zeta, precision in zip(ZETAS, precisions)}
            result[side] = {"pmrp": float(np.mean(list(means.values()))), **means,
                            "queries": len(queries)}
            record.add(name, side, len(matrix), queries, pmrp=precisions.mean(0))
        results.append(result)
    return metrics.average(results)


def precisions_of_categories(rows, of_queries: np.ndarray, of_items: np.ndarray) -> np.ndarray:
    """R-precisions (zetas, Q) in [0, 1] of queries and items that show the categories (Q, K) and
    (G, K), as 0 and 1 in float32. rows(start, stop) returns the scores of queries against the whole
    gallery."""
    result, twice, size = np.empty((len(ZETAS), len(of_queries))), -2 * of_items.T, of_items.sum(1)

    def block(some: slice):
        here = of_queries[some]                                                     # (b, K)
        distance = here @ twice                                             # (b, G), exact integers
        distance += size
        distance += here.sum(1)[:, None]
        query, item = np.nonzero(distance <= max(ZETAS))
        far = distance[query, item]
        sets = [(query[far <= zeta], item[far <= zeta]) for zeta in ZETAS]
        result[:, some] = metrics.r_precisions_of_sets(rows(some.start, some.stop), sets)
    in_threads(block, slices(len(of_queries), ROWS))
    return result


@torch.no_grad()
def neighbours(subject: Subject, codes: np.ndarray, k: int = 10) -> dict[str, float]:
    """How many categories the k images nearest to an image share with it, in percent (`jwae` 1:
    latents that follow a prior should keep such neighbours).

    "jaccard" is the size of the intersection of the two sets of categories over that of their
    union, as the mean over neighbours and images; "chance" is the same of random images, in
    expectation. codes (N, C) bool. Images without an instance are left out. Raises InputError where
    fewer than two are left.
    """
    shown = np.flatnonzero(codes.any(1))
    n, number = len(shown), codes[shown].astype(np.float32)
    check(n > 1, "neighbours among images need two images with instances; give the instances with "
                 "--instances")
    score, size, k = within_modality(subject, "images")(torch.from_numpy(shown)), number.sum(1), min(k, n - 1)
    near = chance = 0.0
    for block in slices(n, ROWS):
        scores = finite(score(torch.from_numpy(shown[block])).cpu().numpy())        # (b, n)
        shared = number[block] @ number.T
        jaccard = shared / (size[block, None] + size - shared)                      # (b, n)
        np.fill_diagonal(scores[:, block], -np.inf)
        nearest = np.argpartition(-scores, k - 1, axis=1)[:, :k]                    # (b, k)
        near += np.take_along_axis(jaccard, nearest, 1).mean(1).sum()
        chance += ((jaccard.sum(1) - 1) / (n - 1)).sum()
    return {"jaccard": 100 * float(near) / n, "chance": 100 * float(chance) / n, "k": k,
            "images": n}


def eccv(scores: np.ndarray, pairs: dict[str, Pairs], record: Record) -> dict:
    """ECCV Caption: R@1, R-precision and mAP@R of its queries in the whole gallery, in percent.

    scores (N, M); pairs: the matches of each direction. Raises InputError on scores that are not
    finite.
    """
    gallery = Gallery(*map(np.arange, scores.shape))
    result = recalls_of_matches(scores, pairs, [gallery], record, "eccv", "rp", "map_at_r")
    return {side: {name: result[side][name] for name in ("r1", "rp", "map_at_r", "queries")}
            for side in pairs}


# ---- uncertainty

def uncertainty_report(values: np.ndarray, ranks: np.ndarray) -> dict:
    """What log det Sigma (Q,) in nats says about R@1 of 0-based ranks (Q,), NaN where a query does
    not count."""
    known = ~np.isnan(ranks)
    values, right = levelled(values[known]), ranks[known] < 1
    return {"recall_bins": metrics.recall_in_bins(values, right),
            "risk_coverage": metrics.risk_coverage(values, right)}
