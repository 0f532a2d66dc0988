"""Write features of photos by a frozen network, of a folder or of a data set.

    python -m features.images --folder ~/Pictures --cnn_type efficientnet_lite0 --output_name mine
    python -m features.images --data_name coco --cnn_type vgg19 --output_name coco_vgg_precomp

--folder FOLDER takes all photos below a folder (folder.py), as all_ims.npy and all_ids.txt;
captions.csv makes them a data set to train on. --data_name takes the photos of a data set, and
writes a folder in the layout of `*_precomp`. features.json beside the features says in one line
what made them, because a model reads only features of the extractor that it was trained on. An
interrupted command continues, and a second call computes only new photos (store.py).
"""

if __name__ == "__main__":
    import utils

    utils.start()

import contextlib
import glob
import os
import sys
from collections import ChainMap
from functools import partial

import numpy as np

import utils
from data import Split, is_even, read_split
from features import store
from features.folder import CAPTION_TABLE, find_photos, read_captions
from features.networks import NETWORKS, Network, build_network, build_pretrained
from features.store import ALL, SPLITS, Part
from images import Photos
from utils import (
    Arguments,
    InputError,
    alike_paths,
    data_set,
    dev_for_val,
    filename,
    mapped,
    positive,
    remove,
    repeated,
    save_array,
    save_json,
    save_lines,
    torch_device,
)

DEFAULT_NETWORK = "vgg19"
# Photos per step; larger maps cost a CPU memory anew each time.
PHOTOS_PER_STEP = {"cuda": 64, "mps": 64, "cpu": 8}


def read_earlier_features(opt, split: str) -> store.Images | None:
    """Open what an earlier call wrote; None if there is none, or if it was stopped in between."""
    with contextlib.suppress(InputError):
        return store.read_images(opt.data_path, opt.output_name, split)


def collect_earlier_features(opt, split: str, network: Network) -> tuple[dict, dict]:
    """Collect {name: photo} and {digest: features} of earlier calls with the same network.

    Those of the split, and those of the whole folder.
    """
    by_name = {}
    rows = {}
    for before in (read_earlier_features(opt, ALL), read_earlier_features(opt, split)):
        if not before or before.extractor != network.line:
            continue
        if before.features.shape != network.shape:
            continue
        by_name |= {photo.name: photo for photo in before.photos}
        digests = [photo.digest for photo in before.photos]
        rows.update(zip(digests, np.asarray(before.features.array)))
    return by_name, rows


def write_features(opt, root: str, split: Split, network: Network, folder: str) -> list[int]:
    """Write features of the photos of a split, {split}_ims.npy, and their list.

    Returns the numbers of the photos that could be read. A photo whose file the last list of the
    split or of the whole folder has under any name keeps its features. The captions are deleted,
    and the caller writes them again. Raises InputError if a photo cannot be read, unless with
    --skip_broken.
    """
    path = os.path.join(root, f"{split.name}_ims.npy")
    list_path = store.list_path(root, split.name)
    by_name, rows = collect_earlier_features(opt, split.name, network)
    paths = split.images.paths
    photos = []
    for file, name in zip(paths, split.photo_names):
        photos.append(store.stat_photo(file, name, by_name.get(name)))
    keys = {n: photo.digest or photo.name for n, photo in enumerate(photos)}
    part = Part(path, network.line)
    values = ChainMap(part, rows)  # new features are put into the part
    new = sum(key not in values for key in keys.values())

    def encode(batch: list) -> np.ndarray:
        return network(batch).cpu().numpy().astype(network.dtype)

    try:
        broken = store.compute_missing(
            values,
            keys,
            partial(store.read_transformed, paths, network.transform),
            encode,
            split.name,
            PHOTOS_PER_STEP[network.device.type],
            opt.workers,
            opt.skip_broken,
        )
    except InputError as error:
        raise InputError(f"{error}; or leave such photos out with --skip_broken") from error
    sound = [n for n in keys if n not in broken]
    if not sound:
        raise InputError(
            f"not one of the {len(photos)} photos of {split.name} can be read; the first: "
            f"{broken.get(0)}"
        )

    with mapped(path, (len(sound), *network.shape), network.dtype) as array:
        for row, n in enumerate(sound):
            array[row] = values[keys[n]]
        # Just before the rows replace earlier ones, so that no list describes other rows.
        save_json({"photos": []}, list_path)
        start = os.path.join(root, split.name)
        remove(f"{start}_caps.txt", f"{start}_caption_image.npy")
    listed = [photos[n] for n in sound]
    save_json({"extractor": network.line, "folder": folder, "photos": listed}, list_path)
    part.remove()

    print(f"{path}: {array.shape} of {network.line}, {new - len(broken):,} of them computed now")
    if broken:
        print(
            f"warning: {len(broken):,} of {len(photos):,} photos of {split.name} cannot be read "
            "and are left out:",
            *broken.values(),
            sep="\n  ",
            file=sys.stderr,
        )
    return sound


