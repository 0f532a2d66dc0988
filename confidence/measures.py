"""Measures of confidence in top-1 answers, and what each is worth.

The posterior over the gallery is the measure to use. The maximum score and log det Sigma of the
query stand beside it, so that one sees what the posterior adds.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from confidence.calibration import DIRECTIONS
from confidence.posterior import Answers, Rows, calibrate, find_answers, rows_of_images
from evaluation.ambiguity import count_words
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.report import LEAST_IMAGES, SIDES, number, table
from metrics import (
    Sigmoid,
    auroc,
    bins_of_equal_mass,
    calibration_error,
    find_interval,
    join_rounded,
    risk_coverage,
    sample_auroc,
)
from utils import InputError

BINS = 15  # of equal mass, for the calibration error (Roelofs et al. 2022)
MIN_PROBABILITY = 1e-12  # a probability of 0 or 1 counts as this far from it in a logarithm
LEAST_ANSWERS = 10  # right ones, wrong ones, or in a bin: below, a measure comes with a note
MAX_NATS = 50.0  # T times the deviation of the scores, above which softmax is a maximum
SAMPLES_OF_INTERVAL = 500  # of images
# Scales below are rather logarithms: CLIP and SigLIP store ln 100 = 4.6 and more.
MIN_SCALE = 8.0
BEST_MEASURES = ("posterior_grouped", "posterior")  # users are shown the first that there is


class Measure(NamedTuple):
    """A confidence, larger where the model is more confident."""

    title: str  # in tables
    look: tuple[str, str] | None  # color and style of its curve; None: it is not drawn
    probability: bool = False


MEASURES = {
    "posterior": Measure("posterior of the answer", ("tab:blue", "-"), True),
    "posterior_grouped": Measure(
        "posterior, summed over its image's captions", ("tab:blue", "-"), True
    ),
    "own_softmax": Measure("the model's own softmax", None, True),
    "own_softmax_grouped": Measure(
        "the model's own softmax (sum over the captions of an image)", None, True
    ),
    "own_sigmoid": Measure("the model's own sigmoid", None, True),
    "sigmoid": Measure("sigmoid of pairs fitted on dev", None, True),
    "max": Measure("maximum score", ("tab:green", "-")),
    "log_det_query": Measure("-log det Sigma of the query", ("tab:red", "-")),
    "words": Measure("number of words of the query", ("tab:gray", "-.")),
}


class Outcomes(NamedTuple):
    """First answers to Q queries of one direction, and the confidences in them."""

    confidences: dict[str, np.ndarray]  # (Q,) of MEASURES
    right: np.ndarray  # (Q,) bool
    queries: np.ndarray  # (Q,) positions in their split
    answers: np.ndarray  # (Q,) positions of the top-1 answers in their split
    owner: np.ndarray  # (Q,) the image of each query

    @property
    def best(self) -> str:
        """Name of the posterior that a user is shown."""
        return next(name for name in BEST_MEASURES if name in self.confidences)


# ---- what is measured


def check_logits(values: dict[str, float], e: Embeddings) -> tuple[float, float | None] | None:
    """Return scale and bias (or None) of a model's logits; None where there are none.

    A note is added to the items where the scale seems to be a logarithm. Raises InputError where
    they are no factor of a cosine and its bias. values: "logit_scale" and "logit_bias", as far as
    they are known.
    """
    if not values:
        return None

    scale = values.get("logit_scale", 0.0)
    finite = np.isfinite([*values.values()]).all()
    if not scale > 0 or not finite or e.similarity not in ("cosine", "scores"):
        raise InputError(
            f"{e.name}: of {values} the scale must be a number above 0, the factor of a cosine, "
            f"such as 100 for CLIP, and the similarity is {e.similarity}; write "
            "np.exp(logit_scale) where the model keeps its logarithm"
        )
    if scale < MIN_SCALE:
        e.notes.append(
            f"logit_scale {scale:g} is small; CLIP and SigLIP keep the logarithm of the factor "
            "that is meant here, so write np.exp(logit_scale)"
        )
    return scale, values.get("logit_bias")


def divide_images(whole: Embeddings, part: float) -> tuple[Embeddings, Embeddings]:
    """Divide the images at random: those to judge, and a part of them to calibrate on."""
    order = np.random.default_rng(0).permutation(whole.n_images)
    cut = round(part * whole.n_images)
    judged = whole.subset(np.sort(order[cut:]))
    fitted = whole.subset(np.sort(order[:cut]))

    given = len(fitted.caption_image)
    count = len(whole.caption_image)
    if given in (0, count):
        raise InputError(
            f"--calibrate_on {part:g} leaves {given} of {count} captions to calibrate on; give a "
            "share that leaves some on both sides"
        )
    return judged, fitted


def judge_items(
    dev: Embeddings,
    test: Embeddings,
    source: str,
    folds: int = 0,
    logits: tuple[float, float | None] | None = None,
) -> tuple[dict, dict, dict[str, Outcomes]]:
    """Calibrate on dev and judge test.

    Returns {"confidence", "intervals"}, the content of calibration.json, and the outcomes.

    Args:
        dev: items to calibrate on.
        test: items to judge.
        source: of dev, for the reader.
        folds: of the images, each judged by the others; 0: dev and test are apart.
        logits: a model's own scale and bias.
    """
    calibration = calibrate(dev, source)
    if folds:
        outcomes = cross_fit(test, folds, logits)
    else:
        temperatures = {side: calibration[side]["temperature"] for side in DIRECTIONS}
        pair = Sigmoid(**calibration["pair"])
        outcomes = measure_confidences(test, temperatures, pair, logits)

    results = {
        "confidence": {side: judge_confidences(x) for side, x in outcomes.items()},
        "intervals": {side: estimate_intervals(x) for side, x in outcomes.items()},
    }
    return results, calibration, outcomes


def measure_confidences(
    e: Embeddings,
    temperatures: dict[str, float],
    pair: Sigmoid | None = None,
    logits: tuple[float, float | None] | None = None,
    images: np.ndarray | None = None,
) -> dict[str, Outcomes]:
    """Measure the confidence in the top-1 answers of both directions.

    Args:
        e: the items.
        temperatures: by direction.
        pair: the probability of a pair.
        logits: a model's own scale and bias. Then also its softmax(scale s) over the gallery, as
            CLIP has it, with a bias its sigmoid(scale s + bias) of a pair, as SigLIP has it, and
            the probability of a pair that is fitted on dev. The first two were learned on batches
            of other pairs, so they are often far from the share of right answers.
        images: positions (n,) of images; only their queries are measured, over the whole gallery.
    """
    log_det = uncertainties(e)
    outcomes = {}
    for side, (modality, _) in DIRECTIONS.items():
        rows = rows_of_images(e, side, images)
        first = find_answers(rows, temperatures[side])
        values = {"posterior": first.posterior}
        if side == "i2t":
            values["posterior_grouped"] = first.grouped
        values["max"] = first.max
        if modality in log_det:
            values["log_det_query"] = -log_det[modality][rows.queries]
        if side == "t2i" and "caption" in e.ids:  # the trivial predictor
            values["words"] = count_words(e.ids["caption"])[rows.queries]
        if logits:
            values |= measure_own_probabilities(rows, side, first, pair, *logits)

        values = {name: join_rounded(x) for name, x in values.items()}
        outcomes[side] = Outcomes(values, first.right, rows.queries, first.first, rows.owner)
    return outcomes


def measure_own_probabilities(
    rows: Rows, side: str, first: Answers, pair: Sigmoid, scale: float, bias: float | None
) -> dict[str, np.ndarray]:
    """Compute a model's own probabilities of the top-1 answers, and that of a pair fitted on dev.

    Several captions of an image share the probability of the softmax, so image to text it is summed
    over the captions of the answer's image.

    Args:
        rows: scores of one direction.
        side: the direction.
        first: the top-1 answers.
        pair: fitted on dev.
        scale: the model's factor of the scores.
        bias: the model's bias; None: it has none.
    """
    own = find_answers(rows, scale)
    values = {}
    if side == "i2t":
        values["own_softmax_grouped"] = own.grouped
    else:
        values["own_softmax"] = own.posterior
    values["sigmoid"] = pair(first.max).numpy()
    if bias is not None:
        values["own_sigmoid"] = Sigmoid(scale, bias)(first.max).numpy()
    return values


def describe_folds(folds: int) -> str:
    """Name what the numbers of calibration.json are fitted to."""
    return f"all images; judged by cross-fitting in {folds} folds"


def cross_fit(
    e: Embeddings, folds: int, logits: tuple[float, float | None] | None = None
) -> dict[str, Outcomes]:
    """Measure confidences of all queries, each by numbers fitted to queries of other images.

    The images are split into `folds` parts at random. Every query is compared with the whole
    gallery. Raises InputError where there are fewer images than folds, or nothing fits.
    """
    if not 2 <= folds <= e.n_images:
        raise InputError(
            f"{e.name} has {e.n_images} images, and {folds} folds were asked for; give 2 to "
            f"{e.n_images} folds"
        )

    order = np.random.default_rng(0).permutation(e.n_images)
    parts = []
    for k in range(folds):
        held_out = np.sort(order[k::folds])
        others = np.setdiff1d(order, held_out)
        fitted = calibrate(e, "", others)
        temperatures = {side: fitted[side]["temperature"] for side in DIRECTIONS}
        pair = Sigmoid(**fitted["pair"])
        parts.append(measure_confidences(e, temperatures, pair, logits, held_out))
    return {side: join_outcomes([part[side] for part in parts]) for side in DIRECTIONS}


def join_outcomes(parts: list[Outcomes]) -> Outcomes:
    """Join the outcomes of several sets of queries, in the order of the split."""
    order = np.argsort(np.concatenate([part.queries for part in parts]), kind="stable")

    confidences = {}
    for name in parts[0].confidences:
        values = np.concatenate([part.confidences[name] for part in parts])
        confidences[name] = values[order]
    arrays = {}
    for name in ("right", "queries", "answers", "owner"):
        values = np.concatenate([getattr(part, name) for part in parts])
        arrays[name] = values[order]
    return Outcomes(confidences, **arrays)


def judge_confidences(outcomes: Outcomes) -> dict[str, dict]:
    """Judge the confidences of one direction by whether the answers are right.

    Returns {measure: {"auroc", "aurc", "aurc_flat", and of probabilities "brier", "nll", "ece",
    "ece_floor", "mean"}}.
    """
    results = {}
    for name, x in outcomes.confidences.items():
        results[name] = judge_order(x, outcomes.right)
        if MEASURES[name].probability:
            results[name] |= judge_probability(x, outcomes.right)
    return results


# ---- discrimination and calibration
# Each function takes a number per query: a confidence (Q,), larger where the model is more
# confident, or a probability p (Q,) in [0, 1], and right (Q,) bool, whether the query's first
# answer is right.


def reliability(p: np.ndarray, right: np.ndarray) -> dict:
    """Compute mean probability, share of right answers and size of each bin."""
    parts = bins_of_equal_mass(p, BINS)
    p = p.astype(float)
    return {
        "p": [float(p[part].mean()) for part in parts],
        "right": [float(right[part].mean()) for part in parts],
        "queries": [len(part) for part in parts],
    }


def judge_order(confidence: np.ndarray, right: np.ndarray) -> dict:
    """Compute AUROC, and in percent AURC and that of a random order (`metrics.risk_coverage`)."""
    risk = risk_coverage(-confidence, right)
    return {
        "auroc": auroc(confidence, right),
        "aurc": risk["area"],
        "aurc_flat": risk["area_random"],
    }


def judge_probability(p: np.ndarray, right: np.ndarray) -> dict:
    """Judge a probability: {"brier", "nll" in nats, "ece", "ece_floor", "mean"}."""
    p = p.astype(float)
    ece, floor = calibration_error(p, right, BINS)
    return {
        "brier": float(np.mean((p - right) ** 2)),
        "nll": float(log_losses(p, right).mean()),
        "ece": ece,
        "ece_floor": floor,
        "mean": float(p.mean()),
    }


def log_losses(p: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute -log of the probability of what happened, in nats: (Q,)."""
    happened = np.where(right, p, 1 - p)
    return -np.log(np.clip(happened, MIN_PROBABILITY, 1 - MIN_PROBABILITY))


