"""Variances for point models against loops, dense matrices and samples; `evaluate.py --variances` as users run it."""
import json
import math
import os

import numpy as np
import pytest
import torch

import evaluate
from cli import InputError
from demo import __main__ as demo
from evaluation import bank, certainty, variances
from evaluation.open import Where, load_run
from evaluation.subjects import Gallery
from evaluation.variances import Activations
from losses import InfoNCE
from model import build_model
from similarities import SIMILARITIES, Embedding, uncertainty, unit
from tests.helpers import fit_steps, refused
from tests.test_model import VOCAB, options, pairs

P, Q, N, M = 5, 4, 6, 9
SIDES = ("images", "captions")


def double(seed: int, *shape) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def directions(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# ---- the nearest partners

def slow_scatter(scores_of_item: np.ndarray, bank: np.ndarray, k: int) -> float:
    """log of the mean squared deviation of the k best of a bank (M, D) from their mean, over items and dimensions."""
    near = directions(bank)[np.argsort(-scores_of_item)[:k]]
    total = 0.0
    for x in near:
        for value, middle in zip(x, near.mean(0)):
            total += (value - middle) ** 2
    return math.log(total / near.size)


@pytest.mark.parametrize("name", ["cosine", "dot"])
def test_scatter_is_that_of_a_loop(name):
    similarity, k = SIMILARITIES[name](), 4
    images, captions, bank_images, bank_captions = (Embedding(double(s, n, Q)) for s, n in enumerate((N, M, 20, 30)))
    sides = variances.fit_knn(similarity, bank_images, bank_captions, k)
    for e, side, of, scores in (
            (images, sides[0], bank_captions, similarity(images, bank_captions)),
            (captions, sides[1], bank_images, similarity(bank_images, captions).T)):
        found = variances.widened(e, side)
        expected = [slow_scatter(row, of.mean.numpy(), k) for row in scores.numpy()]
        assert found.log_var.shape == (len(e.mean), 1) and found.mean is e.mean
        np.testing.assert_allclose(found.log_var[:, 0].numpy(), expected, rtol=1e-9)


def test_blocks_of_items_do_not_change_their_scatter(monkeypatch):
    sides = variances.fit_knn(SIMILARITIES["cosine"](), Embedding(double(0, 20, Q)), Embedding(double(1, 30, Q)), 3)
    e = Embedding(double(2, M, Q))
    whole = variances.widened(e, sides[1]).log_var
    monkeypatch.setattr(variances, "ROWS", 2)
    torch.testing.assert_close(variances.widened(e, sides[1]).log_var, whole)


def test_equal_partners_have_a_finite_scatter():
    same = torch.ones(3, 10, 64) / 8
    assert torch.equal(variances.scatter(same), torch.full((3, 1), math.log(variances.LEAST)))
    near = same + 1e-6 * torch.randn(3, 10, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(variances.scatter(near), torch.full((3, 1), math.log(0.9e-12)), atol=0.1, rtol=0)


def test_more_neighbours_than_there_are_items_are_refused():
    few, many = Embedding(double(0, 4, Q)), Embedding(double(0, 40, Q))
    with pytest.raises(InputError, match="--neighbours 5 are more than the 4 images to find them among; give fewer"):
        variances.fit_knn(SIMILARITIES["cosine"](), few, many, 5)


# ---- Laplace's approximation: the factors

def test_factors_are_those_of_loops_over_pairs():
    """B by automatic differentiation of the loss of every pair, of which J^T H J is taken: no term of J's slope."""
    phi, g, h, scale = double(0, N, P), double(1, N, Q), double(2, M, Q), 7.0
    owner = np.array([0, 1, 2, 3, 4, 5, 0, 0, 3])
    t, a, b = unit(h), torch.zeros(P, P).double(), torch.zeros(Q, Q).double()
    for c, i in enumerate(owner):
        a += torch.outer(phi[i], phi[i])
        J = torch.autograd.functional.jacobian(lambda x: x / x.norm(), g[i])
        H = torch.autograd.functional.hessian(lambda u, c=c: -(scale * t @ u).log_softmax(0)[c], g[i] / g[i].norm())
        b += J.T @ H @ J
    count = torch.from_numpy(np.bincount(owner))
    torch.testing.assert_close(variances.input_factor(phi, count), a / 9 ** 0.5)
    torch.testing.assert_close(variances.output_factor(g, h, count, scale), b / 9 ** 0.5)


@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
def test_factors_are_stable_in_float32(scale, monkeypatch):
    """Also where softmax leaves all but one item nothing: at 100, terms of size 1 would cancel down to 1e-7."""
    monkeypatch.setattr(variances, "ROWS", 50)                                      # several runs of rows
    g = double(0, 120, 32)
    h, count = g + 0.5 * double(1, 120, 32), torch.ones(120)
    exact = variances.output_factor(g, h, count, scale)
    found = variances.output_factor(g.float(), h.float(), count, scale)
    assert found.dtype == torch.float64 and (float(torch.linalg.eigvalsh(exact)[-1]) < 1e-6) == (scale == 100)
    assert float((found - exact).norm() / exact.norm()) < 1e-4
    assert float(torch.linalg.eigvalsh(found)[0]) > -1e-6 * float(torch.linalg.eigvalsh(found)[-1])


def test_factors_are_stable_where_all_directions_are_alike():
    """Cosines above 0.9999, as of a model that collapsed, and the scale that goes with them."""
    one = double(2, 1, 32)
    g, h, count = one + 0.01 * double(0, 120, 32), one + 0.01 * double(1, 120, 32), torch.ones(120)
    exact = variances.output_factor(g, h, count, 3e4)
    found = variances.output_factor(g.float(), h.float(), count, 3e4)
    assert float((found - exact).norm() / exact.norm()) < 3e-3


def test_a_layer_of_zeros_is_refused():
    x, zeros = Activations(double(0, N, P), double(1, N, Q)), torch.zeros(Q, P)
    with pytest.raises(InputError, match="whose weights or inputs are all zeros"):
        variances.fit_side(x, double(2, M, Q), torch.ones(N), 5.0, zeros, "fc")


def test_log_det_of_a_kronecker_product():
    """2 I (3 x 3) and 5 I (2 x 2): 2 log 8 + 3 log 25 = 6 log 10. With the exponents swapped it would be 12.676."""
    a, b = np.full(3, 2.0), np.full(2, 5.0)
    assert variances.log_det(a, b) == pytest.approx(13.816, abs=5e-4) == np.linalg.slogdet(
        np.kron(np.diag(a), np.diag(b)))[1]
    x, y = (np.cov(double(k, size, 40).numpy()) for k, size in enumerate((P, Q)))
    assert variances.log_det(*map(np.linalg.eigvalsh, (x, y))) == pytest.approx(np.linalg.slogdet(np.kron(x, y))[1])


@pytest.mark.parametrize("rank", [P, 2])
def test_lambda_has_the_largest_marginal_likelihood(rank):
    """Against dense determinants on a fine grid; A may lack ranks, as where there are fewer items than inputs."""
    A = double(0, P, rank) @ double(0, P, rank).T
    B = 30 * torch.from_numpy(np.cov(double(1, Q, 40).numpy()))
    square, (a, b) = 3.0, (np.linalg.eigvalsh(x).clip(0) for x in (A, B))

    def dense(damping: float) -> float:
        A_, B_ = (x.numpy() + damping ** 0.5 * np.eye(len(x)) for x in (A, B))
        return (-damping / 2 * square + P * Q / 2 * math.log(damping)
                - np.linalg.slogdet(np.kron(A_, B_))[1] / 2)
    grid = np.exp(np.linspace(-12, 6, 2001))
    evidence = [dense(x) for x in grid]
    np.testing.assert_allclose([variances.log_evidence(x, a, b, square) for x in grid], evidence, rtol=1e-9)
    assert 0 < np.argmax(evidence) < 2000
    assert variances.best_damping(a, b, square) == pytest.approx(grid[np.argmax(evidence)], rel=0.01)


# ---- Laplace's approximation: the variances

def dense_posterior(phi, g, h, owner, scale, weight):
    """(N, Q, Q): the covariance of g from the whole matrix of the pq weights, lambda from a grid."""
    count = torch.from_numpy(np.bincount(owner))
    A, B = variances.input_factor(phi, count).numpy(), variances.output_factor(g, h, count, scale).numpy()
    square = float(weight.square().sum())

    def precision(damping):
        return np.kron(*(x + damping ** 0.5 * np.eye(len(x)) for x in (A, B)))
    grid = np.exp(np.linspace(-10, 5, 3001))
    damping = max(grid, key=lambda x: -x / 2 * square + weight.numel() / 2 * math.log(x)
                  - np.linalg.slogdet(precision(x))[1] / 2)
    covariance = np.linalg.inv(precision(damping))                                  # (PQ, PQ), W^T flattened
    return [np.kron(x, np.eye(Q)) @ covariance @ np.kron(x, np.eye(Q)).T for x in phi.numpy()]


@pytest.mark.parametrize("linear", [True, False])
def test_variances_are_those_of_the_whole_matrix_of_weights(linear):
    """By the inverse of all pq x pq weights and the dense Jacobian of the norm."""
    weight = double(5, Q, P) if linear else torch.eye(Q).double()
    phi = double(0, N, P if linear else Q)
    g, h, owner = phi @ weight.T, double(2, M, Q), np.array([0, 1, 2, 3, 4, 5, 0, 0, 3])
    dense = dense_posterior(phi, g, h, owner, 5.0, weight)
    layers, weights = ({"images": "fc"}, {"images": weight}) if linear else ({}, {})
    images, captions = variances.fit_laplace(Activations(phi, g), Activations(h, h), owner, {"i2t": 5.0, "t2i": 4.0},
                                             layers, weights)
    assert (images.layer, captions.layer) == ("fc" if linear else None, None)
    found = images._replace(root=images.root.double(), spread=images.spread.double()).log_var(None, phi, g).exp()
    for x, covariance, row in zip(g.numpy(), dense, found.numpy()):
        norm = np.linalg.norm(x)
        J = (np.eye(Q) - np.outer(x, x) / norm ** 2) / norm
        expected = np.diag(J @ np.diag(np.diag(covariance)) @ J.T)
        np.testing.assert_allclose(row, expected, rtol=5e-3)                        # of the grid, and of float32


def test_variances_of_directions_are_those_of_samples():
    g, v = double(0, 3, Q), 1e-4 * double(1, 3, Q).square()
    samples = g + v.sqrt() * double(2, 200_000, 3, Q)
    found = variances.of_direction(v, g)
    np.testing.assert_allclose(found.numpy(), unit(samples).var(0).numpy(), rtol=0.03)


def test_variances_of_directions_are_finite_at_the_edges():
    """A direction along one axis, whose variance there is 0; a vector of zeros; tiny and large numbers."""
    g = torch.tensor([[1.0, 0, 0], [0, 0, 0], [1e-4, 1e-4, 0], [1e6, 1e5, 1e4]])
    side = variances.Posterior(torch.eye(3), torch.ones(3), 1.0, None)
    for found in (side.log_var(None, g, g), side.log_var(None, 1e-3 * torch.ones(4, 3), g)):
        assert torch.isfinite(found).all() and found.dtype == torch.float32
    assert (side.log_var(None, g, g)[0, 0] < side.log_var(None, g, g)[0, 1] - 50).all()


def test_scale_is_that_of_infonce_or_is_fitted():
    objective = InfoNCE()
    with torch.no_grad():
        objective.log_scale.fill_(2.0)
    assert variances.scale_of(objective) == pytest.approx({"i2t": math.exp(2), "t2i": math.exp(2)})
    with torch.no_grad():
        objective.log_scale.fill_(9.0)
    assert variances.scale_of(objective)["t2i"] == pytest.approx(100)               # as in its loss
    assert variances.scale_of(None) is None


def test_pairs_are_captions_and_their_images():
    owner = np.array([3, 3, 0, 1, 1, 4])
    drawn, place = variances.pairs(Gallery(np.array([0, 1, 3, 4]), np.array([0, 1, 3])), owner)
    assert drawn.images.tolist() == [1, 3] and drawn.captions.tolist() == [0, 1, 3] and place.tolist() == [1, 1, 0]


# ---- the last linear layer

@pytest.mark.parametrize("words,image,caption", [
    ([], "mean.fc", None), (["--txt_fc"], "mean.fc", "mean.fc"), (["--img_layers", "8"], "mean.layers.2", None),
    (["--txt_enc", "mean", "--txt_layers", "8"], "mean.fc", "mean.layers.2"), (["--txt_enc", "bigru"], "mean.fc",
                                                                                "mean.fc"),
    (["--img_layers", "8", "--layer_style", "tanh"], None, None), (["--sim", "order", "--use_abs"], None, None)])
def test_the_last_linear_layer_is_found(words, image, caption):
    model, batch = build_model(options(*words), VOCAB).eval(), pairs()
    opened = variances.Opened(model)
    with torch.no_grad():
        seen = {"images": opened.embed_images(batch.images),
                "captions": opened.embed_captions(batch.tokens, batch.lengths)}
        points = {"images": model.embed_images(batch.images),
                  "captions": model.embed_captions(batch.tokens, batch.lengths)}
    assert opened.layers == {"images": image, "captions": caption}
    for side, (phi, g) in seen.items():
        weight = opened.weights().get(side)
        if weight is None:
            assert torch.equal(phi, points[side].mean) and torch.equal(g, phi)
        else:                                                                       # the bias starts at 0
            torch.testing.assert_close(g, phi @ weight.T)
        torch.testing.assert_close(unit(g), points[side].mean)


def test_regions_have_no_linear_layer_at_their_end():
    model, batch = build_model(options("--sim", "scan", "--n_regions", "5"), VOCAB).eval(), pairs(regions=5)
    assert variances.last_linear(model.image_tower, batch.images) is None


# ---- the command

@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """"linear": both towers end in a linear layer, trained with InfoNCE; "state": captions are states of a GRU, trained
    with the hinge. Of 100 images; 25 are dev, 50 test."""
    root = tmp_path_factory.mktemp("runs")
    demo.write(root / "data", size=100, seed=0, progress=False)
    for name, words in (("linear", ["--loss", "infonce", "--txt_fc"]), ("state", ["--loss", "hinge"])):
        fit_steps("--data_path", root / "data", "--num_epochs", 4, "--workers", 0, *words, "--logger_name", root / name)
    return root


@pytest.fixture
def point(runs):
    return runs / "linear"


@pytest.fixture
def ev(tmp_path, monkeypatch, undrawn):
    """evaluate.run on words, in an empty folder; its results, which it wrote to r.json."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: evaluate.run(evaluate.parse_args([*map(str, words), "--output", "r.json"]))


def opened(run, *words):
    return evaluate.opened([str(run)], evaluate.parse_args([*map(str, words), "--device", "cpu"]), "run")


def test_a_run_and_its_report(point, ev, capsys):
    plain = ev("--checkpoint", point, "--confidence")
    assert "stacked_without_sigma" not in plain["confidence"]["t2i"]
    for words in (["knn", "--neighbours", "7"], ["laplace"], ["volume"]):
        capsys.readouterr()
        found = ev("--checkpoint", point, "--confidence", "--uncertainty", "--variances", *words)
        shown, told = capsys.readouterr().out, found["variances"]
        assert found["protocols"] == plain["protocols"]                             # no row of means, or of dealt ones
        assert told["kind"] == words[0] and told["fitted_on"] == ["demo_precomp train"]
        assert (told["images"], told["captions"]) == ([100], [500])
        assert variances.sentence(told) in shown
        assert ("note:" in shown) == (words[0] == "volume" and told["of_photo"][0][0] < 0)
        if words[0] == "volume":
            assert ("captions of one photo of dev lie no nearer" in shown) == ("note:" in shown)
        elif words[0] == "knn":
            assert told["neighbours"] == 7 and "7 nearest items" in shown
        else:
            assert all(len(told["damping"][side]) == 1 and told["damping"][side][0] > 0 for side in SIDES)
            assert told["scale"]["i2t"] == told["scale"]["t2i"]
        for side in ("t2i", "i2t"):
            sure = found["confidence"][side]
            for name in ("posterior", "entropy", "max", "margin"):
                assert sure[name]["auroc"] == plain["confidence"][side][name]["auroc"], name
            assert {"log_det_query", "log_det_answer", "stacked_without_sigma"} <= set(sure)
            assert sure["stacked"]["above_without_sigma"]["low"] <= sure["stacked"]["above_without_sigma"]["high"]
        assert all("recall_bins" in found["uncertainty"][side] for side in SIDES)
        with open("r.json", encoding="utf-8") as f:
            assert json.load(f)["variances"] == told


def test_the_variances_of_a_run_are_those_of_its_training_items(point):
    plain, train = opened(point), opened(point, "--split", "train")
    subject = opened(point, "--variances", "knn", "--neighbours", 5)
    member, points, bank_ = subject.members[0], plain.members[0], train.members[0]
    for e, mine, others in ((member.images, points.images, bank_.captions),
                            (member.captions, points.captions, bank_.images)):
        assert torch.equal(e.mean, mine.mean)
        scores = directions(mine.mean.double().numpy()) @ directions(others.mean.double().numpy()).T
        expected = [slow_scatter(row, others.mean.double().numpy(), 5) for row in scores]
        expected = np.maximum(expected, math.log(variances.LEAST))                  # five captions that are the same
        np.testing.assert_allclose(e.log_var[:, 0].numpy(), expected, atol=1e-4)


def test_laplace_of_a_run_is_that_of_its_layers(point):
    """From the features themselves: the image tower is one linear layer on normalised features."""
    subject = opened(point, "--variances", "laplace")
    run, train = (load_run(str(point), Where(split=split)) for split in ("test", "train"))
    layer = run.trained.model.image_tower.mean.fc
    with torch.no_grad():
        phi, of_train = (run.trained.model.image_tower.trunk(split.images.gather(np.arange(len(split.images)))).double()
                         for split in (run.split, train.split))
        g = phi @ layer.weight.double().T + layer.bias.double()
        outputs = of_train @ layer.weight.double().T + layer.bias.double()
    captions = opened(point, "--split", "train").members[0].captions.mean.double()
    scale, count = variances.scale_of(run.trained.model.objective)["i2t"], torch.full((100,), 5.0)
    A, B = variances.input_factor(of_train, count), variances.output_factor(outputs, captions, count, scale)
    square = float(layer.weight.detach().double().square().sum())
    damping = variances.best_damping(*(np.linalg.eigvalsh(x).clip(0) for x in (A, B)), square)
    assert subject.variances.report["damping"]["images"][0] == pytest.approx(damping, rel=1e-3)
    A, B = (np.linalg.inv(x.numpy() + damping ** 0.5 * np.eye(len(x))) for x in (A, B))
    expected = variances.of_direction(torch.from_numpy(np.einsum("np,pr,nr->n", phi, A, phi)[:, None] * np.diag(B)), g)
    torch.testing.assert_close(subject.members[0].images.log_var, expected.log().float(), atol=2e-3, rtol=1e-3)
    assert subject.members[0].captions.log_var.shape == subject.members[0].captions.mean.shape


@pytest.mark.parametrize("kind", ["laplace", "knn", "volume"])
def test_dev_is_calibrated_on_with_the_same_variances(point, kind, monkeypatch):
    opt = evaluate.parse_args(["--checkpoint", str(point), "--confidence", "--variances", kind, "--device", "cpu"])
    subject, expected = evaluate.opened([str(point)], opt, "run"), opened(point, "--split", "dev", "--variances", kind)
    monkeypatch.setattr(evaluate, "variances_of", None)                              # they are fitted once
    dev, judged, _ = certainty.to_calibrate_on(subject, opt.calibrate_on,
                                                     lambda: evaluate.open_dev(subject, [str(point)], opt))
    assert judged is subject and dev.variances is subject.variances
    for side in SIDES:
        torch.testing.assert_close(getattr(dev.members[0], side).log_var, getattr(expected.members[0], side).log_var)


def test_half_of_the_images_can_be_calibrated_on(point):
    opt = evaluate.parse_args(["--checkpoint", str(point), "--confidence", "--calibrate_on", "0.5", "--variances",
                               "knn", "--device", "cpu"])
    subject = evaluate.opened([str(point)], opt, "run")
    dev, judged, kept = certainty.to_calibrate_on(subject, opt.calibrate_on,
                                                     lambda: evaluate.open_dev(subject, [str(point)], opt))
    assert torch.equal(judged.members[0].images.log_var, subject.members[0].images.log_var[kept])
    assert len(dev.members[0].images.log_var) == len(kept) == 25


def test_an_ensemble_has_the_variances_of_each(runs, ev, capsys):
    point, other = runs / "linear", runs / "state"
    capsys.readouterr()
    found = ev("--checkpoint", point, other, "--variances", "laplace")
    shown = capsys.readouterr().out
    alone = [opened(run, "--variances", "laplace") for run in (point, other)]
    assert found["variances"]["damping"]["images"] == pytest.approx(
        [x.variances.report["damping"]["images"][0] for x in alone])
    logs = [uncertainty(x.members[0].captions).mean() for x in alone]
    assert found["uncertainty"]["captions"]["mean"] == pytest.approx(float(sum(logs) / 2), rel=1e-4)
    notes = [line for line in shown.splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {other}: the captions end in no linear layer that is known, so their variances are those "
                     "of a linear layer behind them that has the identity as its matrix"]
    both = [str(point), str(other)]
    opt = evaluate.parse_args(["--checkpoint", *both, "--confidence", "--variances", "knn", "--device", "cpu"])
    dev = evaluate.open_dev(evaluate.opened(both, opt, "run"), both, opt)
    assert [m.images.log_var.shape for m in dev.members] == [(25, 1)] * 2
    assert len(found["variances"]["scale"]["t2i"]) == 2 and shown.count("500 captions of demo_precomp train") == 1


def test_a_bank_beside_variances(point, ev):
    both = ev("--checkpoint", point, "--bank", "train", "--variances", "knn")
    assert both["bank"] == ev("--checkpoint", point, "--bank", "train")["bank"] and "variances" in both


@pytest.mark.parametrize("kind", ["laplace", "knn", "volume"])
def test_embeddings_take_training_pairs_from_a_file(point, ev, kind):
    for split in ("train", "dev", "test"):
        ev("--checkpoint", point, "--split", split, "--export", f"{split}.npz")
    words = ["--embeddings", "test.npz", "--variances", kind, "--variances_from", "train.npz", "--confidence"]
    found = ev(*words, "--calibration", "dev.npz")
    assert found["variances"]["fitted_on"] == ["train.npz"] and found["variances"]["captions"] == [500]
    subject = evaluate.opened(["test.npz"], evaluate.parse_args(words + ["--calibration", "dev.npz"]), "embeddings")
    own = opened(point, "--variances", kind)
    if kind in ("knn", "volume"):                                                   # nothing of the model is needed
        for side in SIDES:
            torch.testing.assert_close(getattr(subject.members[0], side).log_var,
                                       getattr(own.members[0], side).log_var, atol=1e-5, rtol=1e-5)
    else:
        assert [side.layer for side in subject.variances.sides[0]] == [None, None]
        dev = evaluate.opened(["dev.npz"], evaluate.parse_args(["--embeddings", "dev.npz"]), "embeddings")
        assert found["variances"]["scale"] == {side: [x] for side, x in variances.fitted_scale(dev).items()}
        half = evaluate.opened(["test.npz"], evaluate.parse_args([*words, "--calibrate_on", "0.5"]), "embeddings")
        train = evaluate.opened(["train.npz"], evaluate.parse_args(["--embeddings", "train.npz"]), "embeddings")
        assert half.variances.report["scale"] == {                                  # no dev: that of the pairs
            side: [x] for side, x in variances.fitted_scale(train).items()} != found["variances"]["scale"]


def test_exported_variances_are_read_again(point, ev):
    direct = ev("--checkpoint", point, "--variances", "laplace", "--export", "wide.npz")
    with np.load("wide.npz") as f:
        assert f["image_log_var"].shape == f["image_mean"].shape and str(f["similarity"]) == "cosine"
    again = ev("--embeddings", "wide.npz")
    assert again["uncertainty"] == direct["uncertainty"] and again["protocols"] == direct["protocols"]


def test_results_with_variances_have_their_own_files(small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = small_run("--sim", "cosine", to=tmp_path / "run")
    before = set(os.listdir(run))
    for words in (["--variances", "laplace"], ["--variances", "knn"], ["--variances", "knn", "--neighbours", "3"]):
        evaluate.main(["--checkpoint", str(run), *words])
        evaluate.main(["--checkpoint", str(run), *words])                           # over its own
    assert set(os.listdir(run)) - before == {"results_laplace.json", "results_knn.json", "results_knn3.json"}


@pytest.mark.parametrize("words,message", [
    (["--variances", "knn", "--neighbours", "1"], "'1' is not a whole number of at least 2"),
    (["--variances", "knn", "--neighbours", "120"], "--neighbours 120 are more than the 100 images"),
    (["--variances", "knn", "--split", "train"], "is fitted on the train split, so it must not be judged there"),
    (["--variances", "knn", "--sim", "csd"], "--sim csd ranks by variances, and those of --variances knn change no"),
    (["--variances", "laplace", "--sim", "dot"], "is for the cosine of one vector .* is scored by Dot; take .* knn")])
def test_what_does_not_go_together_is_refused(point, capsys, words, message):
    refused(capsys, evaluate.main, ["--checkpoint", point, *words], message)


def test_other_subjects_are_refused(point, small_run, ev, capsys):
    gaussian = small_run("--sim", "wasserstein")
    for split, run, file in (("train", point, "train"), ("test", point, "test"), ("dev", point, "dev"),
                             ("train", gaussian, "wide"), ("test", gaussian, "wide_test")):
        ev("--checkpoint", run, "--split", split, "--export", f"{file}.npz")
    np.save("s.npy", np.zeros((24, 120), np.float32))
    knn, mine = ["--variances", "knn"], ["--embeddings", "test.npz", "--variances", "knn"]
    for words, message in (
            (["--checkpoint", gaussian, *knn], "gives variances to points, and .* has variances of its own"),
            (["--checkpoint", point, gaussian, *knn], "gives variances to points"),
            (["--embeddings", "wide_test.npz", "--variances_from", "wide.npz", *knn], "wide_test.npz has variances of"),
            (["--compare", point, gaussian, *knn], "does not go with --compare: variances change no score"),
            (["--scores", "s.npy", *knn], "does not go with --scores: ready scores have no embeddings"),
            (mine, "needs the training pairs of the same model, .* give them with --variances_from"),
            ([*mine, "--variances_from", "test.npz"], "--variances_from test.npz and test.npz share 50 images"),
            ([*mine, "--variances_from", "wide.npz"], "wide.npz .* is of another model than test.npz"),
            ([*mine, "--variances_from", "none.npz"], "none.npz"),
            ([*mine, "--variances_from", "dev.npz", "--calibration", "dev.npz", "--confidence"],
             "--variances_from and --calibration are both dev.npz")):
        refused(capsys, evaluate.main, [*words, "--output", "r.json"], message)


def test_results_are_not_written_over_the_training_pairs(point, ev, capsys):
    for split in ("train", "test"):
        ev("--checkpoint", point, "--split", split, "--export", f"{split}.npz")
    before = os.path.getsize("train.npz")
    refused(capsys, evaluate.main, ["--embeddings", "test.npz", "--variances", "knn", "--variances_from", "train.npz",
                                    "--output", "train.npz"], "train.npz")
    assert os.path.getsize("train.npz") == before


def test_few_items_are_drawn_as_for_a_bank(point, monkeypatch):
    draw = bank.draw
    monkeypatch.setattr(bank, "draw", lambda caption_image, n: draw(caption_image, n, 50))
    report = opened(point, "--variances", "laplace").variances.report
    assert (report["images"], report["captions"]) == ([10], [50])
    assert opened(point, "--variances", "knn").variances.report["images"] == [50]
