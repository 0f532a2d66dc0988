"""Demo data: scenes of coloured shapes (scenes.py) in the formats of real data sets, with ratings of plausible matches.

    python -m demo --data_path data [--size 2000] [--seed 0] [--scenes other]

An image has a random stream of its own and all arithmetic is exact: a seed gives the same data on every machine, and a
smaller size gives the first images of each split. Below data_path (dev = size // 4 images, test = size // 2):

    demo/                 images/*.png, dataset_demo.json (Karpathy layout), demo.json (size and seed), scenes.json (the
                          objects, and what each caption says of which; written last)
    demo_coco/            images/{train,val}2014/*.png, annotations/{captions,instances}_{train,val}2014.json and
                          coco_{train,dev,test,restval}_ids.npy (caption ids, five in a row an image)
    demo_precomp/         {train,dev,test}_caps.txt, _ids.txt (file names in demo/), _ims.npy, (N, 960) float32, and
                          demo_coco's ids of the same: _img_ids.npy, (N,) int64, and _ann_ids.npy, (M,) int64
    demo_region_precomp/  the same with _ims.npy (N, 36, 192) float16
    demo_cxc/             {sts,sis,sits}_{val,test}.csv: ratings from 0 to 5 of pairs of captions, of images, and of a
                          caption and an image, in the columns and ids of Crisscrossed Captions; val is the dev split
    demo_vg/              images/*.png, image_data.json and region_descriptions.json: size // 2 more scenes with phrases of
                          their regions in the layout of Visual Genome

With --scenes other, the same under names that start with other instead of demo: scenes of another distribution, told
otherwise, for training on one and testing on the other. Features are of the same extractor.

A rating is the mean of five simulated raters who look at what two scenes show or two captions say (`demo_scenes.common`)
and at nothing else. A terse caption is true of many images and so rates high on them, though it was told of another: the
plausible matches that make retrieval ambiguous.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import csv
import itertools
import json
import os
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

import cli
from cli import Arguments, InputError, Stopped, natural
from demo.scenes import (
    ATTRIBUTES,
    CANVAS,
    GROUNDS,
    OUTLINES,
    WORLDS,
    between,
    captions,
    common,
    draw,
    global_features,
    mask,
    random_scene,
    region_features,
    region_phrases,
    said,
    shown,
    shuffled,
)
from files import CHANGING, atomic, read_json, save_array, save_lines

VERSION = 3                      # raise it whenever the same seed would give other files
SPLITS = ("train", "dev", "test")
FOLDERS = ("", "_coco", "_cxc", "_vg", "_precomp", "_region_precomp")   # behind the name of the scenes
MIN_SIZE, MAX_SIZE = 8, 100_000  # training images; up to the larger the ids of images and captions are unique
VG_OBJECTS = (3, 4, 5, 6)       # things in an image of Visual Genome, which are rich
CHUNK = 20                       # images whose features are computed at a time
# ---- ratings

SHARES = {                       # 0 .. 1, of the weight two statements share and of the weight of each
    "sts": lambda shared, a, b: (shared / np.minimum(a, b) + 2 * shared / (a + b)) / 2,     # of two captions
    "sis": lambda shared, a, b: 2 * shared / (a + b),                                       # of two images
    "sits": lambda shared, a, b: shared / a}                                                # how far a holds in image b
SPAN = {"sts": (0.1, 0.85), "sis": (0.15, 0.75), "sits": (0.15, 0.95)}   # the shares that are rated 0 and 5
MISTAKEN = 0.01                  # the chance that a pair is misread, which lowers its rating by up to 4
POOLS = {"sts": (50, 50, 2), "sis": (100, 100, 30, 2), "sits": (50, 50, 10, 2)}    # see `alike`
TWICE = 20                       # one in so many pairs of images is rated again with the images in the other order
COLUMNS = {"sts": ("caption1", "caption2"), "sis": ("image1", "image2"), "sits": ("caption", "image")}


def rating(rng, kind, share):
    """The mean of five raters' scores, 0 .. 5 in hundredths: more for a greater share, save for the raters' noise."""
    low, high = SPAN[kind]
    level = 5 * (share - low) / (high - low) - (4 * rng.random() if rng.random() < MISTAKEN else 0)
    scores = [level + 1.5 * (rng.random() + rng.random() - 1) for _ in range(5)]
    return round(sum(round(100 * min(max(score, 0), 5)) for score in scores) / 500, 2)


def alike(rng, kind, asked, offered, images):
    """Pairs (index in asked, index in offered) of different images; both are lists of Statements, an equal number for
    every image in order. Each of POOLS pairs one of an image's statements with one from a random pool of so many of
    other images: the one that by the tallies shares most. Great pools give pairs much alike, small ones hardly."""
    tallies, weights = np.stack([x.tally for x in offered]), np.array([x.weight for x in offered])
    each, offers, pairs = len(asked) // images, len(offered) // images, {}
    for turn, pool in enumerate(POOLS[kind]):
        for image in range(images):
            query = image * each + (image + turn) % each
            others = [(image + between(rng, 1, images - 1)) % images * offers + between(rng, 0, offers - 1)
                      for _ in range(pool)]
            shared = np.minimum(asked[query].tally, tallies[others]).sum(1)                 # (pool,)
            best = others[int(SHARES[kind](shared, asked[query].weight, weights[others]).argmax())]
            if kind == "sits" or (best, query) not in pairs:
                pairs[query, best] = None
    return list(pairs)


def ratings(seed, split, scenes):
    """{kind: [(index, index, rating, sampling method)]} in random order, of the (scene, captions) of a split's images;
    the indices are of images or of captions, counted through the split."""
    shows = [shown(scene) for scene, _ in scenes]
    says = [said(scene, caption) for scene, told in scenes for caption in told]
    each, n, rated = len(says) // len(scenes), len(scenes), {}
    for kind, asked, offered in (("sts", says, says), ("sis", shows, shows), ("sits", says, shows)):
        rng = random.Random(f"{seed}-{kind}-{split}")
        pairs = [(*pair, {"sts": "c2c_isim", "sis": "i2i_csim", "sits": "c2i_intrasim"}[kind])
                 for pair in alike(rng, kind, asked, offered, n)]
        if kind == "sts":        # three of the ten pairs of an image's captions
            pairs += [(image * each + i, image * each + j, "c2c_cocaption") for image in range(n)
                      for i, j in shuffled(rng, itertools.combinations(range(each), 2))[:3]]
        elif kind == "sits":
            pairs += [(k, k // each, "c2i_original") for k in range(len(says))]
        else:
            pairs += [(b, a, method) for a, b, method in pairs[::TWICE]]
        rows = [(a, b, rating(rng, kind, float(SHARES[kind](common(asked[a], offered[b]), asked[a].weight,
                                                            offered[b].weight))), method) for a, b, method in pairs]
        rated[kind] = shuffled(rng, rows)
    return rated


# ---- files

def scattered(split, index, k, per_image, factor, prime):
    """An id like those of real photos: unique but in no order, as a factor permutes the numbers below a prime."""
    return 1 + ((index * len(SPLITS) + SPLITS.index(split)) * per_image + k + 4243) * factor % prime


def photo_id(split, index):
    """COCO's id of the image with this index in its split."""
    return scattered(split, index, 0, 1, 7919, 999_983)


