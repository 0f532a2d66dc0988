"""Write demo data: drawn scenes with captions, in the formats of real data.

    python -m demo --data_path data [--size 2000] [--seed 0] [--scenes other]

Each image has its own random stream, and all arithmetic is exact. So a seed gives the same data on
every machine, and a smaller size gives the first images of each split. The folders below data_path,
where dev has size // 4 images and test size // 2:

    demo/                 photos in Karpathy's layout; scenes.json: the objects, and which of them
                          each caption mentions
    demo_coco/            the same in COCO's layout, with instances
    demo_precomp/         features (N, 960) float32 and captions, the file names of demo/ and the
                          ids of demo_coco/; of dev and test all pairs of a caption and an image of
                          which it is true, in the form of evaluate.py --positives
    demo_region_precomp/  the same, with features (N, 36, 192) float16
    demo_cxc/             ratings of dev and test in the form of Crisscrossed Captions
    demo_entities/        noun phrases of the captions with boxes, in the layout of Flickr30k
                          Entities
    demo_vg/              size // 2 more scenes with phrases of their regions, in the layout of
                          Visual Genome

docs/data.md describes the layouts.

With --scenes other the names start with other instead of demo. These scenes and captions come from
another distribution, for training on one and testing on the other. The features come from the same
extractor.

A rating is the mean of five simulated raters (`ratings`). They find that a terse caption fits many
images, although it was written for another one. These plausible matches make retrieval ambiguous.
The positives say without noise which captions are true of which images (`truth`). Splits of more
than 5,000 images have none: their number is a square.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import functools
import multiprocessing
import os
import random
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import utils
from demo import SPLIT_NAMES, Entry, caption_ids, link, photo_id, save_picture, write_json
from demo.captions import five_captions
from demo.entities import write_entities
from demo.layouts import (
    cut_into_chunks,
    describe_scene,
    list_karpathy,
    write_coco,
    write_cxc,
    write_vg,
)
from demo.scenes import WORLDS, draw_scene, random_scene
from demo.truth import MAX_IMAGES_OF_POSITIVES, positives_by_id
from features.filters import EXTRACTORS, global_features, region_features
from utils import Arguments, InputError, natural, read_json, save_array, save_lines, up_to

DEMO_VERSION = 4  # raise it whenever the same seed would give other files
# behind the name of the scenes
FOLDER_ENDINGS = ("", "_coco", "_cxc", "_entities", "_vg", "_precomp", "_region_precomp")
# training images; up to the larger the ids of images and captions are unique
MIN_SIZE = 8
MAX_SIZE = 100_000
LAST_FILE = "scenes.json"  # that is written
MANY_IMAGES = 1000  # from which on several processes are worth their start

# ---- work for several processes


def prepare_worker():
    """Leave Ctrl-C to the parent, and the other cores to the other processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


class Workers:
    """Calls functions in as many processes as there are cores; of few images in this one.

    Each image, and each kind of rating, has a random stream of its own, so it does not matter which
    process draws it.
    """

    def __init__(self, images):
        cores = 1
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        self.pool = None
        # elsewhere than on Linux each process would load torch
        if images >= MANY_IMAGES and cores > 1 and sys.platform == "linux":
            context = multiprocessing.get_context("fork")
            self.pool = ProcessPoolExecutor(cores, context, prepare_worker)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def map(self, function, *tasks):
        """Yield function(*arguments) for the arguments that the lists `tasks` hold, in order."""
        if self.pool:
            return self.pool.map(function, *tasks)
        return map(function, *tasks)


# ---- images, captions and features


def draw_chunk(demo, split, world, stream, indices):
    """Draw images of a split, write them, and compute their features.

    Returns ([Entry], features (n, 960), features of regions (n, 36, 192)).

    Args:
        demo: folder of the photos.
        split: of SPLIT_NAMES.
        world: of WORLDS.
        stream: start of each image's random seed.
        indices: of the images in the split.
    """
    entries = []
    pixels = []
    for index in indices:
        rng = random.Random(f"{stream}-{split}-{index}")
        filename = f"{split}_{index:05d}.png"
        scene = random_scene(rng, world)
        captions = five_captions(rng, scene, world)
        pixels.append(draw_scene(scene))
        save_picture(demo / "images" / filename, pixels[-1])
        numbers = caption_ids(split, index)
        entries.append(Entry(filename, scene, captions, photo_id(split, index), numbers))
    regions = region_features(np.stack(pixels))
    return entries, global_features(regions), regions.astype(np.float16)


def draw_split(demo, precomp, split, count, world, stream, bar, workers):
    """Draw the images of a split; write photos, features, captions and ids.

    Returns a list of Entry.

    Args:
        demo: folder of the photos.
        precomp: folders of the two kinds of features.
        split: of SPLIT_NAMES.
        count: of its images.
        world: of WORLDS.
        stream: start of each image's random seed.
        bar: of the progress.
        workers: that draw.
    """
    entries = []
    global_chunks = []
    region_chunks = []
    draw = functools.partial(draw_chunk, demo, split, world, stream)
    for drawn, features, regions in workers.map(draw, cut_into_chunks(count)):
        entries += drawn
        global_chunks.append(features)
        region_chunks.append(regions)
        bar.update(len(drawn))

    photos = [entry.photo for entry in entries]
    numbers = []
    texts = []
    for entry in entries:
        numbers += entry.numbers
        texts += [caption.text for caption in entry.captions]
    for folder, chunks in zip(precomp, (global_chunks, region_chunks), strict=True):
        save_array(folder / f"{split}_ims.npy", np.concatenate(chunks))
        save_lines(folder / f"{split}_ids.txt", [entry.filename for entry in entries])
        save_array(folder / f"{split}_img_ids.npy", np.array(photos))  # (N,)
        save_array(folder / f"{split}_ann_ids.npy", np.array(numbers))  # (M,)
        save_lines(folder / f"{split}_caps.txt", texts)
    return entries


