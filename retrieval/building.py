"""Makes and changes an index: embeds photos by a run and writes their vectors."""
import contextlib
import fnmatch
import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from cli import InputError
from data import read_split
from evaluation.items import of_split
from features.folder import find_photos, read_images
from features.networks import RECIPE
from files.reading import read_json
from inputs import Features, NoImages, Photos, image_batches
from retrieval.cluster import ClusterIndex, Collection, collecting, open_index, token_of
from retrieval.connection import is_folder
from retrieval.encoder import Encoder
from retrieval.index import (
    FORMAT,
    Block,
    Generation,
    Index,
    Items,
    changing,
    is_state,
    lost_photos,
    manifest_of,
    origin_in_text,
    writing_alone,
)
from retrieval.proposing import propose
from retrieval.trust import BankColumn, in_json
from retrieval.vectors import LiftedVectors, WholeVectors, described, vectors_of
from similarities import Embedding, uncertainty

BATCH = 128                           # photos per step of the model
ROWS = 1024                           # photos that are written at a time
FIRST = 256                           # photos that the origin of an index is the average of


class Gallery(NamedTuple):
    """Photos to be indexed."""
    images: Features | Photos
    names: list[str]                  # paths below the folder
    digests: list[str | None]         # of the files, where they are known
    folder: str | None                # where the photos lie
    recipe: dict | None               # how their features are computed, where that is known
    extractor: str | None             # the same in a line
    data: str                         # for the reader


def gallery_of(encoder: Encoder, opt) -> Gallery:
    """What --images and --photos name: features of a folder of photos, a split of a data set, or photos themselves for
    a run that reads them. Raises InputError where they are not there, or do not fit the run."""
    root = os.path.join(opt.data_path, opt.images or "")
    if opt.images is None:
        if not opt.photos:
            raise InputError("nothing to index; name features of photos with --images NAME (features.extract images "
                             "writes them), or a folder of photos with --photos for a run that reads photos")
        if not encoder.reads_photos:
            raise InputError(f"{encoder.run} reads features of photos; write those of {opt.photos} with "
                             "features.extract images --photos, and give their name with --images")
        names, folder = find_photos(opt.photos).names, os.path.abspath(opt.photos)
        return Gallery(Photos([os.path.join(folder, name) for name in names]), names, stamps(folder, names), folder,
                       None, None, os.path.basename(folder))
    if opt.split is None and os.path.isfile(os.path.join(root, "all_ims.npy")):
        found = read_images(opt.data_path, opt.images)
        listed = {row[0]: row[3] for row in read_json(os.path.join(root, "all_photos.json"))["photos"]}
        gallery = Gallery(found.features, found.names, [listed.get(name) for name in found.names],
                          os.path.abspath(opt.photos or found.folder), found.recipe, found.extractor, opt.images)
    else:
        gallery = gallery_of_split(opt)
    refuse_misfit(encoder, gallery)
    return gallery


def gallery_of_split(opt) -> Gallery:
    split = read_split(opt.data_path, opt.images, opt.split or "test", dev_images=0)
    for note in split.notes:
        print(f"note: {note}", file=sys.stderr)
    if isinstance(split.images, NoImages):
        raise InputError(f"{split.source} has captions and no images; index a split with features or photos")
    folder = opt.photos and os.path.abspath(opt.photos)
    if isinstance(split.images, Photos):
        folder = folder or os.path.commonpath([os.path.dirname(path) for path in split.images.paths])
        names = [os.path.relpath(path, folder) for path in split.images.paths]
    else:
        names = of_split(split, opt.images).image_names or split.photo_names
        names = names or [str(x) for x in split.image_ids or range(len(split.images))]
    return Gallery(split.images, names, [None] * len(names), folder, None, (split.extractors or {}).get("ims"),
                   f"{opt.images} {split.name}")


def stamps(folder: str, names: list[str]) -> list[str]:
    """By which a changed photo is known where no features were extracted: its size and time."""
    found = [os.stat(os.path.join(folder, name)) for name in names]
    return [f"{stat.st_size}-{stat.st_mtime_ns}" for stat in found]


