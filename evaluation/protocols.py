"""Evaluation protocols: queries, galleries, matches and averages.

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
from evaluation.annotations import Pairs, Ratings
from evaluation.embeddings import MOST_SCORES, Embeddings, Member, blocks_within, uncertainties
from evaluation.encode import Gallery
from losses import Embedding, cosine

FOLD = 1000                           # images per fold; COCO 1K is the mean of five folds
ROWS = 250                            # queries whose whole rows of scores are ranked at once
ZETAS = (0, 1, 2)                     # by how many categories a match may differ (PMRP)
INSTANCES = "instances_val2014.json"  # the dev and test images of COCO's splits are of its 2014 validation set


class Record(dict):
    """Outcomes of queries: (protocol, direction, "rank" | "rp" | ...) -> (Q,).
    NaN where a query does not count.

    Ranks are 0-based, all other numbers are shares in [0, 1].
    """

    def add(self, protocol: str, side: str, count: int, queries: np.ndarray, **values) -> None:
        """Keep numbers of the queries (q,) among `count`, an array for each name.
        A negative number means that a query does not count."""
        for name, value in values.items():
            numbers = self.setdefault((protocol, side, name), np.full(count, np.nan))
            numbers[queries] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """{metric: (total (N,), count (N,))} per image, for `metrics.paired_bootstrap`.
        Percent and 1-based ranks."""
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
    """Five folds of COCO 1K: sequential images, and each fold's captions."""
    return [Gallery(np.arange(k, k + FOLD), np.flatnonzero((e.caption_image >= k) & (e.caption_image < k + FOLD)))
            for k in range(0, 5 * FOLD, FOLD)]


def gallery_scores(scores: np.ndarray, queries: np.ndarray, items: np.ndarray, rows: slice) -> np.ndarray:
    """Scores (b, G) of the queries `rows` of (Q,) against items (G,), in float32.
    scores (N, M) or (M, N). Raises InputError on scores that are not finite."""
    all_items = len(queries) == len(scores) and len(items) == scores.shape[1]
    return finite(np.ascontiguousarray(scores[rows] if all_items else scores[np.ix_(queries[rows], items)], np.float32))


def finite(block: np.ndarray) -> np.ndarray:
    """The block as it is. Raises InputError where it holds NaN or infinity."""
    if not np.isfinite(block).all():
        raise InputError(metrics.NOT_FINITE)
    return block


def in_blocks(function, n: int) -> None:
    """Call function(rows) for 0, ..., n - 1 in blocks, on torch's number of threads.
    numpy lets them run side by side."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(function, [slice(k, min(k + ROWS, n)) for k in range(0, n, ROWS)]))


# ---- the original pairs

def full(e: Embeddings, galleries: list[Gallery], record: Record, name: str) -> dict:
    """Recalls of the original pairs in both directions, mean over galleries.
    As `metrics.both_directions`."""
    results = []
    for images, captions in galleries:
        part = e.scores if e.scores.shape == (len(images), len(captions)) else e.scores[np.ix_(images, captions)]
        i2t, t2i = metrics.ranks(part, e.caption_image[captions] - images[0])
        record.add(name, "i2t", e.n_images, images, rank=i2t)
        record.add(name, "t2i", len(e.caption_image), captions, rank=t2i)
        results.append(metrics.both_directions(i2t[i2t >= 0], t2i))
    return metrics.average(results)


# ---- queries with several matches

# Ranks and shares (Q,) of a block of scores (Q, G) and its matches (P,), (P,); a query without a match gets NaN or -1.
OUTCOMES = {"rank": metrics.best_ranks, "map_at_r": metrics.average_precisions,
            "rp": lambda scores, *pairs: metrics.r_precisions(scores, [pairs])[0]}
OUTCOMES["rpc2"] = OUTCOMES["rp"]


def recalls_of_matches(scores: np.ndarray, pairs: dict[str, Pairs], galleries: list[Gallery], record: Record,
                       name: str, *precisions: str) -> dict:
    """Recalls and precisions of i2t or t2i or both, in percent.
    Mean over galleries.

    scores (N, M); pairs: the matches of each direction; precisions: names of OUTCOMES. "r1" is the share of queries
    whose best item is a match, the precision at 1. "rsum" is there where both directions are. Raises InputError where
    no query of a direction has a match in its gallery, and on scores that are not finite.
    """
    results = []
    for images, captions in galleries:
        result = {}
        for side, matches in pairs.items():
            matrix, queries, items = (scores, images, captions) if side == "i2t" else (scores.T, captions, images)
            outcomes = judge_queries(matrix, queries, items, matches.among(queries, items), ("rank", *precisions))
            ranks = outcomes["rank"][outcomes["rank"] >= 0]
            check(len(ranks), f"no {side} query of '{name}' has a match in its gallery; give at least one, or leave it "
                              "out")
            result[side] = metrics.summary(ranks) | {key: float(100 * np.nanmean(outcomes[key])) for key in precisions}
            record.add(name, side, len(matrix), queries, **outcomes)
        results.append(result | ({"rsum": metrics.rsum(result)} if len(result) == 2 else {}))
    return metrics.average(results)


def judge_queries(scores: np.ndarray, queries: np.ndarray, items: np.ndarray, pairs: Pairs,
                  names) -> dict[str, np.ndarray]:
    """OUTCOMES (Q,) of these names for queries (Q,) against items (G,).
    Only rows with a match are scored."""
    outcomes = {name: np.full(len(queries), np.nan) for name in names}

    def judge(rows: slice) -> None:
        query, item = pairs.block(rows)
        if len(query):
            block = gallery_scores(scores, queries, items, rows)
            for name, values in outcomes.items():
                values[rows] = OUTCOMES[name](block, query, item)
    in_blocks(judge, len(queries))
    return outcomes


def positives(e: Embeddings, galleries: list[Gallery], record: Record, name: str) -> dict:
    """Recalls, R-precision and mAP@R of the user's own matches."""
    listed = e.judged["positives"]
    numbers = recalls_of_matches(e.scores, {side: x.pairs for side, x in listed.items()}, galleries, record, name,
                                 "rp", "map_at_r")
    for side, x in listed.items():
        numbers[side]["without"] = x.without
    return numbers


