"""Variances of what is covered against loops over photos, and `python -m confidence --variances volume`."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from scipy.special import expit

from confidence import __main__ as confidence
from confidence import volume
from confidence.inputs import open_items
from evaluation import bank
from losses import Embedding, cosine
from methods import volume as shares
from metrics import Sigmoid
from tests.helpers import evaluated, refused
from tests.test_confidence import exported, judged
from utils import InputError

VOLUME = ["--variances", "volume"]


# ---- the share of the photos that an item covers


def slow_shares(x, bank, owner, of_photo, left_out):
    """log of the mean over the photos of a bank of the probability that captions x cover them; left_out(k, photo):
    whether photo does not count for caption k."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    bank = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    found = []
    for k, row in enumerate(x):
        covers = []
        for photo in set(owner):
            if not left_out(k, photo):
                nearest = max(bank[owner == photo] @ row)
                covers.append(expit(of_photo.slope * nearest + of_photo.bias))
        found.append(math.log(np.mean(covers)))
    return found


def is_own_photo_of(owner):
    """left_out of slow_shares for the captions of a bank: the photo that a caption is of."""

    def left_out(k, photo):
        return photo == owner[k]

    return left_out


def test_shares_are_those_of_loops_over_photos(monkeypatch):
    monkeypatch.setattr(shares, "VOLUME_SCORES_PER_BLOCK", 60)  # several runs of rows
    monkeypatch.setattr(volume, "NEAREST", 4)
    rng = np.random.default_rng(0)
    owner = np.array([7, 2, 2, 5, 9, 9, 9, 5, 0, 7])
    dev_owner = np.array([3, 3, 1, 0, 1, 3, 4])
    centres = rng.normal(size=(10, 6))
    bank = centres[owner] + 0.4 * rng.normal(size=(len(owner), 6))
    dev = centres[dev_owner] + 0.4 * rng.normal(size=(len(dev_owner), 6))
    images, captions = rng.normal(size=(2, 5, 6))
    bank_points = Embedding(torch.from_numpy(bank))
    dev_points = Embedding(torch.from_numpy(dev))

    fitted = volume.fit_shares(cosine, bank_points, owner, dev_points, dev_owner)

    # what the map is fitted to
    nearest = []
    is_own = []
    unit = dev / np.linalg.norm(dev, axis=1, keepdims=True)
    for c in range(len(dev)):
        for photo in range(5):
            others = [k for k in range(len(dev)) if dev_owner[k] == photo and k != c]
            if others:
                nearest.append(max(unit[c] @ unit[k] for k in others))
                is_own.append(dev_owner[c] == photo)
    map_ = Sigmoid.fit(torch.tensor(nearest), torch.tensor(is_own))
    assert fitted.sigmoid == pytest.approx(map_, rel=1e-6)

    own = slow_shares(bank, bank, owner, map_, is_own_photo_of(owner))
    assert fitted.shares.tolist() == pytest.approx(own, rel=1e-6)

    of_captions = fitted.captions_log_var(Embedding(torch.from_numpy(captions)))[:, 0]
    expected = slow_shares(captions, bank, owner, map_, lambda *_: False)
    assert of_captions.tolist() == pytest.approx(expected, rel=1e-6)

    image_points = Embedding(torch.from_numpy(images))
    of_images = fitted.images_log_var(image_points)[:, 0]
    scores = cosine(image_points, bank_points).numpy()
    near = [np.mean([own[k] for k in np.argsort(-row)[:4]]) for row in scores]
    assert of_images.tolist() == pytest.approx(near, rel=1e-6)


def test_dev_photos_with_one_caption_each_are_refused():
    x = Embedding(torch.eye(4))
    with pytest.raises(InputError, match="no photo of the dev split has two; leave it out"):
        volume.fit_shares(cosine, x, np.arange(4), x, np.arange(4))


# ---- the command


