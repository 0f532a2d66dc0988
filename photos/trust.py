"""How far the answers of an index can be trusted: what turns scores into probabilities, the query
bank's part in them, and what is said of them.

Without a bank this is the calibration that `python -m confidence` wrote for the run. A bank
changes the scores, so the temperature and the limit of sets are fitted again here, on the dev split
of the run's own data.
"""
import os
from typing import NamedTuple

import numpy as np
from torch import Tensor

from checkpoint import Trained
from cli import InputError
from confidence import conformal
from confidence.calibration import Calibration, calibration_file, percent, quantiles, read_calibration
from confidence.posterior import rows_of, sample_scores, temperature
from evaluation import bank
from evaluation.embeddings import Embeddings, Member, embed
from losses import Embedding

SENTENCE = 4                          # words from which a number of photos is more than a bound
NONE = 0.5                            # an expected number of photos below which none fits
COUNTED = 0.02       # of a probability that is less, thousands of photos would sum to some that fit
EMPTY = ("no set: even the first photo is less probable than those that sets hold, so the right "
         "one may not be here")


class Trust(NamedTuple):
    """What turns the scores of a query over a gallery into probabilities: p = softmax(temperature *
    scores)."""
    temperature: float
    gallery: int                      # how many images it was fitted on
    data: str                         # of which data
    alpha: float | None               # a set misses the right image in this share of the queries
    limit: float | None               # and holds the images with -log p up to this
    log_det: list[float] | None = None    # quantiles of log det Sigma of the captions of dev
    set_gallery: int | None = None    # how many images the limit was fitted on; None: as many
    fits: list[float] | None = None   # slope, log_det and bias of a `Sigmoid`; None: no votes

    def chances(self, scores: Tensor) -> Tensor:
        """The probabilities (Q, N) of the images of a whole gallery."""
        return (self.temperature * scores.double()).softmax(1)

    def fitting(self, scores: Tensor, of: Embedding) -> Tensor:
        """The probabilities (Q, n) that images fit captions, by people's votes: scores (Q, n)."""
        slope, log_det, bias = self.fits
        spread = 0 if of.log_var is None else of.log_var.mean(1, keepdim=True).double()
        return (slope * scores.double() + log_det * spread + bias).sigmoid()

    def number(self, scores: Tensor, of: Embedding) -> Tensor:
        """How many images fit captions (Q,), by scores (Q, n)."""
        return counted(self.fitting(scores, of))

    def wider_than(self, log_det: float) -> float | None:
        """The share of those captions whose log det Sigma is smaller, 0..1."""
        levels = self.log_det
        return levels and float(np.interp(log_det, levels, np.linspace(0, 1, len(levels))))

    def no_set(self, count: int) -> str | None:
        """Why no set is given in a gallery of `count` images, where one was calibrated. A set keeps
        its promise among as many as it was calibrated on, and among fewer, where the right one is
        only more probable; not among more."""
        fitted = self.gallery if self.set_gallery is None else self.set_gallery
        if self.limit is None or count <= fitted:
            return None
        return (f"no set: sets that were calibrated among {fitted:,} photos promise nothing among "
                f"{count:,}; calibrate them on a dev split of as many images")

    def notes(self, data: str, count: int) -> list[str]:
        """A sentence on answers from other data, or from a gallery of another size."""
        what = ["assume that the photo you want is in this folder"] * (data != self.data)
        if count != self.gallery:
            what.append(f"were fitted with {self.gallery:,} photos, and you search {count:,}")
        return [f"the percentages {', and '.join(what)}"] if what else []


def counted(p: Tensor) -> Tensor:
    """The expected number (Q,) of images that fit with probabilities (Q, n). People voted on pairs
    that some model had found alike, so what is improbable by their votes is less than that."""
    return p.masked_fill(p < COUNTED, 0).sum(1)


# ---- what is said

def how_many(expected: float, count: int, query: str) -> str:
    """What is said of the number of photos among `count` that fit a query. Of a few words it is far
    too low, as people voted on sentences (docs/search.md)."""
    if expected < NONE:
        return "probably none fits" + f" (expected number {expected:.2g})" * (expected > 0)
    n, least = max(1, round(expected)), len(query.split()) < SENTENCE
    return f"{'at least' if least else 'about'} {n:,} of {count:,} photos fit{'s' * (n == 1)}"


