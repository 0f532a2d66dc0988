"""Write features of box proposals, one row a box, as {split}_{proposals}_{name}.npy.

    python -m phrases.regions --data_name f30k_entities --proposals edgeboxes200 --cnn_type vgg19 --layer fc6
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import os
import re
import shutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

import cli
from cli import Arguments, check, data_set, filename, positive, torch_device, up_to
from cli import workers as worker_count
from data import whole_transform
from features import filters
from features.networks import region_network
from features.store import How, RowStore
from files.reading import file_digest, read_array, readable
from files.writing import atomic, output, remove, save_json
from model import CNNS
from phrases.data import Proposals, check_features, file_of, read_facts, read_proposals, read_region_features, shares
from phrases.entities import SPLITS, Entities, photo_paths, read_entities
from phrases.proposals import NAME, read_sized

STEP = 32                             # pixels of a photo for each cell of the last map
PHOTO_SIDE = 448                     # pixels: the last map has 14 x 14 cells, as boxes may be small
BATCH = {"cuda": 16, "cpu": 2}        # photos per step
BLOCK = 4096                          # rows that are checked at a time
KINDS = ("cnn", "demo")


class NetworkRegions:
    """Features by a CNN: photos are resized where they are read, and a step of them passes the
    network together."""

    def __init__(self, net, line: str, side: int, device):
        self.net, self.dim, self.line, self.device = net.to(device), net.dim, line, device
        self.transform = whole_transform(side)

    def read(self, photo: Image.Image, boxes: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.transform(photo), torch.from_numpy(boxes)

    def encode(self, pairs: list[tuple]) -> list[np.ndarray]:
        photos, boxes = zip(*pairs)
        rows = self.net(torch.stack(photos).to(self.device), [x.to(self.device) for x in boxes])
        return [x.cpu().numpy() for x in rows]


class RegionReader(NamedTuple):
    """Reads photo n and its boxes for a network: `reader(n)`."""
    paths: list[str]
    sizes: np.ndarray                 # (N, 2): width, height
    proposals: Proposals
    read: Callable

    def __call__(self, n: int):
        boxes = self.proposals.boxes[slice(*self.proposals.start[n:n + 2])]
        return self.read(read_sized(self.paths[n], self.sizes[n]), shares(boxes, self.sizes[n]))


# ---- the command

def extract(data_path: str, data_name: str, proposals: str, name: str, splits: list[str] | None,
            given: str | None, kind: str, network: dict, device, batch_size: int | None,
            workers: int) -> None:
    """Write the features of the proposals of splits, or take those in the file `given` for one.

    network: the arguments of `region_network`. Raises InputError for arguments that cannot work
    together, and for missing proposals.
    """
    for flag, text in (("--name", name), ("--proposals", proposals)):
        check(re.fullmatch(NAME, text),
              f"{flag} {text} cannot be a name; give letters, digits, - and _")
    root, side = os.path.join(data_path, data_name), network["side"]
    check(not side % STEP and side >= 2 * STEP,
          f"--side {side} is no multiple of {STEP} pixels, the step of the last map; give "
          f"{max(2, round(side / STEP)) * STEP}")
    check(not given or len(splits or ()) == 1,
          f"--given {given} holds the features of one split; name it with --splits")
    splits = dict.fromkeys("val" if split == "dev" else split for split in splits or SPLITS)
    contents = {split: read_split(root, split, proposals) for split in splits}
    if given:
        for split, (_, boxes) in contents.items():
            write_given(given, file_of(root, split, f"{proposals}_{name}"), boxes)
        return
    encoder = (filters.Regions() if kind == "demo"
               else NetworkRegions(*region_network(**network), side, device))
    how = How(encoder.device, batch_size or BATCH[device.type], workers)
    for split, (entities, boxes) in contents.items():
        path = file_of(root, split, f"{proposals}_{name}")
        check_own(path, encoder.line)
        if readable(read_region_features, root, split, proposals, name, boxes):
            print(f"{path}.npy: done already")
        else:
            write_split(path, split, photo_paths(root, entities.ids), entities, boxes, encoder, how)


def read_split(root: str, split: str, name: str) -> tuple[Entities, Proposals]:
    """The phrases and the proposals of a split. Raises InputError where there are none."""
    check(os.path.isdir(root),
          f"there is no folder {root} (--data_path, --data_name); give a data set of phrases in "
          "photos")
    path, fix = (f"{file_of(root, split, name)}.json",
                 "write them first, with python -m phrases.proposals")
    check(os.path.isfile(path), f"{root} has no proposals {name} of {split}; {fix}")
    entities = read_entities(root, split)
    return entities, read_proposals(root, split, name, entities)


def check_own(path: str, line: str) -> None:
    """Raise InputError if features of another, or an unknown, extractor have this name (without its
    ending)."""
    before = None
    if os.path.exists(f"{path}.json"):
        before = read_facts(f"{path}.json", "extractor", "give another --name")["extractor"]
    elif os.path.exists(f"{path}.npy"):
        before = "an extractor that no .json names"
    check(before in (None, line),
          f"{path}.npy is of '{before}' and these are of '{line}'; give another --name, or delete "
          "the old files")
    for end in (".npy", ".json"):
        output(path + end)


def place(path: str, line: str, proposals: Proposals, shape: tuple, put=None) -> None:
    """Replace features: put(path of the .npy) writes them; None: they stand there. In no moment do
    features of other boxes stand beside the .json of these."""
    if put:
        remove(f"{path}.npy")
    save_json({"extractor": line, "boxes_sha256": proposals.facts["boxes_sha256"],
               "shape": list(shape)}, f"{path}.json")
    if put:
        put(f"{path}.npy")
    print(f"{path}.npy: {shape} of {line}")


def write_split(path: str, split: str, paths: list[str], entities: Entities, proposals: Proposals,
                encoder, how: How) -> None:
    """Write the features of a split's proposals. paths: of its photos."""
    facts = {"extractor": encoder.line, "boxes_sha256": proposals.facts["boxes_sha256"]}
    store = RowStore(f"{path}.npy", paths, entities.ids, facts, (encoder.dim,), np.float16)
    store.run(RegionReader(paths, entities.sizes, proposals, encoder.read), encoder.encode, how,
              split)
    place(path, encoder.line, proposals, (len(proposals.boxes), encoder.dim), lambda _: store.write())
    remove(store.part)


