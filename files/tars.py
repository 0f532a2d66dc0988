"""Reads photos and captions from tar shards in WebDataset's layout, one shard after another.

    python data.py index --data_path data --data_name mine

A shard is a tar of samples, each a photo KEY.jpg beside its captions, KEY.txt or KEY.json. It is a
path, or an address that the package webdataset opens, such as "pipe:COMMAND" and "https://...". It
is read once, from first to last, into memory: what a tar names never becomes a path on a disk.

`{split}-00000.tar`, `{split}-00001.tar`, ... in the folder of the data set hold a split;
--train_shards names those of the training split elsewhere. The command reads them once and writes
`{split}_shards.json`, the index: which samples and captions each shard holds. From it follow the
vocabulary and the order of an epoch, before any photo is read.
"""
import contextlib
import glob
import json
import os
import re
import signal
import tarfile
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

import cli
from cli import InputError, check, reason
from files.layouts import Split
from files.photos import read_photo
from files.reading import (
    FAULTS,
    called,
    holds_keys,
    plain_file,
    read_json,
    recognised,
    refusing,
    sha256,
    shown,
)
from files.shards import numbered
from files.writing import atomic, output
from inputs import Photos

PHOTOS = ("jpg", "jpeg", "png", "webp")
MOST = dict.fromkeys(("txt", "json"), 1 << 20) | dict.fromkeys(PHOTOS, 1 << 28)    # bytes of a file
ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*):")
# A member's key and ending, and names of what is no sample, as in WebDataset.
MEMBER = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")
SKIPPED = re.compile(r"__[^/]*__($|/)")
FORM = 'KEY.txt holds one a line in UTF-8, KEY.json {"captions": [...]} or {"caption": ...}'
WINDOW = 4096                         # samples among whose captions an epoch is shuffled
SHARDS = 1                            # stands behind a seed where it shuffles shards, not captions


class Sample(NamedTuple):
    key: str                          # the path of its files in the tar, without their endings
    name: str                         # of the photo, for messages
    photo: bytes                      # the file, as it stands in the tar
    captions: list[str]               # at least one


def expand(text: str) -> list[str]:
    """The shards that --train_shards names: braces such as {00000..00009} are expanded, :: stands
    between several. Raises InputError."""
    try:
        from webdataset.gopen import gopen_schemes
        from webdataset.shardlists import expand_urls
    except ImportError as error:
        raise InputError("--train_shards is read by the package webdataset, which is not "
                         "installed; pip install -r requirements-webdataset.txt") from error
    with refusing(f"--train_shards {text} cannot be expanded",
                  "give a path or an address, with {00000..00009} for numbers",
                  (AssertionError, *FAULTS)):
        shards = expand_urls(text)
    schemes = sorted({*gopen_schemes} - {"__default__"})
    for shard in shards:
        scheme = ADDRESS.match(shard)
        check(shard not in ("", "-") and (not scheme or scheme[1] in schemes),
              f"--train_shards {text} names the shard '{shard}'; give paths, or addresses that "
              f"begin with {':, '.join(schemes)}:")
    return [shard if ADDRESS.match(shard) else os.path.expanduser(shard) for shard in shards]


# ---- one shard

def samples(shard: str) -> Iterator[Sample]:
    """The samples of a shard, in its order. Raises InputError, which names the shard and, where
    known, the key."""
    keys = set()
    with (refusing(f"the shard {shard} cannot be read to its end", "look at it, or fetch it again"),
          opened(shard) as stream):
        for key, group in groupby(members(stream, shard), key=itemgetter(0)):
            files = [(ending, content) for _, ending, content in group]
            if key in keys or len(dict(files)) < len(files):
                raise InputError(f"{shard} holds files of the key {shown(key)} twice; all files of "
                                 "a sample stand one after another, and every sample has a key of "
                                 "its own")
            keys.add(key)
            yield sample_of(key, dict(files), shard)


@contextlib.contextmanager
def opened(shard: str):
    """The bytes of a shard. An address is opened by webdataset, most often by a command whose
    output is read; where that fails, OSError tells its status."""
    if not ADDRESS.match(shard):
        with open(plain_file(shard), "rb") as f:
            yield f
        return
    from webdataset.gopen import Pipe, gopen  # optional: only addresses need it
    from webdataset.utils import enforce_security

    command = shard.removeprefix("pipe:")
    with cli.unsignalled():              # a signal is for this process, which then ends the command
        if command == shard:
            source = gopen(shard)
        elif enforce_security:
            raise OSError("the environment's WDS_SECURE forbids pipes")
        else:                    # a shell unblocks signals, so they are ignored, in a session apart
            source = Pipe(f"trap '' INT TERM HUP; {command}", mode="rb", shell=True,
                          start_new_session=True)

    def check_status() -> None:
        if status := source.proc.wait():
            raise OSError(f"its command ended with status {status}")
    try:
        yield source.stream
        while source.stream.read(1 << 20):             # what pads a tar; else it could not end well
            pass
        check_status()
    except FAULTS as error:
        if not isinstance(error, InputError) and not source.stream.read(1 << 20):
            check_status()
        raise
    finally:
        if source.proc.poll() is None:                  # it was left before its end
            (os.kill if command == shard else os.killpg)(source.proc.pid, signal.SIGKILL)
        source.proc.wait()
        source.stream.close()


