"""Time a step of an original code base beside the same step of ours.

The loader of the originals is that of paper_tables/parity, which compares what both sides compute.
"""

import contextlib
import time
from statistics import median

import torch

import train

LOADER = "paper_tables.parity"
MOST_STEPS = 50  # of each side
LEAST_STEPS = 3


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
    from paper_tables.parity.systems import SYSTEMS

    system = next(
        system for system in SYSTEMS if system.clone == name and "max_violation" in system.theirs
    )
    opt = train.parse_args([*words, *system.ours.split()])
    device = train.torch_device(opt.device)
    on_cpu = device.type == "cpu"
    with bridged() if on_cpu else contextlib.nullcontext(), silence():
        run = train.Training(opt, None, device)
        clone = Clone(path, system.kind.python2, system.kind.unused)
        original = system.kind(clone, run, system.theirs)
        run.model.train()
        original.start_epoch(0)

        times: tuple[list[float], list[float]] = ([], [])
        end = time.perf_counter() + budget
        for batch in run.batches(run.order(0)):
            batch = longest_first(batch)
            for step, side in (
                (lambda batch=batch: run.step(batch.to(device)), 0),
                (lambda batch=batch: original.step(batch), 1),
            ):
                times[side].append(time_step(step, on_cpu))
            enough = len(times[0]) > LEAST_STEPS and time.perf_counter() > end
            if enough or len(times[0]) > MOST_STEPS:
                break
    ours, theirs = (1000 * median(side[1:]) for side in times)  # the first warms up
    return {
        "original": system.name,
        "our_step_ms": ours,
        "their_step_ms": theirs,
        "theirs_by_ours": theirs / ours,
    }


def time_step(step, on_cpu: bool) -> float:
    """Seconds of a step, and of the work that it leaves to the GPU."""
    start = time.perf_counter()
    step()
    if not on_cpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start
