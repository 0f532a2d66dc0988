"""Different numbers of captions an image: reading, training, evaluation and confidence."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

import train
from checkpoint import load_checkpoint
from confidence.__main__ import main as confidence_main
from data import check_data_set, read_split
from features.images import main as images_main
from model import VSE
from tests.helpers import STEPS, evaluated, fit_steps, refused, same_weights, write_precomp
from utils import InputError

FEATURES = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
OWNER = np.array([2, 0, 0, 3, 1, 0, 2, 3, 3])


def captions(n):
    return [f"caption number {k} of the set ." for k in range(n)]


def write_uneven(folder, owner, features=FEATURES, split="train", **more):
    write_precomp(folder, features, captions(len(owner)), split, **more)
    np.save(folder / f"{split}_caption_image.npy", owner)


def make_uneven(source, to, seed=0):
    """Copy a data set of five captions an image, and keep one to five of each in another order."""
    shutil.copytree(source, to)
    rng = np.random.default_rng(seed)
    for split in ("train", "dev", "test"):
        lines = (to / f"{split}_caps.txt").read_text().splitlines()
        images = len(np.load(to / f"{split}_ims.npy"))
        each = len(lines) // images
        kept = []
        for image in range(images):
            kept += [image * each + k for k in range(rng.integers(1, each + 1))]
        kept = rng.permutation(kept)
        (to / f"{split}_caps.txt").write_text("".join(lines[m] + "\n" for m in kept))
        np.save(to / f"{split}_caption_image.npy", kept // each)
        for name in (f"{split}_ids.txt", f"{split}_bag.npy", f"{split}_ann_ids.npy"):
            if (to / name).exists():
                os.remove(to / name)
    return to


# ---- reading


def test_a_file_says_whose_caption_each_is(tmp_path):
    write_uneven(tmp_path / "x", OWNER, ids=["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
    split = read_split(str(tmp_path), "x", "train")
    assert split.caption_image.tolist() == OWNER.tolist()
    assert split.photo_names == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert split.notes == [f"{tmp_path}/x/train_caps.txt: 1 to 3 captions an image"]
    assert split.fingerprint()["caption_image_sha256"]


def test_names_of_images_beside_captions_say_the_same(tmp_path):
    names = [*"aabbbbcdd"]
    write_precomp(tmp_path / "x", FEATURES, captions(9), ids=names)
    split = read_split(str(tmp_path), "x", "train")
    assert split.caption_image.tolist() == [0, 0, 1, 1, 1, 1, 2, 3, 3]
    assert split.photo_names == ["a", "b", "c", "d"]
    # 8 captions of 4 images, two of each on average
    write_precomp(tmp_path / "x", FEATURES, captions(8), ids=[*"abbbccdd"])
    assert read_split(str(tmp_path), "x", "train").caption_image.tolist() == [
        0,
        1,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


def test_images_without_captions_are_noted_and_only_answers(tmp_path):
    write_uneven(tmp_path / "x", np.array([0, 0, 3]))
    split = read_split(str(tmp_path), "x", "train")
    assert len(split.images) == 4
    assert split.notes[0].endswith(
        "0 to 2 captions an image; 2 of 4 images have none and are only answers, never queries"
    )


def test_rows_that_repeat_evenly_are_read_and_others_named(tmp_path):
    owner = np.arange(8) // 2
    write_uneven(tmp_path / "x", owner, FEATURES.repeat(2, 0))
    split = read_split(str(tmp_path), "x", "train")
    assert split.images.step == 2 and len(split.images) == 4
    assert not split.uneven and not split.notes

    write_uneven(tmp_path / "x", OWNER, FEATURES[OWNER])
    message = "has a row for each of 9 captions, and these belong to 4 images; keep a row for each"
    with pytest.raises(InputError, match=message):
        read_split(str(tmp_path), "x", "train")
    first = np.unique(OWNER, return_index=True)[1]
    np.save(tmp_path / "x" / "train_ims.npy", FEATURES[OWNER][first])
    read = read_split(str(tmp_path), "x", "train").images.gather([0, 1, 2, 3])
    np.testing.assert_array_equal(read, FEATURES)


@pytest.mark.parametrize(
    "owner, message",
    [
        (OWNER[:8], r"holds int64 of shape \(8,\); it must hold the row .*\(9,\) whole numbers"),
        (OWNER / 1, r"holds float64 of shape \(9,\)"),
        (OWNER - 1, r"whole numbers from 0$"),
        (OWNER + 1, r"names the image 4, and .*train_ims.npy has the rows 0 to 3; use files that"),
    ],
)
def test_other_arrays_are_refused(tmp_path, owner, message):
    write_precomp(tmp_path / "x", FEATURES, captions(9))
    np.save(tmp_path / "x" / "train_caption_image.npy", owner)
    with pytest.raises(InputError, match=message):
        read_split(str(tmp_path), "x", "train")


def test_other_ids_for_captions_of_one_image_are_refused(tmp_path):
    write_uneven(tmp_path / "x", OWNER, ids=[*"caadbacdX"])
    message = "gives the captions 4 to 9, .* make those of one image, more than one id"
    with pytest.raises(InputError, match=message):
        read_split(str(tmp_path), "x", "train")


def test_the_check_finds_no_fault_in_uneven_captions(tmp_path, demo_path, capsys):
    make_uneven(f"{demo_path}/demo_precomp", tmp_path / "x")
    assert check_data_set(str(tmp_path), "x") == 0
    shown = capsys.readouterr().out
    assert shown.count("1 to 5 captions an image") == 3 and "3 splits, 0 faults" in shown


def test_a_dev_split_is_cut_by_images(tmp_path):
    write_uneven(tmp_path / "x", OWNER, split="dev")
    split = read_split(str(tmp_path), "x", "dev", dev_images=2)
    assert split.caption_image.tolist() == [0, 0, 1, 0]
    assert split.captions == [captions(9)[m] for m in (1, 2, 4, 5)]


def test_features_of_photos_keep_all_captions(tmp_path, demo_path):
    """Those of Karpathy's JSON: the first image keeps one, the second three."""
    folder = tmp_path / "demo"
    shutil.copytree(f"{demo_path}/demo", folder)
    path = next(folder.glob("dataset*.json"))
    content = json.loads(path.read_text())
    tests = [image for image in content["images"] if image["split"] == "test"]
    tests[0]["sentences"] = tests[0]["sentences"][:1]
    tests[1]["sentences"] = tests[1]["sentences"][:3]
    path.write_text(json.dumps(content))

    words = ["--data_path", tmp_path, "--data_name", "demo", "--output_name", "new"]
    words += ["--splits", "test", "--cnn_type", "demo", "--workers", 0]
    images_main([str(word) for word in words])
    read = read_split(str(tmp_path), "new", "test")
    photos = read_split(str(tmp_path), "demo", "test")
    assert np.bincount(read.caption_image)[:3].tolist() == [1, 3, 5]
    assert read.captions == photos.captions
    assert read.caption_image.tolist() == photos.caption_image.tolist()


