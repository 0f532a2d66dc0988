"""Joint Wasserstein autoencoders: both sides reconstruct their input from their latents, and the latents of both meet one
prior.

    python train.py --data_name f8k_precomp --txt_enc bigru --num_layers 2 --img_layers 1024 --max_violation \\
        --recon_images 0.5 --recon_captions 0.005 --prior_images 0.01 --prior_captions 0.01
    python jwae.py --checkpoint runs/f8k_precomp_cosine            # how near are the latents to the prior?

Mahajan et al. 2019 (`jwae`). A latent is what f_emb gives, before the l2 norm of the similarity: unit vectors in D dimensions
cannot follow N(0, I), whose vectors have norms near sqrt(D), and the cosine, which is free of scale, lets f_emb keep what norm
it started with. `latent_norm` gives latents that scale; the critic, the decoders and the squared distance of matching pairs
take them after it.

Weights are those of `jwae` eq. 6: reconstructions are summed over the batch, as the hinge is (eq. 1), and D_JS, which is of two
distributions and not of items, is counted once.
"""
if __name__ == "__main__":
    import cli
    cli.starting()



import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import cli
from cli import Arguments, natural, up_to
from encoders import BatchNorm
from losses import Embedding, pair_mse, real_rows, unit
from vocab import PAD, UNK

WORD_ENCODERS = ("gru", "bigru")      # text encoders that read word by word: their decoder tells the words again


def whole(latent: Tensor, n_parts: Tensor | None) -> Tensor:
    """One latent an item, (B, D): the mean of its real parts where it has parts."""
    if latent.ndim == 2:
        return latent
    real = torch.arange(latent.shape[1], device=latent.device) < n_parts[:, None]                    # (B, P)
    return (latent * real[:, :, None]).sum(1) / n_parts[:, None]                    # (B, P, D) -> (B, D)


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


class PairMSE(nn.Module):
    """`losses.pair_mse` of the latents (`jwae` eq. 7) over their dimension D, summed over the batch.

    Over D, since at the prior's scale eq. 7 grows with D: --mse_weight D is eq. 7 per item. It is a mean over pairs, so beside
    it all of eq. 6 counts per item, too: the weights of the priors, which are no sums here, are to be times the batch. Without
    a latent_norm the latents shrink to norms below 1, where the prior's are sqrt(D).
    """
    sides = ()

    def forward(self, images: Embedding, captions: Embedding, seen: dict, told: dict, batch) -> Tensor:
        x, y = whole(seen["latent"], images.n_parts).float(), whole(told["latent"], captions.n_parts).float()
        return pair_mse(x, y) * len(x) / x.shape[1]


class Critic(nn.Module):
    """Log-odds that a latent is a sample of the prior N(0, I): three linear layers with leaky ReLUs between, (R, D) -> (R,).
    One critic for both sides, which share the prior (`jwae` 4.2)."""

    def __init__(self, latent: int, hidden: int = 256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(latent, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
                                    nn.Linear(hidden, 1))

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)[:, 0]


class Prior(nn.Module):
    """What an encoder is told to make its latents pass for samples of the prior: -log sigmoid(critic), mean over the latents
    (parts: all of them), `jwae` eq. 6, D_JS in its non-saturating form. The critic learns nothing here."""
    reduction = "mean"

    def __init__(self, side: str, critic: Critic):
        super().__init__()
        self.sides, self.critic = (side,), [critic]         # in a list: JointEmbedding lists its parameters, once

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        extras, e = (seen, images) if self.sides == ("images",) else (told, captions)
        latent = real_rows(extras["latent"].float(), e.n_parts)
        critic = self.critic[0]
        frozen = {name: p.detach() for name, p in critic.named_parameters()}
        odds = torch.func.functional_call(critic, frozen, latent)
        return F.softplus(-odds.float()).mean()


