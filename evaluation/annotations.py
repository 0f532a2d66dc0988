"""Readers of judgements beyond the original pairs.

The files name COCO's image ids and caption (annotation) ids. `IdIndex` turns them into rows and
columns of the scores. Readers raise InputError on files that are missing, broken or of other items.
"""

import csv
import importlib.util
import os
import re
from typing import NamedTuple

import numpy as np
from scipy import sparse

from utils import (
    HELP,
    InputError,
    integers,
    need,
    read_coco,
    read_json,
    read_lines,
    reason,
    refusing,
    repeated,
)

# Least rating of a match (Parekh et al. 2021).
LEAST_RATING = {"sits": 3.0, "sts": 3.0, "sis": 2.5}
# Columns of the two items of a pair, in the files of Crisscrossed Captions.
COLUMNS_OF_PAIR = {
    "sts": ("caption1", "caption2"),
    "sis": ("image1", "image2"),
    "sits": ("caption", "image"),
}
FORM_OF_POSITIVES = (
    'give JSON {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image ids]}}, or one of '
    "the two"
)


class Pairs(NamedTuple):
    """Items that match queries: sorted, each pair once."""

    query: np.ndarray  # (P,) int64
    item: np.ndarray  # (P,) int64

    @classmethod
    def of(cls, query, item) -> "Pairs":
        """Sort pairs of queries (K,) and items (K,) and drop repeats."""
        pairs = np.stack([np.asarray(query, np.int64), np.asarray(item, np.int64)], axis=1)
        pairs = np.unique(pairs, axis=0)
        return cls(pairs[:, 0], pairs[:, 1])

    def swapped(self) -> "Pairs":
        """Swap queries and items."""
        return Pairs.of(self.item, self.query)

    def block(self, queries: slice) -> "Pairs":
        """Select the pairs of a block of queries, counted from its start."""
        first, last = np.searchsorted(self.query, [queries.start, queries.stop])
        return Pairs(self.query[first:last] - queries.start, self.item[first:last])

    def among(self, queries: np.ndarray, items: np.ndarray) -> "Pairs":
        """Find pairs of queries (q,) and items (i,) within two rising lists: positions."""
        inside = np.isin(self.query, queries) & np.isin(self.item, items)
        query = np.searchsorted(queries, self.query[inside])
        item = np.searchsorted(items, self.item[inside])
        return Pairs(query, item)


class Ratings(NamedTuple):
    """Rated pairs of one csv file, in its order, as positions in the split."""

    first: np.ndarray  # (K,) int64
    second: np.ndarray  # (K,) int64
    score: np.ndarray  # (K,) float64, 0 to 5


class Crisscrossed(NamedTuple):
    """Crisscrossed Captions: the ratings, and the matches that follow from them."""

    ratings: dict[str, Ratings]  # sts, sis, sits
    pairs: dict[str, Pairs]  # i2t, t2i, i2i, t2t


class IdIndex:
    """Positions of "image" or "caption" ids, which must be there once, in a split."""

    def __init__(self, ids, kind: str, source: str):
        if ids is None or not all(isinstance(i, (int, np.integer)) for i in ids):
            file = "{split}_img_ids.npy"
            other = ""
            if kind == "caption":
                file = "{split}_ann_ids.npy"
                other = ", or VSE++'s coco_test_ids.npy for COCO's testall"
            raise InputError(
                f"{source} has no {kind} ids, which the annotations name; give whole numbers in "
                f"the .json, as {kind}_id in the .npz, or in {file} beside the captions{other}"
            )
        twice = repeated(ids)
        if twice is not None:
            raise InputError(
                f"{source} lists {kind} id {twice} twice; every {kind} needs an id of its own"
            )

        self.kind = kind
        self.source = source
        ids = integers(ids, source, f"the {kind} id").tolist()
        self.position = {i: k for k, i in enumerate(ids)}

    def positions(self, ids, path: str) -> np.ndarray:
        """Find the positions of ids (K,). Raises InputError where the split lacks an id."""
        ids = integers(ids, path, f"the {self.kind} id").tolist()
        absent = sorted({i for i in ids if i not in self.position})
        if absent:
            raise InputError(
                f"{path} names {len(absent)} {self.kind}s that {self.source} lacks (first: "
                f"{absent[0]}); annotations and split must belong together (all 5,000 images of "
                "COCO's test, or of dev with --dev_images 0)"
            )
        return np.array([self.position[i] for i in ids], np.int64)


