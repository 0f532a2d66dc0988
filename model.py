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

from cli import InputError
from devices.feeding import both
from devices.precision import scored
from devices.share import by_rows, gathered, sharing
from encoders import (
    CNN,
    BagOfWords,
    BiGRUEmbedding,
    Corruption,
    GRUEmbedding,
    Latent,
    LinearEmbedding,  # noqa: F401 (part of this module, for encoders of one's own)
    PooledEmbedding,
    Precomputed,
    ReLULayers,
    Sequence,
    Unchanged,
    Words,
    drawn,
    vsepp_linear,
)
from losses import MMD, Diversity, PairMSE, SideTerm, build_objective, mean_rows, real_parts, vib
from methods import jwae
from methods.cite import PENALTY, ConditionalNetwork
from methods.dmsm import TanhLayers, TrigramBag, TrigramConv, TrigramWords
from methods.heads import GeneralisedGaussian, Inclusion, ProbVLMLoss, VarianceLayers, VonMisesFisher
from methods.labelled import LabelledTwoBranch, build_labelled_objective
from methods.likelihoods import MLS
from methods.pvse_pcme import BiGRU, MatchProbability, MaxOverParts, MeanLinear, PIENet, PIEVariance
from methods.scan import CrossAttention, RegionEmbedding, WordStates
from methods.two_branch import BranchEmbedding, ProductNetwork, TwoBranchLoss
from methods.vsrn import Captioner, RegionGraph, RegionGRU
from similarities import LOG_VAR_BOUNDS, SIMILARITIES, Embedding, Similarity, bound_log_var, unit
from text import Trigrams, Vocabulary

# Every similarity by name: those of one vector or Gaussian per item, those of parts and of samples,
# and a learned one.
OF_VECTORS: dict[str, type[Similarity]] = {**SIMILARITIES, "mls": MLS, "vmf": VonMisesFisher}
ALL_SIMILARITIES: dict[str, type[Similarity]] = {
    **OF_VECTORS, "mil": MaxOverParts, "match_prob": MatchProbability, "scan": CrossAttention,
    "product": ProductNetwork, "cite": ConditionalNetwork,
}
# Heads by name: what becomes of the second copy's output, bounded log-variances (B, D).
SHAPES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "point": None,
    "ellipsoidal": lambda log_var: log_var,                                                 # (B, D)
    "spherical_avg": lambda log_var: log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1]),  # `ucmr` 4.2
    "spherical_logavg": lambda log_var: log_var.mean(1, keepdim=True),                  # `pmrl` 3.1
    "spherical_one": lambda log_var: log_var,        # (B, 1): the second copy ends in one learned output, `ucmr` 4.2
}


# ---- a tower

class Encoded(NamedTuple):
    """What a tower makes of its inputs."""
    embedding: Embedding                             # what is compared
    features: Tensor                           # the trunk's (B, ...): what a reconstruction aims at
    latent: Latent                                   # of f_emb, before it is normalised
    # centre (B, D) and log-variance of a sampled latent (`--vae`)
    posterior: tuple[Tensor, Tensor] | None = None
    spread: Latent | None = None                  # what the second copy gives, before it is bounded


