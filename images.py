"""Images of a split: features, or photos with the transforms of VSE++.

`Features` maps a file of features into memory, `Photos` opens image files; both give batches by
`gather`, and say what is wrong with them by `faults` and `doubts`. `NoImages` stands for images of
which only the captions are there. `read_photo` reads one image file.
"""

import contextlib
import functools
import math
import mmap
import os
import re
import sys
import threading
import warnings
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from tqdm import tqdm

from utils import HELP, InputError, file_digest, need, open_plain, read_array, refusing, sha256

JPEG_START = b"\xff\xd8\xff"  # how its files begin
# Formats whose reading starts no other program.
PHOTO_FORMATS = "JPEG MPO PNG WEBP GIF BMP TIFF PPM JPEG2000 AVIF HEIF".split()
TRIED_SIDE = 64  # pixels a side that show whether a file is a photo
CUT = "cut"  # the mark of a photo of which a part is lost, in its `info`
TOLERANT = threading.Lock()  # of Pillow's switch for damaged files
IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]

LARGE_FILE_BYTES = (
    1 << 30
)  # bytes of a file that worker processes help to read, and that stay mapped
MAX_SCANNED_BYTES = 4 << 30  # of a file that training checks for NaN
BYTES_PER_CHUNK = 1 << 28  # of features that are checked at a time
ROW_NOISE = 0.01  # rows of one image differ by less of the distance between two images
HASHED_NUMBERS = 512  # of an image, at equal distances, or more
SAMPLED_NUMBERS = 16  # of a region, or more, that tell most regions from padding
MIN_VARIANCE = 1e-5  # over the images, as a share of their mean square; less: nothing differs
REPEATED_SHARE = 0.02  # of images with the features of another one, from which a note says so
SQUARABLE = 1e18  # float32 can add up the squares of smaller numbers
MANY_REGIONS = 256  # more vectors an image than numbers a vector: channels stand before regions
SAVE_AGAIN = "write it again with np.save(path, array.astype(np.float32))"


# ---- photos


def read_photo(path: str, most: int | None = None, may_be_cut: bool = False) -> Image.Image:
    """Read a photo in RGB of 8 bits, rotated as its EXIF tag says. Raises InputError.

    Faults outside the pixels, in EXIF or texts, are ignored.

    Args:
        most: largest number of pixels a side of the result; a large JPEG is then decoded small, in
            a fraction of the time and memory.
        may_be_cut: a photo of which a part is lost is read as far as it goes; `is_cut` tells.
    """
    fix = "replace it or fetch it again"
    with refusing(f"the photo {path} cannot be read", fix), open_plain(need(path, fix)) as file:
        photo = decode_photo(file, most)
        if is_cut(photo) and not may_be_cut:
            raise OSError("a part of it is lost")
    return photo


