"""How sure a model is of its first answers: confidences of every kind, fitted on the dev split,
judged on another.

The posterior over the gallery is the measure to use; all others stand beside it, so that one sees
what each is worth (`evaluate.py --confidence`). `fit` sees the queries to calibrate on, `judge`
those to report on.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from cli import check
from evaluation import report, selective
from evaluation.assess import uncertainties, without_nan
from evaluation.calibration import SIDES, Fitted, Isotonic, Logistic
from evaluation.posterior import Answers, answers_of_both, part, rows_of, sample_scores, temperature
from evaluation.subjects import Subject
from similarities import Embedding

SIZES = (500, 1000, 5000)             # images of the smaller galleries that are judged too
SHOWN = ("overlap", "posterior_grouped", "posterior")      # users see the first that there is


def logit(p, std):
    p = np.clip(p.astype(float), selective.LEAST, 1 - 1e-7)
    return np.log(p / (1 - p))


class Measure(NamedTuple):
    """A confidence, more where surer."""
    title: str                        # in tables
    look: tuple[str, str]             # colour and style of its curve
    of_boxes: str = ""                # its title where queries are phrases and answers boxes
    # what the logistic sees; std: deviation of the scores; `logit` of probabilities
    feature: Callable = lambda value, std: value


def log_margin(margin, std):
    return np.log(np.maximum(margin, 1e-6 * np.maximum(std, 1e-30)))


def minus_log(trace, std):
    return -np.log(-trace)


MEASURES = {
    "posterior": Measure("posterior of the answer", ("tab:blue", "-"),
                         "posterior of the first box", logit),
    "posterior_grouped": Measure("the same, summed over its image's captions", ("tab:blue", "-"),
                                 feature=logit),
    "overlap": Measure("", ("tab:blue", "-"), "posterior of all boxes at its place", logit),
    "entropy": Measure("-entropy of the posterior", ("deepskyblue", "-.")),
    "entropy_each": Measure("the same, each caption by itself", ("deepskyblue", ":")),
    "max": Measure("maximum score", ("tab:green", "-")),
    "margin": Measure("margin to the second", ("tab:green", "--"),
                      "margin to the best box elsewhere", log_margin),
    "std": Measure("deviation of the scores", ("tab:green", "-.")),
    "log_det_query": Measure("-log det Sigma of the query", ("tab:red", "-"),
                             "-log det Sigma of the phrase"),
    "log_det_answer": Measure("-log det Sigma of the answer", ("tab:red", "--"),
                              "-log det Sigma of the box"),
    "trace_query": Measure("-trace Sigma of the query", ("tab:orange", "-"), feature=minus_log),
    "trace_answer": Measure("-trace Sigma of the answer", ("tab:orange", "--"), feature=minus_log),
    "isotonic": Measure("posterior through an isotonic map", ("deepskyblue", "--"),
                        "overlap through an isotonic map", logit),
    "stacked": Measure("logistic of all of these", ("tab:purple", "-"), feature=logit),
    "stacked_without_sigma": Measure("logistic without Sigma", ("tab:purple", "--"), feature=logit)}


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


def trace(e: Embedding) -> torch.Tensor:
    """The trace of Sigma of every item: (N, D) or spherical (N, 1) -> (N,)."""
    return e.log_var.exp().expand_as(e.mean).sum(1)


def of_answers(of: Answers) -> dict[str, np.ndarray]:
    """The confidences (Q,) that scores give: the posterior and MTEB's three abstention functions
    (max, margin, std)."""
    values = {"posterior": of.posterior, "posterior_grouped": of.grouped, "entropy": -of.entropy,
              "entropy_each": None if of.entropy_each is None else -of.entropy_each, "max": of.max,
              "margin": of.margin, "std": of.std}
    return {name: value for name, value in values.items() if value is not None}


def look(subject: Subject, t: dict[str, float], each: float | None) -> dict[str, Seen]:
    """The first answers of both directions at temperatures t, and at `each` those of image to text,
    with what Sigma says of the query and of its answer where they are Gaussian."""
    sigma = {"log_det": uncertainties(subject), "trace": uncertainties(subject, trace)}
    name, seen = f"{subject.data_name} {subject.split}".strip() or subject.name, {}
    for side, (rows, of) in answers_of_both(subject, t, each=each).items():
        values = of_answers(of)
        for kind, spread in sigma.items():
            for what, which, at in zip(("query", "answer"), SIDES[side], (rows.asked, of.first)):
                if which in spread:
                    values[f"{kind}_{what}"] = -spread[which][at]
        seen[side] = Seen(name, values, of.right, rows.asked, of.first, rows.owner, rows.gallery)
    return seen


def best_name(values: dict) -> str:
    """The posterior that a user should be shown: that of a whole group, or place, where there is
    one."""
    return next(name for name in SHOWN if name in values)


def fit(subject: Subject) -> dict[str, Fitted]:
    """What is fitted to the queries of each direction: {"t2i": ..., "i2t": ...}. Raises InputError
    where all first answers are right, or all wrong: then nothing can be told apart."""
    samples = {side: sample_scores(rows_of(subject, side)) for side in SIDES}
    t, each = {side: temperature(*sample) for side, sample in samples.items()}, None
    if np.bincount(subject.caption_image).max() > 1:                 # captions of some image
        each = temperature(*samples["i2t"], each=True)
    return {side: fit_maps(seen, side, t[side], each if side == "i2t" else None)
            for side, seen in look(subject, t, each).items()}


def fit_maps(seen: Seen, side: str, t: float, each: float | None = None) -> Fitted:
    """The maps from confidences to the probability that the first answer is right."""
    values, features = with_features(seen, side)
    points = {name: value for name, value in features.items()
              if not name.startswith(("log_det", "trace"))}
    without = Logistic.fit(points, seen.right) if len(points) < len(features) else None
    return Fitted(t, each, Isotonic.fit(values[best_name(values)], seen.right),
                  Logistic.fit(features, seen.right), without, len(seen.right), seen.gallery)


def with_features(seen: Seen, side: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The confidences (Q,) by name with ties for what only rounding tells apart, and what the
    logistic sees of them. Raises InputError where all answers are right, or none."""
    right = seen.right
    check(right.any() and not right.all(),
          f"{'all' if right.all() else 'none'} of the {len(right):,} first answers of {seen.name} "
          f"({side}) {'are' if right.all() else 'is'} right, so no confidence can tell them "
          "apart; leave --confidence out, or calibrate on more items")
    values = {name: selective.levelled(value) for name, value in seen.values.items()}
    return values, {name: MEASURES[name].feature(value, values["std"])
                    for name, value in values.items()}


