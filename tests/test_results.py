"""Documents show the tables of results/, which are computed from the numbers of runs or name a command and commits."""

import csv
import glob
import importlib
import json
import os
import re
import shlex
from argparse import Namespace

import pytest
import yaml

from options import parse_evaluation, parse_words, resolve, training_parser
from phrases.train import phrases_parser
from results import __main__ as results
from results import runs, tables
from tests.helpers import ROOT, refused
from utils import InputError, read_text

DOCUMENTS = {os.path.relpath(path, ROOT): str(path) for path in results.list_documents()}
ROWS = tables.read_rows()
TABLES = tables.compute_tables(ROWS) | tables.read_csv_tables()

# A table of two rows, the one of points and the other of Gaussians.
MINE = {
    "commands": [
        "python train.py --data_path DATA --data_name mine TRAIN --seed SEED --logger_name RUN",
        "python evaluate.py --checkpoint RUN EVALUATE",
    ],
    "results": "RUN/results.json",
    "images": 1000,
    "columns": {"R@1": ["protocols.full.t2i.r1", 1], "rho": ["uncertainty.captions.rho", 2]},
    "rows": [
        {
            "name": "points",
            "cells": {"model": "points"},
            "TRAIN": "--sim cosine",
            "EVALUATE": "",
            "seeds": [0, 1, 2],
        },
        {
            "name": "mls",
            "cells": {"model": "mls"},
            "TRAIN": "--sim mls",
            "EVALUATE": "--uncertainty",
            "seeds": [0],
        },
    ],
}
# Two tables of the same runs, one of which shows a row in two lines.
CROPS = {
    "mine": {
        "before": ["python -m prepare --output RUNS/manifest.json"],
        "commands": [
            "python train.py --data_name mine TRAIN --seed SEED --logger_name RUN",
            "python -m measure --checkpoint RUN --manifest RUNS/manifest.json",
        ],
        "rows": [
            {
                "name": "mls",
                "cells": {"model": "mls"},
                "TRAIN": "--sim mls",
                "DECIMALS": 1,
                "seeds": [0, 1],
            },
            {
                "name": "points",
                "cells": {"model": "points"},
                "tables": ["choices"],
                "commands": ["python train.py TRAIN --seed SEED --logger_name RUN"],
                "TRAIN": "--sim cosine",
                "seeds": [0],
            },
            {
                "name": "sizes",
                "cells": {"model": "sizes"},
                "tables": ["choices"],
                "commands": ["python -m measure --checkpoint RUNS/points_seed0 --output RUN"],
                "RUN_NAME": "sizes alone",
                "seeds": [],
            },
        ],
    },
    "crops": {
        "runs_of": "mine",
        "results": "RUN/crops.json",
        "images": 3,
        "images_at": "triplets",
        "count": "n",
        "verdicts": {"holds": 1, "opposite": -1, "open": 0},
        "parts": [
            {
                "name": "images",
                "cells": {"side": "images"},
                "SIDE": "images",
            },
            {
                "name": "captions",
                "cells": {"side": "captions"},
                "SIDE": "captions",
                "without": ["control", "share"],
            },
        ],
        "columns": {
            "C - A": {
                "number": "models.RUN_NAME.SIDE.10.mean",
                "verdict": "models.RUN_NAME.SIDE.10.verdict",
                "decimals": "DECIMALS",
                "sign": True,
            },
            "share": {
                "numbers": {
                    "10%": "models.RUN_NAME.SIDE.10.share",
                    "20%": "models.RUN_NAME.SIDE.20.share",
                },
                "range": "means",
                "decimals": 0,
            },
            "control": {
                "numbers": {
                    "10%": "models.RUN_NAME.SIDE.10.control",
                    "20%": "models.RUN_NAME.SIDE.20.control",
                },
                "range": "runs",
                "decimals": 2,
                "sign": True,
            },
        },
    },
    "choices": {
        "runs_of": "mine",
        "results": "RUN/choices.json",
        "images": 3,
        "images_at": "images.choices",
        "parts": [
            {"name": "", "cells": {}, "MODEL": "RUN_NAME"},
            {
                "name": "means",
                "cells": {"model": ", means alone"},
                "MODEL": "RUN_NAME means only",
            },
        ],
        "columns": {
            "crop A": ["choices.MODEL.crop A.percent", 1],
            "rounded": {
                "number": "choices.MODEL.crop A.percent",
                "decimals": 0,
                "deviation": False,
            },
        },
    },
}
DIFFERENCE = {"differences_of": "mine", "number": "R@1", "pairs": [["mls", "points"]]}


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """A folder for numbers of its own."""
    monkeypatch.setattr(tables, "HERE", tmp_path)
    return tmp_path / "numbers" / "mine.csv"


