"""Write features of box proposals, a row a box: {split}_{proposals}_{name}.npy.

    python -m phrases.regions --data_name f30k_entities --proposals edgeboxes200 --cnn_type vgg19 --layer fc6
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import cli
from cli import Arguments, check, data_set, filename, positive, torch_device, up_to, workers
from features import filters
from features.networks import load_region_network
from features.store import ComputeConfig, Part, compute
from files import file_digest, mapped, read_array, read_json, remove, save_array, save_json
from images import whole_transform
from model import CNNS
from phrases.data import (
    Proposals,
    box_geometry,
    check_features,
    file_of,
    read_proposals,
    refuse_other,
    short_name,
)
from phrases.entities import SPLITS, Entities, photo_paths, read_entities
from phrases.proposals import read_sized

STEP = 32                             # pixels of a photo for each cell of the last map
PHOTO_SIDE = 448                      # pixels: the last map has 14 x 14 cells, as boxes may be small
BATCH = {"cuda": 16, "cpu": 2}        # photos per step
KINDS = ("cnn", "demo")


class NetworkRegions:
    """Features by a CNN that sees a step of photos together."""

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
        return self.read(read_sized(self.paths[n], self.sizes[n]), box_geometry(boxes, self.sizes[n])[:, :4])


# ---- files

def write_split(path: str, split: str, root: str, entities: Entities, proposals: Proposals, encoder,
                config: ComputeConfig) -> None:
    """Compute and write the features of a split; a stopped command continues."""
    photos = photo_paths(root, entities.ids)
    part = Part(f"{path}.npy", [encoder.line, proposals.facts["boxes_sha256"]])

    def encode(values: list) -> list[np.ndarray]:
        return [features.astype(np.float16) for features in encoder.encode(values)]
    compute(part, entities.ids, RegionReader(photos, entities.sizes, proposals, encoder.read), encode, config, split)
    shape = len(proposals.boxes), encoder.dim
    begin(path, encoder.line, proposals, shape)
    with mapped(f"{path}.npy", shape, np.float16) as rows:
        for photo, start, end in zip(entities.ids, proposals.start, proposals.start[1:]):
            rows[start:end] = part[photo]
    part.remove()


def write_given(given: str, path: str, proposals: Proposals) -> None:
    """Copy a user's features of a split. Raises InputError without a row a box."""
    array = read_array(given, "give features (R, F)")
    check_features(given, array, proposals, "save them so")
    line = f"given in {os.path.basename(given)} {file_digest(given)}"
    refuse_other(f"{path}.npy", "extractor", line)
    begin(path, line, proposals, array.shape)
    save_array(f"{path}.npy", array)


def begin(path: str, line: str, proposals: Proposals, shape: tuple) -> None:
    """Write the .json of features and delete the .npy, which may be of other boxes."""
    remove(f"{path}.npy")
    save_json({"extractor": line, "boxes_sha256": proposals.facts["boxes_sha256"], "shape": list(shape)},
              f"{path}.json")
    print(f"{path}.npy: {shape} of {line}")


# ---- the command

def write_all(opt) -> None:
    """Write features of the splits. Raises InputError for options that do not fit."""
    for name in ("layer", "side", "cnn_type", "cnn_weights"):
        check(not getattr(opt, name) or opt.kind == "cnn" and not opt.given,
              f"--{name} {getattr(opt, name)} is for --kind cnn, not for "
              f"{'--given' if opt.given else '--kind demo'}; leave it out")
    root, side, device = os.path.join(opt.data_path, opt.data_name), opt.side or PHOTO_SIDE, torch_device(opt.device)
    check(not side % STEP and side >= 2 * STEP,
          f"--side {side} is not a multiple of {STEP} pixels, the step of the last map; give "
          f"{max(2, round(side / STEP)) * STEP}")
    check(not opt.given or len(opt.splits) == 1,
          f"--given {opt.given} holds the features of one split; name it with --splits")
    encoder = None
    for split in dict.fromkeys("val" if split == "dev" else split for split in opt.splits):
        entities, path = read_entities(root, split), file_of(root, split, f"{opt.proposals}_{opt.name}")
        boxes = read_proposals(root, split, opt.proposals, entities)
        if opt.given:
            write_given(opt.given, path, boxes)
            continue
        encoder = encoder or (filters.Regions() if opt.kind == "demo" else NetworkRegions(*load_region_network(
            opt.cnn_type or "vgg19", opt.layer, opt.cnn_weights, side), side, device))
        refuse_other(f"{path}.npy", "extractor", encoder.line)
        stored = read_json(f"{path}.json") if os.path.isfile(f"{path}.npy") else {}
        if stored.get("boxes_sha256") == boxes.facts["boxes_sha256"]:
            print(f"{path}.npy: done already")
        else:
            write_split(path, split, root, entities, boxes, encoder,
                        ComputeConfig(encoder.device, opt.batch_size or BATCH[device.type], opt.workers))


def arguments() -> Arguments:
    p = Arguments("Write features of box proposals.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, required=True, help="a data set with proposals, a folder below --data_path")
    add("--proposals", type=short_name, default="edgeboxes200", metavar="NAME", help="name of the proposals")
    add("--name", type=short_name, default="ims", help="name of the features, for files {split}_PROPOSALS_NAME.npy")
    add("--splits", nargs="+", choices=(*SPLITS, "dev"), default=list(SPLITS), help="splits to write")
    add("--kind", choices=KINDS, default="cnn", help="RoI pooling of a CNN, or of the demo's features without weights")
    add("--layer", choices=["fc6", "fc7", "cells"], help="what is pooled: the last map (cells), or 7 x 7 bins of it "
        "for fc6 or fc7 (VGG; default fc6, of others cells)")
    add("--side", type=up_to(4096), metavar="PIXELS",
        help=f"photos are resized to this width and height, a multiple of {STEP} (default: {PHOTO_SIDE})")
    add("--given", type=filename, metavar="FILE.npy",
        help="take features of your own for one split, (R, F), one row a box in the order of the proposals")
    add("--cnn_type", choices=CNNS, help="network that computes the features (default: vgg19)")
    add("--cnn_weights", type=filename, metavar="FILE", help="weights of the network (default: ImageNet's)")
    add("--batch_size", type=positive, metavar="N", help="photos per step (default: 16 on a GPU, 2 on a CPU)")
    add("--workers", type=workers, default=min(4, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    return p


def main(argv=None) -> None:
    cli.run("phrases.regions", write_all, arguments().parse_args(argv))


if __name__ == "__main__":
    from phrases.regions import main  # whose classes worker processes find by name
    main()
