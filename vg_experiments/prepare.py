"""Choose crops and captions of Visual Genome and write them as a manifest.

    python -m vg_experiments.prepare --vg data/demo_vg --output runs/vg/manifest.json
    python -m vg_experiments.prepare --data_name f30k_entities --split dev test
    python -m vg_experiments.prepare --data_name f8k --output runs/photos/manifest.json

Triplets (`ucmr` 4.6), one per image and area threshold: among the ten largest regions below the
threshold, A is the largest, and B is the one of the others with the least IoU with A. C is the
smallest box around both, and caption C is caption A + " and " + caption B. Wholes (`pmrl` 3.4): the
three largest crops of at most 20 percent of an image; their phrases joined by " and " describe the
whole image. Images with a coco_id are left out.

Flickr30k Entities has phrases and boxes as well: there a region is a thing (the box around its
boxes) with a phrase that names it, each phrase of a thing once. Photos with captions have no
phrases of their regions: there captions A and B are two of the photo's own, another pair at each
threshold, and boxes are drawn at random.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

import utils
from data import Split, read_split
from metrics import box_iou
from phrases.entities import PHRASE, find_truth, photo_paths, read_annotations, read_photo_ids
from utils import (
    Arguments,
    InputError,
    alike_paths,
    below,
    data_set,
    filename,
    limited,
    natural,
    need,
    output,
    positive,
    read_json,
    read_lines,
    refusing,
    save_json,
    sha256,
    spell_value,
    split_name,
)

MANIFEST_FORMAT = 1
# The largest regions below the threshold that a triplet or crops are chosen from (`ucmr` 4.6).
CANDIDATE_REGIONS = 10
CROPS_PER_IMAGE = 3  # `pmrl` 3.4
MAX_CROP_PERCENT = 20  # of the area of the image (`pmrl` 3.4)
MAX_CROP_IOU = 0.5  # of any two of these crops, our choice: `pmrl` says "minimal overlap"
MAX_SIDE = 1 << 20  # pixels of a photo
MAX_WHOLES = 950  # images with crops (`pmrl` 3.4)
BOXES_PER_PHOTO = 40  # drawn at random
SMALLEST_BOX_SHARE = 0.02  # of the photo's area
LARGEST_BOX_SHARE = 0.55
PHOTO_FOLDERS = ("images", "VG_100K", "VG_100K_2", "")  # where photos lie
GET_VISUAL_GENOME = "get it from Visual Genome, or write demo data with python -m demo"


class Region(NamedTuple):
    """A box of a photo with a phrase that describes it."""

    box: tuple[int, int, int, int]  # x, y, width, height
    number: int
    phrase: str

    @property
    def area(self) -> int:
        return self.box[2] * self.box[3]


class Photo(NamedTuple):
    """A photo and what is known of it."""

    number: int
    width: int
    height: int
    file: str | None  # below the folder; None where it is missing
    regions: list[Region]
    captions: list[str]  # its own, in place of phrases; none of Visual Genome

    @property
    def area(self) -> int:
        return self.width * self.height


# ---- annotations


def parse_entries(path: str, parse: Callable) -> Iterator[tuple]:
    """Yield (id of an image, parse(entry)) of a JSON list. Raises InputError on another form."""
    entries = read_json(need(path, GET_VISUAL_GENOME))
    if not isinstance(entries, list):
        raise InputError(f"{path} is not a list of images; give the file as Visual Genome ships it")
    for k, entry in enumerate(entries, 1):
        with refusing(f"{path}: entry {k} is not as Visual Genome ships it", GET_VISUAL_GENOME):
            key = "image_id" if "image_id" in entry else "id"
            number = int(entry[key])
            value = parse(entry)
        yield number, value


def parse_image(entry: dict) -> tuple:
    """Parse (width, height, name of the photo, id in COCO or None)."""
    name = os.path.basename(str(entry.get("url")))
    return int(entry["width"]), int(entry["height"]), name, entry.get("coco_id")


def parse_regions(entry: dict) -> list[Region]:
    """Parse the regions of an image."""
    regions = []
    for region in entry["regions"]:
        box = tuple(round(region[side]) for side in ("x", "y", "width", "height"))
        key = "region_id" if "region_id" in region else "id"
        phrase = (region["phrase"] or "").strip()
        regions.append(Region(box, region[key], phrase))
    return regions


def list_photo_files(folder: str) -> dict[str, str]:
    """List the files of Visual Genome's folders: {name: path below `folder`}."""
    files = {}
    for inner in reversed(PHOTO_FOLDERS):  # the first folder counts
        path = os.path.join(folder, inner)
        if os.path.isdir(path):
            for name in os.listdir(path):
                files[name] = os.path.join(inner, name)
    return files