@pytest.fixture(scope="module")
def point(tmp_path_factory, learned_runs):
    """A run of points on 200 images; 50 are dev, 100 test."""
    return shutil.copytree(learned_runs / "cosine", tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def here(tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened(*words):
    opt = confidence.parse_args([*map(str, words), "--device", "cpu"])
    return open_items(opt, ())[0]


def test_variances_change_no_score(point, here, capsys):
    plain = judged(point, "--output", "plain.json")
    capsys.readouterr()
    results = judged(point, *VOLUME, "--output", "r.json", "--export", "wide.npz")
    shown = capsys.readouterr().out
    report = results["variances"]
    assert (report["kind"], report["fitted_on"]) == ("volume", "demo_precomp train")
    assert (report["images"], report["captions"]) == (200, 1000)
    assert volume.describe_shares(report) in shown
    assert ("captions of one photo of dev lie no nearer" in shown) == (report["of_photo"][0] < 0)
    for side in ("t2i", "i2t"):
        measures = results["confidence"][side]
        assert measures.pop("log_det_query") and measures == plain["confidence"][side]
    with open("r.json", encoding="utf-8") as f:
        assert json.load(f)["variances"] == report
    found = evaluated("--embeddings", "wide.npz", "--uncertainty", "--output", "u.json")
    assert all("recall_bins" in found["uncertainty"][side] for side in ("images", "captions"))
    with np.load("wide.npz") as f:
        assert f["image_log_var"].shape == (100, 1) and str(f["similarity"]) == "cosine"


def test_all_items_have_the_same_variances(point, monkeypatch):
    whole = opened(point, *VOLUME)
    half = opened(point, *VOLUME, "--calibrate_on", 0.5)
    for items in (whole, half):
        assert all(e.gaussian for e in (items.whole, items.test, items.dev))
    log_var = half.whole.members[0].images.log_var
    ids = half.whole.ids["image_id"]
    rows = [ids.index(i) for i in half.test.ids["image_id"]]
    assert len(rows) == 50 and torch.equal(half.test.members[0].images.log_var, log_var[rows])

    monkeypatch.setattr(volume, "ITEMS_PER_BLOCK", 3)  # blocks change nothing
    in_blocks = opened(point, *VOLUME).test.members[0].captions.log_var
    torch.testing.assert_close(in_blocks, whole.test.members[0].captions.log_var)

    draw = bank.draw_queries
    fit = volume.fit_shares
    owners = []

    def draw_fifty(caption_image, n, size):
        return draw(caption_image, n, 50)

    def note_owner_and_fit(similarity, captions, owner, *dev):
        owners.append(owner.tolist())
        return fit(similarity, captions, owner, *dev)

    monkeypatch.setattr(bank, "draw_queries", draw_fifty)
    monkeypatch.setattr(volume, "fit_shares", note_owner_and_fit)
    report = opened(point, *VOLUME).variances
    assert (report["images"], report["captions"]) == (10, 50)
    drawn = draw(np.arange(1000) // 5, 200, 50).captions
    assert owners == [(drawn // 5).tolist()]


def test_files_have_the_variances_of_the_run(point, small_run, here, capsys):
    gaussian = small_run("--sim", "wasserstein")
    for run, split, file in (
        (point, "train", "train"),
        (point, "test", "test"),
        (point, "dev", "dev"),
        (gaussian, "train", "wide"),
    ):
        exported(run, split, f"{file}.npz")
    np.save("s.npy", np.zeros((24, 120), np.float32))
    mine = ["test.npz", "--dev", "dev.npz", *VOLUME]
    items = opened(*mine, "--train", "train.npz")
    own = opened(point, *VOLUME)
    assert items.variances["fitted_on"] == "train.npz" and items.variances["captions"] == 1000
    of_file = items.test.members[0]
    of_run = own.test.members[0]
    for found, expected in ((of_file.images, of_run.images), (of_file.captions, of_run.captions)):
        torch.testing.assert_close(found.log_var, expected.log_var, atol=1e-5, rtol=1e-5)

    for words, message in (
        (
            [point, *VOLUME, "--split", "train"],
            "is fitted on the train split, so it must not be judged there",
        ),
        ([gaussian, *VOLUME], "gives variances to points, and .* has variances of its own"),
        (["s.npy", "--dev", "s.npy", *VOLUME], "holds precomputed scores and no embeddings"),
        (mine, "needs the training pairs of the same model, .* --train FILE.npz, or neither"),
        ([*mine, "--train", "test.npz"], "--train test.npz and test.npz share 100 images"),
        ([*mine, "--train", "wide.npz"], "wide.npz .* is of another model than test.npz"),
        ([*mine, "--train", "dev.npz"], "calibrate on other items than the training pairs"),
        (
            [*mine, "--train", "train.npz", "--output", "train.npz"],
            "train.npz is an input; choose a different",
        ),
    ):
        refused(capsys, confidence.main, words, message)
