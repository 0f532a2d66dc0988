"""Commands and files: errors as sentences, types of arguments, safe reading and whole writing.

`start` sets the number of threads and how they wait, which numpy and torch read when they are
loaded. So this file imports the standard library alone, and a function that needs another package
imports it itself.

`need` and the `read_*` functions raise InputError where a file is missing or not what it should be.
`output` says whether results may be written somewhere. `atomic` and the `save_*` functions write a
file whole or not at all.
"""

import argparse
import contextlib
import difflib
import errno
import hashlib
import importlib.util
import io
import json
import math
import os
import re
import reprlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    import yaml

CHECKOUT = os.path.dirname(os.path.abspath(__file__))
LARGEST_NUMBER = 2**63 - 1  # the largest whole number that an option takes
DEVICES = ["auto", "cpu", "cuda", "mps"]  # of --device; mps: the GPU of a Mac
# --device as tables of options declare it, see options.py; `torch_device` reads its value.
DEVICE_OPTION = (DEVICES, "auto", "where to compute; auto: CUDA if present")
MAX_MESSAGE = 1000  # characters; a longer message repeats what a file or a user gave
MAX_REASON = 160  # characters of an exception's text within a message
# Control characters, also those that turn the direction of writing.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CONTROLS_BUT_LINE_ENDS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # no tab, no end

FORMAT = 1  # of checkpoint.pt and model_best.pt
# Errors of numpy and torch that only a full disk causes, and that do not say so.
FULL_DISK = re.compile(
    "[0-9]+ requested and [0-9]+ written|PytorchStreamWriter failed writing|inline_container.cc"
)
LITTLE_SPACE = 1 << 24  # bytes; with less than this free, such an error means a full disk
MAX_NAME = 235  # bytes of a file's name: of 255, without those that `atomic` adds
MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 100_000  # values, with those that are repeated
HELP = (
    "docs/data.md lists the sources, `python data.py check` says what is there, `python -m demo` "
    "writes demo data"
)
# Files that train.py writes into a run folder and reads again.
CHECKPOINTS = {"checkpoint.pt", "model_best.pt"}
RUN_FILES = CHECKPOINTS | {"config.yaml", "vocab.json", "log.txt", "log.jsonl", "noise.npy"}


# ---- errors as sentences


class InputError(argparse.ArgumentTypeError, ValueError):
    """Unusable argument, or file that it names: the value, what is allowed, the fix.

    The message is one line of at most MAX_MESSAGE characters, its control characters are escaped.
    """

    def __init__(self, message: str):
        line = cut_middle(" ".join(message.split()), MAX_MESSAGE)
        super().__init__(CONTROL_CHARACTERS.sub(escape, line))


def escape(match: re.Match) -> str:
    """Spell the character that a regular expression found as in Python's source."""
    return ascii(match[0])[1:-1]


def cut_middle(text: str, most: int) -> str:
    """Cut the middle of a text that has more than `most` characters."""
    if len(text) <= most:
        return text
    end = most // 3  # of the sentence, which says what to do
    return f"{text[: most - end - 5]} ... {text[-end:]}"


class _Short(reprlib.Repr):
    """Spells any value in bounded time and space, also one that holds itself, or a part often."""

    def __init__(self):
        super().__init__()
        self.maxlevel = 2
        self.maxdict = 3
        self.maxlist = 3
        self.maxtuple = 3
        self.maxset = 3

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 1000:  # Python refuses to write out very long numbers
            return f"a whole number of {x.bit_length():,} bits"
        return super().repr_int(x, level)

    def repr_instance(self, x, level: int) -> str:
        return f"<{type(x).__name__}>"


def spell_value(value, most: int = 60) -> str:
    """Spell a value of a file or an argument for a message, in at most `most` ASCII characters."""
    if isinstance(value, str):
        text = ascii(value[:most])
        if len(value) > most:
            text += "..."
    elif isinstance(value, (bool, float, type(None))):
        text = repr(value)
    else:
        text = _Short().repr(value).encode("ascii", "backslashreplace").decode()
    return shorten(text, most)


def shorten(text: str, most: int = 60) -> str:
    """Cut the end of a text that has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most - 3]}..."


def check(fits, sentence: str) -> None:
    """Raise InputError with the sentence unless `fits`."""
    if not fits:
        raise InputError(sentence)


def reason(error: BaseException) -> str:
    """Return the text of an exception in one line of at most MAX_REASON characters."""
    kind = type(error).__name__
    said = re.sub(r" <_io.*?>|\[Errno -?[0-9]+\] ", "", str(error))  # Pillow names the stream
    text = " ".join((said or kind).split())
    if isinstance(error, KeyError):
        text = f"{kind} {text}"
    return shorten(text, MAX_REASON)


# ---- arguments


class HelpWithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows the default of every option that has one."""

    def _get_help_string(self, action):
        default = action.default
        if default is None or default is False or default == []:  # 0 is a default like any other
            return action.help
        if isinstance(default, list):  # as words of a command line
            return f"{action.help} (default: {' '.join(map(str, default))})"
        return super()._get_help_string(action)


