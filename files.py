"""Files: readers that name the file, what is wrong and the fix; a file is replaced in one step or not at all."""
import contextlib
import hashlib
import io
import json
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections import Counter

import numpy as np
import torch
import yaml

from cli import InputError, check, reason

FORMAT = 1                            # of checkpoint.pt and model_best.pt
CHANGING = ".{}_changing"      # stands in a folder while the files of a split are replaced together
NPZ_BYTES = 16 << 30                  # an .npz file is read whole; a larger one is refused
TEXT_BYTES = 4 << 30                  # the largest text of the field, Visual Genome's regions, has 0.7 GiB
YAML_BYTES = 1 << 20                  # a YAML file holds options, some hundred lines
INT64 = np.iinfo(np.int64)
# What zipfile, numpy, json and yaml raise on faulty contents. Tried with files that are cut, nested
# or encrypted, that have flipped bits, or whose headers are false.
FAULTS = (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, EOFError,
          SyntaxError, MemoryError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error,
          struct.error, tokenize.TokenError, yaml.YAMLError)


# Folder or file below --data_path -> where its real data come from, as far as is known. The
# addresses date from the years 2017 to 2026.
SOURCES = {
    "coco": "COCO's train2014.zip, val2014.zip and annotations_trainval2014.zip (cocodataset.org) "
        "and the coco_*_ids.npy of VSE++ (data.tar of github.com/fartashf/vsepp)",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB (github.com/kuanghuei/SCAN; Kaggle "
        "kuanghueilee/scan-features); for CxC and PMRP also testall_img_ids.npy and "
        "testall_ann_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k (github.com/kuanghuei/SCAN; "
        "Kaggle kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (by a form of the University of Illinois) and "
        "dataset_flickr30k.json of Karpathy's caption_datasets.zip",
    "f30k_entities": "Annotations/ and Sentences/ of annotations.zip and the splits train.txt, "
        "val.txt, test.txt (github.com/BryanPlummer/flickr30k_entities), "
        "and Flickr30k's photos in images/",
    "f8k": "Flickr8k's photos, Flickr8k_Dataset.zip (by a form of the University of Illinois), "
        "and dataset_flickr8k.json of Karpathy's caption_datasets.zip",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.extract images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos "
        "(features.extract images --layer cells)",
    "coco/annotations/instances_val2014.json":
        "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions "
        "(github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json and photos (visualgenome.org)",
    "GoogleNews-vectors-negative300.bin":
        "word2vec's vectors of Google News, 3.4 GiB (code.google.com/archive/p/word2vec)"}
HELP = ("docs/data.md says what comes from where, `python data.py check` what is there, `python -m "
        "demo` writes demo data")


def advice(data_name: str) -> str:
    """What a user can do when a data set is missing."""
    return f"{f'{data_name} is {SOURCES[data_name]}; ' if data_name in SOURCES else ''}{HELP}"


def readable(reader, *args) -> bool:
    """Whether reader(*args) reads its files without a fault."""
    try:
        reader(*args)
    except FAULTS:
        return False
    return True


@contextlib.contextmanager
def refusing(what: str, fix: str, kinds=FAULTS):
    """A context that raises InputError where it fails in one of `kinds`. what: what cannot be."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({reason(error)}); {fix}") from error


def below(folder: str, name: str, source: str) -> str:
    """folder/name, for a name that the file `source` gives. Raises InputError where it leads out of
    the folder."""
    text = str(name)
    outside = os.path.isabs(text) or ".." in text.replace("\\", "/").split("/") or "\0" in text
    check(not outside, f"{source} names the file {shown(name)}, which lies outside {folder}; names "
                       "are of files within it, without a leading / and without ..")
    return os.path.join(folder, text)


def called(split: str, there) -> str:
    """The name by which a folder calls a split, of which there(name) is true: dev and val are one.
    """
    return next(filter(there, (split, "dev", "val")), split) if split in ("dev", "val") else split


def shown(value) -> str:
    """A value that a file gives, for a message."""
    return reason(ValueError(ascii(value)), 80)


def need(path: str, fix: str) -> str:
    """The path of a file. Raises InputError, which says the `fix`, where there is none."""
    check(os.path.isfile(path), f"there is no file {path}; {fix}")
    return path


def read_text(path: str, most: int = TEXT_BYTES) -> str:
    """The UTF-8 text of a file, with or without a byte order mark. Raises InputError; also for a pipe or a device, and
    above `most` bytes."""
    with (refusing(f"{path} cannot be read", "check its name and its permissions", OSError),
          open(plain_file(path), encoding="utf-8-sig") as f):
        size = os.path.getsize(path)
        check(size <= most, f"{path} has {size:,} bytes, and at most {most:,} are read; it is "
                            "another file")
        with refusing(f"{path} is not UTF-8 text", "convert it with iconv", UnicodeDecodeError):
            return f.read()


def read_lines(path: str) -> list[str]:
    """The lines of a text file, without their line ends."""
    lines = read_text(path).split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_json(path: str, fix: str = "fetch it again", unique: bool = False):
    """The value in a JSON file. `unique`: refuse a name that stands twice in an object (else the
    last one counts).

    Raises InputError, which names `fix`, on everything but JSON of finite numbers and UTF-8 text.
    """
    text = read_text(path)
    with refusing(f"{path} is not JSON", fix):
        value = json.loads(text, parse_constant=no_number,
                           object_pairs_hook=once if unique else None)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise ValueError("it has half a surrogate pair, "
                                 f"{error.object[error.start]!a}, which is no text") from error
    return value


def no_number(name: str):
    raise ValueError(f"{name} is no number in JSON")


def once(pairs: list) -> dict:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError(f"{ascii(repeated(name for name, _ in pairs))[:60]} stands twice in one "
                         "object")
    return result


def repeated(names):
    """The first name that occurs more than once, or None."""
    return next((name for name, n in Counter(names).items() if n > 1), None)


class _Plain(yaml.SafeLoader):
    """Reads YAML with decimal numbers only. It refuses repeated keys, and aliases, which can grow
    without limit."""

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
        if not re.fullmatch(
                r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?\.inf|\.nan",
                text, re.IGNORECASE):
            raise yaml.YAMLError(f"{text} is no decimal number in YAML; write it without leading "
                                 "zeros, 0x, : and _, or in quotes")
        return yaml.SafeLoader.yaml_constructors[node.tag](self, node)


for _kind in ("int", "float"):
    _Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", _Plain.decimal)


def read_yaml(path: str):
    """The plain values, lists and mappings of a YAML file. Raises InputError."""
    text = read_text(path, YAML_BYTES)
    with refusing(f"{path} cannot be read", "give a YAML file of options"):
        return yaml.load(text, _Plain)                      # a SafeLoader


def sha256(*parts) -> str:
    """The sha256 of texts, bytes and arrays, one after another, in hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        part = part.encode() if isinstance(part, str) else part
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def checksum(parts) -> str:
    """The first 12 digits of the sha256 of bytes or arrays."""
    return f"sha256:{sha256(*parts)[:12]}"


def file_digest(path: str) -> str:
    """The first 12 digits of the sha256 of a file, or "" if it cannot be read."""
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()[:12]
    except OSError:
        return ""


def plain_file(path: str) -> str:
    """Return `path`. Raises OSError if it is a pipe or a device, since reading one might never end.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError("it is no plain file")
    return path


def read_array(path: str, fix: str) -> np.ndarray:
    """The array of an .npy file, mapped and not read. Raises InputError on any other file, .npz
    archives included."""
    with refusing(f"{path} is not a whole .npy file of numbers", fix):
        return np.lib.format.open_memmap(plain_file(path), mode="r")


def read_arrays(path: str, fix: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, {name: array}. Raises InputError on any other file, and above
    NPZ_BYTES."""
    arrays = {}
    with (refusing(f"{path} is no .npz file of plain arrays", fix),
          zipfile.ZipFile(plain_file(path)) as archive):
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        check(size <= NPZ_BYTES, f"{path} holds {size:,} bytes of arrays, and at most "
                                 f"{NPZ_BYTES:,} are read; {fix}")
        for member in members:
            name, ending = os.path.splitext(member.filename)
            if ending != ".npy" or name in arrays:
                raise ValueError(f"its member {shown(member.filename)} is no array of a name of "
                                 "its own")
            with archive.open(member) as f:
                check_header(f, member.file_size)
                f.seek(0)
                arrays[name] = np.lib.format.read_array(f, allow_pickle=False)
    return arrays


def check_header(f, size: int) -> None:
    """Raise ValueError unless an .npy file of `size` bytes holds exactly the plain numbers or text
    that its header announces. Without this check a false header could reserve any amount of memory.
    """
    form = np.lib.format
    first = form.read_magic(f) == (1, 0)
    shape, _, dtype = (form.read_array_header_1_0 if first else form.read_array_header_2_0)(f)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    total = dtype.itemsize * math.prod(shape)
    if total != size - f.tell():
        raise ValueError(f"an array announces {total:,} bytes and has {size - f.tell():,}")


def integers(values, path: str, what: str) -> np.ndarray:
    """The values that were read from `path`, as (K,) int64. Raises InputError on all but whole
    numbers of at most 64 bits. `what` names the values in the message."""
    for value in values:
        if (type(value) is not int and not isinstance(value, np.integer)
                or not INT64.min <= value <= INT64.max):
            raise InputError(f"{path} gives {what} {shown(value)}, which is no whole number of "
                             "at most 64 bits; write numbers such as COCO's")
    return np.array(list(values), np.int64)


def as_integers(ids: list) -> list | None:
    """Ids (integers or strings of at most 18 digits) as integers, or None where one of them is any
    other text."""
    return ([int(i) for i in ids]
            if all(isinstance(i, int) or re.fullmatch("[0-9]{1,18}", i) for i in ids) else None)


def read_coco(path: str):
    """COCO's annotations (captions or instances) from a file, indexed by pycocotools. Raises
    InputError."""
    from pycocotools.coco import COCO  # it imports matplotlib too

    coco = COCO()
    coco.dataset = read_json(path)
    with (refusing(f"{path} is no file of COCO's annotations, or lacks a field", "fetch it again"),
          contextlib.redirect_stdout(io.StringIO())):
        coco.createIndex()
    for kind, index in (("annotations", coco.anns), ("images", coco.imgs)):
        records = coco.dataset.get(kind, ()) if isinstance(coco.dataset, dict) else ()
        twice = len(index) < len(records) and repeated(record["id"] for record in records)
        check(twice is False, f"{path} has two {kind} with the id {twice}; give each its own")
    return coco


# ---- writing

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
