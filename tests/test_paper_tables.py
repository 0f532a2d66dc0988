"""The tables of the papers: rows that can be run, published numbers that are those of the papers, what is printed,
resuming."""
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest

import evaluate
import train
from data import read_split
from methods import METHODS, cca
from paper_tables import __main__ as listing
from paper_tables import coco_halves, common, figures
from paper_tables import runs as running
from paper_tables.common import Columns, Row, Table, recalls
from paper_tables.runs import SCALES, Run, Step

ROOT = os.path.join(os.path.dirname(__file__), "..")
PAPERS = os.path.join(ROOT, "..", "shared", "papers")
FILES = {"pmrl": ["000_ae996119eff05b8c.txt"], "ucmr": ["001_d36162b73b003c58.txt", "003_d8c7975743234760.txt"],
         "jwae": ["002_e14e6ff358082098.txt"], "dmsm": ["004_b96ec9011b432480.txt"]}
TABLES = {name: listing.table(name) for name in listing.NAMES}


def opt(tmp_path, *words):
    found = common.arguments("").parse_args(["--runs", str(tmp_path / "runs"), *map(str, words)])
    found.data_path = found.data_path or str(tmp_path / "data")
    return found


def runs(table):
    return [run for row in table.rows for run in row.runs]


# ---- rows

@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TABLES)
def test_options_of_every_row_parse(name, scale, tmp_path, monkeypatch):
    """Those of training and those of evaluation; the run's folder and its seed are those of the row."""
    if scale == "f8k" and not TABLES[name].f8k:
        return
    monkeypatch.setattr(train, "load_checkpoint", lambda *_, **__: None)    # of a run to start from
    for folder in ("f30k_entities", "demo_entities"):       # without them options of phrases have no effect
        os.makedirs(tmp_path / "data" / folder / "Annotations")
    said = opt(tmp_path, *([f"--{scale}"] * (scale != "full")))
    for run in runs(TABLES[name]):
        for step in running.run_steps(run, 3, common.build_place(said)):
            assert not re.search(r"[{}]", " ".join(step.words))
            if step.words[:1] == ["train.py"]:
                if "--word_vectors" in step.words:
                    vectors = step.words[step.words.index("--word_vectors") + 1]
                    os.makedirs(os.path.dirname(vectors), exist_ok=True)
                    open(vectors, "w").close()
                found = train.parse_args(step.words[1:])
                assert found.seed == 3 and found.logger_name == step.folder and found.data_name in step.folder
            elif step.words[:1] == ["evaluate.py"]:
                evaluate.parse_args(step.words[1:])


def test_full_rows_keep_the_papers_setting(tmp_path):
    for run in runs(TABLES["pmrl_table1"]) + runs(TABLES["ucmr_table5"]):
        found = train.parse_args(running.training_options(run, "full").replace("--finetune --freeze_bn", "").split())
        width, margin = (2048, 0.1) if found.img_enc == "vsrn" else (1024, 0.2)
        assert (found.embed_size, found.margin, found.lr_update, found.batch_size, found.max_violation) == (
            width, margin, 15, 128, True)
        assert (found.num_epochs, found.learning_rate) == ((15, 2e-5) if run.start else (30, 2e-4))


# What the papers' experimental sections say, field by field, and how train.py spells it. (Where a paper says nothing,
# as `dmsm` of epochs or `jwae` of when its rates decay, nothing is compared; the notes of the tables tell what was
# taken.)
VSEPP = {"num_epochs": 30, "learning_rate": 2e-4, "lr_update": 15, "margin": 0.2, "embed_size": 1024, "word_dim": 300,
         "batch_size": 128, "cnn_type": "resnet152", "use_restval": True, "finetune": False, "select": "rsum",
         "txt_enc": "gru"}
TUNED = {**VSEPP, "num_epochs": 15, "learning_rate": 2e-5, "finetune": True, "freeze_bn": True}
REGIONS = {"img_enc": "vsrn", "num_epochs": 30, "learning_rate": 2e-4, "lr_update": 15, "batch_size": 128,
           "embed_size": 2048,
           "word_dim": 300, "region_norm": "regions", "captioner": 1.0, "captioner_original": True}
