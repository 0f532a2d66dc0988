"""Phrase localization: each phrase ranks the proposals of its photo.

A box is right where its intersection over union (IoU) with the truth is at least 0.5 (Plummer et
al. 2017; jwae 5.2 and Table 7). A phrase that no proposal reaches is a miss at every rank, so the
recall of the proposals bounds all results.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy import special

import metrics
from checkpoint import Trained
from data import check_extractors
from losses import uncertainty
from metrics import box_areas, box_iou
from model import VSE
from options import check_fits
from phrases.data import PhraseSplit, read_phrases
from utils import InputError

RIGHT_IOU = 0.5  # least IoU of a right box with the truth


class Located(NamedTuple):
    """Ranks of proposals for M phrases."""

    rank: np.ndarray  # (M,) int64, 0-based, of the best-ranked right box; -1: no box is right
    hits: np.ndarray  # (M,) int64 number of right proposals
    proposals: np.ndarray  # (M,) int64 number of proposals


class PhotoScores(NamedTuple):
    """Scores of the P proposals of a photo, without those added, for its m phrases."""

    phrases: np.ndarray  # (m,) positions of the phrases in the split
    rows: np.ndarray  # (P,) positions of the proposals in the split
    scores: np.ndarray  # (m, P) float32, higher is better
    right: np.ndarray  # (m, P) bool


def locate(split: PhraseSplit, scores_of: Callable) -> Located:
    """Rank the proposals of each photo, but those added, for each of its phrases.

    scores_of: as in `score_photos`. Raises InputError on scores that are not finite.
    """
    return rank_photos(score_photos(split, scores_of))


def score_photos(split: PhraseSplit, scores_of: Callable) -> Iterator[PhotoScores]:
    """Yield the scores of each photo that has phrases, in the order of the split.

    scores_of(n, columns (m,)) -> (P, m) or (P, 1), higher is better: all proposals of photo n with
    these phrases. Raises InputError on scores that are not finite.
    """
    photos, first = np.unique(split.phrase_photo, return_index=True)
    phrases_of = np.split(np.arange(len(split.phrase_photo)), first[1:])  # (m,) of each photo
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
        yield PhotoScores(phrases, rows, scores, right)


def rank_photos(photos: Iterable[PhotoScores]) -> Located:
    """Rank the proposals of photos for each phrase.

    Ties count against the model: the rank is the number of wrong boxes that score at least as high
    as the best right one.
    """
    ranks = []
    hits = []
    proposals = []
    for photo in photos:
        ranks.append(metrics.best_ranks(photo.scores, *np.nonzero(photo.right)))
        hits.append(photo.right.sum(1))
        proposals.append(np.full(len(photo.phrases), len(photo.rows)))
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


# ---- scores of a model


class ModelScores:
    """Scores of photos by a model in evaluation mode, for `score_photos`.

    Keeps log det Sigma, in nats, of the phrases (M,) and the proposals (R,) scored so far; NaN for
    points.
    """

    def __init__(self, model: VSE, split: PhraseSplit, tokens, device):
        self.model = model
        self.split = split
        self.tokens = tokens
        self.device = device
        self.log_det_phrases = np.full(len(split.captions), np.nan)
        self.log_det_boxes = np.full(len(split.boxes), np.nan)

    @torch.no_grad()
    def __call__(self, n: int, columns: np.ndarray) -> np.ndarray:
        """Score the P proposals of photo n for the phrases `columns` (m,): (P, m) float32."""
        words, lengths = self.tokens.batch(columns)
        phrases = self.model.embed_captions(words.to(self.device), lengths)
        rows = np.arange(self.split.start[n], self.split.start[n + 1])
        regions = self.model.embed_images(self.split.images.gather(rows).to(self.device))

        if phrases.log_var is not None:
            self.log_det_phrases[columns] = uncertainty(phrases).cpu().numpy()
        if regions.log_var is not None:
            self.log_det_boxes[rows] = uncertainty(regions).cpu().numpy()
        return self.model.similarity(regions, phrases).float().cpu().numpy()


def validate_phrases(model: VSE, split: PhraseSplit, tokens, device) -> dict:
    """Measure the localization of a split by a model in evaluation mode."""
    located = locate(split, ModelScores(model, split, tokens, device))
    return measure_localisation(located, split)


def read_for_run(
    trained: Trained, root: str, name: str, regions: str
) -> tuple[PhraseSplit, ModelScores]:
    """Read a split as a run reads it, and the function that scores it by the run.

    Raises InputError on files that are missing, faulty or do not fit the run.
    """
    own = trained.options
    split = read_phrases(root, name, regions, own.text_features).require_sound()
    check_fits(own, split.images, split.text, trained.path)
    check_extractors(trained.extractors, split, own.text_features, trained.path)
    tokens = split.encode(trained.vocab)
    return split, ModelScores(trained.model, split, tokens, trained.device)
