"""An index whose vectors are in a collection of Milvus: for galleries that no single machine holds.

The same calls serve milvus-lite (a folder NAME.db, in this process) and a cluster
(http://HOST:19530). A photo is one entity: its row, its name, one vector for each channel, and as a
text its other numbers: the uncertainty, then `rest`, what exact scoring needs beside the vectors. So
one vector is enough for most similarities, and servers before 2.4, which hold no more, serve them.
What the collection is and whether it is finished stands in a property of it, as JSON; the folder of
the index only says where it is.

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
from files.reading import FAULTS
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
    known,
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
STALLED = 1800                        # seconds in which it goes on with what it builds or loads
POLL = 0.5                            # seconds between two looks at that
LOGGERS = "pymilvus", "pymilvus.milvus_client", "milvus_lite"
INSTALL = "pip install -r requirements-milvus.txt"
LARGEST_TOP = 16_384          # answers of one request, and queries in it (Milvus Limits)
WIDEST = 32_768               # numbers of a vector (Milvus Limits)
LONGEST = 65_535              # bytes of a text (Milvus Limits)
SEVERAL = 2, 4                # the version since which a photo has several vectors, and float16 an index
BATCH_BYTES = 16 << 20        # of a request; a server takes 64 MiB (proxy.grpc.serverMaxRecvSize)
BATCH_ROWS = 10_000
NAME_BYTES = 4096                 # of a photo's name
CODE = 8                          # numbers of a vector in one byte of its product-quantisation code
REACH = 1.5                       # R as a multiple of the largest |x - m| of the first photos
LITE_METHODS = "flat", "hnsw"
# The index of a channel, and what a search for r photos is told. Milvus builds one index a segment
# (1 GB by default, some 250,000 photos of 2,050 float16), so that 2,048 lists are about 4 sqrt(n),
# as Milvus advises.
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
                         "read; give http://HOST:19530, "
                         "and USER:PASSWORD in a file with --token_file")
    host = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?"
    if scheme not in ("http", "https") or not re.fullmatch(host, rest):
        raise InputError(f"--uri {uri} is no address of a Milvus server; "
                         "give http://HOST:19530 or https://HOST")
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
        raise InputError(f"{path} is a folder that milvus-lite did not make; give the name of a "
                         "new folder that ends in .db")
    if not inside and not writing:
        raise InputError(f"{path} is no milvus-lite folder; make it with `search.py index`, or "
                         "name one that is there")
    if inside and fcntl:
        try:
            with open(os.path.join(path, "LOCK"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the file is closed
        except BlockingIOError as error:
            raise InputError(f"{path} is open already, most likely in another process, and "
                             "milvus-lite serves one at a time; "
                             "wait for it or stop it, or run a Milvus server") from error
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
            # Its own alias: pymilvus would share a connection of the same address, and closing one
            # closes both.
            self.client = pymilvus.MilvusClient(
                uri=self.path or uri, token=token, timeout=CONNECT, alias=uuid.uuid4().hex
            )
            self.version = self.client.get_server_version(timeout=CONNECT)
        self.lite = self.version.startswith("milvus_lite")
        numbers = [int(x) for x in re.findall(r"\d+", self.version)]     # of v2.3.5-dev 2, 3, 5
        self.old = not self.lite and (2,) < (*numbers[:2],) < SEVERAL

    def start_lite(self) -> None:
        """Start milvus-lite on its folder. pymilvus would do so too, but would say only that it
        failed."""
        try:
            from milvus_lite.server_manager import server_manager_instance
        except ImportError as error:
            raise InputError(f"--uri {self.uri} needs the package milvus-lite: {INSTALL}"
                             ) from error
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            uri = server_manager_instance.start_and_get_uri(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made ({reason(error)}); "
                             "name a folder elsewhere") from error
        if not uri:
            raise InputError(f"milvus-lite cannot open {self.path}; another process may have "
                             "opened it just now, or the folder may not be writable: call it "
                             "again, or name another one")

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
            text = (error.message if isinstance(error, MilvusException)
                    else error.details() if isinstance(error, grpc.Call) else "")
            text = self.sentence(grpc.StatusCode, code, text or type(error).__name__)
            raise InputError(text) from None                # its cause may hold the token

    def sentence(self, codes, code, text: str) -> str:
        text = reason(RuntimeError(text.replace(self.token, "***") if self.token else text))
        if (code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED)
                or re.search(r"\bauth|permission deny", text)):
            complaint = "refuses the token of --token_file" if self.token else "wants a token"
            return (f"the Milvus server at {self.uri} {complaint}; give a file with "
                    "USER:PASSWORD or an API key in --token_file, of a user who may read and "
                    "write the collection")
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
    vectors = np.zeros((len(values), len(frame) - 1))
    for i, value in enumerate(values):
        if isinstance(value, list) and isinstance(value[0], bytes):
            value = value[0]
        numbers = np.frombuffer(value, "<f2") if isinstance(value, bytes) else value
        vectors[i] = numbers[:len(frame) - 1]
    return (vectors + frame[:-1]).astype(np.float32)


def text_of(rest: int) -> int:
    """Bytes of the text that holds the uncertainty and `rest` float32: four for three, in base64."""
    return 4 * -(-4 * (1 + rest) // 3)


def check_finite(vectors: np.ndarray, what: list[str], field: str) -> None:
    """Raise InputError, which names the item of the list `what`, for numbers that did not fit."""
    fits = np.isfinite(vectors)
    if not fits.all():
        half = vectors.dtype == np.float16
        raise InputError(f"{what[int(np.argmin(fits.all(1)))]} has a number in {field} that "
                         f"float{16 if half else 32} cannot hold; "
                         + ("store float32 instead" if half
                            else "its photo or the model is broken"))


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
        """A collection to be made by `begin`, and filled. milvus-lite has float32 alone, and servers
        before 2.4 build no index of float16: they fail, and try again for ever."""
        self = cls(folder, pointer, token, writing=True)
        lacks = self.connection.lite or self.connection.old
        self.manifest = {**manifest, "half": manifest["half"] and not lacks}
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
                raise InputError(f"there is no collection {self.where} that `search.py index` "
                                 "made; make it, or name another --collection")
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
            [x["name"] for x in about["fields"]].index("numbers")  # missing until this was a text
            check_manifest(record["manifest"], self.where)
            record["origin"] = origin_of(record["manifest"])
            record["trust"] = from_json(record["manifest"]["trust"])
            sizes = [k + 1 for k in record["manifest"]["vectors"]["widths"]]
            frames = torch.from_numpy(of_text(record["frames"]).copy()).split(sizes)
            record["frames"] = {f"channel{i}": x.numpy() for i, x in enumerate(frames)}
            return record
        except InputError:
            raise
        except FAULTS as error:
            raise InputError(f"the collection {self.where} was not made by this version of "
                             "`search.py index`; name another --collection") from error

    def width(self, *fields: str) -> int:
        """Numbers of the stored vectors of some fields together."""
        return sum(stored_width(len(self.frames[x]) - 1, self.manifest["method"]) for x in fields)

    def take(self, record: dict) -> None:
        """Make the record that of this object, and load the collection."""
        self.manifest, self.frames = record["manifest"], record["frames"]
        self.origin, self.trust, self.rows = record["origin"], record["trust"], record["next"]
        self.load()
        self.count = self.counted("")
        if record["state"] != "ready":  # photos are added in the order of their rows
            self.rows += self.counted(f"row >= {self.rows}")

    def record(self, state: str) -> dict:
        """The property of the collection that says what it is; it is replaced in one step."""
        frames = np.concatenate(list(self.frames.values()))
        return {RECORD: json.dumps({"state": state, "next": self.rows, "manifest": self.manifest,
                                    "frames": in_text(frames)})}

    def write(self, state: str) -> None:
        self.connection.ask("alter_collection_properties", self.collection, self.record(state))

    def __len__(self) -> int:
        return self.count

    # ---- making it

    def begin(self, vectors, block: Block) -> int:
        """Make the collection, or go on with one of the same manifest after a stop. Returns how
        many photos it holds already. block: the first photos, by which all are moved.

        Raises InputError where a collection of this name is finished, was begun with other settings
        or is another's, and where Milvus cannot hold such vectors."""
        of = self.manifest = json.loads(json.dumps(self.manifest))
        if vectors.takes_bank is False and of["bank"]:
            raise InputError("--bank with --engine milvus needs a similarity that is a product, "
                             "and a root of one is none; leave one of the two out")
        if self.connection.lite and of["method"] not in LITE_METHODS:
            raise InputError(f"milvus-lite has no index of the kind {of['method']}; give "
                             f"{' or '.join(LITE_METHODS)}, or the address of a Milvus server")
        widths, rest = of["vectors"]["widths"], of["vectors"]["rest"]
        if max(widths) > WIDEST - CODE or text_of(rest) > LONGEST:
            raise InputError(f"vectors of {max(widths):,} numbers, and {rest:,} beside them, are too "
                             f"long for Milvus; use a smaller embedding, or --engine faiss")
        if len(widths) > 1 and self.connection.old:
            raise InputError(f"Milvus {self.connection.version} holds one vector a photo, and this "
                             "similarity needs two; use Milvus 2.4 or newer, or --engine faiss")
        record = self.read()
        if record is None:
            self.make([x.numpy() for x in block.vectors])
            record = self.read()
        others = [key for key in of if record["manifest"].get(key) != of[key]]
        if record["state"] == "ready":
            raise InputError(f"the collection {self.where} is there already and is finished; name "
                             "another --collection, or add photos to it")
        if others:
            raise InputError(f"the collection {self.where} was begun with other settings "
                             f"({', '.join(others)}); give the same options and model, "
                             "or name another --collection")
        self.take(record)
        return self.rows

    def make(self, first: list[np.ndarray]) -> None:
        """Create the collection, by its first photos (n, K). Raw vectors are mapped from the query
        nodes' disks (mmap)."""
        types, of, self.rows = import_pymilvus().DataType, self.manifest, 0
        self.frames = {f"channel{i}": frame_of(x, of["method"], of["half"])
                       for i, x in enumerate(first)}
        schema = self.connection.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", types.INT64, is_primary=True)
        for name in ("name", "digest"):
            schema.add_field(name, types.VARCHAR, max_length=NAME_BYTES)
        schema.add_field("numbers", types.VARCHAR, max_length=text_of(of["vectors"]["rest"]))
        kind = types.FLOAT16_VECTOR if of["half"] else types.FLOAT_VECTOR
        for field, frame in self.frames.items():
            check_finite(frame[None], ["the first photos: one of them"], field)
            schema.add_field(field, kind, dim=self.width(field), mmap_enabled=True)
        self.connection.ask("create_collection", self.collection, schema=schema,
                            consistency_level="Bounded", properties=self.record("building"))

    def load(self) -> None:
        """Create the indexes that the collection lacks, and load it."""
        there = self.connection.ask("list_indexes", self.collection)
        for field in self.frames:
            kind, params, _ = INDEXES[self.manifest["method"]]
            if kind == "IVF_PQ":
                params = {**params, "m": self.width(field) // CODE}
            if field not in there:
                settings = self.connection.client.prepare_index_params()
                settings.add_index(field, index_type=kind, index_name=field, metric_type="IP",
                                   params=params)
                self.connection.ask("create_index", self.collection, settings, sync=False)
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

    def leave_out(self, old, rows: np.ndarray, removed: set[str]) -> None:
        """Remove photos; rows that are not there are no error. removed: as of `index.Generation`;
        they are kept in the folder, as a server's record has little space."""
        self.change()
        self.pointer["removed"] = sorted(removed)
        for start in range(0, len(rows), BATCH_ROWS):
            part = [int(row) for row in rows[start:start + BATCH_ROWS]]
            self.connection.ask("delete", self.collection, ids=part)

    def add(self, block: Block, items: Items) -> None:
        """Add photos behind those before, in requests below the server's limit. Raises InputError
        for numbers that are not finite or, with half, beyond float16."""
        self.change()
        step = self.batch(*self.frames)
        for start in range(0, len(items.names), step):
            some = items.take(range(len(items.names))[start:start + step])
            rows, columns = range(self.rows, self.rows + len(some.names)), {}
            what, numbers = [f"photo {row}" for row in rows], some.uncertainty[:, None]
            for x, (field, frame) in zip(block.vectors, self.frames.items()):
                columns[field] = photos_stored(x[start:start + step].numpy(), frame,
                                               self.manifest["method"], self.manifest["half"])
                check_finite(columns[field], what, field)
            if block.rest is not None:
                rest = block.rest[start:start + step].numpy()
                check_finite(rest, what, "rest")
                numbers = np.concatenate([numbers, rest], 1)
            self.connection.ask("upsert", self.collection, [
                {"row": row, "name": fitting_name(name), "digest": digest or "",
                 "numbers": in_text(beside), **dict(zip(columns, vectors))}
                for row, name, digest, beside, *vectors in zip(
                    rows, some.names, some.digests, numbers, *columns.values())])
            self.rows += len(rows)

    def finish(self, propose=None) -> None:
        """Wait until all photos are on disk, indexed and loaded, draw the sample, call the
        collection ready, and note in the folder where it is."""
        self.connection.ask("flush", self.collection)
        for field in self.frames:
            self.connection.wait_for(f"index {self.collection}.{field}",
                                     functools.partial(self.indexed, field))
        if not self.connection.lite:
            self.take_up()
        rows = np.random.default_rng(0).permutation(self.rows)[:2 * SAMPLE]
        sample = [row for row, *_ in self.query(f"row in {rows.tolist()}", ["row"], exact=True)]
        if not sample:
            sample = [row for row, *_ in next(self.pages(), [])]
        self.manifest = {**self.manifest, "sample": sorted(sample[:SAMPLE])}
        self.write("ready")
        self.changing = False
        save_json(self.pointer, os.path.join(self.folder, "manifest.json"))

    def take_up(self) -> None:
        """Wait until the server searches in the indexes that it has built: until then, some seconds,
        it answers from a makeshift one, which had 64% of the ten best (Milvus 2.3.5, HNSW)."""
        self.connection.ask("refresh_load", self.collection, _async=True)
        server = self.connection.client._get_connection()     # pymilvus's client waits, and has no progress

        def loaded() -> float:
            with self.connection.asking():
                return server.get_loading_progress(self.collection, is_refresh=True, timeout=REPLY) / 100
        self.connection.wait_for(f"take up {self.collection}", loaded)

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

    def batch(self, *fields: str) -> int:
        """How many photos a request holds: 5 bytes for a float32 of these fields, which pymilvus
        hands on as a Python number, 220 for the name and the digest, and the text of numbers."""
        each = self.width(*fields) * (2 if self.manifest["half"] else 5) + 220
        each += text_of(self.manifest["vectors"]["rest"])
        return max(1, min(BATCH_ROWS, BATCH_BYTES // each))

    def photos(self, rows, fields: list[str], vectors: list[str]) -> list[list]:
        """Some fields and vectors of the photos `rows`, in their order. Raises InputError for a row
        that is not there."""
        rows, photos = [int(row) for row in rows], {}
        step = self.batch(*vectors)
        for start in range(0, len(rows), step):
            part = self.query(f"row in {rows[start:start + step]}", ["row", *fields, *vectors])
            photos |= {row: values for row, *values in part}
        for row in rows:
            if row not in photos:
                raise InputError(f"photo {row} is not in the collection {self.where} (any more); "
                                 "search again")
        return [photos[row] for row in rows]

    def facts(self, rows) -> list[tuple[str, float | None]]:
        """The names of photos, and their log det Sigma in nats, None for points."""
        return [(name, known(of_text(numbers)[0]))
                for name, numbers in self.photos(rows, ["name", "numbers"], [])]

    def fetch(self, rows: np.ndarray) -> Block:
        """The photos `rows` (m,), as they were given but for the rounding of float32 or float16."""
        numbers, *columns = zip(*self.photos(rows, ["numbers"], list(self.frames)))
        rest = [torch.from_numpy(of_text(text)[1:].copy()) for text in numbers]
        return Block([torch.from_numpy(photos_given(column, frame))
                      for column, frame in zip(columns, self.frames.values())],
                     torch.stack(rest) if self.manifest["vectors"]["rest"] else None)

    @functools.cached_property
    def sample(self) -> tuple[np.ndarray, Block]:
        """Rows of photos that were drawn at random when the collection last changed, and the
        photos."""
        rows = np.array(self.manifest["sample"], np.int64)
        return rows, self.fetch(rows)

    def candidates(self, vectors: list[torch.Tensor], r: int) -> np.ndarray:
        """Rows of photos that may have the best scores: (Q, R), -1 where there are fewer."""
        r = min(r, LARGEST_TOP, self.count)
        return np.concatenate([self.search(f"channel{c}", x.numpy(), r)
                               for c, x in enumerate(vectors)], 1)

    def search(self, field: str, queries: np.ndarray, r: int) -> np.ndarray:
        """The rows of the r photos of the largest inner products with queries (Q, K) by Milvus's
        index, the best first: (Q, r) int64, -1 where there are fewer."""
        rows = np.full((len(queries), r), -1, np.int64)
        queries = padded(queries, self.width(field), self.manifest["half"])
        check_finite(queries, [f"query {i}" for i in range(len(queries))], field)
        step = min(self.batch(field), max(1, 10 ** 6 // r), LARGEST_TOP)
        settings = {"metric_type": "IP", "params": INDEXES[self.manifest["method"]][2](r)}
        for start in range(0, len(queries), step):
            # Without output_fields milvus-lite would send whole entities.
            answers = self.connection.ask(
                "search", self.collection, list(queries[start:start + step]), limit=r,
                anns_field=field, output_fields=["row"], search_params=settings)
            for i, hits in enumerate(answers, start):
                rows[i, :len(hits)] = [hit["row"] for hit in hits]
        return rows


def fitting_name(name: str) -> str:
    """A photo's name as it is. Raises InputError where Milvus cannot hold it."""
    text = name.encode(errors="replace")
    if len(text) > NAME_BYTES or text.decode() != name:
        raise InputError(f"the name {ascii(name[:80])} of a photo is no UTF-8 text of at most "
                         f"{NAME_BYTES:,} bytes; rename the photo")
    return name


def open_index(folder: str, token: str = "", writing: bool = False) -> Index | Milvus:
    """The index in a folder, also where another process puts a new state of it in place
    meanwhile."""
    while True:
        manifest = manifest_of(folder)
        try:
            if "uri" in manifest:
                return Milvus.open(folder, manifest, token, writing)
            return Index(folder)
        except InputError:
            if manifest_of(folder) == manifest:
                raise
