"""Captions as words with vectors of a file, as bags, as letter trigrams, as ready features; and models on other data
sets than their own."""

import json
import os
import shutil
from collections import Counter

import numpy as np
import pytest
import torch

import train
from checkpoint import Trained, load_checkpoint
from data import read_split
from model import BagOfWords, TrigramBag, TrigramConv, WordTable, build_model
from tests.helpers import STEPS, evaluated
from tests.helpers import fit_steps as fit
from utils import InputError
from vocab import SPECIALS, Trigrams, TrigramTokens, Vocabulary, tokenize, trigrams_of


@pytest.fixture
def folder(tmp_path, demo_path):
    """Two data sets of the demo's features, of which "two" tests some words of its own."""
    for name in ("one", "two"):
        shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / name)
        (tmp_path / name / "features.json").write_text(json.dumps({"ims": "net A", "bag": "bag A"}))
    captions = (tmp_path / "two" / "test_caps.txt").read_text().splitlines()
    captions[:3] = ["zebra zebra", "a zebra", "quagga"]
    (tmp_path / "two" / "test_caps.txt").write_text("\n".join(captions) + "\n")
    return tmp_path


def write_vectors(path, words, dim=6) -> np.ndarray:
    table = np.random.default_rng(1).standard_normal((len(words), dim)).round(3)
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, table)]
    path.write_text("".join(lines))
    return table


def test_bags_equal_a_loop():
    torch.manual_seed(0)
    words = WordTable(9, 5)
    tokens = torch.tensor([[1, 4, 5, 3, 2], [1, 8, 2, 0, 0]])  # <start> ... <end>, padding
    for normalize in (False, True):
        got = BagOfWords(words, normalize)(tokens)
        for row, real in zip(got, ([4, 5, 3], [8])):
            vectors = [words.table.weight[w] for w in real]
            if normalize:
                vectors = [vector / vector.norm() for vector in vectors]
            slow = sum(vectors)
            if normalize:
                slow = slow / slow.norm()
            torch.testing.assert_close(row, slow)


@pytest.mark.parametrize("freeze", [False, True])
def test_words_start_from_the_vectors_of_a_file(tmp_path, freeze):
    vocab = Vocabulary([*SPECIALS, "cat", "dog", "axolotl"])
    vectors = write_vectors(tmp_path / "v.txt", ["dog", "cat", "bird"])
    words = [*STEPS, "--word_dim", "6", "--word_vectors", str(tmp_path / "v.txt")]
    words += ["--txt_enc", "mean"]
    if freeze:
        words.append("--freeze_words")
    opt = train.parse_args(words)
    opt.img_dim = 9
    opt.img_enc = "precomp"

    table = build_model(opt, vocab).text_tower.trunk.words.table.weight
    np.testing.assert_allclose(table[4:6].detach(), vectors[[1, 0]], rtol=1e-6)
    assert table.requires_grad != freeze and bool(table[6].abs().sum() == 0) == freeze
    # the file is not needed again
    loaded = build_model(opt, vocab, pretrained=False).text_tower.trunk.words.table.weight
    assert not torch.equal(loaded[4:6], table[4:6])


def test_another_data_set_tells_its_unknown_words(folder, capsys):
    one = ["--data_path", folder, "--data_name", "one"]
    fit(*one, "--num_epochs", 1, "--logger_name", folder / "run")

    found = evaluated("--checkpoint", folder / "run", "--data_name", "two")

    known = set(load_checkpoint(str(folder / "run"))["vocabulary"])
    words = []
    for caption in read_split(str(folder), "two", "test").captions:
        words += [word for word in tokenize(caption) if word not in known]
    assert {"zebra", "quagga"} < set(words)
    unknown = found["unknown_words"]
    assert unknown["unknown_words"] == len(words)
    assert unknown["unknown_distinct"] == len(set(words))
    assert unknown["captions_without"] == 2
    assert "two against the training vocabulary: " in capsys.readouterr().out
    note = (
        "2 of 120 test captions have no known word (first: 'zebra zebra'); "
        "they are read as unknown words"
    )
    assert note in found["notes"]
    assert "unknown_words" not in evaluated("--checkpoint", folder / "run")


