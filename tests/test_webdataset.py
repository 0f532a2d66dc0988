"""Photos in tar shards: the same batches, runs and results as from a folder of photos, and every fault told."""
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import cli
import data
import evaluate
import inputs
import show
import train
from checkpoints import load_checkpoint
from cli import InputError
from data import pair_batches, read_split
from features import extract, word_cnn
from files import tars
from files.reading import read_json
from files.tars import expand, samples
from runs import build_data
from tests.helpers import SMALL, Command, fork_readers, in_a_process, options, refused, same_runs
from text import Vocabulary

pytest.importorskip("webdataset", reason="webdataset is an optional package (requirements-webdataset.txt)")


def member(archive, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def write_tar(path, files) -> str:
    """A tar of (name, content)."""
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            member(archive, name, content if isinstance(content, bytes) else content.encode())
    return str(path)


def photo(colour: int = 0, ending: str = "jpeg", size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size), (colour % 256, 100, 50)).save(stream, ending)
    return stream.getvalue()


SHARD = {"train": 7, "dev": 2, "test": 2}               # samples


@pytest.fixture(scope="module")
def made(tmp_path_factory, photos_path) -> str:
    """A folder with photos of the demo in `demo`, and in `x` the same in shards, with their index. The captions of a
    photo stand in a text or in a list."""
    folder = tmp_path_factory.mktemp("tars")
    shutil.copytree(os.path.join(photos_path, "demo"), folder / "demo")
    (folder / "x").mkdir()
    for name, size in SHARD.items():
        split = read_split(str(folder), "demo", name)
        files = []
        for i, path in enumerate(split.images.paths):
            captions = [split.captions[m] for m in np.flatnonzero(split.caption_image == i)]
            with open(path, "rb") as f:
                content = f.read()
            key = f"deep/{name}{i:04d}"
            texts = [(f"{key}.txt", "\n".join(captions) + "\n"), (f"{key}.JSON", json.dumps({"captions": captions}))]
            files.append([(f"{key}.png", content), texts[i % 2]])
        for k in range(0, len(files), size):
            write_tar(folder / "x" / f"{name}-{k // size:03d}.tar", [x for sample in files[k:k + size] for x in sample])
    index(folder)
    return str(folder)


def index(folder, *words, name: str = "x") -> None:
    with pytest.raises(SystemExit) as stop:
        data.main(["index", "--data_path", str(folder), "--data_name", name, *map(str, words)])
    assert not stop.value.code, stop.value.code


def pipe_of(folder, name: str = "x") -> str:
    return f"pipe:cat {folder}/{name}/train-{{000..006}}.tar"


@pytest.fixture
def piped(made, tmp_path) -> tuple[str, str]:
    """A folder whose x holds the shards of dev and test, and the pipes that give those of train."""
    shutil.copytree(os.path.join(made, "x"), tmp_path / "x", ignore=shutil.ignore_patterns("train*"))
    index(tmp_path, "--train_shards", pipe_of(made))
    return str(tmp_path), pipe_of(made)


def equal(a, b) -> bool:
    return all(x.equal(y) if torch.is_tensor(x) else x == y for x, y in zip(a, b))


# ---- reading

def test_a_split_is_that_of_the_photos(made):
    for name in ("train", "dev", "test"):
        a, b = (read_split(made, folder, name) for folder in ("demo", "x"))
        assert b.captions == a.captions and (b.caption_image == a.caption_image).all()
        assert len(b.images) == len(a.images) and b.images.name(2) == f"deep/{name}0002"
        assert list(b.faults(deep=True)) == []
        assert b.images.describe() == f"photos in {-(-len(a.images) // SHARD[name])} tar shards"
        for i in (0, 1, len(a.images) - 1):
            assert a.images.open(i).tobytes() == b.images.open(i).tobytes()
            assert a.images.open(i, 20).tobytes() == b.images.open(i, 20).tobytes()
        for workers in (0, 2):
            for x, y in zip(inputs.image_batches(a.images, 5), inputs.image_batches(b.images, 5, workers), strict=True):
                assert x.equal(y)
        rows = np.array([1, 2, 0, 2])
        x, = inputs.image_batches(b.images, 5, rows=rows)
        assert x.equal(a.images.gather(rows))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_any_order_are_those_of_the_photos(made, workers):
    """Also of slices of their rows, of which one may be empty."""
    a, b = (read_split(made, folder, "train") for folder in ("demo", "x"))
    tokens, order = a.encode(Vocabulary.build(a.words, 1)), np.random.default_rng(3).permutation(len(a.captions))[:90]
    for crop in (None, 16):
        pairs = [pair_batches(split, tokens, order, 20, crop_size=crop, seed=(1, 2), skip=1, workers=n)
                 for split, n in ((a, 0), (b, workers))]
        assert all(equal(x, y) for x, y in zip(*pairs, strict=True))
    chunks = [chunk[:7 * (k != 1)] for k, chunk in enumerate(inputs.chunks(order, 20))]
    given = list(b.images.supply(chunks, b.caption_image.__getitem__, (1, 2)))
    assert [len(photos) for _, photos in given] == [len(set(b.caption_image[chunk].tolist())) for chunk in chunks]


