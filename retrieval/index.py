"""An index on disk: the vectors of photos in .npy files, beside their names.

    INDEX/manifest.json             of which model and photos it is, which folder holds it, and
                                    which photos were removed and do not come back by themselves
    INDEX/000001/items.json         the names of the photos, and digests by which a change is known
    INDEX/000001/numbers.npz        (N,) log det Sigma, and what a query bank takes from scores
    INDEX/000001/vectors0.npy ...   a file of every channel (`ranking`); rest.npy, approximate0.npz

Every change writes a new folder and then the manifest, in one step. So a stop at any moment leaves
the old index or the new one. One process writes at a time; readers never wait.
"""
import base64
import contextlib
import fnmatch
import functools
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError, reason
from files.reading import FAULTS, read_arrays, read_json
from files.writing import alive, locked, save_arrays, save_json
from retrieval.engines import AGAIN, Approximate, Flat, writing
from retrieval.trust import from_json
from similarities import Embedding

FORMAT = 2                            # of manifest.json
KINDS = {"index": int, "engine": str, "run": str, "weights": str, "similarity": str,
         "vectors": dict, "origin": dict, "half": bool, "method": str, "folder": str | None,
         "extractor": str | None, "recipe": dict | None, "data": str, "images": list,
         "bank": dict | None, "trust": object, "removed": list}
POINTER = "uri", "collection", "removed"
SAMPLE = 2048                     # photos that stand for all others in a sum over the gallery
ROWS = 1024                       # photos that are copied at a time
DEPTH = 200                       # candidates at least that an index proposes, unless it was tuned
# Files of a state, in format 1 too.
STATE = r"items\.json|numbers\.npz|(rest|vectors\d+)\.(npy|faiss)|approximate\d+\.npz"


class Items(NamedTuple):
    """What is known of the N photos of an index beside their vectors."""
    names: list[str]                  # paths below the photo folder
    digests: list[str | None]         # of their files, where they are known
    uncertainty: np.ndarray           # (N,) log det Sigma in nats; NaN for points
    bank: np.ndarray                  # (N,) what a query bank takes from their scores

    def take(self, rows) -> "Items":
        """The photos at `rows`, an array of integers."""
        return Items([self.names[i] for i in rows], [self.digests[i] for i in rows],
                     self.uncertainty[rows], self.bank[rows])


class Block(NamedTuple):
    """Some photos on their way into an index."""
    vectors: list[torch.Tensor]       # (n, K) of every channel
    rest: torch.Tensor | None         # (n, R)


