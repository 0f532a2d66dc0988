"""A run folder: whether it is one, what a new run may replace, its description and its log."""
import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import torch
import yaml
from tqdm import tqdm

from cli import InputError, reason
from files import atomic, clear, is_drawn, read_lines, read_yaml, recognised
from report import is_results
from vocab import Vocabulary

CHECKPOINTS = ("checkpoint.pt", "model_best.pt")
PICTURES = ("uncertainty", "uncertain_images", "uncertain_captions", "retrieval")


def is_run(folder: str) -> bool:
    """Whether train.py made a folder: its config.yaml says so, or, where that was lost, its checkpoint.pt."""
    try:
        stored = read_yaml(os.path.join(folder, "config.yaml"))
    except InputError:
        stored = None
    if isinstance(stored, dict) and {"command", "versions", "data", "options"} <= set(stored):
        return True
    path, log = (os.path.join(folder, name) for name in ("checkpoint.pt", "log.jsonl"))
    return os.path.isfile(path) and os.path.isfile(log) and is_checkpoint(path)


def is_checkpoint(path: str) -> bool:
    from subjects import load_checkpoint  # which builds models

    return recognised(load_checkpoint, path)


def check_new(folder: str, overwrite: bool) -> None:
    """Raise InputError unless a new run may go into a folder: one that is not there, an empty one, a run that never took a step
    or, with `overwrite`, any run. A folder of other files is nobody's to clear."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder; name another one with --logger_name")
    held = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    held = [name for name in held if name != ".lock" and not name.endswith(".part")]
    if not held:
        return
    if not is_run(folder):
        raise InputError(f"{folder} holds {held[0]} and is no run that train.py made; name a folder of its own with "
                         "--logger_name")
    if not overwrite and any(os.path.exists(os.path.join(folder, name)) for name in CHECKPOINTS):
        raise InputError(f"{folder} already holds a run; go on with --resume, replace it with --overwrite, or name another "
                         "folder with --logger_name")


def clear_old(folder: str) -> None:
    """Remove what a run left and a new one replaces: checkpoints first, so that none ever stands under a new description, then
    logs, events, and the results and pictures that evaluate.py and draw.py made of it. Other files stay."""
    names = [*CHECKPOINTS, "log.txt", "log.jsonl", *sorted(os.listdir(folder))]
    for name in dict.fromkeys(names):
        path = os.path.join(folder, name)
        drawn = name.startswith(PICTURES) and os.path.isfile(path) and recognised(is_drawn, path)
        judged = name.startswith("results") and name.endswith(".json") and recognised(is_results, path)
        if os.path.isfile(path) and (name in names[:4] or name.startswith("events.out.tfevents") or drawn or judged):
            os.remove(path)


def describe(opt, splits: dict) -> dict:
    """What config.yaml holds: the command, where the code stood, the data, the options as asked for and as resolved."""
    commit = subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], capture_output=True, text=True, check=False,
                            cwd=os.path.dirname(os.path.abspath(__file__)))
    return {"command": shlex.join(["python", "train.py", *sys.argv[1:]]), "git_commit": commit.stdout.strip() or "unknown",
            "versions": {"python": sys.version.split()[0], "torch": str(torch.__version__), "numpy": np.__version__},
            "data": {name: split.fingerprint() for name, split in splits.items()}, "asked": opt.asked,
            "options": vars(opt)}


def begin(folder: str, description: dict, vocab: Vocabulary, content: dict, best: str | None) -> None:
    """A new run, in a folder of which this process holds the lock: its first checkpoint, so that it can always go on, its
    description, and the model `best` that it has to surpass. A run before goes when that checkpoint is on the disk."""
    clear_parts(folder)
    path = os.path.join(folder, "checkpoint.pt")
    with atomic(path, "wb") as f:
        try:
            torch.save(content, f)
            f.flush()
            os.fsync(f.fileno())
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path} could not be written ({reason(error)}); nothing was replaced: make room, or name a "
                             "folder elsewhere with --logger_name") from error
        clear_old(folder)
        write(folder, description, vocab)
        if best:
            with open(best, "rb") as old, atomic(os.path.join(folder, "model_best.pt"), "wb") as new:
                shutil.copyfileobj(old, new)


def go_on(folder: str, description: dict, vocab: Vocabulary) -> None:
    """Describe a run that goes on in its own folder, whose lock this process holds."""
    clear_parts(folder)
    try:
        first = read_yaml(os.path.join(folder, "config.yaml"))
    except InputError:
        first = None
    if isinstance(first, dict):                             # else it was lost, and the checkpoint knows the options
        description["resumed_with"] = [*(first.get("resumed_with") or []), description["command"]]
        description.update({name: first[name] for name in ("command", "asked") if name in first})
    write(folder, description, vocab)


def clear_parts(folder: str) -> None:
    for name in ("config.yaml", "vocab.json", "log.jsonl", *CHECKPOINTS):
        clear(os.path.join(folder, name))                   # of a process that was killed while it wrote


def write(folder: str, description: dict, vocab: Vocabulary) -> None:
    with atomic(os.path.join(folder, "config.yaml")) as f:
        yaml.safe_dump(description, f, sort_keys=False)
    vocab.save(os.path.join(folder, "vocab.json"))


def best_of(source: str, best_rsum: float) -> str | None:
    """The file of the best model of the run gone on from, unless it is of a later epoch."""
    from subjects import load_checkpoint  # which builds models

    path = os.path.join(source if os.path.isdir(source) else os.path.dirname(source), "model_best.pt")
    found = best_rsum and os.path.isfile(path) and load_checkpoint(path)["state"]["best_rsum"] == best_rsum
    return path if found else None


def save_state(state: dict, path: str, advice: str) -> None:
    """A checkpoint in place of the old one, which a full disk or a kill leaves as it was: then `advice` is given."""
    try:
        with atomic(path, "wb") as f:
            torch.save(state, f)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} could not be saved ({reason(error)}); the one before it is whole: {advice}") from error


class Log:
    """log.txt for people, log.jsonl for programs, tensorboard events; and the terminal. Epochs are counted from 1."""

    def __init__(self, folder: str, state: dict, epochs: int):
        import tensorboard_logger

        self.events, self.epochs = tensorboard_logger.Logger(folder, flush_secs=5), epochs
        torn = ends_within_a_line(os.path.join(folder, "log.txt"))
        self.text = open(os.path.join(folder, "log.txt"), "a", encoding="utf-8", errors="backslashreplace")
        self.text.write("\n" * torn)
        path = os.path.join(folder, "log.jsonl")
        if os.path.isfile(path):
            kept = [line for line in read_lines(path) if comes_before(line, state)]
            with atomic(path) as f:
                f.writelines(f"{line}\n" for line in kept)
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

    def where(self, state: dict, steps: int) -> str:
        """The place in the training that a line is about."""
        if not state["step"]:
            return f"epoch {state['epoch']}/{self.epochs} done" if state["epoch"] else "the start"
        return f"epoch {state['epoch'] + 1}/{self.epochs} step {state['step']}/{steps}"

    def validation(self, state: dict, steps: int, result: dict) -> None:
        """Recalls under VSE++'s names: r1 image to text, r1i text to image."""
        i, t = result["i2t"], result["t2i"]
        sides = [f"{name} R@1 {r['r1']:.1f} R@5 {r['r5']:.1f} R@10 {r['r10']:.1f} medr {r['medr']:.0f}"
                 for name, r in (("image to text", i), ("text to image", t))]
        self.say(f"{self.where(state, steps)}: dev rsum {result['rsum']:.1f} | {' | '.join(sides)}")
        keys = ("r1", "r5", "r10", "medr", "meanr")
        self.record(state["iteration"], {**{k: i[k] for k in keys}, **{f"{k}i": t[k] for k in keys}, "rsum": result["rsum"],
                                         "hbr": result["hbr"],
                                         **{f"cos_{side}": cosine for side, cosine in result["alike"].items()}},
                    kind="validation", epoch=state["epoch"] + (state["step"] > 0), step=state["step"] or steps)

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
    """Whether a line of log.jsonl stays when a run goes on from `state`: what was logged after its checkpoint comes again.
    Lines that somebody else wrote stay, but for one that was torn off."""
    try:
        entry = json.loads(line)
        again = state.get("due") and entry.get("kind") == "validation" and entry["iteration"] == state["iteration"]
        return entry["iteration"] <= state["iteration"] and not again
    except (ValueError, TypeError, KeyError, AttributeError):
        return not line.startswith('{"iteration"')
