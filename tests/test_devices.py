"""How work is laid out on a device: batches read ahead, features that are kept, streams, precision, compiled parts.
CUDA pretends (tests/pretending.py)."""
import os
import threading
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import encoders
from checkpoints import load_checkpoint
from cli import InputError
from devices import feeding, precision
from devices.feeding import Kept, keep, on_device
from devices.precision import compile_parts, full_float32, in_tf32, scored, use_tf32
from encoders import GRUEmbedding, Latent
from files import log
from inputs import Features, Photos
from methods.labelled import running_sums
from model import Head, Tower
from similarities import SIMILARITIES, Embedding
from tests.helpers import fit, log_of, options, same_runs
from tests.pretending import CUDA, Pretending, mark, pretended_cuda
from tests.tiny import tiny
from timing.precision import RoundedProducts, rounded

GPU = SimpleNamespace(type="cuda")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def settings():
    """torch's settings as they were."""
    before = [kind.fp32_precision for kind in precision.PRODUCTS]
    yield
    for kind, value in zip(precision.PRODUCTS, before):
        kind.fp32_precision = value
    torch.use_deterministic_algorithms(False)


# ---- batches

class Item(NamedTuple):
    """A batch whose tensor is made on the device by the stream of the moment."""
    x: Tensor

    def map(self, f) -> "Item":
        return Item(f(self.x))

    def to(self, device) -> "Item":
        assert self.x.pinned and device is GPU
        x = self.x.clone()
        mark(x, CUDA)
        torch.cuda.current_stream(device).work([], [x])
        return Item(x)


def items(count: int, log: list, fails: int | None = None):
    try:
        for n in range(count):
            if n == fails:
                raise InputError("photo 3 is broken")
            log.append(n)
            yield Item(torch.tensor([n]))
    finally:
        log.append("closed")


def readers() -> list:
    return [thread for thread in threading.enumerate() if thread.name == "batches"]


def test_batches_come_in_order_and_are_made_when_they_are_read(monkeypatch):
    pretended_cuda(monkeypatch)
    log, found = [], []
    with Pretending() as seen:
        for batch in on_device(items(7, log), GPU):
            found.append(int((batch.x + 1).item()) - 1)     # raises where the copy is not waited for
    assert found == list(range(7)) and log == [*range(7), "closed"] and not seen.unprotected() and not readers()


def test_batches_are_made_ahead_but_not_far(monkeypatch):
    pretended_cuda(monkeypatch)
    log, batches = [], None
    batches = on_device(items(50, log), GPU)
    next(batches)
    deadline = threading.Event()
    while len(log) < feeding.AHEAD + 2 and not deadline.wait(0.01):
        pass                                                # one asked for, AHEAD that wait, one to be handed over
    deadline.wait(0.1)
    assert log == list(range(feeding.AHEAD + 2))
    batches.close()
    assert log[-1] == "closed" and len(log) < 10 and not readers()


def test_an_error_comes_where_its_batch_would(monkeypatch):
    pretended_cuda(monkeypatch)
    batches, found = on_device(items(7, [], fails=3), GPU), []
    with pytest.raises(InputError, match="photo 3 is broken"):
        for batch in batches:
            found.append(int(batch.x))
    assert found == [0, 1, 2] and not readers()


@pytest.mark.parametrize("device, ahead", [(CPU, True), (GPU, False)])
def test_without_reading_ahead_a_batch_is_made_when_it_is_asked_for(device, ahead):
    log, moved = [], []
    some = (SimpleNamespace(to=lambda where, n=n: moved.append((n, where)) or n) for n in log_each(range(3), log))
    batches = on_device(some, device, ahead)
    assert next(batches) == 0 and log == [0] and moved == [(0, device)] and not readers()


def log_each(some, log):
    for n in some:
        log.append(n)
        yield n


def test_unpaired_items_are_those_of_their_step_also_when_read_ahead(demo_path, monkeypatch):
    from runs import build_data

    opt = options("--data_path", demo_path, "--recon_images", 1, "--supervised_fraction", 0.5, "--workers", 0)
    data, state = build_data(opt, None), {"epoch": 0, "step": 0, "iteration": 40}
    ahead = list(data.batches(state))
    for n, batch in enumerate(data.batches(state)):
        assert torch.equal(batch.unpaired.images, ahead[n].unpaired.images)
        assert torch.equal(batch.unpaired.images, data.unpaired.batch(40 + n).images)
        state["iteration"] += 1
    assert n > 1


