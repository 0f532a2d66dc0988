"""Towers and the joint embedding: a shared trunk f and one or two copies of an embedding f_emb.

`ucmr` eq. 1-2: mu = f_emb(f(x); theta), sigma^2 = f_emb(f(x); gamma). A point has one copy of f_emb, a Gaussian two that
share nothing; whatever the trunk, the Gaussian comes for free.
"""
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cli import InputError
from encoders import (
    CNN,
    BagOfWords,
    BiGRUEmbedding,
    GRUEmbedding,
    LinearEmbedding,
    PooledEmbedding,
    Precomputed,
    ReLULayers,
    Unchanged,
    Words,
    vsepp_linear,
)
from features.word_vectors import table_for
from losses import MMD, Diversity, PairMSE, build_objective, vib
from methods import jwae
from methods.dmsm import TanhLayers, TrigramBag, TrigramConv, TrigramWords
from methods.pvse_pcme import BiGRU, MatchProbability, MaxOverParts, MeanLinear, PIENet, PIEVariance
from methods.scan import CrossAttention, RegionEmbedding, WordStates
from methods.two_branch import BranchEmbedding, ProductNetwork, TwoBranchLoss
from methods.vsrn import Captioner, RegionGraph, RegionGRU
from similarities import LOG_VAR_BOUNDS, SIMILARITIES, Embedding, Similarity, bound_log_var, unit
from vocab import Trigrams, Vocabulary

ALL_SIMILARITIES: dict[str, type[Similarity]] = {                      # and those of parts and of samples
    **SIMILARITIES, "mil": MaxOverParts, "match_prob": MatchProbability, "scan": CrossAttention, "product": ProductNetwork,
}
TRIGRAM_NETWORKS = {"trigram_conv": TrigramConv, "trigram_bag": TrigramBag}     # text embeddings of the DMSM
# What becomes of the second copy's output, bounded log-variances (B, D).
SHAPES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "point": None,
    "ellipsoidal": lambda log_var: log_var,                                                          # (B, D)
    "spherical_avg": lambda log_var: log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1]),  # `ucmr` 4.2
    "spherical_logavg": lambda log_var: log_var.mean(1, keepdim=True),                               # `pmrl` 3.1
    "spherical_one": lambda log_var: log_var,        # (B, 1): the second copy ends in one learned output, `ucmr` 4.2
}


