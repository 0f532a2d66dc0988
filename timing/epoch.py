"""How long a training step and an epoch at the size of COCO take, and what of it is input:
benchmark.py's parts of training.

The loop is that of train.py. Captions are of 8 to 20 words from a vocabulary of 10,000; features
are random. A few steps are timed and scaled to an epoch; the file then holds no more images than
these steps can read.
"""
import contextlib
import itertools
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
from timing import MIB, Setting, Sizes, line, settle

# ---- what is read and what learns

def random_vocabulary(words: int) -> Vocabulary:
    return Vocabulary([*SPECIALS, *map(str, range(words - len(SPECIALS)))])


def random_captions(path: str, sizes: Sizes, seed: int) -> tuple[Split, Tokens]:
    """The images of a feature file, and EACH captions of random words for each of them."""
    rng, features = np.random.default_rng(seed), Features(path)
    m = EACH * len(features)
    length = rng.integers(*sizes.lengths, m, endpoint=True)
    tokens = [rng.integers(len(SPECIALS), sizes.words, n) for n in length]
    return (Split("train", features, [""] * m, np.arange(m) // EACH, path),
            Tokens(tokens, np.zeros(m, bool)))


def random_batch(sizes: Sizes) -> Batch:
    least, most = sizes.lengths
    lengths, index = torch.randint(least, most + 1, (sizes.pairs,)), torch.arange(sizes.pairs)
    tokens = torch.randint(len(SPECIALS), sizes.words, (sizes.pairs, most))
    tokens = tokens * (torch.arange(most) < lengths[:, None])
    return Batch(torch.rand(sizes.pairs, *sizes.shape), tokens, lengths, index, index)


def random_learner(words: list[str], sizes: Sizes, seed: int, device) -> train.Learner:
    """A new model of precomputed features, with these options of train.py, and its optimisers."""
    options = train.parse_args(["--img_dim", str(sizes.shape[-1]), "--embed_size", str(sizes.dim),
                                "--device", device.type, *words])
    options.img_enc = "precomp" if options.img_enc == "auto" else options.img_enc
    torch.manual_seed(seed)
    model = build_model(options, random_vocabulary(sizes.words)).to(device).train()
    if options.compile:
        compile_parts(model, device)
    return train.build_learner(options, model, device)


# ---- a step

def training(words: list[str], sizes: Sizes, how: Setting) -> dict:
    """Functions that run one training step on precomputed features, and its parts each alone."""
    words = words if "match_prob" in words else ["--max_violation", *words]
    learner = random_learner(words, sizes, how.seed, how.device)
    model, optimizer = learner.model, learner.optimizers["optimizer"]
    batch = random_batch(sizes).to(how.device)

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
        optimizer.zero_grad(set_to_none=True)
        outputs = [(x, leaf.grad) for e, own in zip(embed(), leaves) for x, leaf in zip(e, own)
                   if learned(x) and leaf.grad is not None]
        torch.autograd.backward(*zip(*outputs))

    def update():
        torch.nn.utils.clip_grad_norm_(learner.parameters, learner.grad_clip)
        optimizer.step()

    step = partial(train.train_step, learner, batch, "a step")
    return {"objective": objective, "networks": networks, "update": update, "step": step}


# ---- an epoch

IMAGES, EACH = 113_287, 5             # COCO's training images, captions of each: 566,435 pairs
SIZES = Sizes()                       # but for the features
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


def write_features(path: str, count: int, shape: tuple[int, ...], seed: int) -> None:
    """A file of float16 features (count, *shape)."""
    array = np.lib.format.open_memmap(path, "w+", np.float16, (count, *shape))
    some = np.random.default_rng(seed).random(
        (min(DRAWN, count), *shape), np.float32).astype(np.float16)
    for start in range(0, count, len(some)):
        array[start:start + len(some)] = some[:count - start]
    array.flush()


def build_run(words: str, path: str, how: Setting) -> train.Training:
    """A new run on the images of a feature file, with these options of train.py."""
    opt = train.parse_args([*words.split(), "--device", how.device.type])
    split, tokens = random_captions(path, SIZES, how.seed)
    fit_to_data(opt, split.images, None)
    data = Data(split, split, random_vocabulary(SIZES.words), "random", {"train": tokens},
                np.arange(len(split.captions)), None, {}, opt.batch_size, opt.seed, opt.workers)
    run = train.Training(opt, data, None, train.set_device(opt))
    data.feed(run.device, opt.features_on)
    run.model.train()
    return run


def stepping(run: train.Training):
    """Train on and on, as train.run_epochs does but for logs and validations. Yields after each
    step the seconds that its batch was waited for."""
    while True:
        start = time.perf_counter()
        with contextlib.closing(on_device(run.data.batches(run.state), run.device,
                                          run.data.ahead)) as batches:
            for batch in batches:
                wait = time.perf_counter() - start
                run.step(batch)
                yield wait
                start = time.perf_counter()
        run.end_epoch()


def timed(waits, steps: int, device) -> tuple[float, float]:
    """Seconds of one of the next steps of `stepping`, on average, and those of them for the
    batch."""
    settle(device)
    start = time.perf_counter()
    wait = sum(itertools.islice(waits, steps))
    settle(device)
    return (time.perf_counter() - start) / steps, wait / steps


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


def kernels(waits, device) -> list[tuple[str, float, float]]:
    """The SHOWN most expensive kernels, or operations of a CPU, of the next steps of `stepping`:
    name, milliseconds a step, percent of all of them."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]) as profiler:
        timed(waits, PROFILED, device)
    total = {event.key: event.self_device_time_total if cuda else event.self_cpu_time_total  # in us
             for event in profiler.key_averages()
             if not cuda or event.device_type == DeviceType.CUDA}
    most = sorted(total.items(), key=lambda pair: -pair[1])[:SHOWN]
    return [(name, time / 1000 / PROFILED, 100 * time / max(1, sum(total.values())))
            for name, time in most]


def epoch(how: Setting) -> None:
    """An epoch of every kind in every precision, on CUDA with its features on the device and on the
    host."""
    cuda, whole = how.device.type == "cuda", math.ceil(IMAGES * EACH / SIZES.pairs)
    steps = STEPS[how.device.type] if how.steps is None else how.steps or whole
    count = min(IMAGES, SIZES.pairs * (steps + WARM[how.device.type]))
    print(f"\nepoch: {IMAGES * EACH:,} pairs, batch of {SIZES.pairs}, D = {SIZES.dim:,}, features "
          "of float16", flush=True)
    variants = [*itertools.product(PRECISIONS, ("device", "host"))] if cuda else [("fp32", "host")]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "features.npy")
        for name, kind in KINDS.items():
            write_features(path, count, kind.shape, how.seed)
            for precision, where in variants:
                title = f"{name}, {precision}" + f", features on the {where}" * cuda
                words = (f"{kind.flags} {PRECISIONS[precision]} --embed_size {SIZES.dim} "
                         f"--batch_size {SIZES.pairs} --seed {how.seed} --features_on {where}")
                aims = ("input", kind.aim if precision == "tf32" else None)
                one_epoch(title, build_run(words, path, how), steps, whole,
                          aims if cuda and where == "device" else (None, None), how)


def one_epoch(title: str, run: train.Training, steps: int, whole: int, aims: tuple,
              how: Setting) -> None:
    """Time some steps of a run whose epoch has `whole`. aims: targets of the share of the input,
    and of the seconds of an epoch."""
    device = run.device
    flops = products(run) if run.opt.features_on == "host" else None
    with contextlib.closing(stepping(run)) as waits:
        timed(waits, WARM[device.type], device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds, waiting = timed(waits, steps, device)
        line(f"{title}: milliseconds a step", 1000 * seconds, ".1f")
        line(f"{title}: seconds an epoch of {whole:,} steps", seconds * whole, ".1f", aims[1])
        line(f"{title}: percent of the time in which a batch is waited for",
             100 * waiting / seconds, ".1f", aims[0])
        if flops:
            line(f"{title}: products of matrices, TFLOP a step", flops / 1e12, ".3f")
            line(f"{title}: the same, TFLOP a second", flops / 1e12 / seconds, ".3f")
        if device.type == "cuda":
            line(f"{title}: peak memory, MiB", torch.cuda.max_memory_allocated(device) / MIB, ".0f")
        for kernel, milliseconds, share in kernels(waits, device) if how.profile else ():
            line(f"{title}: {kernel[:40]}, ms a step ({share:.0f}%)", milliseconds, ".2f")
