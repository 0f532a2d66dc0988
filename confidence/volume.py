"""Variances that mean how many photos fit, for points that are trained already.

An item's log-variance is the log of the share of the training photos that it covers (methods.volume), one for all
dimensions, so that its volume is that share: log det Sigma = D log share. The scores of the points stay.
"""
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from checkpoint import Trained
from cli import check
from evaluation import bank
from evaluation.embeddings import Embeddings, Member, read_split_for
from evaluation.encode import Gallery, encode
from losses import Embedding, unit
from methods.volume import Sigmoid, fit_sigmoid, log_share, nearest_captions, number_photos, shares_of_captions

BANK = 50_000         # captions of the training split that tell what is covered
NEAREST = 50          # captions that tell what an image covers
ROWS = 1024           # items that are given variances at a time


class PhotoShares(NamedTuple):
    """Share of the photos of a bank of captions that an item covers.

    A caption covers a photo with probability sigmoid(a s + b), s its largest cosine with a caption of the photo. An
    image covers what its NEAREST captions of the bank cover: the mean of their log shares, each without its own photo.
    """
    similarity: object                # one of losses.SIMILARITIES, built
    captions: Embedding               # (M, D) the bank
    owner: Tensor                     # (M,) the photo of each, from 0
    sigmoid: Sigmoid                  # a and b
    shares: Tensor                    # (M,) log shares of the bank

    def captions_log_var(self, e: Embedding) -> Tensor:
        """Compute log-variances of captions: (B, D) -> (B, 1)."""
        cosines = unit(e.mean) @ unit(self.captions.mean).T                         # (B, M)
        nearest = nearest_captions(cosines, self.owner, int(self.owner.max()) + 1)  # (B, N)
        return log_share(nearest, self.sigmoid)[:, None]

    def images_log_var(self, e: Embedding) -> Tensor:
        """Compute log-variances of images: (B, D) -> (B, 1)."""
        nearest = self.similarity(e, self.captions).topk(min(NEAREST, len(self.shares)), 1).indices     # (B, K)
        return self.shares[nearest].mean(1, keepdim=True)


@torch.no_grad()
def fit(similarity, captions: Embedding, owner: np.ndarray, dev: Embedding, dev_owner: np.ndarray) -> PhotoShares:
    """Fit to captions (M, D) of training photos, owner (M,), and to dev's."""
    sigmoid = fit_sigmoid(dev, dev_owner)
    shares = shares_of_captions(captions, owner, sigmoid)
    return PhotoShares(similarity, captions, number_photos(owner), sigmoid, shares)


def fit_run(model: Trained, dev: Embeddings, batch_size: int, workers: int, **data) -> tuple[PhotoShares, dict]:
    """Fit to the training and dev split of a run's own data.
    Describes the fit for the results.

    data: as `read_split_for` takes them. Raises InputError on a model with variances of its own.
    """
    check_points(dev)
    split = read_split_for(model, "train", **data)
    drawn = bank.draw_queries(split.caption_image, len(split.images), BANK)
    part = Gallery(drawn.images[:0], drawn.captions)
    captions = encode(model.model, split, split.encode(model.vocab), model.device, batch_size, workers, part)[1]
    volume = fit(model.similarity, captions, split.caption_image[drawn.captions], dev.members[0].captions,
                 dev.caption_image)
    return volume, describe(volume, f"{model.options.data_name} train", len(drawn.images))


def fit_file(train: Embeddings, dev: Embeddings) -> tuple[PhotoShares, dict]:
    """Fit to training pairs and to dev pairs of the same points.
    Describes the fit for the results."""
    check_points(dev)
    member = train.members[0]
    volume = fit(member.similarity, member.captions, train.caption_image, dev.members[0].captions, dev.caption_image)
    return volume, describe(volume, train.name, train.n_images)


def check_points(e: Embeddings) -> None:
    check(not e.gaussian, f"--variances volume gives variances to points, and {e.name} has variances of its own; leave "
                          "it out, or give a point model")


def describe(volume: PhotoShares, name: str, images: int) -> dict:
    return {"kind": "volume", "of_photo": list(volume.sigmoid[:2]), "fitted_on": name, "images": images,
            "captions": len(volume.shares)}


def describe_in_words(report: dict) -> str:
    """Sentence on given variances: their source, and what they do not change."""
    sentence = (f"variances: the share that an item covers of the photos of {report['images']:,} images and "
                f"{report['captions']:,} captions of {report['fitted_on']}; the scores of the points stay")
    if report["of_photo"][0] <= 0:
        sentence += ("; captions of one photo of dev lie no nearer to each other than to those of others, so these "
                     "variances say nothing of how many photos fit")
    return sentence


@torch.no_grad()
def give_variances(e: Embeddings, volume: PhotoShares) -> None:
    """Give the points of images and captions their variances, in place."""
    similarity, images, captions = e.members[0]
    sides = (images, volume.images_log_var), (captions, volume.captions_log_var)
    e.members = [Member(similarity, *(x._replace(log_var=torch.cat(
        [log_var(x.rows(rows)) for rows in torch.arange(len(x.mean)).split(ROWS)])) for x, log_var in sides))]
