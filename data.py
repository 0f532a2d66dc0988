"""Reads a split of a data set, makes batches of it, and checks data folders.

    python data.py check --data_path data --data_name f8k_precomp

The files in a folder decide how it is read: `{split}_caps.txt` and `{split}_ims.npy` (precomputed
features), `annotations/` with COCO's captions and ids files, or a `dataset_*.json` in Karpathy's
layout beside `images/`. Beside features without
`{split}_caps.txt`, `captions.tsv` has the form of Flickr8k's tokens, NAME#K, a tab and a text a
line: any number of captions of the photos that `{split}_ids.txt` names.
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import atexit
import contextlib
import functools
import glob
import math
import mmap
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, reason
from files.reading import (
    FAULTS,
    HELP,
    INT64,
    advice,
    as_integers,
    below,
    called,
    integers,
    read_array,
    read_coco,
    read_json,
    read_lines,
    refusing,
    sha256,
)
from files.writing import refuse_changing
from vocab import UNK, Trigrams, Vocabulary, tokenize

# formats whose reading starts no other program
PHOTO_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")


def read_photo(path: str, most: int | None = None) -> Image.Image:
    """Read a photo in RGB of 8 bits, turned as its EXIF tag says. Raises InputError where it cannot
    be read.

    With `most` it is made smaller, to at most so many pixels a side. A large JPEG is then never
    decoded whole, which takes a fraction of the time and memory.
    """
    try:
        with Image.open(path, formats=photo_formats()) as image:
            if most:
                image.draft(None, (most, most))
            photo = in_rgb(ImageOps.exif_transpose(image))               # also grey, CMYK, palettes
    except Image.DecompressionBombError as error:
        raise InputError(f"the photo {path} has more than {2 * Image.MAX_IMAGE_PIXELS:,} pixels, "
                         "which is the limit; make a smaller copy of it") from error
    except FAULTS as error:
        raise InputError(f"the photo {path} cannot be read ({reason(error)}); replace it or fetch "
                         "it again") from error
    if most:
        photo.thumbnail((most, most))
    return photo


@functools.cache
def photo_formats() -> list[str]:
    """The PHOTO_FORMATS that the installed Pillow can read, HEIF by the package pillow-heif."""
    Image.init()
    with contextlib.suppress(ImportError):
        import pillow_heif  # optional: only photos of this format need it
        pillow_heif.register_heif_opener()
    return [name for name in PHOTO_FORMATS if name in Image.OPEN]


def in_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB of 8 bits. Images of more bits are scaled; a plain conversion would cut them
    off at 255.

    16-bit values are divided by 257. Images of 32-bit integers or floats do not tell which value is
    white. White is then the first of 1 (floats only), 255, 65535 and the image's maximum that no
    pixel exceeds. Raises ValueError.
    """
    if not image.mode.startswith(("I", "F")):
        image.info.pop("transparency", None)                # a palette's, of which Pillow warns
        return image.convert("RGB")
    values = np.asarray(image).astype(np.float64)                                   # (H, W)
    if not np.isfinite(values).all():
        raise ValueError("it has pixels that are no finite numbers")
    top = values.max(initial=0)
    if values.min(initial=0) < 0:
        raise ValueError("it has negative pixels")
    whites = [65535] if ";16" in image.mode else [1] * (image.mode == "F") + [255, 65535, top]
    white = next(white for white in whites if top <= white)
    return Image.fromarray(np.rint(255 * np.clip(values / white, 0, 1)).astype(np.uint8)).convert(
        "RGB")


def import_torchvision():
    """Import torchvision, even beside a CPU-only torch, where the compiled part of its wheel cannot
    load.

    There the import fails at two detection operators that were never registered. Nothing here calls
    them, so it is enough to declare their signatures.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}",
                                 "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


# ---- images

SCAN_BYTES = 4 << 30             # feature files up to this size are checked for NaN before training
RESIDENT_BYTES = 1 << 30        # bytes read from a mapped file before its memory pages are released
SQUARABLE = 1e-18, 1e18                # float32 can sum the squares of numbers between these


class Images:
    """What a split's images are read from."""
    parallel = False                  # whether reading is so slow that worker processes help
    dim = regions = None            # numbers of a vector; vectors of an image, where it has several

    def faults(self, deep: bool):
        return ()


