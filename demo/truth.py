"""Truth: which captions are true of which images, of their own and of all others.

A caption is true of an image when everything that it says holds in the image's scene:

- The things that it mentions are different things of the scene, and all that is said of one (size,
  texture, colour, shape, place) holds of one and the same thing.
- A relation holds between the very things that are described so. It is that of the axis on which
  their centres differ most, as where captions are written (`captions.relation`).
- Numbers are exact: "two circles and a star" is false of three circles, and of two stars. "Some"
  and their like are at least three, "several" at least four.
- The background is the one that is told, and shaded if the caption says so. A caption that does not
  is true of both.

It differs from a share of 1 of `captions.shared_weight` in one point. A Statement knows "several shapes" as the number
of things that its own image has, though the words do not tell it. Here captions of the same words are true of the same
images.
"""
from typing import NamedTuple

import numpy as np

from demo.captions import ASPECTS, REST, caption_statement, pairings, scene_statement
from demo.scenes import MAX_OBJECTS

SEVERAL = 4                      # the least number of things that captions call several
LARGEST = 5000  # images of a split whose matches are written, as these grow with the square of them


class Claim(NamedTuple):
    """All that a caption says. Captions that say the same have equal claims."""
    # of (6 codes): the value of each of ASPECTS of a thing, counted from 1; 0: not said. At least
    # one is said of each thing, so none is found where a scene has no thing
    things: tuple
    relations: tuple     # of (i, j, code): where thing i is seen from thing j, a place in RELATIONS
    rest: tuple               # of places in REST: background, shading, how many there are of a kind
    least: int                   # the least number of things


class Shown(NamedTuple):
    """N scenes as codes of 6 things each, 0 throughout where a scene has fewer."""
    # (N, 6, 6) int8: each of ASPECTS of each thing, counted from 1; 0: none clearly holds
    things: np.ndarray
    # (N, 6, 6) int8: where the row's thing is seen from the column's, a place in RELATIONS
    relations: np.ndarray
    rest: np.ndarray             # (N, R) bool: which of REST hold
    number: np.ndarray           # (N,) int64: how many things there are


def claim(scene, caption):
    """Build the Claim of a caption of a scene."""
    said, attributes = caption_statement(scene, caption), [a for _, a in caption.says]
    rest = tuple(k for k, item in enumerate(REST) if item in said.rest)
    if "number" in caption.tells:                            # the numbers in `rest` say it all
        return Claim((), (), rest, 1)
    if not any(attributes):                                  # "some shapes", "several shapes"
        return Claim((), (), rest, min(len(attributes), SEVERAL))
    pairs = zip(*np.nonzero(np.triu(said.relations)), strict=True)
    relations = tuple((int(i), int(j), int(said.relations[i, j])) for i, j in pairs)
    return Claim(tuple(map(tuple, said.things.tolist())), relations, rest, len(attributes))


def shown(scenes):
    """Build the Shown of N scenes."""
    n = len(scenes)
    result = Shown(np.zeros((n, MAX_OBJECTS, len(ASPECTS)), np.int8),
                   np.zeros((n, MAX_OBJECTS, MAX_OBJECTS), np.int8), np.zeros((n, len(REST)), bool),
                   np.array([len(scene.things) for scene in scenes]))
    for k, scene in enumerate(scenes):
        shows, count = scene_statement(scene), len(scene.things)
        result.things[k, :count] = shows.things
        result.relations[k, :count, :count] = shows.relations
        result.rest[k] = [item in shows.rest for item in REST]
    return result


def true_of(said, shows):
    """Find the scenes of which a Claim is true: positions (n,), rising."""
    rows = np.flatnonzero((shows.number >= said.least) & shows.rest[:, list(said.rest)].all(1))
    if not said.things:
        return rows
    things = np.array(said.things, np.int8)[:, None]                                     # (k, 1, 6)
    fits = ((things == shows.things[rows, None]) | (things == 0)).all(-1)                # (n, k, 6)
    some = fits.any(2).all(1)
    rows, fits, ways = rows[some], fits[some], pairings(len(things), MAX_OBJECTS)        # (ways, k)
    good = fits[:, np.arange(len(things)), ways].all(2)                                  # (n, ways)
    for i, j, code in said.relations:
        good &= shows.relations[rows[:, None], ways[:, i], ways[:, j]] == code
    return rows[good.any(1)]


def true_pairs(scenes):
    """Find all captions (P,) and images (P,) that match, int64, by caption.

    scenes: the (scene, captions) of each image. Positions count captions or images through the split.
    """
    shows, rows_of, images = shown([scene for scene, _ in scenes]), {}, []
    for scene, captions in scenes:
        for caption in captions:
            said = claim(scene, caption)
            if said not in rows_of:
                rows_of[said] = true_of(said, shows)
            images.append(rows_of[said])
    return np.repeat(np.arange(len(images)), [len(rows) for rows in images]), np.concatenate(images)


def positives_by_id(entries):
    """Group the true pairs of a split as `evaluate.py --positives` reads them.

    Returns {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image ids]}}, both in the order of the split.
    """
    caption, image = true_pairs([(e.scene, e.captions) for e in entries])
    image_ids, caption_ids = [e.photo for e in entries], [number for e in entries for number in e.numbers]
    order = np.argsort(image, kind="stable")
    return {"i2t": group_by_query(image[order], caption[order], image_ids, caption_ids),
            "t2i": group_by_query(caption, image, caption_ids, image_ids)}


def group_by_query(query, item, query_ids, item_ids):
    """{id of a query: [ids of its items]} of pairs of positions (P,), query rising."""
    items = np.split(np.asarray(item_ids)[item], np.searchsorted(query, np.arange(1, len(query_ids))))
    return {str(number): own.tolist() for number, own in zip(query_ids, items, strict=True)}
