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


class Located(NamedTuple):
    """Ranks of proposals for M phrases."""
    rank: np.ndarray                  # (M,) int64, 0-based, of the best-ranked right box; -1: no box is right
    hits: np.ndarray                  # (M,) int64 number of right proposals
    proposals: np.ndarray             # (M,) int64 number of proposals


def locate(split: PhraseSplit, scores_of: Callable) -> Located:
    """Rank the proposals of each photo, but those added, for each of its phrases.

    scores_of(n, columns (m,)) -> (P, m) or (P, 1), higher is better: all proposals of photo n with these phrases. Ties
    count against the model: the rank is the number of wrong boxes that score at least as high as the best right one.
    Raises InputError on scores that are not finite.
    """
    photos, low = np.unique(split.phrase_photo, return_index=True)
    outcomes = []
    for n, p in zip(photos.tolist(), np.split(np.arange(len(split.phrase_photo)), low[1:])):        # p (m,): phrases
        rows = np.arange(split.start[n], split.start[n + 1])                        # (P,)
        scores = np.broadcast_to(np.float32(scores_of(n, p)), (len(rows), len(p))).T                # (m, P)
        check(np.isfinite(scores).all(), f"photo {split.ids[n]}: {metrics.NOT_FINITE}")
        rows, scores = rows[~split.added[rows]], scores[:, ~split.added[rows]]
        right = iou(split.truth[p], split.boxes[rows]) >= RIGHT                     # (m, P)
        ranks = metrics.best_ranks(scores, *np.nonzero(right))
        outcomes.append((ranks, right.sum(1), np.full(len(p), len(rows))))
    return Located(*map(np.concatenate, zip(*outcomes)))


# ---- measures

def measure_outcomes(located: Located) -> dict[str, np.ndarray]:
    """Compute the outcomes of each phrase, (M,) in [0, 1]."""
    return {**{f"r{k}": (located.rank >= 0) & (located.rank < k) for k in metrics.RECALLS}, "upper": located.rank >= 0}


def measure_localisation(located: Located, split: PhraseSplit) -> dict:
    """Compute results in percent: {"r1", "r5", "r10", "rsum", "upper", ...}.

    "upper": phrases that any proposal is right for; "by_type": results of groups (a phrase of several types counts in
    each); "chance": of proposals in random order.
    """
    values, kinds = measure_outcomes(located), sorted({kind for types in split.types for kind in types})
    by_type = {kind: average_outcomes(values, np.array([kind in types for types in split.types])) for kind in kinds}
    return {**average_outcomes(values), "photos": len(np.unique(split.phrase_photo)), "by_type": by_type,
            "chance": measure_chance(located)}


def average_outcomes(values: dict[str, np.ndarray], chosen: np.ndarray | slice = slice(None)) -> dict:
    """Average `measure_outcomes` over the phrases chosen (M,) bool, in percent."""
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


def measure_largest_first(split: PhraseSplit) -> dict:
    """Evaluate a ranking of every photo's proposals by their area."""
    size = areas(split.boxes)[:, None]                                              # (R, 1)
    return average_outcomes(measure_outcomes(locate(split, lambda n, _: size[split.start[n]:split.start[n + 1]])))


def total_by_photo(located: Located, split: PhraseSplit) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sum the outcomes of each photo's phrases, in percent, for `metrics.paired_bootstrap`.

    Returns {"phrases r1", ...: (total (N,), number of phrases (N,))}, N photos in their order.
    """
    photos = len(split.ids)
    count = np.bincount(split.phrase_photo, minlength=photos)
    outcomes = measure_outcomes(located)
    totals = {}
    for k in metrics.RECALLS:
        right = np.bincount(split.phrase_photo, outcomes[f"r{k}"], photos)
        totals[f"phrases r{k}"] = (100 * right, count)
    return totals


def validate_phrases(model: VSE, split: PhraseSplit, tokens, device) -> dict:
    """Measure the localisation of a split by a model in evaluation mode."""
    return measure_localisation(locate_phrases(model, split, tokens, device), split)


def locate_phrases(model: VSE, split: PhraseSplit, tokens, device) -> Located:
    """Rank the proposals of each photo by a model in evaluation mode."""
    @torch.no_grad()
    def scores_of(n: int, columns: np.ndarray) -> np.ndarray:
        words, lengths = tokens.batch(columns)
        phrases = model.embed_captions(words.to(device), lengths)
        regions = model.embed_images(split.images.gather(np.arange(split.start[n], split.start[n + 1])).to(device))
        return model.similarity(regions, phrases).float().cpu().numpy()             # (P, m)
    return locate(split, scores_of)
