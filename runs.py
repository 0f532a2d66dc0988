"""Runs: their folders, the data that they are trained on, and the options that come from files.

A run folder holds a description, logs and checkpoints. This file says whether a folder is one, what
a new run may replace in it, and how a run goes on.
"""
import argparse
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import torch
import yaml

import metrics
from checkpoints import MAY_CHANGE, check_values, load_checkpoint
from cli import InputError, check, reason
from data import Split, check_extractors, read_split
from files.log import Log
from files.reading import read_yaml, readable
from files.writing import atomic, clear, same_file, save_state
from methods.two_branch import sibling_order
from methods.unpaired import Unpaired, build_unpaired, choose_pairs
from model import build_vocabulary
from options import (
    COMMAND_LINE,
    Options,
    check_fits,
    default_run,
    defaults,
    fit_to_data,
    list_options,
    resolve,
    spell,
    training_parser,
)
from vocab import Vocabulary

NOT_KEPT = COMMAND_LINE - {"logger_name"}     # options that no checkpoint holds
CHECKPOINTS = ("checkpoint.pt", "model_best.pt")
# Files that evaluate.py and show.py write into a run folder, and the events of tensorboard.
MADE_OF_RUN = re.compile(
    r"(results|calibration)(_.+)?\.json|retrieval\.png|events\.out\.tfevents\..+"
    r"|(uncertainty|uncertain_images|uncertain_captions|confidence|people)(_.+)?\.png")


def description_in(folder: str) -> dict:
    """What a folder's config.yaml holds; nothing where it was lost."""
    try:
        stored = read_yaml(os.path.join(folder, "config.yaml"))
    except InputError:
        return {}
    return stored if isinstance(stored, dict) else {}


def is_run(folder: str) -> bool:
    """Whether train.py made a folder: its config.yaml says so, or, where that was lost, its
    checkpoint.pt."""
    if {"command", "versions", "data", "options"} <= set(description_in(folder)):
        return True
    path, log = (os.path.join(folder, name) for name in ("checkpoint.pt", "log.jsonl"))
    return os.path.isfile(path) and os.path.isfile(log) and readable(load_checkpoint, path)


def check_new(folder: str, overwrite: bool) -> None:
    """Raise InputError unless a new run may go into a folder: one that is not there, an empty one,
    a run that never took a step or, with `overwrite`, any run. A folder of other files is nobody's
    to clear."""
    if not os.path.lexists(folder):
        return
    check(os.path.isdir(folder), f"{folder} is no folder; name another one with --logger_name")
    files = [name for name in sorted(os.listdir(folder)) if not name.endswith(".part")]
    if not files:
        return
    check(is_run(folder), f"{folder} holds {files[0]} and is no run that train.py made; name a "
                          "folder of its own with --logger_name")
    check(overwrite or not set(CHECKPOINTS) & set(files),
          f"{folder} already holds a run; go on with --resume, replace it with --overwrite, or "
          "name another folder with --logger_name")


def clear_old(folder: str) -> None:
    """Remove the files of a run: checkpoints first, so that none ever stands under a new
    description, then logs and `MADE_OF_RUN`. Other files stay."""
    made = [name for name in sorted(os.listdir(folder)) if MADE_OF_RUN.fullmatch(name)]
    for name in [*CHECKPOINTS, "log.txt", "log.jsonl", *made]:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            os.remove(path)


