"""Box proposals of the photos of a split, features of them, and region-phrase pairs of Flickr30k
Entities as a Split: the images are proposals, the captions are phrases.

A phrase belongs to one photo and is compared with that photo's proposals alone (`jwae` 5.2).
entities.py reads the annotations. proposals.py and regions.py write beside the split:

{split}_{name}.npz holds boxes (R, 4) float32 x1, y1, x2, y2 in pixels from 0 with both corners
inside, start (N + 1,) int64, score (R,) float32 and added (R,) bool; the boxes of photo n are rows
start[n]:start[n + 1]. {split}_{name}.json says what made them, for which photos, and what share of
the phrases they can find. Features of them are {split}_{name}_{features}.npy, (R, F), with a .json
that holds the checksum of their boxes.

    python -m phrases.data --data_name f30k_entities      # prints what the folder holds, and every fault
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import fnmatch
import os
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import cli
from cli import Arguments, InputError, check, data_set, filename
from data import Features, NoImages, Split, chunks, extractors, read_text_features
from files.reading import need, read_array, read_arrays, read_json, sha256
from phrases.entities import SPLITS, Entities, check_entities, read_entities

AGAIN = "write them again with python -m phrases.proposals"
EXTRACT = "write them again with python -m phrases.regions"
ARRAYS = {"boxes": "float32", "start": "int64", "score": "float32", "added": "bool"}
THRESHOLDS = (0.5, 0.7)            # of the intersection over union, at which the recall is recorded


@dataclass
class Proposals:
    """The R boxes of N photos."""
    boxes: np.ndarray         # (R, 4) float32: x1, y1, x2, y2 in pixels from 0, both corners inside
    # (N + 1,) int64: those of photo n are rows start[n]:start[n + 1], at least one
    start: np.ndarray
    score: np.ndarray         # (R,) float32: of the method, higher is better; 0 where there is none
    added: np.ndarray                 # (R,) bool: boxes of phrases, added to the training split
    facts: dict                       # what {split}_{name}.json says


def file_of(root: str, split: str, name: str) -> str:
    """The path of proposals without its ending. val is also called dev."""
    return os.path.join(root, f"{'val' if split == 'dev' else split}_{name}")


def ids_sha256(ids: list[str]) -> str:
    return sha256("\n".join(ids))


def read_facts(path: str, key: str, fix: str) -> dict:
    """The JSON object in a file, with the text `key` in it. Raises InputError, which names `fix`.
    """
    facts = read_json(path, fix)
    check(isinstance(facts, dict) and isinstance(facts.get(key), str),
          f"{path} is no JSON object that says \"{key}\"; {fix}")
    return facts


def read_proposals(root: str, split: str, name: str, entities: Entities) -> Proposals:
    """The proposals of a split. Raises InputError if they are missing, broken, or of other photos
    than `entities`."""
    start = file_of(root, split, name)
    for end in (".npz", ".json"):
        need(start + end, "box proposals are written with python -m phrases.proposals --data_name "
                          f"{os.path.basename(os.path.normpath(root))} --name {name}")
    facts = read_facts(f"{start}.json", "method", AGAIN)
    arrays, photos = read_arrays(f"{start}.npz", AGAIN), len(entities.ids)
    check({key: array.dtype.name for key, array in arrays.items()} == ARRAYS,
          f"{start}.npz holds other arrays than {', '.join(f'{k} {v}' for k, v in ARRAYS.items())}; "
          f"{AGAIN}")
    p = Proposals(**arrays, facts=facts)
    check(facts.get("ids_sha256") == ids_sha256(entities.ids),
          f"{start}.npz is of other photos, or of the same in another order, than {split}.txt names "
          f"now; delete it, and {AGAIN}")
    check(facts.get("truth_sha256") in (None, sha256(entities.truth)),
          f"{start}.npz was written before the annotations changed; delete it, and {AGAIN}")
    rows = len(p.boxes)
    shapes = [x.shape for x in (p.boxes, p.score, p.added, p.start)]
    check(shapes == [(rows, 4), (rows,), (rows,), (photos + 1,)] and p.start[0] == 0
          and p.start[-1] == rows and (np.diff(p.start) > 0).all(),
          f"{start}.npz is broken: its arrays do not give each of {photos} photos at least one of "
          f"{rows} boxes; {AGAIN}")
    check(facts.get("boxes_sha256") == sha256(p.boxes),
          f"{start}.npz is broken: its boxes are not those that its .json was written for; {AGAIN}")
    return p


def areas(boxes: np.ndarray) -> np.ndarray:
    """How many pixels each box has: (..., 4) -> (...,) float64.

    Both corners are inside, so that a box is x2 - x1 + 1 pixels wide, as in the Pascal challenge
    and in Flickr30k Entities."""
    boxes = np.asarray(boxes, np.float64)
    return np.prod(boxes[..., 2:] - boxes[..., :2] + 1, -1)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union, 0 to 1, of every box of a with every one of b: (n, 4), (m, 4) ->
    (n, m) float64."""
    a, b = np.asarray(a, np.float64)[:, None], np.asarray(b, np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + 1
    shared = np.prod(np.maximum(sides, 0), -1)                                      # (n, m)
    return shared / (areas(a) + areas(b) - shared)


def shares(boxes: np.ndarray, size) -> np.ndarray:
    """Boxes (P, 4) as shares of (width, height) of their photo, 0 to 1, float32."""
    pixels = (np.asarray(boxes, np.float64) + [0, 0, 1, 1]).astype(np.float32)
    return pixels / np.tile(size, 2).astype(np.float32)


def recall(proposals: Proposals, entities: Entities, threshold: float) -> float:
    """Percent of the phrases of which a proposal overlaps the box by `threshold` or more
    (intersection over union).

    Boxes that were added from the phrases do not count. It is the upper bound of every ranking of
    these proposals.
    """
    first = np.searchsorted(entities.phrase_photo, np.arange(len(entities.ids) + 1))      # (N + 1,)
    hits = 0
    for n in range(len(entities.ids)):
        rows = slice(proposals.start[n], proposals.start[n + 1])
        boxes = proposals.boxes[rows][~proposals.added[rows]]
        truth = entities.truth[first[n]:first[n + 1]]
        hits += int((iou(truth, boxes).max(1, initial=0) >= threshold).sum())
    return 100 * hits / len(entities.phrases)


def read_region_features(root: str, split: str, name: str, features: str,
                         proposals: Proposals) -> str:
    """The path of the features of proposals, {split}_{name}_{features}.npy. Raises InputError if
    they are missing, of other proposals, or not (R, F) float16 or float32."""
    start = file_of(root, split, f"{name}_{features}")
    for path in (f"{start}.npy", f"{start}.json"):
        check(os.path.isfile(path),
              f"there is no file {path} of features of the proposals {name}; write them with "
              f"python -m phrases.regions --proposals {name} --name {features}")
    facts = read_facts(f"{start}.json", "extractor", EXTRACT)
    check(facts.get("boxes_sha256") == proposals.facts["boxes_sha256"],
          f"{start}.npy is of other boxes than those that {file_of(root, split, name)}.npz holds "
          f"now; delete it, and {EXTRACT}")
    check_features(f"{start}.npy", read_array(f"{start}.npy", EXTRACT), proposals,
                   f"delete it, and {EXTRACT}")
    return f"{start}.npy"


def check_features(path: str, array, proposals: Proposals, fix: str) -> None:
    """Raise InputError, which says the `fix`, unless an array holds features of the proposals."""
    boxes = len(proposals.boxes)
    check(array.ndim == 2 and array.dtype in (np.float16, np.float32) and len(array) == boxes
          and array.shape[1],
          f"{path} holds {array.dtype} of shape {array.shape}, and {boxes:,} boxes have features of "
          f"shape ({boxes}, F) in float16 or float32, in the order of the boxes; {fix}")


# ---- pairs of regions and phrases

REGIONS = "edgeboxes200_ims"          # proposals and their features, {split}_{REGIONS}.npy
GEOMETRY = 5                          # numbers that say where a box lies
NEGATIVE_IOU = 0.3     # below which a region does not fit; in between it is not compared (CITE)
DRAWN = 2              # regions that do not fit, drawn for each that is drawn and does (CITE)


class RegionFeatures(Features):
    """Features of the proposals, (R, F), and where each lies in its photo: x1 / W, y1 / H, x2 / W,
    y2 / H and the share of the photo's area (CITE), so (R, F + 5); the corners that the box
    includes count whole."""

    def __init__(self, path: str, proposals: Proposals, sizes: np.ndarray):
        """sizes: width and height of each photo (N, 2)."""
        super().__init__(path)
        self.proposals, self.sizes = proposals, sizes

    @property
    def dim(self) -> int:
        return self.array.shape[-1] + GEOMETRY

    def gather(self, index) -> Tensor:
        features, index = super().gather(index), np.asarray(index)
        photo = np.searchsorted(self.proposals.start, index, side="right") - 1
        return torch.cat([features, torch.from_numpy(
            geometry_of(self.proposals.boxes[index], self.sizes[photo]))], 1)


def geometry_of(boxes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Boxes x1, y1, x2, y2 in pixels, (R, 4), in photos of width and height (R, 2) -> (R, 5)
    float32, in [0, 1]."""
    x1, y1, x2, y2 = boxes.astype(np.float64).T + [[0], [0], [1], [1]]
    width, height = sizes.astype(np.float64).T
    return np.stack([x1 / width, y1 / height, x2 / width, y2 / height,
                     (x2 - x1) * (y2 - y1) / (width * height)], 1).astype(np.float32)


@dataclass
class PhraseSplit(Split):
    """A Split whose images are the R proposals of all N photos, and whose captions are M phrases.
    `caption_image` is the proposal that overlaps a phrase's box most."""
    entities: Entities = None
    proposals: Proposals = None
    root: str = ""

    ids = property(lambda self: self.entities.ids)                      # of the N photos
    sizes = property(lambda self: self.entities.sizes)                  # (N, 2) width, height
    boxes = property(lambda self: self.proposals.boxes)                 # (R, 4) see Proposals
    start = property(lambda self: self.proposals.start)                 # (N + 1,)
    added = property(lambda self: self.proposals.added)                 # (R,) bool
    phrases = property(lambda self: self.entities.phrases)              # M
    phrase_photo = property(lambda self: self.entities.phrase_photo)    # (M,) of each, rising
    # (M, 4) the box of each, which encloses all boxes of its chain
    truth = property(lambda self: self.entities.truth)
    types = property(lambda self: self.entities.types)                  # M, such as ("people",)
    n_boxes = property(lambda self: self.entities.n_boxes)      # (M,) that the truth encloses

    def fingerprint(self) -> dict:
        return {**super().fingerprint(), "boxes_sha256": self.proposals.facts["boxes_sha256"]}

    def columns(self, n: int) -> np.ndarray:
        """The phrases of photo n."""
        return np.arange(*np.searchsorted(self.phrase_photo, (n, n + 1)))

    def overlap(self, n: int) -> np.ndarray:
        """IoU of photo n's proposals and its phrases' boxes, (P, m)."""
        return iou(self.boxes[self.start[n]:self.start[n + 1]], self.truth[self.columns(n)])


def read_phrases(root: str, split: str, regions: str = REGIONS, text_features: str | None = None,
                 text_only: bool = False) -> PhraseSplit:
    """A split of a folder of Flickr30k Entities, with the proposals and features that `regions`
    names; with `text_only` without them. Raises InputError."""
    check(os.path.isdir(os.path.join(root, "Annotations")),
          f"{root} is no data set of phrases in photos; give --data_name a folder with Annotations/, Sentences/ "
          "and train.txt, val.txt and test.txt, as Flickr30k Entities has them")
    split = "val" if split == "dev" else split
    entities = read_entities(root, split)
    result = PhraseSplit(
        split, NoImages(len(entities.ids)), entities.phrases, entities.phrase_photo,
        os.path.join(root, "Sentences"), extractors=extractors(root) or None, entities=entities,
        root=root)
    if text_only:
        return result
    name = proposals_of(root, split, regions)
    result.proposals = read_proposals(root, split, name, entities)
    path = read_region_features(root, split, name, regions[len(name) + 1:], result.proposals)
    result.images = RegionFeatures(path, result.proposals, entities.sizes)
    made_by = read_json(path.removesuffix(".npy") + ".json", "extract again")["extractor"]
    result.extractors = {**(result.extractors or {}), "ims": made_by}
    result.caption_image = np.concatenate([result.start[n] + result.overlap(n).argmax(0)
                                           for n in range(len(entities.ids))])
    if text_features:
        result.text = read_text_features(root, split, text_features, entities.phrases,
                                         result.source)
    kinds = ", ".join(f"{count:,} {why}" for why, count in entities.dropped.items() if count)
    if kinds:
        result.notes.append(f"{sum(entities.dropped.values()):,} phrases of {split} have no box and "
                            f"are left out ({kinds})")
    if entities.faults:
        result.notes.append(f"{len(entities.faults):,} faults of the annotations of {split} are "
                            f"passed over (python -m phrases.data names them), the first: "
                            f"{entities.faults[0]}")
    return result


def proposals_of(root: str, split: str, name: str) -> str:
    """The proposals P of features {split}_{P}_{F}.npy, whose P and F together are `name`."""
    files, start = sorted(fnmatch.filter(os.listdir(root), f"{split}_*.npz")), name
    while "_" in start:
        start = start.rpartition("_")[0]
        if f"{split}_{start}.npz" in files:
            return start
    check(f"{split}_{name}.npz" not in files, f"--regions {name} names proposals alone; name their "
                                              f"features behind them, such as {name}_ims")
    raise InputError(f"--regions {name}: {root} has no proposals "
                     f"{split}_{name.rpartition('_')[0] or name}.npz (but {', '.join(files) or 'none'}"
                     "); make them with `python -m phrases.proposals`, then their features with "
                     "`python -m phrases.regions`")


# ---- batches

class Labels(NamedTuple):
    """Which proposals fit a phrase, and how many are drawn."""
    positive: float = 0.7             # IoU from which a proposal fits (`jwae` 5.2)
    every: bool = False               # every proposal that fits is drawn, not one a phrase (CITE)


class Batch(NamedTuple):
    """R regions and M phrases of several photos, and which of them fit."""
    images: Tensor                    # (R, F) features
    tokens: Tensor                    # (M, T) int64 word numbers, zero-padded | (M, F) features
    lengths: Tensor                   # (M,) int64, on the CPU
    labels: Tensor                    # (R, M) int8: a region fits a phrase, 1; does not, -1; is not compared, 0
    rows: np.ndarray                  # (R,) of the regions in the split
    columns: np.ndarray               # (M,) of the phrases
    unpaired: None = None

    def to(self, device) -> "Batch":
        images, tokens, labels = (x.to(device) for x in (self.images, self.tokens, self.labels))
        return self._replace(images=images, tokens=tokens, labels=labels)


def batches(split: PhraseSplit, tokens, photos, size: int, labels: Labels, seed: tuple = (0,), skip: int = 0):
    """Yield batches of the proposals and phrases of `size` photos each, in the given order of photos.
    The first `skip` batches are left out (resuming)."""
    for chunk in chunks(np.ascontiguousarray(photos), size)[skip:]:
        rows, columns, label = draw_phrases(split, labels, seed, chunk)
        yield Batch(split.images.gather(rows), *tokens.batch(columns), torch.from_numpy(label), rows, columns)


def draw_phrases(split: PhraseSplit, rule: Labels, seed: tuple,
                 photos) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of photos (G,): proposals (R,), phrases (M,), and which of them fit, labels (R, M) int8.

    For each phrase one proposal that fits, or every one, and for each of them DRAWN that do not
    are drawn, by (seed, photo) alone. All pairs of a proposal and a phrase of one photo are labelled
    then, so a phrase is compared with what was drawn for the others, too.
    """
    rows, columns, blocks = zip(*(draw(split, rule, seed, int(n)) for n in photos))
    labels = torch.block_diag(*map(torch.from_numpy, blocks)).numpy()               # of (r, m)
    return np.concatenate(rows), np.concatenate(columns), labels


def draw(split: PhraseSplit, rule: Labels, seed: tuple,
         n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of photo n: the proposals drawn (r,), its phrases that one of them fits (m,), and labels (r,
    m) int8."""
    rng = np.random.default_rng([*seed, n])
    overlap = split.overlap(n)                                                      # (P, m)
    fits = overlap >= rule.positive
    usable = fits.any(0)
    overlap, fits, columns = overlap[:, usable], fits[:, usable], split.columns(n)[usable]
    lot = rng.random(overlap.shape)
    apart = overlap < NEGATIVE_IOU
    mask = np.zeros(len(overlap), bool)
    mask[fits.any(1) if rule.every else np.where(fits, lot, -1).argmax(0)] = True
    order = np.where(apart, lot, -1).argsort(0)[::-1]                               # (P, m)
    most = DRAWN * (fits.sum(0) if rule.every else 1)                          # (m,) or 1
    mask[order[np.take_along_axis(apart, order, 0) & (np.arange(len(order))[:, None] < most)]] = True
    rows = np.flatnonzero(mask)
    return split.start[n] + rows, columns, fits[rows].astype(np.int8) - apart[rows]


def learnable(split: PhraseSplit, positive: float) -> np.ndarray:
    """The phrases that a proposal fits, (m,): the others cannot be learned from."""
    best = np.concatenate([split.overlap(n).max(0) for n in range(len(split.ids))])
    return np.flatnonzero(best >= positive)


# ---- the check of a folder

def check_folder(opt) -> int:
    """Print what a data set holds, its proposals and features, too, and every fault. Returns 1 where there
    are faults."""
    root = os.path.join(opt.data_path, opt.data_name)
    lines, faults = check_entities(root)
    print("\n".join(lines))
    proposals = opt.regions.rpartition("_")[0]
    for name in () if faults else SPLITS:
        if opt.regions == REGIONS and not os.path.isfile(os.path.join(root, f"{name}_{proposals}.npz")):
            print(f"{name:8}no proposals {proposals} yet: python -m phrases.proposals writes them")
            continue
        try:
            split = read_phrases(root, name, opt.regions, opt.text_features)
        except InputError as error:
            faults.append(str(error))
            continue
        print(f"{name:8}{len(split.boxes):>8,} proposals  {split.images.describe()}")
        for x in filter(None, (split.images, split.text)):
            faults += x.faults(deep=True, distinct=False)
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{root}: {len(faults)} faults")
    return int(bool(faults))


def main(argv=None) -> None:
    p = Arguments("Check a data set of phrases in photos.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, required=True, help="folder of the data set below --data_path")
    p.add_argument("--text_features", metavar="NAME", help="also check features of phrases, {split}_NAME.npy")
    p.add_argument("--regions", type=filename, default=REGIONS, metavar="NAME",
                   help="proposals and features to check, {split}_NAME.npy")
    sys.exit(cli.run("phrases.data", check_folder, p.parse_args(argv)))


if __name__ == "__main__":
    main()
