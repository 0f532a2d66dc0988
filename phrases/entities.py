"""Read Flickr30k Entities: noun phrases of captions, and boxes of what they name.

A folder holds {train,val,test}.txt (ids of photos, one a line), Sentences/ID.txt (five sentences) and
Annotations/ID.xml (the size of the photo, and boxes). In the sentences a phrase is marked as

    [/EN#283585/people A man] in [/EN#283586/clothing a blue shirt] stands on [/EN#283587/bodyparts/other tiptoe] .

The number is that of a chain: all mentions, in any sentence, of one thing or of several that are named together. Chain
0 is nothing that could be seen. The XML lists boxes with the chains that they belong to; a chain without a box has a
flag instead, <scene> (the whole photo) or <nobndbox>.
"""
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from cli import check
from files import need, read_lines, read_text, refusing, repeated

SPLITS = ("train", "val", "test")
NOT_VISUAL = "0"                      # the chain of phrases that name nothing to be seen
DROPPED = ("notvisual", "scene", "no box", "fault")     # why a phrase is left out
BEYOND = 1                            # pixels that a box may lie outside: coordinates count from 0 or from 1
PHOTO_ENDINGS = (".jpg", ".jpeg", ".png")
PHRASE = re.compile(r"\[/EN#([0-9]+)((?:/[^\s/\[\]]+)+)\s+([^\s\[\]][^\[\]]*)\]")
PHOTO_ID = re.compile(r"[\w-][\w.-]*")
FETCH = "fetch the data set again"


@dataclass
class Entities:
    """The M phrases with a box of the N photos of a split, each mention once."""
    ids: list[str]                    # N, in the order of the split's file
    sizes: np.ndarray                 # (N, 2) int64 width and height, pixels
    phrases: list[str]                # M, the words as they stand in the sentence
    phrase_photo: np.ndarray          # (M,) int64 position of each phrase's photo in ids, rising
    types: list[tuple[str, ...]]      # M, such as ("people",); a few phrases have more than one
    truth: np.ndarray                 # (M, 4) float64 x1, y1, x2, y2 of the box around all boxes of the chain
    dropped: dict[str, int]           # {one of DROPPED: phrases left out}
    faults: list[str] = field(default_factory=list)         # of single entries, which are passed over


def read_entities(root: str, split: str) -> Entities:
    """Read the phrases of train, val or test.

    Boxes count pixels from 0: 1 is taken off the XML's coordinates, as in the data set's Python parser. A fault of one
    mention or box costs that alone, and others raise InputError.
    """
    ids, sizes, rows, dropped, faults = read_photo_ids(root, split), [], [], Counter(dict.fromkeys(DROPPED, 0)), []
    for n, photo in enumerate(ids):
        size, phrases = read_size_and_phrases(root, photo, dropped, faults)
        sizes.append(size)
        rows += [(n, *phrase) for phrase in phrases]
    check(rows, f"{os.path.join(root, split)}.txt: no phrase of its {len(ids):,} photos has a box (left out: "
                f"{list_counts(dropped)}), and at least one must; {'; '.join(faults[:1]) or 'give the annotations'}")
    owner, types, phrases, truth = zip(*rows)
    return Entities(ids, np.array(sizes, np.int64), list(phrases), np.array(owner, np.int64), list(types),
                    np.array(truth, np.float64), dict(dropped), faults)


def photo_paths(root: str, ids: list[str]) -> list[str]:
    """Find the photos below root/images. Raises InputError where one is missing."""
    folder, paths = os.path.join(root, "images"), []
    inside = set(os.listdir(folder)) if os.path.isdir(folder) else ()
    for photo in ids:
        names = [photo + ending for ending in PHOTO_ENDINGS if photo + ending in inside]
        check(names, f"there is no photo {os.path.join(folder, photo)}.jpg (nor .jpeg, nor .png); put the photos of "
                     "the data set into that folder, or make it a link to where they lie")
        paths.append(os.path.join(folder, names[0]))
    return paths


def describe_entities(split: str, e: Entities) -> str:
    """Three lines on the phrases of a split."""
    types = Counter(kind for kinds in e.types for kind in kinds)
    return (f"{split:8}{len(e.ids):>8,} photos {len(e.phrases):>8,} phrases\n"
            f"{'':8}types: {list_counts(dict(types.most_common()))}\n{'':8}left out: {list_counts(e.dropped)}")


def list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {n:,}" for kind, n in counts.items())


# ---- one split

