"""An index on disk: the vectors of photos in files of FAISS, beside their names.

    INDEX/manifest.json               of which model and photos it is, which folder holds it, how it was made, and which
                                      photos were removed and do not come back by themselves
    INDEX/000001/items.json           the names of the photos, and digests by which a changed photo is known
    INDEX/000001/numbers.npz          (N,) log det Sigma of each photo, and what the query bank takes from it
    INDEX/000001/vectors0.faiss ...   a file of every channel (`vectors`), rest.faiss, and approximate0.npz ...

Every change writes a new folder and then the manifest, in one step. So a stop at any moment leaves the old index or the
new one. One process writes at a time; readers never wait.
"""
import base64
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError, reason
from files.reading import FAULTS, read_arrays, read_json
from files.writing import alive, locked, save_arrays, save_json
from retrieval.approximate import Approximate
from retrieval.flat import Flat, writing
from retrieval.trust import from_json
from similarities import Embedding

FORMAT = 1                            # of manifest.json
AGAIN = "make it again with search.py index"
KEYS = {"index", "engine", "run", "weights", "similarity", "vectors", "origin", "half", "method", "folder", "extractor",
        "recipe", "data", "images", "bank", "trust"}
OF_KIND = {"index": int, "vectors": dict, "origin": dict, "half": bool, "folder": str | None, "extractor": str | None,
           "recipe": dict | None, "images": list, "bank": dict | None, "trust": object,
           "removed": list}           # all others: str
POINTER = {"index", "engine", "uri", "collection"}
SAMPLE = 2048                         # photos that stand for all others in a sum over the gallery
ROWS = 1024                           # photos that are copied at a time
DEPTH = 200                           # candidates at least that an index proposes, unless it was tuned
STATE = r"items\.json|numbers\.npz|rest\.faiss|vectors\d+\.faiss|approximate\d+\.npz"     # files of a state


class Items(NamedTuple):
    """What is known of the N photos of an index beside their vectors."""
    names: list[str]                  # paths below the photo folder
    digests: list[str | None]         # of their files, where they are known
    uncertainty: np.ndarray | None    # (N,) log det Sigma in nats; None for points
    bank: np.ndarray | None           # (N,) what a query bank takes from their scores

    def take(self, rows) -> "Items":
        """The photos at `rows`, an array of integers."""
        return Items([self.names[i] for i in rows], [self.digests[i] for i in rows],
                     *(None if x is None else x[rows] for x in (self.uncertainty, self.bank)))

    @classmethod
    def joined(cls, parts: list["Items"]) -> "Items":
        """Those of some photos after each other."""
        names, digests, *numbers = zip(*parts)
        return cls(list(chain(*names)), list(chain(*digests)),
                   *(None if x[0] is None else np.concatenate(x) for x in numbers))


class Block(NamedTuple):
    """Some photos on their way into an index."""
    vectors: list[torch.Tensor]       # (n, K) of every channel
    rest: torch.Tensor | None         # (n, R)


def origin_in_text(origin: Embedding) -> dict:
    """An origin (`vectors`) as text of a manifest, to the bit."""
    return {name: base64.b64encode(x.numpy().tobytes()).decode()
            for name, x in (("mean", origin.mean), ("log_var", origin.log_var)) if x is not None}


def origin_of_text(stored: dict) -> Embedding:
    """Raises ValueError or TypeError on other text."""
    return Embedding(*(torch.frombuffer(bytearray(base64.b64decode(stored[name], validate=True)), dtype=torch.float32
                                        )[None] if name in stored else None for name in ("mean", "log_var")))


def manifest_of(folder: str) -> dict:
    """The manifest of an index. Raises InputError where there is none, or one of another version."""
    path = os.path.join(folder, "manifest.json")
    if not os.path.isdir(folder) or not os.path.isfile(path):
        raise InputError(f"{folder} is no index; make one with search.py index --output {folder}")
    found = read_json(path, AGAIN)
    return check_manifest(found, path)


def check_manifest(found, path: str) -> dict:
    """A manifest, or the pointer to that of a cluster (`cluster`). Raises InputError where it is neither."""
    if not isinstance(found, dict) or "index" not in found:
        raise InputError(f"{path} describes no index; {AGAIN}")
    if found["index"] != FORMAT:
        raise InputError(f"{path} is of format {str(found['index'])[:20]}, and this version reads format {FORMAT}; "
                         f"{AGAIN}")
    needed = POINTER if is_pointer(found) else KEYS
    if not needed <= set(found):
        raise InputError(f"{path} lacks {', '.join(sorted(needed - set(found)))}; {AGAIN}")
    for name in sorted(needed | ({"removed"} & set(found))):
        if not isinstance(found[name], OF_KIND.get(name, str)) or name == "images" and len(found[name]) != 3 or (
                name == "removed" and not all(isinstance(x, str) for x in found[name])):
            raise InputError(f"{path} is damaged: {name} is {str(found[name])[:20]}; {AGAIN}")
    return found


