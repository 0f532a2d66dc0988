"""Run the rows of a paper's table, and print ours beside the published numbers.

A row's commands stand in the table's script (commands.py). Here they get the data path, the seed,
the run's folder and the files that they need (plan.py), and for --demo and --f8k other data and
smaller sizes (scales.py). What is missing is run, and the values at the paths of the table's
columns are read from the results.

A run's folder is named after its options, not after --data_path, so tables share runs, and a
stopped table continues.
"""

import os
import subprocess
import sys
import textwrap
from statistics import mean, stdev
from typing import NamedTuple

import utils
from evaluation.report import NAMES, SIDES, text
from paper_tables.commands import Command
from paper_tables.hours import describe_hours, read_measurements, spell_cost
from paper_tables.plan import Plan, Setting, Step, list_missing, plan_rows, read_last_line
from paper_tables.scales import TABLE_SCALES
from utils import Arguments, InputError, filename, read_json, spell_value, up_to

LABELS = (
    "Papers (README.md): pmrl, ucmr: Gaussian embeddings; jwae: Wasserstein autoencoders; "
    "dmsm: trigrams.",
    "GCE, GIE, GCIE: captions, images, both are Gaussians; in ucmr, 'ours': both; "
    "ft: fine-tuned network.",
)
MAX_RATIO_TO_CHANCE = (
    1.5  # times the R@10 of chance: a direction at most this good has learned nothing
)
REMAKE = "delete it, and it is made again"
LARGEST_RESULT = 1e12
NEVER_RUN = "No row of any table has been run at the papers' size: the data cannot be had here."

# ---- what a table is


class Columns(NamedTuple):
    """Columns that are printed as one table."""

    title: str
    groups: tuple  # ((heading, ((name, path of the value in the results), ...)), ...)
    run: int = 0  # which of a row's runs they show


class Row(NamedTuple):
    """One line of a paper's table.

    A run is the commands of one model: trainings, then one that judges. In them RUN stands for the
    folder of the training before, {data}/{folder} for that of the data set. A row without runs
    shows its published numbers only.
    """

    label: str
    published: tuple  # one number for each column of the table, None where the paper has none
    runs: tuple[tuple[Command, ...], ...] = ()