def write_split(
    opt, root: str, split: Split, order: np.ndarray, network: Network, folder: str = ""
) -> None:
    """Write features, names, ids and captions of the photos of a split that can be read.

    order (M,): the captions to write.
    """
    sound = write_features(opt, root, split, network, folder)
    order = order[np.isin(split.caption_image[order], sound)]
    start = os.path.join(root, split.name)
    save_lines(f"{start}_ids.txt", [split.photo_names[n] for n in sound])
    if split.image_ids and isinstance(split.image_ids[0], int):
        save_array(f"{start}_img_ids.npy", np.array(split.image_ids, np.int64)[sound])
    if split.caption_ids is not None:
        save_array(f"{start}_ann_ids.npy", split.caption_ids[order])
    if split.captions:
        owner = np.searchsorted(sound, split.caption_image[order])  # rows of the file
        if not is_even(owner, len(sound)):
            save_array(f"{start}_caption_image.npy", owner)
        save_lines(f"{start}_caps.txt", [split.captions[m] for m in order])


def open_output(opt, root: str, splits: list[str]) -> Network:
    """Build the network, and record it in the folder. Raises InputError on files by others."""
    for split in splits:
        files = glob.glob(os.path.join(glob.escape(root), f"{split}_*"))
        lists = [store.list_path(root, name) for name in (split, ALL)]
        if files and not any(os.path.exists(path) for path in lists):
            raise InputError(
                f"{min(files)} already exists, and this command did not write it; give "
                "--output_name a folder of its own"
            )
    device = torch_device(opt.device)
    if opt.model:
        network = build_pretrained(device, opt.model)
    else:
        cnn_type = opt.cnn_type or DEFAULT_NETWORK
        network = build_network(device, cnn_type, opt.layer, opt.cnn_weights, opt.whole)
    store.record_extractor(root, "ims", network.line)
    return network


def print_notes(notes: list[str]) -> None:
    for note in notes:
        print(f"note: {note}")


# ---- a folder of one's own


def extract_folder(opt, root: str) -> None:
    """Write the features of the photos below --folder to the folder `root`.

    Raises InputError for a folder without photos, an output that holds anything else, and faults of
    photos or captions.
    """
    folder = os.path.abspath(opt.folder)
    photos_root = os.path.realpath(folder)
    if os.path.commonpath([photos_root, os.path.realpath(root)]) == photos_root:
        raise InputError(
            f"the output {root} is inside --folder {opt.folder}, among the photos; give a "
            "--data_path outside"
        )

    names, notes = find_photos(folder, opt.skip_broken, opt.exclude)
    table = os.path.join(folder, CAPTION_TABLE)
    captions = {}  # {split: {name: captions}}
    if os.path.isfile(table):
        captions, more = read_captions(table, names, opt.captions_per_image)
        notes += more
    print_notes(notes)
    if opt.captions_per_image and not captions:
        raise InputError(
            f"--captions_per_image {opt.captions_per_image} needs captions, and there is no {table}"
        )

    before = read_earlier_features(opt, ALL)
    # The folder may have moved since.
    if before and os.path.isdir(before.folder) and not os.path.samefile(before.folder, folder):
        raise InputError(
            f"{root} holds the photos of {before.folder}, and these are of {folder}; give them an "
            "--output_name of their own"
        )

    network = open_output(opt, root, [ALL, *captions])
    everything = dict.fromkeys(names, ())  # no captions
    for split, texts in {ALL: everything, **captions}.items():
        photos = gather_photos(split, folder, names, texts)
        write_split(opt, root, photos, np.arange(len(photos.captions)), network, folder)


def gather_photos(split: str, folder: str, names: list[str], texts: dict[str, list[str]]) -> Split:
    """Make a split of the photos of a folder that `texts`, {name: captions}, has."""
    own = [name for name in names if name in texts]
    captions = []
    owner = []
    for n, name in enumerate(own):
        for text in texts[name]:
            captions.append(text)
            owner.append(n)
    images = Photos([os.path.join(folder, name) for name in own])
    source = os.path.join(folder, CAPTION_TABLE)
    return Split(split, images, captions, np.array(owner, int), source, photo_names=own)


# ---- a data set


def extract_data_set(opt, root: str) -> None:
    """Write features of the photos of --data_name to the folder `root`. Raises InputError."""
    data_name = opt.data_name or "coco"
    splits = []
    for name in opt.splits or ("train", "dev", "test"):
        split = read_split(
            opt.data_path, data_name, name, use_restval=opt.use_restval, dev_images=0
        )
        splits.append(split)
    if not all(isinstance(split.images, Photos) for split in splits):
        raise InputError(
            f"--data_name {data_name} holds features, not photos; give a data set of photos, such "
            "as coco"
        )
    if os.path.realpath(root) == os.path.realpath(os.path.join(opt.data_path, data_name)):
        raise InputError(
            f"--output_name {opt.output_name} is the folder of the photos; give the features "
            "another name"
        )

    orders = []
    for split in splits:
        split = split.require_sound(images=not opt.skip_broken)
        orders.append(order_captions(split, opt.captions_per_image))
    network = open_output(opt, root, [split.name for split in splits])
    for split, order in zip(splits, orders):
        print_notes(split.notes)
        split.photo_names = name_photos(split.images.paths)
        write_split(opt, root, split, order, network)


