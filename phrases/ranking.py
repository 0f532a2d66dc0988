"""Phrase localization: each phrase ranks the proposals of its photo.

A box is right where its intersection over union (IoU) with the truth is at least 0.5 (Plummer et
al. 2017; jwae 5.2 and Table 7). A phrase that no proposal reaches is a miss at every rank, so the
recall of the proposals bounds all results.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import special

import metrics
from metrics import box_areas, box_iou
from model import VSE
from phrases.data import PhraseSplit
from utils import InputError

RIGHT_IOU = 0.5  # least IoU of a right box with the truth


class Located(NamedTuple):
    """Ranks of proposals for M phrases."""

    rank: np.ndarray  # (M,) int64, 0-based, of the best-ranked right box; -1: no box is right
    hits: np.ndarray  # (M,) int64 number of right proposals
    proposals: np.ndarray  # (M,) int64 number of proposals


def locate(split: PhraseSplit, scores_of: Callable) -> Located:
    """Rank the proposals of each photo, but those added, for each of its phrases.

    scores_of(n, columns (m,)) -> (P, m) or (P, 1), higher is better: all proposals of photo n with
    these phrases. Ties count against the model: the rank is the number of wrong boxes that score at
    least as high as the best right one. Raises InputError on scores that are not finite.
    """
    photos, first = np.unique(split.phrase_photo, return_index=True)
    phrases_of = np.split(np.arange(len(split.phrase_photo)), first[1:])  # (m,) of each photo
    ranks = []
    hits = []
    proposals = []
    for n, phrases in zip(photos.tolist(), phrases_of):
        rows = np.arange(split.start[n], split.start[n + 1])  # (P,)
        scores = np.float32(scores_of(n, phrases))
        scores = np.broadcast_to(scores, (len(rows), len(phrases))).T  # (m, P)
        if not np.isfinite(scores).all():
            raise InputError(f"photo {split.ids[n]}: {metrics.NOT_FINITE}")

        counted = ~split.added[rows]
        rows = rows[counted]
        scores = scores[:, counted]
        right = box_iou(split.truth[phrases], split.boxes[rows]) >= RIGHT_IOU  # (m, P)
        ranks.append(metrics.best_ranks(scores, *np.nonzero(right)))
        hits.append(right.sum(1))
        proposals.append(np.full(len(phrases), len(rows)))
    return Located(np.concatenate(ranks), np.concatenate(hits), np.concatenate(proposals))


# ---- measures


def measure_outcomes(located: Located) -> dict[str, np.ndarray]:
    """Compute the outcomes of each phrase, (M,) in [0, 1]."""
    reached = located.rank >= 0
    outcomes = {}
    for k in metrics.RECALLS:
        outcomes[f"r{k}"] = reached & (located.rank < k)
    outcomes["upper"] = reached
    return outcomes


def measure_localisation(located: Located, split: PhraseSplit) -> dict:
    """Compute results in percent: {"r1", "r5", "r10", "rsum", "upper", ...}.

    "upper": phrases that any proposal is right for; "by_type": results of groups (a phrase of
    several types counts in each); "chance": of proposals in random order.
    """
    values = measure_outcomes(located)
    kinds = set()
    for types in split.types:
        kinds.update(types)

    by_type = {}
    for kind in sorted(kinds):
        chosen = np.array([kind in types for types in split.types])
        by_type[kind] = average_outcomes(values, chosen)
    return {
        **average_outcomes(values),
        "photos": len(np.unique(split.phrase_photo)),
        "by_type": by_type,
        "chance": measure_chance(located),
    }


def average_outcomes(
    values: dict[str, np.ndarray], chosen: np.ndarray | slice = slice(None)
) -> dict:
    """Average `measure_outcomes` over the phrases chosen (M,) bool, in percent."""
    means = {name: float(100 * np.mean(value[chosen])) for name, value in values.items()}
    rsum = sum(means[f"r{k}"] for k in metrics.RECALLS)
    return {**means, "rsum": rsum, "phrases": len(values["upper"][chosen])}


def measure_chance(located: Located) -> dict:
    """Compute expected results of proposals in random order, in percent.

    Of P proposals, c right, none of the first k is right with probability C(P - c, k) / C(P, k).
    """
    p = located.proposals
    c = located.hits
    outcomes = {}
    for k in metrics.RECALLS:
        none_right = special.binom(p - c, k) / special.binom(np.maximum(p, k), k)
        outcomes[f"r{k}"] = (c > 0) * (1 - none_right)
    outcomes["upper"] = c > 0
    return average_outcomes(outcomes)


def measure_largest_first(split: PhraseSplit) -> dict:
    """Evaluate a ranking of every photo's proposals by their area."""
    area = box_areas(split.boxes)[:, None]  # (R, 1)

    def score_by_area(n: int, columns: np.ndarray) -> np.ndarray:
        return area[split.start[n] : split.start[n + 1]]

    return average_outcomes(measure_outcomes(locate(split, score_by_area)))


def total_by_photo(
    located: Located, split: PhraseSplit
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
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
    """Measure the localization of a split by a model in evaluation mode."""
    return measure_localisation(locate_phrases(model, split, tokens, device), split)


def locate_phrases(model: VSE, split: PhraseSplit, tokens, device) -> Located:
    """Rank the proposals of each photo by a model in evaluation mode."""

    @torch.no_grad()
    def score_photo(n: int, columns: np.ndarray) -> np.ndarray:
        words, lengths = tokens.batch(columns)
        phrases = model.embed_captions(words.to(device), lengths)
        rows = np.arange(split.start[n], split.start[n + 1])
        regions = model.embed_images(split.images.gather(rows).to(device))
        return model.similarity(regions, phrases).float().cpu().numpy()  # (P, m)

    return locate(split, score_photo)
