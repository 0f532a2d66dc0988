"""Describes a table of a paper, and holds the command that trains, evaluates, collects and prints
one.

    python -m paper_tables.pmrl_table1 --data_path data --dry_run      # the exact commands
    python -m paper_tables.pmrl_table1 --demo                          # the same code on the demo data, small

A row names its method as `train.py --method` does, and writes only options of its own; runs.py adds
what the data set and the size need.
"""
import argparse
import json
import os
import re
import sys
from dataclasses import dataclass, replace
from statistics import mean, stdev

import cli
from cli import Arguments, InputError, filename, up_to
from evaluation.report import FORMATS, NAMES, SIDES, render
from files.reading import read_json
from paper_tables.runs import MINUTES, SCALES, Place, Run, Step, Stopped, execute, run_steps

# ---- what a table is

@dataclass(frozen=True)
class Columns:
    """Columns that are printed as one table.

    `groups`: ((heading, ((name of the column, path of its value in the results), ...)), ...).
    """
    title: str
    groups: tuple
    run: int = 0                      # which of a row's runs they show

    @property
    def paths(self) -> list[str]:
        return [path for _, names in self.groups for _, path in names]


@dataclass(frozen=True)
class Row:
    """One line of a paper's table. A row without runs shows its published numbers only."""
    label: str
    published: tuple             # one number per column of the table, None where the paper has none
    runs: tuple = ()


@dataclass(frozen=True)
class Table:
    """A table of a paper. `title` names the paper and the table; its script's docstring says what a
    full run needs."""
    title: str
    columns: tuple
    rows: tuple
    notes: tuple = ()
    seeds: int = 1
    f8k: bool = False                 # whether Flickr8k's features can serve it
    later: str = ""                   # why none of its rows can be run yet
    sums: tuple = ()              # ((column of a sum, (columns of its parts)), ...), counted from 0
    misprints: tuple = ()             # labels of rows whose printed sum is not that of their parts

    def __post_init__(self):
        width = sum(len(c.paths) for c in self.columns)
        assert all(len(row.published) == width for row in self.rows), self.title
        assert len({row.label for row in self.rows}) == len(self.rows) and isinstance(self.notes, tuple), self.title


def recalls(protocol: str = "folds5", title: str = "", run: int = 0, rsum: bool = False,
            ks=(1, 5, 10), before: str = "") -> Columns:
    """The columns of R@K in both directions, from a protocol of results.json.

    `run`: which of a row's runs they show. `rsum`: add the sum of recalls. `before`: a measure and
    the protocol that holds it, such as "pmrp pmrp_folds5"; it gets a column before the recalls of
    each direction.
    """
    first = before.split()
    groups = [(SIDES[side], (*((NAMES[first[0]], f"protocols/{first[1]}/{side}/{first[0]}") for _ in first[:1]),
                             *((f"R@{k}", f"protocols/{protocol}/{side}/r{k}") for k in ks)))
              for side in ("i2t", "t2i")]
    return Columns(title,
                   (*groups, *([("", (("rsum", f"protocols/{protocol}/rsum"),))] if rsum else [])),
                   run)


# ---- collecting and printing

def value(results: dict, path: str, folds: bool = True):
    """The number at a path of keys, or None where there is none. `*` stands for the first key.

    Without `folds` the path of five folds is read as that of the full test set.
    """
    for key in (path if folds else path.replace("folds5", "full").replace("_full", "")).split("/"):
        if not isinstance(results, dict):
            return None
        results = next(iter(results.values()), None) if key == "*" else results.get(key)
    return results


def collect(table: Table, rows: list[Row], opt) -> list[dict]:
    """What the seeds of each row gave.

    Returns [{"label", "seeds": how many have results, "ours": [(mean, standard deviation, n) or
    None, per column], "published", "runs": whether the row has any, "results": files of the
    results}].
    """
    found = []
    for row in rows:
        ours, folds, seeds, files = [], SCALES[opt.scale].folds, 0, []
        for columns in table.columns:
            run = row.runs[columns.run] if columns.run < len(row.runs) else None
            stored = []
            for seed in range(opt.seeds or table.seeds) if run else ():
                steps, path = run_steps(run, seed, build_place(opt))
                if os.path.exists(path) and all(step.done for step in steps if step.folder
                                                or step is steps[-1]):
                    stored.append(read_json(path, "delete it, and it is made again"))
                    files.append(path)
            seeds = max(seeds, len(stored))
            for path in columns.paths:
                numbers = [v for v in (value(results, path, folds) for results in stored)
                           if v is not None]
                ours.append((mean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0,
                             len(numbers)) if numbers else None)
        found.append({"label": row.label, "seeds": seeds, "ours": ours,
                      "published": list(row.published), "runs": bool(row.runs),
                      "results": list(dict.fromkeys(files))})
    return found


