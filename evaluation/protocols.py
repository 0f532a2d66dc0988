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
from cli import InputError
from evaluation.annotations import Pairs, Ratings
from evaluation.selective import levelled
from evaluation.subjects import Gallery, Record, Subject, finite, image_text, mean_of, mean_over, within_modality
from similarities import Cosine, Embedding

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


def recalls(subject: Subject, columns, galleries: list[Gallery], block: int, record: Record,
            name: str) -> dict:
    """Recalls of both directions, `metrics.both_directions`, as the mean over galleries.

    columns: scores in blocks. The ranks are kept in `record` under `name`. Raises InputError on
    scores that are not finite.
    """
    ranks = {"i2t": np.full(subject.n_images, -1), "t2i": np.full(len(subject.caption_image), -1)}
    results = []
    for images, captions in galleries:
        i2t, t2i = metrics.ranks_by_blocks(columns_of_gallery(columns, images, captions),
                                           subject.caption_image[captions] - images[0], len(images),
                                           block)
        ranks["i2t"][images], ranks["t2i"][captions] = i2t, t2i
        results.append(metrics.both_directions(i2t[i2t >= 0], t2i))
    for side, rank in ranks.items():
        record.add(name, side, rank=rank)
    return mean_over(results)


def shortlist(rows, matches: Pairs, n_queries: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The `keep` items that score best for every query, (Q, K), and the 0-based rank of its best
    match, (Q,), -1 where a query has no match. rows(start, stop) returns the scores of queries
    against the whole gallery."""
    kept, rank = [], np.full(n_queries, -1)
    for start in range(0, n_queries, ROWS):
        stop = min(start + ROWS, n_queries)
        scores = rows(start, stop)                                                  # (b, G)
        kept.append(scores.topk(min(keep, scores.shape[1]), sorted=False).indices.cpu().numpy())
        low, high = np.searchsorted(matches.query, [start, stop])
        rank[start:stop] = metrics.best_ranks_of_pairs(
            finite(scores.cpu().numpy()), matches.query[low:high] - start, matches.item[low:high]
        )
    return np.concatenate(kept), rank


@torch.no_grad()
def two_stages(subject: Subject, keep: int, galleries: list[Gallery], record: Record,
               name: str) -> dict:
    """Recalls of both directions in two stages, as the mean over galleries.

    The cosine of the means keeps the `keep` best items of every query, and the similarity puts
    these in order. All others stay below them, in the order of the cosine. "lost" is the percentage
    of queries none of whose matches was kept. An image meets all captions that it keeps or is kept
    by at once, so a pair is scored once for both directions.
    """
    near = mean_of([Cosine().columns(Embedding(m.images.mean), Embedding(m.captions.mean))
                    for m in subject.members])
    exact = image_text(subject.members)
    ranks = {"i2t": np.full(subject.n_images, -1), "t2i": np.full(len(subject.caption_image), -1)}
    results = []
    for images, captions in galleries:
        n, m, owner = len(images), len(captions), subject.caption_image[captions] - images[0]
        i, c, matches = (
            torch.from_numpy(images),
            torch.from_numpy(captions),
            Pairs.of(owner, np.arange(m)),
        )
        score, kept, rank = near(c), {}, {}
        rows = {"i2t": lambda a, b: score(i[a:b]), "t2i": lambda a, b: near(c[a:b])(i).T}   # noqa: B023
        for side, found, count in (("i2t", matches, n), ("t2i", matches.swapped(), m)):
            kept[side], rank[side] = shortlist(rows[side], found, count, keep)
        pair = {"i2t": np.arange(n)[:, None] * m + kept["i2t"],    # its number: image x m + caption
                "t2i": kept["t2i"] * m + np.arange(m)[:, None]}
        # (pairs,), by image
        wanted = np.unique(np.concatenate([numbers.ravel() for numbers in pair.values()]))
        runs = np.split(wanted % m, np.searchsorted(wanted, np.arange(1, n) * m))
        scores = np.concatenate(
            [exact(c[torch.from_numpy(run)])(i[k:k + 1])[0].float().cpu().numpy() for k,
             run in enumerate(runs)])
        final, lost = {}, {}
        for side, numbers in pair.items():
            fine = finite(scores[np.searchsorted(wanted, numbers)])                 # (Q, K)
            match = owner[numbers % m] == numbers // m
            best = np.where(match, fine, -np.inf).max(1)
            inside = np.count_nonzero((fine >= best[:, None]) & ~match, axis=1)
            final[side] = np.where(match.any(1), inside, rank[side])
            lost[side] = float(100 * np.mean(~match.any(1)[rank[side] >= 0]))
        ranks["i2t"][images], ranks["t2i"][captions] = final["i2t"], final["t2i"]
        results.append(metrics.both_directions(final["i2t"][final["i2t"] >= 0], final["t2i"]))
        for side, share in lost.items():
            results[-1][side]["lost"] = share
    for side, rank in ranks.items():
        record.add(name, side, rank=rank)
    return {**mean_over(results), "keep": keep}


# ---- rules with several matches

def ranks_and_precisions(rows, pairs: Pairs, n_queries: int,
                         average: bool = False) -> tuple[np.ndarray, ...]:
    """0-based ranks (Q,) of the best match, R-precisions (Q,) and, if `average` is true, AP@R (Q,),
    both in [0, 1].

    A query without a match gets -1 and NaN. rows(start, stop) returns the scores of queries against
    the whole gallery; only rows with a match are scored.
    """
    rank, precision = np.full(n_queries, -1), np.full(n_queries, np.nan)
    averages = (np.full(n_queries, np.nan),) * average

    def block(start):
        stop = min(start + ROWS, n_queries)
        low, high = np.searchsorted(pairs.query, [start, stop])
        if low < high:
            scores, positives = (
                rows(start, stop),
                (pairs.query[low:high] - start, pairs.item[low:high]),
            )
            rank[start:stop] = metrics.best_ranks_of_pairs(scores, *positives)
            precision[start:stop] = metrics.r_precisions_of_sets(scores, [positives])[0]
            for values in averages:
                values[start:stop] = metrics.average_precisions_of_pairs(scores, *positives)
    in_threads(block, range(0, n_queries, ROWS))
    return rank, precision, *averages


def in_threads(function, starts) -> None:
    """function(start) for every start, on as many threads as torch has; numpy lets them run side by
    side."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(function, starts))


def side_rows(scores: np.ndarray, side: str, images: np.ndarray, captions: np.ndarray):
    """rows(start, stop) of one direction among some images and captions: the scores (b, G) of
    queries, in float32."""
    whole = len(images) == scores.shape[0] and len(captions) == scores.shape[1]

    def rows(a, b):
        if side == "i2t":
            block = scores[a:b] if whole else scores[np.ix_(images[a:b], captions)]
        else:
            block = (scores[:, a:b] if whole else scores[np.ix_(images, captions[a:b])]).T
        return finite(np.ascontiguousarray(block, np.float32))
    return rows


def recalls_of_matches(scores: np.ndarray, pairs: dict[str, Pairs], galleries: list[Gallery],
                       record: Record, name: str, precision_name: str,
                       average: bool = False) -> dict:
    """Recalls and R-precision of i2t and t2i, or of one of them, in percent, as the mean over
    galleries.

    scores (N, M); pairs: the matches of each direction. "r1" is the share of queries whose best
    item is a match, the precision at 1. R-precision is stored under `precision_name`, mAP@R under
    "map_at_r" if `average` is true, and the outcome of every query in `record` under `name`. "rsum"
    is there where both directions are. Raises InputError where no query of a direction has a match
    in its gallery, and on scores that are not finite.
    """
    results, names = [], ("rank", precision_name, *["map_at_r"] * average)
    outcomes = {side: {key: np.full(n, np.nan) for key in names} for side,
                n in zip(("i2t", "t2i"), scores.shape)}
    for images, captions in galleries:
        result = {}
        for side in pairs:
            queries, items = (images, captions) if side == "i2t" else (captions, images)
            matches = pairs[side].among(queries, items) if len(galleries) > 1 else pairs[side]
            rank, *shares = ranks_and_precisions(
                side_rows(scores, side, images, captions), matches, len(queries), average
            )
            if not (rank >= 0).any():
                raise InputError(f"no {side} query of '{name}' has a match in its gallery; give at "
                                 "least one, or leave it out")
            result[side] = {**metrics.summary(rank[rank >= 0]),
                            **{key: float(100 * np.nanmean(share)) for key,
                               share in zip(names[1:], shares)}}
            for key, values in zip(names, (rank, *shares)):
                outcomes[side][key][queries] = values
        if len(result) == 2:
            result["rsum"] = metrics.rsum(result)
        results.append(result)
    for side in pairs:
        record.add(name, side, **outcomes[side])
    return mean_over(results)


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
    whole["sits"] = metrics.sampled_spearman(
        rated.first, rated.score, scores[rated.second, rated.first], samples
    )
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
        whole, folded, rated = same_modality(
            within_modality(subject, modality), pairs[side], n, parts, ratings[kind]
        )
        record.add(first, side, rank=whole)
        results[first][side] = metrics.summary(whole[whole >= 0])
        for name in others:
            record.add(name, side, rank=folded)
            ranks = [folded[part] for part in parts]
            results[name][side] = metrics.average(
                [metrics.summary(rank[rank >= 0]) for rank in ranks]
            )
        results[first][kind] = metrics.sampled_spearman(
            ratings[kind].first, ratings[kind].score, rated, samples
        )
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
    rated, part_of, score = (
        np.full(len(ratings.first), np.nan),
        np.full(n, -1),
        columns(slice(None)),
    )
    for k, part in enumerate(parts):
        part_of[part] = k
    for start in range(0, n, 2 * ROWS):
        stop = min(start + 2 * ROWS, n)
        scores = finite(score(slice(start, stop)).cpu().numpy())                    # (b, n)
        here = np.flatnonzero((ratings.first >= start) & (ratings.first < stop))
        rated[here] = scores[ratings.first[here] - start, ratings.second[here]]
        scores[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        low, high = np.searchsorted(pairs.query, [start, stop])
        matches = pairs.query[low:high] - start, pairs.item[low:high]
        whole[start:stop] = metrics.best_ranks_of_pairs(scores, *matches)
        for k in np.unique(part_of[start:stop][part_of[start:stop] >= 0]):
            rows = np.flatnonzero(part_of[start:stop] == k)
            inside = Pairs(*matches).among(rows, parts[k])
            folded[start + rows] = metrics.best_ranks_of_pairs(
                scores[np.ix_(rows, parts[k])], *inside
            )
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
    results, shown = [], codes.any(1)
    number = codes.astype(np.float32)
    values = {(side, zeta): np.full(n, np.nan) for side, n in zip(("i2t", "t2i"), scores.shape)
              for zeta in ZETAS}
    for images, captions in galleries:
        images, captions = images[shown[images]], captions[shown[caption_image[captions]]]
        if not len(images) or not len(captions):
            raise InputError("no image of a gallery has an instance; give the instances of these "
                             "images with --instances")
        result = {}
        shows = {"images": number[images], "captions": number[caption_image[captions]]}
        for side, queries, of_queries, of_items in (
            ("i2t", images, shows["images"], shows["captions"]),
            ("t2i", captions, shows["captions"], shows["images"]),
        ):
            precisions = precisions_of_categories(
                side_rows(scores, side, images, captions), of_queries, of_items
            )
            for zeta, precision in zip(ZETAS, precisions):
                values[side, zeta][queries] = precision
            means = {f"zeta{zeta}": float(100 * np.nanmean(values[side, zeta][queries]))
                     for zeta in ZETAS}
            result[side] = {"pmrp": float(np.mean(list(means.values()))), **means,
                            "queries": len(queries)}
        results.append(result)
    for side in ("i2t", "t2i"):
        record.add(name, side, pmrp=np.mean([values[side, zeta] for zeta in ZETAS], 0))
    return mean_over(results)


def precisions_of_categories(rows, of_queries: np.ndarray, of_items: np.ndarray) -> np.ndarray:
    """R-precisions (zetas, Q) in [0, 1] of queries and items that show the categories (Q, K) and
    (G, K), as 0 and 1 in float32. rows(start, stop) returns the scores of queries against the whole
    gallery."""
    result, twice, size = np.empty((len(ZETAS), len(of_queries))), -2 * of_items.T, of_items.sum(1)

    def block(start):
        here = of_queries[start:start + ROWS]                                       # (b, K)
        distance = here @ twice                                             # (b, G), exact integers
        distance += size
        distance += here.sum(1)[:, None]
        query, item = np.nonzero(distance <= max(ZETAS))
        far = distance[query, item]
        sets = [(query[far <= zeta], item[far <= zeta]) for zeta in ZETAS]
        result[:, start : start + ROWS] = metrics.r_precisions_of_sets(
            rows(start, start + len(here)), sets
        )
    in_threads(block, range(0, len(of_queries), ROWS))
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
    k = min(k, len(shown) - 1)
    if k < 1:
        raise InputError("neighbours among images need two images with instances; give the "
                         "instances with --instances")
    score, number = within_modality(subject,
                                    "images")(torch.from_numpy(shown)), codes[shown].astype(
        np.float32)
    size, near, chance = number.sum(1), 0.0, 0.0
    for start in range(0, len(shown), ROWS):
        rows = np.arange(start, min(start + ROWS, len(shown)))
        scores = finite(score(torch.from_numpy(shown[rows])).cpu().numpy())         # (b, n)
        shared = number[rows] @ number.T
        jaccard = shared / (size[rows, None] + size - shared)                       # (b, n)
        scores[np.arange(len(rows)), rows] = -np.inf
        nearest = np.argpartition(-scores, k - 1, axis=1)[:, :k]                    # (b, k)
        near += np.take_along_axis(jaccard, nearest, 1).mean(1).sum()
        chance += ((jaccard.sum(1) - 1) / (len(shown) - 1)).sum()
    return {"jaccard": 100 * float(near) / len(shown), "chance": 100 * float(chance) / len(shown),
            "k": k, "images": len(shown)}


def eccv(scores: np.ndarray, pairs: dict[str, Pairs], record: Record) -> dict:
    """ECCV Caption: R@1, R-precision and mAP@R of its queries in the whole gallery, in percent.

    scores (N, M); pairs: the matches of each direction. Raises InputError on scores that are not
    finite.
    """
    gallery = Gallery(*map(np.arange, scores.shape))
    result = recalls_of_matches(scores, pairs, [gallery], record, "eccv", "rp", average=True)
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
