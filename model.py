"""Towers and the joint embedding: a shared trunk f and one or two copies of an embedding f_emb.

`ucmr` eq. 1-2: mu = f_emb(f(x); theta), sigma^2 = f_emb(f(x); gamma). A point has one copy of f_emb, a Gaussian two that
share nothing; whatever the trunk, the Gaussian comes for free.
"""
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoders import CNN, GRUEmbedding, LinearEmbedding, Precomputed, RegionGraph, RegionGRU, Words, vsepp_linear
from losses import SIMILARITIES, Embedding, Similarity, bound_log_var, hinge

# What becomes of the second copy's output, bounded log-variances (B, D).
SHAPES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "point": None,
    "ellipsoidal": lambda log_var: log_var,                                                          # (B, D)
    "spherical_avg": lambda log_var: log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1]),  # `ucmr` 4.2
    "spherical_logavg": lambda log_var: log_var.mean(1, keepdim=True),                               # `pmrl` 3.1
    "spherical_one": lambda log_var: log_var,        # (B, 1): the second copy ends in one learned output, `ucmr` 4.2
}


def unit(x: Tensor) -> Tensor:
    """l2-normalised rows; the eps keeps the gradient of a zero vector (an image without features) below 1e6."""
    return F.normalize(x, dim=1, eps=1e-6)


class Tower(nn.Module):
    """One modality: inputs, lengths -> Embedding with mean (B, D) and log_var (B, D), (B, 1) or None.

    trunk(inputs, lengths) -> features; make_embed() builds a copy of f_emb: (features, lengths) -> (B, D).
    normalise: unit-norm means (VSE++). use_abs: absolute values of the means (order embeddings). logvar_norm: unit-norm
    log-variances before they are bounded to variances in [0.1, 10].
    """

    def __init__(self, trunk: nn.Module, make_embed: Callable[[], nn.Module], shape: str = "point", *,
                 normalise: bool = True, use_abs: bool = False, logvar_norm: bool = False):
        super().__init__()
        self.trunk, self.mean = trunk, make_embed()
        self.log_var = None if shape == "point" else make_embed()
        self.one = vsepp_linear(self.log_var.dim, 1) if shape == "spherical_one" else None
        self.shape, self.normalise, self.use_abs, self.logvar_norm = SHAPES[shape], normalise, use_abs, logvar_norm

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Embedding:
        features = self.trunk(inputs, lengths)
        mean = self.mean(features, lengths)                                         # (B, D)
        mean = unit(mean) if self.normalise else mean
        mean = mean.abs() if self.use_abs else mean
        if self.log_var is None:
            return Embedding(mean)
        log_var = self.log_var(features, lengths)                                   # (B, D)
        log_var = unit(log_var) if self.logvar_norm else log_var
        log_var = self.one(log_var) if self.one is not None else log_var            # (B, D) -> (B, 1)
        return Embedding(mean, self.shape(bound_log_var(log_var)))


class JointEmbedding(nn.Module):
    """Two towers, a similarity, and the hinge objective of VSE++ eq. 6."""

    def __init__(self, image_tower: Tower, text_tower: Tower, similarity: Similarity, *, margin: float = 0.2,
                 max_violation: bool = False, mask_same_image: bool = False):
        super().__init__()
        self.image_tower, self.text_tower, self.similarity = image_tower, text_tower, similarity
        self.margin, self.max_violation, self.mask_same_image = margin, max_violation, mask_same_image

    def embed_images(self, images: Tensor) -> Embedding:
        """(B, F), (B, P, F) or photos (B, 3, H, W) -> Embedding of (B, D), float32."""
        return in_float32(self.image_tower(images))

    def embed_captions(self, tokens: Tensor, lengths: Tensor) -> Embedding:
        """Word numbers (B, T), zero-padded, and their lengths (B,) -> Embedding of (B, D), float32."""
        return in_float32(self.text_tower(tokens, lengths))

    def forward(self, batch) -> dict[str, Tensor]:
        """Terms of the training loss, to be summed; `batch` is a data.Batch of B matching pairs."""
        images, captions = self.embed_images(batch.images), self.embed_captions(batch.tokens, batch.lengths)
        with torch.autocast(batch.tokens.device.type, enabled=False):               # scores are compared in float32
            scores = self.similarity(images, captions)                              # (B, B)
            same = batch.image_index[:, None] == batch.image_index if self.mask_same_image else None
            return {"hinge": hinge(scores, self.margin, self.max_violation, same)}


def in_float32(e: Embedding) -> Embedding:
    return Embedding(*(x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in e))


def build_image_tower(opt, pretrained: bool) -> Tower:
    if opt.img_enc == "vsrn":
        trunk = RegionGraph(opt.img_dim, opt.embed_size, opt.feature_norm, opt.region_norm == "regions")
    elif opt.img_enc == "cnn":
        trunk = CNN(opt.cnn_type, opt.finetune, opt.cnn_weights, pretrained)
    else:
        trunk = Precomputed(opt.img_dim, opt.feature_norm)

    def make_embed():
        if opt.img_enc == "vsrn":
            return RegionGRU(trunk.dim, opt.embed_size, opt.region_bn)
        return LinearEmbedding(trunk.dim, opt.embed_size)
    return Tower(trunk, make_embed, opt.image_head,
                 normalise=not opt.no_imgnorm, use_abs=opt.use_abs, logvar_norm=opt.logvar_norm)


def build_text_tower(opt, vocab) -> Tower:
    trunk = Words(len(vocab), opt.word_dim)
    return Tower(trunk, lambda: GRUEmbedding(trunk.dim, opt.embed_size, opt.num_layers), opt.text_head,
                 normalise=True, use_abs=opt.use_abs, logvar_norm=opt.logvar_norm)  # VSE++ always normalises text


def build_model(opt, vocab, pretrained: bool = True) -> JointEmbedding:
    """The model that resolved options (train.resolve) describe. `pretrained=False` leaves a CNN's weights to a
    checkpoint that is about to be loaded."""
    return JointEmbedding(build_image_tower(opt, pretrained), build_text_tower(opt, vocab), SIMILARITIES[opt.sim](),
                          margin=opt.margin, max_violation=opt.max_violation, mask_same_image=opt.mask_same_image)
