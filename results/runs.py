"""Run the rows of rows.yaml, and store the numbers of each run in one line of numbers/TABLE.csv."""

import csv
import glob
import os
import shlex
import subprocess

import options
import utils
from results.tables import (
    HERE,
    RUN_KEYS,
    fill_command,
    list_numbers,
    path_of_numbers,
    read_numbers,
)
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
    """Run rows, or all rows of tables, for the seeds without numbers; with --overwrite, for all."""
    begun = set()
    for name in names:
        for entry, row in select_rows(name, rows):
            for seed in row["seeds"] or [""]:
                if not opt.overwrite and has_numbers(entry, row, str(seed), rows):
                    continue
                if entry not in begun:
                    begun.add(entry)
                    run_commands(rows[entry].get("before", []), entry, row, str(seed), opt)
                run_row(entry, row, str(seed), rows, opt)


def select_rows(name: str, rows: dict[str, dict]) -> list[tuple[str, dict]]:
    """Return the rows of a table, or the one row of that name, each with its entry of rows.yaml."""
    entries = list_entries(rows)
    name = rows.get(name, {}).get("runs_of", name)
    if name in entries:
        return [(name, row) for row in entries[name]["rows"]]
    for entry, value in entries.items():
        for row in value["rows"]:
            if row["name"] == name:
                return [(entry, row)]
    raise InputError(
        f"there is no table or row {shorten(name, 60)} in results/rows.yaml; the tables are "
        f"{', '.join(entries)}"
    )


def list_entries(rows: dict[str, dict]) -> dict[str, dict]:
    """Return the entries of rows.yaml that are run: with rows of their own."""
    entries = {}
    for name, value in rows.items():
        if "rows" in value and "runs_of" not in value:
            entries[name] = value
    return entries


def list_tables(entry: str, row: dict, rows: dict[str, dict]) -> list[str]:
    """Return the names of the tables that show a row: the entry itself, or those with its runs."""
    if "columns" in rows[entry]:
        return [entry]
    tables = []
    for name, value in rows.items():
        if value.get("runs_of") == entry and row in value["rows"]:
            tables.append(name)
    return tables


def has_numbers(entry: str, row: dict, seed: str, rows: dict[str, dict]) -> bool:
    """Say whether all tables that show a row have the numbers of this seed."""
    for table in list_tables(entry, row, rows):
        if (row["name"], seed) not in {(run["row"], run["seed"]) for run in read_numbers(table)}:
            return False
    return True


def run_row(entry: str, row: dict, seed: str, rows: dict[str, dict], opt) -> None:
    """Run the commands of a row with one seed, and store its numbers."""
    words = run_commands(row.get("commands", rows[entry]["commands"]), entry, row, seed, opt)
    for table in list_tables(entry, row, rows):
        store_file(table, row, words, current_commit(), rows, opt.overwrite)


def run_commands(commands: list[str], entry: str, row: dict, seed: str, opt) -> dict[str, str]:
    """Run commands for a row and a seed, and return what stood for their words."""
    folder = row["name"]
    if seed:
        folder += f"_seed{seed}"
    words = name_words(os.path.join(opt.runs, entry, folder), seed, opt.data_path)
    os.makedirs(words["runs"], exist_ok=True)
    for command in commands:
        arguments = shlex.split(fill_command(command, row, **words))
        call_python(*arguments[1:])
    return words


def name_words(run: str, seed: str, data: str = "") -> dict[str, str]:
    """Return what stands for SEED, RUN, RUN_NAME, RUNS and DATA in commands and paths."""
    folder, name = os.path.split(os.path.normpath(run))
    return {"seed": seed, "run": run, "run_name": name, "runs": folder, "data": data}


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
    (entry, row), *others = select_rows(opt.row, rows)
    if others:
        raise InputError(f"--row {opt.row} is a table; name one of its rows")
    results = utils.read_json(path)
    for table in list_tables(entry, row, rows):
        store(table, row, name_words(path, ""), current_commit(), results, rows, opt.overwrite)


