"""On CUDA everything computes what it computes on the CPU: similarities, objectives, every method with its gradients,
evaluation, a training that is stopped and goes on, features that are kept or read ahead.

Each check is a function of a device and also runs on the CPU, which shows that the check itself works: both sides are
the same there. On CUDA float32 sums in another order; tolerances are relative to the largest number compared.
"""
import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cli import torch_device
from devices.feeding import on_device
from devices.precision import PRODUCTS, scored
from losses import Hinge, InfoNCE, Match, PairLogistic, SampledNLL
from methods import METHODS
from methods.labelled import LabelledHinge, LabelledInfoNCE, LabelledLogistic, LabelledMatch
from metrics import ranks_by_blocks, retrieval_blocks
from runs import build_data
from similarities import Embedding
from tests.helpers import fit, options, same_weights
from tests.pretending import Generator
from tests.tiny import tiny
from timing import precision

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(),
                                                                reason="no CUDA device is here"))]
FORWARD, BACKWARD = 1e-5, 1e-4        # largest differences of numbers and of gradients, relative to the largest
OBJECTIVES = {"hinge": Hinge(), "hardest": Hinge(0.2, True), "infonce": InfoNCE(0.07, 0.1), "match": Match(),
              "pseudo positives": Match(False, 0.1, 1e-4), "nll": SampledNLL(10.0, 3), "logistic": PairLogistic()}
LABELLED = {"hinge": LabelledHinge(), "hardest": LabelledHinge(0.2, True), "infonce": LabelledInfoNCE(),
            "match": LabelledMatch(), "logistic": LabelledLogistic()}
