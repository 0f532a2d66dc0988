"""`pmrl` Fig. 1 and Table 3 on a photo of your own; triplets of `ucmr` Fig. 3.

    python -m vg_experiments.crops --checkpoint RUN [RUN ...] --image photo.jpg \\
        --boxes 10,20,90,80 150,40,60,70 \\
        --captions "a man on a moped on a dirt road" "a man" "a dirt road"
    python -m vg_experiments.crops --checkpoint RUN --manifest runs/vg/manifest.json \\
        --examples 4 --threshold 30

The first caption describes the whole photo, the others the boxes x,y,width,height in their order.
For every caption and its crop the table gives log det Sigma in nats (`pmrl` eq. 18; "-": a point),
and for every model the rank of the caption for the crop and of the crop for the caption. The
picture shows every crop with the captions by their scores.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import re
import textwrap

import numpy as np
from PIL import Image, ImageDraw

import metrics
import utils
from data import shorten
from evaluation import report
from evaluation.pictures import (
    LETTERS,
    THUMBNAIL,
    Cell,
    PhotoRow,
    draw_rows,
    picture_file,
    wrapped,
)
from images import read_photo
from losses import Embedding, uncertainty
from utils import InputError, filename, number, up_to
from vg_experiments.encoding import CropEncoder, build_encoders, build_parser, photo_path
from vg_experiments.prepare import clip_box, load_manifest
from vocab import tokenize

BOX_COLORS = {"c": "black", "b": "blue", "a": "red"}
PHOTOS_ACROSS = 4  # in a line of the picture
CAPTION_CHARACTERS = 60  # of a caption in the table
BOX_FORM = re.compile(r"-?[0-9]{1,9}(,-?[0-9]{1,9}){3}")


def read_box(text: str, width: int, height: int) -> tuple:
    """Read "x,y,width,height" and clip it to the photo. Raises InputError."""
    box = None
    if BOX_FORM.fullmatch(text):
        numbers = tuple(int(side) for side in text.split(","))
        box = clip_box(numbers, width, height)
    if not box:
        raise InputError(
            f"--boxes {text}: give x,y,width,height in whole pixels, such as 10,20,90,80, of a "
            f"part of the photo, which has {width} x {height} pixels"
        )
    return box


def format_uncertainties(e: Embedding) -> list[str]:
    """Format log det Sigma of N items, "-" of points."""
    if e.log_var is None:
        return ["-"] * len(e.mean)
    return [f"{x:.2f}" for x in uncertainty(e).tolist()]


def print_unknown(name: str, model: CropEncoder, texts: list[str]) -> None:
    """Print a note on texts without a word that the model knows."""
    tokens = model.vocab.encode_captions([tokenize(text) for text in texts])
    unknown = [shorten(text) for text, no_word in zip(texts, tokens.unknown) if no_word]
    if unknown:
        print(
            f"note: {name} knows no word of '{unknown[0]}' ({len(unknown)} of {len(texts)} "
            "captions) and reads it as unknown words"
        )


def show_photo(opt, models: dict[str, CropEncoder]) -> None:
    """Print the table of --image, --boxes and --captions, and draw the picture."""
    boxes = opt.boxes or []
    texts = opt.captions or []
    if not boxes or len(texts) != len(boxes) + 1:
        raise InputError(
            f"--boxes has {len(boxes)} and --captions {len(texts)}; give at least one box, one "
            "caption for the whole photo, and one for each box"
        )
    photo = read_photo(opt.image)
    boxes = [(0, 0, *photo.size), *(read_box(text, *photo.size) for text in boxes)]

    lines_of = [[] for _ in texts]  # of the table, of each caption
    rows = [PhotoRow(text, "", []) for text in texts]
    for name, model in models.items():
        images = model.embed_crops([(opt.image, box) for box in boxes])
        captions = model.embed_captions(texts, any_words=False)
        print_unknown(name, model, texts)
        scores = model.similarity(images, captions).detach().float().cpu().numpy()  # (K, K)
        of_crops = format_uncertainties(images)
        of_captions = format_uncertainties(captions)
        caption_ranks, crop_ranks = metrics.ranks(scores, range(len(texts)))

        for k, (x, y, w, h) in enumerate(boxes):
            cells = [
                f"{x},{y},{w},{h}",
                name,
                of_captions[k],
                of_crops[k],
                f"{caption_ranks[k] + 1} of {len(texts)}",
                f"{crop_ranks[k] + 1} of {len(texts)}",
            ]
            caption = textwrap.shorten(texts[k], CAPTION_CHARACTERS, placeholder="...")
            lines_of[k].append((caption, cells))

            label = [f"{name} [{of_crops[k]}]"]
            for m in np.argsort(-scores[k], kind="stable"):
                label.append(f"{scores[k, m]:.2f} {texts[m]} [{of_captions[m]}]")
            crop = photo.crop((x, y, x + w, y + h))
            rows[k].cells.append(Cell(crop, wrap_lines(label)))

    heads = [
        ("", ["crop", "model"]),
        ("log det Sigma", ["caption", "crop"]),
        ("rank for each other", ["caption", "crop"]),
    ]
    lines = []
    for of_caption in lines_of:
        lines += of_caption
    print(report.text(("", heads, lines)))
    title = "crops, and captions by their score [log det Sigma]"
    draw_rows(opt.output, title, rows, PHOTOS_ACROSS)
    print(f"picture in {opt.output}")


def wrap_lines(lines: list[str]) -> str:
    """Wrap lines to the width of a picture."""
    return "\n".join(wrapped(line, LETTERS) for line in lines)


def show_examples(opt, models: dict[str, CropEncoder]) -> None:
    """Draw --examples triplets: boxes, captions, and each model's uncertainties."""
    manifest = load_manifest(opt.manifest, opt.vg)
    triplets = manifest["triplets"].get(f"{opt.threshold:g}")
    if not triplets:
        raise InputError(
            f"--threshold {opt.threshold:g}: {opt.manifest} has triplets at "
            f"{', '.join(manifest['triplets'])} percent; name one of them"
        )

    cells = []
    for triplet in triplets[: opt.examples]:  # they stand in random order
        path = photo_path(manifest, triplet["image"])
        lines = []
        for letter in "abc":
            caption = triplet[f"caption_{letter}"]
            lines.append(f"{letter.upper()} ({BOX_COLORS[letter]}): {caption}")
        for name, model in models.items():
            crops = model.embed_crops([(path, tuple(triplet[letter])) for letter in "ac"])
            crop_a, crop_c = format_uncertainties(crops)
            captions = model.embed_captions([triplet["caption_a"], triplet["caption_c"]])
            caption_a, caption_c = format_uncertainties(captions)
            lines.append(f"{name}, crops: A {crop_a}, C {crop_c}")
            lines.append(f"captions: A {caption_a}, C {caption_c}")
        cells.append(Cell(draw_boxes_on(read_photo(path), triplet), wrap_lines(lines)))

    title = f"triplets at {opt.threshold:g} percent"
    draw_rows(opt.output, title, [PhotoRow("", "", cells)], PHOTOS_ACROSS)
    print(f"{len(cells)} triplets at {opt.threshold:g} percent in {opt.output}")


