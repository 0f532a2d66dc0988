"""Write box proposals of the photos of Flickr30k Entities, or of data in its layout.

    python -m features.proposals --data_name f30k_entities
    python -m features.proposals --data_name f30k_entities --count 500 --model model.yml.gz
    python -m features.proposals --data_name f30k_entities --name mine --from boxes.json

They are EdgeBoxes (edges.py), of image gradients or, with --model, of a structured forest, or boxes of your own. The
boxes of the phrases are added to those of train. {split}_{name}.npz and .json hold them (files/proposals.py), and the
recall is printed: what share of the phrases a perfect ranking would find. After a stop the same command goes on.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import os
import re

import numpy as np

import cli
from cli import Arguments, InputError, data_set, filename, positive, up_to, workers
from features.edges import edge_boxes, method_of
from features.photos import file_digest
from features.rows import PhotoRows
from files.entities import SPLITS, Entities, photo_paths, read_entities
from files.photos import read_photo
from files.proposals import (
    THRESHOLDS,
    Proposals,
    array_sha256,
    file_of,
    ids_sha256,
    read_facts,
    read_proposals,
    recall,
)
from files.reading import read_json, recognised
from files.writing import locked, output, save_arrays, save_json

BATCH = 4                             # photos that a process is given at a time
NAME = r"[A-Za-z0-9_-]+"              # of proposals and of their features, part of the names of files
LARGEST = 1e30                        # a coordinate or score, as float32 holds it
FORM = 'give {"photo id": [[x1, y1, x2, y2, score], ...], ...}, pixels from 0, the score as you like'


class Finder:
    """Finds the proposals of photo n: `finder(n)` is (k, 5) float32, see `edge_boxes`. Raises InputError for a photo
    that cannot be read or has another size than its annotations say."""

    def __init__(self, paths: list[str], sizes: np.ndarray, count: int, model: str | None):
        self.paths, self.sizes, self.count, self.model = paths, sizes, count, model

    def __call__(self, n: int) -> np.ndarray:
        return edge_boxes(np.array(read_sized(self.paths[n], self.sizes[n])), self.count, self.model)


def read_sized(path: str, size) -> object:
    """A photo in RGB. Raises InputError unless it has this (width, height)."""
    photo = read_photo(path)
    if photo.size != tuple(size):
        raise InputError(f"the photo {path} has {photo.size[0]} x {photo.size[1]} pixels and its annotations say "
                         f"{size[0]} x {size[1]}; the boxes would not fit, so take the photos of this data set")
    return photo


# ---- proposals of one's own

def given_boxes(path: str, entities: Entities, count: int) -> list[np.ndarray]:
    """The boxes of each photo in a JSON file, (k, 5) float32 with the score, 0 where there is none. Where a photo has
    more than `count`, those of the highest score, or the first. Raises InputError for every fault."""
    stored = read_json(path, FORM, unique=True)
    if not isinstance(stored, dict):
        raise InputError(f"{path} is no JSON object of boxes; {FORM}")
    without = [photo for photo in entities.ids if not stored.get(photo)]
    if without:
        raise InputError(f"{path} has no boxes of {len(without):,} of {len(entities.ids):,} photos, the first is "
                         f"{without[0]}; every photo needs one or more, under its id")
    return [best_of(checked(path, photo, stored[photo], size), count)
            for photo, size in zip(entities.ids, entities.sizes.tolist())]


def checked(path: str, photo: str, boxes, size) -> np.ndarray:
    """Boxes of a photo as they stand in JSON, (k, 5) float32. Raises InputError unless all lie in the photo."""
    lengths = {len(box) if isinstance(box, list) else 0 for box in boxes} if isinstance(boxes, list) else {0}
    if len(lengths) > 1 or not lengths <= {4, 5}:
        raise InputError(f"{path} gives {photo} no list of boxes of four numbers, or of five with the score; {FORM}")
    for box in boxes:
        if not all(type(x) in (int, float) and abs(x) < LARGEST for x in box):      # NaN is not below it, either
            raise InputError(f"{path}: {ascii(box)[:60]} of {photo} is no box; give finite numbers x1, y1, x2, y2, and "
                             f"perhaps a score, all below {LARGEST:.0e}")
        x1, y1, x2, y2 = box[:4]
        if x1 > x2 or y1 > y2:
            raise InputError(f"{path}: the box {box[:4]} of {photo} is inverted; give x1 <= x2 and y1 <= y2")
        if min(x1, y1) < 0 or x2 > size[0] - 1 or y2 > size[1] - 1:
            raise InputError(f"{path}: the box {box[:4]} of {photo} leaves the photo, {size[0]} x {size[1]} pixels; "
                             f"pixels count from 0, so x2 is at most {size[0] - 1} and y2 at most {size[1] - 1}")
    found = np.array(boxes, np.float64)
    found = np.pad(found, ((0, 0), (0, 5 - found.shape[1])))
    return found.astype(np.float32)


def best_of(found: np.ndarray, count: int) -> np.ndarray:
    """The `count` boxes of the highest score, in this order; of equal scores the earlier. (k, 5) -> (at most count, 5).
    """
    return found[np.argsort(-found[:, 4], kind="stable")[:count]]


# ---- the command

def joined(found: list[np.ndarray], entities: Entities, add: bool) -> Proposals:
    """Proposals of all photos, with the boxes of each photo's phrases behind its own if `add`, each box once."""
    blocks, added, first = [], [], np.searchsorted(entities.phrase_photo, np.arange(len(found) + 1))
    for n, rows in enumerate(found):
        truth = np.unique(entities.truth[first[n]:first[n + 1] if add else first[n]], axis=0)
        most = np.tile(entities.sizes[n] - 1, 2)            # the annotations leave some photos by a pixel
        extra = np.pad(np.clip(truth, 0, most), ((0, 0), (0, 1)))                   # (t, 4) -> (t, 5), score 0
        blocks.append(np.concatenate([rows, extra]).astype(np.float32))
        added.append(np.arange(len(blocks[-1])) >= len(rows))
    rows = np.concatenate(blocks)                                                   # (R, 5)
    start = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
    return Proposals(np.ascontiguousarray(rows[:, :4]), start, np.ascontiguousarray(rows[:, 4]),
                     np.concatenate(added), {})


