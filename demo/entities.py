"""The demo's noun phrases and boxes, in the layout of Flickr30k Entities.

A phrase names one thing ("a small red circle"), several ("three circles"), the ground, the sky or
the background (a flag <scene> in place of a box), the picture itself ("a drawing of", flag
<nobndbox>), or a position ("the top left corner", chain 0).
"""

from demo import SPLIT_NAMES, link, save_text
from demo.scenes import CANVAS
from utils import save_lines

# the types of things
FAMILIES = {
    "circle": "round",
    "ring": "round",
    "square": "angular",
    "triangle": "angular",
    "diamond": "angular",
    "cross": "angular",
    "star": "figure",
    "heart": "figure",
}
# what else a phrase names, as in Caption.mentions
SCENE_MENTIONS = ("ground", "sky", "background")
PICTURE_MENTION = "picture"
POSITION_MENTION = "position"
TYPES = {
    **dict.fromkeys(SCENE_MENTIONS, "scene"),
    PICTURE_MENTION: "other",
    POSITION_MENTION: "notvisual",
}
CHAINS_PER_PHOTO = 100  # more than a photo ever has


def list_chains(captions, photo):
    """Number the chains of a photo, {what phrases name: number}; a position has chain 0.

    Things that are named together have a chain of their own.
    """
    numbers = {}
    for caption in captions:
        for mention in caption.mentions:
            named = name_chain(mention)
            if named not in numbers:
                numbers[named] = photo * CHAINS_PER_PHOTO + len(numbers) + 1
    if POSITION_MENTION in numbers:
        numbers[POSITION_MENTION] = 0
    return numbers


def name_chain(mention):
    """What a phrase names: a word, or the indices of things in any order."""
    if isinstance(mention, str):
        return mention
    return frozenset(mention)


def mark_sentence(scene, caption, numbers):
    """Write a caption with each noun phrase as [/EN#chain/type phrase]."""
    sentence, *rest = caption.marked.split("[")
    for mention, text in zip(caption.mentions, rest, strict=True):
        if isinstance(mention, str):
            types = [TYPES[mention]]
        else:
            types = sorted({FAMILIES[scene.things[index].shape] for index in mention})
        sentence += f"[/EN#{numbers[name_chain(mention)]}/{'/'.join(types)} {text}"
    return sentence


def annotate_photo(scene, filename, numbers):
    """Write the XML of a photo: boxes that count pixels from 1, then other chains."""
    lines = [
        "<annotation>",
        f"\t<filename>{filename}</filename>",
        f"\t<size><width>{CANVAS}</width><height>{CANVAS}</height><depth>3</depth></size>",
    ]
    for index, thing in enumerate(scene.things):
        chains = []
        for named, chain in numbers.items():
            if not isinstance(named, str) and index in named:
                chains.append(chain)
        if not chains:
            continue
        x, y, width, height = thing.box
        lines.append("\t<object>")
        lines += [f"\t\t<name>{chain}</name>" for chain in chains]
        low = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
        high = f"<xmax>{x + width}</xmax><ymax>{y + height}</ymax>"
        lines.append(f"\t\t<bndbox>{low}{high}</bndbox>")
        lines.append("\t</object>")
    for mention in (*SCENE_MENTIONS, PICTURE_MENTION):
        if mention in numbers:
            lines.append(
                f"\t<object><name>{numbers[mention]}</name>"
                f"<scene>{int(mention in SCENE_MENTIONS)}</scene>"
                f"<nobndbox>{int(mention == PICTURE_MENTION)}</nobndbox></object>"
            )
    return [*lines, "</annotation>"]


def write_entities(folder, photos, entries):
    """Write entries, {split: [Entry]}, in the layout of Flickr30k Entities.

    photos: the folder of their pictures.
    """
    for split, name in SPLIT_NAMES.items():
        for entry in entries[split]:
            photo = entry.photo
            numbers = list_chains(entry.captions, photo)
            annotation = annotate_photo(entry.scene, f"{photo}.png", numbers)
            sentences = [mark_sentence(entry.scene, c, numbers) for c in entry.captions]
            link(photos / entry.filename, folder / "images" / f"{photo}.png")
            save_text(folder / "Annotations" / f"{photo}.xml", annotation)
            save_text(folder / "Sentences" / f"{photo}.txt", sentences)
        save_lines(folder / f"{name}.txt", [str(entry.photo) for entry in entries[split]])
