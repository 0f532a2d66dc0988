"""Choose crops and captions of Visual Genome for the experiments of `ucmr` 4.6 and `pmrl` 3.4, and
write them as a manifest.

    python -m vg_experiments.prepare --vg data/demo_vg --output runs/vg/manifest.json
    python -m vg_experiments.prepare --data_name f8k --output runs/photos/manifest.json   # photos with captions

Reads image_data.json and region_descriptions.json as Visual Genome ships them (`id` or `image_id`,
and `region_id`), the second one as a stream, image by image. Images with a coco_id are left out,
boxes are clipped to their image, and what cannot be used is counted.

Triplets (`ucmr` 4.6), one per image and area threshold: among the ten largest regions below the
threshold, A is the largest, and B is the one of the others with the least IoU with A. C is the
smallest box around both, and caption C is caption A + " and " + caption B. Wholes (`pmrl` 3.4): the
three largest crops of at most 20 percent of an image; their phrases joined by " and " describe the
whole image. The manifest holds boxes, captions, photos, seed, thresholds and counts.

Photos with captions have no phrases of their regions: there captions A and B are two of the photo's
own, another pair at each threshold, and regions are COCO's instances or boxes drawn at random.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import hashlib
import json
import os
import re
from array import array
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename, natural, number, reason
from data import Split, read_split
from files import FAULTS, below, need, output, read_json, refusing, save_json

FORMAT = 1                            # of the manifest
LARGEST = 10                # regions below the threshold that a triplet is chosen from (`ucmr` 4.6)
CROPS, SHARE = 3, 20       # crops of an image and their greatest area in percent of it (`pmrl` 3.4)
DRAWN, SHARES = 40, (0.02, 0.55)      # boxes drawn in a photo, and their shares of it
FOLDERS = ("images", "VG_100K", "VG_100K_2", "")       # where photos lie
SOURCE = "get it from Visual Genome, or write demo data with python -m demo"
AS_SHIPPED = "give the file as Visual Genome ships it"
READ = 1 << 24                        # characters read at a time
LONGEST = 1 << 27                     # characters of an entry of the annotations, at most
GAP = re.compile(r"[\s,]*")


@dataclass
class Regions:
    """R regions of N images. `usable` keeps those that can be used, the regions of an image
    together, the largest first, equally large ones as in the file."""
    folder: str                       # of the photos
    image_ids: np.ndarray             # (N,) int64
    sizes: np.ndarray                 # (N, 2) int64: width, height
    files: list                       # N photos, below the folder; None where one is missing
    image: np.ndarray                 # (R,) int32: the image of each region
    boxes: np.ndarray                 # (R, 4) int32: x, y, width, height
    region_ids: np.ndarray            # (R,) int64
    phrases: list                     # R; None: the captions of the image take their place
    counts: dict                      # of what there was and what was dropped, and why
    captions: list | None = None      # the captions of each of N images

    @property
    def area(self) -> np.ndarray:
        """Areas of the regions in pixels, (R,) int64."""
        return self.boxes[:, 2].astype(np.int64) * self.boxes[:, 3]                 # (R,)

    def usable(self) -> "Regions":
        """Clip boxes to their images, drop what cannot be used, each region counted for one reason,
        and sort the rest."""
        low = np.maximum(self.boxes[:, :2], 0)
        high = np.minimum(self.boxes[:, :2] + self.boxes[:, 2:], self.sizes[self.image])    # (R, 2)
        flat, outside = (self.boxes[:, 2:] <= 0).any(1), (high <= low).any(1)
        empty = np.array([phrase == "" for phrase in self.phrases], bool)
        keep = ~(flat | outside | empty)
        clipped = np.concatenate([low, high - low], 1).astype(np.int32)             # (R, 4)
        rows = np.flatnonzero(keep)
        area = clipped[rows, 2].astype(np.int64) * clipped[rows, 3]
        rows = rows[np.lexsort((-area, self.image[rows]))]      # stable: equals stay as in the file
        n = np.bincount(self.image[rows], minlength=len(self.image_ids))
        cases = {
            "images_kept": n > 0,
            "images_without_regions": n == 0,
            "regions_without_area": flat,
            "regions_outside": outside & ~flat,
            "regions_without_phrase": empty & ~flat & ~outside,
            "regions_kept": keep,
            "regions_clipped": keep & (clipped != self.boxes).any(1),
        }
        counts = {case: int(mask.sum()) for case, mask in cases.items()}
        return replace(self, image=self.image[rows], boxes=clipped[rows],
                       region_ids=self.region_ids[rows],
                       phrases=[self.phrases[k] for k in rows.tolist()],
                       counts={**self.counts, **counts, "regions_read": len(self.boxes)})


# ---- annotations

def stream(path: str):
    """The objects of a JSON array one after the other, with the number of characters read so far;
    never all at once.

    Raises InputError if the file is not a JSON array.
    """
    decoder = json.JSONDecoder()
    try:
        with (refusing(f"{path} cannot be read", "check its name and its permissions", OSError),
              open(path, encoding="utf-8") as f):
            text = f.read(READ)
            at, read = GAP.match(text).end(), len(text)
            if text[at:at + 1] != "[":
                raise ValueError(f"it starts with {text[at:at + 20]!r} and not with a list")
            at += 1
            while True:
                at = GAP.match(text, at).end()
                if text[at:at + 1] == "]":
                    return
                try:
                    entry, at = decoder.raw_decode(text, at)
                    yield entry, read
                except json.JSONDecodeError as error:
                    more = f.read(READ)
                    if not more or len(text) - at > LONGEST:
                        raise ValueError(f"{error.msg} near character "
                                         f"{read - len(text) + error.pos}") from error
                    text, at, read = text[at:] + more, 0, read + len(more)
    except InputError:
        raise
    # also bytes that are no text, a number of thousands of digits, hundreds of levels
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not whole JSON ({reason(error)}); fetch it again") from error


def image_id(entry, path: str) -> int:
    """The id of the image of an entry. Raises InputError if it has none."""
    number = entry.get("image_id", entry.get("id")) if isinstance(entry, dict) else None
    check(type(number) is int and abs(number) < 2 ** 63,
          f"{path} has an entry with no whole number under image_id or id; {AS_SHIPPED}")
    return number


def read_images(folder: str, counts: dict) -> tuple[np.ndarray, np.ndarray, list]:
    """Ids (N,) and sizes (N, 2) of the images that are not in COCO, sorted by id, and their photos
    below the folder or None; updates counts.

    Raises InputError if the file is not as Visual Genome ships it or no image is left.
    """
    path, there, rows = os.path.join(folder, "image_data.json"), {}, {}
    listed = read_json(need(path, SOURCE))
    check(isinstance(listed, list), f"{path} is no list of images; {AS_SHIPPED}")
    for below_it in filter(os.path.isdir, (os.path.join(folder, name) for name in FOLDERS)):
        for name in os.listdir(below_it):
            there.setdefault(name, os.path.relpath(os.path.join(below_it, name), folder))
    for entry in listed:
        number, size = image_id(entry, path), (entry.get("width"), entry.get("height"))
        if entry.get("coco_id") is not None:
            counts["images_in_coco"] += 1
        elif not all(type(side) is int and 0 < side < 2 ** 31 for side in size):
            counts["images_without_size"] += 1
        elif number in rows:
            counts["images_twice"] += 1
        else:                                  # the photo has the name that url gives, or its id
            names = os.path.basename(str(entry.get("url"))), f"{number}.jpg", f"{number}.png"
            rows[number] = size, next((there[name] for name in names if name in there), None)
    counts["images_listed"] = len(listed)
    check(rows,
          f"{path}: none of its {len(listed)} images has a size and no coco_id, so none is left; "
          "give the whole file of Visual Genome")
    ids = sorted(rows)
    sizes, files = zip(*(rows[number] for number in ids))
    return np.array(ids, np.int64), np.array(sizes, np.int64), list(files)


def read_regions(folder: str) -> Regions:
    """All regions of both annotation files of a folder."""
    counts = dict.fromkeys(("images_listed", "images_in_coco", "images_without_size",
                            "images_twice", "images_kept", "images_without_regions",
                            "regions_of_other_images", "regions_read"), 0)
    image_ids, sizes, files = read_images(folder, counts)
    place = {number: i for i, number in enumerate(image_ids.tolist())}
    path = need(os.path.join(folder, "region_descriptions.json"), SOURCE)
    image, numbers, ids, phrases = array("i"), array("d"), array("q"), []
    with tqdm(total=os.path.getsize(path), unit="B", unit_scale=True, desc="regions",
              disable=None) as bar:
        for k, (entry, read) in enumerate(stream(path)):
            i = place.get(image_id(entry, path))
            try:
                regions = entry["regions"]
                if i is None:
                    counts["regions_of_other_images"] += len(regions)
                    continue
                for r in regions:
                    numbers.extend((r["x"], r["y"], r["width"], r["height"]))
                    ids.append(r["region_id"] if "region_id" in r else r["id"])
                    phrases.append((r["phrase"] or "").strip())
                image.extend([i] * len(regions))
            except (KeyError, TypeError, AttributeError, OverflowError) as error:
                raise InputError(f"{path}: entry {k + 1} has regions that are not as Visual Genome "
                                 f"ships them ({error!r}); each needs region_id or id, x, y, "
                                 "width, height and phrase") from error
            bar.update(read - bar.n)
    boxes = np.asarray(numbers).reshape(-1, 4)
    check(-1e6 <= boxes.min(initial=0) and boxes.max(initial=0) <= 1e6,
          f"{path} has a box of no finite number of pixels; {AS_SHIPPED}")
    boxes = np.rint(boxes, out=boxes).astype(np.int32)
    return Regions(folder, image_ids, sizes, files, np.asarray(image), boxes, np.asarray(ids),
                   phrases, counts)


# ---- photos with captions

def of_photos(split: Split, instances: str | None, seed: int) -> Regions:
    """Regions of the photos of a split: COCO's instances, of the file `instances`, or boxes drawn at
    random in shape and place. Raises InputError where no photo has two captions, and where the file
    lacks one of these photos."""
    n, photos = len(split.images), split.images
    sizes = np.array([photos.open(i).size for i in tqdm(range(n), desc="photos", disable=None)])
    boxes = (boxes_of_instances(instances, [photos.name(i) for i in range(n)]) if instances
             else [drawn_boxes(size, np.random.default_rng([seed, i])) for i, size in enumerate(sizes)])
    captions = [[split.captions[m] for m in np.flatnonzero(split.caption_image == i)]
                for i in range(n)]
    check(max(map(len, captions)) > 1,
          "no photo has two captions, and A and B are two of one photo; give other data")
    folder = os.path.commonpath([os.path.dirname(path) for path in photos.paths])
    image = np.repeat(np.arange(n), [len(own) for own in boxes])                    # (R,)
    return Regions(folder, np.arange(n), sizes, [os.path.relpath(path, folder) for path in photos.paths],
                   image, np.rint(np.concatenate(boxes)).astype(np.int32), np.arange(len(image)),
                   [None] * len(image), {"images_listed": n}, captions)


def drawn_boxes(size: np.ndarray, rng) -> np.ndarray:
    """DRAWN boxes (x, y, width, height) within a photo of this size: (DRAWN, 4). Shares of the photo
    are uniform in SHARES, sides up to twice as long as the other in units of the photo's."""
    share, aspect = rng.uniform(*SHARES, DRAWN), 2 ** rng.uniform(-1, 1, DRAWN)
    sides = np.minimum(np.sqrt(np.stack([share * aspect, share / aspect], 1)), 1)
    return np.concatenate([rng.random((DRAWN, 2)) * (1 - sides), sides], 1) * np.tile(size, 2)


