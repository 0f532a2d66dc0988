"""Features of the photos of a data set: what is written, every stop, and every refusal with its sentence."""
import json
import os
import shutil
from functools import partial

import numpy as np
import pytest
import torch

import images as photo_module
from data import read_split
from features import images as command
from features import networks
from features.store import Part
from model import CNN
from tests.helpers import refused


@pytest.fixture
def folder(tmp_path, demo_path):
    """A data path that may be written to, with the demo's photos."""
    for name in ("demo", "demo_coco", "demo_precomp"):
        os.symlink(os.path.join(demo_path, name), tmp_path / name)
    return tmp_path


@pytest.fixture
def small_photos(monkeypatch):
    """Photos of 64 x 64, four at a time, for tests of which of them are read when."""
    monkeypatch.setitem(command.BATCH, "cpu", 4)
    real = photo_module.build_transform
    monkeypatch.setattr(photo_module, "build_transform", lambda first: real(lambda t: [t.Resize(64), t.CenterCrop(64)]))


def images(folder, weights, *words):
    command.main(["--data_path", str(folder), "--cnn_type", "resnet18", "--cnn_weights", weights, "--workers", "0",
                  "--device", "cpu", *words])


@pytest.mark.parametrize("name", ["demo", "demo_coco"])
def test_features_of_photos_are_what_the_network_gives(folder, weights, name):
    images(folder, weights, "--data_name", name, "--output_name", "new", "--splits", "test")
    photos, split = (read_split(str(folder), data_name, "test") for data_name in (name, "new"))
    assert split.captions == photos.captions and split.caption_image.tolist() == photos.caption_image.tolist()
    assert split.image_ids == photos.image_ids and split.photo_names == [os.path.basename(p)
                                                                         for p in photos.images.paths]
    if name == "demo_coco":
        assert split.caption_ids.tolist() == photos.caption_ids.tolist() and isinstance(split.image_ids[0], int)
    stored = np.load(folder / "new" / "test_ims.npy")
    assert stored.shape == (len(photos.images), 512) and stored.dtype == np.float32
    cnn = CNN("resnet18", weights=weights, normalise=False)
    np.testing.assert_allclose(stored[[0, -1]], cnn(photos.images.gather([0, len(stored) - 1])), rtol=1e-3, atol=1e-4)
    made = json.loads((folder / "new" / "features.json").read_text())
    assert list(made) == ["ims"] and made["ims"].startswith("resnet18 pooled sha256:")
    assert not [file for file in os.listdir(folder / "new") if file.startswith(".")]


COMMON = ("--data_name", "demo", "--output_name", "new")


def rows_of(folder, split="test"):
    return np.load(folder / "new" / f"{split}_ims.npy")


def own_photos(folder, n=10):
    """A set of photos that may be changed, test images of the demo: its entries, to be written by `describe`."""
    os.remove(folder / "demo")
    (folder / "demo" / "images").mkdir(parents=True)
    paths = read_split(str(folder), "demo_coco", "test").images.paths[:n]
    for path in paths:
        shutil.copy(path, folder / "demo" / "images")
    return [{"filename": os.path.basename(path), "split": "test",
             "sentences": [{"raw": f"a photo {k} ."}, {"raw": "a photo ."}]} for k, path in enumerate(paths)]


def describe(folder, entries):
    (folder / "demo" / "dataset_demo.json").write_text(json.dumps({"images": entries}))


def count_photos(monkeypatch, stop_after=None):
    """Numbers of photos that the network sees; it ends with Ctrl-C's exception at a batch."""
    seen, forward = [], CNN.forward

    def watched(self, photos):
        if stop_after is not None and len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(len(photos))
        return forward(self, photos)
    monkeypatch.setattr(CNN, "forward", watched)
    return seen


@pytest.mark.usefixtures("small_photos")
def test_an_interrupted_extraction_goes_on(folder, weights, monkeypatch):
    """Nothing is computed twice; no file of a split has its name before all are whole."""
    images(folder, weights, *COMMON, "--splits", "test")
    whole = {path.name: path.read_bytes() for path in (folder / "new").iterdir()}
    shutil.rmtree(folder / "new")
    with monkeypatch.context() as patch:
        count_photos(patch, stop_after=3)
        with pytest.raises(SystemExit):
            images(folder, weights, *COMMON, "--splits", "test")
    assert not [name for name in os.listdir(folder / "new") if name.startswith("test")]
    for path in (folder / "new").glob(".*.part"):           # half a file, as a kill leaves it
        (path / "new").write_bytes(b"half")
    seen = count_photos(monkeypatch)
    images(folder, weights, *COMMON, "--splits", "test")
    assert sum(seen) == 24 - 4 * 3
    assert {path.name: path.read_bytes() for path in (folder / "new").iterdir()} == whole


