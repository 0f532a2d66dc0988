"""Write region features of bottom-up attention in SCAN's layout.
Anderson et al. 2018.

    python -m features.regions --data_name coco_precomp --source trainval_resnet101_faster_rcnn_genome_36.tsv

Each source is a TSV file with the columns image_id, image_w, image_h, num_boxes, boxes and features, the last two
float32 in base64, or a folder with a file an image: .npz with `x`, `features` or `feat`, perhaps with `bbox` or
`boxes`, or .npy. Of the images that {split}_img_ids.npy or {split}_ids.txt names, in this order and each once, it
writes {split}_ims.npy, (N, 36, 2048) float32, and, where the sources have boxes, {split}_boxes.npy, (N, 36, 4) in
pixels. One image is held at a time, so the sources may be larger than memory.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import base64
import contextlib
import csv
import os
import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from tqdm import tqdm

import cli
from cli import Arguments, check, data_set, filename, positive, split_name
from data import read_extractors, read_ids
from files import FAULTS, mapped, need, output, plain_file, read_array, read_arrays, refusing

COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
FIELD_BYTES = 1 << 26                 # of a column: 100 regions of 2,048 numbers have 1.1 MB
FEATURES, BOXES = ("x", "features", "feat"), ("bbox", "boxes")      # names of arrays
FIX = "fetch it again, or leave the file out"


def decode_row(path: str, row: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Decode features (P, F) and boxes (P, 4) of a row of a TSV file.
    Raises InputError."""
    with refusing(f"{path}: the row of image {row[0]} holds no features of {row[3]} boxes", FIX):
        boxes, features = (np.frombuffer(base64.b64decode(text.removeprefix("b'").removesuffix("'"), validate=True),
                                         np.float32).reshape(int(row[3]), -1) for text in row[4:])
    return features, boxes


def read_tsv(path: str) -> Iterator[tuple[str, Callable]]:
    """Yield image ids of a TSV file, and functions that read their features.
    Raises InputError."""
    csv.field_size_limit(FIELD_BYTES)
    with (refusing(f"{path} is no TSV file of {', '.join(COLUMNS)}", FIX, (*FAULTS, csv.Error)),
          open(plain_file(path), encoding="utf-8", newline="") as f):
        for row in csv.reader(f, delimiter="\t", quoting=csv.QUOTE_NONE):
            if len(row) != len(COLUMNS):
                raise ValueError(f"a row has {len(row)} columns")
            if row[0] != COLUMNS[0]:                        # some files have a header
                yield row[0], partial(decode_row, path, row)