def boxes_of_instances(path: str, names: list[str]) -> list[np.ndarray]:
    """The boxes (k, 4) of COCO's instances in each photo of these names."""
    stored, listed = read_json(need(path, "give COCO's instances_val2014.json")), defaultdict(list)
    try:
        for thing in stored["annotations"]:
            listed[thing["image_id"]].append(thing["bbox"])
        boxes = {os.path.basename(image["file_name"]):
                 np.array(listed[image["id"]], np.float64).reshape(-1, 4) for image in stored["images"]}
    except FAULTS as error:
        raise InputError(f"{path} is no file of COCO's instances ({reason(error)}); give "
                         "instances_val2014.json") from error
    missing = [name for name in names if name not in boxes]
    check(not missing, f"{path} lacks {len(missing):,} of the {len(names):,} photos: "
                       f"{', '.join(missing[:3])}; give the instances of these photos")
    return [boxes[name] for name in names]


# ---- choice

def largest(regions: Regions, percent: float, strict: bool) -> np.ndarray:
    """(N, 10) int64: the ten largest regions of each image below an area limit, the largest first;
    -1 where there are no more.

    percent: the limit in percent of the image; strict: below it, otherwise at most that. As regions
    are sorted by size, these follow the ones that are too large.
    """
    n, image = len(regions.sizes), regions.image
    share, limit = 100 * regions.area, (percent * regions.sizes.prod(1))[image]     # (R,)
    over = np.bincount(image[share >= limit if strict else share > limit], minlength=n)
    start = np.searchsorted(image, np.arange(n + 1))                                # (N + 1,)
    table = (start[:-1] + over)[:, None] + np.arange(LARGEST)                       # (N, 10)
    return np.where(table < start[1:, None], table, -1)


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """IoU of boxes (..., 4), which broadcast: (...), 0 .. 1."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    high = np.minimum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    shared = np.maximum(high - np.maximum(a[..., :2], b[..., :2]), 0).prod(-1)
    return shared / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared)


def around(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smallest boxes (..., 4) around both."""
    low = np.minimum(a[..., :2], b[..., :2])
    high = np.maximum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    return np.concatenate([low, high - low], -1)