def read_visual_genome(folder: str, counts: Counter) -> Iterator[Photo]:
    """Yield the images that are not in COCO, with their regions.

    Raises InputError if there is none.
    """
    path = os.path.join(folder, "image_data.json")
    files = list_photo_files(folder)
    photos = {}
    for number, (width, height, url, coco) in parse_entries(path, parse_image):
        counts["images_listed"] += 1
        counts["images_in_coco"] += coco is not None
        if coco is not None:
            continue
        # the photo has the name that url gives, or its id
        names = (url, f"{number}.jpg", f"{number}.png")
        found = [files[name] for name in names if name in files]
        file = None
        if found:
            file = found[0]
        photos[number] = Photo(number, width, height, file, regions=[], captions=[])
    if not photos:
        raise InputError(
            f"{path}: none of its {counts['images_listed']} images has no coco_id, so none is "
            "left; give the whole file of Visual Genome"
        )

    path = os.path.join(folder, "region_descriptions.json")
    for number, regions in parse_entries(path, parse_regions):
        if number in photos:
            yield photos.pop(number)._replace(regions=regions)
    counts["images_without_regions"] += len(photos)


def read_entity_photos(root: str, splits: list[str], counts: Counter) -> Iterator[Photo]:
    """Yield the photos of splits of Flickr30k Entities.

    They have a region for each phrase of each thing. A photo's number is its id on Flickr, or its
    position where an id is no number.
    """
    ids = []
    for split in splits:
        ids += read_photo_ids(root, split)
    counts["images_listed"] = len(ids)
    numbered = all(photo.isdecimal() for photo in ids)
    if numbered:
        numbered = len({int(photo) for photo in ids}) == len(ids)

    regions_read = 0
    for k, (photo, path) in enumerate(zip(ids, photo_paths(root, ids))):
        annotations = os.path.join(root, "Annotations", f"{photo}.xml")
        size, chains = read_annotations(annotations, [])
        sentences = read_lines(os.path.join(root, "Sentences", f"{photo}.txt"))

        regions = []
        for chain, phrases in list_things(sentences, chains).items():
            x1, y1, x2, y2 = chains[chain]  # both corners are inside
            box = (x1, y1, x2 - x1 + 1, y2 - y1 + 1)
            for phrase in phrases:
                regions_read += 1
                regions.append(Region(box, regions_read, phrase))
        number = k
        if numbered:
            number = int(photo)
        yield Photo(number, *size, os.path.relpath(path, root), regions, captions=[])


def list_things(sentences: list[str], chains: dict) -> dict[str, list[str]]:
    """List the phrases of each chain that has a box, each once, in the order of their mention.

    chains: of `phrases.entities.read_annotations`.
    """
    things = {}
    for line in sentences:
        for chain, kinds, text in PHRASE.findall(line):
            if isinstance(find_truth(chain, kinds, chains), str):
                continue
            phrase = " ".join(text.lower().split())  # a capital only begins the sentence
            phrases = things.setdefault(chain, [])
            if phrase not in phrases:
                phrases.append(phrase)
    return things