class Arguments(argparse.ArgumentParser):
    """A parser whose errors are one line without the usage text.

    Args:
        advice: {flag of another code base: what to do here instead}, for the error about it.
        command: name of one of several commands of a program.
        settings: more arguments of argparse.ArgumentParser.
    """

    def __init__(
        self, description: str, advice: dict[str, str] | None = None, command: str = "", **settings
    ):
        program = os.path.basename(sys.argv[0])
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec:
            program = f"python -m {spec.name.removesuffix('.__main__')}"
        usual = {
            "prog": f"{program} {command}".strip(),
            "description": description,
            "allow_abbrev": False,
            "formatter_class": HelpWithDefaults,
        }
        super().__init__(**{**usual, **settings})
        self.advice = advice or {}

    def exit(self, status: int = 0, message: str | None = None):
        """End the process, quietly also where nobody reads what --help has printed."""
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            leave_closed_pipe()
        super().exit(status, message)

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {self.explain(message)}\n")

    def explain(self, message: str) -> str:
        """Return argparse's message in one line, with what was probably meant."""
        if message.startswith("unrecognized arguments: "):
            message += self.advise_unknown_flags(message.split()[2:])

        choice = re.fullmatch(
            r"(.*invalid choice: )'(.*)' \(choose from (.*)\)", message, re.DOTALL
        )
        if choice:
            start, given, listed = choice.groups()
            near = suggest(given, re.findall("[^', ]+", listed))
            message = f"{start}{spell_value(given)}"
            if near:
                message += f"; did you mean '{near}'?"
            else:
                message += f" (choose from {listed})"
        return cut_middle(" ".join(message.split()), MAX_MESSAGE)

    def advise_unknown_flags(self, words: list[str]) -> str:
        """Say what to do in place of unknown words of a command line, as the end of a sentence."""
        advice = ""
        questions = ""
        for word in words:
            flag = word.split("=")[0]
            if flag in self.advice:
                advice += f"; {flag}: {self.advice[flag]}"
            elif flag.startswith("--"):
                near = suggest(flag, self._option_string_actions)
                if near:
                    questions += f"; did you mean {near}?"
        return advice + questions

    def accept_name(self, other: str, name: str) -> None:
        """Take an option by an old or a foreign name, too, which --help does not list."""
        self._option_string_actions.setdefault(other, self._option_string_actions[name])

    def advise(self, name: str) -> str:
        """Return what to do in place of an unknown option, by its name without dashes.

        "" where nothing is known.
        """
        if not isinstance(name, str):
            return ""
        if f"--{name}" in self.advice:
            return self.advice[f"--{name}"]
        near = suggest(name, [action.dest for action in self._actions])
        if near is None:
            return ""
        return f"did you mean '{near}'?"


def add_device(p, only_for: str = "") -> None:
    """Add --device to a parser, or to a group of one; `torch_device` reads its value.

    only_for: what computes on a device, where not all does.
    """
    choices, default, help = DEVICE_OPTION
    if only_for:
        help = f"{only_for}: {help}"
    p.add_argument("--device", choices=choices, default=default, help=help)


def add_workers(p, most: int = 10) -> None:
    """Add --workers to a parser, or to a group of one. most: of its default, at most the cores."""
    default = count_workers(most)
    help = "processes that read photos"
    p.add_argument("--workers", type=workers, default=default, metavar="N", help=help)


def count_workers(most: int = 10) -> int:
    """Return the default of --workers: the cores, but not more than `most`."""
    return min(most, os.cpu_count() or 1)


def suggest(word: str, names) -> str | None:
    """Return the name that was probably meant by a word, or None.

    It is the name in other characters (VSE++, vsepp), with a slip, or with the same beginning
    (similarity: sim).
    """

    def simplify(name: str) -> str:
        return name.lower().replace("+", "p").lstrip("-")

    known = {simplify(name): name for name in names}
    given = simplify(word[:80])
    longer = [name for name in known if len(given) > 3 and name.startswith(given)]
    shorter = [name for name in known if len(name) > 2 and given.startswith(name)]
    near = [
        *difflib.get_close_matches(given, known, 1, cutoff=0.8),
        *sorted(longer, key=len),
        *sorted(shorter, key=len, reverse=True),
        *difflib.get_close_matches(given, known, 1),
    ]
    if not near:
        return None
    return known[near[0]]