def triplets(regions: Regions, percent: float) -> tuple[np.ndarray, np.ndarray]:
    """Regions A and B of every image (N,), -1 where fewer than two are below the threshold (`ucmr`
    4.6)."""
    table = largest(regions, percent, strict=True)
    boxes = regions.boxes[np.maximum(table, 0)]                                     # (N, 10, 4)
    shared = np.where(table[:, 1:] >= 0, overlap(boxes[:, :1], boxes[:, 1:]), np.inf)
    # the first of equals: the largest
    b = np.take_along_axis(table, 1 + shared.argmin(1)[:, None], 1)[:, 0]
    return np.where(b >= 0, table[:, 0], -1), b


def crops(regions: Regions, max_iou: float) -> np.ndarray:
    """(N, 3): the largest crops of at most 20 percent of each image (`pmrl` 3.4).

    A crop is skipped if its IoU with a larger one that was taken exceeds max_iou. Images with fewer
    than three among their ten largest have -1.
    """
    table = largest(regions, SHARE, strict=False)
    boxes, n = regions.boxes[np.maximum(table, 0)], np.arange(len(table))           # (N, 10, 4)
    taken, count = np.full((len(table), CROPS), -1), np.zeros(len(table), int)
    for k in range(LARGEST):
        others = boxes[n[:, None], np.maximum(taken, 0)]                            # (N, 3, 4)
        apart = ((overlap(boxes[:, k:k + 1], others) <= max_iou) | (taken < 0)).all(1)
        fits = np.flatnonzero(apart & (table[:, k] >= 0) & (count < CROPS))
        taken[fits, count[fits]] = k
        count[fits] += 1
    regions_taken = np.take_along_axis(table, np.maximum(taken, 0), 1)
    return np.where((count == CROPS)[:, None], regions_taken, -1)