def decode_photo(file: BinaryIO, most: int | None = None) -> Image.Image:
    """Decode a photo as `read_photo` does, cut or not. Raises what Pillow raises, of many kinds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's name no photo
        try:
            photo = convert_rgb(open_image(file, most))
        except Image.DecompressionBombError:
            raise
        except Exception as error:
            file.seek(0)
            with tolerant_pillow():
                photo = convert_rgb(open_image(file, most))
            if all(low == high for low, high in photo.getextrema()):
                raise error  # no pixel is there
            if isinstance(error, OSError) and not isinstance(error, UnidentifiedImageError):
                photo.info[CUT] = has_plain_edge(photo)  # else the fault is outside the pixels
    if most:
        photo.thumbnail((most, most))
    return photo


def has_plain_edge(photo: Image.Image) -> bool:
    """True if the first or the last row of pixels has one color, as Pillow fills what is lost."""
    first = photo.crop((0, 0, photo.width, 1))
    last = photo.crop((0, photo.height - 1, photo.width, photo.height))
    return first.getcolors(1) is not None or last.getcolors(1) is not None


def is_cut(photo: Image.Image) -> bool:
    """True of a photo that was read, if a part of its pixels is lost."""
    return photo.info.get(CUT, False)


@contextlib.contextmanager
def tolerant_pillow():
    """Let Pillow read damaged files as far as they go, within a context.

    It has one switch for all threads, so others may meanwhile read such files, too.
    """
    with TOLERANT:
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False


def open_image(file: BinaryIO, most: int | None = None) -> Image.Image:
    """Open an image of PHOTO_FORMATS.

    A JPEG of more pixels than Pillow reads, or than `most` a side, is decoded small.
    """
    first = file.read(len(JPEG_START))
    file.seek(0)
    if first != JPEG_START:
        return Image.open(file, formats=photo_formats())

    image = JpegImageFile(file)  # Image.open would refuse before draft
    limit = 2 * Image.MAX_IMAGE_PIXELS
    excess = image.width * image.height / limit
    if most:
        image.draft(None, (most, most))
    elif excess > 1:
        scale = 2 ** math.ceil(math.log(excess, 4))
        image.draft(None, (image.width // scale, image.height // scale))
    if image.width * image.height > limit:
        raise Image.DecompressionBombError(f"it has {excess * limit:,.0f} pixels")
    return image


def can_decode(path: str) -> bool:
    """True if a file is a photo by its bytes, whatever its name says."""
    try:
        with open_plain(path) as file:
            decode_photo(file, TRIED_SIDE)
    except Exception:
        return False
    return True


def read_year(photo: Image.Image) -> str:
    """Return the year in which a photo was taken by its EXIF data, or ""."""
    with contextlib.suppress(Exception):  # broken EXIF says nothing
        exif = photo.getexif()
        times = exif.get_ifd(ExifTags.IFD.Exif)
        date = times.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime) or ""
        year = re.match(r"(19|20)\d\d(?=:)", date)
        if year:
            return year[0]
    return ""


@functools.cache
def photo_formats() -> list[str]:
    """List the PHOTO_FORMATS that the installed Pillow can read, HEIF by pillow-heif."""
    Image.init()
    with contextlib.suppress(ImportError):
        import pillow_heif  # optional: only photos of this format need it

        pillow_heif.register_heif_opener()
    return [name for name in PHOTO_FORMATS if name in Image.OPEN]


def convert_rgb(image: Image.Image) -> Image.Image:
    """Rotate as EXIF says and convert to RGB of 8 bits; 16 bits, which Pillow clips, are scaled."""
    image.load()
    with contextlib.suppress(Exception):  # a broken EXIF rotates nothing
        ImageOps.exif_transpose(image, in_place=True)
    if not image.mode.startswith(("I", "F")):
        image.info.pop("transparency", None)  # a palette's, of which Pillow warns
        return image.convert("RGB")
    if ";16" not in image.mode:
        raise ValueError(
            f"its pixels have Pillow's mode {image.mode}, which does not tell the value of white"
        )
    pixels = np.rint(np.asarray(image) / 257).astype(np.uint8)
    return Image.fromarray(pixels).convert("RGB")


# ---- torchvision's transforms


def import_torchvision():
    """Import torchvision, also beside a CPU-only torch.

    There the import fails at two detection operators that nothing here calls; declaring them is
    enough.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in list(sys.modules):
            if name.split(".")[0] == "torchvision":
                del sys.modules[name]
        for name in ("nms", "qnms"):
            arguments = "(Tensor dets, Tensor scores, float iou_threshold)"
            torch.library.define(f"torchvision::{name}", f"{arguments} -> Tensor")
        import torchvision
    return torchvision


def eval_transform():
    """Build VSE++'s transform of evaluation: short side 256, middle 224 x 224."""
    transforms = import_torchvision().transforms
    return build_transform(transforms.Resize(256), transforms.CenterCrop(224))


def whole_transform(side: int = 224):
    """Build a transform that resizes the whole photo to a square, without its proportions."""
    transforms = import_torchvision().transforms
    return build_transform(transforms.Resize((side, side)))


def training_transform(crop_size: int):
    """Build VSE++'s transform of training: a random crop, flipped at random."""
    transforms = import_torchvision().transforms
    return build_transform(
        transforms.RandomResizedCrop(crop_size), transforms.RandomHorizontalFlip()
    )


def build_transform(*steps):
    """Build photo -> (3, H, W), normalized as for networks of ImageNet, after these steps."""
    transforms = import_torchvision().transforms
    normalize = transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)
    return transforms.Compose([*steps, transforms.ToTensor(), normalize])


# ---- images of a split: features, photos, or none


class Scan(NamedTuple):
    """What one pass over the features of N images finds."""

    faults: list[str]  # sentences on NaN and infinity
    zero: list[int]  # rows of the file that hold only zeros
    padded: int  # images some of whose regions hold only zeros
    filled: float  # regions that hold other numbers, mean over the images
    spread: float  # variance over the images, as a share of their mean square
    codes: np.ndarray  # (N,) int32: equal for equal images; 0 for zeros and unread ones


