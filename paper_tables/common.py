"""Describes a table of a paper, and holds the command that trains, evaluates, collects and prints
one.

    python -m paper_tables.pmrl_table1 --data_path data --dry_run      # the exact commands
    python -m paper_tables.pmrl_table1 --demo                 # the same code on the demo data, small

A row names its method as `train.py --method` does, and writes only options of its own; runs.py adds
what the data set and the size need.
"""
import argparse
import json
import sys
from dataclasses import dataclass
from statistics import mean, stdev

import cli
from cli import Arguments, InputError, filename, up_to
from evaluation.report import FORMATS, NAMES, SIDES, render
from files import read_json
from paper_tables.runs import SCALES, Place, Run, complete, make, run_steps

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
    """A table of a paper. `title` names the paper and the table; its script's docstring says what
    data it needs."""
    title: str
    columns: tuple
    rows: tuple
    notes: tuple = ()
    seeds: int = 1
    f8k: bool = False                 # whether Flickr8k's features can serve it
    later: str = ""                   # why none of its rows can be run yet

    def __post_init__(self):
        width = sum(len(c.paths) for c in self.columns)
        assert all(len(row.published) == width for row in self.rows), self.title


def recalls(protocol: str = "folds5", title: str = "", run: int = 0, rsum: bool = False,
            ks=(1, 5, 10), before: tuple[str, str] | None = None) -> Columns:
    """The columns of R@K in both directions, from a protocol of results.json.

    `run`: which of a row's runs they show. `rsum`: add the sum of recalls. `before`: a protocol and
    a measure in it, such as ("pmrp_folds5", "pmrp"), which gets a column before the recalls of each
    direction.
    """
    cells = [*([before] if before else []), *((protocol, f"r{k}") for k in ks)]
    groups = [(SIDES[side], tuple((NAMES[key], f"protocols/{name}/{side}/{key}")
                                  for name, key in cells)) for side in ("i2t", "t2i")]
    if rsum:
        groups.append(("", (("rsum", f"protocols/{protocol}/rsum"),)))
    return Columns(title, tuple(groups), run)


# ---- collecting and printing

def value(part, path: str) -> float | None:
    """The number at a path of keys, or None where it is not defined, as log det Sigma of a point.
    `*` stands for the first key."""
    for key in path.split("/"):
        if not isinstance(part, dict):
            return None
        part = next(iter(part.values()), None) if key == "*" else part.get(key)
    return part


def collect(table: Table, rows: list[Row], opt) -> list[dict]:
    """What the seeds of each row gave.

    Returns [{"label", "seeds": how many have results, "ours": [(mean, standard deviation, n) or
    None, per column], "published", "runs": whether the row has any, "results": files of the
    results}].
    """
    place, folds, found = build_place(opt), SCALES[opt.scale].folds, []
    for row in rows:
        ours, files, stored = [], [], {}             # stored: what the seeds of a run gave
        for k, run in enumerate(row.runs):
            every = [run_steps(run, seed, place) for seed in range(opt.seeds or table.seeds)]
            paths = [steps[-1].target for steps in every if complete(steps)]
            stored[k] = [read_json(path, "delete it, and it is made again") for path in paths]
            files += paths
        for columns in table.columns:
            for path in columns.paths:
                path = path if folds else of_whole(path)
                numbers = [value(results, path) for results in stored.get(columns.run, ())]
                numbers = [x for x in numbers if x is not None]
                ours.append((mean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0,
                             len(numbers)) if numbers else None)
        found.append({"label": row.label, "seeds": max(map(len, stored.values()), default=0),
                      "ours": ours, "published": list(row.published), "runs": bool(row.runs),
                      "results": list(dict.fromkeys(files))})
    return found


