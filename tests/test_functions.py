"""The functions for embeddings and scores in memory give the numbers of the commands."""

import json

import numpy as np
import pytest
import torch

import metrics
from confidence import __main__ as confidence
from confidence import calibrate
from evaluation import evaluate, evaluate_hard_negatives
from tests.helpers import evaluated
from utils import InputError

NUMBERS = ("images", "captions", "protocols", "chance", "best_ranks")


def made_up(n=60, each=5, width=8, seed=0):
    """Images (N, D), captions (M, D) near them in any order, and the image of each (M,)."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((n, width))
    owner = rng.permutation(np.repeat(np.arange(n), each))
    captions = images[owner] + 1.3 * rng.standard_normal((n * each, width))
    return images.astype(np.float32), captions.astype(np.float32), owner


def plain(value):
    """What JSON makes of a value, which is then equal to it."""
    again = json.loads(json.dumps(value))
    assert again == value
    return again


@pytest.fixture
def written(tmp_path, monkeypatch, undrawn):
    """written(**arrays): x.npz in the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(**arrays):
        np.savez("x.npz", **arrays)
        return "x.npz"

    return write


def to_tensor_with_gradient(x):
    return torch.from_numpy(x).requires_grad_(x.dtype.kind == "f")


@pytest.mark.parametrize(
    "convert",
    [np.asarray, torch.from_numpy, to_tensor_with_gradient, np.ndarray.tolist],
    ids=["numpy", "torch", "gradient", "lists"],
)
def test_evaluate_gives_the_results_of_the_command(written, convert):
    images, captions, owner = made_up()
    path = written(
        image_mean=images, caption_mean=captions, caption_image=owner, similarity="cosine"
    )

    of_command = evaluated("--embeddings", path)
    found = plain(evaluate(convert(images), convert(captions), convert(owner)))

    assert found == {name: of_command[name] for name in found}
    assert {*NUMBERS, "similarity"} <= set(found)
    assert set(of_command) - set(found) == {"checkpoints", "data_name", "split"}
    assert 20 < found["protocols"]["full"]["t2i"]["r1"] < 90


def test_half_floats_and_repeated_rows_are_read():
    images, captions, owner = made_up()

    half_images = torch.from_numpy(images).bfloat16()
    half_captions = torch.from_numpy(captions).bfloat16()
    exact = evaluate(half_images.float(), half_captions.float(), owner)
    assert evaluate(half_images, half_captions, owner)["protocols"] == exact["protocols"]

    whole = evaluate(images, captions, owner)
    sorted_captions = captions[np.argsort(owner, kind="stable")]
    note = "does not say which image each caption belongs to, so 5 per image, in order, are assumed"
    for rows in (images, images.repeat(5, 0)):  # once, or once for each caption
        found = evaluate(rows, sorted_captions)
        assert found["protocols"] == whole["protocols"]
        assert found["images"] == 60
        assert note in found["notes"][0]


def test_other_similarities_and_variances(written):
    images, captions, owner = made_up()
    variances = {"image_log_var": -(images[:, :1] ** 2), "caption_log_var": np.sin(captions)}
    means = {"image_mean": images, "caption_mean": captions, "caption_image": owner}
    path = written(similarity="csd", **means, **variances)

    of_command = evaluated("--embeddings", path, "--uncertainty")
    found = plain(evaluate(images, captions, owner, "csd", uncertainty=True, **variances))

    assert found == {name: of_command[name] for name in found}
    assert "shuffled" in found["protocols"]
    assert "recall_bins" in found["uncertainty"]["captions"]


def test_scores_of_both_directions_at_once(written):
    images, captions, owner = made_up()
    scores = images @ captions.T
    order = np.argsort(owner, kind="stable")
    np.save("x.npy", scores[:, order])

    of_command = evaluated("--scores", "x.npy")
    found = plain(evaluate(scores=scores, owner=owner))

    for name in NUMBERS:
        assert found[name] == of_command[name]
    assert found["protocols"]["full"] == metrics.retrieval(scores, owner)