def refuse_misfit(encoder: Encoder, gallery: Gallery) -> None:
    """Raises InputError where the model cannot take the images."""
    encoder.refuse_other_features(gallery.extractor)
    photos = isinstance(gallery.images, Photos)
    if photos != encoder.reads_photos:
        raise InputError(f"{encoder.run} reads {'photos' if encoder.reads_photos else 'features of photos'}, and "
                         f"{gallery.data} holds {'photos' if photos else 'features'}; "
                         + ("write them with features.extract images" if photos else "name photos with --photos"))
    if not photos and encoder.options.img_dim != gallery.images.dim:
        raise InputError(f"{gallery.data} has features of {gallery.images.dim} numbers, and {encoder.run} was trained "
                         f"on {encoder.options.img_dim}; extract them with the same network")
    unsaid = [name for name, line in ((encoder.run, encoder.extractors.get("ims")), (gallery.data, gallery.extractor))
              if not line]
    if unsaid and not photos:
        print(f"note: {' and '.join(unsaid)} says not which network made its features of photos, so only their number "
              f"was compared, {gallery.images.dim}; answers mean something only if it is the same network",
              file=sys.stderr)


def embedded(encoder: Encoder, gallery: Gallery, rows: np.ndarray,
             workers: int) -> Iterator[tuple[list[int], Embedding]]:
    """The photos `rows` (m,) in runs of at most ROWS, with their embeddings."""
    held, done, count = [], 0, 0
    with tqdm(total=len(rows), desc="embed", disable=None, leave=False) as bar:
        for batch in image_batches(gallery.images, BATCH, workers, rows):
            e = encoder.images(batch)
            held.append(Embedding(*(None if x is None else x.cpu() for x in e)))
            count += len(batch)
            bar.update(len(batch))
            if count - done >= ROWS or count == len(rows):
                yield rows[done:count].tolist(), Embedding.cat(held)
                held, done = [], count


class Lift:
    """Turns embeddings of photos into what the index holds, and into what is known of them."""

    def __init__(self, vectors: LiftedVectors | WholeVectors, bank: BankColumn | None):
        self.vectors, self.bank = vectors, bank

    def __call__(self, e: Embedding, gallery: Gallery, rows: list[int]) -> tuple[Block, Items]:
        """Of the photos `rows` of a gallery, whose embeddings are given."""
        taken = None if self.bank is None else self.bank.of(e)
        block = Block(*self.vectors.images(e, taken if self.vectors.takes_bank else None))
        return block, Items([gallery.names[i] for i in rows], [gallery.digests[i] for i in rows],
                            None if e.log_var is None else uncertainty(e).numpy(),
                            None if taken is None else taken.numpy())


def origin_of(similarity, e: Embedding) -> Embedding:
    """The origin of an index: the average of some of its photos, of what the similarity centres; the same numbers for
    all items change no score, and near the average they are small."""
    centred = getattr(similarity, "centred", ())
    return Embedding(*(x.mean(0, keepdim=True) if x is not None and name in centred else None
                       for name, x in (("mean", e.mean), ("log_var", e.log_var))))


def make(opt) -> None:
    """A new index of the photos that the options name. Raises InputError where there is one already."""
    encoder = Encoder(opt.checkpoint, device=opt.device)
    encoder.options.data_path = data_path_of(encoder.options, opt.data_path)
    refuse_foreign(opt.output)
    if os.path.exists(os.path.join(opt.output, "manifest.json")) and not opt.overwrite:
        raise InputError(f"{opt.output} is an index already; change it with search.py add or remove, replace it with "
                         "--overwrite, or name another folder")
    if opt.photos and not os.path.isdir(opt.photos):
        raise InputError(f"--photos {opt.photos} is no folder; give the one that holds the photos")
    gallery = gallery_of(encoder, opt)
    bank = bank_of(encoder, opt.bank, opt)
    if bank is not None and bank.beta is None:
        print(f"note: no beta of the query bank of {opt.bank} helps on dev, so nothing is taken from the scores")
        bank = None
    no_set = bank and bank.trust.no_set(len(gallery.names))
    if no_set:
        print(f"note: {no_set}")
    manifest = {"index": FORMAT, "engine": opt.engine, "run": os.path.abspath(opt.checkpoint),
                "weights": encoder.weights, "similarity": encoder.options.sim, "half": opt.float16,
                "method": opt.method, "folder": gallery.folder, "extractor": gallery.extractor,
                "recipe": gallery.recipe, "data": gallery.data,
                "images": [os.path.abspath(opt.data_path), opt.images, opt.split],
                "bank": bank and bank.report, "trust": in_json(bank.trust if bank else None)}
    if opt.engine == "milvus":
        pointer = {"uri": os.path.abspath(opt.uri) if is_folder(opt.uri) else opt.uri, "collection": opt.collection}
        place = collecting(opt.output, manifest, pointer, token_of(opt.token_file))
    else:
        place = changing(opt.output, manifest, len(gallery.names))
    with writing_alone(opt.output), place as new:
        fill(new, encoder, gallery, bank, opt.workers)


