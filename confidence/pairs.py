"""Find training captions that do not fit, by models that did not learn them.

    python -m confidence.pairs runs/A                       # a run (default: the newest)
    python -m confidence.pairs runs/A --folds 5 --photos FOLDER

The images are split into folds. For each fold a model is trained as the run was, on the captions of the other images,
and judges the captions of its own. Writes pairs.csv, worst first, and pairs.png, the twenty worst, into the run folder.
"""
if __name__ == "__main__":
    import cli
    cli.start()

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

import cli
from checkpoint import NOISE, Trained
from cli import Arguments, check, filename, up_to
from confidence.calibration import percent
from confidence.measures import auroc
from confidence.posterior import fit_temperature, rows_of, sample_scores
from data import Split
from evaluation.embeddings import Embeddings, Member, list_items, newest_run
from evaluation.encoding import Gallery, encode
from evaluation.pictures import PhotoRow, draw_rows, list_present, locate_photos, photo_cell
from evaluation.report import LEAST_IMAGES
from files import atomic, output
from losses import Embedding
from metrics import Sigmoid
from model import VSE
from options import Options
from train import Training, train

WORST, ACROSS = 20, 5                 # captions that are drawn, and in a line
GALLERY = 1000                        # images, and captions, that the parts of a pair are compared with
LEAST = 0.01          # share of wrong captions that is assumed where fewer are found, which cannot be told from none
OWN, OTHERS = 64, 1024                # pairs, and items, that are scored at a time
FRAME = {True: "firebrick", False: "forestgreen", None: None}       # of captions known to be wrong, and right


# ---- models that did not learn from the captions that they judge

class Fold(Training):
    """A training without the captions `held` (m,) of the images of fold k, from 0."""

    def __init__(self, k: int, folds: int, *words):
        self.k, self.folds = k, folds
        super().__init__(*words)

    def read_data(self, start: dict | None) -> None:
        super().read_data(start)
        split = self.splits["train"]
        fold = np.random.default_rng(0).permutation(len(split.images)) % self.folds         # (N,)
        held = fold[split.caption_image] == self.k                                          # (M,)
        self.held, self.pairs = np.flatnonzero(held), self.pairs[~held[self.pairs]]
        check(len(self.held) and len(self.pairs),
              f"--folds {self.folds} leaves a part of the {len(split.images)} training images without captions; give "
              "fewer")


def fold_options(opt, folder: str) -> Options:
    """Options of a training like the run opt.source, on its pairs, into `folder`."""
    model, noise = Trained(opt.source), os.path.join(opt.source, NOISE)
    check(not model.options.init_from,
          f"{opt.source} went on from {model.options.init_from}, which may know all pairs by heart; give a run that "
          "was trained from the start")
    result = Options(**vars(model.options))
    if os.path.isfile(noise):
        result.noise_ratio, result.noise_file = 0.0, noise
    result.data_path = opt.data_path or result.data_path
    result.device, result.workers, result.logger_name, result.asked = opt.device, opt.workers, folder, {}
    return result


def judge_training_captions(opt) -> tuple[Split, np.ndarray]:
    """Return the training split of a run, and log-odds (M,) that its captions fit."""
    held, logits = [], []
    for k in range(opt.folds):
        print(f"fold {k + 1} of {opt.folds}: training on the captions of the other images", flush=True)
        model, training = train_fold(opt, k)
        dev = len(training.splits["dev"].images)
        if k == 0 and dev < LEAST_IMAGES:
            print(f"note: the probabilities are fitted to only {dev:,} images of dev; use at least {LEAST_IMAGES}")
        held.append(training.held)
        logits.append(judge_fold(model, training))
    return training.splits["train"], np.concatenate(logits)[np.argsort(np.concatenate(held))]


