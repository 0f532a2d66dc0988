"""Photo index: an .npz file with embeddings and names of photos, and their run.

    manifest                          JSON as bytes, of the kinds in SCHEMA
    mean, log_var, parts, n_parts     the embedding (N, ...) of the photos; none where Milvus holds their vectors
    origin_mean, origin_log_var       (1, D) where Milvus does: what its vectors are taken from
    digest                            sha256 of all other arrays, as bytes

Every change writes the whole file under a temporary name and renames it, so a stop at any moment leaves the old index
or the new one.
"""
import hashlib
import json

import numpy as np
import torch

from cli import InputError, reason
from features.store import PhotoFile
from files import need, read_arrays, save_arrays
from losses import Embedding
from photos.milvus import Collection

FORMAT = 4
AGAIN = "make it again with python -m photos"
SCHEMA = {"index": int,               # FORMAT
          "run": str | None,          # its folder; None: photos/model
          "weights": str,             # their digest
          "similarity": str, "data": str,
          "folder": str | None,       # where the photos lie
          "features": list,           # [data_path, name, split] of a data set; empty for a folder of photos
          "exclude": list,            # patterns of names that stay out
          "removed": dict,            # {name: digest} of what `remove_photos` took out
          "milvus": list,             # [URI, collection], or empty
          "photos": list}             # of PhotoFile, as they were when they were embedded


def index_file(path: str) -> str:
    """The file of an index that is named with or without its ending."""
    return path if path.endswith(".npz") else f"{path}.npz"


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
        Raises InputError where the file is missing, damaged or of another format, and where Milvus is away."""
        index = cls(path, *read_index(index_file(path)), token)
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


def read_index(path: str) -> tuple[dict, list[PhotoFile], Embedding]:
    """The manifest, photos and embedding in a file. Raises InputError."""
    arrays = read_arrays(need(path, "make an index with python -m photos FOLDER"), AGAIN)
    try:
        manifest, photos = decode_manifest(arrays)
        start = "origin_" if manifest["milvus"] else ""
        embedding = Embedding(*(torch.from_numpy(arrays[start + name]) if start + name in arrays else None
                                for name in Embedding._fields))
        check_embedding(embedding, 1 if start else len(photos))
    except Exception as error:
        raise InputError(f"{path} is not a whole index ({reason(error)}); {AGAIN}") from error
    return manifest, photos, embedding


def digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The sha256 of arrays with their names and shapes: 32 bytes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        x = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {x.dtype.str} {x.shape}".encode())
        total.update(x.data)
    return np.frombuffer(total.digest(), np.uint8)


def decode_manifest(arrays: dict[str, np.ndarray]) -> tuple[dict, list[PhotoFile]]:
    """The manifest and its photos.
    Raises ValueError, KeyError or TypeError where `save` did not write them so."""
    manifest = json.loads(arrays["manifest"].tobytes())
    if manifest["index"] != FORMAT:
        raise ValueError(f"it is of format {manifest['index']}, and this version reads {FORMAT}")
    if not np.array_equal(digest({name: x for name, x in arrays.items() if name != "digest"}), arrays["digest"]):
        raise ValueError("its arrays do not belong together")
    wrong = [name for name, kind in SCHEMA.items() if not isinstance(manifest[name], kind)]
    photos = manifest.pop("photos")
    kinds = [*PhotoFile.__annotations__.values()]
    texts = [*manifest["exclude"], *manifest["milvus"], *manifest["removed"].values()]
    if wrong or not all(isinstance(x, str) for x in texts) or len(manifest["milvus"]) not in (0, 2) or any(
            [*map(type, row)] != kinds or "\0" in row[0] for row in photos):
        raise ValueError(f"its {wrong[0] if wrong else 'list of photos'} is of another kind")
    return manifest, [PhotoFile(*row) for row in photos]


def check_embedding(e: Embedding, n: int) -> None:
    """Raise ValueError where arrays are not an embedding of n items in float32."""
    shapes = [tuple(x.shape) for x in e if x is not None]
    ndims = [x is None or x.ndim for x in e]
    if (not n or {shape[0] for shape in shapes} != {n} or ndims[0] != 2 or ndims[1] not in (True, 2)
            or ndims[2] not in (True, 3) or ndims[3] not in (True, 1)
            or any(x is not None and x.dtype != torch.float32 for x in e[:3])
            or e.log_var is not None and e.log_var.shape[1] not in (1, e.mean.shape[1])):
        raise ValueError("its embeddings are of another kind")
