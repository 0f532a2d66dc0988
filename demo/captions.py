"""Captions of scenes, statements of their content, and how much two of them share.

`five_captions` describes a scene five times. Some captions say much and some say little, so a caption fits few images
or many. The ambiguity is real, because every caption is true. A `Statement` holds what a scene shows or a caption says,
and `shared_weight` says how much two of them share. The demo's simulated ratings rest on it, never on pixels or
features. A caption also tells where in its text each noun phrase stands and what it names (entities.py).
"""
import functools
import itertools
import re
from dataclasses import dataclass

import numpy as np

from demo.scenes import (
    ATTRIBUTES,
    BACKGROUNDS,
    CANVAS,
    COLOURS,
    DEMO,
    GROUNDS,
    MAX_OBJECTS,
    OUTLINES,
    RADII,
    TEXTURES,
    between,
    pick,
    shuffled,
)

# ---- captions

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


@dataclass(frozen=True)
class Caption:
    """A caption and what it says about its scene."""
    text: str
    level: int        # 0 gist, 1 one thing, 2 counts, 3 two things and their relation, 4 everything
    says: tuple         # of (index of a thing, the attributes it is given), in the order of mention
    background: bool             # whether it tells the background
    # what else: any of "relations" (two by two), "place" (of the last thing), "number"
    tells: str = ""
    marked: str = ""             # the text with each noun phrase in brackets
    # what each noun phrase names, in their order: a tuple of indices of things, or "ground", "sky"
    # or "background" (of the scene), "place" (of a thing) or "picture" (as in "a drawing of")
    mentions: tuple = ()


def word(rng, meaning, world=DEMO):
    """Draw one of the words that the world has for a meaning."""
    return pick(rng, world.words.get(meaning, (meaning,)))


def with_article(phrase):
    """Put "a" or "an" before the phrase."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def name(rng, thing, attributes, world=DEMO):
    """Name a thing by the given attributes, such as "big red circle" or "red thing"."""
    words = [word(rng, getattr(thing, a), world) for a in ATTRIBUTES if a in attributes]
    return " ".join(words if "shape" in attributes else [*words, word(rng, "any", world)])


def relation(a, b):
    """Name the side of b on which a lies, by the axis on which they differ most."""
    across, down = a.x - b.x, a.y - b.y
    if abs(across) > abs(down):
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def whereabouts(thing):
    """Name the place of a thing across and down the image; "" if it is not clear."""
    across = "left" if thing.x <= 42 else "right" if thing.x >= 86 else ""
    down = "top" if thing.y <= 42 else "bottom" if thing.y >= 86 else ""
    middle = max(abs(thing.x - CANVAS // 2), abs(thing.y - CANVAS // 2)) <= 15
    return ("middle", "middle") if middle else (across, down)


def place(rng, thing):
    """Mark a phrase for the place of a thing, "" where none clearly holds."""
    across, down = whereabouts(thing)
    if across == "middle":
        return pick(rng, ("in [the middle]", "in [the centre]"))
    if across and down:
        side = pick(rng, {"top": ("top", "upper"), "bottom": ("bottom", "lower")}[down])
        return f"in [the {side} {across} corner]"
    return f"on [the {across}]" if across else f"at [the {down}]" if down else ""


def join_phrases(phrases):
    """Phrases as "a , b and c"."""
    return " and ".join(filter(None, [" , ".join(phrases[:-1]), phrases[-1]]))


def gist_phrase(rng, things, subset, world):
    """Name one attribute of one thing, or the number of all things, sometimes vaguely.

    Returns (marked phrase, says, tells, mentions) of a Caption, as the next two do.
    """
    if rng.random() < 0.5:
        index, attribute = pick(rng, subset), pick(rng, ("colour", "shape"))
        phrase = with_article(name(rng, things[index], (attribute,), world))
        return f"[{phrase}]", [(index, (attribute,))], "", [(index,)]
    number, plural, tells = NUMBERS[len(subset)], len(subset) > 1, "number"
    if plural and rng.random() < 0.3:
        number, tells = world.vague.get(len(subset), world.vague[0])
    phrase = f"[{number} {word(rng, 'any', world)}{'s' * plural}]"
    return phrase, [(index, ()) for index in subset], tells, [tuple(subset)]


def count_phrase(rng, things, subset, world):
    """Numbers of things of each shape or of each colour, sometimes of one only."""
    kind, by_value, phrases = pick(rng, ("shape", "shape", "colour")), {}, []
    for index in shuffled(rng, subset):
        by_value.setdefault(getattr(things[index], kind), []).append(index)
    groups = list(by_value.values()) if rng.random() < 0.75 else [pick(rng, list(by_value.values()))]
    for group in groups:
        phrase = name(rng, things[group[0]], (kind,), world)
        if len(group) > 1:
            phrase += "es" if phrase.endswith("s") else "s"
        phrase = with_article(phrase) if len(group) == 1 < len(groups) else f"{NUMBERS[len(group)]} {phrase}"
        phrases.append(f"[{phrase}]")
    says = [(index, (kind,)) for group in groups for index in group]
    return join_phrases(phrases), says, "number", [tuple(group) for group in groups]


def relation_phrase(rng, things, subset, chances, world=DEMO):
    """Name pairs of things with their relations; perhaps an odd last thing's place."""
    clauses, says, used, tells, mentions = [], [], set(), "relations", []
    for start in range(0, len(subset), 2):
        pair, phrases = subset[start:start + 2], []
        for index in pair:
            attributes = tuple(a for a, chance in zip(ATTRIBUTES, chances, strict=True) if rng.random() < chance)
            if not {"colour", "shape"} & set(attributes):
                attributes += ("shape",)
            phrase = name(rng, things[index], attributes, world)
            phrases.append(f"[another {phrase}]" if phrase in used else f"[{with_article(phrase)}]")
            used.add(phrase)
            says.append((index, attributes))
            mentions.append((index,))
        if len(pair) == 2:
            phrases.insert(1, word(rng, relation(things[pair[0]], things[pair[1]]), world))
        elif rng.random() < 0.6:
            phrases.append(place(rng, things[pair[0]]))
            if phrases[-1]:
                tells += " place"
                mentions.append("place")
        clauses.append(" ".join(filter(None, phrases)))
    return join_phrases(clauses), says, tells, mentions


