"""Flickr30k Entities as a Split: its images are proposals, its captions phrases.

    python -m phrases.data --data_name f30k_entities      # prints what the folder holds, and its faults

A phrase is compared with the proposals of its own photo alone (jwae 5.2). entities.py reads the annotations;
proposals.py and regions.py write beside the split:

{split}_{name}.npz holds the arrays of `Proposals`, and facts on how they were made as a JSON text. Their features are
{split}_{name}_{features}.npy, (R, F), with a .json that holds their extractor and the checksum of their boxes.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import json
import os
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import cli
from cli import Arguments, InputError, check, data_set, filename, spell_value
from data import Split, chunks, read_extractors, read_text_features
from files import need, read_arrays, read_json, refusing, sha256
from images import Features, NoImages
from phrases.entities import SPLITS, Entities, describe_entities, list_counts, photo_paths, read_entities

AGAIN = "delete it, and write it again"
DELETE = "give another --name, or delete the old files"
GIVEN = "given in "                   # the extractor of features of one's own begins so
REGIONS = "edgeboxes200_ims"          # proposals and their features, {split}_{REGIONS}.npy
POSITIVE_IOU = 0.7                    # from which a region fits a phrase (jwae 5.2)
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


class Proposals(NamedTuple):
    """The R boxes of N photos."""
    boxes: np.ndarray                 # (R, 4) float32: x1, y1, x2, y2 in pixels from 0, both corners inside
    start: np.ndarray                 # (N + 1,) int64: photo n has rows start[n]:start[n + 1], at least one
    added: np.ndarray                 # (R,) bool: boxes of phrases, added to the training split
    facts: dict                       # what made them, how many a photo, and the share of phrases that they reach


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

    dim = property(lambda self: self.array.shape[-1] + 5)

    def gather(self, index) -> Tensor:
        features, index = super().gather(index), np.asarray(index)
        photo = np.searchsorted(self.proposals.start, index, side="right") - 1
        geometry = box_geometry(self.proposals.boxes[index], self.sizes[photo])
        return torch.cat([features, torch.from_numpy(geometry)], 1)                 # (B, F), (B, 5) -> (B, F + 5)


# ---- a split

@dataclass
class PhraseSplit(Split):
    """A Split whose N photos have R proposals, its `images`, and whose M captions are phrases."""
    kind = "phrases"
    entities: Entities = None
    proposals: Proposals = None

    ids = property(lambda self: self.entities.ids)                      # N photos
    boxes = property(lambda self: self.proposals.boxes)                 # (R, 4)
    start = property(lambda self: self.proposals.start)                 # (N + 1,)
    added = property(lambda self: self.proposals.added)                 # (R,) bool
    phrase_photo = property(lambda self: self.entities.phrase_photo)    # (M,) rising
    truth = property(lambda self: self.entities.truth)                  # (M, 4) box around all boxes of the chain
    types = property(lambda self: self.entities.types)                  # M, such as ("people",)

    def doubts(self, train: Split | None = None, deep: bool = False):
        """As `Split.doubts`, of the regions alone: phrases of two splits are often the same."""
        yield from self.images.doubts(deep)

    def columns(self, n: int) -> np.ndarray:
        """Select the phrases of photo n."""
        return np.arange(*np.searchsorted(self.phrase_photo, (n, n + 1)))

    def overlap(self, n: int) -> np.ndarray:
        """Compute the IoU of photo n's proposals and its phrases' boxes, (P, m)."""
        return iou(self.boxes[self.start[n]:self.start[n + 1]], self.truth[self.columns(n)])

    def best_overlaps(self, added: bool = True) -> np.ndarray:
        """Compute the largest IoU of each phrase with a proposal, (M,). added: boxes of phrases count, too."""
        counted = np.split(~self.added | added, self.start[1:-1])           # N of (P,) bool
        return np.concatenate([self.overlap(n)[rows].max(0, initial=0) for n, rows in enumerate(counted)])


def parse_name(text: str) -> str:
    """Parse a name of proposals or of their features, part of names of files."""
    check(re.fullmatch("[A-Za-z0-9-]+", text), f"'{text}' cannot be a name; give letters, digits and -")
    return text


def parse_regions(text: str) -> str:
    """Parse a name of proposals and their features, PROPOSALS_NAME."""
    if not re.fullmatch("[A-Za-z0-9_-]+", text):
        raise InputError(f"{spell_value(text)} names no proposals and features; give NAME of {{split}}_NAME.npy, such "
                         f"as {REGIONS}")
    return text


def digest_annotations(entities: Entities) -> str:
    """Hash the ids of a split's photos and the boxes of its phrases."""
    return sha256("\n".join(entities.ids), entities.truth)