def read_photos(split: Split, folder: str, seed: int, counts: Counter) -> Iterator[Photo]:
    """Yield the photos of a split with their captions and boxes drawn at random."""
    photos = split.images
    counts["images_listed"] = len(photos)
    for i in tqdm(range(len(photos)), desc="photos", disable=None):
        size = photos.open(i).size
        rng = np.random.default_rng([seed, i])
        regions = []
        for k, box in enumerate(draw_boxes(*size, rng)):
            regions.append(Region(tuple(box), BOXES_PER_PHOTO * i + k, phrase=""))
        captions = [split.captions[m] for m in np.flatnonzero(split.caption_image == i)]
        file = os.path.relpath(photos.paths[i], folder)
        yield Photo(i, *size, file, regions, captions)


def draw_boxes(width: int, height: int, rng: np.random.Generator) -> list[list[int]]:
    """Draw BOXES_PER_PHOTO boxes x, y, width, height in a photo.

    Shares of the photo are uniform. A side is at most twice the other in units of the photo's.
    """
    share = rng.uniform(SMALLEST_BOX_SHARE, LARGEST_BOX_SHARE, BOXES_PER_PHOTO)
    aspect = 2 ** rng.uniform(-1, 1, BOXES_PER_PHOTO)
    sides = np.sqrt(np.stack([share * aspect, share / aspect], 1))
    sides = np.minimum(sides, 1)  # (BOXES_PER_PHOTO, 2), of the photo's
    corners = rng.random((BOXES_PER_PHOTO, 2)) * (1 - sides)
    boxes = np.concatenate([corners, sides], 1) * np.tile((width, height), 2)
    return np.rint(boxes).astype(int).tolist()


# ---- choice


def clip_box(box: tuple, width: int, height: int) -> tuple | None:
    """Clip a box (x, y, width, height) to an image of this size; None outside."""
    x, y, w, h = box
    left = max(x, 0)
    top = max(y, 0)
    right = min(x + w, width)
    bottom = min(y + h, height)
    if right <= left or bottom <= top:
        return None
    return left, top, right - left, bottom - top


def keep_usable(photo: Photo, counts: Counter) -> list[Region]:
    """Select usable regions, clipped to the image, the largest first; count the others."""
    inside = []
    for region in photo.regions:
        box = clip_box(region.box, photo.width, photo.height)
        if box:
            inside.append(region._replace(box=box))
    usable = [region for region in inside if region.phrase or photo.captions]

    counts["regions_read"] += len(photo.regions)
    counts["regions_without_area"] += len(photo.regions) - len(inside)
    counts["regions_kept"] += len(usable)
    counts["regions_without_phrase"] += len(inside) - len(usable)
    if usable:
        counts["images_kept"] += 1
    else:
        counts["images_without_regions"] += 1
    return sorted(usable, key=attrgetter("area"), reverse=True)  # equal areas in their order


def measure_iou(a: tuple, others: list[tuple]) -> list[float]:
    """Compute the IoU of a box (x, y, width, height) with n others: n values."""
    return box_iou(list_corners([a]), list_corners(others))[0].tolist()


def list_corners(boxes: list[tuple]) -> np.ndarray:
    """Return x1, y1, x2, y2 of boxes (x, y, width, height), both corners inside: (n, 4)."""
    corners = np.array(boxes).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2] - 1
    return corners


def box_around(a: tuple, b: tuple) -> tuple:
    """Return the smallest box around two."""
    left = min(a[0], b[0])
    top = min(a[1], b[1])
    right = max(a[0] + a[2], b[0] + b[2])
    bottom = max(a[1] + a[3], b[1] + b[3])
    return left, top, right - left, bottom - top


def choose_triplet(
    regions: list[Region], area: int, percent: float
) -> tuple[Region, Region] | None:
    """Choose regions A and B of an image (`ucmr` 4.6), None without two below the threshold."""
    small = [region for region in regions if 100 * region.area < percent * area]
    candidates = small[:CANDIDATE_REGIONS]
    if len(candidates) < 2:
        return None
    a = candidates[0]
    others = candidates[1:]
    overlaps = measure_iou(a.box, [region.box for region in others])
    return a, others[overlaps.index(min(overlaps))]


