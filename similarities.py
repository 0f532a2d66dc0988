"""Similarities of points and Gaussians: how well an image and a caption match.

Scores are higher-is-better, so a distance is negated. Rows are images, columns are captions. Most
similarities are an inner product of lifted features, score = finish(A(images) @ B(captions).T +
a(images) + b(captions)). This definition serves a batch, an evaluation in blocks and an index. Only
`order`, `elk`, `bhattacharyya` compare pair by pair.

Papers: `pmrl`, `ucmr` (README.md); VSE++ Faghri et al. 2018; PCME++ Chun 2024.
"""
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VAR_MAX = 10.0                        # variances lie in [0.1, 10]: `pmrl` 3.1, `ucmr` 4.2
LOG_VAR_BOUNDS = (math.log(0.1), math.log(VAR_MAX))
PIECE = 256              # captions lifted and scored at once, so that temporaries stay in the cache


class Embedding(NamedTuple):
    """A batch of points or of diagonal Gaussians."""
    mean: Tensor                      # (N, D)
    log_var: Tensor | None = None     # (N, D) ellipsoidal | (N, 1) spherical | None: a point
    parts: Tensor | None = None       # (N, P, D) regions, words, or K embeddings
    n_parts: Tensor | None = None     # (N,) how many of P are real

    def rows(self, index) -> "Embedding":
        """The items that `index` (slice, list or tensor) selects."""
        return Embedding(*(None if x is None else x[index] for x in self))

    def to(self, device) -> "Embedding":
        return Embedding(*(None if x is None else x.to(device) for x in self))

    def split(self, size: int) -> list["Embedding"]:
        """The items in runs of at most `size`."""
        return [self.rows(slice(k, k + size)) for k in range(0, max(1, len(self.mean)), size)]

    @staticmethod
    def cat(batches: list["Embedding"]) -> "Embedding":
        """Batches, one after the other. Parts are zero-padded to the largest number of parts."""
        def one(values):
            if values[0] is None:
                return None
            if values[0].ndim == 3:
                most = max(x.shape[1] for x in values)
                values = [F.pad(x, (0, 0, 0, most - x.shape[1])) for x in values]
            return torch.cat(values)
        return batches[0] if len(batches) == 1 else Embedding(*map(one, zip(*batches)))


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """l2-normalised vectors (..., D); eps keeps the gradient of a zero vector (an image without
    features) below 1e6."""
    return F.normalize(x, dim=dim, eps=1e-6)


def uncertainty(e: Embedding) -> Tensor:
    """log det Sigma of every item, in nats (`ucmr` 3.3): (N, D) or spherical (N, 1) -> (N,)."""
    if e.log_var is None:
        raise ValueError("a point has no uncertainty; train with a Gaussian head (--head "
                         "ellipsoidal)")
    return e.log_var.expand_as(e.mean).sum(1)


def negative_root(raw: Tensor) -> Tensor:
    """-sqrt of a negated squared distance. The clamp keeps the gradient finite where the distance
    is zero."""
    return (-raw).clamp_(min=torch.finfo(raw.dtype).eps ** 2).sqrt().neg()


def side_by_side(blocks, m: int) -> Tensor:
    """Blocks (n, p) from an iterator -> (n, m), each written while it is in the cache."""
    scores, done = None, 0
    for block in blocks:
        scores = block.new_empty(len(block), m) if scores is None else scores
        scores[:, done:done + block.shape[1]] = block
        done += block.shape[1]
    return scores


