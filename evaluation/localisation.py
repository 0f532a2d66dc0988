"""Phrase localisation: each phrase of a caption ranks the box proposals of its own photo, and the first box is judged.

A box is right where its intersection over union with the truth is at least 0.5 (Flickr30k Entities, Plummer et al.
2017; `jwae` 5.2 and Table 7). A phrase that no proposal reaches counts as a miss at every rank, so the recall of the
proposals bounds all results from above. Every mention in every sentence is one phrase.
"""
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

import metrics
from cli import InputError
from evaluation import report
from files.proposals import areas, iou

RIGHT = 0.5                           # the least intersection over union of a right box with the truth
COUNTS = {"1": (1, 1), "2": (2, 2), "more": (3, np.inf)}    # boxes of a phrase: (least, most) of each group
SUMS = {"rsum": [f"r{k}" for k in metrics.RECALLS]}


class BoxSplit(NamedTuple):
    """What `locate` reads of a split; any object with these attributes will do."""
    ids: list[str]                    # of the N photos
    sizes: np.ndarray                 # (N, 2) width and height in pixels
    boxes: np.ndarray                 # (R, 4) x1, y1, x2, y2 of the proposals: 0-based pixels, ends included
    start: np.ndarray                 # (N + 1,) the proposals of photo n are rows start[n] to start[n + 1] - 1
    phrases: list[str]                # M
    phrase_photo: np.ndarray          # (M,) the photo of each phrase, rising
    truth: np.ndarray                 # (M, 4) the box of each phrase, which encloses all boxes of its chain
    types: list[tuple[str, ...]]      # M, such as ("people",)
    n_boxes: np.ndarray               # (M,) how many boxes the truth encloses
    added: np.ndarray | None = None   # (R,) bool: truth boxes among the proposals, for training; none of them is ranked


class Located(NamedTuple):
    """What was found for each of M phrases."""
    rank: np.ndarray                  # (M,) int64, 0-based, of the best-ranked right box; -1 where no box is right
    first: np.ndarray                 # (M,) int64 the row of the first-ranked box; -1 where the photo has no proposal
    iou: np.ndarray                   # (M,) in [0, 1], of the first box with the truth
    centre_in_truth: np.ndarray       # (M,) bool: the centre of the first box lies in the truth, see `locate`
    hits: np.ndarray                  # (M,) int64 how many proposals are right
    proposals: np.ndarray             # (M,) int64 how many there are
    random_iou: np.ndarray            # (M,) the mean of iou over all proposals: that of a random first box
    random_centre: np.ndarray         # (M,) the same of centre_in_truth
    confidences: dict[str, np.ndarray]    # (M,) each, more where surer, see `confidences_of`

    @property
    def right(self) -> np.ndarray:
        """(M,) bool: the first box is right."""
        return self.rank == 0


ScoresOf = Callable[[int, np.ndarray], torch.Tensor | np.ndarray]


class Scored(NamedTuple):
    """The phrases of one photo and its proposals."""
    phrases: np.ndarray               # (m,) rising
    rows: np.ndarray                  # (P,) of the boxes, rising
    boxes: np.ndarray                 # (P, 4)
    scores: np.ndarray                # (m, P)
    overlap: np.ndarray               # (m, P) float64: intersection over union with the truth of each phrase