def eccv(e: Embeddings, galleries: list[Gallery], record: Record, name: str) -> dict:
    """ECCV Caption: R@1, R-precision and mAP@R in the whole gallery, in percent."""
    numbers = recalls_of_matches(e.scores, e.judged["eccv"], galleries, record, name, "rp", "map_at_r")
    return {side: {key: numbers[side][key] for key in ("r1", "rp", "map_at_r", "queries")} for side in e.judged["eccv"]}


# ---- Crisscrossed Captions

def cxc(e: Embeddings, galleries: list[Gallery], record: Record, name: str, samples: int = 1000) -> dict:
    """Crisscrossed Captions: {i2t, t2i, rsum, t2t, i2i}, mean over galleries.
    In a gallery of everything also the rank correlations of scores with ratings, {sits, sts, sis}
    (`metrics.sampled_spearman`).

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
    """Rank captions for captions, or images for images.
    A query is kept out of its own gallery.

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
        ranks[rows] = metrics.best_ranks(scores, *pairs.block(rows))
    return ranks, rated


# ---- categories of images

def pmrp(e: Embeddings, galleries: list[Gallery], record: Record, name: str) -> dict:
    """Plausible Match R-Precision in percent, mean over galleries.
    PCME 4.1; `ucmr` 4.3.

    An item matches if the sets of categories that the two images show differ in at most zeta categories, zeta in
    {0, 1, 2}. Images without any instance are left out, and their captions. Returns {"i2t": {"pmrp", "zeta0", "zeta1",
    "zeta2", "queries"}, "t2i": ...}. Raises InputError where a gallery has no image with an instance, and on scores
    that are not finite.
    """
    shown, codes = e.judged["pmrp"].any(1), e.judged["pmrp"].astype(np.float32)     # (N,), (N, K)
    results = []
    for images, captions in galleries:
        images, captions = images[shown[images]], captions[shown[e.caption_image[captions]]]
        check(len(images) and len(captions), "no image of a gallery has an instance; give the instances of these "
                                             "images with --instances")
        sides, result = ((images, codes[images]), (captions, codes[e.caption_image[captions]])), {}
        for side, matrix, (query, item) in (("i2t", e.scores, sides), ("t2i", e.scores.T, sides[::-1])):
            precisions = precisions_by_categories(matrix, query, item)              # (zetas, Q)
            means = {f"zeta{zeta}": float(100 * np.nanmean(x)) for zeta, x in zip(ZETAS, precisions)}
            result[side] = {"pmrp": float(np.mean(list(means.values()))), **means, "queries": len(query[0])}
            record.add(name, side, len(matrix), query[0], pmrp=precisions.mean(0))
        results.append(result)
    return metrics.average(results)


