"""Trainings in two processes as users start them: what they write, how a signal or the death of one ends both, how
they go on."""
import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from checkpoints import load_checkpoint
from tests.helpers import ROOT, STEPS, free_port, log_of, same_runs


@contextlib.contextmanager
def two(*words, train=("train.py",)):
    """train.py with these words in two processes, as torchrun starts them, of which each can be signalled alone.
    train: what Python runs as train.py."""
    port, ranks = free_port(), []
    try:
        for rank in range(2):
            env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks.append(subprocess.Popen([sys.executable, *train, *STEPS, *map(str, words)], cwd=ROOT, text=True,
                                          env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def until_step(folder, step: int, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            if any(line["iteration"] >= step for line in log_of(folder)):
                return
        time.sleep(0.02)
    pytest.fail(f"no step {step} in {seconds} s")


@pytest.fixture(scope="module")
def whole(demo_path, tmp_path_factory):
    """A run of two processes that nothing stopped."""
    folder = tmp_path_factory.mktemp("two") / "run"
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--logger_name", folder) as ranks:
        said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[1] == ("", "")                              # the first one speaks
    assert "2 processes that share each batch of 16" in said[0][0] and "done: best dev rsum" in said[0][0]
    return folder


def test_two_processes_write_what_one_does(whole, demo_path, tmp_path):
    """Epochs, validations and losses as of one process; and no more files."""
    done = subprocess.run([sys.executable, "train.py", *STEPS, "--data_path", demo_path, "--num_epochs", "2",
                           "--val_step", "7", "--logger_name", tmp_path / "one"], cwd=ROOT, check=True,
                          capture_output=True, text=True)
    assert "processes that share" not in done.stdout
    one, many = log_of(tmp_path / "one"), log_of(whole)
    assert [line.keys() for line in one] == [line.keys() for line in many]
    for a, b in zip(one, many):
        for key in a:
            assert b[key] == (pytest.approx(a[key], rel=1e-3, abs=1e-3) if isinstance(a[key], float) else a[key])
    kinds = [sorted(name.split(".")[0] for name in os.listdir(folder)) for folder in (tmp_path / "one", whole)]
    assert kinds[0] == kinds[1] and load_checkpoint(str(whole), "checkpoint.pt")["processes"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_stops_both_and_they_go_on(whole, demo_path, tmp_path, rank):
    run = tmp_path / "run"
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--logger_name", run) as ranks:
        until_step(run, 3)
        ranks[rank].send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [128 + signal.SIGTERM] * 2, said
    assert "go on with: python train.py --resume" in said[0][0] and said[1][0] == ""
    stopped = load_checkpoint(str(run), "checkpoint.pt")["state"]["iteration"]
    assert 3 <= stopped < 30
    with two("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7, "--resume", run) as ranks:
        said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert same_runs(run, whole)


# train.py, in which the second process gets a signal at the worst moments: while the processes agree whether one came,
# and when an epoch's last batch is done and they have agreed that none came.
AGREEING = """
real, calls = processes.agreed, itertools.count(1)
def agreed(number, device):
    answer = real(number, device)
    if not processes.first() and next(calls) == 5:
        os.kill(os.getpid(), signal.SIGTERM)
    return answer
processes.agreed = agreed
"""
BETWEEN = """
real = train.on_device
def on_device(*args):
    yield from real(*args)
    if not processes.first():
        os.kill(os.getpid(), signal.SIGTERM)
train.on_device = on_device
"""
SIGNALLED = """
import itertools, os, signal, sys, train
from devices import processes
{}
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("moment, steps", [(AGREEING, 5), (BETWEEN, 15)], ids=["agreeing", "between"])
def test_a_signal_at_the_worst_moment_stops_both(whole, demo_path, tmp_path, moment, steps):
    run, words = tmp_path / "run", ("--data_path", demo_path, "--num_epochs", 2, "--val_step", 7)
    with two(*words, "--logger_name", run, train=("-c", SIGNALLED.format(moment))) as ranks:
        said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [128 + signal.SIGTERM] * 2, said
    assert load_checkpoint(str(run), "checkpoint.pt")["state"]["iteration"] == steps
    with two(*words, "--resume", run) as ranks:
        said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert same_runs(run, whole)


def test_the_death_of_one_ends_the_other_with_a_sentence(demo_path, tmp_path):
    """And what it left goes on in one process, which says so."""
    run = tmp_path / "run"
    with two("--data_path", demo_path, "--num_epochs", 50, "--val_step", 3, "--logger_name", run) as ranks:
        until_step(run, 8)
        ranks[1].kill()
        since = time.monotonic()
        said = ranks[0].communicate(timeout=200)
    assert time.monotonic() - since < 150 and ranks[0].returncode == 1
    assert "process 0 of 2 cannot reach the others, of which one has ended" in said[1] and "Traceback" not in said[1]
    assert len(said[1].strip().splitlines()) == 1, said[1]
    before = load_checkpoint(str(run), "checkpoint.pt")["state"]["iteration"]
    assert before >= 3
    done = subprocess.run([sys.executable, "train.py", "--resume", run, "--data_path", demo_path, "--num_epochs",
                           str(before // 15 + 1)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "note: the run went on so far in 2 processes and goes on in 1" in done.stdout


def test_torchrun_itself_and_a_wrong_option_told_once(demo_path, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py",
               *STEPS, "--data_path", demo_path, "--logger_name", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0 and "done: best dev rsum" in done.stdout, done.stderr
    done = subprocess.run([*command, "--sim", "cite"], cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=200)
    assert done.returncode and done.stderr.count("train.py: --sim cite") == 1
    assert not os.path.exists(tmp_path / "cite")


WAITING = """
import sys, time, torch
import cli
from devices import processes
processes.PATIENCE = 0.5
with processes.joined(torch.device("cpu")), cli.Stop(later=True):
    if processes.first():
        print("waits", flush=True)
        processes.wait()
    time.sleep(60)
"""


def test_a_signal_ends_one_that_waits_for_the_others(tmp_path):
    """Who waits for another runs no Python, and so no handler of signals."""
    port, ranks = free_port(), []
    try:
        for rank in range(2):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
            ranks.append(subprocess.Popen([sys.executable, "-c", WAITING], cwd=ROOT, text=True, env=env,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        assert ranks[0].stdout.readline() == "waits\n"
        time.sleep(0.5)
        ranks[0].send_signal(signal.SIGTERM)
        said = ranks[0].communicate(timeout=30)
        assert ranks[0].returncode == 128 + signal.SIGTERM
        assert "process 0 of 2 was stopped by signal 15 while it waited for the others" in said[1]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
