"""How sure a model is of its first answers: confidences of every kind, fitted on the dev split and judged on another.

`fit` sees the items to calibrate on, `judge` those to report on. The posterior over the gallery is the measure to use;
all others stand beside it, so that one sees what each is worth (`evaluate.py --confidence`).
"""
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError
from evaluation import selective
from evaluation.answers import Answers, Rows, answers_of_both, rows_of, sample_scores
from evaluation.assess import uncertainties
from evaluation.calibration import Isotonic, Logistic, temperature
from evaluation.subjects import Subject
from similarities import Embedding

SIDES = {"t2i": ("captions", "images"), "i2t": ("images", "captions")}    # direction: (queries, items)
FITTED = 2 ** 24                      # scores that a temperature is fitted to, 64 MiB
SIZES = (500, 1000, 5000)             # images of the smaller galleries that are judged too
SIGMA = ("log_det_query", "log_det_answer", "trace_query", "trace_answer")
PROBABILITIES = ("posterior", "posterior_grouped", "overlap", "isotonic", "stacked", "stacked_without_sigma")
SHOWN = ("overlap", "posterior_grouped", "posterior")       # the first of these that there is, users are shown
NAMES = {"posterior": "posterior of the answer", "posterior_grouped": "the same, summed over its image's captions",
         "isotonic": "posterior through an isotonic map", "entropy": "-entropy of the posterior",
         "entropy_each": "the same, each caption by itself",
         "max": "maximum score", "margin": "margin to the second", "std": "deviation of the scores",
         "log_det_query": "-log det Sigma of the query", "log_det_answer": "-log det Sigma of the answer",
         "trace_query": "-trace Sigma of the query", "trace_answer": "-trace Sigma of the answer",
         "stacked": "logistic of all of these", "stacked_without_sigma": "logistic without Sigma"}


class Fitted(NamedTuple):
    """What was fitted for one direction, and on how much."""
    temperature: float
    temperature_each: float | None    # of image to text: that of each right caption by itself
    isotonic: Isotonic                # of the posterior; of the grouped one where there is one
    stacked: Logistic
    without_sigma: Logistic | None    # None where no side is Gaussian
    queries: int
    gallery: int

    def plain(self) -> dict:
        """What calibration.json holds of it."""
        return {**self._asdict(), "isotonic": self.isotonic._asdict(), "stacked": self.stacked._asdict(),
                "without_sigma": self.without_sigma and self.without_sigma._asdict()}


class Seen(NamedTuple):
    """The first answers of Q queries of one direction, for pictures. Positions are those in the whole subject."""
    values: dict[str, np.ndarray]     # (Q,) of each measure, more where surer
    right: np.ndarray                 # (Q,) bool
    asked: np.ndarray                 # (Q,) the images or captions that are the queries
    answers: np.ndarray               # (Q,) the captions or images that are their first answers


def percent(p: float) -> str:
    """A probability for a reader; never 0% or 100%, which no model can promise."""
    return "under 1%" if p < 0.005 else "over 99%" if p >= 0.995 else f"{100 * p:.0f}%"


def trace(e: Embedding) -> torch.Tensor:
    """The trace of Sigma of every item: (N, D) or spherical (N, 1) -> (N,)."""
    return e.log_var.exp().expand_as(e.mean).sum(1)


def measures(subject: Subject, side: str, rows: Rows, found: Answers) -> dict[str, np.ndarray]:
    """Confidences of each query, all (Q,) and more where surer: the posterior and MTEB's three abstention functions
    (max, margin, std), and what Sigma says of the query and of its answer where they are Gaussian."""
    values = {"posterior": found.posterior}
    if found.grouped is not None:
        values["posterior_grouped"] = found.grouped
    values["entropy"] = -found.entropy
    if found.entropy_each is not None:
        values["entropy_each"] = -found.entropy_each
    values |= {"max": found.max, "margin": found.margin, "std": found.std}
    queries, items = SIDES[side]
    for name, of in (("log_det", uncertainties(subject)), ("trace", uncertainties(subject, trace))):
        if queries in of:
            values[f"{name}_query"] = -of[queries][rows.asked]
        if items in of:
            values[f"{name}_answer"] = -of[items][rows.items[found.first]]
    return values


