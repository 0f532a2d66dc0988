"""`pmrl` Fig. 1 and Table 3 on a photo of your own, and examples of a manifest's triplets as in `ucmr` Fig. 3.

    python -m vg_experiments.crops --checkpoint RUN [RUN ...] --image photo.jpg --boxes 10,20,90,80 150,40,60,70 \\
        --captions "a man with a red helmet on a small moped on a dirt road" "a man with a red helmet" "a dirt road"
    python -m vg_experiments.crops --checkpoint RUN --manifest runs/vg/manifest.json --examples 4 --threshold 30

The first caption is of the whole photo, the others of the boxes x,y,width,height in their order. Of every caption and its
crop the table gives log det Sigma in nats (`pmrl` eq. 18; "-": a point), of every model how it ranks the captions for the
crop and the crops for the caption. The picture shows the crops and, a column a model, the captions in the order of their
scores; give a Gaussian and a point model to see them side by side. Beside it stands the same as JSON.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import os
import re
import textwrap

import numpy as np
from matplotlib.patches import Rectangle

import cli
from cli import Arguments, InputError, filename, natural, number, up_to
from evaluation.plots import drawing, picture_file
from files import holds_keys, output, save_json
from inputs import Photos
from similarities import uncertainty
from vg_experiments.encoding import Encoder, encoders, model_arguments, names, photo_path
from vg_experiments.prepare import drawn, read_manifest

COLOURS = {"a": "red", "b": "blue", "c": "black"}


def read_boxes(given: list[str], width: int, height: int) -> list[tuple]:
    """["x,y,width,height"] -> boxes within the photo, clipped to it."""
    boxes = []
    for text in given:
        parts = text.split(",")
        if len(parts) != 4 or not all(re.fullmatch(r"\s*-?[0-9]{1,9}\s*", part) for part in parts):
            raise InputError(f"--boxes {text}: a box is x,y,width,height in whole pixels, such as 10,20,90,80")
        x, y, w, h = map(int, parts)
        low, high = (max(x, 0), max(y, 0)), (min(x + w, width), min(y + h, height))
        if high[0] <= low[0] or high[1] <= low[1]:
            raise InputError(f"--boxes {text}: nothing of it lies in the photo of {width} x {height} pixels; give x,y,width,"
                             "height of a part of it")
        boxes.append((*low, high[0] - low[0], high[1] - low[1]))
    return boxes


def look(model: Encoder, path: str, boxes: list[tuple], texts: list[str]) -> dict:
    """What a model makes of K crops of a photo and as many captions: "scores" (crops, captions), "crop" and "caption"
    uncertainties (K,) or None."""
    unknown = model.unknown(texts)
    if unknown.any():
        raise InputError(f"no word of '{texts[unknown.argmax()]}' is in the vocabulary of {model.run}, {len(model.vocab)} "
                         "words; use words of its training set")
    images, captions = model.crops([(path, box) for box in boxes]), model.captions(texts)
    scores = model.model.similarity(images, captions).detach().float().cpu().numpy()
    return {"scores": scores.tolist(), **{kind: None if e.log_var is None else uncertainty(e).tolist()
                                          for kind, e in (("crop", images), ("caption", captions))}}


def places(scores: np.ndarray) -> np.ndarray:
    """The rank of the item of a query's own number by row, from 1; ties count against it: (K,)."""
    own = scores.diagonal()[:, None]
    return (scores >= own).sum(1)


