"""Flickr30k Entities as a Split: its images are proposals, its captions phrases.

    python -m phrases.data --data_name f30k_entities   # prints what the folder holds, and faults

A phrase is compared with the proposals of its own photo alone (jwae 5.2). entities.py reads the
annotations; proposals.py and regions.py write these files of a split:

{split}_{name}.npz holds the arrays of `Proposals`, and facts on how they were made as a JSON text.
Their features are {split}_{name}_{features}.npy, (R, F), with a .json that holds their extractor
and the checksum of their boxes.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import json
import os
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import utils
from data import Split, chunks, read_extractors, read_text_features
from images import Features, NoImages
from metrics import box_iou
from phrases.entities import (
    ENTITIES_SPLITS,
    Entities,
    describe_entities,
    list_counts,
    photo_paths,
    read_entities,
)
from utils import (
    Arguments,
    InputError,
    data_set,
    filename,
    need,
    read_arrays,
    read_json,
    refusing,
    sha256,
    spell_value,
)

WRITE_AGAIN = "delete it, and write it again"
RENAME_OR_DELETE = "give another --name, or delete the old files"
GIVEN_FEATURES = "given in "  # the extractor of features of one's own begins so
DEFAULT_REGIONS = "edgeboxes200_ims"  # proposals and their features, {split}_NAME.npy
POSITIVE_IOU = 0.7  # from which a region fits a phrase (jwae 5.2)
# Below it a region does not fit; in between it is not compared (CITE's code).
NEGATIVE_IOU = 0.3
NEGATIVES_PER_POSITIVE = 2  # regions that do not fit, drawn for each that does (CITE's code)
GEOMETRY_DIM = 5  # numbers that describe a box in its photo


# ---- boxes


def box_geometry(boxes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Describe boxes by position and size in their photo: (R, 4) -> (R, 5) (CITE).

    x1 / W, y1 / H, x2 / W, y2 / H and the share of the area; sizes: width and height of photos (R,
    2) or (2,).
    """
    x1, y1, x2, y2 = boxes.astype(np.float64).T + [[0], [0], [1], [1]]
    width, height = sizes.astype(np.float64).T
    share = (x2 - x1) * (y2 - y1) / (width * height)
    geometry = np.stack([x1 / width, y1 / height, x2 / width, y2 / height, share], 1)
    return geometry.astype(np.float32)


class Proposals(NamedTuple):
    """The R boxes of N photos."""

    boxes: np.ndarray  # (R, 4) float32: x1, y1, x2, y2 in pixels from 0, both corners inside
    start: np.ndarray  # (N + 1,) int64: photo n has rows start[n]:start[n + 1], at least one
    added: np.ndarray  # (R,) bool: boxes of phrases, added to the training split
    facts: dict  # what made them, how many a photo, and the share of phrases that they reach


class RegionFeatures(Features):
    """Features of proposals and their geometry, (R, F + 5). sizes (N, 2): of photos.

    Raises InputError if the file has not one row of features for each proposal.
    """

    def __init__(self, path: str, proposals: Proposals, sizes: np.ndarray):
        super().__init__(path)
        self.dim += GEOMETRY_DIM
        self.proposals = proposals
        self.sizes = sizes
        boxes = len(proposals.boxes)
        if self.array.ndim != 2 or len(self) != boxes:
            raise InputError(
                f"{path} holds {self.array.dtype} of shape {self.array.shape}, and {boxes:,} boxes "
                f"have features of shape ({boxes}, F), in the order of the boxes; write it again so"
            )

    def gather(self, index) -> Tensor:
        """Read rows (B,): features and geometry, (B, F + 5)."""
        index = np.asarray(index)
        features = super().gather(index)  # (B, F)
        photo = np.searchsorted(self.proposals.start, index, side="right") - 1
        geometry = box_geometry(self.proposals.boxes[index], self.sizes[photo])  # (B, 5)
        return torch.cat([features, torch.from_numpy(geometry)], 1)


# ---- a split