def number(x, places: int) -> str:
    return "" if x is None else f"{round(x, places) + 0.0:.{places}f}"      # never -0.0


def spread(x, places: int) -> str:
    return "" if x is None else number(x[0], places) + f" +- {x[1]:.{places}f}" * (x[2] > 1)


def tables(table: Table, found: list[dict]) -> list:
    """Tables for `render` of report.py, with three lines per row: ours, published and their
    difference."""
    made, at = [], 0
    for columns in table.columns:
        span, lines = slice(at, at + len(columns.paths)), []
        at = span.stop
        known = [p for row in found for p in row["published"][span] if p is not None]
        # as the paper prints them
        places = 1 if known and all(round(p, 1) == round(p, 2) for p in known) else 2
        for row in found:
            ours, published = row["ours"][span], row["published"][span]
            if any(ours):
                lines.append((f"{row['label']}: ours ({max(x[2] for x in ours if x)})",
                              [spread(x, places) for x in ours]))
                if any(p is not None for p in published):
                    lines.append(("  published", [number(x, places) for x in published]))
                    lines.append(("  difference", ["" if x is None or p is None else
                                                   f"{round(x[0] - p, places) + 0.0:+.{places}f}"     # never -0.0
                                                   for x, p in zip(ours, published)]))
            else:
                only = "published" if row["runs"] else "published only"
                lines.append((f"{row['label']}: {only}", [number(x, places) for x in published]))
        title = ", ".join(part for part in (table.title, columns.title) if part)
        made.append((title, [(heading, [name for name, _ in names]) for heading,
                             names in columns.groups], lines))
    return made


def printed(table: Table, found: list[dict], opt) -> str:
    if opt.format == "json":
        return json.dumps({"table": table.title, "scale": opt.scale,
                           "columns": [p for c in table.columns for p in c.paths],
                           "rows": found, "notes": table.notes}, indent=1)
    says = ["ours: mean and standard deviation over the seeds (their number); "
            f"{SCALES[opt.scale].says}", *table.notes]
    mark = {"text": "", "markdown": "- ", "latex": "% "}[opt.format]
    return (
        render(tables(table, found), opt.format) + "\n\n" + "\n".join(mark + line for line in says)
    )


# ---- the command

def chosen(table: Table, only: list[str]) -> list[Row]:
    """The rows that --only names: by number from 1, by label, or by a part of the label. Without
    names, all rows.

    Raises InputError on a name that fits no row.
    """
    if not only:
        return list(table.rows)
    rows = []
    for name in only:
        found = [row for k, row in enumerate(table.rows, 1) if name == str(k) or name.lower()
                 == row.label.lower()]
        found = found or [row for row in table.rows if name.lower() in row.label.lower()]
        if not found:
            raise InputError(
                f"--only {name} is no row of {table.title}; its rows are "
                f"{'; '.join(f'{k} {row.label}' for k, row in enumerate(table.rows, 1))}")
        rows += [row for row in found if row not in rows]
    return rows


def arguments(what: str) -> Arguments:
    p = Arguments(what)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    add = p.add_argument
    add("--data_path", type=filename, help="folder that holds the data sets (default: data; with "
        "--demo: data/demo_tables, which it writes)")
    size = p.add_mutually_exclusive_group()
    size.add_argument("--demo", action="store_const", const="demo", dest="scale",
                      help=SCALES["demo"].says)
    size.add_argument("--f8k", action="store_const", const="f8k", dest="scale",
                      help=SCALES["f8k"].says)
    add("--only", nargs="+", metavar="ROW", help="rows to run and print: number from 1, label, or "
        "part of a label")
    add("--seeds", type=up_to(1000, least=0), help="how many seeds each row gets, from 0 on "
        "(default: the table's)")
    add("--also", default="", metavar='"OPTIONS"',
        help='further options of train.py for every row, such as --also="--amp bf16"')
    add("--runs", type=filename, default="runs/paper_tables", metavar="FOLDER",
        help="folder that holds the runs")
    add("--format", choices=[*FORMATS, "json"], default="text", help="format of the printed table")
    add("--dry_run", action="store_true", help="print the commands, and run nothing")
    add("--print_only", action="store_true", help="print the results that are there, and run "
        "nothing")
    p.set_defaults(scale="full")
    return p