def is_ours(path: str) -> bool:
    """Whether proposals of this name (without ending) are of this command, so that it may write them again."""
    if os.path.exists(f"{path}.json"):
        return recognised(lambda p: "boxes_sha256" in read_facts(p, "method", ""), f"{path}.json")
    return not os.path.exists(f"{path}.npz")


def write_split(opt, root: str, split: str, method: str) -> None:
    """Write the proposals of a split, unless they are there. Raises InputError for other proposals of this name."""
    entities, path = read_entities(root, split, opt.box_origin), file_of(root, split, opt.name)
    asked = {"method": method, "count": opt.count, "ids_sha256": ids_sha256(entities.ids)}
    made = {**asked, "origin": opt.box_origin, "truth_sha256": array_sha256(entities.truth)}
    if not is_ours(path):
        raise InputError(f"{path}.npz or .json is there and not of features.proposals; give another --name")
    facts = read_facts(f"{path}.json", "method", "") if os.path.exists(f"{path}.json") else made
    for key in ("method", "count", "origin"):
        if facts.get(key) != made[key]:
            raise InputError(f"{path}.npz is of {key} '{facts.get(key)}' and not '{made[key]}'; give another --name, "
                             "or delete the old files")
    if all(facts.get(key) == value for key, value in made.items()) and "recall" in facts and \
            recognised(lambda p: read_proposals(root, split, opt.name, entities), path):
        print(f"{path}.npz: done already")
        report(facts, opt.count)
        return
    for end in (".npz", ".json"):
        output(path + end, lambda _: True)
    rows = None
    if opt.given:
        found = given_boxes(opt.given, entities, opt.count)
    else:
        paths, start = photo_paths(root, entities.ids), np.arange(len(entities.ids) + 1) * opt.count
        rows = PhotoRows(path, paths, start, 5, np.float32, asked)
        rows.run(Finder(paths, entities.sizes, opt.count, opt.model), list, BATCH, opt.workers, split)
        found = [np.array(rows.array[first:first + done[2]]) for first, done in zip(start, rows.done)]
    proposals = joined(found, entities, add=split == "train")
    save_arrays(f"{path}.npz", {"boxes": proposals.boxes, "start": proposals.start, "score": proposals.score,
                                "added": proposals.added})
    facts = {**made, "boxes_sha256": array_sha256(proposals.boxes), "boxes": len(proposals.boxes),
             "photos": len(found), "added": int(proposals.added.sum()),
             "fewer": sum(len(own) < opt.count for own in found), "least": min(map(len, found)),
             "phrases": len(entities.phrases),
             "recall": {f"{t:g}": round(recall(proposals, entities, t), 2) for t in THRESHOLDS}}
    save_json(facts, f"{path}.json")
    if rows:
        rows.clean()
    print(f"{path}.npz: {facts['boxes']:,} boxes of {facts['photos']:,} photos"
          + f", {facts['added']:,} of them added from the phrases" * (split == "train"))
    report(facts, opt.count)


