"""Phrase localisation against loops over phrases and proposals: ranks, measures and chance."""

from types import SimpleNamespace

import numpy as np
import pytest

from metrics import box_iou
from phrases.ranking import locate, measure_chance, measure_localisation
from utils import InputError

KINDS = ("animals", "clothing", "people")


def made(seed: int, photos: int = 25, most: int = 7) -> SimpleNamespace:
    """Photos with 1 to `most` small boxes and 0 to 5 phrases each; the first has no phrase. As a `PhraseSplit`."""
    rng = np.random.default_rng(seed)
    boxes = []
    start = [0]
    photo = []
    truth = []

    for n in range(photos):
        p = rng.integers(1, most + 1)
        corners = np.sort(rng.integers(0, 12, (p, 2, 2)), 1)
        boxes.append(corners.reshape(-1, 4))
        start.append(start[-1] + p)
        n_phrases = 0
        if n > 0:
            n_phrases = rng.integers(0, 6)
        for _ in range(n_phrases):
            photo.append(n)
            box = boxes[-1][rng.integers(p)] + rng.integers(-1, 2, 4)
            if rng.random() >= 0.8:
                box = [12, 12, 14, 14]  # far from all
            truth.append(box)

    truth = np.array(truth, float)
    truth[:, 2:] = np.maximum(truth[:, :2], truth[:, 2:])

    types = [tuple(sorted(rng.choice(KINDS, rng.integers(1, 3), replace=False))) for _ in photo]
    return SimpleNamespace(
        ids=[f"photo{n}" for n in range(photos)],
        boxes=np.concatenate(boxes).astype(np.float32),
        start=np.array(start),
        phrase_photo=np.array(photo),
        truth=truth,
        types=types,
        added=np.zeros(start[-1], bool),
    )


def drawn_scores(split, seed: int, levels: int = 1000):
    """Scores of every proposal with every phrase; few levels tie. Returns the function and the whole matrix."""
    shape = (len(split.boxes), len(split.phrase_photo))
    whole = np.random.default_rng(seed).integers(levels, size=shape) / levels

    def scores_of(n, columns):
        own = whole[split.start[n] : split.start[n + 1]]
        return own[:, columns].astype(np.float32)

    return scores_of, whole


@pytest.mark.parametrize("seed, levels", [(0, 1000), (1, 3), (2, 1)])
def test_locate_is_the_loop_over_phrases(seed, levels):
    split = made(seed)
    added = np.random.default_rng(4).random(len(split.boxes)) < 0.3  # in training; not ranked
    added[split.start[:-1]] = False  # of every photo one is its own
    split.added = added
    scores_of, whole = drawn_scores(split, seed, levels)

    located = locate(split, scores_of)

    for m, n in enumerate(split.phrase_photo):
        rows = [r for r in range(split.start[n], split.start[n + 1]) if not added[r]]
        iou = box_iou(split.boxes, split.truth[m : m + 1])[:, 0]
        # The most confident first; of ties, wrong boxes first.
        order = sorted(rows, key=lambda r: (-whole[r, m].astype(np.float32), iou[r] >= 0.5))
        right_ranks = [rank for rank, r in enumerate(order) if iou[r] >= 0.5]
        best_rank = -1
        if right_ranks:
            best_rank = right_ranks[0]
        assert located.rank[m] == best_rank
        assert located.proposals[m] == len(rows)
        assert located.hits[m] == len(right_ranks)
    assert {-1, 0} < set(located.rank.tolist())  # misses, hits and boxes between


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(bad):
    with pytest.raises(InputError, match="photo photo1: the scores hold NaN"):
        locate(made(0), lambda n, columns: np.full((1, 1), bad))


def assert_measures(found, ranks):
    """Of phrases, the rank of each among its boxes or -1."""
    n = len(ranks)
    assert found["phrases"] == n
    for k in (1, 5, 10):
        assert found[f"r{k}"] == pytest.approx(100 * sum(0 <= r < k for r in ranks) / n)
    assert found["upper"] == pytest.approx(100 * sum(r >= 0 for r in ranks) / n)
    assert found["rsum"] == pytest.approx(found["r1"] + found["r5"] + found["r10"])


def test_measures_are_counts_over_phrases():
    split = made(5, photos=60)
    scores_of, _ = drawn_scores(split, 5)
    located = locate(split, scores_of)

    found = measure_localisation(located, split)

    assert_measures(found, located.rank.tolist())
    for kind in KINDS:
        of_kind = [rank for rank, types in zip(located.rank, split.types) if kind in types]
        assert_measures(found["by_type"][kind], of_kind)
    assert found["photos"] == len(set(split.phrase_photo.tolist()))
    # Of several types each.
    assert sum(of["phrases"] for of in found["by_type"].values()) > found["phrases"]


def test_chance_is_that_of_random_orders():
    split = made(8, photos=12, most=14)
    keys = ("r1", "r5", "r10")
    scores_of, _ = drawn_scores(split, 0)

    expected = measure_chance(locate(split, scores_of))

    drawn = []
    for seed in range(300):
        scores_of, _ = drawn_scores(split, seed, 10**6)
        found = measure_localisation(locate(split, scores_of), split)
        drawn.append([found[key] for key in keys])
    error = np.abs(np.mean(drawn, 0) - [expected[key] for key in keys])
    assert (error < 4 * np.std(drawn, 0) / 300**0.5 + 1e-9).all()
    assert 0 < expected["r1"] < expected["r5"] < expected["r10"] <= expected["upper"]
    assert expected["upper"] == found["upper"] < 100
