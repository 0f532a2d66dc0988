"""Joint Wasserstein autoencoders: each side reconstructs its input from its latents, and the
latents of both sides match one prior.

    python train.py --data_name f8k_precomp --txt_enc bigru --num_layers 2 --img_layers 1024 \\
        --max_violation --recon_images 0.5 --recon_captions 0.005 --prior_images 0.01 \\
        --prior_captions 0.01
    python show.py latents --checkpoint runs/f8k_precomp_cosine            # how near are the latents to the prior?

Mahajan et al. 2019, Joint Wasserstein Autoencoders for Aligning Multimodal Embeddings (`jwae`).

A latent is the output of f_emb, before the l2 norm of the similarity. Unit vectors in D dimensions
cannot follow N(0, I), whose samples have norms near sqrt(D), and the cosine ignores scale, so f_emb
may keep the norm it started with. `latent_norm` gives the latents the scale of the prior; the
critic, the decoders and the squared distance of matching pairs then see the scaled latents.

The weights are those of `jwae` eq. 6. Reconstruction errors are summed over the batch, as the hinge
is (eq. 1). D_JS compares two distributions and not items, so it is counted once.
"""
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoders import BatchNorm, pack
from losses import Critic, Term, critic_loss, generator_loss, mean_rows, prior_mmd, real_rows, standard_kl, unit
from vocab import PAD, UNK

# ---- decoders

class VectorDecoder(nn.Module):
    """g of images, and of captions that are vectors: two linear layers with a ReLU between them,
    (..., D) -> (..., F)."""
    hidden = 1024

    def __init__(self, latent: int, outputs: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, self.hidden), nn.ReLU(),
                                    nn.Linear(self.hidden, outputs))

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)


