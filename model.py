"""The model: two towers, each a shared trunk f and one or two copies of an embedding f_emb, and
what they are trained with.

`ucmr` eq. 1-2: mu = f_emb(f(x); theta), sigma^2 = f_emb(f(x); gamma). A point has one copy of
f_emb. A Gaussian has two, which share nothing. So every trunk can have point and Gaussian heads,
and every method of the papers is a row of the tables below.
"""
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cli import check
from encoders import (
    CNN,
    Anchored,
    BagOfWords,
    BiGRUEmbedding,
    Corruption,
    GRUEmbedding,
    Latent,
    LinearEmbedding,  # noqa: F401 (part of this module, for encoders of one's own)
    PooledEmbedding,
    Precomputed,
    ReLULayers,
    Unchanged,
    VarianceLayers,
    Words,
    pack,
    vsepp_linear,
)
from losses import (
    LOG_VAR_BOUNDS,
    LOSSES,
    SIMILARITIES,
    Anchor,
    Embedding,
    PairMSE,
    Term,
    Volume,
    information_bottleneck,
    mean_rows,
    real_parts,
    trait,
    unit,
)
from methods import jwae
from methods.cite import PENALTY, ConditionalNetwork
from methods.dmsm import TanhLayers, TrigramBag, TrigramConv, TrigramWords
from methods.labelled import LABELLED_OBJECTIVES, LabelledTwoBranch, labelled_scores
from methods.pvse_pcme import MMD, BiGRU, Diversity, MatchProbability, MaxOverParts, MeanLinear, PIENet, PIEVariance
from methods.scan import CrossAttention, RegionEmbedding, WordStates
from methods.two_branch import BranchEmbedding, ProductNetwork, TwoBranchLoss
from methods.vsrn import Captioner, RegionGraph, RegionGRU
from vocab import Trigrams, Vocabulary

# Similarities of parts, of samples and by networks.
SIMILARITIES.update({
    "mil": MaxOverParts, "match_prob": MatchProbability, "scan": CrossAttention,
    "product": ProductNetwork, "cite": ConditionalNetwork,
})
# Heads by name: what becomes of the second copy's output, bounded log-variances (B, D).
SHAPES = {
    "point": None,
    "ellipsoidal": lambda log_var: log_var,                                                 # (B, D)
    "spherical_avg": lambda log_var: (                                                  # `ucmr` 4.2
        log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1])),
    "spherical_logavg": lambda log_var: log_var.mean(1, keepdim=True),                  # `pmrl` 3.1
    # (B, 1): the second copy ends in one learned output, `ucmr` 4.2
    "spherical_one": lambda log_var: log_var,
}


# ---- a tower

class Encoded(NamedTuple):
    """What a tower makes of its inputs."""
    embedding: Embedding      # what is compared, in float32 whatever the networks compute in
    features: Tensor                           # the trunk's (B, ...): what a reconstruction aims at
    latent: Latent                                   # of f_emb, before it is normalised
    # centre (B, D) and log-variance of a sampled latent (`--vae`)
    posterior: tuple[Tensor, Tensor] | None = None


class Head(NamedTuple):
    """What becomes of the outputs of a tower's f_emb: means, and log-variances of Gaussians."""
    kind: str = "point"               # one of SHAPES
    normalise: bool = True            # means and parts have norm 1 (VSE++)
    use_abs: bool = False             # means are absolute values (order embeddings)
    logvar_norm: bool = False         # log-variances have norm 1 before they are bounded
    logvar_init: float = 0.0          # is added before they are bounded, as f_emb starts near 0
    bounds: tuple[float, float] = LOG_VAR_BOUNDS      # of log-variances
    # the embedding is a point: in training a sample of the Gaussian, else its mean, as in a VAE
    sample: bool = False
    on_mean: bool = False             # the copy for the variances reads the mean, and not features
    freeze: bool = False      # what makes the means learns nothing, and computes as in evaluation


POINT = Head()


