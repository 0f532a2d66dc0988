"""Batches that are ready when the training asks for them: read by worker processes, in order, and on
the device.

    for value in stream(fetch, chunks, workers): ...

Features that fit are kept on a CUDA device for the whole run, and a batch's images are rows of a
tensor there. What else a batch holds is read and copied while the device computes the step before.
On a CPU nothing of this happens. Worker processes end with the process that they read for.
"""
import atexit
import contextlib
import functools
import math
import multiprocessing
import os
import pickle
import queue
import sys
import threading
import weakref
from itertools import chain
from multiprocessing import forkserver, resource_tracker
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

import cli
from cli import InputError, check
from files.photos import import_torchvision

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _Guarded:
    """What a worker process reads with. It returns an InputError as a value; raised there, it would
    arrive as a traceback."""

    def __init__(self, fetch):
        self.fetch, self.pickled = None, pickle.dumps(fetch, pickle.HIGHEST_PROTOCOL)
        self.torchvision = "torchvision" in sys.modules     # what reads photos may be of it

    def __getitem__(self, chunk):
        try:
            if self.fetch is None:
                if self.torchvision:
                    import_torchvision()
                self.fetch = pickle.loads(self.pickled)     # which the process that asks has made
            return None if chunk is None else self.fetch[chunk]
        except InputError as error:
            return error


def _same(x):
    return x


_reading = weakref.WeakSet()          # iterators whose worker processes are running


@atexit.register
def _end_workers() -> None:
    """End all worker processes at exit. Otherwise multiprocessing would wait for them for ever: it
    ends workers by a signal, and their signals are blocked."""
    for results in list(_reading):
        results._shutdown_workers()


def _end_with_parent(worker: int) -> None:
    """In a worker process: end it as soon as the process that it reads for is gone, however that
    ended."""
    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def _server():
    """The context in which worker processes start. Each is forked from a server, a process of its
    own that has loaded what they need and runs no threads. A fork of this process would take over
    the locks that threads hold just then, those of Gloo or of a product, and nobody would open
    them. Signals do not reach the server and so no worker."""
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(
            ["data", *(["devices.vision"] if "torchvision" in sys.modules else [])])
        with cli.unsignalled():
            # The warnings are of what a killed process leaves, which this one clears.
            with _environment(PYTHONWARNINGS="ignore"):
                resource_tracker.ensure_running()   # it lets signals through again, hence once more
            path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
            with cli.unsignalled(), _environment(PYTHONPATH=path, OPENBLAS_NUM_THREADS="1"):
                forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _environment(**variables: str):
    """A context in which new processes have these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _without_main():
    """A context in which worker processes do not load the command's own module, of which they need
    nothing. So a script without `if __name__ == "__main__"` can read with workers, too."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def stream(fetch, chunks, workers: int):
    """Yield fetch[chunk] for every chunk, in order, read by `workers` processes (0: by this one),
    each with a copy of `fetch`, which is pickled. Signals do not reach them; the main process saves
    its state and then ends them. Raises an InputError of theirs."""
    if not workers:
        yield from (fetch[chunk] for chunk in chunks)
        return
    own = torch.Generator()                # torch's global one is training's, which resumes from it
    # Making the chunks may take long or fail, so those that `iter` asks for are empty.
    asked = chain([None] * (AHEAD * workers), chunks)
    loader = DataLoader(_Guarded(fetch), sampler=asked, batch_size=None, num_workers=workers,
                        collate_fn=_same, prefetch_factor=AHEAD, generator=own,
                        worker_init_fn=_end_with_parent, multiprocessing_context=_server())
    with _without_main():
        results = iter(loader)                              # this starts the processes
    _reading.add(results)
    try:
        for result in results:
            if isinstance(result, InputError):
                raise result
            if result is not None:
                yield result
    finally:
        results._shutdown_workers()                 # as __del__ does, which a traceback would delay


SHARE = 0.6               # of the free memory, that kept features may take; the rest is the model's
AHEAD = 2          # what is made before it is asked for: chunks of a worker process, batches of a device
AT_ONCE = 1 << 28                   # bytes of features that are read from a file and copied at once
WHERE = ("auto", "device", "host")


# ---- features that stay on the device

class Kept:
    """Image features (N, F) or (N, P, F) on a device, as the file holds them: float16 stays
    float16. Made of inputs.Features, whose interface it has where batches are made; raises its
    InputError on NaN or infinity."""
    parallel = False

    def __init__(self, images, device: torch.device):
        count, step = len(images), max(1, AT_ONCE * len(images) // kept_bytes(images))
        self.rows = torch.empty(count, *images.shape, dtype=kept_type(images), device=device)
        for start in range(0, count, step):
            some = images.gather(np.arange(start, min(start + step, count)))   # finite (n, [P,] F)
            self.rows[start:start + len(some)] = some.to(self.rows.dtype)

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, index) -> Tensor:
        """The features of images `index` (B,), as (B, F) or (B, P, F) float32 on the device."""
        index = torch.from_numpy(np.ascontiguousarray(index))
        return self.rows[index.to(self.rows.device, non_blocking=True)].float()