def match_original_pairs(caption_image: np.ndarray) -> dict[str, Pairs]:
    """Take the pairs of the data as matches: each caption and its image, (M,)."""
    pairs = Pairs.of(caption_image, np.arange(len(caption_image)))
    return {"i2t": pairs, "t2i": pairs.swapped()}


# ---- Crisscrossed Captions


def parse_id(name: str) -> int:
    """Read the id in a name: COCO_val2014_000000365325.jpg, COCO_val2014:sentid:732091."""
    digits = re.fullmatch(r".*[_:]([0-9]+)(\..*)?", name)
    if not digits:
        raise ValueError(f"{name!a:.80} names no id")
    return int(digits[1])


def read_ratings(path: str, kind: str, images: IdIndex, captions: IdIndex) -> Ratings:
    """Read a file of Crisscrossed Captions.

    kind: sts (caption pairs), sis (image pairs) or sits (caption and image).
    """
    need(path, f"give the folder of {kind}_val.csv and {kind}_test.csv with --cxc_path; {HELP}")
    columns = (*COLUMNS_OF_PAIR[kind], "agg_score")
    reader = csv.DictReader(read_lines(path))
    if not set(columns) <= set(reader.fieldnames or ()):
        raise InputError(f"{path} needs the columns {', '.join(columns)}; fetch it again")

    ids = []
    scores = []
    try:
        for row in reader:
            if None in row.values():
                raise ValueError("it was cut off")
            first, second, rating = (row[name] for name in columns)
            score = float(rating)
            if not 0 <= score <= 5:
                raise ValueError(f"the rating is {rating!a:.80}")
            ids.append((parse_id(first), parse_id(second)))
            scores.append(score)
    except (ValueError, TypeError, csv.Error) as error:
        raise InputError(
            f"{path}, line {reader.line_num} does not hold two ids and a rating from 0 to 5 "
            f"({reason(error)}); fetch it again"
        ) from error
    if not ids:
        raise InputError(f"{path} has no ratings; fetch it again")

    ends = []
    for column, name in enumerate(COLUMNS_OF_PAIR[kind]):
        index = captions
        if name.startswith("image"):
            index = images
        ends.append(index.positions([pair[column] for pair in ids], path))
    return Ratings(*ends, np.array(scores))


def read_cxc(
    folder: str, part: str, images: IdIndex, captions: IdIndex, caption_image: np.ndarray
) -> Crisscrossed:
    """Read the three files of one part, val or test."""
    ratings = {}
    for kind in COLUMNS_OF_PAIR:
        path = os.path.join(folder, f"{kind}_{part}.csv")
        ratings[kind] = read_ratings(path, kind, images, captions)
    return Crisscrossed(ratings, match_by_ratings(ratings, caption_image))


def match_by_ratings(ratings: dict[str, Ratings], caption_image: np.ndarray) -> dict[str, Pairs]:
    """Collect matches of Crisscrossed Captions (`ucmr` 4.1): i2t, t2i, t2t and i2i.

    An image and a caption match if they are an original pair or are rated 3 or more. Two captions
    match if they are of one image or are rated 3 or more, two images if they are rated 2.5 or more.
    A pair that is listed more than once counts with the mean of its ratings, in both directions.
    caption_image (M,): the row of each caption's image.
    """
    m = len(caption_image)
    sits = ratings["sits"]
    rated = sits.score >= LEAST_RATING["sits"]
    image = np.append(caption_image, sits.second[rated])
    caption = np.append(np.arange(m), sits.first[rated])
    i2t = Pairs.of(image, caption)

    # captions of one image
    owner = sparse.csr_array((np.ones(m), (np.arange(m), caption_image)))  # (M, N)
    first, second = (owner @ owner.T).nonzero()
    different = first != second
    similar = pairs_within(ratings["sts"], LEAST_RATING["sts"])
    first = np.append(first[different], similar.query)
    second = np.append(second[different], similar.item)
    return {
        "i2t": i2t,
        "t2i": i2t.swapped(),
        "i2i": pairs_within(ratings["sis"], LEAST_RATING["sis"]),
        "t2t": Pairs.of(first, second),
    }


