"""Write region features of bottom-up attention in SCAN's layout.

    python -m features.regions --data_name coco_precomp
        --source trainval_resnet101_faster_rcnn_genome_36.tsv

Anderson et al. 2018. Each source is a TSV file with the columns image_id, image_w, image_h,
num_boxes, boxes and features, the last of them float32 in base64, or a folder with an .npz file per
image that holds `x`, the features. It writes {split}_ims.npy, (N, 36, 2048) float32, for the images
that {split}_img_ids.npy or {split}_ids.txt names, in this order and each once. Boxes are not read.
One image is held at a time, so the sources may be larger than memory.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import base64
import contextlib
import os
import re
from collections.abc import Container, Iterator
from itertools import chain

import numpy as np
from tqdm import tqdm

import utils
from data import read_extractors, read_ids
from utils import (
    Arguments,
    InputError,
    data_set,
    filename,
    mapped,
    need,
    output,
    positive,
    read_arrays,
    refusing,
    split_name,
)

TSV_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
FIX_SOURCE = "fetch it again, or leave the file out"


def image_key(name: str) -> str:
    """Shorten an image's id or file name to the number in bottom-up attention's files."""
    stem = re.sub(r"\.(jpe?g|png)$", "", name, flags=re.IGNORECASE)
    number = re.fullmatch(r"(?:COCO_[a-z]+\d+_)?0*(\d+)", stem)
    if number:
        return number[1]
    return stem


def read_tsv(path: str, wanted: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield keys and features (P, F) of the wanted images of a TSV file."""
    what = f"{path} is not a TSV file of {', '.join(TSV_COLUMNS)}"
    with refusing(what, FIX_SOURCE), open(need(path), encoding="utf-8") as f:
        for line in f:
            row = line.rstrip("\n").split("\t")
            if len(row) != len(TSV_COLUMNS):
                raise ValueError(f"a row has {len(row)} columns")
            image, _, _, n_boxes, _, encoded = row
            if image_key(image) not in wanted:  # also the header that some files have
                continue
            what = f"{path}: the row of image {image} holds no features of {n_boxes} boxes"
            with refusing(what, FIX_SOURCE):
                encoded = encoded.removeprefix("b'").removesuffix("'")
                data = base64.b64decode(encoded, validate=True)
                features = np.frombuffer(data, np.float32).reshape(int(n_boxes), -1)
            yield image_key(image), features


def read_npz_folder(path: str, wanted: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield keys and features (P, F) of the wanted images of a folder of .npz files."""
    for name in sorted(os.listdir(path)):
        key = image_key(name.removesuffix(".npz"))
        if not name.endswith(".npz") or key not in wanted:
            continue
        file = os.path.join(path, name)
        arrays = read_arrays(file, FIX_SOURCE)
        if "x" not in arrays:
            raise InputError(
                f"{file} holds {', '.join(arrays)} and not x, the features; {FIX_SOURCE}"
            )
        yield key, arrays["x"]


def read_source(path: str, wanted: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield keys and features (P, F) of the wanted images of a TSV file or folder."""
    if os.path.isdir(path):
        return read_npz_folder(path, wanted)
    return read_tsv(need(path, "give a TSV file, or a folder of .npz files"), wanted)


def read_positions(folder: str, splits: list[str]) -> tuple[dict[str, int], dict[str, list]]:
    """Read the number of images of each split, and {key of an image: [(split, row)]}."""
    counts = {}
    positions = {}
    for split in splits:
        start = os.path.join(folder, split)
        ids = read_ids(f"{start}_img_ids.npy") or read_ids(f"{start}_ids.txt")
        if not ids:
            raise InputError(
                f"{folder} has no {split}_img_ids.npy or {split}_ids.txt, which name the images of "
                f"'{split}' in their order; put the file of your captions there"
            )
        # SCAN's files have a line for each caption.
        keys = dict.fromkeys(image_key(str(name)) for name in ids)
        counts[split] = len(keys)
        for row, key in enumerate(keys):
            positions.setdefault(key, []).append((split, row))
    return counts, positions


def check_regions(key: str, features: np.ndarray, regions: int, dim: int | None) -> None:
    """Raise InputError unless features are finite numbers (regions, dim); dim None: of any size."""
    fits = features.ndim == 2 and len(features) == regions and dim in (None, features.shape[1])
    if not fits or not np.isfinite(features).all():
        raise InputError(
            f"image {key} has {features.shape} numbers, and {(regions, dim or 'F')} finite ones "
            f"are needed; take the features of {regions} regions per image, or give --regions"
        )


def write_regions(opt) -> None:
    """Write the arrays. Raises InputError, also if images are missing."""
    folder = os.path.join(opt.data_path, opt.data_name)
    line = read_extractors(folder).get("ims")
    if line:
        raise InputError(
            f"{folder} holds features of {line}; give a folder of its own with the captions and ids"
        )
    counts, positions = read_positions(folder, opt.splits)
    paths = {}
    for split in opt.splits:
        path = os.path.join(folder, f"{split}_ims.npy")
        paths[split] = output(path, overwrite=opt.overwrite)

    arrays = {}  # {split: (N, P, F)}, made with the first image
    dim = None
    bar = tqdm(total=len(positions), desc="images", disable=None, leave=False)
    with contextlib.ExitStack() as stack, bar:
        sources = (read_source(source, positions) for source in opt.source)
        for key, features in chain.from_iterable(sources):
            check_regions(key, features, opt.regions, dim)
            if dim is None:
                dim = features.shape[1]
                for split, path in paths.items():
                    shape = (counts[split], *features.shape)
                    arrays[split] = stack.enter_context(mapped(path, shape, np.float32))
            for split, row in positions.pop(key):
                arrays[split][row] = features
            bar.update()
        if positions:
            raise InputError(
                f"{len(positions):,} images are in no source (first: "
                f"{next(iter(positions))}); give all files with --source, or name the splits that "
                "they hold with --splits"
            )
    for split, path in paths.items():
        print(f"{path}: {(counts[split], opt.regions, dim)}")


def main(argv=None) -> None:
    p = Arguments("Write region features of bottom-up attention in SCAN's layout.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        default="coco_precomp",
        help="folder of the captions and ids, below --data_path",
    )
    add(
        "--source",
        type=filename,
        nargs="+",
        required=True,
        metavar="PATH",
        help="TSV files, or folders of .npz files, one per image",
    )
    add(
        "--splits",
        type=split_name,
        nargs="+",
        default=["train", "dev", "test"],
        help="splits to write",
    )
    add("--regions", type=positive, default=36, metavar="N", help="regions per image")
    add("--overwrite", action="store_true", help="replace existing files")
    utils.run("features.regions", write_regions, p.parse_args(argv))


if __name__ == "__main__":
    main()
