"""Images of a split: features, or photos with the transforms of VSE++."""
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

from cli import InputError, check
from files import HELP, file_digest, need, open_plain, read_array, refusing, sha256

JPEG = b"\xff\xd8\xff"               # how its files begin
SMALL = 64                            # pixels a side that show whether a file is a photo
CUT = "cut"                           # the mark of a photo of which a part is lost, in its `info`
TOLERANT = threading.Lock()           # of Pillow's switch for damaged files
LARGE = 1 << 30                       # bytes of a file that worker processes help to read, and that stay mapped
SCANNED, PART = 4 << 30, 1 << 28      # bytes of a file that training checks for NaN, and that are checked at a time
NOISE = 0.01                          # two rows of one image differ by less of the distance between two images
HASHED = 512                          # numbers of an image, at equal distances, that its code is of, or more
CONSTANT = 1e-5                       # variance of all images, as a share of their mean square, of a failed extraction
REPEATED = 0.02                       # share of images with the features of another one from which it is said
SQUARABLE = 1e18                      # float32 can add up the squares of smaller numbers
MANY_REGIONS = 256                    # more vectors an image than numbers a vector: channels stand before regions
AGAIN = "write it again with np.save(path, array.astype(np.float32))"
# formats whose reading starts no other program
PHOTO_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")


def read_photo(path: str, most: int | None = None, may_be_cut: bool = False) -> Image.Image:
    """Read a photo in RGB of 8 bits, turned as its EXIF tag says. Raises InputError.

    Faults beside the pixels, in EXIF or texts, count for nothing.

    Args:
        most: largest number of pixels a side of the result; a large JPEG is then decoded small, in
            a fraction of the time and memory.
        may_be_cut: a photo of which a part is lost is read as far as it goes, and `is_cut` of it.
    """
    advice = "replace it or fetch it again"
    with (refusing(f"the photo {path} cannot be read", advice),
          open_plain(need(path, advice)) as file):
        photo = decode_photo(file, most)
        if is_cut(photo) and not may_be_cut:
            raise OSError("a part of it is lost")
    return photo


