"""Embeddings and scores in memory, of any model: what stands behind `evaluation.evaluate`.

Behind `evaluate_hard_negatives` and `evaluate_winoground` stand the functions at the end.
"""

from dataclasses import dataclass

import numpy as np
import torch

import metrics
from evaluation.annotations import match_original_pairs
from evaluation.embeddings import Embeddings, Member, check_sides
from evaluation.hard_negatives import (
    Choices,
    Quadruples,
    assess_choices,
    assess_quadruples,
    score_pairs,
    score_quadruples,
    score_without_image,
)
from evaluation.protocols import assess
from evaluation.reading import (
    ARRAYS,
    check_widths,
    join_matrices,
    read_arrays_of_model,
    read_numbers,
    read_scores,
    read_similarity,
    scale_points,
)
from losses import Embedding
from utils import InputError, refusing

SOURCE_OF_ARRAYS = "the call"  # what sentences call the arrays
NAMES_OF_FILES = ("checkpoints", "data_name", "split")  # of results.json


@dataclass
class ProtocolOptions:
    """Options of evaluate.py that need no files."""

    fold5: bool = False
    uncertainty: bool = False
    ndcg: bool = False


def to_array(values) -> np.ndarray:
    """Convert a tensor, on any device, an array or a list to an array; bfloat16 becomes float32.

    The tensors of a list are stacked.
    """
    if isinstance(values, (list, tuple)) and values:
        if all(isinstance(value, torch.Tensor) for value in values):
            with refusing("the tensors of a list differ", "give them one shape and device"):
                values = torch.stack(list(values))
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
) -> Embeddings:
    """Build the items from arrays.

    arrays, scores: of `collect_arrays` and `collect_scores`. Raises InputError where they do not
    fit.
    """
    if not scores:
        return read_arrays_of_model(SOURCE_OF_ARRAYS, arrays, sim)

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
    parts = [read_scores(name, matrix, arrays) for name, matrix in scores.items()]
    return join_matrices(parts)


def evaluate_arrays(
    arrays: dict[str, np.ndarray],
    sim: str,
    scores: dict[str, np.ndarray],
    options: ProtocolOptions,
) -> dict:
    """Judge embeddings or scores as `evaluation.evaluate` says."""
    e = build_embeddings(arrays, sim, scores)
    if options.ndcg:
        e.judged["ndcg"] = match_original_pairs(e.caption_image)
    results, _ = assess(e, options)
    return {name: value for name, value in results.items() if name not in NAMES_OF_FILES}


# ---- right and wrong captions


