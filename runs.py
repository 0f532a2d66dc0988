"""A run folder: whether it is one, what a new run may replace, its description and its log."""
import argparse
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

import originals
from cli import InputError, data_set, filename, reason
from files import FORMAT, atomic, clear, holds_keys, is_drawn, read_lines, read_yaml, recognised
from model import JointEmbedding, build_model, build_vocabulary
from options import COMMAND_LINE, MAY_CHANGE, parser, resolve
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
    logs, events, and the results and pictures that evaluate.py and show.py made of it. Other files stay."""
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
    path = os.path.join(source if os.path.isdir(source) else os.path.dirname(source), "model_best.pt")
    found = best_rsum and os.path.isfile(path) and load_checkpoint(path)["state"]["best_rsum"] == best_rsum
    return path if found else None


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


# Which files hold results of one subject, and of a comparison.
is_results = holds_keys("checkpoints", "data_name", "split", "images", "captions", "protocols", optional=(
    "similarity", "chance", "notes", "best_ranks", "absent", "neighbours", "unknown_words", "uncertainty"))

def load_checkpoint(path: str, name: str = "model_best.pt", vocab: str | None = None) -> dict:
    """Read a run folder's checkpoint or a checkpoint file, without running code from it; InputError if it is not one.

    A checkpoint of the original VSE++ or VSRN is converted; it needs its vocabulary, the JSON file `vocab`.
    """
    path = os.path.join(path, name) if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise InputError(f"there is no checkpoint {path}; give a run folder that holds {name}, or a file")
    stored = originals.read(path)
    if originals.is_original(stored):
        return original(stored, path, vocab)
    if not isinstance(stored, dict) or not {"format", "options", "vocabulary", "model"} <= set(stored):
        raise InputError(f"{path} is no checkpoint of this project; give one that train.py wrote")
    if stored["format"] != FORMAT:
        told = stored["format"] if type(stored["format"]) is int else f"of type {type(stored['format']).__name__}"
        raise InputError(f"{path} has checkpoint format {told}, this version reads format {FORMAT}; use the version that wrote "
                         "it, or train again")
    check_contents(stored, path)
    stored["options"] = modern(stored["options"], path)
    for weights in (stored["model"], stored.get("average", {})):        # the BatchNorm of jWAE's latents had another name
        for name in [name for name in weights if "_tower.whiten." in name]:
            weights[name.replace(".whiten.", ".latent_norm.")] = weights.pop(name)
    return stored


def original(stored: dict, path: str, vocab: str | None) -> dict:
    """An original's checkpoint converted with the vocabulary of a file, as far as the two can be seen to belong together."""
    given = vocab and Vocabulary.load(vocab)
    if given and (given.origin or "").startswith("built"):
        raise InputError(f"{path} cannot belong to the vocabulary {vocab}, which was {given.origin}: the originals number "
                         "words in an order that cannot be built again, so every word would get another one's vector; convert "
                         "the vocabulary that it was trained with (python vocab.py convert OLD NEW.json)")
    unchecked = (f"{path} holds no words: its vocabulary is taken to be {vocab} since that has as many; whether they stand in "
                 "its order is unchecked, and recalls near chance would say that they do not")
    return {**originals.convert(stored, given and given.words, path), "notes": [unchecked]}


def check_contents(stored: dict, path: str) -> None:
    """Refuse a checkpoint whose parts are not of the kinds that train.py writes: what is read of it later relies on them."""
    plain = (str, int, float, bool, type(None))
    state, data = stored.get("state", {}), stored.get("data", {})
    kinds = {
        "options": isinstance(stored["options"], dict) and all(
            isinstance(key, str) and isinstance(value, plain) for key, value in stored["options"].items()),
        "vocabulary": isinstance(stored["vocabulary"], list) and all(isinstance(word, str) for word in stored["vocabulary"]),
        "model": isinstance(stored["model"], dict) and all(
            isinstance(key, str) and torch.is_tensor(value) for key, value in stored["model"].items()),
        "state": isinstance(state, dict) and {"epoch", "best_rsum"} <= set(state) and all(
            type(value) in (int, float) for value in state.values()),
        "data": isinstance(data, dict) and isinstance(data.get("extractors") or {}, dict)}
    wrong = next((name for name, right in kinds.items() if not right), None)
    if wrong:
        raise InputError(f"{path} holds something else under '{wrong}' than train.py writes; it was changed or is of another "
                         "program, so take another one or train again")


def load_weights(model: JointEmbedding, stored: dict, path: str = "the checkpoint") -> None:
    mine, theirs = ({name: tuple(x.shape) for name, x in state.items()} for state in (model.state_dict(), stored["model"]))
    wrong = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    if wrong:
        shapes = [found.get(wrong[0], "absent") for found in (theirs, mine)]
        raise InputError(f"the weights of {path} are not those of a model of these options ({wrong[0]} is {shapes[0]} there "
                         f"and {shapes[1]} here, {len(wrong)} differ); give the sizes, heads, encoders and terms of its "
                         "config.yaml")
    model.load_state_dict(stored["model"])


