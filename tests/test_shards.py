"""Features in several shards are read as the one file that they were cut from, to the bit; every fault is told."""
import os
import re
import resource
import shutil

import numpy as np
import pytest

import cca
import data
import evaluate
from checkpoints import load_checkpoint
from cli import InputError
from data import read_split
from features import extract
from files.layouts import first_images
from files.reading import read_json
from files.shards import Shards, numbered, read_rows
from inputs import Features, image_batches
from tests import helpers
from tests.helpers import fit, refused, same_runs

CUTS = {"train": (5, 6, 31), "dev": (2, 7), "test": (1, 2, 3)}           # where the shards of a split begin


def cut(path, where) -> None:
    """Replace an .npy file by its shards."""
    for k, part in enumerate(np.split(np.load(path), where)):
        np.save(f"{path.removesuffix('.npy')}-{k:05d}.npy", part)
    os.remove(path)


@pytest.fixture
def folders(tmp_path, demo_path):
    """A folder of the demo's features in whole files, and one of the same in shards."""
    for name in ("demo_precomp", "demo_region_precomp"):
        shutil.copytree(os.path.join(demo_path, name), tmp_path / "whole" / name)
        for split in CUTS:
            captions = read_split(str(tmp_path / "whole"), name, split, dev_images=0).captions
            rows = np.random.default_rng(1).standard_normal((len(captions), 6)).astype(np.float32)
            np.save(tmp_path / "whole" / name / f"{split}_own.npy", rows)
        shutil.copytree(tmp_path / "whole" / name, tmp_path / "cut" / name)
        for split, where in CUTS.items():
            cut(str(tmp_path / "cut" / name / f"{split}_ims.npy"), where)
            cut(str(tmp_path / "cut" / name / f"{split}_own.npy"), [5 * k for k in where])
    return str(tmp_path / "whole"), str(tmp_path / "cut")


@pytest.mark.parametrize("index", [3, np.int64(31), [0], [30, 5, 5, 47, 6], np.arange(48)[::-1].copy(),
                                   np.array([[4, 5], [6, 47]]), np.array([], int)])
def test_rows_by_their_numbers(folders, index):
    whole, parts = (read_rows(f"{folder}/demo_precomp/train_ims.npy", "") for folder in folders)
    assert isinstance(parts, Shards) and len(parts.parts) == 4
    found, expected = parts[index], whole[index]
    assert found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("n", [1, 3, 5, 6, 40, 48])
def test_the_first_rows_stay_mapped(folders, n):
    whole, parts = (read_rows(f"{folder}/demo_region_precomp/train_ims.npy", "") for folder in folders)
    found = parts[:n]
    assert found.shape == whole[:n].shape and found[np.arange(n)].tobytes() == whole[:n].tobytes()
    assert all(np.shares_memory(part, parts.parts[parts.paths.index(path)])
               for path, part in zip(found.paths, found.parts))
    for at in (0, n - 1):
        path, row = found.place(at)
        assert (np.load(path)[row] == whole[at]).all() and (found[at] == whole[at]).all()
    for beyond in (n, -1):
        with pytest.raises(IndexError):
            found[beyond]


@pytest.mark.parametrize("name", ["demo_precomp", "demo_region_precomp"])
def test_a_split_is_the_same(folders, name):
    for split in ("train", "dev", "test"):
        a, b = (read_split(folder, name, split, dev_images=0, text_features="own") for folder in folders)
        assert isinstance(b.images.array, Shards) and isinstance(b.text.array, Shards)
        assert a.fingerprint() == b.fingerprint() and a.image_ids == b.image_ids
        assert list(a.faults(deep=True)) == list(b.faults(deep=True)) == []
        for x, y in zip(image_batches(a.images, 5), image_batches(b.images, 5), strict=True):
            assert x.equal(y)
        for n in (1, 3, 6):
            x, y = (first_images(read_split(folder, name, split, dev_images=0, text_features="own"), n)
                    for folder in folders)
            assert x.fingerprint() == y.fingerprint() and len(y.images) == n
            assert x.images.gather(range(n)).equal(y.images.gather(range(n)))


