"""Notes of what is done, which the processes that fill one file of rows keep in lists of their own.

A list has a value for every row, None where it is to do. That of the first process stands at `path`, those of the
others beside it. After a stop the next call takes them together, whatever the number of its processes.
"""
import contextlib
import glob
import os

from parallel import processes


def own(path: str) -> str:
    """Where this process notes what it has done."""
    return path if processes.first() else f"{path}.{processes.rank()}"


def others(path: str) -> list[str]:
    """The lists that other processes than the first have left."""
    return sorted(glob.glob(f"{glob.escape(path)}.*"))


def remove(path: str) -> None:
    """Remove the lists of the others, then that of the first, without which they count for nothing."""
    for each in (*others(path), path):
        with contextlib.suppress(FileNotFoundError):
            os.remove(each)


def merged(lists: list[list]) -> list:
    """What stands in any of the lists, of equally many rows each."""
    return [next((value for value in values if value is not None), None) for values in zip(*lists)]


def advice(done: list, title: str) -> str:
    """What stands in this process's list when it is stopped, in a sentence."""
    others = ", without what other processes did" * (processes.count() > 1)
    return (f"{sum(row is not None for row in done):,} of {len(done):,} photos of {title} are done{others}, and the "
            "same command goes on")
