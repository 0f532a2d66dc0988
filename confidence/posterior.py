"""Posterior over a gallery: the probability of each item to be the one meant.

The posterior of item j for query q is p_qj = exp(T s_qj) / sum_k exp(T s_qk) (Hama et al. 2021, arXiv 1904.08504), with
a temperature T for each direction that is fitted on the dev split (Guo et al. 2017).
"""
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize

from cli import check
from confidence.calibration import DIRECTIONS, FORMAT
from evaluation.embeddings import Embeddings
from metrics import Sigmoid

CACHED = 2 ** 18                      # scores that are passed over at a time: 1 MiB stays cached
PAIRS = 2 ** 22                       # scores that the probability of a pair is fitted to, at least a row
FITTED = 2 ** 24                      # scores that a temperature is fitted to, 64 MiB
TIE = 2.0 ** -18                      # of a score: 32 units of float32's last place, above rounding
NOTHING = -80.0                       # an exponential of less, 2e-35, is nothing beside 1, and slow
SPREADS = (1e-3, 1e3)                 # bounds of a temperature, times the deviation of the scores


class Rows(NamedTuple):
    """Scores of one direction, row by row: Q queries against G items."""
    scores: np.ndarray                # (all queries of the split, G)
    queries: np.ndarray               # (Q,) positions in the split, rising
    owner: np.ndarray                 # (Q,) the image of each query
    item_image: np.ndarray            # (G,) the image of each item, which is right for queries of this image

    @property
    def gallery(self) -> int:
        return len(self.item_image)

    def blocks(self):
        """Yield (scores (b, G), whether an item is right (b, G) bool) of all queries."""
        step = max(1, CACHED // self.gallery)
        for start in range(0, len(self.queries), step):
            rows = slice(start, start + step)
            yield (torch.from_numpy(np.ascontiguousarray(self.scores[self.queries[rows]])),
                   torch.from_numpy(self.owner[rows, None] == self.item_image))


def rows_of(e: Embeddings, side: str, queries: np.ndarray | None = None) -> Rows:
    """Return the rows of one direction, "i2t" or "t2i".
    Of all queries that have an answer, or at positions `queries` (q,), rising."""
    captions, images = e.caption_image, np.arange(e.n_images)
    if side == "t2i":
        queries = np.arange(len(captions)) if queries is None else queries
        return Rows(e.scores.T, queries, captions[queries], images)
    queries = np.unique(captions) if queries is None else queries
    return Rows(e.scores, queries, queries, captions)


# ---- the first answers

class Answers(NamedTuple):
    """First answers to Q queries."""
    first: np.ndarray                 # (Q,) int64: position of the best item, the first of a tie
    right: np.ndarray                 # (Q,) bool: it is right, and no wrong item ties with it
    max: np.ndarray                   # (Q,) its score
    posterior: np.ndarray             # (Q,) in [0, 1]
    grouped: np.ndarray               # (Q,) posterior of all items of its image


@torch.no_grad()
def find_answers(rows: Rows, t: float) -> Answers:
    """Find the first answers of all rows at a temperature t.
    Equal items get scores that differ in their last bits, by the product or the processor that made them. So an item
    ties with the best where it is less than TIE of the size of the scores below it."""
    item_image, parts = torch.from_numpy(rows.item_image), []
    for scores, right in rows.blocks():                                       # (b, G)
        best = scores.amax(1)                                                       # (b,)
        below = scores - best[:, None]                                              # (b, G), at most 0
        gap = TIE * (abs(best) + below.std(1, correction=0))
        tied = below >= -gap[:, None]
        first, hits = tied.int().argmax(1), (tied & right).sum(1)
        mass = exponentiate_scores(below, t)
        total, same = mass.sum(1), item_image[first][:, None] == item_image         # (b,), (b, G)
        parts.append((first, (hits > 0) & (hits == tied.sum(1)), best, 1 / total, (mass * same).sum(1) / total))
    return Answers(*(torch.cat(x).numpy() for x in zip(*parts)))


def exponentiate_scores(below: torch.Tensor, t: float) -> torch.Tensor:
    """Compute the unnormalised posterior exp(T (s - max s)), at most 1, of s - max s."""
    return (t * below).clamp_(min=NOTHING).exp_()


# ---- the temperature

@torch.no_grad()
def sample_scores(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """At most FITTED scores (q, G) of random queries, and whether an item is right."""
    count = max(1, FITTED // rows.gallery)
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows.queries))[:count])
    sample = rows._replace(queries=rows.queries[chosen], owner=rows.owner[chosen])
    return tuple(map(torch.cat, zip(*sample.blocks())))


