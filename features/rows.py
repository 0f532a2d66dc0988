"""Rows of values computed from photos, several per photo, in a file that survives every stop."""
import contextlib
import os
import time

import numpy as np
from tqdm import tqdm

from cli import Stopped
from features.cores import by_cores
from features.photos import SAVE
from files.reading import read_array, read_json
from files.writing import allocate, by_each, save_json
from inputs import chunks, stream
from parallel import notes, processes

DELETE = "delete it and call the command again"


class _Reader:
    """Reads photos by their indices: [([bytes, time in ns], fetch(index)), ...]."""

    def __init__(self, paths: list[str], fetch):
        self.paths, self.fetch = paths, fetch

    def __getitem__(self, index) -> list[tuple]:
        # noted before the photo is read: one that is replaced meanwhile will look changed
        return [(stamp_of(self.paths[i]), self.fetch(i)) for i in map(int, index)]


def stamp_of(path: str) -> list[int]:
    """[bytes, time in ns] of a photo, [0, 0] where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return [0, 0]
    return [stat.st_size, stat.st_mtime_ns]


class PhotoRows:
    """Hidden files beside `path`: an array of rows, of which photo n may have start[n]:start[n + 1], and a list of the
    photos that are done, of each process. After any stop the next call goes on.

    A photo whose file has changed is done again, and all are if `made`, what makes the rows, is another. done[n]:
    [bytes, time in ns, rows], where the last is how many rows photo n has, or None.
    """

    def __init__(self, path: str, paths: list[str], start: np.ndarray, dim: int, dtype, made: dict):
        folder, name = os.path.split(path)
        self.part, self.list = (os.path.join(folder, f".{name}.{end}.part") for end in ("rows", "photos"))
        self.paths, self.start, self.made, self.shape = paths, start, made, (int(start[-1]), dim)
        self.dtype = dtype
        self.done = processes.from_first(self.begin)
        self.array = np.lib.format.open_memmap(self.part, "r+")

    def begin(self) -> list:
        """Allocate the rows, unless they are there. Returns what is done."""
        done = self.listed(self.list)
        array = read_array(self.part, DELETE) if done and os.path.isfile(self.part) else None
        if array is not None and array.shape == self.shape and array.dtype == self.dtype:
            done = notes.merged([done, *filter(None, map(self.listed, notes.others(self.list)))])
            done = [row if row and row[:2] == stamp_of(path) else None for row, path in zip(done, self.paths)]
        else:
            notes.remove(self.list)
            allocate(self.part, self.shape, self.dtype)
            done = [None] * len(self.paths)
        save_json({"made": self.made, "photos": done}, self.list)
        for path in notes.others(self.list):                # they stand in that of the first now
            os.remove(path)
        return done

    def listed(self, path: str) -> list | None:
        """What a list says of the photos; None where it is of others, or of rows that something else made."""
        stored = read_json(path, DELETE) if os.path.isfile(path) else {}
        done = stored.get("photos") if isinstance(stored, dict) and stored.get("made") == self.made else None
        return done if done and len(done) == len(self.paths) else None

    def run(self, fetch, encode, batch: int, workers: int, title: str, device=None) -> None:
        """Compute what is missing. encode([fetch(n), ...]), a list of arrays (rows, dim), are the rows of photos n.

        `fetch` runs in `workers` processes, `encode` in this one, on `batch` photos at a time; where it is a network on
        `device`, as `by_cores` says. What is done stays, whatever ends this. Raises what they raise.
        """
        todo, saved = np.flatnonzero([row is None for row in self.done]), time.monotonic()
        parts = processes.part(chunks(todo, batch))
        try:
            with processes.all_or_none() as look, \
                    tqdm(total=len(self.done) - len(todo) + sum(map(len, parts)), initial=len(self.done) - len(todo),
                         desc=title, disable=None, leave=False) as bar:
                def step(found):
                    return [stamp for stamp, _ in found], encode([value for _, value in found])
                read = stream(_Reader(self.paths, fetch), parts, workers)
                for part, (stamps, values) in zip(parts, by_cores(step, read, device)):
                    for n, stamp, rows in zip(part.tolist(), stamps, values):
                        first = self.start[n]
                        assert first + len(rows) <= self.start[n + 1], (n, len(rows))
                        self.array[first:first + len(rows)] = rows
                        self.done[n] = [*stamp, len(rows)]
                    bar.update(len(part))
                    look()
                    if time.monotonic() - saved > SAVE:
                        self.save()
                        saved = time.monotonic()
        except Stopped as stop:
            stop.advice = notes.advice(self.done, title)
            raise
        finally:
            self.save()
        self.done = notes.merged(processes.from_all(self.done))

    def save(self) -> None:
        """Write down which photos this process has done."""
        self.array.flush()
        with by_each():
            save_json({"made": self.made, "photos": self.done}, notes.own(self.list))

    def clean(self) -> None:
        """Remove the hidden files."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.part)
        notes.remove(self.list)
