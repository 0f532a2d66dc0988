"""How vectors are stored in Milvus, and how its indexes are set, so that a search by inner product finds the best.

The lifted vectors of Gaussians nearly all point the same way (|x| = 525 +- 10 for Wasserstein on Flickr8k), and of two
photos the longer has the larger product with everything. Stored as they are, an HNSW graph over them found 1% of the
best ten photos (KL: 38%; 4,000 photos, ef 100). So a photo x is stored as [x - m, sqrt(R^2 - |x - m|^2)]: moving by m
adds the same to all scores of a query, and the last number makes all norms R while a query has 0 there (Bachrach et al.
2014, "Speeding up the Xbox recommender system"). Inner products are the same but for q.m, which is added again; that
graph found 99% and 98%, in float16 too.
"""
import base64

import numpy as np

from cli import InputError

WIDEST = 32_768                       # numbers of a vector (Milvus Limits)
HALF_MAX = float(np.finfo(np.float16).max)
CODE = 8                              # numbers of a vector in one byte of its product-quantisation code
REACH = 1.5                           # R as a multiple of the largest |x - m| of the first photos; 1 to 2 do alike
# The index of a channel, and the option of a search that trades time for recall. Milvus builds one index a segment
# (1 GB by default, some 250,000 photos of 2,050 float16), so that 2,048 lists are about 4 sqrt(n), as Milvus advises.
INDEXES = {"flat": ("FLAT", {}, None),
           "hnsw": ("HNSW", {"M": 16, "efConstruction": 200}, "ef"),
           "ivfpq": ("IVF_PQ", {"nlist": 2048, "nbits": 8}, "nprobe"),
           "diskann": ("DISKANN", {}, "search_list")}


def check_widths(channels, rest, method) -> None:
    """Raise InputError for vectors that Milvus cannot hold."""
    assert method in INDEXES and 1 <= len(channels) <= 3            # Milvus has at most 4 vector fields by default
    for k in (*channels, rest):
        if not 0 <= k <= WIDEST - CODE:
            raise InputError(f"vectors of {k:,} numbers are too long for Milvus, which takes {WIDEST:,}; use a smaller "
                             "embedding, or --engine faiss")


def stored_width(k: int, method: str) -> int:
    """Numbers of a stored vector of k numbers: sqrt(R^2 - |x - m|^2) for the approximate indexes, and zeros, which
    change nothing. Milvus wants at least 2 numbers, product quantisation a multiple of the length of its parts."""
    k += method != "flat"
    return -(-k // CODE) * CODE if method == "ivfpq" else max(k, 2)


def index_of(method: str, width: int) -> tuple[str, dict]:
    """(Milvus's name of the index, its parameters) for vectors of `width` numbers."""
    name, params, _ = INDEXES[method]
    return name, {**params, "m": width // CODE} if method == "ivfpq" else dict(params)


def search_params(method: str, r: int, effort: int | None) -> dict:
    """What a search is told. effort: HNSW's ef and DiskANN's search_list (at least r), IVF-PQ's nprobe (lists read in
    each segment, of 2,048). None: 2r, at least 64; 256 lists."""
    option = INDEXES[method][2]
    if option == "nprobe":
        value = min(effort or 256, INDEXES[method][1]["nlist"])
    else:
        value = max(effort or max(2 * r, 64), r)
    return {"metric_type": "IP", "params": {option: value} if option else {}}


def frame_of(vectors: np.ndarray, method: str, half: bool) -> np.ndarray:
    """(n, K) -> (K + 1,) float32: m, their mean, and R. Zeros where vectors are stored as they are: exact search in
    float32. Later photos may lie beyond R: their products are as exact, only the graph around them is poorer."""
    k = vectors.shape[1]
    if method == "flat" and not half:
        return np.zeros(k + 1, np.float32)
    centre = vectors.mean(0, dtype=np.float64)
    return np.append(centre, REACH * np.linalg.norm(vectors - centre, axis=1).max()).astype(np.float32)


def photos_stored(vectors: np.ndarray, frame: np.ndarray, method: str, half: bool) -> np.ndarray:
    """(n, K) -> (n, stored width) float32, or float16 with half. Numbers that do not fit become infinite."""
    centred = vectors.astype(np.float64) - frame[:-1]
    stored = np.zeros((len(vectors), stored_width(vectors.shape[1], method)))
    stored[:, :vectors.shape[1]] = centred
    if method != "flat":
        stored[:, vectors.shape[1]] = np.sqrt(np.maximum(float(frame[-1]) ** 2 - (centred ** 2).sum(1), 0))
    return narrow(stored, half)


def queries_stored(queries: np.ndarray, frame: np.ndarray, method: str, half: bool) -> tuple[np.ndarray, np.ndarray]:
    """(Q, K) -> (Q, stored width) as photos_stored, and (Q,) q.m, which is to be added to their inner products."""
    stored = np.zeros((len(queries), stored_width(queries.shape[1], method)))
    stored[:, :queries.shape[1]] = queries
    return narrow(stored, half), queries.astype(np.float64) @ frame[:-1]


def photos_given(values: list, frame: np.ndarray) -> np.ndarray:
    """n vectors of an answer -> (n, K) float32. A vector is a list of numbers, or float16 as bytes, which pymilvus
    wraps in a list."""
    stored = np.zeros((len(values), len(frame) - 1))
    for i, value in enumerate(values):
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bytes):
            value = value[0]
        numbers = np.frombuffer(value, "<f2") if isinstance(value, bytes) else np.asarray(value)
        stored[i] = numbers[:len(frame) - 1]
    return (stored + frame[:-1]).astype(np.float32)


def narrow(array: np.ndarray, half: bool) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float16 if half else np.float32)


def check_finite(stored: np.ndarray, what: list[str], field: str) -> None:
    """Raise InputError, which names the item of the list `what`, for numbers that did not fit."""
    fits = np.isfinite(stored)
    if not fits.all():
        half = stored.dtype == np.float16
        raise InputError(f"{what[int(np.argmin(fits.all(1)))]} has a number in {field} that float{16 if half else 32} "
                         f"cannot hold; {'store float32 instead' if half else 'its photo or the model is broken'}")


def frames_text(frames: list[np.ndarray], most: int) -> list[str]:
    """Frames as texts of at most `most` letters each."""
    text = base64.b64encode(np.concatenate(frames).astype("<f4").tobytes()).decode()
    return [text[i:i + most] for i in range(0, len(text), most)]


def frames_read(texts: list[str], channels: list[int]) -> list[np.ndarray] | None:
    """The reverse. None where the texts are not whole."""
    try:
        numbers = np.frombuffer(base64.b64decode("".join(texts), validate=True), "<f4")
    except ValueError:
        return None
    if len(numbers) != sum(channels) + len(channels) or not np.isfinite(numbers).all():
        return None
    return np.split(numbers, np.cumsum([k + 1 for k in channels])[:-1])