JWAE = {"learning_rate": 1e-4, "batch_size": 128}
RAW = {"feature_norm": False}
MH = {"latent_norm": "sphere", "recon_images": 0.5, "recon_captions": 0.005, "prior_images": 0.01,
      "prior_captions": 0.01,
      "max_violation": True}
DMSM = {"optimizer": "sgd", "learning_rate": 0.5, "lr_update": 1000, "negatives": 40, "gamma": 10.0, "embed_size": 300,
        "layer_style": "tanh", "feature_norm": False, "select": "hbr", "txt_enc": "trigram_conv"}
RECIPES = [
    ("pmrl_table1", "GCIE ellipsoidal, Wasserstein",
     VSEPP | {"var_min": 0.1}, "pmrl 3.1: 15 + 15 epochs"),
    ("pmrl_table1", "VSE++, cosine", VSEPP, "pmrl 3.1"),
    ("pmrl_table2", "GCIE ellipsoidal, KL", TUNED, "pmrl 3.1: 15 epochs at 2e-5 from the trained models"),
    ("pmrl_table2", "GIE spherical, Mahalanobis", TUNED | {"learning_rate": 2e-6}, "pmrl 3.1: except GIE spherical"),
    ("ucmr_table1", "VSE++ ours", VSEPP | {"var_min": 0.1}, "ucmr 4.2"),
    ("ucmr_table1", "VSE++, wide", VSEPP | {"embed_size": 2048}, "ucmr 4.2: doubling the dimension"),
    ("ucmr_table1", "VSRN ours", REGIONS | {"margin": 0.1}, "ucmr 4.2: margin of 0.1 for VSRN; the official codebase"),
    ("ucmr_table1", "VSRN", REGIONS | {"margin": 0.2, "image_head": "point"}, "VSRN's code"),
    ("ucmr_table1", "VSRN, wide", REGIONS | {"margin": 0.2, "embed_size": 4096}, "ucmr 4.2: doubling the dimension"),
    ("jwae_table3", "jWAE-MH (VGG+w2v)",
     JWAE | MH | RAW | {"img_layers": "1024", "txt_layers": "1024"}, "jwae 4.2, 5.1"),
    ("jwae_table3", "jWAE-MH (ResNet+GRU)", MH | {"txt_enc": "bigru", "num_layers": 2}, "jwae 4.2, 5.1"),
    ("jwae_table3", "jWAE-MSE (VGG+w2v)", JWAE | RAW | {
        "loss": "mse", "recon_images": 1.0, "recon_captions": 1.0, "prior_images": 0.2 * 128,
        "prior_captions": 0.2 * 128,
        "mse_weight": 1024.0}, "jwae 5.1; eq. 7 a mean over pairs, so all terms count per item"),
    ("jwae_table3", "jWAE-MH+SCAN i-t (ResNet+GRU)",
     MH | RAW | {"cross_attn": "i2t", "agg_func": "Mean"}, "SCAN's code"),
    ("jwae_table3", "Emb. Network (VGG+w2v)", {"lr_update": 1000, "num_epochs": 20, "batch_size": 1000},
     "the two-branch networks' code: 20 epochs at a constant rate"),
    ("jwae_table4", "VAE-MH",
     MH | {"prior_images": 0.0, "prior_captions": 0.0, "latent_norm": "none", "logvar_init": -6.0},
     "jwae 5.2: in place of the WAE"),
    ("dmsm_table1", "FC7, 2000-1000-300 | 4000-2000-1000-500-300",
     DMSM | {"img_layers": "2000-1000", "txt_layers": "4000-2000-1000-500"}, "dmsm 4.2, Table 1")]


@pytest.mark.parametrize("table, label, expected, section", RECIPES)
def test_recipes_are_those_of_the_papers(monkeypatch, table, label, expected, section):
    monkeypatch.setattr("train.load_checkpoint", lambda *_, **__: None)             # --init_from of the fine-tuned rows
    run = next(row for row in TABLES[table].rows if row.label == label).runs[0]
    more = ["--init_from", "RUN"] if run.start else []
    found = vars(train.parse_args([*running.training_options(run, "full").split(), *more]))
    assert {name: found[name] for name in expected} == expected, section


