"""Stops at any instant: kills between changes of files, signals to a command and its worker processes."""

import contextlib
import multiprocessing
import multiprocessing.synchronize
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import resource_sharer

import pytest

import data
import evaluate
import features.images
import images
import train
import utils
from tests.helpers import (
    ROOT,
    SMALL,
    STEPS,
    Command,
    act_at,
    fit,
    in_a_process,
    refused,
    resume,
    same_runs,
)

WORDS = [
    *STEPS,
    "--embed_size",
    8,
    "--word_dim",
    8,
    "--num_epochs",
    2,
    "--sim",
    "wasserstein",
    "--val_step",
    5,
    "--batch_size",
    40,
    "--log_step",
    3,
    "--lr_update",
    1,
    "--vse_mean_warmup_epochs",
    1,
    "--workers",
    2,
]


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
    for where, call in (
        ("os.replace", 1),
        ("os.replace", 2),
        ("os.replace", 5),
        ("os.replace", 5),
        ("train.Training.record", 3),
        ("os.replace", 2),
        ("os.replace", 3),
        ("os.fsync", 4),
    ):
        # without a checkpoint it never took a step, and the same command begins anew
        if (run / "checkpoint.pt").exists():
            words = ["--resume", run]
        else:
            words = [*WORDS, "--data_path", demo_path, "--logger_name", run]
        assert in_a_process(killed_at, where, call, words)[0] == -signal.SIGKILL, (where, call)
    assert resume(run) == 0 and same_runs(run, whole) and not left_over(run)


# ---- one owner of a run folder


def waiting_training(where: str, call: int, words) -> None:
    """Train, and wait without end before the call-th call of `where`."""

    def wait() -> None:
        print("waiting", flush=True)
        time.sleep(10_000)

    act_at(where, call, wait)
    train.main(list(map(str, words)))


def test_a_folder_belongs_to_its_training_until_that_ends_or_is_killed(
    tmp_path, demo_path, whole, capsys
):
    run = tmp_path / "run"
    new = [*WORDS, "--data_path", demo_path, "--logger_name", run]
    with Command(waiting_training, "train.Training.validate", 2, new) as training:
        training.said("waiting")
        message = (
            rf"run is in use by a training that still runs \(process {training.pid} on .*, epoch 1/2 step 5/6\); "
            "wait until it ends, or stop it, before you resume or replace the run"
        )
        for words in (
            ["--resume", run],
            ["--resume", run / "checkpoint.pt"],
            new,
            [*new, "--overwrite"],
        ):
            refused(capsys, train.main, words, message)
        assert not left_over(run)
        training.process.kill()
        training.process.join()
    assert resume(run) == 0  # at once
    assert same_runs(run, whole) and not (run / ".training").exists()


def test_of_two_trainings_that_found_no_run_the_second_to_open_the_folder_is_refused(
    tmp_path, demo_path, whole, monkeypatch, capsys
):
    run = tmp_path / "run"
    words = [*WORDS, "--data_path", demo_path, "--logger_name", run]
    open_folder = train.Training.open_folder

    def open_later(self) -> None:
        assert in_a_process(train.main, list(map(str, words)))[0] == 0
        open_folder(self)

    monkeypatch.setattr(train.Training, "open_folder", open_later)
    refused(capsys, train.main, words, "run already holds a run; continue with --resume")
    assert same_runs(run, whole)


def delete_run(run, new):
    shutil.rmtree(run)


def rename_run_and_make_another(run, new):
    os.rename(run, new)
    os.mkdir(run)


@pytest.mark.parametrize("change", [os.rename, delete_run, rename_run_and_make_another])
def test_a_folder_that_is_renamed_or_deleted_ends_the_training_with_a_sentence(
    tmp_path, demo_path, whole, monkeypatch, capsys, change
):
    run = tmp_path / "run"
    new = tmp_path / "new"
    validate = train.Training.validate

    def validate_later(self) -> None:
        if self.state["iteration"] == 10:
            change(run, new)
        validate(self)

    monkeypatch.setattr(train.Training, "validate", validate_later)
    words = [*WORDS, "--data_path", demo_path, "--logger_name", run]
    message = "run was renamed or deleted during the training, so nothing more is written"
    refused(capsys, train.main, words, message)
    assert not run.exists() or os.listdir(run) == []
    if new.exists():
        monkeypatch.setattr(train.Training, "validate", validate)
        assert resume(new) == 0 and same_runs(new, whole)


