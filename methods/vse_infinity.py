"""VSE-infinity: generalized pooling of the regions of an image.

    python train.py --data_name f8k_region_precomp --method vse_infinity

Chen et al. 2021, Learning the Best Pooling Strategy for Visual Semantic Embedding.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from losses import real_parts
from model import GRU, POOLINGS, Latent, vsepp_linear


class PooledEmbedding(nn.Module):
    """A linear layer on every region, then generalized pooling: (B, P, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.dim = embed_size
        self.fc = vsepp_linear(inputs, embed_size)
        self.pool = GeneralizedPooling()

    def forward(self, regions: Tensor, lengths: Tensor | None = None) -> Latent:
        values = self.fc(regions)  # (B, P, F) -> (B, P, D)
        return Latent(self.pool(values, lengths))  # (B, D)


class GeneralizedPooling(nn.Module):
    """Learned weighted mean of sorted feature values (3.2): (B, P, D) -> (B, D).

    out_d = sum_k theta_k max^k_d, max^k_d the k-th largest of the P values of feature d. The
    weights theta depend on k and P alone: a bidirectional GRU reads them from sinusoids of k. Of
    images with padding P is each one's own number of regions.
    """

    dim = 32  # of the sinusoids and the states
    temperature = 0.1

    def __init__(self):
        super().__init__()
        self.rnn = GRU(self.dim, self.dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(self.dim, 1, bias=False)

    def weights(self, count: int, device) -> Tensor:
        """Return the weights theta (P,) of `count` ranks, positive, sum 1."""
        code = self.encode_ranks(count, device)[None]  # (1, P, dim)
        states, _ = self.rnn(code)  # (1, P, 2 dim)
        states = states[0].unflatten(1, (2, -1)).mean(1)  # (P, dim)
        logits = self.score(states)[:, 0] / self.temperature  # (P,)
        return logits.softmax(0)

    def encode_ranks(self, count: int, device) -> Tensor:
        """Compute sinusoids (P, dim) of the ranks k, from 0."""
        rank = torch.arange(count, device=device)[:, None]  # (P, 1)
        exponent = torch.arange(0, self.dim, 2, device=device) / self.dim  # (dim / 2,)
        angle = rank * 10000 ** (-exponent)  # (P, dim / 2)
        code = torch.cat([angle.sin(), angle.cos()], 1)  # (P, dim)
        return code.to(self.score.weight.dtype)

    def weights_of(self, lengths: Tensor, count: int, device) -> Tensor:
        """Return the weights (B, count) of images with lengths (B,) regions, 0 for padding."""
        different, which = lengths.cpu().unique(return_inverse=True)  # (U,), (B,)
        codes = self.encode_ranks(count, device).expand(len(different), -1, -1)  # (U, P, dim)
        packed, _ = self.rnn(codes, different)
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=count)
        states = states.unflatten(2, (2, -1)).mean(2)  # (U, P, dim)
        logits = self.score(states)[:, :, 0] / self.temperature  # (U, P)
        logits = logits.masked_fill(~real_parts(states, different), -torch.inf)
        return logits.softmax(1)[which.to(device)]

    def forward(self, parts: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is not None:
            padding = ~real_parts(parts, lengths)[:, :, None]  # (B, P, 1)
            ordered = parts.masked_fill(padding, -torch.inf).sort(1, descending=True).values
            ordered = ordered.masked_fill(padding, 0)  # which stands behind the others again
            weights = self.weights_of(lengths, parts.shape[1], parts.device)
            return torch.einsum("bp,bpd->bd", weights.to(ordered.dtype), ordered)

        ordered = parts.sort(1, descending=True).values  # (B, P, D), each feature sorted
        weights = self.weights(parts.shape[1], parts.device).to(ordered.dtype)
        return torch.einsum("p,bpd->bd", weights, ordered)


POOLINGS["gpo"] = PooledEmbedding
