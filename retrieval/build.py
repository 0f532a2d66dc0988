"""Makes and changes an index: embeds photos by a run and writes their vectors."""
import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, check
from data import read_split
from evaluation.open import How, Where
from evaluation.subjects import of_split
from features import store
from features.folder import extract, find_photos, read_images
from features.networks import RECIPE, recipe_of
from files.reading import read_json, sha256
from inputs import Features, NoImages, Photos, image_batches
from retrieval.encoder import Encoder
from retrieval.engines import Approximate, build
from retrieval.index import (
    FORMAT,
    Block,
    Index,
    Items,
    changing,
    fitting,
    in_text,
    is_state,
    lost_photos,
    manifest_of,
    writing_alone,
)
from retrieval.milvus import Milvus, is_folder, open_index
from retrieval.ranking import Asked, LiftedVectors, Ranker, WholeVectors, form_of, vectors_of
from retrieval.trust import BankColumn
from similarities import Embedding, uncertainty

ROWS = 1024                           # photos that are written at a time
FIRST = 256                           # photos that the origin of an index is the average of
LEARNT, TRIED = 4000, 300             # queries that approximate indexes learn from, are tried with
TARGET = 0.98                         # share of the ten best photos that the candidates hold
DEEPEST = 3200                        # candidates of a query at most
BEST = 10
WHOLE = dict.fromkeys(RECIPE) | {"kind": "cnn", "cnn_type": "efficientnet_lite0", "layer": "pooled", "whole": True}


