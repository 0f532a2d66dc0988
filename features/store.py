"""Values computed from photos, with what is done kept through every stop; and the record of what
made a file."""
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, check
from data import chunks, extractors, stream
from files.reading import file_digest, read_array, read_json
from files.writing import CHANGING, mapped, output, remove, save_json

ROWS = 1024                           # rows copied at a time
ALL = "all"                           # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")
AGAIN = "delete it and extract again"


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder, which is made.

    Raises InputError where it cannot be written, and if such files of another extractor are there.
    Files of an earlier fit by the same recipe are deleted, so that a folder never mixes two fits.
    """
    output(os.path.join(folder, "features.json"))
    recorded = extractors(folder)
    files = list(filter(os.path.isfile, (os.path.join(folder, f"{split}_{suffix}.npy")
                                         for split in (*SPLITS, ALL))))
    before = recorded.get(suffix, "an extractor that no features.json names")
    check(not files or before.split(", fitted")[0] == line.split(", fitted")[0],
          f"{files and files[0]} is of '{before}' and these are of '{line}'; give another name, or "
          "delete the old files")
    if recorded.get(suffix) != line:
        remove(*files)
        save_json({**recorded, suffix: line}, os.path.join(folder, "features.json"))


# ---- rows

# A note on a photo: [name, bytes, time in ns, digest], then the digest of its boxes ("": none) and
# why it cannot be read. Neither is there where it is not needed.

def fault(note: list) -> str:
    """Why the photo of a note cannot be read, or ""."""
    return "".join(note[5:])


def is_note(value) -> bool:
    """Whether a value that was read from a list is a note."""
    kinds = (str, int, int, str, str, str)
    return isinstance(value, list) and 4 <= len(value) <= 6 and all(map(isinstance, value, kinds))


def refuse_broken(notes: list, skip: bool | None) -> None:
    """Raise InputError for a photo that cannot be read, unless such photos are skipped."""
    first = next(filter(None, map(fault, filter(None, notes))), None)
    check(not first or skip, f"{first}; or go on without such photos: --skip_broken")


class How(NamedTuple):
    """How features of photos are computed."""
    device: torch.device | None       # None: `encode` is no network
    batch_size: int                   # photos
    workers: int                      # processes that read
    skip_broken: bool | None = None   # leave out photos that cannot be read; None: they are no news


class _Reader:
    """Reads photos by their indices: (their notes, what `encode` takes)."""

    def __init__(self, store: "RowStore", read, join, note_faults: bool):
        self.paths, self.names, self.keys = store.paths, store.names, store.keys
        self.read, self.join, self.note_faults = read, join, note_faults

    def __call__(self, index) -> tuple[list[list], object]:
        notes, ready = [], []
        for n in map(int, index):
            note = [self.names[n], 0, 0, "", *filter(None, [self.keys[n]])]
            with contextlib.suppress(OSError):              # a photo replaced later looks changed
                stat = os.stat(self.paths[n])
                note[1:4] = stat.st_size, stat.st_mtime_ns, file_digest(self.paths[n])
            try:
                ready.append(self.read(n))
            except InputError as error:
                if not self.note_faults:
                    raise
                note = [*note, ""][:5] + [str(error)]
            notes.append(note)
        return notes, self.join(ready)


class RowStore:
    """Values of N photos, which become the file `path`: one or more rows of each.

    A part file beside it holds what is done. After any stop the next call goes on; a photo whose
    file or key has changed is done again. `notes` (N,): None where a photo is to do.
    """

    def __init__(self, path: str, paths: list[str], names: list[str], made, shape: tuple, dtype,
                 keys: list[str] | None = None):
        """made: a plain value that names what makes the values. shape: of a row. keys (N,): what
        else, beside its file, the values of a photo depend on."""
        self.path, self.paths, self.names, self.made = path, paths, names, made
        self.keys, self.shape, self.dtype = keys or [""] * len(paths), shape, np.dtype(dtype)
        folder, name = os.path.split(path)
        self.part = os.path.join(folder, f".{name.removesuffix('.npy')}.part")
        self.header = json.dumps([made, shape, self.dtype.str]).encode() + b"\n"
        self.notes = [None] * len(paths)
        self.places = [None] * len(paths)       # of the values: file, offset in it, number of rows
        self.take(self.read_part())

    def read_part(self) -> dict[str, tuple]:
        """The records of the part file, {name: (note, place)}. A stop may have left half a record,
        which is cut off; of values that something else made, nothing is left."""
        records, end, size = {}, 0, math.prod(self.shape) * self.dtype.itemsize
        if not os.path.isfile(self.part):
            return records
        with open(self.part, "r+b") as f, contextlib.suppress(ValueError):    # half a line of JSON
            length = os.path.getsize(self.part)
            line = f.readline()
            while line and (end or line == self.header):
                if end:
                    note, rows = json.loads(line)
                    if f.tell() + rows * size > length:
                        break
                    records[note[0]] = note, (self.part, f.tell(), rows)
                    f.seek(rows * size, os.SEEK_CUR)
                end, line = f.tell(), f.readline()
        os.truncate(self.part, end)
        return records

    def take(self, records: dict[str, tuple]) -> None:
        """Take over what is recorded of photos that have not changed since."""
        for n, name in enumerate(self.names):
            note, place = records.get(name, (None, None))
            if note := self.current(n, note):
                self.notes[n], self.places[n] = note, place

    def current(self, n: int, note: list | None) -> list | None:
        """The note with the time that photo n has now, if it describes the photo still, or None."""
        try:
            stat = os.stat(self.paths[n])
        except OSError:
            return None
        if (not note or not note[3] or note[1] != stat.st_size or not S_ISREG(stat.st_mode)
                or "".join(note[4:5]) != self.keys[n]):
            return None
        if note[2] != stat.st_mtime_ns and file_digest(self.paths[n]) != note[3]:
            return None
        return [*note[:2], stat.st_mtime_ns, *note[3:]]

    def run(self, read, encode, how: How, title: str, join=list) -> None:
        """Compute what is missing: the values of some photos are encode(join([read(n), ...])).

        `read` and `join` run in worker processes. Raises what `read` and `encode` raise, and,
        unless skip_broken is None, `refuse_broken`.
        """
        todo = np.flatnonzero([note is None for note in self.notes])
        reader = _Reader(self, read, join, how.skip_broken is not None)
        parts, done = chunks(todo, how.batch_size), len(self.notes) - len(todo)

        refuse_broken(self.notes, how.skip_broken)
        with (open(self.part, "ab") as f, torch.no_grad(),
              contextlib.closing(stream(reader, parts, how.workers)) as batches,
              tqdm(total=len(self.notes), initial=done, desc=title, disable=None,
                   leave=False) as bar):
            f.write(b"" if f.tell() else self.header)
            for part, (notes, ready) in zip(parts, batches):
                values = iter(encode(ready) if len(ready) else ())
                for n, note in zip(part.tolist(), notes):
                    rows = np.zeros((0, *self.shape)) if fault(note) else next(values)
                    rows = np.asarray(rows, self.dtype).reshape(-1, *self.shape)
                    f.write(json.dumps([note, len(rows)]).encode() + b"\n")
                    self.places[n] = self.part, f.tell(), len(rows)
                    f.write(rows.tobytes())
                f.flush()
                for n, note in zip(part.tolist(), notes):
                    self.notes[n] = note
                refuse_broken(notes, how.skip_broken)
                bar.update(len(part))

    def sound(self) -> np.ndarray:
        """Which photos could be read. Raises InputError if none could."""
        sound = np.flatnonzero([not fault(note) for note in self.notes])
        check(len(sound), f"not one of the {len(self.notes)} photos of "
                          f"{os.path.basename(self.path)} can be read; the first: "
                          f"{fault(self.notes[0])}")
        return sound

    def values(self) -> Iterator[np.ndarray]:
        """Yield the values (r, *shape) of each photo that could be read."""
        with contextlib.ExitStack() as stack:
            files = {}
            for path, offset, rows in (self.places[n] for n in self.sound()):
                if path not in files:
                    files[path] = stack.enter_context(open(path, "rb"))
                files[path].seek(offset)
                flat = np.fromfile(files[path], self.dtype, rows * math.prod(self.shape))
                yield flat.reshape(rows, *self.shape)

    def write(self, beside: Callable = lambda: None) -> None:
        """Write the file: the rows of all photos that could be read. beside(): writes what belongs
        to it, just before the file is replaced."""
        count, row = sum(self.places[n][2] for n in self.sound()), 0
        with mapped(self.path, (count, *self.shape), self.dtype) as out:
            for rows in self.values():
                out[row:row + len(rows)] = rows
                row += len(rows)
            beside()


class PhotoFeatures(RowStore):
    """The features of N photos, {split}_ims.npy, with a list of the photos, {split}_photos.json.

    The list tells of every row which photo it is of, and which photos could not be read. A photo
    that has not changed keeps its row, wherever it was. `about`: what else the list says.
    """

    def __init__(self, folder: str, split: str, paths: list[str], names: list[str], made: str,
                 shape: tuple, dtype, keys: list[str] | None = None, about: dict | None = None):
        super().__init__(os.path.join(folder, f"{split}_ims.npy"), paths, names, made, shape, dtype,
                         keys)
        self.split, self.about = split, about or {}
        self.list = os.path.join(folder, f"{split}_photos.json")
        self.changing = os.path.join(folder, CHANGING.format(split))
        records = self.read_list()
        self.order = [place for _, place in records.values() if place]
        self.take(records)

    def read_list(self) -> dict[str, tuple]:
        """The records of the list, {name: (note, place)}, in the order of the rows. Empty unless it
        is of this extractor and of the file."""
        record = read_json(self.list, AGAIN) if os.path.isfile(self.list) else None
        if (not isinstance(record, dict) or record.get("extractor") != self.made
                or not os.path.isfile(self.path) or os.path.exists(self.changing)):
            return {}
        photos, broken = record.get("photos"), record.get("broken", [])
        if (not isinstance(photos, list) or not isinstance(broken, list)
                or not all(map(is_note, [*photos, *broken]))):
            return {}
        array = read_array(self.path, AGAIN)
        if array.shape != (len(photos), *self.shape) or array.dtype != self.dtype:
            return {}
        places = ((self.path, array.offset + k * array.strides[0], 1) for k in range(len(photos)))
        return {note[0]: (note, place) for note, place in
                [*zip(photos, places), *((note, None) for note in broken)]}

    def complete(self) -> bool:
        """Whether the file and its list are those of the photos as they are now."""
        return None not in self.notes and bool(self.order) and self.order == [
            place for note, place in zip(self.notes, self.places) if not fault(note)]

    def warn(self, beside: str = "") -> None:
        """Say on stderr which photos are left out, with what stands `beside` them."""
        broken = list(filter(None, map(fault, self.notes)))
        if broken:
            print(f"warning: {len(broken):,} of {len(self.notes):,} photos of {self.split} cannot "
                  f"be read and are left out{beside}, the first:", "\n  and ".join(broken),
                  file=sys.stderr)

    def commit(self, write) -> None:
        """Put features, texts and list in place; write(photos) writes the texts of those photos.
        Readers refuse the split meanwhile. Raises InputError if no photo could be read."""
        sound = self.sound()

        def beside():
            open(self.changing, "w").close()
            write(sound)
        self.write(beside)
        self.save_list()
        remove(self.changing)

    def save_list(self) -> None:
        """Write the list. The part file, all of which it names, is gone then."""
        broken = [note for note in self.notes if fault(note)]
        save_json({"extractor": self.made, "photos": [n for n in self.notes if not fault(n)],
                   **({"broken": broken} if broken else {}), **self.about}, self.list)
        remove(self.part)


def copy_rows(path: str, array: np.ndarray, rows: np.ndarray) -> None:
    """Write an .npy file of these rows of an array."""
    with mapped(path, (len(rows), *array.shape[1:]), array.dtype) as out:
        for k in range(0, len(rows), ROWS):
            out[k:k + ROWS] = array[rows[k:k + ROWS]]
