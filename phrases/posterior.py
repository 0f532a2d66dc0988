"""Posterior over the boxes of a photo: the probability that a box is the one that a phrase means.

The posterior of box j of a phrase is p_j = exp(T s_j) / sum_k exp(T s_k) over the boxes of its
photo. The temperature T is fitted on dev by maximum likelihood (Guo et al. 2017, whose temperature
is 1 / T). The evaluation asks whether p of the top-1 box tells if that box is right, and whether
simpler numbers do.

Several boxes of a photo are right and share the probability, so p of one is below the probability
that it is right. The sum of p over the boxes that overlap it estimates that ("overlap").
"""

import numpy as np
from scipy import special

from checkpoint import Trained
from evaluation.ambiguity import count_words
from evaluation.report import number, table
from metrics import (
    auroc,
    box_areas,
    box_iou,
    calibration_error,
    find_interval,
    join_rounded,
    minimize_temperature,
    sample_auroc,
)
from phrases.ranking import (
    RIGHT_IOU,
    ModelScores,
    PhotoScores,
    rank_photos,
    read_for_run,
    score_photos,
)
from utils import InputError

DEV = "val"  # as its files are named
BINS_OF_BOXES = 10  # of equal mass, for the calibration error (Roelofs et al. 2022)
SAMPLES_OF_PHOTOS = 1000  # for an interval
# Titles of the confidences in top-1 boxes; each is larger where the model is more confident.
CONFIDENCES = {
    "posterior": "posterior of the box",
    "overlap": "posterior, summed over overlapping boxes",
    "max": "largest score",
    "words": "minus the number of words",
    "area": "area of the box, share of the photo",
    "log_det_phrase": "minus log det Sigma of the phrase",
    "log_det_box": "minus log det Sigma of the box",
}


def add_posterior(
    results: dict,
    trained: Trained,
    scores: ModelScores,
    photos: list[PhotoScores],
    root: str,
    regions: str,
) -> None:
    """Add to the results of a split what the posterior knows, or a note why it is left out.

    Args:
        results: get the key "posterior", and notes.
        trained: the run.
        scores: of the split, by the run.
        photos: their values.
        root: folder of the data set.
        regions: name of the proposals and their features.
    """
    split = scores.split
    try:
        dev = photos
        if split.name != DEV:
            dev = list(score_photos(*read_for_run(trained, root, DEV, regions)))
        fitted = fit_box_temperature(dev)
        confidences, right, photo = measure_confidences(scores, photos, fitted["temperature"])
    except InputError as error:
        results["notes"].append(f"the posterior over boxes is left out: {error}")
        return

    results["posterior"] = {
        **fitted,
        **compare_confidences(confidences, right, photo),
        **measure_calibration(confidences["posterior"], right),
        "overlap": measure_calibration(confidences["overlap"], right),
    }
    if split.name == DEV:
        results["notes"].append(
            "the temperature of the posterior is fitted to these same phrases of dev, so its "
            "probabilities fit better than on another split"
        )
    if fitted["at_bound"]:
        results["notes"].append(
            f"the temperature of the posterior, {fitted['temperature']:.4g}, is a bound of the "
            "search: the scores do not tell right boxes, or nearly every top-1 box of dev is right"
        )


# ---- the temperature


class BoxLoss:
    """-1/M sum_m log of the probability of the right boxes of phrase m, as a function of log T.

    Of the M phrases that have a right box.
    """

    def __init__(self, photos: list[PhotoScores]):
        below = []  # scores of a phrase, minus the largest
        below_right = []  # those of right boxes, minus the largest of these
        sizes = []
        sizes_right = []
        best_right = []
        variances = []
        self.left_out = 0  # phrases without a right box

        for photo in photos:
            for row, right in zip(photo.scores.astype(np.float64), photo.right):
                if not right.any():
                    self.left_out += 1
                    continue
                row = row - row.max()
                best = row[right].max()
                below.append(row)
                below_right.append(row[right] - best)
                best_right.append(best)
                sizes.append(len(row))
                sizes_right.append(right.sum())
                variances.append(row.var())

        self.phrases = len(sizes)
        if not self.phrases:
            raise InputError("no phrase of dev has a right box, so no temperature fits")
        self.deviation = float(np.sqrt(np.mean(variances)))
        self.below = np.concatenate(below)
        self.below_right = np.concatenate(below_right)
        self.best_right = np.array(best_right)
        self.first = np.cumsum([0, *sizes[:-1]])  # of each phrase in `below`
        self.first_right = np.cumsum([0, *sizes_right[:-1]])

    def __call__(self, log_t: float) -> float:
        t = np.exp(log_t)
        total = np.add.reduceat(np.exp(t * self.below), self.first)  # (M,), by the best box
        right = np.add.reduceat(np.exp(t * self.below_right), self.first_right)  # by the best right
        return float(np.mean(np.log(total) - t * self.best_right - np.log(right)))