def in_text(numbers: np.ndarray) -> str:
    """Numbers as text of a manifest, float32 to the bit."""
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def of_text(text: str) -> np.ndarray:
    """The numbers (n,) that `in_text` wrote. Raises ValueError or TypeError on other text."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


def origin_of(manifest: dict) -> Embedding:
    """The origin of an index (`ranking`)."""
    texts = manifest["origin"]
    return Embedding(*(torch.tensor(of_text(texts[name]))[None] if name in texts else None
                       for name in ("mean", "log_var")))


def known(x: np.floating) -> float | None:
    """A number of `Items`, None for NaN."""
    return None if np.isnan(x) else float(x)


def manifest_of(folder: str) -> dict:
    """The manifest of an index. Raises InputError where there is none, or one of another
    version."""
    path = os.path.join(folder, "manifest.json")
    if not os.path.isfile(path):
        raise InputError(f"{folder} is no index; make one with search.py index --output {folder}")
    return check_manifest(read_json(path, AGAIN), path)


def check_manifest(manifest, path: str) -> dict:
    """A manifest. Raises InputError where it is none, or one of another version."""
    if not isinstance(manifest, dict) or "index" not in manifest:
        raise InputError(f"{path} describes no index; {AGAIN}")
    if manifest["index"] != FORMAT:
        raise InputError(f"{path} is of format {str(manifest['index'])[:20]}, and this version "
                         f"reads format {FORMAT}; {AGAIN}")
    for name in POINTER if "uri" in manifest else KINDS:
        value = manifest.get(name, "missing")
        if (not isinstance(value, KINDS.get(name, str)) or name == "images" and len(value) != 3
                or name == "removed" and not all(isinstance(x, str) for x in value)):
            raise InputError(f"{path} is damaged: {name} is {str(value)[:20]}; {AGAIN}")
    return manifest


def fitting(patterns: Iterable[str], names: set[str], which: str, fix: str) -> set[str]:
    """The names that patterns are, or that fit them, or that lie in the folder of that name. Raises
    InputError where one fits none."""
    fits = set()
    for pattern in patterns:
        some = ({pattern} & names or set(fnmatch.filter(names, pattern))
                or set(fnmatch.filter(names, f"{pattern.rstrip('/')}/*")))
        if not some:
            raise InputError(f"no photo {which} is named {pattern}; {fix}")
        fits |= some
    return fits


def is_state(path: str) -> bool:
    """Whether a folder is a state of an index and not someone's photos of a month: by its name, and
    what is in it."""
    named = re.fullmatch("[0-9]{6}", os.path.basename(path)) and not os.path.islink(path)
    names = os.listdir(path) if named and os.path.isdir(path) else []
    return bool(names) and all(re.fullmatch(STATE, name) for name in names)


def lost_photos(folder: str, manifest: dict) -> str | None:
    """What is said where the photos of an index in `folder`, of this manifest, are no longer in
    their folder, as it was moved; None where the folder is there, or none is known."""
    if not manifest["folder"] or os.path.isdir(manifest["folder"]):
        return None
    options = dict(zip(("data_path", "images", "split"), manifest["images"]))
    options["bank"] = (manifest["bank"] or {}).get("split")
    words = "".join(f" --{name} {shlex.quote(value)}" for name, value in options.items() if value)
    words += (" --float16" * manifest["half"]
              + f" --{manifest['method']}" * (manifest["method"] != "flat"))
    words += " --engine milvus --uri URI --collection OTHER" * (manifest["engine"] == "milvus")
    return (f"the folder of the photos, {manifest['folder']}, is not there, so all look gone; put "
            "it back, or make the index again with where they are now: search.py index "
            f"--checkpoint {shlex.quote(manifest['run'])}{words} --photos FOLDER --output "
            f"{shlex.quote(folder)} --overwrite")


class Index:
    """The photos of an index in files, whose vectors are mapped and not read. Raises InputError
    where a file is missing or damaged.

    manifest, path: those of a state that is not in place yet. exact: whether all photos are
    compared; otherwise an approximate index of every channel proposes candidates, `depth` of them
    at least.
    """

    def __init__(self, folder: str, manifest: dict | None = None, path: str | None = None):
        self.folder, self.manifest = folder, manifest or manifest_of(folder)
        self.path = path or os.path.join(folder, str(self.manifest.get("generation")))
        try:
            if not path and not re.fullmatch("[0-9]{6}", os.path.basename(self.path)):
                raise ValueError("its manifest names no folder of it")
            self.origin, self.trust = origin_of(self.manifest), from_json(self.manifest["trust"])
            items = read_json(self.file("items.json"), AGAIN)
            arrays = read_arrays(self.file("numbers.npz"), AGAIN)
            self.items = Items(items["names"], items["digests"], arrays["uncertainty"],
                               arrays["bank"])
            if not all(isinstance(name, str) for name in self.items.names):
                raise ValueError("a name is no text")
            widths = self.manifest["vectors"]["widths"]
            self.channels = [Flat(self.file(f"vectors{c}.npy")) for c in range(len(widths))]
            self.rest = Flat(self.file("rest.npy")) if self.manifest["vectors"]["rest"] else None
            counts = {*map(len, self.items), *(flat.n for flat in self.channels)}
        except InputError:
            raise
        except FAULTS as error:
            raise InputError(f"{self.path} is no whole index ({reason(error)}); {AGAIN}") from error
        count, lengths = self.manifest["count"], [flat.k for flat in self.channels]
        if counts != {count} or lengths != widths:
            raise InputError(f"{self.path} holds {min(counts):,} vectors of {lengths} numbers, and "
                             f"its manifest says {count} of {widths}; {AGAIN}")
        self.bank = self.items.bank if self.manifest["bank"] else None              # (N,)
        self.rows = count                                   # they are below this
        self.exact = bool(path) or self.manifest["method"] == "flat"
        self.depth = self.manifest.get("depth", DEPTH)
        files = [self.file(f"approximate{c}.npz") for c in range(0 if self.exact else len(widths))]
        self.approximate = [Approximate.open(file) for file in files]

    def __len__(self) -> int:
        return self.rows

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def listed(self) -> tuple[np.ndarray, list[str], list[str | None]]:
        """The rows, names and digests of all photos."""
        return np.arange(len(self)), self.items.names, self.items.digests

    def close(self) -> None:
        """Nothing: mapped files are closed with the object."""

    def facts(self, rows: list[int]) -> list[tuple[str, float | None]]:
        """The names of photos, and their log det Sigma in nats, None for points."""
        return [(self.items.names[row], known(self.items.uncertainty[row])) for row in rows]

    def products(self, vectors: list[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Products of queries (Q, K) of every channel with all photos: (first row, (Q, b) of every
        channel)."""
        for blocks in zip(*(flat.products(x) for flat, x in zip(self.channels, vectors))):
            yield blocks[0][0], [block for _, block in blocks]

    def fetch(self, rows: np.ndarray) -> Block:
        """The photos `rows` (m,) as they are stored."""
        return Block([flat.rows(rows) for flat in self.channels],
                     None if self.rest is None else self.rest.rows(rows))

    @functools.cached_property
    def sample(self) -> tuple[np.ndarray, Block]:
        """Rows of photos that were drawn at random, the same ones always, and the photos."""
        rows = np.sort(np.random.default_rng(0).permutation(len(self))[:SAMPLE])
        return rows, self.fetch(rows)

    def candidates(self, vectors: list[torch.Tensor], r: int) -> np.ndarray:
        """Rows of photos that may have the best scores: (Q, R), -1 where there are fewer."""
        rows = [one.candidates(x, r) for one, x in zip(self.approximate, vectors)]
        return np.concatenate(rows, 1)


