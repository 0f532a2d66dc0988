"""Bad input of every kind: one sentence that names it, a non-zero exit, no code run, no file written or lost."""

import io
import json
import os
import pickle
import shlex
import shutil
import struct
import tempfile
import zipfile

import numpy as np
import pytest
import torch

import evaluate
import train
import utils
from confidence import __main__ as confidence
from data import vocabulary_main
from demo import __main__ as demo
from features import word_vectors
from images import read_photo
from methods import cca
from tests import helpers
from tests.helpers import SMALL
from utils import InputError
from vg_experiments import crops, prepare, selection

MAINS = {
    "train": train.main,
    "evaluate": evaluate.main,
    "cca": cca.main,
    "demo": demo.main,
    "prepare": prepare.main,
    "selection": selection.main,
    "crops": crops.main,
    "confidence": confidence.main,
    "vocab": vocabulary_main,
    "word_vectors": word_vectors.main,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory, demo_path, small_run):
    """Demo data, a run and its embeddings, which no case may change."""
    root = tmp_path_factory.mktemp("world")
    shutil.copytree(demo_path, root / "data")
    small_run("--sim", "cosine", to=root / "cosine")
    evaluate.main(["--checkpoint", str(root / "cosine"), "--export", str(root / "cosine.npz")])
    return root


