"""Metrics of confidences against scikit-learn, and against loops that follow the definitions."""
import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from evaluation import selective
from evaluation.calibration import RIDGE, Isotonic, Logistic
from evaluation.posterior import temperature


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
        assert selective.auroc(confidence, right) == pytest.approx(roc_auc_score(right, confidence), abs=1e-12)
        weights = np.random.default_rng(seed).integers(0, 4, len(right)).astype(float)
        assert selective.aurocs(confidence, right, weights[None])[0] == pytest.approx(
            roc_auc_score(right, confidence, sample_weight=weights), abs=1e-12)
        inside = np.clip(confidence, 0.01, 0.99)
        found = selective.probability(inside, right)
        assert found["brier"] == pytest.approx(brier_score_loss(right, inside), abs=1e-12)
        assert found["nll"] == pytest.approx(log_loss(right, inside), abs=1e-9)
        assert np.isfinite(selective.probability(np.float32(right), ~right)["nll"])
    assert np.isnan(selective.auroc(np.array([0.1, 0.2]), np.array([True, True])))


def slow_nauc(confidence, values):
    """The definition of arXiv 2402.12997, step by step."""
    rates = [k * 0.1 for k in range(10)]                   # as np.linspace(0, 1, 11) has them

    def curve(by):
        order, points = sorted(range(len(by)), key=lambda q: by[q]), []
        for rate in rates:
            rest = order[min(round(rate * len(by)), len(by) - 1):]
            points.append(sum(values[q] for q in rest) / len(rest))
        return sum((a + b) / 2 * 0.1 for a, b in zip(points, points[1:])), points[0]
    (mine, flat), (best, _) = curve(list(confidence)), curve(list(values))
    return (mine - flat * 0.9) / (best - flat * 0.9)


def test_nauc_follows_its_definition():
    for seed in range(20):
        confidence, right = answers(seed, n=37 + seed)
        assert selective.abstention_nauc(confidence, right) == pytest.approx(
            slow_nauc(confidence, right.astype(float)), abs=1e-9)
        shares = np.random.default_rng(seed).random(len(right))             # any number per query, such as NDCG
        assert selective.abstention_nauc(confidence, shares) == pytest.approx(slow_nauc(confidence, shares), abs=1e-9)
    assert selective.abstention_nauc(right, right) == pytest.approx(1)
    assert np.isnan(selective.abstention_nauc(np.array([0.1, 0.2, 0.3]), np.ones(3)))


def test_coverage_at_risk():
    right = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1], bool)
    confidence = np.arange(12)[::-1]
    assert selective.coverage_at_risk(confidence, right) == pytest.approx(10 / 12)
    assert selective.coverage_at_risk(confidence, right, 0.2) == 1          # 2 wrong of 12
    assert selective.coverage_at_risk(-confidence, right) == pytest.approx(1 / 12)
    assert selective.coverage_at_risk(np.zeros(12), right) == 0             # all or nothing
    assert selective.coverage_at_risk(confidence, ~right) == 0


def test_calibration_error_and_its_floor():
    rng = np.random.default_rng(5)
    p = rng.random(3000)
    right = rng.random(3000) < p
    slow, order = 0, sorted(range(3000), key=lambda q: p[q])
    for k in range(15):
        part = order[k * 200:(k + 1) * 200]
        slow += abs(sum(p[q] for q in part) / 200 - sum(right[q] for q in part) / 200) / 15
    error, floor = (selective.probability(p, right)[name] for name in ("ece", "ece_floor"))
    assert error == pytest.approx(slow, abs=1e-12)
    assert floor == pytest.approx(0.8 * np.mean(np.sqrt(p * (1 - p) * 15 / 3000)), rel=0.1)
    assert error < 2 * floor and selective.probability(np.sqrt(p), right)["ece"] > 4 * floor       # overconfident
    bins = selective.reliability(p, right)
    assert sum(abs(a - b) for a, b in zip(bins["p"], bins["right"])) / 15 == pytest.approx(slow)
    assert bins["queries"] == [200] * 15


def test_a_steady_fall():
    confidence = np.arange(1000)
    right = np.random.default_rng(0).permutation(1000).argsort() < 0         # none
    assert all(np.isnan(x) for x in selective.steady_fall(confidence, right))
    right = (confidence % 100) < confidence // 10                           # R@1 of tenths: 5, 15, ... percent
    rho, fall = selective.steady_fall(confidence, right)
    assert rho == pytest.approx(-1) and fall > 0.99
    rho, fall = selective.steady_fall(-confidence, right)
    assert rho == pytest.approx(1) and fall < -0.99


def test_differences_by_a_bootstrap_over_images():
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(200), 5)
    confidence, right = answers(2, n=1000)
    noise = rng.random(1000)
    measures = {"good": confidence, "same": 3 * confidence, "noise": noise}
    pairs = [(name, "good") for name in ("same", "noise")]
    found = {name: of for (name, _), of in selective.auroc_differences(measures, right, owner, pairs).items()}
    assert found["same"] == {"difference": 0, "low": 0, "high": 0}
    assert found["noise"]["low"] < found["noise"]["difference"] < found["noise"]["high"] < 0
    assert found["noise"]["difference"] == pytest.approx(roc_auc_score(right, noise) - roc_auc_score(right, confidence))
    draws = []
    for _ in range(400):
        queries = np.concatenate([np.flatnonzero(owner == i) for i in rng.integers(200, size=200)])
        draws.append(roc_auc_score(right[queries], noise[queries]) - roc_auc_score(right[queries], confidence[queries]))
    assert (found["noise"]["low"], found["noise"]["high"]) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.02)


@pytest.mark.parametrize("ties", [False, True])
def test_isotonic_is_that_of_scikit_learn(ties):
    confidence, right = answers(3, ties=ties)
    n = len(right)
    theirs = IsotonicRegression(out_of_bounds="clip", y_min=1 / (n + 2), y_max=(n + 1) / (n + 2)).fit(confidence, right)
    ours, asked = Isotonic.fit(confidence, right), np.linspace(-0.5, 1.5, 200)
    assert np.abs(ours(asked) - theirs.predict(asked)).max() < 1e-6
    assert (np.diff(ours(asked)) >= 0).all()


def test_logistic_is_that_of_scikit_learn():
    confidence, right = answers(4)
    rng = np.random.default_rng(4)
    features = {"a": confidence, "b": rng.normal(size=300) * 50 + 7, "constant": np.full(300, 2.0)}
    ours = Logistic.fit(features, right)
    z = np.stack([(features[name] - features[name].mean()) / features[name].std() for name in "ab"], 1)
    theirs = LogisticRegression(C=1 / (2 * RIDGE * 300), tol=1e-10).fit(z, right)
    assert ours.weights[:2] == pytest.approx(theirs.coef_[0], abs=1e-5) and ours.weights[2] == 0
    assert np.abs(ours(features) - theirs.predict_proba(z)[:, 1]).max() < 1e-5


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


    grid = np.linspace(0.5, 2.5, 400)
    losses = [-(t * scores).log_softmax(1)[two].mean() for t in grid]
    assert 0 < np.argmin(losses) < 399
    assert temperature(scores, two, each=True) == pytest.approx(grid[int(np.argmin(losses))], abs=0.01)


def test_temperature_of_scores_that_tell_nothing():
    with pytest.raises(ValueError, match="no temperature fits"):
        temperature(torch.eye(50), ~torch.eye(50, dtype=torch.bool))
    with pytest.raises(ValueError, match="all scores of a query are equal"):
        temperature(torch.zeros(4, 5), torch.ones(4, 5, dtype=torch.bool))
