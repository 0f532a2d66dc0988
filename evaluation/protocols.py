"""Evaluation protocols: queries, galleries, matches and averages.

Each protocol returns its numbers and keeps the outcome of every query in a `Record`, for tests of differences.
`PROTOCOLS` lists them; `assess` runs those that the options ask for.

Papers: `ucmr`; PCME (Chun et al. 2021) for PMRP; CxC (Parekh et al. 2021); ECCV Caption (Chun et al. 2022).
"""
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

import metrics
from cli import check
from evaluation import ambiguity, annotations
from evaluation.annotations import Pairs, Ratings
from evaluation.embeddings import Embeddings, Member, uncertainties
from evaluation.encoding import Gallery
from losses import Embedding, cosine, within_modality

FOLD = 1000                           # images per fold; COCO 1K is the mean of five folds
ROWS = 250                            # queries whose whole rows of scores are ranked at once
MOST_SCORES = 2 ** 30                 # 4 GiB; of larger splits only the original pairs are ranked
ZETAS = (0, 1, 2)                     # by how many categories a match may differ (PMRP)
INSTANCES = "instances_val2014.json"  # the dev and test images of COCO's splits are of its 2014 validation set


class Record(dict):
    """Outcomes of queries: (protocol, direction, "rank" | "rp" | ...) -> (Q,).
    Ranks are 0-based, all other numbers are shares in [0, 1]; NaN where a query does not count."""

    def add(self, protocol: str, side: str, count: int, queries: np.ndarray, **values) -> None:
        """Keep numbers of the queries (q,) among `count`, an array for each name.
        A negative number means that a query does not count."""
        for name, value in values.items():
            numbers = self.setdefault((protocol, side, name), np.full(count, np.nan))
            numbers[queries] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """Sum per image for `metrics.paired_bootstrap`: {metric: (total, count) (N,)}.
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

def everything(e: Embeddings) -> Gallery:
    """Return the gallery of all images and captions."""
    return Gallery(np.arange(e.n_images), np.arange(len(e.caption_image)))


def folds(e: Embeddings) -> list[Gallery]:
    """Cut COCO 1K into five folds: sequential images, and each fold's captions."""
    return [Gallery(np.arange(k, k + FOLD), np.flatnonzero((e.caption_image >= k) & (e.caption_image < k + FOLD)))
            for k in range(0, 5 * FOLD, FOLD)]


def directions(scores: np.ndarray, images: np.ndarray, captions: np.ndarray):
    """Yield (direction, its scores, positions of queries and of gallery items)."""
    yield "i2t", scores, images, captions
    yield "t2i", scores.T, captions, images