class Tower(nn.Module):
    """One modality: inputs, lengths -> Embedding with mean (B, D) and log_var (B, D), (B, 1) or None.

    trunk(inputs, lengths) -> features; make_embed() builds a copy of f_emb: (features, lengths) -> (B, D), or parts (B, P, D),
    of which the mean of the real ones is the mean then. make_log_var() is the copy for the variances where it is built
    otherwise. normalise: unit-norm means and parts (VSE++). use_abs: absolute values of the means (order embeddings).
    logvar_norm: unit-norm log-variances before they are bounded to variances in [0.1, 10] or what `bounds` say. logvar_init:
    added before, since f_emb starts near 0. sample: the point is a sample of the Gaussian in training and its mean otherwise,
    as in a VAE. latent_norm: (R, D) -> (R, D), what gives latents that are to follow N(0, I) its scale (jwae.latent_norm).
    """

    def __init__(self, trunk: nn.Module, make_embed: Callable[[], nn.Module], shape: str = "point", *,
                 make_log_var: Callable[[], nn.Module] | None = None, normalise: bool = True, use_abs: bool = False,
                 logvar_norm: bool = False, bounds: tuple[float, float] = LOG_VAR_BOUNDS,
                 logvar_init: float = 0.0, sample: bool = False, latent_norm: nn.Module | None = None):
        super().__init__()
        self.trunk, self.mean, self.bounds, self.logvar_init = trunk, make_embed(), bounds, logvar_init
        self.sample, self.latent_norm = sample, latent_norm
        self.log_var = None if shape == "point" else (make_log_var or make_embed)()
        self.one = vsepp_linear(self.log_var.dim, 1) if shape == "spherical_one" else None
        self.shape, self.normalise, self.use_abs, self.logvar_norm = SHAPES[shape], normalise, use_abs, logvar_norm

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, extras: dict | None = None) -> Embedding:
        """`extras`, where given, takes what terms beside the objective need: "trunk", the features; "latent", what f_emb makes
        of them before any norm, (B, D) or (B, P, D); "residual", where f_emb leaves one; with `sample` "centre" and
        "log_var"."""
        extras = {} if extras is None else extras
        extras["trunk"] = features = self.trunk(inputs, lengths)
        mean = self.mean(features, lengths)                                         # (B, D) | (B, P, D)
        if isinstance(mean, tuple):                                                 # f_emb gives something beside it
            mean, extras["residual"] = mean
        if self.latent_norm is not None:
            mean = self.scaled(mean.float(), lengths)
        log_var = None if self.log_var is None else self.bounded_log_var(features, lengths)
        if self.sample:
            extras["centre"], extras["log_var"] = mean, log_var
            mean = mean + (log_var / 2).exp() * torch.randn_like(mean) if self.training else mean      # log_var: (B, D), (B, 1)
            log_var = None
        extras["latent"] = mean
        parts = n_parts = None
        if mean.ndim == 3:
            parts = unit(mean) if self.normalise else mean
            n_parts = lengths.to(parts.device) if self.mean.per_word else lengths_of(parts)
            mean = masked(parts, n_parts).sum(1) / n_parts[:, None]                 # (B, P, D) -> (B, D)
        mean = unit(mean) if self.normalise else mean
        mean = mean.abs() if self.use_abs else mean
        return Embedding(mean, log_var, parts, n_parts)

    def scaled(self, mean: Tensor, lengths: Tensor | None) -> Tensor:
        """latent_norm of the vectors (B, D), or of the real parts of (B, P, D); padding is 0."""
        if mean.ndim == 2:
            return self.latent_norm(mean)
        count = lengths.to(mean.device) if self.mean.per_word else lengths_of(mean)
        real = torch.arange(mean.shape[1], device=mean.device) < count[:, None]     # (B, P)
        return torch.zeros_like(mean).masked_scatter(real[:, :, None], self.latent_norm(mean[real]))

    def bounded_log_var(self, features: Tensor, lengths: Tensor | None) -> Tensor:
        """What the second copy of f_emb makes of the features, in the tower's shape: (B, D) or (B, 1)."""
        log_var = self.log_var(features, lengths)                                   # (B, D)
        log_var = log_var[0] if isinstance(log_var, tuple) else log_var
        log_var = unit(log_var) if self.logvar_norm else log_var
        log_var = self.one(log_var) if self.one is not None else log_var            # (B, D) -> (B, 1)
        return self.shape(bound_log_var(log_var + self.logvar_init, self.bounds))


def lengths_of(parts: Tensor) -> Tensor:
    """(B, P, D) -> (B,): all P parts of every item are real."""
    return torch.full((len(parts),), parts.shape[1], device=parts.device)


def masked(parts: Tensor, n_parts: Tensor) -> Tensor:
    """(B, P, D), (B,) -> the same with zeros in place of padding."""
    real = torch.arange(parts.shape[1], device=parts.device) < n_parts[:, None]     # (B, P)
    return parts * real[:, :, None]


