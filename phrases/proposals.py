"""Write box proposals of photos in Flickr30k Entities' layout; print their recall.

    python -m phrases.proposals --data_name f30k_entities --model model.yml.gz
    python -m phrases.proposals --data_name f30k_entities --count 500
    python -m phrases.proposals --data_name f30k_entities --name mine --from boxes.json

EdgeBoxes (Zitnick and Dollar 2014) by OpenCV's ximgproc: boxes that wholly hold many edges, those
of image gradients or, with --model, of a structured forest. The boxes of the phrases are added to
those of train. {split}_{name}.npz holds them (data.py). After a stop the same command continues.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import functools
import gzip
import json
import os

import numpy as np

import utils
from features.store import Part, compute_missing
from images import read_photo
from phrases.data import (
    RENAME_OR_DELETE,
    PhraseSplit,
    Proposals,
    digest_annotations,
    parse_name,
    read_phrases,
    read_proposals,
)
from phrases.entities import ENTITIES_SPLITS, Entities, entities_split, photo_paths
from utils import (
    Arguments,
    InputError,
    data_set,
    file_digest,
    filename,
    positive,
    read_json,
    refusing,
    save_arrays,
    workers,
    writable,
)

# As the code of pl-clc sets them.
EDGE_BOXES_SETTINGS = {"alpha": 0.65, "beta": 0.65, "minScore": 0.01}
MIN_LONGER_SIDE = 256  # pixels: a smaller photo is enlarged to this
SMOOTHING_RADIUS = 4  # pixels of the photo: finer textures have no edges
# Keep an edge unless a neighbor is stronger by more than this factor.
THINNING_FACTOR = 1.01
INSTALL_OPENCV = "pip install -r phrases/requirements.txt, in place of another opencv package"
PHOTOS_PER_TASK = 4  # photos that a process gets at a time
BOXES_FORM = (
    'give {"photo id": [[x1, y1, x2, y2], ...], ...} of all photos, pixels from 0, the best box '
    "first"
)


# ---- EdgeBoxes


def import_opencv():
    """Import cv2 with one thread, as photos are spread over processes."""
    with refusing("EdgeBoxes needs OpenCV's contributed modules", INSTALL_OPENCV):
        import cv2.ximgproc
    cv2.setNumThreads(1)
    return cv2


@functools.cache
def read_forest(path: str):
    """Read a structured forest. Raises InputError if the file holds none."""
    fix = "give model.yml.gz of opencv_extra/testdata/cv/ximgproc"
    with refusing(f"{path} holds no structured forest", fix):
        open_file = open
        if path.endswith(".gz"):
            open_file = gzip.open
        with open_file(path, "rb") as f:
            if b"edgeBins:" not in f.read():  # in other YAML OpenCV would divide by 0 trees
                raise ValueError("it has no edgeBins")
        return import_opencv().ximgproc.createStructuredEdgeDetection(path)


def describe_method(model: str | None) -> str:
    """Say in one line what makes the boxes: a structured forest, or gradients."""
    if model:
        read_forest(model)
        edges = f"the structured forest {file_digest(model)}"
    else:
        # stored with the boxes and compared, so its words stay
        edges = (
            "gradients of the strongest colour, smoothed by a triangle of radius "
            f"{SMOOTHING_RADIUS}"
        )
    settings = ", ".join(f"{name} {value}" for name, value in EDGE_BOXES_SETTINGS.items())
    version = import_opencv().__version__
    return (
        f"EdgeBoxes ({settings}) of {edges}, longer side at least {MIN_LONGER_SIDE}, OpenCV "
        f"{version}"
    )


def find_edges(photo: np.ndarray, radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the edges of a photo (H, W, 3) uint8 by Sobel's filters after smoothing.

    Strength in [0, 1], 0 beside a stronger pixel across the edge, and direction across the edge in
    [0, pi], both (H, W) float32, of the color of the strongest gradient at each pixel. radius: of
    the triangle that smooths, pixels.
    """
    cv2 = import_opencv()
    triangle = radius + 1 - np.abs(np.arange(-radius, radius + 1, dtype=np.float32))
    triangle /= triangle.sum()
    smoothed = cv2.sepFilter2D(photo.astype(np.float32), -1, triangle, triangle)

    dx = cv2.Sobel(smoothed, cv2.CV_32F, 1, 0)  # (H, W, 3)
    dy = cv2.Sobel(smoothed, cv2.CV_32F, 0, 1)
    best = np.hypot(dx, dy).argmax(2, keepdims=True)  # (H, W, 1), of the colors
    dx = np.take_along_axis(dx, best, 2)[:, :, 0]
    dy = np.take_along_axis(dy, best, 2)[:, :, 0]
    strength = np.hypot(dx, dy)
    strength /= max(strength.max(), 1e-6)
    across = np.mod(np.arctan2(dy, dx), np.float32(np.pi))

    height, width = strength.shape
    y, x = np.mgrid[:height, :width].astype(np.float32)
    neighbors = []  # of each pixel, on both sides of the edge
    for sign in (1, -1):
        at_x = x + sign * np.cos(across)
        at_y = y + sign * np.sin(across)
        neighbor = cv2.remap(
            strength, at_x, at_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        neighbors.append(neighbor)
    weaker = THINNING_FACTOR * strength < np.maximum(*neighbors)
    return np.where(weaker, np.float32(0), strength), across


def edge_boxes(photo: np.ndarray, count: int, model: str | None = None) -> np.ndarray:
    """Find at most `count` boxes of a photo (H, W, 3) uint8, the best first: (k, 4) float32.

    x1, y1, x2, y2 in pixels from 0 with both corners inside. A photo without an edge has one box,
    the whole of it.
    """
    cv2 = import_opencv()
    height, width = photo.shape[:2]
    scale = max(1.0, MIN_LONGER_SIDE / max(height, width))
    if scale > 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        photo = cv2.resize(photo, size, interpolation=cv2.INTER_CUBIC)

    if model:
        forest = read_forest(model)
        strength = forest.detectEdges(photo.astype(np.float32) / 255)
        across = forest.computeOrientation(strength)
        strength = forest.edgesNms(strength, across)
    else:
        strength, across = find_edges(photo, round(SMOOTHING_RADIUS * scale))

    search = cv2.ximgproc.createEdgeBoxes(maxBoxes=count, **EDGE_BOXES_SETTINGS)
    strength = np.ascontiguousarray(strength, np.float32)
    across = np.ascontiguousarray(across, np.float32)
    boxes, _ = search.getBoundingBoxes(strength, across)
    if not len(boxes):
        return np.array([[0, 0, width - 1, height - 1]], np.float32)

    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    corner, size = np.split(boxes, 2, 1)  # (k, 2)
    share = np.divide([width, height], photo.shape[1::-1])  # of the enlarged photo
    largest = np.array([width, height]) - 1
    first = np.clip(corner * share, 0, largest)
    last = np.clip((corner + size) * share - 1, first, largest)
    return np.concatenate([first, last], 1).astype(np.float32)[:count]  # (k, 4)


def find_boxes(
    paths: list[str], sizes: np.ndarray, count: int, model: str | None, n: int
) -> np.ndarray:
    """Read photo n and find its boxes, in a worker process. sizes (N, 2): width, height."""
    photo = read_sized(paths[n], sizes[n])
    return edge_boxes(np.array(photo), count, model)


def read_sized(path: str, size):
    """Read a photo in RGB. Raises InputError unless it has this (width, height)."""
    photo = read_photo(path)
    if photo.size != tuple(size):
        raise InputError(
            f"the photo {path} has {photo.size[0]} x {photo.size[1]} pixels and its annotations "
            f"say {size[0]} x {size[1]}; the boxes would not fit, so take the photos of this data "
            "set"
        )
    return photo


def read_own_boxes(path: str, entities: Entities, count: int) -> list[np.ndarray]:
    """Read the first `count` boxes of each photo from a JSON file, (k, 4) float32."""
    boxes_of = read_json(path, BOXES_FORM, unique=True)
    result = []
    for photo, (width, height) in zip(entities.ids, entities.sizes):
        fault = f"{path}: the boxes of {photo} are not a list of boxes with four numbers each"
        with refusing(fault, BOXES_FORM):
            rows = np.array(boxes_of[photo], np.float32)[:count]
            x1, y1, x2, y2 = rows.T

        inside_across = (0 <= x1) & (x1 <= x2) & (x2 < width)
        inside_down = (0 <= y1) & (y1 <= y2) & (y2 < height)
        inside = inside_across & inside_down
        if not inside.all():
            raise InputError(
                f"{path}: the box {rows[inside.argmin()].tolist()} of {photo} is inverted or "
                f"leaves its photo, {width} x {height} pixels; pixels count from 0, so x2 is at "
                f"most {width - 1} and y2 {height - 1}"
            )
        result.append(rows)
    return result


# ---- the command


def join_photos(rows: list[np.ndarray], split: PhraseSplit, add: bool) -> Proposals:
    """Join the boxes (k, 4) of photos. With `add`, boxes of their phrases follow."""
    boxes = []
    added = []
    start = [0]
    for n, of_photo in enumerate(rows):
        of_phrases = np.empty((0, 4), np.float32)
        if add:
            truth = np.unique(split.truth[split.columns(n)], axis=0)
            # annotations leave some photos by a pixel
            largest = np.tile(split.entities.sizes[n] - 1, 2)
            of_phrases = np.clip(truth, 0, largest).astype(np.float32)
        boxes += [of_photo, of_phrases]
        added += [np.zeros(len(of_photo), bool), np.ones(len(of_phrases), bool)]
        start.append(start[-1] + len(of_photo) + len(of_phrases))
    return Proposals(np.concatenate(boxes), np.array(start), np.concatenate(added), facts={})


def compute_proposals(opt, root: str, path: str, method: str, split: PhraseSplit) -> None:
    """Give a split its proposals, and write them to `path`."""
    facts = {
        "method": method,
        "count": opt.count,
        "annotations_sha256": digest_annotations(split.entities),
    }
    part = Part(path, facts)
    if opt.given:
        rows = read_own_boxes(opt.given, split.entities, opt.count)
    else:
        photos = photo_paths(root, split.ids)
        sizes = split.entities.sizes
        find = functools.partial(find_boxes, photos, sizes, opt.count, opt.model)
        keys = dict(enumerate(split.ids))
        compute_missing(part, keys, find, list, split.name, PHOTOS_PER_TASK, opt.workers)
        rows = [part[photo] for photo in split.ids]

    proposals = join_photos(rows, split, add=split.name == "train")
    split.proposals = proposals._replace(facts=facts)
    best = split.best_overlaps(added=False)
    facts["recall"] = {}
    for least in (0.5, 0.7):
        facts["recall"][f"{least}"] = round(100 * float(np.mean(best >= least)), 2)
    save_arrays(
        path,
        {
            "boxes": proposals.boxes,
            "start": proposals.start,
            "added": proposals.added,
            "facts": np.array(json.dumps(facts)),
        },
    )
    part.remove()


def write_proposals(opt, root: str, name: str, method: str, split_name: str) -> None:
    """Write the proposals of a split, unless they are there. Raises InputError."""
    split = read_phrases(root, split_name)
    path = writable(os.path.join(root, f"{split_name}_{name}.npz"))
    state = ""
    if os.path.exists(path):
        split.proposals = read_proposals(root, split, name)
        facts = split.proposals.facts
        if (facts["method"], facts["count"]) != (method, opt.count):
            raise InputError(
                f"{path} is there, with at most {facts['count']} boxes per photo, "
                f"{facts['method']}; {RENAME_OR_DELETE}"
            )
        state = "done already, "
    else:
        compute_proposals(opt, root, path, method, split)

    of_phrases = ""
    if split_name == "train":
        of_phrases = f", {split.added.sum():,} of them added from the phrases"
    print(f"{path}: {state}{len(split.boxes):,} boxes of {len(split.ids):,} photos{of_phrases}")

    recall = split.proposals.facts["recall"]
    reached = ", ".join(f"{percent:.1f}% at IoU {least}" for least, percent in recall.items())
    phrases = len(split.captions)
    print(f"  recall of {phrases:,} phrases: {reached}, without added boxes")


def write_all_proposals(opt) -> None:
    """Write the splits. Raises InputError for options that cannot work together."""
    if opt.given and opt.model:
        raise InputError(
            f"--model {opt.model} is for EdgeBoxes, and --from {opt.given} gives the boxes; leave "
            "one out"
        )
    if opt.given and not opt.name:
        raise InputError(f"--from {opt.given} needs --name NAME, a name for your proposals")

    name = opt.name or f"edgeboxes{opt.count}"
    root = os.path.join(opt.data_path, opt.data_name)
    if opt.given:
        method = f"given in {os.path.basename(opt.given)} {file_digest(opt.given)}"
    else:
        method = describe_method(opt.model)
    for split in opt.splits or ENTITIES_SPLITS:
        write_proposals(opt, root, name, method, split)


def main(argv=None) -> None:
    p = Arguments(
        "Write box proposals of photos whose phrases are to be localized, and print their recall."
    )
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        required=True,
        help="a data set like Flickr30k Entities, with images/",
    )
    add(
        "--splits",
        nargs="+",
        type=entities_split,
        metavar="SPLIT",
        help="splits to write, of train, dev and test (default: all)",
    )
    add(
        "--count",
        type=positive,
        default=200,
        metavar="N",
        help="boxes per photo; fewer where there are no more",
    )
    add(
        "--name",
        type=parse_name,
        metavar="NAME",
        help="name of the proposals (default: edgeboxesN)",
    )
    add(
        "--model",
        type=filename,
        metavar="FILE",
        help="model.yml.gz of OpenCV's structured forests (default: edges are image gradients)",
    )
    add(
        "--from",
        type=filename,
        metavar="FILE.json",
        dest="given",
        help="take boxes of your own: a JSON object, id of a photo to its [[x1, y1, x2, y2], ...], "
        "the best first, in pixels from 0",
    )
    add("--workers", type=workers, default=os.cpu_count() or 1, help="processes that find boxes")
    utils.run("phrases.proposals", write_all_proposals, p.parse_args(argv))


if __name__ == "__main__":
    from phrases.proposals import main  # whose functions worker processes find by name

    main()
