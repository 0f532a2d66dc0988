"""results/: documents show the figures of the CSV files, and each figure's row tells how it was made."""
import glob
import os
import re

import pytest

from cli import InputError
from files import read_text
from results import __main__ as results

ROOT = os.path.join(os.path.dirname(__file__), "..")
DOCUMENTS = {name: str(path) for name, path in results.list_documents().items()}
WITH_TABLES = sorted(path.stem for path in results.HERE.glob("*.csv"))


@pytest.mark.parametrize("name", WITH_TABLES)
def test_a_document_shows_the_figures_of_its_csv(name):
    text, tables = read_text(DOCUMENTS[name]), results.read_tables(name)
    assert results.fill(text, tables) == text, f"run python -m results --write: {name} shows another table"
    assert [match[1] for match in results.BLOCK.finditer(text)] == list(tables)


@pytest.mark.parametrize("name", WITH_TABLES)
def test_every_row_has_its_command_and_its_commits(name):
    for table, (head, *rows) in results.read_tables(name).items():
        assert rows and head[1] == "commits"
        for row in rows:
            assert len(row) == len(head), f"{table}, {row[2]}: {len(row)} cells, {len(head)} heads"
            command = r"python ((train|evaluate)\.py|-m (phrases\.train|methods\.cca)) --"
            assert re.match(command, row[0]), f"{table}, {row[2]}"
            assert re.fullmatch(r"[0-9a-f]{10}( [0-9a-f]{10})*", row[1]), f"{table}, {row[2]}"
            assert not re.search(r"[ ,]~?/\w", row[0]), f"{table}, {row[2]} names a place of a machine"


def test_a_document_without_a_csv_shows_no_table_of_results():
    for name in DOCUMENTS.keys() - set(WITH_TABLES):
        assert not results.BLOCK.search(read_text(DOCUMENTS[name])), name


def test_tables_are_written_between_their_marks():
    lines = [["python train.py FLAGS", "commits", "model", "rsum"], ["python train.py --a", "0123456789", "a", "101.0"]]
    text = "# Ours\n\n<!-- results: t -->\nold\n<!-- /results -->\n\nend\n"
    assert results.fill(text, {"t": lines}) == (
        "# Ours\n\n<!-- results: t -->\n```\npython train.py FLAGS\n```\n\n| model | rsum |\n|---|---|\n| a | 101.0 |\n"
        "<!-- /results -->\n\nend\n")
    lines[0][0] = "command"
    assert results.render(lines) == "| model | rsum |\n|---|---|\n| a | 101.0 |"
    with pytest.raises(InputError, match="a document shows the table u; its CSV file holds t"):
        results.fill("<!-- results: u -->\n<!-- /results -->\n", {"t": lines})


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