class Tower(nn.Module):
    """One modality: inputs, lengths -> Encoded, whose embedding has a mean (B, D) and a log_var (B,
    D), (B, 1) or None.

    trunk: (inputs, lengths) -> features. make_embed: builds a copy of f_emb, (features, lengths) ->
    Latent. head: one of SHAPES. make_log_var: builds the copy for the variances where it differs
    from make_embed. normalise: means and parts have norm 1 (VSE++). use_abs: means are absolute
    values (order embeddings). corruption: of what f_emb reads, in training (encoders.Corruption).
    logvar_norm: log-variances have norm 1 before they are bounded. bounds: of log-variances, by
    default of variances in [0.1, 10]. logvar_init: is added before they are bounded, since f_emb
    starts near 0. sample: the embedding is a point, in training a sample of the Gaussian and else
    its mean, as in a VAE. latent_norm: (R, D) -> (R, D), gives latents that are to follow N(0, I)
    its scale (methods.jwae.latent_norm). on_mean: make_log_var builds a network that reads the
    mean, and not what the trunk gives. freeze: what makes the means learns nothing, and computes as
    in evaluation.
    """

    def __init__(self, trunk: nn.Module, make_embed: Callable[[], nn.Module], head: str = "point",
                 *, make_log_var: Callable[[], nn.Module] | None = None, normalise: bool = True,
                 use_abs: bool = False, logvar_norm: bool = False,
                 bounds: tuple[float, float] = LOG_VAR_BOUNDS, logvar_init: float = 0.0,
                 sample: bool = False, latent_norm: nn.Module | None = None,
                 corruption: nn.Module | None = None, on_mean: bool = False, freeze: bool = False):
        super().__init__()
        self.trunk, self.mean, self.bounds, self.logvar_init = trunk, make_embed(), bounds, logvar_init
        self.sample, self.latent_norm, self.corruption = sample, latent_norm, corruption
        # a module, named as in checkpoints
        self.log_var = None if head == "point" else (make_log_var or make_embed)()
        self.one = vsepp_linear(self.log_var.dim,
                                1) if head == "spherical_one" and not on_mean else None
        self.shape, self.normalise, self.use_abs, self.logvar_norm = SHAPES[
            head], normalise, use_abs, logvar_norm
        self.on_mean, self.freeze = on_mean, freeze
        for part in (self.trunk, self.mean) if freeze else ():
            part.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        for part in (self.trunk, self.mean) if self.freeze else ():
            part.eval()
        return self

    @property
    def gaussian(self) -> bool:
        """Whether its embeddings are Gaussians."""
        return self.log_var is not None and not self.sample

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Encoded:
        features = self.trunk(inputs, lengths)
        # the same for mean and variance
        read = features if self.corruption is None else self.corruption(features)
        log_var, posterior, spread = None, None, None
        if self.log_var is None or self.on_mean:
            latent = self.mean(read, lengths)                            # value: (B, D) | (B, P, D)
        else:
            read = Sequence.of(read, lengths) if getattr(self.mean, "packs", False) else read
            latent, spread = both(self.mean, self.log_var, read, lengths)
        if self.latent_norm is not None:
            latent = latent._replace(value=self.scaled(latent))
        if self.log_var is not None:
            spread = spread or self.log_var(self.compared(latent).mean, lengths)
            log_var = self.bounded_log_var(spread.value)
        if self.sample:
            posterior, centre = (latent.value, log_var), latent.value
            # (B, D) | (B, 1)
            noise = (log_var / 2).exp() * drawn(torch.randn_like, centre) if self.training else 0
            latent, log_var = latent._replace(value=centre + noise), None
        return Encoded(self.compared(latent, log_var), features, latent, posterior, spread)

    def compared(self, latent: Latent, log_var: Tensor | None = None) -> Embedding:
        """The embedding of a latent; of parts (B, P, D) the mean of the real ones is its mean."""
        mean, parts = latent.value, None
        if latent.n_parts is not None:
            parts = unit(mean) if self.normalise else mean
            mean = mean_rows(parts, latent.n_parts)                            # (B, P, D) -> (B, D)
        mean = unit(mean) if self.normalise else mean
        return Embedding(mean.abs() if self.use_abs else mean, log_var, parts, latent.n_parts)

    def scaled(self, latent: Latent) -> Tensor:
        """latent_norm of the vectors (B, D), or of the real parts of (B, P, D); padding is 0."""
        value = latent.value.float()
        if latent.n_parts is None:
            return self.latent_norm(value)
        real = real_parts(value, latent.n_parts)                                    # (B, P)
        return torch.zeros_like(value).masked_scatter(real[:, :, None],
                                                      self.latent_norm(value[real]))

    def bounded_log_var(self, log_var: Tensor) -> Tensor:
        """What the second copy of f_emb gives, (B, D), in the shape of the head: (B, D) or (B,
        1)."""
        log_var = unit(log_var) if self.logvar_norm else log_var
        log_var = self.one(log_var) if self.one is not None else log_var          # (B, D) -> (B, 1)
        return self.shape(bound_log_var(log_var + self.logvar_init, self.bounds))


# ---- both towers and what they learn from

