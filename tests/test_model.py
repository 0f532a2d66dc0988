"""Towers of every kind: shapes, padding, gradients, parameters, VSE++'s details, and VSRN's graph and captioner."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import model as model_module
import train
from images import import_torchvision
from methods.vse_infinity import GeneralizedPooling
from methods.vsrn import Captioner, RegionGraph
from model import (
    CNN,
    GRU,
    HEADS,
    IMAGE_ENCODERS,
    TEXT_ENCODERS,
    VSE,
    Encoded,
    LinearEmbedding,
    Precomputed,
    Tower,
    WordTable,
)
from tests.helpers import built, moved, numbers, pairs
from utils import InputError
from vocab import SPECIALS, Trigrams, Vocabulary


@pytest.mark.parametrize("img_enc, regions", [("precomp", None), ("precomp", 5), ("vsrn", 5)])
@pytest.mark.parametrize("shape", HEADS)
def test_shapes_of_every_head(shape, img_enc, regions):
    similarity = "wasserstein"
    if shape == "point":
        similarity = "cosine"
    variances = {"point": None, "ellipsoidal": 12}.get(shape, 1)

    model = built("--sim", similarity, "--head", shape, "--img_enc", img_enc)
    batch = pairs(regions=regions)
    images = model.embed_images(batch.images)
    captions = model.embed_captions(batch.tokens, batch.lengths)

    for embedding in (images, captions):
        assert embedding.mean.shape == (6, 12)
        torch.testing.assert_close(embedding.mean.norm(dim=1), torch.ones(6))
        if variances is None:
            assert embedding.log_var is None
        else:
            assert embedding.log_var.shape[1] == variances
            assert (embedding.log_var >= math.log(0.1) - 1e-6).all()
            assert (embedding.log_var <= math.log(10) + 1e-6).all()


def test_spherical_heads_average_log_variances_or_variances():
    raw = torch.tensor([[-0.5, 0.25, 1.0]])

    mean_of_logs = HEADS["spherical_logavg"](raw)
    log_of_mean = HEADS["spherical_avg"](raw)

    assert float(mean_of_logs) == pytest.approx(0.25)
    assert float(log_of_mean.exp()) == pytest.approx(float(raw.exp().mean()))


@pytest.mark.parametrize(
    "line",
    [
        "--sim cosine",
        "--sim wasserstein",
        "--sim kl --head spherical_one",
        "--sim mahalanobis",
        "--sim mahalanobis --image_head spherical_avg",
        "--sim mil --diversity 1 --mmd 1",
        "--sim match_prob --vib 0.01",
        "--sim match_prob --head spherical_one",
        "--sim mil --n_embeds 1 --num_layers 2",
        "--sim csd --img_enc pie --txt_enc pie --loss match",
        "--sim scan --bi_gru",
        "--sim kl --pool gpo --txt_fc",
        "--sim wasserstein --txt_enc mean --txt_layers 8",
        "--sim wasserstein --img_enc vsrn --region_bn",
        "--sim kl --img_enc vsrn --region_norm regions",
    ],
)
def test_every_parameter_gets_a_gradient_and_is_listed_once(line, monkeypatch):
    monkeypatch.setattr("model.LOG_VAR_BOUNDS", (0.0, math.log(1000)))  # nothing is clamped
    words = line.split()
    if "match" not in line:  # all pairs take part in the hinge
        words += ["--no-max_violation", "--margin", "5"]
    torch.manual_seed(0)
    model = moved(built(*words))
    if "vsrn" in line:  # in training a bias before a BatchNorm has a gradient of 0
        model.eval()

    terms = model(pairs(regions=5))
    sum(terms.values()).backward()

    parameters = list(model.parameters())
    assert len({id(p) for p in parameters}) == len(parameters)
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("words", [(), ("--sim", "mls"), ("--sim", "kl", "--var_layers", "7")])
def test_an_anchor_shares_out_the_cosine_and_regresses_on_captions(words):
    """A share of 0.3 compares captions' features (B, 5) themselves."""
    anchored = ["--text_features", "x", "--txt_layers", 8, "--text_anchor", 0.3]
    model = built(*anchored, "--loss", "infonce", *words, txt_dim=5)
    batch = pairs()._replace(tokens=numbers(6, 5, seed=1, dtype=torch.float32))

    image = model.embed_images(batch.images)
    caption = model.embed_captions(batch.tokens, batch.lengths)
    terms = model(batch)

    assert image.mean.shape == caption.mean.shape == (6, 12 + 5)
    assert (image.log_var is None) == (words == ())
    if words == ():
        assert model.image_tower.mean.dim == 17

    net = model.image_tower.mean
    photo_features = F.normalize(batch.images, dim=1)
    learned_captions = model.text_tower.mean.learned.layers(F.normalize(batch.tokens, dim=1))
    learned_photos = net.learned.fc(photo_features)
    regressed_photos = net.given.fc(photo_features)
    # (6, 6): images x captions
    learned = F.cosine_similarity(learned_photos[:, None], learned_captions, 2)
    regressed = F.cosine_similarity(regressed_photos[:, None], batch.tokens, 2)
    torch.testing.assert_close(image.mean @ caption.mean.T, 0.7 * learned + 0.3 * regressed)
    torch.testing.assert_close(terms["anchor"], 1 - regressed.diagonal().mean())
    assert set(terms) == {"infonce", "anchor"}

    terms["anchor"].backward()
    learns = {
        name
        for name, p in model.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }
    assert learns == {"image_tower.mean.given.fc.weight", "image_tower.mean.given.fc.bias"}