def write_given(given: str, path: str, proposals: Proposals) -> None:
    """Give the user's features of a split the name of these: the same file where it can be, or a
    copy. Raises InputError unless they are finite, (R, F), and R is the number of boxes."""
    array = read_array(given, "give features (R, F)")
    check_features(given, array, proposals, "save them so")
    for k in tqdm(range(0, len(array), BLOCK), desc="checked", disable=None, leave=False):
        good = np.isfinite(array[k:k + BLOCK]).all(1)
        check(good.all(),
              f"{given} holds NaN or infinity in row {k + int(good.argmin())}; every feature has "
              "to be a finite number, so extract that box again")
    line = f"given in {os.path.basename(given)} {file_digest(given)}"
    check_own(path, line)
    same = os.path.exists(f"{path}.npy") and os.path.samefile(given, f"{path}.npy")
    place(path, line, proposals, array.shape, None if same else lambda target: link(given, target))


def link(source: str, target: str) -> None:
    """Make `target` the same file as `source`, or a copy of it on file systems that cannot."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        with open(source, "rb") as contents, atomic(target, "wb") as f:
            shutil.copyfileobj(contents, f)


def arguments() -> Arguments:
    p = Arguments("Write features of box proposals.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, required=True,
        help="a data set with proposals (phrases.proposals), a folder below --data_path")
    add("--proposals", default="edgeboxes200", metavar="NAME", help="name of the proposals")
    add("--name", default="ims", help="name of the features, for files {split}_PROPOSALS_NAME.npy")
    add("--splits", nargs="+", choices=(*SPLITS, "dev"), help="splits to write (default: all)")
    add("--kind", choices=KINDS, default="cnn",
        help="kind of features: RoI pooling of a CNN, or of the demo data, which need no weights")
    add("--layer", choices=["fc6", "fc7", "cells"],
        help="what is pooled: the last map (cells), or 7 x 7 bins of it for fc6 or fc7 (VGG; default fc6, of others "
             "cells)")
    add("--side", type=up_to(4096), metavar="PIXELS",
        help=f"photos are resized to this width and height, a multiple of {STEP} (default: {PHOTO_SIDE})")
    add("--given", type=filename, metavar="FILE.npy",
        help="take features of your own for one split, (R, F), one row a box in the order of the proposals")
    add("--cnn_type", choices=CNNS, help="network that computes the features (default: vgg19)")
    add("--cnn_weights", type=filename, metavar="FILE",
        help="weights of the network (default: ImageNet's, as in train.py)")
    add("--batch_size", type=positive, metavar="N", help="photos per step (default: 16 on a GPU, 2 on a CPU)")
    add("--workers", type=worker_count, default=min(4, os.cpu_count() or 1),
        help="number of processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes CUDA if there is a GPU")
    return p


def write_all(opt) -> None:
    """The command. Raises InputError for options that cannot work together."""
    for name in ("layer", "side", "cnn_type", "cnn_weights"):
        check(not getattr(opt, name) or opt.kind == "cnn" and not opt.given,
              f"--{name} {getattr(opt, name)} is for --kind cnn, not for "
              f"{'--given' if opt.given else '--kind demo'}; leave it out")
    extract(opt.data_path, opt.data_name, opt.proposals, opt.name, opt.splits, opt.given, opt.kind,
            {"cnn_type": opt.cnn_type or "vgg19", "layer": opt.layer, "weights": opt.cnn_weights,
             "side": opt.side or PHOTO_SIDE}, torch_device(opt.device), opt.batch_size, opt.workers)


def main(argv=None) -> None:
    cli.run("phrases.regions", write_all, arguments().parse_args(argv))


if __name__ == "__main__":
    from phrases.regions import main  # whose classes worker processes find by name
    main()
