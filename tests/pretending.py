"""Pretends that tensors are on a CUDA device, on a machine without one.

Under `Pretending` every tensor stays on the CPU and is marked with the device that it would be on. Each function of
torch is looked at before it runs: as on a real device, it may not mix tensors of two devices. Values are computed as
ever, so that what depends on them (a loop over lengths, `nonzero`) runs, too, where torch's own FakeTensorMode gives
up: on a torch without CUDA it cannot move tensors, initialise a GRU, or pack captions.

What it does not see: the backward pass, which torch derives from the forward pass, and what a function of torch's own
Python code, such as F.cross_entropy, does inside.

`pretended_cuda` stands in for torch.cuda's streams and for what moves tensors. Each stream has a clock of what it has
done and of what it has waited for of others, so that a function that reads what another stream may not have made yet
is found.
"""
import contextlib
import threading

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# Functions that take tensors of two devices, all of which CUDA's torch admits.
TWO_DEVICES = {
    "copy_",                          # copies between devices
    "_pack_padded_sequence", "_pad_packed_sequence", "gru",         # lengths and sizes of batches stay on the CPU
    "pack_padded_sequence", "pad_packed_sequence"}
INDEXED = {"__getitem__", "__setitem__"}                            # CUDA by an index of the CPU, not the reverse
OF_SHAPE = {"__len__", "dim", "size", "is_floating_point", "requires_grad_", "__set__", "__repr__", "data_ptr"}


def device_of(x: Tensor) -> torch.device:
    return getattr(x, "pretended", CPU)


def mark(tree, device) -> None:
    for x in tree_leaves(tree):
        if isinstance(x, Tensor):
            x.pretended = device


def place(module: nn.Module) -> nn.Module:
    """A module with its parameters and buffers, and no other tensor, on the pretended device."""
    for x in (*module.parameters(), *module.buffers()):
        x.pretended = CUDA
    return module


class Generator(torch.Generator):
    """One that draws on the CPU and says that it draws on a device."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.on = CUDA if torch.device(device).type == "cuda" else CPU
        return made


class Stream:
    """A pretended stream: work done so far, and what is known to be done on each other one."""
    local = threading.local()
    usual: "Stream"

    def __init__(self, device=None):
        self.known, self.device = {self: 0}, device

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def wait_event(self, known: dict) -> None:
        for stream, time in known.items():
            self.known[stream] = max(time, self.known.get(stream, 0))

    def record_event(self) -> dict:
        return dict(self.known)

    @classmethod
    def current(cls, device=None) -> "Stream":
        return getattr(cls.local, "now", cls.usual)

    @classmethod
    @contextlib.contextmanager
    def within(cls, stream: "Stream"):
        before, cls.local.now = cls.current(), stream
        yield
        cls.local.now = before

    def work(self, read, made) -> None:
        """Read tensors and make others. Raises RuntimeError where one that is read may not be made yet."""
        for x in read:
            maker, time = getattr(x, "made", (self, 0))
            if self.known.get(maker, 0) < time:
                raise RuntimeError(f"a stream reads {tuple(x.shape)}, which another may still be making")
            if maker is not self:
                x.readers = getattr(x, "readers", set()) | {self}
        self.known[self] += 1
        for x in made:
            x.made = (self, self.known[self])


def pretended_cuda(monkeypatch, free: int = 2 ** 30) -> None:
    """torch.cuda's streams pretend; the memory that is free is so many bytes; tensors are pinned and moved by marks."""
    def record(x, stream):
        x.recorded = getattr(x, "recorded", set()) | {stream}

    def pinned(x):
        x = x.clone()
        x.pinned = True
        return x
    Stream.usual = Stream()
    for name, value in (("Stream", Stream), ("current_stream", Stream.current), ("stream", Stream.within),
                        ("device", lambda device: contextlib.nullcontext()),
                        ("mem_get_info", lambda device: (free, 2 * free))):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Tensor, "record_stream", record)
    monkeypatch.setattr(Tensor, "pin_memory", pinned)


