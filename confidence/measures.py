"""How sure a model is of its first answers, and rightly? The posterior over the gallery is the
measure to use; the maximum score and log det Sigma of the query stand beside it, so that one sees
what each is worth (`evaluate.py --confidence`).

`fit` sees the queries to calibrate on, `judge` those to report on.
"""
from typing import NamedTuple

import numpy as np

from cli import check
from confidence import people, promises
from confidence.calibration import SIDES, Fitted, stored
from confidence.posterior import answers, expected, of_pairs, rows_of, sample_scores, temperature
from confidence.volume import Sigmoid
from evaluation import selective
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.report import digits, table

SHOWN = ("posterior_grouped", "posterior")      # users see the first that there is


class Measure(NamedTuple):
    """A confidence, more where surer."""
    title: str                        # in tables
    look: tuple[str, str]             # colour and style of its curve
    probability: bool = False


MEASURES = {
    "posterior": Measure("posterior of the answer", ("tab:blue", "-"), True),
    "posterior_grouped": Measure("the same, summed over its image's captions", ("tab:blue", "-"), True),
    "max": Measure("maximum score", ("tab:green", "-")),
    "log_det_query": Measure("-log det Sigma of the query", ("tab:red", "-"))}


class Seen(NamedTuple):
    """The first answers to Q queries of one direction, and how sure the model is of each."""
    name: str                         # of the data, for messages
    values: dict[str, np.ndarray]     # (Q,) of MEASURES, more where surer
    right: np.ndarray                 # (Q,) bool
    asked: np.ndarray                 # (Q,) the positions of the queries in their split
    answers: np.ndarray               # (Q,) the positions of their first answers
    owner: np.ndarray                 # (Q,) the image of each query
    gallery: int                      # items that were searched


def percent(p: float) -> str:
    """A probability for a reader; never 0% or 100%, which no model can promise."""
    return "under 1%" if p < 0.005 else "over 99%" if p >= 0.995 else f"{100 * p:.0f}%"


def look(e: Embeddings, t: dict[str, float]) -> dict[str, Seen]:
    """The first answers of both directions at temperatures t, with log det Sigma of the query where
    it is Gaussian."""
    spread = uncertainties(e)
    name, seen = f"{e.data_name} {e.split}".strip() or e.name, {}
    for side, (queries, _) in SIDES.items():
        rows = rows_of(e, side)
        of = answers(rows, t[side])
        values = {"posterior": of.posterior, "posterior_grouped": of.grouped, "max": of.max,
                  "log_det_query": -spread[queries][rows.asked] if queries in spread else None}
        seen[side] = Seen(name, {key: x for key, x in values.items() if x is not None}, of.right,
                          rows.asked, of.first, rows.owner, rows.gallery)
    return seen


def best_name(values: dict) -> str:
    """The posterior that a user should be shown: that of a whole group, or place, where there is
    one."""
    return next(name for name in SHOWN if name in values)


def fit(e: Embeddings) -> dict[str, Fitted]:
    """The temperature of each direction: {"t2i": ..., "i2t": ...}. Raises InputError where none
    fits."""
    rows = {side: rows_of(e, side) for side in SIDES}
    return {side: Fitted(temperature(*sample_scores(of)), of.queries, of.gallery)
            for side, of in rows.items()}


def judge(seen: Seen) -> tuple[dict, Seen]:
    """Judge the confidences of one direction: {measure: {"auroc", "aurc", "aurc_flat", and of
    probabilities "brier", "nll", "ece", "ece_floor", "mean"}}, and the answers with ties for what
    only rounding tells apart."""
    values = {name: selective.levelled(value) for name, value in seen.values.items()}
    results = {name: selective.ranking(value, seen.right)
               | (selective.probability(value, seen.right) if MEASURES[name].probability else {})
               for name, value in values.items()}
    return results, seen._replace(values=values)


# ---- tables and sentences

COLUMNS = {"auroc": "AUROC", "aurc": "AURC", "under": "under flat", "brier": "Brier", "nll": "NLL",
           "ece": "ECE", "ece_floor": "floor"}
LEGEND = (
    "AUROC: chance that a right answer has more confidence than a wrong one (0.5: guessing); AURC: "
    "wrong answers, %, among the surest k, mean over k; under flat: how far below a random order",
    "ECE: distance of probabilities from the share that is right; floor: the ECE of perfect "
    "probabilities; all: docs/confidence.md")
TITLES = {"t2i": "text to image: is the first answer right?",
          "i2t": "image to text: is the first answer right?"}


def tables(results: dict) -> list:
    """Tables of what `judge` said, {direction: ...}."""
    return [table(heading, COLUMNS, {MEASURES[name].title: of for name, of in results[side].items()
                                     if name in MEASURES}, cell)
            for side, heading in TITLES.items() if side in results]


def cell(key: str, numbers: dict) -> str:
    if key == "under":
        flat = numbers["aurc_flat"]
        return f"{100 * (1 - numbers['aurc'] / flat):.0f}%" if flat else "-"
    return digits(key, numbers, "" if key == "aurc" else "rho")