def test_one_matrix_of_scores_for_each_direction():
    """Re-rankers: the matrix of one direction has scores far below for what it did not look at."""
    images, captions, owner = made_up()
    scores = images @ captions.T
    rng = np.random.default_rng(1)
    of_images = np.where(rng.random(scores.shape) < 0.5, scores, -100).astype(np.float32)  # (N, M)
    of_captions = np.where(rng.random(scores.shape) < 0.5, scores, -100).T  # (M, N)
    of_captions = of_captions.astype(np.float32)
    in_torch = torch.from_numpy(of_captions)

    found = plain(evaluate(scores_i2t=of_images, scores_t2i=in_torch, owner=owner))

    first = metrics.retrieval(of_images, owner)
    second = metrics.retrieval(of_captions.T, owner)
    full = found["protocols"]["full"]
    assert full["i2t"] == first["i2t"]
    assert full["t2i"] == second["t2i"]
    assert first["t2i"] != second["t2i"]
    recalls = [full["i2t"][name] for name in ("r1", "r5", "r10")]
    recalls += [full["t2i"][name] for name in ("r1", "r5", "r10")]
    assert full["rsum"] == pytest.approx(sum(recalls))

    _, best_ranks = metrics.ranks(of_captions.T, owner)
    assert found["best_ranks"]["t2i"] == metrics.best_rank_means(best_ranks)
    assert set(found["ties"]) == {"i2t", "t2i"}

    same = evaluate(scores_i2t=scores, scores_t2i=scores.T, owner=owner)
    assert same == evaluate(scores=scores, owner=owner)


def test_more_images_than_captions_are_read_where_the_owner_is_known():
    images, captions, owner = made_up()
    found = evaluate(scores=images @ captions[:9].T, owner=owner[:9])
    assert (found["images"], found["captions"]) == (60, 9)


IMAGES, CAPTIONS, OWNER = made_up(n=6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "the call needs image_mean"),
        ({"images": IMAGES}, "needs caption_mean of shape"),
        (
            {"images": IMAGES, "captions": CAPTIONS[:, :3]},
            "image means of width 8 and caption means of width 3",
        ),
        (
            {"images": IMAGES, "captions": CAPTIONS, "owner": OWNER + 1},
            "caption_image must hold 30 whole numbers from 0",
        ),
        (
            {"images": IMAGES, "captions": CAPTIONS, "owner": OWNER[:9]},
            "caption_image must hold 30 whole numbers",
        ),
        (
            {"images": IMAGES * np.nan, "captions": CAPTIONS},
            "holds NaN, infinity or numbers above 1e.18 in image_mean",
        ),
        ({"images": IMAGES, "captions": CAPTIONS, "sim": "euclid"}, "has similarity 'euclid'"),
        ({"images": IMAGES, "captions": CAPTIONS, "sim": "wasserstein"}, "needs variances"),
        (
            {"images": IMAGES, "captions": CAPTIONS, "scores": IMAGES @ CAPTIONS.T},
            "are two sources of ranks",
        ),
        ({"scores_i2t": IMAGES @ CAPTIONS.T}, "rank one direction each; give both, or scores"),
        (
            {"scores_i2t": IMAGES @ CAPTIONS.T, "scores_t2i": IMAGES @ CAPTIONS.T, "owner": OWNER},
            r"has shape \(6, 30\) and scores_t2i \(6, 30\); "
            "scores_i2t is images x captions, scores_t2i captions x images",
        ),
        ({"scores": IMAGES @ CAPTIONS.T, "scores_i2t": IMAGES}, "scores ranks both directions"),
        (
            {"scores": IMAGES @ CAPTIONS.T, "owner": OWNER / 2},
            "owner has shape .30,. of float64; give the row of each",
        ),
        ({"scores": CAPTIONS @ IMAGES.T}, "scores has 30 rows and 6 columns and seems transposed"),
        (
            {"scores": IMAGES @ CAPTIONS.T * np.nan, "owner": OWNER},
            "the scores hold NaN or infinity",
        ),
    ],
)
def test_what_cannot_be_ranked_is_a_value_error_with_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        evaluate(**arguments)
    assert isinstance(error.value, InputError)


# ---- confidence


def judged(*words) -> dict:
    """The results of `python -m confidence`."""
    opt = confidence.parse_args([*map(str, words), "--device", "cpu", "--overwrite"])
    return confidence.judge_model(opt)


@pytest.mark.parametrize(
    "words, arguments",
    [
        (["--cross_fit", 10], {}),
        (["--cross_fit", 3], {"cross_fit": 3}),
        (["--calibrate_on", 0.5], {"calibrate_on": 0.5}),
        (["--dev", "dev.npz"], {"dev": True}),
        (
            ["--cross_fit", 10, "--logit_scale", 100, "--logit_bias", -10],
            {"logit_scale": 100, "logit_bias": -10},
        ),
    ],
    ids=["folds", "three folds", "half", "dev", "logits"],
)
def test_calibrate_gives_the_results_of_the_command(written, words, arguments):
    images, captions, owner = made_up()
    path = written(
        image_mean=images, caption_mean=captions, caption_image=owner, similarity="cosine"
    )

    dev_images, dev_captions, dev_owner = made_up(seed=1)
    np.savez(
        "dev.npz",
        image_mean=dev_images,
        caption_mean=dev_captions,
        caption_image=dev_owner,
        similarity="cosine",
    )

    if "dev" in arguments:
        dev = {"images": dev_images, "captions": dev_captions, "owner": dev_owner}
        arguments = {"dev": dev}

    of_command = judged(path, *words)
    found = plain(calibrate(torch.from_numpy(images), captions.tolist(), owner, **arguments))

    for name in ("confidence", "intervals", "similarity", "images", "captions"):
        assert found[name] == json.loads(json.dumps(of_command[name])), name

    with open("x_calibration.json", encoding="utf-8") as f:
        stored = json.load(f)
    for name, value in found["calibration"].items():
        if name != "split":
            assert value == stored[name], name

    assert {"t2i", "i2t", "pair"} <= set(found["calibration"])


