"""Write region features of bottom-up attention in SCAN's layout.

    python -m features.regions --data_name coco_precomp --source trainval_resnet101_faster_rcnn_genome_36.tsv

Anderson et al. 2018. Each source is a TSV file with the columns image_id, image_w, image_h, num_boxes, boxes and
features, the last of them float32 in base64, or a folder with an .npz file an image that holds `x`, the features. Of
the images that {split}_img_ids.npy or {split}_ids.txt names, in this order and each once, it writes {split}_ims.npy,
(N, 36, 2048) float32. Boxes are not read. One image is held at a time, so the sources may be larger than memory.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import base64
import contextlib
import os
import re
from collections.abc import Container, Iterator
from itertools import chain

import numpy as np
from tqdm import tqdm

import cli
from cli import Arguments, check, data_set, filename, positive, split_name
from data import read_extractors, read_ids
from files import mapped, need, output, read_arrays, refusing

COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
FIX = "fetch it again, or leave the file out"


def image_key(name: str) -> str:
    """Shorten an image's id or file name to the number in bottom-up attention's files."""
    stem = re.sub(r"\.(jpe?g|png)$", "", name, flags=re.IGNORECASE)
    number = re.fullmatch(r"(?:COCO_[a-z]+\d+_)?0*(\d+)", stem)
    return number[1] if number else stem


def read_tsv(path: str, wanted: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield keys and features (P, F) of the wanted images of a TSV file."""
    with (refusing(f"{path} is not a TSV file of {', '.join(COLUMNS)}", FIX),
          open(need(path), encoding="utf-8") as f):
        for line in f:
            image, *row = line.rstrip("\n").split("\t")
            if len(row) != len(COLUMNS) - 1:
                raise ValueError(f"a row has {len(row) + 1} columns")
            if image_key(image) in wanted:                  # some files have a header
                with refusing(f"{path}: the row of image {image} holds no features of {row[2]} boxes", FIX):
                    data = base64.b64decode(row[4].removeprefix("b'").removesuffix("'"), validate=True)
                    features = np.frombuffer(data, np.float32).reshape(int(row[2]), -1)
                yield image_key(image), features


def read_folder(path: str, wanted: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield keys and features (P, F) of the wanted images of a folder of .npz files."""
    for file in sorted(os.listdir(path)):
        key = image_key(file.removesuffix(".npz"))
        if file.endswith(".npz") and key in wanted:
            arrays = read_arrays(os.path.join(path, file), FIX)
            check("x" in arrays, f"{os.path.join(path, file)} holds {', '.join(arrays)} and not x, the features; {FIX}")
            yield key, arrays["x"]


def read_source(path: str, wanted: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    if os.path.isdir(path):
        return read_folder(path, wanted)
    return read_tsv(need(path, "give a TSV file, or a folder of .npz files"), wanted)


def read_places(folder: str, splits: list[str]) -> tuple[dict[str, int], dict[str, list]]:
    """Read the number of images of each split, and {key of an image: [(split, row)]}."""
    counts, places = {}, {}
    for split in splits:
        start = os.path.join(folder, split)
        ids = read_ids(f"{start}_img_ids.npy") or read_ids(f"{start}_ids.txt")
        check(ids, f"{folder} has no {split}_img_ids.npy or {split}_ids.txt, which name the images of '{split}' in "
                   "their order; put the file of your captions there")
        keys = dict.fromkeys(image_key(str(name)) for name in ids)                  # a line a caption in SCAN's files
        counts[split] = len(keys)
        for row, key in enumerate(keys):
            places.setdefault(key, []).append((split, row))
    return counts, places


def write_regions(opt) -> None:
    """Write the arrays. Raises InputError, also where images are missing."""
    folder = os.path.join(opt.data_path, opt.data_name)
    line = read_extractors(folder).get("ims")
    check(not line, f"{folder} holds features of {line}; give a folder of its own with the captions and ids")
    counts, places = read_places(folder, opt.splits)
    paths = {split: output(os.path.join(folder, f"{split}_ims.npy"), overwrite=opt.overwrite) for split in opt.splits}
    arrays, dim = {}, None                                  # {split: (N, P, F)}, made with the first image
    with contextlib.ExitStack() as stack, tqdm(total=len(places), desc="images", disable=None, leave=False) as bar:
        for key, features in chain.from_iterable(read_source(source, places) for source in opt.source):
            fits = features.ndim == 2 and len(features) == opt.regions and dim in (None, features.shape[1])
            check(fits and np.isfinite(features).all(),
                  f"image {key} has {features.shape} numbers, and {(opt.regions, dim or 'F')} finite ones are needed; "
                  f"take the features of {opt.regions} regions an image, or give --regions")
            dim = features.shape[1]
            arrays = arrays or {split: stack.enter_context(mapped(path, (counts[split], *features.shape), np.float32))
                                for split, path in paths.items()}
            for split, row in places.pop(key):
                arrays[split][row] = features
            bar.update()
        check(not places, f"{len(places):,} images are in no source, the first is {next(iter(places), None)}; give all "
                          "files with --source, or name the splits that they hold with --splits")
    for split, path in paths.items():
        print(f"{path}: {(counts[split], opt.regions, dim)}")


def main(argv=None) -> None:
    p = Arguments("Write region features of bottom-up attention in SCAN's layout.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the captions and ids, below --data_path")
    add("--source", type=filename, nargs="+", required=True, metavar="PATH",
        help="TSV files, or folders of .npz files, one an image")
    add("--splits", type=split_name, nargs="+", default=["train", "dev", "test"], help="splits to write")
    add("--regions", type=positive, default=36, metavar="N", help="regions an image")
    add("--overwrite", action="store_true", help="replace existing files")
    cli.run("features.regions", write_regions, p.parse_args(argv))


if __name__ == "__main__":
    main()
