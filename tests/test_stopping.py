"""Stops at any instant: kills after each change of a file, signals to a command and its worker processes."""
import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import evaluate
import train
from tests.helpers import FORKS, ROOT, STEPS, Command, in_a_process, same_runs

WORDS = [*STEPS, "--embed_size", "8", "--word_dim", "8", "--num_epochs", "2", "--sim", "wasserstein", "--val_step",
         "5", "--batch_size", "40", "--log_step", "3"]


def trained(words) -> int:
    return train.train(train.parse_args(list(map(str, words))))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, demo_path):
    """An unbroken run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert trained([*WORDS, "--data_path", demo_path, "--logger_name", folder]) == 0
    return folder


# ---- kills

def instants(at: int | None) -> list:
    """Counts what this process does to files of a run folder, before and after each; at number `at` it is killed."""
    seen = []

    def passed(what) -> None:
        seen.append(what)
        if len(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(owner, name):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            passed(f"before {name}")
            result = real(*args, **kwargs)
            passed(f"after {name}")
            return result
        setattr(owner, name, call)
    for owner, names in ((os, ("replace", "fsync", "remove", "makedirs")), (torch, ("save",)),
                         (train.Training, ("say", "record"))):
        for name in names:
            watched(owner, name)
    return seen


def train_to(words, at, told) -> None:
    seen = instants(at)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    status = trained(words)
    told.send(len(seen))
    sys.exit(status)


def train_apart(words, at=None) -> int:
    """Train in a process of its own and kill it at number `at`: its exit code. Without `at`: how many there are."""
    there, here = FORKS.Pipe(False)
    process = in_a_process(train_to, words, at, here)
    assert at or there.poll(), process.exitcode
    return process.exitcode if at else there.recv()


@pytest.mark.slow
@pytest.mark.parametrize("resumed, number", [(False, 4), (True, 3)])
def test_a_kill_after_any_change_of_a_file_loses_nothing(tmp_path, demo_path, whole, resumed, number):
    """At instants spread over a fresh run, or over one that goes on: what goes on ends as the unbroken run."""
    words = [*WORDS, "--data_path", demo_path, "--logger_name"]
    middle, count = tmp_path / "middle", train_apart([*words, tmp_path / "count"])
    if resumed:
        assert train_apart([*words, middle], count // 2) == -signal.SIGKILL
        shutil.copytree(middle, tmp_path / "again")
        count = train_apart(["--resume", tmp_path / "again"])
        assert same_runs(tmp_path / "again", whole)
    instants = sorted({1 + k * (count - 1) // (number - 1) for k in range(number)})
    assert len(instants) == number
    for at in instants:
        folder = tmp_path / str(at)
        if resumed:
            shutil.copytree(middle, folder)
        assert train_apart(["--resume", folder] if resumed else [*words, folder], at) == -signal.SIGKILL, at
        # else it never took a step, and the same command begins anew
        going_on = (folder / "checkpoint.pt").exists()
        assert trained(["--resume", folder] if going_on else [*words, folder]) == 0
        assert same_runs(folder, whole), at
        assert not [name for name in os.listdir(folder) if name.endswith((".part", ".tmp"))], at
        shutil.rmtree(folder)


# ---- signals to a group

def test_a_reader_that_has_seen_enough_is_no_fault():
    """A pipe into `head` closes early."""
    code = "import cli; cli.run('x', lambda: print('a'))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as ended:
        ended.stdout.close()
        assert (ended.stderr.read(), ended.wait()) == (b"", 128 + signal.SIGPIPE)


def wait_for_the_group_of(pid: int) -> None:
    for _ in range(100):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("processes of the group live on")


def signalled(main, where: str, call: int, number: int, *words) -> tuple[int, str, str]:
    """Status and outputs of a command in a session of its own, all signalled in the call-th call of `where`."""
    with Command(signal_in, main, where, call, number, words) as process:
        ended = process.ended()
        wait_for_the_group_of(process.pid)
    return ended


def signal_in(main, where: str, call: int, number: int, words) -> None:
    owner, name = where.rsplit(".", 1)
    owner = functools.reduce(getattr, owner.split(".")[1:], sys.modules[owner.split(".")[0]])
    real, calls = getattr(owner, name), []

    def watched(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            os.killpg(0, number)
        return real(*args, **kwargs)
    setattr(owner, name, watched)
    main(list(map(str, words)))


@pytest.fixture(scope="module")
def photos(tmp_path_factory, photos_path, weights):
    """Words of a training on photos with workers, and its unbroken run."""
    whole = tmp_path_factory.mktemp("photos") / "whole"
    words = ["--data_path", photos_path, "--data_name", "demo", "--cnn_type", "resnet18", "--cnn_weights", weights,
             "--crop_size", 32, "--embed_size", 8, "--word_dim", 8, "--batch_size", 30, "--num_epochs", 2,
             "--val_step", 2, "--vocab_threshold", 1, "--log_step", 1, "--device", "cpu", "--workers", 2]
    assert trained([*words, "--logger_name", whole]) == 0
    return words, whole


@pytest.mark.slow
def test_a_signal_to_the_group_before_anything_is_written_leaves_nothing(tmp_path, photos):
    words = ["--checkpoint", photos[1], "--output", tmp_path / "r.json", "--export", tmp_path / "e.npz", "--workers", 2,
             "--batch_size", 5]
    status, _, err = signalled(evaluate.main, "model.VSE.embed_images", 1, signal.SIGINT, *words)
    assert status == 128 + signal.SIGINT and err.count("\n") == 1 and "no file was left half written" in err
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("phase, where, call, number", [
    ("training", "train.Training.step", 3, signal.SIGTERM), ("validating", "metrics.score_matrix", 1, signal.SIGINT),
    ("saving", "torch.save", 4, signal.SIGTERM)])
def test_a_signal_to_the_group_saves_a_training_exactly(tmp_path, photos, phase, where, call, number):
    words, whole = photos
    status, out, err = signalled(train.main, where, call, number, *words, "--logger_name", tmp_path / "run")
    assert status == 128 + number and not err and "python train.py --resume" in out.strip().splitlines()[-1]
    assert not [name for name in os.listdir(tmp_path / "run") if name.endswith(".part")]
    assert trained(["--resume", tmp_path / "run"]) == 0 and same_runs(tmp_path / "run", whole)


def test_two_processes_that_write_one_file_leave_one_whole(tmp_path):
    path, dead = tmp_path / "index", tmp_path / ".index.9999999.part"       # above the largest process number
    dead.touch()
    code = "import sys, files\nfor n in range(15): files.save_lines(sys.argv[1], [sys.argv[2] * 100_000])"
    writers = [subprocess.Popen([sys.executable, "-c", code, path, letter], cwd=ROOT) for letter in "ab"]
    assert [writer.wait(200) for writer in writers] == [0, 0]
    assert path.read_text() in ("a" * 100_000 + "\n", "b" * 100_000 + "\n") and os.listdir(tmp_path) == ["index"]
