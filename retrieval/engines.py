"""The vectors of an index in files: all compared (`Flat`), or an approximate index of short vectors
that proposes rows, which the caller scores (`Approximate`).

A lifted Gaussian has thousands of numbers, but the scores of photos differ in few directions. What
counts is how far two photos differ in the scores that queries give them, E_q[(q . (x - y))^2] = (x
- y)^T C (x - y) with C = E[q q^T]. So vectors are centred, multiplied by C^1/2 and projected on
their first 95 principal directions; queries are multiplied by C^-1/2, which keeps all products. On
Gaussians of Flickr8k (--sim wasserstein, K = 1,025), the best 50 of 63 such numbers hold the true
best 10 in 100.0 percent, those of 64 plain principal components in 91 percent. """
import contextlib
import math
import mmap
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from cli import InputError, reason
from files.reading import FAULTS, read_array, read_arrays
from files.writing import atomic, save_arrays

AGAIN = "make it again with search.py index"
CONVERTED = 2 << 20       # bytes of float32 numbers that are multiplied at once: what a cache holds
FAULT = 1 << 16           # bytes that Linux maps when one of them is read
BLOCK = 8192              # rows whose scores are handed on at once
RELEASED = 1 << 30        # bytes read of a mapped file before its memory pages are released
SHORT = 96                # numbers in a short vector, the last of which evens out the norms
DRAWN = 10000             # vectors and queries that the projection is learned from
FLOOR = 0.001             # share of the average variance of queries that every direction is given
ROOM = 4  # M^2 as a multiple of the largest |x|^2 of those drawn, as longer ones may come
FAR = 10                  # |q| / M; the nearest lists of an inverted file are best if q is far
CHUNK = 1 << 16           # vectors that are added at once
WHOLE = 2048              # vectors that are read at once
LINKS, BREADTH = 32, 100  # of a vector in the graph (M); candidates for them (efConstruction)
PER_LIST, ROUNDS = 40, 10  # vectors that k-means is run on, for each list; its rounds
LEAST = 1000              # vectors that codes can be learned from
EFFORTS = {"hnsw": (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072),
           "ivfpq": (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
                     3072)}
# Candidates that are scored exactly; each is read from the disk.
DEPTHS = (20, 35, 50, 70, 100, 140, 200)


# ---- all vectors

@contextlib.contextmanager
def writing(path: str, n: int, k: int, half: bool):
    """Yields write(block), to be called with all of n vectors of k numbers in runs, float32 (m, k),
    of which one is in memory at a time. The .npy file is float16 with `half`; it is complete and on
    the disk, or as it was before.

    Raises InputError on numbers that are not finite or beyond float16, and where more or fewer than
    n come. """
    done = 0
    with atomic(path, "wb") as f:
        np.lib.format.write_array_header_1_0(
            f, {"descr": "<f2" if half else "<f4", "fortran_order": False, "shape": (n, k)})

        def write(block: Tensor) -> None:
            nonlocal done
            assert block.shape[1:] == (k,), f"a block has shape {tuple(block.shape)}, not (m, {k})"
            numbers = (block.half() if half else block).contiguous()
            if len(block) and not torch.isfinite(numbers.sum(dtype=torch.float64)):
                refuse_infinite(path, block, numbers, done)
            f.write(numbers.numpy().data)
            done += len(block)
        yield write
        if done != n or not n:
            raise InputError(f"{path} was to hold {n:,} vectors and {done:,} came; an index needs "
                             "at least one, and as many as it announces")


def refuse_infinite(path: str, block: Tensor, numbers: Tensor, first: int) -> None:
    """Raise InputError for the first number of a block (m, K) that is not finite as it is stored.
    first: the row of its first vector."""
    row = int((~torch.isfinite(numbers)).any(1).nonzero()[0])
    value = float(block[row][~torch.isfinite(numbers[row])][0])
    if math.isfinite(value):
        raise InputError(f"row {first + row} of {path} holds {value:g}, and float16 ends at 65504; "
                         "write it in float32")
    raise InputError(f"row {first + row} of {path} holds {value}; every number of a vector has to "
                     "be finite, so embed that item again")


