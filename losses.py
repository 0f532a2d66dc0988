"""Similarities of points and Gaussians, ranking losses, and the GAN of jWAE.

A similarity is a function of N images and M captions, two Embeddings, that returns scores (N, M), higher is better. All
but order are made of matrix products, so that nothing of size N x M x D is held. float32 loses digits where large terms
cancel, so a distance is taken from the centre of the captions.

A ranking loss reads the scores (B, B) of a batch of matching pairs, which are on the diagonal.

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

from cli import InputError

LOG_VAR_BOUNDS = (math.log(0.1), math.log(10))    # variances lie in [0.1, 10]: pmrl 3.1, ucmr 4.2
NUMBERS = {"cpu": 2 ** 18, "cuda": 2 ** 25}       # in the largest temporary of a block of pairs: what a cache holds


class PartBlocks:
    """Parts of N items in blocks (n, P, D), each padded to its own longest item.
    Encoded by length, captions take little more than their words: 1.4 GB for COCO's test, where one tensor, padded to
    the longest of its 25,000 captions, takes 5 GB.

    blocks: the parts of items one after another. place (N, 2): block and row of each item, on the CPU.
    """

    def __init__(self, blocks: list[Tensor], place: Tensor | None = None):
        self.blocks, self.device = blocks, blocks[0].device
        if place is None:
            block = torch.repeat_interleave(torch.tensor([len(x) for x in blocks]))
            row = torch.cat([torch.arange(len(x)) for x in blocks])
            place = torch.stack([block, row], 1)
        self.place = place

    def __getitem__(self, index):
        """Select items; of a single one the parts (P, D)."""
        place = self.place[index.cpu() if torch.is_tensor(index) else index]
        if place.ndim == 2:
            return PartBlocks(self.blocks, place)
        block, row = place.tolist()
        return self.blocks[block][row]

    def to(self, device) -> "PartBlocks":
        return PartBlocks([x.to(device) for x in self.blocks], self.place)

    def pad(self, items: Tensor, most: int) -> Tensor:
        """The first `most` parts of items (n,), zeros where they have fewer: (n, most, D)."""
        place = self.place[items.cpu()]
        padded = self.blocks[0].new_zeros(len(items), most, self.blocks[0].shape[2])
        for k in place[:, 0].unique().tolist():
            here = (place[:, 0] == k).nonzero()[:, 0]
            parts = self.blocks[k][place[here, 1].to(self.device), :most]
            padded[here.to(self.device), :parts.shape[1]] = parts
        return padded


class Embedding(NamedTuple):
    """A batch of points or of diagonal Gaussians."""
    mean: Tensor                      # (N, D)
    log_var: Tensor | None = None     # (N, D) ellipsoidal | (N, 1) spherical | None: a point
    parts: Tensor | PartBlocks | None = None      # (N, P, D) regions, words, or K embeddings
    n_parts: Tensor | None = None     # (N,) number of parts that are not padding

    def rows(self, index) -> "Embedding":
        """Select the items of a slice, list or tensor."""
        return Embedding(*(None if x is None else x[index] for x in self))

    def to(self, device) -> "Embedding":
        return Embedding(*(None if x is None else x.to(device) for x in self))

    @staticmethod
    def cat(batches: list["Embedding"]) -> "Embedding":
        """Concatenate batches. Parts stay as they are where the batches have different numbers of them."""
        if len(batches) == 1:
            return batches[0]
        joined = {}
        for name, values in zip(Embedding._fields, zip(*batches)):
            if values[0] is None:
                continue
            different = name == "parts" and len({x.shape[1] for x in values}) > 1
            joined[name] = PartBlocks(list(values)) if different else torch.cat(values)
        return Embedding(**joined)


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """l2-normalise vectors (..., D); eps bounds the gradient of a zero vector by 1e6."""
    return F.normalize(x, dim=dim, eps=1e-6)


def real_parts(parts: Tensor, n_parts: Tensor) -> Tensor:
    """Mask the parts that are not padding: (B, P, ...), (B,) -> (B, P)."""
    return torch.arange(parts.shape[1], device=parts.device) < n_parts.to(parts.device)[:, None]


def real_rows(rows: Tensor, n_parts: Tensor | None) -> Tensor:
    """Vectors of items (B, D), or of their real parts among (B, P, D) -> (R, D)."""
    return rows if n_parts is None else rows[real_parts(rows, n_parts)]


def mean_rows(rows: Tensor, n_parts: Tensor | None) -> Tensor:
    """Mean of the real parts: (B, P, D) -> (B, D); vectors (B, D) stay."""
    if n_parts is None:
        return rows
    return (rows * real_parts(rows, n_parts)[:, :, None]).sum(1) / n_parts[:, None]


def uncertainty(e: Embedding) -> Tensor:
    """log det Sigma of Gaussians in nats (ucmr 3.3), else ValueError: (N,)."""
    if e.log_var is None:
        raise ValueError("a point has no uncertainty; train with a Gaussian head (--head ellipsoidal)")
    return e.log_var.expand_as(e.mean).sum(1)


# ---- parts of the similarities

def squared_distance(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Compute |x_i - y_j|^2 in `dim` dimensions: (N, D), (M, D) -> (N, M), >= 0.
    (N, 1), (M, 1) stand for D equal numbers. The mean of the y and then the mean of each row are subtracted: |x - y|^2
    = |x' - y'|^2 + D (mean x - mean y)^2."""
    if x.shape[1] != y.shape[1]:
        x, y = x.expand(-1, dim), y.expand(-1, dim)
    centre = y.detach().mean(0)
    x, y = x - centre, y - centre
    x_mean, y_mean = x.mean(1, keepdim=True), y.mean(1, keepdim=True)               # (N, 1), (M, 1)
    x, y = x - x_mean, y - y_mean
    apart = (x_mean - y_mean.T).square().mul_(dim)                                  # (N, M)
    apart += x.square().sum(1)[:, None] + y.square().sum(1)
    return torch.addmm(apart, x, y.T, alpha=-2)