def write_run(
    folder, recall: float, flags: str = "--sim cosine", seed: int = 0, images: int = 1000
):
    """Write the two files of a run that `add` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = parse_words(training_parser(), [*flags.split(), "--seed", str(seed)]).asked
    config = {"asked": asked, "git_commit": "0123456789abcdef"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "results.json").write_text(
        json.dumps({"images": images, "protocols": {"full": {"t2i": {"r1": recall}}}}),
        encoding="utf-8",
    )


def write_choices(folder, percents: dict[str, float]):
    """Write the choices that a run's evaluation gives: {model: percent}."""
    folder.mkdir(parents=True, exist_ok=True)
    choices = {model: {"crop A": {"percent": percent}} for model, percent in percents.items()}
    (folder / "choices.json").write_text(
        json.dumps({"images": {"choices": 3}, "choices": choices}), encoding="utf-8"
    )


def write_crops(folder, images: list[tuple], captions: list[tuple], triplets: int = 3):
    """Write the crops that a run's evaluation gives: (mean, verdict, share, control) at 10, 20."""
    sides = {}
    for side, entries in (("images", images), ("captions", captions)):
        sides[side] = {}
        for percent, entry in zip(("10", "20"), entries):
            sides[side][percent] = dict(zip(("mean", "verdict", "share", "control"), entry))
    (folder / "crops.json").write_text(
        json.dumps({"triplets": triplets, "models": {folder.name: sides}}), encoding="utf-8"
    )


# ---- documents


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_shows_the_figures_of_its_tables(name):
    """docs/methods.md also shows the methods."""
    text = read_text(DOCUMENTS[name])
    assert name != "docs/methods.md" or results.METHODS_BLOCK.search(text)
    assert results.fill(text, TABLES) == text, (
        f"run python -m results --write: {name} shows another table"
    )


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_its_command_and_its_commits(name):
    table = TABLES[name]
    for row in table.rows:
        assert len(row.cells) == len(table.heads), (
            f"{row.cells[0]}: {len(row.cells)} cells, {len(table.heads)} heads"
        )
        assert re.match(
            r"python ((train|evaluate)\.py|-m (phrases\.\w+|vg_experiments\.\w+|"
            r"confidence\.people RUN|methods\.cca|results|"
            r"photos\.words \S+|confidence FOLDER|paper_tables\.parity)) --",
            row.command,
        ), row.cells[0]
        assert re.fullmatch(r"[0-9a-f]{10}( [0-9a-f]{10})*", row.commits), row.cells[0]
        assert not re.search(r"[ ,]~?/\w", row.command), (
            f"{row.cells[0]} names a place of a machine"
        )
    assert table.rows


