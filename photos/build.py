"""Makes and changes an index: embeds photos by a run and writes their vectors."""
import fnmatch
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor
from tqdm import tqdm

from cli import InputError, check
from data import Features, NoImages, Photos, image_batches, read_split
from evaluation.embeddings import items_of
from features import store
from features.folder import find_photos, read_images
from features.images import extract_folder
from features.networks import RECIPE, find_recipe
from files import sha256
from losses import Embedding, uncertainty
from photos.encoder import Encoder
from photos.index import FORMAT, Entries, Index, file_of, stored
from photos.milvus import Collection
from photos.ranking import InnerProducts, WholeVectors, form_of, on_cpu, vectors_of
from photos.trust import BankColumn

ROWS = 1024                           # photos that are embedded at a time
FIRST = 256                           # photos that the origin of an index is the average of
WHOLE = dict.fromkeys(RECIPE) | {"kind": "cnn", "cnn_type": "efficientnet_lite0", "layer": "pooled", "whole": True}


class Where(NamedTuple):
    """Which items."""
    data_path: str | None = None
    data_name: str | None = None
    split: str | None = None


class How(NamedTuple):
    """On what machine, in what portions. No result depends on it."""
    device: object = "cpu"           # a torch.device or its name
    batch_size: int = 128             # images or captions that are encoded at once
    workers: int = 0                  # processes that read photos


# ---- photos to be indexed

class Gallery(NamedTuple):
    """Photos to be indexed."""
    images: Features | Photos
    names: list[str]                  # paths below the folder
    digests: list[str | None]         # of the files, where they are known
    folder: str | None                # where the photos lie
    recipe: dict | None               # how their features are computed, where that is known
    extractor: str | None             # the same in a line
    data: str                         # for the reader


def gallery_of(encoder: Encoder, where: Where, photos: str | None) -> Gallery:
    """Features of a folder of photos, a split of a data set, or photos themselves for a run that
    reads them. photos: their folder. Raises InputError where they are not there, or do not fit the
    run."""
    if where.data_name is None:
        if not photos:
            raise InputError("nothing to index; name features of photos with --images NAME "
                             "(features.images writes them), or a folder of photos with "
                             "--photos for a run that reads photos")
        if not encoder.reads_photos:
            raise InputError(f"{encoder.path} reads features of photos; write those of {photos} "
                             "with features.images --photos, "
                             "and give their name with --images")
        names, folder = find_photos(photos)[0], os.path.abspath(photos)
        paths = [os.path.join(folder, name) for name in names]
        stats = [os.stat(path) for path in paths]  # a changed photo has another size or time
        return Gallery(Photos(paths), names, [f"{of.st_size}-{of.st_mtime_ns}" for of in stats],
                       folder, None, None, os.path.basename(folder))
    root = os.path.join(where.data_path, where.data_name)
    if where.split is None and os.path.isfile(os.path.join(root, "all_ims.npy")):
        images = read_images(where.data_path, where.data_name)
        gallery = Gallery(
            images.features, images.names, images.digests,
            os.path.abspath(photos or images.folder), images.recipe, images.extractor,
            where.data_name)
    else:
        gallery = gallery_of_split(where, photos)
    refuse_misfit(encoder, gallery)
    return gallery


def gallery_of_split(where: Where, folder: str | None) -> Gallery:
    split = read_split(where.data_path, where.data_name, where.split or "test", dev_images=0)
    for note in split.notes:
        print(f"note: {note}", file=sys.stderr)
    if isinstance(split.images, NoImages):
        raise InputError(f"{split.source} has captions and no images; "
                         "index a split with features or photos")
    folder = folder and os.path.abspath(folder)
    if isinstance(split.images, Photos):
        paths = split.images.paths
        folder = folder or os.path.commonpath([os.path.dirname(path) for path in paths])
        names = [os.path.relpath(path, folder) for path in paths]
    else:
        names = items_of(split, where.data_name).ids.get("image_name")
        names = names or [str(x) for x in split.image_ids or range(len(split.images))]
    return Gallery(split.images, names, [None] * len(names), folder, None,
                   (split.extractors or {}).get("ims"), f"{where.data_name} {split.name}")


