"""Write features of box proposals, a row a box: {split}_{proposals}_{name}.npy.

    python -m phrases.regions --data_name f30k_entities --proposals edgeboxes200 --cnn_type vgg19 \\
        --layer fc6
"""

if __name__ == "__main__":
    import utils

    utils.start()

import functools
import os
from collections.abc import Callable

import numpy as np

import utils
from features.store import Part, compute_missing
from model import CNNS
from phrases.data import (
    GIVEN_FEATURES,
    RENAME_OR_DELETE,
    PhraseSplit,
    Proposals,
    RegionFeatures,
    box_geometry,
    parse_name,
    read_phrases,
    read_proposals,
    read_region_features,
)
from phrases.entities import ENTITIES_SPLITS, entities_split, photo_paths
from phrases.pooling import NetworkRegions, SceneRegions
from phrases.proposals import read_sized
from utils import (
    Arguments,
    InputError,
    data_set,
    file_digest,
    filename,
    mapped,
    positive,
    save_array,
    save_json,
    sha256,
    torch_device,
    writable,
)

# Pixels of a photo: the last map has 14 x 14 cells, as boxes may be small.
REGION_PHOTO_SIDE = 448
REGION_PHOTOS_PER_STEP = {"cuda": 16, "mps": 16, "cpu": 2}


def read_boxes(paths: list[str], sizes: np.ndarray, proposals: Proposals, read: Callable, n: int):
    """Read photo n and its boxes for an encoder, in a worker process.

    Args:
        paths: of the photos.
        sizes: (N, 2) width, height.
        read: prepares a photo and boxes, shares of its width and height.
        n: position of the photo.
    """
    boxes = proposals.boxes[proposals.start[n] : proposals.start[n + 1]]
    photo = read_sized(paths[n], sizes[n])
    corners = box_geometry(boxes, sizes[n])[:, :4]
    return read(photo, corners)


def write_split_regions(opt, root: str, split_name: str, encoder) -> None:
    """Write the features of a split, those of --given or by the encoder, if need be."""
    split = read_phrases(root, split_name)
    split.proposals = read_proposals(root, split, opt.proposals)
    regions = f"{opt.proposals}_{opt.name}"
    path = writable(os.path.join(root, f"{split_name}_{regions}.npy"))
    if opt.given:
        given = RegionFeatures(opt.given, split.proposals, split.entities.sizes).array
        line = f"{GIVEN_FEATURES}{os.path.basename(opt.given)} {file_digest(opt.given)}"
        shape = given.shape
    else:
        line = encoder.line
        shape = (len(split.boxes), encoder.dim)

    if os.path.exists(path):
        _, before = read_region_features(root, split, regions)
        if before != line:
            raise InputError(f"{path} is there, made by {before}; {RENAME_OR_DELETE}")
        print(f"{path}: done already")
        return

    facts = {"extractor": line, "boxes_sha256": sha256(split.boxes)}
    save_json(facts, f"{path.removesuffix('.npy')}.json")
    if opt.given:
        save_array(path, given)
    else:
        compute_regions(opt, root, path, facts, split, encoder)
    print(f"{path}: {shape} of {line}")


def compute_regions(opt, root: str, path: str, facts: dict, split: PhraseSplit, encoder) -> None:
    """Compute features from where a stop left them, and write them to `path`."""
    part = Part(path, facts)
    photos = photo_paths(root, split.ids)
    sizes = split.entities.sizes
    read = functools.partial(read_boxes, photos, sizes, split.proposals, encoder.read)
    keys = dict(enumerate(split.ids))
    per_step = opt.batch_size or REGION_PHOTOS_PER_STEP[opt.device.type]
    compute_missing(part, keys, read, encoder.encode, split.name, per_step, opt.workers)

    shape = (len(split.boxes), encoder.dim)
    with mapped(path, shape, np.float16) as rows:
        for n, photo in enumerate(split.ids):
            rows[split.rows(n)] = part[photo]
    part.remove()


# ---- the command


def write_all_regions(opt) -> None:
    """Write features of the splits. Raises InputError for options that do not fit."""
    for name in ("layer", "cnn_type", "cnn_weights"):
        value = getattr(opt, name)
        if value and (opt.given or opt.kind != "cnn"):
            other = "--kind demo"
            if opt.given:
                other = "--given"
            raise InputError(f"--{name} {value} is for --kind cnn, not for {other}; leave it out")
    if opt.given and opt.kind != "cnn":
        raise InputError(
            f"--kind {opt.kind} and --given {opt.given} are two sources of features; give one"
        )
    opt.device = torch_device(opt.device)
    if opt.given and len(opt.splits or ENTITIES_SPLITS) != 1:
        raise InputError(
            f"--given {opt.given} holds the features of one split; name it with --splits"
        )

    encoder = None
    if opt.kind == "demo":
        encoder = SceneRegions()
    elif not opt.given:
        encoder = NetworkRegions(
            opt.cnn_type or "vgg19", opt.layer, opt.cnn_weights, REGION_PHOTO_SIDE, opt.device
        )
    root = os.path.join(opt.data_path, opt.data_name)
    for split in opt.splits or ENTITIES_SPLITS:
        write_split_regions(opt, root, split, encoder)


def main(argv=None) -> None:
    p = Arguments("Write features of box proposals.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        required=True,
        help="a data set with proposals, a folder below --data_path",
    )
    add(
        "--proposals",
        type=parse_name,
        default="edgeboxes200",
        metavar="NAME",
        help="name of the proposals",
    )
    add(
        "--name",
        type=parse_name,
        default="ims",
        help="name of the features, for files {split}_PROPOSALS_NAME.npy",
    )
    add(
        "--splits",
        nargs="+",
        type=entities_split,
        metavar="SPLIT",
        help="splits to write, of train, dev and test (default: all)",
    )
    add(
        "--kind",
        choices=["cnn", "demo"],
        default="cnn",
        help="RoI pooling of a CNN, or of the demo's filters",
    )
    add(
        "--layer",
        choices=["fc6", "fc7", "cells"],
        help="what is pooled: the last map (cells), or 7 x 7 bins of it "
        "for fc6 or fc7 (VGG; default fc6, of others cells)",
    )
    add(
        "--given",
        type=filename,
        metavar="FILE.npy",
        help="take features of your own for one split, (R, F), one row a box in the order of the "
        "proposals",
    )
    add("--cnn_type", choices=CNNS, help="network that computes the features (default: vgg19)")
    add(
        "--cnn_weights",
        type=filename,
        metavar="FILE",
        help="weights of the network (default: ImageNet's)",
    )
    add(
        "--batch_size",
        type=positive,
        metavar="N",
        help="photos per step (default: 16 on a GPU, 2 on a CPU)",
    )
    utils.add_workers(p, most=4)
    utils.add_device(p)
    utils.run("phrases.regions", write_all_regions, p.parse_args(argv))


if __name__ == "__main__":
    from phrases.regions import main  # whose functions worker processes find by name

    main()
