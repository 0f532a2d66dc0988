"""Probabilities of answers: how many photos fit a text, and whether the first is the one that is meant.

Both come from the calibration.json of the run. `python -m confidence` writes it, and `python -m photos.words RUN --fit`
adds the numbers of photos; photos/model brings both along.
"""
import os
from typing import NamedTuple

from torch import Tensor

from checkpoint import Trained
from cli import check
from confidence.calibration import calibration_file, percent, read_calibration
from losses import Embedding

NONE = 0.5                            # an expected number of photos below which none fits
FEW = 3                               # photos that fit a text which can mean one of them, at most


class Probabilities(NamedTuple):
    """The map from the scores (Q, N) of queries to probabilities, fitted on images of `data`."""
    temperature: float
    data: str
    words: list[float] | None = None  # slope, log_det and bias of a sigmoid: a photo fits a text; None: not fitted
    least: float = 0.01               # smaller probabilities of `words` are noise of many photos, and count 0

    def chances(self, scores: Tensor) -> Tensor:
        """The probabilities (Q, N) that each photo is the one that is meant: softmax(temperature * scores)."""
        return (self.temperature * scores.double()).softmax(1)

    def expected_number(self, scores: Tensor, queries: Embedding) -> Tensor:
        """The expected number (Q,) of photos that fit, by scores (Q, N)."""
        slope, log_det, bias = self.words
        spread = 0 if queries.log_var is None else queries.log_var.mean(1, keepdim=True).double()
        p = (slope * scores.double() + log_det * spread + bias).sigmoid()
        return p.masked_fill(p < self.least, 0).sum(1)


def read_probabilities(run: str, model: Trained) -> Probabilities | None:
    """Read the calibration of a run, None where it was not calibrated.
    Fitted to n photos, it knows no probability below 1 / n. Raises InputError where it is of another model."""
    path = calibration_file(run)
    if not os.path.isfile(path):
        return None
    calibration = read_calibration(path)
    calibration.refuse_other(run, model.weights)
    check(calibration.similarity == model.options.sim,
          f"{path} is of the similarity {calibration.similarity}, and the run's is {model.options.sim}; write it again "
          f"with python -m confidence {run}")
    return Probabilities(calibration.temperature, calibration.data_name, calibration.words, 1 / calibration.gallery)


# ---- sentences

def describe_number(expected: float, count: int) -> str:
    """Sentence on the number of photos among `count` that fit a query."""
    if expected < NONE:
        return f"probably none of {count:,} photos shows this"
    n = max(1, round(expected))
    return f"about {n:,} of {count:,} photos show{'s' * (n == 1)} this"


def describe_sureness(p: float, expected: float | None) -> str:
    """Sentence on a first answer that is the one that is meant with probability p; "" where many or none may be."""
    if expected is None:
        return f"{percent(p)} sure of the first photo"
    return f"{percent(p)} sure that the first is the one you mean" if NONE <= expected < FEW + 0.5 else ""
