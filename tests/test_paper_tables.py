"""The tables of the papers: rows that can be run, published numbers that are those of the papers, what is printed,
resuming."""
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

import cca
import evaluate
import similarities
import train
from data import read_split
from demo import __main__ as demo
from methods import METHODS
from paper_tables import __main__ as listing
from paper_tables import coco_halves, common, figures
from paper_tables import runs as running
from paper_tables.common import Columns, Row, Table, recalls
from paper_tables.runs import DATA, SCALES, Run, Step

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


def test_small_sizes_divide_the_rows_own(tmp_path):
    assert running.resized("--embed_size 2048 --img_layers 2000-1000 --txt_layers 0 --margin 16", 16) == (
        "--embed_size 128 --img_layers 125-62 --txt_layers 0 --margin 16")
    assert running.last("--a 1 --b --a 2 --no-c") == "--a 2 --b --no-c"
    wide, point = (running.training_options(TABLES["ucmr_table1"].rows[k].runs[0], "demo") for k in (1, 0))
    assert "--embed_size 128" in wide and wide.replace("128", "64") == point


def test_tables_share_runs(tmp_path):
    said = common.build_place(opt(tmp_path))
    one, two, three = (running.run_steps(TABLES[name].rows[k].runs[0], 0, said)[-2].folder for name, k in (
        ("pmrl_table1", 10), ("ucmr_table1", 2), ("ucmr_fig2", 0)))
    assert one == two == three
    tuned = running.run_steps(TABLES["pmrl_table2"].rows[10].runs[0], 0, said)
    assert tuned[-3].folder == one and tuned[-2].words[tuned[-2].words.index("--init_from") + 1] == one


EXCEPTIONS = {                                              # methods that no paper's table has, and why
    "vse0": "VSE++'s own baseline", "order0": "VSE++'s own baseline", "order++": "VSE++'s own baseline",
    "infonce": "later", "vse_infinity": "later", "dmsm_bag": "DSSM's bag, in no row",
    "mls": "later", "mls_captions": "later",
    "scan_i2t": "with LogSumExp; jwae_table3 has the mean, as SCAN's own best"}


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


def test_a_row_of_an_unknown_method_is_refused():
    with pytest.raises(KeyError, match="vse_plus"):
        Run("coco", "vse_plus --margin 0.1")


@pytest.mark.parametrize("name", TABLES)
def test_tables_write_no_flags_of_methods(name):
    """Those that say what a method computes stand in METHODS alone; a table has the sizes and recipes of its rows."""
    with open(sys.modules[f"paper_tables.{name}"].__file__, encoding="utf-8") as f:
        found = re.findall(r"--(?:sim|head|image_head|text_head|img_enc|txt_enc|loss|max_violation|margin|captioner|"
                           r"region_norm|cross_attn|bi_gru|recon_\w+|prior_\w+|vae|vib|mmd|mse_weight|layer_style)\b",
                           f.read())
    assert not found


def words_of(options: str) -> set[str]:
    return set(re.findall(r"--[\w-]+(?: (?!--)\S+)?", options))


