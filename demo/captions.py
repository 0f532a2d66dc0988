"""Captions of scenes, statements of their content, and how much two of them share.

`five_captions` describes a scene five times. Some captions say much and some say little, so a
caption fits few images or many. The ambiguity is real, because every caption is true. A `Statement`
holds what a scene shows or a caption says, and `shared_weight` says how much two of them share. The
demo's simulated ratings rest on it, never on pixels or features. A caption also tells where in its
text each noun phrase stands and what it names (entities.py).
"""

import functools
import itertools
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from demo.scenes import (
    ATTRIBUTES,
    BACKGROUNDS,
    CANVAS,
    DEMO,
    GROUNDS,
    MAX_OBJECTS,
    OUTLINES,
    RADII,
    TEXTURES,
    THING_COLOURS,
    between,
    pick,
    shuffled,
)

# ---- captions

COUNT_WORDS = ("no", "one", "two", "three", "four", "five", "six")


@dataclass(frozen=True)
class Caption:
    """A caption and what it says about its scene."""

    text: str
    level: int  # 0 gist, 1 one thing, 2 counts, 3 two things and their relation, 4 everything
    says: tuple  # of (index of a thing, the attributes it is given), in the order of mention
    background: bool  # whether it tells the background
    # what else: any of "relations" (two by two), "position" (of the last thing), "number"
    tells: str = ""
    marked: str = ""  # the text with each noun phrase in brackets
    # what each noun phrase names, in their order: a tuple of indices of things, or "ground", "sky"
    # or "background" (of the scene), "position" (of a thing) or "picture" (as in "a drawing of")
    mentions: tuple = ()


class Phrase(NamedTuple):
    """The part of a caption that names things; what it says as in Caption."""

    marked: str
    says: list
    tells: str
    mentions: list


def word(rng, meaning, world=DEMO):
    """Draw one of the words that the world has for a meaning."""
    return pick(rng, world.words.get(meaning, (meaning,)))


def with_article(phrase):
    """Put "a" or "an" before the phrase."""
    article = "an" if phrase[0] in "aeiou" else "a"
    return f"{article} {phrase}"


def name(rng, thing, attributes, world=DEMO):
    """Name a thing by the given attributes, such as "big red circle" or "red thing"."""
    words = [word(rng, getattr(thing, a), world) for a in ATTRIBUTES if a in attributes]
    if "shape" not in attributes:
        words.append(word(rng, "any", world))
    return " ".join(words)


def draw_attributes(rng, chances):
    """Draw the attributes that a thing is given, each by its chance."""
    drawn = []
    for attribute, chance in zip(ATTRIBUTES, chances, strict=True):
        if rng.random() < chance:
            drawn.append(attribute)
    return tuple(drawn)


def relation(a, b):
    """Name the side of b on which a lies, by the axis on which they differ most."""
    across = a.x - b.x
    down = a.y - b.y
    if abs(across) > abs(down):
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def whereabouts(thing):
    """Name the position of a thing across and down the image; "" if it is not clear."""
    center = CANVAS // 2
    if max(abs(thing.x - center), abs(thing.y - center)) <= 15:
        return "middle", "middle"
    across = ""
    if thing.x <= 42:
        across = "left"
    elif thing.x >= 86:
        across = "right"
    down = ""
    if thing.y <= 42:
        down = "top"
    elif thing.y >= 86:
        down = "bottom"
    return across, down


def position_phrase(rng, thing):
    """Mark a phrase for the position of a thing, "" where none is clear."""
    across, down = whereabouts(thing)
    if across == "middle":
        return pick(rng, ("in [the middle]", "in [the centre]"))
    if across and down:
        side = pick(rng, ("top", "upper") if down == "top" else ("bottom", "lower"))
        return f"in [the {side} {across} corner]"
    if across:
        return f"on [the {across}]"
    if down:
        return f"at [the {down}]"
    return ""


def join_phrases(phrases):
    """Phrases as "a , b and c"."""
    *first, last = phrases
    if not first:
        return last
    return f"{' , '.join(first)} and {last}"


