"""What the scores of a query over a whole gallery say of its first answer, for many queries in blocks of rows.

`Rows` gives the scores of one direction row by row; `answers` reduces each row to a few numbers. No matrix of scores is
ever held.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from evaluation.annotations import Pairs
from evaluation.subjects import Subject, image_text, image_text_of

ELEMENTS = 2 ** 22                    # scores that are looked at at a time, 16 MiB


class Rows(NamedTuple):
    """The scores of one direction, and what they are of."""
    scores: Callable[[int, int], torch.Tensor]    # (start, stop) -> (b, G) float32, of queries start ... stop
    asked: np.ndarray                 # (Q,) the position of each query in the split
    items: np.ndarray                 # (G,) the position of each item of the gallery in the split
    right: Pairs                      # the right items of every query, as positions in the gallery
    group: np.ndarray | None          # (G,) the image of each item of the gallery, or None where each is by itself
    owner: np.ndarray                 # (Q,) the image that each query belongs to

    @property
    def queries(self) -> int:
        return len(self.asked)

    @property
    def gallery(self) -> int:
        return len(self.items)

    def blocks(self):
        """(start, stop) of runs of queries whose scores fit into ELEMENTS."""
        step = max(1, ELEMENTS // max(1, self.gallery))
        return [(start, min(start + step, self.queries)) for start in range(0, self.queries, step)]

    def right_of(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(P,) queries, counted from `start`, and (P,) items that are right for them."""
        low, high = np.searchsorted(self.right.query, [start, stop])
        return torch.from_numpy(self.right.query[low:high] - start), torch.from_numpy(self.right.item[low:high])


def rows_of(subject: Subject, side: str, queries: np.ndarray | None = None, images: np.ndarray | None = None) -> Rows:
    """The rows of one direction, "i2t" or "t2i": of all queries, or of those at positions `queries` (q,), over all
    items, or over those of the images at positions `images` (n,), both rising."""
    columns = image_text(subject.members) if subject.members else image_text_of(subject.scores)
    owner, n = subject.caption_image, subject.n_images
    kept = np.arange(n) if images is None else images
    captions = np.flatnonzero(np.isin(owner, kept))
    place = np.full(n, -1)
    place[kept] = np.arange(len(kept))
    i, c = torch.from_numpy(kept), torch.from_numpy(captions)
    if side == "t2i":
        chosen = captions if queries is None else queries
        pairs = Pairs(np.arange(len(chosen)), place[owner[chosen]])

        def scores(start, stop):
            return columns(torch.from_numpy(chosen[start:stop]))(i).float().T.contiguous()
        return Rows(scores, chosen, kept, pairs, None, owner[chosen])
    chosen = np.intersect1d(kept, owner) if queries is None else queries
    matches = Pairs.of(place[owner[captions]], np.arange(len(captions))).among(place[chosen], np.arange(len(captions)))
    block = columns(c)

    def scores(start, stop):
        return block(torch.from_numpy(chosen[start:stop])).float()
    return Rows(scores, chosen, captions, matches, place[owner[captions]], chosen)


class Answers(NamedTuple):
    """Of Q queries; see `answers`."""
    first: np.ndarray                 # (Q,) int64: the position of the best item in the gallery
    right: np.ndarray                 # (Q,) bool: it is right, and no wrong item scores as high
    max: np.ndarray                   # (Q,) its score
    margin: np.ndarray                # (Q,) by how much it is above the second
    std: np.ndarray                   # (Q,) deviation of the scores
    posterior: np.ndarray             # (Q,) of it, in [0, 1]
    grouped: np.ndarray | None        # (Q,) posterior of its group; None where every item is by itself
    entropy: np.ndarray               # (Q,) of the posterior, in nats
    of_right: np.ndarray              # (Q,) posterior of all right items together


@torch.no_grad()
def answers(rows: Rows, temperature: float, absent: bool = False) -> Answers:
    """What each row says at a temperature T (`calibration.temperature`).

    absent: the right items are taken out of the gallery first, as if the query had no answer there; `right` is False
    and `of_right` 0 everywhere.
    """
    parts = []
    groups = None if rows.group is None else group_table(rows.group)
    for start, stop in rows.blocks():
        scores = rows.scores(start, stop)
        query, item = (x.to(scores.device) for x in rows.right_of(start, stop))
        if absent:
            scores = scores.index_put((query, item), scores.new_tensor(-torch.inf))
        parts.append(block_answers(scores, temperature, query, item, groups, absent))
    return Answers(*(None if x[0] is None else torch.cat(x).cpu().numpy() for x in zip(*parts)))


def block_answers(scores: torch.Tensor, t: float, query, item, groups, absent: bool) -> Answers:
    """`answers` of one block (b, G); query, item (P,): the right items."""
    best, first = scores.max(1)                                                     # (b,)
    second = scores.scatter(1, first[:, None], -torch.inf).amax(1) if scores.shape[1] > 1 else best
    right = torch.zeros_like(first)
    if not absent:
        ties = (scores == best[:, None]).sum(1)
        right.index_add_(0, query, (scores[query, item] == best[query]).long())
        right = (right > 0) & (right == ties)               # a wrong item that ties counts against the model
    if absent:                                              # items at -inf are not in the gallery
        count = scores.isfinite().sum(1)
        mean = torch.where(scores.isfinite(), scores, 0).sum(1) / count
        std = (torch.where(scores.isfinite(), scores - mean[:, None], 0).square().sum(1) / count).sqrt()
    else:
        std = scores.std(1, correction=0)
    below = scores - best[:, None]                                                  # (b, G), at most 0
    mass = (t * below).exp_()
    total = mass.sum(1)
    entropy = total.log() - t * torch.where(mass > 0, mass * below, 0).sum(1) / total
    grouped = None
    if groups is not None:
        of_group, table = groups
        members = table[of_group[first.cpu()]].to(scores.device)                    # (b, most), -1 where it has fewer
        grouped = (mass.gather(1, members.clamp(min=0)) * (members >= 0)).sum(1) / total
    of_right = torch.zeros_like(total)
    if not absent:
        of_right.index_add_(0, query, mass[query, item])
    return Answers(first, right > 0, best, best - second, std, 1 / total, grouped, entropy, of_right / total)


def group_table(group: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(G,) group of each item -> (G,) and (groups, most) the items of each group, -1 where it has fewer."""
    order, size = np.argsort(group, kind="stable"), np.bincount(group)
    within = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    table = np.full((len(size), size.max()), -1)
    table[group[order], within] = order
    return torch.from_numpy(group.astype(np.int64)), torch.from_numpy(table)


@torch.no_grad()
def sample_scores(rows: Rows, most: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole rows (q, G) of at most `most` // G queries, drawn by `seed`, and which of their items are right."""
    count = max(1, min(rows.queries, most // rows.gallery))
    chosen = np.sort(np.random.default_rng(seed).permutation(rows.queries)[:count])
    scores, right = [], []
    for start, stop in rows.blocks():
        here = torch.from_numpy(chosen[(chosen >= start) & (chosen < stop)] - start)
        if len(here):
            block = rows.scores(start, stop)[here].cpu()
            mask = torch.zeros(stop - start, rows.gallery, dtype=torch.bool)
            mask[rows.right_of(start, stop)] = True
            scores.append(block)
            right.append(mask[here])
    return torch.cat(scores), torch.cat(right)
