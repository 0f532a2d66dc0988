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


def spread(items: int, processes: int) -> tuple[int, ...]:
    """How many items each process takes: the first ones one more where they cannot take equally many."""
    least, more = divmod(items, processes)
    return tuple(least + (k < more) for k in range(processes))


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
        return cls(rank, spread(items, processes))

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


def everyones(e):
    """The similarities.Embedding of the items of the whole batch, parts zero-padded to the largest P: (b, D) ->
    (B, D)."""
    if not shared():
        return e
    n_parts, parts = None if e.n_parts is None else whole(e.n_parts), e.parts
    if parts is not None:
        most = int(n_parts.max())
        parts = whole(F.pad(parts, (0, 0, 0, most - parts.shape[1])))               # negative: cut off padding
    return e._replace(mean=whole(e.mean), log_var=None if e.log_var is None else whole(e.log_var), parts=parts,
                      n_parts=n_parts)


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
    """This process's part of the mean over all rows of the whole batch: (b, ...) -> scalar; x.mean() of one process."""
    return x.sum() / (items(x) * x.shape[1:].numel())


def of_rows(x: Tensor) -> Share | None:
    """The share of rows that are no items, but parts of items, of which this process has those of x; or None."""
    if not shared():
        return None
    return Share(_share.rank, tuple(by_process(torch.tensor(float(len(x)), device=x.device)).int().tolist()))


# ---- random numbers

class Places(NamedTuple):
    """Where the rows of this process stand among those of all, for rows that are no items in order."""
    rows: Tensor | slice
    count: int                        # of all


def drawn(draw, x: Tensor, places: Places | None = None) -> Tensor:
    """draw(x), where `draw` makes numbers like a tensor: for the whole batch, of which the own rows are kept."""
    if not shared():
        return draw(x)
    rows, count = places or Places(_share.rows, _share.items)
    return draw(x.new_ones((count, *x.shape[1:])))[rows]


def dropout(x: Tensor, p: float, training: bool, places: Places | None = None) -> Tensor:
    """F.dropout of rows, (b, ...) -> (b, ...)."""
    if not (training and p and shared()):
        return F.dropout(x, p, training)
    return x * drawn(lambda ones: F.dropout(ones, p), x, places)


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, x: Tensor, places: Places | None = None) -> Tensor:
        return dropout(x, self.p, self.training, places)


def packed_places(lengths: Tensor, order: Tensor) -> Places | None:
    """Where the rows of a packed sequence, whose items have these lengths (b,) and stand in this order (b,), would
    stand were the whole batch packed (torch's pack_padded_sequence, not enforce_sorted); None: as they are."""
    if not shared():
        return None
    lengths, everyones = lengths.cpu(), whole(lengths).cpu()
    place = torch.empty_like(everyones)                     # of each item when the longest come first
    place[torch.sort(everyones, descending=True).indices] = torch.arange(len(everyones))
    own = place[_share.rows][order.cpu()]                                           # (b,)
    active = (everyones[:, None] > torch.arange(int(everyones.max()))).sum(0)       # (T,): items at each step
    first = active.cumsum(0) - active
    sizes = (lengths[:, None] > torch.arange(int(lengths.max()))).sum(0).tolist()
    return Places(torch.cat([first[t] + own[:n] for t, n in enumerate(sizes)]), int(active.sum()))
