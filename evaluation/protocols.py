"""Evaluation protocols: what is retrieved from what, which items count as matches, and what is averaged.

A `Subject` is anything that scores images and captions: models, embeddings of any origin, or a ready score matrix. Each
protocol returns its numbers and adds the outcome of every single query to a `Record`, for rank files and for tests of
differences. Papers: `ucmr`; PCME (Chun et al. 2021) for PMRP; CxC (Parekh et al. 2021); ECCV Caption (Chun et al. 2022).
"""
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

import metrics
from cli import InputError
from evaluation.annotations import Pairs, Ratings
from evaluation.items import Items
from inputs import Photos
from methods.scan import CrossAttention
from methods.two_branch import ProductNetwork
from similarities import Cosine, Embedding, Mahalanobis, Similarity

FOLD = 1000                           # images; COCO 1K is the mean of five such folds
ROWS = 250                            # queries whose whole rows of scores are ranked at once
ZETAS = (0, 1, 2)


@dataclass
class Subject:
    """What is evaluated: `members` (similarity, images or None, captions), their scores averaged, or a matrix `scores`."""
    name: str
    similarity: str
    caption_image: np.ndarray                     # (M,) whose caption each is
    n_images: int
    members: list = field(default_factory=list)
    scores: np.ndarray | None = None              # (N, M), mapped or in memory
    items: Items | None = None                    # whose they are
    photos: Photos | list[str] | None = None      # or file names
    data_name: str = ""
    split: str = ""                               # nothing where no split is known
    folder: str = ""                              # of the data set
    unknown_words: dict | None = None             # of a data set other than that of the training
    notes: list[str] = field(default_factory=list)    # what was assumed, left out or put in another order

    def take(self, rows) -> None:
        """Put images and captions in the order `rows` (items.Order)."""
        self.members = [(similarity, images and images.rows(rows.images), captions and captions.rows(rows.captions))
                        for similarity, images, captions in self.members]
        self.scores = None if self.scores is None else self.scores[rows.images][:, rows.captions]

    @property
    def has_images(self) -> bool:
        return self.scores is not None or all(images is not None for _, images, _ in self.members)

    @property
    def gaussian(self) -> bool:
        return any(e is not None and e.log_var is not None for _, *sides in self.members for e in sides)


class Record(dict):
    """(protocol, direction, "rank" | "rp" | ...) -> a number for each query; NaN where a query does not count."""

    def add(self, protocol: str, side: str, **values) -> None:
        for name, value in values.items():
            value = np.asarray(value, float)
            self[protocol, side, name] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """{metric: (total (N,), count (N,))} by image, as `metrics.paired_bootstrap` takes it; percent and 1-based ranks."""
        result = {}
        for (protocol, side, name), value in self.items():
            owner = np.arange(n_images) if side in ("i2t", "i2i") else caption_image
            known = ~np.isnan(value)
            numbers = ({f"r{k}": 100.0 * (value < k) for k in metrics.RECALLS} | {"meanr": value + 1} if name == "rank"
                       else {name: 100 * value})
            for key, number in numbers.items():
                result[f"{protocol} {side} {key}"] = tuple(np.bincount(owner[known], x[known].astype(float), n_images)
                                                           for x in (number, np.ones(len(value))))
        return result


def mean_of(tiles: list):
    """The mean of several models' scores (the papers' ensembles), as one tile function."""
    return tiles[0] if len(tiles) == 1 else lambda i, c: sum(tile(i, c) for tile in tiles) / len(tiles)


def image_text(members: list):
    """tile(i, c) of image-text scores of one model, or the mean of several."""
    return mean_of([similarity.tiles(i, c) for similarity, i, c in members])


def image_text_of(scores: np.ndarray):
    """tile(i, c) of a ready matrix (N, M)."""
    return lambda i, c: torch.from_numpy(scores[i][:, np.asarray(c)].astype(np.float32, copy=False))


def within_modality(subject: Subject, side: int):
    """tile(i, c) of scores among captions (side 1) or images (side 0): queries are rows."""
    return mean_of([alike(similarity, sides[side]) for similarity, *sides in subject.members])


def alike(similarity: Similarity, e: Embedding):
    """tile(i, c) of scores of the items of one modality. The Mahalanobis distance needs one Gaussian and one point,
    cross-attention regions and words, the Similarity Network an image and a caption, which a modality does not hold beside
    itself: there the cosine of the means serves."""
    if isinstance(similarity, (Mahalanobis, CrossAttention, ProductNetwork)):
        similarity, e = Cosine(), Embedding(e.mean)
    return similarity.tiles(e, e)