def precisions_by_categories(scores: np.ndarray, query: tuple, item: tuple) -> np.ndarray:
    """R-precisions (zetas, Q) in [0, 1] by shared categories.
    query, item: positions (Q,) and categories (Q, K) as 0 and 1 in float32, and the same of the gallery."""
    result, (queries, shown), (items, codes) = np.empty((len(ZETAS), len(query[0]))), query, item
    twice, size = -2 * codes.T, codes.sum(1)

    def judge(rows: slice) -> None:
        here = shown[rows]                                                          # (b, K)
        distance = here @ twice                                                     # (b, G), exact integers
        distance += size
        distance += here.sum(1)[:, None]
        q, g = np.nonzero(distance <= max(ZETAS))
        far = distance[q, g]
        sets = [(q[far <= zeta], g[far <= zeta]) for zeta in ZETAS]
        result[:, rows] = metrics.r_precisions(gallery_scores(scores, queries, items, rows), sets)
    in_blocks(judge, len(queries))
    return result


# ---- the protocols

# To add a protocol, write its function (embeddings, galleries, record, name) -> {"i2t": numbers, "t2i": numbers, ...},
# which works for one gallery and for five folds and keeps the outcome of every query in `record` under `name`, and name
# it here. One that reads a file has a reader in READERS under the name of its option, and finds what that returns in
# e.judged. Titles and columns of its table: report.TITLES and report.NAMES.
PROTOCOLS = {"full": full, "pmrp": pmrp, "eccv": eccv, "positives": positives, "cxc": cxc}
READERS = {
    "pmrp": lambda e, opt: annotations.read_instances(
        opt.instances or os.path.join(e.folder, "annotations", INSTANCES), e.index("image")),
    "eccv": lambda e, opt: annotations.read_eccv(
        opt.eccv_path or annotations.eccv_folder(), e.index("image"), e.index("caption")),
    "positives": lambda e, opt: annotations.read_positives(opt.positives, e.index("image"), e.index("caption")),
    "cxc": lambda e, opt: annotations.read_cxc(
        opt.cxc_path or os.path.normpath(os.path.join(e.folder, "..", "cxc")), "val" if e.split == "dev" else "test",
        e.index("image"), e.index("caption"), e.caption_image)}
FOLDED = ("full", "pmrp", "cxc")                                # with --fold5 also over the five folds


def read_judgements(e: Embeddings, opt) -> dict:
    """{protocol: what was read for it} of the protocols that the options name.
    Raises InputError on files that are missing, broken or of other items."""
    return {name: read(e, opt) for name, read in READERS.items() if getattr(opt, name)}


def list_versions(e: Embeddings, opt) -> dict[str, tuple[Embeddings, tuple[str, ...]]]:
    """Versions of the embeddings to rank by: {name: (embeddings, protocols)}.
    They are the embeddings as they are, with the bank of queries, and where variances rank as points and
    (--uncertainty) with the variances of other items. The last two show what variances do, and whether it matters
    whose they are."""
    versions = {"": (e, tuple(PROTOCOLS))}
    if can_rank(e) and e.bank is not None:
        versions["bank"] = replace(e, bank=None, subtracted=e.bank), ("full",)
    if can_rank(e) and ranks_by_variances(e):
        versions["mean_only"] = replace(e, members=means_only(e.members)), ("full", "positives")
        if opt.uncertainty:
            versions["shuffled"] = replace(e, members=shuffle_variances(e.members)), ("full", "positives")
    return versions


def run_protocols(e: Embeddings, opt) -> tuple[dict[str, dict], Record]:
    """The "protocols" of results.json, and the outcome of every query.
    Raises InputError where the options do not fit the embeddings."""
    check(not opt.fold5 or e.n_images >= 5 * FOLD,
          f"--fold5 needs 5 x 1,000 images and {e.name} has {e.n_images:,}; leave it out or name a larger split (COCO: "
          "testall for precomputed features)")
    check(not opt.uncertainty or e.gaussian,
          f"--uncertainty: {e.name} has points, which have no uncertainty; evaluate a Gaussian model, or give them "
          "variances: python -m confidence RUN --variances volume --export FILE.npz")
    results, record = {}, Record()
    for version, (x, names) in list_versions(e, opt).items():
        for name in names:
            if name in READERS and name not in e.judged or not (can_rank(e) or name == "cxc"):
                continue
            title = "_".join(word for word in (name, version) if word)
            title = version if name == "full" and version else title
            results[title] = PROTOCOLS[name](x, everything(e), record, title)
            if opt.fold5 and name in FOLDED and version != "shuffled":
                folded = "folds5" if title == "full" else f"{title}_folds5"
                results[folded] = PROTOCOLS[name](x, folds(e), record, folded)
        x.__dict__.pop("scores", None)                          # 500 MB for COCO's test split; computed again if needed
    return results, record


