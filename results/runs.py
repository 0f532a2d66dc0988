"""Run the rows of rows.yaml, and store the numbers of each run in one line of numbers/TABLE.csv."""

import csv
import glob
import os
import shlex
import subprocess

import options
import utils
from results.tables import HERE, RUN_KEYS, fill_command, path_of_numbers, read_numbers
from utils import InputError, call_python, shorten

# Options that say where a run reads and writes, or how it reports. They do not change its numbers.
NOT_COMPARED = {
    "data_path",
    "data_name",
    "vocab_path",
    "seed",
    "workers",
    "log_step",
    "device",
    "img_dim",
}


# ---- commands


def run_rows(names: list[str], rows: dict[str, dict], opt) -> None:
    """Run rows, or all rows of tables, for those of their seeds that have no numbers yet."""
    for name in names:
        for table, row in select_rows(name, rows):
            done = {(run["row"], run["seed"]) for run in read_numbers(table)}
            for seed in row["seeds"] or [""]:
                if (row["name"], str(seed)) not in done:
                    run_row(table, rows[table], row, str(seed), opt)


def select_rows(name: str, rows: dict[str, dict]) -> list[tuple[str, dict]]:
    """Return the rows of a table, or the one row of that name, each with the name of its table."""
    tables = {table: value for table, value in rows.items() if "rows" in value}
    if name in tables:
        return [(name, row) for row in tables[name]["rows"]]
    for table, value in tables.items():
        for row in value["rows"]:
            if row["name"] == name:
                return [(table, row)]
    raise InputError(
        f"there is no table or row {shorten(name, 60)} in results/rows.yaml; the tables are "
        f"{', '.join(tables)}"
    )


def run_row(table: str, value: dict, row: dict, seed: str, opt) -> None:
    """Run the commands of a row with one seed, and store its numbers."""
    folder = row["name"]
    if seed:
        folder += f"_seed{seed}"
    run = os.path.join(opt.runs, table, folder)
    os.makedirs(os.path.dirname(run), exist_ok=True)
    words = {"seed": seed, "run": run, "data": opt.data_path}
    for command in row.get("commands", value["commands"]):
        arguments = shlex.split(fill_command(command, row, **words))
        call_python(*arguments[1:])
    results = fill_command(row.get("results", value["results"]), row, **words)
    store(table, value, row, seed, current_commit(), utils.read_json(results), opt.overwrite)


def add_runs(paths: list[str], rows: dict[str, dict], opt) -> None:
    """Store the numbers of runs that exist already.

    Paths are run folders, or with --row the results file of that row.
    """
    for pattern in paths:
        for path in sorted(glob.glob(pattern)) or [pattern]:
            if opt.row:
                add_results(path, rows, opt)
            else:
                add_run(path, rows, opt)


def add_results(path: str, rows: dict[str, dict], opt) -> None:
    """Store the numbers of a results file in the row opt.row, with the commit of this checkout."""
    (table, row), *others = select_rows(opt.row, rows)
    if others:
        raise InputError(f"--row {opt.row} is a table; name one of its rows")
    store(table, rows[table], row, "", current_commit(), utils.read_json(path), opt.overwrite)


def add_run(folder: str, rows: dict[str, dict], opt) -> None:
    """Store the numbers of one run, in the row that has its options, or say why it is left out."""
    results_path = os.path.join(folder, "results.json")
    if not os.path.exists(results_path):
        print(f"{folder}: left out, it has no results.json")
        return
    config = utils.read_yaml(os.path.join(folder, "config.yaml"))
    found = find_row(config["asked"], rows)
    if found is None:
        print(f"{folder}: left out, no row of results/rows.yaml has its options")
        return

    table, row = found
    seed = str(config["asked"]["seed"])
    commit = config["git_commit"][:10]
    store(table, rows[table], row, seed, commit, utils.read_json(results_path), opt.overwrite)


def find_row(asked: dict, rows: dict[str, dict]) -> tuple[str, dict] | None:
    """Return the table and the row whose training has the same options as a run, or None."""
    parser = options.training_parser()
    for table, value in rows.items():
        for row in value.get("rows", []):
            if "TRAIN" not in row:
                continue
            words = shlex.split(
                fill_command(value["commands"][0], row, seed="0", run="RUN", data="DATA")
            )
            first_option = 2  # after "python train.py"
            if words[1] == "-m":
                first_option = 3
            own = options.parse_words(parser, words[first_option:]).asked
            shared = (own.keys() & asked.keys()) - NOT_COMPARED
            if all(own[key] == asked[key] for key in shared):
                return table, row
    return None


def current_commit() -> str:
    """Return the commit of this checkout."""
    return subprocess.check_output(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=HERE, text=True
    ).strip()


# ---- numbers


def store(
    table: str, value: dict, row: dict, seed: str, commit: str, results: dict, overwrite: bool
) -> None:
    """Write the numbers of a run as one line of numbers/TABLE.csv, by rows.yaml and seed."""
    name = f"{table}, {row['name']}"
    if seed:
        name += f", seed {seed}"
    if results["images"] != value["images"]:
        raise InputError(
            f"{name}: the results are for {results['images']} images; the table is for the split "
            f"of {value['images']}"
        )
    runs = read_numbers(table)
    kept = [run for run in runs if (run["row"], run["seed"]) != (row["name"], seed)]
    if len(kept) < len(runs) and not overwrite:
        print(f"{name}: is stored already; --overwrite replaces it")
        return
    numbers = {
        head: spell_number(look_up(results, path)) for head, (path, _) in value["columns"].items()
    }
    kept.append({"row": row["name"], "seed": seed, "commit": commit, **numbers})

    order = [each["name"] for each in value["rows"]]
    kept.sort(key=lambda run: (order.index(run["row"]), int(run["seed"] or 0)))
    with utils.atomic(str(path_of_numbers(table))) as file:
        writer = csv.DictWriter(
            file, [*RUN_KEYS, *value["columns"]], lineterminator="\n", restval=""
        )
        writer.writeheader()
        writer.writerows(kept)
    print(f"{name}: stored")


def look_up(results: dict, path: str):
    """Return the number at a path such as protocols.full.rsum, or None."""
    for key in path.split("."):
        if not isinstance(results, dict) or key not in results:
            return None
        results = results[key]
    return results


def spell_number(number) -> str:
    """Write a number with six decimals at most, and "" for None."""
    if number is None:
        return ""
    return str(round(float(number), 6))