def snapshot(folder) -> dict:
    """{file: what changes whenever it is written} of everything below a folder."""
    found = {}
    # Not by pathlib or os.walk, which take several times as long for 500 files, and each test looks.
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.update(snapshot(entry.path))
            elif entry.is_file():
                stat = entry.stat()
                found[entry.path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def files_of_world(world):
    """The files of the world after the last case."""
    return snapshot(world)


@pytest.fixture
def refused(world, files_of_world, tmp_path, monkeypatch, capsys):
    """refused(command, words, message): it ends in one line that says so, and every file is as it was."""
    monkeypatch.chdir(tmp_path)

    def call(command, words, message):
        before = snapshot(tmp_path)
        world_before = dict(files_of_world)
        helpers.refused(capsys, MAINS[command], words, message)
        assert snapshot(tmp_path) == before

        files_of_world.clear()
        files_of_world.update(snapshot(world))
        assert files_of_world == world_before

    return call


# ---- files of data: every kind of fault at one reader, one fault at others


def npy(header: bytes, rest: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + rest


def saved(value, save=np.save) -> bytes:
    f = io.BytesIO()
    save(f, value)
    return f.getvalue()


def save_by_torch(f, value) -> None:
    torch.save(value, f)


def save_arrays(f, arrays: dict) -> None:
    np.savez(f, **arrays)


def archive(content: bytes) -> bytes:
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w") as z:
        z.writestr("image_mean.npy", content)
    return f.getvalue()


def karpathy(image: dict) -> bytes:
    image = {"filename": "1.jpg", "split": "train", "sentences": [{"raw": "a dog"}], **image}
    return json.dumps({"images": [image]}).encode()


def aliases(last: str, key: str = "") -> bytes:
    """YAML whose parts stand ten times in each other: a hundred bytes, and 10 ** 12 values as they stand."""
    parts = [f"&p0 {last}"]
    for k in range(1, 12):
        ten_times = ", ".join([f"*p{k - 1}"] * 10)
        parts.append(f"&p{k} [{ten_times}]")

    lines = "".join(f"- {part}\n" for part in parts)
    return f"{key}sim:\n{lines}".encode()


def merges() -> bytes:
    """The same of merge keys."""
    lines = ["p0: &p0 {seed: 1}"]
    for k in range(1, 12):
        ten_times = ", ".join([f"*p{k - 1}"] * 10)
        lines.append(f"p{k}: &p{k} {{<<: [{ten_times}]}}")
    return "\n".join(lines).encode()


def cases(name: str, words: str, *faults: tuple[bytes, str]) -> list[tuple]:
    """Rows of BAD_FILES of one file and command: (content, what is said) of each fault."""
    return [(name, content, words, message) for content, message in faults]


def cases_of_one_sentence(name: str, words: str, message: str, *contents: bytes) -> list[tuple]:
    return [(name, content, words, message) for content in contents]


KARPATHY = "train --data_path . --data_name k"
INSTANCES = "evaluate --checkpoint WORLD/cosine --pmrp --instances i.json"
TRAIN = "train --data_path . --data_name one"
NOISE = "train --data_path WORLD/data --data_name demo_precomp --noise_file n.npy"
LYING = npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999, 99999)}", b"\0" * 99)
OBJECTS = saved(np.array([{"a": 1}] * 24, object))
CUT = saved(np.ones((24, 7), np.float32))[:200]
CUT_JSON = b'{"images": [{"id": 1}, {"i'
NESTED_JSON = b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
REPEATED = "c.yaml is not a YAML file .its parts repeat each other to more than 100,000 values."
BAD_FILES = [  # the file, its content (archives hold the time), command with words, what is said
    *cases_of_one_sentence(
        "i.json",
        INSTANCES,
        "i.json",
        NESTED_JSON,
        CUT_JSON,
        '{"é": 1}'.encode("latin1"),
        b'{"a": NaN}',
    ),
    ("p.json", CUT_JSON, "evaluate --checkpoint WORLD/cosine --positives p.json", "p.json"),
    ("one/features.json", CUT_JSON, TRAIN, "features.json"),
    ("k/dataset_k.json", CUT_JSON, KARPATHY, "dataset_k.json"),
    *cases(
        "k/dataset_k.json",
        KARPATHY,
        (
            karpathy({"filename": "/etc/passwd"}),
            "dataset_k.json names the file .* which lies outside",
        ),
        (
            karpathy({"filepath": "a/../../.."}),
            "dataset_k.json names the file .* which lies outside",
        ),
        (karpathy({"sentences": []}), "no sentence of split 'train' .1 images.; "),
        (
            karpathy({"sentences": [{"raw": "a", "sentid": 2**70}]}),
            "the id 1180591620717411303424, which",
        ),
        (karpathy({"sentences": [{"raw": "word " * 10_001}]}), "caption 1 has 10,001 words"),
        (
            karpathy({"sentences": [{"raw": "a," * 50_001}]}),
            "caption 1 has 1 words in 100,002 characters",
        ),
        (
            karpathy({"sentences": [{"raw": "()" * 49_000}]}),
            "caption 1 has 98,000 words in 98,000 characters; at most 10,000",
        ),
        (
            karpathy({"sentences": [{"raw": ".jpg#1" * 16_000}]}),
            "caption 1 has 32,001 words in 96,000 characters",
        ),
        (karpathy({"filename": 7}), "not in Karpathy's layout"),
    ),
    (
        "one/test_ids.txt",
        b"../../../etc/passwd\n" * 24,
        "evaluate --checkpoint WORLD/cosine --data_path . --data_name one "
        "--photos WORLD/data/demo/images --retrieval",
        "names the file .*etc/passwd.*lies outside",
    ),
    (
        "m.json",
        CUT_JSON,
        "selection --checkpoint WORLD/cosine --manifest m.json --output .",
        "m.json",
    ),
    *cases_of_one_sentence(
        "one/train_ims.npy",
        TRAIN,
        "train_ims.npy",
        CUT,
        b"1 2 3\n",
        npy(b"(" * 5000),
        LYING,
        OBJECTS,
        saved(np.array(["a"] * 24)),
        archive(CUT),
    ),
    (
        "one/train_img_ids.npy",
        saved(np.ones((24, 1), int)),
        TRAIN,
        "img_ids.npy is not a whole .npy file of integers",
    ),
    *cases(
        "one/train_w2v.npy",
        f"{TRAIN} --text_features w2v",
        (CUT, "w2v.npy"),
        (saved(np.ones((3, 7), np.float32)), "w2v.npy.* give one row per caption"),
    ),
    ("s.npy", CUT, "evaluate --scores s.npy", "s.npy"),
    (
        "s.npy",
        saved(np.zeros((24, 120))),
        "evaluate --bank train --compare s.npy WORLD/cosine",
        r"needs a model that embeds the bank, and s\.npy is of the items of one",
    ),
    *cases(
        "n.npy",
        NOISE,
        (CUT, "n.npy is not a whole .npy file of numbers"),
        (
            saved(np.arange(239)),
            r"holds int64 of shape \(239,\); .*\(240,\) .*\(NCR\), or \(48,\) .*\(DECL\)",
        ),
        (
            saved(np.arange(240) / 5),
            r"holds float64 of shape \(240,\); noisy pairs are whole numbers",
        ),
        (
            saved(np.arange(240)),
            "numbers from 0 to 239, and the 48 training images are numbered from 0 to 47",
        ),
    ),
    *cases(
        "x.npz",
        "evaluate --embeddings x.npz",
        (b"PK nothing", "x.npz.*not an .npz file"),
        (archive(b"a text"), "x.npz.*'image_mean', which is not an array"),
        (archive(saved(np.ones((24, 16))))[:900], "x.npz.*not an .npz file"),
        (archive(LYING), "x.npz.*Unable to allocate"),
        (archive(OBJECTS), "x.npz.*Object arrays cannot be loaded"),
    ),
    *cases(
        "x.pt",
        "evaluate --checkpoint x.pt",
        (saved({"a": torch.ones(999)}, save_by_torch)[:3000], "x.pt.*damaged or not a checkpoint"),
        (b"hello", "x.pt.*damaged or not a checkpoint"),
        (pickle.dumps({"format": 1}), "x.pt.*damaged or not a checkpoint"),
        (
            b"<!DOCTYPE html><title>Quota exceeded</title>",
            "x.pt.*is a web page, not a checkpoint; download the file",
        ),
    ),
    *cases(
        "c.yaml",
        "train --config c.yaml",
        (
            b"max_violation: 'false'",
            "max_violation is 'false'; a switch takes true or false without quotes",
        ),
        (b"amp: off", "amp is False; .* 'off' in quotes"),
        (b"seed: 1.5", "'1.5' is not a whole"),
        (b"config: other.yaml", "'config', which only the command"),
        (b"sim: [kl]", r"sim is \['kl'\]; "),
        (b"simm: kl", "'simm', which is not an option"),
        (b"- a", "must give options by name, and holds"),
        (b"sim: nope", "invalid choice: 'nope'"),
        (b"a: [", "is not a YAML file"),
        (b"seed: !!python/object/apply:os.getcwd []", "is not a YAML file"),
        (aliases("a"), REPEATED),
        (b"asked:\n  " + aliases("a").replace(b"\n", b"\n  "), REPEATED),
        (merges(), REPEATED),
        (b"sim: &a [*a]", REPEATED),
        (b"sim: &a {sim: *a}", REPEATED),
        (b"sim: " + b"[" * 1000, "is not a YAML file"),
        (b"#" * 2**21, "has 2,097,152 bytes, and a file of options"),
        (
            b"asked: 5\noptions: {sim: kl}",
            "under 'asked', must give options by name, and holds 5; write one NAME",
        ),
        (b"asked: ~\noptions: {}", "under 'asked', must give options by name, and holds None"),
        (b"", "must give options by name, and holds None"),
        (b"5", "must give options by name, and holds 5"),
        (b"a: &b c\nsim: *b", "holds 'a', which is not an option"),
        (b"similarity: kl", "holds 'similarity', which is not an option; did you mean 'sim'?"),
        (b"seed: " + b"9" * 9999, "is not a YAML file"),
        (b"sim: " + b"x" * 99999, "'xxx.*xxx[.]{3} .choose from"),
        (
            b"x" * 999 + b": 1",
            "holds 'x{40,60}[.]{3}, which is not an option; see train.py --help",
        ),
    ),
]
TRAIN_SMALL = f"train {' '.join(SMALL)} --data_path WORLD/data"
MY_NOTES = b'{"mine": 1}'
MY_ARRAYS = saved({"mine": np.ones(3)}, save_arrays)
NO_RUN = "exp holds log.txt and is not a run that train.py made; name a folder of its"
FOREIGN_FILES = [  # which are kept
    (
        "notes.json",
        MY_NOTES,
        "evaluate --checkpoint WORLD/cosine --output notes.json",
        "notes.json already exists",
    ),
    (
        "notes.json",
        MY_NOTES,
        "prepare --vg WORLD/data/demo_vg --output notes.json",
        "notes.json already exists",
    ),
    (
        "mine.npz",
        MY_ARRAYS,
        "evaluate --checkpoint WORLD/cosine --export mine.npz",
        "mine.npz already exists",
    ),
    (
        "mine.npz",
        MY_ARRAYS,
        "cca --data_path WORLD/data --data_name demo_precomp --output mine.npz",
        "mine.npz already exists",
    ),
    ("exp/log.txt", b"mine", f"{TRAIN_SMALL} --logger_name exp ", NO_RUN),
    ("exp/log.txt", b"mine", f"{TRAIN_SMALL} --logger_name exp --overwrite", NO_RUN),
    (
        "data/demo/images/mine.jpg",
        b"a photo of mine",
        "demo --data_path data --size 8",
        "data/demo already exists and is none that `python -m demo` wrote",
    ),
]