def how_sure(p: float, unsure: float, copies: int = 1, fit: str | None = None) -> str:
    """What is said of a first answer that is right with probability p. unsure: less than this is
    not sure. copies: how many photos it stands for; fit: `how_many`, where it is known."""
    if fit:
        return f"{fit}; {percent(p)} sure that the first" + (
            f", of which there are {copies} copies," * (copies > 1)) + " is the one you mean"
    sentence = f"{percent(p)} sure of the first photo"
    sentence += f", of which there are {copies} copies" * (copies > 1)
    return sentence + ": another may be meant, or none" * (p < unsure)


def badge_of(p: float, unsure: float | None) -> str:
    """`how_sure` in two words."""
    return f"{percent(p)} sure" if unsure is None or p >= unsure else f"not sure ({percent(p)})"


def of_the_query(log_det: float, wider: float | None) -> str:
    """What is said of the uncertainty of a query. wider: the share of dev's captions that have
    less."""
    above = "" if wider is None else f", above {percent(wider)} of the captions of dev"
    return f"log det Sigma of the query {log_det:.1f} nats{above}"


def of_the_set(count: int, level: float) -> str:
    """What is said of a conformal set of `count` photos, at least 1. level: how often such sets
    hold the right one."""
    return (f"with {percent(level)} the photo you mean is "
            + (f"among the first {count:,}" if count > 1 else "the first"))


# ---- where it comes from

def calibration_of(run: str, path: str | None = None) -> Calibration | None:
    """The calibration in the file `path`, or where python -m confidence writes that of a run;
    None where there is none. Raises InputError where it is damaged."""
    file = path or calibration_file(run)
    return read_calibration(file) if path or os.path.isfile(file) else None


def trust_in(calibration: Calibration, run: str, weights: str, similarity: str) -> Trust:
    """What a calibration says of the images that captions find, by a run with these weights. Raises
    InputError where it is of another run or similarity."""
    calibration.refuse_other(run, weights)
    if calibration.similarity != similarity:
        raise InputError(f"{calibration.path} is of the similarity {calibration.similarity}, and "
                         f"the run's is {similarity}; write it again with python -m confidence "
                         "and without --sim")
    of, sets = calibration.fitted["t2i"], calibration.sets
    limits = (sets["alpha"], sets["t2i"]["lac"]) if sets else (None, None)
    return Trust(of.temperature, of.gallery, calibration.data_name, *limits, calibration.log_det,
                 sets and sets["images"], calibration.fits)


def from_json(record) -> Trust | None:
    """Raises ValueError or TypeError where the values are of other kinds."""
    if record is None:
        return None
    trust = Trust(**record)
    t = trust.temperature
    if not (isinstance(t, float) and 0 < t < np.inf and isinstance(trust.data, str)):
        raise ValueError("its calibration has no temperature")
    return trust


class BankColumn:
    """What a query bank takes from the scores of each image, whatever the query
    (`evaluation.bank`).

    The bank is drawn from the captions of a split of the data of a run (an `Encoder`), and its beta
    is chosen on dev. `beta` is None where no beta helps there. trust: fitted on dev with the bank;
    alpha: of its sets.
    """

    def __init__(self, run, split: str, how, alpha: float | None = None):
        bank.check_splits(split, "test")
        model = Trained(run.path, how.device)
        source = {"data_path": run.data_path, "batch_size": how.batch_size, "workers": how.workers}
        self.queries = embed([model], split, lambda s: bank.draw(s.caption_image, len(s.images)), **source).members
        dev = embed([model], "dev", **source)
        self.beta, self.trust = bank.choose(dev, self.queries)["beta"]["t2i"], None
        captions = len(self.queries[0].captions.mean)
        self.report = {"split": split, "captions": captions, "beta": self.beta}
        if self.beta is not None:
            terms = bank.item_terms(dev.members, self.queries, [self.beta], "t2i")[0]  # (N,)
            scores = dev.scores - terms.numpy()[:, None]  # (N, M)
            whole = Embeddings(dev.name, dev.caption_image, dev.n_images, matrix=scores)
            t = temperature(*sample_scores(rows_of(whole, "t2i")))
            limit = alpha and conformal.calibrate_sets(whole, "t2i", t, alpha)[0]["lac"]
            self.trust = Trust(t, dev.n_images, run.options.data_name, alpha, limit,
                               **quantiles(dev))

    def of(self, images: Embedding) -> Tensor:
        """(n,) of n images."""
        member = Member(self.queries[0].similarity, images, None)
        terms = bank.item_terms([member], self.queries, [self.beta], "t2i")[0]
        return terms.to(images.mean.device)
