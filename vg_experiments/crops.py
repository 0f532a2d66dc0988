"""`pmrl` Fig. 1 and Table 3 on a photo of your own; triplets of `ucmr` Fig. 3.

    python -m vg_experiments.crops --checkpoint RUN [RUN ...] --image photo.jpg \\
        --boxes 10,20,90,80 150,40,60,70 \\
        --captions "a man on a moped on a dirt road" "a man" "a dirt road"
    python -m vg_experiments.crops --checkpoint RUN --manifest runs/vg/manifest.json \\
        --examples 4 --threshold 30

The first caption describes the whole photo, the others the boxes x,y,width,height in their order.
For every caption and its crop the table gives log det Sigma in nats (`pmrl` eq. 18; "-": a point)
and its rank among the captions or the crops, the most uncertain first, and for every model the rank
of the caption for the crop and of the crop for the caption. The picture shows every crop with the
captions by their scores.

With --examples all triplets of the manifest at the threshold are embedded, and an item drawn is
compared with all of them: "more uncertain than 80% of the crops" counts crops A and C of every
triplet, and a caption is compared with captions A and C.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import re
import textwrap
from typing import NamedTuple

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
    percent_smaller,
    picture_file,
    wrapped,
)
from images import read_photo
from losses import Embedding
from utils import InputError, filename, number, up_to
from vg_experiments.encoding import (
    CropEncoder,
    build_encoders,
    build_parser,
    leave_out_resized,
    list_cases,
    list_sides,
    measure,
    photo_path,
)
from vg_experiments.prepare import clip_box, load_manifest
from vocab import tokenize

BOX_COLORS = {"c": "black", "b": "blue", "a": "red"}
PHOTOS_ACROSS = 4  # in a line of the picture
CAPTION_CHARACTERS = 60  # of a caption in the table
LABEL_LINES = 8  # a text above a crop may take
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
    return [f"{x:.2f}" for x in measure(e)]


def rank_by_uncertainty(e: Embedding) -> list[int]:
    """Rank N items by their uncertainty, 1 the most uncertain; [] for points.

    Equal items share the better rank.
    """
    if e.log_var is None:
        return []
    values = measure(e)
    return [int((values > value).sum()) + 1 for value in values]


def format_rank(ranks: list[int], k: int) -> str:
    """Format the rank of item k for the table, "-" of a point."""
    if not ranks:
        return "-"
    return f"{ranks[k]} of {len(ranks)}"


def mark_rank(ranks: list[int], k: int) -> str:
    """Format the rank of item k for the picture, "" of a point."""
    if not ranks:
        return ""
    return f" [{ranks[k]}]"


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
        uncertain_crops = rank_by_uncertainty(images)
        uncertain_captions = rank_by_uncertainty(captions)
        caption_ranks, crop_ranks = metrics.ranks(scores, range(len(texts)))

        for k, (x, y, w, h) in enumerate(boxes):
            cells = [
                f"{x},{y},{w},{h}",
                name,
                of_captions[k],
                of_crops[k],
                format_rank(uncertain_captions, k),
                format_rank(uncertain_crops, k),
                f"{caption_ranks[k] + 1} of {len(texts)}",
                f"{crop_ranks[k] + 1} of {len(texts)}",
            ]
            caption = textwrap.shorten(texts[k], CAPTION_CHARACTERS, placeholder="...")
            lines_of[k].append((caption, cells))

            label = [name + mark_rank(uncertain_crops, k)]
            for m in np.argsort(-scores[k], kind="stable"):
                caption_rank = mark_rank(uncertain_captions, m)
                label.append(f"{scores[k, m]:.2f} {texts[m]}{caption_rank}")
            crop = photo.crop((x, y, x + w, y + h))
            rows[k].cells.append(Cell(crop, wrap_lines(label)))

    heads = [
        ("", ["crop", "model"]),
        ("log det Sigma", ["caption", "crop"]),
        ("uncertainty rank", ["caption", "crop"]),
        ("rank for each other", ["caption", "crop"]),
    ]
    lines = []
    for of_caption in lines_of:
        lines += of_caption
    print(report.text(("uncertainty rank 1: the most uncertain", heads, lines)))
    title = "scores of captions for crops [rank by uncertainty, 1: most uncertain]"
    draw_rows(opt.output, title, rows, min(PHOTOS_ACROSS, len(models)))
    print(f"picture in {opt.output}")


def wrap_lines(lines: list[str]) -> str:
    """Wrap lines to the width of a photo in the picture."""
    return "\n".join(wrapped(line, LETTERS, LABEL_LINES) for line in lines)


class Comparison(NamedTuple):
    """Uncertainties of crops or of captions A and C of n triplets."""

    values: np.ndarray  # log det Sigma in nats, of A and of C (2, n)
    percents: np.ndarray  # of all the others, A and C, that are smaller (2, n)


def compare_uncertainties(embedding: Embedding) -> Comparison:
    """Compare the uncertainties of all A, then all C, with each other."""
    values = measure(embedding)
    percents = percent_smaller(values)
    return Comparison(values.reshape(2, -1), percents.reshape(2, -1))


def compare_triplets(model: CropEncoder, manifest: dict) -> dict[str, Comparison]:
    """Compare crops A and C of all triplets with each other, and captions A and C.

    Returns {"captions" | "crops": Comparison}, without a side of points.
    """
    boxes, texts = list_sides(list_cases(manifest))  # all A, then all C
    compared = {}
    if model.model.text_tower.gaussian:
        compared["captions"] = compare_uncertainties(model.embed_captions(texts))
    if model.model.image_tower.gaussian:
        compared["crops"] = compare_uncertainties(model.embed_crops(boxes))
    return compared


def label_triplet(name: str, compared: dict[str, Comparison], k: int) -> list[str]:
    """Say in lines of the picture how uncertain a model is of triplet k."""
    if not compared:
        return [f"{name}: points, without uncertainty"]
    lines = [f"{name}, more uncertain than"]
    for side, found in compared.items():
        a, c = found.percents[:, k]
        lines.append(f"A {a:.0f}%, C {c:.0f}% of the {side}")
    return lines


def tabulate_triplet(
    name: str, compared: dict[str, Comparison], k: int, triplet: dict
) -> list[tuple]:
    """Make a model's two rows of triplet k in the table: of A and of C."""
    rows = []
    for item, letter in enumerate("ac"):
        values = []
        ranks = []
        for side in ("captions", "crops"):
            value = "-"
            rank = "-"
            if side in compared:
                value = f"{compared[side].values[item, k]:.2f}"
                rank = f"{compared[side].percents[item, k]:.0f}% of the {side}"
            values.append(value)
            ranks.append(rank)
        label = f"{k + 1} {letter.upper()}: {triplet[f'caption_{letter}']}"
        label = textwrap.shorten(label, CAPTION_CHARACTERS, placeholder="...")
        rows.append((label, [name, *values, *ranks]))
    return rows


