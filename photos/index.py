"""Photo index: an .npz file with embeddings and names of photos, and their run.

    manifest                          JSON as bytes: format, run, photos, and more (`MANIFEST`)
    mean, log_var, parts, n_parts     the embedding (N, ...) of the photos; none where Milvus holds their vectors
    origin_mean, origin_log_var       (1, D) where Milvus does: what its vectors are taken from
    digest                            sha256 of all other arrays, as bytes

Every change writes the whole file under a temporary name and renames it, so a stop at any moment leaves the old index
or the new one.
"""
import contextlib
import json
import os

import numpy as np
import torch

from cli import InputError
from features.store import PhotoFile
from files import need, read_arrays, refusing, remove, save_arrays, sha256
from losses import Embedding
from photos.milvus import Collection

try:
    import fcntl
except ImportError:                   # Windows, where the last of two writers wins
    fcntl = None

FORMAT = 4
AGAIN = "make it again with python -m photos"
MANIFEST = {"run": str | None,        # its folder; None: photos/model
            "weights": str, "similarity": str, "data": str,
            "folder": str | None,     # where the photos lie
            "features": list,         # [data_path, name, split] of a data set; empty for a folder of photos
            "exclude": list,          # patterns of names that stay out
            "removed": dict,          # {name: digest} of what `remove_photos` took out
            "years": dict,            # {digest: year} in which photos were taken, as far as known
            "milvus": list}           # [URI, collection], or empty
AXES = {"mean": (2, "float32"), "log_var": (2, "float32"), "parts": (3, "float32"), "n_parts": (1, "int64")}
LARGEST = {"mean": 1e18, "log_var": 80, "parts": 1e18}      # beyond these, scores overflow


def index_file(path: str) -> str:
    """The file of an index that is named with or without its ending."""
    return path if path.endswith(".npz") else f"{path}.npz"


@contextlib.contextmanager
def lock_index(path: str):
    """Keep other processes from writing an index within a context.

    What is read of the index within it stays true until it is saved. The system drops the lock of
    a process that is killed. Raises InputError where another process holds the lock.
    """
    path = os.path.realpath(index_file(path))
    folder, name = os.path.split(path)
    new_folder = not os.path.isdir(folder)
    lock = os.path.join(folder, f".{name}.lock")
    advice = "name a file in a folder that takes new files"
    with refusing(f"{path} cannot be written", advice, OSError):
        os.makedirs(folder, exist_ok=True)
        file = open_lock(lock, path)
    try:
        yield
    finally:
        remove(lock)
        file.close()
        if new_folder:
            with contextlib.suppress(OSError):              # the index is in it
                os.rmdir(folder)


def open_lock(lock: str, path: str):
    """Open the file of a lock and lock it. Raises InputError where another process has done so."""
    while True:
        file = open(lock, "w")
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InputError(f"another process is writing {path}; call this again when it has "
                             "ended") from error
        except OSError:                                     # a disk in the network without locks
            return file
        # A process that ended just now may have removed this file before it was locked.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                return file
        file.close()


class Index:
    """Photos of an index with their embeddings, or with Milvus their collection.

    embedding: of the photos, or with Milvus the origin of their vectors.
    """

    def __init__(self, path: str, manifest: dict, photos: list[PhotoFile], embedding: Embedding, token: str = ""):
        self.path, self.manifest, self.photos, self.embedding = index_file(path), manifest, photos, embedding
        self.collection = Collection(*manifest["milvus"], token) if manifest["milvus"] else None

    @classmethod
    def open(cls, path: str, token: str = "") -> "Index":
        """Read an index.
        Raises InputError where `save` of this version did not write the file so, and where Milvus is away."""
        path = index_file(path)
        arrays = read_arrays(need(path, "make an index with python -m photos FOLDER"), AGAIN)
        with refusing(f"{path} is not a whole index", AGAIN):
            stored, manifest = arrays.pop("digest"), json.loads(arrays["manifest"].tobytes())
            if manifest["index"] != FORMAT:
                raise ValueError(f"it is of format {manifest['index']}, and this version reads {FORMAT}")
            if not np.array_equal(digest(arrays), stored):
                raise ValueError("its arrays do not belong together")
            photos = [PhotoFile(str(name), int(size), int(time), str(content))
                      for name, size, time, content in manifest.pop("photos")]
            start, n = ("origin_", 1) if manifest["milvus"] else ("", len(photos))
            arrays = {name: arrays[start + name] for name in AXES if start + name in arrays}
            manifest.setdefault("years", {})                # which older indexes have not
            wrong = [name for name, kind in MANIFEST.items() if not isinstance(manifest[name], kind)]
            wrong += [name for name, x in arrays.items() if (x.ndim, str(x.dtype), len(x)) != (*AXES[name], n)]
            texts = [*manifest["features"], *manifest["exclude"], *manifest["milvus"],
                     *manifest["removed"].values(), *manifest["years"].values()]
            if wrong or not (manifest["folder"] or manifest["features"]) or {*map(type, texts)} - {str}:
                raise ValueError(f"{' and '.join(wrong) or 'a list of it'} is of another kind")
            check_values(arrays, [manifest["folder"] or "", *(photo.name for photo in photos)])
            embedding = Embedding(**{name: torch.from_numpy(x) for name, x in arrays.items()})
        index = cls(path, manifest, photos, embedding, token)
        if index.collection:
            index.collection.load()
        return index

    def save(self) -> None:
        start = "origin_" if self.collection else ""
        manifest = json.dumps({**self.manifest, "photos": self.photos}).encode()
        arrays = {start + name: x.numpy() for name, x in self.embedding._asdict().items() if x is not None}
        arrays["manifest"] = np.frombuffer(manifest, np.uint8)
        save_arrays(self.path, {**arrays, "digest": digest(arrays)})

    @property
    def names(self) -> list[str]:
        return [photo.name for photo in self.photos]

    def __len__(self) -> int:
        return len(self.photos)


def check_values(arrays: dict[str, np.ndarray], names: list[str]) -> None:
    """Raise ValueError where the numbers, or the names of folder and photos, are of no index."""
    if len(names) < 2:
        raise ValueError("it has no photos")
    for name in names:
        name.encode()                                       # raises ValueError on lone surrogates
        if "\0" in name:
            raise ValueError(f"{ascii(name)[:80]} is no name of a file")
    for name, largest in LARGEST.items():
        if name in arrays and not (np.abs(arrays[name]) <= largest).all():
            raise ValueError(f"{name} holds numbers that are not finite, or too large")
    if "n_parts" in arrays:
        parts = arrays["n_parts"]
        if (parts < 0).any() or (parts > arrays["parts"].shape[1]).any():
            raise ValueError("n_parts does not belong to parts")


def digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The sha256 of arrays with their names and shapes: 32 bytes."""
    parts = [part for name, x in sorted(arrays.items()) for part in (f"{name} {x.dtype.str} {x.shape}", x)]
    return np.frombuffer(bytes.fromhex(sha256(*parts)), np.uint8)
