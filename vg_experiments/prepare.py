"""Choose crops and captions of Visual Genome and write them as a manifest.

    python -m vg_experiments.prepare --vg data/demo_vg --output runs/vg/manifest.json
    python -m vg_experiments.prepare --data_name f30k_entities --split val test     # phrases of photos, with boxes
    python -m vg_experiments.prepare --data_name f8k --output runs/photos/manifest.json   # photos with captions

Triplets (`ucmr` 4.6), one per image and area threshold: among the ten largest regions below the threshold, A is the
largest, and B is the one of the others with the least IoU with A. C is the smallest box around both, and caption C is
caption A + " and " + caption B. Wholes (`pmrl` 3.4): the three largest crops of at most 20 percent of an image; their
phrases joined by " and " describe the whole image. Images with a coco_id are left out.

Flickr30k Entities has phrases and boxes as well: there a region is a thing (the box around its boxes) with a phrase
that names it, each phrase of a thing once. Photos with captions have no phrases of their regions: there captions A and
B are two of the photo's own, another pair at each threshold, and boxes are drawn at random.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, natural, positive, spell_value, split_name, within
from data import Split, read_split
from files import below, need, output, read_json, read_lines, refusing, save_json, sha256
from phrases.entities import PHRASE, find_truth, photo_paths, read_annotations, read_photo_ids

FORMAT = 1                            # of the manifest
LARGEST = 10                          # regions below the threshold that a triplet is chosen from (`ucmr` 4.6)
CROPS, SHARE = 3, 20                  # crops of an image and their greatest area in percent of it (`pmrl` 3.4)
MAX_SIDE = 1 << 20                    # pixels of a photo
MAX_IOU = 0.5                         # of any two of these crops, our choice: `pmrl` says "minimal overlap"
WHOLES = 950                          # images with crops, at most (`pmrl` 3.4)
DRAWN, SHARES = 40, (0.02, 0.55)      # boxes drawn in a photo, and their shares of it
FOLDERS = ("images", "VG_100K", "VG_100K_2", "")       # where photos lie
SOURCE = "get it from Visual Genome, or write demo data with python -m demo"


class Region(NamedTuple):
    box: tuple[int, int, int, int]    # x, y, width, height
    number: int
    phrase: str
    area = property(lambda self: self.box[2] * self.box[3])


class Photo(NamedTuple):
    number: int
    width: int
    height: int
    file: str | None                  # below the folder; None where it is missing
    regions: list[Region]
    captions: list[str]               # its own, in place of phrases; none of Visual Genome
    area = property(lambda self: self.width * self.height)


# ---- annotations

def parse_entries(path: str, parse: Callable) -> Iterator[tuple]:
    """Yield (id of an image, parse(entry)) of a JSON list. Raises InputError on another form."""
    entries = read_json(need(path, SOURCE))
    check(isinstance(entries, list), f"{path} is not a list of images; give the file as Visual Genome ships it")
    for k, entry in enumerate(entries, 1):
        with refusing(f"{path}: entry {k} is not as Visual Genome ships it", SOURCE):
            value = int(entry["image_id"] if "image_id" in entry else entry["id"]), parse(entry)
        yield value


def parse_image(entry: dict) -> tuple:
    """Parse (width, height, name of the photo, id in COCO or None)."""
    return int(entry["width"]), int(entry["height"]), os.path.basename(str(entry.get("url"))), entry.get("coco_id")


def parse_regions(entry: dict) -> list[Region]:
    return [Region(tuple(round(r[side]) for side in ("x", "y", "width", "height")),
                   r["region_id"] if "region_id" in r else r["id"], (r["phrase"] or "").strip())
            for r in entry["regions"]]


def read_visual_genome(folder: str, counts: Counter) -> Iterator[Photo]:
    """Yield the images that are not in COCO, with their regions. Raises InputError if there is none."""
    photos, path = {}, os.path.join(folder, "image_data.json")
    files = {name: os.path.join(place, name) for place in FOLDERS[::-1]                 # the first folder counts
             if os.path.isdir(os.path.join(folder, place)) for name in os.listdir(os.path.join(folder, place))}
    for number, (width, height, url, coco) in parse_entries(path, parse_image):
        counts["images_listed"] += 1
        counts["images_in_coco"] += coco is not None
        if coco is None:                                   # the photo has the name that url gives, or its id
            names = url, f"{number}.jpg", f"{number}.png"
            photos[number] = Photo(number, width, height, next((files[x] for x in names if x in files), None), [], [])
    check(photos, f"{path}: none of its {counts['images_listed']} images has no coco_id, so none is left; give the "
                  "whole file of Visual Genome")
    for number, regions in parse_entries(os.path.join(folder, "region_descriptions.json"), parse_regions):
        if number in photos:
            yield photos.pop(number)._replace(regions=regions)
    counts["images_without_regions"] += len(photos)


def read_entity_photos(root: str, splits: list[str], counts: Counter) -> Iterator[Photo]:
    """Yield the photos of splits of Flickr30k Entities, with a region for each phrase of each thing.

    A photo's number is its id on Flickr, or its position where an id is no number.
    """
    ids = [photo for split in splits for photo in read_photo_ids(root, split)]
    counts["images_listed"] = len(ids)
    numbered = all(photo.isdecimal() for photo in ids) and len(set(map(int, ids))) == len(ids)
    regions_read = 0
    for k, (photo, path) in enumerate(zip(ids, photo_paths(root, ids))):
        size, chains = read_annotations(os.path.join(root, "Annotations", f"{photo}.xml"), [])
        things = {}                                         # chain: its phrases, in the order of their mention
        for line in read_lines(os.path.join(root, "Sentences", f"{photo}.txt")):
            for chain, kinds, text in PHRASE.findall(line):
                phrase = " ".join(text.lower().split())     # a capital only begins the sentence
                if not isinstance(find_truth(chain, kinds, chains), str):
                    things.setdefault(chain, {})[phrase] = None

        regions = []
        for chain, phrases in things.items():
            x1, y1, x2, y2 = chains[chain]                  # both corners are inside
            for phrase in phrases:
                regions_read += 1
                regions.append(Region((x1, y1, x2 - x1 + 1, y2 - y1 + 1), regions_read, phrase))
        number = int(photo) if numbered else k
        yield Photo(number, *size, os.path.relpath(path, root), regions, [])


def read_photos(split: Split, folder: str, seed: int, counts: Counter) -> Iterator[Photo]:
    """Yield the photos of a split with their captions, and DRAWN boxes in each.

    Shares of the photo are uniform in SHARES. A side is at most twice the other in units of the photo's.
    """
    photos, counts["images_listed"] = split.images, len(split.images)
    for i in tqdm(range(len(photos)), desc="photos", disable=None):
        size, rng = photos.open(i).size, np.random.default_rng([seed, i])
        share, aspect = rng.uniform(*SHARES, DRAWN), 2 ** rng.uniform(-1, 1, DRAWN)
        sides = np.minimum(np.sqrt(np.stack([share * aspect, share / aspect], 1)), 1)               # (DRAWN, 2)
        boxes = np.concatenate([rng.random((DRAWN, 2)) * (1 - sides), sides], 1) * np.tile(size, 2)
        regions = [Region(tuple(box), DRAWN * i + k, "") for k, box in enumerate(np.rint(boxes).astype(int).tolist())]
        captions = [split.captions[m] for m in np.flatnonzero(split.caption_image == i)]
        yield Photo(i, *size, os.path.relpath(photos.paths[i], folder), regions, captions)


# ---- choice

def clip_box(box: tuple, width: int, height: int) -> tuple | None:
    """Clip a box (x, y, width, height) to an image of this size; None outside."""
    x, y, w, h = box
    low, high = (max(x, 0), max(y, 0)), (min(x + w, width), min(y + h, height))
    return (*low, high[0] - low[0], high[1] - low[1]) if high[0] > low[0] and high[1] > low[1] else None


def keep_usable(photo: Photo, counts: Counter) -> list[Region]:
    """Usable regions, clipped to the image, the largest first; counts the others."""
    boxes = [clip_box(region.box, photo.width, photo.height) for region in photo.regions]
    inside = [region._replace(box=box) for region, box in zip(photo.regions, boxes) if box]
    usable = [region for region in inside if region.phrase or photo.captions]
    counts.update(regions_read=len(boxes), regions_without_area=len(boxes) - len(inside), regions_kept=len(usable),
                  regions_without_phrase=len(inside) - len(usable))
    counts["images_kept" if usable else "images_without_regions"] += 1
    return sorted(usable, key=lambda region: -region.area)


def measure_iou(a, b) -> float:
    """Compute the intersection over union of two boxes."""
    shared = clip_box((a[0] - b[0], a[1] - b[1], *a[2:]), *b[2:])           # from b's corner
    shared = shared[2] * shared[3] if shared else 0
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def box_around(a, b) -> tuple:
    """Return the smallest box around two."""
    low, high = (min(a[0], b[0]), min(a[1], b[1])), (max(a[0] + a[2], b[0] + b[2]), max(a[1] + a[3], b[1] + b[3]))
    return (*low, high[0] - low[0], high[1] - low[1])


def choose_triplet(regions: list[Region], area: int, percent: float) -> tuple[Region, Region] | None:
    """Regions A and B of an image (`ucmr` 4.6), None without two below the threshold."""
    a, *others = [r for r in regions if 100 * r.area < percent * area][:LARGEST] or [None]
    return (a, min(others, key=lambda r: measure_iou(a.box, r.box))) if others else None


def choose_crops(regions: list[Region], area: int) -> list[Region] | None:
    """The three largest crops of at most 20 percent of an image (`pmrl` 3.4).

    None where the ten largest do not have three whose IoU is at most MAX_IOU.
    """
    chosen = []
    for region in [r for r in regions if 100 * r.area <= SHARE * area][:LARGEST]:
        if len(chosen) < CROPS and all(measure_iou(region.box, other.box) <= MAX_IOU for other in chosen):
            chosen.append(region)
    return chosen if len(chosen) == CROPS else None


def draw_images(photos: dict[int, Photo], fit: dict, count: int, seed: int, key: str, folder: str) -> list[int]:
    """Draw `count` of the images `fit`, by hashes of their ids. Raises InputError if one has no photo."""
    numbers = sorted(fit, key=lambda n: sha256(f"{seed}-{key}-{n}"))[:count]
    gone = [n for n in numbers if photos[n].file is None]
    check(not gone, f"{len(gone)} of the {len(numbers)} photos drawn are not in {folder}, those of the images "
                    f"{', '.join(map(str, gone[:5]))}; put the photos in {', '.join(FOLDERS[:3])} below it")
    return numbers


# ---- manifest

def strip_full_stop(phrase: str) -> str:
    return phrase.rstrip(" .") or phrase


def describe_triplet(photo: Photo, a: Region, b: Region, k: int) -> dict:
    """The entry of regions A and B, and of C around them; k: number of the threshold."""
    own = photo.captions
    captions = [strip_full_stop(own[(k + j) % len(own)] if own else region.phrase) for j, region in enumerate((a, b))]
    return {"image": photo.number, "regions": [a.number, b.number], "a": list(a.box), "b": list(b.box),
            "c": list(box_around(a.box, b.box)), "iou": round(measure_iou(a.box, b.box), 4),
            "caption_a": captions[0], "caption_b": captions[1], "caption_c": " and ".join(captions)}


def describe_whole(number: int, crops: list[Region]) -> dict:
    """The entry of an image and three crops of it."""
    captions = [strip_full_stop(r.phrase) for r in crops]
    return {"image": number, "regions": [r.number for r in crops], "crops": [list(r.box) for r in crops],
            "captions": captions, "description": " and ".join(captions)}


def make_manifest(folder: str, images: int = 2000, thresholds=(10, 20, 30, 40, 50), seed: int = 0,
                  split: Split | None = None, entities: list[str] | None = None) -> dict:
    """Manifest of a folder of Visual Genome, or of photos and captions of a split.

    entities: splits of Flickr30k Entities, whose folder it is.

    Images of triplets have one at every threshold, so that all thresholds compare the same images. Raises InputError if
    a file is not as Visual Genome ships it, or no image is left.
    """
    percents, counts = sorted(set(thresholds)), Counter()
    if split:
        folder = os.path.commonpath([os.path.dirname(path) for path in split.images.paths])
    if split:
        photos = read_photos(split, folder, seed, counts)
    elif entities:
        photos = read_entity_photos(folder, entities, counts)
    else:
        photos = read_visual_genome(folder, counts)

    photo_of, pairs, crops = {}, {}, {}                    # photos, triplets and three crops by image
    for photo in photos:
        regions, n, photo_of[photo.number] = keep_usable(photo, counts), photo.number, photo._replace(regions=[])
        chosen = [choose_triplet(regions, photo.area, percent) for percent in percents]
        counts.update(f"images_with_triplet_{percent:g}" for percent, pair in zip(percents, chosen) if pair)
        if None not in chosen and len(photo.captions) != 1:
            pairs[n] = chosen
        three = choose_crops(regions, photo.area)
        if three and not photo.captions:                   # nothing describes the crops of a photo with captions
            crops[n] = three
    check(pairs, f"--thresholds {' '.join(f'{t:g}' for t in percents)}: no image has two regions smaller than "
                 f"{percents[0]:g} percent of it, two at every other threshold, and two captions; give larger "
                 "thresholds, or other data")
    counts.update(images_with_all_triplets=len(pairs), images_with_three_crops=len(crops))
    picked = draw_images(photo_of, pairs, images, seed, "triplets", folder)
    for k, percent in enumerate(percents):                 # their crops A and C are one
        counts[f"triplets_with_b_inside_a_{percent:g}"] = sum(
            box_around(a.box, b.box) == a.box for a, b in (pairs[n][k] for n in picked))
    whole = draw_images(photo_of, crops, WHOLES, seed, "wholes", folder)
    return {
        "format": FORMAT, "folder": os.path.abspath(folder), "seed": seed, "thresholds": percents,
        "counts": dict(sorted(counts.items())),
        "images": {str(n): {side: getattr(photo_of[n], side) for side in ("file", "width", "height")}
                   for n in sorted({*picked, *whole})},
        "triplets": {f"{percent:g}": [describe_triplet(photo_of[n], *pairs[n][k], k) for n in picked]
                     for k, percent in enumerate(percents)},
        "wholes": [describe_whole(n, crops[n]) for n in whole]}


def load_manifest(path: str, folder: str | None = None) -> dict:
    """Read a manifest. folder: of the photos, if they moved. Raises InputError."""
    fix = "write one with python -m vg_experiments.prepare"
    manifest = read_json(need(path, fix), fix)
    with refusing(f"{path} is not a manifest of format {FORMAT}", fix):
        check(manifest["format"] == FORMAT, f"{path} is not a manifest of format {FORMAT}; {fix}")
        for photo in manifest["images"].values():
            below(manifest["folder"], photo["file"], path)
        check_manifest(manifest)
        manifest["folder"] = folder or manifest["folder"]
    return manifest


def check_manifest(manifest: dict) -> None:
    """Raise an exception where a part of a manifest is not of the kind that `make_manifest` returns."""
    images, triplets = manifest["images"], manifest["triplets"]
    for photo in images.values():
        if not is_size(photo["width"]) or not is_size(photo["height"]):
            raise ValueError("a photo has no width or height in pixels")
    if not triplets or not all(0 < float(percent) <= 100 for percent in triplets):
        raise ValueError("its triplets are not listed by percentages")

    used = [[t["image"] for t in listed] for listed in triplets.values()]
    if any(numbers != used[0] for numbers in used):
        raise ValueError("not every threshold has a triplet of each image, in one order")
    numbers = [*used[0], *(w["image"] for w in manifest["wholes"])]
    if not all(str(number) in images for number in numbers):
        raise ValueError("a triplet is of an image that is not listed")
    check_crops(manifest)


def check_crops(manifest: dict) -> None:
    """Raise an exception where a manifest has boxes or captions of another kind."""
    boxes, captions = [], []
    for listed in manifest["triplets"].values():
        for t in listed:
            boxes += [t["a"], t["b"], t["c"]]
            captions += [t["caption_a"], t["caption_b"], t["caption_c"]]
    for w in manifest["wholes"]:
        if len(w["crops"]) != CROPS or len(w["captions"]) != CROPS:
            raise ValueError(f"an image has not {CROPS} crops and captions")
        boxes += w["crops"]
        captions += [*w["captions"], w["description"]]
    if not all(isinstance(caption, str) for caption in captions):
        raise ValueError("a caption is not a text")
    for box in boxes:
        if len(box) != 4 or not all(type(x) is int and 0 <= x < MAX_SIDE for x in box) or 0 in box[2:]:
            raise ValueError(f"{spell_value(box)} is not a box x, y, width, height in pixels")


def is_size(value) -> bool:
    return type(value) is int and 0 < value < MAX_SIDE


def read_captioned_photos(opt) -> Split:
    """Read the split of --data_name. Raises InputError on features, and on several splits."""
    if len(opt.split) > 1:
        raise InputError(f"--split {' '.join(opt.split)} names several splits; of photos with captions, give one")
    split = read_split(opt.data_path, opt.data_name, opt.split[0], dev_images=0)
    if not hasattr(split.images, "paths"):
        raise InputError(f"--data_name {opt.data_name} holds features, and crops are cut from photos; name a data set "
                         "of photos")
    return split


def write_manifest(opt) -> None:
    """The command: write the manifest and print its counts."""
    output(opt.output, overwrite=opt.overwrite)
    folder, split, entities = opt.vg, None, None
    if opt.data_name:
        root = os.path.join(opt.data_path, opt.data_name)
        if os.path.isdir(os.path.join(root, "Annotations")):
            folder = root
            entities = ["val" if name == "dev" else name for name in opt.split]
        else:
            split = read_captioned_photos(opt)
    manifest = make_manifest(folder, opt.images, opt.thresholds, opt.seed, split, entities)
    save_json(manifest, opt.output)
    for name, count in manifest["counts"].items():
        print(f"{count:>10,}  {name.replace('_', ' ')}")
    print(f"{opt.output}: {len(next(iter(manifest['triplets'].values()))):,} triplets at each of "
          f"{len(manifest['thresholds'])} thresholds, {len(manifest['wholes']):,} images with three crops")


def main(argv=None) -> None:
    p = Arguments("Choose crops and captions of Visual Genome and write them as a manifest.")
    add = p.add_argument
    add("--vg", type=filename, default="data/demo_vg", help="folder with image_data.json, region_descriptions.json and "
        "the photos, which lie in images/, VG_100K/ or VG_100K_2/")
    add("--data_name", type=data_set, help="in place of --vg: a data set below --data_path, like Flickr30k Entities or "
        "of photos with captions")
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--split", type=split_name, nargs="+", default=["test"], help="split of --data_name, or several of Entities")
    add("--output", type=filename, default="runs/vg/manifest.json", metavar="FILE.json", help="manifest to write")
    add("--overwrite", action="store_true", help="replace an existing file")
    add("--images", type=positive, default=2000, help="number of images with triplets, at most")
    percentage = within(lambda x: 0 < x <= 100, "a percentage above 0")
    add("--thresholds", type=percentage, nargs="+", default=[10, 20, 30, 40, 50], metavar="PERCENT",
        help="regions A and B are smaller than this share of the image")
    add("--seed", type=natural, default=0, help="random seed that draws the images")
    cli.run(p.prog, write_manifest, p.parse_args(argv))


if __name__ == "__main__":
    main()