@pytest.mark.parametrize("words", [(), ("--text_features", "own"),
                                   ("--data_name", "demo_region_precomp", "--img_enc", "vsrn")])
def test_training_and_evaluation_are_the_same(folders, tmp_path, words):
    for folder in folders:
        fit("--data_path", folder, *words, "--logger_name", f"{folder}/run")
        evaluate.main(["--checkpoint", f"{folder}/run", "--device", "cpu"])
    whole, parts = (f"{folder}/run" for folder in folders)
    assert same_runs(whole, parts)
    assert load_checkpoint(whole)["data"] == load_checkpoint(parts)["data"]
    a, b = (read_json(f"{run}/results.json") for run in (whole, parts))
    assert a["protocols"] == b["protocols"]


def test_a_run_goes_on_with_shards_of_its_features(folders, tmp_path):
    """The digest of shards is that of the whole file."""
    fit("--data_path", folders[0], "--num_epochs", 2, "--logger_name", tmp_path / "whole_run")
    fit("--data_path", folders[0], "--logger_name", tmp_path / "run")
    opt = helpers.train.parse_args(["--resume", str(tmp_path / "run"), "--data_path", folders[1], "--num_epochs", "2"])
    assert helpers.train.train(opt) == 0
    assert same_runs(tmp_path / "whole_run", tmp_path / "run")


def test_cca_reads_them(folders):
    for folder in folders:
        cca.main(["--data_path", folder, "--data_name", "demo_precomp", "--text", "own", "--dim", "4", "--eta_image",
                  "0.1", "--eta_text", "0.1", "--output", f"{folder}/cca.npz"])
    whole, parts = (np.load(f"{folder}/cca.npz") for folder in folders)
    assert all(np.array_equal(whole[name], parts[name]) for name in ("image_mean", "caption_mean"))


def write(folder, captions: int = 10, **shards) -> str:
    """A data set x of `captions` captions; of each split named, a list of arrays or (number, array)."""
    os.makedirs(folder / "x", exist_ok=True)
    for split, parts in shards.items():
        (folder / "x" / f"{split}_caps.txt").write_text("".join(f"a word {m}\n" for m in range(captions)))
        for k, part in enumerate(parts):
            k, part = part if isinstance(part, tuple) else (k, part)
            np.save(folder / "x" / f"{split}_ims-{k}.npy", part)
    return str(folder)


def rows(*shape, dtype=np.float32):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


REPEATED = np.repeat(rows(2, 3), 5, axis=0)


@pytest.mark.parametrize("parts, message", [
    ([(0, rows(1, 3)), (2, rows(1, 3))], r"x holds train_ims-2.npy and no shard 1 of train_ims.npy; shards are numb"),
    ([(1, rows(1, 3)), (2, rows(1, 3))], r"x holds train_ims-1.npy and no shard 0 of train_ims.npy; shards are numb"),
    ([(0, rows(1, 3)), ("000", rows(1, 3))], r"train_ims-0(00)?.npy and train_ims-0(00)?.npy in .*x are both shard 0"),
    ([rows(1, 3), rows(1, 4)],
     r"train_ims-1.npy holds rows of \(4,\) in float32, .*train_ims-0.npy of \(3,\) in float32; all shards"),
    ([rows(1, 3), rows(1, 3, dtype=np.float16)],
     r"train_ims-1.npy holds rows of \(3,\) in float16, .*train_ims-0.npy of \(3,\) in float32"),
    ([rows(1, 3), rows(1, 3, 2)], r"train_ims-1.npy holds rows of \(3, 2\) in float32, .*of \(3,\) in float32"),
    ([rows(2, 3), rows(0, 3)], r"train_ims-1.npy has shape \(0, 3\) and so no rows; a shard has at least one"),
    ([rows(0, 3), rows(2, 3)], r"train_ims-0.npy has shape \(0, 3\) and so no rows"),
    ([rows(2, 3), np.float32(1)], r"train_ims-1.npy has shape \(\) and so no rows"),
    ([rows(2, 3), np.array(["x"], object)], r"train_ims-1.npy is not a whole .npy file"),
    ([rows(2, 3), rows(1, 3)], r"train_caps.txt has 10 captions for the 3 rows of .*train_ims.npy"),
    ([REPEATED[:6], REPEATED[6:]], r"train_ims-0.npy has 6 rows, and images stand in 5 equal rows each; let all rows"),
    ([rows(1, 3), np.full((1, 3), np.nan, np.float32)], r"train_ims-1.npy holds NaN or infinity in row 0"),
    ([rows(1, 3), np.full((1, 3), 1e30, np.float32)], r"train_ims-1.npy has values of 1e\+30 in row 0, whose squares"),
])
def test_shards_that_do_not_fit(tmp_path, parts, message):
    write(tmp_path, train=parts)
    with pytest.raises(InputError, match=message) as found:
        read_split(str(tmp_path), "x", "train").require_sound()
    assert "\n" not in str(found.value)


