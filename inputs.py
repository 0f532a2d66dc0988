"""Reads what models take as input: image features, photos, and captions as numbers or as
features."""
import atexit
import math
import mmap
import os
import signal
import sys
from itertools import chain

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from cli import InputError, check
from files.photos import import_torchvision, read_photo
from files.reading import HELP, read_array, read_json, sha256
from text import UNK, Trigrams, Vocabulary

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
