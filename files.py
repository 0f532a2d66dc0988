"""Reading and writing files so that nothing is silent and nothing is lost.

One reader for each kind of file, JSON, YAML, lines of text, .npy and .npz: whatever is wrong with one ends in an
`InputError` that names it, and nothing of it is run. One way to write: beside the old file, which is replaced only by a
whole new one.
"""
import contextlib
import errno
import io
import json
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
import yaml

from cli import InputError, reason

try:
    import fcntl
except ImportError:                   # no POSIX system: nothing is locked there
    fcntl = None


FORMAT = 1                            # of checkpoint.pt and model_best.pt
NPZ_BYTES = 16 << 30                  # an .npz file is read whole; one of more arrays than this is refused
YAML_BYTES = 1 << 20                  # options, some hundred lines
INT64 = np.iinfo(np.int64)
DRAWN = "drawn by a command of probabilistic image-caption retrieval"      # in every picture, among what is told of it
CHANGING = ".{}_changing"        # stands in a folder while files of a split are replaced by others that belong together
# What foreign contents raise in zipfile, numpy, json and yaml, as tried with files cut, flipped, nested, encrypted and
# lying.
FAULTS = (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, EOFError, SyntaxError, MemoryError,
          OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
          yaml.YAMLError)


# ---- writing

@contextlib.contextmanager
def atomic(path: str, mode: str = "w", sync: bool = True):
    """An open file that becomes `path` when it has been written whole; what happens before that leaves `path` as it
    was, and nothing beside it. The folder is made. A link stays a link. Without `sync` a power cut may leave an empty
    file: for thousands of small files that something else vouches for."""
    path = os.path.realpath(path)
    part = part_of(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    clear(path)
    try:
        with open(part, mode, **({} if "b" in mode else {"encoding": "utf-8", "newline": ""})) as f:
            yield f
            f.flush()
            if sync:
                os.fsync(f.fileno())
        os.replace(part, path)
    except BaseException:             # a full disk, an error of the caller's, a signal
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


def part_of(path: str) -> str:
    """The name under which this process writes a file before it is whole."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.part")


def clear(path: str) -> None:
    """Remove what killed processes left of a file that they were writing."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(f".{name}.") + r"(\d+)\.part")
    for found in filter(None, map(pattern.fullmatch, os.listdir(folder or "."))):
        if not alive(int(found[1])):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, found[0]))


def alive(process: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:                   # another user's
        return True
    return True


def save_state(state: dict, path: str, advice: str) -> None:
    """A checkpoint in place of the old one, which a full disk or a kill leaves as it was: then `advice` is given."""
    try:
        with atomic(path, "wb") as f:
            torch.save(state, f)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} could not be saved ({reason(error)}); the one before it is whole: "
                         f"{advice}") from error


def save_json(value, path: str) -> None:
    with atomic(path) as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def save_lines(path: str, lines) -> None:
    """A line of text each; line breaks within become blanks."""
    with atomic(path) as f:
        f.writelines(re.sub(r"[\r\n]+", " ", line) + "\n" for line in lines)


def save_array(path: str, array: np.ndarray) -> None:
    """An .npy file."""
    with atomic(path, "wb") as f:
        np.save(f, array)


def save_arrays(path: str, arrays: dict) -> None:
    """An .npz file."""
    with atomic(path, "wb") as f:
        np.savez(f, **arrays)