def random_order(image_ids: np.ndarray, usable: np.ndarray, seed: int, what: str) -> np.ndarray:
    """Rows of the usable images in an order that depends only on the seed, `what` and the image
    ids."""
    index = np.flatnonzero(usable)
    keys = [hashlib.sha256(f"{seed}-{what}-{number}".encode()).digest()
            for number in image_ids[index].tolist()]
    return index[sorted(range(len(index)), key=keys.__getitem__)]


# ---- manifest

def strip_full_stop(phrase: str) -> str:
    """A phrase without full stops at its end, so that it can be joined to others."""
    return phrase.rstrip(" .") or phrase


def join_phrases(phrases: list[str]) -> str:
    """Phrases joined by " and ", without their full stops."""
    return " and ".join(map(strip_full_stop, phrases))


def sample(regions: Regions, usable: np.ndarray, count: int, seed: int, what: str,
           skip_missing: bool) -> np.ndarray:
    """The first `count` usable images in random order that have a photo; counts those that are
    passed over for want of one.

    Raises InputError if a photo is missing and skip_missing is not set.
    """
    order = random_order(regions.image_ids, usable, seed, what)
    there = np.array([regions.files[i] is not None for i in order], bool)
    gone = regions.image_ids[order[:count][~there[:count]]].tolist()
    check(skip_missing or not gone,
          f"{len(gone)} of the {min(count, len(order))} photos drawn are not in {regions.folder}, "
          f"those of the images {', '.join(map(str, gone[:5]))}; fetch them, or go on without "
          "with --skip_missing")
    regions.counts[f"photos_missing_{what}"] = int((~there & (there.cumsum() < count)).sum())
    return order[there][:count]


