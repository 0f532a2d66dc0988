"""What a data set consists of, as models read it: features, photos, captions as numbers or as features."""
import atexit
import functools
import hashlib
import math
import mmap
import os
import sys
import weakref
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

import cli
from cli import InputError, reason
from files import FAULTS, read_array, read_json
from vocab import UNK, Trigrams, Vocabulary

SCAN_BYTES = 4 << 30                  # feature files up to this size are searched for NaN before training starts
RESIDENT_BYTES = 1 << 30              # rows read from a mapped file before its pages are handed back to the system
SQUARABLE = 1e-18, 1e18                # between these float32 can add up squares
# none that starts a program
PHOTO_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
# Where real data come from, by folder or file below --data_path, as far as it is known (addresses of the years 2017 to
# 2026).
SOURCES = {
    "coco": "COCO's train2014.zip, val2014.zip and annotations_trainval2014.zip (cocodataset.org) and the "
            "coco_*_ids.npy of VSE++ (data.tar of github.com/fartashf/vsepp)",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features); for CxC and PMRP also testall_img_ids.npy and testall_ann_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (by a form of the University of Illinois) and dataset_flickr30k.json of Karpathy's "
            "caption_datasets.zip",
    "f8k": "Flickr8k's photos, Flickr8k_Dataset.zip (by a form of the University of Illinois), and "
           "dataset_flickr8k.json of Karpathy's caption_datasets.zip",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.extract images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos (features.extract images --layer cells)",
    "coco/annotations/instances_val2014.json": "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions (github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json and photos (visualgenome.org)",
    "GoogleNews-vectors-negative300.bin": "word2vec's vectors of Google News, 3.4 GiB "
                                          "(code.google.com/archive/p/word2vec)"}
HELP = ("'Getting data' in README.md says what comes from where, `python data.py check` what is there, `python -m "
        "demo` writes demo data")


def advice(data_name: str) -> str:
    """What to do where a data set is not there."""
    return f"{f'{data_name} is {SOURCES[data_name]}; ' if data_name in SOURCES else ''}{HELP}"


