"""Readers of judgements beyond the original pairs: Crisscrossed Captions, COCO instances, ECCV
Caption, own positives.

The files name COCO's image ids and caption (annotation) ids. `Index` turns them into rows and
columns of the matrix of scores.
"""
import csv
import importlib.util
import os
import re
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cli import InputError, check, reason
from files import SOURCES, integers, need, read_coco, read_json, read_lines, repeated, sha256

MATCH = {"sits": 3.0, "sts": 3.0, "sis": 2.5}       # least rating of a match (Parekh et al. 2021)
POSITIVES = 'give JSON {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image ids]}}'
COLUMNS = {"sts": ("caption1", "caption2"), "sis": ("image1", "image2"),
           "sits": ("caption", "image")}


class Pairs(NamedTuple):
    """Which items match which queries: sorted, each pair once."""
    query: np.ndarray                 # (P,) int64
    item: np.ndarray                  # (P,) int64

    @classmethod
    def of(cls, query, item) -> "Pairs":
        """Pairs from (K,) queries and (K,) items in any order, repeats left out."""
        both = np.unique(np.stack([np.asarray(query, np.int64), np.asarray(item, np.int64)], 1),
                         axis=0)
        return cls(both[:, 0], both[:, 1])

    def swapped(self) -> "Pairs":
        """The other direction: the items are the queries."""
        return Pairs.of(self.item, self.query)

    def of_block(self, queries: slice) -> "Pairs":
        """The pairs of a block of queries, counted from its start."""
        some = slice(*np.searchsorted(self.query, [queries.start, queries.stop]))
        return Pairs(self.query[some] - queries.start, self.item[some])

    def among(self, queries: np.ndarray, items: np.ndarray) -> "Pairs":
        """The pairs of some queries (q,) and some items (i,), as positions within these two
        lists."""
        def places(old: np.ndarray, kept: np.ndarray) -> np.ndarray:
            place = np.full(1 + max(old.max(initial=0), kept.max(initial=0)), -1)
            place[kept] = np.arange(len(kept))
            return place[old]
        query, item = places(self.query, queries), places(self.item, items)
        inside = (query >= 0) & (item >= 0)
        return Pairs.of(query[inside], item[inside])


class Ratings(NamedTuple):
    """Rated pairs of one csv file, in its order, as positions in the split."""
    first: np.ndarray                 # (K,) int64
    second: np.ndarray                # (K,) int64
    score: np.ndarray                 # (K,) float64, 0 to 5


class Crisscrossed(NamedTuple):
    """Crisscrossed Captions: the ratings, and the matches that follow from them."""
    ratings: dict[str, Ratings]       # sts, sis, sits
    pairs: dict[str, Pairs]           # i2t, t2i, i2i, t2t


class Listed(NamedTuple):
    """Matches of one direction that a file lists."""
    pairs: Pairs
    without: int                      # queries that it names and lists no match of


class Index:
    """Positions of ids in a split. Raises InputError where ids are missing or stand there twice."""

    def __init__(self, ids, what: str, source: str):
        kind, entry = {"image": ("img", "image of the split an integer cocoid or imgid"),
                       "caption": ("ann", "sentence of the split an integer sentid")}[what]
        check(ids is not None and all(isinstance(i, (int, np.integer)) for i in ids),
              f"{source} has no {what} ids, which the annotations name; give every {entry} of its "
              f"own in the .json, store them in order as {what}_id in the .npz, or put them in "
              f"order into {{split}}_{kind}_ids.npy beside the captions"
              + ", or VSE++'s coco_test_ids.npy for COCO's testall" * (what == "caption"))
        self.ids, self.what, self.source = integers(ids, source, f"the {what} id"), what, source
        self.order, twice = np.argsort(self.ids, kind="stable"), repeated(ids)
        check(twice is None, f"{source} lists {what} id {twice} twice; every {what} needs an id of "
                             "its own")

    def positions(self, ids, path: str) -> np.ndarray:
        """(K,) ids -> (K,) positions. Raises InputError where the split lacks an id."""
        ids = integers(ids, path, f"the {self.what} id")
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=self.order), len(self.ids) - 1)
        positions = self.order[at]
        absent = np.unique(ids[self.ids[positions] != ids])
        if len(absent):
            raise InputError(f"{path} names {len(absent)} {self.what}s that {self.source} lacks, "
                             f"the first is {absent[0]}; annotations and split must belong "
                             "together (all 5,000 images of COCO's test, or of dev with "
                             "--dev_images 0)")
        return positions


