"""Made-up data sets of the papers' sizes, in the layouts that train.py reads.

Time and memory do not depend on what features and captions say. So features are random numbers,
captions are random words with the frequencies and lengths of COCO's, and photos are noise that
takes as long to decode as COCO's photos.

Regions are written of fewer images than COCO has: a training reads them at random, and a step costs
the same. They and the few photos stay in memory, so the reading of a disk is not measured.
"""

import csv
import json
import os
import shutil
from typing import NamedTuple

import numpy as np
from PIL import Image

from utils import InputError, atomic, read_json, save_array, save_json, save_lines
from vocab import Vocabulary, tokenize

DATA_VERSION = 1  # raise it whenever other data are written
MADE_UP_SPLITS = ("train", "dev", "test", "testall", "restval")
CAPTIONS_PER_IMAGE = 5
NETWORK = "resnet152.pth"
FEATURE_DIM = 2048  # of ResNet-152, and of a region
FC_DIM = 4096  # of AlexNet and VGG
REGIONS_PER_IMAGE = 36
# COCO's captions: 10,000 of these words occur four times or more in the training captions
DISTINCT_WORDS = 27_000
# the k-th word has a share of (k + 6) ** -1.62
ZIPF_EXPONENT = 1.62
ZIPF_OFFSET = 6
# words of a caption
MEAN_LENGTH = 10.5
MIN_LENGTH = 6
MAX_LENGTH = 50
LONG_CAPTIONS = 0.002  # share of captions of MEAN_LENGTH to MAX_LENGTH words
# shares of captions with a final full stop, a comma, an apostrophe
FULL_STOPS = 0.75
COMMAS = 0.05
APOSTROPHES = 0.02
PHOTOS_PER_YEAR = 40  # files; the images of the data set share them in turn
PHOTO_SIZE = (640, 480)
BLOCK_BYTES = 64 << 20  # random numbers that are repeated in a file of features
REGION_IMAGES = 20_000  # of train, 5.9 GB; all 113,287 take 33.4 GB
MAX_SHARE_OF_DISK = 0.5  # of the free disk, which regions may take
# Crisscrossed Captions, test: rows of each file, and how many more are rated a match
CXC_RATINGS = {"sts": 44_045, "sis": 46_719, "sits": 44_833}
CXC_MATCHES = 10_614
FIRST_ID_OF_VAL = 1_000_000  # ids of images of val2014 begin here


class Sizes(NamedTuple):
    """Numbers of images of each split."""

    train: int
    dev: int
    testall: int
    restval: int
    halves: tuple[int, int]  # of dmsm's split: training, and dev and test each
    regions: int  # training images of which there are regions


COCO = Sizes(
    train=113_287,
    dev=5_000,
    testall=5_000,
    restval=30_504,
    halves=(82_783, 20_252),
    regions=113_287,
)


def scale_sizes(scale: float, region_images: int) -> Sizes:
    """Return COCO's sizes times a scale.

    testall keeps the 5,000 images of five folds from a scale of 0.1 on.
    """

    def shrink(count: int) -> int:
        return max(40, round(scale * count))

    testall = COCO.testall
    if scale < 0.1:
        testall = shrink(testall)
    training_half, test_half = COCO.halves
    return Sizes(
        train=shrink(COCO.train),
        dev=shrink(COCO.dev),
        testall=testall,
        restval=shrink(COCO.restval),
        halves=(shrink(training_half), shrink(test_half)),
        regions=shrink(min(region_images, COCO.train)),
    )


# ---- captions


def make_words(rng: np.random.Generator) -> list[str]:
    """Make different words of 1 to 3 syllables, common ones shorter.

    They have as many trigrams as COCO's.
    """
    begin = list("bcdfghjklmnpqrstvwxyz")
    begin += "bl br ch cl cr dr fl fr gr pl pr sh sk sl sm sn sp st str sw th tr wh".split()
    middle = list("aeiouy")
    middle += "ai ea ee ie oa oo ou ow".split()
    end = ["", "", ""]
    end += list("dgklmnprstx")
    end += "ff ing ll ly mp nd ng ns nt rd rk rs rt ss st".split()

    # arrays, since rng.choice would turn a list into one in each draw
    parts_of_syllable = [np.array(part) for part in (begin, middle, end)]
    words: dict[str, None] = {}  # a dict, as a set has no order
    while len(words) < DISTINCT_WORDS:
        share_of_long = min(0.5, len(words) / 10_000)
        syllables = 1 + rng.binomial(2, share_of_long)
        parts = [rng.choice(part) for part in parts_of_syllable * syllables]
        words["".join(parts)] = None
    return list(words)