class Features:
    """Rows of a feature file (N, F) or (N, P, F), float16 or float32, mapped and never read whole."""

    def __init__(self, path: str):
        self.path, self.step = path, 1                                              # row of image i: i * step
        self.array = read_array(path, "write it again with np.save(path, array.astype(np.float32))")
        if self.array.dtype.kind != "f" or self.array.ndim not in (2, 3) or 0 in self.array.shape:
            raise InputError(f"{path} holds {self.array.dtype} of shape {self.array.shape}; features are float16 or "
                             "float32 of shape (images, F) or (images, regions, F)")
        self.mapping, self.unreturned = self.array.base, 0                          # the mmap.mmap below the array

    def __len__(self) -> int:
        return len(self.array) // self.step

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image: (F,) or (P, F)."""
        return self.array.shape[1:]

    @property
    def dim(self) -> int:
        return self.array.shape[-1]

    @property
    def regions(self) -> int | None:
        """How many vectors an image has; None for a single one without that axis."""
        return self.array.shape[1] if self.array.ndim == 3 else None

    @property
    def parallel(self) -> bool:
        """Whether reading is slow enough for worker processes."""
        return self.array.nbytes > RESIDENT_BYTES

    def gather(self, index) -> Tensor:
        """Features of images `index` (B,) -> (B, F) or (B, P, F) float32. Raises InputError on NaN or infinity."""
        rows = np.asarray(index) * self.step
        features = torch.from_numpy(self.array[rows].astype(np.float32, copy=False))
        if not torch.isfinite(features.sum()):
            bad = rows[~torch.isfinite(features).flatten(1).all(1).numpy()]
            if len(bad):
                raise InputError(f"{self.path} holds NaN or infinity in row {bad[0]}; every feature has to be a finite "
                                 "number, so extract that image again")
        self.unreturned += features.nbytes
        if self.unreturned > RESIDENT_BYTES:    # keeps this process small; the system may still cache the file
            self.mapping.madvise(mmap.MADV_DONTNEED)
            self.unreturned = 0
        return features

    def faults(self, deep: bool, distinct: bool = True):
        """Sentences on what is wrong; `deep` reads every row however large the file, and names rows of zeros and, where
        rows are to be `distinct`, images that mostly look the same."""
        zero, extreme, seen = [], None, set()
        if deep or self.array.nbytes <= SCAN_BYTES:
            for chunk in np.array_split(np.arange(len(self)), max(1, self.array.nbytes >> 28)):
                seen.update(hash(row.tobytes()) for row in self.array[chunk * self.step] if deep and distinct)
                try:
                    most = self.gather(chunk).flatten(1).abs().amax(1).numpy()      # (n,)
                except InputError as error:
                    yield str(error)
                    continue
                zero += chunk[most == 0].tolist()
                odd = np.flatnonzero((most > SQUARABLE[1]) | (most > 0) & (most < SQUARABLE[0]))
                if len(odd) and extreme is None:
                    extreme = chunk[odd[0]] * self.step
                    yield (f"{self.path} has values of {most[odd[0]]:.0e} in row {extreme}, whose squares are beyond "
                           "float32; scale the features, or extract them again")
        if deep and distinct and 2 * len(seen) < len(self):
            yield (f"{self.path} holds only {len(seen)} different rows for {len(self)} images; their extraction "
                   "failed, or they do not stand one image after another")
        if deep and zero:
            yield (f"{self.path} holds only zeros in {len(zero) * self.step} of {len(self.array)} rows, the first is "
                   f"row {zero[0] * self.step}; their extraction failed, so extract them again")

    def describe(self) -> str:
        some = self.array[np.linspace(0, len(self.array) - 1, 256).astype(int)].astype(np.float32)
        return (f"features {tuple(self.array.shape)} {self.array.dtype}, mean l2 norm "
                f"{np.linalg.norm(some, axis=-1).mean():.2f}"
                + (f", each row repeated {self.step} times" if self.step > 1 else ""))

    def digest(self) -> str:
        some = np.unique(np.linspace(0, len(self.array) - 1, 64).astype(int))
        return hashlib.sha256(f"{self.array.shape} "
                              f"{self.array.dtype}".encode() + self.array[some].tobytes()).hexdigest()


class Photos:
    """Image files, decoded to RGB and transformed as VSE++ does: (B, 3, 224, 224)."""
    parallel, dim, regions, step = True, None, None, 1

    def __init__(self, paths: list[str]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, i: int) -> Image.Image:
        """Photo i as one sees it: turned as its EXIF tag says, in RGB of 8 bits. Raises InputError."""
        try:
            with Image.open(self.paths[i], formats=photo_formats()) as image:
                return in_rgb(ImageOps.exif_transpose(image))                       # grey, CMYK and palettes too
        except Image.DecompressionBombError as error:
            raise InputError(f"the photo {self.paths[i]} has more than {2 * Image.MAX_IMAGE_PIXELS:,} pixels, which is "
                             "the limit; make a smaller copy of it") from error
        except FAULTS as error:
            raise InputError(f"the photo {self.paths[i]} cannot be read ({reason(error)}); replace it or fetch it "
                             "again") from error

    def gather(self, index, transform=None) -> Tensor:
        transform = transform or eval_transform()
        return torch.stack([transform(self.open(int(i))) for i in index])           # (B, 3, H, W)

    def faults(self, deep: bool):
        missing = [path for path in self.paths if not os.path.isfile(path)]
        if missing:
            yield f"{len(missing)} of {len(self)} photos are missing, the first is {missing[0]}; {HELP}"
        for i in tqdm(range(len(self)), desc="photos", disable=None) if deep else ():
            if os.path.isfile(self.paths[i]):
                try:
                    self.open(i)
                except InputError as error:
                    yield str(error)

    def describe(self) -> str:
        return f"photos in {os.path.dirname(self.paths[0])}"

    def digest(self) -> str:
        return hashlib.sha256("\n".join(map(os.path.basename, self.paths)).encode()).hexdigest()


@functools.cache
def photo_formats() -> list[str]:
    """Those of PHOTO_FORMATS that this Pillow can read."""
    Image.init()
    return [name for name in PHOTO_FORMATS if name in Image.OPEN]


def in_rgb(image: Image.Image) -> Image.Image:
    """8 bits of red, green and blue. What has more bits is scaled, where a plain conversion would cut it off at 255.

    16 bits: divided by 257. Whole numbers of 32 bits and floats say nothing of their white: it is the smallest of 1
    (floats only), 255, 65535 and their own largest value that none exceeds.
    """
    if not image.mode.startswith(("I", "F")):
        return image.convert("RGB")
    values = np.asarray(image).astype(np.float64)                                   # (H, W)
    if not np.isfinite(values).all():
        raise ValueError("it has pixels that are no finite numbers")
    top = values.max(initial=0)
    if values.min(initial=0) < 0:
        raise ValueError("it has negative pixels")
    whites = [65535] if ";16" in image.mode else [1] * (image.mode == "F") + [255, 65535, top]
    white = next(white for white in whites if top <= white)
    return Image.fromarray(np.rint(255 * np.clip(values / white, 0, 1)).astype(np.uint8)).convert("RGB")


class NoImages:
    """Stands for N images of which nothing but their captions is at hand (a text-only split)."""
    parallel, dim, regions, step = False, None, None, 1

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def faults(self, deep: bool):
        return ()

    def describe(self) -> str:
        return "no images: text only"

    def digest(self) -> str:
        return hashlib.sha256(f"{self.count} images of which only captions are there".encode()).hexdigest()


def eval_transform():
    return _transform(lambda t: [t.Resize(256), t.CenterCrop(224)])


def train_transform(crop_size: int):
    return _transform(lambda t: [t.RandomResizedCrop(crop_size), t.RandomHorizontalFlip()])


def _transform(first):

    import_torchvision()
    from torchvision import transforms as t
    return t.Compose([*first(t), t.ToTensor(), t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])


class Tokens(NamedTuple):
    """Numbered captions, one after another."""
    flat: np.ndarray                  # (sum of lengths,) int64
    start: np.ndarray                 # (M,)
    length: np.ndarray                # (M,)
    unknown: np.ndarray               # (M,) bool: no word is known

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) -> zero-padded (B, T) and lengths (B,), without a loop."""
        length = self.length[index]
        position = np.arange(length.max())
        tokens = self.flat[np.minimum(self.start[index][:, None] + position, len(self.flat) - 1)]   # (B, T)
        return torch.from_numpy(tokens * (position < length[:, None])), torch.from_numpy(length)


