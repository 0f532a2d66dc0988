"""Scenes of coloured shapes: from a scene its pixels, its captions and its statements, and from the pixels its features.

`random_scene` draws a Scene from a random stream, `draw` paints it, `captions` tells it five times, and
`region_features` and `global_features` see its pixels only. A `Statement` holds what a scene shows or a caption says, so
that `common` can tell how much two of them share: the demo's human-like ratings rest on it, never on pixels or features.
Some captions say much and some say little, so a caption fits few images or many: the ambiguity is real, as every caption
is true. A `World` is a distribution of scenes and of ways to tell them: WORLDS holds the demo's own and another, on
which a model that was trained on the first can be tried. All arithmetic is exact, so a random stream gives the same on
every machine.
"""
import functools
import itertools
import random
from dataclasses import dataclass

import numpy as np

CANVAS = 128                     # width and height of an image, pixels
MAX_OBJECTS = 6
MAX_IOU = 0.03                   # of the boxes of two objects
COLOURS = {"red": (214, 38, 38), "green": (40, 160, 60), "blue": (40, 70, 220), "yellow": (245, 222, 40),
           "orange": (245, 135, 20), "purple": (130, 40, 165), "pink": (250, 140, 190), "white": (244, 244, 244)}
BACKGROUNDS = {"grey": (140, 140, 140), "beige": (205, 190, 160), "brown": (112, 86, 66), "teal": (70, 118, 118),
               "olive": (118, 118, 62), "navy": (44, 52, 92)}
SKY = (165, 190, 210)
GROUNDS = {"grass": (96, 130, 84), "sand": (204, 182, 138), "water": (84, 116, 150)}
RADII = {"large": (21, 25), "medium": (14, 16), "small": (8, 10)}     # half the side of the box, pixels
TEXTURES = ("plain", "striped", "dotted", "checked")
# Outlines in 25ths of the radius, x to the right and y down; each spans -25 .. 25 both ways, so the box follows from
# the radius. The circle's corners are the whole points at distance 25; the ring is one line: round, in, round, out.
CIRCLE = [(25, 0), (24, 7), (20, 15), (15, 20), (7, 24), (0, 25), (-7, 24), (-15, 20), (-20, 15), (-24, 7),
          (-25, 0), (-24, -7), (-20, -15), (-15, -20), (-7, -24), (0, -25), (7, -24), (15, -20), (20, -15), (24, -7)]
