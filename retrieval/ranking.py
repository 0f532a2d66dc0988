"""Ranks the photos of an index for queries: all of them, or those that an approximate index proposes."""
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retrieval.trust import Trust
from retrieval.vectors import Asked, LiftedVectors, WholeVectors

SCORES = 2 ** 26                      # scores that are held at a time, 256 MiB
# Photos whose vectors have a cosine above this are one photo: a file that is there twice, or that was hardly changed.
# Of 900 photos of Flickr8k no two are as near by any of four similarities (cosine 0.87, wasserstein 0.90, mls 0.92, kl
# 0.979 at most), nor are two of the demo's 1,900 scenes (0.956).
ALIKE = 0.98


class Ranking(NamedTuple):
    """The best photos of Q queries."""
    rows: np.ndarray                  # (Q, top) int64, the best first; -1 where there are fewer
    scores: Tensor                    # (Q, top)
    log_total: Tensor | None          # (Q,) log sum_j exp(T s_j) over the gallery; None without a temperature
    in_set: Tensor | None             # (Q,) how many photos have -log p up to the limit of the sets


class Ranker:
    """The photos of an engine (`index.Engine`, `cluster.ClusterIndex`), compared by `vectors`.

    bank: (N,) what a query bank takes from the scores, where it does not lie in the vectors.
    """

    def __init__(self, vectors: LiftedVectors | WholeVectors, engine, count: int, bank: Tensor | None = None):
        self.vectors, self.engine, self.count, self.bank = vectors, engine, count, bank

    @torch.no_grad()
    def rank(self, asked: Asked, top: int, trust: Trust | None = None) -> Ranking:
        """The best `top` photos of every query, by exact scores of all photos or of the candidates of the index."""
        rank = self.rank_all if self.engine.exact else self.rank_candidates
        step = max(1, SCORES // self.count)
        parts = [rank(asked.rows(slice(q, q + step)), min(top, self.count), trust)
                 for q in range(0, len(asked.embedding.mean), step)]
        rows, *fields = zip(*parts)
        return Ranking(np.concatenate(rows), *(None if x[0] is None else torch.cat(x) for x in fields))

    def rank_all(self, asked: Asked, top: int, trust: Trust | None) -> Ranking:
        scores = self.all_scores(asked)                                             # (Q, N)
        best = scores.topk(top, dim=1)
        total, held = None, None
        if trust is not None:
            logits = trust.temperature * scores.double()
            total = logits.logsumexp(1)
            if trust.limit is not None:
                held = (total[:, None] - logits <= trust.limit).sum(1)
        return Ranking(best.indices.numpy(), best.values, total, held)

    def all_scores(self, asked: Asked) -> Tensor:
        """Scores (Q, N) of all photos."""
        engine, scores = self.engine, torch.empty(len(asked.embedding.mean), self.count)
        if isinstance(self.vectors, LiftedVectors):
            for start, products in engine.products(asked.vectors):
                scores[:, start:start + products[0].shape[1]] = self.vectors.scores(products, asked)
        else:
            for start, block in engine.blocks():
                here = slice(start, start + len(block.vectors[0]))
                scores[:, here] = self.vectors.scores(block.vectors[0], asked, block.rest)
        return scores if self.bank is None else scores - self.bank

    def rank_candidates(self, asked: Asked, top: int, trust: Trust | None) -> Ranking:
        engine = self.engine
        proposed = engine.candidates(asked.vectors, max(top, engine.depth))         # (Q, R)
        sample = engine.sample() if trust is not None else None
        parts = [self.rank_some(asked.rows(slice(q, q + 1)), np.unique(rows[rows >= 0]), top, trust, sample)
                 for q, rows in enumerate(proposed)]
        rows, *fields = zip(*parts)
        return Ranking(np.stack(rows), *(None if x[0] is None else torch.stack(x) for x in fields))

    def rank_some(self, asked: Asked, rows: np.ndarray, top: int, trust: Trust | None, sample) -> Ranking:
        """The ranking of one query among the photos `rows` (R,), without the axis of queries. A sum over the gallery,
        and the size of a set, is that of these photos, and of a random sample of the others times how many of them each
        stands for."""
        scores = self.scores_of(asked, rows, self.engine.fetch(rows))         # (R,)
        best = scores.topk(min(top, len(rows)))
        found = np.full(top, -1)
        found[:len(best.indices)] = rows[best.indices.numpy()]
        values = torch.full((top,), -math.inf)
        values[:len(best.values)] = best.values
        total, held = None, None
        if trust is not None:
            logits = trust.temperature * scores.double()
            total = logits.logsumexp(0)
            drawn, block = sample
            others = ~np.isin(drawn, rows)
            rest = trust.temperature * self.scores_of(asked, drawn, block)[torch.from_numpy(others)].double()
            stands = (self.count - len(rows)) / max(1, others.sum())                # each for so many
            if len(rest):
                total = torch.logaddexp(total, rest.logsumexp(0) + math.log(stands))
            if trust.limit is not None:
                held = (total - logits <= trust.limit).sum() + torch.round(stands * (total - rest <= trust.limit).sum())
        return Ranking(found, values, total, held)

    def copies(self, rows: np.ndarray) -> np.ndarray:
        """Which of the photos `rows` (R,) are copies of the first of them, as that itself is: (R,) bool."""
        x = self.engine.fetch(rows).vectors[0]                                      # (R, K)
        return (torch.cosine_similarity(x, x[:1]) > ALIKE).index_fill(0, torch.tensor([0]), True).numpy()

    def scores_of(self, asked: Asked, rows: np.ndarray, block) -> Tensor:
        """Exact scores (n,) of one query and the photos of a Block, which are `rows` (n,) of the index."""
        if isinstance(self.vectors, LiftedVectors):
            products = [query @ x.T for query, x in zip(asked.vectors, block.vectors)]
            scores = self.vectors.scores(products, asked)[0]
        else:
            scores = self.vectors.scores(block.vectors[0], asked, block.rest)[0]
        return scores if self.bank is None else scores - self.bank[torch.from_numpy(rows)]