@dataclass
class PhraseSplit(Split):
    """A Split whose N photos have R proposals, its `images`, and whose M captions are phrases."""

    kind = "phrases"
    entities: Entities = None
    proposals: Proposals = None

    @property
    def ids(self) -> list[str]:
        """Ids of the N photos."""
        return self.entities.ids

    @property
    def boxes(self) -> np.ndarray:
        """Boxes of the proposals, (R, 4)."""
        return self.proposals.boxes

    @property
    def start(self) -> np.ndarray:
        """Where the proposals of each photo begin, (N + 1,)."""
        return self.proposals.start

    @property
    def added(self) -> np.ndarray:
        """Which proposals are boxes of phrases, (R,) bool."""
        return self.proposals.added

    @property
    def phrase_photo(self) -> np.ndarray:
        """Position of each phrase's photo, (M,), rising."""
        return self.entities.phrase_photo

    @property
    def truth(self) -> np.ndarray:
        """Box around all boxes of each phrase's chain, (M, 4)."""
        return self.entities.truth

    @property
    def types(self) -> list[tuple[str, ...]]:
        """Types of the M phrases, such as ("people",)."""
        return self.entities.types

    def doubts(self, train: Split | None = None, deep: bool = False):
        """As `Split.doubts`, of the regions alone: phrases of two splits are often the same."""
        yield from self.images.doubts(deep)

    def rows(self, n: int) -> slice:
        """Return where the P proposals of photo n stand."""
        return slice(self.start[n], self.start[n + 1])

    def columns(self, n: int) -> np.ndarray:
        """Select the phrases of photo n."""
        first, last = np.searchsorted(self.phrase_photo, (n, n + 1))
        return np.arange(first, last)

    def overlap(self, n: int) -> np.ndarray:
        """Compute the IoU of photo n's proposals and its phrases' boxes, (P, m)."""
        return box_iou(self.boxes[self.rows(n)], self.truth[self.columns(n)])

    def best_overlaps(self, added: bool = True) -> np.ndarray:
        """Compute the largest IoU of each phrase with a proposal, (M,).

        added: boxes of phrases count, too.
        """
        counted = ~self.added | added  # (R,)
        largest = []
        for n in range(len(self.ids)):
            overlap = self.overlap(n)[counted[self.rows(n)]]
            largest.append(overlap.max(0, initial=0))
        return np.concatenate(largest)


def parse_name(text: str) -> str:
    """Parse a name of proposals or of their features, part of names of files."""
    if not re.fullmatch("[A-Za-z0-9-]+", text):
        raise InputError(f"'{text}' cannot be a name; give letters, digits and -")
    return text


def parse_regions(text: str) -> str:
    """Parse a name of proposals and their features, PROPOSALS_NAME."""
    if not re.fullmatch("[A-Za-z0-9_-]+", text):
        raise InputError(
            f"{spell_value(text)} names no proposals and features; give NAME of "
            f"{{split}}_NAME.npy, such as {DEFAULT_REGIONS}"
        )
    return text


def digest_annotations(entities: Entities) -> str:
    """Hash the ids of a split's photos and the boxes of its phrases."""
    return sha256("\n".join(entities.ids), entities.truth)


def read_proposals(root: str, split: PhraseSplit, name: str) -> Proposals:
    """Read the proposals of a split. Raises InputError where they do not fit it."""
    path = os.path.join(root, f"{split.name}_{name}.npz")
    data_name = os.path.basename(root)
    writer = f"python -m phrases.proposals --data_name {data_name} --name {name}"
    need(path, f"it is written with {writer}")

    with refusing(f"{path} holds no proposals", WRITE_AGAIN):
        arrays = read_arrays(path, WRITE_AGAIN)
        facts = json.loads(str(arrays.pop("facts")))
        if facts["annotations_sha256"] != digest_annotations(split.entities):
            raise InputError(
                f"{path} is of other photos, or other annotations, than {split.name}.txt names "
                f"now; {WRITE_AGAIN}"
            )
        proposals = Proposals(**arrays, facts=facts)
        check_proposals(proposals, len(split.ids))
        return proposals


def check_proposals(proposals: Proposals, photos: int) -> None:
    """Raise ValueError on arrays or facts that phrases.proposals does not write for the photos."""
    boxes, start, added, facts = proposals
    rows = 0
    if boxes.ndim:
        rows = len(boxes)

    if boxes.dtype != np.float32 or boxes.shape != (rows, 4) or not np.isfinite(boxes).all():
        raise ValueError(f"boxes are {boxes.dtype} of shape {boxes.shape}, or not finite")
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise ValueError("a box ends before it begins")

    misshapen = start.dtype.kind != "i" or start.shape != (photos + 1,)
    if misshapen or start[0] != 0 or start[-1] != rows:
        raise ValueError(
            f"start is {start.dtype} of shape {start.shape}, for {photos:,} photos and {rows:,} "
            "boxes"
        )
    if (np.diff(start) < 1).any():
        raise ValueError("a photo has no box")
    if added.dtype != bool or added.shape != (rows,):
        raise ValueError(f"added is {added.dtype} of shape {added.shape}")

    recall = facts["recall"]
    named = isinstance(facts["method"], str) and type(facts["count"]) is int
    if not named or not isinstance(recall, dict):
        raise ValueError("its facts have the wrong types")
    for percent in recall.values():
        if type(percent) is not float or not 0 <= percent <= 100:
            raise ValueError("a recall is not a percentage")