def _number(text: str, image: bool) -> int:
    """The id in a name: COCO_val2014_000000365325.jpg -> 365325, COCO_val2014:sentid:732091 ->
    732091. Raises ValueError and IndexError on other names."""
    digits = text.rsplit("_", 1)[1].split(".")[0] if image else text.rsplit(":", 1)[1]
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{digits} is no number")
    return int(digits)


def read_ratings(path: str, kind: str, images: Index, captions: Index) -> Ratings:
    """One file of Crisscrossed Captions: kind is sts (caption pairs), sis (image pairs) or sits
    (caption and image).

    Raises InputError on a file that is missing, has other columns, holds other ratings than 0 to 5
    or was cut off, and on ids that the split lacks.
    """
    need(path, f"give the folder of {kind}_val.csv and {kind}_test.csv with --cxc_path: "
               f"{SOURCES['cxc']}")
    columns, reader = (*COLUMNS[kind], "agg_score"), csv.DictReader(read_lines(path))
    rows, row = [], {}
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path} has no column '{missing[0]}', its columns are "
                             f"{reason(ValueError(', '.join(reader.fieldnames or ['none'])))}; "
                             "fetch it again")
        for row in reader:
            if None in row.values():
                raise InputError(f"{path}, line {reader.line_num} has fewer cells than the header, "
                                 "so the file was cut off; fetch it again")
            first, second, score = (row[name] for name in columns)
            rows.append((_number(first, columns[0].startswith("image")),
                         _number(second, columns[1].startswith("image")), float(score)))
            if not 0 <= rows[-1][2] <= 5:
                raise InputError(f"{path}, line {reader.line_num}: the rating {score} is outside 0 "
                                 "to 5; fetch it again")
    except InputError:
        raise
    except (ValueError, IndexError, AttributeError, TypeError, csv.Error) as error:
        cells = ", ".join(f"'{str(row.get(name))[:60]}'" for name in columns)
        raise InputError(f"{path}, line {reader.line_num}: {cells} are not two ids and a rating "
                         f"({reason(error)}); fetch it again") from error
    check(rows, f"{path} has a header and no ratings, so the file was cut off; fetch it again")
    check_whole(path, rows)
    a, b, score = zip(*rows)
    sides = {"sts": (captions, captions), "sis": (images, images), "sits": (captions, images)}[kind]
    return Ratings(sides[0].positions(a, path), sides[1].positions(b, path), np.array(score))


FIRST = 10                            # rows by which a published file is recognised
# The published files of Crisscrossed Captions: checksum of the first rows -> number of rows,
# checksum of all rows.
PUBLISHED = {
    "2674a781f3cb79ed": (44_009, "529fd1b380c4cf32"),      # sts_val
    "e47c9446acc949ad": (42_767, "1ad84d5282fac5c7"),      # sis_val
    "6b128e85e326b0f9": (44_722, "e84f68fdf1579ccf"),      # sits_val
    "b4f8147f1489d569": (44_045, "f997e974cf8ff2af"),      # sts_test
    "fd23101e4ce0b580": (46_719, "4ec6b304f52cf2df"),      # sis_test
    "7bd10aa11c68d9a6": (44_833, "182e0f875d52eb25"),      # sits_test
}