real = {name: getattr(torch, name) for name in ("rand", "randn", "randn_like")}


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Full float32, and random numbers that the CPU draws for all devices."""
    before = [kind.fp32_precision for kind in PRODUCTS]
    torch_device("cpu")
    monkeypatch.setattr(torch, "Generator", Generator)
    for name in ("rand", "randn"):
        monkeypatch.setattr(torch, name, lambda *shape, device="cpu", name=name, **how: real[name](*shape, **how).to(
            device))
    monkeypatch.setattr(torch, "randn_like", lambda x: real["randn"](x.shape, dtype=x.dtype).to(x.device))
    monkeypatch.setattr(F, "dropout", lambda x, p=0.5, training=True, inplace=False: x * (
        real["rand"](x.shape) >= p).to(x) / (1 - p) if training and p else x)
    yield
    for kind, value in zip(PRODUCTS, before):
        kind.fp32_precision = value
    torch.use_deterministic_algorithms(False)


def close(there, here, tolerance: float, what: str = "") -> None:
    """Tensors of a device and of the CPU are the same, but for a share of the largest number."""
    there, here = there.detach().cpu().double(), here.detach().double()
    assert there.shape == here.shape and torch.isfinite(there).all(), what
    worst = (there - here).abs().max() if here.numel() else 0
    assert worst <= tolerance * max(1e-3, float(here.abs().max()) if here.numel() else 0), f"{what}: {worst:.1e}"


def placed(e: Embedding, device, learned: bool = False) -> Embedding:
    """An embedding on a device; `learned`: its numbers get a gradient."""
    moved = Embedding(*(None if x is None else x.to(device) for x in e))
    return precision.each(moved, lambda x: x.requires_grad_(learned))


def close_all(there: dict, here: dict, tolerance: float) -> None:
    assert set(there) == set(here)
    largest = max(float(x.detach().abs().max()) for x in here.values() if x is not None)
    for name, x in here.items():
        assert (x is None) == (there[name] is None), name
        if x is not None:                                   # of what is nothing beside the others no digit is right
            close(there[name] / largest, x / largest, tolerance, name)


def step(model, batch) -> tuple[dict, dict]:
    """The terms of the loss and the gradients of a training step."""
    torch.manual_seed(3)
    terms = model.train()(batch)
    sum(terms.values()).backward()
    return terms, {name: p.grad for name, p in model.named_parameters()}


# ---- similarities and objectives

@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", precision.COMPARED)
def test_scores_and_their_gradients(name, device):
    results = []
    for where in ("cpu", device):
        sides = [placed(precision.each(e, torch.clone), where, True) for e in precision.sides(name, 24, 0)]
        scores = precision.COMPARED[name]().eval().to(where)(*sides)
        scores.mul(torch.linspace(-1, 1, scores.numel(), device=where).view(scores.shape)).sum().backward()
        results.append((scores, {f"{k} {field}": getattr(e, field).grad for k, e in enumerate(sides)
                                 for field in ("mean", "log_var", "parts") if getattr(e, field) is not None}))
    (here, of_here), (there, of_there) = results
    assert there.device.type == device
    close(there, here, FORWARD)
    close_all(of_there, of_here, BACKWARD)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind, name", [*(("pairs", name) for name in OBJECTIVES), *(("labels", x) for x in LABELLED)])
def test_objectives(kind, name, device):
    generator = torch.Generator().manual_seed(0)
    scores = real["randn"](8, 8, generator=generator)
    labels = torch.randint(-1, 2, (8, 8), generator=generator, dtype=torch.int8).fill_diagonal_(1)
    same = torch.arange(8)[:, None] // 2 == torch.arange(8) // 2
    results = []
    for where in ("cpu", device):
        torch.manual_seed(1)
        objective = copy.deepcopy((OBJECTIVES if kind == "pairs" else LABELLED)[name]).to(where)
        given = scores.clone().to(where).requires_grad_()
        terms = objective(given, (same if kind == "pairs" else labels).to(where))
        sum(terms.values()).backward()
        results.append((terms, {"scores": given.grad, **{key: p.grad for key, p in objective.named_parameters()}}))
    (here, of_here), (there, of_there) = results
    close_all(there, here, FORWARD)
    close_all(of_there, of_here, BACKWARD)


# ---- methods

@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_every_method(name, device, tmp_path):
    """Terms, gradients (jWAE's critic and decoders among them), and then embeddings and scores in evaluation."""
    (tmp_path / "vectors").write_bytes(b"")
    _, model, batch = tiny(name, str(tmp_path / "vectors"))
    other = copy.deepcopy(model).to(device)
    (here, of_here), (there, of_there) = step(model, batch), step(other, batch.to(device))
    close_all(there, here, BACKWARD)
    close_all(of_there, of_here, 10 * BACKWARD)
    with torch.no_grad():
        found = []
        for one, where in ((model, "cpu"), (other, device)):
            some = batch.to(where)
            sides = one.eval().embed_images(some.images), one.embed_captions(some.tokens, some.lengths)
            found.append((sides, one.similarity(*sides)))
    for x, y in zip([*found[1][0][0], *found[1][0][1]], [*found[0][0][0], *found[0][0][1]]):
        assert (x is None) == (y is None)
        if x is not None:
            close(x, y, BACKWARD)
    close(found[1][1], found[0][1], BACKWARD)


# ---- evaluation

@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", precision.COMPARED)
def test_ranks_by_blocks(name, device):
    """Ranks differ by no more than the pairs that float32 cannot tell apart."""
    sides, similarity = precision.sides(name, 24, 0), precision.COMPARED[name]().eval()
    n, m = (len(e.mean) for e in sides)
    owner, found = np.arange(m) * n // m, []
    for where in ("cpu", device):
        similarity.to(where)
        moved = [placed(e, where) for e in sides]
        with torch.no_grad():
            found.append(ranks_by_blocks(similarity.columns(*moved), owner, n, 30))
        result = retrieval_blocks(similarity, *moved, owner, 30)
        assert result["rsum"] == pytest.approx(retrieval_blocks(similarity, *moved, owner, 100)["rsum"], abs=1.01)
    for here, there in zip(*found):
        assert (np.abs(here - there) <= 1).all() and (here != there).mean() < 0.02


# ---- training

@pytest.mark.parametrize("device", DEVICES)
def test_a_training_that_stops_goes_on_the_same(device, demo_path, tmp_path):
    words = ["--data_path", demo_path, "--sim", "kl", "--device", device, "--deterministic"]
    fit(*words, "--num_epochs", 2, "--logger_name", tmp_path / "whole")
    fit(*words, "--num_epochs", 1, "--logger_name", tmp_path / "parts")
    fit(*words, "--num_epochs", 2, "--resume", tmp_path / "parts")
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("device", DEVICES)
def test_batches_are_the_same_wherever_features_are(device, demo_path):
    found = {}
    for where in ("host", "device") if device == "cuda" else ("host", "auto"):
        opt = options("--data_path", demo_path, "--features_on", where, "--device", device, "--workers", 0)
        data = build_data(opt, None)
        said = data.feed(torch.device(device), where)
        assert bool(said) == (where == "device")
        state = {"epoch": 1, "step": 0, "iteration": 0}
        found[where] = list(on_device(data.batches(state), torch.device(device), data.ahead))
    first, second = found.values()
    assert len(first) == len(second) > 1
    for a, b in zip(first, second):
        assert a.images.device.type == device and a.lengths.device.type == "cpu" and a.images.dtype == torch.float32
        assert all(torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in zip(a, b))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_tf32_is_of_networks_and_never_of_scores():
    """float32 products of networks lose digits with --tf32, and scores do not."""
    x, y = (real["randn"](256, 512, generator=torch.Generator().manual_seed(k)).cuda() for k in (0, 1))
    exact, errors = x.double() @ y.double().T, {}
    for kind in ("ieee", "tf32"):
        for product in PRODUCTS:
            product.fp32_precision = kind
        plain = Embedding(x), Embedding(y)
        found = {"product": x @ y.T, "score": scored(precision.COMPARED["dot"](), *plain)}
        errors.update({(kind, name): float((z - exact).abs().max()) for name, z in found.items()})
    assert errors["tf32", "product"] > 20 * errors["ieee", "product"]
    assert errors["tf32", "score"] == errors["ieee", "score"]