def fit_box_temperature(photos: list[PhotoScores]) -> dict:
    """Fit T to phrases of dev.

    Returns {"temperature", "at_bound": no T within bounds is a minimum, "fitted_on": name of the
    split, "fitted_phrases": their number, "left_out": the number of phrases without a right box}.
    Raises InputError where none has one, or all scores of each are equal.
    """
    loss = BoxLoss(photos)
    if not loss.deviation > 0:
        raise InputError("all boxes of a phrase have equal scores, so no temperature fits")

    minimum = minimize_temperature(loss, loss.deviation)
    return {
        "temperature": minimum.temperature,
        "at_bound": minimum.at_low or minimum.at_high,
        "fitted_on": DEV,
        "fitted_phrases": loss.phrases,
        "left_out": loss.left_out,
    }


# ---- the top-1 boxes


def measure_confidences(
    scores: ModelScores, photos: list[PhotoScores], t: float
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Measure the confidence in the top-1 box of each phrase.

    Returns {measure: (M,)}, whether the box is right (M,) bool, and the photo of each phrase (M,).
    A box that ties with a wrong one is wrong, as for R@1. Raises InputError where all boxes are
    added ones.
    """
    split = scores.split
    photos = [photo for photo in photos if len(photo.rows)]
    if not photos:
        raise InputError(f"all boxes of {split.name} are those of phrases, added for the training")

    posterior = []
    overlap = []
    largest = []
    boxes = []
    for photo in photos:
        p = special.softmax(t * photo.scores.astype(np.float64), axis=1)  # (m, P)
        top = photo.scores.argmax(1)
        top_boxes = photo.rows[top]
        near = box_iou(split.boxes[top_boxes], split.boxes[photo.rows]) >= RIGHT_IOU  # (m, P)
        posterior.append(p.max(1))
        overlap.append((p * near).sum(1))
        largest.append(photo.scores.max(1))
        boxes.append(top_boxes)

    phrases = np.concatenate([photo.phrases for photo in photos])
    boxes = np.concatenate(boxes)
    photo_of = split.phrase_photo[phrases]
    width, height = split.entities.sizes[photo_of].astype(np.float64).T
    confidences = {
        "posterior": np.concatenate(posterior),
        "overlap": np.minimum(np.concatenate(overlap), 1),  # but for rounding
        "max": np.concatenate(largest),
        "words": -count_words(split.captions)[phrases].astype(float),
        "area": box_areas(split.boxes[boxes]) / (width * height),
        "log_det_phrase": -scores.log_det_phrases[phrases],
        "log_det_box": -scores.log_det_boxes[boxes],
    }
    known = {}  # all but those that points do not have
    for name, values in confidences.items():
        if not np.isnan(values).any():
            known[name] = join_rounded(values)
    return known, rank_photos(photos).rank == 0, photo_of


def compare_confidences(
    confidences: dict[str, np.ndarray], right: np.ndarray, photo: np.ndarray
) -> dict[str, dict]:
    """Compute {"auroc": {measure: value}, "intervals": {measure: [low, high]}}.

    The 95% intervals are of a bootstrap over photos, each with all its phrases. All arrays are
    (M,).
    """
    _, photo = np.unique(photo, return_inverse=True)
    count = photo.max() + 1
    rng = np.random.default_rng(0)
    share = np.full(count, 1 / count)
    drawn = rng.multinomial(count, share, SAMPLES_OF_PHOTOS)  # (samples, N) times each photo

    values = {}
    intervals = {}
    for name, x in confidences.items():
        values[name] = auroc(x, right)
        intervals[name] = find_interval(sample_auroc(x, right, drawn, photo))
    return {"auroc": values, "intervals": intervals}


def measure_calibration(p: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Compare probabilities p (M,) with the share of right boxes: all numbers in [0, 1].

    "ece" is the mean distance of mean probability and share of right boxes in bins of equal mass,
    "ece_floor" the mean ECE that a perfectly calibrated p shows with so few phrases.
    """
    ece, floor = calibration_error(p, right, BINS_OF_BOXES)
    return {
        "ece": ece,
        "ece_floor": floor,
        "mean_probability": float(p.mean()),
        "accuracy": float(right.mean()),
    }


# ---- tables and sentences


def tabulate_posterior(found: dict) -> tuple:
    """Make a table of AUROC and its interval, a row a confidence."""
    rows = {}
    for name, value in found["auroc"].items():
        low, high = found["intervals"][name]
        interval = f"{number(low, 3)} to {number(high, 3)}"
        rows[CONFIDENCES[name]] = {"auroc": value, "interval": interval}
    return table(
        "is the top-1 box right? AUROC: chance that a right one has more confidence than a wrong "
        "one; 0.5: guessing",
        {"auroc": "AUROC", "interval": "95% interval"},
        rows,
    )


def describe_posterior(found: dict) -> str:
    """Say how probabilities and right boxes compare, and what the temperature is fitted to."""
    overlap = found["overlap"]
    return (
        f"posterior: {100 * found['accuracy']:.1f}% of the top-1 boxes are right; their mean "
        f"probability is {100 * found['mean_probability']:.1f}% (ECE {found['ece']:.3f}, "
        f"{found['ece_floor']:.3f} if perfectly calibrated), and "
        f"{100 * overlap['mean_probability']:.1f}% (ECE {overlap['ece']:.3f}) summed over the "
        f"boxes that overlap them with an IoU from {RIGHT_IOU:g}, as several boxes can be right; "
        f"T = {found['temperature']:.4g}, fitted to {found['fitted_phrases']:,} phrases of dev "
        f"({found['left_out']:,} without a right box left out)"
    )
