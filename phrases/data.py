"""Flickr30k Entities as a Split: its images are proposals, its captions phrases.

    python -m phrases.data --data_name f30k_entities      # prints what the folder holds, and its faults

A phrase is compared with the proposals of its own photo alone (jwae 5.2). entities.py reads the annotations;
proposals.py and regions.py write beside the split:

{split}_{name}.npz holds the arrays of `Proposals`. {split}_{name}.json says what made them, for which photos, and the
share of phrases they reach. Their features are {split}_{name}_{features}.npy, (R, F), with a .json that holds the
checksum of their boxes.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import cli
from cli import Arguments, InputError, check, data_set, filename
from data import Split, chunks, read_extractors, read_text_features
from files import need, output, read_arrays, read_json, sha256
from images import Features, NoImages
from phrases.entities import SPLITS, Entities, describe_entities, photo_paths, read_entities

AGAIN = "delete it, and write it again"
ARRAYS = {"boxes": "float32", "start": "int64", "score": "float32", "added": "bool"}
THRESHOLDS = (0.5, 0.7)               # of the IoU, at which the recall is recorded
DELETE = "give another --name, or delete the old files"
REGIONS = "edgeboxes200_ims"          # proposals and their features, {split}_{REGIONS}.npy
GEOMETRY = 5                          # numbers that say where a box lies
NEGATIVE_IOU = 0.3                    # below it a region does not fit; in between it is not compared (CITE's code)
NEGATIVES = 2                         # regions that do not fit, drawn for each that does (CITE's code)


# ---- boxes

def areas(boxes: np.ndarray) -> np.ndarray:
    """Count the pixels of boxes (..., 4) -> (...,) float64; both corners are inside."""
    boxes = np.asarray(boxes, np.float64)
    return np.prod(boxes[..., 2:] - boxes[..., :2] + 1, -1)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the IoU of boxes (n, 4) and (m, 4) -> (n, m) float64 in [0, 1]."""
    a, b = np.asarray(a, np.float64)[:, None], np.asarray(b, np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + 1
    shared = np.prod(np.maximum(sides, 0), -1)                                      # (n, m)
    return shared / (areas(a) + areas(b) - shared)


def box_geometry(boxes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Describe boxes by place and size in their photo: (R, 4) -> (R, 5) (CITE).

    x1 / W, y1 / H, x2 / W, y2 / H and the share of the area; sizes: width and height of photos (R, 2) or (2,).
    """
    x1, y1, x2, y2 = boxes.astype(np.float64).T + [[0], [0], [1], [1]]
    width, height = sizes.astype(np.float64).T
    return np.stack([x1 / width, y1 / height, x2 / width, y2 / height,
                     (x2 - x1) * (y2 - y1) / (width * height)], 1).astype(np.float32)


# ---- proposals and their features

@dataclass
class Proposals:
    """The R boxes of N photos."""
    boxes: np.ndarray                 # (R, 4) float32: x1, y1, x2, y2 in pixels from 0, both corners inside
    start: np.ndarray                 # (N + 1,) int64: photo n has rows start[n]:start[n + 1], at least one
    score: np.ndarray                 # (R,) float32 of the method, higher is better; 0 where there is none
    added: np.ndarray                 # (R,) bool: boxes of phrases, added to the training split
    facts: dict                       # {split}_{name}.json


def parse_name(text: str) -> str:
    """Parse a name of proposals or of their features, part of names of files."""
    check(re.fullmatch("[A-Za-z0-9-]+", text), f"'{text}' cannot be a name; give letters, digits and -")
    return text


def proposals_path(root: str, split: str, name: str) -> str:
    """Return the path of proposals without its ending."""
    return os.path.join(root, f"{split}_{name}")


def read_facts(path: str, ending: str, key: str, program: str) -> dict:
    """Read the JSON object beside a file of `program`, with a text under `key`."""
    for end in (ending, ".json"):
        need(path + end, f"it is written with python -m {program}")
    facts = read_json(f"{path}.json", AGAIN)
    check(isinstance(facts, dict) and isinstance(facts.get(key), str),
          f"{path}.json is not a JSON object that says \"{key}\"; {AGAIN} with python -m {program}")
    return facts


def is_written(path: str, facts: dict) -> bool:
    """Tell whether `path` is there. Raises InputError if its .json does not hold these facts."""
    if not os.path.exists(output(path)):
        return False
    beside = f"{os.path.splitext(path)[0]}.json"
    before = read_json(beside, DELETE) if os.path.exists(beside) else {}
    other = next((key for key in facts if not isinstance(before, dict) or before.get(key) != facts[key]), None)
    check(other is None, f"{path} is there, and {beside} does not say that its {other} is {facts.get(other)}; {DELETE}")
    print(f"{path}: done already")
    return True


def read_proposals(root: str, split: str, name: str, entities: Entities) -> Proposals:
    """Read the proposals of a split. Raises InputError where they do not fit it."""
    path = proposals_path(root, split, name)
    facts = read_facts(path, ".npz", "method", f"phrases.proposals --data_name {os.path.basename(root)} --name {name}")
    arrays = read_arrays(f"{path}.npz", AGAIN)
    broken = f"{path}.npz is broken: its arrays are not those that its .json was written for; {AGAIN}"
    check({key: array.dtype.name for key, array in arrays.items()} == ARRAYS, broken)
    check(facts.get("ids_sha256") == sha256("\n".join(entities.ids))
          and facts.get("truth_sha256") == sha256(entities.truth),
          f"{path}.npz is of other photos, or other annotations, than {split}.txt names now; {AGAIN}")
    p, rows, photos = Proposals(**arrays, facts=facts), len(arrays["boxes"]), len(entities.ids)
    check([x.shape for x in (p.boxes, p.score, p.added, p.start)] == [(rows, 4), (rows,), (rows,), (photos + 1,)]
          and p.start[0] == 0 and p.start[-1] == rows and (np.diff(p.start) > 0).all()
          and facts.get("boxes_sha256") == sha256(p.boxes), broken)
    return p


def recall(proposals: Proposals, entities: Entities, threshold: float) -> float:
    """Compute the percent of phrases that a proposal overlaps by `threshold` or more.

    It bounds every ranking; boxes added from the phrases do not count.
    """
    first, hits = np.searchsorted(entities.phrase_photo, np.arange(len(entities.ids) + 1)), 0       # (N + 1,)
    for n in range(len(entities.ids)):
        rows = slice(proposals.start[n], proposals.start[n + 1])
        boxes = proposals.boxes[rows][~proposals.added[rows]]
        hits += int((iou(entities.truth[first[n]:first[n + 1]], boxes).max(1, initial=0) >= threshold).sum())
    return 100 * hits / len(entities.phrases)


def read_region_features(root: str, split: str, name: str, features: str, proposals: Proposals, sizes: np.ndarray):
    """Read features of proposals, RegionFeatures, and the line that says what made them."""
    path = proposals_path(root, split, f"{name}_{features}")
    facts = read_facts(path, ".npy", "extractor", f"phrases.regions --proposals {name} --name {features}")
    check(facts.get("boxes_sha256") == proposals.facts["boxes_sha256"],
          f"{path}.npy is of other boxes than those that {proposals_path(root, split, name)}.npz holds now; {AGAIN}")
    return RegionFeatures(f"{path}.npy", proposals, sizes), facts["extractor"]


class RegionFeatures(Features):
    """Features of proposals and their geometry, (R, F + 5). sizes (N, 2): of photos.

    Raises InputError if the file has not one row of features for each proposal.
    """

    def __init__(self, path: str, proposals: Proposals, sizes: np.ndarray):
        super().__init__(path)
        self.proposals, self.sizes, boxes = proposals, sizes, len(proposals.boxes)
        check(self.array.ndim == 2 and len(self) == boxes,
              f"{path} holds {self.array.dtype} of shape {self.array.shape}, and {boxes:,} boxes have features of "
              f"shape ({boxes}, F), in the order of the boxes; write it again so")

    @property
    def dim(self) -> int:
        return self.array.shape[-1] + GEOMETRY

    def gather(self, index) -> Tensor:
        features, index = super().gather(index), np.asarray(index)
        photo = np.searchsorted(self.proposals.start, index, side="right") - 1
        geometry = box_geometry(self.proposals.boxes[index], self.sizes[photo])
        return torch.cat([features, torch.from_numpy(geometry)], 1)                 # (B, F), (B, 5) -> (B, F + 5)


# ---- a split

@dataclass
class PhraseSplit(Split):
    """A Split whose N images have R proposals, and whose captions are M phrases.

    An item of `images` is a proposal, and `caption_image` the one that overlaps a phrase's box most.
    """
    entities: Entities = None
    proposals: Proposals = None

    ids = property(lambda self: self.entities.ids)                      # N photos
    boxes = property(lambda self: self.proposals.boxes)                 # (R, 4)
    start = property(lambda self: self.proposals.start)                 # (N + 1,)
    added = property(lambda self: self.proposals.added)                 # (R,) bool
    phrase_photo = property(lambda self: self.entities.phrase_photo)    # (M,) rising
    truth = property(lambda self: self.entities.truth)                  # (M, 4) box around all boxes of the chain
    types = property(lambda self: self.entities.types)                  # M, such as ("people",)

    def fingerprint(self) -> dict:
        return {**super().fingerprint(), "boxes_sha256": self.proposals.facts["boxes_sha256"]}

    def columns(self, n: int) -> np.ndarray:
        """Select the phrases of photo n."""
        return np.arange(*np.searchsorted(self.phrase_photo, (n, n + 1)))

    def overlap(self, n: int) -> np.ndarray:
        """Compute the IoU of photo n's proposals and its phrases' boxes, (P, m)."""
        return iou(self.boxes[self.start[n]:self.start[n + 1]], self.truth[self.columns(n)])


def read_phrases(root: str, split: str, regions: str = REGIONS, text_features: str | None = None,
                 text_only: bool = False) -> PhraseSplit:
    """Read a split with the proposals and features that `regions` names.

    With text_only the phrases alone are read. Raises InputError.
    """
    check(os.path.isdir(os.path.join(root, "Annotations")),
          f"{root} is not a data set of phrases in photos; give --data_name a folder with Annotations/, Sentences/ and "
          "train.txt, val.txt and test.txt, as Flickr30k Entities has them")
    entities = read_entities(root, split)
    result = PhraseSplit(split, NoImages(len(entities.ids)), entities.phrases, entities.phrase_photo,
                         os.path.join(root, "Sentences"), extractors=read_extractors(root) or None, entities=entities)
    if text_only:
        return result
    name, _, features = regions.rpartition("_")
    check(name, f"--regions {regions} names proposals alone; name their features behind them, such as {regions}_ims")
    result.proposals = read_proposals(root, split, name, entities)
    result.images, made_by = read_region_features(root, split, name, features, result.proposals, entities.sizes)
    result.extractors = {**(result.extractors or {}), "ims": made_by}
    result.caption_image = np.concatenate([result.start[n] + result.overlap(n).argmax(0)
                                           for n in range(len(entities.ids))])
    if text_features:
        result.text = read_text_features(root, result, text_features, "phrases.captions")
    if kinds := ", ".join(f"{count:,} {why}" for why, count in entities.dropped.items() if count):
        result.notes.append(f"{sum(entities.dropped.values()):,} phrases of {split} have no box and are left out "
                            f"({kinds})")
    if entities.faults:
        result.notes.append(f"{len(entities.faults):,} faults of the annotations of {split} are passed over (python -m "
                            f"phrases.data names them), the first: {entities.faults[0]}")
    return result


# ---- batches

class Labels(NamedTuple):
    """Rule of the proposals that fit a phrase, and of how many are drawn."""
    positive: float = 0.7             # IoU from which a proposal fits (jwae 5.2)
    every: bool = False               # draw every proposal that fits, not one a phrase (CITE)


class PhraseBatch(NamedTuple):
    """R regions and M phrases of several photos, and which of them fit."""
    images: Tensor                    # (R, F) features
    tokens: Tensor                    # (M, T) int64 word numbers, zero-padded | (M, F) features
    lengths: Tensor                   # (M,) int64, on the CPU
    labels: Tensor                    # (R, M) int8: a region fits a phrase, 1; does not, -1; is not compared, 0
    rows: np.ndarray                  # (R,) regions in the split
    columns: np.ndarray               # (M,) phrases in the split
    unpaired: None = None             # data.Batch has jWAE's

    def to(self, device) -> "PhraseBatch":
        images, tokens, labels = (x.to(device) for x in (self.images, self.tokens, self.labels))
        return self._replace(images=images, tokens=tokens, labels=labels)


def batches(split: PhraseSplit, tokens, photos, size: int, rule: Labels, seed: tuple = (0,), skip: int = 0):
    """Yield batches of `size` photos in the given order, without the first `skip`."""
    for chunk in chunks(np.ascontiguousarray(photos), size)[skip:]:
        rows, columns, blocks = zip(*(sample_proposals(split, rule, seed, int(n)) for n in chunk))
        rows, columns = np.concatenate(rows), np.concatenate(columns)
        labels = torch.block_diag(*map(torch.from_numpy, blocks))                   # of (r, m) -> (R, M)
        yield PhraseBatch(split.images.gather(rows), *tokens.batch(columns), labels, rows, columns)


def sample_proposals(split: PhraseSplit, rule: Labels, seed: tuple, n: int) -> tuple[np.ndarray, ...]:
    """Draw proposals (r,) of photo n for its m phrases, with labels (r, m) int8.

    Each phrase that a proposal fits gets one that fits, or every one, and NEGATIVES times as many that do not. All
    pairs are labelled, so a phrase is compared with what the others drew, too. The draw depends on (seed, n) alone.
    """
    rng = np.random.default_rng([*seed, n])
    overlap = split.overlap(n)                                                      # (P, m)
    fits = overlap >= rule.positive
    usable = fits.any(0)
    overlap, fits, columns = overlap[:, usable], fits[:, usable], split.columns(n)[usable]
    lot, apart = rng.random(overlap.shape), overlap < NEGATIVE_IOU
    mask = np.zeros(len(overlap), bool)
    mask[fits.any(1) if rule.every else np.where(fits, lot, -1).argmax(0)] = True
    order = np.where(apart, lot, -1).argsort(0)[::-1]                               # (P, m)
    most = NEGATIVES * (fits.sum(0) if rule.every else 1)                           # (m,) or 1
    mask[order[np.take_along_axis(apart, order, 0) & (np.arange(len(order))[:, None] < most)]] = True
    rows = np.flatnonzero(mask)
    return split.start[n] + rows, columns, fits[rows].astype(np.int8) - apart[rows]


def find_learnable(split: PhraseSplit, positive: float) -> np.ndarray:
    """List the phrases that a proposal fits, (m,)."""
    best = np.concatenate([split.overlap(n).max(0) for n in range(len(split.ids))])
    return np.flatnonzero(best >= positive)


# ---- the check of a folder

def report_data(opt) -> int:
    """Print what a data set holds, and its faults. Returns 1 where there are any."""
    root, faults = os.path.join(opt.data_path, opt.data_name), {}        # a dict holds each fault once
    for name in SPLITS:
        try:
            entities = read_entities(root, name)
            print(describe_entities(name, entities))
            faults |= dict.fromkeys(entities.faults)
            if os.path.isdir(os.path.join(root, "images")):
                photo_paths(root, entities.ids)
            path = proposals_path(root, name, REGIONS.rpartition("_")[0])
            if opt.regions == REGIONS and not os.path.isfile(f"{path}.npz"):
                print(f"{'':8}no proposals yet: python -m phrases.proposals writes them")
                continue
            split = read_phrases(root, name, opt.regions)
            print(f"{'':8}{len(split.boxes):,} proposals, {split.images.describe()}")
            faults |= dict.fromkeys(split.faults(deep=True))
        except InputError as error:
            faults[str(error)] = None
    print("\n".join([*(f"fault: {fault}" for fault in faults), f"{root}: {len(faults)} faults"]))
    return int(bool(faults))


def main(argv=None) -> None:
    p = Arguments("Check a data set of phrases in photos.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, required=True, help="folder of the data set below --data_path")
    p.add_argument("--regions", type=filename, default=REGIONS, metavar="NAME",
                   help="proposals and features to check, {split}_NAME.npy")
    sys.exit(cli.run("phrases.data", report_data, p.parse_args(argv)))


if __name__ == "__main__":
    main()
