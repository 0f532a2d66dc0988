"""How exact scores are where their inputs, or their products, are of fewer digits than float32 has.

Both are emulated, so that a machine without tf32 shows them: float32 numbers are rounded to the
mantissa of bf16, 7 bits, or of tf32, 10 bits, and everything else stays float32. What a network
loses before its last rounding is not in these figures.
"""
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from methods.heads import VonMisesFisher
from methods.pvse_pcme import MatchProbability, MaxOverParts
from methods.scan import CrossAttention
from similarities import LOG_VAR_BOUNDS, MLS, SIMILARITIES, Embedding, Similarity
from timing import Setting, cell

DIM = 1024
BITS = {"bf16": 7, "tf32": 10}        # of the mantissa; float32 has 23
SAMPLE = (100, 200)                   # images, captions
PARTS = 12                            # regions of an image, words of a caption
LIKE = 0.5                            # cosine of an image and its own captions, as after a training
COMPARED: dict[str, type[Similarity]] = {
    **SIMILARITIES,
    "mls": MLS,
    "vmf": VonMisesFisher,
    "scan": CrossAttention,
    "mil": MaxOverParts,
    "match_prob": MatchProbability,
}
# Where the two matrices stand among the arguments of each product.
PRODUCTS = {torch.ops.aten.mm.default: (0, 1), torch.ops.aten.bmm.default: (0, 1),
            torch.ops.aten.addmm.default: (1, 2), torch.ops.aten.addmm_.default: (1, 2),
            torch.ops.aten.baddbmm.default: (1, 2)}


def rounded(x: Tensor, bits: int) -> Tensor:
    """float32 numbers rounded to mantissas of so many bits, to the nearest, ties to the even
    one."""
    cut = 23 - bits
    raw = x.contiguous().view(torch.int32)
    raw = raw + ((1 << cut - 1) - 1 + (raw >> cut & 1)) & -1 << cut
    return raw.view(torch.float32)


class RoundedProducts(TorchDispatchMode):
    """A context in which the products of float32 matrices round what they read, and sum in float32:
    tf32's products."""

    def __init__(self, bits: int = BITS["tf32"]):
        super().__init__()
        self.bits = bits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args = list(args)
        for k in PRODUCTS.get(func, ()):
            args[k] = rounded(args[k], self.bits) if args[k].dtype == torch.float32 else args[k]
        return func(*args, **(kwargs or {}))


def sides(name: str, dim: int, seed: int) -> tuple[Embedding, Embedding]:
    """Images and captions as a similarity takes them, unit means and variances over all that is
    allowed, float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)
    n, m = SAMPLE
    of, spread = torch.arange(m) * n // m, (1 / LIKE ** 2 - 1) ** 0.5
    images = normal(n, PARTS, dim)
    captions = images[of] + spread * normal(m, PARTS, dim)
    log_vars = [(normal(k, dim) * 2).clamp(*LOG_VAR_BOUNDS) for k in SAMPLE]
    pair = [Embedding(F.normalize(x[:, 0], dim=1), log_var, F.normalize(x, dim=2),
                      torch.full((len(x),), PARTS))
            for x, log_var in zip((images, captions), log_vars)]
    if name in ("mls", "vmf"):
        pair = [e._replace(log_var=e.log_var[:, :1] - (name == "vmf") * 5) for e in pair]
    if name == "match_prob":
        pair = [e._replace(log_var=e.log_var - 7) for e in pair]     # variances that sum to 1 or so
    if COMPARED[name].gaussian_sides == 1:
        pair[0] = pair[0]._replace(log_var=None)
    return pair[0], pair[1]


def each(e: Embedding, f) -> Embedding:
    return Embedding(*(f(x) if torch.is_tensor(x) and x.is_floating_point() else x for x in e))


@torch.no_grad()
def score_errors(name: str, dim: int, seed: int) -> dict[str, tuple[float, float]]:
    """{what is rounded: (largest relative error, largest error in standard deviations of a
    caption's scores)} against the same formula in float64 of inputs that are not rounded. Relative
    errors of scores that pass 0 are relative to the largest."""
    pair, similarity = sides(name, dim, seed), COMPARED[name]().eval()
    exact = COMPARED[name]().double().eval()(*(each(e, Tensor.double) for e in pair))       # (N, M)
    size = exact.abs().max() if exact.max() > 0 > exact.min() else exact.abs()
    results = {"float32": similarity(*pair)}
    for kind, bits in BITS.items():
        results[f"inputs {kind}"] = similarity(
            *(each(e, lambda x, bits=bits: rounded(x, bits)) for e in pair))
    with RoundedProducts():
        results["products tf32"] = similarity(*pair)
    spread, off = (exact.std(0).mean(),
                   {kind: (scores - exact).abs() for kind, scores in results.items()})
    return {kind: (float((error / size).max()), float(error.max() / spread))
            for kind, error in off.items()}


def precision(how: Setting) -> None:
    print(f"\nprecision: D = {DIM:,}, {SAMPLE[0]} x {SAMPLE[1]}; largest error against float64, "
          "relative / in standard deviations of the scores", flush=True)
    for name in COMPARED:
        errors = score_errors(name, DIM, how.seed)
        print(f"  {name:16}" + "   ".join(
            f"{kind} {a:.1e} / {b:.1e}" for kind, (a, b) in errors.items()), flush=True)
        for kind, (relative, deviations) in errors.items():
            target = "error" if kind == "float32" else None
            cell(f"{name}, {kind}: relative", relative, ".1e", target)
            cell(f"{name}, {kind}: in deviations", deviations, ".1e")