def is_pointer(found: dict) -> bool:
    """Whether a manifest only says where another lies (`cluster`)."""
    return set(found) - {"removed"} == POINTER


def is_state(path: str) -> bool:
    """Whether a folder is a state of an index and not someone's photos of a month: by its name, and what is in it."""
    if not re.fullmatch("[0-9]{6}", os.path.basename(path)) or os.path.islink(path) or not os.path.isdir(path):
        return False
    held = os.listdir(path)
    return bool(held) and all(re.fullmatch(STATE, name) for name in held)


def lost_photos(folder: str, made: dict) -> str | None:
    """What is said where the photos of an index in `folder`, of this manifest, are no longer in their folder, as it was
    moved; None where the folder is there, or none is known."""
    if not made["folder"] or os.path.isdir(made["folder"]):
        return None
    given = dict(zip(("data_path", "images", "split"), made["images"])) | {"bank": (made["bank"] or {}).get("split")}
    words = "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if value)
    words += " --float16" * made["half"] + f" --{made['method']}" * (made["method"] != "flat")
    words += " --engine milvus --uri URI --collection OTHER" * (made["engine"] == "milvus")
    return (f"the folder of the photos, {made['folder']}, is not there, so all look gone; put it back, or make the "
            f"index again with where they are now: search.py index --checkpoint {shlex.quote(made['run'])}{words} "
            f"--photos FOLDER --output {shlex.quote(folder)} --overwrite")