def judge_blocks(judge, scores: np.ndarray, queries: np.ndarray, items: np.ndarray) -> dict[str, np.ndarray]:
    """Join what judge(block, rows) returns, {name: (b,)}, for blocks of queries (Q,).
    block (b, G): finite scores of queries[rows] against items (G,), in float32. numpy lets the blocks run side by side,
    on as many threads as torch has."""
    def judge_rows(rows: slice) -> dict[str, np.ndarray]:
        here = queries[rows]
        block = scores[here] if len(items) == scores.shape[1] else scores[np.ix_(here, items)]
        return judge(metrics.check_finite(np.ascontiguousarray(block, np.float32)), rows)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = list(pool.map(judge_rows, [slice(k, k + ROWS) for k in range(0, len(queries), ROWS)]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# ---- the original pairs

def full(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute recalls of the original pairs, `metrics.both_directions`."""
    images, captions = gallery
    owner = e.caption_image[captions] - images[0]
    ties = {}
    if e.matrix is None and not holds_scores(e):
        members = [(m.similarity, m.images.rows(images), m.captions.rows(captions)) for m in e.members]
        i2t, t2i = metrics.rank_members(members, owner)
    else:
        whole = e.scores.shape == (len(images), len(captions))
        part = e.scores if whole else e.scores[np.ix_(images, captions)]
        i2t, t2i = metrics.ranks(part, owner)
        if name == "full":
            ties = metrics.count_ties(part, e.caption_image, i2t, t2i)
    record.add(name, "i2t", e.n_images, images, rank=i2t)
    record.add(name, "t2i", len(e.caption_image), captions, rank=t2i)
    if ties:
        e.report["ties"] = ties
    return metrics.both_directions(metrics.summary(i2t[i2t >= 0]), metrics.summary(t2i))


# ---- queries with several matches

# Ranks and shares (Q,) of a block of scores (Q, G) and its matches (P,), (P,).
OUTCOMES = {"rank": metrics.best_ranks, "map_at_r": metrics.average_precisions,
            "rp": lambda scores, *pairs: metrics.r_precisions(scores, [pairs])[0], "ndcg10": metrics.ndcgs,
            "mrr": lambda scores, *pairs: 1 / (1 + metrics.best_ranks(scores, *pairs))}
OUTCOMES["rpc2"] = OUTCOMES["rp"]


def recalls_of_matches(scores: np.ndarray, matches: dict[str, Pairs], gallery: Gallery, record: Record, name: str,
                       *precisions: str) -> dict:
    """Compute recalls and precisions of i2t or t2i or both, in percent.
    scores (N, M); matches: by direction; precisions: names of OUTCOMES. "r1" is the share of queries whose best
    item is a match. Queries without a match in the gallery do not count. "rsum" is there where both directions are."""
    result = {}
    for side, matrix, queries, items in directions(scores, *gallery):
        if side not in matches:
            continue
        pairs = matches[side].among(queries, items)
        asked, query = np.unique(pairs.query, return_inverse=True)
        queries, pairs = queries[asked], Pairs(query, pairs.item)
        check(len(queries), f"no {side} query of '{name}' has a match in its gallery; give one, or leave it out")
        outcomes = judge_blocks(lambda block, rows, pairs=pairs: {
            key: OUTCOMES[key](block, *pairs.block(rows)) for key in ("rank", *precisions)}, matrix, queries, items)
        record.add(name, side, len(matrix), queries, **outcomes)
        means = {key: float(100 * outcomes[key].mean()) for key in precisions}
        result[side] = metrics.summary(outcomes["rank"]) | means
    return metrics.both_directions(**result) if len(result) == 2 else result


def positives(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute recalls, R-precision and mAP@R of the user's own matches, in percent."""
    return recalls_of_matches(e.scores, e.judged["positives"], gallery, record, name, "rp", "map_at_r")


def ndcg(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Compute MRR, nDCG@10, R-precision and mAP@R of the original pairs, in percent."""
    keys = ("mrr", "ndcg10", "rp", "map_at_r")
    numbers = recalls_of_matches(e.scores, e.judged["ndcg"], gallery, record, name, *keys)
    for side in e.judged["ndcg"]:
        del record[name, side, "rank"]                      # which is that of the protocol "full"
    return {side: {key: numbers[side][key] for key in (*keys, "queries")} for side in e.judged["ndcg"]}


def eccv(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Evaluate on ECCV Caption: R@1, R-precision and mAP@R, in percent."""
    numbers = recalls_of_matches(e.scores, e.judged["eccv"], gallery, record, name, "rp", "map_at_r")
    return {side: {key: numbers[side][key] for key in ("r1", "rp", "map_at_r", "queries")} for side in e.judged["eccv"]}


# ---- Crisscrossed Captions

def cxc(e: Embeddings, gallery: Gallery, record: Record, name: str) -> dict:
    """Evaluate on Crisscrossed Captions: {i2t, t2i, rsum, t2t, i2i}.
    i2t and t2i carry "rpc2", RPC^2 (`ucmr` 4.3): R-precision over the CxC matches, in percent. A gallery of everything
    adds the rank correlations of scores with ratings, {sits, sts, sis} (`metrics.sampled_spearman`). Without images
    there is text to text alone; a matrix of scores has none within a modality."""
    (ratings, pairs), result, total = e.judged["cxc"], {}, len(e.caption_image)
    whole = len(gallery.captions) == total
    if holds_scores(e):
        result = recalls_of_matches(e.scores, pairs, gallery, record, name, "rpc2")
        if whole:
            rated = ratings["sits"]
            result["sits"] = metrics.sampled_spearman(rated.first, rated.score, e.scores[rated.second, rated.first])
    within = (("t2t", "captions", "sts"), ("i2i", "images", "sis"))[:1 + e.has_images]
    for side, modality, kind in within if e.members else ():
        items, rated = getattr(gallery, modality), ratings[kind]
        ranks, scores = ranks_within(e, modality, items, pairs[side], rated if whole else None)
        record.add(name, side, e.n_images if modality == "images" else total, items, rank=ranks)
        result[side] = metrics.summary(ranks[ranks >= 0])
        if whole:
            result[kind] = metrics.sampled_spearman(rated.first, rated.score, scores)
    return result


def ranks_within(e: Embeddings, modality: str, items: np.ndarray, matches: Pairs,
                 ratings: Ratings | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Rank "captions" for captions or "images" for images, the query kept out.
    items (n,): queries and gallery. Returns the 0-based ranks (n,) of the best match, -1 where a query has no match,
    and the scores (K,) of rated pairs, whose positions are among `items`."""
    ranks, pairs = np.full(len(items), -1), matches.among(items, items)
    rated, members = None if ratings is None else np.full(len(ratings.first), np.nan), []
    for m in e.members:
        similarity, x = within_modality(m.similarity, getattr(m, modality))
        x = x if len(items) == len(x.mean) else x.rows(torch.from_numpy(items))
        members.append((similarity, x, x))
    for rows, scores in metrics.score_blocks(members, 2 * ROWS):                          # (b, n)
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
    An item matches if the sets of categories that the two images show differ in at most zeta categories, zeta in
    {0, 1, 2}; "pmrp" is the mean over zeta. Images without any instance are left out, and their captions."""
    categories = e.judged["pmrp"] > 0                                               # (N, K)
    shown, codes = categories.any(1), categories.astype(np.float32)
    owners = {"i": np.arange(e.n_images), "t": e.caption_image}
    images, captions = (items[shown[owner[items]]] for items, owner in zip(gallery, owners.values()))
    check(len(images) and len(captions), "no image of a gallery has an instance; give those with --instances")
    result = {}
    for side, matrix, queries, items in directions(e.scores, images, captions):
        def judge(block: np.ndarray, rows: slice, own=codes[owners[side[0]][queries]],
                  others=codes[owners[side[2]][items]]) -> dict[str, np.ndarray]:
            distance = own[rows].sum(1)[:, None] + others.sum(1) - 2 * own[rows] @ others.T     # (b, G), exact integers
            sets = [np.nonzero(distance <= zeta) for zeta in ZETAS]
            return {f"zeta{zeta}": x for zeta, x in zip(ZETAS, metrics.r_precisions(block, sets))}
        shares = judge_blocks(judge, matrix, queries, items)
        means = {key: float(100 * np.nanmean(x)) for key, x in shares.items()}
        result[side] = {"pmrp": float(np.mean(list(means.values()))), **means, "queries": len(queries)}
        record.add(name, side, len(matrix), queries, pmrp=np.mean(list(shares.values()), 0))
    return result


# ---- the protocols

# To add a protocol, write its function (embeddings, gallery, record, name) -> {"i2t": numbers, "t2i": numbers, ...},
# which keeps the outcome of every query in `record` under `name`, and name it here. One that reads a file has a reader
# in READERS under the name of its option, and finds what that returns in e.judged. Its table stands under its name, or
# under titles of report.TITLES and report.NAMES.
PROTOCOLS = {"full": full, "ndcg": ndcg, "pmrp": pmrp, "eccv": eccv, "positives": positives, "cxc": cxc}
READERS = {
    "ndcg": lambda e, opt: annotations.match_original_pairs(e.caption_image),
    "pmrp": lambda e, opt: annotations.read_instances(
        opt.instances or os.path.join(e.folder, "annotations", INSTANCES), e.index("image")),
    "eccv": lambda e, opt: annotations.read_eccv(
        opt.eccv_path or annotations.eccv_folder(), e.index("image"), e.index("caption")),
    "positives": lambda e, opt: annotations.read_positives(opt.positives, e.index("image"), e.index("caption")),
    "cxc": lambda e, opt: annotations.read_cxc(
        opt.cxc_path or os.path.normpath(os.path.join(e.folder, "..", "cxc")), "val" if e.split == "dev" else "test",
        e.index("image"), e.index("caption"), e.caption_image)}
FOLDED = ("full", "ndcg", "pmrp", "cxc")                                # with --fold5 also over the five folds


def read_protocol_inputs(e: Embeddings, opt) -> dict:
    """Read {protocol: matches and ratings} as the options say. Raises InputError."""
    return {name: read(e, opt) for name, read in READERS.items() if getattr(opt, name)}


def list_versions(e: Embeddings, opt):
    """Yield (name, embeddings, names of protocols) of all versions to rank.
    After the embeddings as they are come those with the bank of queries, and where variances rank those as points and
    (--uncertainty) with the variances of other items: what variances do, and whether it matters whose they are."""
    yield "", e, tuple(PROTOCOLS)
    if holds_scores(e) and e.bank is not None:
        scores, (images, captions) = metrics.score_matrix(e.members), e.bank        # (N, M), (N,), (M,)
        scores -= images[:, None]
        scores -= captions
        yield "bank", replace(e, matrix=scores), ("full",)
        del scores                                              # 500 MB for COCO's test split
    if e.has_images and e.gaussian and not all(m.similarity is cosine for m in e.members):
        points = [Member(cosine, Embedding(m.images.mean), Embedding(m.captions.mean)) for m in e.members]
        yield "mean_only", replace(e, members=points), ("full", "positives")
        if opt.uncertainty:
            others = [Member(m.similarity, *deal_variances(m.images, m.captions)) for m in e.members]
            yield "shuffled", replace(e, members=others), ("full", "positives")


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
    for version, x, names in list_versions(e, opt):
        for name in names:
            if name in READERS and name not in e.judged:
                continue
            if not (holds_scores(e) or name == "cxc" or name == "full" and e.has_images):
                continue
            title = version if version and name == "full" else "_".join(filter(None, (name, version)))
            results[title] = PROTOCOLS[name](x, everything(e), record, title)
            if opt.fold5 and name in FOLDED and version != "shuffled":
                folded = "folds5" if title == "full" else f"{title}_folds5"
                results[folded] = metrics.average([PROTOCOLS[name](x, fold, record, folded) for fold in folds(e)])
        x.__dict__.pop("scores", None)                          # 500 MB for COCO's test split; computed again if needed
    return results, record


def holds_scores(e: Embeddings) -> bool:
    """True if images and captions are there and their scores few enough to hold."""
    return e.has_images and e.n_images * len(e.caption_image) <= MOST_SCORES


def deal_variances(images: Embedding, captions: Embedding, seed: int = 0) -> tuple[Embedding, Embedding]:
    """Both sides with the variances of other items; points stay as they are.
    Each side goes round one random circle, so that no item keeps its own variances. The circles are drawn one after
    the other: with as many captions as images, a common one would leave matching variances together."""
    generator, sides = torch.Generator().manual_seed(seed), []
    for e in (images, captions):
        circle = torch.randperm(len(e.mean), generator=generator)
        before = circle.roll(1)[circle.argsort()].to(e.mean.device)                 # the neighbour of each item
        sides.append(e if e.log_var is None else e._replace(log_var=e.log_var[before]))
    return tuple(sides)


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
            correlations = correlate_with_positives(e, queries, side, values)
            results[queries]["rho_positives"] = correlations["log_det"]["rho"]
            results[queries]["correlations"] = correlations
    return results


def correlate_with_positives(e: Embeddings, queries: str, side: str, log_det: np.ndarray) -> dict:
    """Correlate log det Sigma (Q,), and trivial predictors, with the number of positives of a query.

    queries: "images" or "captions". Returns what `ambiguity.correlate_measures` returns. The number of
    objects of an image is known where COCO's instances are read (--pmrp).
    """
    count = np.bincount(e.judged["positives"][side].query, minlength=len(log_det))
    baselines = {}
    if queries == "captions" and "caption" in e.ids:
        baselines = ambiguity.caption_baselines(e.ids["caption"])
    if queries == "images" and "pmrp" in e.judged:
        baselines = {"objects": e.judged["pmrp"].sum(1)}

    asked = count > 0
    measures = {"log_det": metrics.join_rounded(log_det[asked])}
    baselines = {name: values[asked] for name, values in baselines.items()}
    group = e.caption_image if queries == "captions" else np.arange(e.n_images)
    return ambiguity.correlate_measures(measures, baselines, count[asked], group[asked])


def describe_doubts(e: Embeddings, numbers: dict) -> list[str]:
    """Notes on what is not ranked, and on a file that seems to hold distances."""
    if not e.has_images:
        return ["images and captions are not ranked: there are no images"]
    notes = []
    if not holds_scores(e) and (e.judged or e.bank is not None):
        notes.append(f"the scores of {e.n_images:,} images and {len(e.caption_image):,} captions do not fit into "
                     "memory, so between images and captions only the original pairs are ranked")
    place, middle = numbers["full"]["t2i"]["medr"], e.n_images / 2
    if not e.models and place > middle * max(1.2, 1 + 5 / len(e.caption_image) ** 0.5):
        notes.append(f"{e.name}: the median rank of a caption's image is {place:,.0f} of {e.n_images:,}, far worse "
                     f"than chance ({middle:,.0f}): scores are higher where items fit better, so negate distances")
    return notes


@torch.no_grad()
def assess(e: Embeddings, opt) -> tuple[dict, Record]:
    """Run all protocols of the options, with e.judged of `read_protocol_inputs`.
    Returns the content of results.json and the outcome of every query."""
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
    more = {"notes": [*e.notes, *describe_doubts(e, numbers)], "uncertainty": report_uncertainty(e, opt, record)}
    return replace_nan(results | {name: part for name, part in more.items() if part}), record


def replace_nan(value):
    """Replace NaN, such as a correlation with a constant, by None: JSON lacks it."""
    if isinstance(value, dict):
        return {key: replace_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
