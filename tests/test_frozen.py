"""Variances learned for means that stay as they are: those of a trained point model, or vectors that are given."""
import numpy as np
import pytest
import torch

from checkpoint import load_checkpoint, load_model
from model import Precomputed, ReLULayers, Tower, Unchanged
from tests.helpers import STEPS, fit, fit_steps

HEADS = {"mls": ["--sim", "mls"], "csd": ["--sim", "csd", "--loss", "match"], "volume": ["--loss", "volume"],
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
    layers = [] if name in ("volume", "copy") else ["--var_layers", 16]
    words = ["--data_path", demo_path, "--logger_name", tmp_path / "run", "--init_from", point, "--freeze_means",
             *HEADS[name], *layers]
    fit(*STEPS, *words)
    images, tokens = torch.randn(4, 960), torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 9, 2], [1, 5, 2, 0]])
    lengths = torch.tensor([4, 3, 4, 3])
    for before, after in zip(embedded(point, images, tokens, lengths),
                             embedded(tmp_path / "run", images, tokens, lengths)):
        assert torch.equal(before.mean, after.mean)
        assert after.log_var.shape[1] == (32 if name in ("csd", "volume") else 1)
        assert after.log_var.std(0).max() > 0               # items differ


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


@pytest.mark.parametrize("head, outputs, width", [("ellipsoidal", 6, 6), ("spherical_logavg", 1, 1)])
def test_variance_layers_on_frozen_embeddings_make_a_tower(head, outputs, width):
    tower = Tower(Precomputed(6), Unchanged(6), ReLULayers(6, [8], outputs), head, logvar_init=-2.0)
    features = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    embedding = tower(features).embedding
    torch.testing.assert_close(embedding.mean, torch.nn.functional.normalize(features))
    assert embedding.log_var.shape == (5, width) and (embedding.log_var + 2).abs().max() < 2
    assert all(p.requires_grad for p in tower.parameters())
    assert {name.split(".")[0] for name, _ in tower.named_parameters()} == {"log_var"}    # the points stay


