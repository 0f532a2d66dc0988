"""Measures of confidence in first answers, and what each is worth.

The posterior over the gallery is the measure to use. The maximum score and log det Sigma of the query stand beside it,
so that one sees what the posterior adds.
"""
from typing import NamedTuple

import numpy as np

from cli import InputError, check
from confidence.calibration import DIRECTIONS
from confidence.posterior import Answers, Rows, calibrate, find_answers, rows_of_images
from evaluation.ambiguity import count_words
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.report import LEAST_IMAGES, SIDES, number, table
from metrics import Sigmoid, join_rounded, risk_coverage

BINS = 15                 # of equal mass, for the calibration error (Roelofs et al. 2022)
LEAST = 1e-12             # a probability of 0 or 1 counts as this far from it in a logarithm
LEAST_ANSWERS = 10                    # right ones, wrong ones, or in a bin: below, a measure comes with a note
LARGEST_NATS = 50.0                   # T times the deviation of the scores, above which softmax is a maximum
DRAWS = 200               # of the right answers that perfect probabilities would show
SAMPLES = 500             # of images, for an interval
LOGARITHM = 8.0           # scales below are rather logarithms: CLIP and SigLIP store ln 100 = 4.6 and more
BEST = ("posterior_grouped", "posterior")       # users are shown the first that there is


class Measure(NamedTuple):
    """A confidence, larger where surer."""
    title: str                        # in tables
    look: tuple[str, str] | None      # colour and style of its curve; None: it is not drawn
    probability: bool = False


MEASURES = {
    "posterior": Measure("posterior of the answer", ("tab:blue", "-"), True),
    "posterior_grouped": Measure("posterior, summed over its image's captions", ("tab:blue", "-"), True),
    "own_softmax": Measure("the model's own softmax", None, True),
    "own_softmax_grouped": Measure("the model's own softmax (sum over the captions of an image)", None, True),
    "own_sigmoid": Measure("the model's own sigmoid", None, True),
    "sigmoid": Measure("sigmoid of pairs fitted on dev", None, True),
    "max": Measure("maximum score", ("tab:green", "-")),
    "log_det_query": Measure("-log det Sigma of the query", ("tab:red", "-")),
    "words": Measure("number of words of the query", ("tab:gray", "-."))}


class Outcomes(NamedTuple):
    """First answers to Q queries of one direction, and the confidences in them."""
    confidences: dict[str, np.ndarray]          # (Q,) of MEASURES
    right: np.ndarray                 # (Q,) bool
    queries: np.ndarray               # (Q,) positions in their split
    answers: np.ndarray               # (Q,) positions of the first answers in their split
    owner: np.ndarray                 # (Q,) the image of each query

    @property
    def best(self) -> str:
        """Name of the posterior that a user is shown."""
        return next(name for name in BEST if name in self.confidences)


def check_logits(values: dict[str, float], e: Embeddings) -> tuple[float, float | None] | None:
    """Return scale and bias (or None) of a model's logits; None where there are none.

    values: "logit_scale" and "logit_bias", as far as they are known. A note is added to the items where
    the scale seems to be a logarithm. Raises InputError where they are no factor of a cosine and its bias.
    """
    if not values:
        return None
    scale = values.get("logit_scale", 0.0)
    check(scale > 0 and np.isfinite([*values.values()]).all() and e.similarity in ("cosine", "scores"),
          f"{e.name}: of {values} the scale must be a number above 0, the factor of a cosine, such as 100 for CLIP, "
          f"and the similarity is {e.similarity}; write np.exp(logit_scale) where the model keeps its logarithm")
    if scale < LOGARITHM:
        e.notes.append(f"logit_scale {scale:g} is small; CLIP and SigLIP keep the logarithm of the factor that is "
                       "meant here, so write np.exp(logit_scale)")
    return scale, values.get("logit_bias")


