"""Collections on a real server, of the package `milvus` (2.3.5): its kinds of index, changes, and questions.

That server has no DiskANN, holds one vector a photo, and builds no index of float16, nor of fewer than 1,024 photos.

    make test-milvus                          # python -m pytest -m milvus; `make test` leaves them out
"""
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cli import InputError
from retrieval.index import Block
from retrieval.milvus import Connection
from retrieval.searcher import Searcher
from tests.test_milvus import World, again, nameless, new, no_folder
from tests.test_search import TEXTS, run

pytest.importorskip("pymilvus", reason="pymilvus is not installed (requirements-milvus.txt)")
pytest.importorskip("milvus", reason="the package milvus is not installed (requirements-dev.txt, Linux x86-64)")
pytestmark = pytest.mark.milvus
# The least share of the ten best among a hundred candidates. Codes of 8 numbers a byte are coarse for 9 numbers.
RECALL = {"flat": 1, "hnsw": 0.9, "ivfpq": 0.4}
GONE = np.arange(0, 2000, 7)                                  # rows of photos that are removed
assert no_folder                                               # a fixture of all tests here, too


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.path.join(os.path.dirname(sys.executable), "milvus-server"),
               "--data", str(tmp_path_factory.mktemp("server")), "--proxy-port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                Connection(f"http://127.0.0.1:{port}").close()
                break
            except InputError:
                assert server.poll() is None and time.monotonic() < end, "the server does not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)                 # the command, and the server that it started
        server.wait()


@pytest.fixture(scope="module")
def world():
    return World(3000)


def one_channel(world, engine, start=0, stop=None):
    """Fill a collection of one vector a photo."""
    part = slice(start, stop)
    engine.add(Block([world.vectors[0][part]], world.rest[part]), nameless(world.names[part]))


@pytest.mark.parametrize("method", RECALL)
def test_an_index_finds_what_brute_force_finds(address, world, method):
    with new(address, method, method=method, widths=[9]) as engine:
        assert engine.begin(SimpleNamespace(takes_bank=True), Block([world.vectors[0]], world.rest)) == 0
        assert engine.manifest["half"] is False
        one_channel(world, engine, 0, 2000)
        engine.finish()
        built = engine.connection.ask("describe_index", method, "channel0")
        assert (built["indexed_rows"], built["pending_index_rows"]) == (2000, 0)
    with again(address, method, writing=True) as engine:      # photos are removed, and others added
        engine.leave_out(engine, GONE, set())
        one_channel(world, engine, 2000)
        engine.finish()
    among = np.setdiff1d(np.arange(3000), GONE)
    with again(address, method) as engine:
        assert len(engine) == len(among)
        found = engine.search("channel0", world.queries[0].numpy(), 100)
        best = among[world.best(0, 10, among)]
        recall = np.mean([np.isin(b, f).mean() for b, f in zip(best, found)])
        assert recall >= RECALL[method], recall
        assert not np.isin(found, GONE).any()
        (vectors,), rest = engine.fetch(among[[5, -1, 3]])
        np.testing.assert_allclose(vectors, world.vectors[0][among[[5, -1, 3]]], atol=1e-5)
        assert torch.equal(rest, world.rest[among[[5, -1, 3]]])


def test_an_index_that_the_server_cannot_build_is_left(address, world, monkeypatch):
    monkeypatch.setattr("retrieval.milvus.STALLED", 5)
    with new(address, "diskann", method="diskann", widths=[9]) as engine:
        engine.begin(SimpleNamespace(takes_bank=True), Block([world.vectors[0]], world.rest))
        one_channel(world, engine)
        with pytest.raises(InputError, match="has not gone on with 'index diskann.channel0' for .*, 0% is done"):
            engine.finish()


def test_two_vectors_a_photo_need_a_newer_server(address, world):
    with new(address, "two") as engine, pytest.raises(InputError, match="Milvus v?2.3.5.* holds one vector a photo.*"
                                                                        "use Milvus 2.4 or newer, or --engine faiss"):
        world.begin(engine)


def test_questions_are_answered_as_from_files(address, demo_path, small_run, tmp_path, monkeypatch):
    """mls: one vector a photo and its variances beside it; 24 photos, so that all of them are candidates."""
    monkeypatch.undo()                                        # folders are written here
    searchers = []
    for folder, words in (("here", []), ("there", ["--engine", "milvus", "--uri", address])):
        run("index", "--checkpoint", small_run("--sim", "mls"), "--data_path", demo_path, "--images", "demo_precomp",
            "--output", tmp_path / folder, *words)
        searchers.append(Searcher(str(tmp_path / folder)))
    for a, b in zip(*(searcher.find_texts(TEXTS, top=6) for searcher in searchers)):
        assert [x.name for x in a.answers] == [x.name for x in b.answers]
        assert [x.score for x in a.answers] == pytest.approx([x.score for x in b.answers], abs=1e-2)
        assert [x.uncertainty for x in a.answers] == pytest.approx([x.uncertainty for x in b.answers], rel=1e-5)
    searchers[1].index.close()
