"""What a model learns from: the ranking objectives, the GAN of jWAE, and terms that stand beside an
objective.

An objective turns the scores of a batch of matching pairs (B, B), with matches on the diagonal,
into a loss. The similarities that give those scores are in similarities.py and can be imported from
here, too.

Papers: `pmrl` Probabilistic Multimodal Representation Learning; `jwae` Mahajan et al. 2019; `dmsm`
He et al. 2015; VSE++ Faghri et al. 2018; PCME++ Chun 2024.
"""
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from similarities import SIMILARITIES, Embedding, Separable, Similarity, uncertainty, unit  # noqa: F401 (part of this module)


def real_parts(parts: Tensor, n_parts: Tensor) -> Tensor:
    """Which parts are real and no padding: (B, P, ...), (B,) -> (B, P) bool."""
    return torch.arange(parts.shape[1], device=parts.device) < n_parts.to(parts.device)[:, None]


def real_rows(rows: Tensor, n_parts: Tensor | None) -> Tensor:
    """Vectors of items (B, D), or of their real parts among (B, P, D) -> (R, D)."""
    return rows if n_parts is None else rows[real_parts(rows, n_parts)]


def mean_rows(rows: Tensor, n_parts: Tensor | None) -> Tensor:
    """One vector per item: (B, D), or the mean of the real parts among (B, P, D) -> (B, D)."""
    if n_parts is None:
        return rows
    return (rows * real_parts(rows, n_parts)[:, :, None]).sum(1) / n_parts[:, None]


def own_pairs(scores: Tensor, same: Tensor | None = None) -> Tensor:
    """Which scores (B, B) are those of matching pairs, or of others of one image, `same` (B, B):
    bool."""
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return own if same is None else own | same


def valid_pairs(scores: Tensor, same: Tensor | None) -> Tensor:
    """Which scores (B, B) count, where pairs of one image, `same`, do not unless they match:
    bool."""
    return torch.ones_like(scores, dtype=torch.bool) if same is None else own_pairs(scores, ~same)


def hinge(scores: Tensor, margin: float = 0.2, max_violation: bool = False,
          same_image: Tensor | None = None) -> Tensor:
    """Triplet ranking loss with in-batch negatives, summed over the batch, >= 0: VSE++ eq. 6,
    `pmrl` eq. 1-2.

    scores (B, B): matching pairs on the diagonal. `max_violation` keeps the hardest negative of
    each row and column instead of their sum. `same_image` (B, B) bool marks pairs of one image that
    must not count as negatives.
    """
    positive, own = scores.diagonal(), own_pairs(scores, same_image)                # (B,), (B, B)
    # image vs other captions
    captions = (margin + scores - positive[:, None]).clamp(min=0).masked_fill(own, 0)
    # caption vs other images
    images = (margin + scores - positive).clamp(min=0).masked_fill(own, 0)
    if max_violation:
        return captions.max(1).values.sum() + images.max(0).values.sum()
    return captions.sum() + images.sum()


def sampled_nll(scores: Tensor, gamma: float = 10.0, negatives: int = 40,
                generator: torch.Generator | None = None, own: Tensor | None = None) -> Tensor:
    """-log P(T+ | I) of every image (row) among its own caption and `negatives` others drawn from
    the batch without repeats, P the softmax of gamma R (`dmsm` eq. 2-3), in nats: (B, B), matching
    pairs on the diagonal -> (B,).

    own (B, B) bool marks further captions of a row's image, which are never drawn. Rows with fewer
    others take them all: then this is the full softmax over the batch.
    """
    logits = gamma * scores
    never, positive = own_pairs(scores, own), logits.diagonal()                     # (B, B), (B,)
    lot = torch.rand(scores.shape, generator=generator, device=scores.device)
    count = min(negatives, scores.shape[1] - 1)
    chosen = lot.masked_fill(never, -1).topk(count, 1).indices                    # (B, B) -> (B, N)
    others = logits.gather(1, chosen).masked_fill(never.gather(1, chosen), -torch.inf)
    return torch.cat([positive[:, None], others], 1).logsumexp(1) - positive


def pair_mse(images: Tensor, captions: Tensor) -> Tensor:
    """Mean over N pairs of |f_v(x) - f_t(y)|^2, >= 0: (N, D), (N, D) -> scalar (`jwae` eq. 7)."""
    return (images - captions).square().sum(1).mean()