class Folder:
    """The folder of a run: its description, logs and checkpoints. resume: the checkpoint or run to
    go on from. program: trains it. Raises InputError where the folder cannot be written to or gone
    on from."""

    def __init__(self, path: str, resume: str | None, overwrite: bool, program: str = "train.py"):
        self.path, self.resume, self.program = path, resume, program
        self.goes_on = resume is not None and same_file(path, run_folder(resume))
        if not self.goes_on:
            check_new(path, overwrite)
        else:
            check(is_run(path), f"--resume {resume} lies in a folder that is no run; name a new "
                                "folder to go on in with --logger_name")
        self.checkpoint = None if resume is None else load_resumable(resume)

    def begin(self, run) -> None:
        """Describe a run (train.Training) in the folder, and open its log."""
        if self.goes_on:
            self.describe(run)
        else:
            self.replace(run)
        self.log = Log(self.path, run.state, run.opt.num_epochs)

    def replace(self, run) -> None:
        """Begin a new run: write the first checkpoint, so that the run can always go on, the
        description, and the best model so far of the run gone on from. What a run before has left
        goes when that checkpoint is on the disk."""
        best = self.resume and best_of(self.resume, run.state["best_rsum"])
        if not best:
            run.state.update(best_rsum=0.0, best_hbr=0.0, best_r1=-1.0)
        path = os.path.join(self.path, "checkpoint.pt")
        with atomic(path, "wb") as f:
            try:
                torch.save(run.content(), f)
                f.flush()
                os.fsync(f.fileno())
            except (OSError, RuntimeError) as error:
                raise InputError(f"{path} could not be written ({reason(error)}); nothing was "
                                 "replaced: make room, or name a folder elsewhere with "
                                 "--logger_name") from error
            clear_old(self.path)
            self.describe(run)
            if best:
                copy = os.path.join(self.path, "model_best.pt")
                with open(best, "rb") as old, atomic(copy, "wb") as new:
                    shutil.copyfileobj(old, new)

    def describe(self, run) -> None:
        """Write config.yaml, which holds the command, where the code stood, the data, the options
        as asked for and as resolved, and vocab.json."""
        home = os.path.dirname(os.path.abspath(__file__))
        commit = subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], cwd=home, text=True,
                                capture_output=True, check=False)
        command = shlex.join(["python", *self.program.split(), *sys.argv[1:]])
        description = {
            "command": command, "git_commit": commit.stdout.strip() or "unknown",
            "versions": {"python": sys.version.split()[0], "torch": str(torch.__version__),
                         "numpy": np.__version__},
            "data": {"train": run.data.train.fingerprint(), "dev": run.data.dev.fingerprint()},
            "asked": run.opt.asked, "options": vars(run.opt)}
        first = description_in(self.path) if self.goes_on else {}
        if first:                           # else it was lost, and the checkpoint knows the options
            description |= {"resumed_with": [*(first.get("resumed_with") or []), command], **{
                name: first[name] for name in ("command", "asked") if name in first}}
        with atomic(os.path.join(self.path, "config.yaml")) as f:
            yaml.safe_dump(description, f, sort_keys=False)
        run.data.vocab.save(os.path.join(self.path, "vocab.json"))
        for name in CHECKPOINTS:            # that a process wrote when it was killed
            clear(os.path.join(self.path, name))

    def save(self, run, name: str = "checkpoint.pt", whole: bool = True) -> None:
        save_state(run.content(whole), os.path.join(self.path, name), "make room and --resume")

    def log_step(self, run, terms: dict[str, float], pairs: int, batch_time: float,
                 data_time: float, terminal: bool) -> None:
        """Write a line on a step. Times are in seconds."""
        state, steps, loss = run.state, run.data.steps, sum(terms.values())
        several = len(terms) > 1
        parts = " = " + " + ".join(f"{name} {term:.4g}" for name, term in terms.items())
        left = batch_time / 60 * (steps - state["step"])                            # minutes
        in_all = left + batch_time / 60 * steps * (self.log.epochs - state["epoch"] - 1)
        self.log.say(f"{self.log.where(state, steps)}: loss {loss:.4f}{parts * several}, "
                     f"{pairs / batch_time:,.0f} pairs/s, {left:.1f} min left in epoch, "
                     f"{in_all:.1f} in all", terminal=terminal)
        self.log.record(state["iteration"], {
            "epoch": state["epoch"] + 1, "step": state["step"], "Eit": state["iteration"],
            "Le": loss, "lr": run.learner.optimizers["optimizer"].param_groups[0]["lr"],
            "batch_time": batch_time, "data_time": data_time, **(terms if several else {})},
            kind="step")

    def stopped(self, run) -> None:
        """Write a checkpoint, and say how to go on."""
        self.save(run)
        self.log.say(f"stopped at {self.log.where(run.state, run.data.steps)}; go on with: "
                     f"{sys.executable} {self.program} --resume {self.path}")

    def done(self, state: dict, select: str) -> int:
        """Say how to evaluate the run. Returns the exit status, 1 where no model came out."""
        evaluate = self.program.replace("train", "evaluate")
        if os.path.isfile(os.path.join(self.path, "model_best.pt")):
            hbr = f", HBR {state['best_hbr']:.2f}, which chose it" if select == "hbr" else ""
            self.log.say(f"done: best dev rsum {state['best_rsum']:.1f}{hbr}; evaluate with: "
                         f"python {evaluate} --checkpoint {self.path}")
            return 0
        if state["best_rsum"]:
            self.log.say(f"done, but model_best.pt, of dev rsum {state['best_rsum']:.1f}, is not "
                         f"in {self.path} any more; evaluate the last weights with: python "
                         f"{evaluate} --checkpoint {self.path}/checkpoint.pt")
        else:
            self.log.say(f"done, but dev rsum was 0 after every epoch, so {self.path} holds no "
                         "model: nothing of what was learned finds one match; look at log.txt and "
                         "the data (python data.py check)")
        return 1


