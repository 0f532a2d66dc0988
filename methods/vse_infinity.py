"""VSE-infinity: generalized pooling of the regions of an image.

    python train.py --data_name f8k_region_precomp --method vse_infinity

Chen et al. 2021, Learning the Best Pooling Strategy for Visual Semantic Embedding.
"""

import torch
from torch import Tensor, nn

from model import GRU, POOLINGS, Latent, vsepp_linear


class PooledEmbedding(nn.Module):
    """A linear layer on every region, then generalized pooling: (B, P, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.dim = embed_size
        self.fc = vsepp_linear(inputs, embed_size)
        self.pool = GeneralizedPooling()

    def forward(self, regions: Tensor, lengths=None) -> Latent:
        values = self.fc(regions)  # (B, P, F) -> (B, P, D)
        return Latent(self.pool(values))  # (B, D)


class GeneralizedPooling(nn.Module):
    """Learned weighted mean of sorted feature values (3.2): (B, P, D) -> (B, D).

    out_d = sum_k theta_k max^k_d, max^k_d the k-th largest of the P values of feature d. The
    weights theta depend on k alone: a bidirectional GRU reads them from sinusoids of k.
    """

    dim = 32  # of the sinusoids and the states
    temperature = 0.1

    def __init__(self):
        super().__init__()
        self.rnn = GRU(self.dim, self.dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(self.dim, 1, bias=False)

    def weights(self, count: int, device) -> Tensor:
        """Return the weights theta (P,) of `count` ranks, positive, sum 1."""
        rank = torch.arange(count, device=device)[:, None]  # k, from 0: (P, 1)
        exponent = torch.arange(0, self.dim, 2, device=device) / self.dim  # (dim / 2,)
        angle = rank * 10000 ** (-exponent)  # (P, dim / 2)
        code = torch.cat([angle.sin(), angle.cos()], 1)  # (P, dim)

        code = code[None].to(self.score.weight.dtype)
        states, _ = self.rnn(code)  # (1, P, 2 dim)
        states = states[0].unflatten(1, (2, -1)).mean(1)  # (P, dim)
        logits = self.score(states)[:, 0] / self.temperature  # (P,)
        return logits.softmax(0)

    def forward(self, parts: Tensor) -> Tensor:
        ordered = parts.sort(1, descending=True).values  # (B, P, D), each feature sorted
        weights = self.weights(parts.shape[1], parts.device).to(ordered.dtype)
        return torch.einsum("p,bpd->bd", weights, ordered)


POOLINGS["gpo"] = PooledEmbedding