HOLE = [(x * 14 // 25, y * 14 // 25) for x, y in CIRCLE]
OUTLINES = {
    "circle": CIRCLE,
    "ring": CIRCLE + CIRCLE[:1] + HOLE[:1] + HOLE[::-1],
    "square": [(-25, -25), (25, -25), (25, 25), (-25, 25)],
    "triangle": [(0, -25), (25, 25), (-25, 25)],
    "diamond": [(0, -25), (25, 0), (0, 25), (-25, 0)],
    "cross": [(-8, -25), (8, -25), (8, -8), (25, -8), (25, 8), (8, 8), (8, 25), (-8, 25), (-8, 8), (-25, 8),
              (-25, -8), (-8, -8)],
    "star": [(0, -25), (6, -6), (25, -6), (10, 6), (16, 25), (0, 14), (-16, 25), (-10, 6), (-25, -6), (-6, -6)],
    "heart": [(0, -14), (6, -22), (13, -25), (21, -22), (25, -13), (23, -3), (15, 9), (0, 25), (-15, 9), (-23, -3),
              (-25, -13), (-21, -22), (-13, -25), (-6, -22)]}
ATTRIBUTES = ("size", "texture", "colour", "shape")       # in the order in which they are said


# ---- worlds

@dataclass(frozen=True)
class World:
    """What scenes show and how captions tell it. Of options each is as likely as the next: one that stands twice, twice."""
    objects: tuple               # how many things a scene has
    sizes: tuple
    shapes: tuple
    colours: tuple
    textures: tuple
    backgrounds: tuple
    grounds: tuple
    ground_chance: float
    shaded_chance: float
    words: dict                  # a meaning -> the words for it; the others are said as they are
    vague: dict                  # how many things -> (words for so many, what they tell); 0: any other number
    openings: tuple
    opening_chance: float
    levels: dict                 # how many things with relation and place, chance of each attribute, chance of background
    on_ground: tuple             # phrases
    on_plain: tuple              # preposition and noun


WORLDS = {
    "demo": World(
        objects=tuple(range(1, MAX_OBJECTS + 1)), sizes=tuple(RADII), shapes=tuple(OUTLINES), colours=tuple(COLOURS),
        textures=TEXTURES, backgrounds=tuple(BACKGROUNDS), grounds=tuple(GROUNDS), ground_chance=0.3, shaded_chance=0.4,
        words={"large": ("large", "large", "big", "huge"), "small": ("small", "little", "tiny"), "plain": ("plain", "solid"),
               "striped": ("striped", "striped", "stripy"), "dotted": ("dotted", "spotted"),
               "checked": ("checked", "checkered"), "purple": ("purple", "purple", "violet"),
               "circle": ("circle", "circle", "disc"), "ring": ("ring", "ring", "hoop"), "any": ("shape", "object", "thing"),
               "left": ("left of", "to the left of"), "right": ("right of", "to the right of"),
               "above": ("above", "over"), "below": ("below", "under", "beneath")},
        vague={2: ("a couple of", "number"), 3: ("some", ""), 0: ("several", "")},
        openings=("a picture of", "an image of", "a drawing of", "an image showing", "a picture with", "we see"),
        opening_chance=0.25,
        levels={0: (0, None, 0.3), 1: (1, (0.4, 0.4, 0.9, 0.9), 0.1), 2: (0, None, 0.1), 3: (2, (0.5, 0.5, 0.9, 0.9), 0.1),
                4: (MAX_OBJECTS, (0.6, 0.6, 1, 1), 1)},
        on_ground=(" in front of {} and sky", " with {} and sky behind"), on_plain=("on", "background")),
    # Fewer and larger things, of other frequencies, mostly outdoors; terser captions, some in words that demo never says.
    "other": World(
        objects=(1, 1, 2, 2, 3, 3, 4, 5), sizes=("large", "large", "medium", "medium", "small"),
        shapes=("heart", "heart", "heart", "star", "star", "ring", "ring", "cross", "diamond", "triangle", "square", "circle"),
        colours=("red", "red", "orange", "orange", "pink", "pink", "yellow", "yellow", "purple", "white", "green", "blue"),
        textures=("plain", "plain", "plain", "dotted", "dotted", "checked", "striped"),
        backgrounds=("navy", "navy", "navy", "teal", "teal", "olive", "brown", "grey", "beige"),
        grounds=("water", "water", "sand", "grass"), ground_chance=0.6, shaded_chance=0.7,
        words={"large": ("large", "big", "giant"), "small": ("small", "small", "mini"), "striped": ("striped", "lined"),
               "dotted": ("dotted", "speckled"), "checked": ("checked", "chequered"), "purple": ("purple", "lilac"),
               "diamond": ("diamond", "rhombus"), "ring": ("ring", "loop"), "any": ("shape", "figure", "item"),
               "left": ("to the left of", "on the left side of"), "right": ("to the right of", "on the right side of"),
               "above": ("above", "higher than"), "below": ("below", "lower than", "underneath")},
        vague={2: ("a pair of", "number"), 3: ("a few", ""), 0: ("several", "")},
        openings=("a photo of", "a sketch of", "a picture of", "this shows", "a scene with"), opening_chance=0.5,
        levels={0: (0, None, 0.1), 1: (1, (0.2, 0.2, 0.8, 0.9), 0.3), 2: (0, None, 0), 3: (2, (0.2, 0.2, 0.9, 0.9), 0.1),
                4: (3, (0.4, 0.4, 0.9, 1), 0.5)},
        on_ground=(" on {} under the sky", " with {} and sky behind"), on_plain=("against", "backdrop"))}
DEMO = WORLDS["demo"]


# ---- scenes

@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str
    texture: str
    x: int                       # centre, pixels
    y: int
    radius: int                  # half the side of its square box, pixels
    rgb: tuple                   # the colour as drawn, a little off the named one

    @property
    def box(self):
        return [self.x - self.radius, self.y - self.radius, 2 * self.radius, 2 * self.radius]


@dataclass(frozen=True)
class Scene:
    things: tuple                # of Thing, the larger first, which is also the drawing order
    background: str              # a key of BACKGROUNDS (one colour) or of GROUNDS (that, below a sky)
    shaded: bool                 # darker towards the bottom; only with one colour
    horizon: int                 # row where the ground starts


def between(rng, low, high):
    return low + int(rng.random() * (high - low + 1))


def pick(rng, options):
    return options[between(rng, 0, len(options) - 1)]


def shuffled(rng, items):
    return sorted(items, key=lambda _: rng.random())


def iou(a, b):
    """Intersection over union of two things' boxes."""
    sides = [max(min(a.radius + b.radius - abs(gap), 2 * a.radius, 2 * b.radius), 0) for gap in (a.x - b.x, a.y - b.y)]
    shared = sides[0] * sides[1]
    return shared / (4 * a.radius ** 2 + 4 * b.radius ** 2 - shared)


def random_scene(rng, world=DEMO):
    """A Scene of 1 to 6 things that hardly overlap; a thing that finds no room in 40 tries is left out."""
    sizes, things = [pick(rng, world.sizes) for _ in range(pick(rng, world.objects))], []
    for size in sorted(sizes, key=list(RADII).index):
        shape, colour, texture = pick(rng, world.shapes), pick(rng, world.colours), pick(rng, world.textures)
        radius = between(rng, *RADII[size])
        rgb = tuple(min(max(value + between(rng, -10, 10), 0), 255) for value in COLOURS[colour])
        for _ in range(40):
            x, y = (between(rng, radius + 1, CANVAS - radius - 1) for _ in range(2))
            thing = Thing(shape, colour, size, texture, x, y, radius, rgb)
            if all(iou(thing, other) <= MAX_IOU for other in things):
                things.append(thing)
                break
    background = pick(rng, world.grounds if rng.random() < world.ground_chance else world.backgrounds)
    return Scene(tuple(things), background, background in BACKGROUNDS and rng.random() < world.shaded_chance,
                 between(rng, 48, 80))


# ---- pixels

@functools.cache
def mask(shape, radius):
    """(2 radius, 2 radius) bool: the pixels whose centre lies inside the outline (even-odd rule, whole numbers)."""
    centres = (2 * np.arange(2 * radius) + 1 - 2 * radius) * 25         # of pixels, in 50ths of one
    x, y = centres[None, :], centres[:, None]
    inside = np.zeros((2 * radius, 2 * radius), bool)
    corners = [(2 * radius * a, 2 * radius * b) for a, b in OUTLINES[shape]]
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        left = ((x - ax) * (by - ay) < (bx - ax) * (y - ay)) == (by > ay)      # of the edge
        inside ^= ((ay <= y) != (by <= y)) & left
    return inside


def draw(scene):
    """(128, 128, 3) uint8 RGB."""
    row = np.arange(CANVAS)[:, None, None]
    if scene.background in GROUNDS:
        canvas = np.where(row < scene.horizon, SKY, GROUNDS[scene.background])
    else:
        canvas = np.maximum(BACKGROUNDS[scene.background] - row * 3 // 8 * scene.shaded, 0)
    pixels = np.broadcast_to(canvas, (CANVAS, CANVAS, 3)).astype(np.uint8)     # from (128, 1, 3)
    for thing in scene.things:
        x, y, w, h = thing.box
        v, u = np.ogrid[:h, :w]
        dark = {"plain": (u < 0) & (v < 0), "striped": (u >= 0) & (v % 6 < 3), "checked": (u // 4 + v // 4) % 2 == 0,
                "dotted": ((u - w // 2) % 6 < 3) & ((v - h // 2) % 6 < 3)}[thing.texture]
        colour, inside = np.array(thing.rgb), mask(thing.shape, thing.radius)
        pixels[y:y + h, x:x + w][inside] = np.where(dark[..., None], colour * 2 // 5, colour)[inside]
    return pixels


# ---- captions

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


@dataclass(frozen=True)
class Caption:
    text: str
    level: int                   # 0 gist, 1 one thing, 2 counts, 3 two things and their relation, 4 everything
    says: tuple                  # of (index of a thing, the attributes it is given), in the order of mention
    background: bool             # whether it tells the background
    tells: str = ""              # what else: "relations" of the things two by two, the "place" of the last, the "number"


def word(rng, meaning, world=DEMO):
    return pick(rng, world.words.get(meaning, (meaning,)))


def with_article(phrase):
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def name(rng, thing, attributes, world=DEMO):
    """Such as "big red circle": the given attributes in words, with a general noun if the shape is not one."""
    words = [word(rng, getattr(thing, a), world) for a in ATTRIBUTES if a in attributes]
    return " ".join(words if "shape" in attributes else [*words, word(rng, "any", world)])


def relation(a, b):
    """Where a is seen from b, by the axis that parts their centres most; as boxes hardly overlap, that is clear."""
    across, down = a.x - b.x, a.y - b.y
    if abs(across) > abs(down):
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def whereabouts(thing):
    """("left", "right" or "", "top", "bottom" or ""), or ("middle", "middle")."""
    across = "left" if thing.x <= 42 else "right" if thing.x >= 86 else ""
    down = "top" if thing.y <= 42 else "bottom" if thing.y >= 86 else ""
    middle = max(abs(thing.x - CANVAS // 2), abs(thing.y - CANVAS // 2)) <= 15
    return ("middle", "middle") if middle else (across, down)


def place(rng, thing):
    """Where a thing is in the picture, or "" where no phrase clearly holds."""
    across, down = whereabouts(thing)
    if across == "middle":
        return pick(rng, ("in the middle", "in the centre"))
    if across and down:
        return f"in the {pick(rng, {'top': ('top', 'upper'), 'bottom': ('bottom', 'lower')}[down])} {across} corner"
    return f"on the {across}" if across else f"at the {down}" if down else ""


def listed(phrases):
    """a , b and c"""
    return " and ".join(filter(None, [" , ".join(phrases[:-1]), phrases[-1]]))


def gist(rng, things, subset, world):
    """One attribute of one thing, or the number of all, now and then not exactly: words, says and tells of a Caption."""
    if rng.random() < 0.5:
        index, attribute = pick(rng, subset), pick(rng, ("colour", "shape"))
        return with_article(name(rng, things[index], (attribute,), world)), [(index, (attribute,))], ""
    number, plural, tells = NUMBERS[len(subset)], len(subset) > 1, "number"
    if plural and rng.random() < 0.3:
        number, tells = world.vague.get(len(subset), world.vague[0])
    return f"{number} {word(rng, 'any', world)}{'s' * plural}", [(index, ()) for index in subset], tells


def counts(rng, things, subset, world):
    """How many there are of each shape or of each colour; now and then of one of them only."""
    kind, groups, phrases = pick(rng, ("shape", "shape", "colour")), {}, []
    for index in shuffled(rng, subset):
        groups.setdefault(getattr(things[index], kind), []).append(index)
    chosen = list(groups.values()) if rng.random() < 0.75 else [pick(rng, list(groups.values()))]
    for group in chosen:
        phrase = name(rng, things[group[0]], (kind,), world)
        if len(group) > 1:
            phrase += "es" if phrase.endswith("s") else "s"
        phrases.append(with_article(phrase) if len(group) == 1 < len(chosen) else f"{NUMBERS[len(group)]} {phrase}")
    return listed(phrases), [(index, (kind,)) for group in chosen for index in group], "number"


def related(rng, things, subset, chances, world=DEMO):
    """The things of the subset two by two with their relation, an odd last one with its place or without."""
    clauses, says, said, tells = [], [], set(), "relations"
    for start in range(0, len(subset), 2):
        pair, phrases = subset[start:start + 2], []
        for index in pair:
            attributes = tuple(a for a, chance in zip(ATTRIBUTES, chances, strict=True) if rng.random() < chance)
            if not {"colour", "shape"} & set(attributes):
                attributes += ("shape",)
            phrase = name(rng, things[index], attributes, world)
            phrases.append(f"another {phrase}" if phrase in said else with_article(phrase))
            said.add(phrase)
            says.append((index, attributes))
        if len(pair) == 2:
            phrases.insert(1, word(rng, relation(things[pair[0]], things[pair[1]]), world))
        elif rng.random() < 0.6:
            phrases.append(place(rng, things[pair[0]]))
            tells += " place" * (phrases[-1] != "")
        clauses.append(" ".join(filter(None, phrases)))
    return listed(clauses), says, tells


def describe(rng, scene, subset, level, world=DEMO):
    """A true Caption of the things whose indices are in subset (not empty); a higher level says more.
    Counts are of the subset: give all things to describe the image, those of a region to describe the region."""
    number, chances, background_chance = world.levels[level]
    if level in (0, 2):
        phrase, says, tells = (counts if level else gist)(rng, scene.things, subset, world)
    else:
        phrase, says, tells = related(rng, scene.things, shuffled(rng, subset)[:number], chances, world)
    background = rng.random() < background_chance
    if background and scene.background in GROUNDS:
        phrase += pick(rng, world.on_ground).format(scene.background)
    elif background:
        where, what = world.on_plain
        phrase += f" {where} " + with_article(f"{'shaded ' * scene.shaded}{scene.background} {what}")
    if rng.random() < world.opening_chance:
        phrase = f"{pick(rng, world.openings)} {phrase}"
    if rng.random() < 0.75:
        phrase = phrase[0].upper() + phrase[1:]
    return Caption(f"{phrase} .", level, tuple(says), background, tells)


def captions(rng, scene, world=DEMO):
    """Five different Captions of the whole image, one of each level, in random order."""
    told = {}
    for level in world.levels:
        caption = describe(rng, scene, range(len(scene.things)), level, world)
        while caption.text.lower() in told:
            caption = describe(rng, scene, range(len(scene.things)), level, world)
        told[caption.text.lower()] = caption
    return shuffled(rng, told.values())


def region_phrases(rng, scene, world=DEMO):
    """[((x, y, w, h), phrase)] in random order: regions of a scene as annotators box and name them, each thing twice and up
    to eight groups of two or three of them. Boxes are a few pixels wide of the things, now and then over the edge of the
    image; one in 50 has no width and one in 50 no phrase."""
    things, groups = scene.things, [(i,) for i in range(len(scene.things))] * 2
    groups += shuffled(rng, [g for n in (2, 3) for g in itertools.combinations(range(len(things)), n)])[:8]
    regions = []
    for group in shuffled(rng, groups):
        low, high = ([f(things[i].box[side] + far * things[i].box[2] for i in group) + (2 * far - 1) * between(rng, 2, 6)
                      for side in (0, 1)] for f, far in ((min, 0), (max, 1)))
        names = [name(rng, things[i], tuple(a for a, chance in zip(ATTRIBUTES, (0.3, 0.3, 0.8, 1), strict=True)
                                            if rng.random() < chance), world) for i in shuffled(rng, group)]
        names = [n if rng.random() < 0.3 else with_article(n) for n in names]
        flaw = rng.random()
        regions.append(((*low, 0 if flaw < 0.02 else high[0] - low[0], high[1] - low[1]),
                        "" if flaw > 0.98 else listed(names)))
    return regions


ASPECTS = {"size": [*RADII], "texture": [*TEXTURES], "colour": [*COLOURS], "shape": [*OUTLINES],
           "across": ["left", "middle", "right"], "down": ["top", "middle", "bottom"]}      # of a thing
ASPECT_WEIGHTS = np.array([1, 1, 3, 3, 1, 1])
RELATIONS = ("", "left", "right", "above", "below")
REST = [*[("background", ground) for ground in (*BACKGROUNDS, *GROUNDS)], ("shaded", False), ("shaded", True),
        *[(kind, n) for kind in ("any", *COLOURS, *OUTLINES) for n in range(1, MAX_OBJECTS + 1)]]
RELATION_WEIGHT, REST_WEIGHT, BARE_WEIGHT = 2, 2, 1


@dataclass(frozen=True)
class Statement:
    things: np.ndarray           # (n, 6) int8: of each thing's aspects which value it has, counted from 1, or 0: not said
    relations: np.ndarray        # (n, n) int8: where the row's thing is seen from the column's, 0: not said
    rest: frozenset              # of (what, value) in REST: background, shading, and how many there are of a kind

    @functools.cached_property
    def weight(self):
        """Of all that is stated; a thing of which nothing is said but that it is there counts a little."""
        things = (self.things > 0) @ ASPECT_WEIGHTS                                         # (n,)
        return int(np.where(things, things, BARE_WEIGHT).sum() + RELATION_WEIGHT * (self.relations > 0).sum() // 2
                   + REST_WEIGHT * len(self.rest))

    @functools.cached_property
    def tally(self):
        """(149,) int16: the weight of each aspect's value and of each of REST, whichever things they belong to."""
        values = [np.bincount(codes, minlength=len(options) + 1)[1:] * weight for codes, options, weight in
                  zip(self.things.T, ASPECTS.values(), ASPECT_WEIGHTS, strict=True)]
        return np.concatenate([*values, [REST_WEIGHT * (item in self.rest) for item in REST]]).astype(np.int16)


def statement(things, pairs, rest):
    """A Statement of [(thing, its told aspects)], of which things (by position) are told in relation, and of REST."""
    codes = np.zeros((len(things), len(ASPECTS)), np.int8)
    seen = np.zeros((len(things), len(things)), np.int8)
    for row, (thing, told) in zip(codes, things, strict=True):
        values = {**vars(thing), **dict(zip(("across", "down"), whereabouts(thing), strict=True))}
        row[:] = [options.index(values[a]) + 1 if a in told and values[a] else 0 for a, options in ASPECTS.items()]
    for i, j in pairs:
        seen[i, j] = RELATIONS.index(relation(things[i][0], things[j][0]))
        seen[j, i] = RELATIONS.index(relation(things[j][0], things[i][0]))
    return Statement(codes, seen, frozenset(rest))


def shown(scene):
    """All that holds in a scene, as a Statement."""
    kinds = [kind for thing in scene.things for kind in ("any", thing.colour, thing.shape)]
    return statement([(thing, ASPECTS) for thing in scene.things], itertools.combinations(range(len(scene.things)), 2),
                     {("background", scene.background), ("shaded", scene.shaded),
                      *((kind, kinds.count(kind)) for kind in kinds)})


def said(scene, caption):
    """What a caption says of its scene, as a Statement."""
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
    """(ways, few) int: every way to give each of a few things a different one of many."""
    return np.array(list(itertools.permutations(range(many), few)))


def common(a, b):
    """The weight of what two Statements share, their things paired so that it is most: at most the weight of either."""
    if len(a.things) > len(b.things):
        a, b = b, a
    ways = pairings(len(a.things), len(b.things))                                           # (ways, n)
    same = (a.things[:, None] == b.things) & (a.things[:, None] > 0)                        # (n, m, 6)
    bare = ~a.things.any(1)[:, None] | ~b.things.any(1)                                     # (n, m)
    worth = np.where(bare, BARE_WEIGHT, same @ ASPECT_WEIGHTS)
    totals = worth[np.arange(len(worth)), ways].sum(1)                                      # (ways,)
    i, j = np.nonzero(np.triu(a.relations))
    if len(i):
        totals += RELATION_WEIGHT * (b.relations[ways[:, i], ways[:, j]] == a.relations[i, j]).sum(1)
    return int(totals.max()) + REST_WEIGHT * len(a.rest & b.rest)


GRID = 6                         # regions a side
FILTERS = (9, 23, 22, 15, 15)    # hue (each on 13 maps), fine figure, coarse figure, texture, plain colour: 192 in all
SCALES = (4096, 256, 8192, 8, 128)   # powers of two that bring each kind to the order of one
USUAL = (0.75, 4, 3, 2.5, 1.5)   # the mean of each kind in global features, roughly
HUE_REACH = 160                  # distance, of 255, at which a colour no longer counts as a hue


@functools.cache
def colour_table():
    """(32768, 14) uint8, 0 .. 8: for RGB in 32 steps a channel, the closeness to 12 hues and white, then 8.
    A colour counts as if its strongest channel were full, so that the dark pixels of a texture keep their hue."""
    rgb = np.stack(np.meshgrid(*[np.arange(4, 256, 8)] * 3, indexing="ij"), -1).reshape(-1, 3)
    pure = rgb * 255 // rgb.max(-1, keepdims=True)
    rise = (0, 128, 255, 255, 255, 255, 255, 128, 0, 0, 0, 0)               # one channel round the colour wheel
    wheel = [(rise[(i + 4) % 12], rise[i], rise[(i + 8) % 12]) for i in range(12)] + [(255, 255, 255)]
    distance = np.abs(pure[:, None] - np.array(wheel)).max(-1)              # (32768, 13)
    near = np.maximum(HUE_REACH - distance, 0) * 8 // HUE_REACH
    return np.pad(near, ((0, 0), (0, 1)), constant_values=8).astype(np.uint8)


def shrink(maps, step):
    """(n, 128, 128, ...) to (n, 128 / step, 128 / step, ...): sums over blocks of step x step pixels, type kept."""
    maps = sum(maps[:, i::step] for i in range(step))
    return sum(maps[:, :, i::step] for i in range(step))


def windows(maps, width, stride=1):
    """(n, h, h) to (n, h / stride, h / stride, width ** 2) float32: the surroundings of each cell, 0 outside."""
    before = width // 2
    maps = np.pad(maps, ((0, 0), (before, width - 1 - before), (before, width - 1 - before)))
    views = np.lib.stride_tricks.sliding_window_view(maps, (width, width), axis=(1, 2))[:, ::stride, ::stride]
    return views.reshape(*views.shape[:3], width ** 2).astype(np.float32)


def input_maps(pixels):
    """Of (n, 128, 128, 3) uint8: hues (n, 32, 32, 13) and figure (n, 32, 32), both 0 .. 128; figure (n, 64, 64) 0 .. 4;
    texture (n, 128, 128), -1 dark, 1 light, 0 background; colour (n, 32, 32, 3) -128 .. 127."""
    figure = np.abs(pixels.astype(np.int16) - pixels[:, :, :1]).sum(-1) > 40   # nothing covers the leftmost column
    step = (pixels >> 3).astype(np.int32)
    hues = shrink(colour_table()[step[..., 0] << 10 | step[..., 1] << 5 | step[..., 2]] * figure[..., None], 4)
    return (hues[..., :-1], hues[..., -1], shrink(figure.astype(np.uint8), 2),
            np.where(pixels.max(-1) > 128, 1, -1) * figure, shrink(pixels.astype(np.int32), 4) // 16 - 128)


def exemplars(stream, maps, width, count):
    """(width ** 2, count) float32 filters of whole numbers: centred patches of maps, neither empty nor full."""
    chosen, maps = [], maps.astype(np.int64)
    while len(chosen) < count:
        image, row, column = (stream.randint(limit) for limit in np.array(maps.shape) - (0, width, width))
        patch = maps[image, row:row + width, column:column + width].ravel()
        if 0.2 < patch.sum() / (patch.size * maps.max()) < 0.8:
            patch = patch * patch.size - patch.sum()
            chosen.append(np.rint(patch * 64 / np.sqrt((patch ** 2).sum())))
    return np.array(chosen, np.float32).T


@functools.cache
def filters():
    """One float32 matrix a kind, (numbers in a window, filters), from 200 scenes that no seed changes."""
    stream = np.random.RandomState(0)
    scenes = [random_scene(random.Random(f"filters-{i}")) for i in range(200)]
    _, coarse, fine, _, _ = input_maps(np.stack([draw(scene) for scene in scenes]))
    texture = stream.randint(-3, 4, (36, FILTERS[3]))
    return (exemplars(stream, coarse, 5, FILTERS[0]), exemplars(stream, fine, 11, FILTERS[1]),
            exemplars(stream, coarse, 10, FILTERS[2]), np.rint(texture - texture.sum(0) / 36).astype(np.float32),
            stream.randint(-2, 3, (3, FILTERS[4])).astype(np.float32))


def region_features(pixels):
    """(n, 36, 192) float32 of (n, 128, 128, 3) uint8: the strongest response to each filter, at least 0, in each of
    6 x 6 cells, row by row."""
    hues, coarse, fine, texture, colour = input_maps(pixels)
    hue_f, fine_f, coarse_f, texture_f, colour_f = filters()
    by_hue = np.concatenate([windows(hues[..., i], 5) @ hue_f for i in range(hues.shape[-1])], -1)
    responses = (by_hue, windows(fine, 11, stride=2) @ fine_f, windows(coarse, 10) @ coarse_f,
                 windows(texture, 6, stride=2) @ texture_f, colour.astype(np.float32) @ colour_f)
    cells = []
    for response, scale in zip(responses, SCALES, strict=True):              # (n, h, h, filters of this kind)
        starts = np.arange(GRID) * response.shape[1] // GRID
        strongest = np.maximum.reduceat(np.maximum.reduceat(response, starts, axis=1), starts, axis=2)
        cells.append(np.maximum(strongest, 0) / np.float32(scale))
    return np.concatenate(cells, -1).reshape(len(pixels), GRID ** 2, -1)


def global_features(regions):
    """(n, 960) float32 of (n, 36, 192): the strongest response in the image, then in each of its quarters, each less
    what is usual for its kind of filter."""
    n, half = len(regions), GRID // 2
    quarters = regions.reshape(n, 2, half, 2, half, -1).max((2, 4)).reshape(n, 4, -1)
    usual = np.repeat(np.float32(USUAL), (FILTERS[0] * 13, *FILTERS[1:]))           # (192,)
    return (np.concatenate([quarters.max(1, keepdims=True), quarters], 1) - usual).reshape(n, -1)
