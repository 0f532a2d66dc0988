"""Holds what all commands share: errors as sentences, types of arguments, and how a command ends or
is stopped."""
import argparse
import atexit
import contextlib
import functools
import math
import os
import re
import signal
import sys
import threading
import time

NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
LARGEST = 2 ** 63 - 1                 # the largest whole number that an option takes
BEGAN = time.monotonic()              # when the command began, before it imported torch
IMPATIENT = 1.0             # seconds after which another Ctrl-C ends a process that is still saving


class InputError(argparse.ArgumentTypeError, ValueError):
    """Something that the user gave cannot be used, an argument or what it names. Its text is one
    line: what was given, what is allowed, the fix."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def check(fits, sentence: str) -> None:
    """Raise InputError with the sentence where something does not fit."""
    if not fits:
        raise InputError(sentence)


# ---- arguments

class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows the default of every option that has one."""

    def _get_help_string(self, action):
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def program() -> str:
    """The command as it was called, such as "train.py" or "python -m features.extract"."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return os.path.basename(sys.argv[0])
    return f"python -m {spec.name.removesuffix('.__main__')}"


class Arguments(argparse.ArgumentParser):
    """A parser whose errors are one line without the usage text. Options cannot be abbreviated.

    advice: {flag of another code base: what to do here instead}. The error about such a flag
    contains this advice.
    """

    def __init__(self, description: str, advice: dict[str, str] | None = None, **of_subparser):
        super().__init__(**{"prog": program(), "description": description, "allow_abbrev": False,
                            "formatter_class": _Defaults, **of_subparser})
        self.advice = advice or {}

    def parse_known_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else list(args)
        for word in words:
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                self.error(f"the argument {ascii(word)} is no UTF-8 text; rename the file, or type "
                           "it in UTF-8")
        return super().parse_known_args(words, namespace)

    def exit(self, status=0, message=None):
        written()
        super().exit(status, message)

    def error(self, message: str):
        if message.startswith("unrecognized arguments: "):
            flags = [word.split("=")[0] for word in message.split()[2:]]
            message += "".join(f"; {flag}: {self.advice[flag]}" for flag in flags
                               if flag in self.advice)
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


# Types: each reads a word, or raises InputError.

def number(text: str) -> float:
    """A finite number in decimal digits."""
    decimal = re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text)
    check(decimal and math.isfinite(float(text)), f"'{text}' is not a finite number")
    return float(text)


def bounded(text: str, fits, allowed: str) -> float:
    check(fits(number(text)), f"'{text}' is out of range; give {allowed}")
    return float(text)


def within(fits, allowed: str):
    return functools.partial(bounded, fits=fits, allowed=allowed)


at_least_zero = within(lambda x: x >= 0, "a number of at least 0")
above_zero = within(lambda x: x > 0, "a number above 0")
probability = within(lambda x: 0 <= x <= 1, "a number from 0 to 1")
below_one = within(lambda x: 0 <= x < 1, "at least 0 and less than 1")
fraction = within(lambda x: 0 < x <= 1, "more than 0 and at most 1")


def whole(text: str, least: int, most: int) -> int:
    """A whole number n in decimal digits, least <= n <= most."""
    decimal = re.fullmatch(r"-?[0-9]{1,20}", text)
    limits = f"of at least {least}"
    if decimal and int(text) > most:
        limits += f" and at most {most:,}"
    check(decimal and least <= int(text) <= most, f"'{text}' is not a whole number {limits}")
    return int(text)


def up_to(most: int, least: int = 1):
    """The type of a whole number from `least` to `most`."""
    return functools.partial(whole, least=least, most=most)


natural, positive = up_to(LARGEST, least=0), up_to(LARGEST)
width = up_to(2 ** 16)        # of a layer or an embedding: more is a slip that would exhaust memory
workers = up_to(256, least=0)         # number of worker processes


def sizes(text: str) -> str:
    """Sizes of hidden layers, such as 2000-1000. "0" means no layer."""
    check(re.fullmatch("0|[1-9][0-9]{0,4}(-[1-9][0-9]{0,4}){0,63}", text),
          f"'{text}' is no list of layer sizes; give numbers below 100,000 joined by '-', as "
          "2000-1000, or 0 for none")
    return text


def filename(text: str) -> str:
    """A file or folder. ~ is the home folder, also in `--option=~/x`, which the shell does not
    expand."""
    check(text and "\0" not in text, "an empty name is no file or folder")
    return os.path.expanduser(text)


def data_set(text: str) -> str:
    """A data set's name: a folder below --data_path. Absolute paths and names with .. are
    refused."""
    outside = os.path.isabs(text) or ".." in text.replace("\\", "/").split("/")
    check(text not in ("", ".", "~") and "\0" not in text and not outside,
          f"'{text}' is no name of a data set; give a folder below --data_path by its name, and "
          "the folder above it with --data_path")
    return os.path.normpath(text)


def split_name(text: str) -> str:
    """A split's name, which is part of the names of its files."""
    check(re.fullmatch(r"[A-Za-z0-9_-]+", text),
          f"'{text}' is no name of a split; give train, dev, test or testall")
    return text


def split_names(text: str, between: str = ",") -> str:
    """A list of splits' names, each given once."""
    names = [split_name(name.strip()) for name in text.split(between)]
    check(len(set(names)) == len(names), f"'{text}' names a split twice; name each once")
    return between.join(names)


# ---- the end of a command

