"""Region features of bottom-up attention: both forms, small, against the numbers that were put in."""

import base64
import os

import numpy as np
import pytest

from data import read_split
from features import regions
from tests.helpers import refused

NAMES = [
    "COCO_val2014_000000391895.jpg",
    "COCO_val2014_000000000042.jpg",
    "COCO_val2014_000000000007.jpg",
]
NUMBERS = [391895, 42, 7]
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((3, 5, 8)).astype(np.float32)
BOXES = RNG.random((3, 5, 4)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """Captions and ids of a split of three images, with a line a caption, as SCAN has them."""
    (tmp_path / "x").mkdir()
    two_lines_each = [f"{name}\n{name}\n" for name in NAMES]
    (tmp_path / "x" / "test_ids.txt").write_text("".join(two_lines_each))
    (tmp_path / "x" / "test_caps.txt").write_text("".join(f"caption {k}\n" for k in range(6)))
    return tmp_path


def run(folder, *words):
    data = ["--data_path", str(folder), "--data_name", "x", "--splits", "test"]
    regions.main([*data, "--regions", "5", *map(str, words)])


def refuse_regions(capsys, folder, words, message):
    def command(words):
        run(folder, *words)

    refused(capsys, command, words, message)


def write_tsv(path, order, features=FEATURES, count=5, marks="{}"):
    """A TSV file as its authors' code writes it; with marks "b'{}'" as a later Python wrote it."""

    def text(array):
        return marks.format(base64.b64encode(np.ascontiguousarray(array)).decode())

    path.write_text(
        "".join(
            f"{NUMBERS[k]}\t640\t480\t{count}\t{text(BOXES[k][:count])}\t{text(features[k][:count])}\n"
            for k in order
        )
    )
    return path


def check_files(folder):
    rows = read_split(str(folder), "x", "test").images.array
    assert np.array_equal(rows, FEATURES) and rows.dtype == np.float32


@pytest.mark.parametrize("marks", ["{}", "b'{}'"])
def test_tsv_files_in_any_order(folder, marks, capsys):
    run(
        folder,
        "--source",
        write_tsv(folder / "a.tsv", [2, 0], marks=marks),
        write_tsv(folder / "b.tsv", [1, 2]),
    )
    check_files(folder)
    assert "test_ims.npy: (3, 5, 8)" in capsys.readouterr().out
    message = "already exists; .*--overwrite"
    refuse_regions(capsys, folder, ["--source", folder / "a.tsv"], message)


def test_a_folder_of_npz_and_ids_of_coco(folder):
    os.remove(folder / "x" / "test_ids.txt")
    np.save(folder / "x" / "test_img_ids.npy", np.array(NUMBERS))
    (folder / "npz").mkdir()
    for name, features, boxes in zip([NAMES[0], "42", "000000000007"], FEATURES, BOXES):
        np.savez(folder / "npz" / f"{name}.npz", x=features, num_bbox=5, bbox=boxes)
    np.savez(folder / "npz" / "8.npz", x=np.zeros((2, 2)))  # of another split
    run(folder, "--source", folder / "npz")
    check_files(folder)


def test_refusals(folder, capsys):
    (folder / "text.tsv").write_text("no\tcolumns\n")
    (folder / "junk.tsv").write_text("42\t1\t1\t5\tnot base64!\tAAAA\n")
    broken = FEATURES.copy()
    broken[1, 2, 3] = np.nan
    (folder / "npz").mkdir()
    np.savez(folder / "npz" / "42.npz", y=FEATURES[1])
    few = write_tsv(folder / "few.tsv", [0, 1])
    for words, message in (
        ([few], "1 images are in no source .first: 7.; give all files"),
        (
            [write_tsv(folder / "other.tsv", [0], count=3)],
            r"image 391895 has \(3, 8\) numbers, and \(5, 'F'\)",
        ),
        (
            [write_tsv(folder / "nan.tsv", [0, 1], broken)],
            r"image 42 has \(5, 8\) numbers, and \(5, 8\) finite",
        ),
        ([folder / "text.tsv"], "text.tsv is not a TSV file of image_id, .*a row has 2 columns"),
        ([folder / "junk.tsv"], "junk.tsv: the row of image 42 holds no features of 5 boxes"),
        ([folder / "npz"], "42.npz holds y and not x, the features"),
        ([folder / "none"], "there is no file"),
        ([few, "--splits", "dev"], "has no dev_img_ids.npy or dev_ids.txt"),
    ):
        refuse_regions(capsys, folder, ["--source", *words], message)
    assert sorted(os.listdir(folder / "x")) == ["test_caps.txt", "test_ids.txt"]
