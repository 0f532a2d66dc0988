"""Demo data: a seeded generator of scenes of coloured shapes, with captions, boxes and image features.

    python demo.py --data_path data [--size 2000] [--seed 0]

A scene is one to six coloured shapes on a background.  From it follow the pixels (`draw`), the captions (`describe`)
and the boxes; from the pixels alone follow the features (`global_features`, `region_features`).  Some captions say
much and some say little, so many captions fit many images: the ambiguity is real, and every statement is true.
Each image has a random stream of its own and all arithmetic is exact, so that a seed gives the same data on every
machine, and a smaller size gives the first images of each split of a larger one.

Below data_path (splits hold the same images everywhere; dev = size // 4 images, test = size // 2):
    demo/                 images/*.png, dataset_demo.json (Karpathy layout), scenes.json (what is where, and what
                          each caption says of it), demo.json (manifest, written last)
    demo_coco/            images/{train,val}2014/*.png, annotations/{captions,instances}_{train,val}2014.json and
                          coco_{train,dev,test,restval}_ids.npy (caption ids, five in a row an image)
    demo_precomp/         {train,dev,test}_caps.txt, _ims.npy (N, 960) float32, _ids.txt
    demo_region_precomp/  {train,dev,test}_caps.txt, _ims.npy (N, 36, 192) float16, _ids.txt
"""
import argparse
import functools
import json
import os
import random
import shutil
from dataclasses import dataclass

import numpy as np
from PIL import Image
from tqdm import tqdm

VERSION = 1                      # raise it whenever the same seed would give other files
CANVAS = 128                     # width and height of an image, pixels
CAPTIONS = 5                     # captions an image
MAX_OBJECTS = 6
MAX_IOU = 0.03                   # of the boxes of two objects
SPLITS = ("train", "dev", "test")

COLOURS = {"red": (214, 38, 38), "green": (40, 160, 60), "blue": (40, 70, 220), "yellow": (245, 222, 40),
           "orange": (245, 135, 20), "purple": (130, 40, 165), "pink": (250, 140, 190), "white": (244, 244, 244)}
BACKGROUNDS = {"grey": (140, 140, 140), "beige": (205, 190, 160), "brown": (112, 86, 66), "teal": (70, 118, 118),
               "olive": (118, 118, 62), "navy": (44, 52, 92)}
SKY = (165, 190, 210)
GROUNDS = {"grass": (96, 130, 84), "sand": (204, 182, 138), "water": (84, 116, 150)}
RADII = {"small": (8, 10), "medium": (14, 16), "large": (21, 25)}     # half the side of the box, pixels
TEXTURES = ("plain", "striped", "dotted", "checked")

# Outlines in 25ths of the radius, x to the right and y down; each spans -25 .. 25 both ways, so the box follows from
# the radius.  The circle's corners are the integer points at distance 25.
CIRCLE = [(25, 0), (24, 7), (20, 15), (15, 20), (7, 24), (0, 25), (-7, 24), (-15, 20), (-20, 15), (-24, 7),
          (-25, 0), (-24, -7), (-20, -15), (-15, -20), (-7, -24), (0, -25), (7, -24), (15, -20), (20, -15), (24, -7)]