def test_a_run_is_not_replaced_by_one_that_starts_from_it(tmp_path, whole, demo_path, capsys):
    run = shutil.copytree(whole, tmp_path / "run")
    for source in (run, run / "checkpoint.pt", run / "model_best.pt"):
        refused(
            capsys,
            train.main,
            [
                *WORDS,
                "--data_path",
                demo_path,
                "--init_from",
                source,
                "--logger_name",
                run,
                "--overwrite",
            ],
            r"(checkpoint|model_best)\.pt is an input, and --overwrite would remove it; name another folder with",
        )
    assert same_runs(run, whole)


# ---- signals to a group


def test_a_reader_that_has_seen_enough_is_no_fault():
    """A pipe into `head` closes early."""
    code = "import utils; utils.run('x', lambda: print('a'))"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ended:
        ended.stdout.close()
        assert (ended.stderr.read(), ended.wait()) == (b"", 128 + signal.SIGPIPE)


def test_whoever_reads_nothing_before_the_work_begins_ends_it_without_a_word():
    code = "import utils; utils.start('loading torch')"
    done = subprocess.run(
        f'({sys.executable} -u -c "{code}"; echo $? >&2) | true',
        shell=True,
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    # 0: all was said before the reader ended
    assert done.stderr in (f"{128 + signal.SIGPIPE}\n", "0\n")


def write_to_nobody(main, words) -> None:
    """Call a command whose stdout is a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    sys.stdout.close()
    os.dup2(writer, 1)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    main(words)


@pytest.mark.parametrize(
    "main, words", [(data.vocabulary_main, ["--help"]), (train.main, ["--methods"])]
)
def test_whoever_reads_nothing_of_a_command_ends_it_without_a_word(main, words):
    status, _, said = in_a_process(write_to_nobody, main, words)
    assert (status, said) == (128 + signal.SIGPIPE, "")


def train_without_a_terminal(words) -> None:
    """Train with closed outputs, for which Python has no streams."""
    os.closerange(1, 3)
    sys.stdout = None
    sys.stderr = None
    train.main(list(map(str, words)))


def test_a_closed_terminal_does_not_end_a_command(tmp_path, demo_path):
    code = "import utils; utils.start('loading torch'); utils.run('x', lambda: print('a'))"
    assert subprocess.call(f'{sys.executable} -c "{code}" >&- 2>&-', shell=True, cwd=ROOT) == 0

    words = [*SMALL, "--data_path", demo_path, "--logger_name", tmp_path / "run"]
    status, *_ = in_a_process(train_without_a_terminal, words)
    assert status == 0 and "\ndone: dev rsum" in (tmp_path / "run" / "log.txt").read_text()


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
    images.LARGE_FILE_BYTES = 0
    act_at(where, call, lambda: os.killpg(0, number))
    main(list(map(str, words)))


@pytest.mark.slow
def test_a_signal_to_the_group_saves_a_training_exactly(tmp_path, demo_path, whole):
    """In a step, in a validation, while a checkpoint is saved."""
    run = tmp_path / "run"
    for where, call, number in (
        ("train.Training.learn", 3, signal.SIGTERM),
        ("metrics.score_matrix", 1, signal.SIGINT),
        ("torch.save", 2, signal.SIGTERM),
    ):
        if run.exists():
            words = ["--resume", run]
        else:
            words = [*WORDS, "--data_path", demo_path, "--logger_name", run]
        status, out, err = signalled(train.main, where, call, number, words)
        assert status == 128 + number and not err
        assert " train.py --resume" in out.strip().splitlines()[-1]
        assert not left_over(run)
    assert resume(run) == 0 and same_runs(run, whole)


def lose_a_worker(main, where: str, call: int, words) -> None:
    """Run a command, one of whose worker processes the system ends before the call-th call of `where`."""
    images.LARGE_FILE_BYTES = 0

    def kill_worker() -> None:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    act_at(where, call, kill_worker)
    main(list(map(str, words)))


def test_a_lost_worker_process_is_a_sentence(tmp_path, demo_path, whole):
    """In a training, which goes on with --resume, in an evaluation, and when features of photos are computed."""
    run = tmp_path / "run"
    photos = os.path.join(demo_path, "demo", "images")
    data = ["--data_path", demo_path]
    for main, where, call, words in (
        (train.main, "train.Training.learn", 9, [*WORDS, *data, "--logger_name", run]),
        (
            evaluate.main,
            "model.VSE.embed_images",
            1,
            ["--checkpoint", whole, "--workers", 2, "--batch_size", 2],
        ),
        (
            features.images.main,
            "features.networks.Network.__call__",
            1,
            [
                "--data_path",
                tmp_path,
                "--photos",
                photos,
                "--cnn_type",
                "demo",
                "--output_name",
                "f",
                "--workers",
                2,
            ],
        ),
    ):
        status, _, said = in_a_process(lose_a_worker, main, where, call, words)
        assert status == 1 and said.count("\n") == 1, said
        assert re.search(
            "a process that reads data was ended by the system, most often because memory ran out .*DataL"
            ".*; run it again with fewer --workers or --workers 0 .train.py: with --resume.",
            said,
        )
    assert resume(run) == 0 and same_runs(run, whole)


def lose_a_worker_at_the_end(words) -> None:
    """Evaluate; as the worker processes are to end, the signal of a lost one comes in between."""
    images.LARGE_FILE_BYTES = 0

    def hear_of_a_lost_worker() -> None:
        raise RuntimeError("DataLoader worker (pid(s) 1) exited unexpectedly")

    loader = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
    act_at(f"{loader}._mark_worker_as_unavailable", 1, hear_of_a_lost_worker)
    evaluate.main(list(map(str, words)))


def test_worker_processes_end_where_one_is_lost_as_they_end(whole):
    words = ["--checkpoint", whole, "--workers", 2, "--batch_size", 2]
    status, _, said = in_a_process(lose_a_worker_at_the_end, words)
    assert status == 1 and "a process that reads data was ended by the system" in said


def lose_a_worker_with_a_lock(words) -> None:
    """Evaluate; a worker process is killed as it holds the lock of the event that tells workers to end."""

    def wait_for_lock(event) -> None:
        while True:
            # the signal of the lost worker may come as late as this
            with contextlib.suppress(RuntimeError):
                time.sleep(10_000)

    multiprocessing.synchronize.Event.set = wait_for_lock
    lose_a_worker(evaluate.main, "model.VSE.embed_images", 1, words)


def test_a_lost_worker_that_held_a_lock_keeps_nobody_waiting(whole):
    words = ["--checkpoint", whole, "--workers", 2, "--batch_size", 2]
    status, _, said = in_a_process(lose_a_worker_with_a_lock, words)
    assert status == 1 and "a process that reads data was ended by the system" in said


def hand_over_to_nobody() -> None:
    """Be a worker process whose parent ends as it asks for a file."""
    data._prepare_worker(0)
    with open(os.devnull) as file:
        shared = resource_sharer.DupFd(file.fileno())
        with socket.socket(socket.AF_UNIX) as parent:
            parent.connect(shared._id[0])
        os.close(shared.detach())  # which is answered after the parent that ended
    try:
        int("x")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)


def test_a_worker_says_nothing_of_a_parent_that_ended_but_shows_other_errors():
    status, _, shown = in_a_process(hand_over_to_nobody)
    assert status == 0 and shown.count("Traceback") == 1 and "ValueError" in shown, shown


def test_a_signal_to_the_group_before_anything_is_written_leaves_nothing(tmp_path, whole):
    words = [
        "--checkpoint",
        whole,
        "--output",
        tmp_path / "r.json",
        "--export",
        tmp_path / "e.npz",
        "--workers",
        2,
    ]
    status, _, err = signalled(evaluate.main, "model.VSE.embed_images", 1, signal.SIGINT, words)
    assert (
        status == 128 + signal.SIGINT
        and err.count("\n") == 1
        and "no file was left half written" in err
    )
    assert os.listdir(tmp_path) == []


def write_often(path: str, letter: str) -> None:
    for _ in range(15):
        utils.save_lines(path, [letter * 100_000])


def test_two_processes_that_write_one_file_leave_one_whole(tmp_path):
    path = tmp_path / "index"
    dead = tmp_path / ".index.9999999.part"  # above the largest process number
    dead.touch()
    with Command(write_often, str(path), "a") as one, Command(write_often, str(path), "b") as other:
        assert one.ended()[0] == other.ended()[0] == 0
    assert path.read_text() in ("a" * 100_000 + "\n", "b" * 100_000 + "\n")
    assert os.listdir(tmp_path) == ["index"]
