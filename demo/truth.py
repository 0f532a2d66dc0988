"""Truth: which captions are true of which images, of their own and of all others.

A caption is true of an image when everything that it says holds in the image's scene:

- The things that it mentions are different things of the scene, and all that is said of one (size,
  texture, colour, shape, position) holds of one and the same thing.
- A relation holds between the very things that are described so. It is that of the axis on which
  their centers differ most, as where captions are written (`captions.relation`).
- Numbers are exact: "two circles and a star" is false of three circles, and of two stars. "Some"
  and similar words are at least three, "several" at least four.
- The background is the one that is told, and shaded if the caption says so. A caption that does not
  is true of both.

It differs from a share of 1 of `captions.shared_weight` in one point. A Statement knows "several
shapes" as the number of things that its own image has, though the words do not tell it. Here
captions of the same words are true of the same images.
"""

from typing import NamedTuple

import numpy as np

from demo.captions import ASPECTS, REST, caption_statement, pairings, scene_statement
from demo.scenes import MAX_OBJECTS

SEVERAL = 4  # the least number of things that captions call several
# Images of a split whose matches are written, as these grow with the square of them.
MAX_IMAGES_OF_POSITIVES = 5000


class Claim(NamedTuple):
    """All that a caption says. Captions that say the same have equal claims."""

    # of (6 codes): the value of each of ASPECTS of a thing, counted from 1; 0: not said. At least
    # one is said of each thing, so none is found where a scene has no thing
    things: tuple
    # of (i, j, code): where thing i is seen from thing j, a position in RELATIONS
    relations: tuple
    # of positions in REST: background, shading, how many there are of a kind
    rest: tuple
    least: int  # the least number of things


class Shown(NamedTuple):
    """N scenes as codes of 6 things each, 0 throughout where a scene has fewer."""

    # (N, 6, 6) int8: each of ASPECTS of each thing, counted from 1; 0: none clearly holds
    things: np.ndarray
    # (N, 6, 6) int8: where the row's thing is seen from the column's, a position in RELATIONS
    relations: np.ndarray
    rest: np.ndarray  # (N, R) bool: which of REST hold
    number: np.ndarray  # (N,) int64: how many things there are


def claim(scene, caption):
    """Build the Claim of a caption of a scene."""
    said = caption_statement(scene, caption)
    rest = tuple(k for k, item in enumerate(REST) if item in said.rest)
    if "number" in caption.tells:  # the numbers in `rest` say it all
        return Claim((), (), rest, 1)
    count = len(caption.says)
    if not any(attributes for _, attributes in caption.says):  # "some shapes", "several shapes"
        return Claim((), (), rest, min(count, SEVERAL))

    things = tuple(tuple(codes) for codes in said.things.tolist())
    relations = []
    for i, j in zip(*np.nonzero(np.triu(said.relations)), strict=True):
        relations.append((int(i), int(j), int(said.relations[i, j])))
    return Claim(things, tuple(relations), rest, count)


def shown(scenes):
    """Build the Shown of N scenes."""
    n = len(scenes)
    things = np.zeros((n, MAX_OBJECTS, len(ASPECTS)), np.int8)
    relations = np.zeros((n, MAX_OBJECTS, MAX_OBJECTS), np.int8)
    rest = np.zeros((n, len(REST)), bool)
    for k, scene in enumerate(scenes):
        shows = scene_statement(scene)
        count = len(scene.things)
        things[k, :count] = shows.things
        relations[k, :count, :count] = shows.relations
        rest[k] = [item in shows.rest for item in REST]
    return Shown(things, relations, rest, np.array([len(scene.things) for scene in scenes]))


def true_of(said, shows):
    """Find the scenes of which a Claim is true: positions (n,), rising."""
    rest_holds = shows.rest[:, list(said.rest)].all(1)
    rows = np.flatnonzero((shows.number >= said.least) & rest_holds)
    if not said.things:
        return rows

    # which things of a scene may be which of the k things that are described
    things = np.array(said.things, np.int8)[:, None]  # (k, 1, 6)
    fits = ((things == shows.things[rows, None]) | (things == 0)).all(-1)  # (n, k, 6)
    all_found = fits.any(2).all(1)
    rows = rows[all_found]
    fits = fits[all_found]

    # which ways to assign them hold, with all relations
    ways = pairings(len(things), MAX_OBJECTS)  # (ways, k)
    holds = fits[:, np.arange(len(things)), ways].all(2)  # (n, ways)
    for i, j, code in said.relations:
        holds &= shows.relations[rows[:, None], ways[:, i], ways[:, j]] == code
    return rows[holds.any(1)]


def true_pairs(scenes):
    """Find all captions (P,) and images (P,) that match, int64, by caption.

    scenes: the (scene, captions) of each image. Positions count captions or images through the
    split.
    """
    shows = shown([scene for scene, _ in scenes])
    rows_of_claim = {}
    images = []
    for scene, captions in scenes:
        for caption in captions:
            said = claim(scene, caption)
            if said not in rows_of_claim:
                rows_of_claim[said] = true_of(said, shows)
            images.append(rows_of_claim[said])
    counts = [len(rows) for rows in images]
    return np.repeat(np.arange(len(images)), counts), np.concatenate(images)


def positives_by_id(entries):
    """Group the true pairs of a split as `evaluate.py --positives` reads them.

    Returns {"i2t": {image id: [caption ids]}, "t2i": {caption id: [image ids]}}, both in the order
    of the split.
    """
    caption, image = true_pairs([(entry.scene, entry.captions) for entry in entries])
    image_ids = [entry.photo for entry in entries]
    caption_ids = []
    for entry in entries:
        caption_ids += entry.numbers
    order = np.argsort(image, kind="stable")
    return {
        "i2t": group_by_query(image[order], caption[order], image_ids, caption_ids),
        "t2i": group_by_query(caption, image, caption_ids, image_ids),
    }


def group_by_query(query, item, query_ids, item_ids):
    """{id of a query: [ids of its items]} of pairs of positions (P,), query rising."""
    starts = np.searchsorted(query, np.arange(1, len(query_ids)))
    groups = np.split(np.asarray(item_ids)[item], starts)
    return {str(number): ids.tolist() for number, ids in zip(query_ids, groups, strict=True)}
