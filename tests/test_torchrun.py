"""Trainings in two processes as users start them: what they write, how a signal or the death of one ends both, how
they go on."""
import contextlib
import itertools
import os
import signal
import time

import pytest
import torch

import cli
import train
from checkpoints import load_checkpoint
from devices import processes
from tests.helpers import STEPS, fit_steps, log_of, processes_of, same_runs, started


def two(*words, work=train.main):
    """train.py with these words in two processes."""
    return processes_of(2, work, [*STEPS, *map(str, words)])


def until_step(folder, step: int, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            if any(line["iteration"] >= step for line in log_of(folder)):
                return
        time.sleep(0.02)
    pytest.fail(f"no step {step} in {seconds} s")


def both(ranks, status: int) -> str:
    """What the first of two processes says that end with this status; the second says nothing."""
    (first, out, err), second = (process.ended() for process in ranks)
    assert (first, second) == (status, (status, "", "")), (err, second)
    return out


@pytest.fixture(scope="module")
def whole(demo_path, tmp_path_factory):
    """A run of two processes that nothing stopped."""
    folder = tmp_path_factory.mktemp("two") / "run"
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--logger_name", folder) as ranks:
        out = both(ranks, 0)
    assert "2 processes that share each batch of 16" in out and "done: best dev rsum" in out
    return folder


def test_two_processes_write_what_one_does(whole, demo_path, tmp_path):
    """Epochs, validations and losses as of one process; and no more files."""
    fit_steps("--data_path", demo_path, "--num_epochs", "2", "--val_step", "7", "--logger_name", tmp_path / "one")
    one, many = log_of(tmp_path / "one"), log_of(whole)
    assert [line.keys() for line in one] == [line.keys() for line in many]
    for a, b in zip(one, many):
        for key in a:
            assert b[key] == (pytest.approx(a[key], rel=1e-3, abs=1e-3) if isinstance(a[key], float) else a[key])
    kinds = [sorted(name.split(".")[0] for name in os.listdir(folder)) for folder in (tmp_path / "one", whole)]
    assert kinds[0] == kinds[1] and load_checkpoint(str(whole), "checkpoint.pt")["processes"] == 2


def goes_on(run, whole, demo_path) -> None:
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--resume", run) as ranks:
        both(ranks, 0)
    assert same_runs(run, whole)


def test_a_signal_to_the_first_stops_both_and_they_go_on(whole, demo_path, tmp_path):
    run = tmp_path / "run"
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--logger_name", run) as ranks:
        until_step(run, 3)
        os.kill(ranks[0].pid, signal.SIGTERM)
        out = both(ranks, 128 + signal.SIGTERM)
    assert "go on with: python train.py --resume" in out
    assert 3 <= load_checkpoint(str(run), "checkpoint.pt")["state"]["iteration"] < 30
    goes_on(run, whole, demo_path)


def agreeing(words) -> None:
    """The second process gets a signal while the processes agree whether one came."""
    real, calls = processes.agreed, itertools.count(1)

    def agreed(number, device):
        answer = real(number, device)
        if not processes.first() and next(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return answer
    processes.agreed = agreed
    train.main(words)


def between(words) -> None:
    """It gets one when an epoch's last batch is done and they have agreed that none came."""
    real = train.on_device

    def on_device(*args):
        yield from real(*args)
        if not processes.first():
            os.kill(os.getpid(), signal.SIGTERM)
    train.on_device = on_device
    train.main(words)


@pytest.mark.parametrize("moment, steps", [(agreeing, 5), (between, 15)])
def test_a_signal_to_the_second_at_the_worst_moment_stops_both(whole, demo_path, tmp_path, moment, steps):
    run = tmp_path / "run"
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--logger_name", run, work=moment) as ranks:
        both(ranks, 128 + signal.SIGTERM)
    assert load_checkpoint(str(run), "checkpoint.pt")["state"]["iteration"] == steps
    goes_on(run, whole, demo_path)


def test_the_death_of_one_ends_the_other_with_a_sentence(demo_path, tmp_path, capsys):
    """And what it left goes on in one process, which says so."""
    run = tmp_path / "run"
    with two("--data_path", demo_path, "--num_epochs", 50, "--val_step", 3, "--logger_name", run) as ranks:
        until_step(run, 8)
        os.kill(ranks[1].pid, signal.SIGKILL)
        status, _, err = ranks[0].ended(150)
    assert status == 1 and "process 0 of 2 cannot reach the others, of which one has ended" in err
    assert len(err.strip().splitlines()) == 1, err
    before = load_checkpoint(str(run), "checkpoint.pt")["state"]["iteration"]
    assert before >= 3
    capsys.readouterr()
    words = ["--resume", str(run), "--data_path", demo_path, "--num_epochs", str(before // 15 + 1)]
    assert train.train(train.parse_args(words)) == 0
    assert "note: processes so far 2, now 1: sums over a batch" in capsys.readouterr().out


def test_torchrun_itself(demo_path, tmp_path):
    with started("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, "train.py", *STEPS,
                 "--data_path", demo_path, "--logger_name", tmp_path / "run") as process:
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0 and "done: best dev rsum" in out, err


def test_a_wrong_option_is_told_once(tmp_path):
    """By the first process; torchrun ends the other while it waits."""
    with two("--logger_name", tmp_path / "run", "--sim", "cite") as ranks:
        status, _, err = ranks[0].ended()
        assert status and err.count("train.py: --sim cite") == 1 and ranks[1].process.exitcode is None
    assert not os.path.exists(tmp_path / "run")


def waiting() -> None:
    processes.PATIENCE = 0.5
    with processes.joined(torch.device("cpu")), cli.Stop(later=True):
        if processes.first():
            print("waits", flush=True)
            processes.wait()
        time.sleep(60)


def test_a_signal_ends_one_that_waits_for_the_others():
    """Who waits for another runs no Python, and so no handler of signals."""
    with processes_of(2, waiting) as (first, _):
        while not first.files[0].read():
            time.sleep(0.1)
        time.sleep(0.5)
        os.kill(first.pid, signal.SIGTERM)
        status, _, err = first.ended(30)
    assert status == 128 + signal.SIGTERM
    assert "process 0 of 2 was stopped by signal 15 while it waited for the others" in err