def caption_ids(split, index, told):
    """COCO's ids of its captions."""
    return [scattered(split, index, k, len(told), 104_729, 9_999_991) for k in range(len(told))]


def save_json(path, content):
    with atomic(path) as file:
        file.write(json.dumps(content) + "\n")


def save_picture(path, pixels):
    with atomic(path, "wb", sync=False) as file:
        Image.fromarray(pixels).save(file, "PNG")


def link(source, target):
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:              # file systems without hard links
        shutil.copyfile(source, target)


def scene_entry(split, filename, scene, told):
    """What scenes.json holds of an image."""
    return {"filename": filename, "split": split,
            "objects": [{a: getattr(thing, a) for a in (*ATTRIBUTES, "box")} for thing in scene.things],
            "background": scene.background, "shaded": scene.shaded,
            "horizon": scene.horizon if scene.background in GROUNDS else None,
            "captions": [{"raw": c.text, "level": c.level, "objects": [index for index, _ in c.says],
                          "says": [given for _, given in c.says], "background": c.background} for c in told]}


def instances(scene, photo):
    """COCO annotations of a scene's things. Outlines are of whole things, also where another covers a bit of one."""
    return [{"id": photo * 10 + k, "image_id": photo, "category_id": list(OUTLINES).index(thing.shape) + 1,
             "bbox": thing.box, "area": int(mask(thing.shape, thing.radius).sum()), "iscrowd": 0,
             "segmentation": [[number for x, y in OUTLINES[thing.shape] for number in
                               (thing.x + x * thing.radius / 25, thing.y + y * thing.radius / 25)]],
             "phrase": " ".join(getattr(thing, a) for a in ATTRIBUTES)} for k, thing in enumerate(scene.things)]