def of_whole(path: str) -> str:
    """The path of the whole test set in place of that of its five folds, which a small one has not.
    """
    return path.replace("folds5", "full").replace("_full", "")


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

        def cell(x: float | None, form: str = "z", places: int = places) -> str:   # z: never -0.0
            return "" if x is None else f"{x:{form}.{places}f}"
        for row in found:
            ours, published = row["ours"][span], row["published"][span]
            printed = [cell(p) for p in published]
            if not any(ours):
                only = "published" if row["runs"] else "published only"
                lines.append((f"{row['label']}: {only}", printed))
                continue
            lines.append((f"{row['label']}: ours ({max(x[2] for x in ours if x)})",
                          [cell(x[0]) + f" +- {cell(x[1])}" * (x[2] > 1) if x else ""
                           for x in ours]))
            if any(printed):
                lines += [("  published", printed),
                          ("  difference", [cell(x[0] - p, "+z") if x and p is not None else ""
                                            for x, p in zip(ours, published)])]
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

def chosen(table: Table, only: list[str] | None) -> list[Row]:
    """The rows that --only names: by number from 1, by label, or by a part of the label. Without
    names, all rows.

    Raises InputError on a name that fits no row.
    """
    rows, numbered = [], list(enumerate(table.rows, 1))
    for name in only or ():
        found = ([row for k, row in numbered if name.lower() in (str(k), row.label.lower())]
                 or [row for row in table.rows if name.lower() in row.label.lower()])
        if not found:
            raise InputError(f"--only {name} is no row of {table.title}; its rows are "
                             f"{'; '.join(f'{k} {row.label}' for k, row in numbered)}")
        rows += found
    return list(dict.fromkeys(rows)) or list(table.rows)


def plain_options(text: str) -> str:
    """Options that can be taken apart at blanks."""
    if set("{}\"'") & set(text):
        raise InputError(f"{text} holds braces or quotes, and is taken apart at blanks; leave them "
                         "out")
    return text


def arguments(what: str) -> Arguments:
    p = Arguments(what)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    add = p.add_argument
    add("--data_path", type=filename, help="folder that holds the data sets (default: data; with "
        "--demo: data/demo_tables, which it writes)")
    size = p.add_mutually_exclusive_group()
    for scale in ("demo", "f8k"):
        size.add_argument(f"--{scale}", action="store_const", const=scale, dest="scale",
                          help=SCALES[scale].says)
    add("--only", nargs="+", metavar="ROW", help="rows to run and print: number from 1, label, or "
        "part of a label")
    add("--seeds", type=up_to(1000), help="how many seeds each row gets, from 0 on "
        "(default: the table's)")
    add("--also", type=plain_options, default="", metavar='"OPTIONS"',
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
    data = opt.data_path or ("data/demo_tables" if opt.scale == "demo" else "data")
    return Place(data, opt.runs, opt.scale, opt.also)


def unique(rows: list[Row], seeds: int) -> list[tuple[str, Run, int]]:
    """(label, run, seed) for every run of the rows, each once. All rows of a seed come before the
    next seed."""
    return list({(run, seed): (row.label, run, seed) for seed in range(seeds) for row in rows
                 for run in row.runs if run.tool == "train.py" or seed == 0}.values())


def main(table: Table, says: str = "", argv=None) -> None:
    """The command of a table's script; `says` is the script's docstring."""
    p = arguments(says)
    opt = p.parse_args(argv)
    if opt.scale == "f8k" and not table.f8k:
        p.error(f"--f8k: Flickr8k has no data for {table.title}; take --demo, or leave it out with "
                "the paper's data at hand")
    try:
        rows = chosen(table, opt.only)
    except InputError as error:
        p.error(str(error))
    cli.run(p.prog, run_table, table, rows, opt)


def run_table(table: Table, rows: list[Row], opt) -> None:
    """Run what is still missing for a table's rows, then print the table. Exits with an error if a
    run failed."""
    if table.later:
        print(table.later, file=sys.stderr)
    place = build_place(opt)
    todo = [] if opt.print_only else [
        (f"{label}, seed {seed}", run_steps(run, seed, place))
        for label, run, seed in unique(rows, opt.seeds or table.seeds)]
    failed = make(todo, opt.dry_run)
    if not opt.dry_run:
        print(printed(table, collect(table, rows, opt), opt))
        if failed:
            sys.exit(f"{len(failed)} of {len(todo)} runs failed; the first: {failed[0]}")
