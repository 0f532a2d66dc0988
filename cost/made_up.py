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

from cli import InputError
from files import atomic, read_json, save_array, save_json, save_lines
from vocab import Vocabulary, tokenize

VERSION = 1  # raise it whenever other data are written
SPLITS = ("train", "dev", "test", "testall", "restval")
CAPTIONS_PER_IMAGE = 5
NETWORK = "resnet152.pth"
FEATURE_DIM = 2048  # of ResNet-152, and of a region
FC_DIM = 4096  # of AlexNet and VGG
REGIONS = 36
# COCO's captions: 10,000 of these words occur four times or more in the training captions
WORDS = 27_000
ZIPF, ZIPF_OFFSET = 1.62, 6  # the k-th word has a share of (k + 6) ** -1.62
MEAN_LENGTH, MIN_LENGTH, MAX_LENGTH = 10.5, 6, 50  # in words
LONG_CAPTIONS = 0.002  # have MEAN_LENGTH to MAX_LENGTH words
# Captions that are more than words: a final full stop, a comma, an apostrophe.
FULL_STOPS, COMMAS, APOSTROPHES = 0.75, 0.05, 0.02
PHOTOS_PER_YEAR = 40  # files; the images of the data set share them in turn
PHOTO_SIZE = (640, 480)
BLOCK_BYTES = 64 << 20  # random numbers that are repeated in a file of features
REGION_IMAGES = 20_000  # of train, 5.9 GB; all 113,287 take 33.4 GB
MOST_OF_DISK = 0.5  # share of the free disk that regions may take
# Crisscrossed Captions, test: rows of each file, and how many more are rated a match
RATINGS = {"sts": 44_045, "sis": 46_719, "sits": 44_833}
CXC_MATCHES = 10_614
VAL_YEAR_ID = 1_000_000  # ids of images of val2014 begin here


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
    """COCO's sizes times a scale. testall keeps the 5,000 images of five folds from 0.1 on."""

    def shrink(count: int) -> int:
        return max(40, round(scale * count))

    testall = COCO.testall if scale >= 0.1 else shrink(COCO.testall)
    return Sizes(
        shrink(COCO.train),
        shrink(COCO.dev),
        testall,
        shrink(COCO.restval),
        (shrink(COCO.halves[0]), shrink(COCO.halves[1])),
        shrink(min(region_images, COCO.train)),
    )


# ---- captions


def make_words(rng: np.random.Generator) -> list[str]:
    """Different words of 1 to 3 syllables, common ones shorter, of as many trigrams as COCO's."""
    begin = [
        *"bcdfghjklmnpqrstvwxyz",
        *"bl br ch cl cr dr fl fr gr pl pr sh sk sl sm sn sp st str sw th tr wh".split(),
    ]
    middle = [*"aeiouy", *"ai ea ee ie oa oo ou ow".split()]
    end = ["", "", "", *"dgklmnprstx", *"ff ing ll ly mp nd ng ns nt rd rk rs rt ss st".split()]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        syllables = 1 + rng.binomial(2, min(0.5, len(words) / 10_000))
        parts = [rng.choice(part) for part in (begin, middle, end) * syllables]
        words["".join(parts)] = None
    return list(words)


