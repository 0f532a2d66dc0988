"""Tables of images and captions: .jsonl (an object a line), .json (a list of objects), .parquet.

A row is one image with a caption or a list of captions, as data sets of Hugging Face, BLIP's
annotations and clip-retrieval's metadata have it:

    {"image": "photos/1.jpg", "captions": ["a dog runs", "a dog on grass"]}
    {"image": "photos/2.jpg", "caption": "a cat"}

`find_tables` finds those of a split, `read_table` reads them; data.py makes splits of the rows, and
evaluation/reading.py embeddings. Reading runs no code from a file.
"""

import glob
import os
from typing import NamedTuple

import numpy as np

from utils import InputError, need, read_json, read_json_lines, refusing

TABLE_ENDINGS = (".jsonl", ".json", ".parquet")
IMAGE_COLUMNS = ("image", "image_path", "file_name", "filename", "filepath")
CAPTION_COLUMNS = ("captions", "caption", "text")
SPLIT_COLUMN = "split"
# Other names of splits.
NAMES_OF_SPLIT = {"dev": ("dev", "val", "validation"), "val": ("val", "validation", "dev")}
SAFE_PYARROW = (14, 0, 1)  # older ones may run code from a file (CVE-2023-47248)
NO_PYARROW = "needs the package pyarrow: pip install 'pyarrow>=14.0.1', or save the rows as .jsonl"


class TableRow(NamedTuple):
    """A row of a table."""

    image: str | int | None  # a path or an id; None where there is no such column
    captions: list[str]
    place: str  # for messages


# ---- which files


def find_tables(root: str, split: str) -> list[str]:
    """List the tables of a split in a folder: NAME.jsonl, or NAME-*.parquet in it or its data/.

    Without any, the only table of the folder, which needs a column "split".
    """
    for name in NAMES_OF_SPLIT.get(split, (split,)):
        for ending in TABLE_ENDINGS:
            path = os.path.join(root, name + ending)
            if os.path.isfile(path):
                return [path]
        for folder in (root, os.path.join(root, "data")):
            pattern = os.path.join(glob.escape(folder), f"{glob.escape(name)}-*.parquet")
            paths = sorted(glob.glob(pattern))
            if paths:
                return paths

    common = find_common_table(root)
    if common is None:
        return []
    return [common]


def find_common_table(root: str) -> str | None:
    """Find the table of all splits, the only .jsonl or .parquet of a folder; None where none is."""
    paths = []
    for ending in (".jsonl", ".parquet"):
        paths += glob.glob(os.path.join(glob.escape(root), f"*{ending}"))
    names = {"train", "test", "testall", "restval", *NAMES_OF_SPLIT["dev"]}
    for path in paths:
        if os.path.splitext(os.path.basename(path))[0].split("-")[0] in names:
            return None
    if len(paths) != 1:
        return None
    return paths[0]


def holds_tables(root: str) -> bool:
    """True if a folder holds a table of any split."""
    return any(find_tables(root, split) for split in ("train", "dev", "test", "testall"))


# ---- their rows


def read_rows(root: str, split: str) -> list[TableRow]:
    """Read the rows of a split of a folder. Raises InputError where it has none."""
    paths = find_tables(root, split)
    if not paths:
        raise InputError(
            f"{root} has no table of the split {split}: looked for {split}.jsonl, {split}.json and "
            f"{split}.parquet, and for one table with a column '{SPLIT_COLUMN}'"
        )
    names = NAMES_OF_SPLIT.get(split, (split,))
    common = paths == [find_common_table(root)]

    rows = []
    for path in paths:
        columns = [*IMAGE_COLUMNS, *CAPTION_COLUMNS, SPLIT_COLUMN]
        for place, values in read_table(path, columns):
            if common:
                if SPLIT_COLUMN not in values:
                    raise InputError(
                        f"{place} has no '{SPLIT_COLUMN}'; write it (train, dev or test), or save "
                        "each split as a table of its own: train.jsonl, dev.jsonl, test.jsonl"
                    )
                if values[SPLIT_COLUMN] not in names:
                    continue
            rows.append(read_row(place, values))
    if not rows:
        raise InputError(f"{paths[0]} has no row of the split {split}; name another --split")
    return rows


