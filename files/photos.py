"""Reading photos of any common format, whole or small; and the import of torchvision, which crops
and scales them."""
import contextlib
import functools
import sys

import numpy as np
import torch
from PIL import Image, ImageOps

from cli import InputError, reason
from files.reading import FAULTS

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