def show_examples(opt, models: dict[str, CropEncoder]) -> None:
    """Draw --examples triplets: boxes, captions, and how uncertain each model is of them.

    The table has log det Sigma, too.
    """
    manifest = leave_out_resized(load_manifest(opt.manifest, opt.vg))
    percent = f"{opt.threshold:g}"
    triplets = manifest["triplets"].get(percent)
    if not triplets:
        raise InputError(
            f"--threshold {percent}: {opt.manifest} has triplets at "
            f"{', '.join(manifest['triplets'])} percent; name one of them"
        )
    at_threshold = {**manifest, "triplets": {percent: triplets}}
    compared = {name: compare_triplets(model, at_threshold) for name, model in models.items()}

    cells = []
    rows = []  # of the table
    for k, triplet in enumerate(triplets[: opt.examples]):  # they stand in random order
        lines = []
        for letter in "abc":
            caption = triplet[f"caption_{letter}"]
            lines.append(f"{letter.upper()} ({BOX_COLORS[letter]}): {caption}")
        for name, sides in compared.items():
            lines += label_triplet(name, sides, k)
            rows += tabulate_triplet(name, sides, k, triplet)
        photo = read_photo(photo_path(manifest, triplet["image"]))
        cells.append(Cell(draw_boxes_on(photo, triplet), wrap_lines(lines)))

    heads = [
        ("", ["model"]),
        ("log det Sigma", ["caption", "crop"]),
        ("more uncertain than", ["caption", "crop"]),
    ]
    print(report.text(("", heads, rows)))
    title = f"{len(cells)} of {len(triplets):,} triplets at {percent} percent"
    draw_rows(opt.output, title, [PhotoRow("", "", cells)], min(PHOTOS_ACROSS, len(cells)))
    print(f"{title}, ranked among all of them; picture in {opt.output}")


def draw_boxes_on(photo: Image.Image, triplet: dict) -> Image.Image:
    """Return a small copy of a photo with the boxes A, B and C of a triplet."""
    scale = min(1, THUMBNAIL / max(photo.size))
    photo = photo.resize([round(scale * side) for side in photo.size])
    pen = ImageDraw.Draw(photo)
    for letter, color in BOX_COLORS.items():
        x, y, w, h = (scale * number for number in triplet[letter])
        # with white on both sides, as black and blue are not seen on a dark photo
        pen.rectangle((x - 2, y - 2, x + w + 1, y + h + 1), outline="white", width=6)
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
        help="instead of a photo, draw N triplets of the manifest, with ranks among all of them",
    )
    add(
        "--threshold",
        type=number,
        default=30,
        metavar="PERCENT",
        help="area threshold of the triplets, one of the manifest",
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
