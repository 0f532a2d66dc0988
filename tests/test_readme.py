"""Recipes of README and docs/extending.md, for a similarity, a loss, an encoder and a protocol, work as written."""

import importlib
import json
import os
import re
import runpy
import shutil
import sys
from operator import attrgetter

import pytest

import losses
import model
from checkpoint import load_checkpoint
from evaluation import protocols
from methods import METHODS
from tests.helpers import ROOT, in_a_process
from utils import read_text

CODE = re.compile(r"[aA]t the end of `([\w/]+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.S)


def run_commands(folder: str, names: set[str], commands: list[list[str]]) -> None:
    """Run commands one after the other in a folder with a copy of the code, in a process of helpers.Command.

    names: of the modules and packages of the copy. Those that the process has loaded from ROOT are dropped.
    A line of dashes follows what each command prints.
    """
    os.chdir(folder)
    sys.path[:] = [folder, *(path for path in sys.path if path not in ("", ROOT))]
    for module in list(sys.modules):
        if module.split(".")[0] in names:
            del sys.modules[module]

    for name, *words in commands:
        sys.argv = [name, *words]
        try:
            if name.endswith(".py"):
                runpy.run_path(name, run_name="__main__")
            else:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            assert not stop.code, stop.code
        print("-----", flush=True)


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
    names = {*folders, *(name.removesuffix(".py") for name in modules)}
    status, out, err = in_a_process(run_commands, str(tmp_path), names, commands)
    assert status == 0, out + err
    _, evaluated, table, tested, _ = out.split("-----\n")
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


def try_new_parts() -> None:
    """Run the tests of a loss, a protocol and an encoder, all named `mine`, in a process of their own."""

    class Mean(model.LinearEmbedding):
        def forward(self, words, lengths=None):
            return model.Latent(self.fc(words).mean(1))

    def build_mean(opt, inputs):
        return Mean(inputs, opt.embed_size)

    losses.LOSSES["mine"] = losses.RCL
    model.TEXT_ENCODERS["mine"] = model.Encoder("words", model.build_words, build_mean)
    protocols.PROTOCOLS["mine"] = protocols.rank_original_pairs

    os.chdir(ROOT)
    tests = ["tests/test_losses.py", "tests/test_protocols.py", "tests/test_model.py"]
    pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", *tests, "-k", "mine"])


def test_parts_without_a_test_or_with_padding_fail_one():
    """A loss and a protocol without a plain version, and an encoder that averages padding, too."""
    _, out, err = in_a_process(try_new_parts)
    for sentence in (
        "mine has no slow twin; write it as a line of SLOW_LOSSES in tests/references.py",
        "mine has no slow twin; write it as a line of SLOW_PROTOCOLS in tests/references.py",
    ):
        assert sentence in out, out + err
    assert "FAILED tests/test_model.py::test_no_caption_encoder_reads_padding" in out
    assert "4 failed" in out


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
