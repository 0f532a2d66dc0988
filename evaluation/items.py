"""Whose items are these? What is known of images and captions, compared wherever two things meet that should be about the same.

Embeddings meet a split, a run meets another one, an ensemble's members meet each other. Where both sides know their items, by
ids, names or texts, they are compared and put in one order; where they differ that is said; where nothing can be compared,
what is assumed is said, so that a number is never about other items than those named.
"""
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cli import InputError, reason


@dataclass
class Items:
    """N images and M captions, and what is known of them; None: not known."""
    source: str                       # where they come from, for messages
    owner: np.ndarray                 # (M,) the row of each caption's image
    n_images: int
    image_ids: list[int] | None = None        # N whole numbers
    image_names: list[str] | None = None      # N file names
    caption_ids: list[int] | None = None      # M whole numbers
    captions: list[str] | None = None         # M texts
    data_name: str = ""
    split: str = ""                   # "dev" for val; nothing where it is not known
    assumed: bool = False             # nothing says whose caption each is: an equal number for every image, in order


class Order(NamedTuple):
    """Rows of images (N,) and captions (M,) that put items in the order of others, and sentences for the reader."""
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
    return Items(split.source, split.caption_image, len(split.images), ids if numbered else None, names, caption_ids,
                 split.captions, data_name, "dev" if split.name == "val" else split.name)


def order_like(mine: Items, theirs: Items) -> Order:
    """The rows of `mine` that put its items in the order of `theirs`. Raises InputError where they are other items, or where
    that cannot be told although they contradict each other."""
    counts = [(items.n_images, len(items.owner)) for items in (mine, theirs)]
    if counts[0] != counts[1]:
        raise InputError(f"{mine.source} has {counts[0][0]} images and {counts[0][1]} captions where what it meets has "
                         f"{counts[1][0]} and {counts[1][1]} of {theirs.source}; compare runs on the same split with "
                         "--data_name and --split")
    one = not (mine.data_name and theirs.data_name) or mine.data_name == theirs.data_name
    if mine.split and theirs.split and one and mine.split != theirs.split:
        raise InputError(f"{mine.source} is of the {mine.split} split and {theirs.source} of the {theirs.split} split of "
                         f"{mine.data_name or theirs.data_name or 'some data'}; they must be about the same items, so give "
                         "both of one split")
    notes, rows = [], np.arange(mine.n_images)
    if mine.captions is not None and mine.captions == theirs.captions and np.array_equal(mine.owner, theirs.owner):
        for kind in ("image_ids", "caption_ids"):           # SCAN numbers rows where VSE++ has COCO's ids
            own, other = getattr(mine, kind), getattr(theirs, kind)
            if own is not None and other is not None and list(own) != list(other):
                notes.append(f"{mine.source} and {theirs.source} have other {kind.replace('_', ' ')}; their captions are the "
                             "same word for word, so the items are taken for the same")
        return Order(rows, np.arange(len(mine.owner)), notes)
    images = matched(mine, theirs, "image", (("ids", mine.image_ids, theirs.image_ids),
                                             ("names", *alike(mine.image_names, theirs.image_names))), notes)
    rows = rows if images is None else images
    place = np.empty(len(rows), np.int64)                                           # of each of mine among theirs
    place[rows] = np.arange(len(rows))
    captions = matched(mine, theirs, "caption", (("ids", mine.caption_ids, theirs.caption_ids),
                                                 ("texts", *texts(mine, theirs, place))), notes)
    if captions is None and not mine.assumed:
        wrong = np.flatnonzero(place[mine.owner] != theirs.owner)
        if len(wrong):
            raise InputError(f"{mine.source} gives {len(wrong)} of its {len(mine.owner)} captions to other images than "
                             f"{theirs.source}, the first is caption {wrong[0] + 1}, and has no caption ids by which they "
                             "could be put in order; add caption_id, or evaluate it by itself and compare only what is of the "
                             "same split in one order")
    columns = np.arange(len(mine.owner)) if captions is None else captions
    if captions is not None and not mine.assumed and (place[mine.owner[columns]] != theirs.owner).any():
        raise InputError(f"{mine.source} and {theirs.source} name the same captions and give some of them to different images; "
                         "one of the two is wrong about whose captions they are, so they cannot be compared: compare runs on "
                         "the same split")
    notes += contradictions(mine, theirs, rows, columns)
    unknown = [what for what, found in (("images", images), ("captions", captions)) if found is None]
    if unknown == ["images"] and not mine.assumed:
        unknown = []                                        # captions that are the same, of the same images
    if unknown and mine.data_name and theirs.data_name and mine.data_name != theirs.data_name:
        raise InputError(f"{mine.source} is of {mine.data_name} and {theirs.source} of {theirs.data_name}, and no ids tell "
                         f"that their {' and '.join(unknown)} are the same; compare what is of one data set, or give both ids")
    if unknown:
        notes.append(f"{mine.source} does not say which {' and '.join(unknown)} it is about: those of {theirs.source} in their "
                     "order, assumed")
    return Order(rows, columns, notes)