def can_rank(e: Embeddings) -> bool:
    """True if images and captions are there and their scores few enough to hold."""
    return e.has_images and e.n_images * len(e.caption_image) <= MOST_SCORES


def describe_missing(e: Embeddings) -> list[str]:
    """A note on embeddings whose images and captions are not ranked."""
    if can_rank(e):
        return []
    why = (f"the scores of {e.n_images:,} images and {len(e.caption_image):,} captions do not fit into memory"
           if e.has_images else "there are no images")
    return [f"images and captions are not ranked: {why}"]


# ---- the members as points, and with the variances of other items

def ranks_by_variances(e: Embeddings) -> bool:
    """True if any member compares by variances, unlike the cosine of means."""
    return e.gaussian and not all(m.similarity is cosine for m in e.members)


def means_only(members: list[Member]) -> list[Member]:
    """The members as points, compared by the cosine."""
    return [Member(cosine, Embedding(m.images.mean), Embedding(m.captions.mean)) for m in members]


def shuffle_variances(members: list[Member]) -> list[Member]:
    """The members with the variances of other items."""
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


# ---- all that is asked

def report_uncertainty(e: Embeddings, opt, record: Record) -> dict[str, dict]:
    """Mean and deviation of log det Sigma of images and captions, in nats.
    With --uncertainty also what it says about R@1 and about the number of positives of a query."""
    results = {}
    for queries, values in uncertainties(e).items():
        side = "i2t" if queries == "images" else "t2i"
        results[queries] = {"mean": float(values.mean()), "std": float(values.std())}
        if opt.uncertainty and ("full", side, "rank") in record:
            ranks = record["full", side, "rank"]
            known = ~np.isnan(ranks)
            order, hits = metrics.join_rounded(values[known]), ranks[known] < 1
            results[queries] |= {"recall_bins": metrics.recall_in_bins(order, hits),
                                 "risk_coverage": metrics.risk_coverage(order, hits)}
        if opt.uncertainty and side in e.judged.get("positives", {}):
            count = np.bincount(e.judged["positives"][side].pairs.query, minlength=len(values))
            order = metrics.join_rounded(values[count > 0])
            results[queries]["rho_positives"] = metrics.spearman(order, count[count > 0])
    return results


def doubt_scores(e: Embeddings, numbers: dict) -> list[str]:
    """Note on a file whose captions rank their images far below the middle.
    Such a file holds distances."""
    place, middle = numbers.get("full", {}).get("t2i", {}).get("medr", 0), e.n_images / 2
    doubtful = not e.models and place > middle * max(1.2, 1 + 5 / len(e.caption_image) ** 0.5)
    return [f"{e.name}: the median rank of a caption's image is {place:,.0f} of {e.n_images:,}, far worse than chance "
            f"({middle:,.0f}): scores are higher where items fit better, so negate distances"] * doubtful


@torch.no_grad()
def assess(e: Embeddings, opt) -> tuple[dict, Record]:
    """Run all protocols of the options.
    Returns the content of results.json and the outcome of every query.

    e.judged: as `read_judgements` returns it. Raises InputError where the options do not fit the embeddings.
    """
    numbers, record = run_protocols(e, opt)
    results = {"checkpoints": e.name.split(" + "), "data_name": e.data_name or os.path.basename(e.name),
               "split": e.split or None, "similarity": e.similarity, "images": e.n_images,
               "captions": len(e.caption_image), "protocols": numbers, **e.report}
    if "full" in numbers:
        results["chance"] = {"full": metrics.chance(e.caption_image, e.n_images)}
        if opt.fold5:
            results["chance"]["folds5"] = metrics.average([
                metrics.chance(e.caption_image[captions] - images[0], len(images)) for images, captions in folds(e)])
        ranks = {side: record["full", side, "rank"] for side in ("i2t", "t2i")}
        results["best_ranks"] = {side: metrics.best_rank_means(x[~np.isnan(x)]) for side, x in ranks.items()}
    more = {"notes": [*e.notes, *doubt_scores(e, numbers), *describe_missing(e)],
            "uncertainty": report_uncertainty(e, opt, record)}
    return replace_nan(results | {name: part for name, part in more.items() if part}), record


def replace_nan(value):
    """Replace NaN by None, since JSON lacks it.
    A correlation with a constant is NaN."""
    if isinstance(value, dict):
        return {key: replace_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