def test_shards_are_read_in_order_and_photos_held_for_a_window(made, monkeypatch):
    split = read_split(made, "x", "train")
    images, opened, held, real = split.images, [], [], tars.samples

    def watched(shard):
        opened.append(shard)
        yield from real(shard)
    monkeypatch.setattr(tars, "samples", watched)
    for seed in ((0, 0), (0, 1), (7, 0)):
        windows = images.windows(split.caption_image, 16, seed)
        place = images.place(seed)
        assert sorted(np.concatenate(windows)) == list(range(len(split.captions)))
        sets = [set(split.caption_image[rows]) for rows in windows]
        assert [len(window) for window in sets] == [16, 16, 16]
        assert [sorted(place[list(window)]) for window in sets] == [[*range(k, k + 16)] for k in (0, 16, 32)]
        order = np.concatenate([np.random.default_rng(1).permutation(rows) for rows in windows])
        opened.clear()
        for k, (chunk, photos) in enumerate(images.supply(inputs.chunks(order, 10), split.caption_image.__getitem__,
                                                          seed)):
            assert set(photos.paths) == set(split.caption_image[chunk])
            assert len(opened) <= 1 + (16 * (1 + (k + 1) * 10 // 80)) // 7
            held.append(photos)
        assert opened == [images.shards[k] for k in images.order(seed)]
        skipped = inputs.chunks(order, 10)[17:]
        opened.clear()
        assert len(list(images.supply(skipped, split.caption_image.__getitem__, seed))) == len(skipped)
        first = min(place[split.caption_image[np.concatenate(skipped)]]) // 7
        assert first >= 4 and opened == [images.shards[k] for k in images.order(seed)][first:]


def test_an_order_follows_from_seed_epoch_and_index(made, piped):
    """Of shards and of captions: the same on a disk and through pipes; another seed or epoch, another order."""
    a = read_split(made, "x", "train").images
    b = read_split(piped[0], "x", "train", train_shards=piped[1]).images
    seeds = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 2)]
    orders = [tuple(a.order(seed)) for seed in seeds]
    assert len(set(orders)) == 6 and orders == [tuple(b.order(seed)) for seed in seeds]
    owner = np.repeat(np.arange(48), 2)
    assert all((x == y).all() for x, y in zip(a.windows(owner, 9, (3, 4)), b.windows(owner, 9, (3, 4)), strict=True))
    assert a.digest() == b.digest()
    c = tars.TarPhotos(a.shards, [{"samples": [[key, ["x"]] for key in keys]} for keys in (a.keys[:8], a.keys[8:])], "")
    assert c.keys == a.keys and c.digest() != a.digest()


def test_windows_are_equal(made):
    images = read_split(made, "x", "train").images
    owner = np.repeat(np.arange(48), 3)
    assert [len(rows) for rows in images.windows(owner, 47, (0,))] == [72, 72]
    assert [len(rows) for rows in images.windows(owner, 48, (0,))] == [144]
    assert len(images.windows(owner, 1, (0,))) == 48
    assert (images.windows(owner, 4096, (5,))[0] == np.arange(144)).all()


