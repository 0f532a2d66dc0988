"""Worked examples by hand, and random matrices against a reference written from the definition."""
import itertools
import json
import math
import os
import random

import numpy as np
import pytest
import scipy.stats
import torch

import metrics
from losses import Embedding, formulas, trait

FORMULAS = formulas()


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
        result[side] = {"r1": 100 * sum(r < 1 for r in ranks) / len(ranks),
                        "r5": 100 * sum(r < 5 for r in ranks) / len(ranks),
                        "r10": 100 * sum(r < 10 for r in ranks) / len(ranks), "medr": middle // 1 + 1,
                        "meanr": sum(ranks) / len(ranks) + 1, "queries": len(ranks)}
    result["rsum"] = sum(result[side][k] for side in ("i2t", "t2i") for k in ("r1", "r5", "r10"))
    return result


def test_mean_cosine_against_all_pairs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 5))
    x[3] = 0                                                 # of no direction: cosine 0 with all others
    rows = [row / (math.sqrt(sum(v * v for v in row)) or 1) for row in x]
    slow = np.mean([np.dot(rows[i], rows[j]) for i in range(7) for j in range(7) if i != j])
    assert metrics.mean_cosine(torch.tensor(x)) == pytest.approx(slow, abs=1e-12)
    parts = torch.tensor(np.stack([x + 1, x - 1], 1))        # (7, 2, 5): their mean is x
    assert metrics.mean_cosine(parts) == pytest.approx(slow, abs=1e-12)
    assert metrics.mean_cosine(torch.ones(4, 3)) == pytest.approx(1) and metrics.mean_cosine(torch.ones(1, 3)) == 0
    assert metrics.mean_cosine(torch.tensor([[1.0, 0], [-1, 0]])) == pytest.approx(-1)


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
    caption_image = rng.integers(0, 23, 61)  # unequal numbers of captions, shuffled, some images with none
    scores = rng.standard_normal((23, 61)).astype(np.float32)
    scores = np.round(scores) if ties else scores
    same(metrics.retrieval(scores, caption_image), reference(scores, caption_image))
    same(metrics.retrieval(torch.from_numpy(scores), caption_image.tolist()), reference(scores, caption_image))


@pytest.mark.parametrize("block", [1, 4, 7, 100])
def test_blocks_equal_whole(block):
    rng = np.random.default_rng(0)
    scores, caption_image = np.round(rng.standard_normal((20, 50)), 1), rng.integers(0, 20, 50)
    i2t, t2i = metrics.ranks(scores, caption_image, block)
    same(metrics.both_directions(i2t[i2t >= 0], t2i), reference(scores, caption_image))