@torch.no_grad()
def score_matrix(subject: Subject, block: int) -> np.ndarray:
    """All image-text scores (N, M) in float32, the one copy that rules with several matches need."""
    if subject.scores is not None:
        return subject.scores
    tile, m = image_text(subject.members), len(subject.caption_image)
    scores = np.empty((subject.n_images, m), np.float32)
    for c in (slice(k, min(k + 5 * block, m)) for k in range(0, m, 5 * block)):
        for i in (slice(k, min(k + block, subject.n_images)) for k in range(0, subject.n_images, block)):
            scores[i, c] = tile(i, c).cpu().numpy()
    return scores


def checked(block: np.ndarray) -> np.ndarray:
    if not np.isfinite(block).all():
        raise InputError(metrics.NOT_FINITE)
    return block


def folds(subject: Subject) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and captions of the five folds of COCO 1K: sequential images, and the captions of each."""
    starts = range(0, 5 * FOLD, FOLD)
    return [(np.arange(k, k + FOLD), np.flatnonzero((subject.caption_image >= k) & (subject.caption_image < k + FOLD)))
            for k in starts]


# ---- recalls of the original pairs

def plain(subject: Subject, record: Record, name: str, tile, chosen: list | None, block: int) -> dict:
    """Both directions in one gallery (chosen None) or the mean over folds; adds ranks to the record."""
    parts = chosen or [(np.arange(subject.n_images), np.arange(len(subject.caption_image)))]
    ranks = {"i2t": np.full(subject.n_images, -1), "t2i": np.full(len(subject.caption_image), -1)}
    results = []
    for images, captions in parts:
        first, index, seen = images[0], torch.from_numpy(captions), {}

        def here(i, c, first=first, index=index, seen=seen):
            c = seen.setdefault(id(c), index[c])            # one object a block, by which a tile knows what it has lifted
            return tile(slice(first + i.start, first + i.stop), c)
        i2t, t2i = metrics.ranks(here, subject.caption_image[captions] - first, len(images), block)
        ranks["i2t"][images], ranks["t2i"][captions] = i2t, t2i
        results.append(metrics.both_directions(i2t[i2t >= 0], t2i))
    for side, rank in ranks.items():
        record.add(name, side, rank=rank)
    return metrics.average(results) if chosen else results[0]


def shortlist(rows, matches: Pairs, n_queries: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The `keep` items that score best for every query, (Q, K), and the rank of its best match, (Q,), -1 without one."""
    kept, rank = [], np.full(n_queries, -1)
    for start in range(0, n_queries, ROWS):
        stop = min(start + ROWS, n_queries)
        scores = rows(start, stop)                                                  # (b, G)
        kept.append(scores.topk(min(keep, scores.shape[1]), sorted=False).indices.cpu().numpy())
        low, high = np.searchsorted(matches.query, [start, stop])
        rank[start:stop] = metrics.ranks_of_pairs(checked(scores.cpu().numpy()), matches.query[low:high] - start,
                                                  matches.item[low:high])
    return np.concatenate(kept), rank


@torch.no_grad()
def two_stages(subject: Subject, record: Record, name: str, keep: int, chosen: list | None) -> dict:
    """Both directions as `plain`, in two stages: the cosine of the means keeps the `keep` best items of every query, the
    similarity puts these in order, and all others stay below them in the order of the cosine.

    "lost" is the percentage of queries none of whose matches was kept. An image meets all captions that it keeps or is kept
    by at once, so a pair is scored once for both directions.
    """
    near = mean_of([Cosine().tiles(Embedding(i.mean), Embedding(c.mean)) for _, i, c in subject.members])
    exact = image_text(subject.members)
    parts = chosen or [(np.arange(subject.n_images), np.arange(len(subject.caption_image)))]
    ranks = {"i2t": np.full(subject.n_images, -1), "t2i": np.full(len(subject.caption_image), -1)}
    results = []
    for images, captions in parts:
        n, m, owner = len(images), len(captions), subject.caption_image[captions] - images[0]
        i, c, own = torch.from_numpy(images), torch.from_numpy(captions), Pairs.of(owner, np.arange(m))
        found = {"i2t": shortlist(lambda a, b: near(i[a:b], c), own, n, keep),                      # noqa: B023
                 "t2i": shortlist(lambda a, b: near(i, c[a:b]).T, own.swapped(), m, keep)}          # noqa: B023
        number = {"i2t": np.arange(n)[:, None] * m + found["i2t"][0],               # of a pair: image x m + caption
                  "t2i": found["t2i"][0] * m + np.arange(m)[:, None]}
        wanted = np.unique(np.concatenate([x.ravel() for x in number.values()]))    # (pairs,), by image
        runs = np.split(wanted % m, np.searchsorted(wanted, np.arange(1, n) * m))
        scores = np.concatenate([exact(i[k:k + 1], c[torch.from_numpy(run)])[0].float().cpu().numpy()
                                 for k, run in enumerate(runs)])
        result, lost = {}, {}
        for side, (_, rank) in found.items():
            fine = checked(scores[np.searchsorted(wanted, number[side])])           # (Q, K)
            match = owner[number[side] % m] == number[side] // m
            best = np.where(match, fine, -np.inf).max(1)
            inside = np.count_nonzero((fine >= best[:, None]) & ~match, axis=1)
            result[side] = np.where(match.any(1), inside, rank)
            lost[side] = float(100 * np.mean(~match.any(1)[rank >= 0]))
        ranks["i2t"][images], ranks["t2i"][captions] = result["i2t"], result["t2i"]
        results.append(metrics.both_directions(result["i2t"][result["i2t"] >= 0], result["t2i"]))
        for side, share in lost.items():
            results[-1][side]["lost"] = share
    for side, rank in ranks.items():
        record.add(name, side, rank=rank)
    return {**(metrics.average(results) if chosen else results[0]), "keep": keep}


