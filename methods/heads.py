"""Gaussian heads on frozen embeddings: points from elsewhere (CLIP, say) stay where they are, and
small networks learn how uncertain each is.

AsymVLM: Ju et al. 2025, Exploiting the Asymmetric Uncertainty Structure of Pre-trained VLMs on the
Unit Hypersphere. ProLIP: Chun et al. 2025, Probabilistic Language-Image Pre-Training; LongProLIP:
Chun and Yun 2025. ProbVLM: Upadhyay et al. 2023, Probabilistic Adapter for Frozen Vision-Language
Models. DLMF: dlmf.nist.gov, formulas of Bessel functions.

Where the published code of ProLIP and ProbVLM departs from the formulas, the formulas are followed;
tests/test_heads.py shows by numbers what differs.
"""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoders import Latent, ReLULayers
from similarities import Embedding, Separable, unit

# ---- von Mises-Fisher: one side a direction with a concentration, the other a point on the sphere

LEAST_ORDER = 32                      # of the Bessel functions that the expansion below is used for


def log_growth(kappa: Tensor, order: float) -> Tensor:
    """log of J(kappa) / J(0) with J(kappa) = I_order(kappa) / kappa^order, >= 0 and 0 at 0: any
    shape -> the same.

    I is the modified Bessel function. The von Mises-Fisher density on the unit sphere in D
    dimensions is C_D(kappa) exp(kappa mu . x), and log C_D(kappa) is log C_D(0) less this at order
    D/2 - 1. C_D(0), thousands of nats at D = 1,024, never enters, so float32 is right to 1e-6 of
    the value. (AsymVLM's code takes it, up to a constant, from arXiv 2103.15718; differences
    between kappas are then up to 0.1 nats off.) From order 32 on `debye` is right to 1e-9. The
    recurrence of DLMF 10.29.1, J_{n-1} = 2 n J_n + kappa^2 J_{n+1}, leads from there to lower
    orders; all of its terms are positive.
    """
    steps = max(0, math.ceil(LEAST_ORDER - order))
    n = order + steps
    log_j = debye(kappa, n)
    if not steps:
        return log_j
    square = kappa.square()
    ratio = (debye(kappa, n + 1) - log_j).exp() / (2 * (n + 1))                     # J_{n+1} / J_n
    for k in range(steps):
        rest = square * ratio                                     # kappa^2 J_{m+1} / J_m, m = n - k
        log_j = log_j + (rest / (2 * (n - k))).log1p()
        ratio = 1 / (2 * (n - k) + rest)                                            # J_m / J_{m-1}
    return log_j


def debye(kappa: Tensor, n: float) -> Tensor:
    """`log_growth` for a large order n by Debye's expansion, uniform in kappa (DLMF 10.41.3): any
    shape -> the same.

    With s = sqrt(n^2 + kappa^2), e = s - n and t = n / s it is e - n log(1 + e / 2n) - log(1 + e /
    n) / 2 plus the sum over k of (d_k(t) - d_k(1)) / n^k. The d_k are the coefficients of 1 / n^k
    in log(1 + U_1 / n + U_2 / n^2 + ...), with the U_k of DLMF 10.41.9. Four of them are here; the
    fifth would add at most 0.021 / n^5.
    """
    square = kappa.square()
    s = (square + n ** 2).sqrt()
    e, t = square / (s + n), n / s                                              # s - n would cancel
    t2 = t.square()
    d1 = (5 * t2 + 5 * t + 2) / 24                                                  # times 1 - t
    d2 = t2 * (1 - 5 * t2) / 16                                                     # times 1 - t^2
    d3 = t * t2 * (375 + t2 * (-4779 + t2 * (9945 - 5525 * t2))) / 5760 - 1 / 360
    d4 = t2.square() * (13 + t2 * (-271 + t2 * (791 - 565 * t2))) / 128             # times 1 - t^2
    series = (e / s) * (d1 / n + (1 + t) * (d2 / n ** 2 + d4 / n ** 4)) + d3 / n ** 3
    return e - n * (e / (2 * n)).log1p() - 0.5 * (e / n).log1p() + series


