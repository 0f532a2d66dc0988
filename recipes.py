"""Options that come from files: a --config, the run that --resume goes on with, the checkpoint that a model is built from.

They are turned into words of the command line, so that one place, options.py, knows what may stand there.
"""
import argparse
import os
import sys

from cli import InputError, data_set, filename
from files import read_yaml
from options import COMMAND_LINE, MAY_CHANGE, default_run, parser, resolve
from runs import is_run
from subjects import load_checkpoint, modern


class Options(argparse.Namespace):
    """The options of train.py, resolved. `asked`, which is not among vars(): the same as they were asked for."""
    __slots__ = ("asked",)


def parse_args(argv=None) -> Options:
    """Options of the command line, resolved: heads, objective and run folder are filled in. Exits on wrong ones."""
    argv = list(sys.argv[1:] if argv is None else argv)
    p = parser()
    opt = p.parse_args(argv, Options())
    try:
        if opt.config:
            opt = p.parse_args(config_arguments(opt.config, p) + argv, Options())
        if opt.resume is not None:
            opt = resumed_options(p, opt, argv)
        opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}
        resolve(opt)
    except InputError as error:
        p.error(str(error))
    return opt


def resumed_options(p: argparse.ArgumentParser, given: Options, argv: list[str]) -> Options:
    """The options of a run that goes on: those of its checkpoint and, of what may change, those given. `resume` becomes the
    checkpoint to read, `logger_name` the folder to write to."""
    start = given.resume or given.logger_name or default_run(given)
    checkpoint = load_resumable(start)
    stored = checkpoint["options"]
    check_values(stored, start)
    p.set_defaults(**stored)
    opt = p.parse_args(config_arguments(given.config, p) + argv if given.config else argv, Options())
    opt.resume, opt.logger_name = start, given.logger_name or run_folder(start)
    resolve(opt)
    changed = [key for key in stored if key in vars(opt) and key not in MAY_CHANGE
               and getattr(opt, key) not in (stored[key], "auto")]                  # auto: what the data need, as before
    if changed:
        raise InputError(f"--{changed[0]} {getattr(opt, changed[0])} differs from the {stored[changed[0]]} of the run in "
                         f"{start}; a resumed run keeps its options, so leave it out or start a new run with --init_from")
    newest = os.path.join(opt.logger_name, "checkpoint.pt")
    if os.path.isfile(start) and os.path.isfile(newest) and not os.path.samefile(start, newest):
        reached, at = (c["state"]["iteration"] for c in (load_checkpoint(newest), checkpoint))
        raise InputError(f"{opt.logger_name} has a checkpoint.pt of its own, at step {reached:,} of the run where {start} is "
                         f"at step {at:,}; go on from {start} in a new folder with --logger_name NEW, or leave the file's name "
                         "out to go on from checkpoint.pt")
    return opt


def load_resumable(path: str) -> dict:
    """A checkpoint that holds all that going on needs. Raises InputError."""
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "checkpoint.pt")) and is_run(path):
        raise InputError(f"{path} has no checkpoint.pt: it was stopped before its first step, so there is nothing to go on "
                         "from; start it again with the command that its config.yaml holds")
    stored = load_checkpoint(path, "checkpoint.pt")
    lacking = [name for name in ("optimizer", "scaler", "rng", "state", "data") if name not in stored]
    lacking += [name for name in ("step", "iteration", "loss_sum", "loss_count") if name not in stored.get("state", {})]
    if lacking:
        raise InputError(f"{path} holds a model but no {lacking[0]}, so training cannot go on exactly; resume the run's "
                         "checkpoint.pt (--resume RUN), or start a new run from these weights with --init_from")
    return stored


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


def run_folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.isfile(path) else path
