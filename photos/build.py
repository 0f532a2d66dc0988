"""Make and change an index: find photos, embed new ones, write the file."""
import contextlib
import fnmatch
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from cli import InputError, check
from data import chunks, compose_name, read_split, stream
from features.folder import find_photos, read_images
from features.store import PhotoFile, read_items, stat_photo
from images import Features, NoImages, read_photo
from losses import Embedding
from photos.encoder import Encoder
from photos.index import FORMAT, Index, index_file, read_index
from photos.milvus import Collection
from photos.vectors import INNER_PRODUCTS, image_vectors

BATCH = 8                             # photos that a network reads at a time
ROWS = 1024                           # features that are embedded at a time
SAVE = 30                             # seconds after which an index that grows is saved
LISTED = 10                           # names in a note


class Machine(NamedTuple):
    """Device and processes of the computation.
    No result depends on it."""
    device: object = "cpu"            # a torch.device or its name
    workers: int = 0                  # processes that read photos


def matches(name: str, pattern: str) -> bool:
    """True if a photo's path, or a folder above it, fits a pattern.
    Accents count as NFC or NFD."""
    name, pattern = compose_name(name), compose_name(pattern).rstrip("/")
    parts = name.split("/")
    paths = ["/".join(parts[:k + 1]) for k in range(len(parts))]
    return any(path == pattern or fnmatch.fnmatchcase(path, pattern) for path in [*paths, *parts])


