"""Documents show the figures of results/*.csv, whose rows name a command and commits."""
import glob
import os
import re

import pytest

from cli import InputError
from files import read_text
from results import __main__ as results
from tests.helpers import ROOT, refused

DOCUMENTS = {os.path.relpath(path, ROOT): str(path) for path in results.list_documents()}
TABLES = results.read_tables()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_shows_the_figures_of_its_tables(name):
    """docs/methods.md also shows the methods."""
    text = read_text(DOCUMENTS[name])
    assert name != "docs/methods.md" or results.METHODS_BLOCK.search(text)
    assert results.fill(text, TABLES) == text, f"run python -m results --write: {name} shows another table"


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_its_command_and_its_commits(table):
    head, *rows = TABLES[table]
    assert rows and head[1] == "commits"
    for row in rows:
        assert len(row) == len(head), f"{row[2]}: {len(row)} cells, {len(head)} heads"
        assert re.match(r"python ((train|evaluate)\.py|-m (phrases\.\w+|vg_experiments\.\w+|confidence\.people RUN|"
                        r"methods\.cca|photos\.words \S+|paper_tables\.parity)) --", row[0]), row[2]
        assert re.fullmatch(r"[0-9a-f]{10}( [0-9a-f]{10})*", row[1]), row[2]
        assert not re.search(r"[ ,]~?/\w", row[0]), f"{row[2]} names a place of a machine"


def test_tables_are_written_between_their_marks():
    lines = [["python train.py FLAGS", "commits", "model", "R@1", "rsum"],
             ["python train.py --a", "0123456789", "a", "9.0", "101.0"]]
    text = ("# Ours\n\n<!-- results: t -->\nold\n<!-- /results -->\n\nand\n\n"
            "<!-- results: t | model | rsum -->\n<!-- /results -->\nend\n")
    assert results.fill(text, {"t": lines}) == (
        "# Ours\n\n<!-- results: t -->\n```\npython train.py FLAGS\n```\n\n| model | R@1 | rsum |\n|---|---|---|\n"
        "| a | 9.0 | 101.0 |\n<!-- /results -->\n\nand\n\n"
        "<!-- results: t | model | rsum -->\n| model | rsum |\n|---|---|\n| a | 101.0 |\n<!-- /results -->\nend\n")
    lines[0][0] = "command"
    assert results.render_markdown(lines) == "| model | R@1 | rsum |\n|---|---|---|\n| a | 9.0 | 101.0 |"
    chosen = results.render_markdown([*lines, ["python train.py --b", "0123456789", "b", "8.0", "100.0"]],
                                     ["model", "rsum", "model=b"])
    assert chosen == "| model | rsum |\n|---|---|\n| b | 100.0 |"
    with pytest.raises(InputError, match="a document shows the table u; the tables are t"):
        results.fill("<!-- results: u -->\n<!-- /results -->\n", {"t": lines})


def test_tables_are_printed_by_name(capsys):
    results.main(["bank", "cca"])
    printed = capsys.readouterr().out
    assert printed.index("bank:") < printed.index("VSE++") < printed.index("cca:")
    refused(capsys, results.main, ["nosuch"], "no table nosuch; python -m results lists the tables")
    refused(capsys, results.main, ["setz"], "no table setz; did you mean sets?")
    refused(capsys, results.main, ["x" * 10 ** 5], "no table x{20,60}[.]{3}; python -m results lists the tables")


def test_every_name_in_the_documents_is_there():
    """Links to files, and files of code by their names."""
    here = {os.path.basename(path) for path in glob.glob("**/*.py", root_dir=ROOT, recursive=True)}
    for path in DOCUMENTS.values():
        text = read_text(path)
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert "://" in link or os.path.exists(os.path.join(os.path.dirname(path), link)), f"{path}: {link}"
        for file in re.findall(r"\b[a-z_]+\.py\b", text):
            assert file in here, f"{path} names {file}"
        for module in re.findall(r"python -m ([\w.]+)", text):
            code = os.path.join(ROOT, *module.split("."))
            there = os.path.exists(f"{code}.py") or os.path.isdir(code)
            assert there or module == "pip" or module.endswith("NAME"), f"{path}: {module}"
