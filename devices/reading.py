"""Reading by worker processes, in order, so that they end with the process that they read for.

    for value in stream(fetch, chunks, workers): ...
"""
import atexit
import contextlib
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from itertools import chain
from multiprocessing import forkserver, resource_tracker
from types import ModuleType

import torch
from torch.utils.data import DataLoader

import cli
from cli import InputError
from files.photos import import_torchvision

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AHEAD = 2              # chunks that each worker process is given before their results are asked for


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