def kept_type(images) -> torch.dtype:
    return torch.float16 if images.array.itemsize == 2 else torch.float32


def kept_bytes(images) -> int:
    """What features take on a device, each image once."""
    return len(images) * math.prod(images.shape) * kept_type(images).itemsize


def keep(images, device: torch.device, where: str) -> tuple[object, str]:
    """The images of a training set as batches are made of them, and a line for the log on where
    they are.

    images: inputs.Features, Photos and others; `keeps` says whether a device can hold them. where:
    "auto", on a CUDA device if they take at most SHARE of its free memory; "device"; "host". Raises
    InputError where "device" cannot be.
    """
    if device.type != "cuda" or where == "host":
        return images, ""
    if not images.keeps:
        check(where != "device", "--features_on device keeps precomputed features of whole images, "
              "and the training images are photos or regions of phrases; take auto or host")
        return images, ""
    size, free = kept_bytes(images), torch.cuda.mem_get_info(device)[0]
    takes, there = f"{size / 2 ** 30:.1f} GiB", f"{free / 2 ** 30:.1f} GiB are free on {device}"
    if size <= SHARE * free:
        return Kept(images, device), f"features: {takes} kept on {device}"
    check(where != "device", f"--features_on device: the features take {takes} and {there}, of "
          f"which they may have {SHARE:.0%}, for the model needs the rest; take auto or host")
    return images, (f"features: {takes} are read from the file, as {there} and at most {SHARE:.0%} "
                    "of that is for features")


# ---- batches

def on_device(batches, device: torch.device, ahead: bool = True):
    """Yield the batches (files.layouts.Batch) of a generator, in order and unchanged, on a device.

    On CUDA a thread makes them and copies them, up to AHEAD before they are asked for, on a stream
    of its own. `ahead` is False where making them draws from torch's generators: then each is made
    when it is asked for. An error comes where its batch would. The thread ends with this iterator.
    """
    if device.type != "cuda" or not ahead:
        for batch in batches:
            yield batch.to(device)
        return
    ready, end, stream = queue.Queue(AHEAD), threading.Event(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # which may still be copying what is kept
    device = stream.device                # with its number: a new thread begins on the first device
    thread = threading.Thread(target=_fill, args=(batches, ready, end, stream, device),
                              name="batches", daemon=True)
    thread.start()
    try:
        while True:
            batch, copied, error = ready.get()
            if error is not None:
                raise error
            if batch is None:
                return
            here = torch.cuda.current_stream(device)
            here.wait_event(copied)
            in_use(batch, here)
            yield batch
    finally:
        end.set()
        while thread.is_alive():                            # it may wait to hand one over
            with contextlib.suppress(queue.Empty):
                ready.get(timeout=0.01)
        thread.join()


def _fill(batches, ready: queue.Queue, end: threading.Event, stream, device) -> None:
    """The thread: (batch on the device, event of its copy, None) for each batch, then (None, None,
    error or None)."""
    error = None
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream), contextlib.closing(batches):
            for batch in batches:
                batch = batch.map(lambda x: x if x.is_cuda else x.pin_memory()).to(device)
                if end.is_set():
                    return
                ready.put((batch, stream.record_event(), None))
    except BaseException as raised:        # whatever it is, it is raised where the batch is awaited
        error = raised
    finally:
        ready.put((None, None, error))


# ---- two networks that read the same, side by side on two streams of a CUDA device

@functools.cache
def side_stream(device: torch.device) -> "torch.cuda.Stream":
    """The one beside the usual one: memory that it has taken serves it again in the next step."""
    return torch.cuda.Stream(device)


def both(first, second, *inputs):
    """first(*inputs), second(*inputs), bit for bit what they are one after the other; on a CUDA
    device at the same time.

    inputs: tensors, tuples of them, None. The device is that of the first tensor. Autograd runs the
    backward pass of each network on the stream of its forward pass and lets one wait for the other
    where their gradients meet. What is read is marked as in use by the second stream, in which a
    backward pass may still read it when it is freed; what the second network returns, by the stream
    of the caller.
    """
    device = next(x.device for x in tree_leaves(inputs) if torch.is_tensor(x))
    if device.type != "cuda":
        return first(*inputs), second(*inputs)
    here, beside = torch.cuda.current_stream(device), side_stream(device)
    beside.wait_stream(here)                                # what is read is made before
    with torch.cuda.stream(beside):
        other = second(*inputs)
        in_use(inputs, beside)
    own = first(*inputs)
    here.wait_stream(beside)
    in_use(other, here)
    return own, other


def in_use(tree, stream) -> None:
    """Memory of the CUDA tensors of a tree goes to nobody else before `stream` has done what it was
    given so far."""
    for x in tree_leaves(tree):
        if isinstance(x, Tensor) and x.is_cuda:
            x.record_stream(stream)
