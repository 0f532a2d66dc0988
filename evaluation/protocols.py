"""Evaluation protocols: what is retrieved from what, which items count as matches, and what is averaged.

Each protocol returns its numbers and keeps the outcome of every query in a `Record`, for files of ranks and for tests
of differences. `PROTOCOLS` lists them; `assess` runs those that the options ask for.

Papers: `ucmr`; PCME (Chun et al. 2021) for PMRP; CxC (Parekh et al. 2021); ECCV Caption (Chun et al. 2022).
"""
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

import metrics
from cli import InputError, check
from evaluation import annotations
from evaluation.annotations import Crisscrossed, Listed, Pairs, Ratings
from evaluation.embeddings import MOST_SCORES, Embeddings, Member, blocks_within, uncertainties
from evaluation.encode import Gallery
from losses import Embedding, cosine

FOLD = 1000                           # images per fold; COCO 1K is the mean of five folds
ROWS = 250                            # queries whose whole rows of scores are ranked at once
ZETAS = (0, 1, 2)                     # by how many categories a match may differ (PMRP)
INSTANCES = "instances_val2014.json"  # the dev and test images of COCO's splits are of its 2014 validation set


class Record(dict):
    """(protocol, direction, "rank" | "rp" | ...) -> one number per query; NaN where a query does not count.

    Ranks are 0-based, all other numbers are shares in [0, 1].
    """

    def add(self, protocol: str, side: str, count: int, queries: np.ndarray, **values) -> None:
        """Keep one number for each name of the queries (q,) among `count`; negative numbers mean that a query does not
        count."""
        for name, value in values.items():
            numbers = self.setdefault((protocol, side, name), np.full(count, np.nan))
            numbers[queries] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """{metric: (total (N,), count (N,))} per image, as `metrics.paired_bootstrap` takes it; percent and 1-based
        ranks."""
        totals = {}
        for (protocol, side, name), value in self.items():
            known = ~np.isnan(value)
            value = value[known]
            owner = (np.arange(n_images) if side[0] == "i" else caption_image)[known]
            numbers, count = {name: 100 * value}, np.bincount(owner, minlength=n_images)
            if name == "rank":
                numbers = {f"r{k}": 100 * (value < k) for k in metrics.RECALLS}
                numbers["meanr"] = value + 1
            for key, number in numbers.items():
                totals[f"{protocol} {side} {key}"] = np.bincount(owner, number, n_images), count
        return totals


# ---- galleries

def everything(e: Embeddings) -> list[Gallery]:
    """One gallery of all images and captions."""
    return [Gallery(np.arange(e.n_images), np.arange(len(e.caption_image)))]


def folds(e: Embeddings) -> list[Gallery]:
    """The five folds of COCO 1K: sequential images, and the captions of each fold's images."""
    return [Gallery(np.arange(k, k + FOLD), np.flatnonzero((e.caption_image >= k) & (e.caption_image < k + FOLD)))
            for k in range(0, 5 * FOLD, FOLD)]


# ---- recalls of the original pairs

def recalls(scores: np.ndarray, caption_image: np.ndarray, galleries: list[Gallery], record: Record,
            name: str) -> dict:
    """Recalls of both directions, `metrics.both_directions`, as the mean over galleries of sequential images.

    scores (N, M). The ranks are kept in `record` under `name`. Raises InputError on scores that are not finite.
    """
    results = []
    for images, captions in galleries:
        part = scores if scores.shape == (len(images), len(captions)) else scores[np.ix_(images, captions)]
        i2t, t2i = metrics.ranks(part, caption_image[captions] - images[0])
        record.add(name, "i2t", len(scores), images, rank=i2t)
        record.add(name, "t2i", len(caption_image), captions, rank=t2i)
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


def finite(block: np.ndarray) -> np.ndarray:
    """The block as it is. Raises InputError where it holds NaN or infinity."""
    if not np.isfinite(block).all():
        raise InputError(metrics.NOT_FINITE)
    return block


def slices(n: int, block: int) -> list[slice]:
    """0, ..., n - 1 in blocks."""
    return [slice(k, min(k + block, n)) for k in range(0, n, block)]


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