class Generation:
    """A new state of an index on its way to the disk: `begin`, `add` blocks, and `finish` puts it
    in place."""

    def __init__(self, folder: str, path: str, manifest: dict, files: contextlib.ExitStack):
        self.folder, self.path, self.manifest, self.files = folder, path, manifest, files
        self.writers, self.items = {}, []

    def begin(self, vectors, block: Block) -> int:
        """How many photos are there already, after a stop: none."""
        return 0

    def leave_out(self, old: Index, rows: np.ndarray, removed: set[str]) -> None:
        """Copy the photos of the old state, but for these. removed: the names of those that were
        taken out, and do not come back by themselves."""
        self.manifest["removed"] = sorted(removed)
        others = np.setdiff1d(np.arange(len(old)), rows)
        for k in range(0, len(others), ROWS):
            self.add(old.fetch(others[k:k + ROWS]), old.items.take(others[k:k + ROWS]))

    def add(self, block: Block, items: Items) -> None:
        """Write some photos behind those before."""
        self.items.append(items)
        parts = {f"vectors{c}": x for c, x in enumerate(block.vectors)}
        parts |= {} if block.rest is None else {"rest": block.rest}
        for name, x in parts.items():
            if name not in self.writers:
                file, of = os.path.join(self.path, f"{name}.npy"), self.manifest
                writer = writing(file, of["count"], x.shape[1], of["half"])
                self.writers[name] = self.files.enter_context(writer)
            self.writers[name](x)

    def finish(self, propose) -> None:
        """Close the files, write names and numbers, and make this the index. propose(index): builds
        the approximate indexes that the manifest asks for, and returns what it notes of them."""
        self.files.close()
        names, digests, spreads, banks = zip(*self.items)
        save_arrays(os.path.join(self.path, "numbers.npz"),
                    {"uncertainty": np.concatenate(spreads), "bank": np.concatenate(banks)})
        save_json({"names": [*chain(*names)], "digests": [*chain(*digests)]},
                  os.path.join(self.path, "items.json"))
        if self.manifest["method"] != "flat":
            self.manifest |= propose(Index(self.folder, self.manifest, self.path))
        name = self.manifest["generation"]
        os.rename(self.path, os.path.join(self.folder, name))
        save_json(self.manifest, os.path.join(self.folder, "manifest.json"))
        for old in os.listdir(self.folder):
            if old != name and is_state(os.path.join(self.folder, old)):
                # errors: readers may have its files open
                shutil.rmtree(os.path.join(self.folder, old), ignore_errors=True)


@contextlib.contextmanager
def changing(folder: str, manifest: dict, count: int):
    """Yields a Generation of `count` photos to fill and to finish, in a folder whose lock this
    process holds (`writing_alone`). Whatever fails leaves the index as it was."""
    for name in os.listdir(folder):                         # of a process that was killed
        match = re.fullmatch(r"\.[0-9]{6}\.(\d+)\.part", name)
        if match and not alive(int(match[1])):
            shutil.rmtree(os.path.join(folder, name))
    states = sorted(name for name in os.listdir(folder) if re.fullmatch("[0-9]{6}", name))
    number = f"{int(states[-1]) + 1 if states else 1:06d}"
    path = os.path.join(folder, f".{number}.{os.getpid()}.part")
    os.mkdir(path)
    try:
        with contextlib.ExitStack() as files:
            manifest = {**manifest, "generation": number, "count": count}
            yield Generation(folder, path, manifest, files)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def writing_alone(folder: str):
    """A context that keeps other processes from writing this index: from before its state is read,
    so that no change of theirs is lost. Raises InputError where one writes."""
    os.makedirs(folder, exist_ok=True)
    return locked(folder, "writing the index")