def name_photos(paths: list[str]) -> list[str]:
    """Name photos by their files; if names repeat, by their paths below a common folder."""
    names = [os.path.basename(path) for path in paths]
    if repeated(names):
        paths = alike_paths(paths)
        common = os.path.commonpath(paths)
        names = [os.path.relpath(path, common) for path in paths]
    return names


def order_captions(split: Split, per_image: int | None) -> np.ndarray:
    """List the captions to write (M,), image by image, `per_image` or all of each.

    Raises InputError if an image has fewer than `per_image`.
    """
    counts = np.bincount(split.caption_image, minlength=len(split.images))  # (N,)
    if per_image and per_image > counts.min():
        raise InputError(
            f"the images of {split.name} have {counts.min()} to {counts.max()} captions, and "
            f"--captions_per_image {per_image} asks for more; give at most {counts.min()}, or "
            "leave it out to write all"
        )
    number = per_image or int(counts.max())
    order = np.argsort(split.caption_image, kind="stable")  # (M,)
    first = np.cumsum(counts) - counts  # (N,): the position of each image's first caption
    position = np.arange(len(order)) - first[split.caption_image[order]]  # among its image's
    return order[position < number]


# ---- the command


def extract_features(opt) -> None:
    """Write the features. Raises InputError for options that cannot work together."""
    if opt.folder:
        for name in ("data_name", "splits", "use_restval"):
            if getattr(opt, name):
                raise InputError(
                    f"--{name} is not for --folder FOLDER, a folder of your own photos; leave it "
                    "out"
                )
    elif opt.exclude:
        raise InputError(
            "--exclude is for --folder FOLDER, a folder of your own photos; leave it out"
        )
    for name in ("cnn_type", "cnn_weights", "layer", "whole"):
        if opt.model and getattr(opt, name):
            raise InputError(
                f"--{name} does not go with --model {opt.model}, whose image processor and network "
                "say what is computed; leave one of the two out"
            )
    root = os.path.join(opt.data_path, opt.output_name)
    if opt.folder:
        extract_folder(opt, root)
    else:
        extract_data_set(opt, root)


def main(argv=None) -> None:
    p = Arguments("Write features of photos.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--folder",
        type=filename,
        metavar="FOLDER",
        help="read all photos below this folder, in place of a data set; FOLDER/captions.csv "
        "describes them",
    )
    add(
        "--exclude",
        nargs="+",
        metavar="PATTERN",
        default=[],
        help="with --folder: leave out files and folders with such names or paths, such as "
        "'screenshots' or '*.gif'",
    )
    add(
        "--data_name",
        type=data_set,
        help="folder of the photos, a data set below --data_path (default: coco)",
    )
    add("--output_name", type=data_set, required=True, help="folder below --data_path to write to")
    help = "splits to read (default: train dev test)"
    names = [name for name in SPLITS if name == dev_for_val(name)]
    add("--splits", type=dev_for_val, nargs="+", choices=names, help=help)
    add("--use_restval", action="store_true", help="add the restval images to train (COCO)")
    add(
        "--captions_per_image",
        type=positive,
        metavar="N",
        help="write the first N captions of every image (default: all)",
    )
    add(
        "--cnn_type",
        choices=NETWORKS,
        help=f"network that computes the features (default: {DEFAULT_NETWORK}); demo: the filters "
        "of the demo's scenes, which need no weights",
    )
    add(
        "--model",
        type=filename,
        metavar="FOLDER",
        help="pretrained network (CLIP, SigLIP, ViT, DINOv2) in place of --cnn_type, a folder that "
        "save_pretrained of transformers wrote",
    )
    add(
        "--cnn_weights",
        type=filename,
        metavar="FILE",
        help="weights of --cnn_type (default: ImageNet's)",
    )
    add(
        "--layer",
        choices=["fc6", "fc7", "pooled", "cells"],
        help="layer to write: fc7 or fc6 (VGG and AlexNet; default fc7), pooled (default of the "
        "others), or cells, the 7 x 7 cells of the last map in float16 (VGG, ResNet and "
        "EfficientNet-Lite)",
    )
    add(
        "--whole",
        action="store_true",
        help="resize the whole photo to 224 x 224 without keeping its shape (default: cut out its "
        "middle)",
    )
    add(
        "--skip_broken",
        action="store_true",
        help="leave out photos that cannot be read, with their captions, and name them",
    )
    utils.add_workers(p, most=4)
    utils.add_device(p)
    p.accept_name("--photos", "--folder")
    utils.run("features.images", extract_features, p.parse_args(argv))


if __name__ == "__main__":
    main()
