"""Query-bank normalisation against double loops, what chooses its beta, and evaluate.py --bank as users run it."""
import os
import shutil

import numpy as np
import pytest
import torch

import evaluate
from checkpoint import Trained
from cli import InputError
from evaluation import bank
from evaluation.embeddings import Embeddings, Member, embed, read_split_for
from evaluation.encode import encode
from evaluation.report import describe_bank
from losses import Embedding, cosine, dot, formulas
from tests import helpers, references

FORMULAS = formulas()

N, M, D = 7, 24, 5
NAMES = ["cosine", "kl"]


def gaussians(n: int, seed: int, scale: float = 1.0) -> Embedding:
    rng = np.random.default_rng(seed)
    return Embedding(*(torch.from_numpy(x.astype(np.float32)) for x in (
        scale * rng.standard_normal((n, D)), rng.uniform(-1, 1, (n, D)))))


def member(name: str, seed: int, n: int = N, m: int = M) -> Member:
    return Member(FORMULAS[name], gaussians(n, seed), gaussians(m, seed + 1))


def owners(n: int = N, m: int = M, seed: int = 0) -> np.ndarray:
    """The image of each caption: shuffled, unequal numbers, image 2 without any."""
    with_captions = np.setdiff1d(np.arange(n), 2)
    rng = np.random.default_rng(seed)
    return rng.permutation(np.r_[with_captions, rng.choice(with_captions, m - n + 1)])


def exact(name: str, images: Embedding, captions: Embedding) -> np.ndarray:
    """Scores in float64, one image at a time."""
    double = [Embedding(*(None if x is None else x.double() for x in e[:2])) for e in (images, captions)]
    return references.broadcasts(name, *double).numpy()


def term(scores_of_item, beta: float) -> float:
    """Loss of one item's scores: a sum over its bank, one query after the other."""
    total = 0.0
    for score in scores_of_item:
        total += np.exp(beta * (score - max(scores_of_item)))
    return max(scores_of_item) + np.log(total / len(scores_of_item)) / beta


