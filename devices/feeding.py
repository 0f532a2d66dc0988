"""Batches that are on the device when the training asks for them.

Features that fit are kept on a CUDA device for the whole run, and a batch's images are rows of a
tensor there. What else a batch holds is read and copied while the device computes the step before.
On a CPU nothing of this happens.
"""
import contextlib
import functools
import math
import queue
import threading

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from cli import InputError

SHARE = 0.6               # of the free memory, that kept features may take; the rest is the model's
AHEAD = 2                             # batches that wait to be asked for
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

    def supply(self, chunks, images_of, seed: tuple | None = None):
        """As inputs.Images."""
        return chunks


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
        if where == "device":
            raise InputError("--features_on device keeps precomputed features of whole images, and "
                             "the training images are photos or regions of phrases; "
                             "take auto or host")
        return images, ""
    size, free = kept_bytes(images), torch.cuda.mem_get_info(device)[0]
    sizes = f"{size / 2 ** 30:.1f} GiB", f"{free / 2 ** 30:.1f} GiB are free on {device}"
    if size > SHARE * free:
        if where == "device":
            raise InputError(f"--features_on device: the features take {sizes[0]} and {sizes[1]}, "
                             f"of which they may have {SHARE:.0%}, for the model needs the rest; "
                             "take auto or host")
        return images, (f"features: {sizes[0]} are read from the file, as {sizes[1]} and at most "
                        f"{SHARE:.0%} of that is for features")
    return Kept(images, device), f"features: {sizes[0]} kept on {device}"


# ---- batches

def on_device(batches, device: torch.device, ahead: bool = True):
    """Yield the batches (files.split.Batch) of a generator, in order and unchanged, on a device.

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
                batch = batch.map(_pinned).to(device)
                if end.is_set():
                    return
                ready.put((batch, stream.record_event(), None))
    except BaseException as raised:        # whatever it is, it is raised where the batch is awaited
        error = raised
    finally:
        ready.put((None, None, error))


def _pinned(x: Tensor) -> Tensor:
    return x if x.is_cuda else x.pin_memory()


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
