"""PVSE and PCME: embeddings that attend to regions and words (PIE-Net), K of them an item, and match probabilities of
sampled Gaussians.

    python train.py --data_name f8k_region_precomp --sim mil             # PVSE: K = 2 points an item, the best pair counts
    python train.py --data_name f8k_region_precomp --sim match_prob      # PCME: one Gaussian an item, J samples of each

PVSE: Song and Soleymani 2019, Polysemous Visual-Semantic Embedding for Cross-Modal Retrieval. PCME: Chun et al. 2021,
Probabilistic Embeddings for Cross-Modal Retrieval. "Local" is what is attended to: regions or grid cells of an image, word
vectors of a caption (not states of the GRU).
"""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from encoders import vsepp_linear
from similarities import Embedding, Similarity, block_side, by_blocks, unit


class SelfAttention(nn.Module):
    """K weighted means of the locals, weights softmax over positions of W2 tanh(W1 x) (PVSE): (B, P, F) -> (B, K, F)."""

    def __init__(self, inputs: int, heads: int):
        super().__init__()
        self.hidden = nn.Linear(inputs, max(1, inputs // 2), bias=False)
        self.score = nn.Linear(max(1, inputs // 2), heads, bias=False)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> Tensor:
        scores = self.score(self.hidden(local).tanh())                              # (B, P, F) -> (B, P, K)
        if lengths is not None:
            padding = torch.arange(local.shape[1], device=local.device) >= lengths.to(local.device)[:, None]     # (B, P)
            scores = scores.masked_fill(padding[:, :, None], -torch.inf)
        return scores.softmax(1).transpose(1, 2) @ local                            # (B, K, P) x (B, P, F) -> (B, K, F)


class MeanLinear(nn.Module):
    """The global view of an image: a linear map of the mean of its regions, (B, P, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.fc = vsepp_linear(inputs, embed_size)

    def forward(self, local: Tensor, lengths=None) -> Tensor:
        return self.fc(local.mean(1))                                               # (B, P, F) -> (B, F) -> (B, D)


class BiGRU(nn.Module):
    """The global view of a caption: the final states of both directions of a GRU, D / 2 + D / 2, (B, T, F) -> (B, D).

    The originals take both directions at the last word, where the backward one has read that word only; here each has
    read the whole caption.
    """

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1):
        super().__init__()
        self.rnn = nn.GRU(inputs, embed_size // 2, num_layers, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        forward, backward = self.rnn(packed)[1][-2:]                                # last layer: (B, D / 2) each
        return torch.cat([forward, backward], 1)                                    # (B, D)


class PIENet(nn.Module):
    """f_emb of PVSE and PCME: LayerNorm(global + sigmoid(fc(attended locals))). (B, P, F) -> (B, K, D), (B, K, D).

    `summary` makes the global view (B, D). Returns the embeddings and the residuals, the part behind the sigmoid, which
    `Diversity` keeps apart. parts=False takes K = 1 and gives the embedding as a vector (B, D).
    """
    per_word = False

    def __init__(self, inputs: int, embed_size: int, summary: nn.Module, n_embeds: int = 1, parts: bool = False):
        super().__init__()
        assert parts or n_embeds == 1, "K > 1 embeddings are parts"
        self.dim, self.parts, self.summary = embed_size, parts, summary
        self.attention = SelfAttention(inputs, n_embeds)
        self.fc = vsepp_linear(inputs, embed_size)
        self.norm = nn.LayerNorm(embed_size)

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        residual = self.fc(self.attention(local, lengths)).sigmoid()                # (B, K, F) -> (B, K, D)
        out = self.norm(self.summary(local, lengths)[:, None] + residual)           # (B, 1, D) + (B, K, D)
        return out if self.parts else out[:, 0], residual


class PIEVariance(nn.Module):
    """The log-variances of PCME: fc(attended locals) + global, neither sigmoid nor LayerNorm. (B, P, F) -> (B, D).

    Attention and global view (`summary`) are its own. The original takes this output as the log of the standard deviation
    where it samples and as the log of the variance in its information bottleneck; here it is log_var in both. The original
    starts near variance 1, which adds up to D beside means of norm 1: until the noise has shrunk every pair looks hopeless,
    only matching pairs have a gradient, and the means may meet in one point. Here the variances add up to `start` at first.
    """

    def __init__(self, inputs: int, embed_size: int, summary: nn.Module, start: float = 0.1):
        super().__init__()
        self.dim, self.summary = embed_size, summary
        self.attention = SelfAttention(inputs, 1)
        self.fc = vsepp_linear(inputs, embed_size)
        nn.init.constant_(self.fc.bias, math.log(start / embed_size))

    def forward(self, local: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.fc(self.attention(local, lengths)[:, 0]) + self.summary(local, lengths)      # (B, 1, F) -> (B, D)


class MaxOverParts(Similarity):
    """Cosine of the two most similar of an image's K and a caption's L embeddings, in [-1, 1]: PVSE's multiple
    instance learning, where it is enough that one pair matches."""
    parts = True

    def check(self, images, captions):
        super().check(images, captions)
        if images.parts is None or captions.parts is None:
            raise ValueError("MaxOverParts compares several embeddings an item, and these have one; encode both sides with "
                             "PIE-Net (--img_enc pie --txt_enc pie)")

    def forward(self, images, captions):
        self.check(images, captions)
        x, y = self.unit_parts(images), self.unit_parts(captions)                   # (K, N, D), (L, M, D)
        step = block_side(x, len(x) * len(y))
        return by_blocks(self.best, x, y.split(step, 1), y.shape[1], step)

    @staticmethod
    def unit_parts(e: Embedding) -> Tensor:
        """(N, P, D) -> (P, N, D), the first part repeated in place of padding, which never changes a maximum."""
        padding = torch.arange(e.parts.shape[1], device=e.parts.device) >= e.n_parts[:, None]    # (N, P)
        parts = torch.where(padding[:, :, None], e.parts[:, :1], e.parts)
        return unit(parts).transpose(0, 1)                                          # (N, P, D) -> (P, N, D)

    @staticmethod
    def best(x: Tensor, y: Tensor) -> Tensor:
        cosines = x.flatten(0, 1) @ y.flatten(0, 1).T                               # (K n, D) x (D, L p) -> (K n, L p)
        return cosines.view(*x.shape[:2], *y.shape[:2]).amax((0, 2))                # (K, n, L, p) -> (n, p)


class MatchProbability(Similarity):
    """Log-odds of PCME's match probability, p = mean over J x J pairs of samples of sigmoid(2 s), s = shift - scale |z_i - z_c|
    (its e^s / (e^s + e^-s)); any real number, 0 where p = 1/2.

    Samples z = mean + std * noise, J a side, not normalised again. scale and shift are learned and start at 15. The logit
    rather than p itself, so that hopeless pairs still rank and objectives.Match(logits=True) is PCME's soft contrastive
    loss: -log p of matching pairs, -log(1 - p) of all others. (The original sums it over the pairs and over two equal
    directions, 2 B times ours.)

    In training every item gets fresh noise, seeded from torch's global generator. In evaluation all images share J fixed
    noise vectors, and all captions J others: each pair's estimate is what independent noise would give, and the score of a
    pair depends on the two items alone, not on their places, their block, or the run; what noise the items share cancels in
    part when they are ranked. (The original draws for every item, and its test scores change from run to run.)
    """
    gaussian_sides, logits = 2, True

    def __init__(self, n_samples: int = 7):
        super().__init__()
        self.n_samples = n_samples
        self.scale = nn.Parameter(torch.tensor(15.0))
        self.shift = nn.Parameter(torch.tensor(15.0))

    def noise(self, e: Embedding, side: int) -> Tensor:
        """Standard normal numbers (J, N, D), of items of their own in training, of the side (0 or 1) in evaluation."""
        n, dim, like = *e.mean.shape, e.mean
        if self.training:
            generator = torch.Generator(like.device).manual_seed(int(torch.randint(2 ** 62, ())))
            return torch.randn(self.n_samples, n, dim, generator=generator, device=like.device, dtype=like.dtype)
        shared = torch.randn(self.n_samples, 1, dim, generator=torch.Generator().manual_seed(side))
        return shared.to(like).expand(-1, n, -1)

    @staticmethod
    def samples(e: Embedding, noise: Tensor) -> Tensor:
        return e.mean + (e.log_var / 2).exp() * noise                               # (N, D) + (J, N, D)

    def forward(self, images, captions):
        self.check(images, captions)
        step = block_side(images.mean, self.n_samples ** 2)
        x = self.samples(images, self.noise(images, 0))                             # (J, N, D)
        noise = self.noise(captions, 1)
        pieces = (self.samples(piece, noise[:, k * step:(k + 1) * step]) for k, piece in enumerate(captions.split(step)))
        return by_blocks(self.log_odds, x, pieces, len(captions.mean), step)

    def log_odds(self, x: Tensor, y: Tensor) -> Tensor:
        """Samples (J, n, D), (J, p, D) -> (n, p): log(sum of sigmoid(2 s)) - log(sum of sigmoid(-2 s)), in log space."""
        a, b = x.flatten(0, 1), y.flatten(0, 1)                                     # (J n, D), (J p, D)
        squared = (a.square().sum(1)[:, None] + b.square().sum(1)).addmm(a, b.T, alpha=-2)       # (J n, J p)
        distance = (squared.clamp(min=0) + 1e-6).sqrt()
        odds = 2 * (self.shift - self.scale * distance).view(*x.shape[:2], *y.shape[:2])         # (J, n, J, p)
        match = F.logsigmoid(odds)
        return match.logsumexp((0, 2)) - (match - odds).logsumexp((0, 2))           # logsigmoid(-x) = logsigmoid(x) - x