class Features:
    """File of features, (N, F) or (N, P, F), float16 or float32, mapped into memory."""

    _scan: Scan | None = None

    def __init__(self, path: str):
        self.path = path
        self.step = 1  # the row of image i is i * step
        self.resident = 0  # bytes that were read of the map
        self.array = read_array(path, SAVE_AGAIN)
        self.counts = None  # (rows,) regions of each row, where a file says them
        shape = self.array.shape
        dtype = self.array.dtype
        if dtype.kind != "f" or len(shape) not in (2, 3) or 0 in shape:
            raise InputError(
                f"{path} holds {dtype} of shape {shape}; features are floats, (images, F) or "
                "(images, regions, F)"
            )
        self.dim = shape[-1]  # F
        self.regions = None  # P, or None where an image has one vector
        if len(shape) == 3:
            self.regions = shape[1]

    def set_counts(self, counts: np.ndarray) -> None:
        """Tell how many regions each row (N, P, F) has, (N,); the others are padding."""
        self.counts = counts
        self._scan = None

    def cut(self, n: int) -> None:
        """Keep the first n images."""
        self.array = self.array[: n * self.step]
        self._scan = None

    def __len__(self) -> int:
        return len(self.array) // self.step

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image's features, (F,) or (P, F)."""
        return self.array.shape[1:]

    def is_padded(self) -> bool:
        """True if images have different numbers of regions; of a large file, if 256 show it."""
        if self.regions is None:
            return False
        scan = self.scan()
        if scan is not None:
            return scan.padded > 0
        places = np.linspace(0, len(self) - 1, 256).astype(int)
        return count_regions(self.gather(places)) is not None

    @property
    def parallel(self) -> bool:
        """True for a large file, which worker processes help to read.

        They share its map where they are forked.
        """
        return self.array.nbytes > LARGE_FILE_BYTES and sys.platform == "linux"

    @property
    def length(self) -> np.ndarray:
        """Ones (M,), as lengths in vocab.Tokens, where the features are of captions."""
        return np.ones(len(self), np.int64)

    def gather(self, index) -> Tensor:
        """Read features of images `index` (B,): (B, F) or (B, P, F) float32, finite.

        Regions of zeros alone are padding and stand behind the others (`count_regions`).
        """
        rows = np.asarray(index) * self.step
        with np.errstate(over="ignore"):
            features = torch.from_numpy(self.array[rows].astype(np.float32, copy=False))
        if self.counts is not None:
            counts = torch.from_numpy(self.counts[rows])
            numbers = torch.arange(features.shape[1])
            features[numbers >= counts[:, None]] = 0
        if features.ndim == 3:
            features = move_padding(features)
        if not torch.isfinite(torch.linalg.vector_norm(features)):
            self.check_squarable(features, rows)

        # release the pages of many bytes, which the system may cache
        self.resident += features.nbytes
        if self.resident > LARGE_FILE_BYTES and isinstance(self.array, np.memmap):
            if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                self.array._mmap.madvise(mmap.MADV_DONTNEED)
            self.resident = 0
        return features

    def check_squarable(self, features: Tensor, rows: np.ndarray) -> None:
        """Raise InputError on NaN and numbers too large, in features of these rows (B,)."""
        usable = (features.abs() <= SQUARABLE).flatten(1).all(1).numpy()  # also False for NaN
        if not usable.all():
            raise InputError(
                f"{self.path} holds NaN or infinity in row {rows[usable.argmin()]}, or numbers "
                f"above {SQUARABLE:g}, whose squares float32 cannot add up; extract that image "
                "again"
            )

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Read captions `index` (B,) as features (B, F) and lengths (B,), which are all 1."""
        return self.gather(index), torch.ones(len(index), dtype=torch.int64)

    def faults(self, deep: bool = False):
        """Yield sentences on faults of the file. deep: also read files above MAX_SCANNED_BYTES."""
        if self.regions and self.regions >= MANY_REGIONS and self.regions > self.dim:
            yield (
                f"{self.path} has {self.regions:,} regions of {self.dim} numbers an image: its "
                "axes look transposed, channels before regions; save array.transpose(0, 2, 1)"
            )
        scan = self.scan(deep)
        if scan:
            yield from scan.faults

    def doubts(self, deep: bool = False):
        """Yield (whether it is a fault, sentence) on features that can be read and look wrong."""
        scan = self.scan(deep)
        if self.array.dtype.itemsize > 4:
            yield (
                False,
                f"{self.path} holds {self.array.dtype}, and models compute in float32; files of "
                "float32 take half the space, of float16 a quarter",
            )
        if scan is None:
            return
        count = len(self)
        if scan.zero:
            yield (
                True,
                f"{self.path} holds only zeros for {len(scan.zero):,} of {count:,} images "
                f"(first: row {scan.zero[0]}); their extraction failed, so extract them again",
            )

        if scan.spread < MIN_VARIANCE and len(scan.zero) < count > 1:
            yield (
                True,
                f"{self.path} has the same features for all {count:,} images (their variance is "
                f"{scan.spread:.2g} of their mean square), so nothing tells the images apart; "
                "extract them again",
            )
        else:
            yield from self.doubt_repeats(scan.codes)
        if scan.padded:
            yield (
                False,
                f"{self.path} has regions of zeros alone in {scan.padded:,} of {count:,} images "
                f"({scan.filled:.1f} of {self.regions} regions are filled on average); they count "
                "as padding and are left out of pooling, attention and graphs",
            )

    def doubt_repeats(self, codes: np.ndarray):
        """Yield a doubt about images that equal an earlier one, but for zeros.

        codes (N,): of `Scan`.
        """
        count = len(self)
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        earlier = first[inverse]  # (N,): the first image of the same code
        rows = np.flatnonzero((codes != 0) & (earlier != np.arange(count)))
        repeats = 0
        if len(rows) >= REPEATED_SHARE * count:
            repeats = count_equal(self, rows, self, earlier[rows])
        if repeats >= REPEATED_SHARE * count > 0:
            is_fault = 2 * repeats > count
            yield (
                is_fault,
                f"{self.path} has the features of an earlier image for {repeats:,} of {count:,} "
                "images; nothing tells these apart, so look whether their extraction failed",
            )

    def scan(self, deep: bool = False) -> Scan | None:
        """Read all features once; None for a file above MAX_SCANNED_BYTES unless `deep`."""
        too_large = self.array.nbytes > MAX_SCANNED_BYTES and not deep
        if self._scan is not None or too_large:
            return self._scan

        count = len(self)
        faults = []
        zero = []
        padded = 0
        filled = 0
        total = 0.0  # sum of the features (C,)
        square = 0.0  # sum of their squares
        read = 0
        codes = np.zeros(count, np.int32)
        n_chunks = self.array.nbytes // BYTES_PER_CHUNK + 1
        for chunk in np.array_split(np.arange(count), n_chunks):
            try:
                features = self.gather(chunk)  # (B, F) or (B, P, F)
            except InputError as error:
                faults.append(str(error))
                continue

            rows = features.flatten(1)  # (B, C)
            used = features.any(-1)  # (B,) or (B, P): has other numbers than 0
            some = used
            if used.ndim == 2:
                some = used.any(1)  # (B,)
                padded += int((some & ~used.all(1)).sum())
                filled += int(used.sum())
            some = some.numpy()
            zero += (chunk[~some] * self.step).tolist()
            codes[chunk] = np.where(some, hash_rows(rows), 0)
            total = total + rows.sum(0).double()
            square += float(torch.linalg.vector_norm(rows)) ** 2
            read += len(chunk)

        spread = 1.0
        if square > 0:
            spread = max(0.0, 1 - float((total / read).square().sum()) * read / square)
        self._scan = Scan(faults, zero, padded, filled / max(1, read), spread, codes)
        return self._scan

    def describe(self) -> str:
        """Say what the file holds."""
        places = np.linspace(0, len(self.array) - 1, 256).astype(int)
        sample = self.array[places].astype(np.float64)
        with np.errstate(over="ignore"):
            norm = np.linalg.norm(sample, axis=-1).mean()
        text = f"features {self.array.shape} {self.array.dtype}, mean l2 norm {norm:.2f}"
        if self.step > 1:
            text += f", each row repeated {self.step} times"
        return text

    def digest(self) -> str:
        """Return a checksum of shape, type and 64 rows."""
        places = np.unique(np.linspace(0, len(self.array) - 1, 64).astype(int))
        form = f"{self.array.shape} {self.array.dtype}"
        if self.counts is not None:
            return sha256(form, self.array[places], self.counts)
        return sha256(form, self.array[places])


def find_regions(features: Tensor) -> Tensor | None:
    """Mask the regions (B, P) of features (B, P, F) that hold other numbers than 0.

    None where all do, and of images without regions: vectors (B, F) and photos (B, 3, H, W).
    """
    if features.ndim != 3:
        return None
    step = max(1, features.shape[2] // SAMPLED_NUMBERS)
    real = features[:, :, ::step].any(2)  # (B, P), of a sample
    if real.all():
        return None
    real[~real] = features[~real].any(1)
    if real.all():
        return None
    return real


def move_padding(features: Tensor) -> Tensor:
    """Move regions of zeros alone behind the others of their images, which keep their order."""
    real = find_regions(features)
    if real is None:
        return features
    order = real.int().argsort(dim=1, descending=True, stable=True)  # (B, P)
    if (order == torch.arange(order.shape[1], device=order.device)).all():
        return features
    return features.take_along_dim(order[:, :, None], 1)


def count_regions(features: Tensor) -> Tensor | None:
    """Count the regions of images (B, P, F) before their padding, at least 1: (B,).

    None where no image has padding: all are computed as they are, without a mask.
    """
    real = find_regions(features)
    if real is None:
        return None
    return real.sum(1).clamp(min=1)


def hash_rows(rows: Tensor) -> np.ndarray:
    """Hash HASHED_NUMBERS or more of float32 rows (N, C): (N,) int32, equal for equal rows."""
    step = max(1, rows.shape[1] // HASHED_NUMBERS)
    bits = rows[:, ::step].contiguous().view(torch.int32).numpy()
    rng = np.random.default_rng(0)
    weights = rng.integers(-(2**31), 2**31, bits.shape[1], np.int32) | 1
    return bits @ weights  # products and sums wrap


def count_equal(
    images: "Features", rows: np.ndarray, others: "Features", partners: np.ndarray
) -> int:
    """Count the images at rows (K,) that equal the others at partners (K,)."""
    images_per_chunk = max(1, BYTES_PER_CHUNK // (4 * math.prod(images.shape)))
    count = 0
    for k in range(0, len(rows), images_per_chunk):
        part = slice(k, k + images_per_chunk)
        equal = images.gather(rows[part]) == others.gather(partners[part])
        count += int(equal.flatten(1).all(1).sum())
    return count


def count_shared(images, others, deep: bool = False) -> int:
    """Count the images that are among `others`, too: equal features, or one file.

    deep: photos of equal bytes are one, too; files of features above MAX_SCANNED_BYTES are read.
    """
    if isinstance(images, Photos) and isinstance(others, Photos):
        return count_shared_files(images.paths, others.paths, deep)
    both_features = isinstance(images, Features) and isinstance(others, Features)
    if not both_features or images.shape != others.shape:
        return 0
    mine = images.scan(deep)
    theirs = others.scan(deep)
    if mine is None or theirs is None:
        return 0

    order = np.argsort(theirs.codes, kind="stable")
    rising = theirs.codes[order]
    rows = np.flatnonzero(np.isin(mine.codes, rising) & (mine.codes != 0))
    partners = order[np.searchsorted(rising, mine.codes[rows])]
    return count_equal(images, rows, others, partners)


def count_shared_files(paths: list[str], others: list[str], by_content: bool) -> int:
    """Count the files that are among `others`, too, by path and, if asked, by content."""
    known = {os.path.realpath(path) for path in others}
    shared = [os.path.realpath(path) in known for path in paths]
    if by_content:
        # only files of equal size are read
        present = [path for path in others if os.path.isfile(path)]
        sizes = {path: os.path.getsize(path) for path in (*paths, *present) if os.path.isfile(path)}
        my_sizes = {sizes.get(path) for path in paths}
        their_sizes = {sizes[path] for path in present}
        digests = {file_digest(path) for path in present if sizes[path] in my_sizes}
        for k, path in enumerate(paths):
            if not shared[k] and sizes.get(path) in their_sizes:
                shared[k] = file_digest(path) in digests
    return sum(shared)


class Photos:
    """Image files, decoded to RGB and transformed as in VSE++: (B, 3, 224, 224)."""

    parallel = True  # worker processes help to read them
    dim = None
    regions = None

    def __init__(self, paths: list[str], advice: str = HELP):
        """advice: what to do where photos are missing, for a sentence."""
        self.paths = paths
        self.advice = advice

    def __len__(self) -> int:
        return len(self.paths)

    def cut(self, n: int) -> None:
        """Keep the first n photos."""
        self.paths = self.paths[:n]

    def open(self, i: int, most: int | None = None) -> Image.Image:
        """Read photo i, see `read_photo`."""
        return read_photo(self.paths[i], most)

    def build_transform(self):
        """Build what prepares a photo to be tested: photo -> (3, 224, 224)."""
        return eval_transform()

    def build_augmentation(self, crop_size: int):
        """Build what prepares a photo to be trained on, at random: photo -> (3, crop, crop)."""
        return training_transform(crop_size)

    def gather(self, index) -> Tensor:
        """Read photos `index` (B,) as they are tested, VSE++'s middle: (B, 3, 224, 224)."""
        transform = self.build_transform()
        return torch.stack([transform(self.open(int(i))) for i in index])

    def augment(self, pairs, crop_size: int, seed: tuple) -> Tensor:
        """Crop and flip photos of (caption, image) (B, 2) at random: (B, 3, crop, crop).

        The random numbers follow from (seed, caption) alone; workers or resuming change nothing.
        """
        transform = self.build_augmentation(crop_size)
        photos = []
        with torch.random.fork_rng(devices=[]):
            for caption, image in pairs:
                sequence = np.random.SeedSequence([*seed, int(caption)])
                state = sequence.generate_state(1, np.uint64)
                # torch.manual_seed would seed CUDA's, too
                torch.default_generator.manual_seed(int(state[0]))
                photos.append(transform(self.open(int(image))))
        return torch.stack(photos)

    def faults(self, deep: bool = False):
        """Yield sentences on photos that are missing and, where `deep`, unreadable."""
        missing = [path for path in self.paths if not os.path.isfile(path)]
        if missing:
            yield (
                f"{len(missing)} of {len(self)} photos are missing (first: {missing[0]}); "
                f"{self.advice}"
            )
        if not deep:
            return
        for i in tqdm(range(len(self)), desc="photos", disable=None):
            try:
                if os.path.isfile(self.paths[i]):
                    self.open(i)
            except InputError as error:
                yield str(error)

    def doubts(self, deep: bool = False):
        """Yield nothing; see `Features.doubts`."""
        yield from ()

    def describe(self) -> str:
        """Say where the photos are."""
        return f"photos in {os.path.dirname(self.paths[0])}"

    def digest(self) -> str:
        """Return a checksum of the names of the files."""
        return sha256("\n".join(map(os.path.basename, self.paths)))