def divide_images(whole: Embeddings, part: float) -> tuple[Embeddings, Embeddings]:
    """Divide the images at random: those to judge, and a part of them to calibrate on."""
    order = np.random.default_rng(0).permutation(whole.n_images)
    cut = round(part * whole.n_images)
    judged = whole.subset(np.sort(order[cut:]))
    fitted = whole.subset(np.sort(order[:cut]))
    given, count = len(fitted.caption_image), len(whole.caption_image)
    if given in (0, count):
        raise InputError(f"--calibrate_on {part:g} leaves {given} of {count} captions to calibrate on; give a share "
                         "that leaves some on both sides")
    return judged, fitted


def judge_items(dev: Embeddings, test: Embeddings, source: str, folds: int = 0,
                logits: tuple[float, float | None] | None = None) -> tuple[dict, dict, dict[str, Outcomes]]:
    """Calibrate on dev and judge test: ({"confidence", "intervals"}, the content of calibration.json, outcomes).

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
        outcomes = measure_confidences(test, temperatures, Sigmoid(**calibration["pair"]), logits)
    results = {"confidence": {side: judge_confidences(x) for side, x in outcomes.items()},
               "intervals": {side: estimate_intervals(x) for side, x in outcomes.items()}}
    return results, calibration, outcomes


def measure_confidences(e: Embeddings, temperatures: dict[str, float], pair: Sigmoid | None = None,
                        logits: tuple[float, float | None] | None = None,
                        images: np.ndarray | None = None) -> dict[str, Outcomes]:
    """Measure the confidence in the first answers of both directions.

    Args:
        e: the items.
        temperatures: by direction.
        pair: the probability of a pair.
        logits: a model's own scale and bias. Then also its softmax(scale s) over the gallery, as CLIP has it, with a
            bias its sigmoid(scale s + bias) of a pair, as SigLIP has it, and the probability of a pair that is fitted
            on dev. The first two were learned on batches of other pairs, so they are often far from the share of right
            answers.
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
        if side == "t2i" and "caption" in e.ids:                # the trivial predictor
            values["words"] = count_words(e.ids["caption"])[rows.queries]
        if logits:
            values |= measure_own_probabilities(rows, side, first, pair, *logits)

        values = {name: join_rounded(x) for name, x in values.items()}
        outcomes[side] = Outcomes(values, first.right, rows.queries, first.first, rows.owner)
    return outcomes