class Features(Images):
    """A file of image features, (N, F) or (N, P, F), float16 or float32. It is mapped and never
    read whole."""
    step = 1                          # the row of image i is i * step

    def __init__(self, path: str):
        self.path = path
        self.map()
        shape, dtype = self.array.shape, self.array.dtype
        check(dtype.kind == "f" and len(shape) in (2, 3) and 0 not in shape,
              f"{path} holds {dtype} of shape {shape}; features are float16 or float32 of shape "
              "(images, F) or (images, regions, F)")

    def map(self) -> None:
        """Map the file."""
        self.array = read_array(self.path, "write it again with np.save(path, "
                                "array.astype(np.float32))")
        self.mapping, self.unreturned = self.array.base, 0          # the mmap.mmap below the array

    def cut(self, n: int) -> None:
        """Keep the first n images."""
        self.array = self.array[:n * self.step]

    def __getstate__(self) -> dict:
        """What a worker process is given: it maps the file itself."""
        return {**self.__dict__, "array": (self.array.shape, self.array.dtype), "mapping": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.map()
        shape, dtype = state["array"]
        self.array = self.array[:shape[0]]                  # it may have been cut
        check((self.array.shape, self.array.dtype) == (shape, dtype),
              f"{self.path} has changed while it was read; call the command again")

    def __len__(self) -> int:
        return len(self.array) // self.step

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image's features: (F,) or (P, F)."""
        return self.array.shape[1:]

    @property
    def dim(self) -> int:
        return self.array.shape[-1]

    @property
    def regions(self) -> int | None:
        """How many vectors each image has, or None where the file has no such axis."""
        return self.array.shape[1] if self.array.ndim == 3 else None

    @property
    def parallel(self) -> bool:
        """Whether reading is so slow that worker processes help."""
        return self.array.nbytes > RESIDENT_BYTES

    def gather(self, index) -> Tensor:
        """The features of images `index` (B,), as (B, F) or (B, P, F) float32. Raises InputError on
        NaN or infinity."""
        rows = np.asarray(index) * self.step
        features = torch.from_numpy(self.array[rows].astype(np.float32, copy=False))
        if not torch.isfinite(features.sum()):
            bad = rows[~torch.isfinite(features).flatten(1).all(1).numpy()]
            if len(bad):
                raise InputError(f"{self.path} holds NaN or infinity in row {bad[0]}; every feature "
                                 "has to be a finite number, so extract that image again")
        self.unreturned += features.nbytes
        if self.unreturned > RESIDENT_BYTES:    # keeps memory small; the system may cache the file
            self.mapping.madvise(mmap.MADV_DONTNEED)
            self.unreturned = 0
        return features

    @property
    def length(self) -> np.ndarray:
        """(M,) ones, where they are features of captions; so they can stand for `Tokens`."""
        return np.ones(len(self), np.int64)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) as features (B, F) and lengths (B,), which are all 1."""
        return self.gather(index), torch.ones(len(index), dtype=torch.int64)

    def faults(self, deep: bool, distinct: bool = True):
        """Yield sentences on what is wrong. `deep` reads every row, however large the file is, and
        also reports rows of zeros. Where rows should be `distinct`, it also reports a file in which
        most images have equal rows."""
        zero, extreme, seen = [], False, set()
        if deep or self.array.nbytes <= SCAN_BYTES:
            for chunk in np.array_split(np.arange(len(self)), max(1, self.array.nbytes >> 28)):
                if deep and distinct:
                    seen.update(hash(row.tobytes()) for row in self.array[chunk * self.step])
                try:
                    most = self.gather(chunk).flatten(1).abs().amax(1).numpy()      # (n,)
                except InputError as error:
                    yield str(error)
                    continue
                zero += chunk[most == 0].tolist()
                odd = np.flatnonzero((most > SQUARABLE[1]) | (most > 0) & (most < SQUARABLE[0]))
                if len(odd) and not extreme:
                    extreme = True
                    yield (f"{self.path} has values of {most[odd[0]]:.0e} in row "
                           f"{chunk[odd[0]] * self.step}, whose squares are beyond float32; scale "
                           "the features, or extract them again")
        if deep and distinct and 2 * len(seen) < len(self):
            yield (f"{self.path} holds only {len(seen)} different rows for {len(self)} images; "
                   "their extraction failed, or they do not stand one image after another")
        if deep and zero:
            yield (f"{self.path} holds only zeros in {len(zero) * self.step} of {len(self.array)} "
                   f"rows, the first is row {zero[0] * self.step}; their extraction failed, so "
                   "extract them again")

    def describe(self) -> str:
        some = self.array[np.linspace(0, len(self.array) - 1, 256).astype(int)].astype(np.float32)
        return (f"features {self.array.shape} {self.array.dtype}, mean l2 norm "
                f"{np.linalg.norm(some, axis=-1).mean():.2f}"
                + (f", each row repeated {self.step} times" if self.step > 1 else ""))

    def digest(self) -> str:
        some = np.unique(np.linspace(0, len(self.array) - 1, 64).astype(int))
        return sha256(f"{self.array.shape} {self.array.dtype}", self.array[some])


class Photos(Images):
    """Image files that are decoded to RGB and transformed as in VSE++, to (B, 3, 224, 224)."""
    parallel = True

    def __init__(self, paths: list[str]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def cut(self, n: int) -> None:
        self.paths = self.paths[:n]

    def open(self, i: int, most: int | None = None) -> Image.Image:
        """Photo i, as `read_photo` reads it."""
        return read_photo(self.paths[i], most)

    def name(self, i: int) -> str:
        return os.path.basename(self.paths[i])

    def gather(self, index) -> Tensor:
        transform = eval_transform()
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
        return sha256("\n".join(map(os.path.basename, self.paths)))


class NoImages(Images):
    """Takes the place of N images of which only the captions are there (a text-only split)."""
    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def cut(self, n: int) -> None:
        self.count = min(n, self.count)

    def describe(self) -> str:
        return "no images: text only"

    def digest(self) -> str:
        return sha256(f"{self.count} images of which only captions are there")


def eval_transform():
    return _transform(lambda t: [t.Resize(256), t.CenterCrop(224)])


def train_transform(crop_size: int):
    return _transform(lambda t: [t.RandomResizedCrop(crop_size), t.RandomHorizontalFlip()])


def whole_transform(side: int = 224):
    return _transform(lambda t: [t.Resize((side, side))])            # the whole photo, out of shape


def _transform(first):
    import_torchvision()
    from torchvision import transforms as t
    return t.Compose([*first(t), t.ToTensor(),
                      t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])


class Tokens:
    """Captions as numbers of words, stored one after another."""

    def __init__(self, numbers, unknown):
        """numbers: of each of the M captions. unknown: (M,) bool, those without any known word."""
        self.length = np.array([*map(len, numbers)], np.int64)                      # (M,)
        self.flat = np.fromiter(chain.from_iterable(numbers), np.int64, self.length.sum())
        self.start = np.cumsum(self.length) - self.length       # where each caption begins in `flat`
        self.unknown = np.array(unknown, bool)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) as zero-padded numbers (B, T) and their lengths (B,). No loop."""
        length = self.length[index]
        position = np.arange(length.max())
        place = np.minimum(self.start[index][:, None] + position, len(self.flat) - 1)   # (B, T)
        numbers = self.flat[place] * (position < length[:, None])
        return torch.from_numpy(numbers), torch.from_numpy(length)


