"""Draw the pictures of `jwae` from runs: Tables 1 and 2 (retrieval) and Fig. 2 (neighbours).

    python -m paper_tables.figures --checkpoint runs/A runs/B --photos data/demo/images      # models side by side
    python -m paper_tables.figures --checkpoint runs/A runs/B --photos FOLDER --neighbours   # most similar images

The upper part of retrieval.png shows captions and the best image of each model (Table 1), the lower part images and the
best four captions of each model (Table 2). Matches are green. Items are chosen at random by --seed, or given by number
with --images and --captions. --neighbours also draws neighbours.png: each row shows an image, and the images that one
model finds most similar to it (Fig. 2). evaluate.py --uncertainty --cxc --photos FOLDER draws `ucmr` Fig. 4-7.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import textwrap
from typing import NamedTuple

import numpy as np
import torch

import cli
from checkpoint import Trained
from cli import Arguments, check, data_set, filename, natural, split_name, torch_device, up_to, workers
from data import Photos
from evaluation.embeddings import beside_model, split_of, within_modality
from evaluation.encode import encode
from evaluation.pictures import OWN, THUMBNAIL, Cell, Row, draw_rows, drawing, picture_file, show_photo
from files import below
from losses import Embedding

TOP = 4                               # captions per image, as in `jwae` Table 2
NEAREST = 6                           # neighbours per image


class Answers(NamedTuple):
    """The answers of one model, as rows of images and captions."""
    best_image: list[int]             # of each caption
    best_captions: list[list[int]]    # of each image
    neighbours: list[list[int]]       # of each image, where asked for


def choose_rows(given: list[int] | None, total: int, opt, what: str) -> list[int]:
    """The rows to draw: those given, or some at random. Raises InputError on a row that does not exist. what: the
    option that gives them, for the message."""
    for n in given or ():
        check(n < total, f"--{what} {n}: the split has {what} 0 to {total - 1}; give numbers of these")
    return given or np.random.default_rng(opt.seed).choice(total, min(opt.count, total), replace=False).tolist()


@torch.no_grad()
def rank_items(opt) -> tuple:
    """The split, the rows of images and of captions to draw, and the Answers of each run. Raises InputError where runs
    have different splits."""
    first, device, answers = None, torch_device(opt.device), []
    for path in opt.checkpoint:
        model = Trained(path, device)
        split, similarity = split_of(model, opt.split, opt.data_path, opt.data_name), model.similarity
        if first is None:
            first = split
            rows = choose_rows(opt.images, len(split.images), opt, "images")
            texts = choose_rows(opt.captions, len(split.captions), opt, "captions")
        check(split.captions == first.captions and np.array_equal(split.caption_image, first.caption_image),
              f"{path} has {len(split.images)} images and {len(split.captions)} captions of {split.source}, "
              f"{opt.checkpoint[0]} has {len(first.images)} and {len(first.captions)} of {first.source}; draw runs on "
              "the same split with --data_name and --split")
        foreign = opt.data_name not in (None, model.options.data_name)
        images, captions = encode(model.model, split, split.encode(model.vocab, known=not foreign), device,
                                  workers=opt.workers)
        answers.append(Answers(
            similarity(images, captions.rows(texts)).argmax(0).tolist(),
            similarity(images.rows(rows), captions).topk(min(TOP, len(split.captions))).indices.tolist(),
            find_neighbours(similarity, images, rows) if opt.neighbours else []))
    return first, rows, texts, answers


def find_neighbours(similarity, images: Embedding, rows: list[int]) -> list[list[int]]:
    """For each image of `rows`, the NEAREST other images, the most similar first."""
    queries = torch.tensor(rows, device=images.mean.device)
    similarity, images = within_modality(similarity, images)
    scores = similarity(images.rows(queries), images).scatter(1, queries[:, None], -torch.inf)      # (R, N)
    return scores.topk(min(NEAREST, len(images.mean) - 1)).indices.tolist()


def photos_of(split, folder: str | None) -> Photos:
    """The photo of each image. Raises InputError if precomputed features come without photos."""
    if isinstance(split.images, Photos):
        return split.images
    check(folder and split.photo_names,
          "precomputed features show no picture; give the folder of their photos with --photos, "
          f"and file names in {split.name}_ids.txt beside the features")
    return Photos([below(folder, name, f"the list of photos of {split.source}") for name in split.photo_names])


def draw(opt) -> None:
    """The command: draw the pictures that the options name."""
    target = picture_file(opt.output or beside_model(opt.checkpoint[0], "retrieval.png"),
                          opt.checkpoint, opt.overwrite or not opt.output)
    split, rows, texts, answers = rank_items(opt)
    photos = photos_of(split, opt.photos)
    names = ["/".join(os.path.normpath(run).split(os.sep)[-1 if os.path.isdir(run) else -2:])
             for run in opt.checkpoint]
    if opt.neighbours:                # a row for each image and model
        beside = os.path.join(os.path.dirname(target), "neighbours" + os.path.splitext(target)[1])
        draw_rows(picture_file(beside, [*opt.checkpoint, target]), "an image, and the images most similar to it",
                  [Row(name, "", [Cell(photos.open(i, THUMBNAIL)) for i in (image, *answer.neighbours[k])])
                   for k, image in enumerate(rows) for name, answer in zip(names, answers)], 1 + NEAREST)
        print(f"{len(rows)} images with the images most similar to them in {beside}")
    height, width = len(texts) + len(rows), 1 + len(answers)
    with drawing(target, height, width, (3.6 * width, 2.2 * height), tight=True) as (_, axes):
        for name, axis in zip(["query", *names], axes[0]):
            axis.set_title(name, fontsize=9)
        draw_answers(axes, split, rows, texts, answers, photos)
    print(f"{len(texts)} captions with their best image and {len(rows)} images with their best {TOP} captions in "
          f"{target}")


def draw_answers(axes, split, rows, texts, answers, photos) -> None:
    """Draw captions with the best image of each run, below them images with their best captions."""
    owner = split.caption_image

    def write(axis, y: float, lines: list[tuple[str, bool]]) -> None:
        axis.axis("off")
        for text, own in lines:
            text = textwrap.wrap(text, 46)
            axis.text(0.02, y, "\n".join(text), fontsize=8, va="top", color="green" if own else "black",
                      transform=axis.transAxes)
            y -= 0.085 * len(text) + 0.05
    for k, caption in enumerate(texts):
        write(axes[k, 0], 0.9, [(split.captions[caption], False)])
        for axis, answer in zip(axes[k, 1:], answers):
            image = answer.best_image[k]
            show_photo(axis, photos.open(image, THUMBNAIL), OWN if image == owner[caption] else None, 3)
    for k, (image, row) in enumerate(zip(rows, axes[len(texts):])):
        show_photo(row[0], photos.open(image, THUMBNAIL), None, 3)
        for axis, answer in zip(row[1:], answers):
            write(axis, 0.98, [(f"- {split.captions[caption]}", owner[caption] == image)
                               for caption in answer.best_captions[k]])


def main(argv=None) -> None:
    p = Arguments("Draw examples of retrieval, similar images and uncertain items.")
    add = p.add_argument
    add("--checkpoint", type=filename, required=True, nargs="+", metavar="RUN", help="run folders")
    add("--data_path", type=filename, help="folder that holds the data sets (default: that of the training)")
    add("--data_name", type=data_set, help="data set (default: that of the training)")
    add("--split", type=split_name, default="test", help="split to draw from")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    add("--workers", type=workers, default=0, help="processes that read photos or large feature files")
    add("--photos", type=filename, help="folder of the photos that precomputed features belong to")
    add("--images", type=natural, nargs="+", metavar="N", help="images to draw, from 0 (default: chosen at random)")
    add("--captions", type=natural, nargs="+", metavar="N", help="captions to draw, from 0 (default: chosen at random)")
    add("--count", type=up_to(100), default=3, help="how many images and captions to choose at random")
    add("--seed", type=natural, default=0, help="seed of the random choice")
    add("--neighbours", action="store_true", help="also draw the images most similar to each image")
    add("--output", type=filename, metavar="FILE.png", help="picture to write (default: in the first run)")
    add("--overwrite", action="store_true", help="replace the file that is there")
    cli.run(p.prog, draw, p.parse_args(argv))


if __name__ == "__main__":
    main()