def measure_own_probabilities(rows: Rows, side: str, first: Answers, pair: Sigmoid, scale: float,
                              bias: float | None) -> dict[str, np.ndarray]:
    """Compute a model's own probabilities of the first answers, and that of a pair fitted on dev.

    Several captions of an image share the probability of the softmax, so image to text it is summed
    over the captions of the answer's image.
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


def cross_fit(e: Embeddings, folds: int, logits: tuple[float, float | None] | None = None) -> dict[str, Outcomes]:
    """Measure confidences of all queries, each by numbers that are fitted to the queries of other images.

    The images are split into `folds` parts at random. Every query is compared with the whole gallery.
    Raises InputError where there are fewer images than folds, or nothing fits.
    """
    if not 2 <= folds <= e.n_images:
        raise InputError(f"{e.name} has {e.n_images} images, and {folds} folds were asked for; give 2 to {e.n_images} "
                         "folds")
    order, parts = np.random.default_rng(0).permutation(e.n_images), []
    for k in range(folds):
        held_out = np.sort(order[k::folds])
        others = np.setdiff1d(order, held_out)
        fitted = calibrate(e, "", others)
        temperatures = {side: fitted[side]["temperature"] for side in DIRECTIONS}
        parts.append(measure_confidences(e, temperatures, Sigmoid(**fitted["pair"]), logits, held_out))
    return {side: join_outcomes([part[side] for part in parts]) for side in DIRECTIONS}


def join_outcomes(parts: list[Outcomes]) -> Outcomes:
    """Join the outcomes of several sets of queries, in the order of the split."""
    order = np.argsort(np.concatenate([part.queries for part in parts]), kind="stable")

    def join(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]
    confidences = {name: join([part.confidences[name] for part in parts]) for name in parts[0].confidences}
    arrays = {name: join([getattr(part, name) for part in parts]) for name in ("right", "queries", "answers", "owner")}
    return Outcomes(confidences, **arrays)


def judge_confidences(outcomes: Outcomes) -> dict[str, dict]:
    """Judge the confidences of one direction by whether the answers are right.
    Returns {measure: {"auroc", "aurc", "aurc_flat", and of probabilities "brier", "nll", "ece", "ece_floor", "mean"}}.
    """
    return {name: judge_order(x, outcomes.right)
            | (judge_probability(x, outcomes.right) if MEASURES[name].probability else {})
            for name, x in outcomes.confidences.items()}


# ---- discrimination and calibration
# Each function takes a number per query: a confidence (Q,), larger where surer, or a probability p (Q,) in [0, 1], and
# right (Q,) bool, whether the query's first answer is right.

def auroc(confidence: np.ndarray, right: np.ndarray) -> float:
    """Compute how probably a right answer has more confidence than a wrong one.
    Ties count half; NaN where one kind is missing."""
    hit, miss = confidence[right], np.sort(confidence[~right])
    if not len(hit) or not len(miss):
        return float("nan")
    below = sum(np.searchsorted(miss, hit, side).sum(dtype=float) for side in ("left", "right")) / 2
    return float(below / (len(hit) * len(miss)))


def bins_of_equal_mass(p: np.ndarray) -> list[np.ndarray]:
    """Divide the positions of p (Q,) into bins of equal size, from the least p."""
    return [part for part in np.array_split(np.argsort(p, kind="stable"), BINS) if len(part)]


def reliability(p: np.ndarray, right: np.ndarray) -> dict:
    """Compute mean probability, share of right answers and size of each bin."""
    p, parts = p.astype(float), bins_of_equal_mass(p)
    return {"p": [float(p[part].mean()) for part in parts], "right": [float(right[part].mean()) for part in parts],
            "queries": list(map(len, parts))}


def judge_order(confidence: np.ndarray, right: np.ndarray) -> dict:
    """AUROC, and in percent AURC and that of a random order (`metrics.risk_coverage`)."""
    risk = risk_coverage(-confidence, right)
    return {"auroc": auroc(confidence, right), "aurc": risk["area"], "aurc_flat": risk["area_random"]}


def judge_probability(p: np.ndarray, right: np.ndarray) -> dict:
    """Judge a probability: {"brier", "nll" in nats, "ece", "ece_floor", "mean"}.
    ECE is the mean distance of mean probability and share of right answers in bins of equal mass. Its floor is the mean
    ECE that a perfectly calibrated p would show with so few queries: right answers drawn with these probabilities."""
    p, rng = p.astype(float), np.random.default_rng(0)
    happened = np.clip(np.where(right, p, 1 - p), LEAST, 1 - LEAST)
    rows = np.concatenate([right[None], rng.random((DRAWS, len(p))) < p])       # (1 + DRAWS, Q)
    errors = sum(abs(p[part].sum() - rows[:, part].sum(1)) for part in bins_of_equal_mass(p)) / len(p)
    return {"brier": float(np.mean((p - right) ** 2)), "nll": float(-np.log(happened).mean()),
            "ece": float(errors[0]), "ece_floor": float(errors[1:].mean()), "mean": float(p.mean())}


# ---- intervals

def estimate_intervals(outcomes: Outcomes) -> dict:
    """Estimate 95% intervals over other images, by a bootstrap of images with all their queries.

    Returns {"right": [low, high], measure: {"auroc": [low, high], and of probabilities "brier", "nll"
    and "mean": [low, high]}}.
    """
    _, image = np.unique(outcomes.owner, return_inverse=True)
    count = int(image.max()) + 1
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), SAMPLES)         # (samples, C)

    def average(values: np.ndarray) -> list[float]:
        """The interval of the mean of a number per query (Q,)."""
        return find_interval((drawn @ np.bincount(image, values)) / (drawn @ np.bincount(image)))

    right = outcomes.right
    intervals = {"right": average(right.astype(float))}
    for name, x in outcomes.confidences.items():
        intervals[name] = {"auroc": find_interval(sample_auroc(x, right, drawn, image))}
        if MEASURES[name].probability:
            p = x.astype(float)
            happened = np.clip(np.where(right, p, 1 - p), LEAST, 1 - LEAST)
            intervals[name] |= {"brier": average((p - right) ** 2), "nll": average(-np.log(happened)),
                                "mean": average(p)}
    return intervals


def find_interval(samples: np.ndarray) -> list[float]:
    """The middle 95% of the samples that are numbers: [low, high]; NaN without any."""
    samples = samples[~np.isnan(samples)]
    if not len(samples):
        return [float("nan"), float("nan")]
    return np.quantile(samples, [0.025, 0.975]).tolist()


def sample_auroc(confidence: np.ndarray, right: np.ndarray, drawn: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Compute `auroc` of samples of images: (samples,).

    drawn (samples, C): how often each image was drawn; image (Q,): the image of each query.
    """
    _, place = np.unique(confidence, return_inverse=True)
    result = np.empty(len(drawn))
    for k, times in enumerate(drawn):
        weight = times[image]
        hits = np.bincount(place[right], weight[right], place.max() + 1)
        misses = np.bincount(place[~right], weight[~right], place.max() + 1)
        below = np.cumsum(misses) - misses / 2              # ties count half
        pairs = hits.sum() * misses.sum()
        result[k] = (hits @ below) / pairs if pairs else np.nan
    return result