def test_no_photo_is_held_after_its_last_caption(made, monkeypatch):
    """Neither by the one who supplies them, nor longer than the batch that is yielded."""
    held = set()

    class Content(bytes):
        def __del__(self):
            held.discard(id(self))

    def samples(images, shard):
        for i, (name, content) in real(images, shard):
            content = Content(content)
            held.add(id(content))
            yield i, (name, content)

    split = read_split(made, "x", "train")
    real = type(split.images).samples
    monkeypatch.setattr(type(split.images), "samples", samples)
    chunks = inputs.chunks(np.concatenate(split.images.windows(split.caption_image, 8, (0,))), 5)
    most = 0
    for _ in split.images.supply(chunks, split.caption_image.__getitem__, (0,)):
        most = max(most, len(held))
    assert 5 <= most <= 8 + 5 and len(held) <= 1


# ---- training

WORDS = ["--data_name", "x", "--cnn_type", "resnet18", "--crop_size", "32", "--log_step", "1", "--batch_size",
         "16", "--val_step", "6"]


def trained(folder, run, weights, *words) -> str:
    assert train.train(options("--data_path", folder, *WORDS, "--cnn_weights", weights, "--logger_name", run,
                               *words)) == 0
    return str(run)


@pytest.fixture(scope="module")
def whole_run(made, tmp_path_factory, weights):
    return trained(made, tmp_path_factory.mktemp("whole") / "run", weights, "--shuffle_window", 12, "--workers", 0,
                   "--num_epochs", 2)


def test_training_in_one_window_is_that_on_the_photos(made, tmp_path, weights):
    """To the bit: the order of one window is that of all captions."""
    a = trained(made, tmp_path / "a", weights, "--data_name", "demo", "--workers", 0, "--val_step", 100)
    b = trained(made, tmp_path / "b", weights, "--val_step", 100)
    assert same_runs(a, b)
    for run in (a, b):
        evaluate.main(["--checkpoint", run, "--device", "cpu", "--workers", "0"])
    x, y = (read_json(f"{run}/results.json") for run in (a, b))
    assert x["protocols"] == y["protocols"]


def killed(words, step: int) -> None:
    """Train, and die when a step has been saved."""
    fork_readers()
    real = train.Training.validate

    def validate(self, folder):
        real(self, folder)
        if self.state["iteration"] >= step:
            os.kill(os.getpid(), signal.SIGKILL)
    train.Training.validate = validate
    train.train(options(*words))


def test_a_killed_run_goes_on_as_if_it_had_not_been(piped, whole_run, tmp_path, weights):
    """Within an epoch and a window; with pipes, that are to be given again, and workers, which change nothing."""
    words = ["--data_path", piped[0], *WORDS, "--cnn_weights", weights, "--shuffle_window", 12, "--num_epochs", 2,
             "--logger_name", tmp_path / "run", "--workers", 2]
    done = in_a_process(killed, [*words, "--train_shards", piped[1]], 6)
    assert done.exitcode == -signal.SIGKILL
    state = load_checkpoint(str(tmp_path / "run"), "checkpoint.pt")["state"]
    assert state["epoch"] == 0 and state["step"] == 6
    opt = train.parse_args(["--resume", str(tmp_path / "run")])
    with pytest.raises(InputError, match=r"no shards .*x/train-00000.tar, ...; .*or give --train_shards again"):
        train.train(opt)
    opt = train.parse_args(["--resume", str(tmp_path / "run"), "--workers", "1", "--train_shards", piped[1]])
    assert train.train(opt) == 0
    assert same_runs(whole_run, tmp_path / "run")


def assert_ends(group: int, seconds: int = 60) -> None:
    """All processes of a group end, if not at once; a machine at work takes its time."""
    for _ in range(10 * seconds):
        try:
            os.killpg(group, 0)
            time.sleep(0.1)
        except ProcessLookupError:
            return
    pytest.fail(f"processes of the group live on after {seconds} s")


def test_a_signal_leaves_a_checkpoint_and_no_process(piped, whole_run, tmp_path, weights):
    """Ctrl-C goes to the whole group of processes; the commands of pipes do not end before this one."""
    pipes = piped[1].replace("pipe:cat", f"pipe:touch {tmp_path}/began; sleep 0.2; cat")
    index(piped[0], "--train_shards", pipes)
    (tmp_path / "began").unlink()
    words = [*SMALL, "--data_path", piped[0], *WORDS, "--cnn_weights", weights, "--shuffle_window", 12, "--logger_name",
             tmp_path / "run", "--workers", 1, "--train_shards", pipes, "--num_epochs", 200]
    process, log = Command(train.main, list(map(str, words)), readers=True), tmp_path / "run" / "log.jsonl"
    while process.process.is_alive() and not ((tmp_path / "began").exists() and log.exists() and log.stat().st_size):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = process.ended()
    assert status == 128 + signal.SIGINT, (out, err)
    assert err.strip() == "" or len(err.strip().splitlines()) == 1, err
    assert load_checkpoint(str(tmp_path / "run"), "checkpoint.pt")["state"]["iteration"] > 0
    assert_ends(process.pid)


