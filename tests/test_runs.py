"""Run folders: nothing of the user's is replaced, files of options vary a run, checkpoint files are gone on from."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

import train
from checkpoint import load_checkpoint
from tests.helpers import ROOT, fit, log_of, options, refused, resume, same_weights
from train import parse_args
from utils import atomic, save_json
from vocab import Vocabulary


@pytest.fixture(scope="module")
def run(tmp_path_factory, demo_path):
    """A Gaussian run of two epochs."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(
        "--data_path", demo_path, "--sim", "wasserstein", "--num_epochs", 2, "--logger_name", folder
    )
    return folder


# ---- what stays


def test_overwriting_a_run_keeps_what_train_did_not_write(run, demo_path, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    mine = {
        "results_paper.csv",
        "resultsfolder.tex",
        "notes.txt",
        "log_old.txt",
        "results2.json",
        "uncertain.png",
        "paper_retrieval.png",
    }
    gone = {
        "results.json",
        "results_kl.json",
        "uncertain_images.png",
        "retrieval.png",
    }  # of the model that is gone
    for name in mine | gone:
        (folder / name).write_text("mine")
    fit("--data_path", demo_path, "--logger_name", folder, "--overwrite")
    assert {name for name in mine | gone if (folder / name).exists()} == mine
    assert load_checkpoint(str(folder))["options"]["sim"] == "cosine"


def test_a_default_folder_has_the_name_of_data_method_and_seed(tmp_path, monkeypatch, demo_path):
    assert parse_args(["--seed", "7", "--sim", "kl"]).logger_name == "runs/coco_precomp_kl_seed7"
    monkeypatch.chdir(tmp_path)
    for words in (["--method", "vse++"], ["--seed", "1"]):
        fit("--data_path", demo_path, *words)
    assert sorted(os.listdir("runs")) == ["demo_precomp_cosine_seed1", "demo_precomp_vse++_seed0"]


def test_a_second_make_demo_goes_on_and_ends_with_the_pictures(tmp_path):
    def commands():
        done = subprocess.run(
            ["make", "-n", "-C", ROOT, "demo", f"RUN={tmp_path}/run"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if ".py" in line]

    start, *rest = commands()
    assert (
        f"train.py --config demo.yaml --logger_name {tmp_path}/run " in start
        and "--overwrite" not in start
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.pt").touch()
    again, *same = commands()
    assert (
        f"train.py --resume {tmp_path}/run " in again and same == rest and "--retrieval" in rest[0]
    )


def test_a_missing_torch_is_a_sentence_and_the_first_line_comes_before_it(tmp_path):
    """In isolated mode without site-packages there is no torch."""
    script = os.path.join(ROOT, "train.py")
    done = subprocess.run(
        [sys.executable, "-S", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(
        r"torch is not installed for .*; use the interpreter of the environment.*\n", done.stderr
    )
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')")
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert (done.stdout, done.stderr.strip()) == ("loading torch\n", "torch is imported")


def test_a_configuration_varies_without_naming_or_replacing_a_run(run, tmp_path, demo_path):
    """The options that were asked for, from which others follow; neither the folder nor --overwrite."""
    folder = tmp_path / "first"
    fit(
        "--data_path",
        demo_path,
        "--logger_name",
        folder,
        "--overwrite",
        "--config",
        run / "config.yaml",
    )
    again = parse_args(["--config", str(folder / "config.yaml")])
    assert (again.overwrite, again.logger_name) == (
        False,
        os.path.join("runs", "demo_precomp_wasserstein_seed0"),
    )
    assert again.embed_size == 16 and again.image_head == "ellipsoidal"
    point = parse_args(["--config", str(folder / "config.yaml"), "--sim", "cosine"])
    assert (point.image_head, point.max_violation) == ("point", False)
    stored = yaml.safe_load((run / "config.yaml").read_text())
    del stored["asked"]  # as in older runs: the resolved options alone
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(stored))
    assert parse_args(["--config", str(tmp_path / "c.yaml")]).image_head == "ellipsoidal"


# ---- going on


def test_the_copy_of_a_checkpoint_goes_on_in_a_folder_of_its_own(run, small_run, tmp_path):
    """Of a first epoch; the run that it was copied from is further."""
    branch = tmp_path / "branch"
    branch.mkdir()
    shutil.copy(small_run("--sim", "wasserstein") / "checkpoint.pt", branch)
    assert resume(branch / "checkpoint.pt", "--num_epochs", 2) == 0
    assert same_weights(run, branch)
    assert log_of(branch) == [line for line in log_of(run) if line["iteration"] > 8]
    assert load_checkpoint(str(branch))["state"]["best_rsum"] > 0


def test_a_run_goes_on_beside_new_features_that_it_does_not_read(run, tmp_path, demo_path, capsys):
    shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / "demo_precomp")
    made = tmp_path / "demo_precomp" / "features.json"
    folder = shutil.copytree(run, tmp_path / "run")
    made.write_text(json.dumps(json.loads(made.read_text()) | {"tfidf": "new"}))
    assert resume(folder, "--data_path", tmp_path) == 0
    made.write_text(json.dumps({"ims": "another"}))
    refused(
        capsys, train.main, ["--data_path", tmp_path, "--resume", folder], "were made by 'another'"
    )


def test_a_lost_configuration_and_a_log_that_was_cut_off_do_not_lose_the_run(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    os.remove(folder / "config.yaml")
    whole = (folder / "log.jsonl").read_text()
    (folder / "log.jsonl").write_text(
        whole + '{"iteration": 99, "kind": "step"}\n{"iteration": 99, "kind": "st'
    )
    assert resume(folder, "--num_epochs", 3) == 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["options"]["sim"] == "wasserstein"
    text = (folder / "log.jsonl").read_text()
    assert (
        text.startswith(whole)
        and '"iteration": 99' not in text
        and all(map(json.loads, text.splitlines()))
    )


@pytest.mark.parametrize("content", ["", "~", "- a", "just a text", "5"])
def test_a_configuration_of_another_kind_is_written_anew(run, tmp_path, content):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "config.yaml").write_text(content)
    assert resume(folder, "--num_epochs", 3) == 0
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    assert stored["options"]["num_epochs"] == 3 and {"command", "versions", "data", "asked"} <= set(
        stored
    )


def test_lines_of_a_log_that_train_did_not_write_are_left_out(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    whole = (folder / "log.jsonl").read_text()
    odd = [
        "5",
        "null",
        "[]",
        "{}",
        '{"iteration": "x"}',
        '{"iteration": null}',
        '{"iteration": true}',
        '{"iteration": NaN}',
        '{"iteration": [1]}',
        "[" * 100_000,
        "",
    ]
    (folder / "log.jsonl").write_text(whole + "".join(f"{line}\n" for line in odd))
    assert resume(folder, "--num_epochs", 2) == 0
    assert (folder / "log.jsonl").read_text() == whole


@pytest.mark.parametrize("name", ["log.txt", "log.jsonl"])
def test_a_log_that_is_a_pipe_is_refused_at_once(run, tmp_path, capsys, name):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(
        capsys,
        train.main,
        ["--resume", folder, "--num_epochs", 3],
        f"{name} cannot be written .it is not a plain",
    )


def can_import_logger() -> bool:
    try:
        import tensorboard_logger  # noqa: F401
    except Exception:  # TypeError of protobuf
        return False
    return True


@pytest.mark.parametrize("part", ["numbers", "tensorboard_logger", "tensorboard"])
def test_a_log_on_a_full_disk_ends_in_a_sentence_that_names_file_and_disk(
    run, tmp_path, monkeypatch, capsys, part
):
    """And nothing is said of the files that are closed at the end."""
    if part == "tensorboard_logger" and not can_import_logger():
        pytest.skip("tensorboard-logger needs protobuf 3.20")
    if part == "tensorboard":
        monkeypatch.setitem(sys.modules, "tensorboard_logger", None)
    folder = shutil.copytree(run, tmp_path / "run")
    unraised = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    open_folder = train.Training.open_folder

    def open_full(self) -> None:
        open_folder(self)
        if part == "numbers":
            self.numbers = open("/dev/full", "w")
        elif part == "tensorboard":
            from tensorboard.summary.writer.record_writer import RecordWriter

            self.events.writer.records = RecordWriter(open("/dev/full", "wb"))
        else:
            self.events.writer = open("/dev/full", "wb")
            self.events.add_scalar.__self__._writer = self.events.writer

    monkeypatch.setattr(train.Training, "open_folder", open_full)
    message = (
        "(full|tfevents) could not be saved, since the disk at /.* has no more room for it .*; "
        "make room or choose"
    )
    refused(capsys, train.main, ["--resume", folder, "--num_epochs", 3], message)
    monkeypatch.undo()
    gc.collect()
    assert not unraised


def test_a_run_that_finds_nothing_says_that_there_is_no_model(
    tmp_path, demo_path, monkeypatch, capsys
):
    def rank_nothing(self):
        return {"rsum": 0.0, "r1": 0.0, "hbr": 12.0}, "nothing"

    monkeypatch.setattr(train.Training, "rank_dev", rank_nothing)
    run = tmp_path / "run"

    assert train.train(options("--data_path", demo_path, "--logger_name", run)) == 1

    assert "holds no model_best.pt: dev rsum was 0 after every epoch" in capsys.readouterr().out
    assert not (run / "model_best.pt").exists() and (run / "checkpoint.pt").exists()


def test_the_folder_describes_the_run_and_its_log_has_vsepps_names(run):
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["options"]["sim"] == "wasserstein" and stored["options"]["max_violation"] is True
    of_train = stored["data"]["train"]
    assert of_train["images"] == 48 and len(of_train["captions_sha256"]) == 64
    assert {"command", "git_commit", "versions"} <= set(stored)
    assert Vocabulary.load(str(run / "vocab.json")).words == load_checkpoint(str(run))["vocabulary"]
    lines = log_of(run)
    steps = [line for line in lines if line["kind"] == "step"]
    validations = [line for line in lines if line["kind"] == "validation"]
    assert {line["epoch"] for line in lines} == {1, 2}
    assert {"epoch", "step", "Eit", "lr", "Le"} <= set(steps[0])
    names = ("r1", "r5", "r10", "medr", "meanr")
    of_both_directions = {*names, *(f"{name}i" for name in names)}
    assert of_both_directions < {*validations[0]}
    assert any(name.startswith("events.out.tfevents") for name in os.listdir(run))
    said = (run / "log.txt").read_text()
    assert "epoch 1/2 done: dev rsum" in said
    assert "epoch 2/2 step 8/8: loss" in said and " min left" in said
    assert "epoch 0" not in said and "rsum by chance 239.2" in said


def test_what_breaks_while_writing_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic(str(path)) as f:
        f.write("old")
    for error in (KeyboardInterrupt, OSError, ValueError):
        with pytest.raises(error), atomic(str(path)) as f:
            f.write("half of the ne")
            raise error
        assert path.read_text() == "old" and os.listdir(tmp_path / "new") == ["a.txt"]
    os.symlink(path, tmp_path / "link")
    save_json({"a": 1}, str(tmp_path / "link"))
    assert os.path.islink(tmp_path / "link") and json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path / "new") == ["a.txt"]


# ---- tensorboard


def read_events(folder) -> dict[str, list[tuple[int, float]]]:
    """{tag: [(step, value)]} of the events in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.fixture
def without_logger(tmp_path, monkeypatch):
    """tensorboard-logger fails as it does beside protobuf 4 to 6."""
    (tmp_path / "new" / "tensorboard_logger").mkdir(parents=True)
    (tmp_path / "new" / "tensorboard_logger" / "__init__.py").write_text(
        "raise TypeError('Descriptors cannot be created directly.')"
    )
    monkeypatch.syspath_prepend(tmp_path / "new")
    monkeypatch.delitem(sys.modules, "tensorboard_logger", raising=False)


def test_tensorboard_takes_the_place_of_tensorboard_logger(
    run, tmp_path, demo_path, without_logger
):
    """The same tags and steps, and the same numbers but for clocks."""
    folder = tmp_path / "run"
    fit(
        "--data_path", demo_path, "--sim", "wasserstein", "--num_epochs", 2, "--logger_name", folder
    )
    expected = read_events(run)
    given = read_events(folder)
    clocks = {"batch_time", "data_time"}
    assert expected.keys() == given.keys() and {"Le", "lr", "rsum", "r1i", *clocks} <= given.keys()
    for tag in expected:
        steps = [step for step, _ in expected[tag]]
        assert steps == [step for step, _ in given[tag]] and steps[-1] == 16
        assert tag in clocks or expected[tag] == given[tag]


def test_events_of_a_renamed_run_stay_in_it(tmp_path, without_logger):
    """Each is written at once, and nothing to a new folder of the old name."""
    folder = tmp_path / "run"
    folder.mkdir()
    events = train.Events(str(folder))
    events.add("Le", 0.5, 1)
    folder.rename(tmp_path / "renamed")
    folder.mkdir()
    events.add("Le", 0.25, 2)

    assert read_events(tmp_path / "renamed") == {"Le": [(1, 0.5), (2, 0.25)]}
    events.close()
    assert os.listdir(folder) == []


def test_a_training_without_tensorboard_says_so_once(
    tmp_path, demo_path, without_logger, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    fit("--data_path", demo_path, "--logger_name", tmp_path / "run")
    note = "note: no events for tensorboard are written, since neither tensorboard-logger nor tensorboard can be imp"
    assert (
        capsys.readouterr().out.count(note) == 1
        and note in (tmp_path / "run" / "log.txt").read_text()
    )
    assert not any(name.startswith("events") for name in os.listdir(tmp_path / "run"))
    assert len(log_of(tmp_path / "run")) > 0
