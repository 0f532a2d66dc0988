"""Two networks that read the same, side by side on two streams of a CUDA device."""
import functools

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


@functools.cache
def side_stream(device: torch.device) -> "torch.cuda.Stream":
    """The one beside the usual one: memory that it has taken serves it again in the next step."""
    return torch.cuda.Stream(device)


def both(first, second, *read):
    """first(*read), second(*read), bit for bit what they are one after the other; on a CUDA device at the same time.

    read: tensors, tuples of them, None. The device is that of the first tensor. Autograd runs the backward pass of each
    network on the stream of its forward pass and lets one wait for the other where their gradients meet. What is read
    is marked as in use by the second stream, in which a backward pass may still read it when it is freed; what the
    second network returns, by the stream of the caller.
    """
    device = next(x.device for x in tree_leaves(read) if torch.is_tensor(x))
    if device.type != "cuda":
        return first(*read), second(*read)
    here, beside = torch.cuda.current_stream(device), side_stream(device)
    beside.wait_stream(here)                                # what is read is made before
    with torch.cuda.stream(beside):
        other = second(*read)
        in_use(read, beside)
    own = first(*read)
    here.wait_stream(beside)
    in_use(other, here)
    return own, other


def in_use(tree, stream) -> None:
    """Memory of the CUDA tensors of a tree goes to nobody else before `stream` has done what it was given so far."""
    for x in tree_leaves(tree):
        if isinstance(x, Tensor) and x.is_cuda:
            x.record_stream(stream)