def test_the_embedding_network_has_siblings_within_windows(made, weights):
    opt = options("--data_path", made, *WORDS, "--cnn_weights", weights, "--loss", "two_branch", "--shuffle_window", 12,
                  "--logger_name", "none")
    loaded = build_data(opt, None)
    order = loaded.order(0)
    owner = loaded.train.caption_image[order]
    assert (owner[::2] == owner[1::2]).all() and len(order) == 2 * len(loaded.train.captions)
    place = loaded.train.images.place((opt.seed, 0))[owner]
    assert all((place[k:k + 120] // 12 == k // 120).all() for k in range(0, len(order), 120))


def test_pictures_of_photos_in_shards(whole_run, tmp_path):
    show.main(["retrieval", "--checkpoint", whole_run, "--output", str(tmp_path / "a.png"), "--top", "2", "--device",
               "cpu", "--workers", "0"])
    assert (tmp_path / "a.png").stat().st_size


# ---- a command comes from the command line alone

def test_no_file_gives_a_pipe(piped, whole_run, tmp_path, capsys, weights):
    evil = f"pipe:touch {tmp_path}/evil"
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"train_shards": evil}))
    refused(capsys, train.main, ["--config", tmp_path / "c.yaml"],
            "holds 'train_shards', which only the command line can say, .* nor starts a command; leave it out and give")
    run = trained(piped[0], tmp_path / "run", weights, "--train_shards", piped[1], "--val_step", 100)
    stored = torch.load(f"{run}/checkpoint.pt", weights_only=True)
    assert "train_shards" not in stored["options"] and stored["options"]["shuffle_window"] == 4096
    again = train.parse_args(["--config", f"{run}/config.yaml", "--logger_name", str(tmp_path / "z")])
    assert again.train_shards is None and again.num_epochs == 1
    stored["options"]["train_shards"] = evil
    for name in ("checkpoint.pt", "model_best.pt"):
        torch.save(stored, f"{run}/{name}")
    index_path = f"{piped[0]}/x/train_shards.json"
    listed = read_json(index_path)
    for entry in listed["webdataset_shards"]:
        entry["name"] = evil
    with open(index_path, "w") as f:
        json.dump(listed, f)
    for words in (["--resume", run, "--num_epochs", "2"], ["--config", f"{run}/config.yaml", "--logger_name",
                                                          str(tmp_path / "again")]):
        refused(capsys, train.main, words, "there are no shards .*train-00000.tar")
    evaluate.main(["--checkpoint", run, "--device", "cpu", "--split", "dev", "--workers", "0"])
    data.check(piped[0], "x", train_shards=piped[1])
    assert not (tmp_path / "evil").exists()


def test_a_folder_is_never_taken_for_an_address(made, tmp_path, monkeypatch):
    folder = tmp_path / "pipe:touch evil;"
    shutil.copytree(os.path.join(made, "x"), folder / "x")
    monkeypatch.chdir(tmp_path)
    index("pipe:touch evil;")
    split = read_split("pipe:touch evil;", "x", "dev")
    assert len(list(inputs.image_batches(split.images, 5))) and os.listdir(tmp_path) == ["pipe:touch evil;"]