def judge(seen: Seen, side: str, fitted: Fitted) -> tuple[dict, Seen]:
    """What every confidence of one direction is worth: {measure: {"auroc", "aurc", ..., and of
    probabilities "brier", "nll", "ece", "ece_floor"}}, with "above_posterior" {"difference", "low",
    "high"} of the AUROC by a bootstrap over images. Beside it the answers with the confidences that
    were fitted."""
    right, (values, features) = seen.right, with_features(seen, side)
    best = best_name(values)
    values["isotonic"] = selective.levelled(fitted.isotonic(values[best]))
    values["stacked"] = fitted.stacked(features)
    if fitted.without_sigma is not None:
        values["stacked_without_sigma"] = fitted.without_sigma(features)
    results = {name: selective.ranking(value, right)
               | (selective.probability(value, right) if MEASURES[name].feature is logit else {})
               for name, value in values.items()}
    pairs = [(name, best) for name in values if name != best]
    if fitted.without_sigma is not None:
        pairs.append(("stacked", "stacked_without_sigma"))
    differences = selective.auroc_differences(values, right, seen.owner, pairs)
    for (name, base), difference in differences.items():
        results[name]["above_posterior" if base == best else "above_without_sigma"] = difference
    results[best]["reliability"] = selective.reliability(values[best], right)
    return results, seen._replace(values=values)


def judge_both(subject: Subject,
               fitted: dict[str, Fitted]) -> tuple[dict[str, dict], dict[str, Seen]]:
    """{direction: what `judge` says}, and the answers. With "galleries", the posterior at the same
    temperature in smaller galleries of random images: {number of images: {"right", "auroc", "ece",
    "ece_floor", "mean"}}. A probability holds for the gallery that it was fitted to."""
    t, results = {side: of.temperature for side, of in fitted.items()}, {}
    seen = look(subject, t, fitted["i2t"].temperature_each)
    for side in seen:
        results[side], seen[side] = judge(seen[side], side, fitted[side])
    order = np.random.default_rng(0).permutation(subject.n_images)
    for size in (size for size in SIZES if size < subject.n_images):
        for side, (_, of) in answers_of_both(part(subject, np.sort(order[:size])), t).items():
            values = of_answers(of)
            p = selective.levelled(values[best_name(values)])
            results[side].setdefault("galleries", {})[str(size)] = {
                "right": 100 * float(of.right.mean()), "auroc": selective.auroc(p, of.right),
                **selective.probability(p, of.right)}
    return results, seen