def test_a_gaussian_has_two_copies_of_the_embedding_that_share_only_the_trunk():
    model = built("--sim", "kl")
    for tower in (model.image_tower, model.text_tower):
        mean = list(tower.mean.parameters())
        log_var = list(tower.log_var.parameters())
        assert [p.shape for p in mean] == [p.shape for p in log_var]
        assert not {*mean} & {*log_var}
        assert any((a != b).any() for a, b in zip(mean, log_var))  # not started equal either


def test_mean_and_variance_read_the_same_corrupted_features():
    tower = built("--sim", "wasserstein", "--dropout", "0.5").image_tower.train()
    with torch.no_grad():
        tower.log_var.fc.weight.copy_(tower.mean.fc.weight)
    encoded = tower(torch.rand(8, 9))

    torch.testing.assert_close(encoded.embedding.log_var, encoded.latent.value.clamp(*tower.bounds))
    assert encoded.features.ne(0).all()  # what a reconstruction aims at stays whole


@pytest.mark.parametrize("words, widest", [((), 1.0), (("--txt_fc",), math.log(10))])
def test_variances_of_captions_leave_the_range_of_a_state_with_a_layer_behind_the_gru(
    words, widest
):
    model = built("--sim", "mahalanobis", *words)
    batch = pairs()
    with torch.no_grad():
        for p in model.text_tower.log_var.parameters():
            p.mul_(50)  # states saturate
    log_var = model.embed_captions(batch.tokens, batch.lengths).log_var

    assert log_var.abs().max().item() == pytest.approx(widest, abs=1e-3)


@pytest.mark.parametrize("sim", ["cosine", "wasserstein", "mil", "match_prob"])
def test_padding_and_batch_order_change_nothing(sim):
    model = built("--sim", sim).eval()
    batch = pairs()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    longer = F.pad(batch.tokens[order], (0, 4))

    together = model.embed_captions(batch.tokens, batch.lengths)
    shuffled = model.embed_captions(longer, batch.lengths[order])

    for k, length in enumerate(batch.lengths):
        alone = model.embed_captions(batch.tokens[k : k + 1, :length], batch.lengths[k : k + 1])
        position = order.tolist().index(k)
        for whole, other, one in zip(together, shuffled, alone):
            if whole is not None:
                torch.testing.assert_close(one[0], whole[k])
                torch.testing.assert_close(other[position], whole[k])


def build_tower(encoder, side: str):
    """A new tower of this side, with this encoder."""
    opt = train.parse_args(["--embed_size", "12", "--word_dim", "7", "--cnn_type", "resnet18"])
    opt.txt_dim = 9
    opt.img_dim = 9
    if encoder.reads == "photos":
        opt.img_dim = None
    if side == "image":
        data = (False,)
    else:
        data = (VOCABULARY[encoder.vocabulary], None)

    torch.manual_seed(0)
    trunk = encoder.trunk(opt, *data)
    return moved(Tower(trunk, encoder.embed(opt, trunk.dim))).eval()


@torch.no_grad()
def embed_items(tower, inputs, lengths=None):
    return tower(inputs, lengths).embedding


WORDS = [*SPECIALS, "cat", "dogs", "a", "red", "horse", "on", "grass", "beaches"]
VOCABULARY = {kind: kind(WORDS) for kind in (Vocabulary, Trigrams)}
TEXTS = ["a red horse on grass", "cat", "dogs on a beaches", "a cat a cat a cat a", "grass red"]


