"""Speed, memory and recall of search in many Gaussians: what benchmark.py's part `search` measures.

The Gaussians are drawn, D = 1,024, so that they search like real ones. Of embeddings that were trained with --sim
wasserstein on Flickr8k (D = 512; 6,500 images, and 2,500 captions of images that the training did not see) these were
measured: the dimensions that hold 50, 80, 90 and 95 percent of the variance, which are 16, 45, 88 and 164 of the means
and 6, 21, 39 and 72 of the log-variances; the standard deviation of a log-variance, .09; and the recall@10 of an
inverted file of 128 lists, which is .31, .65 and .93 when 1, 4 and 16 lists are read. Drawn so, with D = 512, the
dimensions are 14, 51, 97 and 160, and 6, 19, 38 and 83; the recall is .16, .42 and .80: these are harder to find.
"""
import torch
from torch import Tensor

from similarities import SIMILARITIES, Embedding, unit

DIM, LATENT = 1024, 256
CLUSTERS, WITHIN = 2000, 0.5          # WITHIN: share of the latent variance that is within clusters
DECAY, FLAT_UP_TO = 1.8, 12           # the variance of latent dimension i is (i + 12) ** -1.8
NOISE = 0.05                          # share of the variance that is the same in all dimensions
CAPTION_NOISE = 0.4                   # share of a caption's latent variance that is not that of its image
SPREAD = 0.09                         # standard deviation of a log-variance


class Drawn:
    """Draws images and captions from one latent space of clusters, mapped up to the dimensions of the embedding."""

    def __init__(self, seed: int, dim: int = DIM):
        self.generator, self.dim = torch.Generator().manual_seed(seed), dim
        self.scale = (torch.arange(LATENT) + FLAT_UP_TO).float().pow(-DECAY / 2)    # (L,)
        self.centres = self.normal(CLUSTERS, LATENT)
        self.to_mean, self.to_log_var = (self.normal(LATENT, dim) / dim ** 0.5 for _ in range(2))
        self.turn = self.normal(LATENT, LATENT) / LATENT ** 0.5     # other latent dimensions lead in the log-variances

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def embed(self, latent: Tensor) -> Embedding:
        """Latent vectors (N, L) as Gaussians."""
        scales = self.scale, self.scale ** 1.5              # the log-variances fill fewer dimensions
        parts = [(x * (scale / scale.norm())) @ up for x, scale, up in zip((latent, latent @ self.turn), scales,
                                                                          (self.to_mean, self.to_log_var))]
        parts = [x.add_(self.normal(len(x), self.dim), alpha=(NOISE / self.dim) ** 0.5) for x in parts]
        return Embedding(unit(parts[0]), parts[1] * (SPREAD * self.dim ** 0.5))

    def latent(self, n: int) -> Tensor:
        cluster = torch.randint(CLUSTERS, (n,), generator=self.generator)
        return self.centres[cluster] * (1 - WITHIN) ** 0.5 + self.normal(n, LATENT) * WITHIN ** 0.5

    def images(self, n: int) -> Tensor:
        """Lifted images (n, 2 D + 2) of the Wasserstein distance. Their offset a is split into two numbers, which
        float16 holds together more exactly than one."""
        columns, a = SIMILARITIES["wasserstein"]().images(self.embed(self.latent(n)))
        high = a.half().float()
        return torch.cat([columns, high[:, None], (a - high)[:, None]], 1)

    def captions(self, n: int) -> Tensor:
        """Lifted captions (n, 2 D + 2), each of an image that is in no index."""
        noisy = self.latent(n) * (1 - CAPTION_NOISE) ** 0.5 + self.normal(n, LATENT) * CAPTION_NOISE ** 0.5
        columns, _ = SIMILARITIES["wasserstein"]().captions(self.embed(noisy))
        return torch.cat([columns, torch.ones(n, 2)], 1)

    def blocks(self, n: int, block: int = 8192):
        """n lifted images in blocks, for write_flat."""
        return (self.images(min(block, n - start)) for start in range(0, n, block))
