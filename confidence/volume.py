"""How much of a gallery an item covers: variances that mean how many photos fit.

A photo of the training split is known by its captions, and a caption covers it as probably as the
nearest of these is of the same photo: p = sigmoid(a s + b), s the largest cosine with one of them.
An item's log-variance is the log of the share of the photos that it covers, so that its volume is
that share: log det Sigma = D log share. `evaluate.py --variances volume` gives these variances to
points that are trained already, and `--loss volume` (losses.Volume) trains heads that predict
them from the item alone.
"""
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from checkpoint import Trained
from cli import check
from evaluation import bank
from evaluation.embeddings import Embeddings, Member, check_other_items, embed, load_embeddings, split_of
from evaluation.encode import Gallery, encode
from losses import Embedding, cosine, unit
from model import VSE

BANK = 50_000         # captions of the training split that tell what is covered
NEAREST = 50          # captions that tell what an image covers
FITTED = 2 ** 22      # pairs of a caption and a photo that a probability is fitted to
ELEMENTS = 2 ** 26    # scores that are computed at a time, 256 MiB
ROWS = 1024           # items that are given variances at a time


# ---- the probability of a pair, from its score

class Sigmoid(NamedTuple):
    """p(a photo fits a caption) = sigmoid(slope s + bias + log_det v), s their score and v the mean
    log-variance of the caption; log_det is 0 where captions are points."""
    slope: float
    bias: float
    log_det: float = 0.0

    def __call__(self, s, v=0.0) -> Tensor:
        return torch.as_tensor(self.slope * s + self.bias + self.log_det * v).sigmoid()

    @classmethod
    def fit(cls, s, right, votes=None, v=None) -> "Sigmoid":
        """The least mean log loss (Platt 1999) of K pairs with scores s and, if given, log-variances
        v, of which `right` are, in [0, 1], by so many `votes`, (K,) each. Raises InputError as
        `logistic` does."""
        x = torch.stack([torch.as_tensor(of) for of in (s, v) if of is not None])   # (F, K)
        (slope, *log_det), bias = logistic(x, right, votes)
        return cls(slope, bias, *log_det)


def logistic(x: Tensor, y, count=None) -> tuple[list[float], float]:
    """Weights w (F,) and the bias of p = sigmoid(w . x + b) of least mean log loss: x (F, K), y (K,)
    in [0, 1], how often each counts (K,). Newton's method in float64; the loss is convex. Raises
    InputError where nothing can be told apart."""
    x, y = x.double(), torch.as_tensor(y).double()
    n = torch.ones_like(y) if count is None else torch.as_tensor(count).double()
    mean, std, share = x.mean(1), x.std(1, correction=0), float((n * y).sum() / n.sum())
    check((std > 0).all() and 0 < share < 1,
          "all scores are equal, or all pairs right or wrong, so no probability of a pair fits "
          "them")
    z = torch.cat([(x - mean[:, None]) / std[:, None], torch.ones_like(y)[None]])   # (F + 1, K)
    w = z.new_zeros(len(z))
    w[-1] = torch.tensor(share).logit()
    for _ in range(100):
        p = (w @ z).sigmoid()
        bend = (z * (n * p * (1 - p) + 1e-9)) @ z.T
        step = torch.linalg.solve(bend, z @ (n * (p - y)))
        w = w - step.clamp(-5, 5)
        if step.abs().max() < 1e-9:
            break
    weights = w[:-1] / std
    return weights.tolist(), float(w[-1] - weights @ mean)


# ---- the share of the photos that an item covers

def nearest_caption(scores: Tensor, owner: Tensor, photos: int) -> Tensor:
    """The largest score of each photo's captions: (B, M), the photo of each caption (M,) -> (B, N);
    -inf where a photo has none."""
    best = scores.new_full((len(scores), photos), -torch.inf)
    return best.scatter_reduce(1, owner.to(scores.device).expand_as(scores), scores, "amax")


