"""Evaluation protocols: queries, galleries, matches and averages.

Each protocol returns its numbers and keeps the outcome of every query in a `Record`, for tests of
differences.
`PROTOCOLS` lists them; `assess` runs those that the options ask for.

Papers: `ucmr`; PCME (Chun et al. 2021) for PMRP; CxC (Parekh et al. 2021); ECCV Caption (Chun et
al. 2022).
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import metrics
from data import Gallery
from evaluation.ambiguity import caption_baselines, correlate_measures
from evaluation.annotations import (
    Crisscrossed,
    Pairs,
    Ratings,
    eccv_folder,
    match_original_pairs,
    read_cxc,
    read_eccv,
    read_instances,
    read_positives,
)
from evaluation.blocks import BlockScores
from evaluation.embeddings import Embeddings, Member, uncertainties
from evaluation.hard_negatives import judge_models, read_all
from losses import Embedding, cosine, within_modality
from utils import InputError

IMAGES_PER_FOLD = 1000  # COCO 1K is the mean of five folds
QUERIES_PER_BLOCK = 250  # queries whose whole rows of scores are ranked at once
MAX_SCORES = 2**30  # 4 GiB; larger splits are ranked block by block
ZETAS = (0, 1, 2)  # by how many categories a match may differ (PMRP)
# COCO's dev and test images are of its 2014 validation set.
INSTANCES_FILE = "instances_val2014.json"


class Record(dict):
    """Outcomes of queries: (protocol, direction, "rank" | "rp" | ...) -> (Q,).

    Ranks are 0-based, all other numbers are shares in [0, 1]; NaN where a query does not count.
    """

    def __init__(self, *outcomes):
        super().__init__(*outcomes)
        # (protocol, direction) -> the images (Q,) of queries that are no images or captions
        self.image_of = {}

    def add(self, protocol: str, side: str, count: int, queries: np.ndarray, **values) -> None:
        """Keep numbers of the queries (q,) among `count`, an array for each name.

        A negative number means that a query does not count.
        """
        for name, value in values.items():
            numbers = self.setdefault((protocol, side, name), np.full(count, np.nan))
            numbers[queries] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """Sum per image for `metrics.paired_bootstrap`: {metric: (total, count) (N,)}.

        Percent and 1-based ranks. caption_image (M,): the row of each caption's image.
        """
        totals = {}
        for (protocol, side, name), value in self.items():
            owner = caption_image
            if (protocol, side) in self.image_of:
                owner = self.image_of[protocol, side]
            elif side[0] == "i":  # images are the queries
                owner = np.arange(n_images)
            known = ~np.isnan(value)
            value = value[known]
            owner = owner[known]

            if name == "rank":
                numbers = {f"r{k}": 100 * (value < k) for k in metrics.RECALLS}
                numbers["meanr"] = value + 1
            else:
                numbers = {name: 100 * value}
            count = np.bincount(owner, minlength=n_images)
            for key, number in numbers.items():
                totals[f"{protocol} {side} {key}"] = np.bincount(owner, number, n_images), count
        return totals


# ---- galleries


def everything(e: Embeddings) -> Gallery:
    """Return the gallery of all images and captions."""
    return Gallery(np.arange(e.n_images), np.arange(len(e.caption_image)))


def folds(e: Embeddings) -> list[Gallery]:
    """Cut COCO 1K into five folds: sequential images, and each fold's captions."""
    galleries = []
    for start in range(0, 5 * IMAGES_PER_FOLD, IMAGES_PER_FOLD):
        images = np.arange(start, start + IMAGES_PER_FOLD)
        inside = (e.caption_image >= start) & (e.caption_image < start + IMAGES_PER_FOLD)
        galleries.append(Gallery(images, np.flatnonzero(inside)))
    return galleries


def directions(scores: np.ndarray, images: np.ndarray, captions: np.ndarray):
    """Yield (direction, its scores, positions of queries and of gallery items)."""
    yield "i2t", scores, images, captions
    yield "t2i", scores.T, captions, images