@pytest.mark.parametrize("label, expected", [
    ("CCA (VGG+HGLMM)", (1e-4, 1e-4, 256)), ("CCA (Mean Vector)", (1e-4, 1e-4, 256)),
    ("CCA (Mean Vector), tuned", ("auto", "auto", "auto"))])
def test_cca_is_kleins_but_in_the_tuned_rows(tmp_path, monkeypatch, label, expected):
    said, seen = common.build_place(opt(tmp_path)), []
    monkeypatch.setattr(cca, "fit_and_embed", seen.append)
    for run in next(row for row in TABLES["jwae_table3"].rows if row.label == label).runs:
        for step in running.run_steps(run, 0, said):
            if step.words[:1] == ["cca.py"]:
                cca.main(step.words[1:])
    assert [(one.eta_image, one.eta_text, one.dim) for one in seen] == [expected] * 2, "Klein's regularisation"


@pytest.mark.parametrize("written, options", [
    ("", ""), ("--sim manhattan", "--sim manhattan"), ("vse++", "--max_violation"), ("mse --loss mse", None),
    ("dmsm --img_layers 9", None), ("gcie_kl gcie_minkl_one --margin 0.1",
                                    "--sim kl --sim minkl --head spherical_one --margin 0.1")])
def test_a_row_names_methods_before_its_own_options(written, options):
    if options is None:
        name, own = written.split(" ", 1)
        options = f"{METHODS[name].flags} {own}"
    run = Run("coco", written)
    assert run.train == options and dataclasses.replace(run, data="f30k").train == options
    assert Run("coco", options) == run                      # however it is written, it is one run in one folder


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_options_and_a_flag_comes_before_it(name, tmp_path):
    """With what it needs, and without."""
    (tmp_path / "vectors.txt").write_text("a 1 2")
    method = METHODS[name]
    given = {"--text_features": ["--text_features", "w2v"], "--word_vectors":
             ["--word_vectors", str(tmp_path / "vectors.txt")]}
    more = next((words for flag, words in given.items() if flag in method.needs), [])
    by_name, by_hand = (vars(train.parse_args([*words, *more])) for words in (["--method", name], method.flags.split()))
    assert by_name.pop("method") == name and by_name.pop("logger_name").endswith(f"_{name}_seed0")
    assert by_hand.items() > by_name.items()
    assert train.parse_args(["--method", name, *more, "--embed_size", "14", "--seed", "3"]).embed_size == 14
    if more:
        with pytest.raises(SystemExit):
            train.parse_args(["--method", name])


# ---- published numbers

@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("ucmr_fig2", "pmrl_section34")])
def test_numbers_stand_in_the_papers(name):
    """Each row's numbers in the paper's text, one after another (read again from the file, not from the script)."""
    if not os.path.isdir(PAPERS):
        pytest.skip("the papers (../shared/papers) are not on this machine")
    with open(os.path.join(PAPERS, FILES[name.split("_")[0]][0]), encoding="utf-8") as f:
        text = re.sub(r"</?b>|\*\*", "", f.read())
    found = " " + " ".join(re.findall(r"(?<![\d.])\d+\.\d+(?!\d)",
                                      re.sub(r"(\d\.\d\d)plus-or-minus\S+", r"\1 ", text))) + " "
    at = -1                                           # of the row before: the order, and so the labels, are the paper's
    for row in TABLES[name].rows:
        if name == "ucmr_table7_8":                         # each beside its deviation
            assert all(f" {x:.2f} " in found for x in row.published), row.label
            continue
        numbers = [x for x in row.published if x is not None]
        if not numbers:                                     # a row of ours
            assert row.label.endswith((", tuned", ", eq. 8", ", ours")) and row.runs, row.label
            continue
        form = "{:.2f}" if name == "pmrl_table3" else "{:.1f}"
        place = found.find(f" {' '.join(form.format(x) for x in numbers)} ", at + 1)
        assert place > at, row.label
        at = place


# ---- printing

