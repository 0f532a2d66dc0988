"""Vectors in one file on disk, and exact search in it by inner product.

The files are those of FAISS: IndexFlatIP, or IndexScalarQuantizer with QT_fp16, as faiss.write_index writes them and
faiss.read_index reads them. FAISS itself is not needed here: a file is a header of fixed length and then the numbers.
"""
import contextlib
import math
import mmap
import os
import struct
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from cli import InputError, reason
from files.reading import FAULTS, plain_file
from files.writing import atomic

# The headers in faiss/impl/index_write.cpp, little-endian: name of the type, K, N, two unused numbers, whether it is
# trained, the metric (0: inner product); of scalar quantizers also their type (4: QT_fp16), how they were trained, K
# and the bytes of a vector, and what they learned (nothing). The last field counts what follows: units of four bytes
# in a flat file, bytes in one of codes.
SHARED, CODES, COUNT = "<4siqqqBi", "iifQQQ", "Q"
UNUSED = 1 << 20
FLAT, HALF = b"IxFI", b"IxSQ"
INNER_PRODUCT, FP16 = 0, 4
WIDEST = 1 << 20                      # numbers in a vector; a header that announces more is false
CONVERTED = 2 << 20                   # bytes of float32 numbers that are multiplied at once: what a cache holds
FAULT = 1 << 16                       # bytes that Linux maps when one of them is read
FEW = 8                               # times as many scores as are kept, that are sorted as they stand
FIRST = 1024                          # scores of a query whose best tell which of the first block are worth sorting
BLOCK = 8192                          # rows whose scores are handed on at once
RELEASED = 1 << 30                    # bytes read of a mapped file before its memory pages are released


def header(n: int, k: int, half: bool) -> bytes:
    """What stands before the numbers of a file of n vectors of k numbers."""
    shared = (HALF if half else FLAT, k, n, UNUSED, UNUSED, 1, INNER_PRODUCT)
    if half:
        return struct.pack(SHARED + CODES + COUNT, *shared, FP16, 0, 0.0, k, 2 * k, 0, 2 * k * n)
    return struct.pack(SHARED + COUNT, *shared, k * n)


def write_flat(path: str, blocks: Iterable, n: int, k: int, half: bool) -> None:
    """Write n vectors of k numbers, which `blocks` yields as float32 (m, k) arrays or tensors: see `writing`."""
    with writing(path, n, k, half) as write:
        for block in blocks:
            write(block)


@contextlib.contextmanager
def writing(path: str, n: int, k: int, half: bool):
    """Yields write(block), to be called with all of n vectors of k numbers in runs, float32 (m, k). A block is in
    memory at a time. `half`: in float16, half the space. The file is complete and on the disk, or as it was before.

    Raises InputError on numbers that are not finite or beyond float16, and where more or fewer than n come.
    """
    done = 0
    with atomic(path, "wb") as f:
        f.write(header(n, k, half))

        def write(block) -> None:
            nonlocal done
            block = torch.as_tensor(block, dtype=torch.float32)
            assert block.ndim == 2 and block.shape[1] == k, f"a block has shape {tuple(block.shape)}, not (m, {k})"
            stored = (block.half() if half else block).contiguous()
            check_numbers(path, block, stored, done)
            f.write(stored.numpy().data)
            done += len(block)
        yield write
        if done != n or not n:
            raise InputError(f"{path} was to hold {n:,} vectors and {done:,} came; an index needs at least one, and as "
                             "many as it announces")


def check_numbers(path: str, block: Tensor, stored: Tensor, first: int) -> None:
    """Raise InputError where a number of a block (m, K) is not finite as it is stored. `first`: the row of its first
    vector."""
    if not len(block) or torch.isfinite(stored.sum(dtype=torch.float64)):
        return
    row = int((~torch.isfinite(stored)).any(1).nonzero()[0])
    value = float(block[row][~torch.isfinite(stored[row])][0])
    if math.isfinite(value):
        raise InputError(f"row {first + row} of {path} holds {value:g}, and float16 ends at 65504; write it in float32")
    raise InputError(f"row {first + row} of {path} holds {value}; every number of a vector has to be finite, so embed "
                     "that item again")