class Flat:
    """N vectors of K numbers in an .npy file, mapped and never read whole. Pages that were read are
    released at times, so that little of the file counts as memory of the process; the system may
    cache it. Threads may share one object.

    Raises InputError on other files."""

    def __init__(self, path: str):
        array = read_array(path, AGAIN)
        if array.ndim != 2 or array.dtype not in (np.float16, np.float32):
            raise InputError(f"{path} holds {array.dtype} of shape {array.shape} and no vectors; "
                             f"{AGAIN}")
        self.path, self.mapping, (self.n, self.k) = path, array.base, array.shape
        # torch warns of memory that cannot be written, and none is.
        with warnings.catch_warnings(action="ignore"):
            self.data = torch.from_numpy(array)
        self.unreturned = 0

    def release(self, n_bytes: int) -> None:
        """Count what was read, and release the pages of the file once they are many; of a small
        file they never are."""
        self.unreturned += n_bytes
        if self.unreturned > RELEASED and self.data.nbytes > RELEASED:
            self.mapping.madvise(mmap.MADV_DONTNEED)
            self.unreturned = 0

    def rows(self, index) -> Tensor:
        """The vectors of the rows `index` (m,) int64: (m, K) float32."""
        vectors = self.data[torch.as_tensor(index, dtype=torch.int64)].float()      # (m, K), a copy
        self.release(len(vectors) * max(FAULT, self.data.element_size() * self.k))
        return vectors

    def products(self, queries, block: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Inner products of queries (Q, K) with all vectors: yields (start, scores (Q, b) float32)
        for the rows start .. start + b - 1, b at most `block`. Raises InputError where a product is
        not finite."""
        queries = torch.as_tensor(queries, dtype=torch.float32)
        step = max(1, min(block, CONVERTED // (4 * self.k)))
        piece = torch.empty(step, self.k)
        for start in range(0, self.n, block):
            vectors = self.data[start:start + block]
            scores = torch.empty(len(queries), len(vectors))
            for part, out in zip(vectors.split(step), scores.split(step, 1)):
                if part.dtype == torch.float16:
                    part = piece[:len(part)].copy_(part)    # converted in a cache
                torch.mm(queries, part.T, out=out)
            self.release(vectors.nbytes)
            if not torch.isfinite(scores.sum()) and not torch.isfinite(scores).all():
                row = start + int((~torch.isfinite(scores)).any(0).nonzero()[0])
                raise InputError(f"row {row} of {self.path} and a query have a product that is not "
                                 f"finite; one of them holds a number that is not; {AGAIN}")
            yield start, scores


def top_of(products: Iterable[tuple[int, Tensor]], top: int) -> tuple[Tensor, Tensor]:
    """The best of blocks (start, scores (Q, b)): scores (Q, t) float32, falling, and their rows (Q,
    t) int64, t = `top`, or the number of all rows where that is less."""
    best, rows = None, None
    for start, scores in products:
        more, columns = scores.topk(min(top, scores.shape[1]), 1)
        if best is None:
            best, rows = more, columns + start
            continue
        both = torch.cat([best, more], 1)
        best, place = both.topk(min(top, both.shape[1]), 1)
        rows = torch.cat([rows, columns + start], 1).gather(1, place)
    return best, rows


# ---- short vectors that propose

def equal_norms(vectors: np.ndarray, square: float) -> np.ndarray:
    """Vectors of the squared norm `square`: (n, d) -> (n, d + 1), with a last number sqrt(square -
    |x|^2), 0 for longer ones. Beside a 0 in the query products stay as they are, and the largest is
    that of the nearest neighbour (Bachrach et al., RecSys 2014). FAISS found more so than by inner
    products (inverted file, 8 of 128 lists: 82 percent of the true best 10 against 71), and a graph
    of Milvus 98 percent against 1 (docs/search-at-scale.md)."""
    last = np.sqrt(np.maximum(square - np.square(vectors).sum(1, keepdims=True), 0))
    return np.concatenate([vectors, last], 1)


class Tuned(NamedTuple):
    """The least effort that was found to reach a recall."""
    effort: int                       # efSearch of hnsw, nprobe of ivfpq
    depth: int                        # candidates to score exactly
    recall10: float                   # share of the best ten that is among the candidates, 0..1


def faiss_module():
    """FAISS. Raises InputError where it is not installed."""
    try:
        import faiss  # an optional package
    except ImportError as error:
        raise InputError(f"approximate search needs FAISS ({reason(error)}); install it with pip "
                         "install -r requirements-search.txt, or compare all vectors (flat)"
                         ) from error
    return faiss


class Projection(NamedTuple):
    """What makes vectors (N, K) short, so that their nearest neighbours are those of the largest
    inner products."""
    mean: Tensor                  # (K,)
    to_rows: Tensor               # (K, d), d = SHORT - 1; the last columns are zero where K is less
    to_queries: Tensor            # (K, d)
    square: float                 # M^2, the squared norm of all short vectors

    @classmethod
    def learn(cls, vectors: Tensor, queries: Tensor) -> "Projection":
        """From some vectors (n, K) and queries (m, K). float64, as the variances span many orders
        of magnitude."""
        mean, k = vectors.mean(0), vectors.shape[1]
        values, axes = torch.linalg.eigh((queries.T @ queries).double() / len(queries))
        spread = float(queries.var(0, correction=0).sum()) / k or float(values.mean()) or 1.0
        scale = values.clamp(min=FLOOR * spread).sqrt()     # axes * scale: a root of E[q q^T]
        centred = vectors - mean
        moments = axes.T @ (centred.T @ centred).double() @ axes                    # (K, K)
        _, first = torch.linalg.eigh(moments * scale * scale[:, None])
        first = first.flip(1)[:, :SHORT - 1]                                        # (K, d)
        to_rows, to_queries = (F.pad((axes @ x).float(), (0, SHORT - 1 - x.shape[1]))
                               for x in (first * scale[:, None], first / scale[:, None]))
        longest = float((centred @ to_rows).square().sum(1).max())
        return cls(mean, to_rows, to_queries, ROOM * longest or 1.0)

    def rows(self, vectors: Tensor) -> np.ndarray:
        """(n, K) -> (n, d + 1), all of norm M; a vector that is longer keeps its length, and loses
        a little."""
        return equal_norms(((vectors - self.mean) @ self.to_rows).numpy(), self.square)

    def queries(self, queries: Tensor) -> np.ndarray:
        """(Q, K) -> (Q, d + 1). The length of a query changes no order."""
        short = F.normalize(queries @ self.to_queries, dim=1) * (FAR * self.square ** 0.5)
        return F.pad(short, (0, 1)).numpy()


class Approximate:
    """An index over the vectors of a Flat file, in memory; its file is read whole. A million
    vectors take about 450 MiB (hnsw) or 60 MiB (ivfpq), whatever K is.

    FAISS checks less of what it reads than is checked here: open only files that you or those you
    trust have made.
    """

    def __init__(self, index, method: str, projection: Projection, tuned: Tuned | None = None):
        self.index, self.method, self.projection, self.tuned = index, method, projection, tuned

    @classmethod
    def open(cls, path: str) -> "Approximate":
        """Raises InputError on other files and damaged ones."""
        faiss, arrays = faiss_module(), read_arrays(path, AGAIN)
        try:
            mean, to_rows, to_queries = (torch.from_numpy(arrays[name]).float()
                                         for name in ("mean", "to_rows", "to_queries"))
            index = faiss.deserialize_index(arrays["faiss"])
            method = {faiss.IndexHNSWSQ: "hnsw", faiss.IndexIVFPQ: "ivfpq"}[type(index)]
            if (index.d != to_rows.shape[1] + 1 or to_rows.shape != to_queries.shape
                    or len(mean) != len(to_rows)):
                raise ValueError("its parts do not fit each other")
            effort, depth, recall = arrays["tuned"].tolist()
            projection = Projection(mean, to_rows, to_queries, float(arrays["square"]))
            return cls(index, method, projection, Tuned(int(effort), int(depth), recall))
        except FAULTS as error:
            raise InputError(f"{path} is not a whole approximate index ({reason(error)}); {AGAIN}"
                             ) from error

    def save(self, path: str) -> None:
        """Write the index, once it is tuned, to a file, whole or not at all."""
        arrays = {name: np.asarray(x) for name, x in self.projection._asdict().items()}
        save_arrays(path, {**arrays, "faiss": faiss_module().serialize_index(self.index),
                           "tuned": np.array(self.tuned, np.float64)})

    def add(self, flat: Flat) -> None:
        """Take in the vectors that stand in `flat` behind those it holds: row n of the file is row
        n here. The projection stays as it was learned."""
        before = self.index.ntotal
        with tqdm(total=flat.n - before, desc=self.method, disable=None, leave=False) as bar:
            for start in range(before, flat.n, CHUNK):
                rows = np.arange(start, min(start + CHUNK, flat.n))
                self.index.add(short_rows(self.projection, flat, rows))
                bar.update(len(rows))

    def candidates(self, queries, r: int, effort: int | None = None) -> np.ndarray:
        """Rows of vectors that may have the largest inner products with queries (Q, K): (Q, r)
        int64, the best by their short vectors first; -1 where there are fewer. effort: as tuned
        unless given, and more where it would find less than an r beyond the tuned depth."""
        faiss = faiss_module()
        short = self.projection.queries(torch.as_tensor(queries, dtype=torch.float32))
        enough = bool(effort or self.tuned and r <= self.tuned.depth)
        effort = effort or (self.tuned.effort if self.tuned else EFFORTS[self.method][3])
        if self.method == "hnsw":
            settings = faiss.SearchParametersHNSW(efSearch=max(effort, r))
            return self.index.search(short, r, params=settings)[1]
        while True:
            lists = min(effort, self.index.nlist)
            settings = faiss.SearchParametersIVF(nprobe=lists)
            rows = self.index.search(short, r, params=settings)[1]
            if enough or lists == self.index.nlist or (rows >= 0).all():
                return rows
            effort *= 2

    def tune(self, flat: Flat, queries, target: float = 0.98) -> Tuned:
        """Choose the least effort, and then the least depth, at which `target` of the true best ten
        of `queries` (Q, K) are among the candidates, by two standard errors: other queries should
        reach it, too. Where none is enough, the largest are taken, and the recall says so. What was
        chosen is kept; `save` stores it.

        The queries should be real captions that `build` was not given: captions lie elsewhere than
        photos do, and photos that stand for captions are found with less effort. """
        queries = torch.as_tensor(queries, dtype=torch.float32)
        best = top_of(flat.products(queries), 10)[1].numpy()                        # (Q, 10)
        depths = DEPTHS[:1 + sum(depth < flat.n for depth in DEPTHS)]      # rising
        for effort in EFFORTS[self.method]:
            most = depths[-1]
            if self.method == "hnsw":                       # efSearch >= r
                most = min(most, max(effort, DEPTHS[0]))
            rows = self.candidates(queries, most, effort)
            for depth in [d for d in depths if d <= rows.shape[1]]:
                hits = (best[:, :, None] == rows[:, None, :depth]).any(2)           # (Q, 10)
                self.tuned = Tuned(effort, depth, float(hits.mean()))
                if self.tuned.recall10 - 2 * hits.mean(1).std() / len(queries) ** 0.5 >= target:
                    return self.tuned
        return self.tuned


def build(flat: Flat, method: str, queries, seed: int = 0) -> Approximate:
    """An index over all vectors of a file, to be tuned and saved.

    queries (Q, K): some hundreds of queries or more, to learn what scores depend on. Captions are
    best; photos that are lifted as captions do almost as well for this, but not for `tune`. Raises
    InputError where ivfpq has too little to learn from. """
    faiss = faiss_module()
    if method == "ivfpq" and flat.n < LEAST:
        raise InputError(f"ivfpq learns its codes from at least {LEAST:,} vectors, and there are "
                         f"{flat.n:,}; compare all of them (flat), or take hnsw")
    rng, queries = np.random.default_rng(seed), torch.as_tensor(queries, dtype=torch.float32)
    some = torch.from_numpy(rng.permutation(len(queries))[:DRAWN])
    projection = Projection.learn(flat.rows(some_rows(rng, flat.n, DRAWN)), queries[some])
    if method == "hnsw":
        index = faiss.IndexHNSWSQ(SHORT, faiss.ScalarQuantizer.QT_fp16, LINKS)
        index.hnsw.efConstruction = BREADTH
        index.train(np.zeros((1, SHORT), np.float32))       # float16 learns nothing
    else:
        lists = 2 ** round(math.log2(min(8 * flat.n ** 0.5, flat.n / PER_LIST)))
        index = faiss.index_factory(SHORT, f"IVF{lists},PQ{SHORT // 2}")
        index.do_polysemous_training = False  # it serves Hamming distances, and takes minutes
        index.by_residual = False  # else every list that is read needs a table of its own
        for of in (index.cp, index.pq.cp):
            # FAISS warns where fewer points come for a centroid than the last of these says.
            of.niter, of.seed, of.min_points_per_centroid = ROUNDS, seed + 1, 1
        index.train(short_rows(projection, flat, some_rows(rng, flat.n, PER_LIST * lists)))
    result = Approximate(index, method, projection)
    result.add(flat)
    return result


def short_rows(projection: Projection, flat: Flat, rows: np.ndarray) -> np.ndarray:
    """The short vectors (n, d + 1) of rows (n,) of a file, of which few are whole at a time."""
    parts = np.array_split(rows, -(-len(rows) // WHOLE))
    return np.concatenate([projection.rows(flat.rows(part)) for part in parts])


def some_rows(rng: np.random.Generator, n: int, most: int) -> np.ndarray:
    """Rows of a file of n, at most `most`, drawn at random and in order."""
    return np.sort(rng.choice(n, min(n, most), replace=False))
