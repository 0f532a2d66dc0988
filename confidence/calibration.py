"""What is fitted on a dev split so that scores become probabilities, and calibration.json, which
holds it: a temperature for each direction (`posterior.temperature`)."""
import os
from typing import NamedTuple

import numpy as np

from cli import InputError, check
from evaluation.embeddings import Embeddings, uncertainties
from files import FAULTS, read_json

FORMAT = 1                            # of calibration.json
# direction: (queries, items)
SIDES = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}
LEVELS = 101                          # quantiles of log det Sigma that are kept


class Fitted(NamedTuple):
    """What was fitted for one direction, and on how much."""
    temperature: float
    queries: int
    gallery: int

    @classmethod
    def of(cls, stored: dict) -> "Fitted":
        """Raises ValueError, KeyError or TypeError where no calibration holds this."""
        of = cls(float(stored["temperature"]), int(stored["queries"]), int(stored["gallery"]))
        if not 0 < of.temperature < np.inf:
            raise ValueError(f"temperature {of.temperature}")
        return of


def stored(dev: Embeddings, split: str, fitted: dict[str, Fitted]) -> dict:
    """What calibration.json holds but for "sets", the limits of conformal sets: what was fitted, on
    what, at what size of the gallery. split: the name of what was calibrated on."""
    return {"calibration": FORMAT, "checkpoints": dev.name.split(" + "),
            **({"weights": dev.weights} if dev.weights else {}), "data_name": dev.data_name,
            "split": split, "similarity": dev.similarity, "images": dev.n_images,
            "captions": len(dev.caption_image),
            **{side: of._asdict() for side, of in fitted.items()}, **quantiles(dev)}


def quantiles(dev: Embeddings) -> dict:
    """{"log_det": LEVELS quantiles of the log det Sigma of the captions, from the least to the
    largest}, by which that of a query is told to be small or large; {} where captions are
    points."""
    values = uncertainties(dev).get("captions")
    return {} if values is None else {
        "log_det": np.quantile(values, np.linspace(0, 1, LEVELS)).tolist()}


class Calibration(NamedTuple):
    """A calibration.json, and where it lies."""
    path: str
    models: str                       # their names
    weights: list[str] | None         # digests (Trained.weights); None: other embeddings
    data_name: str
    similarity: str
    fitted: dict[str, Fitted]
    # {"alpha", "images": in the gallery that they were fitted on, direction: {method: limit}};
    # None where --sets was not given
    sets: dict | None
    log_det: list[float] | None       # quantiles, see `quantiles`; None where captions are points
    fits: list[float] | None          # slope, log_det, bias of a `Sigmoid`; None without judgements

    def refuse_other(self, run: str, weights: str) -> None:
        """Raises InputError unless this is of the model with these weights, which `run` holds."""
        why = (f"is of the weights of {self.models}, and {run} has others" if self.weights else
               f"is of {self.models}, and names no weights by which {run} could be known")
        check(self.weights == [weights], f"{self.path} {why}; write it again with evaluate.py "
                                         f"--confidence --checkpoint {run}")

    def notes(self, data_name: str, images: int) -> list[str]:
        """Sentences on images that are searched and were not calibrated on: of other data, or in a
        gallery of another size."""
        fitted, notes = self.fitted["t2i"].gallery, []
        if data_name != self.data_name:
            notes.append(f"the probabilities were calibrated on {self.data_name} and may not hold "
                         f"on {data_name}")
        if images != fitted:
            notes.append(f"the probabilities were calibrated on a gallery of {fitted:,} and "
                         f"{images:,} are searched; they hold best for the size that they were "
                         "calibrated on")
        return notes


def read_calibration(path: str) -> Calibration:
    """What `stored` wrote. Raises InputError on any other file."""
    fix = "write it again with evaluate.py --confidence"
    file = read_json(path, fix)
    try:
        models = " + ".join(file["checkpoints"])
        if file["calibration"] != FORMAT or not models:
            raise ValueError(f"its format is {file['calibration']!r}" if models else
                             "it does not say of which model it is")
        sets, fits = file.get("sets"), file.get("fits")
        if sets:
            sets = {"alpha": float(sets["alpha"]), "images": int(sets["images"]),
                    **{side: {name: float(limit) for name, limit in sets[side].items()}
                       for side in SIDES}}
        return Calibration(path, models, file.get("weights"),
                           *(f"{file[name]}" for name in ("data_name", "similarity")),
                           {side: Fitted.of(file[side]) for side in SIDES}, sets,
                           file.get("log_det") and sorted(map(float, file["log_det"])),
                           fits and [float(fits[name]) for name in ("slope", "log_det", "bias")])
    except FAULTS as error:
        raise InputError(f"{path} is no calibration ({error}); {fix}") from error


def calibration_file(run: str) -> str:
    """The calibration that evaluate.py --confidence writes by itself for a run folder or a
    checkpoint file."""
    folder, file = (run, "model_best.pt") if os.path.isdir(run) else os.path.split(run)
    ending = "" if file == "model_best.pt" else f"_{file.split('.')[0]}"
    return os.path.join(folder, f"calibration{ending}.json")
