"""Features of captions as users write them: each kind against its definition, and every refusal with its sentence."""
import json
import os
import shutil

import numpy as np
import pytest

from cli import InputError
from data import read_split
from features import captions as command
from features import hglmm
from features.word_vectors import train_vectors, write_vectors
from tests.helpers import refused, vectors_in
from tests.references import fisher_vectors


@pytest.fixture
def folder(tmp_path, demo_path):
    """A data path that may be written to, with demo captions and word vectors of 12 values learned from them."""
    shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / "x")
    os.remove(tmp_path / "x" / "features.json")             # as of features from elsewhere
    os.symlink(os.path.join(demo_path, "demo"), tmp_path / "demo")
    words, vectors = train_vectors(read_split(demo_path, "demo_precomp", "train").words, 12)
    write_vectors(str(tmp_path / "v.txt"), words, vectors)
    return tmp_path


def captions(folder, *words):
    command.main(["--data_path", str(folder), "--data_name", "x", *map(str, words)])


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_mean_of_word_vectors(folder):
    captions(folder, "--name", "w2v", "--word_vectors", folder / "v.txt")
    vector = vectors_in(folder / "v.txt")
    for name in ("train", "dev", "test"):
        split, rows = read_split(str(folder), "x", name, dev_images=0), np.load(folder / "x" / f"{name}_w2v.npy")
        assert rows.shape == (len(split.captions), 12) and rows.dtype == np.float32
        for m in (0, len(rows) - 1):
            expected = unit(np.mean([unit(vector[word]) for word in split.words[m] if word in vector], 0))
            np.testing.assert_allclose(rows[m], expected, atol=1e-5)
    made = json.loads((folder / "x" / "features.json").read_text())
    assert made["w2v"].startswith("mean, vectors v.txt sha256:")
    captions(folder, "--kind", "tfidf", "--vocab_threshold", 1)
    assert set(json.loads((folder / "x" / "features.json").read_text())) == {"w2v", "tfidf"}


def test_tfidf(folder):
    captions(folder, "--kind", "tfidf", "--vocab_threshold", 2)
    train, split = (read_split(str(folder), "x", name) for name in ("train", "test"))
    stored = np.load(folder / "x" / "tfidf_model.npz")
    kept = stored["words"].tolist()
    having = [sum(word in caption for caption in train.words) for word in kept]
    row = np.array([split.words[3].count(word) for word in kept]) * np.log(len(train.captions) / np.array(having))
    np.testing.assert_allclose(np.load(folder / "x" / "test_tfidf.npy")[3], unit(row), atol=1e-6)
    assert all(sum(caption.count(word) for caption in train.words) >= 2 for word in kept)


@pytest.mark.parametrize("ica", [False, True])
def test_fisher_vectors_follow_the_recipe(folder, capsys, ica):
    captions(folder, "--kind", "hglmm", "--word_vectors", folder / "v.txt", "--n_clusters", 3, "--pca", 7,
             *["--ica"] * ica)
    assert "mixture: mean log-likelihood" in capsys.readouterr().out
    stored = dict(np.load(folder / "x" / "hglmm_model.npz"))
    split, rows = read_split(str(folder), "x", "test"), np.load(folder / "x" / "test_hglmm.npy")
    vector = vectors_in(folder / "v.txt")
    words = np.stack([unit(vector[word]) for word in split.words[3] if word in vector])
    if ica:
        words = unit((words - stored["ica_mean"]) @ stored["ica_axes"].T)
    mixture = hglmm.HGLMM(*(stored[name] for name in ("weight", "location", "scale", "laplacian")))
    expected = hglmm.signed_square_root(fisher_vectors(mixture, [10 * words]))
    np.testing.assert_allclose(rows[3], ((expected - stored["pca_mean"]) @ stored["pca_axes"].T)[0], atol=1e-5)
    line = json.loads((folder / "x" / "features.json").read_text())["hglmm"]
    assert line.startswith(f"hglmm 3 clusters, {'ica 12, ' * ica}pca 7, vectors v.txt "
                           "sha256:") and ", fitted sha256:" in line
    assert np.load(folder / "x" / "train_hglmm.npy").std(0).argmax() == 0                           # the first axis