def build_place(opt) -> Place:
    """Where a table's commands read and write."""
    return Place(opt.data_path, opt.runs, opt.scale, opt.also)


def settle(opt, table: Table | None = None) -> None:
    """Fill in the data path. Raises InputError on options that cannot be used together, before
    anything runs."""
    if opt.seeds == 0:
        raise InputError(f"--seeds {opt.seeds} leaves nothing to run; give at least 1")
    if opt.scale == "f8k" and table and not table.f8k:
        raise InputError(f"--f8k: Flickr8k has no data for {table.title}; take --demo, or leave it "
                         "out with the paper's data at hand")
    if set("{}\"'") & set(opt.also):
        raise InputError(f"--also {opt.also} holds braces or quotes, and is taken apart at blanks; "
                         "leave them out")
    opt.data_path = opt.data_path or ("data/demo_tables" if opt.scale == "demo" else "data")


def unique(rows: list[Row], seeds: int) -> list[tuple[str, Run, int]]:
    """(label, run, seed) for every run of the rows, each once. All rows of a seed come before the
    next seed."""
    return list({(run, seed): (row.label, run, seed) for seed in range(seeds) for row in rows
                 for run in row.runs if run and (run.tool == "train.py" or seed == 0)}.values())


def main(table: Table, says: str = "", argv=None) -> None:
    """The command of a table's script; `says` is the script's docstring."""
    p = arguments(says)
    opt = p.parse_args(argv)
    try:
        settle(opt, table)
        rows = chosen(table, opt.only)
    except InputError as error:
        p.error(str(error))
    cli.run(p.prog, run_table, table, rows, opt)


def run_table(table: Table, rows: list[Row], opt) -> None:
    """Run what is still missing for a table's rows, then print the table. Exits with an error if a
    run failed."""
    if table.later:
        print(table.later, file=sys.stderr)
    todo = unique(rows, opt.seeds or table.seeds)
    failed, shown = [], set()
    for k, (label, run, seed) in enumerate(todo if not opt.print_only else (), 1):
        where = f"[{k}/{len(todo)}] {label}, seed {seed}"
        steps, _ = run_steps(run, seed, build_place(opt))
        lacking = [Step([], step.target, lacks=step.lacks) for step in steps if step.lacks
                   and not step.done]
        # nothing is trained that cannot be tested
        for step in [*([] if opt.dry_run else lacking[:1]), *steps]:
            key = step.shown, "" if step.words else step.target
            if opt.dry_run:
                if (step.words or step.lacks) and key not in shown:
                    needs = f"  # {step.lacks}" if step.words and step.lacks and not step.done else ""
                    print("# done: " * bool(step.words and step.done) + step.shown + needs)
                    shown.add(key)
            elif not step.done:
                if step.words:
                    print(f"{where}: {step.shown}", file=sys.stderr, flush=True)
                try:
                    wrong = execute(step)
                except Stopped:
                    sys.exit(f"stopped at {label}, seed {seed}; the same command goes on")
                if wrong:
                    failed.append(f"{label}, seed {seed}: {wrong}")
                    print(f"{where}: {wrong}", file=sys.stderr, flush=True)
                    break
    if not opt.dry_run:
        print(printed(table, collect(table, rows, opt), opt))
        if failed:
            sys.exit(f"{len(failed)} of {len(todo)} runs failed; the first: {failed[0]}")


def gpu_hours(table: Table) -> float:
    """GPU hours of all runs of a table, each counted once per seed. This is an estimate; none of it
    has been measured."""
    hours = 0.0
    for run in {replace(run, evaluate="", test="") for row in table.rows for run in row.runs
                if run and run.tool == "train.py"}:
        for part in (run, *([replace(run.start, data=run.data)] if run.start else [])):
            name, _, kind = part.data.partition(" ")
            epochs = [30, *map(int, re.findall(r"--num_epochs (\d+)", part.train))][-1]
            factor = (0.25 if name == "f30k" else 1) * (2 if "--sim scan" in part.train else 1) * (
                4 if "--finetune" in part.train else 1)
            hours += epochs * MINUTES[f" {kind}" if kind else ""] * factor / 60
    return hours * table.seeds
