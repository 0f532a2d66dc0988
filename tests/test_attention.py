"""SCAN: cross-attention against a loop over pairs that forms every attended vector; encoders, evaluation."""
import pytest
import torch
import torch.nn.functional as F

from checkpoint import Trained
from data import read_split
from evaluation import encode
from losses import Embedding
from methods.scan import AGGREGATES, CrossAttention, WordStates
from tests.helpers import built, numbers, pairs
from tests.references import pair_score

DIRECTIONS = ("t2i", "i2t", "hard")


def side(n, parts, seed=0, dtype=torch.float64, unit=True):
    """n items of 1 to `parts` parts; the mean is not looked at."""
    x = numbers(n, parts, 6, seed=seed, dtype=dtype)
    x = F.normalize(x, dim=-1) if unit else x
    return Embedding(x.mean(1), None, x, torch.arange(n) % parts + 1)


def by_pairs(images, captions, *args, **options):
    return torch.stack([torch.stack([pair_score(v[:p], w[:t], *args, **options)
                                     for w, t in zip(captions.parts.double(), captions.n_parts)])
                        for v, p in zip(images.parts.double(), images.n_parts)])


def garbage(e, extra=2, value=float("nan")):
    """The same with more padding, and padding that holds anything."""
    parts = F.pad(e.parts, (0, 0, 0, extra))
    parts[torch.arange(parts.shape[1]) >= e.n_parts[:, None]] = value
    return e._replace(parts=parts)


# ---- scores

@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_scores_are_those_of_a_loop_over_pairs(direction, aggregate, monkeypatch):
    images, captions = side(4, 5), side(6, 7, seed=1)
    expected = by_pairs(images, captions, direction, aggregate)
    similarity = CrossAttention(direction, aggregate)
    torch.testing.assert_close(similarity(images, captions), expected, rtol=1e-9, atol=1e-9)
    single = [e._replace(parts=e.parts.float()) for e in (images, captions)]
    torch.testing.assert_close(similarity(*single).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(similarity(garbage(images), garbage(captions)), expected, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr("methods.scan.ELEMENTS", {"cpu": 40, "cuda": 40})                       # blocks
    images, captions = side(3, 4, unit=False), side(4, 5, seed=1, unit=False)
    similarity = CrossAttention(direction, aggregate, lambda_lse=20.0, lambda_softmax=4.0)
    expected = by_pairs(images, captions, direction, aggregate, scale=20.0, sharpness=4.0)
    torch.testing.assert_close(similarity(images, captions), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_padding_changes_nothing_and_gets_no_gradient(direction, value):
    images, captions = side(5, 4, dtype=torch.float32), side(6, 7, seed=1, dtype=torch.float32)
    similarity = CrossAttention(direction)
    alone = torch.stack([torch.cat([similarity(images.rows(slice(i, i + 1)), captions.rows(slice(c, c + 1)))[0]
                                    for c in range(6)]) for i in range(5)])
    padded = [garbage(e, 3, value) for e in (images, captions)]
    leaves = [e.parts.requires_grad_() for e in padded]
    scores = similarity(*padded)
    torch.testing.assert_close(scores, alone)
    scores.sum().backward()
    for e, x in zip(padded, leaves):
        real = torch.arange(x.shape[1]) < e.n_parts[:, None]
        assert torch.isfinite(x.grad[real]).all() and (x.grad[~real] == 0).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_zero_and_equal_parts_give_finite_scores_and_gradients(direction):
    v, w = torch.zeros(2, 3, 4), torch.zeros(2, 2, 4)
    v[0, 1:], w[0] = 0.5, 0.5
    leaves = v.requires_grad_(), w.requires_grad_()
    scores = CrossAttention(direction)(*(Embedding(x.mean(1), None, x, torch.full((2,), x.shape[1])) for x in leaves))
    scores.sum().backward()
    assert torch.isfinite(scores).all() and all(torch.isfinite(x.grad).all() for x in leaves)


@pytest.mark.parametrize("words", [[], ["--bi_gru"], ["--num_layers", "2", "--bi_gru"]])
def test_towers_give_unit_regions_and_words(words):
    model, batch = built("--sim", "scan", *words), pairs(regions=5, shortest=1)
    images, captions = model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths)
    assert images.parts.shape == (6, 5, 12) and images.n_parts.tolist() == [5] * 6
    assert captions.parts.shape == (6, batch.tokens.shape[1], 12) and captions.n_parts.equal(batch.lengths)
    torch.testing.assert_close(images.parts.norm(dim=2), torch.ones(6, 5))
    for parts, length, mean in zip(captions.parts, batch.lengths, captions.mean):
        torch.testing.assert_close(parts[:length].norm(dim=1), torch.ones(int(length)))
        torch.testing.assert_close(mean, F.normalize(parts[:length].mean(0), dim=0))


def test_words_average_both_directions_of_a_gru_run_alone():
    torch.manual_seed(0)
    embed, words = WordStates(4, 5, bi_gru=True), torch.randn(2, 6, 4)
    states = embed(words, torch.tensor([6, 3])).value
    for k, length in enumerate((6, 3)):
        own = embed.rnn(words[k:k + 1, :length])[0][0]                              # (T, 5 + 5)
        torch.testing.assert_close(states[k, :length], (own[:, :5] + own[:, 5:]) / 2)
        assert (states[k, length:] == 0).all()


def test_captions_of_different_lengths_are_joined_in_their_order(small_run, demo_path):
    run = Trained(str(small_run("--sim", "scan", "--data_name", "demo_region_precomp")))
    split = read_split(demo_path, "demo_region_precomp", "test")
    tokens = split.encode(run.vocab)
    images, captions = encode(run.model, split, tokens, torch.device("cpu"), batch_size=7)
    assert captions.n_parts.tolist() == tokens.length.tolist() and captions.parts.shape[1] == tokens.length.max()
    for k in (0, 17, len(tokens.length) - 1):
        alone = run.texts([split.captions[k]])
        torch.testing.assert_close(captions.parts[k, :alone.n_parts[0]], alone.parts[0])
        torch.testing.assert_close(captions.mean[k], alone.mean[0])
        assert (captions.parts[k, alone.n_parts[0]:] == 0).all()
    torch.testing.assert_close(images.parts[3], run.images(split.images.gather([3])).parts[0])
