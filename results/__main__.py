"""Print the tables of results that README.md and docs/ show.

    python -m results                           # all of them
    python -m results results-regions           # those of docs/results-regions.md
    python -m results --write                   # into the documents, between their marks

results/DOCUMENT.csv holds the tables of a document, with an empty line between two. Each line begins
with the table's name; then come the command and the commits of the runs, and the cells as they are
shown. The first line of a table holds its heads, and in place of a command the one that the document
shows above the table, if any. docs/results.md says how a row is added.

A document shows a table between the lines <!-- results: NAME --> and <!-- /results -->.
"""
import csv
import re
from pathlib import Path

import cli
import methods

HERE = Path(__file__).resolve().parent
BLOCK = re.compile(r"^<!-- results: (\S+) -->\n(.*?)^<!-- /results -->$", re.DOTALL | re.MULTILINE)
METHODS_BLOCK = re.compile(r"(<!-- methods -->\n).*?(\n<!-- /methods -->)", re.DOTALL)


def read_tables(document: str) -> dict[str, list[list[str]]]:
    """The tables of a document by name, each a list of [command, commits, cell, ...]."""
    tables = {}
    with open(HERE / f"{document}.csv", encoding="utf-8", newline="") as f:
        for name, *line in filter(None, csv.reader(f)):
            tables.setdefault(name, []).append(line)
    return tables


def render(lines: list[list[str]]) -> str:
    """A table in Markdown, below the command that its first line names."""
    command = lines[0][0]
    rows = [f"| {' | '.join(cells)} |" for _, _, *cells in lines]
    rows.insert(1, "|---" * len(lines[0][2:]) + "|")
    return (f"```\n{command}\n```\n\n" if command != "command" else "") + "\n".join(rows)


def fill(text: str, tables: dict[str, list[list[str]]]) -> str:
    """Replace what stands between the marks of a document's text."""
    def block(match: re.Match) -> str:
        name = match[1]
        if name not in tables:
            raise cli.InputError(f"a document shows the table {name}; its CSV file holds "
                                 f"{', '.join(tables) or 'none'}")
        return f"<!-- results: {name} -->\n{render(tables[name])}\n<!-- /results -->"
    text = BLOCK.sub(block, text)
    return METHODS_BLOCK.sub(lambda m: m[1] + "\n".join(methods.table()) + m[2], text)


def list_documents() -> dict[str, Path]:
    """README.md, the pages of docs/ and the packages' README.md by name."""
    root = HERE.parent
    return {**{path.stem: path for path in [root / "README.md", *sorted(root.glob("docs/*.md"))]},
            **{path.parent.name: path for path in sorted(root.glob("[a-z]*/README.md"))}}


def main(argv: list[str] | None = None) -> None:
    documents = [name for name in list_documents() if (HERE / f"{name}.csv").exists()]
    p = cli.Arguments(__doc__.split("\n")[0])
    p.add_argument("document", nargs="?", choices=documents, help="whose tables (default: all)")
    p.add_argument("--write", action="store_true", help="write the tables into the documents")
    cli.run("results", show, p.parse_args(argv), documents)


def show(opt, documents: list[str]) -> None:
    """Print the tables of one document or of all, or write them into the documents."""
    if opt.write:
        for name, path in list_documents().items():
            tables = read_tables(name) if name in documents else {}
            path.write_text(fill(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
        return
    for document in [opt.document] if opt.document else documents:
        for name, lines in read_tables(document).items():
            print(f"{name}:\n\n{render(lines)}\n")


if __name__ == "__main__":
    main()
