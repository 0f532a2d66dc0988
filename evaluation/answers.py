"""What the scores of a query over a whole gallery say of its first answer, for many queries in blocks of rows.

`Rows` gives the scores of one direction row by row; `answers` reduces each row to a few numbers, and `answers_of_both`
those of both directions, with each score computed once. No matrix of scores is ever held.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import entr

from evaluation.annotations import Pairs
from evaluation.calibration import CACHED, masses
from evaluation.subjects import Subject, image_text, image_text_of

ELEMENTS = 2 ** 22                    # scores that are computed at a time, 16 MiB
TIE = 2.0 ** -18                      # of a score: 32 units of float32's last place, more than products differ by


class Rows(NamedTuple):
    """The scores of one direction, and what they are of."""
    score: Callable[[np.ndarray], torch.Tensor]   # queries (b,), as positions in the split -> a new (b, G) float32
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

    def scores(self, start: int, stop: int) -> torch.Tensor:
        """(b, G) of queries start ... stop."""
        return self.score(self.asked[start:stop])

    def some(self, chosen: np.ndarray) -> "Rows":
        """Those of the queries at positions `chosen` (q,) among these, rising."""
        return self._replace(asked=self.asked[chosen], right=self.right.among(chosen, np.arange(self.gallery)),
                             owner=self.owner[chosen])

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
    i, c = (slice(None) if len(x) == size else torch.from_numpy(x) for x, size in ((kept, n), (captions, len(owner))))
    if side == "t2i":
        chosen = captions if queries is None else queries
        pairs = Pairs(np.arange(len(chosen)), place[owner[chosen]])

        def score(asked):
            return columns(torch.from_numpy(asked))(i).float().T.contiguous()
        return Rows(score, chosen, kept, pairs, None, owner[chosen])
    chosen = np.intersect1d(kept, owner) if queries is None else queries
    matches = Pairs.of(place[owner[captions]], np.arange(len(captions))).among(place[chosen], np.arange(len(captions)))
    block = columns(c)

    def score(asked):
        return block(torch.from_numpy(asked)).float()
    return Rows(score, chosen, captions, matches, place[owner[captions]], chosen)


class Answers(NamedTuple):
    """Of Q queries; see `answers`."""
    first: np.ndarray                 # (Q,) int64: the position of the best item in the gallery, the first of a tie
    right: np.ndarray                 # (Q,) bool: it is right, and no wrong item ties with it (`within`)
    max: np.ndarray                   # (Q,) its score
    margin: np.ndarray                # (Q,) by how much it is above the second
    mean: np.ndarray                  # (Q,) of the scores
    std: np.ndarray                   # (Q,) deviation of the scores
    posterior: np.ndarray             # (Q,) of it, in [0, 1]
    grouped: np.ndarray | None        # (Q,) posterior of its group; None where every item is by itself
    entropy: np.ndarray               # (Q,) of the posterior, in nats
    entropy_each: np.ndarray | None   # (Q,) of that at a second temperature, where there is one
    of_right: np.ndarray              # (Q,) posterior of all right items together


@torch.no_grad()
def answers(rows: Rows, temperature: float, absent: bool = False) -> Answers:
    """What each row says at a temperature T (`calibration.temperature`).

    absent: the right items are taken out of the gallery first, as if the query had no answer there; `right` is False
    and `of_right` 0 everywhere.
    """
    groups = None if rows.group is None else group_table(rows.group)
    return joined(part for start, stop in rows.blocks()
                  for part in row_answers(rows.scores(start, stop), rows, start, temperature, groups, absent=absent))


def joined(parts) -> Answers:
    """The answers of runs of queries as those of all of them."""
    return Answers(*(None if x[0] is None else torch.cat(x).cpu().numpy() for x in zip(*parts)))


def row_answers(scores: torch.Tensor, rows: Rows, start: int, t: float, groups, each: float | None = None,
                absent: bool = False):
    """`answers` of the scores (b, G) of the queries from `start` on, which are overwritten, in runs of a few rows."""
    step = max(1, CACHED // scores.shape[1])
    for low in range(0, len(scores), step):
        few = scores[low:low + step]
        query, item = (x.to(scores.device) for x in rows.right_of(start + low, start + low + len(few)))
        if absent:
            few[query, item] = -torch.inf
        yield block_answers(few, t, query, item, groups, each, absent)


@torch.no_grad()
def answers_of_both(subject: Subject, temperature: dict[str, float], images: np.ndarray | None = None,
                    each: float | None = None) -> dict[str, tuple[Rows, Answers]]:
    """The rows of both directions, over all items or those of `images` (n,), and their answers: {"t2i" | "i2t": ...}.

    each: a second temperature, of `Answers.entropy_each` of image to text.
    Every score is computed once. A block has some images as its rows: all that the answers to an image need, and a part
    of the gallery of every caption.
    """
    kept = np.arange(subject.n_images) if images is None else images
    t2i, i2t = rows_of(subject, "t2i", images=kept), rows_of(subject, "i2t", kept, kept)
    groups, own, done, found, whole = group_table(i2t.group), torch.from_numpy(t2i.right.item), 0, [], None
    for start, stop in i2t.blocks():
        scores, parts, step = i2t.scores(start, stop), [], max(1, CACHED // (stop - start))
        for low in range(0, t2i.queries, step):
            few = scores[:, low:low + step].T.clone(memory_format=torch.contiguous_format)
            item = own[low:low + step] - start
            query = torch.nonzero((item >= 0) & (item < stop - start))[:, 0]
            parts.append(block_answers(few, temperature["t2i"], query.to(few.device), item[query].to(few.device)))
        part = joined(parts)
        part = part._replace(first=part.first + start)
        whole = merged(whole, part, done, stop - start, temperature["t2i"]) if done else part
        done = stop
        found += row_answers(scores, i2t, start, temperature["i2t"], groups, each)
    described = np.flatnonzero(np.isin(kept, subject.caption_image))        # others are items, but no queries
    found = joined(found)
    return {"t2i": (t2i, whole),
            "i2t": (i2t.some(described), Answers(*(None if x is None else x[described] for x in found)))}


def merged(a: Answers, b: Answers, n: int, m: int, t: float) -> Answers:
    """The answers of a gallery from those of its first n items and of the m others, none of them grouped."""
    best = np.maximum(a.max, b.max)
    others = [x.max - x.margin for x, size in ((a, n), (b, m)) if size > 1]
    second = np.maximum.reduce([np.minimum(a.max, b.max), *others])
    of_a, of_b = (np.exp(t * (x.max - best)) / x.posterior for x in (a, b))         # mass beside that of the best
    share, part, gap = of_b / (of_a + of_b), m / (n + m), b.mean - a.mean
    variance = (1 - part) * a.std ** 2 + part * b.std ** 2 + part * (1 - part) * gap ** 2
    entropy = (1 - share) * a.entropy + share * b.entropy + entr(share) + entr(1 - share)
    std, ahead = np.sqrt(variance), b.max - a.max
    tie = within(best, std)
    right = np.where(abs(ahead) <= tie, a.right & b.right, np.where(ahead > 0, b.right, a.right))
    margin = np.where(best - second <= tie, 0, best - second)
    return Answers(np.where(ahead > tie, b.first, a.first), right, best, margin, a.mean + part * gap, std,
                   1 / (of_a + of_b), None, entropy, None, (1 - share) * a.of_right + share * b.of_right)


def block_answers(scores: torch.Tensor, t: float, query, item, groups=None, each: float | None = None,
                  absent: bool = False) -> Answers:
    """`answers` of one block (b, G), which is overwritten; query, item (P,): the right items; each: a second
    temperature."""
    best, first = scores.max(1)                                                     # (b,)
    second = scores.scatter_(1, first[:, None], -torch.inf).amax(1) if scores.shape[1] > 1 else best
    scores.scatter_(1, first[:, None], best[:, None])
    behind = best[query] - scores[query, item]                                      # (P,)
    below = scores.sub_(best[:, None])                                              # (b, G), at most 0
    mass = masses(below, t)
    total = mass.sum(1)
    of_right, count = torch.zeros_like(total), torch.full_like(total, scores.shape[1])
    if absent:                                              # items at -inf are not in the gallery: they add nothing
        below[query, item] = 0
        count.index_add_(0, query, count.new_full(query.shape, -1))
    else:
        of_right.index_add_(0, query, mass[query, item])
    entropy, entropy_each = entropy_of(mass, below, total, t), None
    if each is not None:
        wider = masses(below, each)
        entropy_each = entropy_of(wider, below, wider.sum(1), each)
    mean = below.sum(1) / count
    centred = below.sub_(mean[:, None])
    if absent:
        centred[query, item] = 0
    std = (torch.linalg.vecdot(centred, centred) / count).sqrt()
    gap, right, ties, grouped = within(best, std), torch.zeros_like(first), torch.ones_like(first), None
    near = best - second <= gap
    if absent:
        centred[query, item] = -torch.inf
    else:
        right.index_add_(0, query, (behind <= gap[query]).long())
    tied = centred[near] >= -(mean + gap)[near, None]
    ties[near], first[near] = tied.sum(1), tied.int().argmax(1)
    if groups is not None:
        of_group, table = groups
        members = table[of_group[first.cpu()]].to(scores.device)                    # (b, most), -1 where it has fewer
        grouped = (mass.gather(1, members.clamp(min=0)) * (members >= 0)).sum(1) / total
    right = (right > 0) & (right == ties)                   # a wrong item that ties counts against the model
    return Answers(first, right, best, (best - second).masked_fill(near, 0), best + mean, std, 1 / total, grouped,
                   entropy, entropy_each, of_right / total)


def within(best, std):
    """How far below the best score (b,) of a row, of deviation std (b,), an item ties with it: what rounding can do.
    Equal items get scores that differ in their last bits, by the product or the processor that made them."""
    return TIE * (abs(best) + std)


def entropy_of(mass: torch.Tensor, below: torch.Tensor, total: torch.Tensor, t: float) -> torch.Tensor:
    """The entropy (b,) of mass / total, where mass = exp(T below): (b, G), (b, G), (b,)."""
    return total.log() - t * torch.linalg.vecdot(mass, below) / total


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
    rows, parts = rows.some(chosen), []
    for start, stop in rows.blocks():
        right = torch.zeros(stop - start, rows.gallery, dtype=torch.bool)
        right[rows.right_of(start, stop)] = True
        parts.append((rows.scores(start, stop).cpu(), right))
    scores, right = zip(*parts)
    return torch.cat(scores), torch.cat(right)