def matched(mine: Items, theirs: Items, what: str, kinds, notes: list[str]) -> np.ndarray | None:
    """The rows of mine in the order of theirs, by the first kind of name that both have; None where there is none."""
    for kind, own, other in kinds:
        if own is None or other is None:
            continue
        if list(own) == list(other):
            return np.arange(len(own))
        row = {name: k for k, name in enumerate(own)}
        absent = [name for name in other if name not in row]
        if absent or len(row) < len(own):
            said = (f"{len(absent)} of its {len(other)} {what}s, the first is {reason(ValueError(first_of(absent[0])), 60)}"
                    if absent else f"the {what}s, as it names some twice")
            raise InputError(f"{mine.source} is about other items than {theirs.source}: by their {kind} it lacks {said}; "
                             "compare runs on the same split, and give embeddings of it")
        rows = np.array([row[name] for name in other], np.int64)
        moved = int((rows != np.arange(len(rows))).sum())
        if moved:
            notes.append(f"{mine.source}: {moved:,} of {len(rows):,} {what}s stood in another order and were put in that of "
                         f"{theirs.source} by their {kind}")
        return rows
    return None


def contradictions(mine: Items, theirs: Items, rows: np.ndarray, columns: np.ndarray) -> list[str]:
    """Notes on what else is known of items that were matched and is not the same on both sides. Raises InputError where that
    shows other items under the same ids, as two data sets that both count from 0 have."""
    notes = []
    for what, own, other, order in (("image names", *alike(mine.image_names, theirs.image_names), rows),
                                    ("captions", mine.captions, theirs.captions, columns)):
        if own is None or other is None:
            continue
        other_words = [(own[k], name) for k, name in zip(order, other) if plain(own[k]) != plain(name)]
        if len(other_words) > len(other) / 10:
            raise InputError(f"{mine.source} and {theirs.source} have the same ids and other {what}, {len(other_words)} of "
                             f"{len(other)}, as '{reason(ValueError(str(other_words[0][0])), 40)}' and "
                             f"'{reason(ValueError(str(other_words[0][1])), 40)}': they are other items; compare runs on the "
                             "same split")
        if other_words:
            notes.append(f"{mine.source} and {theirs.source} have other {what} in {len(other_words)} of {len(other)} places; "
                         "their ids agree, so the items are taken for the same")
    if mine.data_name and theirs.data_name and mine.data_name != theirs.data_name:
        notes.append(f"{mine.source} is of {mine.data_name} and {theirs.source} of {theirs.data_name}; what else is known of "
                     "their items agrees, so they are taken for the same")
    return notes


def plain(name) -> str:
    """Letters and digits alone, in small: captions of one data set are often stored in several spellings."""
    return "".join(filter(str.isalnum, str(name).lower()))


def first_of(name) -> str:
    return str(name[1] if isinstance(name, tuple) else name)


def alike(mine: list[str] | None, theirs: list[str] | None) -> tuple:
    """File names as they are, or without their folders where only so they agree."""
    if mine is None or theirs is None or set(mine) == set(theirs):
        return mine, theirs
    short = [[os.path.basename(str(name)) for name in names] for names in (mine, theirs)]
    return tuple(short) if all(len(set(names)) == len(names) for names in short) else (mine, theirs)


def texts(mine: Items, theirs: Items, place: np.ndarray) -> tuple:
    """Names of captions made of their image, their text and, of equal ones, a count."""
    if mine.captions is None or theirs.captions is None:
        return None, None
    return numbered(zip(place[mine.owner].tolist(), mine.captions)), numbered(zip(theirs.owner.tolist(), theirs.captions))


def numbered(names) -> list[tuple]:
    """Each name with how many equal ones stood before it."""
    seen, found = {}, []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        found.append((*name, seen[name]))
    return found
