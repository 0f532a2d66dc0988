"""PVSE and PCME: PIE-Net, attention to parts, and match probabilities of samples.

    python train.py --data_name f8k_region_precomp --sim mil          # PVSE: K = 2 points per item
    python train.py --data_name f8k_region_precomp --sim match_prob   # PCME: one Gaussian per item

PVSE: Song and Soleymani 2019, Polysemous Visual-Semantic Embedding for Cross-Modal Retrieval. PCME:
Chun et al. 2021, Probabilistic Embeddings for Cross-Modal Retrieval.

The networks attend to locals: regions or grid cells of an image, word vectors of a caption (not the
states of the GRU).
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses import (
    SIMILARITIES,
    Embedding,
    Similarity,
    Term,
    real_parts,
    real_rows,
    score_in_blocks,
    unit,
)
from model import (
    IMAGE_ENCODERS,
    OPTION_DEFAULTS,
    OPTION_RULES,
    TERM_BUILDERS,
    TEXT_ENCODERS,
    BiGRU,
    Encoder,
    Latent,
    Precomputed,
    build_cnn,
    build_words,
    mean_regions,
    vsepp_linear,
)
from utils import InputError, depth, weight


class SelfAttention(nn.Module):
    """K means of the locals, weights softmax(W2 tanh(W1 x)): (B, P, F) -> (B, K, F)."""

    def __init__(self, inputs: int, heads: int):
        super().__init__()
        hidden = max(1, inputs // 2)
        self.hidden = nn.Linear(inputs, hidden, bias=False)
        self.score = nn.Linear(hidden, heads, bias=False)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> Tensor:
        scores = self.score(self.hidden(local).tanh())  # (B, P, F) -> (B, P, K)
        if lengths is not None:
            padding = ~real_parts(local, lengths)
            scores = scores.masked_fill(padding[:, :, None], -torch.inf)
        weights = scores.softmax(1).transpose(1, 2)  # (B, K, P)
        return weights @ local  # (B, K, P) x (B, P, F) -> (B, K, F)


class MeanLinear(nn.Module):
    """Linear map of the mean of an image's regions: (B, P, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.fc = vsepp_linear(inputs, embed_size)

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.fc(mean_regions(local, lengths))  # (B, P, F) -> (B, F) -> (B, D)


class PIENet(nn.Module):
    """LayerNorm(global + sigmoid(fc(attended locals))): (B, P, F) -> (B, K, D).

    Args:
        summary: the global view, (locals, lengths) -> (B, D).
        n_embeds: K.
        parts: the K embeddings are parts of an item; else K = 1, and it has one vector (B, D).
    """

    def __init__(
        self,
        inputs: int,
        embed_size: int,
        summary: nn.Module,
        n_embeds: int = 1,
        parts: bool = False,
    ):
        super().__init__()
        assert parts or n_embeds == 1, "K > 1 embeddings are parts"
        self.dim = embed_size
        self.parts = parts
        self.summary = summary
        self.attention = SelfAttention(inputs, n_embeds)
        self.fc = vsepp_linear(inputs, embed_size)
        self.norm = nn.LayerNorm(embed_size)

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> Latent:
        residual = self.fc(self.attention(local, lengths)).sigmoid()  # (B, K, F) -> (B, K, D)
        summary = self.summary(local, lengths)[:, None]  # (B, 1, D)
        out = self.norm(summary + residual)  # (B, K, D)
        if self.parts:
            return Latent.from_parts(out, residual)
        return Latent(out[:, 0], residual=residual)


class PIEVariance(nn.Module):
    """Log-variances of PCME: fc(attended locals) + global, (B, P, F) -> (B, D).

    The original reads this output as the log of the standard deviation where it samples and as that
    of the variance in its information bottleneck; here it is log_var in both. The original starts
    near variance 1, D in all beside means of norm 1, so only matched pairs have a gradient and the
    means may collapse; here variances add up to 0.1 first.
    """

    def __init__(self, inputs: int, embed_size: int, summary: nn.Module):
        super().__init__()
        self.dim = embed_size
        self.summary = summary
        self.attention = SelfAttention(inputs, 1)
        self.fc = vsepp_linear(inputs, embed_size)
        nn.init.constant_(self.fc.bias, math.log(0.1 / embed_size))

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> Latent:
        attended = self.attention(local, lengths)[:, 0]  # (B, 1, F) -> (B, F)
        return Latent(self.fc(attended) + self.summary(local, lengths))  # (B, D)


