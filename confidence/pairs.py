"""Find training captions that do not fit, by models that did not learn them.

    python -m confidence.pairs runs/A                       # a run (default: the newest)
    python -m confidence.pairs runs/A --folds 5 --photos FOLDER

The images are split into folds. For each fold a model is trained as the run was, on the captions of
the other images, and judges the captions of its own. Writes pairs.csv, worst first, and pairs.png,
the twenty worst, into the run folder.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import contextlib
import csv
import io
import math
import os
import sys
import tempfile

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

import utils
from checkpoint import NOISE, Trained
from confidence.calibration import percent
from confidence.posterior import fit_temperature, rows_of, sample_scores
from data import Gallery, Split
from evaluation.embeddings import Embeddings, Member, list_items, newest_run
from evaluation.pictures import PhotoRow, draw_rows, list_present, locate_photos, photo_cell
from evaluation.report import LEAST_IMAGES
from losses import Embedding
from metrics import Sigmoid, auroc
from model import VSE, encode
from options import Options
from train import Training, train
from utils import Arguments, InputError, atomic, filename, output, up_to

CAPTIONS_DRAWN = 20
PHOTOS_IN_LINE = 5
GALLERY = 1000  # images, and captions, to compare the parts of a pair with
# The share of wrong captions is taken to be at least this: a smaller one cannot be told from zero.
MIN_WRONG = 0.01
PAIRS_PER_BLOCK = 64
ITEMS_PER_BLOCK_OF_GALLERY = 1024
FRAME_OF_WRONG = "firebrick"  # of captions known to be wrong
FRAME_OF_RIGHT = "forestgreen"


# ---- models that did not learn from the captions that they judge


class Fold(Training):
    """A training without the captions `held` (m,) of the images of fold k, from 0."""

    def __init__(self, k: int, folds: int, *arguments):
        self.k = k
        self.folds = folds
        super().__init__(*arguments)

    def read_data(self, start: dict | None) -> None:
        super().read_data(start)
        split = self.splits["train"]
        fold = np.random.default_rng(0).permutation(len(split.images)) % self.folds  # (N,)
        held = fold[split.caption_image] == self.k  # (M,)
        self.held = np.flatnonzero(held)
        self.pairs = self.pairs[~held[self.pairs]]
        if not len(self.held) or not len(self.pairs):
            raise InputError(
                f"--folds {self.folds} leaves a part of the {len(split.images)} training images "
                "without captions; give fewer"
            )


class FoldBuilder:
    """Builds the training of a fold, in place of the class for `train`, and keeps it."""

    def __init__(self, k: int, folds: int):
        self.k = k
        self.folds = folds
        self.training: Fold | None = None

    def __call__(self, *arguments) -> Fold:
        self.training = Fold(self.k, self.folds, *arguments)
        return self.training


def fold_options(opt, folder: str) -> Options:
    """Return options of a training like the run opt.source, on its pairs, into `folder`."""
    model = Trained(opt.source)
    if model.options.init_from:
        raise InputError(
            f"{opt.source} was initialized from {model.options.init_from}, which may have "
            "memorized all pairs; give a run that was trained from scratch"
        )

    result = Options(**vars(model.options))
    noise = os.path.join(opt.source, NOISE)
    if os.path.isfile(noise):
        result.noise_ratio = 0.0
        result.noise_file = noise
    result.data_path = opt.data_path or result.data_path
    result.device = opt.device
    result.workers = opt.workers
    result.logger_name = folder
    result.asked = {}
    return result


def judge_training_captions(opt) -> tuple[Split, np.ndarray]:
    """Return the training split of a run, and log-odds (M,) that its captions fit."""
    held = []
    logits = []
    for k in range(opt.folds):
        start = f"fold {k + 1} of {opt.folds}"
        print(f"{start}: training on the captions of the other images", flush=True)
        model, training = train_fold(opt, k)
        dev_images = len(training.splits["dev"].images)
        if k == 0 and dev_images < LEAST_IMAGES:
            print(
                f"note: the probabilities are fitted to only {dev_images:,} images of dev; use at "
                f"least {LEAST_IMAGES}"
            )
        held.append(training.held)
        logits.append(judge_fold(model, training))

    order = np.argsort(np.concatenate(held))
    return training.splits["train"], np.concatenate(logits)[order]


def train_fold(opt, k: int) -> tuple[VSE, Fold]:
    """Train fold k; return its best model on dev, and its training."""
    builder = FoldBuilder(k, opt.folds)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        status = train(fold_options(opt, folder), builder)
        if status != 0:
            raise InputError(
                f"the training of fold {k + 1} ended with status {status}, so no caption is "
                "judged; run it again"
            )
        model = Trained(folder, builder.training.device).model
    return model, builder.training


def judge_fold(model: VSE, training: Fold) -> np.ndarray:
    """Compute log-odds (m,) that the held captions belong to their images, at even prior odds.

    They are fitted to the pairs of dev and to as many with another image.
    """
    # fit to dev
    all_of_dev = np.arange(len(training.splits["dev"].captions))
    images, captions, owner = embed_pairs(model, training, "dev", all_of_dev)
    n = len(images.mean)
    m = len(captions.mean)
    dev = Embeddings("dev", owner, n, members=[Member(model.similarity, images, captions)])
    t = fit_temperature(*sample_scores(rows_of(dev, "t2i")))

    other = (owner + np.random.default_rng(0).integers(1, n, m)) % n
    z = log_posteriors(model.similarity, images, captions, owner, t)
    z_of_others = log_posteriors(model.similarity, images, captions, other, t)
    matched = torch.arange(2 * m) < m
    sigmoid = Sigmoid.fit(torch.cat([z, z_of_others]), matched)

    # judge the held captions
    images, captions, owner = embed_pairs(model, training, "train", training.held)
    z = log_posteriors(model.similarity, images, captions, owner, t)
    return (sigmoid.slope * z + sigmoid.bias).numpy()


def embed_pairs(
    model: VSE, training: Fold, name: str, captions: np.ndarray
) -> tuple[Embedding, Embedding, np.ndarray]:
    """Embed captions (m,) of a split and their images: images, captions, owner (m,)."""
    split = training.splits[name]
    images, owner = np.unique(split.caption_image[captions], return_inverse=True)
    of_images, of_captions = encode(
        model,
        split,
        training.tokens[name],
        training.device,
        workers=training.opt.workers,
        part=Gallery(images, captions),
    )
    return of_images, of_captions, owner


@torch.no_grad()
def log_posteriors(
    similarity, images: Embedding, captions: Embedding, owner: np.ndarray, t: float
) -> Tensor:
    """Compute log p(image | caption) + log p(caption | image) of pairs: (M,).

    p is the posterior at temperature t times the size of the gallery, which is GALLERY random
    items.

    Args:
        similarity: of the model.
        images: (N, D).
        captions: (M, D).
        owner: (M,), the image that each caption is paired with.
        t: the temperature.
    """

    def transposed(captions: Embedding, images: Embedding) -> Tensor:
        return similarity(images, captions).T

    scores = []
    starts = range(PAIRS_PER_BLOCK, len(owner), PAIRS_PER_BLOCK)
    for rows in np.split(np.arange(len(owner)), starts):
        block = similarity(images.rows(owner[rows]), captions.rows(rows))
        scores.append(block.diagonal())
    score = torch.cat(scores)  # (M,)

    of_images = log_mean_over_gallery(similarity, images, captions, t)  # (N,)
    of_captions = log_mean_over_gallery(transposed, captions, images, t)  # (M,)
    return (2 * t * score - of_captions - of_images[owner]).cpu()


def log_mean_over_gallery(score, items: Embedding, others: Embedding, t: float) -> Tensor:
    """Compute log mean exp(t score) of items (K, D) over GALLERY random others: (K,).

    score: function of items and others.
    """
    order = np.random.default_rng(0).permutation(len(others.mean))
    gallery = others.rows(torch.from_numpy(order[:GALLERY]))
    sums = []
    for rows in torch.arange(len(items.mean)).split(ITEMS_PER_BLOCK_OF_GALLERY):
        sums.append((t * score(items.rows(rows), gallery)).logsumexp(1))
    return torch.cat(sums) - math.log(len(gallery.mean))


def fit_prior(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities (M,) of log-odds, with the share of right pairs by EM.

    The log-odds are at even prior odds. Saerens et al. 2002.
    """
    share = 0.5
    before = 0.0
    while abs(share - before) > 1e-6:
        p = expit(logits + logit(share))
        before = share
        share = min(p.mean(), 1 - MIN_WRONG)
    return p