def judge_blocks(
    judge, scores: np.ndarray, queries: np.ndarray, items: np.ndarray
) -> dict[str, np.ndarray]:
    """Join what judge(block, rows) returns, {name: (b,)}, for blocks of queries (Q,).

    block (b, G): finite scores of queries[rows] against items (G,), in float32. numpy lets the
    blocks run side by side, on as many threads as torch has.
    """

    def judge_rows(rows: slice) -> dict[str, np.ndarray]:
        here = queries[rows]
        if len(items) == scores.shape[1]:  # all items, which need no copy first
            block = scores[here]
        else:
            block = scores[np.ix_(here, items)]
        block = np.ascontiguousarray(block, np.float32)
        return judge(metrics.check_finite(block), rows)

    starts = range(0, len(queries), QUERIES_PER_BLOCK)
    blocks = [slice(start, start + QUERIES_PER_BLOCK) for start in starts]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = list(pool.map(judge_rows, blocks))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# ---- the original pairs


def rank_original_pairs(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute recalls of the original pairs, `metrics.both_directions`."""
    if isinstance(e.matrix, BlockScores):
        matches = match_original_pairs(e.caption_image)
        return recalls_of_matches(e.matrix, matches, gallery, record, name)

    images, captions = gallery
    owner = e.caption_image[captions] - images[0]
    ties = {}
    if e.matrix is None and not holds_scores(e):
        members = []
        for m in e.members:
            members.append((m.similarity, m.images.rows(images), m.captions.rows(captions)))
        i2t, t2i = metrics.rank_members(members, owner)
    else:
        part = e.scores
        if part.shape != (len(images), len(captions)):
            part = part[np.ix_(images, captions)]
        i2t, t2i = metrics.ranks(part, owner)
        if name == "full":
            ties = metrics.count_ties(part, e.caption_image, i2t, t2i)

    record.add(name, "i2t", e.n_images, images, rank=i2t)
    record.add(name, "t2i", len(e.caption_image), captions, rank=t2i)
    if ties:
        e.report["ties"] = ties
    # an image without captions has no rank
    return metrics.both_directions(metrics.summary(i2t[i2t >= 0]), metrics.summary(t2i))


# ---- queries with several matches


def reciprocal_ranks(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Compute 1 / rank (Q,) of the best match of each query, 1-based."""
    return 1 / (1 + metrics.best_ranks(scores, query, item))


def shares_of_matches(scores: np.ndarray, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Compute R-precision (Q,) of one set of matches."""
    return metrics.r_precisions(scores, [(query, item)])[0]


# Ranks and shares (Q,) of a block of scores (Q, G) and its matches (P,), (P,).
OUTCOMES = {
    "rank": metrics.best_ranks,
    "map_at_r": metrics.average_precisions,
    "rp": shares_of_matches,
    "rpc2": shares_of_matches,  # R-precision over the matches of CxC
    "ndcg10": metrics.ndcgs,
    "mrr": reciprocal_ranks,
}


def judge_matches(
    block: np.ndarray, rows: slice, pairs: Pairs, outcomes: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Compute OUTCOMES (b,) of the queries `rows` from their scores (b, G) and the pairs of all."""
    matches = pairs.block(rows)
    return {key: OUTCOMES[key](block, *matches) for key in outcomes}


def recalls_of_matches(
    scores: np.ndarray,
    matches: dict[str, Pairs],
    gallery: Gallery,
    record: Record,
    name: str,
    *precisions: str,
) -> dict:
    """Compute recalls and precisions of i2t or t2i or both, in percent.

    "r1" is the share of queries whose best item is a match. Queries without a match in the gallery
    do not count. "rsum" is there where both directions are. Raises InputError where no query
    counts.

    Args:
        scores: (N, M), of all images and captions.
        matches: by direction; a direction without matches is left out.
        gallery: images and captions that are ranked.
        record: keeps the outcome of every query.
        name: of the protocol, in `record`.
        precisions: names of OUTCOMES.
    """
    result = {}
    for side, matrix, queries, items in directions(scores, *gallery):
        if side not in matches:
            continue
        pairs = matches[side].among(queries, items)
        asked, query = np.unique(pairs.query, return_inverse=True)
        queries = queries[asked]
        pairs = Pairs(query, pairs.item)
        if not len(queries):
            raise InputError(
                f"none of the {side} queries of '{name}' has a match among the images and captions "
                "that are ranked; check that its annotations are of this split, or leave it out"
            )

        judge = partial(judge_matches, pairs=pairs, outcomes=("rank", *precisions))
        outcomes = judge_blocks(judge, matrix, queries, items)
        record.add(name, side, len(matrix), queries, **outcomes)
        result[side] = metrics.summary(outcomes["rank"])
        for key in precisions:
            result[side][key] = float(100 * outcomes[key].mean())

    if len(result) == 2:
        return metrics.both_directions(**result)
    return result


def positives(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute recalls, R-precision and mAP@R of the user's own matches, in percent."""
    matches = e.judged["positives"]
    return recalls_of_matches(scores_of(e), matches, gallery, record, name, "rp", "map_at_r")


def ndcg(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute MRR, nDCG@10, R-precision and mAP@R of the original pairs, in percent."""
    matches = e.judged["ndcg"]
    precisions = ("mrr", "ndcg10", "rp", "map_at_r")
    numbers = recalls_of_matches(scores_of(e), matches, gallery, record, name, *precisions)
    result = {}
    for side in matches:
        del record[name, side, "rank"]  # which is that of the protocol "full"
        result[side] = {key: numbers[side][key] for key in (*precisions, "queries")}
    return result


def eccv(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Evaluate on ECCV Caption: R@1, R-precision and mAP@R, in percent."""
    matches = e.judged["eccv"]
    numbers = recalls_of_matches(scores_of(e), matches, gallery, record, name, "rp", "map_at_r")
    keys = ("r1", "rp", "map_at_r", "queries")
    return {side: {key: numbers[side][key] for key in keys} for side in matches}


# ---- Crisscrossed Captions


def cxc(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Evaluate on Crisscrossed Captions: {i2t, t2i, rsum, t2t, i2i}.

    i2t and t2i carry "rpc2", RPC^2 (`ucmr` 4.3): R-precision over the CxC matches, in percent. A
    gallery of everything adds the rank correlations of scores with ratings, {sits, sts, sis}
    (`metrics.sampled_spearman`). Without images there is text to text alone; a matrix of scores has
    none within a modality.
    """
    ratings, pairs = e.judged["cxc"]
    whole = len(gallery.captions) == len(e.caption_image)
    result = {}
    if e.has_images:
        result = recalls_of_matches(scores_of(e), pairs, gallery, record, name, "rpc2")
        if whole:
            rated = ratings["sits"]
            scores = scores_of(e)[rated.second, rated.first]
            result["sits"] = metrics.sampled_spearman(rated.first, rated.score, scores)
    if not e.members:
        return result

    within = [("t2t", "captions", "sts", len(e.caption_image))]
    if e.has_images:
        within.append(("i2i", "images", "sis", e.n_images))
    for side, modality, kind, count in within:
        items = getattr(gallery, modality)
        rated = None
        if whole:
            rated = ratings[kind]
        ranks, scores = ranks_within(e, modality, items, pairs[side], rated)
        record.add(name, side, count, items, rank=ranks)
        result[side] = metrics.summary(ranks[ranks >= 0])
        if whole:
            result[kind] = metrics.sampled_spearman(rated.first, rated.score, scores)
    return result


def ranks_within(
    e: Embeddings, modality: str, items: np.ndarray, matches: Pairs, ratings: Ratings | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rank "captions" for captions or "images" for images, the query kept out.

    Returns the 0-based ranks (n,) of the best match, -1 where a query has no match, and the scores
    (K,) of rated pairs, None without `ratings`.

    Args:
        e: embeddings of all items.
        modality: "captions" or "images".
        items: (n,), queries and gallery.
        matches: of all items.
        ratings: of K pairs, whose positions are among `items`.
    """
    members = []
    for m in e.members:
        similarity, x = within_modality(m.similarity, getattr(m, modality))
        if len(items) != len(x.mean):
            x = x.rows(torch.from_numpy(items))
        members.append((similarity, x, x))

    ranks = np.full(len(items), -1)
    pairs = matches.among(items, items)
    rated = None
    if ratings is not None:
        rated = np.full(len(ratings.first), np.nan)
    for rows, scores in metrics.score_blocks(members, 2 * QUERIES_PER_BLOCK):  # (b, n)
        scores = metrics.check_finite(scores.cpu().numpy())
        if ratings is not None:
            here = np.flatnonzero((ratings.first >= rows.start) & (ratings.first < rows.stop))
            rated[here] = scores[ratings.first[here] - rows.start, ratings.second[here]]
        np.fill_diagonal(scores[:, rows], -np.inf)
        ranks[rows] = metrics.best_ranks(scores, *pairs.block(rows))
    return ranks, rated


# ---- categories of images


def pmrp(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute Plausible Match R-Precision in percent (PCME 4.1).

    An item matches if the sets of categories that the two images show differ in at most zeta
    categories, zeta in {0, 1, 2}; "pmrp" is the mean over zeta. Images without any instance are
    left out, and their captions. Raises InputError where none is left.
    """
    categories = e.judged["pmrp"] > 0  # (N, K)
    shown = categories.any(1)
    codes = categories.astype(np.float32)
    images = gallery.images[shown[gallery.images]]
    captions = gallery.captions[shown[e.caption_image[gallery.captions]]]
    if not len(images) or not len(captions):
        raise InputError(
            "none of the images that are ranked has an object in COCO's instances; give the "
            "instances of these images with --instances"
        )

    result = {}
    for side, matrix, queries, items in directions(scores_of(e), images, captions):
        if side == "i2t":
            own = codes[queries]
            others = codes[e.caption_image[items]]
        else:
            own = codes[e.caption_image[queries]]
            others = codes[items]
        judge = partial(judge_categories, own=own, others=others)
        shares = judge_blocks(judge, matrix, queries, items)
        means = {key: float(100 * np.nanmean(x)) for key, x in shares.items()}
        mean = float(np.mean(list(means.values())))
        result[side] = {"pmrp": mean, **means, "queries": len(queries)}
        record.add(name, side, len(matrix), queries, pmrp=np.mean(list(shares.values()), 0))
    return result


def judge_categories(
    block: np.ndarray, rows: slice, own: np.ndarray, others: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute {"zeta0": R-precision (b,), ...} of the queries `rows` from their scores (b, G).

    own (Q, K), others (G, K): 1 where the image of a query or an item shows a category, else 0.
    """
    # the number of categories that one of two images shows alone, (b, G), in exact integers
    own = own[rows]
    distance = own.sum(1)[:, None] + others.sum(1) - 2 * own @ others.T
    sets = [np.nonzero(distance <= zeta) for zeta in ZETAS]
    shares = metrics.r_precisions(block, sets)
    return {f"zeta{zeta}": x for zeta, x in zip(ZETAS, shares)}


# ---- the protocols


def read_ndcg_inputs(e: Embeddings, opt) -> dict[str, Pairs]:
    """Take the original pairs as matches."""
    return match_original_pairs(e.caption_image)


def read_pmrp_inputs(e: Embeddings, opt) -> np.ndarray:
    """Read the instances of images, by default of the data set's annotations."""
    path = opt.instances or os.path.join(e.folder, "annotations", INSTANCES_FILE)
    return read_instances(path, e.index("image"))


def read_eccv_inputs(e: Embeddings, opt) -> dict[str, Pairs]:
    """Read the matches of ECCV Caption, by default of the package eccv_caption."""
    folder = opt.eccv_path or eccv_folder()
    return read_eccv(folder, e.index("image"), e.index("caption"))


def read_positives_inputs(e: Embeddings, opt) -> dict[str, Pairs]:
    """Read the user's own matches."""
    return read_positives(opt.positives, e.index("image"), e.index("caption"))


def read_hard_negatives_inputs(e: Embeddings, opt) -> dict:
    """Read right and wrong captions."""
    return read_all(opt.hard_negatives, e)


def read_cxc_inputs(e: Embeddings, opt) -> Crisscrossed:
    """Read Crisscrossed Captions, by default of a folder beside the data set."""
    folder = opt.cxc_path or os.path.normpath(os.path.join(e.folder, "..", "cxc"))
    part = "test"
    if e.split == "dev":
        part = "val"
    return read_cxc(folder, part, e.index("image"), e.index("caption"), e.caption_image)


# To add a protocol, write its function (embeddings, gallery, record, name) -> {"i2t": numbers,
# "t2i": numbers, ...}, which keeps the outcome of every query in `record` under `name`, and name it
# here. One that reads a file has a reader in READERS under the name of its option, and finds what
# that returns in e.judged. Its table stands under its name, or under titles of report.TITLES and
# report.NAMES.
PROTOCOLS = {
    "full": rank_original_pairs,
    "ndcg": ndcg,
    "pmrp": pmrp,
    "eccv": eccv,
    "positives": positives,
    "cxc": cxc,
}
READERS = {
    "ndcg": read_ndcg_inputs,
    "pmrp": read_pmrp_inputs,
    "eccv": read_eccv_inputs,
    "positives": read_positives_inputs,
    "cxc": read_cxc_inputs,
    "hard_negatives": read_hard_negatives_inputs,
}
PROTOCOLS_OF_FOLDS = ("full", "ndcg", "pmrp", "cxc")  # with --fold5 also over the five folds


def read_protocol_inputs(e: Embeddings, opt) -> dict:
    """Read {protocol: matches and ratings} as the options say. Raises InputError."""
    return {name: read(e, opt) for name, read in READERS.items() if getattr(opt, name)}


def list_versions(e: Embeddings, opt):
    """Yield (name, embeddings, names of protocols) of all versions to rank.

    First the embeddings as they are, then those with the bank of queries. Where variances rank,
    also those as points and (--uncertainty) with the variances of other items: what variances do,
    and whether it matters whose they are.
    """
    yield "", e, tuple(PROTOCOLS)

    if e.bank is not None and not holds_scores(e):
        yield "bank", replace(e, matrix=BlockScores(e.members, e.bank)), ("full",)
    elif e.bank is not None:
        images, captions = e.bank  # (N,), (M,)
        scores = metrics.score_matrix(e.members)  # (N, M)
        scores -= images[:, None]
        scores -= captions
        yield "bank", replace(e, matrix=scores), ("full",)
        del scores  # 500 MB for COCO's test split

    by_means = all(m.similarity is cosine for m in e.members)
    if e.has_images and e.gaussian and not by_means:
        points = []
        for m in e.members:
            points.append(Member(cosine, Embedding(m.images.mean), Embedding(m.captions.mean)))
        yield "mean_only", replace(e, members=points), ("full", "positives")

        if opt.uncertainty:
            others = []
            for m in e.members:
                others.append(Member(m.similarity, *shuffle_variances(m.images, m.captions)))
            yield "shuffled", replace(e, members=others), ("full", "positives")


def run_protocols(e: Embeddings, opt) -> tuple[dict[str, dict], Record]:
    """Compute the "protocols" of results.json, and the outcome of every query.

    Raises InputError where the options do not fit the embeddings.
    """
    if opt.fold5 and e.n_images < 5 * IMAGES_PER_FOLD:
        raise InputError(
            f"--fold5 needs 5 x 1,000 images and {e.name} has {e.n_images:,}; leave "
            "it out or name a larger split (COCO: testall for precomputed features)"
        )
    if opt.uncertainty and not e.gaussian:
        raise InputError(
            f"--uncertainty: {e.name} has points, which have no uncertainty; evaluate "
            "a Gaussian model, or give them variances: python -m confidence RUN "
            "--variances volume --export FILE.npz"
        )

    results = {}
    record = Record()
    for version, x, names in list_versions(e, opt):
        for name in names:
            asked = name not in READERS or name in e.judged
            can_rank = e.has_images or name == "cxc"  # which also ranks captions for captions
            if asked and can_rank:
                results |= run_protocol(name, version, x, record, opt)
        x.drop_scores()
    return results, record


def run_protocol(name: str, version: str, e: Embeddings, record: Record, opt) -> dict[str, dict]:
    """Run a protocol on a version of the embeddings: on everything, and with --fold5 on the folds.

    Returns {title: numbers}, where titles are keys of "protocols" in results.json.
    """
    title = name
    if version:
        title = f"{name}_{version}"
    if version and name == "full":
        title = version
    results = {title: PROTOCOLS[name](e, everything(e), record, title)}

    if opt.fold5 and name in PROTOCOLS_OF_FOLDS and version != "shuffled":
        folded = f"{title}_folds5"
        if title == "full":
            folded = "folds5"
        of_folds = [PROTOCOLS[name](e, fold, record, folded) for fold in folds(e)]
        results[folded] = metrics.average(of_folds)
    return results


def holds_scores(e: Embeddings) -> bool:
    """True if images and captions are there and their scores few enough to hold."""
    return e.has_images and e.n_images * len(e.caption_image) <= MAX_SCORES


def scores_of(e: Embeddings) -> np.ndarray | BlockScores:
    """Return the scores (N, M), of more than MAX_SCORES those that compute parts when asked."""
    if e.matrix is not None or holds_scores(e):
        return e.scores
    return BlockScores(e.members)


def shuffle_variances(
    images: Embedding, captions: Embedding, seed: int = 0
) -> tuple[Embedding, Embedding]:
    """Give both sides the variances of other items; points stay as they are.

    Each side is shifted along one random circle: no item keeps its own variances. The circles are
    drawn one after the other: with as many captions as images, a common one would leave matching
    variances together.
    """
    generator = torch.Generator().manual_seed(seed)
    sides = []
    for e in (images, captions):
        circle = torch.randperm(len(e.mean), generator=generator)
        neighbor = circle.roll(1)[circle.argsort()].to(e.mean.device)
        if e.log_var is not None:
            e = e._replace(log_var=e.log_var[neighbor])
        sides.append(e)
    return tuple(sides)


# ---- all that is asked


def report_uncertainty(e: Embeddings, opt, record: Record) -> dict[str, dict]:
    """Compute mean and deviation of log det Sigma of images and captions, in nats.

    With --uncertainty also what it says about R@1 and about the number of positives of a query.
    """
    results = {}
    for queries, values in uncertainties(e).items():
        found = {"mean": float(values.mean()), "std": float(values.std())}
        results[queries] = found
        if not opt.uncertainty:
            continue

        side = "t2i"
        if queries == "images":
            side = "i2t"
        if ("full", side, "rank") in record:
            ranks = record["full", side, "rank"]
            known = ~np.isnan(ranks)
            order = metrics.join_rounded(values[known])
            hits = ranks[known] < 1
            found["recall_bins"] = metrics.recall_in_bins(order, hits)
            found["risk_coverage"] = metrics.risk_coverage(order, hits)
        if side in e.judged.get("positives", {}):
            correlations = correlate_with_positives(e, queries, side, values)
            found["rho_positives"] = correlations["log_det"]["rho"]
            found["correlations"] = correlations
    return results


def correlate_with_positives(e: Embeddings, queries: str, side: str, log_det: np.ndarray) -> dict:
    """Correlate log det Sigma (Q,), and trivial predictors, with a query's number of positives.

    queries: "images" or "captions". Returns what `ambiguity.correlate_measures` returns. The number
    of objects of an image is known where COCO's instances are read (--pmrp).
    """
    count = np.bincount(e.judged["positives"][side].query, minlength=len(log_det))
    baselines = {}
    if queries == "captions" and "caption" in e.ids:
        baselines = caption_baselines(e.ids["caption"])
    if queries == "images" and "pmrp" in e.judged:
        baselines = {"objects": e.judged["pmrp"].sum(1)}

    asked = count > 0
    measures = {"log_det": metrics.join_rounded(log_det[asked])}
    baselines = {name: values[asked] for name, values in baselines.items()}
    group = np.arange(e.n_images)  # the image of each query
    if queries == "captions":
        group = e.caption_image
    return correlate_measures(measures, baselines, count[asked], group[asked])


def describe_doubts(e: Embeddings, numbers: dict) -> list[str]:
    """Say that images are not ranked, and that a file seems to hold distances."""
    if not e.has_images:
        return ["images and captions are not ranked: there are no images"]

    notes = []
    # far from chance, by more than a few captions may be
    median = numbers["full"]["t2i"]["medr"]
    chance = (e.n_images + 1) / 2
    if not e.models and median > chance * max(1.2, 1 + 5 / len(e.caption_image) ** 0.5):
        notes.append(
            f"{e.name}: the median rank of a caption's image is {median:,.0f} of "
            f"{e.n_images:,}, far worse than chance ({chance:,.0f}): scores are higher "
            "where items fit better, so negate distances"
        )
    return notes


def assess(e: Embeddings, opt) -> tuple[dict, Record]:
    """Run all protocols of the options, with e.judged of `read_protocol_inputs`.

    Returns the content of results.json and the outcome of every query. Where each direction has
    scores of its own, those of i2t and of t2i are computed apart.
    """
    if e.matrix_t2i is None:
        return assess_scores(e, opt)

    of_images = replace(e, matrix_t2i=None, report=dict(e.report))
    of_captions = replace(of_images, matrix=e.matrix_t2i, report=dict(e.report))
    results_of_images, record_of_images = assess_scores(of_images, opt)
    results_of_captions, record_of_captions = assess_scores(of_captions, opt)

    record = Record()
    for key, outcomes in record_of_images.items():
        record[key] = outcomes
        if key[1] == "t2i":
            record[key] = record_of_captions[key]
    return join_directions(results_of_images, results_of_captions), record


def join_directions(of_images: dict, of_captions: dict) -> dict:
    """Join results of scores that rank captions with results of scores that rank images."""
    results = dict(of_images)
    results["protocols"] = {}
    for name, numbers in of_images["protocols"].items():
        other = of_captions["protocols"][name]
        joined = {}
        if "i2t" in numbers:
            joined["i2t"] = numbers["i2t"]
        if "t2i" in other:
            joined["t2i"] = other["t2i"]
        if "rsum" in numbers:
            joined = metrics.both_directions(**joined)
        if "sits" in other:  # ratings, whose queries are captions
            joined["sits"] = other["sits"]
        results["protocols"][name] = joined

    parts = {"i2t": of_images, "t2i": of_captions}
    results["best_ranks"] = {side: part["best_ranks"][side] for side, part in parts.items()}
    ties = {}
    for side, part in parts.items():
        if side in part.get("ties", {}):
            ties[side] = part["ties"][side]
    results.pop("ties", None)
    if ties:
        results["ties"] = ties

    notes = [*of_images.get("notes", ()), *of_captions.get("notes", ())]
    if notes:
        results["notes"] = list(dict.fromkeys(notes))
    return results


@torch.no_grad()
def assess_scores(e: Embeddings, opt) -> tuple[dict, Record]:
    """Run all protocols by one similarity or matrix, as `assess` does."""
    numbers, record = run_protocols(e, opt)
    results = {
        "checkpoints": e.name.split(" + "),
        "data_name": e.data_name or os.path.basename(e.name),
        "split": e.split or None,
        "similarity": e.similarity,
        "images": e.n_images,
        "captions": len(e.caption_image),
        "protocols": numbers,
        **e.report,
    }
    if "full" in numbers:
        results["chance"] = chance_levels(e, opt)
        results["best_ranks"] = {}
        for side in ("i2t", "t2i"):
            ranks = record["full", side, "rank"]
            results["best_ranks"][side] = metrics.best_rank_means(ranks[~np.isnan(ranks)])

    for name, items in e.judged.get("hard_negatives", {}).items():
        of_file = judge_models(e, items, record, f"hard_negatives:{name}")
        results.setdefault("hard_negatives", {})[name] = of_file

    notes = [*e.notes, *describe_doubts(e, numbers)]
    if notes:
        results["notes"] = notes
    if e.gaussian:
        results["uncertainty"] = report_uncertainty(e, opt, record)
    return replace_nan(results), record


def chance_levels(e: Embeddings, opt) -> dict[str, dict]:
    """Compute what a random order reaches, of everything and with --fold5 of the folds."""
    levels = {"full": metrics.chance(e.caption_image, e.n_images)}
    if opt.fold5:
        of_folds = []
        for images, captions in folds(e):
            owner = e.caption_image[captions] - images[0]
            of_folds.append(metrics.chance(owner, len(images)))
        levels["folds5"] = metrics.average(of_folds)
    return levels


def replace_nan(value):
    """Replace NaN, such as a correlation with a constant, by None: JSON lacks it."""
    if isinstance(value, dict):
        return {key: replace_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nan(v) for v in value]
    if isinstance(value, float) and np.isnan(value):
        return None
    return value
