"""The tables of the papers: rows that can be run, the papers' recipes and numbers, what is printed, resuming."""

import contextlib
import json
import os
import re
from functools import partial

import pytest

import evaluate
import train
from data import read_split
from paper_tables import __main__ as listing
from paper_tables import coco_halves, figures, hours, runner
from paper_tables.commands import evaluate as evaluate_command
from paper_tables.commands import read_command, run_module
from paper_tables.commands import train as train_command
from paper_tables.plan import Plan, Setting, Step
from paper_tables.runner import Columns, Row, Table, recalls
from paper_tables.scales import TABLE_SCALES, divide_sizes, scale_run
from tests.helpers import Command, hold_run, papers_folder, refused
from utils import InputError

ROOT = os.path.join(os.path.dirname(__file__), "..")
FILES = {
    "pmrl": "000_ae996119eff05b8c.txt",
    "ucmr": "001_d36162b73b003c58.txt",
    "jwae": "002_e14e6ff358082098.txt",
    "dmsm": "004_b96ec9011b432480.txt",
}
TABLES = listing.load_tables()


def list_tables_and_scales():
    """Each table with the scales at which it can be run."""
    found = []
    for name, table in TABLES.items():
        for scale in TABLE_SCALES:
            if scale != "f8k" or table.f8k:
                found.append((name, scale))
    return found


@pytest.mark.parametrize("name, scale", list_tables_and_scales())
def test_options_of_every_row_parse(name, scale, tmp_path, monkeypatch):
    """Options of training and evaluation parse; the run's folder and seed fit a row."""
    monkeypatch.setattr(train, "load_checkpoint", lambda *_, **__: None)  # of a run to start from
    for folder in ("f30k_entities", "demo_entities"):
        # without them options of phrases have no effect
        os.makedirs(tmp_path / "data" / folder / "Annotations")
    place = Setting(str(tmp_path / "data"), str(tmp_path / "runs"), scale)
    steps = []
    for row in TABLES[name].rows:
        for run in row.runs:
            steps += Plan(run, 3, place).steps

    for step in steps:
        assert not re.search(r"[{}]", " ".join(step.words))
        if step.words[:1] == ["train.py"]:
            if "--word_vectors" in step.words:
                vectors = step.words[step.words.index("--word_vectors") + 1]
                os.makedirs(os.path.dirname(vectors), exist_ok=True)
                open(vectors, "w").close()
            options = train.parse_args(step.words[1:])
            assert options.seed == 3 and options.logger_name == step.run
            assert options.data_name in step.run
        elif step.words[:1] == ["evaluate.py"]:
            evaluate.parse_args(step.words[1:])


