"""Read Flickr30k Entities: noun phrases of captions, and boxes of what they name.

A folder holds {train,val,test}.txt (ids of photos, one a line), Sentences/ID.txt (five sentences)
and Annotations/ID.xml (the size of the photo, and boxes). In the sentences a phrase is marked as

    [/EN#283585/people A man] in [/EN#283586/clothing a blue shirt] stands on
    [/EN#283587/bodyparts/other tiptoe] .

The number is that of a chain: all mentions, in any sentence, of one thing or of several that are
named together. Chain 0 is nothing that could be seen. The XML lists boxes with the chains that they
belong to; a chain without a box has a flag instead, <scene> (the whole photo) or <nobndbox>.
"""

import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from utils import InputError, need, read_lines, read_text, refusing, repeated, spell_value

ENTITIES_SPLITS = ("train", "val", "test")  # as the files are named; commands say dev for val
NOT_VISUAL = "0"  # the chain of phrases that name nothing to be seen
DROPPED = ("notvisual", "scene", "no box", "fault")  # why a phrase is left out
# Pixels that a box may lie outside: coordinates count from 0 or from 1.
PIXELS_BEYOND = 1
MAX_PHOTO_SIDE = 2**31  # pixels
PHOTO_ENDINGS = (".jpg", ".jpeg", ".png")
PHRASE = re.compile(r"\[/EN#([0-9]+)((?:/[^\s/\[\]]+)+)\s+([^\s\[\]][^\[\]]*)\]")
PHOTO_ID = re.compile(r"[\w-][\w.-]*")
FETCH_AGAIN = "fetch the data set again"


@dataclass
class Entities:
    """The M phrases with a box of the N photos of a split, each mention once."""

    ids: list[str]  # N, in the order of the split's file
    sizes: np.ndarray  # (N, 2) int64 width and height, pixels
    phrases: list[str]  # M, the words as they stand in the sentence
    phrase_photo: np.ndarray  # (M,) int64 position of each phrase's photo in ids, rising
    types: list[tuple[str, ...]]  # M, such as ("people",); a few phrases have more than one
    truth: np.ndarray  # (M, 4) float64 x1, y1, x2, y2 of the box around all boxes of the chain
    dropped: dict[str, int]  # {one of DROPPED: phrases left out}
    faults: list[str] = field(default_factory=list)  # of single entries, which are passed over


def entities_split(text: str) -> str:
    """Parse the name of a split: dev, or val, is the one whose files are named val."""
    name = text
    if text == "dev":
        name = "val"
    if name not in ENTITIES_SPLITS:
        raise InputError(f"{spell_value(text)} is not a split; give train, dev or test")
    return name


def read_entities(root: str, split: str) -> Entities:
    """Read the phrases of train, val or test.

    Boxes count pixels from 0: 1 is taken off the XML's coordinates, as in the data set's Python
    parser. A fault of one mention or box costs that alone, and others raise InputError.
    """
    ids = read_photo_ids(root, split)
    sizes = []
    photo_of_phrase = []
    types = []
    phrases = []
    truth = []
    dropped = Counter(dict.fromkeys(DROPPED, 0))
    faults = []
    for n, photo in enumerate(ids):
        size, found = read_size_and_phrases(root, photo, dropped, faults)
        sizes.append(size)
        for kinds, words, box in found:
            photo_of_phrase.append(n)
            types.append(kinds)
            phrases.append(words)
            truth.append(box)

    if not phrases:
        advice = "give the annotations"
        if faults:
            advice = faults[0]
        raise InputError(
            f"{os.path.join(root, split)}.txt: no phrase of its {len(ids):,} photos has a box "
            f"(left out: {list_counts(dropped)}), and at least one must; {advice}"
        )
    return Entities(
        ids,
        np.array(sizes, np.int64),
        phrases,
        np.array(photo_of_phrase, np.int64),
        types,
        np.array(truth, np.float64),
        dict(dropped),
        faults,
    )


def photo_paths(root: str, ids: list[str]) -> list[str]:
    """Find the photos below root/images. Raises InputError where one is missing."""
    folder = os.path.join(root, "images")
    inside = set()
    if os.path.isdir(folder):
        inside.update(os.listdir(folder))

    paths = []
    for photo in ids:
        names = [photo + ending for ending in PHOTO_ENDINGS if photo + ending in inside]
        if not names:
            raise InputError(
                f"there is no photo {os.path.join(folder, photo)}.jpg (nor .jpeg, nor .png); put "
                "the photos of the data set into that folder, or make it a link to where they lie"
            )
        paths.append(os.path.join(folder, names[0]))
    return paths


def describe_entities(split: str, e: Entities) -> str:
    """Describe the phrases of a split in three lines."""
    types = Counter()
    for kinds in e.types:
        types.update(kinds)
    by_type = list_counts(dict(types.most_common()))
    lines = (
        f"{split:8}{len(e.ids):>8,} photos {len(e.phrases):>8,} phrases",
        f"{'':8}types: {by_type}",
        f"{'':8}left out: {list_counts(e.dropped)}",
    )
    return "\n".join(lines)


def list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {n:,}" for kind, n in counts.items())


# ---- one split