def refuse_misfit(encoder: Encoder, gallery: Gallery) -> None:
    """Raises InputError where the model cannot take the images."""
    encoder.refuse_other_features(gallery.extractor)
    photos = isinstance(gallery.images, Photos)
    kinds = "features of photos", "photos"
    if photos != encoder.reads_photos:
        raise InputError(f"{encoder.path} reads {kinds[not photos]}, and {gallery.data} holds "
                         f"{kinds[photos].split()[0]}; "
                         + ("write them with features.images" if photos
                            else "name photos with --photos"))
    if photos:
        return
    width, trained = gallery.images.dim, encoder.options.img_dim
    if trained != width:
        raise InputError(f"{gallery.data} has features of {width} numbers, and {encoder.path} was "
                         f"trained on {trained}; extract them with the same network")
    sides = (encoder.path, encoder.extractors.get("ims")), (gallery.data, gallery.extractor)
    unsaid = [name for name, line in sides if not line]
    if unsaid:
        print(f"note: {' and '.join(unsaid)} says not which network made its features of photos, "
              f"so only their number was compared, {width}; answers mean something only if it is "
              "the same network", file=sys.stderr)


# ---- from photos to vectors

class Work:
    """Photos on their way into an index: the run that embeds them, and the vectors that they
    become. bank: what is taken from their scores."""

    def __init__(self, encoder: Encoder, gallery: Gallery, how: How, bank: BankColumn | None = None,
                 vectors: InnerProducts | WholeVectors | None = None):
        self.encoder, self.gallery, self.how = encoder, gallery, how
        self.bank, self.vectors = bank, vectors

    def embedded(self, rows: np.ndarray) -> Iterator[tuple[list[int], Embedding]]:
        """The photos `rows` (m,) in runs of at most ROWS, with their embeddings."""
        batches, done, count = [], 0, 0
        with tqdm(total=len(rows), desc="embed", disable=None, leave=False) as bar:
            for batch in image_batches(self.gallery.images, self.how.batch_size, self.how.workers,
                                       rows):
                batches.append(self.encoder.images(batch).to("cpu"))
                count += len(batch)
                bar.update(len(batch))
                if count - done >= ROWS or count == len(rows):
                    yield rows[done:count].tolist(), Embedding.cat(batches)
                    batches, done = [], count

    def centre(self, half: bool, products: bool) -> tuple[dict, Embedding, Embedding]:
        """Choose the form of the vectors, and centre them on the average of the first photos: the same numbers for
        all photos change no score, and near the average they are small. Returns the form, that origin, and the
        embeddings of these photos."""
        similarity = on_cpu(self.encoder.similarity)
        _, e = next(self.embedded(np.arange(len(self.gallery.names))[:FIRST]))
        origin = Embedding(e.mean.mean(0, keepdim=True), None if e.log_var is None else e.log_var.mean(0, keepdim=True))
        form = form_of(similarity, e, products)
        self.vectors = vectors_of(similarity, origin, half, form)
        return form, origin, e

    def entries(self, rows: np.ndarray) -> Iterator[Entries]:
        """What an index holds of the photos `rows` (m,), in runs of at most ROWS."""
        half, takes_bank = self.vectors.half, self.vectors.takes_bank
        for here, e in self.embedded(rows):
            names, terms = [self.gallery.names[i] for i in here], None if self.bank is None else self.bank.of(e)
            vectors, rest = self.vectors.images(e, terms if takes_bank else None)
            yield Entries(
                names, [self.gallery.digests[i] for i in here],
                np.full(len(here), np.nan) if e.log_var is None else uncertainty(e).numpy(),
                np.zeros(len(here)) if terms is None else terms.numpy(),
                [stored(x, half, names) for x in vectors], None if rest is None else stored(rest, False, names))


# ---- a new index

