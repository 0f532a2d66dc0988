"""VSE-infinity: generalised pooling of the regions of an image.

    python train.py --data_name f8k_region_precomp --method vse_infinity

Chen et al. 2021, Learning the Best Pooling Strategy for Visual Semantic Embedding.
"""
import torch
from torch import Tensor, nn

from model import GRU, POOLINGS, Latent, vsepp_linear


class PooledEmbedding(nn.Module):
    """A linear layer on every region, then generalised pooling: (B, P, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.dim = embed_size
        self.fc, self.pool = vsepp_linear(inputs, embed_size), GeneralisedPooling()

    def forward(self, regions: Tensor, lengths=None) -> Latent:
        return Latent(self.pool(self.fc(regions)))                                  # (B, P, F) -> (B, P, D) -> (B, D)


class GeneralisedPooling(nn.Module):
    """Learned weighted mean of sorted feature values (3.2): (B, P, D) -> (B, D).
    out_d = sum_k theta_k max^k_d, max^k_d the k-th largest of the P values of feature d. The weights theta depend on k
    alone: a bidirectional GRU reads them from sinusoids of k."""
    dim, temperature = 32, 0.1                              # dim: of the sinusoids and the states

    def __init__(self):
        super().__init__()
        self.rnn = GRU(self.dim, self.dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(self.dim, 1, bias=False)

    def weights(self, count: int, device) -> Tensor:
        """Return the weights theta (P,) of `count` places, positive, sum 1."""
        place = torch.arange(count, device=device)[:, None]                         # (P, 1)
        rate = 10000 ** (-torch.arange(0, self.dim, 2, device=device) / self.dim)   # (dim / 2,)
        code = torch.cat([(place * rate).sin(), (place * rate).cos()], 1)           # (P, dim)
        code = code[None].to(self.score.weight.dtype)
        states = self.rnn(code)[0][0].unflatten(1, (2, -1)).mean(1)                 # (P, 2 dim) -> (P, dim)
        return (self.score(states)[:, 0] / self.temperature).softmax(0)

    def forward(self, parts: Tensor) -> Tensor:
        ordered = parts.sort(1, descending=True).values                             # (B, P, D), each feature sorted
        return torch.einsum("p,bpd->bd", self.weights(parts.shape[1], parts.device).to(ordered.dtype), ordered)


POOLINGS["gpo"] = PooledEmbedding
