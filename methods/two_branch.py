"""Two-branch networks: an embedding network trained with triplets in both modalities, and a network that scores pairs.

Wang et al. 2019, Learning Two-Branch Neural Networks for Image-Text Matching Tasks. The similarity network has no public
code; where the paper's text leaves it open it follows its descendant, CITE (Plummer et al. 2018), with one concept.
"""
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from encoders import BatchNorm, vsepp_linear
from similarities import Similarity, block_side, by_blocks, unit


class BranchEmbedding(nn.Module):
    """f_emb of a branch: linear, BatchNorm, ReLU, dropout, linear. (B, F) -> (B, D); the paper's hidden size is 2048, D 512."""

    def __init__(self, inputs: int, hidden: int, embed_size: int, dropout: float = 0.5):
        super().__init__()
        self.dim = embed_size
        self.layers = nn.Sequential(vsepp_linear(inputs, hidden), BatchNorm(hidden), nn.ReLU(), nn.Dropout(dropout),
                                    vsepp_linear(hidden, embed_size))

    def forward(self, features: Tensor, lengths=None) -> Tensor:
        return self.layers(features)


# ---- the embedding network

class TwoBranchLoss(nn.Module):
    """Triplets of both modalities and within the captions, >= 0: a term of model.JointEmbedding that replaces its objective.

    With d(x, y) = sqrt(|x - y|^2 + 1e-4) and, of each of the B pairs, v = max(0, margin + d(anchor, positive) - d(anchor, n)):
    weights[0] * (anchor: the caption, positive: its image, negatives n: the other images) + weights[1] * (its image; the
    caption; captions of other images) + weights[2] * (the caption; the farthest caption of its image in the batch, which may
    be itself; captions of other images). Of an anchor the `top` largest v are averaged, all where it has fewer negatives, and
    then the B anchors. An image is one negative however many of its captions are in the batch, and no caption is a negative
    of its own image; the original's can be, where it draws two pairs of one image.
    """

    def __init__(self, margin: float = 0.05, weights: Sequence[float] = (1.5, 1.0, 0.05), top: int = 10):
        super().__init__()
        self.margin, self.weights, self.top = margin, tuple(weights), top

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        """Embeddings with unit means (B, D), pair by pair; batch.image_index (B,) says whose caption each is."""
        own = batch.image_index[:, None] == batch.image_index                       # (B, B): of one image
        first = own.long().argmax(1) == torch.arange(len(own), device=own.device)   # (B,): where an image comes first
        across = distance(captions.mean, images.mean)                               # (B, B): captions x images
        within = distance(captions.mean, captions.mean)                             # (B, B): captions x captions
        farthest = within.masked_fill(~own, 0).amax(1)                              # (B,)
        terms = (self.hardest(across.diagonal(), across, ~own & first), self.hardest(across.diagonal(), across.T, ~own),
                 self.hardest(farthest, within, ~own))
        return sum(weight * term for weight, term in zip(self.weights, terms))

    def hardest(self, positive: Tensor, others: Tensor, negative: Tensor) -> Tensor:
        """Distances (B,) and (B, B), which of the latter are to negatives -> mean over anchors; 0 where none has negatives."""
        violation = (self.margin + positive[:, None] - others).clamp(min=0).masked_fill(~negative, 0)      # (B, B)
        largest = violation.topk(min(self.top, violation.shape[1]), 1).values       # (B, B) -> (B, top)
        return (largest.sum(1) / negative.sum(1).clamp(1, self.top)).mean()


def distance(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(|x - y|^2 + 1e-4): (N, D), (M, D) -> (N, M), float32 under autocast; smooth where x = y."""
    return (torch.cdist(x, y).square() + 1e-4).sqrt()


def sibling_order(caption_image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An epoch's order of captions, (M,) -> (2 M,): each caption followed by a random other one of its image, pairs shuffled.

    Every caption leads one pair, as in the original, whose epoch draws a sibling for each caption. A caption that is its
    image's only one follows itself: all pairs start at even places, so that a batch of an even size splits none.
    """
    caption_image = np.asarray(caption_image)
    order = np.argsort(caption_image, kind="stable")                                # (M,): captions image by image
    _, start, group, count = np.unique(caption_image[order], return_index=True, return_inverse=True, return_counts=True)
    start, count = start[group], count[group]                                       # (M,) each
    step = 1 + rng.integers(np.maximum(count - 1, 1))                               # from 1 to count - 1: never to itself
    sibling = order[start + (np.arange(len(order)) - start + step) % count]         # (M,)
    return rng.permutation(np.stack([order, sibling], 1)).reshape(-1)               # (M, 2) -> (2 M,)


# ---- the similarity network

class ProductNetwork(Similarity):
    """Log-odds of a match that a network reads off the product of two unit vectors: any real number.

    x * y element by element, then linear, BatchNorm and ReLU for each size in `hidden`, then linear to one number. The
    product is taken D times, which the first layer could do as well: its elements are of the size 1 / D, and their variance
    after an untrained layer is less than what BatchNorm adds to it.

    Every pair passes the network, N * M times D * hidden[0] + ... multiplications. BatchNorm sees all B x B pairs of a
    training batch, which are held at once, and running statistics in evaluation, where blocks are of bounded size.
    """
    logits = True

    def __init__(self, dim: int, hidden: Sequence[int] = (512, 512)):
        super().__init__()
        sizes = [dim, *hidden]
        self.widest = max(sizes)
        layers = [layer for a, b in zip(sizes, hidden) for layer in (vsepp_linear(a, b), BatchNorm(b), nn.ReLU())]
        self.network = nn.Sequential(*layers, vsepp_linear(sizes[-1], 1))

    def forward(self, images, captions):
        self.check(images, captions)
        x, y = (unit(e.mean)[None] for e in (images, captions))                     # (1, N, D), (1, M, D)
        if self.training:                                                           # one batch of pairs to BatchNorm
            return self.pairs(x, y)
        step = block_side(x, self.widest)
        return by_blocks(self.pairs, x, y.split(step, 1), y.shape[1], step)

    def pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """(1, n, D), (1, p, D) -> (n, p)."""
        product = x.shape[2] * x[0][:, None] * y[0]                                 # (n, p, D)
        return self.network(product.flatten(0, 1)).view(product.shape[:2])          # (n p, D) -> (n p, 1) -> (n, p)