class Tower(nn.Module):
    """One modality: inputs, lengths -> Encoded, whose embedding has a mean (B, D) and a log_var (B,
    D), (B, 1) or None.

    trunk: (inputs, lengths) -> features. mean, log_var: the copies of f_emb, (features, lengths) ->
    Latent; a point has one. latent_norm: (R, D) -> (R, D), gives latents that are to follow N(0, I)
    its scale (methods.jwae.LATENT_NORMS). corruption: of what f_emb reads, in training
    (encoders.Corruption).
    """

    def __init__(self, trunk: nn.Module, mean: nn.Module, log_var: nn.Module | None = None,
                 head: Head = POINT, latent_norm: nn.Module | None = None,
                 corruption: nn.Module | None = None):
        super().__init__()
        self.trunk, self.mean, self.head = trunk, mean, head
        self.latent_norm, self.corruption, self.log_var = latent_norm, corruption, log_var
        one = head.kind == "spherical_one" and not head.on_mean
        self.one = vsepp_linear(log_var.dim, 1) if one else None
        for part in (trunk, mean) if head.freeze else ():
            part.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        for part in (self.trunk, self.mean) if self.head.freeze else ():
            part.eval()
        return self

    @property
    def gaussian(self) -> bool:
        """Whether its embeddings are Gaussians."""
        return self.log_var is not None and not self.head.sample

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Encoded:
        features = self.trunk(inputs, lengths)
        # the same for mean and variance
        read = features if self.corruption is None else self.corruption(features)
        log_var = posterior = second = None
        if self.log_var is None or self.head.on_mean:
            latent = self.mean(read, lengths)                            # value: (B, D) | (B, P, D)
        else:
            read = pack(read, lengths) if getattr(self.mean, "packs", False) else read
            latent, second = self.mean(read, lengths), self.log_var(read, lengths)
        if self.latent_norm is not None:
            latent = latent._replace(value=self.scaled(latent))
        if self.log_var is not None:
            second = second or self.log_var(self.compared(latent).mean, lengths)
            log_var = self.bounded_log_var(second.value)
        if self.head.sample:
            posterior, centre = (latent.value, log_var), latent.value
            noise = 0
            if self.training:
                noise = (log_var / 2).exp() * torch.randn_like(centre)            # (B, D) | (B, 1)
            latent, log_var = latent._replace(value=centre + noise), None
        embedding = Embedding(*(x.float() if x is not None and x.is_floating_point() else x
                                for x in self.compared(latent, log_var)))
        return Encoded(embedding, features, latent, posterior)

    def compared(self, latent: Latent, log_var: Tensor | None = None) -> Embedding:
        """The embedding of a latent; of parts (B, P, D) the mean of the real ones is its mean."""
        head, mean, parts = self.head, latent.value, None
        if latent.n_parts is not None:
            parts = unit(mean) if head.normalise else mean
            mean = mean_rows(parts, latent.n_parts)                            # (B, P, D) -> (B, D)
        mean = unit(mean) if head.normalise else mean
        return Embedding(mean.abs() if head.use_abs else mean, log_var, parts, latent.n_parts)

    def scaled(self, latent: Latent) -> Tensor:
        """latent_norm of the vectors (B, D), or of the real parts of (B, P, D); padding is 0."""
        value = latent.value.float()
        if latent.n_parts is None:
            return self.latent_norm(value)
        real = real_parts(value, latent.n_parts)                                    # (B, P)
        scaled = self.latent_norm(value[real])
        return torch.zeros_like(value).masked_scatter(real[:, :, None], scaled)

    def bounded_log_var(self, log_var: Tensor) -> Tensor:
        """What the second copy of f_emb gives, (B, D), in the shape of the head: (B, D) or
        (B, 1)."""
        head = self.head
        log_var = unit(log_var) if head.logvar_norm else log_var
        log_var = self.one(log_var) if self.one is not None else log_var          # (B, D) -> (B, 1)
        return SHAPES[head.kind]((log_var + head.logvar_init).clamp(*head.bounds))


# ---- both towers and what they learn from