def photo_by_photo(split: BoxSplit, scores_of: ScoresOf) -> Iterator[Scored]:
    """The photos that have phrases and proposals, each scored when its turn comes.

    scores_of(n, columns) -> (P, m): the scores of all proposals of photo n with the phrases `columns` (m,), higher is
    better. Raises InputError on scores that are not finite.
    """
    assert (np.diff(split.phrase_photo) >= 0).all(), "phrases in the order of their photos"
    photos, low = np.unique(split.phrase_photo, return_index=True)
    for n, phrases in zip(photos.tolist(), np.split(np.arange(len(split.phrase_photo)), low[1:])):
        rows = np.arange(split.start[n], split.start[n + 1])
        if not len(rows):
            continue
        scores = torch.as_tensor(scores_of(n, phrases)).detach()
        assert scores.shape == (len(rows), len(phrases)), f"photo {n}: scores of shape {tuple(scores.shape)}"
        scores = scores.to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy().T       # (P, m) -> (m, P)
        if not np.isfinite(scores).all():
            raise InputError(f"photo {split.ids[n]}: {metrics.NOT_FINITE}")
        if split.added is not None and split.added[rows].any():
            kept = ~split.added[rows]
            rows, scores = rows[kept], scores[:, kept]
        if len(rows):
            yield Scored(phrases, rows, split.boxes[rows], scores, iou(split.truth[phrases], split.boxes[rows]))


def locate(split: BoxSplit, scores_of: ScoresOf, temperature: float | None = None) -> Located:
    """Rank the proposals of each photo for each of its phrases. One photo is scored at a time; scores_of: see
    `photo_by_photo`; temperature: of the posterior over the proposals (`calibration.temperature`).

    Ties count against the model, as in `metrics`: the rank is the number of wrong boxes that score at least as high as
    the best right one, and of boxes that tie for the first place a wrong one is taken, the lowest row of these.

    centre_in_truth is the pointing game (Zhang et al. 2016, "Top-down neural attention by excitation backprop", ECCV):
    the original points at the maximum of a map, with a tolerance of 15 pixels; a ranking of boxes points at the centre
    of the first, with none.
    """
    m = len(split.phrase_photo)
    rank, first = np.full(m, -1), np.full(m, -1)
    hits, proposals = np.zeros(m, np.int64), np.zeros(m, np.int64)
    overlap, random_iou, random_centre, centre = np.zeros(m), np.zeros(m), np.zeros(m), np.zeros(m, bool)
    confidences = {}
    for photo in photo_by_photo(split, scores_of):
        p, right = photo.phrases, photo.overlap >= RIGHT
        rank[p] = metrics.best_ranks_of_pairs(photo.scores, *np.nonzero(right))
        top = first_of(photo.scores, right)                                         # (m,)
        inside = centres_within(photo.boxes, split.truth[p])                        # (m, P)
        first[p], hits[p], proposals[p] = photo.rows[top], right.sum(1), len(photo.rows)
        overlap[p], centre[p] = (of[np.arange(len(p)), top] for of in (photo.overlap, inside))
        random_iou[p], random_centre[p] = photo.overlap.mean(1), inside.mean(1)
        for name, value in confidences_of(photo, top, temperature).items():
            confidences.setdefault(name, np.zeros(m))[p] = value
    return Located(rank, first, overlap, centre, hits, proposals, random_iou, random_centre, confidences)