def slow(name: str, one: Member, queries: Member, beta: dict) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that images and captions lose, (N,) and (M,)."""
    by_captions, by_images = exact(name, one.images, queries.captions), exact(name, queries.images, one.captions)
    return (np.array([term(row, beta["t2i"]) for row in by_captions]),
            np.array([term(column, beta["i2t"]) for column in by_images.T]))


def ranks_of(scores: np.ndarray, owner: np.ndarray) -> dict:
    """0-based ranks of both directions, one query after the other; -1 for an image without captions."""
    return {"t2i": [references.slow_rank(scores[:, c], [i]) for c, i in enumerate(owner)],
            "i2t": [references.slow_rank(row, np.flatnonzero(owner == i)) if (owner == i).any() else -1
                    for i, row in enumerate(scores)]}


def recall_sums(scores: np.ndarray, owner: np.ndarray) -> dict:
    numbers = {side: references.slow_summary([r for r in ranks if r >= 0])
               for side, ranks in ranks_of(scores, owner).items()}
    return {side: sum(x[f"r{k}"] for k in (1, 5, 10)) for side, x in numbers.items()}


# ---- the formula

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [3, 1000])
def test_terms_are_those_of_a_double_loop(name, block):
    one, queries, betas = member(name, 0), member(name, 10, 9, 11), [0.3, 2.0, 40.0]
    slow_terms = [slow(name, one, queries, {"t2i": beta, "i2t": beta}) for beta in betas]
    for side, expected in zip(("t2i", "i2t"), map(np.array, zip(*slow_terms))):
        found = bank.item_terms([one], [queries], betas, side, block)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", [-3e4, 3e4])
def test_large_scores_neither_overflow_nor_vanish(level):
    """exp(beta s) is infinite or 0 in float32, and in float64 too."""
    scores = np.float32(level) + np.random.default_rng(0).normal(0, 50, (N, M)).astype(np.float32)
    one = Member(dot, Embedding(torch.from_numpy(scores)), Embedding(torch.eye(M)))
    found = bank.item_terms([one], [one], [0.5], "t2i", block=4)[0]
    np.testing.assert_allclose(found, [term(row, 0.5) for row in scores.astype(float)], rtol=1e-6)


# ---- the choice of beta

def subject_of(one: Member, owner) -> Embeddings:
    return Embeddings("x", owner, len(one.images.mean), [one])


@pytest.mark.parametrize("name", NAMES)
def test_beta_has_the_highest_recalls_of_its_direction(name):
    dev, queries, owner = member(name, 40, 20, 70), member(name, 60, 15, 30), owners(20, 70)
    near = torch.from_numpy(dev.images.mean.numpy()[owner])                     # captions that know their image a bit
    dev = dev._replace(captions=dev.captions._replace(mean=dev.captions.mean + near))
    scores = exact(name, dev.images, dev.captions)
    plain = recall_sums(scores, owner)
    best, beta = dict(plain), {"t2i": None, "i2t": None}
    for value in np.array(bank.GRID) / scores.std():
        images, captions = slow(name, dev, queries, {"t2i": value, "i2t": value})
        sums = recall_sums(scores - images[:, None] - captions, owner)
        for side in beta:
            if sums[side] > best[side] + 1e-9:
                best[side], beta[side] = sums[side], value
    _, found = bank.normalise([dev], subject_of(dev, owner), [queries], "train", block=6)
    for side, value in beta.items():
        assert found["beta"][side] == (None if value is None else pytest.approx(value, rel=1e-4)), side
    assert found["dev_rsum"] == pytest.approx(sum(best.values())) and found["dev_rsum"] >= found["dev_rsum_without"]
    assert found["dev_rsum_without"] == pytest.approx(sum(plain.values()))


def test_nothing_is_taken_where_dev_does_not_gain():
    """Perfect on dev; or every score the same, which has no spread."""
    points = Embedding(torch.eye(D))
    for one in (Member(cosine, points, points), Member(dot, points, Embedding(torch.ones(D, D)))):
        terms, found = bank.normalise([one], subject_of(one, np.arange(D)), [member("dot", 0, 4, 6)], "train")
        assert found["beta"] == {"t2i": None, "i2t": None}
        assert found["dev_rsum"] == found["dev_rsum_without"]
        assert not terms[0].any() and not terms[1].any()
        assert "beta none for text to image and none for image to text" in describe_bank(found)


# ---- the queries

@pytest.mark.parametrize("size", [5, 20, 24, 1000])
def test_a_bank_is_of_whole_images(size):
    owner = np.repeat(np.arange(1, N), 4)[np.random.default_rng(0).permutation(24)]     # image 0 has none
    images, captions = bank.draw_queries(owner, N, size)
    assert len(captions) == min(size // 4 * 4, 24) and len(images) == min(N, size)
    assert (np.bincount(owner[captions], minlength=N) % 4 == 0).all() and set(owner[captions]) <= set(images)
    assert all(np.array_equal(np.unique(x), x) for x in (images, captions))
    assert all(map(np.array_equal, (images, captions), bank.draw_queries(owner, N, size)))
    with pytest.raises(InputError, match="a bank of 1 captions is less than the 4 captions of one image"):
        bank.draw_queries(owner, N, 1)


def test_a_part_is_embedded_as_within_the_whole(small_run):
    run = Trained(str(small_run("--sim", "wasserstein")))
    split = read_split_for(run, "train")
    part = bank.draw_queries(split.caption_image, len(split.images), 40)
    whole, some = (encode(run.model, split, split.encode(run.vocab), torch.device("cpu"), 7, part=p)
                   for p in (None, part))
    assert len(some[0].mean) == 40 and len(some[1].mean) == 40 and len(whole[1].mean) == 240
    for all_items, few, rows in zip(whole, some, part):
        for x, y in zip(all_items.rows(torch.from_numpy(rows))[:2], few[:2]):
            np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-4, atol=1e-5)


# ---- the command

@pytest.fixture
def ev(tmp_path, monkeypatch):
    """evaluate.run on words, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: evaluate.run(evaluate.parse_args([*map(str, words), "--output", "r.json", "--overwrite"]))