OTHER = Columns("other", (("", (("HBR", "best_ranks/i2t/hbr"),)),), run=1)
TINY = Table("a table", (recalls("folds5", "1K", ks=(1, 5), rsum=True), OTHER), (
    Row("ours and theirs", (10.0, 20.5, 1.0, 2.0, 300.0, None), (Run("coco", "--max_violation"),)),
    Row("theirs", (1.0, None, 2.0, 3.0, 4.0, 447.74))), seeds=2, notes=("a note",))


def test_golden_printout(tmp_path):
    said = opt(tmp_path, "--demo")
    ours = [(11.25, 0.5, 2), (20.0, 0.0, 1), None, (4.0, 0.25, 2), (290.0, 2.0, 2), None]
    found = [{"label": row.label, "seeds": 2 * bool(row.runs), "ours": ours if row.runs else [None] * 6,
              "runs": bool(row.runs),
              "published": list(row.published)} for row in TINY.rows]
    assert common.printed(TINY, found, said) == """\
a table, 1K
                             image to text       text to image
                                   R@1     R@5     R@1         R@5          rsum
ours and theirs: ours (2)  11.2 +- 0.5    20.0          4.0 +- 0.2  290.0 +- 2.0
  published                       10.0    20.5     1.0         2.0         300.0
  difference                      +1.2    -0.5                +2.0         -10.0
theirs: published only             1.0             2.0         3.0           4.0

a table, other
                               HBR
ours and theirs: published
theirs: published only      447.74

ours: mean and standard deviation over the seeds (their number); drawn scenes, small models, a few epochs: shows \
that the table runs, not what the methods do
a note"""
    assert r"\begin{tabular}{lrrrrr}" in common.printed(TINY, found, opt(tmp_path, "--format", "latex"))
    assert json.loads(common.printed(TINY, found,
                                     opt(tmp_path, "--format", "json")))["rows"] == json.loads(json.dumps(found))


def test_number_of_seeds_is_that_of_the_columns(tmp_path):
    """A row of two runs, the first with two seeds and the second with one."""
    found = [{"label": "a", "seeds": 2, "ours": [(1.0, 0.5, 2)] * 5 + [(3.0, 0.0, 1)], "published": [None] * 6,
              "runs": True}]
    said = common.printed(TINY, found, opt(tmp_path))
    assert said.count("a: ours (2)") == 1 and said.count("a: ours (1)") == 1


