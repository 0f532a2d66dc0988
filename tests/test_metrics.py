"""Worked examples by hand, and random matrices against a reference written from the definition."""
import numpy as np
import pytest
import torch

import metrics
from losses import SIMILARITIES, Embedding


def reference_rank(row, positives):
    """Number of non-positive items that score at least as high as the best positive."""
    best = max(row[p] for p in positives)
    return sum(1 for g, score in enumerate(row) if g not in positives and score >= best)


def reference(scores, caption_image):
    """Both directions by loops; images without captions are no queries."""
    n, m = scores.shape
    own = [[c for c in range(m) if caption_image[c] == i] for i in range(n)]
    i2t = [reference_rank(scores[i], own[i]) for i in range(n) if own[i]]
    t2i = [reference_rank(scores[:, c], [caption_image[c]]) for c in range(m)]
    result = {}
    for side, ranks in (("i2t", i2t), ("t2i", t2i)):
        ordered = sorted(ranks)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        result[side] = {"r1": 100 * sum(r < 1 for r in ranks) / len(ranks), "r5": 100 * sum(r < 5 for r in ranks) / len(ranks),
                        "r10": 100 * sum(r < 10 for r in ranks) / len(ranks), "medr": middle // 1 + 1,
                        "meanr": sum(ranks) / len(ranks) + 1, "queries": len(ranks)}
    result["rsum"] = sum(result[side][k] for side in ("i2t", "t2i") for k in ("r1", "r5", "r10"))
    return result


def same(a, b):
    assert set(a) == {"i2t", "t2i", "rsum"}
    for side in ("i2t", "t2i"):
        assert a[side] == pytest.approx(b[side])
    assert a["rsum"] == pytest.approx(b["rsum"])


def test_worked_example():
    scores = np.array([[0.9, 0.1, 0.8, 0.2],     # image 0 owns captions 0, 1: best 0.9, nothing above: rank 0
                       [0.7, 0.3, 0.6, 0.5]])    # image 1 owns captions 2, 3: best 0.6, caption 0 above: rank 1
    result = metrics.retrieval(scores, [0, 0, 1, 1])
    assert result["i2t"] == {"r1": 50.0, "r5": 100.0, "r10": 100.0, "medr": 1.0, "meanr": 1.5, "queries": 2}
    # caption 0: 0.9 beats 0.7; caption 1: 0.1 loses to 0.3; caption 2: 0.6 loses to 0.8; caption 3: 0.5 beats 0.2
    assert result["t2i"] == {"r1": 50.0, "r5": 100.0, "r10": 100.0, "medr": 1.0, "meanr": 1.5, "queries": 4}
    assert result["rsum"] == 500.0


def test_medr_is_the_floor_of_the_median_plus_one():
    assert metrics.summary([0, 1, 2, 7])["medr"] == 2.0      # median 1.5
    assert metrics.summary([0, 2, 7])["medr"] == 3.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ties", [False, True])
def test_retrieval_equals_definition(seed, ties):
    rng = np.random.default_rng(seed)
    caption_image = rng.integers(0, 23, 61)                  # unequal numbers of captions, shuffled, some images with none
    scores = rng.standard_normal((23, 61)).astype(np.float32)
    scores = np.round(scores) if ties else scores
    same(metrics.retrieval(scores, caption_image), reference(scores, caption_image))
    same(metrics.retrieval(torch.from_numpy(scores), caption_image.tolist()), reference(scores, caption_image))


@pytest.mark.parametrize("block", [1, 4, 7, 100])
def test_blocks_equal_whole(block):
    rng = np.random.default_rng(0)
    scores, caption_image = np.round(rng.standard_normal((20, 50)), 1), rng.integers(0, 20, 50)
    i2t, t2i = metrics.ranks(lambda i, c: torch.from_numpy(scores)[i, c], caption_image, 20, block)
    same(metrics.both_directions(i2t[i2t >= 0], t2i), reference(scores, caption_image))