@pytest.mark.parametrize("name", ["cosine", "wasserstein", "kl", "minkl", "order"])
def test_retrieval_blocks_equals_retrieval(name):
    g = torch.Generator().manual_seed(0)
    gaussian = trait(FORMULAS[name], "gaussian_sides") == 2
    images = Embedding(torch.randn(30, 8, generator=g), torch.randn(30, 8, generator=g) if gaussian else None)
    captions = Embedding(torch.randn(150, 8, generator=g), torch.randn(150, 8, generator=g) if gaussian else None)
    caption_image = np.random.default_rng(0).permutation(np.arange(150) // 5)
    similarity = FORMULAS[name]
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


def test_average_of_folds():
    folds = [metrics.both_directions([0, 1], [0, 0]), metrics.both_directions([0, 9], [3, 0])]
    result = metrics.average(folds)
    assert result["i2t"]["r1"] == 50 and result["i2t"]["meanr"] == pytest.approx((1.5 + 5.5) / 2)
    assert result["t2i"]["r1"] == 75 and result["t2i"]["queries"] == 4
    assert result["rsum"] == pytest.approx(np.mean([f["rsum"] for f in folds]))


# ---- several positives, pairs of positives

def ordered(row, positives):
    """Gallery from best to worst: what is excluded (-inf) is no part of it; where scores tie, non-positives first."""
    return sorted((g for g in range(len(row)) if row[g] > -np.inf), key=lambda g: (-row[g], g in positives))


def reference_r_precision(row, positives):
    return sum(g in positives for g in ordered(row, positives)[:len(positives)]) / len(positives)


def reference_average_precision(row, positives):
    """(1 / R) sum over k = 1 .. R of (share of positives in the top k) x (item k is a positive)."""
    hit = [g in positives for g in ordered(row, positives)]
    r = len(positives)
    return sum(sum(hit[:k]) / k for k in range(1, r + 1) if k <= len(hit) and hit[k - 1]) / r


def random_problem(seed, digits, queries=14, gallery=30):
    """Scores with ties, each query's own item excluded by -inf, and 0 .. gallery - 1 positives a query."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((queries, gallery)), digits).astype(np.float32)
    scores[np.arange(queries), np.arange(queries)] = -np.inf
    sizes = rng.integers(1, 6, queries)
    sizes[:4] = 0, 1, gallery - 1, gallery - 2
    sets = [set(rng.permutation([g for g in range(gallery) if g != q])[:size].tolist()) for q, size in enumerate(sizes)]
    return scores, sets


def as_pairs(sets):
    pairs = sorted((q, g) for q, items in enumerate(sets) for g in items)
    return np.array(pairs, np.int64).reshape(-1, 2).T


@pytest.mark.parametrize("digits", [0, 1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_pairs_of_positives_equal_definition(seed, digits):
    scores, sets = random_problem(seed, digits)
    query, item = as_pairs(sets)
    ranks = [reference_rank(row, s) if s else -1 for row, s in zip(scores, sets)]
    assert metrics.best_ranks(scores, query, item).tolist() == ranks
    fewer = [set(sorted(s)[:2]) for s in sets]                       # two sets of positives share one pass
    found = metrics.r_precisions(scores, [(query, item), as_pairs(fewer)])
    for values, chosen in zip(found, (sets, fewer)):
        assert np.isnan(values[0]) and len(values) == len(sets)
        assert values[1:].tolist() == pytest.approx([reference_r_precision(row, s)
                                                     for row, s in zip(scores[1:], chosen[1:])])


@pytest.mark.parametrize("digits", [0, 1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_average_precision_equals_definition(seed, digits):
    scores, sets = random_problem(seed, digits)
    expected = [reference_average_precision(row, s) for row, s in zip(scores[1:], sets[1:])]
    found = metrics.average_precisions(scores, *as_pairs(sets))                     # the first query has no positive
    assert np.isnan(found[0]) and found[1:].tolist() == pytest.approx(expected)


def test_average_precision_by_hand():
    scores = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]])
    # R is 3, and item 4 is fifth
    assert metrics.average_precisions(scores, *as_pairs([{0, 2, 4}]))[0] == pytest.approx((1 + 2 / 3) / 3)
    assert metrics.average_precisions(scores, *as_pairs([{3, 4}]))[0] == 0


def test_positives_tied_with_all_others_get_nothing():
    scores, pairs = np.zeros((2, 20)), as_pairs([{0, 1, 2}, {5}])
    assert metrics.r_precisions(scores, [pairs])[0].tolist() == metrics.average_precisions(scores, *pairs).tolist() == [
        0, 0]
    assert metrics.best_ranks(scores, *pairs).tolist() == [17, 19]


def test_eccv_equals_the_package_of_its_authors():
    """R@1, R-precision and mAP@R over the real query sets, on random scores of which half the positives are raised."""
    package = pytest.importorskip("eccv_caption")
    from evaluation import annotations, protocols
    from evaluation.embeddings import Embeddings
    owner = json.load(open(os.path.join(annotations.eccv_folder(), "original_caption_to_image.json")))
    captions = np.load(os.path.join(annotations.eccv_folder(), "coco_test_ids.npy")).tolist()
    images = list(dict.fromkeys(owner[str(c)][0] for c in captions))
    pairs = annotations.read_eccv(annotations.eccv_folder(), annotations.Index(images, "image", "the package"),
                                  annotations.Index(captions, "caption", "the package"))
    rng = np.random.default_rng(0)
    scores = rng.standard_exponential((len(images), len(captions)), dtype=np.float32)      # no ties among the largest
    for row, column in ((pairs["i2t"].query, pairs["i2t"].item), (pairs["t2i"].item, pairs["t2i"].query)):
        scores[row, column] += rng.choice([0, 9], len(row)).astype(np.float32)
    ranked = {}
    for side, matrix, queries, items in (("i2t", scores, images, captions), ("t2i", scores.T, captions, images)):
        asked = np.unique(pairs[side].query)
        best = [np.argpartition(-matrix[q], 60)[:60] for q in asked]  # at most 48 positives a query
        assert all(len(np.unique(matrix[q, b])) == 60 for q, b in zip(asked, best))
        ranked[side] = {queries[q]: [items[g] for g in b[np.argsort(-matrix[q, b])]] for q, b in zip(asked, best)}
    judge = package.Metrics()
    for image, gone in ((575916, 144675), (421999, 467259)):  # sixth captions, which no split and no ranking holds
        judge.eccv_gts["i2t"][image].remove(gone)
    theirs = judge.compute_all_metrics(
        ranked["i2t"], ranked["t2i"], target_metrics=("eccv_r1", "eccv_map_at_r", "eccv_rprecision"), Ks=(1,),
        verbose=False)
    e = Embeddings("drawn", np.zeros(len(captions), int), len(images), matrix=scores, judged={"eccv": pairs})
    ours = protocols.eccv(e, protocols.everything(e), protocols.Record(), "eccv")
    assert (ours["i2t"]["queries"], ours["t2i"]["queries"]) == (1261, 1332)
    for side in ("i2t", "t2i"):
        for name, key in (("eccv_r1", "r1"), ("eccv_rprecision", "rp"), ("eccv_map_at_r", "map_at_r")):
            assert 10 < ours[side][key] < 99.5 and ours[side][key] == pytest.approx(100 * theirs[name][side], abs=1e-9)


def test_best_rank_means_by_hand():
    assert metrics.best_rank_means([0, 1, 3]) == pytest.approx({"hbr": 3 / (1 + 1 / 2 + 1 / 4), "abr": 7 / 3})


# ---- correlations

@pytest.mark.parametrize("levels", [3, 20, 10 ** 6])
def test_spearman_equals_scipy(levels):
    rng = np.random.default_rng(levels)
    x, y = rng.integers(levels, size=(2, 200))
    y = y + x // 2
    assert metrics.spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert metrics.spearman(x, -y) == pytest.approx(-metrics.spearman(x, y))


def test_spearman_of_a_constant_is_nan():
    assert np.isnan(metrics.spearman(np.ones(5), np.arange(5)))


def test_sampled_spearman_of_monotone_scores_is_one():
    rng = np.random.default_rng(0)
    query, x = rng.integers(0, 60, 400), rng.permutation(400)
    result = metrics.sampled_spearman(query, x, np.exp(x / 100), samples=50)
    assert result["spearman"] == pytest.approx(1) and result["std"] == pytest.approx(0, abs=1e-12)
    assert (result["pairs"], result["items"]) == (400, len(np.unique(query)))
    assert metrics.sampled_spearman(query, x, -x, samples=50)["spearman"] == pytest.approx(-1)


def test_sampled_spearman_of_two_items_with_a_pair_each():
    """A sample takes at least two items; then the only sample is the whole, whatever its order."""
    assert metrics.sampled_spearman([7, 3], [1, 2], [5, 9], samples=5)["spearman"] == pytest.approx(1)


def slow_samples(query, x, y, samples, rng):
    """Half of the items, one random pair of each, Spearman's correlation; from the definition."""
    pairs_of = {q: [k for k in range(len(query)) if query[k] == q] for q in set(query.tolist())}
    values = []
    for _ in range(samples):
        chosen = rng.sample(sorted(pairs_of), len(pairs_of) // 2)
        pairs = [rng.choice(pairs_of[q]) for q in chosen]
        values.append(scipy.stats.spearmanr([x[k] for k in pairs], [y[k] for k in pairs]).statistic)
    return np.array(values)


def test_sampled_spearman_equals_a_slow_one_in_distribution():
    """Items with many pairs are unlike those with one, so that drawing pairs and not items would show."""
    rng = np.random.default_rng(1)
    query = rng.permutation(np.r_[np.arange(120), np.zeros(300, int), np.full(200, 1)])
    x = np.round(5 * rng.random(len(query)), 1)
    y = np.where(query < 2, -x, x + 1.5 * rng.standard_normal(len(query)))
    slow = slow_samples(query, x, y, 400, random.Random(0))
    fast = metrics.sampled_spearman(query, x, y, samples=400, seed=3)
    assert fast["spearman"] == pytest.approx(slow.mean(), abs=5 * slow.std() / 20)          # means of 400 draws each
    assert fast["std"] == pytest.approx(slow.std(), rel=0.25)
    assert metrics.spearman(x, y) < slow.mean() - 10 * slow.std() / 20  # all pairs at once tell otherwise
    assert metrics.sampled_spearman(query, x, y, samples=20, seed=3) == metrics.sampled_spearman(query, x, y, 20, 3)


def test_shuffled_control_is_near_zero():
    rng = np.random.default_rng(2)
    x = rng.random(4000)
    control = [metrics.sampled_spearman(np.arange(4000), x, x, samples=1, seed=s)["shuffled"] for s in range(20)]
    assert max(map(abs, control)) < 4 / np.sqrt(2000) and len(set(control)) == 20           # 2,000 pairs a sample


# ---- uncertainty

@pytest.mark.parametrize("q,bins", [(103, 10), (100, 7), (6, 10)])
def test_recall_in_bins_equals_definition(q, bins):
    rng = np.random.default_rng(q)
    uncertainty, hits = np.round(3 * rng.random(q)), rng.random(q) < 0.6                    # ties in uncertainty
    order = sorted(range(q), key=lambda k: uncertainty[k])                                  # stable
    sizes = [q // bins + (b < q % bins) for b in range(bins)]
    recall, spread, at = [], [], 0
    for size in (s for s in sizes if s):
        part = order[at:at + size]
        recall.append(100 * sum(hits[k] for k in part) / size)
        spread.append(sum(uncertainty[k] for k in part) / size)
        at += size
    result = metrics.recall_in_bins(uncertainty, hits, bins)
    assert result["recall"] == pytest.approx(recall) and result["uncertainty"] == pytest.approx(spread)
    assert result["rho"] == pytest.approx(scipy.stats.spearmanr(range(len(recall)), recall).statistic)
    assert result["rho_queries"] == pytest.approx(scipy.stats.spearmanr(uncertainty, hits).statistic)


def risks(order, hits):
    """Share of wrong answers among the first 1, 2, ... of an order."""
    return [100 * sum(not hits[k] for k in order[:n]) / n for n in range(1, len(order) + 1)]


def test_risk_coverage_equals_definition():
    rng = np.random.default_rng(0)
    uncertainty, hits = rng.permutation(57), rng.random(57) < 0.7
    expected = risks(sorted(range(57), key=lambda k: uncertainty[k]), hits)
    result = metrics.risk_coverage(uncertainty, hits, points=1000)
    assert result["coverage"] == pytest.approx([n / 57 for n in range(1, 58)])
    assert result["risk"] == pytest.approx(expected)
    assert result["area"] == pytest.approx(sum(expected) / 57)
    assert result["area_random"] == pytest.approx(100 * (1 - hits.mean()))
    assert result["area_best"] == pytest.approx(np.mean(risks(sorted(range(57), key=lambda k: not hits[k]), hits)))
    few = metrics.risk_coverage(uncertainty, hits, points=5)
    assert len(few["risk"]) == 5 and few["coverage"][-1] == 1 and few["area"] == result["area"]


def test_risk_coverage_of_ties_is_the_mean_over_their_orders():
    rng = np.random.default_rng(1)
    uncertainty, hits = rng.integers(0, 3, 9), rng.random(9) < 0.5
    groups = [[k for k in range(9) if uncertainty[k] == level] for level in range(3)]
    every = [risks([k for part in parts for k in part], hits)
             for parts in itertools.product(*(itertools.permutations(group) for group in groups))]
    result = metrics.risk_coverage(uncertainty, hits)
    assert result["risk"] == pytest.approx(np.mean(every, 0)) and result["area"] == pytest.approx(np.mean(every))
    constant = metrics.risk_coverage(np.zeros(9), hits)
    assert constant["area"] == pytest.approx(constant["area_random"])


# ---- is a difference real?

def two_models(gain, n=150, seed=0):
    """Hits of two models, unequal numbers of captions per image: as {metric: (total, count)} by image, and as lists."""
    rng = np.random.default_rng(seed)
    count = rng.integers(0, 7, n)
    hard = rng.random(n)
    a = [rng.random(c) < 0.7 * h for c, h in zip(count, hard)]
    b = [first | (rng.random(len(first)) < gain) for first in a]
    return [{"t2i r1": (np.array([100.0 * h.sum() for h in hits]), count.astype(float)),
             "i2t rp": (rng.random(n) if k else np.full(n, 0.3), np.ones(n))} for k, hits in enumerate((a, b))], (a, b)


def test_paired_bootstrap_equals_a_slow_one():
    (a, b), (first, second) = two_models(0.04)
    rng, differences = random.Random(5), []
    for _ in range(1500):
        images = [rng.randrange(150) for _ in range(150)]
        recall = [100 * sum(hits[i].sum() for i in images) / sum(len(hits[i]) for i in images)
                  for hits in (first, second)]
        differences.append(recall[1] - recall[0])
    result = metrics.paired_bootstrap(a, b, {}, samples=4000)["t2i r1"]
    assert result["a"] == pytest.approx(100 * np.concatenate(first).mean())
    assert result["b"] == pytest.approx(100 * np.concatenate(second).mean())
    assert result["difference"] == pytest.approx(result["b"] - result["a"])
    width = np.std(differences)
    assert result["low"] == pytest.approx(np.percentile(differences, 2.5), abs=0.25 * width)
    assert result["high"] == pytest.approx(np.percentile(differences, 97.5), abs=0.25 * width)


def test_identical_models_do_not_differ():
    rng = np.random.default_rng(0)
    a = {f"m{k}": (rng.random(97), np.ones(97)) for k in range(7)}                          # no exact numbers
    for m in metrics.paired_bootstrap(a, a, {"sum": list(a)}, samples=300).values():
        assert (m["p"], m["difference"], m["low"], m["high"]) == (1, 0, 0, 0)


def test_p_of_two_models():
    (a, b), _ = two_models(0.15)
    better, worse = (metrics.paired_bootstrap(*pair, {}, samples=2000)["t2i r1"] for pair in ((a, b), (b, a)))
    assert better["p"] == pytest.approx(2 / 2001) and better["low"] > 0  # the least that 2,000 samples tell
    assert worse["p"] == better["p"] and worse["high"] < 0
    assert worse["low"] == pytest.approx(-better["high"])
    assert worse["difference"] == pytest.approx(-better["difference"])
    (a, _), (other, _) = two_models(0)[0], two_models(0)[0]
    other["t2i r1"] = (np.roll(other["t2i r1"][0], 1), np.roll(other["t2i r1"][1], 1))  # the same hits, of other images
    same_level = metrics.paired_bootstrap(a, other, {}, samples=2000)["t2i r1"]
    assert same_level["p"] > 0.5 and same_level["low"] < 0 < same_level["high"]


def test_p_is_rarely_small_without_a_difference():
    """Of 200 pairs of equally good models, about 5% may come out below 0.05."""
    rng, small = np.random.default_rng(0), 0
    for seed in range(200):
        a, b = ({"r1": (100.0 * (rng.random(80) < 0.5), np.ones(80))} for _ in range(2))
        small += metrics.paired_bootstrap(a, b, {}, samples=200, seed=seed)["r1"]["p"] < 0.05
    assert 2 <= small <= 22


def test_bootstrap_of_sums_draws_the_same_images_for_all_terms():
    (a, b), _ = two_models(0.1)
    opposite = [{**side, "mirror": (100 * side["t2i r1"][1] - side["t2i r1"][0], side["t2i r1"][1])} for side in (a, b)]
    result = metrics.paired_bootstrap(*opposite, {"rsum": ["t2i r1", "mirror"]}, samples=500)["rsum"]
    assert (result["a"], result["b"]) == (pytest.approx(100), pytest.approx(100))           # recall + (100 - recall)
    assert result["low"] == pytest.approx(0, abs=1e-9) and result["high"] == pytest.approx(0, abs=1e-9)
    assert set(metrics.paired_bootstrap({**a, "only": a["t2i r1"]}, b, {}, samples=50)) == set(b)


def test_bootstrap_where_few_images_have_queries():
    """Samples that hold no query say nothing of the metric; they must not make it look certain."""
    count = np.zeros(40)
    count[:2] = 1
    a, b = ({"r1": (hits * count, count)} for hits in (np.tile([0.0, 100.0], 20), np.tile([100.0, 0.0], 20)))
    result = metrics.paired_bootstrap(a, b, {}, samples=2000)["r1"]
    assert result["difference"] == 0 and result["p"] > 0.5
    assert (result["low"], result["high"]) == (-100, 100)


# ---- is a difference more than the choice of seeds?

def seeds_of_two_models(gain=0.0, n=120, seeds=(3, 3), noise=0.5, seed=0):
    """Runs of two models whose seeds differ by more than the choice of images: {metric: (total, count)} of each."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=n)

    def run(better):
        chance = 1 / (1 + np.exp(hard - better - noise * rng.normal()))
        return {"r1": (100.0 * (rng.random(n) < chance), np.ones(n))}
    return [run(0) for _ in range(seeds[0])], [run(gain) for _ in range(seeds[1])]


@pytest.mark.parametrize("seeds", [(3, 3), (2, 5), (1, 3)])
def test_bootstrap_over_seeds_and_images_equals_a_slow_one(seeds):
    """Images with replacement, S - 1 of S seeds with replacement, their distance from the mean stretched by Student's
    t."""
    a, b = seeds_of_two_models(seeds=seeds)
    rng, differences = random.Random(5), []
    freedom = sum(s - 1 for s in seeds)
    stretch = scipy.stats.t.ppf(0.975, freedom) / scipy.stats.norm.ppf(0.975)
    for _ in range(3000):
        images = [rng.randrange(120) for _ in range(120)]
        sides = []
        for runs in (a, b):
            recall = [sum(run["r1"][0][i] for i in images) / 120 for run in runs]
            mean = sum(recall) / len(recall)
            drawn = [rng.choice(recall) for _ in recall[1:]] or recall
            sides.append(mean + stretch * (sum(drawn) / len(drawn) - mean))
        differences.append(sides[1] - sides[0])
    result = metrics.paired_bootstrap(a, b, {}, samples=4000)["r1"]
    means = [np.mean([run["r1"][0].mean() for run in runs]) for runs in (a, b)]
    assert (result["a"], result["b"]) == (pytest.approx(means[0]), pytest.approx(means[1]))
    width = np.std(differences)
    for key, percent in (("low", 2.5), ("high", 97.5)):
        assert result[key] == pytest.approx(np.percentile(differences, percent), abs=0.2 * width)


def test_pairs_of_seeds_are_drawn_together():
    """A slow one: of S differences S - 1 are drawn, stretched by Student's t with S - 1 degrees of freedom."""
    a, b = seeds_of_two_models(seeds=(4, 4), gain=0.3)
    rng, differences = random.Random(5), []
    stretch = scipy.stats.t.ppf(0.975, 3) / scipy.stats.norm.ppf(0.975)
    for _ in range(3000):
        images = [rng.randrange(120) for _ in range(120)]
        of_seed = [sum(y["r1"][0][i] - x["r1"][0][i] for i in images) / 120 for x, y in zip(a, b)]
        mean = sum(of_seed) / 4
        differences.append(mean + stretch * (sum(rng.choice(of_seed) for _ in range(3)) / 3 - mean))
    result = metrics.paired_bootstrap(a, b, {}, samples=4000, pairs=True)["r1"]
    assert result["difference"] == pytest.approx(np.mean([y["r1"][0].mean() - x["r1"][0].mean() for x, y in zip(a, b)]))
    width = np.std(differences)
    for key, percent in (("low", 2.5), ("high", 97.5)):
        assert result[key] == pytest.approx(np.percentile(differences, percent), abs=0.2 * width)
    b = [{"r1": (x["r1"][0] + 5, x["r1"][1])} for x in a]     # each seed gains the same
    paired, apart = (metrics.paired_bootstrap(a, b, {}, samples=1000, pairs=pairs)["r1"] for pairs in (True, False))
    assert (paired["low"], paired["high"]) == (pytest.approx(5), pytest.approx(5)) and apart["low"] < 0 < apart["high"]


def test_two_groups_of_seeds_of_one_method_rarely_differ():
    """Where seeds differ by more than images do, one run of each is said to differ again and again, a group of each is
    not."""
    alone = groups = 0
    for seed in range(100):
        a, b = seeds_of_two_models(seed=seed)
        alone += metrics.paired_bootstrap(a[0], b[0], {}, samples=200, seed=seed)["r1"]["p"] < 0.05
        groups += metrics.paired_bootstrap(a, b, {}, samples=200, seed=seed)["r1"]["p"] < 0.05
    assert alone > 25 and groups <= 10
    a, b = seeds_of_two_models(gain=3)                       # and a real one is found
    assert metrics.paired_bootstrap(a, b, {}, samples=2000)["r1"]["p"] < 0.01


def test_a_single_run_of_each_is_compared_as_ever():
    (a, b), _ = two_models(0.04)
    assert metrics.paired_bootstrap([a], [b], {}, samples=300) == metrics.paired_bootstrap(a, b, {}, samples=300)
    result = metrics.paired_bootstrap(*two_models(0.5)[0], {}, samples=300)["t2i r1"]
    assert result["least"] and result["p"] == pytest.approx(2 / 301)
    assert not metrics.paired_bootstrap(a, a, {}, samples=300)["t2i r1"]["least"]


# ---- chance

@pytest.mark.parametrize("owner, n", [([0, 0, 1, 1, 1, 3], 4), ([0, 1, 2, 3, 4], 5), ([0] * 7, 1)])
def test_chance_is_the_mean_over_all_orders(owner, n):
    """Every order of a gallery, counted out; the median is over all queries and orders."""
    owner = np.array(owner)
    found = metrics.chance(owner, n)
    ranks = {"i2t": [], "t2i": []}
    for order in itertools.permutations(range(len(owner))):
        for i in set(owner.tolist()):
            ranks["i2t"].append(next(k for k, c in enumerate(order) if owner[c] == i))
    for order in itertools.permutations(range(n)):
        ranks["t2i"] += [order.index(i) for i in owner]
    for side, every in ranks.items():
        every = np.array(every)
        for k in (1, 5, 10):
            assert found[side][f"r{k}"] == pytest.approx(100 * np.mean(every < k))
        assert found[side]["meanr"] == pytest.approx(every.mean() + 1)
        assert found[side]["medr"] == np.sort(every)[(len(every) - 1) // 2] + 1
    assert found["rsum"] == pytest.approx(sum(found[s][f"r{k}"] for s in ranks for k in (1, 5, 10)))
