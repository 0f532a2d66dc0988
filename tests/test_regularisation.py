"""Against learning pairs by heart: noise and dropout, weight decay, label smoothing, and the course of the rate."""
import math

import pytest
import torch

from model import IMAGE_ENCODERS, Corruption, build_tower
from tests.helpers import fit_steps, log_of, options
from train import build_optimizers


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
    lines = log_of(tmp_path / "run", lambda line: line["kind"] == "step")
    steps = len(lines) // 3
    for k, line in enumerate(lines):
        done = k / steps
        expected = (k + 1) / (0.5 * steps + 1) if done < 0.5 else (1 + math.cos(math.pi * (done - 0.5) / 2.5)) / 2
        assert line["lr"] == pytest.approx(0.01 * expected), k
    assert lines[-1]["lr"] < 1e-4 < lines[0]["lr"] < 0.01