def gist_phrase(rng, things, subset, world):
    """Name one attribute of one thing, or the number of all things, sometimes vaguely."""
    if rng.random() < 0.5:
        index = pick(rng, subset)
        attribute = pick(rng, ("colour", "shape"))
        phrase = with_article(name(rng, things[index], (attribute,), world))
        return Phrase(f"[{phrase}]", [(index, (attribute,))], "", [(index,)])

    count = len(subset)
    number = COUNT_WORDS[count]
    tells = "number"
    if count > 1 and rng.random() < 0.3:
        number, tells = world.vague.get(count, world.vague[0])
    noun = word(rng, "any", world)
    if count > 1:
        noun += "s"
    says = [(index, ()) for index in subset]
    return Phrase(f"[{number} {noun}]", says, tells, [tuple(subset)])


def count_phrase(rng, things, subset, world):
    """Numbers of things of each shape or of each colour, sometimes of one only."""
    kind = pick(rng, ("shape", "shape", "colour"))
    by_value = {}
    for index in shuffled(rng, subset):
        by_value.setdefault(getattr(things[index], kind), []).append(index)
    groups = list(by_value.values())
    if rng.random() >= 0.75:
        groups = [pick(rng, groups)]

    phrases = []
    says = []
    for group in groups:
        phrase = name(rng, things[group[0]], (kind,), world)
        if len(group) > 1:
            phrase += "es" if phrase.endswith("s") else "s"
        if len(group) == 1 < len(groups):
            phrase = with_article(phrase)
        else:
            phrase = f"{COUNT_WORDS[len(group)]} {phrase}"
        phrases.append(f"[{phrase}]")
        says += [(index, (kind,)) for index in group]
    return Phrase(join_phrases(phrases), says, "number", [tuple(group) for group in groups])


def relation_phrase(rng, things, subset, chances, world=DEMO):
    """Name pairs of things with their relations; perhaps the position of an odd last thing."""
    clauses = []
    says = []
    tells = "relations"
    mentions = []
    used = set()
    for start in range(0, len(subset), 2):
        pair = subset[start : start + 2]
        phrases = []
        for index in pair:
            attributes = draw_attributes(rng, chances)
            if "colour" not in attributes and "shape" not in attributes:
                attributes += ("shape",)
            phrase = name(rng, things[index], attributes, world)
            if phrase in used:
                phrases.append(f"[another {phrase}]")
            else:
                phrases.append(f"[{with_article(phrase)}]")
            used.add(phrase)
            says.append((index, attributes))
            mentions.append((index,))

        if len(pair) == 2:
            side = relation(things[pair[0]], things[pair[1]])
            phrases.insert(1, word(rng, side, world))
        elif rng.random() < 0.6:
            position = position_phrase(rng, things[pair[0]])
            if position:
                phrases.append(position)
                tells += " position"
                mentions.append("position")
        clauses.append(" ".join(phrases))
    return Phrase(join_phrases(clauses), says, tells, mentions)


def make_caption(rng, scene, subset, level, world=DEMO):
    """A true Caption of the things of a subset (not empty); a higher level says more.

    Counts are counts of the subset: pass all things to describe the image, or the things of a
    region to describe the region.
    """
    number, chances, background_chance = world.levels[level]
    if level == 0:
        drawn = gist_phrase(rng, scene.things, subset, world)
    elif level == 2:
        drawn = count_phrase(rng, scene.things, subset, world)
    else:
        indices = shuffled(rng, subset)[:number]
        drawn = relation_phrase(rng, scene.things, indices, chances, world)
    phrase, says, tells, mentions = drawn

    background = rng.random() < background_chance
    if background and scene.background in GROUNDS:
        phrase += pick(rng, world.on_ground).format(scene.background)
        mentions += ["ground", "sky"]
    elif background:
        where, noun = world.on_plain
        noun = f"{scene.background} {noun}"
        if scene.shaded:
            noun = f"shaded {noun}"
        phrase += f" {where} [{with_article(noun)}]"
        mentions.append("background")
    if rng.random() < world.opening_chance:
        opening = re.sub(r"^an? \w+", r"[\g<0>]", pick(rng, world.openings))
        phrase = f"{opening} {phrase}"
        if "[" in opening:
            mentions = ["picture", *mentions]
    if rng.random() < 0.75:
        first = 1 + phrase.startswith("[")
        phrase = phrase[:first].upper() + phrase[first:]

    marked = f"{phrase} ."
    text = marked.replace("[", "").replace("]", "")
    return Caption(text, level, tuple(says), background, tells, marked, tuple(mentions))


