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
    import cli

    cli.start("loading torch")

import csv
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import cli
from cli import Arguments, InputError, above_zero, check, filename
from cost.hours import epoch_hours, row_hours, table_lines
from cost.made_up import NETWORK, REGION_IMAGES, MadeUp
from cost.originals import LOADER
from cost.systems import SYSTEMS, System, order_systems
from files import read_json, save_json

LEAST_SECONDS = 20  # left, to begin another measurement
FIRST_SYSTEMS = 8  # that are also evaluated before the others are trained
ROOT = os.path.dirname(os.path.abspath(__file__))


# ---- the machine


def describe_machine(on_gpu: bool) -> dict:
    """Describe processor, memory, graphics card, versions and commit."""
    facts = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = re.findall(r"model name\s*: (.*)", file.read())
        facts["cpu"] = names[0] if names else facts["cpu"]
    if hasattr(os, "sysconf"):
        facts["memory_gib"] = round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        )

    import torch

    facts["device"] = torch.cuda.get_device_name() if on_gpu else "CPU"
    facts["threads"] = torch.get_num_threads()
    facts["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], text=True, capture_output=True, check=False, cwd=ROOT
    )
    facts["commit"] = commit.stdout.strip()[:10] or "unknown"
    return facts


# ---- measuring


def run_measurement(words: list[str], log_path: str, seconds: float | None) -> str:
    """Run cost.measure for at most so many seconds. Returns what went wrong, or ""."""
    command = [sys.executable, "-m", "cost.measure", *words]
    with open(log_path, "w+", encoding="utf-8", errors="replace") as log:
        try:
            done = subprocess.run(command, cwd=os.path.dirname(log_path), stdout=log, stderr=log,
                                  check=False, timeout=seconds,
                                  env=os.environ | {"PYTHONPATH": ROOT})
        except subprocess.TimeoutExpired:
            return "the time was over"
        log.seek(0)
        lines = log.read().strip().splitlines()
    if not done.returncode:
        return ""
    return f"status {done.returncode}: {lines[-1][:300] if lines else ''}"


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
        self.device = str(cli.torch_device(opt.device))
        self.on_gpu = self.device == "cuda"
        self.end = time.monotonic() + 60 * opt.minutes if opt.minutes else float("inf")
        self.runs = tempfile.mkdtemp(prefix="benchmark_")
        self.rows: dict[str, dict] = {}
        self.machine = describe_machine(self.on_gpu)
        self.data = MadeUp(
            opt.data_path or os.path.join(self.runs, "data"), opt.scale, opt.region_images
        )

    def has_time(self) -> bool:
        return self.end - time.monotonic() > LEAST_SECONDS

    def run_folder(self, system: System) -> str:
        return os.path.join(self.runs, re.sub(r"\W+", "_", system.name))

    def measure(self, what: str, system: System, words: list[str]) -> bool:
        """Run cost.measure and keep its results. Returns whether it came to its end."""
        described = {"system": system.name, "command": str(system.command)}
        row = self.rows.setdefault(system.name, described)
        path = os.path.join(self.runs, "result.json")
        if os.path.exists(path):
            os.remove(path)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        left = self.end - time.monotonic()
        error = run_measurement(
            [what, path, str(time.time()), str(self.opt.seconds), *words],
            os.path.join(self.runs, "log.txt"),
            left if left < float("inf") else None,
        )
        found = read_json(path, "") if os.path.exists(path) else {}
        if not found.pop("done", False):
            row[f"{what}_failed"] = error
        memory = {name: found.pop(name) for name in list(found) if name.endswith("_gib")}
        row |= found | {f"{what}_{name}": value for name, value in memory.items()}
        row.setdefault("load", {})[what] = load
        return f"{what}_failed" not in row

    def train(self, system: System) -> None:
        """Measure the first steps of a training, and a validation."""
        words = [*system.training_words, *self.name_data(system)]
        words += spell_options(dev_images=0 if self.on_gpu else 1000)
        if system.data == "photos":
            words += spell_options(cnn_weights=os.path.join(self.data.folder, "coco", NETWORK))
        words += self.opt.more.split()
        if self.measure("train", system, words):
            row = self.rows[system.name]
            row["epoch_hours"] = round(epoch_hours(system, row), 3)
        self.keep(system, "train")

    def evaluate(self, system: System) -> None:
        """Measure evaluate.py on COCO's 5,000 test images, or on dmsm's half of val2014."""
        words = spell_options(checkpoint=self.run_folder(system), device=self.device,
                              output=os.path.join(self.runs, "results.json"))
        words += ["--overwrite"]
        if system.data != "halves":
            words += ["--cxc"]
            words += ["--split", "testall"] * (system.data != "photos")
            words += ["--fold5"] * (self.data.sizes.testall >= 5000)
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
        options = spell_options(data_path=self.data.folder, data_name=name, vocab_path=vocab,
                                device=self.device, logger_name=self.run_folder(system))
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
        stored = {"machine": self.machine, "scale": self.opt.scale,
                  "sizes": self.data.sizes._asdict(), "rows": list(self.rows.values())}
        save_json(stored, self.opt.output)