def make(output: str, run: str, where: Where, photos: str | None, how: How, *, half: bool = False,
         bank: str | None = None, sets: float | None = None, milvus: tuple[str, str] | None = None,
         overwrite: bool = False, token: str = "") -> None:
    """A new index in the file `output` of the photos that `where` and `photos`, their folder, name.

    half: in float16. bank: the split whose captions normalise the scores. sets: with a bank, sets miss the right photo
    in this share of queries. milvus: URI and collection that hold the vectors. Raises InputError where there is a file
    already, unless with `overwrite`.
    """
    path = file_of(output)
    check(not os.path.isdir(path), f"{path} is a folder; name a file with --output")
    check(overwrite or not os.path.exists(path),
          f"{path} is there already; change it with python -m photos add or remove, replace it with --overwrite, or "
          "name another file with --output")
    encoder = Encoder(run, device=how.device, data_path=where.data_path)
    check(not photos or os.path.isdir(photos),
          f"--photos {photos} is no folder; give the one that holds the photos")
    gallery = gallery_of(encoder, where, photos)
    collection = milvus and Collection(*milvus, token)
    column = bank and BankColumn(encoder, bank, how, sets)
    if column and column.beta is None:
        print(f"note: no beta of the query bank of {bank} helps on dev, so nothing is taken "
              "from the scores")
        column = None
    no_set = column and column.trust.no_set(len(gallery.names))
    if no_set:
        print(f"note: {no_set}")
    work, rows = Work(encoder, gallery, how, column), np.arange(len(gallery.names))
    form, origin, first = work.centre(half, products=collection is not None)
    manifest = {"index": FORMAT, "run": os.path.abspath(run), "weights": encoder.weights,
                "similarity": encoder.options.sim, "half": half, "form": form, "milvus": milvus,
                "folder": gallery.folder, "extractor": gallery.extractor, "recipe": gallery.recipe,
                "data": gallery.data, "removed": [], "bank": column and column.report,
                "images": [os.path.abspath(where.data_path), where.data_name, where.split],
                "trust": column and column.trust._asdict()}
    parts = []

    def vectors() -> Iterator[tuple[list[str], Tensor]]:
        for part in work.entries(rows):
            parts.append(part._replace(vectors=[]))
            yield part.names, part.vectors[0]
    if collection:
        lifted, rest = work.vectors.images(first)
        check(len(lifted) == 1 and rest is None, "Milvus searches by one inner product, and "
                                                 f"{encoder.options.sim} is none; leave --uri out")
        collection.build(lifted[0].shape[1], vectors(), overwrite)
    else:
        parts = [*work.entries(rows)]
    Index(path, manifest, origin, Entries.cat(parts), collection).save()


# ---- a folder of one's own, in one step

def folder_name(photos: str, of: object = "") -> str:
    """A name for what is made of a folder of photos: its own, and a digest of where it lies and of what is made."""
    path = os.path.realpath(photos)
    name = re.sub(r"[^A-Za-z0-9]+", "_", os.path.basename(path)).strip("_")
    return f"{name or 'photos'}_{sha256(f'{path}{of}')[:6]}"


def features_of(photos: str, recipe: dict, data_path: str, reading: store.ComputeConfig) -> str:
    """The name, below data_path, of the features of the photos below a folder as they are now. Photos that cannot be
    read are named and left out."""
    name = folder_name(photos, sorted(recipe.items()))
    extract_folder(photos, os.path.join(data_path, name), recipe, reading)
    return name


def of_folder(photos: str, output: str, run: str, data_path: str, how: How,
              reading: store.ComputeConfig) -> list[str]:
    """An index in the file `output` of the photos below a folder as they are now, by a run whose
    features of photos are computed first. Returns what is said of it, in lines. Raises InputError
    where the run does not tell how to compute them."""
    encoder, name = Encoder(run, device=how.device, data_path=data_path), None
    if not encoder.reads_photos:
        line = encoder.extractors.get("ims", "")
        recipe = find_recipe(line)
        check(recipe,
              f"{run} was trained on features of photos of {ascii(line) if line else 'an unnamed network'}, and those "
              "of other photos cannot be computed from that alone; write them with features.images "
              "--photos, and index them with python -m photos index --images NAME")
        name = features_of(photos, recipe, data_path, reading)
    if os.path.exists(file_of(output)):
        return add(output, [], how, run)
    make(output, run, Where(data_path, name, None), None if name else photos, how)
    return []


# ---- changes

def fitting(patterns: Iterable[str], names: set[str], which: str, fix: str) -> set[str]:
    """The names that patterns are, or that fit them. Raises InputError where one fits none."""
    fits = set()
    for pattern in patterns:
        some = {pattern} & names or set(fnmatch.filter(names, pattern))
        check(some, f"no photo {which} is named {pattern}; {fix}")
        fits |= some
    return fits


