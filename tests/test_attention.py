"""SCAN: cross-attention against a loop over pairs that forms every attended vector; encoders, training, evaluation."""
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import evaluate
import train
from checkpoint import load_checkpoint, load_model
from data import Batch, image_batches, read_split
from evaluation import encode
from losses import Embedding
from methods.scan import AGGREGATES, CrossAttention, WordStates
from metrics import retrieval
from model import build_model
from options import fit_to_data
from tests import helpers
from tests.references import pair_score
from vocab import SPECIALS, Vocabulary

VOCAB = Vocabulary([*SPECIALS, *(f"w{k}" for k in range(30))])
DIRECTIONS = ("t2i", "i2t")


def side(n, parts, d=6, seed=0, dtype=torch.float64, unit=True, ragged=True):
    """n items of 1 to `parts` parts; the mean is not looked at."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, parts, d, generator=g, dtype=torch.float64)
    count = torch.randint(1, parts + 1, (n,), generator=g) if ragged else torch.full((n,), parts)
    x = (F.normalize(x, dim=-1) if unit else x).to(dtype)
    return Embedding(x.mean(1), None, x, count)


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
def test_scores_are_those_of_a_loop_over_pairs(direction, aggregate):
    images, captions = side(4, 5), side(6, 7, seed=1)
    expected = by_pairs(images, captions, direction, aggregate)
    similarity = CrossAttention(direction, aggregate)
    torch.testing.assert_close(similarity(images, captions), expected, rtol=1e-9, atol=1e-9)
    single = [e._replace(parts=e.parts.float()) for e in (images, captions)]
    torch.testing.assert_close(similarity(*single).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(similarity(garbage(images), garbage(captions)), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_weights_of_the_sums_and_parts_without_unit_norm(direction):
    images, captions = side(3, 4, unit=False), side(4, 5, seed=1, unit=False)
    similarity = CrossAttention(direction, lambda_lse=20.0, lambda_softmax=4.0)
    expected = by_pairs(images, captions, direction, "LogSumExp", scale=20.0, sharpness=4.0)
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
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_gradients(direction, aggregate):
    images, captions = side(2, 3, d=3), side(3, 3, d=3, seed=1)
    similarity = CrossAttention(direction, aggregate)

    def scores(v, w):
        return similarity(images._replace(parts=v), captions._replace(parts=w))
    assert torch.autograd.gradcheck(scores, [e.parts.requires_grad_() for e in (images, captions)])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_zero_and_equal_parts_give_finite_scores_and_gradients(direction):
    v, w = torch.zeros(2, 3, 4), torch.zeros(2, 2, 4)
    v[0, 1:], w[0] = 0.5, 0.5
    leaves = v.requires_grad_(), w.requires_grad_()
    scores = CrossAttention(direction)(*(Embedding(x.mean(1), None, x, torch.full((2,), x.shape[1])) for x in leaves))
    scores.sum().backward()
    assert torch.isfinite(scores).all() and all(torch.isfinite(x.grad).all() for x in leaves)


@pytest.mark.parametrize("elements", [1, 40, 400])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_blocks_equal_the_whole(direction, elements, monkeypatch):
    images, captions, similarity = side(7, 4), side(11, 6, seed=1), CrossAttention(direction)
    whole = similarity(images, captions)
    monkeypatch.setattr("methods.scan.ELEMENTS", {"cpu": elements, "cuda": elements})
    torch.testing.assert_close(similarity(images, captions), whole, rtol=1e-12, atol=1e-12)


# ---- towers

def options(*words):
    opt = train.parse_args(["--sim", "scan", *words, "--embed_size", "12", "--word_dim", "7"])
    opt.img_dim = 9
    return opt


def pairs(n=6, regions=5, seed=0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (n,), generator=g)
    tokens = torch.randint(4, 34, (n, int(lengths.max())), generator=g)
    tokens[torch.arange(tokens.shape[1]) >= lengths[:, None]] = 0
    return Batch(torch.randn(n, regions, 9, generator=g), tokens, lengths, torch.arange(n) // 2, torch.arange(n))


@pytest.mark.parametrize("words", [[], ["--bi_gru"], ["--num_layers", "2", "--bi_gru"]])
def test_towers_give_unit_regions_and_words(words):
    torch.manual_seed(0)
    model, batch = build_model(options(*words), VOCAB), pairs()
    images, captions = model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths)
    assert images.parts.shape == (6, 5, 12) and images.n_parts.tolist() == [5] * 6
    assert captions.parts.shape == (6, batch.tokens.shape[1], 12) and captions.n_parts.equal(batch.lengths)
    torch.testing.assert_close(images.parts.norm(dim=2), torch.ones(6, 5))
    for parts, length, mean in zip(captions.parts, batch.lengths, captions.mean):
        torch.testing.assert_close(parts[:length].norm(dim=1), torch.ones(int(length)))
        torch.testing.assert_close(mean, F.normalize(parts[:length].mean(0), dim=0))
    sum(model(batch).values()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name


def test_words_average_both_directions_of_a_gru_run_alone():
    torch.manual_seed(0)
    embed, words = WordStates(4, 5, bi_gru=True), torch.randn(2, 6, 4)
    forward, backward = torch.nn.GRU(4, 5, batch_first=True), torch.nn.GRU(4, 5, batch_first=True)
    state = embed.rnn.state_dict()
    forward.load_state_dict({k: v for k, v in state.items() if not k.endswith("_reverse")})
    backward.load_state_dict({k.removesuffix("_reverse"): v for k, v in state.items() if k.endswith("_reverse")})
    states = embed(words, torch.tensor([6, 3])).value
    for k, length in enumerate((6, 3)):
        own = words[k:k + 1, :length]
        expected = (forward(own)[0] + backward(own.flip(1))[0].flip(1)) / 2
        torch.testing.assert_close(states[k, :length], expected[0])
        assert (states[k, length:] == 0).all()


@pytest.mark.parametrize("words,message", [
    (["--head", "ellipsoidal"], "--sim scan compares points, .*wasserstein"),
    (["--img_enc", "vsrn"], "--img_enc vsrn does not keep; leave --img_enc out"),
    (["--sim", "cosine", "--img_enc", "scan"], "--img_enc scan keeps every region")])
def test_options_that_cannot_work_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        train.parse_args(["--sim", "scan", *words])
    shown = capsys.readouterr().err
    assert re.search(message, shown) and len(shown.strip().splitlines()) == 1, shown


# ---- training and evaluation

SCAN = ["--sim", "scan", "--data_name", "demo_region_precomp", "--embed_size", "32", "--word_dim", "24",
        "--batch_size", "60", "--workers", "0"]


@pytest.mark.parametrize("words",
                         [["--bi_gru"], ["--cross_attn", "i2t", "--lambda_softmax", "4", "--agg_func", "Mean"]])
def test_overfits_sixty_pairs(words, demo_path):
    split = read_split(demo_path, "demo_region_precomp", "train")
    opt = helpers.options("--data_path", demo_path, *SCAN, *words, "--mask_same_image")
    fit_to_data(opt, split.images, None)
    vocab = Vocabulary.build(iter(split.words), 1)
    images, told = [], set()
    for i in range(len(split.images)):                      # 12 images none of which shares a caption with another
        own = {split.captions[c] for c in np.flatnonzero(split.caption_image == i)}
        if len(images) < 12 and not own & told:
            images.append(i)
            told |= own
    chosen = np.flatnonzero(np.isin(split.caption_image, images))
    torch.manual_seed(0)
    model = build_model(opt, vocab)
    batch = next(iter(split.batches(split.encode(vocab), chosen, len(chosen), workers=0)))
    batch = batch._replace(images=batch.images[:, ::2])     # 18 of the 36 regions, for speed
    adam, result = torch.optim.Adam(model.parameters(), 1e-2), None
    for step in range(200):
        loss = sum(model(batch).values())
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % 10 == 9:
            with torch.no_grad():
                scores = model.similarity(model.embed_images(batch.images),
                                          model.embed_captions(batch.tokens, batch.lengths))
            result = retrieval(scores[::5], np.arange(60) // 5)
            if result["rsum"] == 600:
                break
    assert len(scores) == 60 and result["i2t"]["r1"] == result["t2i"]["r1"] == 100, result


@pytest.fixture(scope="module")
def runs(tmp_path_factory, demo_path):
    root = tmp_path_factory.mktemp("scan")
    for name, words in {"t2i": ["--bi_gru"], "i2t": ["--cross_attn", "i2t", "--amp", "bf16"]}.items():
        helpers.fit("--data_path", demo_path, *SCAN, *words, "--logger_name", root / name)
    return root


def judged(root, *words):
    return evaluate.run(evaluate.parse_args([*map(str, words), "--output", str(root / "r.json"), "--overwrite"]))


def test_a_run_evaluates_as_its_own_validation(runs):
    stored = load_checkpoint(str(runs / "t2i"))
    results = judged(runs, "--checkpoint", runs / "t2i", "--split", "dev")
    assert "mean_only" not in results["protocols"] and results["similarity"] == "scan"
    assert results["protocols"]["full"]["rsum"] == pytest.approx(stored["state"]["best_rsum"])


def test_captions_of_different_lengths_are_joined_in_their_order(runs, demo_path):
    model, vocab, _ = load_model(load_checkpoint(str(runs / "t2i")))
    split = read_split(demo_path, "demo_region_precomp", "test")
    tokens = split.encode(vocab)
    images, captions = encode.encode(model, split, tokens, torch.device("cpu"), batch_size=7)
    assert captions.n_parts.tolist() == tokens.length.tolist() and captions.parts.shape[1] == tokens.length.max()
    for k in (0, 17, len(tokens.length) - 1):
        numbers, lengths = tokens.batch(np.array([k]))
        alone = model.embed_captions(numbers, lengths)
        torch.testing.assert_close(captions.parts[k, :lengths[0]], alone.parts[0])
        torch.testing.assert_close(captions.mean[k], alone.mean[0])
        assert (captions.parts[k, lengths[0]:] == 0).all()
    torch.testing.assert_close(images.parts[3], model.embed_images(next(iter(train_images(split)))[3:4]).parts[0])


def train_images(split):
    return image_batches(split.images, 8, 0)


@pytest.mark.parametrize("name", [["t2i"], ["i2t"], ["t2i", "i2t"]])
def test_all_protocols_of_a_run_and_of_an_ensemble(name, runs, demo_path):
    results = judged(runs, "--checkpoint", *(runs / n for n in name), "--cxc", "--cxc_path", f"{demo_path}/demo_cxc",
                     "--pmrp",
                     "--instances", f"{demo_path}/demo_coco/annotations/instances_val2014.json")
    found = results["protocols"]
    assert {"full", "cxc", "pmrp"} <= set(found) and "mean_only" not in found
    assert {"i2t", "t2i", "t2t", "i2i", "sts", "sis", "sits"} <= set(found["cxc"])