# ---- features that are kept

def feature_file(tmp_path, dtype=np.float16, shape=(6, 3, 4), step=1) -> Features:
    rows = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    np.save(tmp_path / "x.npy", np.repeat(rows, step, 0))
    features = Features(str(tmp_path / "x.npy"))
    features.step = step
    return features


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4)])
@pytest.mark.parametrize("step", [1, 5])
def test_kept_features_are_those_of_the_file(tmp_path, monkeypatch, dtype, shape, step):
    monkeypatch.setattr(feeding, "AT_ONCE", 40)
    features = feature_file(tmp_path, dtype, shape, step)
    kept, index = Kept(features, CPU), np.array([4, 0, 4, 5])
    assert kept.rows.dtype == torch.from_numpy(np.zeros(1, dtype)).dtype and len(kept) == 6
    assert kept.gather(index).dtype == torch.float32 and torch.equal(kept.gather(index), features.gather(index))
    assert feeding.kept_bytes(features) == kept.rows.nbytes


def test_kept_features_are_refused_as_the_file_is(tmp_path):
    features = feature_file(tmp_path)
    rows = np.array(features.array)
    rows[4, 1, 2] = np.nan
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(InputError, match="x.npy holds NaN or infinity in row 4; every feature has to be"):
        Kept(Features(str(tmp_path / "x.npy")), CPU)


def test_a_run_on_kept_features_is_the_run_on_the_file(demo_path, tmp_path, monkeypatch):
    """On a CPU, where keeping them is asked for by force."""
    words = ["--data_path", demo_path, "--num_epochs", 2]
    fit(*words, "--logger_name", tmp_path / "file")
    monkeypatch.setattr("runs.keep", lambda images, device, where: (Kept(images, device), "features: kept"))
    fit(*words, "--logger_name", tmp_path / "kept")
    assert same_runs(tmp_path / "file", tmp_path / "kept")
    assert "\nfeatures: kept\n" in (tmp_path / "kept" / "log.txt").read_text()


@pytest.mark.parametrize("free, where, kept, said", [
    (10 ** 6, "auto", True, "0.0 GiB kept on cuda"), (10 ** 6, "device", True, "kept on cuda"),
    (10 ** 6, "host", False, ""),
    (200, "auto", False, "read from the file, as 0.0 GiB are free on cuda and at most 60%"),
    (int(144 / 0.6) + 1, "auto", True, "kept"), (int(144 / 0.6) - 1, "auto", False, "read from the file")])
def test_features_are_kept_where_they_fit(tmp_path, monkeypatch, free, where, kept, said):
    pretended_cuda(monkeypatch, free)
    monkeypatch.setattr(feeding, "Kept", lambda images, device: "kept")
    features = feature_file(tmp_path)                       # 144 bytes
    images, line = keep(features, torch.device("cuda"), where)
    assert images == "kept" if kept else images is features
    assert said in line and bool(line) == bool(said)


def test_what_cannot_be_kept_is_refused(tmp_path, monkeypatch):
    pretended_cuda(monkeypatch, 200)
    with pytest.raises(InputError, match="the features take 0.0 GiB and .* take auto or host"):
        keep(feature_file(tmp_path), torch.device("cuda"), "device")
    photos = Photos(["a.jpg"])
    assert keep(photos, torch.device("cuda"), "auto") == (photos, "")
    with pytest.raises(InputError, match="are photos or regions of phrases; take auto or host"):
        keep(photos, torch.device("cuda"), "device")
    assert keep(photos, CPU, "auto") == (photos, "")


def test_crops_that_draw_from_torch_are_not_made_ahead():
    from runs import Data

    def ahead(images, workers):
        return Data.ahead.fget(SimpleNamespace(train=SimpleNamespace(images=images), workers=workers))
    assert [ahead(Photos([]), 0), ahead(Photos([]), 2), ahead(None, 0)] == [False, True, True]


# ---- words that are packed once

