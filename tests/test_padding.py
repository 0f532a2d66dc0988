"""Images of different numbers of regions, padded with zeros: as if the padding were not there."""

import os
import shutil

import numpy as np
import pytest
import torch

from checkpoint import Trained
from data import Batch, check_data_set, read_split
from images import Features, count_regions
from losses import Embedding
from tests.helpers import built, evaluated, fit_steps, moved, pairs, same_weights, write_precomp
from utils import InputError

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
ENCODERS = {
    "mean": [],
    "mean of Gaussians": ["--sim", "wasserstein"],
    "raw mean": ["--no-feature_norm"],
    "scan t2i": ["--sim", "scan"],
    "scan i2t": ["--sim", "scan", "--cross_attn", "i2t"],
    "scan i2t, mean": ["--sim", "scan", "--cross_attn", "i2t", "--agg_func", "Mean"],
    "scan infonce": ["--sim", "scan", "--loss", "infonce"],
    "vsrn": ["--img_enc", "vsrn"],
    "vsrn Gaussian": ["--img_enc", "vsrn", "--sim", "wasserstein"],
    "vsrn over regions": ["--img_enc", "vsrn", "--region_norm", "regions", "--region_bn"],
    "vsrn without norm": ["--img_enc", "vsrn", "--no-feature_norm"],
    "captioner": ["--img_enc", "vsrn", "--captioner", "1", "--dim_hidden", "12"],
    "original captioner": [
        *["--img_enc", "vsrn", "--captioner", "1", "--dim_hidden", "12"],
        "--captioner_original",
    ],
    "pvse": ["--sim", "mil", "--diversity", "0.1", "--mmd", "0.1"],
    "pcme": ["--sim", "match_prob", "--image_head", "ellipsoidal"],
    "vse_infinity": ["--pool", "gpo"],
    "jwae of regions": ["--sim", "scan", "--recon_images", "0.1", "--recon_captions", "0.1"],
    "jwae": ["--recon_images", "0.1"],
}


def built_for(words):
    """A model whose BatchNorms have moved, without dropout."""
    model = moved(built(*words)).double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def pad(images, by=4):
    """Images (B, P, F) with zero rows behind their regions, as `Features.gather` gives them."""
    return torch.cat([images, images.new_zeros(len(images), by, images.shape[2])], 1)


def double(batch) -> Batch:
    return batch._replace(images=batch.images.double())


def same_embeddings(a: Embedding, b: Embedding):
    for mine, theirs in ((a.mean, b.mean), (a.log_var, b.log_var)):
        if mine is not None:
            torch.testing.assert_close(mine, theirs, **CLOSE)
    if a.parts is not None:
        torch.testing.assert_close(a.n_parts, b.n_parts)
        for k, count in enumerate(a.n_parts.tolist()):
            torch.testing.assert_close(a.parts[k][:count], b.parts[k][:count], **CLOSE)