def features(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the logistic sees: the same with probabilities as logits, and margins and traces as logarithms."""
    seen = {}
    for name, value in values.items():
        if name in PROBABILITIES:
            p = np.clip(value.astype(float), selective.LEAST, 1 - 1e-7)
            value = np.log(p / (1 - p))
        elif name == "margin":
            value = np.log(np.maximum(value, 1e-6 * np.maximum(values["std"], 1e-30)))
        elif name.startswith("trace"):
            value = -np.log(-value)
        seen[name] = value
    return seen


def best_name(values: dict) -> str:
    """The posterior that a user should be shown: that of a whole group, or place, where there is one."""
    return next(name for name in SHOWN if name in values)


def fit(subject: Subject) -> dict[str, Fitted]:
    """Fit temperature, isotonic map and logistic to the queries of each direction: {"t2i": ..., "i2t": ...}.

    Raises InputError where all first answers are right, or all wrong: then nothing can be told apart.
    """
    sample = {side: sample_scores(rows_of(subject, side), FITTED) for side in SIDES}
    t = {side: temperature(*drawn) for side, drawn in sample.items()}
    several = len(subject.caption_image) > len(np.unique(subject.caption_image))    # captions of some image
    each, fitted = temperature(*sample["i2t"], each=True) if several else None, {}
    for side, (rows, found) in answers_of_both(subject, t, each=each).items():
        refuse_one_class(found.right, f"{subject.data_name} {subject.split}".strip() or subject.name, side)
        fitted[side] = fit_maps(measures(subject, side, rows, found), found.right, t[side],
                                each if side == "i2t" else None, rows.gallery)
    return fitted


def fit_maps(values: dict[str, np.ndarray], right: np.ndarray, t: float, each: float | None, gallery: int) -> Fitted:
    """The maps from confidences (Q,), by measure, to the probability that the first answer is right (Q,) bool."""
    values = {name: selective.levelled(value) for name, value in values.items()}
    seen = features(values)
    points = {name: value for name, value in seen.items() if name not in SIGMA}
    return Fitted(t, each, Isotonic.fit(values[best_name(values)], right), Logistic.fit(seen, right),
                  Logistic.fit(points, right) if len(points) < len(seen) else None, len(right), gallery)


def refuse_one_class(right: np.ndarray, name: str, side: str) -> None:
    if right.all() or not right.any():
        raise InputError(f"{'all' if right.all() else 'none'} of the {len(right):,} first answers of {name} ({side}) "
                         f"{'are' if right.all() else 'is'} right, so no confidence can tell them apart; leave "
                         "--confidence out, or calibrate on more items")


def with_maps(values: dict[str, np.ndarray], fitted: Fitted) -> dict[str, np.ndarray]:
    """The confidences (Q,) by measure, and what was fitted, of each query."""
    values = {name: selective.levelled(value) for name, value in values.items()}
    seen = features(values)
    values["isotonic"] = selective.levelled(fitted.isotonic(values[best_name(values)]))
    values["stacked"] = fitted.stacked(seen)
    if fitted.without_sigma is not None:
        values["stacked_without_sigma"] = fitted.without_sigma(seen)
    return values


def temperatures(fitted: dict[str, Fitted]) -> dict[str, float]:
    return {side: of.temperature for side, of in fitted.items()}


def judge(subject: Subject, fitted: dict[str, Fitted]) -> dict[str, tuple[dict, dict[str, np.ndarray], Answers]]:
    """What the confidences of each direction are worth, the confidences (Q,) themselves (see `judge_side`), and the
    answers."""
    both = answers_of_both(subject, temperatures(fitted), each=fitted["i2t"].temperature_each)
    return {side: (*judge_side(subject, side, *both[side], of), both[side][1]) for side, of in fitted.items()}


def judge_side(subject: Subject, side: str, rows: Rows, found: Answers,
               fitted: Fitted) -> tuple[dict, dict[str, np.ndarray]]:
    """What every confidence of one direction is worth: {measure: {"auroc", "aurc", ..., and of probabilities "brier",
    "nll", "ece", "ece_floor"}}, with "above_posterior" {"difference", "low", "high"} of the AUROC. Beside it the
    confidences (Q,)."""
    refuse_one_class(found.right, f"{subject.data_name} {subject.split}".strip() or subject.name, side)
    values = with_maps(measures(subject, side, rows, found), fitted)
    return worth(values, found.right, rows.owner), values


def worth(values: dict[str, np.ndarray], right: np.ndarray, owner: np.ndarray) -> dict:
    """What every confidence (Q,) is worth, see `judge_side`. right (Q,) bool; owner (Q,): the image of each query, of
    which the intervals are bootstraps."""
    results = {name: selective.ranking(value, right)
               | (selective.probability(value, right) if name in PROBABILITIES else {})
               for name, value in values.items()}
    best = best_name(values)
    for name, difference in selective.auroc_differences(values, right, owner, best).items():
        results[name]["above_posterior"] = difference
    if "stacked_without_sigma" in values:
        pair = {name: values[name] for name in ("stacked", "stacked_without_sigma")}
        results["stacked"]["above_without_sigma"] = selective.auroc_differences(
            pair, right, owner, "stacked_without_sigma")["stacked"]
    results[best]["reliability"] = selective.reliability(values[best], right)
    return results


def galleries(subject: Subject, fitted: dict[str, Fitted]) -> dict[str, dict[str, dict]]:
    """The posterior in smaller galleries of random images, with the same temperature: {direction: {number of images:
    {"right", "auroc", "ece", "ece_floor", "mean"}}}. A probability holds for the gallery that it was fitted to."""
    results, order = {side: {} for side in fitted}, np.random.default_rng(0).permutation(subject.n_images)
    for size in (size for size in SIZES if size < subject.n_images):
        for side, (_, found) in answers_of_both(subject, temperatures(fitted), np.sort(order[:size])).items():
            p = selective.levelled(found.posterior if found.grouped is None else found.grouped)
            results[side][str(size)] = {"right": 100 * float(found.right.mean()),
                                        "auroc": selective.auroc(p, found.right),
                                        **selective.probability(p, found.right)}
    return results


# ---- tables and sentences

COLUMNS = {"auroc": "AUROC", "aurc": "AURC", "under": "under flat", "e_aurc": "E-AURC", "nauc": "nAUC",
           "coverage_at_10": "cov@10", "rho": "rho", "minus_s_r2": "-S R2", "brier": "Brier", "nll": "NLL",
           "ece": "ECE", "ece_floor": "floor"}
TITLES = {"t2i": "text to image: is the first answer right?", "i2t": "image to text: is the first answer right?",
          "phrases": "phrases: is the first box right?"}


def tables(results: dict, names: dict[str, str] = NAMES) -> list:
    """Tables of `judge` of both directions, as report.py has them. names: {measure: what it is called}."""
    made = []
    for side, title in TITLES.items():
        if side in results:
            rows = [(names[name], [cell(key, numbers) for key in COLUMNS]) for name, numbers in results[side].items()
                    if name in names]
            made.append((title, [("", list(COLUMNS.values()))], rows))
    return made


def cell(key: str, numbers: dict) -> str:
    if key == "under":
        return f"{100 * (1 - numbers['aurc'] / numbers['aurc_flat']):.0f}%" if numbers["aurc_flat"] else "-"
    value = numbers.get(key)
    if value is None or np.isnan(value):
        return "-" if key in numbers else ""
    return f"{value:.1f}" if key in ("aurc", "e_aurc", "coverage_at_10") else f"{value:.3f}"


def sentences(results: dict, fitted: dict[str, Fitted]):
    """What the tables do not show, for the reader of the report."""
    for side, of in results.items():
        if side not in TITLES:
            continue
        on = fitted[side]
        grouped = "; the data say which captions are of one image" * ("posterior_grouped" in of)
        yield f"{side}: T = {on.temperature:.4g}, fitted to {on.queries:,} queries over {on.gallery:,} items{grouped}"
        yield from of_sigma(side, of)
        for size, numbers in of.get("galleries", {}).items():
            yield (f"{side}, gallery of {int(size):,} random images: {numbers['right']:.1f}% right, mean posterior "
                   f"{100 * numbers['mean']:.1f}%, AUROC {numbers['auroc']:.3f}, ECE {numbers['ece']:.3f} (floor "
                   f"{numbers['ece_floor']:.3f})")


def of_sigma(side: str, of: dict):
    """Whether Sigma adds to what the scores know; nothing where there is none. of: what `worth` returned."""
    if "above_without_sigma" in of["stacked"]:
        d = of["stacked"]["above_without_sigma"]
        verdict = "adds" if d["low"] > 0 else "takes away" if d["high"] < 0 else "adds nothing beyond chance"
        yield (f"{side}: does Sigma add anything to a logistic without it? AUROC {d['difference']:+.3f}, 95% interval "
               f"{d['low']:+.3f} to {d['high']:+.3f}: it {verdict}")