class VonMisesFisher(Separable):
    """log p(x) of a point x on the unit sphere under a von Mises-Fisher density, over that of the
    uniform density, in nats: kappa mu . x + log C_D(kappa) - log C_D(0), any real number (AsymVLM).

    One side, either, is a spherical Gaussian: its mean gives the direction, mu = mean / |mean|, and
    its variance is 1 / kappa. The other is a point, x = mean / |mean|. log C_D(0) depends on D
    alone; leaving it out changes no rank, softmax or hinge. The bounds of variances are those of 1
    / kappa; a mean cosine r needs a kappa of about r D / (1 - r^2), so that a smallest variance of
    0.1 is too large. (In AsymVLM captions are the uncertain side, their network may turn mu, too,
    and the learned temperature of the softmax starts at 1.)
    """
    gaussian_sides, log_likelihood = 1, True
    within_modality = False           # one side is a point
    implies = {"loss": "infonce", "head": "spherical_one", "var_min": 1e-5,
               "logvar_init": -math.log(100)}

    def check(self, images, captions):
        """Raises ValueError also where the Gaussian side has a variance for each dimension."""
        super().check(images, captions)
        width = next(e.log_var.shape[1] for e in (images, captions) if e.log_var is not None)
        if width != 1:
            raise ValueError("VonMisesFisher has one concentration per item, and these have "
                             f"{width} variances; give the Gaussian side a spherical head (--head "
                             "spherical_one)")

    def lift_image(self, e, origin):
        mean = unit(e.mean)
        if e.log_var is None:
            return [mean], mean.new_zeros(len(mean)), None
        kappa = (-e.log_var).exp()                                                  # (N, 1)
        return [kappa * mean], -log_growth(kappa, mean.shape[1] / 2 - 1)[:, 0], None

    lift_caption = lift_image


# ---- inclusion of one Gaussian in another

def inclusion_gap(a: Embedding, b: Embedding) -> Tensor:
    """H(a in b) - H(b in a) of N pairs of Gaussians, in nats, > 0 where a is included in b rather
    than b in a -> (N,).

    H(a in b) is the log of the integral of p_a^2 p_b (ProLIP), large where a is narrow and lies
    within b: p_a^2 is (4 pi v_a)^-1/2 times N(mu_a, v_a / 2), and the integral of two Gaussians is
    the density of their difference at 0, so that it is, summed over dimensions, -(log v_a + log(v_a
    + 2 v_b)) / 2 - (mu_a - mu_b)^2 / (v_a + 2 v_b) - log 2 pi. (ProLIP's code counts each
    log-variance twice.) With h = (log v_a - log v_b) / 2 and g = sqrt(v_a v_b) it is, summed over dimensions,
    atanh(tanh(h) / 3) - h - (mu_a - mu_b)^2 / g * 2 sinh(h) / (9 + 8 sinh(h)^2), which is exact
    near 0, where the difference of the two is not.
    """
    log_a, log_b = (e.log_var.expand_as(e.mean) for e in (a, b))                     # (N, D) each
    h = (log_a - log_b) / 2                                                         # (N, D)
    square, sinh = (a.mean - b.mean).square(), h.sinh()
    moved = square * (-(log_a + log_b) / 2).exp() * 2 * sinh / (9 + 8 * sinh.square())
    return ((h.tanh() / 3).atanh() - h - moved).sum(1)


class Inclusion(nn.Module):
    """Draws captions to include their images, which say more than they do: a pair term, mean over
    pairs of -log sigmoid(c (H(image in caption) - H(caption in image)) / D), in nats, >= 0
    (ProLIP's inclusion loss).

    Both sides are Gaussians. c: ProLIP takes 1,000, where the sigmoid is a step and the loss c
    times what is lacking; LongProLIP 10, as here. (ProLIP's code also multiplies the
    precisions 1 / v by e^-10 in some terms, so that the means hardly count; not here.)
    """

    scale = 10.0                      # c

    def forward(self, image, caption, batch) -> Tensor:
        gap = inclusion_gap(image.embedding, caption.embedding)                     # (B,)
        return F.softplus(-self.scale / image.embedding.mean.shape[1] * gap).mean()


# ---- generalised Gaussians around a reconstruction (ProbVLM)

# of unit vectors, whose numbers are about 1 / sqrt(D)
LOG_ALPHA_BOUNDS = (math.log(1e-3), math.log(10.0))
LOG_BETA_BOUNDS = (math.log(0.5), math.log(4.0))      # 1: Laplace; 2: Gaussian


def gg_nll(residual: Tensor, log_alpha: Tensor, log_beta: Tensor) -> Tensor:
    """-log density of residuals r under generalised Gaussians of scale alpha and shape beta, in
    nats, of any one shape: (|r| / alpha)^beta - log(beta / alpha) + log Gamma(1 / beta) + log 2.

    The log 2 is a constant that ProbVLM leaves out. The gradient by r is 0 at r = 0. Next to it,
    where beta < 1, it grows as |r|^(beta - 1), no faster than |r|^-1/2 within the bounds above.
    (ProbVLM's code has beta |r| / alpha in place of the power.)
    """
    zero = residual == 0
    # no log of 0: its gradient would be 0 times infinity
    distance = residual.abs().masked_fill(zero, 1)
    power = (log_beta.exp() * (distance.log() - log_alpha)).exp().masked_fill(zero, 0)
    return power - log_beta + log_alpha + (-log_beta).exp().lgamma() + math.log(2)


