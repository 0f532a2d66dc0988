"""The share of a batch that one of several processes encodes, and what all processes take from each
other.

N processes hold the same model (devices/processes.py). Of a batch of B items each encodes b.
`everyones` then gives every process what all have made, with gradients, so that each computes the
whole loss, as one process with this batch would; nothing that follows knows of processes.

Random numbers are drawn for the whole batch by every process, which keeps those of its own items:
all processes draw the same, and what is drawn does not depend on N. Where there is one process, or
within no `sharing`, each function here does what its first line says and no more.
"""
import contextlib
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def spread(items: int, processes: int) -> tuple[int, ...]:
    """How many items each process takes: the first ones one more where they cannot take equally
    many."""
    least, more = divmod(items, processes)
    return tuple(least + (k < more) for k in range(processes))


class Share(NamedTuple):
    """How the B items of a batch are spread over processes."""
    rank: int                         # which process this is
    sizes: tuple[int, ...]            # how many items each process has, in order, B in all

    @classmethod
    def of(cls, items: int, rank: int, processes: int) -> "Share":
        """Shares that differ by one item at most; or, where some would be empty, the whole for
        everyone."""
        return cls(0, (items,)) if items < processes else cls(rank, spread(items, processes))

    @property
    def rows(self) -> slice:
        """This process's items."""
        start = sum(self.sizes[:self.rank])
        return slice(start, start + self.sizes[self.rank])


_share = Share(0, (0,))               # one process: its items are all there are


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
    """Whether other processes encode other items of the batch."""
    return len(_share.sizes) > 1


# ---- from process to process, with gradients

def everyones(x, partial: bool = False):
    """The items of the whole batch: (b, ...) -> (B, ...), of a tensor or of every tensor in
    (nested) tuples. Parts, (b, P, D), are zero-padded to the largest P.

    The gradient goes back to where an item came from. Each process has all of it, or, where it is
    `partial`, a part.
    """
    if x is None or not shared():
        return x
    if isinstance(x, tuple):
        values = [everyones(value, partial) for value in x]
        return type(x)(*values) if hasattr(x, "_fields") else tuple(values)
    if x.ndim > 2:
        most = torch.tensor(x.shape[1], device=x.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        x = padded(x, int(most), 1)
    return _Gather.apply(x, _share, partial) if x.is_floating_point() else gather(x, _share)


def padded(x: Tensor, most: int, axis: int = 0) -> Tensor:
    """A tensor with zeros behind it, so that it has `most` entries along an axis."""
    return F.pad(x, (0, 0) * (x.ndim - axis - 1) + (0, most - x.shape[axis])).contiguous()


def gather(x: Tensor, share: Share) -> Tensor:
    """The rows of all processes, in order: (b, ...) -> (B, ...), without a gradient."""
    mine = padded(x, max(share.sizes))                                          # as many everywhere
    rows = [torch.empty_like(mine) for _ in share.sizes]
    dist.all_gather(rows, mine)
    return torch.cat([some[:n] for some, n in zip(rows, share.sizes)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, share: Share, partial: bool) -> Tensor:
        ctx.share, ctx.partial = share, partial
        return gather(x, share)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        """A whole gradient counts N times, since DistributedDataParallel takes the mean over N
        processes."""
        share, n = ctx.share, len(ctx.share.sizes)
        if not ctx.partial:
            return gradient[share.rows] * n, None, None
        pieces = [padded(g, max(share.sizes)) for g in gradient.split(share.sizes)]
        mine = torch.empty_like(pieces[0])
        dist.reduce_scatter(mine, pieces)
        return mine[:share.sizes[share.rank]], None, None


def gathered(encoded: dict, share: Share | None) -> dict:
    """`everyones` of each value."""
    with sharing(share):
        return {name: everyones(x) for name, x in encoded.items()}


def by_rows(compare, images, captions, share: Share | None, of_captions: Share | None) -> Tensor:
    """compare(images, captions) of the whole batch: (B, M). Each process computes the rows of its
    own images, which have this share."""
    with sharing(of_captions):
        captions = everyones(captions, partial=True)
    with sharing(share):
        return everyones(compare(images, captions))


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


# ---- random numbers

def drawn(draw, x: Tensor) -> Tensor:
    """draw(x), where `draw` makes numbers for the items of a tensor: for the whole batch, of which
    the own rows are kept, unless x has the whole batch."""
    count = sum(_share.sizes)
    return (draw(x.new_ones((count, *x.shape[1:])))[_share.rows]
            if shared() and len(x) < count else draw(x))


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """F.dropout of rows, (b, ...) -> (b, ...)."""
    if not (training and p and shared()):
        return F.dropout(x, p, training)
    return x * drawn(lambda ones: F.dropout(ones, p), x)


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)