class Table(NamedTuple):
    """Table of a paper. `--list` says what data it needs."""

    title: str  # names paper and table
    columns: tuple[Columns, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    seeds: int = 1
    f8k: bool = False  # whether Flickr8k's features can serve it


def recalls(
    protocol: str = "folds5",
    title: str = "",
    run: int = 0,
    rsum: bool = False,
    ks: tuple[int, ...] = (1, 5, 10),
    before: tuple[str, str] | None = None,
) -> Columns:
    """Build columns of R@K in both directions, from a protocol of results.json.

    Args:
        protocol: name of the protocol.
        title: of the columns.
        run: which of a row's runs they show.
        rsum: whether a column of it follows.
        ks: the K.
        before: a protocol and a measure in it, which gets a column before the recalls of each
            direction.
    """
    cells = [(protocol, f"r{k}") for k in ks]
    if before:
        cells.insert(0, before)
    groups = []
    for side in ("i2t", "t2i"):
        columns = [(NAMES[key], f"protocols/{name}/{side}/{key}") for name, key in cells]
        groups.append((SIDES[side], tuple(columns)))
    if rsum:
        groups.append(("", (("rsum", f"protocols/{protocol}/rsum"),)))
    return Columns(title, tuple(groups), run)


def choices(table: str, queries: dict[str, tuple[str, ...]]) -> Columns:
    """Build columns of the right choices that vg_experiments.selection counts.

    table: name in its results. queries: names of the queries by heading.
    """
    groups = []
    for heading, names in queries.items():
        columns = [(name, f"{table}/*/{name}/percent") for name in names]
        groups.append((heading, tuple(columns)))
    return Columns("", tuple(groups))


# ---- running them


def run_all(runs: list[tuple[str, list[Step]]]) -> list[str]:
    """Run what is missing of runs (name, steps). Returns a sentence for each failure."""
    failures = []
    for k, (name, steps) in enumerate(runs, 1):
        number = f"[{k}/{len(runs)}]"
        error = run_missing(f"{number} {name}", list_missing(steps))
        if error:
            failures.append(f"{name}: {error}")
            print(f"{number} {failures[-1]}", file=sys.stderr, flush=True)
    return failures


def run_missing(name: str, steps: list[Step]) -> str:
    """Run steps until one fails, none if data are missing. Returns what went wrong, or ""."""
    for step in steps:
        if not step.words:
            return step.lacks
    for step in steps:
        print(f"{name}: {step.line}", file=sys.stderr, flush=True)
        error = run_step(step)
        if error:
            return error
    return ""


def run_step(step: Step) -> str:
    """Run a step, with output to its log. Returns a line on what went wrong, or ""."""
    os.makedirs(os.path.dirname(step.log) or ".", exist_ok=True)
    if not step.run:  # train.py makes the folder of its run
        os.makedirs(os.path.dirname(step.target) or ".", exist_ok=True)
    command = [sys.executable, "-u", *step.command]
    with open(step.log, "a", encoding="utf-8") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = child.wait()
        finally:  # after Ctrl-C train.py saves what it has
            child.terminate()
            child.wait()
    if status:
        return f"status {status}: {read_last_line(step.log)}"
    return ""


# ---- results


def find_value(results, path: str):
    """Value at a path of keys, `*` the first, or None, as for Sigma of a point."""
    for key in path.split("/"):
        if not isinstance(results, dict):
            return None
        if key == "*":
            results = next(iter(results.values()), None)
        else:
            results = results.get(key)
    return results


def is_result(value) -> bool:
    """True for a number of a table: a recall, a rank, an uncertainty; not for NaN and infinity."""
    return type(value) in (int, float) and abs(value) < LARGEST_RESULT


def collect_cells(steps: list[Step], paths: list[str], setting: Setting) -> list[tuple | None]:
    """(mean, standard deviation, seeds) for each path, None without results.

    steps: that write the results, one for each seed.
    """
    results = {step.target: read_json(step.target, REMAKE) for step in steps if step.done}
    cells = []
    for path in paths:
        if setting.scale != "full":  # a small test set has no folds
            path = path.replace("folds5", "full").replace("_full", "")
        numbers = []
        for file, content in results.items():
            value = find_value(content, path)
            if value is None:
                continue
            if not is_result(value):
                raise InputError(
                    f"{file} holds {spell_value(value)} as {path}, which is not a number that "
                    f"evaluate.py writes; {REMAKE}"
                )
            numbers.append(value)
        if not numbers:
            cells.append(None)
            continue
        deviation = stdev(numbers) if len(numbers) > 1 else 0.0
        cells.append((mean(numbers), deviation, len(numbers)))
    return cells


def is_collapsed(steps: list[Step]) -> bool:
    """True if a judged model of a row (a step a seed) is near chance in one direction."""
    for step in steps:
        if not step.done:
            continue
        results = read_json(step.target, REMAKE)
        for side in ("i2t", "t2i"):
            found = find_value(results, f"protocols/full/{side}/r10")
            chance = find_value(results, f"chance/full/{side}/r10")
            if found is not None and chance is not None and found <= MAX_RATIO_TO_CHANCE * chance:
                return True
    return False


def tabulate_rows(table: Table, rows: list[Row], seeds: int, setting: Setting) -> list:
    """Build tables of `evaluation.report`: rows of this code, published numbers, the difference.

    On other data than the paper's there is no difference, and the title says which they are.
    """
    name = table.title
    other_data = TABLE_SCALES[setting.scale].data
    if other_data:
        name += f"; this code on {other_data}, so the numbers cannot be compared"

    tables = []
    start = 0
    for title, groups, run in table.columns:
        paths = []
        heads = []
        for heading, columns in groups:
            paths += [path for _, path in columns]
            heads.append((heading, [column for column, _ in columns]))
        published = [row.published[start : start + len(paths)] for row in rows]
        start += len(paths)

        digits = count_digits(published)
        lines = []
        for row, numbers in zip(rows, published):
            judged = []
            if row.runs:
                judged = [Plan(row.runs[run], seed, setting).steps[-1] for seed in range(seeds)]
            cells = collect_cells(judged, paths, setting)
            lines += spell_row(row, numbers, cells, is_collapsed(judged), digits, not other_data)
        tables.append((f"{name}, {title}" if title else name, heads, lines))
    return tables


def count_digits(published: list[tuple]) -> int:
    """Count the digits after the point that the paper prints, 1 or 2."""
    known = []
    for numbers in published:
        known += [x for x in numbers if x is not None]
    if known and all(round(x, 1) == round(x, 2) for x in known):
        return 1
    return 2


def spell_row(
    row: Row,
    published: tuple,
    cells: list[tuple | None],
    collapsed: bool,
    digits: int,
    compares: bool,
) -> list[tuple[str, list[str]]]:
    """Write a row of a table as lines (label, cells) of this code, the paper and the difference.

    Args:
        row: whose label is written.
        published: numbers of the paper.
        cells: of `collect_cells`.
        collapsed: whether a model of the row is near chance in one direction.
        digits: after the point.
        compares: whether the difference is written.
    """
    theirs = ["" if x is None else f"{x:z.{digits}f}" for x in published]  # z: never -0.0
    if not any(cells):
        only = "" if row.runs else " only"
        return [(f"{row.label}: published{only}", theirs)]

    count = max(cell[2] for cell in cells if cell)
    label = f"{row.label}: this code ({count})"
    if collapsed:
        label += ", collapsed"
    lines = [(label, [spell_cell(cell, digits) for cell in cells])]
    if any(theirs):
        lines.append(("  published", theirs))
    if any(theirs) and compares:
        differences = []
        for cell, number in zip(cells, published):
            known = cell and number is not None
            differences.append(f"{cell[0] - number:+z.{digits}f}" if known else "")
        lines.append(("  difference", differences))
    return lines


def spell_cell(cell: tuple | None, digits: int) -> str:
    """Write a cell of `collect_cells`: mean, and deviation where there are several seeds."""
    if not cell:
        return ""
    mean_value, deviation, count = cell
    spelled = f"{mean_value:z.{digits}f}"
    if count > 1:
        spelled += f" +- {deviation:z.{digits}f}"
    return spelled


# ---- the command


def build_table_parser(description: str) -> Arguments:
    p = Arguments(description)
    add = p.add_argument
    add(
        "--data_path",
        type=filename,
        help="folder that holds the data sets (default: data; with --demo: data/demo_tables, "
        "which it writes)",
    )
    size = p.add_mutually_exclusive_group()
    for scale in ("demo", "f8k"):
        size.add_argument(
            f"--{scale}",
            action="store_const",
            const=scale,
            dest="scale",
            help=TABLE_SCALES[scale].description,
        )
    add(
        "--seeds",
        type=up_to(1000),
        help="how many seeds each row gets, from 0 on (default: the table's)",
    )
    add(
        "--runs",
        type=filename,
        default="runs/paper_tables",
        metavar="FOLDER",
        help="folder that holds the runs",
    )
    add(
        "--list",
        action="store_true",
        help="list how far rows have been run, and the data that are missing",
    )
    return p


def build_setting(opt) -> Setting:
    """Setting of the data and the runs that the options name."""
    scale = opt.scale or "full"
    data = "data/demo_tables" if scale == "demo" else "data"
    return Setting(opt.data_path or data, os.path.join(opt.runs, scale), scale)


def print_needs(steps: list[Step]) -> None:
    """Say what short names mean, and what has to be fetched for these missing steps."""
    lines = sorted({step.lacks for step in steps if not step.words})
    networks = sorted({step.network for step in steps if step.network})
    if networks:
        names = ", ".join(networks)
        lines.append(f"Weights that have to be in torch's cache, or in a package: {names}.")
    for line in [*LABELS, *lines, NEVER_RUN, describe_hours(read_measurements())]:
        filled = textwrap.fill(
            line, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        print(filled)


def list_rows(table: Table, opt) -> None:
    """Print rows of a table, how far they have been run, and what has to be fetched."""
    seeds = opt.seeds or table.seeds
    measurements = read_measurements()
    missing = []
    print(table.title)
    for number in opt.only:
        row = table.rows[number - 1]
        runs = [steps for _, steps in plan_rows([row], seeds, build_setting(opt))]
        done = "published only"
        if runs:
            done = f"{sum(steps[-1].done for steps in runs)} of {len(runs)} runs done"
        cost = spell_cost(row.runs, measurements)
        print(f"{number:>4}  {row.label:<59} {cost:>15}  {done}".rstrip())
        for steps in runs:
            missing += list_missing(steps)
    print_needs(missing)


def print_commands(runs: list[tuple[str, list[Step]]]) -> None:
    """Print what has to be run and fetched for runs (name, steps), each line once."""
    lines = []
    for _, steps in runs:
        lines += [step.line for step in list_missing(steps)]
    print("\n".join(dict.fromkeys(lines)))


def run_table(table: Table, opt) -> None:
    """Run what is missing for rows and print them. Exits with 1 if a run failed."""
    setting = build_setting(opt)
    seeds = opt.seeds or table.seeds
    rows = [table.rows[number - 1] for number in opt.only]
    runs = plan_rows(rows, seeds, setting)
    if opt.dry_run:
        print_commands(runs)
        return

    failures = run_all(runs)
    for printed in tabulate_rows(table, rows, seeds, setting):
        print(text(printed), end="\n\n")
    print(
        "this code: mean and standard deviation over the seeds (their number); "
        f"{TABLE_SCALES[setting.scale].description}"
    )
    print("collapsed: nearly all items are one point, so one direction is near chance")
    for note in table.notes:
        print(note)
    if failures:
        sys.exit(f"{len(failures)} of {len(runs)} runs failed; the first: {failures[0]}")


def main(table: Table, argv=None) -> None:
    """Run a table's script."""
    p = build_table_parser(table.title)
    add = p.add_argument
    add(
        "--only",
        type=up_to(len(table.rows)),
        nargs="+",
        metavar="ROW",
        help="run only these rows, counted from 1",
    )
    add("--dry_run", action="store_true", help="print the commands, and run nothing")
    opt = p.parse_args(argv)
    opt.only = opt.only or range(1, len(table.rows) + 1)
    if opt.scale == "f8k" and not table.f8k:
        p.error(f"--f8k: Flickr8k has no data for {table.title}; use --demo, or the paper's data")
    utils.run(p.prog, list_rows if opt.list else run_table, table, opt)
