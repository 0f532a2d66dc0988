"""Folder of one's own photos, and their captions.csv.

captions.csv makes the folder a data set to train on. Its header is name,caption, and each row has a
photo's path below the folder and one caption of it. Excel's files are read: commas, semicolons or
tabs, quotes, line breaks within a caption.
"""

import csv
import fnmatch
import io
import os
import posixpath
import re
from collections import defaultdict
from operator import attrgetter

from PIL import Image

from data import NO_CAPTION, compose_name
from images import can_decode, photo_formats
from utils import InputError, read_text, reason, sha256

HEIF_ENDINGS = (".heic", ".heif")  # read if pillow-heif is installed
RAW_ENDINGS = (
    ".3fr .arw .cr2 .cr3 .crw .dng .erf .iiq .kdc .mef .mos .mrw .nef .nrw .orf .pef .raf .raw "
    ".rw2 .rwl .sr2 .srf .srw .x3f"
).split()
OTHER_PHOTOS = {
    **dict.fromkeys(HEIF_ENDINGS, "photos of .heic, which are read after pip install pillow-heif"),
    **dict.fromkeys(RAW_ENDINGS, "RAW photos, which are found once they are exported as JPEG"),
}
# Folders of a NAS, of Windows or of Linux: thumbnails and what was deleted.
NO_PHOTOS = {
    "@eadir",
    "@recycle",
    "#recycle",
    "#snapshot",
    "$recycle.bin",
    "recycler",
    "system volume information",
    "lost+found",
    "__macosx",
}
CAPTION_TABLE = "captions.csv"
HASH_LIMITS = {"train": 0.8, "dev": 0.9, "test": 1.0}  # split: its photos' hash, 0 to 1, is below


# ---- photos


def count_photos(n: int) -> str:
    """Say a number of photos."""
    if n == 1:
        return "1 photo"
    return f"{n:,} photos"


def matches(name: str, pattern: str) -> bool:
    """True if a photo's path, its name, or a folder above it fits a pattern with *, ? and [...].

    Brackets also stand for themselves. Accents count as NFC or NFD.
    """
    name = compose_name(name)
    pattern = compose_name(pattern).rstrip("/")
    patterns = (pattern, pattern.replace("[", "[[]"))  # [13] is one of two digits, or itself
    parts = name.split("/")
    paths = ["/".join(parts[: k + 1]) for k in range(len(parts))]
    for path in [*paths, *parts]:
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            return True
    return False


def describe_omitted(omitted: dict[str, list[str]], list_all: bool = False) -> list[str]:
    """Describe {what is left out: names} in a sentence each."""
    sentences = []
    for what, names in omitted.items():
        if list_all:
            shown = "all"
            listed = ", ".join(map(ascii, sorted(names)))
        else:
            shown = "the first"
            listed = ascii(min(names))
        sentences.append(f"{what}: {len(names):,} left out, {shown}: {listed}")
    return sentences


