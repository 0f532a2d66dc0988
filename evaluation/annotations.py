"""Readers of judgements beyond the original pairs: Crisscrossed Captions, COCO instances, ECCV
Caption, own positives.

The files name COCO's image ids and caption (annotation) ids. `Index` turns them into rows and
columns of the matrix of scores.
"""
import csv
import hashlib
import importlib.util
import os
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cli import InputError, reason
from files.reading import SOURCES, integers, read_coco, read_json, read_lines

MATCH = {"sits": 3.0, "sts": 3.0, "sis": 2.5}       # least rating of a match (Parekh et al. 2021)
POSITIVES = 'give JSON {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image ids]}}'
LEVELS = '"levels" is {caption id: whole number from 0 to 99}; correct it, or leave it out'
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
    method: np.ndarray                # (K,) str


class Crisscrossed(NamedTuple):
    """Crisscrossed Captions: the ratings, and the matches that follow from them."""
    ratings: dict[str, Ratings]       # sts, sis, sits
    pairs: dict[str, Pairs]           # i2t, t2i, i2i, t2t


class Listed(NamedTuple):
    """Matches of one direction that a file lists."""
    pairs: Pairs
    without: int                      # queries that it names and lists no match of


class Positives(dict[str, Listed]):
    """Matches of i2t, t2i or both that a file lists, {direction: Listed}, and the levels that it
    gives captions."""
    # (M,) int64: a level of each caption, 0 to 99, -1: none given; None: no levels
    levels: np.ndarray | None = None


class Index:
    """Positions of ids in a split. Raises InputError where ids are missing or stand there twice."""

    def __init__(self, ids, what: str, source: str):
        if ids is None or not all(isinstance(i, (int, np.integer)) for i in ids):
            kind, fields = ("img", "cocoid or imgid") if what == "image" else ("ann", "sentid")
            raise InputError(f"{source} has no {what} ids, which the annotations name; "
                             + (f"give every {'image' if what == 'image' else 'sentence'} of the "
                                f"split an integer {fields} of its own" if source.endswith(".json")
                                else f"store them in order as {what}_id" if source.endswith(".npz")
                                else f"put them in order into {{split}}_{kind}_ids.npy beside the "
                                "captions"))
        self.ids, self.what, self.source = integers(ids, source, f"an {what} the id"), what, source
        self.order, self.known = np.argsort(self.ids, kind="stable"), set(self.ids.tolist())
        twice = np.flatnonzero(np.diff(self.ids[self.order]) == 0)
        if len(twice):
            raise InputError(f"{source} lists {what} id {self.ids[self.order][twice[0]]} twice "
                             f"({len(twice)} such); every {what} needs an id of its own")

    def __contains__(self, number: int) -> bool:
        return number in self.known

    def positions(self, ids, path: str) -> np.ndarray:
        """(K,) ids -> (K,) positions. Raises InputError where the split lacks an id."""
        ids = integers(ids, path, f"an {self.what} the id")
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=self.order), len(self.ids) - 1)
        positions = self.order[at]
        absent = np.unique(ids[self.ids[positions] != ids])
        if len(absent):
            raise InputError(f"{path} names {len(absent)} {self.what}s that {self.source} lacks, "
                             f"the first is {absent[0]}; annotations and split must belong "
                             "together (all 5,000 images of COCO's test, or of dev with "
                             "--dev_images 0)")
        return positions


class Ids:
    """The `Index` of a split's images and that of its captions, each made when it is first
    needed."""

    def __init__(self, items):
        self.items = items

    @cached_property
    def images(self) -> Index:
        return Index(self.items.image_ids, "image", self.items.source)

    @cached_property
    def captions(self) -> Index:
        return Index(self.items.caption_ids, "caption", self.items.source)


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
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; give the folder of {kind}_val.csv and "
                         f"{kind}_test.csv with --cxc_path: {SOURCES['cxc']}")
    first, second = COLUMNS[kind]
    rows = []
    reader = csv.DictReader(read_lines(path))
    row = {}
    try:
        missing = [c for c in (first, second, "agg_score") if c not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path} has no column '{missing[0]}', its columns are "
                             f"{reason(ValueError(', '.join(reader.fieldnames or ['none'])))}; "
                             "fetch it again")
        for row in reader:
            if None in row.values():
                raise InputError(f"{path}, line {reader.line_num} has fewer cells than the header, "
                                 "so the file was cut off; fetch it again")
            rows.append(
                (
                    *(_number(row[name], name.startswith("image")) for name in (first, second)),
                    float(row["agg_score"]),
                    row.get("sampling_method") or "",
                )
            )
            if not 0 <= rows[-1][2] <= 5:
                raise InputError(f"{path}, line {reader.line_num}: the rating {rows[-1][2]} is "
                                 "outside 0 to 5; fetch it again")
    except InputError:
        raise
    except (ValueError, IndexError, AttributeError, TypeError, csv.Error) as error:
        cells = ", ".join(f"'{str(row.get(name))[:60]}'" for name in (first, second, "agg_score"))
        raise InputError(f"{path}, line {reader.line_num}: {cells} are not two ids and a rating "
                         f"({reason(error)}); fetch it again") from error
    if not rows:
        raise InputError(f"{path} has a header and no ratings, so the file was cut off; fetch it "
                         "again")
    check_whole(path, rows)
    a, b, score, method = map(list, zip(*rows))
    sides = {"sts": (captions, captions), "sis": (images, images), "sits": (captions, images)}[kind]
    return Ratings(sides[0].positions(a, path), sides[1].positions(b, path), np.array(score, float),
                   np.array(method))


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
    return hashlib.sha256("\n".join(f"{a} {b} {score:.6f}" for a, b, score,
                                    _ in rows).encode()).hexdigest()[:16]


