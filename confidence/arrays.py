"""The function behind `confidence.calibrate`: embeddings and scores in memory, of any model."""

from confidence.measures import check_logits, describe_folds, divide_images, judge_items
from evaluation.arrays import build_embeddings, collect_arrays, collect_scores
from evaluation.embeddings import Embeddings
from evaluation.protocols import replace_nan
from utils import InputError

ARRAYS_OF_CALL = ("images", "captions", "owner", "image_log_var", "caption_log_var")
# Entries of calibration.json that name files.
NAMES_IN_CALIBRATION = ("checkpoints", "weights", "data_name", "split")


def read_items(given: dict, sim: str) -> Embeddings:
    """Build the items from the arguments of `confidence.calibrate`; None counts as missing."""
    unknown = sorted(set(given) - {*ARRAYS_OF_CALL, "scores"})
    if unknown:
        names = ", ".join(ARRAYS_OF_CALL)
        raise InputError(f"dev holds {unknown[0]!r}; it may hold {names} and scores")

    arrays = collect_arrays(*[given.get(name) for name in ARRAYS_OF_CALL])
    scores = collect_scores(given.get("scores"), None, None)
    return build_embeddings(arrays, sim, scores)


def calibrate_arrays(
    given: dict,
    sim: str,
    dev: dict | None,
    calibrate_on: float | None,
    cross_fit: int,
    logit_scale: float | None,
    logit_bias: float | None,
) -> dict:
    """Calibrate and judge as `confidence.calibrate` says. given: its arrays, by name."""
    if dev is not None and calibrate_on is not None:
        raise InputError(
            "dev and calibrate_on are two ways to say what to calibrate on; give one of them"
        )

    whole = read_items(given, sim)
    judged = fitted = whole
    folds = 0
    if dev is not None:
        fitted = read_items(dev, sim)
        source = "dev"
    elif calibrate_on is not None:
        judged, fitted = divide_images(whole, calibrate_on)
        source = f"a random {calibrate_on:g} of the images"
    else:
        folds = cross_fit
        source = describe_folds(folds)

    values = {}
    if logit_scale is not None:
        values["logit_scale"] = float(logit_scale)
    if logit_bias is not None:
        values["logit_bias"] = float(logit_bias)
    logits = check_logits(values, whole)
    results, calibration, _ = judge_items(fitted, judged, source, folds, logits)

    for name in NAMES_IN_CALIBRATION:
        del calibration[name]
    facts = {
        "similarity": whole.similarity,
        "images": judged.n_images,
        "captions": len(judged.caption_image),
        "calibrated_on": source,
        "notes": whole.notes,
    }
    return replace_nan({**facts, **results, "calibration": calibration})