# What the papers' experimental sections say, and how train.py spells it. Where a paper says nothing, nothing is
# compared; the notes of the tables tell what was taken.
VSEPP = {
    "num_epochs": 30,
    "learning_rate": 2e-4,
    "lr_update": 15,
    "margin": 0.2,
    "embed_size": 1024,
    "word_dim": 300,
    "batch_size": 128,
    "cnn_type": "resnet152",
    "use_restval": True,
    "finetune": False,
    "select": "rsum",
    "txt_enc": "gru",
}
TUNED = {**VSEPP, "num_epochs": 15, "learning_rate": 2e-5, "finetune": True, "freeze_bn": True}
REGIONS = {
    "img_enc": "vsrn",
    "num_epochs": 30,
    "learning_rate": 2e-4,
    "lr_update": 15,
    "batch_size": 128,
    "embed_size": 2048,
    "word_dim": 300,
    "region_norm": "regions",
    "captioner": 1.0,
    "captioner_original": True,
}
JWAE = {"learning_rate": 1e-4, "batch_size": 128}
RAW = {"feature_norm": False}
MH = {
    "latent_norm": "sphere",
    "recon_images": 0.5,
    "recon_captions": 0.005,
    "prior_images": 0.01,
    "prior_captions": 0.01,
    "max_violation": True,
}
DMSM = {
    "optimizer": "sgd",
    "learning_rate": 0.5,
    "lr_update": 1000,
    "negatives": 40,
    "gamma": 10.0,
    "embed_size": 300,
    "layer_style": "tanh",
    "feature_norm": False,
    "select": "hbr",
    "txt_enc": "trigram_conv",
}
RECIPES = [
    (
        "pmrl_table1",
        "GCIE ellipsoidal, Wasserstein",
        VSEPP | {"var_min": 0.1},
        "pmrl 3.1: 15 + 15 epochs",
    ),
    ("pmrl_table1", "VSE++, cosine", VSEPP, "pmrl 3.1"),
    (
        "pmrl_table2",
        "GCIE ellipsoidal, KL",
        TUNED,
        "pmrl 3.1: 15 epochs at 2e-5 from the trained models",
    ),
    (
        "pmrl_table2",
        "GIE spherical, Mahalanobis",
        TUNED | {"learning_rate": 2e-6},
        "pmrl 3.1: except GIE spherical",
    ),
    ("ucmr_table1", "VSE++ ours", VSEPP | {"var_min": 0.1}, "ucmr 4.2"),
    (
        "ucmr_table1",
        "VSE++, wide",
        VSEPP | {"embed_size": 2048},
        "ucmr 4.2: doubling the dimension",
    ),
    (
        "ucmr_table1",
        "VSRN ours",
        REGIONS | {"margin": 0.1},
        "ucmr 4.2: margin of 0.1 for VSRN; the official codebase",
    ),
    ("ucmr_table1", "VSRN", REGIONS | {"margin": 0.2, "image_head": "point"}, "VSRN's code"),
    (
        "ucmr_table1",
        "VSRN, wide",
        REGIONS | {"margin": 0.2, "embed_size": 4096},
        "ucmr 4.2: doubling the dimension",
    ),
    (
        "jwae_table3",
        "jWAE-MH (VGG+w2v)",
        JWAE | MH | RAW | {"img_layers": "1024", "txt_layers": "1024"},
        "jwae 4.2, 5.1",
    ),
    (
        "jwae_table3",
        "jWAE-MH (ResNet+GRU)",
        MH | {"txt_enc": "bigru", "num_layers": 2},
        "jwae 4.2, 5.1",
    ),
    (
        "jwae_table3",
        "jWAE-MSE (VGG+w2v)",
        JWAE
        | RAW
        | {
            "loss": "mse",
            "recon_images": 1.0,
            "recon_captions": 1.0,
            "prior_images": 0.2 * 128,
            "prior_captions": 0.2 * 128,
            "mse_weight": 1024.0,
        },
        "jwae 5.1; eq. 7 a mean over pairs, so all terms count per item",
    ),
    (
        "jwae_table3",
        "jWAE-MH+SCAN i-t (ResNet+GRU)",
        MH | RAW | {"cross_attn": "i2t", "agg_func": "Mean"},
        "SCAN's code",
    ),
    (
        "jwae_table3",
        "Emb. Network (VGG+w2v)",
        {"lr_update": 1000, "num_epochs": 20, "batch_size": 1000},
        "the two-branch networks' code: 20 epochs at a constant rate",
    ),
    (
        "jwae_table4",
        "VAE-MH",
        MH
        | {"prior_images": 0.0, "prior_captions": 0.0, "latent_norm": "none", "logvar_init": -6.0},
        "jwae 5.2: in place of the WAE",
    ),
    (
        "dmsm_table1",
        "FC7, 2000-1000-300 | 4000-2000-1000-500-300",
        DMSM | {"img_layers": "2000-1000", "txt_layers": "4000-2000-1000-500"},
        "dmsm 4.2, Table 1",
    ),
]


def test_reconstructions_of_regions_are_weighed_for_features_of_norm_1():
    """With raw ones of norm 18 their sum of squares was 40 times the ranking loss."""
    for row in TABLES["jwae_table7"].rows:
        for run in row.runs:
            training = str(run[0])
            assert ("--no-feature_norm" in training) == ("jwae" not in training), row.label


@pytest.mark.parametrize("table, label, expected, section", RECIPES)
def test_recipes_are_those_of_the_papers(monkeypatch, table, label, expected, section):
    monkeypatch.setattr("train.load_checkpoint", lambda *_, **__: None)
    (run,) = (row.runs[0] for row in TABLES[table].rows if row.label == label)
    training = scale_run(run, "full")[-2]  # the last one
    options = vars(train.parse_args(training.words[1:]))
    assert {name: options[name] for name in expected} == expected, section


