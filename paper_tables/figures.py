"""Draw retrieval by several models, as `jwae` Tables 1, 2 and Fig. 2.

    python -m paper_tables.figures --checkpoint runs/A runs/B --photos data/demo/images

`jwae` Tables 1 and 2 show models of COCO that answer on Flickr30K: add --data_name f30k.

The picture shows captions with the best image of each model (Table 1; a green frame: its own), images with the best
four captions of each model (Table 2; *: its own), and images with the six that each model finds most similar (Fig. 2).
"""

if __name__ == "__main__":
    import cli

    cli.start()

import os

import numpy as np
import torch

import cli
from checkpoint import Trained
from cli import Arguments, check, data_set, filename, torch_device, up_to
from evaluation.embeddings import check_same_items, embed
from evaluation.pictures import OWN, PhotoRow, draw_rows, locate_photos, photo_cell, picture_file
from losses import within_modality

TOP = 4  # captions of an image, as in `jwae` Table 2
NEAREST = 6  # images beside an image


def draw_answers(opt) -> None:
    """Embed the split by each model and draw the picture."""
    target, models = picture_file(opt.output, opt.checkpoint), {}
    for path in opt.checkpoint:
        name = os.path.basename(os.path.normpath(path))
        check(
            name not in models,
            f"--checkpoint names two runs {name}; give folders of different names",
        )
        models[name] = e = embed(
            [Trained(path, torch_device(opt.device))],
            "test",
            data_path=opt.data_path,
            data_name=opt.data_name,
        )
        check_same_items(e, next(iter(models.values())))
    first, rng = next(iter(models.values())), np.random.default_rng(0)
    photos, texts, rows = locate_photos(first, opt.photos), first.texts, []
    check(photos, "the picture shows photos; name their folder with --photos")
    for m in rng.choice(len(texts), min(opt.count, len(texts)), replace=False):
        best = {name: e.scores[:, m].argmax() for name, e in models.items()}
        cells = [
            photo_cell(photos, i, name, frame=OWN if i == first.caption_image[m] else None)
            for name, i in best.items()
        ]
        rows.append(PhotoRow(texts[m], "", cells))
    for i in rng.choice(first.n_images, min(opt.count, first.n_images), replace=False):
        best = {name: np.argsort(-e.scores[i], kind="stable")[:TOP] for name, e in models.items()}
        marked = [
            ("* " if owner == i else "") + text for owner, text in zip(first.caption_image, texts)
        ]
        rows.append(
            PhotoRow(
                "",
                "",
                [
                    photo_cell(photos, i, name, *(marked[m] for m in captions))
                    for name, captions in best.items()
                ],
            )
        )
        for name, e in models.items():
            similarity, images = within_modality(e.members[0].similarity, e.members[0].images)
            scores = similarity(images.rows(torch.tensor([i], device=images.mean.device)), images)[
                0
            ]  # (N,)
            others = [k for k in scores.argsort(descending=True, stable=True).tolist() if k != i][
                :NEAREST
            ]
            rows.append(
                PhotoRow(
                    f"the images most similar to the first, {name}",
                    "",
                    [photo_cell(photos, k) for k in (i, *others)],
                )
            )
    draw_rows(
        target,
        f"{first.data_name} {first.split}: answers of {', '.join(models)}",
        rows,
        1 + NEAREST,
    )
    print(f"examples of {', '.join(models)} in {target}")


def main(argv=None) -> None:
    p = Arguments(__doc__.splitlines()[0])
    add = p.add_argument
    add("--checkpoint", type=filename, required=True, nargs="+", metavar="RUN", help="run folders")
    add(
        "--data_path",
        type=filename,
        help="folder that holds the data sets (default: as in training)",
    )
    add(
        "--data_name",
        type=data_set,
        help="another data set (jwae Tables 1 and 2: models of COCO on Flickr30K)",
    )
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    add("--photos", type=filename, help="folder of the photos that precomputed features belong to")
    add("--count", type=up_to(100), default=3, help="number of images and of captions")
    add(
        "--output",
        type=filename,
        metavar="FILE.png",
        default="jwae_examples.png",
        help="picture to write",
    )
    cli.run(p.prog, draw_answers, p.parse_args(argv))


if __name__ == "__main__":
    main()