def choose_crops(regions: list[Region], area: int) -> list[Region] | None:
    """Choose the three largest crops of at most 20 percent of an image (`pmrl` 3.4).

    None where the ten largest do not have three whose IoU is at most MAX_CROP_IOU.
    """
    small = [region for region in regions if 100 * region.area <= MAX_CROP_PERCENT * area]
    chosen = []
    for region in small[:CANDIDATE_REGIONS]:
        overlaps = measure_iou(region.box, [other.box for other in chosen])
        if max(overlaps, default=0) <= MAX_CROP_IOU:
            chosen.append(region)
        if len(chosen) == CROPS_PER_IMAGE:
            return chosen
    return None


def draw_images(
    photos: dict[int, Photo], fit: dict, count: int, seed: int, key: str, folder: str
) -> list[int]:
    """Draw images by hashes of their ids.

    Args:
        fit: the images to draw from, by number.
        count: at most so many are drawn.
        key: what they are drawn for, part of the hash.
        folder: of the photos. Raises InputError if it lacks one of an image that was drawn.
    """

    def hash_number(number: int) -> str:
        return sha256(f"{seed}-{key}-{number}")

    numbers = sorted(fit, key=hash_number)[:count]
    missing = [n for n in numbers if photos[n].file is None]
    if missing:
        first = ", ".join(str(n) for n in missing[:5])
        raise InputError(
            f"{len(missing)} of the {len(numbers)} photos drawn are not in {folder}, those of the "
            f"images {first}; put the photos in {', '.join(PHOTO_FOLDERS[:3])} below it"
        )
    return numbers


# ---- manifest


def strip_full_stop(phrase: str) -> str:
    return phrase.rstrip(" .") or phrase


def describe_triplet(photo: Photo, a: Region, b: Region, k: int) -> dict:
    """Make the entry of regions A and B, and of C around them; k: number of the threshold."""
    phrase_a = a.phrase
    phrase_b = b.phrase
    if photo.captions:
        phrase_a = photo.captions[k % len(photo.captions)]
        phrase_b = photo.captions[(k + 1) % len(photo.captions)]
    caption_a = strip_full_stop(phrase_a)
    caption_b = strip_full_stop(phrase_b)
    (overlap,) = measure_iou(a.box, [b.box])
    return {
        "image": photo.number,
        "regions": [a.number, b.number],
        "a": list(a.box),
        "b": list(b.box),
        "c": list(box_around(a.box, b.box)),
        "iou": round(overlap, 4),
        "caption_a": caption_a,
        "caption_b": caption_b,
        "caption_c": f"{caption_a} and {caption_b}",
    }


def describe_whole(number: int, crops: list[Region]) -> dict:
    """Make the entry of an image and three crops of it."""
    captions = [strip_full_stop(region.phrase) for region in crops]
    return {
        "image": number,
        "regions": [region.number for region in crops],
        "crops": [list(region.box) for region in crops],
        "captions": captions,
        "description": " and ".join(captions),
    }


def make_manifest(
    folder: str,
    images: int = 2000,
    thresholds=(10, 20, 30, 40, 50),
    seed: int = 0,
    split: Split | None = None,
    entities: list[str] | None = None,
) -> dict:
    """Make the manifest of a folder of Visual Genome, or of photos and captions of a split.

    Images of triplets have one at every threshold, so that all thresholds compare the same images.

    Args:
        images: number of images with triplets, at most.
        thresholds: percent of an image that regions A and B are smaller than.
        split: photos with captions, in place of the folder.
        entities: splits of Flickr30k Entities, whose folder it is.

    Raises InputError if a file is not as Visual Genome ships it, or no image is left.
    """
    percents = sorted(set(thresholds))
    counts = Counter()
    if split:
        paths = alike_paths(split.images.paths)
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        photos = read_photos(split, folder, seed, counts)
    elif entities:
        photos = read_entity_photos(folder, entities, counts)
    else:
        photos = read_visual_genome(folder, counts)
    photo_of, pairs, crops = choose_regions(photos, percents, counts)

    picked = draw_images(photo_of, pairs, images, seed, "triplets", folder)
    triplets = {}
    for k, percent in enumerate(percents):
        triplets[f"{percent:g}"] = [describe_triplet(photo_of[n], *pairs[n][k], k) for n in picked]
        inside = sum(entry["c"] == entry["a"] for entry in triplets[f"{percent:g}"])
        counts[f"triplets_with_b_inside_a_{percent:g}"] = inside
    whole = draw_images(photo_of, crops, MAX_WHOLES, seed, "wholes", folder)

    listed = {}
    for n in sorted({*picked, *whole}):
        photo = photo_of[n]
        listed[str(n)] = {"file": photo.file, "width": photo.width, "height": photo.height}
    return {
        "format": MANIFEST_FORMAT,
        "folder": os.path.abspath(folder),
        "seed": seed,
        "thresholds": percents,
        "counts": dict(sorted(counts.items())),
        "images": listed,
        "triplets": triplets,
        "wholes": [describe_whole(n, crops[n]) for n in whole],
    }