def log_share(nearest: Tensor, of_photo: Sigmoid) -> Tensor:
    """log of the mean over N photos of the probability that a caption fits them, from
    `nearest_caption` (B, N), where -inf does not count -> (B,)."""
    counted = nearest.isfinite().sum(1)
    return nn.functional.logsigmoid(of_photo.slope * nearest + of_photo.bias).logsumexp(
        1) - counted.log()


class Volume(NamedTuple):
    """Gives an item the share of photos that it covers as its variance, one for all dimensions:
    log det Sigma = D log share.

    The photos are those of a bank of captions. A caption c covers a photo with p = sigmoid(a s +
    b), s the largest cosine of c with a caption of the photo. An image covers what its NEAREST
    captions of the bank cover: the mean of their log shares, each without its own photo.
    """
    similarity: object                # one of losses.SIMILARITIES, built
    captions: Embedding               # (M, D)
    owner: Tensor                     # (M,) the photo of each, from 0
    of_photo: Sigmoid                 # a and b
    shares: Tensor                    # (M,) log shares of the captions
    images: bool                      # whether images are given variances

    def log_var(self, e: Embedding) -> Tensor:
        """(B, D) -> (B, 1)."""
        if self.images:
            nearest = self.similarity(e, self.captions).topk(
                min(NEAREST, len(self.shares)), 1).indices                          # (B, K)
            return self.shares[nearest].mean(1, keepdim=True)
        cosines = unit(e.mean) @ unit(self.captions.mean).T                         # (B, M)
        photos = int(self.owner.max()) + 1
        return log_share(nearest_caption(cosines, self.owner, photos), self.of_photo)[:, None]


def widened(e: Embedding, side: Volume) -> Embedding:
    """Points (N, D) with the variances (N, 1) of a side."""
    return e._replace(log_var=torch.cat([side.log_var(e.rows(rows)) for rows in torch.arange(len(e.mean)).split(ROWS)]))


