"""A drawn data set: ids of images and captions, and how its files are written.

For each image `scenes.random_scene` draws things on a background, `scenes.draw_scene` paints them,
and `captions.five_captions` describes them; the three make an Entry. features/ computes features of
the pixels. `ratings` and `truth` say which captions fit which images, by what scenes show and
captions say. `layouts` and `entities` write the entries as real data sets are written, and
`__main__` does all of this for train, dev and test. `summary` says in words what `make demo` has
trained.
"""

import io
import json
import os
import shutil
from typing import NamedTuple

from PIL import Image

from utils import atomic

SPLIT_NAMES = {"train": "train", "dev": "val", "test": "test"}  # and their names in other layouts


class Entry(NamedTuple):
    """An image of a split."""

    filename: str
    scene: object  # scenes.Scene
    captions: list  # five of captions.Caption
    photo: int  # COCO's id of the image
    numbers: list[int]  # COCO's ids of the captions


def scatter(number, factor, prime):
    """Return a unique id in no order: a factor permutes the numbers below a prime."""
    return 1 + (number + 4243) * factor % prime


def count_through(split, index):
    """Count the images of all splits in turn."""
    return index * len(SPLIT_NAMES) + [*SPLIT_NAMES].index(split)


def photo_id(split, index):
    """Return the COCO id of the image with this index in its split."""
    return scatter(count_through(split, index), 7919, 999_983)


def caption_ids(split, index):
    """Return the COCO ids of the five captions of the image with this index in its split."""
    first = count_through(split, index) * 5
    return [scatter(first + k, 104_729, 9_999_991) for k in range(5)]


def write_json(path, content):
    """Write content as one line of JSON, under its name only when it is complete."""
    with atomic(path) as file:
        file.write(json.dumps(content) + "\n")


def save_picture(path, pixels):
    """Write (H, W, 3) uint8 as a PNG."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    save_bytes(path, content.getvalue())


def save_bytes(path, content):
    """Write one of many small files, which count only when the file that lists them is there.

    Unlike `utils.atomic` it looks for nothing else in the folder and does not wait for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a link
    path.write_bytes(content)


def save_text(path, lines):
    """Write lines as `save_bytes` does."""
    save_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def link(source, target):
    """Make target the same file as source, or a copy where links do not work."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # file systems without hard links
        shutil.copyfile(source, target)
