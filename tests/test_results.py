"""results/: rows that documents show are printed from what evaluate.py wrote, and hold nothing of a machine."""
import json
import os
import re

import pytest

import evaluate
import train
from results import __main__ as results

ROOT = os.path.join(os.path.dirname(__file__), "..")


def test_the_documents_show_the_rows_as_they_are_printed():
    text = ""
    for name in ("README.md", *(os.path.join("docs", name) for name in os.listdir(os.path.join(ROOT, "docs")))):
        if name.endswith(".md"):
            with open(os.path.join(ROOT, name), encoding="utf-8") as f:
                text += f.read()
    made = results.tables()
    missing = [line for lines in made.values() for line in lines[2:] if line not in text.splitlines()]
    assert not missing and sum(map(len, made.values())) > 3 * len(made)


def test_every_kept_result_is_shown_and_tells_how_it_was_made():
    with open(os.path.join(results.HERE, "rows.yaml"), encoding="utf-8") as f:
        shown = set(re.findall(r"[\w.-]+", f.read()))
    for name in (name for name in os.listdir(results.HERE) if name.endswith(".json")):
        assert name.removesuffix(".json") in shown, f"no row shows {name}"
        with open(os.path.join(results.HERE, name), encoding="utf-8") as f:
            text = f.read()
        assert not re.search(r'[" ]~?/\w', text), f"{name} names a place of a machine"
        assert json.loads(text)["train"].startswith("python train.py --data_name ")


def test_a_row_is_the_mean_of_its_runs(tmp_path, monkeypatch, demo_path, capsys):
    monkeypatch.setattr(results, "HERE", str(tmp_path))
    for seed in (0, 1):
        folder = str(tmp_path / f"run{seed}")
        words = ["--data_path", demo_path, "--data_name", "demo_precomp", "--embed_size", "16", "--word_dim", "8",
                 "--num_epochs", "1", "--vocab_threshold", "1", "--device", "cpu", "--seed", str(seed), "--logger_name", folder]
        monkeypatch.setattr("sys.argv", ["train.py", *words])
        assert train.train(train.parse_args(words)) == 0
        evaluate.run(evaluate.parse_args(["--checkpoint", folder]))
        results.main(["--add", f"kept_{seed}", folder])
    kept = [json.loads((tmp_path / f"kept_{seed}.json").read_text()) for seed in (0, 1)]
    assert kept[1]["train"] == ("python train.py --data_name demo_precomp --embed_size 16 --word_dim 8 --num_epochs 1 "
                                "--vocab_threshold 1 --seed 1")
    (tmp_path / "rows.yaml").write_text("t:\n  of: model\n  columns: [recalls, rsum, ranks, dev]\n  rows:\n"
                                        "  - [both, '`F`', kept_0 kept_1]\n  - [one, G, kept_0]\n")
    capsys.readouterr()
    results.main(["t"])
    both, one = ([cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()[-2:])
    a, b = (run["protocols"]["full"]["rsum"] for run in kept)
    assert one[:2] == ["one", "G"] and one[8] == f"{a:.1f}" and both[:2] == ["both", "`F`"]
    assert both[8] == f"{(a + b) / 2:.1f} ± {abs(a - b) / 2 ** 0.5:.1f} (2)"
    assert both[2] == f"{sum(run['protocols']['full']['i2t']['r1'] for run in kept) / 2:.1f}"
    for name in ("kept_0", "../kept_2"):
        with pytest.raises(SystemExit, match="has to be the name of a new file in results/"):
            results.main(["--add", name, str(tmp_path / "run1")])
    assert json.loads((tmp_path / "kept_0.json").read_text()) == kept[0] and not (tmp_path.parent / "kept_2.json").exists()
    with pytest.raises(SystemExit, match="there is no table u; there are t"):
        results.main(["u"])