def read_file(path: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Read features (P, F) and boxes (P, 4) or None of an .npz or .npy file.
    Raises InputError."""
    if path.endswith(".npy"):
        return read_array(path, FIX), None
    arrays = read_arrays(path, FIX)
    features, boxes = (next((arrays[name] for name in names if name in arrays), None) for names in (FEATURES, BOXES))
    check(features is not None, f"{path} holds {', '.join(arrays)} and none of {', '.join(FEATURES)}; {FIX}")
    return features, boxes


def read_source(path: str) -> Iterator[tuple[str, Callable]]:
    """Yield the id of each image of a source, and a function that reads its features.
    Raises InputError."""
    if not os.path.isdir(path):
        yield from read_tsv(need(path, "give a TSV file, or a folder of .npz or .npy files"))
        return
    for name in sorted(os.listdir(path)):
        stem, ending = os.path.splitext(name)
        if ending in (".npz", ".npy"):
            yield stem, partial(read_file, os.path.join(path, name))


def image_key(name: str) -> str:
    """Shorten an image's id or file name to the number in bottom-up attention's files."""
    stem = re.sub(r"\.(jpe?g|png)$", "", name, flags=re.IGNORECASE)
    number = re.fullmatch(r"(?:COCO_[a-z]+\d+_)?0*(\d+)", stem)
    return number[1] if number else stem


def read_places(folder: str, splits: list[str]) -> tuple[dict[str, int], dict[str, list]]:
    """Read the number of images of each split, and {key of an image: [(split, row)]}.
    Raises InputError without ids."""
    counts, places = {}, {}
    for split in splits:
        start = os.path.join(folder, split)
        ids = read_ids(f"{start}_img_ids.npy") or read_ids(f"{start}_ids.txt")
        check(ids, f"{folder} has no {split}_img_ids.npy or {split}_ids.txt, which name the images of '{split}' in "
                   "their order; put the one of your captions there")
        keys = dict.fromkeys(image_key(str(name)) for name in ids)                  # a line a caption in SCAN's files
        counts[split] = len(keys)
        for row, key in enumerate(keys):
            places.setdefault(key, []).append((split, row))
    return counts, places


def check_regions(image: str, array: np.ndarray | None, regions: int, width: int | None) -> np.ndarray:
    """Return an image's regions as (P, F), turned where they are (F, P).
    Raises InputError for other shapes or NaN."""
    check(array is not None, f"image {image} has no boxes, and images before it have some; fetch its file again")
    array = array.T if array.ndim == 2 and array.shape[1] == regions != len(array) else array
    check(array.ndim == 2 and len(array) == regions and width in (None, array.shape[1]) and np.isfinite(array).all(),
          f"image {image} has {array.shape} numbers, and {(regions, width or 'F')} finite ones are needed; take the "
          f"features of {regions} regions an image, or give --regions")
    return array


class Writer:
    """The arrays of all splits, which become files when the context ends.
    They are made when the first image comes."""

    def __init__(self, stack: contextlib.ExitStack, folder: str, counts: dict[str, int], regions: int):
        self.stack, self.folder, self.counts, self.regions, self.arrays = stack, folder, counts, regions, {}

    def write(self, image: str, rows: list, features: np.ndarray, boxes: np.ndarray | None) -> None:
        """Write an image's features and boxes to its rows, (split, row).
        Raises InputError where they do not fit."""
        values = {"ims": features, **({} if boxes is None else {"boxes": boxes})}
        for end in self.arrays or values:
            width = self.arrays[end][rows[0][0]].shape[2] if self.arrays else None
            values[end] = check_regions(image, values.get(end), self.regions, width)
        if not self.arrays:
            self.arrays = {end: {split: self.stack.enter_context(mapped(
                os.path.join(self.folder, f"{split}_{end}.npy"), (count, *array.shape), np.float32))
                for split, count in self.counts.items()} for end, array in values.items()}
        for end, arrays in self.arrays.items():
            for split, row in rows:
                arrays[split][row] = values[end]


def run(opt) -> None:
    """Write the arrays.
    Raises InputError, which names images that are missing or have another number of regions."""
    folder = os.path.join(opt.data_path, opt.data_name)
    line = read_extractors(folder).get("ims")
    check(not line, f"{folder} holds features of {line}; give a folder of its own with the captions and ids")
    counts, places = read_places(folder, opt.splits)
    for path in (os.path.join(folder, f"{split}_{end}.npy") for split in opt.splits for end in ("ims", "boxes")):
        output(path, overwrite=opt.overwrite)
    with contextlib.ExitStack() as stack, tqdm(total=len(places), desc="images", disable=None, leave=False) as bar:
        writer = Writer(stack, folder, counts, opt.regions)
        for image, load in (pair for source in opt.source for pair in read_source(source)):
            rows = places.pop(image_key(image), None)
            if rows:
                writer.write(image, rows, *load())
                bar.update()
        check(not places, f"{len(places):,} images are in no source, the first is {next(iter(places), None)}; give all "
                          "files with --source, or name the splits that they hold with --splits")
    for split in opt.splits:
        print(f"{os.path.join(folder, split)}_ims.npy: {writer.arrays['ims'][split].shape}, "
              f"{'with' if 'boxes' in writer.arrays else 'without'} boxes")


def main(argv=None) -> None:
    p = Arguments("Write region features of bottom-up attention in SCAN's layout.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the captions and ids, below --data_path")
    add("--source", type=filename, nargs="+", required=True, metavar="PATH",
        help="TSV files, or folders of .npz or .npy files, one an image")
    add("--splits", type=split_name, nargs="+", default=["train", "dev", "test"], help="splits to write")
    add("--regions", type=positive, default=36, metavar="N", help="regions an image")
    add("--overwrite", action="store_true", help="replace the files that are there")
    cli.run("features.regions", run, p.parse_args(argv))


if __name__ == "__main__":
    main()
