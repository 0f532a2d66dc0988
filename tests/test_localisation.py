"""Phrase localisation against loops over phrases and proposals: ranks, measures and chance."""

from types import SimpleNamespace

import numpy as np
import pytest

from cli import InputError
from metrics import box_iou
from phrases.ranking import locate, measure_chance, measure_localisation

KINDS = ("animals", "clothing", "people")


def made(seed: int, photos: int = 25, most: int = 7) -> SimpleNamespace:
    """Photos with 1 to `most` small boxes and 0 to 5 phrases each; the first has no phrase. As a `PhraseSplit`."""
    rng = np.random.default_rng(seed)
    boxes, start, photo, truth = [], [0], [], []
    for n in range(photos):
        p = rng.integers(1, most + 1)
        corners = np.sort(rng.integers(0, 12, (p, 2, 2)), 1)
        boxes.append(corners.reshape(-1, 4))
        start.append(start[-1] + p)
        for _ in range(0 if n == 0 else rng.integers(0, 6)):
            photo.append(n)
            near = boxes[-1][rng.integers(p)] + rng.integers(-1, 2, 4)
            truth.append(near if rng.random() < 0.8 else [12, 12, 14, 14])
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
    whole = (
        np.random.default_rng(seed).integers(
            levels, size=(len(split.boxes), len(split.phrase_photo))
        )
        / levels
    )
    return (
        lambda n, columns: whole[split.start[n] : split.start[n + 1]][:, columns].astype(np.float32)
    ), whole


@pytest.mark.parametrize("seed, levels", [(0, 1000), (1, 3), (2, 1)])
def test_locate_is_the_loop_over_phrases(seed, levels):
    split = made(seed)
    added = (
        np.random.default_rng(4).random(len(split.boxes)) < 0.3
    )  # in training, which are not ranked
    added[split.start[:-1]] = False  # of every photo one is its own
    split.added = added
    scores_of, whole = drawn_scores(split, seed, levels)
    located = locate(split, scores_of)
    for m, n in enumerate(split.phrase_photo):
        rows = [r for r in range(split.start[n], split.start[n + 1]) if not added[r]]
        right = {
            r: box_iou(split.boxes[r : r + 1], split.truth[m : m + 1])[0, 0] >= 0.5 for r in rows
        }
        order = sorted(
            rows, key=lambda r: (-whole[r, m].astype(np.float32), right[r])
        )  # of ties, wrong boxes first
        assert located.rank[m] == next((k for k, r in enumerate(order) if right[r]), -1)
        assert located.proposals[m] == len(rows) and located.hits[m] == sum(right.values())
    assert {-1, 0} < set(located.rank.tolist())  # misses, hits and boxes between


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(bad):
    with pytest.raises(InputError, match="photo photo1: the scores hold NaN"):
        locate(made(0), lambda n, columns: np.full((1, 1), bad))


def test_measures_are_counts_over_phrases():
    split = made(5, photos=60)
    located = locate(split, drawn_scores(split, 5)[0])
    found = measure_localisation(located, split)
    every = np.arange(len(split.types))
    groups = {kind: [m for m in every if kind in split.types[m]] for kind in KINDS}
    for of, chosen in [
        (found, every),
        *((found["by_type"][kind], m) for kind, m in groups.items()),
    ]:
        ranks = [located.rank[m] for m in chosen]
        expected = {
            **{f"r{k}": 100 * sum(0 <= r < k for r in ranks) / len(ranks) for k in (1, 5, 10)},
            "upper": 100 * sum(r >= 0 for r in ranks) / len(ranks),
            "phrases": len(ranks),
        }
        assert {key: of[key] for key in expected} == pytest.approx(expected)
        assert of["rsum"] == pytest.approx(of["r1"] + of["r5"] + of["r10"])
    assert found["photos"] == len(set(split.phrase_photo.tolist()))
    assert (
        sum(of["phrases"] for of in found["by_type"].values()) > found["phrases"]
    )  # of several types each


def test_chance_is_that_of_random_orders():
    split, keys = made(8, photos=12, most=14), ("r1", "r5", "r10")
    expected, drawn = measure_chance(locate(split, drawn_scores(split, 0)[0])), []
    for seed in range(300):
        found = measure_localisation(locate(split, drawn_scores(split, seed, 10**6)[0]), split)
        drawn.append([found[key] for key in keys])
    error = np.abs(np.mean(drawn, 0) - [expected[key] for key in keys])
    assert (error < 4 * np.std(drawn, 0) / 300**0.5 + 1e-9).all()
    assert (
        0
        < expected["r1"]
        < expected["r5"]
        < expected["r10"]
        <= expected["upper"]
        == found["upper"]
        < 100
    )
