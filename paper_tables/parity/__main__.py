"""Compare our training with the original code of VSE++, SCAN, VSRN, PVSE, PCME, PCME++ and jWAE.

    git clone https://github.com/fartashf/vsepp
    python -m paper_tables.parity --original vsepp=vsepp

Both sides get equal weights and batches, and train. The code of the clones is run; their files stay
as they are.
"""

if __name__ == "__main__":
    import utils

    utils.start("loading torch")

import csv
import os
import tempfile

import torch

import utils
from evaluation.report import text
from paper_tables.parity.clone import ROOT, read_commit
from paper_tables.parity.compare import PRECISIONS, System, compare, is_equal
from paper_tables.parity.made_up import write_data
from paper_tables.parity.systems import PARITY_SYSTEMS
from utils import (
    Arguments,
    InputError,
    atomic,
    data_set,
    filename,
    natural,
    output,
    positive,
    save_json,
)

REPOSITORIES = {
    "vsepp": "fartashf/vsepp",
    "scan": "kuanghuei/SCAN",
    "vsrn": "KunpengLi1994/VSRN",
    "pvse": "yalesong/pvse",
    "pcme": "naver-ai/pcme",
    "pcmepp": "naver-ai/pcmepp",
    "jwae": "visinf/jwae",
    "cite": "BryanPlummer/cite",
}
COMPARED_NUMBERS = {
    "loss": "loss",
    "parameters": "weights",
}  # of a result, and the heads of columns
UNKNOWN = "for a reason that is not known"


def original(word: str) -> tuple[str, str]:
    """Parse NAME=FOLDER, a name of REPOSITORIES and the folder of its clone."""
    name, given, path = word.partition("=")
    if not given or name not in REPOSITORIES:
        raise InputError(
            f"'{word}' does not name a clone; give NAME=FOLDER, with a name of "
            f"{', '.join(REPOSITORIES)}"
        )
    return name, filename(path)


def parse_args(argv=None):
    p = Arguments("Compare our training with original code bases. The code of the clones is run.")
    known = ", ".join(f"{name} ({repository})" for name, repository in REPOSITORIES.items())
    add = p.add_argument
    add(
        "--original",
        type=original,
        nargs="+",
        required=True,
        metavar="NAME=FOLDER",
        help=f"clones by name: {known}",
    )
    add("--only", nargs="+", metavar="WORD", help="systems with one of these words in their names")
    add("--steps", type=positive, default=100, help="training steps")
    add("--seed", type=natural, default=0, help="seed of weights, batches and made-up data")
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        help="data set with five captions an image (default: made-up data)",
    )
    add("--output", type=filename, metavar="FILE.json", help="write all results to this file")
    add(
        "--csv",
        type=filename,
        metavar="FILE.csv",
        help="write the table to this file, for python -m results",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace an existing file of --output, and lines of one of --csv",
    )
    return p.parse_args(argv)


# ---- the comparison


def choose_systems(opt) -> list[System]:
    """The systems of the clones that are given and, with --only, of these words."""
    clones = dict(opt.original)
    systems = [system for system in PARITY_SYSTEMS if system.clone in clones]
    if not opt.only:
        return systems
    words = [word.lower() for word in opt.only]
    chosen = [system for system in systems if any(word in system.name.lower() for word in words)]
    if not chosen:
        names = "; ".join(system.name for system in systems)
        raise InputError(
            f"--only {' '.join(opt.only)} names no system of these clones; they are {names}"
        )
    return chosen


def compare_systems(opt) -> int:
    """Compare all systems, print and write the results.

    Returns 1 if one differs, or cannot be compared, without a known reason.
    """
    systems = choose_systems(opt)
    clones = dict(opt.original)
    for path in (opt.output, opt.csv):
        if path:
            output(path, overwrite=opt.overwrite)
    torch.set_num_threads(1)  # at these sizes, two are slower

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = {}  # flags of data sets, by what is read
        for system in systems:
            reads = system.kind.reads
            if opt.data_name:
                data[reads] = f"--data_path {opt.data_path} --data_name {opt.data_name}"
            elif reads not in data:
                data[reads] = write_data(folder, reads, opt.seed)
            row = compare_system(system, clones[system.clone], data[reads], opt)
            print(f"{system.name}: {row['verdict']}", flush=True)
            rows.append(row)

    print(f"\n{text(tabulate(rows))}\n\n{describe(rows)}")
    result = {
        "commit": read_commit(ROOT),
        "torch": str(torch.__version__),
        "steps": opt.steps,
        "seed": opt.seed,
        "data_name": opt.data_name,
        "systems": rows,
    }
    if opt.output:
        save_json(result, opt.output)
    if opt.csv:
        save_csv(result, opt.csv)
    return int(any(not row["equal"] and not row["differs"] for row in rows))


