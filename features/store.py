"""Rows of values computed from photos, in a file that survives every stop; and the record of what
made a file."""
import contextlib
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, Stopped, check
from files.reading import file_digest, read_array, read_json
from files.writing import CHANGING, allocate, locked, mapped, output, remove, save_json
from inputs import chunks, extractors, stream

ROWS = 1024                           # rows copied at a time
SAVE = 20.0                           # seconds between notes of what is done
ALL = "all"                           # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")
AGAIN = "delete it and extract again"


def own_folder(folder: str) -> None:
    """Make a folder of features. Raises InputError unless its features.json can be written."""
    output(os.path.join(folder, "features.json"), lambda _: extractors(folder) is not None)


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder.

    Raises InputError if such files of another extractor are there. Files of an earlier fit by the
    same recipe are deleted, so that a folder never mixes two fits.
    """
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


@contextlib.contextmanager
def extracting(folder: str, line: str):
    """A context that keeps other commands out of a folder of features of images, which `line`
    makes. Raises what `own_folder` and `record_extractor` raise."""
    own_folder(folder)
    with locked(folder, "extracting into"):
        record_extractor(folder, "ims", line)
        yield


# ---- batches through a network

def by_cores(step: Callable, batches: Iterable, device: torch.device | None):
    """Yield step(batch) for every batch, in order. step: computes no gradients.

    On a CPU as many go at a time as torch has threads, each by one thread: two batches side by side
    take less time than one after the other by all cores, and no value depends on their number.
    device None: one after the other. Where a step fails, the generator `batches` is closed, which
    ends the processes that read for it.
    """
    cores, step = torch.get_num_threads(), torch.no_grad()(step)    # each thread has to be told so
    try:
        if device is None or device.type != "cpu" or cores == 1:
            yield from map(step, batches)
            return
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            coming = (pool.submit(step, batch) for batch in batches)
            running = deque(itertools.islice(coming, cores))
            while running:
                done = running.popleft().result()
                running.extend(itertools.islice(coming, 1))
                yield done
    finally:
        torch.set_num_threads(cores)                    # later threads would compute by one, too
        if isinstance(batches, Generator):
            batches.close()


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

    def __getitem__(self, index) -> tuple[list[list], object]:
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
    """The rows of N photos in a hidden file beside the file `path` that they are to become.

    A list beside it notes which photos are done. After any stop the next call goes on; a photo
    whose file or key has changed is done again. Notes are of no use where something else `made` the
    rows, a plain value.

    shape: of one photo's values, (...) in an array (N, ...). With `start` (N + 1,) photo n has the
    rows start[n]:start[n + 1] of an array (start[N], ...) instead. keys (N,): what else, beside its
    file, the values of a photo hang on. `notes` (N,): None where a photo is to do.
    """

    def __init__(self, path: str, paths: list[str], names: list[str], made, shape: tuple, dtype,
                 start: np.ndarray | None = None, keys: list[str] | None = None):
        self.path, self.paths, self.names, self.made = path, paths, names, made
        self.start, self.keys, self.dtype = start, keys or [""] * len(paths), np.dtype(dtype)
        self.shape = (len(paths) if start is None else int(start[-1]), *shape)
        self.notes = [None] * len(paths)
        folder, name = os.path.split(path)
        hidden = os.path.join(folder, f".{name.removesuffix('.npy')}")
        self.list = f"{hidden}_photos.part"
        # The second where photos came or went meanwhile.
        self.parts = [f"{hidden}.part", f"{hidden}.2.part"]
        self.part = self.parts[0]

    def listed(self, path: str) -> tuple[list, dict]:
        """The notes of a list and the whole of it; [] and {} where something else made the rows."""
        record = read_json(path, AGAIN) if os.path.isfile(path) else {}
        if not isinstance(record, dict) or record.get("extractor") != self.made:
            return [], {}
        notes, broken = record.get("photos"), record.get("broken", [])
        if (not isinstance(notes, list) or not isinstance(broken, list)
                or not all(note is None or is_note(note) for note in [*notes, *broken])):
            return [], {}
        return notes, record

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

    def prepare(self) -> "RowStore":
        """Open the hidden file, with all that earlier calls computed. Returns self."""
        earlier, record = self.listed(self.list)
        old = next((part for part in self.parts if os.path.basename(part) == record.get("file")),
                   self.parts[0])
        hidden = self._array(old, earlier)
        if (hidden is not None and len(earlier) == len(self.names)
                and all(not note or note[0] == name for note, name in zip(earlier, self.names))):
            self.part, self.array = old, np.lib.format.open_memmap(old, "r+")
            self.notes = [self.current(n, note) for n, note in enumerate(earlier)]
        else:
            self.part = self.parts[old == self.parts[0] and bool(earlier)]
            self.array = allocate(self.part, self.shape, self.dtype)
            self._take(hidden, earlier)
        self._take_older()
        if self.part != old:
            self.save()
            remove(old)
        return self

    def _array(self, path: str, notes: list) -> np.ndarray | None:
        """The array in a file, if it has the rows of these notes."""
        array = read_array(path, AGAIN) if any(notes) and os.path.isfile(path) else None
        shape = (len(notes) if self.start is None else self.shape[0], *self.shape[1:])
        fits = array is not None and array.shape == shape and array.dtype == self.dtype
        return array if fits else None

    def _take(self, array: np.ndarray | None, notes: list) -> None:
        """Copy the rows of photos that have none yet from an array with these notes."""
        if array is None or self.start is not None:
            return
        row_of = {note[0]: k for k, note in enumerate(notes) if note}
        for n, name in enumerate(self.names):
            if self.notes[n] is None and name in row_of:
                self.notes[n] = self.current(n, notes[row_of[name]])
                if self.notes[n]:
                    self.array[n] = array[row_of[name]]

    def _take_older(self) -> None:
        """Copy what the hidden file lacks from where rows stood before."""

    def run(self, read, encode, how: How, title: str, join=list) -> None:
        """Compute what is missing: the values of some photos are encode(join([read(n), ...])).

        `read` and `join` run in worker processes. What is done stays, whatever ends this. Raises
        what `read` and `encode` raise, and, unless skip_broken is None, `refuse_broken`.
        """
        todo, saved = np.flatnonzero([note is None for note in self.notes]), time.monotonic()
        parts, done = chunks(todo, how.batch_size), len(self.notes) - len(todo)
        reader = _Reader(self, read, join, how.skip_broken is not None)

        def step(batch):
            notes, ready = batch
            return notes, encode(ready) if len(ready) else ()
        try:
            refuse_broken(self.notes, how.skip_broken)
            with tqdm(total=len(self.notes), initial=done, desc=title, disable=None,
                      leave=False) as bar:
                batches = by_cores(step, stream(reader, parts, how.workers), how.device)
                for part, (notes, values) in zip(parts, batches):
                    values = iter(values)
                    for n, note in zip(part.tolist(), notes):
                        if not fault(note):
                            rows = n if self.start is None else slice(*self.start[n:n + 2])
                            self.array[rows] = next(values)
                        self.notes[n] = note
                    refuse_broken(notes, how.skip_broken)
                    bar.update(len(part))
                    if time.monotonic() - saved > SAVE:
                        self.save()
                        saved = time.monotonic()
        except Stopped as stop:
            stop.advice = (f"{len(self.notes) - self.notes.count(None):,} of {len(self.notes):,} "
                           f"photos of {title} are done, and the same command goes on")
            raise
        finally:
            self.save()

    def save(self) -> None:
        """Write down which photos are done."""
        self.array.flush()
        save_json({"extractor": self.made, "photos": self.notes,
                   "file": os.path.basename(self.part)}, self.list)

    def clean(self) -> None:
        """Remove the hidden files, the list last."""
        remove(*self.parts, self.list)


class PhotoFeatures(RowStore):
    """The features of N photos, {split}_ims.npy, with a list of the photos, {split}_photos.json.

    The list tells of every row which photo it is of, and which photos could not be read. A photo
    that has not changed keeps its row, wherever it was. `about`: what else the list says.
    """

    def __init__(self, folder: str, split: str, paths: list[str], names: list[str], made: str,
                 shape: tuple, dtype, keys: list[str] | None = None, about: dict | None = None):
        super().__init__(os.path.join(folder, f"{split}_ims.npy"), paths, names, made, shape, dtype,
                         keys=keys)
        self.split, self.about = split, about or {}
        self.final = os.path.join(folder, f"{split}_photos.json")
        self.changing = os.path.join(folder, CHANGING.format(split))

    def complete(self) -> bool:
        """Whether nothing is left to do. Only sizes and times of unchanged files are read."""
        notes = self.listed(self.list)[0]
        if (notes and all(notes) and os.path.exists(self.changing) and os.path.isfile(self.path)
                and not any(map(os.path.exists, self.parts))):
            self.update_list(notes)                         # a stop came just before
            os.remove(self.list)
        notes, record = self.listed(self.final)
        if os.path.exists(self.changing) or self._array(self.path, notes) is None:
            return False
        note_of = {note[0]: note for note in (*notes, *record.get("broken", [])) if note}
        now = [self.current(n, note_of.get(name)) for n, name in enumerate(self.names)]
        order = [note and note[0] for note in notes]
        if not all(now) or [note[0] for note in now if not fault(note)] != order:
            return False
        self.notes = now
        self.clean()
        return True

    def _take_older(self) -> None:
        notes = self.listed(self.final)[0]
        array = self._array(self.path, notes)
        if os.path.isfile(self.path) and array is None and not any(self.notes):
            print(f"{self.path}: nothing tells which photos its rows are of, "
                  "so they are computed again")
        self._take(array, notes)

    def sound(self) -> np.ndarray:
        """Which photos could be read. Raises InputError if none could."""
        sound = np.flatnonzero([not fault(note) for note in self.notes])
        check(len(sound),
              f"not one of the {len(self.notes)} photos of {self.split} can be read; the first: "
              f"{fault(self.notes[0])}")
        return sound

    def warn(self, beside: str = "") -> None:
        """Say on stderr which photos are left out, with what stands `beside` them."""
        broken = list(filter(None, map(fault, self.notes)))
        if broken:
            print(f"warning: {len(broken):,} of {len(self.notes):,} photos of {self.split} cannot "
                  f"be read and are left out{beside}, the first:", "\n  and ".join(broken),
                  file=sys.stderr)

    def commit(self, write) -> None:
        """Put features, texts and list in place; write(photos) writes the texts of those photos.

        Readers refuse the split meanwhile. Raises InputError if no photo could be read.
        """
        sound = self.sound()
        self.save()                                         # the only list from here on
        open(self.changing, "w").close()
        write(sound)
        remove(self.final)                      # after a stop it would pass for that of new rows
        if len(sound) < len(self.notes):
            copy_rows(self.path, self.array, sound)
        else:
            self.array.flush()
            os.replace(self.part, self.path)
        self.update_list()
        self.clean()
        remove(self.changing)

    def update_list(self, notes: list | None = None) -> None:
        """Write the list of the notes, by default its own, unless it stands there as it is."""
        notes = notes or self.notes
        broken = [note for note in notes if fault(note)]
        now = {"extractor": self.made, "photos": [note for note in notes if not fault(note)],
               **({"broken": broken} if broken else {}), **self.about}
        if now != self.listed(self.final)[1]:
            save_json(now, self.final)


def copy_rows(path: str, array: np.ndarray, rows: np.ndarray) -> None:
    """Write an .npy file of these rows of an array."""
    with mapped(path, (len(rows), *array.shape[1:]), array.dtype) as out:
        for k in range(0, len(rows), ROWS):
            out[k:k + ROWS] = array[rows[k:k + ROWS]]