def five_captions(rng, scene, world=DEMO):
    """Make five different Captions of the whole image, one per level, in random order."""
    subset = range(len(scene.things))
    captions = {}  # lower-cased text -> Caption
    for level in world.levels:
        caption = make_caption(rng, scene, subset, level, world)
        while caption.text.lower() in captions:
            caption = make_caption(rng, scene, subset, level, world)
        captions[caption.text.lower()] = caption
    return shuffled(rng, captions.values())


def region_phrases(rng, scene, world=DEMO):
    """List regions of a scene as annotators name them: [((x, y, w, h), phrase)].

    Each thing comes twice, and up to eight groups of two or three things are added, in random
    order. Boxes exceed the things by a few pixels, and sometimes the edge of the image. One region
    in 50 has no width and one in 50 no phrase.
    """
    indices = range(len(scene.things))
    several = [*itertools.combinations(indices, 2), *itertools.combinations(indices, 3)]
    single = [(index,) for index in indices]
    groups = single * 2 + shuffled(rng, several)[:8]
    regions = []
    for group in shuffled(rng, groups):
        x, y, width, height = draw_box(rng, [scene.things[index] for index in group])
        names = [region_name(rng, scene.things[index], world) for index in shuffled(rng, group)]
        # all names are drawn before the articles
        phrases = [phrase if rng.random() < 0.3 else with_article(phrase) for phrase in names]
        flaw = rng.random()
        if flaw < 0.02:
            width = 0
        phrase = "" if flaw > 0.98 else join_phrases(phrases)
        regions.append(((x, y, width, height), phrase))
    return regions


def draw_box(rng, things):
    """Draw a box around things, 2 to 6 pixels larger on each side: (x, y, width, height)."""
    left = min(thing.box[0] for thing in things) - between(rng, 2, 6)
    top = min(thing.box[1] for thing in things) - between(rng, 2, 6)
    right = max(thing.box[0] + thing.box[2] for thing in things) + between(rng, 2, 6)
    bottom = max(thing.box[1] + thing.box[3] for thing in things) + between(rng, 2, 6)
    return left, top, right - left, bottom - top


def region_name(rng, thing, world):
    """Name a thing of a region, mostly by its colour and shape."""
    return name(rng, thing, draw_attributes(rng, (0.3, 0.3, 0.8, 1)), world)


# ---- statements: what a scene shows or a caption says, and what two of them share

# of a thing
ASPECTS = {
    "size": [*RADII],
    "texture": [*TEXTURES],
    "colour": [*THING_COLOURS],
    "shape": [*OUTLINES],
    "across": ["left", "middle", "right"],
    "down": ["top", "middle", "bottom"],
}
ASPECT_WEIGHTS = np.array([1, 1, 3, 3, 1, 1])
RELATIONS = ("", "left", "right", "above", "below")
RELATION_WEIGHT = 2
REST_WEIGHT = 2
BARE_WEIGHT = 1


def list_rest():
    """All that can hold of a scene beside its things, as (what, value)."""
    rest = [("background", ground) for ground in (*BACKGROUNDS, *GROUNDS)]
    rest += [("shaded", False), ("shaded", True)]
    for kind in ("any", *THING_COLOURS, *OUTLINES):
        rest += [(kind, number) for number in range(1, MAX_OBJECTS + 1)]
    return rest


REST = list_rest()


@dataclass(frozen=True)
class Statement:
    """Content of a scene or a caption, as codes that can be compared."""

    # (n, 6) int8: the value of each aspect of each thing, counted from 1; 0: not said
    things: np.ndarray
    # (n, n) int8: where the row's thing is seen from the column's, 0: not said
    relations: np.ndarray
    # of (what, value) in REST: background, shading, and how many there are of a kind
    rest: frozenset

    @functools.cached_property
    def weight(self):
        """Weight of all that is stated; a thing's mere presence counts a little."""
        aspects = (self.things > 0) @ ASPECT_WEIGHTS  # (n,)
        things = np.where(aspects, aspects, BARE_WEIGHT).sum()
        relations = RELATION_WEIGHT * (self.relations > 0).sum() // 2
        return int(things + relations + REST_WEIGHT * len(self.rest))

    @functools.cached_property
    def tally(self):
        """Weight of each value of each aspect and of each item of REST, (149,) int16."""
        weights = []
        for codes, options, weight in zip(
            self.things.T, ASPECTS.values(), ASPECT_WEIGHTS, strict=True
        ):
            counts = np.bincount(codes, minlength=len(options) + 1)[1:]  # without "not said"
            weights.append(counts * weight)
        weights.append([REST_WEIGHT * (item in self.rest) for item in REST])
        return np.concatenate(weights).astype(np.int16)


