"""The share of a batch that one of several processes computes, and what it takes from the others.

N processes hold the same model (parallel/processes.py). Of a batch of B items each computes b, and of the scores (B, B)
the rows of its own images, (b, B), against the captions of all. Every term of the loss is then a part of the whole
one: the sum over the processes is the term of one process with the same batch, and so is the sum of the gradients,
since `whole`, `total` and the others carry gradients from process to process.

Random numbers are drawn for the whole batch by every process, which keeps those of its own items: all processes draw
the same, and what is drawn does not depend on N.

Where there is one process, or within no `sharing`, each function here does what its first line says and no more.
"""
import contextlib
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class Share(NamedTuple):
    """How the B items of a batch are spread over processes."""
    rank: int                         # which process this is
    sizes: tuple[int, ...]            # how many items each process has, in order, B in all
    copies: int = 1                   # how many processes compute the same: a batch of fewer items than processes

    @classmethod
    def of(cls, items: int, rank: int, processes: int) -> "Share":
        """Shares that differ by one item at most; or, where some would be empty, the whole for everyone."""
        if items < processes:
            return cls(0, (items,), processes)
        return cls(rank, tuple(items // processes + (k < items % processes) for k in range(processes)))

    @property
    def start(self) -> int:
        """The first of this process's items."""
        return sum(self.sizes[:self.rank])

    @property
    def rows(self) -> slice:
        """This process's items."""
        return slice(self.start, self.start + self.sizes[self.rank])

    @property
    def items(self) -> int:
        """B."""
        return sum(self.sizes)


ALONE = Share(0, (0,))                # one process: its items are all there are
_share = ALONE


@contextlib.contextmanager
def sharing(share: Share | None):
    """A context in which a batch is spread like this; None: as outside."""
    global _share
    before, _share = _share, share or _share
    try:
        yield
    finally:
        _share = before


def shared() -> bool:
    """Whether other processes compute other items of the batch."""
    return len(_share.sizes) > 1


def start() -> int:
    """The place of this process's first item in the whole batch: 0 where it has all. The match of row k of a block of
    scores (b, B) is column start + k."""
    return _share.start


def items(x: Tensor) -> int:
    """How many items the whole batch has, of which x has one row each: len(x) where it has all."""
    return _share.items if shared() else len(x)


def copies() -> int:
    """How many processes compute the same items."""
    return _share.copies


# ---- from process to process, with gradients

def whole(x: Tensor) -> Tensor:
    """The items of the whole batch: (b, ...) of each process -> (B, ...). A gradient goes back to where its item came
    from, summed over the processes."""
    return x if not shared() else _Gather.apply(x, _share) if x.is_floating_point() else gather(x, _share)


def gather(x: Tensor, share: Share) -> Tensor:
    """The rows of all processes, in order: (b, ...) -> (B, ...), without a gradient."""
    most = max(share.sizes)
    mine = F.pad(x, (0, 0) * (x.ndim - 1) + (0, most - len(x))).contiguous()        # as many rows everywhere
    found = [torch.empty_like(mine) for _ in share.sizes]
    dist.all_gather(found, mine)
    return torch.cat([rows[:n] for rows, n in zip(found, share.sizes)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, share: Share) -> Tensor:
        ctx.share = share
        return gather(x, share)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        share, most = ctx.share, max(ctx.share.sizes)
        pieces = [F.pad(g, (0, 0) * (g.ndim - 1) + (0, most - len(g))).contiguous()
                  for g in gradient.split(share.sizes)]
        mine = torch.empty_like(pieces[0])
        dist.reduce_scatter(mine, pieces)
        return mine[:share.sizes[share.rank]], None


def parts_of_all(parts: Tensor, n_parts: Tensor) -> tuple[Tensor, Tensor]:
    """`whole` of parts (b, P, D), zero-padded to the largest P of any process, and of their numbers (b,)."""
    n_parts = whole(n_parts)
    if shared():
        parts = F.pad(parts, (0, 0, 0, max(0, int(n_parts.max()) - parts.shape[1])))[:, :int(n_parts.max())]
    return whole(parts), n_parts


def total(x: Tensor) -> Tensor:
    """The sum over the processes, of any shape."""
    return _Total.apply(x) if shared() else x


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def by_process(x: Tensor) -> Tensor:
    """x of each process, one below the other: (...) -> (N, ...); of one process (1, ...)."""
    if not shared():
        return x[None]
    return _Gather.apply(x[None], Share(_share.rank, (1,) * len(_share.sizes)))


def mean(x: Tensor) -> Tensor:
    """This process's part of the mean over the whole batch's rows: (b, ...) -> scalar; x.mean() where it has all."""
    return x.mean() if not shared() else x.sum() / (_share.items * x[0].numel())


def of_rows(n: int, device) -> Share | None:
    """A share of rows that are no items, of which this process has n (real parts of its items, say), or None."""
    if not shared():
        return None
    counts = by_process(torch.tensor(float(n), dtype=torch.float64, device=device))
    return Share(_share.rank, tuple(int(count) for count in counts))


# ---- random numbers

def drawn(draw, x: Tensor) -> Tensor:
    """draw(x), where `draw` makes numbers like a tensor: for the whole batch, of which the own rows are kept."""
    if not shared():
        return draw(x)
    return draw(x.new_ones((_share.items, *x.shape[1:])))[_share.rows]


class Dropout(nn.Dropout):
    """Dropout of rows, (b, ...) -> (b, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p and shared()):
            return super().forward(x)
        return x * drawn(lambda ones: F.dropout(ones, self.p), x)