def check_rows(together, alone, order):
    """An item alone, and at another position in a batch, has the same embedding."""
    for k, one in enumerate(alone):
        row = together.mean[order.index(k)]
        torch.testing.assert_close(one.mean[0], row, atol=1e-6, rtol=1e-5)


# Encoders that a test can build without the folder of a network; tests/test_pretrained.py has the others.
BUILT_HERE = [name for name in (*TEXT_ENCODERS, *IMAGE_ENCODERS) if name != "pretrained"]


@pytest.mark.parametrize("name", [name for name in TEXT_ENCODERS if name in BUILT_HERE])
def test_no_caption_encoder_reads_padding_or_the_rest_of_its_batch(name):
    """Of all in TEXT_ENCODERS, also one that is added: mask what real_parts(words, lengths) does not mark."""
    encoder = TEXT_ENCODERS[name]
    tower = build_tower(encoder, "caption")
    order = [3, 1, 4, 0, 2]

    alone = []
    if encoder.reads == "features":
        features = numbers(5, 9, dtype=torch.float32)
        together = embed_items(tower, features[order], torch.ones(5).long())
        for k in range(5):
            alone.append(embed_items(tower, features[k : k + 1], torch.ones(1).long()))
    else:
        tokens = VOCABULARY[encoder.vocabulary].encode_captions([text.split() for text in TEXTS])
        inputs, lengths = tokens.batch(np.array(order))
        three_more_words = (0, 0) * (inputs.ndim - 2) + (0, 3)
        together = embed_items(tower, F.pad(inputs, three_more_words), lengths)
        for k in range(5):
            alone.append(embed_items(tower, *tokens.batch(np.array([k]))))

    check_rows(together, alone, order)


@pytest.mark.parametrize("name", [name for name in IMAGE_ENCODERS if name in BUILT_HERE])
def test_no_image_encoder_reads_the_rest_of_its_batch(name):
    """Of all in IMAGE_ENCODERS, also one that is added."""
    encoder = IMAGE_ENCODERS[name]
    tower = build_tower(encoder, "image")
    order = [3, 1, 4, 0, 2]
    shapes = {"vector": (9,), "regions": (4, 9), "cells": (4, 9), "photos": (3, 64, 64)}
    images = numbers(5, *shapes[encoder.reads], dtype=torch.float32)

    together = embed_items(tower, images[order])
    alone = [embed_items(tower, images[k : k + 1]) for k in range(5)]

    check_rows(together, alone, order)


def test_initialisation_is_vsepp():
    torch.manual_seed(0)
    fc = LinearEmbedding(200, 100).fc
    words = WordTable(500, 30).table.weight

    bound = math.sqrt(6 / 300)
    deviation = float(fc.weight.detach().std())
    assert fc.bias.abs().max() == 0 and fc.weight.abs().max() <= bound
    assert deviation == pytest.approx(bound / math.sqrt(3), rel=0.02)  # uniform

    deviation = float(words.detach().std())
    assert words.abs().max() <= 0.1
    assert deviation == pytest.approx(0.1 / math.sqrt(3), rel=0.02)


