"""What is fitted on a dev split so that scores become probabilities, and calibration.json, which
holds it.

A temperature for each direction (`posterior.temperature`), and monotone and linear maps from
confidences to the probability that the first answer is right.
"""
import os
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize, special

from cli import InputError, check
from evaluation.assess import uncertainties
from evaluation.subjects import Subject
from evaluation.volume import logistic
from files.reading import FAULTS, read_json

FORMAT = 1                            # of calibration.json
# direction: (queries, items)
SIDES = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}
RIDGE = 1e-2          # weight of the squares of the logistic's weights, beside the mean loss
LEVELS = 101                          # quantiles of log det Sigma that are kept


class Isotonic(NamedTuple):
    """A rising map from a confidence to a probability: linear between knots, flat beyond them."""
    x: list[float]
    y: list[float]

    @classmethod
    def fit(cls, confidence, right) -> "Isotonic":
        """The rising map of least squares (pool adjacent violators), within
        [1 / (n + 2), (n + 1) / (n + 2)]."""
        x, which, size = np.unique(confidence, return_inverse=True, return_counts=True)
        n = len(confidence)
        y = optimize.isotonic_regression(np.bincount(which, np.asarray(right, float)) / size,
                                         weights=size).x
        y = np.clip(y, 1 / (n + 2), (n + 1) / (n + 2))
        step = y[1:] != y[:-1]
        ends = np.flatnonzero(np.append(True, step) | np.append(step, True))
        return cls(x[ends].tolist(), y[ends].tolist())

    def __call__(self, confidence) -> np.ndarray:
        return np.interp(confidence, self.x, self.y)


class Logistic(NamedTuple):
    """P(right) = sigmoid(w . z + b) of standardised features z (Q, F)."""
    names: list[str]
    mean: list[float]
    std: list[float]      # 0 for a constant feature, which is not used: JSON has no infinity
    weights: list[float]
    bias: float

    @classmethod
    def fit(cls, features: dict[str, np.ndarray], right) -> "Logistic":
        """The minimum of the mean log loss + RIDGE |w|^2. A feature that is constant gets a weight
        of zero."""
        x = np.stack(list(features.values())).astype(float)                         # (F, Q)
        mean, std = x.mean(1), x.std(1)
        std[std <= 1e-9 * (1 + abs(mean))] = 0
        z, weights = (x - mean[:, None])[std > 0] / std[std > 0, None], np.zeros(len(x))
        weights[std > 0], bias = logistic(torch.from_numpy(z), right, ridge=RIDGE)
        return cls(list(features), mean.tolist(), std.tolist(), weights.tolist(), bias)

    def __call__(self, features: dict[str, np.ndarray]) -> np.ndarray:
        x = np.stack([features[name] for name in self.names], 1)                    # (Q, F)
        z = (x - self.mean) / np.where(self.std, self.std, 1)
        return special.expit(z @ self.weights + self.bias)


class Fitted(NamedTuple):
    """What was fitted for one direction, and on how much."""
    temperature: float
    temperature_each: float | None    # of image to text: that of each right caption by itself
    isotonic: Isotonic                # of the posterior; of the grouped one where there is one
    stacked: Logistic
    without_sigma: Logistic | None    # None where no side is Gaussian
    queries: int
    gallery: int

    def plain(self) -> dict:
        """What calibration.json holds of it."""
        return {name: x._asdict() if hasattr(x, "_asdict") else x
                for name, x in self._asdict().items()}

    @classmethod
    def of(cls, stored: dict) -> "Fitted":
        """Raises ValueError, KeyError or TypeError where `plain` did not write this."""
        of = cls(**stored)
        if not 0 < of.temperature < np.inf:
            raise ValueError(f"temperature {of.temperature}")
        return of._replace(
            isotonic=Isotonic(**of.isotonic), stacked=Logistic(**of.stacked),
            without_sigma=of.without_sigma and Logistic(**of.without_sigma),
            temperature=float(of.temperature), gallery=int(of.gallery))


def stored(dev: Subject, split: str, fitted: dict[str, Fitted]) -> dict:
    """What calibration.json holds but for "sets", the limits of conformal sets: what was fitted, on
    what, at what size of the gallery. split: the name of what was calibrated on."""
    return {"calibration": FORMAT, "checkpoints": dev.name.split(" + "),
            **({"weights": dev.weights} if dev.weights else {}), "data_name": dev.data_name,
            "split": split, "similarity": dev.similarity, "images": dev.n_images,
            "captions": len(dev.caption_image),
            **{side: of.plain() for side, of in fitted.items()}, **quantiles(dev)}


def quantiles(dev: Subject) -> dict:
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