def choose_regions(
    photos: Iterator[Photo], percents: list[float], counts: Counter
) -> tuple[dict, dict, dict]:
    """Choose triplets and crops of all photos, and count what they lack.

    Returns the photos without their regions, regions A and B at each threshold, and three crops,
    each by the number of an image. Raises InputError if no image has all triplets.
    """
    photo_of = {}
    pairs = {}
    crops = {}
    for photo in photos:
        regions = keep_usable(photo, counts)
        photo_of[photo.number] = photo._replace(regions=[])

        chosen = [choose_triplet(regions, photo.area, percent) for percent in percents]
        for percent, pair in zip(percents, chosen):
            if pair:
                counts[f"images_with_triplet_{percent:g}"] += 1
        if None not in chosen and len(photo.captions) != 1:
            pairs[photo.number] = chosen

        three = choose_crops(regions, photo.area)
        if three and not photo.captions:  # nothing describes the crops of a photo with captions
            crops[photo.number] = three

    if not pairs:
        given = " ".join(f"{percent:g}" for percent in percents)
        raise InputError(
            f"--thresholds {given}: no image has two regions smaller than {percents[0]:g} percent "
            "of it, two at every other threshold, and two captions; give larger thresholds, or "
            "other data"
        )
    counts["images_with_all_triplets"] += len(pairs)
    counts["images_with_three_crops"] += len(crops)
    return photo_of, pairs, crops


def load_manifest(path: str, folder: str | None = None) -> dict:
    """Read a manifest. folder: of the photos, if they moved. Raises InputError."""
    fix = "write one with python -m vg_experiments.prepare"
    manifest = read_json(need(path, fix), fix)
    with refusing(f"{path} is not a manifest of format {MANIFEST_FORMAT}", fix):
        if manifest["format"] != MANIFEST_FORMAT:
            raise InputError(f"{path} is not a manifest of format {MANIFEST_FORMAT}; {fix}")
        for photo in manifest["images"].values():
            below(manifest["folder"], photo["file"], path)
        check_manifest(manifest)
        if folder:
            manifest["folder"] = folder
    return manifest


def check_manifest(manifest: dict) -> None:
    """Raise an exception where a part of a manifest is not as `make_manifest` returns it."""
    images = manifest["images"]
    triplets = manifest["triplets"]
    for photo in images.values():
        if not is_size(photo["width"]) or not is_size(photo["height"]):
            raise ValueError("a photo has no width or height in pixels")
    if not triplets or not all(0 < float(percent) <= 100 for percent in triplets):
        raise ValueError("its triplets are not listed by percentages")

    used = []
    for entries in triplets.values():
        used.append([entry["image"] for entry in entries])
    if any(numbers != used[0] for numbers in used):
        raise ValueError("not every threshold has a triplet of each image, in one order")
    of_wholes = [entry["image"] for entry in manifest["wholes"]]
    for number in used[0] + of_wholes:
        if str(number) not in images:
            raise ValueError("a triplet is of an image that is not listed")
    check_crops(manifest)


