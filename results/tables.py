"""Read the tables of *.csv, and compute those of rows.yaml from the numbers of runs.

A CSV file holds the tables of one topic, with an empty line between two. Each line begins with the
table's name; then come the command and the commits of the runs, and the cells as they are shown.
The first line of a table holds the heads, and in place of a command the one that all rows share,
if any. Its third cell is "commits", or "recorded at" if the files of the runs were not kept. RUN
is the run from which a row starts; several seeds are written `--seed 0,1,2`. Rows without a commit
of their own (linear CCA, comparisons) have the commit that brought the numbers.
"""

import csv
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scipy.special import stdtrit

import utils

HERE = Path(__file__).resolve().parent
CONFIDENCE_LEVEL = 0.95
RUN_KEYS = ["row", "seed", "commit"]  # the first columns of numbers/*.csv
ONE_PART = [{"name": "", "cells": {}}]  # of a table that shows a row of runs in one line
EMPHASIS = {1: "**", -1: "*"}  # of a cell all of whose runs have this verdict


@dataclass
class Row:
    command: str
    commits: str
    cells: list[str]


@dataclass
class Table:
    """A table as it is shown.

    Args:
        command: what all rows share, or ""
        heads: heads of the columns
        rows: one Row for each line, whose cells stand below the heads
        source: a note for the reader on where the numbers come from, or ""
    """

    command: str
    heads: list[str]
    rows: list[Row]
    source: str = ""


def read_tables() -> dict[str, Table]:
    """Return all tables by name: first those that are computed, then those of the CSV files."""
    return compute_tables(read_rows()) | read_csv_tables()


def read_csv_tables() -> dict[str, Table]:
    """Return the tables of the CSV files by name."""
    tables = {}
    for path in sorted(HERE.glob("*.csv")):
        with open(path, encoding="utf-8", newline="") as file:
            tables |= parse_tables(csv.reader(file))
    return tables


def parse_tables(lines: Iterable[list[str]]) -> dict[str, Table]:
    """Parse the lines of a CSV file, [table, command, commits, cell, ...]."""
    tables = {}
    for line in lines:
        if not line:
            continue
        name, command, commits, *cells = line
        if name in tables:
            tables[name].rows.append(Row(command, commits, cells))
            continue
        if command == "command":
            command = ""
        source = ""
        if commits == "recorded at":
            source = "Recorded; the runs were not kept."
        tables[name] = Table(command, cells, [], source)
    return tables


# ---- tables that are computed


def read_rows() -> dict[str, dict]:
    """Read rows.yaml: {table: how its rows are run and shown}."""
    return share_runs(utils.read_yaml(str(HERE / "rows.yaml")))


def share_runs(rows: dict[str, dict]) -> dict[str, dict]:
    """Give each table with `runs_of` the commands and the rows of the entry that it names."""
    shared = {}
    for name, table in rows.items():
        shared[name] = table
        if "runs_of" in table:
            source = rows[table["runs_of"]]
            own = [row for row in source["rows"] if name in row.get("tables", [name])]
            shared[name] = table | {"commands": source["commands"], "rows": own}
    return shared


def path_of_numbers(name: str) -> Path:
    """Return the file with the numbers of a table's runs."""
    return HERE / "numbers" / f"{name}.csv"


def read_numbers(name: str) -> list[dict[str, str]]:
    """Return the runs of a table, each {"row", "seed", "commit", head: number}."""
    path = path_of_numbers(name)
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def compute_tables(rows: dict[str, dict]) -> dict[str, Table]:
    """Compute all tables of rows.yaml."""
    tables = {}
    for name, table in rows.items():
        if "differences_of" in table:
            compared = table["differences_of"]
            tables[name] = compute_differences(table, rows[compared], read_numbers(compared))
        elif "columns" in table:
            tables[name] = compute_means(name, table, read_numbers(name))
    return tables


def compute_means(name: str, table: dict, runs: list[dict[str, str]]) -> Table:
    """Compute mean and deviation over seeds of each number; leave out lines without numbers."""
    parts = table.get("parts", ONE_PART)
    labels = label_line(table, table["rows"][0], parts[0], [])
    heads = [*labels, *table["columns"]]
    computed = Table("", heads, [], f"Computed from results/numbers/{name}.csv.")
    for row in table["rows"]:
        own = [run for run in runs if run["row"] == row["name"]]
        if not own:
            continue
        seeds = sorted(run["seed"] for run in own)
        commits = " ".join(sorted({run["commit"] for run in own}))
        command = show_command(table, row, seeds)
        for part in parts:
            shown = [show_cell(table, part, row, head, own) for head in table["columns"]]
            if any(shown):
                labels = label_line(table, row, part, own)
                computed.rows.append(Row(command, commits, [*labels.values(), *shown]))
    return computed


def label_line(table: dict, row: dict, part: dict, own: list[dict[str, str]]) -> dict[str, str]:
    """Return the {head: cell} before the numbers of a line; `own` are the runs of the row."""
    cells = dict(row["cells"])
    if "count" in table:
        with_seed = [run for run in own if run["seed"]]
        cells[table["count"]] = str(len(with_seed) or "")
    for head, text in part["cells"].items():
        cells[head] = cells.get(head, "") + text
    return cells


def read_column(column: list | dict) -> dict:
    """Return what rows.yaml says of a column, whose short form is [number, decimals]."""
    if isinstance(column, list):
        number, decimals = column
        return {"number": number, "decimals": decimals}
    return column


def name_number(part: dict, head: str) -> str:
    """Return the head in numbers/TABLE.csv of a column in this part."""
    if part["name"]:
        return f"{part['name']}, {head}"
    return head


