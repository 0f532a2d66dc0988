"""Compares whose images and captions two sources are about, wherever they should be the same items.

Embeddings meet a split, a run meets another run, the members of an ensemble meet each other. Where
both sides know their items, by ids, names or texts, they are compared and put in one order.
Differences are reported. Where nothing can be compared, the report says what is assumed, so that a
number is never about other items than those named.
"""
import os
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cli import InputError, check, reason


@dataclass
class Items:
    """What is known of N images and M captions; None where it is not known."""
    source: str                       # where they come from, for messages
    owner: np.ndarray                 # (M,) the row of each caption's image
    n_images: int
    image_ids: list[int] | None = None        # N whole numbers
    image_names: list[str] | None = None      # N file names
    caption_ids: list[int] | None = None      # M whole numbers
    captions: list[str] | None = None         # M texts
    data_name: str = ""
    split: str = ""                   # "dev" for val; nothing where it is not known
    assumed: bool = False           # `owner` is a guess: as many captions for every image, in order


class Order(NamedTuple):
    """Rows of images (N,) and captions (M,) that put items in the order of others, and notes for
    the reader."""
    images: np.ndarray
    captions: np.ndarray
    notes: list[str]

    @property
    def same(self) -> bool:
        return all((rows == np.arange(len(rows))).all() for rows in self[:2])


def of_split(split, data_name: str) -> Items:
    """The items of a `data.Split`."""
    ids = split.image_ids
    numbered = ids is not None and all(isinstance(i, (int, np.integer)) for i in ids)
    names = split.photo_names or (None if numbered or ids is None else [str(i) for i in ids])
    caption_ids = None if split.caption_ids is None else list(map(int, split.caption_ids))
    return Items(split.source, split.caption_image, len(split.images), ids if numbered else None,
                 names, caption_ids, split.captions, data_name, "dev" if split.name == "val"
                 else split.name)


def order_like(mine: Items, theirs: Items) -> Order:
    """The rows of `mine` that put its items in the order of `theirs`. Raises InputError where they
    are other items, or where they contradict each other and nothing tells which is right."""
    here, there = ((items.n_images, len(items.owner)) for items in (mine, theirs))
    check(here == there, f"{mine.source} has {here[0]} images and {here[1]} captions where what it "
                         f"meets has {there[0]} and {there[1]} of {theirs.source}; compare runs on "
                         "the same split with --data_name and --split")
    one = not (mine.data_name and theirs.data_name) or mine.data_name == theirs.data_name
    check(not (mine.split and theirs.split and one) or mine.split == theirs.split,
          f"{mine.source} is of the {mine.split} split and {theirs.source} of the {theirs.split} "
          f"split of {mine.data_name or theirs.data_name or 'some data'}; they must be about the "
          "same items, so give both of one split")
    notes, rows = [], np.arange(mine.n_images)
    if mine.captions is not None and mine.captions == theirs.captions and np.array_equal(mine.owner, theirs.owner):
        for kind in ("image_ids", "caption_ids"):     # SCAN numbers rows where VSE++ has COCO's ids
            ids, others = getattr(mine, kind), getattr(theirs, kind)
            if ids is not None and others is not None and list(ids) != list(others):
                notes.append(f"{mine.source} and {theirs.source} have other "
                             f"{kind.replace('_', ' ')}; their captions are the same word for "
                             "word, so the items are taken for the same")
        return Order(rows, np.arange(len(mine.owner)), notes)
    names = alike(mine.image_names, theirs.image_names)
    images = matched(mine, theirs, "image", (("ids", mine.image_ids, theirs.image_ids),
                                             ("names", *names)), notes)
    rows = rows if images is None else images
    place = np.empty(len(rows), np.int64)                             # of each of mine among theirs
    place[rows] = np.arange(len(rows))
    captions = matched(mine, theirs, "caption", (("ids", mine.caption_ids, theirs.caption_ids),
                                                 ("texts", *texts(mine, theirs, place))), notes)
    if captions is None and not mine.assumed:
        wrong = np.flatnonzero(place[mine.owner] != theirs.owner)
        if len(wrong):
            raise InputError(f"{mine.source} gives {len(wrong)} of its {len(mine.owner)} captions "
                             f"to other images than {theirs.source}, the first is caption "
                             f"{wrong[0] + 1}, and has no caption ids by which they could be put "
                             "in order; add caption_id, or evaluate it by itself and compare "
                             "only what is of the same split in one order")
    columns = np.arange(len(mine.owner)) if captions is None else captions
    refuse_half_moved(mine, theirs, images, captions)
    moved = captions is not None and (place[mine.owner[columns]] != theirs.owner).any()
    check(mine.assumed or not moved,
          f"{mine.source} and {theirs.source} name the same captions and give some of them to "
          "different images; one of the two is wrong about whose captions they are, so they cannot "
          "be compared: compare runs on the same split")
    notes += contradictions(mine, theirs, rows, columns)
    unknown = [what for what, order in (("images", images), ("captions", captions))
               if order is None]
    if unknown == ["images"] and not mine.assumed:
        unknown = []                       # the same captions, of images that must be the same, too
    if unknown and mine.data_name and theirs.data_name and mine.data_name != theirs.data_name:
        raise InputError(f"{mine.source} is of {mine.data_name} and {theirs.source} of "
                         f"{theirs.data_name}, and no ids tell that their {' and '.join(unknown)} "
                         "are the same; compare what is of one data set, or give both ids")
    if unknown:
        notes.append(f"{mine.source} does not say which {' and '.join(unknown)} it is about: those "
                     f"of {theirs.source} in their order, assumed")
    return Order(rows, columns, notes)