def cxc(e: Embeddings, opt, galleries: list[Gallery], record: Record, name: str, samples: int = 1000) -> dict:
    """Crisscrossed Captions: {i2t, t2i, rsum, t2t, i2i} as means over galleries and, in a gallery of everything, the
    rank correlations of scores with ratings, {sits, sts, sis} (`metrics.sampled_spearman`).

    i2t and t2i carry "rpc2", RPC^2 (`ucmr` 4.3): R-precision over the CxC matches, in percent. Without images there is
    text to text alone; a matrix of scores has none within a modality.
    """
    (ratings, pairs), result, total = e.judged["cxc"], {}, len(e.caption_image)
    whole = len(galleries) == 1 and len(galleries[0].captions) == total
    if can_rank(e):
        result |= recalls_of_matches(e.scores, {side: pairs[side] for side in ("i2t", "t2i")}, galleries, record, name,
                                     "rpc2")
        if whole:
            rated = ratings["sits"]
            result["sits"] = metrics.sampled_spearman(rated.first, rated.score, e.scores[rated.second, rated.first],
                                                      samples)
    for side, modality, kind in (("t2t", "captions", "sts"), ("i2i", "images", "sis")) if e.members else ():
        if modality == "images" and not e.has_images:
            continue
        rated, summaries = ratings[kind], []
        for items in (getattr(gallery, modality) for gallery in galleries):
            ranks, scores = ranks_within(e, modality, items, pairs[side], rated if whole else None)
            record.add(name, side, e.n_images if modality == "images" else total, items, rank=ranks)
            summaries.append(metrics.summary(ranks[ranks >= 0]))
        result[side] = metrics.average(summaries)
        if whole:
            result[kind] = metrics.sampled_spearman(rated.first, rated.score, scores, samples)
    return result


