"""Draws the papers' pictures from any run: `jwae` Tables 1 and 2 (retrieval) and Fig. 2
(neighbours), `ucmr` Fig. 4-7.

    python -m paper_tables.figures --checkpoint runs/A runs/B --photos data/demo/images    # several models side by side
    python -m paper_tables.figures --checkpoint runs/A runs/B --photos FOLDER --neighbours   # most similar images
    python -m paper_tables.figures --checkpoint runs/A --cxc --photos FOLDER         # and Fig. 4-7 of Gaussian models

The upper part of retrieval.png shows captions and the best image of each model (Table 1). The lower
part shows images and the best four captions of each model (Table 2). Matches are green. Items are
chosen at random by --seed, or given by number with --images and --captions. --neighbours also draws
neighbours.png: each row shows an image, and the images that one model finds most similar to it
(Fig. 2). With --cxc or --uncertain, evaluate.py draws uncertain_images.png and
uncertain_captions.png in the folder uncertain/ of each Gaussian run.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os
import textwrap

import numpy as np
import torch

import cli
import evaluate
from checkpoint import Trained
from cli import Arguments, check, data_set, filename, natural, split_name, torch_device, up_to, workers
from evaluation.embeddings import beside_model, split_of, within_modality
from evaluation.encode import encode
from evaluation.pictures import OWN, THUMBNAIL, Cell, Row, draw_rows, drawing, picture_file, show_photo
from losses import Embedding
from show import photos_of

TOP = 4                               # captions per image, as in `jwae` Table 2
NEAREST = 6                           # neighbours per image


def chosen(given: list[int] | None, total: int, count: int, seed: int, what: str) -> list[int]:
    """The rows to draw: those given, or `count` of `total` at random. Raises InputError on a row
    that does not exist.

    `what`: the option that gives them, "images" or "captions", for the message."""
    for n in given or ():
        check(n < total, f"--{what} {n}: the split has {what} 0 to {total - 1}; give numbers of "
                         "these")
    rng = np.random.default_rng(seed)
    return given or rng.choice(total, min(count, total), replace=False).tolist()


@torch.no_grad()
def rankings(opt) -> tuple:
    """What the pictures show: the split, the rows of images, the rows of captions, and for each run
    the best image of each caption, the best captions of each image, the other images that are most
    similar to each image (with --neighbours), and whether it is Gaussian. Raises InputError where
    runs have different splits.
    """
    first, device, found = None, torch_device(opt.device), []
    for path in opt.checkpoint:
        model = Trained(path, device)
        split, similarity = split_of(model, opt.split, opt.data_path, opt.data_name), model.similarity
        if first is None:
            first = split
            rows = chosen(opt.images, len(split.images), opt.count, opt.seed, "images")
            texts = chosen(opt.captions, len(split.captions), opt.count, opt.seed, "captions")
        check(split.captions == first.captions
              and np.array_equal(split.caption_image, first.caption_image),
              f"{path} has {len(split.images)} images and {len(split.captions)} captions of "
              f"{split.source}, {opt.checkpoint[0]} has {len(first.images)} and "
              f"{len(first.captions)} of {first.source}; draw runs on the same split with "
              "--data_name and --split")
        foreign = opt.data_name not in (None, model.options.data_name)
        images, captions = encode(model.model, split, split.encode(model.vocab, known=not foreign), device,
                                  workers=opt.workers)
        found.append((
            similarity(images, captions.rows(texts)).argmax(0).tolist(),
            similarity(images.rows(rows), captions).topk(min(TOP, len(split.captions)))
            .indices.tolist(),
            neighbours(similarity, images, rows) if opt.neighbours else None,
            any(e.log_var is not None for e in (images, captions))))
    return first, rows, texts, found


def neighbours(similarity, images: Embedding, rows: list[int]) -> list[list[int]]:
    """For each image of `rows`, the NEAREST other images, the most similar first."""
    at = torch.tensor(rows, device=images.mean.device)
    similarity, images = within_modality(similarity, images)
    scores = similarity(images.rows(at), images)                                    # (R, N)
    scores.scatter_(1, at[:, None], -torch.inf)
    return scores.topk(min(NEAREST, len(images.mean) - 1)).indices.tolist()


def draw(opt) -> None:
    target = picture_file(opt.output or beside_model(opt.checkpoint[0], "retrieval.png"),
                          opt.checkpoint, opt.overwrite or not opt.output)
    beside = os.path.join(os.path.dirname(target), "neighbours" + os.path.splitext(target)[1])
    if opt.neighbours:
        check(os.path.abspath(picture_file(beside, opt.checkpoint)) != os.path.abspath(target),
              f"--output {target} is where --neighbours draws its picture; name another file")
    split, rows, texts, found = rankings(opt)
    photos = photos_of(split, opt.photos)
    names = ["/".join(os.path.normpath(run).split(os.sep)[-1 if os.path.isdir(run) else -2:])
             for run in opt.checkpoint]
    if opt.neighbours:                # a row for each image and model
        draw_rows(beside, "an image, and the images that a model finds most similar to it", [
            Row(name, "", [Cell(photos.open(shown, THUMBNAIL)) for shown in (image, *near[k])])
            for k, image in enumerate(rows) for name, (_, _, near, _) in zip(names, found)],
            1 + NEAREST)
    lines, across = len(texts) + len(rows), 1 + len(found)
    with drawing(target, lines, across, (3.6 * across, 2.2 * lines), tight=True) as (_, axes):
        for name, axis in zip(["query", *names], axes[0]):
            axis.set_title(name, fontsize=9)
        draw_answers(axes, split, rows, texts, found, photos)
    print(f"{len(texts)} captions with their best image and {len(rows)} images with their best "
          f"{TOP} captions in {target}")
    if opt.neighbours:
        print(f"{len(rows)} images with the images most similar to them in {beside}")
    for run, (*_, gaussian) in zip(opt.checkpoint, found):
        if opt.uncertain or opt.cxc or opt.cxc_path:
            if gaussian:
                draw_uncertain(run, opt)
            else:
                print(f"{run} compares points, which have no uncertainty: no picture of uncertain "
                      "items")


def draw_answers(axes, split, rows, texts, found, photos) -> None:
    """Draw captions with the best image of each run, below them images with their best
    captions."""
    owner = split.caption_image

    def write(axis, y: float, lines: list[tuple[str, bool]]) -> None:
        axis.axis("off")
        for text, own in lines:
            text = textwrap.wrap(text, 46)
            axis.text(0.02, y, "\n".join(text), fontsize=8, va="top",
                      color="green" if own else "black", transform=axis.transAxes)
            y -= 0.085 * len(text) + 0.05

    def show(axis, image: int, own: bool) -> None:
        show_photo(axis, photos.open(image, THUMBNAIL), OWN if own else None, 3)
    for k, caption in enumerate(texts):
        write(axes[k, 0], 0.9, [(split.captions[caption], False)])
        for axis, (best, *_) in zip(axes[k, 1:], found):
            show(axis, best[k], best[k] == owner[caption])
    for k, (image, row) in enumerate(zip(rows, axes[len(texts):])):
        show(row[0], image, False)
        for axis, (_, best, *_) in zip(row[1:], found):
            write(axis, 0.98, [(f"- {split.captions[caption]}", owner[caption] == image)
                               for caption in best[k]])


def draw_uncertain(run: str, opt) -> None:
    """Let evaluate.py draw the most and the least uncertain items with their matches (`ucmr` Fig.
    4-7)."""
    output = beside_model(run, os.path.join("uncertain", "results.json"))
    given = {"checkpoint": run, "output": output, **{
        name: getattr(opt, name) for name in ("split", "device", "workers", "data_path",
                                              "data_name", "photos", "cxc_path")}}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    evaluate.run(evaluate.parse_args([*words, "--uncertainty", "--no-control", "--overwrite",
                                      *["--cxc"] * bool(opt.cxc or opt.cxc_path)]))


def main(argv=None) -> None:
    p = Arguments("Draw examples of retrieval, similar images and uncertain items.")
    add = p.add_argument
    add("--checkpoint", type=filename, required=True, nargs="+", metavar="RUN", help="run folders")
    add("--data_path", type=filename, help="folder that holds the data sets (default: that of the "
        "training)")
    add("--data_name", type=data_set, help="data set (default: that of the training)")
    add("--split", type=split_name, default="test", help="split to draw from")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    add("--workers", type=workers, default=0, help="processes that read photos or large feature "
        "files")
    add("--photos", type=filename, help="folder of the photos that precomputed features belong to")
    add("--images", type=natural, nargs="+", metavar="N", help="images to draw, from 0 (default: "
        "chosen at random)")
    add("--captions", type=natural, nargs="+", metavar="N", help="captions to draw, from 0 "
        "(default: chosen at random)")
    add("--count", type=up_to(100), default=3, help="how many images and captions to choose at "
        "random")
    add("--seed", type=natural, default=0, help="seed of the random choice")
    add("--neighbours", action="store_true", help="also draw the images most similar to each "
        "image, in neighbours.png beside the picture")
    add("--uncertain", action="store_true", help="also draw the most and the least uncertain items "
        "of Gaussian runs")
    add("--cxc", action="store_true", help="as --uncertain, with the matches of Crisscrossed "
        "Captions")
    add("--cxc_path", type=filename, metavar="FOLDER",
        help="folder of the csv files of Crisscrossed Captions (default: DATA_PATH/cxc)")
    add("--output", type=filename, metavar="FILE.png",
        help="picture to write (default: retrieval.png in the first run)")
    add("--overwrite", action="store_true", help="replace the file that is there")
    cli.run(p.prog, draw, p.parse_args(argv))


if __name__ == "__main__":
    main()