def add(path: str, names: list[str], how: How, run: str | None = None, token: str = "") -> list[str]:
    """Take new and changed photos into an index, but for those that `remove` took out, unless they
    fit a pattern of `names`. run: where it is no longer where the index was made. Returns what is
    said of it, in lines. Raises InputError where a pattern fits none of them."""
    index = Index.open(path, token)
    of, old, work = index.manifest, index.entries, reopened(index, run, how)
    gallery, place = work.gallery, {name: row for row, name in enumerate(old.names)}
    removed = set(of["removed"])
    removed -= fitting(names, removed, f"that was removed from {path}", "'*' names all of them")
    new_names = [name for name in gallery.names if name not in place]
    fresh = [i for i, name in enumerate(gallery.names) if name not in place and name not in removed]
    other = [i for i, name in enumerate(gallery.names)
             if name in place and old.digests[place[name]] != gallery.digests[i]]
    if fresh or other:
        work.bank = of["bank"] and BankColumn(work.encoder, of["bank"]["split"], how)
        new = Entries.cat([*work.entries(np.array(sorted(fresh + other)))])
        if index.collection:
            index.collection.add(new.names, new.vectors[0])
            new = new._replace(vectors=[])
        out = [place[gallery.names[i]] for i in other]
        index.entries = Entries.cat([old.take(np.setdiff1d(np.arange(len(index)), out)), new])
        of["removed"] = sorted(removed)
        index.save()
    absent, stay = len(place) + len(new_names) - len(gallery.names), len(new_names) - len(fresh)
    sentence = f"{path}: {len(fresh):,} photos added, {len(other):,} changed"
    if absent:
        sentence += (f"; {absent:,} are no longer among those indexed, "
                     "and stay until python -m photos remove takes them out")
    if stay:
        sentence += (f"; {stay:,} stay out as python -m photos remove took them out, "
                     "until python -m photos add names them")
    return [sentence, *waiting(gallery, *of["images"][:2])]


def waiting(gallery: Gallery, data_path: str, images: str) -> list[str]:
    """What is said of the photos in the folder of a gallery whose features were not extracted."""
    if gallery.recipe is None or not os.path.isdir(gallery.folder):
        return []
    there = find_photos(gallery.folder, skip_broken=True)[0]
    pending = sorted(set(there) - set(gallery.names))
    options = {"photos": gallery.folder, "data_path": data_path, "output_name": images}
    options |= {name: gallery.recipe[name]
                for name in RECIPE if gallery.recipe.get(name) is not None}
    words = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in options.items())
    return [f"note: the folder holds {len(pending):,} photos whose features were not extracted, "
            f"the first is {pending[0]}; this comes before add: "
            f"python -m features.images {words}"] if pending else []


def remove(path: str, names: list[str], gone: bool, token: str = "") -> tuple[int, int]:
    """Take photos out of an index: those whose names fit a pattern of `names`, which stay out, or,
    with `gone`, those whose files are gone, which come back with them. Returns how many, and how
    many are left. Raises InputError where a pattern fits none."""
    index = Index.open(path, token)
    photos, own, lost = index.manifest["folder"] or "", index.names, index.lost_photos()
    check(not gone or not lost, lost)
    matches = fitting(names, {*own}, f"of {path}", f"python -m photos info {path} --names lists them")
    out = [k for k, name in enumerate(own)
           if name in matches or gone and not os.path.isfile(os.path.join(photos, name))]
    check(len(out) < len(own), f"this would leave no photo in {path}; delete the file instead")
    if out:
        index.entries = index.entries.take(np.setdiff1d(np.arange(len(own)), out))
        index.manifest["removed"] = sorted({*index.manifest["removed"], *matches})
        index.save()
        if index.collection:
            index.collection.remove([own[k] for k in out])
    return len(out), len(own) - len(out)


def reopened(index: Index, run: str | None, how: How) -> Work:
    """The run that an index was made by, its vectors, and its photos as they are now. Raises
    InputError where the weights of the run are others now."""
    of = index.manifest
    where = Where(*of["images"])
    encoder = Encoder(run or of["run"], of["recipe"], device=how.device, data_path=where.data_path)
    encoder.refuse_other_weights(index.path, of["weights"])
    vectors = vectors_of(on_cpu(encoder.similarity), index.origin, of["half"], of["form"])
    return Work(encoder, gallery_of(encoder, where, of["folder"]), how, vectors=vectors)
