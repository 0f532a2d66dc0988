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
    scores = torch.tensor([[1, 0.5], [0.25, 2]], dtype=torch.bfloat16)
    assert metrics.retrieval(scores, [0, 1])["rsum"] == 600
    means = metrics.best_rank_means([0, 1, 3])
    assert means == pytest.approx({"hbr": 3 / (1 + 1 / 2 + 1 / 4), "abr": 7 / 3})


@pytest.mark.parametrize("owner, n", [([0, 0, 1, 1, 1, 3], 4), ([0, 0, 0, 0, 0, 0, 0], 1)])
def test_chance_is_the_mean_over_all_orders(owner, n):
    """Every order of a gallery, counted out; the median is over all queries and orders."""
    found = metrics.chance(np.array(owner), n)

    ranks_of_images = []
    for order in itertools.permutations(range(len(owner))):
        owners_in_order = [owner[c] for c in order]
        ranks_of_images += [owners_in_order.index(i) for i in set(owner)]
    ranks_of_captions = []
    for order in itertools.permutations(range(n)):
        ranks_of_captions += [order.index(i) for i in owner]

    rsum = 0
    for side, values in (("i2t", ranks_of_images), ("t2i", ranks_of_captions)):
        values = np.sort(values)
        expected = {f"r{k}": 100 * np.mean(values < k) for k in (1, 5, 10)}
        expected["medr"] = values[(len(values) - 1) // 2] + 1
        expected["meanr"] = values.mean() + 1
        assert {key: found[side][key] for key in expected} == pytest.approx(expected)
        rsum += sum(found[side][f"r{k}"] for k in (1, 5, 10))
    assert found["rsum"] == pytest.approx(rsum)


# ---- queries with several positives


def as_pairs(sets):
    """Queries and items of all positives, each (n,), sorted."""
    pairs = []
    for query, items in enumerate(sets):
        pairs += [(query, item) for item in sorted(items)]
    return np.array(pairs, np.int64).reshape(-1, 2).T


@pytest.mark.parametrize("digits", [0, 1, 6])  # many ties, some, none
@pytest.mark.parametrize("seed", range(3))
def test_several_positives_equal_definition(seed, digits):
    """Each query's own item is excluded; a query has 0 to all others as positives."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((14, 30)), digits).astype(np.float32)
    scores[np.arange(14), np.arange(14)] = -np.inf
    sizes = [0, 1, 29, 28, *rng.integers(1, 6, 10)]
    sets = []
    for query, size in enumerate(sizes):
        others = [item for item in range(30) if item != query]
        sets.append(set(rng.permutation(others)[:size].tolist()))
    fewer = [set(sorted(s)[:2]) for s in sets]  # two sets of positives share one pass
    ranks = []
    of_precisions = []
    averages = []
    for row, positives in zip(scores, sets):
        rank = -1
        precision = np.nan
        average = np.nan
        if positives:
            rank = slow_rank(row, positives)
            precision, average = slow_precisions(row, positives)
        ranks.append(rank)
        of_precisions.append(precision)
        averages.append(average)
    expected_of_fewer = [slow_precisions(row, s)[0] for row, s in zip(scores[1:], fewer[1:])]

    pairs = as_pairs(sets)
    precisions, of_fewer = metrics.r_precisions(scores, [pairs, as_pairs(fewer)])

    assert metrics.best_ranks(scores, *pairs).tolist() == ranks
    assert precisions == pytest.approx(of_precisions, nan_ok=True)
    assert of_fewer[1:] == pytest.approx(expected_of_fewer)
    found = metrics.average_precisions(scores, *pairs)
    assert found == pytest.approx(averages, nan_ok=True)


@pytest.mark.parametrize("digits", [0, 1, 6])  # many ties, some, none
@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_ndcg_equals_its_definition(digits, k):
    rng = np.random.default_rng(k)
    scores = np.round(rng.standard_normal((14, 30)), digits).astype(np.float32)
    sizes = [0, 1, 30, 29, *rng.integers(1, 13, 10)]
    sets = [set(rng.permutation(30)[:size].tolist()) for size in sizes]
    expected = np.full(14, np.nan)
    for query, positives in enumerate(sets):
        if positives:
            expected[query] = slow_ndcg(scores[query], positives, k)

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

    of_images = []
    for image in set(owner.tolist()):
        captions = [c for c in range(30) if owner[c] == image]
        of_images.append((scores[image], captions))
    of_captions = [(scores[:, c], [owner[c]]) for c in range(30)]
    expected = {}
    for side, queries in (("i2t", of_images), ("t2i", of_captions)):
        worst = []
        best = []
        for row, positives in queries:
            highest = max(row[p] for p in positives)
            worst.append(slow_rank(row, positives))
            best.append(sum(x > highest for x in row))
        tied = sum(a < b for a, b in zip(best, worst))
        if tied:
            recall = 100 * np.mean(np.array(best) == 0)
            expected[side] = {"queries": tied, "r1": pytest.approx(recall)}
    assert found == expected and (len(found) == 2) == (digits < 8)


@pytest.mark.parametrize("levels", [3, 20, 10**6])
def test_spearman_equals_scipy(levels):
    x, y = np.random.default_rng(levels).integers(levels, size=(2, 200))
    y = y + x // 2
    assert metrics.spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert np.isnan(metrics.spearman(x, np.ones(200)))


def test_sampled_spearman_equals_a_slow_one_in_distribution():
    """Items with many pairs are unlike those with one, so that drawing pairs and not items would show."""
    rng = np.random.default_rng(1)
    slow_rng = random.Random(0)
    slow = []
    query = rng.permutation(np.r_[np.arange(120), np.zeros(300, int), np.full(200, 1)])
    x = np.round(5 * rng.random(len(query)), 1)
    y = np.where(query < 2, -x, x + 1.5 * rng.standard_normal(len(query)))
    pairs_of = {q: np.flatnonzero(query == q).tolist() for q in range(120)}
    for _ in range(400):  # half of the items, one random pair of each
        pairs = [slow_rng.choice(pairs_of[q]) for q in slow_rng.sample(sorted(pairs_of), 60)]
        slow.append(scipy.stats.spearmanr(x[pairs], y[pairs]).statistic)

    fast = metrics.sampled_spearman(query, x, y, samples=400, seed=3)

    # means of 400 draws each
    assert fast["spearman"] == pytest.approx(np.mean(slow), abs=5 * np.std(slow) / 20)
    assert fast["std"] == pytest.approx(np.std(slow), rel=0.25)

    by_name = metrics.sampled_spearman(query, x, y, samples=20, seed=3)
    assert by_name == metrics.sampled_spearman(query, x, y, 20, 3)
    of_distinct_items = metrics.sampled_spearman(np.arange(620), x, x, samples=1)
    assert abs(of_distinct_items["shuffled"]) < 4 / np.sqrt(310)  # by chance


# ---- uncertainty


@pytest.mark.parametrize("q", [103, 6])
def test_recall_in_bins_equals_definition(q):
    rng = np.random.default_rng(q)
    uncertainty = np.round(3 * rng.random(q))  # with ties
    hits = rng.random(q) < 0.6
    order = sorted(range(q), key=lambda k: uncertainty[k])  # stable
    sizes = [q // 10 + (b < q % 10) for b in range(10)]
    parts = [[order.pop(0) for _ in range(size)] for size in sizes if size]
    recall = [100 * sum(hits[k] for k in part) / len(part) for part in parts]
    means = [sum(uncertainty[k] for k in part) / len(part) for part in parts]

    result = metrics.recall_in_bins(uncertainty, hits, 10)

    assert result["recall"] == pytest.approx(recall)
    assert result["uncertainty"] == pytest.approx(means)
    rho = scipy.stats.spearmanr(range(len(recall)), recall).statistic
    assert result["rho"] == pytest.approx(rho)
    rho = scipy.stats.spearmanr(uncertainty, hits).statistic
    assert result["rho_queries"] == pytest.approx(rho)


def slow_risks(order, hits):
    """Share of wrong answers among the first 1, 2, ... of an order."""
    risks = []
    for n in range(1, len(order) + 1):
        wrong = sum(not hits[k] for k in order[:n])
        risks.append(100 * wrong / n)
    return risks


@pytest.mark.parametrize("levels", [3, 10**6])  # many ties, none
def test_risk_coverage_is_the_mean_over_the_orders_of_ties(levels):
    rng = np.random.default_rng(1)
    uncertainty = rng.integers(0, levels, 9)
    hits = rng.random(9) < 0.5
    groups = []
    for level in np.unique(uncertainty):
        groups.append(itertools.permutations(np.flatnonzero(uncertainty == level)))
    orders = [np.concatenate(parts) for parts in itertools.product(*groups)]
    risks = np.mean([slow_risks(order, hits) for order in orders], 0)

    result = metrics.risk_coverage(uncertainty, hits)

    assert result["coverage"] == pytest.approx([n / 9 for n in range(1, 10)])
    assert result["risk"] == pytest.approx(risks) and result["area"] == pytest.approx(risks.mean())
    assert result["area_random"] == pytest.approx(100 * (1 - hits.mean()))
    assert result["area_best"] == pytest.approx(np.mean(slow_risks(np.argsort(~hits), hits)))
    assert result["area_best"] == pytest.approx(np.mean(slow_risks(np.argsort(~hits), hits)))

    few = metrics.risk_coverage(uncertainty, hits, points=5)
    assert len(few["risk"]) == 5 and few["coverage"][-1] == 1 and few["area"] == result["area"]


# ---- is a difference real?


def hits_of_two_models(seeds=(1, 1), gain=0.0, noise=0.5):
    """Runs of two models, {metric: (total, count)} by image, whose seeds differ; images have 0 to 6 queries."""
    rng = np.random.default_rng(0)
    hard = rng.normal(size=120)
    count = rng.integers(0, 7, 120)

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
    rng = random.Random(5)
    differences = []
    freedom = sum(s - 1 for s in seeds)
    if pairs:
        freedom = seeds[0] - 1
    stretch = 1
    if freedom:
        stretch = scipy.stats.t.ppf(0.975, freedom) / scipy.stats.norm.ppf(0.975)
    for _ in range(3000):
        images = np.array([rng.randrange(120) for _ in range(120)])
        drawn = [[rng.randrange(s) for _ in range(s - 1)] or [0] for s in seeds]
        if pairs:
            drawn[1] = drawn[0]
        sides = []
        for runs, chosen in zip((a, b), drawn):
            recall = [run["r1"][0][images].sum() / run["r1"][1][images].sum() for run in runs]
            mean = sum(recall) / len(recall)
            sides.append(mean + stretch * (sum(recall[s] for s in chosen) / len(chosen) - mean))
        differences.append(sides[1] - sides[0])

    result = bootstrap(a, b, samples=4000, pairs=pairs)

    means = []
    for runs in (a, b):
        means.append(np.mean([run["r1"][0].sum() / run["r1"][1].sum() for run in runs]))
    assert [result["a"], result["b"]] == pytest.approx(means)
    assert result["difference"] == pytest.approx(means[1] - means[0])
    tolerance = 0.2 * np.std(differences)
    for key, percent in (("low", 2.5), ("high", 97.5)):
        assert result[key] == pytest.approx(np.percentile(differences, percent), abs=tolerance)


def test_identical_models_do_not_differ():
    rng = np.random.default_rng(0)
    a = {f"m{k}": (rng.random(97), np.ones(97)) for k in range(7)}  # no exact numbers
    for m in metrics.paired_bootstrap(a, a, {"sum": list(a)}, samples=300).values():
        assert (m["p"], m["difference"], m["low"], m["high"], m["least"]) == (1, 0, 0, 0, False)


def test_p_of_a_certain_difference_is_the_least_that_the_samples_tell():
    a, b = hits_of_two_models(gain=2, noise=0)
    better = bootstrap(a, b, samples=300)
    worse = bootstrap(b, a, samples=300)
    assert better["least"] and better["low"] > 0
    assert better["p"] == worse["p"] == pytest.approx(2 / 301)
    assert worse["low"] == pytest.approx(-better["high"])
    assert worse["difference"] == pytest.approx(-better["difference"])


def test_bootstrap_of_sums_draws_the_same_images_for_all_terms():
    (a,), (b,) = hits_of_two_models(gain=0.5)
    opposite = []
    for run in (a, b):
        total, count = run["r1"]
        opposite.append({**run, "mirror": (100 * count - total, count)})

    result = metrics.paired_bootstrap(*opposite, {"rsum": ["r1", "mirror"]}, samples=500)["rsum"]

    # recall + (100 - recall)
    assert result["a"] == pytest.approx(100) and result["b"] == pytest.approx(100)
    assert result["low"] == pytest.approx(0, abs=1e-9)
    assert result["high"] == pytest.approx(0, abs=1e-9)
    assert set(metrics.paired_bootstrap({**a, "only": a["r1"]}, b, {}, samples=50)) == {"r1"}


def test_bootstrap_where_few_images_have_queries():
    """Samples that hold no query say nothing of the metric; they must not make it look certain."""
    count = np.zeros(40)
    count[:2] = 1
    a = {"r1": (np.tile([0.0, 100.0], 20) * count, count)}
    b = {"r1": (np.tile([100.0, 0.0], 20) * count, count)}

    result = bootstrap(a, b, samples=2000)

    assert result["difference"] == 0 and result["p"] > 0.5
    assert (result["low"], result["high"]) == (-100, 100)