def train_fold(opt, k: int) -> tuple[VSE, Fold]:
    """The best model on dev of fold k, and its training."""
    trainings = []

    def start(*words) -> Fold:
        trainings.append(Fold(k, opt.folds, *words))
        return trainings[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        status = train(fold_options(opt, folder), start)
        check(status == 0, f"the training of fold {k + 1} ended with status {status}, so no caption is judged; call it "
                           "again")
        return Trained(folder, trainings[0].device).model, trainings[0]


def judge_fold(model: VSE, training: Fold) -> np.ndarray:
    """Log-odds (m,) that the held captions belong to their images, at even prior odds.
    They are fitted to the pairs of dev and to as many with another image."""
    def embed(name: str, captions: np.ndarray) -> tuple[Embedding, Embedding, np.ndarray]:
        split, workers = training.splits[name], training.opt.workers
        images, owner = np.unique(split.caption_image[captions], return_inverse=True)
        return *encode(model, split, training.tokens[name], training.device, workers=workers,
                       part=Gallery(images, captions)), owner
    images, captions, owner = embed("dev", np.arange(len(training.splits["dev"].captions)))
    n, m = len(images.mean), len(captions.mean)
    dev = Embeddings("dev", owner, n, members=[Member(model.similarity, images, captions)])
    t = fit_temperature(*sample_scores(rows_of(dev, "t2i")))
    other = (owner + np.random.default_rng(0).integers(1, n, m)) % n
    own_and_other = [log_posteriors(model.similarity, images, captions, x, t) for x in (owner, other)]
    sigmoid = Sigmoid.fit(torch.cat(own_and_other), torch.arange(2 * m) < m)
    z = log_posteriors(model.similarity, *embed("train", training.held), t)
    return (sigmoid.slope * z + sigmoid.bias).numpy()


@torch.no_grad()
def log_posteriors(similarity, images: Embedding, captions: Embedding, owner: np.ndarray, t: float) -> Tensor:
    """Compute log p(image | caption) + log p(caption | image) of true pairs: (M,).
    captions (M, D) and their images, owner (M,).
    p is the posterior at temperature t times the size of the gallery, which is GALLERY random items."""
    def log_mean(score, items: Embedding, gallery: Embedding) -> Tensor:
        gallery = gallery.rows(torch.from_numpy(np.random.default_rng(0).permutation(len(gallery.mean))[:GALLERY]))
        blocks = torch.arange(len(items.mean)).split(OTHERS)
        sums = torch.cat([(t * score(items.rows(k), gallery)).logsumexp(1) for k in blocks])        # (K,)
        return sums - math.log(len(gallery.mean))
    own = torch.cat([similarity(images.rows(owner[k]), captions.rows(k)).diagonal()
                     for k in np.split(np.arange(len(owner)), range(OWN, len(owner), OWN))])
    of_images = log_mean(similarity, images, captions)
    of_captions = log_mean(lambda y, x: similarity(x, y).T, captions, images)
    return (2 * t * own - of_captions - of_images[owner]).cpu()


def fit_prior(logits: np.ndarray) -> np.ndarray:
    """Probabilities (M,) of log-odds, with the share of right pairs by EM.
    The log-odds are at even prior odds. Saerens et al. 2002."""
    share, before = 0.5, 0.0
    while abs(share - before) > 1e-6:
        p, before = expit(logits + logit(share)), share
        share = min(p.mean(), 1 - LEAST)
    return p


# ---- what is shown

def write_pairs(opt) -> None:
    """Judge the captions of a run, print findings, write pairs.csv and pairs.png."""
    opt.source = opt.source or newest_run()
    check(os.path.isdir(opt.source), f"{opt.source} is not a folder; name a run that train.py wrote")
    csv_file = output(os.path.join(opt.source, "pairs.csv"))
    picture = output(os.path.join(opt.source, "pairs.png"))
    split, logits = judge_training_captions(opt)
    p, wrong = fit_prior(logits), split.wrong if split.true_image is not None else None
    items, order = list_items(split, ""), np.argsort(logits, kind="stable")
    names = items.ids.get("image_name") or items.ids.get("image_id") or range(len(split.images))
    with atomic(csv_file) as f:
        rows = csv.writer(f)
        rows.writerow(["probability", "image", "caption", "place", *["known"] * (wrong is not None)])
        for m in order.tolist():
            known = [] if wrong is None else ["wrong" if wrong[m] else "right"]
            rows.writerow([f"{p[m]:.4f}", names[split.caption_image[m]], split.captions[m], split.place(m), *known])
    found = int((p < 0.5).sum())
    print(f"{found:,} of {len(p):,} captions do not seem to fit their images (p < 50%); {len(p) - p.sum():,.0f} wrong "
          "ones are expected")
    if wrong is not None:
        hit = int(wrong[p < 0.5].sum())
        print(f"{wrong.sum():,} are known to be wrong, {hit:,} of them among the {found:,}; AUROC "
              f"{auroc(logits, ~wrong):.3f}")
    print(f"all captions, worst first, in {csv_file}", file=sys.stderr)
    photos = locate_photos(items, opt.photos)
    if photos:
        shown = order[list_present(photos)[split.caption_image[order]]]
        cells = [photo_cell(photos, split.caption_image[m], f"{percent(p[m])}: {split.captions[m]}",
                            frame=FRAME[None if wrong is None else bool(wrong[m])]) for m in shown[:WORST]]
        draw_rows(picture, "Captions that fit their images least, and the probability that they belong to them"
                  + "; red: known to be wrong" * (wrong is not None), [PhotoRow("", "", cells)], ACROSS)
        print(f"the worst in {picture}", file=sys.stderr)


def parse_args(argv=None):
    p = Arguments("Find training captions that do not fit their images.")
    add = p.add_argument
    add("source", type=filename, nargs="?", metavar="RUN", help="run folder (default: the newest run)")
    add("--folds", type=up_to(100, least=2), default=2, help="parts of the images, and models that judge one each")
    add("--photos", type=filename, metavar="FOLDER", help="photos to draw where the data are precomputed features")
    add("--data_path", type=filename, metavar="FOLDER", help="folder of the data sets (default: that of the training)")
    add("--workers", type=cli.workers, default=min(10, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes CUDA where it is present")
    return p.parse_args(argv)


def main(argv=None) -> None:
    cli.run("confidence.pairs", write_pairs, parse_args(argv))


if __name__ == "__main__":
    main()
