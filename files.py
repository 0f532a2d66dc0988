"""Reading of files with sentences for faults, and writing in one step."""
import contextlib
import glob
import hashlib
import io
import json
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
import yaml

from cli import InputError, check, reason

FORMAT = 1                            # of checkpoint.pt and model_best.pt
NPZ_BYTES = 16 << 30                  # an .npz file is read whole; a larger one is refused
TEXT_BYTES = 4 << 30                  # the largest text of the field, Visual Genome's regions, has 0.7 GiB
YAML_BYTES = 1 << 20                  # a YAML file holds options, some hundred lines
INT64 = np.iinfo(np.int64)
# What zipfile, numpy, json and yaml raise on files that are cut, nested or encrypted, that have flipped bits, or whose
# headers are false.
FAULTS = (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, EOFError, SyntaxError, MemoryError,
          OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
          yaml.YAMLError)
# Folder or file below --data_path -> where its real data come from, as far as is known (addresses of 2017 to 2026).
SOURCES = {
    "coco": "COCO's train2014.zip, val2014.zip and annotations_trainval2014.zip (cocodataset.org) and the "
            "coco_*_ids.npy of VSE++ (data.tar of github.com/fartashf/vsepp)",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features); for CxC, PMRP and ECCV also coco_test_ids.npy of VSE++'s data.tar "
                    "and testall_img_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (by a form of the University of Illinois) and dataset_flickr30k.json of Karpathy's "
            "caption_datasets.zip",
    "f30k_entities": "Annotations/ and Sentences/ of annotations.zip and the splits train.txt, val.txt, test.txt "
                     "(github.com/BryanPlummer/flickr30k_entities), and Flickr30k's photos in images/",
    "f8k": "Flickr8k's photos, Flickr8k_Dataset.zip (by a form of the University of Illinois), and "
           "dataset_flickr8k.json of Karpathy's caption_datasets.zip",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos (features.images --layer cells)",
    "coco/annotations/instances_val2014.json": "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions (github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json and photos (visualgenome.org)",
    "GoogleNews-vectors-negative300.bin": "word2vec's vectors of Google News, 3.4 GiB (code.google.com/archive/p/"
                                          "word2vec)"}
HELP = ("docs/data.md says what comes from where, `python data.py check` what is there, `python -m demo` writes demo "
        "data")


def advice(data_name: str) -> str:
    """The fix where a data set is missing."""
    return f"{f'{data_name} is {SOURCES[data_name]}; ' if data_name in SOURCES else ''}{HELP}"


# ---- checks of names

@contextlib.contextmanager
def refusing(what: str, fix: str, kinds=FAULTS):
    """Context that turns exceptions of `kinds` into InputError.
    The message is "what (reason); fix"."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({reason(error)}); {fix}") from error


def readable(reader, *args) -> bool:
    """True if reader(*args) reads its files without a fault."""
    try:
        reader(*args)
    except FAULTS:
        return False
    return True


def below(folder: str, name: str, source: str) -> str:
    """Join folder and a name from the file `source`.
    Raises InputError where it leads out of the folder."""
    text = str(name)
    outside = os.path.isabs(text) or ".." in text.replace("\\", "/").split("/") or "\0" in text
    check(not outside, f"{source} names the file {quote(name)}, which lies outside {folder}; names are of files within "
                       "it, without a leading / and without ..")
    return os.path.join(folder, text)


def quote(value) -> str:
    """A value that a file gives, for a message."""
    return reason(ValueError(ascii(value)), 80)


def need(path: str, fix: str) -> str:
    """The path of a file. Raises InputError with the `fix` where there is none."""
    check(os.path.isfile(path), f"there is no file {path}; {fix}")
    return path


def plain_file(path: str) -> str:
    """The path.
    Raises OSError if it is a pipe or a device, since reading one might never end."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError("it is no plain file")
    return path


def repeated(names):
    """The first name that occurs more than once, or None."""
    return next((name for name, n in Counter(names).items() if n > 1), None)


# ---- reading