def test_tables_are_written_between_their_marks():
    table = tables.Table(
        "python train.py FLAGS",
        ["model", "R@1", "rsum"],
        [tables.Row("python train.py --a", "0123456789", ["a", "9.0", "101.0"])],
        "Recorded; the runs were not kept.",
    )
    text = (
        "# Ours\n\n<!-- results: t -->\nold\n<!-- /results -->\n\nand\n\n"
        "<!-- results: t | model | rsum -->\n<!-- /results -->\nend\n"
    )
    assert results.fill(text, {"t": table}) == (
        "# Ours\n\n<!-- results: t -->\n```\npython train.py FLAGS\n```\n\n| model | R@1 | rsum |\n|---|---|---|\n"
        "| a | 9.0 | 101.0 |\n\n*Recorded; the runs were not kept.*\n<!-- /results -->\n\nand\n\n"
        "<!-- results: t | model | rsum -->\n| model | rsum |\n|---|---|\n| a | 101.0 |\n\n*Recorded; the runs were not kept.*\n"
        "<!-- /results -->\nend\n"
    )
    table.command = ""
    table.source = ""
    assert (
        results.render_markdown(table)
        == "| model | R@1 | rsum |\n|---|---|---|\n| a | 9.0 | 101.0 |"
    )
    table.rows.append(tables.Row("python train.py --b", "0123456789", ["b", "8.0", "100.0"]))
    chosen = results.render_markdown(table, ["model", "rsum", "model=b"])
    assert chosen == "| model | rsum |\n|---|---|\n| b | 100.0 |"
    table.rows.append(tables.Row("python train.py --c", "0123456789", ["b", "7.0", "99.0"]))
    chosen = results.render_markdown(table, ["model", "rsum", "model=b; a"])
    assert chosen.split("\n")[2:] == ["| b | 100.0 |", "| b | 99.0 |", "| a | 101.0 |"]
    with pytest.raises(InputError, match="a document shows the table u; the tables are t"):
        results.fill("<!-- results: u -->\n<!-- /results -->\n", {"t": table})
    with pytest.raises(
        InputError,
        match="a document shows 'medr', which its table lacks; the table has model; R@1; rsum",
    ):
        results.render_markdown(table, ["model", "medr"])
    with pytest.raises(
        InputError, match="a document shows 'c', which its table lacks; the table has a; b"
    ):
        results.render_markdown(table, ["model", "rsum", "model=c"])


def test_tables_are_printed_by_name(capsys, monkeypatch):
    results.main(["bank", "cca"])
    printed = capsys.readouterr().out
    assert printed.index("bank:") < printed.index("VSE++") < printed.index("cca:")
    assert tables.read_tables() == TABLES
    monkeypatch.setattr(results, "read_tables", lambda: TABLES)  # which takes most of a call
    results.main(["cca", "--commands"])
    assert (
        "tf-idf, regularization chosen on dev (5abc65f251):\n"
        "    python -m methods.cca --data_name f8k_precomp --text tfidf --eta_image auto\n"
    ) in capsys.readouterr().out
    refused(capsys, results.main, ["nosuch"], "no table nosuch; python -m results lists the tables")
    refused(capsys, results.main, ["setz"], "no table setz; did you mean sets?")
    refused(
        capsys,
        results.main,
        ["x" * 10**5],
        "no table x{20,60}[.]{3}; python -m results lists the tables",
    )


def test_the_first_screen_of_the_readme_has_the_figures_of_the_table():
    pattern = r"of (\d+) with summed words and InfoNCE, against (\d+) for VSE\+\+ and (\d+) for linear CCA\."
    (said,) = re.findall(pattern, read_text(f"{ROOT}/README.md"))
    table = TABLES["official"]
    rsum = {
        row.cells[0]: float(row.cells[table.heads.index("rsum")].split()[0]) for row in table.rows
    }
    models = ["words summed, InfoNCE, points, D = 512", "VSE++, D = 512", "linear CCA, tf-idf"]
    figures = [f"{rsum[model]:.0f}" for model in models]
    assert list(said) == figures, f"README's first table should say {', '.join(figures)}"


def test_every_name_in_the_documents_is_there():
    """Links to files, and files of code by their names."""
    here = {os.path.basename(path) for path in glob.glob("**/*.py", root_dir=ROOT, recursive=True)}
    for path in DOCUMENTS.values():
        text = read_text(path)
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert "://" in link or os.path.exists(os.path.join(os.path.dirname(path), link)), (
                f"{path}: {link}"
            )
        for file in re.findall(r"\b[a-z_]+\.py\b", text):
            assert file in here, f"{path} names {file}"
        for module in re.findall(r"python -m ([\w.]+)", text):
            code = os.path.join(ROOT, *module.split("."))
            if module in ("pip", "pytest", "venv") or module.endswith("NAME"):
                continue
            assert os.path.exists(f"{code}.py") or os.path.isdir(code), f"{path}: {module}"


