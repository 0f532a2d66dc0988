"""Heads on frozen embeddings: closed forms against scipy, a series, a quadrature or loops; errors of public code."""
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats
from torch.distributions import Normal, kl_divergence

from encoders import Latent, Precomputed, Unchanged
from losses import vib
from methods.heads import (
    LOG_ALPHA_BOUNDS,
    LOG_BETA_BOUNDS,
    GeneralisedGaussian,
    Inclusion,
    ProbVLMLoss,
    VarianceLayers,
    VonMisesFisher,
    gg_log_var,
    gg_nll,
    inclusion_gap,
    log_growth,
)
from model import Head, Tower
from similarities import Embedding
from tests.helpers import having

DIMS = [2, 16, 256, 1024]
KAPPAS = np.logspace(-2, 4, 25)


class Side(NamedTuple):
    """What a pair term reads of a model.Encoded."""
    embedding: Embedding
    spread: Latent | None = None


def drawn(*shape, seed=0, low=None, high=None):
    """Standard normal numbers, or uniform ones in [low, high], float64."""
    g = torch.Generator().manual_seed(seed)
    if low is None:
        return torch.randn(shape, generator=g, dtype=torch.float64)
    return low + (high - low) * torch.rand(shape, generator=g, dtype=torch.float64)


def to(e, dtype):
    return Embedding(*(None if x is None else x.to(dtype) for x in e))


# ---- the normaliser of von Mises and Fisher

def log_vmf(kappa, dim: int):
    """log C_D(kappa) from its growth; log C_D(0) is that of the uniform density, -log of the sphere's area."""
    uniform = math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)
    return uniform - log_growth(kappa, dim / 2 - 1)


def series(kappa: float, dim: int) -> float:
    """log C_D(kappa) by the power series of I_n(kappa) / kappa^n, all of whose terms are positive."""
    n, k = dim / 2 - 1, np.arange(20000)
    terms = 2 * k * math.log(kappa / 2) - special.gammaln(k + 1) - special.gammaln(n + k + 1)
    return -dim / 2 * math.log(2 * math.pi) + n * math.log(2) - special.logsumexp(terms)


@pytest.mark.parametrize("dim", DIMS)
def test_log_vmf_equals_the_power_series(dim):
    expected = torch.tensor([series(kappa, dim) for kappa in KAPPAS])
    torch.testing.assert_close(log_vmf(torch.tensor(KAPPAS), dim), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dim", DIMS)
def test_log_vmf_equals_scipys_bessel_functions(dim):
    """Where those are not 0 in float64, which at D = 1,024 they are below a kappa of about 100."""
    scaled = special.ive(dim / 2 - 1, KAPPAS)                                       # exp(-kappa) I(kappa)
    here = scaled > 1e-290
    assert here.sum() >= 8
    kappa = KAPPAS[here]
    expected = (dim / 2 - 1) * np.log(kappa) - dim / 2 * math.log(2 * math.pi) - np.log(scaled[here]) - kappa
    torch.testing.assert_close(log_vmf(torch.tensor(kappa), dim), torch.tensor(expected), rtol=1e-12, atol=1e-9)


def test_log_vmf_on_the_sphere_in_three_dimensions():
    kappa = torch.tensor([0.01, 0.5, 3.0, 40.0], dtype=torch.float64)
    torch.testing.assert_close(log_vmf(kappa, 3), (kappa / (4 * math.pi * kappa.sinh())).log(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 7.0, 90.0])
def test_the_density_on_the_circle_has_integral_one(kappa):
    angle = 2 * math.pi * torch.arange(2000, dtype=torch.float64) / 2000
    density = (kappa * angle.cos() + log_vmf(torch.tensor(kappa, dtype=torch.float64), 2)).exp()
    assert float(density.mean() * 2 * math.pi) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 16, 1024])
def test_log_vmf_at_zero_is_that_of_the_uniform_density(dim):
    area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    assert float(log_vmf(torch.zeros((), dtype=torch.float64), dim)) == pytest.approx(-area, rel=1e-12)
    assert float(log_growth(torch.zeros(()), dim / 2 - 1)) == 0