def rows_checksum(rows: list[tuple]) -> str:
    """The first 16 hexadecimal digits of SHA-256 over ids and ratings."""
    return sha256("\n".join(f"{a} {b} {score:.6f}" for a, b, score in rows))[:16]


def check_whole(path: str, rows: list[tuple]) -> None:
    """Raises InputError on a file that begins like a published one and differs from it later: it
    was cut off or changed."""
    count, whole = PUBLISHED.get(rows_checksum(rows[:FIRST]), (0, ""))
    check(not count or rows_checksum(rows) == whole,
          f"{path} has {len(rows):,} rows where the published file that begins with the same "
          f"{FIRST} has {count:,}{', and other ratings' if len(rows) == count else ''}; it was cut "
          "off or changed, so fetch it again")


def read_cxc(folder: str, part: str, images: Index, captions: Index) -> dict[str, Ratings]:
    """The three files of one part, val or test: {"sts", "sis", "sits"}. Raises InputError as
    `read_ratings` does."""
    return {kind: read_ratings(os.path.join(folder, f"{kind}_{part}.csv"), kind, images, captions)
            for kind in COLUMNS}


def cxc_pairs(ratings: dict[str, Ratings], caption_image: np.ndarray, rule: str) -> dict[str, Pairs]:
    """Matches of Crisscrossed Captions: i2t, t2i, t2t and i2i.

    By the rule "ucmr" (`ucmr` 4.1), an image and a caption match if they are an original pair or
    are rated 3 or more. By the rule "eccv" they match only if they are rated 3 or more, which
    leaves a few captions without a match. Two captions match if they are of one image or are rated
    3 or more, two images if they are rated 2.5 or more. A pair that is listed more than once (many
    image pairs are, in both orders) counts with the mean of its ratings, in both directions.
    caption_image (M,): the row of each caption's image.
    """
    sits = ratings["sits"]
    extra = sits.score >= MATCH["sits"]
    caption, image = sits.first[extra], sits.second[extra]
    if rule == "ucmr":
        caption, image = np.r_[np.arange(len(caption_image)), caption], np.r_[caption_image, image]
    i2t, same = Pairs.of(image, caption), same_image_pairs(caption_image)
    i2i, t2t = alike(ratings["sis"], MATCH["sis"]), alike(ratings["sts"], MATCH["sts"])
    return {"i2t": i2t, "t2i": i2t.swapped(), "i2i": i2i,
            "t2t": Pairs.of(np.r_[same.query, t2t.query], np.r_[same.item, t2t.item])}


def alike(ratings: Ratings, least: float) -> Pairs:
    """Different items of one modality whose mean rating is at least this, in both directions."""
    ends = np.sort(np.stack([ratings.first, ratings.second]), axis=0)               # (2, K)
    pairs, which = np.unique(ends, axis=1, return_inverse=True)
    mean = np.bincount(which, ratings.score) / np.bincount(which)
    a, b = pairs[:, (mean >= least - 1e-9) & (pairs[0] != pairs[1])]
    return Pairs.of(np.r_[a, b], np.r_[b, a])


def same_image_pairs(caption_image: np.ndarray) -> Pairs:
    """Every caption with every other caption of its image. caption_image (M,): the row of each
    caption's image."""
    of = sparse.csr_array((np.ones(len(caption_image)), (np.arange(len(caption_image)), caption_image)))
    query, item = (of @ of.T).nonzero()
    return Pairs.of(query[query != item], item[query != item])


def read_instances(path: str, images: Index) -> np.ndarray:
    """COCO instances -> (N, K) bool: which of the K categories each image of the split shows.

    Raises InputError on a file that is missing, holds no instances or lacks an image of the split.
    """
    coco = read_coco(need(path, "give COCO's instances_val2014.json with --instances"))
    try:
        absent = [i for i in images.ids.tolist() if i not in coco.imgs]
        columns = {category: k for k, category in enumerate(sorted(coco.cats))}
        codes = np.zeros((len(images.ids), len(columns)), bool)
        for shown, i in zip(codes, images.ids.tolist()):
            shown[[columns[a["category_id"]] for a in coco.imgToAnns[i]]] = True
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is no file of COCO instances ({error!r} is missing); give "
                         "instances_val2014.json") from error
    check(columns and not absent,
          f"{path} has {len(columns)} categories and lacks {len(absent)} of the {len(images.ids)} "
          f"images of {images.source}{f', the first is {absent[0]}' if absent else ''}; give the "
          "instances of these images")
    return codes


