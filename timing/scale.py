"""What a training step costs in several processes: beside one process with as many threads, and
without what the processes tell each other. benchmark.py scale shows it, and how it would be on many
GPUs.

    python -m timing.scale '{...}'

is what each process does: `in_processes` starts them.
"""
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch

import train
from devices import processes, share
from devices.share import Share
from timing import MIB, Setting, Sizes, line
from timing.epoch import random_batch, random_learner

KINDS = {"point": ["--sim", "cosine", "--max_violation"], "gaussian": ["--sim", "wasserstein"]}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# GPUs -> bytes that each can send and receive in a second: within a machine, and between machines
LINKS = {8: 400e9, 64: 50e9}
SIZES = Sizes()
STEPS = 5                             # timed in each round, after one that is not


@contextlib.contextmanager
def telling(gather, reduce_scatter):
    """A context in which the processes tell each other by these functions."""
    before = share.gather, torch.distributed.reduce_scatter
    share.gather, torch.distributed.reduce_scatter = gather, reduce_scatter
    try:
        yield
    finally:
        share.gather, torch.distributed.reduce_scatter = before


def silence():
    """A context in which no process hears of another: each takes its own items for those of the
    others."""
    def repeated(x, spread):
        return torch.cat([x[:1].expand(n, *x.shape[1:]) for n in spread.sizes])
    return telling(repeated, lambda mine, pieces: mine.copy_(pieces[processes.rank()]))


def counting(counts: list, pairs: int):
    """A context that notes the bytes of each item of the batch that the others are told, there and
    back."""
    gather, reduce_scatter = share.gather, torch.distributed.reduce_scatter

    def there(x, spread):
        if sum(spread.sizes) == pairs:
            counts.append(x[0].numel() * x.element_size())
        return gather(x, spread)

    def back(mine, pieces):
        counts.append(mine[0].numel() * mine.element_size())
        return reduce_scatter(mine, pieces)
    return telling(there, back)


def timed(words: list[str], sizes: Sizes, steps: int, seed: int) -> dict:
    """Of steps of this process the seconds, {"steps": as they are, "silent": telling nothing}, and
    bytes: {"gradients": all of them, "item": what the others are told of one pair}."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes.count()))
    device, results, item = torch.device("cpu"), {"steps": [], "silent": []}, []
    with processes.joined(device):
        torch.manual_seed(seed)
        batch = random_batch(sizes)
        mine = Share.of(sizes.pairs, processes.rank(), processes.count())
        batch = batch._replace(images=batch.images[mine.rows], share=mine)
        learner = random_learner(words, sizes, seed, device)

        def step() -> float:
            processes.wait()
            start = time.perf_counter()
            train.train_step(learner, batch, "a step")
            processes.agreed(None, device)
            return time.perf_counter() - start
        with counting(item, sizes.pairs):
            step()
        for _ in range(steps):
            results["steps"].append(step())
            if processes.count() > 1:
                with silence(), learner.model.no_sync():
                    results["silent"].append(step())
    return {**results, "gradients": sum(4 * p.numel() for p in learner.parameters),
            "item": sum(item)}


def in_processes(count: int, words: list[str], seed: int) -> dict:
    """What the first of so many processes measures."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    started, work = [], json.dumps([words, SIZES, STEPS, seed])
    for rank in range(count):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
        started.append(subprocess.Popen([sys.executable, "-m", "timing.scale", work], env=env,
                                        cwd=ROOT, text=True, stdout=subprocess.PIPE))
    outputs = [process.communicate()[0] for process in started]
    return json.loads(outputs[0])


def scale(how: Setting) -> None:
    """A step in a process a core, of one thread each, beside one process with as many threads, in
    rounds in which they take turns; and what the step would move between GPUs."""
    print(f"\nscale: VSE++ on {SIZES.pairs} pairs of 2,048 features; a process a core, a thread "
          "each, over Gloo", flush=True)
    for kind, words in KINDS.items():
        runs = {1: [], max(2, os.cpu_count() or 1): []}
        for _ in range(min(3, how.repeats)):
            for count, results in runs.items():
                results.append(in_processes(count, words, how.seed))

        def median(results: list[dict], name: str) -> float:
            return statistics.median(seconds for each in results for seconds in each[name])
        alone, together = runs.values()
        one, several, silent = (median(alone, "steps"), median(together, "steps"),
                                median(together, "silent"))
        gradients, item = together[0]["gradients"], together[0]["item"]
        line(f"{kind}: one process, milliseconds a step", 1000 * one, ".0f")
        line(f"{kind}: a process a core, times that", several / one, ".2f", "scale")
        line(f"{kind}: percent of it in which processes tell each other",
             100 * (1 - silent / several), ".0f")
        line(f"{kind}: gradients, MiB a step", gradients / MIB, ".0f")
        line(f"{kind}: the gather, KiB a pair, there and back", item / 1024, ".1f")
        for gpus, link in LINKS.items():
            where = f"{kind}: {gpus} GPUs, {SIZES.pairs} pairs on each"
            sent = 2 * (gpus - 1) / gpus * gradients                        # by each one
            line(f"{where}: gradients, milliseconds at {link / 1e9:.0f} GB/s", 1000 * sent / link,
                 ".2f")
            line(f"{where}: gather, milliseconds", 1000 * (gpus - 1) * SIZES.pairs * item / link,
                 ".2f")
        line(f"{kind}: pairs in the whole batch from which on the gather moves more than the "
             "gradients", 2 * gradients / item, ".0f")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(timed(given[0], Sizes(*given[1]), *given[2:])))