def fill(new: Generation | Collection, encoder: Encoder, gallery: Gallery, bank: BankColumn | None,
         workers: int) -> None:
    """Embed all photos of a gallery into a new index, and put it in place."""
    similarity, rows = encoder.similarity.cpu(), np.arange(len(gallery.names))
    some, e = next(embedded(encoder, gallery, rows[:FIRST], workers))
    origin = origin_of(similarity, e)
    new.manifest |= {"vectors": described(similarity, e), "origin": origin_in_text(origin)}
    vectors = vectors_of(similarity, origin, new.manifest["half"], new.manifest["vectors"])
    lift = Lift(vectors, bank)
    block, _ = lift(e, gallery, some)
    new.manifest["vectors"] |= {"widths": [x.shape[1] for x in block.vectors],
                                "rest": 0 if block.rest is None else block.rest.shape[1]}
    for here, e in embedded(encoder, gallery, rows[new.begin(vectors, block):], workers):
        new.add(*lift(e, gallery, here))
    finish(new, None, lambda: (encoder, vectors, gallery))


def finish(new: Generation | Collection, old: Index | None, opened) -> None:
    """Put a new state of an index in place, with its approximate indexes where its vectors are in files. old: a state
    whose photos come first in the new one. opened(): the run, the vectors and the gallery."""
    if isinstance(new, Generation) and new.manifest["method"] != "flat":
        new.files.close()
        encoder, vectors, gallery = opened()

        def photos(most: int) -> Embedding:
            rows = np.random.default_rng(0).permutation(len(gallery.names))[:most]
            return Embedding.cat([e for _, e in embedded(encoder, gallery, rows, 0)])
        propose(new, old, encoder, vectors, photos)
    new.finish()


def bank_of(encoder: Encoder, split: str | None, opt) -> BankColumn | None:
    """The query bank of a split of the run's data; None where no split is named."""
    of = encoder.options
    return split and BankColumn(encoder.run, of.data_name, split, opt.device, getattr(opt, "sets", None), opt.workers,
                                of.data_path)


def data_path_of(run, given: str) -> str:
    """The folder of the data that a run with these options was trained on: as it was named then, which may have been
    from another working directory, or else the one given."""
    def holds(folder: str) -> bool:
        return os.path.isdir(os.path.join(folder, run.data_name))
    return run.data_path if holds(run.data_path) or not holds(given) else given


def refuse_foreign(folder: str) -> None:
    """Raises InputError where a folder holds other files than those of an index."""
    held = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder; name another with --output")
    states = [name for name in held if is_state(os.path.join(folder, name))]
    with contextlib.suppress(InputError, TypeError):        # JSON of another thing
        if "manifest.json" in held and (states or "index" in read_json(os.path.join(folder, "manifest.json"))):
            return
    begun = r"\.lock|\.([0-9]{6}|manifest\.json)\.\d+\.part"           # what a process that was killed leaves
    other = [name for name in held if name not in states and not re.fullmatch(begun, name)]
    if other:
        raise InputError(f"{folder} holds {other[0]} and is no index; name a folder of its own with --output")


@contextlib.contextmanager
def changed(opt):
    """Yields the index of opt.index, and what opens a new state of it: change(rows to leave out, how many come)."""
    manifest_of(opt.index)
    with writing_alone(opt.index), contextlib.closing(open_index(opt.index, opt.token_file, writing=True)) as old:
        @contextlib.contextmanager
        def change(out: np.ndarray, more: int):
            if isinstance(old, Index):
                place = changing(opt.index, old.manifest, len(old) - len(out) + more)
            else:
                place = collecting(opt.index, old.manifest, manifest_of(opt.index), token_of(opt.token_file), old)
            with place as new:
                new.leave_out(old, out)
                yield new
        yield old, change


class Added(NamedTuple):
    """What `add` did: numbers of photos."""
    fresh: int
    changed: int
    absent: int                       # in the index, and no longer among the photos
    removed: int                      # not taken in, as `remove` took them out
    waiting: list[str]                # names in the folder whose features were not extracted
    extraction: str                   # the command that does that