def add_run(folder: str, rows: dict[str, dict], opt) -> None:
    """Store the numbers of one run, in each row that has its options, or say what is left out."""
    config_path = os.path.join(folder, "config.yaml")
    if not os.path.exists(config_path):
        print(f"{folder}: left out, it has no config.yaml")
        return
    config = utils.read_yaml(config_path)
    found = find_rows(config["asked"], rows)
    if not found:
        print(f"{folder}: left out, no row of results/rows.yaml has its options")
        return

    words = name_words(folder, str(config["asked"]["seed"]))
    commit = config["git_commit"][:10]
    for entry, row in found:
        for table in list_tables(entry, row, rows):
            path = path_of_results(rows[table], row, words)
            if os.path.exists(path):
                store_file(table, row, words, commit, rows, opt.overwrite)
            else:
                print(f"{folder}: left out of {table}, it has no {os.path.basename(path)}")


def find_rows(asked: dict, rows: dict[str, dict]) -> list[tuple[str, dict]]:
    """Return the rows whose training has the same options as a run, each with its entry."""
    parser = options.training_parser()
    found = []
    for entry, value in list_entries(rows).items():
        for row in value["rows"]:
            if "TRAIN" not in row:
                continue
            command = row.get("commands", value["commands"])[0]
            words = shlex.split(fill_command(command, row, seed="0", run="RUN", data="DATA"))
            first_option = 2  # after "python train.py"
            if words[1] == "-m":
                first_option = 3
            own = options.parse_words(parser, words[first_option:]).asked
            shared = (own.keys() & asked.keys()) - NOT_COMPARED
            if all(own[key] == asked[key] for key in shared):
                found.append((entry, row))
    return found


def current_commit() -> str:
    """Return the commit of this checkout."""
    return subprocess.check_output(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=HERE, text=True
    ).strip()


# ---- numbers


def path_of_results(value: dict, row: dict, words: dict[str, str]) -> str:
    """Return the file with the numbers of a run."""
    return fill_command(row.get("results", value["results"]), row, **words)


def store_file(
    table: str,
    row: dict,
    words: dict[str, str],
    commit: str,
    rows: dict[str, dict],
    overwrite: bool,
) -> None:
    """Store the numbers of a run from the file that its commands wrote."""
    results = utils.read_json(path_of_results(rows[table], row, words))
    store(table, row, words, commit, results, rows, overwrite)


def store(
    table: str,
    row: dict,
    words: dict[str, str],
    commit: str,
    results: dict,
    rows: dict[str, dict],
    overwrite: bool,
) -> None:
    """Write the numbers of a run as one line of numbers/TABLE.csv, by rows.yaml and seed."""
    value = rows[table]
    seed = words["seed"]
    name = f"{table}, {row['name']}"
    if seed:
        name += f", seed {seed}"
    images = look_up(results, value.get("images_at", "images"))
    if images != value["images"]:
        raise InputError(
            f"{name}: these results are for {images} images, and the table is for the split of "
            f"{value['images']}; evaluate the run on that split"
        )
    runs = read_numbers(table)
    kept = [run for run in runs if (run["row"], run["seed"]) != (row["name"], seed)]
    if len(kept) < len(runs) and not overwrite:
        print(f"{name}: is stored already; --overwrite replaces it")
        return
    numbers = {}
    for head, path in list_numbers(value).items():
        number = look_up(results, fill_command(path, row, **words))
        numbers[head] = spell_number(value.get("verdicts", {}).get(number, number))
    kept.append({"row": row["name"], "seed": seed, "commit": commit, **numbers})

    order = [each["name"] for each in value["rows"]]
    kept.sort(key=lambda run: (order.index(run["row"]), int(run["seed"] or 0)))
    with utils.atomic(str(path_of_numbers(table))) as file:
        heads = [*RUN_KEYS, *list_numbers(value)]
        writer = csv.DictWriter(file, heads, lineterminator="\n", restval="")
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
