"""Vectors of an index on a real Milvus server, of the package `milvus` (2.3.5).

    make test-milvus                          # `make test` leaves it out
"""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch

from cli import InputError
from photos.milvus import Collection
from tests.test_milvus import check_collection, check_index

pytest.importorskip("pymilvus", reason="pymilvus is not installed (photos/requirements-milvus.txt)")
pytest.importorskip("milvus", reason="the package milvus is not installed (requirements-dev.txt, Linux x86-64)")


@pytest.fixture
def started(tmp_path):
    """The address and the process of a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.path.join(os.path.dirname(sys.executable), "milvus-server"),
               "--data", str(tmp_path / "server"), "--proxy-port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                Collection(f"http://127.0.0.1:{port}", "none")
                break
            except InputError:
                assert server.poll() is None and time.monotonic() < end, "the server does not start"
        yield f"http://127.0.0.1:{port}", server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)             # the command, and the server that it started
        server.wait()


@pytest.mark.milvus
def test_a_server_answers_as_a_file_does(started, tmp_path, demo_path, small_run):
    check_collection(started[0])
    check_index(started[0], tmp_path, demo_path, small_run("--sim", "wasserstein"))


@pytest.mark.milvus
def test_a_server_that_is_killed_ends_the_command_within_a_minute(started):
    address, server = started

    def parts():
        yield [f"{k}.jpg" for k in range(2000)], torch.randn(2000, 9)
        threading.Timer(0.3, os.killpg, (server.pid, signal.SIGKILL)).start()       # while it flushes
    begun = time.monotonic()
    with pytest.raises(InputError, match="fails at (flush|load_collection) of photos_a .*; see its log, and run it"):
        Collection.build(address, "photos", "", 9, parts())
    assert time.monotonic() - begun < 60
