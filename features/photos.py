"""Features of photos as rows of a file that survive every stop, and the texts and records beside them."""
import contextlib
import hashlib
import os
import sys
import time
from stat import S_ISREG

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from cli import InputError, Stopped
from data import Split
from features.boxes import PhotoBoxes
from features.cores import by_cores
from files.reading import read_array, read_json
from files.writing import CHANGING, allocate, by_each, mapped, save_array, save_json, save_lines
from inputs import Photos, chunks, extractors, stream
from parallel import notes, processes

ROWS = 1024                           # rows copied at a time
SAVE = 20.0                           # seconds between notes of what is done
ALL = "all"                           # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")


def checksum(parts) -> str:
    """The first 12 digits of the sha256 of bytes or arrays."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return f"sha256:{digest.hexdigest()[:12]}"


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder.

    Raises InputError if such files of another extractor are there. Files of an earlier fit by the same recipe are
    deleted, so that a folder never mixes two fits.
    """
    recorded = extractors(folder)
    files = [os.path.join(folder, f"{split}_{suffix}.npy") for split in (*SPLITS, ALL)]
    files = [path for path in files if os.path.isfile(path)]
    before = recorded.get(suffix, "an extractor that no features.json names")
    if files and before.split(", fitted")[0] != line.split(", fitted")[0]:
        raise InputError(f"{files[0]} is of '{before}' and these are of '{line}'; give another name, or delete the old "
                         "files")
    for path in files if before != line else ():
        os.remove(path)
    if recorded.get(suffix) != line:
        save_json({**recorded, suffix: line}, os.path.join(folder, "features.json"))


def in_order(split: Split, per_image: int | None) -> np.ndarray:
    """Rows of the captions to write: those of an image together and equally many per image, as in precomputed data.

    per_image: number of captions per image, or None for all. Raises InputError if an image has fewer.
    """
    counts = np.bincount(split.caption_image, minlength=len(split.images))          # (N,)
    keep = per_image or int(counts.max())
    if keep < 1 or counts.min() < keep:
        raise InputError(f"the images of {split.name} have {counts.min()} to {counts.max()} captions and precomputed "
                         f"data has the same number for each, {keep} here; --captions_per_image {counts.min()} writes "
                         "the first ones")
    order = np.argsort(split.caption_image, kind="stable")                          # (M,)
    first = np.cumsum(counts) - counts                                              # (N,)
    place = np.arange(len(order)) - first[split.caption_image[order]]               # (M,): 0, 1, ... within the image
    return order[place < keep]