# ---- intervals


def estimate_intervals(outcomes: Outcomes) -> dict:
    """Estimate 95% intervals over other images, by a bootstrap of images with all their queries.

    Returns {"right": [low, high], measure: {"auroc": [low, high], and of probabilities "brier",
    "nll" and "mean": [low, high]}}.
    """
    _, image = np.unique(outcomes.owner, return_inverse=True)
    count = int(image.max()) + 1
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(count, np.full(count, 1 / count), SAMPLES_OF_INTERVAL)  # (samples, C)

    def average(values: np.ndarray) -> list[float]:
        """Estimate the interval of the mean of a number per query (Q,)."""
        sums = drawn @ np.bincount(image, values)
        return find_interval(sums / (drawn @ np.bincount(image)))

    right = outcomes.right
    intervals = {"right": average(right.astype(float))}
    for name, x in outcomes.confidences.items():
        intervals[name] = {"auroc": find_interval(sample_auroc(x, right, drawn, image))}
        if MEASURES[name].probability:
            p = x.astype(float)
            intervals[name]["brier"] = average((p - right) ** 2)
            intervals[name]["nll"] = average(log_losses(p, right))
            intervals[name]["mean"] = average(p)
    return intervals


# ---- tables and sentences

COLUMNS_OF_CONFIDENCES = {
    "auroc": "AUROC",
    "aurc": "AURC",
    "under": "below random",
    "brier": "Brier",
    "nll": "NLL",
    "ece": "ECE",
    "ece_floor": "floor",
}
LEGEND = (
    "AUROC: chance that a right answer has more confidence than a wrong one (0.5: guessing); AURC: "
    "wrong answers, %, among the k most confident, mean over k; below random: how far AURC is "
    "below that of a random order",
    "ECE: distance of probabilities from the share that is right; floor: the ECE of perfectly "
    "calibrated probabilities; all: docs/confidence.md",
)