class TrigramTokens(NamedTuple):
    """Hashed captions, one after another, each distinct word once. No `<start>` or `<end>`."""
    table: np.ndarray                 # (U, K) int64, the trigrams of the U distinct words, zero-padded
    width: np.ndarray                 # (U,) how many each has
    flat: np.ndarray                  # (sum of lengths,) which distinct word
    start: np.ndarray                 # (M,)
    length: np.ndarray                # (M,) int64 words a caption
    unknown: np.ndarray               # (M,) bool: captions of which no trigram is known, empty ones among them

    @classmethod
    def of(cls, captions: list[list[str]], vocab: Trigrams) -> "TrigramTokens":
        """From tokenised captions."""
        number = {word: u for u, word in enumerate(dict.fromkeys(chain.from_iterable(captions)))}
        hashed = vocab.hash(number)
        width = np.array([len(numbers) for numbers in hashed], np.int64)
        table = np.zeros((len(hashed), width.max(initial=1)), np.int64)
        table[np.arange(table.shape[1]) < width[:, None]] = np.fromiter(chain.from_iterable(hashed), np.int64)
        flat = np.array([number[word] for word in chain.from_iterable(captions)], np.int64)
        length = np.array([len(words) for words in captions], np.int64)
        owner = np.repeat(np.arange(len(captions)), length)                         # whose word each of `flat` is
        return cls(table, width, flat, np.cumsum(length) - length, length,
                   np.bincount(owner, width[flat], len(captions)) == 0)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) -> zero-padded trigram numbers (B, T, K) and lengths (B,), without a loop.

        T is the most words of a caption of this batch, K the most trigrams of a word.
        """
        length = self.length[index]
        position = np.arange(length.max())
        real = position < length[:, None]                                           # (B, T)
        words = self.flat[np.minimum(self.start[index][:, None] + position, len(self.flat) - 1)]    # (B, T)
        most = (self.width[words] * real).max(initial=1)
        ids = self.table[:, :most][words] * real[:, :, None]                        # (U, K) -> (B, T, K)
        return torch.from_numpy(ids), torch.from_numpy(length)


def encode_captions(captions: list[list[str]], vocab: Vocabulary) -> Tokens | TrigramTokens:
    """Tokenised captions as numbers of words, or of their letter trigrams where the vocabulary is of those."""
    if isinstance(vocab, Trigrams):
        return TrigramTokens.of(captions, vocab)
    numbers = [vocab.encode(words) for words in captions]
    length = np.array([len(caption) for caption in numbers], np.int64)
    unknown = np.array([all(number == UNK for number in caption[1:-1]) for caption in numbers])
    return Tokens(np.concatenate([np.asarray(c, np.int64) for c in numbers]), np.cumsum(length) - length, length,
                  unknown)


class CaptionFeatures:
    """Ready features in place of a caption's words: what `Tokens` is to those."""

    def __init__(self, features: Features):
        self.features, self.length = features, np.ones(len(features), np.int64)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) -> (B, F) and lengths of 1 (B,)."""
        return self.features.gather(index), torch.from_numpy(self.length[index])


def import_torchvision():
    """torchvision, also beside a CPU-only torch, where the compiled part of its wheel cannot load.

    There the import stops at two detection operators that were never registered; nothing here calls them, so declaring
    their signatures is enough.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def rows_per_image(images: Features) -> int:
    """How many equal rows each image has, judged by the first 128 rows and 32 times 16; runs of mixed lengths are
    refused."""
    rows, turns, equal = len(images.array), [], []                               # rows unlike, and like, the one before
    for k in np.unique(np.linspace(0, max(0, rows - 16), 32).astype(int)):
        some = np.ascontiguousarray(images.array[k:k + (17 if k else 128)])
        some = some.view(np.uint8).reshape(len(some), -1)                           # as bytes, NaN is equal to itself
        turn = (some[1:] != some[:-1]).any(1)
        turns += (k + 1 + np.flatnonzero(turn)).tolist()
        equal += (k + 1 + np.flatnonzero(~turn)).tolist()
    step = math.gcd(rows, *turns)
    if step == 1 and len(equal) > 0.4 * (len(turns) + len(equal)):
        last = next((k for k in [*turns, rows] if k % turns[0]), equal[0] + 1) - 1
        raise InputError(f"some images of {images.path} stand in {turns[0]} equal rows and others do not (the one up "
                         f"to row {last}); repeat every image once for each of its captions, or none")
    for times in range(2, 11) if step == 1 else ():         # np.tile where np.repeat was meant
        period, k = rows // times, rows // times // 2
        if rows % times == 0 and np.array_equal(images.array[[0, k]], images.array[[period, period + k]]):
            raise InputError(f"{images.path} holds the same {period} rows {times} times one after another; let the "
                             "rows of an image stand together (np.repeat, not np.tile), or give each image once")
    return step if turns else 5 if rows % 5 == 0 else 1                             # no turns: all rows are the same