class _Header(tarfile.TarInfo):
    """Of a member. tarfile takes a damaged or missing header for the end of a tar; only two empty
    blocks are one."""

    @classmethod
    def fromtarfile(cls, archive):
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("it is damaged or cut off after "
                                    f"{archive.offset:,} bytes: {error}") from error


def members(stream, shard: str) -> Iterator[tuple[str, str, bytes]]:
    """(key, ending in small letters, content) of the files of a tar that samples are made of.
    Raises OSError, InputError."""
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
            while member := archive.next():
                archive.members = []                    # of which tarfile keeps a list
                parts = MEMBER.fullmatch(member.name)
                ending = parts[2].lower() if parts else None
                if not member.isreg() or SKIPPED.match(member.name) or ending not in MOST:
                    continue
                if member.issparse() or member.size > MOST[ending]:
                    raise InputError(f"{shard} holds the file {shown(member.name)} of "
                                     f"{member.size:,} bytes, and at most {MOST[ending]:,} are "
                                     f"read; it is no {ending} of a sample")
                yield parts[1], ending, archive.extractfile(member).read()
    except tarfile.TarError as error:
        raise OSError(str(error)) from error


def sample_of(key: str, files: dict[str, bytes], shard: str) -> Sample:
    """A sample from its files, {ending: content}: its captions are in KEY.txt or else KEY.json,
    blank ones left out. Raises InputError."""
    photos = [ending for ending in PHOTOS if ending in files]
    if len(photos) != 1:
        raise InputError(f"{shard} holds {len(photos) or 'no'} photos of the key {shown(key)}; a "
                         f"sample has one file KEY.{', .'.join(PHOTOS)}")
    try:
        if "txt" in files:
            captions = re.split(r"\r\n|\r|\n", files["txt"].decode("utf-8-sig"))
        else:
            value = json.loads(files.get("json", b"{}").decode("utf-8-sig"))
            captions = value.get("captions", [value["caption"]] if "caption" in value else [])
        if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
            raise ValueError("captions are texts in a list")
        "".join([key, *captions]).encode()              # half a surrogate pair could not be written
    except FAULTS as error:
        raise InputError(f"{shard}, the captions of the key {shown(key)} cannot be read "
                         f"({reason(error)}); {FORM}") from error
    captions = [text for text in (re.sub(r"[\r\n]+", " ", text).strip() for text in captions) if text]
    if not captions:
        raise InputError(f"{shard} holds no captions of the key {shown(key)}; {FORM}")
    return Sample(key, f"{shown(f'{key}.{photos[0]}')} in {shard}", files[photos[0]], captions)


# ---- the index

def splits_of(root: str) -> list[str]:
    """The splits of which a folder holds shards of photos."""
    names = map(os.path.basename, glob.glob(os.path.join(glob.escape(root), "*.tar")))
    return sorted({match[1] for name in names
                   if (match := re.fullmatch(r"([\w-]+)-[0-9]+\.tar", name))})


def shards_of(root: str, split: str) -> list[str]:
    """The shards of a split in a folder, as paths that are never taken for addresses."""
    return [os.path.abspath(path) if ADDRESS.match(path) else path
            for path in numbered(os.path.join(root, f"{split}.tar"))]


def index_file(root: str, split: str) -> str:
    return os.path.join(root, f"{split}_shards.json")