@pytest.mark.parametrize("name", ["cosine", "wasserstein", "kl", "minkl", "order"])
def test_retrieval_blocks_equals_retrieval(name):
    g = torch.Generator().manual_seed(0)
    gaussian = SIMILARITIES[name].gaussian_sides == 2
    images = Embedding(torch.randn(30, 8, generator=g), torch.randn(30, 8, generator=g) if gaussian else None)
    captions = Embedding(torch.randn(150, 8, generator=g), torch.randn(150, 8, generator=g) if gaussian else None)
    caption_image = np.random.default_rng(0).permutation(np.arange(150) // 5)
    similarity = SIMILARITIES[name]()
    whole = reference(similarity(images, captions).numpy(), caption_image)
    for block in (7, 30, 1000):
        same(metrics.retrieval_blocks(similarity, images, captions, caption_image, block=block), whole)


def test_ties_count_against_the_model():
    """A constant model knows nothing, so it must not be credited with a first rank."""
    result = metrics.retrieval(np.ones((10, 50)), np.arange(50) // 5)
    assert result["i2t"]["r10"] == 0 and result["i2t"]["meanr"] == 46      # 45 captions of others, all tied
    assert result["t2i"]["r5"] == 0 and result["t2i"]["meanr"] == 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_scores_raise(bad):
    scores = np.random.default_rng(0).standard_normal((4, 8))
    scores[2, 5] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        metrics.retrieval(scores, np.arange(8) // 2)


def test_half_precision_is_ranked_in_float32():
    scores = torch.tensor([[1.0, 0.5], [0.25, 2.0]], dtype=torch.bfloat16)
    assert metrics.retrieval(scores, [0, 1])["rsum"] == 600


def test_wrong_shapes_raise():
    with pytest.raises(ValueError, match="rows are images, columns captions"):
        metrics.retrieval(np.zeros((50, 10)), np.arange(50) // 5)
    with pytest.raises(ValueError, match="caption_image holds 0 to 4"):
        metrics.retrieval(np.zeros((4, 5)), np.arange(5))


@pytest.mark.parametrize("seed", range(3))
def test_best_ranks_and_r_precision_equal_definition(seed):
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((12, 40)), 1)
    positives = rng.random((12, 40)) < 0.1
    positives[np.arange(12), rng.integers(0, 40, 12)] = True
    lists = [np.flatnonzero(row) for row in positives]
    ranks = [reference_rank(row, set(p)) for row, p in zip(scores, lists)]
    assert metrics.best_ranks(scores, positives).tolist() == ranks
    assert metrics.best_ranks(scores, lists).tolist() == ranks
    for row, p, value in zip(scores, lists, metrics.r_precision(scores, lists)):
        order = sorted(range(40), key=lambda g: (-row[g], g in p))          # noqa: B023  ties: non-positives first
        assert value == pytest.approx(sum(g in p for g in order[:len(p)]) / len(p))


def test_best_ranks_takes_one_positive_a_query_and_an_excluded_self():
    scores = np.array([[-np.inf, 0.3, 0.9], [0.3, -np.inf, 0.1], [0.9, 0.1, -np.inf]])
    assert metrics.best_ranks(scores, [1, 0, 1]).tolist() == [1, 0, 1]


def test_queries_without_positives_raise():
    with pytest.raises(ValueError, match="1 queries have no positive, the first is query 1"):
        metrics.best_ranks(np.zeros((3, 4)), [[0], [], [2]])
    with pytest.raises(ValueError, match="3 queries"):
        metrics.best_ranks(np.zeros((3, 4)), [[0], [1]])
    with pytest.raises(ValueError, match="outside its gallery"):
        metrics.best_ranks(np.array([[-np.inf, 1.0]]), [[0]])


def test_average_of_folds():
    folds = [metrics.both_directions([0, 1], [0, 0]), metrics.both_directions([0, 9], [3, 0])]
    result = metrics.average(folds)
    assert result["i2t"]["r1"] == 50 and result["i2t"]["meanr"] == pytest.approx((1.5 + 5.5) / 2)
    assert result["t2i"]["r1"] == 75 and result["t2i"]["queries"] == 4
    assert result["rsum"] == pytest.approx(np.mean([f["rsum"] for f in folds]))
