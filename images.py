"""Reading of photos of any mode, depth and orientation; transforms of VSE++."""
import contextlib
import functools
import io
import math
import sys
import warnings
from typing import BinaryIO

import numpy as np
import torch
from PIL import ExifTags, Image
from PIL.JpegImagePlugin import JpegImageFile

from files import plain_file, refusing

ROTATIONS = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
             5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
             8: Image.Transpose.ROTATE_90}                  # of EXIF's orientation
PNG, JPEG, JPEG_END = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xd9"                # how their files begin and end
JPEG_BLOCK = 17                       # rows of pixels that are coded together, and one that is smoothed with them
# formats whose reading starts no other program
PHOTO_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")


def read_photo(path: str, most: int | None = None) -> Image.Image:
    """Read a photo in RGB of 8 bits, turned as its EXIF tag says.
    Raises InputError where it cannot be read.

    most: largest number of pixels a side of the result; a large JPEG is then decoded small, in a fraction of the time
    and memory. Faults beside the pixels, in EXIF or texts, count for nothing.
    """
    with (refusing(f"the photo {path} cannot be read", "replace it or fetch it again"),
          open(plain_file(path), "rb") as file):
        return decode_photo(file, most)


def decode_photo(file: BinaryIO, most: int | None = None) -> Image.Image:
    """Decode a photo as `read_photo` does.
    Raises what Pillow raises, an Exception of many kinds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                     # Pillow's name no photo
        try:
            photo = convert_rgb(turn_upright(open_image(file, most)))
        except Image.DecompressionBombError:
            raise
        except Exception:
            file.seek(0)
            data = file.read()
            mend = mend_png if data.startswith(PNG) else mend_jpeg if data.startswith(JPEG) else None
            if not mend:
                raise
            photo = convert_rgb(turn_upright(open_image(io.BytesIO(mend(data)), most)))
    if most:
        photo.thumbnail((most, most))
    return photo


def open_image(file: BinaryIO, most: int | None = None) -> Image.Image:
    """Open an image of PHOTO_FORMATS, a large JPEG decoded small.

    Large is more than Pillow reads, or than `most` pixels a side.
    """
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


def turn_upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF tag says, which a broken EXIF does not."""
    image.load()
    orientation = None
    with contextlib.suppress(Exception):
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    return image.transpose(ROTATIONS[orientation]) if orientation in ROTATIONS else image


def mend_png(data: bytes) -> bytes:
    """Keep the chunks of a PNG that its pixels and its orientation need."""
    parts, start = [PNG], len(PNG)
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start:start + 4])
        if data[start + 4:start + 8] in (b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND"):
            parts.append(data[start:end])
        start = end
    return b"".join(parts)


def mend_jpeg(data: bytes) -> bytes:
    """Put an end to a JPEG without its last bytes.
    Raises OSError where more than the last row of blocks is lost."""
    images = [np.asarray(open_image(io.BytesIO(data + rest + JPEG_END))) for rest in (b"", bytes(range(254)))]
    lost = np.not_equal(*images).reshape(len(images[0]), -1).any(1)             # (H,): it depends on what follows
    if lost[:-JPEG_BLOCK].any():
        raise OSError(f"it is cut off at {lost.argmax() / len(lost):.0%} of its height")
    return data + JPEG_END


@functools.cache
def photo_formats() -> list[str]:
    """List the PHOTO_FORMATS that the installed Pillow can read, HEIF by pillow-heif."""
    Image.init()
    with contextlib.suppress(ImportError):
        import pillow_heif  # optional: only photos of this format need it
        pillow_heif.register_heif_opener()
    return [name for name in PHOTO_FORMATS if name in Image.OPEN]


def convert_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB of 8 bits, scaling values of 16 bits.
    Pillow would cut them off at 255. Raises ValueError for integers of 32 bits and floats."""
    if not image.mode.startswith(("I", "F")):
        image.info.pop("transparency", None)                # a palette's, of which Pillow warns
        return image.convert("RGB")
    if ";16" not in image.mode:
        raise ValueError(f"its pixels have Pillow's mode {image.mode}, which does not tell the value of white")
    return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8)).convert("RGB")


def import_torchvision():
    """Import torchvision, even where the compiled part of its wheel cannot load.
    So it is beside a CPU-only torch.

    There the import fails at two detection operators that were never registered. Nothing here calls them, so it is
    enough to declare their signatures.
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


def eval_transform():
    """Build VSE++'s transform of evaluation: short side 256, middle 224 x 224."""
    return build_transform(lambda t: [t.Resize(256), t.CenterCrop(224)])


def whole_transform(side: int = 224):
    """Build a transform that resizes the whole photo to a square, out of shape."""
    return build_transform(lambda t: [t.Resize((side, side))])


def train_transform(crop_size: int):
    """Build VSE++'s transform of training: a random crop that is flipped at random."""
    return build_transform(lambda t: [t.RandomResizedCrop(crop_size), t.RandomHorizontalFlip()])


def build_transform(first):
    """Build a transform, photo -> (3, H, W), that begins with `first`.
    first: a function of torchvision.transforms."""
    import_torchvision()
    from torchvision import transforms as t
    return t.Compose([*first(t), t.ToTensor(), t.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
