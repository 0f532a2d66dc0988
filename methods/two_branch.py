"""Two-branch networks, trained with triplets or as a score of pairs, and CITE.

    python train.py --data_name f8k_precomp --loss two_branch --txt_enc mean --txt_layers 2048 \\
        --img_layers 2048 --layer_style branch --embed_size 512
    python train.py --data_name f30k_entities --method cite --text_features hglmm

Wang et al. 2019, Learning Two-Branch Neural Networks for Image-Text Matching Tasks. The similarity
network (--sim product) has no public code; what the paper leaves open follows its successor CITE
with one concept. CITE: Plummer et al. 2018, Conditional Image-Text Embedding Networks, after their
public code, whose branches have no dropout.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from losses import (
    LOSSES,
    NUMBERS_PER_BLOCK,
    SIMILARITIES,
    PairLoss,
    Similarity,
    Term,
    score_in_blocks,
    unit,
)
from model import LAYER_STYLES, OPTION_DEFAULTS, BatchNorm, Layers, layer_sizes, vsepp_linear
from utils import sizes

CONCEPT_WEIGHT = 5e-5  # of the L1 norm of CITE's concept logits


def fc(inputs: int, outputs: int) -> list[nn.Module]:
    """Build a linear layer, BatchNorm and ReLU."""
    return [vsepp_linear(inputs, outputs), BatchNorm(outputs), nn.ReLU()]


def branch_layers(inputs: int, hidden: int, embed_size: int) -> Layers:
    """Build f_emb of a branch, linear, BatchNorm, ReLU, dropout, linear: (B, F) -> (B, D)."""
    layers = fc(inputs, hidden)
    layers.append(nn.Dropout(0.5))
    layers.append(vsepp_linear(hidden, embed_size))
    return Layers(embed_size, *layers)


def build_branch(inputs: int, sizes: list[int], embed_size: int) -> Layers:
    """Build f_emb of a branch, of the first of the sizes: (B, F) -> (B, D)."""
    return branch_layers(inputs, sizes[0], embed_size)


LAYER_STYLES["branch"] = build_branch


# ---- the embedding network


class TwoBranchLoss(PairLoss):
    """Triplet loss of images and captions, and of captions, >= 0 (Wang et al. 2019).

    With d(x, y) = sqrt(|x - y|^2 + 1e-4) and v = max(0, margin + d(anchor, positive) - d(anchor,
    negative)), the loss is the sum of three terms:

        weights[0]   anchor: the caption, positive: its image, negatives: the other images
        weights[1]   anchor: the image, positive: the caption, negatives: captions of other images
        weights[2]   anchor: the caption, positive: the farthest caption of its image in the batch,
                     which may be itself, negatives: captions of other images

    The `top` largest v of an anchor are averaged, or all of fewer negatives, then the B anchors. An
    image counts as one negative however many of its captions are in the batch, and no caption is a
    negative of its own image, as it can be in the original.
    """

    margin = 0.05
    weights = (1.5, 1.0, 0.05)
    top = 10

    @classmethod
    def order_pairs(cls, caption_image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return sibling_order(caption_image, rng)

    def forward(self, image, caption, batch) -> Tensor:
        """Compute the loss of pairs; image, caption: model.Encoded with unit means (B, D)."""
        images = image.embedding.mean
        captions = caption.embedding.mean
        index = batch.image_index
        same_image = index[:, None] == index  # (B, B)
        rows = torch.arange(len(index), device=index.device)
        is_first = same_image.long().argmax(1) == rows  # (B,): an image's first row

        across = distance(captions, images)  # (B, B): captions x images
        within = distance(captions, captions)  # (B, B): captions x captions
        farthest = within.masked_fill(~same_image, 0).amax(1)  # (B,)

        of_images = self.hardest(across.diagonal(), across, ~same_image & is_first)  # (B,)
        of_captions = self.hardest(across.diagonal(), across.T, ~same_image)  # (B,)
        within_captions = self.hardest(farthest, within, ~same_image)  # (B,)
        total = self.weights[0] * of_images.mean()
        total = total + self.weights[1] * of_captions.mean()
        return total + self.weights[2] * within_captions.mean()

    def hardest(self, positive: Tensor, others: Tensor, negative: Tensor) -> Tensor:
        """Average the largest violations of each anchor: (K,), 0 without negatives.

        positive (K,): its distance to a positive. others, negative (K, n): to all items, and which
        are negatives.
        """
        nearest = others.masked_fill(~negative, torch.inf)
        count = min(self.top, nearest.shape[1])
        nearest = nearest.topk(count, 1, largest=False).values  # (K, top)
        violations = (self.margin + positive[:, None] - nearest).clamp(min=0)
        n_negatives = negative.sum(1).clamp(1, self.top)  # (K,)
        return violations.sum(1) / n_negatives


def distance(x: Tensor, y: Tensor) -> Tensor:
    """Compute sqrt(|x - y|^2 + 1e-4), float32 under autocast: (N, D), (M, D) -> (N, M)."""
    return (torch.cdist(x, y).square() + 1e-4).sqrt()


def sibling_order(caption_image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Order the captions of an epoch in pairs of one image: (M,) -> (2 M,).

    Each caption is followed by a random other caption of its image, or by itself where there is
    none; pairs are shuffled. A batch of an even size splits no pair.
    """
    caption_image = np.asarray(caption_image)
    order = np.argsort(caption_image, kind="stable")  # (M,): captions image by image
    _, start, group, count = np.unique(
        caption_image[order], return_index=True, return_inverse=True, return_counts=True
    )
    start = start[group]  # (M,): where the captions of an image begin
    count = count[group]  # (M,): how many they are

    step = 1 + rng.integers(np.maximum(count - 1, 1))  # 1 ... count - 1: never to itself
    within = np.arange(len(order)) - start  # (M,): position among the captions of an image
    sibling = order[start + (within + step) % count]  # (M,)
    pairs = np.stack([order, sibling], 1)  # (M, 2)
    return rng.permutation(pairs).reshape(-1)  # (2 M,)


