"""Similarities of points and Gaussians, ranking losses, and the GAN of jWAE.

A similarity is a function of N images and M captions, two Embeddings, that returns scores (N, M),
higher is better. All but order are made of matrix products, so that nothing of size N x M x D is
held. float32 loses digits where large terms cancel, so a distance is taken from the center of the
captions.

A ranking loss reads the scores (B, B) of a batch of matched pairs, which are on the diagonal.

SIMILARITIES and LOSSES hold them by the names of --sim and --loss, each with what it needs; files
of methods/ add theirs.

Papers: pmrl, ucmr, jwae, dmsm (README.md); VSE++ Faghri et al. 2018; PCME++ Chun 2024.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils import InputError

LOG_VAR_BOUNDS = (math.log(0.1), math.log(10))  # variances lie in [0.1, 10]: pmrl 3.1, ucmr 4.2
# Size of the largest temporary of a block of pairs: what a cache holds.
NUMBERS_PER_BLOCK = {"cpu": 2**18, "cuda": 2**25}


# ---- embeddings


class PartBlocks:
    """Parts of N items in blocks (n, P, D), each padded to its own longest item.

    Encoded by length, captions take little more than their words: 1.4 GB for COCO's test, where one
    tensor, padded to the longest of its 25,000 captions, takes 5 GB.

    blocks: the parts of items one after another. position (N, 2): block and row of each item, on
    the CPU.
    """

    def __init__(self, blocks: list[Tensor], position: Tensor | None = None):
        self.blocks = blocks
        self.device = blocks[0].device
        if position is None:
            position = number_rows(blocks)
        self.position = position

    def __getitem__(self, index):
        """Select items; of a single one the parts (P, D)."""
        if torch.is_tensor(index):
            index = index.cpu()
        position = self.position[index]
        if position.ndim == 2:
            return PartBlocks(self.blocks, position)
        block, row = position.tolist()
        return self.blocks[block][row]

    def to(self, device) -> "PartBlocks":
        blocks = [parts.to(device) for parts in self.blocks]
        return PartBlocks(blocks, self.position)

    def pad(self, items: Tensor, max_parts: int) -> Tensor:
        """Get the first parts of items (n,), zeros where they have fewer: (n, max_parts, D)."""
        position = self.position[items.cpu()]
        dim = self.blocks[0].shape[2]
        padded = self.blocks[0].new_zeros(len(items), max_parts, dim)
        for block in position[:, 0].unique().tolist():
            here = (position[:, 0] == block).nonzero()[:, 0]  # of the items
            rows = position[here, 1].to(self.device)
            parts = self.blocks[block][rows, :max_parts]
            padded[here.to(self.device), : parts.shape[1]] = parts
        return padded


def number_rows(blocks: list[Tensor]) -> Tensor:
    """List block and row of each item of blocks (n, ...): (N, 2)."""
    counts = torch.tensor([len(block) for block in blocks])
    block = torch.repeat_interleave(counts)
    row = torch.cat([torch.arange(count) for count in counts.tolist()])
    return torch.stack([block, row], 1)


class Embedding(NamedTuple):
    """A batch of points or of diagonal Gaussians."""

    mean: Tensor  # (N, D)
    log_var: Tensor | None = None  # (N, D) ellipsoidal | (N, 1) spherical | None: a point
    parts: Tensor | PartBlocks | None = None  # (N, P, D) regions, words, or K embeddings
    n_parts: Tensor | None = None  # (N,) number of parts that are not padding

    def rows(self, index) -> "Embedding":
        """Select the items of a slice, list or tensor."""
        selected = []
        for values in self:
            if values is not None:
                values = values[index]
            selected.append(values)
        return Embedding(*selected)

    def to(self, device) -> "Embedding":
        moved = []
        for values in self:
            if values is not None:
                values = values.to(device)
            moved.append(values)
        return Embedding(*moved)

    @staticmethod
    def cat(batches: list["Embedding"]) -> "Embedding":
        """Concatenate batches.

        Parts stay as they are where the batches have different numbers of them.
        """
        if len(batches) == 1:
            return batches[0]

        joined = {}
        for name in Embedding._fields:
            values = [getattr(batch, name) for batch in batches]
            if values[0] is None:
                continue
            if name == "parts" and len({parts.shape[1] for parts in values}) > 1:
                joined[name] = PartBlocks(values)
            else:
                joined[name] = torch.cat(values)
        return Embedding(**joined)


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """l2-normalize vectors (..., D); eps bounds the gradient of a zero vector by 1e6."""
    return F.normalize(x, dim=dim, eps=1e-6)


def real_parts(parts: Tensor, n_parts: Tensor) -> Tensor:
    """Mask the parts that are not padding: (B, P, ...), (B,) -> (B, P)."""
    numbers = torch.arange(parts.shape[1], device=parts.device)
    return numbers < n_parts.to(parts.device)[:, None]


def real_rows(rows: Tensor, n_parts: Tensor | None) -> Tensor:
    """Take vectors of items (B, D), or of their real parts among (B, P, D) -> (R, D)."""
    if n_parts is None:
        return rows
    return rows[real_parts(rows, n_parts)]


def mean_rows(rows: Tensor, n_parts: Tensor | None) -> Tensor:
    """Average the real parts: (B, P, D) -> (B, D); vectors (B, D) stay."""
    if n_parts is None:
        return rows
    real = real_parts(rows, n_parts)  # (B, P)
    total = (rows * real[:, :, None]).sum(1)  # (B, D)
    return total / n_parts[:, None]


def uncertainty(e: Embedding) -> Tensor:
    """Compute log det Sigma of Gaussians in nats (ucmr 3.3), else ValueError: (N,)."""
    if e.log_var is None:
        raise ValueError(
            "a point has no uncertainty; train with a Gaussian head (--head ellipsoidal)"
        )
    return e.log_var.expand_as(e.mean).sum(1)


# ---- parts of the similarities


def squared_distance(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Compute |x_i - y_j|^2 in `dim` dimensions: (N, D), (M, D) -> (N, M), >= 0 but for rounding.

    (N, 1) and (M, 1) stand for D equal numbers. One matrix product computes all pairs, as
    |x|^2 + |y|^2 - 2 x.y. In float32 this loses its digits where the points are far from 0 and near
    each other, as standard deviations are. So what the points share is subtracted first: the mean
    of the y, which changes no distance, and then the mean of each row, since
    |x - y|^2 = |x' - y'|^2 + D (mean x - mean y)^2.
    """
    if x.shape[1] != y.shape[1]:
        x = x.expand(-1, dim)
        y = y.expand(-1, dim)
    center = y.detach().mean(0)
    x = x - center
    y = y - center

    x_mean = x.mean(1, keepdim=True)  # (N, 1)
    y_mean = y.mean(1, keepdim=True)  # (M, 1)
    x = x - x_mean
    y = y - y_mean

    square = (x_mean - y_mean.T).square().mul_(dim)  # (N, M)
    x_square = x.square().sum(1)[:, None]  # (N, 1)
    y_square = y.square().sum(1)  # (M,)
    square += x_square + y_square
    return torch.addmm(square, x, y.T, alpha=-2)