def test_norms_and_absolute_values():
    batch = pairs()

    vse0 = built("--no_imgnorm")
    images = vse0.embed_images(batch.images)
    captions = vse0.embed_captions(batch.tokens, batch.lengths)
    assert images.mean.norm(dim=1).sub(1).abs().max() > 0.01
    torch.testing.assert_close(captions.mean.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(vse0.similarity(images, captions), images.mean @ captions.mean.T)

    order = built("--sim", "order", "--use_abs")
    assert order.embed_images(batch.images).mean.min() >= 0
    assert order.embed_captions(batch.tokens, batch.lengths).mean.min() >= 0

    gaussian = built("--sim", "kl", "--logvar_norm").embed_images(batch.images)
    torch.testing.assert_close(gaussian.log_var.norm(dim=1), torch.ones(6))


def test_mask_same_image_lowers_the_loss_by_the_false_negatives():
    model = built("--margin", "5")
    batch = pairs()

    plain = model(batch)["hinge"]
    model.mask_same_image = True
    masked = model(batch)["hinge"]

    images = model.embed_images(batch.images)
    captions = model.embed_captions(batch.tokens, batch.lengths)
    s = model.similarity(images, captions)
    removed = 0
    for a in range(6):
        b = a ^ 1  # pairs 0-1, 2-3, 4-5 share an image
        removed = removed + 2 * 5 + 2 * s[a, b] - s[a, a] - s[b, b]
    torch.testing.assert_close(plain - masked, removed, rtol=1e-4, atol=0)


@pytest.mark.parametrize("finetune, freeze_bn", [(False, False), (True, False), (True, True)])
def test_a_cnn_trunk(weights, finetune, freeze_bn):
    """A torchvision network with local weights: output width, unit norm, frozen and in eval mode, or fine-tuned."""
    given = torch.load(weights)
    trunk = CNN("resnet18", finetune, weights, freeze_bn=freeze_bn).train()

    out = trunk(torch.randn(2, 3, 96, 96))

    assert out.shape == (2, 512) and out.requires_grad == trunk.net.training == finetune
    torch.testing.assert_close(out.norm(dim=1), torch.ones(2))
    if finetune:  # also scales and shifts of norms learn
        out.sum().backward()
        assert all(p.grad is not None for p in trunk.parameters())

    drifted = {
        name.split(".")[-1]
        for name, x in trunk.net.state_dict().items()
        if not torch.equal(given[name], x)
    }
    statistics = set()
    if finetune and not freeze_bn:
        statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert drifted == statistics


@pytest.mark.parametrize("finetune", [False, True])
def test_photos_that_a_cpu_reads_at_a_time(weights, finetune):
    """A few where nothing is learned; a whole batch, as it is, for BatchNorms that learn and for gradients."""
    photos = numbers(19, 3, 64, 64, dtype=torch.float32)
    trunk = CNN("resnet18", finetune, weights)
    counts = []
    layouts = set()

    def note(net, inputs):
        counts.append(len(inputs[0]))
        layouts.add(inputs[0].is_contiguous())

    trunk.net.register_forward_pre_hook(note)

    trunk.train()
    trunk(photos)
    with torch.no_grad():
        trunk(photos)
    assert counts == ([19, 19] if finetune else 2 * [8, 8, 3])
    assert layouts == {finetune}  # where it learns, channels are outermost

    trunk.eval()
    trunk(photos)
    assert counts[-1] == (19 if finetune else 3)
    assert layouts == {finetune}

    counts.clear()
    with torch.no_grad():
        together = trunk(photos)
        assert counts == [8, 8, 3]
        one_by_one = torch.cat([trunk(photo[None]) for photo in photos])
    torch.testing.assert_close(together, one_by_one)
    assert trunk(photos[:0]).shape == (0, 512)


@pytest.mark.parametrize("name, cells", [("vgg16", (49, 512)), ("alexnet", (36, 256))])
def test_vgg_and_alexnet_end_before_their_classifier(monkeypatch, name, cells):
    """Shapes alone: the 138 million weights are nowhere in memory."""
    read = []

    def note_weights(net, *words):
        read.append((dict(net.state_dict()), *words))

    monkeypatch.setattr("model.read_cnn_weights", note_weights)
    with torch.device("meta"):
        photos = torch.empty(2, 3, 224, 224)
        trunk = CNN(name, True, "w.pt")
        assert trunk(photos).shape == (2, 4096) == (2, trunk.dim)

        whole = import_torchvision().models.get_model(name, weights=None).state_dict()
        assert CNN(name, pretrained=False, cells=True)(photos).shape == (2, *cells)

    ((given, *words),) = read  # a file of the whole network is read before it is cut
    assert words == ["w.pt", name]
    assert {k: v.shape for k, v in given.items()} == {k: v.shape for k, v in whole.items()}
    assert len(given) == len(trunk.net.state_dict()) + 2


def test_wrong_cnn_weights_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pt")
    for name, message in (
        (None, "download .*resnet18.*--cnn_weights"),
        ("none.pt", "there is no file"),
        ("other.pt", "does not hold the weights of resnet18"),
    ):
        with pytest.raises(InputError, match=message):
            CNN("resnet18", weights=name and str(tmp_path / name))


def test_features_are_normalised_unless_told_and_regions_averaged():
    regions = numbers(3, 4, 9)
    torch.testing.assert_close(Precomputed(9)(17 * regions), F.normalize(regions.mean(1), dim=1))
    torch.testing.assert_close(Precomputed(9, normalize=False)(regions), regions.mean(1))


def test_scores_are_compared_in_float32_under_autocast():
    model = built("--sim", "wasserstein")
    batch = pairs()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.embed_images(batch.images).mean.dtype == torch.float32
        assert isinstance(model, VSE) and model(batch)["hinge"].dtype == torch.float32


def test_a_gru_leaves_autocast_on_cuda():
    """The switch of CUDA alone, as there is no GPU here: states are float32 whatever comes in."""
    gru = GRU(3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)

    torch.set_autocast_enabled("cuda", True)
    try:
        states, last = gru(x.bfloat16())
        packed, _ = gru(x.bfloat16(), torch.tensor([5, 2]), last)
    finally:
        torch.set_autocast_enabled("cuda", False)

    assert states.dtype == last.dtype == packed.data.dtype == torch.float32
    assert torch.equal(states, gru(x.bfloat16().float())[0])


def test_sequences_are_packed_as_torch_packs_them():
    """And the gradients are the same, bit for bit."""
    lengths = torch.tensor([3, 8, 1, 8, 4, 4, 2])  # of at most 9
    for x in (torch.randn(7, 9, 3, requires_grad=True), torch.randint(9, (7, 9))):
        expected = torch.nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        packed = model_module.pack(x, lengths)
        assert all(map(torch.equal, packed, expected))
        if x.requires_grad:
            gradients = [torch.autograd.grad(y.data.sin().sum(), x)[0] for y in (packed, expected)]
            assert torch.equal(*gradients) and not gradients[0][0, 3:].any()
    with pytest.raises(ValueError, match="length 0"):
        model_module.pack(x, lengths - 1)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "layers, both, given",
    [(1, False, False), (1, False, True), (2, False, False), (1, True, False), (2, True, True)],
)
def test_a_gru_learns_on_a_cpu_what_torchs_learns(layers, both, given, bf16):
    """Bit for bit: states, last states, and gradients of inputs, of the first state and of all weights."""
    torch.manual_seed(0)
    gru = GRU(5, 8, layers, batch_first=True, bidirectional=both)
    lengths = torch.tensor([3, 9, 1, 9, 4, 4, 2])
    first_state_shape = (layers * (1 + both), 7, 8)

    results = []
    for run in (gru.run_packed, super(GRU, gru).forward):
        of_inputs = torch.Generator().manual_seed(1)
        of_states = torch.Generator().manual_seed(2)
        x = torch.randn(7, 9, 5, generator=of_inputs, requires_grad=True)
        h = None
        if given:
            h = torch.randn(first_state_shape, generator=of_states, requires_grad=True)
        gru.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            packed = model_module.pack(x, lengths)
            states, last = run(packed, h)
            loss = states.data.float().square().sum() + last.float().sin().sum()
        loss.backward()

        found = [states.data, states.batch_sizes, last, x.grad]
        if given:
            found.append(h.grad)
        found += [weight.grad for weight in gru.parameters()]
        results.append(found)

    assert all(map(torch.equal, *results))
    assert [x.dtype for x in results[0]] == [x.dtype for x in results[1]]


