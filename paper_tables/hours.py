"""What a row of a table costs, by the measurements of benchmark.py in results/cost.csv."""

import csv
import os
from operator import attrgetter
from typing import NamedTuple

from paper_tables.commands import Command, read_command, spell_value

COST_FILE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results", "cost.csv"
)
DEFAULT_EPOCHS = 30  # train.py --num_epochs
# Pairs of an epoch, by the beginning of the data set's name.
PAIRS_PER_EPOCH = {"coco_halves": 413_915, "coco": 566_435, "f30k": 145_000}
# Options that cost nothing, and those that cost next to nothing beside a network or a GRU.
FREE_OPTIONS = (
    "learning_rate",
    "lr_update",
    "num_epochs",
    "margin",
    "init_from",
    "lambda_softmax",
    "lambda_lse",
    "gamma",
    "use_restval",
    "freeze_bn",
    "max_violation",
    "feature_norm",
    "region_bn",
    "data_path",
    "dev_images",  # hours count the paper's validation
    "seed",
    "select",
)
HEAD_OPTIONS = ("head", "image_head", "text_head")
# Of these, a fine-tuned ResNet-152 is measured in small batches where memory is scarce.
ROUGH_OPTIONS = (*HEAD_OPTIONS, "batch_size")
GAUSSIAN_SIMILARITIES = (
    "kl",
    "kl_reverse",
    "minkl",
    "wasserstein",
    "wasserstein_var",
    "mahalanobis",
)


class Measured(NamedTuple):
    """A training whose cost was measured."""

    options: dict  # of its command
    machine: str
    epoch_hours: float
    evaluation_seconds: float
    memory: float  # GiB, of the GPU if there is one
    on_gpu: bool


class Cost(NamedTuple):
    """Of a row of a table. about: by measurements of other similarities, heads or data."""

    hours: float
    memory: float
    about: bool


def read_measurements(path: str = COST_FILE) -> list[Measured]:
    """Read the measurements of the fastest machine, which is one with a GPU if there is any."""
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [read_measurement(row) for row in rows if row["epoch, h"]]
    if not found:
        return []
    on_gpu = [measured for measured in found if measured.on_gpu]
    best = min(on_gpu or found, key=attrgetter("epoch_hours"))
    return [measured for measured in found if measured.machine == best.machine]


def read_measurement(row: dict[str, str]) -> Measured:
    """Read a line of results/cost.csv, whose numbers have commas between thousands."""
    epoch_hours = row["epoch, h"].replace(",", "")
    evaluation_seconds = row["evaluation, s"].replace(",", "")
    return Measured(
        options=read_command(row["command"]).expand(),
        machine=row["machine"],
        epoch_hours=float(epoch_hours),
        evaluation_seconds=float(evaluation_seconds or 0),
        memory=float(row["GPU, GiB"] or row["training, GiB"]),
        on_gpu=bool(row["GPU, GiB"]),
    )


def count_pairs(data_name: str) -> int | None:
    """Count the training pairs of a data set of the papers, or None for others."""
    for start, pairs in PAIRS_PER_EPOCH.items():
        if data_name.startswith(start):
            return pairs
    return None


def describe_work(options: dict, exact: bool) -> dict[str, str]:
    """The options that decide what an epoch costs.

    exact: also the similarity, the heads and the size of a batch.
    """
    work = {name: spell_value(options[name]) for name in options if name not in FREE_OPTIONS}
    work["data_name"] = work.get("data_name", "").removeprefix("f30k").removeprefix("coco")
    if not exact:
        for name in ROUGH_OPTIONS:
            work.pop(name, None)
        if work.get("sim") in GAUSSIAN_SIMILARITIES:
            work["sim"] = "Gaussians"
    return work


def find_measured(options: dict, measurements: list[Measured]) -> tuple[Measured, bool] | None:
    """Find the measurement of the same work, or of nearly the same, and whether it is the same."""
    for exact in (True, False):
        wanted = describe_work(options, exact)
        for measured in measurements:
            if describe_work(measured.options, exact) == wanted:
                return measured, exact

    # beside a network for photos, a second copy of the heads is little
    reads_photos = options.get("data_name") in ("coco", "f30k")
    if not reads_photos or options.get("sim") not in GAUSSIAN_SIMILARITIES:
        return None
    of_gaussians = ("sim", *HEAD_OPTIONS)
    points = {name: value for name, value in options.items() if name not in of_gaussians}
    found = find_measured(points, measurements)
    if found is None:
        return None
    measured, _ = found
    return measured, False


def estimate_cost(
    runs: tuple[tuple[Command, ...], ...], measurements: list[Measured]
) -> Cost | None:
    """Estimate the cost of a row, one seed; None where some training was not measured."""
    if not runs:
        return None
    hours = 0.0
    memory = 0.0
    about = False
    for run in runs:
        last = None
        for command in run[:-1]:
            options = command.expand()
            found = find_measured(options, measurements)
            pairs = count_pairs(options.get("data_name", ""))
            if found is None or pairs is None or command.program != "train.py":
                return None
            last, exact = found
            share = pairs / count_pairs(last.options["data_name"])
            hours += share * float(options.get("num_epochs", DEFAULT_EPOCHS)) * last.epoch_hours
            memory = max(memory, last.memory)
            about |= not exact or share != 1
        if last:
            hours += last.evaluation_seconds / 3600
    return Cost(hours, memory, about)


def spell_cost(runs: tuple[tuple[Command, ...], ...], measurements: list[Measured]) -> str:
    """Hours and memory of a row of a table, for --list."""
    if not runs:
        return ""
    cost = estimate_cost(runs, measurements)
    if cost is None:
        return "not measured"
    about = "~" if cost.about else ""
    digits = 1 if cost.hours < 10 else 0
    return f"{about}{cost.hours:,.{digits}f} h, {cost.memory:.0f} GiB"


def describe_hours(measurements: list[Measured]) -> str:
    """Say on which machine hours and memory were measured."""
    if not measurements:
        return "What the rows take has not been measured: python benchmark.py."
    first = measurements[0]
    kind = "GPU memory" if first.on_gpu else "memory"
    return (
        f"Hours of a seed and {kind} of its training: {first.machine}, by benchmark.py on "
        "made-up data of COCO's size. ~: measured with another similarity, another head or on COCO."
    )
