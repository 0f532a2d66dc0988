"""Scores of pairs in blocks, for similarities that need several numbers of memory for each pair."""
import math

import torch
from torch import Tensor

from similarities import Embedding, Similarity, side_by_side, unit

ELEMENTS = {"cpu": 2 ** 18, "cuda": 2 ** 25}    # numbers in the largest temporary of a block: what a cache holds


def block_side(x: Tensor, per_pair: int) -> int:
    """Items on each side of a block of pairs, where a pair takes `per_pair` numbers of memory."""
    return max(1, math.isqrt(ELEMENTS.get(x.device.type, ELEMENTS["cuda"]) // per_pair))


def by_blocks(score, images: Tensor, captions, m: int, step: int) -> Tensor:
    """Scores (N, M) in blocks of at most step x step pairs. images (K, N, D); `captions` yields (L, p, D), p <= step, M
    in all; score: (K, n, D), (L, p, D) -> (n, p)."""
    pieces = images.split(step, 1)
    return side_by_side((torch.cat([score(x, y) for x in pieces]) for y in captions), m)


class PairNetwork(Similarity):
    """Log-odds of a match, any real number, from a network that reads each pair by itself.

    A subclass defines `widest`, the size of its widest layer; read(captions), what it reads of each caption, (M, C);
    and score(x, y), of unit means of images (..., D) and of what is read of captions (..., C) -> (...), broadcast.

    In training all pairs asked for are held at once, and BatchNorm sees them and no others. In evaluation it uses its
    running statistics, and blocks have bounded size.
    """
    logits, within_modality, implies = True, False, {"loss": "logistic"}
    widest: int

    def read(self, captions: Embedding) -> Tensor:
        raise NotImplementedError

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, images, captions):
        self.check(images, captions)
        x, y = unit(images.mean), self.read(captions)                               # (N, D), (M, C)
        if self.training:
            return self.score(x[:, None], y)                                        # (N, M)
        step = block_side(x, self.widest)
        return by_blocks(lambda a, b: self.score(a[0, :, None], b), x[None], y.split(step), len(y), step)

    def at(self, images, captions, rows, columns):
        self.check(images, captions)
        x, y = unit(images.mean), self.read(captions)                               # (N, D), (M, C)
        step = len(rows) if self.training else block_side(x, self.widest) ** 2
        return torch.cat([self.score(x[i], y[j]) for i, j in zip(rows.split(step), columns.split(step))])    # (K,)