def test_methods_are_rows():
    """The options of every method are among those of a row of a table, or the method is a named exception."""
    trained = [words_of(running.training_options(part, "full")) for table in TABLES.values() for run in runs(table)
               for part in (run, run.start) if part]
    rows = {name for name, method in METHODS.items() if any(words_of(method.flags) <= row for row in trained)}
    assert set(METHODS) - rows == set(EXCEPTIONS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_options_and_a_flag_comes_before_it(name, tmp_path):
    """With what it needs, and without."""
    (tmp_path / "vectors.txt").write_text("a 1 2")
    method = METHODS[name]
    given = {"--text_features": ["--text_features", "w2v"], "--word_vectors":
             ["--word_vectors", str(tmp_path / "vectors.txt")]}
    more = next((words for flag, words in given.items() if flag in method.needs), [])
    by_name, by_hand = (vars(train.parse_args([*words, *more])) for words in (["--method", name], method.flags.split()))
    assert {**by_name, "method": None} == by_hand
    assert train.parse_args(["--method", name, *more, "--embed_size", "14", "--seed", "3"]).embed_size == 14
    if more:
        with pytest.raises(SystemExit):
            train.parse_args(["--method", name])


def test_methods_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        train.parse_args(["--methods"])
    out = capsys.readouterr().out
    assert not stop.value.code
    assert all(f"{name}: {m.title} ({m.paper})\n    {m.flags}" in out for name, m in METHODS.items())


# ---- published numbers

def test_printed_sums_are_those_of_their_parts():
    """To the rounding of seven numbers; where a paper misprints one, a note of the table says so."""
    checked = 0
    for table in TABLES.values():
        if [path.split("/")[-1] for path in table.columns[0].paths] == [*2 * ["r1", "r5", "r10"], "rsum"]:
            for row in table.rows:
                off = abs(sum(row.published[:6]) - row.published[6])
                misprinted = any(note.startswith(f"{row.label}: rsum is printed as") for note in table.notes)
                assert (off > 5) if misprinted else off < 0.11, (table.title, row.label, off)
                checked += 1
    assert checked == 31


def test_labels_name_one_row_and_notes_are_sentences():
    for table in TABLES.values():
        assert len({row.label for row in table.rows}) == len(table.rows) and isinstance(table.notes, tuple)


def test_same_rows_in_two_papers_differ_only_where_the_notes_say():
    def published(name, label):
        return next(row.published for row in TABLES[name].rows if row.label == label)
    tuned = published("pmrl_table2", "VSE++, cosine")
    assert tuned == published("jwae_table3", "VSE++ (ResNet+GRU)")[6:]
    assert published("ucmr_table3", "VSE++ft") == published("jwae_table3", "VSE++ (ResNet+GRU)")[:6]
    for label in ("VSE++ (ResNet+GRU)", "jwae_table4"), ("jWAE-MH (ResNet+GRU)", "jwae_table4"):
        long = published("jwae_table3", label[0])[6:]
        short = next(row.published for row in TABLES["jwae_table4"].rows if row.label.split()[0] == label[0].split()[0])
        assert short == (*long[:2], *long[3:5])
    for theirs, ours, allowed in ((tuned, "VSE++ft", []), (published("pmrl_table1", "VSE++, cosine"), "VSE++", [3]),
                                  (published("pmrl_table2", "GCIE ellipsoidal, min KL"), "VSE++ft ours", [1]),
                                  (published("pmrl_table1", "GCIE ellipsoidal, Wasserstein"), "VSE++ ours",
                                   [0, 1, 2, 3, 5])):
        mine = published("ucmr_table1", ours)[1:4] + published("ucmr_table1", ours)[5:8]
        assert [k for k in range(6) if theirs[k] != mine[k]] == allowed


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


def test_both_extractions_of_ucmr_agree():
    """The second one has columns where the first has rows; what it keeps of rows is compared: Tables 3, 4, 6 and three
    recalls of Tables 1 and 2."""
    if not os.path.isdir(PAPERS):
        pytest.skip("the papers (../shared/papers) are not on this machine")
    with open(os.path.join(PAPERS, FILES["ucmr"][1]), encoding="utf-8") as f:
        found = " " + " ".join(re.findall(r"(?<![\d.])\d+\.\d+(?!\d)", f.read())) + " "
    spans = {"ucmr_table1": ((1, 4), (9, 12)), "ucmr_table2": ((1, 4), (9, 12)), "ucmr_table3": ((0, 3), (3, 6)),
             "ucmr_table4": ((0, 1), (3, 4)), "ucmr_table6": ((0, 3), (3, 6))}
    for name, parts in spans.items():
        for row in (row for row in TABLES[name].rows if any(row.published)):
            for low, high in parts:
                assert f" {' '.join(f'{x:.1f}' for x in row.published[low:high])} " in found, (name, row.label)
    for k in range(7):                                      # Table 5: nine rows of a model stand as columns
        rows = [row.published[k] for row in TABLES["ucmr_table5"].rows]
        for models in (rows[:9], rows[9:18]) + ((rows[18:],) if k >= 2 else ()):
            assert f" {' '.join(f'{x:.1f}' for x in models)} " in found, k


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


def test_other_printouts_keep_what_their_form_would_eat(tmp_path):
    odd = Table("t", (Columns("", (("10%", (("A", "x"),)),)),), (Row("300 | 300", (2.0,)),), notes=("a note",))
    found = [{"label": "300 | 300", "seeds": 1, "ours": [(1.96, 0.0, 1)], "published": [2.0], "runs": True}]
    assert r"{10\%}" in common.printed(odd, found, opt(tmp_path, "--format", "latex"))
    assert r"| 300 \| 300: ours (1) | 2.0 |" in common.printed(odd, found, opt(tmp_path, "--format", "markdown"))
    assert "difference           +0.0" in common.printed(odd, found, opt(tmp_path))        # 1.96 - 2.0 is no -0.0
    assert json.loads(common.printed(odd, found, opt(tmp_path, "--format", "json")))["notes"] == ["a note"]


def test_number_of_seeds_is_that_of_the_columns(tmp_path):
    """A row of two runs, the first with two seeds and the second with one."""
    found = [{"label": "a", "seeds": 2, "ours": [(1.0, 0.5, 2)] * 5 + [(3.0, 0.0, 1)], "published": [None] * 6,
              "runs": True}]
    said = common.printed(TINY, found, opt(tmp_path))
    assert said.count("a: ours (2)") == 1 and said.count("a: ours (1)") == 1


def test_values_of_small_sizes_come_from_the_whole_split():
    stored = {"protocols": {"full": {"rsum": 1}, "cxc": {"rsum": 2}, "folds5": {"rsum": 3}}}
    for name, small in (("folds5", 1), ("cxc_folds5", 2)):
        assert common.value(stored, common.of_whole(f"protocols/{name}/rsum")) == small
    assert common.value(stored, "protocols/folds5/rsum") == 3
    assert common.value(stored, "protocols/a/b/c") is None
    assert common.value({"models": {"x": {"a": 4}}}, "models/*/a") == 4


@pytest.mark.parametrize("words, sentence", [
    (["--only", "nothing"], "--only nothing is no row of pmrl Table 1"),
    (["--seeds", "0"], "--seeds: '0' is not a whole number of at least 1"),
    (["--also", "{x}"], "holds braces or quotes"), (["--also", "--cnn_weights 'a b'"], "holds braces or quotes")])
def test_wrong_options_are_one_sentence(words, sentence, capsys):
    with pytest.raises(SystemExit):
        common.main(TABLES["pmrl_table1"], "", words)
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_missing_data_are_named_and_the_published_numbers_printed(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2 of 2 runs failed"):
        common.main(TABLES["pmrl_table1"], "", ["--data_path", str(tmp_path), "--only", "VSE++", "2"])
    out, err = capsys.readouterr()
    assert "coco is not there; put there COCO's train2014.zip" in err
    assert "58.3" in out and "78.0" in out and "94.0" not in out


def test_dry_run_names_all_that_is_missing(tmp_path, capsys):
    common.main(TABLES["jwae_table3"], "", ["--data_path", str(tmp_path), "--dry_run"])
    said = capsys.readouterr().out
    for name in ("f30k", "coco", "f30k_precomp", "coco_precomp", "GoogleNews-vectors-negative300.bin"):
        assert f"# {tmp_path / name} is not there" in said, name
    assert not re.search(r"^python$", said, re.MULTILINE)


def test_nothing_is_trained_that_cannot_be_tested(tmp_path, capsys):
    """COCO is there, Crisscrossed Captions and the instances are not."""
    (tmp_path / "coco").mkdir()
    for name, lacks in (("ucmr_table2", "cxc is not there; put there the csv files"),
                        ("ucmr_table1", "instances_val2014.json is not")):
        with pytest.raises(SystemExit, match=lacks):
            common.main(TABLES[name], "",
                        ["--data_path", str(tmp_path), "--only", "1", "--runs", str(tmp_path / "runs")])
        assert "train.py" not in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_list_and_hours(capsys, tmp_path):
    listing.main(["--runs", str(tmp_path)])
    said = capsys.readouterr().out
    assert all(f"\n{name} " in said for name in TABLES) and "estimates" in said
    for name, table in TABLES.items():
        told = re.findall(r"bout\s+(\d+)\s+GPU\s+hours", sys.modules[f"paper_tables.{name}"].__doc__)
        assert told == [f"{common.gpu_hours(table):.0f}"] or (not told
                                                              and not any(run.train for run in runs(table))), name


def test_no_machines_path():
    for folder, _, files in os.walk(os.path.join(ROOT, "paper_tables")):
        for file in files:
            if file.endswith(".py"):
                with open(os.path.join(folder, file), encoding="utf-8") as f:
                    assert not re.search(r"/(home|work|tmp|root|mnt|Users)\b", f.read()), file


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
    for words, message in ((["--output", str(tmp_path)], "cannot be written"), (["--workers", "-1"], "2")):
        with pytest.raises(SystemExit, match=message):
            figures.main(["--checkpoint", str(folder), *words])
    spelt, _ = table_command("--print_only", "--runs", f"{tmp_path}/./runs", *also)
    assert spelt == skipped
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("margin: 0.2", "margin: 0.3"))   # not what the row says
    assert "a: published" in table_command("--print_only", *also)[0]
    dry, _ = table_command("--dry_run", *also)
    assert "--overwrite" in dry and "was trained with --margin 0.3, now 0.2" in dry


def test_pictures_of_runs_on_different_data_are_refused(tmp_path, demo_path):
    """The captions of the second data set are shifted by three, the features of the third are of another extractor."""
    for name in ("one", "two", "three"):
        shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / name)
        (tmp_path / name / "features.json").write_text('{"ims": "net %s"}' % ("B" if name == "three" else "A"))
    captions = (tmp_path / "two" / "test_caps.txt").read_text().splitlines()
    (tmp_path / "two" / "test_caps.txt").write_text("\n".join([*captions[3:], *captions[:3]]) + "\n")
    small = ["--data_path", str(tmp_path), "--embed_size", "16", "--word_dim", "8", "--num_epochs", "1",
             "--batch_size", "32",
             "--vocab_threshold", "1", "--device", "cpu"]
    for name in ("one", "two"):
        assert train.train(train.parse_args([*small, "--data_name", name, "--logger_name",
                                             str(tmp_path / f"run_{name}")])) == 0
    one, two = (str(tmp_path / f"run_{name}" / "model_best.pt") for name in ("one", "two"))
    for words, message in (([two], "run_two.model_best.pt has 24 images and 120 captions .* draw runs on the same "
                                   "split with"),
                           (["--data_name", "three"], "were made by 'net B'")):
        with pytest.raises(SystemExit, match=message):
            figures.main(["--checkpoint", one, *words])
    figures.main(["--checkpoint", one, two, "--data_name", "two", "--photos", os.path.join(demo_path, "demo", "images"),
                  "--count", "1", "--neighbours"])
    with pytest.raises(SystemExit, match="neighbours.png is where --neighbours draws its picture; name another file"):
        figures.main(["--checkpoint", one, "--photos", os.path.join(demo_path, "demo", "images"), "--neighbours",
                      "--output",
                      str(tmp_path / "neighbours.png")])
    for name in ("retrieval", "neighbours"):                # beside a file that is given
        assert (tmp_path / "run_one" / f"{name}.png").stat().st_size > 10_000