class Stopped(BaseException):
    """A signal asks the command to end. It is not an Exception, so that no handler takes it for a
    fault of the data."""

    advice = "no file was left half written"

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Stop:
    """A context in which Ctrl-C, SIGTERM and SIGHUP raise Stopped. With `later` they raise nothing:
    the signal is kept in `received` until the command looks at it. Signals that were ignored before
    (nohup) stay ignored. Repeated signals are ignored too, because `timeout` and batch systems
    signal a process and then its whole group. Only another Ctrl-C, at least a second later, ends
    the process at once."""

    def __init__(self, later: bool = False):
        self.later, self.received, self.since, self.before = later, None, 0.0, {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self.before = {number: handler for number in SIGNALS
                           if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)}
            for number in self.before:
                signal.signal(number, self.wish)
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def wish(self, number: int, frame) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self.since = number, now
            if not self.later:
                raise Stopped(number)
        elif number == signal.SIGINT and now - self.since > IMPATIENT:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    @contextlib.contextmanager
    def at_once(self):
        """A context for work that may be given up at any point. Raises Stopped, also for a signal
        that came before."""
        if self.received is not None:
            raise Stopped(self.received)
        self.later = False
        try:
            yield
        finally:
            self.later = True


def starting() -> None:
    """Answer a signal with one line while a command loads, since importing torch takes seconds.
    `run` takes over later. A script calls this before its other imports."""
    def stop(number: int, frame) -> None:
        with contextlib.suppress(OSError):
            print(f"{program()}: stopped by {NAMES[signal.Signals(number).name]} before it "
                  "began", file=sys.stderr)
        os._exit(128 + number)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    sys.excepthook = lambda kind, *of: (
        unread() if kind is BrokenPipeError else sys.__excepthook__(kind, *of))
    atexit.register(ending)


def ending() -> None:
    """Ignore signals once the work is done, so that they do not change the exit status while the
    interpreter ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def written() -> None:
    """Write what was printed and is still held. Where nobody reads it, the process ends
    (`unread`)."""
    try:
        print(end="", flush=True)
    except BrokenPipeError:
        unread()
    except OSError:
        pass                          # a full disk: the interpreter says so when it ends


def unread() -> None:
    """End as programs do whose output is read no further: `| head` has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + 13)                                      # as of SIGPIPE


@contextlib.contextmanager
def unsignalled():
    """A context in which new processes start with SIGNALS blocked; only the main process receives
    them. A batch system signals a whole group, and a worker that dies would end the main process
    before it has saved."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run(prog: str, work, *args) -> int:
    """Call work(*args), the work of a command, and return its status, or 0 where it returns none.
    Where a user can mend what went wrong, the process ends with one line and status 1. On signal n
    it ends with status 128 + n."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that cannot show a letter of a caption must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        if "torch" in sys.modules:
            use_full_float32()
        with Stop():
            status = work(*args)
            written()
    except Stopped as stop:
        with contextlib.suppress(OSError):                  # SIGHUP: the terminal is gone
            name = NAMES[signal.Signals(stop.number).name]
            print(f"{prog}: stopped by {name}; {stop.advice}", file=sys.stderr)
        sys.exit(128 + stop.number)
    except BrokenPipeError:
        unread()
    except Exception as error:
        sentence = mendable(error)
        if sentence is None:
            raise
        sys.exit(f"{prog}: {sentence}")
    return status or 0


def mendable(error: Exception) -> str | None:
    """What a user can do where a command failed; None where it is a fault of ours."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        return (f"{reason(error)}; no file was left half written: make room or choose another "
                "folder, and call it again, train.py with --resume")
    full = r"can't allocate|out of memory|failed to allocate"
    if (isinstance(error, MemoryError)
            or isinstance(error, RuntimeError) and re.search(full, str(error))):
        return (f"it needs more memory than there is ({reason(error)}); give smaller sizes, "
                "batches or blocks")
    return None


def reason(error: BaseException, most: int = 160) -> str:
    """The text of an exception in one line, cut after `most` characters."""
    text = " ".join((str(error) or type(error).__name__).split())
    return text if len(text) <= most else f"{text[:most]}..."


def use_full_float32() -> None:
    """Compute float32 convolutions and GRUs in float32 on CUDA, where torch begins with tf32."""
    import torch

    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "ieee"


def torch_device(name: str):
    """The torch.device that --device names; "auto" is CUDA when present. Raises InputError where
    there is no CUDA."""
    import torch

    present = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not present:
        raise InputError("--device cuda: no CUDA device is here; use --device cpu")
    return torch.device(name if name != "auto" else "cuda" if present else "cpu")


def run_arguments(p: argparse.ArgumentParser, split: str) -> None:
    """Add the options that commands share which apply one run to a split. `split`: the help text of
    --split."""
    p.add_argument("--checkpoint", type=filename, metavar="RUN",
                   help="run folder or checkpoint file (default: the newest run)")
    p.add_argument("--vocab", type=filename, metavar="FILE.json",
                   help="vocabulary of an original VSE++ or VSRN checkpoint "
                   "(python vocab.py convert)")
    p.add_argument("--data_path", type=filename,
                   help="folder that holds the data sets (default: that of the training)")
    p.add_argument("--data_name", type=data_set, help="data set (default: that of the training)")
    p.add_argument("--split", type=split_name, default="test", help=split)
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                   help="auto: CUDA when present")
    p.add_argument("--workers", type=workers, default=min(10, os.cpu_count() or 1),
                   help="processes that read photos or large feature files")