def check_whole(path: str, rows: list[tuple]) -> None:
    """Raises InputError on a file that begins like a published one and differs from it later: it
    was cut off or changed."""
    count, whole = PUBLISHED.get(rows_checksum(rows[:FIRST]), (None, None))
    if whole is not None and (len(rows) != count or rows_checksum(rows) != whole):
        raise InputError(f"{path} has {len(rows):,} rows where the published file that begins with "
                         f"the same {FIRST} has "
                         f"{count:,}{', and other ratings' if len(rows) == count else ''}; it was "
                         "cut off or changed, so fetch it again")


def read_cxc(folder: str, part: str, images: Index, captions: Index) -> dict[str, Ratings]:
    """The three files of one part, val or test: {"sts", "sis", "sits"}. Raises InputError as
    `read_ratings` does."""
    return {kind: read_ratings(os.path.join(folder, f"{kind}_{part}.csv"), kind, images, captions)
            for kind in COLUMNS}


def cxc_pairs(
    ratings: dict[str, Ratings], caption_image: np.ndarray, rule: str
) -> dict[str, Pairs]:
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
    i2t = Pairs.of(image, caption)
    alike = {}
    for kind in ("sts", "sis"):
        r = ratings[kind]
        ends = np.sort(np.stack([r.first, r.second], 1), axis=1)                    # (K, 2)
        pairs, which = np.unique(ends, axis=0, return_inverse=True)
        mean = np.bincount(which, r.score) / np.bincount(which)
        good = pairs[(mean >= MATCH[kind] - 1e-9) & (pairs[:, 0] != pairs[:, 1])]
        alike[kind] = np.concatenate([good, good[:, ::-1]])
    same = same_image_pairs(caption_image)
    return {"i2t": i2t, "t2i": i2t.swapped(), "i2i": Pairs.of(*alike["sis"].T),
            "t2t": Pairs.of(np.r_[same.query, alike["sts"][:, 0]],
                            np.r_[same.item, alike["sts"][:, 1]])}


def same_image_pairs(caption_image: np.ndarray) -> Pairs:
    """Every caption with every other caption of its image. caption_image (M,): the row of each
    caption's image."""
    order = np.argsort(caption_image, kind="stable")
    size = np.bincount(caption_image)
    start = np.cumsum(size) - size
    n = size[caption_image[order]]                                      # (M,) captions of its image
    query = np.repeat(order, n)
    within = np.arange(len(query)) - np.repeat(np.cumsum(n) - n, n)
    item = order[np.repeat(start[caption_image[order]], n) + within]
    return Pairs.of(query[query != item], item[query != item])


def read_instances(path: str, images: Index) -> np.ndarray:
    """COCO instances -> (N, K) bool: which of the K categories each image of the split shows.

    Raises InputError on a file that is missing, holds no instances or lacks an image of the split.
    """
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; give COCO's instances_val2014.json with "
                         "--instances")
    coco = read_coco(path)
    try:
        absent = [int(i) for i in images.ids if int(i) not in coco.imgs]
        columns = {category: k for k, category in enumerate(sorted(coco.cats))}
        shown = [[columns[a["category_id"]] for a in coco.imgToAnns[int(i)]] for i in images.ids]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is no file of COCO instances ({error!r} is missing); give "
                         "instances_val2014.json") from error
    if absent or not columns:
        raise InputError(f"{path} has {len(columns)} categories and lacks {len(absent)} of the "
                         f"{len(images.ids)} images of "
                         f"{images.source}{f', the first is {absent[0]}' if absent else ''}; give "
                         "the instances of these images")
    codes = np.zeros((len(images.ids), len(columns)), bool)
    for n, categories in enumerate(shown):
        codes[n, categories] = True
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
    if folder is None:
        raise InputError("ECCV Caption's data are not here; pip install eccv_caption, or give the "
                         "folder of eccv_image_to_caption.json and eccv_caption_to_image.json "
                         "with --eccv_path")
    return {side: _read_positives(os.path.join(folder, f"eccv_{name}.json"), None, queries,
                                  items).pairs for side, name, queries,
            items in (("i2t", "image_to_caption", images, captions),
                      ("t2i", "caption_to_image", captions, images))}