# ---- the similarity network, and CITE


class PairNetwork(nn.Module):
    """Log-odds of a match from a network that reads each pair by itself.

    A subclass defines `widest`, the size of its widest layer; read(captions) -> (M, C); and
    score(x, y) of unit means of images (..., D) and what is read of captions (..., C) -> (...),
    broadcast. In training BatchNorm sees all pairs of a batch at once; an evaluation goes in
    blocks.
    """

    widest: int

    def forward(self, images, captions):
        x = unit(images.mean)  # (N, D)
        y = self.read(captions)  # (M, C)
        if self.training:
            return self.score(x[:, None], y)  # (N, M)

        def score(rows: slice, columns: slice) -> Tensor:
            return self.score(x[rows, None], y[columns])

        return score_in_blocks(score, len(x), len(y), self.widest, x.device)

    def at(self, images, captions, rows, columns):
        """Score the images `rows` (K,) with the captions `columns` (K,): (K,)."""
        x = unit(images.mean)  # (N, D)
        y = self.read(captions)  # (M, C)
        step = len(rows)
        if not self.training:
            step = max(1, NUMBERS_PER_BLOCK["cpu"] // self.widest)

        scores = []
        for i, j in zip(rows.split(step), columns.split(step)):
            scores.append(self.score(x[i], y[j]))
        return torch.cat(scores)


class ProductNetwork(PairNetwork):
    """Log-odds of a match from the product x * y of two unit vectors.

    Linear, BatchNorm and ReLU for each size in `hidden`, then a linear layer. The product is
    multiplied by D: its elements have size 1 / D, whose variance after an untrained layer is less
    than what BatchNorm adds to it.
    """

    def __init__(self, dim: int, hidden: Sequence[int] = (512, 512)):
        super().__init__()
        self.widest = max([dim, *hidden])
        layers = []
        inputs = dim
        for outputs in hidden:
            layers += fc(inputs, outputs)
            inputs = outputs
        layers.append(vsepp_linear(inputs, 1))
        self.network = nn.Sequential(*layers)

    def read(self, captions):
        return unit(captions.mean)  # (M, D)

    def score(self, x, y):
        product = x.shape[-1] * x * y  # (..., D)
        log_odds = self.network(product.flatten(0, -2))  # (P, D) -> (P, 1)
        return log_odds.view(product.shape[:-1])  # (...)


class ConditionalNetwork(PairNetwork):
    """CITE's log-odds of a match: a linear layer of sum_k p_k(y) h_k(x * y).

    x, y: unit means of a region and a phrase (D,). x * y, times D as in ProductNetwork, goes
    through linear, BatchNorm, ReLU of size `joint`, and h_k, one for each of K concepts, is the
    same of size `hidden` behind it. p is the softmax of K logits of y. layers: "joint-hidden".

    In the original a third branch reads p from the features of the phrase, and a feature is
    normalized over the boxes of an image; here each vector has norm 1.
    """

    concepts = 4

    def __init__(self, dim: int, layers: str = "1024-256"):
        super().__init__()
        joint, hidden = layer_sizes(layers)
        of_concepts = self.concepts * hidden
        self.dim = dim
        self.widest = max(dim, joint, of_concepts)
        self.joint = nn.Sequential(*fc(dim, joint))
        self.branches = nn.Sequential(*fc(joint, of_concepts))  # of all concepts, side by side
        self.out = vsepp_linear(hidden, 1)
        self.mixture = nn.Sequential(*fc(dim, joint), vsepp_linear(joint, self.concepts))

    def read(self, captions):
        y = unit(captions.mean)  # (M, D)
        p = self.mixture(y).softmax(1)  # (M, K)
        return torch.cat([y, p], 1)  # (M, D + K)

    def score(self, x, y):
        product = self.dim * x * y[..., : self.dim]  # (..., D)
        p = y[..., self.dim :]  # (..., K)
        pairs = product.shape[:-1]

        h = self.branches(self.joint(product.flatten(0, -2)))  # (P, D) -> (P, K H)
        h = h.unflatten(1, (self.concepts, -1))  # (P, K, H)
        p = p.expand(*pairs, self.concepts).flatten(0, -2)  # (P, K)
        mixed = torch.einsum("pk,pkh->ph", p, h)  # (P, H)
        return self.out(mixed).view(pairs)

    def penalty(self, image, caption, batch) -> Tensor:
        """Compute the L1 norm of a phrase's concept logits, mean over phrases: a term of model.VSE.

        The logits are computed again, in float32, so the BatchNorm of their branch counts each
        batch twice.
        """
        y = caption.embedding.mean
        with torch.autocast(y.device.type, enabled=False):
            return self.mixture(unit(y)).abs().sum(1).mean()


# ---- what --loss two_branch, --sim product and --sim cite name


def penalize_concepts(similarity: ConditionalNetwork) -> dict[str, Term]:
    """Build the term of the penalty of CITE's concepts."""
    return {"concepts": Term(CONCEPT_WEIGHT, similarity.penalty)}


CITE_OPTIONS = {
    "cite_layers": (sizes, None, "cite: the shared and the concepts' layers (default: 1024-256)"),
}
OPTION_DEFAULTS["cite_layers"] = "1024-256"
LOSSES["two_branch"] = TwoBranchLoss
SIMILARITIES["product"] = Similarity(
    ProductNetwork,
    latents=True,
    labelled_pairs=True,
    logits=True,
    within_modality=False,
    options=("embed_size",),
    defaults={"loss": "logistic"},
)
SIMILARITIES["cite"] = Similarity(
    ConditionalNetwork,
    latents=True,
    labelled_pairs=True,
    logits=True,
    within_modality=False,
    penalize=penalize_concepts,
    options=("embed_size", "cite_layers"),
    defaults={"loss": "logistic"},
)