def eccv_folder() -> str | None:
    """The folder in which the optional package eccv_caption keeps its data, or None. The package is
    not imported."""
    spec = importlib.util.find_spec("eccv_caption")
    return os.path.join(os.path.dirname(spec.origin), "data") if spec and spec.origin else None


def read_eccv(folder: str | None, images: Index, captions: Index) -> dict[str, Pairs]:
    """ECCV Caption: matches i2t of 1,261 images and t2i of 1,332 captions of COCO's test split.

    Two of its 22,550 captions are the sixth of their image. No split has these, so they are left
    out. Raises InputError where a file is missing, broken or of other items.
    """
    check(folder, "ECCV Caption's data are not here; pip install eccv_caption, or give the folder "
                  "of eccv_image_to_caption.json and eccv_caption_to_image.json with --eccv_path")
    found = {}
    for side, name, queries, items in (("i2t", "image_to_caption", images, captions),
                                       ("t2i", "caption_to_image", captions, images)):
        path = need(os.path.join(folder, f"eccv_{name}.json"),
                    "give the folder that holds it with --eccv_path")
        found[side] = _read_positives(path, read_json(path, unique=True), queries, items,
                                      known=True).pairs
    return found


def read_positives(path: str, images: Index, captions: Index) -> dict[str, Listed]:
    """The user's own matches: JSON {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image
    ids]}}, one or both.

    Raises InputError on a file that is missing, has another form, names an id twice or names ids
    that the split lacks.
    """
    need(path, "name the file of your matches with --positives")
    stored = read_json(path, POSITIVES, unique=True)
    ends = {"i2t": (images, captions), "t2i": (captions, images)}
    names = set(stored) if isinstance(stored, dict) else set()
    if not names or names - set(ends):
        wrong = f" but {ascii(next(iter(names - set(ends))))[:40]}" if names else ""
        raise InputError(f"{path} holds no positives under the names i2t and t2i{wrong}; "
                         f"{POSITIVES}, or one of the two")
    return {side: _read_positives(path, stored[side], *ends[side]) for side in stored}


def decimal(value):
    """A text of digits as the number that it writes; anything else as it is."""
    digits = isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value)
    return int(value) if digits else value


def _keys(path: str, stored: dict, index: Index) -> np.ndarray:
    """The positions of the ids that are a table's keys."""
    at = index.positions([decimal(key) for key in stored], path)
    check(len(set(at.tolist())) == len(at), f"{path} names a {index.what} under two spellings of its "
                                            "id; name each once")
    return at


def _read_positives(path: str, stored, queries: Index, items: Index, known: bool = False) -> Listed:
    """Matches of one direction, from {query: [items]}. known: those of items that the split lacks
    are left out."""
    check(isinstance(stored, dict) and all(isinstance(ids, list) for ids in stored.values()),
          f"{path} is not a table of ids and lists of ids; {POSITIVES}")
    item = integers([decimal(i) for ids in stored.values() for i in ids], path,
                    f"the {items.what} id")
    size = [len(ids) for ids in stored.values()]
    query = np.repeat(_keys(path, stored, queries), size)
    twice = next((key for key, ids in stored.items() if repeated(map(decimal, ids)) is not None),
                 None)
    check(twice is None, f"{path} lists a positive of {queries.what} {twice} twice; list each once")
    if known:
        inside = np.isin(item, items.ids)
        query, item = query[inside], item[inside]
    return Listed(Pairs.of(query, items.positions(item, path)), size.count(0))
