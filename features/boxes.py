"""Boxes of regions in photos, from a JSON file {name of a photo: [[x1, y1, x2, y2], ...]}.

Boxes are in pixels of the photo as it is seen, after it was turned as EXIF says. Every photo has equally many.
"""
import hashlib
import json
import math

import torch
from torch import Tensor

from cli import InputError
from files.reading import read_json

LARGEST = 1 << 30                     # pixels; no photo is as wide


class PhotoBoxes:
    """The boxes of N photos, `count` each. `digests`: one of each photo's boxes, (N,), by which a change is seen.

    Raises InputError where a photo has none, another number than the others, or one that is no box.
    """

    def __init__(self, path: str, names: list[str]):
        stored = read_json(path, 'give {"name": [[x1, y1, x2, y2], ...], ...} in pixels', unique=True)
        if not isinstance(stored, dict):
            raise InputError(f"{path} is no JSON object of boxes; give {{name: [[x1, y1, x2, y2], ...]}} in pixels")
        without = [name for name in names if name not in stored]
        if without:
            raise InputError(f"{path} has no boxes of {len(without):,} of {len(names):,} photos, the first is "
                             f"{without[0]}; every photo needs them, under its name below the folder")
        self.path, self.names, self.boxes = path, names, [stored[name] for name in names]
        for name, boxes in zip(names, self.boxes):
            check(path, name, boxes)
        self.count = len(self.boxes[0])
        other = next((k for k, boxes in enumerate(self.boxes) if len(boxes) != self.count), None)
        if other is not None:
            raise InputError(f"{path} has {self.count} boxes of {names[0]} and {len(self.boxes[other])} of "
                             f"{names[other]}; give every photo equally many")
        self.digests = [hashlib.sha256(json.dumps(boxes).encode()).hexdigest()[:12] for boxes in self.boxes]

    def shares(self, i: int, size: tuple[int, int]) -> Tensor:
        """The boxes of photo i as shares of its width and height, (P, 4) in 0 to 1. size: (width, height) in pixels.
        Raises InputError for a box that leaves the photo."""
        width, height = size
        for box in self.boxes[i]:
            if box[2] > width or box[3] > height:
                raise InputError(f"{self.path}: the box {box} of {self.names[i]} leaves the photo, which is {width} x "
                                 f"{height} pixels as it is seen; mend the box")
        return torch.tensor(self.boxes[i], dtype=torch.float64).div(
            torch.tensor([width, height, width, height])).to(torch.float32)


def check(path: str, name: str, boxes) -> None:
    """Raise InputError unless `boxes` are a list of finite boxes with x1 < x2 and y1 < y2, none below 0."""
    if not isinstance(boxes, list) or not boxes:
        raise InputError(f"{path} gives {name} no list of boxes; give [[x1, y1, x2, y2], ...] in pixels, one or more")
    for box in boxes:
        numbers = isinstance(box, list) and len(box) == 4 and all(type(x) in (int, float) for x in box)
        if not numbers or not all(abs(x) <= LARGEST and math.isfinite(x) for x in box):
            raise InputError(f"{path}: {ascii(box)[:60]} of {name} is no box; give four finite numbers x1, y1, x2, y2 "
                             "in pixels")
        if not 0 <= box[0] < box[2] or not 0 <= box[1] < box[3]:
            raise InputError(f"{path}: the box {box} of {name} is empty, inverted or outside; give 0 <= x1 < x2 and "
                             "0 <= y1 < y2 in pixels")
