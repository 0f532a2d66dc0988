"""Numbers fitted on dev that turn scores into probabilities: calibration.json."""
import os
from typing import NamedTuple

import numpy as np

from cli import check
from files import read_json, refusing

FORMAT = 1                            # of calibration.json
# direction: (queries, items)
DIRECTIONS = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}


class Fitted(NamedTuple):
    """Temperature of one direction, and what it was fitted to."""
    temperature: float
    queries: int
    gallery: int

    @classmethod
    def read(cls, record: dict) -> "Fitted":
        """Read a fitted temperature. Raises ValueError, KeyError or TypeError on others."""
        fitted = cls(float(record["temperature"]), int(record["queries"]), int(record["gallery"]))
        if not 0 < fitted.temperature < np.inf:
            raise ValueError(f"temperature {fitted.temperature}")
        return fitted


def calibrate(dev, name: str) -> dict:
    """Fit the content of calibration.json to dev: temperatures, the probability of a pair.
    dev: Embeddings; name: of dev, for the reader. Raises InputError where nothing fits. Sets and words are added by
    those who fit them."""
    # a search reads a calibration, and fits none
    from confidence.posterior import fit_pairs, rows_of, sample_scores, temperature

    rows = {side: rows_of(dev, side) for side in DIRECTIONS}
    fitted = {side: Fitted(temperature(*sample_scores(dev, side)), len(x.queries), x.gallery)
              for side, x in rows.items()}
    pair = fit_pairs(dev)
    return {"calibration": FORMAT, "checkpoints": dev.name.split(" + "),
            "weights": [model.weights for model in dev.models], "data_name": dev.data_name, "split": name,
            "similarity": dev.similarity, "images": dev.n_images, "captions": len(dev.caption_image),
            **{side: x._asdict() for side, x in fitted.items()},
            "pair": {"slope": pair.slope, "bias": pair.bias}}


def percent(p: float) -> str:
    """Format a probability; never 0% or 100%, which no model can promise."""
    return "under 1%" if p < 0.005 else "over 99%" if p >= 0.995 else f"{100 * p:.0f}%"


class Calibration(NamedTuple):
    """A calibration.json, and where it lies."""
    path: str
    models: str                       # their names
    weights: list[str] | None         # digests (Trained.weights); None: other embeddings
    data_name: str
    similarity: str
    fitted: dict[str, Fitted]
    words: list[float] | None         # slope, log_det, bias of photos.words; None where they were not fitted

    def refuse_other(self, run: str, weights: str) -> None:
        """Raise InputError unless this is of the model `run` with these weights."""
        why = (f"is of the weights of {self.models}, and {run} has others" if self.weights else
               f"is of {self.models}, and names no weights by which {run} could be known")
        check(self.weights == [weights], f"{self.path} {why}; write it again with python -m confidence {run}")


def read_calibration(path: str) -> Calibration:
    """Read a calibration.json. Raises InputError on any other file."""
    fix = "write it again with python -m confidence RUN"
    file = read_json(path, fix)
    with refusing(f"{path} is not a calibration", fix):
        models, words = " + ".join(file["checkpoints"]), file.get("words")
        if file["calibration"] != FORMAT or not models:
            raise ValueError(f"its format is {file['calibration']!r}" if models else "it does not name its model")
        return Calibration(path, models, file.get("weights"), f"{file['data_name']}", f"{file['similarity']}",
                           {side: Fitted.read(file[side]) for side in DIRECTIONS},
                           words and [float(words[name]) for name in ("slope", "log_det", "bias")])


def calibration_file(run: str) -> str:
    """Return the calibration.json of a run folder or a checkpoint file."""
    folder, file = (run, "model_best.pt") if os.path.isdir(run) else os.path.split(run)
    stem = "" if file == "model_best.pt" else f"{os.path.splitext(file)[0]}_"
    return os.path.join(folder, f"{stem}calibration.json")
