"""Training with wrong pairs: drawn ones, both published forms of files, and the complementary loss."""

import math
import os

import numpy as np
import pytest
import torch
import yaml

import train
from data import read_split
from losses import RCL, SIMILARITIES
from tests.helpers import fit, refused, resume, same_weights
from utils import sha256

IMAGES = 48  # of the demo's training split
CAPTIONS = 240  # five of each image


@pytest.fixture
def split(demo_path):
    return read_split(demo_path, "demo_precomp", "train")


# ---- pairs


def test_a_share_of_the_captions_exchange_their_images(split):
    own = split.caption_image.copy()
    images = {}
    for seed in (0, 0, 1):
        split.caption_image = own
        split.change_pairs(0.4, seed)
        images.setdefault(seed, []).append(split.caption_image)
        # a few get their own image back
        assert 0.3 * CAPTIONS < split.wrong.sum() <= 0.4 * CAPTIONS
        assert (np.bincount(split.caption_image) == 5).all() and (split.true_image == own).all()
    assert (images[0][0] == images[0][1]).all() and (images[0][0] != images[1][0]).any()
    assert not (images[0][0] == images[1][0])[split.wrong].all()


def test_both_published_forms_are_told_by_their_length(split, tmp_path):
    own = split.caption_image.copy()
    rng = np.random.default_rng(0)
    of_captions = own.copy()
    of_captions[:12] = rng.permutation(of_captions[100:112])  # NCR: (5 N,) the image of each
    of_images = np.arange(IMAGES)
    of_images[[3, 7, 9]] = [7, 9, 3]  # DECL: (N,) images exchange their captions

    for file, expected in (
        (of_captions, of_captions),
        (of_images.astype(np.int32), of_images[own]),
    ):
        np.save(tmp_path / "pairs.npy", file)
        split.caption_image = own
        split.change_pairs(path=str(tmp_path / "pairs.npy"))
        assert split.caption_image.tolist() == expected.tolist()
        assert split.caption_image.dtype == np.int64
        assert (split.wrong == (expected != own)).all() and split.wrong.any()


def test_a_run_records_its_wrong_pairs_and_trains_the_same_from_its_file(
    tmp_path, demo_path, capsys
):
    data = ["--data_path", demo_path, "--loss", "rcl"]
    first = tmp_path / "a"
    again = tmp_path / "b"
    fit(*data, "--noise_ratio", "0.3", "--noise_seed", 4, "--logger_name", first)
    said = capsys.readouterr().out
    pairs = np.load(first / "noise.npy")
    wrong = int((pairs != np.arange(CAPTIONS) // 5).sum())
    assert (
        f"note: {wrong} of 240 training captions ({wrong / 240:.1%})" in said
        and "--noise_seed 4" in said
    )
    recorded = yaml.safe_load((first / "config.yaml").read_text())["data"]
    assert recorded["train"]["wrong_captions"] == wrong and recorded["train"][
        "pairs_sha256"
    ] == sha256(pairs)
    assert "pairs_sha256" not in recorded["dev"]
    fit(*data, "--noise_file", first / "noise.npy", "--logger_name", again)
    assert same_weights(first, again)
    fit(*data, "--logger_name", again, "--overwrite")  # of right pairs
    assert not (again / "noise.npy").exists() and not same_weights(first, again)


def test_a_run_goes_on_with_the_same_wrong_pairs_alone(tmp_path, demo_path, capsys):
    run = tmp_path / "run"
    file = tmp_path / "pairs.npy"
    np.save(file, np.roll(np.arange(IMAGES), 1))
    fit("--data_path", demo_path, "--noise_file", file, "--logger_name", run)
    np.save(file, np.roll(np.arange(IMAGES), 2))
    refused(
        capsys,
        train.main,
        ["--resume", run, "--num_epochs", 2],
        "training data .* differ from the data of",
    )
    os.rename(run / "noise.npy", file)
    assert resume(run, "--num_epochs", 2) == 0 and "epoch 2/2 done" in (run / "log.txt").read_text()


# ---- the objective


def test_rcl_and_its_gradient_are_finite_where_a_wrong_pair_is_certain():
    for s, same in (
        (torch.eye(4).roll(1, 0) * 100, None),  # p = 1 of a wrong caption
        (torch.zeros(3, 3), torch.ones(3, 3, dtype=torch.bool)),
    ):  # no negatives
        s.requires_grad_()
        loss = RCL()(s, same)
        loss.backward()
        assert loss.isfinite() and s.grad.isfinite().all() and bool(s.grad.any()) == (same is None)
    assert float(RCL()(torch.eye(4).roll(1, 0) * 100)) == pytest.approx(2000 - math.log(3))
    assert RCL.build(None, SIMILARITIES["cosine"]).temperature == 0.05
    assert RCL.build(None, SIMILARITIES["mls"]).temperature == 1
