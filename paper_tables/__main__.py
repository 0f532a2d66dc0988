"""The command that lists the tables of the papers, and how far each has been run.

    python -m paper_tables --list
"""
import importlib

import cli
from evaluation.report import FORMATS, render
from paper_tables.common import Table, arguments, build_place, unique
from paper_tables.runs import complete, run_steps

NAMES = ("pmrl_table1", "pmrl_table2", "pmrl_table3", "pmrl_section34", "ucmr_table1",
         "ucmr_table2", "ucmr_table3", "ucmr_table4", "ucmr_fig2", "ucmr_table5", "ucmr_table6",
         "ucmr_table7_8", "jwae_table3", "jwae_table4", "jwae_table5", "jwae_table6", "jwae_table7",
         "dmsm_table1")


def table(name: str) -> Table:
    return importlib.import_module(f"paper_tables.{name}").TABLE


def state(name: str, opt) -> tuple[str, list[str]]:
    """A line of the list: the table's name and its cells. These are the numbers of rows and of rows
    that can be run, how many runs have their results, whether --f8k can serve the table, and its
    state in words."""
    made = table(name)
    runs = unique(made.rows, opt.seeds or made.seeds)
    steps = [run_steps(run, seed, build_place(opt)) for _, run, seed in runs]
    done = sum(map(complete, steps))
    lacks = sorted({step.lacks for found in steps for step in found if step.lacks
                    and not step.done})
    says = made.later or (lacks[0] if lacks else "ready" if done < len(runs) else "done")
    return name, [str(len(made.rows)), str(sum(bool(row.runs) for row in made.rows)),
                  f"{done} of {len(runs)}", "yes" if made.f8k else "", says]


def main(argv=None) -> None:
    p = arguments(__doc__)
    p.add_argument("--list", action="store_true", help="list the tables (the default)")
    cli.run(p.prog, list_tables, p.parse_args(argv))


def list_tables(opt) -> None:
    form = opt.format if opt.format in FORMATS else "text"
    lines = [state(name, opt) for name in NAMES]
    widest = max(len(cells[-1]) for _, cells in lines)
    heads = ["rows", "to run", "runs done", "--f8k", "state".ljust(widest)]
    lines = [(name, [*cells[:-1], cells[-1].ljust(widest)]) for name, cells in lines]
    title = "tables of the papers, each run by python -m paper_tables.NAME --data_path D"
    print(render([(title, [("", heads)], lines)], form))
    print("\nTables share runs. --demo runs any table small.")


if __name__ == "__main__":
    main()
