"""torch.compile of the parts of a model that gain by it."""
import torch
from torch import nn

import cli
from cli import InputError
from devices.precision import full_float32


def compile_parts(model: nn.Module, device: torch.device, backend: str = "inductor") -> list[str]:
    """Compile, in place and at their first call, the modules whose class says `compiles`; no name in a state_dict
    changes. Returns their names. Raises InputError where there are none, or torch cannot compile for this device.

    They are parts of similarities, which `precision.scored` calls, so that tf32 is off when torch compiles them."""
    parts = {name: part for name, part in model.named_modules() if getattr(part, "compiles", False)}
    if not parts:
        raise InputError("--compile: nothing of this model gains by it, as cross-attention (--sim scan) and match "
                         "probabilities (--sim match_prob) do; leave it out")
    try:                                                    # a compiler may be missing
        with full_float32():                                # torch's compiler may refuse to read a tf32 setting
            torch.compile(lambda x: x.exp() + 1, backend=backend)(torch.zeros(1, device=device))
    except Exception as error:  # torch raises many kinds
        raise InputError(f"--compile: torch cannot compile here ({cli.reason(error)}); install a C++ compiler, for "
                         "CUDA triton, or leave it out") from error
    for part in parts.values():
        part.compile(backend=backend, dynamic=True)         # blocks differ in size
    return list(parts)
