"""Phrase localisation: each phrase ranks the proposals of its photo.

A box is right where its intersection over union (IoU) with the truth is at least 0.5 (Plummer et al. 2017; jwae 5.2 and
Table 7). A phrase that no proposal reaches is a miss at every rank, so the recall of the proposals bounds all results.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import special

import metrics
from cli import check
from model import VSE
from phrases.data import PhraseSplit, areas, iou

RIGHT = 0.5                           # least IoU of a right box with the truth
REGIONS = 4096                        # that are encoded at a time in training


class Located(NamedTuple):
    """Ranks of proposals for M phrases, and their first boxes."""
    rank: np.ndarray                  # (M,) int64, 0-based, of the best-ranked right box; -1: no box is right
    iou: np.ndarray                   # (M,) in [0, 1], of the first box with the truth
    centre_in_truth: np.ndarray       # (M,) bool: the centre of the first box lies in the truth
    hits: np.ndarray                  # (M,) int64 number of right proposals
    proposals: np.ndarray             # (M,) int64 number of proposals
    random_iou: np.ndarray            # (M,) mean IoU of all proposals, that of a random first box
    random_centre: np.ndarray         # (M,) share of the proposals whose centre lies in the truth


def locate(split: PhraseSplit, scores_of: Callable) -> Located:
    """Rank the proposals of each photo, but those added, for each of its phrases.

    scores_of(n, columns (m,)) -> (P, m), higher is better: all proposals of photo n with these phrases. Ties count
    against the model: the rank is the number of wrong boxes that score at least as high as the best right one, and of
    boxes that tie for the first place a wrong one is taken. centre_in_truth is the pointing game (Zhang et al. 2016)
    without its tolerance of 15 pixels. Raises InputError on scores that are not finite.
    """
    m = len(split.phrase_photo)
    result = Located(np.full(m, -1), np.zeros(m), np.zeros(m, bool), *np.zeros((2, m), np.int64), *np.zeros((2, m)))
    photos, low = np.unique(split.phrase_photo, return_index=True)
    for n, p in zip(photos.tolist(), np.split(np.arange(m), low[1:])):              # p (m,): phrases of photo n
        rows = np.arange(split.start[n], split.start[n + 1])                        # (P,)
        scores = np.asarray(scores_of(n, p), np.float32).T                          # (P, m) -> (m, P)
        check(np.isfinite(scores).all(), f"photo {split.ids[n]}: {metrics.NOT_FINITE}")
        rows, scores = rows[~split.added[rows]], scores[:, ~split.added[rows]]
        overlap, inside = iou(split.truth[p], split.boxes[rows]), centres_within(split.boxes[rows], split.truth[p])
        right, every = overlap >= RIGHT, np.arange(len(p))                          # (m, P), (m,)
        first = first_boxes(scores, right)                                          # (m,)
        values = (metrics.best_ranks(scores, *np.nonzero(right)), overlap[every, first], inside[every, first],
                  right.sum(1), len(rows), overlap.mean(1), inside.mean(1))
        for target, value in zip(result, values):
            target[p] = value
    return result


def first_boxes(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Find first boxes, a wrong one where boxes tie: scores, right (m, P) -> (m,)."""
    tied = scores == scores.max(1, keepdims=True)
    wrong = tied & ~right
    return np.where(wrong.any(1), wrong.argmax(1), tied.argmax(1))