class TrigramTokens(Tokens):
    """Captions as letter trigrams, without `<start>` and `<end>`. Each distinct word is stored
    once, and a caption as rows of `table`."""

    def __init__(self, captions: list[list[str]], vocab: Trigrams):
        """captions: tokenised. One without any known trigram, or word, is unknown."""
        distinct = dict.fromkeys(chain.from_iterable(captions))
        row = {word: u for u, word in enumerate(distinct, 1)}                       # 0 is padding
        hashed = [[], *vocab.hash(distinct)]
        self.width = np.array([*map(len, hashed)])         # (U + 1,) trigrams of the distinct words
        self.table = np.zeros((len(hashed), self.width.max(initial=1)), np.int64)       # (U + 1, K)
        real = np.arange(self.table.shape[1]) < self.width[:, None]
        self.table[real] = [*chain.from_iterable(hashed)]
        heard = {word for word in distinct if hashed[row[word]]}
        super().__init__([[*map(row.get, words)] for words in captions],
                         [heard.isdisjoint(words) for words in captions])

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) as zero-padded trigram numbers (B, T, K) and lengths (B,) in words.
        T is the largest number of words of a caption in this batch, and K the largest number of
        trigrams of a word."""
        words, length = super().batch(index)
        words = words.numpy()
        most = self.width[words].max(initial=1)
        return torch.from_numpy(self.table[:, :most][words]), length        # (U + 1, K) -> (B, T, K)


def encode_captions(captions: list[list[str]], vocab: Vocabulary) -> Tokens:
    """Tokenised captions as numbers of words, or as numbers of letter trigrams if the vocabulary is
    `Trigrams`."""
    if isinstance(vocab, Trigrams):
        return TrigramTokens(captions, vocab)
    numbers = [vocab.encode(words) for words in captions]
    return Tokens(numbers, [all(n == UNK for n in rows[1:-1]) for rows in numbers])


def rows_per_image(images: Features) -> int:
    """How many equal rows each image has, judged by the first 128 rows and 32 samples of 16 rows.
    Raises InputError where images differ in this number."""
    rows, turns, equal = len(images.array), [], []        # rows unequal and equal to the one before
    for k in np.unique(np.linspace(0, max(0, rows - 16), 32).astype(int)):
        some = np.arange(k, min(k + (17 if k else 128), rows))
        some = np.ascontiguousarray(images.array[some]).view(np.uint8).reshape(len(some), -1)
        # as bytes, NaN is equal to itself
        turn = (some[1:] != some[:-1]).any(1)
        turns += (k + 1 + np.flatnonzero(turn)).tolist()
        equal += (k + 1 + np.flatnonzero(~turn)).tolist()
    step = math.gcd(rows, *turns)
    if step == 1 and len(equal) > 0.4 * (len(turns) + len(equal)):
        last = next((k for k in [*turns, rows] if k % turns[0]), equal[0] + 1) - 1
        raise InputError(f"some images of {images.path} stand in {turns[0]} equal rows and others "
                         f"do not (the one up to row {last}); repeat every image once for each of "
                         "its captions, or none")
    for times in range(2, 11) if step == 1 else ():         # np.tile by mistake for np.repeat
        period, k = rows // times, rows // times // 2
        if rows % times == 0 and np.array_equal(
            images.array[[0, k]], images.array[[period, period + k]]
        ):
            raise InputError(f"{images.path} holds the same {period} rows {times} times one after "
                             "another; let the rows of an image stand together (np.repeat, not "
                             "np.tile), or give each image once")
    return step if turns else 5 if rows % 5 == 0 else 1               # no turns: all rows are equal


def extractors(folder: str) -> dict[str, str]:
    """A folder's features.json: {file suffix: what made the files, in one line}. Empty where there
    is no such file."""
    path = os.path.join(folder, "features.json")
    stored = read_json(path, "delete it and extract again") if os.path.isfile(path) else {}
    check(isinstance(stored, dict) and all(isinstance(value, str) for value in stored.values()),
          f"{path} is not a JSON object, file suffix to extractor; delete it and extract again")
    return stored


def told_of(captions: list[str]) -> dict:
    """What {split}_{name}.json records about the captions whose features were extracted."""
    return {"captions_sha256": sha256("\n".join(captions))}


# ---- reading in order

class _ImageFetcher:
    """Turns image indices (B,) into their features or photos."""

    def __init__(self, images):
        self.images = images

    def __getitem__(self, index) -> Tensor:
        return self.images.gather(index)


class _Reader:
    """Reads in a worker process, and returns an InputError: raised there, it would arrive as a
    traceback."""

    def __init__(self, fetch):
        self.fetch = fetch

    def __getitem__(self, chunk):
        try:
            return self.fetch[chunk]
        except InputError as error:
            return error


def _unchanged(batch):
    return batch


def _ignore_signals(worker: int) -> None:
    """In a worker process: its parent, which gets the same Ctrl-C, first saves, then ends it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def stream(fetch, chunks, workers: int):
    """Yield fetch[chunk] for every chunk, in order, read by `workers` processes (0: by this one),
    each with a copy of `fetch`. Raises an InputError of theirs."""
    if not workers:
        yield from (fetch[chunk] for chunk in chunks)
        return
    loader = DataLoader(_Reader(fetch), sampler=chunks, batch_size=None, num_workers=workers,
                        collate_fn=_unchanged, worker_init_fn=_ignore_signals,
                        generator=torch.Generator(),        # torch's own is the training's
                        multiprocessing_context="fork" if sys.platform == "linux" else None)
    results = iter(loader)
    end = results._shutdown_workers
    atexit.register(end)            # multiprocessing would wait for them, who ignore its signal
    try:
        for result in results:
            if isinstance(result, InputError):
                raise result
            yield result
    finally:
        end()
        atexit.unregister(end)


