"""SCAN: cross-attention between words and regions.

    python train.py --data_name f8k_region_precomp --sim scan --bi_gru --max_violation

Lee et al. 2018, Stacked Cross Attention for Image-Text Matching. Each part q of one side, the
query, attends to the parts c_1 ... c_C of the other, the context, and is compared with the mixture
v that it gets. With the products s_j = c_j . q of unit vectors (eq. 1-4):

    a_j = [s_j]+, of unit norm along the QUERY's parts
    w_j = softmax_j(lambda_softmax a_j)
    v   = sum_j w_j c_j
    r   = cosine(q, v) = sum_j w_j s_j / (|q| sqrt(sum_jk w_j w_k G_jk)),   G_jk = c_j . c_k

The score of an image and a caption aggregates r over the parts of the query (eq. 5-6). The vectors
v, D numbers for every image, caption and part, are never formed: q . v is a sum of products that
exist already, and |v| comes from the Gram matrix G of the context, C x C.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses import SIMILARITIES, Embedding, PartBlocks, Similarity, real_parts
from model import IMAGE_ENCODERS, OPTION_RULES, Encoder, LinearEmbedding, Precomputed
from utils import InputError, at_least_zero, flag

# Products of parts in a block: what a cache or the device holds.
PRODUCTS_PER_BLOCK = {"cpu": 2**20, "cuda": 2**26}


# ---- from the cosines r (c, Q, q) of the query's parts to scores (c, q), eq. 5-6
# real (Q, q): query parts that are not padding. scale: lambda_lse.


def log_sum_exp(r: Tensor, real: Tensor, scale: float) -> Tensor:
    """Smooth maximum over the query's parts."""
    r = (scale * r).masked_fill(~real, -torch.inf)
    return r.logsumexp(1) / scale


def average_cosines(r: Tensor, real: Tensor, scale: float) -> Tensor:
    """Mean over the query's parts."""
    return (r * real).sum(1) / real.sum(0)


AGGREGATES = {"LogSumExp": log_sum_exp, "Mean": average_cosines}


class CrossAttention(nn.Module):
    """SCAN's score, by attention of words to regions or of regions to words.

    Of the parts of images (N, P, D) and captions (M, T, D): (N, M).

    cross_attn: "t2i", words attend to regions, or "i2t", regions attend to words. agg_func: of
    AGGREGATES. r and "Mean" lie in [-1, 1], "LogSumExp" in [-1, 1 + log(parts) / lambda_lse].
    lambda_lse, lambda_softmax: sharpness of LogSumExp and of the attention.
    """

    def __init__(
        self,
        cross_attn: str = "t2i",
        agg_func: str = "LogSumExp",
        lambda_lse: float = 6.0,
        lambda_softmax: float = 9.0,
    ):
        super().__init__()
        self.by_words = cross_attn == "t2i"
        self.lambda_softmax = lambda_softmax
        self.aggregate = AGGREGATES[agg_func]
        self.lambda_lse = lambda_lse

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        """Compute scores (N, M) in blocks of about PRODUCTS_PER_BLOCK."""
        if self.by_words:
            return self.score(images, captions)
        return self.score(captions, images).T

    def score(self, context: Embedding, query: Embedding) -> Tensor:
        """Compute scores of all contexts and queries."""
        contexts, rows = sort_by_parts(context)
        queries, columns = sort_by_parts(query)
        blocks = []
        for j in queries:
            column = []
            for k in contexts:
                block = self.score_block(*take(context, k), *take(query, j))
                column.append(block)
            blocks.append(torch.cat(column))
        scores = torch.cat(blocks, 1)  # in the order of the blocks
        return scores[rows][:, columns]

    def score_block(self, context: Tensor, present: Tensor, query: Tensor, real: Tensor) -> Tensor:
        """Compute scores (c, q) of contexts (c, C, D) and queries (q, Q, D).

        present (c, C), real (q, Q): which of their parts are not padding.
        """
        query = query.transpose(0, 1)  # (Q, q, D)
        shape = (*context.shape[:2], *query.shape[:2])
        s = context.flatten(0, 1) @ query.flatten(0, 1).T  # (c C, Q q)
        s = s.view(shape)  # (c, C, Q, q)

        w = self.attend(s, ~present[:, :, None, None])
        dot = (w * s).sum(1)  # q . v: (c, Q, q)

        gram = context @ context.transpose(1, 2)  # (c, C, C)
        mixed = (gram @ w.flatten(2)).view(shape)  # sum_k G_jk w_k: (c, C, Q, q)
        square = (mixed * w).sum(1)  # |v|^2: (c, Q, q)
        square = square * query.square().sum(2)  # |v|^2 |q|^2
        r = dot * square.clamp(min=1e-16).rsqrt()  # lengths below 1e-8 count as 1e-8
        return self.aggregate(r, real.T, self.lambda_lse)  # (c, q)

    def attend(self, s: Tensor, padding: Tensor) -> Tensor:
        """Compute the weights w of products s (c, C, Q, q), 0 where the context is padding."""
        a = F.leaky_relu(s, 0.1)  # [s]+ as in the original code: negative values keep a tenth
        squared_norm = a.square().sum(2, keepdim=True)  # over the query's parts: (c, C, 1, q)
        smallest = torch.finfo(a.dtype).eps ** 2
        inverse_norm = squared_norm.clamp(min=smallest).rsqrt()
        logits = a * (self.lambda_softmax * inverse_norm)
        if padding.any():
            logits = logits.masked_fill(padding, -torch.inf)
        return logits.softmax(1)


