"""benchmark.py runs whole on small made-up data, which look like COCO's; hours and lines
follow from what it measured."""

import csv
import io
import json
import os
import re

import numpy as np
import pytest
from PIL import Image

import benchmark
import train
from cost import hours, made_up, measure, systems
from data import read_split
from evaluation import annotations
from evaluation.embeddings import list_items
from methods import METHODS
from tests.helpers import ROOT, in_a_process, refused
from vocab import Vocabulary, tokenize

SMALL = (
    "--embed_size 16 --word_dim 8 --batch_size 32 --txt_layers 16 --img_layers 16 --negatives 20"
)
NAMES = ["VSE++ on features", "SCAN t-i", "DMSM"]


def measure_here(words: list[str], log_path: str, seconds) -> str:
    """benchmark.run_measurement in a process that has loaded torch."""
    status, out, err = in_a_process(measure.main, words)
    assert "{" not in err, err
    if not status:
        return ""
    last_line = (err or out).strip().splitlines()[-1]
    return f"status {status}: {last_line}"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The content of benchmark.json, and what was printed."""
    folder = tmp_path_factory.mktemp("benchmark")
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "run_measurement", measure_here)
        patch.setattr("sys.stdout", out)
        patch.setattr(made_up, "DISTINCT_WORDS", 300)
        size = ["--scale", "0.001", "--seconds", "0.02", "--data_path", str(folder / "data")]

        for name in NAMES:
            more = SMALL
            if name != "DMSM":
                more = SMALL.split(" --txt_layers")[0]
            output = str(folder / f"{name}.json")
            words = ["--only", name, "--device", "cpu", "--more", more, "--output", output]
            benchmark.main([*size, *words])

    contents = [json.loads((folder / f"{name}.json").read_text()) for name in NAMES]
    rows = sum((content["rows"] for content in contents), [])
    return {**contents[0], "rows": rows}, out.getvalue(), folder


def find_system(name):
    return next(system for system in systems.SYSTEMS if system.name == name)


def test_each_system_is_measured_by_train_and_evaluate(stored):
    content, printed, _ = stored
    assert [row["system"] for row in content["rows"]] == NAMES
    assert content["scale"] == 0.001

    for row in content["rows"]:
        assert not {"train_failed", "evaluate_failed"} & {*row}, row
        assert row["steps"] >= measure.MIN_CPU_STEPS
        assert row["pairs_per_s"] > 0
        assert row["validation_images"] == 40
        assert row["first_step_s"] > 0
        assert row["first_step_cpu_s"] > 0
        assert row["evaluate_s"] > 0
        assert 0 < row["train_memory_without_files_gib"] <= row["train_memory_gib"] < 8
        assert 10 < row["words"] <= 400
        assert row["pairs"] in (565, 415, 200)
        epoch_hours = hours.epoch_hours(find_system(row["system"]), row)
        assert row["epoch_hours"] == pytest.approx(epoch_hours, rel=0.05)
        assert f"{row['system']}: evaluate.py" in printed

    assert content["machine"]["device"] == "CPU"
    assert re.fullmatch("[0-9a-f]{10}", content["machine"]["commit"])


def test_the_lines_of_a_table_have_commands_and_numbers(stored, capsys):
    content, _, folder = stored
    capsys.readouterr()
    benchmark.main(["--csv", str(folder / "DMSM.json")])
    (line,) = csv.reader(io.StringIO(capsys.readouterr().out))

    row = content["rows"][-1]
    command = f"python {systems.DMSM_TRAINING} {SMALL}"
    assert json.loads((folder / "DMSM.json").read_text())["more"] == SMALL
    assert line[:3] == ["cost", command, content["machine"]["commit"]]
    assert line[4] == "DMSM"
    assert float(line[6].replace(",", "")) == round(row["pairs_per_s"])
    with open(os.path.join(ROOT, "results", "cost.csv"), encoding="utf-8", newline="") as file:
        assert len(next(csv.reader(file))) == len(line)


def test_data_of_another_size_or_of_others_stay(stored, tmp_path, capsys):
    _, _, folder = stored
    (tmp_path / "photo.jpg").touch()

    for words, message in (
        (["--scale", "0.5", "--data_path", folder / "data"], "'scale': 0.001.*delete it, or"),
        (["--data_path", tmp_path], "holds files that benchmark.py did not write"),
        (
            ["--only", "VSE"],
            "'VSE' is not the name of a system; the names are 'VSE.. on fea",
        ),
        (
            ["--original", "vsepp"],
            "'vsepp' is not NAME=PATH .*one of scan, vsepp, vsrn",
        ),
        (
            ["--original", f"vsepp={tmp_path}/none"],
            "there is no folder|has no paper_tables/par",
        ),
    ):
        refused(capsys, benchmark.main, words, message)


def test_nothing_is_begun_without_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "run_measurement", None)
    benchmark.main(["--minutes", "0.01", "--scale", "0.001", "--output", str(tmp_path / "r.json")])
    assert "no time was left for VSE++ on features, " in capsys.readouterr().out


# ---- the made-up data


def test_photos_and_ratings_are_read_as_cocos(tmp_path, monkeypatch):
    monkeypatch.setattr(made_up, "save_network", lambda path: None)
    monkeypatch.setattr(made_up, "PHOTOS_PER_YEAR", 4)
    monkeypatch.setattr(made_up, "DISTINCT_WORDS", 300)
    made_up.MadeUp(str(tmp_path), scale=0.001).prepare("photos")

    train_split, test = (
        read_split(str(tmp_path), "coco", name, use_restval=True).require_sound()
        for name in ("train", "test")
    )
    assert len(train_split.images) == 113
    assert len(train_split.captions) == 565
    assert len(test.images) == 40

    photo = train_split.images.paths[0]
    assert Image.open(photo).size == (640, 480)
    assert 100_000 < os.path.getsize(photo) < 250_000

    items = list_items(test, "coco")
    images = items.index("image")
    captions = items.index("caption")
    cxc = annotations.read_cxc(str(tmp_path / "cxc"), "test", images, captions, test.caption_image)
    assert len(cxc.ratings["sits"].score) == round(0.008 * made_up.CXC_RATINGS["sits"])


def test_captions_have_the_lengths_and_words_of_cocos(monkeypatch):
    monkeypatch.setattr(made_up, "DISTINCT_WORDS", 8_000)  # the others are 1% of what is said
    rng = np.random.default_rng(0)
    words = made_up.make_words(rng)
    captions = made_up.make_captions(40_000, words, rng)

    lengths = np.array([len(caption.split()) for caption in captions])
    assert lengths.mean() == pytest.approx(10.5, abs=0.1)
    assert lengths.min() >= 5
    assert 40 < lengths.max() <= 50

    vocabulary = Vocabulary.build(map(tokenize, captions))
    assert len(words) == 8_000
    assert 1_500 < len(vocabulary) < 4_500  # 2,715 in 25,000 captions of COCO
    assert len(set(captions)) > 39_000


# ---- hours


def test_the_name_of_a_machine():
    machine = {"device": "CPU", "cores": 2, "cpu": "Intel(R) Core(TM) i7 Processor @ 3.20GHz"}
    idle = {"load": {"train": 2.5}}
    busy = {"load": {"train": 3.5}}

    assert hours.name_machine(machine, [idle, busy]) == "2 cores, Intel Core i7 @ 3.20GHz"
    assert (
        hours.name_machine(machine, [idle, busy, busy]) == "2 cores, Intel Core i7 @ 3.20GHz, busy"
    )
    assert hours.name_machine({**machine, "device": "NVIDIA H100"}, [busy]) == "NVIDIA H100"


def test_hours_of_an_epoch_and_of_a_row():
    vse = find_system("VSE++")
    tuned = find_system("VSE++, fine-tuned")
    row = {"pairs_per_s": 1000, "batch_size": 128, "validation_s": 10, "validation_images": 5000}
    # 566,435 pairs are 4,426 steps: 8 validations within an epoch and one at its end
    assert hours.epoch_hours(vse, row) == pytest.approx((566.435 + 9 * 2) / 3600)

    rows = {
        "VSE++": {"epoch_hours": 0.2, "evaluate_s": 36},
        "VSE++, fine-tuned": {"epoch_hours": 1.0, "evaluate_s": 36},
    }
    assert hours.row_hours(vse, rows) == pytest.approx(30 * 0.2 + 0.01)
    assert hours.row_hours(tuned, rows) == pytest.approx(15 * 1.0 + 0.01 + 30 * 0.2)
    assert hours.row_hours(tuned, {"VSE++, fine-tuned": rows["VSE++, fine-tuned"]}) is None

    dmsm = find_system("DMSM")  # validates on all 20,252 images
    epoch_hours = hours.epoch_hours(dmsm, {**row, "validation_images": 1000})
    assert epoch_hours == pytest.approx((413.915 + 7 * 10 * 20.252) / 3600)


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.name)
def test_commands_are_those_of_the_tables(system, monkeypatch):
    monkeypatch.setattr(train, "load_checkpoint", lambda *_, **__: None)
    options = train.parse_args(system.command.words[1:])
    assert options.method in METHODS
    assert options.data_name.startswith("coco")
    assert system.starts_from in ("", *(other.name for other in systems.SYSTEMS))
