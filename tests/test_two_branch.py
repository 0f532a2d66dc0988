"""Two-branch networks and CITE: losses against loops over triples and pairs, networks against loops over pairs and
concepts, the order of siblings."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data import Batch
from losses import SIMILARITIES, Embedding, PairLogistic
from methods.two_branch import (
    ConditionalNetwork,
    ProductNetwork,
    TwoBranchLoss,
    branch_layers,
    sibling_order,
)
from model import Encoded
from tests import helpers
from tests.helpers import built, having, moved, numbers


def points(n, seed=0) -> torch.Tensor:
    return F.normalize(numbers(n, 5, seed=seed), dim=1)


def pairs(owner, seed=0) -> tuple[Embedding, Embedding]:
    """Images, equal where the owner is, and captions near them."""
    images = points(max(owner) + 1, seed=seed)[owner]
    return Embedding(images), Embedding(
        F.normalize(images + 0.4 * points(len(owner), seed=seed + 1), dim=1)
    )


def loss_of(loss: TwoBranchLoss, images: Embedding, captions: Embedding, owner) -> torch.Tensor:
    batch = Batch(None, None, None, torch.as_tensor(owner), None)
    return loss(*(Encoded(side, None, None) for side in (images, captions)), batch)


OWNERS = {
    "siblings": [0, 0, 1, 1, 2, 2, 3, 3],
    "apart": [0, 1, 2, 1, 0, 3, 3, 3],
    "distinct": [0, 1, 2, 3, 4],
    "one image": [0, 0, 0],
    "two": [0, 1],
    "one pair": [0],
}


# ---- the embedding network


def slow_two_branch(images, captions, owner, margin, weights, top):
    def d(x, y):
        return math.sqrt(float((x - y).square().sum()) + 1e-4)

    def mean_of_largest(values):
        values = sorted((max(0, v) for v in values), reverse=True)[:top]
        return np.mean(values or [0])

    n = len(owner)
    total = [0, 0, 0]
    for m in range(n):
        own = d(captions[m], images[m])
        others, siblings = (
            [k for k in range(n) if (owner[k] == owner[m]) == same] for same in (False, True)
        )
        farthest = max(d(captions[m], captions[k]) for k in siblings)
        total[0] += mean_of_largest(
            margin + own - d(captions[m], images[k]) for k in others if owner.index(owner[k]) == k
        )  # an image once
        total[1] += mean_of_largest(margin + own - d(images[m], captions[k]) for k in others)
        total[2] += mean_of_largest(margin + farthest - d(captions[m], captions[k]) for k in others)
    return sum(weight * value / n for weight, value in zip(weights, total))


@pytest.mark.parametrize("top", [1, 3, 10])
@pytest.mark.parametrize("name", OWNERS)
def test_two_branch_loss_equals_loops_over_triples(name, top):
    owner = OWNERS[name]
    for margin, weights in (
        (0.05, (1.5, 1.0, 0.05)),
        (1.0, (0.0, 0.0, 1.0)),
        (0.6, (1.0, 0.0, 0.0)),
        (0.6, (0.0, 1.0, 0.0)),
        (3.0, (1.0, 2.0, 4.0)),
    ):
        images, captions = pairs(owner)
        loss = having(TwoBranchLoss(), margin=margin, weights=weights, top=top)
        got = loss_of(loss, images, captions, owner)
        expected = slow_two_branch(images.mean, captions.mean, owner, margin, weights, top)
        assert float(got) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert (expected > 0) == (len(set(owner)) > 1)  # no distance is as large as the last margin


def test_gradients_are_finite_where_captions_lie_on_their_images():
    loss = having(TwoBranchLoss(), margin=0.3, weights=(1.5, 1.0, 0.5), top=2)
    x = points(40).float().requires_grad_()
    loss_of(loss, Embedding(x), Embedding(x), np.arange(40) // 2).backward()
    assert x.grad.isfinite().all() and x.grad.abs().max() < 10


@pytest.mark.parametrize(
    "caption_image", [np.arange(60) // 5, [3, 0, 0, 3, 1, 3, 0, 9], [0], [0, 1, 2], [4, 4]]
)
def test_sibling_order(caption_image):
    caption_image = np.asarray(caption_image)
    orders = [sibling_order(caption_image, np.random.default_rng(seed)) for seed in (0, 0, 1, 2, 3)]
    assert np.array_equal(orders[0], orders[1])
    assert len(caption_image) < 8 or not np.array_equal(orders[0], orders[2])
    for order in orders:
        assert order.shape == (2 * len(caption_image),) and order.dtype == np.int64
        lead, sibling = order.reshape(-1, 2).T
        assert sorted(lead) == list(range(len(caption_image)))  # every caption leads once
        np.testing.assert_array_equal(caption_image[lead], caption_image[sibling])
        alone = np.array([(caption_image == caption_image[m]).sum() == 1 for m in lead])
        np.testing.assert_array_equal(lead == sibling, alone)


def test_siblings_are_drawn_evenly():
    drawn = Counter()
    for seed in range(400):
        pairs = sibling_order(np.array([0, 0, 0, 0, 1]), np.random.default_rng(seed)).reshape(-1, 2)
        drawn.update(map(tuple, pairs.tolist()))
    assert drawn.pop((4, 4)) == 400 and len(drawn) == 12 and min(drawn.values()) > 90


def layer_of(x, linear, norm, training):
    """Linear, BatchNorm, ReLU of rows."""
    h = x @ linear.weight.T + linear.bias
    mean = norm.running_mean
    var = norm.running_var
    if training:
        mean = h.mean(0)
        var = h.var(0, unbiased=False)
    return ((h - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias).clamp(min=0)


def test_branch_equals_its_parts():
    torch.manual_seed(0)
    branch = branch_layers(7, 11, 4)
    x = torch.randn(6, 7)
    assert branch.dim == 4 and branch(x[:1]).value.shape == (1, 4)  # a batch of one row too

    first, norm, _, drop, last = branch.layers
    assert drop.p == 0.5
    drop.p = 0.0
    expected = layer_of(x, first, norm, True) @ last.weight.T + last.bias
    torch.testing.assert_close(branch(x).value, expected)

    branch.eval()
    torch.testing.assert_close(branch(x).value[2:3], branch(x[2:3]).value)


# ---- the similarity network


def network(dim=5, hidden=(8, 6), seed=0) -> ProductNetwork:
    torch.manual_seed(seed)
    return moved(ProductNetwork(dim, hidden).double())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("hidden", [(8,), (8, 6)])
def test_product_network_equals_a_loop_over_pairs(hidden, training):
    net = network(hidden=hidden).train(training)
    x = 3 * points(4)
    y = 2 * points(6, seed=1)
    stack = [layer for layer in net.network if not isinstance(layer, torch.nn.ReLU)]
    got = net(Embedding(x), Embedding(y))

    products = []
    for a in x:
        for b in y:
            products.append(5 * (a / a.norm()) * (b / b.norm()))
    h = torch.stack(products)
    for linear, norm in zip(stack[::2], stack[1::2]):
        h = layer_of(h, linear, norm, training)
    torch.testing.assert_close(got, (h @ stack[-1].weight.T + stack[-1].bias).view(4, 6))
    assert SIMILARITIES["product"].logits and got.shape == (4, 6)


def test_blocks_equal_the_whole_and_pairs_do_not_depend_on_others(monkeypatch):
    net = network().eval()
    x = Embedding(points(23))
    y = Embedding(points(31, seed=1))
    whole = net(x, y)
    together = network().train()(x, y)
    for elements in (1, 100, 10**9):
        monkeypatch.setattr("losses.NUMBERS_PER_BLOCK", {"cpu": elements, "cuda": elements})
        torch.testing.assert_close(net(x, y), whole)
    monkeypatch.setattr("losses.NUMBERS_PER_BLOCK", {"cpu": 1, "cuda": 1})
    assert torch.equal(together, network().train()(x, y))  # one pass over all pairs


# ---- the logistic loss


def test_pair_logistic_equals_a_loop_over_labelled_pairs():
    """With as many negatives as there are, no chance is left; same-image pairs are left out."""
    g = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(6, 6, generator=g, dtype=torch.float64)
    owner = torch.tensor([0, 0, 1, 2, 2, 2])
    for same in (None, owner[:, None] == owner, torch.ones(6, 6, dtype=torch.bool)):
        terms = [math.log1p(math.exp(-float(scores[k, k]))) for k in range(6)]
        for i in range(6):
            for j in range(6):
                if i != j and (same is None or not same[i, j]):
                    term = math.log1p(math.exp(float(scores[i, j])))
                    terms += [term, term]  # once for the row, once for the column
        got = having(PairLogistic(), n_negatives=9)(scores, same)
        assert float(got) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_negatives_are_drawn_evenly():
    owner = torch.tensor([0, 0, 1, 2, 3, 4])
    drawn = torch.zeros(6, 6)
    same = owner[:, None] == owner
    for seed in range(300):
        torch.manual_seed(seed)
        scores = torch.zeros(6, 6, requires_grad=True)
        PairLogistic()(scores, same).backward()
        # the gradient of log(1 + e^s) at 0 is 1/2
        count = (scores.grad * 2 * (6 + 24)).round().fill_diagonal_(0)
        assert count.sum() == 24 and count.min() == 0 and count.max() <= 2
        assert not count[same].any()
        drawn += count
    negatives = (~same).sum(1)  # two of its row and two of its column
    expected = (2 / negatives[:, None] + 2 / negatives).masked_fill(same, 0)
    torch.testing.assert_close(drawn / 300, expected, atol=0.17, rtol=0)


# ---- CITE


def conditional(dim=5, concepts=3, layers="8-6", seed=0) -> ConditionalNetwork:
    """With BatchNorms that do something."""
    torch.manual_seed(seed)
    kind = type("Network", (ConditionalNetwork,), {"concepts": concepts})
    return moved(kind(dim, layers).double())


def slow_scores(net, x, y, pairs, training):
    """One concept and one pair after another; BatchNorm sees `pairs`, and the phrases of y."""
    unit_x = F.normalize(x, dim=1)
    unit_y = F.normalize(y, dim=1)
    products = torch.stack([len(x[0]) * unit_x[i] * unit_y[j] for i, j in pairs])
    joint = layer_of(products, *net.joint[:2], training)
    concepts = layer_of(joint, *net.branches[:2], training).chunk(net.concepts, 1)  # of each (P, H)
    hidden = layer_of(unit_y, *net.mixture[:2], training)
    logits = hidden @ net.mixture[3].weight.T + net.mixture[3].bias
    shares = [row.exp() / row.exp().sum() for row in logits]

    mixed = []
    for n, (_, j) in enumerate(pairs):
        mixed.append(sum(shares[j][k] * concepts[k][n] for k in range(net.concepts)))
    return torch.stack(mixed) @ net.out.weight[0] + net.out.bias[0], logits


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("concepts", [1, 3])
@torch.no_grad()
def test_network_equals_a_loop_over_pairs_and_concepts(concepts, training):
    x = 3 * numbers(4, 5)
    y = 2 * numbers(6, 5, seed=1)
    net = conditional(concepts=concepts).train(training)
    pairs = list(itertools.product(range(4), range(6)))
    expected, _ = slow_scores(net, x, y, pairs, training)
    torch.testing.assert_close(net(Embedding(x), Embedding(y)), expected.view(4, 6))

    net = conditional(concepts=concepts).train(training)
    chosen = [(0, 5), (3, 1), (3, 2), (0, 1), (2, 2)]
    expected, _ = slow_scores(net, x, y, chosen, training)
    found = net.at(Embedding(x), Embedding(y), *torch.tensor(chosen).T)
    torch.testing.assert_close(found, expected)


def test_the_penalty_is_a_term_of_its_own():
    model = built("--sim", "cite", "--cite_layers", "8-6")
    batch = helpers.pairs()
    terms = model(batch)
    assert set(terms) == {"logistic", "concepts"}

    y = model.embed_captions(batch.tokens, batch.lengths).mean.detach()
    net = model.similarity
    with torch.no_grad():
        _, logits = slow_scores(net, y, y, [(0, 0), (1, 2)], True)
    expected = float(logits.abs().sum()) / len(y)
    assert float(terms["concepts"].detach()) == pytest.approx(5e-5 * expected, rel=1e-5)
    alone = net.penalty(None, Encoded(Embedding(y), None, None), None)
    assert float(alone.detach()) == pytest.approx(expected, rel=1e-5)

    terms["concepts"].backward()
    assert net.mixture[3].weight.grad.abs().sum() > 0 and net.out.weight.grad is None
    assert "concepts" not in built("--sim", "product")(batch)

    net = ConditionalNetwork(1024)  # the originals' sizes
    layers = (net.joint[0], net.branches[0], net.out, net.mixture[3])
    shapes = [tuple(layer.weight.shape) for layer in layers]
    assert shapes == [(1024, 1024), (4 * 256, 1024), (1, 256), (4, 1024)]
