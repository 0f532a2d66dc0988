"""Measures of ambiguity beside trivial predictors: `evaluation.ambiguity`."""

import numpy as np
import pytest
import scipy.stats

from evaluation import ambiguity
from evaluation.report import render, tabulate_correlations


def made(n=300, seed=0):
    """A truth that falls with the number of words, and a measure that follows words and something else."""
    rng = np.random.default_rng(seed)
    words = rng.integers(3, 20, n)
    other = rng.normal(size=n)
    truth = np.round(np.exp(-0.2 * words + other) * 50)
    measure = -words + other + rng.normal(size=n)
    return words, other, truth, measure


def slow_partial(x, y, given):
    """Correlate what a linear regression of the ranks on the given ranks leaves."""
    ranks = [scipy.stats.rankdata(v) for v in (x, y, *given)]
    design = np.column_stack([np.ones(len(x)), *ranks[2:]])
    left = []
    for rank in ranks[:2]:
        left.append(rank - design @ np.linalg.lstsq(design, rank, rcond=None)[0])
    return np.corrcoef(left)[0, 1]


def test_correlations_equal_scipy_and_a_regression_of_ranks():
    words, other, truth, measure = made()
    found = ambiguity.correlate_measures(
        {"log_det": measure}, {"words": -words, "rarity": other}, truth, np.arange(300)
    )
    assert found["log_det"]["rho"] == pytest.approx(scipy.stats.spearmanr(measure, truth).statistic)
    assert found["words"]["rho"] == pytest.approx(scipy.stats.spearmanr(-words, truth).statistic)
    given = found["log_det"]["given"]
    assert given["words"]["rho"] == pytest.approx(slow_partial(measure, truth, [words]))
    assert given["all"]["rho"] == pytest.approx(slow_partial(measure, truth, [words, other]))
    assert given["words"]["low"] < given["words"]["rho"] < given["words"]["high"]
    assert given["all"]["rho"] < given["words"]["rho"] - 0.1


def test_the_bootstrap_draws_images_with_all_their_captions():
    """A weighted sample has the correlations of the sample written out."""
    words, other, truth, measure = made(60)
    group = np.arange(60) // 5
    codes = [np.unique(x, return_inverse=True)[1] for x in (measure, truth, words)]

    weights = ambiguity.draw_weights(group, samples=20)

    assert (next(weights) == 1).all()
    for weight in weights:
        for g in range(12):
            assert len(set(weight[group == g])) == 1
        rows = np.repeat(np.arange(60), weight.astype(int))
        correlation = ambiguity.rank_correlations(codes, weight)
        rho = scipy.stats.spearmanr(measure[rows], truth[rows]).statistic
        assert correlation[0, 1] == pytest.approx(rho)
        (partial,) = ambiguity.partial_correlations(correlation[None], 0, 1, [2])
        assert partial == pytest.approx(slow_partial(measure[rows], truth[rows], [words[rows]]))


def test_what_is_constant_or_the_same_twice_has_no_correlation():
    words, _, truth, measure = made()
    found = ambiguity.correlate_measures(
        {"log_det": measure, "flat": np.ones(300)},
        {"words": -words, "rarity": -2 * words},
        truth,
        np.arange(300),
    )

    assert np.isnan(found["flat"]["rho"])
    assert np.isnan(found["flat"]["low"])
    given = found["log_det"]["given"]
    assert np.isnan(given["all"]["rho"])  # its two controls are one
    assert given["words"]["rho"] == pytest.approx(given["rarity"]["rho"])


def test_captions_are_counted_without_punctuation_and_rare_words_weigh_more():
    captions = ["A dog runs .", "a dog , a cat", "zebra"]
    assert ambiguity.count_words(captions).tolist() == [3, 4, 1]

    rarity = ambiguity.measure_rarity(captions)
    p = {"a": 3 / 8, "dog": 2 / 8, "runs": 1 / 8, "cat": 1 / 8, "zebra": 1 / 8}
    assert rarity[0] == pytest.approx(-sum(np.log(p[word]) for word in ("a", "dog", "runs")))
    assert rarity[2] == pytest.approx(-np.log(1 / 8))

    baselines = ambiguity.caption_baselines(captions)
    assert baselines["words"].tolist() == [-3, -4, -1]
    assert baselines["rarity"] == pytest.approx(-rarity)


def test_a_table_names_the_baselines_and_what_is_controlled_for():
    words, other, truth, measure = made()
    found = ambiguity.correlate_measures(
        {"log_det": measure}, {"words": -words}, truth, np.arange(300)
    )

    shown = render([tabulate_correlations("captions", found, {"log_det": "log det Sigma"})])

    x = found["log_det"]
    assert f"{x['rho']:.3f} ({x['low']:.2f} to {x['high']:.2f})" in shown
    assert f"{x['given']['words']['rho']:.3f} (" in shown
    assert "minus the number of words" in " ".join(shown.split())
    assert "given words" in shown
