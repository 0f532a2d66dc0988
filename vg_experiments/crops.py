"""`pmrl` Fig. 1 and Table 3 on a photo of your own, and example triplets of a manifest as in `ucmr` Fig. 3.

    python -m vg_experiments.crops --checkpoint RUN [RUN ...] --image photo.jpg \\
        --boxes 10,20,90,80 150,40,60,70 --captions "a man on a moped on a dirt road" "a man" "a dirt road"
    python -m vg_experiments.crops --checkpoint RUN --manifest runs/vg/manifest.json --examples 4 --threshold 30

The first caption describes the whole photo, the others the boxes x,y,width,height in their order. For every caption
and its crop the table gives log det Sigma in nats (`pmrl` eq. 18; "-": a point), and for every model the rank of the
caption for the crop and of the crop for the caption. The picture shows the crops and, in one column per model, the
captions in the order of their scores. Give a Gaussian and a point model to see them side by side. A JSON file beside
the picture holds the same numbers.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import re
import textwrap

import numpy as np
from matplotlib.patches import Rectangle

import cli
from cli import Arguments, check, filename, natural, number, up_to
from evaluation import report
from evaluation.pictures import drawing, picture_file
from files import output, save_json
from images import read_photo
from losses import Embedding, uncertainty
from vg_experiments.encoding import Encoder, build_encoders, model_arguments, photo_path
from vg_experiments.prepare import random_order, read_manifest

COLOURS = {"a": "red", "b": "blue", "c": "black"}


def read_boxes(texts: list[str], width: int, height: int) -> list[tuple]:
    """["x,y,width,height"] -> boxes clipped to the photo. Raises InputError for one that is malformed or outside."""
    boxes = []
    for text in texts:
        parts = text.split(",")
        check(len(parts) == 4 and all(re.fullmatch(r"\s*-?[0-9]{1,9}\s*", part) for part in parts),
              f"--boxes {text}: a box is x,y,width,height in whole pixels, such as 10,20,90,80")
        x, y, w, h = map(int, parts)
        low, high = (max(x, 0), max(y, 0)), (min(x + w, width), min(y + h, height))
        check(high[0] > low[0] and high[1] > low[1],
              f"--boxes {text}: nothing of it lies in the photo of {width} x {height} pixels; give x,y,width,height of "
              "a part of it")
        boxes.append((*low, high[0] - low[0], high[1] - low[1]))
    return boxes


def list_uncertainties(e: Embedding) -> list[float] | None:
    """The uncertainties of N items, None of points."""
    return None if e.log_var is None else uncertainty(e).tolist()


def score_crops(model: Encoder, path: str, boxes: list[tuple], texts: list[str]) -> dict:
    """Scores and uncertainties of K crops of a photo and as many captions by a model: "scores" (crops, captions),
    "crop" and "caption" (K,) or None. Raises InputError for a caption without a known word."""
    captions = model.captions(texts, any_words=False)
    images = model.crops([(path, box) for box in boxes])
    scores = model.similarity(images, captions).detach().float()
    return {"scores": scores.tolist(), "crop": list_uncertainties(images), "caption": list_uncertainties(captions)}


def rank_diagonal(scores: np.ndarray) -> np.ndarray:
    """The rank, from 1, of the item with the number of the query, for each row of scores (K, K) -> (K,). Ties count
    against it."""
    return (scores >= scores.diagonal()[:, None]).sum(1)


def tabulate(texts: list[str], boxes: list[tuple], results: dict[str, dict]) -> tuple:
    """Table 3 with ranks (`evaluation.report`), one row per caption and model. results: {model: `score_crops`}."""
    rows = []
    for k, (text, box) in enumerate(zip(texts, boxes)):
        for name, entry in results.items():
            scores = np.array(entry["scores"])
            unsure = ["-" if entry[kind] is None else f"{entry[kind][k]:.2f}" for kind in ("caption", "crop")]
            ranks = (f"{rank_diagonal(x)[k]} of {len(texts)}" for x in (scores, scores.T))
            rows.append((textwrap.shorten(text, 60, placeholder="..."),
                         [",".join(map(str, box)), name, *unsure, *ranks]))
    return "", [("", ["crop", "model"]), ("log det Sigma", ["caption", "crop"]),
                ("rank for each other", ["caption", "crop"])], rows


def draw(path: str, boxes: list[tuple], texts: list[str], results: dict[str, dict], target: str) -> None:
    """One row per crop and one column per model, with the captions from the best to the worst; the crop's own is
    green."""
    photo = read_photo(path)
    size = 3 + 4.5 * len(results), 2.4 * len(boxes)
    with drawing(target, len(boxes), 1 + len(results), size, tight=True) as (figure, axes):
        for k, (row, (x, y, w, h)) in enumerate(zip(axes, boxes)):
            row[0].imshow(np.asarray(photo.crop((x, y, x + w, y + h))))
            for axis in row:
                axis.axis("off")
            for axis, (name, entry) in zip(row[1:], results.items()):
                draw_ranking(axis, name, entry, texts, k)
        figure.suptitle("captions from the best to the worst for the crop, each with [its log det Sigma] and its "
                        "score; green: the crop's own", fontsize=9)


def draw_ranking(axis, name: str, entry: dict, texts: list[str], k: int) -> None:
    """Write the captions in the order of their scores for crop k."""
    unsure = "" if entry["crop"] is None else f"; log det Sigma of the crop {entry['crop'][k]:.1f}"
    axis.set_title(f"{name}{unsure}", fontsize=9, loc="left")
    y, scores = 0.95, np.array(entry["scores"])[k]
    for place, m in enumerate(np.argsort(-scores, kind="stable").tolist()):
        unsure = "" if entry["caption"] is None else f" [{entry['caption'][m]:.1f}]"
        wrapped = textwrap.wrap(f"{place + 1}. {texts[m]}{unsure}  {scores[m]:.2f}", 62, subsequent_indent="    ")
        colour, weight = ("green", "bold") if m == k else ("black", "normal")
        axis.text(0, y, "\n".join(wrapped), va="top", fontsize=8, color=colour, weight=weight, transform=axis.transAxes)
        y -= 0.115 * len(wrapped) + 0.03


def draw_triplet(axis, triplet: dict, path: str, models: dict[str, Encoder]) -> None:
    """Draw one triplet: the whole image with the boxes A, B and C, its captions, and the models' uncertainties of A and
    C."""
    axis.imshow(np.asarray(read_photo(path)))
    axis.axis("off")
    lines = []
    for letter, colour in COLOURS.items():
        x, y, w, h = triplet[letter]
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), w, h, fill=False, edgecolor=colour, linewidth=2,
                                 linestyle="--" if letter == "c" else "-"))
        lines.append(f"{letter.upper()} ({colour}): {triplet[f'caption_{letter}']}")
    for name, model in models.items():
        images = model.crops([(path, tuple(triplet[letter])) for letter in "ac"])
        captions = model.captions([triplet["caption_a"], triplet["caption_c"]])
        for kind, values in (("crops", list_uncertainties(images)), ("captions", list_uncertainties(captions))):
            if values:
                lines.append(f"{name}, {kind}: A {values[0]:.1f}, C {values[1]:.1f}")
    wrapped = (textwrap.fill(line, 48, subsequent_indent="   ") for line in lines)
    axis.text(0, -0.03, "\n".join(wrapped), va="top", fontsize=8, transform=axis.transAxes)


def show_photo(opt, models: dict[str, Encoder]) -> None:
    """Table, picture and numbers for --image, --boxes and --captions."""
    boxes, texts = opt.boxes or [], opt.captions or []
    check(len(texts) == len(boxes) + 1 and boxes,
          f"--boxes has {len(boxes)} and --captions {len(texts)}; give at least one box, one caption for the whole "
          "photo, and one for each box")
    width, height = read_photo(opt.image).size
    boxes = [(0, 0, width, height), *read_boxes(boxes, width, height)]
    results = {name: score_crops(model, opt.image, boxes, texts) for name, model in models.items()}
    print(report.text(tabulate(texts, boxes, results)))
    draw(opt.image, boxes, texts, results, opt.output)
    numbers = numbers_file(opt.output)
    save_json({"image": opt.image, "boxes": boxes, "captions": texts,
               "models": {name: {**models[name].facts, **result} for name, result in results.items()}}, numbers)
    print(f"picture in {opt.output}, numbers in {numbers}")


def show_examples(opt, models: dict[str, Encoder]) -> None:
    """The picture of example triplets for --manifest and --examples."""
    manifest = read_manifest(opt.manifest, opt.vg)
    triplets = manifest["triplets"].get(f"{opt.threshold:g}")
    check(triplets, f"--threshold {opt.threshold:g}: {opt.manifest} has triplets at {', '.join(manifest['triplets'])} "
                    "percent; name one of them")
    by_image = {t["image"]: t for t in triplets}
    chosen = [by_image[n] for n in random_order(list(by_image), opt.seed, "examples")[:opt.examples]]
    with drawing(opt.output, 1, len(chosen), (4 * len(chosen), 5.2)) as (figure, axes):
        for axis, triplet in zip(axes[0], chosen):
            draw_triplet(axis, triplet, photo_path(manifest, triplet["image"]), models)
        figure.subplots_adjust(0.02, 0.38, 0.98, 0.98, wspace=0.1)
    print(f"{len(chosen)} triplets at {opt.threshold:g} percent in {opt.output}")


def show(opt) -> None:
    """The command. Raises InputError if the options do not fit each other or the photo."""
    check((opt.image is None) != (opt.examples is None),
          "give either --image FILE with --boxes and --captions, or --examples N with --manifest")
    check(not opt.image or os.path.isfile(opt.image), f"--image {opt.image}: there is no such file; give a photo")
    picture_file(opt.output, [opt.image or opt.manifest], opt.overwrite)
    if opt.image:
        output(numbers_file(opt.output), [opt.image], opt.overwrite)
    (show_photo if opt.image else show_examples)(opt, build_encoders(opt))


def numbers_file(picture: str) -> str:
    """The JSON file beside a picture."""
    return os.path.splitext(picture)[0] + ".json"


def main(argv=None) -> None:
    p = Arguments("Show how models see crops of a photo and truncated captions, or draw example triplets.")
    model_arguments(p)
    add = p.add_argument
    add("--image", type=filename, metavar="FILE", help="photo to crop")
    add("--boxes", nargs="+", metavar="X,Y,W,H", help="crops of the photo, in whole pixels")
    add("--captions", nargs="+", metavar="TEXT", help="one caption of the whole photo, then one per box")
    add("--manifest", type=filename, default="runs/vg/manifest.json", help="manifest to take examples from")
    add("--examples", type=up_to(100), metavar="N", help="instead of a photo, draw N triplets of the manifest")
    add("--threshold", type=number, default=30, metavar="PERCENT", help="area threshold of the examples")
    add("--vg", type=filename, help="folder of the manifest's photos (default: the folder that it was made from)")
    add("--seed", type=natural, default=0, help="random seed that draws the examples")
    add("--output", type=filename, default="runs/vg/crops.png", metavar="FILE.png", help="picture to write")
    add("--overwrite", action="store_true", help="replace the file that is there")
    cli.run(p.prog, show, p.parse_args(argv))


if __name__ == "__main__":
    main()
