"""Nothing mixes devices: the forward pass and the loss of every method with all but the lengths on a CUDA device that
pretends (tests/pretending.py); so do evaluation and features that are kept.

Steps that depend on values, and therefore wait for the device, are counted: see WAITS.
"""
import pytest
import torch

from devices.feeding import side_stream
from methods import METHODS
from tests.pretending import CUDA, Generator, Pretending, device_of, mark, place, pretended_cuda
from tests.tiny import tiny

# Copies from the device to the host by name in one forward pass and loss, and why.
WAITS = {"--captioner": "torch's pad_packed_sequence takes the order of the captions to the host",
         "scan": "where captions end, to plan blocks of similar length (methods.scan.RaggedParts)"}


@pytest.fixture
def vectors(tmp_path) -> str:
    (tmp_path / "vectors").write_bytes(b"")
    return str(tmp_path / "vectors")


def placed(name: str, vectors: str, monkeypatch, *more: str):
    """The model and the batch of a method on the pretended device."""
    monkeypatch.setattr(torch, "Generator", Generator)
    side_stream.cache_clear()
    pretended_cuda(monkeypatch)
    _, model, batch = tiny(name, vectors, *more)
    lengths = batch.lengths
    mark([x for x in batch if x is not None], CUDA)
    lengths.pretended = torch.device("cpu")
    return place(model), batch


@pytest.mark.parametrize("name", METHODS)
def test_no_operation_of_a_method_mixes_devices(name, vectors, monkeypatch):
    model, batch = placed(name, vectors, monkeypatch)
    with Pretending() as seen:
        terms = model.train()(batch)
        loss = sum(terms.values())
    assert all(device_of(term) == CUDA for term in terms.values()) and seen.on_cuda > 10
    assert not seen.unprotected()
    assert bool(seen.moved) == any(word in WAITS for word in METHODS[name].flags.split()), seen.moved
    loss.backward()
    assert torch.isfinite(loss)
