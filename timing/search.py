"""Speed, memory and recall of search in many Gaussians: what benchmark.py's part `search` measures.

The Gaussians are drawn, D = 1,024, so that they search like real ones. Of embeddings that were
trained with --sim wasserstein on Flickr8k (D = 512; 6,500 images, and 2,500 captions of images that
the training did not see) these were measured: the dimensions that hold 50, 80, 90 and 95 percent of
the variance, which are 16, 45, 88 and 164 of the means and 6, 21, 39 and 72 of the log-variances;
the standard deviation of a log-variance, .09; and the recall@10 of an inverted file of 128 lists,
which is .31, .65 and .93 when 1, 4 and 16 lists are read. Drawn so, with D = 512, the dimensions
are 14, 51, 97 and 160, and 6, 19, 38 and 83; the recall is .16, .42 and .80: these are harder to
find.
"""
import os
import tempfile
import time
from functools import partial

import numpy as np
import torch
from torch import Tensor

from retrieval.engines import CONVERTED, WHOLE, Flat, build, top_of, writing
from retrieval.ranking import LiftedVectors
from similarities import SIMILARITIES, Embedding, unit
from timing import AT_LEAST, MIB, Setting, in_fresh_process, line, race, resident

DIM, LATENT = 1024, 256
TOP = 10
ASKED = (1, 16, 256)                  # queries that are searched for at once, exactly
# Captions that the projection, the effort and the recall are taken from.
LEARNED, TUNED, TRIED = 4000, 1000, 1000
TOGETHER = 64                         # queries that candidates are sought for at once
MANY = 300_000                        # vectors from which on fewer queries a second are expected
CLUSTERS, WITHIN = 2000, 0.5          # WITHIN: share of the latent variance that is within clusters
DECAY, FLAT_UP_TO = 1.8, 12           # the variance of latent dimension i is (i + 12) ** -1.8
NOISE = 0.05                          # share of the variance that is the same in all dimensions
CAPTION_NOISE = 0.4             # share of a caption's latent variance that is not that of its image
SPREAD = 0.09                         # standard deviation of a log-variance


class Drawn:
    """Draws images and captions from one latent space of clusters, mapped up to the dimensions of
    the embedding."""

    def __init__(self, seed: int):
        self.generator, self.dim = torch.Generator().manual_seed(seed), DIM
        self.scale = (torch.arange(LATENT) + FLAT_UP_TO).float().pow(-DECAY / 2)    # (L,)
        origin = Embedding(torch.zeros(1, DIM), torch.zeros(1, DIM))
        self.vectors = LiftedVectors(SIMILARITIES["wasserstein"](), origin, half=True)
        self.centres = self.normal(CLUSTERS, LATENT)
        self.to_mean, self.to_log_var = (self.normal(LATENT, DIM) / DIM ** 0.5 for _ in range(2))
        # Other latent dimensions lead in the log-variances.
        self.turn = self.normal(LATENT, LATENT) / LATENT ** 0.5

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def embed(self, latent: Tensor) -> Embedding:
        """Latent vectors (N, L) as Gaussians."""
        scales = self.scale, self.scale ** 1.5             # the log-variances fill fewer dimensions
        parts = [(x * (scale / scale.norm())) @ up for x, scale, up in zip(
            (latent, latent @ self.turn), scales, (self.to_mean, self.to_log_var))]
        parts = [x.add_(self.normal(len(x), self.dim), alpha=(NOISE / self.dim) ** 0.5)
                 for x in parts]
        return Embedding(unit(parts[0]), parts[1] * (SPREAD * self.dim ** 0.5))

    def latent(self, n: int) -> Tensor:
        cluster = torch.randint(CLUSTERS, (n,), generator=self.generator)
        return self.centres[cluster] * (1 - WITHIN) ** 0.5 + self.normal(n, LATENT) * WITHIN ** 0.5

    def images(self, n: int) -> Tensor:
        """Vectors (n, 2 D + 4) of images for the Wasserstein distance, as search.py keeps them in
        float16."""
        return self.vectors.images(self.embed(self.latent(n)))[0][0]

    def captions(self, n: int) -> Tensor:
        """Vectors (n, 2 D + 4) of captions, each of an image that is in no index."""
        noisy = (self.latent(n) * (1 - CAPTION_NOISE) ** 0.5
                 + self.normal(n, LATENT) * CAPTION_NOISE ** 0.5)
        return self.vectors.queries(self.embed(noisy)).vectors[0]

    def blocks(self, n: int, block: int = 8192):
        """n lifted images in blocks."""
        return (self.images(min(block, n - start)) for start in range(0, n, block))


def written(path: str, n: int, seed: int) -> tuple[float, float]:
    """Write n lifted images to a float16 file. Returns seconds, drawing them included, and the peak
    memory in MiB."""
    start, source = time.perf_counter(), Drawn(seed)
    with writing(path, n, 2 * DIM + 4, half=True) as write:
        for block in source.blocks(n):
            write(block)
    return time.perf_counter() - start, resident("VmHWM") / MIB


