"""List the tables of the papers, how far each was run, and missing data.

Each table is a script. It writes down the rows' commands (commands.py), the published numbers and
where ours stand in the results. From there it goes: scales.py replaces data and sizes for --demo
and --f8k, plan.py turns a run into steps (data, trainings, evaluation) with the files that they
write, runner.py runs what is missing and prints ours beside the published numbers. hours.py says
what a row costs. figures.py draws examples of retrieval, and parity/ trains beside the original
code.
"""

import importlib
import pkgutil

import paper_tables
import utils
from paper_tables.plan import list_missing, plan_rows
from paper_tables.runner import Table, build_setting, build_table_parser, print_needs

PAPERS = ("pmrl", "ucmr", "jwae", "dmsm")


def load_tables() -> dict[str, Table]:
    """The tables of the papers by the names of their scripts."""
    tables = {}
    for found in pkgutil.iter_modules(paper_tables.__path__):
        if found.name.startswith(PAPERS):
            module = importlib.import_module(f"paper_tables.{found.name}")
            tables[found.name] = module.TABLE
    return tables


def list_tables(opt) -> None:
    """Print how far each table has been run, and what has to be fetched."""
    missing = []
    print(
        f"{'python -m paper_tables.NAME':<28} {'rows':>5} {'to run':>7} {'runs done':>11}   --f8k"
    )
    for name, table in load_tables().items():
        plans = plan_rows(table.rows, opt.seeds or table.seeds, build_setting(opt))
        runs = [steps for _, steps in plans]
        done = sum(steps[-1].done for steps in runs)
        to_run = sum(bool(row.runs) for row in table.rows)
        f8k = "yes" if table.f8k else ""
        progress = f"{done} of {len(runs)}"
        print(f"{name:<28} {len(table.rows):>5} {to_run:>7} {progress:>11}   {f8k}".rstrip())
        for steps in runs:
            missing += list_missing(steps)
    print(
        "Tables share runs. --demo runs any table small, and --list after a name lists its rows.\n"
    )
    print_needs(missing)


def main(argv=None) -> None:
    p = build_table_parser(__doc__.splitlines()[0])
    utils.run(p.prog, list_tables, p.parse_args(argv))


if __name__ == "__main__":
    main()
