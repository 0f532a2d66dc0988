"""Hours of an epoch and of a table's row from measurements, and the lines of results/cost.csv."""

import re
from statistics import median

from cost.systems import SYSTEMS, System

# train.py's defaults
VALIDATION_STEPS = 500
EPOCHS = 30
DEFAULT_DEV_IMAGES = 1000
BUSY = 1.5  # processes that wait for each core


def epoch_hours(system: System, row: dict) -> float:
    """Hours of an epoch at the paper's size: its steps, and its validations of so many images."""
    steps = system.pairs // row["batch_size"]
    images = system.command.options.get("dev_images", DEFAULT_DEV_IMAGES) or system.dev_images
    validation = row["validation_s"] * images / row["validation_images"]
    return (system.pairs / row["pairs_per_s"] + (1 + steps // VALIDATION_STEPS) * validation) / 3600


def row_hours(system: System, rows: dict[str, dict]) -> float | None:
    """Hours of a row: its training, the one that it starts from, its evaluation. None: unknown."""
    row = rows.get(system.name, {})
    if "epoch_hours" not in row:
        return None
    epochs = system.command.options.get("num_epochs", EPOCHS)
    hours = epochs * row["epoch_hours"] + row.get("evaluate_s", 0) / 3600
    if not system.starts_from:
        return hours
    first = rows.get(system.starts_from, {})
    if "epoch_hours" not in first:
        return None
    return hours + EPOCHS * first["epoch_hours"]


def name_machine(machine: dict, rows: list[dict]) -> str:
    """Name the device, or a CPU's cores, and say where other work ran beside the measurements."""
    if machine["device"] != "CPU":
        return machine["device"]

    loads = []
    for row in rows:
        load = row.get("load", {}).get("train")
        if load is not None:
            loads.append(load)
    processor = re.sub(r"\((R|TM)\)| Processor", "", machine["cpu"])
    name = f"{machine['cores']} cores, {processor}"
    if loads and median(loads) > BUSY * machine["cores"]:
        name += ", busy"
    return name


# Columns of results/cost.csv after the system: key of a row, and digits.
NUMBER_COLUMNS = (
    ("first_step_s", 0),
    ("pairs_per_s", 0),
    ("train_memory_gib", 1),
    ("train_gpu_gib", 1),
    ("validation_images", 0),
    ("validation_s", 1),
    ("evaluate_s", 0),
    ("evaluate_memory_gib", 1),
    ("epoch_hours", 2),
    ("row_hours", 1),
)


def table_lines(stored: dict) -> list[list[str]]:
    """Return lines of results/cost.csv from the content of benchmark.json."""
    machine = name_machine(stored["machine"], stored["rows"])
    known = [system.name for system in SYSTEMS]
    lines = []
    for row in stored["rows"]:
        if "pairs_per_s" not in row or row["system"] not in known:
            continue
        command = f"python {row['command']}"
        line = ["cost", command, stored["machine"]["commit"], machine, row["system"]]
        line += [spell_number(row, name, digits) for name, digits in NUMBER_COLUMNS]
        lines.append(line)
    return lines


def spell_number(row: dict, name: str, digits: int) -> str:
    """Write a number that was measured, or nothing."""
    if name not in row:
        return ""
    return f"{row[name]:,.{digits}f}"