@pytest.mark.parametrize("words", ENCODERS.values(), ids=ENCODERS)
def test_padding_changes_no_training_step(words):
    """Losses, gradients, and statistics of BatchNorms."""
    batch = double(pairs(regions=5))
    padded = batch._replace(images=pad(batch.images))
    padded = padded._replace(n_regions=count_regions(padded.images))
    assert padded.n_regions.tolist() == [5] * 6 and count_regions(batch.images) is None

    found = []
    for each in (batch, padded):
        model = built_for(words).train()
        torch.manual_seed(1)
        terms = model.loss(each)
        sum(terms.values()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((terms, gradients, dict(model.named_buffers())))
    torch.testing.assert_close(found[0][0], found[1][0], **CLOSE)
    torch.testing.assert_close(found[0][2], found[1][2], **CLOSE)
    assert set(found[0][1]) == set(found[1][1])
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("words", ENCODERS.values(), ids=ENCODERS)
def test_images_of_different_numbers_of_regions_are_as_each_alone(words):
    """Embeddings, and scores with all captions."""
    batch = double(pairs(regions=5))
    model = built_for(words).eval()
    counts = [5, 2, 1, 4, 3, 5]
    images = batch.images.clone()
    for k, count in enumerate(counts):
        images[k, count:] = 0
    n_regions = count_regions(images)
    assert n_regions.tolist() == counts

    with torch.no_grad():
        together = model.embed_images(images, n_regions)
        alone = [model.embed_images(images[k : k + 1, :count]) for k, count in enumerate(counts)]
        same_embeddings(Embedding.cat(alone), together)
        captions = model.embed_captions(batch.tokens, batch.lengths)
        scores = model.similarity(together, captions)
        rows = [model.similarity(one, captions) for one in alone]
        torch.testing.assert_close(scores, torch.cat(rows), **CLOSE)


@pytest.mark.parametrize("words", ENCODERS.values(), ids=ENCODERS)
def test_a_mask_of_no_padding_changes_little(words):
    """With numbers of regions that hide nothing, the masked way is the other one."""
    batch = double(pairs(regions=5))
    model = built_for(words).eval()
    with torch.no_grad():
        plain = model.embed_images(batch.images)
        masked = model.embed_images(batch.images, torch.full((6,), 5))
    same_embeddings(plain, masked)


# ---- reading


def rows_with_padding(counts=(3, 1, 4, 2), width=40):
    regions = np.random.default_rng(0).standard_normal((len(counts), 4, width)).astype(np.float32)
    regions[0, 0, ::2] = 0  # a region that a sample of its numbers does not tell from padding
    for k, count in enumerate(counts):
        regions[k, count:] = 0
    return regions


def test_rows_of_zeros_are_padding_wherever_they_stand(tmp_path):
    regions = rows_with_padding()
    np.save(tmp_path / "x.npy", regions)
    features = Features(str(tmp_path / "x.npy"))
    got = features.gather([2, 0, 1])
    np.testing.assert_array_equal(got, regions[[2, 0, 1]])
    assert count_regions(got).tolist() == [4, 3, 1]
    assert count_regions(features.gather([2])) is None

    mixed = regions.copy()
    mixed[0] = regions[0][[3, 0, 1, 2]]  # zeros first
    mixed[3] = regions[3][[0, 2, 1, 3]]  # zeros between
    np.save(tmp_path / "y.npy", mixed)
    np.testing.assert_array_equal(Features(str(tmp_path / "y.npy")).gather(range(4)), regions)


def test_an_image_of_zeros_alone_keeps_one_region():
    assert count_regions(torch.zeros(1, 4, 3)).tolist() == [1]
    assert count_regions(torch.zeros(2, 3)) is None
    assert count_regions(torch.zeros(2, 3, 4, 4)) is None


def test_a_file_of_numbers_of_boxes_says_what_is_padding(tmp_path):
    regions = rows_with_padding()
    noise = regions + 0
    noise[regions == 0] = 7  # whatever stands behind the boxes
    noise[0, 0] = regions[0, 0]
    captions = [f"a caption {m}" for m in range(8)]
    write_precomp(tmp_path / "x", noise, captions)
    before = read_split(str(tmp_path), "x", "train").fingerprint()
    np.save(tmp_path / "x" / "train_num_boxes.npy", np.array([3, 1, 4, 2]))
    split = read_split(str(tmp_path), "x", "train")
    np.testing.assert_array_equal(split.images.gather(range(4)), regions)
    assert split.fingerprint()["images_sha256"] != before["images_sha256"]
    assert any("padding" in sentence for _, sentence in split.images.doubts())

    for counts in ([3, 1, 4], [3, 1, 5, 2], [0, 1, 4, 2], [3.0, 1, 4, 2]):
        np.save(tmp_path / "x" / "train_num_boxes.npy", np.array(counts))
        with pytest.raises(InputError, match="the number of regions of each row .* from 1 to 4"):
            read_split(str(tmp_path), "x", "train")
    write_precomp(tmp_path / "x", regions[:, 0], captions)
    with pytest.raises(InputError, match="the number of regions of each row"):
        read_split(str(tmp_path), "x", "train")


# ---- commands


# Five steps an epoch. SCAN's time grows with the square of the batch.
LARGE_BATCHES = ["--batch_size", 48]
METHODS = {
    "scan": ["--sim", "scan"],
    "vsrn": ["--img_enc", "vsrn", "--embed_size", 32, *LARGE_BATCHES],
    "gpo": ["--pool", "gpo", *LARGE_BATCHES],
    "jwae": [
        *["--method", "jwae_mh", "--supervised_fraction", 0.5, "--img_layers", 16],
        *LARGE_BATCHES,
    ],
}


@pytest.fixture(scope="module")
def regions_path(tmp_path_factory, demo_path):
    """A folder of 12 of the demo's 36 regions."""
    folder = tmp_path_factory.mktemp("regions")
    shutil.copytree(f"{demo_path}/demo_region_precomp", folder / "demo_region_precomp")
    for path in (folder / "demo_region_precomp").glob("*_ims.npy"):
        np.save(path, np.load(path)[:, ::3])
    return folder


@pytest.fixture(scope="module")
def padded_path(tmp_path_factory, regions_path):
    """The same with three rows of zeros among them."""
    folder = tmp_path_factory.mktemp("padded")
    shutil.copytree(regions_path / "demo_region_precomp", folder / "demo_region_precomp")
    for path in (folder / "demo_region_precomp").glob("*_ims.npy"):
        regions = np.load(path)
        zeros = np.zeros((len(regions), 3, regions.shape[2]), regions.dtype)
        np.save(path, np.concatenate([zeros[:, :1], regions, zeros[:, 1:]], 1))
    return folder


@pytest.mark.parametrize("words", METHODS.values(), ids=METHODS)
def test_a_training_on_padded_regions_learns_what_one_without_learns(
    regions_path, padded_path, tmp_path, words
):
    losses = []
    recalls = []
    for k, path in enumerate((regions_path, padded_path)):
        run = tmp_path / f"run{k}"
        data = ["--data_path", path, "--data_name", "demo_region_precomp"]
        fit_steps(*data, *words, "--logger_name", run)
        with open(run / "log.jsonl", encoding="utf-8") as file:
            lines = file.read().splitlines()
        losses.append([line.split('"Le": ')[1].split(",")[0] for line in lines if '"Le"' in line])
        found = evaluated("--checkpoint", run, "--output", tmp_path / "r.json", "--overwrite")
        recalls.append(found["protocols"]["full"]["rsum"])
    np.testing.assert_allclose(np.float64(losses[0]), np.float64(losses[1]), rtol=2e-3)
    assert recalls[0] == pytest.approx(recalls[1], abs=5)


def test_a_run_embeds_padded_and_unpadded_images_alike(regions_path, padded_path, tmp_path):
    data = ["--data_path", regions_path, "--data_name", "demo_region_precomp"]
    fit_steps(*data, "--sim", "scan", "--logger_name", tmp_path / "run")
    exports = []
    for k, path in enumerate((regions_path, padded_path)):
        words = ["--checkpoint", tmp_path / "run", "--data_path", path]
        found = evaluated(*words, "--output", tmp_path / f"{k}.json")
        exports.append(found["protocols"]["full"])
    assert exports[0] == exports[1]

    trained = Trained(str(tmp_path / "run"))
    rows = np.load(f"{regions_path}/demo_region_precomp/test_ims.npy")[:3]
    padded = np.load(padded_path / "demo_region_precomp" / "test_ims.npy")[:3]
    same_embeddings(trained.images(rows), trained.images(padded))


def test_the_check_counts_padding_and_finds_no_fault(padded_path, capsys):
    assert check_data_set(str(padded_path), "demo_region_precomp") == 0
    shown = capsys.readouterr().out
    assert "they count as padding and are left out of pooling, attention and graphs" in shown
    assert "3 splits, 0 faults" in shown


def test_splits_may_be_padded_to_different_lengths(padded_path, tmp_path, capsys):
    """Dev has one region more than train, and one test image has fewer than others."""
    folder = tmp_path / "x"
    shutil.copytree(padded_path / "demo_region_precomp", folder)
    dev = np.load(folder / "dev_ims.npy")
    np.save(folder / "dev_ims.npy", np.concatenate([dev, np.zeros_like(dev[:, :1])], 1))
    test = np.load(folder / "test_ims.npy")[:, 1:-2]
    test[0, 5:] = 0
    np.save(folder / "test_ims.npy", test)
    assert check_data_set(str(tmp_path), "x") == 0, capsys.readouterr().out
    data = ["--data_path", tmp_path, "--data_name", "x", "--sim", "scan"]
    fit_steps(*data, "--logger_name", tmp_path / "run")
    evaluated("--checkpoint", tmp_path / "run", "--output", tmp_path / "r.json")


def test_data_without_padding_are_computed_without_a_mask(regions_path, tmp_path):
    """So their numbers are those of before: a file of numbers of boxes that hides none is equal."""
    folder = tmp_path / "demo_region_precomp"
    shutil.copytree(f"{regions_path}/demo_region_precomp", folder)
    for path in folder.glob("*_ims.npy"):
        n, regions, _ = np.load(path).shape
        np.save(str(path).replace("_ims", "_num_boxes"), np.full(n, regions))
    for k, data_path in enumerate((regions_path, tmp_path)):
        data = ["--data_path", data_path, "--data_name", "demo_region_precomp"]
        fit_steps(*data, *METHODS["vsrn"], "--logger_name", tmp_path / f"{k}")
    assert same_weights(tmp_path / "0", tmp_path / "1")
    assert os.path.isfile(folder / "train_num_boxes.npy")