def test_a_fitted_model_serves_another_data_set(folder, capsys):
    vectors = ["--word_vectors", folder / "v.txt"]
    for kind, words in (("hglmm", [*vectors, "--n_clusters", 2]), ("tfidf", ["--vocab_threshold", 1])):
        captions(folder, "--kind", kind, *words)
        if not (folder / "y").exists():
            (folder / "y").mkdir()
            for name in ("test_ims.npy", "test_caps.txt"):
                shutil.copy(folder / "x" / name, folder / "y" / name)
        captions(folder, "--data_name", "y", "--fitted", folder / "x" / f"{kind}_model.npz",
                 *vectors[:2 * (kind == "hglmm")])
        same = [np.load(folder / name / f"test_{kind}.npy") for name in "xy"]
        np.testing.assert_allclose(*same, atol=1e-6)
        lines = [json.loads((folder / name / "features.json").read_text())[kind] for name in "xy"]
        assert lines[0] == lines[1]
    write_vectors(str(folder / "short.txt"), ["a", "red"], np.eye(2, dtype=np.float32))
    words = ["--data_name", "y", "--word_vectors", folder / "short.txt", "--fitted", folder / "x" / "hglmm_model.npz"]
    refused(capsys, lambda words: captions(folder, *words), words,
            "short.txt have 2 values and the model of --fitted is of 12; give the word vectors that")
    for more in (["--ica"], ["--pca", 3], ["--n_clusters", 2]):
        refused(capsys, lambda words: captions(folder, *words), [*words, *more],
                f"{more[0]} is for fitting --kind hglmm, not for --fitted .*hglmm_model.npz; leave it out")


def test_captions_without_a_known_word_are_counted_and_zero(folder, capsys):
    path = folder / "x" / "test_caps.txt"
    lines = path.read_text().splitlines()
    lines[2:4] = ["zebra !!", "qqq"]
    path.write_text("\n".join(lines) + "\n")
    vectors = ["--word_vectors", folder / "v.txt"]
    for kind, words in (("mean", vectors), ("hglmm", [*vectors, "--n_clusters", 2, "--pca", 3]), ("tfidf", [])):
        captions(folder, "--kind", kind, *words)
        shown = capsys.readouterr().err
        assert f"warning: 2 of {len(lines)} captions of test have no word that counts, the first is 'zebra !!'" in shown
        rows = np.load(folder / "x" / f"test_{kind}.npy")
        assert not rows[2:4].any() and np.isfinite(rows).all() and rows[[0, 1, 4]].any(1).all()


def test_refusals_of_captions(folder, capsys):
    (folder / "junk.bin").write_bytes(b"\x00\x01\x02" * 100)
    (folder / "junk.npz").write_bytes(b"PK\x03\x04junk")
    (folder / "strange.txt").write_text("zebra 1.0 2.0\nyak 1.0 2.0\n")
    vectors = ["--word_vectors", folder / "v.txt"]
    for words, message in (
            ([], "--kind mean needs --word_vectors FILE"),
            (["--word_vectors", "nowhere"], "there is no file nowhere; word vectors are word2vec's text"),
            (["--word_vectors", folder / "junk.bin"], "junk.bin holds no word vectors"),
            (["--word_vectors", folder / "strange.txt"], "strange.txt has a vector for none of the .* words"),
            ([*vectors, "--name", "ims"], "--name ims cannot name features of captions"),
            ([*vectors, "--kind", "hglmm", "--n_clusters", 9999],
             "9999 clusters and 10 iterations on .* different word"),
            (["--kind", "tfidf", "--vocab_threshold", 9999], "no word stands 9999 times"),
            ([*vectors, "--data_name", "demo"],
             "demo holds photos, and .*; write those first with features.images"),
            ([*vectors, "--fitted", folder / "junk.npz"], "junk.npz is no .npz file of plain arrays"),
            ([*vectors, "--data_name", "none"], "there is no folder .*none")):
        refused(capsys, lambda words: captions(folder, *words), words, message)
    assert not (folder / "x" / "features.json").exists()


def test_features_of_captions_that_changed_are_not_read(folder):
    captions(folder, "--kind", "tfidf", "--vocab_threshold", 1)
    assert read_split(str(folder), "x", "test", text_features="tfidf").text is not None
    path = folder / "x" / "test_caps.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    with pytest.raises(InputError, match="test_tfidf.npy was extracted from other captions than .*test_caps.txt holds "
                                         "now"):
        read_split(str(folder), "x", "test", text_features="tfidf")
    captions(folder, "--kind", "tfidf", "--vocab_threshold", 1)
    assert read_split(str(folder), "x", "test", text_features="tfidf").text is not None
