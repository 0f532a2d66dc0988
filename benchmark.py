"""What training and evaluation cost at the papers' sizes: seconds, pairs a second, memory.

    python benchmark.py                                 # all systems
    python benchmark.py --minutes 8 --data_path DATA    # what fits into 8 minutes
    python benchmark.py --original vsepp=../vsepp       # also a step of the original code
    python benchmark.py --csv benchmark.json            # the lines of results/cost.csv

The data are made up (cost/made_up.py), the commands are those of the papers' tables
(cost/systems.py). Each measurement is a process of its own, which runs train.py or evaluate.py
(cost/measure.py). After each, the results are written to benchmark.json.
"""

if __name__ == "__main__":
    import utils

    utils.start("loading torch")

import csv
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import utils
from cost.hours import epoch_hours, row_hours, table_lines
from cost.made_up import NETWORK, REGION_IMAGES, MadeUp
from cost.originals import LOADER
from cost.systems import SYSTEMS, System, order_systems
from utils import (
    Arguments,
    InputError,
    above_zero,
    filename,
    fraction,
    positive,
    read_json,
    save_json,
)

MIN_SECONDS_LEFT = 20  # to begin another measurement
SLOW_KINDS = ("regions", "photos")  # of data, whose validation takes minutes on a CPU
SYSTEMS_FIRST = 8  # that on a CPU are also evaluated before the others are trained


# ---- the machine


