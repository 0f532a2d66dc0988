"""Phrase localisation: each phrase of a caption ranks the box proposals of its own photo, and the
first box is judged.

A box is right where its intersection over union with the truth is at least 0.5 (Flickr30k Entities,
Plummer et al. 2017; `jwae` 5.2 and Table 7). A phrase that no proposal reaches counts as a miss at
every rank, so the recall of the proposals bounds all results from above. Every mention in every
sentence is one phrase.
"""
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy import special

import metrics
from cli import check
from losses import uncertainty
from model import VSE
from phrases.data import PhraseSplit, areas, iou

RIGHT = 0.5  # the least intersection over union of a right box with the truth
# boxes of a phrase: (least, most) of each group
COUNTS = {"1": (1, 1), "2": (2, 2), "more": (3, np.inf)}
REGIONS = 4096                        # that are encoded at a time in training


class Located(NamedTuple):
    """What was found for each of M phrases."""
    rank: np.ndarray  # (M,) int64, 0-based, of the best-ranked right box; -1 where no box is right
    first: np.ndarray  # (M,) int64 the row of the first-ranked box; -1: the photo has no proposal
    iou: np.ndarray                   # (M,) in [0, 1], of the first box with the truth
    # (M,) bool: the centre of the first box lies in the truth, see `locate`
    centre_in_truth: np.ndarray
    hits: np.ndarray                  # (M,) int64 how many proposals are right
    proposals: np.ndarray             # (M,) int64 how many there are
    random_iou: np.ndarray  # (M,) the mean of iou over all proposals: that of a random first box
    random_centre: np.ndarray         # (M,) the share of proposals whose centre lies in the truth
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
    overlap: np.ndarray  # (m, P) float64: intersection over union with the truth of each phrase


def photo_by_photo(split: PhraseSplit, scores_of: ScoresOf) -> Iterator[Scored]:
    """The photos that have phrases and proposals, each scored when its turn comes. Boxes that were
    added for training are not ranked.

    scores_of(n, columns) -> (P, m): the scores of all proposals of photo n with the phrases
    `columns` (m,), higher is better. Raises InputError on scores that are not finite.
    """
    assert (np.diff(split.phrase_photo) >= 0).all(), "phrases in the order of their photos"
    photos, low = np.unique(split.phrase_photo, return_index=True)
    for n, phrases in zip(photos.tolist(), np.split(np.arange(len(split.phrase_photo)), low[1:])):
        rows = np.arange(split.start[n], split.start[n + 1])
        if not len(rows):
            continue
        scores = torch.as_tensor(scores_of(n, phrases)).detach()
        assert scores.shape == (len(rows), len(phrases)), (n, scores.shape)
        # (P, m) -> (m, P)
        scores = scores.to("cpu", torch.promote_types(scores.dtype, torch.float32)).numpy().T
        check(np.isfinite(scores).all(), f"photo {split.ids[n]}: {metrics.NOT_FINITE}")
        ranked = ~split.added[rows]
        rows, scores = rows[ranked], scores[:, ranked]
        if len(rows):
            yield Scored(phrases, rows, split.boxes[rows], scores,
                         iou(split.truth[phrases], split.boxes[rows]))


def locate(split: PhraseSplit, scores_of: ScoresOf, temperature: float | None = None) -> Located:
    """What `located` finds, with one photo scored at a time; scores_of: see `photo_by_photo`."""
    return located(split, photo_by_photo(split, scores_of), temperature)


def located(split: PhraseSplit, photos: Iterable[Scored],
            temperature: float | None = None) -> Located:
    """Rank the proposals of each photo for each of its phrases. temperature: of the posterior over
    the proposals.

    Ties count against the model, as in `metrics`: the rank is the number of wrong boxes that score
    at least as high as the best right one, and of boxes that tie for the first place a wrong one is
    taken, the lowest row of these.

    centre_in_truth is the pointing game (Zhang et al. 2016, "Top-down neural attention by
    excitation backprop", ECCV): the original points at the maximum of a map, with a tolerance of 15
    pixels; a ranking of boxes points at the centre of the first, with none.
    """
    m = len(split.phrase_photo)
    found = Located(*np.full((2, m), -1), np.zeros(m), np.zeros(m, bool),
                    *np.zeros((2, m), np.int64), *np.zeros((2, m)), {})
    for photo in photos:
        p, right = photo.phrases, photo.overlap >= RIGHT
        top = first_of(photo.scores, right)                                         # (m,)
        inside = centres_within(photo.boxes, split.truth[p])                        # (m, P)
        values = (metrics.best_ranks_of_pairs(photo.scores, *np.nonzero(right)), photo.rows[top],
                  *(of[np.arange(len(p)), top] for of in (photo.overlap, inside)), right.sum(1),
                  len(photo.rows), photo.overlap.mean(1), inside.mean(1))
        for of, value in zip(found, values):
            of[p] = value
        for name, value in confidences_of(photo, top, temperature).items():
            found.confidences.setdefault(name, np.zeros(m))[p] = value
    return found


