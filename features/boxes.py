"""Boxes of photos from a JSON file {name of a photo: [[x1, y1, x2, y2], ...]}, in pixels."""
import torch
from torch import Tensor

from cli import InputError, check
from files import read_json, sha256

LARGEST = 1e30                        # a coordinate or score, as float32 holds it
FORM = 'give {"name": [[x1, y1, x2, y2], ...], ...} in pixels, finite numbers'


def read_boxes(path: str, photos: list[str], form: str = FORM, lengths=(4,),
               thin: bool = False) -> list[list]:
    """The boxes of each photo, one or more, as they stand in the file.

    lengths: how many numbers a box may have, 4 corners and perhaps more; all of a photo have
    equally many. thin: x1 = x2 and y1 = y2 are allowed. Raises InputError, which says the `form`.
    """
    boxes_of = read_json(path, form, unique=True)
    check(isinstance(boxes_of, dict), f"{path} is no JSON object of boxes; {form}")
    without = [photo for photo in photos if boxes_of.get(photo) in (None, [])]
    check(not without,
          f"{path} has no boxes of {len(without):,} of {len(photos):,} photos, the first is "
          f"{without and without[0]}; every photo needs one or more, under its name")
    for photo in photos:
        boxes = boxes_of[photo]
        check(
            isinstance(boxes, list)
            and len({len(box) if isinstance(box, list) else -1 for box in boxes}) == 1,
            f"{path} gives {photo} no list of boxes of equally many numbers; {form}",
        )
        for box in boxes:
            if not isinstance(box, list) or len(box) not in lengths or \
                    not all(type(x) in (int, float) and abs(x) < LARGEST for x in box):    # nor NaN
                raise InputError(f"{path}: {ascii(box)[:60]} of {photo} is no box; {form}")
            x1, y1, x2, y2 = box[:4]
            if min(x1, y1) < 0 or x1 > x2 or y1 > y2 or not thin and (x1 == x2 or y1 == y2):
                raise InputError(f"{path}: the box {box[:4]} of {photo} is empty, inverted or "
                                 "outside; give 0 <= x1 < x2 and 0 <= y1 < y2 in pixels")
    return [boxes_of[photo] for photo in photos]


class PhotoBoxes:
    """The boxes of N photos, `count` each, in pixels of the photo as it is seen, after it was
    turned as EXIF says.

    digests (N,): one of each photo's boxes, by which a change is seen. Raises what `read_boxes`
    raises, and InputError where a photo has another number of boxes than the others.
    """

    def __init__(self, path: str, names: list[str]):
        self.path, self.names, self.boxes = path, names, read_boxes(path, names)
        self.count = len(self.boxes[0])
        for name, boxes in zip(names, self.boxes):
            check(len(boxes) == self.count,
                  f"{path} has {self.count} boxes of {names[0]} and {len(boxes)} of {name}; give "
                  "every photo equally many")
        self.digests = [sha256(str(boxes))[:12] for boxes in self.boxes]

    def shares(self, n: int, size: tuple[int, int]) -> Tensor:
        """The boxes of photo n as shares of its width and height, (P, 4) in 0 to 1. size: (width,
        height) in pixels. Raises InputError for a box that leaves the photo."""
        for box in self.boxes[n]:
            if box[2] > size[0] or box[3] > size[1]:
                raise InputError(f"{self.path}: the box {box} of {self.names[n]} leaves the photo, "
                                 f"which is {size[0]} x {size[1]} pixels as it is seen; "
                                 "mend the box")
        return (torch.tensor(self.boxes[n], dtype=torch.float64)
                / torch.tensor([*size, *size])).float()