class Pretending(TorchFunctionMode):
    """A context in which tensors that are marked are on CUDA. `moved` counts copies from the device to the host that
    code asks for by name, each of which waits for the device. `seen` holds all tensors that were read or made there."""

    def __init__(self):
        super().__init__()
        self.moved, self.on_cuda, self.seen = [], 0, []

    def unprotected(self) -> list:
        """Tensors that a stream reads which did not make them, and whose memory is not kept for it."""
        kept = {}
        for x in self.seen:
            kept.setdefault(x.untyped_storage().data_ptr(), set()).update(getattr(x, "recorded", ()))
        return [tuple(x.shape) for x in self.seen if not isinstance(x, nn.Parameter)
                and getattr(x, "readers", set()) - kept[x.untyped_storage().data_ptr()]]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", str(func))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if name == "__get__" and tensors:
            return self.read(func, tensors[0], args, kwargs)
        if name in ("record_stream", "pin_memory"):
            return func(*args, **kwargs)
        if name in ("to", "cpu", "cuda"):
            return self.move(name, func, args, kwargs)
        if name in ("numpy", "__array__", "from_numpy") and any(device_of(x) != CPU for x in tensors):
            raise TypeError(f"can't convert {CUDA} tensor to numpy; use .cpu() first")
        if name in ("item", "tolist", "__bool__", "__int__", "__float__"):
            self.moved += [name] * any(device_of(x) != CPU for x in tensors)
            return func(*args, **kwargs)
        wanted = kwargs.pop("device", None)
        generator = kwargs.get("generator")
        found = self.common(name, tensors)
        device = found if wanted is None else CUDA if torch.device(wanted).type == "cuda" else CPU
        if isinstance(generator, Generator) and generator.on != device:
            raise RuntimeError(f"{name}: Expected a '{device}' device type for generator but found '{generator.on}'")
        result = func(*args, **kwargs)
        self.on_cuda += device != CPU
        if name not in OF_SHAPE:
            mark(result, device)
            if device != CPU:
                made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
                self.seen += [x for x in (*tensors, *made) if device_of(x) != CPU]
                Stream.current().work([x for x in tensors if device_of(x) != CPU], made)
        if name == "_pack_padded_sequence":
            mark(result[1], CPU)                            # the sizes of its steps
        return result

    @staticmethod
    def read(func, x, args, kwargs):
        if func == Tensor.device.__get__:
            return device_of(x)
        if func == Tensor.is_cuda.__get__:
            return device_of(x) != CPU
        result = func(*args, **kwargs)
        mark(result if isinstance(result, Tensor) else (), device_of(x))            # x.T, x.data
        return result

    def move(self, name: str, func, args, kwargs):
        """x.to(device | dtype | tensor), x.cpu()."""
        x, target = args[0], device_of(args[0])
        given = [*args[1:], *kwargs.values()]
        if name != "to":
            target = CPU if name == "cpu" else CUDA
        for one in given:
            if isinstance(one, Tensor):
                target = device_of(one)
            elif isinstance(one, (str, torch.device)):
                target = CUDA if torch.device(one).type == "cuda" else CPU

        def here(one):
            return CPU if isinstance(one, (str, torch.device)) else one
        self.moved += [name] * (device_of(x) != CPU == target)
        result = Tensor.to(x, *map(here, args[1:]), **tree_map(here, kwargs)) if name == "to" else x
        if result is x and target != device_of(x):
            result = x.view_as(x)                           # another tensor, as on a real device
        result.pretended = target
        return result

    @staticmethod
    def common(name: str, tensors: list[Tensor]) -> torch.device:
        """The device that all tensors are on. Numbers without a dimension on the CPU may be anywhere."""
        devices = {device_of(x) for x in tensors if x.ndim or device_of(x) != CPU}
        if len(devices) > 1 and name not in TWO_DEVICES and not (name in INDEXED and device_of(tensors[0]) != CPU):
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but found at least two "
                               f"devices: {[(tuple(x.shape), str(device_of(x))) for x in tensors]}")
        return CUDA if CUDA in devices else CPU
