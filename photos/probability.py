"""Probabilities of answers: how many photos fit a text, and whether the first is the one that is meant.

Both come from the calibration.json of the run, which `python -m confidence` writes and photos/model brings along.
"""
import os
from typing import NamedTuple

from torch import Tensor

from checkpoint import Trained
from cli import check
from confidence.calibration import calibration_file, percent, read_calibration
from data import tokenize
from losses import Embedding
from methods.words import read_phrase

NONE = 0.5                            # an expected number of photos below which none fits
FEW = 3                               # photos that fit a text which can mean one of them, at most
# Smaller probabilities are noise of many photos, and count 0: of sentences, and of texts of at most three words.
COUNTED, COUNTED_SHORT = 0.02, 0.01


def is_sentence(text: str) -> bool:
    """True if a text has more than three words, not counting its article."""
    return read_phrase(tokenize(text)) is None


class Probabilities(NamedTuple):
    """The map from the scores (Q, N) of queries to probabilities, fitted on images of `data`."""
    temperature: float
    data: str
    # slope, log_det and bias of a sigmoid of pairs, None: not fitted. Of sentences, by people's votes:
    fits: list[float] | None = None
    # of texts of at most three words, by what captions name:
    words: list[float] | None = None

    def chances(self, scores: Tensor) -> Tensor:
        """The probabilities (Q, N) that each photo is the one that is meant: softmax(temperature * scores)."""
        return (self.temperature * scores.double()).softmax(1)

    def choose_sigmoid(self, text: str) -> list[float] | None:
        """The sigmoid of texts like this one, or None where it was not fitted."""
        return self.fits if is_sentence(text) else self.words

    def expected_number(self, scores: Tensor, queries: Embedding, text: str) -> Tensor:
        """The expected number (Q,) of photos that fit, by scores (Q, N) of queries like `text`."""
        slope, log_det, bias = self.choose_sigmoid(text)
        least = COUNTED if is_sentence(text) else COUNTED_SHORT
        spread = 0 if queries.log_var is None else queries.log_var.mean(1, keepdim=True).double()
        p = (slope * scores.double() + log_det * spread + bias).sigmoid()
        return p.masked_fill(p < least, 0).sum(1)

    def notes(self, data: str) -> list[str]:
        """A sentence on answers from other data."""
        return [f"the numbers were learned on photos of {self.data}; where yours show other things, take them as a "
                "hint"] * (data != self.data)


def read_probabilities(run: str, model: Trained, path: str | None = None) -> Probabilities | None:
    """Read a calibration: the file `path`, or that of a run, None where it was not calibrated. Raises InputError where
    it is of another model."""
    if path is None and not os.path.isfile(calibration_file(run)):
        return None
    calibration = read_calibration(path or calibration_file(run))
    calibration.refuse_other(run, model.weights)
    check(calibration.similarity == model.options.sim,
          f"{calibration.path} is of the similarity {calibration.similarity}, and the run's is {model.options.sim}; "
          f"write it again with python -m confidence {run}")
    return Probabilities(calibration.fitted["t2i"].temperature, calibration.data_name, calibration.fits,
                         calibration.words)


# ---- sentences

def how_many(expected: float, count: int) -> str:
    """Sentence on the number of photos among `count` that fit a query."""
    if expected < NONE:
        return f"probably none of {count:,} photos shows this"
    n = max(1, round(expected))
    return f"about {n:,} of {count:,} photos show{'s' * (n == 1)} this"


def how_sure(p: float, expected: float | None) -> str:
    """Sentence on a first answer that is the one that is meant with probability p; "" where many or none may be."""
    if expected is None:
        return f"{percent(p)} sure of the first photo"
    return f"{percent(p)} sure that the first is the one you mean" if NONE <= expected < FEW + 0.5 else ""