def chunks(order, batch_size: int) -> list[np.ndarray]:
    return [order[k:k + batch_size] for k in range(0, len(order), batch_size)]


def image_batches(images, batch_size: int, workers: int = 0, rows=None):
    """Yield all images of a split, or those of `rows` (K,), in batches, each image once, in
    order."""
    rows = np.arange(len(images)) if rows is None else rows
    return stream(_ImageFetcher(images), chunks(rows, batch_size), workers * images.parallel)


# ---- splits

NAMED = "captions.tsv"
LONGEST = 10_000                   # words of a caption; a longer one would take the network minutes


class Batch(NamedTuple):
    """B matching pairs."""
    images: Tensor                    # (B, F) features | (B, P, F) regions | (B, 3, H, W) photos
    tokens: Tensor                    # (B, T) int64 word numbers, zero-padded
    lengths: Tensor                   # (B,) int64, on the CPU (packing needs them there)
    image_index: Tensor               # (B,) int64, the row of each image in the split
    caption_index: Tensor             # (B,) int64, the row of each caption
    # images and captions that do not belong together (jWAE); fields that it lacks are None
    unpaired: "Batch | None" = None

    def to(self, device) -> "Batch":
        pin = torch.device(device).type == "cuda"           # so that the copy need not wait
        return self.map(lambda x: (x.pin_memory() if pin else x).to(device, non_blocking=True))

    def map(self, f) -> "Batch":
        """f of every tensor but the lengths."""
        return Batch(*(x if x is self.lengths or x is None else x.map(f)
                       if isinstance(x, Batch) else f(x) for x in self))


@dataclass
class Split:
    """N images and their M captions."""
    name: str
    images: Features | Photos | NoImages
    captions: list[str]
    caption_image: np.ndarray                     # (M,) int64, the row of each caption's image
    source: str                                   # where the captions come from, for messages
    image_ids: list | None = None              # N integers (COCO's, Karpathy's imgid) or file names
    caption_ids: np.ndarray | None = None         # (M,) int64 (COCO's, Karpathy's sentid)
    # N file names, where neither the photos nor image_ids give them
    photo_names: list | None = None
    text: Features | None = None         # (M, F) features of the captions, where a model reads them
    extractors: dict | None = None  # what made the features, {"ims": name, ...}, from features.json
    # sentences for whoever reads a result on this split
    notes: list[str] = field(default_factory=list)
    caption_names: list[str] | None = None        # M names NAME#K, where a file gives them

    @cached_property
    def words(self) -> list[list[str]]:
        """The captions as lists of words. They are tokenised only once."""
        return [tokenize(caption) for caption in tqdm(
            self.captions, desc=f"words of {self.name}", disable=None, leave=False)]

    def encode(self, vocab: Vocabulary, known: bool = True) -> Tokens | Features:
        """The captions as a model reads them: numbers of words or of letter trigrams, or features.
        With `known`, raises InputError on a caption without any known word."""
        if self.text is not None:
            return self.text
        tokens = encode_captions(self.words, vocab)
        if known and tokens.unknown.any():
            m = int(tokens.unknown.argmax())
            raise InputError(f"{self.source}, caption {m + 1}: no word of '{self.captions[m]}' is "
                             f"in the vocabulary of {len(vocab)} words; "
                             "remove it, or train with a lower --vocab_threshold")
        return tokens

    def faults(self, deep: bool = False, images: bool = True):
        """Yield sentences on what is wrong with the contents. `deep` opens every photo and reads
        every feature. Without `images` only the captions are checked."""
        for m, caption in enumerate(self.captions):
            if not caption.strip():
                yield (f"{self.source}, caption {m + 1} is empty; every caption needs a word, so "
                       "fill or remove it")
            elif len(caption) > LONGEST and (
                    len(caption) > 10 * LONGEST or len(caption.split()) > LONGEST):
                yield (f"{self.source}, caption {m + 1} has {len(caption.split()):,} words in "
                       f"{len(caption):,} letters; at most {LONGEST:,} words in {10 * LONGEST:,} "
                       "letters are read, so shorten or remove it")
        yield from self.images.faults(deep) if images else ()
        for what, ids in (("images", self.image_ids), ("captions", self.caption_ids)
                          ) if deep and images else ():
            twice = 0 if ids is None else len(ids) - len(set(ids))
            if twice:
                yield (f"{self.source}: {twice} of {len(ids)} {what} have the id or name of "
                       "another one; give each its own, or leave the ids out")
        if self.text is not None:
            yield from self.text.faults(deep, distinct=False)

    def require_sound(self, images: bool = True) -> "Split":
        for fault in self.faults(images=images):
            raise InputError(fault)
        return self

    def fingerprint(self) -> dict:
        """Sizes and checksums for a run's config.yaml: of all captions, and of the features' shape
        and 64 rows."""
        facts = {"images": len(self.images), "captions": len(self.captions),
                 "images_sha256": self.images.digest(), **told_of(self.captions)}
        if self.text is not None:
            facts["text_sha256"] = self.text.digest()
        if self.extractors:
            facts["extractors"] = self.extractors
        return facts

    def unknown_words(self, vocab: Vocabulary) -> dict[str, int]:
        """How many of all words and of the distinct words the vocabulary does not list, beside the
        totals. Also how many captions have no listed word."""
        unknown = [[word for word in words if word not in vocab.index] for words in self.words]
        return {"words": sum(map(len, self.words)), "unknown_words": sum(map(len, unknown)),
                "distinct": len(set().union(*self.words)),
                "unknown_distinct": len(set().union(*unknown)),
                "captions_without": sum(len(a) == len(b) for a, b in zip(unknown, self.words))}


