"""Photo index: an .npz file with embeddings and names of photos, and their run.

    manifest                      JSON as bytes: format, run, photos, and more (`MANIFEST`)
    mean, log_var, parts, n_parts the embedding (N, ...) of the photos
    origin_mean, origin_log_var   (1, D) instead of these if Milvus holds the vectors: their origin
    digest                        sha256 of all other arrays, as bytes

Every change writes the whole file under a temporary name and renames it, so an interruption at any
moment leaves the old index or the new one.
"""

import contextlib
import json
import os

import numpy as np
import torch

from features.store import PhotoFile
from losses import Embedding
from photos.milvus import Collection
from utils import InputError, need, read_arrays, refusing, remove, save_arrays, sha256

try:
    import fcntl
except ImportError:  # Windows, where the last of two writers wins
    fcntl = None

INDEX_FORMAT = 4
MAKE_AGAIN = "make it again with python -m photos"

MANIFEST = {  # key: type
    "run": str | None,  # its folder; None: photos/model
    "weights": str,
    "similarity": str,
    "data": str,
    "folder": str | None,  # where the photos are
    "features": list,  # [data_path, name, split] of a data set; empty for a folder of photos
    "exclude": list,  # patterns of names that are excluded
    "removed": dict,  # {name: digest} of what `remove_photos` took out
    "years": dict,  # {digest: year} in which photos were taken, as far as known
    "milvus": list,  # [URI, collection], or empty
}
AXES = {  # array: its number of axes, its type
    "mean": (2, "float32"),
    "log_var": (2, "float32"),
    "parts": (3, "float32"),
    "n_parts": (1, "int64"),
}
LARGEST_VALUES = {"mean": 1e18, "log_var": 80, "parts": 1e18}  # beyond these, scores overflow


def index_file(path: str) -> str:
    """The file of an index that is named with or without its ending."""
    if path.endswith(".npz"):
        return path
    return f"{path}.npz"


@contextlib.contextmanager
def lock_index(path: str):
    """Keep other processes from writing an index within a context.

    What is read of the index within it stays true until it is saved. The system drops the lock of
    a process that is killed. Raises InputError if another process holds the lock.
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
            with contextlib.suppress(OSError):  # the folder is not empty: the index is in it
                os.rmdir(folder)


def open_lock(lock: str, path: str):
    """Open the file of a lock and lock it. Raises InputError if another process has done so."""
    while True:
        file = open(lock, "w")
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InputError(
                f"another process is writing {path}; run this again when it has ended"
            ) from error
        except OSError:  # a network disk without locks
            return file

        # A process that ended just now may have removed this file before it was locked.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                return file
        file.close()


class Index:
    """Photos of an index with their embeddings, or with Milvus their collection.

    embedding: of the photos (N, D), or with Milvus the origin of their vectors (1, D).
    """

    def __init__(
        self,
        path: str,
        manifest: dict,
        photos: list[PhotoFile],
        embedding: Embedding,
        token: str = "",
    ):
        self.path = index_file(path)
        self.manifest = manifest
        self.photos = photos
        self.embedding = embedding
        self.collection = None
        if manifest["milvus"]:
            self.collection = Collection(*manifest["milvus"], token)

    @classmethod
    def open(cls, path: str, token: str = "") -> "Index":
        """Read an index.

        Raises InputError if `save` of this version did not write the file, if it was changed since,
        or if Milvus cannot be reached.
        """
        path = index_file(path)
        arrays = read_arrays(need(path, "make an index with python -m photos FOLDER"), MAKE_AGAIN)
        with refusing(f"{path} is not a whole index", MAKE_AGAIN):
            stored_digest = arrays.pop("digest")
            manifest = json.loads(arrays["manifest"].tobytes())
            if manifest["index"] != INDEX_FORMAT:
                raise ValueError(
                    f"it is of format {manifest['index']}, and this version reads {INDEX_FORMAT}"
                )
            if not np.array_equal(digest(arrays), stored_digest):
                raise ValueError("its arrays do not belong together")

            photos = []
            for name, size, time, content in manifest.pop("photos"):
                photos.append(PhotoFile(str(name), int(size), int(time), str(content)))

            start = ""
            rows = len(photos)
            if manifest["milvus"]:
                start = "origin_"
                rows = 1
            arrays = {name: arrays[start + name] for name in AXES if start + name in arrays}
            manifest.setdefault("years", {})  # older indexes have none
            check_types(manifest, arrays, rows)
            check_values(arrays, [manifest["folder"] or "", *(photo.name for photo in photos)])
            tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
            embedding = Embedding(**tensors)

        index = cls(path, manifest, photos, embedding, token)
        if index.collection:
            index.collection.load()
        return index

    def save(self) -> None:
        start = "origin_" if self.collection else ""
        arrays = {}
        for name, x in self.embedding._asdict().items():
            if x is not None:
                arrays[start + name] = x.numpy()

        manifest = json.dumps({**self.manifest, "photos": self.photos}).encode()
        arrays["manifest"] = np.frombuffer(manifest, np.uint8)
        save_arrays(self.path, {**arrays, "digest": digest(arrays)})

    @property
    def names(self) -> list[str]:
        return [photo.name for photo in self.photos]

    def __len__(self) -> int:
        return len(self.photos)


def check_types(manifest: dict, arrays: dict[str, np.ndarray], rows: int) -> None:
    """Raise ValueError if a value of the manifest or an array of `rows` rows is of another type."""
    wrong = [name for name, kind in MANIFEST.items() if not isinstance(manifest[name], kind)]
    for name, x in arrays.items():
        if (x.ndim, str(x.dtype), len(x)) != (*AXES[name], rows):
            wrong.append(name)
    if wrong:
        raise ValueError(f"wrong type or shape: {', '.join(wrong)}")

    texts = [
        *manifest["features"],
        *manifest["exclude"],
        *manifest["milvus"],
        *manifest["removed"].values(),
        *manifest["years"].values(),
    ]
    has_origin = manifest["folder"] or manifest["features"]
    if not has_origin or not all(type(text) is str for text in texts):
        raise ValueError("one of its lists holds something other than text")


def check_values(arrays: dict[str, np.ndarray], names: list[str]) -> None:
    """Raise ValueError if the numbers, or the names of folder and photos, cannot be of an index."""
    if len(names) < 2:
        raise ValueError("it has no photos")
    for name in names:
        name.encode()  # raises ValueError on lone surrogates
        if "\0" in name:
            raise ValueError(f"{ascii(name)[:80]} is not the name of a file")

    for name, largest in LARGEST_VALUES.items():
        if name in arrays and not (np.abs(arrays[name]) <= largest).all():
            raise ValueError(f"{name} holds numbers that are not finite, or too large")
    if "n_parts" in arrays:
        n_parts = arrays["n_parts"]
        if (n_parts < 0).any() or (n_parts > arrays["parts"].shape[1]).any():
            raise ValueError("n_parts does not belong to parts")


def digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The sha256 of arrays with their names and shapes: 32 bytes."""
    parts = []
    for name, x in sorted(arrays.items()):
        parts.append(f"{name} {x.dtype.str} {x.shape}")
        parts.append(x)
    return np.frombuffer(bytes.fromhex(sha256(*parts)), np.uint8)
