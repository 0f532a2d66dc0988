"""Approximate search by inner product: an index of short vectors proposes rows of a file, and the caller scores these.

A lifted Gaussian has thousands of numbers, but the scores of photos differ in few directions. What counts is how far
two photos differ in the scores that queries give them, E_q[(q . (x - y))^2] = (x - y)^T C (x - y) with C = E[q q^T].
So vectors are centred, multiplied by C^1/2 and projected on their first 95 principal directions; queries are
multiplied by C^-1/2, which keeps all products. On Gaussians of Flickr8k (--sim wasserstein, K = 1,025), the best 50 of
63 such numbers hold the true best 10 in 100.0 percent, those of 64 plain principal components in 91 percent.

The largest inner product is the nearest neighbour once vectors have equal norms: a last number sqrt(M^2 - |x|^2) is
added (Bachrach et al., RecSys 2014). It found more than FAISS's inner products did (inverted file, 8 of 128 lists read:
82 percent of the true best 10 against 71).
"""
import contextlib
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from cli import InputError, reason
from files.reading import FAULTS, read_arrays
from files.writing import save_arrays
from retrieval.flat import Flat, top_of

SHORT = 96                            # numbers in a short vector, the last of which evens out the norms
DRAWN = 10000                         # vectors and queries that the projection is learned from
FLOOR = 0.001                         # share of the average variance of queries that every direction is given
ROOM = 4                              # M^2 as a multiple of the largest |x|^2 of those drawn, as longer ones may come
FAR = 10                              # |q| / M; the nearest lists of an inverted file are best if q is far
CHUNK = 1 << 16                       # vectors that are added at once
WHOLE = 2048                          # vectors that are read at once
LINKS, BREADTH = 32, 100              # of each vector in the graph (M); candidates for them (efConstruction)
PER_LIST, ROUNDS = 40, 10             # vectors that k-means is run on, for each list; its rounds
LEAST = 1000                          # vectors that codes can be learned from
EFFORTS = {"hnsw": (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072),
           "ivfpq": (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)}
DEPTHS = (20, 35, 50, 70, 100, 140, 200)              # candidates that are scored exactly; each is read from the disk
AGAIN = "build the index again"


class Tuned(NamedTuple):
    """The least effort that was found to reach a recall."""
    effort: int                       # efSearch of hnsw, nprobe of ivfpq
    depth: int                        # candidates to score exactly
    recall1: float                    # share of the queries whose best photo is among the candidates, 0..1
    recall10: float                   # share of the best ten that is among them, 0..1
    queries: int                      # how many were tried


def faiss_module():
    """FAISS. Raises InputError where it is not installed."""
    try:
        import faiss  # an optional package
    except ImportError as error:
        raise InputError(f"approximate search needs FAISS ({reason(error)}); install it with pip install -r "
                         "requirements-search.txt, or compare all vectors (flat)") from error
    return faiss


