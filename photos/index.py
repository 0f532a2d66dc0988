"""A photo index: an .npz file with the vectors and names of photos, and of which run they are.

    manifest                       JSON as bytes: the run, the photos, names, digests, what was removed
    vectors0, vectors1             (N, K) float32 or float16 of each channel (`ranking`); none where Milvus holds them
    rest                           (N, R) what the similarity needs beside them
    uncertainty, bank              (N,) log det Sigma, NaN for points, and what a query bank takes from scores
    origin_mean, origin_log_var    (1, D) what the vectors are centred on

Every change writes the whole file under a temporary name and renames it, so a stop at any moment leaves
the old index or the new one.
"""
import json
import os
import shlex
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cli import InputError, check, reason
from files import FAULTS, need, read_arrays, save_arrays
from losses import Embedding
from photos.milvus import Collection
from photos.trust import from_json

FORMAT = 3
AGAIN = "make it again with python -m photos index"
CONVERTED = 2 << 20       # bytes of float32 vectors that are multiplied at once: what a cache holds


class Entries(NamedTuple):
    """N photos as an index holds them."""
    names: list[str]                  # paths below the photo folder
    digests: list[str | None]         # of their files, where they are known
    uncertainty: np.ndarray           # (N,) log det Sigma in nats; NaN for points
    bank: np.ndarray                  # (N,) what a query bank takes from their scores
    vectors: list[Tensor]             # (N, K) of every channel; empty where Milvus holds them
    rest: Tensor | None               # (N, R)

    def take(self, rows) -> "Entries":
        """The photos at `rows`, an array of integers."""
        return Entries([self.names[i] for i in rows], [self.digests[i] for i in rows], self.uncertainty[rows],
                       self.bank[rows], [x[rows] for x in self.vectors], None if self.rest is None else self.rest[rows])

    @classmethod
    def cat(cls, parts: list["Entries"]) -> "Entries":
        names, digests, uncertainty, bank, vectors, rest = zip(*parts)
        return cls([*chain(*names)], [*chain(*digests)], np.concatenate(uncertainty), np.concatenate(bank),
                   [torch.cat(x) for x in zip(*vectors)], None if rest[0] is None else torch.cat(rest))


def file_of(index: str) -> str:
    """The file of an index that is named with or without its ending."""
    return index if index.endswith(".npz") else f"{index}.npz"


class Index:
    """The photos of an index. collection: that of Milvus, where it holds the vectors."""

    def __init__(self, path: str, manifest: dict, origin: Embedding, entries: Entries, collection: Collection | None):
        self.path, self.manifest, self.origin = path, manifest, origin
        self.entries, self.collection, self.trust = entries, collection, from_json(manifest["trust"])

    @property
    def names(self) -> list[str]:
        return self.entries.names

    @classmethod
    def open(cls, path: str, token: str = "") -> "Index":
        """Raises InputError where the file is missing, damaged or of another format, and where Milvus is away."""
        path = file_of(path)
        arrays = read_arrays(need(path, f"make an index with python -m photos index --output {path}"), AGAIN)
        try:
            manifest = json.loads(arrays["manifest"].tobytes())
            if manifest["index"] != FORMAT:
                raise ValueError(f"it is of format {manifest['index']}, and this version reads {FORMAT}")
            names, digests = manifest.pop("names"), manifest.pop("digests")
            vectors = [torch.from_numpy(arrays[f"vectors{c}"]) for c in range(manifest["channels"])]
            rest = torch.from_numpy(arrays["rest"]) if "rest" in arrays else None
            entries = Entries(names, digests, arrays["uncertainty"], arrays["bank"], vectors, rest)
            if {*map(len, entries[:4]), *map(len, vectors)} != {len(names)}:
                raise ValueError("its arrays are of different lengths")
            origin = Embedding(*(torch.from_numpy(arrays[name]) if name in arrays else None
                                 for name in ("origin_mean", "origin_log_var")))
            index = cls(path, manifest, origin, entries, None)
        except FAULTS as error:
            raise InputError(f"{path} is no whole index ({reason(error)}); {AGAIN}") from error
        if manifest["milvus"]:
            index.collection = Collection(*manifest["milvus"], token)
            index.collection.load()
        return index

    def save(self) -> None:
        of = self.entries
        manifest = {**self.manifest, "names": of.names, "digests": of.digests, "channels": len(of.vectors)}
        arrays = {f"vectors{c}": x for c, x in enumerate(of.vectors)}
        arrays |= {"rest": of.rest, "origin_mean": self.origin.mean, "origin_log_var": self.origin.log_var,
                   "uncertainty": of.uncertainty, "bank": of.bank,
                   "manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8)}
        save_arrays(self.path, {name: np.asarray(x) for name, x in arrays.items() if x is not None})

    def __len__(self) -> int:
        return len(self.names)

    def products(self, queries: list[Tensor]) -> list[Tensor]:
        """Inner products (Q, N) of queries (Q, K) of every channel with all photos."""
        if self.collection:
            return [self.collection.products(queries[0], self.names)]
        return [torch.cat([q @ part.float().T for part in x.split(max(1, CONVERTED // (4 * x.shape[1])))], 1)
                for q, x in zip(queries, self.entries.vectors)]

    def fetch(self, rows) -> tuple[list[Tensor], Tensor | None]:
        """The vectors (n, K) of every channel and the rest (n, R) of the photos `rows` (n,), in float32."""
        if self.collection:
            return [self.collection.fetch([self.names[row] for row in rows])], None
        rows = torch.as_tensor(rows)
        return ([x[rows].float() for x in self.entries.vectors],
                None if self.entries.rest is None else self.entries.rest[rows].float())

    def lost_photos(self) -> str | None:
        """What is said where the folder of the photos was moved; None where it is there, or none is known."""
        of = self.manifest
        if not of["folder"] or os.path.isdir(of["folder"]):
            return None
        options = dict(zip(("data_path", "images", "split"), of["images"])) | {"bank": (of["bank"] or {}).get("split")}
        options |= dict(zip(("uri", "collection"), of["milvus"] or ()))
        words = "".join(f" --{name} {shlex.quote(value)}" for name, value in options.items() if value)
        return (f"the folder of the photos, {of['folder']}, is not there, so all look gone; put it back, or make the "
                f"index again with where they are: python -m photos index --checkpoint {shlex.quote(of['run'])}{words}"
                f"{' --float16' * of['half']} --photos FOLDER --output {shlex.quote(self.path)} --overwrite")


def stored(x: Tensor, half: bool, names: list[str]) -> Tensor:
    """Numbers (n, K) as an index stores them. Raises InputError where some are not finite, or beyond float16."""
    x = x.half() if half else x
    finite = torch.isfinite(x).all(1)
    check(finite.all(), f"{names[int(finite.long().argmin())]} has a number that float{16 if half else 32} cannot "
                        f"hold; {'leave --float16 out' if half else 'its features or the model are broken'}")
    return x