def test_calibrate_takes_scores():
    images, captions, owner = made_up()
    x, y = (e / np.linalg.norm(e, axis=1, keepdims=True) for e in (images, captions))

    by_scores = calibrate(scores=x @ y.T, owner=owner)
    by_means = calibrate(images, captions, owner)

    for side in ("t2i", "i2t"):
        temperature = by_scores["calibration"][side]["temperature"]
        expected = by_means["calibration"][side]["temperature"]
        assert temperature == pytest.approx(expected, rel=1e-4)

        auroc = by_scores["confidence"][side]["posterior"]["auroc"]
        expected = by_means["confidence"][side]["posterior"]["auroc"]
        assert auroc == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dev": {"image": IMAGES}}, "dev holds 'image'; it may hold images, captions, owner"),
        (
            {"dev": {"images": IMAGES, "captions": CAPTIONS}, "calibrate_on": 0.5},
            "two ways to say what to calibrate on",
        ),
        ({"cross_fit": 7}, "has 6 images, and 7 folds were asked for; give 2 to 6 folds"),
        ({"logit_scale": -1}, "the scale must be a number above 0"),
        ({"calibrate_on": 0.001}, "leaves 0 of 30 captions"),
    ],
)
def test_what_cannot_be_calibrated_is_a_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate(IMAGES, CAPTIONS, OWNER, **arguments)


@pytest.mark.parametrize("by_scores", [False, True], ids=["embeddings", "scores"])
def test_calibrate_refuses_scores_that_tell_nothing(by_scores):
    """Each query finds its own target last: the model may be good, and the rows mixed up."""
    vectors = np.eye(20)
    arguments = {"images": vectors, "captions": -vectors}
    if by_scores:
        arguments = {"scores": -vectors}

    with pytest.raises(ValueError) as caught:
        calibrate(owner=np.arange(20), **arguments)

    assert str(caught.value) == (
        "no temperature fits: the scores do not tell matched pairs from others (the best T is 0); "
        "check that the rows belong together, and that higher scores are better"
    )


# ---- what people bring


def test_other_kinds_of_numbers_are_read():
    images, captions, owner = made_up()
    expected = evaluate(images, captions, owner)["protocols"]

    for change in (
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.longdouble),
        lambda x: [torch.from_numpy(row).requires_grad_() for row in x],
        lambda x: [torch.from_numpy(row) for row in x],
    ):
        assert evaluate(change(images), change(captions), owner)["protocols"] == expected

    counts = np.random.default_rng(0).permutation(60 * 300).reshape(60, 300)
    expected = evaluate(scores=counts.astype(float), owner=owner)["protocols"]
    assert evaluate(scores=counts, owner=owner)["protocols"] == expected
    assert evaluate(scores=counts.tolist(), owner=owner)["protocols"] == expected


def test_tensors_of_different_shapes_are_refused():
    rows = [torch.ones(3), torch.ones(4)]
    with pytest.raises(InputError, match="the tensors of a list differ .*; give them one shape"):
        evaluate(rows, rows)


def test_one_image_is_not_far_worse_than_chance():
    images, captions, _ = made_up(1, 40)
    results = evaluate(images, captions, np.zeros(40, int))
    assert "worse than chance" not in str(results.get("notes"))


def test_texts_are_given_for_both_sides_and_for_each_item():
    images, captions, owner = made_up()
    negatives = captions[:, None].repeat(2, 1)
    arrays = {"images": images, "captions": captions, "negatives": negatives, "owner": owner}
    texts = ["a"] * len(captions)
    with pytest.raises(InputError, match="give both, or neither"):
        evaluate_hard_negatives(**arrays, texts=texts)

    uneven = [["b"], ["b", "c", "d"]] + [["b", "c"]] * (len(captions) - 2)
    with pytest.raises(InputError, match="and 2 in each list of negatives"):
        evaluate_hard_negatives(**arrays, texts=texts, negative_texts=uneven)
