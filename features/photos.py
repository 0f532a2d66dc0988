"""Features of a split's photos by a frozen network: the network with a one-line name, and rows that survive every
stop."""
import contextlib
import hashlib
import os
import time

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from cli import InputError
from data import Split
from encoders import CNN
from files.reading import read_array, read_json
from files.writing import CHANGING, allocate, mapped, save_array, save_json, save_lines
from inputs import Photos, stream

ROWS = 1024                           # rows copied at a time
SAVE = 20.0                           # seconds between notes of what is done


def checksum(parts) -> str:
    """The first 12 digits of the sha256 of bytes or arrays."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return f"sha256:{digest.hexdigest()[:12]}"


def network(cnn_type: str, layer: str | None = None, weights: str | None = None,
            pretrained: bool = True) -> tuple[CNN, str]:
    """A frozen network that gives the raw activations of a layer, and its one-line name.

    layer: fc7 or fc6 (VGG), (B, 4096) after the ReLU; pooled (the others), (B, F); cells, the last map, (B, 49, C).
    Raises InputError if the network has no such layer.
    """
    allowed = ("fc7", "fc6", "cells") if cnn_type.startswith("vgg") else ("pooled", "cells")
    layer = layer or allowed[0]
    if layer not in allowed:
        raise InputError(f"--layer {layer} is no layer of {cnn_type}; it has {', '.join(allowed)}")
    cnn = CNN(cnn_type, weights=weights, pretrained=pretrained, cells=layer == "cells", normalise=False).eval()
    if layer == "fc6":
        cnn.net.classifier = cnn.net.classifier[:2]                                 # linear, ReLU
    return cnn, f"{cnn_type} {layer} {checksum(x.numpy() for x in cnn.net.state_dict().values())}"


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


class PhotoReader:
    """Reads photos by their indices: (b, 3, H, W) of those that can be read, or None, and {index: error} of the
    others."""

    def __init__(self, photos: Photos, transform):
        self.photos, self.transform = photos, transform

    def __getitem__(self, index) -> tuple[torch.Tensor | None, dict[int, str]]:
        photos, broken = [], {}
        for i in map(int, index):
            try:
                photos.append(self.transform(self.photos.open(i)))
            except InputError as error:
                broken[i] = str(error)
        return torch.stack(photos) if photos else None, broken


def file_digest(path: str) -> str:
    """The first 12 digits of the sha256 of a file, or "" if it cannot be read."""
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()[:12]
    except OSError:
        return ""


class Extraction:
    """The features of a split's photos, one row per photo. After any stop the next call continues.

    {split}_photos.json lists the photos of the rows of {split}_ims.npy by name, size, time and digest. A listed photo
    that has not changed keeps its row, wherever it was. New rows go to a hidden file with its own list, which replace
    the old ones when everything is there.
    """

    def __init__(self, folder: str, split: Split, line: str, shape: tuple, dtype):
        self.folder, self.split, self.line, self.dtype = folder, split, line, dtype
        self.shape = len(split.images), *shape
        self.path, self.list = (os.path.join(folder, f"{split.name}_{end}") for end in ("ims.npy", "photos.json"))
        self.part, self.part_list = (os.path.join(folder, f".{split.name}_{end}")
                                     for end in ("ims.part", "photos.part"))
        self.changing = os.path.join(folder, CHANGING.format(split.name))
        self.names = photo_names(split.images.paths)
        self.rows = [None] * len(self.names)    # [name, size, time, content] or [name, what is wrong]; None: to do

    def listed(self, path: str) -> list:
        """The rows of a list of photos, or [] if it is of another extractor."""
        stored = read_json(path, "delete it and extract again") if os.path.isfile(path) else {}
        rows = stored.get("photos") if isinstance(stored, dict) and stored.get("extractor") == self.line else None
        sound = isinstance(rows, list) and all(
            row is None or isinstance(row, list) and len(row) in (2, 4) and isinstance(row[0], str) for row in rows)
        return rows if sound else []

    def unchanged(self, i: int, row: list) -> bool:
        """Whether photo i is still the one that this row of a list describes."""
        path = self.split.images.paths[i]
        if len(row) != 4 or not os.path.isfile(path):
            return False
        stat = os.stat(path)
        return [stat.st_size, stat.st_mtime_ns] == row[1:3] or stat.st_size == row[1] and file_digest(path) == row[3]

    def prepare(self) -> bool:
        """Take over existing rows. Returns whether nothing is left to do."""
        old = {row[0]: (k, row) for k, row in enumerate(self.listed(self.list)) if row and len(row) == 4}
        whole = read_array(self.path, "delete it and extract again") if os.path.isfile(self.path) else None
        if whole is None or whole.shape != (len(old), *self.shape[1:]):
            old = {}
        if whole is not None and not old:
            print(f"{self.path}: nothing tells which photos its rows are of, so they are computed again")
        begun = self.listed(self.part_list)
        if [row and row[0] for row in begun if row] != [name for name, row in zip(self.names, begun) if row] or \
                len(begun) != len(self.names):
            begun = []
        if os.path.exists(self.changing) and begun and all(begun) and not os.path.exists(self.part):
            self.rows = begun                               # stopped between putting the features and the list in place
            return self.finish(np.flatnonzero([len(row) == 4 for row in begun]))
        keep = [old[name][0] if name in old and self.unchanged(i, old[name][1]) else -1
                for i, name in enumerate(self.names)]
        if keep == list(range(len(old))) and not os.path.exists(self.changing):
            self.rows = [old[name][1] for name in self.names]
            for path in (self.part, self.part_list):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
            return True
        part = os.path.isfile(self.part) and read_array(self.part, "delete it and extract again").shape == self.shape
        self.array = (np.lib.format.open_memmap(self.part, "r+") if begun and part
                      else allocate(self.part, self.shape, self.dtype))
        self.rows = [row if row and part and self.unchanged(i, row) else None
                     for i, row in enumerate(begun)] or self.rows
        for i, k in enumerate(keep):
            if k >= 0 and self.rows[i] is None:
                self.array[i], self.rows[i] = whole[k], old[self.names[i]][1]
        return False

    def run(self, net: nn.Module, transform, opt, device) -> None:
        """Compute the missing rows: net of photos that `transform` prepares. Raises InputError for a photo that cannot
        be read, unless opt.skip_broken is set."""
        todo = np.flatnonzero([row is None for row in self.rows])
        chunks = [todo[k:k + opt.batch_size] for k in range(0, len(todo), opt.batch_size)]
        reader, saved = PhotoReader(self.split.images, transform), time.monotonic()
        try:
            with tqdm(total=len(self.rows), initial=len(self.rows) - len(todo), desc=self.split.name, disable=None,
                      leave=False) as bar:
                for chunk, (photos, broken) in zip(chunks, stream(reader, chunks, opt.workers)):
                    good = [i for i in chunk.tolist() if i not in broken]
                    if good:
                        self.array[good] = net(photos.to(device)).cpu().numpy().astype(self.dtype)
                    for i in good:
                        path = self.split.images.paths[i]
                        stat = os.stat(path)
                        self.rows[i] = [self.names[i], stat.st_size, stat.st_mtime_ns, file_digest(path)]
                    for i, wrong in broken.items():
                        if not opt.skip_broken:
                            raise InputError(f"{wrong}; or go on without such photos: --skip_broken")
                        self.rows[i] = [self.names[i], wrong]
                    bar.update(len(chunk))
                    if time.monotonic() - saved > SAVE:
                        self.save()
                        saved = time.monotonic()
        except BaseException:
            self.save()                                     # what is done stays, whatever ends this
            raise
        self.save()

    def save(self) -> None:
        """Write down which rows of the hidden file are done."""
        self.array.flush()
        save_json({"extractor": self.line, "photos": self.rows}, self.part_list)

    def commit(self, order: np.ndarray) -> None:
        """Put features, texts and list in place. Readers refuse the split meanwhile. Raises InputError if no photo
        could be read."""
        kept = np.flatnonzero([len(row) == 4 for row in self.rows])
        if not len(kept):
            raise InputError(f"not one of the {len(self.rows)} photos of {self.split.name} can be read; the first: "
                             f"{self.rows[0][1]}")
        with open(self.changing, "w", encoding="ascii"):
            pass
        write_texts(self.folder, self.split, order, kept)
        if len(kept) < len(self.rows):
            with mapped(self.path, (len(kept), *self.shape[1:]), self.dtype) as out:
                for k in range(0, len(kept), ROWS):
                    out[k:k + ROWS] = self.array[kept[k:k + ROWS]]
        else:
            self.array.flush()
            os.replace(self.part, self.path)
        self.finish(kept)

    def finish(self, kept: np.ndarray) -> bool:
        """Write the list of the photos `kept` and remove the hidden files. Returns True."""
        save_json({"extractor": self.line, "photos": [self.rows[k] for k in kept]}, self.list)
        for path in (self.part, self.part_list, self.changing):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        return True