@pytest.mark.usefixtures("small_photos")
def test_broken_photos_are_skipped_and_named_once(folder, weights, monkeypatch, capsys):
    entries = own_photos(folder)
    describe(folder, entries)
    images(folder, weights, *COMMON, "--splits", "test")
    whole = rows_of(folder)
    shutil.rmtree(folder / "new")
    broken = folder / "demo" / "images" / entries[5]["filename"]
    good = broken.read_bytes()
    broken.write_bytes(b"no picture")
    seen = count_photos(monkeypatch)
    refused(capsys, lambda words: images(folder, weights, *words), [*COMMON, "--splits", "test"],
            f"the photo .*{entries[5]['filename']} cannot be read .*--skip_broken")
    assert not (folder / "new" / "test_ims.npy").exists() and sum(seen) == 7         # and the others of its batch
    os.remove(folder / "demo" / "images" / entries[8]["filename"])
    images(folder, weights, *COMMON, "--splits", "test", "--skip_broken")
    shown = capsys.readouterr().err
    assert "2 of 10 photos of test cannot be read and are left out:" in shown
    assert all(sum(entries[k]["filename"] in line for line in shown.splitlines()) == 1 for k in (5, 8))
    sound = [k for k in range(10) if k not in (5, 8)]
    np.testing.assert_allclose(rows_of(folder), whole[sound], rtol=1e-4, atol=1e-5)
    split = read_split(str(folder), "new", "test")
    assert split.captions == [c for k in sound for c in (f"a photo {k} .", "a photo .")] and sum(seen) == 8
    broken.write_bytes(good)                                # mended: one more row, and no other is computed again
    images(folder, weights, *COMMON, "--splits", "test", "--skip_broken")
    assert sum(seen) == 9 and len(rows_of(folder)) == 9
    for path in (folder / "demo" / "images").iterdir():
        path.write_bytes(path.name.encode())
    refused(capsys, lambda words: images(folder, weights, *words), [*COMMON, "--splits", "test", "--skip_broken"],
            "not one of the 10 photos can be read; the first: the photo")


def test_values_of_another_extractor_are_not_taken(tmp_path):
    part = Part(str(tmp_path / "x.npy"), "a")
    part["k"] = np.array([3, 4])
    assert Part(str(tmp_path / "x.npy"), "a")["k"].tolist() == [3, 4] and "l" not in part
    assert "k" not in Part(str(tmp_path / "x.npy"), "b")
    part.remove()
    assert not os.listdir(tmp_path)


@pytest.mark.usefixtures("small_photos")
def test_images_with_different_numbers_of_captions(folder, weights, capsys):
    """Refused, or the first of each; captions of an image come together, whatever their order was."""
    entries = [{**entry, "sentences": [{"raw": f"caption {k}\nof {i}"} for k in range(2 + i % 2)]}
               for i, entry in enumerate(own_photos(folder, 4))]
    describe(folder, entries)
    common = ["--data_name", "demo", "--output_name", "new", "--splits", "test"]
    refused(capsys, lambda words: images(folder, weights, *words), common,
            "images of test have 2 to 3 captions .* --captions_per_image 2")
    assert not (folder / "new").exists()
    images(folder, weights, *common, "--captions_per_image", "2")
    split = read_split(str(folder), "new", "test")
    assert split.captions == [f"caption {k} of {i}" for i in range(4) for k in range(2)]
    assert split.caption_image.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name, linear", [("vgg16", 0), ("alexnet", 1)])
def test_fc6_is_the_first_linear_layer_with_its_relu(name, linear, monkeypatch):
    monkeypatch.setattr(networks, "CNN", partial(CNN, pretrained=False))
    net, line = networks.load_network(name, "fc6")
    photos = torch.randn(1, 3, 224, 224)
    got = net(photos)
    assert got.shape == (1, 4096) and line.startswith(f"{name} fc6 sha256:") and (got >= 0).all()
    expected = torch.relu(net.net.classifier[linear](net.net.avgpool(net.net.features(photos)).flatten(1)))
    torch.testing.assert_close(got, expected)


def test_refusals_of_images(folder, weights, capsys):
    def run(words):
        images(folder, weights, *words)

    (folder / "v.txt").write_text("")
    common = ["--data_name", "demo", "--output_name"]
    for words, message in (
            ([*common, "demo"], "--output_name demo is the folder of the photos"),
            (["--data_name", "none", "--output_name", "new"], "there is no folder .*none"),
            ([*common, "v.txt"], "v.txt/features.json cannot be written")):
        refused(capsys, run, words, message)
    assert not (folder / "new").exists()
    run([*common, "new", "--splits", "test"])
    refused(capsys, run, [*common, "new", "--layer", "cells"],
            "is of 'resnet18 pooled sha256.*these are of 'resnet18 cells")
