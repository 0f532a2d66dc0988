"""Readers of judgements beyond the original pairs.

The files name COCO's image ids and caption (annotation) ids. `IdIndex` turns them into rows and columns of the scores.
Readers raise InputError on files that are missing, broken or of other items.
"""
import csv
import importlib.util
import os
import re
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cli import InputError, check, reason
from files import HELP, integers, need, read_coco, read_json, read_lines, refusing, repeated

MATCH = {"sits": 3.0, "sts": 3.0, "sis": 2.5}       # least rating of a match (Parekh et al. 2021)
COLUMNS = {"sts": ("caption1", "caption2"), "sis": ("image1", "image2"), "sits": ("caption", "image")}
POSITIVES = 'give JSON {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image ids]}}, or one of the two'


class Pairs(NamedTuple):
    """Items that match queries: sorted, each pair once."""
    query: np.ndarray                 # (P,) int64
    item: np.ndarray                  # (P,) int64

    @classmethod
    def of(cls, query, item) -> "Pairs":
        """Sort pairs of queries (K,) and items (K,) and drop repeats."""
        pairs = np.unique(np.stack([np.asarray(query, np.int64), np.asarray(item, np.int64)], 1), axis=0)
        return cls(pairs[:, 0], pairs[:, 1])

    def swapped(self) -> "Pairs":
        """Swap queries and items."""
        return Pairs.of(self.item, self.query)

    def block(self, queries: slice) -> "Pairs":
        """The pairs of a block of queries, counted from its start."""
        rows = slice(*np.searchsorted(self.query, [queries.start, queries.stop]))
        return Pairs(self.query[rows] - queries.start, self.item[rows])

    def among(self, queries: np.ndarray, items: np.ndarray) -> "Pairs":
        """Find pairs of queries (q,) and items (i,) within two rising lists: positions."""
        inside = np.isin(self.query, queries) & np.isin(self.item, items)
        return Pairs(np.searchsorted(queries, self.query[inside]), np.searchsorted(items, self.item[inside]))


class Ratings(NamedTuple):
    """Rated pairs of one csv file, in its order, as positions in the split."""
    first: np.ndarray                 # (K,) int64
    second: np.ndarray                # (K,) int64
    score: np.ndarray                 # (K,) float64, 0 to 5


class Crisscrossed(NamedTuple):
    """Crisscrossed Captions: the ratings, and the matches that follow from them."""
    ratings: dict[str, Ratings]       # sts, sis, sits
    pairs: dict[str, Pairs]           # i2t, t2i, i2i, t2t


class IdIndex:
    """Positions of "image" or "caption" ids, which must be there once, in a split."""

    def __init__(self, ids, kind: str, source: str):
        check(ids is not None and all(isinstance(i, (int, np.integer)) for i in ids),
              f"{source} has no {kind} ids, which the annotations name; give whole numbers in the .json, as {kind}_id "
              f"in the .npz, or in {{split}}_{'img' if kind == 'image' else 'ann'}_ids.npy beside the captions"
              + ", or VSE++'s coco_test_ids.npy for COCO's testall" * (kind == "caption"))
        self.kind, self.source, twice = kind, source, repeated(ids)
        check(twice is None, f"{source} lists {kind} id {twice} twice; every {kind} needs an id of its own")
        self.place = {i: k for k, i in enumerate(integers(ids, source, f"the {kind} id").tolist())}

    def positions(self, ids, path: str) -> np.ndarray:
        """Find the positions of ids (K,). Raises InputError where the split lacks an id."""
        ids = integers(ids, path, f"the {self.kind} id").tolist()
        absent = sorted({i for i in ids if i not in self.place})
        check(not absent, f"{path} names {len(absent)} {self.kind}s that {self.source} lacks, the first is "
                          f"{(absent or [0])[0]}; annotations and split must belong together (all 5,000 images of "
                          "COCO's test, or of dev with --dev_images 0)")
        return np.array([self.place[i] for i in ids], np.int64)


def match_original_pairs(caption_image: np.ndarray) -> dict[str, Pairs]:
    """The matches that the data pair: a caption and its image, (M,)."""
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
    kind: sts (caption pairs), sis (image pairs) or sits (caption and image)."""
    need(path, f"give the folder of {kind}_val.csv and {kind}_test.csv with --cxc_path; {HELP}")
    columns, reader, rows = (*COLUMNS[kind], "agg_score"), csv.DictReader(read_lines(path)), []
    check(set(columns) <= set(reader.fieldnames or ()),
          f"{path} needs the columns {', '.join(columns)}; fetch it again")
    try:
        for row in reader:
            first, second, rating = (row[name] for name in columns)
            if None in row.values() or not 0 <= float(rating) <= 5:
                raise ValueError("it was cut off" if None in row.values() else f"the rating is {rating!a:.80}")
            rows.append((parse_id(first), parse_id(second), float(rating)))
    except (ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path}, line {reader.line_num} does not hold two ids and a rating from 0 to 5 "
                         f"({reason(error)}); fetch it again") from error
    check(rows, f"{path} has no ratings; fetch it again")
    a, b, score = zip(*rows)
    first, second = (images if name.startswith("image") else captions for name in COLUMNS[kind])
    return Ratings(first.positions(a, path), second.positions(b, path), np.array(score))


def read_cxc(folder: str, part: str, images: IdIndex, captions: IdIndex, caption_image: np.ndarray) -> Crisscrossed:
    """Read the three files of one part, val or test."""
    ratings = {kind: read_ratings(os.path.join(folder, f"{kind}_{part}.csv"), kind, images, captions)
               for kind in COLUMNS}
    return Crisscrossed(ratings, match_by_ratings(ratings, caption_image))


def match_by_ratings(ratings: dict[str, Ratings], caption_image: np.ndarray) -> dict[str, Pairs]:
    """Collect matches of Crisscrossed Captions (`ucmr` 4.1): i2t, t2i, t2t and i2i.
    An image and a caption match if they are an original pair or are rated 3 or more. Two captions match if they are of
    one image or are rated 3 or more, two images if they are rated 2.5 or more. A pair that is listed more than once
    counts with the mean of its ratings, in both directions. caption_image (M,): the row of each caption's image."""
    sits, m = ratings["sits"], len(caption_image)
    caption, image = (ids[sits.score >= MATCH["sits"]] for ids in sits[:2])
    i2t = Pairs.of(np.r_[caption_image, image], np.r_[np.arange(m), caption])
    owner = sparse.csr_array((np.ones(m), (np.arange(m), caption_image)))           # (M, N)
    a, b = (owner @ owner.T).nonzero()                                              # captions of one image
    similar = pairs_within(ratings["sts"], MATCH["sts"])
    return {"i2t": i2t, "t2i": i2t.swapped(), "i2i": pairs_within(ratings["sis"], MATCH["sis"]),
            "t2t": Pairs.of(np.r_[a[a != b], similar.query], np.r_[b[a != b], similar.item])}