def first_of(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The position of the first box of each phrase, a wrong one where boxes tie: scores, right (m,
    P) -> (m,)."""
    tied = scores == scores.max(1, keepdims=True)
    wrong = tied & ~right
    return np.where(wrong.any(1), wrong.argmax(1), tied.argmax(1))


def centres_within(boxes: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether the centres of boxes (P, 4) lie in the boxes truth (m, 4), their edges included ->
    (m, P) bool."""
    x, y = (boxes[:, :2] + boxes[:, 2:]).astype(np.float64).T / 2                   # (P,) each
    left, top, right, bottom = truth.T[:, :, None]                                  # (m, 1) each
    return (left <= x) & (x <= right) & (top <= y) & (y <= bottom)


def confidences_of(photo: Scored, top: np.ndarray,
                   temperature: float | None) -> dict[str, np.ndarray]:
    """How sure the scores are of the first box, {measure: (m,)}, more where surer. top (m,): the
    position of that box.

    "max" is its score. With a temperature T also "posterior", its share of softmax(T s), and
    "overlap", that of all boxes at its place (intersection over union with the first of 0.5 and
    more), since the proposals of one object share the mass.
    """
    scores, each = photo.scores.astype(np.float64), np.arange(len(top))
    values = {"max": scores[each, top]}
    if temperature is not None:
        p = np.exp(torch.from_numpy(temperature * scores).log_softmax(1).numpy())
        there = iou(photo.boxes[top], photo.boxes) >= RIGHT                         # (m, P)
        values |= {"posterior": p[each, top], "overlap": (p * there).sum(1).clip(max=1)}
    return values


# ---- measures

def outcomes(found: Located) -> dict[str, np.ndarray]:
    """What the results are means of: of each phrase (M,) whether a right box is among the first 1, 5
    and 10 and whether there is any, the pointing game and the IoU, all in [0, 1]."""
    return {**{f"r{k}": (found.rank >= 0) & (found.rank < k) for k in metrics.RECALLS},
            "upper": found.rank >= 0, "pointing": found.centre_in_truth, "iou": found.iou}


def measures(found: Located, split: PhraseSplit) -> dict:
    """Results in percent: {"r1", "r5", "r10", "rsum", "upper", "pointing", "iou", "phrases",
    "photos", "by_type", "macro", "by_boxes", "chance"}.

    "upper": the phrases that any proposal is right for, which no ranking can exceed; "iou": the
    mean of the first box with the truth; "by_type" and "by_boxes": the results of groups of
    phrases. A phrase of several types counts in each. "macro": the mean over types, where the
    numbers above are means over phrases (micro). "chance": what proposals in random order give,
    exactly. Raises InputError where there are no phrases.
    """
    check(len(found.rank), "there are no phrases with a box to rank proposals for; check the "
                           "annotations of the split")
    values, kinds = outcomes(found), sorted({kind for types in split.types for kind in types})
    whole, by_type = summary(values), {
        kind: summary(values, np.array([kind in types for types in split.types])) for kind in kinds}
    macro = {key: float(np.mean([of[key] for of in by_type.values()])) for key in whole
             if key != "phrases" and kinds}
    groups = {name: (least <= split.n_boxes) & (split.n_boxes <= most)
              for name, (least, most) in COUNTS.items()}
    by_boxes = {name: summary(values, group) for name, group in groups.items() if group.any()}
    return {**whole, "photos": len(np.unique(split.phrase_photo)), "by_type": by_type,
            "macro": macro, "by_boxes": by_boxes, "chance": chance(found)}


def summary(values: dict[str, np.ndarray], chosen: np.ndarray | slice = slice(None)) -> dict:
    """The results of the phrases chosen (M,) bool, in percent, from `outcomes`."""
    means = {name: float(100 * np.mean(of[chosen])) for name, of in values.items()}
    return {**means, "rsum": sum(means[f"r{k}"] for k in metrics.RECALLS),
            "phrases": len(values["upper"][chosen])}


def chance(found: Located) -> dict:
    """The expected results of proposals in random order, in percent.

    Of P proposals, c right, none of the first k is right with probability C(P - c, k) / C(P, k).
    """
    p, c = found.proposals, found.hits
    recalls = {f"r{k}": (c > 0) * (1 - special.binom(p - c, k) / special.binom(np.maximum(p, k), k))
               for k in metrics.RECALLS}
    return summary({**recalls, "upper": c > 0, "pointing": found.random_centre,
                    "iou": found.random_iou})


def largest_first(split: PhraseSplit) -> dict:
    """The results of ranking every photo's proposals by their area, whatever the phrase says. Boxes
    of one area tie."""
    def area(n: int, columns: np.ndarray) -> np.ndarray:
        return np.repeat(areas(split.boxes[split.start[n]:split.start[n + 1]])[:, None],
                         len(columns), 1)
    return summary(outcomes(locate(split, area)))


def rsum_by_chance(split: PhraseSplit) -> float:
    """R@1 + R@5 + R@10 of proposals in random order, in percent."""
    def equal(n: int, columns: np.ndarray) -> np.ndarray:
        return np.zeros((split.start[n + 1] - split.start[n], len(columns)))
    return chance(locate(split, equal))["rsum"]


# ---- trained models

class PhraseScores:
    """The scores of a photo's proposals for its phrases; of several models their mean.

    Photos are encoded some at a time, in order, and forgotten: of the real test split the
    embeddings of all proposals would take a gigabyte. `phrase_log_det` (M,) is log det Sigma
    of the phrases that have been encoded, by the first model, NaN of points; `alike` the mean
    cosines of the first regions and phrases.
    """

    def __init__(self, models: list[tuple], split: PhraseSplit, device, most: int = REGIONS):
        """models: each with the regions (a split's images) and the phrases (its tokens) as it reads
        them. most: regions that are encoded at a time, of one photo at least."""
        self.models, self.split, self.device, self.most = models, split, device, most
        self.phrase_log_det = np.full(len(split.phrases), np.nan)
        self.scores, self.alike = {}, {}

    def __call__(self, n: int, columns: np.ndarray) -> np.ndarray:
        """(P, m) float32 of photo n, whose phrases are `columns`."""
        if n not in self.scores:
            self.encode(n)
        return self.scores.pop(n)

    @torch.no_grad()
    def encode(self, first: int) -> None:
        """Score the photos from `first` on, which has phrases, as many as have `most` proposals
        together, at least one."""
        start = self.split.start
        after = int(np.searchsorted(start, start[first] + self.most, side="right"))
        last = max(first + 1, after - 1)
        low, high = np.searchsorted(self.split.phrase_photo, (first, last))
        rows, columns = np.arange(start[first], start[last]), np.arange(low, high)
        self.scores = {n: 0.0 for n in range(first, last)}
        for k, (model, images, tokens) in enumerate(self.models):
            regions = model.embed_images(images.gather(rows).to(self.device))
            words, lengths = tokens.batch(columns)
            phrases = model.embed_captions(words.to(self.device), lengths)
            if not k:
                if phrases.log_var is not None:
                    self.phrase_log_det[columns] = uncertainty(phrases).cpu().numpy()
                self.alike = self.alike or {"regions": metrics.mean_cosine(regions.mean),
                                            "phrases": metrics.mean_cosine(phrases.mean)}
            for n in range(first, last):
                here, own = slice(*(start[[n, n + 1]] - start[first])), self.split.columns(n) - low
                if len(own):
                    scores = model.similarity(regions.rows(here), phrases.rows(own))  # (P, m)
                    self.scores[n] += scores.float().cpu().numpy() / len(self.models)


def validate_phrases(model: VSE, split: PhraseSplit, tokens, device) -> dict:
    """The `measures` of a split, and "alike", the mean cosine of two regions and of two phrases."""
    scores = PhraseScores([(model, split.images, tokens)], split, device)
    return {**measures(locate(split, scores), split), "alike": scores.alike}