class Similarity(nn.Module):
    """How well images and captions match. Calling it with N images and M captions gives their
    scores (N, M)."""
    gaussian_sides = 0                # how many of image and caption must be Gaussian: 0, 1 or 2
    point_side = False                # of two Gaussian sides one may be a point
    parts = False                     # compares parts (words, regions), which both sides must have
    logits = False                    # scores are log-odds of a match
    log_likelihood = False         # scores are in nats: a softmax over them starts at temperature 1
    # also compares images with images and captions with captions; else cosine does
    within_modality = True
    options: tuple[str, ...] = ()     # options of train.py that are its arguments
    implies: dict[str, object] = {}   # defaults of other options of train.py

    @classmethod
    def build(cls, opt) -> "Similarity":
        """The similarity with the arguments that the options of train.py give."""
        return cls(*(getattr(opt, name) for name in cls.options))

    def check(self, images: Embedding, captions: Embedding) -> None:
        """Raises ValueError where the two sides lack what the similarity compares."""
        if self.parts and (images.parts is None or captions.parts is None):
            raise ValueError(f"{type(self).__name__} compares the parts of items, such as regions "
                             "with words, and a side given has means only; embed both by a model "
                             "of --sim scan or mil, or compare means: cosine")
        gaussian = (images.log_var is not None) + (captions.log_var is not None)
        if self.gaussian_sides not in (0, gaussian) and not (self.point_side and gaussian == 1):
            raise ValueError(f"{type(self).__name__} needs variances on {self.gaussian_sides} of "
                             f"the two sides, images and captions{', or on 1' * self.point_side}; "
                             f"{gaussian} of those given have them")

    def columns(self, images: Embedding, captions: Embedding):
        """Scores in blocks, for matrices that are too large to hold: columns(images,
        captions)(c)(i) is the block of the images `i` and the captions `c`, each a slice or an
        integer tensor.

        What a similarity prepares of captions is kept for as long as the caller keeps what the
        second call returned."""
        def column(c):
            block = captions.rows(c)
            return lambda i: self(images.rows(i), block)
        return column

    def at(self, images: Embedding, captions: Embedding, rows: Tensor, columns: Tensor) -> Tensor:
        """Scores (K,) of the images `rows` (K,) with the captions `columns` (K,). A network
        computes no others."""
        return self(images, captions)[rows, columns]


class Lifted(Similarity):
    """A similarity that first lifts each item by itself and then compares lifted items in pairs.

    A subclass defines lift_image(e, origin) and, if it differs, lift_caption(e, origin), of one
    side; rows_of(lift, i), the items `i` (a slice or an integer tensor) of a lift; and
    piece(image_lift, caption_lift, dim), the scores (n, p) of n lifted images and p lifted
    captions, whose embeddings have `dim` numbers.

    `origin`: what both sides share. A similarity that does not change when both are moved (or
    scaled) together subtracts it first, so that float32 never adds large terms that cancel.
    """
    centred: tuple[str, ...] = ()     # fields of the embeddings that an origin is taken from

    def origin(self, images: Embedding, captions: Embedding) -> Embedding:
        """The average over both sides of the fields in `centred`, (1, D) each; a constant to the
        gradient."""
        fields = {}
        for name in self.centred:
            sides = [getattr(e, name) for e in (images, captions) if getattr(e, name) is not None]
            fields[name] = sum(x.detach().mean(0, keepdim=True) for x in sides) / len(sides)
        return Embedding(fields.get("mean"), fields.get("log_var"))

    def lift_caption(self, e, origin):
        return self.lift_image(e, origin)                                  # unless the sides differ

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        self.check(images, captions)
        origin = self.origin(images, captions)
        lift, dim = self.lift_image(images, origin), images.mean.shape[1]
        blocks = (self.piece(lift, self.lift_caption(piece, origin), dim)
                  for piece in captions.split(PIECE))
        return side_by_side(blocks, len(captions.mean))                             # (N, M)

    def columns(self, images: Embedding, captions: Embedding):
        """As in `Similarity`. All images are lifted at once, and the captions of a block when the
        block is named."""
        self.check(images, captions)
        origin = self.origin(images, captions)
        lifted, dim = self.lift_image(images, origin), images.mean.shape[1]

        def column(c):
            block = captions.rows(c)
            pieces = [self.lift_caption(piece, origin) for piece in block.split(PIECE)]

            def score(i):
                rows = self.rows_of(lifted, i)
                return side_by_side((self.piece(rows, piece, dim) for piece in pieces),
                                    len(block.mean))                                        # (n, m)
            return score
        return column