def read_text(path: str, most: int = TEXT_BYTES) -> str:
    """Read a UTF-8 text file, with or without a byte order mark.
    Raises InputError; also for a pipe or a device, and above `most` bytes."""
    with (refusing(f"{path} cannot be read", "check its name and its permissions", OSError),
          open(plain_file(path), encoding="utf-8-sig") as f):
        size = os.path.getsize(path)
        check(size <= most, f"{path} has {size:,} bytes, and at most {most:,} are read; it is another file")
        with refusing(f"{path} is not UTF-8 text", "convert it with iconv", UnicodeDecodeError):
            return f.read()


def read_lines(path: str) -> list[str]:
    """The lines of a text file, without their line ends."""
    lines = read_text(path).split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_json(path: str, fix: str = "fetch it again", unique: bool = False):
    """The value in a JSON file of finite numbers and UTF-8 text.
    Raises InputError with the `fix`.

    unique: refuse a name that stands twice in an object (else the last one counts).
    """
    def refuse_constant(name: str):
        raise ValueError(f"{name} is no number in JSON")

    def distinct(pairs: list) -> dict:
        twice = repeated(name for name, _ in pairs)
        if twice is not None:
            raise ValueError(f"{ascii(twice)[:60]} stands twice in one object")
        return dict(pairs)
    text = read_text(path)
    with refusing(f"{path} is not JSON", fix):
        value = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=distinct if unique else None)
        if re.search(r"\\u[dD][89a-fA-F]", text):           # half a surrogate pair is no text
            json.dumps(value, ensure_ascii=False).encode()
    return value


