"""SCAN: cross-attention between words and regions.

    python train.py --data_name f8k_region_precomp --sim scan --bi_gru --max_violation

Lee et al. 2018, Stacked Cross Attention for Image-Text Matching. Each part q of one side, the query, attends to the
parts c_1 ... c_C of the other, the context, and is compared with the mixture v that it gets. With the products
s_j = c_j . q of unit vectors (eq. 1-4):

    a_j = [s_j]+, of unit norm along the QUERY's parts
    w_j = softmax_j(lambda_softmax a_j)
    v   = sum_j w_j c_j
    r   = cosine(q, v) = sum_j w_j s_j / (|q| sqrt(sum_jk w_j w_k G_jk)),   G_jk = c_j . c_k

The score of an image and a caption aggregates r over the parts of the query (eq. 5-6). The vectors v, D numbers for
every image, caption and part, are never formed: q . v is a sum of products that exist already, and |v| comes from the
Gram matrix G of the context, C x C.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from layers import GRU, Latent, pack, vsepp_linear
from losses import Embedding

ELEMENTS = {"cpu": 2 ** 20, "cuda": 2 ** 26}      # products of parts in a block: what a cache or the device holds


def clip(raw: Tensor) -> Tensor:
    """[s]+ of SCAN 3.1 as in the original code: negative values keep a tenth."""
    return F.leaky_relu(raw, 0.1)


def l2norm(raw: Tensor, scale: float) -> Tensor:
    """Scale (c, C, Q, q) to norm `scale` over the query's parts Q.
    Parts with only zero products stay finite."""
    square = raw.square().sum(2, keepdim=True)                                      # (c, C, 1, q)
    return raw * (scale * square.clamp(min=torch.finfo(raw.dtype).eps ** 2).rsqrt())


# Scores (c, q) from the cosines r (c, Q, q) of the query's parts (eq. 5-6). real (Q, q): query parts that are no
# padding. scale: lambda_lse.
AGGREGATES = {
    "LogSumExp": lambda r, real, scale: (scale * r).masked_fill(~real, -torch.inf).logsumexp(1) / scale,
    "Mean": lambda r, real, scale: (r * real).sum(1) / real.sum(0),
}


class CrossAttention(nn.Module):
    """Score of parts of images (N, P, D) and captions (M, T, D): (N, M).
    Padding has no effect.

    cross_attn: "t2i", words attend to regions, or "i2t", regions attend to words. agg_func: one of AGGREGATES. r and
    "Mean" lie in [-1, 1], "LogSumExp" in [-1, 1 + log(parts) / lambda_lse].
    elements: products of parts in a block (default: by device).
    """
    parts, within_modality = True, False
    options = ("cross_attn", "agg_func", "lambda_lse", "lambda_softmax")
    implies = {"img_enc": "scan", "txt_enc": "gru"}

    def __init__(self, cross_attn: str = "t2i", agg_func: str = "LogSumExp", lambda_lse: float = 6.0,
                 lambda_softmax: float = 9.0, elements: int | None = None):
        super().__init__()
        self.by_words, self.elements = cross_attn == "t2i", elements
        self.lambda_softmax = lambda_softmax
        self.aggregate, self.lambda_lse = AGGREGATES[agg_func], lambda_lse

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        """Scores (N, M) in blocks of about `elements` products.
        Items of similar length stand together."""
        sides = RaggedParts(images), RaggedParts(captions)
        context, query = sides if self.by_words else sides[::-1]
        gram = context.grams()                                                      # (contexts, C, C)
        elements = self.elements or ELEMENTS.get(images.parts.device.type, ELEMENTS["cuda"])
        size = max(1, int(elements ** 0.5))                                         # parts of each side in a block
        rows, contexts = context.pieces(size)
        columns, queries = query.pieces(size)
        context_parts, query_parts = context.parts_of(contexts), query.parts_of(queries)
        blocks = []
        for j, run in enumerate(queries):
            parts = query_parts(j).transpose(0, 1).flatten(0, 1)                    # (q, Q, D) -> (Q q, D)
            real = query.real(*run).T                                               # (Q, q)
            blocks.append(torch.cat([
                self.score_block(context_parts(k), gram[items, :width, :width], parts, real,
                                 context.real(items, width) if context.ragged(items, width) else None)
                for k, (items, width) in enumerate(contexts)]))
        scores = torch.cat(blocks, 1)[rows][:, columns]                             # (contexts, queries)
        return scores if self.by_words else scores.T

    def score_block(self, context: Tensor, gram: Tensor, query: Tensor, real: Tensor,
                    present: Tensor | None = None) -> Tensor:
        """Scores (c, q) of contexts (c, C, D) and query parts (Q q, D).
        Also takes the Gram matrices (c, C, C) of the contexts.

        real (Q, q), present (c, C): which query and context parts are no padding; present=None: all.
        """
        shape = *context.shape[:2], *real.shape
        s = (context.flatten(0, 1) @ query.T).view(shape)                           # (c C, Q q) -> (c, C, Q, q)
        w = l2norm(clip(s), self.lambda_softmax)
        if present is not None:
            w = w.masked_fill(~present[:, :, None, None], -torch.inf)
        w = w.softmax(1)
        dot = (w * s).sum(1)                                                        # q . v: (c, Q, q)
        square = ((gram @ w.flatten(2)).view(shape) * w).sum(1)                     # |v|^2: (c, Q, q)
        square = square * query.square().sum(1).view(real.shape)                    # |v|^2 |q|^2
        cosine = dot * square.clamp(min=1e-16).rsqrt()                              # lengths below 1e-8 count as 1e-8
        return self.aggregate(cosine, real, self.lambda_lse)                        # (c, q)


class RaggedParts:
    """Parts (N, P, D) of one side, in runs of items with similar numbers of parts.
    Real parts, 1 to P."""

    def __init__(self, e: Embedding):
        self.parts, self.count = e.parts, e.n_parts.cpu()                           # runs are planned on the CPU

    def pieces(self, size: int) -> tuple[Tensor, list[tuple[Tensor, int]]]:
        """Split items into runs of similar width: [(items, width)], by rising width.
        A run has at most `size` parts or is one item. Also returns where each item is among the runs."""
        order = self.count.argsort(stable=True)
        count, cuts = self.count[order].tolist(), [0]
        for k, width in enumerate(count):
            if (k - cuts[-1] + 1) * width > size and k > cuts[-1]:
                cuts.append(k)
        runs = zip(cuts, [*cuts[1:], len(count)])
        return order.argsort(), [(order[a:b], count[b - 1] if b else 1) for a, b in runs]

    def real(self, items: Tensor, width: int) -> Tensor:
        """Mask of the first `width` parts of items that are no padding: (n, W)."""
        return (torch.arange(width) < self.count[items, None]).to(self.parts.device)

    def ragged(self, items: Tensor, width: int) -> bool:
        """True if some of these items have fewer than `width` parts."""
        return bool((self.count[items] < width).any())

    def parts_of(self, runs: list[tuple[Tensor, int]]):
        """Function from the number of a run to its parts (n, W, D).
        Zeros in place of padding.

        Parts that need a gradient are copied all at once, so that the gradient is put together once.
        """
        def clean(parts, items, width):
            parts = parts[:, :width]
            return parts.where(self.real(items, width)[:, :, None], 0) if self.ragged(items, width) else parts

        if self.parts.requires_grad:
            whole = self.parts[torch.cat([items for items, _ in runs])]
            whole = whole.split([len(items) for items, _ in runs])
            return [clean(parts, *run) for parts, run in zip(whole, runs)].__getitem__
        return lambda k: clean(self.parts[runs[k][0], :runs[k][1]], *runs[k])

    def grams(self) -> Tensor:
        """Products of all parts of each item with one another: (N, P, P)."""
        runs = [(items, self.parts.shape[1]) for items in torch.arange(len(self.parts)).split(256)]
        parts = map(self.parts_of(runs), range(len(runs)))
        return torch.cat([x @ x.transpose(1, 2) for x in parts])


class RegionEmbedding(nn.Module):
    """f_emb of SCAN's images (3.2): (B, P, F) -> (B, P, D).
    One linear layer for every region."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.dim, self.fc = embed_size, vsepp_linear(inputs, embed_size)

    def forward(self, regions: Tensor, lengths=None) -> Latent:
        return Latent.from_parts(self.fc(regions))


class WordStates(nn.Module):
    """f_emb of SCAN's captions (3.2): (B, T, F) -> (B, T, D).
    The state of a GRU at every word; padding is 0.

    bi_gru: the average of the states of both directions.
    """

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1, bi_gru: bool = False):
        super().__init__()
        self.dim = embed_size
        self.rnn = GRU(inputs, embed_size, num_layers, batch_first=True, bidirectional=bi_gru)

    def forward(self, words: Tensor, lengths: Tensor) -> Latent:
        states, _ = pad_packed_sequence(self.rnn(pack(words, lengths))[0], batch_first=True,
                                        total_length=words.shape[1])
        states = states.unflatten(2, (-1, self.dim)).mean(2)          # (B, T, D | 2 D) -> (B, T, D)
        return Latent(states, lengths.to(states.device))