def test_commands_are_spelled_as_typed_and_read_again():
    command = train_command(
        data_name="coco",
        method="dmsm",
        learning_rate="1e-4",
        var_min=1e-5,
        margin=0.1,
        use_restval=True,
        img_layers="1000-500",
        dev_images=0,
        feature_norm=False,
    )
    line = (
        "train.py --data_name coco --method dmsm --learning_rate 1e-4 --var_min 1e-5 --margin 0.1 --use_restval "
        "--img_layers 1000-500 --dev_images 0 --no-feature_norm"
    )
    assert str(command) == line and str(read_command(line)) == line
    of_regions = run_module("phrases.regions", splits=["val", "test"])
    assert str(of_regions) == "-m phrases.regions --splits val test"
    options = command.expand()  # the last of equal options counts, in the first one's place
    assert list(options)[:3] == ["data_name", "loss", "txt_enc"] and "method" not in options
    assert options["img_layers"] == "1000-500" and options["learning_rate"] == "1e-4"
    assert train_command(learning_rate="1e-4", method="dmsm").expand()["learning_rate"] == 0.5
    assert divide_sizes("4000-1000-30-0", 16) == "250-62-4-0" and divide_sizes(1024, 2) == "512"


@pytest.mark.parametrize(
    "name", [name for name in TABLES if name not in ("ucmr_fig2", "pmrl_section34")]
)
def test_numbers_stand_in_the_papers(name):
    """Each row's numbers stand in the paper's text, one after another."""
    with open(os.path.join(papers_folder(), FILES[name.split("_")[0]]), encoding="utf-8") as f:
        text = re.sub(r"</?b>|\*\*", "", f.read())
    without_deviations = re.sub(r"(\d\.\d\d)plus-or-minus\S+", r"\1 ", text)
    numbers = re.findall(r"(?<![\d.])\d+\.\d+(?!\d)", without_deviations)
    text = f" {' '.join(numbers)} "
    at = -1  # of the row before: the order, and so the labels, are the paper's
    for row in TABLES[name].rows:
        if name == "ucmr_table7_8":  # each beside its deviation
            assert all(f" {x:.2f} " in text for x in row.published), row.label
            continue
        numbers = [x for x in row.published if x is not None]
        if not numbers:  # a row of ours
            assert row.label.endswith((", tuned", ", eq. 8", ", ours")) and row.runs, row.label
            continue
        form = "{:.1f}"
        if name == "pmrl_table3":
            form = "{:.2f}"
        position = text.find(f" {' '.join(form.format(x) for x in numbers)} ", at + 1)
        assert position > at, row.label
        at = position


# ---- printing

OTHER = Columns("other", (("", (("HBR", "best_ranks/i2t/hbr"),)),), run=1)
OF_COCO = (train_command(data_name="coco"), evaluate_command())
TINY = Table(
    "a table",
    (recalls("folds5", "1K", ks=(1, 5), rsum=True), OTHER),
    (
        Row("ours and theirs", (10.0, 20.5, 1.0, 2.0, 300.0, None), (OF_COCO, OF_COCO)),
        Row("theirs", (1.0, None, 2.0, 3.0, 4.0, 447.74)),
    ),
    seeds=2,
    notes=("a note",),
)
PRINTED = """\
a table, 1K
                                 image to text       text to image
                                        R@1    R@5    R@1         R@5          rsum
ours and theirs: this code (2)  11.2 +- 0.5   20.0         4.0 +- 0.2  290.0 +- 2.0
  published                            10.0   20.5    1.0         2.0         300.0
  difference                           +1.2   -0.5               +2.0         -10.0
theirs: published only                  1.0           2.0         3.0           4.0

a table, other
                                   HBR
ours and theirs: this code (1)    3.00
theirs: published only          447.74

this code: mean and standard deviation over the seeds (their number); the papers' setting
collapsed: nearly all items are one point, so one direction is near chance
a note
"""


