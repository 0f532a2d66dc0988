"""What all parts of benchmark.py measure by: how long functions take that take turns, how much
memory, and whether a measure meets its target. Each part is a function of a Setting that prints its
measures, and this folder has those that need more than a page.
"""

import contextlib
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch

MIB = 2 ** 20
# Targets: speed beside the product and beside the loop, MiB, percent, seconds on an H100 or H200.
AT_MOST = {"product": 2.5, "mls": 1.6, "minkl": 2.0, "error": 1e-5, "evaluation": 1.5,
           "memory": 600, "suite": 25, "suite memory": 1229, "confidence": 4.0, "step": 2.2,
           "attention memory": 150, "extraction": 15, "phrases": 10, "phrases memory": 1024,
           "epoch point": 12, "epoch gaussian": 20, "input": 5,
           "exact search": 1.3, "search memory": 6144}
AT_LEAST = {"loop": 40, "batches": 20, "equal": 1, "original": 8, "attention": 4, "recall": 0.98,
            "search rate": 1000, "search rate of many": 200}
records: list[dict] = []              # every measurement of this run


class Setting(NamedTuple):
    """What a part is asked for."""
    repeats: int                      # rounds in which the things compared take turns
    seed: int
    device: torch.device
    size: int = 100_000               # vectors of the part search
    steps: int | None = None          # that the part epoch times, 0: all; None: its own number
    profile: bool = False             # whether the part epoch shows kernels


class Sizes(NamedTuple):
    """Of what a step of training reads. COCO's captions have mostly 8 to 20 words."""
    pairs: int = 128                  # of a batch
    shape: tuple[int, ...] = (2048,)  # of an image's features
    dim: int = 1024
    words: int = 10_000               # in the vocabulary
    lengths: tuple[int, int] = (8, 20)                      # of the shortest and longest caption


def cell(name: str, value: float, form: str, kind: str | None = None) -> str:
    """A value, the target that its kind has and whether it is met, as text of one width; kept for
    --output."""
    most, least = AT_MOST.get(kind), AT_LEAST.get(kind)
    ok, target = None, ""
    if most is not None:
        ok, target = bool(value <= most), f"<= {most:g}"
    elif least is not None:
        ok, target = bool(value >= least), f">= {least:g}"
    records.append({"name": name, "value": float(value), "at_most": most, "at_least": least,
                    "ok": ok})
    verdict = {None: "", True: "ok", False: "MISSED"}[ok]
    return f"{value:>8{form}} {target:9}{verdict:8}"


def line(name: str, value: float, form: str, kind: str | None = None) -> None:
    print(f"  {name:84}{cell(name, value, form, kind)}".rstrip(), flush=True)


def resident(field: str) -> int:
    """Bytes of this process as /proc counts them; where it is missing the most so far."""
    try:
        with open("/proc/self/status", encoding="ascii") as f:
            return next(int(row.split()[1]) * 1024 for row in f if row.startswith(field + ":"))
    except OSError:
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                * (1 if sys.platform == "darwin" else 1024))


def in_fresh_process(function, *args):
    """What a function returns that has the memory of a process to itself."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def peak(work, device) -> float:
    """MiB that `work` takes at its peak beyond what is there before it."""
    cuda = device.type == "cuda"
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as f:
        f.write("5")                                       # the peak starts at what is resident now
    before = torch.cuda.memory_allocated(device) if cuda else resident("VmHWM")
    work()
    return ((torch.cuda.max_memory_allocated(device) if cuda else resident("VmHWM")) - before) / MIB


def settle(device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def race(runs: dict, how: Setting, most: int = sys.maxsize) -> dict:
    """Least seconds of each function, over `rounds`."""
    return {name: min(seconds) for name, seconds in rounds(runs, how, most).items()}


def rounds(runs: dict, how: Setting, most: int = sys.maxsize) -> dict:
    """The seconds of each function in each round, at most so many, in which all take turns, after
    one round that does not count."""
    seconds = {name: [] for name in runs}
    for _ in range(min(how.repeats, most) + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            settle(how.device)
            seconds[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in seconds.items()}


def percent_outside(seconds: dict) -> float:
    """Of the time of "whole" what "network" does not take: the median over rounds, each of which
    compares its own two. The least times of both would be of different rounds, and such machines
    differ by a tenth from one to the next."""
    return 100 * (1 - statistics.median(
        a / b for a, b in zip(seconds["network"], seconds["whole"])))