def sort_by_parts(e: Embedding) -> tuple[list[Tensor], Tensor]:
    """Sort items into blocks by rising number of parts; return these, and each item's position."""
    order = e.n_parts.argsort(stable=True)
    kind = e.parts.device.type
    if kind not in PRODUCTS_PER_BLOCK:
        kind = "cuda"
    parts_per_block = PRODUCTS_PER_BLOCK[kind] ** 0.5
    parts_per_item = e.n_parts.float().mean()
    items_per_block = max(1, int(parts_per_block / parts_per_item))
    return order.split(items_per_block), order.argsort()


def take(e: Embedding, items: Tensor) -> tuple[Tensor, Tensor]:
    """Take parts of items (n, W, D), zeros for padding, and the mask of real ones (n, W)."""
    count = e.n_parts[items]
    longest = int(count.max())
    if isinstance(e.parts, PartBlocks):
        parts = e.parts.pad(items, longest)
    else:
        parts = e.parts[items, :longest]
    real = real_parts(parts, count)
    if not real.all():
        parts = parts.where(real[:, :, None], 0)
    return parts, real


# ---- what --img_enc scan and --sim scan name


def build_regions(opt, pretrained: bool) -> Precomputed:
    """Build the trunk of SCAN's images: every region as it is."""
    return Precomputed(opt.img_dim, opt.feature_norm, average=False)


def build_region_layer(opt, inputs: int) -> LinearEmbedding:
    """Build f_emb of SCAN's images, one linear layer for all regions."""
    return LinearEmbedding(inputs, opt.embed_size)


def check_directions(opt) -> None:
    """Raise InputError on --bi_gru where one vector is made of a caption."""
    reads_both = SIMILARITIES[opt.sim].parts and opt.txt_enc == "gru"
    if not reads_both and opt.resume is None:  # older runs have had it
        raise InputError(
            f"--bi_gru is for --sim scan, not for --sim {opt.sim}; for a GRU in both directions "
            "give --txt_enc bigru"
        )


ATTENTION_OPTIONS = {
    "bi_gru": (flag, False, "scan: read the words in both directions and average"),
    "cross_attn": (
        ("t2i", "i2t"),
        "t2i",
        "scan: words attend to regions (t2i), or regions to words (i2t)",
    ),
    "agg_func": (AGGREGATES, "LogSumExp", "scan: how the cosines of the parts become one score"),
    "lambda_lse": (
        at_least_zero,
        6.0,
        "scan: sharpness of LogSumExp; the larger, the more the best part counts",
    ),
    "lambda_softmax": (
        at_least_zero,
        9.0,
        "scan: sharpness of the attention; the larger, the fewer parts get it (i2t: 4)",
    ),
}
IMAGE_ENCODERS["scan"] = Encoder(
    "regions", build_regions, build_region_layer, decoder="vector", parts=True
)
SIMILARITIES["scan"] = Similarity(
    CrossAttention,
    parts=True,
    latents=True,
    within_modality=False,
    options=("cross_attn", "agg_func", "lambda_lse", "lambda_softmax"),
    defaults={"img_enc": "scan", "txt_enc": "gru"},
)
OPTION_RULES["encoders"].append((("bi_gru",), check_directions))