def with_all(pairs: dict[float, tuple], regions: Regions) -> np.ndarray:
    """Which of the images (N,) have a triplet at every threshold, and two captions where these take
    the place of phrases; updates counts. Raises InputError where none has."""
    usable = np.array([own is None or len(own) > 1
                       for own in regions.captions or [None] * len(regions.sizes)])
    for percent, (_, b) in pairs.items():
        regions.counts[f"images_with_triplet_{percent:g}"] = int((b >= 0).sum())
        usable &= b >= 0
        check(usable.any(),
              f"--thresholds {' '.join(f'{t:g}' for t in pairs)}: at {percent:g} no image has two "
              f"regions smaller than {percent:g} percent of it, and two at every smaller threshold; "
              "give larger thresholds")
    regions.counts["images_with_all_triplets"] = int(usable.sum())
    return usable


def prepare(folder: str, images: int = 2000, wholes: int = 950, thresholds=(10, 20, 30, 40, 50),
            seed: int = 0, max_iou: float = 0.5, skip_missing: bool = False,
            split: Split | None = None, instances: str | None = None) -> dict:
    """The manifest of a folder of Visual Genome, or of the photos and captions of a split, with
    `instances` of COCO.

    Images of triplets have one at every threshold, so that all thresholds compare the same images.
    Raises InputError if an argument is out of range, a file is not as Visual Genome ships it, or no
    image is left.
    """
    percents = " ".join(map(str, thresholds))
    check(images > 0 and wholes >= 0 and all(0 < t <= 100 for t in thresholds)
          and 0 <= max_iou <= 1,
          f"--images {images}, --wholes {wholes}, --thresholds {percents}, --max_iou {max_iou}: "
          "give at least 1 and 0 images, percents above 0 up to 100, and an IoU from 0 to 1")
    regions = (of_photos(split, instances, seed) if split else read_regions(folder)).usable()
    counts = regions.counts
    pairs = {percent: triplets(regions, percent) for percent in sorted(set(thresholds))}
    usable = with_all(pairs, regions)
    picked = sample(regions, usable, images, seed, "triplets", skip_missing)
    for percent, (a, b) in pairs.items():                  # their crops A and C are one
        box_a, box_b = regions.boxes[a[picked]], regions.boxes[b[picked]]
        inside = (around(box_a, box_b) == box_a).all(1)
        counts[f"triplets_with_b_inside_a_{percent:g}"] = int(inside.sum())
    three = crops(regions, max_iou)
    with_three = three[:, 0] >= 0
    counts["images_with_three_crops"] = int(with_three.sum())
    wholes = 0 if split else wholes                        # nothing describes the crops of a photo
    whole = sample(regions, with_three, wholes, seed, "wholes", skip_missing)
    check(len(picked),
          f"none of the {int(usable.sum())} images with triplets has a photo in {regions.folder}; "
          f"put the photos in {', '.join(FOLDERS[:3])} below it")
    used = sorted({*picked.tolist(), *whole.tolist()})
    return {
        "format": FORMAT,
        "folder": os.path.abspath(regions.folder),
        "seed": seed,
        "thresholds": list(pairs),
        "asked": {"images": images, "wholes": wholes, "skip_missing": skip_missing},
        "largest": LARGEST,
        "crops": CROPS,
        "crop_percent": SHARE,
        "max_iou": max_iou,
        "counts": counts,
        "images": {str(regions.image_ids[i]): {"file": regions.files[i], "width": width,
                                               "height": height}
                   for i, (width, height) in zip(used, regions.sizes[used].tolist())},
        "triplets": {f"{percent:g}": [described_triplet(regions, i, a[i], b[i], k) for i in picked]
                     for k, (percent, (a, b)) in enumerate(pairs.items())},
        "wholes": [described_whole(regions, i, three[i]) for i in whole],
    }


def described_triplet(regions: Regions, i: int, a: int, b: int, k: int) -> dict:
    """What the manifest holds of the regions a and b of image i, and of C around both. An image with
    captions of its own gives two of these, another pair at each threshold k."""
    box_a, box_b = regions.boxes[[a, b]]
    own = regions.captions and regions.captions[i]
    captions = [strip_full_stop(own[(k + j) % len(own)] if own else regions.phrases[region])
                for j, region in enumerate((a, b))]
    return {"image": int(regions.image_ids[i]), "regions": regions.region_ids[[a, b]].tolist(),
            "a": box_a.tolist(), "b": box_b.tolist(), "c": around(box_a, box_b).tolist(),
            "iou": round(float(overlap(box_a, box_b)), 4), "caption_a": captions[0],
            "caption_b": captions[1], "caption_c": join_phrases(captions)}


