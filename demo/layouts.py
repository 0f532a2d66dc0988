"""The demo in the layouts of COCO, of Karpathy, of Crisscrossed Captions and of Visual Genome."""

import csv
import functools
import itertools
import random
from dataclasses import replace

import numpy as np

from demo import SPLIT_NAMES, link, photo_id, save_picture, scatter, write_json
from demo.captions import region_phrases
from demo.ratings import POOL_SIZES, rate_pairs
from demo.scenes import ATTRIBUTES, CANVAS, GROUNDS, OUTLINES, draw_scene, mask, random_scene
from utils import atomic, save_array

VG_OBJECTS = (3, 4, 5, 6)  # things in an image of Visual Genome, which are rich
CXC_COLUMNS = {
    "sts": ("caption1", "caption2"),
    "sis": ("image1", "image2"),
    "sits": ("caption", "image"),
}
IMAGES_PER_CHUNK = 20  # that a process draws, and whose features it computes, at a time


def cut_into_chunks(count):
    """The numbers below `count` in ranges of IMAGES_PER_CHUNK."""
    starts = range(0, count, IMAGES_PER_CHUNK)
    return [range(start, min(start + IMAGES_PER_CHUNK, count)) for start in starts]


# ---- scenes.json and Karpathy's dataset.json


def describe_thing(thing):
    """Attributes and box of a thing."""
    return {name: getattr(thing, name) for name in (*ATTRIBUTES, "box")}


def describe_caption(caption):
    """A caption with the things that it mentions, and what it says of them."""
    return {
        "raw": caption.text,
        "level": caption.level,
        "objects": [index for index, _ in caption.says],
        "says": [attributes for _, attributes in caption.says],
        "background": caption.background,
    }


def describe_scene(split, entry):
    """Build the entry of an image in scenes.json."""
    scene = entry.scene
    return {
        "filename": entry.filename,
        "split": split,
        "objects": [describe_thing(thing) for thing in scene.things],
        "background": scene.background,
        "shaded": scene.shaded,
        "horizon": scene.horizon if scene.background in GROUNDS else None,
        "captions": [describe_caption(caption) for caption in entry.captions],
    }


def list_karpathy(entries):
    """List the images of all splits as dataset_coco.json does."""
    images = []
    for split in SPLIT_NAMES:
        for entry in entries[split]:
            number = len(images)
            sentences = []
            for sentence, caption in zip(entry.numbers, entry.captions):
                sentences.append({"raw": caption.text, "sentid": sentence, "imgid": number})
            image = {
                "filename": entry.filename,
                "split": SPLIT_NAMES[split],
                "imgid": number,
                "cocoid": entry.photo,
                "sentids": entry.numbers,
                "sentences": sentences,
            }
            images.append(image)
    return images


# ---- COCO


def list_instances(scene, photo):
    """Build COCO annotations of a scene's things, whole where others cover a part."""
    instances = []
    for k, thing in enumerate(scene.things):
        outline = []
        for x, y in OUTLINES[thing.shape]:
            outline += [thing.x + x * thing.radius / 25, thing.y + y * thing.radius / 25]
        instance = {
            "id": photo * 10 + k,
            "image_id": photo,
            "category_id": list(OUTLINES).index(thing.shape) + 1,
            "bbox": thing.box,
            "area": int(mask(thing.shape, thing.radius).sum()),
            "iscrowd": 0,
            "segmentation": [outline],
            "phrase": " ".join(getattr(thing, name) for name in ATTRIBUTES),
        }
        instances.append(instance)
    return instances