HOLE = [(x * 14 // 25, y * 14 // 25) for x, y in CIRCLE]
OUTLINES = {
    "circle": CIRCLE,
    "ring": CIRCLE + CIRCLE[:1] + HOLE[:1] + HOLE[:0:-1] + HOLE[:1],   # one line: round, across, back round the hole
    "square": [(-25, -25), (25, -25), (25, 25), (-25, 25)],
    "triangle": [(0, -25), (25, 25), (-25, 25)],
    "diamond": [(0, -25), (25, 0), (0, 25), (-25, 0)],
    "cross": [(-8, -25), (8, -25), (8, -8), (25, -8), (25, 8), (8, 8), (8, 25), (-8, 25), (-8, 8), (-25, 8),
              (-25, -8), (-8, -8)],
    "star": [(0, -25), (6, -6), (25, -6), (10, 6), (16, 25), (0, 14), (-16, 25), (-10, 6), (-25, -6), (-6, -6)],
    "heart": [(0, -14), (6, -22), (13, -25), (21, -22), (25, -13), (23, -3), (15, 9), (0, 25), (-15, 9), (-23, -3),
              (-25, -13), (-21, -22), (-13, -25), (-6, -22)],
}
SHAPES = tuple(OUTLINES)


# ---------------------------------------------------------------------------------------------- random choices
# Only random.Random(...).random() is promised to give the same stream in every Python, so all choices come from it.

def pick(rng, options):
    return options[int(rng.random() * len(options))]


def between(rng, low, high):
    """A whole number from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def shuffled(rng, items):
    return sorted(items, key=lambda _: rng.random())


# ------------------------------------------------------------------------------------------------------- scenes

@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str
    texture: str
    x: int                       # centre, pixels
    y: int
    radius: int                  # half the side of its square box, pixels
    rgb: tuple                   # the colour as drawn: a little off the named one

    @property
    def box(self):
        return [self.x - self.radius, self.y - self.radius, 2 * self.radius, 2 * self.radius]


@dataclass(frozen=True)
class Scene:
    things: tuple                # of Thing, the larger first, which is also the drawing order
    background: str              # a key of BACKGROUNDS (one colour) or of GROUNDS (that, below a sky)
    shaded: bool                 # darker towards the bottom; only for one colour
    horizon: int                 # row where the ground starts


def overlap(a, b):
    """Intersection over union of two things' boxes."""
    reach = a.radius + b.radius
    wide = min(reach - abs(a.x - b.x), 2 * a.radius, 2 * b.radius)
    high = min(reach - abs(a.y - b.y), 2 * a.radius, 2 * b.radius)
    inside = max(wide, 0) * max(high, 0)
    return inside / (4 * a.radius ** 2 + 4 * b.radius ** 2 - inside)


def random_scene(rng):
    """A scene of 1 to 6 things that hardly overlap; a thing that finds no room in 40 tries is left out."""
    things = []
    for size in sorted((pick(rng, list(RADII)) for _ in range(between(rng, 1, MAX_OBJECTS))), key=list(RADII).index,
                       reverse=True):
        shape, colour, texture = pick(rng, SHAPES), pick(rng, list(COLOURS)), pick(rng, TEXTURES)
        radius = between(rng, *RADII[size])
        rgb = tuple(min(max(value + between(rng, -10, 10), 0), 255) for value in COLOURS[colour])
        for _ in range(40):
            x, y = (between(rng, radius + 1, CANVAS - radius - 1) for _ in range(2))
            thing = Thing(shape, colour, size, texture, x, y, radius, rgb)
            if all(overlap(thing, other) <= MAX_IOU for other in things):
                things.append(thing)
                break
    background = pick(rng, list(GROUNDS) if rng.random() < 0.3 else list(BACKGROUNDS))
    shaded = background in BACKGROUNDS and rng.random() < 0.4
    return Scene(tuple(things), background, shaded, between(rng, 48, 80))


# ------------------------------------------------------------------------------------------------------- pixels

@functools.cache
def mask(shape, radius):
    """(2 radius, 2 radius) bool: the pixels whose centre lies inside the outline (even-odd rule, whole numbers)."""
    centres = (2 * np.arange(2 * radius) + 1 - 2 * radius) * 25         # pixel centres, in 50ths of a pixel
    x, y = centres[None, :], centres[:, None]
    inside = np.zeros((2 * radius, 2 * radius), bool)
    corners = [(2 * radius * a, 2 * radius * b) for a, b in OUTLINES[shape]]
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        left = (x - ax) * (by - ay) < (bx - ax) * (y - ay)              # of the edge, were it to run downwards
        inside ^= ((ay <= y) != (by <= y)) & (left == (by > ay))
    return inside


def pattern(texture, radius):
    """(2 radius, 2 radius) bool: the darker pixels of a texture."""
    y, x = np.ogrid[:2 * radius, :2 * radius]
    if texture == "striped":
        return np.broadcast_to(y % 6 < 3, (2 * radius, 2 * radius))
    if texture == "dotted":
        return ((x - radius) % 6 < 3) & ((y - radius) % 6 < 3)
    if texture == "checked":
        return (x // 4 + y // 4) % 2 == 0
    return np.zeros((2 * radius, 2 * radius), bool)


def draw(scene):
    """(128, 128, 3) uint8 RGB."""
    row = np.arange(CANVAS)[:, None, None]
    if scene.background in GROUNDS:
        canvas = np.where(row < scene.horizon, SKY, GROUNDS[scene.background])
    else:
        canvas = np.maximum(BACKGROUNDS[scene.background] - row * 3 // 8 * scene.shaded, 0)
    pixels = np.broadcast_to(canvas, (CANVAS, CANVAS, 3)).astype(np.uint8)     # (128, 1, 3) -> (128, 128, 3)
    for thing in scene.things:
        x, y, w, h = thing.box
        colour = np.array(thing.rgb)
        shades = np.where(pattern(thing.texture, thing.radius)[..., None], colour * 2 // 5, colour)
        inside = mask(thing.shape, thing.radius)
        pixels[y:y + h, x:x + w][inside] = shades[inside]
    return pixels


# ----------------------------------------------------------------------------------------------------- captions

WORDS = {"large": ("large", "large", "big", "huge"), "medium": ("medium",), "small": ("small", "little", "tiny"),
         "plain": ("plain", "solid"), "striped": ("striped", "striped", "stripy"), "dotted": ("dotted", "spotted"),
         "checked": ("checked", "checkered"), "purple": ("purple", "purple", "violet"),
         "circle": ("circle", "circle", "disc"), "ring": ("ring", "ring", "hoop"), "diamond": ("diamond",),
         "left": ("left of", "to the left of"), "right": ("right of", "to the right of"),
         "above": ("above", "over"), "below": ("below", "under", "beneath"), "near": ("next to", "near", "beside"),
         "any": ("shape", "shape", "object", "thing")}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
OPENINGS = ("there is", "a picture of", "an image of", "a drawing of", "an image showing", "a picture with",
            "here is", "we see")
ATTRIBUTES = ("size", "texture", "colour", "shape")       # in the order in which they are said


@dataclass(frozen=True)
class Caption:
    text: str
    level: int                   # 0 gist, 1 one thing, 2 counts, 3 two things and their relation, 4 everything
    says: tuple                  # of (index of a thing, the attributes it is given), in the order of mention

    @property
    def objects(self):
        return [index for index, _ in self.says]


def word(rng, value):
    return pick(rng, WORDS.get(value, (value,)))


def name(rng, thing, attributes, plural=False):
    """Such as "big red circle": the given attributes in words, and a general noun if the shape is not among them."""
    noun = word(rng, thing.shape if "shape" in attributes else "any")
    if plural:
        noun += "es" if noun.endswith("ss") else "s"
    return " ".join([word(rng, getattr(thing, a)) for a in ATTRIBUTES[:3] if a in attributes] + [noun])


def with_article(phrase):
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def some_attributes(rng, chances):
    """A subset of ATTRIBUTES, each with its own chance; never without both colour and shape."""
    chosen = tuple(a for a, chance in zip(ATTRIBUTES, chances, strict=True) if rng.random() < chance)
    return chosen if {"colour", "shape"} & set(chosen) else chosen + (pick(rng, ATTRIBUTES[2:]),)


def relation(a, b):
    """Where a is as seen from b (left, right, above, below), by the axis that parts their centres most; near when
    neither parts them clearly."""
    across, down = a.x - b.x, a.y - b.y
    if max(abs(across), abs(down)) < max(a.radius, b.radius, 14):
        return "near"
    if abs(across) > abs(down):
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def place(rng, thing):
    """Where a thing is in the picture, or "" where no phrase clearly holds."""
    left, right, top, bottom = thing.x <= 42, thing.x >= 86, thing.y <= 42, thing.y >= 86
    if (left or right) and (top or bottom):
        vertical = pick(rng, ("top", "upper") if top else ("bottom", "lower"))
        return f"in the {vertical} {'left' if left else 'right'} corner"
    if left or right:
        return f"on the {'left' if left else 'right'}"
    if top or bottom:
        return f"at the {'top' if top else 'bottom'}"
    if max(abs(thing.x - CANVAS // 2), abs(thing.y - CANVAS // 2)) <= 15:
        return pick(rng, ("in the middle", "in the centre"))
    return ""


def setting(rng, scene):
    if scene.background in GROUNDS:
        return pick(rng, (f"in front of {scene.background} and sky", f"with {scene.background} and sky behind"))
    return f"on a {'shaded ' if scene.shaded else ''}{scene.background} background"


def listed(phrases):
    """a , b and c"""
    return " and ".join(filter(None, [" , ".join(phrases[:-1]), phrases[-1]]))


def gist(rng, scene, subset):
    if rng.random() < 0.5:
        chosen, attributes = pick(rng, subset), (pick(rng, ATTRIBUTES[2:]),)
        phrase = with_article(name(rng, scene.things[chosen], attributes))
        if attributes == ("colour",) and rng.random() < 0.3:
            phrase = f"something {scene.things[chosen].colour}"
        elif rng.random() < 0.3:
            phrase = f"{pick(rng, OPENINGS)} {phrase}"
        return phrase, [(chosen, attributes)]
    number = NUMBERS[len(subset)]
    if len(subset) > 1 and rng.random() < 0.3:
        number = "several" if len(subset) > 3 else "a couple of" if len(subset) == 2 else "some"
    phrase = f"{number} {word(rng, 'any')}{'s' * (len(subset) > 1)}"
    ending = rng.random()
    if ending < 0.3:
        phrase = f"{with_article(pick(rng, ('picture', 'image', 'drawing')))} with {phrase}"
    elif ending < 0.6:
        phrase = f"{phrase} {setting(rng, scene)}"
    return phrase, [(index, ()) for index in subset]


def one_thing(rng, scene, subset, chances=(0.4, 0.4, 0.9, 0.9)):
    chosen, attributes = pick(rng, subset), some_attributes(rng, chances)
    phrase = with_article(name(rng, scene.things[chosen], attributes))
    if rng.random() < 0.25:
        phrase = f"{pick(rng, OPENINGS)} {phrase}"
    if rng.random() < 0.4:
        phrase = f"{phrase} {place(rng, scene.things[chosen])}".strip()
    return phrase, [(chosen, attributes)]


def counts(rng, scene, subset):
    """How many there are of each shape or of each colour; now and then of one of them only."""
    kind = pick(rng, ("shape", "shape", "colour"))
    groups = {}
    for index in shuffled(rng, subset):
        groups.setdefault(getattr(scene.things[index], kind), []).append(index)
    chosen = list(groups.values()) if rng.random() < 0.75 else [pick(rng, list(groups.values()))]
    phrases = []
    for group in chosen:
        phrase = name(rng, scene.things[group[0]], (kind,), plural=len(group) > 1)
        single = len(group) == 1 and len(chosen) > 1
        phrases.append(with_article(phrase) if single else f"{NUMBERS[len(group)]} {phrase}")
    return listed(phrases), [(index, (kind,)) for group in chosen for index in group]


def related(rng, scene, subset, chances):
    """The things of the subset two by two with their relation, an odd last one with its place."""
    order, clauses, says, said = shuffled(rng, subset), [], [], set()
    for start in range(0, len(order), 2):
        pair, phrases = order[start:start + 2], []
        for index in pair:
            attributes = some_attributes(rng, chances)
            phrase = name(rng, scene.things[index], attributes)
            phrases.append(f"another {phrase}" if phrase in said else with_article(phrase))
            said.add(phrase)
            says.append((index, attributes))
        if len(pair) == 2:
            between_them = word(rng, relation(*[scene.things[index] for index in pair]))
            clauses.append(f"{phrases[0]} {between_them} {phrases[1]}")
        else:
            clauses.append(f"{phrases[0]} {place(rng, scene.things[pair[0]])}".strip())
    return listed(clauses), says


def describe(rng, scene, subset, level):
    """A true Caption about the things whose indices are in subset, a non-empty list, saying more at higher levels.
    Counts are of the subset: pass all things to describe the image, or those of a region to describe the region."""
    if level == 0:
        phrase, says = gist(rng, scene, subset)
    elif level == 1:
        phrase, says = one_thing(rng, scene, subset)
    elif level == 2:
        phrase, says = counts(rng, scene, subset)
    elif level == 3:
        phrase, says = related(rng, scene, shuffled(rng, subset)[:2], (0.5, 0.5, 0.9, 0.9))
    else:
        phrase, says = related(rng, scene, subset, (0.6, 0.6, 1, 1))
        phrase = f"{phrase} {setting(rng, scene)}"
        if rng.random() < 0.3:
            phrase = f"{pick(rng, OPENINGS)} {phrase}"
    if rng.random() < 0.75:
        phrase = phrase[0].upper() + phrase[1:]
    return Caption(f"{phrase} .", level, tuple(says))


def captions(rng, scene):
    """Five different Captions of the whole image, one a level, in random order."""
    chosen = []
    for level in range(CAPTIONS):
        caption = describe(rng, scene, range(len(scene.things)), level)
        while caption.text.lower() in [other.text.lower() for other in chosen]:
            caption = describe(rng, scene, range(len(scene.things)), level)
        chosen.append(caption)
    return shuffled(rng, chosen)


# ----------------------------------------------------------------------------------------------------- features
# Every number up to the last scaling is whole and below 2 ** 24, so that the matrix products are exact in float32 and
# do not depend on the order in which a machine sums.

GRID = 6                         # regions a side
FILTERS = 9, 23, 22, 15, 15      # colour (each on 13 maps), fine and coarse figure, texture, plain pixels: 192 in all
SCALES = 4096, 256, 8192, 16, 128           # powers of two that bring each kind to the order of one
HUE_REACH = 160                  # the distance, in units of 1 / 255, at which a colour no longer counts as a hue


@functools.cache
def colour_table():
    """(32768, 14) uint8 from 0 to 8: for RGB in 32 steps a channel, the closeness to 12 hues and white, then 8.
    A colour counts as if its strongest channel were full, so that the dark pixels of a texture keep their hue."""
    rgb = np.stack(np.meshgrid(*[np.arange(4, 256, 8)] * 3, indexing="ij"), -1).reshape(-1, 3)
    pure = rgb * 255 // rgb.max(-1, keepdims=True)
    rise = (0, 128, 255, 255, 255, 255, 255, 128, 0, 0, 0, 0)               # one channel round the colour wheel
    wheel = [(rise[(i + 4) % 12], rise[i], rise[(i + 8) % 12]) for i in range(12)] + [(255, 255, 255)]
    distance = np.abs(pure[:, None] - np.array(wheel)).max(-1)              # (32768, 13)
    near = np.maximum(HUE_REACH - distance, 0) * 8 // HUE_REACH
    return np.pad(near, ((0, 0), (0, 1)), constant_values=8).astype(np.uint8)


def shrink(maps, step):
    """(n, 128, 128, c) to (n, 128 / step, 128 / step, c): sums over blocks of step x step pixels, type kept."""
    maps = sum(maps[:, i::step] for i in range(step))
    return sum(maps[:, :, i::step] for i in range(step))


def windows(maps, width, stride=1):
    """(n, h, h) to (n, h / stride, h / stride, width ** 2) float32: the surroundings of each cell, 0 outside."""
    before = width // 2
    maps = np.pad(maps, ((0, 0), (before, width - 1 - before), (before, width - 1 - before)))
    views = np.lib.stride_tricks.sliding_window_view(maps, (width, width), axis=(1, 2))[:, ::stride, ::stride]
    return views.reshape(*views.shape[:3], width ** 2).astype(np.float32)


def input_maps(pixels):
    """Of (n, 128, 128, 3) uint8: hues and figure (n, 32, 32, 14), figure (n, 64, 64), shade -1, 0, 1 (n, 128, 128),
    colour (n, 32, 32, 3)."""
    figure = np.abs(pixels.astype(np.int16) - pixels[:, :, :1]).sum(-1) > 40   # nothing covers the leftmost column
    step = (pixels >> 3).astype(np.int32)
    hues = colour_table()[step[..., 0] << 10 | step[..., 1] << 5 | step[..., 2]] * figure[..., None]
    fine = shrink(figure.astype(np.uint8)[..., None], 2)[..., 0]
    shade = figure * np.where(pixels.max(-1) > 128, 1, -1)
    return shrink(hues, 4), fine, shade, shrink(pixels.astype(np.int32), 4) // 16 - 128


def exemplars(stream, maps, width, count):
    """(width ** 2, count) float32 filters of whole numbers: centred patches of maps, neither empty nor full."""
    chosen = []
    while len(chosen) < count:
        image, row, column = (stream.randint(limit) for limit in np.array(maps.shape) - (0, width, width))
        patch = maps[image, row:row + width, column:column + width].astype(np.int64).ravel()
        if 0.2 < patch.sum() / (patch.size * int(maps.max())) < 0.8:
            patch = patch * patch.size - patch.sum()
            chosen.append(np.rint(patch * 64 / np.sqrt((patch ** 2).sum())))
    return np.array(chosen, np.float32).T


@functools.cache
def filters():
    """The fixed filters, one matrix a kind.  They depend on nothing but the constants of this file."""
    stream = np.random.RandomState(0)
    scenes = [random_scene(random.Random(f"filters-{i}")) for i in range(200)]
    hues, fine, _, _ = input_maps(np.stack([draw(scene) for scene in scenes]))
    texture = stream.randint(-3, 4, (36, FILTERS[3]))
    return (exemplars(stream, hues[..., -1], 5, FILTERS[0]), exemplars(stream, fine, 11, FILTERS[1]),
            exemplars(stream, hues[..., -1], 10, FILTERS[2]),
            np.rint(texture - texture.sum(0) / 36).astype(np.float32),
            stream.randint(-2, 3, (3, FILTERS[4])).astype(np.float32))


def region_features(pixels):
    """(n, 36, 192) float32 of (n, 128, 128, 3) uint8: in each of 6 x 6 cells, row by row, the strongest response to
    each filter, cut off at 0."""
    hues, fine, shade, colour = input_maps(pixels)
    hue_f, fine_f, coarse_f, shade_f, colour_f = filters()
    by_hue = np.concatenate([windows(hues[..., i], 5) @ hue_f for i in range(hues.shape[-1] - 1)], -1)
    responses = (by_hue, windows(fine, 11, stride=2) @ fine_f, windows(hues[..., -1], 10) @ coarse_f,
                 windows(shade, 6, stride=2) @ shade_f, colour.astype(np.float32) @ colour_f)
    regions = []
    for response, scale in zip(responses, SCALES, strict=True):              # (n, h, h, filters of this kind)
        starts = np.arange(GRID) * response.shape[1] // GRID
        rows = np.maximum.reduceat(response, starts, axis=1)
        regions.append(np.maximum(np.maximum.reduceat(rows, starts, axis=2), 0) / np.float32(scale))
    return np.concatenate(regions, -1).reshape(len(pixels), GRID ** 2, -1)


def global_features(regions):
    """(n, 960) of (n, 36, 192): the strongest response in the image, then in each of its quarters."""
    n, half = len(regions), GRID // 2
    quarters = regions.reshape(n, 2, half, 2, half, -1).max((2, 4)).reshape(n, 4, -1)
    return np.concatenate([quarters.max(1, keepdims=True), quarters], 1).reshape(n, -1)


# -------------------------------------------------------------------------------------------------------- files

FOLDERS = ("demo", "demo_coco", "demo_precomp", "demo_region_precomp")
SIZE_LIMITS = 8, 100_000         # the upper one keeps the ids of images and captions unique
CHUNK = 20                       # images whose features are computed at a time


def split_sizes(size):
    return {"train": size, "dev": size // 4, "test": size // 2}


def image_id(split, index):
    """Unique and scattered, as the ids of real photos are: prime moduli map different numbers to different ids."""
    return 1 + ((index * len(SPLITS) + SPLITS.index(split)) * 7919 + 4243) % 999_983


def caption_id(split, index, k):
    number = (index * len(SPLITS) + SPLITS.index(split)) * CAPTIONS + k
    return 1 + (number * 104_729 + 1_299_709) % 9_999_991


def write_json(path, content):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        json.dump(content, file)


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def link(source, target):
    try:
        os.link(source, target)
    except OSError:              # file systems without hard links
        shutil.copyfile(source, target)


def scene_entry(split, filename, scene, said):
    return {"filename": filename, "split": split,
            "objects": [{**{a: getattr(thing, a) for a in ATTRIBUTES}, "box": thing.box} for thing in scene.things],
            "background": {"name": scene.background, "shaded": scene.shaded,
                           "horizon": scene.horizon if scene.background in GROUNDS else None},
            "captions": [{"raw": c.text, "level": c.level, "objects": c.objects,
                          "says": [list(attributes) for _, attributes in c.says]} for c in said]}


def instances(scene, photo):
    """COCO annotations of a scene's things; the outlines are those of whole things, also where one covers another."""
    found = []
    for k, thing in enumerate(scene.things):
        outline = [round(centre + corner * thing.radius / 25, 2) for point in OUTLINES[thing.shape]
                   for centre, corner in zip((thing.x, thing.y), point, strict=True)]
        found.append({"id": photo * 10 + k, "image_id": photo, "category_id": SHAPES.index(thing.shape) + 1,
                      "bbox": thing.box, "area": int(mask(thing.shape, thing.radius).sum()), "iscrowd": 0,
                      "segmentation": [outline], "phrase": " ".join(getattr(thing, a) for a in ATTRIBUTES)})
    return found


def write_coco(folder, images, entries):
    """The COCO layout: as in the real one, dev, test and the last fifth of the training images are in val2014."""
    made = {year: {"images": [], "captions": [], "instances": []} for year in ("train2014", "val2014")}
    ids = {"train": [], "dev": [], "test": [], "restval": []}
    first_rest = len(entries["train"]) - max(len(entries["train"]) // 5, 1)
    for year in made:
        os.makedirs(os.path.join(folder, "images", year))
    for split in SPLITS:
        for index, (filename, scene, said) in enumerate(entries[split]):
            part = "restval" if split == "train" and index >= first_rest else split
            year = "train2014" if part == "train" else "val2014"
            photo = image_id(split, index)
            photo_name = f"COCO_{year}_{photo:012d}.png"
            link(os.path.join(images, filename), os.path.join(folder, "images", year, photo_name))
            made[year]["images"].append({"id": photo, "file_name": photo_name, "width": CANVAS, "height": CANVAS})
            made[year]["instances"] += instances(scene, photo)
            for k, caption in enumerate(said):
                ids[part].append(caption_id(split, index, k))
                made[year]["captions"].append({"id": ids[part][-1], "image_id": photo, "caption": caption.text})
    head = {"info": {"description": "demo scenes", "year": 2014, "version": str(VERSION)}, "licenses": []}
    categories = [{"id": k + 1, "name": shape, "supercategory": "shape"} for k, shape in enumerate(SHAPES)]
    notes = os.path.join(folder, "annotations")
    for year, content in made.items():
        # by id, as photos come in no useful order in real files
        photos, told, seen = (sorted(content[key], key=lambda item: item["id"])
                              for key in ("images", "captions", "instances"))
        write_json(os.path.join(notes, f"captions_{year}.json"), {**head, "images": photos, "annotations": told})
        write_json(os.path.join(notes, f"instances_{year}.json"),
                   {**head, "images": photos, "categories": categories, "annotations": seen})
    for part, numbers in ids.items():
        np.save(os.path.join(notes, f"coco_{part}_ids.npy"), np.array(numbers, np.int64))


def write(data_path, size=2000, seed=0, progress=True):
    """Write all files below data_path unless they are there already; return the counts of what they hold."""
    if not SIZE_LIMITS[0] <= size <= SIZE_LIMITS[1]:
        raise ValueError(f"size is {size}, but must be from {SIZE_LIMITS[0]} to {SIZE_LIMITS[1]}")
    folders = {name: os.path.join(data_path, name) for name in FOLDERS}
    manifest = os.path.join(folders["demo"], "demo.json")
    made_of = {"version": VERSION, "size": size, "seed": seed}
    if os.path.exists(manifest) and all(os.path.isdir(folder) for folder in folders.values()):
        with open(manifest, encoding="utf-8") as file:
            found = json.load(file)
        if made_of == {key: found.get(key) for key in made_of}:
            print(f"demo data of size {size} and seed {seed} are already in {data_path}")
            return found["counts"]
    if os.path.exists(manifest):
        os.remove(manifest)
    for stale in (os.path.join(folders["demo"], "images"), os.path.join(folders["demo_coco"], "images")):
        shutil.rmtree(stale, ignore_errors=True)
    images = os.path.join(folders["demo"], "images")
    for folder in (images, os.path.join(folders["demo_coco"], "annotations"), *folders.values()):
        os.makedirs(folder, exist_ok=True)

    sizes = split_sizes(size)
    entries = {split: [] for split in SPLITS}                # of (filename, scene, captions)
    bar = tqdm(total=sum(sizes.values()), desc="demo images", disable=None if progress else True)
    for split in SPLITS:
        regions, whole = [], []
        for start in range(0, sizes[split], CHUNK):
            pixels = []
            for index in range(start, min(start + CHUNK, sizes[split])):
                rng = random.Random(f"{seed}-{split}-{index}")
                scene = random_scene(rng)
                filename = f"{split}_{index:05d}.png"
                entries[split].append((filename, scene, captions(rng, scene)))
                pixels.append(draw(scene))
                Image.fromarray(pixels[-1]).save(os.path.join(images, filename))
            found = region_features(np.stack(pixels))        # (up to 20, 36, 192)
            regions.append(found.astype(np.float16))
            whole.append(global_features(found))
            bar.update(len(pixels))
        for kind, features in (("demo_precomp", whole), ("demo_region_precomp", regions)):
            stem = os.path.join(folders[kind], split)
            np.save(f"{stem}_ims.npy", np.concatenate(features))
            write_lines(f"{stem}_ids.txt", [filename for filename, _, _ in entries[split]])
            write_lines(f"{stem}_caps.txt", [caption.text for _, _, said in entries[split] for caption in said])
    bar.close()

    karpathy, described = [], []
    for split in SPLITS:
        for filename, scene, said in entries[split]:
            number = len(karpathy)
            sentids = list(range(number * CAPTIONS, (number + 1) * CAPTIONS))
            karpathy.append({"filename": filename, "split": "val" if split == "dev" else split, "imgid": number,
                             "sentids": sentids,
                             "sentences": [{"raw": caption.text, "sentid": sentid, "imgid": number}
                                           for sentid, caption in zip(sentids, said, strict=True)]})
            described.append(scene_entry(split, filename, scene, said))
    write_json(os.path.join(folders["demo"], "dataset_demo.json"), {"dataset": "demo", "images": karpathy})
    write_json(os.path.join(folders["demo"], "scenes.json"), described)
    write_coco(folders["demo_coco"], images, entries)
    counts_of = {**sizes, "images": len(karpathy), "captions": len(karpathy) * CAPTIONS,
                 "objects": sum(len(entry["objects"]) for entry in described)}
    write_json(manifest + ".part", {**made_of, "counts": counts_of})
    os.replace(manifest + ".part", manifest)
    return counts_of


def whole_number(low, high):
    """An argparse type whose error says what was given, what is allowed and what to do."""
    def convert(text):
        if not text.removeprefix("-").isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"got {text!r}, but it must be a whole number from {low} to {high}; "
                                             "give one in that range or leave the option out")
        return int(text)
    return convert


def main():
    parser = argparse.ArgumentParser(description="Write the demo data: scenes of coloured shapes in all formats.")
    parser.add_argument("--data_path", default="data", help="folder to write to (default: %(default)s)")
    parser.add_argument("--size", type=whole_number(*SIZE_LIMITS), default=2000,
                        help="training images; dev has a quarter and test half as many (default: %(default)s)")
    parser.add_argument("--seed", type=whole_number(0, 2 ** 31 - 1), default=0, help="default: %(default)s")
    args = parser.parse_args()
    try:
        made = write(args.data_path, args.size, args.seed)
    except OSError as error:
        parser.error(f"--data_path {args.data_path!r} cannot be written ({error}); give a folder you can write to")
    print(f"{made['images']} images ({made['train']} train, {made['dev']} dev, {made['test']} test), "
          f"{made['captions']} captions and {made['objects']} objects in {args.data_path}:")
    print("  demo                 images, dataset_demo.json (Karpathy layout), scenes.json (what each caption says)")
    print("  demo_coco            COCO captions, instances and ids")
    print(f"  demo_precomp         ({made['train']}, 960) global features of the training images, and so on")
    print(f"  demo_region_precomp  ({made['train']}, 36, 192) region features")


if __name__ == "__main__":
    main()