def list_names(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + f" and {len(names) - LISTED:,} more" * (len(names) > LISTED)


def count_photos(n: int) -> str:
    return f"{n:,} photo{'s' * (n != 1)}"


# ---- a folder of photos

def prepare(paths: list[str], transform, n: int) -> Tensor:
    """Read photo n and prepare it for a network."""
    return transform(read_photo(paths[n]))


@torch.no_grad()
def embed_photos(encoder: Encoder, paths: list[str], workers: int) -> Iterator[tuple[list[str], Embedding | None]]:
    """Embed photos in batches.
    Returns the fault of each, or "", and the embedding of the photos without one."""
    if not paths:
        return
    network, transform = encoder.photo_network
    read = partial(read_items, partial(prepare, paths, transform))
    with tqdm(total=len(paths), desc="photos", disable=None, leave=False) as bar:
        for values in stream(read, chunks(np.arange(len(paths)), BATCH), workers):
            faults = [str(value) if isinstance(value, InputError) else "" for value in values]
            ready = [value for value, fault in zip(values, faults) if not fault]
            images = encoder.images(network(torch.stack(ready).to(encoder.device))) if ready else None
            yield faults, images and images.to("cpu")
            bar.update(len(faults))


def read_trained_features(encoder: Encoder, folder: str) -> tuple[Features | None, dict[str, int]]:
    """Read the features of a folder that a run was trained on, and {digest: row}."""
    with contextlib.suppress(InputError):
        images = read_images(encoder.data_path, encoder.options.data_name)
        if images.folder == folder and images.extractor == encoder.extractors.get("ims"):
            return images.features, {photo.digest: row for row, photo in enumerate(images.photos)}
    return None, {}


def index_folder(output: str, folder: str, encoder: Encoder, run: str | None, machine: Machine,
                 exclude: list[str] | None = None, back: list[str] = ()) -> list[str]:
    """Bring the index in the file `output` up to date with a folder.
    New and changed photos are embedded, renamed or moved ones keep their vectors by the digest of their file, and
    deleted ones are dropped.

    exclude: patterns of names that stay out; None: those of the index. back: patterns of photos that `remove` took out
    and that come back. Returns sentences on what changed. Raises InputError.
    """
    check(os.path.isdir(folder), f"{folder} is not a folder; give the folder that holds your photos")
    folder, output = os.path.abspath(folder), index_file(output)
    index = open_for(output, folder, encoder, run)
    manifest = index.manifest
    if exclude is not None:
        manifest["exclude"] = [pattern.rstrip("/") for pattern in exclude]
    names, notes = find_photos(folder, skip_broken=True, exclude=manifest["exclude"])
    check(names, f"{folder} holds no photo ({'; '.join(notes) or 'it is empty'}); photos are files whose names end "
                 "with .jpg, .png, .webp or another ending of photos")
    before = {photo.name: photo for photo in index.photos}
    photos = [stat_photo(os.path.join(folder, name), name, before.get(name)) for name in names]
    photos, out = leave_out_removed(photos, manifest["removed"], back, output)
    changes = Changes(index, photos)
    broken = changes.embed(encoder, folder, machine)
    check(index.photos, f"not one of the {len(photos):,} photos in {folder} can be read; the first: "
                        f"{next(iter(broken.values()), '')}")
    notes = [f"note: {note}" for note in notes]
    if broken:
        notes.append(f"note: {count_photos(len(broken))} cannot be read and {'is' if len(broken) == 1 else 'are'} left "
                     f"out: {list_names([*broken])}")
    if out:
        notes.append(f"note: {count_photos(out)} stay{'s' * (out == 1)} out as python -m photos remove took them out; "
                     "python -m photos add INDEX NAME takes them in again")
    return [*notes, changes.sentence()]


def open_for(output: str, folder: str, encoder: Encoder, run: str | None) -> Index:
    """The index in the file `output`, or a new one without photos.
    Raises InputError where it is of another folder or run."""
    check(not os.path.isdir(output), f"{output} is a folder; name a file with --output")
    if not os.path.exists(output):
        manifest = new_manifest(encoder, run, os.path.basename(folder) or folder, folder)
        return Index(output, manifest, [], Embedding(None))
    index = Index.open(output)
    of = index.manifest
    encoder.refuse_other_weights(output, of["weights"])
    check(not of["features"], f"{output} was made of features of {of['data']}; make it again with python -m photos "
                              "index --overwrite, or name another file with --output")
    check(of["folder"] == folder or not os.path.isdir(of["folder"]) or os.path.samefile(of["folder"], folder),
          f"{output} is the index of {of['folder']}; name another file with --output")
    of |= {"folder": folder, "run": run and os.path.abspath(run)}
    return index


def new_manifest(encoder: Encoder, run: str | None, data: str, folder: str | None) -> dict:
    return {"index": FORMAT, "run": run and os.path.abspath(run), "weights": encoder.weights,
            "similarity": encoder.options.sim, "data": data, "folder": folder, "features": [], "exclude": [],
            "removed": {}, "milvus": []}


def leave_out_removed(photos: list[PhotoFile], removed: dict[str, str], back: list[str], output: str
                      ) -> tuple[list[PhotoFile], int]:
    """Leave out the photos that `remove` took out, under any name; count them.
    A photo that fits a pattern of `back` is removed no longer. Raises InputError where a pattern fits nothing."""
    for pattern in back:
        fits = [name for name in removed if matches(name, pattern)]
        check(fits, f"no photo that was removed from {output} is named {pattern}; '*' names all of them")
        for name in fits:
            del removed[name]
    names = {photo.name for photo in photos}
    moved = {digest: name for name, digest in removed.items() if name not in names}
    for photo in photos:
        if photo.digest in moved and photo.name not in removed:
            removed.pop(moved[photo.digest], None)
            removed[photo.name] = photo.digest
    rest = [photo for photo in photos if photo.name not in removed]
    return rest, len(photos) - len(rest)


class Changes:
    """Differences of an index and the photos of its folder as they are now."""

    def __init__(self, index: Index, photos: list[PhotoFile]):
        self.index, self.photos, names = index, photos, {photo.name for photo in photos}
        before = {photo.name: photo.digest for photo in index.photos}
        rows = {photo.digest: row for row, photo in enumerate(index.photos)}
        self.row = {n: rows[photo.digest] for n, photo in enumerate(photos)     # number of a photo: its row before
                    if photo.digest and photo.digest in rows}
        away = {photo.digest for photo in index.photos if photo.name not in names}
        new = [photo for photo in photos if photo.name not in before]
        moved = {photo.digest for photo in new} & away
        self.changed = {photo.name for photo in photos if before.get(photo.name, photo.digest) != photo.digest}
        self.moved = {photo.name for photo in new if photo.digest in moved}
        self.added = {photo.name for photo in new} - self.moved
        self.gone = {name for name, digest in before.items() if name not in names and digest not in moved
                     and not any(matches(name, pattern) for pattern in index.manifest["exclude"])}

    def embed(self, encoder: Encoder, folder: str, machine: Machine) -> dict[str, str]:
        """Embed photos without vectors and put all into the index.
        The index is saved from time to time. Returns {name: fault} of photos that cannot be read."""
        todo = [n for n in range(len(self.photos)) if n not in self.row]
        done = sorted(self.row)
        pieces = [self.index.embedding.rows([self.row[n] for n in done])] if done else []
        trained, rows = read_trained_features(encoder, folder)
        for part in chunks([n for n in todo if self.photos[n].digest in rows], ROWS):
            pieces.append(encoder.images(trained.gather([rows[self.photos[n].digest] for n in part])).to("cpu"))
            done += part
        todo = sorted({*todo} - {*done})
        broken, saved, at = {}, time.monotonic(), 0
        try:
            for faults, images in embed_photos(encoder, [os.path.join(folder, self.photos[n].name) for n in todo],
                                               machine.workers):
                here = todo[at:at + len(faults)]
                at += len(faults)
                broken |= {self.photos[n].name: fault for n, fault in zip(here, faults) if fault}
                done += [n for n, fault in zip(here, faults) if not fault]
                pieces += [] if images is None else [images]
                if time.monotonic() - saved > SAVE:
                    begun = time.monotonic()
                    self.save(done, pieces)
                    saved = time.monotonic() + 10 * (time.monotonic() - begun)    # saving takes a tenth at most
        finally:
            self.save(done, pieces)
        self.changed &= {*self.index.names}
        self.added &= {*self.index.names}
        return broken

    def save(self, done: list[int], pieces: list[Embedding]) -> None:
        """Write the index of the photos numbered `done`, in the order of their names.
        pieces: their embeddings."""
        if not done:
            return
        pieces[:] = [Embedding.cat(pieces)]
        order = np.argsort(done, kind="stable").tolist()
        self.index.photos = [self.photos[done[k]] for k in order]
        self.index.embedding = pieces[0].rows(order)
        self.index.save()

    def sentence(self) -> str:
        parts = [f"{count_photos(len(self.index))}", f"{len(self.added):,} added"]
        parts += [f"{len(names):,} {word}" for names, word in (
            (self.changed, "changed"), (self.moved, "renamed or moved, whose vectors stay"),
            (self.gone, "gone from the folder and from the index")) if names]
        return f"{self.index.path}: {', '.join(parts)}"


# ---- features of a data set

def index_features(output: str, run: str, features: tuple[str, str, str | None], folder: str | None, machine: Machine,
                   milvus: tuple[str, str] | None, token: str, overwrite: bool) -> Index:
    """Make an index of ready features, or of the photos of a split, by a run.
    Ready features are (data_path, name, split).

    folder: where the photos lie. milvus: URI and name of the collection that holds the vectors. Raises InputError.
    """
    path = index_file(output)
    check(not os.path.isdir(path), f"{path} is a folder; name a file with --output")
    check(overwrite or not os.path.exists(path),
          f"{path} is there already; replace it with --overwrite, or name another file with --output")
    check(not folder or os.path.isdir(folder), f"--photos {folder} is not a folder; give the folder of the photos")
    encoder = Encoder(run, device=machine.device, data_path=features[0])
    images, names, line, own_folder = read_gallery(*features)
    refuse_misfit(encoder, images, line, features[1])
    folder = folder or own_folder
    manifest = new_manifest(encoder, run, features[1], folder and os.path.abspath(folder))
    manifest["features"] = [os.path.abspath(features[0]), features[1], features[2] or ""]
    batches = stream(images.gather, chunks(np.arange(len(images)), 128), machine.workers * images.parallel)
    batches = [encoder.images(rows).to("cpu") for rows in tqdm(batches, desc="embed", disable=None, leave=False)]
    e = Embedding.cat(batches)
    check(all(x is None or x.isfinite().all() for x in e[:3]),
          f"{features[1]} gives numbers that are not finite; its features or the model are broken")
    if milvus:
        check(encoder.options.sim in INNER_PRODUCTS, f"Milvus searches by one inner product, and {encoder.options.sim} "
                                                     "is none; leave --uri out")
        origin = Embedding(*(None if x is None else x.mean(0, keepdim=True) for x in e[:2]))
        vectors = image_vectors(encoder.options.sim, e, origin)
        parts = ((names[k:k + ROWS], vectors[k:k + ROWS]) for k in range(0, len(names), ROWS))
        before = collection_of(path)
        collection = Collection.build(*milvus, token, vectors.shape[1], parts, before, overwrite)
        manifest["milvus"], e = [collection.uri, collection.name], origin
    index = Index(path, manifest, [PhotoFile(name, 0, 0, "") for name in names], e, token)
    index.save()
    if milvus:
        index.collection.drop_other()
    return index


def collection_of(path: str) -> str | None:
    """The collection of Milvus that an index which is to be replaced uses."""
    with contextlib.suppress(InputError):
        milvus = read_index(path)[0]["milvus"]
        return milvus[1] if milvus else None
    return None


def read_gallery(data_path: str, name: str, split: str | None) -> tuple[Features, list[str], str | None, str | None]:
    """Images, their names, what made their features and the folder of their photos."""
    if split is None and os.path.isfile(os.path.join(data_path, name, "all_ims.npy")):
        images = read_images(data_path, name)
        return images.features, [photo.name for photo in images.photos], images.extractor, images.folder
    of = read_split(data_path, name, split or "test", dev_images=0)
    check(not isinstance(of.images, NoImages), f"{of.source} has captions and no images; index a split with features")
    ids = of.photo_names or of.image_ids or range(len(of.images))
    if not of.images.parallel or not hasattr(of.images, "paths"):
        return of.images, [str(x) for x in ids], (of.extractors or {}).get("ims"), None
    folder = os.path.commonpath([os.path.dirname(path) for path in of.images.paths])
    return of.images, [os.path.relpath(path, folder) for path in of.images.paths], None, folder


def refuse_misfit(encoder: Encoder, images: Features, line: str | None, name: str) -> None:
    """Raise InputError where the model cannot take the images."""
    trained, width = encoder.extractors.get("ims"), images.dim
    reads, holds = ("photos" if photos else "features" for photos in (encoder.reads_photos, width is None))
    check(reads == holds, f"{encoder.path} reads {reads}, and {name} holds {holds}; name others with --images")
    check(width is None or encoder.options.img_dim == width,
          f"{name} has features of {width} numbers, and {encoder.path} was trained on {encoder.options.img_dim}; "
          "extract them with the same network")
    check(not trained or not line or trained == line,
          f"{encoder.path} was trained on photos of '{trained}', and these features are of '{line}'; extract them with "
          "the same network")


# ---- taking photos out

def remove(path: str, patterns: list[str], token: str = "") -> list[str]:
    """Take photos whose names fit patterns out of an index, where they stay out.
    Raises InputError where a pattern fits none."""
    index = Index.open(path, token)
    out = set()
    for pattern in patterns:
        fits = {row for row, name in enumerate(index.names) if matches(name, pattern)}
        check(fits, f"no photo of {path} is named {pattern}; python -m photos info {path} --names lists them")
        out |= fits
    check(len(out) < len(index), f"this would leave no photo in {path}; delete the file instead")
    removed = [index.photos[row] for row in sorted(out)]
    index.manifest["removed"] |= {photo.name: photo.digest for photo in removed}
    index.keep([row for row in range(len(index)) if row not in out])
    index.save()
    if index.collection:
        index.collection.remove([photo.name for photo in removed])
    return [f"{index.path}: {count_photos(len(removed))} removed, {len(index):,} left"]