class CaptionDecoder(nn.Module):
    """g_t: a GRU whose first state is the latent predicts every word from the words before it
    (`jwae` 4.2, eq. 5).

    Word dropout: in training each input word, `<start>` included, is replaced by `<unk>` with
    probability 0.2, so that the decoder must use the latent (Bowman et al. 2016). (The original
    predicts the input word and not the next one.)
    """
    word_dropout = 0.2

    def __init__(self, latent: int, vocab_size: int, word_dim: int):
        super().__init__()
        self.words = nn.Embedding(vocab_size, word_dim, padding_idx=PAD)
        self.rnn = nn.GRU(word_dim, latent, batch_first=True)
        self.out = nn.Linear(latent, vocab_size)

    def forward(self, latent: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """-log p(w_1 ... w_M, `<end>` | latent) in nats, >= 0: latents (B, D), `<start> ...` (B,
        T), lengths (B,) -> (B,)."""
        inputs = tokens[:, :-1]                                                     # (B, T - 1)
        if self.training:
            dropped = torch.rand(inputs.shape, device=inputs.device) < self.word_dropout
            inputs = inputs.masked_fill(dropped & (inputs != PAD), UNK)
        words = pack(self.words(inputs), lengths - 1)
        states = self.rnn(words, latent[None].to(words.data.dtype))[0]
        every = torch.arange(inputs.numel(), device=tokens.device).view_as(inputs)
        place = pack(every, lengths - 1).data                                     # (S,)
        targets = tokens[:, 1:].flatten()[place]                              # (S,): the next words
        # (S, D) -> (S, V) -> (S,)
        nll = F.cross_entropy(self.out(states.data), targets, reduction="none")
        return nll.new_zeros(len(tokens)).index_add(0, place // inputs.shape[1], nll)   # (B,)


# ---- terms of one side (losses.Term): (encoded, batch) -> scalar

class Reconstruction(nn.Module):
    """|x - g(f(x))| summed over the batch, where x is the input of the encoder (`jwae` eq. 6, first
    sum).

    For images the l2 norm of the difference; for regions, its mean over the regions of the image.
    squared: the squared norm, for captions that are vectors (`jwae` 4.2, below eq. 6).
    """

    def __init__(self, decoder: VectorDecoder, squared: bool):
        super().__init__()
        self.decoder, self.squared = decoder, squared

    def forward(self, encoded, batch) -> Tensor:
        target = encoded.features.detach().float()                              # (B, F) | (B, P, F)
        residual = self.decoder(encoded.latent.value).float()
        # else they would broadcast
        assert residual.shape == target.shape, (residual.shape, target.shape)
        error = (residual - target).square().sum(-1)
        if not self.squared:
            error = (error + 1e-12).sqrt()                             # its gradient is finite at 0
        return (error.mean(1) if error.ndim == 2 else error).sum()


class CaptionNLL(nn.Module):
    """-log p of the captions given their latents, summed over words and batch, in nats
    (`jwae` eq. 5 and 6, second sum)."""

    def __init__(self, decoder: CaptionDecoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, encoded, batch) -> Tensor:
        latent = mean_rows(encoded.latent.value, encoded.latent.n_parts)            # (B, D)
        return self.decoder(latent, batch.tokens, batch.lengths).float().sum()


def of_latents(loss: Callable[[Tensor], Tensor], encoded, batch) -> Tensor:
    """A loss of latents (R, D) as one of (encoded, batch). An item with several parts gives one row
    per part."""
    return loss(real_rows(encoded.latent.value.float(), encoded.latent.n_parts))


def posterior_kl(encoded, batch) -> Tensor:
    """KL of the posteriors N(centre, variance) from N(0, I), summed over the batch, in nats: `jwae`
    eq. 2, the regulariser of the VAE of its Table 4."""
    centre, log_var = encoded.posterior
    return standard_kl(centre.float(), log_var).sum()


class Sphere(nn.Module):
    """Scale vectors (R, D) to norm sqrt(D), near which N(0, I) has its mass in many dimensions.

    That keeps the directions, which the cosine compares, at the scale of the prior.
    """

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * x.shape[1] ** 0.5


# What scales latents (R, D), by name: D -> a module or None. "batch" gives each dimension mean 0
# and variance 1 over a batch.
LATENT_NORMS = {"batch": lambda dim: BatchNorm(dim, eps=1e-8, affine=False),
                "sphere": lambda _: Sphere(), "none": lambda _: None}


def build_side_terms(opt, vocab, image_dim: int, text_dim: int,
                     decoder: str | None) -> tuple[dict[str, Term], Critic | None]:
    """The terms of one side that the options ask for, and the critic that both sides share, or
    None.

    image_dim, text_dim: widths of the trunks. decoder: what reconstructs captions, "words" or
    "vector".
    """
    terms, priors = {}, {"images": opt.prior_images, "captions": opt.prior_captions}
    critic = Critic(opt.embed_size) if any(priors.values()) and opt.prior_loss == "gan" else None
    if opt.recon_images:
        loss = Reconstruction(VectorDecoder(opt.embed_size, image_dim), squared=False)
        terms["recon_images"] = Term(opt.recon_images, loss, "images")
    if opt.recon_captions:
        if decoder == "words":
            loss = CaptionNLL(CaptionDecoder(opt.embed_size, len(vocab), opt.word_dim))
        else:
            loss = Reconstruction(VectorDecoder(opt.embed_size, text_dim), squared=True)
        terms["recon_captions"] = Term(opt.recon_captions, loss, "captions")
    for side, weight in priors.items():
        if weight:
            loss = partial(generator_loss, critic) if critic else prior_mmd
            terms[f"prior_{side}"] = Term(weight, partial(of_latents, loss), side, mean=True)
        if weight and critic:
            loss = partial(of_latents, partial(critic_loss, critic))
            terms[f"critic_{side}"] = Term(1.0, loss, side, mean=True)
        if opt.vae:
            terms[f"vae_{side}"] = Term(opt.vae, posterior_kl, side)
    return terms, critic


def learns_alone(weights: dict, side: str) -> bool:
    """Whether some term of the loss needs only items of this side, "images" or "captions", and no
    pairs. weights: of the terms, by the names of their options."""
    return any(weights[name] for name in (f"recon_{side}", f"prior_{side}", "vae"))
