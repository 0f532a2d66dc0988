"""calibration.json: numbers fitted on dev that turn scores into probabilities.

`posterior.calibrate` fits them. A search of photos reads them.
"""
import os
from typing import NamedTuple

import numpy as np

from cli import check
from files import read_json, refusing

FORMAT = 1                            # of calibration.json
# direction: (queries, items)
DIRECTIONS = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}


def percent(p: float) -> str:
    """Format a probability; never 0% or 100%, which no model can promise."""
    return "under 1%" if p < 0.005 else "over 99%" if p >= 0.995 else f"{100 * p:.0f}%"


class Calibration(NamedTuple):
    """Parts of a calibration.json that a search needs, and its path."""
    path: str
    models: str                       # their names
    weights: list[str]                # digests (Trained.weights); none of other embeddings
    data_name: str
    similarity: str
    temperature: float                # of text to image
    gallery: int                      # images that it was fitted among
    words: list[float] | None         # slope, log_det, bias of photos.words; None where they were not fitted

    def refuse_other(self, run: str, weights: str) -> None:
        """Raise InputError unless this is of the model `run` with these weights."""
        check(self.weights == [weights], f"{self.path} is of {self.models} and not of the weights of {run}; write it "
                                         f"again with python -m confidence {run}")


def read_calibration(path: str) -> Calibration:
    """Read a calibration.json. Raises InputError on any other file."""
    fix = "write it again with python -m confidence RUN"
    file = read_json(path, fix)
    with refusing(f"{path} is not a calibration", fix):
        words, t2i = file.get("words"), file["t2i"]
        result = Calibration(path, " + ".join(file["checkpoints"]), file.get("weights"), f"{file['data_name']}",
                             f"{file['similarity']}", float(t2i["temperature"]), int(t2i["gallery"]),
                             words and [float(words[name]) for name in ("slope", "log_det", "bias")])
        if file["calibration"] != FORMAT or not 0 < result.temperature < np.inf:
            raise ValueError(f"format {file['calibration']!r}, temperature {result.temperature}")
        return result


def calibration_file(run: str) -> str:
    """Return the calibration.json of a run folder or a checkpoint file."""
    folder, file = (run, "model_best.pt") if os.path.isdir(run) else os.path.split(run)
    stem = "" if file == "model_best.pt" else f"{os.path.splitext(file)[0]}_"
    return os.path.join(folder, f"{stem}calibration.json")