def test_features_of_another_extractor_are_refused(folder):
    one = ["--data_path", folder, "--data_name", "one", "--text_features", "bag"]
    fit(*one, "--num_epochs", 1, "--logger_name", folder / "run")

    for made in ({"ims": "net A", "bag": "other"}, {"ims": "other", "bag": "bag A"}):
        (folder / "two" / "features.json").write_text(json.dumps(made))
        with pytest.raises(ValueError, match="were made by 'other'"):
            evaluated("--checkpoint", folder / "run", "--data_name", "two")
    (folder / "two" / "features.json").unlink()  # nothing is recorded: nothing can be compared
    evaluated("--checkpoint", folder / "run", "--data_name", "two")


@pytest.mark.parametrize(
    "words",
    [
        ["--txt_enc", "gru"],
        ["--txt_enc", "sum", "--sim", "wasserstein"],
        ["--txt_enc", "mean", "--word_vectors", "v.txt", "--word_dim", "6", "--freeze_words"],
        ["--txt_enc", "trigram_bag", "--txt_layers", "7"],
        ["--txt_enc", "trigram_conv", "--txt_layers", "7"],
    ],
)
def test_captions_without_a_known_word_train_and_are_counted(folder, monkeypatch, words):
    """In training, dev and test, and where one is asked for: as unknown words, with a sound embedding."""
    monkeypatch.chdir(folder)
    for split in ("train", "dev", "test"):
        path = folder / "one" / f"{split}_caps.txt"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(["qqq qqq", "qqq qqq qqq qqq", *lines[2:]]) + "\n")
    write_vectors(folder / "v.txt", ["red", "a", "circle"])
    one = ["--data_path", ".", "--data_name", "one", "--vocab_threshold", 7]
    fit(*one, "--num_epochs", 1, "--logger_name", "run", *words)

    log = (folder / "run" / "log.txt").read_text()
    sentence = "captions have no known word (first: 'qqq qqq'); they are read as unknown words"
    assert f"note: 2 of 240 train {sentence}" in log and f"note: 2 of 60 dev {sentence}" in log
    found = evaluated("--checkpoint", "run")
    assert f"2 of 120 test {sentence}" in found["notes"] and found["captions"] == 120

    model = Trained("run")
    mean = model.texts(["xqj", "a red circle .", ""]).mean
    assert mean.isfinite().all() and not torch.equal(mean[0], mean[1])
    torch.testing.assert_close(mean[0], model.texts(["jqx"], any_words=True).mean[0])
    with pytest.raises(InputError, match="no word of 'jqx' is in the vocabulary"):
        model.texts(["jqx"])

    unknown_lines = ["qqq\n" for _ in range(120)]
    (folder / "two" / "test_caps.txt").write_text("".join(unknown_lines))
    with pytest.raises(InputError, match="no word of its 120 captions is in the vocabulary"):
        evaluated("--checkpoint", "run", "--data_name", "two")


# ---- word hashing, and the networks over letter trigrams against dense count vectors and loops over windows

VOCAB = Trigrams([*SPECIALS, *"a man rides the brown horse banana nanana on".split()])
CAPTIONS = [
    text.split()
    for text in (
        "a man rides the brown horse on a banana",
        "horse",
        "a man",
        "zzz man qqq xyz",
        "the mane of horses nanananana",
        "zzz qqq",
        "qqq rides zzz",
    )
]


def counts(word: str) -> torch.Tensor:
    """The count vector of a word, (n_trigrams,)."""
    vector = torch.zeros(len(VOCAB.trigrams), dtype=torch.float64)
    for trigram, n in Counter(f"#{word}#"[k : k + 3] for k in range(len(word))).items():
        if trigram in VOCAB.trigrams:
            vector[VOCAB.trigrams.index(trigram)] = n
    return vector


def dense(table: torch.Tensor, window: int) -> torch.Tensor:
    """The matrix (C, window n_trigrams) of the linear map that a table holds."""
    return table[1:].reshape(len(table) - 1, window, -1).permute(2, 1, 0).flatten(1)


def slow_layers(vector, layers):
    for layer in layers:
        vector = torch.tanh(layer.weight @ vector + layer.bias)
    return vector


def slow_conv(net: TrigramConv, words: list[str]) -> torch.Tensor:
    """One caption -> (D,)."""
    before = (net.window - 1) // 2
    weight = dense(net.table.weight, net.window)
    maximum = torch.tensor(-torch.inf, dtype=torch.float64)
    for t in range(len(words)):
        vectors = []
        for position in range(t - before, t - before + net.window):
            if 0 <= position < len(words):
                vectors.append(counts(words[position]))
            else:
                vectors.append(torch.zeros(len(VOCAB.trigrams), dtype=torch.float64))
        h = torch.tanh(weight @ torch.cat(vectors) + net.bias)
        maximum = torch.maximum(maximum, h)
    return slow_layers(maximum, net.layers.layers)