def read_proposals(root: str, split: PhraseSplit, name: str) -> Proposals:
    """Read the proposals of a split. Raises InputError where they do not fit it."""
    path = os.path.join(root, f"{split.name}_{name}.npz")
    need(path, f"it is written with python -m phrases.proposals --data_name {os.path.basename(root)} --name {name}")
    with refusing(f"{path} holds no proposals", AGAIN):
        arrays = read_arrays(path, AGAIN)
        facts = json.loads(str(arrays.pop("facts")))
        check(facts["annotations_sha256"] == digest_annotations(split.entities),
              f"{path} is of other photos, or other annotations, than {split.name}.txt names now; {AGAIN}")
        proposals = Proposals(**arrays, facts=facts)
        check_proposals(proposals, len(split.ids))
        return proposals


def check_proposals(proposals: Proposals, photos: int) -> None:
    """Raise ValueError where arrays or facts are not those that phrases.proposals writes for so many photos."""
    boxes, start, added, facts = proposals
    rows = len(boxes) if boxes.ndim else 0
    if boxes.dtype != np.float32 or boxes.shape != (rows, 4) or not np.isfinite(boxes).all():
        raise ValueError(f"boxes are {boxes.dtype} of shape {boxes.shape}, or not finite")
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise ValueError("a box ends before it begins")
    if start.dtype.kind != "i" or start.shape != (photos + 1,) or start[0] != 0 or start[-1] != rows:
        raise ValueError(f"start is {start.dtype} of shape {start.shape}, for {photos:,} photos and {rows:,} boxes")
    if (np.diff(start) < 1).any():
        raise ValueError("a photo has no box")
    if added.dtype != bool or added.shape != (rows,):
        raise ValueError(f"added is {added.dtype} of shape {added.shape}")
    recall = facts["recall"]
    if not isinstance(facts["method"], str) or type(facts["count"]) is not int or not isinstance(recall, dict):
        raise ValueError("its facts are of another kind")
    if not all(type(percent) is float and 0 <= percent <= 100 for percent in recall.values()):
        raise ValueError("a recall is no percentage")


def read_region_features(root: str, split: PhraseSplit, regions: str) -> tuple[RegionFeatures, str]:
    """Read features of the split's proposals, and the line that says what made them."""
    path, (name, _, features) = os.path.join(root, f"{split.name}_{regions}"), regions.rpartition("_")
    for ending in (".npy", ".json"):
        need(path + ending, f"it is written with python -m phrases.regions --proposals {name} --name {features}")
    with refusing(f"{path}.json does not say what made the features", AGAIN):
        facts = read_json(f"{path}.json", AGAIN)
        check(facts["boxes_sha256"] == sha256(split.boxes),
              f"{path}.npy is of other boxes than those that {split.name}_{name}.npz holds now; {AGAIN}")
        return RegionFeatures(f"{path}.npy", split.proposals, split.entities.sizes), str(facts["extractor"])


def read_regions(root: str, split: PhraseSplit, regions: str) -> None:
    """Give a split the proposals and the features that `regions` names."""
    name = regions.rpartition("_")[0]
    check(name, f"--regions {regions} names proposals alone; name their features behind them, such as {regions}_ims")
    split.proposals = read_proposals(root, split, name)
    split.images, extractor = read_region_features(root, split, regions)
    if extractor.startswith(GIVEN):                         # a file of each split, by whatever made them
        split.extractors.pop("ims", None)
    else:
        split.extractors["ims"] = extractor


def read_phrases(root: str, split: str, regions: str | None = None, text_features: str | None = None) -> PhraseSplit:
    """Read the phrases of a split, with the proposals and features that `regions` names. Raises InputError."""
    check(os.path.isdir(os.path.join(root, "Annotations")),
          f"{root} is not a data set of phrases in photos; give --data_name a folder with Annotations/, Sentences/ and "
          "train.txt, val.txt and test.txt, as Flickr30k Entities has them")
    entities = read_entities(root, split)
    result = PhraseSplit(split, NoImages(len(entities.ids)), entities.phrases, entities.phrase_photo,
                         os.path.join(root, "Sentences"), extractors=read_extractors(root), entities=entities)
    if regions:
        read_regions(root, result, regions)
    if text_features:
        result.text = read_text_features(root, result, text_features, "phrases.captions")
    result.notes.append(f"phrases of {split} without a box, left out: {list_counts(entities.dropped)}")
    if entities.faults:
        result.notes.append(f"{len(entities.faults):,} faults of the annotations of {split} are passed over (python -m "
                            f"phrases.data names them), the first: {entities.faults[0]}")
    return result


