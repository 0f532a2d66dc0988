"""Features of captions as users write them: each kind against its definition, and every refusal with its sentence."""

import json
import os
import shutil

import numpy as np
import pytest

from data import read_split
from features import captions as command
from features import hglmm
from features.word_vectors import train_vectors, write_vectors
from tests.helpers import refused, vectors_in
from tests.references import fisher_vectors
from utils import InputError
from vocab import is_function


@pytest.fixture
def folder(tmp_path, demo_path):
    """A data path that may be written to, with demo captions and word vectors of 12 values learned from them."""
    shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / "x")
    os.remove(tmp_path / "x" / "features.json")  # as of features from elsewhere
    os.symlink(os.path.join(demo_path, "demo"), tmp_path / "demo")
    words, vectors = train_vectors(read_split(demo_path, "demo_precomp", "train").words, 12)
    write_vectors(str(tmp_path / "v.txt"), words, vectors)
    return tmp_path


def captions(folder, *words):
    command.main(["--data_path", str(folder), "--data_name", "x", *map(str, words)])


def lines(folder):
    return json.loads((folder / "x" / "features.json").read_text())


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_means_of_word_vectors_and_tfidf(folder):
    captions(folder, "--name", "w2v", "--word_vectors", folder / "v.txt")
    captions(folder, "--kind", "tfidf", "--content_words")

    means = np.load(folder / "x" / "test_w2v.npy")
    tfidf = np.load(folder / "x" / "test_tfidf.npy")
    vector = vectors_in(folder / "v.txt")
    train, split = (read_split(str(folder), "x", name) for name in ("train", "test"))
    content = [[word for word in caption if not is_function(word)] for caption in train.words]
    words = [*command.TfIdf(content).index]
    captions_with = np.array([sum(word in caption for caption in train.words) for word in words])
    idf = np.log(len(train.captions) / captions_with)
    for m in (0, 3, len(split.captions) - 1):
        known = [unit(vector[word]) for word in split.words[m] if word in vector]
        np.testing.assert_allclose(means[m], unit(np.mean(known, 0)), atol=1e-5)
        counts = np.array([split.words[m].count(word) for word in words])
        np.testing.assert_allclose(tfidf[m], unit(counts * idf), atol=1e-6)

    for word in words:
        count = sum(caption.count(word) for caption in train.words)
        assert count >= command.MIN_TFIDF_COUNT

    described = lines(folder)
    assert set(described) == {"w2v", "tfidf"}
    assert described["w2v"].startswith("mean, vectors v.txt sha256:")
    assert ", content words, fitted sha256:" in described["tfidf"]


def test_captions_by_name_stand_beside_those_in_order(folder):
    """As Flickr8k's judgements do: those of `photos` in captions.tsv, those of test in test_caps.txt."""
    (folder / "x" / "captions.tsv").write_text("a.jpg#0\ta red circle .\nb.jpg#0\ta star .\n")
    (folder / "x" / "photos_ids.txt").write_text("a.jpg\nb.jpg\n")
    np.save(folder / "x" / "photos_ims.npy", np.ones((2, 960), np.float32))

    captions(folder, "--kind", "tfidf")

    assert len(np.load(folder / "x" / "photos_tfidf.npy")) == 2
    assert (folder / "x" / "test_tfidf.npy").is_file()


@pytest.mark.parametrize("ica", [False, True])
def test_fisher_vectors_follow_the_recipe(folder, monkeypatch, ica):
    """Also where captions are sampled for the fit of the PCA."""
    monkeypatch.setattr(command, "PCA_CAPTIONS", 200)
    words = ["--kind", "hglmm", "--word_vectors", folder / "v.txt", "--n_clusters", 3, "--pca", 7]
    description = "hglmm 3 clusters, pca 7, vectors v.txt sha256:"
    if ica:
        words.append("--ica")
        description = "hglmm 3 clusters, ica 12, pca 7, vectors v.txt sha256:"

    captions(folder, *words)

    rows = np.load(folder / "x" / "test_hglmm.npy")
    caption = read_split(str(folder), "x", "test").words[3]
    train = read_split(str(folder), "x", "train").words
    vector = vectors_in(folder / "v.txt")
    own = command.FisherVectors(sorted(vector), str(folder / "v.txt"), train, 3, 7, ica)
    x = np.stack([unit(vector[word]) for word in caption if word in vector])
    if ica:
        x = unit(hglmm.project(x, *own.fitted[4:6]))
    fisher = fisher_vectors(own.mixture, [10 * x])
    expected = unit(np.sign(fisher) * np.abs(fisher) ** 0.5)
    np.testing.assert_allclose(rows[3], hglmm.project(expected, *own.pca)[0], atol=1e-5)

    line = lines(folder)["hglmm"]
    assert line.startswith(description)
    assert ", fitted sha256:" in line
    assert np.load(folder / "x" / "train_hglmm.npy").std(0).argmax() == 0  # the first axis


