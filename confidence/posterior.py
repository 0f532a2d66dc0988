"""The posterior over a gallery, and what the scores of a query say of its first answer, in blocks
of rows.

The posterior of item j for query q is p_qj = exp(T s_qj) / sum_k exp(T s_qk) (Hama et al. 2021,
arXiv 1904.08504), with a temperature T for each direction that is fitted on the dev split (Guo et
al. 2017). `Rows` gives the scores of one direction row by row; `answers` reduces each row to a few
numbers.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize

from cli import check
from evaluation.annotations import Pairs
from evaluation.embeddings import Embeddings
from methods.volume import Sigmoid

ELEMENTS = 2 ** 22                    # scores that are computed at a time, 16 MiB
CACHED = 2 ** 18                      # scores that are passed over at a time: 1 MiB stays cached
FITTED = 2 ** 24                      # scores that a temperature is fitted to, 64 MiB
TIE = 2.0 ** -18                      # of a score: 32 units of float32's last place, above rounding
NOTHING = -80.0                       # an exponential of less, 2e-35, is nothing beside 1, and slow
SPREADS = (1e-3, 1e3)                 # bounds of a temperature, times the deviation of the scores


class Rows(NamedTuple):
    """The scores of one direction, and what they are of."""
    score: Callable[[np.ndarray], torch.Tensor]  # positions of queries (b,) -> a new (b, G) float32
    asked: np.ndarray                 # (Q,) the position of each query
    gallery: int                      # G items
    right: Pairs                      # the right items of every query
    group: np.ndarray | None          # (G,) the image of each item; None: each is by itself
    owner: np.ndarray                 # (Q,) the image that each query belongs to

    @property
    def queries(self) -> int:
        return len(self.asked)

    def some(self, chosen: np.ndarray) -> "Rows":
        """The rows of the queries at positions `chosen` (q,) among these, rising."""
        right = self.right.among(chosen, np.arange(self.gallery))
        return self._replace(asked=self.asked[chosen], right=right, owner=self.owner[chosen])

    def blocks(self):
        """Yields (start, scores (b, G)) of all queries, in runs whose scores fit into ELEMENTS."""
        step = max(1, ELEMENTS // self.gallery)
        for start in range(0, self.queries, step):
            yield start, self.score(self.asked[start:start + step])

    def right_of(self, start: int, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(P,) queries, counted from `start`, and (P,) items that are right for them, of those that
        have these scores (b, G)."""
        some = slice(*np.searchsorted(self.right.query, [start, start + len(scores)]))
        return (torch.from_numpy(self.right.query[some] - start).to(scores.device),
                torch.from_numpy(self.right.item[some]).to(scores.device))

    def whole(self):
        """Yields (scores (b, G), which items are right (b, G) bool) of all queries, in runs."""
        for start, scores in self.blocks():
            right = torch.zeros_like(scores, dtype=torch.bool)
            right[self.right_of(start, scores)] = True
            yield scores, right


def rows_of(e: Embeddings, side: str, queries: np.ndarray | None = None) -> Rows:
    """The rows of one direction, "i2t" or "t2i": of all queries, or of those at positions `queries`
    (q,), rising."""
    owner = e.caption_image
    if side == "t2i":
        queries = np.arange(len(owner)) if queries is None else queries
        right = Pairs(np.arange(len(queries)), owner[queries])
        return Rows(lambda asked: torch.from_numpy(np.ascontiguousarray(e.scores[:, asked].T)),
                    queries, e.n_images, right, None, owner[queries])
    queries, items = np.unique(owner) if queries is None else queries, np.arange(len(owner))
    right = Pairs.of(owner, items).among(queries, items)
    return Rows(lambda asked: torch.from_numpy(e.scores[asked]), queries, len(owner), right, owner, queries)


# ---- the first answers

