"""Mixtures, Fisher vectors, PCA and ICA beside slow twins, numerical gradients and data of known truth."""

from dataclasses import asdict

import numpy as np
import pytest
from scipy.special import logsumexp

from cli import InputError
from features.hglmm import HGLMM, fit_ica, fit_pca, project
from tests.references import fisher_vectors


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
    for w, location, scale, laplacian in zip(
        mixture.weight, mixture.location, mixture.scale, mixture.laplacian
    ):
        p = w
        for value, m, s, is_laplacian in zip(x, location, scale, laplacian):
            p *= (
                np.exp(-abs(value - m) / s) / (2 * s)
                if is_laplacian
                else np.exp(-((value - m) ** 2) / (2 * s * s)) / np.sqrt(2 * np.pi * s * s)
            )
        total += p
    return np.log(total)


def test_likelihood_and_posterior_are_those_of_the_formula_and_no_step_lowers_it():
    """Also where the floor of the scales holds: a third of the rows are one repeated word."""
    x = data()
    x[::3] = x[0]
    mixtures = [HGLMM.fit(x, np.ones(len(x)), 4, n) for n in range(12)]
    mixture = mixtures[-1]
    assert mixture.laplacian.any() and not mixture.laplacian.all()
    assert (np.diff([log_likelihood(m, x).mean() for m in mixtures]) > -1e-9).all()
    np.testing.assert_allclose(
        log_likelihood(mixture, x[:20]), [slow_log_likelihood(mixture, row) for row in x[:20]]
    )
    one = [
        HGLMM(
            np.ones(1),
            mixture.location[k : k + 1],
            mixture.scale[k : k + 1],
            mixture.laplacian[k : k + 1],
        )
        for k in range(4)
    ]
    parts = np.stack([w * np.exp(log_likelihood(m, x)) for w, m in zip(mixture.weight, one)], 1)
    np.testing.assert_allclose(
        mixture.posterior(x), parts / parts.sum(1, keepdims=True), atol=1e-12
    )


def test_a_known_mixture_is_found():
    mixture = HGLMM.fit(data(20000), np.ones(20000), 2, 30)
    order = np.argsort(mixture.location[:, 0])
    np.testing.assert_allclose(mixture.weight[order], [0.6, 0.4], atol=0.02)
    np.testing.assert_allclose(mixture.location[order], [[0] * 4, [8] * 4], atol=0.05)
    np.testing.assert_allclose(mixture.scale, 1, atol=0.05)
    assert mixture.laplacian.tolist() == [[False, False, True, True]] * 2


def test_counts_are_repeated_rows():
    x, count = data(80), np.random.default_rng(1).integers(1, 6, 80)
    repeated, counted = (
        asdict(HGLMM.fit(*rows, 1, 2))
        for rows in ((x.repeat(count, 0), np.ones(count.sum())), (x, count))
    )
    for name, value in counted.items():
        np.testing.assert_allclose(value, repeated[name], err_msg=name)


def test_fisher_vectors_are_normalised_numerical_gradients():
    """Each entry: d (mean log-likelihood) / d parameter, by differences, over the root of the information."""
    x, step = data(), 1e-6
    mixture = HGLMM.fit(x, np.ones(len(x)), 3, 3)
    words = x[:7]
    got = fisher_vectors(mixture, [words, words[:0], words[:2]])
    assert got.shape == (3, 2 * 3 * 4) and got.dtype == np.float32 and not got[1].any()
    got = got[0].reshape(2, 3, 4)
    for which, name in enumerate(("location", "scale")):
        for k in range(3):
            for d in range(4):
                moved = []
                for sign in (1, -1):
                    arrays = {key: value.copy() for key, value in asdict(mixture).items()}
                    arrays[name][k, d] += sign * step
                    moved.append(log_likelihood(HGLMM(**arrays), words).mean())
                gaussian_scale = which == 1 and not mixture.laplacian[k, d]
                information = (
                    mixture.weight[k] / mixture.scale[k, d] ** 2 * (2 if gaussian_scale else 1)
                )
                expected = (moved[0] - moved[1]) / (2 * step) / np.sqrt(information)
                assert got[which, k, d] == pytest.approx(expected, rel=1e-4, abs=1e-6), (name, k, d)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_pca(shape):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * 0.7 ** np.arange(shape[1]) + 5
    mean, axes = fit_pca(x, 4)
    value, vector = np.linalg.eigh(np.cov(x.T))
    got = project(x, mean, axes)
    np.testing.assert_allclose(axes @ axes.T, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(got.var(0, ddof=1), value[::-1][:4], rtol=1e-6)
    np.testing.assert_allclose(np.abs((axes * vector[:, ::-1][:, :4].T).sum(1)), 1, atol=1e-6)
    with pytest.raises(
        InputError, match="12 principal axes of" if shape[0] == 12 else "13 principal axes of"
    ):
        fit_pca(x, 12 if shape[0] == 12 else 13)


def test_ica_unmixes():
    rng = np.random.default_rng(0)
    sources = np.stack(
        [rng.laplace(size=5000), rng.uniform(-1, 1, 5000), rng.exponential(size=5000)], 1
    )
    x = sources @ rng.standard_normal((3, 3)) + 2
    found = project(x, *fit_ica(x, 3, np.ones(5000)))
    np.testing.assert_allclose(np.cov(found.T), np.eye(3), atol=1e-3)
    match = np.abs(np.corrcoef(found.T, sources.T)[:3, 3:])
    assert (match.max(0) > 0.98).all() and sorted(match.argmax(0)) == [0, 1, 2]
    with pytest.raises(
        InputError, match="4 independent components of word vectors that span 3 dimensions"
    ):
        fit_ica(np.concatenate([x, x[:, :1]], 1), 4, np.ones(5000))