def read_region_features(root: str, split: PhraseSplit, regions: str) -> tuple[RegionFeatures, str]:
    """Read features of the split's proposals, and the line that says what made them."""
    path = os.path.join(root, f"{split.name}_{regions}")
    name, _, features = regions.rpartition("_")
    writer = f"python -m phrases.regions --proposals {name} --name {features}"
    for ending in (".npy", ".json"):
        need(path + ending, f"it is written with {writer}")

    with refusing(f"{path}.json does not say what made the features", WRITE_AGAIN):
        facts = read_json(f"{path}.json", WRITE_AGAIN)
        if facts["boxes_sha256"] != sha256(split.boxes):
            raise InputError(
                f"{path}.npy is of other boxes than those that {split.name}_{name}.npz holds now; "
                f"{WRITE_AGAIN}"
            )
        result = RegionFeatures(f"{path}.npy", split.proposals, split.entities.sizes)
        return result, str(facts["extractor"])


def read_regions(root: str, split: PhraseSplit, regions: str) -> None:
    """Give a split the proposals and the features that `regions` names."""
    name = regions.rpartition("_")[0]
    if not name:
        raise InputError(
            f"--regions {regions} names proposals but no features; add the name of their features, "
            f"such as {regions}_ims"
        )

    split.proposals = read_proposals(root, split, name)
    split.images, extractor = read_region_features(root, split, regions)
    if extractor.startswith(GIVEN_FEATURES):  # a file of each split, by whatever made them
        split.extractors.pop("ims", None)
    else:
        split.extractors["ims"] = extractor


def read_phrases(
    root: str, split: str, regions: str | None = None, text_features: str | None = None
) -> PhraseSplit:
    """Read the phrases of a split, with the features that are named. Raises InputError.

    Args:
        root: folder of the data set.
        split: train, val or test.
        regions: name of proposals and their features.
        text_features: name of features of the phrases.
    """
    if not os.path.isdir(os.path.join(root, "Annotations")):
        raise InputError(
            f"{root} is not a data set of phrases in photos; give --data_name a folder with "
            "Annotations/, Sentences/ and train.txt, val.txt and test.txt, as Flickr30k Entities "
            "has them"
        )
    entities = read_entities(root, split)
    result = PhraseSplit(
        split,
        NoImages(len(entities.ids)),
        entities.phrases,
        entities.phrase_photo,
        os.path.join(root, "Sentences"),
        extractors=read_extractors(root),
        entities=entities,
    )

    if regions:
        read_regions(root, result, regions)
    if text_features:
        result.text = read_text_features(root, result, text_features, "phrases.captions")

    dropped = list_counts(entities.dropped)
    result.notes.append(f"phrases of {split} without a box, left out: {dropped}")
    if entities.faults:
        result.notes.append(
            f"{len(entities.faults):,} faults of the annotations of {split} are passed over "
            f"(python -m phrases.data names them), the first: {entities.faults[0]}"
        )
    return result


# ---- batches


class PhraseBatch(NamedTuple):
    """R regions and M phrases of several photos, and which of them fit."""

    images: Tensor  # (R, F) features
    tokens: Tensor  # (M, T) int64 word numbers, zero-padded | (M, F) features
    lengths: Tensor  # (M,) int64, on the CPU
    labels: Tensor  # (R, M) int8: a region fits a phrase, 1; does not, -1; is not compared, 0
    unpaired: None = None  # data.Batch has jWAE's
    n_regions: None = None  # and numbers of regions an image

    def to(self, device) -> "PhraseBatch":
        return self._replace(
            images=self.images.to(device),
            tokens=self.tokens.to(device),
            labels=self.labels.to(device),
        )