def decode_photo(file: BinaryIO, most: int | None = None) -> Image.Image:
    """Decode a photo as `read_photo` does, cut or not. Raises what Pillow raises, of many kinds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                     # Pillow's name no photo
        try:
            photo = convert_rgb(open_image(file, most))
        except Image.DecompressionBombError:
            raise
        except Exception as error:
            file.seek(0)
            with tolerant_pillow():
                photo = convert_rgb(open_image(file, most))
            if all(low == high for low, high in photo.getextrema()):
                raise error                                 # no pixel is there
            if isinstance(error, OSError) and not isinstance(error, UnidentifiedImageError):
                photo.info[CUT] = has_plain_edge(photo)     # else the fault is beside the pixels
    if most:
        photo.thumbnail((most, most))
    return photo


def has_plain_edge(photo: Image.Image) -> bool:
    """True if the first or the last row of pixels has one colour, as Pillow fills what is lost."""
    edges = [photo.crop((0, row, photo.width, row + 1)) for row in (0, photo.height - 1)]
    return any(edge.getcolors(1) is not None for edge in edges)


def is_cut(photo: Image.Image) -> bool:
    """True of a photo that was read, if a part of its pixels is lost."""
    return photo.info.get(CUT, False)


@contextlib.contextmanager
def tolerant_pillow():
    """Let Pillow read damaged files as far as they go, within a context.
    It knows one switch for all threads, so others may meanwhile read such files, too."""
    with TOLERANT:
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False


def open_image(file: BinaryIO, most: int | None = None) -> Image.Image:
    """Open an image of PHOTO_FORMATS.
    A JPEG of more pixels than Pillow reads, or than `most` a side, is decoded small."""
    first = file.read(len(JPEG))
    file.seek(0)
    if first != JPEG:
        return Image.open(file, formats=photo_formats())
    image, limit = JpegImageFile(file), 2 * Image.MAX_IMAGE_PIXELS               # Image.open would refuse before draft
    excess = image.width * image.height / limit
    scale = 2 ** math.ceil(math.log(excess, 4)) if excess > 1 else 1
    if most or scale > 1:
        image.draft(None, (most, most) if most else (image.width // scale, image.height // scale))
    if image.width * image.height > limit:
        raise Image.DecompressionBombError(f"it has {excess * limit:,.0f} pixels")
    return image


def can_decode(path: str) -> bool:
    """True if a file is a photo by its bytes, whatever its name says."""
    try:
        with open_plain(path) as file:
            decode_photo(file, SMALL)
    except Exception:
        return False
    return True


def read_year(photo: Image.Image) -> str:
    """The year in which a photo was taken by its EXIF data, or ""."""
    with contextlib.suppress(Exception):                    # broken EXIF says nothing
        exif = photo.getexif()
        times = exif.get_ifd(ExifTags.IFD.Exif)
        date = times.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime) or ""
        if year := re.match(r"(19|20)\d\d(?=:)", date):
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
    """Turn as EXIF says and convert to RGB of 8 bits; of 16, which Pillow cuts, scaled."""
    image.load()
    with contextlib.suppress(Exception):                    # a broken EXIF turns nothing
        ImageOps.exif_transpose(image, in_place=True)
    if not image.mode.startswith(("I", "F")):
        image.info.pop("transparency", None)                # a palette's, of which Pillow warns
        return image.convert("RGB")
    if ";16" not in image.mode:
        raise ValueError(f"its pixels have Pillow's mode {image.mode}, which does not tell the value of white")
    return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8)).convert("RGB")


def import_torchvision():
    """Import torchvision, also beside a CPU-only torch.
    There the import fails at two detection operators that nothing here calls; declaring them is enough."""
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


def eval_transform():
    """Build VSE++'s transform of evaluation: short side 256, middle 224 x 224."""
    return build_transform(lambda t: [t.Resize(256), t.CenterCrop(224)])


def whole_transform(side: int = 224):
    """Build a transform that resizes the whole photo to a square, out of shape."""
    return build_transform(lambda t: [t.Resize((side, side))])


def build_transform(first):
    """Build photo -> (3, H, W). first: torchvision.transforms -> the first steps."""
    import_torchvision()
    from torchvision import transforms as t
    return t.Compose([*first(t), t.ToTensor(), t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])


# ---- images of a split: features, photos, or none

class Scan(NamedTuple):
    """What one pass over the features of N images finds."""
    faults: list[str]                 # sentences on NaN and infinity
    zero: list[int]                   # rows of the file that hold only zeros
    padded: int                       # images some of whose regions hold only zeros
    filled: float                     # regions that hold other numbers, mean over the images
    spread: float                     # variance over the images, as a share of their mean square
    codes: np.ndarray                 # (N,) int32: equal for equal images; 0 for zeros and unread ones


