"""Time a step of an original code base beside the same step of ours.

The loader of the originals is that of paper_tables/parity, which compares what both sides compute.
"""

import contextlib
import time
from statistics import median

import torch

import train

LOADER = "paper_tables.parity"
MAX_STEPS_PER_SIDE = 50
MIN_STEPS_PER_SIDE = 3  # after one to warm up


def compare_steps(name: str, path: str, words: list[str], budget: float) -> dict:
    """Take steps of ours and of an original in turn, from the same batches, for `budget` seconds.

    Args:
        name: of the original, as in paper_tables/parity.
        path: folder of its clone.
        words: of train.py: data, device and run folder.

    Returns milliseconds of a step of both, and their ratio, above 1 where ours is faster.
    """
    from paper_tables.parity.clone import Clone, bridged
    from paper_tables.parity.compare import longest_first, silence
    from paper_tables.parity.systems import PARITY_SYSTEMS

    system = next(
        system
        for system in PARITY_SYSTEMS
        if system.clone == name and "max_violation" in system.theirs
    )
    opt = train.parse_args([*words, *system.ours.split()])
    device = train.torch_device(opt.device)
    on_cpu = device.type == "cpu"
    our_times = []
    their_times = []
    with bridged() if on_cpu else contextlib.nullcontext(), silence():
        run = train.Training(opt, None, device)
        clone = Clone(path, system.kind.python2, system.kind.unused)
        original = system.kind(clone, run, system.theirs)
        run.model.train()
        original.start_epoch(0)

        end = time.perf_counter() + budget
        for batch in run.batches(run.order(0)):
            batch = longest_first(batch)
            our_times.append(time_step(take_our_step, on_cpu, run, batch))
            their_times.append(time_step(original.step, on_cpu, batch))

            count = len(our_times)
            over = time.perf_counter() > end
            if count > MAX_STEPS_PER_SIDE or count > MIN_STEPS_PER_SIDE and over:
                break

    ours = 1000 * median(our_times[1:])  # the first step warms up
    theirs = 1000 * median(their_times[1:])
    return {
        "original": system.name,
        "our_step_ms": ours,
        "their_step_ms": theirs,
        "theirs_by_ours": theirs / ours,
    }


def take_our_step(run: train.Training, batch) -> None:
    """Move a batch to the device and learn from it."""
    run.step(batch.to(run.device))


def time_step(step, on_cpu: bool, *args) -> float:
    """Return the seconds of step(*args), and of the work that it leaves to the GPU."""
    start = time.perf_counter()
    step(*args)
    if not on_cpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start
