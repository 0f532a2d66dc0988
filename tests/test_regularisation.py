"""Against learning pairs by heart: noise and dropout, weight decay, label smoothing, and the course of the rate."""
import json
import math

import pytest
import torch

import train
from losses import InfoNCE
from model import IMAGE_ENCODERS, Corruption, build_tower
from tests.helpers import fit_steps, options, refused
from train import build_optimizers


def log_of(run):
    with open(run / "log.jsonl") as f:
        return [line for line in map(json.loads, f) if line["kind"] == "step"]


@pytest.mark.parametrize("masked", [False, True])
def test_smoothing_spreads_its_share_over_the_pairs_that_count(masked):
    g = torch.Generator().manual_seed(0)
    s, same = torch.randn(6, 6, generator=g, dtype=torch.float64), torch.arange(6) // 2
    same = same[:, None] == same
    total = 0.0
    for k in range(6):
        for row in (s[k], s[:, k]):
            others = [j for j in range(6) if j == k or not (masked and same[k, j])]
            norm = math.log(sum(math.exp(row[j].item()) for j in others))
            for j in others:
                target = 0.9 * (j == k) + 0.1 / len(others)
                total -= target * (row[j].item() - norm)
    loss = InfoNCE(1.0, 0.1).double()(s, same if masked else None)
    assert loss.item() == pytest.approx(total / 12)


def test_corruption_is_of_the_size_it_says_and_in_training_only():
    torch.manual_seed(0)
    x = 3 * torch.ones(400, 50)
    noise, dropout = Corruption(noise=0.5), Corruption(dropout=0.2)
    norms = (noise(x) - x).norm(dim=1) / x.norm(dim=1)
    assert norms.mean() == pytest.approx(0.5, rel=0.02) and norms.std() > 0
    kept = dropout(x)
    assert set(kept.unique().tolist()) == {0.0, 3.75} and (kept == 0).float().mean() == pytest.approx(0.2, abs=0.01)
    assert torch.equal(noise.eval()(x), x) and torch.equal(dropout.eval()(x), x)


def test_mean_and_variance_read_the_same_corrupted_features():
    opt = options("--sim", "wasserstein", "--dropout", "0.5")
    opt.img_dim = 40
    opt.img_enc = "precomp"
    tower = build_tower(opt, IMAGE_ENCODERS[opt.img_enc], opt.image_head, True, True)
    with torch.no_grad():
        tower.log_var.fc.weight.copy_(tower.mean.fc.weight)
    encoded = tower.train()(torch.rand(8, 40))
    torch.testing.assert_close(encoded.embedding.log_var, encoded.latent.value.clamp(*tower.bounds))
    assert encoded.features.ne(0).all()                     # what a reconstruction aims at stays whole


def test_decay_shrinks_matrices_and_nothing_else():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model.critic, before = None, {name: p.clone() for name, p in model.named_parameters()}
    opt = options("--weight_decay", "0.1", "--learning_rate", "0.01")
    optimizer = build_optimizers(opt, model)["optimizer"]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, before[name] * (1 - 0.001 * (p.ndim > 1)))
    plain = build_optimizers(options(), model)["optimizer"]
    assert type(plain) is torch.optim.Adam and len(plain.param_groups) == 1


def test_the_course_of_the_rate(tmp_path, demo_path):
    fit_steps("--data_path", demo_path, "--logger_name", tmp_path / "run", "--num_epochs", 3, "--schedule", "cosine",
              "--warmup", 0.5, "--learning_rate", 0.01)
    lines = log_of(tmp_path / "run")
    steps = len(lines) // 3
    for k, line in enumerate(lines):
        done = k / steps
        expected = (k + 1) / (0.5 * steps + 1) if done < 0.5 else (1 + math.cos(math.pi * (done - 0.5) / 2.5)) / 2
        assert line["lr"] == pytest.approx(0.01 * expected), k
    assert lines[-1]["lr"] < 1e-4 < lines[0]["lr"] < 0.01


def test_a_run_with_all_of_it_resumes_bit_for_bit(tmp_path, demo_path, monkeypatch):
    words = ["--data_path", demo_path, "--num_epochs", 2, "--sim", "mls", "--schedule", "cosine", "--warmup", 1,
             "--weight_decay", 0.1, "--dropout", 0.2, "--feature_noise", 0.1, "--label_smoothing", 0.1]
    fit_steps(*words, "--logger_name", tmp_path / "whole")
    step, done = train.Training.step, []

    def stopped(*args):
        if len(done) == 3:
            raise train.InputError("cut")
        done.append(1)
        return step(*args)
    log_step = train.log_step
    monkeypatch.setattr(train, "log_step", lambda run, *more: (log_step(run, *more), run.save())[0])
    monkeypatch.setattr(train.Training, "step", stopped)
    with pytest.raises(train.InputError, match="cut"):
        fit_steps(*words, "--logger_name", tmp_path / "cut")
    monkeypatch.setattr(train.Training, "step", step)
    assert train.train(train.parse_args(["--resume", str(tmp_path / "cut"), "--data_path", str(demo_path)])) == 0
    states = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"] for name in ("whole", "cut")]
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states)))


@pytest.mark.parametrize("words, said", [
    (["--dropout", "1"], "at least 0 and less than 1"),
    (["--warmup", "30"], "as long as the training of --num_epochs 30"),
    (["--sim", "mls", "--head", "ellipsoidal"], "one variance per item"),
    (["--sim", "mls", "--head", "point"], "needs a Gaussian on both sides")])
def test_what_cannot_be_is_refused(words, said, capsys):
    refused(capsys, train.parse_args, words, said)