# ---- types of arguments: each reads a word, or raises InputError


def limited(
    allowed: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    kind: type = float,
):
    """Return the type of a finite number x with least <= x <= most and above < x < below."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError, OverflowError):
            x = kind(text)
            if math.isfinite(x) and least <= x <= most and above < x < below:
                return x
        raise InputError(f"{spell_value(text)} is not {allowed}")

    return read


def up_to(most: int, least: int = 1):
    """Return the type of a whole number from `least` to `most`."""
    allowed = f"a whole number of at least {least}"
    if most < LARGEST_NUMBER:
        allowed += f" and at most {most:,}"
    return limited(allowed, least=least, most=most, kind=int)


number = limited("a finite number")
at_least_zero = limited("a number of at least 0", least=0)
weight = limited("a number of at least 0", least=0)  # of what is off at 0
above_zero = limited("a number above 0", above=0)
probability = limited("a number from 0 to 1", least=0, most=1)
below_one = limited("a number of at least 0 and less than 1", least=0, below=1)
fraction = limited("a number of more than 0 and at most 1", above=0, most=1)
natural = up_to(LARGEST_NUMBER, least=0)
positive = up_to(LARGEST_NUMBER)
at_least_two = up_to(LARGEST_NUMBER, least=2)
width = up_to(2**16)  # of a layer, an embedding or a photo; more would exhaust memory
depth = up_to(64)  # layers of a network, embeddings of an item
workers = up_to(256, least=0)  # processes


def flag(text: str) -> bool:
    """Stand for the type of an option without a value, which is off."""
    raise InputError(f"{spell_value(text)} follows an option that takes no value")


def sizes(text: str) -> str:
    """Parse sizes of hidden layers, such as 2000-1000. "0" means no layer."""
    if not re.fullmatch("0|[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})*", text):
        raise InputError(
            f"{spell_value(text)} is not a list of layer sizes; give numbers below "
            "100,000 joined by '-', as 2000-1000; 0: none"
        )
    return text


def filename(text: str) -> str:
    """Parse the name of a file or folder; ~ is the home folder, also in --option=~/x."""
    if not text:
        raise InputError("an empty name is not a file or folder")
    return os.path.expanduser(text)


def data_set(text: str) -> str:
    """Parse a data set's name: a folder below --data_path, and part of file names."""
    if os.path.normpath(text) == "." or os.path.isabs(text) or ".." in text.split("/"):
        raise InputError(
            f"{spell_value(text)} is not a name of a data set; give a folder below "
            "--data_path by its name, and the folder above it with --data_path"
        )
    return os.path.normpath(text)


def dev_for_val(text: str) -> str:
    """Return the name of a split, dev for val; also a type of arguments."""
    if text == "val":
        return "dev"
    return text


