"""Box proposals of the photos of a split, and features of them, as files beside the split.

{split}_{name}.npz holds boxes (R, 4) float32 x1, y1, x2, y2 in pixels from 0 with both corners
inside, start (N + 1,) int64, score (R,) float32 and added (R,) bool; the boxes of photo n are rows
start[n]:start[n + 1]. {split}_{name}.json says what made them, for which photos, and what share of
the phrases they can find. Features of them are {split}_{name}_{features}.npy, (R, F), with a .json
that holds the checksum of their boxes.
"""
import os
from dataclasses import dataclass

import numpy as np

from cli import InputError
from files.entities import Entities
from files.reading import need, read_arrays, read_json, sha256
from files.shards import read_rows, there

AGAIN = "write them again with python -m features.proposals"
EXTRACT = "write them again with python -m features.extract regions"
ARRAYS = {"boxes": "float32", "start": "int64", "score": "float32", "added": "bool"}
THRESHOLDS = (0.5, 0.7)            # of the intersection over union, at which the recall is recorded


@dataclass
class Proposals:
    """The R boxes of N photos."""
    boxes: np.ndarray         # (R, 4) float32: x1, y1, x2, y2 in pixels from 0, both corners inside
    # (N + 1,) int64: those of photo n are rows start[n]:start[n + 1], at least one
    start: np.ndarray
    score: np.ndarray         # (R,) float32: of the method, higher is better; 0 where there is none
    added: np.ndarray                 # (R,) bool: boxes of phrases, added to the training split
    facts: dict                       # what {split}_{name}.json says


def file_of(root: str, split: str, name: str) -> str:
    """The path of proposals without its ending. val is also called dev."""
    return os.path.join(root, f"{'val' if split == 'dev' else split}_{name}")


def ids_sha256(ids: list[str]) -> str:
    return sha256("\n".join(ids))


def read_facts(path: str, key: str, fix: str) -> dict:
    """The JSON object in a file, with the text `key` in it. Raises InputError, which names `fix`.
    """
    facts = read_json(path, fix)
    if not isinstance(facts, dict) or not isinstance(facts.get(key), str):
        raise InputError(f"{path} is no JSON object that says \"{key}\"; {fix}")
    return facts


def read_proposals(root: str, split: str, name: str, entities: Entities) -> Proposals:
    """The proposals of a split. Raises InputError if they are missing, broken, or of other photos
    than `entities`."""
    start = file_of(root, split, name)
    for end in (".npz", ".json"):
        need(start + end, "box proposals are written with python -m features.proposals --data_name "
                          f"{os.path.basename(os.path.normpath(root))} --name {name}")
    facts = read_facts(f"{start}.json", "method", AGAIN)
    arrays, photos = read_arrays(f"{start}.npz", AGAIN), len(entities.ids)
    if {key: array.dtype.name for key, array in arrays.items()} != ARRAYS:
        raise InputError(f"{start}.npz holds other arrays than "
                         f"{', '.join(f'{k} {v}' for k, v in ARRAYS.items())}; {AGAIN}")
    p = Proposals(**arrays, facts=facts)
    if facts.get("ids_sha256") != ids_sha256(entities.ids):
        raise InputError(f"{start}.npz is of other photos, or of the same in another order, than "
                         f"{split}.txt names now; delete it, and {AGAIN}")
    if facts.get("truth_sha256") not in (None, sha256(entities.truth)):
        raise InputError(f"{start}.npz was written for other boxes of the phrases, by another "
                         "--box_origin or before the annotations changed; give --box_origin "
                         f"{facts.get('origin', 1)}, or delete it, and {AGAIN}")
    rows = len(p.boxes)
    shapes = [x.shape for x in (p.boxes, p.score, p.added, p.start)]
    if (shapes != [(rows, 4), (rows,), (rows,), (photos + 1,)]
            or (p.start[0], p.start[-1]) != (0, rows) or (np.diff(p.start) < 1).any()):
        raise InputError(f"{start}.npz is broken: its arrays do not give each of {photos} photos "
                         f"at least one of {rows} boxes; {AGAIN}")
    if facts.get("boxes_sha256") != sha256(p.boxes):
        raise InputError(f"{start}.npz is broken: its boxes are not those that its .json was "
                         f"written for; {AGAIN}")
    return p