def test_printed_table(monkeypatch, capsys):
    ours = {
        5: [(11.25, 0.5, 2), (20.0, 0.0, 1), None, (4.0, 0.25, 2), (290.0, 2.0, 2)],
        1: [(3.0, 0.0, 1)],
    }

    def run_nothing(runs):
        return []

    def collect_cells(steps, paths, _):
        if steps:
            return ours[len(paths)]
        return [None]

    monkeypatch.setattr(runner, "run_all", run_nothing)
    monkeypatch.setattr(runner, "collect_cells", collect_cells)

    runner.main(TINY, [])
    assert capsys.readouterr().out == PRINTED

    runner.main(TINY, ["--demo"])
    shown = capsys.readouterr().out
    title = "a table; this code on drawn scenes, so the numbers cannot be compared, 1K\n"
    assert shown.startswith(title)
    assert "this code (2)  11.2" in shown and "  published  " in shown and "difference" not in shown


def test_a_row_that_collapsed_says_so(tmp_path):
    """Near chance in one direction, by either seed."""
    steps = []
    for seed, r10 in enumerate((12.0, 40.0)):
        target = tmp_path / f"{seed}.json"
        chance = {"i2t": {"r10": 10.0}, "t2i": {"r10": 10.0}}
        found = {"i2t": {"r10": 50.0}, "t2i": {"r10": r10}}
        results = {"protocols": {"full": found}, "chance": {"full": chance}}
        target.write_text(json.dumps(results))
        steps.append(Step(["x"], str(target)))
    assert runner.is_collapsed(steps) and not runner.is_collapsed(steps[1:])
    assert not runner.is_collapsed([Step(["x"], str(tmp_path / "none.json"))])


def test_missing_data_are_named_and_the_published_numbers_printed(tmp_path, capsys):
    words = ["--data_path", str(tmp_path), "--only", "2", "1"]
    with pytest.raises(SystemExit, match="2 of 2 runs failed"):
        runner.main(TABLES["pmrl_table1"], words)
    out, err = capsys.readouterr()
    run_table = partial(runner.main, TABLES["pmrl_table1"])
    refused(capsys, run_table, [*words, "12"], "'12' is not .* and at most 11")
    assert "coco is not there; put there COCO's train2014.zip" in err
    assert "58.3" in out and "78.0" in out and "94.0" not in out


def test_lists_name_rows_and_what_has_to_be_fetched_in_100_columns(capsys):
    for name in (None, *TABLES):
        if name is None:
            labels = TABLES
            listing.main(["--list"])
        else:
            labels = [row.label for row in TABLES[name].rows]
            runner.main(TABLES[name], ["--list"])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 100 and "No row of any table has been run" in out
        assert "GCE, GIE, GCIE: captions, images, both are Gaussians" in out
        assert all(label in out for label in labels)
        assert "Hours of a seed" in out or "has not been measured" in out
    runner.main(TABLES["ucmr_table3"], ["--list"])
    out = " ".join(capsys.readouterr().out.split())
    assert "renamed to images/" in out
    assert "f30k_precomp is not there; put there SCAN's region features" in out
    assert "torch's cache, or in a package: resnet152." in out and "0 of 1 runs done" in out


# ---- what rows cost

LINES = """cost,command,commits,machine,system,"first step, s",pairs/s,"training, GiB","GPU, GiB","evaluation, s",\
"evaluation, GiB","epoch, h","row, h"
cost,python {frozen},0123456789,one card,VSE++,20,"1,500",4.0,9.2,36,2,0.20,6.0
cost,python {tuned},0123456789,one card,"VSE++, fine-tuned",20,400,4.0,30.1,36,2,0.50,13.5
cost,python {regions},0123456789,one card,VSRN,20,"1,200",4.0,5.0,72,2,0.15,4.5
cost,python {regions},0123456789,2 cores,VSRN,20,4,4.0,,,,40.00,"1,200.0"
"""


@pytest.fixture
def measurements(tmp_path):
    from paper_tables import pmrl_table1, pmrl_table2, ucmr_table1

    path = tmp_path / "cost.csv"
    frozen = pmrl_table1.train_coco("vse++")
    tuned = pmrl_table2.tune_coco("vse++", "2e-5")
    regions = ucmr_table1.train_regions("vsrn_original")
    path.write_text(LINES.format(frozen=frozen, tuned=tuned, regions=regions))
    return hours.read_measurements(str(path))


