"""Features of photos in an .npy file, beside a list of photos that have them.

{split}_ims.npy has one row per photo, and {split}_photos.json lists their names with the digests of
their files, which identify a photo that was renamed or moved. New features are kept in a hidden
folder until the file is complete, so that an interrupted run can continue.
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

from data import chunks, read_extractors, stream
from images import Features, read_photo
from utils import (
    InputError,
    file_digest,
    naming_full_disk,
    need,
    read_json,
    refusing,
    remove,
    save_json,
    sha256,
    writable,
)

ALL = "all"  # the split that holds a folder of photos
SPLITS = ("train", "restval", "dev", "val", "test", "testall")
# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, and their values in bytes: the largest that the
# first can have, and more than a network asks for.
MALLOC_OPTIONS = {-3: 2**25, -1: 2**28}


class PhotoFile(NamedTuple):
    """A photo's file as it was when its features were computed."""

    name: str
    size: int  # bytes
    time: int  # of the last change, in ns
    digest: str  # "": it cannot be read


class Images(NamedTuple):
    """Features of N photos, as `features.images` wrote them."""

    features: Features  # (N, F) or (N, P, F)
    photos: list[PhotoFile]  # of a folder: their names are paths below it, with /
    folder: str  # its absolute path; "": the photos are of a data set
    extractor: str  # the line of features.json


def stat_photo(path: str, name: str, before: PhotoFile | None) -> PhotoFile:
    """Describe a photo's file. Its digest is computed again if its size or time has changed."""
    try:
        stat = os.stat(path)
    except OSError:
        return PhotoFile(name, 0, 0, "")
    size = stat.st_size
    time = stat.st_mtime_ns
    if before and (before.size, before.time) == (size, time):
        return PhotoFile(name, size, time, before.digest)
    return PhotoFile(name, size, time, file_digest(path))


def list_path(folder: str, split: str) -> str:
    return os.path.join(folder, f"{split}_photos.json")


def read_images(data_path: str, data_name: str, split: str = ALL) -> Images:
    """Open the features of the photos of a folder or a split. Raises InputError if incomplete."""
    root = os.path.join(data_path, data_name)
    path = list_path(root, split)
    features_path = os.path.join(root, f"{split}_ims.npy")
    again = f"call `python -m features.images --folder FOLDER --output_name {data_name}`"
    need(path, again)
    need(features_path, again)

    content = read_json(path, again)
    features = Features(features_path)
    with refusing(f"{path} is not a whole list of photos", again):
        photos = []
        for name, size, time, digest in content["photos"]:
            photos.append(PhotoFile(str(name), int(size), int(time), str(digest)))
        folder = str(content.get("folder", ""))
        images = Images(features, photos, folder, str(content["extractor"]))
    if len(features) != len(photos):
        raise InputError(
            f"{features_path} has {len(features):,} rows for {len(photos):,} photos in {path}; "
            f"delete {path} and {again}"
        )
    return images


def record_extractor(folder: str, suffix: str, line: str) -> None:
    """Write to features.json what makes {split}_{suffix}.npy in this folder.

    Files of an earlier fit by the same recipe are deleted, so that a folder never mixes two fits.
    Raises InputError if the folder has files of another extractor.
    """
    path = writable(os.path.join(folder, "features.json"))
    recorded = read_extractors(folder)
    files = []
    for split in (*SPLITS, ALL):
        file = os.path.join(folder, f"{split}_{suffix}.npy")
        if os.path.isfile(file):
            files.append(file)

    before = recorded.get(suffix, "an extractor that no features.json names")
    same_recipe = before.split(", fitted")[0] == line.split(", fitted")[0]
    if files and not same_recipe:
        raise InputError(
            f"{files[0]} is of '{before}' and these are of '{line}'; give another name, or delete "
            "the old ones"
        )
    if before != line:
        remove(*files)
        save_json({**recorded, suffix: line}, path)


# ---- computing


class Part:
    """Values of items by key, each an .npy file in a hidden folder beside `path`.

    made: a plain value that says what makes the values. It is part of the key.
    """

    def __init__(self, path: str, made):
        # "values" is no number, since remove_parts_of_ended_processes reads a number there as that
        # of a process
        name = f".{os.path.basename(path)}.values.part"
        self.folder = os.path.join(os.path.dirname(path), name)
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
        fix = "delete it, and it is computed again"
        with refusing(f"{path} is not a whole .npy file", fix):  # after a power cut
            return np.load(path, allow_pickle=False)

    def __setitem__(self, key: str, value: np.ndarray) -> None:
        new = f"{self.folder}/new{os.getpid()}"  # two processes may share the folder
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
    values = {}
    faults = {}
    for n in index.tolist():
        try:
            values[n] = read(n)
        except InputError as error:
            faults[n] = error
    return values, faults


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: a network on the CPU asks for the same blocks every batch.

    A photo takes a quarter less CPU time, and the process 100 MB more. Other C libraries are left
    as they are.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        for option, value in MALLOC_OPTIONS.items():
            libc.mallopt(option, value)


@torch.no_grad()
def compute_missing(
    values,
    keys: dict[int, str],
    read: Callable,
    encode: Callable,
    title: str,
    batch_size: int,
    workers: int,
    skip_broken: bool = False,
) -> dict[int, InputError]:
    """Put encode([read(n), ...]) into values, for items {n: key} whose keys are missing.

    Args:
        values: a Part, a dict, or a ChainMap of both.
        read: n -> item; runs in worker processes, and raises InputError.
        encode: items of a batch -> their values.
        title: of the progress bar.
        skip_broken: leave out items that cannot be read.

    Returns {n: why item n cannot be read}. Raises the first of these without `skip_broken`.
    """
    keep_freed_memory()
    missing = [n for n, key in keys.items() if key not in values]
    blocks = chunks(np.array(missing, int), batch_size)
    batches = stream(partial(read_items, read), blocks, workers)
    bar = tqdm(total=len(missing), desc=title, disable=None, leave=False)
    broken = {}
    with contextlib.closing(batches), bar:
        for items, faults in batches:
            if items:
                for n, value in zip(items, encode([*items.values()])):
                    values[keys[n]] = value
            broken |= faults
            if broken and not skip_broken:
                raise next(iter(broken.values()))
            bar.update(len(items) + len(faults))
    return broken