def test_what_a_tar_names_is_never_a_path(tmp_path):
    """Names that lead out of a folder, links and devices: only the bytes of plain files are read."""
    (tmp_path / "x").mkdir()
    with tarfile.open(tmp_path / "x" / "train-0.tar", "w") as archive:
        for name in ("../../up", "/tmp/root", "a b\tc", "ü"):
            member(archive, f"{name}.jpg", photo())
            member(archive, f"{name}.txt", b"a caption")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"odd{kind.decode()}.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        member(archive, "__meta__", b"")
        member(archive, "__info__/a.txt", b"x")
        member(archive, "README", b"x")
        member(archive, "list.csv", b"x")
    before = sorted(os.listdir(tmp_path)), sorted(os.listdir(tmp_path / "x"))
    found = list(samples(str(tmp_path / "x" / "train-0.tar")))
    assert [sample.key for sample in found] == ["../../up", "/tmp/root", "a b\tc", "ü"]
    index(tmp_path)
    assert read_split(str(tmp_path), "x", "train").images.keys == [sample.key for sample in found]
    assert before == (sorted(os.listdir(tmp_path)), [name for name in sorted(os.listdir(tmp_path / "x"))
                                                     if name != "train_shards.json"])


# ---- what can be wrong

SOUND = [("a.jpg", photo(1)), ("a.txt", "one\n\n two \r\nthree"), ("b.png", photo(2, "png")),
         ("b.json", '{"caption": "four\\nfive", "width": 3}'), ("c.webp", photo(3, "webp")),
         ("c.json", '{"captions": ["six", " ", "seven"]}'), ("d.JPEG", photo(4)), ("d.txt", "eight"),
         ("d.json", '{"other": 1}')]


def test_captions_in_every_form(tmp_path):
    found = list(samples(write_tar(tmp_path / "t.tar", SOUND)))
    assert [(s.key, s.name.split("'")[1], s.captions) for s in found] == [
        ("a", "a.jpg", ["one", "two", "three"]), ("b", "b.png", ["four five"]), ("c", "c.webp", ["six", "seven"]),
        ("d", "d.jpeg", ["eight"])]
    assert found[0].photo == photo(1)


def replaced(name: str, content) -> list:
    return [(n, content if n == name else c) for n, c in SOUND if not (n == name and content is None)]


@pytest.mark.parametrize("files, message", [
    (replaced("b.json", None), r"holds no captions of the key 'b'; KEY.txt holds one a line in UTF-8, KEY.json"),
    (replaced("a.txt", " \n "), "holds no captions of the key 'a'"),
    (replaced("b.json", '{"width": 3}'), "holds no captions of the key 'b'"),
    (replaced("b.json", '{"captions": []}'), "holds no captions of the key 'b'"),
    (replaced("b.json", '{"captions": "one"}'), r"the captions of the key 'b' cannot be read .captions are texts in a"),
    (replaced("b.json", '{"caption": 3}'), r"the captions of the key 'b' cannot be read .captions are texts in a list"),
    (replaced("b.json", "[1]"), "the captions of the key 'b' cannot be read"),
    (replaced("b.json", "{"), "the captions of the key 'b' cannot be read"),
    (replaced("b.json", "[" * 100_000), "the captions of the key 'b' cannot be read"),
    (replaced("b.json", '{"caption": "\\ud800"}'), "the captions of the key 'b' cannot be read"),
    (replaced("a.txt", b"caf\xe9"), r"the captions of the key 'a' cannot be read .'utf-8' codec"),
    (replaced("a.jpg", None), r"holds no photos of the key 'a'; a sample has one file KEY.jpg, .jpeg, .png, .webp"),
    ([*SOUND, ("d.png", photo())], "holds 2 photos of the key 'd'"),
    ([*SOUND, ("a.jpg", photo()), ("a.txt", "x")], "holds files of the key 'a' twice; .* every sample has a key of"),
    ([*SOUND, ("d.jpeg", photo())], "holds files of the key 'd' twice"),
    ([*SOUND, ("a.png", photo())], "holds files of the key 'a' twice"),
    ([*SOUND, ("a.png", photo()), ("a.json", '{"caption": "x"}')], "holds files of the key 'a' twice; all files of a"),
    ([("x.csv", "x")], r"train-0.tar holds no sample; a sample is KEY.jpg beside"),
    ([(os.fsdecode(b"\xff.jpg"), photo()), (os.fsdecode(b"\xff.txt"), "x")],
     r"the captions of the key '.udcff' cannot be read"),
    (replaced("a.txt", "x" * (1 << 20) + "y"), r"holds the file 'a.txt' of 1,048,577 bytes, and at most 1,048,576 are"),
])
def test_faults_of_samples(tmp_path, capsys, files, message):
    (tmp_path / "x").mkdir()
    write_tar(tmp_path / "x" / "train-0.tar", files)
    refused(capsys, data.main, ["index", "--data_path", tmp_path, "--data_name", "x"], f"x/train-0.tar.*{message}"
            if not message.startswith("train-0") else message)
    assert os.listdir(tmp_path / "x") == ["train-0.tar"]


