"""Photos as cameras, phones and editors write them: what stands beside the pixels never refuses them."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from images import Photos, is_cut, read_photo
from utils import InputError

PHOTO = np.kron(np.random.default_rng(0).integers(0, 256, (30, 40, 3)), np.ones((8, 8, 1))).astype(
    np.uint8
)
UPRIGHT = struct.pack("<HHLHH", 0x112, 3, 1, 6, 0)  # the camera was held upright
AFTER = 8 + 2 + 2 * 12 + 4  # where values of two EXIF tags stand


def exif(*tags, values=b""):
    return (
        b"II*\0" + struct.pack("<LH", 8, len(tags)) + b"".join(tags) + struct.pack("<L", 0) + values
    )


RATIONALS = {
    "minus one": (10, struct.pack("<ll", -1, 0)),
    "zero": (5, struct.pack("<LL", 0, 0)),
    "a text": (2, b"72 dots\0"),
}
BROKEN = []
for number_kind, number_bytes in RATIONALS.values():
    count = 8 if number_kind == 2 else 1
    resolution = struct.pack("<HHLL", 0x11A, number_kind, count, AFTER)
    BROKEN.append(exif(UPRIGHT, resolution, values=number_bytes))


def file_of(form, **options):
    file = io.BytesIO()
    Image.fromarray(PHOTO).save(file, form, **options)
    return file.getvalue()


def jpeg_with(tags):
    whole = file_of("JPEG")
    segment = b"Exif\0\0" + tags
    return whole[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + whole[2:]


def png_with(*chunks, last=False):
    """A PNG with chunks (kind, data) behind its header or before its end."""
    whole = file_of("PNG")
    new = b""
    for kind, data in chunks:
        checksum = struct.pack(">L", zlib.crc32(kind + data))
        new += struct.pack(">L", len(data)) + kind + data + checksum
    position = 33  # behind the header
    if last:
        position = len(whole) - 12
    return whole[:position] + new + whole[position:]


def png_with_tags(tags):
    return png_with((b"eXIf", tags))


def webp_with(tags):
    return file_of("WEBP", lossless=True, exif=tags)


def read(tmp_path, content, name="photo"):
    (tmp_path / name).write_bytes(content)
    return np.asarray(read_photo(str(tmp_path / name)))


@pytest.mark.parametrize("tags", BROKEN, ids=RATIONALS)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_broken_resolution_leaves_the_photo_and_its_rotation(tmp_path, form, tags, recwarn):
    make = {"JPEG": jpeg_with, "PNG": png_with_tags, "WEBP": webp_with}[form]
    options = {}
    if form == "WEBP":
        options = {"lossless": True}
    plain = read(tmp_path, file_of(form, **options))

    turned = read(tmp_path, make(tags))

    assert np.array_equal(turned, np.rot90(plain, -1)) and not recwarn.list


@pytest.mark.parametrize(
    "content",
    [
        png_with((b"eXIf", b"no tags at all"), last=True),
        png_with((b"tEXt", b"Raw profile type exif\0\nexif\n  zz\nnothex")),
        png_with((b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n 99\n457869"))),
        png_with((b"zTXt", b"a\0\0" + zlib.compress(b"x" * 5_000_000))),
        png_with((b"iCCP", b"a\0\0no profile")),
        png_with((b"tEXt", b"a\0b")).replace(b"a\0b", b"a\0c"),
        png_with((b"pHYs", b"")),
        png_with((b"acTL", b"1")),
        file_of("WEBP", lossless=True, exif=b"no tags at all"),
    ],
)
def test_broken_texts_and_profiles_count_for_nothing(tmp_path, content, recwarn):
    assert np.array_equal(read(tmp_path, content), PHOTO) and not recwarn.list


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_without_its_last_bytes_is_read_whole(tmp_path, progressive):
    whole = file_of("JPEG", progressive=progressive)
    assert np.array_equal(read(tmp_path, whole[:-2]), read(tmp_path, whole))


@pytest.mark.parametrize(
    "form, share",
    [
        ("JPEG", 0.2),
        ("JPEG", 0.5),
        ("JPEG", 0.9),
        ("PNG", 0.5),
        ("GIF", 0.5),
        ("BMP", 0.5),
        ("TIFF", 0.5),
    ],
)
def test_a_photo_of_which_a_part_is_lost_is_read_where_that_is_allowed(tmp_path, form, share):
    """As far as it goes; what is left of it is that of the whole photo."""
    whole = file_of(form)
    with pytest.raises(
        InputError, match=r"the photo .*cut.jpg cannot be read \(a part of it is lost\); replace it"
    ):
        read(tmp_path, whole[: int(share * len(whole))], "cut.jpg")
    photo = read_photo(str(tmp_path / "cut.jpg"), may_be_cut=True)
    (tmp_path / "whole").write_bytes(whole)
    same = (np.asarray(photo) == np.asarray(read_photo(str(tmp_path / "whole")))).all((1, 2)).mean()
    assert is_cut(photo) and photo.size == (320, 240) and abs(same - share) < 0.12
    assert not is_cut(read_photo(str(tmp_path / "whole"))) and not ImageFile.LOAD_TRUNCATED_IMAGES


def test_what_holds_no_pixel_is_no_photo(tmp_path):
    whole = file_of("BMP")
    for content, message in (
        (b"no photo", r"\(cannot identify image file\); replace it"),
        (file_of("JPEG")[:300], "Truncated File Read"),
        (whole[:54], "image file is truncated"),
    ):
        (tmp_path / "text.jpg").write_bytes(content)
        with pytest.raises(InputError, match=f"text.jpg cannot be read .*{message}"):
            read_photo(str(tmp_path / "text.jpg"), may_be_cut=True)


def test_large_jpegs_are_decoded_small_and_bombs_refused(tmp_path, monkeypatch):
    """At a smaller limit; a phone's photo has 200 million pixels and Pillow refuses above 179 million."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    assert read(tmp_path, file_of("JPEG")).shape == (120, 160, 3)
    assert np.abs(read(tmp_path, file_of("JPEG")) - PHOTO[::2, ::2].astype(int)).mean() < 12
    for form in ("PNG", "WEBP"):
        with pytest.raises(InputError, match="exceeds limit"):
            read(tmp_path, file_of(form))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match="it has 76,800 pixels"):
        read(tmp_path, file_of("JPEG"))


