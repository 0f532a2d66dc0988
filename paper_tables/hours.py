"""What a row of a table costs, by the measurements of benchmark.py in results/cost.csv."""

import csv
import os
import re
from typing import NamedTuple

from methods import METHODS

STORED = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results", "cost.csv"
)
EPOCHS = 30  # train.py --num_epochs
# Pairs of an epoch, by the beginning of the data set's name.
PAIRS = {"coco_halves": 413_915, "coco": 566_435, "f30k": 145_000}
# Options that cost nothing, and those that cost next to nothing beside a network or a GRU.
FREE = ("learning_rate", "lr_update", "num_epochs", "margin", "init_from", "lambda_softmax",
        "lambda_lse", "gamma", "use_restval", "freeze_bn", "max_violation", "no-feature_norm",
        "region_bn", "data_path", "seed", "select")
HEADS = ("head", "image_head", "text_head")
GAUSSIAN = ("kl", "kl_reverse", "minkl", "wasserstein", "wasserstein_var", "mahalanobis")


class Measured(NamedTuple):
    """A training whose cost was measured."""

    options: dict[str, str]  # of its command
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


def read_options(command: str) -> dict[str, str]:
    """Read the options of a command by name. --method stands for its options."""
    command = re.sub(r"--method (\S+)", lambda match: METHODS[match[1]].flags, command)
    return dict(re.findall(r"--(\S+) ?((?!--)\S*)", command))


def read_measurements(path: str = STORED) -> list[Measured]:
    """Read the measurements of the fastest machine, which is one with a GPU if there is any."""
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    rows = [dict(zip(lines[0], line)) for line in lines[1:]]
    found = []
    for row in rows:
        if not row["epoch, h"]:
            continue
        on_gpu = bool(row["GPU, GiB"])
        memory = row["GPU, GiB"] or row["training, GiB"]
        found.append(
            Measured(
                read_options(row["command"]),
                row["machine"],
                float(row["epoch, h"].replace(",", "")),
                float(row["evaluation, s"].replace(",", "") or 0),
                float(memory),
                on_gpu,
            )
        )
    if not found:
        return []
    best = min(found, key=lambda measured: (not measured.on_gpu, measured.epoch_hours))
    return [measured for measured in found if measured.machine == best.machine]


def count_pairs(data_name: str) -> int | None:
    """Count the training pairs of a data set of the papers, or None for others."""
    for start, pairs in PAIRS.items():
        if data_name.startswith(start):
            return pairs
    return None


def describe_work(options: dict[str, str], exact: bool) -> dict[str, str]:
    """The options that decide what a step costs. exact: also the similarity and the heads."""
    work = {name: value for name, value in options.items() if name not in FREE}
    work["data_name"] = work.get("data_name", "").removeprefix("f30k").removeprefix("coco")
    if not exact:
        for name in HEADS:
            work.pop(name, None)
        if work.get("sim") in GAUSSIAN:
            work["sim"] = "Gaussians"
    return work


def find_measured(
    options: dict[str, str], measurements: list[Measured]
) -> tuple[Measured, bool] | None:
    """Find the measurement of the same work, or of nearly the same, and whether it is the same."""
    for exact in (True, False):
        wanted = describe_work(options, exact)
        for measured in measurements:
            if describe_work(measured.options, exact) == wanted:
                return measured, exact
    # beside a network for photos, a second copy of the heads is little
    if options.get("data_name") in ("coco", "f30k") and options.get("sim") in GAUSSIAN:
        points = {name: value for name, value in options.items() if name not in ("sim", *HEADS)}
        found = find_measured(points, measurements)
        return (found[0], False) if found else None
    return None


def estimate_cost(runs: tuple[tuple[str, ...], ...], measurements: list[Measured]) -> Cost | None:
    """Estimate the cost of a row, one seed; None where some training was not measured."""
    hours = 0.0
    memory = 0.0
    about = False
    for run in runs:
        last = None
        for command in run[:-1]:
            options = read_options(command)
            found = find_measured(options, measurements)
            pairs = count_pairs(options.get("data_name", ""))
            if found is None or pairs is None or not command.startswith("train.py"):
                return None
            last, exact = found
            share = pairs / count_pairs(last.options["data_name"])
            hours += share * float(options.get("num_epochs", EPOCHS)) * last.epoch_hours
            memory = max(memory, last.memory)
            about |= not exact or share != 1
        hours += last.evaluation_seconds / 3600 if last else 0
    return Cost(hours, memory, about) if runs else None


def spell_cost(runs: tuple[tuple[str, ...], ...], measurements: list[Measured]) -> str:
    """Hours and memory of a row of a table, for --list."""
    if not runs:
        return ""
    cost = estimate_cost(runs, measurements)
    if cost is None:
        return "not measured"
    return f"{'~' * cost.about}{cost.hours:,.{int(cost.hours < 10)}f} h, {cost.memory:.0f} GiB"


def describe_hours(measurements: list[Measured]) -> str:
    """Say on which machine hours and memory were measured."""
    if not measurements:
        return "What the rows take has not been measured: python benchmark.py."
    first = measurements[0]
    return (
        f"Hours of a seed and {'GPU ' * first.on_gpu}memory of its training: {first.machine}, "
        "by benchmark.py on "
        "made-up data of COCO's size. ~: measured with another similarity, another head or on COCO."
    )
