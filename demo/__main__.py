"""Write demo data: drawn scenes with captions, in the formats of real data.

    python -m demo --data_path data [--size 2000] [--seed 0] [--scenes other]

Each image has its own random stream, and all arithmetic is exact. So a seed gives the same data on every machine, and a
smaller size gives the first images of each split. The folders below data_path, where dev has size // 4 images and test
size // 2:

    demo/                 photos in Karpathy's layout; scenes.json: the objects, and which of them each caption mentions
    demo_coco/            the same in COCO's layout, with instances
    demo_precomp/         features (N, 960) float32 and captions, the file names of demo/ and the ids of demo_coco/; of
                          dev and test all pairs of a caption and an image of which it is true, in the form of
                          evaluate.py --positives
    demo_region_precomp/  the same, with features (N, 36, 192) float16
    demo_cxc/             ratings of dev and test in the form of Crisscrossed Captions
    demo_entities/        noun phrases of the captions with boxes, in the layout of Flickr30k Entities
    demo_vg/              size // 2 more scenes with phrases of their regions, in the layout of Visual Genome

docs/data.md describes the layouts.

With --scenes other the names start with other instead of demo. These scenes and captions come from another
distribution, for training on one and testing on the other. The features come from the same extractor.

A rating is the mean of five simulated raters. They compare what two scenes show or two captions say
(`captions.shared_weight`) and nothing else. A terse caption is true of many images and so rates high on them, although
it was written for another one. These plausible matches make retrieval ambiguous. The positives say without noise which
captions are true of which images (`truth`). Splits of more than 5,000 images have none: their number is a square.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import csv
import functools
import itertools
import multiprocessing
import os
import random
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import cli
from cli import Arguments, check, natural, up_to
from demo import SPLITS, Entry, caption_ids, link, photo_id, save_picture, write_json
from demo.captions import caption_statement, five_captions, region_phrases, scene_statement, shared_weight
from demo.entities import write_entities
from demo.scenes import ATTRIBUTES, CANVAS, GROUNDS, OUTLINES, WORLDS, between, draw_scene, mask, random_scene, shuffled
from demo.truth import LARGEST, positives_by_id
from features.filters import EXTRACTORS, global_features, region_features
from files import atomic, read_json, save_array, save_lines

VERSION = 4                      # raise it whenever the same seed would give other files
FOLDERS = ("", "_coco", "_cxc", "_entities", "_vg", "_precomp", "_region_precomp")     # behind the name of the scenes
MIN_SIZE, MAX_SIZE = 8, 100_000  # training images; up to the larger the ids of images and captions are unique
VG_OBJECTS = (3, 4, 5, 6)       # things in an image of Visual Genome, which are rich
LAST = "scenes.json"             # the file that is written last
CHUNK = 20                       # images whose features are computed at a time
MANY_IMAGES = 1000               # from which on several processes are worth their start

# ---- ratings

SHARES = {                    # 0 .. 1, of the weight two statements share and of the weight of each
    # of two captions, of two images, and how far caption a holds in image b
    "sts": lambda shared, a, b: (shared / np.minimum(a, b) + 2 * shared / (a + b)) / 2,
    "sis": lambda shared, a, b: 2 * shared / (a + b),
    "sits": lambda shared, a, b: shared / a}
SPAN = {"sts": (0.1, 0.85), "sis": (0.15, 0.75), "sits": (0.15, 0.95)}       # the shares that are rated 0 and 5
MISTAKEN = 0.01              # the chance that a pair is misread, which lowers its rating by up to 4
POOLS = {"sts": (50, 50, 2), "sis": (100, 100, 30, 2), "sits": (50, 50, 10, 2)}      # see `pair_similar`
TWICE = 20        # one in so many pairs of images is rated again with the images in the other order
COLUMNS = {"sts": ("caption1", "caption2"), "sis": ("image1", "image2"), "sits": ("caption", "image")}


def rating(rng, kind, share):
    """Return the mean score of five raters, from 0 to 5 in hundredths.

    A greater share (0 to 1) gives more, apart from the noise of the raters.
    """
    low, high = SPAN[kind]
    level = 5 * (share - low) / (high - low) - (4 * rng.random() if rng.random() < MISTAKEN else 0)
    scores = [level + 1.5 * (rng.random() + rng.random() - 1) for _ in range(5)]
    return round(sum(round(100 * min(max(score, 0), 5)) for score in scores) / 500, 2)


def pair_similar(rng, kind, queries, gallery, images):
    """Pair Statements of each image with similar ones of other images, as indices.

    Both lists hold the same number of Statements per image, in the order of the images. For each size in POOLS, one
    statement of each image is paired with one from a random pool of that size, drawn from other images: the one whose
    tally shares most with it. Large pools give very similar pairs, small ones hardly similar pairs.
    """
    tallies, weights = np.stack([x.tally for x in gallery]), np.array([x.weight for x in gallery])
    each, offers, pairs = len(queries) // images, len(gallery) // images, {}
    for turn, pool in enumerate(POOLS[kind]):
        for image in range(images):
            query = image * each + (image + turn) % each
            others = [(image + between(rng, 1, images - 1)) % images * offers
                      + between(rng, 0, offers - 1) for _ in range(pool)]
            shared = np.minimum(queries[query].tally, tallies[others]).sum(1)                # (pool,)
            best = others[int(SHARES[kind](shared, queries[query].weight, weights[others]).argmax())]
            if kind == "sits" or (best, query) not in pairs:
                pairs[query, best] = None
    return list(pairs)


def ratings(seed, split, kind, scenes):
    """Rate pairs of a split; return them in random order: [(index, index, rating, method)].

    kind: sts, sis or sits. scenes: the (scene, captions) of each image. Indices count images or captions through the
    split.
    """
    shows = [scene_statement(scene) for scene, _ in scenes] if kind != "sts" else []
    says = [caption_statement(scene, c) for scene, captions in scenes for c in captions] if kind != "sis" else []
    queries, gallery = {"sts": (says, says), "sis": (shows, shows), "sits": (says, shows)}[kind]
    n = len(scenes)
    each = len(queries) // n

    rng = random.Random(f"{seed}-{kind}-{split}")
    pairs = [(*pair, {"sts": "c2c_isim", "sis": "i2i_csim", "sits": "c2i_intrasim"}[kind])
             for pair in pair_similar(rng, kind, queries, gallery, n)]
    if kind == "sts":        # three of the ten pairs of an image's captions
        pairs += [(image * each + i, image * each + j, "c2c_cocaption") for image in range(n)
                  for i, j in shuffled(rng, itertools.combinations(range(each), 2))[:3]]
    elif kind == "sits":
        pairs += [(k, k // each, "c2i_original") for k in range(len(says))]
    else:
        pairs += [(b, a, method) for a, b, method in pairs[::TWICE]]
    shares = [float(SHARES[kind](shared_weight(queries[a], gallery[b]), queries[a].weight, gallery[b].weight))
              for a, b, _ in pairs]
    rows = [(a, b, rating(rng, kind, share), method) for (a, b, method), share in zip(pairs, shares, strict=True)]
    return shuffled(rng, rows)


# ---- work for several processes

def prepare_worker():
    """Leave Ctrl-C to the parent, and the other cores to the other processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