class JointEmbedding(nn.Module):
    """Two towers, a similarity, an objective and terms beside it (losses.py).

    objective: scores (B, B) -> terms of the loss; None where what is trained is among the pair
    terms. For batches with labels: scores and labels (R, M) -> terms (methods/labelled.py).
    pair_terms: {name: (weight, loss)}, loss(image, caption, batch) of two Encoded -> scalar.
    side_terms: {name: SideTerm}, which need one side only, and so also learn from items without
    partners. critic: jWAE's, which has an optimiser of its own.
    """

    def __init__(self, image_tower: Tower, text_tower: Tower, similarity: Similarity,
                 objective: nn.Module | None = None, *, mask_same_image: bool = False,
                 pair_terms: dict[str, tuple[float, Callable]] | None = None,
                 side_terms: dict[str, SideTerm] | None = None, critic: nn.Module | None = None):
        super().__init__()
        self.image_tower, self.text_tower, self.similarity = image_tower, text_tower, similarity
        self.objective, self.mask_same_image, self.critic = objective, mask_same_image, critic
        self.side_terms, self.pair_terms = side_terms or {}, pair_terms or {}
        losses = {name: term.loss for name, term in self.side_terms.items()} | {
            name: loss for name, (_, loss) in self.pair_terms.items()}
        self.terms = nn.ModuleDict({name: loss for name, loss in losses.items() if isinstance(loss, nn.Module)})

    def embed_images(self, images: Tensor) -> Embedding:
        """(B, F), (B, P, F) or photos (B, 3, H, W) -> Embedding of (B, D), float32."""
        return in_float32(self.image_tower(images)).embedding

    def embed_captions(self, tokens: Tensor, lengths: Tensor) -> Embedding:
        """Word numbers (B, T), zero-padded, and their lengths (B,) -> Embedding of (B, D), float32.
        (Trigrams (B, T, K), or features of captions (B, F), where the text tower reads those.)"""
        return in_float32(self.text_tower(tokens, lengths)).embedding

    def encode(self, batch) -> dict[str, Encoded]:
        """"images" and "captions", where there is a batch and it has any; of a shared batch the own
        ones."""
        encoded, share = {}, batch and batch.share
        with sharing(share):
            if batch is not None and batch.images is not None:
                encoded["images"] = in_float32(self.image_tower(batch.images))
            if batch is not None and batch.tokens is not None:
                own = share.rows if share else slice(None)
                encoded["captions"] = in_float32(self.text_tower(batch.tokens[own],
                                                                 batch.lengths[own]))
        return encoded

    def forward(self, batch) -> dict[str, Tensor]:
        """Terms of the training loss, to be summed. `batch` is a data.Batch: B matching pairs, and
        what stands beside them."""
        pairs, alone, others = (self.encode(part) for part in (batch, batch.unpaired,
                                                               batch.negatives))
        losses = self.rank(batch, **pairs, others=others.get("captions"))
        if self.side_terms or self.pair_terms:
            pairs = gathered(pairs, batch.share)
        if alone:
            alone = gathered(alone, batch.unpaired.share)
        for name, term in self.side_terms.items():
            losses[name] = term.weight * term.loss(pairs[term.side], batch)
        for name, (weight, loss) in self.pair_terms.items():
            losses[name] = weight * loss(*pairs.values(), batch)
        for name, term in self.side_terms.items():
            if term.side in alone:
                more = term.weight * term.loss(alone[term.side], batch.unpaired)
                losses[name] = (losses[name] + more) / (2 if term.mean else 1)
        return losses

    def rank(self, batch, images: Encoded, captions: Encoded,
             others: Encoded | None = None) -> dict[str, Tensor]:
        """The objective's terms. others: captions (N) of the whole training set, of which none of
        an image's own counts. Where a batch has labels (R, M), only labelled pairs are scored, and
        the others have 0."""
        if self.objective is None:
            return {}
        # scores are compared in float32
        with torch.autocast(batch.tokens.device.type, enabled=False):
            if batch.labels is not None:
                i, j = batch.labels.nonzero(as_tuple=True)                          # (K,) each
                chosen = self.score(self.similarity.at, images.embedding, captions.embedding, i, j)
                return self.objective(chosen.new_zeros(batch.labels.shape).index_put((i, j),
                                                                                     chosen),
                                      batch.labels)
            compare = functools.partial(self.score, self.similarity)

            def scores(texts: Encoded, part) -> Tensor:
                return by_rows(compare, images.embedding, texts.embedding, batch.share, part.share)

            index = batch.image_index[:, None]                                      # (B, 1)
            same = index == batch.image_index if self.mask_same_image else None     # (B, B)
            inside = scores(captions, batch)                                        # (B, B)
            if others is None:
                return self.objective(inside, same)
            outside = scores(others, batch.negatives)                               # (B, N)
            own = index == batch.negatives.image_index
            return self.objective(inside, same, outside.masked_fill(own, -torch.inf))

    def score(self, compare: Callable, *args) -> Tensor:
        """compare(*args), the similarity or a method of it, never in tf32."""
        return scored(compare, *args, learned=self.similarity.parameters())