def test_rows_of_an_image_in_one_shard(tmp_path):
    write(tmp_path, train=[REPEATED[:5], REPEATED[5:]])
    split = read_split(str(tmp_path), "x", "train").require_sound()
    assert len(split.images) == 2 and split.images.step == 5


def test_both_the_file_and_its_shards(tmp_path):
    write(tmp_path, train=[rows(1, 3), rows(1, 3)])
    np.save(tmp_path / "x" / "train_ims.npy", rows(2, 3))
    with pytest.raises(InputError, match=r"train_ims.npy and its shards train_ims-0.npy, ... are both there"):
        read_split(str(tmp_path), "x", "train")


def test_check_tells_of_shards(tmp_path, capsys):
    write(tmp_path, train=[rows(2, 3), rows(3, 3)], dev=[rows(5, 3)], test=[rows(4, 3), np.zeros((1, 3), np.float32)])
    assert data.check(str(tmp_path), "x") == 1
    said = capsys.readouterr().out
    assert "features (5, 3) float32 in 2 shards, mean l2 norm" in said
    assert re.search(r"fault: .*test_ims.npy holds only zeros in 1 of 5 rows, the first is row 0 of .*ims-1.npy;", said)


def test_extraction_leaves_shards_alone(tmp_path, demo_path, capsys):
    shutil.copytree(os.path.join(demo_path, "demo"), tmp_path / "demo")
    (tmp_path / "out").mkdir()
    np.save(tmp_path / "out" / "test_ims-0.npy", rows(1, 3))
    refused(capsys, extract.main, ["images", "--data_path", tmp_path, "--data_name", "demo", "--output_name", "out",
                                   "--kind", "demo"], r"out/test_ims-0.npy is there already, and features")
    assert os.listdir(tmp_path / "out") == ["test_ims-0.npy"]


def test_names_that_are_no_shards(tmp_path):
    for name in ("train_ims-a.npy", "train_ims-.npy", "xtrain_ims-0.npy", "train_ims-0.npy.part", "train_own-0.npy",
                 "trainxims-0.npy"):
        (tmp_path / name).write_text("")
    assert numbered(str(tmp_path / "train_ims.npy")) == []
    for k in (0, 1, 2, 10, 9, 8, 7, 6, 5, 4, 3):
        (tmp_path / f"train_ims-{k}.npy").write_text("")
    assert [os.path.basename(path) for path in numbered(str(tmp_path / "train_ims.npy"))] == [
        f"train_ims-{k}.npy" for k in range(11)]


def test_too_many_files(tmp_path):
    write(tmp_path, 200, train=[rows(1, 3)] * 200)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.raises(InputError, match=r"train_ims.npy has 200 shards, more files than this process may open"):
            Features(str(tmp_path / "x" / "train_ims.npy"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_pages_of_all_shards_are_released(folders, monkeypatch):
    """A stand-in counts the calls, as the memory of small files cannot be seen."""
    monkeypatch.setattr("inputs.RESIDENT_BYTES", 100)
    released = []

    class Mapping:
        def __init__(self, k):
            self.k = k

        def madvise(self, advice):
            released.append(self.k)

    features = Features(f"{folders[1]}/demo_precomp/train_ims.npy")
    assert len(features.mappings) == 4 and features.parallel
    features.mappings = [Mapping(k) for k in range(4)]
    features.gather([0])
    assert released == [0, 1, 2, 3]
    features.gather([0])
    assert released == 2 * [0, 1, 2, 3]
