"""Features of the photos of a data set: what is written, every stop, and every refusal with its sentence."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

from data import read_split
from features import images as command
from features import networks, store
from model import CNN
from tests.helpers import built_quickly, refused


@pytest.fixture
def folder(tmp_path, demo_path):
    """A data path that may be written to, with the demo's photos."""
    for name in ("demo", "demo_coco", "demo_precomp"):
        os.symlink(os.path.join(demo_path, name), tmp_path / name)
    return tmp_path


def images(folder, weights, *words):
    data = ["--data_path", str(folder), "--workers", "0", "--device", "cpu"]
    command.main([*data, "--cnn_type", "resnet18", "--cnn_weights", weights, *words])


@pytest.mark.parametrize("name", ["demo", "demo_coco"])
def test_features_of_photos_are_what_the_network_gives(folder, weights, name):
    images(folder, weights, "--data_name", name, "--output_name", "new", "--splits", "dev")

    photos = read_split(str(folder), name, "dev")
    split = read_split(str(folder), "new", "dev")
    assert split.captions == photos.captions
    assert split.caption_image.tolist() == photos.caption_image.tolist()
    assert split.image_ids == photos.image_ids
    assert split.photo_names == [os.path.basename(p) for p in photos.images.paths]
    if name == "demo_coco":
        assert split.caption_ids.tolist() == photos.caption_ids.tolist()
        assert isinstance(split.image_ids[0], int)

    stored = np.load(folder / "new" / "dev_ims.npy")
    assert stored.shape == (len(photos.images), 512)
    assert stored.dtype == np.float32
    cnn = CNN("resnet18", weights=weights, normalize=False)
    expected = cnn(photos.images.gather([0, len(stored) - 1]))
    np.testing.assert_allclose(stored[[0, -1]], expected, rtol=1e-3, atol=1e-4)

    made = json.loads((folder / "new" / "features.json").read_text())
    assert list(made) == ["ims"]
    assert made["ims"].startswith("resnet18 pooled sha256:")
    assert not [file for file in os.listdir(folder / "new") if file.startswith(".")]


def test_captions_of_photos_that_are_written(folder, capsys):
    """As many of each photo as there are, or the first ones; those of an image come together, whatever their order was.
    None of a photo that cannot be read."""
    os.remove(folder / "demo")
    (folder / "demo" / "images").mkdir(parents=True)
    entries = []
    for k, path in enumerate(read_split(str(folder), "demo_coco", "test").images.paths[:4]):
        shutil.copy(path, folder / "demo" / "images")
        sentences = [{"raw": f"caption {m}\nof {k}"} for m in range(2 + k % 2)]
        name = os.path.basename(path)
        entries.append({"filename": name, "split": "test", "sentences": sentences})
    (folder / "demo" / "dataset_demo.json").write_text(json.dumps({"images": entries}))

    def run(words):
        data = ["--data_path", str(folder), "--data_name", "demo", "--splits", "test"]
        how = ["--output_name", "new", "--cnn_type", "demo", "--workers", "0"]
        command.main([*data, *how, *words])

    def assert_captions(photos):
        split = read_split(str(folder), "new", "test")
        expected = []
        for k in photos:
            expected += [f"caption 0 of {k}", f"caption 1 of {k}"]
        assert split.captions == expected
        assert split.caption_image.tolist() == np.arange(len(photos)).repeat(2).tolist()
        assert split.photo_names == [entries[k]["filename"] for k in photos]

    message = "images of test have 2 to 3 captions, and --captions_per_image 3 .* at most 2"
    refused(capsys, run, ["--captions_per_image", "3"], message)
    assert not (folder / "new").exists()

    run(["--captions_per_image", "2"])
    assert_captions(photos=[0, 1, 2, 3])

    (folder / "demo" / "images" / entries[2]["filename"]).write_bytes(b"no picture")
    run(["--captions_per_image", "2", "--skip_broken"])
    assert_captions(photos=[0, 1, 3])


@pytest.mark.parametrize("name, linear", [("vgg16", 0), ("alexnet", 1)])
def test_fc6_is_the_first_linear_layer_with_its_relu(name, linear, monkeypatch):
    monkeypatch.setattr(networks, "CNN", built_quickly)
    net, _, line, _ = networks.build_network("cpu", name, "fc6")
    photos = torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)  # as CNN does

    got = net(photos)

    assert line.startswith(f"{name} fc6 sha256:")
    assert got.shape == (1, 4096)
    assert (got >= 0).all()
    pooled = net.net.avgpool(net.net.features(photos)).flatten(1)
    expected = torch.relu(net.net.classifier[linear](pooled))
    torch.testing.assert_close(got, expected)


def test_refusals_of_images(folder, weights, capsys):
    def run(words):
        images(folder, weights, "--data_name", "demo", "--output_name", *words)

    (folder / "v.txt").write_text("")
    for words, message in (
        (["demo"], "--output_name demo is the folder of the photos"),
        (["new", "--data_name", "none"], "there is no folder .*none"),
        (["v.txt"], "v.txt/features.json cannot be written"),
    ):
        refused(capsys, run, words, message)
    assert not (folder / "new").exists()

    run(["new", "--splits", "dev"])
    message = "is of 'resnet18 pooled sha256.*these are of 'resnet18 cells"
    refused(capsys, run, ["new", "--layer", "cells"], message)


def test_a_value_that_a_full_disk_does_not_take_is_named(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("46080 requested and 24544 written")

    monkeypatch.setattr(np, "save", fail)
    monkeypatch.setattr("utils.free_space", lambda folder: 0)
    part = store.Part(str(tmp_path / "x.npy"), "made by a test")
    with pytest.raises(OSError, match=f"No space left on device: '{part.folder}/new") as error:
        part["key"] = np.ones(3)
    assert error.value.errno == 28