def fit_temperature(scores: torch.Tensor, right: torch.Tensor) -> float:
    """Fit T = argmin_T -1/Q sum_q log sum_{j in right(q)} p_qj.
    scores (Q, G); right (Q, G) bool, at least one in each row. With one right item per query the mean is convex in T.
    A grid on log T finds the neighbourhood of the minimum, and Brent's method the minimum itself, in float64: a loss is
    flat there, and the last bits of float32 would move T by 1e-3. Raises InputError where the scores do not differ, or
    where no T within SPREADS is best: the scores do not tell what is right, or every first answer is."""
    spread = float(scores.var(1, correction=0).mean().sqrt())
    check(spread > 0, "all scores of a query are equal, or there is one item, so no temperature fits them; check the "
                      "embeddings, or calibrate on more images")
    scores = scores - scores.amax(1, keepdim=True)                                  # at most 0
    parts = scores.split(max(1, CACHED // scores.shape[1]))
    query, right_scores = right.nonzero()[:, 0], scores[right].double()             # (P,)
    best = right_scores.new_full((len(scores),), -torch.inf)
    best = best.scatter_reduce(0, query, right_scores, "amax")                      # (Q,)
    below_best = right_scores - best[query]

    def loss(log_t: float, kind=torch.float64) -> float:
        t = float(np.exp(log_t))
        mass = torch.cat([exponentiate_scores(part.to(kind), t).sum(1) for part in parts]).double()
        mass_right = torch.zeros_like(mass).index_add_(0, query, exponentiate_scores(below_best, t))
        return float((mass.log() - t * best - mass_right.log()).mean())
    grid = np.linspace(*np.log(np.array(SPREADS) / spread), 41)
    lowest = int(np.argmin([loss(x, torch.float32) for x in grid]))
    check(lowest > 0, "no temperature fits: the scores of the dev split do not tell which items are right (the best T "
                      "is 0); train longer")
    check(lowest < len(grid) - 1, "no temperature fits: every first answer of the dev split is right (the best T is "
                                  "infinite), so nothing tells how many others are; calibrate on more images")
    minimum = optimize.minimize_scalar(loss, bounds=(grid[lowest - 1], grid[lowest + 1]),
                                       method="bounded", options={"xatol": 1e-7})
    return float(np.exp(minimum.x))


@torch.no_grad()
def expected_number(rows: Rows, pair: Sigmoid) -> np.ndarray:
    """Sum probabilities to the number of items that fit each query: (Q,)."""
    return np.concatenate([pair(scores).sum(1).cpu().numpy() for scores, _ in rows.blocks()])


# ---- calibration.json

def calibrate(dev: Embeddings, name: str) -> dict:
    """Fit the content of calibration.json to dev: temperatures, and of captions the probability of a pair.
    The latter is that an image is the caption's own, against all others. name: of dev, for the reader. Raises
    InputError where nothing fits. Sets and words are added by those who fit them."""
    fitted = {}
    for side in DIRECTIONS:
        rows = rows_of(dev, side)
        scores, right = sample_scores(rows)
        best = scores.amax(1, keepdim=True)
        wrong = int(((scores == best) & ~right).any(1).sum())                       # first answers, with ties
        fitted[side] = {"temperature": fit_temperature(scores, right), "queries": len(rows.queries),
                        "gallery": rows.gallery, "wrong": wrong,
                        "deviation": float(scores.var(1, correction=0).mean().sqrt())}
        if side == "t2i":
            few = max(1, PAIRS // rows.gallery)
            pair = Sigmoid.fit(scores[:few].reshape(-1), right[:few].reshape(-1))
    return {"calibration": FORMAT, "checkpoints": dev.name.split(" + "),
            "weights": [model.weights for model in dev.models], "data_name": dev.data_name, "split": name,
            "similarity": dev.similarity, "images": dev.n_images, "captions": len(dev.caption_image),
            **fitted, "pair": {"slope": pair.slope, "bias": pair.bias}}