@pytest.mark.parametrize(
    "table, label, expected",
    [
        ("pmrl_table1", "VSE++, cosine", "6.0 h, 9 GiB"),  # 30 x 0.2 and 36 s
        ("pmrl_table1", "GCE spherical, Mahalanobis", "~6.0 h, 9 GiB"),  # with other heads
        ("pmrl_table2", "VSE++, cosine", "14 h, 30 GiB"),  # 30 x 0.2 + 15 x 0.5
        ("ucmr_table1", "VSRN", "4.5 h, 5 GiB"),
        ("ucmr_table1", "VSRN, wide", "not measured"),
        ("ucmr_table1", "PCME", "not measured"),
        ("ucmr_table3", "VSRN", "~1.2 h, 5 GiB"),  # Flickr30k has 145,000 pairs, COCO 566,435
        ("ucmr_table3", "VSE++ft", "~3.5 h, 30 GiB"),
        ("jwae_table3", "VSE++ (ResNet+GRU)", "~17 h, 30 GiB"),  # on both
        ("jwae_table3", "GXN (ResNet+GRU)", ""),
    ],
)
def test_hours_and_memory_of_rows_follow_from_what_was_measured(
    measurements, table, label, expected
):
    (row,) = (row for row in TABLES[table].rows if row.label == label)
    assert hours.spell_cost(row.runs, measurements) == expected
    assert "one card" in hours.describe_hours(measurements)


def test_without_measurements_no_hours_are_named(tmp_path, capsys, monkeypatch):
    assert hours.read_measurements(str(tmp_path / "none.csv")) == []
    monkeypatch.setattr(runner, "read_measurements", lambda: [])
    runner.main(TABLES["ucmr_table3"], ["--list"])
    out = capsys.readouterr().out
    assert "VSRN ours " in out and "not measured" in out and " GiB" not in out.split("Papers")[0]
    assert "What the rows take has not been measured: python benchmark.py." in out


# ---- running

WASSERSTEIN = (train_command(data_name="coco", sim="wasserstein"), evaluate_command(fold5=True))
POINT = (train_command(data_name="coco", max_violation=True), evaluate_command(fold5=True))
SMALL_TABLE = Table(
    "t",
    (recalls(),),
    (
        Row("a", (1.0, 1.0, 1.0, 1.0, 1.0, 1.0), (WASSERSTEIN,)),
        Row("b", (2.0, 2.0, 2.0, 2.0, 2.0, 2.0), (POINT,)),
        Row("c", (3.0, 3.0, 3.0, 3.0, 3.0, 3.0)),
    ),
)