class JointEmbedding(nn.Module):
    """Two towers, a similarity, an objective (losses.py) and terms beside it.

    objective: scores (B, B) -> terms of the loss, or None. terms: {name: (weight, module)}; a module takes (images, captions,
    image extras, caption extras, batch) and returns a scalar to be weighted. One with an attribute `sides`, of "images" and
    "captions", needs those only and no pairs, and is also taken of what a batch holds unpaired: added, or averaged with the
    paired items' where its `reduction` is "mean". critic: has an optimiser of its own.
    """

    def __init__(self, image_tower: Tower, text_tower: Tower, similarity: Similarity, objective: nn.Module | None = None, *,
                 mask_same_image: bool = False, terms: dict[str, tuple[float, nn.Module]] | None = None,
                 critic: nn.Module | None = None):
        super().__init__()
        self.image_tower, self.text_tower, self.similarity = image_tower, text_tower, similarity
        self.objective, self.mask_same_image, self.critic = objective, mask_same_image, critic
        self.weights = {name: weight for name, (weight, _) in (terms or {}).items()}
        self.terms = nn.ModuleDict({name: module for name, (_, module) in (terms or {}).items()})

    def embed_images(self, images: Tensor, extras: dict | None = None) -> Embedding:
        """(B, F), (B, P, F) or photos (B, 3, H, W) -> Embedding of (B, D), float32."""
        return in_float32(self.image_tower(images, None, extras))

    def embed_captions(self, tokens: Tensor, lengths: Tensor, extras: dict | None = None) -> Embedding:
        """Word numbers (B, T), zero-padded, and their lengths (B,) -> Embedding of (B, D), float32. (Trigrams (B, T, K), or
        features of captions (B, F), where the text tower reads those.)"""
        return in_float32(self.text_tower(tokens, lengths, extras))

    def forward(self, batch) -> dict[str, Tensor]:
        """Terms of the training loss, to be summed; `batch` is a data.Batch of B matching pairs, and what it holds unpaired."""
        losses, views = {}, [(batch, *self.embed(batch))]
        if batch.unpaired is not None:
            views.append((batch.unpaired, *self.embed(batch.unpaired)))
        with torch.autocast(batch.tokens.device.type, enabled=False):               # scores are compared in float32
            losses.update(self.objective_of(views) if self.objective else {})
        negatives = getattr(self.objective, "outside", False)                       # view 1 is theirs alone
        for view, (items, images, captions, seen, told) in enumerate(views[:1] if negatives else views):
            held = {side for side, e in (("images", images), ("captions", captions)) if e is not None}
            for name, term in self.terms.items():
                if view == 0 or (getattr(term, "sides", ()) and held.issuperset(term.sides)):
                    value = self.weights[name] * term(images, captions, seen, told, items)
                    mean = name in losses and getattr(term, "reduction", "sum") == "mean"
                    losses[name] = (losses.get(name, 0) + value) / (2 if mean else 1)
        return losses

    def embed(self, batch) -> tuple[Embedding | None, Embedding | None, dict, dict]:
        """Images, captions and the extras of both towers; None where the batch has none of the kind."""
        seen, told = {}, {}
        images = None if batch.images is None else self.embed_images(batch.images, seen)
        captions = None if batch.tokens is None else self.embed_captions(batch.tokens, batch.lengths, told)
        return images, captions, seen, told

    def objective_of(self, views: list) -> dict[str, Tensor]:
        batch, images, captions, *_ = views[0]
        same = batch.image_index[:, None] == batch.image_index if self.mask_same_image else None    # (B, B)
        scores = self.similarity(images, captions)                                  # (B, B)
        if len(views) == 1 or not getattr(self.objective, "outside", False):
            return self.objective(scores, same)
        others, _, captions, *_ = views[1]
        own = batch.image_index[:, None] == others.image_index                      # (B, N): no negatives of their image
        return self.objective(scores, same, self.similarity(images, captions).masked_fill(own, -torch.inf))


def in_float32(e: Embedding) -> Embedding:
    return Embedding(*(x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in e))


