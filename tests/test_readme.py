"""README's recipes for a similarity, an objective, an encoder and a protocol of one's own work as they are written."""
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = re.compile(r"at the end of `([\w/]+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.S)


def test_own_similarity_objective_encoder_and_protocol(tmp_path, demo_path):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        text = f.read()
    with open(os.path.join(ROOT, "docs", "paper_tables.md"), encoding="utf-8") as f:
        row, = re.findall(r'^(Row\("mine".*)$', f.read(), re.M)
    recipes = CODE.findall(text)
    assert [path for path, _ in recipes] == ["similarities.py", "tests/references.py", "losses.py", "model.py",
                                             "evaluation/assess.py", "evaluation/report.py"]
    modules = [name for name in os.listdir(ROOT) if name.endswith((".py", ".toml"))]
    folders = ("files devices options methods evaluation features paper_tables demo retrieval timing "
               "tests").split()
    for name in (*folders, *modules):
        path = os.path.join(ROOT, name)
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, tmp_path / name)
    for path, code in recipes:
        assert len(code.strip().splitlines()) <= 8
        with open(tmp_path / path, "a", encoding="utf-8") as f:
            f.write(f"\n\n{code}")
    data = ["--data_path", demo_path, "--device", "cpu", "--workers", "0"]
    tests = ["tests/test_losses.py", "tests/test_protocols.py", "tests/test_benchmark.py",
             "tests/test_cli.py"]     # those that one of the recipes can break
    for words in (["train.py", *data, "--data_name", "demo_region_precomp", "--sim", "manhattan", "--img_enc", "max",
                   "--loss", "soft", "--num_epochs", "1", "--embed_size", "8", "--logger_name", "run"],
                   ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k",
                    "manhattan or every_similarity or ready_matrix or results_file"],
                   ["evaluate.py", *data, "--checkpoint", "run"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Mean reciprocal rank" in done.stdout and "MRR" in done.stdout
    (tmp_path / "paper_tables" / "mine.py").write_text(
        "from paper_tables.common import Row, Run, Table, main, recalls\nPUBLISHED = (1, 2, 3, 4, 5, 6)\n"
        f"main(Table('Mine', (recalls(),), ({row},)), 'Mine.')\n")
    done = subprocess.run([sys.executable, "-m", "paper_tables.mine", "--demo", "--dry_run", "--data_path", demo_path],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "--sim manhattan" in done.stdout, done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    ranks = results["protocols"]["mrr"]
    assert results["similarity"] == "manhattan" and 0 < ranks["i2t"]["mrr"] < 100 and 0 < ranks["t2i"]["mrr"] < 100


def test_tables_of_methods_are_those_of_the_code():
    """That of docs/methods.md is printed by `python -m results --write`; README.md's names methods and their papers."""
    from methods import METHODS, table

    with open(os.path.join(ROOT, "docs", "methods.md"), encoding="utf-8") as f:
        rows, = re.findall(r"<!-- methods -->\n(.*?)\n<!-- /methods -->", f.read(), re.S)
    assert rows.splitlines() == table() and len(rows.splitlines()) == len(METHODS) + 2
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        rows = re.findall(r"^\| `([^`-][^`]*)` \| ([^|]*) \| [^|]* \|$", f.read(), re.M)
    assert len(rows) >= 9 and all(METHODS[name].paper == paper for name, paper in rows)