# ---- tables and sentences

COLUMNS = {"auroc": "AUROC", "aurc": "AURC", "under": "under flat", "e_aurc": "E-AURC",
           "nauc": "nAUC", "coverage_at_10": "cov@10", "rho": "rho", "minus_s_r2": "-S R2",
           "brier": "Brier", "nll": "NLL", "ece": "ECE", "ece_floor": "floor"}
LEGEND = (
    "AUROC: chance that a right answer has more confidence than a wrong one (0.5: guessing); AURC: "
    "wrong answers, %, among the surest k, mean over k; under flat: how far below a random order",
    "cov@10: queries, %, that can be answered with 10% wrong; ECE: distance of probabilities from "
    "the share that is right; floor: the ECE of perfect probabilities; all: docs/confidence.md")
TITLES = {"t2i": "text to image: is the first answer right?",
          "i2t": "image to text: is the first answer right?",
          "phrases": "phrases: is the first box right?"}


def title(name: str, side: str) -> str:
    """What a measure is called in the tables of one kind of queries."""
    return side == "phrases" and MEASURES[name].of_boxes or MEASURES[name].title


def digits(key: str, numbers: dict, kind: str = "rho") -> str:
    """A cell: the number of this name with the digits of a correlation, empty where it is missing."""
    return report.number(without_nan(numbers[key]), kind) if key in numbers else ""


def table(heading: str, columns: dict[str, str], rows: dict[str, dict],
          cell: Callable[[str, dict], str] = digits) -> tuple:
    """A table as report.py has them. columns: {name of a number: its head}; rows: {label: numbers}."""
    return heading, [("", list(columns.values()))], [
        (label, [cell(key, numbers) for key in columns]) for label, numbers in rows.items()]


def tables(results: dict) -> list:
    """Tables of what `judge` said, {direction: ...}."""
    return [table(heading, COLUMNS, {title(name, side): of for name, of in results[side].items()
                                     if name in MEASURES}, cell)
            for side, heading in TITLES.items() if side in results]


def cell(key: str, numbers: dict) -> str:
    if key == "under":
        flat = numbers["aurc_flat"]
        return f"{100 * (1 - numbers['aurc'] / flat):.0f}%" if flat else "-"
    return digits(key, numbers, "" if key in ("aurc", "e_aurc", "coverage_at_10") else "rho")


def sentences(results: dict, fitted: dict[str, Fitted]):
    """The legend of the tables, what they come to in words, and what they do not show."""
    yield from LEGEND
    for side, of in results.items():
        on = fitted[side]
        yield in_words(side, of)
        grouped = "; the data say which captions are of one image" * ("posterior_grouped" in of)
        yield (f"{side}: T = {on.temperature:.4g}, fitted to {on.queries:,} queries over "
               f"{on.gallery:,} items{grouped}")
        yield from of_sigma(side, of)
        for size, numbers in of.get("galleries", {}).items():
            yield (f"{side}, gallery of {int(size):,} random images: {numbers['right']:.1f}% "
                   f"right, mean posterior {100 * numbers['mean']:.1f}%, AUROC "
                   f"{numbers['auroc']:.3f}, ECE {numbers['ece']:.3f} (floor "
                   f"{numbers['ece_floor']:.3f})")


def in_words(side: str, of: dict) -> str:
    """How many first answers are right: of all, of the surest and of the least sure."""
    best = of[best_name(of)]
    right, queries = best["reliability"]["right"], best["reliability"]["queries"]
    return (f"{side}: {100 - best['aurc_flat']:.1f}% of the first answers are right, "
            f"{100 * right[-1]:.0f}% of the {queries[-1]:,} surest and {100 * right[0]:.0f}% of "
            f"the {queries[0]:,} least sure")


def of_sigma(side: str, of: dict):
    """Whether Sigma adds to what the scores know; nothing where there is none. of: what `judge`
    said."""
    if "above_without_sigma" in of["stacked"]:
        d = of["stacked"]["above_without_sigma"]
        verdict = ("adds" if d["low"] > 0 else "takes away" if d["high"] < 0 else
                   "adds nothing beyond chance")
        yield (f"{side}: does Sigma add anything to a logistic without it? AUROC "
               f"{d['difference']:+.3f}, 95% interval {d['low']:+.3f} to {d['high']:+.3f}: it "
               f"{verdict}")
