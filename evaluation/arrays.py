"""The functions behind `evaluation.evaluate`: embeddings and scores in memory, of any model."""

from dataclasses import dataclass

import numpy as np
import torch

import metrics
from cli import InputError
from evaluation.annotations import match_original_pairs
from evaluation.embeddings import Embeddings
from evaluation.protocols import assess
from evaluation.reading import ARRAYS, read_arrays_of_model, read_scores

SOURCE_OF_ARRAYS = "the call"  # what sentences call the arrays
NAMES_OF_FILES = ("checkpoints", "data_name", "split")  # of results.json


@dataclass
class ProtocolOptions:
    """Options of evaluate.py that need no files."""

    fold5: bool = False
    uncertainty: bool = False
    ndcg: bool = False


def to_array(values) -> np.ndarray:
    """Convert a tensor, on any device, an array or a list to an array; bfloat16 becomes float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        if values.dtype == torch.bfloat16:
            values = values.float()
        return values.numpy()
    return np.asarray(values)


def collect_arrays(
    images, captions, owner, image_log_var=None, caption_log_var=None
) -> dict[str, np.ndarray]:
    """Name arrays as a file of embeddings does; None is left out."""
    given = {
        "image_mean": images,
        "caption_mean": captions,
        "caption_image": owner,
        "image_log_var": image_log_var,
        "caption_log_var": caption_log_var,
    }
    return {name: to_array(values) for name, values in given.items() if values is not None}


def collect_scores(scores, scores_i2t, scores_t2i) -> dict[str, np.ndarray]:
    """Collect matrices of scores, each as images x captions.

    Returns {}, {"scores"} or {"scores_i2t", "scores_t2i"}. Raises InputError where one of two
    directions is missing, or their shapes do not fit.
    """
    if scores is not None and (scores_i2t is not None or scores_t2i is not None):
        raise InputError(
            "scores ranks both directions, and scores_i2t and scores_t2i one each; give scores, or "
            "the other two"
        )
    if scores is not None:
        return {"scores": to_array(scores)}
    if scores_i2t is None and scores_t2i is None:
        return {}
    if scores_i2t is None or scores_t2i is None:
        raise InputError(
            "scores_i2t and scores_t2i rank one direction each; give both, or scores for both "
            "directions"
        )

    of_images = to_array(scores_i2t)
    of_captions = to_array(scores_t2i)
    if of_images.shape != of_captions.shape[::-1]:
        raise InputError(
            f"scores_i2t has shape {of_images.shape} and scores_t2i {of_captions.shape}; "
            "scores_i2t is images x captions, scores_t2i captions x images"
        )
    return {"scores_i2t": of_images, "scores_t2i": of_captions.T}


def build_embeddings(
    arrays: dict[str, np.ndarray], sim: str, scores: dict[str, np.ndarray]
) -> list[Embeddings]:
    """Build the items from arrays: one, or one for each direction.

    arrays, scores: of `collect_arrays` and `collect_scores`. Raises InputError where they do not
    fit.
    """
    if not scores:
        return [read_arrays_of_model(SOURCE_OF_ARRAYS, arrays, sim)]

    if set(arrays) - {"caption_image"}:
        raise InputError(
            "embeddings and scores are two sources of ranks; give images and captions, or scores"
        )
    owner = arrays.get("caption_image")
    if owner is not None:
        whole = owner.dtype.kind in ARRAYS["caption_image"].kinds
        if owner.ndim != 1 or not whole:
            raise InputError(
                f"owner has shape {owner.shape} of {owner.dtype}; give the row of each caption's "
                "image, one whole number for each caption"
            )
    return [read_scores(name, matrix, owner) for name, matrix in scores.items()]


def evaluate_arrays(
    arrays: dict[str, np.ndarray],
    sim: str,
    scores: dict[str, np.ndarray],
    options: ProtocolOptions,
) -> dict:
    """Judge embeddings or scores as `evaluation.evaluate` says."""
    results = []
    for e in build_embeddings(arrays, sim, scores):
        if options.ndcg:
            e.judged["ndcg"] = match_original_pairs(e.caption_image)
        of_part, _ = assess(e, options)
        results.append(of_part)

    joined = results[0]
    if len(results) == 2:
        joined = join_directions(*results)
    return {name: value for name, value in joined.items() if name not in NAMES_OF_FILES}


def join_directions(of_images: dict, of_captions: dict) -> dict:
    """Join results of scores that rank captions with results of scores that rank images."""
    results = dict(of_images)
    parts = {"i2t": of_images, "t2i": of_captions}

    results["protocols"] = {}
    for name, numbers in of_images["protocols"].items():
        joined = {side: part["protocols"][name][side] for side, part in parts.items()}
        if "rsum" in numbers:
            joined = metrics.both_directions(**joined)
        results["protocols"][name] = joined
    results["best_ranks"] = {side: part["best_ranks"][side] for side, part in parts.items()}

    ties = {}
    for side, part in parts.items():
        if side in part.get("ties", {}):
            ties[side] = part["ties"][side]
    results.pop("ties", None)
    if ties:
        results["ties"] = ties

    notes = [*of_images.get("notes", ()), *of_captions.get("notes", ())]
    if notes:
        results["notes"] = list(dict.fromkeys(notes))
    return results