# ---- batches

class PhraseBatch(NamedTuple):
    """R regions and M phrases of several photos, and which of them fit."""
    images: Tensor                    # (R, F) features
    tokens: Tensor                    # (M, T) int64 word numbers, zero-padded | (M, F) features
    lengths: Tensor                   # (M,) int64, on the CPU
    labels: Tensor                    # (R, M) int8: a region fits a phrase, 1; does not, -1; is not compared, 0
    unpaired: None = None             # data.Batch has jWAE's

    def to(self, device) -> "PhraseBatch":
        return self._replace(**{key: getattr(self, key).to(device) for key in ("images", "tokens", "labels")})


def batches(split: PhraseSplit, tokens, photos, size: int, seed: tuple, skip: int = 0, **rule):
    """Yield batches of `size` photos in the given order, without the first `skip`. rule: of `sample_proposals`."""
    for chunk in chunks(np.ascontiguousarray(photos), size)[skip:]:
        rows, columns, blocks = zip(*(sample_proposals(split, int(n), seed, **rule) for n in chunk))
        labels = torch.block_diag(*map(torch.from_numpy, blocks))                   # of (r, m) -> (R, M)
        yield PhraseBatch(split.images.gather(np.concatenate(rows)), *tokens.batch(np.concatenate(columns)), labels)


def sample_proposals(split: PhraseSplit, n: int, seed: tuple, positive: float = POSITIVE_IOU,
                     every: bool = False) -> tuple[np.ndarray, ...]:
    """Draw proposals (r,) of photo n for its phrases (m,), with labels (r, m) int8.

    Each phrase that a proposal fits, by an IoU of `positive`, gets one that fits, or every one, and NEGATIVES times as
    many that do not. All pairs are labelled, so a phrase is compared with what the others drew, too. The draw depends
    on (seed, n) alone.
    """
    rng = np.random.default_rng([*seed, n])
    overlap = split.overlap(n)                                                      # (P, m)
    usable = (overlap >= positive).any(0)
    overlap, columns = overlap[:, usable], split.columns(n)[usable]
    fits, apart, lot = overlap >= positive, overlap < NEGATIVE_IOU, rng.random(overlap.shape)
    mask = np.zeros(len(overlap), bool)
    mask[fits.any(1) if every else np.where(fits, lot, -1).argmax(0)] = True
    order = np.where(apart, lot, -1).argsort(0)[::-1]                               # (P, m)
    most = NEGATIVES * (fits.sum(0) if every else 1)                                # (m,) or 1
    mask[order[np.take_along_axis(apart, order, 0) & (np.arange(len(order))[:, None] < most)]] = True
    rows = np.flatnonzero(mask)
    return split.start[n] + rows, columns, fits[rows].astype(np.int8) - apart[rows]


# ---- the check of a folder

def report_data(opt) -> int:
    """Print what a data set holds, and its faults. Returns 1 where there are any."""
    root, faults = os.path.join(opt.data_path, opt.data_name), {}        # a dict holds each fault once
    for name in SPLITS:
        try:
            split = read_phrases(root, name)
            print(describe_entities(name, split.entities))
            faults |= dict.fromkeys(split.entities.faults)
            if os.path.isdir(os.path.join(root, "images")):
                photo_paths(root, split.ids)
            proposals = os.path.join(root, f"{name}_{REGIONS.rpartition('_')[0]}.npz")
            if opt.regions == REGIONS and not os.path.isfile(proposals):
                print(f"{'':8}no proposals yet: python -m phrases.proposals writes them")
                continue
            read_regions(root, split, opt.regions)
            print(f"{'':8}{len(split.boxes):,} proposals, {split.images.describe()}")
            faults |= dict.fromkeys(split.faults(deep=True))
            faults |= dict.fromkeys(sentence for is_fault, sentence in split.doubts(deep=True) if is_fault)
        except InputError as error:
            faults[str(error)] = None
    print("\n".join([*(f"fault: {fault}" for fault in faults), f"{root}: {len(faults)} faults"]))
    return int(bool(faults))


def main(argv=None) -> None:
    p = Arguments("Check a data set of phrases in photos.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, required=True, help="folder of the data set below --data_path")
    p.add_argument("--regions", type=parse_regions, default=REGIONS, metavar="NAME",
                   help="proposals and features to check, {split}_NAME.npy")
    sys.exit(cli.run("phrases.data", report_data, p.parse_args(argv)))


if __name__ == "__main__":
    main()