def make_caption(rng, scene, subset, level, world=DEMO):
    """A true Caption of the things of a subset (not empty); a higher level says more.

    Counts are counts of the subset: pass all things to describe the image, or the things of a region to describe the
    region.
    """
    number, chances, background_chance = world.levels[level]
    if level in (0, 2):
        phrase, says, tells, mentions = (count_phrase if level else gist_phrase)(rng, scene.things, subset, world)
    else:
        indices = shuffled(rng, subset)[:number]
        phrase, says, tells, mentions = relation_phrase(rng, scene.things, indices, chances, world)
    background = rng.random() < background_chance
    if background and scene.background in GROUNDS:
        phrase += pick(rng, world.on_ground).format(scene.background)
        mentions += ["ground", "sky"]
    elif background:
        where, what = world.on_plain
        phrase += f" {where} [" + with_article(f"{'shaded ' * scene.shaded}{scene.background} {what}]")
        mentions.append("background")
    if rng.random() < world.opening_chance:
        opening = re.sub(r"^an? \w+", r"[\g<0>]", pick(rng, world.openings))
        phrase, mentions = f"{opening} {phrase}", ["picture"] * opening.count("[") + mentions
    if rng.random() < 0.75:
        first = 1 + phrase.startswith("[")
        phrase = phrase[:first].upper() + phrase[first:]
    text = phrase.replace("[", "").replace("]", "")
    return Caption(f"{text} .", level, tuple(says), background, tells, f"{phrase} .", tuple(mentions))


def five_captions(rng, scene, world=DEMO):
    """Make five different Captions of the whole image, one per level, in random order."""
    captions = {}                # lower-cased text -> Caption
    for level in world.levels:
        caption = make_caption(rng, scene, range(len(scene.things)), level, world)
        while caption.text.lower() in captions:
            caption = make_caption(rng, scene, range(len(scene.things)), level, world)
        captions[caption.text.lower()] = caption
    return shuffled(rng, captions.values())


def region_phrases(rng, scene, world=DEMO):
    """List regions of a scene as annotators name them: [((x, y, w, h), phrase)].

    Each thing comes twice, and up to eight groups of two or three things are added, in random order. Boxes exceed the
    things by a few pixels, and sometimes the edge of the image. One region in 50 has no width and one in 50 no phrase.
    """
    things, groups = scene.things, [(i,) for i in range(len(scene.things))] * 2
    groups += shuffled(rng, [g for n in (2, 3) for g in itertools.combinations(range(len(things)), n)])[:8]
    regions = []
    for group in shuffled(rng, groups):
        low, high = ([extreme(things[i].box[side] + far * things[i].box[2] for i in group)
                      + (2 * far - 1) * between(rng, 2, 6) for side in (0, 1)]
                     for extreme, far in ((min, 0), (max, 1)))
        names = [name(rng, things[i],
                      tuple(a for a, chance in zip(ATTRIBUTES, (0.3, 0.3, 0.8, 1), strict=True)
                            if rng.random() < chance), world) for i in shuffled(rng, group)]
        names = [n if rng.random() < 0.3 else with_article(n) for n in names]
        flaw = rng.random()
        regions.append(((*low, 0 if flaw < 0.02 else high[0] - low[0], high[1] - low[1]),
                        "" if flaw > 0.98 else join_phrases(names)))
    return regions