def gg_log_var(log_alpha: Tensor, log_beta: Tensor) -> Tensor:
    """log of the variance alpha^2 Gamma(3 / beta) / Gamma(1 / beta), any one shape: ProbVLM's
    aleatoric uncertainty."""
    inverse = (-log_beta).exp()
    return 2 * log_alpha + (3 * inverse).lgamma() - inverse.lgamma()


class GeneralisedGaussian(nn.Module):
    """f_emb of ProbVLM's variances: what would reconstruct an embedding, and how far it may be off.
    (B, D) -> (B, D).

    Features z are the frozen embedding itself. D-256-256 layers with ReLUs, then dropout, then z^ -
    z, log alpha and log beta, D each. The Latent's value is `gg_log_var`; its residual (B, 3, D)
    holds z^, log alpha and log beta, which `ProbVLMLoss` reads. alpha stays in [0.001, 10] and beta
    in [0.5, 4]. At the start z^ = z, alpha = 1 / sqrt(D) and beta = 2, so the variance is 1 / 2D:
    --logvar_init stays 0, and --var_min must lie below. (In the original each of the three has
    layers of its own behind the shared ones, and z is added before those.)
    """

    def __init__(self, inputs: int):
        super().__init__()
        self.dim = inputs
        self.layers = nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256),
                                    nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 3 * inputs))
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Latent:
        shift, alpha, beta = self.layers(features).to(features.dtype).chunk(3, 1)      # (B, D) each
        log_alpha = (alpha - math.log(self.dim) / 2).clamp(*LOG_ALPHA_BOUNDS)
        log_beta = (beta + math.log(2)).clamp(*LOG_BETA_BOUNDS)
        parameters = torch.stack([features + shift, log_alpha, log_beta], 1)             # (B, 3, D)
        return Latent(gg_log_var(log_alpha, log_beta), residual=parameters)


class ProbVLMLoss(nn.Module):
    """A pair term of two `GeneralisedGaussian` heads: L = rec_V + rec_T + cross (NLL_V(z_T) +
    NLL_T(z_V)), with rec = |z^ - z| + 0.05 NLL(z), means over items and dimensions, in nats
    (ProbVLM).

    NLL_V(z_T) is `gg_nll` of z_T - z^_V under the image's alpha and beta. It reads `spread` of both
    sides, the Latent of their heads, and the mean of their embeddings, which get no gradient. The
    original's cross is 1e-4: then alpha is the error of an autoencoder of the embedding, which
    tends to 0, and not that of a match.
    """

    cross = 1.0

    def forward(self, image, caption, batch) -> Tensor:
        means = [e.embedding.mean.detach() for e in (image, caption)]               # (B, D) each
        heads = [e.spread.residual.to(mean.dtype).unbind(1)
                 for e, mean in zip((image, caption), means)]
        loss = 0
        for (centre, log_alpha, log_beta), own, other in zip(heads, means, means[::-1]):
            nll, match = (gg_nll(z - centre, log_alpha, log_beta).mean() for z in (own, other))
            loss = loss + (centre - own).abs().mean() + 0.05 * nll + self.cross * match
        return loss


class Volume(nn.Module):
    """Draws the variances of both sides to the share of photos that an item covers: a pair term,
    the mean over pairs and sides of (v - log share)^2, v the mean log-variance over dimensions, in
    nats.

    shares (M,): the log shares of the captions of the training split, which train.py computes
    before the first step (evaluation.volume.training_shares). An image has those of its captions.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("shares", torch.zeros(0), persistent=False)

    def forward(self, image, caption, batch) -> Tensor:
        wanted = self.shares[batch.caption_index.to(self.shares.device)]            # (B,)
        return sum((e.embedding.log_var.mean(1) - wanted).square().mean() for e in (image, caption))


# ---- variances

class VarianceLayers(ReLULayers):
    """f_emb of variances on frozen embeddings: linear layers with ReLUs between them, as in
    AsymVLM, (..., F) -> (..., outputs). `outputs`: D, or 1 of a spherical head.

    The last layer starts at 0, so that all variances start at --logvar_init, whatever the features.
    """

    def __init__(self, inputs: int, sizes: list[int], outputs: int):
        super().__init__(inputs, sizes, outputs)
        nn.init.zeros_(self.layers[-1].weight)
