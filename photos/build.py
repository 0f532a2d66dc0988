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

from cli import InputError, check
from data import Split, check_extractors, chunks, read_split
from features.folder import count_photos, find_photos, matches
from features.store import PhotoFile, compute_missing, read_images, stat_photo
from files import output, remove
from images import Features, is_cut, read_photo, read_year
from losses import Embedding
from options import check_fits
from photos.encoder import PhotoEncoder
from photos.index import FORMAT, Index, index_file, lock_index
from photos.milvus import INNER_PRODUCTS, Collection, product_vectors

BATCH = 8                             # photos that a network reads at a time
ROWS = 256                            # features that are embedded at a time
SAVE = 30                             # seconds after which a growing index is saved, and says how far it is
LISTED = 10                           # names in a note


# ---- a folder of photos

def index_folder(path: str, folder: str, encoder: PhotoEncoder, workers: int = 0,
                 exclude: list[str] | None = None, back: list[str] = (), list_all: bool = False,
                 tell: Callable[[str], None] = lambda line: None) -> list[str]:
    """Bring the index in a file up to date with a folder.

    New and changed photos are embedded, renamed or moved ones keep their vectors by the digest of
    their file, and deleted ones are dropped.

    Args:
        exclude: patterns of names that stay out; None: those of the index.
        back: patterns of photos that `remove_photos` took out and that come back.
        list_all: the notes name everything that is left out.
        tell: is called with lines on what is being done.

    Returns sentences on what changed. Raises InputError.
    """
    path = index_file(path)
    folder = os.path.abspath(folder)
    check(not os.path.isdir(path), f"{path} is a folder; name a file with --output")
    with lock_index(path):
        index = open_or_create(path, folder, encoder)
        if exclude is not None:
            index.manifest["exclude"] = exclude
        names, notes = find_photos(folder, True, index.manifest["exclude"], list_all)
        tell(f"reading {count_photos(len(names))} of {folder}")
        changes, more = update_index(index, folder, names, encoder, workers, back, list_all, tell)
    return [*(f"note: {note}" for note in [*notes, *more]), changes]


def update_index(index: Index, folder: str, names: list[str], encoder: PhotoEncoder, workers: int,
                 back: list[str], list_all: bool, tell: Callable[[str], None]) -> tuple[str, list[str]]:
    """Bring an index up to date with the photos `names` of a folder, as `index_folder` says.
    Returns a sentence on what changed, and notes."""
    manifest = index.manifest
    before = {photo.name: photo for photo in index.photos}
    photos = [stat_photo(os.path.join(folder, name), name, before.get(name)) for name in names]
    move_index(index, folder, photos)
    manifest["run"] = encoder.run
    there = leave_out_removed(photos, manifest["removed"], back, index.path)
    names, moved = {photo.name for photo in there}, {photo.digest for photo in there if photo.name not in before}
    gone = sum(photo.name not in names and photo.digest not in moved for photo in before.values())
    embedded, broken, cut = embed_new(index, there, encoder, folder, workers, tell)
    check(index.photos, f"not one of the {len(there):,} photos in {folder} can be read; the first: "
                        f"{next(iter(broken.values()), '')}")
    notes = []
    if broken:
        notes.append(f"cannot be read and left out: {count_photos(len(broken))}, "
                     f"{list_names([*broken], list_all)}")
        if list_all:
            notes += broken.values()
    if cut:
        notes.append(f"cut off, and read as far as they go: {count_photos(len(cut))}, "
                     f"{list_names(cut, list_all)}")
    if out := len(photos) - len(there):
        notes.append(f"{count_photos(out)} stay{'s' * (out == 1)} out as python -m photos remove took them out; "
                     "python -m photos add INDEX NAME takes them in again")
    changes = f"{embedded:,} new or changed, {gone:,} gone from the index"
    return f"{index.path}: {count_photos(len(index))}, {changes}", notes


def list_names(names: list[str], list_all: bool) -> str:
    """The first names, or all."""
    if list_all or len(names) <= LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED])} and others; --verbose lists all"


def open_or_create(path: str, folder: str, encoder: PhotoEncoder) -> Index:
    """The index in the file `path`, or a new one without photos.
    Raises InputError where it is of another folder or run."""
    if not os.path.exists(path):
        return Index(path, new_manifest(encoder, os.path.basename(folder) or folder, folder), [], Embedding(None))
    index = Index.open(path)
    of = index.manifest
    encoder.refuse_other_weights(path, of["weights"])
    check(not of["features"], f"{path} was made of features of {of['data']}; make it again with python -m photos index "
                              "--overwrite, or name another file with --output")
    there = os.path.isdir(of["folder"]) and os.path.isdir(folder)
    check(not there or os.path.samefile(of["folder"], folder),
          f"{path} is the index of {of['folder']}; name another file with --output")
    return index


