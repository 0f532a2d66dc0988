"""How long a training step and an epoch at the size of COCO take, and what of it is input: benchmark.py's
parts of training.

The loop is that of train.py. Captions are of 8 to 20 words from a vocabulary of 10,000; features
are random. A few steps are timed and scaled to an epoch; the file then holds no more images than
these steps can read.
"""
import math
import os
import tempfile
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import train
from data import Batch, Split
from devices.feeding import on_device
from devices.precision import compile_parts
from inputs import Features, Tokens
from model import build_model
from options.rules import fit_to_data
from runs import Data
from similarities import Embedding
from text import SPECIALS, Vocabulary
from timing import MIB


def training(words: list[str], shape: tuple, dim: int, sizes: tuple, seed: int, device) -> dict:
    """Functions that run one training step on precomputed features of a shape, and its parts each
    alone. sizes: of a batch, of the vocabulary, and of the shortest and the longest caption."""
    pairs, n_words, lengths_of = sizes
    words = words if "match_prob" in words else ["--max_violation", *words]
    options = train.parse_args(["--img_dim", str(shape[-1]), "--embed_size", str(dim), *words])
    options.img_enc = "precomp" if options.img_enc == "auto" else options.img_enc
    torch.manual_seed(seed)
    model = build_model(options, Vocabulary(
        [*SPECIALS, *map(str, range(n_words - len(SPECIALS)))])).to(device).train()
    if options.compile:
        compile_parts(model, device)
    learner = train.build_learner(options, model, device)
    lengths = torch.randint(lengths_of[0], lengths_of[1] + 1, (pairs,))
    tokens = torch.randint(len(SPECIALS), n_words, (pairs, lengths_of[1]))
    tokens = tokens * (torch.arange(lengths_of[1]) < lengths[:, None])
    batch = Batch(torch.rand(pairs, *shape), tokens, lengths, torch.arange(pairs),
                  torch.arange(pairs)).to(device)

    def embed():
        return model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths)

    def learned(x):
        return x is not None and x.is_floating_point()

    leaves = [Embedding(*(x.detach().requires_grad_() if learned(x) else x for x in e))
              for e in embed()]

    def objective():
        for x in filter(learned, (*leaves[0], *leaves[1])):
            x.grad = None
        sum(model.objective(model.similarity(*leaves)).values()).backward()

    def networks():
        learner.optimizers["optimizer"].zero_grad(set_to_none=True)
        outputs = [(x, leaf.grad) for e, own in zip(embed(), leaves) for x, leaf in zip(e, own)
                   if learned(x) and leaf.grad is not None]
        torch.autograd.backward([x for x, _ in outputs], [grad for _, grad in outputs])

    def update():
        torch.nn.utils.clip_grad_norm_(learner.parameters, options.grad_clip)
        learner.optimizers["optimizer"].step()

    step = partial(train.train_step, learner, batch, "a step")
    return {"objective": objective, "networks": networks, "update": update, "step": step}


# ---- an epoch

IMAGES, EACH = 113_287, 5             # COCO's training images, captions of each: 566,435 pairs
WORDS, LENGTHS, BATCH, DIM = 10_000, (8, 20), 128, 1024
DRAWN = 512                           # images that differ; the others repeat them
STEPS = {"cpu": 2, "cuda": 200}       # that are timed, after WARM others
WARM = {"cpu": 1, "cuda": 10}
PROFILED, SHOWN = 5, 10               # steps that are profiled, kernels that are shown


class Kind(NamedTuple):
    """What is trained."""
    flags: str
    shape: tuple[int, ...]            # of an image's features
    aim: str | None = None            # the target of an epoch's seconds on a CUDA device


KINDS = {"vse++": Kind("--method vse++", (2048,), "epoch point"),
         "vse++, gaussian": Kind("--method gcie_wasserstein", (2048,), "epoch gaussian"),
         "vsrn": Kind("--method vsrn", (36, 2048)), "scan": Kind("--method scan_t2i", (36, 2048))}
PRECISIONS = {"fp32": "", "tf32": "--tf32", "bf16": "--amp bf16"}
# Targets on an H100 or H200: seconds, percent.
MOST = {"epoch point": 12, "epoch gaussian": 20, "input": 5}


def write_features(path: str, count: int, shape: tuple[int, ...], seed: int) -> None:
    """A file of float16 features (count, *shape)."""
    array = np.lib.format.open_memmap(path, "w+", np.float16, (count, *shape))
    some = np.random.default_rng(seed).random(
        (min(DRAWN, count), *shape), np.float32).astype(np.float16)
    for start in range(0, count, len(some)):
        array[start:start + len(some)] = some[:count - start]
    array.flush()


