"""DMSM's and DSSM's reading of captions: word hashing, and networks of tanh layers over letter trigrams (`dmsm` 3.1-3.2).

A word is the counts of the letter trigrams of #word# (Huang et al. 2013), so that rare, unseen and misspelled words have a
vector too. Counts are never written out: a linear map of counts is a sum of rows of a table, one row a trigram.
"""
import torch
from torch import Tensor, nn

from encoders import vsepp_linear


class TrigramWords(nn.Module):
    """Text trunk of DMSM and DSSM: word hashing has no parameters, the numbers pass. (B, T, K) -> (B, T, K)."""

    def __init__(self, n_trigrams: int):
        super().__init__()
        self.dim = n_trigrams

    def forward(self, ids: Tensor, lengths=None) -> Tensor:
        return ids


class TanhLayers(nn.Module):
    """f_emb of an image in DMSM (3.1): linear + tanh for each of `sizes` and for `embed_size`. (B, F) -> (B, D)."""

    def __init__(self, inputs: int, sizes: list[int], embed_size: int):
        super().__init__()
        self.dim = embed_size
        widths = [inputs, *sizes, embed_size]
        self.layers = nn.ModuleList(vsepp_linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, features: Tensor, lengths=None) -> Tensor:
        for layer in self.layers:
            features = torch.tanh(layer(features))
        return features


class _CountLayer(nn.Module):
    """What both text networks begin with: a linear map + tanh of `window` count vectors, to the first layer's size C.

    Row k of `table` holds what one trigram k adds at each of the `window` places, (n_trigrams + 1, window C); row 0 is
    padding. Initialised as encoders.vsepp_linear, with window n_trigrams inputs.
    """

    def __init__(self, n_trigrams: int, sizes: list[int], embed_size: int, window: int):
        super().__init__()
        first, *rest = [*sizes, embed_size]
        self.dim, self.window = embed_size, window
        self.table = nn.EmbeddingBag(n_trigrams + 1, window * first, mode="sum", padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(first))
        self.layers = TanhLayers(first, rest[:-1], embed_size) if rest else nn.Identity()
        bound = (6 / (window * n_trigrams + first)) ** 0.5
        with torch.no_grad():
            self.table.weight.uniform_(-bound, bound)[0] = 0


class TrigramConv(_CountLayer):
    """f_emb of a caption in DMSM (3.2): (B, T, K) trigram numbers, lengths (B,), each at least 1 -> (B, D) in (-1, 1).

        h_t = tanh(W [c_{t-1}, c_t, c_{t+1}] + b),  v = max_t h_t,  then tanh layers

    c_t counts the trigrams of word t and is zero beyond the caption's ends; the maximum is over the caption's own words.
    `sizes` are those of the layers before the last: the paper's 4000-2000-1000-500-300 is [4000, 2000, 1000, 500] and 300.
    """

    def __init__(self, n_trigrams: int, sizes: list[int], embed_size: int, window: int = 3):
        super().__init__(n_trigrams, sizes, embed_size, window)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        count, steps = ids.shape[:2]
        parts = self.table(ids.flatten(0, 1)).view(count, steps, self.window, -1)   # (B T, K) -> (B, T, window, C)
        before = (self.window - 1) // 2                                             # words of the window that precede t
        padded = nn.functional.pad(parts, (0, 0, 0, 0, before, self.window - 1 - before))   # (B, T + window - 1, window, C)
        h = sum(padded[:, place:place + steps, place] for place in range(self.window))      # (B, T, C)
        h = torch.tanh(h + self.bias)
        real = torch.arange(steps, device=ids.device) < lengths.to(ids.device)[:, None]     # (B, T)
        return self.layers(h.masked_fill(~real[:, :, None], -torch.inf).amax(1))    # (B, T, C) -> (B, C) -> (B, D)


class TrigramBag(_CountLayer):
    """f_emb of a caption in DSSM (Huang et al. 2013): the counts of all words summed, then tanh layers; word order is lost.

    (B, T, K), lengths -> (B, D) in (-1, 1).
    """

    def __init__(self, n_trigrams: int, sizes: list[int], embed_size: int):
        super().__init__(n_trigrams, sizes, embed_size, 1)

    def forward(self, ids: Tensor, lengths=None) -> Tensor:
        return self.layers(torch.tanh(self.table(ids.flatten(1)) + self.bias))      # (B, T K) -> (B, C) -> (B, D)
