"""Joint Wasserstein autoencoders: both sides reconstruct their input from their latents, and the latents of both meet one
prior.

    python train.py --data_name f8k_precomp --txt_enc bigru --num_layers 2 --img_layers 1024 --max_violation \\
        --recon_images 0.5 --recon_captions 0.005 --prior_images 0.01 --prior_captions 0.01
    python show.py latents --checkpoint runs/f8k_precomp_cosine            # how near are the latents to the prior?

Mahajan et al. 2019 (`jwae`). A latent is what f_emb gives, before the l2 norm of the similarity: unit vectors in D dimensions
cannot follow N(0, I), whose vectors have norms near sqrt(D), and the cosine, which is free of scale, lets f_emb keep what norm
it started with. `latent_norm` gives latents that scale; the critic, the decoders and the squared distance of matching pairs
take them after it.

Weights are those of `jwae` eq. 6: reconstructions are summed over the batch, as the hinge is (eq. 1), and D_JS, which is of two
distributions and not of items, is counted once.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from encoders import BatchNorm
from losses import Critic, CriticLoss, LatentKL, Prior, PriorMMD, whole
from similarities import unit
from vocab import PAD, UNK

WORD_ENCODERS = ("gru", "bigru")      # text encoders that read word by word: their decoder tells the words again


# ---- decoders

class VectorDecoder(nn.Module):
    """g of images and of captions that are vectors: two linear layers with a ReLU between, (..., D) -> (..., F)."""

    def __init__(self, latent: int, hidden: int, outputs: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)


class CaptionDecoder(nn.Module):
    """g_t: a GRU whose first state is the latent says every word from the words before it (`jwae` 4.2, eq. 5).

    Word dropout: in training each word that goes in, `<start>` too, is `<unk>` with probability `word_dropout`, so that the
    decoder has to ask the latent (Bowman et al. 2016). (The original predicts the word that goes in, not the next one.)
    """

    def __init__(self, latent: int, vocab_size: int, word_dim: int, word_dropout: float):
        super().__init__()
        self.word_dropout = word_dropout
        self.words = nn.Embedding(vocab_size, word_dim, padding_idx=PAD)
        self.rnn = nn.GRU(word_dim, latent, batch_first=True)
        self.out = nn.Linear(latent, vocab_size)

    def forward(self, latent: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """-log p(w_1 ... w_M, `<end>` | latent) in nats, >= 0: (B, D), `<start> ...` (B, T), lengths (B,) -> (B,)."""
        given = tokens[:, :-1]                                                      # (B, T - 1)
        if self.training and self.word_dropout:
            dropped = torch.rand(given.shape, device=given.device) < self.word_dropout
            given = given.masked_fill(dropped & (given != PAD), UNK)
        packed = pack_padded_sequence(self.words(given), (lengths - 1).cpu(), batch_first=True, enforce_sorted=False)
        states = self.rnn(packed, latent[None].to(packed.data.dtype))[0]
        place = pack_padded_sequence(torch.arange(tokens[:, 1:].numel(), device=tokens.device).view_as(given),
                                     (lengths - 1).cpu(), batch_first=True, enforce_sorted=False).data
        wanted = tokens[:, 1:].flatten()[place]                                     # (S,): the next words
        nll = F.cross_entropy(self.out(states.data), wanted, reduction="none")      # (S, D) -> (S, V) -> (S,)
        return nll.new_zeros(len(tokens)).index_add(0, place // given.shape[1], nll)    # (B,)


# ---- terms beside the objective (model.JointEmbedding); `sides`: what they need where images and captions do not match

class Reconstruction(nn.Module):
    """|x - g(f(x))| summed over the batch; x is what the encoder was given. Images: the l1 or l2 norm (`jwae` eq. 6, first
    sum), of regions its mean over the image. Captions that are vectors, norm None: its square (`jwae` 4.2, below eq. 6)."""

    def __init__(self, side: str, decoder: VectorDecoder, norm: int | None):
        super().__init__()
        self.sides, self.decoder, self.norm = (side,), decoder, norm

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        extras = seen if self.sides == ("images",) else told
        target = extras["trunk"].detach().float()                                   # (B, F) | (B, P, F)
        residual = self.decoder(extras["latent"]).float()
        assert residual.shape == target.shape, (residual.shape, target.shape)       # else they would broadcast
        residual = residual - target
        missed = residual.abs().sum(-1) if self.norm == 1 else residual.square().sum(-1)
        if self.norm == 2:
            missed = (missed + 1e-12).sqrt()                                        # its gradient is finite at 0
        return (missed.mean(1) if missed.ndim == 2 else missed).sum()


class Retelling(nn.Module):
    """-log p of the captions given their latents, summed over words and batch, in nats (`jwae` eq. 5 and 6, second sum)."""
    sides = ("captions",)

    def __init__(self, decoder: CaptionDecoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        latent = whole(told["latent"], captions.n_parts)
        return self.decoder(latent, batch.tokens, batch.lengths).float().sum()


class Sphere(nn.Module):
    """Vectors (R, D) of norm sqrt(D), near which N(0, I) has its mass in many dimensions: the directions that a cosine
    compares, at the prior's scale."""

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * x.shape[1] ** 0.5


def latent_norm(kind: str, dim: int) -> nn.Module | None:
    """"sphere"; "batch": a BatchNorm without scale and shift, mean 0 and variance 1 of each dimension over a batch, and no more
    than that; "none"."""
    return {"batch": lambda: BatchNorm(dim, eps=1e-8, affine=False), "sphere": Sphere, "none": lambda: None}[kind]()


def build_terms(opt, vocab, image_tower, text_tower) -> tuple[dict[str, tuple[float, nn.Module]], Critic | None]:
    """{name: (weight, module)} of what the options ask for, and the critic that the terms of both sides share."""
    terms, priors = {}, {"images": opt.prior_images, "captions": opt.prior_captions}
    critic = Critic(opt.embed_size) if any(priors.values()) and opt.prior_loss == "gan" else None
    if opt.recon_images:
        decoder = VectorDecoder(opt.embed_size, opt.decoder_dim, image_tower.trunk.dim)
        terms["recon_images"] = opt.recon_images, Reconstruction("images", decoder, opt.recon_norm)
    if opt.recon_captions and opt.txt_enc in WORD_ENCODERS:
        decoder = CaptionDecoder(opt.embed_size, len(vocab), opt.word_dim, opt.word_dropout)
        terms["recon_captions"] = opt.recon_captions, Retelling(decoder)
    elif opt.recon_captions:
        decoder = VectorDecoder(opt.embed_size, opt.decoder_dim, text_tower.trunk.dim)
        terms["recon_captions"] = opt.recon_captions, Reconstruction("captions", decoder, None)
    for side, weight in priors.items():
        if weight and critic:
            terms[f"prior_{side}"] = weight, Prior(side, critic)
            terms[f"critic_{side}"] = 1.0, CriticLoss(side, critic)
        elif weight:
            terms[f"prior_{side}"] = weight, PriorMMD(side)
        if opt.vae:
            terms[f"vae_{side}"] = opt.vae, LatentKL(side)
    return terms, critic


def learns_alone(opt, side: str) -> bool:
    """Whether a term of the loss needs items of a side only, "images" or "captions", and no pairs."""
    return bool(getattr(opt, f"recon_{side}") or getattr(opt, f"prior_{side}") or opt.vae)