def test_neighbours_are_the_images_most_alike_without_the_image_itself():
    mean = torch.nn.functional.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    for similarity, log_var in ((similarities.Cosine(), None), (similarities.KL(), torch.zeros(9, 4))):
        near = figures.neighbours(similarity, similarities.Embedding(mean, log_var), [2, 7])
        for n, row in zip((2, 7), near):                    # equal variances: KL ranks as the cosine of unit means
            assert row == [k for k in (mean @ mean[n]).argsort(descending=True).tolist() if k != n][:figures.NEAREST]


@pytest.mark.parametrize("words, sides", [(["--sim", "mahalanobis"], ["captions"]),
                                          (["--sim", "mahalanobis", "--image_head", "ellipsoidal"], ["images"]),
                                          (["--sim", "wasserstein"], ["images", "captions"]), (["--sim", "cosine"], []),
                                          (["--max_violation", "--vae", "0.001", "--var_min", "1e-6"], [])])
def test_uncertain_items_are_drawn_of_the_sides_that_are_gaussian(tmp_path, demo_path, small_run, capsys, words, sides):
    small_run(*words, to=tmp_path / "run")
    capsys.readouterr()
    figures.main(["--checkpoint", str(tmp_path / "run"), "--photos", os.path.join(demo_path, "demo", "images"),
                  "--count", "1",
                  "--uncertain"])
    drawn = [side for side in ("images", "captions")
             if (tmp_path / "run" / "uncertain" / f"uncertain_{side}.png").exists()]
    assert drawn == sides
    assert ("compares points, which have no uncertainty" in capsys.readouterr().out) == (not sides)