def pairs_within(ratings: Ratings, least: float) -> Pairs:
    """Collect pairs of different items with at least this mean rating, both ways."""
    ends = np.sort(np.stack([ratings.first, ratings.second]), axis=0)               # (2, K)
    pairs, place = np.unique(ends, axis=1, return_inverse=True)
    mean = np.bincount(place, ratings.score) / np.bincount(place)
    a, b = pairs[:, (mean >= least - 1e-9) & (pairs[0] != pairs[1])]
    return Pairs.of(np.r_[a, b], np.r_[b, a])


# ---- instances

def read_instances(path: str, images: IdIndex) -> np.ndarray:
    """Read from COCO's instances how many things of each category an image shows: (N, K) int."""
    coco = read_coco(need(path, "give COCO's instances_val2014.json with --instances"))
    absent = [i for i in images.place if i not in coco.imgs]
    columns = {category: k for k, category in enumerate(sorted(coco.cats))}
    check(columns and not absent,
          f"{path} has {len(columns)} categories and lacks {len(absent)} of the {len(images.place)} images of "
          f"{images.source}{f', the first is {absent[0]}' if absent else ''}; give the instances of these images")
    counts = np.zeros((len(images.place), len(columns)), np.int64)
    with refusing(f"{path} is not a file of COCO instances", "give instances_val2014.json", (KeyError, TypeError)):
        for i, k in images.place.items():
            for instance in coco.imgToAnns[i]:
                counts[k, columns[instance["category_id"]]] += 1
    return counts


# ---- listed matches

def eccv_folder() -> str | None:
    """Return the data folder of the optional package eccv_caption, or None."""
    spec = importlib.util.find_spec("eccv_caption")
    return os.path.join(os.path.dirname(spec.origin), "data") if spec and spec.origin else None


def read_eccv(folder: str | None, images: IdIndex, captions: IdIndex) -> dict[str, Pairs]:
    """Read ECCV Caption's matches: i2t of 1,261 images, t2i of 1,332 captions.
    Two of its 22,550 captions are the sixth of their image, which no split has."""
    check(folder, "ECCV Caption's data are not here; pip install eccv_caption, or give the folder of "
                  "eccv_image_to_caption.json and eccv_caption_to_image.json with --eccv_path")
    pairs = {}
    for side, name in (("i2t", "image_to_caption"), ("t2i", "caption_to_image")):
        path = need(os.path.join(folder, f"eccv_{name}.json"), "give the folder that holds it with --eccv_path")
        pairs[side] = read_matches(path, read_json(path, unique=True), side, images, captions, skip_unknown=True)
    return pairs


def read_positives(path: str, images: IdIndex, captions: IdIndex) -> dict[str, Pairs]:
    """Read the user's own matches from JSON, of one direction or both."""
    stored = read_json(need(path, "name the file of your matches with --positives"), POSITIVES, unique=True)
    check(isinstance(stored, dict) and stored and set(stored) <= {"i2t", "t2i"},
          f"{path} holds no positives under the names i2t and t2i; {POSITIVES}")
    return {side: read_matches(path, stored[side], side, images, captions) for side in stored}


def read_matches(path: str, table, side: str, images: IdIndex, captions: IdIndex, skip_unknown: bool = False) -> Pairs:
    """Read {query: [items]} of i2t or t2i. skip_unknown: leave out items that the split lacks."""
    check(isinstance(table, dict) and all(isinstance(ids, list) for ids in table.values()),
          f"{path} is not a table of ids and lists of ids; {POSITIVES}")
    queries, items = (images, captions) if side == "i2t" else (captions, images)
    rows = queries.positions([int(key) if re.fullmatch("[0-9]{1,19}", key) else key for key in table], path)
    ids = [integers(listed, path, f"the {items.kind} id").tolist() for listed in table.values()]
    ids = [[i for i in listed if i in items.place] for listed in ids] if skip_unknown else ids
    return Pairs.of(np.repeat(rows, list(map(len, ids))), items.positions([i for listed in ids for i in listed], path))
