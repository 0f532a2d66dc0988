"""Ratings in the form of Crisscrossed Captions, by five simulated raters.

The raters compare what two scenes show or two captions say (`captions.shared_weight`) and nothing
else. A terse caption is true of many images and so rates high on them, although it was written for
another one. Kinds of pairs: sts are two captions, sis two images, sits a caption and an image.
"""

import itertools
import random

import numpy as np

from demo.captions import caption_statement, scene_statement, shared_weight
from demo.scenes import between, shuffled

RATERS = 5
MAX_RATING = 5
# the shares that are rated 0 and 5
RATED_SHARES = {"sts": (0.1, 0.85), "sis": (0.15, 0.75), "sits": (0.15, 0.95)}
MISREADING_CHANCE = 0.01  # of a pair, which lowers its rating by up to 4
POOL_SIZES = {"sts": (50, 50, 2), "sis": (100, 100, 30, 2), "sits": (50, 50, 10, 2)}
SAMPLING_METHODS = {
    "sts": "c2c_isim",
    "sis": "i2i_csim",
    "sits": "c2i_intrasim",
}  # of sampling, their names
PAIRS_PER_REPEAT = 20  # one in so many pairs of images is rated again, in the other order
COCAPTION_PAIRS = 3  # of the ten pairs of an image's captions


def measure_share(kind, shared, a, b):
    """The share, 0 to 1, of the weight that two statements share; arrays broadcast.

    For two captions and two images it is symmetric; else how far caption a holds in image b. a and
    b: the weight of each.
    """
    if kind == "sits":
        return shared / a
    dice = 2 * shared / (a + b)
    if kind == "sis":
        return dice
    return (shared / np.minimum(a, b) + dice) / 2


def draw_rating(rng, kind, share):
    """Return the mean score of five raters, from 0 to 5 in hundredths.

    A greater share (0 to 1) gives more, apart from the noise of the raters.
    """
    low, high = RATED_SHARES[kind]
    level = MAX_RATING * (share - low) / (high - low)
    if rng.random() < MISREADING_CHANCE:
        level -= 4 * rng.random()
    total = 0
    for _ in range(RATERS):
        score = level + 1.5 * (rng.random() + rng.random() - 1)
        total += round(100 * min(max(score, 0), MAX_RATING))
    return round(total / (100 * RATERS), 2)


def pair_similar(rng, kind, queries, gallery, images):
    """Pair Statements of each image with similar ones of other images, as indices.

    Both lists hold the same number of Statements per image, in the order of the images. For each
    size in POOL_SIZES, one statement of each image is paired with one from a random pool of that
    size, drawn from other images: the one whose tally shares most with it. Large pools give very
    similar pairs, small ones hardly similar pairs.
    """
    tallies = np.stack([statement.tally for statement in gallery])
    weights = np.array([statement.weight for statement in gallery])
    queries_per_image = len(queries) // images
    items_per_image = len(gallery) // images
    pairs = {}
    for turn, size in enumerate(POOL_SIZES[kind]):
        for image in range(images):
            query = image * queries_per_image + (image + turn) % queries_per_image
            pool = []
            for _ in range(size):
                other = (image + between(rng, 1, images - 1)) % images
                pool.append(other * items_per_image + between(rng, 0, items_per_image - 1))
            shared = np.minimum(queries[query].tally, tallies[pool]).sum(1)  # (pool,)
            shares = measure_share(kind, shared, queries[query].weight, weights[pool])
            best = pool[int(shares.argmax())]
            if kind == "sits" or (best, query) not in pairs:
                pairs[query, best] = None
    return list(pairs)


def add_related(rng, kind, pairs, images, captions_per_image):
    """Add pairs of an image's own captions, or a second rating: [(index, index, method)].

    pairs: of `pair_similar`.
    """
    pairs = [(a, b, SAMPLING_METHODS[kind]) for a, b in pairs]
    if kind == "sis":
        return pairs + [(b, a, method) for a, b, method in pairs[::PAIRS_PER_REPEAT]]
    if kind == "sits":
        captions = range(images * captions_per_image)
        return pairs + [(k, k // captions_per_image, "c2i_original") for k in captions]
    two_captions = list(itertools.combinations(range(captions_per_image), 2))
    for image in range(images):
        first = image * captions_per_image
        for i, j in shuffled(rng, two_captions)[:COCAPTION_PAIRS]:
            pairs.append((first + i, first + j, "c2c_cocaption"))
    return pairs


def rate_pairs(seed, split, kind, scenes):
    """Rate pairs of a split; return them in random order: [(index, index, rating, method)].

    kind: sts, sis or sits. scenes: the (scene, captions) of each image. Indices count images or
    captions through the split.
    """
    shows = []
    says = []
    for scene, captions in scenes:
        if kind != "sts":
            shows.append(scene_statement(scene))
        if kind != "sis":
            says += [caption_statement(scene, caption) for caption in captions]
    queries = shows if kind == "sis" else says
    gallery = says if kind == "sts" else shows

    rng = random.Random(f"{seed}-{kind}-{split}")
    images = len(scenes)
    pairs = pair_similar(rng, kind, queries, gallery, images)
    pairs = add_related(rng, kind, pairs, images, len(says) // images)
    rows = []
    for a, b, method in pairs:
        shared = shared_weight(queries[a], gallery[b])
        share = float(measure_share(kind, shared, queries[a].weight, gallery[b].weight))
        rows.append((a, b, draw_rating(rng, kind, share), method))
    return shuffled(rng, rows)