def read_positives(path: str, images: Index, captions: Index) -> Positives:
    """The user's own matches: JSON {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image
    ids]}}, one or both.

    Beside these may stand "levels", {caption id: whole number from 0 to 99}, such as how much a
    caption says, of any of the captions. Raises InputError on a file that is missing, has another
    form, names an id twice or names ids that the split lacks.
    """
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; name the file of your matches with --positives")
    stored = read_json(path, POSITIVES, unique=True)
    ends = {"i2t": (images, captions), "t2i": (captions, images)}
    names = set(stored) - {"levels"} if isinstance(stored, dict) else set()
    if not names or names - set(ends):
        wrong = f" but {ascii(next(iter(names - set(ends))))[:40]}" if names else ""
        raise InputError(f"{path} holds no positives under the names i2t and t2i{wrong}; "
                         f"{POSITIVES}, or one of the two")
    positives = Positives({side: _read_positives(path, stored[side], *ends[side]) for side in stored
                           if side in ends})
    if "levels" in stored:
        positives.levels = _read_levels(path, stored["levels"], captions)
    return positives


def _read_levels(path: str, stored, captions: Index) -> np.ndarray:
    """(M,) int64: the levels of {caption id: level}, -1 for captions that it leaves out."""
    if not isinstance(stored, dict):
        raise InputError(f"{path}: \"levels\" is {ascii(stored)[:40]}, no table of captions; "
                         f"{LEVELS}")
    numbers = [decimal(key) for key in stored]
    for key, number, level in zip(stored, numbers, stored.values(), strict=True):
        if type(number) is not int or number >= 2 ** 63:
            raise InputError(f"{path}: \"levels\" names {ascii(key)[:40]}, no id of a caption; "
                             f"{LEVELS}")
        if type(level) is not int or not 0 <= level <= 99:
            raise InputError(f"{path}: the level of caption {number} is {ascii(level)[:40]}; "
                             f"{LEVELS}")
    position, levels = captions.positions(numbers, path), np.full(len(captions.ids), -1)
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{path}: \"levels\" names a caption under two spellings of its id; name "
                         "each caption once")
    levels[position] = list(stored.values())
    return levels


def decimal(value):
    """A text of digits as the number that it writes; anything else as it is."""
    return int(value) if isinstance(value,
                                    str) and value.isascii() and value.isdigit() and len(
        value) < 20 else value


def _read_positives(path: str, stored: dict | None, queries: Index, items: Index) -> Listed:
    """Matches of one direction, from {query: [items]} or, where that is None, from a file of ECCV
    Caption."""
    eccv = stored is None
    if eccv:
        if not os.path.isfile(path):
            raise InputError(f"there is no file {path}; give the folder that holds it with "
                             "--eccv_path")
        stored = read_json(path, unique=True)
    if not isinstance(stored, dict) or not all(isinstance(ids, list) for ids in stored.values()):
        raise InputError(f"{path} is not a table of ids and lists of ids; {POSITIVES}")
    lists = []
    for key, ids in stored.items():
        query, ids = decimal(key), [decimal(i) for i in ids]
        wrong = next((i for i in (query, *ids) if type(i) is not int or abs(i) >= 2 ** 63), None)
        if wrong is not None:
            raise InputError(f"{path} is not a table of ids and lists of ids: {ascii(wrong)[:40]} "
                             f"is no whole number of at most 64 bits; {POSITIVES}")
        lists.append((query, ids))
        if len(set(ids)) < len(ids):
            raise InputError(f"{path} lists a positive of {queries.what} {query} twice; list each "
                             "once")
    if eccv:
        lists = [(query, [i for i in ids if i in items]) for query, ids in lists]
    size = [len(ids) for _, ids in lists]
    query = queries.positions([query for query, _ in lists], path)
    if len(set(query.tolist())) < len(query):
        raise InputError(f"{path} lists a query under two spellings of its id; list each "
                         f"{queries.what} once")
    item = items.positions([i for _, ids in lists for i in ids], path)
    return Listed(Pairs.of(np.repeat(query, size), item), size.count(0))
