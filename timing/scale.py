"""What a training step costs in several processes: beside one process with as many threads, and
without what the processes tell each other. benchmark.py scale shows it, and how it would be on many
GPUs.

    python -m timing.scale '{...}'

is what each process does: `measure` starts them.
"""
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import torch

import train
from data import Batch
from devices import processes, share
from devices.share import Share
from model import build_model
from text import SPECIALS, Vocabulary

KINDS = {"point": ["--sim", "cosine", "--max_violation"], "gaussian": ["--sim", "wasserstein"]}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# GPUs -> bytes that each can send and receive in a second: within a machine, and between machines
LINKS = {8: 400e9, 64: 50e9}


class Sizes(NamedTuple):
    """Of what is timed. COCO's captions have mostly 8 to 20 words."""
    pairs: int = 128                  # of a batch
    features: int = 2048
    dim: int = 1024
    words: int = 10000
    least: int = 8                    # words of the shortest caption
    most: int = 20
    steps: int = 5                    # timed in each round, after one that is not


SIZES = Sizes()
MOST = {"scale": 1.25}                # target: times one process


class Measured(NamedTuple):
    """Of one kind: median seconds of a step, and bytes."""
    one: float                        # one process, with as many threads as there are cores
    several: float                    # as many processes as cores, of one thread each
    silent: float               # the same, where each computes as much and tells the others nothing
    gradients: int                    # bytes of all gradients
    item: int                         # bytes of what the others are told of one pair


def share_of_batch(sizes: Sizes, seed: int) -> Batch:
    """This process's share of a random batch."""
    torch.manual_seed(seed)
    mine = Share.of(sizes.pairs, processes.rank(), processes.count())
    lengths = torch.randint(sizes.least, sizes.most + 1, (sizes.pairs,))
    tokens = torch.randint(len(SPECIALS), sizes.words, (sizes.pairs, sizes.most))
    tokens = tokens * (torch.arange(sizes.most) < lengths[:, None])
    images, index = torch.rand(sizes.pairs, sizes.features), torch.arange(sizes.pairs)
    return Batch(images[mine.rows], tokens, lengths, index, index, share=mine)


@contextlib.contextmanager
def silence(model):
    """A context in which no process hears of another: each takes its own items for those of the
    others."""
    before = share.gather, torch.distributed.reduce_scatter

    def repeated(x, spread):
        return torch.cat([x[:1].expand(n, *x.shape[1:]) for n in spread.sizes])
    try:
        share.gather = repeated
        torch.distributed.reduce_scatter = lambda mine, pieces: mine.copy_(pieces[processes.rank()])
        with model.no_sync():
            yield
    finally:
        share.gather, torch.distributed.reduce_scatter = before


@contextlib.contextmanager
def told(counts: list, pairs: int):
    """A context that notes the bytes of each item of the batch that the others are told, there and
    back."""
    before = share.gather, torch.distributed.reduce_scatter

    def noted(x, spread):
        if sum(spread.sizes) == pairs:
            counts.append(x[0].numel() * x.element_size())
        return before[0](x, spread)

    def noted_back(mine, pieces):
        counts.append(mine[0].numel() * mine.element_size())
        return before[1](mine, pieces)
    share.gather, torch.distributed.reduce_scatter = noted, noted_back
    try:
        yield
    finally:
        share.gather, torch.distributed.reduce_scatter = before


def timed(words: list[str], sizes: Sizes, seed: int) -> dict:
    """Seconds of steps of this process: {"steps": as they are, "silent": telling nothing,
    "gradients", "item"}."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes.count()))
    device = torch.device("cpu")
    opt = train.parse_args(["--img_dim", str(sizes.features), "--embed_size", str(sizes.dim),
                            "--img_enc", "precomp", "--device", "cpu", *words])
    result, item = {"steps": [], "silent": []}, []
    with processes.joined(device):
        batch = share_of_batch(sizes, seed)
        torch.manual_seed(seed)
        model = build_model(
            opt, Vocabulary([*SPECIALS, *map(str, range(sizes.words - len(SPECIALS)))])).train()
        learner = train.build_learner(opt, model, device)

        def step() -> float:
            processes.wait()
            start = time.perf_counter()
            train.train_step(learner, batch, "a step")
            processes.agreed(None, device)
            return time.perf_counter() - start
        with told(item, sizes.pairs):
            step()
        for _ in range(sizes.steps):
            result["steps"].append(step())
            if processes.count() > 1:
                with silence(learner.model):
                    result["silent"].append(step())
    return {**result, "gradients": sum(4 * p.numel() for p in learner.parameters),
            "item": sum(item)}


def in_processes(count: int, words: list[str], seed: int) -> dict:
    """What the first of so many processes measures."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    started, work = [], json.dumps([words, SIZES, seed])
    for rank in range(count):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
        started.append(subprocess.Popen([sys.executable, "-m", "timing.scale", work], env=env,
                                        cwd=ROOT, text=True, stdout=subprocess.PIPE))
    outputs = [process.communicate()[0] for process in started]
    return json.loads(outputs[0])


def measure(words: list[str], rounds: int, seed: int) -> Measured:
    """Rounds in which one process and as many as there are cores take turns."""
    cores, one, several = max(2, os.cpu_count() or 1), [], []
    for _ in range(rounds):
        one.append(in_processes(1, words, seed))
        several.append(in_processes(cores, words, seed))

    def median(runs: list[dict], name: str) -> float:
        return statistics.median(seconds for each in runs for seconds in each[name])
    return Measured(median(one, "steps"), median(several, "steps"), median(several, "silent"),
                    several[0]["gradients"], several[0]["item"])


def scale_times(rounds: int, seed: int):
    """Yield (name, value, format, target) of a step in several processes, and of what it would move
    between GPUs."""
    for kind, words in KINDS.items():
        m = measure(words, rounds, seed)
        yield f"{kind}: one process, milliseconds a step", 1000 * m.one, ".0f", None
        yield f"{kind}: a process a core, times that", m.several / m.one, ".2f", "scale"
        yield (f"{kind}: percent of it in which processes tell each other",
               100 * (1 - m.silent / m.several), ".0f", None)
        yield f"{kind}: gradients, MiB a step", m.gradients / 2 ** 20, ".0f", None
        yield f"{kind}: the gather, KiB a pair, there and back", m.item / 1024, ".1f", None
        for gpus, link in LINKS.items():
            gradients, gather = (2 * (gpus - 1) / gpus * m.gradients,       # that each one sends
                                 (gpus - 1) * SIZES.pairs * m.item)
            where = f"{kind}: {gpus} GPUs, {SIZES.pairs} pairs on each"
            yield (f"{where}: gradients, milliseconds at {link / 1e9:.0f} GB/s",
                   1000 * gradients / link, ".2f", None)
            yield f"{where}: gather, milliseconds", 1000 * gather / link, ".2f", None
        yield (f"{kind}: pairs in the whole batch from which on the gather moves more than the "
               "gradients", 2 * m.gradients / m.item, ".0f", None)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(timed(given[0], Sizes(*given[1]), given[2])))
