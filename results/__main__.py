"""Print tables of results, run them, and write those shown in README.md and docs/.

    python -m results                           # names of all tables
    python -m results best sets                 # these two; --commands: how their rows were made
    python -m results --write                   # compute, and write between the marks of documents
    python -m results run official              # run all rows and seeds that have no numbers yet
    python -m results add 'runs/mine_*'         # numbers of runs that exist already

A document shows a table between the lines <!-- results: NAME --> and <!-- /results -->, or some of
its columns with <!-- results: NAME | HEAD | HEAD -->, or the rows with certain cells in a column
with <!-- results: NAME | HEAD | HEAD=CELL; CELL -->.
"""

import re
import sys
from pathlib import Path

import methods
import utils
from results import runs
from results.tables import HERE, Row, Table, read_rows, read_tables

BLOCK = re.compile(
    r"^<!-- results: (\S+)(?: \| ([^\n]*?))? -->\n(.*?)^<!-- /results -->$",
    re.DOTALL | re.MULTILINE,
)
METHODS_BLOCK = re.compile(r"(<!-- methods -->\n).*?(\n<!-- /methods -->)", re.DOTALL)


# ---- tables in documents


def render_markdown(table: Table, heads: list[str] | None = None) -> str:
    """Write a table in Markdown: all of it, or columns without empty rows.

    HEAD=CELL; CELL in place of a head selects rows.
    """
    rows = table.rows
    columns = []
    for head in heads or []:
        head, selects, cells = head.partition("=")
        column = find(head, table.heads)
        if not selects:
            columns.append(column)
            continue
        rows = select_rows(rows, column, cells.split("; "))
    columns = columns or list(range(len(table.heads)))

    lines = [write_line(table.heads, columns), "|---" * len(columns) + "|"]
    for row in rows:
        if any(row.cells[i] for i in columns[1:]):
            lines.append(write_line(row.cells, columns))
    text = "\n".join(lines)
    if table.command and not heads:
        text = f"```\n{table.command}\n```\n\n{text}"
    if table.source:
        text += f"\n\n*{table.source}*"
    return text


def find(name: str, names: list[str]) -> int:
    """Return the index of a head or a cell that a document names."""
    if name not in names:
        raise utils.InputError(
            f"a document shows {utils.spell_value(name)}, which its table lacks; the table has "
            f"{'; '.join(names)}"
        )
    return names.index(name)


def select_rows(rows: list[Row], column: int, cells: list[str]) -> list[Row]:
    """Return the rows with one of these cells in a column, in the order of the cells."""
    shown = [row.cells[column] for row in rows]
    selected = []
    for cell in cells:
        find(cell, shown)
        selected += [row for row in rows if row.cells[column] == cell]
    return selected


def write_line(cells: list[str], columns: list[int]) -> str:
    """Write one line of a table in Markdown."""
    return f"| {' | '.join(cells[i] for i in columns)} |"


def fill(text: str, tables: dict[str, Table]) -> str:
    """Replace what stands between the marks of a document's text."""

    def block(match: re.Match) -> str:
        name = match[1]
        heads = None
        if match[2]:
            heads = match[2].split(" | ")
        if name not in tables:
            raise utils.InputError(
                f"a document shows the table {name}; the tables are {', '.join(tables)}"
            )
        mark = match[0].split("\n", 1)[0]
        return f"{mark}\n{render_markdown(tables[name], heads)}\n<!-- /results -->"

    text = BLOCK.sub(block, text)
    return METHODS_BLOCK.sub(
        lambda match: match[1] + "\n".join(methods.tabulate_methods()) + match[2], text
    )


def list_documents() -> list[Path]:
    """Return the pages that show tables: README.md, docs/ and the packages' README.md."""
    root = HERE.parent
    return [
        root / "README.md",
        *sorted(root.glob("docs/*.md")),
        *sorted(root.glob("[a-z]*/README.md")),
    ]


# ---- commands


def main(argv: list[str] | None = None) -> None:
    if argv is None:
        argv = sys.argv[1:]
    command = ""
    if argv:
        command = argv[0]
    if command == "run":
        p = utils.Arguments("Run rows of results/rows.yaml and store their numbers.", command="run")
        p.add_argument("names", nargs="+", metavar="NAME", help="a table, or one of its rows")
        p.add_argument("--data_path", default="data", help="folder of the data sets")
        p.add_argument("--runs", default="runs/results", help="folder of the runs")
        help = "run rows that have numbers, too, and replace these (give another --runs)"
        p.add_argument("--overwrite", action="store_true", help=help)
        opt = p.parse_args(argv[1:])
        utils.run("results", runs.run_rows, opt.names, read_rows(), opt)
        return
    if command == "add":
        p = utils.Arguments("Store the numbers of runs that exist already.", command="add")
        p.add_argument(
            "folders", nargs="+", metavar="FOLDER", help="run folders, or patterns in quotes"
        )
        p.add_argument(
            "--row", help="the row, for the results file of a command without a run folder (CCA)"
        )
        p.add_argument("--overwrite", action="store_true", help="replace stored numbers")
        opt = p.parse_args(argv[1:])
        utils.run("results", runs.add_runs, opt.folders, read_rows(), opt)
        return
    p = utils.Arguments(__doc__.split("\n")[0])
    p.add_argument("table", nargs="*", help="tables to print (default: the names of all)")
    p.add_argument(
        "--commands", action="store_true", help="print the command and the commits of each row, too"
    )
    p.add_argument(
        "--write", action="store_true", help="compute the tables and write them into the documents"
    )
    utils.run("results", show_tables, p.parse_args(argv), read_tables())


def show_tables(opt, tables: dict[str, Table]) -> None:
    """Print tables or the names of all, or write them into the documents."""
    if opt.write:
        for path in list_documents():
            path.write_text(fill(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
    for name in opt.table:
        if name not in tables:
            near = utils.suggest(name, tables)
            fix = "python -m results lists the tables"
            if near:
                fix = f"did you mean {near}?"
            raise utils.InputError(f"there is no table {utils.shorten(name, 60)}; {fix}")
    for name in opt.table:
        print(f"{name}:\n\n{render_markdown(tables[name])}\n")
        if opt.commands:
            for row in tables[name].rows:
                print(f"{row.cells[0]} ({row.commits}):\n    {row.command}")
            print()
    if not opt.table and not opt.write:
        print("\n".join(f"{name}: {len(table.rows)} rows" for name, table in tables.items()))


if __name__ == "__main__":
    main()
