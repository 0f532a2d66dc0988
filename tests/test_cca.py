"""Regularised CCA: against a generalised eigen-solver, blocks, words as features, the command, Flickr8k, bad input."""
import os
import re

import numpy as np
import pytest
from scipy import linalg, sparse

import evaluate
from cli import InputError
from data import Features, NoImages, Split, read_split
from methods import cca
from methods.cca import CCA, WordRows
from metrics import retrieval


def views(n=90, f=7, g=5, seed=0, repeats=1):
    """Two views of one hidden cause, far from the origin; with `repeats`, so many rows of the second a row of the
    first."""
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(n, 3))
    x = cause @ rng.normal(size=(3, f)) + 0.5 * rng.normal(size=(n, f)) + 40
    owner = np.repeat(np.arange(n), repeats)
    y = cause[owner] @ rng.normal(size=(3, g)) + 0.7 * rng.normal(size=(len(owner), g)) - 9
    return x, y, owner


def by_eigenvalues(x, y, eta_x, eta_y):
    """The generalised eigenproblem [0 Cxy; Cyx 0] w = s [Rxx 0; 0 Ryy] w, largest s first: s, Wx, Wy with unit
    variances."""
    f, c = x.shape[1], np.cov(x.T, y.T, bias=True)
    left, right = np.zeros_like(c), np.zeros_like(c)
    left[:f, f:], left[f:, :f] = c[:f, f:], c[f:, :f]
    for part, eta in ((slice(None, f), eta_x), (slice(f, None), eta_y)):
        own = c[part, part]
        right[part, part] = own + eta * np.linalg.eigvalsh(own).max() * np.eye(len(own))
    values, vectors = linalg.eigh(left, right)
    order = np.argsort(-values)[:min(f, y.shape[1])]
    return values[order], vectors[:f, order] * np.sqrt(2), vectors[f:, order] * np.sqrt(2)


def fit(x, y, dim, eta_x=1e-4, eta_y=1e-4) -> CCA:
    return CCA().collect(x, y, np.arange(len(y))).solve(dim, eta_x, eta_y)


def same_up_to_sign(a, b, **tolerance):
    np.testing.assert_allclose(a * np.sign((a * b).sum(0)), b, **tolerance)


@pytest.mark.parametrize("eta_x,eta_y", [(0.0, 0.0), (1e-4, 1e-4), (0.3, 0.02)])
def test_equals_a_generalised_eigen_solver(eta_x, eta_y):
    x, y, _ = views()
    fitted = fit(x, y, 4, eta_x, eta_y)
    values, wx, wy = (w[..., :4] for w in by_eigenvalues(x, y, eta_x, eta_y))
    np.testing.assert_allclose(fitted.correlations, values, rtol=1e-9)
    for side, rows, w in ((0, x, wx), (1, y, wy)):
        same_up_to_sign(fitted.maps[side], w, rtol=1e-6, atol=1e-9)
        projected = (rows - rows.mean(0)) @ w * values
        same_up_to_sign(fitted.project(side, rows), projected / np.linalg.norm(projected, axis=1, keepdims=True),
                        atol=1e-8)
    if eta_x == eta_y == 0:                     # then they are the correlations of the projected rows
        for k in range(4):
            a, b = (rows @ fitted.maps[side][:, k] for side, rows in enumerate((x, y)))
            assert np.corrcoef(a, b)[0, 1] == pytest.approx(fitted.correlations[k], abs=1e-9)


def test_where_the_fast_svd_fails_the_slow_one_finds_the_same(monkeypatch):
    """The demo's matrices are such, by the number of threads."""
    x, y, _ = views()
    found, fast = fit(x, y, 4), linalg.svd

    def fails(x, full_matrices, lapack_driver="gesdd"):
        if lapack_driver == "gesdd":
            raise linalg.LinAlgError("SVD did not converge")
        return fast(x, full_matrices=full_matrices, lapack_driver=lapack_driver)
    monkeypatch.setattr(linalg, "svd", fails)
    again = fit(x, y, 4)
    np.testing.assert_allclose(again.correlations, found.correlations, rtol=1e-12)
    for ours, theirs in zip(again.maps, found.maps):
        same_up_to_sign(ours, theirs, rtol=1e-6, atol=1e-9)


