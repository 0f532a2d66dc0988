"""Draw retrieval by several models, as `jwae` Tables 1, 2 and Fig. 2.

    python -m paper_tables.figures --checkpoint runs/A runs/B --photos data/demo/images

`jwae` Tables 1 and 2 show models of COCO that answer on Flickr30K: add --data_name f30k.

The picture shows captions with the best image of each model (Table 1; green: the matched image),
images with the best four captions of each model (Table 2; *: a matched caption), and images with
the six that each model finds most similar (Fig. 2).
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os

import numpy as np
import torch

import utils
from checkpoint import Trained
from evaluation.embeddings import Embeddings, check_same_items, embed
from evaluation.pictures import OWN, PhotoRow, draw_rows, locate_photos, photo_cell, picture_file
from losses import within_modality
from utils import Arguments, InputError, data_set, filename, torch_device, up_to

CAPTIONS_PER_IMAGE_SHOWN = 4  # as in `jwae` Table 2
NEAREST_IMAGES = 6  # beside an image


def embed_by_models(opt) -> dict[str, Embeddings]:
    """Embed the test split by each model: {name of its run: embeddings}."""
    models = {}
    for path in opt.checkpoint:
        name = os.path.basename(os.path.normpath(path))
        if name in models:
            raise InputError(f"--checkpoint names two runs {name}; give folders of different names")
        model = Trained(path, torch_device(opt.device))
        models[name] = embed([model], "test", data_path=opt.data_path, data_name=opt.data_name)
        first = next(iter(models.values()))
        check_same_items(models[name], first)
    return models


def draw_caption(photos, models: dict, caption: int) -> PhotoRow:
    """A caption with the best image of each model, in a green frame if it is matched."""
    first = next(iter(models.values()))
    cells = []
    for name, embedded in models.items():
        best = embedded.scores[:, caption].argmax()
        frame = OWN if best == first.caption_image[caption] else None
        cells.append(photo_cell(photos, best, name, frame=frame))
    return PhotoRow(first.texts[caption], "", cells)


def draw_image(photos, models: dict, image: int) -> PhotoRow:
    """An image with the best captions of each model, matched ones with a *."""
    first = next(iter(models.values()))
    cells = []
    for name, embedded in models.items():
        ranking = np.argsort(-embedded.scores[image], kind="stable")
        texts = []
        for caption in ranking[:CAPTIONS_PER_IMAGE_SHOWN]:
            mark = "* " if first.caption_image[caption] == image else ""
            texts.append(mark + first.texts[caption])
        cells.append(photo_cell(photos, image, name, *texts))
    return PhotoRow("", "", cells)


def draw_nearest(photos, name: str, embedded: Embeddings, image: int) -> PhotoRow:
    """An image with those that a model finds most similar."""
    member = embedded.members[0]
    similarity, images = within_modality(member.similarity, member.images)
    query = images.rows(torch.tensor([image], device=images.mean.device))
    scores = similarity(query, images)[0]  # (N,)
    ranking = scores.argsort(descending=True, stable=True).tolist()
    others = [k for k in ranking if k != image][:NEAREST_IMAGES]
    cells = [photo_cell(photos, k) for k in (image, *others)]
    return PhotoRow(f"the images most similar to the first, {name}", "", cells)


def draw_answers(opt) -> None:
    """Embed the split by each model and draw the picture."""
    target = picture_file(opt.output, opt.checkpoint)
    models = embed_by_models(opt)
    first = next(iter(models.values()))
    photos = locate_photos(first, opt.photos)
    if not photos:
        raise InputError(
            "the picture shows photos, and those of the data are not there; name their folder with "
            "--photos"
        )

    rng = np.random.default_rng(0)
    n_captions = len(first.texts)
    rows = []
    for caption in rng.choice(n_captions, min(opt.count, n_captions), replace=False):
        rows.append(draw_caption(photos, models, caption))
    for image in rng.choice(first.n_images, min(opt.count, first.n_images), replace=False):
        rows.append(draw_image(photos, models, image))
        for name, embedded in models.items():
            rows.append(draw_nearest(photos, name, embedded, image))

    names = ", ".join(models)
    title = (
        f"{first.data_name} {first.split}: answers of {names}; green: the matched image, "
        "*: a matched caption"
    )
    draw_rows(target, title, rows, 1 + NEAREST_IMAGES)
    print(f"examples of {names} in {target}")


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
    utils.add_device(p)
    add("--photos", type=filename, help="folder of the photos that precomputed features belong to")
    add("--count", type=up_to(100), default=3, help="number of images and of captions")
    add(
        "--output",
        type=filename,
        metavar="FILE.png",
        default="jwae_examples.png",
        help="picture to write",
    )
    utils.run(p.prog, draw_answers, p.parse_args(argv))


if __name__ == "__main__":
    main()