class _Options(yaml.SafeLoader):
    """Reads YAML with decimal numbers only, and refuses repeated keys."""

    def construct_mapping(self, node, deep=False):
        twice = repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice is not None:
            raise yaml.YAMLError(f"{ascii(twice)[:60]} stands twice")
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node):
        text = self.construct_scalar(node)
        if not re.fullmatch(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?\.inf|\.nan", text, re.I):
            raise yaml.YAMLError(f"{text} is no decimal number in YAML; write it without leading zeros, 0x, : and _, "
                                 "or in quotes")
        return yaml.SafeLoader.yaml_constructors[node.tag](self, node)


for _kind in ("int", "float"):
    _Options.add_constructor(f"tag:yaml.org,2002:{_kind}", _Options.construct_decimal)


def read_yaml(path: str):
    """The plain values, lists and mappings of a YAML file. Raises InputError."""
    text = read_text(path, YAML_BYTES)
    with refusing(f"{path} cannot be read", "give a YAML file of options"):
        return yaml.load(text, _Options)                    # a SafeLoader


def read_array(path: str, fix: str) -> np.ndarray:
    """The array of an .npy file, mapped and not read.
    Raises InputError on any other file, .npz archives included."""
    with refusing(f"{path} is not a whole .npy file of numbers", fix):
        return np.lib.format.open_memmap(plain_file(path), mode="r")


def read_arrays(path: str, fix: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, {name: array}.
    Raises InputError on any other file, and above NPZ_BYTES."""
    with (refusing(f"{path} is no .npz file of plain arrays", fix), zipfile.ZipFile(plain_file(path)) as archive):
        size = sum(member.file_size for member in archive.infolist())
        check(size <= NPZ_BYTES,
              f"{path} holds {size:,} bytes of arrays, and at most {NPZ_BYTES:,} are read; {fix}")
        names = archive.namelist()
        other = repeated(names) or next((name for name in names if not name.endswith(".npy")), None)
        if other:
            raise ValueError(f"its member {quote(other)} is no array of a name of its own")
        arrays = {}
        for name in names:
            with archive.open(name) as f:
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(f, allow_pickle=False)
                if f.read(1):
                    raise ValueError(f"its member {quote(name)} goes on behind its array")
    return arrays


def integers(values, path: str, what: str) -> np.ndarray:
    """Values (K,) int64 that were read from `path`.
    Raises InputError on all but whole numbers of at most 64 bits. what: the values' name in the message."""
    for value in values:
        whole = type(value) is int or isinstance(value, np.integer)
        check(whole and INT64.min <= value <= INT64.max,
              f"{path} gives {what} {quote(value)}, which is no whole number of at most 64 bits; write numbers such as "
              "COCO's")
    return np.array(list(values), np.int64)


def as_integers(ids: list) -> list | None:
    """Ids, integers or strings of at most 18 digits, as integers, or None.
    None where one of them is any other text."""
    return ([int(i) for i in ids] if all(isinstance(i, int) or re.fullmatch("[0-9]{1,18}", i) for i in ids) else None)


def read_ids(path: str) -> list:
    """Ids from an .npy file of integers or lines of text.
    Empty without such a file. Raises InputError."""
    if not os.path.isfile(path):
        return []
    if not path.endswith(".npy"):
        return read_lines(path)
    array = read_array(path, "fetch or save it again")
    check(array.ndim == 1 and array.dtype.kind in "iu" and array.max(initial=0) <= INT64.max,
          f"{path} is not a whole .npy file of integers (it holds {array.dtype} of shape {array.shape}); fetch or save "
          "it again")
    return array.tolist()


def read_coco(path: str):
    """Read COCO's annotations (captions or instances), indexed by pycocotools.
    Raises InputError."""
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


# ---- captions of photos

class Caption(NamedTuple):
    """A caption and its photo, as a file gives them."""
    image: int | str                  # COCO's id, or a name
    photo: str                        # path
    text: str
    id: int | None


def split_in_files(split: str, exists) -> str:
    """Name by which a folder calls a split: dev and val are one.
    exists: name -> bool."""
    return next(filter(exists, (split, "dev", "val")), split) if split in ("dev", "val") else split


def karpathy_file(root: str) -> str | None:
    """The path of the JSON file in Karpathy's layout in a folder, or None."""
    return next(iter(sorted(glob.glob(os.path.join(root, "dataset*.json")))), None)


def read_karpathy_captions(root: str, split: str, use_restval: bool = False) -> tuple[str, list[Caption], dict]:
    """Read the captions of a split in Karpathy's layout.
    Returns the path of the JSON, captions, {image: its entry}. Raises InputError."""
    path, images, captions = karpathy_file(root), {}, []
    parts = {"dev": ["val"], "train": ["train", "restval"][:1 + use_restval]}.get(split, [split])
    with refusing(f"{path} is not in Karpathy's layout, of images with split, filename and sentences with raw",
                  "fetch it again"):
        for image in read_json(path)["images"]:
            if image["split"] not in parts:
                continue
            name = os.path.join(image.get("filepath", ""), image["filename"])
            key = image.get("cocoid", name)
            other = os.path.join(images[key].get("filepath", ""), images[key]["filename"]) if key in images else None
            check(key not in images, f"{path} lists the images {other} and {name} of split '{split}' as one, {key}; "
                                     "list each once, with all its sentences and a cocoid of its own")
            images[key], photo = image, below(os.path.join(root, "images"), name, path)
            for sentence in image["sentences"]:
                text = sentence["raw"]
                check(isinstance(text, str), f"{path}, image {name}: the raw sentence {quote(text)} is no string; put "
                                             "its text in quotes")
                captions.append(Caption(key, photo, text, sentence.get("sentid")))
    check(images, f"{path} has no images of split '{split}'; the splits are train, val (= dev) and test")
    check(captions, f"{path} has {len(images):,} images of split '{split}' and not one sentence of them; give every "
                    "image at least one")
    return path, captions, images


def read_coco_captions(root: str, split: str, use_restval: bool = False) -> tuple[str, list[Caption]]:
    """Captions of a split of VSE++ in COCO's layout, and the path of their JSON.
    Raises InputError."""
    split, fix, captions = "dev" if split == "val" else split, advice(os.path.basename(root)), []
    parts = {split: "train2014" if split == "train" else "val2014"}
    if use_restval and split == "train":
        parts["restval"] = "val2014"                        # 30,504 images of the 2014 val set
    for part, folder in parts.items():
        ids_path = need(os.path.join(root, "annotations", f"coco_{part}_ids.npy"), fix)
        path = need(os.path.join(root, "annotations", f"captions_{folder}.json"), fix)
        numbers, coco = read_ids(ids_path), read_coco(path)
        absent = [i for i in numbers if i not in coco.anns]
        check(not absent, f"{ids_path} names {len(absent)} captions that {path} lacks, the first is "
                          f"{(absent or [0])[0]}; the two files must belong together")
        twice = repeated(numbers)
        check(twice is None, f"{ids_path} names the caption {twice} twice; name each once")
        photos = os.path.join(root, "images", folder)
        with refusing(f"{path} is no file of COCO's captions, or lacks a field", "fetch it again"):
            for i in numbers:
                image, text = coco.anns[i]["image_id"], coco.anns[i]["caption"].replace("\n", " ").strip()
                captions.append(Caption(image, below(photos, coco.imgs[image]["file_name"], path), text, i))
    check(captions, f"{ids_path} names no captions; fetch it again")
    return path, captions


# ---- checksums

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


# ---- writing

@contextlib.contextmanager
def atomic(path: str, mode: str = "w", sync: bool = True):
    """Open a file that becomes `path` when it is complete.
    If anything fails before that, `path` stays as it was.

    The folder is created. A link stays a link. Without `sync` a power cut may leave an empty file; this is for
    thousands of small files whose contents are checked elsewhere.
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with replaced(path) as part, open(part, mode, **text) as f:
        yield f
        f.flush()
        if sync:
            os.fsync(f.fileno())


@contextlib.contextmanager
def replaced(path: str):
    """Context with a temporary name that becomes `path` at its end, as `atomic`."""
    path = os.path.realpath(path)
    part = part_of(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    clear(path)
    try:
        yield part
        os.replace(part, path)
    except BaseException:             # a full disk, an error in the caller, a signal
        remove(part)
        raise


def part_of(path: str) -> str:
    """The temporary name under which this process writes a file until it is complete."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.part")


def clear(path: str) -> None:
    """Remove temporary files that killed processes left beside `path`."""
    folder, name = os.path.split(path)
    for file in os.listdir(folder or "."):
        match = re.fullmatch(re.escape(f".{name}.") + r"(\d+)\.part", file)
        if match and not alive(int(match[1])):
            remove(os.path.join(folder, file))


def alive(process: int) -> bool:
    """True if a process with this number runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:                   # it belongs to another user
        return True
    return True


def remove(*paths: str) -> None:
    """Remove the files that are there and that can be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.remove(path)


def save_state(state: dict, path: str, advice: str) -> None:
    """Replace a checkpoint.
    A full disk or a kill leaves the old one whole. Raises InputError with the `advice`."""
    with (refusing(f"{path} could not be saved", f"the one before it is whole: {advice}", (OSError, RuntimeError)),
          atomic(path, "wb") as f):
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


@contextlib.contextmanager
def mapped(path: str, shape: tuple, dtype):
    """Mapped array that becomes the .npy file `path`, as `atomic`.

    Its disk space is reserved at once, because writing to a mapped file on a full disk would kill the process without
    a message. Raises OSError where there is too little space.
    """
    with replaced(path) as part:
        array = np.lib.format.open_memmap(part, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):
            with open(part, "r+b") as f:
                os.posix_fallocate(f.fileno(), 0, os.path.getsize(part))
        yield array
        array.flush()


def output(path: str, inputs=(), overwrite: bool = True) -> str:
    """The path of results, if they may be written there.
    To be called before the work; it leaves no file behind.

    The folder is created. Raises InputError where `path` cannot be written, where it is one of `inputs` and, without
    `overwrite`, where a file is there already.
    """
    check(not any(same_file(path, source) for source in inputs),
          f"{path} is to be read and cannot be written too; name another file for what comes out")
    with refusing(f"{path} cannot be written", "name a file in a folder that takes new files", OSError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        # Not by its real path: /dev/stdout is a link to a file.
        device = os.path.abspath(path).startswith(("/dev/", "/proc/"))
        if device or os.path.lexists(path) and not os.path.isfile(path):
            raise OSError("it is a folder" if os.path.isdir(path) else "it is no plain file")
        for name in [path] * os.path.lexists(path) + [part_of(os.path.realpath(path))]:
            open(name, "ab").close()
        os.remove(name)
    check(overwrite or not os.path.lexists(path),
          f"{path} is there already; replace it with --overwrite, or name another file")
    return path


def same_file(a: str, b: str) -> bool:
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)
