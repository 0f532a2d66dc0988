"""What a run says while it goes on: log.txt, log.jsonl, tensorboard events, and the terminal."""
import contextlib
import json
import os
import sys

from tqdm import tqdm

from files.reading import read_lines
from files.writing import save_lines


class Log:
    """log.txt for people, log.jsonl for programs, tensorboard events; and the terminal. Epochs are
    counted from 1."""

    def __init__(self, folder: str, state: dict, epochs: int):
        """epochs: of the whole training."""
        self.epochs = epochs
        import tensorboard_logger

        self.events = tensorboard_logger.Logger(folder, flush_secs=5)
        path = os.path.join(folder, "log.txt")
        with open(path, "ab+") as f:                        # it may have been cut off within a line
            f.seek(max(0, f.tell() - 1))
            f.write(b"\n" * (f.read() not in (b"", b"\n")))
        self.text = open(path, "a", encoding="utf-8", errors="backslashreplace")
        path = os.path.join(folder, "log.jsonl")
        if os.path.isfile(path):
            save_lines(path, [line for line in read_lines(path) if comes_before(line, state)])
        self.json = open(path, "a", encoding="utf-8")

    def where(self, state: dict, steps: int) -> str:
        """The place in the training that a line is about."""
        if not state["step"]:
            return f"epoch {state['epoch']}/{self.epochs} done" if state["epoch"] else "the start"
        return f"epoch {state['epoch'] + 1}/{self.epochs} step {state['step']}/{steps}"

    def say(self, line: str, terminal: bool = True) -> None:
        if terminal:
            with contextlib.suppress(OSError):              # the terminal is gone, the run goes on
                tqdm.write(line)
                sys.stdout.flush()
        self.text.write(line + "\n")
        self.text.flush()

    def validation(self, state: dict, steps: int, result: dict) -> None:
        """Recalls under VSE++'s names: r1 image to text, r1i text to image."""
        if "i2t" in result:
            sides = [(f"{name} ", result[side], f"medr {result[side]['medr']:.0f}")
                     for name, side in (("image to text", "i2t"), ("text to image", "t2i"))]
            scalars = {f"{k}{end}": result[side][k] for side, end in (("i2t", ""), ("t2i", "i"))
                       for k in ("r1", "r5", "r10", "medr", "meanr")}
            scalars |= {"rsum": result["rsum"], "hbr": result["hbr"],
                        **{f"cos_{side}": cosine for side, cosine in result["alike"].items()}}
        else:                                               # phrases in photos
            sides = [("", result, f"of at most {result['upper']:.1f}")]
            scalars = {k: result[k] for k in ("r1", "r5", "r10", "upper", "rsum")}
        shown = [f"{name}R@1 {r['r1']:.1f} R@5 {r['r5']:.1f} R@10 {r['r10']:.1f} {end}"
                 for name, r, end in sides]
        self.say(f"{self.where(state, steps)}: dev rsum {result['rsum']:.1f} | {' | '.join(shown)}")
        self.record(state["iteration"], scalars, kind="validation",
                    epoch=state["epoch"] + (state["step"] > 0), step=state["step"] or steps)

    def record(self, iteration: int, scalars: dict, **fields) -> None:
        self.json.write(json.dumps({"iteration": iteration, **fields, **scalars}) + "\n")
        self.json.flush()
        for name, value in scalars.items():
            self.events.log_value(name, value, step=iteration)


def comes_before(line: str, state: dict) -> bool:
    """Whether a line of log.jsonl stays when a run goes on from `state`: what was logged after its
    checkpoint comes again. Lines that somebody else wrote stay, but for one that was torn off."""
    try:
        entry = json.loads(line)
        return entry["iteration"] <= state["iteration"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return not line.startswith('{"iteration"')