class Features:
    """File of features, (N, F) or (N, P, F), float16 or float32, mapped into memory."""
    _scan: Scan | None = None

    def __init__(self, path: str):
        self.path, self.step, self.resident = path, 1, 0    # the row of image i is i * step; bytes read of the map
        self.array = read_array(path, AGAIN)
        shape, dtype = self.array.shape, self.array.dtype
        check(dtype.kind == "f" and len(shape) in (2, 3) and 0 not in shape,
              f"{path} holds {dtype} of shape {shape}; features are floats, (images, F) or (images, regions, F)")

    def cut(self, n: int) -> None:
        """Keep the first n images."""
        self.array, self._scan = self.array[:n * self.step], None

    def __len__(self) -> int:
        return len(self.array) // self.step

    shape = property(lambda self: self.array.shape[1:])               # of one image's features: (F,) or (P, F)
    dim = property(lambda self: self.array.shape[-1])
    regions = property(lambda self: self.array.shape[1] if self.array.ndim == 3 else None)         # P
    # worker processes help to read a large file; they share its map where they are forked
    parallel = property(lambda self: self.array.nbytes > LARGE and sys.platform == "linux")
    length = property(lambda self: np.ones(len(self), np.int64))      # (M,), as of vocab.Tokens: features of captions

    def gather(self, index) -> Tensor:
        """Read features of images `index` (B,): (B, F) or (B, P, F) float32, finite."""
        rows = np.asarray(index) * self.step
        with np.errstate(over="ignore"):
            features = torch.from_numpy(self.array[rows].astype(np.float32, copy=False))
        if not torch.isfinite(torch.linalg.vector_norm(features)):
            usable = (features.abs() <= SQUARABLE).flatten(1).all(1).numpy()        # also False for NaN
            if not usable.all():
                raise InputError(f"{self.path} holds NaN or infinity in row {rows[usable.argmin()]}, or numbers above "
                                 f"{SQUARABLE:g}, whose squares float32 cannot add up; extract that image again")
        self.resident += features.nbytes
        if self.resident > LARGE and isinstance(self.array, np.memmap):     # release pages, which the system may cache
            self.array._mmap.madvise(mmap.MADV_DONTNEED)
            self.resident = 0
        return features

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) as features (B, F) and lengths (B,), which are all 1."""
        return self.gather(index), torch.ones(len(index), dtype=torch.int64)

    def faults(self, deep: bool = False):
        """Yield sentences on faults of the file. deep: also read files above SCANNED."""
        if self.regions and self.regions >= MANY_REGIONS and self.regions > self.dim:
            yield (f"{self.path} has {self.regions:,} regions of {self.dim} numbers an image: its axes look turned, "
                   "channels before regions; save array.transpose(0, 2, 1)")
        scan = self.scan(deep)
        if scan:
            yield from scan.faults

    def doubts(self, deep: bool = False):
        """Yield (whether it is a fault, sentence) on features that can be read and look wrong."""
        scan, count = self.scan(deep), len(self)
        if scan is None:
            return
        if scan.zero:
            yield True, (f"{self.path} holds only zeros for {len(scan.zero):,} of {count:,} images, the first is row "
                         f"{scan.zero[0]}; their extraction failed, so extract them again")
        if scan.spread < CONSTANT and len(scan.zero) < count > 1:
            yield True, (f"{self.path} has the same features for all {count:,} images (their variance is "
                         f"{scan.spread:.2g} of their mean square), so nothing tells the images apart; extract them "
                         "again")
        elif (repeated := self.count_repeated(scan.codes)) >= REPEATED * count > 0:
            yield 2 * repeated > count, (
                f"{self.path} has the features of an earlier image for {repeated:,} of {count:,} images; nothing tells "
                "these apart, so look whether their extraction failed")
        if scan.padded:
            yield False, (f"{self.path} has regions of zeros alone in {scan.padded:,} of {count:,} images "
                          f"({scan.filled:.1f} of {self.regions} regions are filled on average); such padding is "
                          "pooled and attended to like any region")

    def count_repeated(self, codes: np.ndarray) -> int:
        """Count the images that equal an earlier one, but for zeros. codes (N,): of `Scan`."""
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        rows = np.flatnonzero((codes != 0) & (first[inverse] != np.arange(len(codes))))
        if len(rows) < REPEATED * len(codes):
            return 0
        return count_equal(self, rows, self, first[inverse[rows]])

    def scan(self, deep: bool = False) -> Scan | None:
        """Read all features once; None for a file above SCANNED unless `deep`."""
        if self._scan is None and (deep or self.array.nbytes <= SCANNED):
            self._scan = self._read_all()
        return self._scan

    def _read_all(self) -> Scan:
        count, faults, zero, padded, filled = len(self), [], [], 0, 0
        total, square, read = 0.0, 0.0, 0
        codes = np.zeros(count, np.int32)
        for chunk in np.array_split(np.arange(count), self.array.nbytes // PART + 1):
            try:
                features = self.gather(chunk)                                       # (B, F) or (B, P, F)
            except InputError as error:
                faults.append(str(error))
                continue
            rows = features.flatten(1)                                              # (B, C)
            used = features.any(-1)                                                 # (B,) or (B, P)
            some = used if used.ndim == 1 else used.any(1)                          # (B,)
            if used.ndim == 2:
                padded += int((some & ~used.all(1)).sum())
                filled += int(used.sum())
            zero += (chunk[~some.numpy()] * self.step).tolist()
            codes[chunk] = np.where(some.numpy(), hash_rows(rows), 0)
            total = total + rows.sum(0).double()
            square += float(torch.linalg.vector_norm(rows)) ** 2
            read += len(chunk)

        spread = 1.0
        if square > 0:
            spread = max(0.0, 1 - float((total / read).square().sum()) * read / square)
        return Scan(faults, zero, padded, filled / max(1, read), spread, codes)

    def describe(self) -> str:
        sample = self.array[np.linspace(0, len(self.array) - 1, 256).astype(int)].astype(np.float64)
        with np.errstate(over="ignore"):
            norm = np.linalg.norm(sample, axis=-1).mean()
        return (f"features {self.array.shape} {self.array.dtype}, mean l2 norm {norm:.2f}"
                + (f", each row repeated {self.step} times" if self.step > 1 else ""))

    def digest(self) -> str:
        sample = np.unique(np.linspace(0, len(self.array) - 1, 64).astype(int))
        return sha256(f"{self.array.shape} {self.array.dtype}", self.array[sample])


def hash_rows(rows: Tensor) -> np.ndarray:
    """Hash HASHED numbers or more of float32 rows (N, C): (N,) int32, equal for equal rows."""
    step = max(1, rows.shape[1] // HASHED)
    bits = rows[:, ::step].contiguous().view(torch.int32).numpy()
    weights = np.random.default_rng(0).integers(-2 ** 31, 2 ** 31, bits.shape[1], np.int32) | 1
    return bits @ weights                                   # products and sums wrap


def count_equal(images: "Features", rows: np.ndarray, others: "Features", partners: np.ndarray) -> int:
    """Count the images at rows (K,) that equal the others at partners (K,)."""
    size = max(1, PART // (4 * math.prod(images.shape)))    # images that are compared at a time
    count = 0
    for k in range(0, len(rows), size):
        a, b = images.gather(rows[k:k + size]), others.gather(partners[k:k + size])
        count += int((a == b).flatten(1).all(1).sum())
    return count


def count_shared(images, others, deep: bool = False) -> int:
    """Count the images that are among `others`, too: equal features, or one file.

    deep: photos of equal bytes are one, too; and files of features above SCANNED are read.
    """
    if isinstance(images, Photos) and isinstance(others, Photos):
        return count_shared_files(images.paths, others.paths, deep)
    if not (isinstance(images, Features) and isinstance(others, Features)) or images.shape != others.shape:
        return 0
    mine, theirs = images.scan(deep), others.scan(deep)
    if mine is None or theirs is None:
        return 0

    order = np.argsort(theirs.codes, kind="stable")
    rising = theirs.codes[order]
    rows = np.flatnonzero(np.isin(mine.codes, rising) & (mine.codes != 0))
    partners = order[np.searchsorted(rising, mine.codes[rows])]
    return count_equal(images, rows, others, partners)


def count_shared_files(paths: list[str], others: list[str], by_content: bool) -> int:
    """Count the files that are among `others`, too, by where they are and, if asked, by content."""
    known = {os.path.realpath(path) for path in others}
    shared = [os.path.realpath(path) in known for path in paths]
    if by_content:
        present = [path for path in others if os.path.isfile(path)]
        sizes = {path: os.path.getsize(path) for path in (*paths, *present) if os.path.isfile(path)}
        mine = {sizes.get(path) for path in paths}
        digests = {file_digest(path) for path in present if sizes[path] in mine}
        theirs = {sizes[path] for path in present}
        for k, path in enumerate(paths):
            if not shared[k] and sizes.get(path) in theirs:
                shared[k] = file_digest(path) in digests
    return sum(shared)


class Photos:
    """Image files, decoded to RGB and transformed as in VSE++: (B, 3, 224, 224)."""
    parallel, dim, regions = True, None, None

    def __init__(self, paths: list[str], advice: str = HELP):
        """advice: what to do where photos are missing, for a sentence."""
        self.paths = paths
        self.advice = advice

    def __len__(self) -> int:
        return len(self.paths)

    def cut(self, n: int) -> None:
        self.paths = self.paths[:n]

    def open(self, i: int, most: int | None = None) -> Image.Image:
        return read_photo(self.paths[i], most)

    def gather(self, index) -> Tensor:
        """Read the middle of photos `index` (B,): (B, 3, 224, 224)."""
        transform = eval_transform()
        return torch.stack([transform(self.open(int(i))) for i in index])

    def augment(self, pairs, crop_size: int, seed: tuple) -> Tensor:
        """Crop and flip photos of (caption, image) (B, 2) at random: (B, 3, crop, crop).
        The random numbers follow from (seed, caption) alone; workers or resuming change nothing."""
        photos, transform = [], build_transform(lambda t: [t.RandomResizedCrop(crop_size), t.RandomHorizontalFlip()])
        with torch.random.fork_rng(devices=[]):
            for caption, image in pairs:
                state = np.random.SeedSequence([*seed, int(caption)]).generate_state(1, np.uint64)
                torch.default_generator.manual_seed(int(state[0]))    # torch.manual_seed would seed CUDA's, too
                photos.append(transform(self.open(int(image))))
        return torch.stack(photos)

    def faults(self, deep: bool = False):
        """Yield sentences on photos that are missing and, where `deep`, unreadable."""
        missing = [path for path in self.paths if not os.path.isfile(path)]
        if missing:
            yield f"{len(missing)} of {len(self)} photos are missing, the first is {missing[0]}; {self.advice}"
        for i in tqdm(range(len(self)), desc="photos", disable=None) if deep else ():
            try:
                if os.path.isfile(self.paths[i]):
                    self.open(i)
            except InputError as error:
                yield str(error)

    def doubts(self, deep: bool = False):
        """As `Features.doubts`."""
        yield from ()

    def describe(self) -> str:
        return f"photos in {os.path.dirname(self.paths[0])}"

    def digest(self) -> str:
        return sha256("\n".join(map(os.path.basename, self.paths)))


class NoImages(Features):
    """Images that are missing, with captions: features of no numbers."""

    def __init__(self, count: int):
        self.step, self.array = 1, np.empty((count, 0), np.float32)

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
    rows = len(array)
    starts = np.linspace(0, max(0, rows - 17), 32).astype(int)[:, None]
    places = np.union1d(np.arange(1, 128), starts + np.arange(1, 17))
    places = places[places < rows]
    with np.errstate(over="ignore"):
        gaps = np.array([np.linalg.norm(np.nan_to_num(
            np.subtract(array[k], array[k - 1], dtype=np.float64), posinf=0, neginf=0)) for k in places])

    # a network that ran anew for each caption leaves noise between the rows of an image, but not between ids
    turned = gaps > (NOISE * np.quantile(gaps, 0.9) if array.dtype.kind == "f" and rows > 1 else 0)
    turns = places[turned].tolist()
    if not turns:
        return 0
    step = math.gcd(rows, *turns)
    odd = next((k for k in turns if k % turns[0]), turns[0])
    check(step > 1 or (~turned).mean() <= 0.4,
          f"some images of {path} stand in several equal rows and others do not (the one up to row {odd - 1}); repeat "
          "every image once for each of its captions, or none")
    return step