# ---- VSRN: graph and GRU over regions


def slow_graph(trunk, images, first_norm, across, training):
    """The trunk image by image and pair by pair of regions; batch statistics over all regions, biased variance."""

    def norm(v):  # (P, D)
        if across:
            return v / v.square().sum(0, True).sqrt()
        return v / v.square().sum(1, True).sqrt() * v.shape[1] ** 0.5

    batch = [trunk.fc(image) for image in images]
    if first_norm:
        batch = [norm(v) for v in batch]

    for layer in trunk.layers:
        outputs = []
        for v in batch:
            n = len(v)
            g = layer.g(v)
            theta = layer.theta(v)
            phi = layer.phi(v)
            mixed = [sum(theta[i] @ phi[j] / n * g[j] for j in range(n)) for i in range(n)]
            outputs.append(layer.out(torch.stack(mixed)))

        bn = layer.norm
        mean = bn.running_mean
        var = bn.running_var
        if training:
            flat = torch.cat(outputs)  # (B P, D)
            mean = flat.mean(0)
            var = flat.var(0, False)
        normed = [(y - mean) / (var + 1e-5).sqrt() * bn.weight + bn.bias for y in outputs]
        batch = [v + y for v, y in zip(batch, normed)]

    return torch.stack([norm(v) for v in batch])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("first_norm", [True, False])
