"""Scores of pairs in blocks, for similarities that need several numbers of memory for each pair."""
import math

import torch
from torch import Tensor

from similarities import side_by_side

ELEMENTS = {"cpu": 2 ** 18, "cuda": 2 ** 25}    # numbers in the largest temporary of a block: what a cache holds


def block_side(x: Tensor, per_pair: int) -> int:
    """Items on each side of a block of pairs, where a pair takes `per_pair` numbers of memory."""
    return max(1, math.isqrt(ELEMENTS.get(x.device.type, ELEMENTS["cuda"]) // per_pair))


def by_blocks(score, images: Tensor, captions, m: int, step: int) -> Tensor:
    """Scores (N, M) in blocks of at most step x step pairs. images (K, N, D); `captions` yields (L, p, D), p <= step, M
    in all; score: (K, n, D), (L, p, D) -> (n, p)."""
    pieces = images.split(step, 1)
    return side_by_side((torch.cat([score(x, y) for x in pieces]) for y in captions), m)