def best_of(source: str, best_rsum: float) -> str | None:
    """The file of the best model of the run gone on from, unless it is of a later epoch."""
    path = os.path.join(run_folder(source), "model_best.pt")
    if not best_rsum or not os.path.isfile(path):
        return None
    return path if load_checkpoint(path)["state"]["best_rsum"] == best_rsum else None


def config_arguments(path: str, p: argparse.ArgumentParser) -> list[str]:
    """The options of a YAML file as command-line words, so that they are checked like typed ones.

    A run's config.yaml gives the options that it was asked for, from which others follow, and never
    its folder.
    """
    values, where = read_yaml(path), f"--config {path}"
    check(isinstance(values, dict), f"{where} holds no options by their names")
    if isinstance(values.get("options"), dict):
        values = values["asked"] if isinstance(values.get("asked"), dict) else values["options"]
        known = list_options(p)
        values = {name: value for name, value in values.items() if name in known and name not in COMMAND_LINE}
    for name in values:
        check(name not in COMMAND_LINE,
              f"{where} holds '{name}', which only the command line can say, so that a file of options never names or "
              f"replaces a run, nor starts a command; leave it out and give --{name}")
    return spell(values, p, where)


# ---- what a run is trained on

@dataclass
class Data:
    """What a run is trained on and validated with, and how its batches are made."""
    train: Split
    dev: Split
    vocab: Vocabulary
    source: str                       # where the vocabulary's words come from
    tokens: dict                      # of "train" and "dev": the captions as the model reads them
    pairs: np.ndarray                 # (m,) training captions whose images are known
    unpaired: Unpaired | None
    fingerprints: dict                # what a run that goes on must find again
    batch_size: int                   # how many of `order` a batch holds
    seed: int
    workers: int = 0
    crop_size: int | None = None
    siblings: bool = False            # captions of an image stand side by side

    @functools.cached_property
    def steps(self) -> int:
        """Per epoch."""
        return -(-len(self.order(0)) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The captions of an epoch: `pairs` shuffled."""
        rng = np.random.default_rng([self.seed, epoch])
        if self.siblings:
            return self.pairs[sibling_order(self.train.caption_image[self.pairs], rng)]
        return self.pairs[rng.permutation(len(self.pairs))]

    def describe(self) -> str:
        """What is learned from and validated on, in a line."""
        chance = metrics.chance(self.dev.caption_image, len(self.dev.images))["rsum"]
        return (f"{len(self.pairs):,} training pairs of {len(self.train.images):,} images, "
                f"{len(self.dev.images):,} dev images (rsum by chance {chance:.1f})")

    def batches(self, state: dict):
        """The batches of the current epoch that are still to come."""
        epoch = state["epoch"]
        how = {"workers": self.workers, "seed": (self.seed, epoch), "skip": state["step"]}
        tokens, order = self.tokens["train"], self.order(epoch)
        batches = self.train.batches(tokens, order, self.batch_size,
                               crop_size=self.crop_size, **how)
        for iteration, batch in enumerate(batches, state["iteration"]):  # state may lag behind
            yield batch._replace(unpaired=self.unpaired and self.unpaired.batch(iteration))


def build_data(opt, start: dict | None) -> Data:
    """Read the splits, and settle by them what the options left open. start: a checkpoint whose
    words are taken, and which goes on where --resume is given. Raises InputError where data,
    options and checkpoint do not fit."""
    train, dev = (read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval,
                             dev_images=opt.dev_images, text_features=opt.text_features)
                  .require_sound() for name in ("train", "dev"))
    for split in (train, dev):
        check(len(split.images) >= 2,
              f"{split.source} has one image, and there is nothing that a caption of it could be "
              f"taken for by mistake; a {split.name} split needs two or more")
    fit_to_data(opt, train.images, train.text)
    check_fits(opt, dev.images, dev.text, "the model")
    fingerprints = {**train.fingerprint(), "dev": dev.fingerprint()}
    extractors = start["data"].get("extractors") if start and "data" in start else None
    check_extractors(extractors, train, opt.text_features, str(opt.init_from))
    words, source = ((start["vocabulary"], opt.init_from or opt.logger_name) if start
                     else build_word_list(opt, train))
    vocab = build_vocabulary(opt, words)
    tokens = {"train": train.encode(vocab), "dev": dev.encode(vocab)}
    pairs = choose_pairs(train, opt.supervised_fraction, opt.seed)
    unpaired = build_unpaired(opt, train, tokens["train"], pairs, vocab)
    if unpaired and unpaired.data:
        fingerprints["unpaired"] = unpaired.data
    stored = {} if opt.resume is None else start["data"]
    check(all(stored.get(name, x) == x for name, x in fingerprints.items()),
          f"the training data in {os.path.join(opt.data_path, opt.data_name)}, or the unpaired "
          f"ones, are not those of the run in {opt.logger_name}; give its --data_path, or start a "
          "new run with --init_from")
    return Data(train, dev, vocab, source, tokens, pairs, unpaired, fingerprints,
                opt.batch_size, opt.seed, opt.workers, opt.crop_size, opt.loss == "two_branch")


def build_word_list(opt, train: Split) -> tuple[list[str], str]:
    """The words of the vocabulary file of the data set if there is one, else of its captions; and
    which of the two."""
    path = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
    if os.path.isfile(path):
        for name in ("vocab_threshold", "vocab_splits"):
            check(getattr(opt, name) == training_parser().get_default(name),
                  f"--{name} {getattr(opt, name)} counts words of the captions, and {path} lists "
                  "the words already; leave it out, delete the file, or name another folder with "
                  "--vocab_path")
        return Vocabulary.load(path).words, path
    splits = [train if name == "train" else
              read_split(opt.data_path, opt.data_name, name, dev_images=0)
              for name in opt.vocab_splits.split(",")]
    captions = (words for split in splits for words in split.words)
    return Vocabulary.build(captions, opt.vocab_threshold).words, "the captions"


# ---- options that come from a file: a --config, the run that --resume goes on with

def resumed_options(p: argparse.ArgumentParser, given: Options, argv: list[str]) -> Options:
    """The options of a run that goes on: those of its checkpoint and, of what may change, those
    given in `argv`. `resume` becomes the checkpoint to read, `logger_name` the folder to write
    to."""
    start = given.resume or given.logger_name or default_run(given)
    checkpoint = load_resumable(start)
    known = defaults(p)
    stored = {name: value for name, value in checkpoint["options"].items()
              if name in known and name not in NOT_KEPT}   # older ones hold others, too
    check_values(stored, start)
    p.set_defaults(**stored)
    opt = p.parse_args(argv, Options())
    opt.resume, opt.logger_name = start, given.logger_name or run_folder(start)
    resolve(opt)
    opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}
    changed = [key for key in stored if key in vars(opt) and key not in MAY_CHANGE
               and getattr(opt, key) not in (stored[key], "auto")]  # auto: what the data need
    if changed:
        raise InputError(f"--{changed[0]} {getattr(opt, changed[0])} differs from the "
                         f"{stored[changed[0]]} of the run in {start}; a resumed run keeps its "
                         "options, so leave it out or start a new run with --init_from")
    newest = os.path.join(opt.logger_name, "checkpoint.pt")
    if os.path.isfile(start) and os.path.isfile(newest) and not os.path.samefile(start, newest):
        reached, at = (c["state"]["iteration"] for c in (load_checkpoint(newest), checkpoint))
        raise InputError(f"{opt.logger_name} has a checkpoint.pt of its own, at step {reached:,} "
                         f"of the run where {start} is at step {at:,}; go on from {start} in a new "
                         "folder with --logger_name NEW, or leave the file's name out to go on "
                         "from checkpoint.pt")
    return opt


def load_resumable(path: str) -> dict:
    """A checkpoint that holds all that going on needs. Raises InputError."""
    stored = load_checkpoint(path, "checkpoint.pt")
    parts = {**stored, **stored.get("state", {})}
    for name in ("optimizer", "rng", "state", "data", "step", "iteration", "loss_sum",
                 "loss_count"):
        check(name in parts, f"{path} holds a model but no {name}, so training cannot go on "
                             "exactly; resume the run's checkpoint.pt (--resume RUN), or start a "
                             "new run from these weights with --init_from")
    return stored


def run_folder(path: str) -> str:
    """The folder of a run, or of a checkpoint file."""
    return os.path.dirname(path) or "." if os.path.isfile(path) else path


# ---- several commands in one

def called(*words: str) -> None:
    """Runs a command of this repository, which says what it does. Raises InputError where it fails."""
    print(f"$ python {' '.join(words)}", flush=True)
    here = os.path.dirname(os.path.abspath(__file__))
    own = [os.path.join(here, word) if word.endswith(".py") else word for word in words]
    done = subprocess.run([sys.executable, *own], check=False, env=os.environ | {"PYTHONPATH": here})
    check(done.returncode == 0,
          f"python {' '.join(words)} failed, as it says above; mend that and call this again")
