"""Several processes that work on one task, started by torchrun: who is who, and how they end
together.

    torchrun --nproc_per_node 2 train.py --data_name coco_precomp

torchrun gives each process its number (RANK), how many there are (WORLD_SIZE) and where they meet.
The first process writes files and speaks; the others do both only where it cannot.
"""
import contextlib
import datetime
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cli
from cli import InputError, check, count, first, rank, reason
from devices.share import spread

PATIENCE = 20.0           # seconds after a signal in which a process that waits for another may end
LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|timed? ?out|process group|socket",
                  re.IGNORECASE)
_parts = itertools.count()            # of `all_or_none`, equally many in all processes


def local(device: torch.device) -> torch.device:
    """The device of this process, where it names none: each process of a machine has a GPU of its
    own. Raises InputError where there are too few."""
    if count() == 1 or device.type != "cuda" or device.index is not None:
        return device
    mine = int(os.environ.get("LOCAL_RANK", rank()))
    check(mine < torch.cuda.device_count(),
          f"process {rank()} of {count()} is to take GPU {mine}, and this machine has "
          f"{torch.cuda.device_count()}; start as many processes (--nproc_per_node) as there are "
          "GPUs, or give --device cpu")
    return torch.device("cuda", mine)


@contextlib.contextmanager
def joined(device: torch.device, minutes: float = 30.0):
    """A context in which the processes hear of each other: tensors of GPUs over NCCL, all else over
    Gloo; and only the first one speaks. One process alone needs none. minutes: how long one waits
    for the others, which differ by what the first one writes. Raises InputError where another
    process has ended.

    At the end they wait for each other, so that none leaves while another needs it. The group is
    not destroyed: its destructor waits for Gloo's threads, which may wait for Python's lock, which
    the destructor's thread may hold. So a process that was in a group ends by `cli.leave`, as every
    command does (`cli.run`)."""
    if count() == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with noticing(), ended(), contextlib.nullcontext() if first() else silent():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                                timeout=datetime.timedelta(minutes=minutes))
        cli.leaves.append("group")
        yield
        wait()


@contextlib.contextmanager
def silent():
    """A context in which nothing is printed and no progress shown. What ends it is told behind
    it."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), \
            contextlib.redirect_stderr(nothing):
        yield


@contextlib.contextmanager
def ended():
    """A context that says in a sentence that another process is gone."""
    try:
        yield
    except RuntimeError as error:                  # torch has no type of its own for what Gloo says
        if not LOST.search(str(error)):
            raise
        raise InputError(f"process {rank()} of {count()} cannot reach the others, of which one has "
                         f"ended ({reason(error, 80)}); files that were complete still are: look "
                         "for what that one said, and call the command again, "
                         "train.py with --resume") from error


@contextlib.contextmanager
def noticing():
    """A context in which a signal ends this process after PATIENCE seconds also where it waits for
    another process, which Python's handlers of signals cannot: they run between its
    instructions."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before, over = signal.set_wakeup_fd(writer), threading.Event()

    def wait():
        while number := os.read(reader, 1):
            if number[0] in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if over.wait(PATIENCE):
                    return
                with contextlib.suppress(OSError):
                    print(f"process {rank()} of {count()} was stopped by signal {number[0]} while "
                          "it waited for the others; files that were complete still are: call "
                          "the command again, train.py with --resume", file=sys.__stderr__,
                          flush=True)
                os._exit(128 + number[0])
    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        os.close(writer)                                    # `wait` reads the end of it and returns


def refuse_machines() -> None:
    """Raises InputError where the processes run on several machines."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", count())) if count() > 1 else 1
    check(here == count(), f"torchrun started {here} of {count()} processes on this machine, and "
                           "those that write one file have to be of one machine; give --nnodes 1, "
                           "or a data set to each machine")


def together(model: torch.nn.Module) -> torch.nn.Module:
    """What calls the model, and in backward takes the mean of the gradients of all processes; of
    one the model itself."""
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


# ---- work that is spread over the processes, and what all have to know of it

def part(items: Sequence) -> Sequence:
    """This process's part of a sequence: together they are the whole, in order, and differ by one
    item at most; where there are fewer items than processes, the last ones have none."""
    sizes = spread(len(items), count())
    begin = sum(sizes[:rank()])
    return items[begin:begin + sizes[rank()]]


def from_all(value) -> list:
    """The values of all processes, in order, of any type that pickles."""
    if count() == 1:
        return [value]
    values = [None] * count()
    dist.all_gather_object(values, value)
    return values


def same(value, fault: str) -> None:
    """Raises InputError(fault) in all processes unless all hold the same value."""
    check(all(other == value for other in from_all(value)), fault)


def from_first(work, *args):
    """What work(*args) returns in the first process, on all of them: it alone does the work, and
    the others wait. Where it raises an InputError all do."""
    if count() == 1:
        return work(*args)
    answer = [None, ""]
    if first():
        try:
            answer[0] = work(*args)
        except InputError as error:
            answer[1] = str(error)
    dist.broadcast_object_list(answer)
    check(not answer[1], answer[1])
    return answer[0]


@contextlib.contextmanager
def all_or_none():
    """A context for work that each process does a part of: where one meets an InputError all raise
    it, the first of them. It gives a function that a long part calls now and then, and that ends
    the part where another has failed."""
    if count() == 1:
        yield lambda: None
        return
    store, key, fault = (dist.distributed_c10d._get_default_store(),
                         f"fault of part {next(_parts)}", None)

    def look():
        check(not store.check([key]), "")                   # what it is stands below
    try:
        yield look
    except InputError as error:
        fault = str(error)
        store.set(key, fault)
    fault = next(filter(None, from_all(fault)), None)
    check(not fault, fault)


def gathered(batches: list[tuple]) -> list[tuple]:
    """The batches of all processes, in order: named tuples of tensors or None, which may differ in
    shape. They go from process to process one by one, so that nothing is held twice."""
    if count() == 1:
        return batches
    forms = from_all([(type(batch), [x if x is None else (x.shape, x.dtype, x.device.type)
                                     for x in batch]) for batch in batches])
    whole = []
    for source, of_one in enumerate(forms):
        for k, (kind, fields) in enumerate(of_one):
            own = batches[k] if source == rank() else [
                field and torch.empty(field[0], dtype=field[1], device=field[2])
                for field in fields]
            own = kind(*(x if x is None else x.contiguous() for x in own))
            for x in own:
                if x is not None and x.numel():
                    dist.broadcast(x, source)
            whole.append(own)
    return whole
