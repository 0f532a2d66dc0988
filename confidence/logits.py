"""Probabilities of a model's own logits, beside the fitted ones.

CLIP's probability is softmax(logit_scale s) over the items that were compared, SigLIP's sigmoid(logit_scale s +
logit_bias) of each pair. Both were learned on batches of pairs of another kind and number than the gallery that is
searched, so they are often far from the share of right answers.
"""
import numpy as np

from cli import check
from confidence.measures import MEASURES, Logits

OWN = {"own_softmax", "own_sigmoid"}
LOGARITHM = 8.0       # scales below are rather logarithms: CLIP and SigLIP store ln 100 = 4.6 and more


def read_logits(path: str, notes: list[str]) -> Logits | None:
    """Read logit_scale and logit_bias of a file of embeddings.
    None where it has neither. A note is added where the scale seems to be a logarithm.

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
    if scale < LOGARITHM:
        notes.append(f"logit_scale {scale:g} is small; CLIP and SigLIP keep the logarithm of the factor that is meant "
                     "here, so write np.exp(logit_scale)")
    return Logits(scale, values.get("logit_bias"))


def sentences(measures: dict[str, dict], side: str):
    """Yield in words what is wrong with the model's own probabilities.
    measures: of one direction, as `measures.judge` returns them."""
    for name in sorted(OWN & set(measures), reverse=True):
        x, right = measures[name], 1 - measures[name]["aurc_flat"] / 100
        gap = x["mean"] - right
        verdict = ("right on average, too high for some queries and too low for others" if abs(gap) < x["ece"] / 2 else
                   "too high" if gap > 0 else "too low")
        verdict = "about right" if x["ece"] < 2 * x["ece_floor"] else verdict
        yield (f"{side}: {MEASURES[name].title} says {100 * x['mean']:.1f}% on average, and {100 * right:.1f}% of the "
               f"first answers are right: it is {verdict}")
