"""Features of box proposals, one row a box, as {split}_{proposals}_{name}.npy. extract.py has the command."""
import contextlib
import os
import re
import shutil

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from cli import Arguments, InputError, data_set, filename, positive, torch_device, up_to, workers
from demo import scenes
from encoders import CNNS
from features.networks import RegionPooling, demo_transform, region_network
from features.photos import file_digest
from features.proposals import NAME, read_sized
from features.rows import PhotoRows
from files.entities import SPLITS, Entities, photo_paths, read_entities
from files.proposals import Proposals, file_of, read_facts, read_proposals, read_region_features
from files.reading import read_array, recognised
from files.shards import read_rows
from files.writing import atomic, locked, output, save_json
from inputs import whole_transform
from parallel import processes

KINDS = ("cnn", "demo")
STEP = 32                             # pixels of a photo for each cell of the last map
PHOTO_SIDE = 448                      # pixels: the last map has 14 x 14 cells, as boxes may be small
AROUND = 1.5                          # the surroundings of a box: so many times as wide and high
DEMO = f"demo_scenes boxes, {3 * sum(scenes.WIDTHS)} numbers of photos resized to 128x128"
BATCH = {"cuda": 16, "cpu": 2}        # photos per step, see extract.py
BLOCK = 4096                          # rows that are checked at a time


def shares(boxes: np.ndarray, size) -> np.ndarray:
    """Boxes in pixels with both corners inside as shares of (width, height), 0 to 1: (P, 4) -> (P, 4) float32."""
    return (np.asarray(boxes, np.float64) + [0, 0, 1, 1]).astype(np.float32) / np.tile(size, 2).astype(np.float32)


# ---- the demo's features

