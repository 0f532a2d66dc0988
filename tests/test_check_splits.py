"""`python data.py check` compares splits by features, names and captions, and names odd types."""

import numpy as np
import pytest

from data import check_data_set, read_split
from tests.helpers import write_precomp

SPLITS = ("train", "dev", "test")


def sentences(split, count=20):
    return [f"a {split} caption of the words {k} {split} {k % 7} and {k}" for k in range(count)]


def write_splits(folder, ids=True, dtype=np.float32):
    """Three splits of ten images, which share none."""
    for seed, split in enumerate(SPLITS):
        features = np.random.default_rng(seed).standard_normal((10, 6)).astype(dtype)
        names = [f"{split}{k}.jpg" for k in range(10)] if ids else None
        write_precomp(folder, features, sentences(split), split, ids=names)


def checked(tmp_path, capsys):
    faults = check_data_set(str(tmp_path), "x")
    return faults, capsys.readouterr().out


def test_splits_apart_have_no_notes(tmp_path, capsys):
    write_splits(tmp_path / "x")
    faults, shown = checked(tmp_path, capsys)
    assert faults == 0 and "also in" not in shown and "name or id" not in shown


@pytest.mark.parametrize("split, other", [("dev", "train"), ("test", "train"), ("test", "dev")])
def test_equal_features_are_counted_also_between_dev_and_test(tmp_path, capsys, split, other):
    write_splits(tmp_path / "x", ids=False)
    mine = np.load(tmp_path / "x" / f"{split}_ims.npy")
    mine[:3] = np.load(tmp_path / "x" / f"{other}_ims.npy")[4:7]
    np.save(tmp_path / "x" / f"{split}_ims.npy", mine)
    faults, shown = checked(tmp_path, capsys)
    assert faults == 0
    assert f"3 of 10 {split} images are also in {other} (the same features" in shown
    assert shown.count("are also in") == 1


@pytest.mark.parametrize("split, other", [("dev", "train"), ("test", "dev")])
def test_equal_names_are_noted_and_equal_captions_are_a_fault(tmp_path, capsys, split, other):
    write_splits(tmp_path / "x")
    ids = [f"{other}{k}.jpg" for k in range(10)]
    features = np.random.default_rng(9).standard_normal((10, 6)).astype(np.float32)
    write_precomp(tmp_path / "x", features, sentences(other), split, ids=ids)
    faults, shown = checked(tmp_path, capsys)
    assert faults == 1
    assert f"10 of 10 {split} images have the name or id of an image of {other}" in shown
    assert f"(first: {other}0.jpg)" in shown
    assert f"100% of the 20 {split} captions are also in {other}, word for word" in shown


@pytest.mark.parametrize(
    "caption, joined",
    [
        ("一个男人在草地上跑步", True),
        ("一个 男人 在 草地 上 跑步", False),
        ("二人の女性が通りを歩いている", True),
        ("ผู้หญิงสองคนเดินอยู่บนถนน", True),
        ("남자가 잔디 위를 달린다", False),
        ("Ein Mann läuft über das Gras", False),
    ],
)
def test_captions_without_blanks_are_told(tmp_path, capsys, caption, joined):
    write_splits(tmp_path / "x")
    for split in SPLITS:
        lines = "".join(f"{caption}\n" for _ in range(20))
        (tmp_path / "x" / f"{split}_caps.txt").write_text(lines, encoding="utf-8")
    _, shown = checked(tmp_path, capsys)
    note = f"captions have no spaces between words (the first is {caption}), and what stands"
    assert shown.count(note) == (3 if joined else 0)
    assert ("with jieba or MeCab" in shown) == joined


def test_numbers_of_rows_are_no_names(tmp_path):
    write_splits(tmp_path / "x", ids=False)
    for split in SPLITS:
        (tmp_path / "x" / f"{split}_ids.txt").write_text("".join(f"{k}\n" for k in range(10)))
    dev, train = (read_split(str(tmp_path), "x", name) for name in ("dev", "train"))
    assert dev.image_ids == list(range(10)) and dev.shared_names(train) == []


def test_images_of_several_captions_are_no_copies_of_each_other(tmp_path, capsys):
    """Uneven captions, padded regions and float64 are notes, each with its numbers."""
    write_splits(tmp_path / "x")
    for seed, split in enumerate(SPLITS):
        regions = np.random.default_rng(seed).standard_normal((10, 3, 6))
        regions[:4, 2] = 0
        np.save(tmp_path / "x" / f"{split}_ims.npy", regions)
        owner = np.r_[np.arange(10), np.zeros(10, int)]
        np.save(tmp_path / "x" / f"{split}_caption_image.npy", owner)
    faults, shown = checked(tmp_path, capsys)
    assert faults == 0
    for text in (
        "train_caps.txt: 1 to 11 captions an image",
        "regions of zeros alone in 4 of 10 images (2.6 of 3 regions are filled on average)",
        "holds float64, and models compute in float32; files of float32 take half the space",
        "features (10, 3, 6) float64",
    ):
        assert text in shown