def bare(flat: Flat, queries: Tensor) -> None:
    """The products of queries (Q, K) with all vectors of a file, and nothing else: what exact
    search cannot avoid."""
    step = max(1, CONVERTED // (4 * flat.k))
    for start in range(0, flat.n, step):
        queries @ flat.data[start:start + step].float().T


def rescored(flat: Flat, queries: Tensor, rows: np.ndarray) -> Tensor:
    """Exact products of queries (Q, K) with the vectors of their candidates `rows` (Q, r): (Q, r),
    -inf for row -1."""
    index, step = torch.from_numpy(rows), max(1, WHOLE // rows.shape[1])
    products = [torch.bmm(flat.rows(of.clamp(min=0).flatten()).view(*of.shape, flat.k),
                          query[:, :, None])[:, :, 0]
                for query, of in zip(queries.split(step), index.split(step))]
    return torch.cat(products).masked_fill_(index < 0, -torch.inf)


def answers(index, flat: Flat, queries: Tensor) -> np.ndarray:
    """The rows (Q, TOP) of the best of those that an approximate index proposes, scored exactly."""
    rows = index.candidates(queries, index.tuned.depth)
    best = rescored(flat, queries, rows).topk(min(TOP, rows.shape[1]), 1).indices.numpy()
    return np.take_along_axis(rows, best, 1)


def approximate_times(path: str, method: str, queries: Tensor, best: np.ndarray,
                      seed: int) -> dict[str, float]:
    """What an approximate index over a file costs and finds. best (TRIED, TOP): true answers of the
    last queries."""
    flat, file = Flat(path), f"{path}.{method}"
    start = time.perf_counter()
    index = build(flat, method, queries[:LEARNED], seed=seed)
    built = time.perf_counter()
    index.tune(flat, queries[LEARNED:LEARNED + TUNED], AT_LEAST["recall"])
    index.save(file)
    tuned, asked = time.perf_counter(), queries[LEARNED + TUNED:]
    rows = [answers(index, flat, some) for some in asked.split(TOGETHER)]           # also warms up
    start_again = time.perf_counter()
    for some in asked.split(TOGETHER):
        answers(index, flat, some)
    seconds = time.perf_counter() - start_again
    hits = (best[:, :, None] == np.concatenate(rows)[:, None]).any(2)
    return {"built": built - start, "tuned": tuned - built, "effort": index.tuned.effort,
            "depth": index.tuned.depth, "recall1": hits[:, 0].mean(), "recall10": hits.mean(),
            "rate": len(asked) / seconds, "file": os.path.getsize(file) / MIB,
            "peak": resident("VmHWM") / MIB}


def search(how: Setting) -> None:
    """Exact and approximate search among `size` images."""
    n, seed = how.size, how.seed
    print(f"\nsearch: {n:,} lifted Gaussians, 2 x {DIM:,} + 4 numbers each in float16, the file "
          "cached", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vectors.npy")
        seconds, memory = in_fresh_process(written, path, n, seed)
        line("drawing and writing the file, seconds", seconds, ".1f")
        line("drawing and writing the file, peak memory of the process, MiB", memory, ".0f",
             "search memory")
        # warm: pages that are mapped stay in the cache
        flat, warm, source = Flat(path), Flat(path), Drawn(seed)
        source.generator.manual_seed(seed + 1)             # other captions of the same latent space
        queries = source.captions(LEARNED + TUNED + TRIED)
        for q in ASKED:
            best = race({
                "bare": partial(bare, warm, queries[:q]),
                "exact": lambda q=q: top_of(flat.products(queries[:q]), TOP)}, how)
            line(f"exact, {q} queries at once: milliseconds a query", 1000 * best["exact"] / q,
                 ".2f")
            line(f"exact, {q} queries at once / the bare product", best["exact"] / best["bare"],
                 ".2f", "exact search")
        truth = top_of(flat.products(queries[LEARNED + TUNED:]), TOP)[1].numpy()
        for method in ("hnsw", "ivfpq"):
            of = in_fresh_process(approximate_times, path, method, queries, truth, seed)
            line(f"{method}: building, seconds", of["built"], ".1f")
            line(f"{method}: choosing the effort, seconds", of["tuned"], ".1f")
            line(f"{method}: size of its file, MiB", of["file"], ".0f")
            line(f"{method}: effort, with {of['depth']} candidates scored exactly", of["effort"],
                 ".0f")
            line(f"{method}: recall@1 of exact search, of other queries than were tuned on",
                 of["recall1"], ".3f")
            line(f"{method}: recall@10", of["recall10"], ".3f", "recall")
            line(f"{method}: queries a second, {TOGETHER} at once, candidates scored exactly",
                 of["rate"], ".0f", "search rate" if n < MANY else "search rate of many")
            line(f"{method}: peak memory of the process, building and searching, MiB", of["peak"],
                 ".0f", "search memory")