def photo_names(paths: list[str]) -> list[str]:
    """Names of photos. If several folders hold the same name: their paths below the folder that they share."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    return [os.path.relpath(path, os.path.commonpath(paths)) for path in paths]


def write_texts(folder: str, split: Split, order: np.ndarray, kept: np.ndarray | None = None) -> None:
    """Write captions, names of the photos and, where they are numbers, the ids of images (N,) and captions (M,).

    order: captions to write. kept: only these images, rows of the split (None: all).
    """
    start, kept = os.path.join(folder, split.name), np.arange(len(split.images)) if kept is None else kept
    names, order = photo_names(split.images.paths), order[np.isin(split.caption_image[order], kept)]
    save_lines(f"{start}_caps.txt", [split.captions[m] for m in order])
    save_lines(f"{start}_ids.txt", [names[n] for n in kept])
    if split.image_ids and isinstance(split.image_ids[0], int):
        save_array(f"{start}_img_ids.npy", np.array(split.image_ids, np.int64)[kept])
    if split.caption_ids is not None:
        save_array(f"{start}_ann_ids.npy", split.caption_ids[order])


def file_digest(path: str) -> str:
    """The first 12 digits of the sha256 of a file, or "" if it cannot be read."""
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()[:12]
    except OSError:
        return ""


# A row of a list of photos: [name, bytes, time in ns, digest], then the digest of the photo's boxes ("": none) and what
# is wrong with a photo that cannot be read. Neither is there where it is not needed.

def wrong(row: list) -> str:
    """What is wrong with the photo of a row, or ""."""
    return row[5] if len(row) > 5 else ""


def sound(row) -> bool:
    """Whether a value that was read from a list is a row of it."""
    kinds = (str, int, int, str, str, str)
    return isinstance(row, list) and 4 <= len(row) <= 6 and all(map(isinstance, row, kinds))


class PhotoReader:
    """Reads photos by their indices: (inputs, rows). inputs: what a network takes of those that can be read, (b, 3, H,
    W), and with boxes also (b, P, 4); or None. rows: what a list says of each."""

    def __init__(self, photos: Photos, names: list[str], transform, boxes: PhotoBoxes | None):
        self.photos, self.names, self.transform, self.boxes = photos, names, transform, boxes

    def __getitem__(self, index) -> tuple[tuple | None, list[list]]:
        ready, rows = [], []
        for i in map(int, index):
            path, size, time_ns = self.photos.paths[i], 0, 0
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                size, time_ns = stat.st_size, stat.st_mtime_ns
            # noted before the photo is read: one that is replaced meanwhile will look changed
            row = [self.names[i], size, time_ns, file_digest(path)]
            of_boxes = [self.boxes.digests[i]] if self.boxes else []
            try:
                photo = self.photos.open(i)
            except InputError as error:
                rows.append([*row, *(of_boxes or [""]), str(error)])
                continue
            shares = [self.boxes.shares(i, photo.size)] if self.boxes else []
            ready.append((self.transform(photo), *shares))
            rows.append(row + of_boxes)
        return tuple(map(torch.stack, zip(*ready))) if ready else None, rows


class Extraction:
    """The features of N photos, one row per photo. After any stop the next call continues.

    {name}_photos.json lists the photos of the rows of {name}_ims.npy, and those that could not be read. A listed photo
    that has not changed keeps its row, wherever it was. New rows go to a hidden file with its own list, which replace
    the old ones when everything is there. `about`: what else the list says.

    Several processes look and prepare together and `run` a part of the rows each; all else is for the first alone.
    """

    def __init__(self, folder: str, name: str, images: Photos, names: list[str], line: str, shape: tuple, dtype,
                 boxes: PhotoBoxes | None = None, about: dict | None = None):
        self.folder, self.name, self.images, self.names, self.line = folder, name, images, names, line
        self.shape, self.dtype, self.boxes, self.about = (len(names), *shape), dtype, boxes, about or {}
        self.path, self.list = (os.path.join(folder, f"{name}_{end}") for end in ("ims.npy", "photos.json"))
        self.part_list = os.path.join(folder, f".{name}_photos.part")
        self.parts = [f".{name}_ims.part", f".{name}_ims.2.part"]      # the second where photos came or went meanwhile
        self.part = self.parts[0]
        self.changing = os.path.join(folder, CHANGING.format(name))
        self.rows = [None] * len(names)                     # None: to do

    def listed(self, path: str) -> tuple[list, dict]:
        """The rows of a list of photos and the whole list, or [] and {} if it is of another extractor."""
        stored = read_json(path, "delete it and extract again") if os.path.isfile(path) else {}
        stored = stored if isinstance(stored, dict) and stored.get("extractor") == self.line else {}
        rows = stored.get("photos")
        good = isinstance(rows, list) and all(row is None or sound(row) for row in rows)
        return (rows, stored) if good else ([], {})

    def current(self, i: int, row: list | None) -> list | None:
        """The row of photo i with the time that it has now, if `row` still describes it, else None."""
        try:
            stat = os.stat(self.images.paths[i])
        except OSError:
            return None
        if not row or not row[3] or row[1] != stat.st_size or not S_ISREG(stat.st_mode) or \
                (row[4] if len(row) > 4 else "") != (self.boxes.digests[i] if self.boxes else ""):
            return None
        if row[2] != stat.st_mtime_ns and file_digest(self.images.paths[i]) != row[3]:
            return None
        return [*row[:2], stat.st_mtime_ns, *row[3:]]

    def recover(self) -> None:
        """Finish the list of features that were put in place just before a stop."""
        rows, stored = self.listed(self.part_list)
        part = os.path.join(self.folder, stored.get("file") if stored.get("file") in self.parts else self.parts[0])
        if rows and all(rows) and os.path.exists(self.changing) and os.path.isfile(self.path) and \
                not os.path.exists(part):
            self.write_list(rows)
            os.remove(self.part_list)

    def complete(self) -> bool:
        """Whether nothing is left to do. Only sizes and times of files are read where they have not changed."""
        done, self.rows = processes.from_first(lambda: (self.is_complete(), self.rows))
        return done

    def is_complete(self) -> bool:
        self.recover()
        rows, stored = self.listed(self.list)
        broken = stored.get("broken", [])
        if os.path.exists(self.changing) or not rows or not isinstance(broken, list) or not all(map(sound, broken)):
            return False
        if not os.path.isfile(self.path) or \
                read_array(self.path, "delete it and extract again").shape != (len(rows), *self.shape[1:]):
            return False
        known = {row[0]: row for row in (*rows, *broken) if row}
        found = [self.current(i, known.get(name)) for i, name in enumerate(self.names)]
        if not all(found) or [row[0] for row in found if not wrong(row)] != [row and row[0] for row in rows]:
            return False
        self.rows = found
        self.clean()
        return True

    def update_list(self) -> None:
        """Write the list of a complete extraction again, if times of files or `about` have changed."""
        now, (_, stored) = self.contents(self.rows), self.listed(self.list)
        if now != stored:
            save_json(now, self.list)

    def prepare(self) -> None:
        """Open the hidden file of new rows, with what is known."""
        self.part, self.rows = processes.from_first(self.begin)
        self.array = np.lib.format.open_memmap(os.path.join(self.folder, self.part), "r+")

    def begin(self) -> tuple[str, list]:
        """Take over what is known. Returns the name of the hidden file, and its list."""
        self.recover()
        sources, rows = [], self.listed(self.list)[0]
        if os.path.isfile(self.path):
            sources.append((read_array(self.path, "delete it and extract again"), rows))
        begun, stored = self.listed(self.part_list)
        more = [rows for rows, own in map(self.listed, notes.others(self.part_list))
                if own.get("file") == stored.get("file") and len(rows) == len(begun)]
        begun = notes.merged([begun, *more])
        old = stored.get("file") if stored.get("file") in self.parts else self.parts[0]
        part = os.path.join(self.folder, old)
        sources += [(read_array(part, "delete it and extract again"), begun)] if begun and os.path.isfile(part) else []
        sources = [(array, rows) for array, rows in sources if array.shape == (len(rows), *self.shape[1:])
                   and array.dtype == self.dtype and any(rows)]
        if os.path.isfile(self.path) and not sources:
            print(f"{self.path}: nothing tells which photos its rows are of, so they are computed again")
        if begun and sources and sources[-1][1] is begun and \
                [row and row[0] for row in begun] == [row and name for name, row in zip(self.names, begun)] and \
                len(begun) == len(self.names):
            self.part, sources = old, sources[:-1]
            self.array = np.lib.format.open_memmap(part, "r+")
            self.rows = [self.current(i, row) for i, row in enumerate(begun)]
        else:
            self.part = self.parts[old == self.parts[0] and bool(begun)]
            self.array = allocate(os.path.join(self.folder, self.part), self.shape, self.dtype)
        for array, rows in reversed(sources):               # the hidden file's first, which are newer
            self.take(array, {row[0]: (k, row) for k, row in enumerate(rows) if row})
        if self.part != old or more or processes.count() > 1:
            self.save()
        if self.part != old:
            with contextlib.suppress(FileNotFoundError):
                os.remove(part)
        for path in notes.others(self.part_list):           # they stand in that of the first now
            os.remove(path)
        return self.part, self.rows

    def take(self, array: np.ndarray, known: dict[str, tuple]) -> None:
        """Copy the rows of photos that have none yet, from {name: (row of the array, row of its list)}."""
        found = {i: (known[name][0], row) for i, name in enumerate(self.names)
                 if self.rows[i] is None and name in known and (row := self.current(i, known[name][1]))}
        for some in chunks(list(found), ROWS):
            self.array[some] = array[[found[i][0] for i in some]]
            for i in some:
                self.rows[i] = found[i][1]

    def check_broken(self, skip: bool) -> None:
        """Raise InputError for a photo that could not be read, unless such photos are to be skipped."""
        fault = next((wrong(row) for row in self.rows if row and wrong(row)), None)
        if fault and not skip:
            raise InputError(f"{fault}; or go on without such photos: --skip_broken")

    def run(self, net: nn.Module, transform, opt, device) -> None:
        """Compute the missing rows: net of photos that `transform` prepares. Raises InputError for a photo that cannot
        be read, unless opt.skip_broken is set."""
        todo = np.flatnonzero([row is None for row in self.rows])
        parts = processes.part(chunks(todo, opt.batch_size))
        reader, saved = PhotoReader(self.images, self.names, transform, self.boxes), time.monotonic()
        try:
            self.check_broken(opt.skip_broken)
            with processes.all_or_none() as look, \
                    tqdm(total=len(self.rows) - len(todo) + sum(map(len, parts)), initial=len(self.rows) - len(todo),
                         desc=self.name, disable=None, leave=False) as bar:
                def step(read):
                    given, rows = read
                    return given and net(*(x.to(device) for x in given)).cpu().numpy().astype(self.dtype), rows
                for part, (values, rows) in zip(parts, by_cores(step, stream(reader, parts, opt.workers), device)):
                    if values is not None:
                        self.array[[i for i, row in zip(part.tolist(), rows) if not wrong(row)]] = values
                    for i, row in zip(part.tolist(), rows):
                        self.rows[i] = row
                    self.check_broken(opt.skip_broken)
                    bar.update(len(part))
                    look()
                    if time.monotonic() - saved > SAVE:
                        self.save()
                        saved = time.monotonic()
        except Stopped as stop:
            stop.advice = notes.advice(self.rows, self.name)
            raise
        finally:
            self.save()                                     # what is done stays, whatever ends this
        self.rows = notes.merged(processes.from_all(self.rows))

    def save(self) -> None:
        """Write down which rows of the hidden file this process has done."""
        self.array.flush()
        with by_each():
            save_json({"extractor": self.line, "photos": self.rows, "file": self.part}, notes.own(self.part_list))

    def kept(self) -> np.ndarray:
        """Which photos could be read. Raises InputError if none could."""
        kept = np.flatnonzero([not wrong(row) for row in self.rows])
        if not len(kept):
            raise InputError(f"not one of the {len(self.rows)} photos of {self.name} can be read; the first: "
                             f"{wrong(self.rows[0])}")
        return kept

    def warn(self, beside: str = "") -> None:
        """Say on stderr which photos could not be read; they are left out, with what stands `beside` them."""
        broken = [row for row in self.rows if wrong(row)]
        if broken:
            print(f"warning: {len(broken):,} of {len(self.rows):,} photos of {self.name} cannot be read and are left "
                  f"out{f' {beside}' * bool(beside)}, the first: {wrong(broken[0])}", file=sys.stderr)
        for row in broken[1:]:
            print(f"  and {wrong(row)}", file=sys.stderr)

    def commit(self, write) -> None:
        """Put features, texts and list in place; write(kept) writes the texts. Readers refuse the split meanwhile.
        Raises InputError if no photo could be read."""
        kept, part = self.kept(), os.path.join(self.folder, self.part)
        self.save()                                         # from here on the hidden list is the only one
        with open(self.changing, "w", encoding="ascii"):
            pass
        write(kept)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.list)                            # after a stop it would pass for that of the new features
        if len(kept) < len(self.rows):
            with mapped(self.path, (len(kept), *self.shape[1:]), self.dtype) as out:
                for k in range(0, len(kept), ROWS):
                    out[k:k + ROWS] = self.array[kept[k:k + ROWS]]
        else:
            self.array.flush()
            os.replace(part, self.path)
        self.write_list(self.rows)
        self.clean()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.changing)

    def contents(self, rows: list) -> dict:
        """The list of these photos."""
        broken = [row for row in rows if wrong(row)]
        return {"extractor": self.line, "photos": [row for row in rows if not wrong(row)],
                **({"broken": broken} if broken else {}), **self.about}

    def write_list(self, rows: list) -> None:
        save_json(self.contents(rows), self.list)

    def clean(self) -> None:
        """Remove the hidden files."""
        for path in (os.path.join(self.folder, part) for part in self.parts):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        notes.remove(self.part_list)