class Answers(NamedTuple):
    """What each of Q rows says; see `answers`."""
    first: np.ndarray                 # (Q,) int64: position of the best item, the first of a tie
    right: np.ndarray                 # (Q,) bool: it is right, and no wrong item ties (`within`)
    max: np.ndarray                   # (Q,) its score
    margin: np.ndarray                # (Q,) by how much it is above the second
    std: np.ndarray                   # (Q,) deviation of the scores
    posterior: np.ndarray             # (Q,) of it, in [0, 1]
    grouped: np.ndarray | None        # (Q,) posterior of its group; None: each item is by itself
    entropy: np.ndarray               # (Q,) of the posterior, in nats

    @classmethod
    def cat(cls, parts) -> "Answers":
        """The answers of all queries, from those of runs of them."""
        return cls(*(None if x[0] is None else torch.cat(x).cpu().numpy() for x in zip(*parts)))


@torch.no_grad()
def answers(rows: Rows, temperature: float) -> Answers:
    """The first answers of all rows at a temperature T."""
    groups = None if rows.group is None else group_table(rows.group)
    return Answers.cat(part for start, scores in rows.blocks()
                       for part in row_answers(scores, rows, start, temperature, groups))


def row_answers(scores: torch.Tensor, rows: Rows, start: int, t: float, groups):
    """Yields the answers of the queries from `start` on, some at a time; their scores (b, G) are
    overwritten."""
    for few in scores.split(max(1, CACHED // scores.shape[1])):
        yield block_answers(few, t, *rows.right_of(start, few), groups)
        start += len(few)


def block_answers(scores: torch.Tensor, t: float, query, item, groups=None) -> Answers:
    """The answers of one block (b, G), which is overwritten. query, item (P,): the right items."""
    best, first = scores.max(1)                                                     # (b,)
    second = best
    if scores.shape[1] > 1:
        second = scores.scatter_(1, first[:, None], -torch.inf).amax(1)
    scores.scatter_(1, first[:, None], best[:, None])
    behind = best[query] - scores[query, item]                                      # (P,)
    below = scores.sub_(best[:, None])  # (b, G), at most 0
    mass = masses(below, t)
    total = mass.sum(1)
    entropy = total.log() - t * torch.linalg.vecdot(mass, below) / total
    mean = below.sum(1) / scores.shape[1]
    centred = below.sub_(mean[:, None])
    std = (torch.linalg.vecdot(centred, centred) / scores.shape[1]).sqrt()
    gap, grouped = within(best, std), None
    right, ties = torch.zeros_like(first), torch.ones_like(first)
    near = best - second <= gap
    right.index_add_(0, query, (behind <= gap[query]).long())
    tied = centred[near] >= -(mean + gap)[near, None]
    ties[near], first[near] = tied.sum(1), tied.int().argmax(1)
    if groups is not None:
        of_group, table = groups
        members = table[of_group[first.cpu()]].to(scores.device)  # (b, most), -1: none
        grouped = (mass.gather(1, members.clamp(min=0)) * (members >= 0)).sum(1) / total
    right = (right > 0) & (right == ties)  # a wrong item that ties counts against the model
    return Answers(first, right, best, (best - second).masked_fill(near, 0), std, 1 / total, grouped,
                   entropy)


def within(best, std):
    """How far below the best score (b,) of a row, of deviation std (b,), an item ties with it: what
    rounding can do. Equal items get scores that differ in their last bits, by the product or the
    processor that made them."""
    return TIE * (abs(best) + std)


def masses(below: torch.Tensor, t: float) -> torch.Tensor:
    """exp(T (s - max s)) from s - max s, at most 0, of any shape: the posterior times a number that
    a query has."""
    return (t * below).clamp_(min=NOTHING).exp_()


def group_table(group: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(G,) group of each item -> (G,) and (groups, most) the items of each group, -1 where it has
    fewer."""
    order, size = np.argsort(group, kind="stable"), np.bincount(group)
    place = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    table = np.full((len(size), size.max()), -1)
    table[group[order], place] = order
    return torch.from_numpy(group), torch.from_numpy(table)


# ---- the temperature

@torch.no_grad()
def sample_scores(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole rows (q, G) of queries at random, at most FITTED scores, and which of their items are
    right."""
    count = max(1, min(rows.queries, FITTED // rows.gallery))
    chosen = np.sort(np.random.default_rng(0).permutation(rows.queries)[:count])
    scores, right = zip(*((x.cpu(), y.cpu()) for x, y in rows.some(chosen).whole()))
    return torch.cat(scores), torch.cat(right)


def deviation(scores: torch.Tensor) -> float:
    """The root of the mean variance of a query's scores (Q, G), -inf left out."""
    outside = torch.isneginf(scores)
    if not outside.any():
        return float(scores.var(1, correction=0).mean().sqrt())
    inside = scores.masked_fill(outside, torch.nan)
    return float((inside - inside.nanmean(1, keepdim=True)).square().nanmean(1).mean().sqrt())


def temperature(scores: torch.Tensor, right: torch.Tensor) -> float:
    """T = argmin_T -1/Q sum_q log sum_{j in right(q)} p_qj.

    scores (Q, G), where -inf is not in the gallery of the query; right (Q, G) bool, at least one in
    each row. With one right item per query the mean is convex in T. A grid on log T finds the neighbourhood of the
    minimum, and Brent's method the minimum itself, in float64: a loss is flat there, and the last
    bits of float32 would move T by 1e-3. Raises InputError where the scores do not differ, or where
    no T within SPREADS is best, which means that they do not tell what is right.
    """
    spread = deviation(scores)
    check(spread > 0, "all scores of a query are equal, so no temperature fits them; "
                      "check the embeddings")
    scores = scores - scores.amax(1, keepdim=True)                                  # at most 0
    parts = scores.split(max(1, CACHED // scores.shape[1]))
    query, of_right = right.nonzero()[:, 0], scores[right].double()                 # (P,)
    best = of_right.new_full((len(scores),), -torch.inf)
    best = best.scatter_reduce(0, query, of_right, "amax")                          # (Q,)
    below_best = of_right - best[query]

    def loss(log_t: float, kind=torch.float64) -> float:
        t = float(np.exp(log_t))
        mass = torch.cat([masses(part.to(kind), t).sum(1) for part in parts]).double()
        mass_right = torch.zeros_like(mass).index_add_(0, query, masses(below_best, t))
        return float((mass.log() - t * best - mass_right.log()).mean())
    grid = np.linspace(*np.log(np.array(SPREADS) / spread), 41)
    lowest = int(np.argmin([loss(x, torch.float32) for x in grid]))
    check(0 < lowest < len(grid) - 1,
          "no temperature fits: the scores of the dev split do not tell which items are right "
          f"(the best T is {'0' if lowest == 0 else 'infinite'}); "
          "train longer")
    minimum = optimize.minimize_scalar(loss, bounds=(grid[lowest - 1], grid[lowest + 1]),
                                       method="bounded", options={"xatol": 1e-7})
    return float(np.exp(minimum.x))


# ---- the probability of a pair, by itself

@torch.no_grad()
def fit_pairs(rows: Rows) -> Sigmoid:
    """The probability that an item is a query's own, from its score alone: fitted to whole rows at
    random, own items against all others."""
    scores, right = sample_scores(rows)
    few = max(1, ELEMENTS // scores.shape[1])
    scores, right = scores[:few], right[:few]
    return Sigmoid.fit(scores.reshape(-1), right.reshape(-1))


@torch.no_grad()
def expected(rows: Rows, pair: Sigmoid) -> np.ndarray:
    """How many items of the gallery fit each query: the sum of their probabilities (Q,)."""
    return np.concatenate([pair(scores).sum(1).cpu().numpy() for _, scores in rows.blocks()])