class JointEmbedding(nn.Module):
    """Two towers, a similarity, an objective and terms beside it (losses.py).

    objective: scores (B, B) -> terms of the loss; None where what is trained is among the terms
    beside it. For batches with labels: scores and labels (R, M) -> terms (methods/labelled.py).
    critic: jWAE's, which has an optimiser of its own.
    """

    def __init__(self, image_tower: Tower, text_tower: Tower, similarity: Callable,
                 objective: nn.Module | None, beside: dict[str, Term],
                 critic: nn.Module | None = None, mask_same_image: bool = False,
                 loss_name: str = "loss"):
        super().__init__()
        self.image_tower, self.text_tower, self.similarity = image_tower, text_tower, similarity
        self.objective, self.beside = objective, beside
        self.critic, self.mask_same_image, self.loss_name = critic, mask_same_image, loss_name
        self.terms = nn.ModuleDict({name: term.loss for name, term in beside.items()
                                    if isinstance(term.loss, nn.Module)})

    def embed_images(self, images: Tensor) -> Embedding:
        """(B, F), (B, P, F) or photos (B, 3, H, W) -> Embedding of (B, D), float32."""
        return self.image_tower(images).embedding

    def embed_captions(self, tokens: Tensor, lengths: Tensor) -> Embedding:
        """Word numbers (B, T), zero-padded, and their lengths (B,) -> Embedding of (B, D), float32.
        (Trigrams (B, T, K), or features of captions (B, F), where the text tower reads those.)"""
        return self.text_tower(tokens, lengths).embedding

    def encode(self, batch) -> dict[str, Encoded]:
        """"images" and "captions", where there is a batch and it has any."""
        encoded = {}
        if batch is not None and batch.images is not None:
            encoded["images"] = self.image_tower(batch.images)
        if batch is not None and batch.tokens is not None:
            encoded["captions"] = self.text_tower(batch.tokens, batch.lengths)
        return encoded

    def forward(self, batch) -> dict[str, Tensor]:
        """Terms of the training loss, to be summed. `batch` is a data.Batch: B matching pairs, and
        perhaps unpaired items beside them."""
        pairs, alone = map(self.encode, (batch, batch.unpaired))
        losses = self.rank(batch, **pairs)
        for name, term in self.beside.items():
            sides = [pairs[term.side]] if term.side else pairs.values()
            losses[name] = term.weight * term.loss(*sides, batch)
        for name, term in self.beside.items():
            if term.side in alone:
                more = term.weight * term.loss(alone[term.side], batch.unpaired)
                losses[name] = (losses[name] + more) / (2 if term.mean else 1)
        return losses

    def rank(self, batch, images: Encoded, captions: Encoded) -> dict[str, Tensor]:
        """The ranking loss by its name. Where a batch has labels (R, M), only labelled pairs are scored."""
        if self.objective is None:
            return {}
        images, captions = images.embedding, captions.embedding
        with torch.autocast(batch.tokens.device.type, enabled=False):       # scores are compared in float32
            if batch.labels is not None:
                loss = self.objective(labelled_scores(self.similarity, images, captions, batch.labels), batch.labels)
            else:
                same = None
                if self.mask_same_image:
                    same = batch.image_index[:, None] == batch.image_index  # (B, B)
                loss = self.objective(self.similarity(images, captions), same)              # (B, B) -> scalar
        return {self.loss_name: loss}


# ---- encoders by name

class Encoder(NamedTuple):
    """How a tower's networks are built. reads: of images "vector" (one per image, or the mean of
    its regions), "regions", "photos", or "cells" (regions, or photos whose last map has cells); of
    captions "words", "trigrams" or "features"."""
    reads: str
    # images: (opt, pretrained) -> f; captions: (opt, vocab, table of word vectors) -> f
    trunk: Callable
    embed: Callable                   # (opt, width of f) -> f_emb
    log_var: Callable | None = None   # the same for the variances, where they differ
    layers: bool = False              # takes --img_layers or --txt_layers
    decoder: str | None = None        # what gives its inputs again, "words", "vector" (`jwae`)


def layer_sizes(hidden: str | None) -> list[int]:
    return [int(size) for size in (hidden or "").split("-") if size]


def build_layers(opt, inputs: int, side: str) -> nn.Module:
    """f_emb of a vector, (B, F) -> (B, D): a linear layer; with sizes such as "2000-1000", layers
    in a style; "0": none. side: "img" or "txt"."""
    hidden, style, embed_size = getattr(opt, f"{side}_layers"), opt.layer_style, opt.embed_size
    if side == "img" and opt.pool == "gpo":
        return PooledEmbedding(inputs, embed_size)
    if hidden == "0":
        check(inputs == embed_size,
              f"--{side}_layers 0 makes the {inputs} numbers of a feature or word vector the "
              f"embedding, and --embed_size is {embed_size}; make them equal")
        return Unchanged(embed_size)
    sizes = layer_sizes(hidden)
    if style == "branch" and sizes:
        return BranchEmbedding(inputs, sizes[0], embed_size)
    if style == "tanh":
        return TanhLayers(inputs, sizes, embed_size)
    return ReLULayers(inputs, sizes, embed_size) if sizes else LinearEmbedding(inputs, embed_size)


def build_features(opt, average: bool = False) -> Precomputed:
    return Precomputed(opt.img_dim, opt.feature_norm, average)


def build_cnn(opt, pretrained: bool, cells: bool = False) -> CNN:
    return CNN(opt.cnn_type, opt.finetune, opt.cnn_weights, pretrained, cells=cells,
               normalise=opt.feature_norm or not cells, freeze_bn=opt.freeze_bn)