def statement(things, pairs, rest):
    """Build a Statement.

    things: [(thing, aspects that are stated)]. pairs: indices of the things whose relation is
    stated. rest: items of REST.
    """
    codes = np.zeros((len(things), len(ASPECTS)), np.int8)
    relations = np.zeros((len(things), len(things)), np.int8)
    for row, (thing, stated) in zip(codes, things, strict=True):
        across, down = whereabouts(thing)
        values = {**vars(thing), "across": across, "down": down}
        for k, (aspect, options) in enumerate(ASPECTS.items()):
            if aspect in stated and values[aspect]:
                row[k] = options.index(values[aspect]) + 1
    for i, j in pairs:
        relations[i, j] = RELATIONS.index(relation(things[i][0], things[j][0]))
        relations[j, i] = RELATIONS.index(relation(things[j][0], things[i][0]))
    return Statement(codes, relations, frozenset(rest))


def count_kinds(kinds):
    """How many there are of each kind, as items of REST."""
    return {(kind, kinds.count(kind)) for kind in kinds}


def scene_statement(scene):
    """State everything that holds in a scene."""
    things = [(thing, ASPECTS) for thing in scene.things]
    pairs = itertools.combinations(range(len(things)), 2)
    kinds = []
    for thing in scene.things:
        kinds += ["any", thing.colour, thing.shape]
    rest = {("background", scene.background), ("shaded", scene.shaded)}
    return statement(things, pairs, rest | count_kinds(kinds))


def caption_statement(scene, caption):
    """State what a caption says about its scene."""
    things = [(scene.things[index], attributes) for index, attributes in caption.says]
    last = len(things) - 1
    if "position" in caption.tells:
        thing, attributes = things[last]
        things[last] = (thing, (*attributes, "across", "down"))
    pairs = []
    if "relations" in caption.tells:
        pairs = [(i, i + 1) for i in range(0, last, 2)]
    rest = set()
    if "number" in caption.tells:
        kinds = []
        for thing, attributes in things:
            kinds.append(getattr(thing, attributes[0]) if attributes else "any")
        rest |= count_kinds(kinds)
    if caption.background:
        rest.add(("background", scene.background))
        if scene.shaded:
            rest.add(("shaded", True))
    return statement(things, pairs, rest)


@functools.cache
def pairings(few, many):
    """List all ways to assign different ones of many things to a few: (ways, few) int."""
    return np.array(list(itertools.permutations(range(many), few)))


def shared_weight(a, b):
    """Weigh what two Statements share, at most the weight of either.

    Their things are paired in the way that makes it largest.
    """
    if len(a.things) > len(b.things):
        a, b = b, a
    ways = pairings(len(a.things), len(b.things))  # (ways, n)
    same = (a.things[:, None] == b.things) & (a.things[:, None] > 0)  # (n, m, 6)
    a_is_bare = ~a.things.any(1)  # (n,)
    b_is_bare = ~b.things.any(1)  # (m,)
    bare = a_is_bare[:, None] | b_is_bare  # (n, m)
    worth = np.where(bare, BARE_WEIGHT, same @ ASPECT_WEIGHTS)
    totals = worth[np.arange(len(worth)), ways].sum(1)  # (ways,)

    i, j = np.nonzero(np.triu(a.relations))
    if len(i):
        theirs = b.relations[ways[:, i], ways[:, j]]  # (ways, relations of a)
        totals += RELATION_WEIGHT * (theirs == a.relations[i, j]).sum(1)
    return int(totals.max()) + REST_WEIGHT * len(a.rest & b.rest)
