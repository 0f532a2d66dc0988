"""Stops at any instant: kills between changes of files, signals to a command and its worker processes."""
import os
import signal
import subprocess
import sys
import time

import pytest

import evaluate
import files
import images
import train
from tests.helpers import ROOT, STEPS, Command, act_at, fit, in_a_process, resume, same_runs

WORDS = [*STEPS, "--embed_size", 8, "--word_dim", 8, "--num_epochs", 2, "--sim", "wasserstein", "--val_step", 5,
         "--batch_size", 40, "--log_step", 3, "--lr_update", 1, "--vse_mean_warmup_epochs", 1, "--workers", 2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, demo_path):
    """An unbroken run of WORDS."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fit(*WORDS, "--data_path", demo_path, "--logger_name", folder)
    return folder


def left_over(folder) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".part")]


# ---- kills

def killed_at(where: str, call: int, words) -> None:
    """Train, and be killed before the call-th call of `where`."""
    act_at(where, call, lambda: os.kill(os.getpid(), signal.SIGKILL))
    train.main(list(map(str, words)))


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_an_unbroken_one(tmp_path, demo_path, whole):
    """Before there is a checkpoint, before the folder is described, before the best model, between it and the
    checkpoint, in the next epoch, while a resumed run describes its folder and opens its log, and amid a checkpoint."""
    run = tmp_path / "run"
    for where, call in (("os.replace", 1), ("os.replace", 2), ("os.replace", 5), ("os.replace", 5),
                        ("train.Training.record", 3), ("os.replace", 2), ("os.replace", 3), ("os.fsync", 4)):
        # without a checkpoint it never took a step, and the same command begins anew
        words = ["--resume", run] if (run / "checkpoint.pt").exists() else [
            *WORDS, "--data_path", demo_path, "--logger_name", run]
        assert in_a_process(killed_at, where, call, words)[0] == -signal.SIGKILL, (where, call)
    assert resume(run) == 0 and same_runs(run, whole) and not left_over(run)


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


def signalled(main, where: str, call: int, number: int, words) -> tuple[int, str, str]:
    """Status and outputs of a command in a session of its own, all signalled in the call-th call of `where`. Worker
    processes read the features, as those of a large file."""
    with Command(signal_in, main, where, call, number, words) as process:
        ended = process.ended()
        wait_for_the_group_of(process.pid)
    return ended


def signal_in(main, where: str, call: int, number: int, words) -> None:
    images.LARGE = 0
    act_at(where, call, lambda: os.killpg(0, number))
    main(list(map(str, words)))


@pytest.mark.slow
def test_a_signal_to_the_group_saves_a_training_exactly(tmp_path, demo_path, whole):
    """In a step, in a validation, while a checkpoint is saved."""
    run = tmp_path / "run"
    for where, call, number in (("train.Training.step", 3, signal.SIGTERM), ("metrics.score_matrix", 1, signal.SIGINT),
                                ("torch.save", 2, signal.SIGTERM)):
        words = ["--resume", run] if run.exists() else [*WORDS, "--data_path", demo_path, "--logger_name", run]
        status, out, err = signalled(train.main, where, call, number, words)
        assert status == 128 + number and not err and " train.py --resume" in out.strip().splitlines()[-1]
        assert not left_over(run)
    assert resume(run) == 0 and same_runs(run, whole)


def test_a_signal_to_the_group_before_anything_is_written_leaves_nothing(tmp_path, whole):
    words = ["--checkpoint", whole, "--output", tmp_path / "r.json", "--export", tmp_path / "e.npz", "--workers", 2]
    status, _, err = signalled(evaluate.main, "model.VSE.embed_images", 1, signal.SIGINT, words)
    assert status == 128 + signal.SIGINT and err.count("\n") == 1 and "no file was left half written" in err
    assert os.listdir(tmp_path) == []


def write_often(path: str, letter: str) -> None:
    for _ in range(15):
        files.save_lines(path, [letter * 100_000])


def test_two_processes_that_write_one_file_leave_one_whole(tmp_path):
    path, dead = tmp_path / "index", tmp_path / ".index.9999999.part"       # above the largest process number
    dead.touch()
    with Command(write_often, str(path), "a") as one, Command(write_often, str(path), "b") as other:
        assert one.ended()[0] == other.ended()[0] == 0
    assert path.read_text() in ("a" * 100_000 + "\n", "b" * 100_000 + "\n") and os.listdir(tmp_path) == ["index"]