def describe_machine(on_gpu: bool) -> dict:
    """Describe processor, memory, graphics card, versions and commit."""
    import torch

    facts = {"cpu": name_processor(), "cores": os.cpu_count()}
    if hasattr(os, "sysconf"):
        n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        facts["memory_gib"] = round(n_bytes / 2**30, 1)
    facts["device"] = "CPU"
    if on_gpu:
        facts["device"] = torch.cuda.get_device_name()
    facts["threads"] = torch.get_num_threads()
    facts["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    facts["commit"] = utils.find_commit()[:10] or "unknown"
    return facts


def name_processor() -> str:
    """Return the name of the processor."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = re.search(r"model name\s*: (.*)", file.read())
        if name:
            return name[1]
    return platform.processor() or platform.machine()


# ---- measuring


def run_measurement(words: list[str], log_path: str, seconds: float | None) -> str:
    """Run cost.measure for at most so many seconds. Returns what went wrong, or ""."""
    command = [sys.executable, "-m", "cost.measure", *words]
    with open(log_path, "w+", encoding="utf-8", errors="replace") as log:
        try:
            done = subprocess.run(
                command,
                cwd=os.path.dirname(log_path),
                stdout=log,
                stderr=log,
                check=False,
                timeout=seconds,
                env=utils.find_modules_here(),
            )
        except subprocess.TimeoutExpired:
            return "the time was over"
        log.seek(0)
        lines = log.read().strip().splitlines()
    if not done.returncode:
        return ""
    last_line = lines[-1] if lines else ""
    return f"status {done.returncode}: {last_line[:300]}"


def spell_options(**options) -> list[str]:
    """Options as words of a command line."""
    words = []
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words


class Benchmark:
    """The measurements that have been made, and the time that is left for more."""

    def __init__(self, opt):
        self.opt = opt
        self.device = str(utils.torch_device(opt.device))
        self.on_gpu = self.device == "cuda"
        self.end = math.inf
        if opt.minutes:
            self.end = time.monotonic() + 60 * opt.minutes
        self.runs = tempfile.mkdtemp(prefix="benchmark_")
        self.rows: dict[str, dict] = {}
        self.machine = describe_machine(self.on_gpu)
        folder = opt.data_path or os.path.join(self.runs, "data")
        self.data = MadeUp(folder, opt.scale, opt.region_images)

    def has_time(self) -> bool:
        return self.end - time.monotonic() > MIN_SECONDS_LEFT

    def run_folder(self, system: System) -> str:
        return os.path.join(self.runs, re.sub(r"\W+", "_", system.name))

    def measure(self, what: str, system: System, words: list[str]) -> bool:
        """Run cost.measure and keep its results. Returns whether it came to its end."""
        described = {"system": system.name, "command": str(system.command)}
        row = self.rows.setdefault(system.name, described)
        path = os.path.join(self.runs, "result.json")
        if os.path.exists(path):
            os.remove(path)

        load = None
        if hasattr(os, "getloadavg"):
            load = os.getloadavg()[0]
        seconds = None
        if self.end < math.inf:
            seconds = self.end - time.monotonic()
        words = [what, path, str(time.time()), str(self.opt.seconds), *words]
        error = run_measurement(words, os.path.join(self.runs, "log.txt"), seconds)

        found = {}
        if os.path.exists(path):
            found = read_json(path, "")
        done = found.pop("done", False)
        if not done:
            row[f"{what}_failed"] = error
        memory = [name for name in found if name.endswith("_gib")]
        for name in memory:
            found[f"{what}_{name}"] = found.pop(name)
        row |= found
        row.setdefault("load", {})[what] = load
        return f"{what}_failed" not in row

    def train(self, system: System) -> None:
        """Measure the first steps of a training, and a validation."""
        words = [*system.training_words, *self.name_data(system)]
        dev_images = 0  # all
        if not self.on_gpu and system.data in SLOW_KINDS:
            dev_images = 1000
        words += spell_options(dev_images=dev_images)
        if system.data == "photos":
            words += spell_options(cnn_weights=os.path.join(self.data.folder, "coco", NETWORK))
        words += self.opt.more.split()
        if self.measure("train", system, words):
            row = self.rows[system.name]
            row["epoch_hours"] = round(epoch_hours(system, row), 3)
        self.keep(system, "train")

    def evaluate(self, system: System) -> None:
        """Measure evaluate.py on COCO's 5,000 test images, or on dmsm's half of val2014."""
        results = os.path.join(self.runs, "results.json")
        run = self.run_folder(system)
        words = spell_options(checkpoint=run, device=self.device, output=results)
        words.append("--overwrite")
        if system.data != "halves":
            words.append("--cxc")
            if system.data != "photos":
                words += ["--split", "testall"]
            if self.data.sizes.testall >= 5000:
                words.append("--fold5")
        self.measure("evaluate", system, words)
        self.keep(system, "evaluate")

    def compare(self, system: System, path: str) -> None:
        """Time a step of the original, in the clone at `path`, beside ours."""
        self.measure("original", system, [f"{system.original}={path}", *self.name_data(system)])
        self.keep(system, "original")

    def name_data(self, system: System) -> list[str]:
        """Options of train.py: data, device and run folder."""
        name = system.command.options["data_name"]
        vocab = self.data.vocab_path if system.data == "regions" else "none"
        options = spell_options(
            data_path=self.data.folder,
            data_name=name,
            vocab_path=vocab,
            device=self.device,
            logger_name=self.run_folder(system),
        )
        return [*options, "--overwrite"]

    def keep(self, system: System, what: str) -> None:
        """Print what was found out and write all results."""
        row = self.rows[system.name]
        hours = row_hours(system, self.rows)
        if hours is not None:
            row["row_hours"] = round(hours, 2)
        for name, value in row.items():
            if isinstance(value, float):
                row[name] = round(value, 4)
        print(describe_row(row, what), flush=True)
        rows = []
        for measured in self.rows.values():
            command = f"{measured['command']} {self.opt.more}".strip()
            rows.append({**measured, "command": command})
        stored = {
            "machine": self.machine,
            "scale": self.opt.scale,
            "sizes": self.data.sizes._asdict(),
            "more": self.opt.more,
            "rows": rows,
        }
        save_json(stored, self.opt.output)


def describe_row(row: dict, what: str) -> str:
    """Describe a measurement in one line."""
    if f"{what}_failed" in row:
        return f"{row['system']}: {what} failed, {row[f'{what}_failed']}"
    if what == "original":
        return (
            f"{row['system']}: a step of the original {row['their_step_ms']:.0f} ms, of ours "
            f"{row['our_step_ms']:.0f} ms, ratio {row['theirs_by_ours']:.2f}"
        )

    memory = (
        f"{row[f'{what}_memory_gib']:.1f} GiB "
        f"({row[f'{what}_memory_without_files_gib']:.1f} without mapped files)"
    )
    if f"{what}_gpu_gib" in row:
        memory += f", GPU {row[f'{what}_gpu_gib']:.1f} GiB"
    if what == "evaluate":
        return f"{row['system']}: evaluate.py {row['evaluate_s']:.0f} s, {memory}"

    alone = ""
    if "pairs_per_s_alone" in row:
        share = row["pairs_per_s"] / row["pairs_per_s_alone"]
        alone = f" ({share:.0%} of a step's own speed, {row['waits_a_step']} waits a step)"
    return (
        f"{row['system']}: first step after {row['first_step_s']:.0f} s "
        f"({row['first_step_cpu_s']:.0f} s of the processor), {row['pairs_per_s']:,.0f} pairs/s"
        f"{alone}, {memory}, validation of {row['validation_images']:,} images "
        f"{row['validation_s']:.1f} s, {row['epoch_hours']:.2f} h an epoch"
    )


def run_benchmark(opt) -> None:
    """Measure all systems, or print the lines of a table from what was measured before."""
    if opt.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for path in opt.csv:
            stored = read_json(path, "write it with python benchmark.py")
            writer.writerows(table_lines(stored))
        return

    benchmark = Benchmark(opt)
    try:
        measure_all(benchmark, opt)
    finally:
        shutil.rmtree(benchmark.runs, ignore_errors=True)


def measure_all(benchmark: Benchmark, opt) -> None:
    """Measure what fits into the time: trainings and evaluations, then steps of originals.

    On a GPU, which is lent for minutes, a system is evaluated before the next one is trained.
    """
    print(json.dumps(benchmark.machine), flush=True)
    systems = order_systems(benchmark.on_gpu)
    if opt.only:
        systems = [system for system in systems if system.name in opt.only]

    groups = [systems[:SYSTEMS_FIRST], systems[SYSTEMS_FIRST:]]
    if benchmark.on_gpu:
        groups = [[system] for system in systems]
    for group in groups:
        for system in group:
            if benchmark.has_time():
                benchmark.data.prepare(system.data)
                benchmark.train(system)
        for system in group:
            trained = "pairs_per_s" in benchmark.rows.get(system.name, {})
            if trained and benchmark.has_time():
                benchmark.evaluate(system)

    for system in systems:
        path = dict(opt.original).get(system.original)
        if path and benchmark.has_time():
            benchmark.data.prepare(system.data)
            benchmark.compare(system, path)

    missing = [system.name for system in systems if system.name not in benchmark.rows]
    if missing:
        print(f"no time was left for {', '.join(missing)}")
    print(f"written to {opt.output}")


def read_original(text: str) -> tuple[str, str]:
    """Parse NAME=PATH of --original."""
    name, _, path = text.partition("=")
    known = sorted({system.original for system in SYSTEMS} - {""})
    if name not in known or not path:
        raise InputError(
            f"'{text}' is not NAME=PATH with the name of an original, one of {', '.join(known)}"
        )
    if not importlib.util.find_spec(LOADER):
        raise InputError(
            f"--original {text}: this checkout has no {LOADER.replace('.', '/')}, which loads "
            "originals; leave --original out, or take a checkout that has it"
        )
    if not os.path.isdir(path):
        raise InputError(
            f"--original {text}: there is no folder {path}; give the folder of a clone"
        )
    return name, os.path.abspath(path)


def system_name(text: str) -> str:
    """Parse the name of a system of --only."""
    names = [system.name for system in SYSTEMS]
    if text not in names:
        listed = ", ".join(f"'{name}'" for name in names)
        raise InputError(f"'{text}' is not the name of a system; the names are {listed}")
    return text


def main(argv: list[str] | None = None) -> None:
    p = Arguments(__doc__.split("\n")[0])
    add = p.add_argument
    help = (
        "folder for the made-up data, which stay there and are used again (default: a temporary "
        "one; up to 15 GB)"
    )
    add("--data_path", type=filename, metavar="FOLDER", help=help)
    add("--minutes", type=above_zero, help="stop in time (default: no limit)")
    help = "seconds for the steps of a system, at least three of them"
    add("--seconds", type=above_zero, default=15, help=help)
    add("--scale", type=fraction, default=1.0, help="size of the data, as a share of COCO's")
    help = "images that have regions, 295 kB each"
    add("--region_images", type=positive, default=REGION_IMAGES, help=help)
    help = "measure these systems alone"
    add("--only", type=system_name, nargs="+", metavar="SYSTEM", help=help)
    help = "clone of an original code base, a step of which is timed beside ours"
    add(
        "--original",
        type=read_original,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=help,
    )
    help = (
        "further options of train.py in one word, such as smaller sizes; the rows of the table "
        "name them"
    )
    add("--more", default="", metavar="OPTIONS", help=help)
    utils.add_device(p)
    help = "file of the results"
    add("--output", type=filename, default="benchmark.json", metavar="FILE.json", help=help)
    help = "print results as lines of results/cost.csv"
    add("--csv", type=filename, nargs="+", metavar="FILE", help=help)
    utils.run("benchmark.py", run_benchmark, p.parse_args(argv))


if __name__ == "__main__":
    main()