class Workers:
    """Calls functions in as many processes as there are cores; of few images in this one.

    Each image, and each kind of rating, has a random stream of its own, so it does not matter which process draws it.
    """

    def __init__(self, images):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.pool = None
        if images >= MANY_IMAGES and cores > 1 and sys.platform == "linux":         # elsewhere each would load torch
            context = multiprocessing.get_context("fork")
            self.pool = ProcessPoolExecutor(cores, context, prepare_worker)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def map(self, function, *tasks):
        """Yield function(*arguments) for the arguments that the lists `tasks` hold, in order."""
        return (self.pool.map if self.pool else map)(function, *tasks)


# ---- files

def scene_entry(split, e):
    """Build the entry of an image in scenes.json."""
    return {"filename": e.filename, "split": split,
            "objects": [{a: getattr(thing, a) for a in (*ATTRIBUTES, "box")} for thing in e.scene.things],
            "background": e.scene.background, "shaded": e.scene.shaded,
            "horizon": e.scene.horizon if e.scene.background in GROUNDS else None,
            "captions": [{"raw": c.text, "level": c.level, "objects": [index for index, _ in c.says],
                          "says": [attributes for _, attributes in c.says], "background": c.background}
                         for c in e.captions]}


def instances(scene, photo):
    """Build COCO annotations of a scene's things, whole where others cover a part."""
    return [{"id": photo * 10 + k, "image_id": photo,
             "category_id": list(OUTLINES).index(thing.shape) + 1, "bbox": thing.box,
             "area": int(mask(thing.shape, thing.radius).sum()), "iscrowd": 0,
             "segmentation": [[number for x, y in OUTLINES[thing.shape]
                               for number in (thing.x + x * thing.radius / 25, thing.y + y * thing.radius / 25)]],
             "phrase": " ".join(getattr(thing, a) for a in ATTRIBUTES)}
            for k, thing in enumerate(scene.things)]