class CriticLoss(nn.Module):
    """Binary cross-entropy of the critic: the latents of one side against as many samples of N(0, I), mean, in nats; log 2
    where it cannot tell them apart. The encoders learn nothing here, so one backward pass serves them and the critic."""
    reduction = "mean"

    def __init__(self, side: str, critic: Critic):
        super().__init__()
        self.sides, self.critic = (side,), [critic]

    def forward(self, images: Embedding, captions: Embedding, seen: dict, told: dict, batch) -> Tensor:
        extras, e = (seen, images) if self.sides == ("images",) else (told, captions)
        encoded = real_rows(extras["latent"].detach().float(), e.n_parts)           # (R, D)
        real, fake = self.critic[0](torch.cat([torch.randn_like(encoded), encoded])).float().chunk(2)    # (2 R,) -> (R,) twice
        return (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2


class PriorMMD(nn.Module):
    """Maximum mean discrepancy of the latents of one side (parts: all of them) and as many samples of the prior N(0, I), the
    unbiased estimate of its square, about 0 where both are alike: the WAE-MMD of Tolstikhin et al. 2018 (`jwae` ref. 39), sum
    of the kernels k(x, y) = C / (C + |x - y|^2) at C = 2 D s, s = 0.1, 0.2, 0.5, 1, 2, 5, 10."""
    reduction = "mean"

    def __init__(self, side: str):
        super().__init__()
        self.sides = (side,)

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        extras, e = (seen, images) if self.sides == ("images",) else (told, captions)
        x = real_rows(extras["latent"].float(), e.n_parts)                          # (R, D)
        y = torch.randn_like(x)

        def kernel(a: Tensor, b: Tensor) -> Tensor:
            """Sum over all pairs."""
            squared = (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp(min=0)           # (R, R)
            return sum((c / (c + squared)).sum() for c in (2 * a.shape[1] * s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10)))
        n = max(len(x), 2)                                  # 14: the 7 kernels of x and of y with itself, which is no pair
        return (kernel(x, x) + kernel(y, y) - 14 * len(x)) / (n * (n - 1)) - 2 * kernel(x, y) / n ** 2


PRIOR_LOSSES = ("gan", "mmd")


class LatentKL(nn.Module):
    """KL(N(mean, Sigma) || N(0, I)) of every latent of one side, summed over the batch, in nats: eq. 2, for the VAE that `jwae`
    Table 4 compares with."""

    def __init__(self, side: str):
        super().__init__()
        self.sides = (side,)

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        x = seen if self.sides == ("images",) else told
        return 0.5 * (x["log_var"].exp() - x["log_var"] + x["centre"].float().square() - 1).sum()


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


# ---- how near the latents are to the prior

@torch.no_grad()
def all_latents(model, split, tokens, device, batch_size: int = 128, workers: int = 0) -> dict[str, Tensor]:
    """The latents of a split's images (N, D) and captions (M, D), one an item (parts: their mean is no latent, so all of
    them)."""
    from data import image_batches

    found = {"images": [], "captions": []}
    for batch in image_batches(split.images, batch_size, workers):
        extras = {}
        e = model.embed_images(batch.to(device), extras)
        found["images"].append(real_rows(extras["latent"].float(), e.n_parts).cpu())
    order = torch.arange(len(tokens.length))
    for index in order.split(batch_size):
        extras = {}
        numbers, lengths = tokens.batch(index.numpy())
        e = model.embed_captions(numbers.to(device), lengths, extras)
        found["captions"].append(real_rows(extras["latent"].float(), e.n_parts).cpu())
    return {side: torch.cat(rows) for side, rows in found.items()}


def prior_report(z: Tensor, generator: torch.Generator, permutations: int = 200) -> dict[str, float]:
    """How latents (R, D) differ from samples of N(0, I).

    norm: |z|, mean. mean: |average z| / sqrt(D). variance: average over dimensions. correlation: root mean square off the
    diagonal of the correlation matrix. eigenvalues: largest and smallest of the covariance. energy: energy distance to as many
    samples of the prior, over sqrt(D); p: share of random relabellings of the two samples with one at least as large. on the
    sphere: the energy distance of sqrt(D) z / |z|, which the norm of the latents does not move.
    """
    n, d = z.shape
    z = z.double()
    centred = z - z.mean(0)
    covariance = centred.T @ centred / (n - 1)                                      # (D, D)
    std = covariance.diagonal().clamp(min=1e-12).sqrt()
    correlation = covariance / std / std[:, None]
    eigenvalues = torch.linalg.eigvalsh(covariance)
    prior = torch.randn(n, d, generator=generator, dtype=z.dtype)                   # (R, D)
    label = torch.cat([torch.ones(n), -torch.ones(n)]).to(z)                        # (2 R,)

    def energy(x: Tensor, signs: Tensor) -> Tensor:
        """2 E|x - y| - E|x - x'| - E|y - y'| = -s^T |..| s / R^2 for labels s = +-1, over sqrt(D): (R, D), (2 R, L) -> (L,)."""
        both = torch.cat([x, prior])                                                # (2 R, D)
        return -(signs * (torch.cdist(both, both) @ signs)).sum(0) / n ** 2 / d ** 0.5
    shuffled = [label[torch.randperm(2 * n, generator=generator)] for _ in range(permutations)]
    observed, *others = energy(z, torch.stack([label, *shuffled], 1))
    return {"norm": float(z.norm(dim=1).mean()), "mean": float(z.mean(0).norm() / d ** 0.5),
            "variance": float(std.square().mean()),
            "correlation": float((correlation.square().sum() - d).clamp(min=0).div(d * (d - 1)).sqrt()),
            "largest eigenvalue": float(eigenvalues[-1]), "smallest eigenvalue": float(eigenvalues[0]),
            "energy distance": float(observed), "p": float((1 + sum(e >= observed for e in others)) / (1 + permutations)),
            "on the sphere": float(energy(unit(z) * d ** 0.5, label[:, None])[0])}


def report(opt) -> None:
    from subjects import load_run, newest_run, torch_device

    path, device = opt.checkpoint or newest_run(), torch_device(opt.device)
    run = load_run(path, opt, vocab=opt.vocab)
    found = all_latents(run.model.to(device), run.split, run.tokens(), device, workers=opt.workers)
    rows = {}
    for side, z in found.items():
        generator = torch.Generator().manual_seed(opt.seed)
        rows[side] = prior_report(z[torch.randperm(len(z), generator=generator)[:opt.rows]], generator)
    z = torch.randn(min(opt.rows, len(found["captions"])), z.shape[1], generator=generator)
    rows["samples of N(0, I)"] = prior_report(z, generator)
    print(f"{path}: latents of {run.folder[1]} {opt.split}, before the l2 norm, {z.shape[1]} numbers each")
    print(f"{'':22}" + "".join(f"{side:>20}" for side in rows))
    for key in rows["images"]:
        print(f"{key:22}" + "".join(f"{rows[side][key]:>20.4g}" for side in rows))


def command(argv=None) -> None:
    from subjects import run_arguments

    p = Arguments("How near are the latents of a run to the prior N(0, I)?")
    run_arguments(p, "split whose latents are looked at")
    p.add_argument("--rows", type=up_to(100_000, least=2), default=1000,
                   help="latents a side that are compared with as many samples of the prior")
    p.add_argument("--seed", type=natural, default=0, help="of the samples and of which latents are taken")
    cli.run("jwae.py", report, p.parse_args(argv))


if __name__ == "__main__":
    command()