def describe_row(row: dict, what: str) -> str:
    """One line on a measurement."""
    if f"{what}_failed" in row:
        return f"{row['system']}: {what} failed, {row[f'{what}_failed']}"
    memory = f"{row[f'{what}_memory_gib']:.1f} GiB"
    memory += f" ({row[f'{what}_memory_without_files_gib']:.1f} without mapped files)"
    if f"{what}_gpu_gib" in row:
        memory += f", GPU {row[f'{what}_gpu_gib']:.1f} GiB"
    if what == "original":
        return (
            f"{row['system']}: a step of the original {row['their_step_ms']:.0f} ms, of ours "
            f"{row['our_step_ms']:.0f} ms, ratio {row['theirs_by_ours']:.2f}"
        )
    if what == "evaluate":
        return f"{row['system']}: evaluate.py {row['evaluate_s']:.0f} s, {memory}"
    alone = ""
    if "pairs_per_s_alone" in row:
        alone = (
            f" ({row['pairs_per_s'] / row['pairs_per_s_alone']:.0%} of a step's own speed, "
            f"{row['waits_a_step']} waits a step)"
        )
    return (
        f"{row['system']}: first step after {row['first_step_s']:.0f} s "
        f"({row['first_step_cpu_s']:.0f} s of the processor), {row['pairs_per_s']:,.0f} pairs/s"
        f"{alone}, {memory}, validation of {row['validation_images']:,} images "
        f"{row['validation_s']:.1f} s, {row['epoch_hours']:.2f} h an epoch"
    )


def run_benchmark(opt) -> None:
    """Measure what fits into the time: trainings, then evaluations, then steps of originals."""
    if opt.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for path in opt.csv:
            writer.writerows(table_lines(read_json(path, "write it with python benchmark.py")))
        return
    benchmark = Benchmark(opt)
    try:
        print(json.dumps(benchmark.machine), flush=True)
        systems = order_systems(benchmark.on_gpu)
        if opt.only:
            systems = [system for system in systems if system.name in opt.only]
        for group in (systems[:FIRST_SYSTEMS], systems[FIRST_SYSTEMS:]):
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
    finally:
        shutil.rmtree(benchmark.runs, ignore_errors=True)


def read_original(text: str) -> tuple[str, str]:
    """Parse NAME=PATH of --original."""
    name, _, path = text.partition("=")
    known = sorted({system.original for system in SYSTEMS} - {""})
    check(
        name in known and path,
        f"'{text}' is not NAME=PATH with the name of an original, one of {', '.join(known)}",
    )
    check(
        importlib.util.find_spec(LOADER),
        f"--original {text}: this checkout has no {LOADER.replace('.', '/')}, which "
        "loads originals; leave --original out, or take a checkout that has it",
    )
    check(
        os.path.isdir(path),
        f"--original {text}: there is no folder {path}; give the folder of a clone",
    )
    return name, os.path.abspath(path)


def system_name(text: str) -> str:
    if text not in (system.name for system in SYSTEMS):
        raise InputError(
            f"'{text}' is not the name of a system; the names are "
            + ", ".join(f"'{system.name}'" for system in SYSTEMS)
        )
    return text


def main(argv: list[str] | None = None) -> None:
    p = Arguments(__doc__.split("\n")[0])
    add = p.add_argument
    add(
        "--data_path",
        type=filename,
        metavar="FOLDER",
        help="folder for the made-up data, which stay there and are "
        "used again (default: a temporary one; up to 15 GB)",
    )
    add("--minutes", type=above_zero, help="stop in time (default: no limit)")
    add(
        "--seconds",
        type=above_zero,
        default=15,
        help="seconds for the steps of a system, at least three of them",
    )
    add("--scale", type=cli.fraction, default=1.0, help="size of the data, as a share of COCO's")
    add(
        "--region_images",
        type=cli.positive,
        default=REGION_IMAGES,
        help="images that have regions, 295 kB each",
    )
    add("--only", type=system_name, nargs="+", metavar="SYSTEM", help="measure these systems alone")
    add(
        "--original",
        type=read_original,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="clone of an original code base, a step of which is timed beside ours",
    )
    add(
        "--more",
        default="",
        metavar="OPTIONS",
        help="further options of train.py in one word, such as smaller sizes",
    )
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    add("--output", type=filename, default="benchmark.json", help="file of the results")
    add(
        "--csv",
        type=filename,
        nargs="+",
        metavar="FILE",
        help="print results as lines of results/cost.csv",
    )
    cli.run("benchmark.py", run_benchmark, p.parse_args(argv))


if __name__ == "__main__":
    main()
