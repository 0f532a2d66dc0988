"""Features of photos in an .npy file, with a list of the photos.
Features of listed photos are never computed again.

{split}_ims.npy has a row a photo, and {split}_photos.json lists their names with the digests of their files, by which a
photo is found again that was renamed or moved. While features are computed they stand in a hidden file, so that a stop
loses nothing.
"""
import contextlib
import glob
import json
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, check
from data import chunks, read_extractors, stream
from files import CHANGING, file_digest, output, read_array, read_json, refusing, remove, save_json, sha256

ALL = "all"                           # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")
AGAIN = "delete it and extract again"


class ComputeConfig(NamedTuple):
    """Device and portions of a computation. No result depends on them."""
    device: torch.device | None       # None: no network computes
    batch_size: int                   # photos
    workers: int                      # processes that read
    skip_broken: bool = False         # leave out photos that cannot be read


class PhotoFile(NamedTuple):
    """A photo's file as it was when its features were computed."""
    name: str
    size: int                         # bytes
    time: int                         # of the last change, in ns
    digest: str                       # "": it cannot be read


def stat_photo(path: str, name: str, before: PhotoFile | None) -> PhotoFile:
    """Describe a photo's file.
    The digest is new where size or time differ from `before`."""
    try:
        stat = os.stat(path)
    except OSError:
        return PhotoFile(name, 0, 0, "")
    same = before and (before.size, before.time) == (stat.st_size, stat.st_mtime_ns)
    return PhotoFile(name, stat.st_size, stat.st_mtime_ns, before.digest if same else file_digest(path))


def read_list(folder: str, split: str) -> dict:
    """Read the `photos` of {split}_photos.json as PhotoFile; none without the file.
    Raises InputError."""
    path = os.path.join(folder, f"{split}_photos.json")
    if not os.path.isfile(path):
        return {"photos": []}
    content = read_json(path, AGAIN)
    with refusing(f"{path} is no list of photos", AGAIN):
        photos = [PhotoFile(str(name), int(size), int(time), str(digest))
                  for name, size, time, digest in content["photos"]]
        return {**content, "photos": photos}


def read_rows(folder: str, split: str, line: str, shape: tuple, dtype) -> tuple[list[PhotoFile], np.ndarray | None]:
    """Read the listed photos and their rows; none unless this extractor made them."""
    content, path = read_list(folder, split), os.path.join(folder, f"{split}_ims.npy")
    changing = os.path.exists(os.path.join(folder, CHANGING.format(split)))
    if changing or content.get("extractor") != line or not os.path.isfile(path):
        return [], None
    photos, rows = content["photos"], read_array(path, AGAIN)
    return (photos, rows) if (rows.shape, rows.dtype) == ((len(photos), *shape), dtype) else ([], None)


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder.

    Files of an earlier fit by the same recipe are deleted, so that a folder never mixes two fits. Raises InputError if
    files of another extractor are there.
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


def mark_changing(folder: str, splits) -> list[str]:
    """Make readers refuse these splits until the marks that are returned are removed."""
    marks = [os.path.join(folder, CHANGING.format(split)) for split in splits]
    for mark in marks:
        open(mark, "w").close()
    return marks


class Part:
    """Values of items by their keys, appended to a hidden file beside `path`.

    made: a plain value that says what makes the values. Values of another one, or of another shape or type, stand in
    another file.
    """

    def __init__(self, path: str, made, shape: tuple, dtype):
        self.record = np.dtype([("key", "S16"), ("value", dtype, shape)])
        folder, name = os.path.split(path)
        self.pattern = os.path.join(glob.escape(folder), f".{glob.escape(name)}.*.rows")
        self.path = os.path.join(folder, f".{name}.{sha256(json.dumps([made, str(self.record)]))[:12]}.rows")
        if os.path.exists(self.path):                       # a kill may have left half a record at its end
            os.truncate(self.path, os.path.getsize(self.path) // self.record.itemsize * self.record.itemsize)
        self.rows = {key: k for k, key in enumerate(self.records()["key"].tolist())}

    def records(self) -> np.ndarray:
        empty = not os.path.exists(self.path) or not os.path.getsize(self.path)
        return np.empty(0, self.record) if empty else np.memmap(self.path, self.record, "r")

    def __contains__(self, key: str) -> bool:
        return sha256(key)[:16].encode() in self.rows

    def __getitem__(self, key: str) -> np.ndarray:
        return self.records()["value"][self.rows[sha256(key)[:16].encode()]]

    def append(self, keys: list[str], values) -> None:
        """Append the values (n, *shape) of n keys."""
        records = np.empty(len(keys), self.record)
        records["key"], records["value"] = [sha256(key)[:16] for key in keys], values
        with open(self.path, "ab") as f:
            f.write(records.tobytes())
        self.rows |= {key: len(self.rows) + k for k, key in enumerate(records["key"].tolist())}

    def remove(self) -> None:
        """Delete the file, and those of other extractors that were begun and not ended."""
        remove(*glob.glob(self.pattern))


class BatchReader(NamedTuple):
    """Read items in a worker process.
    With skip_broken the fault of an item stands in its place."""
    read: Callable[[int], object]
    skip_broken: bool

    def __call__(self, index: np.ndarray) -> list:
        return [self.read_item(n) for n in index.tolist()]

    def read_item(self, n: int):
        try:
            return self.read(n)
        except InputError as error:
            if not self.skip_broken:
                raise
            return error


def compute(part: Part, keys: list[str], read, encode, config: ComputeConfig, title: str) -> dict[int, InputError]:
    """Append encode([read(n), ...]) of the items n whose keys the part lacks.
    keys (N,). `read` runs in worker processes.

    Returns {n: why item n cannot be read}, which without config.skip_broken raises InputError.
    """
    batches = chunks(np.array([n for n, key in enumerate(keys) if key not in part], int), config.batch_size)
    results, faults = stream(BatchReader(read, config.skip_broken), batches, config.workers), {}
    with (torch.no_grad(), contextlib.closing(results),
          tqdm(total=sum(map(len, batches)), desc=title, disable=None, leave=False) as bar):
        for index, values in zip(batches, results):
            pairs = list(zip(index.tolist(), values))
            faults |= {n: value for n, value in pairs if isinstance(value, InputError)}
            sound = {keys[n]: value for n, value in pairs if n not in faults}
            if sound:
                part.append(list(sound), encode(list(sound.values())))
            bar.update(len(index))
    return faults
