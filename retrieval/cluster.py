"""An index whose vectors are on a Milvus server (`milvus`). Its folder only says where; all else is there, too."""
import base64
import contextlib
import functools
import os

import numpy as np
import torch

from cli import InputError
from files.reading import read_text
from files.writing import save_json
from retrieval.index import (
    DEPTH,
    FORMAT,
    SAMPLE,
    Block,
    Index,
    Items,
    check_manifest,
    is_pointer,
    manifest_of,
    origin_of_text,
)
from retrieval.milvus import LARGEST_TOP, Milvus
from retrieval.trust import from_json
from retrieval.vectors import LiftedVectors, WholeVectors


def token_of(path: str | None) -> str:
    """The token in a file, "" without one."""
    return "" if path is None else read_text(path, 10_000).strip()


class ClusterIndex:
    """An index that is open for reading: the interface of `index.Index` and of its `engine`.

    pointer: manifest.json of its folder. Raises InputError where the server does not answer or holds another thing.
    """
    exact, bank = False, None

    def __init__(self, folder: str, pointer: dict, token: str = "", writing: bool = False):
        self.folder, self.engine = folder, self
        self.milvus = Milvus.open(pointer["uri"], pointer["collection"], token, writing)
        self.manifest = check_manifest(self.milvus.manifest(), self.milvus.where)
        try:
            self.origin, self.trust = origin_of_text(self.manifest["origin"]), from_json(self.manifest["trust"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"the manifest of {self.milvus.where} is damaged; make the index again") from error
        self.depth, self._sample, self.count = DEPTH, None, self.milvus.count

    def __len__(self) -> int:
        return self.count

    def names(self, rows: list[int]) -> list[str]:
        return self.milvus.names(rows)

    def uncertainties(self, rows: list[int]) -> list[float | None]:
        return [None if np.isnan(x) else float(x) for x in self.milvus.uncertainties(rows)]

    @functools.cached_property
    def rows(self) -> int:
        """Rows are below this; those of photos that were removed are not used again."""
        return self.milvus.next_row()

    def listed(self) -> tuple[np.ndarray, list[str], list[str | None]]:
        """The rows, names and digests of all photos."""
        rows, names, digests = [np.zeros(0, np.int64)], [], []
        for some, called, of_files in self.milvus.all_names():
            rows.append(some)
            names += called
            digests += [x or None for x in of_files]
        return np.concatenate(rows), names, digests

    def candidates(self, vectors: list[torch.Tensor], r: int) -> np.ndarray:
        """Rows of photos that may have the best scores: (Q, R), -1 where there are fewer."""
        r = min(r, LARGEST_TOP, self.count)
        return np.concatenate([self.milvus.candidates(c, x.numpy(), r)[0] for c, x in enumerate(vectors)], 1)

    def fetch(self, rows: np.ndarray) -> Block:
        """The photos `rows` (m,) as they are stored."""
        vectors, rest = self.milvus.fetch(rows)
        return Block([torch.from_numpy(x) for x in vectors], None if rest is None else torch.from_numpy(rest))

    def sample(self) -> tuple[np.ndarray, Block]:
        """Rows of photos that were drawn at random when the collection last changed, and the photos."""
        if self._sample is None:
            rows = np.frombuffer(base64.b64decode(self.manifest["sample"]), np.int64)
            self._sample = rows, self.fetch(rows)
        return self._sample

    def close(self) -> None:
        self.milvus.close()


class Collection:
    """A collection that is being filled or changed: the interface of `index.Generation`."""

    def __init__(self, folder: str, manifest: dict, pointer: dict, token: str, old: ClusterIndex | None):
        self.folder, self.manifest, self.pointer, self.token = folder, manifest, pointer, token
        self.milvus = old and old.milvus
        self.next = old and old.milvus.next_row()

    def begin(self, vectors: LiftedVectors | WholeVectors, block: Block) -> int:
        """Make the collection, or go on with it after a stop. Returns how many photos it holds already. block: any."""
        if vectors.takes_bank is False and self.manifest["bank"]:
            raise InputError("--bank with --engine milvus needs a similarity that is a product, and a root of one is "
                             "none; leave one of the two out")
        of = self.manifest
        self.milvus = Milvus.create(self.pointer["uri"], self.pointer["collection"], of["vectors"]["widths"],
                                    of["vectors"]["rest"], of["half"], of["method"], of, self.token)
        self.next = self.milvus.next_row()
        return self.next

    def leave_out(self, old: ClusterIndex, rows: np.ndarray) -> None:
        """Remove photos of the old state."""
        self.milvus.delete(rows)

    def remember(self, removed: set[str]) -> None:
        """As of `index.Generation`; they are kept in the folder, as a server's manifest has little space."""
        self.pointer["removed"] = sorted(removed)

    def add(self, block: Block, items: Items) -> None:
        n = len(items.names)
        rows = np.arange(self.next, self.next + n)
        spread = np.full(n, np.nan) if items.uncertainty is None else items.uncertainty
        self.milvus.insert(rows, items.names, spread, [x.numpy() for x in block.vectors],
                           None if block.rest is None else block.rest.numpy(), [x or "" for x in items.digests])
        self.next += n

    def finish(self) -> None:
        """Draw the sample, call the collection finished, and note in the folder where it is."""
        drawn = np.random.default_rng(0).permutation(self.next)[:2 * SAMPLE]
        rows = np.sort(self.milvus.present(drawn)[:SAMPLE])
        if not len(rows):
            rows = self.milvus.present(np.arange(self.next))[:SAMPLE]
        self.milvus.finish({**self.manifest, "sample": base64.b64encode(rows.astype(np.int64).tobytes()).decode()})
        save_json(self.pointer, os.path.join(self.folder, "manifest.json"))


@contextlib.contextmanager
def collecting(folder: str, manifest: dict, pointer: dict, token: str, old: ClusterIndex | None = None):
    """Yields a Collection to fill and to finish; `old` to change one. What is stopped goes on when it is called
    again."""
    pointer = {**pointer, "index": FORMAT, "engine": "milvus"}
    new = Collection(folder, manifest, pointer, token, old)
    try:
        yield new
    finally:
        if new.milvus is not None:
            new.milvus.close()


def open_index(folder: str, token_file: str | None = None, writing: bool = False) -> Index | ClusterIndex:
    """The index in a folder, also where another process puts a new state of it in place meanwhile."""
    while True:
        found = manifest_of(folder)
        try:
            if is_pointer(found):
                return ClusterIndex(folder, found, token_of(token_file), writing)
            return Index(folder)
        except InputError:
            if manifest_of(folder) == found:
                raise