def read_text_features(root: str, split: str, name: str, captions: list[str],
                       source: str) -> Features:
    """Features of the captions of a split, {split}_{name}.npy, one row each. Raises InputError
    where there are none, or of others. source: where the captions stand."""
    start = os.path.join(root, f"{split}_{name}")
    path, facts = f"{start}.npy", f"{start}.json"
    check(os.path.isfile(path), f"there is no file {path} of --text_features; `python -m "
                                "features.extract captions` makes it")
    text = Features(path)
    check(text.array.shape[:-1] == (len(captions),),
          f"{path} has shape {text.array.shape} for the {len(captions)} captions of {source}; "
          "give one row a caption")
    check(not os.path.isfile(facts)
          or read_json(facts, "extract the features again") == told_of(captions),
          f"{path} was extracted from other captions than {source} holds now; call "
          "features.extract captions again")
    return text


def first_images(split: Split, n: int) -> Split:
    """The split, cut to its first n images and their captions."""
    keep = np.flatnonzero(split.caption_image < n)
    split.captions = [split.captions[m] for m in keep]
    split.caption_image = split.caption_image[keep]
    if split.caption_ids is not None:
        split.caption_ids = split.caption_ids[keep]
    if split.text is not None:
        split.text.cut(len(keep))
    split.image_ids, split.photo_names = (x and x[:n] for x in (split.image_ids, split.photo_names))
    split.images.cut(n)
    return split


# ---- readers

def _need(path: str) -> str:
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; "
                         f"{advice(os.path.basename(os.path.dirname(path)))}")
    return path


def read_precomputed(root: str, split: str, text_only: bool = False,
                     text_features: str | None = None) -> Split:
    split = called(split, lambda name: os.path.isfile(os.path.join(root, f"{name}_caps.txt")))
    start = os.path.join(root, split)
    source = f"{start}_caps.txt"
    if not os.path.isfile(source) and os.path.isfile(os.path.join(root, NAMED)):
        return read_named(root, split, text_features)
    check(glob.glob(os.path.join(root, "*_caps.txt"))
          or not os.path.isfile(os.path.join(root, "all_photos.json")),
          f"{root} holds photos without captions, which can be searched; to train on them give "
          "`features.extract images --photos` a captions.csv")
    captions, notes = read_lines(_need(source)), []
    ids, names = _read_ids(f"{start}_img_ids.npy"), _read_ids(f"{start}_ids.txt")
    if text_only and not os.path.isfile(f"{start}_ims.npy"):
        images = NoImages(len(ids or captions[::5]))
    else:
        images = Features(_need(f"{start}_ims.npy"))
    count, rows = len(captions), len(images)
    check(count and count % rows == 0,
          f"{source} has {count} captions for the {rows} rows of "
          f"{getattr(images, 'path', 'text-only images')}; there must be the same number of "
          "captions for every row")
    if isinstance(images, Features) and rows == count:      # SCAN and VSE++ repeat them
        images.step = rows_per_image(images)
    n = len(images)
    if n < count == len(names) and len(set(names)) == count:                    # of captions
        notes.append(f"{start}_ids.txt names every caption differently, so it does not say which "
                     "the images are")
        names = []
    ids = _one_an_image(ids, n, count, f"{start}_img_ids.npy")
    names = _one_an_image(names, n, count, f"{start}_ids.txt")
    path = f"{start}_ann_ids.npy"
    path = path if os.path.isfile(path) else f"{start}_capids.txt"
    caption_ids = _read_ids(path)
    check(len(caption_ids) in (0, count), f"{path} has {len(caption_ids)} ids for the {count} "
          f"captions of {source}; there must be one for each caption, in their order")
    caption_ids = as_integers(caption_ids)                  # None for names such as x.jpg#0
    return Split(split, images, captions, np.arange(count) // (count // n), source,
                 ids or as_integers(names) or names or None,
                 np.array(caption_ids, np.int64) if caption_ids else None, names or None,
                 read_text_features(root, split, text_features, captions, source)
                 if text_features else None,
                 extractors(root), notes)