# ---- training and evaluation


LOSSES = {
    "hinge": ["--mask_same_image"],
    "two_branch": ["--loss", "two_branch", "--txt_enc", "mean"],
    "gaussian": ["--sim", "wasserstein", "--mask_same_image"],
}


@pytest.mark.parametrize("words", LOSSES.values(), ids=LOSSES)
def test_even_captions_in_a_file_give_equal_runs(tmp_path, demo_path, words):
    """To the bit: weights, and the numbers of an evaluation."""
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "owned" / "demo_precomp")
    for split in ("train", "dev", "test"):
        folder = tmp_path / "owned" / "demo_precomp"
        count = len((folder / f"{split}_caps.txt").read_text().splitlines())
        np.save(folder / f"{split}_caption_image.npy", np.arange(count) // 5)

    results = []
    for data_path in (demo_path, tmp_path / "owned"):
        run = tmp_path / f"run{len(results)}"
        fit_steps("--data_path", data_path, *words, "--logger_name", run)
        found = evaluated("--checkpoint", run, "--output", tmp_path / "r.json", "--overwrite")
        results.append({key: x for key, x in found.items() if key != "checkpoints"})
    assert same_weights(tmp_path / "run0", tmp_path / "run1")
    assert results[0] == results[1]


def rank_slowly(scores, owner):
    """0-based ranks of images and captions, one by one; ties count against the model."""
    i2t = []
    for image, row in enumerate(scores):
        own = owner == image
        if own.any():
            i2t.append(int((row >= row[own].max()).sum() - (row[own] == row[own].max()).sum()))
    t2i = []
    for m, column in enumerate(scores.T):
        t2i.append(int((column >= column[owner[m]]).sum()) - 1)
    return np.array(i2t), np.array(t2i)


@pytest.fixture(scope="module")
def uneven_run(tmp_path_factory, demo_path):
    """A folder with the data set `x`, whose images have one to five captions, and a `run` on it."""
    folder = tmp_path_factory.mktemp("uneven")
    make_uneven(f"{demo_path}/demo_precomp", folder / "x")
    data = ["--data_path", folder, "--data_name", "x"]
    fit_steps(*data, "--num_epochs", 3, "--logger_name", folder / "run")
    return folder


def test_recalls_of_uneven_captions_are_those_of_a_slow_reference(uneven_run, tmp_path):
    file = tmp_path / "e.npz"
    words = ["--export", file, "--output", tmp_path / "r.json", "--ndcg"]
    found = evaluated("--checkpoint", uneven_run / "run", *words)
    arrays = np.load(file)
    owner = np.load(uneven_run / "x" / "test_caption_image.npy")
    assert arrays["caption_image"].tolist() == owner.tolist()

    scores = arrays["image_mean"] @ arrays["caption_mean"].T
    i2t, t2i = rank_slowly(scores, owner)
    for side, ranks in (("i2t", i2t), ("t2i", t2i)):
        numbers = found["protocols"]["full"][side]
        assert numbers["queries"] == len(ranks)
        for k in (1, 5, 10):
            assert numbers[f"r{k}"] == pytest.approx(100 * np.mean(ranks < k))
        assert numbers["meanr"] == pytest.approx(np.mean(ranks) + 1)

    # R-precision of i2t: the share of an image's captions among as many first ones
    shares = []
    for image, row in enumerate(scores):
        own = np.flatnonzero(owner == image)
        first = np.argsort(-row)[: len(own)]
        shares.append(len(set(own) & set(first)) / len(own))
    assert found["protocols"]["ndcg"]["i2t"]["rp"] == pytest.approx(100 * np.mean(shares))
    assert any("1 to 5 captions an image" in note for note in found["notes"])


def test_validation_counts_uneven_captions(uneven_run):
    """The best rsum of dev is what evaluate.py says of dev."""
    best = load_checkpoint(str(uneven_run / "run"), "model_best.pt")["state"]["best_rsum"]
    words = ["--split", "dev", "--output", uneven_run / "dev.json", "--overwrite"]
    assert evaluated("--checkpoint", uneven_run / "run", *words)["protocols"]["full"][
        "rsum"
    ] == pytest.approx(best)


def test_captions_of_one_image_are_no_negatives_in_a_batch(uneven_run, tmp_path, monkeypatch):
    words = ["--data_path", uneven_run, "--data_name", "x", "--logger_name", tmp_path / "run"]
    opt = train.parse_args([str(word) for word in [*STEPS, *words, "--mask_same_image"]])
    training = train.Training(opt, None, torch.device("cpu"))
    owner = np.load(uneven_run / "x" / "train_caption_image.npy")
    seen = []
    ranking_loss = VSE.ranking_loss

    def record(self, images, captions, batch):
        seen.append((batch.image_index.numpy(), batch.caption_index.numpy()))
        return ranking_loss(self, images, captions, batch)

    monkeypatch.setattr(VSE, "ranking_loss", record)
    for batch in training.batches(training.order(0)):
        training.model.loss(batch)
    images, numbers = [np.concatenate(column) for column in zip(*seen)]
    assert sorted(numbers) == list(range(len(owner)))
    np.testing.assert_array_equal(images, owner[numbers])
    same = seen[0][0][:, None] == seen[0][0]
    assert same.sum() > len(same)  # siblings are there


def test_confidence_of_uneven_captions(tmp_path, undrawn):
    """By folds of images and by halves: the same, whether the captions are in order or not."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(200), rng.integers(1, 6, 200))
    images = rng.standard_normal((200, 16))
    captions = images[owner] + 0.9 * rng.standard_normal((len(owner), 16))
    order = rng.permutation(len(owner))
    found = []
    for name, rows in (("sorted", np.arange(len(owner))), ("mixed", order)):
        file = tmp_path / f"{name}.npz"
        arrays = {"caption_mean": captions[rows], "caption_image": owner[rows]}
        np.savez(file, image_mean=images, similarity="cosine", **arrays)
        for way in (["--cross_fit", 4], ["--calibrate_on", 0.5, "--sets", 0.2]):
            output = tmp_path / f"{name}{len(way)}.json"
            words = [file, *way, "--output", output]
            confidence_main([str(word) for word in words])
            found.append(json.loads(output.read_text()))
    assert found[0]["captions"] == len(owner)
    for mine, theirs in ((found[0], found[2]), (found[1], found[3])):
        for side in ("i2t", "t2i"):
            auroc = mine["confidence"][side]["posterior"]["auroc"]
            assert theirs["confidence"][side]["posterior"]["auroc"] == pytest.approx(auroc, 1e-3)


def test_uneven_captions_with_noise_and_partial_supervision(uneven_run, tmp_path):
    data = ["--data_path", uneven_run, "--data_name", "x"]
    fit_steps(*data, "--noise_ratio", 0.3, "--logger_name", tmp_path / "noise")
    noise = np.load(tmp_path / "noise" / "noise.npy")
    owner = np.load(uneven_run / "x" / "train_caption_image.npy")
    np.testing.assert_array_equal(np.bincount(noise), np.bincount(owner))
    words = ["--method", "jwae_mh", "--supervised_fraction", 0.5]
    fit_steps(*data, *words, "--logger_name", tmp_path / "half")
    assert torch.isfinite(
        torch.tensor(load_checkpoint(str(tmp_path / "half"), "model_best.pt")["state"]["best_rsum"])
    )


def test_other_owners_are_other_data_for_a_resumed_run(uneven_run, tmp_path, capsys):
    shutil.copytree(uneven_run / "x", tmp_path / "x")
    run = tmp_path / "run"
    fit_steps("--data_path", tmp_path, "--data_name", "x", "--logger_name", run)
    path = tmp_path / "x" / "train_caption_image.npy"
    np.save(path, np.load(path)[::-1])
    words = ["--resume", run, "--num_epochs", 2]
    refused(capsys, train.main, words, "differ from the data of the run")
