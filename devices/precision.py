"""In which precision a device multiplies matrices, and whether it always adds in the same order.

float32 products of networks may be computed in tf32 (--tf32): float32 numbers whose mantissas are
rounded to 10 bits, summed in float32. Scores never are. It is a matter of CUDA; a CPU has no tf32.
"""
import contextlib
import os

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from cli import check
from files.reading import refusing

PRODUCTS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def use_tf32(on: bool) -> None:
    """Let float32 products of matrices, convolutions and GRUs be tf32 from now on, or not. torch
    begins with tf32 for convolutions and GRUs."""
    for kind in PRODUCTS:
        kind.fp32_precision = "tf32" if on else "ieee"


def in_tf32() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


@contextlib.contextmanager
def full_float32():
    """A context in which float32 products are not tf32. The gradient of what is computed in it is
    computed outside; see `scored`."""
    before = [kind.fp32_precision for kind in PRODUCTS]
    use_tf32(False)
    try:
        yield
    finally:
        for kind, precision in zip(PRODUCTS, before):
            kind.fp32_precision = precision


def scored(function, *args, learned=()):
    """function(*args), a tensor, with no product of it or of its gradient in tf32.

    args: tensors, tuples of them, other values. learned: parameters that the function uses and that
    are to learn from it. Where tf32 is off it is the plain call.
    """
    if not in_tf32():
        return function(*args)
    leaves, spec = tree_flatten(args)
    places = [k for k, x in enumerate(leaves) if torch.is_tensor(x) and x.requires_grad]
    learned = [p for p in learned if p.requires_grad]
    if not torch.is_grad_enabled() or not places and not learned:
        with full_float32():
            return function(*args)

    def of(*inputs):
        for k, x in zip(places, inputs):
            leaves[k] = x
        return function(*tree_unflatten(leaves, spec))
    return _Full.apply(of, len(places), *(leaves[k] for k in places), *learned)


class _Full(torch.autograd.Function):
    """A graph of its own, whose backward pass is a step of the outer one, so that one setting holds
    for all of it."""

    @staticmethod
    def forward(ctx, of, count, *tensors):
        inputs = [x.detach().requires_grad_() for x in tensors[:count]]
        with full_float32(), torch.enable_grad():
            ctx.made = of(*inputs)
        ctx.inputs = [*inputs, *tensors[count:]]
        return ctx.made.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        with full_float32(), torch.enable_grad():
            gradients = torch.autograd.grad(ctx.made, ctx.inputs, gradient, allow_unused=True)
        return None, None, *gradients


def always_alike(on: bool) -> None:
    """Whether the same is computed every time on the same device. torch raises RuntimeError where
    it has no such way. Called before CUDA computes anything."""
    if on:
        # with another one cuBLAS sums in an order that varies
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(on)


def compile_parts(model: nn.Module, device: torch.device, backend: str = "inductor") -> list[str]:
    """Compile, in place and at their first call, the modules whose class says `compiles`; no name
    in a state_dict changes. Returns their names. Raises InputError where there are none, or torch
    cannot compile for this device.

    They are parts of similarities, which `precision.scored` calls, so that tf32 is off when torch
    compiles them."""
    parts = {name: part for name, part in model.named_modules() if getattr(part, "compiles", False)}
    check(parts, "--compile: nothing of this model gains by it, as cross-attention (--sim scan) "
                 "and match probabilities (--sim match_prob) do; leave it out")
    # a compiler may be missing, of which torch raises many kinds; it may refuse to read a tf32 setting
    with (refusing("--compile: torch cannot compile here", "install a C++ compiler, for CUDA "
                   "triton, or leave it out", Exception), full_float32()):
        torch.compile(lambda x: x.exp() + 1, backend=backend)(torch.zeros(1, device=device))
    for part in parts.values():
        part.compile(backend=backend, dynamic=True)         # blocks differ in size
    return list(parts)