def read_named(root: str, split: str, text_features: str | None = None) -> Split:
    """Features of photos by name, and the captions of NAMED that are of these photos. Raises
    InputError on a line of another form, a name twice, and where no caption is of a photo."""
    source, start = os.path.join(root, NAMED), os.path.join(root, split)
    others = ", ".join(named_splits(root))
    check(os.path.isfile(f"{start}_ims.npy"),
          f"{root} has no features {split}_ims.npy; its captions are of {others or 'no split'}, so "
          f"give --split {others or 'NAME'}")
    names, images = read_lines(_need(f"{start}_ids.txt")), Features(f"{start}_ims.npy")
    place = {name: row for row, name in enumerate(names)}
    check(len(place) == len(names) == len(images),
          f"{start}_ids.txt gives {len(place):,} names in {len(names):,} lines for the "
          f"{len(images):,} photos of {split}_ims.npy; give every photo one of its own")
    lines, rows = read_lines(source), {}
    for number, line in enumerate(lines, 1):
        name, tab, text = line.partition("\t")
        photo, mark, k = name.rpartition("#")
        check(tab and mark and k.isdigit() and name not in rows,
              f"{source}, line {number}: {ascii(line[:60])} is no new NAME#K, tab, text; write "
              "every caption once, as in Flickr8k.token.txt")
        if photo in place:
            rows[name] = place[photo], text
    check(rows, f"{source} has no caption of the {len(names):,} photos of {split}_ids.txt; give "
                "captions and photos that belong together")
    owner, captions = map(list, zip(*rows.values()))
    left = len(lines) - len(rows)
    notes = [f"{left:,} captions of {source} are of other photos and left out"] if left else []
    return Split(split, images, captions, np.array(owner), source, names, None, names,
                 read_text_features(root, split, text_features, captions, source)
                 if text_features else None,
                 extractors(root), notes, list(rows))


def named_splits(root: str) -> list[str]:
    """The splits whose captions are in NAMED: those with names of photos and no captions of their
    own."""
    if not os.path.isfile(os.path.join(root, NAMED)):
        return []
    starts = [path.removesuffix("_ids.txt") for path in glob.glob(os.path.join(root, "*_ids.txt"))]
    return sorted(os.path.basename(start) for start in starts
                  if not os.path.isfile(f"{start}_caps.txt"))


def _one_an_image(x: list, n: int, count: int, path: str) -> list:
    """One id per image, from ids that may be given per caption, or none.

    Raises InputError for another number of ids, and where the captions of one image have different
    ids: then not every image has count / n captions one after another.
    """
    check(len(x) in (0, n, count), f"{path} has {len(x)} ids for {n} images; there must be one for "
                                   "each image or caption")
    if len(x) != count:
        return x
    each = count // n
    for first in range(0, count, each):
        if len(set(x[first:first + each])) > 1:
            raise InputError(f"{path} gives the captions {first + 1} to {first + each}, which "
                             f"{count} captions for {n} images make those of one image, more than "
                             "one id; let the captions of an image stand together, equally many "
                             "of each")
    return x[::each]


def _read_ids(path: str) -> list:
    """The ids beside a split, from an .npy file of integers or lines of text. Empty if there is no
    file."""
    if not os.path.isfile(path):
        return []
    if not path.endswith(".npy"):
        return read_lines(path)
    array = read_array(path, "fetch or save it again")
    check(array.ndim == 1 and array.dtype.kind in "iu" and array.max(initial=0) <= INT64.max,
          f"{path} is not a whole .npy file of integers (it holds {array.dtype} of shape "
          f"{array.shape}); fetch or save it again")
    return array.tolist()


def _grouped(name: str, source: str, rows: list[tuple]) -> tuple[Split, list]:
    """A Split of photos, from rows (key of the image, path of its photo, caption, id), and the ids
    of the captions. Images come in the order of their first appearance."""
    keys, paths, captions, ids = map(list, zip(*rows))
    path_of = dict(zip(keys, paths))
    position = {key: n for n, key in enumerate(path_of)}
    integers([key for key in position if isinstance(key, int)], source, "an image the id")
    return Split(name, Photos([*path_of.values()]), captions,
                 np.array([position[key] for key in keys], np.int64), source, list(position)), ids