def compare_system(system: System, path: str, data: str, opt) -> dict:
    """Compare one system in both precisions.

    Returns what it is, its results by precision, whether both sides are equal, and a verdict.
    """
    row = {
        "system": system.name,
        "clone": system.clone,
        "original": REPOSITORIES[system.clone],
        "original_commit": read_commit(path),
        "theirs": system.theirs,
        "ours": system.ours,
        "changed": system.changed,
        "differs": system.differs,
        "equal": False,
    }
    try:
        for name in PRECISIONS:
            row[name] = compare(system, path, data, opt.steps, opt.seed, name)
    except InputError as error:
        row["verdict"] = f"not compared: {error}"
        return row

    row["equal"] = is_equal(row)
    if row["equal"]:
        row["verdict"] = "equal"
        row["differs"] = ""
    else:
        row["verdict"] = f"differs: {system.differs or UNKNOWN}"
    return row


# ---- the table


def list_heads() -> list[str]:
    heads = ["steps"]
    for head in COMPARED_NUMBERS.values():
        heads += [f"{head}, {precision}" for precision in PRECISIONS]
    return [*heads, "ranks, recalls"]


def list_cells(row: dict) -> list[str]:
    """The cells of a system below `list_heads`."""
    if "float32" not in row:
        return ["", "", "", "", "", "not compared"]
    cells = [str(row["float64"]["steps"])]
    for number in COMPARED_NUMBERS:
        cells += [spell(row[precision][number]) for precision in PRECISIONS]
    if row["float64"]["evaluation"]["equal"]:
        return [*cells, "equal"]
    return [*cells, "differs"]


def spell(number: float) -> str:
    """Write a difference with one digit."""
    if number == 0:
        return "0"
    return f"{number:.0e}"


def tabulate(rows: list[dict]) -> tuple:
    """Build the table for a terminal."""
    title = (
        "Largest relative difference of the loss of a step, and distance of the weights "
        "relative to how far training moved them"
    )
    return title, [("", list_heads())], [(row["system"], list_cells(row)) for row in rows]


def describe(rows: list[dict]) -> str:
    """Name the flags of each system on both sides, and what the comparison changes."""
    lines = []
    for row in rows:
        commit = f"{row['original']} {row['original_commit']}"
        lines.append(f"{row['system']} ({commit}): {row['verdict']}")
        lines.append(f"    original: {row['theirs'] or '(defaults)'}")
        lines.append(f"    train.py: {row['ours'] or '(defaults)'}")
        if row["changed"]:
            lines.append(f"    in the comparison: {row['changed']}")
    return "\n".join(lines)


def save_csv(result: dict, path: str) -> None:
    """Write the table in the form of results/*.csv.

    Lines of systems that were not compared now stay as a file of an earlier comparison has them.
    """
    head = [
        "parity",
        "command",
        "commits",
        "system",
        "original",
        "its flags",
        "flags of `train.py`",
        *list_heads(),
        "equal",
        "in the comparison",
    ]
    lines = read_csv(path, head)
    for row in result["systems"]:
        command = (
            f"python -m paper_tables.parity --original {row['clone']}=CLONE "
            f"--steps {result['steps']}"
        )
        commit = f"{row['original']} {row['original_commit']}"
        flags = [as_code(row["theirs"]), as_code(row["ours"])]
        lines[row["system"]] = [
            "parity",
            command,
            result["commit"],
            row["system"],
            commit,
            *flags,
            *list_cells(row),
            summarize(row),
            row["changed"],
        ]

    names = [system.name for system in PARITY_SYSTEMS if system.name in lines]
    with atomic(path) as f:
        csv.writer(f, lineterminator="\n").writerows([head, *(lines[name] for name in names)])


def read_csv(path: str, head: list[str]) -> dict[str, list[str]]:
    """Read the lines of a table by system: none where there is no file of this form."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8", newline="") as f:
        first, *lines = [*csv.reader(f)] or [[]]
    if first != head:
        return {}
    return {line[head.index("system")]: line for line in lines}


def summarize(row: dict) -> str:
    """Yes, or why not."""
    if row["equal"]:
        return "yes"
    return f"no: {row['differs'] or UNKNOWN}"


def as_code(flags: str) -> str:
    """Write flags in Markdown."""
    if not flags:
        return "defaults"
    return f"`{flags}`"


def main(argv=None) -> None:
    opt = parse_args(argv)
    raise SystemExit(utils.run("paper_tables.parity", compare_systems, opt))


if __name__ == "__main__":
    main()