def write_coco(folder, photos, entries):
    """COCO's layout. As there, the images of dev, test and restval (the last fifth of train) are in val2014."""
    made = {year: {"images": [], "captions": [], "instances": []} for year in ("train2014", "val2014")}
    ids = {"train": [], "dev": [], "test": [], "restval": []}
    for year in made:
        (folder / "images" / year).mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        for index, (filename, scene, told) in enumerate(entries[split]):
            rest = split == "train" and index >= len(entries[split]) - max(len(entries[split]) // 5, 1)
            part = "restval" if rest else split
            year = "train2014" if part == "train" else "val2014"
            photo = photo_id(split, index)
            photo_name = f"COCO_{year}_{photo:012d}.png"
            link(photos / filename, folder / "images" / year / photo_name)
            made[year]["images"].append({"id": photo, "file_name": photo_name, "width": CANVAS, "height": CANVAS})
            made[year]["instances"] += instances(scene, photo)
            numbers = caption_ids(split, index, told)
            ids[part] += numbers
            made[year]["captions"] += [{"id": number, "image_id": photo, "caption": caption.text}
                                       for number, caption in zip(numbers, told, strict=True)]
    head = {"info": {"description": "demo scenes"}, "licenses": []}
    categories = [{"id": k, "name": shape, "supercategory": "shape"} for k, shape in enumerate(OUTLINES, 1)]
    for year, content in made.items():       # by id, as the order in real files tells nothing
        images, told, seen = (sorted(content[key], key=lambda item: item["id"]) for key in content)
        save_json(folder / "annotations" / f"captions_{year}.json", {**head, "images": images, "annotations": told})
        save_json(folder / "annotations" / f"instances_{year}.json",
                  {**head, "images": images, "categories": categories, "annotations": seen})
    for part, numbers in ids.items():
        save_array(folder / "annotations" / f"coco_{part}_ids.npy", np.array(numbers, np.int64))


def write_cxc(folder, seed, entries):
    """Crisscrossed Captions' layout. Its photos are JPEGs, so that is how it spells their names."""
    for split, named in (("dev", "val"), ("test", "test")):
        images = [f"COCO_val2014_{photo_id(split, index):012d}.jpg" for index in range(len(entries[split]))]
        told = [f"COCO_val2014:sentid:{number}" for index, (_, _, told) in enumerate(entries[split])
                for number in caption_ids(split, index, told)]
        for kind, rows in ratings(seed, split, [entry[1:] for entry in entries[split]]).items():
            left, right = {"sts": (told, told), "sis": (images, images), "sits": (told, images)}[kind]
            with atomic(folder / f"{kind}_{named}.csv") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow([*COLUMNS[kind], "agg_score", "sampling_method"])
                table.writerows([left[a], right[b], score, method] for a, b, score, method in rows)


def write_vg(folder, seed, world, count, bar):
    """Visual Genome's layout, with its irregularities: half of the entries spell `id` for image_id or region_id,
    one image in eight is also in COCO, one in sixteen has no regions, and a box now and then reaches over the edge."""
    listed, told = [], []
    for index in range(count):
        rng, number = random.Random(f"{seed}-vg-{index}"), 1 + (index + 4243) * 7919 % 999_983
        scene = random_scene(rng, replace(world, objects=VG_OBJECTS))
        save_picture(folder / "images" / f"{number}.png", draw(scene))
        coco = photo_id("test", index) if rng.random() < 1 / 8 else None
        regions = [] if rng.random() < 1 / 16 else region_phrases(rng, scene, world)
        image, region = ("image_id", "region_id") if index % 2 else ("id", "id")
        listed.append({image: number, "url": f"images/{number}.png", "width": CANVAS, "height": CANVAS, "coco_id": coco,
                       "flickr_id": None})
        told.append({image: number, "regions": [
            {region: number * 100 + k, "image_id": number, "x": x, "y": y, "width": w, "height": h, "phrase": phrase}
            for k, ((x, y, w, h), phrase) in enumerate(regions)]})
        bar.update()
    save_json(folder / "image_data.json", listed)
    save_json(folder / "region_descriptions.json", told)


def read_manifest(manifest, folders):
    """What the demo wrote down of these folders, {} where they are not there. Raises InputError where one of them holds files
    and is not the demo's: nothing in it is touched."""
    found = read_json(str(manifest), "move its folder away, or give another --data_path") if manifest.exists() else {}
    if not isinstance(found, dict) or manifest.exists() and not {"version", "size", "seed"} <= set(found):
        raise InputError(f"{manifest} does not describe demo data; move its folder away, or give another --data_path")
    for folder in folders if not found else ():
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is there already and is none that `python -m demo` wrote ({manifest} would say so); "
                             "move it "
                             "away, or give another --data_path")
    return found