class Engine:
    """The vectors of an index in files of FAISS, mapped and not read.

    exact: whether all photos are compared; otherwise an approximate index of every channel proposes candidates.
    """

    def __init__(self, path: str, manifest: dict):
        """path: the folder of one state of the index."""
        channels = range(len(manifest["vectors"]["widths"]))
        self.depth = manifest.get("depth", DEPTH)
        self.channels = [Flat(os.path.join(path, f"vectors{c}.faiss")) for c in channels]
        self.rest = Flat(os.path.join(path, "rest.faiss")) if manifest["vectors"]["rest"] else None
        self.exact, self._sample = manifest["method"] == "flat", None
        self.approximate = [] if self.exact else [Approximate(os.path.join(path, f"approximate{c}.npz"))
                                                  for c in channels]
        for flat, width in zip(self.channels, manifest["vectors"]["widths"]):
            if (flat.n, flat.k) != (manifest["count"], width):
                raise InputError(f"{path} holds {flat.n:,} vectors of {flat.k} numbers, and its manifest says "
                                 f"{manifest['count']:,} of {width}; {AGAIN}")

    def products(self, vectors: list[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Products of queries (Q, K) of every channel with all photos: (first row, (Q, b) of every channel)."""
        for blocks in zip(*(flat.products(x) for flat, x in zip(self.channels, vectors))):
            yield blocks[0][0], [block for _, block in blocks]

    def blocks(self, size: int = 4096) -> Iterator[tuple[int, Block]]:
        """All photos as they are stored: (first row, Block)."""
        for start in range(0, self.channels[0].n, size):
            yield start, self.fetch(np.arange(start, min(start + size, self.channels[0].n)))

    def fetch(self, rows: np.ndarray) -> Block:
        """The photos `rows` (m,) as they are stored."""
        return Block([torch.as_tensor(flat.rows(rows)) for flat in self.channels],
                     None if self.rest is None else torch.as_tensor(self.rest.rows(rows)))

    def sample(self) -> tuple[np.ndarray, Block]:
        """Rows of photos that were drawn at random, the same ones always, and the photos."""
        n = self.channels[0].n
        if self._sample is None:
            rows = np.sort(np.random.default_rng(0).permutation(n)[:SAMPLE])
            self._sample = rows, self.fetch(rows)
        return self._sample

    def candidates(self, vectors: list[torch.Tensor], r: int) -> np.ndarray:
        """Rows of photos that may have the best scores: (Q, R), -1 where there are fewer."""
        return np.concatenate([one.candidates(x, r) for one, x in zip(self.approximate, vectors)], 1)


class Index:
    """An index that is open for reading. Raises InputError where a file of it is missing or damaged."""

    def __init__(self, folder: str):
        self.folder, self.manifest = folder, manifest_of(folder)
        path = os.path.join(folder, str(self.manifest.get("generation")))
        try:
            if not re.fullmatch("[0-9]{6}", os.path.basename(path)):
                raise ValueError("its manifest names no folder of it")
            self.origin, self.trust = origin_of_text(self.manifest["origin"]), from_json(self.manifest["trust"])
            stored = read_json(os.path.join(path, "items.json"), AGAIN)
            arrays = read_arrays(os.path.join(path, "numbers.npz"), AGAIN)
            self.items = Items(stored["names"], stored["digests"], arrays.get("uncertainty"), arrays.get("bank"))
            if not all(isinstance(name, str) for name in self.items.names):
                raise ValueError("a name is no text")
            counts = [len(x) for x in self.items if x is not None]
            self.engine = Engine(path, self.manifest)
        except InputError:
            raise
        except FAULTS as error:
            raise InputError(f"{path} is no whole index ({reason(error)}); {AGAIN}") from error
        if set(counts) != {self.manifest["count"]}:
            raise InputError(f"{path} names {counts[0]:,} photos, and its manifest says {self.manifest['count']:,}; "
                             f"{AGAIN}")

    def __len__(self) -> int:
        return len(self.items.names)

    @property
    def bank(self) -> np.ndarray | None:
        """(N,) what a query bank takes from the scores."""
        return self.items.bank

    @property
    def rows(self) -> int:
        """Rows are 0 to one less than this."""
        return len(self)

    def listed(self) -> tuple[np.ndarray, list[str], list[str | None]]:
        """The rows, names and digests of all photos."""
        return np.arange(len(self)), self.items.names, self.items.digests

    def close(self) -> None:
        """Nothing: mapped files are closed with the object."""

    def names(self, rows: list[int]) -> list[str]:
        """The names of photos, in this order."""
        return [self.items.names[row] for row in rows]

    def uncertainties(self, rows: list[int]) -> list[float | None]:
        """log det Sigma of photos in nats, in this order; None for points."""
        of = self.items.uncertainty
        return [None] * len(rows) if of is None else of[rows].tolist()


class Generation:
    """A new state of an index on its way to the disk: `begin`, `add` blocks, and `finish` puts it in place."""

    def __init__(self, folder: str, path: str, manifest: dict, files: contextlib.ExitStack):
        self.folder, self.path, self.manifest, self.files = folder, path, manifest, files
        self.writers, self.items = [], []

    def begin(self, vectors, block: Block) -> int:
        """How many photos are there already, after a stop: none."""
        return 0

    def leave_out(self, old: Index, rows: np.ndarray) -> None:
        """Copy the photos of the old state, but for these."""
        kept = np.setdiff1d(np.arange(len(old)), rows)
        for k in range(0, len(kept), ROWS):
            self.add(old.engine.fetch(kept[k:k + ROWS]), old.items.take(kept[k:k + ROWS]))

    def remember(self, removed: set[str]) -> None:
        """Note the names of photos that were taken out, and do not come back by themselves."""
        self.manifest["removed"] = sorted(removed)

    def add(self, block: Block, items: Items) -> None:
        """Write some photos behind those before."""
        self.items.append(items)
        parts = [*block.vectors, *([] if block.rest is None else [block.rest])]
        if not self.writers:
            names = [f"vectors{c}" for c in range(len(block.vectors))] + ["rest"] * (block.rest is not None)
            self.writers = [self.files.enter_context(writing(
                os.path.join(self.path, f"{name}.faiss"), self.manifest["count"], x.shape[1], self.manifest["half"]))
                for name, x in zip(names, parts)]
        for write, x in zip(self.writers, parts):
            write(x)

    def finish(self) -> None:
        """Close the files, write names and numbers, and make this the index."""
        self.files.close()
        items = Items.joined(self.items)
        numbers = {"uncertainty": items.uncertainty, "bank": items.bank}
        save_arrays(os.path.join(self.path, "numbers.npz"), {name: x for name, x in numbers.items() if x is not None})
        save_json({"names": items.names, "digests": items.digests}, os.path.join(self.path, "items.json"))
        name = self.manifest["generation"]
        os.rename(self.path, os.path.join(self.folder, name))
        save_json(self.manifest, os.path.join(self.folder, "manifest.json"))
        for old in os.listdir(self.folder):
            if old != name and is_state(os.path.join(self.folder, old)):
                shutil.rmtree(os.path.join(self.folder, old), ignore_errors=True)   # readers have its files open


@contextlib.contextmanager
def changing(folder: str, manifest: dict, count: int):
    """Yields a Generation of `count` photos to fill and to finish, in a folder whose lock this process holds
    (`writing_alone`). Whatever fails leaves the index as it was."""
    for name in os.listdir(folder):                         # of a process that was killed
        found = re.fullmatch(r"\.[0-9]{6}\.(\d+)\.part", name)
        if found and not alive(int(found[1])):
            shutil.rmtree(os.path.join(folder, name))
    held = sorted(name for name in os.listdir(folder) if re.fullmatch("[0-9]{6}", name))
    number = f"{int(held[-1]) + 1 if held else 1:06d}"
    path = os.path.join(folder, f".{number}.{os.getpid()}.part")
    os.mkdir(path)
    try:
        with contextlib.ExitStack() as files:
            yield Generation(folder, path, {**manifest, "index": FORMAT, "generation": number, "count": count,
                                            "vectors": dict(manifest.get("vectors", {}))}, files)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def writing_alone(folder: str):
    """A context that keeps other processes from writing this index: from before its state is read, so that no change
    of theirs is lost. Raises InputError where one writes."""
    os.makedirs(folder, exist_ok=True)
    return locked(folder, "writing the index")