def test_both_copies_of_a_gaussian_read_words_that_are_packed_once(monkeypatch):
    packs, real = [], encoders.pack_padded_sequence
    monkeypatch.setattr(encoders, "pack_padded_sequence", lambda *args, **how: packs.append(1) or real(*args, **how))

    class Trunk(torch.nn.Module):
        def forward(self, words, lengths=None):
            return words

    def tower(packing: bool):
        torch.manual_seed(0)
        made = Tower(Trunk(), GRUEmbedding(5, 8), GRUEmbedding(5, 8), Head("ellipsoidal"))
        made.mean.packs = packing
        words = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
        e = made(words, torch.tensor([3, 7, 1, 5])).embedding
        (e.mean[:, 0] + e.log_var[:, 1]).sum().backward()
        return e.mean, e.log_var, words.grad, *(p.grad for p in made.parameters())
    once, count_once = tower(True), sum(packs)
    packs.clear()
    twice = tower(False)
    assert (count_once, sum(packs)) == (1, 2) and all(map(torch.equal, once, twice))


# ---- precision

class Watched(torch.autograd.Function):
    """A product that notes whether tf32 is on, forward and backward."""
    seen: list = []

    @staticmethod
    def forward(ctx, x, y):
        Watched.seen.append(in_tf32())
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx, gradient):
        Watched.seen.append(in_tf32())
        x, y = ctx.saved_tensors
        return gradient @ y.T, x.T @ gradient


def test_scores_and_their_gradients_are_never_in_tf32():
    torch.manual_seed(0)
    x, y, k = torch.randn(4, 3), torch.randn(5, 3), torch.nn.Parameter(torch.tensor(2.0))

    def compare(a: Embedding, b: Embedding):
        return k * Watched.apply(a.mean, b.mean.T)

    def run(tf32: bool):
        use_tf32(tf32)
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        Watched.seen, k.grad = [], None
        scores = scored(compare, Embedding(a * 2), Embedding(b), learned=[k])
        Watched.seen.append("loss")
        (scores.square().sum() + Watched.apply(a, y.T).sum()).backward()
        assert in_tf32() == tf32
        return [scores.detach(), a.grad, b.grad, k.grad], Watched.seen
    (plain, _), (full, seen) = run(False), run(True)
    assert all(map(torch.equal, plain, full))
    assert seen == [False, "loss", True, True, False] or seen == [False, "loss", True, False, True]
    use_tf32(True)
    with torch.no_grad():
        Watched.seen = []
        assert torch.equal(scored(compare, Embedding(2 * x), Embedding(y)), plain[0]) and Watched.seen == [False]


@pytest.mark.parametrize("name", ["gcie_wasserstein", "gcie_minkl_avgpool", "mls", "vmf", "scan_i2t", "pvse", "pcme",
                                  "cite", "similarity_network", "embedding_network", "mmd_mse"])
def test_a_step_with_tf32_on_is_the_step_without(name, tmp_path):
    """On a CPU, which has no tf32: the graph apart that keeps scores in float32 changes no gradient."""
    (tmp_path / "v").write_bytes(b"")

    def gradients(tf32: bool):
        _, model, batch = tiny(name, str(tmp_path / "v"))
        use_tf32(tf32)
        torch.manual_seed(0)
        sum(model.train()(batch).values()).backward()
        return {key: p.grad for key, p in model.named_parameters()}
    plain, full = gradients(False), gradients(True)
    for key, grad in plain.items():
        assert (grad is None) == (full[key] is None), key
        torch.testing.assert_close(full[key], grad, rtol=1e-5, atol=1e-6)


def test_full_float32_is_a_context():
    use_tf32(True)
    with pytest.raises(InputError), full_float32():
        assert not in_tf32() and {kind.fp32_precision for kind in precision.PRODUCTS} == {"ieee"}
        raise InputError("broken off")
    assert in_tf32() and {kind.fp32_precision for kind in precision.PRODUCTS} == {"tf32"}


def test_rounding_is_that_of_bf16_and_products_of_tf32_round_what_they_read():
    x, y = torch.randn(2, 40, 30, generator=torch.Generator().manual_seed(0))
    x[0, :3] = torch.tensor([0.0, 1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8])                # ties go to the even mantissa
    assert torch.equal(rounded(x, 7), x.bfloat16().float()) and torch.equal(rounded(rounded(x, 10), 10), rounded(x, 10))
    assert float((rounded(x, 10) - x).abs().max() / x.abs().max()) < 2 ** -11
    with RoundedProducts():
        plain, added = x @ y.T, torch.zeros(40, 40).addmm_(x, y.T)
        scores = SIMILARITIES["dot"]()(Embedding(x), Embedding(y))
    expected = rounded(x, 10) @ rounded(y, 10).T
    assert torch.equal(plain, expected) and torch.equal(added, expected)
    torch.testing.assert_close(scores, expected)