@pytest.mark.parametrize("dim", DIMS)
def test_the_slope_of_log_vmf_is_minus_the_mean_cosine(dim):
    kappa = torch.logspace(2.5, 4, 7, dtype=torch.float64).requires_grad_()
    log_vmf(kappa, dim).sum().backward()
    ratio = special.ive(dim / 2, kappa.detach()) / special.ive(dim / 2 - 1, kappa.detach())
    torch.testing.assert_close(-kappa.grad, torch.as_tensor(ratio), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dim", [*DIMS, 66])
def test_log_growth_and_its_slope_are_right_to_1e_6_in_float32(dim):
    """For all kappas: at D = 1,024 and kappa 0.01 it is 5e-8, while log C_D(0) is 2,010."""
    single = torch.tensor(KAPPAS, dtype=torch.float32).requires_grad_()
    double = single.detach().double().requires_grad_()
    values = [log_growth(x, dim / 2 - 1) for x in (single, double)]
    for value in values:
        value.sum().backward()
    torch.testing.assert_close(values[0].double(), values[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=1e-6, atol=0)


def published(kappa: float, dim: int) -> float:
    """log C_D(kappa) up to a constant as AsymVLM's code has it, by arXiv 2103.15718."""
    n = (dim - 1) / 2
    a, b = math.hypot(n, kappa), math.hypot(n + 1, kappa)
    return n / 2 * (math.log(n + a) + math.log(n + b)) - (a + b) / 2


@pytest.mark.parametrize("dim", DIMS)
def test_the_published_approximation_is_a_tenth_of_a_nat_off(dim):
    """From which follows that log_vmf and it are the same function, and that the difference is worth having."""
    off = [published(kappa, dim) - float(log_vmf(torch.tensor(kappa), dim)) for kappa in KAPPAS]
    assert 0.09 < max(off) - min(off) < 0.14


# ---- the similarity

def sides(gaussian, n=5, m=7, dim=16, dtype=torch.float64):
    """Images and captions, of which one side is Gaussian with kappa in [1, 10,000]."""
    made = []
    for side, count, seed in (("images", n, 1), ("captions", m, 2)):
        log_var = drawn(count, 1, seed=seed, low=math.log(1e-4), high=0) if side == gaussian else None
        made.append(to(Embedding(drawn(count, dim, seed=seed + 10), log_var), dtype))
    return made


def double_loop(images, captions):
    """kappa cos + log C_D(kappa) - log C_D(0), pair by pair."""
    dim = images.mean.shape[1]
    uniform = special.gammaln(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)
    scores = torch.zeros(len(images.mean), len(captions.mean), dtype=torch.float64)
    for i in range(len(images.mean)):
        for c in range(len(captions.mean)):
            kappa = math.exp(-float(captions.log_var[c] if images.log_var is None else images.log_var[i]))
            cosine = float(F.cosine_similarity(images.mean[i], captions.mean[c], dim=0))
            scores[i, c] = kappa * cosine + series(kappa, dim) - uniform
    return scores


@pytest.mark.parametrize("gaussian", ["images", "captions"])
@pytest.mark.parametrize("dim", [2, 16, 100])
def test_similarity_equals_double_loop(gaussian, dim):
    images, captions = sides(gaussian, dim=dim)
    scores = VonMisesFisher()(images, captions)
    torch.testing.assert_close(scores, double_loop(images, captions), rtol=1e-9, atol=2e-9)


@pytest.mark.parametrize("gaussian", ["images", "captions"])
@pytest.mark.parametrize("dim", [64, 1024])
def test_similarity_in_float32(gaussian, dim):
    images, captions = sides(gaussian, 40, 60, dim, torch.float32)
    single = VonMisesFisher()(images, captions).double()
    exact = VonMisesFisher()(to(images, torch.float64), to(captions, torch.float64))
    assert ((single - exact).abs() / exact.abs().max()).max() < 1e-6


@pytest.mark.parametrize("gaussian", ["images", "captions"])
def test_lift_is_an_inner_product_that_an_index_can_hold(gaussian):
    similarity, (images, captions) = VonMisesFisher(), sides(gaussian)
    (A, a), (B, b) = similarity.images(images), similarity.captions(captions)
    assert A.shape == (5, 16) and B.shape == (7, 16)
    torch.testing.assert_close(A @ B.T + a[:, None] + b, similarity(images, captions), rtol=1e-12, atol=1e-9)


def test_columns_equal_the_whole_matrix():
    similarity, (images, captions) = VonMisesFisher(), sides("captions", 10, 14)
    chosen = torch.tensor([3, 0, 13, 7])
    block = similarity.columns(images, captions)(chosen)(slice(2, 9))
    torch.testing.assert_close(block, similarity(images, captions)[2:9, chosen], rtol=1e-12, atol=1e-9)


def test_one_caption_ranks_images_like_their_cosine():
    images, captions = sides("captions")
    scores, cosines = VonMisesFisher()(images, captions), F.normalize(images.mean) @ F.normalize(captions.mean).T
    assert torch.equal(scores.argsort(0), cosines.argsort(0))


def test_a_variance_per_dimension_two_gaussians_or_none_are_refused():
    point, spherical = Embedding(torch.randn(3, 4)), Embedding(torch.randn(3, 4), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="these have 4 variances.*spherical"):
        VonMisesFisher()(point, Embedding(torch.randn(3, 4), torch.zeros(3, 4)))
    for wrong in ((spherical, spherical), (point, point)):
        with pytest.raises(ValueError, match="of the two sides"):
            VonMisesFisher()(*wrong)


@pytest.mark.parametrize("dim", [3, 70])
def test_similarity_gradcheck(dim):
    images, captions = sides("captions", 3, 4, dim)
    inputs = [images.mean, captions.mean, drawn(4, 1, low=-4, high=2)]

    def scores(x, mean, log_var):
        return VonMisesFisher()(Embedding(x), Embedding(mean, log_var))
    assert torch.autograd.gradcheck(scores, [x.clone().requires_grad_() for x in inputs], atol=1e-6)


@pytest.mark.parametrize("log_var", [-20.0, -9.2, 0.0, 20.0])
@pytest.mark.parametrize("means", ["equal", "zero"])
@pytest.mark.parametrize("dim", [2, 1024])
def test_similarity_gradients_are_finite_in_float32(dim, means, log_var):
    mean = torch.zeros(4, dim) if means == "zero" else drawn(4, dim).float()
    inputs = [x.clone().requires_grad_() for x in (mean, mean, torch.full((4, 1), log_var))]
    scores = VonMisesFisher()(Embedding(inputs[0]), Embedding(*inputs[1:]))
    scores.sum().backward()
    assert scores.isfinite().all() and all(x.grad.isfinite().all() for x in inputs)


# ---- inclusion

def gaussians(n=6, dim=5, spherical=False, seed=0):
    return Embedding(drawn(n, dim, seed=seed), drawn(n, 1 if spherical else dim, seed=seed + 50, low=-3, high=2))


def quadrature(mean_a, log_a, mean_b, log_b) -> float:
    """log of the integral of p_a^2 p_b over one dimension, by the trapezoid rule."""
    x = np.linspace(-60, 60, 20001)
    p, q = (stats.norm.pdf(x, mean, math.exp(log_var / 2)) for mean, log_var in ((mean_a, log_a), (mean_b, log_b)))
    return math.log(np.trapezoid(p ** 2 * q, x))


@pytest.mark.parametrize("spherical", [(False, False), (True, True), (True, False)])
def test_inclusion_gap_is_the_difference_of_two_integrals(spherical):
    a, b = (gaussians(3, 3, s, seed) for s, seed in zip(spherical, (1, 2)))

    def integral(x, y, i):
        return sum(quadrature(*numbers) for numbers in zip(x.mean[i], x.log_var.expand_as(x.mean)[i], y.mean[i],
                                                           y.log_var.expand_as(y.mean)[i]))
    expected = torch.tensor([integral(a, b, i) - integral(b, a, i) for i in range(3)], dtype=torch.float64)
    torch.testing.assert_close(inclusion_gap(a, b), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(inclusion_gap(a, b), -inclusion_gap(b, a))
    assert (inclusion_gap(a, a) == 0).all()


def published_inclusion(mean_a, log_a, mean_b, log_b, times: float) -> float:
    """The a, b, c of ProLIP's code, up to a constant. times: how often it counts the log-variances: 1, but 2 there."""
    p, q = math.exp(-log_a), math.exp(-log_b)
    a, b, c = p + q / 2, 2 * mean_a * p + mean_b * q, mean_a ** 2 * p + mean_b ** 2 * q / 2
    return -times * (log_a + log_b / 2) - math.log(a) / 2 + b * b / 4 / a - c


def test_inclusion_counts_log_variances_once_where_public_code_counts_them_twice():
    """1.298 in ProLIP's code, .548 by quadrature."""
    a, b = (0.0, -1.0), (0.3, 0.5)
    gap = float(inclusion_gap(*(Embedding(torch.tensor([[m]]), torch.tensor([[v]])) for m, v in (a, b))))
    assert gap == pytest.approx(quadrature(*a, *b) - quadrature(*b, *a), abs=1e-6)
    for times, expected in ((1, 0.548), (2, 1.298)):
        difference = published_inclusion(*a, *b, times) - published_inclusion(*b, *a, times)
        assert difference == pytest.approx(expected, abs=5e-4)
    assert gap == pytest.approx(0.548, abs=5e-4)


def test_the_narrow_one_is_included_in_the_wide_one():
    narrow, wide = (Embedding(torch.zeros(1, 8), torch.full((1, 8), v)) for v in (-2.0, 1.0))
    assert inclusion_gap(narrow, wide) > 0


def test_inclusion_in_float32_of_small_variances_and_of_nearly_equal_ones():
    """Means far from 0, where the form a, b, c cancels, and variances a thousandth apart, where the gap does."""
    a = Embedding(5 + drawn(20, 512, seed=1) / 20, drawn(20, 512, seed=3, low=-9, high=-5))
    b = Embedding(5 + drawn(20, 512, seed=2) / 20, a.log_var + 1e-3 * drawn(20, 512, seed=4, low=1, high=2))
    a, b = to(a, torch.float32), to(b, torch.float32)
    wide = to(a, torch.float64), to(b, torch.float64)
    same = [(a._replace(mean=b.mean), b), (wide[0]._replace(mean=wide[1].mean), wide[1])]      # all terms > 0
    torch.testing.assert_close(inclusion_gap(*same[0]).double(), inclusion_gap(*same[1]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_inclusion_loss_equals_loops(scale):
    image, caption = gaussians(seed=1), gaussians(seed=2)
    gaps = [sum(quadrature(*x, *y) - quadrature(*y, *x) for x, y in zip(
        zip(image.mean[i], image.log_var[i]), zip(caption.mean[i], caption.log_var[i]))) for i in range(3)]
    expected = sum(np.logaddexp(0, -scale * gap / 5) for gap in gaps) / 3
    loss = having(Inclusion(), scale=scale)(Side(image.rows(slice(3))), Side(caption.rows(slice(3))), None)
    assert float(loss) == pytest.approx(expected, rel=1e-7, abs=1e-12)


def test_inclusion_loss_widens_captions_and_narrows_images():
    image, caption = (Embedding(e.mean, e.log_var.requires_grad_()) for e in (gaussians(), gaussians()))
    Inclusion()(Side(image), Side(caption), None).backward()
    assert (image.log_var.grad > 0).all() and (caption.log_var.grad < 0).all()


@pytest.mark.parametrize("spherical", [False, True])
def test_inclusion_gradcheck(spherical):
    a, b = gaussians(3, 4, spherical, 1), gaussians(3, 4, spherical, 2)
    inputs = [x.clone().requires_grad_() for x in (*a[:2], *b[:2])]
    assert torch.autograd.gradcheck(lambda ma, la, mb, lb: inclusion_gap(Embedding(ma, la), Embedding(mb, lb)),
                                    inputs, atol=1e-6)


@pytest.mark.parametrize("log_vars", [(-20.0, 20.0), (20.0, -20.0), (-20.0, -20.0), (0.0, 0.0)])
def test_inclusion_gradients_are_finite_in_float32(log_vars):
    mean = drawn(3, 8).float()
    sides = [[x.clone().requires_grad_() for x in (mean + k, torch.full((3, 8), v))] for k, v in enumerate(log_vars)]
    loss = having(Inclusion(), scale=1000.0)(*(Side(Embedding(*side)) for side in sides), None)
    loss.backward()
    assert loss.isfinite() and all(x.grad.isfinite().all() for side in sides for x in side)


# ---- the divergence from N(0, I)

def test_vib_takes_variances_where_public_code_takes_standard_deviations():
    """KL(N(0.5, 1 / e) || N(0, 1)): .309; ProLIP's code halves the log-variance in all terms, .178."""
    mean, log_var = 0.5, -1.0
    expected = float(kl_divergence(Normal(mean, math.exp(log_var / 2)), Normal(0.0, 1.0)))
    assert float(vib(Embedding(torch.tensor([[mean]]), torch.tensor([[log_var]])))) == pytest.approx(expected)
    assert expected == pytest.approx(0.309, abs=5e-4)
    code = -0.5 * (1 + log_var / 2 - mean ** 2 - math.exp(log_var / 2))
    assert code == pytest.approx(0.178, abs=5e-4)


# ---- generalised Gaussians

SHAPES = [(alpha, beta) for alpha in (1e-3, 0.2, 10.0) for beta in (0.5, 1.0, 1.7, 2.0, 4.0)]


@pytest.mark.parametrize("alpha, beta", SHAPES)
def test_gg_nll_and_variance_equal_scipys(alpha, beta):
    residual = torch.tensor([-1.0, -0.05, 0.0, 1e-9, 0.3, 2.0], dtype=torch.float64)
    log_alpha, log_beta = (torch.full_like(residual, math.log(x)) for x in (alpha, beta))
    expected = -stats.gennorm.logpdf(residual, beta, scale=alpha)
    torch.testing.assert_close(gg_nll(residual, log_alpha, log_beta), torch.as_tensor(expected), rtol=1e-9, atol=1e-9)
    variance = gg_log_var(log_alpha, log_beta).exp()[0]
    assert float(variance) == pytest.approx(stats.gennorm.var(beta, scale=alpha), rel=1e-9)


def test_gg_nll_raises_to_the_power_beta_where_public_code_multiplies_by_it():
    """r .1, alpha .2, beta 2: (r / alpha)^beta = .25, while ProbVLM's code takes beta r / alpha = 1."""
    r, alpha, beta = 0.1, 0.2, 2.0
    rest = -math.log(beta / alpha) + math.lgamma(1 / beta) + math.log(2)
    nll = float(gg_nll(*(torch.tensor(x, dtype=torch.float64) for x in (r, math.log(alpha), math.log(beta)))))
    assert nll - rest == pytest.approx(0.25)
    assert nll == pytest.approx(-float(Normal(0.0, alpha / math.sqrt(2)).log_prob(torch.tensor(r))), rel=1e-6)
    assert r / alpha * beta == pytest.approx(1.0)


def test_gg_in_float32():
    """Embeddings of norm 1 in 1,024 dimensions, alpha and beta all over their bounds."""
    residual = drawn(50, 1024, seed=1) / 32
    log_alpha = drawn(50, 1024, seed=2, low=math.log(0.01), high=LOG_ALPHA_BOUNDS[1])
    log_beta = drawn(50, 1024, seed=3, low=LOG_BETA_BOUNDS[0], high=LOG_BETA_BOUNDS[1])
    single = [x.float() for x in (residual, log_alpha, log_beta)]
    double = [x.double() for x in single]
    for function, inputs in ((gg_nll, slice(None)), (gg_log_var, slice(1, None))):
        value, exact = function(*single[inputs]).double(), function(*double[inputs])
        assert ((value - exact).abs() / (1 + exact.abs())).max() < 1e-5


def test_gg_gradcheck():
    inputs = [drawn(4, 3, seed=1), drawn(4, 3, seed=2, low=-3, high=1), drawn(4, 3, seed=3, low=-0.6, high=1.3)]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(gg_nll, inputs)
    assert torch.autograd.gradcheck(gg_log_var, inputs[1:])


@pytest.mark.parametrize("log_alpha", LOG_ALPHA_BOUNDS)
@pytest.mark.parametrize("log_beta", LOG_BETA_BOUNDS)
@pytest.mark.parametrize("residual", [0.0, 1e-30, -1e-9, 1.0, -2.0])
def test_gg_gradients_are_finite_at_the_bounds_in_float32(residual, log_alpha, log_beta):
    inputs = [torch.tensor([x], requires_grad=True) for x in (residual, log_alpha, log_beta)]
    nll = gg_nll(*inputs)
    (nll + gg_log_var(*inputs[1:])).sum().backward()
    assert nll.isfinite().all() and all(x.grad.isfinite().all() for x in inputs)
    assert residual or inputs[0].grad == 0


# ---- ProbVLM

def test_generalised_gaussian_starts_at_the_embedding_itself():
    head, features = GeneralisedGaussian(16), F.normalize(drawn(6, 16).float())
    out = head(features, None)
    centre, log_alpha, log_beta = out.residual.unbind(1)
    assert out.value.shape == (6, head.dim) and torch.equal(centre, features)
    torch.testing.assert_close(log_alpha.exp(), torch.full((6, 16), 0.25))
    torch.testing.assert_close(log_beta.exp(), torch.full((6, 16), 2.0))
    torch.testing.assert_close(out.value.exp(), torch.full((6, 16), 1 / 32))        # of a Gaussian, alpha^2 / 2


def spoilt(size: float, dim=8) -> GeneralisedGaussian:
    """A head whose last layer is no longer zero."""
    torch.manual_seed(0)
    head = GeneralisedGaussian(dim)
    torch.nn.init.normal_(head.layers[-1].weight, std=size)
    return head


def test_generalised_gaussian_stays_within_its_bounds_and_says_its_variance():
    with torch.no_grad():
        out = spoilt(100.0).eval()(drawn(50, 8).float())
    _, log_alpha, log_beta = out.residual.unbind(1)
    for values, bounds in ((log_alpha, LOG_ALPHA_BOUNDS), (log_beta, LOG_BETA_BOUNDS)):
        assert (float(values.min()), float(values.max())) == pytest.approx(bounds)
    assert torch.equal(out.value, gg_log_var(log_alpha, log_beta)) and out.value.isfinite().all()


def test_generalised_gaussian_drops_out_in_training_only():
    head, features = spoilt(0.1), drawn(6, 8).float()
    assert not torch.equal(head(features).residual, head(features).residual)
    head.eval()
    assert torch.equal(head(features).residual, head(features).residual)


def heads_of_pairs(n=3, dim=4):
    """Embeddings and heads of both sides: means (n, dim) twice, stacks (n, 3, dim) twice."""
    means = [F.normalize(drawn(n, dim, seed=k)) for k in (1, 2)]
    stacks = [torch.stack([mean + drawn(n, dim, seed=k) / 10, drawn(n, dim, seed=k + 1, low=-3, high=0),
                           drawn(n, dim, seed=k + 2, low=-0.6, high=1)], 1) for k, mean in zip((10, 20), means)]
    return means, stacks


def probvlm(means, stacks, cross):
    sides = [Side(Embedding(mean), Latent(stack[:, 1], residual=stack)) for mean, stack in zip(means, stacks)]
    return having(ProbVLMLoss(), cross=cross)(*sides, None)


@pytest.mark.parametrize("cross", [1e-4, 1.0])
def test_probvlm_loss_equals_loops(cross):
    means, stacks = heads_of_pairs()
    total = 0.0
    for own, other, stack in ((means[0], means[1], stacks[0]), (means[1], means[0], stacks[1])):
        for i in range(3):
            for d in range(4):
                centre, alpha, beta = float(stack[i, 0, d]), math.exp(stack[i, 1, d]), math.exp(stack[i, 2, d])
                nll, match = (-stats.gennorm.logpdf(float(z[i, d]), beta, centre, alpha) for z in (own, other))
                total += (abs(centre - float(own[i, d])) + 0.05 * nll + cross * match) / 12
    assert float(probvlm(means, stacks, cross)) == pytest.approx(total, rel=1e-9)


def test_probvlm_loss_moves_heads_and_leaves_embeddings_alone():
    means, stacks = heads_of_pairs()
    means, stacks = [x.requires_grad_() for x in means], [x.requires_grad_() for x in stacks]
    probvlm(means, stacks, 1.0).backward()
    assert all(x.grad is None for x in means) and all((x.grad != 0).all() for x in stacks)
    assert torch.autograd.gradcheck(lambda x, y: probvlm(means, [x, y], 0.5), stacks)


def test_probvlm_loss_reaches_every_parameter_of_a_head():
    heads = [spoilt(0.1), GeneralisedGaussian(8)]
    means = [F.normalize(drawn(6, 8, seed=k).float()) for k in (1, 2)]
    ProbVLMLoss()(*(Side(Embedding(m), head(m)) for m, head in zip(means, heads)), None).backward()
    assert all(p.grad.isfinite().all() for head in heads for p in head.parameters())
    assert all((p.grad != 0).any() for p in heads[0].parameters())
    assert all((p.grad != 0).any() for p in heads[1].layers[-1].parameters())       # the rest starts behind zeros


def test_the_variance_of_matches_is_found():
    """Partners at distance .5 in the first half of the dimensions and .05 in the second: log_var follows."""
    torch.manual_seed(0)
    spread = torch.cat([torch.full((4,), 0.5), torch.full((4,), 0.05)])
    captions = drawn(256, 8, seed=1).float()
    images = captions + spread * drawn(256, 8, seed=2).float()
    head, loss = GeneralisedGaussian(8), ProbVLMLoss()
    head.layers[4].p = 0.0
    with torch.no_grad():
        still = Side(Embedding(images), GeneralisedGaussian(8)(images))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        loss(still, Side(Embedding(captions), head(captions)), None).backward()
        optimizer.step()
    found = (head(captions).value.mean(0) / 2).exp()
    assert (found[:4] > 0.3).all() and (found[4:] < 0.1).all()


# ---- small networks of variances

def test_variance_layers_start_at_zero_and_learn():
    layers, features = VarianceLayers(6, [8, 8], 1), drawn(5, 6).float()
    out = layers(features, None)
    assert layers.dim == 1 and out.value.shape == (5, 1) and out.residual is None
    assert (out.value == 0).all()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (layers(features).value - features[:, :1]).square().mean().backward()
        optimizer.step()
    assert all((p.grad != 0).any() for p in layers.parameters())
    assert VarianceLayers(6, [], 4)(features).value.shape == (5, 4)


@pytest.mark.parametrize("head, outputs, width", [("ellipsoidal", 6, 6), ("spherical_logavg", 1, 1)])
def test_variance_layers_on_frozen_embeddings_make_a_tower(head, outputs, width):
    tower = Tower(Precomputed(6), Unchanged(6), VarianceLayers(6, [8], outputs), Head(head, logvar_init=-2.0))
    features = drawn(5, 6).float()
    embedding = tower(features).embedding
    torch.testing.assert_close(embedding.mean, F.normalize(features))
    torch.testing.assert_close(embedding.log_var, torch.full((5, width), -2.0))
    assert all(p.requires_grad for p in tower.parameters())
    assert {name.split(".")[0] for name, _ in tower.named_parameters()} == {"log_var"}    # the points stay
