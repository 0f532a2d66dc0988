"""Folder of one's own photos, and their captions.csv.

captions.csv makes the folder a data set to train on. Its header is name,caption, and each row a photo's path below the
folder and one caption of it. Excel's files are read: commas, semicolons or tabs, quotes, line breaks within a caption.
"""
import csv
import fnmatch
import io
import os
import re
from collections import defaultdict

from PIL import Image

from cli import InputError, check, reason
from data import NO_CAPTION, compose_name
from files import read_text, sha256
from images import can_decode, photo_formats

HEIF = {".heic", ".heif"}             # where pillow-heif is installed
RAW = {".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mos", ".mrw",
       ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"}
OTHER_PHOTOS = dict.fromkeys(HEIF, "photos of .heic, which are read after pip install pillow-heif")
OTHER_PHOTOS |= dict.fromkeys(RAW, "RAW photos, which are found once they are exported as JPEG")
# Folders of a NAS, of Windows or of Linux: thumbnails and what was deleted.
NO_PHOTOS = {"@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "recycler", "system volume information",
             "lost+found", "__macosx"}
CAPTIONS = "captions.csv"
SHARES = {"train": 0.8, "dev": 0.9, "test": 1.0}            # split: below which share a photo's hash, 0 to 1, lies


# ---- photos

def count_photos(n: int) -> str:
    return f"{n:,} photo{'s' * (n != 1)}"


def matches(name: str, pattern: str) -> bool:
    """True if a photo's path, its name, or a folder above it fits a pattern with * and ?.
    Accents count as NFC or NFD."""
    name, pattern = compose_name(name), compose_name(pattern).rstrip("/")
    parts = name.split("/")
    paths = ["/".join(parts[:k + 1]) for k in range(len(parts))]
    return any(path == pattern or fnmatch.fnmatchcase(path, pattern) for path in [*paths, *parts])


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


def is_other_photo(path: str, ending: str) -> bool:
    """True if a file named as one of OTHER_PHOTOS is read all the same: by a preview, or as a JPEG."""
    return ending in OTHER_PHOTOS and can_decode(path)


def find_photos(folder: str, skip_broken: bool = False, exclude=(),
                list_all: bool = False) -> tuple[list[str], list[str]]:
    """Find photos below a folder by their endings; note what is left out, the first or with `list_all` all of it.

    Photos are paths in the folder with /, sorted. Left out are hidden files and folders, NO_PHOTOS, what fits a pattern
    of `exclude` by its name or its path, other files, names that are no UTF-8 in one line, and symbolic links, which
    may lead out of the folder. Raises InputError for a folder without photos, and for one that cannot be read; with
    `skip_broken` only for `folder` itself.
    """
    check(os.path.isdir(folder), f"{folder} is not a folder; give the folder that holds your photos")
    root, folders, photos = os.path.realpath(folder), [""], []
    formats, omitted = photo_formats(), defaultdict(list)
    endings = {ending for ending, kind in Image.registered_extensions().items() if kind in formats} | {".mpo", ".dib"}
    while folders:
        inside = folders.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, inside)), key=lambda entry: entry.name)
        except OSError as error:
            check(inside and skip_broken, f"the folder {ascii(os.path.join(folder, inside))} cannot be read "
                                          f"({reason(error)}); give yourself the permission, or move it away")
            omitted["folders that cannot be read"].append(inside)
            continue
        for entry in entries:
            name, ending = inside + entry.name, os.path.splitext(entry.name)[1].lower()
            if entry.name.startswith(".") or entry.name.lower() in NO_PHOTOS or name == CAPTIONS:
                continue
            if any(matches(name, pattern) for pattern in exclude):
                omitted["files and folders that --exclude names"].append(name)
            elif entry.name[0] == "\ufeff" or re.search("[\ud800-\udfff\r\n]", entry.name):
                omitted["names that are no UTF-8 or have a line break"].append(name)
            elif entry.is_symlink():
                omitted["symbolic links"].append(name)
            elif entry.is_dir():
                folders.append(f"{name}/")
            elif ending in endings and entry.is_file() or is_other_photo(entry.path, ending):
                photos.append(name)
            else:
                omitted[OTHER_PHOTOS.get(ending, "other files")].append(name)
    notes = describe_omitted(omitted, list_all)
    check(photos, f"{folder} holds no photo ({'; '.join(notes) or 'it is empty'}); photos are files whose names end "
                  "with .jpg, .png, .webp or another ending of photos")
    return sorted(photos), notes


# ---- captions

def assign_split(name: str) -> str:
    """Choose the split of a photo by a hash of its name alone."""
    share = int(sha256(name)[:16], 16) / 2 ** 64
    return next(split for split, below in SHARES.items() if share < below)


def read_caption_table(path: str) -> list[list[str]]:
    """Read the rows [name, caption] of a table with the header name,caption."""
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    rows = []
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            while len(fields) > 2 and not fields[-1]:
                fields.pop()                                # empty columns of a spreadsheet
            if any(fields):
                rows.append(fields)
                check(len(rows) == 1 or len(fields) == 2,
                      f"{path}, line {reader.line_num}: it has {len(fields)} fields and the header has 2, name and "
                      "caption; put a caption with commas into quotes")
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {reason(error)}; save it as CSV with quotes around captions "
                         "that have commas, quotes or line breaks") from error
    check(rows and [field.lower() for field in rows[0]] == ["name", "caption"],
          f"{path} begins with {ascii(first.strip())[:60]}; its first line has to be name,caption")
    return rows[1:]


def read_captions(path: str, names: list[str], per_image: int | None) -> tuple[dict[str, dict], list[str]]:
    """Read captions of photos, {split: {name: captions}}; note what is left out.

    Each photo gets equally many: `per_image`, or the least number of a photo with captions. Raises InputError where the
    table cannot be read, has no caption of these photos, or leaves a split empty.
    """
    photos = {compose_name(name): name for name in names}
    captions, omitted = defaultdict(list), defaultdict(list)
    for name, caption in read_caption_table(path):
        photo = photos.get(compose_name(name)) or photos.get(compose_name(name.replace("\\", "/")))
        if photo is None:
            omitted["captions of photos that are not there"].append(name)
        elif caption.lower() in NO_CAPTION:
            omitted["captions that are empty, nan, null or None"].append(name)
        else:
            captions[photo].append(caption)
    faults = "; ".join(describe_omitted(omitted)) or "it has its header alone"
    check(captions, f"{path} has no caption of the {count_photos(len(names))}, such as {ascii(names[0])} ({faults}); "
                    "names are paths below the folder of the photos, with /")
    least = per_image or min(map(len, captions.values()))
    splits = {split: {} for split in SHARES}
    for name in names:
        texts = captions.get(name, ())
        if len(texts) >= least:
            splits[assign_split(name)][name] = texts[:least]
        else:
            omitted[f"photos with fewer than {least} captions"].append(name)
        if len(texts) > least:
            omitted[f"captions of photos with more than {least} (--captions_per_image N keeps N)"] += texts[least:]
    empty = [split for split in SHARES if not splits[split]]
    check(not empty, f"{path}: no photo with captions, at least {least}, is of {' and '.join(empty)} (names decide: "
                     "80% train, 10% dev, 10% test); add photos with captions, or give a smaller --captions_per_image")
    return splits, describe_omitted(omitted)