def read_photo_ids(root: str, split: str) -> list[str]:
    """Read ids of a split's photos. Raises InputError where one stands twice, in it or in another split."""
    path = os.path.join(root, f"{split}.txt")
    need(path, "Flickr30k Entities has train.txt, val.txt and test.txt, which list the ids of the photos")
    files = [file for file in (os.path.join(root, f"{name}.txt") for name in SPLITS) if os.path.isfile(file)]
    ids_of = {file: [line.strip() for line in read_lines(file) if line.strip()] for file in files}
    check(ids_of[path], f"{path} names no photo; {FETCH}")
    twice = repeated(chain.from_iterable(ids_of.values()))
    check(twice is None, f"{' and '.join(file for file in files if twice in ids_of[file])} name the photo "
                         f"{twice!a:.80} more than once; a photo is of one split, so name it once")
    for photo in ids_of[path]:
        check(PHOTO_ID.fullmatch(photo), f"{path} names the photo {photo!a:.80}; an id is of letters, digits, '-', "
                                         "'_' and '.'")
    return ids_of[path]


# ---- one photo

def read_size_and_phrases(root: str, photo: str, dropped: Counter, faults: list[str]) -> tuple[tuple, list[tuple]]:
    """Read a photo's (width, height) and phrases.

    Phrases are (types, words, truth). Counts those that are left out in `dropped`, and appends faults of single
    mentions and boxes. Raises InputError.
    """
    annotations = os.path.join(root, "Annotations", f"{photo}.xml")
    sentences = os.path.join(root, "Sentences", f"{photo}.txt")
    for path in (annotations, sentences):
        need(path, f"a split names the photo {photo}: {FETCH}, or remove the photo from the split")
    size, chains = read_annotations(annotations, faults)
    rows, lines = [], [line for line in read_lines(sentences) if line.strip()]
    check(lines, f"{sentences} holds no sentence; {FETCH}")
    for k, line in enumerate(lines):
        for number, types, words in PHRASE.findall(line):
            box = find_truth(number, types, chains)
            types = tuple(types[1:].split("/"))
            words = " ".join(words.split())
            if not isinstance(box, str):
                rows.append((types, words, box))
                continue
            dropped[box] += 1
            if box == "fault":
                faults.append(f"{sentences}, sentence {k + 1}: '{words}' is left out, as {annotations} gives its chain "
                              f"{number} neither a box in the photo nor a flag")
        rest = PHRASE.sub("", line)
        if "[" in rest or "/EN#" in rest:
            dropped["fault"] += 1
            faults.append(f"{sentences}, sentence {k + 1}: the mark of a phrase at "
                          f"'{rest[max(rest.find('['), 0):][:40].strip()}' is not whole, and is passed over")
    return size, rows


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
    """Read a photo's (width, height), and {chain: the box around all of its boxes, or else "scene" or "no box"}.

    Raises InputError, also on a DOCTYPE, whose entities can grow without limit.
    """
    text, boxes, flags = read_text(path), {}, {}
    check("<!DOCTYPE" not in text, f"{path} has a DOCTYPE, which may declare entities and is not read; remove it")
    with refusing(f"{path} is not a whole annotation of a photo", FETCH):       # ParseError is a SyntaxError
        root = ElementTree.fromstring(text)
        width, height = (int(root.findtext(f"size/{side}")) for side in ("width", "height"))
        if not (0 < width < 2 ** 31 and 0 < height < 2 ** 31):
            raise ValueError(f"it has {width} x {height} pixels")
        for item in root.findall("object"):
            chains = [(name.text or "").strip() for name in item.findall("name")]
            corners = item.find("bndbox")
            if corners is None:
                scene = int(item.findtext("scene", "0")) > 0
                flags |= {name: "scene" if scene else "no box" for name in chains if flags.get(name) != "scene"}
                continue
            x1, y1, x2, y2 = box = [int(corners.findtext(side)) - 1 for side in ("xmin", "ymin", "xmax", "ymax")]
            if not (-BEYOND <= x1 <= x2 < width + BEYOND and -BEYOND <= y1 <= y2 < height + BEYOND):
                faults.append(f"{path}: the box {x1}, {y1}, {x2}, {y2} of chain {', '.join(chains)}, pixels from 0, is "
                              f"inverted or leaves the photo, {width} x {height} pixels, and is passed over")
                continue
            for name in chains:
                boxes.setdefault(name, []).append(box)
    sides = {name: list(zip(*own)) for name, own in boxes.items()}
    return (width, height), flags | {name: (*map(min, own[:2]), *map(max, own[2:])) for name, own in sides.items()}
