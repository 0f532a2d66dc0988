"""Whether the threads that a training computes by have cores of their own. They wait for each other
at every product, so where they share cores with other work, several take longer than one, up to ten
times."""
import contextlib
import os
import time


class Load:
    """What the processor did since this was made, as /proc/stat counts it."""

    def __init__(self, threads: int):
        self.threads, self.before = threads, _times()

    def note(self) -> str:
        """A sentence where the threads share cores, or "". It looks back over 5 seconds or more,
        and says it once."""
        now = _times()
        if self.threads == 1 or not now or now[0] < self.before[0] + 5:
            return ""
        seconds, busy, own = (b - a for a, b in zip(self.before, now))
        others, cores = max(0.0, busy - own) / seconds, min(len(os.sched_getaffinity(0)), _quota())
        self.before = now
        if self.threads + others < cores + 0.5:
            return ""
        why = (f"other processes keep {others:.1f} of {cores:g} cores busy"
               if self.threads < cores + 0.5 else f"this process may use {cores:g} cores")
        threads, self.threads = self.threads, 1             # which has nothing more to say
        return (f"note: {why}, and torch computes by {threads} threads, which wait for each other; "
                "if it learns slowly, stop it (Ctrl-C) and go on with OMP_NUM_THREADS=1 python "
                "train.py --resume")


def _times() -> tuple[float, float, float] | None:
    """Seconds: of a clock, in which the cores that this process may use were busy, and of this
    process; or None."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        with open("/proc/stat", encoding="ascii") as f:
            rows = [line.split() for line in f if line.startswith("cpu")]
        # 4 and 5 are idle
        ticks = sum(int(row[k]) for row in rows if row[0] in mine for k in (1, 2, 3, 6, 7, 8))
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()
    return None


def _quota() -> float:
    """How many cores a container may use."""
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as f:
            quota, period = f.read().split()
        return int(quota) / int(period)
    return float("inf")