class Term(NamedTuple):
    """A term of the loss beside the objective. loss: (image, caption, batch) -> scalar, of what the
    towers made of a batch (model.Encoded), or, of a term that needs one side only and so also
    learns from items without partners, (encoded, batch) -> scalar. mean: it is a mean over items,
    so that paired and unpaired items are averaged and not added."""
    weight: float
    loss: Callable[..., Tensor]
    side: str | None = None           # "images" | "captions"
    mean: bool = False


# ---- jWAE: the GAN that draws latents to the prior N(0, I), and what stands in for it


class Critic(nn.Module):
    """Log-odds that a latent is a sample of the prior N(0, I): three linear layers with leaky ReLUs
    between, (R, D) -> (R,). One critic for both sides, which share the prior (`jwae` 4.2)."""

    def __init__(self, latent: int, hidden: int = 256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, hidden), nn.LeakyReLU(0.2),
                                    nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
                                    nn.Linear(hidden, 1))

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)[:, 0]


def fool(critic: Critic, latents: Tensor) -> Tensor:
    """What an encoder is told so that its latents pass for samples of the prior: -log
    sigmoid(critic), mean over latents (R, D), in nats: `jwae` eq. 6, D_JS in its non-saturating
    form. The critic learns nothing here."""
    frozen = {name: p.detach() for name, p in critic.named_parameters()}
    return F.softplus(-torch.func.functional_call(critic, frozen, latents.float()).float()).mean()


def critic_loss(critic: Critic, latents: Tensor) -> Tensor:
    """Binary cross-entropy of the critic: latents (R, D) against as many samples of N(0, I), mean,
    in nats; log 2 where it cannot tell them apart. The encoders learn nothing here, so one backward
    pass serves them and the critic."""
    latents = latents.detach().float()
    # (R,) each
    real, fake = critic(torch.cat([torch.randn_like(latents), latents])).float().chunk(2)
    return (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2


def prior_mmd(latents: Tensor) -> Tensor:
    """Maximum mean discrepancy of latents (R, D) and as many samples of the prior N(0, I): the
    unbiased estimate of its square, about 0 where both are alike. This is the WAE-MMD of Tolstikhin
    et al. 2018 (`jwae` ref. 39), the sum of the kernels k(x, y) = C / (C + |x - y|^2) at C = 2 D s,
    s = 0.1, 0.2, 0.5, 1, 2, 5, 10."""
    x = latents.float()
    y = torch.randn_like(x)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        """Sum over all pairs."""
        squares = a.square().sum(1)[:, None] + b.square().sum(1)                    # (R, R)
        squared = (squares - 2 * a @ b.T).clamp(min=0)
        return sum((c / (c + squared)).sum()
                   for c in (2 * a.shape[1] * s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10)))
    n = max(len(x), 2)   # 14: the 7 kernels of each x and of each y with itself, which are left out
    return (kernel(x, x) + kernel(y, y) - 14 * len(x)) / (n * (n - 1)) - 2 * kernel(x, y) / n ** 2


PRIOR_LOSSES = ("gan", "mmd")


def standard_kl(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, Sigma) || N(0, I)) by dimensions, in nats: (N, D), (N, D) or (N, 1) -> (N, D)."""
    return 0.5 * (log_var.exp() - log_var + mean.square() - 1)


# ---- objectives

class Hinge(nn.Module):
    """Triplet ranking loss, VSE++ eq. 5-6: `losses.hinge`."""

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin, self.max_violation = margin, max_violation

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        return {"hinge": hinge(scores, self.margin, self.max_violation, same)}


class InfoNCE(nn.Module):
    """Symmetric cross-entropy of each caption among the batch's captions and each image among its
    images (CLIP), in nats.

    A learned temperature, e^-log_scale, stays above 0.01. It starts at 0.07 for cosines, and at 1
    for scores that are log-likelihoods. smoothing: the share of each target that is spread evenly
    over all pairs that count.
    """

    def __init__(self, temperature: float = 0.07, smoothing: float = 0.0):
        super().__init__()
        self.log_scale, self.smoothing = nn.Parameter(torch.tensor(math.log(1 / temperature))), smoothing

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        logits, counts = self.scaled(scores), valid_pairs(scores, same)
        captions = self.cross_entropy(logits, counts)
        return {"infonce": (captions + self.cross_entropy(logits.T, counts.T)) / 2}

    def scaled(self, scores: Tensor) -> Tensor:
        """Scores divided by the temperature."""
        return scores * self.log_scale.clamp(max=math.log(100)).exp()

    def cross_entropy(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Of each row's own column, the diagonal, among those that count, mean over rows: (B, B),
        (B, B) bool."""
        own = torch.arange(len(logits), device=logits.device)
        loss = F.cross_entropy(logits.masked_fill(~counts, -torch.inf), own,
                               reduction="sum") / len(logits)
        if not self.smoothing:
            return loss
        even = logits.diagonal() - logits.masked_fill(~counts, 0).sum(1) / counts.sum(1)      # (B,)
        return loss + self.smoothing * even.mean()