# ---- the demo


def read_manifest(manifest, folders, recipe):
    """Read the manifest of an earlier run, {} without one.

    Raises InputError if it has another recipe, or a folder holds files but no manifest says that
    the demo wrote them.
    """
    names = ", ".join(folder.name for folder in folders)
    fix = f"move the folders {names} away, or give another --data_path"
    if manifest.exists():
        earlier = read_json(str(manifest), fix)
        if not isinstance(earlier, dict) or {**earlier, **recipe} != earlier:
            wanted = ", ".join(f"{key} {value}" for key, value in recipe.items())
            raise InputError(f"{manifest} is not of {wanted}; {fix}")
        return earlier

    for folder in folders:
        empty = folder.is_dir() and not any(folder.iterdir())
        if os.path.lexists(folder) and not empty:
            raise InputError(
                f"{folder} already exists and is none that `python -m demo` wrote "
                f"({manifest} would say so); {fix}"
            )
    return {}


def write_positives(precomp, entries, workers):
    """Write which captions are true of which images, for dev and test, unless they are large."""
    splits = [name for name in ("dev", "test") if len(entries[name]) <= MAX_IMAGES_OF_POSITIVES]
    found = workers.map(positives_by_id, [entries[split] for split in splits])
    for split, positives in zip(splits, found):
        first, second = (folder / f"{split}_positives.json" for folder in precomp)
        write_json(first, positives)
        link(first, second)


def write_demo(data_path, size=2000, seed=0, scenes="demo"):
    """Write all files below data_path unless they are there; return their counts.

    Raises InputError if a folder holds other files, also those of another size or seed.
    """
    folders = [Path(data_path) / f"{scenes}{folder}" for folder in FOLDER_ENDINGS]
    demo, coco, cxc, entities, vg, *precomp = folders
    manifest = demo / f"{scenes}.json"
    recipe = {"version": DEMO_VERSION, "size": size, "seed": seed}
    earlier = read_manifest(manifest, folders, recipe)
    complete = (demo / LAST_FILE).exists() and all(folder.is_dir() for folder in folders)
    if complete and "counts" in earlier:
        print(f"{scenes} data of size {size} and seed {seed} are in {data_path} already")
        return earlier["counts"]

    (demo / LAST_FILE).unlink(missing_ok=True)
    write_json(manifest, recipe)  # from here on the folders are the demo's
    for folder, line in zip(precomp, EXTRACTORS.values(), strict=True):
        if not (folder / "features.json").exists():  # which names features of captions, too
            write_json(folder / "features.json", {"ims": line})

    world = WORLDS[scenes]
    stream = seed if scenes == "demo" else f"{scenes}-{seed}"
    sizes = {"train": size, "dev": size // 4, "test": size // 2}
    total = sum(sizes.values()) + size // 2
    entries = {}
    with Workers(total) as workers:
        with tqdm(total=total, desc=f"{scenes} images", disable=None) as bar:
            for split, count in sizes.items():
                entries[split] = draw_split(
                    demo, precomp, split, count, world, stream, bar, workers
                )
            write_vg(vg, stream, world, size // 2, bar, workers)
        dataset = {"dataset": scenes, "images": list_karpathy(entries)}
        write_json(demo / f"dataset_{scenes}.json", dataset)
        write_coco(coco, demo / "images", entries)
        write_cxc(cxc, stream, entries, workers)
        write_entities(entities, demo / "images", entries)
        write_positives(precomp, entries, workers)

    if hasattr(os, "sync"):
        os.sync()  # all photos and texts are on the disk before the file that says so
    described = []
    for split in SPLIT_NAMES:
        described += [describe_scene(split, entry) for entry in entries[split]]
    counts = {
        **sizes,
        "captions": sum(len(scene["captions"]) for scene in described),
        "objects": sum(len(scene["objects"]) for scene in described),
    }
    write_json(manifest, {**recipe, "counts": counts})
    write_json(demo / LAST_FILE, described)
    names = ", ".join(folder.name for folder in folders)
    print(
        f"{data_path}: {sizes['train']} train, {sizes['dev']} dev and {sizes['test']} test images, "
        f"{counts['captions']} captions, {counts['objects']} objects in {names}"
    )
    return counts


def main(argv=None):
    p = Arguments(
        "Write the demo data: scenes of coloured shapes in the formats of real data sets."
    )
    add = p.add_argument
    add("--data_path", type=utils.filename, default="data", help="folder to write to")
    add(
        "--size",
        type=up_to(MAX_SIZE, MIN_SIZE),
        default=2000,
        help="number of training images; dev gets a quarter and test half as many",
    )
    add(
        "--seed",
        type=natural,
        default=0,
        help="random seed; another seed gives other scenes",
    )
    add(
        "--scenes",
        choices=list(WORLDS),
        default="demo",
        help="distribution of scenes and captions; the names of the folders start with it",
    )
    opt = p.parse_args(argv)
    utils.run("demo", write_demo, opt.data_path, opt.size, opt.seed, opt.scenes)


if __name__ == "__main__":
    main()
