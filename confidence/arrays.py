"""The function behind `confidence.calibrate`: embeddings and scores in memory, of any model."""
from cli import InputError
from confidence.measures import check_logits, describe_folds, divide_images, judge_items
from evaluation.arrays import build_embeddings, collect_arrays, collect_scores
from evaluation.embeddings import Embeddings
from evaluation.protocols import replace_nan

NAMES_OF_FILES = ("checkpoints", "weights", "data_name", "split")               # of calibration.json


def read_items(given: dict, sim: str) -> Embeddings:
    """Build the items from the arguments of `confidence.calibrate`; those that are None count as missing."""
    names = ("images", "captions", "owner", "image_log_var", "caption_log_var")
    unknown = sorted(set(given) - {*names, "scores"})
    if unknown:
        raise InputError(f"dev holds {unknown[0]!r}; it may hold {', '.join(names)} and scores")
    arrays = collect_arrays(*(given.get(name) for name in names))
    items, = build_embeddings(arrays, sim, collect_scores(given.get("scores"), None, None))
    return items


def calibrate_arrays(given: dict, sim: str, dev: dict | None, calibrate_on: float | None, cross_fit: int,
                     logit_scale: float | None, logit_bias: float | None) -> dict:
    """Calibrate and judge as `confidence.calibrate` says."""
    if dev is not None and calibrate_on is not None:
        raise InputError("dev and calibrate_on are two ways to say what to calibrate on; give one of them")
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

    values = {"logit_scale": logit_scale, "logit_bias": logit_bias}
    logits = check_logits({name: float(x) for name, x in values.items() if x is not None}, whole)
    results, calibration, _ = judge_items(fitted, judged, source, folds, logits)
    facts = {"similarity": whole.similarity, "images": judged.n_images, "captions": len(judged.caption_image),
             "calibrated_on": source, "notes": whole.notes}
    own = {name: value for name, value in calibration.items() if name not in NAMES_OF_FILES}
    return replace_nan({**facts, **results, "calibration": own})