def report(facts: dict, count: int) -> None:
    """Print what the proposals of a split can find, and whether photos have fewer than asked for."""
    shares = ", ".join(f"{share:.1f}% at IoU {threshold}" for threshold, share in facts["recall"].items())
    print(f"  recall of {facts['phrases']:,} phrases: {shares}, without added boxes")
    if facts["fewer"]:
        print(f"  {facts['fewer']:,} of {facts['photos']:,} photos have fewer than {count} proposals, the least "
              f"{facts['least']}")


def write_all(opt) -> None:
    """The command. Raises InputError for options that cannot work together."""
    if opt.given and opt.model:
        raise InputError(f"--model {opt.model} is for EdgeBoxes, and --from {opt.given} gives the boxes; leave one out")
    if opt.given and not opt.name:
        raise InputError(f"--from {opt.given} needs --name NAME, a name for your proposals")
    opt.name = opt.name or f"edgeboxes{opt.count}"
    if not re.fullmatch(NAME, opt.name):
        raise InputError(f"--name {opt.name} cannot name proposals; give letters, digits, - and _")
    root = os.path.join(opt.data_path, opt.data_name)
    if opt.given:
        method = f"given in {os.path.basename(opt.given)} {file_digest(opt.given)}"
    else:
        method = method_of(opt.model)
    if not os.path.isdir(root):
        raise InputError(f"there is no folder {root}; --data_name is a data set below --data_path {opt.data_path}")
    with locked(root, "writing proposals into"):
        for split in dict.fromkeys("val" if split == "dev" else split for split in opt.splits):
            write_split(opt, root, split, method)


def arguments() -> Arguments:
    p = Arguments("Write box proposals of photos whose phrases are to be localised, and print their recall.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, required=True,
                   help="a data set in the layout of Flickr30k Entities, with images/")
    p.add_argument("--splits", nargs="+", choices=(*SPLITS, "dev"), default=list(SPLITS), help="splits to write")
    p.add_argument("--count", type=positive, default=200, metavar="N",
                   help="boxes per photo; fewer where there are no more")
    p.add_argument("--name", metavar="NAME", help="of the proposals, part of their files' names (default: edgeboxesN)")
    p.add_argument("--box_origin", type=up_to(1, least=0), default=1,
                   help="what is taken off the coordinates of the annotations: 1 as the data set's Python parser does, "
                        "0 as its Matlab parser")
    p.add_argument("--model", type=filename, metavar="FILE",
                   help="model.yml.gz of OpenCV's structured forests (default: edges are image gradients)")
    p.add_argument("--from", type=filename, metavar="FILE.json", dest="given",
                   help="take boxes of your own: a JSON object, id of a photo to its [[x1, y1, x2, y2], ...], each "
                        "perhaps with a score behind, in pixels from 0")
    p.add_argument("--workers", type=workers, default=os.cpu_count() or 1, help="number of processes that find boxes")
    return p


def main(argv=None) -> None:
    cli.run("features.proposals", write_all, arguments().parse_args(argv))


if __name__ == "__main__":
    main()
