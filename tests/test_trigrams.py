"""Word hashing and the networks over letter trigrams, against dense count vectors and loops over windows."""
from collections import Counter

import numpy as np
import pytest
import torch

from cli import InputError
from model import TrigramBag, TrigramConv
from vocab import SPECIALS, Trigrams, TrigramTokens, trigrams_of

VOCAB = Trigrams([*SPECIALS, *"a man rides the brown horse banana nanana on".split()])
CAPTIONS = [text.split() for text in ("a man rides the brown horse on a banana", "horse", "a man", "zzz man qqq xyz",
                                      "the mane of horses nanananana", "zzz qqq", "qqq rides zzz")]


def counts(word: str) -> torch.Tensor:
    """The count vector of a word, (n_trigrams,)."""
    vector = torch.zeros(len(VOCAB.trigrams), dtype=torch.float64)
    for trigram, n in Counter(f"#{word}#"[k:k + 3] for k in range(len(word))).items():
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
    weight, maximum = dense(net.table.weight, net.window), None
    for t in range(len(words)):
        places = [t - before + k for k in range(net.window)]
        window = torch.cat([counts(words[p]) if 0 <= p < len(words) else 0 * counts("a") for p in places])
        h = torch.tanh(weight @ window + net.bias)
        maximum = h if maximum is None else torch.maximum(maximum, h)
    return slow_layers(maximum, net.layers.layers)


def slow_bag(net: TrigramBag, words: list[str]) -> torch.Tensor:
    total = sum(counts(word) for word in words)
    return slow_layers(torch.tanh(dense(net.table.weight, 1) @ total + net.bias), net.layers.layers)


def network(kind, *sizes):
    torch.manual_seed(0)
    net = kind(len(VOCAB.trigrams), list(sizes[:-1]), sizes[-1]).double()
    torch.nn.init.uniform_(net.bias, -0.1, 0.1)
    return net


# ---- word hashing


def test_trigrams_are_numbered_from_one_in_order_of_appearance():
    assert trigrams_of("a") == ["#a#"] and trigrams_of("") == [] and trigrams_of("nanana").count("nan") == 2
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
    tokens = TrigramTokens(CAPTIONS, VOCAB)
    ids, lengths = tokens.batch(np.array(index))
    known = VOCAB.trigram_index
    chosen = [[[known[t] for t in trigrams_of(word) if t in known] for word in CAPTIONS[m]] for m in index]
    assert ids.dtype == lengths.dtype == torch.int64 and lengths.tolist() == [len(c) for c in chosen]
    most = max([len(word) for caption in chosen for word in caption] + [1])
    assert ids.shape == (len(index), max(map(len, chosen)), most)
    for row, caption in zip(ids.tolist(), chosen):
        padded = caption + [[]] * (ids.shape[1] - len(caption))
        assert row == [word + [0] * (most - len(word)) for word in padded]


def test_lengths_and_unknown_captions():
    tokens = TrigramTokens([*CAPTIONS, []], VOCAB)
    assert tokens.length.tolist() == [9, 1, 2, 4, 5, 2, 3, 0]
    assert np.flatnonzero(tokens.unknown).tolist() == [5, 7]


@pytest.mark.parametrize("sizes", [(5,), (7, 5), (8, 7, 6, 5)])
@pytest.mark.parametrize("kind", [TrigramConv, TrigramBag])
def test_networks_equal_dense_counts_and_loops(kind, sizes):
    net = network(kind, *sizes)
    ids, lengths = TrigramTokens(CAPTIONS, VOCAB).batch(np.arange(len(CAPTIONS)))
    slow = slow_conv if kind is TrigramConv else slow_bag
    told, expected = net(ids, lengths).value, torch.stack([slow(net, words) for words in CAPTIONS])
    assert told.shape == (len(CAPTIONS), net.dim) and net.dim == sizes[-1]
    torch.testing.assert_close(told, expected, rtol=0, atol=1e-12)
    direction = torch.randn(told.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = list(net.parameters())
    for a, b in zip(*(torch.autograd.grad((x * direction).sum(), parameters) for x in (told, expected))):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    net(ids, lengths).value.sum().backward()
    assert not net.table.weight.grad[0].any()                                       # padding learns nothing


def test_initialised_as_a_linear_layer_of_the_dense_counts():
    net = TrigramConv(500, [300], 20)
    weight, bound = net.table.weight, (6 / (3 * 500 + 300)) ** 0.5
    assert weight.shape == (501, 900) and not weight[0].any() and not net.bias.any()
    assert 0.99 * bound < weight[1:].abs().max() <= bound
    assert weight[1:].std().item() == pytest.approx(bound / 3 ** 0.5, rel=0.01)
    shapes = [tuple(p.shape) for p in TrigramConv(500, [400, 200, 100, 50], 30).parameters()]
    assert shapes == [(400,), (501, 1200), (200, 400), (200,), (100, 200), (100,), (50, 100), (50,), (30, 50), (30,)]
