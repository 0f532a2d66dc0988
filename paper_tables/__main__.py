"""List the tables of the papers, how far each was run, and missing data.

    python -m paper_tables --list
"""
import importlib

import cli
from paper_tables.runner import Table, build_place, build_table_parser, plan_rows, print_needs

NAMES = ("pmrl_table1", "pmrl_table2", "pmrl_table3", "pmrl_section34", "ucmr_table1", "ucmr_table2", "ucmr_table3",
         "ucmr_table4", "ucmr_fig2", "ucmr_table5", "ucmr_table6", "ucmr_table7_8", "jwae_table3", "jwae_table4",
         "jwae_table5", "jwae_table6", "jwae_table7", "dmsm_table1")


def load_table(name: str) -> Table:
    return importlib.import_module(f"paper_tables.{name}").TABLE


def list_tables(opt) -> None:
    steps = []
    print(f"{'python -m paper_tables.NAME':<28} {'rows':>5} {'to run':>7} {'runs done':>11}   --f8k")
    for name in NAMES:
        table = load_table(name)
        runs = [run for _, run in plan_rows(table.rows, opt.seeds or table.seeds, build_place(opt))]
        done = f"{sum(run[-1].done for run in runs)} of {len(runs)}"
        print(f"{name:<28} {len(table.rows):>5} {sum(bool(row.runs) for row in table.rows):>7} {done:>11}   "
              f"{'yes' if table.f8k else ''}".rstrip())
        steps += sum(runs, [])
    print("Tables share runs. --demo runs any table small, and --list after a name lists its rows.\n")
    print_needs(steps)


def main(argv=None) -> None:
    p = build_table_parser(__doc__)
    cli.run(p.prog, list_tables, p.parse_args(argv))


if __name__ == "__main__":
    main()
