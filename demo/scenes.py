"""Scenes of coloured shapes: random scenes and their pixels.

`random_scene` draws a Scene from a random stream and `draw_scene` paints it. A `World` is a
distribution of scenes and of captions (captions.py). WORLDS holds the demo's own and another one,
to test a model on scenes unlike those it was trained on. All arithmetic is exact, so a random
stream gives the same results on every machine.
"""

import functools
from dataclasses import dataclass

import numpy as np

CANVAS = 128  # width and height of an image, pixels
MAX_OBJECTS = 6
MAX_OVERLAP = 0.03  # of the boxes of two objects
TRIALS = 40  # positions that are tried for a thing
# fmt: off
THING_COLOURS = {
    "red": (214, 38, 38), "green": (40, 160, 60), "blue": (40, 70, 220),
    "yellow": (245, 222, 40), "orange": (245, 135, 20), "purple": (130, 40, 165),
    "pink": (250, 140, 190), "white": (244, 244, 244),
}
BACKGROUNDS = {
    "grey": (140, 140, 140), "beige": (205, 190, 160), "brown": (112, 86, 66),
    "teal": (70, 118, 118), "olive": (118, 118, 62), "navy": (44, 52, 92),
}
SKY = (165, 190, 210)
GROUNDS = {"grass": (96, 130, 84), "sand": (204, 182, 138), "water": (84, 116, 150)}
# Half the side of the box, pixels.
RADII = {"large": (21, 25), "medium": (14, 16), "small": (8, 10)}
TEXTURES = ("plain", "striped", "dotted", "checked")
# Outlines in 25ths of the radius, x to the right and y down; each spans -25 .. 25 both ways, so the
# box follows from the radius. The circle's corners are the whole points at distance 25; the ring is
# one line: round, in, round, out.
CIRCLE = [
    (25, 0), (24, 7), (20, 15), (15, 20), (7, 24), (0, 25), (-7, 24), (-15, 20), (-20, 15),
    (-24, 7), (-25, 0), (-24, -7), (-20, -15), (-15, -20), (-7, -24), (0, -25), (7, -24),
    (15, -20), (20, -15), (24, -7),
]
HOLE = [(x * 14 // 25, y * 14 // 25) for x, y in CIRCLE]
OUTLINES = {
    "circle": CIRCLE,
    "ring": CIRCLE + CIRCLE[:1] + HOLE[:1] + HOLE[::-1],
    "square": [(-25, -25), (25, -25), (25, 25), (-25, 25)],
    "triangle": [(0, -25), (25, 25), (-25, 25)],
    "diamond": [(0, -25), (25, 0), (0, 25), (-25, 0)],
    "cross": [
        (-8, -25), (8, -25), (8, -8), (25, -8), (25, 8), (8, 8), (8, 25), (-8, 25), (-8, 8),
        (-25, 8), (-25, -8), (-8, -8),
    ],
    "star": [
        (0, -25), (6, -6), (25, -6), (10, 6), (16, 25), (0, 14), (-16, 25), (-10, 6), (-25, -6),
        (-6, -6),
    ],
    "heart": [
        (0, -14), (6, -22), (13, -25), (21, -22), (25, -13), (23, -3), (15, 9), (0, 25), (-15, 9),
        (-23, -3), (-25, -13), (-21, -22), (-13, -25), (-6, -22),
    ],
}
# fmt: on
ATTRIBUTES = ("size", "texture", "colour", "shape")  # in the order in which they are said


# ---- worlds


@dataclass(frozen=True)
class World:
    """A distribution of scenes and captions; entries that stand twice are likelier."""

    objects: tuple  # how many things a scene has
    sizes: tuple
    shapes: tuple
    colours: tuple
    textures: tuple
    backgrounds: tuple
    grounds: tuple
    ground_chance: float
    shaded_chance: float
    words: dict  # a meaning -> the words for it; the others are said as they are
    vague: dict  # number of things -> (words for it, what they tell); 0: any other number
    openings: tuple
    opening_chance: float
    # level -> (things that it relates, chance of each attribute, chance of the background)
    levels: dict
    on_ground: tuple  # phrases, with the noun phrases in brackets
    on_plain: tuple  # preposition and noun


# fmt: off
WORLDS = {
    "demo": World(
        objects=tuple(range(1, MAX_OBJECTS + 1)),
        sizes=tuple(RADII),
        shapes=tuple(OUTLINES),
        colours=tuple(THING_COLOURS),
        textures=TEXTURES,
        backgrounds=tuple(BACKGROUNDS),
        grounds=tuple(GROUNDS),
        ground_chance=0.3,
        shaded_chance=0.4,
        words={
            "large": ("large", "large", "big", "huge"),
            "small": ("small", "little", "tiny"),
            "plain": ("plain", "solid"),
            "striped": ("striped", "striped", "stripy"),
            "dotted": ("dotted", "spotted"),
            "checked": ("checked", "checkered"),
            "purple": ("purple", "purple", "violet"),
            "circle": ("circle", "circle", "disc"),
            "ring": ("ring", "ring", "hoop"),
            "any": ("shape", "object", "thing"),
            "left": ("left of", "to the left of"),
            "right": ("right of", "to the right of"),
            "above": ("above", "over"),
            "below": ("below", "under", "beneath"),
        },
        vague={2: ("a couple of", "number"), 3: ("some", ""), 0: ("several", "")},
        openings=(
            "a picture of", "an image of", "a drawing of", "an image showing", "a picture with",
            "we see",
        ),
        opening_chance=0.25,
        levels={
            0: (0, None, 0.3),
            1: (1, (0.4, 0.4, 0.9, 0.9), 0.1),
            2: (0, None, 0.1),
            3: (2, (0.5, 0.5, 0.9, 0.9), 0.1),
            4: (MAX_OBJECTS, (0.6, 0.6, 1, 1), 1),
        },
        on_ground=(" in front of [{}] and [sky]", " with [{}] and [sky] behind"),
        on_plain=("on", "background"),
    ),
    # Fewer and larger things, other frequencies, mostly outdoors; terser captions, some with words
    # unknown to demo.
    "other": World(
        objects=(1, 1, 2, 2, 3, 3, 4, 5),
        sizes=("large", "large", "medium", "medium", "small"),
        shapes=(
            "heart", "heart", "heart", "star", "star", "ring", "ring", "cross", "diamond",
            "triangle", "square", "circle",
        ),
        colours=(
            "red", "red", "orange", "orange", "pink", "pink", "yellow", "yellow", "purple",
            "white", "green", "blue",
        ),
        textures=("plain", "plain", "plain", "dotted", "dotted", "checked", "striped"),
        backgrounds=(
            "navy", "navy", "navy", "teal", "teal", "olive", "brown", "grey", "beige",
        ),
        grounds=("water", "water", "sand", "grass"),
        ground_chance=0.6,
        shaded_chance=0.7,
        words={
            "large": ("large", "big", "giant"),
            "small": ("small", "small", "mini"),
            "striped": ("striped", "lined"),
            "dotted": ("dotted", "speckled"),
            "checked": ("checked", "chequered"),
            "purple": ("purple", "lilac"),
            "diamond": ("diamond", "rhombus"),
            "ring": ("ring", "loop"),
            "any": ("shape", "figure", "item"),
            "left": ("to the left of", "on the left side of"),
            "right": ("to the right of", "on the right side of"),
            "above": ("above", "higher than"),
            "below": ("below", "lower than", "underneath"),
        },
        vague={2: ("a pair of", "number"), 3: ("a few", ""), 0: ("several", "")},
        openings=("a photo of", "a sketch of", "a picture of", "this shows", "a scene with"),
        opening_chance=0.5,
        levels={
            0: (0, None, 0.1),
            1: (1, (0.2, 0.2, 0.8, 0.9), 0.3),
            2: (0, None, 0),
            3: (2, (0.2, 0.2, 0.9, 0.9), 0.1),
            4: (3, (0.4, 0.4, 0.9, 1), 0.5),
        },
        on_ground=(" on [{}] under [the sky]", " with [{}] and [sky] behind"),
        on_plain=("against", "backdrop"),
    ),
}
# fmt: on
DEMO = WORLDS["demo"]


# ---- scenes


@dataclass(frozen=True)
class Thing:
    """A coloured shape in a scene."""

    shape: str
    colour: str
    size: str
    texture: str
    x: int  # center, pixels
    y: int
    radius: int  # half the side of its square box, pixels
    rgb: tuple  # the colour as drawn, a little off the named one

    @property
    def box(self):
        """[x, y, width, height] of the thing, in pixels."""
        side = 2 * self.radius
        return [self.x - self.radius, self.y - self.radius, side, side]


@dataclass(frozen=True)
class Scene:
    """Things on a background."""

    things: tuple  # of Thing, the larger first, which is also the drawing order
    background: str  # a key of BACKGROUNDS (one colour) or of GROUNDS (that, below a sky)
    shaded: bool  # darker towards the bottom; only with one colour
    horizon: int  # row where the ground starts


def between(rng, low, high):
    """Draw a whole number from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def pick(rng, options):
    """A random one of the options."""
    return options[between(rng, 0, len(options) - 1)]


def shuffled(rng, items):
    """Return the items in random order."""

    def draw_key(_):
        return rng.random()

    return sorted(items, key=draw_key)


def measure_overlap(a, b):
    """Compute the intersection over union of the boxes of two things, 0 to 1."""
    shared = 1
    for gap in (a.x - b.x, a.y - b.y):
        side = min(a.radius + b.radius - abs(gap), 2 * a.radius, 2 * b.radius)
        shared *= max(side, 0)
    return shared / (4 * a.radius**2 + 4 * b.radius**2 - shared)


def random_scene(rng, world=DEMO):
    """Draw a Scene of 1 to 6 things that hardly overlap, fewer if there is no room."""
    count = pick(rng, world.objects)
    sizes = [pick(rng, world.sizes) for _ in range(count)]
    things = []
    for size in sorted(sizes, key=list(RADII).index):
        thing = random_thing(rng, world, size, things)
        if thing:
            things.append(thing)

    outdoors = rng.random() < world.ground_chance
    background = pick(rng, world.grounds if outdoors else world.backgrounds)
    shaded = background in BACKGROUNDS and rng.random() < world.shaded_chance
    return Scene(tuple(things), background, shaded, horizon=between(rng, 48, 80))


def random_thing(rng, world, size, others):
    """Draw a Thing that hardly overlaps the others, or None if there is no room."""
    shape = pick(rng, world.shapes)
    colour = pick(rng, world.colours)
    texture = pick(rng, world.textures)
    radius = between(rng, *RADII[size])
    rgb = []
    for value in THING_COLOURS[colour]:
        value += between(rng, -10, 10)
        rgb.append(min(max(value, 0), 255))

    for _ in range(TRIALS):
        x = between(rng, radius + 1, CANVAS - radius - 1)
        y = between(rng, radius + 1, CANVAS - radius - 1)
        thing = Thing(shape, colour, size, texture, x, y, radius, tuple(rgb))
        if all(measure_overlap(thing, other) <= MAX_OVERLAP for other in others):
            return thing
    return None


# ---- pixels


@functools.cache
def mask(shape, radius):
    """Pixels with their center inside the outline, (2 radius, 2 radius) bool."""
    side = 2 * radius
    centers = (2 * np.arange(side) + 1 - side) * 25  # of pixels, in 50ths of one
    x = centers[None, :]
    y = centers[:, None]
    corners = [(side * a, side * b) for a, b in OUTLINES[shape]]
    inside = np.zeros((side, side), bool)
    # a pixel is inside if a line from it to the right crosses an odd number of edges
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        crossed = (ay <= y) != (by <= y)
        left = ((x - ax) * (by - ay) < (bx - ax) * (y - ay)) == (by > ay)  # of the edge
        inside ^= crossed & left
    return inside


def draw_texture(texture, width, height):
    """Where a thing is dark: broadcast to (height, width) bool."""
    row, column = np.ogrid[:height, :width]
    if texture == "striped":
        return (column >= 0) & (row % 6 < 3)
    if texture == "checked":
        return (column // 4 + row // 4) % 2 == 0
    if texture == "dotted":
        return ((column - width // 2) % 6 < 3) & ((row - height // 2) % 6 < 3)
    return np.zeros((height, width), bool)


def draw_background(scene):
    """The scene without its things as (128, 1, 3) numbers of RGB."""
    row = np.arange(CANVAS)[:, None, None]
    if scene.background in GROUNDS:
        return np.where(row < scene.horizon, SKY, GROUNDS[scene.background])
    darker = row * 3 // 8 * scene.shaded
    return np.maximum(BACKGROUNDS[scene.background] - darker, 0)


def draw_scene(scene):
    """The scene as (128, 128, 3) uint8 RGB."""
    canvas = draw_background(scene)
    pixels = np.broadcast_to(canvas, (CANVAS, CANVAS, 3)).astype(np.uint8)
    for thing in scene.things:
        x, y, width, height = thing.box
        dark = draw_texture(thing.texture, width, height)
        inside = mask(thing.shape, thing.radius)
        colour = np.array(thing.rgb)
        painted = np.where(dark[..., None], colour * 2 // 5, colour)  # (height, width, 3)
        pixels[y : y + height, x : x + width][inside] = painted[inside]
    return pixels
