"""An index whose vectors are in a collection of Milvus: for galleries that no single machine holds.

The same calls serve milvus-lite (a folder NAME.db, in this process) and a cluster
(http://HOST:19530). A photo is one entity: its row, its name, its uncertainty, one vector for each
channel, and `rest`, the numbers that exact scoring needs beside them. What the collection is and
whether it is finished stands in a property of it, as JSON; the folder of the index only says where
it is.

The lifted vectors of Gaussians nearly all point the same way (|x| = 525 +- 10 for Wasserstein on
Flickr8k), and of two photos the longer has the larger product with everything. Stored as they are,
an HNSW graph over them found 1% of the best ten photos (KL: 38%; 4,000 photos, ef 100). So a photo
x is stored as x - m with an equal norm R (`engines.equal_norms`): moving by m adds the same to all
scores of a query, which is added again; that graph found 99% and 98%, in float16 too.
"""
import contextlib
import functools
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator

import numpy as np
import torch
from tqdm import tqdm

from cli import InputError, reason
from files.writing import save_json
from retrieval.engines import equal_norms
from retrieval.index import (
    DEPTH,
    SAMPLE,
    Block,
    Index,
    Items,
    check_manifest,
    in_text,
    manifest_of,
    of_text,
    origin_of,
)
from retrieval.trust import from_json

try:
    import fcntl
except ImportError:  # a system without POSIX locks: milvus-lite's own refusal is shown instead
    fcntl = None

RECORD = "photo_index"                # the property of a collection that says what it is
CONNECT = 10                          # seconds within which a server has to answer
REPLY = 60                            # seconds within which it has to answer a request
STALLED = 300                         # seconds in which it goes on with what it builds or loads
POLL = 0.5                            # seconds between two looks at that
LOGGERS = "pymilvus", "pymilvus.milvus_client", "milvus_lite"
INSTALL = "pip install -r requirements-milvus.txt"
LARGEST_TOP = 16_384                  # answers of one request, and queries in it (Milvus Limits)
WIDEST = 32_768                       # numbers of a vector (Milvus Limits)
BATCH_BYTES = 16 << 20  # of a request; a server takes 64 MiB (proxy.grpc.serverMaxRecvSize)
BATCH_ROWS = 10_000
NAME_BYTES = 4096                     # of a photo's name
CODE = 8  # numbers of a vector in one byte of its product-quantisation code
REACH = 1.5                           # R as a multiple of the largest |x - m| of the first photos
LITE_METHODS = "flat", "hnsw"
# The index of a channel, and what a search for r photos is told. Milvus builds one index a segment (1
# GB by default, some 250,000 photos of 2,050 float16), so that 2,048 lists are about 4 sqrt(n), as
# Milvus advises.
INDEXES = {"flat": ("FLAT", {}, lambda r: {}),
           "hnsw": ("HNSW", {"M": 16, "efConstruction": 200}, lambda r: {"ef": max(2 * r, 64)}),
           "ivfpq": ("IVF_PQ", {"nlist": 2048, "nbits": 8}, lambda r: {"nprobe": 256}),
           "diskann": ("DISKANN", {}, lambda r: {"search_list": max(2 * r, 64)})}


# ---- the connection

def import_pymilvus():
    """pymilvus, quiet: it writes each error to stderr before it raises it. Takes 0.6 s, so that it
    is imported only when asked for. Raises InputError where it is not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read by gRPC's C library when it is loaded
    try:
        import pymilvus
    except ImportError as error:
        raise InputError(f"--engine milvus needs the package pymilvus: {INSTALL}") from error
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return pymilvus


def is_folder(uri: str) -> bool:
    """Whether a URI is a milvus-lite folder. Raises InputError where it is neither one nor an
    address."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        if not uri.endswith(".db"):
            raise InputError(f"--uri {uri} is no address and no milvus-lite folder; give "
                             "http://HOST:19530, or a name that ends in .db")
        return True
    if "@" in rest:  # it is not shown: a password stands in it
        raise InputError("--uri holds a user or a password, which every user of this machine can "
                         "read; give http://HOST:19530, and USER:PASSWORD in a file with "
                         "--token_file")
    host = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?"
    if scheme not in ("http", "https") or not re.fullmatch(host, rest):
        raise InputError(f"--uri {uri} is no address of a Milvus server; give http://HOST:19530 or "
                         "https://HOST")
    return False