def table(texts: list[str], boxes: list[tuple], found: dict[str, dict]):
    """Table 3 and the ranks, a line a caption and a model."""
    model_width, width = max(map(len, found)), max(20, *(min(len(text), 60) for text in texts))
    yield (f"{'caption':<{width}}  {'crop':<19}  {'model':<{model_width}}  {'log det Sigma: caption':>22}  {'crop':>8}  "
           "rank of the caption for the crop  of the crop for the caption")
    for k, (text, box) in enumerate(zip(texts, boxes)):
        for name, entry in found.items():
            scores = np.array(entry["scores"])
            caption, crop = ("-" if entry[kind] is None else f"{entry[kind][k]:.2f}" for kind in ("caption", "crop"))
            yield (f"{textwrap.shorten(text, width, placeholder='...'):<{width}}  {','.join(map(str, box)):<19}  "
                   f"{name:<{model_width}}  {caption:>22}  {crop:>8}  {places(scores)[k]:>22} of {len(texts)}"
                   f"{places(scores.T)[k]:>21} of {len(texts)}")


def draw(path: str, boxes: list[tuple], texts: list[str], found: dict[str, dict], target: str) -> None:
    """A row a crop; a column a model with the captions from the best to the worst, the crop's own in green."""
    photo = Photos([path]).open(0)
    with drawing(target, len(boxes), 1 + len(found), (3 + 4.5 * len(found), 2.4 * len(boxes))) as (figure, axes):
        draw_crops(photo, boxes, texts, found, axes)
        figure.suptitle("captions from the best to the worst for the crop, each with [its log det Sigma] and its score; green: "
                        "the crop's own", fontsize=9)
        figure.tight_layout()


def draw_crops(photo, boxes: list[tuple], texts: list[str], found: dict[str, dict], axes) -> None:
    for k, (row, (x, y, w, h)) in enumerate(zip(axes, boxes)):
        row[0].imshow(np.asarray(photo.crop((x, y, x + w, y + h))))
        for axis in row:
            axis.axis("off")
        for axis, (name, entry) in zip(row[1:], found.items()):
            sure = "" if entry["crop"] is None else f"; log det Sigma of the crop {entry['crop'][k]:.1f}"
            axis.set_title(f"{name}{sure}", fontsize=9, loc="left")
            at, scores = 0.95, np.array(entry["scores"])[k]
            for place, m in enumerate(np.argsort(-scores, kind="stable").tolist()):
                own = "" if entry["caption"] is None else f" [{entry['caption'][m]:.1f}]"
                wrapped = textwrap.wrap(f"{place + 1}. {texts[m]}{own}  {scores[m]:.2f}", 62, subsequent_indent="    ")
                axis.text(0, at, "\n".join(wrapped), va="top", fontsize=8, color="green" if m == k else "black",
                          weight="bold" if m == k else "normal", transform=axis.transAxes)
                at -= 0.115 * len(wrapped) + 0.03


def draw_triplets(manifest: dict, chosen: list[dict], folder: str | None, models: list[Encoder], target: str) -> None:
    """Whole images with the boxes of A, B and C, their captions, and what the models' uncertainties of A and C are."""
    with drawing(target, 1, len(chosen), (4 * len(chosen), 5.2)) as (figure, axes):
        for axis, triplet in zip(axes[0], chosen):
            draw_triplet(axis, triplet, photo_path(manifest, triplet["image"], folder), models)
        figure.subplots_adjust(0.02, 0.38, 0.98, 0.98, wspace=0.1)


def draw_triplet(axis, triplet: dict, path: str, models: list[Encoder]) -> None:
    axis.imshow(np.asarray(Photos([path]).open(0)))
    axis.axis("off")
    told = []
    for which, colour in COLOURS.items():
        x, y, w, h = triplet[which]
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), w, h, fill=False, edgecolor=colour, linewidth=2,
                                     linestyle="--" if which == "c" else "-"))
        told.append(f"{which.upper()} ({colour}): {triplet[f'caption_{which}']}")
    for name, model in zip(names(models), models):
        images = model.crops([(path, tuple(triplet[which])) for which in "ac"])
        captions = model.captions([triplet["caption_a"], triplet["caption_c"]])
        for kind, e in (("crops", images), ("captions", captions)):
            if e.log_var is not None:
                told.append("{}, {}: A {:.1f}, C {:.1f}".format(name, kind, *uncertainty(e).tolist()))
    axis.text(0, -0.03, "\n".join(part for line in told for part in textwrap.wrap(line, 48, subsequent_indent="   ")),
              va="top", fontsize=8, transform=axis.transAxes)