def find_cell_of_confidences(key: str, numbers: dict) -> str:
    """Format a number of `judge_confidences`, or how far AURC is below that of a random order."""
    if key == "under":
        if not numbers["aurc_flat"]:
            return "-"
        return f"{100 * (1 - numbers['aurc'] / numbers['aurc_flat']):z.0f}%"
    if key == "aurc":
        return number(numbers[key], 1)
    return number(numbers.get(key, ""), 3)


def tabulate_confidences(results: dict) -> list:
    """Build the tables of the results of `judge_confidences` by direction."""
    made = []
    for side, measures in results.items():
        title = f"{SIDES[side]}: is the top-1 answer right?"
        rows = {MEASURES[name].title: numbers for name, numbers in measures.items()}
        made.append(table(title, COLUMNS_OF_CONFIDENCES, rows, find_cell_of_confidences))
    return made


def describe_confidences(
    results: dict, calibration: dict, outcomes: dict[str, Outcomes], intervals: dict
) -> Iterator[str]:
    """Yield the legend of the tables, a summary in words, and the temperatures.

    Args:
        results: of `judge_confidences`, by direction.
        calibration: the content of calibration.json.
        outcomes: by direction.
        intervals: of `estimate_intervals`, by direction.
    """
    yield from LEGEND
    for side, measures in results.items():
        fitted = calibration[side]
        best = outcomes[side].best
        bins = reliability(outcomes[side].confidences[best], outcomes[side].right)
        right = bins["right"]
        queries = bins["queries"]
        yield (
            f"{side}: {100 - measures[best]['aurc_flat']:.1f}% of the top-1 answers are right, "
            f"{100 * right[-1]:.0f}% of the {queries[-1]:,} most confident and "
            f"{100 * right[0]:.0f}% of the {queries[0]:,} least confident"
        )
        yield describe_intervals(side, measures, best, intervals[side])

        spread = ""
        if fitted["low"] == fitted["low"]:  # no NaN
            spread = f" ({fitted['low']:.4g} to {fitted['high']:.4g})"
        grouped = ""
        if "posterior_grouped" in measures:
            grouped = "; the data say which captions are of one image"
        yield (
            f"{side}: T = {fitted['temperature']:.4g}{spread}, fitted to {fitted['queries']:,} "
            f"queries over {fitted['gallery']:,} items{grouped}"
        )
        yield from doubt_temperature(side, fitted, calibration["images"])
        yield from doubt_sizes(side, outcomes[side].right)