def in_float32(e: Encoded) -> Encoded:
    """With an embedding in float32: similarities and ranks are computed in it whatever the networks
    compute in."""
    return e._replace(embedding=Embedding(*(x.float() if torch.is_tensor(x)
                                            and x.is_floating_point() else x for x in e.embedding)))


# ---- encoders by name

class ImageEncoder(NamedTuple):
    """reads: "vector" (one per image, or the mean of its regions), "regions", "photos", or "cells"
    (regions, or photos whose last map has cells). trunk: opt, pretrained -> f. embed: opt, width of
    f -> f_emb. log_var: the same for the variances, where they differ. layers: takes --img_layers.
    target: what f gives can be reconstructed (`jwae`)."""
    reads: str
    trunk: Callable
    embed: Callable
    log_var: Callable | None = None
    layers: bool = False
    target: bool = True


class TextEncoder(NamedTuple):
    """reads: "words", "trigrams" or "features". trunk: opt, vocab, table of word vectors -> f.
    embed, log_var: as of images. layers: takes --txt_layers. decoder: what tells its captions
    again, "words", "vector" or None (`jwae`)."""
    reads: str
    trunk: Callable
    embed: Callable
    log_var: Callable | None = None
    layers: bool = False
    decoder: str | None = None


def photos(opt, pretrained: bool, **how) -> CNN:
    return CNN(opt.cnn_type, opt.finetune, opt.cnn_weights, pretrained, freeze_bn=opt.freeze_bn,
               **how)


def features(opt, average: bool) -> Precomputed:
    return Precomputed(opt.img_dim, opt.feature_norm, average=average)


def pie_trunk(opt, pretrained: bool) -> nn.Module:
    if opt.img_dim is None:                            # photos: the cells of the network's last map
        return photos(opt, pretrained, cells=True, normalise=opt.feature_norm)
    return features(opt, average=False)


def pie_net(opt, inputs: int, summary: nn.Module) -> PIENet:
    return PIENet(inputs, opt.embed_size, summary, opt.n_embeds,
                  parts=ALL_SIMILARITIES[opt.sim].parts)


def mean_linear(opt, inputs: int) -> MeanLinear:
    return MeanLinear(inputs, opt.embed_size)


def bigru(opt, inputs: int) -> BiGRU:
    return BiGRU(inputs, opt.embed_size, opt.num_layers)


def build_layers(opt, side: str, inputs: int) -> nn.Module:
    """f_emb of a vector, (B, F) -> (B, D): a linear layer; with sizes such as "2000-1000", layers
    in a style; "0": none. side: "img" or "txt"."""
    hidden, style, embed_size = getattr(opt, f"{side}_layers"), opt.layer_style, opt.embed_size
    if hidden == "0" and inputs != embed_size:
        raise InputError(f"--{side}_layers 0 makes the {inputs} numbers of a feature or word "
                         f"vector the embedding, and --embed_size is {embed_size}; make them equal")
    if hidden == "0":
        return Unchanged(embed_size)
    sizes = layer_sizes(hidden)
    if style == "branch" and sizes:
        return BranchEmbedding(inputs, sizes[0], embed_size)
    if style == "tanh":
        return TanhLayers(inputs, sizes, embed_size)
    return ReLULayers(inputs, sizes, embed_size) if sizes else LinearEmbedding(inputs, embed_size)


def layer_sizes(hidden: str | None) -> list[int]:
    return [int(size) for size in (hidden or "").split("-") if size]


def image_vector(opt, inputs: int) -> nn.Module:
    return PooledEmbedding(inputs, opt.embed_size) if opt.pool == "gpo" else build_layers(opt,
                                                                                          "img",
                                                                                          inputs)


def words(opt, vocab, table) -> Words:
    return Words(len(vocab), opt.word_dim, table, freeze=opt.freeze_words)


def last_state(opt, inputs: int) -> nn.Module:
    if opt.sim == "scan":                            # which compares every word, so a state at each
        return WordStates(inputs, opt.embed_size, opt.num_layers, opt.bi_gru)
    return GRUEmbedding(inputs, opt.embed_size, opt.num_layers, opt.txt_fc)


