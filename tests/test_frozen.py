"""Variances learned for means that stay as they are: those of a trained point model, or vectors that are given."""
import json
import shlex

import numpy as np
import pytest
import torch

import train
from checkpoints import load_checkpoint, load_model
from paper_tables import heads
from paper_tables import runs as running
from tests.helpers import STEPS, fit, fit_steps, refused
from tests.test_paper_tables import in_this_process

HEADS = {"mls": ["--sim", "mls"], "csd": ["--sim", "csd", "--loss", "match", "--inclusion", "1"],
         "vmf": ["--sim", "vmf"], "probvlm": ["--loss", "probvlm"], "volume": ["--loss", "volume"],
         "copy": ["--sim", "mls"]}


@pytest.fixture(scope="module")
def point(tmp_path_factory, demo_path):
    run = tmp_path_factory.mktemp("point") / "run"
    fit_steps("--data_path", demo_path, "--logger_name", run, "--loss", "infonce")
    return run


def embedded(run, images, tokens, lengths):
    model, _, _ = load_model(load_checkpoint(str(run)), str(run))
    with torch.no_grad():
        return model.embed_images(images), model.embed_captions(tokens, lengths)


@pytest.mark.parametrize("name", HEADS)
def test_the_means_of_a_point_model_stay_and_variances_are_learned(name, point, tmp_path, demo_path):
    layers = [] if name in ("probvlm", "volume", "copy") else ["--var_layers", 16]
    words = ["--data_path", demo_path, "--logger_name", tmp_path / "run", "--init_from", point, "--freeze_means",
             *HEADS[name], *layers]
    fit(*STEPS, *words)
    images, tokens = torch.randn(4, 960), torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 9, 2], [1, 5, 2, 0]])
    lengths = torch.tensor([4, 3, 4, 3])
    for before, after in zip(embedded(point, images, tokens, lengths),
                             embedded(tmp_path / "run", images, tokens, lengths)):
        assert torch.equal(before.mean, after.mean)
        if after.log_var is not None:                       # vmf: images are points
            assert after.log_var.shape[1] == (32 if name in ("csd", "probvlm", "volume") else 1)
            assert after.log_var.std(0).max() > 0           # items differ
    assert after.log_var is not None


def test_given_vectors_are_the_means(tmp_path, demo_path):
    """Vectors of both sides in one space, as CLIP's are."""
    folder, rng = tmp_path / "clip", np.random.default_rng(0)
    folder.mkdir()
    for split, n in (("train", 60), ("dev", 20)):
        x = rng.normal(size=(n, 12)).astype(np.float32)
        np.save(folder / f"{split}_ims.npy", x)
        captions = x[:, None] + rng.normal(size=(n, 5, 12))
        np.save(folder / f"{split}_clip.npy", captions.reshape(-1, 12).astype(np.float32))
        (folder / f"{split}_caps.txt").write_text("a dog\n" * 5 * n)
    words = ["--data_path", tmp_path, "--data_name", "clip", "--text_features", "clip", "--img_layers", 0,
             "--txt_layers", 0, "--embed_size", 12, "--logger_name", tmp_path / "run", "--sim", "mls"]
    fit(*STEPS, *words)
    model, _, opt = load_model(load_checkpoint(str(tmp_path / "run")), "run")
    x = torch.rand(5, 12)
    e = model.embed_images(x)
    torch.testing.assert_close(e.mean, torch.nn.functional.normalize(x, dim=1))
    assert e.log_var.shape == (5, 1) and opt.var_layers == "256"


def test_weights_that_do_not_fit_are_refused(point, tmp_path, demo_path, capsys):
    words = [*STEPS, "--data_path", demo_path, "--logger_name", tmp_path / "run", "--init_from", point,
             "--freeze_means", "--sim", "mls", "--embed_size", 16]
    refused(capsys, train.main, words, "weights of .* are not those of a model of these options")


@pytest.mark.usefixtures("undrawn")
def test_one_command_compares_heads(tmp_path, demo_path, monkeypatch, capsys):
    """On a point model, and on vectors that are given; what is complete is not made again."""
    monkeypatch.setattr(running, "execute", in_this_process)
    monkeypatch.setattr(heads, "TRAINED", "--num_epochs 1 --batch_size 16 --device cpu")
    monkeypatch.setattr(heads, "POINT", "--loss infonce --num_epochs 8 --batch_size 16 --learning_rate 0.01")
    monkeypatch.setattr(heads, "HEADS", {name: heads.HEADS[name] for name in (
        "mls", "von Mises-Fisher (AsymVLM)", "generalised Gaussian (ProbVLM)")})
    words = ["--data_path", demo_path, "--data_name", "demo_precomp", "--runs", tmp_path / "heads", "--encoder",
             "--embed_size 32 --word_dim 16 --vocab_threshold 1", "--output", tmp_path / "t.json"]
    (tmp_path / "heads").mkdir()
    made = run_heads(words, capsys)
    assert list(made["rows"]) == ["the points", *heads.HEADS, *heads.WITHOUT_TRAINING]
    cells = {row: dict(zip(made["columns"], line)) for row, line in made["rows"].items()}
    assert cells["the points"]["t2i log det"] == "-" != cells["mls"]["t2i log det"]
    assert cells["von Mises-Fisher (AsymVLM)"]["i2t log det"] == "-"        # images are points
    for row in ("generalised Gaussian (ProbVLM)", *heads.WITHOUT_TRAINING):        # the means alone rank
        assert cells[row]["rsum"] == cells["the points"]["rsum"] and cells[row]["t2i log det"] != "-"
    monkeypatch.setattr(running, "execute", lambda step: pytest.fail(f"made again: {step.shown}"))
    assert run_heads(words, capsys) == made


def run_heads(words, capsys) -> dict:
    with pytest.raises(SystemExit) as stop:
        heads.main([str(word) for word in words])
    assert not stop.value.code, capsys.readouterr().err
    with open(words[-1], encoding="utf-8") as f:
        return json.load(f)


def test_heads_on_given_vectors_have_no_point_model(tmp_path, capsys):
    words = ["--data_path", tmp_path, "--data_name", "clip", "--given", "clip", "--embed_size", 12, "--runs", tmp_path]
    with pytest.raises(SystemExit):
        heads.main([*map(str, words), "--dry_run"])
    said = capsys.readouterr().out.splitlines()
    trained = [line for line in said if "train.py" in line]
    assert len(trained) == len(heads.HEADS) and len(said) == 2 * len(trained)
    assert all("--text_features clip --img_layers 0 --txt_layers 0 --embed_size 12" in line for line in trained)
    assert not any("init_from" in line or "variances" in line for line in said)
    for line in trained:
        assert train.parse_args(shlex.split(line)[2:]).embed_size == 12
