"""Write features of box proposals, a row a box: {split}_{proposals}_{name}.npy.

    python -m phrases.regions --data_name f30k_entities --proposals edgeboxes200 --cnn_type vgg19 --layer fc6
"""
if __name__ == "__main__":
    import cli
    cli.start()

import functools
import os
from collections.abc import Callable

import numpy as np

import cli
from cli import Arguments, check, data_set, filename, positive, torch_device, workers
from features.store import Part, compute_missing
from files import file_digest, mapped, save_array, save_json, sha256, writable
from model import CNNS
from phrases.data import (
    DELETE,
    GIVEN,
    Proposals,
    RegionFeatures,
    box_geometry,
    parse_name,
    read_phrases,
    read_proposals,
    read_region_features,
)
from phrases.entities import SPLITS, photo_paths
from phrases.pooling import NetworkRegions, SceneRegions
from phrases.proposals import read_sized

SIDE = 448                            # pixels of a photo: the last map has 14 x 14 cells, as boxes may be small
BATCH = {"cuda": 16, "cpu": 2}        # photos per step


def read_boxes(paths: list[str], sizes: np.ndarray, proposals: Proposals, read: Callable, n: int):
    """Read photo n and its boxes for an encoder, in a worker process. sizes (N, 2): width, height."""
    boxes = proposals.boxes[slice(*proposals.start[n:n + 2])]
    return read(read_sized(paths[n], sizes[n]), box_geometry(boxes, sizes[n])[:, :4])


def write_split_regions(opt, root: str, split_name: str, encoder) -> None:
    """Write the features of a split, those of --given or by the encoder, if need be."""
    split, regions = read_phrases(root, split_name), f"{opt.proposals}_{opt.name}"
    split.proposals = read_proposals(root, split, opt.proposals)
    path = writable(os.path.join(root, f"{split_name}_{regions}.npy"))
    sizes = split.entities.sizes
    if opt.given:
        given = RegionFeatures(opt.given, split.proposals, sizes).array
        line, shape = f"{GIVEN}{os.path.basename(opt.given)} {file_digest(opt.given)}", given.shape
    else:
        line, shape = encoder.line, (len(split.boxes), encoder.dim)
    if os.path.exists(path):
        before = read_region_features(root, split, regions)[1]
        check(before == line, f"{path} is there, made by {before}; {DELETE}")
        print(f"{path}: done already")
        return
    facts = {"extractor": line, "boxes_sha256": sha256(split.boxes)}
    save_json(facts, f"{path.removesuffix('.npy')}.json")
    if opt.given:
        save_array(path, given)
    else:                                                   # from where a stop left them
        part, read = Part(path, facts), functools.partial(
            read_boxes, photo_paths(root, split.ids), sizes, split.proposals, encoder.read)
        compute_missing(part, dict(enumerate(split.ids)), read, encoder.encode, split_name,
                        opt.batch_size or BATCH[opt.device.type], opt.workers)
        with mapped(path, shape, np.float16) as rows:
            for photo, start, end in zip(split.ids, split.start, split.start[1:]):
                rows[start:end] = part[photo]
        part.remove()
    print(f"{path}: {shape} of {line}")


# ---- the command

def write_all_regions(opt) -> None:
    """Write features of the splits. Raises InputError for options that do not fit."""
    for name in ("layer", "cnn_type", "cnn_weights"):
        check(not getattr(opt, name) or opt.kind == "cnn" and not opt.given,
              f"--{name} {getattr(opt, name)} is for --kind cnn, not for "
              f"{'--given' if opt.given else '--kind demo'}; leave it out")
    opt.device = torch_device(opt.device)
    check(not opt.given or len(opt.splits) == 1,
          f"--given {opt.given} holds the features of one split; name it with --splits")
    encoder = SceneRegions() if opt.kind == "demo" else None
    if not (encoder or opt.given):
        encoder = NetworkRegions(opt.cnn_type or "vgg19", opt.layer, opt.cnn_weights, SIDE, opt.device)
    root = os.path.join(opt.data_path, opt.data_name)
    for split in opt.splits:
        write_split_regions(opt, root, split, encoder)


def main(argv=None) -> None:
    p = Arguments("Write features of box proposals.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, required=True, help="a data set with proposals, a folder below --data_path")
    add("--proposals", type=parse_name, default="edgeboxes200", metavar="NAME", help="name of the proposals")
    add("--name", type=parse_name, default="ims", help="name of the features, for files {split}_PROPOSALS_NAME.npy")
    add("--splits", nargs="+", choices=SPLITS, default=list(SPLITS), help="splits to write")
    add("--kind", choices=["cnn", "demo"], default="cnn", help="RoI pooling of a CNN, or of the demo's filters")
    add("--layer", choices=["fc6", "fc7", "cells"], help="what is pooled: the last map (cells), or 7 x 7 bins of it "
        "for fc6 or fc7 (VGG; default fc6, of others cells)")
    add("--given", type=filename, metavar="FILE.npy",
        help="take features of your own for one split, (R, F), one row a box in the order of the proposals")
    add("--cnn_type", choices=CNNS, help="network that computes the features (default: vgg19)")
    add("--cnn_weights", type=filename, metavar="FILE", help="weights of the network (default: ImageNet's)")
    add("--batch_size", type=positive, metavar="N", help="photos per step (default: 16 on a GPU, 2 on a CPU)")
    add("--workers", type=workers, default=min(4, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    cli.run("phrases.regions", write_all_regions, p.parse_args(argv))


if __name__ == "__main__":
    from phrases.regions import main  # whose functions worker processes find by name
    main()
