"""Features of photos, computed so that a stop loses nothing, and the record of what made a file."""
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
from data import chunks, read_extractors, stream
from files import CHANGING, file_digest, mapped, output, read_array, read_json, remove, save_json

ALL = "all"                           # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")
AGAIN = "delete it and extract again"


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder, which is made.

    Raises InputError where it cannot be written, and if such files of another extractor are there. Files of an earlier
    fit by the same recipe are deleted, so that a folder never mixes two fits.
    """
    output(os.path.join(folder, "features.json"))
    recorded = read_extractors(folder)
    paths = [os.path.join(folder, f"{split}_{suffix}.npy") for split in (*SPLITS, ALL)]
    files = [path for path in paths if os.path.isfile(path)]
    before = recorded.get(suffix, "an extractor that no features.json names")
    check(not files or before.split(", fitted")[0] == line.split(", fitted")[0],
          f"{files and files[0]} is of '{before}' and these are of '{line}'; give another name, or delete the old ones")
    if recorded.get(suffix) != line:
        remove(*files)
        save_json({**recorded, suffix: line}, os.path.join(folder, "features.json"))


class Note(NamedTuple):
    """A photo as it was when its features were computed."""
    name: str
    size: int                         # bytes
    time: int                         # of the last change, in ns
    digest: str                       # "": the file was not there
    key: str = ""                     # digest of its boxes
    fault: str = ""                   # why it cannot be read


def as_notes(values) -> list[Note] | None:
    """Notes that were read from JSON; None where it holds something else."""
    kinds = (str, int, int, str, str, str)
    sound = isinstance(values, list) and all(isinstance(value, list) and 4 <= len(value) <= len(kinds)
                                             and all(map(isinstance, value, kinds)) for value in values)
    return [Note(*value) for value in values] if sound else None


class How(NamedTuple):
    """How features of photos are computed."""
    device: torch.device | None       # None: `encode` is no network
    batch_size: int                   # photos
    workers: int                      # processes that read
    skip_broken: bool = False         # leave out photos that cannot be read


class NotingReader:
    """Reads photos by their indices: (their notes, what `encode` takes)."""

    def __init__(self, store: "RowStore", read, join):
        self.paths, self.names, self.keys, self.skip, self.help = (
            store.paths, store.names, store.keys, store.skip, store.help)
        self.read, self.join = read, join

    def __call__(self, index) -> tuple[list[Note], object]:
        notes, ready = [], []
        for n in map(int, index):
            note = Note(self.names[n], 0, 0, "", self.keys[n])
            with contextlib.suppress(OSError):              # before it is read: one replaced meanwhile looks changed
                stat = os.stat(self.paths[n])
                note = note._replace(size=stat.st_size, time=stat.st_mtime_ns, digest=file_digest(self.paths[n]))
            try:
                ready.append(self.read(n))
            except InputError as error:
                if not self.skip:
                    raise InputError(f"{error}{self.help}") from error
                note = note._replace(fault=str(error))
            notes.append(note)
        return notes, self.join(ready)


class RowStore:
    """Values of N photos, which become the file `path`: one or more rows of each.

    A part file beside it holds what is done. After any stop the next call goes on; a photo whose file or key changed is
    done again. `notes` (N,): None where a photo is to do. `places` (N,): of its values, (file, offset, rows).
    """
    help = ""                         # what an error about a photo adds

    def __init__(self, path: str, paths: list[str], names: list[str], made, shape: tuple, dtype,
                 keys: list[str] | None = None, skip: bool = False):
        """made: a plain value that names what makes the values. shape: of a row. keys (N,): what else, beside its file,
        the values of a photo depend on. skip: leave out photos that cannot be read."""
        self.path, self.paths, self.names, self.made, self.skip = path, paths, names, made, skip
        self.keys, self.shape, self.dtype = keys or [""] * len(paths), shape, np.dtype(dtype)
        folder, name = os.path.split(path)
        self.part = os.path.join(folder, f".{name.removesuffix('.npy')}.part")
        self.header = json.dumps([made, shape, self.dtype.str]).encode() + b"\n"
        self.notes, self.places = [None] * len(paths), [None] * len(paths)
        self.take(self.read_part())

    def read_part(self) -> dict[str, tuple]:
        """Records of the part file, {name: (note, place)}: a line of JSON and the values for each photo, below the
        header. Half a record at its end is cut off; values that something else made are dropped."""
        records, end, size = {}, 0, math.prod(self.shape) * self.dtype.itemsize
        if os.path.isfile(self.part):
            with open(self.part, "r+b") as f:
                length = os.path.getsize(self.part)
                if f.readline() == self.header:
                    end = len(self.header)
                while end and (line := f.readline()).endswith(b"\n"):
                    note, rows = json.loads(line)
                    if f.tell() + rows * size > length:
                        break
                    records[note[0]] = Note(*note), (self.part, f.tell(), rows)
                    end = f.seek(rows * size, os.SEEK_CUR)
                f.truncate(end)
        return records

    def take(self, records: dict[str, tuple]) -> None:
        """Take over what is recorded of photos that have not changed since."""
        for n, name in enumerate(self.names):
            note, place = records.get(name, (None, None))
            if note and (self.skip or not note.fault) and (note := self.current(n, note)):
                self.notes[n], self.places[n] = note, place

    def current(self, n: int, note: Note) -> Note | None:
        """The note with the time that photo n has now, if it describes the photo still, or None."""
        try:
            stat = os.stat(self.paths[n])
        except OSError:
            return None
        same = (note.digest and note.key == self.keys[n] and note.size == stat.st_size and S_ISREG(stat.st_mode)
                and (note.time == stat.st_mtime_ns or note.digest == file_digest(self.paths[n])))
        return note._replace(time=stat.st_mtime_ns) if same else None

    def run(self, read, encode, how: How, title: str, join=list) -> None:
        """Compute what is missing: the values of some photos are encode(join([read(n), ...])). `read` and `join` run in
        worker processes. Raises what they and `encode` raise."""
        todo = np.flatnonzero([note is None for note in self.notes])
        parts = chunks(todo, how.batch_size)
        batches = stream(NotingReader(self, read, join), parts, how.workers)
        with (open(self.part, "ab") as f, torch.no_grad(), contextlib.closing(batches),
              tqdm(total=len(self.notes), initial=len(self.notes) - len(todo), desc=title, disable=None,
                   leave=False) as bar):
            f.write(b"" if f.tell() else self.header)
            for part, (notes, ready) in zip(parts, batches):
                values = iter(encode(ready) if len(ready) else ())
                for n, note in zip(part.tolist(), notes):
                    rows = np.asarray([] if note.fault else next(values), self.dtype).reshape(-1, *self.shape)
                    f.write(json.dumps([note, len(rows)]).encode() + b"\n")
                    self.notes[n], self.places[n] = note, (self.part, f.tell(), len(rows))
                    f.write(rows.tobytes())
                f.flush()
                bar.update(len(part))

    def sound(self) -> np.ndarray:
        """Photos that could be read, by their numbers. Raises InputError if none could."""
        sound = np.flatnonzero([not note.fault for note in self.notes])
        check(len(sound), f"not one of the {len(self.notes)} photos of {os.path.basename(self.path)} can be read; the "
                          f"first: {self.notes[0].fault}")
        return sound

    def values(self) -> Iterator[np.ndarray]:
        """Yield the values (r, *shape) of each photo that could be read."""
        for path, offset, rows in (self.places[n] for n in self.sound()):
            flat = np.fromfile(path, self.dtype, rows * math.prod(self.shape), offset=offset)
            yield flat.reshape(rows, *self.shape)

    def write(self, beside: Callable = lambda: None) -> None:
        """Write the file: the rows of all photos that could be read. beside(): writes what belongs to it, just before
        the file is replaced."""
        row = 0
        with mapped(self.path, (sum(self.places[n][2] for n in self.sound()), *self.shape), self.dtype) as out:
            for rows in self.values():
                out[row:row + len(rows)] = rows
                row += len(rows)
            beside()


class PhotoFeatures(RowStore):
    """The features of N photos, {split}_ims.npy, with a list of the photos, {split}_photos.json.

    The list tells of every row which photo it is of, and which photos could not be read. A photo that has not changed
    keeps its row, wherever it was. `about`: what else the list says.
    """
    help = "; or go on without such photos: --skip_broken"

    def __init__(self, folder: str, split: str, paths: list[str], names: list[str], made: str, shape: tuple, dtype,
                 keys: list[str] | None, skip: bool, about: dict | None = None):
        super().__init__(os.path.join(folder, f"{split}_ims.npy"), paths, names, made, shape, dtype, keys, skip)
        self.split, self.about = split, about or {}
        self.list = os.path.join(folder, f"{split}_photos.json")
        self.changing = os.path.join(folder, CHANGING.format(split))
        records = self.read_list()
        self.order = [place for _, place in records.values() if place]
        self.take(records)

    def read_list(self) -> dict[str, tuple]:
        """Records of the list, {name: (note, place)}, in the order of the rows; none unless it is of this extractor and
        of the file."""
        if os.path.exists(self.changing) or not all(map(os.path.isfile, (self.list, self.path))):
            return {}
        record, array = read_json(self.list, AGAIN), read_array(self.path, AGAIN)
        if not isinstance(record, dict) or record.get("extractor") != self.made:
            return {}
        photos, broken = as_notes(record.get("photos")), as_notes(record.get("broken", []))
        if photos is None or broken is None or (array.shape, array.dtype) != ((len(photos), *self.shape), self.dtype):
            return {}
        places = [(self.path, array.offset + k * array.strides[0], 1) for k in range(len(photos))]
        return {note.name: (note, place) for note, place in zip(photos + broken, places + [None] * len(broken))}

    def complete(self) -> bool:
        """Whether the file and its list are those of the photos as they are now."""
        return None not in self.notes and bool(self.order) and self.order == [self.places[n] for n in self.sound()]

    def warn(self, beside: str = "") -> None:
        """Say on stderr which photos are left out, with what stands `beside` them."""
        broken = [note.fault for note in self.notes if note.fault]
        if broken:
            print(f"warning: {len(broken):,} of {len(self.notes):,} photos of {self.split} cannot be read and are left "
                  f"out{beside}, the first:", "\n  and ".join(broken), file=sys.stderr)

    def commit(self, write) -> None:
        """Put features, texts and list in place; write(photos) writes the texts of those photos. Readers refuse the
        split meanwhile. Raises InputError if no photo could be read."""
        def beside():
            open(self.changing, "w").close()
            write(self.sound())
        self.write(beside)
        self.save_list()
        remove(self.changing)

    def save_list(self) -> None:
        """Write the list. The part file, all of which it names, is gone then."""
        photos, broken = ([note for note in self.notes if bool(note.fault) == faulty] for faulty in (False, True))
        save_json({"extractor": self.made, "photos": photos, "broken": broken, **self.about}, self.list)
        remove(self.part)