@contextlib.contextmanager
def threads_of(faiss, threads: int):
    """A context in which FAISS works with so many threads; 0: as many as it took before."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class Projection:
    """Short vectors whose nearest neighbours are the vectors (N, K) of the largest inner products.

    mean (K,); to_rows, to_queries (K, d), d = SHORT - 1, whose last columns are zero where K is less; square: M^2, the
    squared norm of all short vectors.
    """

    def __init__(self, mean: Tensor, to_rows: Tensor, to_queries: Tensor, square: float):
        self.mean, self.to_rows, self.to_queries, self.square = mean, to_rows, to_queries, square

    @classmethod
    def learn(cls, vectors: Tensor, queries: Tensor) -> "Projection":
        """From some vectors (n, K) and queries (m, K). float64, as the variances span many orders of magnitude."""
        mean, k = vectors.mean(0), vectors.shape[1]
        values, axes = torch.linalg.eigh((queries.T @ queries).double() / len(queries))
        spread = float(queries.var(0, correction=0).sum()) / k or float(values.mean()) or 1.0
        scale = values.clamp(min=FLOOR * spread).sqrt()     # axes * scale: a root of E[q q^T]
        centred = vectors - mean
        moments = axes.T @ (centred.T @ centred).double() @ axes                    # (K, K)
        first = torch.linalg.eigh(moments * scale * scale[:, None])[1].flip(1)[:, :SHORT - 1]      # (K, d)
        to_rows, to_queries = (F.pad((axes @ x).float(), (0, SHORT - 1 - x.shape[1]))
                               for x in (first * scale[:, None], first / scale[:, None]))
        longest = float((centred @ to_rows).square().sum(1).max())
        return cls(mean, to_rows, to_queries, ROOM * longest or 1.0)

    def rows(self, vectors: Tensor) -> np.ndarray:
        """(n, K) -> (n, d + 1), all of norm M; a vector that is longer keeps its length, and loses a little."""
        short = (vectors - self.mean) @ self.to_rows
        last = (self.square - short.square().sum(1)).clamp(min=0).sqrt()
        return torch.cat([short, last[:, None]], 1).numpy()

    def queries(self, queries: Tensor) -> np.ndarray:
        """(Q, K) -> (Q, d + 1). The length of a query changes no order."""
        short = F.normalize(queries @ self.to_queries, dim=1) * (FAR * self.square ** 0.5)
        return F.pad(short, (0, 1)).numpy()


class Approximate:
    """An index over the vectors of a Flat file, in memory; its file is read whole. A million vectors take about 450 MiB
    (hnsw) or 60 MiB (ivfpq), whatever K is. Raises InputError on other files and damaged ones.

    FAISS checks less of what it reads than is checked here: open only files that you or those you trust have made.
    """

    def __init__(self, path: str):
        faiss, arrays = faiss_module(), read_arrays(path, AGAIN)
        try:
            mean, to_rows, to_queries = (torch.from_numpy(arrays[name]).float()
                                         for name in ("mean", "to_rows", "to_queries"))
            index = faiss.deserialize_index(arrays["faiss"])
            self.method = {faiss.IndexHNSWSQ: "hnsw", faiss.IndexIVFPQ: "ivfpq"}[type(index)]
            if index.d != to_rows.shape[1] + 1 or to_rows.shape != to_queries.shape or len(mean) != len(to_rows):
                raise ValueError("its parts do not fit each other")
            self.index, self.tuned = index, None
            self.projection = Projection(mean, to_rows, to_queries, float(arrays["square"]))
            if "tuned" in arrays:
                effort, depth, recall1, recall10, tried = arrays["tuned"].tolist()
                self.tuned = Tuned(int(effort), int(depth), recall1, recall10, int(tried))
        except FAULTS as error:
            raise InputError(f"{path} is not a whole approximate index ({reason(error)}); {AGAIN}") from error

    @property
    def n(self) -> int:
        """How many vectors it holds."""
        return self.index.ntotal

    def save(self, path: str) -> None:
        """Write the index to a file, whole or not at all."""
        save(path, self.index, self.projection, self.tuned)

    def add(self, flat: Flat, threads: int = 0) -> None:
        """Take in the vectors that stand in `flat` behind those it holds: row n of the file is row n here. The
        projection stays as it was learned."""
        with threads_of(faiss_module(), threads):
            fill(self.index, self.projection, flat, self.method)

    def candidates(self, queries, r: int, effort: int | None = None) -> np.ndarray:
        """Rows of vectors that may have the largest inner products with queries (Q, K): (Q, r) int64, the best by
        their short vectors first; -1 where there are fewer. effort: as tuned unless given, and more where it would
        find less than an r beyond the tuned depth."""
        faiss = faiss_module()
        short = self.projection.queries(torch.as_tensor(queries, dtype=torch.float32))
        enough = bool(effort or self.tuned and r <= self.tuned.depth)
        effort = effort or (self.tuned.effort if self.tuned else EFFORTS[self.method][3])
        if self.method == "hnsw":
            return self.index.search(short, r, params=faiss.SearchParametersHNSW(efSearch=max(effort, r)))[1]
        while True:
            lists = min(effort, self.index.nlist)
            rows = self.index.search(short, r, params=faiss.SearchParametersIVF(nprobe=lists))[1]
            if enough or lists == self.index.nlist or (rows >= 0).all():
                return rows
            effort *= 2

    def tune(self, flat: Flat, queries, target: float = 0.98) -> Tuned:
        """Choose the least effort, and then the least depth, at which `target` of the true best ten of `queries` (Q, K)
        are among the candidates, by two standard errors: other queries should reach it, too. Where none is
        enough, the largest are taken, and the recall says so. What was chosen is kept; `save` stores it.

        The queries should be real captions that `build` was not given: captions lie elsewhere than photos do, and
        photos that stand for captions are found with less effort.
        """
        queries = torch.as_tensor(queries, dtype=torch.float32)
        best = top_of(flat.products(queries), 10)[1].numpy()                        # (Q, 10)
        depths = [depth for depth in DEPTHS if depth < flat.n] + [d for d in DEPTHS if d >= flat.n][:1]
        for effort in EFFORTS[self.method]:
            most = min(max(depths), max(effort, DEPTHS[0])) if self.method == "hnsw" else max(depths)   # efSearch >= r
            rows = self.candidates(queries, most, effort)
            for depth in [d for d in depths if d <= rows.shape[1]]:
                found = (best[:, :, None] == rows[:, None, :depth]).any(2)          # (Q, 10)
                self.tuned = Tuned(effort, depth, float(found[:, 0].mean()), float(found.mean()), len(queries))
                if self.tuned.recall10 - 2 * found.mean(1).std() / len(queries) ** 0.5 >= target:
                    return self.tuned
        return self.tuned


def build(flat: Flat, method: str, path: str, queries, threads: int = 0, seed: int = 0) -> Approximate:
    """Write an index over all vectors of a file, and open it; it is to be tuned and saved again.

    queries (Q, K): some hundreds of queries or more, to learn what scores depend on. Captions are best; photos that are
    lifted as captions do almost as well for this, but not for `tune`. Raises InputError where ivfpq has too little to
    learn from.
    """
    faiss = faiss_module()
    if method == "ivfpq" and flat.n < LEAST:
        raise InputError(f"ivfpq learns its codes from at least {LEAST:,} vectors, and there are {flat.n:,}; compare "
                         "all of them (flat), or take hnsw")
    rng, queries = np.random.default_rng(seed), torch.as_tensor(queries, dtype=torch.float32)
    asked = torch.from_numpy(rng.permutation(len(queries))[:DRAWN])
    projection = Projection.learn(flat.rows(some_rows(rng, flat.n, DRAWN)), queries[asked])
    with threads_of(faiss, threads):
        if method == "hnsw":
            index = faiss.IndexHNSWSQ(SHORT, faiss.ScalarQuantizer.QT_fp16, LINKS)
            index.hnsw.efConstruction = BREADTH
            index.train(np.zeros((1, SHORT), np.float32))   # float16 learns nothing
        else:
            lists = 2 ** round(math.log2(min(8 * flat.n ** 0.5, flat.n / PER_LIST)))
            index = faiss.index_factory(SHORT, f"IVF{lists},PQ{SHORT // 2}")
            index.do_polysemous_training = False            # it serves Hamming distances, and takes minutes
            index.by_residual = False                       # else every list that is read needs a table of its own
            index.cp.niter = index.pq.cp.niter = ROUNDS
            index.cp.seed = index.pq.cp.seed = seed + 1
            index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1      # or it warns
            index.train(short_rows(projection, flat, some_rows(rng, flat.n, PER_LIST * lists)))
        fill(index, projection, flat, method)
    save(path, index, projection, None)
    return Approximate(path)


def fill(index, projection: Projection, flat: Flat, title: str) -> None:
    """Add the vectors of a file that stand behind those which an index holds."""
    with tqdm(total=flat.n - index.ntotal, desc=title, disable=None, leave=False) as bar:
        for start in range(index.ntotal, flat.n, CHUNK):
            rows = np.arange(start, min(start + CHUNK, flat.n))
            index.add(short_rows(projection, flat, rows))
            bar.update(len(rows))


def short_rows(projection: Projection, flat: Flat, rows: np.ndarray) -> np.ndarray:
    """The short vectors (n, d + 1) of rows (n,) of a file, of which few are whole at a time."""
    return np.concatenate([projection.rows(flat.rows(some)) for some in np.array_split(rows, -(-len(rows) // WHOLE))])


def save(path: str, index, projection: Projection, tuned: Tuned | None) -> None:
    arrays = {"faiss": faiss_module().serialize_index(index), "mean": projection.mean.numpy(),
              "to_rows": projection.to_rows.numpy(), "to_queries": projection.to_queries.numpy(),
              "square": np.array(projection.square)}
    save_arrays(path, arrays | ({} if tuned is None else {"tuned": np.array(tuned, np.float64)}))


def some_rows(rng: np.random.Generator, n: int, most: int) -> np.ndarray:
    """Rows of a file of n, at most `most`, drawn at random and in order."""
    return np.sort(rng.choice(n, min(n, most), replace=False))


def rescored(flat: Flat, queries, rows: np.ndarray) -> Tensor:
    """Exact products of queries (Q, K) with the vectors of their candidates `rows` (Q, r): (Q, r), -inf for row -1."""
    queries, step = torch.as_tensor(queries, dtype=torch.float32), max(1, WHOLE // max(1, rows.shape[1]))
    wanted = torch.from_numpy(rows).clamp(min=0)
    products = [torch.bmm(flat.rows(of.flatten()).view(*of.shape, flat.k), query[:, :, None])[:, :, 0]
                for query, of in zip(queries.split(step), wanted.split(step))]
    return torch.cat(products).masked_fill_(torch.from_numpy(rows < 0), -torch.inf)
