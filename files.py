"""Reading of files with sentences for faults, and writing in one step.

`need` and the `read_*` functions raise InputError where a file is missing or not what it should be.
`output` says whether results may be written somewhere. `atomic` and the `save_*` functions write a
file whole or not at all.
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import yaml

import cli
from cli import InputError, identify_file, reason, refuse_output, spell_value

FORMAT = 1  # of checkpoint.pt and model_best.pt
INT64 = np.iinfo(np.int64)
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


# ---- checks of names


@contextlib.contextmanager
def refusing(what: str, fix: str, kinds=Exception):
    """Turn exceptions of `kinds` into InputError in a context: "what (reason); fix"."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({reason(error)}); {fix}") from error


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
    if cli.in_use:
        for path in paths:
            cli.in_use.add_input(path)


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


def count_nodes(node: yaml.Node, counts: dict[yaml.Node, float]) -> float:
    """Count the values of a part of a YAML file, those of a repeated part each time.

    Infinity where the part holds itself.
    counts: of the parts that are known already.
    """
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


def read_array(path: str, fix: str) -> np.ndarray:
    """Map the array of an .npy file into memory.

    Raises InputError on any other file, .npz archives included.
    """
    # numpy would warn of a size that the error names
    with (
        refusing(f"{path} is not a whole .npy file of numbers", fix),
        np.errstate(over="ignore"),
    ):
        return np.lib.format.open_memmap(need(path, fix), mode="r")


def read_arrays(path: str, fix: str) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, {name: array}. Raises InputError on any other file."""
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


def integers(values, path: str, what: str) -> np.ndarray:
    """Convert values from `path` to int64 (K,), or raise InputError. what: their name."""
    values = list(values)
    if set(map(type, values)) == {int}:
        with contextlib.suppress(OverflowError):  # the loop below finds the large one
            return np.array(values, np.int64)

    for value in values:
        whole = type(value) is int or isinstance(value, np.integer)
        if not whole or not INT64.min <= value <= INT64.max:
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
    if cli.in_use:
        cli.in_use.forget(replaced)


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
    if getattr(error, "errno", None) in cli.FULL:
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
    """Write each text as one line. Line breaks within a text become blanks."""
    with atomic(path) as f:
        for line in lines:
            f.write(re.sub(r"[\r\n]+", " ", line) + "\n")


def save_array(path: str, array: np.ndarray) -> None:
    """Write an .npy file."""
    with atomic(path, "wb") as f:
        np.save(f, array)


def save_arrays(path: str, arrays: dict) -> None:
    """Write an .npz file of {name: array}."""
    with atomic(path, "wb") as f:
        np.savez(f, **arrays)


@contextlib.contextmanager
def mapped(path: str, shape: tuple, dtype):
    """Map an array within a context; it becomes the .npy file `path` at its end."""
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
    if cli.in_use:
        cli.in_use.add_output(path)
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
        if cli.in_use:
            cli.in_use.new_folders.append(folder)
    os.makedirs(folder, exist_ok=True)  # raises where it is a file