def pairs_within(ratings: Ratings, least: float) -> Pairs:
    """Collect pairs of different items with at least this mean rating, both ways."""
    ends = np.sort(np.stack([ratings.first, ratings.second]), axis=0)  # (2, K)
    pairs, number = np.unique(ends, axis=1, return_inverse=True)  # (2, P), (K,)
    mean = np.bincount(number, ratings.score) / np.bincount(number)
    chosen = (mean >= least - 1e-9) & (pairs[0] != pairs[1])
    a, b = pairs[:, chosen]
    return Pairs.of(np.append(a, b), np.append(b, a))


# ---- instances


def read_instances(path: str, images: IdIndex) -> np.ndarray:
    """Read from COCO's instances how many things of each category an image shows: (N, K) int."""
    coco = read_coco(need(path, "give COCO's instances_val2014.json with --instances"))
    absent = [i for i in images.position if i not in coco.imgs]
    if absent or not coco.cats:
        first = ""
        if absent:
            first = f" (first: {absent[0]})"
        raise InputError(
            f"{path} has {len(coco.cats)} categories and lacks {len(absent)} of the "
            f"{len(images.position)} images of {images.source}{first}; give the instances of these "
            "images"
        )

    column = {category: k for k, category in enumerate(sorted(coco.cats))}
    counts = np.zeros((len(images.position), len(column)), np.int64)
    what = f"{path} is not a file of COCO instances"
    with refusing(what, "give instances_val2014.json", (KeyError, TypeError)):
        for i, k in images.position.items():
            for instance in coco.imgToAnns[i]:
                counts[k, column[instance["category_id"]]] += 1
    return counts


# ---- listed matches


def eccv_folder() -> str | None:
    """Return the data folder of the optional package eccv_caption, or None."""
    spec = importlib.util.find_spec("eccv_caption")
    if spec is None or not spec.origin:
        return None
    return os.path.join(os.path.dirname(spec.origin), "data")


def read_eccv(folder: str | None, images: IdIndex, captions: IdIndex) -> dict[str, Pairs]:
    """Read ECCV Caption's matches: i2t of 1,261 images, t2i of 1,332 captions.

    Two of its 22,550 captions are the sixth of their image, which no split has.
    """
    if not folder:
        raise InputError(
            "ECCV Caption's data are missing; pip install eccv_caption, or give the folder of "
            "eccv_image_to_caption.json and eccv_caption_to_image.json with --eccv_path"
        )
    pairs = {}
    for side, name in (("i2t", "image_to_caption"), ("t2i", "caption_to_image")):
        path = os.path.join(folder, f"eccv_{name}.json")
        need(path, "give the folder that holds it with --eccv_path")
        stored = read_json(path, unique=True)
        pairs[side] = read_matches(path, stored, side, images, captions, skip_unknown=True)
    return pairs


def read_positives(path: str, images: IdIndex, captions: IdIndex) -> dict[str, Pairs]:
    """Read the user's own matches from JSON, of one direction or both."""
    need(path, "name the file of your matches with --positives")
    stored = read_json(path, FORM_OF_POSITIVES, unique=True)
    if not isinstance(stored, dict) or not stored or set(stored) - {"i2t", "t2i"}:
        raise InputError(
            f"{path} holds no positives under the names i2t and t2i; {FORM_OF_POSITIVES}"
        )
    return {side: read_matches(path, stored[side], side, images, captions) for side in stored}


def read_matches(
    path: str,
    table,
    side: str,
    images: IdIndex,
    captions: IdIndex,
    skip_unknown: bool = False,
) -> Pairs:
    """Read the matches of one direction.

    Args:
        path: names the file in sentences.
        table: {id of a query: [ids of items]}.
        side: "i2t" or "t2i".
        images: ids of the split.
        captions: ids of the split.
        skip_unknown: leave out items that the split lacks.
    """
    if not isinstance(table, dict) or not all(isinstance(ids, list) for ids in table.values()):
        raise InputError(f"{path} is not a table of ids and lists of ids; {FORM_OF_POSITIVES}")

    queries, items = images, captions
    if side == "t2i":
        queries, items = captions, images

    # JSON has no numbers as names; a name that is no number is refused as such
    keys = list(table)
    for k, key in enumerate(keys):
        if re.fullmatch("[0-9]{1,19}", key):
            keys[k] = int(key)
    rows = queries.positions(keys, path)

    counts = []
    listed_items = []
    for listed in table.values():
        ids = integers(listed, path, f"the {items.kind} id").tolist()
        if skip_unknown:
            ids = [i for i in ids if i in items.position]
        counts.append(len(ids))
        listed_items += ids
    return Pairs.of(np.repeat(rows, counts), items.positions(listed_items, path))
