"""Two-branch networks: an embedding network trained with triplets across and within modalities, and
a network that scores pairs.

    python train.py --data_name f8k_precomp --loss two_branch --txt_enc mean --txt_layers 2048 \\
        --img_layers 2048 --layer_style branch --embed_size 512

Wang et al. 2019, Learning Two-Branch Neural Networks for Image-Text Matching Tasks. The similarity
network (--sim product) has no public code. Where the text of the paper leaves it open, it follows
its successor CITE (Plummer et al. 2018) with one concept.
"""
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from layers import BatchNorm, Latent, vsepp_linear
from losses import NUMBERS, score_blocks, unit


def fc(inputs: int, outputs: int) -> list[nn.Module]:
    """Linear, BatchNorm, ReLU."""
    return [vsepp_linear(inputs, outputs), BatchNorm(outputs), nn.ReLU()]


class BranchEmbedding(nn.Module):
    """f_emb of a branch: linear, BatchNorm, ReLU, dropout, linear. (B, F) -> (B, D). The paper's
    hidden size is 2048 and its D 512."""

    def __init__(self, inputs: int, hidden: int, embed_size: int):
        super().__init__()
        self.dim = embed_size
        self.layers = nn.Sequential(*fc(inputs, hidden), nn.Dropout(0.5),
                                    vsepp_linear(hidden, embed_size))

    def forward(self, features: Tensor, lengths=None) -> Latent:
        return Latent(self.layers(features))


# ---- the embedding network

class TwoBranchLoss(nn.Module):
    """Triplet loss across modalities and within the captions, >= 0: a term of model.VSE
    that replaces its objective.

    With d(x, y) = sqrt(|x - y|^2 + 1e-4) and, for each of the B pairs, v = max(0, margin +
    d(anchor, positive) - d(anchor, negative)), the loss is the sum of three terms:

        weights[0]   anchor: the caption, positive: its image, negatives: the other images
        weights[1]   anchor: the image, positive: the caption, negatives: captions of other images
        weights[2]   anchor: the caption, positive: the farthest caption of its image in the batch, which may be itself,
                     negatives: captions of other images

    For each anchor the `top` largest v are averaged, or all of them if it has fewer negatives; then
    the B anchors are averaged. An image counts as one negative however many of its captions are in
    the batch, and no caption is a negative of its own image. In the original it can be, if two
    pairs of one image are drawn.
    """

    margin, weights, top = 0.05, (1.5, 1.0, 0.05), 10

    def forward(self, image, caption, batch) -> Tensor:
        """image, caption: model.Encoded with unit means (B, D), pair by pair. batch.image_index
        (B,) says whose caption each one is."""
        images, captions, index = image.embedding.mean, caption.embedding.mean, batch.image_index
        every = torch.arange(len(index), device=index.device)
        same = index[:, None] == index                                        # (B, B): of one image
        first = same.long().argmax(1) == every                          # (B,): an image's first row
        across = distance(captions, images)                              # (B, B): captions x images
        within = distance(captions, captions)                          # (B, B): captions x captions
        farthest = within.masked_fill(~same, 0).amax(1)                             # (B,)
        terms = (self.hardest(across.diagonal(), across, ~same & first),
                 self.hardest(across.diagonal(), across.T, ~same),
                 self.hardest(farthest, within, ~same))
        return sum(weight * term.mean() for weight, term in zip(self.weights, terms))

    def hardest(self, positive: Tensor, others: Tensor, negative: Tensor,
                anchor: Tensor | None = None) -> Tensor:
        """Mean of the largest violations of each pair, 0 if its anchor has no negatives: (K,).

        positive (K,): distance of an anchor to a positive. others (A, n): distances of the anchors
        to all items. negative (A, n) bool: which of these are negatives. anchor (K,): whose
        distance each is, by default 0 ... A - 1.
        """
        nearest = others.masked_fill(~negative, torch.inf)
        # (A, n) -> (A, top)
        nearest = nearest.topk(min(self.top, nearest.shape[1]), 1, largest=False).values
        count = negative.sum(1).clamp(1, self.top)                                  # (A,)
        if anchor is not None:
            nearest, count = nearest[anchor], count[anchor]                         # (K, top), (K,)
        return (self.margin + positive[:, None] - nearest).clamp(min=0).sum(1) / count


