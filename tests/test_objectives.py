"""Objectives against loops written from their definitions, and what their switches change."""
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from losses import Embedding, InfoNCE, Match, information_bottleneck
from model import Encoded


def scores(n=7, seed=0):
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same_image(n=7):
    image = torch.arange(n) // 2
    return image[:, None] == image


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("masked", [False, True])
def test_infonce_equals_loops(masked, smoothing):
    s, same = scores(), same_image() if masked else None
    loss = InfoNCE(0.07, smoothing).double()(s, same)
    total = 0.0
    for k in range(7):
        for row in (s[k], s[:, k]):
            others = [j for j in range(7) if j == k or not (masked and bool(same_image()[k, j]))]
            z = {j: float(row[j]) / 0.07 for j in others}
            norm = math.log(sum(math.exp(v) for v in z.values()))
            total += sum(((1 - smoothing) * (j == k) + smoothing / len(others)) * (norm - z[j]) for j in others)
    assert loss.item() == pytest.approx(total / 14, rel=1e-6)       # the temperature's logarithm is stored in float32


def test_infonce_keeps_its_temperature_above_a_hundredth():
    objective = InfoNCE().double()
    with torch.no_grad():
        objective.log_scale.fill_(20.0)
    hot = objective(scores() / 100)
    objective.log_scale.data.fill_(math.log(100))
    assert float(hot) == pytest.approx(float(objective(scores() / 100)))


def probability(score):
    return 1 / (1 + math.exp(-(5 * score + 5)))


@pytest.mark.parametrize("logits, smoothing", [(False, 0.0), (False, 0.01), (True, 0.01)])
@pytest.mark.parametrize("masked", [False, True])
def test_match_equals_loops(masked, logits, smoothing):
    s, same, total = scores() / 3 - 1, same_image() if masked else None, 0.0
    for i in range(7):
        for j in range(7):
            if i == j or not (masked and bool(same_image()[i, j])):
                p = 1 / (1 + math.exp(-float(s[i, j]))) if logits else probability(float(s[i, j]))
                target = 1 - smoothing if i == j else smoothing
                total -= target * math.log(p) + (1 - target) * math.log(1 - p)
    objective = Match(logits, smoothing=smoothing).double()
    assert float(objective(s, same)) == pytest.approx(total / 7)
    assert len(list(objective.parameters())) == (0 if logits else 2)


def test_pseudo_positives_are_pairs_above_the_true_one_of_their_row_or_column():
    s = scores() / 3 - 1
    expected = sum(-math.log(probability(float(s[i, j]))) for i in range(7) for j in range(7)
                   if i != j and (s[i, j] >= s[i, i] or s[i, j] >= s[j, j])) / 7
    added = [Match(pseudo_positives=0.1).double()(x) - Match().double()(x)
             for x in (s, torch.eye(7, dtype=torch.float64))]
    assert expected > 0 and float(added[0]) == pytest.approx(0.1 * expected) and float(added[1]) == 0


@pytest.mark.parametrize("spherical", [False, True])
def test_vib_is_the_divergence_from_the_unit_gaussian(spherical):
    g = torch.Generator().manual_seed(0)
    mean, log_var = (torch.randn(5, k, generator=g, dtype=torch.float64) for k in (4, 1 if spherical else 4))
    gaussian = Encoded(Embedding(mean, log_var), None, None)
    std = (log_var / 2).exp().expand_as(mean)
    expected = kl_divergence(Normal(mean, std), Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(1).mean()
    point = Encoded(Embedding(mean), None, None)
    assert float(information_bottleneck(gaussian, point, None)) == pytest.approx(float(expected))