def allocate(path: str, shape: tuple, dtype) -> np.ndarray:
    """A mapped .npy file of this shape that may be written to, all of its room taken: on a disk that gets full a mapped
    file would end the process without a word. Raises OSError."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as f:
            os.posix_fallocate(f.fileno(), 0, os.path.getsize(path))
    return array


@contextlib.contextmanager
def mapped(path: str, shape: tuple, dtype):
    """A mapped array that becomes the .npy file `path` when it has been written whole, as `atomic` has it."""
    path = os.path.realpath(path)
    part = part_of(path)
    clear(path)
    try:
        array = allocate(part, shape, dtype)
        yield array
        array.flush()
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


def output(path: str, ours: Callable[[str], bool] | None = None, inputs=()) -> str:
    """`path`, a file that results may be written to; to be called before the work, and without a trace.

    Its folder is made. Raises InputError where it cannot be written, where it is one of `inputs`, and where a file is
    there already that `ours` does not know as one that the command wrote (None: any file is refused).
    """
    if any(same_file(path, given) for given in inputs):
        raise InputError(f"{path} is to be read and cannot be written too; name another file for what comes out")
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        device = os.path.abspath(path).startswith(("/dev/", "/proc/"))              # /dev/stdout is a link to a file
        if device or os.path.lexists(path) and not os.path.isfile(path):
            raise OSError("it is a folder" if os.path.isdir(path) else "it is no plain file")
        if os.path.lexists(path):
            open(path, "ab").close()
        part = part_of(os.path.realpath(path))
        open(part, "ab").close()
        os.remove(part)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({reason(error)}); name a file in a folder that takes new "
                         "files") from error
    if os.path.lexists(path) and os.path.getsize(path) and not (ours and recognised(ours, path)):
        raise InputError(f"{path} is there already{' and is none that this command wrote' if ours else ''}; name "
                         "another file, or move that one away")
    return path


def same_file(a: str, b: str) -> bool:
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


def recognised(ours, path: str) -> bool:
    try:
        return bool(ours(path))
    except FAULTS:
        return False


def holds_keys(*keys: str, optional=()):
    """Knows JSON objects with these keys and, but for `optional` ones, no others."""
    def knows(path: str) -> bool:
        found = read_json(path)
        return isinstance(found, dict) and set(keys) <= set(found) <= {*keys, *optional}
    return knows


def holds_arrays(*names: str, optional=()):
    """Knows .npz files with these arrays and, but for `optional` ones, no others."""
    def knows(path: str) -> bool:
        with zipfile.ZipFile(path) as archive:
            found = {name.removesuffix(".npy") for name in archive.namelist()}
        return set(names) <= found <= {*names, *optional}
    return knows


def first_line(text: str):
    """Knows text files whose first line this is."""
    def knows(path: str) -> bool:
        with open(path, "rb") as f:
            return f.readline(1 << 16).rstrip(b"\r\n") == text.encode()
    return knows


def is_drawn(path: str) -> bool:
    """Knows pictures that `plots.drawing` drew, which hold its mark in each of its formats."""
    with open(path, "rb") as f:
        head = f.read(1 << 14)
        f.seek(max(0, os.path.getsize(path) - (1 << 14)))
        return DRAWN.encode() in head + f.read()


@contextlib.contextmanager
def locked(folder: str, doing: str):
    """Keeps other processes out of a folder; raises InputError where one is in it. The lock ends with the process,
    however that ends. `doing` says what the other one does there, for the message."""
    try:
        holder = open(os.path.join(folder, ".lock"), "a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} takes no new files ({reason(error)}); name a folder that does") from error
    with holder:
        if fcntl:
            try:
                fcntl.lockf(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)          # of this process, not of those it starts
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    holder.seek(0)
                    raise InputError(f"another process is {doing} {folder} (number "
                                     f"{holder.read(20).strip() or 'unknown'}); wait for it or stop it, or name "
                                     "another folder") from error
        holder.truncate(0)            # where the file system knows no locks: as before
        holder.write(f"{os.getpid()}\n")
        holder.flush()
        yield


# ---- names

def below(folder: str, name: str, source: str) -> str:
    """folder/name for a name that `source` gives; raises InputError where it leads out of the folder."""
    parts = str(name).replace("\\", "/").split("/")
    if os.path.isabs(str(name)) or ".." in parts or "\0" in str(name):
        raise InputError(f"{source} names the file {reason(ValueError(ascii(name)), 80)}, which lies outside {folder}; "
                         "names are of files within it, without a leading / and without ..")
    return os.path.join(folder, str(name))


# ---- reading

def read_text(path: str, most: int | None = None) -> str:
    """UTF-8 text, of `most` bytes where that is given; some editors write a mark first. Raises InputError."""
    try:
        if most is not None and os.path.getsize(path) > most:
            raise InputError(f"{path} has {os.path.getsize(path):,} bytes, and at most {most:,} are read; it is "
                             "another file")
        with open(path, encoding="utf-8-sig") as f:
            return f.read()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({reason(error)}); convert it with iconv") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or reason(error)}); check its name and its "
                         "permissions") from error


def read_lines(path: str) -> list[str]:
    """Lines of a text file, without their ends."""
    lines = read_text(path).split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_json(path: str, fix: str = "fetch it again", what: str = "JSON", unique: bool = False):
    """What a JSON file holds. `unique`: a name that stands twice in an object is refused, and not the first one
    dropped.

    Raises InputError, with `fix`, on anything that is no JSON of finite numbers and text.
    """
    text = read_text(path)
    try:
        value = json.loads(text, parse_constant=no_number, object_pairs_hook=once if unique else None)
        if re.search(r"\\u[dD][89a-fA-F]", text):      # halves of a pair can be escaped, and could not be written again
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{path} is not {what} of UTF-8 text (it has half a surrogate pair, "
                         f"{error.object[error.start]!a}); {fix}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not {what} (it is nested hundreds of levels deep); {fix}") from error
    except ValueError as error:
        raise InputError(f"{path} is not {what} ({reason(error)}); {fix}") from error
    return value


def no_number(name: str):
    raise ValueError(f"{name} is no number in JSON")


def once(pairs: list) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{ascii(repeated(name for name, _ in pairs))[:60]} stands twice in one object")
    return found


def repeated(names):
    """The first of the names that stands more than once, or None."""
    return next((name for name, n in Counter(names).items() if n > 1), None)


class _Plain(yaml.SafeLoader):
    """YAML without aliases, whose doubling has no end, without repeated keys, and with decimal numbers only."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to another place with *, which options have no use for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        twice = repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice is not None:
            raise yaml.YAMLError(f"{ascii(twice)[:60]} stands twice")
        return super().construct_mapping(node, deep)

    def decimal(self, node):
        text = self.construct_scalar(node)
        if not re.fullmatch(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?\.inf|\.nan", text,
                            re.IGNORECASE):
            raise yaml.YAMLError(f"{text} is no decimal number in YAML; write it without leading zeros, 0x, : and _, "
                                 "or in quotes")
        return int(text) if re.fullmatch(r"[-+]?[0-9]+",
                                         text) else float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _kind in ("int", "float"):
    _Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", _Plain.decimal)


