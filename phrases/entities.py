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
    mention or box costs that alone. Raises InputError on other faults.
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
    """Read ids of a split's photos. Raises InputError where one belongs to two."""
    path, *others = (os.path.join(root, f"{name}.txt") for name in (split, *SPLITS))
    need(path, "Flickr30k Entities has train.txt, val.txt and test.txt, which list the ids of the photos")
    ids_of = {file: [line.strip() for line in read_lines(file) if line.strip()]
              for file in (path, *others) if os.path.isfile(file)}
    ids = ids_of.pop(path)
    twice = repeated(ids)
    check(ids, f"{path} names no photo; {FETCH}")
    check(twice is None, f"{path} names the photo {ascii(twice)} twice; name each once")
    for other, theirs in ids_of.items():
        common, files = set(ids) & set(theirs), sorted((path, other))
        check(not common, f"{files[0]} and {files[1]} both name {len(common):,} photos, one is "
                          f"{min(common, default='')!a:.60}; a photo is of one split, so remove it from the other")
    for photo in ids:
        check(PHOTO_ID.fullmatch(photo), f"{path} names the photo {photo!a:.80}; an id is of letters, digits, '-', "
                                         "'_' and '.'")
    return ids


# ---- one photo

def read_size_and_phrases(root: str, photo: str, dropped: Counter, faults: list[str]) -> tuple[tuple, list[tuple]]:
    """Read a photo's (width, height) and phrases.

    Phrases are (types, words, truth). Counts those that are left out in `dropped`, and appends faults of single
    mentions and boxes. Raises InputError.
    """
    annotations = os.path.join(root, "Annotations", f"{photo}.xml")
    sentences = os.path.join(root, "Sentences", f"{photo}.txt")
    for path in (annotations, sentences):
        check(os.path.isfile(path), f"there is no file {path} of the photo {photo}, which a split names; {FETCH}, or "
                                    "remove the photo from the split")
    size, boxes, flags = read_annotations(annotations, photo, faults)
    rows, lines = [], [line for line in read_lines(sentences) if line.strip()]
    check(lines, f"{sentences} holds no sentence; {FETCH}")
    for k, line in enumerate(lines):
        for chain, types, words in PHRASE.findall(line):
            types, words = tuple(types[1:].split("/")), " ".join(words.split())
            if chain != NOT_VISUAL and chain in boxes:
                sides = list(zip(*boxes[chain]))            # the truth is the smallest box around those of the chain
                rows.append((types, words, (*map(min, sides[:2]), *map(max, sides[2:]))))
                continue
            why = "notvisual" if chain == NOT_VISUAL or "notvisual" in types else flags.get(chain, "fault")
            dropped[why] += 1
            if why == "fault":
                faults.append(f"{sentences}, sentence {k + 1}: '{words}' is of chain {chain}, of which {annotations} "
                              f"has neither a sound box nor a flag; the phrase is left out: {FETCH}, or list the chain "
                              "with <nobndbox>1</nobndbox>")
        rest = PHRASE.sub("", line)
        if "[" in rest or "/EN#" in rest:
            dropped["fault"] += 1
            faults.append(f"{sentences}, sentence {k + 1}: the mark of a phrase at "
                          f"'{rest[max(rest.find('['), 0):][:40].strip()}' is not whole, and is passed over; a phrase "
                          "is written [/EN#283585/people A man], and none stands within another")
    return size, rows


def read_annotations(path: str, photo: str, faults: list[str]) -> tuple[tuple, dict, dict]:
    """Read a photo's (width, height), {chain: boxes [(4,)]} and {other chain: flag}.

    A flag is "scene" or "no box". Raises InputError, also on a DOCTYPE, whose entities can grow without limit.
    """
    text = read_text(path)
    check("<!DOCTYPE" not in text, f"{path} has a DOCTYPE, which may declare entities and is not read; remove it")
    with refusing(f"{path} is not whole XML", FETCH):       # ParseError is a SyntaxError
        root = ElementTree.fromstring(text)

    def whole(parent: ElementTree.Element, name: str) -> int:
        text = parent.findtext(name)
        value = "no" if text is None else f"{text.strip()!a:.80} as"
        check(text and re.fullmatch("-?[0-9]{1,9}", text.strip()),
              f"{path} gives {value} <{name.split('/')[-1]}>, where a whole number of pixels belongs; {FETCH}")
        return int(text)
    width, height = whole(root, "size/width"), whole(root, "size/height")
    check(min(width, height) >= 1, f"{path} gives the photo {width} x {height} pixels; give the size that it has")
    boxes, flags = {}, {}
    for item in root.findall("object"):
        chains = [(name.text or "").strip() for name in item.findall("name")]
        corners = item.find("bndbox")
        if corners is None:
            scene = item.find("scene") is not None and whole(item, "scene") > 0
            flags.update((chain, "scene" if scene else "no box") for chain in chains if flags.get(chain) != "scene")
            continue
        x1, y1, x2, y2 = box = [whole(corners, side) - 1 for side in ("xmin", "ymin", "xmax", "ymax")]
        if not (-BEYOND <= x1 <= x2 < width + BEYOND and -BEYOND <= y1 <= y2 < height + BEYOND):
            faults.append(f"{path}: the photo {photo} has {width} x {height} pixels, and the box {x1}, {y1}, {x2}, "
                          f"{y2} (x1, y1, x2, y2 from 0) of chain {', '.join(chains)} is inverted or lies more than "
                          f"{BEYOND} pixel outside, and is passed over; correct the box or the size")
            continue
        for chain in chains:
            boxes.setdefault(chain, []).append(box)
    return (width, height), boxes, flags