# ---- tables and sentences

COLUMNS = {"auroc": "AUROC", "aurc": "AURC", "under": "below random", "brier": "Brier", "nll": "NLL", "ece": "ECE",
           "ece_floor": "floor"}
LEGEND = (
    "AUROC: chance that a right answer has more confidence than a wrong one (0.5: guessing); AURC: "
    "wrong answers, %, among the surest k, mean over k; below random: how far AURC is below that of a random order",
    "ECE: distance of probabilities from the share that is right; floor: the ECE of perfect "
    "probabilities; all: docs/confidence.md")


def tabulate_confidences(results: dict) -> list:
    """Build the tables of the results of `judge_confidences` by direction."""
    def cell(key: str, numbers: dict) -> str:
        flat = numbers["aurc_flat"]
        if key == "under":
            return f"{100 * (1 - numbers['aurc'] / flat):z.0f}%" if flat else "-"
        return number(numbers.get(key, ""), 1 if key == "aurc" else 3)
    return [table(f"{SIDES[side]}: is the first answer right?", COLUMNS,
                  {MEASURES[name].title: numbers for name, numbers in measures.items()}, cell)
            for side, measures in results.items()]


def describe_confidences(results: dict, calibration: dict, outcomes: dict[str, Outcomes], intervals: dict):
    """Yield the legend of the tables, a summary in words, and the temperatures.

    intervals: of `estimate_intervals`, by direction.
    """
    yield from LEGEND
    for side, measures in results.items():
        fitted, best = calibration[side], outcomes[side].best
        bins = reliability(outcomes[side].confidences[best], outcomes[side].right)
        right, queries = bins["right"], bins["queries"]
        yield (f"{side}: {100 - measures[best]['aurc_flat']:.1f}% of the first answers are right, "
               f"{100 * right[-1]:.0f}% of the {queries[-1]:,} surest and {100 * right[0]:.0f}% of the {queries[0]:,} "
               "least sure")
        spread = ""
        if fitted["low"] == fitted["low"]:
            spread = f" ({fitted['low']:.4g} to {fitted['high']:.4g})"
        yield describe_intervals(side, measures, best, intervals[side])
        grouped = "; the data say which captions are of one image" * ("posterior_grouped" in measures)
        yield (f"{side}: T = {fitted['temperature']:.4g}{spread}, fitted to {fitted['queries']:,} queries over "
               f"{fitted['gallery']:,} items{grouped}")
        yield from doubt_temperature(side, fitted, calibration["images"])
        yield from doubt_sizes(side, outcomes[side].right)