# ---- statements: what a scene shows or a caption says, and what two of them share

ASPECTS = {"size": [*RADII], "texture": [*TEXTURES], "colour": [*COLOURS], "shape": [*OUTLINES],
           "across": ["left", "middle", "right"], "down": ["top", "middle", "bottom"]}  # of a thing
ASPECT_WEIGHTS = np.array([1, 1, 3, 3, 1, 1])
RELATIONS = ("", "left", "right", "above", "below")
REST = [*[("background", ground) for ground in (*BACKGROUNDS, *GROUNDS)],
        ("shaded", False), ("shaded", True),
        *[(kind, n) for kind in ("any", *COLOURS, *OUTLINES) for n in range(1, MAX_OBJECTS + 1)]]
RELATION_WEIGHT, REST_WEIGHT, BARE_WEIGHT = 2, 2, 1


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
        things = (self.things > 0) @ ASPECT_WEIGHTS                                         # (n,)
        return int(np.where(things, things, BARE_WEIGHT).sum()
                   + RELATION_WEIGHT * (self.relations > 0).sum() // 2
                   + REST_WEIGHT * len(self.rest))

    @functools.cached_property
    def tally(self):
        """Weight of each value of each aspect and of each item of REST, (149,) int16."""
        values = [np.bincount(codes, minlength=len(options) + 1)[1:] * weight
                  for codes, options, weight
                  in zip(self.things.T, ASPECTS.values(), ASPECT_WEIGHTS, strict=True)]
        return np.concatenate([*values, [REST_WEIGHT * (item in self.rest) for item in REST]]).astype(np.int16)


def statement(things, pairs, rest):
    """Build a Statement.

    things: [(thing, aspects that are stated)]. pairs: indices of the things whose relation is stated. rest: items of
    REST.
    """
    codes = np.zeros((len(things), len(ASPECTS)), np.int8)
    relations = np.zeros((len(things), len(things)), np.int8)
    for row, (thing, aspects) in zip(codes, things, strict=True):
        values = {**vars(thing), **dict(zip(("across", "down"), whereabouts(thing), strict=True))}
        row[:] = [options.index(values[a]) + 1 if a in aspects and values[a] else 0 for a, options in ASPECTS.items()]
    for i, j in pairs:
        relations[i, j] = RELATIONS.index(relation(things[i][0], things[j][0]))
        relations[j, i] = RELATIONS.index(relation(things[j][0], things[i][0]))
    return Statement(codes, relations, frozenset(rest))


def scene_statement(scene):
    """State everything that holds in a scene."""
    kinds = [kind for thing in scene.things for kind in ("any", thing.colour, thing.shape)]
    return statement([(thing, ASPECTS) for thing in scene.things],
                     itertools.combinations(range(len(scene.things)), 2),
                     {("background", scene.background), ("shaded", scene.shaded),
                      *((kind, kinds.count(kind)) for kind in kinds)})


def caption_statement(scene, caption):
    """State what a caption says about its scene."""
    things = [(scene.things[index], attributes) for index, attributes in caption.says]
    last, pairs, rest = len(things) - 1, [], set()
    if "place" in caption.tells:
        things[last] = (things[last][0], (*things[last][1], "across", "down"))
    if "relations" in caption.tells:
        pairs = [(i, i + 1) for i in range(0, last, 2)]
    if "number" in caption.tells:
        kinds = [getattr(thing, attributes[0]) if attributes else "any" for thing, attributes in things]
        rest = {(kind, kinds.count(kind)) for kind in kinds}
    if caption.background:
        rest |= {("background", scene.background), *[("shaded", True)] * scene.shaded}
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
    ways = pairings(len(a.things), len(b.things))                                        # (ways, n)
    same = (a.things[:, None] == b.things) & (a.things[:, None] > 0)                     # (n, m, 6)
    bare = ~a.things.any(1)[:, None] | ~b.things.any(1)                                     # (n, m)
    worth = np.where(bare, BARE_WEIGHT, same @ ASPECT_WEIGHTS)
    totals = worth[np.arange(len(worth)), ways].sum(1)                                     # (ways,)
    i, j = np.nonzero(np.triu(a.relations))
    if len(i):
        totals += RELATION_WEIGHT * (b.relations[ways[:, i], ways[:, j]] == a.relations[i, j]).sum(1)
    return int(totals.max()) + REST_WEIGHT * len(a.rest & b.rest)