def write_coco(folder, photos, entries):
    """Write COCO's layout, with dev, test and restval (a fifth of train) in val2014."""
    content = {year: {"images": [], "captions": [], "instances": []} for year in ("train2014", "val2014")}
    train, rest = entries["train"], max(len(entries["train"]) // 5, 1)
    parts = {**entries, "train": train[:-rest], "restval": train[-rest:]}
    for part, own in parts.items():
        year = "train2014" if part == "train" else "val2014"
        images, captions, objects = content[year].values()
        for e in own:
            photo_name = f"COCO_{year}_{e.photo:012d}.png"
            link(photos / e.filename, folder / "images" / year / photo_name)
            images.append({"id": e.photo, "file_name": photo_name, "width": CANVAS, "height": CANVAS})
            captions += [{"id": number, "image_id": e.photo, "caption": caption.text}
                         for number, caption in zip(e.numbers, e.captions)]
            objects += instances(e.scene, e.photo)
        save_array(folder / "annotations" / f"coco_{part}_ids.npy", np.array([k for e in own for k in e.numbers]))
    head = {"info": {"description": "demo scenes"}, "licenses": []}
    categories = [{"id": k, "name": shape, "supercategory": "shape"} for k, shape in enumerate(OUTLINES, 1)]
    for year, lists in content.items():      # by id, as the order in real files tells nothing
        images, captions, objects = (sorted(items, key=lambda item: item["id"]) for items in lists.values())
        head["images"], path = images, folder / "annotations"
        write_json(path / f"captions_{year}.json", {**head, "annotations": captions})
        write_json(path / f"instances_{year}.json", {**head, "categories": categories, "annotations": objects})


def write_cxc(folder, seed, entries, workers):
    """Write the layout of Crisscrossed Captions, whose photos are JPEGs."""
    tasks = list(itertools.product(("dev", "test"), POOLS))
    splits, kinds = zip(*tasks, strict=True)
    scenes = [[(e.scene, e.captions) for e in entries[split]] for split in splits]
    for (split, kind), rows in zip(tasks, workers.map(ratings, [seed] * len(tasks), splits, kinds, scenes)):
        images = [f"COCO_val2014_{e.photo:012d}.jpg" for e in entries[split]]
        captions = [f"COCO_val2014:sentid:{number}" for e in entries[split] for number in e.numbers]
        left, right = {"sts": (captions, captions), "sis": (images, images), "sits": (captions, images)}[kind]
        with atomic(folder / f"{kind}_{SPLITS[split]}.csv") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow([*COLUMNS[kind], "agg_score", "sampling_method"])
            table.writerows([left[a], right[b], score, method] for a, b, score, method in rows)


def vg_number(index):
    """Return the id of a photo of Visual Genome's layout."""
    return 1 + (index + 4243) * 7919 % 999_983


def draw_vg(folder, seed, world, indices):
    """Draw images of Visual Genome's layout. Returns [(id in COCO or None, regions)]."""
    drawn = []
    for index in indices:
        rng = random.Random(f"{seed}-vg-{index}")
        scene = random_scene(rng, replace(world, objects=VG_OBJECTS))
        save_picture(folder / "images" / f"{vg_number(index)}.png", draw_scene(scene))
        coco = photo_id("test", index) if rng.random() < 1 / 8 else None
        drawn.append((coco, [] if rng.random() < 1 / 16 else region_phrases(rng, scene, world)))
    return drawn


def write_vg(folder, seed, world, count, bar, workers):
    """Write `count` images in Visual Genome's layout, with its irregularities.

    Half of the entries write `id` for image_id or region_id, one image in eight is also in COCO, one in sixteen has no
    regions, and now and then a box extends beyond the edge of the image.
    """
    images, descriptions = [], []
    parts = cut_into_chunks(count)
    for part, drawn in zip(parts, workers.map(functools.partial(draw_vg, folder, seed, world), parts)):
        for index, (coco, regions) in zip(part, drawn):
            number = vg_number(index)
            image, region = ("image_id", "region_id") if index % 2 else ("id", "id")
            images.append({image: number, "url": f"images/{number}.png", "width": CANVAS, "height": CANVAS,
                           "coco_id": coco, "flickr_id": None})
            descriptions.append({image: number, "regions": [
                {region: number * 100 + k, "image_id": number, "x": x, "y": y, "width": w, "height": h,
                 "phrase": phrase} for k, ((x, y, w, h), phrase) in enumerate(regions)]})
        bar.update(len(part))
    write_json(folder / "image_data.json", images)
    write_json(folder / "region_descriptions.json", descriptions)


def read_manifest(manifest, folders, recipe):
    """Read the manifest of an earlier run, {} without one.

    Raises InputError if it has another recipe, or a folder holds files but no manifest says that the demo wrote them.
    """
    fix = f"move the folders {', '.join(folder.name for folder in folders)} away, or give another --data_path"
    if manifest.exists():
        earlier = read_json(str(manifest), fix)
        check(isinstance(earlier, dict) and {**earlier, **recipe} == earlier,
              f"{manifest} is not of {', '.join(f'{key} {value}' for key, value in recipe.items())}; {fix}")
        return earlier
    for folder in folders:
        check(not os.path.lexists(folder) or folder.is_dir() and not any(folder.iterdir()),
              f"{folder} already exists and is none that `python -m demo` wrote ({manifest} would say so); {fix}")
    return {}


def cut_into_chunks(count):
    """The numbers below `count` in ranges of CHUNK."""
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def draw_chunk(demo, split, world, stream, indices):
    """Draw images of a split, write them, and compute their features.

    Returns ([Entry], features (n, 960), features of regions (n, 36, 192)).
    """
    entries, pixels = [], []
    for index in indices:
        rng, filename = random.Random(f"{stream}-{split}-{index}"), f"{split}_{index:05d}.png"
        scene = random_scene(rng, world)
        captions = five_captions(rng, scene, world)
        pixels.append(draw_scene(scene))
        save_picture(demo / "images" / filename, pixels[-1])
        entries.append(Entry(filename, scene, captions, photo_id(split, index), caption_ids(split, index)))
    regions = region_features(np.stack(pixels))
    return entries, global_features(regions), regions.astype(np.float16)


def draw_split(demo, precomp, split, count, world, stream, bar, workers):
    """Draw the images of a split; write photos, features, captions and ids.

    demo and precomp: folders of the photos and of the two kinds of features. stream: start of each image's random seed.
    Returns a list of Entry.
    """
    entries, global_chunks, region_chunks = [], [], []
    draw = functools.partial(draw_chunk, demo, split, world, stream)
    for drawn, features, regions in workers.map(draw, cut_into_chunks(count)):
        entries += drawn
        global_chunks.append(features)
        region_chunks.append(regions)
        bar.update(len(drawn))
    for folder, chunks in zip(precomp, (global_chunks, region_chunks), strict=True):
        save_array(folder / f"{split}_ims.npy", np.concatenate(chunks))
        save_lines(folder / f"{split}_ids.txt", [e.filename for e in entries])
        save_array(folder / f"{split}_img_ids.npy", np.array([e.photo for e in entries]))                   # (N,)
        save_array(folder / f"{split}_ann_ids.npy", np.array([k for e in entries for k in e.numbers]))      # (M,)
        save_lines(folder / f"{split}_caps.txt", [c.text for e in entries for c in e.captions])
    return entries


def karpathy(entries):
    """List the images of all splits as dataset_coco.json does."""
    numbered = enumerate((split, e) for split in SPLITS for e in entries[split])
    return [{"filename": e.filename, "split": SPLITS[split], "imgid": number, "cocoid": e.photo,
             "sentids": e.numbers, "sentences": [{"raw": caption.text, "sentid": k, "imgid": number}
                                                 for k, caption in zip(e.numbers, e.captions)]}
            for number, (split, e) in numbered]


def write_demo(data_path, size=2000, seed=0, scenes="demo"):
    """Write all files below data_path unless they are there; return their counts.

    Raises InputError if a folder holds other files, also those of another size or seed.
    """
    folders = [Path(data_path) / f"{scenes}{folder}" for folder in FOLDERS]
    demo, coco, cxc, entities, vg, *precomp = folders
    world, stream = WORLDS[scenes], seed if scenes == "demo" else f"{scenes}-{seed}"
    manifest, recipe = demo / f"{scenes}.json", {"version": VERSION, "size": size, "seed": seed}
    sizes = {"train": size, "dev": size // 4, "test": size // 2}
    earlier = read_manifest(manifest, folders, recipe)
    if "counts" in earlier and (demo / LAST).exists() and all(folder.is_dir() for folder in folders):
        print(f"{scenes} data of size {size} and seed {seed} are in {data_path} already")
        return earlier["counts"]
    (demo / LAST).unlink(missing_ok=True)
    write_json(manifest, recipe)              # from here on the folders are the demo's
    for folder, line in zip(precomp, EXTRACTORS.values(), strict=True):
        if not (folder / "features.json").exists():         # which names features of captions, too
            write_json(folder / "features.json", {"ims": line})
    total = sum(sizes.values()) + size // 2
    with Workers(total) as workers:
        with tqdm(total=total, desc=f"{scenes} images", disable=None) as bar:
            entries = {split: draw_split(demo, precomp, split, count, world, stream, bar, workers)
                       for split, count in sizes.items()}
            write_vg(vg, stream, world, size // 2, bar, workers)
        write_json(demo / f"dataset_{scenes}.json", {"dataset": scenes, "images": karpathy(entries)})
        write_coco(coco, demo / "images", entries)
        write_cxc(cxc, stream, entries, workers)
        write_entities(entities, demo / "images", entries)
        judged = [split for split in ("dev", "test") if sizes[split] <= LARGEST]
        for split, positives in zip(judged, workers.map(positives_by_id, [entries[split] for split in judged])):
            first, second = (folder / f"{split}_positives.json" for folder in precomp)
            write_json(first, positives)
            link(first, second)
    if hasattr(os, "sync"):
        os.sync()                             # all photos and texts are on the disk before the file that says so
    objects = [scene_entry(split, e) for split in SPLITS for e in entries[split]]
    counts = {**sizes, "captions": sum(len(entry["captions"]) for entry in objects),
              "objects": sum(len(entry["objects"]) for entry in objects)}
    write_json(manifest, {**recipe, "counts": counts})
    write_json(demo / LAST, objects)
    print(f"{data_path}: {sizes['train']} train, {sizes['dev']} dev and {sizes['test']} test images, "
          f"{counts['captions']} captions, {counts['objects']} objects in {', '.join(x.name for x in folders)}")
    return counts


def main(argv=None):
    parser = Arguments("Write the demo data: scenes of coloured shapes in the formats of real data sets.")
    parser.add_argument("--data_path", type=cli.filename, default="data", help="folder to write to")
    parser.add_argument("--size", type=up_to(MAX_SIZE, MIN_SIZE), default=2000,
                        help="number of training images; dev gets a quarter and test half as many")
    parser.add_argument("--seed", type=natural, default=0, help="random seed; another seed gives other scenes")
    parser.add_argument("--scenes", choices=list(WORLDS), default="demo",
                        help="distribution of scenes and captions; the names of the folders start with it")
    args = parser.parse_args(argv)
    cli.run("demo", write_demo, args.data_path, args.size, args.seed, args.scenes)


if __name__ == "__main__":
    main()
