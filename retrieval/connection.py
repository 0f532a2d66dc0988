"""The connection to Milvus: a server at an address, or milvus-lite in this process on a folder NAME.db. Every error of
either becomes one sentence, and none shows the token."""
import contextlib
import logging
import os
import re
import time
import uuid

from tqdm import tqdm

from cli import InputError, reason

try:
    import fcntl
except ImportError:                   # a system without POSIX locks: milvus-lite's own refusal is shown instead
    fcntl = None

CONNECT = 10                          # seconds within which a server has to answer
REPLY = 60                            # seconds within which it has to answer a request for data
STALLED = 300                         # seconds in which it goes on with what it builds or loads
POLL = 0.5                            # seconds between two looks at that
LOGGERS = "pymilvus", "pymilvus.milvus_client", "milvus_lite"
INSTALL = "pip install -r requirements-milvus.txt"


def import_pymilvus():
    """Import pymilvus and keep it quiet: it writes each error to stderr before it raises it. Takes 0.6 s, so that it is
    imported only when asked for. Raises InputError where it is not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")          # read by gRPC's C library when it is loaded
    try:
        import pymilvus
    except ImportError as error:
        raise InputError(f"--engine milvus needs the package pymilvus: {INSTALL}") from error
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return pymilvus


def is_folder(uri: str) -> bool:
    """Whether a URI is a milvus-lite folder. Raises InputError where it is neither one nor an address."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        if not uri.endswith(".db"):
            raise InputError(f"--uri {uri} is no address and no milvus-lite folder; give http://HOST:19530, or a name "
                             "that ends in .db")
        return True
    if scheme not in ("http", "https") or not rest:
        raise InputError(f"--uri {scheme}:// is no address of a Milvus server; give http://HOST:19530 or https://HOST")
    if "@" in rest:                   # it is not shown: a password stands in it
        raise InputError("--uri holds a user or a password, which every user of this machine can read; give "
                         "http://HOST:19530, and USER:PASSWORD in a file with --token_file")
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?", rest):
        raise InputError(f"--uri {uri} is no address of a Milvus server; give http://HOST:19530 or https://HOST")
    return False


