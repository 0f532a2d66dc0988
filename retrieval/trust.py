"""How far the answers of an index can be trusted: what turns scores into probabilities, and the query bank's part.

Without a bank this is the calibration that `evaluate.py --confidence` wrote for the run. A bank changes the scores, so
the temperature and the limit of sets are fitted again here, on the dev split of the run's own data.
"""
import os
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError, torch_device
from evaluation import bank, promises
from evaluation.answers import rows_of, sample_scores
from evaluation.calibration import temperature
from evaluation.certainty import calibration_file, quantiles, read_calibration
from evaluation.confidence import FITTED
from evaluation.open import How, Models, Where, members_on
from evaluation.subjects import Member, Subject, score_matrix
from similarities import Embedding

BLOCK = 1000                          # images whose scores with the bank are held at a time


class Trust(NamedTuple):
    """What turns the scores of a query over a gallery into probabilities: p = softmax(temperature * scores)."""
    temperature: float
    gallery: int                      # how many images it was fitted on
    data: str                         # of which data
    alpha: float | None               # a set misses the right image in this share of the queries; None without sets
    limit: float | None               # and holds the images with -log p up to this
    log_det: list[float] | None = None    # quantiles of log det Sigma of the captions that it was fitted on
    set_gallery: int | None = None    # how many images the limit was fitted on; None: as many as the temperature

    def wider_than(self, log_det: float) -> float | None:
        """The share of those captions whose log det Sigma is smaller, 0..1."""
        levels = self.log_det
        return levels and float(np.interp(log_det, levels, np.linspace(0, 1, len(levels))))

    def no_set(self, count: int) -> str | None:
        """Why no set is given in a gallery of `count` images, where one was calibrated. A set keeps its promise among
        as many as it was calibrated on, and among fewer, where the right one is only more probable; not among more."""
        fitted = self.gallery if self.set_gallery is None else self.set_gallery
        if self.limit is None or count <= fitted:
            return None
        return (f"no set: sets that were calibrated among {fitted:,} photos promise nothing among {count:,}; "
                "calibrate them on a dev split of as many images")

    def notes(self, data: str, count: int) -> list[str]:
        """Sentences for the reader of answers from other data, or from a gallery of another size."""
        notes = [f"the probabilities were calibrated on {self.data}, where every query has its photo; here they are "
                 "those of the photos if one of them is right"] if data != self.data else []
        if count != self.gallery:
            notes.append(f"they were calibrated among {self.gallery:,} photos, and {count:,} are searched: the more, "
                         "the less sure" if notes else f"the probabilities were calibrated among {self.gallery:,} "
                         f"photos, and {count:,} are searched; they hold best for the size that they were calibrated "
                         "on")
        return notes


def trust_of(run: str, weights: str, similarity: str, path: str | None = None) -> Trust | None:
    """The calibration of a run with these weights, in the file `path` or where evaluate.py --confidence writes it; None
    where there is none. Raises InputError where it is damaged, or of another run or similarity."""
    file = path or calibration_file(run)
    if path is None and not os.path.isfile(file):
        return None
    found = read_calibration(file)
    found.refuse_other(run, weights)
    if found.similarity != similarity:
        raise InputError(f"{file} is of the similarity {found.similarity}, and the index is of {similarity}; write it "
                         "again with evaluate.py --confidence and without --sim")
    of, sets = found.fitted["t2i"], found.sets
    alpha, limit, images = (sets["alpha"], sets["t2i"]["lac"], sets["images"]) if sets else (None, None, None)
    return Trust(of.temperature, of.gallery, found.data_name, alpha, limit, found.log_det, images)


class BankColumn:
    """What a query bank takes from the scores of each image, whatever the query (`evaluation.bank`).

    The bank is drawn from the captions of a split of the run's own data, and its beta is chosen on dev. `beta` is None
    where no beta helps there. trust: fitted on dev with the bank. data: the name of the run's data, data_path: their
    folder, unless it is still where the run was trained.
    """

    def __init__(self, run: str, data: str, split: str, device: str, alpha: float | None, workers: int = 0,
                 data_path: str | None = None):
        bank.check_splits(split, "test")
        given = Models([run]), Where(data_path), How(torch_device(device), workers=workers)
        self.queries = members_on(*given, split, lambda s: bank.draw(s.caption_image, len(s.images))).members
        dev = members_on(*given, "dev")
        chosen = bank.choose(dev, self.queries)
        self.beta, self.trust = chosen["beta"]["t2i"], None
        self.report = {"split": split, "captions": len(self.queries[0].captions.mean), "beta": self.beta}
        if self.beta is not None:
            taken = bank.item_terms(dev.members, self.queries, [self.beta], "t2i")[0]                       # (N,)
            scores = score_matrix(dev, BLOCK) - taken.numpy()[:, None]                                      # (N, M)
            whole = Subject(dev.name, "", dev.caption_image, dev.n_images, scores=scores)
            self.trust = fitted(whole, data, alpha)._replace(**quantiles(dev))

    def of(self, images: Embedding) -> torch.Tensor:
        """(n,) of n images."""
        query = self.queries[0]
        member = Member(query.similarity, images, None)
        return bank.item_terms([member], self.queries, [self.beta], "t2i")[0].to(images.mean.device)


def fitted(dev: Subject, data: str, alpha: float | None) -> Trust:
    """A Trust fitted on the scores of dev."""
    t = temperature(*sample_scores(rows_of(dev, "t2i"), FITTED))
    limit = None if alpha is None else promises.calibrate_sets(dev, "t2i", t, alpha)[0]["lac"]
    return Trust(t, dev.n_images, data, alpha, limit)


def in_json(trust: Trust | None) -> dict | None:
    return None if trust is None else trust._asdict()


def from_json(stored) -> Trust | None:
    """Raises ValueError or TypeError where the values are of other kinds."""
    if stored is None:
        return None
    found = Trust(**stored)
    if not (isinstance(found.temperature, float) and 0 < found.temperature < np.inf and isinstance(found.data, str)):
        raise ValueError("its calibration has no temperature")
    return found
