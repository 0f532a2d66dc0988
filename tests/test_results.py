"""results/: tables that documents show are printed from what evaluate.py wrote, and hold nothing of a machine."""
import glob
import json
import os
import re
import shlex

import pytest

import evaluate
import train
from files.reading import read_json, read_text, read_yaml
from results import __main__ as results

ROOT = os.path.join(os.path.dirname(__file__), "..")
DOCUMENTS = [os.path.relpath(path, ROOT) for path in results.documents()]


def result_tables(text: str) -> list[str]:
    """The heads of Markdown tables that have columns of recalls or of their sum."""
    heads = re.findall(r"^(\|.*)\n\|[-| :]+\|$", text, re.MULTILINE)
    return [head for head in heads if re.search(r"\bR@\d+ \||\brsum\b", head)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_show_tables_as_they_are_printed_and_type_none(name):
    path = os.path.join(ROOT, name)
    text = read_text(path)
    assert results.filled(path, results.tables()) == text, f"run python -m results --write: {name} shows another table"
    assert not result_tables(results.BLOCK.sub("",
                                               text)), f"{name} types a table of results; show one of results/rows.yaml"


def test_every_table_is_shown():
    shown = {match[1] for name in DOCUMENTS for match in results.BLOCK.finditer(read_text(os.path.join(ROOT, name)))}
    made = results.tables()
    assert shown == set(made) and len(DOCUMENTS) > 5 and sum(map(len, made.values())) > 3 * len(made)


def test_tables_of_results_are_known():
    assert result_tables("| model | i2t R@1 | x |\n|---|---|---|\n| a | 1 | 2 |\n\n| a | dev rsum |\n|---|---|\n") == [
        "| model | i2t R@1 | x |", "| a | dev rsum |"]
    assert not result_tables("| option | reports |\n|---|---|\n| none | R@1, rsum |\n")


def options(text: str) -> dict[str, str]:
    """{option: its value} of a command line; the last one counts, as for train.py."""
    parts = re.split(r"(?:^| )(?=--)", text)
    return {name: value for name, _, value in (part.partition(" ") for part in parts if part.startswith("--"))}


def test_the_flags_of_a_row_are_those_of_its_runs():
    read = read_yaml(os.path.join(results.HERE, "rows.yaml"))
    for table in (table for table in read.values() if "like" not in table and table["columns"] != ["difference"]):
        for label, flags, names in table["rows"]:
            whole = flags.strip("`").partition("python cca.py ")[2]                 # a row with a command of its own
            said = options(whole or f"{table['command']} {flags.strip('`')}".strip())
            for name in names.split():
                ran = options(" ".join(shlex.split(read_json(os.path.join(results.HERE, f"{name}.json"))["train"])[2:]))
                ran.pop("--seed", None)
                if said.get("--init_from") == "RUN":
                    ran["--init_from"] = "RUN"
                assert ran == said, f"{name} ({label}) was trained with other flags than its row says"


def test_every_name_in_the_documents_is_there():
    """Links to files, and files of code by their names."""
    here = {os.path.basename(path) for path in glob.glob("**/*.py", root_dir=ROOT, recursive=True)}
    for name in (*DOCUMENTS, os.path.join("vg_experiments", "README.md")):
        text = read_text(os.path.join(ROOT, name))
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert "://" in link or os.path.exists(os.path.join(ROOT, os.path.dirname(name), link)), f"{name}: {link}"
        for file in re.findall(r"\b[a-z_]+\.py\b", text):
            assert file in here, f"{name} names {file}"
        for module in re.findall(r"python -m ([\w.]+)", text):
            path = os.path.join(ROOT, *module.split("."))
            there = os.path.exists(f"{path}.py") or os.path.isdir(path)
            assert there or module == "pip" or module.endswith("NAME"), module


def test_every_kept_result_is_shown_and_tells_how_it_was_made():
    with open(os.path.join(results.HERE, "rows.yaml"), encoding="utf-8") as f:
        shown = set(re.findall(r"[\w.-]+", f.read()))
    for name in (name for name in os.listdir(results.HERE) if name.endswith(".json")):
        assert name.removesuffix(".json") in shown, f"no row shows {name}"
        with open(os.path.join(results.HERE, name), encoding="utf-8") as f:
            text = f.read()
        assert not re.search(r'[" ]~?/\w', text), f"{name} names a place of a machine"
        made = r"python ((train|cca)\.py --(data_name|config)|evaluate\.py --compare) "
        assert re.match(made, json.loads(text)["train"]), name


def test_a_row_is_the_mean_of_its_runs(tmp_path, monkeypatch, demo_path, capsys):
    monkeypatch.setattr(results, "HERE", str(tmp_path))
    for seed in (0, 1):
        folder = str(tmp_path / f"run{seed}")
        words = ["--data_path", demo_path, "--data_name", "demo_precomp", "--embed_size", "16", "--word_dim", "8",
                 "--num_epochs", "1", "--vocab_threshold", "1", "--device", "cpu", "--seed", str(seed),
                 "--logger_name", folder]
        monkeypatch.setattr("sys.argv", ["train.py", *words])
        assert train.train(train.parse_args(words)) == 0
        evaluate.run(evaluate.parse_args(["--checkpoint", folder]))
        results.main(["--add", f"kept_{seed}", folder])
    kept = [json.loads((tmp_path / f"kept_{seed}.json").read_text()) for seed in (0, 1)]
    assert kept[1]["train"] == ("python train.py --data_name demo_precomp --embed_size 16 --word_dim 8 --num_epochs 1 "
                                "--vocab_threshold 1 --seed 1")
    (tmp_path / "rows.yaml").write_text("t:\n  of: model\n  columns: [flags, recalls, rsum, ranks, dev]\n  rows:\n"
                                        "  - [both, '`F`', kept_0 kept_1]\n  - [one, G, kept_0]\n")
    capsys.readouterr()
    results.main(["t"])
    both, one = ([cell.strip() for cell in line.strip("|").split("|")]
                 for line in capsys.readouterr().out.splitlines()[-2:])
    a, b = (run["protocols"]["full"]["rsum"] for run in kept)
    assert one[:2] == ["one", "G"] and one[8] == f"{a:.1f}" and both[:2] == ["both", "`F`"]
    assert both[8] == f"{(a + b) / 2:.1f} ± {abs(a - b) / 2 ** 0.5:.1f} (2)"
    assert both[2] == f"{sum(run['protocols']['full']['i2t']['r1'] for run in kept) / 2:.1f}"
    for name in ("kept_0", "../kept_2"):
        with pytest.raises(SystemExit, match="has to be the name of a new file in results/"):
            results.main(["--add", name, str(tmp_path / "run1")])
    assert json.loads((tmp_path / "kept_0.json").read_text()) == kept[0] and not (tmp_path.parent
                                                                                  / "kept_2.json").exists()
    words = ["--compare", *(str(tmp_path / f"run{seed}") for seed in (0, 1)), "--output", str(tmp_path / "c.json")]
    evaluate.run(evaluate.parse_args(words))
    results.main(["--add", "a_b", str(tmp_path / "c.json"), "--by", "python evaluate.py --compare run0 run1"])
    (tmp_path / "rows.yaml").write_text("t:\n  of: change\n  columns: [difference]\n  rows:\n  - [more, '', a_b]\n")
    capsys.readouterr()
    results.main(["t"])
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    assert row[:4] == ["more", f"{a:.1f}", f"{b:.1f}", f"{b - a:.1f}"] and row[6] == ""      # one run each: no pairs
    with pytest.raises(SystemExit, match="there is no table u; there are t"):
        results.main(["u"])


def test_tables_are_written_between_their_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "HERE", str(tmp_path / "results"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    for seed, rsum in enumerate((100, 102)):
        side = {"r1": 10.0, "r5": 20.0, "r10": 30.0}
        (tmp_path / "results" / f"a_{seed}.json").write_text(json.dumps(
            {"protocols": {"full": {"i2t": side, "t2i": side, "rsum": rsum}}, "dev_rsum": 99.0}))
    (tmp_path / "results" / "rows.yaml").write_text(
        "t:\n  of: model\n  command: --x 1\n  columns: [flags, n, rsum, means]\n"
        "  rows:\n  - [a, '`--y`', a_0 a_1]\n  - [b, '', a_0]\ns:\n  like: t\n  columns: [short]\n  rows: [b]\n"
        "v:\n  of: other\n  command: --z\n  columns: [rsum]\n  rows:\n  - [c, '', a_1]\n"
        "w:\n  of: both\n  like: t v\n  columns: [rsum]\n  rows: [c, b]\n")
    page, readme = tmp_path / "docs" / "page.md", tmp_path / "README.md"
    readme.write_text("# Ours\n\n<!-- results: s -->\nold\n<!-- /results -->\n\nend\n")
    page.write_text("<!-- results: t -->\n<!-- /results -->\n")
    results.main(["--write"])
    assert readme.read_text().splitlines()[2:] == [
        "<!-- results: s -->",
        "```", "python train.py --x 1 FLAGS --seed SEED", "```", "",
        "| model | i2t R@1 | R@10 | t2i R@1 | R@10 |", "|---|---|---|---|---|",
        "| b | 10.0 | 30.0 | 10.0 | 30.0 |", "<!-- /results -->", "", "end"]
    assert page.read_text().splitlines()[5:-1] == [
        "| model | FLAGS | n | rsum | rsum, means only "
        "|", "|---|---|---|---|---|", "| a | `--y` | 2 | 101.0 ± 1.4 |  |",
        "| b |  | 1 | 100.0 |  |"]
    assert results.tables()["w"] == ["| both | rsum |", "|---|---|", "| c | 102.0 |", "| b | 100.0 |"]
    before = readme.read_text(), page.read_text()
    results.main(["--write"])
    assert (readme.read_text(), page.read_text()) == before
    for text, said in (("<!-- results: u -->\n<!-- /results -->\n", "shows a table u; there are t, s, v, w"),
                       ("<!-- results: t -->\n", "does not open and close"),
                       ("<!-- results: t -->\n<!-- results: s -->\n<!-- /results -->\n", "does not open and close")):
        page.write_text(text)
        readme.write_text("<!-- results: s -->\n<!-- /results -->\n")
        with pytest.raises(SystemExit, match=said):
            results.main(["--write"])
        assert page.read_text() == text and readme.read_text().count("\n") == 2