def centres_within(boxes: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Find centres of boxes (P, 4) that lie in the boxes truth (m, 4) -> (m, P) bool."""
    x, y = (boxes[:, :2] + boxes[:, 2:]).astype(np.float64).T / 2                   # (P,) each
    left, top, right, bottom = truth.T[:, :, None]                                  # (m, 1) each
    return (left <= x) & (x <= right) & (top <= y) & (y <= bottom)


# ---- measures

def outcomes(located: Located) -> dict[str, np.ndarray]:
    """Compute the outcomes of each phrase, (M,) in [0, 1]."""
    return {**{f"r{k}": (located.rank >= 0) & (located.rank < k) for k in metrics.RECALLS},
            "upper": located.rank >= 0, "pointing": located.centre_in_truth, "iou": located.iou}


def measures(located: Located, split: PhraseSplit) -> dict:
    """Compute results in percent: {"r1", "r5", "r10", "rsum", "upper", ...}.

    "upper": phrases that any proposal is right for; "iou": mean of the first box with the truth; "by_type": results of
    groups (a phrase of several types counts in each); "chance": of proposals in random order.
    """
    values, kinds = outcomes(located), sorted({kind for types in split.types for kind in types})
    by_type = {kind: average_outcomes(values, np.array([kind in types for types in split.types])) for kind in kinds}
    return {**average_outcomes(values), "photos": len(np.unique(split.phrase_photo)), "by_type": by_type,
            "chance": measure_chance(located)}


def average_outcomes(values: dict[str, np.ndarray], chosen: np.ndarray | slice = slice(None)) -> dict:
    """Average `outcomes` over the phrases chosen (M,) bool, in percent."""
    means = {name: float(100 * np.mean(value[chosen])) for name, value in values.items()}
    return {**means, "rsum": sum(means[f"r{k}"] for k in metrics.RECALLS), "phrases": len(values["upper"][chosen])}


def measure_chance(located: Located) -> dict:
    """Compute expected results of proposals in random order, in percent.

    Of P proposals, c right, none of the first k is right with probability C(P - c, k) / C(P, k).
    """
    p, c = located.proposals, located.hits
    recalls = {f"r{k}": (c > 0) * (1 - special.binom(p - c, k) / special.binom(np.maximum(p, k), k))
               for k in metrics.RECALLS}
    return average_outcomes({**recalls, "upper": c > 0, "pointing": located.random_centre, "iou": located.random_iou})


def largest_first(split: PhraseSplit) -> dict:
    """Evaluate a ranking of every photo's proposals by their area."""
    def area(n: int, columns: np.ndarray) -> np.ndarray:
        return np.repeat(areas(split.boxes[split.start[n]:split.start[n + 1]])[:, None], len(columns), 1)
    return average_outcomes(outcomes(locate(split, area)))


def rsum_by_chance(split: PhraseSplit) -> float:
    """Compute R@1 + R@5 + R@10 of proposals in random order, in percent."""
    sizes = np.diff(split.start)
    return measure_chance(locate(split, lambda n, columns: np.zeros((sizes[n], len(columns)))))["rsum"]


# ---- trained models

class PhraseScores:
    """Scores of a photo's proposals for its phrases, `tokens`.

    Photos are encoded in order, `regions` proposals at a time, and forgotten: all of the real test split would take a
    gigabyte.
    """

    def __init__(self, model: VSE, split: PhraseSplit, tokens, device, regions: int = REGIONS):
        self.model, self.split, self.tokens, self.device, self.regions = model, split, tokens, device, regions
        self.scores = {}

    def __call__(self, n: int, columns: np.ndarray) -> np.ndarray:
        """(P, m) float32 of photo n, whose phrases are `columns`."""
        if n not in self.scores:
            self.encode(n)
        return self.scores.pop(n)

    @torch.no_grad()
    def encode(self, first: int) -> None:
        """Score photos from `first` on with `regions` proposals together, at least one."""
        start = self.split.start
        last = max(first + 1, int(np.searchsorted(start, start[first] + self.regions, side="right")) - 1)
        low, high = np.searchsorted(self.split.phrase_photo, (first, last))
        rows, columns = np.arange(start[first], start[last]), np.arange(low, high)
        regions = self.model.embed_images(self.split.images.gather(rows).to(self.device))
        words, lengths = self.tokens.batch(columns)
        phrases = self.model.embed_captions(words.to(self.device), lengths)
        self.scores = {}
        for n in range(first, last):
            own = self.split.columns(n) - low
            if len(own):
                here = slice(*(start[[n, n + 1]] - start[first]))
                self.scores[n] = self.model.similarity(regions.rows(here), phrases.rows(own)).float().cpu().numpy()


def validate_phrases(model: VSE, split: PhraseSplit, tokens, device) -> dict:
    """The `measures` of a split."""
    return measures(locate(split, PhraseScores(model, split, tokens, device)), split)