# ---- what is shown


def write_pairs(opt) -> None:
    """Judge the captions of a run, print findings, write pairs.csv and pairs.png."""
    opt.source = opt.source or newest_run()
    if not os.path.isdir(opt.source):
        raise InputError(f"{opt.source} is not a folder; name a run that train.py wrote")
    csv_file = output(os.path.join(opt.source, "pairs.csv"))
    picture = output(os.path.join(opt.source, "pairs.png"))

    split, logits = judge_training_captions(opt)
    p = fit_prior(logits)
    wrong = None
    if split.true_image is not None:
        wrong = split.wrong
    items = list_items(split, "")
    order = np.argsort(logits, kind="stable")
    write_csv(csv_file, split, items, order, p, wrong)

    suspects = p < 0.5
    found = int(suspects.sum())
    print(
        f"{found:,} of {len(p):,} captions do not seem to fit their images (p < 50%); "
        f"{len(p) - p.sum():,.0f} wrong ones are expected"
    )
    if wrong is not None:
        print(
            f"{wrong.sum():,} are known to be wrong, {int(wrong[suspects].sum()):,} of them among "
            f"the {found:,}; AUROC {auroc(logits, ~wrong):.3f}"
        )
    print(f"all captions, worst first, in {csv_file}", file=sys.stderr)

    photos = locate_photos(items, opt.photos)
    if photos:
        present = list_present(photos)[split.caption_image[order]]
        draw_worst(picture, split, photos, order[present], p, wrong)
        print(f"the worst in {picture}", file=sys.stderr)