# ---- as one sees them


def gradient():
    """A picture with no symmetry, (40, 60, 3)."""
    y, x = np.mgrid[:40, :60]
    return np.stack([4 * x, 6 * y, (x + y) * 2], 2).astype(np.uint8)


def test_photos_of_16_bits_are_scaled_and_those_without_a_known_white_refused(tmp_path):
    grey = gradient()[:, :, 0].astype(np.float64)
    for name in ("16.png", "16.tiff"):
        Image.fromarray((grey * 257).astype(np.uint16)).save(tmp_path / name)
        pixels = np.asarray(read_photo(str(tmp_path / name)))
        assert (
            pixels.shape == (40, 60, 3) and np.abs(pixels[:, :, 1].astype(float) - grey).max() <= 1
        )
    for kind in (np.int32, np.float32):
        Image.fromarray(grey.astype(kind)).save(tmp_path / "p.tiff")
        with pytest.raises(
            InputError, match="p.tiff cannot be read .*does not tell the value of white"
        ):
            read_photo(str(tmp_path / "p.tiff"))


@pytest.mark.parametrize(
    "form, mode",
    [
        ("PNG", "RGBA"),
        ("PNG", "1"),
        ("PNG", "PA"),
        ("WEBP", "RGB"),
        ("BMP", "RGB"),
        ("TIFF", "RGB"),
        ("GIF", "P"),
    ],
)
def test_forms_and_modes_are_read_as_pillow_converts_them(tmp_path, form, mode, recwarn):
    """A moving picture gives its first frame; palettes and transparency cause no warning."""
    image = Image.fromarray(gradient())
    if mode in ("P", "PA"):
        image = image.quantize(16)
    else:
        image = image.convert(mode)
    options = {}
    if form == "GIF":
        options = {"save_all": True, "append_images": [Image.new("P", (60, 40))]}
    elif form == "WEBP":
        options = {"lossless": True}
    elif mode == "PA":
        options = {"transparency": bytes(range(16))}
    image.save(tmp_path / "p", form, **options)

    found = np.asarray(read_photo(str(tmp_path / "p")))

    assert np.array_equal(found, np.asarray(image.convert("RGB")))
    assert not recwarn.list


def test_photos_are_transformed_as_in_vsepp(tmp_path):
    """Resize the short side to 256, cut the middle 224, ImageNet mean and deviation; grey and CMYK become RGB."""
    colour = Image.new("RGB", (300, 400), (200, 100, 50))
    colour.save(tmp_path / "rgb.png")
    colour.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    Image.new("L", (300, 300), 128).save(tmp_path / "grey.png")
    paths = [str(tmp_path / name) for name in ("rgb.png", "cmyk.jpg", "grey.png")]

    batch = Photos(paths).gather([0, 1, 2])

    assert batch.shape == (3, 3, 224, 224)
    orange = [200, 100, 50]
    for photo, value in zip(batch, (orange, orange, [128, 128, 128])):
        expected = (np.array(value) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        np.testing.assert_allclose(photo.mean((1, 2)), expected, atol=0.1)