def write_coco(folder, photos, entries):
    """Write COCO's layout, with dev, test and restval (a fifth of train) in val2014."""
    train = entries["train"]
    rest = max(len(train) // 5, 1)
    parts = {**entries, "train": train[:-rest], "restval": train[-rest:]}
    years = {
        "train2014": {"images": [], "captions": [], "instances": []},
        "val2014": {"images": [], "captions": [], "instances": []},
    }
    annotations = folder / "annotations"
    for part, members in parts.items():
        year = "train2014" if part == "train" else "val2014"
        add_coco(years[year], folder / "images" / year, photos, year, members)
        numbers = []
        for entry in members:
            numbers += entry.numbers
        save_array(annotations / f"coco_{part}_ids.npy", np.array(numbers))

    categories = []
    for k, shape in enumerate(OUTLINES, 1):
        categories.append({"id": k, "name": shape, "supercategory": "shape"})
    for year, lists in years.items():
        for items in lists.values():  # by id, as the order in real files tells nothing
            items.sort(key=get_id)
        head = {
            "info": {"description": "demo scenes"},
            "licenses": [],
            "images": lists["images"],
        }
        captions = {**head, "annotations": lists["captions"]}
        instances = {**head, "categories": categories, "annotations": lists["instances"]}
        write_json(annotations / f"captions_{year}.json", captions)
        write_json(annotations / f"instances_{year}.json", instances)


def get_id(item):
    return item["id"]


def add_coco(lists, folder, photos, year, entries):
    """Link the photos of entries, and add them to the lists of a year's files."""
    for entry in entries:
        name = f"COCO_{year}_{entry.photo:012d}.png"
        link(photos / entry.filename, folder / name)
        lists["images"].append(
            {"id": entry.photo, "file_name": name, "width": CANVAS, "height": CANVAS}
        )
        for number, caption in zip(entry.numbers, entry.captions):
            lists["captions"].append(
                {"id": number, "image_id": entry.photo, "caption": caption.text}
            )
        lists["instances"] += list_instances(entry.scene, entry.photo)


# ---- Crisscrossed Captions


def write_cxc(folder, seed, entries, workers):
    """Write the layout of Crisscrossed Captions, whose photos are JPEGs."""
    tasks = list(itertools.product(("dev", "test"), POOL_SIZES))
    splits = [split for split, _ in tasks]
    kinds = [kind for _, kind in tasks]
    scenes = []
    for split in splits:
        scenes.append([(entry.scene, entry.captions) for entry in entries[split]])
    rated = workers.map(rate_pairs, [seed] * len(tasks), splits, kinds, scenes)
    for split, kind, rows in zip(splits, kinds, rated):
        images = [f"COCO_val2014_{entry.photo:012d}.jpg" for entry in entries[split]]
        captions = []
        for entry in entries[split]:
            captions += [f"COCO_val2014:sentid:{number}" for number in entry.numbers]
        left = images if kind == "sis" else captions
        right = captions if kind == "sts" else images
        with atomic(folder / f"{kind}_{SPLIT_NAMES[split]}.csv") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow([*CXC_COLUMNS[kind], "agg_score", "sampling_method"])
            for a, b, score, method in rows:
                table.writerow([left[a], right[b], score, method])


# ---- Visual Genome


def vg_number(index):
    """Return the id of a photo of Visual Genome's layout."""
    return scatter(index, 7919, 999_983)


def draw_vg(folder, seed, world, indices):
    """Draw images of Visual Genome's layout. Returns [(id in COCO or None, regions)]."""
    drawn = []
    for index in indices:
        rng = random.Random(f"{seed}-vg-{index}")
        scene = random_scene(rng, replace(world, objects=VG_OBJECTS))
        save_picture(folder / "images" / f"{vg_number(index)}.png", draw_scene(scene))
        coco = None
        if rng.random() < 1 / 8:
            coco = photo_id("test", index)
        regions = []
        if rng.random() >= 1 / 16:
            regions = region_phrases(rng, scene, world)
        drawn.append((coco, regions))
    return drawn


def write_vg(folder, seed, world, count, bar, workers):
    """Write `count` images in Visual Genome's layout, with its irregularities.

    Half of the entries write `id` for image_id or region_id, one image in eight is also in COCO,
    one in sixteen has no regions, and now and then a box extends beyond the edge of the image.
    """
    images = []
    descriptions = []
    parts = cut_into_chunks(count)
    draw = functools.partial(draw_vg, folder, seed, world)
    for part, drawn in zip(parts, workers.map(draw, parts)):
        for index, (coco, regions) in zip(part, drawn):
            number = vg_number(index)
            image_key = "image_id" if index % 2 else "id"
            region_key = "region_id" if index % 2 else "id"
            image = {
                image_key: number,
                "url": f"images/{number}.png",
                "width": CANVAS,
                "height": CANVAS,
                "coco_id": coco,
                "flickr_id": None,
            }
            images.append(image)
            described = []
            for k, ((x, y, width, height), phrase) in enumerate(regions):
                region = {
                    region_key: number * 100 + k,
                    "image_id": number,
                    "x": x,
                    "y": y,
                    "width": width,
                    "height": height,
                    "phrase": phrase,
                }
                described.append(region)
            descriptions.append({image_key: number, "regions": described})
        bar.update(len(part))
    write_json(folder / "image_data.json", images)
    write_json(folder / "region_descriptions.json", descriptions)