@pytest.mark.parametrize(
    "name, content, words, message",
    BAD_FILES + FOREIGN_FILES,
    ids=range(len(BAD_FILES + FOREIGN_FILES)),
)
def test_files_that_are_no_data_or_not_ours(
    refused, world, tmp_path, name, content, words, message
):
    shutil.copytree(world / "data" / "demo_precomp", tmp_path / "one")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    command, *words = words.replace("WORLD", str(world)).split()
    refused(command, words, message)


OF_FILE = "evaluate --embeddings WORLD/cosine.npz"
OF_BANK = "evaluate --checkpoint WORLD/cosine --bank"


@pytest.mark.parametrize(
    "words, message",
    [
        (
            "train --embed_size 1000000000",
            "'1000000000' is not a whole number of at least 1 and at most 65,536",
        ),
        ("train --margin nan", "'nan' is not a number of at"),
        ("train --img_layers 99999999", "not a list of layer sizes"),
        ("train --data_name ../own", "'../own' is not a name of a data set"),
        ("train --logger_name ''", "an empty name"),
        ("train --mmd_weight 1", "--mmd_weight: --mmd, times the"),
        ("train --embed 5", "unrecognized arguments"),
        (f"{TRAIN_SMALL} --data_name absent", "there is no folder .*absent"),
        (
            f"{TRAIN_SMALL} --img_enc cnn",
            "--img_enc cnn .* reads photos, but the images are vectors in .*train_ims.npy",
        ),
        (
            f"{TRAIN_SMALL} --data_name demo --cnn_weights absent.pt --cnn_type resnet18",
            "there is no file absent.pt",
        ),
        (
            f"{TRAIN_SMALL} --logger_name WORLD/cosine --method vsrn",
            "--method vsrn reads regions, but the images are vec",
        ),
        (
            f"{TRAIN_SMALL} --method vse_infinity",
            r"--pool gpo \(of --method vse_infinity\) pools regions",
        ),
        (f"{TRAIN_SMALL} --method devise", "--method devise needs word vectors of 300 numbers"),
        (
            f"{TRAIN_SMALL} --logger_name WORLD/cosine",
            "already holds a run.*--resume.*--overwrite.*--logger_name",
        ),
        (
            f"{TRAIN_SMALL} --logger_name WORLD/cosine --resume --embed_size 20",
            "--embed_size 20 differs from the 16",
        ),
        (
            f"{TRAIN_SMALL} --init_from WORLD/cosine --embed_size 12",
            r"do not fit .*image_tower.mean.*\(16, .* and \(12, ",
        ),
        (
            f"{TRAIN_SMALL} --logger_name /proc/x/y",
            "no file was left half written: make room or choose another folder",
        ),
        ("evaluate", "no run is in runs/"),
        ("train --resume nowhere", "that holds checkpoint.pt$"),
        (
            "train --resume WORLD/cosine/model_best.pt",
            "is a file, .* its checkpoint.pt; give .*--init_from",
        ),
        ("train --sim wassertein", "invalid choice: 'wassertein'; did you mean 'wasserstein'"),
        ("train --method vsepp", r"invalid choice: 'vsepp'; did you mean 'vse\+\+'"),
        ("train --method VSE++", r"invalid choice: 'VSE\+\+'; did you mean 'vse\+\+'"),
        ("train --method VSEPP", r"invalid choice: 'VSEPP'; did you mean 'vse\+\+'"),
        ("train --similarity kl", "unrecognized arguments: --similarity kl; did you mean --sim?"),
        ("train --batchsize 3", "unrecognized arguments: --batchsize 3; did you mean --batch_size"),
        ("evaluate --checkpoint WORLD/cosine WORLD/cosine/.", "names .*cosine more than once"),
        (
            "evaluate --uncertainty --photos nofolder",
            "--photos nofolder is not a folder; give the folder of",
        ),
        (
            f"{OF_FILE} --data_path WORLD/data --data_name demo_precomp --split dev",
            "cosine.npz says that it is of the split test",
        ),
        (f"{OF_FILE} --fold5", "--fold5 needs 5 x 1,000 images"),
        (f"{OF_FILE} --uncertainty", "has points, which have no uncertainty"),
        (f"{OF_FILE} --export f.npz", "--export writes the embeddings of one run"),
        (
            f"{OF_BANK} train --split train",
            "--bank train holds queries of dev, .* or of the split that is",
        ),
        (f"{OF_BANK} testall", "--bank testall holds queries"),
        (f"{OF_BANK} val", "--bank val holds queries"),
        (
            f"{OF_BANK} train --split val",
            "chooses beta on dev, so the split val is not a test of it",
        ),
        ("evaluate --checkpoint WORLD/cosine --data_name demo_region_precomp", "reads width"),
        (
            "evaluate --checkpoint WORLD/cosine --data_name demo",
            "reads vectors or regions, .* photos",
        ),
        (
            "evaluate --embeddings WORLD/cosine.npz --output WORLD/cosine.npz",
            "cosine.npz is an input; choose a differ",
        ),
        (
            "evaluate --checkpoint WORLD/cosine --output one.json --export one.json",
            "name one file .* for two things",
        ),
        (
            "cca --data_path WORLD/data --data_name demo_precomp --text= --output x.npz",
            "--text names no features of capt",
        ),
        ("evaluate --checkpoint WORLD/cosine --split nope", "there is no file .*nope_caps.txt"),
    ],
)
def test_commands_that_cannot_start(refused, world, words, message):
    command, *words = shlex.split(words.replace("WORLD", str(world)))
    refused(command, words, message)


