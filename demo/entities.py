"""The demo's noun phrases and boxes, in the layout of Flickr30k Entities.

A phrase names one thing ("a small red circle"), several ("three circles"), the ground, the sky or the background (a
flag <scene> in place of a box), the picture itself ("a drawing of", flag <nobndbox>), or a place ("the top left
corner", chain 0).
"""
from demo import SPLITS, link, save_text
from demo.scenes import CANVAS
from files import save_lines

# the types of things
FAMILIES = {"circle": "round", "ring": "round", "square": "angular", "triangle": "angular",
            "diamond": "angular", "cross": "angular", "star": "figure", "heart": "figure"}
SCENE, NO_BOX, NOT_VISUAL = ("ground", "sky", "background"), "picture", "place"
TYPES = {**dict.fromkeys(SCENE, "scene"), NO_BOX: "other", NOT_VISUAL: "notvisual"}
CHAINS = 100                          # more than a photo ever has


def chains(captions, photo):
    """Number the chains of a photo, {what phrases name: number}; a place has chain 0.

    Things that are named together have a chain of their own.
    """
    mentions = dict.fromkeys(mention if isinstance(mention, str) else frozenset(mention)
                             for caption in captions for mention in caption.mentions)
    numbers = {mention: photo * CHAINS + k for k, mention in enumerate(mentions, 1)}
    return numbers | {NOT_VISUAL: 0} if NOT_VISUAL in numbers else numbers


def sentence(scene, caption, numbers):
    """Write a caption with each noun phrase as [/EN#chain/type phrase]."""
    first, *rest = caption.marked.split("[")
    for mention, text in zip(caption.mentions, rest, strict=True):
        if isinstance(mention, str):
            chain, types = numbers[mention], [TYPES[mention]]
        else:
            chain, types = numbers[frozenset(mention)], sorted({FAMILIES[scene.things[i].shape] for i in mention})
        first += f"[/EN#{chain}/{'/'.join(types)} {text}"
    return first


def annotation(scene, filename, numbers):
    """Write the XML of a photo: boxes that count pixels from 1, then other chains."""
    lines = ["<annotation>", f"\t<filename>{filename}</filename>",
             f"\t<size><width>{CANVAS}</width><height>{CANVAS}</height><depth>3</depth></size>"]
    for index, thing in enumerate(scene.things):
        own = [chain for mention, chain in numbers.items() if not isinstance(mention, str) and index in mention]
        x, y, w, h = thing.box
        box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
        if own:
            lines += ["\t<object>", *(f"\t\t<name>{chain}</name>" for chain in own),
                      f"\t\t<bndbox>{box}</bndbox>", "\t</object>"]
    for mention in (*SCENE, NO_BOX):
        if mention in numbers:
            lines.append(f"\t<object><name>{numbers[mention]}</name>"
                         f"<scene>{int(mention in SCENE)}</scene>"
                         f"<nobndbox>{int(mention == NO_BOX)}</nobndbox></object>")
    return [*lines, "</annotation>"]


def write_entities(folder, photos, entries):
    """Write entries, {split: [Entry]}, in the layout of Flickr30k Entities.

    photos: the folder of their pictures.
    """
    for split, name in SPLITS.items():
        for e in entries[split]:
            numbers = chains(e.captions, e.photo)
            link(photos / e.filename, folder / "images" / f"{e.photo}.png")
            save_text(folder / "Annotations" / f"{e.photo}.xml", annotation(e.scene, f"{e.photo}.png", numbers))
            save_text(folder / "Sentences" / f"{e.photo}.txt", [sentence(e.scene, c, numbers) for c in e.captions])
        save_lines(folder / f"{name}.txt", [str(e.photo) for e in entries[split]])