def describe_intervals(side: str, measures: dict, best: str, intervals: dict) -> str:
    """Say the 95% intervals of what the posterior tells."""
    numbers = measures[best]
    right, mean, order = intervals["right"], intervals[best]["mean"], intervals[best]["auroc"]
    return (f"{side}: 95% intervals over images: {100 - numbers['aurc_flat']:.1f}% right ({100 * right[0]:.1f} to "
            f"{100 * right[1]:.1f}), mean posterior {100 * numbers['mean']:.1f}% ({100 * mean[0]:.1f} to "
            f"{100 * mean[1]:.1f}), AUROC {number(numbers['auroc'], 3)} ({number(order[0], 2)} to "
            f"{number(order[1], 2)})")


def doubt_temperature(side: str, fitted: dict, images: int):
    """Yield sentences on a temperature that rests on little. images: of dev."""
    place = f"note: {side}: T = {fitted['temperature']:.4g}"
    if images < LEAST_IMAGES:
        yield (f"{place} is fitted to only {fitted['queries']:,} queries, of {images:,} images; use at least "
               f"{LEAST_IMAGES} images")
    elif fitted["wrong"] < LEAST_ANSWERS:
        yield (f"{place} rests on {fitted['wrong']:,} wrong first answers of dev, so it may be far off; calibrate on "
               f"more images, so that at least {LEAST_ANSWERS} are wrong")
    if fitted["temperature"] * fitted["deviation"] > LARGEST_NATS:
        yield (f"{place} times the deviation of the scores is {fitted['temperature'] * fitted['deviation']:,.0f} nats, "
               "so nearly every probability is 0 or 1")


def doubt_sizes(side: str, right: np.ndarray):
    """Yield sentences on measures that rest on few of the answers, right (Q,) bool."""
    count, hits = len(right), int(right.sum())
    for number_of, kind in ((hits, "right"), (count - hits, "wrong")):
        if number_of < LEAST_ANSWERS:
            yield (f"note: {side}: {number_of:,} of {count:,} first answers are {kind}, and AUROC and AURC rest on so "
                   "few")
    if count < BINS * LEAST_ANSWERS:
        yield (f"note: {side}: ECE is of {BINS} bins of about {count / BINS:.1f} queries; compare it with its floor, "
               f"or judge at least {BINS * LEAST_ANSWERS} queries")


def describe_logits(results: dict, intervals: dict):
    """Yield in words what is wrong with the model's own probabilities, where it has any.

    intervals: of `estimate_intervals`, by direction.
    """
    for side, measures in results.items():
        for name in ("own_softmax", "own_softmax_grouped", "own_sigmoid"):
            if name in measures:
                x, right = measures[name], 1 - measures[name]["aurc_flat"] / 100
                gap = x["mean"] - right
                verdict = ("about right" if x["ece"] < 2 * x["ece_floor"] else
                           "right on average, too high for some queries and too low for others"
                           if abs(gap) < x["ece"] / 2 else "too high" if gap > 0 else "too low")
                low, high = intervals[side][name]["mean"]
                yield (f"{side}: {MEASURES[name].title} says {100 * x['mean']:.1f}% on average ({100 * low:.1f} to "
                       f"{100 * high:.1f}), and {100 * right:.1f}% of the first answers are right: it is {verdict}")