def trigrams(opt, vocab, table) -> TrigramWords:
    return TrigramWords(len(vocab.trigrams) + 1)


def text_layers(opt, inputs: int) -> nn.Module:
    return build_layers(opt, "txt", inputs)


def bag(mean: bool) -> TextEncoder:
    """Word vectors, averaged or summed."""
    def trunk(opt, vocab, table) -> BagOfWords:
        return BagOfWords(words(opt, vocab, table), mean)
    return TextEncoder("words", trunk, text_layers, layers=True, decoder="vector")


def over_trigrams(kind: type[nn.Module]) -> TextEncoder:
    """One of DMSM's networks over letter trigrams."""
    def embed(opt, inputs: int) -> nn.Module:
        return kind(inputs - 1, layer_sizes(opt.txt_layers), opt.embed_size)
    return TextEncoder("trigrams", trigrams, embed, layers=True)


def region_graph(opt, pretrained: bool) -> RegionGraph:
    return RegionGraph(opt.img_dim, opt.embed_size, opt.feature_norm, opt.region_norm == "regions")


def region_embedding(opt, inputs: int) -> RegionEmbedding:
    return RegionEmbedding(inputs, opt.embed_size, opt.precomp_enc_type == "weight_norm")


IMAGE_ENCODERS = {
    "precomp": ImageEncoder("vector", lambda opt, _: features(opt, opt.pool == "mean"), image_vector, layers=True),
    "cnn": ImageEncoder("photos", photos, image_vector, layers=True),
    "vsrn": ImageEncoder("regions", region_graph,
                         lambda opt, inputs: RegionGRU(inputs, opt.embed_size, opt.region_bn), target=False),
    "pie": ImageEncoder("cells", pie_trunk, lambda opt, inputs: pie_net(opt, inputs, mean_linear(opt, inputs)),
                        lambda opt, inputs: PIEVariance(inputs, opt.embed_size, mean_linear(opt, inputs)),
                        target=False),
    "scan": ImageEncoder("regions", lambda opt, _: features(opt, False), region_embedding),
}
TEXT_ENCODERS = {"gru": TextEncoder("words", words, last_state, decoder="words"),
                 "bigru": TextEncoder("words", words, lambda opt,
                                      inputs: BiGRUEmbedding(bigru(opt, inputs), opt.embed_size),
                                      decoder="words"),
                 "pie": TextEncoder("words", words, lambda opt,
                                    inputs: pie_net(opt, inputs, bigru(opt, inputs)), lambda opt,
                                    inputs: PIEVariance(inputs, opt.embed_size,
                                                        bigru(opt, inputs))),
                 "mean": bag(mean=True), "sum": bag(mean=False),
                 "features": TextEncoder("features", lambda opt,
                                         *_: Precomputed(opt.txt_dim, opt.feature_norm),
                                         text_layers, layers=True, decoder="vector"),
                 "trigram_conv": over_trigrams(TrigramConv),
                 "trigram_bag": over_trigrams(TrigramBag),}


# ---- a model from options

def reads_mean(opt) -> bool:
    """Whether variances come from a network that reads the mean, and not from a second copy of
    f_emb."""
    return bool(opt.var_layers) or opt.loss == "probvlm"


def variance_network(opt, encoder: ImageEncoder | TextEncoder, features: int,
                     head: str) -> Callable | None:
    """What builds the network of the variances, or None: a second copy of f_emb."""
    if opt.loss == "probvlm":
        return lambda: GeneralisedGaussian(opt.embed_size)
    if opt.var_layers:
        outputs = 1 if head == "spherical_one" else opt.embed_size
        return lambda: VarianceLayers(opt.embed_size, layer_sizes(opt.var_layers), outputs)
    if opt.sim == "match_prob" and encoder.log_var is not None:
        return lambda: encoder.log_var(opt, features)
    return None


