"""CITE: the network against loops over pairs and concepts, what BatchNorm sees, blocks, its penalty, and its runs."""
import math

import pytest
import torch
import torch.nn.functional as F

from data import Batch
from losses import Embedding
from methods.cite import ConditionalNetwork
from model import Encoded, build_model
from tests.helpers import options
from vocab import SPECIALS, Vocabulary

SMALL = ["--sim", "cite", "--cite_layers", "8-6"]


def points(n, d=5, seed=0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(dim=5, concepts=3, layers="8-6", seed=0) -> ConditionalNetwork:
    """With BatchNorms that do something."""
    torch.manual_seed(seed)
    kind = type("Network", (ConditionalNetwork,), {"concepts": concepts})
    net = kind(dim, layers).double()
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            for values in (layer.weight, layer.bias, layer.running_mean):
                torch.nn.init.normal_(values)
            torch.nn.init.uniform_(layer.running_var, 0.5, 2)
    return net.requires_grad_(True)


def layer_of(x, linear, norm, training, rows=slice(None)):
    """Linear, BatchNorm, ReLU of rows, `rows` of the layer's outputs."""
    h = x @ linear.weight[rows].T + linear.bias[rows]
    mean, var = (h.mean(0), h.var(0, unbiased=False)) if training else (norm.running_mean[rows], norm.running_var[rows])
    return ((h - mean) / (var + norm.eps).sqrt() * norm.weight[rows] + norm.bias[rows]).clamp(min=0)


def slow_scores(net, x, y, pairs, training):
    """One concept and one pair after another; BatchNorm sees `pairs`, and the phrases of y."""
    unit_x, unit_y = F.normalize(x, dim=1), F.normalize(y, dim=1)
    hidden = net.out.weight.shape[1]
    joint = layer_of(torch.stack([len(x[0]) * unit_x[i] * unit_y[j] for i, j in pairs]), *net.joint[:2], training)
    concepts = [layer_of(joint, *net.branches[:2], training, slice(k * hidden, (k + 1) * hidden))
                for k in range(net.concepts)]
    logits = layer_of(unit_y, *net.mixture[:2], training) @ net.mixture[3].weight.T + net.mixture[3].bias
    scores = []
    for n, (_, j) in enumerate(pairs):
        total = sum(math.exp(float(value)) for value in logits[j])
        mixed = sum(math.exp(float(logits[j, k])) / total * concepts[k][n] for k in range(net.concepts))
        scores.append(float(mixed @ net.out.weight[0] + net.out.bias[0]))
    return torch.tensor(scores, dtype=torch.float64), logits


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("concepts", [1, 3])
@torch.no_grad()
def test_network_equals_a_loop_over_pairs_and_concepts(concepts, training):
    x, y = 3 * points(4), 2 * points(6, seed=1)
    net = network(concepts=concepts).train(training)
    pairs = [(i, j) for i in range(4) for j in range(6)]
    expected, _ = slow_scores(net, x, y, pairs, training)
    torch.testing.assert_close(net(Embedding(x), Embedding(y)), expected.view(4, 6))
    net, chosen = network(concepts=concepts).train(training), [(0, 5), (3, 1), (3, 2), (0, 1), (2, 2)]
    expected, _ = slow_scores(net, x, y, chosen, training)
    torch.testing.assert_close(net.at(Embedding(x), Embedding(y), *torch.tensor(chosen).T), expected)


def test_sizes_are_the_originals():
    net = ConditionalNetwork(1024)
    assert [tuple(layer.weight.shape) for layer in (net.joint[0], net.branches[0], net.out, net.mixture[0],
                                                    net.mixture[3])] == [
        (1024, 1024), (4 * 256, 1024), (1, 256), (1024, 1024), (4, 1024)]
    assert net.logits and not net.within_modality


def test_a_phrase_is_mixed_once_and_only_chosen_pairs_are_computed():
    net, seen = network().train(), {}
    for name in ("joint", "branches", "mixture"):
        getattr(net, name).register_forward_hook(lambda module, inputs, _, name=name: seen.setdefault(name, []).append(
            len(inputs[0])))
    rows, columns = torch.arange(7) % 4, torch.arange(7) % 6
    net.at(Embedding(points(4)), Embedding(points(6, seed=1)), rows, columns)
    assert seen == {"joint": [7], "branches": [7], "mixture": [6]}
    net(Embedding(points(4)), Embedding(points(6, seed=1)))
    assert seen == {"joint": [7, 24], "branches": [7, 24], "mixture": [6, 6]}
    single = torch.tensor([0])
    assert net.at(Embedding(points(1)), Embedding(points(1, seed=1)), single, single).shape == (1,)


def built(*words):
    opt = options(*SMALL, *words)
    opt.img_dim, opt.img_enc = 9, "precomp"
    torch.manual_seed(0)
    return build_model(opt, Vocabulary([*SPECIALS, "a", "b", "c", "d"]))


def matching(n=6) -> Batch:
    tokens = torch.randint(4, 8, (n, 5), generator=torch.Generator().manual_seed(0))
    return Batch(points(n, 9).float(), tokens, torch.full((n,), 5), torch.arange(n), torch.arange(n))


def test_the_penalty_is_a_term_of_its_own():
    model, batch = built(), matching()
    terms = model(batch)
    assert set(terms) == {"logistic", "concepts"}
    y = model.embed_captions(batch.tokens, batch.lengths).mean.detach()
    net = model.similarity
    with torch.no_grad():
        _, logits = slow_scores(net, y, y, [(0, 0), (1, 2)], True)
    expected = sum(abs(float(value)) for row in logits for value in row) / len(y)
    assert float(terms["concepts"].detach()) == pytest.approx(5e-5 * expected, rel=1e-5)
    alone = net.penalty(None, Encoded(Embedding(y), None, None), None)
    assert float(alone.detach()) == pytest.approx(expected, rel=1e-5)
    terms["concepts"].backward()
    assert net.mixture[3].weight.grad.abs().sum() > 0 and net.out.weight.grad is None
    assert "concepts" not in built("--sim", "product")(batch)