def split_name(text: str) -> str:
    """Parse a split's name, which is part of the names of its files."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise InputError(
            f"{spell_value(text)} is not a name of a split; give train, dev, test or testall"
        )
    return text


# ---- what a command reads and what it replaces


@dataclass
class FilesInUse:
    """Files that a command reads, and files that it was told to write; none may be both.

    A file is known by its device and inode, so a link or a hard link counts as the file behind it.
    """

    inputs: dict[tuple[int, int], str] = field(default_factory=dict)
    outputs: dict[tuple[int, int], str] = field(default_factory=dict)
    new_folders: list[str] = field(default_factory=list)  # made for outputs, the outermost first


def identify_file(path: str | int) -> tuple[int, int] | None:
    """Return device and inode of the file behind a path, or an open file's number.

    None where there is none.
    """
    try:
        stat = os.stat(path)
    except (OSError, ValueError):
        return None
    return stat.st_dev, stat.st_ino


def refuse_output(path: str, source: str) -> None:
    """Raise InputError: an output is the file `source`, which the command reads."""
    same = os.path.normpath(path) == os.path.normpath(source)
    what = "an input" if same else f"the same file as {source}, an input"
    raise InputError(f"{path} is {what}; choose a different output file")


in_use: FilesInUse | None = None  # of the command that runs, see `run`


# ---- the beginning and the end of a command


def start(first_line: str = "") -> None:
    """Prepare for the import of torch, before which it must be called.

    Exits with a sentence where torch is not installed. Prints `first_line` at once, since the
    import takes its time.
    """
    if importlib.util.find_spec("torch") is None:
        sys.exit(
            f"torch is not installed for {sys.executable}; use the interpreter of the environment, "
            ".venv/bin/python after `make setup`, or run `pip install -r requirements.txt`"
        )
    open_closed_streams()
    if first_line and not {"-h", "--help", "--methods", "--dry_run"} & {*sys.argv[1:]}:
        try:
            print(first_line, flush=True)
        except BrokenPipeError:
            leave_closed_pipe()
    limit_threads()
    # what torch lacks for the GPU of a Mac is computed on the processor; torch reads it when loaded
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")


def limit_threads() -> None:
    """Give torch as many threads as this process may use cores, none of which spins for long.

    Beside other work, spinning threads would wait for each other. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        # rounds in which a thread of libgomp waits before it sleeps
        os.environ.setdefault("GOMP_SPINCOUNT", "300")

    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # torch itself knows the affinity, and no container's quota
    group = "/sys/fs/cgroup"
    version_2 = (f"{group}/cpu.max",)
    version_1 = (f"{group}/cpu/cpu.cfs_quota_us", f"{group}/cpu/cpu.cfs_period_us")
    for paths in (version_2, version_1):
        with contextlib.suppress(OSError, ValueError):  # "max" or -1: no quota
            words = " ".join(open(path).read() for path in paths).split()
            allowed, period = map(int, words)
            if 0 < allowed < cores * period:
                os.environ.setdefault("OMP_NUM_THREADS", str(max(1, allowed // period)))


def open_closed_streams() -> None:
    """Open the null device in place of a stdout or stderr that the caller has closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


def leave_closed_pipe() -> None:
    """End the process quietly where nobody reads its output any more, as after `| head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + signal.SIGPIPE)


class EscapedStream:
    """A stream in which control characters are escaped, but for tabs and ends of lines.

    Names of files and texts of data sets are printed, and could move a terminal's cursor or set its
    title.
    """

    def __init__(self, stream):
        self.stream = stream

    def write(self, text: str) -> int:
        escaped = CONTROLS_BUT_LINE_ENDS.sub(escape, text)
        return self.stream.write(escaped)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


def run(prog: str, work, *args) -> int:
    """Call work(*args), a command's work; return its status, or 0 for None.

    An error that the user can fix ends the process with one line and status 1, Ctrl-C with 130,
    SIGTERM with 143.
    """
    global in_use
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a character that a terminal lacks must not end the command
            stream.reconfigure(errors="backslashreplace")
    if "torch" in sys.modules:
        compute_in_float32()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)

    before = in_use
    in_use = FilesInUse()
    stdout = sys.stdout
    sys.stdout = EscapedStream(stdout)
    try:
        status = work(*args)
        print(end="", flush=True)
        return status or 0
    except KeyboardInterrupt as stop:
        received = stop.args[0] if stop.args else signal.SIGINT
        name = signal.Signals(received).name
        print(f"{prog}: stopped by {name}; no file was left half written", file=sys.stderr)
        sys.exit(128 + received)
    except BrokenPipeError:
        leave_closed_pipe()
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        sys.exit(f"{prog}: {sentence}")
    finally:
        sys.stdout = stdout
        for folder in reversed(in_use.new_folders):
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(folder)
        in_use = before


def interrupt(number: int, frame) -> None:
    """Handle a signal as Ctrl-C is handled."""
    raise KeyboardInterrupt(number)


# Beginnings of errors of torch, whose types do not tell them apart, and what a user can do.
NO_MEMORY = re.compile("can't allocate|out of memory|failed to allocate")
LOST_WORKER = re.compile(
    r"DataLoader worker .*(killed by signal|exited unexpectedly|timed out)", re.DOTALL
)
SHARED_MEMORY = re.compile(
    "shared memory|/torch_[0-9]+_|received [0-9]+ items of ancdata|Too many open files"
)
LOST_PROCESS = re.compile(
    "gloo|NCCL|ncclRemoteError|TCPStore|Connection (reset|closed) by peer|process group"
)
FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk


def explain(error: Exception) -> str | None:
    """Return the sentence for an error that the user can fix, or None for any other."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        if error.errno == errno.EMFILE:
            return explain_lost_data(error)
        return explain_os_error(error)
    if isinstance(error, MemoryError):
        return explain_memory(error)
    if isinstance(error, RuntimeError):
        sentence = explain_torch_error(error)
        if sentence:
            return sentence
    if type(error).__name__.startswith("Dist"):
        return explain_lost_process(error)
    return None


def explain_torch_error(error: RuntimeError) -> str | None:
    """Return the sentence for an error of torch, None where its text is not known."""
    text = str(error)
    if LOST_WORKER.search(text):
        return (
            "a process that reads data was ended by the system, most often because memory ran out "
            f"({reason(error)}); run it again with fewer --workers or --workers 0 (train.py: with "
            "--resume)"
        )
    if SHARED_MEMORY.search(text):
        return explain_lost_data(error)
    if NO_MEMORY.search(text):
        return explain_memory(error)
    if LOST_PROCESS.search(text):
        return explain_lost_process(error)
    return None


def explain_lost_data(error: Exception) -> str:
    """Return the sentence for data that worker processes could not hand over."""
    return (
        f"the processes that read data could not hand it over ({reason(error)}); give fewer "
        "--workers or --workers 0, or allow more shared memory (docker run --shm-size) and open "
        "files (ulimit -n)"
    )


def explain_memory(error: Exception) -> str:
    """Return the sentence for a memory that is too small."""
    return (
        f"out of memory ({reason(error)}); use fewer items, a smaller --batch_size where the "
        "command has one, or smaller layers or photos"
    )


def explain_lost_process(error: Exception) -> str:
    """Return the sentence for the end of another process of a training on several devices."""
    return (
        f"another process of this torchrun ended or does not answer ({reason(error)}); look for "
        "its message above, fix what it names, and run it again with --resume"
    )


def explain_os_error(error: OSError) -> str:
    """Return the sentence for an error of the file system."""
    if error.errno in FULL and error.filename:
        full = describe_full_disk(error.filename)
        return f"{full}; make room or choose another folder, and run it again"
    if isinstance(error, PermissionError) and error.filename:
        return (
            f"no permission to write or read {error.filename}; change the permissions, or choose "
            "another file or folder"
        )
    return (
        f"{reason(error)}; no file was left half written: make room or choose another folder, and "
        "run it again (train.py: with --resume)"
    )


def describe_full_disk(path: str) -> str:
    """Say that a file could not be saved because its disk is full, and which disk that is."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = folder
    while not os.path.ismount(disk):
        disk = os.path.dirname(disk)
    free = shutil.disk_usage(folder).free / 2**20
    return (
        f"{path} could not be saved, since the disk at {disk} has no more room for it ({free:,.0f} "
        "MiB are free)"
    )


def call_python(*words: str) -> None:
    """Print and run a command of this repository. Raises InputError where it fails."""
    print(f"$ python {' '.join(words)}", flush=True)
    command = [sys.executable]
    for word in words:
        if word.endswith(".py"):
            word = os.path.join(CHECKOUT, word)
        command.append(word)
    status = subprocess.call(command, env=find_modules_here())
    if status:
        raise InputError(
            f"python {' '.join(words)} failed, as it says above; fix that and run this again"
        )


def find_modules_here() -> dict[str, str]:
    """Return the environment of a process that finds the modules of this checkout first."""
    path = CHECKOUT
    if os.environ.get("PYTHONPATH"):
        path += os.pathsep + os.environ["PYTHONPATH"]
    return os.environ | {"PYTHONPATH": path}


def find_commit() -> str:
    """Find the git commit of this code; empty where there is none, or no git."""
    done = subprocess.run(
        "git rev-parse --verify -q HEAD",
        shell=True,  # without git it fails, as without a commit
        text=True,
        capture_output=True,
        check=False,
        cwd=os.path.dirname(os.path.abspath(__file__)),
    )
    return done.stdout.strip()


def compute_in_float32() -> None:
    """Let networks compute in float32 on CUDA, where torch begins with tf32."""
    import torch

    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"


def torch_device(name: str):
    """Return the torch.device that --device names; "auto" is CUDA where present, and never mps."""
    import torch

    if name == "mps" and not torch.backends.mps.is_available():
        raise InputError(
            "--device mps: there is no Mac GPU, or this torch was built without it; use "
            "--device cpu"
        )
    present = name in ("auto", "cuda") and torch.cuda.is_available()
    if name == "cuda" and not present:
        raise InputError("--device cuda: no CUDA device is available; use --device cpu")
    if name == "auto":
        name = "cuda" if present else "cpu"
    return torch.device(name)


# ---- checks before reading


@contextlib.contextmanager
def refusing(what: str, fix: str, kinds=Exception):
    """Turn exceptions of `kinds` into InputError in a context: "what (reason); fix"."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({reason(error)}); {fix}") from error


def alike_paths(paths: list[str]) -> list[str]:
    """Return paths that are all relative or all absolute, so that they have a common folder."""
    if len({os.path.isabs(path) for path in paths}) > 1:
        return [os.path.abspath(path) for path in paths]
    return paths


def below(folder: str, name: str, source: str) -> str:
    """Join folder and a name from `source`; InputError where it leads out of it."""
    text = str(name)
    parts = text.replace("\\", "/").split("/")
    if os.path.isabs(text) or ".." in parts:
        raise InputError(
            f"{source} names the file {name!a:.80}, which lies outside {folder}; names are of "
            "files within it, without a leading / and without .."
        )
    return os.path.join(folder, text)


def need(path: str, fix: str = "check its name") -> str:
    """Return the path of a file that is read from now on.

    Raises InputError with the `fix` where there is none, on a pipe, which might never end, without
    the permission to read it, and where the command would replace it (see `output`).
    """
    try:
        kind = os.stat(path).st_mode
    except PermissionError as error:
        raise InputError(
            f"no permission to open the folder of {path}; change the permissions of the folder, "
            "or ask its owner"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"there is no file {path}; {fix}") from error
    if not stat.S_ISREG(kind):
        raise InputError(f"{path} is not a plain file; {fix}")
    if not os.access(path, os.R_OK):
        raise InputError(
            f"no permission to read {path}; change the permissions of the file, or ask its owner"
        )
    note_inputs(path)
    return path


def note_inputs(*paths: str) -> None:
    """Note that the command reads files, which no output may replace.

    Raises InputError where one would do so.
    """
    if in_use is None:
        return
    for path in paths:
        key = identify_file(path)
        if key in in_use.outputs:
            refuse_output(in_use.outputs[key], path)
        if key is not None:
            in_use.inputs[key] = path


def open_plain(path: str, flags: int = 0, folder: int | None = None) -> BinaryIO:
    """Open a file to read its bytes.

    flags, folder: more flags for os.open, and its dir_fd. Raises OSError, also on a pipe or a
    device, which might never end.
    """

    def open_at_once(name: str, mode: int) -> int:
        wait_for_nobody = getattr(os, "O_NONBLOCK", 0)  # a pipe would wait for its other end
        return os.open(name, mode | flags | wait_for_nobody, dir_fd=folder)

    file = open(path, "rb", opener=open_at_once)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is not a plain file")
    return file


def repeated(names):
    """Find the first name that occurs more than once, or None."""
    for name, count in Counter(names).items():
        if count > 1:
            return name
    return None


def has_names(values, fits: Callable) -> bool:
    """True if values are a dict of names, each of which fits."""
    if not isinstance(values, dict):
        return False
    return all(isinstance(name, str) and fits(value) for name, value in values.items())


# ---- reading


def read_text(path: str) -> str:
    """Read a UTF-8 text file, with or without a byte order mark. Raises InputError."""
    with (
        refusing(f"{path} cannot be read", "check its name and its permissions", OSError),
        refusing(f"{path} is not UTF-8 text", "convert it with iconv", UnicodeDecodeError),
        open(need(path), encoding="utf-8-sig") as f,
    ):
        return f.read()


def read_lines(path: str) -> list[str]:
    """Read the lines of a text file, without their line ends."""
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def read_json(path: str, fix: str = "fetch it again", unique: bool = False):
    """Read the value in a JSON file. Raises InputError with the `fix`, also on NaN.

    unique: refuse a name that occurs twice in an object (else the last one counts).
    """

    def refuse_constant(name: str):
        raise ValueError(f"{name} is not a number in JSON")

    def build_dict(pairs: list) -> dict:
        twice = repeated(name for name, _ in pairs)
        if twice is not None:
            raise ValueError(f"{ascii(twice)[:60]} stands twice in one object")
        return dict(pairs)

    text = read_text(path)
    hook = build_dict if unique else None
    with refusing(f"{path} is not JSON", fix):
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=hook)


def read_json_lines(path: str, fix: str) -> list[tuple[str, object]]:
    """Read the values of JSON lines, each with its place for messages. Raises InputError.

    Blank lines are left out.
    """
    values = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            place = f"{path}, line {number}"
            with refusing(f"{place} is not JSON", fix):
                values.append((place, json.loads(line)))
    return values


def read_yaml(path: str):
    """Read the plain values, lists and mappings of a YAML file of options. Raises InputError.

    Names for parts (&a, *a, <<) may repeat these, but not so often that a short file becomes a long
    one.
    """
    import yaml

    fix = "give a YAML file of options"
    size = os.path.getsize(need(path, fix))
    if size > MAX_YAML_BYTES:
        raise InputError(
            f"{path} has {size:,} bytes, and a file of options has at most {MAX_YAML_BYTES:,}; "
            f"{fix}"
        )
    loader = yaml.SafeLoader(read_text(path))
    with refusing(f"{path} is not a YAML file", fix):
        document = loader.get_single_node()
        if document is None:
            return None
        if count_nodes(document, {}) > MAX_YAML_NODES:
            raise ValueError(f"its parts repeat each other to more than {MAX_YAML_NODES:,} values")
        return loader.construct_document(document)


def count_nodes(node: "yaml.Node", counts: dict["yaml.Node", float]) -> float:
    """Count the values of a part of a YAML file, those of a repeated part each time.

    Infinity where the part holds itself.
    counts: of the parts that are known already.
    """
    import yaml

    if node in counts:
        return counts[node]

    counts[node] = math.inf  # until it is known, it may hold itself
    children = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            children.extend(pair)
    counts[node] = 1 + sum(count_nodes(child, counts) for child in children)
    return counts[node]


def read_array(path: str, fix: str) -> "np.ndarray":
    """Map the array of an .npy file into memory.

    Raises InputError on any other file, .npz archives included.
    """
    import numpy as np

    # numpy would warn of a size that the error names
    with (
        refusing(f"{path} is not a whole .npy file of numbers", fix),
        np.errstate(over="ignore"),
    ):
        return np.lib.format.open_memmap(need(path, fix), mode="r")


def read_arrays(path: str, fix: str) -> dict[str, "np.ndarray"]:
    """Read the arrays of an .npz file, {name: array}. Raises InputError on any other file."""
    import numpy as np

    fault = f"{path} is not an .npz file of plain arrays"
    with refusing(fault, fix):
        if not zipfile.is_zipfile(need(path, fix)):  # numpy would advise to unpickle the file
            raise InputError(f"{fault}; {fix}")
        with zipfile.ZipFile(path) as members:
            names = [name.removesuffix(".npy") for name in members.namelist()]
        twice = repeated(names)
        if twice is not None:
            raise InputError(
                f"{path} holds two arrays {spell_value(twice)}, of which one would count; {fix}"
            )

        with np.load(path, allow_pickle=False) as f, np.errstate(over="ignore"):
            arrays = dict(f)
        for name, x in arrays.items():
            if not isinstance(x, np.ndarray):  # a file of any other kind within the archive
                raise InputError(f"{path} holds {spell_value(name)}, which is not an array; {fix}")
        return arrays


def integers(values, path: str, what: str) -> "np.ndarray":
    """Convert values from `path` to int64 (K,), or raise InputError. what: their name."""
    import numpy as np

    values = list(values)
    if set(map(type, values)) == {int}:
        with contextlib.suppress(OverflowError):  # the loop below finds the large one
            return np.array(values, np.int64)

    for value in values:
        whole = type(value) is int or isinstance(value, np.integer)
        if not whole or not -LARGEST_NUMBER - 1 <= value <= LARGEST_NUMBER:
            raise InputError(
                f"{path} gives {what} {spell_value(value)}, which is not a whole number of at most "
                "64 bits; write it as such"
            )
    return np.array(values, np.int64)


def read_coco(path: str):
    """Read COCO's annotations, indexed by pycocotools. Raises InputError."""
    from pycocotools.coco import COCO  # it imports matplotlib too

    coco = COCO()
    coco.dataset = read_json(path)
    fault = f"{path} is not a file of COCO's annotations, or lacks a field"
    with refusing(fault, "fetch it again"), contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()

    for kind, index in (("annotations", coco.anns), ("images", coco.imgs)):
        records = ()
        if isinstance(coco.dataset, dict):
            records = coco.dataset.get(kind, ())
        if len(index) < len(records):
            twice = repeated(record["id"] for record in records)
            raise InputError(f"{path} has two {kind} with the id {twice}; give each its own")
    return coco


# ---- checksums


def sha256(*parts) -> str:
    """Hash texts, bytes and arrays, one after another: sha256 in hexadecimal digits."""
    import numpy as np

    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            part = part.encode()
        elif not isinstance(part, bytes):
            part = np.ascontiguousarray(part).data
        digest.update(part)
    return digest.hexdigest()


def checksum(parts) -> str:
    """Return the first 12 digits of the sha256 of bytes or arrays."""
    return f"sha256:{sha256(*parts)[:12]}"


def file_digest(path: str) -> str:
    """Return the first 12 digits of the sha256 of a file, or "" if it cannot be read."""
    try:
        with open_plain(path) as f:
            return hashlib.file_digest(f, "sha256").hexdigest()[:12]
    except OSError:
        return ""


# ---- writing


@contextlib.contextmanager
def atomic(path: str, mode: str = "w"):
    """Open a temporary file within a context; it becomes `path` at its end.

    If anything fails before that, `path` stays as it was. The folder is created. A link stays a
    link. Two processes that write `path` have a temporary file each; the last to end wins.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{os.getpid()}.part")
    make_folder(folder)
    remove_parts_of_ended_processes(folder, name)
    replaced = identify_file(path)

    form = {}
    if "b" not in mode:
        form = {"encoding": "utf-8", "newline": ""}
    try:
        with naming_full_disk(path), open(part, mode, **form) as f:
            yield f
            f.flush()
            os.fsync(f.fileno())  # a power cut leaves the old file or the new one
        os.replace(part, path)
    except BaseException as error:  # a full disk, an error in the caller, a signal
        remove(part)
        if getattr(error, "filename", None) == part:
            error.filename = path  # the name that the user knows
        raise
    if in_use is not None:
        # the file is gone, and another one may get its inode
        in_use.inputs.pop(replaced, None)
        in_use.outputs.pop(replaced, None)


def remove_parts_of_ended_processes(folder: str, name: str) -> None:
    """Remove temporary files of `atomic` for the file `name` whose process has ended."""
    for other in os.listdir(folder):  # glob would take ten times as long
        if not (other.startswith(f".{name}.") and other.endswith(".part")):
            continue
        with contextlib.suppress(ValueError, OverflowError, PermissionError):
            process = int(other.split(".")[-2])
            try:
                os.kill(process, 0)  # does it still run?
            except ProcessLookupError:
                remove(os.path.join(folder, other))


@contextlib.contextmanager
def naming_full_disk(path: str):
    """Turn what numpy and torch raise on a full disk into an OSError that names `path`.

    path: the file that the context writes.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if is_full(error, os.path.dirname(path) or "."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from error
        raise


def is_full(error: Exception, folder: str) -> bool:
    """True if an error means that the disk of a folder is full."""
    if getattr(error, "errno", None) in FULL:
        return True
    return bool(FULL_DISK.search(str(error))) and free_space(folder) < LITTLE_SPACE


def free_space(folder: str) -> float:
    """Return the bytes that are free on the disk of a folder, infinity where nothing tells."""
    usage = shutil.disk_usage(folder)
    if not usage.total:
        return math.inf
    return usage.free


def remove(*paths: str) -> None:
    """Remove the files that are there and that can be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.remove(path)


def save_json(value, path: str) -> None:
    """Write a value as JSON."""
    with atomic(path) as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def save_lines(path: str, lines) -> None:
    """Write each text as one line. Line breaks within a text become spaces."""
    with atomic(path) as f:
        for line in lines:
            f.write(re.sub(r"[\r\n]+", " ", line) + "\n")


def save_array(path: str, array: "np.ndarray") -> None:
    """Write an .npy file."""
    import numpy as np

    with atomic(path, "wb") as f:
        np.save(f, array)


def save_arrays(path: str, arrays: dict) -> None:
    """Write an .npz file of {name: array}."""
    import numpy as np

    with atomic(path, "wb") as f:
        np.savez(f, **arrays)


@contextlib.contextmanager
def mapped(path: str, shape: tuple, dtype):
    """Map an array within a context; it becomes the .npy file `path` at its end."""
    import numpy as np

    with atomic(path, "wb") as f:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > free_space(os.path.dirname(f.name)):  # writing to the map would end the process
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        array = np.lib.format.open_memmap(f.name, "w+", dtype, shape)
        yield array
        array.flush()


# ---- where results may be written


def output(path: str, inputs=(), overwrite: bool = True) -> str:
    """Return the path of results, if they may be written there, and create its folder.

    Raises InputError where `path` cannot be written, where it is one of `inputs`, another file that
    the command reads, before or after, or a file of a run, and, without `overwrite`, where a file
    already exists.
    """
    inputs = list(inputs)
    for source in inputs:
        same_file = identify_file(path) == identify_file(source) is not None
        if same_file or os.path.realpath(path) == os.path.realpath(source):
            refuse_output(path, source)
    note_inputs(*inputs)
    writable(path)

    folder, name = os.path.split(os.path.realpath(path))
    if name in RUN_FILES and has_run(folder) and os.path.exists(path):
        raise InputError(f"{path} is a file of the run in {folder}; choose a different output file")
    key = identify_file(path)
    if in_use is not None and key is not None:
        if key in in_use.inputs:
            refuse_output(path, in_use.inputs[key])
        in_use.outputs[key] = path
    if os.path.exists(path) and not overwrite:
        raise InputError(
            f"{path} already exists; replace it with --overwrite, or name another file"
        )
    return path


def has_run(folder: str) -> bool:
    """True if a folder holds a checkpoint of train.py."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in CHECKPOINTS)


def writable(path: str) -> str:
    """Return the path of a file, if it can be written, and create its folder.

    Raises InputError where it cannot be written.
    """
    folder = os.path.dirname(path) or "."
    fix = "name a file in a folder that takes new files"
    with refusing(f"{path} cannot be written", fix, (OSError, ValueError)):
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("it is not a plain file")
        length = len(os.fsencode(os.path.basename(path)))
        if length > MAX_NAME:
            raise OSError(f"its name has {length:,} bytes, and at most {MAX_NAME} can be written")
        make_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    return path


def make_folder(folder: str) -> None:
    """Create a folder, which the command removes again if nothing comes into it."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder.rstrip("/"))
    if parent:
        make_folder(parent)
    with contextlib.suppress(FileExistsError):  # made by another process in between, or a file
        os.mkdir(folder)
        if in_use:
            in_use.new_folders.append(folder)
    os.makedirs(folder, exist_ok=True)  # raises where it is a file
