"""Measures of confidence in first answers, and what each is worth.

The posterior over the gallery is the measure to use. The maximum score and log det Sigma of the query stand beside it,
so that one sees what the posterior adds.
"""
from typing import NamedTuple

import numpy as np

import metrics
from confidence import reliability
from confidence.calibration import DIRECTIONS
from confidence.posterior import find_answers, rows_of
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.report import SIDES, number, table
from metrics import Sigmoid

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
    "own_sigmoid": Measure("the model's own sigmoid", None, True),
    "sigmoid": Measure("sigmoid of pairs fitted on dev", None, True),
    "max": Measure("maximum score", ("tab:green", "-")),
    "log_det_query": Measure("-log det Sigma of the query", ("tab:red", "-"))}


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


def measure_confidences(e: Embeddings, temperatures: dict[str, float], pair: Sigmoid | None = None,
                        logits: tuple[float, float | None] | None = None) -> dict[str, Outcomes]:
    """Measure the confidence in the first answers of both directions.
    logits: a model's own scale and bias. Then also its softmax(scale s) over the gallery, as CLIP has it, with a bias
    its sigmoid(scale s + bias) of a pair, as SigLIP has it, and the probability of a pair that is fitted on dev. The
    first two were learned on batches of other pairs, so they are often far from the share of right answers."""
    log_det, outcomes = uncertainties(e), {}
    for side, (modality, _) in DIRECTIONS.items():
        rows = rows_of(e, side)
        first = find_answers(rows, temperatures[side])
        values = {"posterior": first.posterior, "posterior_grouped": first.grouped, "max": first.max,
                  "log_det_query": -log_det[modality][rows.queries] if modality in log_det else None}
        if logits:
            scale, bias = logits
            values |= {"own_softmax": find_answers(rows, scale).posterior, "sigmoid": pair(first.max).numpy(),
                       "own_sigmoid": None if bias is None else Sigmoid(scale, bias)(first.max).numpy()}
        values = {name: metrics.join_rounded(x) for name, x in values.items() if x is not None}
        outcomes[side] = Outcomes(values, first.right, rows.queries, first.first, rows.owner)
    return outcomes


def judge_confidences(outcomes: Outcomes) -> dict[str, dict]:
    """Judge the confidences of one direction by whether the answers are right.
    Returns {measure: {"auroc", "aurc", "aurc_flat", and of probabilities "brier", "nll", "ece", "ece_floor", "mean"}}.
    """
    return {name: reliability.judge_order(x, outcomes.right)
            | (reliability.judge_probability(x, outcomes.right) if MEASURES[name].probability else {})
            for name, x in outcomes.confidences.items()}


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


def describe_confidences(results: dict, calibration: dict, outcomes: dict[str, Outcomes]):
    """Yield the legend of the tables, a summary in words, and the temperatures."""
    yield from LEGEND
    for side, measures in results.items():
        fitted, best = calibration[side], outcomes[side].best
        bins = reliability.reliability(outcomes[side].confidences[best], outcomes[side].right)
        right, queries = bins["right"], bins["queries"]
        yield (f"{side}: {100 - measures[best]['aurc_flat']:.1f}% of the first answers are right, "
               f"{100 * right[-1]:.0f}% of the {queries[-1]:,} surest and {100 * right[0]:.0f}% of the {queries[0]:,} "
               "least sure")
        grouped = "; the data say which captions are of one image" * ("posterior_grouped" in measures)
        yield (f"{side}: T = {fitted['temperature']:.4g}, fitted to {fitted['queries']:,} queries over "
               f"{fitted['gallery']:,} items{grouped}")


def describe_logits(results: dict):
    """Yield in words what is wrong with the model's own probabilities, where it has any."""
    for side, measures in results.items():
        for name in ("own_softmax", "own_sigmoid"):
            if name in measures:
                x, right = measures[name], 1 - measures[name]["aurc_flat"] / 100
                gap = x["mean"] - right
                verdict = ("about right" if x["ece"] < 2 * x["ece_floor"] else
                           "right on average, too high for some queries and too low for others"
                           if abs(gap) < x["ece"] / 2 else "too high" if gap > 0 else "too low")
                yield (f"{side}: {MEASURES[name].title} says {100 * x['mean']:.1f}% on average, and "
                       f"{100 * right:.1f}% of the first answers are right: it is {verdict}")
