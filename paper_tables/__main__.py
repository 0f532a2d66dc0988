"""List the tables of the papers, how far each was run, and missing data."""
import importlib
import pkgutil

import cli
import paper_tables
from paper_tables.runner import Table, build_place, build_table_parser, list_missing, plan_rows, print_needs


def load_tables() -> dict[str, Table]:
    """The tables of the papers by the names of their scripts."""
    modules = [importlib.import_module(f"paper_tables.{m.name}") for m in pkgutil.iter_modules(paper_tables.__path__)
               if m.name.split("_")[0] in ("pmrl", "ucmr", "jwae", "dmsm")]
    return {module.__name__.split(".")[1]: module.TABLE for module in modules}


def list_tables(opt) -> None:
    steps = []
    print(f"{'python -m paper_tables.NAME':<28} {'rows':>5} {'to run':>7} {'runs done':>11}   --f8k")
    for name, table in load_tables().items():
        runs = [run for _, run in plan_rows(table.rows, opt.seeds or table.seeds, build_place(opt))]
        done = f"{sum(run[-1].done for run in runs)} of {len(runs)}"
        print(f"{name:<28} {len(table.rows):>5} {sum(bool(row.runs) for row in table.rows):>7} {done:>11}   "
              f"{'yes' if table.f8k else ''}".rstrip())
        steps += sum(map(list_missing, runs), [])
    print("Tables share runs. --demo runs any table small, and --list after a name lists its rows.\n")
    print_needs(steps)


def main(argv=None) -> None:
    p = build_table_parser(__doc__)
    cli.run(p.prog, list_tables, p.parse_args(argv))


if __name__ == "__main__":
    main()