def test_long_values_are_cut(refused):
    for words, message in (
        (["--method", "x" * 10**5], "invalid choice: 'x{40,60}[.]{3} .choose from"),
        (["--margin", "9" * 10**6 + "x"], "'9{40,60}[.]{3} is not a number of at least 0"),
        (["--resume", "y" * 10**5], "there is no checkpoint y{500,} [.]{3} y+; give a run fold"),
    ):
        refused("train", words, message)


@pytest.mark.parametrize(
    "words, name",
    [
        ("evaluate --embeddings WORLD/cosine.npz", "cosine.npz"),
        ("evaluate --checkpoint WORLD/cosine", "model_best.pt"),
        ("evaluate --scores s.npy", "s.npy"),
        ("train --config c.yaml", "c.yaml"),
        ("train --data_path WORLD/data --data_name demo_precomp", "train_caps.txt"),
        ("train --data_path WORLD/data --data_name demo_precomp", "train_ims.npy"),
        ("prepare --vg WORLD/data/demo_vg --output m.json", "image_data.json"),
    ],
)
def test_a_file_that_may_not_be_read_is_named_as_such(
    refused, world, tmp_path, monkeypatch, words, name
):
    for own in ("s.npy", "c.yaml"):
        (tmp_path / own).touch()
    allowed = os.access

    def allowed_but_for_one(path, mode):
        return not str(path).endswith(name) and allowed(path, mode)

    monkeypatch.setattr(os, "access", allowed_but_for_one)
    command, *words = words.replace("WORLD", str(world)).split()
    message = (
        f"no permission to read .*{name}; change the permissions of the file, or ask its owner"
    )
    refused(command, words, message)