def add(opt) -> Added:
    """Take new and changed photos into an index, but for those that `remove` took out, unless they fit a pattern of
    opt.names. Raises InputError where a pattern fits none of them."""
    with changed(opt) as (old, change):
        encoder, vectors, gallery = reopened(opt, old)
        rows, names, digests = old.listed()
        place = {name: (row, digest) for row, name, digest in zip(rows.tolist(), names, digests)}
        removed = set(removed_from(opt.index))
        removed -= fitting(opt.names, removed, f"that was removed from {opt.index}", "'*' names all of them")
        new_names = [name for name in gallery.names if name not in place]
        fresh = [i for i, name in enumerate(gallery.names) if name not in place and name not in removed]
        other = [i for i, name in enumerate(gallery.names) if name in place and place[name][1] != gallery.digests[i]]
        if fresh or other:
            bank = old.manifest["bank"]
            lift = Lift(vectors, bank_of(encoder, bank and bank["split"], opt))
            out = np.array([place[gallery.names[i]][0] for i in other], np.int64)
            with change(out, len(fresh) + len(other)) as new:
                new.remember(removed)
                for here, e in embedded(encoder, gallery, np.array(sorted(fresh + other)), opt.workers):
                    new.add(*lift(e, gallery, here))
                finish(new, None if other else old, lambda: (encoder, vectors, gallery))
        return Added(len(fresh), len(other), len(place) - (len(gallery.names) - len(new_names)),
                     len(new_names) - len(fresh), *waiting(gallery, opt))


def waiting(gallery: Gallery, opt) -> tuple[list[str], str]:
    """The photos in the folder of a gallery whose features were not extracted, and the command that does it."""
    if gallery.recipe is None or not os.path.isdir(gallery.folder):
        return [], ""
    given = {"photos": gallery.folder, "data_path": opt.data_path, "output_name": opt.images,
             **{name: value for name, value in gallery.recipe.items() if name in RECIPE and value is not None}}
    words = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items())
    return (sorted(set(find_photos(gallery.folder, skip_broken=True).names) - set(gallery.names)),
            f"python -m features.extract images {words}")


def removed_from(folder: str) -> list[str]:
    """The photos that `remove` took out of an index by their names, and `add` leaves out."""
    return manifest_of(folder).get("removed", [])


def fitting(patterns: list[str], names: set[str], which: str, fix: str) -> set[str]:
    """The names that patterns are, or that fit them. Raises InputError where one fits none."""
    found = {pattern: {pattern} & names or set(fnmatch.filter(names, pattern)) for pattern in patterns}
    for pattern in patterns:
        if not found[pattern]:
            raise InputError(f"no photo {which} is named {pattern}; {fix}")
    return set().union(*found.values())


def remove(opt) -> tuple[int, int]:
    """Take photos out of an index: those whose names fit a pattern of opt.names, which stay out, or, with opt.gone,
    those whose files are gone, which come back with them. Returns how many, and how many are left. Raises InputError
    where a pattern fits none."""
    with changed(opt) as (old, change):
        rows, names, _ = old.listed()
        folder, lost = old.manifest["folder"] or "", lost_photos(opt.index, old.manifest)
        if opt.gone and lost:
            raise InputError(lost)
        named = fitting(opt.names, set(names), f"of {opt.index}", f"search.py info {opt.index} --names lists them")
        out = [k for k, name in enumerate(names)
               if name in named or opt.gone and not os.path.isfile(os.path.join(folder, name))]
        if len(out) == len(names):
            raise InputError(f"this would leave no photo in {opt.index}; delete the folder instead")
        if out:
            with change(rows[out], 0) as new:
                new.remember({*removed_from(opt.index), *named})
                finish(new, None, lambda: reopened(opt, old))
        return len(out), len(names) - len(out)


def reopened(opt, old: Index | ClusterIndex) -> tuple[Encoder, LiftedVectors | WholeVectors, Gallery]:
    """The run that an index was made by, its vectors, and its photos as they are now. Raises InputError where the
    weights of the run are others now."""
    made = old.manifest
    encoder = Encoder(opt.checkpoint or made["run"], made["recipe"], device=opt.device)
    if encoder.weights != made["weights"]:
        raise InputError(f"{opt.index} was made by the model with {made['weights']}, and {encoder.run} holds one with "
                         f"{encoder.weights}; name the run that it was made by with --checkpoint")
    opt.data_path, opt.images, opt.split = made["images"]
    encoder.options.data_path = data_path_of(encoder.options, opt.data_path)
    opt.photos = made["folder"]
    return (encoder, vectors_of(encoder.similarity.cpu(), old.origin, made["half"], made["vectors"]),
            gallery_of(encoder, opt))