def collect_numbers(given: dict, axes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Convert arrays of numbers by name; `axes` says how many axes each may have.

    Raises InputError where one is missing or has another form.
    """
    arrays = {}
    for name, allowed in axes.items():
        if given[name] is None:
            raise InputError(f"{name} is missing; give {' and '.join(axes)} together")
        x = to_array(given[name])
        if x.ndim not in allowed or x.dtype.kind not in "fiu" or not x.size:
            raise InputError(
                f"{name} has shape {x.shape} of {x.dtype}; give numbers with "
                f"{' or '.join(map(str, allowed))} axes"
            )
        arrays[name] = x
    return arrays


def build_member(images: np.ndarray, captions: np.ndarray, sim: str) -> Member:
    """Build a model from means of images (N, D) and captions (M, D), compared by `sim`."""
    sides = []
    for name, mean in (("images", images), ("captions", captions)):
        any_size = sim in ("cosine", "dot", "order")
        numbers = read_numbers(mean, name, SOURCE_OF_ARRAYS, any_size, sim == "cosine")
        sides.append(Embedding(numbers))

    similarity = read_similarity(sim, 0, SOURCE_OF_ARRAYS)
    if sim in ("dot", "order"):
        sides = scale_points(*sides)
    check_widths(SOURCE_OF_ARRAYS, sim, *sides)
    check_sides(sim, *sides, SOURCE_OF_ARRAYS)
    return Member(similarity, *sides)


def read_owner_of_items(owner, count: int, n_images: int | None) -> np.ndarray:
    """Read the row of the image of each of `count` items (K,), in order by default.

    n_images: the number of images; None where they are not given.
    """
    if owner is None:
        rows = np.arange(count)
    else:
        rows = to_array(owner)
    most = n_images
    if n_images is None:
        most = np.inf
    fits = rows.shape == (count,) and rows.dtype.kind in "iu"
    if not fits or rows.min() < 0 or rows.max() >= most:
        raise InputError(
            f"{count:,} items and {n_images or count:,} images: owner is the row of each item's "
            "image, whole numbers from 0; without it item k is of image k"
        )
    return rows.astype(np.int64)


def evaluate_choices(
    embeddings: dict, scores: dict, owner, sim: str, texts: tuple[list, list] | None
) -> dict:
    """Judge right and wrong captions as `evaluation.evaluate_hard_negatives` says.

    embeddings: {"images", "captions", "negatives"}; scores: {"scores", "negative_scores"}; those
    that were not given are None. texts: of the captions and of the negatives.
    """
    by_scores = choose_source(embeddings, scores)
    if by_scores:
        found = collect_numbers(scores, {"scores": (1,), "negative_scores": (1, 2)})
        right = found["scores"]
        wrong = found["negative_scores"]
        n_images = None
    else:
        found = collect_numbers(embeddings, {"images": (2,), "captions": (2,), "negatives": (2, 3)})
        right = found["captions"]
        wrong = found["negatives"]
        n_images = len(found["images"])

    if wrong.ndim == right.ndim:
        wrong = wrong[:, None]  # one wrong caption an item: (K, 1) or (K, 1, D)
    count = len(right)
    if len(wrong) != count:
        raise InputError(f"there are {count:,} right captions and {len(wrong):,} times wrong ones")
    each = wrong.shape[1]
    items = Choices(
        read_owner_of_items(owner, count, n_images),
        np.arange(count),
        np.arange(count, count * (1 + each)),
        np.repeat(np.arange(count), each),
        list_texts(texts, count, each),
    )

    text_only = None
    if by_scores:
        right = metrics.check_finite(right)
        wrong = metrics.check_finite(wrong).reshape(-1)
    else:
        captions = np.concatenate([right, wrong.reshape(-1, wrong.shape[-1])])
        members = [build_member(found["images"], captions, sim)]
        right = score_pairs(members, items.image, items.right)
        wrong = score_pairs(members, items.image[items.item], items.wrong)
        text_only = score_without_image(members)
    results, _ = assess_choices(items, right, wrong, text_only)
    return results


def choose_source(embeddings: dict, scores: dict) -> bool:
    """Return whether scores are given, and no embeddings. Raises InputError on both or none."""
    by_scores = any(x is not None for x in scores.values())
    by_embeddings = any(x is not None for x in embeddings.values())
    if by_scores == by_embeddings:
        raise InputError(f"give {', '.join(embeddings)}, or {' and '.join(scores)}")
    return by_scores


def list_texts(texts: tuple[list, list] | None, count: int, each: int) -> list[str]:
    """List the texts of `count` captions, then those of `each` wrong ones of every item."""
    if texts is None:
        return []
    listed, wrong = texts
    listed = list(listed)
    fits = len(listed) == len(wrong) == count
    for of_item in wrong:
        if isinstance(of_item, str):
            of_item = [of_item]
        fits = fits and len(of_item) == each
        listed += of_item
    if not fits:
        raise InputError(
            f"there are {len(texts[0]):,} and {len(listed) - len(texts[0]):,} texts of {count:,} "
            f"captions and their negatives; give one for each caption and {each} in each list of "
            "negatives, or none"
        )
    return listed


def evaluate_quadruples(embeddings: dict, scores: dict, sim: str) -> dict:
    """Judge quadruples as `evaluation.evaluate_winoground` says.

    embeddings: {"images", "captions"}; scores: {"scores"}; those that were not given are None.
    """
    if choose_source(embeddings, scores):
        found = collect_numbers(scores, {"scores": (3,)})
    else:
        found = collect_numbers(embeddings, {"images": (3,), "captions": (3,)})
    for name, x in found.items():
        if x.shape[1] != 2 or name == "scores" and x.shape[2] != 2:
            raise InputError(
                f"{name} has shape {x.shape}; give images and captions (K, 2, D), or scores "
                "(K, 2, 2), captions x images"
            )
    if len({len(x) for x in found.values()}) > 1:
        raise InputError("images and captions differ in number; give both of every item")

    count = len(next(iter(found.values())))
    rows = np.arange(2 * count).reshape(count, 2)
    items = Quadruples(rows, rows)
    if "scores" in found:
        of_items = metrics.check_finite(found["scores"])
    else:
        sides = [found[name].reshape(2 * count, -1) for name in ("images", "captions")]
        of_items = score_quadruples([build_member(*sides, sim)], items)
    results, _ = assess_quadruples(items, of_items)
    return results
