"""Captions as words with vectors of a file, as bags, as ready features; and models on other data sets than their
own."""
import json
import os
import shutil

import numpy as np
import pytest
import torch

import train
from checkpoint import load_checkpoint
from data import read_split, tokenize
from model import BagOfWords, Words, build_model
from tests.helpers import STEPS, evaluated
from tests.helpers import fit_steps as fit
from vocab import SPECIALS, Vocabulary


@pytest.fixture
def folder(tmp_path, demo_path):
    """Two data sets of the demo's features: "one" with features of its captions, "two" with some words of its own."""
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / name)
        for split in ("train", "dev", "test"):
            captions = (tmp_path / name / f"{split}_caps.txt").read_text().splitlines()
            np.save(tmp_path / name / f"{split}_bag.npy", rng.standard_normal((len(captions), 7)).astype(np.float32))
            if name == "two":
                captions[:3] = ["zebra zebra", "a zebra", "quagga"]
                (tmp_path / name / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
        (tmp_path / name / "features.json").write_text(json.dumps({"ims": "net A", "bag": "bag A"}))
    return tmp_path


def write_vectors(path, words, dim=6) -> np.ndarray:
    table = np.random.default_rng(1).standard_normal((len(words), dim)).round(3)
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, table)))
    return table


def test_bags_equal_a_loop():
    torch.manual_seed(0)
    words = Words(9, 5)
    tokens = torch.tensor([[1, 4, 5, 3, 2], [1, 8, 2, 0, 0]])                       # <start> ... <end>, padding
    for normalise in (False, True):
        got = BagOfWords(words, normalise)(tokens)
        for row, real in zip(got, ([4, 5, 3], [8])):
            vectors = [words.table.weight[w] / (words.table.weight[w].norm() if normalise else 1) for w in real]
            slow = sum(vectors)
            torch.testing.assert_close(row, slow / slow.norm() if normalise else slow)


@pytest.mark.parametrize("freeze", [False, True])
def test_words_start_from_the_vectors_of_a_file(tmp_path, freeze):
    vocab = Vocabulary([*SPECIALS, "cat", "dog", "axolotl"])
    vectors = write_vectors(tmp_path / "v.txt", ["dog", "cat", "bird"])
    opt = train.parse_args([*STEPS, "--word_dim", "6", "--word_vectors", str(tmp_path / "v.txt"), "--txt_enc", "mean",
                            *(["--freeze_words"] if freeze else [])])
    opt.img_dim, opt.img_enc = 9, "precomp"
    table = build_model(opt, vocab).text_tower.trunk.words.table.weight
    np.testing.assert_allclose(table[4:6].detach(), vectors[[1, 0]], rtol=1e-6)
    assert table.requires_grad != freeze and bool(table[6].abs().sum() == 0) == freeze
    # the file is not needed again
    loaded = build_model(opt, vocab, pretrained=False).text_tower.trunk.words.table.weight
    assert not torch.equal(loaded[4:6], table[4:6])


def test_another_data_set_tells_its_unknown_words(folder, capsys):
    fit("--data_path", folder, "--data_name", "one", "--num_epochs", 1, "--logger_name", folder / "run")
    found = evaluated("--checkpoint", folder / "run", "--data_name", "two")
    unknown, known = found["unknown_words"], set(load_checkpoint(str(folder / "run"))["vocabulary"])
    words = [w for c in read_split(str(folder), "two", "test").captions for w in tokenize(c) if w not in known]
    assert {"zebra", "quagga"} < set(words)
    assert [unknown[key] for key in ("unknown_words", "unknown_distinct", "captions_without")] == [
        len(words), len(set(words)), 2]
    assert "two against the training vocabulary: " in capsys.readouterr().out
    assert "unknown_words" not in evaluated("--checkpoint", folder / "run")


@pytest.mark.parametrize("kind", ["ims", "bag"])
def test_features_of_another_extractor_are_refused(folder, kind):
    fit("--data_path", folder, "--data_name", "one", "--num_epochs", 1, "--text_features", "bag", "--logger_name",
        folder / "run")
    made = {"ims": "net A", "bag": "bag A", kind: "something else"}
    (folder / "two" / "features.json").write_text(json.dumps(made))
    with pytest.raises(ValueError, match="were made by 'something else'"):
        evaluated("--checkpoint", folder / "run", "--data_name", "two")
    (folder / "two" / "features.json").unlink()             # nothing is recorded: nothing can be compared
    evaluated("--checkpoint", folder / "run", "--data_name", "two")