# ---- rules with several matches

def direction(rows, pairs: Pairs, n_queries: int, precision: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (Q,) and R-precision (Q,) of queries; rows(start, stop) returns their scores against the whole gallery.

    -1 and NaN for a query without a match; only rows with one are scored.
    """
    rank, rp = np.full(n_queries, -1), np.full(n_queries, np.nan)

    def block(start):
        stop = min(start + ROWS, n_queries)
        low, high = np.searchsorted(pairs.query, [start, stop])
        if low < high:
            scores, own = rows(start, stop), (pairs.query[low:high] - start, pairs.item[low:high])
            rank[start:stop] = metrics.ranks_of_pairs(scores, *own)
            if precision:
                rp[start:stop] = metrics.r_precisions(scores, [own])[0]
    in_threads(block, range(0, n_queries, ROWS))
    return rank, rp


def in_threads(function, starts) -> None:
    """function(start) for every start, on as many threads as torch has; numpy lets them run side by side."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(function, starts))


def side_rows(scores: np.ndarray, side: str, images: np.ndarray, captions: np.ndarray):
    """rows(start, stop) of the i2t or t2i direction among some images and captions."""
    whole = len(images) == scores.shape[0] and len(captions) == scores.shape[1]
    if side == "i2t":
        return lambda a, b: checked(np.ascontiguousarray(scores[a:b] if whole else scores[np.ix_(images[a:b], captions)],
                                                         np.float32))
    return lambda a, b: checked(np.ascontiguousarray(scores[:, a:b].T if whole else scores[np.ix_(images, captions[a:b])].T,
                                                     np.float32))


def several(scores: np.ndarray, pairs: dict[str, Pairs], record: Record, name: str, parts: list, rp: str) -> dict:
    """Recalls and R-precision (percent, under the name `rp`) of i2t and t2i; the mean over parts when there are several."""
    results = []
    sizes = dict(zip(("i2t", "t2i"), scores.shape))
    ranks = {side: np.full(n, -1) for side, n in sizes.items()}
    precisions = {side: np.full(n, np.nan) for side, n in sizes.items()}
    for images, captions in parts:
        result = {}
        for side in pairs:
            queries, items = (images, captions) if side == "i2t" else (captions, images)
            chosen = pairs[side].among(queries, items) if len(parts) > 1 else pairs[side]
            rank, precision = direction(side_rows(scores, side, images, captions), chosen, len(queries), True)
            if not (rank >= 0).any():
                raise InputError(f"no {side} query of '{name}' has a match in its gallery; give at least one, or leave it out")
            result[side] = {**metrics.summary(rank[rank >= 0]), rp: float(100 * np.nanmean(precision))}
            ranks[side][queries], precisions[side][queries] = rank, precision
        if len(result) == 2:
            result["rsum"] = sum(result[side][f"r{k}"] for side in result for k in metrics.RECALLS)
        results.append(result)
    for side in pairs:
        record.add(name, side, rank=ranks[side], **{rp: precisions[side]})
    return metrics.average(results) if len(parts) > 1 else results[0]


@torch.no_grad()
def same_modality(tile, pairs: Pairs, n: int, parts: list[np.ndarray], ratings: Ratings | None):
    """Retrieval of captions by captions or images by images, the query out of its gallery: ranks (n,) in the whole gallery,
    ranks (n,) in the parts, and the scores (K,) of the rated pairs."""
    every, whole, folded = slice(None), np.full(n, -1), np.full(n, -1)
    rated = None if ratings is None else np.full(len(ratings.first), np.nan)
    part_of = np.full(n, -1)
    for k, part in enumerate(parts):
        part_of[part] = k
    for start in range(0, n, 2 * ROWS):
        stop = min(start + 2 * ROWS, n)
        scores = checked(tile(slice(start, stop), every).cpu().numpy())             # (b, n)
        if ratings is not None:
            mine = np.flatnonzero((ratings.first >= start) & (ratings.first < stop))
            rated[mine] = scores[ratings.first[mine] - start, ratings.second[mine]]
        scores[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        low, high = np.searchsorted(pairs.query, [start, stop])
        own = pairs.query[low:high] - start, pairs.item[low:high]
        whole[start:stop] = metrics.ranks_of_pairs(scores, *own)
        for k in np.unique(part_of[start:stop][part_of[start:stop] >= 0]):
            rows = np.flatnonzero(part_of[start:stop] == k)
            inside = Pairs(*own).among(rows, parts[k])
            folded[start + rows] = metrics.ranks_of_pairs(scores[np.ix_(rows, parts[k])], *inside)
    return whole, folded, rated


def cxc(subject: Subject, scores: np.ndarray | None, ratings: dict[str, Ratings], pairs: dict[str, Pairs], fold5: bool,
        record: Record, samples: int = 1000) -> tuple[dict, list[str]]:
    """Crisscrossed Captions: {"cxc": {i2t, t2i, t2t, i2i, rsum, sts, sis, sits}, "cxc_folds5"} and what cannot be had.

    i2t and t2i carry RPC^2 (`ucmr` 4.3), R-precision over the CxC matches; sts, sis and sits are rank correlations of the
    model's scores with the ratings (`metrics.sampled_spearman`).
    """
    every = [(np.arange(subject.n_images), np.arange(len(subject.caption_image)))]
    chosen, absent = {"cxc": every, **({"cxc_folds5": folds(subject)} if fold5 else {})}, []
    results = {name: {} for name in chosen}
    if scores is None:
        absent.append("image-text and image-image retrieval, SITS and SIS: there are no images")
    else:
        between, r = {side: pairs[side] for side in ("i2t", "t2i")}, ratings["sits"]
        for name, parts in chosen.items():
            results[name].update(several(scores, between, record, name, parts, "rpc2"))
        results["cxc"]["sits"] = metrics.sampled_spearman(r.first, r.score, scores[r.second, r.first], samples)
        del scores                                          # text to text needs the room
    if not subject.members:
        absent.append("text-text and image-image retrieval, STS and SIS: a score matrix holds image-text scores only")
        return results, absent
    for side, which, kind in (("t2t", 1, "sts"), ("i2i", 0, "sis")):
        if which == 0 and not subject.has_images:
            continue
        n, r = len(subject.caption_image) if which else subject.n_images, ratings[kind]
        parts = [part[which] for part in chosen["cxc_folds5"]] if fold5 else []
        whole, folded, rated = same_modality(within_modality(subject, which), pairs[side], n, parts, r)
        for name, rank in {"cxc": whole, "cxc_folds5": folded}.items():
            if name in results:
                record.add(name, side, rank=rank)
                found = [rank[part][rank[part] >= 0] for part in parts] if name != "cxc" else [rank[rank >= 0]]
                results[name][side] = metrics.average([metrics.summary(x) for x in found])
        results["cxc"][kind] = metrics.sampled_spearman(r.first, r.score, rated, samples)
    return results, absent


def pmrp(scores: np.ndarray, codes: np.ndarray, caption_image: np.ndarray, parts: list, record: Record, name: str) -> dict:
    """Plausible Match R-Precision, percent: an item matches if the sets of categories that the two images show differ in at
    most zeta of them, zeta in {0, 1, 2} (PCME 4.1; `ucmr` 4.3). Images without any instance are left out, and their captions.

    scores (N, M); codes (N, K) bool; returns {"i2t": {"pmrp", "zeta0", "zeta1", "zeta2", "queries"}, "t2i": ...}.
    """
    results, shown = [], codes.any(1)
    number = codes.astype(np.float32)
    values = {(side, zeta): np.full(n, np.nan) for side, n in zip(("i2t", "t2i"), scores.shape) for zeta in ZETAS}
    for images, captions in parts:
        images, captions = images[shown[images]], captions[shown[caption_image[captions]]]
        if not len(images) or not len(captions):
            raise InputError("no image of a gallery has an instance; give the instances of these images with --instances")
        result = {}
        for side, queries, items in (("i2t", images, captions), ("t2i", captions, images)):
            rows = side_rows(scores, side, images, captions)
            own, other = (number[q if s else caption_image[q]] for q, s in ((queries, side == "i2t"), (items, side == "t2i")))

            twice, size = -2 * other.T, other.sum(1)

            def block(start, side=side, queries=queries, rows=rows, own=own, twice=twice, size=size):
                mine = own[start:start + ROWS]                                      # (b, K)
                distance = mine @ twice                                             # (b, G), exact integers
                distance += size
                distance += mine.sum(1)[:, None]
                query, item = np.nonzero(distance <= max(ZETAS))
                far = distance[query, item]
                sets = [(query[far <= zeta], item[far <= zeta]) for zeta in ZETAS]
                for zeta, value in zip(ZETAS, metrics.r_precisions(rows(start, min(start + ROWS, len(queries))), sets)):
                    values[side, zeta][queries[start:start + ROWS]] = value
            in_threads(block, range(0, len(queries), ROWS))
            means = {f"zeta{zeta}": float(100 * np.nanmean(values[side, zeta][queries])) for zeta in ZETAS}
            result[side] = {"pmrp": float(np.mean(list(means.values()))), **means, "queries": len(queries)}
        results.append(result)
    for side in ("i2t", "t2i"):
        record.add(name, side, pmrp=np.mean([values[side, zeta] for zeta in ZETAS], 0))
    return metrics.average(results) if len(parts) > 1 else results[0]


@torch.no_grad()
def neighbours(subject: Subject, codes: np.ndarray, k: int = 10) -> dict[str, float]:
    """How alike the k images nearest to an image are to it, in percent: the size of the intersection of the two sets of
    categories over that of their union (Jaccard), mean over neighbours and images; and the same of random images, by
    expectation. Images without an instance are left out. `jwae` 1: latents that follow a prior should keep such neighbours.
    codes (N, C) bool."""
    shown = np.flatnonzero(codes.any(1))
    k = min(k, len(shown) - 1)
    if k < 1:
        raise InputError("neighbours among images need two images with instances; give the instances with --instances")
    tile, number = within_modality(subject, 0), codes[shown].astype(np.float32)
    size, near, chance = number.sum(1), 0.0, 0.0
    for start in range(0, len(shown), ROWS):
        rows = np.arange(start, min(start + ROWS, len(shown)))
        scores = checked(tile(torch.from_numpy(shown[rows]), torch.from_numpy(shown)).cpu().numpy())     # (b, n)
        shared = number[rows] @ number.T
        jaccard = shared / (size[rows, None] + size - shared)                       # (b, n)
        scores[np.arange(len(rows)), rows] = -np.inf
        chosen = np.argpartition(-scores, k - 1, axis=1)[:, :k]                     # (b, k)
        near += np.take_along_axis(jaccard, chosen, 1).mean(1).sum()
        chance += ((jaccard.sum(1) - 1) / (len(shown) - 1)).sum()
    return {"jaccard": 100 * float(near) / len(shown), "chance": 100 * float(chance) / len(shown), "k": k, "images": len(shown)}


def eccv(scores: np.ndarray, pairs: dict[str, Pairs], record: Record) -> dict:
    """ECCV Caption: R@1, R-precision and mAP@R of its queries, percent, in the whole gallery."""
    result = {}
    for side, chosen in pairs.items():
        queries, local = np.unique(chosen.query, return_inverse=True)
        block = checked(np.asarray(scores[queries] if side == "i2t" else scores[:, queries].T, np.float32))
        lists = np.split(chosen.item, np.flatnonzero(np.diff(local)) + 1)
        rank = metrics.ranks_of_pairs(block, local, chosen.item)
        values = {"rp": metrics.r_precisions(block, [(local, chosen.item)])[0],
                  "map_at_r": metrics.average_precision(block, lists)}
        result[side] = {"r1": float(100 * np.mean(rank < 1)), **{k: float(100 * v.mean()) for k, v in values.items()},
                        "queries": len(queries)}
        for name, value in {"rank": rank, **values}.items():
            whole = np.full(scores.shape[0 if side == "i2t" else 1], np.nan)
            whole[queries] = value
            record.add("eccv", side, **{name: whole})
    return result


# ---- uncertainty

def uncertainty_report(values: np.ndarray, ranks: np.ndarray) -> dict:
    """What log det Sigma (Q,) says about R@1 of ranks (Q,), NaN where a query does not count."""
    known = ~np.isnan(ranks)
    return {"recall_bins": metrics.recall_in_bins(values[known], ranks[known] < 1),
            "risk_coverage": metrics.risk_coverage(values[known], ranks[known] < 1)}