def test_regularisation_lowers_correlations_and_first_directions_are_those_of_a_smaller_fit():
    x, y, _ = views(n=12, f=7, g=5)                                             # few rows: nearly all can be correlated
    free, held = (fit(x, y, 5, eta, eta) for eta in (1e-6, 0.1))
    assert free.correlations[0] > 0.99 and (held.correlations < free.correlations).all()
    assert (np.diff(held.correlations) <= 0).all()
    np.testing.assert_allclose(np.abs(held.project(0, x, 2)), np.abs(fit(x, y, 2, 0.1, 0.1).project(0, x)),
                               atol=1e-10)


@pytest.mark.parametrize("repeats", [1, 3])
def test_blocks_sparse_rows_and_owners_change_nothing(repeats, tmp_path, monkeypatch):
    x, y, owner = views(repeats=repeats)
    y = np.where(y > y.mean(0), y - y.min(0), 0)
    whole = fit(x[owner], y, 4, 1e-3, 1e-2)
    np.save(tmp_path / "x.npy", x)
    mapped, order = np.load(tmp_path / "x.npy", mmap_mode="r"), np.random.default_rng(1).permutation(len(y))
    for rows in (y, sparse.csr_array(y)):
        for block in (1, 7, 1000):
            monkeypatch.setattr(cca, "BLOCK", block)
            other = CCA().collect(mapped, rows[order], owner[order]).solve(4, 1e-3, 1e-2)
            for a, b in ((other.xx, whole.xx), (other.yy, whole.yy), (other.yx, whole.yx),
                         (other.correlations, whole.correlations), *zip(other.means, whole.means)):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
            for side, given in ((0, mapped), (1, rows)):
                z = other.project(side, given)
                same_up_to_sign(z, whole.project(side, x if side == 0 else y), atol=1e-7)
                np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1)


def split_of(*captions) -> Split:
    return Split("train", NoImages(len(captions)), list(captions), np.arange(len(captions)), "caps.txt")


def test_tfidf_equals_a_loop():
    train = split_of("a dog runs", "a dog and a dog", "the cat", "a cat runs", "rare")
    make = WordRows(train, threshold=2)
    rows = make(split_of("a dog a", "cat", "unknown words", "a rare cat")).toarray()
    assert set(make.index) == {"a", "dog", "runs", "cat"}
    seen = {"a": 3, "dog": 2, "runs": 2, "cat": 2}
    for row, words in zip(rows, (["a", "dog", "a"], ["cat"], [], ["a", "cat"])):
        expected = np.zeros(4)
        for word in words:
            expected[make.index[word]] += np.log(5 / seen[word])
        np.testing.assert_allclose(row, expected / max(np.linalg.norm(expected), 1e-12))
    with pytest.raises(InputError, match="no word stands 9 times"):
        WordRows(train, threshold=9)


# ---- the command

def test_command_on_demo_data_is_evaluated(demo_path, tmp_path, capsys):
    words = ["--data_path", demo_path, "--data_name", "demo_precomp", "--dim", "8", "--output", str(tmp_path / "e.npz")]
    cca.main([*words, "--eta_image", "0.01"])
    told = float(re.search(r"rsum ([\d.]+)", capsys.readouterr().out)[1])
    evaluate.main(["--embeddings", str(tmp_path / "e.npz"), "--data_path", demo_path, "--data_name", "demo_precomp",
                   "--output", str(tmp_path / "r.json")])
    assert f" {told:.1f}\n" in capsys.readouterr().out
    stored = np.load(tmp_path / "e.npz")
    test = read_split(demo_path, "demo_precomp", "test")
    np.testing.assert_array_equal(stored["caption_image"], test.caption_image)
    assert stored["image_mean"].shape == (len(test.images), 8) and str(stored["similarity"]) == "cosine"
    scores = stored["image_mean"] @ stored["caption_mean"].T
    assert retrieval(scores, test.caption_image)["rsum"] == pytest.approx(told, abs=0.06)