def read_karpathy(root: str, path: str, split: str, use_restval: bool) -> Split:
    parts = {"dev": ["val"], "train": ["train", "restval"][:1 + use_restval]}.get(split, [split])
    names, numbers, rows = {}, {}, []
    with refusing(f"{path} is not in Karpathy's layout, of images with split, filename and "
                  "sentences with raw", "fetch it again"):
        for image in read_json(path)["images"]:
            if image["split"] not in parts:
                continue
            name = os.path.join(image.get("filepath", ""), image["filename"])
            key = image.get("cocoid", name)
            if key in names:
                raise InputError(f"{path} lists the images {names[key]} and {name} of split "
                                 f"'{split}' as one, {key}; list each once, with all its sentences "
                                 "and a cocoid of its own")
            names[key], numbers[key] = name, image.get("imgid")
            photo = below(os.path.join(root, "images"), name, path)
            rows += [(key, photo, sentence["raw"], sentence.get("sentid"))
                     for sentence in image["sentences"]]
    check(names, f"{path} has no images of split '{split}'; the splits are train, val (= dev) and "
                 "test")
    check(rows, f"{path} has {len(names):,} images of split '{split}' and not one sentence of "
                "them; give every image at least one")
    for key, _, caption, _ in rows:
        if not isinstance(caption, str):
            raise InputError(f"{path}, image {names[key]}: the raw sentence {ascii(caption)[:40]} "
                             "is no string; put its text in quotes")
    result, ids = _grouped("dev" if split == "val" else split, path, rows)
    result.caption_ids = _own(ids, path, "the sentid")
    if all(key == name for key, name in names.items()):                             # no cocoid
        numbers = _own([numbers[key] for key in result.image_ids], path, "the imgid")
        if numbers is not None:
            result.photo_names, result.image_ids = result.image_ids, numbers.tolist()
    if without := len(names) - len(result.images):
        result.notes.append(f"{path}: {without:,} of {len(names):,} images of split '{split}' have "
                            "no sentence and are left out")
    return result


def _own(ids: list, path: str, what: str) -> np.ndarray | None:
    """The ids that `path` gives (`integers`), or None unless all are integers and different."""
    different = all(type(i) is int for i in ids) and len(set(ids)) == len(ids)
    return integers(ids, path, what) if different else None


def read_coco_layout(root: str, split: str, use_restval: bool) -> Split:
    split = "dev" if split == "val" else split
    parts = {split: "train2014" if split == "train" else "val2014"}
    if use_restval and split == "train":
        parts["restval"] = "val2014"                            # 30,504 images of the 2014 val set
    rows = []
    for part, folder in parts.items():
        ids_path = os.path.join(root, "annotations", f"coco_{part}_ids.npy")
        json_path = _need(os.path.join(root, "annotations", f"captions_{folder}.json"))
        numbers = _read_ids(_need(ids_path))                                        # caption ids
        coco = read_coco(json_path)
        if absent := [i for i in numbers if i not in coco.anns]:
            raise InputError(f"{ids_path} names {len(absent)} captions that {json_path} lacks, the "
                             f"first is {absent[0]}; the two files must belong together")
        photos = os.path.join(root, "images", folder)
        with refusing(f"{json_path} is no file of COCO's captions, or lacks a field",
                      "fetch it again"):
            for i in numbers:
                key, caption = coco.anns[i]["image_id"], coco.anns[i]["caption"]
                photo = below(photos, coco.imgs[key]["file_name"], json_path)
                rows.append((key, photo, caption.replace("\n", " ").strip(), i))
    check(rows, f"{ids_path} names no captions; fetch it again")
    result, ids = _grouped(split, json_path, rows)
    result.caption_ids = np.array(ids, np.int64)
    return result


DEV_IMAGES = 1000       # VSE++ cuts the dev split of precomputed data and of COCO to 5,000 captions


def read_split(data_path: str, data_name: str, split: str, *, use_restval: bool = False,
               dev_images: int = DEV_IMAGES, text_only: bool = False,
               text_features: str | None = None) -> Split:
    """Read one split of data_path/data_name. Raises InputError, with one sentence, where it cannot
    be read.

    split: train, dev (= val), test or testall. dev_images: only the first images of a dev split of
    precomputed data or COCO are kept, as in VSE++; 0 keeps all. text_only: {split}_caps.txt may
    stand there without features. text_features: the name in {split}_{name}.npy, which holds
    features of the captions of precomputed data.
    """
    root = os.path.join(data_path, data_name)
    check(re.fullmatch(r"[\w-]+", split), f"'{split}' is no name of a split; give train, dev, "
              "test, testall or what a file of captions begins with")
    if not os.path.isdir(root):
        raise InputError(f"there is no folder {root} (--data_path {data_path}, --data_name "
                         f"{data_name}); {advice(data_name)}")
    refuse_changing(root, split)
    karpathy = sorted(glob.glob(os.path.join(root, "dataset*.json")))
    precomputed = glob.glob(os.path.join(root, "*_caps.txt")) or features_in(root)
    check(precomputed or not text_features,
              f"--text_features {text_features}: {root} holds photos, and features of captions lie "
              "beside precomputed ones; extract both with features.extract")
    if os.path.isdir(os.path.join(root, "annotations")):
        result = read_coco_layout(root, split, use_restval)
    elif karpathy:
        return read_karpathy(root, karpathy[0], split, use_restval)
    elif precomputed:
        result = read_precomputed(root, split, text_only, text_features)
    else:
        raise InputError(f"{root} holds no data set: looked for {split}_caps.txt and "
                         f"{split}_ims.npy (precomputed), annotations/ (COCO) and dataset_*.json "
                         f"(Karpathy); {advice(data_name)}")
    cut = dev_images and split in ("dev", "val")
    return first_images(result, dev_images) if cut else result


def features_in(root: str) -> list[str]:
    """Files of precomputed features of images."""
    return glob.glob(os.path.join(root, "*_ims.npy"))


