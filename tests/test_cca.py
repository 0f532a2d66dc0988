"""Regularised CCA: against a generalised eigen-solver, blocks, the command, Flickr8k, bad input."""

import os
import re
import shutil

import numpy as np
import pytest
from scipy import linalg

from methods import cca
from methods.cca import CCA
from tests.helpers import evaluated, refused
from utils import InputError


def views(repeats=1):
    """Two views of one hidden cause, far from the origin; `repeats` rows of the second a row of the first."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(90), repeats)
    cause = rng.normal(size=(90, 3))
    x = cause @ rng.normal(size=(3, 7)) + 0.5 * rng.normal(size=(90, 7)) + 40
    y = cause[owner] @ rng.normal(size=(3, 5)) + 0.7 * rng.normal(size=(len(owner), 5)) - 9
    return x, y, owner


def by_eigenvalues(x, y, eta_x, eta_y):
    """[0 Cxy; Cyx 0] w = s [Rxx 0; 0 Ryy] w, largest s first: s, Wx S, Wy S with unit variances."""
    f = x.shape[1]
    c = np.cov(x.T, y.T, bias=True)

    left = np.zeros_like(c)
    left[:f, f:] = c[:f, f:]
    left[f:, :f] = c[f:, :f]

    right = np.zeros_like(c)
    for part, eta in ((slice(None, f), eta_x), (slice(f, None), eta_y)):
        own = c[part, part]
        right[part, part] = own + eta * np.linalg.eigvalsh(own).max() * np.eye(len(own))

    values, vectors = linalg.eigh(left, right)
    order = np.argsort(-values)[: min(f, y.shape[1])]
    scaled = vectors[:, order] * np.sqrt(2) * values[order]
    return values[order], scaled[:f], scaled[f:]


def same_up_to_sign(a, b, **tolerance):
    np.testing.assert_allclose(a * np.sign((a * b).sum(0)), b, **tolerance)


@pytest.mark.parametrize("eta_x,eta_y", [(0.0, 0.0), (1e-4, 1e-4), (0.3, 0.02)])
def test_equals_a_generalised_eigen_solver(eta_x, eta_y):
    x, y, owner = views()
    fitted = CCA(x, y, owner).solve(4, eta_x, eta_y)
    values, *maps = (w[..., :4] for w in by_eigenvalues(x, y, eta_x, eta_y))
    np.testing.assert_allclose(fitted.correlations, values, rtol=1e-9)

    for side, rows in enumerate((x, y)):
        same_up_to_sign(fitted.maps[side], maps[side], rtol=1e-6, atol=1e-9)
        for dim in (4, 2):
            projected = (rows - rows.mean(0)) @ maps[side][:, :dim]
            expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
            same_up_to_sign(fitted.project(side, rows, 90, dim), expected, atol=1e-8)

    if eta_x == eta_y == 0:  # then they are the correlations of the projected rows
        for k in range(4):
            a, b = (rows @ fitted.maps[side][:, k] for side, rows in enumerate((x, y)))
            assert np.corrcoef(a, b)[0, 1] == pytest.approx(fitted.correlations[k], abs=1e-9)


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_and_owners_change_nothing(block, monkeypatch):
    x, y, owner = views(repeats=3)
    whole = CCA(x[owner], y, np.arange(len(y))).solve(4, 1e-3, 1e-2)
    order = np.random.default_rng(1).permutation(len(y))
    monkeypatch.setattr(cca, "FEATURE_ROWS_PER_BLOCK", block)
    other = CCA(x, y[order], owner[order]).solve(4, 1e-3, 1e-2)
    np.testing.assert_allclose(other.correlations, whole.correlations, rtol=1e-9)
    for side, rows in enumerate((x, y)):
        projected = other.project(side, rows, len(rows))
        same_up_to_sign(projected, whole.project(side, rows, len(rows)), atol=1e-7)


# ---- the command


@pytest.fixture
def fit(demo_path, tmp_path, monkeypatch, capsys):
    """fit(*words, output=FILE): what the command prints. The demo lies here twice, as "own" and as "other", with each
    eighth of its 960 features, since a solution takes the cube of their number."""
    for name in ("own", "other"):
        shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / name)
        for path in (tmp_path / name).glob("*_ims.npy"):
            np.save(path, np.load(path)[:, ::8])
    monkeypatch.chdir(tmp_path)

    def call(*words, output="e.npz"):
        cca.main([*DATA, "--output", output, *words])
        return capsys.readouterr().out

    return call


DATA = ["--data_path", ".", "--data_name", "own", "--text", "bag"]


def test_the_command_writes_embeddings_that_evaluate_to_its_rsum(fit):
    shown = fit("--dim", "8", "--eta_image", "0.01")
    rsum = float(re.search(r"rsum ([\d.]+)", shown)[1])

    found = evaluated("--embeddings", "e.npz", *DATA[:4], "--output", "r.json")

    assert found["protocols"]["full"]["rsum"] == pytest.approx(rsum, abs=0.06)
    assert found["similarity"] == "cosine"
    assert np.load("e.npz")["image_mean"].shape == (24, 8)


def test_maps_of_one_data_set_embed_another(fit, capsys):
    fit("--split", "test")
    assert "other test: rsum" in fit("--test_name", "other", output="other.npz")
    own = np.load("e.npz")
    other = np.load("other.npz")
    for name in ("image_mean", "caption_mean"):
        assert np.array_equal(own[name], other[name])

    np.save("other/test_bag.npy", own["caption_mean"][:, :3])
    message = (
        r"test_bag.npy has features of 3 numbers, .*train_bag.npy of \d+; "
        "extract both with the same"
    )
    refused(capsys, cca.main, [*DATA, "--test_name", "other", "--output", "no.npz"], message)


def test_auto_takes_the_best_of_its_table(fit):
    out = fit("--eta_image", "auto", "--split", "dev")
    table = re.findall(r"eta_image (\S+), eta_text (\S+), dim (\d+): dev rsum ([\d.]+)", out)
    chosen = re.search(r"\ndim (\d+), eta_image (\S+), eta_text (\S+), corr", out)
    dim, eta_x, eta_y = chosen.groups()
    assert len(table) == 16
    assert len(set(table)) == 16
    assert dim == "64"
    best = max(float(row[3]) for row in table)
    assert (eta_x, eta_y, dim, f"{best:.1f}") in table
    assert f"own dev: rsum {best:.1f}" in out

    out = fit("--dim", "auto", "--eta_image", "0.1", "--overwrite")
    assert "\ndim 64, eta_image 0.1, eta_text 0.1" in out


@pytest.mark.parametrize(
    "words,message",
    [
        (["--eta_image", "0"], "'0' is not auto, or a number above 0 and at most 1e6"),
        (
            ["--dim", "999"],
            r"999 directions cannot be had from \d+ and \d+ features; give --dim \d+ or less",
        ),
        (["--text", "hglmm"], "there is no file .*train_hglmm.npy"),
        (["--split", "west"], "west_caps.txt"),
    ],
)
@pytest.mark.usefixtures("fit")
def test_the_command_refuses_in_a_sentence(words, message, capsys):
    refused(capsys, cca.main, [*DATA, "--output", "e.npz", *words], message)
    assert not os.path.exists("e.npz")


def test_a_constant_side_is_refused():
    x, _, owner = views()
    sentence = "cannot be inverted with eta 0.0001 and 0.0001 .*; give a larger --eta_image"
    with pytest.raises(InputError, match=sentence):
        CCA(x, np.ones((90, 5)), owner).solve(2, 1e-4, 1e-4)