def demo_features(photo: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """Features of boxes by the demo's filters, which need no weights. boxes: (P, 4) shares -> (P, 576) float32.

    Of each of 192 filters the strongest response in the box, the mean response in it, and the mean around it. The first
    tells what is there, and the others whether the box fits it. The responses are computed once per photo.
    """
    found = [response[0] for response in scenes.responses(demo_transform(photo).numpy()[None])]
    side = found[0].shape[0]
    maps = np.concatenate([response.reshape(side, len(response) // side, side, len(response) // side, -1).max((1, 3))
                           for response in found], -1)                              # (32, 32, 192)
    return np.concatenate([strongest(maps, boxes), *means(maps, boxes)], 1)


def strongest(maps: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The maximum over the cells whose centres lie in each box, at least over one: (h, h, C), (P, 4) -> (P, C)."""
    side = len(maps)
    first = np.clip(np.ceil(boxes[:, :2] * side - 0.5), 0, side - 1).astype(int)                # (P, 2)
    last = np.clip(np.floor(boxes[:, 2:] * side - 0.5), 0, side - 1).astype(int)
    last = np.maximum(first, last)
    return np.stack([maps[y1:y2 + 1, x1:x2 + 1].max((0, 1)) for (x1, y1), (x2, y2) in zip(first, last)])


def means(maps: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean in each box and the mean around it, where cells count by the share that is covered: (h, h, C), (P, 4)
    -> twice (P, C) float32. Where a box has no surroundings within the photo, they count as 0."""
    integral = np.pad(maps, ((1, 0), (1, 0), (0, 0))).astype(np.float64).cumsum(0).cumsum(1)    # (h + 1, h + 1, C)
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    outer = np.clip(np.concatenate([centre - AROUND * half, centre + AROUND * half], 1), 0, 1)
    (inside, area), (whole, covered) = (total(integral, x) for x in (boxes, outer))
    ring = np.maximum(covered - area, 0)
    around = np.where(ring > 1e-6, (whole - inside) / np.maximum(ring, 1e-6), 0)
    return (inside / np.maximum(area, 1e-6)).astype(np.float32), around.astype(np.float32)


def total(integral: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum in each box (P, C), and how many cells it covers (P, 1), from the sums from the corner on."""
    side = len(integral) - 1
    x1, y1, x2, y2 = (np.asarray(boxes, np.float64).T * side)

    def corner(x, y):
        a, b = (np.minimum(v.astype(int), side - 1) for v in (x, y))
        u, v = (x - a)[:, None], (y - b)[:, None]
        return ((1 - v) * ((1 - u) * integral[b, a] + u * integral[b, a + 1])
                + v * ((1 - u) * integral[b + 1, a] + u * integral[b + 1, a + 1]))
    return corner(x2, y2) - corner(x1, y2) - corner(x2, y1) + corner(x1, y1), ((x2 - x1) * (y2 - y1))[:, None]


# ---- from photos to rows

class DemoRegions:
    """The demo's features: all is done where a photo is read."""
    dim, device = 3 * sum(scenes.WIDTHS), None
    read = staticmethod(demo_features)

    def encode(self, found: list) -> list:
        return found


class NetworkRegions:
    """Features by a CNN: photos are resized where they are read, and a step of them passes the network together."""

    def __init__(self, net: RegionPooling, side: int, device):
        self.net, self.dim, self.device, self.transform = net.to(device), net.dim, device, whole_transform(side)

    def read(self, photo: Image.Image, boxes: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.transform(photo), torch.from_numpy(boxes)

    def encode(self, found: list[tuple]) -> list[np.ndarray]:
        photos, boxes = zip(*found)
        rows = self.net(torch.stack(photos).to(self.device), [x.to(self.device) for x in boxes])
        return [x.cpu().numpy() for x in rows]


class RegionReader:
    """Reads photo n and its boxes for a network: `reader(n)`."""

    def __init__(self, paths: list[str], entities: Entities, proposals: Proposals, read):
        self.paths, self.entities, self.proposals, self.read = paths, entities, proposals, read

    def __call__(self, n: int):
        size, start = self.entities.sizes[n], self.proposals.start
        boxes = shares(self.proposals.boxes[start[n]:start[n + 1]], size)
        return self.read(read_sized(self.paths[n], size), boxes)


# ---- the command

def extract_regions(opt) -> None:
    """The command `regions`. Raises InputError for options that cannot work together, and for missing proposals."""
    own = {"cnn_type": opt.cnn_type, "layer": opt.layer, "cnn_weights": opt.cnn_weights, "side": opt.side}
    for name, value in own.items():
        if value is not None and (opt.kind != "cnn" or opt.given):
            raise InputError(f"--{name} {value} is for --kind cnn, not for "
                             f"{'--given' if opt.given else f'--kind {opt.kind}'}; leave it out")
    for flag, name in (("--name", opt.name), ("--proposals", opt.proposals)):
        if not re.fullmatch(NAME, name):
            raise InputError(f"{flag} {name} cannot be a name; give letters, digits, - and _")
    device, side, root = torch_device(opt.device), opt.side or PHOTO_SIDE, os.path.join(opt.data_path, opt.data_name)
    if side % STEP or side < 2 * STEP:
        raise InputError(f"--side {side} is no multiple of {STEP} pixels, the step of the last map; give "
                         f"{max(2, round(side / STEP)) * STEP}")
    splits = list(dict.fromkeys("val" if split == "dev" else split for split in opt.splits or SPLITS))
    if opt.given and (len(splits) != 1 or not opt.splits):
        raise InputError(f"--given {opt.given} holds the features of one split; name it with --splits")
    read = {split: read_split(root, split, opt.proposals) for split in splits}
    if opt.given:
        with locked(root, "extracting into"):
            processes.from_first(write_given, opt, root, splits[0], read[splits[0]][1])
        return
    opt.batch_size = opt.batch_size or BATCH[device.type]
    if opt.kind == "demo":
        encoder, line = DemoRegions(), DEMO
    else:
        net, line = region_network(opt.cnn_type or "vgg19", opt.layer, opt.cnn_weights, side)
        encoder = NetworkRegions(net, side, device)
    with locked(root, "extracting into"):
        for split in splits:
            write_split(opt, root, split, *read[split], encoder, line)


def read_split(root: str, split: str, name: str) -> tuple[Entities, Proposals]:
    """The phrases and the proposals of a split. Raises InputError where there are none."""
    if not os.path.isdir(root):
        raise InputError(f"there is no folder {root} (--data_path, --data_name); give a data set of phrases in photos")
    path, fix = f"{file_of(root, split, name)}.json", "write them first, with python -m features.proposals"
    if not os.path.isfile(path):
        raise InputError(f"{root} has no proposals {name} of {split}; {fix}")
    entities = read_entities(root, split, 0 if read_facts(path, "method", fix).get("origin") == 0 else 1)
    return entities, read_proposals(root, split, name, entities)


def check_own(path: str, line: str) -> None:
    """Raise InputError if features of another, or an unknown, extractor have this name (without its ending)."""
    if not os.path.exists(f"{path}.npy") and not os.path.exists(f"{path}.json"):
        return
    before = "an extractor that no .json names"
    if os.path.exists(f"{path}.json"):
        before = read_facts(f"{path}.json", "extractor", "give another --name")["extractor"]
    if before != line:
        raise InputError(f"{path}.npy is of '{before}' and these are of '{line}'; give another --name, or delete the "
                         "old files")
    for end in (".npy", ".json"):
        output(path + end, lambda _: True)


def place(path: str, line: str, proposals: Proposals, shape: tuple, put) -> None:
    """Replace features: put(path of the .npy) writes them. In no moment do features of other boxes stand beside the
    .json of these."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"{path}.npy")
    save_json({"extractor": line, "boxes_sha256": proposals.facts["boxes_sha256"], "shape": list(shape)},
              f"{path}.json")
    put(f"{path}.npy")


def write_split(opt, root: str, split: str, entities: Entities, proposals: Proposals, encoder, line: str) -> None:
    """Write the features of a split's proposals, unless they are there."""
    path, shape = file_of(root, split, f"{opt.proposals}_{opt.name}"), (len(proposals.boxes), encoder.dim)
    check_own(path, line)
    paths, made = photo_paths(root, entities.ids), {"extractor": line, "boxes_sha256": proposals.facts["boxes_sha256"]}
    if recognised(lambda p: read_rows(read_region_features(root, split, opt.proposals, opt.name, proposals), "").shape
                  == shape, path):
        print(f"{path}.npy: done already")
        return
    rows = PhotoRows(path, paths, proposals.start, encoder.dim, np.float16, made)
    rows.run(RegionReader(paths, entities, proposals, encoder.read), encoder.encode, opt.batch_size, opt.workers, split,
             encoder.device)
    del rows.array                                          # its values are in the file
    processes.from_first(place, path, line, proposals, shape, lambda target: os.replace(rows.part, target))
    processes.from_first(rows.clean)
    print(f"{path}.npy: {shape} of {line}")


def write_given(opt, root: str, split: str, proposals: Proposals) -> None:
    """Give the user's features of a split the name of these: the same file where it can be, or a copy. Raises
    InputError unless they are finite, (R, F), and R is the number of boxes."""
    path, array = file_of(root, split, f"{opt.proposals}_{opt.name}"), read_array(opt.given, "give features (R, F)")
    if array.ndim != 2 or array.dtype not in (np.float16, np.float32) or len(array) != len(proposals.boxes) or \
            not array.shape[1]:
        raise InputError(f"{opt.given} holds {array.dtype} of shape {array.shape}, and {len(proposals.boxes):,} boxes "
                         f"of {file_of(root, split, opt.proposals)}.npz have features of shape ({len(proposals.boxes)},"
                         " F) in float16 or float32, in the order of the boxes; save them so")
    for k in tqdm(range(0, len(array), BLOCK), desc="checked", disable=None, leave=False):
        good = np.isfinite(array[k:k + BLOCK]).all(1)
        if not good.all():
            raise InputError(f"{opt.given} holds NaN or infinity in row {k + int(good.argmin())}; every feature has to "
                             "be a finite number, so extract that box again")
    line = f"given in {os.path.basename(opt.given)} {file_digest(opt.given)}"
    check_own(path, line)
    if os.path.exists(f"{path}.npy") and os.path.samefile(opt.given, f"{path}.npy"):
        save_json({"extractor": line, "boxes_sha256": proposals.facts["boxes_sha256"], "shape": list(array.shape)},
                  f"{path}.json")
    else:
        place(path, line, proposals, array.shape, lambda target: link(opt.given, target))
    print(f"{path}.npy: {array.shape} of {line}")


def link(source: str, target: str) -> None:
    """Make `target` the same file as `source`, or a copy of it on file systems that cannot."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        with open(source, "rb") as given, atomic(target, "wb") as f:
            shutil.copyfileobj(given, f)


def arguments(p: Arguments) -> Arguments:
    """Add the options of the command `regions`."""
    p.add_argument("--data_name", type=data_set, required=True,
                   help="a data set with proposals (features.proposals), a folder below --data_path")
    p.add_argument("--proposals", default="edgeboxes200", metavar="NAME", help="name of the proposals")
    p.add_argument("--name", default="ims", help="name of the features, for files {split}_PROPOSALS_NAME.npy")
    p.add_argument("--splits", nargs="+", choices=(*SPLITS, "dev"), help="splits to write (default: all)")
    p.add_argument("--kind", choices=KINDS, default="cnn",
                   help="kind of features: RoI pooling of a CNN, or of the demo data, which need no weights")
    p.add_argument("--cnn_type", choices=CNNS, help="cnn: network that computes the features (default: vgg19)")
    p.add_argument("--layer", choices=["fc6", "fc7", "cells"],
                   help="cnn: what is pooled: the last map (cells), or 7 x 7 bins of it for fc6 or fc7 (VGG; default "
                        "fc6, of others cells)")
    p.add_argument("--side", type=up_to(4096), metavar="PIXELS",
                   help=f"cnn: photos are resized to this width and height, a multiple of {STEP} (default: "
                        f"{PHOTO_SIDE})")
    p.add_argument("--cnn_weights", type=filename, metavar="FILE",
                   help="cnn: weights of the network (default: ImageNet's, as in train.py)")
    p.add_argument("--given", type=filename, metavar="FILE.npy",
                   help="take features of your own for one split, (R, F), one row a box in the order of the proposals")
    p.add_argument("--batch_size", type=positive, metavar="N",
                   help=f"number of photos per step (default: {BATCH['cuda']} on a GPU, {BATCH['cpu']} on a CPU)")
    p.add_argument("--workers", type=workers, default=min(4, os.cpu_count() or 1),
                   help="number of processes that read photos")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                   help="auto takes CUDA if there is a GPU")
    return p
