"""calibration.json: numbers fitted on dev that turn scores into probabilities.

`posterior.calibrate` fits them. A search of photos reads them (photos/searcher.py).
"""

import os

CALIBRATION_FORMAT = 1  # of calibration.json
# direction: (queries, items)
DIRECTIONS = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}


def percent(p: float) -> str:
    """Format a probability; never 0% or 100%, which no model can promise."""
    if p < 0.005:
        return "under 1%"
    if p >= 0.995:
        return "over 99%"
    return f"{100 * p:.0f}%"


def calibration_file(run: str) -> str:
    """Return the calibration.json of a run folder or a checkpoint file."""
    if os.path.isdir(run):
        return os.path.join(run, "calibration.json")
    folder, file = os.path.split(run)
    if file == "model_best.pt":
        return os.path.join(folder, "calibration.json")
    stem = os.path.splitext(file)[0]
    return os.path.join(folder, f"{stem}_calibration.json")