def read_row(place: str, values: dict) -> TableRow:
    """Read image and captions of a row. Raises InputError on other kinds of values."""
    captions = None
    for name in CAPTION_COLUMNS:
        if captions is None:
            captions = values.get(name)
    if isinstance(captions, str):
        captions = [captions]
    texts = isinstance(captions, list) and all(isinstance(text, str) for text in captions)
    if not texts:
        raise InputError(
            f"{place} has no caption; give it 'caption', a text, or 'captions', a list of texts "
            f"(it has {', '.join(values) or 'nothing'})"
        )
    captions = [text.replace("\r", " ").replace("\n", " ").strip() for text in captions]

    image = None
    for name in IMAGE_COLUMNS:
        if image is None:
            image = values.get(name)
    if isinstance(image, dict):  # Hugging Face's feature Image
        if image.get("bytes"):
            raise InputError(
                f"{place} holds the photo itself; save the photos as files and their paths as "
                "'image', for example photo.save(path) for each row of the data set"
            )
        image = image.get("path")
    if image is not None and type(image) not in (str, int):
        raise InputError(
            f"{place} has an image of type {type(image).__name__}; give the path of its photo"
        )
    return TableRow(image, captions, place)


def read_table(path: str, columns: list[str]) -> list[tuple[str, dict]]:
    """Read rows as (place for messages, {name: value}); of a .parquet these columns alone."""
    if path.endswith(".parquet"):
        rows = read_parquet(path, columns).to_pylist()
        return [(f"{path}, row {k}", row) for k, row in enumerate(rows, 1)]

    rows = []
    if path.endswith(".json"):
        values = read_json(path, "write a list of objects")
        if not isinstance(values, list):
            raise InputError(f"{path} holds no list of rows; write [{{...}}, {{...}}]")
        for k, value in enumerate(values, 1):
            rows.append((f"{path}, row {k}", value))
    else:
        rows = read_json_lines(path, "write one object a line")
    for place, value in rows:
        if not isinstance(value, dict):
            raise InputError(f"{place} is not an object with names and values; write {{...}}")
    return rows


def read_parquet(path: str, columns: list[str] | None = None):
    """Read a .parquet as a pyarrow.Table, of these columns those that it has; None: all."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path} {NO_PYARROW}") from None
    version = tuple(int(part) for part in pyarrow.__version__.split(".")[:3] if part.isdigit())
    if version < SAFE_PYARROW:
        raise InputError(f"{path} {NO_PYARROW} (pyarrow {pyarrow.__version__} is here)")

    fix = "write it again"
    with (
        refusing(f"{path} is damaged or not a .parquet file", fix),
        open(need(path, fix), "rb") as file,
    ):
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if columns is not None:
            names = [name for name in names if name in columns]
        return table.read(columns=names)


def read_vectors(column, path: str) -> np.ndarray:
    """Read a column of lists of numbers as (rows, D). Raises InputError where lengths differ."""
    with refusing(f"{path} is not a column of vectors", "write a list of numbers in each row"):
        lists = column.combine_chunks()
        if lists.null_count:
            raise InputError(f"{path}: {lists.null_count} rows have no vector; leave them out")
        numbers = lists.flatten().to_numpy(zero_copy_only=False)
        offsets = np.cumsum([0, *(len(row) for row in lists)])
        widths = np.unique(np.diff(offsets))
        if len(widths) != 1:
            raise InputError(
                f"{path} has vectors of {widths.min()} to {widths.max()} numbers; write all of one "
                "length"
            )
        return numbers.reshape(len(lists), -1)