def batches(split: PhraseSplit, tokens, photos, size: int, seed: tuple, skip: int = 0, **rule):
    """Yield batches of `size` photos in the given order, without the first `skip`.

    rule: of `sample_proposals`.
    """
    for chunk in chunks(np.ascontiguousarray(photos), size)[skip:]:
        rows = []
        columns = []
        blocks = []  # of labels, (r, m) of each photo
        for n in chunk:
            of_photo = sample_proposals(split, int(n), seed, **rule)
            rows.append(of_photo[0])
            columns.append(of_photo[1])
            blocks.append(torch.from_numpy(of_photo[2]))

        images = split.images.gather(np.concatenate(rows))
        words, lengths = tokens.batch(np.concatenate(columns))
        labels = torch.block_diag(*blocks)  # (R, M)
        yield PhraseBatch(images, words, lengths, labels)


def sample_proposals(
    split: PhraseSplit,
    n: int,
    seed: tuple,
    positive: float = POSITIVE_IOU,
    every: bool = False,
) -> tuple[np.ndarray, ...]:
    """Draw proposals (r,) of photo n for its phrases (m,), with labels (r, m) int8.

    Each phrase that a proposal fits gets one that fits, or every one, and NEGATIVES_PER_POSITIVE
    times as many that do not. All pairs are labelled, so a phrase is compared with what the others
    drew, too. The draw depends on (seed, n) alone.

    Args:
        n: position of the photo.
        positive: the least IoU of a proposal that fits.
        every: take every proposal that fits a phrase.

    Returns positions of the proposals in the split, of the phrases, and the labels.
    """
    rng = np.random.default_rng([*seed, n])
    overlap = split.overlap(n)  # (P, m)
    usable = (overlap >= positive).any(0)
    overlap = overlap[:, usable]
    columns = split.columns(n)[usable]

    fits = overlap >= positive
    apart = overlap < NEGATIVE_IOU
    lot = rng.random(overlap.shape)
    if every:
        drawn = fits.any(1)
        positives = fits.sum(0)  # (m,)
    else:
        drawn = np.where(fits, lot, -1).argmax(0)
        positives = 1

    mask = np.zeros(len(overlap), bool)  # (P,)
    mask[drawn] = True
    order = np.where(apart, lot, -1).argsort(0)[::-1]  # (P, m), the largest lot first
    position = np.arange(len(order))[:, None]
    among_first = position < NEGATIVES_PER_POSITIVE * positives
    mask[order[np.take_along_axis(apart, order, 0) & among_first]] = True

    rows = np.flatnonzero(mask)
    labels = fits[rows].astype(np.int8) - apart[rows]
    return split.start[n] + rows, columns, labels


# ---- the check of a folder


def check_split(opt, root: str, name: str, faults: dict[str, None]) -> None:
    """Print what a split holds, and add its faults. Raises InputError for one that ends it."""
    split = read_phrases(root, name)
    print(describe_entities(name, split.entities))
    faults |= dict.fromkeys(split.entities.faults)
    if os.path.isdir(os.path.join(root, "images")):
        photo_paths(root, split.ids)

    proposals = DEFAULT_REGIONS.rpartition("_")[0]
    proposals_file = os.path.join(root, f"{name}_{proposals}.npz")
    if opt.regions == DEFAULT_REGIONS and not os.path.isfile(proposals_file):
        print(f"{'':8}no proposals yet: python -m phrases.proposals writes them")
        return
    read_regions(root, split, opt.regions)
    print(f"{'':8}{len(split.boxes):,} proposals, {split.images.describe()}")

    faults |= dict.fromkeys(split.faults(deep=True))
    for is_fault, sentence in split.doubts(deep=True):
        if is_fault:
            faults[sentence] = None


def report_data(opt) -> int:
    """Print what a data set holds, and its faults. Returns 1 where there are any."""
    root = os.path.join(opt.data_path, opt.data_name)
    faults = {}  # a dict holds each fault once
    for name in ENTITIES_SPLITS:
        try:
            check_split(opt, root, name, faults)
        except InputError as error:
            faults[str(error)] = None

    for fault in faults:
        print(f"fault: {fault}")
    print(f"{root}: {len(faults)} faults")
    return int(bool(faults))


def main(argv=None) -> None:
    p = Arguments("Check a data set of phrases in photos.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        required=True,
        help="folder of the data set below --data_path",
    )
    add(
        "--regions",
        type=parse_regions,
        default=DEFAULT_REGIONS,
        metavar="NAME",
        help="proposals and features to check, {split}_NAME.npy",
    )
    sys.exit(utils.run("phrases.data", report_data, p.parse_args(argv)))


if __name__ == "__main__":
    main()