class MaxOverParts(nn.Module):
    """Highest cosine of K embeddings of an image and L of a caption, in [-1, 1].

    PVSE's multiple-instance learning.
    """

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        x = unit(fill_padding(images)).transpose(0, 1)  # (K, N, D)
        y = unit(fill_padding(captions)).transpose(0, 1)  # (L, M, D)

        def score(rows: slice, columns: slice) -> Tensor:
            a = x[:, rows]  # (K, n, D)
            b = y[:, columns]  # (L, p, D)
            cosines = a.flatten(0, 1) @ b.flatten(0, 1).T  # (K n, L p)
            cosines = cosines.view(*a.shape[:2], *b.shape[:2])  # (K, n, L, p)
            return cosines.amax((0, 2))

        per_pair = len(x) * len(y)
        return score_in_blocks(score, x.shape[1], y.shape[1], per_pair, x.device)


def fill_padding(e: Embedding) -> Tensor:
    """Replace padding among parts (N, P, D) by the first part: no maximum changes."""
    real = real_parts(e.parts, e.n_parts)[:, :, None]  # (N, P, 1)
    return torch.where(real, e.parts, e.parts[:, :1])


class MatchProbability(nn.Module):
    """Log-odds of PCME's match probability, any real number.

    p is the mean of sigmoid(2 s), s = shift - scale |z_i - z_c|, over J x J pairs of samples z =
    mean + std * noise, which are not normalized again. Log-odds still rank pairs whose p is 0, and
    losses.Match(logits=True) of them is PCME's soft contrastive loss (the original sums it over
    pairs and two equal directions, 2 B times ours).

    In training every item gets fresh noise. In evaluation all images share J noise vectors and all
    captions J others, so a score depends on its two items alone; in the original test scores change
    from run to run.
    """

    def __init__(self, n_samples: int = 7):
        super().__init__()
        self.n_samples = n_samples
        self.scale = nn.Parameter(torch.tensor(15.0))
        self.shift = nn.Parameter(torch.tensor(15.0))

    def noise(self, e: Embedding, side: int) -> Tensor:
        """Draw standard normal numbers (J, N, D); in evaluation those of the side, 0 or 1."""
        mean = e.mean
        n, dim = mean.shape
        if self.training:
            seed = int(torch.randint(2**62, ()))
            generator = torch.Generator(mean.device).manual_seed(seed)
            return torch.randn(
                self.n_samples,
                n,
                dim,
                generator=generator,
                device=mean.device,
                dtype=mean.dtype,
            )
        generator = torch.Generator().manual_seed(side)
        shared = torch.randn(self.n_samples, 1, dim, generator=generator)
        return shared.to(mean).expand(-1, n, -1)

    def sample(self, e: Embedding, side: int) -> Tensor:
        """Draw samples (J, N, D) of Gaussians."""
        std = (e.log_var / 2).exp()
        return e.mean + std * self.noise(e, side)

    def forward(self, images, captions):
        x = self.sample(images, 0)  # (J, N, D)
        y = self.sample(captions, 1)  # (J, M, D)

        def score(rows: slice, columns: slice) -> Tensor:
            return self.log_odds(x[:, rows], y[:, columns])

        per_pair = self.n_samples**2
        return score_in_blocks(score, x.shape[1], y.shape[1], per_pair, x.device)

    def log_odds(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute log(sum of sigmoid(2 s)) - log(sum of sigmoid(-2 s)) over pairs of samples.

        Samples (J, n, D), (J, p, D) -> (n, p).
        """
        a = x.flatten(0, 1)  # (J n, D)
        b = y.flatten(0, 1)  # (J p, D)
        a_square = a.square().sum(1)[:, None]  # (J n, 1)
        b_square = b.square().sum(1)  # (J p,)
        square = (a_square + b_square).addmm(a, b.T, alpha=-2)  # (J n, J p)
        distance = (square.clamp(min=0) + 1e-6).sqrt()

        odds = 2 * (self.shift - self.scale * distance)
        odds = odds.view(*x.shape[:2], *y.shape[:2])  # (J, n, J, p)
        match = F.logsigmoid(odds)
        no_match = match - odds  # logsigmoid(-x) = logsigmoid(x) - x
        return match.logsumexp((0, 2)) - no_match.logsumexp((0, 2))


# ---- terms beside the loss: (images, captions, batch) -> scalar


def diversity(image, caption, batch) -> Tensor:
    """Average |G - diag(G)|_F / K^2, G the cosines of an item's residuals (PVSE)."""
    total = 0
    for encoded in (image, caption):
        x = unit(encoded.latent.residual.float())  # (B, K, D)
        k = x.shape[1]
        gram = (x[:, :, None] * x[:, None]).sum(3)  # (B, K, K), float32 under autocast
        diagonal = torch.eye(k, dtype=torch.bool, device=x.device)
        gram = gram.masked_fill(diagonal, 0)
        norm = torch.linalg.vector_norm(gram, dim=(1, 2))  # (B,)
        total = total + norm.mean() / k**2
    return total


def mmd(image, caption, batch, latents: bool = False) -> Tensor:
    """Compute the maximum mean discrepancy of a batch's image and caption embeddings, >= 0.

    Mean of k(x, x') - 2 k(x, y) + k(y, y'), k = exp(-|x - y| / 2), of all K embeddings of an item;
    the distance is not squared, as in PVSE's code. latents: of the latents, at distances divided by
    sqrt(D) (jWAE's MMD-MSE).
    """
    x = mmd_vectors(image, latents)  # (B K, D)
    y = mmd_vectors(caption, latents)  # (B K, D)
    return mean_kernel(x, x) - 2 * mean_kernel(x, y) + mean_kernel(y, y)


def mmd_vectors(encoded, latents: bool) -> Tensor:
    """Take the vectors (B K, D) that `mmd` compares."""
    if latents:
        latent = encoded.latent.value.float()
        return latent / latent.shape[1] ** 0.5
    e = encoded.embedding
    if e.parts is None:
        return e.mean
    return real_rows(e.parts, e.n_parts)


def mean_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Average exp(-|x_i - y_j| / 2) over all pairs."""
    kernel = (-0.5 * torch.cdist(x, y)).exp()  # (n, m)
    return kernel.sum() / (len(x) * len(y))


def build_diversity(opt, vocab, image_dim: int) -> dict[str, Term]:
    """Build the term that keeps PVSE's embeddings of an item apart."""
    return {"diversity": Term(opt.diversity, diversity)}


def build_mmd(opt, vocab, image_dim: int) -> dict[str, Term]:
    """Build the term that pulls the two distributions together."""
    of_latents = opt.loss == "mse"
    return {"mmd": Term(opt.mmd, functools.partial(mmd, latents=of_latents))}


TERM_BUILDERS["diversity"] = build_diversity
TERM_BUILDERS["mmd"] = build_mmd


# ---- what --img_enc pie, --txt_enc pie, --sim mil and --sim match_prob name


def build_locals(opt, pretrained: bool) -> nn.Module:
    """Build the trunk of the images: regions as they are, or a CNN, whose last map has cells."""
    if opt.img_dim:
        return Precomputed(opt.img_dim, opt.feature_norm, average=False)
    return build_cnn(opt, pretrained, cells=True)


def embed_images(opt, inputs: int) -> PIENet:
    """Build f_emb of the images."""
    summary = MeanLinear(inputs, opt.embed_size)
    parts = SIMILARITIES[opt.sim].parts
    return PIENet(inputs, opt.embed_size, summary, opt.n_embeds, parts)


def embed_captions(opt, inputs: int) -> PIENet:
    """Build f_emb of the captions."""
    summary = BiGRU(inputs, opt.embed_size, opt.num_layers)
    parts = SIMILARITIES[opt.sim].parts
    return PIENet(inputs, opt.embed_size, summary, opt.n_embeds, parts)


def image_variances(opt, inputs: int) -> PIEVariance:
    """Build PCME's log-variances of the images."""
    summary = MeanLinear(inputs, opt.embed_size)
    return PIEVariance(inputs, opt.embed_size, summary)


def caption_variances(opt, inputs: int) -> PIEVariance:
    """Build PCME's log-variances of the captions."""
    summary = BiGRU(inputs, opt.embed_size, opt.num_layers)
    return PIEVariance(inputs, opt.embed_size, summary)


def check_n_embeds(opt) -> None:
    """Raise InputError on several embeddings of an item where the similarity compares one."""
    takes_several = "n_embeds" in SIMILARITIES[opt.sim].defaults
    if not takes_several and (opt.n_embeds != 1 or opt.diversity):
        raise InputError(
            f"--n_embeds {opt.n_embeds} and --diversity {opt.diversity:g} need --sim mil; "
            "leave them out"
        )


PARTS_OPTIONS = {"n_embeds": (depth, None, "mil: embeddings per item (default: 2)", "K")}
PARTS_TERM_OPTIONS = {
    "diversity": (weight, 0.0, "mil: keep the K embeddings apart (PVSE: 0.1 x batch size)"),
    "mmd": (
        weight,
        0.0,
        "pull the two distributions of embeddings together (PVSE: 0.01 x batch size)",
    ),
}
IMAGE_ENCODERS["pie"] = Encoder("cells", build_locals, embed_images, image_variances)
TEXT_ENCODERS["pie"] = Encoder("words", build_words, embed_captions, caption_variances)
SIMILARITIES["mil"] = Similarity(
    MaxOverParts, parts=True, defaults={"img_enc": "pie", "txt_enc": "pie", "n_embeds": 2}
)
SIMILARITIES["match_prob"] = Similarity(
    MatchProbability,
    gaussian_sides=2,
    own_log_var=True,
    logits=True,
    defaults={"img_enc": "pie", "txt_enc": "pie", "loss": "match", "var_min": 1e-6},
)
OPTION_DEFAULTS["n_embeds"] = 1
OPTION_RULES["encoders"].append((("n_embeds", "diversity"), check_n_embeds))