class Kind(NamedTuple):
    """How an index holds its photos."""
    half: bool = False                # in float16
    method: str = "flat"              # hnsw, ivfpq, diskann
    bank: str | None = None       # the split whose captions normalise the scores
    sets: float | None = None     # with a bank: sets miss the right photo in this share of queries
    uri: str | None = None        # of Milvus; None: in files
    collection: str | None = None


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
                             "(features.extract images writes them), or a folder of photos with "
                             "--photos for a run that reads photos")
        if not encoder.reads_photos:
            raise InputError(f"{encoder.path} reads features of photos; write those of {photos} "
                             "with features.extract images --photos, "
                             "and give their name with --images")
        names, folder = find_photos(photos)[0], os.path.abspath(photos)
        paths = [os.path.join(folder, name) for name in names]
        stats = [os.stat(path) for path in paths]  # a changed photo has another size or time
        return Gallery(Photos(paths), names, [f"{of.st_size}-{of.st_mtime_ns}" for of in stats],
                       folder, None, None, os.path.basename(folder))
    root = os.path.join(where.data_path, where.data_name)
    if where.split is None and os.path.isfile(os.path.join(root, "all_ims.npy")):
        images = read_images(where.data_path, where.data_name)
        rows = read_json(os.path.join(root, "all_photos.json"))["photos"]
        digests = {row[0]: row[3] for row in rows}
        gallery = Gallery(
            images.features, images.names, [digests.get(name) for name in images.names],
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
        names = of_split(split, where.data_name).image_names
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
                         + ("write them with features.extract images" if photos
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
                 vectors: LiftedVectors | WholeVectors | None = None):
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

    def lifted(self, rows: list[int], e: Embedding) -> tuple[Block, Items]:
        """What an index holds of the photos `rows`, whose embeddings are given."""
        terms = None if self.bank is None else self.bank.of(e)
        spread = np.full(len(rows), np.nan) if e.log_var is None else uncertainty(e).numpy()
        parts = self.vectors.images(e, terms if self.vectors.takes_bank else None)
        gallery = self.gallery
        return Block(*parts), Items(
            [gallery.names[i] for i in rows], [gallery.digests[i] for i in rows], spread,
            np.zeros(len(rows)) if terms is None else terms.numpy())

    def write(self, new, rows: np.ndarray, old: Index | None = None) -> None:
        """Add the photos `rows` to a new state of an index, and put it in place. old: see
        propose."""
        for here, e in self.embedded(rows) if len(rows) else ():
            new.add(*self.lifted(here, e))
        new.finish(lambda index: self.propose(index, old))

    # ---- approximate indexes, checked against the comparison of all photos

    def queries(self) -> tuple[Asked, Asked, str]:
        """Queries to learn from, queries to try, and what they are: captions of train and of dev,
        or, where the run's data are not at hand, photos of the index."""
        data, vectors = self.encoder.options.data_name, self.vectors
        try:
            asked = [vectors.queries(self.captions(*of))
                     for of in (("train", LEARNT), ("dev", TRIED))]
            return *asked, f"captions of {data} dev"
        except InputError:
            rows = np.random.default_rng(0).permutation(len(self.gallery.names))[:LEARNT + TRIED]
            e = Embedding.cat([e for _, e in self.embedded(rows)])
            cut = max(1, len(rows) - max(1, min(TRIED, len(rows) // 4)))
            asked = [vectors.queries(e.rows(part), of_images=True)
                     for part in (slice(cut), slice(cut, None))]
            return *asked, ("photos of the index, which are found more easily than captions "
                            f"(those of {data} are not at hand)")

    def captions(self, split: str, most: int) -> Embedding:
        """The embeddings of at most `most` captions of a split of the run's own data, drawn at
        random. Raises InputError where the data are not at hand."""
        data = self.encoder.options.data_name
        texts = read_split(self.encoder.data_path, data, split, text_only=True).captions
        rows = np.sort(np.random.default_rng(0).permutation(len(texts))[:most])
        return self.encoder.captions([texts[m] for m in rows]).to("cpu")

    def propose(self, index: Index, old: Index | None = None) -> dict:
        """Build the approximate indexes of a new state, and return how many candidates they need
        and what they find, for its manifest. old: a state of which the new one holds all photos
        first, to go on from."""
        ranker, count = Ranker(self.vectors, index), len(index)
        learnt, tried, what = self.queries()
        exact, slow = timed(ranker, tried)
        began = time.perf_counter()
        for c, flat in enumerate(index.channels):
            if old is None:
                one = build(flat, index.manifest["method"], learnt.vectors[c])
            else:
                one = Approximate.open(old.file(f"approximate{c}.npz"))
                one.add(flat)
            one.tune(flat, tried.vectors[c], TARGET)
            one.save(index.file(f"approximate{c}.npz"))
            index.approximate.append(one)
        seconds = time.perf_counter() - began
        index.exact = False
        index.depth = min(count, max(one.tuned.depth for one in index.approximate))
        while True:
            rows, fast = timed(ranker, tried)
            recall = np.mean([np.isin(a, b).mean() for a, b in zip(exact, rows)])
            if recall >= TARGET or index.depth >= min(count, DEEPEST):
                break
            index.depth = min(count, 2 * index.depth)
        first = np.mean(exact[:, 0] == rows[:, 0])
        return {"depth": index.depth, "check": [
            f"{one.method} proposes {index.depth:,} candidates, built in {seconds:,.0f} s",
            f"of the {exact.shape[1]} best photos it finds {100 * recall:.1f}%, of the first "
            f"{100 * first:.1f}%, for {len(exact)} {what}",
            f"{fast:,.0f} queries per second, and {slow:,.0f} by comparing all photos, with "
            f"{torch.get_num_threads()} threads"]}


def timed(ranker: Ranker, asked: Asked) -> tuple[np.ndarray, float]:
    """The rows of the best photos of queries (Q, BEST), and queries per second."""
    began = time.perf_counter()
    rows = ranker.rank(asked, min(BEST, ranker.count)).rows
    return rows, len(rows) / (time.perf_counter() - began)


# ---- a new index

def make(output: str, run: str, where: Where, photos: str | None, kind: Kind, how: How, *,
         overwrite: bool = False, token: str = "") -> None:
    """A new index in the folder `output` of the photos that `where` and `photos`, their folder,
    name. Raises InputError where there is one already."""
    encoder = Encoder(run, device=how.device, data_path=where.data_path)
    refuse_foreign(output)
    if os.path.exists(os.path.join(output, "manifest.json")) and not overwrite:
        raise InputError(f"{output} is an index already; change it with search.py add or remove, "
                         "replace it with --overwrite, or name another folder")
    if photos and not os.path.isdir(photos):
        raise InputError(f"--photos {photos} is no folder; give the one that holds the photos")
    gallery = gallery_of(encoder, where, photos)
    bank = kind.bank and BankColumn(encoder, kind.bank, how, kind.sets)
    if bank and bank.beta is None:
        print(f"note: no beta of the query bank of {kind.bank} helps on dev, so nothing is taken "
              "from the scores")
        bank = None
    no_set = bank and bank.trust.no_set(len(gallery.names))
    if no_set:
        print(f"note: {no_set}")
    manifest = {"index": FORMAT, "engine": "milvus" if kind.uri else "faiss",
                "run": os.path.abspath(run), "weights": encoder.weights,
                "similarity": encoder.options.sim, "half": kind.half, "method": kind.method,
                "folder": gallery.folder, "extractor": gallery.extractor, "recipe": gallery.recipe,
                "data": gallery.data, "removed": [], "bank": bank and bank.report,
                "images": [os.path.abspath(where.data_path), where.data_name, where.split],
                "trust": bank and bank.trust._asdict()}
    with writing_alone(output):
        if kind.uri:
            uri = os.path.abspath(kind.uri) if is_folder(kind.uri) else kind.uri
            pointer = {name: manifest[name] for name in ("index", "engine", "removed")}
            pointer |= {"uri": uri, "collection": kind.collection}
            place = contextlib.closing(Milvus.create(output, manifest, pointer, token))
        else:
            place = changing(output, manifest, len(gallery.names))
        with place as new:
            fill(new, Work(encoder, gallery, how, bank))


def fill(new, work: Work) -> None:
    """Embed all photos of a gallery into a new index, and put it in place. Its origin is the
    average of some of them, of what the similarity centres: the same numbers for all items change
    no score, and near the average they are small."""
    similarity, rows = work.encoder.similarity.cpu(), np.arange(len(work.gallery.names))
    some, e = next(work.embedded(rows[:FIRST]))
    centred = {name: getattr(e, name).mean(0, keepdim=True)
               for name in getattr(similarity, "centred", ()) if getattr(e, name) is not None}
    form = form_of(similarity, e)
    work.vectors = vectors_of(similarity, Embedding(centred.get("mean"), centred.get("log_var")),
                              new.manifest["half"], form)
    block, _ = work.lifted(some, e)
    form |= {"widths": [x.shape[1] for x in block.vectors],
             "rest": 0 if block.rest is None else block.rest.shape[1]}
    new.manifest |= {"vectors": form, "origin": {k: in_text(x.numpy()) for k, x in centred.items()}}
    work.write(new, rows[new.begin(work.vectors, block):])


def refuse_foreign(folder: str) -> None:
    """Raises InputError where a folder holds other files than those of an index."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder; name another with --output")
    states = [name for name in names if is_state(os.path.join(folder, name))]
    with contextlib.suppress(InputError, TypeError):        # JSON of another thing
        manifest = os.path.join(folder, "manifest.json")
        if "manifest.json" in names and (states or "index" in read_json(manifest)):
            return
    partial = r"\.lock|\.([0-9]{6}|manifest\.json)\.\d+\.part"  # what a killed process leaves
    other = [name for name in names if name not in states and not re.fullmatch(partial, name)]
    if other:
        raise InputError(f"{folder} holds {other[0]} and is no index; "
                         "name a folder of its own with --output")


# ---- a folder of one's own, in one step

def folder_name(photos: str, of: object = "") -> str:
    """A name for what is made of a folder of photos: its own, and a digest of where it lies and of what is made."""
    path = os.path.realpath(photos)
    name = re.sub(r"[^A-Za-z0-9]+", "_", os.path.basename(path)).strip("_")
    return f"{name or 'photos'}_{sha256(f'{path}{of}')[:6]}"


def features_of(photos: str, recipe: dict, data_path: str, reading: store.How) -> str:
    """The name, below data_path, of the features of the photos below a folder as they are now. Photos that cannot be
    read are named and left out."""
    name = folder_name(photos, sorted(recipe.items()))
    extract(photos, os.path.join(data_path, name), recipe, reading, None, None)
    return name


def of_folder(photos: str, output: str, run: str, data_path: str, how: How,
              reading: store.How) -> list[str]:
    """An index in the folder `output` of the photos below a folder as they are now, by a run whose
    features of photos are computed first. Returns what is said of it, in lines. Raises InputError
    where the run does not tell how to compute them."""
    encoder, name = Encoder(run, device=how.device, data_path=data_path), None
    if not encoder.reads_photos:
        line = encoder.extractors.get("ims", "")
        recipe = recipe_of(line)
        check(recipe,
              f"{run} was trained on features of photos of {ascii(line) if line else 'an unnamed network'}, and those "
              "of other photos cannot be computed from that alone; write them with features.extract "
              "images --photos, and index them with search.py index --images NAME")
        name = features_of(photos, recipe, data_path, reading)
    if os.path.exists(os.path.join(output, "manifest.json")):
        return add(output, [], how, run)
    make(output, run, Where(data_path, name, None), None if name else photos, Kind(), how)
    return []


# ---- changes

@contextlib.contextmanager
def changed(folder: str, token: str):
    """Yields an index, and what opens a new state of it: change(rows to leave out, how many come,
    which names stay out)."""
    manifest_of(folder)
    with (writing_alone(folder),
          contextlib.closing(open_index(folder, token, writing=True)) as old):
        @contextlib.contextmanager
        def change(out: np.ndarray, more: int, removed: set[str]):
            place = (contextlib.nullcontext(old) if isinstance(old, Milvus)
                     else changing(folder, old.manifest, len(old) - len(out) + more))
            with place as new:
                new.leave_out(old, out, removed)
                yield new
        yield old, change


def add(folder: str, names: list[str], how: How, run: str | None = None,
        token: str = "") -> list[str]:
    """Take new and changed photos into an index, but for those that `remove` took out, unless they
    fit a pattern of `names`. run: where it is no longer where the index was made. Returns what is
    said of it, in lines. Raises InputError where a pattern fits none of them."""
    with changed(folder, token) as (old, change):
        work = reopened(folder, old, run, how)
        gallery, (rows, own, digests) = work.gallery, old.listed()
        place = {name: (row, digest) for row, name, digest in zip(rows.tolist(), own, digests)}
        removed = set(removed_from(folder))
        removed -= fitting(names, removed, f"that was removed from {folder}",
                           "'*' names all of them")
        new_names = [name for name in gallery.names if name not in place]
        fresh = [i for i, name in enumerate(gallery.names)
                 if name not in place and name not in removed]
        other = [i for i, name in enumerate(gallery.names)
                 if name in place and place[name][1] != gallery.digests[i]]
        if fresh or other:
            bank = old.manifest["bank"]
            work.bank = bank and BankColumn(work.encoder, bank["split"], how)
            out = np.array([place[gallery.names[i]][0] for i in other], np.int64)
            with change(out, len(fresh) + len(other), removed) as new:
                work.write(new, np.array(sorted(fresh + other)), None if other else old)
    absent, stay = len(place) + len(new_names) - len(gallery.names), len(new_names) - len(fresh)
    sentence = f"{folder}: {len(fresh):,} photos added, {len(other):,} changed"
    if absent:
        sentence += (f"; {absent:,} are no longer among those indexed, "
                     "and stay until search.py remove takes them out")
    if stay:
        sentence += (f"; {stay:,} stay out as search.py remove took them out, "
                     "until search.py add names them")
    return [sentence, *waiting(gallery, *old.manifest["images"][:2])]


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
            f"python -m features.extract images {words}"] if pending else []


def removed_from(folder: str) -> list[str]:
    """The photos that `remove` took out of an index by their names, and `add` leaves out."""
    return manifest_of(folder)["removed"]


def remove(folder: str, names: list[str], gone: bool, how: How, run: str | None = None,
           token: str = "") -> tuple[int, int]:
    """Take photos out of an index: those whose names fit a pattern of `names`, which stay out, or,
    with `gone`, those whose files are gone, which come back with them. Returns how many, and how
    many are left. Raises InputError where a pattern fits none."""
    with changed(folder, token) as (old, change):
        rows, own, _ = old.listed()
        photos, lost = old.manifest["folder"] or "", lost_photos(folder, old.manifest)
        if gone and lost:
            raise InputError(lost)
        matches = fitting(names, set(own), f"of {folder}",
                          f"search.py info {folder} --names lists them")
        out = [k for k, name in enumerate(own)
               if name in matches or gone and not os.path.isfile(os.path.join(photos, name))]
        if len(out) == len(own):
            raise InputError(f"this would leave no photo in {folder}; delete the folder instead")
        if out:
            with change(rows[out], 0, {*removed_from(folder), *matches}) as new:
                new.finish(lambda index: reopened(folder, old, run, how).propose(index))
        return len(out), len(own) - len(out)


def reopened(folder: str, old: Index | Milvus, run: str | None, how: How) -> Work:
    """The run that an index was made by, its vectors, and its photos as they are now. Raises
    InputError where the weights of the run are others now."""
    manifest = old.manifest
    where = Where(*manifest["images"])
    encoder = Encoder(run or manifest["run"], manifest["recipe"], device=how.device,
                      data_path=where.data_path)
    encoder.refuse_other_weights(folder, manifest["weights"])
    vectors = vectors_of(encoder.similarity.cpu(), old.origin, manifest["half"],
                         manifest["vectors"])
    return Work(encoder, gallery_of(encoder, where, manifest["folder"]), how, vectors=vectors)