def test_the_command_takes_the_terms_of_train_at_the_betas_of_dev(small_run, ev, capsys):
    runs = [small_run("--sim", "wasserstein"), small_run("--sim", "cosine")]
    plain, found = ev("--checkpoint", *runs), ev("--checkpoint", *runs, "--bank", "train")
    assert describe_bank(found["bank"]) in capsys.readouterr().out
    assert [found["bank"][key] for key in ("split", "captions", "images")] == ["train", 240, 48]
    assert "bank" not in plain and found["protocols"]["full"] == plain["protocols"]["full"]
    test, dev, queries = (embed([Trained(str(run)) for run in runs], split) for split in ("test", "dev", "train"))
    taken = {"t2i": 0, "i2t": 0}
    assert found["bank"]["dev_rsum_without"] == pytest.approx(sum(recall_sums(dev.scores, dev.caption_image).values()))
    for side, beta in found["bank"]["beta"].items():
        if beta is not None:
            assert np.abs(np.array(bank.GRID) / dev.scores.std() - beta).min() < 1e-3 * beta
            taken[side] = bank.item_terms(test.members, queries.members, [beta], side)[0]
    assert found["bank"]["beta"] != {"t2i": None, "i2t": None}                  # else nothing is tested
    scores = test.scores - np.reshape(taken["t2i"], (-1, 1)) - taken["i2t"]
    for side, expected in recall_sums(scores, test.caption_image).items():
        assert sum(found["protocols"]["bank"][side][f"r{k}"] for k in (1, 5, 10)) == pytest.approx(expected), side
    compared = ev("--compare", *runs, "--bank", "train")["comparisons"][0]["metrics"]["bank rsum"]
    assert compared["a"] == pytest.approx(ev("--checkpoint", runs[0], "--bank", "train")["protocols"]["bank"]["rsum"])


@pytest.mark.parametrize("words, message", [
    (["--bank", "train", "--split", "train"], "--bank train holds queries of dev, .* or of the split that is"),
    (["--bank", "testall"], "--bank testall holds queries"), (["--bank", "val"], "--bank val holds queries"),
    (["--bank", "train", "--split", "val"], "chooses beta on dev, so the split val is not a test of it"),
    (["--bank", "none"], "no file .*none_caps.txt"), (["--bank", "../x"], "'../x' is not a name of a split")])
def test_splits_that_can_be_no_bank_are_refused(small_run, capsys, words, message):
    helpers.refused(capsys, evaluate.main, ["--checkpoint", small_run("--sim", "cosine"), *words], message)


def test_what_has_no_model_or_no_images_is_refused(small_run, ev, demo_path, capsys):
    run = small_run("--sim", "cosine")
    np.save("s.npy", np.zeros((24, 120), np.float32))
    for words in (["--scores", "s.npy"], ["--compare", run, "s.npy"]):
        helpers.refused(capsys, evaluate.main, [*words, "--bank", "train"],
                        r"--bank train needs a model that embeds the bank, and s\.npy is of the items of one")
    os.makedirs("only/x")
    for name in ("test_caps.txt", "test_img_ids.npy", "test_ann_ids.npy"):
        shutil.copy(f"{demo_path}/demo_precomp/{name}", "only/x")
    words = ["--data_path", "only", "--data_name", "x", "--cxc", "--cxc_path", f"{demo_path}/demo_cxc"]
    helpers.refused(capsys, evaluate.main, ["--checkpoint", run, "--bank", "train", *words],
                    "--bank train normalises scores of images and captions, and .* has no images to score")