def test_a_finished_run_needs_neither_its_start_nor_another_spelling_of_it(tmp_path, monkeypatch):
    """Of a fine-tuned run the folders are written by hand: its configuration, and the last line of its log."""
    monkeypatch.setattr(train, "load_checkpoint", lambda *_, **__: None)
    run = TABLES["pmrl_table2"].rows[10].runs[0]
    steps = running.run_steps(run, 0, common.build_place(opt(tmp_path)))
    start, tuned = (step for step in steps if step.folder)
    os.makedirs(tuned.folder)
    words = tuned.words[1:]
    at = words.index("--init_from")
    stored = {**vars(train.parse_args(words[:at] + words[at + 2:])),
              "init_from": os.path.join("elsewhere", words[at + 1])}
    with open(os.path.join(tuned.folder, "config.yaml"), "w", encoding="utf-8") as f:
        yaml.safe_dump({"options": stored}, f)
    assert tuned.command[-1] == "--overwrite" and not tuned.differs and not tuned.done
    for name, text in (("log.txt", "done: best dev rsum 1.0"), ("model_best.pt", "")):
        with open(os.path.join(tuned.folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    again = running.run_steps(run, 0, common.build_place(opt(tmp_path)))
    assert tuned.done and start.folder not in [step.folder for step in again]


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


def test_demo_data_that_were_stopped_are_written_again(tmp_path, monkeypatch):
    said = opt(tmp_path, "--demo")
    steps = running.preparations(runs(TABLES["pmrl_table1"])[0], common.build_place(said))
    step = next(s for s in steps if s.words[:2] == ["-m", "demo"])
    demo.write(said.data_path, size=8, progress=False)
    assert step.done
    monkeypatch.setattr(demo, "write_cxc", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        demo.write(said.data_path, size=8, seed=1, progress=False)
    assert not step.done


def test_failing_command_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)   # what is printed first is received first without it, too
    step = Step(["-c", "import sys; print('words'); sys.exit('the last "
                       "line')"], str(tmp_path / "x"), str(tmp_path / "log"))
    assert running.execute(step) == "the last line"
    made = running.make([("a", [step]), ("b", [step, Step([], str(tmp_path / "y"), lacks="nothing there")])], False)
    assert made == ["a: the last line", "b: nothing there"]


def test_failures_are_told_by_this_run_of_the_command(tmp_path):
    log = tmp_path / "log"
    log.write_text("a line of an earlier run\n")
    ended = Step(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], str(tmp_path / "x"), str(log))
    assert running.execute(ended) == "-c was ended by signal 9 (SIGKILL)"
    assert running.execute(Step(["-c", "raise SystemExit(3)"], str(tmp_path / "x"), str(log))) == "exit status 3"


def test_two_processes_do_not_share_a_run_folder(tmp_path):
    step = Step(["-c", "print('ran')"], str(tmp_path / "x"), str(tmp_path / "log"))
    with open(tmp_path / "log", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert running.execute(step).startswith("another process is at work in") and not (tmp_path / "log").read_text()
    assert running.execute(step) == "" and (tmp_path / "log").read_text() == "ran\n"


def test_every_data_set_has_a_place_at_every_size():
    assert {run.data for table in TABLES.values() for run in runs(table)} <= set(DATA)
    assert all(set(places) == set(SCALES) for places in DATA.values())