def read_photo_ids(root: str, split: str) -> list[str]:
    """Read ids of a split's photos.

    Raises InputError where one stands twice, in it or in another split.
    """
    path = os.path.join(root, f"{split}.txt")
    need(
        path,
        "Flickr30k Entities has train.txt, val.txt and test.txt, which list the ids of the photos",
    )
    ids_of = {}
    for name in ENTITIES_SPLITS:
        file = os.path.join(root, f"{name}.txt")
        if os.path.isfile(file):
            ids_of[file] = [line.strip() for line in read_lines(file) if line.strip()]
    if not ids_of[path]:
        raise InputError(f"{path} names no photo; {FETCH_AGAIN}")

    twice = repeated(chain.from_iterable(ids_of.values()))
    if twice is not None:
        files = [file for file, ids in ids_of.items() if twice in ids]
        raise InputError(
            f"{' and '.join(files)} name the photo {twice!a:.80} more than once; a photo is of one "
            "split, so name it once"
        )
    for photo in ids_of[path]:
        if not PHOTO_ID.fullmatch(photo):
            raise InputError(
                f"{path} names the photo {photo!a:.80}; an id is of letters, digits, '-', '_' and "
                "'.'"
            )
    return ids_of[path]


# ---- one photo


def read_size_and_phrases(
    root: str, photo: str, dropped: Counter, faults: list[str]
) -> tuple[tuple, list[tuple]]:
    """Read a photo's (width, height) and phrases.

    Phrases are (types, words, truth). Counts those that are left out in `dropped`, and appends
    faults of single mentions and boxes. Raises InputError.
    """
    annotations = os.path.join(root, "Annotations", f"{photo}.xml")
    sentences = os.path.join(root, "Sentences", f"{photo}.txt")
    for path in (annotations, sentences):
        fix = f"{FETCH_AGAIN}, or remove the photo from the split"
        need(path, f"a split names the photo {photo}: {fix}")

    size, chains = read_annotations(annotations, faults)
    lines = [line for line in read_lines(sentences) if line.strip()]
    if not lines:
        raise InputError(f"{sentences} holds no sentence; {FETCH_AGAIN}")

    phrases = []
    for k, line in enumerate(lines, 1):
        for number, marks, text in PHRASE.findall(line):
            box = find_truth(number, marks, chains)
            types = tuple(marks[1:].split("/"))
            words = " ".join(text.split())
            if not isinstance(box, str):
                phrases.append((types, words, box))
                continue
            dropped[box] += 1
            if box == "fault":
                faults.append(
                    f"{sentences}, sentence {k}: '{words}' is left out, as {annotations} gives its "
                    f"chain {number} neither a box in the photo nor a flag"
                )

        rest = PHRASE.sub("", line)
        if "[" in rest or "/EN#" in rest:
            dropped["fault"] += 1
            begin = max(rest.find("["), 0)
            broken = rest[begin:][:40].strip()
            faults.append(
                f"{sentences}, sentence {k}: the mark of a phrase at '{broken}' is not whole, and "
                "is passed over"
            )
    return size, phrases


def find_truth(chain: str, types: str, chains: dict[str, tuple | str]) -> tuple | str:
    """Find the box around a phrase's things, or else why it has none, one of DROPPED.

    types: as they are marked, such as "/clothing/other". chains: of `read_annotations`.
    """
    truth = chains.get(chain, "fault")
    not_visual = "notvisual" in types.split("/") and isinstance(truth, str)
    if chain == NOT_VISUAL or not_visual:
        return "notvisual"
    return truth


def read_annotations(path: str, faults: list[str]) -> tuple[tuple, dict[str, tuple | str]]:
    """Read a photo's (width, height), and what it has of each chain.

    That is the box around all boxes of the chain, or else "scene" or "no box". Raises InputError,
    also on a DOCTYPE, whose entities can grow without limit.
    """
    text = read_text(path)
    if "<!DOCTYPE" in text:
        raise InputError(
            f"{path} has a DOCTYPE, which may declare entities and is not read; remove it"
        )

    boxes = {}  # of each chain
    flags = {}
    # a ParseError is a SyntaxError
    with refusing(f"{path} is not a whole annotation of a photo", FETCH_AGAIN):
        root = ElementTree.fromstring(text)
        width = int(root.findtext("size/width"))
        height = int(root.findtext("size/height"))
        if not (0 < width < MAX_PHOTO_SIDE and 0 < height < MAX_PHOTO_SIDE):
            raise ValueError(f"it has {width} x {height} pixels")

        for item in root.findall("object"):
            chains = [(name.text or "").strip() for name in item.findall("name")]
            corners = item.find("bndbox")
            if corners is None:
                add_flags(flags, chains, scene=int(item.findtext("scene", "0")) > 0)
                continue

            box = [int(corners.findtext(side)) - 1 for side in ("xmin", "ymin", "xmax", "ymax")]
            x1, y1, x2, y2 = box
            fits_across = -PIXELS_BEYOND <= x1 <= x2 < width + PIXELS_BEYOND
            fits_down = -PIXELS_BEYOND <= y1 <= y2 < height + PIXELS_BEYOND
            if not (fits_across and fits_down):
                faults.append(
                    f"{path}: the box {x1}, {y1}, {x2}, {y2} of chain {', '.join(chains)}, pixels "
                    f"from 0, is inverted or leaves the photo, {width} x {height} pixels, and is "
                    "passed over"
                )
                continue
            for name in chains:
                boxes.setdefault(name, []).append(box)

    around = {name: join_boxes(of_chain) for name, of_chain in boxes.items()}
    return (width, height), flags | around


def add_flags(flags: dict[str, str], chains: list[str], scene: bool) -> None:
    """Flag chains that have no box here; "scene" stays where it was said once."""
    for name in chains:
        if scene:
            flags[name] = "scene"
        else:
            flags.setdefault(name, "no box")


def join_boxes(boxes: list[list[int]]) -> tuple[int, int, int, int]:
    """Return the smallest box around boxes x1, y1, x2, y2."""
    x1, y1, x2, y2 = zip(*boxes)
    return min(x1), min(y1), max(x2), max(y2)