def build_image_tower(opt, pretrained: bool) -> Tower:
    if opt.img_enc == "vsrn":
        trunk = RegionGraph(opt.img_dim, opt.embed_size, opt.feature_norm, opt.region_norm == "regions")
    elif opt.img_enc == "cnn":
        trunk = CNN(opt.cnn_type, opt.finetune, opt.cnn_weights, pretrained, freeze_bn=opt.freeze_bn)
    elif opt.img_enc == "pie" and opt.img_dim is None:      # photos
        trunk = CNN(opt.cnn_type, opt.finetune, opt.cnn_weights, pretrained, cells=True, normalise=opt.feature_norm,
                    freeze_bn=opt.freeze_bn)
    elif opt.img_enc == "pie":
        trunk = Precomputed(opt.img_dim, opt.feature_norm, average=False)
    else:
        trunk = Precomputed(opt.img_dim, opt.feature_norm, average=opt.pool == "mean" and opt.img_enc != "scan")

    def make_embed():
        if opt.img_enc == "vsrn":
            return RegionGRU(trunk.dim, opt.embed_size, opt.region_bn)
        if opt.img_enc == "pie":
            return build_pie(opt, trunk.dim, MeanLinear(trunk.dim, opt.embed_size))
        if opt.img_enc == "scan":
            return RegionEmbedding(trunk.dim, opt.embed_size, opt.precomp_enc_type == "weight_norm")
        if opt.pool == "gpo":
            return PooledEmbedding(trunk.dim, opt.embed_size)
        return build_layers(opt, "img", trunk.dim)

    def pcme_log_var():
        return PIEVariance(trunk.dim, opt.embed_size, MeanLinear(trunk.dim, opt.embed_size))
    return Tower(trunk, make_embed, opt.image_head, normalise=not opt.no_imgnorm, use_abs=opt.use_abs,
                 logvar_norm=opt.logvar_norm, bounds=log_var_bounds(opt), logvar_init=opt.logvar_init, sample=opt.vae > 0,
                 latent_norm=jwae.latent_norm(opt.latent_norm, opt.embed_size),
                 make_log_var=pcme_log_var if opt.img_enc == "pie" and opt.sim == "match_prob" else None)


def build_layers(opt, side: str, inputs: int) -> nn.Module:
    """f_emb of a vector, (B, F) -> (B, D): a linear layer; with sizes such as "2000-1000", layers in a style; "0": none.
    side: "img" or "txt"."""
    hidden, style, embed_size = getattr(opt, f"{side}_layers"), opt.layer_style, opt.embed_size
    if hidden == "0" and inputs != embed_size:
        raise InputError(f"--{side}_layers 0 makes the {inputs} numbers of a feature or word vector the embedding, and "
                         f"--embed_size is {embed_size}; make them equal")
    if hidden == "0":
        return Unchanged(embed_size)
    sizes = [int(size) for size in (hidden or "").split("-") if size]
    if style == "branch" and sizes:
        return BranchEmbedding(inputs, sizes[0], embed_size)
    if style == "tanh":
        return TanhLayers(inputs, sizes, embed_size)
    return ReLULayers(inputs, sizes, embed_size) if sizes else LinearEmbedding(inputs, embed_size)


def build_pie(opt, inputs: int, summary: nn.Module) -> PIENet:
    return PIENet(inputs, opt.embed_size, summary, opt.n_embeds, parts=ALL_SIMILARITIES[opt.sim].parts)


def build_text_trunk(opt, vocab, pretrained: bool) -> nn.Module:
    if opt.txt_enc in TRIGRAM_NETWORKS:
        return TrigramWords(len(vocab.trigrams) + 1)
    if opt.txt_enc == "features":
        return Precomputed(opt.txt_dim, opt.feature_norm)
    table = None
    if opt.word_vectors and pretrained:
        table = table_for(vocab.words, opt.word_vectors, opt.word_dim)
    trunk = Words(len(vocab), opt.word_dim, table, freeze=opt.freeze_words)
    return BagOfWords(trunk, normalise=opt.txt_enc == "mean") if opt.txt_enc in ("mean", "sum") else trunk


