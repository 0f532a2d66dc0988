"""DMSM and DSSM: captions as counts of letter trigrams, and networks of tanh layers over them
(`dmsm` 3.1-3.2).

    python train.py --data_name f8k_precomp --loss nll --txt_enc trigram_conv --txt_layers 1000-500 \\
        --img_layers 1000 --layer_style tanh --embed_size 300 --select hbr

DMSM: He et al. 2015, Joint Learning of Distributed Representations for Images and Texts (`dmsm`).
DSSM: Huang et al. 2013, Learning Deep Structured Semantic Models for Web Search using Clickthrough
Data.

A word is represented by the counts of the letter trigrams of #word#, so rare, unseen and misspelled
words have a vector too. The counts are never written out: a linear map of counts is a sum of rows
of a table with one row per trigram.
"""
import torch
from torch import Tensor, nn

from encoders import Latent, Unchanged, vsepp_linear
from losses import real_parts


class TrigramWords(nn.Module):
    """Text trunk of DMSM and DSSM. Word hashing has no parameters, so the trigram numbers pass
    unchanged. (B, T, K) -> (B, T, K)."""

    def __init__(self, n_trigrams: int):
        super().__init__()
        self.dim = n_trigrams

    def forward(self, ids: Tensor, lengths=None) -> Tensor:
        return ids


class TanhLayers(nn.Module):
    """f_emb of DMSM's images (`dmsm` 3.1): one linear layer with tanh per entry of `sizes` and one
    for `embed_size`. (B, F) -> (B, D)."""

    def __init__(self, inputs: int, sizes: list[int], embed_size: int):
        super().__init__()
        self.dim = embed_size
        widths = [inputs, *sizes, embed_size]
        self.layers = nn.ModuleList(vsepp_linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, features: Tensor, lengths=None) -> Latent:
        for layer in self.layers:
            features = torch.tanh(layer(features))
        return Latent(features)


class _CountLayer(nn.Module):
    """First layer of both text networks: a linear map with tanh from `window` count vectors to the
    size C of that layer.

    Row k of `table`, (n_trigrams + 1, window C), holds what one trigram k adds at each of the
    `window` places; row 0 is padding. It is initialised as encoders.vsepp_linear with window *
    n_trigrams inputs.
    """
    window = 1

    def __init__(self, n_trigrams: int, sizes: list[int], embed_size: int):
        super().__init__()
        first, *rest = [*sizes, embed_size]
        self.dim, window = embed_size, self.window
        self.table = nn.EmbeddingBag(n_trigrams + 1, window * first, mode="sum", padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(first))
        self.layers = TanhLayers(first, rest[:-1], embed_size) if rest else Unchanged(embed_size)
        bound = (6 / (window * n_trigrams + first)) ** 0.5
        with torch.no_grad():
            self.table.weight.uniform_(-bound, bound)[0] = 0


class TrigramConv(_CountLayer):
    """f_emb of DMSM's captions (`dmsm` 3.2): trigram numbers (B, T, K), lengths (B,), each at least
    1 -> (B, D) in (-1, 1).

        h_t = tanh(W [c_{t-1}, c_t, c_{t+1}] + b),  v = max_t h_t,  then tanh layers

    c_t counts the trigrams of word t and is zero beyond the ends of the caption; the maximum is
    over the words of the caption. `sizes` are the sizes of all layers but the last: the paper's
    4000-2000-1000-500-300 is [4000, 2000, 1000, 500] and embed_size 300.
    """
    window = 3

    def forward(self, ids: Tensor, lengths: Tensor) -> Latent:
        count, steps = ids.shape[:2]
        # (B T, K) -> (B, T, window, C)
        parts = self.table(ids.flatten(0, 1)).view(count, steps, self.window, -1)
        padded = nn.functional.pad(parts, (0, 0, 0, 0, 1, 1))           # (B, T + 2, window, C)
        h = sum(padded[:, place:place + steps, place] for place in range(self.window))   # (B, T, C)
        h = torch.tanh(h + self.bias)
        h = h.masked_fill(~real_parts(ids, lengths)[:, :, None], -torch.inf)
        return self.layers(h.amax(1))                                # (B, T, C) -> (B, C) -> (B, D)


class TrigramBag(_CountLayer):
    """f_emb of DSSM's captions (Huang et al. 2013): the counts of all words are summed, then tanh
    layers follow; word order is lost.

    (B, T, K), lengths -> (B, D) in (-1, 1).
    """

    def forward(self, ids: Tensor, lengths=None) -> Latent:
        # (B, T K) -> (B, C) -> (B, D)
        return self.layers(torch.tanh(self.table(ids.flatten(1)) + self.bias))
