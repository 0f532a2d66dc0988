"""Features of photos in an .npy file, beside a list of photos that have them.

{split}_ims.npy has a row a photo, and {split}_photos.json lists their names with the digests of their files, by which a
photo is found again that was renamed or moved. What is new stands in a hidden folder until all is computed, so that a
stop loses nothing.
"""
import contextlib
import ctypes
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from cli import InputError, check
from data import chunks, read_extractors, stream
from files import file_digest, naming_full_disk, need, read_json, refusing, remove, save_json, sha256, writable
from images import Features, read_photo

ALL = "all"                           # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")


class PhotoFile(NamedTuple):
    """A photo's file as it was when its features were computed."""
    name: str
    size: int                         # bytes
    time: int                         # of the last change, in ns
    digest: str                       # "": it cannot be read


class Images(NamedTuple):
    """Features of N photos, as `features.images` wrote them."""
    features: Features                # (N, F) or (N, P, F)
    photos: list[PhotoFile]           # of a folder: their names are paths below it, with /
    folder: str                       # its absolute path; "": the photos are of a data set
    extractor: str                    # the line of features.json


def stat_photo(path: str, name: str, before: PhotoFile | None) -> PhotoFile:
    """Describe a photo's file. Its digest is new if size or time are not as before."""
    try:
        stat = os.stat(path)
    except OSError:
        return PhotoFile(name, 0, 0, "")
    same = before and (before.size, before.time) == (stat.st_size, stat.st_mtime_ns)
    return PhotoFile(name, stat.st_size, stat.st_mtime_ns, before.digest if same else file_digest(path))


def list_path(folder: str, split: str) -> str:
    return os.path.join(folder, f"{split}_photos.json")


def read_images(data_path: str, data_name: str, split: str = ALL) -> Images:
    """Open the features of the photos of a folder or a split. Raises InputError without whole ones."""
    root = os.path.join(data_path, data_name)
    path, ims = list_path(root, split), os.path.join(root, f"{split}_ims.npy")
    again = f"call `python -m features.images --photos FOLDER --output_name {data_name}`"
    for file in (path, ims):
        need(file, again)
    content, features = read_json(path, again), Features(ims)
    with refusing(f"{path} is not a whole list of photos", again):
        photos = [PhotoFile(str(name), int(size), int(time), str(digest))
                  for name, size, time, digest in content["photos"]]
        images = Images(features, photos, str(content.get("folder", "")), str(content["extractor"]))
    check(len(features) == len(photos),
          f"{ims} has {len(features):,} rows for {len(photos):,} photos in {path}; delete {path} and {again}")
    return images


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder.

    Files of an earlier fit by the same recipe are deleted, so that a folder never mixes two fits. Raises InputError if
    files of another extractor are there.
    """
    path = writable(os.path.join(folder, "features.json"))
    recorded = read_extractors(folder)
    paths = [os.path.join(folder, f"{split}_{suffix}.npy") for split in (*SPLITS, ALL)]
    files = [path for path in paths if os.path.isfile(path)]
    before = recorded.get(suffix, "an extractor that no features.json names")
    check(not files or before.split(", fitted")[0] == line.split(", fitted")[0],
          f"{files and files[0]} is of '{before}' and these are of '{line}'; give another name, or delete the old ones")
    if before != line:
        remove(*files)
        save_json({**recorded, suffix: line}, path)


# ---- computing

class Part:
    """Values of items by key, each an .npy file in a hidden folder beside `path`.

    made: a plain value that says what makes the values. It is part of the key.
    """

    def __init__(self, path: str, made):
        # with a word, as files.atomic takes a number there for that of a process
        self.folder = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.values.part")
        self.made = json.dumps(made)
        os.makedirs(self.folder, exist_ok=True)

    def path_of(self, key: str) -> str:
        return f"{self.folder}/{sha256(self.made, key)[:32]}.npy"

    def __contains__(self, key: str) -> bool:
        return os.path.exists(self.path_of(key))

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self:
            raise KeyError(key)
        path = self.path_of(key)
        with refusing(f"{path} is not a whole .npy file", "delete it, and it is computed again"):   # after a power cut
            return np.load(path, allow_pickle=False)

    def __setitem__(self, key: str, value: np.ndarray) -> None:
        new = f"{self.folder}/new{os.getpid()}"             # two processes may share the folder
        with naming_full_disk(new), open(new, "wb") as f:
            np.save(f, value)
        os.replace(new, self.path_of(key))

    def remove(self) -> None:
        """Delete the values, and those of other extractors."""
        shutil.rmtree(self.folder, ignore_errors=True)


def read_transformed(paths: list[str], transform: Callable, n: int) -> Tensor:
    """Read photo n for a network."""
    return transform(read_photo(paths[n]))


def read_items(read: Callable, index: np.ndarray) -> tuple[dict, dict[int, InputError]]:
    """Read items in a worker process: {item: value}, and {item: why it cannot be read}."""
    values, faults = {}, {}
    for n in index.tolist():
        try:
            values[n] = read(n)
        except InputError as error:
            faults[n] = error
    return values, faults


def keep_freed_memory() -> None:
    """Tell glibc to keep memory that is freed, as a network on the CPU asks for the same blocks for every batch.
    A photo takes a quarter less CPU time, and the process 100 MB more. Other C libraries are left as they are."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2 ** 25)                           # M_MMAP_THRESHOLD, the largest that it takes
        libc.mallopt(-1, 2 ** 28)                           # M_TRIM_THRESHOLD


@torch.no_grad()
def compute_missing(values, keys: dict[int, str], read: Callable, encode: Callable, title: str, batch_size: int,
                    workers: int, skip_broken: bool = False) -> dict[int, InputError]:
    """Put encode([read(n), ...]) into values, of items {n: key} whose keys are missing.

    values: a Part, a dict, or a ChainMap of both. `read` runs in worker processes. Returns {n: why item n cannot be
    read}, which raises InputError without `skip_broken`.
    """
    keep_freed_memory()
    missing, broken = [n for n, key in keys.items() if key not in values], {}
    batches = stream(partial(read_items, read), chunks(np.array(missing, int), batch_size), workers)
    with contextlib.closing(batches), tqdm(total=len(missing), desc=title, disable=None, leave=False) as bar:
        for items, faults in batches:
            for n, value in zip(items, encode([*items.values()]) if items else ()):
                values[keys[n]] = value
            broken |= faults
            if broken and not skip_broken:
                raise next(iter(broken.values()))
            bar.update(len(items) + len(faults))
    return broken