def ranks_within(e: Embeddings, modality: str, items: np.ndarray, pairs: Pairs,
                 ratings: Ratings | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Retrieval of "captions" by captions or of "images" by images, the query kept out of its own gallery.

    items (n,): queries and gallery. Returns the 0-based ranks (n,) of the best match, -1 where a query has no match,
    and the scores (K,) of rated pairs, whose positions are among `items`. Raises InputError on scores that are not
    finite.
    """
    ranks, pairs = np.full(len(items), -1), pairs.among(items, items)
    rated = None if ratings is None else np.full(len(ratings.first), np.nan)
    for rows, scores in blocks_within(e, modality, items, 2 * ROWS):
        scores = finite(scores.cpu().numpy())                                       # (b, n)
        if ratings is not None:
            here = np.flatnonzero((ratings.first >= rows.start) & (ratings.first < rows.stop))
            rated[here] = scores[ratings.first[here] - rows.start, ratings.second[here]]
        np.fill_diagonal(scores[:, rows], -np.inf)
        ranks[rows] = metrics.best_ranks_of_pairs(scores, *pairs.of_block(rows))
    return ranks, rated


# ---- categories of images, ECCV Caption

def pmrp(e: Embeddings, opt, galleries: list[Gallery], record: Record, name: str) -> dict:
    """Plausible Match R-Precision in percent, as the mean over galleries (PCME 4.1; `ucmr` 4.3).

    An item matches if the sets of categories that the two images show differ in at most zeta
    categories, zeta in {0, 1, 2}. Images without any instance are left out, and their captions. Returns
    {"i2t": {"pmrp", "zeta0", "zeta1", "zeta2", "queries"}, "t2i": ...}. Raises InputError where a gallery has no
    image with an instance, and on scores that are not finite.
    """
    codes, scores, caption_image = e.judged["pmrp"], e.scores, e.caption_image      # (N, K) bool, (N, M), (M,)
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


def neighbours(e: Embeddings, k: int = 10) -> dict[str, float]:
    """Categories that the k images nearest to an image share with it, in percent (`jwae` 1:
    latents that follow a prior should keep such neighbours).

    "jaccard" is the size of the intersection of the two sets of categories over that of their
    union, as the mean over neighbours and images; "chance" is the same of random images, in
    expectation. Images without an instance are left out. Raises InputError where fewer than two are left.
    """
    codes = e.judged["pmrp"]                                                        # (N, C) bool
    shown = np.flatnonzero(codes.any(1))
    n, number = len(shown), codes[shown].astype(np.float32)
    check(n > 1, "neighbours among images need two images with instances; give the instances with "
                 "--instances")
    size, k, near, chance = number.sum(1), min(k, n - 1), 0.0, 0.0
    for block, scores in blocks_within(e, "images", shown, ROWS):
        scores = finite(scores.cpu().numpy())                                       # (b, n)
        shared = number[block] @ number.T
        jaccard = shared / (size[block, None] + size - shared)                      # (b, n)
        np.fill_diagonal(scores[:, block], -np.inf)
        nearest = np.argpartition(-scores, k - 1, axis=1)[:, :k]                    # (b, k)
        near += np.take_along_axis(jaccard, nearest, 1).mean(1).sum()
        chance += ((jaccard.sum(1) - 1) / (n - 1)).sum()
    return {"jaccard": 100 * float(near) / n, "chance": 100 * float(chance) / n, "k": k,
            "images": n}


def eccv(e: Embeddings, opt, galleries: list[Gallery], record: Record, name: str) -> dict:
    """ECCV Caption: R@1, R-precision and mAP@R of its queries in the whole gallery, in percent. Raises InputError on
    scores that are not finite."""
    result = recalls_of_matches(e.scores, e.judged["eccv"], galleries, record, name, "rp", "map_at_r")
    return {side: {key: result[side][key] for key in ("r1", "rp", "map_at_r", "queries")} for side in e.judged["eccv"]}


# ---- the members as points, and with the variances of other items

def means_only(members: list[Member]) -> list[Member]:
    """The members as points, compared by the cosine: the row that shows what the variances do."""
    return [Member(cosine, Embedding(m.images.mean), Embedding(m.captions.mean)) for m in members]


def shuffle_variances(members: list[Member]) -> list[Member]:
    """The members with the variances of other items: the row that shows whether it matters whose they are."""
    return [Member(m.similarity, *deal_variances(m.images, m.captions)) for m in members]


def deal_variances(images: Embedding, captions: Embedding, seed: int = 0) -> tuple[Embedding, Embedding]:
    """Both sides with the variances of other items; points stay as they are.

    Each side goes round one random circle, so that no item keeps its own variances. The circles are drawn one after
    the other: with as many captions as images, a common one would leave matching variances together.
    """
    generator = torch.Generator().manual_seed(seed)

    def deal(e: Embedding) -> Embedding:
        circle = torch.randperm(len(e.mean), generator=generator).to(e.mean.device)
        if e.log_var is None:
            return e
        log_var = torch.empty_like(e.log_var)
        log_var[circle] = e.log_var[circle.roll(1)]
        return e._replace(log_var=log_var)
    return deal(images), deal(captions)


def ranks_by_variances(e: Embeddings) -> bool:
    """Whether any member has variances and compares by them: the cosine looks at means alone."""
    return e.gaussian and not all(m.similarity is cosine for m in e.members)


# ---- readers of judgements, (embeddings, options) -> matches or ratings as positions in the split

def read_instances(e: Embeddings, opt) -> np.ndarray:
    """(N, K) bool: the categories that each image shows."""
    return annotations.read_instances(opt.instances or os.path.join(e.folder, "annotations", INSTANCES),
                                      e.index("image"))


def read_eccv(e: Embeddings, opt) -> dict[str, Pairs]:
    """The matches of both directions."""
    return annotations.read_eccv(opt.eccv_path or annotations.eccv_folder(), e.index("image"), e.index("caption"))


def read_positives(e: Embeddings, opt) -> dict[str, Listed]:
    """The user's own matches, of one direction or both."""
    return annotations.read_positives(opt.positives, e.index("image"), e.index("caption"))


def read_cxc(e: Embeddings, opt) -> Crisscrossed:
    """The ratings of the val or test part, and the matches that follow from them."""
    folder = opt.cxc_path or os.path.normpath(os.path.join(e.folder, "..", "cxc"))
    ratings = annotations.read_cxc(folder, "val" if e.split in ("dev", "val") else "test", e.index("image"),
                                   e.index("caption"))
    return Crisscrossed(ratings, annotations.cxc_pairs(ratings, e.caption_image, opt.cxc_rule))


READERS = {"pmrp": read_instances, "eccv": read_eccv, "positives": read_positives, "cxc": read_cxc}


def read_judgements(e: Embeddings, opt) -> dict:
    """{protocol: what was read for it} of the protocols that the options name. Raises InputError on files that are
    missing, broken or of other items."""
    return {name: read(e, opt) for name, read in READERS.items() if getattr(opt, name)}


# ---- the protocols, (embeddings, options, galleries, record, name) -> {"i2t": numbers, "t2i": numbers, ...}

def full(e: Embeddings, opt, galleries: list[Gallery], record: Record, name: str) -> dict:
    """Recalls of the original pairs."""
    return recalls(e.scores, e.caption_image, galleries, record, name)


def bank(e: Embeddings, opt, galleries: list[Gallery], record: Record, name: str) -> dict | None:
    """Recalls of the original pairs with query-bank normalisation."""
    if e.bank is None:
        return None
    images, captions = (terms.numpy() for terms in e.bank)                          # (N,), (M,)
    return recalls(e.scores - images[:, None] - captions, e.caption_image, galleries, record, name)


def positives(e: Embeddings, opt, galleries: list[Gallery], record: Record, name: str) -> dict:
    """Recalls, R-precision and mAP@R of the user's own matches."""
    listed = e.judged["positives"]
    numbers = recalls_of_matches(e.scores, {side: x.pairs for side, x in listed.items()}, galleries, record, name,
                                 "rp", "map_at_r")
    for side, x in listed.items():
        numbers[side]["without"] = x.without
    return numbers


# To add a protocol, write its function, which works for one gallery and for five folds and keeps the outcome of every
# query in `record` under `name`, and name it here. One that reads a file has a reader in READERS under the name of its
# option, and finds what that returns in e.judged. Titles and columns of its table: report.TITLES and report.NAMES.
PROTOCOLS = {"full": full, "bank": bank, "pmrp": pmrp, "eccv": eccv, "positives": positives, "cxc": cxc}
FOLDED = ("full", "bank", "mean_only", "pmrp", "cxc")           # with --fold5 also over the five folds
CONTROLLED = ("full", "positives")                              # also with other variances, see `controls`
NEED_IMAGES = {"full": "image to text and text to image", "pmrp": "PMRP", "eccv": "ECCV Caption",
               "positives": "--positives", "cxc": "image-text and image-image retrieval, SITS and SIS"}


def controls(e: Embeddings, opt) -> dict[str, Embeddings]:
    """{"mean_only": the same as points, "shuffled": with the variances of other items}, where variances rank: these
    rows show what the variances do, and whether it matters whose they are."""
    if not ranks_by_variances(e):
        return {}
    shuffled = {"shuffled": replace(e, members=shuffle_variances(e.members))} if opt.uncertainty and opt.control else {}
    return {"mean_only": replace(e, members=means_only(e.members))} | shuffled


def run_protocols(e: Embeddings, opt) -> tuple[dict[str, dict], Record]:
    """The "protocols" of results.json, and the outcome of every query. Raises InputError where the options do not fit
    the embeddings."""
    n = e.n_images
    check(not opt.fold5 or n >= 5 * FOLD,
          f"--fold5 needs 5 x 1,000 images and {e.name} has {n:,}; leave it out or name a larger split (COCO: testall "
          "for precomputed features)")
    check(not opt.uncertainty or e.gaussian,
          f"--uncertainty: {e.name} has points, which have no uncertainty; evaluate a Gaussian model, or give them "
          "variances: python -m confidence RUN --variances volume --export FILE.npz")
    results, record = {}, Record()
    versions = {"": e} | (controls(e, opt) if can_rank(e) else {})
    for name, protocol in PROTOCOLS.items():
        if name in READERS and name not in e.judged or not (can_rank(e) or name == "cxc"):
            continue
        for version, x in versions.items() if name in CONTROLLED else [("", e)]:
            title = version if name == "full" and version else "_".join(filter(None, [name, version]))
            results[title] = protocol(x, opt, everything(e), record, title)
            if opt.fold5 and title in FOLDED:
                folded = "folds5" if title == "full" else f"{title}_folds5"
                results[folded] = protocol(x, opt, folds(e), record, folded)
            if version:
                x.__dict__.pop("scores", None)                  # 500 MB for COCO's test split
    return {name: numbers for name, numbers in results.items() if numbers is not None}, record


def can_rank(e: Embeddings) -> bool:
    """Whether images and captions are there, and their scores few enough to hold."""
    return e.has_images and e.n_images * len(e.caption_image) <= MOST_SCORES


def list_absent(e: Embeddings, opt) -> list[str]:
    """Sentences on what cannot be computed."""
    why = "there are no images"
    if e.has_images:
        gigabytes = 4e-9 * e.n_images * len(e.caption_image)
        why = f"the scores of {e.n_images:,} images and {len(e.caption_image):,} captions take {gigabytes:.0f} GB"
    absent = [] if can_rank(e) else [f"{title}: {why}" for name, title in NEED_IMAGES.items()
                                     if name == "full" or getattr(opt, name)]
    return absent + ["text-text and image-image retrieval, STS and SIS: a score matrix holds image-text scores "
                     "only"] * bool(opt.cxc and not e.members)


# ---- uncertainty

def uncertainty_report(values: np.ndarray, ranks: np.ndarray) -> dict:
    """Report on what log det Sigma (Q,) in nats says about R@1 of 0-based ranks (Q,), NaN where a query does
    not count."""
    known = ~np.isnan(ranks)
    values, right = metrics.join_rounded(values[known]), ranks[known] < 1
    return {"recall_bins": metrics.recall_in_bins(values, right),
            "risk_coverage": metrics.risk_coverage(values, right)}


def rho_positives(values: np.ndarray, pairs: Pairs) -> float:
    """Spearman's correlation of log det Sigma (Q,) with the number of positives of the queries that have any."""
    count = np.bincount(pairs.query, minlength=len(values))                         # (Q,)
    return metrics.spearman(metrics.join_rounded(values[count > 0]), count[count > 0])


# ---- all that is asked

def chances(e: Embeddings, over_folds: bool) -> dict[str, dict]:
    """Expected results of a random order, in the gallery of everything and, where asked, as the mean over the folds."""
    results = {"full": metrics.chance(e.caption_image, e.n_images)}
    if over_folds:
        results["folds5"] = metrics.average([metrics.chance(e.caption_image[captions] - images[0], len(images))
                                             for images, captions in folds(e)])
    return results


def report_uncertainty(e: Embeddings, opt, record: Record) -> dict[str, dict]:
    """{"images" | "captions": mean and deviation of log det Sigma and, with --uncertainty, what it says}."""
    results = {}
    for queries, values in uncertainties(e).items():
        side = "i2t" if queries == "images" else "t2i"
        results[queries] = {"mean": float(values.mean()), "std": float(values.std())}
        if opt.uncertainty and ("full", side, "rank") in record:
            results[queries] |= uncertainty_report(values, record["full", side, "rank"])
        if opt.uncertainty and side in e.judged.get("positives", {}):
            results[queries]["rho_positives"] = rho_positives(values, e.judged["positives"][side].pairs)
    return results


def doubt_scores(e: Embeddings, numbers: dict) -> list[str]:
    """A note on a file whose captions rank their images far below the middle: it holds distances."""
    place, middle = numbers.get("full", {}).get("t2i", {}).get("medr", 0), e.n_images / 2
    doubtful = not e.models and place > middle * max(1.2, 1 + 5 / len(e.caption_image) ** 0.5)
    return [f"{e.name}: the median rank of a caption's image is {place:,.0f} of {e.n_images:,}, far worse than chance "
            f"({middle:,.0f}): scores are higher where items fit better, so negate distances"] * doubtful


@torch.no_grad()
def assess(e: Embeddings, opt) -> tuple[dict, Record]:
    """Run all that the options ask for: the content of results.json, and the outcome of every query.

    e.judged: as `read_judgements` returns it. Raises InputError where the options do not fit the embeddings.
    """
    numbers, record = run_protocols(e, opt)
    ranks = {side: record["full", side, "rank"] for side in ("i2t", "t2i") if "full" in numbers}
    parts = {"chance": ranks and chances(e, opt.fold5), **e.report, "notes": [*e.notes, *doubt_scores(e, numbers)],
             "best_ranks": {side: metrics.best_rank_means(x[~np.isnan(x)]) for side, x in ranks.items()},
             "absent": list_absent(e, opt), "uncertainty": report_uncertainty(e, opt, record),
             "neighbours": "pmrp" in e.judged and e.members and can_rank(e) and neighbours(e)}
    results = {"checkpoints": e.name.split(" + "), "data_name": e.data_name, "split": e.split or None,
               "similarity": e.similarity, "images": e.n_images, "captions": len(e.caption_image),
               "protocols": numbers} | {name: part for name, part in parts.items() if part}
    return replace_nan(results), record


def replace_nan(value):
    """The value with None for each NaN (a correlation with a constant, say), which JSON lacks."""
    if isinstance(value, dict):
        return {key: replace_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