class NoImages(Features):
    """Images that are missing, with captions: features of no numbers."""

    def __init__(self, count: int):
        self.step = 1
        self.counts = None
        self.array = np.empty((count, 0), np.float32)
        self.dim = 0
        self.regions = None

    def faults(self, deep: bool = False):
        yield from ()

    doubts = faults

    def scan(self, deep: bool = False) -> None:
        return None

    def describe(self) -> str:
        return "no images: text only"

    def digest(self) -> str:
        return sha256(f"{len(self)} images of which only captions are there")


def count_repeats(array: np.ndarray, path: str) -> int:
    """Count the rows in succession of each image, equal but for noise: 5 in VSE++'s files, else 1.

    0 where all rows are equal, so that nothing tells. The first 128 rows and 32 samples of 16 are
    compared with the row before. Raises InputError where images differ.
    """
    count = len(array)
    starts = np.linspace(0, max(0, count - 17), 32).astype(int)[:, None]
    rows = np.union1d(np.arange(1, 128), starts + np.arange(1, 17))
    rows = rows[rows < count]  # (K,)
    gaps = np.array([measure_gap(array, row) for row in rows])  # (K,)

    # a network that ran anew for each caption leaves noise between the rows of an image, but not
    # between ids
    noise = 0
    if array.dtype.kind == "f" and count > 1:
        noise = ROW_NOISE * np.quantile(gaps, 0.9)
    changes = gaps > noise  # (K,): begins another image
    begins = rows[changes].tolist()
    if not begins:
        return 0

    step = math.gcd(count, *begins)
    if step == 1 and (~changes).mean() > 0.4:
        first = begins[0]
        odd = next((row for row in begins if row % first), first)
        raise InputError(
            f"some images of {path} stand in several equal rows and others do not (the one up to "
            f"row {odd - 1}); repeat every image once for each of its captions, or none"
        )
    return step


def measure_gap(array: np.ndarray, row: int) -> float:
    """Return the distance between a row and the row before."""
    with np.errstate(over="ignore"):
        difference = np.subtract(array[row], array[row - 1], dtype=np.float64)
        return np.linalg.norm(np.nan_to_num(difference, posinf=0, neginf=0))