class Flat:
    """N vectors of K numbers in a file, mapped and never read whole. Pages that were read are released at times, so
    that little of the file counts as memory of the process; the system may cache it. Threads may share one object.

    Raises InputError on files of another kind, and on those whose size is not what their header announces."""

    def __init__(self, path: str):
        self.path = path
        try:
            with open(plain_file(path), "rb") as f:
                start = self.parse(f.read(struct.calcsize(SHARED + CODES + COUNT)), os.fstat(f.fileno()).st_size)
                self.mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FAULTS as error:
            raise InputError(f"{path} is not a whole FAISS file of vectors to compare by inner product "
                             f"({reason(error)}); give a file that this project wrote, or build the index "
                             "again") from error
        with warnings.catch_warnings(action="ignore"):      # torch warns of memory that cannot be written; nor is it
            self.data = torch.frombuffer(self.mapping, dtype=torch.float16 if self.half else torch.float32,
                                         offset=start).view(self.n, self.k)
        self.unreturned = 0

    def parse(self, head: bytes, size: int) -> int:
        """Set n, k and half from the first bytes of a file of `size` bytes; where its numbers start. Raises ValueError
        unless the header is the one that write_flat writes for this n and k."""
        if len(head) < struct.calcsize(SHARED):
            raise ValueError(f"it has {size} bytes, less than a header")
        kind, self.k, self.n, *_ = struct.unpack_from(SHARED, head)
        if kind not in (FLAT, HALF):
            raise ValueError(f"it starts with {ascii(kind)[1:]}, not with {FLAT.decode()} or {HALF.decode()}")
        self.half = kind == HALF
        if not 0 < self.k <= WIDEST or self.n < 1:
            raise ValueError(f"its header announces {self.n} vectors of {self.k} numbers")
        expected = header(self.n, self.k, self.half) if self.n * self.k < 1 << 60 else b""
        if not expected or head[:len(expected)] != expected:
            raise ValueError("its header is of an index of another metric, another type of codes or a false size")
        needed = len(expected) + self.n * self.k * (2 if self.half else 4)
        if size != needed:
            raise ValueError(f"{self.n:,} vectors of {self.k:,} numbers take {needed:,} bytes, and it has {size:,}")
        return len(expected)

    def __len__(self) -> int:
        return self.n

    def release(self, n_bytes: int) -> None:
        """Count what was read, and release the pages of the file once they are many; of a small file they never are."""
        self.unreturned += n_bytes
        if self.unreturned > RELEASED and len(self.mapping) > RELEASED:
            self.mapping.madvise(mmap.MADV_DONTNEED)
            self.unreturned = 0

    def rows(self, index) -> Tensor:
        """The vectors of the rows `index` (m,) int64: (m, K) float32."""
        found = self.data[torch.as_tensor(index, dtype=torch.int64)].float()        # (m, K), a copy
        self.release(len(found) * max(FAULT, self.data.element_size() * self.k))
        return found

    def blocks(self, block: int = BLOCK) -> Iterator[Tensor]:
        """All vectors in turn, (m, K) float32 with m at most `block`: what write_flat takes to write them again."""
        for start in range(0, self.n, block):
            yield self.data[start:start + block].float().clone()
            self.release(block * self.data.element_size() * self.k)

    def products(self, queries, block: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Inner products of queries (Q, K) with all vectors: yields (start, scores (Q, b) float32) for the rows
        start .. start + b - 1, b at most `block`. Raises InputError where a product is not finite."""
        queries = torch.as_tensor(queries, dtype=torch.float32)
        if queries.ndim != 2 or queries.shape[1] != self.k:
            raise InputError(f"queries of shape {tuple(queries.shape)} do not fit {self.path}, whose vectors have "
                             f"{self.k:,} numbers; search with the model that the index was built with")
        step = max(1, min(block, CONVERTED // (4 * self.k)))
        piece = torch.empty(step, self.k)
        for start in range(0, self.n, block):
            stored = self.data[start:start + block]
            scores = torch.empty(len(queries), len(stored))
            for part, out in zip(stored.split(step), scores.split(step, 1)):
                own = piece[:len(part)].copy_(part) if self.half else part          # converted in a cache
                torch.mm(queries, own.T, out=out)
            self.release(stored.nbytes)
            if not torch.isfinite(scores.sum()) and not torch.isfinite(scores).all():
                row = start + int((~torch.isfinite(scores)).any(0).nonzero()[0])
                raise InputError(f"row {row} of {self.path} and a query have a product that is not finite; one of them "
                                 "holds a number that is not, so build the index again")
            yield start, scores


def top_of(products: Iterable[tuple[int, Tensor]], top: int) -> tuple[Tensor, Tensor]:
    """The best of blocks (start, scores (Q, b)), whose starts rise: scores (Q, t) float32, falling, and their rows
    (Q, t) int64, t = `top`, or the number of all rows where that is less. Of equal scores the lower row comes first."""
    best, rows = None, None
    for start, scores in products:
        if best is None:
            best, rows = scores.new_empty(len(scores), 0), torch.empty(len(scores), 0, dtype=torch.int64)
        if best.shape[1] == top:
            hits = np.flatnonzero((scores > best[:, -1:]).numpy())                  # a later row loses a tie
        else:
            hits = np.flatnonzero((scores >= worst_of(scores[:, :max(FEW * top, FIRST)], top)).numpy())
        if len(hits) > FEW * top * len(scores) + FIRST:
            fine = scores.numpy().ravel()[hits] >= worst_of(scores, top).numpy().ravel()[hits // scores.shape[1]]
            hits = hits[fine]
        if len(hits):
            best, rows = merged(best, rows, *side_by_side(scores, start, hits),
                                min(top, best.shape[1] + scores.shape[1]))
    return best, rows


def worst_of(scores: Tensor, top: int) -> Tensor:
    """The score at place `top`, or the least where there are fewer: (Q, b) -> (Q, 1)."""
    return scores.topk(min(top, scores.shape[1]), sorted=False).values.amin(1, keepdim=True)


def side_by_side(scores: Tensor, start: int, hits: np.ndarray) -> tuple[Tensor, Tensor]:
    """Some of a block of scores (Q, b), at the places `hits` of all in a line, rising, moved to the left: scores (Q, w)
    and rows (Q, w), of which -inf and 0 fill the queries that have fewer."""
    query, column = np.divmod(hits, scores.shape[1])
    count = np.bincount(query, minlength=len(scores))
    place = np.arange(len(hits)) - (count.cumsum() - count)[query]
    packed = np.full((len(scores), count.max()), -np.inf, np.float32)
    rows = np.zeros(packed.shape, np.int64)
    packed[query, place], rows[query, place] = scores.numpy().ravel()[hits], start + column
    return torch.from_numpy(packed), torch.from_numpy(rows)


def merged(best: Tensor, rows: Tensor, more: Tensor, later: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The best `top` of scores (Q, t) and (Q, w), and their rows; the first come first among equals."""
    order = torch.cat([best, more], 1).sort(dim=1, descending=True, stable=True)
    return order.values[:, :top], torch.cat([rows, later], 1).gather(1, order.indices[:, :top])