def check_crops(manifest: dict) -> None:
    """Raise an exception where a manifest has boxes or captions of another kind."""
    boxes = []
    captions = []
    for entries in manifest["triplets"].values():
        for entry in entries:
            boxes += [entry["a"], entry["b"], entry["c"]]
            captions += [entry["caption_a"], entry["caption_b"], entry["caption_c"]]
    for entry in manifest["wholes"]:
        numbers = (len(entry["crops"]), len(entry["captions"]))
        if numbers != (CROPS_PER_IMAGE, CROPS_PER_IMAGE):
            raise ValueError(f"an image has not {CROPS_PER_IMAGE} crops and captions")
        boxes += entry["crops"]
        captions += [*entry["captions"], entry["description"]]

    if not all(isinstance(caption, str) for caption in captions):
        raise ValueError("a caption is not a text")
    for box in boxes:
        if not is_box(box):
            raise ValueError(f"{spell_value(box)} is not a box x, y, width, height in pixels")


def is_box(box) -> bool:
    if len(box) != 4 or 0 in box[2:]:
        return False
    return all(type(x) is int and 0 <= x < MAX_SIDE for x in box)


def is_size(value) -> bool:
    return type(value) is int and 0 < value < MAX_SIDE


def read_captioned_photos(opt) -> Split:
    """Read the split of --data_name. Raises InputError on features, and on several splits."""
    if len(opt.split) > 1:
        raise InputError(
            f"--split {' '.join(opt.split)} names several splits; of photos with captions, give one"
        )
    split = read_split(opt.data_path, opt.data_name, opt.split[0], dev_images=0)
    if not hasattr(split.images, "paths"):
        raise InputError(
            f"--data_name {opt.data_name} holds features, and crops are cut from photos; name a "
            "data set of photos"
        )
    return split


def write_manifest(opt) -> None:
    """Write the manifest and print its counts."""
    output(opt.output, overwrite=opt.overwrite)
    folder = opt.vg
    split = None
    entities = None
    if opt.data_name:
        root = os.path.join(opt.data_path, opt.data_name)
        if os.path.isdir(os.path.join(root, "Annotations")):
            folder = root
            entities = []
            for name in opt.split:
                if name == "dev":
                    name = "val"
                if name not in entities:
                    entities.append(name)
        else:
            split = read_captioned_photos(opt)

    manifest = make_manifest(folder, opt.images, opt.thresholds, opt.seed, split, entities)
    save_json(manifest, opt.output)
    for name, count in manifest["counts"].items():
        print(f"{count:>10,}  {name.replace('_', ' ')}")
    triplets = next(iter(manifest["triplets"].values()))
    print(
        f"{opt.output}: {len(triplets):,} triplets at each of {len(manifest['thresholds'])} "
        f"thresholds, {len(manifest['wholes']):,} images with three crops"
    )


def main(argv=None) -> None:
    p = Arguments("Choose crops and captions of Visual Genome and write them as a manifest.")
    add = p.add_argument
    add(
        "--vg",
        type=filename,
        default="data/demo_vg",
        help="folder with image_data.json, region_descriptions.json and "
        "the photos, which lie in images/, VG_100K/ or VG_100K_2/",
    )
    add(
        "--data_name",
        type=data_set,
        help="in place of --vg: a data set below --data_path, of Flickr30k Entities or of photos "
        "with captions",
    )
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--split",
        type=split_name,
        nargs="+",
        default=["test"],
        help="split of --data_name, or several of Entities",
    )
    add(
        "--output",
        type=filename,
        default="runs/vg/manifest.json",
        metavar="FILE.json",
        help="manifest to write",
    )
    add("--overwrite", action="store_true", help="replace an existing file")
    add("--images", type=positive, default=2000, help="number of images with triplets, at most")
    percentage = limited("a percentage above 0", above=0, most=100)
    add(
        "--thresholds",
        type=percentage,
        nargs="+",
        default=[10, 20, 30, 40, 50],
        metavar="PERCENT",
        help="regions A and B are smaller than this share of the image",
    )
    add("--seed", type=natural, default=0, help="random seed that draws the images")
    utils.run(p.prog, write_manifest, p.parse_args(argv))


if __name__ == "__main__":
    main()