def own_photo(opt, models: list[Encoder]) -> None:
    boxes, texts = opt.boxes or [], opt.captions or []
    if len(texts) != len(boxes) + 1 or not boxes:
        raise InputError(f"--boxes has {len(boxes)} and --captions {len(texts)}; give at least one box, one caption for the "
                         "whole photo, and one for each box")
    width, height = Photos([opt.image]).open(0).size
    boxes = [(0, 0, width, height), *read_boxes(boxes, width, height)]
    found = {name: look(model, opt.image, boxes, texts) for name, model in zip(names(models), models)}
    print("\n".join(table(texts, boxes, found)))
    draw(opt.image, boxes, texts, found, opt.output)
    numbers = numbers_of(opt.output)
    save_json({"image": opt.image, "boxes": boxes, "captions": texts,
               "models": {name: {**model.facts, **found[name]} for name, model in zip(found, models)}}, numbers)
    print(f"picture in {opt.output}, numbers in {numbers}")


def examples(opt, models: list[Encoder]) -> None:
    manifest = read_manifest(opt.manifest)
    triplets = manifest["triplets"].get(f"{opt.threshold:g}")
    if triplets is None or opt.examples < 1:
        raise InputError(f"--threshold {opt.threshold:g}, --examples {opt.examples}: {opt.manifest} has triplets at "
                         f"{', '.join(manifest['triplets'])} percent; name one of them, and at least 1 example")
    order = drawn(np.array([t["image"] for t in triplets]), np.ones(len(triplets), bool), opt.seed, "examples")
    draw_triplets(manifest, [triplets[k] for k in order[:opt.examples]], opt.vg, models, opt.output)
    print(f"{min(opt.examples, len(order))} triplets at {opt.threshold:g} percent in {opt.output}")


def main(argv=None) -> None:
    p = Arguments("Crops of a photo and truncated captions as models see them; examples of triplets.")
    p.add_argument("--checkpoint", type=filename, required=True, nargs="+", metavar="RUN",
                   help="run folders or checkpoint files")
    model_arguments(p)
    p.add_argument("--image", type=filename, metavar="FILE", help="a photo")
    p.add_argument("--boxes", nargs="+", metavar="X,Y,W,H", help="crops of it, whole pixels")
    p.add_argument("--captions", nargs="+", metavar="TEXT", help="of the whole photo, then of each box")
    p.add_argument("--manifest", type=filename, default="runs/vg/manifest.json", help="what the examples are taken from")
    p.add_argument("--examples", type=up_to(100), metavar="N", help="draw so many triplets of the manifest instead")
    p.add_argument("--threshold", type=number, default=30, metavar="PERCENT", help="of the examples")
    p.add_argument("--vg", type=filename, help="folder of the manifest's photos (default: the one it was made of)")
    p.add_argument("--seed", type=natural, default=0, help="draws the examples")
    p.add_argument("--output", type=filename, default="runs/vg/crops.png", metavar="FILE.png", help="picture to write")
    cli.run(p.prog, show, p.parse_args(argv))


def show(opt) -> None:
    if (opt.image is None) == (opt.examples is None):
        raise InputError("give either --image FILE with --boxes and --captions, or --examples N with --manifest")
    if opt.image and not os.path.isfile(opt.image):
        raise InputError(f"--image {opt.image}: there is no such file; give a photo")
    picture_file(opt.output, [opt.image or opt.manifest])
    if opt.image:
        output(numbers_of(opt.output), holds_keys("image", "boxes", "captions", "models"), [opt.image])
    (own_photo if opt.image else examples)(opt, encoders(opt))


def numbers_of(picture: str) -> str:
    """The file of numbers beside a picture."""
    return os.path.splitext(picture)[0] + ".json"


if __name__ == "__main__":
    main()