def described_whole(regions: Regions, i: int, three: np.ndarray) -> dict:
    """What the manifest holds of image i and three crops of it."""
    phrases = [regions.phrases[r] for r in three]
    return {"image": int(regions.image_ids[i]), "regions": regions.region_ids[three].tolist(),
            "crops": regions.boxes[three].tolist(), "captions": [*map(strip_full_stop, phrases)],
            "description": join_phrases(phrases)}


def read_manifest(path: str, folder: str | None = None) -> dict:
    """The manifest that `prepare` made, of the photos in `folder` (None: where they were). Raises
    InputError if the file is not one."""
    fix = "write one with python -m vg_experiments.prepare"
    manifest = read_json(need(path, fix), fix)
    try:
        images = manifest["images"]
        for photo in images.values():
            below(manifest["folder"], photo["file"], path)
        sound = (
            manifest["format"] == FORMAT
            and all(type(photo[side]) is int for photo in images.values()
                    for side in ("width", "height"))
            and all(str(t["image"]) in images
                    and all(len(t[x]) == 4 and isinstance(t[f"caption_{x}"], str) for x in "abc")
                    for triplets in manifest["triplets"].values() for t in triplets)
            and all(str(w["image"]) in images and isinstance(w["description"], str)
                    and len(w["crops"]) == len(w["captions"]) == manifest["crops"]
                    for w in manifest["wholes"])
        )
    except (TypeError, KeyError, AttributeError):
        sound = False
    check(sound, f"{path} is no manifest of format {FORMAT}; {fix}")
    manifest["folder"] = folder or manifest["folder"]
    return manifest


def main(argv=None) -> None:
    p = Arguments("Choose crops and captions of Visual Genome and write them as a manifest.")
    add = p.add_argument
    add("--vg", type=filename, default="data/demo_vg",
        help="folder with image_data.json, region_descriptions.json and the photos, "
        "which lie in images/, VG_100K/ or VG_100K_2/")
    add("--data_name", type=data_set, help="in place of --vg: photos with captions, a data set below "
        "--data_path")
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--split", default="test", help="split of --data_name")
    add("--instances", type=filename, metavar="FILE.json",
        help="boxes of --data_name, in the form of COCO's instances (default: drawn at random)")
    add("--output", type=filename, default="runs/vg/manifest.json", metavar="FILE.json",
        help="manifest to write")
    add("--overwrite", action="store_true", help="replace the file that is there")
    add("--images", type=natural, default=2000, help="number of images with triplets, "
        "at most")
    add("--wholes", type=natural, default=950, help="number of images with three crops "
        "and a description of the whole image, at most")
    add("--thresholds", type=number, nargs="+", default=[10, 20, 30, 40, 50],
        metavar="PERCENT", help="regions A and B are smaller than this share of the "
        "image")
    add("--max_iou", type=number, default=0.5, help="greatest IoU of any two of an "
        "image's three crops")
    add("--seed", type=natural, default=0, help="random seed that draws the images")
    add("--skip_missing", action="store_true", help="draw only from images whose photos "
        "are there")
    cli.run(p.prog, choose, p.parse_args(argv))


def choose(opt) -> None:
    """The command: write the manifest and print its counts."""
    output(opt.output, overwrite=opt.overwrite)
    check(opt.data_name or not opt.instances, f"--instances {opt.instances} is for the photos of "
                                              "--data_name; name these, or leave it out")
    split = opt.data_name and read_split(opt.data_path, opt.data_name, opt.split, dev_images=0)
    check(not split or hasattr(split.images, "paths"), f"--data_name {opt.data_name} holds features, "
          "and crops are cut from photos; name a data set of photos")
    manifest = prepare(opt.vg, opt.images, opt.wholes, opt.thresholds, opt.seed, opt.max_iou,
                       opt.skip_missing, split, opt.instances)
    save_json(manifest, opt.output)
    for name, count in manifest["counts"].items():
        print(f"{count:>10,}  {name.replace('_', ' ')}")
    print(f"{opt.output}: {len(next(iter(manifest['triplets'].values()))):,} triplets at each of "
          f"{len(manifest['thresholds'])} thresholds, {len(manifest['wholes']):,} images with "
          "three crops")


if __name__ == "__main__":
    main()
