"""Retrieval numbers against loops over their definitions, resampled ones against a slow sampler."""

import itertools
import random

import numpy as np
import pytest
import scipy.stats
import torch

import metrics
from tests.references import slow_ndcg, slow_precisions, slow_rank, slow_retrieval

SIDES = ("i2t", "t2i")


# ---- ranks and recalls of the original pairs


@pytest.mark.parametrize("digits", [0, 1, 7])  # many ties, some, none
@pytest.mark.parametrize("captions", [61, 80])
def test_retrieval_equals_definition(captions, digits, monkeypatch):
    rng = np.random.default_rng(captions)
    caption_image = rng.integers(
        0, 23, captions
    )  # unequal numbers, shuffled, some images with none
    scores = np.round(rng.standard_normal((23, captions)), digits).astype(np.float32)
    expected = slow_retrieval(scores, caption_image)
    for rows in (1, 4, metrics.ROWS_PER_BLOCK):
        monkeypatch.setattr(metrics, "ROWS_PER_BLOCK", rows)
        found = metrics.retrieval(torch.from_numpy(scores), caption_image.tolist())
        assert found.pop("rsum") == pytest.approx(expected["rsum"])
        assert found == {side: pytest.approx(expected[side]) for side in SIDES}


@pytest.mark.parametrize(
    "scores, owner, message",
    [
        ([[0, np.nan], [0, 0]], [0, 1], "NaN or infinity"),
        ([[0, np.inf], [0, 0]], [0, 1], "NaN or infinity"),
        (np.zeros((50, 10)), np.arange(50) // 5, "rows are images, columns captions"),
        (np.zeros((4, 5)), np.arange(5), "caption_image holds 0 to 4"),
    ],
)
def test_scores_that_cannot_be_ranked_raise(scores, owner, message):
    with pytest.raises(ValueError, match=message):
        metrics.retrieval(np.array(scores), owner)


def test_numbers_by_hand():
    assert (
        metrics.retrieval(torch.tensor([[1, 0.5], [0.25, 2]], dtype=torch.bfloat16), [0, 1])["rsum"]
        == 600
    )
    assert metrics.best_rank_means([0, 1, 3]) == pytest.approx(
        {"hbr": 3 / (1 + 1 / 2 + 1 / 4), "abr": 7 / 3}
    )


@pytest.mark.parametrize("owner, n", [([0, 0, 1, 1, 1, 3], 4), ([0] * 7, 1)])
def test_chance_is_the_mean_over_all_orders(owner, n):
    """Every order of a gallery, counted out; the median is over all queries and orders."""
    found = metrics.chance(np.array(owner), n)
    ranks = {
        "i2t": [
            next(k for k, c in enumerate(order) if owner[c] == i)
            for order in itertools.permutations(range(len(owner)))
            for i in set(owner)
        ],
        "t2i": [order.index(i) for order in itertools.permutations(range(n)) for i in owner],
    }
    for side, values in ranks.items():
        values = np.sort(values)
        assert {
            key: found[side][key] for key in ("r1", "r5", "r10", "medr", "meanr")
        } == pytest.approx(
            {
                **{f"r{k}": 100 * np.mean(values < k) for k in (1, 5, 10)},
                "medr": values[(len(values) - 1) // 2] + 1,
                "meanr": values.mean() + 1,
            }
        )
    assert found["rsum"] == pytest.approx(sum(found[s][f"r{k}"] for s in ranks for k in (1, 5, 10)))


# ---- queries with several positives


def as_pairs(sets):
    return (
        np.array(sorted((q, g) for q, items in enumerate(sets) for g in items), np.int64)
        .reshape(-1, 2)
        .T
    )


@pytest.mark.parametrize("digits", [0, 1, 6])  # many ties, some, none
@pytest.mark.parametrize("seed", range(3))
def test_several_positives_equal_definition(seed, digits):
    """Each query's own item is excluded; a query has 0 to all others as positives."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((14, 30)), digits).astype(np.float32)
    scores[np.arange(14), np.arange(14)] = -np.inf
    sizes = [0, 1, 29, 28, *rng.integers(1, 6, 10)]
    sets = [
        set(rng.permutation([g for g in range(30) if g != q])[:size].tolist())
        for q, size in enumerate(sizes)
    ]
    fewer = [set(sorted(s)[:2]) for s in sets]  # two sets of positives share one pass
    pairs = as_pairs(sets)
    ranks = [slow_rank(row, s) if s else -1 for row, s in zip(scores, sets)]
    assert metrics.best_ranks(scores, *pairs).tolist() == ranks
    expected = [slow_precisions(row, s) if s else (np.nan, np.nan) for row, s in zip(scores, sets)]
    precisions, of_fewer = metrics.r_precisions(scores, [pairs, as_pairs(fewer)])
    assert precisions == pytest.approx([rp for rp, _ in expected], nan_ok=True)
    assert of_fewer[1:] == pytest.approx(
        [slow_precisions(row, s)[0] for row, s in zip(scores[1:], fewer[1:])]
    )
    assert metrics.average_precisions(scores, *pairs) == pytest.approx(
        [ap for _, ap in expected], nan_ok=True
    )


@pytest.mark.parametrize("digits", [0, 1, 6])  # many ties, some, none
@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_ndcg_equals_its_definition(digits, k):
    rng = np.random.default_rng(k)
    scores = np.round(rng.standard_normal((14, 30)), digits).astype(np.float32)
    sizes = [0, 1, 30, 29, *rng.integers(1, 13, 10)]
    sets = [set(rng.permutation(30)[:size].tolist()) for size in sizes]
    expected = [slow_ndcg(row, s, k) if s else np.nan for row, s in zip(scores, sets)]
    found = metrics.ndcgs(scores, *as_pairs(sets), k)
    assert found == pytest.approx(expected, nan_ok=True)
    assert np.nanmax(found) <= 1 + 1e-12 and found[2] == pytest.approx(1)  # all items are right


# ---- correlations


@pytest.mark.parametrize("digits", [0, 1, 8])
def test_ties_are_counted_with_the_recall_of_the_best_case(digits):
    rng = np.random.default_rng(digits)
    owner = rng.integers(0, 9, 30)  # image 9 has no caption
    scores = rng.standard_normal((10, 30)).round(digits)
    found = metrics.count_ties(scores, owner, *metrics.ranks(scores, owner))
    rows = {
        "i2t": [
            (scores[i], [c for c in range(30) if owner[c] == i]) for i in range(9) if i in owner
        ],
        "t2i": [(scores[:, c], [owner[c]]) for c in range(30)],
    }
    expected = {}
    for side, queries in rows.items():
        worst = [slow_rank(row, positives) for row, positives in queries]
        best = [sum(x > max(row[p] for p in positives) for x in row) for row, positives in queries]
        tied = sum(a < b for a, b in zip(best, worst))
        if tied:
            expected[side] = {
                "queries": tied,
                "r1": pytest.approx(100 * np.mean(np.array(best) == 0)),
            }
    assert found == expected and (len(found) == 2) == (digits < 8)


@pytest.mark.parametrize("levels", [3, 20, 10**6])
def test_spearman_equals_scipy(levels):
    x, y = np.random.default_rng(levels).integers(levels, size=(2, 200))
    y = y + x // 2
    assert metrics.spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert np.isnan(metrics.spearman(x, np.ones(200)))


def test_sampled_spearman_equals_a_slow_one_in_distribution():
    """Items with many pairs are unlike those with one, so that drawing pairs and not items would show."""
    rng, slow_rng, slow = np.random.default_rng(1), random.Random(0), []
    query = rng.permutation(np.r_[np.arange(120), np.zeros(300, int), np.full(200, 1)])
    x = np.round(5 * rng.random(len(query)), 1)
    y = np.where(query < 2, -x, x + 1.5 * rng.standard_normal(len(query)))
    pairs_of = {q: np.flatnonzero(query == q).tolist() for q in range(120)}
    for _ in range(400):  # half of the items, one random pair of each
        pairs = [slow_rng.choice(pairs_of[q]) for q in slow_rng.sample(sorted(pairs_of), 60)]
        slow.append(scipy.stats.spearmanr(x[pairs], y[pairs]).statistic)
    fast = metrics.sampled_spearman(query, x, y, samples=400, seed=3)
    assert fast["spearman"] == pytest.approx(
        np.mean(slow), abs=5 * np.std(slow) / 20
    )  # means of 400 draws each
    assert fast["std"] == pytest.approx(np.std(slow), rel=0.25)
    assert metrics.sampled_spearman(query, x, y, samples=20, seed=3) == metrics.sampled_spearman(
        query, x, y, 20, 3
    )
    assert abs(metrics.sampled_spearman(np.arange(620), x, x, samples=1)["shuffled"]) < 4 / np.sqrt(
        310
    )  # by chance


# ---- uncertainty


@pytest.mark.parametrize("q", [103, 6])
def test_recall_in_bins_equals_definition(q):
    rng = np.random.default_rng(q)
    uncertainty, hits = np.round(3 * rng.random(q)), rng.random(q) < 0.6  # ties in uncertainty
    order = sorted(range(q), key=lambda k: uncertainty[k])  # stable
    sizes = [q // 10 + (b < q % 10) for b in range(10)]
    parts = [[order.pop(0) for _ in range(size)] for size in sizes if size]
    recall = [100 * sum(hits[k] for k in part) / len(part) for part in parts]
    result = metrics.recall_in_bins(uncertainty, hits, 10)
    assert result["recall"] == pytest.approx(recall)
    assert result["uncertainty"] == pytest.approx(
        [sum(uncertainty[k] for k in part) / len(part) for part in parts]
    )
    assert result["rho"] == pytest.approx(
        scipy.stats.spearmanr(range(len(recall)), recall).statistic
    )
    assert result["rho_queries"] == pytest.approx(
        scipy.stats.spearmanr(uncertainty, hits).statistic
    )


def slow_risks(order, hits):
    """Share of wrong answers among the first 1, 2, ... of an order."""
    return [100 * sum(not hits[k] for k in order[:n]) / n for n in range(1, len(order) + 1)]


@pytest.mark.parametrize("levels", [3, 10**6])  # many ties, none
def test_risk_coverage_is_the_mean_over_the_orders_of_ties(levels):
    rng = np.random.default_rng(1)
    uncertainty, hits = rng.integers(0, levels, 9), rng.random(9) < 0.5
    groups = [
        itertools.permutations(np.flatnonzero(uncertainty == level))
        for level in np.unique(uncertainty)
    ]
    risks = np.mean(
        [slow_risks(np.concatenate(parts), hits) for parts in itertools.product(*groups)], 0
    )
    result = metrics.risk_coverage(uncertainty, hits)
    assert result["coverage"] == pytest.approx([n / 9 for n in range(1, 10)])
    assert result["risk"] == pytest.approx(risks) and result["area"] == pytest.approx(risks.mean())
    assert result["area_random"] == pytest.approx(100 * (1 - hits.mean()))
    assert result["area_best"] == pytest.approx(np.mean(slow_risks(np.argsort(~hits), hits)))
    few = metrics.risk_coverage(uncertainty, hits, points=5)
    assert len(few["risk"]) == 5 and few["coverage"][-1] == 1 and few["area"] == result["area"]


# ---- is a difference real?


def hits_of_two_models(seeds=(1, 1), gain=0.0, noise=0.5):
    """Runs of two models, {metric: (total, count)} by image, whose seeds differ; images have 0 to 6 queries."""
    rng = np.random.default_rng(0)
    hard, count = rng.normal(size=120), rng.integers(0, 7, 120)

    def run(better):
        chance = 1 / (1 + np.exp(hard - better - noise * rng.normal()))
        return {"r1": (100.0 * rng.binomial(count, chance), count.astype(float))}

    return [run(0) for _ in range(seeds[0])], [run(gain) for _ in range(seeds[1])]


def bootstrap(a, b, **more):
    return metrics.paired_bootstrap(a, b, {}, **more)["r1"]


@pytest.mark.parametrize(
    "seeds, pairs",
    [((1, 1), False), ((3, 3), False), ((2, 5), False), ((1, 3), False), ((4, 4), True)],
)
def test_bootstrap_equals_a_slow_one(seeds, pairs):
    """Images with replacement; S - 1 of S seeds with replacement, the same of both sides where they are pairs, and
    their distance from the mean stretched by Student's t."""
    a, b = hits_of_two_models(seeds, gain=0.3)
    rng, differences = random.Random(5), []
    freedom = seeds[0] - 1 if pairs else sum(s - 1 for s in seeds)
    stretch = scipy.stats.t.ppf(0.975, freedom) / scipy.stats.norm.ppf(0.975) if freedom else 1
    for _ in range(3000):
        images, sides = [rng.randrange(120) for _ in range(120)], []
        drawn = [[rng.randrange(s) for _ in range(s - 1)] or [0] for s in seeds]
        for runs, chosen in zip((a, b), [drawn[0]] * 2 if pairs else drawn):
            recall = [run["r1"][0][images].sum() / run["r1"][1][images].sum() for run in runs]
            mean = sum(recall) / len(recall)
            sides.append(mean + stretch * (sum(recall[s] for s in chosen) / len(chosen) - mean))
        differences.append(sides[1] - sides[0])
    result = bootstrap(a, b, samples=4000, pairs=pairs)
    means = [np.mean([run["r1"][0].sum() / run["r1"][1].sum() for run in runs]) for runs in (a, b)]
    assert [result["a"], result["b"], result["difference"]] == pytest.approx(
        [*means, means[1] - means[0]]
    )
    for key, percent in (("low", 2.5), ("high", 97.5)):
        assert result[key] == pytest.approx(
            np.percentile(differences, percent), abs=0.2 * np.std(differences)
        )


def test_identical_models_do_not_differ():
    rng = np.random.default_rng(0)
    a = {f"m{k}": (rng.random(97), np.ones(97)) for k in range(7)}  # no exact numbers
    for m in metrics.paired_bootstrap(a, a, {"sum": list(a)}, samples=300).values():
        assert (m["p"], m["difference"], m["low"], m["high"], m["least"]) == (1, 0, 0, 0, False)


def test_p_of_a_certain_difference_is_the_least_that_the_samples_tell():
    a, b = hits_of_two_models(gain=2, noise=0)
    better, worse = bootstrap(a, b, samples=300), bootstrap(b, a, samples=300)
    assert (
        better["least"]
        and better["p"] == worse["p"] == pytest.approx(2 / 301)
        and better["low"] > 0
    )
    assert (worse["low"], worse["difference"]) == pytest.approx(
        (-better["high"], -better["difference"])
    )


def test_bootstrap_of_sums_draws_the_same_images_for_all_terms():
    (a,), (b,) = hits_of_two_models(gain=0.5)
    opposite = [
        {**run, "mirror": (100 * run["r1"][1] - run["r1"][0], run["r1"][1])} for run in (a, b)
    ]
    result = metrics.paired_bootstrap(*opposite, {"rsum": ["r1", "mirror"]}, samples=500)["rsum"]
    assert (result["a"], result["b"]) == (
        pytest.approx(100),
        pytest.approx(100),
    )  # recall + (100 - recall)
    assert result["low"] == pytest.approx(0, abs=1e-9) and result["high"] == pytest.approx(
        0, abs=1e-9
    )
    assert set(metrics.paired_bootstrap({**a, "only": a["r1"]}, b, {}, samples=50)) == {"r1"}


def test_bootstrap_where_few_images_have_queries():
    """Samples that hold no query say nothing of the metric; they must not make it look certain."""
    count = np.zeros(40)
    count[:2] = 1
    a, b = (
        {"r1": (hits * count, count)}
        for hits in (np.tile([0.0, 100.0], 20), np.tile([100.0, 0.0], 20))
    )
    result = bootstrap(a, b, samples=2000)
    assert (
        result["difference"] == 0
        and result["p"] > 0.5
        and (result["low"], result["high"]) == (-100, 100)
    )
