"""What benchmark.py measures, and by what all its parts measure: how long functions take that take
turns, and how much memory.
"""

import contextlib
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import torch

MIB = 2 ** 20


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


def race(runs: dict, repeats: int, device) -> dict:
    """Least seconds of each function, over rounds in which all take turns, after one round that
    does not count."""
    return {name: min(seconds) for name, seconds in rounds(runs, repeats, device).items()}


def rounds(runs: dict, repeats: int, device) -> dict:
    """The seconds of each function in each of these rounds."""
    seconds = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in seconds.items()}


def percent_outside(seconds: dict) -> float:
    """Of the time of "whole" what "network" does not take: the median over rounds, each of which
    compares its own two. The least times of both would be of different rounds, and such machines
    differ by a tenth from one to the next."""
    return 100 * (1 - statistics.median(
        a / b for a, b in zip(seconds["network"], seconds["whole"])))