def build_pie(opt, inputs: int, summary: nn.Module) -> PIENet:
    return PIENet(inputs, opt.embed_size, summary, opt.n_embeds,
                  parts=trait(SIMILARITIES[opt.sim], "parts"))


def build_words(opt, vocab, table) -> Words:
    return Words(len(vocab), opt.word_dim, table, freeze=opt.freeze_words)


def build_gru(opt, inputs: int) -> nn.Module:
    if opt.sim == "scan":                            # which compares every word, so a state at each
        return WordStates(inputs, opt.embed_size, opt.num_layers, opt.bi_gru)
    return GRUEmbedding(inputs, opt.embed_size, opt.num_layers, opt.txt_fc)


def build_bigru(opt, inputs: int) -> BiGRU:
    return BiGRU(inputs, opt.embed_size, opt.num_layers)


IMAGE_LAYERS, TEXT_LAYERS = (functools.partial(build_layers, side=side) for side in ("img", "txt"))
IMAGE_ENCODERS = {
    "precomp": Encoder("vector", lambda opt, _: build_features(opt, opt.pool == "mean"),
                       IMAGE_LAYERS, layers=True, decoder="vector"),
    "cnn": Encoder("photos", build_cnn, IMAGE_LAYERS, layers=True, decoder="vector"),
    "vsrn": Encoder(
        "regions", lambda opt, _: RegionGraph(opt.img_dim, opt.embed_size, opt.feature_norm,
                                              opt.region_norm == "regions"),
        lambda opt, inputs: RegionGRU(inputs, opt.embed_size, opt.region_bn)),
    "pie": Encoder(
        "cells", lambda opt, pretrained: (
            build_features(opt) if opt.img_dim else build_cnn(opt, pretrained, cells=True)),
        lambda opt, inputs: build_pie(opt, inputs, MeanLinear(inputs, opt.embed_size)),
        lambda opt, inputs: PIEVariance(inputs, opt.embed_size,
                                        MeanLinear(inputs, opt.embed_size))),
    "scan": Encoder(
        "regions", lambda opt, _: build_features(opt), lambda opt, inputs: RegionEmbedding(
            inputs, opt.embed_size, opt.precomp_enc_type == "weight_norm"), decoder="vector"),
}
TEXT_ENCODERS = {
    "gru": Encoder("words", build_words, build_gru, decoder="words"),
    "bigru": Encoder(
        "words", build_words,
        lambda opt, inputs: BiGRUEmbedding(build_bigru(opt, inputs), opt.embed_size),
        decoder="words"),
    "pie": Encoder(
        "words", build_words,
        lambda opt, inputs: build_pie(opt, inputs, build_bigru(opt, inputs)),
        lambda opt, inputs: PIEVariance(inputs, opt.embed_size, build_bigru(opt, inputs))),
    **{name: Encoder(
        "words", lambda opt, *data, mean=mean: BagOfWords(build_words(opt, *data), mean),
        TEXT_LAYERS, layers=True, decoder="vector")
       for name, mean in (("mean", True), ("sum", False))},
    "features": Encoder("features", lambda opt, *_: Precomputed(opt.txt_dim, opt.feature_norm),
                        TEXT_LAYERS, layers=True, decoder="vector"),
    **{name: Encoder(
        "trigrams", lambda opt, vocab, _: TrigramWords(len(vocab.trigrams) + 1),
        lambda opt, inputs, net=net: net(inputs - 1, layer_sizes(opt.txt_layers), opt.embed_size),
        layers=True)
       for name, net in (("trigram_conv", TrigramConv), ("trigram_bag", TrigramBag))},
}


# ---- a model from options

def build_log_var(opt, encoder: Encoder, inputs: int, head: str, dim: int) -> nn.Module:
    """The network of the variances: one that reads the mean (B, dim), one of the encoder's own, or a
    second copy of f_emb."""
    if opt.var_layers:
        outputs = 1 if head == "spherical_one" else dim
        return VarianceLayers(dim, layer_sizes(opt.var_layers), outputs)
    own = encoder.log_var if opt.sim == "match_prob" else None
    return (own or encoder.embed)(opt, inputs)