def test_maps_of_one_data_set_embed_another(demo_path, tmp_path, capsys):
    """The other set here: the demo's, with new names and half of its images without one known word."""
    source, other = os.path.join(demo_path, "demo_precomp"), tmp_path / "other"
    for name in ("train", "test"):
        for folder in (tmp_path / "own", other):
            os.makedirs(folder, exist_ok=True)
            for end in ("caps.txt", "ims.npy"):
                os.symlink(os.path.join(source, f"{name}_{end}"), folder / f"{name}_{end}")
    captions = (other / "test_caps.txt").read_text().splitlines()
    (other / "test_caps.txt").unlink()
    (other / "test_caps.txt").write_text("".join(f"{'zyx' if m % 10 < 5 else c}\n" for m, c in enumerate(captions)))
    words = ["--data_path", str(tmp_path), "--data_name", "own", "--dim", "8"]
    cca.main([*words, "--output", str(tmp_path / "own.npz")])
    assert "unknown" not in capsys.readouterr().out
    cca.main([*words, "--test_name", "other", "--output", str(tmp_path / "other.npz")])
    out, known = capsys.readouterr().out, np.arange(len(captions)) % 10 >= 5
    assert f"{(~known).sum():,} captions have no known word" in out
    assert f"other test, {len(captions) // 5:,} images" in out
    own, across = np.load(tmp_path / "own.npz"), np.load(tmp_path / "other.npz")
    np.testing.assert_array_equal(own["image_mean"], across["image_mean"])
    np.testing.assert_array_equal(own["caption_mean"][known], across["caption_mean"][known])
    blank = across["caption_mean"][~known]                                          # all from a row of zeros
    assert np.abs(own["caption_mean"][~known] - blank).max() > 0.1 and np.ptp(blank, 0).max() == 0

    (other / "test_ims.npy").unlink()
    np.save(other / "test_ims.npy", np.ones((len(captions) // 5, 3), np.float32))
    with pytest.raises(SystemExit,
                       match=r"other test has features of 3 numbers, own train of \d+; extract both with the same"):
        cca.main([*words, "--test_name", "other", "--output", str(tmp_path / "no.npz")])
    for folder, extractor in ((tmp_path / "own", "vgg19 fc7"), (other, "resnet152 pooled")):
        (folder / "features.json").write_text(f'{{"ims": "{extractor}"}}')
    with pytest.raises(SystemExit, match="made by 'resnet152 pooled', own was trained on those of 'vgg19 fc7'"):
        cca.main([*words, "--test_name", "other", "--output", str(tmp_path / "no.npz")])
    assert not os.path.exists(tmp_path / "no.npz")


def test_auto_takes_the_best_of_its_table(demo_path, tmp_path, capsys):
    words = ["--data_path", demo_path, "--data_name", "demo_precomp", "--output", str(tmp_path / "e.npz")]
    cca.main([*words, "--eta_image", "auto", "--split", "dev"])
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines() if re.match(r" +[\d.]+ +[\d.]+ +", line)]
    dims = [int(dim) for dim in re.findall(r"dim (\d+)", out.splitlines()[1])]
    assert len(table) == 16 and dims and all(len(row) == 2 + len(dims) for row in table)
    best = max(float(value) for row in table for value in row[2:])
    dim, eta_x, eta_y = re.search(r"dim (\d+), eta_image ([\d.]+), eta_text ([\d.]+) \(chosen on dev\)", out).groups()
    row = next(row for row in table if row[:2] == [eta_x, eta_y])
    assert float(row[2 + dims.index(int(dim))]) == best == float(re.findall(r"rsum ([\d.]+)", out)[-1])
    cca.main([*words, "--dim", "8", "--eta_image", "auto", "--overwrite"])
    assert capsys.readouterr().out.count("dim 8") == 2
    cca.main([*words, "--dim", "auto", "--eta_image", "0.1", "--overwrite"])
    assert "eta_image 0.1, eta_text 0.1 (chosen on dev)" in capsys.readouterr().out


def test_stored_features_of_captions(demo_path, tmp_path, capsys):
    for name in ("train", "test"):
        split = read_split(demo_path, "demo_precomp", name)
        for end in ("caps.txt", "ims.npy"):
            os.makedirs(tmp_path / "own", exist_ok=True)
            os.symlink(os.path.join(demo_path, "demo_precomp", f"{name}_{end}"), tmp_path / "own" / f"{name}_{end}")
        rows = split.images.gather(split.caption_image).numpy()[:, :20]             # the image itself: a perfect match
        np.save(tmp_path / "own" / f"{name}_same.npy", rows)
        np.save(tmp_path / "own" / f"{name}_short.npy", rows[1:])
    words = ["--data_path", str(tmp_path), "--data_name", "own", "--output", str(tmp_path / "e.npz")]
    cca.main([*words, "--text", "same"])                    # without --dim: as many directions as there are features
    assert " dim 20," in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"train_short.npy has \d+ rows for \d+ captions; there must be one for each"):
        cca.main([*words, "--text", "short", "--overwrite"])


def test_flickr8k(real_path, tmp_path, capsys):
    """The sum of recalls that docs/findings.md gives for Klein's regularisation."""
    cca.main(["--data_path", real_path, "--data_name", "f8k_precomp", "--output", str(tmp_path / "e.npz")])
    assert float(re.search(r"rsum ([\d.]+)", capsys.readouterr().out)[1]) == pytest.approx(222.7, abs=0.5)


# ---- bad input

@pytest.mark.parametrize("change,message", [
    (dict(dim=6), "6 directions cannot be had from 7 and 5 features; give from 1 to 5"),
    (dict(dim=0), "0 directions cannot be had"),
    (dict(y=np.ones((90, 5))), r"5 features cannot be inverted with eta 0.0001 \(text side, y\); give a larger eta"),
    (dict(y=np.ones((90, 5)) * np.arange(90)[:, None], eta_y=0.0, dim=2), r"inverted with eta 0 \(text side, y\)"),
    (dict(x=np.full((90, 7), np.nan)), "x or y holds NaN or infinity"),
])
def test_fit_refuses_in_a_sentence(change, message):
    x, y, _ = views()
    with pytest.raises(InputError, match=message):
        fit(**{"x": x, "y": y, "dim": 2, **change})


@pytest.mark.parametrize("words,message", [
    (["--eta_image", "0"], "'0' is out of range; give auto, or a number above 0 and at most 1e6"),
    (["--eta_image", "much"], "'much' is not a finite number"),
    (["--dim", "0"], "'0' is not a whole number of at least 1"),
    (["--dim", "5000"], "5000 directions cannot be had"),
    (["--text", "hglmm"], "there is no file .*train_hglmm.npy; --text takes tfidf, or the NAME of"),
    (["--split", "west"], "west_caps.txt"),
    (["--data_name", "demo"], "CCA takes precomputed features, .*photos"),
])
def test_command_refuses_in_a_sentence(words, message, demo_path, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        cca.main(["--data_path", demo_path, "--data_name", "demo_precomp", "--output", str(tmp_path / "e.npz"), *words])
    said = capsys.readouterr().err + str(stop.value.code)
    assert stop.value.code not in (0, None) and re.search(message, said), said
    assert not os.path.exists(tmp_path / "e.npz")


def test_rows_average_regions_and_normalise(tmp_path):
    features = np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32)
    np.save(tmp_path / "f.npy", features)
    rows = cca.FeatureRows(Features(str(tmp_path / "f.npy")), 6)
    mean = features.mean(1)
    np.testing.assert_allclose(rows[np.arange(6)], mean / np.linalg.norm(mean, axis=1, keepdims=True), rtol=1e-5)
