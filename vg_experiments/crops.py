"""`pmrl` Fig. 1 and Table 3 on a photo of your own; triplets of `ucmr` Fig. 3.

    python -m vg_experiments.crops --checkpoint RUN [RUN ...] --image photo.jpg \\
        --boxes 10,20,90,80 150,40,60,70 --captions "a man on a moped on a dirt road" "a man" "a dirt road"
    python -m vg_experiments.crops --checkpoint RUN --manifest runs/vg/manifest.json --examples 4 --threshold 30

The first caption describes the whole photo, the others the boxes x,y,width,height in their order. For every caption
and its crop the table gives log det Sigma in nats (`pmrl` eq. 18; "-": a point), and for every model the rank of the
caption for the crop and of the crop for the caption. The picture shows every crop with the captions by their scores.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import re
import textwrap

import numpy as np
from PIL import ImageDraw

import cli
import metrics
from cli import check, filename, number, up_to
from data import shorten
from evaluation import report
from evaluation.pictures import LETTERS, THUMBNAIL, Cell, PhotoRow, draw_rows, picture_file, wrapped
from images import read_photo
from losses import Embedding, uncertainty
from vg_experiments.encoding import CropEncoder, build_encoders, build_parser, photo_path
from vg_experiments.prepare import clip_box, load_manifest
from vocab import tokenize

COLOURS = {"c": "black", "b": "blue", "a": "red"}
ACROSS = 4                            # photos in a line of the picture


def read_box(text: str, width: int, height: int) -> tuple:
    """Read "x,y,width,height" and clip it to the photo. Raises InputError."""
    whole = re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9}){3}", text)
    box = whole and clip_box(tuple(map(int, text.split(","))), width, height)
    check(box, f"--boxes {text}: give x,y,width,height in whole pixels, such as 10,20,90,80, of a part of the photo, "
               f"which has {width} x {height} pixels")
    return box


def format_uncertainties(e: Embedding) -> list[str]:
    """log det Sigma of N items, "-" of points."""
    return ["-"] * len(e.mean) if e.log_var is None else [f"{x:.2f}" for x in uncertainty(e).tolist()]


def print_unknown(name: str, model: CropEncoder, texts: list[str]) -> None:
    """Print a note on texts without a word that the model knows."""
    tokens = model.vocab.encode_captions([tokenize(text) for text in texts])
    unknown = [shorten(text) for text, no_word in zip(texts, tokens.unknown) if no_word]
    if unknown:
        print(f"note: {name} knows no word of '{unknown[0]}' ({len(unknown)} of {len(texts)} "
              "captions) and reads it as unknown words")


def show_photo(opt, models: dict[str, CropEncoder]) -> None:
    """Print the table of --image, --boxes and --captions, and draw the picture."""
    boxes, texts = opt.boxes or [], opt.captions or []
    check(len(texts) == len(boxes) + 1 and boxes,
          f"--boxes has {len(boxes)} and --captions {len(texts)}; give at least one box, one caption for the whole "
          "photo, and one for each box")
    photo = read_photo(opt.image)
    boxes = [(0, 0, *photo.size), *(read_box(text, *photo.size) for text in boxes)]
    lines, rows = [[] for _ in texts], [PhotoRow(text, "", []) for text in texts]
    for name, model in models.items():
        images = model.embed_crops([(opt.image, box) for box in boxes])
        captions = model.embed_captions(texts, any_words=False)
        print_unknown(name, model, texts)
        scores = model.similarity(images, captions).detach().float().cpu().numpy()                  # (K, K)
        of_crops, of_captions = format_uncertainties(images), format_uncertainties(captions)
        for k, ((x, y, w, h), *places) in enumerate(zip(boxes, *metrics.ranks(scores, range(len(texts))))):
            lines[k].append((textwrap.shorten(texts[k], 60, placeholder="..."),
                             [f"{x},{y},{w},{h}", name, of_captions[k], of_crops[k],
                              *(f"{place + 1} of {len(texts)}" for place in places)]))
            order = np.argsort(-scores[k], kind="stable")
            answers = [f"{scores[k, m]:.2f} {texts[m]} [{of_captions[m]}]" for m in order]
            label = "\n".join(wrapped(line, LETTERS) for line in (f"{name} [{of_crops[k]}]", *answers))
            rows[k].cells.append(Cell(photo.crop((x, y, x + w, y + h)), label))
    print(report.text(("", [("", ["crop", "model"]), ("log det Sigma", ["caption", "crop"]),
                            ("rank for each other", ["caption", "crop"])], sum(lines, []))))
    draw_rows(opt.output, "crops, and captions by their score [log det Sigma]", rows, ACROSS)
    print(f"picture in {opt.output}")


def show_examples(opt, models: dict[str, CropEncoder]) -> None:
    """Draw --examples triplets: boxes, captions, and each model's uncertainties."""
    manifest = load_manifest(opt.manifest, opt.vg)
    triplets = manifest["triplets"].get(f"{opt.threshold:g}")
    check(triplets, f"--threshold {opt.threshold:g}: {opt.manifest} has triplets at {', '.join(manifest['triplets'])} "
                    "percent; name one of them")
    cells = []
    for t in triplets[:opt.examples]:                       # they stand in random order
        path = photo_path(manifest, t["image"])
        lines = [f"{letter.upper()} ({COLOURS[letter]}): {t[f'caption_{letter}']}" for letter in "abc"]
        for name, model in models.items():
            crops = format_uncertainties(model.embed_crops([(path, tuple(t[letter])) for letter in "ac"]))
            captions = format_uncertainties(model.embed_captions([t["caption_a"], t["caption_c"]]))
            lines += [f"{name}, crops: A {crops[0]}, C {crops[1]}", f"captions: A {captions[0]}, C {captions[1]}"]
        photo = read_photo(path)
        scale = min(1, THUMBNAIL / max(photo.size))
        photo = photo.resize([round(scale * side) for side in photo.size])
        for letter, colour in COLOURS.items():
            x, y, w, h = (scale * number for number in t[letter])
            ImageDraw.Draw(photo).rectangle((x, y, x + w - 1, y + h - 1), outline=colour, width=2)
        cells.append(Cell(photo, "\n".join(wrapped(line, LETTERS) for line in lines)))
    draw_rows(opt.output, f"triplets at {opt.threshold:g} percent", [PhotoRow("", "", cells)], ACROSS)
    print(f"{len(cells)} triplets at {opt.threshold:g} percent in {opt.output}")