def build_tower(opt, encoder: Encoder, head: str, normalise: bool,
                *data) -> Tower:
    """data: what the encoder's trunk is built with beside the options."""
    trunk = encoder.trunk(opt, *data)
    mean = encoder.embed(opt, trunk.dim)
    corruption = None
    if opt.dropout or opt.feature_noise:
        corruption = Corruption(opt.dropout, opt.feature_noise)
    if opt.text_anchor and encoder.reads == "features":         # which nothing is to blur
        mean = Anchored(mean, Unchanged(opt.txt_dim), opt.text_anchor, corruption)
        corruption = None
    elif opt.text_anchor:
        mean = Anchored(mean, LinearEmbedding(trunk.dim, opt.txt_dim), opt.text_anchor)
    log_var = None if head == "point" else build_log_var(opt, encoder, trunk.dim, head, mean.dim)
    return Tower(trunk, mean, log_var,
                 Head(head, normalise, opt.use_abs, opt.logvar_norm, opt.logvar_init,
                      (math.log(opt.var_min), LOG_VAR_BOUNDS[1]), sample=opt.vae > 0,
                      on_mean=bool(opt.var_layers), freeze=opt.freeze_means),
                 jwae.LATENT_NORMS[opt.latent_norm](opt.embed_size),
                 corruption)


def build_vocabulary(opt, words: list[str]) -> Vocabulary:
    """Words as the text tower reads them: by their numbers, or by their letter trigrams."""
    return (Trigrams if TEXT_ENCODERS[opt.txt_enc].reads == "trigrams" else Vocabulary)(words)


def build_similarity(opt):
    """The similarity that the options name: a function, or a module with parameters."""
    similarity = SIMILARITIES[opt.sim]
    if isinstance(similarity, type):
        return similarity(*(getattr(opt, name) for name in getattr(similarity, "options", ())))
    return similarity


def build_objective(opt, similarity) -> nn.Module | None:
    """The ranking loss that the options name; None where a term of another kind stands in its place."""
    if opt.localise:
        return LABELLED_OBJECTIVES[opt.loss](opt, similarity)
    return LOSSES[opt.loss].build(opt, similarity) if opt.loss in LOSSES else None


def build_pair_terms(opt, vocab, regions: int, similarity) -> dict[str, Term]:
    """What is trained on pairs beside the objective, only what has a weight. regions: the width of
    the image trunk."""
    two_branch = LabelledTwoBranch if opt.localise else TwoBranchLoss
    terms = {
        "mse": (opt.mse_weight * (opt.loss == "mse"), PairMSE),
        "two_branch": (1.0 * (opt.loss == "two_branch"), two_branch),
        "concepts": (PENALTY * (opt.sim == "cite"), lambda: similarity.penalty),
        "volume": (1.0 * (opt.loss == "volume"), Volume),
        "anchor": (1.0 * (opt.text_anchor > 0 and not opt.freeze_means),
                   lambda: Anchor(opt.txt_dim, opt.text_anchor)),
        "vib": (opt.vib, lambda: information_bottleneck),
        "captioner": (opt.captioner, lambda: Captioner(
            regions, len(vocab), opt.dim_hidden, opt.max_len, original=opt.captioner_original)),
        "diversity": (opt.diversity, Diversity),
        "mmd": (opt.mmd, lambda: MMD(latents=opt.loss == "mse"))}
    return {name: Term(weight, build()) for name, (weight, build) in terms.items() if weight}


def build_model(opt, vocab, pretrained: bool = True,
                vectors: Callable | None = None) -> JointEmbedding:
    """The model that resolved options (options.rules.resolve) describe. `pretrained=False` leaves a
    CNN's weights to a checkpoint that is about to be loaded. vectors: reads --word_vectors
    (files.vectors.table_for). Raises InputError where the options do not fit the data."""
    similarity = build_similarity(opt)
    image = build_tower(opt, IMAGE_ENCODERS[opt.img_enc], opt.image_head, not opt.no_imgnorm,
                        pretrained)
    table = None
    if opt.word_vectors and vectors:
        table = vectors(vocab.words, opt.word_vectors, opt.word_dim)
    encoder = TEXT_ENCODERS[opt.txt_enc]
    # VSE++ always normalises captions; only SCAN's --no_txtnorm leaves them as they are
    text = build_tower(opt, encoder, opt.text_head, not opt.no_txtnorm, vocab, table)
    width = image.trunk.dim
    terms, critic = jwae.build_side_terms(opt, vocab, width, text.trunk.dim, encoder.decoder)
    objective = build_objective(opt, similarity)
    terms |= build_pair_terms(opt, vocab, width, similarity)
    return JointEmbedding(image, text, similarity, objective, terms, critic, opt.mask_same_image,
                          opt.loss)