def draw_lengths(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the numbers of words of captions: (count,)."""
    lengths = MIN_LENGTH + rng.poisson(MEAN_LENGTH - MIN_LENGTH, count)
    long = np.flatnonzero(rng.random(count) < LONG_CAPTIONS)
    lengths[long] = rng.integers(MEAN_LENGTH, MAX_LENGTH + 1, len(long))
    return np.minimum(lengths, MAX_LENGTH)


def make_captions(count: int, words: list[str], rng: np.random.Generator) -> list[str]:
    """Make captions of words that are drawn by their shares, as people type them."""
    lengths = draw_lengths(count, rng)
    shares = (np.arange(len(words)) + ZIPF_OFFSET) ** -ZIPF_EXPONENT
    limits = np.cumsum(shares / shares.sum())
    drawn = np.searchsorted(limits, rng.random(lengths.sum()) * limits[-1])
    numbers = iter(drawn.tolist())
    chance = rng.random((3, count))
    has_full_stop = chance[0] < FULL_STOPS
    has_comma = chance[1] < COMMAS
    has_apostrophe = chance[2] < APOSTROPHES

    captions = []
    for m, length in enumerate(lengths.tolist()):
        caption = [words[next(numbers)] for _ in range(length)]
        if has_comma[m]:
            caption[length // 2] += ","
        if has_apostrophe[m]:
            caption[0] += "'s"
        text = " ".join(caption).capitalize()
        if has_full_stop[m]:
            text += "."
        captions.append(text)
    return captions


# ---- features


def save_features(path: str, shape: tuple, rng: np.random.Generator) -> None:
    """Write an .npy file of float32 numbers in [0, 2]: a block of random ones, repeated.

    A little is added in each repetition, so that no two rows are equal.
    """
    numbers_per_image = int(np.prod(shape[1:]))
    rows = max(1, min(shape[0], BLOCK_BYTES // (4 * numbers_per_image)))
    block = rng.random((rows, *shape[1:]), dtype=np.float32)
    step = np.float32(rows / shape[0])
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with atomic(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, shape[0], rows):
            file.write(memoryview(block[: shape[0] - start]).cast("B"))
            block += step


def save_split(
    folder: str, name: str, shape: tuple, captions: list[str], rng: np.random.Generator
) -> None:
    """Write features (N, F), or regions (N, P, F), and the captions of a split."""
    os.makedirs(folder, exist_ok=True)
    save_features(os.path.join(folder, f"{name}_ims.npy"), shape, rng)
    save_lines(os.path.join(folder, f"{name}_caps.txt"), captions)


def share_split(folder: str, split: str, other: str) -> None:
    """Let another split have the files of a split."""
    for end in ("ims.npy", "caps.txt"):
        os.link(os.path.join(folder, f"{split}_{end}"), os.path.join(folder, f"{other}_{end}"))


def save_ids(folder: str, images: int) -> None:
    """Write ids of images and captions of testall."""
    save_array(os.path.join(folder, "testall_img_ids.npy"), FIRST_ID_OF_VAL + np.arange(images))
    save_array(os.path.join(folder, "testall_ann_ids.npy"), np.arange(CAPTIONS_PER_IMAGE * images))


# ---- Crisscrossed Captions


def save_cxc(folder: str, images: int, rng: np.random.Generator) -> None:
    """Write the three files of ratings of testall, in their real numbers or fewer."""
    os.makedirs(folder)
    captions = CAPTIONS_PER_IMAGE * images
    share = images / COCO.testall
    count = {kind: round(share * number) for kind, number in CXC_RATINGS.items()}

    sts = draw_pairs(count["sts"], captions, captions, rng)
    sis = draw_pairs(count["sis"], images, images, rng)
    matched = np.stack([np.arange(captions), np.arange(captions) // CAPTIONS_PER_IMAGE], 1)
    others = draw_pairs(count["sits"] - captions, captions, images, rng)
    sits = np.concatenate([matched, others])

    sts_names = [(name_caption(a), name_caption(b)) for a, b in sts.tolist()]
    sis_names = [(name_image(a), name_image(b)) for a, b in sis.tolist()]
    sits_names = [(name_caption(a), name_image(b)) for a, b in sits.tolist()]
    n_matches = captions + round(share * CXC_MATCHES)
    path = os.path.join(folder, "{}_test.csv").format
    save_ratings(path("sts"), ("caption1", "caption2"), sts_names, len(sts) // 2, rng)
    save_ratings(path("sis"), ("image1", "image2"), sis_names, len(sis) // 2, rng)
    save_ratings(path("sits"), ("caption", "image"), sits_names, n_matches, rng)


def draw_pairs(count: int, first: int, second: int, rng: np.random.Generator) -> np.ndarray:
    """Draw pairs of a number below `first` and one below `second`: (count, 2)."""
    return np.stack([rng.integers(first, size=count), rng.integers(second, size=count)], 1)


def name_image(k: int) -> str:
    """Return the name of image k of testall in the files of ratings."""
    return f"COCO_val2014_{FIRST_ID_OF_VAL + k:012d}.jpg"


def name_caption(k: int) -> str:
    """Return the name of caption k of testall in the files of ratings."""
    return f"COCO_val2014:sentid:{k}"


def save_ratings(
    path: str, head: tuple, pairs: list[tuple], n_matches: int, rng: np.random.Generator
) -> None:
    """Write random ratings of pairs, of which the first n_matches are 2 to 5, the others 0 to 3."""
    ratings = rng.uniform(0, 3, len(pairs))
    ratings[:n_matches] += 2
    with atomic(path) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*head, "agg_score", "sampling_method"])
        for pair, rating in zip(pairs, ratings.tolist()):
            table.writerow([*pair, f"{rating:.2f}", "made_up"])


# ---- photos


def save_coco(
    folder: str, sizes: Sizes, texts: dict[str, list[str]], rng: np.random.Generator
) -> None:
    """Write COCO's layout: few photos, and entries of all images that name these in turn.

    texts: the captions of train, restval, dev and testall.
    """
    images_of_val = {"test": sizes.testall, "dev": sizes.dev, "restval": sizes.restval}
    images_of_train = {"train": sizes.train - sizes.restval}
    captions = {**texts, "test": texts["testall"]}
    os.makedirs(os.path.join(folder, "annotations"))
    n_captions = 0
    for year, splits in (("val2014", images_of_val), ("train2014", images_of_train)):
        names = save_photos(os.path.join(folder, "images", year), rng)
        first_id = FIRST_ID_OF_VAL if year == "val2014" else 1
        images = []
        annotations = []
        for split, count in splits.items():
            ids = n_captions + np.arange(CAPTIONS_PER_IMAGE * count)
            n_captions += len(ids)
            save_array(os.path.join(folder, "annotations", f"coco_{split}_ids.npy"), ids)
            for k in range(count):
                image_id = first_id + len(images)
                images.append({"id": image_id, "file_name": names[k % len(names)]})
                for m in range(CAPTIONS_PER_IMAGE * k, CAPTIONS_PER_IMAGE * (k + 1)):
                    text = captions[split][m]
                    annotations.append({"id": int(ids[m]), "image_id": image_id, "caption": text})
        content = {"info": {}, "licenses": [], "images": images, "annotations": annotations}
        with atomic(os.path.join(folder, "annotations", f"captions_{year}.json")) as file:
            file.write(json.dumps(content))


def save_photos(folder: str, rng: np.random.Generator) -> list[str]:
    """Write JPEGs of about COCO's size and number of bytes; return their names."""
    os.makedirs(folder)
    width, height = PHOTO_SIZE
    names = []
    for k in range(PHOTOS_PER_YEAR):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = coarse.resize(PHOTO_SIZE, Image.Resampling.BICUBIC)
        grain = rng.integers(-24, 25, (height, width, 1), dtype=np.int16)
        pixels = np.asarray(smooth, np.int16) + grain
        photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

        name = f"{k:06d}.jpg"
        photo.save(os.path.join(folder, name), quality=90)
        names.append(name)
    return names


def save_network(path: str) -> None:
    """Write random weights of a ResNet-152.

    The last norm of each block is small, so that no number overflows where norms keep their
    statistics.
    """
    import torch

    from images import import_torchvision

    net = import_torchvision().models.resnet152(weights=None)
    for name, weight in net.named_parameters():
        if name.endswith("bn3.weight"):
            torch.nn.init.constant_(weight, 0.1)
    with atomic(path, "wb") as file:
        torch.save(net.state_dict(), file)


# ---- all of them


class MadeUp:
    """Made-up data below a folder, of which each part is written when it is first needed.

    sizes: of the splits. A folder that holds data of other sizes is refused.
    """

    def __init__(self, folder: str, scale: float = 1.0, region_images: int = REGION_IMAGES):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.vocab_path = os.path.join(folder, "vocab")
        self.words: list[str] = []
        self.texts: dict[str, list[str]] = {}

        recipe = {"version": DATA_VERSION, "scale": scale}
        path = os.path.join(folder, "made_up.json")
        if os.path.exists(path):
            self.sizes = self.read_sizes(path, recipe)
            return
        if os.listdir(folder):
            raise InputError(
                f"{folder} holds files that benchmark.py did not write; give an empty or new folder"
            )
        bytes_per_image = 4 * REGIONS_PER_IMAGE * FEATURE_DIM
        room = MAX_SHARE_OF_DISK * shutil.disk_usage(folder).free / bytes_per_image
        self.sizes = scale_sizes(scale, min(region_images, int(room)))
        save_json({**recipe, "sizes": self.sizes._asdict()}, path)

    def read_sizes(self, path: str, recipe: dict) -> Sizes:
        """Read the sizes of data that were written before. Raises InputError on another recipe."""
        found = read_json(path, "delete the folder, or give another --data_path")
        sizes = found.pop("sizes")
        if found != recipe:
            raise InputError(
                f"{self.folder} holds made-up data of {found}, and {recipe} is asked for; delete "
                "it, or give another --data_path"
            )
        sizes["halves"] = tuple(sizes["halves"])
        return Sizes(**sizes)

    def prepare(self, kind: str) -> None:
        """Write "vectors", "regions", "photos" or "halves" unless they are there."""
        writers = {
            "vectors": ("coco_vectors_precomp", self.write_vectors),
            "regions": ("coco_precomp", self.write_regions),
            "photos": ("coco", self.write_photos),
            "halves": ("coco_halves_precomp", self.write_halves),
        }
        name, write = writers[kind]
        for part, write_part in ((name, write), ("cxc", self.write_cxc)):
            target = os.path.join(self.folder, part)
            if not os.path.isdir(target):
                shutil.rmtree(f"{target}.part", ignore_errors=True)
                write_part(f"{target}.part")
                os.rename(f"{target}.part", target)

    def captions(self, split: str, images: int) -> list[str]:
        """Return the captions of a split of so many images, the same for all kinds of data."""
        if not self.words:
            self.words = make_words(np.random.default_rng(0))
        count = CAPTIONS_PER_IMAGE * images
        if len(self.texts.get(split, ())) < count:
            rng = np.random.default_rng([1, MADE_UP_SPLITS.index(split)])
            self.texts[split] = make_captions(count, self.words, rng)
        return self.texts[split][:count]

    def write_vectors(self, folder: str) -> None:
        """Write features of one vector an image, as of ResNet-152."""
        rng = np.random.default_rng(2)
        for split in ("train", "dev", "testall"):
            images = getattr(self.sizes, split)
            save_split(folder, split, (images, FEATURE_DIM), self.captions(split, images), rng)
        save_ids(folder, self.sizes.testall)

    def write_regions(self, folder: str) -> None:
        """Write regions, as of SCAN; dev is testall, which has as many images."""
        rng = np.random.default_rng(3)
        for split, images in (("train", self.sizes.regions), ("testall", self.sizes.testall)):
            shape = (images, REGIONS_PER_IMAGE, FEATURE_DIM)
            save_split(folder, split, shape, self.captions(split, images), rng)
        share_split(folder, "testall", "dev")
        save_ids(folder, self.sizes.testall)

        # of the captions of all images, since a layer has an output a word
        vocab = Vocabulary.build(map(tokenize, self.captions("train", self.sizes.train)))
        os.makedirs(self.vocab_path, exist_ok=True)
        vocab.save(os.path.join(self.vocab_path, "coco_precomp_vocab.json"))

    def write_halves(self, folder: str) -> None:
        """Write features of AlexNet for dmsm's split; dev is test."""
        rng = np.random.default_rng(4)
        train, half = self.sizes.halves
        for split, images in (("train", train), ("test", half)):
            save_split(folder, split, (images, FC_DIM), self.captions(split, images), rng)
        share_split(folder, "test", "dev")

    def write_photos(self, folder: str) -> None:
        """Write COCO's photos and annotations, and the weights of a network."""
        texts = {}
        for split in ("train", "dev", "testall", "restval"):
            texts[split] = self.captions(split, getattr(self.sizes, split))
        save_coco(folder, self.sizes, texts, np.random.default_rng(5))
        save_network(os.path.join(folder, NETWORK))

    def write_cxc(self, folder: str) -> None:
        """Write the ratings of Crisscrossed Captions."""
        save_cxc(folder, self.sizes.testall, np.random.default_rng(6))
