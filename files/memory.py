"""How much memory a process takes, as the files of /proc count it, and how much a piece of work takes at its peak."""
import contextlib
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor

import torch

MIB = 2 ** 20


def resident(field: str) -> int:
    """Bytes of this process as /proc counts them; where it is missing the most so far."""
    try:
        with open("/proc/self/status", encoding="ascii") as f:
            return next(int(row.split()[1]) * 1024 for row in f if row.startswith(field + ":"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_fresh_process(function, *args):
    """What a function returns that has the memory of a process to itself."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def peak(work, device) -> float:
    """MiB that `work` takes at its peak beyond what is there before it."""
    cuda = device.type == "cuda"
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as f:
        f.write("5")                                        # the peak starts at what is resident now
    before = torch.cuda.memory_allocated(device) if cuda else resident("VmHWM")
    work()
    return ((torch.cuda.max_memory_allocated(device) if cuda else resident("VmHWM")) - before) / MIB