def test_a_folder_that_may_not_be_opened_is_named_as_such(refused, tmp_path, monkeypatch):
    find = os.stat

    def refuse(path, *args, **more):
        if str(path).startswith("locked/"):
            raise PermissionError(13, "Permission denied", path)
        return find(path, *args, **more)

    monkeypatch.setattr(os, "stat", refuse)
    message = "no permission to open the folder of locked/x.npz; change t"
    refused("evaluate", ["--embeddings", "locked/x.npz"], message)


def test_an_output_that_may_not_be_written_is_named_as_such(refused, world, monkeypatch):
    def refuse(*_, dir, **__):
        raise PermissionError(13, "Permission denied", dir)

    words = ["--checkpoint", world / "cosine", "--output"]

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    message = (
        "r.json cannot be written .Permission denied: '.'.; "
        "name a file in a folder that takes new files"
    )
    refused("evaluate", [*words, "r.json"], message)

    monkeypatch.undo()
    message = (
        "cannot be written .its name has 255 bytes, and at most 235 can be written.; "
        "name a file in a folder"
    )
    refused("evaluate", [*words, f"{'x' * 250}.json"], message)


FULL_DISK = {  # as numpy, the system and torch say it
    "numpy": OSError("46080 requested and 24544 written"),
    "system": OSError(28, "No space left on device"),
    "torch": RuntimeError("[enforce fail at inline_container.cc:668] . unexpected pos 64 vs 0"),
}


@pytest.mark.parametrize("stage", FULL_DISK)
def test_a_full_disk_is_named_with_the_file(world, tmp_path, monkeypatch, capsys, stage):
    def fail(*_, **__):
        raise FULL_DISK[stage]

    def find_no_space(folder):
        return 0

    for writer in ("numpy.savez", "numpy.save", "json.dump", "torch.save"):
        monkeypatch.setattr(writer, fail)
    monkeypatch.setattr(utils, "free_space", find_no_space)
    reason = "since the disk at /.* has no more room for it .[0-9,]+ MiB are free.; make room"

    outputs = ["--export", tmp_path / "e.npz", "--output", tmp_path / "r.json"]
    words = ["--checkpoint", world / "cosine", *outputs]
    message = f"e.npz could not be saved, {reason} or choose another folder"
    helpers.refused(capsys, evaluate.main, words, message)

    words = [*SMALL, "--data_path", world / "data", "--logger_name", tmp_path / "run"]
    message = f"checkpoint.pt could not be saved, {reason} and start again"
    helpers.refused(capsys, train.main, words, message)

    assert os.listdir(tmp_path) == []


# ---- outputs that would replace what the command reads

DEMO = "--data_path WORLD/data --data_name demo_precomp"
PHOTO = "data/demo/images/test_00000.png"
EVALUATE = "evaluate --checkpoint WORLD/cosine --data_path WORLD/data"