def draw_boxes_on(photo: Image.Image, triplet: dict) -> Image.Image:
    """Return a small copy of a photo with the boxes A, B and C of a triplet."""
    scale = min(1, THUMBNAIL / max(photo.size))
    photo = photo.resize([round(scale * side) for side in photo.size])
    pen = ImageDraw.Draw(photo)
    for letter, color in BOX_COLORS.items():
        x, y, w, h = (scale * number for number in triplet[letter])
        pen.rectangle((x, y, x + w - 1, y + h - 1), outline=color, width=2)
    return photo


def show_crops(opt) -> None:
    """Run the command. Raises InputError if the options do not fit each other."""
    if (opt.image is None) == (opt.examples is None):
        raise InputError(
            "give either --image FILE with --boxes and --captions, or --examples N with --manifest"
        )
    picture_file(opt.output, [opt.image or opt.manifest], opt.overwrite)
    encoders = build_encoders(opt)
    if opt.image:
        show_photo(opt, encoders)
    else:
        show_examples(opt, encoders)


def main(argv=None) -> None:
    p = build_parser(
        "Show how models see crops of a photo and truncated captions, or draw examples of a "
        "manifest."
    )
    add = p.add_argument
    add("--image", type=filename, metavar="FILE", help="photo to crop")
    add("--boxes", nargs="+", metavar="X,Y,W,H", help="crops of the photo, in whole pixels")
    add(
        "--captions",
        nargs="+",
        metavar="TEXT",
        help="one caption of the whole photo, then one per box",
    )
    add(
        "--examples",
        type=up_to(100),
        metavar="N",
        help="instead of a photo, draw N triplets of the manifest",
    )
    add(
        "--threshold",
        type=number,
        default=30,
        metavar="PERCENT",
        help="area threshold of the examples",
    )
    add(
        "--output",
        type=filename,
        default="runs/vg/crops.png",
        metavar="FILE.png",
        help="picture to write",
    )
    add("--overwrite", action="store_true", help="replace an existing file")
    utils.run(p.prog, show_crops, p.parse_args(argv))


if __name__ == "__main__":
    main()