def in_this_process(step: Step) -> str:
    """runner.run_step without a process of its own, which would load torch once more."""
    script, *words = step.command
    main = {"train.py": train, "evaluate.py": evaluate}[script].main
    os.makedirs(os.path.dirname(step.log), exist_ok=True)
    with open(step.log, "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        try:
            main(words)
        except SystemExit as stop:
            if stop.code:
                return str(stop.code)
    return ""


@pytest.mark.slow
def test_a_table_runs_resumes_and_skips(tmp_path, demo_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "run_step", in_this_process)
    monkeypatch.setitem(TABLE_SCALES["demo"].train, "num_epochs", 2)

    base = ["--demo", "--data_path", demo_path, "--runs", str(tmp_path / "runs")]

    def call(*more):
        capsys.readouterr()
        runner.main(SMALL_TABLE, [*base, *more])
        return capsys.readouterr()

    dry = call("--dry_run").out
    assert dry.count("train.py") == 2 and dry.count("evaluate.py") == 2
    assert not (tmp_path / "runs").exists()

    out, err = call("--only", "1")
    assert "a: this code (1)" in out and "train.py" in err and "difference" not in out

    folder = next(path for path in (tmp_path / "runs" / "demo").iterdir() if path.is_dir())
    log = (folder / "log.txt").read_text().splitlines(keepends=True)
    (folder / "log.txt").write_text("".join(log[:-1]))  # as if it had been stopped before its end
    next(folder.glob("results_*.json")).unlink()
    again, err = call()
    assert "--resume" in err and "c: published only" in again
    assert sum("train.py" in line for line in err.splitlines() if line.startswith("[")) == 2
    next(folder.glob("results_*.json")).unlink()
    again, err = call()
    assert "evaluate.py" in err and "train.py" not in err  # the training has been done
    skipped, err = call("--runs", f"{tmp_path}/./runs")
    assert "train.py" not in err and again == skipped

    photos = ["--photos", os.path.join(demo_path, "demo", "images")]
    words = [*photos, "--count", "1", "--output", str(tmp_path / "picture.png")]
    figures.main(["--checkpoint", str(folder), *words])
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    message = "names two runs .*; give folders of"
    refused(capsys, figures.main, ["--checkpoint", folder, folder, *words], message)


def test_halves_of_val2014_are_disjoint_and_even(tmp_path, demo_path, capsys):
    os.symlink(os.path.join(demo_path, "demo_coco"), tmp_path / "coco")
    coco_halves.main(["--data_path", str(tmp_path)])
    assert "images to train on" in capsys.readouterr().out

    splits = {}
    for name in ("train", "dev", "test"):
        splits[name] = read_split(str(tmp_path), "coco_halves", name).require_sound()
    dev = splits["dev"]
    test = splits["test"]
    assert not set(dev.image_ids) & set(test.image_ids)
    assert 0 <= len(dev.images) - len(test.images) <= 1

    for parts, file in (([splits["train"]], "train2014"), ([dev, test], "val2014")):
        path = tmp_path / "coco" / "annotations" / f"captions_{file}.json"
        stored = json.loads(path.read_text())
        wanted = {(a["image_id"], a["caption"]) for a in stored["annotations"]}
        found = set()
        for split in parts:
            images = [split.image_ids[i] for i in split.caption_image]
            found.update(zip(images, split.captions))
        assert found == wanted

    message = "there is no file .*captions_train2014.json; put COCO's captions"
    with pytest.raises(SystemExit, match=message):
        coco_halves.main(["--data_path", str(tmp_path / "nowhere")])


def test_failing_command_is_told_in_one_line(tmp_path, monkeypatch):
    # what is printed first is received first without it, too
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    fails = ["-c", "import sys; print('words'); sys.exit('the last line')"]
    step = Step(fails, str(tmp_path / "x"), str(tmp_path / "log"))
    assert runner.run_step(step) == "status 1: the last line"

    lacking = Step([], str(tmp_path / "y"), lacks="nothing there")
    failures = runner.run_all([("a", [step]), ("b", [step, lacking])])
    assert failures == ["a: status 1: the last line", "b: nothing there"]


@pytest.mark.parametrize("value", ['"12"', "[1]", "{}", "9" * 400, "1e999", "true", "1e300"])
def test_results_that_are_no_numbers_are_named(tmp_path, value):
    path = tmp_path / "r.json"
    path.write_text(f'{{"protocols": {{"full": {{"rsum": {value}}}}}}}')
    place = Setting(str(tmp_path), str(tmp_path), "full")
    message = (
        "r.json holds .{1,70} as protocols/full/rsum, which is not a number that evalu"
        "ate.py writes; delete it, and it is made again"
    )
    with pytest.raises(InputError, match=message):
        runner.collect_cells([Step([], str(path))], ["protocols/full/rsum"], place)


def test_a_training_that_outlives_its_runner_is_not_resumed_beside_itself(
    tmp_path, small_run, monkeypatch
):
    monkeypatch.setattr(runner, "run_step", in_this_process)
    run = str(small_run(to=tmp_path / "run"))
    os.remove(os.path.join(run, "log.txt"))  # whose last line says that it is done
    words = ["train.py", "--logger_name", run]
    step = Step(words, os.path.join(run, "model_best.pt"), str(tmp_path / "run.txt"), run)
    assert "--resume" in step.command

    with Command(hold_run, run) as owner:
        owner.said("held")
        (failure,) = runner.run_all([("a", [step])])

    sentence = (
        f"a: train.py: {run} is in use by a training that still runs .process {owner.pid} on "
        ".*epoch 3/12 done.; wait until it ends, .*"
    )
    assert re.fullmatch(sentence, failure), failure