def negative_root(square: Tensor) -> Tensor:
    """-sqrt of squared distances, with a finite gradient where the distance is 0."""
    return square.clamp(min=torch.finfo(square.dtype).eps ** 2).sqrt().neg()


def variance(e: Embedding, power: float = 1.0) -> Tensor:
    """Return variances, or deviations at power 0.5: (N, D), or spherical (N, 1)."""
    return (power * e.log_var).exp()


def score_in_blocks(score, n: int, m: int, per_pair: int, device="cpu") -> Tensor:
    """Scores (N, M) by blocks score(rows, columns); a pair takes `per_pair` numbers."""
    side = max(1, math.isqrt(NUMBERS["cpu" if torch.device(device).type == "cpu" else "cuda"] // per_pair))
    rows, columns = ([slice(k, k + side) for k in range(0, max(1, count), side)] for count in (n, m))
    return torch.cat([torch.cat([score(i, j) for j in columns], 1) for i in rows])


# ---- similarities: N images, M captions -> scores (N, M)

def dot(images: Embedding, captions: Embedding) -> Tensor:
    """Inner product of the means, VSE++'s score: the cosine of unit vectors."""
    return images.mean @ captions.mean.T


def cosine(images: Embedding, captions: Embedding) -> Tensor:
    """Cosine of the means, in [-1, 1] (VSE++ 3.1)."""
    return unit(images.mean) @ unit(captions.mean).T


def order(images: Embedding, captions: Embedding) -> Tensor:
    """-|max(0, caption - image)| of the means (Vendrov et al. 2016, VSE++ 4.4)."""
    x, y = images.mean[:, None], captions.mean                                      # (N, 1, D), (M, D)
    return score_in_blocks(lambda i, j: negative_root((y[j] - x[i]).clamp(min=0).square().sum(2)),
                           len(x), len(y), x.shape[2], x.device)


def mahalanobis(images: Embedding, captions: Embedding) -> Tensor:
    """-sqrt((x - mu)^T Sigma^-1 (x - mu)), mu and Sigma of the Gaussian side.
    pmrl eq. 6 (GCE: the captions) and eq. 10 (GIE: the images)."""
    if captions.log_var is None:
        return mahalanobis(captions, images).T
    centre, precision = captions.mean.detach().mean(0), variance(captions, -1).expand_as(captions.mean)
    x, y = images.mean - centre, captions.mean - centre
    square = (precision * y.square()).sum(1) + x.square() @ precision.T             # (N, M)
    return negative_root(torch.addmm(square, x, (precision * y).T, alpha=-2))


def kl(images: Embedding, captions: Embedding) -> Tensor:
    """-KL(image || caption) in nats, <= 0: pmrl eq. 15, ucmr eq. 4."""
    return -divergence(standardise_gaussians(images, captions), standardise_gaussians(captions, captions))


def kl_reverse(images: Embedding, captions: Embedding) -> Tensor:
    """-KL(caption || image) in nats, <= 0: ucmr Table 6."""
    return -divergence(standardise_gaussians(captions, captions), standardise_gaussians(images, captions)).T


def minkl(images: Embedding, captions: Embedding) -> Tensor:
    """-min(KL(image || caption), KL(caption || image)) in nats, <= 0: pmrl eq. 16."""
    image, caption = standardise_gaussians(images, captions), standardise_gaussians(captions, captions)
    return -torch.minimum(divergence(image, caption), divergence(caption, image).T)


def standardise_gaussians(e: Embedding, reference: Embedding) -> tuple[Tensor, Tensor, Tensor]:
    """Standardise by the average Gaussian of `reference`.
    Returns means (N, D), log-variances (N, D) less their average, and this average, the level (N, 1) of an item."""
    middle, log_scale = reference.mean.detach().mean(0), reference.log_var.detach().mean(0)
    mean, log_var = (e.mean - middle).mul_((-log_scale / 2).exp()), e.log_var - log_scale
    level = log_var.mean(1, keepdim=True)
    return mean, log_var.sub_(level).expand_as(mean), level


def divergence(p: tuple[Tensor, Tensor, Tensor], q: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """KL(p_i || q_j) in nats, (N, M), of standardised Gaussians.

    2 KL = sum_d [v_p / v_q - 1 - log(v_p / v_q) + (mu_p - mu_q)^2 / v_q]. For log-variances l and levels L, with
    x = e^l_p - 1, y = e^-l_q - 1 and r = L_p - L_q: v_p / v_q - 1 = e^r (x y + x + y) + e^r - 1. No large terms cancel.
    """
    (mu_p, l_p, level_p), (mu_q, l_q, level_q) = p, q
    scale, shrink = level_p.exp(), (-level_q).exp()                                 # (N, 1), (M, 1)
    square = torch.addcmul(l_p.expm1() * scale, mu_p, mu_p)                         # (N, D)
    y = (-l_q).expm1_() * shrink                                                    # (M, D)
    scaled = (y + shrink) * mu_q                                                    # mu_q / v_q: (M, D)
    ratio = level_p - level_q.T                                                     # r: (N, M)
    total = (ratio.expm1() - ratio).mul_(mu_p.shape[1])
    total += square.sum(1, keepdim=True) * shrink.T + scale * y.sum(1)
    total += torch.addcmul(l_q, mu_q, scaled).sum(1) - l_p.sum(1)[:, None]
    total = torch.addmm(total, square, y.T)
    return torch.addmm(total, mu_p, scaled.T, alpha=-2) / 2


def wasserstein(images: Embedding, captions: Embedding, power: float = 0.5) -> Tensor:
    """-sqrt(|mu_i - mu_c|^2 + |sigma_i - sigma_c|^2), <= 0.
    sigma: standard deviations. pmrl eq. 17 = ucmr eq. 7."""
    dim = images.mean.shape[1]
    return negative_root(squared_distance(images.mean, captions.mean, dim)
                         + squared_distance(variance(images, power), variance(captions, power), dim))


def wasserstein_var(images: Embedding, captions: Embedding) -> Tensor:
    """-sqrt(|mu_i - mu_c|^2 + |sigma_i^2 - sigma_c^2|^2), <= 0.
    ucmr eq. 8 as printed, which contradicts its eq. 7."""
    return wasserstein(images, captions, power=1.0)


def csd(images: Embedding, captions: Embedding) -> Tensor:
    """-(|mu_i - mu_c|^2 + tr(Sigma_i + Sigma_c)), <= 0.
    Closed-form sampled distance, PCME++ eq. 1."""
    image_trace, caption_trace = (variance(e).expand_as(e.mean).sum(1) for e in (images, captions))     # (N,), (M,)
    return -squared_distance(images.mean, captions.mean, images.mean.shape[1]) - (image_trace[:, None] + caption_trace)


class MLS(nn.Module):
    """-(|mu_i - mu_c|^2 / v + k log v) / 2, v = v_i + v_c, in nats; a point has v 0.
    The mutual likelihood score of Shi and Jain 2019 (eq. 3) in k dimensions, for one variance an item. At k = D this is
    the log of the integral of p q, less a constant; but embeddings do not fill their D dimensions, so k, the effective
    dimension, is learned."""

    def __init__(self, effective_dim: float = 4.0):
        super().__init__()
        self.log_k = nn.Parameter(torch.tensor(math.log(effective_dim)))

    @property
    def k(self) -> Tensor:
        """The effective dimension, above 0."""
        return self.log_k.exp()

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        image_var = 0 if images.log_var is None else variance(images)               # (N, 1)
        caption_var = 0 if captions.log_var is None else variance(captions).T       # (1, M)
        var = image_var + caption_var                                               # (N, M), (N, 1) or (1, M)
        distance = squared_distance(images.mean, captions.mean, images.mean.shape[1])
        return -0.5 * (distance / var + self.k * var.log())


# ---- the similarities by name

@dataclass(frozen=True)
class Similarity:
    """A similarity, what it is, and what it needs."""
    score: Callable                   # (images, captions) -> (N, M), or a Module class that is built with `options`
    gaussian_sides: int = 0           # how many of image and caption must be Gaussian
    point_side: bool = False          # of two Gaussian sides one may be a point
    spherical: bool = False           # has one variance per item
    own_log_var: bool = False         # takes an encoder's own network of log-variances, where it has one (PCME)
    parts: bool = False               # compares parts (words, regions), which both sides must have
    latents: bool = False             # compares directions, so jWAE's terms may stand beside it
    labelled_pairs: bool = False      # a network of pairs, which learns from labelled pairs
    logits: bool = False              # scores are log-odds of a match
    log_likelihood: bool = False      # scores are in nats, so a softmax starts at temperature 1
    within_modality: bool = True      # also compares images with images; else the cosine does
    unnormalised: str = ""            # the similarity in its place with --no_imgnorm
    options: tuple[str, ...] = ()     # of train.py, the arguments of the class
    defaults: dict = field(default_factory=dict)        # of other options of train.py

    def build(self, opt) -> Callable:
        """Return the function, or the module built with its options."""
        if not isinstance(self.score, type):
            return self.score
        return self.score(*(getattr(opt, name) for name in self.options))

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
SIMILARITIES = Similarities({
    "cosine": Similarity(cosine, latents=True, unnormalised="dot"),
    "dot": Similarity(dot, latents=True),
    "order": Similarity(order),
    "mahalanobis": Similarity(mahalanobis, gaussian_sides=1, within_modality=False),
    "kl": Similarity(kl, gaussian_sides=2),
    "kl_reverse": Similarity(kl_reverse, gaussian_sides=2),
    "minkl": Similarity(minkl, gaussian_sides=2),
    "wasserstein": Similarity(wasserstein, gaussian_sides=2),
    "wasserstein_var": Similarity(wasserstein_var, gaussian_sides=2),
    "csd": Similarity(csd, gaussian_sides=2),
    "mls": Similarity(MLS, gaussian_sides=2, point_side=True, spherical=True, log_likelihood=True,
                      within_modality=False,
                      defaults={"loss": "infonce", "head": "spherical_one", "var_min": 1e-4, "logvar_init": -2.5}),
})


def list_functions() -> list[str]:
    """List the similarities that learn nothing, so that they can rank a file of embeddings."""
    return [name for name, similarity in SIMILARITIES.items() if not isinstance(similarity.score, type)]


def declaration(score: Callable) -> Similarity:
    """Find what is declared of a function, or of a module that was built; an unknown one compares points."""
    for similarity in SIMILARITIES.values():
        if score is similarity.score or type(score) is similarity.score:
            return similarity
    return Similarity(score)


def within_modality(score: Callable, e: Embedding) -> tuple[Callable, Embedding]:
    """Return similarity and embedding to compare items of one modality.

    The cosine of the means where a similarity needs an image and a caption (Mahalanobis, cross-attention).
    """
    if declaration(score).within_modality:
        return score, e
    return cosine, Embedding(e.mean)


# ---- losses

class Loss(nn.Module):
    """A loss of train.py --loss, what it is, and what it needs."""
    options: dict[str, tuple] = {}    # of train.py, {name: (type, default, help)}: the arguments of the class
    defaults: dict = {}               # of other options of train.py
    gaussian_sides: int | None = None           # how many sides must be Gaussian; None: as the similarity needs
    compares_points = False           # reads the means of both sides by their directions
    labelled_pairs = False            # of a network of pairs (Similarity.labelled_pairs)
    masks_same_image = False          # default of --mask_same_image

    @classmethod
    def build(cls, opt, similarity: Similarity) -> "Loss":
        """Build the loss with its options."""
        return cls(*(getattr(opt, name) for name in cls.options))

    @classmethod
    def check(cls, opt) -> None:
        """Raise InputError on options that do not fit the loss."""

    @classmethod
    def describe(cls, opt) -> str:
        """Say what is minimised, for the log."""
        return opt.loss

    @classmethod
    def advise(cls, opt) -> str:
        """Say what helps where all embeddings become one point."""
        return "restart with a lower --learning_rate or with --loss infonce"

    @classmethod
    def order_pairs(cls, owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Order the pairs of an epoch: images (M,) of the captions -> positions of captions."""
        return rng.permutation(len(owner))

    def start_epoch(self, opt, epoch: int) -> None:
        """Change what depends on the epoch, from 0."""


class RankingLoss(Loss):
    """Base of ranking losses: scores (B, B), same_image (B, B) | None -> scalar.

    Matching pairs are on the diagonal. same_image marks pairs of one image, which are not negatives.
    """


class PairLoss(Loss):
    """Base of losses that read two model.Encoded in place of scores: (image, caption, batch) -> scalar.

    It is a term of model.VSE, of this weight.
    """
    compares_points = True
    weight = 1.0

    def prepare(self, model, splits: dict, tokens: dict, device) -> None:
        """Compute what the loss needs of the data, before the first step."""


# ---- ranking losses: scores (B, B) of matching pairs, which are on the diagonal -> scalar

def own_pairs(scores: Tensor, same_image: Tensor | None = None) -> Tensor:
    """Mask the diagonal and pairs of one image, which same_image marks: (B, B)."""
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return own if same_image is None else own | same_image


def counted_pairs(scores: Tensor, same_image: Tensor | None) -> Tensor:
    """Mask the diagonal and pairs of two images: (B, B)."""
    return torch.ones_like(scores, dtype=torch.bool) if same_image is None else own_pairs(scores, ~same_image)


class Hinge(RankingLoss):
    """Triplet ranking loss, summed over the batch, >= 0: VSE++ eq. 5-6, pmrl eq. 1-2."""
    options = {"margin": (float, 0.2, "margin of the hinge"),
               "max_violation": (bool, None, "hardest negatives in place of their sum")}

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin = margin
        self.max_violation = max_violation

    @classmethod
    def describe(cls, opt) -> str:
        violations = "hardest negative" if opt.max_violation else "sum of violations"
        return f"{violations}, margin {opt.margin}"

    @classmethod
    def advise(cls, opt) -> str:
        if not opt.max_violation or opt.vse_mean_warmup_epochs:
            return super().advise(opt)
        return ("restart with --vse_mean_warmup_epochs 1, which begins with the sum of violations, or with --loss "
                "infonce")

    def start_epoch(self, opt, epoch: int) -> None:
        """Take the sum of violations in the first epochs, then the hardest negatives."""
        self.max_violation = opt.max_violation and epoch >= opt.vse_mean_warmup_epochs

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        positive, own = scores.diagonal(), own_pairs(scores, same_image)            # (B,), (B, B)
        captions = (self.margin + scores - positive[:, None]).clamp(min=0).masked_fill(own, 0)
        images = (self.margin + scores - positive).clamp(min=0).masked_fill(own, 0)
        if self.max_violation:
            return captions.max(1).values.sum() + images.max(0).values.sum()
        return captions.sum() + images.sum()


class InfoNCE(RankingLoss):
    """Symmetric cross-entropy of true pairs in the batch, in nats (CLIP).
    The temperature e^-log_scale is learned and stays above 0.01. smoothing: share of a target spread over all pairs."""
    masks_same_image = True

    def __init__(self, temperature: float = 0.07, smoothing: float = 0.0):
        super().__init__()
        self.log_scale, self.smoothing = nn.Parameter(torch.tensor(math.log(1 / temperature))), smoothing

    @classmethod
    def build(cls, opt, similarity):
        temperature = 1.0 if similarity.log_likelihood else 0.07
        return cls(temperature, opt.label_smoothing)

    def logits(self, scores: Tensor) -> Tensor:
        return scores * self.log_scale.clamp(max=math.log(100)).exp()

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        logits, counted = self.logits(scores), counted_pairs(scores, same_image)
        return (self.cross_entropy(logits, counted) + self.cross_entropy(logits.T, counted.T)) / 2

    def cross_entropy(self, logits: Tensor, counted: Tensor) -> Tensor:
        """Cross-entropy of the diagonal among the counted columns, mean over rows."""
        own = torch.arange(len(logits), device=logits.device)
        loss = F.cross_entropy(logits.masked_fill(~counted, -torch.inf), own, reduction="sum") / len(logits)
        if not self.smoothing:
            return loss
        even = logits.diagonal() - logits.masked_fill(~counted, 0).sum(1) / counted.sum(1)      # (B,)
        return loss + self.smoothing * even.mean()


class Match(RankingLoss):
    """Binary cross-entropy of every pair, summed over an item's pairs: PCME++ eq. 2-4.

    In nats, mean over items: PCME++'s code divides by B^2 / 2 where this divides by B. The logit of a pair is
    scale * score + shift, both learned, or the score itself where `logits`.

    pseudo_positives: weight of two further cross-entropies of all pairs, as in PCME++'s code. In the first, items that
    score at least as high as the matched item of their row are matches, too; in the second, those of their column.
    smoothing: share of a label that is moved to the other class.
    """
    masks_same_image = True

    def __init__(self, logits: bool = False, pseudo_positives: float = 0.0, smoothing: float = 0.0):
        super().__init__()
        self.pseudo_positives, self.smoothing = pseudo_positives, smoothing
        self.scale = None if logits else nn.Parameter(torch.tensor(5.0))
        self.shift = None if logits else nn.Parameter(torch.tensor(5.0))

    @classmethod
    def build(cls, opt, similarity):
        return cls(similarity.logits, opt.pseudo_positives, opt.label_smoothing)

    def logits(self, scores: Tensor) -> Tensor:
        return scores if self.scale is None else self.scale * scores + self.shift

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        logits = self.logits(scores)
        matched = own_pairs(scores)                                                 # (B, B)
        counted = counted_pairs(scores, same_image)
        loss = self.cross_entropy(logits, matched)[counted].sum()

        if self.pseudo_positives:
            matched_score = scores.diagonal()                                       # (B,)
            for_rows = matched | (scores >= matched_score[:, None])
            for_columns = matched | (scores >= matched_score)
            for relabelled in (for_rows, for_columns):
                extra = self.cross_entropy(logits, relabelled)[counted].sum()
                loss = loss + self.pseudo_positives / 2 * extra

        return loss / len(scores)

    def cross_entropy(self, logits: Tensor, matches: Tensor) -> Tensor:
        """Cross-entropy of each pair: logits (N, M), matches (N, M) bool -> (N, M)."""
        target = matches.to(logits.dtype) * (1 - 2 * self.smoothing) + self.smoothing
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


class RCL(RankingLoss):
    """-log(1 - p_ij) summed over the others j of an item i, in nats (Hu et al. 2023).
    Mean over items and directions; p is the softmax of the scores / temperature. Only negatives teach, so a wrong pair
    does little harm."""
    masks_same_image = True

    def __init__(self, temperature: float = 0.05):
        super().__init__()
        self.temperature = temperature

    @classmethod
    def build(cls, opt, similarity):
        return cls(1.0 if similarity.log_likelihood else 0.05)

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        logits = scores / self.temperature
        logits = logits.masked_fill(~counted_pairs(scores, same_image), torch.finfo(logits.dtype).min)
        return (self.complement(logits) + self.complement(logits.T)) / 2

    def complement(self, logits: Tensor) -> Tensor:
        """-log(1 - p) summed over all columns but the diagonal, mean over rows."""
        best = logits.argmax(1, keepdim=True)               # its 1 - p may round to 0: it is taken from the rest
        rest = logits.scatter(1, best, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)
        log_rest = (-logits.softmax(1).scatter(1, best, 0)).log1p()                 # log(1 - p): (B, B)
        log_rest = log_rest.scatter(1, best, rest - logits.logsumexp(1, keepdim=True))
        return -log_rest.masked_fill(own_pairs(logits), 0).sum() / len(logits)


class SampledNLL(RankingLoss):
    """-log P(own caption | image) among sampled captions, in nats: dmsm eq. 2-3.
    P is the softmax of gamma times the score over the own caption and `negatives` others of the batch."""
    options = {"gamma": (float, 10.0, "factor of the scores in the softmax of --loss nll"),
               "negatives": (int, 40, "captions drawn for each image by --loss nll")}

    def __init__(self, gamma: float = 10.0, negatives: int = 40):
        super().__init__()
        self.gamma = gamma
        self.negatives = negatives

    @classmethod
    def check(cls, opt) -> None:
        if opt.negatives >= opt.batch_size:
            raise InputError(f"--negatives {opt.negatives} of a batch of {opt.batch_size} captions are too many; give "
                             "fewer")

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        return self.nll(scores, same_image).mean()

    def nll(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        """Compute the loss of each image: (B, B) -> (B,)."""
        logits, never = self.gamma * scores, own_pairs(scores, same_image)          # (B, B)
        lot = torch.rand(scores.shape, device=scores.device).masked_fill(never, -1)
        chosen = lot.topk(min(self.negatives, len(scores) - 1), 1).indices          # (B, n)
        others = logits.gather(1, chosen).masked_fill(never.gather(1, chosen), -torch.inf)
        positive = logits.diagonal()                                                # (B,)
        return torch.cat([positive[:, None], others], 1).logsumexp(1) - positive


class PairLogistic(RankingLoss):
    """Logistic loss of labelled pairs, mean of log(1 + e^(-y s)), in nats (CITE).
    The diagonal is positive. Negatives are, for each item, two others of its row and two of its column, drawn without
    repeats from the CPU's generator."""
    labelled_pairs = True
    n_negatives = 2

    def forward(self, scores: Tensor, same_image: Tensor | None = None) -> Tensor:
        n, never = len(scores), own_pairs(scores, same_image)
        count = torch.zeros_like(scores)                                            # (B, B): times that a pair is drawn
        for axis in (1, 0):
            lot = torch.rand(scores.shape).to(scores.device).masked_fill(never, -1)
            lot, chosen = lot.topk(min(self.n_negatives, n), axis)                  # (B, 2) or (2, B)
            count.scatter_add_(axis, chosen, (lot >= 0).to(count.dtype))
        total = F.softplus(-scores.diagonal()).sum() + (count * F.softplus(scores)).sum()
        return total / (n + count.sum())


# ---- losses of pairs

class SquaredDistance(PairLoss):
    """|f_v(x) - f_t(y)|^2 / D of the latents, summed over the batch (jwae eq. 7).

    Over D, since at the prior's scale eq. 7 grows with D. Eq. 7 is a mean over pairs, so beside it eq. 6 counts per
    item, too: weights of the priors, which are not sums here, are to be times the batch.
    """
    defaults = {"latent_norm": "none"}

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    @classmethod
    def build(cls, opt, similarity):
        return cls(opt.mse_weight)

    def forward(self, image, caption, batch) -> Tensor:
        x = mean_rows(image.latent.value, image.latent.n_parts).float()             # (B, D)
        y = mean_rows(caption.latent.value, caption.latent.n_parts).float()         # (B, D)
        return (x - y).square().sum(1).mean() * len(x) / x.shape[1]


# Files of methods/ add theirs: two_branch, volume.
LOSSES: dict[str, type[Loss]] = {
    "hinge": Hinge, "infonce": InfoNCE, "match": Match, "rcl": RCL, "nll": SampledNLL, "logistic": PairLogistic,
    "mse": SquaredDistance}


# ---- jWAE: the GAN that draws latents to the prior N(0, I)

class Critic(nn.Module):
    """Log-odds that latents are samples of N(0, I) (jwae 4.2): (R, D) -> (R,)."""

    def __init__(self, latent: int, hidden: int = 256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden),
                                    nn.LeakyReLU(0.2), nn.Linear(hidden, 1))

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)[:, 0]


def generator_loss(critic: Critic, latents: Tensor) -> Tensor:
    """Generator loss of the GAN: -log sigmoid(critic), mean over latents (R, D).
    D_JS of jwae eq. 6 in its non-saturating form, in nats. The critic learns nothing here."""
    frozen = {name: p.detach() for name, p in critic.named_parameters()}
    return F.softplus(-torch.func.functional_call(critic, frozen, latents.float()).float()).mean()


def critic_loss(critic: Critic, latents: Tensor) -> Tensor:
    """Binary cross-entropy of the critic on latents (R, D) and samples of N(0, I).
    The encoders learn nothing here, so one backward pass serves them and the critic."""
    latents = latents.detach().float()
    real, fake = critic(torch.cat([torch.randn_like(latents), latents])).float().chunk(2)        # (R,) each
    return (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2


def standard_kl(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, Sigma) || N(0, I)) by dimensions, in nats: (N, D)."""
    return 0.5 * (log_var.exp() - log_var + mean.square() - 1)


# ---- terms beside the ranking loss: (images, captions, batch) -> scalar, of two model.Encoded

class Term(NamedTuple):
    """A term of the loss beside the objective.
    loss: (image, caption, batch) -> scalar, of two model.Encoded; with `side`, (encoded, batch) -> scalar of that side
    alone, which also learns from items without partners. mean: a mean over items, so that paired and unpaired items are
    averaged and not added."""
    weight: float
    loss: Callable[..., Tensor]
    side: str | None = None           # "images" | "captions"
    mean: bool = False


def information_bottleneck(images, captions, batch) -> Tensor:
    """KL(N(mean, Sigma) || N(0, I)), mean over items, in nats (PCME, PCME++)."""
    gaussians = [e.embedding for e in (images, captions) if e.embedding.log_var is not None]
    return sum(standard_kl(e.mean, e.log_var).sum(1).mean() for e in gaussians)