def test_a_file_of_zeros_that_only_a_header_announces(tmp_path, capsys):
    """A sparse file of 2^60 bytes would be read into memory."""
    subprocess.run(["truncate", "-s", "1G", tmp_path / "a.jpg"], check=True)
    subprocess.run(["tar", "-C", tmp_path, "--sparse", "-cf", tmp_path / "t.tar", "a.jpg"], check=True)
    assert (tmp_path / "t.tar").stat().st_size < 20_000
    with pytest.raises(InputError, match=r"t.tar holds the file 'a.jpg' of 1,073,741,824 bytes, and at most 268,435"):
        list(samples(str(tmp_path / "t.tar")))


@pytest.mark.parametrize("pipe", [False, True])
def test_truncated_and_damaged_tars(tmp_path, pipe):
    """At any point, also between two members, where tarfile takes the rest for an end."""
    whole = open(write_tar(tmp_path / "w.tar", SOUND), "rb").read()
    end = whole.rstrip(b"\0")
    end = len(end) + -len(end) % 512
    path = tmp_path / "t.tar"
    shard = f"pipe:cat {path}" if pipe else str(path)
    for length in [0, 100, 512, 600, 1024, 1536, end - 512, end]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"the shard (pipe:cat )?.*t.tar cannot be read to its end .*; look at it"):
            list(samples(shard))
    with tarfile.open(tmp_path / "w.tar") as archive:
        second = archive.getmembers()[1].offset
    broken = bytearray(whole)
    broken[second + 10] ^= 1                                # in its name
    path.write_bytes(broken)
    with pytest.raises(InputError, match=f"damaged or cut off after {second:,} bytes: bad checksum"):
        list(samples(shard))
    for content in (b"text" * 500, b"\x1f\x8b" + whole[2:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="t.tar cannot be read to its end"):
            list(samples(shard))
    path.write_bytes(whole)
    assert len(list(samples(shard))) == 4


@pytest.mark.parametrize("command, message", [
    ("false", "status 1"), ("exit 7", "status 7"), ("cat /nowhere/x.tar 2>/dev/null", "status 1"),
    ("cat {whole}; exit 3", "status 3"), ("head -c 1500 {whole}; exit 4", "status 4"),
    ("echo text", "truncated header"),
    ("true", "empty header|cut off after 0 bytes"), ("yes", "cut off after 0 bytes|bad checksum|invalid header"),
    ("head -c 1500 {whole}; kill -9 $$", "status -9")])
def test_pipes_that_fail(tmp_path, command, message):
    whole = write_tar(tmp_path / "w.tar", SOUND)
    shard = f"pipe:{command.format(whole=whole)}"
    with pytest.raises(InputError) as error:
        list(samples(shard))
    said = str(error.value)
    assert said.startswith(f"the shard {shard} cannot be read to its end (") and "\n" not in said
    assert any(part in said for part in message.split("|")), said


@pytest.mark.parametrize("command", ["exec sleep 1000", "sleep 1000; true", "sleep 1000 | cat"])
def test_a_pipe_that_is_left_ends(tmp_path, command):
    """With all that it started."""
    whole = write_tar(tmp_path / "w.tar", SOUND)
    reading = samples(f"pipe:echo $$ > {tmp_path}/pid; cat {whole}; {command}")
    assert next(reading).key == "a"
    time.sleep(0.3)                                         # most often until it sleeps; it ends before that, too
    reading.close()
    assert_ends(int((tmp_path / "pid").read_text()))


def test_a_signal_to_everything_leaves_pipes_alone(tmp_path):
    """A batch system signals all processes of a job; the main process still has to read what it needs to stop well."""
    whole = write_tar(tmp_path / "w.tar", SOUND)
    until = "for _ in $(seq 600); do {} && break; sleep 0.1; done"
    reading = samples(f"pipe:echo $$ > {tmp_path}/pid; cat {whole} | ({until.format(f'[ -e {tmp_path}/sent ]')}; cat)")
    sender = subprocess.Popen(["sh", "-c", until.format("[ -s pid ]") + "; for s in INT TERM HUP; do "
                               "kill -$s -$(cat pid); done; touch sent"], cwd=tmp_path)
    assert len(list(reading)) == 4 and sender.wait() == 0


def small(folder, *shards, split="train", name="x") -> str:
    (folder / name).mkdir(exist_ok=True)
    for k, keys in enumerate(shards):
        write_tar(folder / name / f"{split}-{k:05d}.tar", [pair for key in keys for pair in (
            (f"{key}.jpg", photo(ord(key))), (f"{key}.txt", f"the caption {key}"))])
    return str(folder)


def test_what_does_not_fit_the_index(tmp_path, capsys):
    folder, x = small(tmp_path, "abc", "de"), tmp_path / "x"
    read = lambda: read_split(folder, "x", "train")  # noqa: E731
    command = f"`python data.py index --data_path {folder} --data_name x`"

    def says(message, read=read):
        with pytest.raises(InputError, match=message) as error:
            read()
        assert command in str(error.value) and "\n" not in str(error.value)

    says("there is no .*train_shards.json, which lists the captions of 2 shards; ")
    index(folder)
    assert len(read().images) == 5 and not read().notes
    whole = (x / "train-00001.tar").read_bytes()
    os.utime(x / "train-00000.tar", (1, 1))
    assert read().notes == [f"1 of 2 shards have another date than when {x}/train_shards.json was made; each sample "
                            "that is read is compared with it"]
    (x / "train-00001.tar").write_bytes(whole + bytes(10240))
    says(r"its shard 1 is train-00001.tar of 10240 bytes, and this one is train-00001.tar of 20480; fetch it again, or")
    (x / "train-00001.tar").unlink()
    says("was made of 2 shards, and there are 1; fetch those that are missing, or ")
    (x / "train-00001.tar").write_bytes(whole)
    (x / "train-00002.tar").write_bytes(whole)
    says("was made of 2 shards, and there are 3; ")
    (x / "train-00002.tar").unlink()
    os.rename(x / "train-00001.tar", x / "train-1.tar")
    says("was made of other shards: its shard 1 is train-00001.tar of .* this one is train-1.tar of")
    os.rename(x / "train-1.tar", x / "train-00001.tar")
    for keys, message in (
            ("ed", "train-00001.tar holds the sample 'e' as number 0, and its index lists 'd' with its captions"),
            ("dx", "train-00001.tar holds the sample 'x' as number 1"), ("def", None),
            ("d", r"train-00001.tar ends after 1 samples, and its index lists 2; fetch it again")):
        small(tmp_path, "abc", keys)                        # each has 10,240 bytes
        if message:
            says(message, lambda: list(inputs.image_batches(read().images, 2)))
        fault, = read().faults(deep=True)
        assert re.search(message or "holds the sample 'f' as number 2, .* lists no more", fault)
    small(tmp_path, "abc", "de")
    os.rename(x / "train-00001.tar", x / "old.tar")
    write_tar(x / "train-00001.tar", [(s.key + ".jpg", s.photo) if k == 0 else (s.key + ".txt", "another caption")
                                      for s in samples(str(x / "old.tar")) for k in (0, 1)])
    (x / "old.tar").unlink()
    says("train-00001.tar holds the sample 'd' as number 0, and its index lists 'd' with its captions; the shard has",
         lambda: list(inputs.image_batches(read().images, 2)))
    for content in ("{", "[]", '{"webdataset_shards": [1]}', '{"webdataset_shards": [{"name": "x"}]}',
                    (x / "train_shards.json").read_text().replace('["the caption a"]', "[]"),
                    (x / "train_shards.json").read_text().replace('["the caption a"]', "[3]")):
        (x / "train_shards.json").write_text(content)
        says("train_shards.json is no.*; delete it, and ")
    (x / "train_shards.json").write_text("[]")
    refused(capsys, data.main, ["index", "--data_path", folder, "--data_name", "x"], "already and is none that this")
    assert (x / "train_shards.json").read_text() == "[]"


def test_refusals_of_the_command(tmp_path, capsys, made):
    def says(message, *words, name="x"):
        refused(capsys, data.main, ["index", "--data_path", tmp_path, "--data_name", name, *words], message)

    says("there is no folder .*x for the index; make it")
    (tmp_path / "x").mkdir()
    says(r"x holds no shards train-00000.tar, ...; put them there, or name those of the training split")
    small(tmp_path, "abc", "cd")
    says(r"train-00001.tar and .*train-00000.tar both hold a sample of the key 'c'; give every sample")
    twice = "::".join([str(tmp_path / "x" / "train-00001.tar")] * 2)
    says("both hold a sample of the key 'c'", "--train_shards", twice)
    (tmp_path / "x" / "train-00000.tar").unlink()
    says(r"holds train-00001.tar and no shard 0 of train.tar; shards are numbered from 0 without gaps")
    for shards, message in (("nowhere-{0..1}.tar", "there is no shard nowhere-0.tar; fetch it"),
                            ("x-{0..", "--train_shards .* cannot be expanded"), ("-", "names the shard '-'; give"),
                            ("ftp:x", "names the shard 'ftp:x'; give paths, or addresses that begin with .*pipe:"),
                            ("${HOME}/x", "cannot be expanded .*_HOME"), ("", "an empty name is no shard")):
        says(message, "--train_shards", shards)
    says("--vocab v.json is for check|--vocab is for check", "--vocab", "v.json")
    assert expand("~/a-{0..1}.tar::pipe:cat b") == [os.path.expanduser(f"~/a-{k}.tar") for k in (0, 1)] + ["pipe:cat b"]
    refused(capsys, extract.main, ["images", "--data_path", made, "--data_name", "x", "--output_name", "y", "--kind",
                                   "demo"], "photos of .*-000.tar are in tar shards, which .* unpack them")
    refused(capsys, word_cnn.main, ["--data_path", made, "--data_name", "x", "--output", tmp_path / "w"],
            "x has photos in 7 tar shards, and a network is fine-tuned on photos in files")
    refused(capsys, train.main, ["--data_path", made, "--data_name", "x", "--use_restval"], "--use_restval adds COCO")
    refused(capsys, train.main, ["--data_path", made, "--data_name", "demo", "--shuffle_window", 9],
            "--shuffle_window 9 is for photos in tar shards, and has no effect here")


def test_broken_photos_are_named(tmp_path, capsys):
    folder = small(tmp_path, "abcd")
    for split in ("dev", "test"):
        write_tar(tmp_path / "x" / f"{split}-0.tar", [("k.jpg", photo()[:300]), ("k.txt", "the"), ("l.png", b"none"),
                                                      ("l.txt", "the"), ("m.jpg", photo(1)), ("m.txt", "the")])
    index(folder)
    assert data.check(folder, "x") == 4
    said = capsys.readouterr().out
    assert f"fault: the photo 'k.jpg' in {folder}/x/dev-0.tar cannot be read (" in said
    assert "'l.png' in " in said and "(cannot identify image file)" in said and "photos in 1 tar shards" in said
    for workers in (0, 1):
        with pytest.raises(InputError, match="the photo 'k.jpg' in .*dev-0.tar cannot be read"):
            list(inputs.image_batches(read_split(folder, "x", "dev").images, 2, workers))


def read_in_workers(folder, told) -> None:
    sys.stderr = open(told, "w")
    images = read_split(folder, "x", "train").images
    cli.run("test", lambda: len(list(inputs.image_batches(images, 4, 2))))


def test_a_fault_among_worker_processes_ends_the_command(made, tmp_path):
    """The main process reads the tars; its workers must not keep it from ending."""
    shutil.copytree(os.path.join(made, "x"), tmp_path / "x")
    path = tmp_path / "x" / "train-000.tar"              # in what is read before the first batch
    path.write_bytes(path.read_bytes()[:-20_000] + bytes(20_000))
    done = in_a_process(read_in_workers, str(tmp_path), str(tmp_path / "told"))
    said = (tmp_path / "told").read_text()
    assert done.exitcode == 1 and "train-000.tar" in said and len(said.splitlines()) == 1, said


def test_without_the_package(made, monkeypatch):
    """Shards on the disk are read; addresses are not."""
    for name in [name for name in sys.modules if name.split(".")[0] == "webdataset"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert len(list(inputs.image_batches(read_split(made, "x", "dev").images, 5)))
    with pytest.raises(InputError, match="package webdataset, which is not installed; pip install -r requirements-web"):
        read_split(made, "x", "train", train_shards=pipe_of(made))