class Separable(Lifted):
    """score = finish(A @ B.T + a[:, None] + b[None, :]).

    With one origin, or none, a lift depends on its own item alone, as an index needs it: `images`,
    `captions`."""

    def lift_image(self, e: Embedding,
                   origin: Embedding | None) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """The blocks of columns (N, k) of A (N, K), which stay apart to save a pass over memory, a
        (N,), and the level (N, 1) that the variances of an item share, or None: see `gap`.
        `lift_caption`: the same of B and b (M,)."""
        raise NotImplementedError

    def gap(self, image_level: Tensor, caption_level: Tensor, dim: int) -> Tensor:
        """The part of the raw score (n, m) that the levels (n, 1) and (1, m) make, pair by pair: as
        terms of an inner product such numbers cancel where whole items differ in variance, as
        spherical ones do."""
        raise NotImplementedError

    def image_gap(self, level: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Column and term of each image, (N, 1) each, by which an index has `gap` as an inner
        product: column_i column_c + term_i + term_c. `caption_gap` returns those of captions."""
        raise NotImplementedError
    caption_gap = image_gap

    def finish(self, raw: Tensor) -> Tensor:
        """From the raw inner product to the score. It is monotone, so both rank alike."""
        return raw

    def images(self, e: Embedding, origin: Embedding | None = None) -> tuple[Tensor, Tensor]:
        """A (N, K), a (N,): what an index of images holds. origin: one for both sides, which
        changes no score."""
        return self.joined(*self.lift_image(e, origin), origin and self.image_gap, e.mean.shape[1])

    def captions(self, e: Embedding, origin: Embedding | None = None) -> tuple[Tensor, Tensor]:
        """B (M, K), b (M,): what an index of captions holds, and how it is asked for images."""
        return self.joined(*self.lift_caption(e, origin), origin and self.caption_gap,
                           e.mean.shape[1])

    @staticmethod
    def joined(blocks: list[Tensor], a: Tensor, level: Tensor | None, gap,
               dim: int) -> tuple[Tensor, Tensor]:
        """The columns of a lift side by side, the level's last, and the rest in one number."""
        if level is None or gap is None:                    # without an origin all levels are 0
            return torch.cat(blocks, 1), a
        column, term = gap(level, dim)                                              # (N, 1) each
        return torch.cat([*blocks, column], 1), a + term[:, 0]

    def rows_of(self, lift, i):
        blocks, a, level = lift
        return [block[i] for block in blocks], a[i], None if level is None else level[i]

    def piece(self, image_lift, caption_lift, dim: int) -> Tensor:
        image_blocks, a, level = image_lift                              # (n, k) each, (n,), (n, 1)
        caption_blocks, b, caption_level = caption_lift                  # (p, k) each, (p,), (p, 1)
        raw = a[:, None] + b                                                        # (n, p)
        if caption_level is not None:
            raw += self.gap(level, caption_level.T, dim)
        for A, B in zip(image_blocks, caption_blocks):
            raw.addmm_(A, B.T)
        return self.finish(raw)


def shift(e: Embedding, origin: Embedding | None) -> Tensor:
    """Means seen from the common origin: (N, D)."""
    return e.mean if origin is None else e.mean - origin.mean


def normalise(e: Embedding, origin: Embedding | None) -> tuple[Tensor, Tensor, Tensor]:
    """Means and log-variances, (N, D) each, in the units of the origin, x -> (x - mean0) / std0;
    from the log-variances the average (N, 1) over each item is taken out and returned beside them.
    Without an origin: as they are, and 0."""
    if origin is None:
        return e.mean, e.log_var.expand_as(e.mean), e.mean.new_zeros(len(e.mean), 1)
    log_var = e.log_var - origin.log_var
    level = log_var.mean(1, keepdim=True)
    # in place: fresh memory costs more than the sum
    mean = (e.mean - origin.mean).mul_((-origin.log_var / 2).exp())
    return mean, log_var.sub_(level).expand_as(e.mean), level


class Dot(Separable):
    """Inner product of the means: VSE++'s score, which is the cosine where both sides have unit
    norm."""

    def lift_image(self, e, origin):
        return [e.mean], e.mean.new_zeros(len(e.mean)), None


class Cosine(Separable):
    """Cosine of the means, in [-1, 1] (VSE++ 3.1)."""

    def lift_image(self, e, origin):
        return [unit(e.mean)], e.mean.new_zeros(len(e.mean)), None


class Mahalanobis(Separable):
    """-sqrt((x - mu)^T Sigma^-1 (x - mu)) with the mean and covariance of the one Gaussian side, <=
    0.

    `pmrl` eq. 6 (GCE: the caption is the Gaussian) and eq. 10 (GIE: the image is).
    """
    gaussian_sides, centred = 1, ("mean",)
    within_modality = False           # one side is a point
    finish = staticmethod(negative_root)

    def lift_image(self, e, origin):
        mean = shift(e, origin)
        if e.log_var is None:
            return [mean.square(), mean], mean.new_zeros(len(mean)), None
        precision = (-e.log_var).exp().expand_as(mean)
        scaled = precision * mean
        return [-precision, 2 * scaled], -(scaled * mean).sum(1), None


class KL(Separable):
    """-KL(image || caption) in nats, <= 0: `pmrl` eq. 15, `ucmr` eq. 4.

    With l the log-variances less the level of their item, x = expm1(l_i), y = expm1(-l_c) and u =
    exp(level_i - level_c), 2 KL = sum_d [u (x y + x + y) + l_c - l_i + (mu_i - mu_c)^2 / v_c] + D
    (u - 1 - log u): what cancels is never added.
    """
    gaussian_sides, centred = 2, ("mean", "log_var")

    def lift_image(self, e, origin):
        return self.lift_p(*normalise(e, origin))

    def lift_caption(self, e, origin):
        return self.lift_q(*normalise(e, origin))

    @staticmethod
    def lift_p(mean: Tensor, log_var: Tensor, level: Tensor):
        """The lift of p in KL(p || q), normalised: D + D + 2 columns."""
        scale = level.exp()
        excess = log_var.expm1() * scale
        square = (mean.square() + excess).mul_(-0.5)
        return [square, mean, torch.cat([square.sum(1, keepdim=True), -0.5 * scale],
                                        1)], 0.5 * log_var.sum(1), level

    @staticmethod
    def lift_q(mean: Tensor, log_var: Tensor, level: Tensor):
        """The lift of q in KL(p || q), normalised: D + D + 2 columns."""
        scale = (-level).exp()
        excess = (-log_var).expm1_() * scale
        scaled = (excess + scale) * mean
        return ([excess, scaled, torch.cat([scale, excess.sum(1, keepdim=True)], 1)],
                -0.5 * torch.addcmul(log_var, mean, scaled).sum(1), level)

    def gap(self, image_level, caption_level, dim):
        ratio = image_level - caption_level                                         # log u: (n, m)
        return (ratio.expm1() - ratio).mul_(-0.5 * dim)

    def image_gap(self, level, dim):
        """expm1(p - q) = x y + x + y with x = expm1(p), y = expm1(-q): column and term of p."""
        x = level.expm1()
        return -0.5 * dim * x, -0.5 * dim * (x - level)

    def caption_gap(self, level, dim):
        y = (-level).expm1()
        return y, -0.5 * dim * (y + level)


class KLReverse(KL):
    """-KL(caption || image) in nats, <= 0: the other direction, `ucmr` Table 6."""

    lift_image, lift_caption = KL.lift_caption, KL.lift_image
    image_gap, caption_gap = KL.caption_gap, KL.image_gap

    def gap(self, image_level, caption_level, dim):
        return super().gap(caption_level, image_level, dim)


class MinKL(Lifted):
    """-min(KL(image || caption), KL(caption || image)) in nats, <= 0: `pmrl` eq. 16."""
    gaussian_sides, centred = 2, ("mean", "log_var")

    def __init__(self):
        super().__init__()
        self.kl, self.kl_reverse = KL(), KLReverse()

    def lift_image(self, e, origin):
        """Both lifts of every item, as p and as q. They share what they start from."""
        normal = normalise(e, origin)
        return KL.lift_p(*normal), KL.lift_q(*normal)

    def rows_of(self, lift, i):
        return tuple(self.kl.rows_of(one, i) for one in lift)

    def piece(self, image_lift, caption_lift, dim):
        (image_p, image_q), (caption_p, caption_q) = image_lift, caption_lift
        return torch.maximum(self.kl.piece(image_p, caption_q, dim),
                             self.kl_reverse.piece(image_q, caption_p, dim))


class SquaredDistance(Separable):
    """A similarity that is a squared distance, negated, of whatever `lift_caption` makes of either
    side."""
    gaussian_sides = 2

    def lift_image(self, e, origin):
        blocks, norm, level = self.lift_caption(e, origin)
        return [2 * block for block in blocks], norm, level


class Wasserstein(SquaredDistance):
    """-sqrt(|mu_i - mu_c|^2 + |sigma_i - sigma_c|^2), sigma the standard deviations, <= 0:
    2-Wasserstein distance of diagonal Gaussians, `pmrl` eq. 17 = `ucmr` eq. 7."""
    centred = ("mean", "log_var")
    power = 0.5                       # of the variance
    finish = staticmethod(negative_root)

    def lift_caption(self, e, origin):
        spread = (self.power * e.log_var).exp()                         # (M, D) or spherical (M, 1)
        level = None
        if origin is not None:
            spread = spread - (self.power * origin.log_var).exp()
            level = spread.mean(1, keepdim=True)
            spread = spread - level
        mean, spread = shift(e, origin), spread.expand_as(e.mean)
        return [mean, spread], -torch.addcmul(mean.square(), spread, spread).sum(1), level

    def gap(self, image_level, caption_level, dim):
        return (image_level - caption_level).square() * -dim                        # (n, m)

    def image_gap(self, level, dim):
        return 2 * dim * level, -dim * level.square()

    def caption_gap(self, level, dim):
        return level, -dim * level.square()


class WassersteinVar(Wasserstein):
    """-sqrt(|mu_i - mu_c|^2 + |sigma_i^2 - sigma_c^2|^2): `ucmr` eq. 8 as printed. It contradicts
    eq. 7 there."""
    power = 1.0


class CSD(SquaredDistance):
    """-(|mu_i - mu_c|^2 + tr(Sigma_i + Sigma_c)), <= 0: closed-form sampled distance, PCME++ eq.
    1."""
    centred = ("mean",)

    def lift_caption(self, e, origin):
        mean = shift(e, origin)
        return [mean], -mean.square().sum(1) - e.log_var.exp().expand_as(e.mean).sum(1), None


class MLS(Lifted):
    """-(|mu_i - mu_c|^2 / v + k log v) / 2 with v = v_i + v_c, any real number in nats; a point has
    variance 0: the mutual likelihood score of probabilistic face embeddings (PFE: Shi and Jain
    2019, eq. 3) in an effective number of dimensions.

    At k = D this is the log of the expected likelihood of two spherical Gaussians, the integral of
    p q, but for the constant -D/2 log 2 pi (PFE eq. 3, of one variance per item). Embeddings do not
    fill their D dimensions: their squared distances hardly vary beside D, which pins v to |mu_i -
    mu_c|^2 / D of every pair. So k, the effective dimension, is learned. It starts at
    4.

    With point images a caption's variance shifts and scales all its scores alike: text to image
    ranks as the cosine of unit means does.
    """
    gaussian_sides, point_side, centred = 2, True, ("mean",)
    log_likelihood = True
    within_modality = False           # a point side has no variance to compare with
    implies = {"loss": "infonce", "head": "spherical_one", "var_min": 1e-4, "logvar_init": -2.5}

    def __init__(self, k: float = 4.0):
        super().__init__()
        self.log_k = nn.Parameter(torch.tensor(math.log(k)))

    @property
    def k(self) -> Tensor:
        """The effective dimension, above 0."""
        return self.log_k.exp()

    def lift_caption(self, e: Embedding,
                     origin: Embedding | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Means (M, D) from the origin, half of their squared norms (M,), and variances (M, 1), or
        None of points."""
        mean = shift(e, origin)
        return mean, mean.square().sum(1) / 2, None if e.log_var is None else e.log_var.exp()

    lift_image = lift_caption

    def rows_of(self, lift, i):
        return tuple(None if x is None else x[i] for x in lift)

    def piece(self, image_lift, caption_lift, dim):
        (x, x_half, of_image), (y, y_half, of_caption) = image_lift, caption_lift
        sides = [v for v in (of_image, None if of_caption is None else of_caption.T)
                 if v is not None]
        variance = sum(sides)                   # (n, 1) + (1, p) -> (n, p); beside a point as it is
        score = (-x_half[:, None] - y_half).addmm_(x, y.T)                  # -|x - y|^2 / 2, (n, p)
        return score.div_(variance).addcmul_(variance.log(), -0.5 * self.k)


class Pairwise(Similarity):
    """A closed form that does not separate. Items meet in blocks of at most `elements` numbers,
    which fit the cache."""

    def forward(self, images, captions, elements: int = 2 ** 20):
        self.check(images, captions)

        def piece(y):
            step = max(1, elements // max(1, y.mean.numel()))
            return torch.cat([self.pairs(x, y) for x in images.split(step)])        # (N, p)
        return side_by_side(map(piece, captions.split(PIECE)), len(captions.mean))  # (N, M)

    def pairs(self, x: Embedding, y: Embedding) -> Tensor:
        """Scores of a block: (n, D), (p, D) -> (n, p)."""
        raise NotImplementedError

    @staticmethod
    def differences(x: Embedding, y: Embedding) -> tuple[Tensor, Tensor]:
        """Squared differences of the means and sums of the variances, (n, p, D) each."""
        a, b = x.log_var.exp().expand_as(x.mean), y.log_var.exp().expand_as(y.mean)
        return (x.mean[:, None] - y.mean).square(), a[:, None] + b


class Order(Pairwise):
    """-|max(0, caption - image)|, <= 0: order-violation of the means (Vendrov et al. 2016; VSE++
    4.4)."""

    def pairs(self, x, y):
        # (n, p, D) -> (n, p)
        return negative_root(-(y.mean - x.mean[:, None]).clamp(min=0).square().sum(2))


class ELK(Pairwise):
    """log of the expected likelihood kernel, the integral of p q = N(mu_i - mu_c; 0, Sigma_i +
    Sigma_c), any real number in nats (Jebara et al. 2004; among the similarities that PCME is
    evaluated with)."""
    gaussian_sides = 2

    def pairs(self, x, y):
        square, total = self.differences(x, y)
        return -0.5 * (square / total + total.log()).sum(2) - 0.5 * math.log(2 * math.pi) * x.mean.shape[1]


class Bhattacharyya(Pairwise):
    """-sum_d [(mu_i - mu_c)^2 / (v_i + v_c) / 4 + log((v_i + v_c) / (2 sigma_i sigma_c)) / 2], <=
    0: minus the Bhattacharyya distance, -log of the integral of sqrt(p q), in nats.

    The second term is log cosh(h) / 2 with h = (log v_i - log v_c) / 2, and log cosh h = log(1 +
    sinh(h)^2) / 2.
    """
    gaussian_sides = 2

    def pairs(self, x, y):
        square, total = self.differences(x, y)
        half = (x.log_var[:, None] - y.log_var).expand_as(square) / 2               # (n, p, D)
        return -0.25 * (square / total + half.sinh().square().log1p()).sum(2)


SIMILARITIES: dict[str, type[Similarity]] = {
    "cosine": Cosine,
    "dot": Dot,
    "order": Order,
    "mahalanobis": Mahalanobis,
    "kl": KL,
    "kl_reverse": KLReverse,
    "minkl": MinKL,
    "wasserstein": Wasserstein,
    "wasserstein_var": WassersteinVar,
    "csd": CSD,
    "elk": ELK,
    "bhattacharyya": Bhattacharyya,
}


# ---- scores of pairs in blocks, for similarities that need several numbers of memory for each pair

# numbers in the largest temporary of a block: what a cache holds
ELEMENTS = {"cpu": 2 ** 18, "cuda": 2 ** 25}


def block_side(x: Tensor, per_pair: int) -> int:
    """Items on each side of a block of pairs, where a pair takes `per_pair` numbers of memory."""
    return max(1, math.isqrt(ELEMENTS.get(x.device.type, ELEMENTS["cuda"]) // per_pair))


def by_blocks(score, images: Tensor, captions, m: int, step: int) -> Tensor:
    """Scores (N, M) in blocks of at most step x step pairs. images (K, N, D); `captions` yields (L,
    p, D), p <= step, M in all; score: (K, n, D), (L, p, D) -> (n, p)."""
    pieces = images.split(step, 1)
    return side_by_side((torch.cat([score(x, y) for x in pieces]) for y in captions), m)


class PairNetwork(Similarity):
    """Log-odds of a match, any real number, from a network that reads each pair by itself.

    A subclass defines `widest`, the size of its widest layer; read(captions), what it reads of each
    caption, (M, C); and score(x, y), of unit means of images (..., D) and of what is read of
    captions (..., C) -> (...), broadcast.

    In training all pairs asked for are held at once, and BatchNorm sees them and no others. In
    evaluation it uses its running statistics, and blocks have bounded size.
    """
    logits, within_modality, implies = True, False, {"loss": "logistic"}
    widest: int

    def read(self, captions: Embedding) -> Tensor:
        raise NotImplementedError

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, images, captions):
        self.check(images, captions)
        x, y = unit(images.mean), self.read(captions)                               # (N, D), (M, C)
        if self.training:
            return self.score(x[:, None], y)                                        # (N, M)
        step = block_side(x, self.widest)
        return by_blocks(lambda a, b: self.score(a[0, :, None], b), x[None], y.split(step), len(y),
                         step)

    def at(self, images, captions, rows, columns):
        self.check(images, captions)
        x, y = unit(images.mean), self.read(captions)                               # (N, D), (M, C)
        step = len(rows) if self.training else block_side(x, self.widest) ** 2
        return torch.cat([self.score(x[i], y[j])
                          for i, j in zip(rows.split(step), columns.split(step))])            # (K,)