def show_crops(opt) -> None:
    """Run the command. Raises InputError if the options do not fit each other."""
    check((opt.image is None) != (opt.examples is None),
          "give either --image FILE with --boxes and --captions, or --examples N with --manifest")
    picture_file(opt.output, [opt.image or opt.manifest], opt.overwrite)
    (show_photo if opt.image else show_examples)(opt, build_encoders(opt))


def main(argv=None) -> None:
    p = build_parser("Show how models see crops of a photo and truncated captions, or draw examples of a manifest.")
    add = p.add_argument
    add("--image", type=filename, metavar="FILE", help="photo to crop")
    add("--boxes", nargs="+", metavar="X,Y,W,H", help="crops of the photo, in whole pixels")
    add("--captions", nargs="+", metavar="TEXT", help="one caption of the whole photo, then one per box")
    add("--examples", type=up_to(100), metavar="N", help="instead of a photo, draw N triplets of the manifest")
    add("--threshold", type=number, default=30, metavar="PERCENT", help="area threshold of the examples")
    add("--output", type=filename, default="runs/vg/crops.png", metavar="FILE.png", help="picture to write")
    add("--overwrite", action="store_true", help="replace an existing file")
    cli.run(p.prog, show_crops, p.parse_args(argv))


if __name__ == "__main__":
    main()
