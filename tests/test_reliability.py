"""Metrics of confidences against scikit-learn, and against loops that follow the definitions."""
import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import metrics
from confidence import reliability
from confidence.posterior import temperature


def answers(seed, n=300, ties=False):
    """Confidences that know something of whether answers are right."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n)
    if ties:
        confidence = np.round(confidence, 1)
    return confidence, rng.random(n) < 0.2 + 0.5 * confidence


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_brier_and_nll_are_those_of_scikit_learn(ties):
    for seed in range(5):
        confidence, right = answers(seed, ties=ties)
        assert reliability.auroc(confidence, right) == pytest.approx(roc_auc_score(right, confidence), abs=1e-12)
        risk = metrics.risk_coverage(-confidence, right)
        assert reliability.judge_order(confidence, right) == {
            "auroc": reliability.auroc(confidence, right), "aurc": risk["area"], "aurc_flat": risk["area_random"]}
        inside = np.clip(confidence, 0.01, 0.99)
        found = reliability.judge_probability(inside, right)
        assert found["brier"] == pytest.approx(brier_score_loss(right, inside), abs=1e-12)
        assert found["nll"] == pytest.approx(log_loss(right, inside), abs=1e-9)
        assert np.isfinite(reliability.judge_probability(np.float32(right), ~right)["nll"])
    assert np.isnan(reliability.auroc(np.array([0.1, 0.2]), np.array([True, True])))


def test_calibration_error_and_its_floor():
    rng = np.random.default_rng(5)
    p = rng.random(3007)
    right = rng.random(3007) < p
    slow, order, sizes = 0, sorted(range(3007), key=lambda q: p[q]), [201] * 7 + [200] * 8
    for size in sizes:                                       # a bin counts as its queries
        part, order = order[:size], order[size:]
        slow += size / 3007 * abs(sum(p[q] for q in part) / size - sum(right[q] for q in part) / size)
    error, floor = (reliability.judge_probability(p, right)[name] for name in ("ece", "ece_floor"))
    assert error == pytest.approx(slow, abs=1e-12)
    assert floor == pytest.approx(0.8 * np.mean(np.sqrt(p * (1 - p) * 15 / 3007)), rel=0.1)
    assert error < 2 * floor and reliability.judge_probability(np.sqrt(p), right)["ece"] > 4 * floor    # overconfident
    bins = reliability.reliability(p, right)
    assert bins["queries"] == sizes
    assert sum(n / 3007 * abs(a - b) for n, a, b in zip(sizes, bins["p"], bins["right"])) == pytest.approx(slow)


def test_temperature_is_the_one_that_drew_the_right_items():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, 30, generator=generator)
    drawn = torch.multinomial((2.5 * scores).softmax(1), 1, generator=generator)
    right = torch.zeros(4000, 30, dtype=torch.bool).scatter(1, drawn, True)
    assert temperature(scores, right) == pytest.approx(2.5, rel=0.05)
    assert temperature(100 * scores - 7, right) == pytest.approx(0.025, rel=0.05)
    grid = np.linspace(2, 3, 400)
    losses = [-(t * scores).log_softmax(1)[right].mean() for t in grid]
    assert temperature(scores, right) == pytest.approx(grid[int(np.argmin(losses))], abs=0.01)
    two = right | torch.zeros_like(right).index_fill(1, torch.tensor([3]), True)     # item 3 is right, too, for all
    losses = [-((t * scores).log_softmax(1).exp() * two).sum(1).log().mean() for t in grid]
    assert temperature(scores, two) == pytest.approx(grid[int(np.argmin(losses))], abs=0.01) or np.argmin(losses) in (
        0, 399)


def test_temperature_of_scores_that_tell_nothing():
    with pytest.raises(ValueError, match="no temperature fits"):
        temperature(torch.eye(50), ~torch.eye(50, dtype=torch.bool))
    with pytest.raises(ValueError, match="all scores of a query are equal"):
        temperature(torch.zeros(4, 5), torch.ones(4, 5, dtype=torch.bool))