def load_model(stored: dict, path: str = "the checkpoint") -> tuple[JointEmbedding, Vocabulary, argparse.Namespace]:
    """The model of a checkpoint, in eval mode on the CPU, its vocabulary and its options."""
    check_values(stored["options"], path)
    opt = parser().parse_args([])                           # of options that are younger than the checkpoint
    resolve(opt)
    vars(opt).update(stored["options"])
    vocab = build_vocabulary(opt, stored["vocabulary"])
    try:
        model = build_model(opt, vocab, pretrained=False)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:    # each value is right, not all together
        raise InputError(f"the options of {path} describe no model ({reason(error)}); it was changed, so take another one or "
                         "train again") from error
    load_weights(model, stored, path)
    return model.eval(), vocab, opt


def config_arguments(path: str, p: argparse.ArgumentParser) -> list[str]:
    """The options of a YAML file as command-line words, so that they are checked like typed ones.

    A run's config.yaml gives the options that it was asked for, from which others follow, and never its folder.
    """
    try:
        values = read_yaml(path)
    except InputError as error:
        raise InputError(f"--config {error}") from error
    if isinstance(values, dict) and isinstance(values.get("options"), dict):
        values = values["asked"] if isinstance(values.get("asked"), dict) else values["options"]
        values = {name: value for name, value in values.items() if name not in COMMAND_LINE}
    values = modern(values, path) if isinstance(values, dict) else values
    known = {action.dest: action for action in p._actions if action.dest != "help"}
    if not isinstance(values, dict) or set(values) - set(known):
        wrong = sorted(map(str, set(values) - set(known))) if isinstance(values, dict) else [type(values).__name__]
        raise InputError(f"--config {path} holds {ascii(wrong[0])[:60]}, which is no option; options are those of train.py "
                         "--help")
    words = []
    for name, value in values.items():
        if name in COMMAND_LINE:
            raise InputError(f"--config {path} holds '{name}', which only the command line can say, so that a file of options "
                             f"never names or replaces a run; leave it out and give --{name}")
        if isinstance(value, (dict, list)):
            raise InputError(f"--config {path}: {name} is a {type(value).__name__}; give a single value")
        if is_switch(known[name]):
            if value is not None and not isinstance(value, bool):
                raise InputError(f"--config {path}: {name} is {ascii(value)[:40]}, and a switch is true or false, without "
                                 "quotes")
            off = [f"--no-{name}"] * isinstance(known[name], argparse.BooleanOptionalAction)
            words += [f"--{name}"] if value else off if value is False else []
        elif value is not None:
            words += [f"--{name}={value}"]
    return words


def is_switch(action: argparse.Action) -> bool:
    return action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction)


def check_values(stored: dict, path: str) -> None:
    """Refuse options of a checkpoint that the command line would not have taken: a model of them cannot be built."""
    known = {action.dest: action for action in parser()._actions}
    for name, value in stored.items():
        action = known.get(name)
        if action is None or name in MAY_CHANGE or (value is None and action.default is None):
            continue
        try:
            right = (isinstance(value, bool) if is_switch(action)
                     else isinstance(value, str) if action.type in (filename, data_set)
                     else not isinstance(value, bool) and (action.type or str)(str(value)) == value)
        except (argparse.ArgumentTypeError, ValueError):
            right = False
        if not right or action.choices is not None and value is not None and value not in action.choices:
            raise InputError(f"{path} has the option {name} = {ascii(value)[:40]}, which train.py would not take; it was "
                             "changed, so take another checkpoint")


def modern(options: dict, path: str) -> dict:
    """Options of an earlier state of this code by today's names. Raises InputError where this code has no such model."""
    if options.get("region_norm") == "features":            # until the first norm of VSRN's graph had its size
        if options.get("img_enc") == "vsrn":
            raise InputError(f"{path} is a VSRN whose first norm left regions of norm 1, which this version has not "
                             "(--region_norm entries makes them sqrt(D)); evaluate it with the version that trained it, or "
                             "train again")
        options = {**options, "region_norm": "entries"}
    if "latent_bn" in options:                              # until then jWAE's priors were counted times the batch
        batch_norm = {True: "batch", False: "none"}.get(options["latent_bn"])
        weights = {name: options[name] * options.get("batch_size", 128) for name in ("prior_images", "prior_captions")
                   if isinstance(options.get(name), float) and options[name]}
        options = {**options, "latent_norm": batch_norm or ("batch" if weights else None), **weights}
        del options["latent_bn"]
    return options