class Match(nn.Module):
    """Binary cross-entropy of every pair of the batch: does it match? PCME++ eq. 2-4, in nats.

    Summed over the B pairs of an item and averaged over items, as in SigLIP: a mean over
    all B x B pairs is the same objective with gradients B times smaller, of which Adam's epsilon
    leaves little. The probability of a match is sigmoid(scale * score + shift), both learned;
    `logits` says that scores are logits already, as PCME's are. One matrix serves both directions,
    which are equal. pseudo_positives > 0 adds, at that weight, pairs that score at least as high as
    the true one of their row or column as if they matched. smoothing keeps targets off 0 and 1.
    """

    def __init__(self, logits: bool = False, pseudo_positives: float = 0.0, smoothing: float = 0.0):
        super().__init__()
        self.pseudo_positives, self.smoothing = pseudo_positives, smoothing
        self.scale = None if logits else nn.Parameter(torch.tensor(5.0))
        self.shift = None if logits else nn.Parameter(torch.tensor(5.0))

    def scaled(self, scores: Tensor) -> Tensor:
        """The logits of pairs."""
        return scores if self.scale is None else self.scale * scores + self.shift

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.scaled(scores)
        own, counts, n = own_pairs(scores), valid_pairs(scores, same), len(scores)
        terms = {"match": self.cross_entropy(logits, own)[counts].sum() / n}
        if self.pseudo_positives:
            best = scores.diagonal()                                                # (B,)
            nearer = ((scores >= best[:, None]) | (scores >= best)) & ~own & counts
            nearest = (F.softplus(-logits) * nearer).sum()
            terms["pseudo_positives"] = self.pseudo_positives * nearest / n
        return terms

    def cross_entropy(self, logits: Tensor, matches: Tensor) -> Tensor:
        """Of each pair: logits (N, M), whether it matches (N, M) bool -> (N, M)."""
        target = matches.to(logits.dtype) * (1 - 2 * self.smoothing) + self.smoothing
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


class SampledNLL(nn.Module):
    """-log P(T+ | I) among the true caption and N others of the batch (`sampled_nll`), mean over
    the images, in nats."""

    def __init__(self, gamma: float = 10.0, negatives: int = 40):
        super().__init__()
        self.gamma, self.negatives = gamma, negatives

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        return {"nll": sampled_nll(scores, self.gamma, self.negatives, own=same).mean()}


def vib(e: Embedding) -> Tensor:
    """KL(N(mean, Sigma) || N(0, I)) of each item, averaged, in nats: the information bottleneck of
    PCME and PCME++."""
    return standard_kl(e.mean, e.log_var).sum(1).mean()


# (options, similarity) -> the objective for its scores, or None: what is trained is no function of
# the scores, and is among the terms of model.build_pair_terms.
OBJECTIVES = {
    "hinge": lambda opt, _: Hinge(opt.margin, opt.max_violation),
    "infonce": lambda opt, sim: InfoNCE(1.0 if sim.log_likelihood else 0.07, opt.label_smoothing),
    "match": lambda opt, sim: Match(sim.logits, opt.pseudo_positives, opt.label_smoothing),
    "nll": lambda opt, _: SampledNLL(opt.gamma, opt.negatives),
    "mse": lambda *_: None, "two_branch": lambda *_: None, "logistic": lambda *_: PairLogistic(),
    "volume": lambda *_: None}

SUMMED = ("hinge", "mse")             # objectives that are sums over the pairs; others are means


def build_objective(opt, similarity: Similarity) -> nn.Module | None:
    """The objective that the options name, for the scores of a similarity."""
    return OBJECTIVES[opt.loss](opt, similarity)


# ---- pair terms beside the objective: (image, caption, batch) -> scalar, of two model.Encoded

class PairMSE(nn.Module):
    """`pair_mse` of the latents (`jwae` eq. 7) over their dimension D, summed over the batch.

    Over D, since at the prior's scale eq. 7 grows with D: --mse_weight D is eq. 7 per item. It is a
    mean over pairs, so beside it all of eq. 6 counts per item, too: the weights of the priors,
    which are no sums here, are to be times the batch. Without a latent_norm the latents shrink to
    norms below 1, where the prior's are sqrt(D).
    """

    def forward(self, image, caption, batch) -> Tensor:
        # (B, D) each
        x, y = (mean_rows(e.latent.value, e.latent.n_parts).float() for e in (image, caption))
        return pair_mse(x, y) * len(x) / x.shape[1]