def negative_root(square: Tensor) -> Tensor:
    """Compute -sqrt of squared distances, with a finite gradient where the distance is 0."""
    smallest = torch.finfo(square.dtype).eps ** 2
    return square.clamp(min=smallest).sqrt().neg()


def variance(e: Embedding, power: float = 1.0) -> Tensor:
    """Return variances, or standard deviations at power 0.5: (N, D), or spherical (N, 1)."""
    return (power * e.log_var).exp()


def trace(e: Embedding) -> Tensor:
    """Sum the variances over the dimensions: (N,)."""
    return variance(e).expand_as(e.mean).sum(1)


def score_in_blocks(
    score: Callable[[slice, slice], Tensor],
    n: int,
    m: int,
    per_pair: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Compute scores (N, M) by blocks score(rows, columns).

    per_pair: numbers that a pair takes in the largest temporary of a block.
    """
    kind = "cuda"
    if torch.device(device).type == "cpu":
        kind = "cpu"
    side = max(1, math.isqrt(NUMBERS_PER_BLOCK[kind] // per_pair))

    rows = []
    for top in range(0, max(1, n), side):
        blocks = []
        for left in range(0, max(1, m), side):
            block = score(slice(top, top + side), slice(left, left + side))
            blocks.append(block)
        rows.append(torch.cat(blocks, 1))
    return torch.cat(rows)


# ---- similarities: N images, M captions -> scores (N, M)


def dot(images: Embedding, captions: Embedding) -> Tensor:
    """Inner product of the means, VSE++'s score: the cosine of unit vectors."""
    return images.mean @ captions.mean.T


def cosine(images: Embedding, captions: Embedding) -> Tensor:
    """Cosine of the means, in [-1, 1] (VSE++ 3.1)."""
    return unit(images.mean) @ unit(captions.mean).T


def order(images: Embedding, captions: Embedding) -> Tensor:
    """-|max(0, caption - image)| of the means (Vendrov et al. 2016, VSE++ 4.4)."""
    x = images.mean[:, None]  # (N, 1, D)
    y = captions.mean  # (M, D)
    dim = y.shape[1]

    def score(rows: slice, columns: slice) -> Tensor:
        violation = (y[columns] - x[rows]).clamp(min=0)  # (n, m, D)
        return negative_root(violation.square().sum(2))

    return score_in_blocks(score, len(x), len(y), per_pair=dim, device=x.device)


def mahalanobis(images: Embedding, captions: Embedding) -> Tensor:
    """-sqrt((x - mu)^T Sigma^-1 (x - mu)), mu and Sigma of the Gaussian side.

    pmrl eq. 6 (GCE: the captions) and eq. 10 (GIE: the images).
    """
    if captions.log_var is None:
        return mahalanobis(captions, images).T

    center = captions.mean.detach().mean(0)
    precision = variance(captions, -1).expand_as(captions.mean)  # (M, D)
    x = images.mean - center
    y = captions.mean - center
    y_square = (precision * y.square()).sum(1)  # (M,)
    x_square = x.square() @ precision.T  # (N, M)
    scaled = precision * y  # (M, D)
    square = torch.addmm(y_square + x_square, x, scaled.T, alpha=-2)
    return negative_root(square)


def kl(images: Embedding, captions: Embedding) -> Tensor:
    """-KL(image || caption) in nats, <= 0: pmrl eq. 15, ucmr eq. 4."""
    image = standardize_gaussians(images, captions)
    caption = standardize_gaussians(captions, captions)
    return -divergence(image, caption)


def kl_reverse(images: Embedding, captions: Embedding) -> Tensor:
    """-KL(caption || image) in nats, <= 0: ucmr Table 6."""
    caption = standardize_gaussians(captions, captions)
    image = standardize_gaussians(images, captions)
    return -divergence(caption, image).T


def minkl(images: Embedding, captions: Embedding) -> Tensor:
    """-min(KL(image || caption), KL(caption || image)) in nats, <= 0: pmrl eq. 16."""
    image = standardize_gaussians(images, captions)
    caption = standardize_gaussians(captions, captions)
    forward = divergence(image, caption)  # (N, M)
    reverse = divergence(caption, image).T  # (N, M)
    return -torch.minimum(forward, reverse)


class Standardized(NamedTuple):
    """Gaussians standardized by an average one."""

    mean: Tensor  # (N, D)
    log_var: Tensor  # (N, D) minus the level
    level: Tensor  # (N, 1) average log-variance of an item


def standardize_gaussians(e: Embedding, reference: Embedding) -> Standardized:
    """Standardize by the average Gaussian of `reference`."""
    center = reference.mean.detach().mean(0)
    log_scale = reference.log_var.detach().mean(0)
    mean = (e.mean - center).mul_((-log_scale / 2).exp())
    log_var = e.log_var - log_scale
    level = log_var.mean(1, keepdim=True)
    log_var = log_var.sub_(level).expand_as(mean)
    return Standardized(mean, log_var, level)


def divergence(p: Standardized, q: Standardized) -> Tensor:
    """Compute KL(p_i || q_j) in nats, (N, M), of standardized Gaussians.

    2 KL = sum_d [v_p / v_q - 1 - log(v_p / v_q) + (mu_p - mu_q)^2 / v_q]. For log-variances l and
    levels L, with x = e^l_p - 1, y = e^-l_q - 1 and r = L_p - L_q: v_p / v_q - 1 = e^r (x y + x +
    y) + e^r - 1. No large terms cancel.
    """
    mu_p, l_p, level_p = p
    mu_q, l_q, level_q = q
    dim = mu_p.shape[1]
    scale = level_p.exp()  # (N, 1)
    shrink = (-level_q).exp()  # (M, 1)

    square = torch.addcmul(l_p.expm1() * scale, mu_p, mu_p)  # e^L_p x + mu_p^2: (N, D)
    y = (-l_q).expm1_() * shrink  # e^-L_q y: (M, D)
    scaled = (y + shrink) * mu_q  # mu_q / v_q: (M, D)
    ratio = level_p - level_q.T  # r: (N, M)

    total = (ratio.expm1() - ratio).mul_(dim)
    total += square.sum(1, keepdim=True) * shrink.T + scale * y.sum(1)
    of_q = torch.addcmul(l_q, mu_q, scaled).sum(1)  # (M,)
    of_p = l_p.sum(1)[:, None]  # (N, 1)
    total += of_q - of_p
    total = torch.addmm(total, square, y.T)
    return torch.addmm(total, mu_p, scaled.T, alpha=-2) / 2


def wasserstein(images: Embedding, captions: Embedding, power: float = 0.5) -> Tensor:
    """-sqrt(|mu_i - mu_c|^2 + |sigma_i - sigma_c|^2), <= 0.

    sigma: standard deviations. pmrl eq. 17 = ucmr eq. 7.
    """
    dim = images.mean.shape[1]
    of_means = squared_distance(images.mean, captions.mean, dim)  # (N, M)
    of_std = squared_distance(variance(images, power), variance(captions, power), dim)
    return negative_root(of_means + of_std)


def wasserstein_var(images: Embedding, captions: Embedding) -> Tensor:
    """-sqrt(|mu_i - mu_c|^2 + |sigma_i^2 - sigma_c^2|^2), <= 0.

    ucmr eq. 8 as printed, which contradicts its eq. 7.
    """
    return wasserstein(images, captions, power=1.0)


def csd(images: Embedding, captions: Embedding) -> Tensor:
    """-(|mu_i - mu_c|^2 + tr(Sigma_i + Sigma_c)), <= 0.

    Closed-form sampled distance, PCME++ eq. 1.
    """
    image_trace = trace(images)  # (N,)
    caption_trace = trace(captions)  # (M,)
    square = squared_distance(images.mean, captions.mean, images.mean.shape[1])  # (N, M)
    return -square - (image_trace[:, None] + caption_trace)


class MLS(nn.Module):
    """-(|mu_i - mu_c|^2 / v + k log v) / 2, v = v_i + v_c, in nats; a point has v 0.

    The mutual likelihood score of Shi and Jain 2019 (eq. 3) in k dimensions, for one variance an
    item. At k = D this is the log of the integral of p q, minus a constant; but embeddings do not
    fill their D dimensions, so k, the effective dimension, is learned.
    """

    def __init__(self, effective_dim: float = 4.0):
        super().__init__()
        self.log_k = nn.Parameter(torch.tensor(math.log(effective_dim)))

    @property
    def k(self) -> Tensor:
        """The effective dimension, above 0."""
        return self.log_k.exp()

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        var = 0
        if images.log_var is not None:
            var = variance(images)  # (N, 1)
        if captions.log_var is not None:
            var = var + variance(captions).T  # (N, M) or (1, M)
        distance = squared_distance(images.mean, captions.mean, images.mean.shape[1])
        return -0.5 * (distance / var + self.k * var.log())


# ---- the similarities by name


@dataclass(frozen=True)
class Similarity:
    """A similarity, what it is, and what it needs."""

    score: Callable  # (images, captions) -> (N, M), or a Module class that is built with `options`
    gaussian_sides: int = 0  # how many of image and caption must be Gaussian
    point_side: bool = False  # of two Gaussian sides one may be a point
    spherical: bool = False  # has one variance per item
    own_log_var: bool = False  # takes an encoder's own network of log-variances, if any (PCME)
    parts: bool = False  # compares parts (words, regions), which both sides must have
    latents: bool = False  # compares directions, so jWAE's terms may stand beside it
    labelled_pairs: bool = False  # a network of pairs, which learns from labelled pairs
    logits: bool = False  # scores are log-odds of a match
    log_likelihood: bool = False  # scores are in nats, so a softmax starts at temperature 1
    within_modality: bool = True  # also compares images with images; else the cosine does
    unnormalized: str = ""  # the similarity in its place with --no_imgnorm
    penalize: Callable | None = None  # the module -> {name: Term} of the loss, for what it learns
    options: tuple[str, ...] = ()  # of train.py, the arguments of the class
    defaults: dict = field(default_factory=dict)  # of other options of train.py

    def build(self, opt) -> Callable:
        """Return the function, or the module built with its options."""
        if not isinstance(self.score, type):
            return self.score
        values = [getattr(opt, name) for name in self.options]
        return self.score(*values)

    @property
    def compares_points(self) -> bool:
        """True for the cosine and the inner product of two vectors."""
        return self.latents and not self.parts and not self.labelled_pairs


class Similarities(dict):
    """The similarities by name. A function that is put in without more compares points."""

    def __setitem__(self, name: str, similarity: Similarity | Callable) -> None:
        if not isinstance(similarity, Similarity):
            similarity = Similarity(similarity)
        super().__setitem__(name, similarity)


# Files of methods/ add theirs: mil, match_prob, scan, product, cite.
SIMILARITIES = Similarities(
    {
        "cosine": Similarity(cosine, latents=True, unnormalized="dot"),
        "dot": Similarity(dot, latents=True),
        "order": Similarity(order),
        "mahalanobis": Similarity(mahalanobis, gaussian_sides=1, within_modality=False),
        "kl": Similarity(kl, gaussian_sides=2),
        "kl_reverse": Similarity(kl_reverse, gaussian_sides=2),
        "minkl": Similarity(minkl, gaussian_sides=2),
        "wasserstein": Similarity(wasserstein, gaussian_sides=2),
        "wasserstein_var": Similarity(wasserstein_var, gaussian_sides=2),
        "csd": Similarity(csd, gaussian_sides=2),
        "mls": Similarity(
            MLS,
            gaussian_sides=2,
            point_side=True,
            spherical=True,
            log_likelihood=True,
            within_modality=False,
            defaults={
                "loss": "infonce",
                "head": "spherical_one",
                "var_min": 1e-4,
                "logvar_init": -2.5,
            },
        ),
    }
)


def list_functions() -> list[str]:
    """List the similarities that learn nothing, so that they can rank a file of embeddings."""
    names = []
    for name, similarity in SIMILARITIES.items():
        if not isinstance(similarity.score, type):
            names.append(name)
    return names


def find_declaration(score: Callable) -> Similarity:
    """Find what is declared of a function, or of a module that was built.

    An unknown one compares points.
    """
    for similarity in SIMILARITIES.values():
        if score is similarity.score or type(score) is similarity.score:
            return similarity
    return Similarity(score)


def within_modality(score: Callable, e: Embedding) -> tuple[Callable, Embedding]:
    """Return similarity and embedding to compare items of one modality.

    The cosine of the means where a similarity needs an image and a caption (Mahalanobis,
    cross-attention).
    """
    if find_declaration(score).within_modality:
        return score, e
    return cosine, Embedding(e.mean)


# ---- losses


class Loss(nn.Module):
    """A loss of train.py --loss, what it is, and what it needs."""

    # of train.py, {name: (type, default, help)}: the arguments of the class
    options: dict[str, tuple] = {}
    defaults: dict = {}  # of other options of train.py
    gaussian_sides: int | None = None  # that must be Gaussian; None: as the similarity needs
    compares_points = False  # reads the means of both sides by their directions
    labelled_pairs = False  # of a network of pairs (Similarity.labelled_pairs)
    masks_same_image = False  # default of --mask_same_image

    @classmethod
    def build(cls, opt, similarity: Similarity) -> "Loss":
        """Build the loss with its options."""
        values = [getattr(opt, name) for name in cls.options]
        return cls(*values)

    @classmethod
    def check(cls, opt) -> None:
        """Raise InputError on options that do not fit the loss."""

    @classmethod
    def describe(cls, opt) -> str:
        """Say what is minimized, for the log."""
        return opt.loss

    @classmethod
    def advise(cls, opt) -> str:
        """Say what helps where all embeddings become one point."""
        return "restart with a lower --learning_rate or with --loss infonce"

    @classmethod
    def order_pairs(cls, caption_image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Order the pairs of an epoch: images (M,) of the captions -> positions of captions."""
        return rng.permutation(len(caption_image))

    def start_epoch(self, opt, epoch: int) -> None:
        """Change what depends on the epoch, from 0."""


class RankingLoss(Loss):
    """Base of ranking losses: scores (B, B), same_image (B, B) | None -> scalar.

    Matched pairs are on the diagonal. same_image marks pairs of one image, which are not negatives.
    """


class PairLoss(Loss):
    """Base of losses that read two model.Encoded in place of scores.

    (image, caption, batch) -> scalar. It is a term of model.VSE, of this weight.
    """

    compares_points = True
    weight = 1.0

    def prepare(self, model, splits: dict, tokens: dict, device) -> None:
        """Compute what the loss needs of the data, before the first step."""


# ---- ranking losses: scores (B, B) of pairs, the matched ones on the diagonal -> scalar


def mask_matched_pairs(scores: Tensor, same_image: Tensor | None = None) -> Tensor:
    """Mask the diagonal and pairs of one image, which same_image marks: (B, B)."""
    matched = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    if same_image is None:
        return matched
    return matched | same_image


def mask_counted_pairs(scores: Tensor, same_image: Tensor | None) -> Tensor:
    """Mask the diagonal and pairs of two images: (B, B)."""
    if same_image is None:
        return torch.ones_like(scores, dtype=torch.bool)
    return mask_matched_pairs(scores, ~same_image)


class Hinge(RankingLoss):
    """Triplet ranking loss, summed over the batch, >= 0: VSE++ eq. 5-6, pmrl eq. 1-2."""

    options = {
        "margin": (float, 0.2, "margin of the hinge"),
        "max_violation": (
            bool,
            None,
            "hinge: count the hardest negative of an item, not the sum of violations (default: on "
            "for similarities of Gaussians)",
        ),
    }

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin = margin
        self.max_violation = max_violation

    @classmethod
    def describe(cls, opt) -> str:
        violations = "sum of violations"
        if opt.max_violation:
            violations = "hardest negative"
        return f"{violations}, margin {opt.margin}"

    @classmethod
    def advise(cls, opt) -> str:
        if not opt.max_violation or opt.vse_mean_warmup_epochs:
            return super().advise(opt)
        return (
            "restart with --vse_mean_warmup_epochs 1, which begins with the sum of violations, or "
            "with --loss infonce"
        )

    def start_epoch(self, opt, epoch: int) -> None:
        """Take the sum of violations in the first epochs, then the hardest negatives."""
        self.max_violation = opt.max_violation and epoch >= opt.vse_mean_warmup_epochs

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        positive = scores.diagonal()  # (B,)
        matched = mask_matched_pairs(scores, same_image)  # (B, B)

        # of the captions of each image (rows), and of the images of each caption (columns)
        captions = (self.margin + scores - positive[:, None]).clamp(min=0)
        captions = captions.masked_fill(matched, 0)
        images = (self.margin + scores - positive).clamp(min=0)
        images = images.masked_fill(matched, 0)

        if self.max_violation:
            captions = captions.max(1).values  # (B,)
            images = images.max(0).values  # (B,)
        return captions.sum() + images.sum()


class InfoNCE(RankingLoss):
    """Symmetric cross-entropy of the matched pairs in the batch, in nats (CLIP).

    The temperature e^-log_scale is learned and stays above 0.01. smoothing: share of a target
    spread over all pairs.
    """

    masks_same_image = True

    def __init__(self, temperature: float = 0.07, smoothing: float = 0.0):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / temperature)))
        self.smoothing = smoothing

    @classmethod
    def build(cls, opt, similarity):
        temperature = 0.07
        if similarity.log_likelihood:
            temperature = 1.0
        return cls(temperature, opt.label_smoothing)

    def logits(self, scores: Tensor) -> Tensor:
        return scores * self.log_scale.clamp(max=math.log(100)).exp()

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        logits = self.logits(scores)
        counted = mask_counted_pairs(scores, same_image)
        i2t = self.cross_entropy(logits, counted)
        t2i = self.cross_entropy(logits.T, counted.T)
        return (i2t + t2i) / 2

    def cross_entropy(self, logits: Tensor, counted: Tensor) -> Tensor:
        """Compute the cross-entropy of the diagonal among the counted columns, mean over rows."""
        count = len(logits)
        diagonal = torch.arange(count, device=logits.device)
        candidates = logits.masked_fill(~counted, -torch.inf)
        loss = F.cross_entropy(candidates, diagonal, reduction="sum") / count
        if not self.smoothing:
            return loss

        mean_logit = logits.masked_fill(~counted, 0).sum(1) / counted.sum(1)  # (B,)
        even = logits.diagonal() - mean_logit  # (B,)
        return loss + self.smoothing * even.mean()


class Match(RankingLoss):
    """Binary cross-entropy of every pair, summed over an item's pairs: PCME++ eq. 2-4.

    In nats, mean over items: PCME++'s code divides by B^2 / 2 where this divides by B. The logit of
    a pair is scale * score + shift, both learned, or the score itself where `logits`.

    pseudo_positives: weight of two further cross-entropies of all pairs, as in PCME++'s code. In
    the first, items that score at least as high as the matched item of their row are matches, too;
    in the second, those of their column. smoothing: share of a label that is moved to the other
    class.
    """

    masks_same_image = True

    def __init__(self, logits: bool = False, pseudo_positives: float = 0.0, smoothing: float = 0.0):
        super().__init__()
        self.pseudo_positives = pseudo_positives
        self.smoothing = smoothing
        self.scale = None
        self.shift = None
        if not logits:
            self.scale = nn.Parameter(torch.tensor(5.0))
            self.shift = nn.Parameter(torch.tensor(5.0))

    @classmethod
    def build(cls, opt, similarity):
        return cls(similarity.logits, opt.pseudo_positives, opt.label_smoothing)

    def logits(self, scores: Tensor) -> Tensor:
        if self.scale is None:
            return scores
        return self.scale * scores + self.shift

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        logits = self.logits(scores)
        matched = mask_matched_pairs(scores)  # (B, B)
        counted = mask_counted_pairs(scores, same_image)
        loss = self.cross_entropy(logits, matched)[counted].sum()

        if self.pseudo_positives:
            matched_score = scores.diagonal()  # (B,)
            for_rows = matched | (scores >= matched_score[:, None])
            for_columns = matched | (scores >= matched_score)
            for relabelled in (for_rows, for_columns):
                extra = self.cross_entropy(logits, relabelled)[counted].sum()
                loss = loss + self.pseudo_positives / 2 * extra

        return loss / len(scores)

    def cross_entropy(self, logits: Tensor, matches: Tensor) -> Tensor:
        """Compute the cross-entropy of each pair: logits (N, M), matches (N, M) bool -> (N, M)."""
        share = 1 - 2 * self.smoothing
        target = share * matches.to(logits.dtype) + self.smoothing
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


class RCL(RankingLoss):
    """-log(1 - p_ij) summed over the others j of an item i, in nats (Hu et al. 2023).

    Mean over items and directions; p is the softmax of the scores / temperature. Only negatives
    contribute, so noisy correspondence does little harm.
    """

    masks_same_image = True

    def __init__(self, temperature: float = 0.05):
        super().__init__()
        self.temperature = temperature

    @classmethod
    def build(cls, opt, similarity):
        if similarity.log_likelihood:
            return cls(temperature=1.0)
        return cls()

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        logits = scores / self.temperature
        counted = mask_counted_pairs(scores, same_image)
        logits = logits.masked_fill(~counted, torch.finfo(logits.dtype).min)
        return (self.complement(logits) + self.complement(logits.T)) / 2

    def complement(self, logits: Tensor) -> Tensor:
        """Sum -log(1 - p) over all columns but the diagonal; mean over rows.

        log(1 - p_j) = logsumexp(the other logits) - logsumexp(all logits).
        """
        lowest = torch.finfo(logits.dtype).min
        best = logits.argmax(1, keepdim=True)
        others = logits.scatter(1, best, lowest).logsumexp(1, keepdim=True)  # (B, 1), of the best

        p = logits.softmax(1).scatter(1, best, 0)
        log_rest = (-p).log1p()  # log(1 - p): (B, B)
        # 1 - p of the largest p may round to 0; compute it from the other logits
        log_rest_of_best = others - logits.logsumexp(1, keepdim=True)
        log_rest = log_rest.scatter(1, best, log_rest_of_best)

        log_rest = log_rest.masked_fill(mask_matched_pairs(logits), 0)
        return -log_rest.sum() / len(logits)


class SampledNLL(RankingLoss):
    """-log P(matched caption | image) among sampled captions, in nats: dmsm eq. 2-3.

    P is the softmax of gamma times the score over the matched caption and `negatives` others of the
    batch.
    """

    options = {
        "gamma": (float, 10.0, "factor of the scores in the softmax of --loss nll"),
        "negatives": (int, 40, "captions drawn for each image by --loss nll"),
    }

    def __init__(self, gamma: float = 10.0, negatives: int = 40):
        super().__init__()
        self.gamma = gamma
        self.negatives = negatives

    @classmethod
    def check(cls, opt) -> None:
        if opt.negatives >= opt.batch_size:
            raise InputError(
                f"--negatives {opt.negatives} must be less than --batch_size {opt.batch_size}; "
                "lower --negatives or raise --batch_size"
            )

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        return self.nll(scores, same_image).mean()

    def nll(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        """Compute the loss of each image: (B, B) -> (B,)."""
        logits = self.gamma * scores  # (B, B)
        matched = mask_matched_pairs(scores, same_image)  # (B, B), never drawn

        count = min(self.negatives, len(scores) - 1)
        draws = torch.rand(scores.shape, device=scores.device)
        draws = draws.masked_fill(matched, -1)
        chosen = draws.topk(count, 1).indices  # (B, n)
        exhausted = matched.gather(1, chosen)  # (B, n): fewer than n negatives
        others = logits.gather(1, chosen).masked_fill(exhausted, -torch.inf)

        positive = logits.diagonal()  # (B,)
        candidates = torch.cat([positive[:, None], others], 1)  # (B, 1 + n)
        return candidates.logsumexp(1) - positive


class PairLogistic(RankingLoss):
    """Logistic loss of labelled pairs, mean of log(1 + e^(-y s)), in nats (CITE).

    The diagonal is positive. Negatives are, for each item, two others of its row and two of its
    column, drawn without repeats from the CPU's generator.
    """

    labelled_pairs = True
    n_negatives = 2

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        n = len(scores)
        matched = mask_matched_pairs(scores, same_image)
        count = torch.zeros_like(scores)  # (B, B): times that a pair is drawn
        for axis in (1, 0):
            draws = torch.rand(scores.shape).to(scores.device)
            draws = draws.masked_fill(matched, -1)
            largest, chosen = draws.topk(min(self.n_negatives, n), axis)  # (B, 2) or (2, B)
            is_negative = largest >= 0
            count.scatter_add_(axis, chosen, is_negative.to(count.dtype))

        of_positives = F.softplus(-scores.diagonal()).sum()
        of_negatives = (count * F.softplus(scores)).sum()
        return (of_positives + of_negatives) / (n + count.sum())


# ---- losses of pairs


class SquaredDistance(PairLoss):
    """|f_v(x) - f_t(y)|^2 / D of the latents, summed over the batch (jwae eq. 7).

    Over D, since at the prior's scale eq. 7 grows with D. Eq. 7 averages over pairs, and this sums:
    multiply weights of the priors, which are no sums here, by the batch size.
    """

    defaults = {"latent_norm": "none"}

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    @classmethod
    def build(cls, opt, similarity):
        return cls(opt.mse_weight)

    def forward(self, image, caption, batch) -> Tensor:
        x = mean_rows(image.latent.value, image.latent.n_parts).float()  # (B, D)
        y = mean_rows(caption.latent.value, caption.latent.n_parts).float()  # (B, D)
        batch_size, dim = x.shape
        return (x - y).square().sum(1).mean() * batch_size / dim


# Files of methods/ add theirs, such as two_branch.
LOSSES: dict[str, type[Loss]] = {
    "hinge": Hinge,
    "infonce": InfoNCE,
    "match": Match,
    "rcl": RCL,
    "nll": SampledNLL,
    "logistic": PairLogistic,
    "mse": SquaredDistance,
}


def count_gaussian_sides(opt) -> int:
    """Return the number of sides that must be Gaussian.

    With --vae it is both, whose samples are compared as points, else what the loss or the
    similarity needs.
    """
    if opt.vae:
        return 2
    if opt.loss and LOSSES[opt.loss].gaussian_sides is not None:
        return LOSSES[opt.loss].gaussian_sides
    return SIMILARITIES[opt.sim].gaussian_sides


# ---- jWAE: the GAN that pulls latents towards the prior N(0, I)


class Critic(nn.Module):
    """Log-odds that latents are samples of N(0, I) (jwae 4.2): (R, D) -> (R,)."""

    def __init__(self, latent: int, hidden: int = 256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, 1),
        )

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)[:, 0]


def generator_loss(critic: Critic, latents: Tensor) -> Tensor:
    """Compute the generator loss of the GAN: -log sigmoid(critic), mean over latents (R, D).

    D_JS of jwae eq. 6 in its non-saturating form, in nats. The critic learns nothing here.
    """
    frozen = {name: p.detach() for name, p in critic.named_parameters()}
    log_odds = torch.func.functional_call(critic, frozen, latents.float()).float()
    return F.softplus(-log_odds).mean()


def critic_loss(critic: Critic, latents: Tensor) -> Tensor:
    """Compute the binary cross-entropy of the critic on latents (R, D) and samples of N(0, I).

    The encoders learn nothing here, so one backward pass serves them and the critic.
    """
    latents = latents.detach().float()
    samples = torch.randn_like(latents)
    log_odds = critic(torch.cat([samples, latents])).float()
    real, fake = log_odds.chunk(2)  # (R,) each
    of_real = F.softplus(-real).mean()
    of_fake = F.softplus(fake).mean()
    return (of_real + of_fake) / 2


def standard_kl(mean: Tensor, log_var: Tensor) -> Tensor:
    """Compute KL(N(mean, Sigma) || N(0, I)) by dimensions, in nats: (N, D)."""
    return 0.5 * (log_var.exp() - log_var + mean.square() - 1)


# ---- terms beside the ranking loss: (images, captions, batch) -> scalar, of two model.Encoded


class Term(NamedTuple):
    """A term of the loss beside the objective.

    loss: (image, caption, batch) -> scalar, of two model.Encoded; with `side`, (encoded, batch) ->
    scalar of that side alone, which also learns from items without partners. mean: a mean over
    items, so that paired and unpaired items are averaged and not added.
    """

    weight: float
    loss: Callable[..., Tensor]
    side: str | None = None  # "images" | "captions"
    mean: bool = False


def information_bottleneck(images, captions, batch) -> Tensor:
    """Compute KL(N(mean, Sigma) || N(0, I)), mean over items, in nats (PCME, PCME++)."""
    total = 0
    for encoded in (images, captions):
        e = encoded.embedding
        if e.log_var is not None:
            total = total + standard_kl(e.mean, e.log_var).sum(1).mean()
    return total