def write_csv(
    path: str,
    split: Split,
    items: Embeddings,
    order: np.ndarray,
    p: np.ndarray,
    wrong: np.ndarray | None,
) -> None:
    """Write a line for each caption.

    Args:
        path: of the file.
        split: of the captions.
        items: names of its images.
        order: (M,), of the lines.
        p: (M,), probability that a caption fits.
        wrong: (M,) bool, where it is known.
    """
    names = items.ids.get("image_name") or items.ids.get("image_id") or range(len(split.images))
    columns = ["probability", "image", "caption", "place"]
    if wrong is not None:
        columns.append("known")

    with atomic(path) as f:
        rows = csv.writer(f)
        rows.writerow(columns)
        for m in order.tolist():
            image = names[split.caption_image[m]]
            row = [f"{p[m]:.4f}", image, split.captions[m], split.place(m)]
            if wrong is not None and wrong[m]:
                row.append("wrong")
            elif wrong is not None:
                row.append("right")
            rows.writerow(row)


def draw_worst(
    path: str, split: Split, photos, order: np.ndarray, p: np.ndarray, wrong: np.ndarray | None
) -> None:
    """Draw the first captions of an order with their photos and probabilities.

    Args:
        path: of the picture.
        split: of the captions.
        photos: of its images.
        order: positions of captions, the worst first.
        p: (M,), probability that a caption fits.
        wrong: (M,) bool, where it is known.
    """
    cells = []
    for m in order[:CAPTIONS_DRAWN]:
        frame = None
        if wrong is not None and wrong[m]:
            frame = FRAME_OF_WRONG
        elif wrong is not None:
            frame = FRAME_OF_RIGHT
        label = f"{percent(p[m])}: {split.captions[m]}"
        cells.append(photo_cell(photos, split.caption_image[m], label, frame=frame))

    title = "Captions that fit their images least, and the probability that they belong to them"
    if wrong is not None:
        title += "; red: known to be wrong"
    draw_rows(path, title, [PhotoRow("", "", cells)], PHOTOS_IN_LINE)


def parse_args(argv=None):
    p = Arguments("Find training captions that do not fit their images.")
    add = p.add_argument
    add(
        "source",
        type=filename,
        nargs="?",
        metavar="RUN",
        help="run folder (default: the newest run)",
    )
    add(
        "--folds",
        type=up_to(100, least=2),
        default=2,
        help="parts of the images, and models that judge one each",
    )
    add(
        "--photos",
        type=filename,
        metavar="FOLDER",
        help="photos to draw where the data are precomputed features",
    )
    add(
        "--data_path",
        type=filename,
        metavar="FOLDER",
        help="folder of the data sets (default: that of the training)",
    )
    utils.add_workers(p)
    utils.add_device(p)
    return p.parse_args(argv)


def main(argv=None) -> None:
    utils.run("confidence.pairs", write_pairs, parse_args(argv))


if __name__ == "__main__":
    main()