def read_yaml(path: str, fix: str = "give a YAML file of options"):
    """What a YAML file holds: plain values, lists and mappings."""
    text = read_text(path, YAML_BYTES)
    try:
        return yaml.load(text, _Plain)                      # a SafeLoader
    except FAULTS as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); {fix}") from error


def plain_file(path: str) -> str:
    """`path`, unless it is a pipe or a device, which would be waited for without end."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError("it is no plain file")
    return path


def read_array(path: str, fix: str, what: str = "numbers") -> np.ndarray:
    """The array of an .npy file, mapped and not read. Raises InputError on any other file, also on an .npz archive."""
    try:
        plain_file(path)
        return np.lib.format.open_memmap(path, mode="r")
    except FAULTS as error:
        raise InputError(f"{path} is not a whole .npy file of {what} ({reason(error)}); {fix}") from error


def read_arrays(path: str, fix: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, {name: array}. Raises InputError on any other file, and on one that would not fit."""
    arrays = {}
    try:
        with zipfile.ZipFile(plain_file(path)) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > NPZ_BYTES:
                raise InputError(f"{path} holds {size:,} bytes of arrays, and at most {NPZ_BYTES:,} are read; {fix}")
            for member in members:
                name, ending = os.path.splitext(member.filename)
                if ending != ".npy" or name in arrays:
                    raise ValueError(f"its member {ascii(member.filename)[:60]} is no array of a name of its own")
                with archive.open(member) as f:
                    check_header(f, member.file_size)
                with archive.open(member) as f:
                    arrays[name] = np.lib.format.read_array(f, allow_pickle=False)
    except InputError:
        raise
    except FAULTS as error:
        raise InputError(f"{path} is no .npz file of plain arrays ({reason(error)}); {fix}") from error
    return arrays


def check_header(f, size: int) -> None:
    """Raise ValueError unless an .npy file of `size` bytes holds just the plain numbers or text that its header
    announces: memory is taken for what it announces."""
    version = np.lib.format.read_magic(f)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
    shape, _, dtype = read(f)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    announced = dtype.itemsize
    for n in shape:
        announced *= n
    if announced != size - f.tell():
        raise ValueError(f"an array announces {announced:,} bytes and has {size - f.tell():,}")


def integers(values, path: str, what: str) -> np.ndarray:
    """(K,) int64 of whole numbers read from `path`; raises InputError on anything else, also on those beyond 64
    bits."""
    for value in values:
        if type(value) is not int and not isinstance(value, np.integer) or not INT64.min <= value <= INT64.max:
            raise InputError(f"{path} gives {what} {reason(ValueError(ascii(value)), 40)}, which is no whole number of "
                             "at most 64 bits; write numbers such as COCO's")
    return np.array(list(values), np.int64)


def as_integers(ids: list) -> list | None:
    """Ids and lines of digits as integers; None where one is other text, as a number beyond 64 bits is."""
    return [int(i) for i in ids] if all(isinstance(i, int) or re.fullmatch("[0-9]{1,18}", i) for i in ids) else None


def read_integers(path: str) -> np.ndarray:
    array = read_array(path, "fetch or save it again", "integers")
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{path} is not a whole .npy file of integers (it holds {array.dtype} of shape "
                         f"{array.shape}); fetch or save it again")
    return array.astype(np.int64)


def read_coco(path: str):
    """A file of COCO's annotations, captions or instances, indexed by pycocotools. Raises InputError."""
    from pycocotools.coco import COCO  # takes matplotlib along

    coco = COCO()
    coco.dataset = read_json(path)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            coco.createIndex()
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of COCO's annotations ({reason(ValueError(repr(error)))} is missing); "
                         "fetch it again") from error
    return coco