def refuse_half_moved(mine: Items, theirs: Items, images: np.ndarray | None,
                      captions: np.ndarray | None) -> None:
    """Raises InputError where one side is in another order and nothing says what it belongs to on
    the other side."""
    for what, order, others, there in (("images", images, "captions", captions),
                                       ("captions", captions, "images", images)):
        if mine.assumed and there is None and order is not None and (order
                                                                     != np.arange(
            len(order))).any():
            raise InputError(f"{mine.source} has its {what} in another order than {theirs.source}, "
                             f"by their ids or names, and does not say which {others} they belong "
                             "to; add caption_image, whose caption each is, or the ids of the "
                             f"{others}")


def matched(mine: Items, theirs: Items, what: str, kinds, notes: list[str]) -> np.ndarray | None:
    """The rows of mine in the order of theirs, by the first kind of name that both have; None where
    both have none.

    kinds: (what the names are, mine, theirs), names of one kind each. Adds to `notes` where rows
    move. Raises InputError where mine lacks an item of theirs, or has a name twice.
    """
    for kind, names, others in kinds:
        if names is None or others is None:
            continue
        if list(names) == list(others):
            return np.arange(len(names))
        row = {name: k for k, name in enumerate(names)}
        absent = [name for name in others if name not in row]
        if absent or len(row) < len(names):
            lacks = f"the {what}s, as it names some twice"
            if absent:
                first = reason(ValueError(first_of(absent[0])), 60)
                lacks = f"{len(absent)} of its {len(others)} {what}s, the first is {first}"
            raise InputError(f"{mine.source} is about other items than {theirs.source}: by their "
                             f"{kind} it lacks {lacks}; compare runs on the same split, and give "
                             "embeddings of it")
        rows = np.array([row[name] for name in others], np.int64)
        moved = int((rows != np.arange(len(rows))).sum())
        if moved:
            notes.append(f"{mine.source}: {moved:,} of {len(rows):,} {what}s stood in another "
                         f"order and were put in that of {theirs.source} by their {kind}")
        return rows
    return None


def contradictions(mine: Items, theirs: Items, rows: np.ndarray, columns: np.ndarray) -> list[str]:
    """Notes on matched items of which the two sides know different things. Raises InputError where
    that shows other items under the same ids, as two data sets have that both count from 0."""
    notes = []
    for what, names, others, order in (("image names", *alike(mine.image_names, theirs.image_names),
                                        rows), ("captions", mine.captions, theirs.captions,
                                                columns)):
        if names is None or others is None:
            continue
        unlike = [(names[k], name) for k, name in zip(order, others) if letters(names[k])
                  != letters(name)]
        if len(unlike) > len(others) / 10:
            first, second = (reason(ValueError(str(name)), 40) for name in unlike[0])
            raise InputError(f"{mine.source} and {theirs.source} have the same ids and other "
                             f"{what}, {len(unlike)} of {len(others)}, as '{first}' and "
                             f"'{second}': they are other items; compare runs on the same split")
        if unlike:
            notes.append(f"{mine.source} and {theirs.source} have other {what} in {len(unlike)} of "
                         f"{len(others)} places; their ids agree, so the items are taken for the "
                         "same")
    if mine.data_name and theirs.data_name and mine.data_name != theirs.data_name:
        notes.append(f"{mine.source} is of {mine.data_name} and {theirs.source} of "
                     f"{theirs.data_name}; what else is known of their items agrees, so they are "
                     "taken for the same")
    return notes


def letters(name) -> str:
    """The letters and digits of a name, in small letters: the captions of one data set come in
    several spellings."""
    return "".join(filter(str.isalnum, str(name).lower()))


def first_of(name) -> str:
    """A name as messages show it; of a `numbered` caption its text."""
    return str(name[1] if isinstance(name, tuple) else name)


def alike(mine: list[str] | None, theirs: list[str] | None) -> tuple:
    """File names as they are where they agree, else without their folders where these leave no two
    names alike."""
    if mine is None or theirs is None or set(mine) == set(theirs):
        return mine, theirs
    short = [[os.path.basename(str(name)) for name in names] for names in (mine, theirs)]
    return tuple(short) if all(len(set(names)) == len(names) for names in short) else (mine, theirs)


def texts(mine: Items, theirs: Items, place: np.ndarray) -> tuple:
    """Names of captions on both sides, (image, text, count of equal ones before it); None twice
    where a side has no texts. place (N,): the row among theirs of each image of mine."""
    if mine.captions is None or theirs.captions is None:
        return None, None
    images = place[mine.owner].tolist()                         # (M,) of each caption, among theirs
    return numbered(zip(images, mine.captions)), numbered(zip(theirs.owner.tolist(),
                                                              theirs.captions))


def numbered(names) -> list[tuple]:
    """Each name with how many equal ones stand before it."""
    count, results = Counter(), []
    for name in names:
        results.append((*name, count[name]))
        count[name] += 1
    return results
