"""Probabilities of a model's own logits, beside the fitted ones.

CLIP's probability is softmax(logit_scale s) over the items that were compared, SigLIP's sigmoid(logit_scale s +
logit_bias) of each pair. Both were learned on batches of pairs of another kind and number than the gallery that is
searched, so they are often far from the share of right answers.
"""
from typing import NamedTuple

import numpy as np
import torch

from cli import check
from confidence.calibration import SIDES
from confidence.measures import Outcomes
from confidence.posterior import answers, rows_of
from confidence.reliability import judge_probability
from evaluation.embeddings import Embeddings
from evaluation.report import SIDES as TITLES
from evaluation.report import number, table
from methods.volume import Sigmoid

LOGARITHM = 8.0       # scales below are rather logarithms: CLIP and SigLIP store ln 100 = 4.6 and more


class Logits(NamedTuple):
    """Logits of a model: scale times cosine, plus bias."""
    scale: float
    bias: float | None


def read_logits(path: str) -> Logits | None:
    """Read logit_scale and logit_bias of a file of embeddings.
    None where it has neither.

    Raises InputError where they are not finite numbers, the scale is not above 0, or the bias stands alone.
    """
    values = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in {"logit_scale", "logit_bias"} & set(arrays.files):
            x = arrays[name]
            check(x.size == 1 and x.dtype.kind in "fiu" and np.isfinite(x).all(),
                  f"{path}: {name} is {x.dtype} of shape {x.shape}, and must be one finite number; write "
                  f"{name}=float(...)")
            values[name] = float(x.item())
    if not values:
        return None
    scale = values.get("logit_scale")
    check(scale is not None, f"{path} has a logit_bias and no logit_scale; write both, or leave the bias out")
    check(scale > 0, f"{path}: logit_scale is {scale:g}, and must be above 0: the factor of the cosine, such as 100 "
                     "for CLIP; write np.exp(logit_scale) where the model keeps its logarithm")
    return Logits(scale, values.get("logit_bias"))


def judge_logits(e: Embeddings, logits: Logits, outcomes: dict[str, Outcomes], pair: Sigmoid) -> dict:
    """Judge probabilities of the first answers by direction and kind.
    Each is {"mean", "right": share, "ece", "ece_floor"}.

    Kinds: "own_softmax"; "own_sigmoid" where there is a bias; "softmax" and "sigmoid" are fitted on dev. pair: that.
    """
    results = {}
    for side in SIDES:
        first, x = answers(rows_of(e, side), logits.scale), outcomes[side]
        probabilities = {"own_softmax": first.posterior, "softmax": x.confidences["posterior"],
                         "sigmoid": pair(torch.from_numpy(first.max)).numpy()}
        if logits.bias is not None:
            own = Sigmoid(logits.scale, logits.bias)
            probabilities["own_sigmoid"] = own(torch.from_numpy(first.max).double()).numpy()
        judged = {kind: judge_probability(probabilities[kind], x.right) | {"right": float(x.right.mean())}
                  for kind in KINDS if kind in probabilities}
        results[side] = {kind: {key: numbers[key] for key in COLUMNS} for kind, numbers in judged.items()}
    return results


# ---- tables and sentences

COLUMNS = {"mean": "mean, %", "right": "right, %", "ece": "ECE", "ece_floor": "floor"}
KINDS = {"own_softmax": "the model's own softmax", "own_sigmoid": "the model's own sigmoid",
         "softmax": "softmax fitted on dev", "sigmoid": "sigmoid of pairs fitted on dev"}


def tables(results: dict) -> list:
    """Tables of `judge_logits` by direction."""
    def cell(key: str, numbers: dict) -> str:
        return number(100 * numbers[key]) if key in ("mean", "right") else number(numbers[key], 3)
    return [table(f"{TITLES[side]}: the probability of the first answer, and how often it is right", COLUMNS,
                  {KINDS[kind]: x for kind, x in kinds.items()}, cell) for side, kinds in results.items()]


def sentences(results: dict, logits: Logits):
    """Yield what is wrong with the model's own probabilities, in words."""
    for side, kinds in results.items():
        for kind in ("own_softmax", "own_sigmoid"):
            if kind in kinds:
                x = kinds[kind]
                gap = x["mean"] - x["right"]
                verdict = ("right on average, too high for some queries and too low for others"
                           if abs(gap) < x["ece"] / 2 else "too high" if gap > 0 else "too low")
                verdict = "about right" if x["ece"] < 2 * x["ece_floor"] else verdict
                yield (f"{side}: {KINDS[kind]} says {100 * x['mean']:.1f}% on average, and {100 * x['right']:.1f}% of "
                       f"the first answers are right: it is {verdict}")
    if logits.scale < LOGARITHM:
        yield (f"note: logit_scale {logits.scale:g} is small; CLIP and SigLIP keep the logarithm of the factor that is "
               "meant here, so write np.exp(logit_scale)")
