"""Layers that the encoders of model.py and of methods/ share."""
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence


class Latent(NamedTuple):
    """Output of f_emb before any normalisation: a vector per item or per part."""
    value: Tensor                     # (B, D) | (B, P, D)
    n_parts: Tensor | None = None     # (B,) number of parts that are not padding; None: one vector per item
    residual: Tensor | None = None    # (B, K, D) what PIE-Net adds to the global feature

    @classmethod
    def from_parts(cls, value: Tensor, residual: Tensor | None = None) -> "Latent":
        """Make a Latent of parts (B, P, D), none of them padding."""
        return cls(value, torch.full((len(value),), value.shape[1], device=value.device), residual)


def vsepp_linear(inputs: int, outputs: int) -> nn.Linear:
    """Build a linear layer initialised as in VSE++.
    Weights uniform in +-sqrt(6 / (in + out)), bias 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm over rows (N, D).
    A training batch of a single row is normalised by the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            return super().forward(x)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class GRU(nn.GRU):
    """GRU that computes in float32 on CUDA.
    Under autocast to bf16, cuDNN would compute in float16, and the loss is not scaled."""

    def forward(self, x: Tensor | PackedSequence, h: Tensor | None = None):
        if not torch.is_autocast_enabled("cuda"):
            return super().forward(x, h)
        with torch.autocast("cuda", enabled=False):
            return super().forward(x.float(), None if h is None else h.float())


def pack(words: Tensor, lengths: Tensor) -> PackedSequence:
    """Pack the words of captions (B, T, ...), zero-padded, of lengths (B,)."""
    return pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)


class BiGRU(nn.Module):
    """Last states of both directions of a GRU: words (B, T, F) -> (B, D).
    D / 2 + D / 2.

    PVSE and PCME take both at the last word, where the backward one has read only that word.
    """

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1):
        super().__init__()
        self.rnn = GRU(inputs, embed_size // 2, num_layers, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        forward, backward = self.rnn(pack(words, lengths))[1][-2:]          # the last layer's: (B, D / 2) each
        return torch.cat([forward, backward], 1)                            # (B, D)
