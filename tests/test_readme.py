"""Recipes of README and docs/extending.md, for a similarity, a loss, an encoder and a protocol, work as written."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from operator import attrgetter

from checkpoint import load_checkpoint
from methods import METHODS
from tests.helpers import ROOT
from utils import read_text

CODE = re.compile(r"[aA]t the end of `([\w/]+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.S)


# Commands one after the other in one process: torch is loaded once. A line of dashes follows what each of them prints.
COMMANDS = """
import json, runpy, sys
for name, *words in json.loads(sys.argv[1]):
    sys.argv = [name, *words]
    try:
        if name.endswith(".py"):
            runpy.run_path(name, run_name="__main__")
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        assert not stop.code, stop.code
    print("-----", flush=True)
"""


def test_own_similarity_objective_encoder_and_protocol(tmp_path, demo_path):
    (row,) = re.findall(r'^(Row\("mine".*)$', read_text(f"{ROOT}/docs/paper_tables.md"), re.M)
    recipes = CODE.findall(read_text(f"{ROOT}/README.md") + read_text(f"{ROOT}/docs/extending.md"))
    assert [path for path, _ in recipes] == [
        "losses.py",
        "tests/references.py",
        "losses.py",
        "tests/references.py",
        "model.py",
        "model.py",
        "evaluation/protocols.py",
        "evaluation/report.py",
        "tests/references.py",
    ]
    modules = [name for name in os.listdir(ROOT) if name.endswith((".py", ".toml"))]
    folders = "methods evaluation features paper_tables results demo confidence tests".split()
    for name in (*folders, *modules):
        path = os.path.join(ROOT, name)
        if os.path.isdir(path):
            shutil.copytree(path, tmp_path / name)
        else:
            shutil.copy(path, tmp_path / name)
    for path, code in recipes:
        assert len(code.strip().splitlines()) <= 12
        with open(tmp_path / path, "a", encoding="utf-8") as f:
            f.write(f"\n\n{code}")
    (tmp_path / "paper_tables" / "mine.py").write_text(
        "from paper_tables.commands import evaluate, train\n"
        "from paper_tables.runner import Row, Table, main, recalls\nPUBLISHED = (1, 2, 3, 4, 5, 6)\n"
        f"main(Table('Mine', (recalls(),), ({row},)))\n"
    )
    data = ["--data_path", demo_path, "--device", "cpu", "--workers", "0"]
    # those that one of the recipes can break
    tests = ["tests/test_losses.py", "tests/test_protocols.py", "tests/test_model.py"]
    commands = [
        [
            "train.py",
            *data,
            "--data_name",
            "demo_region_precomp",
            "--sim",
            "manhattan",
            "--img_enc",
            "max",
            "--txt_enc",
            "cnn",
            "--kernel",
            "5",
            "--loss",
            "soft_margin",
            "--width",
            "0.2",
            "--num_epochs",
            "1",
            "--embed_size",
            "8",
            "--logger_name",
            "run",
        ],
        ["evaluate.py", *data, "--checkpoint", "run"],
        ["paper_tables.mine", "--demo", "--dry_run", "--data_path", demo_path],
        [
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "--assert=plain",  # no copies of the files are compiled anew
            *tests,
            "-k",
            "manhattan or soft_margin or (encoder and (cnn or max)) or mrr or ready_matrix",
        ],
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, evaluated, table, tested, _ = done.stdout.split("-----\n")
    assert "Mean reciprocal rank" in evaluated and "MRR" in evaluated and "--sim manhattan" in table
    for test in (
        "similarity_equals_its_slow_twin[manhattan-random]",
        "every_loss_has_a_slow_twin_and_equals_it[soft_margin",
        "no_caption_encoder_reads_padding_or_the_rest_of_its_batch[cnn]",
        "no_image_encoder_reads_the_rest_of_its_batch[max]",
        "has_a_slow_twin_and_equals_it[mrr]",
    ):
        assert re.search(rf"{re.escape(test)}.* PASSED", tested), test
    assert load_checkpoint(str(tmp_path / "run"))["options"]["kernel"] == 5
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    ranks = results["protocols"]["mrr"]
    assert (
        results["similarity"] == "manhattan"
        and 0 < ranks["i2t"]["mrr"] < 100
        and 0 < ranks["t2i"]["mrr"] < 100
    )


NEW = """
import losses, model, tests.references as references
from evaluation import protocols
losses.LOSSES["mine"] = losses.RCL
model.TEXT_ENCODERS["mine"] = model.Encoder(
    "words", model.build_words, lambda opt, inputs: Mean(inputs, opt.embed_size))
class Mean(model.LinearEmbedding):
    def forward(self, words, lengths=None):
        return model.Latent(self.fc(words).mean(1))
protocols.PROTOCOLS["mine"] = protocols.rank_original_pairs
import pytest
pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", "tests/test_losses.py", "tests/test_protocols.py",
             "tests/test_model.py", "-k", "mine"])
"""


def test_parts_without_a_test_or_with_padding_fail_one():
    """A loss and a protocol without a plain version, and an encoder that averages padding, too."""
    done = subprocess.run([sys.executable, "-c", NEW], cwd=ROOT, capture_output=True, text=True)
    for sentence in (
        "mine has no slow twin; write it as a line of SLOW_LOSSES in tests/references.py",
        "mine has no slow twin; write it as a line of SLOW_PROTOCOLS in tests/references.py",
    ):
        assert sentence in done.stdout, done.stdout + done.stderr
    assert "FAILED tests/test_model.py::test_no_caption_encoder_reads_padding" in done.stdout
    assert "4 failed" in done.stdout


def test_methods_of_the_readme_have_the_papers_of_the_code():
    """The table of docs/methods.md is checked with those of the results."""
    row = r"^\| (`[^-|]*`) \| ([^|]*) \| [^|]* \| [^|]* \|$"
    named = []
    for names, paper in re.findall(row, read_text(f"{ROOT}/README.md"), re.M):
        for name in re.findall("`(.*?)`", names):
            assert METHODS[name].paper == paper
            named.append(name)
    assert len(named) >= 10


def test_reading_names_what_stands_in_the_files():
    """Each paragraph of docs/reading.md that begins with a file names functions and classes of it."""
    paragraphs = re.findall(
        r"\*\*([\w/]+)\.py\.\*\*(.*?)(?=\n\n|\n\d\. )", read_text(f"{ROOT}/docs/reading.md"), re.S
    )
    assert len(paragraphs) == 8
    for file, text in paragraphs:
        module = importlib.import_module(file.replace("/", "."))
        names = re.findall(r"`([\w.]+)`", text)
        assert names, file
        for name in names:
            attrgetter(name)(module)