@pytest.mark.parametrize(
    "words, name",
    [
        (f"{EVALUATE} --output", "cosine/model_best.pt"),
        (f"{EVALUATE} --output", "data/demo_precomp/test_caps.txt"),
        (f"{EVALUATE} --output", "data/demo_precomp/test_ims.npy"),
        (f"{EVALUATE} --output", "data/demo_precomp/train_caps.txt"),
        (f"{EVALUATE} --output", "data/demo_precomp/features.json"),
        (f"{EVALUATE} --export", "cosine/model_best.pt"),
        (f"{EVALUATE} --export", "data/demo_precomp/test_ims.npy"),
        (
            f"{EVALUATE} --cxc --cxc_path WORLD/data/demo_cxc --output",
            "data/demo_cxc/sits_test.csv",
        ),
        (f"{EVALUATE} --cxc --cxc_path WORLD/data/demo_cxc --export", "data/demo_cxc/sts_test.csv"),
        (
            f"{EVALUATE} --positives WORLD/data/demo_precomp/test_positives.json --output",
            "data/demo_precomp/test_positives.json",
        ),
        (f"{EVALUATE} --retrieval --photos WORLD/data/demo/images --output", PHOTO),
        ("evaluate --compare WORLD/cosine WORLD/cosine.npz --output", "cosine.npz"),
        ("confidence WORLD/cosine --output", "cosine/model_best.pt"),
        (
            "confidence WORLD/cosine --data_path WORLD/data --output",
            "data/demo_precomp/dev_caps.txt",
        ),
        ("confidence WORLD/cosine.npz --calibrate_on 0.5 --output", "cosine.npz"),
        (f"word_vectors {DEMO} --dim 8 --output", "data/demo_precomp/train_caps.txt"),
        (f"cca {DEMO} --text bag --output", "data/demo_precomp/train_ims.npy"),
        (f"cca {DEMO} --text bag --output", "data/demo_precomp/test_bag.npy"),
        ("prepare --vg WORLD/data/demo_vg --output", "data/demo_vg/image_data.json"),
        ("prepare --vg WORLD/data/demo_vg --output", "data/demo_vg/region_descriptions.json"),
        (
            f"crops --checkpoint WORLD/cosine --image WORLD/{PHOTO} --boxes 1,1,9,9 "
            "--captions a b --output",
            PHOTO,
        ),
    ],
)
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_what_a_command_reads_is_never_replaced(refused, world, tmp_path, words, name, link):
    """By its own name, by a link and by a hard link, and not with --overwrite either."""
    command, *words = words.replace("WORLD", str(world)).split()
    output = world / name
    if link:
        output = tmp_path / f"link{output.suffix}"
        link(world / name, output)
    message = (
        "(is an input|is the same file as .*, an input|is a file of the run in .*); "
        "choose a different output"
    )
    refused(command, [*words, output, "--overwrite"], message)


@pytest.mark.parametrize(
    "name", ["checkpoint.pt", "config.yaml", "vocab.json", "log.txt", "log.jsonl"]
)
def test_files_of_a_run_are_never_replaced_by_results(refused, world, name):
    """Also those that a command does not read."""
    message = f"{name} is a file of the run in .*cosine; choose a different output file"
    output = ["--output", world / "cosine" / name, "--overwrite"]

    for words in (["--checkpoint", world / "cosine"], ["--embeddings", world / "cosine.npz"]):
        refused("evaluate", [*words, *output], message)


def test_a_manifest_is_not_replaced_by_the_results_of_its_models(refused, world, tmp_path):
    vg = world / "data" / "demo_vg"
    prepare.main(["--vg", str(vg), "--output", str(tmp_path / "selection.json")])

    words = ["--checkpoint", world / "cosine", "--manifest", "selection.json", "--output", tmp_path]
    refused("selection", words, "selection.json is .*an input; choose a different output file")


def test_other_files_beside_the_data_are_replaced(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world / "data" / "demo_precomp", "data/demo_precomp")
    vectors = tmp_path / "data" / "demo_precomp" / "own.txt"
    projection = tmp_path / "data" / "demo_precomp" / "demo_own.npz"
    vectors.write_text("mine")
    projection.write_text("mine")
    data = ["--data_path", "data", "--data_name", "demo_precomp"]

    word_vectors.main([*data, "--dim", "8", "--output", "data/demo_precomp/own.txt", "--overwrite"])
    cca.main([*data, "--text", "bag", "--output", "data/demo_precomp/demo_own.npz", "--overwrite"])

    assert vectors.stat().st_size > 1000
    assert projection.stat().st_size > 1000