def test_missing_data_are_named_and_the_published_numbers_printed(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2 of 2 runs failed"):
        common.main(TABLES["pmrl_table1"], "", ["--data_path", str(tmp_path), "--only", "VSE++", "2"])
    out, err = capsys.readouterr()
    assert "coco is not there; put there COCO's train2014.zip" in err
    assert "58.3" in out and "78.0" in out and "94.0" not in out


def test_list(capsys, tmp_path):
    listing.main(["--runs", str(tmp_path)])
    said = capsys.readouterr().out
    assert all(f"\n{name} " in said for name in TABLES)


# ---- running

SMALL_TABLE = """
from paper_tables.common import Row, Run, Table, main, recalls
ROW = Run("coco", "--sim wasserstein"); POINT = Run("coco", "--max_violation")
TABLE = Table("t", (recalls(),), (Row("a", (1.0,) * 6, (ROW,)), Row("b", (2.0,) * 6, (POINT,)), Row("c", (3.0,) * 6)))
if __name__ == "__main__":
    main(TABLE)
"""


def in_this_process(step: Step) -> str:
    """running.execute without a process of its own, which would load torch once more."""
    script, *words = step.command
    main = {"train.py": train, "evaluate.py": evaluate}[script].main
    os.makedirs(os.path.dirname(step.target) or ".", exist_ok=True)
    with open(step.log or os.devnull, "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        try:
            main(words)
        except SystemExit as stop:
            return str(stop.code) if stop.code else ""
    return ""


@pytest.fixture
def table_command(tmp_path, demo_path, monkeypatch, capsys):
    """Stdout and stderr of a small table's command."""
    monkeypatch.setattr(running, "execute", in_this_process)
    told = {"__name__": "table"}
    exec(SMALL_TABLE, told)

    def call(*more) -> tuple[str, str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(ROOT)
            try:
                common.main(told["TABLE"], "",
                            ["--demo", "--data_path", demo_path, "--runs", str(tmp_path / "runs"), *more])
            except SystemExit as stop:
                assert not stop.code
        shown = capsys.readouterr()
        return shown.out, shown.err
    return call


@pytest.mark.slow
def test_a_table_runs_resumes_and_skips(tmp_path, demo_path, table_command):
    also = ["--also=--num_epochs 2 --vse_mean_warmup_epochs 0"]
    dry, _ = table_command("--dry_run", *also)
    assert dry.count("train.py") == 2 and dry.count("evaluate.py") == 2 and not (tmp_path / "runs").exists()
    (tmp_path / "table.py").write_text(SMALL_TABLE)         # as a user runs it: three processes
    first = subprocess.run([sys.executable, str(tmp_path / "table.py"), "--demo", "--data_path", demo_path, "--runs",
                            str(tmp_path / "runs"), "--only", "a", *also], capture_output=True, text=True, cwd=ROOT,
                           env={**os.environ, "PYTHONPATH": ROOT})
    assert first.returncode == 0, first.stderr
    assert "a: ours (1)" in first.stdout and "train.py" in first.stderr and first.stdout.count("difference") == 1
    folder = next(path for path in (tmp_path / "runs" / "demo").iterdir() if path.is_dir())
    log = (folder / "log.txt").read_text().splitlines(keepends=True)
    (folder / "log.txt").write_text("".join(log[:-1]))      # as if it had been stopped before its end
    again, told = table_command(*also)
    assert "--resume" in told and "c: published only" in again
    assert sum("train.py" in line for line in told.splitlines() if line.startswith("[")) == 2
    skipped, told = table_command(*also)
    assert "train.py" not in told and again == skipped
    figures.main(["--checkpoint", str(folder), "--photos", os.path.join(demo_path, "demo", "images"), "--count", "2",
                  "--images", "3", "--uncertain", "--output", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 10_000 and (folder / "uncertain"
                                                                   / "uncertain_captions.png").exists()
    with pytest.raises(SystemExit, match="--images 99: the split has images 0 to 23"):
        figures.main(["--checkpoint", str(folder), "--photos", os.path.join(demo_path, "demo", "images"), "--images",
                      "99"])
    spelt, _ = table_command("--print_only", "--runs", f"{tmp_path}/./runs", *also)
    assert spelt == skipped


def test_halves_of_val2014_are_disjoint_and_even(tmp_path, demo_path, capsys):
    os.symlink(os.path.join(demo_path, "demo_coco"), tmp_path / "coco")
    words = ["--data_path", str(tmp_path)]
    coco_halves.main(words)
    assert "images to train on" in capsys.readouterr().out
    train_, dev, test = (read_split(str(tmp_path), "coco_halves", name).require_sound()
                         for name in ("train", "dev", "test"))
    assert not set(dev.image_ids) & set(test.image_ids) and 0 <= len(dev.images) - len(test.images) <= 1
    for splits, part in (([train_], "train2014"), ([dev, test], "val2014")):
        stored = json.loads((tmp_path / "coco" / "annotations" / f"captions_{part}.json").read_text())
        wanted = {(a["image_id"], a["caption"]) for a in stored["annotations"]}
        assert {(s.image_ids[i], c) for s in splits for i, c in zip(s.caption_image, s.captions)} == wanted
    before = (tmp_path / "coco_halves" / "dataset_coco_halves.json").read_bytes()
    coco_halves.main(words)                                 # again: the same halves
    assert (tmp_path / "coco_halves" / "dataset_coco_halves.json").read_bytes() == before
    with pytest.raises(SystemExit, match="there is no file .*captions_train2014.json; put COCO's captions"):
        coco_halves.main(["--data_path", str(tmp_path / "nowhere")])


def test_failing_command_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)   # what is printed first is received first without it, too
    step = Step(["-c", "import sys; print('words'); sys.exit('the last "
                       "line')"], str(tmp_path / "x"), str(tmp_path / "log"))
    assert running.execute(step) == "the last line"
    made = running.make([("a", [step]), ("b", [step, Step([], str(tmp_path / "y"), lacks="nothing there")])], False)
    assert made == ["a: the last line", "b: nothing there"]