def build_random_data(path: str, opt, seed: int) -> Data:
    """What a run reads: the images of a feature file, and captions of random words."""
    rng, features = np.random.default_rng(seed), Features(path)
    m = EACH * len(features)
    length = rng.integers(*LENGTHS, m, endpoint=True)
    tokens = Tokens([rng.integers(len(SPECIALS), WORDS, n) for n in length], np.zeros(m, bool))
    split = Split("train", features, [""] * m, np.arange(m) // EACH, path)
    fit_to_data(opt, features, None)
    vocab = Vocabulary([*SPECIALS, *map(str, range(WORDS - len(SPECIALS)))])
    return Data(split, split, vocab, "random", {"train": tokens}, np.arange(m), None, {},
                opt.batch_size, opt.seed, opt.workers)


class Timed(NamedTuple):
    """Of one step, on average."""
    seconds: float
    waiting: float                    # of them, for the batch


class Loop:
    """The epochs of train.run_epochs without logs and validations."""

    def __init__(self, run: train.Training):
        self.run, self.batches = run, None
        run.model.train()

    def step(self) -> float:
        """One step. Returns the seconds that its batch was waited for."""
        run, start = self.run, time.perf_counter()
        if run.state["step"] == run.data.steps:
            run.end_epoch()
            self.batches = None
        self.batches = self.batches or on_device(
            run.data.batches(run.state), run.device, run.data.ahead
        )
        batch = next(self.batches)
        wait = time.perf_counter() - start
        run.step(batch)
        return wait

    def timed(self, steps: int) -> Timed:
        self.settle()
        start = time.perf_counter()
        wait = sum(self.step() for _ in range(steps))
        self.settle()
        return Timed((time.perf_counter() - start) / steps, wait / steps)

    def settle(self) -> None:
        if self.run.device.type == "cuda":
            torch.cuda.synchronize(self.run.device)

    def close(self) -> None:
        if self.batches is not None:
            self.batches.close()


def products(run: train.Training) -> float:
    """Floating-point operations of the matrix products of a step, forward and backward, counted on
    a CPU, where those of GRUs are seen, too."""
    device, model = run.device, run.model
    batch = next(run.data.batches({**run.state, "epoch": 0, "step": 0, "iteration": 0})).to("cpu")
    try:
        model.cpu()
        with FlopCounterMode(display=False) as counter:
            sum(model(batch).values()).backward()
    finally:
        model.to(device)
        model.zero_grad(set_to_none=True)
    return counter.get_total_flops()


def kernels(loop: Loop) -> list[tuple[str, float, float]]:
    """The SHOWN most expensive kernels, or operations of a CPU: name, milliseconds a step, percent
    of all of them."""
    cuda = loop.run.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]) as profiler:
        for _ in range(PROFILED):
            loop.step()
        loop.settle()
    total = {event.key: event.self_device_time_total if cuda else event.self_cpu_time_total  # in us
             for event in profiler.key_averages()
             if not cuda or event.device_type == DeviceType.CUDA}
    most = sorted(total.items(), key=lambda pair: -pair[1])[:SHOWN]
    return [(name, time / 1000 / PROFILED, 100 * time / max(1, sum(total.values())))
            for name, time in most]


def title() -> str:
    return f"{IMAGES * EACH:,} pairs, batch of {BATCH}, D = {DIM:,}, features of float16"


def epoch_times(steps: int | None, shown: bool, seed: int, device):
    """Yield (name, value, format, target) of an epoch of every kind in every precision. steps: how
    many are timed (0: the whole epoch; None: STEPS). shown: also of the kernels."""
    cuda, whole = device.type == "cuda", math.ceil(IMAGES * EACH / BATCH)
    warm = WARM[device.type]
    steps = STEPS[device.type] if steps is None else steps or whole
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            path = os.path.join(folder, "features.npy")
            write_features(path, min(IMAGES, BATCH * (steps + warm)), kind.shape, seed)
            for precision, flags in PRECISIONS.items() if cuda else [("fp32", "")]:
                for where in ("device", "host") if cuda else ("host",):
                    yield from one_epoch(name, kind, precision, flags, where, path,
                                         (steps, warm, whole), shown, seed, device)


def one_epoch(name: str, kind: Kind, precision: str, flags: str, where: str, path: str,
              counts: tuple, shown: bool, seed: int, device):
    """Yield the measures of one kind and precision, with its features on the device or on the host.
    counts: how many steps are timed, warm up, and make an epoch."""
    steps, warm, whole = counts
    words = (f"{kind.flags} {flags} --embed_size {DIM} --batch_size {BATCH} --seed {seed} "
             f"--features_on {where}")
    opt = train.parse_args([*words.split(), "--device", device.type])
    data = build_random_data(path, opt, seed)
    run = train.Training(opt, data, None, train.set_device(opt))
    data.feed(run.device, opt.features_on)
    title = f"{name}, {precision}" + f", features on the {where}" * (device.type == "cuda")
    flops = products(run) if where == "host" else None
    loop = Loop(run)
    try:
        loop.timed(warm)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        step = loop.timed(steps)
        aimed = device.type == "cuda" and where == "device"
        yield f"{title}: milliseconds a step", 1000 * step.seconds, ".1f", None
        yield (f"{title}: seconds an epoch of {whole:,} steps", step.seconds * whole, ".1f",
               kind.aim if aimed and precision == "tf32" else None)
        yield (f"{title}: percent of the time in which a batch is waited for",
               100 * step.waiting / step.seconds, ".1f", "input" if aimed else None)
        if flops:
            yield f"{title}: products of matrices, TFLOP a step", flops / 1e12, ".3f", None
            yield f"{title}: the same, TFLOP a second", flops / 1e12 / step.seconds, ".3f", None
        if device.type == "cuda":
            yield (f"{title}: peak memory, MiB",
                   torch.cuda.max_memory_allocated(device) / MIB, ".0f", None)
        for kernel, milliseconds, share in kernels(loop) if shown else ():
            yield f"{title}: {kernel[:40]}, ms a step ({share:.0f}%)", milliseconds, ".2f", None
    finally:
        loop.close()