def move_index(index: Index, folder: str, photos: list[PhotoFile]) -> None:
    """Make an index one of a folder that was moved here with its photos.
    Raises InputError where none of its photos is here: it is of another folder, which is away."""
    known = {photo.digest for photo in index.photos} | {*index.manifest["removed"].values()}
    before = index.manifest["folder"]
    if not os.path.isdir(before) and known.isdisjoint(photo.digest for photo in photos):
        raise InputError(f"{index.path} is the index of {before}, which is not there, and {folder} "
                         "holds none of its photos; name another file with --output")
    index.manifest["folder"] = folder


def new_manifest(encoder: PhotoEncoder, data: str, folder: str | None) -> dict:
    return {"index": FORMAT, "run": encoder.run, "weights": encoder.weights, "similarity": encoder.options.sim,
            "data": data, "folder": folder, "features": [], "exclude": [], "removed": {}, "years": {},
            "milvus": []}


def leave_out_removed(photos: list[PhotoFile], removed: dict[str, str], back: list[str], path: str) -> list[PhotoFile]:
    """Leave out the photos that `remove_photos` took out, under any name.
    A photo that fits a pattern of `back` is removed no longer. Raises InputError where a pattern fits nothing."""
    for pattern in back:
        fits = [name for name in removed if matches(name, pattern)]
        check(fits, f"no photo that was removed from {path} is named {pattern:.80}; '*' names all of them")
        for name in fits:
            del removed[name]
    names = {photo.name for photo in photos}
    moved = {digest: name for name, digest in removed.items() if name not in names}
    for photo in photos:
        if photo.digest in moved and photo.name not in removed:
            removed.pop(moved[photo.digest], None)
            removed[photo.name] = photo.digest
    return [photo for photo in photos if photo.name not in removed]


def embed_trained(vectors: dict[str, Embedding], encoder: PhotoEncoder, folder: str) -> None:
    """Embed the features that a run was trained on, where they are of this folder."""
    with contextlib.suppress(InputError):
        images = read_images(encoder.data_path, encoder.options.data_name)
        if images.folder == folder and images.extractor == encoder.extractors.get("ims"):
            for part in chunks([k for k, photo in enumerate(images.photos) if photo.digest not in vectors], ROWS):
                rows = split_rows(encoder.images(images.features.gather(part)))
                vectors.update(zip([images.photos[k].digest for k in part], rows))


@torch.no_grad()
def embed_new(index: Index, photos: list[PhotoFile], encoder: PhotoEncoder, folder: str,
              workers: int, tell: Callable[[str], None]) -> tuple[int, dict[str, str], list[str]]:
    """Put the photos that a folder holds now into an index, in the order of their names.
    Vectors that the index has by the digest of a file stay. The index is saved from time to time.

    Returns how many photos were embedded, {name: fault} of those that cannot be read, and the names
    of those that are cut off.
    """
    vectors = {photo.digest: index.embedding.rows([row]) for row, photo in enumerate(index.photos)}
    years, cut = index.manifest["years"], []
    keys = {n: photo.digest or photo.name for n, photo in enumerate(photos)}
    new, saved = [n for n, key in keys.items() if key not in vectors], time.monotonic()

    def save() -> None:
        index.photos = [photo for photo in photos if photo.digest in vectors]
        if index.photos:
            index.embedding = Embedding.cat([vectors[photo.digest] for photo in index.photos])
            digests = {photo.digest for photo in index.photos}
            index.manifest["years"] = {digest: year for digest, year in years.items()
                                       if digest in digests}
            index.save()

    def encode(read: list[ReadPhoto]) -> list[Embedding]:
        nonlocal saved
        if time.monotonic() - saved > SAVE:
            save()
            saved = time.monotonic()
            if not sys.stderr.isatty():                     # where no bar is drawn
                tell(f"{sum(keys[n] in vectors for n in new):,} of {len(new):,} new photos are read")
        for photo in read:
            if photo.year:
                years[photos[photo.n].digest] = photo.year
            if photo.cut:
                cut.append(photos[photo.n].name)
        return split_rows(encoder.images(network([photo.pixels for photo in read])))
    embed_trained(vectors, encoder, folder)
    network = encoder.photo_network if any(keys[n] not in vectors for n in new) else None
    paths = [os.path.join(folder, photo.name) for photo in photos]
    read = partial(read_for_index, paths, network and network.transform)
    try:
        broken = compute_missing(vectors, keys, read, encode, "photos", BATCH, workers, skip_broken=True)
    finally:
        save()
    return len(new) - len(broken), {photos[n].name: str(fault) for n, fault in broken.items()}, cut


class ReadPhoto(NamedTuple):
    """A photo as the network reads it, and what its file says beside the pixels."""
    n: int                            # its number among the photos of the folder
    pixels: Tensor                    # as the network's transform gives them
    year: str                         # in which it was taken; "": not known
    cut: bool                         # a part of it is lost