def first_of(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The position of the first box of each phrase, a wrong one where boxes tie: scores, right (m, P) -> (m,)."""
    tied = scores == scores.max(1, keepdims=True)
    wrong = tied & ~right
    return np.where(wrong.any(1), wrong.argmax(1), tied.argmax(1))


def centres_within(boxes: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether the centres of boxes (P, 4) lie in the boxes truth (m, 4), their edges included -> (m, P) bool."""
    x, y = (boxes[:, :2] + boxes[:, 2:]).astype(np.float64).T / 2                   # (P,) each
    left, top, right, bottom = truth.T[:, :, None]                                  # (m, 1) each
    return (left <= x) & (x <= right) & (top <= y) & (y <= bottom)


def confidences_of(photo: Scored, top: np.ndarray, temperature: float | None) -> dict[str, np.ndarray]:
    """How sure the scores are of the first box, {measure: (m,)}, more where surer. top (m,): the position of that box.

    "max" is its score, "margin" how far it is above the best box elsewhere (intersection over union with the first
    below 0.5; where there is none, above the lowest score), "std" the deviation of the scores. With a temperature T
    also "posterior", its share of softmax(T s); "overlap", that of all boxes at its place, since the proposals of one
    object share the mass; "entropy", minus the entropy of that softmax in nats.
    """
    scores, each = photo.scores.astype(np.float64), np.arange(len(top))
    best = scores[each, top]
    there = iou(photo.boxes[top], photo.boxes) >= RIGHT                             # (m, P)
    elsewhere = np.where(there, -np.inf, scores).max(1)
    margin = best - np.where(there.all(1), scores.min(1), elsewhere)
    values = {}
    if temperature is not None:
        log_p = torch.from_numpy(temperature * scores).log_softmax(1).numpy()
        p = np.exp(log_p)
        values = {"posterior": p[each, top], "overlap": (p * there).sum(1).clip(max=1), "entropy": (p * log_p).sum(1)}
    return values | {"max": best, "margin": margin, "std": scores.std(1)}


# ---- measures

def measures(located: Located, split: BoxSplit) -> dict:
    """Results in percent: {"r1", "r5", "r10", "rsum", "upper", "pointing", "iou", "phrases", "photos", "by_type",
    "macro", "by_boxes", "chance"}.

    "upper": the phrases that any proposal is right for, which no ranking can exceed; "iou": the mean of the first box
    with the truth; "by_type" and "by_boxes": the same of groups of phrases. A phrase of several types counts in each.
    "macro": the mean over types, where the numbers above are means over phrases (micro). "chance": what proposals in
    random order give, exactly. Raises InputError where there are no phrases.
    """
    if not len(located.rank):
        raise InputError("there are no phrases with a box to rank proposals for; check the annotations of the split")
    kinds = sorted({kind for types in split.types for kind in types})
    by_type = {kind: summary(located, np.array([kind in types for types in split.types])) for kind in kinds}
    by_boxes = {name: summary(located, (split.n_boxes >= least) & (split.n_boxes <= most))
                for name, (least, most) in COUNTS.items()}
    macro = {key: float(np.mean([of[key] for of in by_type.values()]))
             for key in ("r1", "r5", "r10", "rsum", "upper", "pointing", "iou")} if by_type else {}
    return {**summary(located), "photos": len(np.unique(split.phrase_photo)), "by_type": by_type, "macro": macro,
            "by_boxes": {name: of for name, of in by_boxes.items() if of["phrases"]}, "chance": chance(located)}


def summary(located: Located, chosen: np.ndarray | slice = slice(None)) -> dict:
    """The results of the phrases chosen (M,) bool, in percent; without any only their number, 0."""
    rank = located.rank[chosen]
    if not len(rank):
        return {"phrases": 0}
    return {**recalls([100 * np.mean((rank >= 0) & (rank < k)) for k in metrics.RECALLS]),
            "upper": float(100 * np.mean(rank >= 0)), "pointing": float(100 * np.mean(located.centre_in_truth[chosen])),
            "iou": float(100 * np.mean(located.iou[chosen])), "phrases": len(rank)}


def recalls(of: list[float]) -> dict:
    """{"r1", "r5", "r10", "rsum"} of the three recalls."""
    return {**{f"r{k}": float(value) for k, value in zip(metrics.RECALLS, of)}, "rsum": float(sum(of))}


def chance(located: Located) -> dict:
    """The expected results of proposals in random order, in percent.

    Of P proposals, c right, none of the first k is right with probability prod_{j < k} (P - c - j) / (P - j).
    """
    p, c, left, expected = located.proposals, located.hits, np.ones(len(located.rank)), []
    for j in range(max(metrics.RECALLS)):
        left = left * np.where(c > 0, np.clip((p - c - j) / np.maximum(p - j, 1), 0, 1), 1)
        expected.append(100 * np.mean(1 - left))
    return {**recalls([expected[k - 1] for k in metrics.RECALLS]), "upper": float(100 * np.mean(c > 0)),
            "pointing": float(100 * np.mean(located.random_centre)), "iou": float(100 * np.mean(located.random_iou)),
            "phrases": len(c)}


def largest_first(split: BoxSplit) -> dict:
    """The results of ranking every photo's proposals by their area, whatever the phrase says. Boxes of one area tie."""
    def area(n: int, columns: np.ndarray) -> np.ndarray:
        return np.repeat(areas(split.boxes[split.start[n]:split.start[n + 1]])[:, None], len(columns), 1)
    return summary(locate(split, area))


# ---- two models

def totals(located: Located, split: BoxSplit) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{"r1" | "r5" | "r10": (total (N,), count (N,))} of the photos that have phrases, in percent, as
    `metrics.paired_bootstrap` takes it."""
    owner = np.unique(split.phrase_photo, return_inverse=True)[1]
    count = np.bincount(owner)
    return {f"r{k}": (np.bincount(owner, 100.0 * ((located.rank >= 0) & (located.rank < k))), count)
            for k in metrics.RECALLS}


def compare(a: list[Located], b: list[Located], split: BoxSplit, names: tuple[str, str],
            samples: int = 10000) -> dict:
    """A paired bootstrap over photos of two models on the same phrases, or of several seeds of each: an entry of
    "comparisons", as `report.comparisons` and `report.doubts` read it."""
    runs = [[totals(of, split) for of in side] for side in (a, b)]
    return {"a": names[0], "b": names[1], "over": "photos", "seeds": [len(a), len(b)],
            "metrics": metrics.paired_bootstrap(*runs, SUMS, samples)}


# ---- tables and sentences

COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "rsum": "rsum", "upper": "any box", "pointing": "pointing",
           "iou": "IoU", "phrases": "phrases"}
HEADINGS = {"by_type": "recall by type of the phrase; a phrase of several types counts in each",
            "by_boxes": "recall by the number of boxes of the phrase"}


def tables(runs: dict[str, dict], baselines: dict[str, dict] | None = None) -> list:
    """Tables of what `measures` returned, by name of the run, as report.py has them: all phrases, by type, by number of
    boxes. baselines: {what it is: `summary` of a ranking that reads no phrase}; they close the first table, as does
    the chance of the first run."""
    first, several = next(iter(runs.values())), len(runs) > 1
    rows = [(name, of) for name, of in runs.items()]
    rows += [(name, of) for name, of in (baselines or {}).items()] + [("proposals in random order", first["chance"])]
    made = [("phrase localisation, percent; a box is right from IoU 0.5, any box: the most that a ranking can reach",
             [("", list(COLUMNS.values()))], [(name, cells(of)) for name, of in rows])]
    for key, title in HEADINGS.items():
        rows = [(report.label(name, group, several), cells(of[key][group])) for group in first[key]
                for name, of in runs.items()]
        if key == "by_type":
            rows += [(report.label(name, "mean over types (macro)", several), cells(of["macro"]))
                     for name, of in runs.items() if of["macro"]]
            rows += [(report.label(name, "mean over phrases (micro)", several), cells(of)) for name, of in runs.items()]
        if first[key]:
            made.append((title, [("", list(COLUMNS.values()))], rows))
    return made


def cells(of: dict) -> list[str]:
    return [(f"{of[key]:,}" if key == "phrases" else report.number(of[key])) if key in of else "" for key in COLUMNS]


def sentences(results: dict):
    """What the tables do not show. results: what `measures` returned."""
    reached = f", {100 * results['r1'] / results['upper']:.1f}% of these" if results["upper"] else ""
    yield (f"the proposals hold a right box for {results['upper']:.1f}% of {results['phrases']:,} phrases of "
           f"{results['photos']:,} photos, and no ranking can be right more often; R@1 is {results['r1']:.1f}% of all "
           f"phrases{reached}; by chance {results['chance']['r1']:.1f}%")