def test_region_graph_against_loops(first_norm, across, training):
    torch.manual_seed(0)
    trunk = moved(RegionGraph(9, 6, first_norm, across)).double()
    trunk.train(training)
    images = torch.randn(3, 5, 9, dtype=torch.float64)
    expected = slow_graph(trunk, images, first_norm, across, training)
    torch.testing.assert_close(trunk(images), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("words", [(), ("--img_enc", "vsrn", "--region_bn")])
def test_training_on_a_batch_of_one_and_on_zero_features(words):
    """The last batch of an epoch may be one pair, of which there are no statistics; an image may lack features."""
    model = built("--sim", "wasserstein", *words)
    batch = pairs(regions=5)

    assert model.training and model.embed_images(batch.images[:1]).mean.isfinite().all()

    model(batch._replace(images=torch.zeros(6, 5, 9)))["hinge"].backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(grad.isfinite().all() for grad in gradients)
    if not words:
        assert all(grad.norm() < 1e9 for grad in gradients)


def test_generalised_pooling_weighs_sorted_values():
    torch.manual_seed(0)
    pool = GeneralizedPooling().double()
    parts = torch.randn(3, 5, 4, dtype=torch.float64)
    theta = pool.weights(5, "cpu").double().detach().numpy()

    found = pool(parts).detach()

    assert theta.sum() == pytest.approx(1) and (theta > 0).all()
    ordered = np.sort(parts.numpy(), axis=1)[:, ::-1]  # each feature's largest value first
    expected = sum(theta[k] * ordered[:, k] for k in range(5))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ---- VSRN's captioner


def slow_nll(net, regions, caption) -> float:
    """-log p of one caption, step by step and region by region."""
    of_reader = net.reader.state_dict().items()
    reader = torch.nn.GRUCell(12, 12).double()
    reader.load_state_dict({name.removesuffix("_l0"): value for name, value in of_reader})
    h = torch.zeros(12, dtype=torch.float64)
    states = []
    for region in regions:
        squeezed = net.squeeze[0](region)
        h = reader(squeezed, h)
        if net.original:
            states.append(h)
        else:
            states.append(squeezed + h)

    total = 0.0
    for word, following in zip(caption[: net.max_len - 1], caption[1 : net.max_len]):
        word = net.words.weight[word]
        asks = h
        if not net.original:
            asks = torch.cat([word, h])
        query = net.query(asks)
        energy = []
        for state in states:
            logit = net.weight(torch.tanh(net.key(state) + query)).item()
            energy.append(math.exp(logit))
        context = sum(e / sum(energy) * s for e, s in zip(energy, states))
        h = net.cell(torch.cat([word, context]), h)
        logits = net.out(h).tolist()
        total += math.log(sum(math.exp(x) for x in logits)) - logits[following]
    return total


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("max_len", [60, 5])
def test_loss_against_loops(max_len, original):
    torch.manual_seed(0)
    net = Captioner(9, 34, 12, word_dim=7, max_len=max_len, original=original).double().eval()
    batch = pairs(regions=5)
    regions = batch.images.double()

    found = net.nll(regions, batch.tokens, batch.lengths).detach()
    loss = net(Encoded(None, regions, None), None, batch).detach()

    expected = [
        slow_nll(net, image, caption[:n].tolist())
        for image, caption, n in zip(regions, batch.tokens, batch.lengths)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    # summed over tokens, averaged over captions
    assert float(loss) == pytest.approx(sum(expected) / 6, rel=1e-10)

    dropouts = (net.squeeze[1], net.drop_input, net.dropout)
    rates = (0.2, 0.0, 0.5)
    if original:
        rates = (0.2, 0.2, 0.0)
    assert tuple(part.p for part in dropouts) == rates

    used = set()
    for part in dropouts:
        part.register_forward_hook(lambda part, *_: used.add(part))
    again = net.nll(regions, batch.tokens, batch.lengths)
    assert again.isfinite().all() and used == {*dropouts}


def test_the_captioner_reaches_the_graph_and_nothing_of_the_other_side():
    model = built("--img_enc", "vsrn", "--captioner", "2", "--dim_hidden", "8")
    batch = pairs(regions=5)

    losses = model.eval()(batch)  # dropout may silence a word
    losses["captioner"].backward()

    for name, p in model.named_parameters():
        if name.startswith(("terms.captioner.", "image_tower.trunk.fc.")):
            assert p.grad.abs().sum() > 0, name
        elif not name.startswith("image_tower.trunk."):
            # of the trunk, layers that are the identity yet have no gradient either
            assert p.grad is None, name

    regions = model.image_tower(batch.images).features
    alone = model.terms["captioner"].nll(regions, batch.tokens, batch.lengths).mean()
    torch.testing.assert_close(losses["captioner"], 2 * alone)