def check_folder(path: str, writing: bool) -> None:
    """Raise InputError where `path` is no milvus-lite folder, or where another process has it open.

    milvus-lite would create a missing folder, write into a foreign one, and say only that it
    failed.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InputError(f"{path} is a file, but milvus-lite keeps a folder of that name (up to "
                         "version 2.4 it kept a file, which it no longer reads); give the name of "
                         "a new folder that ends in .db")
    inside = os.listdir(path) if os.path.isdir(path) else []
    if inside and not ("LOCK" in inside and os.path.isdir(os.path.join(path, "collections"))):
        raise InputError(f"{path} is a folder that milvus-lite did not make; give the name of a new "
                         "folder that ends in .db")
    if not inside and not writing:
        raise InputError(f"{path} is no milvus-lite folder; make it with `search.py index`, or name "
                         "one that is there")
    if inside and fcntl:
        try:
            with open(os.path.join(path, "LOCK"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the file is closed
        except BlockingIOError as error:
            raise InputError(f"{path} is open already, most likely in another process, and "
                             "milvus-lite serves one at a time; wait for it or stop it, or run a "
                             "Milvus server") from error
        except OSError as error:
            raise InputError(f"{path} cannot be opened ({reason(error)}); milvus-lite needs a "
                             "folder that it may write to") from error


class Connection:
    """A client of Milvus whose errors are one sentence each and never show the token. `lite`:
    whether milvus-lite answers, also behind an address.

    uri: an address, or a milvus-lite folder, which with `writing` may be made. One object at a time
    may have a milvus-lite folder open. Raises InputError.
    """

    def __init__(self, uri: str, token: str = "", writing: bool = False):
        self.path = os.path.abspath(uri) if is_folder(uri) else None
        self.uri, self.token, self.client = uri, token, None
        if self.path:
            check_folder(self.path, writing)
        pymilvus = import_pymilvus()
        if self.path:
            self.start_lite()
        with self.asking():
            # its own alias: pymilvus would share a connection of the same address, and closing one
            # closes both
            self.client = pymilvus.MilvusClient(uri=self.path or uri, token=token, timeout=CONNECT,
                                                alias=uuid.uuid4().hex)
            version = self.client.get_server_version(timeout=CONNECT)
        self.lite = version.startswith("milvus_lite")

    def start_lite(self) -> None:
        """Start milvus-lite on its folder. pymilvus would do so too, but would say only that it
        failed."""
        try:
            from milvus_lite.server_manager import server_manager_instance
        except ImportError as error:
            raise InputError(f"--uri {self.uri} needs the package milvus-lite: {INSTALL}") from error
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            started = server_manager_instance.start_and_get_uri(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made ({reason(error)}); name a folder elsewhere"
                             ) from error
        if not started:
            raise InputError(f"milvus-lite cannot open {self.path}; another process may have opened "
                             "it just now, or the folder may not be writable: call it again, or "
                             "name another one")

    def close(self) -> None:
        """Close the connection. milvus-lite writes what it holds in memory, and gives its folder
        free."""
        if self.client is not None:
            self.client.close()
            self.client = None
        if self.path:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self.path)

    @contextlib.contextmanager
    def asking(self):
        """A context in which what pymilvus raises becomes InputError."""
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            text = (error.message if isinstance(error, MilvusException) else
                    error.details() if isinstance(error, grpc.Call) else "")
            # its cause may hold the token
            raise InputError(self.sentence(grpc.StatusCode, code, text or type(error).__name__)) from None

    def sentence(self, codes, code, text: str) -> str:
        text = reason(RuntimeError(text.replace(self.token, "***") if self.token else text))
        if code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED) or re.search(
                r"\bauth|permission deny", text):
            wanted = "refuses the token of --token_file" if self.token else "wants a token"
            return (f"the Milvus server at {self.uri} {wanted}; give a file with USER:PASSWORD or "
                    "an API key in --token_file, of a user who may read and write the collection")
        if code in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED) or re.search(
                "Fail connecting|UNAVAILABLE|Retry timeout|Retry run out|FutureTimeoutError", text):
            return (f"no Milvus server answers at {self.uri} within "
                    f"{CONNECT if self.client is None else REPLY} seconds; start it, or give its "
                    "address as --uri http://HOST:19530")
        return f"Milvus at {self.uri} reports: {text}; mend this there, then call it again"

    def ask(self, request: str, *words, **options):
        """The answer to a request, a method of pymilvus.MilvusClient."""
        with self.asking():
            return getattr(self.client, request)(*words, timeout=REPLY, **options)

    def wait_for(self, what: str, done) -> None:
        """Show what the server does until done(), a share of it, is 1. Raises InputError where that
        stays the same for STALLED seconds: a server works at large indexes for hours, and at what
        it was not set up for for ever."""
        share, since = -1.0, time.monotonic()
        with tqdm(total=100, desc=what, unit="%", disable=None, leave=False) as bar:
            while (now := done()) < 1:
                if now > share:
                    share, since = now, time.monotonic()
                if time.monotonic() - since > STALLED:
                    raise InputError(f"Milvus at {self.uri} has not gone on with '{what}' for "
                                     f"{STALLED / 60:g} minutes, {now:.0%} is done; a server that "
                                     "is not set up for an index waits so: DiskANN needs "
                                     "queryNode.enableDisk and indexNode.enableDisk true in its "
                                     "milvus.yaml. See its log, then call `search.py index` again, "
                                     "with --overwrite for another index")
                bar.update(round(100 * now) - bar.n)
                time.sleep(POLL)


# ---- vectors as they are stored

def stored_width(k: int, method: str) -> int:
    """Numbers of a stored vector of k numbers: one more for the approximate indexes, and zeros,
    which change nothing. Milvus wants at least 2 numbers, product quantisation a multiple of the
    length of its parts."""
    k += method != "flat"
    return -(-k // CODE) * CODE if method == "ivfpq" else max(k, 2)


def frame_of(vectors: np.ndarray, method: str, half: bool) -> np.ndarray:
    """(n, K) -> (K + 1,) float32: m, their mean, and R. Zeros where vectors are stored as they are:
    exact search in float32. Later photos may lie beyond R: their products are as exact, only the
    graph around them is poorer."""
    k = vectors.shape[1]
    if method == "flat" and not half:
        return np.zeros(k + 1, np.float32)
    centre = vectors.mean(0, dtype=np.float64)
    reach = REACH * np.linalg.norm(vectors - centre, axis=1).max()
    return np.append(centre, reach).astype(np.float32)


def photos_stored(vectors: np.ndarray, frame: np.ndarray, method: str, half: bool) -> np.ndarray:
    """(n, K) -> (n, stored width) float32, or float16 with half. Numbers that do not fit become
    infinite."""
    moved = vectors.astype(np.float64) - frame[:-1]
    return padded(moved if method == "flat" else equal_norms(moved, float(frame[-1]) ** 2),
                  stored_width(vectors.shape[1], method), half)


def padded(vectors: np.ndarray, width: int, half: bool) -> np.ndarray:
    """(n, k) -> (n, width) float32, or float16 with half."""
    with np.errstate(over="ignore"):
        return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1]))).astype(
            np.float16 if half else np.float32)


def photos_given(values: list, frame: np.ndarray) -> np.ndarray:
    """n vectors of an answer -> (n, K) float32. A vector is a list of numbers, or float16 as bytes,
    which pymilvus wraps in a list."""
    stored = np.zeros((len(values), len(frame) - 1))
    for i, value in enumerate(values):
        if isinstance(value, list) and isinstance(value[0], bytes):
            value = value[0]
        numbers = np.frombuffer(value, "<f2") if isinstance(value, bytes) else value
        stored[i] = numbers[:len(frame) - 1]
    return (stored + frame[:-1]).astype(np.float32)


def check_finite(stored: np.ndarray, what: list[str], field: str) -> None:
    """Raise InputError, which names the item of the list `what`, for numbers that did not fit."""
    fits = np.isfinite(stored)
    if not fits.all():
        half = stored.dtype == np.float16
        raise InputError(f"{what[int(np.argmin(fits.all(1)))]} has a number in {field} that "
                         f"float{16 if half else 32} cannot hold; "
                         f"{'store float32 instead' if half else 'its photo or the model is broken'}")


# ---- the collection

class Milvus:
    """The photos of an index in a collection: what `index.Index` is for files, and `Generation` for
    a change of them. To be closed.

    manifest: that of the index, with the rows of a random sample of the photos. pointer:
    manifest.json of its folder, which says where the collection is. A photo's row is never used
    again.
    """
    exact, bank, depth = False, None, DEPTH

    def __init__(self, folder: str, pointer: dict, token: str = "", writing: bool = False):
        name = pointer["collection"]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name):
            raise InputError(f"'{name}' is no name of a collection; give at most 200 letters, "
                             "digits and _, no digit first")
        self.folder, self.pointer, self.collection = folder, pointer, name
        self.connection = Connection(pointer["uri"], token, writing)
        self.where, self.changing = f"{name} at {pointer['uri']}", False

    @classmethod
    def create(cls, folder: str, manifest: dict, pointer: dict, token: str = "") -> "Milvus":
        """A collection to be made by `begin`, and filled. milvus-lite has float32 alone."""
        self = cls(folder, pointer, token, writing=True)
        self.manifest = {**manifest, "half": manifest["half"] and not self.connection.lite}
        return self

    @classmethod
    def open(cls, folder: str, pointer: dict, token: str = "", writing: bool = False) -> "Milvus":
        """A finished collection to search in; with `writing` also an unfinished one, to change it.
        Raises InputError where there is none, where it is unfinished, or where it is none of
        ours."""
        self = cls(folder, pointer, token)
        try:
            record = self.read()
            if record is None:
                raise InputError(f"there is no collection {self.where} that `search.py index` made; "
                                 "make it, or name another --collection")
            if record["state"] != "ready" and not writing:
                raise InputError(f"the collection {self.where} is not finished; call `search.py "
                                 "index` again with the same options, and it goes on")
            self.take(record)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self.connection.close()

    # ---- what it is

    def read(self) -> dict | None:
        """The record of the collection: "state", "building" or "ready"; "next", the row after those
        that were there when a change began; "frames", see frame_of; "manifest". None where there is
        no collection. Raises InputError where it is another's."""
        if not self.connection.ask("has_collection", self.collection):
            return None
        try:
            about = self.connection.ask("describe_collection", self.collection)
            record = json.loads(about["properties"][RECORD])
            check_manifest(record["manifest"], self.where)
            record["origin"] = origin_of(record["manifest"])
            record["trust"] = from_json(record["manifest"]["trust"])
            widths = record["manifest"]["vectors"]["widths"]
            ends = np.cumsum([k + 1 for k in widths])
            *record["frames"], more = np.split(of_text(record["frames"]), ends)
            if len(more) or sum(map(len, record["frames"])) != ends[-1]:
                raise ValueError("its frames are not of its width")
            return record
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the collection {self.where} was not made by this version of "
                             "`search.py index`; name another --collection") from error

    def take(self, record: dict) -> None:
        """Make the record that of this object, and load the collection."""
        self.manifest, self.frames = record["manifest"], record["frames"]
        self.origin, self.trust, self.rows = record["origin"], record["trust"], record["next"]
        self.load()
        self.count = self.counted("")
        if record["state"] != "ready":  # photos are added in the order of their rows
            self.rows += self.counted(f"row >= {self.rows}")

    def write(self, state: str) -> None:
        """Replace the record, in one step."""
        record = {"state": state, "next": self.rows, "frames": in_text(np.concatenate(self.frames)),
                  "manifest": self.manifest}
        self.connection.ask("alter_collection_properties", self.collection,
                            {RECORD: json.dumps(record)})

    def __len__(self) -> int:
        return self.count

    @property
    def widths(self) -> dict[str, tuple[int, str]]:
        """{field of a vector: (K, the kind of its index)}. `rest` is never searched."""
        of = self.manifest["vectors"]
        channels = {f"channel{i}": (k, self.manifest["method"]) for i, k in enumerate(of["widths"])}
        return channels | ({"rest": (of["rest"], "flat")} if of["rest"] else {})

    def frame(self, field: str) -> np.ndarray:
        """How the vectors of a field are moved; `rest` is not."""
        k, _ = self.widths[field]
        return np.zeros(k + 1, np.float32) if field == "rest" else self.frames[int(field[-1])]

    # ---- making it

    def begin(self, vectors, block: Block) -> int:
        """Make the collection, or go on with one of the same manifest after a stop. Returns how
        many photos it holds already. block: the first photos, by which all are moved.

        Raises InputError where a collection of this name is finished, was begun with other settings
        or is another's, and where Milvus cannot hold such vectors."""
        of = self.manifest = json.loads(json.dumps(self.manifest))
        if vectors.takes_bank is False and of["bank"]:
            raise InputError("--bank with --engine milvus needs a similarity that is a product, and "
                             "a root of one is none; leave one of the two out")
        if self.connection.lite and of["method"] not in LITE_METHODS:
            raise InputError(f"milvus-lite has no index of the kind {of['method']}; give "
                             f"{' or '.join(LITE_METHODS)}, or the address of a Milvus server")
        widest = max(k for k, _ in self.widths.values())
        if widest > WIDEST - CODE:
            raise InputError(f"vectors of {widest:,} numbers are too long for Milvus, which takes "
                             f"{WIDEST:,}; use a smaller embedding, or --engine faiss")
        record = self.read()
        if record is None:
            self.make([frame_of(x.numpy(), of["method"], of["half"]) for x in block.vectors])
            record = self.read()
        others = [key for key in of if record["manifest"].get(key) != of[key]]
        if record["state"] == "ready":
            raise InputError(f"the collection {self.where} is there already and is finished; name "
                             "another --collection, or add photos to it")
        if others:
            raise InputError(f"the collection {self.where} was begun with other settings "
                             f"({', '.join(others)}); give the same options and model, or name "
                             "another --collection")
        self.take(record)
        return self.rows

    def make(self, frames: list[np.ndarray]) -> None:
        """Create the collection. Raw vectors are mapped from the query nodes' disks (mmap)."""
        types, half = import_pymilvus().DataType, self.manifest["half"]
        schema = self.connection.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", types.INT64, is_primary=True)
        for name in ("name", "digest"):
            schema.add_field(name, types.VARCHAR, max_length=NAME_BYTES)
        schema.add_field("uncertainty", types.FLOAT, nullable=True)
        for (field, (k, method)), frame in zip(self.widths.items(), [*frames, np.zeros(1)]):
            check_finite(frame[None], ["the first photos: one of them"], field)
            schema.add_field(field, types.FLOAT16_VECTOR if half else types.FLOAT_VECTOR,
                             dim=stored_width(k, method), mmap_enabled=True)
        record = {"state": "building", "next": 0, "frames": in_text(np.concatenate(frames)),
                  "manifest": self.manifest}
        self.connection.ask("create_collection", self.collection, schema=schema,
                            consistency_level="Bounded", properties={RECORD: json.dumps(record)})

    def load(self) -> None:
        """Create the indexes that the collection lacks, and load it. That of a channel lies in
        memory as Milvus has it, that of `rest` is mapped, since it is only read by row."""
        client, there = self.connection.client, self.connection.ask("list_indexes", self.collection)
        for field, (k, method) in self.widths.items():
            kind, params, _ = INDEXES[method]
            if method == "ivfpq":
                params = {**params, "m": stored_width(k, method) // CODE}
            if field == "rest":
                params = {"mmap.enabled": "true"}
            if field not in there:
                wanted = client.prepare_index_params()
                wanted.add_index(field, index_type=kind, index_name=field, metric_type="IP",
                                 params=params)
                self.connection.ask("create_index", self.collection, wanted, sync=False)
        self.connection.ask("load_collection", self.collection, _async=True)

        def loaded() -> float:
            now = self.connection.ask("get_load_state", self.collection)
            return 1.0 if now["state"].name == "Loaded" else now.get("progress", 0) / 100
        self.connection.wait_for(f"load {self.collection}", loaded)

    # ---- changing it

    def change(self) -> None:
        """Note that the collection is about to change: it is unfinished until `finish`."""
        if not self.changing:
            self.write("building")
        self.changing = True

    def leave_out(self, old, rows: np.ndarray) -> None:
        """Remove photos. Rows that are not there are no error."""
        self.change()
        for start in range(0, len(rows), BATCH_ROWS):
            part = [int(row) for row in rows[start:start + BATCH_ROWS]]
            self.connection.ask("delete", self.collection, ids=part)

    def remember(self, removed: set[str]) -> None:
        """As of `index.Generation`; in the folder, as a server's record has little space."""
        self.pointer["removed"] = sorted(removed)

    def add(self, block: Block, items: Items) -> None:
        """Add photos behind those before, in requests below the server's limit. Raises InputError
        for numbers that are not finite or, with half, beyond float16."""
        self.change()
        n, half = len(items.names), self.manifest["half"]
        rows = range(self.rows, self.rows + n)
        given = [*block.vectors, *([] if block.rest is None else [block.rest])]
        unknown = np.full(n, np.nan)
        spread = unknown if items.uncertainty is None else items.uncertainty
        step = self.batch(sum(stored_width(*of) for of in self.widths.values()))
        for start in range(0, n, step):
            part = slice(start, start + step)
            stored = {field: photos_stored(x[part].numpy(), self.frame(field), method, half)
                      for x, (field, (_, method)) in zip(given, self.widths.items())}
            for field, array in stored.items():
                check_finite(array, [f"photo {row}" for row in rows[part]], field)
            self.connection.ask("upsert", self.collection, [
                {"row": row, "name": fitting_name(items.names[i]), "digest": items.digests[i] or "",
                 "uncertainty": None if np.isnan(spread[i]) else float(spread[i]),
                 **{field: array[i - start] for field, array in stored.items()}}
                for i, row in enumerate(rows[part], start)])
        self.rows += n

    def finish(self, propose=None) -> None:
        """Wait until all photos are on disk and indexed, draw the sample, call the collection
        ready, and note in the folder where it is."""
        self.connection.ask("flush", self.collection)
        for field in self.widths:
            self.connection.wait_for(f"index {self.collection}.{field}",
                                     functools.partial(self.indexed, field))
        drawn = np.random.default_rng(0).permutation(self.rows)[:2 * SAMPLE]
        sample = [row for row, *_ in self.query(f"row in {drawn.tolist()}", ["row"], exact=True)]
        if not sample:
            sample = [row for row, *_ in next(self.pages(), [])]
        self.manifest = {**self.manifest, "sample": sorted(sample[:SAMPLE])}
        self.write("ready")
        self.changing = False
        save_json(self.pointer, os.path.join(self.folder, "manifest.json"))

    def indexed(self, field: str) -> float:
        """The share of the photos that the index of a field holds."""
        index = self.connection.ask("describe_index", self.collection, field)
        if not index or index["state"] == "Failed":
            raise InputError(f"Milvus could not build the index {field} of {self.where}; see its "
                             "index nodes' log")
        left = max(0, int(index.get("pending_index_rows", 0)))
        return 1 - left / max(left + 1, int(index.get("total_rows", 0)))

    # ---- reading it

    def query(self, condition: str, fields: list[str], exact: bool = False) -> list[tuple]:
        """The fields of the photos that fit a condition. exact: with all that was written before,
        also by other processes; else what was written in the last seconds may be missing (Milvus,
        Consistency Level: Strong and Bounded)."""
        entities = self.connection.ask("query", self.collection, filter=condition,
                                       output_fields=fields,
                                       consistency_level="Strong" if exact else "Bounded")
        return [tuple(entity[field] for field in fields) for entity in entities]

    def counted(self, condition: str) -> int:
        return int(self.query(condition, ["count(*)"], exact=True)[0][0])

    def pages(self) -> Iterator[list[tuple[int, str, str]]]:
        """The row, name and digest of all photos, by growing row, in pages."""
        for start in range(0, self.rows, BATCH_ROWS):
            page = self.query(f"row >= {start} and row < {start + BATCH_ROWS}",
                              ["row", "name", "digest"], exact=True)
            if page:
                yield sorted(page)

    def listed(self) -> tuple[np.ndarray, list[str], list[str | None]]:
        """The rows, names and digests of all photos."""
        photos = [photo for page in self.pages() for photo in page]
        rows, names, digests = zip(*photos) if photos else ((), (), ())
        return np.array(rows, np.int64), list(names), [digest or None for digest in digests]

    def batch(self, width: int) -> int:
        """How many photos a request holds, of so many numbers each: 5 bytes for a float32, which
        pymilvus hands on as a Python number, and 220 for the name and the digest."""
        each = width * (2 if self.manifest["half"] else 5) + 220
        return max(1, min(BATCH_ROWS, BATCH_BYTES // each))

    def photos(self, rows, fields: list[str], width: int) -> list[tuple]:
        """Some fields, of `width` numbers together, of the photos `rows`, in their order. Raises
        InputError for a row that is not there."""
        wanted = [int(row) for row in rows]
        unique, photos = sorted(set(wanted)), {}
        step = self.batch(width)
        for start in range(0, len(unique), step):
            part = self.query(f"row in {unique[start:start + step]}", ["row", *fields])
            photos |= {row: values for row, *values in part}
        for row in unique:
            if row not in photos:
                raise InputError(f"photo {row} is not in the collection {self.where} (any more); "
                                 "search again")
        return [photos[row] for row in wanted]

    def facts(self, rows) -> list[tuple[str, float | None]]:
        """The names of photos, and their log det Sigma in nats, None for points."""
        return [tuple(values) for values in self.photos(rows, ["name", "uncertainty"], 0)]

    def fetch(self, rows: np.ndarray) -> Block:
        """The photos `rows` (m,), as they were given but for the rounding of float32 or float16."""
        fields = list(self.widths)
        photos = self.photos(rows, fields, sum(stored_width(*of) for of in self.widths.values()))
        arrays = [torch.from_numpy(photos_given([photo[i] for photo in photos], self.frame(field)))
                  for i, field in enumerate(fields)]
        return Block(arrays[:len(self.frames)], arrays[-1] if fields[-1] == "rest" else None)

    @functools.cached_property
    def sample(self) -> tuple[np.ndarray, Block]:
        """Rows of photos that were drawn at random when the collection last changed, and the
        photos."""
        rows = np.array(self.manifest["sample"], np.int64)
        return rows, self.fetch(rows)

    def candidates(self, vectors: list[torch.Tensor], r: int) -> np.ndarray:
        """Rows of photos that may have the best scores: (Q, R), -1 where there are fewer."""
        r = min(r, LARGEST_TOP, self.count)
        return np.concatenate([self.search(c, x.numpy(), r)[0] for c, x in enumerate(vectors)], 1)

    def search(self, channel: int, queries: np.ndarray, r: int) -> tuple[np.ndarray, np.ndarray]:
        """The r photos of the largest inner products with queries (Q, K) by Milvus's index: (rows
        (Q, r) int64, scores (Q, r) float32), scores falling. Where there are fewer: row -1, score
        -inf."""
        rows = np.full((len(queries), r), -1, np.int64)
        scores = np.full((len(queries), r), -np.inf, np.float32)
        field, frame = f"channel{channel}", self.frames[channel]
        width = stored_width(*self.widths[field])
        moved = queries.astype(np.float64) @ frame[:-1]
        queries = padded(queries, width, self.manifest["half"])
        check_finite(queries, [f"query {i}" for i in range(len(queries))], field)
        step = min(self.batch(width), max(1, 10 ** 6 // r), LARGEST_TOP)
        settings = {"metric_type": "IP", "params": INDEXES[self.manifest["method"]][2](r)}
        for start in range(0, len(queries), step):
            # Without output_fields milvus-lite would send whole entities.
            answers = self.connection.ask("search", self.collection, list(queries[start:start + step]),
                                          limit=r, anns_field=field, output_fields=["row"],
                                          search_params=settings)
            for i, hits in enumerate(answers, start):
                rows[i, :len(hits)] = [hit["row"] for hit in hits]
                scores[i, :len(hits)] = np.array([hit["distance"] for hit in hits]) + moved[i]
        return rows, scores


def fitting_name(name: str) -> str:
    """A photo's name as it is. Raises InputError where Milvus cannot hold it."""
    try:
        fits = len(name.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InputError(f"the name {ascii(name[:80])} of a photo is no UTF-8 text of at most "
                         f"{NAME_BYTES:,} bytes; rename the photo")
    return name


def open_index(folder: str, token: str = "", writing: bool = False) -> Index | Milvus:
    """The index in a folder, also where another process puts a new state of it in place
    meanwhile."""
    while True:
        found = manifest_of(folder)
        try:
            if "uri" in found:
                return Milvus.open(folder, found, token, writing)
            return Index(folder)
        except InputError:
            if manifest_of(folder) == found:
                raise
