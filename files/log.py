"""What a run says while it goes on: log.txt, log.jsonl, tensorboard events, and the terminal."""
import contextlib
import json
import os
import sys
import time

from tqdm import tqdm

from files.reading import read_lines
from files.writing import atomic


class NoLog:
    """Of a process that writes nothing. epochs: of the whole training."""

    def __init__(self, epochs: int):
        self.epochs = epochs

    def where(self, state: dict, steps: int) -> str:
        """The place in the training that a line is about."""
        if not state["step"]:
            return f"epoch {state['epoch']}/{self.epochs} done" if state["epoch"] else "the start"
        return f"epoch {state['epoch'] + 1}/{self.epochs} step {state['step']}/{steps}"

    def say(self, line: str, terminal: bool = True) -> None:
        pass

    def validation(self, state: dict, steps: int, result: dict) -> None:
        pass

    def record(self, iteration: int, scalars: dict, **fields) -> None:
        pass


class Log(NoLog):
    """log.txt for people, log.jsonl for programs, tensorboard events; and the terminal. Epochs are
    counted from 1."""

    def __init__(self, folder: str, state: dict, epochs: int):
        import tensorboard_logger

        super().__init__(epochs)
        self.events = tensorboard_logger.Logger(folder, flush_secs=5)
        torn = ends_within_a_line(os.path.join(folder, "log.txt"))
        self.text = open(os.path.join(folder, "log.txt"), "a", encoding="utf-8",
                         errors="backslashreplace")
        self.text.write("\n" * torn)
        path = os.path.join(folder, "log.jsonl")
        if os.path.isfile(path):
            lines = [line for line in read_lines(path) if comes_before(line, state)]
            with atomic(path) as f:
                f.writelines(f"{line}\n" for line in lines)
        self.json = open(path, "a", encoding="utf-8")

    def say(self, line: str, terminal: bool = True) -> None:
        if terminal:
            try:
                tqdm.write(line)
                sys.stdout.flush()
            except OSError:                                 # the terminal is gone, the run goes on
                pass
        self.text.write(line + "\n")
        self.text.flush()

    def validation(self, state: dict, steps: int, result: dict) -> None:
        """Recalls under VSE++'s names: r1 image to text, r1i text to image."""
        if "i2t" not in result:                             # phrases in photos
            self.say(f"{self.where(state, steps)}: dev rsum {result['rsum']:.1f} | R@1 "
                     f"{result['r1']:.1f} R@5 {result['r5']:.1f} R@10 {result['r10']:.1f} of at "
                     f"most {result['upper']:.1f}")
            self.record(state["iteration"],
                        {k: result[k] for k in ("r1", "r5", "r10", "upper", "rsum")},
                        kind="validation", epoch=state["epoch"] + (state["step"] > 0),
                        step=state["step"] or steps)
            return
        i, t = result["i2t"], result["t2i"]
        sides = [f"{name} R@1 {r['r1']:.1f} R@5 {r['r5']:.1f} R@10 {r['r10']:.1f} "
                 f"medr {r['medr']:.0f}"
                 for name, r in (("image to text", i), ("text to image", t))]
        self.say(f"{self.where(state, steps)}: dev rsum {result['rsum']:.1f} | {' | '.join(sides)}")
        keys = ("r1", "r5", "r10", "medr", "meanr")
        self.record(state["iteration"],
                    {**{k: i[k] for k in keys}, **{f"{k}i": t[k] for k in keys},
                     "rsum": result["rsum"], "hbr": result["hbr"],
                     **{f"cos_{side}": cosine for side, cosine in result["alike"].items()}},
                    kind="validation", epoch=state["epoch"] + (state["step"] > 0),
                    step=state["step"] or steps)

    def record(self, iteration: int, scalars: dict, **fields) -> None:
        self.json.write(json.dumps({"iteration": iteration, **fields, **scalars}) + "\n")
        self.json.flush()
        for name, value in scalars.items():
            self.events.log_value(name, value, step=iteration)


def ends_within_a_line(path: str) -> bool:
    """Whether a text file was cut off while a line was written."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read() != b"\n"


def comes_before(line: str, state: dict) -> bool:
    """Whether a line of log.jsonl stays when a run goes on from `state`: what was logged after its
    checkpoint comes again. Lines that somebody else wrote stay, but for one that was torn off."""
    try:
        entry = json.loads(line)
        again = (state.get("due") and entry.get("kind") == "validation"
                 and entry["iteration"] == state["iteration"])
        return entry["iteration"] <= state["iteration"] and not again
    except (ValueError, TypeError, KeyError, AttributeError):
        return not line.startswith('{"iteration"')


# ---- whether the threads that a training computes by have cores of their own

class Load:
    """What the processor did since this was made, as /proc/stat counts it. Threads wait for each
    other at every product, so where they share cores with other work, several take longer than one,
    up to ten times."""

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