def describe_intervals(side: str, measures: dict, best: str, intervals: dict) -> str:
    """Say the 95% intervals of what the posterior tells.

    Args:
        side: the direction.
        measures: of `judge_confidences`.
        best: name of the posterior.
        intervals: of `estimate_intervals`.
    """
    numbers = measures[best]
    right = intervals["right"]
    mean = intervals[best]["mean"]
    order = intervals[best]["auroc"]
    return (
        f"{side}: 95% intervals over images: {100 - numbers['aurc_flat']:.1f}% right "
        f"({100 * right[0]:.1f} to {100 * right[1]:.1f}), mean posterior "
        f"{100 * numbers['mean']:.1f}% ({100 * mean[0]:.1f} to {100 * mean[1]:.1f}), AUROC "
        f"{number(numbers['auroc'], 3)} ({number(order[0], 2)} to {number(order[1], 2)})"
    )


def doubt_temperature(side: str, fitted: dict, images: int) -> Iterator[str]:
    """Yield sentences on a temperature that rests on little. images: of dev."""
    start = f"note: {side}: T = {fitted['temperature']:.4g}"
    if images < LEAST_IMAGES:
        yield (
            f"{start} is fitted to only {fitted['queries']:,} queries, of {images:,} images; use "
            f"at least {LEAST_IMAGES} images"
        )
    elif fitted["wrong"] < LEAST_ANSWERS:
        yield (
            f"{start} rests on {fitted['wrong']:,} wrong top-1 answers of dev, so it may be far "
            f"off; calibrate on more images, so that at least {LEAST_ANSWERS} are wrong"
        )
    nats = fitted["temperature"] * fitted["deviation"]
    if nats > MAX_NATS:
        yield (
            f"{start} times the deviation of the scores is {nats:,.0f} nats, so nearly every "
            "probability is 0 or 1"
        )