def build_tower(opt, encoder: ImageEncoder | TextEncoder, trunk: nn.Module, head: str,
                normalise: bool) -> Tower:
    return Tower(trunk, lambda: encoder.embed(opt, trunk.dim), head, normalise=normalise,
                 use_abs=opt.use_abs, logvar_norm=opt.logvar_norm,
                 bounds=(math.log(opt.var_min), math.log(opt.var_max)), logvar_init=opt.logvar_init,
                 sample=opt.vae > 0, latent_norm=jwae.latent_norm(opt.latent_norm, opt.embed_size),
                 corruption=Corruption(opt.dropout, opt.feature_noise) if opt.dropout
                 or opt.feature_noise else None, make_log_var=variance_network(opt, encoder,
                                                                               trunk.dim, head),
                 on_mean=reads_mean(opt), freeze=opt.freeze_means)


def build_image_tower(opt, pretrained: bool = True) -> Tower:
    encoder = IMAGE_ENCODERS[opt.img_enc]
    return build_tower(opt, encoder, encoder.trunk(opt, pretrained), opt.image_head,
                       not opt.no_imgnorm)


def build_text_tower(opt, vocab, vectors: Callable | None = None) -> Tower:
    """VSE++ always normalises captions; only SCAN's --no_txtnorm leaves them as they are."""
    encoder = TEXT_ENCODERS[opt.txt_enc]
    table = vectors(vocab.words, opt.word_vectors,
                    opt.word_dim) if opt.word_vectors and vectors else None
    return build_tower(opt, encoder, encoder.trunk(opt, vocab, table), opt.text_head,
                       not opt.no_txtnorm)


def build_vocabulary(opt, words: list[str]) -> Vocabulary:
    """Words as the text tower reads them: by their numbers, or by their letter trigrams."""
    return (Trigrams if TEXT_ENCODERS[opt.txt_enc].reads == "trigrams" else Vocabulary)(words)


def information_bottleneck(image: Encoded, caption: Encoded, batch) -> Tensor:
    """`losses.vib` of whichever sides are Gaussian."""
    return sum(vib(e.embedding) for e in (image, caption) if e.embedding.log_var is not None)


def localises(opt) -> bool:
    """Whether regions and phrases with labels are learned from, and not matching pairs; older runs
    do not say it."""
    return getattr(opt, "localise", False)


def build_pair_terms(opt, vocab, regions: int, similarity: Similarity) -> dict[str,
                                                                               tuple[float,
                                                                                     Callable]]:
    """{name: (weight, loss)} of what is trained on pairs beside the objective, only those with a
    weight. regions: the width of the image trunk."""
    made = {"mse": (opt.mse_weight * (opt.loss == "mse"), PairMSE),
            "two_branch": (1.0 * (opt.loss == "two_branch"), LabelledTwoBranch if localises(opt)
                           else TwoBranchLoss), "concepts": (PENALTY * (opt.sim == "cite"),
                                                             lambda: similarity.penalty),
            "probvlm": (1.0 * (opt.loss == "probvlm"), ProbVLMLoss),
            "vib": (opt.vib, lambda: information_bottleneck),
            "inclusion": (opt.inclusion, Inclusion),
            "captioner": (opt.captioner, lambda: Captioner(regions, len(vocab), opt.dim_hidden,
                                                           opt.max_len,
                                                           original=opt.captioner_original)),
            "diversity": (opt.diversity, Diversity),
            "mmd": (opt.mmd, lambda: MMD(latents=opt.loss == "mse"))}
    return {name: (weight, build()) for name, (weight, build) in made.items() if weight}


def build_model(opt, vocab, pretrained: bool = True,
                vectors: Callable | None = None) -> JointEmbedding:
    """The model that resolved options (options.resolve) describe. `pretrained=False` leaves a CNN's
    weights to a checkpoint that is about to be loaded. vectors: reads --word_vectors
    (files.vectors.table_for). Raises InputError where the options do not fit the data."""
    similarity = ALL_SIMILARITIES[opt.sim].build(opt)
    image_tower, text_tower = build_image_tower(opt, pretrained), build_text_tower(opt, vocab,
                                                                                   vectors)
    side_terms, critic = jwae.build_side_terms(opt, vocab, image_tower.trunk.dim,
                                               text_tower.trunk.dim,
                                               TEXT_ENCODERS[opt.txt_enc].decoder)
    objective = (build_labelled_objective if localises(opt) else build_objective)(opt, similarity)
    return JointEmbedding(image_tower, text_tower, similarity, objective,
                          mask_same_image=opt.mask_same_image,
                          pair_terms=build_pair_terms(opt, vocab, image_tower.trunk.dim,
                                                      similarity), side_terms=side_terms,
                          critic=critic)
