"""Variances that mean how many photos fit, for points that are trained already.

An item's log-variance is the log of the share of the training photos that it covers
(methods.volume), one for all dimensions, so that its volume is that share: log det Sigma = D log
share. The scores of the points stay.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.embeddings import Member
from losses import Embedding, unit
from methods.volume import (
    fit_sigmoid,
    log_share,
    nearest_captions,
    number_photos,
    shares_of_captions,
)
from metrics import Sigmoid

BANK = 50_000  # captions of the training split that tell what is covered
NEAREST = 50  # captions that tell what an image covers
ITEMS_PER_BLOCK = 1024  # that are given variances at a time


class PhotoShares(NamedTuple):
    """Share of the photos of a bank of captions that an item covers.

    A caption covers a photo with probability sigmoid(a s + b), s its largest cosine with a caption
    of the photo. An image covers what its NEAREST captions of the bank cover: the mean of their log
    shares, each without its own photo.
    """

    similarity: object  # one of losses.SIMILARITIES, built
    captions: Embedding  # (M, D) the bank
    owner: Tensor  # (M,) the photo of each, from 0
    sigmoid: Sigmoid  # a and b
    shares: Tensor  # (M,) log shares of the bank

    def captions_log_var(self, e: Embedding) -> Tensor:
        """Compute log-variances of captions: (B, D) -> (B, 1)."""
        n_photos = int(self.owner.max()) + 1
        cosines = unit(e.mean) @ unit(self.captions.mean).T  # (B, M)
        nearest = nearest_captions(cosines, self.owner, n_photos)  # (B, N)
        return log_share(nearest, self.sigmoid)[:, None]

    def images_log_var(self, e: Embedding) -> Tensor:
        """Compute log-variances of images: (B, D) -> (B, 1)."""
        count = min(NEAREST, len(self.shares))
        nearest = self.similarity(e, self.captions).topk(count, 1).indices  # (B, K)
        return self.shares[nearest].mean(1, keepdim=True)

    @torch.no_grad()
    def give(self, points: Member) -> Member:
        """Give points of both sides their variances."""
        images = add_log_var(points.images, self.images_log_var)
        captions = add_log_var(points.captions, self.captions_log_var)
        return points._replace(images=images, captions=captions)


def add_log_var(e: Embedding, compute) -> Embedding:
    """Add the log-variances that compute(part of e) returns, (b, 1), block by block."""
    blocks = torch.arange(len(e.mean)).split(ITEMS_PER_BLOCK)
    log_var = torch.cat([compute(e.rows(rows)) for rows in blocks])
    return e._replace(log_var=log_var)


@torch.no_grad()
def fit_shares(
    similarity, captions: Embedding, owner: np.ndarray, dev: Embedding, dev_owner: np.ndarray
) -> PhotoShares:
    """Fit shares to captions of training photos, and the probability of a pair to dev.

    Args:
        similarity: of the points.
        captions: (M, D), of training photos.
        owner: (M,) their photos.
        dev: captions of dev.
        dev_owner: their photos.
    """
    sigmoid = fit_sigmoid(dev, dev_owner)
    shares = shares_of_captions(captions, owner, sigmoid)
    return PhotoShares(similarity, captions, number_photos(owner), sigmoid, shares)


def describe_shares(report: dict) -> str:
    """Say where given variances come from, and what they do not change."""
    sentence = (
        f"variances: the share that an item covers of the {report['images']:,} photos "
        f"({report['captions']:,} captions) of {report['fitted_on']}; the scores of the points stay"
    )
    slope = report["of_photo"][0]
    if slope <= 0:
        sentence += (
            "; captions of one photo of dev lie no nearer to each other than to those of others, "
            "so these variances say nothing of how many photos fit"
        )
    return sentence