def test_a_refusal_leaves_no_empty_folder(refused, world, tmp_path):
    for command, words in (
        ("prepare", ["--vg", "nowhere", "--output", "new/vg/m.json"]),
        ("vocab", ["--data_path", "nowhere", "--vocab_path", "new/vocab"]),
        ("selection", ["--checkpoint", "nowhere", "--manifest", "m.json", "--output", "new/vg"]),
    ):
        refused(command, words, "there is no")
        assert not (tmp_path / "new").exists()


# ---- checkpoints


def nested(depth: int) -> dict:
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def in_itself() -> dict:
    value = {}
    value["a"] = value
    return value


def doubled(times: int) -> dict:
    """A dict that is small in a file and holds 2 ** times dicts when it is read as it stands."""
    value = {"a": 1}
    for _ in range(times):
        value = {"a": value, "b": value}
    return value


def quantize(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def move_to_meta(x):
    return x.to("meta")


def cast_to_float8(x):
    return x.to(torch.float8_e4m3fn)


def cast_to_complex(x):
    return x.to(torch.complex64)


def view_one_number(x):
    """A matrix of 10 ** 12 numbers that takes no room."""
    return torch.zeros(1, 1).expand(10**6, 10**6)


# kind: parts of a checkpoint that are replaced
REPLACED_PARTS = {
    "tensor format": {"format": torch.ones(2)},
    "notes": {"notes": 5},
    "note": {"notes": [5]},
    "options": {"options": []},
    "weights": {"model": {"a": torch.ones(3)}},
    "state": {"state": {}},
    "format": {"format": 0},
    "rng": {"rng": torch.ones(3)},
}
# kind: (part, name in it, its new value)
REPLACED_VALUES = {
    "deep options": ("options", "a", nested(200)),
    "deep data": ("data", "a", nested(200)),
    "own options": ("options", "a", in_itself()),
    "own data": ("data", "a", in_itself()),
    "doubled options": ("options", "a", doubled(60)),
    "doubled data": ("data", "a", doubled(60)),
    "extractors text": ("data", "extractors", "x"),
    "extractors": ("data", "extractors", {"ims": [1]}),
    "state epoch -1": ("state", "epoch", -1),
    "state epoch 0.5": ("state", "epoch", 0.5),
    "state step 0.5": ("state", "step", 0.5),
    "state iteration 0.5": ("state", "iteration", 0.5),
    "state epoch True": ("state", "epoch", True),
    "state best_rsum inf": ("state", "best_rsum", float("inf")),
    "rsum": ("state", "best_rsum", float("nan")),
    "sim": ("options", "sim", "euclid"),
}
# kind: what is done to the first matrix of weights
CHANGED_MATRICES = {
    "quantised": quantize,
    "meta": move_to_meta,
    "float8": cast_to_float8,
    "complex": cast_to_complex,
    "view": view_one_number,
}
CHECKPOINTS = [*REPLACED_PARTS, *REPLACED_VALUES, *CHANGED_MATRICES, "vocabulary", "nan"]


def change_checkpoint(stored: dict, kind: str) -> None:
    """Put a fault of one of CHECKPOINTS into it."""
    model = stored["model"]
    if kind in REPLACED_PARTS:
        stored.update(REPLACED_PARTS[kind])
    elif kind in REPLACED_VALUES:
        part, name, value = REPLACED_VALUES[kind]
        stored[part][name] = value
    elif kind in CHANGED_MATRICES:
        name = next(name for name, x in model.items() if x.ndim == 2)
        model[name] = CHANGED_MATRICES[kind](model[name])
    elif kind == "vocabulary":
        stored["vocabulary"] = stored["vocabulary"] * 2
    else:
        assert kind == "nan"
        stored["model"] = {name: x * float("nan") for name, x in model.items()}


OPTIONS = [
    ("num_layers", 10**6),
    ("batch_size", 0),
    ("log_step", 0),
    ("val_step", 0),
    ("lr_update", 0),
    ("learning_rate", float("nan")),
    ("learning_rate", "fast"),
    ("seed", -1),
    ("seed", 2**70),
    ("seed", 1.0),
    ("dropout", 2),
    ("mask_same_image", "x"),
    ("bi_gru", 1),
    ("data_path", None),
    ("data_path", 5),
    ("data_name", None),
    ("data_name", "../x"),
    ("embed_size", 10**9),
    ("img_layers", "9-"),
    ("img_dim", -3),
    ("img_dim", "x"),
    ("txt_dim", 10**12),
    ("text_features", 3),
    ("logger_name", 1.5),
]
NO_TRAINING = "lacks what a training continues from, or holds something else .*--init_from"
CHOICES = [
    ("select", "best"),
    ("optimizer", "lion"),
    ("loss", "mine"),
    ("amp", 16),
    ("cross_attn", 1.0),
]


@pytest.mark.parametrize("name, value", [*OPTIONS, *CHOICES, ("method", "mine")])
def test_stored_options_have_the_types_of_the_command_line(refused, world, tmp_path, name, value):
    """In an evaluation and at --resume. Which method has set the others does not matter to an evaluation."""
    stored = torch.load(world / "cosine" / "checkpoint.pt", weights_only=True)
    stored["options"][name] = value
    torch.save(stored, tmp_path / "checkpoint.pt")

    message = (
        f"checkpoint.pt (holds|was trained with) (--)?{name} .*; "
        "(take another|add it to the code again, or give)"
    )
    refused("train", ["--resume", "."], message)
    if name != "method":
        refused("evaluate", ["--checkpoint", "checkpoint.pt"], message)


# kind: (weight, what its moments get)
CHANGED_MOMENTS = {
    "shapes": (0, {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}),
    "one shape": (3, {"exp_avg_sq": torch.zeros(3)}),
    "other names": (0, {"momentum_buffer": torch.zeros(3)}),
    "text": (0, {"exp_avg": "x"}),
    "none": (0, {"exp_avg": None}),
    "step": (0, {"step": torch.ones(7)}),
}
OTHER_MOMENTS = ["no exp_avg", "list", "negative", "nan", "more weights", "no weight", "integers"]


def change_moments(moments: dict, kind: str) -> None:
    """Put a fault of CHANGED_MOMENTS or OTHER_MOMENTS into Adam's moments, {number of a weight: its moments}."""
    first = moments[0]
    if kind in CHANGED_MOMENTS:
        weight, values = CHANGED_MOMENTS[kind]
        moments[weight].update(values)
    elif kind == "no exp_avg":
        del first["exp_avg"]
    elif kind == "list":
        moments[0] = []
    elif kind == "negative":
        first["exp_avg_sq"].neg_().sub_(1)
    elif kind == "nan":
        first["exp_avg"].fill_(float("nan"))
    elif kind == "more weights":
        moments[10**6] = first
    elif kind == "no weight":
        moments["a"] = first
    else:
        assert kind == "integers"
        first["exp_avg"] = first["exp_avg"].long()


@pytest.mark.parametrize("kind", [*CHANGED_MOMENTS, *OTHER_MOMENTS])
def test_a_resumed_optimiser_that_does_not_fit_the_weights_is_refused(
    refused, world, tmp_path, kind
):
    """torch's fused Adam reads beyond moments of another shape."""
    stored = torch.load(world / "cosine" / "checkpoint.pt", weights_only=True)
    change_moments(stored["optimizer"]["state"], kind)
    torch.save(stored, tmp_path / "checkpoint.pt")

    refused("train", ["--resume", ".", "--num_epochs", "2"], NO_TRAINING)


@pytest.fixture(scope="module")
def continued(world, tmp_path_factory):
    """The run after a second epoch."""
    run = shutil.copytree(world / "cosine", tmp_path_factory.mktemp("continued") / "run")
    assert helpers.resume(run, "--num_epochs", 2) == 0
    return run


@pytest.mark.parametrize(
    "change", [{"lr": "x"}, {"betas": "x"}, {"initial_lr": None}, {"fused": 5}, {"eps": -1.0}]
)
def test_a_resumed_optimiser_has_the_rates_of_the_options(world, continued, tmp_path, change):
    """Whatever its groups hold, the run goes on as if nothing had been changed."""
    run = shutil.copytree(world / "cosine", tmp_path / "run")
    stored = torch.load(run / "checkpoint.pt", weights_only=True)
    stored["optimizer"]["param_groups"][0].update(change)
    torch.save(stored, run / "checkpoint.pt")

    assert helpers.resume(run, "--num_epochs", 2) == 0
    assert helpers.same_runs(continued, run)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_with_foreign_contents(refused, world, tmp_path, kind):
    messages = {
        "sim": "--sim 'euclid', which this code does not have; add it",
        "vocabulary": "lists each word once",
    }
    stored = torch.load(world / "cosine" / "checkpoint.pt", weights_only=True)
    change_checkpoint(stored, kind)
    torch.save(stored, tmp_path / "checkpoint.pt")

    if kind == "rng":  # an evaluation does not read it
        refused("train", ["--resume", ".", "--num_epochs", "2"], NO_TRAINING)
    else:
        message = messages.get(kind, "checkpoint.pt")
        refused("evaluate", ["--checkpoint", "checkpoint.pt"], message)


def test_a_pipe_is_not_waited_for(refused, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused("evaluate", ["--embeddings", "pipe"], "pipe is not a plain file")

    os.rename(tmp_path / "pipe", tmp_path / "b.png")
    with pytest.raises(InputError, match="b.png is not a plain file; replace it"):
        read_photo(str(tmp_path / "b.png"))
