"""Writing files so that nothing is lost: a file is replaced in one step or not at all."""
import contextlib
import json
import os
import re

import numpy as np
import torch

from cli import check
from files.reading import refusing

FORMAT = 1                            # of checkpoint.pt and model_best.pt
CHANGING = ".{}_changing"      # stands in a folder while the files of a split are replaced together


@contextlib.contextmanager
def atomic(path: str, mode: str = "w", sync: bool = True):
    """An open file that becomes `path` when it is complete. If anything fails before that, `path`
    stays as it was and no other file is left. The folder is created. A link stays a link. Without
    `sync` a power cut may leave an empty file; this is for thousands of small files whose contents
    are checked elsewhere."""
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with replaced(path) as part, open(part, mode, **text) as f:
        yield f
        f.flush()
        if sync:
            os.fsync(f.fileno())


@contextlib.contextmanager
def replaced(path: str):
    """A context with the name of a temporary file that becomes `path` at its end, as `atomic` says.
    """
    path = os.path.realpath(path)
    part = part_of(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    clear(path)
    try:
        yield part
        os.replace(part, path)
    except BaseException:             # a full disk, an error in the caller, a signal
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


def part_of(path: str) -> str:
    """The temporary name under which this process writes a file until it is complete."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.part")


def clear(path: str) -> None:
    """Remove the temporary files that killed processes left while they were writing `path`."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(f".{name}.") + r"(\d+)\.part")
    for match in filter(None, map(pattern.fullmatch, os.listdir(folder or "."))):
        if not alive(int(match[1])):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, match[0]))


def remove(*paths: str) -> None:
    """Remove the files that are there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def alive(process: int) -> bool:
    """Whether a process with this number runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:                   # it belongs to another user
        return True
    return True


def save_state(state: dict, path: str, advice: str) -> None:
    """Replace a checkpoint. A full disk or a kill leaves the old one whole. Raises InputError,
    which gives `advice`."""
    with (refusing(f"{path} could not be saved", f"the one before it is whole: {advice}",
                   (OSError, RuntimeError)), atomic(path, "wb") as f):
        torch.save(state, f)


def save_json(value, path: str) -> None:
    with atomic(path) as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def save_lines(path: str, lines) -> None:
    """Write each text as one line. Line breaks within a text become blanks."""
    with atomic(path) as f:
        f.writelines(re.sub(r"[\r\n]+", " ", line) + "\n" for line in lines)


def save_array(path: str, array: np.ndarray) -> None:
    """Write an .npy file."""
    with atomic(path, "wb") as f:
        np.save(f, array)


def save_arrays(path: str, arrays: dict) -> None:
    """Write an .npz file of {name: array}."""
    with atomic(path, "wb") as f:
        np.savez(f, **arrays)


def allocate(path: str, shape: tuple, dtype) -> np.ndarray:
    """A new mapped .npy file of this shape to write to. Its disk space is reserved at once, because
    writing to a mapped file on a full disk would kill the process without a message. Raises OSError
    where there is too little space."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as f:
            os.posix_fallocate(f.fileno(), 0, os.path.getsize(path))
    return array


@contextlib.contextmanager
def mapped(path: str, shape: tuple, dtype):
    """A mapped array that becomes the .npy file `path` when it is complete, under the rules of
    `atomic`."""
    with replaced(path) as part:
        array = allocate(part, shape, dtype)
        yield array
        array.flush()


def refuse_changing(root: str, split: str) -> None:
    """Raise InputError where a command has begun to replace the files of a split, and not ended."""
    names = ("dev", "val") if split in ("dev", "val") else (split,)         # two names of one split
    check(not any(os.path.exists(os.path.join(root, CHANGING.format(name))) for name in names),
          f"{root}: the files of split '{split}' do not belong together, as `features.extract "
          "images` or `demo` was stopped while it put them in their places; call it again")


def output(path: str, inputs=(), overwrite: bool = True) -> str:
    """Return `path` if results may be written there. To be called before the work; it leaves no file
    behind. The folder is created. Raises InputError where `path` cannot be written, where it is one
    of `inputs` and, without `overwrite`, where a file is there already."""
    check(not any(same_file(path, source) for source in inputs),
          f"{path} is to be read and cannot be written too; name another file for what comes out")
    with refusing(f"{path} cannot be written", "name a file in a folder that takes new files",
                  OSError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        # Not by its real path: /dev/stdout is a link to a file.
        device = os.path.abspath(path).startswith(("/dev/", "/proc/"))
        if device or os.path.lexists(path) and not os.path.isfile(path):
            raise OSError("it is a folder" if os.path.isdir(path) else "it is no plain file")
        if os.path.lexists(path):
            open(path, "ab").close()
        part = part_of(os.path.realpath(path))
        open(part, "ab").close()
        os.remove(part)
    check(overwrite or not os.path.lexists(path),
          f"{path} is there already; replace it with --overwrite, or name another file")
    return path


def same_file(a: str, b: str) -> bool:
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)
