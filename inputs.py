"""What a data set consists of, as models read it: features, photos, captions as numbers or as features."""
import hashlib
import mmap
import os
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from trigrams import Trigrams, TrigramTokens
from vocab import UNK, InputError, Vocabulary

SCAN_BYTES = 4 << 30                  # feature files up to this size are searched for NaN before training starts
RESIDENT_BYTES = 1 << 30              # rows read from a mapped file before its pages are handed back to the system
HELP = "'Getting data' in README.md says where it comes from, `python data.py check` what is there, `python demo.py` " \
       "writes demo data"


class Features:
    """Rows of a feature file (N, F) or (N, P, F), float16 or float32, mapped and never read whole."""

    def __init__(self, path: str):
        self.path, self.step = path, 1                                              # row of image i: i * step
        try:
            self.array = np.lib.format.open_memmap(path, mode="r")                  # np.load would open .npz archives too
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{path} is not a whole .npy file of numbers ({error}); write it again with "
                             "np.save(path, array.astype(np.float32))") from error
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

    def faults(self, deep: bool):
        """Sentences on what is wrong; `deep` reads every row however large the file, and names rows of zeros."""
        zero = []
        if deep or self.array.nbytes <= SCAN_BYTES:
            for chunk in np.array_split(np.arange(len(self)), max(1, self.array.nbytes >> 28)):
                try:
                    zero += chunk[~self.gather(chunk).flatten(1).any(1).numpy()].tolist()
                except InputError as error:
                    yield str(error)
        if deep and zero:
            yield (f"{self.path} holds only zeros in {len(zero) * self.step} of {len(self.array)} rows, the first is row "
                   f"{zero[0] * self.step}; their extraction failed, so extract them again")

    def describe(self) -> str:
        some = self.array[np.linspace(0, len(self.array) - 1, 256).astype(int)].astype(np.float32)
        return (f"features {tuple(self.array.shape)} {self.array.dtype}, mean l2 norm "
                f"{np.linalg.norm(some, axis=-1).mean():.2f}"
                + (f", each row repeated {self.step} times" if self.step > 1 else ""))

    def digest(self) -> str:
        some = np.unique(np.linspace(0, len(self.array) - 1, 64).astype(int))
        return hashlib.sha256(f"{self.array.shape} {self.array.dtype}".encode() + self.array[some].tobytes()).hexdigest()


class Photos:
    """Image files, decoded to RGB and transformed as VSE++ does: (B, 3, 224, 224)."""
    parallel, dim, regions, step = True, None, None, 1

    def __init__(self, paths: list[str]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, i: int) -> Image.Image:
        try:
            with Image.open(self.paths[i]) as image:
                return image.convert("RGB")                                         # grey, CMYK and palettes too
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(f"the photo {self.paths[i]} cannot be read ({error}); replace it or fetch it again") from error

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


def eval_transform():
    return _transform(lambda t: [t.Resize(256), t.CenterCrop(224)])


def train_transform(crop_size: int):
    return _transform(lambda t: [t.RandomResizedCrop(crop_size), t.RandomHorizontalFlip()])


def _transform(first):
    from encoders import import_torchvision  # only photos need it

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


def encode_captions(captions: list[list[str]], vocab: Vocabulary) -> Tokens | TrigramTokens:
    """Tokenised captions as numbers of words, or of their letter trigrams where the vocabulary is of those."""
    if isinstance(vocab, Trigrams):
        return TrigramTokens.of(captions, vocab)
    numbers = [vocab.encode(words) for words in captions]
    length = np.array([len(caption) for caption in numbers], np.int64)
    unknown = np.array([all(number == UNK for number in caption[1:-1]) for caption in numbers])
    return Tokens(np.concatenate([np.asarray(c, np.int64) for c in numbers]), np.cumsum(length) - length, length, unknown)


class CaptionFeatures:
    """Ready features in place of a caption's words: what `Tokens` is to those."""

    def __init__(self, features: Features):
        self.features, self.length = features, np.ones(len(features), np.int64)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) -> (B, F) and lengths of 1 (B,)."""
        return self.features.gather(index), torch.from_numpy(self.length[index])
