"""Confidence in the first boxes: the posterior over the proposals, calibrated on val.

"overlap", the posterior of all boxes at the place of the first, is the one to use: the proposals of one object share
the mass.
"""
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from cli import check
from confidence.plots import pick
from confidence.posterior import FITTED, temperature
from evaluation import report, selective
from evaluation.pictures import IN_SET, OWN, Cell, Row, draw_rows, small, wrapped
from phrases.data import PhraseSplit, shares
from phrases.ranking import RIGHT, Located, Scored, locate, locate_scored, photo_by_photo

MEASURES = {"posterior": "posterior of the first box", "overlap": "posterior of all boxes at its place",
            "max": "maximum score", "log_det_query": "-log det Sigma of the phrase"}
PROBABILITIES = ("posterior", "overlap")
COLUMNS = {"auroc": "AUROC", "aurc": "AURC", "aurc_flat": "random order", "brier": "Brier", "nll": "NLL", "ece": "ECE",
           "ece_floor": "floor"}


class Seen(NamedTuple):
    """First boxes of Q phrases, those of photos with proposals, and the confidences in them."""
    values: dict[str, np.ndarray]     # (Q,) of MEASURES, larger where surer
    right: np.ndarray                 # (Q,) bool
    phrases: np.ndarray               # (Q,) positions of the phrases in their split
    photo: np.ndarray                 # (Q,) of each phrase


def pad_scores(name: str, photos: list[Scored]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (Q, G) of the phrases that some proposal is right for, and which these are (Q, G) bool.

    G is the largest number of proposals, padded by -inf; at most FITTED scores, of phrases drawn at random. name: of
    the data, for the InputError where there is no such phrase.
    """
    pairs = [(scores, right) for photo in photos for scores, right in zip(photo.scores, photo.overlap >= RIGHT)
             if right.any()]
    check(pairs, f"no phrase of {name} has a proposal of IoU {RIGHT} with its box, so nothing can be calibrated; "
                 "extract more proposals, or leave --confidence out")
    most = FITTED // max(len(scores) for scores, _ in pairs)
    if len(pairs) > most:
        pairs = [pairs[k] for k in np.random.default_rng(0).permutation(len(pairs))[:most]]
    scores, right = ([torch.from_numpy(x) for x in side] for side in zip(*pairs))
    return pad_sequence(scores, True, -torch.inf), pad_sequence(right, True)


def see_first_boxes(located: Located, split: PhraseSplit, log_det: np.ndarray | None = None) -> Seen:
    """Confidences in the first boxes. log_det (M,): log det Sigma of the phrases, None of points."""
    phrases = np.flatnonzero(located.first >= 0)
    values = {name: value[phrases] for name, value in located.confidences.items()}
    if log_det is not None:
        values["log_det_query"] = -np.asarray(log_det, np.float64)[phrases]
    return Seen(values, located.right[phrases], phrases, split.phrase_photo[phrases])


def calibrate(dev) -> dict:
    """Fit the temperature of the posterior on dev: {"temperature", "queries", "gallery"}. Raises InputError."""
    photos = list(photo_by_photo(dev.split, dev.scores_of))
    located = locate_scored(dev.split, photos)
    return {"temperature": temperature(*pad_scores(dev.name, photos)), "queries": int((located.first >= 0).sum()),
            "gallery": int(located.proposals.max())}


def judge(seen: Seen) -> tuple[dict, Seen]:
    """AUROC, area under risk and coverage, and of probabilities Brier score, NLL and ECE, by measure; values that only
    rounding tells apart are made equal first."""
    seen = seen._replace(values={name: selective.levelled(value) for name, value in seen.values.items()})
    return {name: selective.ranking(value, seen.right)
            | (selective.probability(value, seen.right) if name in PROBABILITIES else {})
            for name, value in seen.values.items()}, seen


def assess(dev, test) -> tuple[dict, Located, Seen, tuple, str]:
    """Calibrate on dev and judge on test (evaluate.Phrases): parts of the results, located phrases, confidences, table
    and sentence."""
    fitted = calibrate(dev)
    located = locate(test.split, test.scores_of, fitted["temperature"])
    results, seen = judge(see_first_boxes(located, test.split, test.log_det()))
    p, worth = seen.values["overlap"], results["overlap"]
    table = report.table(
        "is the first box right? AUROC: chance that a right box has more confidence than a wrong one; AURC: wrong "
        "boxes, %, among the surest k, mean over k; ECE: distance of probabilities from the share that is right",
        COLUMNS, {MEASURES[name]: of for name, of in results.items()},
        lambda key, of: report.digits(key, of, "" if key.startswith("aurc") else "rho"))
    sentence = (f"calibrated on {fitted['queries']:,} phrases of {dev.name} (T = {fitted['temperature']:.4g}), judged "
                f"on {len(p):,} of {test.name}, {len(test.split.phrase_photo) - len(p):,} have no proposal: "
                f"{MEASURES['overlap']}: mean {100 * p.mean():.1f}%, {100 * seen.right.mean():.1f}% are right, "
                f"ECE {worth['ece']:.3f} (by chance alone {worth['ece_floor']:.3f}), AUROC {worth['auroc']:.3f}")
    return ({"confidence": {"phrases": results}, "calibration": {"split": dev.name, "phrases": fitted}}, located, seen,
            table, sentence)


# ---- a picture of phrases in their photos

WRONG = "firebrick"                   # a first box; IN_SET: a right one, OWN: the truth
ACROSS, LETTERS = 5, 28               # photos of each kind, letters in a line above a photo
KINDS = {"the surest of the right": "green: the box of the phrase; blue: the box found first, red where it is wrong",
         "the surest of the wrong": f"out of reach: no proposal has an IoU of {RIGHT} with the box of the phrase",
         "the least sure": ""}        # {heading: sentence}


def draw_phrases(path: str, split: PhraseSplit, located: Located, seen: Seen, photos: list[str], title: str) -> None:
    """Draw phrases, one of each photo, with their photos, boxes and confidence. photos: N files, which may be gone."""
    def cell(q: int) -> Cell:
        m, n = int(seen.phrases[q]), seen.photo[q]
        boxes = ((shares(split.boxes[located.first[m]], split.sizes[n]), IN_SET if located.right[m] else WRONG),
                 (shares(split.truth[m], split.sizes[n]), OWN))
        outcome = f"IoU {located.iou[m]:.2f}" if located.rank[m] >= 0 else "out of reach"
        return Cell(small(photos[n]), f"{wrapped(split.phrases[m], LETTERS, 2)}\n{100 * p[q]:.0f}% sure, {outcome}",
                    boxes=boxes)
    p = seen.values["overlap"]
    chosen = pick(p, seen.right, dict.fromkeys(KINDS, ACROSS), seen.photo)
    draw_rows(path, title, [Row(kind, KINDS[kind], list(map(cell, queries))) for kind, queries in chosen.items()],
              ACROSS)
