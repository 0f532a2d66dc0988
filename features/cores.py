"""Batches through a network: on a CPU a batch a core, since two batches side by side take less time than one after the
other by all cores, which wait for each other at every layer and for whatever else runs on one of them."""
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch


def by_cores(step: Callable, batches: Iterable, device: torch.device | None):
    """Yield step(batch) for every batch, in order. On a CPU as many at a time as torch has threads, each by one thread,
    so that the values do not depend on their number. step: computes no gradients. device: None, one after the other.
    Where a step fails, the generator `batches` is closed, which ends the processes that read for it."""
    cores = torch.get_num_threads()
    try:
        if device is None or device.type != "cpu" or cores == 1:
            for batch in batches:
                yield _without_gradients(step, batch)
        else:
            yield from _side_by_side(step, iter(batches), cores)
    finally:
        if isinstance(batches, Generator):
            batches.close()


def _side_by_side(step: Callable, batches: Iterator, cores: int):
    """The same, `cores` at a time."""
    pool = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
    try:
        running = deque(pool.submit(_without_gradients, step, batch) for batch in itertools.islice(batches, cores))
        while running:
            done = running.popleft().result()
            running.extend(pool.submit(_without_gradients, step, batch) for batch in itertools.islice(batches, 1))
            yield done
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)                        # later threads would compute by one thread, too


@torch.no_grad()                                            # which each thread is to be told
def _without_gradients(step: Callable, batch):
    return step(batch)