def test_every_link_to_a_heading_finds_it():
    anchors = {}
    for name, path in DOCUMENTS.items():
        headings = re.findall(
            r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", read_text(path), flags=re.S | re.M), re.M
        )
        anchors[name] = {
            re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
    for name, path in DOCUMENTS.items():
        for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", read_text(path)):
            target = name
            if file:
                target = os.path.normpath(os.path.join(os.path.dirname(name), file))
            if target in anchors:
                assert anchor in anchors[target], f"{name}: {file}#{anchor}"


# ---- numbers of runs


def test_a_mean_and_its_deviation_are_those_of_the_stored_numbers():
    """The first computed table of README, against the lines of its file."""
    with open(f"{ROOT}/results/numbers/official.csv", encoding="utf-8") as file:
        stored = [
            float(run["rsum"]) for run in csv.DictReader(file) if run["row"] == "words_wasserstein"
        ]
    table = TABLES["official"]
    (row,) = [
        row for row in table.rows if row.cells[0] == "words summed, InfoNCE, Wasserstein, D = 256"
    ]
    mean = sum(stored) / len(stored)
    deviation = (sum((x - mean) ** 2 for x in stored) / (len(stored) - 1)) ** 0.5
    assert row.cells[table.heads.index("rsum")] == f"{mean:.1f} ± {deviation:.1f} ({len(stored)})"
    assert row.command.startswith(
        "python train.py --data_name f8k_precomp --loss infonce --mask_same_image"
    )
    assert f"--seed {','.join(str(seed) for seed in range(len(stored)))}" in row.command


@pytest.mark.parametrize("name", [name for name in ROWS if "columns" in ROWS[name]])
def test_stored_numbers_have_the_rows_and_heads_of_their_table(name):
    with open(tables.path_of_numbers(name), encoding="utf-8") as file:
        heads, *lines = csv.reader(file)
    assert heads == [*tables.RUN_KEYS, *tables.list_numbers(ROWS[name])]
    names = [row["name"] for row in ROWS[name]["rows"]]
    assert {line[0] for line in lines} <= set(names)
    rows_and_seeds = [line[:2] for line in lines]
    ranks = [(names.index(name), seed) for name, seed in rows_and_seeds]
    assert ranks == sorted(ranks)
    assert len({tuple(line[:2]) for line in lines}) == len(lines)


def test_runs_are_stored_in_the_row_that_has_their_options(tmp_path, numbers, capsys):
    write_run(tmp_path / "runs" / "a_1", 20.0, seed=1)
    write_run(tmp_path / "runs" / "a_0", 22.123456789)
    write_run(tmp_path / "runs" / "b_0", 23.0, "--sim mls --workers 0")
    write_run(tmp_path / "runs" / "c_0", 30.0, "--sim kl")
    (tmp_path / "runs" / "d_0").mkdir()
    write_run(tmp_path / "runs" / "e_0", 30.0)
    (tmp_path / "runs" / "e_0" / "results.json").unlink()
    opt = Namespace(row=None, overwrite=False)
    rows = {"mine": MINE, "mine_differences": DIFFERENCE}

    runs.add_runs([str(tmp_path / "runs" / "*")], rows, opt)
    printed = capsys.readouterr().out
    assert numbers.read_text() == (
        "row,seed,commit,R@1,rho\npoints,0,0123456789,22.123457,\n"
        "points,1,0123456789,20.0,\nmls,0,0123456789,23.0,\n"
    )
    assert "c_0: left out, no row of results/rows.yaml has its options" in printed
    assert "d_0: left out, it has no config.yaml" in printed
    assert "e_0: left out of mine, it has no results.json" in printed

    computed = tables.compute_tables(rows)
    assert [row.cells for row in computed["mine"].rows] == [
        ["points", "21.1 ± 1.5 (2)", ""],
        ["mls", "23.0", ""],
    ]
    assert (
        computed["mine"].rows[0].command
        == "python train.py --data_name mine --sim cosine --seed 0,1"
    )
    assert computed["mine_differences"].rows[0].cells == ["mls, minus points", "1", "0.9", "", ""]

    write_run(tmp_path / "runs" / "a_0", 50.0)
    runs.add_runs([str(tmp_path / "runs" / "a_0")], rows, opt)
    assert (
        "mine, points, seed 0: is stored already; --overwrite replaces it"
        in capsys.readouterr().out
    )
    runs.add_runs([str(tmp_path / "runs" / "a_0")], rows, Namespace(row=None, overwrite=True))
    assert "points,0,0123456789,50.0,\n" in numbers.read_text()
    write_run(tmp_path / "runs" / "a_2", 50.0, seed=2, images=500)
    with pytest.raises(
        InputError,
        match="mine, points, seed 2: these results are for 500 images, and the table is for the "
        "split of 1000",
    ):
        runs.add_runs([str(tmp_path / "runs" / "a_2")], rows, opt)


def test_a_run_of_a_module_is_stored_in_its_row(tmp_path, numbers):
    write_run(tmp_path / "a_0", 20.0)
    train = "python -m phrases.train --data_name mine TRAIN --seed SEED --logger_name RUN"
    rows = {"mine": MINE | {"commands": [train, "python -m phrases.evaluate --checkpoint RUN"]}}
    runs.add_runs([str(tmp_path / "a_0")], rows, Namespace(row=None, overwrite=False))
    assert "points,0,0123456789,20.0,\n" in numbers.read_text()


def test_a_table_is_run_for_the_seeds_without_numbers(tmp_path, numbers, monkeypatch):
    write_run(tmp_path / "a_1", 20.0, seed=1)
    rows = {"mine": MINE}
    runs.add_runs([str(tmp_path / "a_1")], rows, Namespace(row=None, overwrite=False))
    commands = []

    def call(*words):
        commands.append(" ".join(words))
        if words[0] == "evaluate.py":
            results_of = {"images": 1000, "protocols": {"full": {"t2i": {"r1": 10.0}}}}
            os.makedirs(words[2], exist_ok=True)
            with open(os.path.join(words[2], "results.json"), "w") as file:
                json.dump(results_of, file)

    monkeypatch.setattr(runs, "call_python", call)
    opt = Namespace(data_path="/data", runs=str(tmp_path / "runs"), overwrite=False)
    runs.run_rows(["points"], rows, opt)
    folder = f"{tmp_path}/runs/mine"
    assert commands == [
        f"train.py --data_path /data --data_name mine --sim cosine --seed 0 --logger_name {folder}/points_seed0",
        f"evaluate.py --checkpoint {folder}/points_seed0",
        f"train.py --data_path /data --data_name mine --sim cosine --seed 2 --logger_name {folder}/points_seed2",
        f"evaluate.py --checkpoint {folder}/points_seed2",
    ]
    assert [line.split(",")[:2] for line in numbers.read_text().splitlines()[1:]] == [
        ["points", "0"],
        ["points", "1"],
        ["points", "2"],
    ]
    opt.overwrite = True
    runs.run_rows(["points"], rows, opt)
    assert len(commands) == 4 + 6  # all three seeds
    with pytest.raises(
        InputError,
        match="there is no table or row nosuch in results/rows.yaml; the tables are mine",
    ):
        runs.run_rows(["nosuch"], rows, opt)


def test_a_run_gives_the_numbers_of_all_tables_of_its_entry(tmp_path, numbers, capsys):
    """Exact cells: two lines of a row, verdicts as emphasis, ranges, and rows of one table."""
    rows = tables.share_runs(CROPS)
    for seed, (mean, share, verdict) in enumerate([(1.0, 40.0, "holds"), (3.0, 50.0, "open")]):
        folder = tmp_path / "runs" / f"a_{seed}"
        write_run(folder, 20.0, "--sim mls", seed)
        write_crops(
            folder,
            [(mean, "holds", share, -0.1), (mean, "open", share + 5, 0.25)],
            [(-mean, "opposite", 10.0, 0.0), (-mean, verdict, 10.0, 0.0)],
        )
        percents = {f"a_{seed}": 60.0 + 3 * seed, f"a_{seed} means only": 50.0 + seed}
        write_choices(folder, percents)
    write_run(tmp_path / "runs" / "b_0", 20.0, "--sim cosine")
    write_choices(tmp_path / "runs" / "b_0", {"b_0": 70.25, "sizes alone": 90.0})
    opt = Namespace(row=None, overwrite=False)
    runs.add_runs([str(tmp_path / "runs" / "*")], rows, opt)
    choices = str(tmp_path / "runs" / "b_0" / "choices.json")
    runs.add_runs([choices], rows, Namespace(row="sizes", overwrite=False))

    assert numbers.with_name("crops.csv").read_text().splitlines() == [
        'row,seed,commit,"images, C - A","images, C - A, verdict","images, share, 10%",'
        '"images, share, 20%","images, control, 10%","images, control, 20%","captions, C - A",'
        '"captions, C - A, verdict"',
        "mls,0,0123456789,1.0,1.0,40.0,45.0,-0.1,0.25,-1.0,-1.0",
        "mls,1,0123456789,3.0,1.0,50.0,55.0,-0.1,0.25,-3.0,-1.0",
    ]
    lines = numbers.with_name("choices.csv").read_text().splitlines()
    assert [re.sub(",[0-9a-f]{10},", ",COMMIT,", line) for line in lines] == [
        'row,seed,commit,crop A,rounded,"means, crop A","means, rounded"',
        "mls,0,COMMIT,60.0,60.0,50.0,50.0",
        "mls,1,COMMIT,63.0,63.0,51.0,51.0",
        "points,0,COMMIT,70.25,70.25,,",
        "sizes,,COMMIT,90.0,90.0,,",
    ]

    computed = tables.compute_tables(rows)
    assert list(computed) == ["crops", "choices"]
    assert computed["crops"].heads == ["model", "n", "side", "C - A", "share", "control"]
    assert computed["crops"].source == "Computed from results/numbers/crops.csv."
    assert [row.cells for row in computed["crops"].rows] == [
        ["mls", "2", "images", "**+2.0 ± 1.4**", "45 to 50", "-0.10 to +0.25"],
        ["mls", "2", "captions", "*-2.0 ± 1.4*", "", ""],
    ]
    assert [row.cells for row in computed["choices"].rows] == [
        ["mls", "61.5 ± 2.1 (2)", "62"],
        ["mls, means alone", "50.5 ± 0.7 (2)", "50"],
        ["points", "70.2", "70"],
        ["sizes", "90.0", "90"],
    ]
    assert (
        computed["crops"].rows[0].command == "python train.py --data_name mine --sim mls --seed 0,1"
    )

    write_crops(folder, [], [], triplets=4)
    with pytest.raises(
        InputError,
        match="crops, mls, seed 1: these results are for 4 images, and the table is for the split of 3",
    ):
        runs.add_runs([str(folder)], rows, opt)


def test_emphasis_needs_one_verdict_of_all_runs():
    assert tables.emphasize("+1.0", [1.0, 1.0]) == "**+1.0**"
    assert tables.emphasize("+1.0", [-1.0]) == "*+1.0*"
    assert tables.emphasize("+1.0", [1.0, 0.0]) == "+1.0"
    assert tables.emphasize("+1.0", [1.0, -1.0]) == "+1.0"
    assert tables.emphasize("+1.0", [0.0, 0.0]) == "+1.0"
    assert tables.emphasize("+1.0", []) == "+1.0"


def test_a_range_is_of_means_or_of_all_runs():
    numbers = [[1.0, 4.0], [3.0, 5.0]]
    assert tables.format_range(numbers, ".1f", "means") == "2.5 to 4.0"
    assert tables.format_range(numbers, "+.0f", "runs") == "+1 to +5"
    assert tables.format_range([[], []], ".1f", "means") == ""


def test_an_entry_is_prepared_once_and_each_row_run_once_for_all_its_tables(
    tmp_path, numbers, monkeypatch
):
    rows = tables.share_runs(CROPS)
    commands = []

    def call(*words):
        commands.append(" ".join(words))
        if words[0] == "train.py":
            folder = tmp_path / "runs" / "mine" / os.path.basename(words[-1])
            name = folder.name
            write_choices(folder, {name: 60.0, "sizes alone": 90.0})
            write_crops(folder, [(1.0, "holds", 40.0, 0.0)] * 2, [(1.0, "open", 40.0, 0.0)] * 2)
        if words[-2] == "--output" and words[1] == "measure":
            write_choices(tmp_path / "runs" / "mine" / "sizes", {"sizes alone": 90.0})

    monkeypatch.setattr(runs, "call_python", call)
    opt = Namespace(data_path="/data", runs=str(tmp_path / "runs"), overwrite=False)
    runs.run_rows(["crops"], rows, opt)
    folder = f"{tmp_path}/runs/mine"
    trainings = []
    for seed in (0, 1):
        run = f"{folder}/mls_seed{seed}"
        trainings += [
            f"train.py --data_name mine --sim mls --seed {seed} --logger_name {run}",
            f"-m measure --checkpoint {run} --manifest {folder}/manifest.json",
        ]
    assert commands == [
        f"-m prepare --output {folder}/manifest.json",
        *trainings,
        f"train.py --sim cosine --seed 0 --logger_name {folder}/points_seed0",
        f"-m measure --checkpoint {folder}/points_seed0 --output {folder}/sizes",
    ]
    computed = tables.compute_tables(rows)
    assert [row.cells[:2] for row in computed["crops"].rows] == [["mls", "2"], ["mls", "2"]]
    assert [row.cells[0] for row in computed["choices"].rows] == ["mls", "points", "sizes"]

    commands.clear()
    runs.run_rows(["mine"], rows, opt)
    assert commands == []  # all have their numbers


@pytest.mark.parametrize("name", runs.list_entries(ROWS))
def test_every_row_can_be_run(name):
    """The parsers of the commands accept them."""
    words = {"seed": "0", "run": "RUN", "data": "DATA"}
    for row in ROWS[name]["rows"]:
        if "TRAIN" not in row:
            continue
        train, evaluate, *_ = [
            shlex.split(tables.fill_command(command, row, **words))
            for command in row.get("commands", ROWS[name]["commands"])
        ]
        if train[1] == "train.py":
            opt = parse_words(training_parser(), train[2:])
        else:
            assert train[1:3] == ["-m", "phrases.train"]
            opt = parse_words(phrases_parser(), train[3:])
            assert evaluate[1:] == "-m phrases.evaluate --data_path DATA --checkpoint RUN".split()
        if evaluate[1] == "evaluate.py":
            assert parse_evaluation(evaluate[2:]).checkpoint == ["RUN"]
        resolve(opt)
        assert (opt.seed, opt.logger_name) == (0, "RUN")


def test_the_commands_of_visual_genome_can_be_run(monkeypatch):
    """Their parsers accept them, and all read the manifest that is prepared once."""
    parsed = []
    monkeypatch.setattr("utils.run", lambda name, work, opt: parsed.append(opt))
    entry = ROWS["vg_photos"]
    commands = [tables.fill_command(command, {}, runs="R") for command in entry["before"]]
    for row in entry["rows"]:
        for command in row.get("commands", entry["commands"]):
            commands.append(tables.fill_command(command, row, run="R/a_seed0", runs="R"))
    for command in commands:
        _, option, module, *words = shlex.split(command)
        if option == "-m":
            importlib.import_module(module).main(words)

    prepare, *evaluations = parsed
    assert prepare.output == "R/manifest.json"
    assert {opt.manifest for opt in evaluations} == {"R/manifest.json"}
    assert {opt.output_folder for opt in evaluations} == {"R/a_seed0"}
    assert {opt.checkpoint[0] for opt in evaluations} == {"R/a_seed0", "R/vg_vse_seed0"}


def test_an_interval_is_students_t_over_seeds():
    """2.776 is the 97.5% quantile for four degrees of freedom."""
    low, high = tables.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    reach = 2.776445 * (2.5 / 5) ** 0.5
    assert low == pytest.approx(3 - reach, abs=1e-5) and high == pytest.approx(3 + reach, abs=1e-5)
    assert tables.t_interval([1.0]) is None
