"""Mixtures, Fisher vectors, PCA and ICA beside slow twins, numerical gradients and data of known truth."""

from dataclasses import asdict

import numpy as np
import pytest
from scipy.special import logsumexp

from features.hglmm import HGLMM, fit_ica, fit_pca, project
from tests.references import fisher_vectors
from utils import InputError


def data(n=300, d=4, seed=0):
    """Two clusters, the first half of their dimensions Gaussian, the others Laplacian."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(0, 1, (n, d // 2)), rng.laplace(0, 1, (n, d - d // 2))], 1)
    return x + np.where(rng.random(n) < 0.4, 8.0, 0.0)[:, None]


def log_likelihood(mixture, x):
    """log p(x) in nats: (N, D) -> (N,)."""
    return logsumexp(mixture.joint(x), 1)


def slow_log_likelihood(mixture, x):
    """log p of one x (D,), as the class's docstring has it."""
    total = 0
    for k, weight in enumerate(mixture.weight):
        p = weight
        for d, value in enumerate(x):
            m = mixture.location[k, d]
            s = mixture.scale[k, d]
            if mixture.laplacian[k, d]:
                p *= np.exp(-abs(value - m) / s) / (2 * s)
            else:
                p *= np.exp(-((value - m) ** 2) / (2 * s * s)) / np.sqrt(2 * np.pi * s * s)
        total += p
    return np.log(total)


def test_likelihood_and_posterior_are_those_of_the_formula_and_no_step_lowers_it():
    """Also where the floor of the scales holds: a third of the rows are one repeated word."""
    x = data()
    x[::3] = x[0]
    mixtures = [HGLMM.fit(x, np.ones(len(x)), 4, n) for n in range(12)]
    mixture = mixtures[-1]
    assert mixture.laplacian.any()
    assert not mixture.laplacian.all()

    likelihood = [log_likelihood(m, x).mean() for m in mixtures]
    assert (np.diff(likelihood) > -1e-9).all()

    slow = [slow_log_likelihood(mixture, row) for row in x[:20]]
    np.testing.assert_allclose(log_likelihood(mixture, x[:20]), slow)

    parts = []
    for k in range(4):
        one = slice(k, k + 1)
        component = HGLMM(
            np.ones(1), mixture.location[one], mixture.scale[one], mixture.laplacian[one]
        )
        parts.append(mixture.weight[k] * np.exp(log_likelihood(component, x)))
    parts = np.stack(parts, 1)
    expected = parts / parts.sum(1, keepdims=True)
    np.testing.assert_allclose(mixture.posterior(x), expected, atol=1e-12)


def test_a_known_mixture_is_found():
    mixture = HGLMM.fit(data(20000), np.ones(20000), 2, 30)

    order = np.argsort(mixture.location[:, 0])
    first, second = mixture.location[order]
    np.testing.assert_allclose(mixture.weight[order], [0.6, 0.4], atol=0.02)
    np.testing.assert_allclose(first, 0, atol=0.05)
    np.testing.assert_allclose(second, 8, atol=0.05)
    np.testing.assert_allclose(mixture.scale, 1, atol=0.05)
    for laplacian in mixture.laplacian.tolist():
        assert laplacian == [False, False, True, True]


def test_counts_are_repeated_rows():
    x = data(80)
    count = np.random.default_rng(1).integers(1, 6, 80)

    repeated = asdict(HGLMM.fit(x.repeat(count, 0), np.ones(count.sum()), 1, 2))
    counted = asdict(HGLMM.fit(x, count, 1, 2))

    for name, value in counted.items():
        np.testing.assert_allclose(value, repeated[name], err_msg=name)


def test_fisher_vectors_are_normalised_numerical_gradients():
    """Each entry: d (mean log-likelihood) / d parameter, by differences, over the root of the information."""
    x = data()
    mixture = HGLMM.fit(x, np.ones(len(x)), 3, 3)
    words = x[:7]

    got = fisher_vectors(mixture, [words, words[:0], words[:2]])

    assert got.shape == (3, 2 * 3 * 4)
    assert got.dtype == np.float32
    assert not got[1].any()

    step = 1e-6
    got = got[0].reshape(2, 3, 4)

    for which, name in enumerate(("location", "scale")):
        for k in range(3):
            for d in range(4):
                moved = []
                for sign in (1, -1):
                    arrays = {key: value.copy() for key, value in asdict(mixture).items()}
                    arrays[name][k, d] += sign * step
                    moved.append(log_likelihood(HGLMM(**arrays), words).mean())
                information = mixture.weight[k] / mixture.scale[k, d] ** 2
                if name == "scale" and not mixture.laplacian[k, d]:
                    information *= 2
                expected = (moved[0] - moved[1]) / (2 * step) / np.sqrt(information)
                assert got[which, k, d] == pytest.approx(expected, rel=1e-4, abs=1e-6), (name, k, d)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_pca(shape):
    """Axes and variances are those of the covariance; there are fewer than rows, and at most D."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * 0.7 ** np.arange(shape[1]) + 5

    mean, axes = fit_pca(x, 4)
    got = project(x, mean, axes)

    value, vector = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(axes @ axes.T, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(got.var(0, ddof=1), value[::-1][:4], rtol=1e-6)
    np.testing.assert_allclose(np.abs((axes * vector[:, ::-1][:, :4].T).sum(1)), 1, atol=1e-6)

    too_many = 13
    if shape[0] == 12:  # rows, from which their mean is taken
        too_many = 12
    with pytest.raises(InputError, match=f"principal axes, not {too_many}"):
        fit_pca(x, too_many)


def test_ica_unmixes():
    rng = np.random.default_rng(0)
    laplace = rng.laplace(size=5000)
    uniform = rng.uniform(-1, 1, 5000)
    exponential = rng.exponential(size=5000)
    sources = np.stack([laplace, uniform, exponential], 1)
    x = sources @ rng.standard_normal((3, 3)) + 2

    found = project(x, *fit_ica(x, 3, np.ones(5000)))

    np.testing.assert_allclose(np.cov(found.T), np.eye(3), atol=1e-3)
    match = np.abs(np.corrcoef(found.T, sources.T)[:3, 3:])
    assert (match.max(0) > 0.98).all()
    assert sorted(match.argmax(0)) == [0, 1, 2]

    of_rank_3 = np.concatenate([x, x[:, :1]], 1)
    message = "word vectors that span 3 dimensions have no 4 independent components"
    with pytest.raises(InputError, match=message):
        fit_ica(of_rank_3, 4, np.ones(5000))