def distance(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(|x - y|^2 + 1e-4): (N, D), (M, D) -> (N, M), float32 under autocast; smooth where x =
    y."""
    return (torch.cdist(x, y).square() + 1e-4).sqrt()


def sibling_order(caption_image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An epoch's order of captions, (M,) -> (2 M,): each caption followed by a random other one of
    its image, pairs shuffled.

    Every caption leads one pair, as in the original, whose epoch draws a sibling for each caption.
    A caption that is the only one of its image follows itself. So all pairs start at even
    positions, and a batch of an even size splits no pair.
    """
    caption_image = np.asarray(caption_image)
    order = np.argsort(caption_image, kind="stable")                 # (M,): captions image by image
    _, start, group, count = np.unique(caption_image[order], return_index=True, return_inverse=True,
                                       return_counts=True)
    start, count = start[group], count[group]                                       # (M,) each
    step = 1 + rng.integers(np.maximum(count - 1, 1))             # 1 ... count - 1: never to itself
    sibling = order[start + (np.arange(len(order)) - start + step) % count]         # (M,)
    return rng.permutation(np.stack([order, sibling], 1)).reshape(-1)             # (M, 2) -> (2 M,)


# ---- the similarity network

class PairNetwork(nn.Module):
    """Log-odds of a match, any real number, from a network that reads each pair by itself.

    A subclass defines `widest`, the size of its widest layer; read(captions), what it reads of each
    caption, (M, C); and score(x, y), of unit means of images (..., D) and of what is read of
    captions (..., C) -> (...), broadcast.

    In training all pairs asked for are held at once, and BatchNorm sees them and no others. In
    evaluation it uses its running statistics, and blocks have bounded size.
    """
    logits, within_modality, implies = True, False, {"loss": "logistic"}
    widest: int

    def read(self, captions) -> Tensor:
        raise NotImplementedError

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, images, captions):
        x, y = unit(images.mean), self.read(captions)                               # (N, D), (M, C)
        if self.training:
            return self.score(x[:, None], y)                                        # (N, M)
        return score_blocks(lambda i, j: self.score(x[i, None], y[j]), len(x), len(y), self.widest, x.device)

    def at(self, images, captions, rows, columns):
        """Scores (K,) of the images `rows` (K,) with the captions `columns` (K,)."""
        x, y = unit(images.mean), self.read(captions)                               # (N, D), (M, C)
        step = len(rows) if self.training else max(1, NUMBERS["cpu"] // self.widest)
        return torch.cat([self.score(x[i], y[j])
                          for i, j in zip(rows.split(step), columns.split(step))])            # (K,)

class ProductNetwork(PairNetwork):
    """Log-odds of a match, any real number, from a network that reads the product of two unit
    vectors.

    The input is x * y element by element; then come linear, BatchNorm and ReLU for each size in
    `hidden`, then a linear layer to one number. The product is multiplied by D, which the first
    layer could do as well: its elements have size 1 / D, and after an untrained layer their
    variance is less than what BatchNorm adds to it.

    Every pair passes through the network, with N * M times D * hidden[0] + ... multiplications.
    """
    options = ("embed_size",)

    def __init__(self, dim: int, hidden: Sequence[int] = (512, 512)):
        super().__init__()
        sizes = [dim, *hidden]
        self.widest = max(sizes)
        layers = [layer for a, b in zip(sizes, hidden) for layer in fc(a, b)]
        self.network = nn.Sequential(*layers, vsepp_linear(sizes[-1], 1))

    def read(self, captions):
        return unit(captions.mean)                                                  # (M, D)

    def score(self, x, y):
        product = x.shape[-1] * x * y                                               # (..., D)
        # (P, D) -> (P, 1) -> (...)
        return self.network(product.flatten(0, -2)).view(product.shape[:-1])