def write(data_path, size=2000, seed=0, progress=True, scenes="demo"):
    """Write all files below data_path unless they are there already; return the counts of what they hold."""
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise InputError(f"--size is {size}, but must be from {MIN_SIZE} to {MAX_SIZE}; give a number in that range")
    demo, coco, cxc, vg, *precomp = (Path(data_path) / f"{scenes}{folder}" for folder in FOLDERS)
    world, stream = WORLDS[scenes], seed if scenes == "demo" else f"{scenes}-{seed}"
    manifest, made_of = demo / f"{scenes}.json", {"version": VERSION, "size": size, "seed": seed}
    folders = (demo, coco, cxc, vg, *precomp)
    found = read_manifest(manifest, folders)
    last = demo / "scenes.json"
    if last.exists() and all(folder.is_dir() for folder in folders) and "counts" in found and {**found, **made_of} == found:
        if progress:
            print(f"{scenes} data of size {size} and seed {seed} are in {data_path} already")
        return found["counts"]
    for folder in (demo / "images", coco / "annotations", cxc, vg / "images", *precomp):
        folder.mkdir(parents=True, exist_ok=True)
    marks = [folder / CHANGING.format(split) for folder in (demo, coco, *precomp) for split in SPLITS]
    last.unlink(missing_ok=True)
    for mark in marks:                       # readers refuse what a stop leaves
        mark.touch()
    save_json(manifest, made_of)             # from here on the folders are the demo's
    for images, pattern in ((demo, r"(train|dev|test)_\d{5}\.png"), (coco, r"COCO_(train|val)2014_\d{12}\.png"),
                            (vg, r"\d+\.png")):
        for path in (images / "images").rglob("*.png"):     # of another size or seed; what else lies there stays
            if re.fullmatch(pattern, path.name):
                path.unlink()

    sizes = {"train": size, "dev": size // 4, "test": size // 2}
    entries = {split: [] for split in SPLITS}                # of (filename, scene, captions)
    karpathy, described = [], []
    with tqdm(total=sum(sizes.values()) + size // 2, desc=f"{scenes} images", disable=None if progress else True) as bar:
        for split in SPLITS:
            pooled_chunks, region_chunks = [], []
            for start in range(0, sizes[split], CHUNK):
                pixels = []
                for index in range(start, min(start + CHUNK, sizes[split])):
                    rng, number = random.Random(f"{stream}-{split}-{index}"), len(karpathy)
                    scene, filename = random_scene(rng, world), f"{split}_{index:05d}.png"
                    told = captions(rng, scene, world)
                    pixels.append(draw(scene))
                    save_picture(demo / "images" / filename, pixels[-1])
                    entries[split].append((filename, scene, told))
                    described.append(scene_entry(split, filename, scene, told))
                    sentences = [{"raw": caption.text, "sentid": k, "imgid": number}        # COCO's ids, as dataset_coco.json
                                 for k, caption in zip(caption_ids(split, index, told), told, strict=True)]
                    karpathy.append({"filename": filename, "split": "val" if split == "dev" else split, "imgid": number,
                                     "cocoid": photo_id(split, index), "sentids": [each["sentid"] for each in sentences],
                                     "sentences": sentences})
                regions = region_features(np.stack(pixels))          # (20 or fewer, 36, 192)
                pooled_chunks.append(global_features(regions))
                region_chunks.append(regions.astype(np.float16))
                bar.update(len(pixels))
            photos = [photo_id(split, index) for index in range(sizes[split])]
            numbers = [k for index, (_, _, told) in enumerate(entries[split]) for k in caption_ids(split, index, told)]
            for folder, chunks in zip(precomp, (pooled_chunks, region_chunks), strict=True):
                save_array(folder / f"{split}_ims.npy", np.concatenate(chunks))
                save_lines(folder / f"{split}_ids.txt", [filename for filename, _, _ in entries[split]])
                save_array(folder / f"{split}_img_ids.npy", np.array(photos, np.int64))                # (N,)
                save_array(folder / f"{split}_ann_ids.npy", np.array(numbers, np.int64))               # (M,)
                save_lines(folder / f"{split}_caps.txt", [c.text for _, _, told in entries[split] for c in told])
        write_vg(vg, stream, world, size // 2, bar)
    save_json(demo / f"dataset_{scenes}.json", {"dataset": scenes, "images": karpathy})
    write_coco(coco, demo / "images", entries)
    write_cxc(cxc, stream, entries)
    counted = {**sizes, "captions": sum(len(entry["captions"]) for entry in described),
               "objects": sum(len(entry["objects"]) for entry in described)}
    for mark in marks:
        mark.unlink()
    save_json(manifest, {**made_of, "counts": counted})
    save_json(last, described)
    if progress:
        print(f"{data_path}: {sizes['train']} train, {sizes['dev']} dev and {sizes['test']} test images, "
              f"{counted['captions']} captions, {counted['objects']} objects\n"
              + "\n".join(f"  {scenes + folder:<20} {what}" for folder, what in zip(FOLDERS, (
                  "images, Karpathy's JSON, scenes.json (the objects, and what each caption says)",
                  "the same in COCO's layout, with instances",
                  "ratings of pairs of captions, of images, and of a caption and an image (dev, test)",
                  f"{size // 2} other images with phrases of their regions, in Visual Genome's layout",
                  "global features, 960 numbers an image", "region features, 36 x 192 numbers an image"), strict=True)))
    return counted


def main(argv=None):
    parser = Arguments("write the demo data: scenes of coloured shapes in the formats of real data sets")
    parser.add_argument("--data_path", type=cli.filename, default="data", help="folder to write to")
    parser.add_argument("--size", type=natural, default=2000,
                        help="training images; dev gets a quarter and test half as many")
    parser.add_argument("--seed", type=natural, default=0, help="other numbers give other scenes")
    parser.add_argument("--scenes", choices=list(WORLDS), default="demo",
                        help="distribution of scenes and captions, and what the folders' names start with")
    args = parser.parse_args(argv)

    def work():
        try:
            write(args.data_path, args.size, args.seed, scenes=args.scenes)
        except Stopped as stop:
            stop.advice = "what there is of the demo data is not read before the same command has written all of them"
            raise
        except OSError as error:
            raise InputError(f"--data_path {args.data_path} cannot be written ({cli.reason(error)}); give a folder that "
                             "can") from error
    cli.run("demo", work)


if __name__ == "__main__":
    main()
