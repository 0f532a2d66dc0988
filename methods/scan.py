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

from losses import SIMILARITIES, Embedding, PartBlocks, Similarity, real_parts
from model import IMAGE_ENCODERS, Encoder, LinearEmbedding, Precomputed

ELEMENTS = {"cpu": 2 ** 20, "cuda": 2 ** 26}      # products of parts in a block: what a cache or the device holds


# Scores (c, q) from the cosines r (c, Q, q) of the query's parts (eq. 5-6). real (Q, q): query parts that are no
# padding. scale: lambda_lse.
AGGREGATES = {
    "LogSumExp": lambda r, real, scale: (scale * r).masked_fill(~real, -torch.inf).logsumexp(1) / scale,
    "Mean": lambda r, real, scale: (r * real).sum(1) / real.sum(0),
}


class CrossAttention(nn.Module):
    """Score of the parts of images (N, P, D) and captions (M, T, D): (N, M).

    cross_attn: "t2i", words attend to regions, or "i2t", regions attend to words. agg_func: of AGGREGATES. r and "Mean"
    lie in [-1, 1], "LogSumExp" in [-1, 1 + log(parts) / lambda_lse].
    """

    def __init__(self, cross_attn: str = "t2i", agg_func: str = "LogSumExp", lambda_lse: float = 6.0,
                 lambda_softmax: float = 9.0):
        super().__init__()
        self.by_words = cross_attn == "t2i"
        self.lambda_softmax = lambda_softmax
        self.aggregate = AGGREGATES[agg_func]
        self.lambda_lse = lambda_lse

    def forward(self, images: Embedding, captions: Embedding) -> Tensor:
        """Compute scores (N, M) in blocks of about ELEMENTS products."""
        context, query = (images, captions) if self.by_words else (captions, images)
        (contexts, rows), (queries, columns) = sort_by_parts(context), sort_by_parts(query)
        scores = torch.cat([torch.cat([self.score_block(*take(context, k), *take(query, j)) for k in contexts])
                            for j in queries], 1)[rows][:, columns]                 # (contexts, queries)
        return scores if self.by_words else scores.T

    def score_block(self, context: Tensor, present: Tensor, query: Tensor, real: Tensor) -> Tensor:
        """Scores (c, q) of contexts (c, C, D) and queries (q, Q, D).
        present (c, C), real (q, Q): which of their parts are not padding."""
        query = query.transpose(0, 1)                                               # (Q, q, D)
        shape = *context.shape[:2], *query.shape[:2]
        s = (context.flatten(0, 1) @ query.flatten(0, 1).T).view(shape)             # (c C, Q q) -> (c, C, Q, q)
        padding = ~present[:, :, None, None]
        w = F.leaky_relu(s, 0.1)                            # [s]+ as in the original code: negative values keep a tenth
        squared_norm = w.square().sum(2, keepdim=True)      # over the query's parts: (c, C, 1, q)
        w = w * (self.lambda_softmax * squared_norm.clamp(min=torch.finfo(w.dtype).eps ** 2).rsqrt())
        w = (w.masked_fill(padding, -torch.inf) if padding.any() else w).softmax(1)
        dot = (w * s).sum(1)                                                        # q . v: (c, Q, q)
        gram = context @ context.transpose(1, 2)                                    # (c, C, C)
        square = ((gram @ w.flatten(2)).view(shape) * w).sum(1)                     # |v|^2: (c, Q, q)
        square = square * query.square().sum(2)                                     # |v|^2 |q|^2
        cosine = dot * square.clamp(min=1e-16).rsqrt()                              # lengths below 1e-8 count as 1e-8
        return self.aggregate(cosine, real.T, self.lambda_lse)                      # (c, q)


def sort_by_parts(e: Embedding) -> tuple[list[Tensor], Tensor]:
    """Blocks of items by rising number of parts, and the place of each item in them."""
    order = e.n_parts.argsort(stable=True)
    parts = ELEMENTS.get(e.parts.device.type, ELEMENTS["cuda"]) ** 0.5                      # of a block
    return order.split(max(1, int(parts / e.n_parts.float().mean()))), order.argsort()


def take(e: Embedding, items: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of items (n, W, D), zeros for padding, and the mask of real ones (n, W)."""
    count = e.n_parts[items]
    most = int(count.max())
    parts = e.parts.pad(items, most) if isinstance(e.parts, PartBlocks) else e.parts[items, :most]
    real = real_parts(parts, count)
    return parts.where(real[:, :, None], 0), real


# ---- what --img_enc scan and --sim scan name

def build_regions(opt, pretrained: bool) -> Precomputed:
    """Build the trunk of SCAN's images: every region as it is."""
    return Precomputed(opt.img_dim, opt.feature_norm, average=False)


def embed_regions(opt, inputs: int) -> LinearEmbedding:
    """Build f_emb of SCAN's images, one linear layer for all regions."""
    return LinearEmbedding(inputs, opt.embed_size)


IMAGE_ENCODERS["scan"] = Encoder("regions", build_regions, embed_regions, decoder="vector", parts=True)
SIMILARITIES["scan"] = Similarity(
    CrossAttention, parts=True, latents=True, within_modality=False,
    options=("cross_attn", "agg_func", "lambda_lse", "lambda_softmax"),
    defaults={"img_enc": "scan", "txt_enc": "gru"})
