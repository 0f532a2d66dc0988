"""Make and change an index: find photos, embed new ones, write the file."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from data import Split, check_extractors, chunks, read_split
from features.folder import count_photos, find_photos, matches
from features.store import PhotoFile, compute_missing, read_images, stat_photo
from images import Features, is_cut, read_photo, read_year
from losses import Embedding
from options import check_fits
from photos.encoder import PhotoEncoder
from photos.index import INDEX_FORMAT, Index, index_file, lock_index
from photos.milvus import INNER_PRODUCTS, Collection, product_vectors
from utils import InputError, output, remove

PHOTOS_PER_CALL = 8  # photos that a network reads at a time
FEATURES_PER_CALL = 256  # features that are embedded at a time
SAVE_SECONDS = 30  # after which a growing index is saved, and says how far it is
LISTED_NAMES = 10  # in a note


def tell_nobody(line: str) -> None:
    """Say nothing of what is being done."""


# ---- a folder of photos


def index_folder(
    path: str,
    folder: str,
    encoder: PhotoEncoder,
    workers: int = 0,
    exclude: list[str] | None = None,
    back: list[str] = (),
    list_all: bool = False,
    tell: Callable[[str], None] = tell_nobody,
) -> list[str]:
    """Bring the index in a file up to date with a folder.

    New and changed photos are embedded, renamed or moved ones keep their vectors by the digest of
    their file, and deleted ones are dropped.

    Args:
        exclude: patterns of names that are excluded; None: those of the index.
        back: patterns of photos that `remove_photos` took out and that come back.
        list_all: the notes name everything that is left out.
        tell: is called with lines on what is being done.

    Returns sentences on what changed. Raises InputError.
    """
    path = index_file(path)
    folder = os.path.abspath(folder)
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name a file with --output")

    with lock_index(path):
        index = open_or_create(path, folder, encoder)
        if exclude is not None:
            index.manifest["exclude"] = exclude
        names, notes = find_photos(folder, True, index.manifest["exclude"], list_all)
        tell(f"reading {count_photos(len(names))} of {folder}")
        changes, more = update_index(index, folder, names, encoder, workers, back, list_all, tell)
    return [*(f"note: {note}" for note in [*notes, *more]), changes]


def update_index(
    index: Index,
    folder: str,
    names: list[str],
    encoder: PhotoEncoder,
    workers: int,
    back: list[str],
    list_all: bool,
    tell: Callable[[str], None],
) -> tuple[str, list[str]]:
    """Bring an index up to date with the photos `names` of a folder, as `index_folder` says.

    Returns a sentence on what changed, and notes.
    """
    before = {photo.name: photo for photo in index.photos}
    photos = []
    for name in names:
        photos.append(stat_photo(os.path.join(folder, name), name, before.get(name)))
    move_index(index, folder, photos)
    index.manifest["run"] = encoder.run

    there = leave_out_removed(photos, before, index.manifest["removed"], back, index.path)
    gone = count_gone(before, there)
    embedded, broken, cut = embed_new(index, there, encoder, folder, workers, tell)
    if not index.photos:
        fault = next(iter(broken.values()), "")
        raise InputError(
            f"not one of the {len(there):,} photos in {folder} can be read; the first: {fault}"
        )

    notes = []
    if broken:
        notes.append(
            f"left out, since they cannot be read: {count_photos(len(broken))}, "
            f"{list_names([*broken], list_all)}"
        )
        if list_all:
            notes += broken.values()
    if cut:
        notes.append(
            f"truncated, and read as far as they go: {count_photos(len(cut))}, "
            f"{list_names(cut, list_all)}"
        )
    out = len(photos) - len(there)
    if out:
        verb = "stays" if out == 1 else "stay"
        notes.append(
            f"{count_photos(out)} {verb} out, since python -m photos remove took them out; python "
            "-m photos add INDEX NAME adds them again"
        )
    changes = f"{embedded:,} new or changed, {gone:,} gone from the index"
    return f"{index.path}: {count_photos(len(index))}, {changes}", notes


def count_gone(before: dict[str, PhotoFile], there: list[PhotoFile]) -> int:
    """Count the photos {name: photo} of an index that the folder no longer has, under any name."""
    names = {photo.name for photo in there}
    moved = {photo.digest for photo in there if photo.name not in before}
    return sum(photo.name not in names and photo.digest not in moved for photo in before.values())


def list_names(names: list[str], list_all: bool) -> str:
    """The first names, or all."""
    if list_all or len(names) <= LISTED_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED_NAMES])} and others; --verbose lists all"


def open_or_create(path: str, folder: str, encoder: PhotoEncoder) -> Index:
    """The index in the file `path`, or a new one without photos.

    Raises InputError if it is of another folder or run.
    """
    if not os.path.exists(path):
        manifest = new_manifest(encoder, os.path.basename(folder) or folder, folder)
        return Index(path, manifest, [], Embedding(None))

    index = Index.open(path)
    manifest = index.manifest
    encoder.refuse_other_weights(path, manifest["weights"])
    if manifest["features"]:
        raise InputError(
            f"{path} was made of features of {manifest['data']}; make it again with python -m "
            "photos index --overwrite, or name another file with --output"
        )
    indexed = manifest["folder"]
    both_exist = os.path.isdir(indexed) and os.path.isdir(folder)
    if both_exist and not os.path.samefile(indexed, folder):
        raise InputError(f"{path} is the index of {indexed}; name another file with --output")
    return index


def move_index(index: Index, folder: str, photos: list[PhotoFile]) -> None:
    """Make an index one of a folder that was moved here with its photos.

    Raises InputError if none of its photos is here: it is of another folder, which is away.
    """
    known = {photo.digest for photo in index.photos} | {*index.manifest["removed"].values()}
    before = index.manifest["folder"]
    if not os.path.isdir(before) and known.isdisjoint(photo.digest for photo in photos):
        raise InputError(
            f"{index.path} is the index of {before}, which is not there, and {folder} holds none "
            "of its photos; name another file with --output"
        )
    index.manifest["folder"] = folder


def new_manifest(encoder: PhotoEncoder, data: str, folder: str | None) -> dict:
    """Describe an index without photos: `index.MANIFEST`."""
    return {
        "index": INDEX_FORMAT,
        "run": encoder.run,
        "weights": encoder.weights,
        "similarity": encoder.options.sim,
        "data": data,
        "folder": folder,
        "features": [],
        "exclude": [],
        "removed": {},
        "years": {},
        "milvus": [],
    }


def leave_out_removed(
    photos: list[PhotoFile],
    before: dict[str, PhotoFile],
    removed: dict[str, str],
    back: list[str],
    path: str,
) -> list[PhotoFile]:
    """Leave out the photos {name: digest} that `remove_photos` took out, also under a new name.

    before: the photos in the index by name. One that has not changed is no removed photo under a
    new name, but a copy of it. A photo that fits a pattern of `back` is no longer removed;
    `removed` is changed. Raises InputError if a pattern fits nothing.
    """
    for pattern in back:
        fits = [name for name in removed if matches(name, pattern)]
        if not fits:
            raise InputError(
                f"no photo that was removed from {path} is named {pattern:.80}; '*' names all of "
                "them"
            )
        for name in fits:
            del removed[name]

    names = {photo.name for photo in photos}
    moved = {digest: name for name, digest in removed.items() if name not in names}
    for photo in photos:
        is_copy = photo.name in before and before[photo.name].digest == photo.digest
        if photo.digest in moved and photo.name not in removed and not is_copy:
            removed.pop(moved[photo.digest], None)
            removed[photo.name] = photo.digest
    return [photo for photo in photos if photo.name not in removed]


# ---- embedding new photos


class ReadPhoto(NamedTuple):
    """A photo as the network reads it, and what its file says beside the pixels."""

    n: int  # its number among the photos of the folder
    pixels: Tensor  # as the network's transform gives them
    year: str  # in which it was taken; "": not known
    cut: bool  # a part of it is lost


class GrowingIndex:
    """Index that gets the photos of a folder, in the order of their names.

    It is saved from time to time, and keeps the vectors that it has by the digest of a file.

    vectors: {digest: Embedding (1, D)}. keys: {number of a photo: its digest, or its name if it
    cannot be read}. cut: names of the photos of which a part is lost.
    """

    def __init__(
        self,
        index: Index,
        photos: list[PhotoFile],
        encoder: PhotoEncoder,
        tell: Callable[[str], None],
    ):
        self.index = index
        self.photos = photos
        self.encoder = encoder
        self.tell = tell
        self.years = index.manifest["years"]
        self.vectors = {}
        for row, photo in enumerate(index.photos):
            self.vectors[photo.digest] = index.embedding.rows([row])
        self.keys = {n: photo.digest or photo.name for n, photo in enumerate(photos)}
        self.new = self.list_missing()
        self.cut: list[str] = []
        self.saved = time.monotonic()

    def list_missing(self) -> list[int]:
        """List the numbers of the photos without vectors."""
        return [n for n, key in self.keys.items() if key not in self.vectors]

    def save(self) -> None:
        """Write the index of the photos that have vectors so far."""
        index = self.index
        index.photos = [photo for photo in self.photos if photo.digest in self.vectors]
        if not index.photos:
            return
        index.embedding = Embedding.cat([self.vectors[photo.digest] for photo in index.photos])
        digests = {photo.digest for photo in index.photos}
        years = {digest: year for digest, year in self.years.items() if digest in digests}
        index.manifest["years"] = years
        index.save()

    def embed(self, read: list[ReadPhoto]) -> list[Embedding]:
        """Embed a batch of photos, and save the vectors of earlier ones if it is time for that."""
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save()
            self.saved = time.monotonic()
            if not sys.stderr.isatty():  # else a bar shows it
                done = sum(self.keys[n] in self.vectors for n in self.new)
                self.tell(f"{done:,} of {len(self.new):,} new photos are read")

        for photo in read:
            file = self.photos[photo.n]
            if photo.year:
                self.years[file.digest] = photo.year
            if photo.cut:
                self.cut.append(file.name)
        network = self.encoder.photo_network
        return split_rows(self.encoder.images(network([photo.pixels for photo in read])))


@torch.no_grad()
def embed_new(
    index: Index,
    photos: list[PhotoFile],
    encoder: PhotoEncoder,
    folder: str,
    workers: int,
    tell: Callable[[str], None],
) -> tuple[int, dict[str, str], list[str]]:
    """Put the photos that a folder holds now into an index, and save it.

    Returns how many photos were embedded, {name: fault} of those that cannot be read, and the names
    of those that are cut off.
    """
    growing = GrowingIndex(index, photos, encoder, tell)
    embed_trained(growing.vectors, encoder, folder)
    transform = None
    if growing.list_missing():
        transform = encoder.photo_network.transform
    paths = [os.path.join(folder, photo.name) for photo in photos]
    try:
        broken = compute_missing(
            growing.vectors,
            growing.keys,
            partial(read_for_index, paths, transform),
            growing.embed,
            "photos",
            PHOTOS_PER_CALL,
            workers,
            skip_broken=True,
        )
    finally:
        growing.save()
    faults = {photos[n].name: str(fault) for n, fault in broken.items()}
    return len(growing.new) - len(broken), faults, growing.cut


def embed_trained(vectors: dict[str, Embedding], encoder: PhotoEncoder, folder: str) -> None:
    """Embed the features that a run was trained on, if they are of this folder."""
    with contextlib.suppress(InputError):
        images = read_images(encoder.data_path, encoder.options.data_name)
        if images.folder != folder or images.extractor != encoder.extractors.get("ims"):
            return
        missing = [k for k, photo in enumerate(images.photos) if photo.digest not in vectors]
        for part in chunks(missing, FEATURES_PER_CALL):
            rows = split_rows(encoder.images(images.features.gather(part)))
            for k, row in zip(part, rows):
                vectors[images.photos[k].digest] = row


def read_for_index(paths: list[str], transform: Callable, n: int) -> ReadPhoto:
    """Read photo n for an index. Raises InputError."""
    photo = read_photo(paths[n], may_be_cut=True)
    return ReadPhoto(n, transform(photo), read_year(photo), is_cut(photo))


def split_rows(e: Embedding) -> list[Embedding]:
    """Split an embedding of N items into N of one, on the CPU."""
    e = e.to("cpu")
    return [e.rows([k]) for k in range(len(e.mean))]


# ---- features of a data set


def index_features(
    path: str,
    encoder: PhotoEncoder,
    name: str,
    split: str | None,
    folder: str | None = None,
    uri: str | None = None,
    token: str = "",
    overwrite: bool = False,
) -> Index:
    """Make an index of the precomputed features of a data set, below encoder.data_path.

    Args:
        name: of the data set.
        split: one of its splits; None: all photos of a folder, or the test split.
        folder: where the photos are.
        uri: of Milvus, if that shall hold the vectors; token: of Milvus.
        overwrite: replace an index of that name.

    Raises InputError.
    """
    path = output(index_file(path), overwrite=overwrite)
    similarity = encoder.options.sim
    if folder and not os.path.isdir(folder):
        raise InputError(f"--photos {folder} is not a folder; give the folder of the photos")
    if uri and similarity not in INNER_PRODUCTS:
        raise InputError(
            f"Milvus searches by an inner product, and {similarity} cannot be written as one; "
            "leave --uri out"
        )

    gallery, own_folder = read_gallery(encoder.data_path, name, split)
    refuse_misfit(encoder, gallery)
    images = gallery.images
    folder = folder or own_folder
    names = [str(x) for x in gallery.photo_names or gallery.image_ids or range(len(images))]
    manifest = new_manifest(encoder, name, folder and os.path.abspath(folder))
    manifest["features"] = [os.path.abspath(encoder.data_path), name, split or ""]

    blocks = chunks(np.arange(len(images)), FEATURES_PER_CALL)
    bar = tqdm(blocks, desc="embed", disable=None, leave=False)
    e = Embedding.cat([encoder.images(images.gather(rows)).to("cpu") for rows in bar])
    for x in e[:3]:
        if x is not None and not x.isfinite().all():
            raise InputError(
                f"{name} gives numbers that are not finite; its features or the model are broken"
            )

    if uri:
        origin = average_embedding(e)
        collection = Collection(uri, name_collection(path), token)
        remove(path)  # its collection is replaced
        vectors, _, _ = product_vectors(similarity, e, origin)
        collection.build(names, vectors, overwrite)
        manifest["milvus"] = [collection.uri, collection.name]
        e = origin
    index = Index(path, manifest, [PhotoFile(name, 0, 0, "") for name in names], e, token)
    index.save()
    return index


def average_embedding(e: Embedding) -> Embedding:
    """The mean of means and of log-variances over N items: (1, D)."""
    log_var = None
    if e.log_var is not None:
        log_var = e.log_var.mean(0, keepdim=True)
    return Embedding(e.mean.mean(0, keepdim=True), log_var)


def name_collection(path: str) -> str:
    """Name the collection of an index after its file, in ASCII: Milvus has no other characters."""
    stem = os.path.basename(path).removesuffix(".npz")
    ascii_stem = stem.encode("ascii", "xmlcharrefreplace").decode()
    return re.sub(r"\W", "_", f"photos_{ascii_stem}")


def read_gallery(data_path: str, name: str, split: str | None) -> tuple[Split, str | None]:
    """A split without its captions, or all photos of a folder, and the path of that folder."""
    all_photos = os.path.join(data_path, name, "all_ims.npy")
    if split is None and os.path.isfile(all_photos):
        images = read_images(data_path, name)
        photos = Split(
            "all",
            images.features,
            [],
            np.arange(0),
            f"the features of {name}",
            photo_names=[photo.name for photo in images.photos],
            extractors={"ims": images.extractor},
        )
        return photos, images.folder

    gallery = read_split(data_path, name, split or "test", dev_images=0)
    if not isinstance(gallery.images, Features):
        raise InputError(
            f"{gallery.source} holds no features of images; write them with features.images, or "
            "index the photos themselves with python -m photos FOLDER"
        )
    return gallery, None


def refuse_misfit(encoder: PhotoEncoder, split: Split) -> None:
    """Raise InputError if the model cannot take the images of a split."""
    check_fits(encoder.options, split.images, None, encoder.path)
    check_extractors(encoder.extractors, split, None, encoder.path)


# ---- removing photos


def remove_photos(path: str, patterns: list[str], token: str = "") -> list[str]:
    """Remove photos whose names fit patterns from an index, and keep them out.

    Raises InputError if a pattern fits none.
    """
    with lock_index(path):
        return remove_rows(Index.open(path, token), patterns)


def remove_rows(index: Index, patterns: list[str]) -> list[str]:
    """Remove photos from an index, as `remove_photos` says."""
    path = index.path
    out = set()
    for pattern in patterns:
        fits = {row for row, name in enumerate(index.names) if matches(name, pattern)}
        if not fits:
            raise InputError(
                f"no photo of {path} is named {pattern:.80}; python -m photos info {path} --names "
                "lists them"
            )
        out |= fits
    if len(out) == len(index):
        raise InputError(f"this would leave no photo in {path}; delete the file instead")

    removed = [index.photos[row] for row in sorted(out)]
    kept = [row for row in range(len(index)) if row not in out]
    index.manifest["removed"] |= {photo.name: photo.digest for photo in removed}
    index.photos = [index.photos[row] for row in kept]
    if not index.collection:
        index.embedding = index.embedding.rows(kept)
    index.save()
    if index.collection:
        index.collection.remove([photo.name for photo in removed])
    return [f"{index.path}: {count_photos(len(removed))} removed, {len(index):,} left"]