def doubt_sizes(side: str, right: np.ndarray) -> Iterator[str]:
    """Yield sentences on measures that rest on few of the answers, right (Q,) bool."""
    count = len(right)
    hits = int(right.sum())
    for number_of, kind in ((hits, "right"), (count - hits, "wrong")):
        if number_of < LEAST_ANSWERS:
            yield (
                f"note: {side}: {number_of:,} of {count:,} top-1 answers are {kind}, and AUROC and "
                "AURC rest on so few"
            )
    if count < BINS * LEAST_ANSWERS:
        yield (
            f"note: {side}: ECE is of {BINS} bins of about {count / BINS:.1f} queries; compare it "
            f"with its floor, or judge at least {BINS * LEAST_ANSWERS} queries"
        )


def describe_logits(results: dict, intervals: dict) -> Iterator[str]:
    """Yield in words what is wrong with the model's own probabilities, where it has any.

    results: of `judge_confidences`; intervals: of `estimate_intervals`; both by direction.
    """
    for side, measures in results.items():
        for name in ("own_softmax", "own_softmax_grouped", "own_sigmoid"):
            if name not in measures:
                continue
            numbers = measures[name]
            right = 1 - numbers["aurc_flat"] / 100
            low, high = intervals[side][name]["mean"]
            yield (
                f"{side}: {MEASURES[name].title} says {100 * numbers['mean']:.1f}% on average "
                f"({100 * low:.1f} to {100 * high:.1f}), and {100 * right:.1f}% of the first "
                f"answers are right: it is {judge_mean(numbers, right)}"
            )


def judge_mean(numbers: dict, right: float) -> str:
    """Say whether a probability is too high or too low.

    numbers: of `judge_probability`; right: the share of right answers.
    """
    gap = numbers["mean"] - right
    if numbers["ece"] < 2 * numbers["ece_floor"]:
        return "about right"
    if abs(gap) < numbers["ece"] / 2:
        return "right on average, too high for some queries and too low for others"
    if gap > 0:
        return "too high"
    return "too low"