# ---- always the same

def test_a_run_that_is_to_be_always_alike_says_so_and_goes_on_so(demo_path, tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    fit("--data_path", demo_path, "--deterministic", "--logger_name", tmp_path / "a")
    assert torch.are_deterministic_algorithms_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert ", deterministic, seed 0" in (tmp_path / "a" / "log.txt").read_text()
    torch.use_deterministic_algorithms(False)
    fit("--data_path", demo_path, "--num_epochs", 2, "--resume", tmp_path / "a")
    assert torch.are_deterministic_algorithms_enabled()
    assert load_checkpoint(str(tmp_path / "a"))["options"]["deterministic"] is True
    fit("--data_path", demo_path, "--num_epochs", 2, "--logger_name", tmp_path / "b")
    assert not torch.are_deterministic_algorithms_enabled()
    steps = [[line["Le"] for line in log_of(tmp_path / name) if line["kind"] == "step"] for name in "ab"]
    assert steps[0] == steps[1]                             # a CPU always adds in the same order


def test_running_sums_without_cumsum_on_cuda():
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = running_sums(x)
    torch.use_deterministic_algorithms(True)
    mark(x, CUDA)
    with Pretending(), pytest.MonkeyPatch.context() as patch:
        pretended_cuda(patch)
        patch.setattr(Tensor, "cumsum", None)
        found = running_sums(x)
    torch.testing.assert_close(found, plain)


# ---- compiled parts

@pytest.mark.parametrize("name, parts", [("pcme", ["similarity.log_odds"]), ("scan_t2i", ["similarity.block"])])
def test_compiled_parts_change_neither_names_nor_scores(name, parts):
    _, model, batch = tiny(name, "")
    names, plain = list(model.state_dict()), model.eval()(batch)
    assert compile_parts(model, CPU, backend="eager") == parts
    compiled = model(batch)
    assert list(model.state_dict()) == names and isinstance(model.image_tower(batch.images).latent, Latent)
    for term, value in plain.items():
        torch.testing.assert_close(compiled[term], value)
    assert all(model.get_submodule(part)._compiled_call_impl is not None for part in parts)


def test_compiling_is_refused_where_it_gains_nothing_or_cannot_be():
    with pytest.raises(InputError, match="nothing of this model gains by it"):
        compile_parts(tiny("vse++", "")[1], CPU, backend="eager")

    def broken(graph, inputs):
        raise RuntimeError("no compiler")
    with pytest.raises(InputError, match="torch cannot compile here .*leave it out"):
        compile_parts(tiny("pcme", "")[1], CPU, backend=broken)


# ---- threads that share cores

@pytest.mark.parametrize("threads, busy, quota, said", [
    (2, 5, "inf", ""), (1, 20, "inf", ""), (2, 17, "inf", "other processes keep 1.2 of 2 cores busy"),
    (4, 5, "inf", "this process may use 2 cores"), (2, 5, 1.5, "this process may use 1.5 cores")])
def test_threads_that_share_cores_are_told_of_once(monkeypatch, threads, busy, quota, said):
    """busy: seconds of both cores in 10 seconds, of which this process took 5."""
    moments = iter([(0, 0, 0), (1, 2, 1), (10, busy, 5), (20, 40, 6), (30, 60, 7)])
    monkeypatch.setattr(log, "_times", lambda: next(moments))
    monkeypatch.setattr(log, "_quota", lambda: float(quota))
    monkeypatch.setattr(log.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    of_process = log.Load(threads)
    assert of_process.note() == ""                          # too early to tell
    note = of_process.note()
    assert (said in note and f"{threads} threads" in note) if said else not note
    assert not (said and of_process.note())


def test_the_times_of_this_machine():
    first, second = log._times(), log._times()
    assert first is None or all(a <= b for a, b in zip(first, second)) and second[1] - first[1] < 60