def draw_lengths(count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of words of captions (count,)."""
    lengths = MIN_LENGTH + rng.poisson(MEAN_LENGTH - MIN_LENGTH, count)
    long = np.flatnonzero(rng.random(count) < LONG_CAPTIONS)
    lengths[long] = rng.integers(MEAN_LENGTH, MAX_LENGTH + 1, len(long))
    return np.minimum(lengths, MAX_LENGTH)


def make_captions(count: int, words: list[str], rng: np.random.Generator) -> list[str]:
    """Captions of words that are drawn by their shares, as people type them."""
    lengths = draw_lengths(count, rng)
    shares = (np.arange(len(words)) + ZIPF_OFFSET) ** -ZIPF
    limits = np.cumsum(shares / shares.sum())
    drawn = np.searchsorted(limits, rng.random(lengths.sum()) * limits[-1])
    numbers = iter(drawn.tolist())
    full_stop, comma, apostrophe = (
        rng.random((3, count)) < [[FULL_STOPS], [COMMAS], [APOSTROPHES]]
    ).tolist()

    captions = []
    for m, length in enumerate(lengths.tolist()):
        caption = [words[next(numbers)] for _ in range(length)]
        if comma[m]:
            caption[length // 2] += ","
        if apostrophe[m]:
            caption[0] += "'s"
        text = " ".join(caption).capitalize()
        captions.append(text + "." if full_stop[m] else text)
    return captions


# ---- features


def save_features(path: str, shape: tuple, rng: np.random.Generator) -> None:
    """Write an .npy file of float32 numbers in [0, 2]: a block of random ones, repeated.
    Each repetition is moved by a little, so that no two rows are equal."""
    numbers_per_image = int(np.prod(shape[1:]))
    rows = max(1, min(shape[0], BLOCK_BYTES // (4 * numbers_per_image)))
    block = rng.random((rows, *shape[1:]), dtype=np.float32)
    step = np.float32(rows / shape[0])
    with atomic(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        for start in range(0, shape[0], rows):
            file.write(memoryview(block[: shape[0] - start]).cast("B"))
            block += step


def write_split(
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


def write_ids(folder: str, images: int) -> None:
    """Write ids of images and captions of testall."""
    save_array(os.path.join(folder, "testall_img_ids.npy"), VAL_YEAR_ID + np.arange(images))
    save_array(os.path.join(folder, "testall_ann_ids.npy"), np.arange(CAPTIONS_PER_IMAGE * images))


# ---- Crisscrossed Captions


def write_cxc(folder: str, images: int, rng: np.random.Generator) -> None:
    """Write the three files of ratings of testall, in their real numbers or fewer."""
    os.makedirs(folder)
    captions = CAPTIONS_PER_IMAGE * images
    share = images / COCO.testall

    def pairs(count: int, first: int, second: int) -> np.ndarray:
        return np.stack([rng.integers(first, size=count), rng.integers(second, size=count)], 1)

    def name_image(k: int) -> str:
        return f"COCO_val2014_{VAL_YEAR_ID + k:012d}.jpg"

    def name_caption(k: int) -> str:
        return f"COCO_val2014:sentid:{k}"

    own = np.stack([np.arange(captions), np.arange(captions) // CAPTIONS_PER_IMAGE], 1)
    others = round(share * RATINGS["sits"]) - captions
    rows = {
        "sts": (
            pairs(round(share * RATINGS["sts"]), captions, captions),
            name_caption,
            name_caption,
        ),
        "sis": (pairs(round(share * RATINGS["sis"]), images, images), name_image, name_image),
        "sits": (np.concatenate([own, pairs(others, captions, images)]), name_caption, name_image),
    }
    heads = {
        "sts": ("caption1", "caption2"),
        "sis": ("image1", "image2"),
        "sits": ("caption", "image"),
    }
    for kind, (ids, name_first, name_second) in rows.items():
        ratings = rng.uniform(0, 3, len(ids))
        ratings[: captions + round(share * CXC_MATCHES) if kind == "sits" else len(ids) // 2] += 2
        with atomic(os.path.join(folder, f"{kind}_test.csv")) as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow([*heads[kind], "agg_score", "sampling_method"])
            for (first, second), rating in zip(ids.tolist(), ratings.tolist()):
                table.writerow([name_first(first), name_second(second), f"{rating:.2f}", "made_up"])


# ---- photos


def write_photos(
    folder: str, sizes: Sizes, texts: dict[str, list[str]], rng: np.random.Generator
) -> None:
    """Write COCO's layout: few photos, and entries of all images that name these in turn.
    texts: the captions of train, restval, dev and testall."""
    years = {
        "val2014": {"test": sizes.testall, "dev": sizes.dev, "restval": sizes.restval},
        "train2014": {"train": sizes.train - sizes.restval},
    }
    captions = {**texts, "test": texts["testall"]}
    os.makedirs(os.path.join(folder, "annotations"))
    first_caption = 0
    for year, splits in years.items():
        names = save_photos(os.path.join(folder, "images", year), rng)
        first_image = VAL_YEAR_ID if year == "val2014" else 1
        images = []
        annotations = []
        for split, count in splits.items():
            ids = first_caption + np.arange(CAPTIONS_PER_IMAGE * count)
            first_caption += len(ids)
            save_array(os.path.join(folder, "annotations", f"coco_{split}_ids.npy"), ids)
            for k in range(count):
                image = first_image + len(images)
                images.append({"id": image, "file_name": names[k % len(names)]})
                for m in range(CAPTIONS_PER_IMAGE * k, CAPTIONS_PER_IMAGE * (k + 1)):
                    annotations.append(
                        {"id": int(ids[m]), "image_id": image, "caption": captions[split][m]}
                    )
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
        smooth = np.asarray(coarse.resize(PHOTO_SIZE, Image.Resampling.BICUBIC), np.int16)
        grain = rng.integers(-24, 25, (height, width, 1), dtype=np.int16)
        names.append(f"{k:06d}.jpg")
        pixels = (smooth + grain).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(os.path.join(folder, names[-1]), quality=90)
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
        room = MOST_OF_DISK * shutil.disk_usage(folder).free / (4 * REGIONS * FEATURE_DIM)
        self.folder = folder
        self.vocab_path = os.path.join(folder, "vocab")
        self.sizes = scale_sizes(scale, min(region_images, int(room)))
        self.words: list[str] = []
        self.texts: dict[str, list[str]] = {}

        facts = os.path.join(folder, "made_up.json")
        recipe = {"version": VERSION, "scale": scale}
        if os.path.exists(facts):
            found = read_json(facts, "delete the folder, or give another --data_path")
            stored = Sizes(
                **{
                    name: tuple(x) if isinstance(x, list) else x
                    for name, x in found.pop("sizes").items()
                }
            )
            if found != recipe:
                raise InputError(
                    f"{folder} holds made-up data of {found}, and {recipe} is asked for; delete "
                    "it, or give another --data_path"
                )
            self.sizes = stored
        elif os.listdir(folder):
            raise InputError(
                f"{folder} holds files that benchmark.py did not write; give an empty or new folder"
            )
        else:
            save_json({**recipe, "sizes": self.sizes._asdict()}, facts)

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
        """The captions of a split of so many images, the same for all kinds of data."""
        if not self.words:
            self.words = make_words(np.random.default_rng(0))
        count = CAPTIONS_PER_IMAGE * images
        if len(self.texts.get(split, ())) < count:
            rng = np.random.default_rng([1, SPLITS.index(split)])
            self.texts[split] = make_captions(count, self.words, rng)
        return self.texts[split][:count]

    def write_vectors(self, folder: str) -> None:
        """Features of one vector an image, as of ResNet-152."""
        rng = np.random.default_rng(2)
        for split in ("train", "dev", "testall"):
            images = getattr(self.sizes, split)
            write_split(folder, split, (images, FEATURE_DIM), self.captions(split, images), rng)
        write_ids(folder, self.sizes.testall)

    def write_regions(self, folder: str) -> None:
        """Regions, as of SCAN; dev is testall, which has as many images."""
        rng = np.random.default_rng(3)
        for split, images in (("train", self.sizes.regions), ("testall", self.sizes.testall)):
            write_split(
                folder, split, (images, REGIONS, FEATURE_DIM), self.captions(split, images), rng
            )
        share_split(folder, "testall", "dev")
        write_ids(folder, self.sizes.testall)

        captions = self.captions(
            "train", self.sizes.train
        )  # of all images, since a layer has an output a word
        os.makedirs(self.vocab_path, exist_ok=True)
        Vocabulary.build(map(tokenize, captions)).save(
            os.path.join(self.vocab_path, "coco_precomp_vocab.json")
        )

    def write_halves(self, folder: str) -> None:
        """Features of AlexNet for dmsm's split; dev is test."""
        rng = np.random.default_rng(4)
        train, half = self.sizes.halves
        for split, images in (("train", train), ("test", half)):
            write_split(folder, split, (images, FC_DIM), self.captions(split, images), rng)
        share_split(folder, "test", "dev")

    def write_photos(self, folder: str) -> None:
        """COCO's photos and annotations, and the weights of a network."""
        texts = {
            split: self.captions(split, getattr(self.sizes, split))
            for split in ("train", "dev", "testall", "restval")
        }
        write_photos(folder, self.sizes, texts, np.random.default_rng(5))
        save_network(os.path.join(folder, NETWORK))

    def write_cxc(self, folder: str) -> None:
        write_cxc(folder, self.sizes.testall, np.random.default_rng(6))