def read_for_index(paths: list[str], transform: Callable, n: int) -> ReadPhoto:
    """Read photo n for an index. Raises InputError."""
    photo = read_photo(paths[n], may_be_cut=True)
    return ReadPhoto(n, transform(photo), read_year(photo), is_cut(photo))


def split_rows(e: Embedding) -> list[Embedding]:
    """Split an embedding of N items into N of one, on the CPU."""
    e = e.to("cpu")
    return [e.rows([k]) for k in range(len(e.mean))]


# ---- features of a data set

def index_features(path: str, encoder: PhotoEncoder, name: str, split: str | None, folder: str | None = None,
                   uri: str | None = None, token: str = "", overwrite: bool = False) -> Index:
    """Make an index of the ready features of a data set, or of one of its splits, below encoder.data_path.
    folder: where the photos lie. uri: Milvus, which holds the vectors then. Raises InputError."""
    path, sim = output(index_file(path), overwrite=overwrite), encoder.options.sim
    check(not folder or os.path.isdir(folder), f"--photos {folder} is not a folder; give the folder of the photos")
    check(not uri or sim in INNER_PRODUCTS, f"Milvus searches by one inner product, and {sim} is none; leave --uri out")
    gallery, own_folder = read_gallery(encoder.data_path, name, split)
    refuse_misfit(encoder, gallery)
    images, folder = gallery.images, folder or own_folder
    names = [str(x) for x in gallery.photo_names or gallery.image_ids or range(len(images))]
    manifest = new_manifest(encoder, name, folder and os.path.abspath(folder))
    manifest["features"] = [os.path.abspath(encoder.data_path), name, split or ""]
    bar = tqdm(chunks(np.arange(len(images)), ROWS), desc="embed", disable=None, leave=False)
    e = Embedding.cat([encoder.images(images.gather(rows)).to("cpu") for rows in bar])
    check(all(x is None or x.isfinite().all() for x in e[:3]),
          f"{name} gives numbers that are not finite; its features or the model are broken")
    if uri:
        origin = Embedding(*(None if x is None else x.mean(0, keepdim=True) for x in e[:2]))
        stem = os.path.basename(path).removesuffix(".npz")
        ascii_stem = stem.encode("ascii", "xmlcharrefreplace").decode()             # Milvus names have no other letters
        collection = Collection(uri, re.sub(r"\W", "_", f"photos_{ascii_stem}"), token)
        remove(path)                                        # its collection is replaced
        collection.build(names, product_vectors(sim, e, origin)[0], overwrite)
        manifest["milvus"], e = [collection.uri, collection.name], origin
    index = Index(path, manifest, [PhotoFile(name, 0, 0, "") for name in names], e, token)
    index.save()
    return index


def read_gallery(data_path: str, name: str, split: str | None) -> tuple[Split, str | None]:
    """A split without its captions, or all photos of a folder, and the path of that folder."""
    if split is None and os.path.isfile(os.path.join(data_path, name, "all_ims.npy")):
        images = read_images(data_path, name)
        return Split("all", images.features, [], np.arange(0), f"the features of {name}",
                     photo_names=[photo.name for photo in images.photos], extractors={"ims": images.extractor}
                     ), images.folder
    of = read_split(data_path, name, split or "test", dev_images=0)
    check(isinstance(of.images, Features), f"{of.source} holds no features of images; write them with features.images, "
                                           "or index the photos themselves with python -m photos FOLDER")
    return of, None


def refuse_misfit(encoder: PhotoEncoder, split: Split) -> None:
    """Raise InputError where the model cannot take the images of a split."""
    check_fits(encoder.options, split.images, None, encoder.path)
    check_extractors(encoder.extractors, split, None, encoder.path)


# ---- taking photos out

def remove_photos(path: str, patterns: list[str], token: str = "") -> list[str]:
    """Take photos whose names fit patterns out of an index, where they stay out.
    Raises InputError where a pattern fits none."""
    with lock_index(path):
        return remove_rows(Index.open(path, token), patterns)


def remove_rows(index: Index, patterns: list[str]) -> list[str]:
    """Take photos out of an index, as `remove_photos` says."""
    path = index.path
    out = set()
    for pattern in patterns:
        fits = {row for row, name in enumerate(index.names) if matches(name, pattern)}
        check(fits, f"no photo of {path} is named {pattern:.80}; python -m photos info {path} --names lists them")
        out |= fits
    check(len(out) < len(index), f"this would leave no photo in {path}; delete the file instead")
    removed, kept = [index.photos[row] for row in sorted(out)], [row for row in range(len(index)) if row not in out]
    index.manifest["removed"] |= {photo.name: photo.digest for photo in removed}
    index.photos = [index.photos[row] for row in kept]
    if not index.collection:
        index.embedding = index.embedding.rows(kept)
    index.save()
    if index.collection:
        index.collection.remove([photo.name for photo in removed])
    return [f"{index.path}: {count_photos(len(removed))} removed, {len(index):,} left"]
