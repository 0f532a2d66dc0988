"""Print tables of results, and write those shown in README.md and docs/.

    python -m results                           # names of all tables
    python -m results best sets                 # these two
    python -m results --write                   # into the documents, between their marks

Each CSV file holds the tables of one topic, with an empty line between two. Each line begins with the
table's name; then come the command and the commits of the runs, and the cells as they are shown.
The first line of a table holds its heads, and in place of a command the one that all rows share, if any.
RUN is the run from which a row starts. Several seeds are written `--seed 0,1,2`. Rows without a commit
of their own (linear CCA, comparisons) have the commit that brought the numbers.

A document shows a table between the lines <!-- results: NAME --> and <!-- /results -->, or some of its
columns with <!-- results: NAME | HEAD | HEAD -->, or the rows with certain cells in a column with
<!-- results: NAME | HEAD | HEAD=CELL; CELL -->.
"""
import csv
import re
from pathlib import Path

import cli
import methods

HERE = Path(__file__).resolve().parent
BLOCK = re.compile(r"^<!-- results: (\S+)(?: \| ([^\n]*?))? -->\n(.*?)^<!-- /results -->$", re.DOTALL | re.MULTILINE)
METHODS_BLOCK = re.compile(r"(<!-- methods -->\n).*?(\n<!-- /methods -->)", re.DOTALL)


def read_tables() -> dict[str, list[list[str]]]:
    """All tables by name, each a list of [command, commits, cell, ...]."""
    tables = {}
    for path in sorted(HERE.glob("*.csv")):
        with open(path, encoding="utf-8", newline="") as f:
            for name, *line in filter(None, csv.reader(f)):
                tables.setdefault(name, []).append(line)
    return tables


def render_markdown(lines: list[list[str]], heads: list[str] | None = None) -> str:
    """Write a table in Markdown: all of it, or columns without empty rows. HEAD=CELL; CELL selects rows."""
    command, _, *all_heads = lines[0]
    shown = []
    for head in heads or []:
        head, selects, cells = head.partition("=")
        if not selects:
            shown.append(head)
            continue
        place = 2 + all_heads.index(head)
        row_of = {line[place]: line for line in lines[1:]}
        lines = [lines[0], *(row_of[cell] for cell in cells.split("; "))]
    columns = [all_heads.index(head) for head in shown] or range(len(all_heads))
    rows = [f"| {' | '.join(cells[i] for i in columns)} |" for _, _, *cells in lines
            if any(cells[i] for i in columns[1:])]
    rows.insert(1, "|---" * len(columns) + "|")
    return (f"```\n{command}\n```\n\n" if command != "command" and not heads else "") + "\n".join(rows)


def fill(text: str, tables: dict[str, list[list[str]]]) -> str:
    """Replace what stands between the marks of a document's text."""
    def block(match: re.Match) -> str:
        name, heads = match[1], match[2].split(" | ") if match[2] else None
        if name not in tables:
            raise cli.InputError(f"a document shows the table {name}; the tables are {', '.join(tables)}")
        mark = match[0].split("\n", 1)[0]
        return f"{mark}\n{render_markdown(tables[name], heads)}\n<!-- /results -->"
    text = BLOCK.sub(block, text)
    return METHODS_BLOCK.sub(lambda m: m[1] + "\n".join(methods.tabulate_methods()) + m[2], text)


def list_documents() -> list[Path]:
    """Pages that show tables: README.md, docs/ and the packages' README.md."""
    root = HERE.parent
    return [root / "README.md", *sorted(root.glob("docs/*.md")), *sorted(root.glob("[a-z]*/README.md"))]


def main(argv: list[str] | None = None) -> None:
    tables = read_tables()
    p = cli.Arguments(__doc__.split("\n")[0])
    p.add_argument("table", nargs="*", help="tables to print (default: the names of all)")
    p.add_argument("--write", action="store_true", help="write the tables into the documents")
    cli.run("results", show_tables, p.parse_args(argv), tables)


def show_tables(opt, tables: dict[str, list[list[str]]]) -> None:
    """Print tables or the names of all, or write them into the documents."""
    if opt.write:
        for path in list_documents():
            path.write_text(fill(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
    for name in opt.table:
        if name not in tables:
            near = cli.suggest(name, tables)
            fix = f"did you mean {near}?" if near else "python -m results lists the tables"
            raise cli.InputError(f"there is no table {cli.shorten(name, 60)}; {fix}")
    for name in opt.table:
        print(f"{name}:\n\n{render_markdown(tables[name])}\n")
    if not opt.table and not opt.write:
        print("\n".join(f"{name}: {len(lines) - 1} rows" for name, lines in tables.items()))


if __name__ == "__main__":
    main()