class Anchor(nn.Module):
    """How far the features that an image expects of its caption (`encoders.Anchored`) point from
    the caption's own: 1 - their cosine, mean over the batch, in [0, 2]. size: of the features.

    Objectives that tell one pair from all others say nothing of how well the others fit. This
    regression does: it goes where the captions of like photos are, as DeViSE's does among words.
    """

    def __init__(self, size: int, share: float):
        super().__init__()
        self.size, self.share = size, share

    def forward(self, image, caption, batch) -> Tensor:
        x, y = (e.latent.value[:, -self.size:].float() for e in (image, caption))   # (B, A) each
        return 1 - (x * y).sum(1).mean() / self.share


class Volume(nn.Module):
    """Draws the variances of both sides to the share of photos that an item covers: the mean over
    pairs and sides of (v - log share)^2, v the mean log-variance over dimensions, in nats.

    shares (M,): the log shares of the captions of the training split, which train.py computes
    before the first step (evaluation.volume.training_shares). An image has those of its captions.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("shares", torch.zeros(0), persistent=False)

    def forward(self, image, caption, batch) -> Tensor:
        wanted = self.shares[batch.caption_index.to(self.shares.device)]            # (B,)
        return sum((e.embedding.log_var.mean(1) - wanted).square().mean() for e in (image, caption))


class Diversity(nn.Module):
    """Keeps an item's K attentions apart: |G - diag(G)|_F / K^2, G the cosines of its residuals,
    averaged over the items, of images plus of captions, in [0, 0.71] (PVSE)."""

    def forward(self, image, caption, batch) -> Tensor:
        return sum(self.alike(e.latent.residual.float()) for e in (image, caption))

    @staticmethod
    def alike(residual: Tensor) -> Tensor:
        k = residual.shape[1]
        x = unit(residual)                                                          # (B, K, D)
        gram = (x[:, :, None] * x[:, None]).sum(3)               # (B, K, K), float32 under autocast
        gram = gram.masked_fill(torch.eye(k, dtype=torch.bool, device=x.device), 0)
        return torch.linalg.vector_norm(gram, dim=(1, 2)).mean() / k ** 2


class MMD(nn.Module):
    """Maximum mean discrepancy between a batch's image and caption embeddings, mean of k(x, x') - 2
    k(x, y) + k(y, y'), with k = exp(-|x - y| / 2); the distance is not squared (PVSE's code). All K
    embeddings of an item count; >= 0.

    `latents` takes the embeddings before their norm, at distances divided by sqrt(D) (the MMD-MSE
    that jWAE compares with)."""

    def __init__(self, latents: bool = False):
        super().__init__()
        self.latents = latents

    def forward(self, image, caption, batch) -> Tensor:
        sides = [e.embedding for e in (image, caption)]
        if self.latents:
            sides = [Embedding(e.latent.value.float() / e.latent.value.shape[1] ** 0.5)
                     for e in (image, caption)]
        # (B K, D) each
        x, y = (e.mean if e.parts is None else real_rows(e.parts, e.n_parts) for e in sides)
        return sum(sign * (-0.5 * torch.cdist(a, b)).exp().sum() / (len(a) * len(b))
                   for sign, a, b in ((1, x, x), (-2, x, y), (1, y, y)))


class PairLogistic(nn.Module):
    """Logistic loss of labelled pairs, mean of log(1 + e^(-y s)), in nats, >= 0: an objective for
    log-odds s (CITE's loss).

    Positives, y = 1, are the B pairs of the diagonal; negatives, y = -1, for each of them
    `n_negatives` other captions of its row and as many other images of its column, drawn without
    repeats from torch's global generator; fewer where there are fewer. Pairs marked in `same` are
    never drawn. All labelled pairs weigh the same, and one drawn both ways counts twice.
    """

    n_negatives = 2

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        n = scores.shape[1]
        count = scores.new_zeros(n, n)                        # (B, B): how often each pair is drawn
        barred = own_pairs(scores, same)
        for axis in (1, 0):
            # from the CPU's generator
            keys = torch.rand(count.shape).to(scores.device).masked_fill(barred, -1)
            keys, chosen = keys.topk(min(self.n_negatives, n), axis)              # (B, n) or (n, B)
            count.scatter_add_(axis, chosen, (keys >= 0).to(count.dtype))
        total = F.softplus(-scores.diagonal()).sum() + (count * F.softplus(scores)).sum()
        return {"logistic": total / (n + count.sum())}
