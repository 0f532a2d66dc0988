"""How sure a model is of its first answers, and rightly? The posterior over the gallery is the
measure to use; the maximum score and log det Sigma of the query stand beside it, so that one sees
what each is worth (`evaluate.py --confidence`).

`fit` sees the queries to calibrate on, `judge` those to report on.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evaluation import report, selective
from evaluation.assess import uncertainties, without_nan
from evaluation.calibration import SIDES, Fitted
from evaluation.posterior import answers, rows_of, sample_scores, temperature
from evaluation.subjects import Subject

SHOWN = ("overlap", "posterior_grouped", "posterior")      # users see the first that there is


class Measure(NamedTuple):
    """A confidence, more where surer."""
    title: str                        # in tables
    look: tuple[str, str]             # colour and style of its curve
    of_boxes: str = ""                # its title where queries are phrases and answers boxes
    probability: bool = False


MEASURES = {
    "posterior": Measure("posterior of the answer", ("tab:blue", "-"),
                         "posterior of the first box", True),
    "posterior_grouped": Measure("the same, summed over its image's captions", ("tab:blue", "-"),
                                 probability=True),
    "overlap": Measure("", ("tab:blue", "-"), "posterior of all boxes at its place", True),
    "max": Measure("maximum score", ("tab:green", "-")),
    "log_det_query": Measure("-log det Sigma of the query", ("tab:red", "-"),
                             "-log det Sigma of the phrase")}


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


def look(subject: Subject, t: dict[str, float]) -> dict[str, Seen]:
    """The first answers of both directions at temperatures t, with log det Sigma of the query where
    it is Gaussian."""
    spread = uncertainties(subject)
    name, seen = f"{subject.data_name} {subject.split}".strip() or subject.name, {}
    for side, (queries, _) in SIDES.items():
        rows = rows_of(subject, side)
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


def fit(subject: Subject) -> dict[str, Fitted]:
    """The temperature of each direction: {"t2i": ..., "i2t": ...}. Raises InputError where none
    fits."""
    rows = {side: rows_of(subject, side) for side in SIDES}
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