def extractors(folder: str) -> dict[str, str]:
    """features.json of a folder: file suffix -> what made the files, in one line. Empty where there is none."""
    path = os.path.join(folder, "features.json")
    stored = read_json(path, "delete it and extract again") if os.path.isfile(path) else {}
    if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
        raise InputError(f"{path} is not a JSON object, file suffix to extractor; delete it and extract again")
    return stored


def told_of(captions: list[str]) -> dict:
    """What {split}_{name}.json says of the captions that features were extracted from."""
    return {"captions_sha256": hashlib.sha256("\n".join(captions).encode()).hexdigest()}


# ---- reading in order, by several processes

class _ImageFetcher:
    """Image indices (B,) -> features or photos."""

    def __init__(self, images):
        self.images = images

    def __getitem__(self, index) -> Tensor:
        return self.images.gather(index)


class _Guarded:
    """Hands an InputError back from a worker process whole, instead of a traceback."""

    def __init__(self, fetch):
        self.fetch = fetch

    def __getitem__(self, index):
        try:
            return self.fetch[index]
        except InputError as error:
            return error


def _same(x):
    return x


_reading = weakref.WeakSet()          # iterators whose worker processes run


@atexit.register
def _end_workers() -> None:
    """Before multiprocessing waits for them, which it would do for ever: it ends workers by a signal, and none reaches
    them."""
    for results in list(_reading):
        results._shutdown_workers()


def stream(fetch, chunks, workers: int):
    """fetch[chunk] for every chunk, in order, from `workers` processes, which no signal reaches: the main process saves
    and ends them."""
    if not workers:
        yield from (fetch[chunk] for chunk in chunks)
        return
    own = torch.Generator()                              # torch's global one belongs to training, which resumes from it
    loader = DataLoader(_Guarded(fetch), sampler=chunks, batch_size=None, num_workers=workers, collate_fn=_same,
                        generator=own)
    with cli.unsignalled():
        results = iter(loader)                              # starts the processes
    _reading.add(results)
    try:
        for result in results:
            if isinstance(result, InputError):
                raise result
            yield result
    finally:
        results._shutdown_workers()                         # as its __del__, which a traceback would put off


def chunks(order, batch_size: int) -> list[np.ndarray]:
    return [order[k:k + batch_size] for k in range(0, len(order), batch_size)]


def image_batches(images, batch_size: int, workers: int = 0):
    """All images of a split, each once, in order."""
    return stream(_ImageFetcher(images), chunks(np.arange(len(images)), batch_size), workers * images.parallel)
