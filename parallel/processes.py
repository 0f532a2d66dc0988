"""Several processes that work on one task, started by torchrun: who is who, and how they end together.

    torchrun --nproc_per_node 2 train.py --data_name coco_precomp

torchrun gives each process its number (RANK), how many there are (WORLD_SIZE) and where they meet. The first process
writes files and speaks; the others do both only where it cannot.
"""
import contextlib
import datetime
import io
import os
import re
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cli import InputError, reason

PATIENCE = 20.0                       # seconds after a signal in which a process that waits for another may end
LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|timed? ?out|process group|socket", re.IGNORECASE)


def count() -> int:
    """How many processes there are."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ) else 1


def rank() -> int:
    """The number of this one, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def first() -> bool:
    """Whether this process writes and speaks."""
    return rank() == 0


def local(device: torch.device) -> torch.device:
    """The device of this process, where it names none: each process of a machine has a GPU of its own. Raises
    InputError where there are too few."""
    if count() == 1 or device.type != "cuda" or device.index is not None:
        return device
    mine = int(os.environ.get("LOCAL_RANK", rank()))
    if mine >= torch.cuda.device_count():
        raise InputError(f"process {rank()} of {count()} is to take GPU {mine}, and this machine has "
                         f"{torch.cuda.device_count()}; start as many processes (--nproc_per_node) as there are GPUs, "
                         "or give --device cpu")
    return torch.device("cuda", mine)


class _NoTerminal(io.TextIOWrapper):
    """stderr of a process that shows no progress."""

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def joined(device: torch.device, minutes: float = 30.0):
    """A context in which the processes hear of each other: over NCCL on GPUs, else over Gloo. One process alone needs
    none. minutes: how long one waits for the others, which differ by what the first one writes. Raises InputError
    where another process has ended."""
    if count() == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not first():
        sys.stdout, sys.stderr = open(os.devnull, "w"), _NoTerminal(open(os.dup(2), "wb", 0), write_through=True)
    with noticing(), ended():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo",
                                timeout=datetime.timedelta(minutes=minutes))
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def ended():
    """A context that says in a sentence that another process is gone."""
    try:
        yield
    except RuntimeError as error:                           # torch has no type of its own for what Gloo says
        if not LOST.search(str(error)):
            raise
        raise InputError(f"process {rank()} of {count()} cannot reach the others, of which one has ended "
                         f"({reason(error, 80)}); files that were complete still are: look for what that one said, and "
                         "call the command again, train.py with --resume") from error


@contextlib.contextmanager
def noticing():
    """A context in which a signal ends this process after PATIENCE seconds also where it waits for another process,
    which Python's handlers of signals cannot: they run between its instructions."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told)

    def wait():
        while number := os.read(seen, 1):
            if number[0] in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                time.sleep(PATIENCE)
                with contextlib.suppress(OSError):
                    print(f"process {rank()} of {count()} was stopped by signal {number[0]} while it waited for the "
                          "others; files that were complete still are: train.py goes on with --resume",
                          file=sys.stderr, flush=True)
                os._exit(128 + number[0])
    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)                                      # `wait` reads the end of it and returns


def together(model: torch.nn.Module) -> torch.nn.Module:
    """What calls the model, and in backward takes the mean of the gradients of all processes; of one the model
    itself."""
    return model if count() == 1 else DistributedDataParallel(model)


def agreed(number: int | None, device: torch.device) -> int | None:
    """The largest of the numbers that the processes hold, on all of them; None counts as none."""
    if count() == 1:
        return number
    largest = torch.tensor(number or 0, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest) or None


def summed(values: torch.Tensor) -> torch.Tensor:
    """The sum over the processes, without a gradient."""
    values = values.detach().clone()
    if count() > 1:
        dist.all_reduce(values)
    return values


def wait() -> None:
    """Wait until all processes are here."""
    if count() > 1:
        dist.barrier()
