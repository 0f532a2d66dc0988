"""Distance of a model's latents from the prior N(0, I), which jWAE's critic brings them to (`jwae` 3.2).

    python -m evaluation.latents --checkpoint runs/jwae
"""
if __name__ == "__main__":
    import cli
    cli.start()

import torch
from torch import Tensor

import cli
from checkpoint import Trained
from cli import Arguments, data_set, filename, natural, split_name, torch_device, up_to, workers
from evaluation.embeddings import newest_run, split_of
from evaluation.encode import encode
from losses import real_rows, unit


class Latents:
    """A model that gives latents, before any normalisation, in place of embeddings."""

    def __init__(self, model):
        self.model = model

    def embed_images(self, images):
        return self.model.image_tower(images).latent

    def embed_captions(self, tokens, lengths):
        return self.model.text_tower(tokens, lengths).latent


def prior_report(z: Tensor, generator: torch.Generator, permutations: int = 200) -> dict[str, float]:
    """Differences of latents (R, D) from samples of N(0, I).

    norm: mean |z|. mean: |average z| / sqrt(D). variance: average over the dimensions. correlation: root mean square
    off the diagonal of the correlation matrix. eigenvalues: the largest and smallest of the covariance. energy: energy
    distance to as many samples of the prior, over sqrt(D). p: share of random relabellings of the two samples whose
    distance is at least as large. on the sphere: the energy distance of sqrt(D) z / |z|, which does not depend on the
    norm of the latents.
    """
    n, d = z.shape
    z = z.double()
    covariance = torch.cov(z.T)                                                     # (D, D)
    variance = covariance.diagonal().clamp(min=1e-12)
    off = (covariance.square() / variance / variance[:, None]).sum() - d
    eigenvalues = torch.linalg.eigvalsh(covariance)
    prior = torch.randn(n, d, generator=generator, dtype=z.dtype)                   # (R, D)
    label = torch.tensor([1, -1]).repeat_interleave(n).to(z)                        # (2 R,)

    def energy(x: Tensor, signs: Tensor) -> Tensor:
        """2 E|x - y| - E|x - x'| - E|y - y'|, over sqrt(D): (R, D), labels s = +-1 (2 R, L) -> (L,).

        It is -s^T |..| s / R^2, where |..| holds all distances.
        """
        samples = torch.cat([x, prior])                                             # (2 R, D)
        return -(signs * (torch.cdist(samples, samples) @ signs)).sum(0) / n ** 2 / d ** 0.5
    shuffled = [label[torch.randperm(2 * n, generator=generator)] for _ in range(permutations)]
    observed, *others = energy(z, torch.stack([label, *shuffled], 1))
    report = {"norm": z.norm(dim=1).mean(), "mean": z.mean(0).norm() / d ** 0.5, "variance": variance.mean(),
              "correlation": off.clamp(min=0).div(d * (d - 1)).sqrt(),
              "largest eigenvalue": eigenvalues[-1], "smallest eigenvalue": eigenvalues[0],
              "energy distance": observed, "p": (1 + sum(e >= observed for e in others)) / (1 + permutations),
              "on the sphere": energy(unit(z) * d ** 0.5, label[:, None])[0]}
    return {name: float(value) for name, value in report.items()}


@torch.no_grad()
def print_latents(opt) -> None:
    """Print `prior_report` of both sides and of samples of the prior itself. An item with several parts gives a latent
    per part, because their mean is none."""
    model = Trained(opt.checkpoint or newest_run(), torch_device(opt.device))
    split, name = split_of(model, opt.split, opt.data_path, opt.data_name), opt.data_name or model.options.data_name
    tokens = split.encode(model.vocab, known=name == model.options.data_name)
    columns = {}
    for side, latent in zip(("images", "captions"),
                            encode(Latents(model.model), split, tokens, model.device, workers=opt.workers)):
        z = real_rows(latent.value.float(), latent.n_parts).cpu()                   # (R, D)
        generator = torch.Generator().manual_seed(opt.seed)
        columns[side] = prior_report(z[torch.randperm(len(z), generator=generator)[:opt.rows]], generator)
    samples = torch.randn(min(opt.rows, len(z)), z.shape[1], generator=generator)
    columns["samples of N(0, I)"] = prior_report(samples, generator)
    print(f"{model.path}: latents of {name} {opt.split}, before the l2 norm, {z.shape[1]} numbers each")
    print(f"{'':22}" + "".join(f"{side:>20}" for side in columns))
    for key in columns["images"]:
        print(f"{key:22}" + "".join(f"{report[key]:>20.4g}" for report in columns.values()))


def main(argv=None) -> None:
    p = Arguments("Measure how near the latents of a run are to the prior N(0, I).")
    add = p.add_argument
    add("--checkpoint", type=filename, metavar="RUN", help="run folder or checkpoint file (default: the newest run)")
    add("--data_path", type=filename, help="folder that holds the data sets (default: that of the training)")
    add("--data_name", type=data_set, help="data set (default: that of the training)")
    add("--split", type=split_name, default="test", help="split whose latents are examined")
    add("--rows", type=up_to(100_000, least=2), default=1000,
        help="number of latents per side, compared with as many samples of the prior")
    add("--seed", type=natural, default=0, help="random seed of the samples and of the choice of latents")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    add("--workers", type=workers, default=0, help="processes that read photos")
    cli.run(p.prog, print_latents, p.parse_args(argv))


if __name__ == "__main__":
    main()