def areas(boxes: np.ndarray) -> np.ndarray:
    """How many pixels each box has: (..., 4) -> (...,) float64.

    Both corners are inside, so that a box is x2 - x1 + 1 pixels wide, as in the Pascal challenge
    and in Flickr30k Entities."""
    boxes = np.asarray(boxes, np.float64)
    return np.prod(boxes[..., 2:] - boxes[..., :2] + 1, -1)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union, 0 to 1, of every box of a with every one of b: (n, 4), (m, 4) ->
    (n, m) float64."""
    a, b = np.asarray(a, np.float64)[:, None], np.asarray(b, np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + 1
    shared = np.prod(np.maximum(sides, 0), -1)                                      # (n, m)
    return shared / (areas(a) + areas(b) - shared)


def shares(boxes: np.ndarray, size) -> np.ndarray:
    """Boxes (P, 4) as shares of (width, height) of their photo, 0 to 1, float32."""
    pixels = (np.asarray(boxes, np.float64) + [0, 0, 1, 1]).astype(np.float32)
    return pixels / np.tile(size, 2).astype(np.float32)


def recall(proposals: Proposals, entities: Entities, threshold: float) -> float:
    """Percent of the phrases of which a proposal overlaps the box by `threshold` or more
    (intersection over union).

    Boxes that were added from the phrases do not count. It is the upper bound of every ranking of
    these proposals.
    """
    first = np.searchsorted(entities.phrase_photo, np.arange(len(entities.ids) + 1))      # (N + 1,)
    hits = 0
    for n in range(len(entities.ids)):
        rows = slice(proposals.start[n], proposals.start[n + 1])
        boxes = proposals.boxes[rows][~proposals.added[rows]]
        truth = entities.truth[first[n]:first[n + 1]]
        hits += int((iou(truth, boxes).max(1, initial=0) >= threshold).sum())
    return 100 * hits / len(entities.phrases)


def read_region_features(root: str, split: str, name: str, features: str,
                         proposals: Proposals) -> str:
    """The path of the features of proposals, {split}_{name}_{features}.npy. Raises InputError if
    they are missing, of other proposals, or not (R, F) float16 or float32."""
    start = file_of(root, split, f"{name}_{features}")
    for path in (f"{start}.npy", f"{start}.json"):
        if not there(path):
            raise InputError(f"there is no file {path} of features of the proposals {name}; write "
                             f"them with python -m features.extract regions --proposals {name} "
                             f"--name {features}")
    facts = read_facts(f"{start}.json", "extractor", EXTRACT)
    if facts.get("boxes_sha256") != proposals.facts["boxes_sha256"]:
        raise InputError(f"{start}.npy is of other boxes than those that "
                         f"{file_of(root, split, name)}.npz holds now; delete it, and {EXTRACT}")
    check_features(f"{start}.npy", read_rows(f"{start}.npy", EXTRACT), proposals,
                   f"delete it, and {EXTRACT}")
    return f"{start}.npy"


def check_features(path: str, array, proposals: Proposals, fix: str) -> None:
    """Raise InputError, which says the `fix`, unless an array holds features of the proposals."""
    boxes = len(proposals.boxes)
    if (array.ndim != 2 or array.dtype not in (np.float16, np.float32) or len(array) != boxes
            or not array.shape[1]):
        raise InputError(f"{path} holds {array.dtype} of shape {array.shape}, and {boxes:,} boxes "
                         f"have features of shape ({boxes}, F) in float16 or float32, in the order "
                         f"of the boxes; {fix}")
