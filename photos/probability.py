"""Probabilities of answers, and the number of photos that fit.
A softmax of the scores of one query; people's votes.

Both come from the calibration.json of the run, which `python -m confidence` writes and photos/model brings along.
"""
import os
from typing import NamedTuple

from torch import Tensor

from checkpoint import Trained
from cli import check
from losses import Embedding

SENTENCE = 4                          # words from which a number of photos is more than a bound
NONE = 0.5                            # an expected number of photos below which none fits
COUNTED = 0.02                        # smaller probabilities are of photos that nobody voted on, and count 0


class Probabilities(NamedTuple):
    """Map from scores (Q, N) of queries to probabilities, fitted on `data`."""
    temperature: float
    gallery: int                      # how many images the temperature was fitted among
    data: str
    fits: list[float] | None = None   # slope, log_det and bias of a sigmoid of votes on pairs; None: no votes

    def chances(self, scores: Tensor) -> Tensor:
        """Probabilities (Q, N) of photos: softmax(temperature * scores)."""
        return (self.temperature * scores.double()).softmax(1)

    def number(self, scores: Tensor, queries: Embedding) -> Tensor:
        """The expected number (Q,) of photos that fit, by scores (Q, N)."""
        slope, log_det, bias = self.fits
        spread = 0 if queries.log_var is None else queries.log_var.mean(1, keepdim=True).double()
        p = (slope * scores.double() + log_det * spread + bias).sigmoid()
        return p.masked_fill(p < COUNTED, 0).sum(1)

    def notes(self, data: str, count: int) -> list[str]:
        """A sentence on answers from other data, or from a gallery of another size."""
        limits = ["assume that the photo you want is in this folder"] * (data != self.data)
        if count != self.gallery:
            limits.append(f"were fitted with {self.gallery:,} photos, and you search {count:,}")
        return [f"the percentages {', and '.join(limits)}"] if limits else []


def read_probabilities(run: str, model: Trained, path: str | None = None) -> Probabilities | None:
    """Read a calibration: the file `path`, or a run's, None without one.
    Raises InputError."""
    from confidence.calibration import calibration_file, read_calibration  # a run without one needs none of it

    if path is None and not os.path.isfile(calibration_file(run)):
        return None
    return probabilities_of(read_calibration(path or calibration_file(run)), run, model)


def probabilities_of(calibration, run: str, model: Trained) -> Probabilities:
    """The probabilities of photos for captions in a `Calibration`.
    Raises InputError where it is of another model."""
    calibration.refuse_other(run, model.weights)
    check(calibration.similarity == model.options.sim,
          f"{calibration.path} is of the similarity {calibration.similarity}, and the run's is {model.options.sim}; "
          f"write it again with python -m confidence {run}")
    of_captions = calibration.fitted["t2i"]
    return Probabilities(of_captions.temperature, of_captions.gallery, calibration.data_name, calibration.fits)


# ---- sentences

def percent(p: float) -> str:
    """A probability for a reader; never 0% or 100%, which no model can promise."""
    return "under 1%" if p < 0.005 else "over 99%" if p >= 0.995 else f"{100 * p:.0f}%"


def how_many(expected: float, count: int, query: str) -> str:
    """Sentence on the number of photos among `count` that fit a query.
    Of a few words it is far too low, as people voted on sentences."""
    if expected < NONE:
        return "probably none fits" + f" (expected number {expected:.2g})" * (expected > 0)
    n, least = max(1, round(expected)), len(query.split()) < SENTENCE
    return f"{'at least' if least else 'about'} {n:,} of {count:,} photos fit{'s' * (n == 1)}"


def how_sure(p: float, unsure: float, copies: int = 1, fit: str | None = None) -> str:
    """Sentence on a first answer that is right with probability p.
    Below `unsure` it is not sure.

    copies: how many photos it stands for; fit: `how_many`, where it is known.
    """
    among = f", of which there are {copies} copies" * (copies > 1)
    if fit:
        return f"{fit}; {percent(p)} sure that the first{among + ',' * (copies > 1)} is the one you mean"
    return f"{percent(p)} sure of the first photo{among}" + ": another may be meant, or none" * (p < unsure)
