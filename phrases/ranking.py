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
    """Ranks of proposals for M phrases."""
    rank: np.ndarray                  # (M,) int64, 0-based, of the best-ranked right box; -1: no box is right
    hits: np.ndarray                  # (M,) int64 number of right proposals
    proposals: np.ndarray             # (M,) int64 number of proposals


def locate(split: PhraseSplit, scores_of: Callable) -> Located:
    """Rank the proposals of each photo, but those added, for each of its phrases.

    scores_of(n, columns (m,)) -> (P, m), higher is better: all proposals of photo n with these phrases. Ties count
    against the model: the rank is the number of wrong boxes that score at least as high as the best right one. Raises
    InputError on scores that are not finite.
    """
    m = len(split.phrase_photo)
    result = Located(*np.zeros((3, m), np.int64))
    photos, low = np.unique(split.phrase_photo, return_index=True)
    for n, p in zip(photos.tolist(), np.split(np.arange(m), low[1:])):              # p (m,): phrases of photo n
        rows = np.arange(split.start[n], split.start[n + 1])                        # (P,)
        scores = np.asarray(scores_of(n, p), np.float32).T                          # (P, m) -> (m, P)
        check(np.isfinite(scores).all(), f"photo {split.ids[n]}: {metrics.NOT_FINITE}")
        rows, scores = rows[~split.added[rows]], scores[:, ~split.added[rows]]
        right = iou(split.truth[p], split.boxes[rows]) >= RIGHT                     # (m, P)
        for target, value in zip(result, (metrics.best_ranks(scores, *np.nonzero(right)), right.sum(1), len(rows))):
            target[p] = value
    return result


# ---- measures

def outcomes(located: Located) -> dict[str, np.ndarray]:
    """Compute the outcomes of each phrase, (M,) in [0, 1]."""
    return {**{f"r{k}": (located.rank >= 0) & (located.rank < k) for k in metrics.RECALLS}, "upper": located.rank >= 0}


def measures(located: Located, split: PhraseSplit) -> dict:
    """Compute results in percent: {"r1", "r5", "r10", "rsum", "upper", ...}.

    "upper": phrases that any proposal is right for; "by_type": results of groups (a phrase of several types counts in
    each); "chance": of proposals in random order.
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
    return average_outcomes({**recalls, "upper": c > 0})


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