def sentences(results: dict, fitted: dict[str, Fitted], seen: dict[str, Seen]):
    """The legend of the tables, what they come to in words, and what they do not show."""
    yield from LEGEND
    for side, of in results.items():
        on = fitted[side]
        yield in_words(side, of, seen[side])
        grouped = "; the data say which captions are of one image" * ("posterior_grouped" in of)
        yield (f"{side}: T = {on.temperature:.4g}, fitted to {on.queries:,} queries over "
               f"{on.gallery:,} items{grouped}")


def in_words(side: str, of: dict, seen: Seen) -> str:
    """How many first answers are right: of all, of the surest and of the least sure."""
    best = best_name(of)
    bins = selective.reliability(seen.values[best], seen.right)
    right, queries = bins["right"], bins["queries"]
    return (f"{side}: {100 - of[best]['aurc_flat']:.1f}% of the first answers are right, "
            f"{100 * right[-1]:.0f}% of the {queries[-1]:,} surest and {100 * right[0]:.0f}% of "
            f"the {queries[0]:,} least sure")


# ---- all that --confidence, --sets and --judgements ask

class Report(NamedTuple):
    """Fitted numbers, and their worth on other items."""
    results: dict                     # parts of results.json
    tables: list                      # for the reader, as report.py has them
    lines: list[str]                  # sentences beside them
    calibration: dict                 # calibration.json
    seen: dict[str, Seen]             # of each direction, with --confidence; for pictures
    # how many photos fit each caption (M,), expected and by people; None without votes
    numbers: list[np.ndarray] | None = None


def split_images(e: Embeddings, share: float) -> tuple[Embeddings, Embeddings, np.ndarray]:
    """A random share of the images to calibrate on, the others to judge, and the positions of these."""
    order = np.random.default_rng(0).permutation(e.n_images)
    cut = round(share * e.n_images)
    check(0 < cut < e.n_images, f"--calibrate_on {share:g} leaves {cut} of {e.n_images} images to calibrate on; "
                                "give a share that leaves some on both sides")
    judged = np.sort(order[cut:])
    return e.subset(np.sort(order[:cut])), e.subset(judged), judged


def calibrate(e: Embeddings, opt, dev: Embeddings | None) -> Report:
    """Fit what the options ask for on dev, or where it is None on a share of the images, and judge it on the rest.
    Raises InputError where nothing can be fitted."""
    test, images, on = e, np.arange(e.n_images), opt.calibration or dev and f"{dev.data_name} {dev.split}"
    if dev is None:
        dev, test, images = split_images(e, opt.calibrate_on)
        on = f"a random {opt.calibrate_on:g} of the images"
    fitted, results, made, seen = fit(dev), {}, [], {}
    pair, numbers = of_pairs(rows_of(dev, "t2i")), None
    calibration = stored(dev, on, fitted) | {"pair": {"slope": pair.slope, "bias": pair.bias}}
    lines = [f"calibrated on {dev.n_images:,} images and {len(dev.caption_image):,} captions "
             f"({on}), judged on {test.n_images:,} and {len(test.caption_image):,}"]
    t = {side: x.temperature for side, x in fitted.items()}
    if opt.confidence:
        worth, seen = {}, look(test, t)
        for side in seen:
            worth[side], seen[side] = judge(seen[side])
        places = {"images": images, "captions": np.flatnonzero(np.isin(e.caption_image, images))}
        seen = {side: x._replace(asked=places[SIDES[side][0]][x.asked], answers=places[SIDES[side][1]][x.answers],
                                 owner=images[x.owner]) for side, x in seen.items()}
        made += tables(worth)
        lines += sentences(worth, fitted, seen)
        lines += [in_numbers(side, expected(rows_of(test, side), pair), pair) for side in SIDES]
        results["confidence"] = worth
    if opt.sets:
        if dev.n_images != test.n_images:
            dev, test = to_one_size(dev, test)
            lines.append(f"a promise holds for galleries of one size, so {test.n_images:,} images at "
                         "random are taken of the larger side")
        results["sets"], calibration["sets"] = promises.sets(dev, test, t, opt.sets)
        made += promises.set_tables(results["sets"])
    if opt.judgements:
        files = [people.read(path, e) for path in opt.judgements]
        results["people"], fits, numbers = people.judge(e, files, t, pair)
        calibration |= {"fits": fits._asdict()} if fits else {}
        made += people.tables(results["people"])
    return Report(results, made, lines, calibration, seen, numbers)


def in_numbers(side: str, count: np.ndarray, pair: Sigmoid) -> str:
    """Sentence on the expected number of items that fit each query (Q,)."""
    low, middle, high = np.quantile(count, (0.05, 0.5, 0.95))
    return (f"{side}: by p(pair) = sigmoid({pair.slope:.4g} s {pair.bias:+.4g}), fitted to own pairs "
            f"of dev against all others, {middle:.2g} items fit a query (median; 90% of the queries "
            f"{low:.2g} to {high:.2g})")


def to_one_size(dev: Embeddings, test: Embeddings) -> tuple[Embeddings, Embeddings]:
    """Both with as many images as the smaller one has, drawn at random: a limit that was found among few items would
    promise too much among many."""
    size = min(dev.n_images, test.n_images)
    return tuple(e if e.n_images == size else e.subset(np.sort(
        np.random.default_rng(1).permutation(e.n_images)[:size])) for e in (dev, test))