def slow_bag(net: TrigramBag, words: list[str]) -> torch.Tensor:
    total = sum(counts(word) for word in words)
    hidden = torch.tanh(dense(net.table.weight, 1) @ total + net.bias)
    return slow_layers(hidden, net.layers.layers)


def network(kind, *sizes):
    torch.manual_seed(0)
    net = kind(len(VOCAB.trigrams), list(sizes[:-1]), sizes[-1]).double()
    torch.nn.init.uniform_(net.bias, -0.1, 0.1)
    return net


def test_trigrams_are_numbered_from_one_in_order_of_appearance():
    assert trigrams_of("a") == ["#a#"]
    assert trigrams_of("") == []
    assert trigrams_of("nanana").count("nan") == 2

    vocab = Trigrams([*SPECIALS, "cat", "hat", "cats"])
    assert vocab.trigrams == ["#ca", "cat", "at#", "#ha", "hat", "ats", "ts#"]
    assert vocab.trigram_index == {t: k + 1 for k, t in enumerate(vocab.trigrams)}
    ids, _ = vocab.encode_captions([["cat", "at", "dog", "chat"]]).batch(np.array([0]))
    assert ids.tolist() == [[[1, 2, 3], [3, 0, 0], [0, 0, 0], [5, 3, 0]]]
    assert vocab.words == [*SPECIALS, "cat", "hat", "cats"] and len(vocab) == 7
    with pytest.raises(InputError, match="starts with"):
        Trigrams(["cat"])


@pytest.mark.parametrize("index", [[0], [1], [3, 0, 4], [5], [6, 1, 5, 0], [0, 0, 2]])
def test_batches_equal_a_loop(index):
    tokens = TrigramTokens([*CAPTIONS, []], VOCAB)
    assert tokens.length.tolist() == [9, 1, 2, 4, 5, 2, 3, 1]
    assert np.flatnonzero(tokens.unknown).tolist() == [5, 7]

    ids, lengths = tokens.batch(np.array(index))

    known = VOCAB.trigram_index
    chosen = []
    for m in index:
        caption = []
        for word in CAPTIONS[m]:
            caption.append([known[t] for t in trigrams_of(word) if t in known])
        chosen.append(caption)
    assert ids.dtype == lengths.dtype == torch.int64
    assert lengths.tolist() == [len(caption) for caption in chosen]

    most = 1  # trigrams of a word
    for caption in chosen:
        most = max(most, *map(len, caption))
    expected = np.zeros((len(index), max(map(len, chosen)), most), int)
    for k, caption in enumerate(chosen):
        for j, word in enumerate(caption):
            expected[k, j, : len(word)] = word
    assert ids.tolist() == expected.tolist()


@pytest.mark.parametrize("sizes", [(5,), (7, 5), (8, 7, 6, 5)])
@pytest.mark.parametrize("kind", [TrigramConv, TrigramBag])
def test_networks_equal_dense_counts_and_loops(kind, sizes):
    net = network(kind, *sizes)
    ids, lengths = TrigramTokens(CAPTIONS, VOCAB).batch(np.arange(len(CAPTIONS)))
    if kind is TrigramConv:
        slow = slow_conv
    else:
        slow = slow_bag

    told = net(ids, lengths).value

    expected = torch.stack([slow(net, words) for words in CAPTIONS])
    assert told.shape == (len(CAPTIONS), net.dim) and net.dim == sizes[-1]
    torch.testing.assert_close(told, expected, rtol=0, atol=1e-12)

    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(told.shape, generator=generator, dtype=torch.float64)
    parameters = list(net.parameters())
    gradients = torch.autograd.grad((told * direction).sum(), parameters)
    expected = torch.autograd.grad((expected * direction).sum(), parameters)
    for a, b in zip(gradients, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)

    net(ids, lengths).value.sum().backward()
    assert not net.table.weight.grad[0].any()  # padding learns nothing


def test_initialised_as_a_linear_layer_of_the_dense_counts():
    net = TrigramConv(500, [300], 20)
    weight = net.table.weight
    bound = (6 / (3 * 500 + 300)) ** 0.5
    assert weight.shape == (501, 900) and not weight[0].any() and not net.bias.any()
    assert 0.99 * bound < weight[1:].abs().max() <= bound
    assert weight[1:].std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