def build_text_tower(opt, vocab, pretrained: bool) -> Tower:
    trunk = build_text_trunk(opt, vocab, pretrained)

    def make_embed():
        if opt.txt_enc == "pie":
            return build_pie(opt, trunk.dim, BiGRU(trunk.dim, opt.embed_size, opt.num_layers))
        if opt.txt_enc in TRIGRAM_NETWORKS:
            sizes = [int(size) for size in (opt.txt_layers or "").split("-") if size]
            return TRIGRAM_NETWORKS[opt.txt_enc](trunk.dim - 1, sizes, opt.embed_size)
        if opt.txt_enc in ("mean", "sum", "features"):
            return build_layers(opt, "txt", trunk.dim)
        if opt.sim == "scan":
            return WordStates(trunk.dim, opt.embed_size, opt.num_layers, opt.bi_gru)
        if opt.txt_enc == "bigru":
            return BiGRUEmbedding(BiGRU(trunk.dim, opt.embed_size, opt.num_layers), opt.embed_size)
        return GRUEmbedding(trunk.dim, opt.embed_size, opt.num_layers, opt.txt_fc)

    def pcme_log_var():
        return PIEVariance(trunk.dim, opt.embed_size, BiGRU(trunk.dim, opt.embed_size, opt.num_layers))
    return Tower(trunk, make_embed, opt.text_head,
                 normalise=not opt.no_txtnorm,                                      # VSE++ always normalises text
                 use_abs=opt.use_abs, logvar_norm=opt.logvar_norm,
                 bounds=log_var_bounds(opt), logvar_init=opt.logvar_init, sample=opt.vae > 0,
                 latent_norm=jwae.latent_norm(opt.latent_norm, opt.embed_size),
                 make_log_var=pcme_log_var if opt.txt_enc == "pie" and opt.sim == "match_prob" else None)


def build_vocabulary(opt, words: list[str]) -> Vocabulary:
    """Words as the text tower reads them: by their numbers, or by their letter trigrams."""
    return Trigrams(words) if opt.txt_enc in TRIGRAM_NETWORKS else Vocabulary(words)


def log_var_bounds(opt) -> tuple[float, float]:
    return math.log(opt.var_min), math.log(opt.var_max)


class VIB(nn.Module):
    """`objectives.vib` of whichever sides are Gaussian."""

    def forward(self, images: Embedding, captions: Embedding, seen, told, batch) -> Tensor:
        return sum(vib(e) for e in (images, captions) if e.log_var is not None)


def build_similarity(opt) -> Similarity:
    """The similarity that the options name, with what they say of it."""
    if opt.sim == "match_prob":
        return MatchProbability(opt.n_samples)
    if opt.sim == "scan":
        return CrossAttention(opt.cross_attn, opt.raw_feature_norm, opt.agg_func, opt.lambda_lse, opt.lambda_softmax)
    if opt.sim == "product":
        return ProductNetwork(opt.embed_size)
    return ALL_SIMILARITIES[opt.sim]()


def build_terms(opt, vocab, image_tower: Tower,
                text_tower: Tower) -> tuple[dict[str, tuple[float, nn.Module]], nn.Module | None]:
    """{name: (weight, module)} of what is trained beside the objective, only those with a weight; and the critic of jWAE."""
    terms, critic = jwae.build_terms(opt, vocab, image_tower, text_tower)
    if opt.loss == "mse":
        terms["mse"] = (opt.mse_weight, PairMSE())
    if opt.loss == "two_branch":
        terms["two_branch"] = (1.0, TwoBranchLoss())
    if opt.vib:
        terms["vib"] = (opt.vib, VIB())
    if opt.captioner:
        terms["captioner"] = (opt.captioner, Captioner(image_tower.trunk.dim, len(vocab), opt.dim_hidden, opt.max_len,
                                                          original=opt.captioner_original))
    if opt.diversity:
        terms["diversity"] = (opt.diversity, Diversity())
    if opt.mmd:
        terms["mmd"] = (opt.mmd, MMD(latents=opt.loss == "mse"))
    return terms, critic


def build_model(opt, vocab, pretrained: bool = True) -> JointEmbedding:
    """The model that resolved options (options.resolve) describe. `pretrained=False` leaves a CNN's weights and word vectors
    to a checkpoint that is about to be loaded."""
    similarity = build_similarity(opt)
    image_tower, text_tower = build_image_tower(opt, pretrained), build_text_tower(opt, vocab, pretrained)
    terms, critic = build_terms(opt, vocab, image_tower, text_tower)
    return JointEmbedding(image_tower, text_tower, similarity, build_objective(opt, similarity.logits),
                          mask_same_image=opt.mask_same_image, terms=terms, critic=critic)
