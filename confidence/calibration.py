"""calibration.json: numbers fitted on dev that turn scores into probabilities.

`posterior.calibrate` fits them. A search of photos reads them (photos/searcher.py).
"""
import os

FORMAT = 1                            # of calibration.json
# direction: (queries, items)
DIRECTIONS = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}


def percent(p: float) -> str:
    """Format a probability; never 0% or 100%, which no model can promise."""
    return "under 1%" if p < 0.005 else "over 99%" if p >= 0.995 else f"{100 * p:.0f}%"


def calibration_file(run: str) -> str:
    """Return the calibration.json of a run folder or a checkpoint file."""
    folder, file = (run, "model_best.pt") if os.path.isdir(run) else os.path.split(run)
    stem = "" if file == "model_best.pt" else f"{os.path.splitext(file)[0]}_"
    return os.path.join(folder, f"{stem}calibration.json")