def list_numbers(table: dict) -> dict[str, str]:
    """Return {head in numbers/TABLE.csv: where the number is in the results}."""
    numbers = {}
    for part in table.get("parts", ONE_PART):
        for head, column in table["columns"].items():
            if head in part.get("without", []):
                continue
            for name, path in list_paths(name_number(part, head), read_column(column)).items():
                numbers[name] = fill_command(path, part)
    return numbers


def list_paths(name: str, column: dict) -> dict[str, str]:
    """Return {head in numbers/TABLE.csv: path in the results} of the numbers of one column."""
    if "range" in column:
        paths = {f"{name}, {key}": path for key, path in column["numbers"].items()}
    else:
        paths = {name: column["number"]}
    if "verdict" in column:
        paths[f"{name}, verdict"] = column["verdict"]
    return paths


def show_cell(table: dict, part: dict, row: dict, head: str, own: list[dict[str, str]]) -> str:
    """Write a cell of a computed table from the runs of its row, "" without numbers."""
    if head in part.get("without", []):
        return ""
    column = read_column(table["columns"][head])
    name = name_number(part, head)
    form = f".{fill_command(str(column['decimals']), row)}f"
    if column.get("sign"):
        form = f"+{form}"

    if "range" in column:
        numbers = [numbers_of(own, f"{name}, {key}").values() for key in column["numbers"]]
        return format_range(numbers, form, column["range"])

    numbers = numbers_of(own, name).values()
    cell = format_mean(numbers, form, column.get("deviation", True), "count" not in table)
    if "verdict" in column:
        return emphasize(cell, numbers_of(own, f"{name}, verdict").values())
    return cell


def numbers_of(runs: list[dict[str, str]], head: str) -> dict[str, float]:
    """Return {seed: number} of the runs that have this number."""
    return {run["seed"]: float(run[head]) for run in runs if run[head]}


def format_mean(
    numbers: Iterable[float], form: str, deviation: bool = True, count: bool = True
) -> str:
    """Write a mean, with the standard deviation and the count if there are several numbers.

    form: how a mean is written, such as ".1f", or "+.1f" with its sign.
    """
    numbers = list(numbers)
    if not numbers:
        return ""
    text = format(statistics.mean(numbers), form)
    if len(numbers) > 1 and deviation:
        text += f" ± {format(statistics.stdev(numbers), form.lstrip('+'))}"
        if count:
            text += f" ({len(numbers)})"
    return text


def format_range(numbers: list[Iterable[float]], form: str, of: str) -> str:
    """Write the least and the largest of several numbers, each of several runs.

    of: "means" over the runs, or "runs" for all of them.
    """
    ends = []
    for of_runs in numbers:
        of_runs = list(of_runs)
        if of == "means" and of_runs:
            of_runs = [statistics.mean(of_runs)]
        ends += of_runs
    if not ends:
        return ""
    return f"{format(min(ends), form)} to {format(max(ends), form)}"


def emphasize(cell: str, verdicts: Iterable[float]) -> str:
    """Set a cell in bold if all runs have the verdict 1, and in italics if all have -1."""
    distinct = set(verdicts)
    for verdict, mark in EMPHASIS.items():
        if distinct == {verdict}:
            return f"{mark}{cell}{mark}"
    return cell


def show_command(table: dict, row: dict, seeds: list[str]) -> str:
    """Write the first command of a row as a reader types it, with all its seeds."""
    command = row.get("commands", table["commands"])[0]
    command = fill_command(command, row, seed=",".join(seeds))
    return re.sub(r" (--data_path DATA|--logger_name RUN|--output RUN\.npz)", "", command)


def fill_command(command: str, row: dict, **words: str) -> str:
    """Replace the words in capitals of a command or a path: keys of the row, SEED, RUN and DATA.

    Where both have a word, that of the row stands.
    """
    values = {key: str(value) for key, value in row.items() if key.isupper()}
    for key, value in words.items():
        values.setdefault(key.upper(), value)
    for key, value in values.items():
        command = re.sub(rf"\b{key}\b", lambda match, value=value: value, command)
    return command


def compute_differences(table: dict, compared: dict, runs: list[dict[str, str]]) -> Table:
    """Compute the mean difference of pairs of rows over the seeds that both have, with an interval.

    The interval is Student's t over pairs of seeds. It says nothing about other images;
    `evaluate.py --compare` does.
    """
    head = table["number"]
    names = {row["name"]: ", ".join(row["cells"].values()) for row in compared["rows"]}
    computed = Table("", ["difference of " + head, "seeds", "mean", "95% from", "to"], [])
    for first, second in table["pairs"]:
        a = numbers_of([run for run in runs if run["row"] == first], head)
        b = numbers_of([run for run in runs if run["row"] == second], head)
        differences = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
        if not differences:
            continue
        commits = {run["commit"] for run in runs if run["row"] in (first, second)}
        interval = t_interval(differences)
        bounds = ["", ""]
        if interval:
            bounds = [f"{bound:.1f}" for bound in interval]
        cells = [
            f"{names[first]}, minus {names[second]}",
            str(len(differences)),
            f"{statistics.mean(differences):.1f}",
        ]
        computed.rows.append(
            Row("python -m results --write", " ".join(sorted(commits)), [*cells, *bounds])
        )
    computed.source = f"Computed from results/numbers/{table['differences_of']}.csv."
    return computed


def t_interval(numbers: list[float]) -> tuple[float, float] | None:
    """Return the 95% interval of a mean, or None for a single number."""
    if len(numbers) < 2:
        return None
    error = statistics.stdev(numbers) / len(numbers) ** 0.5
    # as scipy.stats.t.ppf, whose module takes a second to import
    quantile = stdtrit(len(numbers) - 1, (1 + CONFIDENCE_LEVEL) / 2)
    reach = error * float(quantile)
    mean = statistics.mean(numbers)
    return mean - reach, mean + reach