def find_photos(
    folder: str, skip_broken: bool = False, exclude=(), list_all: bool = False
) -> tuple[list[str], list[str]]:
    """Find photos below a folder by their endings; note what is left out.

    Photos are paths in the folder with /, sorted. Left out are hidden files and folders, NO_PHOTOS,
    what fits a pattern of `exclude` by its name or its path, other files, names that are no UTF-8
    in one line, and symbolic links, which may lead out of the folder. A note names the first of
    these, or with `list_all` all.

    Raises InputError for a folder without photos, and for one that cannot be read; with
    `skip_broken` only for `folder` itself.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is not a folder; give the folder that holds your photos")

    root = os.path.realpath(folder)
    endings = list_endings()
    folders = [""]  # those to read: "", "a/", "a/b/"
    photos = []
    omitted = defaultdict(list)
    while folders:
        inside = folders.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, inside)), key=attrgetter("name"))
        except OSError as error:
            if not inside or not skip_broken:
                raise InputError(
                    f"the folder {ascii(os.path.join(folder, inside))} cannot be read "
                    f"({reason(error)}); give yourself the permission, or move it away"
                ) from error
            omitted["folders that cannot be read"].append(inside)
            continue

        for entry in entries:
            name = inside + entry.name
            hidden = entry.name.startswith(".") or entry.name.lower() in NO_PHOTOS
            if hidden or name == CAPTION_TABLE:
                continue
            why = explain_omission(entry, name, exclude)
            if why:
                omitted[why].append(name)
            elif entry.is_dir():
                folders.append(f"{name}/")
            elif is_photo(entry, endings):
                photos.append(name)
            else:
                omitted[OTHER_PHOTOS.get(file_ending(name), "other files")].append(name)

    notes = describe_omitted(omitted, list_all)
    if not photos:
        faults = "; ".join(notes) or "it is empty"
        raise InputError(
            f"{folder} holds no photo ({faults}); photos are files whose names end with .jpg, "
            ".png, .webp or another ending of photos"
        )
    return sorted(photos), notes


def list_endings() -> set[str]:
    """List the endings of photos that Pillow can read here."""
    formats = photo_formats()
    endings = {".mpo", ".dib"}
    for ending, kind in Image.registered_extensions().items():
        if kind in formats:
            endings.add(ending)
    return endings


def file_ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_photo(entry: os.DirEntry, endings: set[str]) -> bool:
    """True if a file has the ending of a photo.

    Files of OTHER_PHOTOS count if they can be read all the same: by a preview, or as a JPEG.
    """
    ending = file_ending(entry.name)
    if ending in endings and entry.is_file():
        return True
    return ending in OTHER_PHOTOS and can_decode(entry.path)


def explain_omission(entry: os.DirEntry, name: str, exclude) -> str:
    """Say why a file or folder is left out whatever it holds; "" if it is not."""
    if any(matches(name, pattern) for pattern in exclude):
        return "files and folders that --exclude names"
    if entry.name[0] == "\ufeff" or re.search("[\ud800-\udfff\r\n]", entry.name):
        return "names that are not UTF-8 or have a line break"
    if entry.is_symlink():
        return "symbolic links"
    return ""


# ---- captions


def assign_split(name: str) -> str:
    """Choose the split of a photo by a hash of its name."""
    share = int(sha256(name)[:16], 16) / 2**64
    return next(split for split, limit in HASH_LIMITS.items() if share < limit)


def read_caption_table(path: str) -> list[list[str]]:
    """Read the rows [name, caption] of a table with the header name,caption."""
    text = read_text(path)
    first_line = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(",;\t", key=first_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            while len(fields) > 2 and not fields[-1]:
                fields.pop()  # empty columns of a spreadsheet
            if not any(fields):
                continue
            if rows and len(fields) != 2:
                raise InputError(
                    f"{path}, line {reader.line_num}: it has {len(fields)} fields and the header "
                    "has 2, name and caption; put a caption with commas into quotes"
                )
            rows.append(fields)
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {reason(error)}; save it as CSV with quotes around "
            "captions that have commas, quotes or line breaks"
        ) from error

    if not rows or [field.lower() for field in rows[0]] != ["name", "caption"]:
        raise InputError(
            f"{path} begins with {ascii(first_line.strip())[:60]}; its first line has to be "
            "name,caption"
        )
    return rows[1:]


def read_captions(
    path: str, names: list[str], per_image: int | None
) -> tuple[dict[str, dict], list[str]]:
    """Read captions of photos, {split: {name: captions}}; note what is left out.

    Each photo keeps its first `per_image` captions, or all of them; photos with fewer than
    `per_image` are left out.
    Raises InputError if the table cannot be read, has no caption of these photos, or leaves a split
    empty.
    """
    photos = {compose_name(name): name for name in names}
    captions = defaultdict(list)
    omitted = defaultdict(list)
    for name, caption in read_caption_table(path):
        plain_name = posixpath.normpath(name.replace("\\", "/"))  # Windows' a\b, find's ./a/b
        photo = photos.get(compose_name(name)) or photos.get(compose_name(plain_name))
        if photo is None:
            omitted["captions of photos that are not there"].append(name)
        elif caption.lower() in NO_CAPTION:
            omitted["captions that are empty, nan, null or None"].append(name)
        else:
            captions[photo].append(caption)
    if not captions:
        faults = "; ".join(describe_omitted(omitted)) or "it has only its header"
        raise InputError(
            f"{path} has no caption of the {count_photos(len(names))}, such as {ascii(names[0])} "
            f"({faults}); names are paths below the folder of the photos, with /"
        )

    most = max(len(texts) for texts in captions.values())
    needed = per_image or 1
    number = per_image or most
    few = f"photos with fewer than {needed} captions"
    if not per_image:
        few = "photos without a caption"
    many = f"captions of photos with more than {number} (--captions_per_image N keeps N)"
    splits = {split: {} for split in HASH_LIMITS}
    for name in names:
        texts = captions.get(name, ())
        if len(texts) >= needed:
            splits[assign_split(name)][name] = texts[:number]
        else:
            omitted[few].append(name)
        if len(texts) > number:
            omitted[many] += texts[number:]

    empty = [split for split, photos in splits.items() if not photos]
    if empty:
        raise InputError(
            f"{path}: no photo with captions, at least {needed}, is of {' and '.join(empty)} "
            "(names decide: 80% train, 10% dev, 10% test); add photos with captions, or give a "
            "smaller --captions_per_image"
        )
    return splits, describe_omitted(omitted)