def without_own(captions: Embedding, owner: Tensor, itself: bool):
    """Yields (rows, `nearest_caption` (b, N)) of captions among themselves, some at a time: a photo
    as if a caption were none of its own; or, unless `itself`, as if it had no caption at all."""
    x, photos = unit(captions.mean), int(owner.max()) + 1
    for rows in torch.arange(len(x)).split(max(1, ELEMENTS // len(x))):
        scores = x[rows] @ x.T
        scores[torch.arange(len(rows)), rows] = -torch.inf
        nearest = nearest_caption(scores, owner, photos)
        if not itself:
            nearest[torch.arange(len(rows)), owner[rows]] = -torch.inf
        yield rows, nearest


@torch.no_grad()
def fit(similarity, captions: Embedding, owner: np.ndarray, dev: Embedding,
        dev_owner: np.ndarray) -> tuple[Volume, Volume]:
    """captions (M, D): of the photos of the training split, owner (M,). a and b are fitted to the
    captions of dev: own photo, the caption itself left out, against all others. Raises InputError
    where no photo of dev has two captions."""
    owner, dev_owner = (torch.from_numpy(np.unique(x, return_inverse=True)[1])
                        for x in (owner, dev_owner))
    check(torch.bincount(dev_owner).max() > 1,
          "--variances volume learns from a photo's captions how alike they are, and no photo of "
          "the dev split has two; leave it out")
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(dev_owner)))
    few = order[:max(2, FITTED // (int(dev_owner.max()) + 1))]
    seen, right = [], []
    for rows, nearest in without_own(dev, dev_owner, itself=True):
        nearest = nearest.cpu()
        own = dev_owner[rows][:, None] == torch.arange(nearest.shape[1])            # (b, N)
        known = nearest.isfinite() & torch.isin(rows, few)[:, None]
        seen.append(nearest[known])
        right.append(own[known])
    of_photo = Sigmoid.fit(torch.cat(seen), torch.cat(right))
    shares = torch.cat([log_share(nearest, of_photo)
                        for _, nearest in without_own(captions, owner, itself=False)])
    return tuple(Volume(similarity, captions, owner, of_photo, shares, images)
                 for images in (True, False))


def check_points(gaussian: bool, name: str) -> None:
    check(not gaussian, f"--variances volume gives variances to points, and {name} has variances of "
                        "its own; leave it out, or evaluate a point model")


def fit_runs(models: list[Trained], batch_size: int = 128, workers: int = 0, **data) -> tuple[list[tuple], dict]:
    """Fit variances for the points of models to captions of the training split of each one's own data set, and to its
    dev split. Returns the Volume of images and of captions of each, and the "variances" of results.json. data: as
    `split_of` takes them. Raises InputError on a model with variances of its own."""
    fits, facts = [], []
    for model in models:
        check_points(model.model.image_tower.gaussian or model.model.text_tower.gaussian, model.path)
        split = split_of(model, "train", **data)
        drawn = bank.draw(split.caption_image, len(split.images), BANK)
        captions = encode(model.model, split, split.encode(model.vocab), model.device, batch_size, workers,
                          Gallery(drawn.images[:0], drawn.captions))[1]
        dev = embed([model], "dev", batch_size=batch_size, workers=workers, **data)
        fits.append(fit(model.similarity, captions, split.caption_image[drawn.captions], dev.members[0].captions,
                        dev.caption_image))
        facts.append((f"{model.options.data_name} train", *map(len, drawn)))
    return fits, describe(fits, facts)


def fit_file(e: Embeddings, path: str, dev_path: str | None, sim: str | None, **data) -> tuple[list[tuple], dict]:
    """Fit variances for the points of a file to those of training pairs in another and of dev in a third (None: the
    training pairs). Raises InputError where e has variances, or the files are of the same items or other models."""
    check_points(e.gaussian, e.name)
    train = load_embeddings(path, sim, **data)
    check_other_items(e, train, "--variances_from", "give embeddings of training pairs")
    dev, captions = load_embeddings(dev_path, sim, **data) if dev_path else train, train.members[0].captions
    fits = [fit(train.members[0].similarity, captions, train.caption_image, dev.members[0].captions, dev.caption_image)]
    return fits, describe(fits, [(train.name, train.n_images, len(captions.mean))])


def describe(fits: list[tuple], facts: list[tuple]) -> dict:
    """The "variances" of results.json. facts: what the variances of each model were fitted to, how many images and
    captions."""
    return {"kind": "volume", "of_photo": [images.of_photo[:2] for images, _ in fits],
            **dict(zip(("fitted_on", "images", "captions"), map(list, zip(*facts))))}


def widen(e: Embeddings, fits: list[tuple], report: dict) -> None:
    """Give the points of images, where there are any, and captions their variances, with a note where these say
    nothing. Raises InputError where they have variances."""
    check_points(e.gaussian, e.name)
    e.volumes = fits
    e.members = [Member(m.similarity, m.images and widened(m.images, images), widened(m.captions, captions))
                 for m, (images, captions) in zip(e.members, fits)]
    e.report["variances"] = report
    e.notes += [f"{name}: captions of one photo of dev lie no nearer to each other than to those of others, so that "
                "these variances say nothing of how many photos fit"
                for name, (slope, _) in zip([model.path for model in e.models] or report["fitted_on"],
                                            report["of_photo"]) if slope <= 0]


def training_shares(model: VSE, train, dev, tokens: dict, device) -> Tensor:
    """The log shares (M,) of the captions of a training split, each without its own photo, for
    `--loss volume`: of a model whose means stay. train, dev: the splits; tokens: their captions by
    "train" and "dev"."""
    def captions(split, name: str) -> Embedding:
        part = Gallery(np.arange(0), np.arange(len(split.captions)))
        return encode(model, split, tokens[name], device, part=part)[1]
    model.eval()
    _, volume = fit(cosine, captions(train, "train"), train.caption_image,
                    captions(dev, "dev"), dev.caption_image)
    model.train()
    return volume.shares.to(device)
