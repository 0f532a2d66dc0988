"""captions.csv: makes a folder of photos a data set to train on, with splits train, dev and test.

Its header is name,caption, and each row a photo's path below the folder and one caption of it. Excel's files are read:
UTF-8 with or without a byte order mark, commas or semicolons or tabs, quotes, and line breaks within a caption.
"""
import csv
import hashlib
import io
import os

import numpy as np

from cli import InputError, reason
from files.reading import read_array, read_text
from files.writing import mapped, save_lines

PARTS = ("train", "dev", "test")
SHARES = (0.8, 0.9, 1.0)              # a photo whose hash, 0 to 1, lies below these is of train, dev, test
TINY = 30                             # photos; the splits of fewer are of little use
ROWS = 1024                           # rows copied at a time


def part_of_photo(name: str) -> str:
    """The split of a photo, from a hash of its name alone, so that other photos never change it."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2 ** 64
    return next(part for part, below in zip(PARTS, SHARES) if share < below)


def read_table(path: str) -> list[tuple[str, str]]:
    """The rows (name, caption) of a table with the header name,caption. Raises InputError on anything else."""
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    rows = []
    try:
        for fields in reader:
            while len(fields) > 2 and not fields[-1].strip():
                fields.pop()                                # empty columns that a spreadsheet adds
            if any(field.strip() for field in fields):
                rows.append((reader.line_num, [field.strip() for field in fields]))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {reason(error)}; save it as CSV with quotes around captions "
                         "that have commas, quotes or line breaks") from error
    header = rows[0][1] if rows else []
    if [field.lower() for field in header] != ["name", "caption"]:
        raise InputError(f"{path} begins with {ascii(first.strip())[:60]}; its first line has to be name,caption")
    for line, fields in rows[1:]:
        if len(fields) != 2:
            raise InputError(f"{path}, line {line}: it has {len(fields)} fields and the header has 2, name and "
                             "caption; put a caption with commas into quotes")
    return [(name, caption) for _, (name, caption) in rows[1:]]


class Captions:
    """The captions of a table for the photos `names`. `told`: what all_photos.json records of it.

    Photos that have fewer captions than others are made equal: the least number counts, or `per_image`.
    Raises InputError if the table cannot be read or has no caption of these photos.
    """

    def __init__(self, path: str, names: list[str], per_image: int | None):
        self.path, self.per_image = path, per_image
        self.of_photo, known, self.unknown = {}, set(names), []
        rows = read_table(path)
        for name, caption in rows:
            name = name if name in known else name.replace("\\", "/")
            if name not in known:
                self.unknown.append(name)
            elif caption:
                self.of_photo.setdefault(name, []).append(caption)
        if not self.of_photo:
            first = (f"; its first name is {ascii(self.unknown[0])}, a photo's is {ascii(names[0])}" if self.unknown
                     else "")
            raise InputError(f"{path} has no caption of the {len(names):,} photos{first}; names are paths below the "
                             "folder of the photos, with /")
        with open(path, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()[:12]
        self.told = {"file": os.path.abspath(path), "digest": digest, "per_image": per_image}

    def parts(self, names: list[str]) -> dict[str, list[tuple[int, str, list[str]]]]:
        """{split: [(row, name, captions)]} of the photos `names` (N,), which are the rows of the features.

        Raises InputError if a split would have no photo.
        """
        having = [(row, name, self.of_photo[name]) for row, name in enumerate(names) if name in self.of_photo]
        least = self.per_image or min((len(captions) for _, _, captions in having), default=0)
        whole = [(row, name, captions[:least]) for row, name, captions in having if len(captions) >= least]
        self.without = [name for name in names if name not in self.of_photo]
        self.short = [name for _, name, captions in having if len(captions) < least]
        self.each = least
        self.dropped = sum(max(0, len(captions) - least) for _, _, captions in having)
        found = {part: [entry for entry in whole if part_of_photo(entry[1]) == part] for part in PARTS}
        empty = [part for part in PARTS if not found[part]]
        if empty:
            raise InputError(f"{self.path}: of {len(whole):,} photos with captions none is of {' and '.join(empty)} "
                             "(the names decide: 80% train, 10% dev, 10% test); add photos with captions"
                             + (", or give a smaller --captions_per_image" if self.short else ""))
        self.counts = {part: len(entries) for part, entries in found.items()}
        return found

    def report(self) -> list[str]:
        """Lines on what became of the table, once `parts` was called."""
        counts, lines = self.counts, []
        lines.append(f"{self.path}: " + ", ".join(f"{part} {n:,}" for part, n in counts.items())
                     + f" photos with {self.each} caption{'s' * (self.each > 1)} each")
        for what, names in (("photos without a caption, in no split", self.without),
                            (f"photos with fewer than {self.each} captions, in no split", self.short),
                            ("captions of photos that are not there", self.unknown)):
            if names:
                lines.append(f"note: {what}: {len(names):,}, the first: {ascii(names[0])}")
        if self.dropped:
            lines.append(f"note: {self.dropped:,} captions left out, as every photo needs the same number, "
                         f"{self.each}; --captions_per_image N asks for N and leaves out photos with fewer")
        if sum(counts.values()) < TINY:
            lines.append(f"note: with {sum(counts.values())} photos the splits are tiny; results on them say little")
        return lines


def write_pairs(folder: str, parts: dict, features: str) -> None:
    """Write {split}_caps.txt, _ids.txt and _ims.npy of the splits of `Captions.parts`, with rows of `features`."""
    array = read_array(features, "extract again")
    for part, entries in parts.items():
        start = os.path.join(folder, part)
        save_lines(f"{start}_caps.txt", [caption for _, _, captions in entries for caption in captions])
        save_lines(f"{start}_ids.txt", [name for _, name, _ in entries])
        rows = np.array([row for row, _, _ in entries])
        with mapped(f"{start}_ims.npy", (len(rows), *array.shape[1:]), array.dtype) as out:
            for k in range(0, len(rows), ROWS):
                out[k:k + ROWS] = array[rows[k:k + ROWS]]