def facts_of(shard: str) -> dict:
    """By which the index knows a shard: its file name, size and time, or its address. Raises
    InputError where there is no such file."""
    if ADDRESS.match(shard):
        return {"name": shard, "bytes": None, "mtime_ns": None}
    check(os.path.isfile(shard),
          f"there is no shard {shard}; fetch it, or name the shards that are there")
    stat = os.stat(shard)
    return {"name": os.path.basename(shard), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def write_index(root: str, split: str, shards: list[str]) -> tuple[int, int]:
    """Read all shards of a split and write its index. Returns how many samples and captions there
    are. Raises InputError on whatever is wrong with a shard or a caption; photos are not decoded.
    """
    path = output(index_file(root, split), holds_keys("webdataset_shards"))
    facts, shard_of = [facts_of(shard) for shard in shards], {}
    for shard, entry in zip(shards, tqdm(facts, desc=f"shards of {split}", disable=None)):
        entry["samples"] = []
        for sample in samples(shard):
            if sample.key in shard_of:
                raise InputError(f"{shard} and {shard_of[sample.key]} both hold a sample of the key"
                                 f" {shown(sample.key)}; give every sample of a split a key of its "
                                 "own")
            shard_of[sample.key] = shard
            entry["samples"].append([sample.key, sample.captions])
        check(entry["samples"],
              f"{shard} holds no sample; a sample is KEY.jpg beside KEY.txt or KEY.json")
    with atomic(path) as f:
        json.dump({"webdataset_shards": facts}, f, separators=(",", ":"))
    return len(shard_of), sum(len(texts) for entry in facts for _, texts in entry["samples"])


def read_index(root: str, split: str, shards: list[str],
               again: str) -> tuple[list[dict], list[str]]:
    """What the index knows of the shards, and notes on it. Raises InputError, with the command
    `again`, where there is none, or it is of other shards."""
    path, fix = index_file(root, split), f"{again} writes it anew"
    check(os.path.isfile(path), f"there is no {path}, which lists the captions of {len(shards):,} "
                                f"shards; {again} writes it")
    record = read_json(path, f"delete it, and {fix}")
    check(recognised(_is_index, record), f"{path} is no index of shards; delete it, and {fix}")
    entries, old = record["webdataset_shards"], 0
    for k, (entry, shard) in enumerate(zip(entries, shards)):
        facts = facts_of(shard)
        check((entry["name"], entry["bytes"]) == (facts["name"], facts["bytes"]),
              f"{path} was made of other shards: its shard {k} is {entry['name']} of "
              f"{entry['bytes']} bytes, and this one is {facts['name']} of {facts['bytes']}; fetch "
              f"it again, or {fix}")
        old += entry["mtime_ns"] != facts["mtime_ns"]
    check(len(entries) == len(shards), f"{path} was made of {len(entries):,} shards, and there are "
                                       f"{len(shards):,}; fetch those that are missing, or {fix}")
    return entries, [f"{old:,} of {len(shards):,} shards have another date than when {path} was "
                     "made; each sample that is read is compared with it"] * bool(old)


def _is_index(record) -> bool:
    """Whether a value has the form that `write_index` writes. Raises one of FAULTS on others."""
    return all(set(entry) == {"name", "bytes", "mtime_ns", "samples"}
               and isinstance(entry["name"], str)
               and all(isinstance(key, str) and isinstance(texts, list) and texts
                       and all(isinstance(text, str) for text in texts)
                       for key, texts in entry["samples"])
               for entry in record["webdataset_shards"])


# ---- photos

class HeldPhotos(Photos):
    """Some photos in memory, as they stood in their tars. paths: by the number of the image, its
    name for messages, and the file."""

    def open(self, i: int, most: int | None = None) -> Image.Image:
        name, content = self.paths[i]
        return read_photo(name, most, content)


class TarPhotos(Photos):
    """The N photos of K shards, read in the order of the shards; `supply` reads what batches need.
    """

    def __init__(self, shards: list[str], index: list[dict], again: str):
        """shards: paths and addresses, to be opened. index: what `read_index` knows of them. again:
        the command that writes it."""
        self.shards, self.again = shards, again
        self.keys = [key for entry in index for key, _ in entry["samples"]]
        self.captions = [captions for entry in index for _, captions in entry["samples"]]
        self.start = np.cumsum([0, *(len(entry["samples"]) for entry in index)])    # (K + 1,)

    def __getstate__(self) -> dict:
        return {}                             # a worker process is given the photos with each chunk

    @property
    def paths(self) -> list[str]:
        raise InputError(f"the photos of {self.shards[0]} are in tar shards, which training, "
                         "evaluation and pictures read, and this needs every photo in a file of "
                         "its own; unpack them (tar -xf)")

    def __len__(self) -> int:
        return len(self.keys)

    def name(self, i: int) -> str:
        return self.keys[i]

    def samples(self, k: int) -> Iterator[tuple[int, tuple[str, bytes]]]:
        """The images of shard k: their numbers, names for messages, and files. Raises InputError
        where the shard cannot be read, or is not the one that was indexed."""
        shard, first, last = self.shards[k], *self.start[k:k + 2].tolist()
        i = first
        for sample in samples(shard):
            if i == last or (self.keys[i], self.captions[i]) != (sample.key, sample.captions):
                entry = "no more" if i == last else f"{shown(self.keys[i])} with its captions"
                raise InputError(f"{shard} holds the sample {shown(sample.key)} as number "
                                 f"{i - first}, and its index lists {entry}; the shard has "
                                 f"changed, so {self.again} writes it anew")
            yield i, (sample.name, sample.photo)
            i += 1
        check(i == last, f"{shard} ends after {i - first:,} samples, and its index lists "
                         f"{last - first:,}; fetch it again, or {self.again} writes the index anew")

    def open(self, i: int, most: int | None = None) -> Image.Image:
        """Photo i, for pictures of a few: its shard is read up to it."""
        k = int(np.searchsorted(self.start, i, side="right")) - 1
        name, content = next(photo for n, photo in self.samples(k) if n == i)
        return read_photo(name, most, content)

    def order(self, seed: tuple | None) -> np.ndarray:
        """The order in which the shards are read, (K,): shuffled by `seed`, or their own."""
        count = len(self.shards)
        return (np.arange(count) if seed is None
                else np.random.default_rng([*seed, SHARDS]).permutation(count))

    def place(self, seed: tuple | None) -> np.ndarray:
        """Where each image comes when the shards are read in this order, (N,)."""
        place = np.empty(len(self), np.int64)
        images = np.concatenate([np.arange(*self.start[k:k + 2]) for k in self.order(seed)])
        place[images] = np.arange(len(self))
        return place

    def windows(self, owner: np.ndarray, size: int, seed: tuple) -> list[np.ndarray]:
        """The rows of `owner` (m,), which are images, in runs: those of the first `size` images
        that are read, of the next, and so on. Windows are equal, so the last is not a small rest.
        """
        count = -(-len(self) // size)
        window = self.place(seed)[owner] * count // len(self)                       # (m,)
        rows = np.argsort(window, kind="stable")
        return np.split(rows, np.flatnonzero(np.diff(window[rows])) + 1)

    def supply(self, chunks, images_of, seed: tuple | None = None):
        """Yield each chunk with its photos as `HeldPhotos`. images_of(chunk): images (B,).

        The shards are read one after another and only as far as a chunk needs; those of which no
        chunk needs a photo are not opened. A photo is held until the last chunk that needs it.
        """
        place, uses = self.place(seed), np.zeros(len(self), np.int64)
        for chunk in chunks:
            np.add.at(uses, images_of(chunk), 1)
        photos, reached, needed = {}, -1, uses > 0
        arriving = (image for k in self.order(seed) if needed[slice(*self.start[k:k + 2])].any()
                    for image in self.samples(k) if needed[image[0]])
        for chunk in chunks:
            images = images_of(chunk)
            while reached < place[images].max(initial=-1):
                i, photos[i] = next(arriving)
                reached = place[i]
            yield chunk, HeldPhotos({i: photos[i] for i in images.tolist()})
            np.subtract.at(uses, images, 1)
            for i in set(images[uses[images] == 0].tolist()):
                del photos[i]

    def faults(self, deep: bool):
        """Yield sentences on photos that cannot be read; `deep` opens all."""
        for k in tqdm(range(len(self.shards)), desc="shards", disable=None) if deep else ():
            try:
                for _, (name, content) in self.samples(k):
                    try:
                        read_photo(name, content=content)
                    except InputError as error:
                        yield str(error)
            except InputError as error:
                yield str(error)

    def describe(self) -> str:
        return f"photos in {len(self.shards):,} tar shards"

    def digest(self) -> str:
        """Of the keys and of where shards end: an epoch's order follows from them."""
        return sha256("\n\n".join("\n".join(self.keys[a:b])
                                  for a, b in zip(self.start, self.start[1:])))


def read_tars(data_path: str, data_name: str, split: str, train_shards: str | None = None) -> Split:
    """A split of photos in tar shards: those in the folder or, of the training split, those that
    `train_shards` names. Raises InputError where they and the index do not fit."""
    root = os.path.join(data_path, data_name)
    split = called(split, lambda name: shards_of(root, name))
    again = f"`python data.py index --data_path {data_path} --data_name {data_name}`"
    again += " with this --train_shards" * bool(train_shards)
    shards = expand(train_shards) if train_shards else shards_of(root, split)
    check(shards, f"there are no shards {os.path.join(root, split)}-00000.tar, ...; put them there"
                  f"{', or give --train_shards again' * os.path.isfile(index_file(root, split))}")
    index, notes = read_index(root, split, shards, again)
    photos = TarPhotos(shards, index, again)
    return Split("dev" if split == "val" else split, photos,
                 [text for captions in photos.captions for text in captions],
                 np.repeat(np.arange(len(photos)), [len(texts) for texts in photos.captions]),
                 index_file(root, split), photos.keys, notes=notes)