def check_folder(path: str, writing: bool) -> None:
    """Raise InputError where `path` is no milvus-lite folder, or where another process has it open.

    milvus-lite would create a missing folder, write into a foreign one, and say only that it failed.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InputError(f"{path} is a file, but milvus-lite keeps a folder of that name (up to version 2.4 it kept a "
                         "file, which it no longer reads); give the name of a new folder that ends in .db")
    inside = os.listdir(path) if os.path.isdir(path) else []
    if inside and not ("LOCK" in inside and os.path.isdir(os.path.join(path, "collections"))):
        raise InputError(f"{path} is a folder that milvus-lite did not make; give the name of a new folder that ends "
                         "in .db")
    if not inside and not writing:
        raise InputError(f"{path} is no milvus-lite folder; make it with `search.py index`, or name one that is there")
    if inside and fcntl:
        try:
            with open(os.path.join(path, "LOCK"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)        # released when the file is closed
        except BlockingIOError as error:
            raise InputError(f"{path} is open already, most likely in another process, and milvus-lite serves one at a "
                             "time; wait for it or stop it, or run a Milvus server") from error
        except OSError as error:
            raise InputError(f"{path} cannot be opened ({reason(error)}); milvus-lite needs a folder that it may "
                             "write to") from error


class Connection:
    """A client of Milvus. `client` is pymilvus's, `lite` tells whether milvus-lite answers (also behind an address).

    uri: see is_folder. token: "USER:PASSWORD" or an API key, "" for none. writing: whether a missing milvus-lite folder
    may be made. One object at a time may have a milvus-lite folder open. Raises InputError.
    """

    def __init__(self, uri: str, token: str = "", writing: bool = False):
        self.path = os.path.abspath(uri) if is_folder(uri) else None
        self.uri, self.token, self.client = uri, token, None
        if self.path:
            check_folder(self.path, writing)
        pymilvus = import_pymilvus()
        if self.path:
            self._start_lite()
        with self.asking():
            # its own alias: pymilvus would share a connection of the same address, and closing one closes both
            self.client = pymilvus.MilvusClient(uri=self.path or uri, token=token, timeout=CONNECT,
                                                alias=uuid.uuid4().hex)
            self.lite = self.client.get_server_version(timeout=CONNECT).startswith("milvus_lite")

    def _start_lite(self) -> None:
        """Start milvus-lite on its folder. pymilvus would do so too, but would say only that it failed."""
        try:
            from milvus_lite.server_manager import server_manager_instance
        except ImportError as error:
            raise InputError(f"--uri {self.uri} needs the package milvus-lite: {INSTALL}") from error
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            started = server_manager_instance.start_and_get_uri(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made ({reason(error)}); name a folder elsewhere") from error
        if not started:
            raise InputError(f"milvus-lite cannot open {self.path}; another process may have opened it just now, or "
                             "the folder may not be writable: call it again, or name another one")

    def close(self) -> None:
        """Close the connection. milvus-lite writes what it holds in memory, and gives its folder free."""
        if self.client is not None:
            self.client.close()
            self.client = None
        if self.path:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self.path)

    @contextlib.contextmanager
    def asking(self):
        """A context for requests. What pymilvus raises becomes InputError."""
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            text = (error.message if isinstance(error, MilvusException) else
                    error.details() if isinstance(error, grpc.Call) else "") or type(error).__name__
            raise InputError(self._sentence(grpc.StatusCode, code, text)) from None       # the cause may hold the token

    # ---- requests

    def has(self, collection: str) -> bool:
        with self.asking():
            return bool(self.client.has_collection(collection, timeout=CONNECT))

    def describe(self, collection: str) -> list[tuple]:
        """(name, type, dim or None) of every field. Empty where the schema has more than fields: a function of a schema
        may call a service, and ours have none."""
        with self.asking():
            found = self.client.describe_collection(collection, timeout=CONNECT)
        fields = [(field["name"], field["type"], field["params"].get("dim")) for field in found["fields"]]
        return [] if found.get("functions") or found.get("enable_dynamic_field") else fields

    def prepare(self, collection: str, indexes: dict[str, tuple[str, dict]]) -> None:
        """Create the indexes that a collection lacks, and load it. {field: (kind, parameters)}."""
        with self.asking():
            there = self.client.list_indexes(collection, timeout=CONNECT)
            for field, (kind, params) in indexes.items():
                if field not in there:
                    wanted = self.client.prepare_index_params()
                    wanted.add_index(field, index_type=kind, index_name=field, metric_type="IP", params=params)
                    self.client.create_index(collection, wanted, timeout=REPLY, sync=False)
            self.client.load_collection(collection, timeout=REPLY, _async=True)
        self.wait_for(f"load {collection}", lambda: self._loaded(collection))

    def _loaded(self, collection: str) -> float:
        found = self.client.get_load_state(collection, timeout=CONNECT)
        return 1.0 if found["state"].name == "Loaded" else found.get("progress", 0) / 100

    def wait_for(self, what: str, done) -> None:
        """Show what the server does until done(), a share of it, is 1. Raises InputError where that stays the same for
        STALLED seconds: a server works at large indexes for hours, and at what it was not set up for for ever."""
        share, since = -1.0, time.monotonic()
        with tqdm(total=100, desc=what, unit="%", disable=None, leave=False) as bar, self.asking():
            while (now := done()) < 1:
                if now > share:
                    share, since = now, time.monotonic()
                if time.monotonic() - since > STALLED:
                    raise InputError(f"Milvus at {self.uri} has not gone on with '{what}' for {STALLED / 60:g} "
                                     f"minutes, {now:.0%} is done; a server that is not set up for an index waits so: "
                                     "DiskANN needs queryNode.enableDisk and indexNode.enableDisk true in its "
                                     "milvus.yaml. See its log, then call `search.py index` again, with --overwrite "
                                     "for another index")
                bar.update(round(100 * now) - bar.n)
                time.sleep(POLL)

    def query(self, collection: str, condition: str, fields: list[str], exact: bool = False,
              limit: int | None = None) -> list[dict]:
        """Entities that fit a condition. exact: with all that was written before, also by other processes; else what
        was written in the last seconds may be missing (Milvus, Consistency Level: Strong and Bounded)."""
        level = "Strong" if exact else "Bounded"
        with self.asking():
            if limit is None:
                return list(self.client.query(collection, filter=condition, output_fields=fields, timeout=REPLY,
                                              consistency_level=level))
            return list(self.client.query(collection, filter=condition, output_fields=fields, timeout=REPLY,
                                          consistency_level=level, limit=limit))

    def _sentence(self, codes, code, text: str) -> str:
        text = reason(RuntimeError(text.replace(self.token, "***") if self.token else text))
        if code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED) or re.search(r"\bauth|permission deny", text):
            wanted = "refuses the token of --token_file" if self.token else "wants a token"
            return f"the Milvus server at {self.uri} {wanted}; give a file with USER:PASSWORD or an API key in " \
                   "--token_file, of a user who may read and write the collection"
        if code in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED) or \
                re.search(r"Fail connecting|UNAVAILABLE|Retry timeout|Retry run out|FutureTimeoutError", text):
            return f"no Milvus server answers at {self.uri} within {CONNECT if self.client is None else REPLY} " \
                   "seconds; start it, or give its address as --uri http://HOST:19530"
        return f"Milvus at {self.uri} reports: {text}; mend this there, then call it again"