class _PairFetcher:
    """Turns caption indices (B,) into them and their images. A worker process is given no captions,
    which the process that asks has."""

    def __init__(self, split: Split, crop_size: int | None, seed: tuple):
        self.images, self.caption_image = split.images, split.caption_image
        self.crop_size, self.seed = crop_size, seed

    def __getitem__(self, index) -> tuple[np.ndarray, Tensor]:
        if self.crop_size and isinstance(self.images, Photos):
            return index, self.augmented(index)
        return index, self.images.gather(self.caption_image[index])

    def augmented(self, index) -> Tensor:
        """Photos, cropped and flipped at random by (seed, epoch, caption) alone; workers or
        resuming change nothing."""
        transform = train_transform(self.crop_size)
        photos = []
        with torch.random.fork_rng(devices=[]):
            for caption, image in zip(index, self.caption_image[index]):
                seed = np.random.SeedSequence([*self.seed, int(caption)])
                # torch.manual_seed would seed CUDA's generators too
                torch.default_generator.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
                photos.append(transform(self.images.open(int(image))))
        return torch.stack(photos)                                    # (B, 3, crop_size, crop_size)


def pair_batches(split: Split, tokens: Tokens, order, batch_size: int, *, workers: int = 0,
                 crop_size: int | None = None, seed: tuple = (0,), skip: int = 0):
    """Yield batches of matching pairs in the given order of captions. The first `skip` batches are
    left out (resuming).

    With crop_size, photos are augmented as in training, at random by `seed`; without it they are
    cropped as in tests.
    """
    batches = chunks(np.ascontiguousarray(order), batch_size)[skip:]
    fetch = _PairFetcher(split, crop_size, seed)
    for chunk, images in stream(fetch, batches, workers * split.images.parallel):
        yield Batch(images, *tokens.batch(chunk), torch.from_numpy(split.caption_image[chunk]),
                    torch.from_numpy(chunk))


def check_extractors(trained: dict | None, split: Split, text_features: str | None,
                     path: str) -> None:
    """Raises InputError on features whose recorded extractor (features.json) differs from that in
    training."""
    for kind in ("ims", text_features):
        before, now = ((made or {}).get(kind) for made in (trained, split.extractors))
        if before and now and before != now:
            what = "image features" if kind == "ims" else f"caption features '{kind}'"
            raise InputError(f"{split.source}: the {what} beside it were made by '{now}', {path} "
                             f"was trained on those of '{before}'; extract them with the same "
                             "network or vectors")


def report(found: str, faults: list[str]) -> int:
    """Print faults of a data set. Returns how many there are."""
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{found}{len(faults)} faults")
    return len(faults)


def check_data_set(data_path: str, data_name: str, vocab_path: str | None = None,
                   text_features: str | None = None) -> int:
    """Print what a data folder holds and every fault in it. Returns the number of faults."""
    root = os.path.join(data_path, data_name)
    vocab = Vocabulary.load(vocab_path) if vocab_path else None
    faults, splits, first = [], 0, {}
    text_only = bool(glob.glob(os.path.join(root, "*_caps.txt"))) and not features_in(root)
    required = ("train", "dev", "test")[2 * text_only:]
    for name in ("train", "restval", "dev", "test", "testall"):
        try:
            split = read_split(data_path, data_name, name, dev_images=0, text_only=text_only,
                               text_features=text_features)
        except InputError as error:
            faults += [str(error)] * (name in required)
            continue
        splits += 1
        for kind, x in enumerate((split.images, split.text)):
            if isinstance(x, Features) and x.shape != first.setdefault(kind, x).shape:
                faults.append(f"{x.path} has rows of {x.shape}, {first[kind].path} of "
                              f"{first[kind].shape}; extract all alike")
        vocab = vocab or Vocabulary.build(split.words)
        known = [word in vocab.index for words in split.words for word in words] or [False]
        for note in split.notes:
            print(f"note: {note}")
        print(f"{name:8}{len(split.images):>8,} images {len(split.captions):>8,} captions  "
              f"{split.images.describe()}\n{'':8}captions of "
              f"{np.mean([len(words) for words in split.words]):.1f} words; "
              f"{100 * np.mean(known):.2f}% of the words are in the vocabulary of {len(vocab):,}")
        faults += split.faults(deep=True)
        if all(caption.strip() for caption in split.captions):
            try:
                split.encode(vocab)
            except InputError as error:
                faults.append(str(error))
    # no data set at all is one fault, not one per split
    return report(f"{root}: {splits} splits, ", faults if splits else faults[:1])


def main(argv=None) -> None:
    parser = Arguments("Check a data set.")
    parser.add_argument("command", choices=["check"],
                        help="check: print what the data set holds, and every fault")
    parser.add_argument(
        "--data_path", type=filename, default="data", help="folder that holds the data sets"
    )
    parser.add_argument("--data_name", type=data_set, default="coco_precomp",
                        help="folder of the data set below --data_path")
    parser.add_argument(
        "--text_features", metavar="NAME", help="also check features of captions, {split}_NAME.npy"
    )
    parser.add_argument("--vocab", type=filename,
                        help="vocabulary whose coverage is measured (default: words of the "
                             "training captions)")
    opt = parser.parse_args(argv)
    sys.exit(cli.run("data.py", lambda: int(check_data_set(
        opt.data_path, opt.data_name, opt.vocab, opt.text_features) > 0)))


if __name__ == "__main__":
    main()
