"""Posterior over a gallery: the probability that each item is the target.

The posterior of item j for query q is p_qj = exp(T s_qj) / sum_k exp(T s_qk) (Hama et al. 2021,
arXiv 1904.08504), with a temperature T for each direction that is fitted on the dev split (Guo et
al. 2017, whose temperature is 1 / T).
"""

import functools
from typing import NamedTuple

import numpy as np
import torch

import metrics
from confidence.calibration import CALIBRATION_FORMAT, DIRECTIONS
from evaluation.embeddings import Embeddings
from metrics import Sigmoid, minimize_temperature
from utils import InputError

CACHED_SCORES = 2**18  # scores per pass: 1 MiB stays cached
SCORES_OF_PAIR = 2**22  # scores to fit the probability of a pair to, at least a row
SCORES_OF_TEMPERATURE = 2**24  # scores to fit a temperature to, 64 MiB
TIE = 2.0**-18  # of a score: 32 units of float32's last place, above rounding
NEGLIGIBLE = -80.0  # an exponential of less, 2e-35, is nothing beside 1, and slow


class Rows(NamedTuple):
    """Scores of one direction, row by row: Q queries against G items."""

    scores: np.ndarray  # (all queries of the split, G)
    queries: np.ndarray  # (Q,) positions in the split, rising
    owner: np.ndarray  # (Q,) the image of each query
    item_image: np.ndarray  # (G,) the image of each item, which is right for queries of this image

    @property
    def gallery(self) -> int:
        return len(self.item_image)

    def blocks(self):
        """Yield (scores (b, G), whether an item is right (b, G) bool) of all queries.

        Raises InputError where a score is not finite.
        """
        step = max(1, CACHED_SCORES // self.gallery)
        for start in range(0, len(self.queries), step):
            rows = slice(start, start + step)
            scores = metrics.check_finite(self.scores[self.queries[rows]])
            right = self.owner[rows, None] == self.item_image
            yield torch.from_numpy(np.ascontiguousarray(scores)), torch.from_numpy(right)


def rows_of(e: Embeddings, side: str, queries: np.ndarray | None = None) -> Rows:
    """Return the rows of one direction, "i2t" or "t2i".

    Of all queries that have an answer, or at positions `queries` (q,), rising.
    """
    captions = e.caption_image
    images = np.arange(e.n_images)
    if side == "t2i":
        if queries is None:
            queries = np.arange(len(captions))
        return Rows(e.scores.T, queries, captions[queries], images)

    if queries is None:
        queries = np.unique(captions)
    return Rows(e.scores, queries, queries, captions)


def rows_of_images(e: Embeddings, side: str, images: np.ndarray | None = None) -> Rows:
    """Return the rows of the queries of some images over the whole gallery.

    The queries are these images or their captions. images (n,): positions in the split; None: all.
    """
    if images is None:
        return rows_of(e, side)
    if side == "t2i":
        return rows_of(e, side, np.flatnonzero(np.isin(e.caption_image, images)))
    return rows_of(e, side, np.intersect1d(images, e.caption_image))


# ---- the top-1 answers


class Answers(NamedTuple):
    """First answers to Q queries."""

    first: np.ndarray  # (Q,) int64: position of the best item, the first of a tie
    right: np.ndarray  # (Q,) bool: it is right, and no wrong item ties with it
    max: np.ndarray  # (Q,) its score
    posterior: np.ndarray  # (Q,) in [0, 1]
    grouped: np.ndarray  # (Q,) posterior of all items of its image


@torch.no_grad()
def find_answers(rows: Rows, t: float) -> Answers:
    """Find the top-1 answers of all rows at a temperature t.

    Equal items get scores that differ in their last bits, by the product or the processor that made
    them. So an item ties with the best where it is less than TIE of the size of the scores below
    it.
    """
    item_image = torch.from_numpy(rows.item_image)
    parts = []
    for scores, right in rows.blocks():  # (b, G)
        best = scores.amax(1)  # (b,)
        below = scores - best[:, None]  # (b, G), at most 0
        gap = TIE * (abs(best) + below.std(1, correction=0))
        tied = below >= -gap[:, None]
        first = tied.int().argmax(1)
        hits = (tied & right).sum(1)
        is_right = (hits > 0) & (hits == tied.sum(1))

        mass = exponentiate_scores(below, t)
        total = mass.sum(1)  # (b,)
        same = item_image[first][:, None] == item_image  # (b, G)
        grouped = (mass * same).sum(1) / total
        parts.append((first, is_right, best, 1 / total, grouped))
    return Answers(*[torch.cat(blocks).numpy() for blocks in zip(*parts)])


def exponentiate_scores(below: torch.Tensor, t: float) -> torch.Tensor:
    """Compute the unnormalized posterior exp(T (s - max s)), at most 1, of s - max s."""
    return (t * below).clamp_(min=NEGLIGIBLE).exp_()


# ---- the temperature


def sample_queries(rows: Rows) -> Rows:
    """Draw random queries, of which there are at most SCORES_OF_TEMPERATURE scores."""
    count = max(1, SCORES_OF_TEMPERATURE // rows.gallery)
    order = np.random.default_rng(0).permutation(len(rows.queries))
    chosen = np.sort(order[:count])
    return rows._replace(queries=rows.queries[chosen], owner=rows.owner[chosen])


def sample_scores(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores (q, G) of `sample_queries`, and whether an item is right."""
    return join_blocks(sample_queries(rows))


def join_blocks(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all scores (Q, G), and whether an item is right (Q, G) bool."""
    scores, right = zip(*rows.blocks())
    return torch.cat(scores), torch.cat(right)


class TemperatureLoss:
    """-1/Q sum_q log sum_{j in right(q)} p_qj as a function of log T.

    With one right item per query it is convex in T.

    Args:
        scores: (Q, G).
        right: (Q, G) bool, at least one in each row.
    """

    def __init__(self, scores: torch.Tensor, right: torch.Tensor):
        scores = scores - scores.amax(1, keepdim=True)  # at most 0
        self.parts = scores.split(max(1, CACHED_SCORES // scores.shape[1]))

        self.query = right.nonzero()[:, 0]  # (P,)
        right_scores = scores[right].double()  # (P,)
        best = right_scores.new_full((len(scores),), -torch.inf)
        self.best = best.scatter_reduce(0, self.query, right_scores, "amax")  # (Q,)
        self.below_best = right_scores - self.best[self.query]

    def __call__(self, log_t: float, kind=torch.float64) -> float:
        t = float(np.exp(log_t))
        mass = [exponentiate_scores(part.to(kind), t).sum(1) for part in self.parts]
        mass = torch.cat(mass).double()  # (Q,) of all items, by the best item of all

        right = exponentiate_scores(self.below_best, t)
        mass_right = torch.zeros_like(mass).index_add_(0, self.query, right)  # by the best right
        return float((mass.log() - t * self.best - mass_right.log()).mean())


def fit_temperature(
    scores: torch.Tensor, right: torch.Tensor, advice: str = "train longer"
) -> float:
    """Fit T = argmin_T of `TemperatureLoss`. scores (Q, G), right (Q, G) bool: as there.

    The minimum is found in float64: a loss is flat there, and the last bits of float32 would move T
    by 1e-3. Raises InputError where the scores do not differ, or where no T within bounds is best:
    the scores do not tell what is right, or every top-1 answer is. advice: what to do where the
    former is so.
    """
    spread = float(scores.var(1, correction=0).mean().sqrt())
    if not spread > 0:
        raise InputError(
            "all scores of a query are equal, or there is one item, so no temperature fits them; "
            "check the embeddings, or calibrate on more images"
        )

    loss = TemperatureLoss(scores, right)
    rough_loss = functools.partial(loss, kind=torch.float32)
    minimum = minimize_temperature(loss, spread, rough_loss)
    if minimum.at_low:
        raise InputError(
            "no temperature fits: the scores do not tell matched pairs from others (the best T is "
            f"0); {advice}"
        )
    if minimum.at_high:
        raise InputError(
            "no temperature fits: every top-1 answer is right (the best T is infinite), so nothing "
            "tells how many others are; calibrate on more images"
        )
    return minimum.temperature


@torch.no_grad()
def estimate_interval(
    scores: torch.Tensor, right: torch.Tensor, t: float, owner: np.ndarray
) -> tuple[float, float]:
    """Estimate the 95% interval of a fitted temperature over other images.

    The queries of one image count as one observation: the variance of log T is the sandwich
    estimate with clusters (Liang and Zeger 1986). NaN for fewer than two images.

    Args:
        scores: (Q, G).
        right: (Q, G) bool, as `fit_temperature` takes them.
        t: the fitted temperature.
        owner: (Q,), the image of each query.
    """
    slopes = []  # of the loss in log T
    curvature = 0.0
    step = max(1, CACHED_SCORES // scores.shape[1])
    for part, is_right in zip(scores.split(step), right.split(step)):
        z = t * (part - part.amax(1, keepdim=True)).double()
        mean, variance = weigh_moments(z)
        mean_right, variance_right = weigh_moments(z.masked_fill(~is_right, -torch.inf))
        slopes.append(mean - mean_right)
        curvature += float((variance - variance_right + mean - mean_right).sum())

    _, image = np.unique(owner, return_inverse=True)
    count = int(image.max()) + 1
    if count < 2 or curvature <= 0:
        return float("nan"), float("nan")
    of_image = np.bincount(image, torch.cat(slopes).numpy())  # (C,)
    deviation = np.sqrt((of_image**2).sum() * count / (count - 1)) / curvature
    low = t * np.exp(-1.96 * deviation)
    high = t * np.exp(1.96 * deviation)
    return float(low), float(high)


def weigh_moments(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute mean and variance (b,) of z (b, G) under its own softmax; -inf has no weight."""
    p = z.softmax(1)
    finite = z.masked_fill(z == -torch.inf, 0.0)
    mean = (p * finite).sum(1)
    square = (p * finite.square()).sum(1)
    return mean, square - mean.square()


@torch.no_grad()
def expected_number(rows: Rows, pair: Sigmoid) -> np.ndarray:
    """Sum probabilities to the number of items that fit each query: (Q,)."""
    sums = [pair(scores).sum(1).cpu().numpy() for scores, _ in rows.blocks()]
    return np.concatenate(sums)


# ---- calibration.json


def calibrate(dev: Embeddings, name: str, images: np.ndarray | None = None) -> dict:
    """Fit the content of calibration.json to dev: temperatures, and the probability of a pair.

    The latter is that an image and a caption match, against all others. Sets and words are added
    by those who fit them. Raises InputError where nothing fits.

    Args:
        dev: the items.
        name: of dev, for the reader.
        images: positions (n,) of images; only their queries are fitted to, over the whole gallery.
    """
    advice = "train longer"
    if not dev.models:  # arrays or a file: another program has trained the model
        advice = "check that the rows belong together, and that higher scores are better"

    fitted = {}
    for side in DIRECTIONS:
        rows = rows_of_images(dev, side, images)
        sample = sample_queries(rows)
        scores, right = join_blocks(sample)
        best = scores.amax(1, keepdim=True)
        wrong = ((scores == best) & ~right).any(1)  # top-1 answers, with ties
        t = fit_temperature(scores, right, advice)
        low, high = estimate_interval(scores, right, t, sample.owner)
        fitted[side] = {
            "temperature": t,
            "low": low,
            "high": high,
            "queries": len(rows.queries),
            "gallery": rows.gallery,
            "wrong": int(wrong.sum()),
            "deviation": float(scores.var(1, correction=0).mean().sqrt()),
        }
        if side == "t2i":
            # the queries are in the order of the split, so some from all of it
            few = min(len(scores), max(1, SCORES_OF_PAIR // rows.gallery))
            chosen = np.linspace(0, len(scores) - 1, few).astype(int)
            pair = Sigmoid.fit(scores[chosen].reshape(-1), right[chosen].reshape(-1))

    return {
        "calibration": CALIBRATION_FORMAT,
        "checkpoints": dev.name.split(" + "),
        "weights": [model.weights for model in dev.models],
        "data_name": dev.data_name,
        "split": name,
        "similarity": dev.similarity,
        "images": dev.n_images,
        "captions": len(dev.caption_image),
        **fitted,
        "pair": {"slope": pair.slope, "bias": pair.bias},
    }