def test_captions_without_a_known_word_are_counted_and_zero(folder, capsys):
    path = folder / "x" / "test_caps.txt"
    texts = path.read_text().splitlines()
    texts[2:4] = ["zebra !!", "qqq"]

    path.write_text("\n".join(texts) + "\n")
    vectors = ["--word_vectors", folder / "v.txt"]
    for kind, words in (
        ("mean", vectors),
        ("hglmm", [*vectors, "--n_clusters", 2, "--pca", 3]),
        ("tfidf", []),
    ):
        captions(folder, "--kind", kind, *words)
        warning = (
            f"warning: 2 of {len(texts)} captions of test have no word that counts "
            "(first: 'zebra !!')"
        )
        assert warning in capsys.readouterr().err
        rows = np.load(folder / "x" / f"test_{kind}.npy")
        assert not rows[2:4].any()
        assert np.isfinite(rows).all()
        assert rows[[0, 1, 4]].any(1).all()


def test_refusals(folder, capsys):
    """In a sentence each, and nothing is written."""
    (folder / "junk.bin").write_bytes(b"\x00\x01\x02" * 100)
    (folder / "strange.txt").write_text("zebra 1.0 2.0\nyak 1.0 2.0\n")
    (folder / "test_only").mkdir()
    for name in ("test_ims.npy", "test_caps.txt"):
        shutil.copy(folder / "x" / name, folder / "test_only" / name)

    vectors = ["--word_vectors", folder / "v.txt"]

    def main(words):
        captions(folder, *words)

    for words, message in (
        ([], "--kind mean needs --word_vectors FILE"),
        (["--word_vectors", folder / "junk.bin"], "junk.bin holds no word vectors"),
        (
            ["--word_vectors", folder / "strange.txt"],
            "strange.txt has a vector for none of the .* words",
        ),
        ([*vectors, "--name", "ims"], "argument --name: ims cannot name features of captions"),
        (
            [*vectors, "--kind", "hglmm", "--n_clusters", 9999],
            "--n_clusters 9999 is more than the .* different",
        ),
        ([*vectors, "--pca", 3], "--pca 3 is not for --kind mean; leave it out"),
        (
            ["--kind", "tfidf", "--data_name", "test_only"],
            "--kind tfidf is fitted on training captions, and test",
        ),
        (
            [*vectors, "--data_name", "demo"],
            "demo holds photos, but .*; write the latter first with features.images",
        ),
    ):
        refused(capsys, main, words, message)
    assert not (folder / "x" / "features.json").exists()


def test_features_of_captions_that_changed_are_not_read(folder):
    captions(folder, "--kind", "tfidf")
    shutil.copy(folder / "x" / "test_tfidf.npy", folder / "x" / "testall_tfidf.npy")
    for name in ("train", "test"):  # other weights of the same words
        path = folder / "x" / f"{name}_caps.txt"
        path.write_text(path.read_text().replace("\n", " circle\n", 9))
    sentence = "test_tfidf.npy was extracted from other captions than .*test_caps.txt holds"
    with pytest.raises(InputError, match=sentence):
        read_split(str(folder), "x", "test", text_features="tfidf")

    captions(folder, "--kind", "tfidf")
    assert read_split(str(folder), "x", "test", text_features="tfidf").text is not None
    assert not (folder / "x" / "testall_tfidf.npy").exists()  # a folder never mixes two fits


def test_a_folder_of_both_kinds_of_splits_gets_features_of_both(folder):
    """Captions in a file of a split, and captions by the names of photos in captions.tsv."""
    own = folder / "x"
    names = (own / "test_ids.txt").read_text().splitlines()
    texts = (own / "test_caps.txt").read_text().splitlines()
    by_name = []
    for n, name in enumerate(names):
        by_name.append(f"{name}#0\t{texts[5 * n]}\n")
        by_name.append(f"{name}#1\t{texts[5 * n + 1]}\n")
    (own / "captions.tsv").write_text("".join(by_name))
    shutil.copy(own / "test_ids.txt", own / "mine_ids.txt")
    shutil.copy(own / "test_ims.npy", own / "mine_ims.npy")
    shutil.copy(own / "test_ids.txt", own / "photos_alone_ids.txt")

    captions(folder, "--name", "w2v", "--word_vectors", folder / "v.txt")

    rows = {split: np.load(own / f"{split}_w2v.npy") for split in ("train", "dev", "test", "mine")}
    assert rows["mine"].shape == (2 * len(names), 12)
    first_two = rows["test"].reshape(len(names), 5, 12)[:, :2]
    np.testing.assert_allclose(rows["mine"], first_two.reshape(-1, 12), atol=1e-6)
    assert not (own / "photos_alone_w2v.npy").exists()
