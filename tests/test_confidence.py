"""Confidences, sets and thresholds of a whole gallery against loops over queries; `python -m confidence`."""

import contextlib
import json
import os
import re
import shutil
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import metrics
from checkpoint import MADE_OF_RUN, Trained
from cli import InputError
from confidence import __main__ as confidence
from confidence import calibration, conformal, measures, plots
from confidence.posterior import (
    calibrate,
    estimate_interval,
    find_answers,
    fit_temperature,
    join_blocks,
    rows_of,
)
from evaluation import pictures
from evaluation.embeddings import Embeddings
from evaluation.reading import load_file
from images import Photos
from photos.searcher import read_probabilities
from tests.helpers import evaluated, refused

SIDES = ("t2i", "i2t")


def drawn(seed=0, n=40, each=3, noise=0.9, scale=0.1):
    """A subject of ready scores in which an image's captions are nearer to it; captions in random order."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.repeat(np.arange(n), each))
    scores = scale * ((np.arange(n)[:, None] == owner) + noise * rng.normal(size=(n, n * each)))
    return Embeddings("drawn", owner, n, matrix=scores.astype(np.float32))


def slow_answers(e, side, t):
    """Result of `answers`, query by query, from the definitions."""
    found, owner = [], e.caption_image.tolist()
    for q in range(len(owner)) if side == "t2i" else sorted(set(owner)):
        row = e.scores[:, q] if side == "t2i" else e.scores[q]
        of = range(e.n_images) if side == "t2i" else owner  # the image of each item
        image, top = owner[q] if side == "t2i" else q, int(np.argmax(row))
        p = np.exp(t * row.astype(float)) / np.exp(t * row.astype(float)).sum()
        wrong = [x for x, i in zip(row, of) if i != image]
        found.append(
            (
                top,
                of[top] == image and row[top] > max(wrong),
                row[top],
                p[top],
                sum(x for x, i in zip(p, of) if i == of[top]),
            )
        )
    return [np.array(x) for x in zip(*found)]


@pytest.mark.parametrize("side", SIDES)
def test_answers_are_those_of_a_loop_over_queries(monkeypatch, side):
    monkeypatch.setattr(
        "confidence.posterior.CACHED_SCORES", 250
    )  # several blocks, the last one smaller
    subject = drawn()
    subject.caption_image[:9] = 5  # images of unequal numbers of captions
    found, slow = find_answers(rows_of(subject, side), 12.0), slow_answers(subject, side, 12.0)
    for values, expected in zip(found, slow):
        assert np.allclose(values, expected, atol=2e-6)


def test_figures_do_not_hang_on_the_last_bits_of_scores():
    """Another product or processor makes the same scores but for their last bits: no figure may move in a digit that is
    printed, three at most. Equal captions of different images, and equal images, tie as queries and as answers."""
    subject, rng = drawn(seed=11, n=120), np.random.default_rng(0)
    subject.scores[:, rng.choice(360, 120, replace=False)] = subject.scores[:, rng.choice(360, 120)]
    subject.scores[rng.choice(120, 20, replace=False)] = subject.scores[rng.choice(120, 20)]

    def figures(scores):
        outcomes = measures.measure_confidences(
            replace(subject, matrix=scores), dict.fromkeys(SIDES, 12.0)
        )
        return [
            [*numbers.values()]
            for x in outcomes.values()
            for numbers in measures.judge_confidences(x).values()
        ]

    exact = figures(subject.scores)
    for seed in (1, 2, 3):
        bits = np.random.default_rng(seed).integers(-2, 3, subject.scores.shape) * np.spacing(
            subject.scores
        )
        for values, expected in zip(figures(subject.scores + bits), exact):
            assert values == pytest.approx(expected, rel=2e-4, abs=2e-4, nan_ok=True)


def test_a_wrong_item_that_ties_is_no_right_answer():
    subject = Embeddings(
        "x", np.array([0, 0, 1]), 2, matrix=np.array([[1, 1, 0.5], [0.2, 1, 1]], np.float32)
    )
    assert find_answers(rows_of(subject, "i2t"), 1.0).right.tolist() == [
        True,
        False,
    ]  # right ones tie; a wrong one
    assert find_answers(rows_of(subject, "t2i"), 1.0).right.tolist() == [True, False, True]


@pytest.mark.parametrize("side", SIDES)
def test_sets_are_those_of_a_loop_over_items(side):
    subject, t = drawn(seed=3), 9.0
    rows = rows_of(subject, side)
    scores, right = (torch.cat(x) for x in zip(*rows.blocks()))
    sizes, strange = (
        conformal.count_items(scores, t, 3.0),
        conformal.compute_strangeness(scores, right, t),
    )
    for q in range(len(rows.queries)):
        p = (t * scores[q].double()).softmax(0)
        held = {j for j in range(rows.gallery) if -np.log(float(p[j])) <= 3}
        assert len(held) == sizes[q]
        assert any(right[q, j] for j in held) == bool(strange[q] <= 3)


def test_limits_are_of_one_caption_of_each_image():
    assert [conformal.conformal_rank(n, 0.2) for n in (4, 39, 40)] == [
        4,
        32,
        33,
    ]  # ceil((n + 1) 0.8)
    subject = drawn()
    rows = conformal.one_query_per_image(subject, "t2i")
    assert (
        sorted(rows.owner) == list(range(40))
        and (subject.caption_image[rows.queries] == rows.owner).all()
    )
    assert conformal.one_query_per_image(subject, "i2t").queries.tolist() == list(range(40))


def judged(*words):
    return confidence.judge_model(
        confidence.parse_args([*map(str, words), "--device", "cpu", "--overwrite"])
    )


def exported(run, split, path, *words):
    """Embeddings of a split in a file."""
    evaluated(
        "--checkpoint",
        run,
        "--split",
        split,
        "--export",
        path,
        "--output",
        f"{path}.json",
        "--overwrite",
        *words,
    )


@pytest.mark.usefixtures("undrawn")
def test_a_run_its_embeddings_and_its_scores_agree(learned_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    direct = judged(learned_runs / "cosine", "--sets", 0.2, "--output", "direct.json")
    for split in ("dev", "test"):
        exported(learned_runs / "cosine", split, f"{split}.npz")
        np.save(f"{split}.npy", load_file(f"{split}.npz").scores)
    for kind in ("npz", "npy"):
        other = judged(f"test.{kind}", "--dev", f"dev.{kind}", "--sets", 0.2)
        for side in SIDES:
            for name, numbers in direct["confidence"][side].items():
                if name == "words":  # the files do not hold the captions' texts
                    continue
                assert other["confidence"][side][name]["auroc"] == pytest.approx(
                    numbers["auroc"], abs=1e-3
                )
            sure, expected = (x["sets"][side]["lac"]["coverage"] for x in (other, direct))
            assert sure == pytest.approx(expected, abs=0.05)


# ---- the model's own probability


def made_up(n=60, each=2, noise=1.0, seed=0, **arrays):
    """Arrays of embeddings whose captions are near their images."""
    rng = np.random.default_rng(seed)
    images, owner = rng.normal(size=(n, 16)), np.repeat(np.arange(n), each)
    captions = images[owner] + noise * rng.normal(size=(n * each, 16))
    ids = {"image_id": np.arange(n) + 1000 * seed, "caption_id": np.arange(n * each)}
    return {"image_mean": images, "caption_mean": captions, "caption_image": owner} | ids | arrays


@pytest.fixture
def files(tmp_path, monkeypatch, undrawn):
    """files(**arrays of test): test.npz and dev.npz in the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(**arrays):
        np.savez("test.npz", **made_up(**arrays))
        np.savez("dev.npz", **made_up(seed=1))
        return "test.npz", "--dev", "dev.npz"

    return write


def test_the_own_probability_stands_beside_the_fitted_ones(files, capsys):
    results = judged(*files(logit_scale=np.float32(100.0), logit_bias=-10.0))
    stored, shown = json.loads(open("test_calibration.json").read()), capsys.readouterr().out
    e = made_up()
    x, y = (
        e[name] / np.linalg.norm(e[name], axis=1, keepdims=True)
        for name in ("image_mean", "caption_mean")
    )
    pair, s = stored["pair"], (y @ x.T).max(1)
    right = (y @ x.T).argmax(1) == e["caption_image"]

    def softmax(t):
        p = np.exp(t * (y @ x.T))
        return (p / p.sum(1, keepdims=True)).max(1)

    slow = {
        "own_softmax": softmax(100.0),
        "posterior": softmax(stored["t2i"]["temperature"]),
        "sigmoid": 1 / (1 + np.exp(-pair["slope"] * s - pair["bias"])),
        "own_sigmoid": 1 / (1 + np.exp(-100 * s + 10)),
    }
    found = results["confidence"]["t2i"]
    assert set(found) == {*slow, "max"} and found["max"]["aurc_flat"] == pytest.approx(
        100 - 100 * right.mean()
    )
    for kind, p in slow.items():
        assert found[kind]["mean"] == pytest.approx(p.mean(), abs=1e-5)
    assert (
        f"the model's own softmax says {100 * slow['own_softmax'].mean():.1f}% on average" in shown
    )
    assert "it is too high" in shown and "the model's own sigmoid" in shown
    p = np.exp(100.0 * (x @ y.T))  # image to text: over all captions of the answer's image
    p /= p.sum(1, keepdims=True)
    of_image = p @ np.eye(len(x))[e["caption_image"]]
    grouped = of_image[np.arange(len(x)), e["caption_image"][p.argmax(1)]]
    own = results["confidence"]["i2t"]["own_softmax_grouped"]
    assert (
        own["mean"] == pytest.approx(grouped.mean(), abs=1e-4)
        and "own_softmax" not in results["confidence"]["i2t"]
    )
    assert "i2t: the model's own softmax (sum over the captions of an image) says" in shown


# ---- few images: cross-fitting and intervals


def test_cross_fitting_judges_every_query_by_the_other_images(files, capsys):
    """T of each fold is fitted to the queries of other images, over the whole gallery."""
    files()
    results = judged("test.npz", "--cross_fit", 4)
    shown, e = capsys.readouterr().out, load_file("test.npz")
    assert "judged on 60 images and 120 captions, in 4 folds of the images" in shown
    order = np.random.default_rng(0).permutation(60)
    for side, asked in (("t2i", 120), ("i2t", 60)):
        rows, p = rows_of(e, side), np.zeros(asked)
        scores, right = join_blocks(rows)
        for k in range(4):
            held = np.isin(rows.owner, order[k::4])
            t = fit_temperature(scores[~held], right[~held])
            p[held] = (t * scores[held].double()).softmax(1).amax(1).numpy()
        numbers = results["confidence"][side]["posterior"]
        hits = (right.gather(1, scores.argmax(1, keepdim=True))[:, 0]).numpy()
        assert numbers["mean"] == pytest.approx(p.mean(), abs=1e-4)
        assert numbers["brier"] == pytest.approx(brier_score_loss(hits, p), abs=1e-4)
    stored = json.loads(open("test_calibration.json").read())
    assert stored["t2i"]["temperature"] == pytest.approx(
        calibrate(e, "")["t2i"]["temperature"]
    )  # of all


def test_cross_fitting_of_a_run(learned_runs, tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(learned_runs / "cosine", tmp_path / "run")
    results = judged(run, "--cross_fit", 5, "--split", "dev", "--output", "own.json")
    assert results["images"] == 50 and results["captions"] == 250


def test_intervals_cover_what_other_images_show():
    """Those of a bootstrap of images by loops, and of T by fitting it again."""
    e = drawn(seed=5, n=150, noise=0.5)
    outcomes = measures.measure_confidences(e, dict.fromkeys(SIDES, 12.0))["t2i"]
    found = measures.estimate_intervals(outcomes)
    right, p, owner = (
        outcomes.right,
        outcomes.confidences["posterior"].astype(float),
        outcomes.owner,
    )
    scores, own = join_blocks(rows_of(e, "t2i"))
    t, rng = fit_temperature(scores, own), np.random.default_rng(1)
    samples = []
    for _ in range(200):
        drawn_images = rng.integers(150, size=150)
        chosen = np.concatenate([np.flatnonzero(owner == image) for image in drawn_images])
        samples.append(
            (
                right[chosen].mean(),
                roc_auc_score(right[chosen], p[chosen]),
                p[chosen].mean(),
                np.mean((p - right)[chosen] ** 2),
                fit_temperature(scores[chosen], own[chosen]),
            )
        )
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    pairs = [
        found["right"],
        *(found["posterior"][name] for name in ("auroc", "mean", "brier")),
        estimate_interval(scores, own, t, owner),
    ]
    for (a, b), slow_a, slow_b in zip(pairs, low, high):
        assert abs(a - slow_a) + abs(b - slow_b) < 0.4 * (slow_b - slow_a) and a < b


def test_auroc_of_a_sample_is_that_of_its_queries():
    confidence, right = guesses(3, n=90, ties=True)
    image, times = np.arange(90) // 3, np.random.default_rng(0).integers(0, 3, (5, 30))
    chosen = [np.repeat(np.arange(90), row[image]) for row in times]
    assert measures.sample_auroc(confidence, right, times, image) == pytest.approx(
        [roc_auc_score(right[c], confidence[c]) for c in chosen], abs=1e-12
    )


def test_the_scale_of_the_model_may_be_named(files, capsys):
    """Of a folder of two .npy files, which holds no scale, as of the same vectors in an .npz."""
    arrays = made_up(each=5)
    os.mkdir("clip")
    np.save("clip/image_embeddings.npy", arrays["image_mean"].repeat(5, 0))
    np.save("clip/text_embeddings.npy", arrays["caption_mean"])
    np.savez(
        "one.npz",
        image_mean=arrays["image_mean"],
        caption_mean=arrays["caption_mean"],
        logit_scale=100.0,
        similarity="cosine",
    )
    words = ["--cross_fit", 5, "--logit_scale", 100]
    folder, one = judged("clip", *words), judged("one.npz", *words[:2])
    assert (
        folder["confidence"] == one["confidence"] and "own_softmax" in folder["confidence"]["t2i"]
    )
    assert os.path.isfile("clip/confidence.json") and os.path.isfile("clip/calibration.json")
    other = judged("one.npz", *words[:3], 50)["confidence"]["t2i"]["own_softmax"]
    assert other["mean"] < one["confidence"]["t2i"]["own_softmax"]["mean"]
    assert "own_sigmoid" in judged("clip", *words, "--logit_bias", -10)["confidence"]["t2i"]
    refused(
        capsys,
        confidence.main,
        ["clip"],
        "clip has to be calibrated on other items; .* or --cross_fit 10",
    )


def test_numbers_that_rest_on_little_come_with_their_size(files, capsys):
    files()
    judged("test.npz", "--calibrate_on", 0.1, "--sets", 0.2)
    shown = capsys.readouterr().out
    for side, queries in (("t2i", 12), ("i2t", 6)):
        assert re.search(
            rf"note: {side}: T = \S+ is fitted to only {queries} queries, of 6 images; use at least 100",
            shown,
        )
        assert (
            f"note: {side}: ECE is of 15 bins of about {108 / 15 if side == 't2i' else 54 / 15:.1f} queries"
            in shown
        )
    assert "against all others (only 12 matched pairs, of 6 images)" in shown
    assert "note: the sets are fitted to only 6 images; use at least 100" in shown
    np.savez("large.npz", **made_up(n=400, noise=0.9))
    judged("large.npz", "--calibrate_on", 0.5)
    shown = capsys.readouterr().out
    assert (
        "is fitted to only" not in shown
        and "matched pairs, of" not in shown
        and "15 bins of about" not in shown
    )


def test_a_temperature_that_rests_on_few_errors_is_said(files, capsys):
    """Where nearly every top-1 answer of dev is right, nothing tells how sure the others are."""
    files()
    np.savez("large.npz", **made_up(n=400, noise=0.3))
    judged("large.npz", "--calibrate_on", 0.5)
    fitted, shown = (
        json.loads(open("large_calibration.json").read())["t2i"],
        capsys.readouterr().out,
    )
    assert fitted["wrong"] < 10
    assert (
        f"note: t2i: T = {fitted['temperature']:.4g} rests on {fitted['wrong']} wrong top-1 answers of dev, so it "
        "may be far off; calibrate on more images, so that at least 10 are wrong"
    ) in shown
    steep = {"temperature": 2653.0, "deviation": 0.1, "wrong": 20, "queries": 500}
    assert [*measures.doubt_temperature("i2t", steep, 500)] == [
        "note: i2t: T = 2653 times the deviation of the scores is 265 nats, so nearly every probability is 0 or 1"
    ]


# ---- what is refused


def test_what_cannot_be_calibrated_ends_in_a_sentence(files, small_run, capsys):
    run, (point, *dev), half = (
        small_run("--sim", "cosine"),
        files(),
        ["test.npz", "--calibrate_on", 0.5],
    )
    np.savez("dot.npz", **made_up(seed=1, similarity="dot"))
    np.savez("few.npz", image_mean=np.eye(9), caption_mean=np.eye(9)[:1], caption_image=[4])
    for words, said in (
        (["none.npz"], "there is no file none.npz; write it"),
        ([point], "has to be calibrated on other items"),
        ([point, "--dev", "dot.npz"], "is of another model"),
        ([point, "--dev", point], "share .* images"),
        ([point, "--calibrate_on", 0.001], "leaves 0 of"),
        (["few.npz", "--calibrate_on", 0.9], "leaves 1 of 1 captions"),
        ([run, "--split", "dev"], "is what a run is calibrated on"),
        ([run, *dev], "--dev and --train are for embeddings or scores, and .* is a run"),
        ([*half, "--sets", 0.001], "needs at least 999 images to calibrate on"),
        ([*half, "--cross_fit", 5], "are three ways to say what to calibrate on; give one"),
        (
            ["test.npz", "--cross_fit", 61],
            "test.npz has 60 images, and 61 folds were asked for; give 2 to 60 ",
        ),
        (["test.npz", "--cross_fit", 1], "'1' is not a whole number of at least 2"),
        (
            ["test.npz", "--cross_fit", 5, "--sets", 0.1],
            "--sets and --variances are fitted to images apart",
        ),
        (
            [run, "--cross_fit", 5, "--calibrate_on", 0.5],
            "are three ways to say what to calibrate on; give one",
        ),
        ([*half, "--logit_scale", 0], "'0' is not a number above 0"),
        (
            [*half, "--logit_bias", -10],
            "the scale must be a number above 0, the factor of a cosine",
        ),
    ):
        refused(capsys, confidence.main, words, said)
    for arrays, said in (
        ({"logit_scale": np.array("x")}, "logit_scale must hold one number, and has shape"),
        ({"logit_scale": -1.0}, "-1.0} the scale must be a number above 0, the factor of a cosine"),
        ({"logit_bias": -10.0}, "'logit_bias': -10.0} the scale must be a number above 0"),
        ({"logit_scale": 100.0, "similarity": "dot"}, "of a cosine, .* and the similarity is dot"),
    ):
        files(**arrays)
        refused(capsys, confidence.main, half, said)
    judged(*files(logit_scale=4.6052))
    assert (
        "note: logit_scale 4.6052 is small; CLIP and SigLIP keep the logarithm"
        in capsys.readouterr().out
    )


# ---- pictures


def test_examples_are_of_all_kinds_and_each_once():
    said = [calibration.percent(p) for p in (0, 0.004, 0.006, 0.724, 0.994, 0.996, 1)]
    assert said == ["under 1%", "under 1%", "1%", "72%", "99%", "over 99%", "over 99%"]
    p = np.linspace(0.99, 0.01, 40)
    right = np.arange(40) % 2 == 0
    assert list(plots.choose_examples(p, right).values()) == [
        [0, 2, 4, 6],
        [1, 3, 5],
        [18, 19, 20],
        [39, 38, 37],
    ]
    usable = np.arange(40) >= 4  # without the photos of the others
    assert plots.choose_examples(p, right, usable)["most confident, right"] == [4, 6, 8, 10]
    for n in (2, 5, 9):  # too few for all headings
        shown = sum(plots.choose_examples(p[:n], right[:n]).values(), [])
        assert sorted(shown) == sorted(set(shown)) and len(shown) >= min(n, 5)


@pytest.fixture
def figures(monkeypatch):
    """Contents of the pictures: {file: axes of its curves}, and "rows", those of the last sheet."""
    found = {}

    @contextlib.contextmanager
    def keeping(path, *rest, **more):
        with pictures.drawing(path, *rest, **more) as (figure, axes):
            yield figure, axes
            found[os.path.basename(path)] = axes

    monkeypatch.setattr(plots, "drawing", keeping)
    monkeypatch.setattr(
        plots,
        "draw_rows",
        lambda path, title, rows, across: (
            found.update(rows=rows),
            pictures.draw_rows(path, title, rows, across),
        ),
    )
    return found


def test_a_part_of_the_images_knows_its_own_names():
    """Examples of --calibrate_on are drawn of it."""
    owner, names, scores = (
        np.array([3, 0, 2, 1, 1]),
        [f"{k}.jpg" for k in range(4)],
        np.arange(20).reshape(4, 5),
    )
    whole = Embeddings(
        "x",
        owner,
        4,
        matrix=scores,
        photos=Photos(names),
        ids={"image_name": names, "caption": list("abcde"), "caption_id": list(range(5))},
    )
    part = whole.subset(np.array([1, 3]))
    assert part.ids == {
        "image_name": ["1.jpg", "3.jpg"],
        "caption": ["a", "d", "e"],
        "caption_id": [0, 3, 4],
    }
    assert part.photos.paths == ["1.jpg", "3.jpg"] and part.caption_image.tolist() == [1, 0, 0]
    assert part.scores.tolist() == [[5, 8, 9], [15, 18, 19]]


def test_examples_say_what_was_asked_answered_and_how_surely(figures, tmp_path):
    for k in range(2):
        Image.new("RGB", (9, 9), (k, 0, 0)).save(tmp_path / f"{k}.png")
    photos, path = Photos([str(tmp_path / f"{k}.png") for k in range(2)]), str(tmp_path / "p.png")
    subject = Embeddings("x", np.array([0, 0, 1, 1]), 2, ids={"caption": ["a", "b", "c", "d"]})

    def shown(side, values, right, asked, answers, of):
        seen = measures.Outcomes(
            {name: np.array(p) for name, p in values.items()},
            np.array(right),
            np.array(asked),
            np.array(answers),
            np.array(of),
        )
        plots.draw_examples({side: seen}, subject, photos, path)
        return [
            (cell.photo.getpixel((0, 0))[0], cell.label.splitlines())
            for row in figures["rows"]
            for cell in row.cells
        ]

    assert shown("t2i", {"posterior": [0.72, 0.3]}, [True, False], [1, 2], [0, 0], [0, 1]) == [
        (0, ["72% sure, right", '"b"']),
        (0, ["30% sure, wrong", '"c"']),
        (1, ["the caption's own"]),
    ]
    values = {"posterior": [0.1, 0.1], "posterior_grouped": [0.4, 0.2]}
    assert shown("i2t", values, [False, False], [1, 0], [2, 3], [1, 0]) == [
        (1, ["40% sure, a wrong answer", "scores the same", 'answer: "c"']),
        (0, ["20% sure, wrong", 'answer: "d"', 'its own: "a"']),
    ]


def test_a_gaussian_run(learned_runs, tmp_path, figures, capsys):
    run = shutil.copytree(learned_runs / "wasserstein", tmp_path / "run")
    results = judged(run, "--sets", 0.2, "--photos", learned_runs / "data" / "demo" / "images")
    shown = capsys.readouterr().out
    assert all(line in shown for line in measures.LEGEND)
    assert all((run / f"{name}.png").stat().st_size > 10_000 for name in plots.PICTURES)
    assert all(
        MADE_OF_RUN.fullmatch(f"{name}.png") for name in plots.PICTURES
    )  # they go with a run replaced
    for (left, right), side in zip(figures["confidence.png"], SIDES):
        found, held = results["confidence"][side], results["sets"][side]["lac"]
        more = {"i2t": {"posterior_grouped"}, "t2i": {"words"}}[side]
        assert set(found) == {"posterior", "max", "log_det_query"} | more
        best = found["posterior_grouped" if side == "i2t" else "posterior"]
        assert f"{side}: {100 - best['aurc_flat']:.1f}% of the top-1 answers are right, " in shown
        assert (
            held["low"] - 0.1 <= held["coverage"] <= held["high"] + 0.1
            and held["low"] < 0.8 < held["high"]
        )
        points = left.containers[0].lines[0].get_xydata()  # bins of equal mass
        assert points.mean(0) == pytest.approx([100 * best["mean"], 100 - best["aurc_flat"]], abs=2)
        assert abs(abs(points[:, 0] - points[:, 1]).mean() - 100 * best["ece"]) < 1
        assert len(right.lines) == len(found) + 2  # no knowledge and the perfect order
        (strong,) = (line for line in right.lines if line.get_linewidth() == 3)
        assert strong.get_label().startswith(f"{best['aurc']:.1f}  posterior")
    assert len(figures.pop("rows")) == 8  # four kinds of examples of each direction
    stored = json.loads((run / "calibration.json").read_text())
    t = stored["t2i"]["temperature"]
    assert stored["i2t"]["gallery"] == 5 * stored["t2i"]["gallery"] == 250
    assert read_probabilities(str(run), Trained(str(run)))[:2] == (
        t,
        "demo_precomp",
    )  # as a search takes it
    other = types.SimpleNamespace(weights="other", options=types.SimpleNamespace(sim="wasserstein"))
    with pytest.raises(
        InputError, match="run by wasserstein and not of the weights of .*run by wass.*; write"
    ):
        read_probabilities(str(run), other)
    (run / "calibration.json").write_text(
        json.dumps({**stored, "words": {"slope": 1.0}})
    )  # by photos.words --fit
    assert (
        judged(run)["confidence"] == results["confidence"] and "rows" not in figures
    )  # over its own files
    assert json.loads((run / "calibration.json").read_text())["words"] == {"slope": 1.0}
    assert json.loads((run / "confidence.json").read_text())["confidence"] == results["confidence"]
    for broken in ("{}", "[1]", "no JSON"):
        (run / "calibration.json").write_text(broken)
        assert judged(run) and read_probabilities(str(run), Trained(str(run)))[0] == t


# ---- metrics of confidences, against scikit-learn and loops


def guesses(seed, n=300, ties=False):
    """Confidences that know something of whether guesses are right."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n)
    if ties:
        confidence = np.round(confidence, 1)
    return confidence, rng.random(n) < 0.2 + 0.5 * confidence


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_brier_and_nll_are_those_of_scikit_learn(ties):
    for seed in range(5):
        confidence, right = guesses(seed, ties=ties)
        assert measures.auroc(confidence, right) == pytest.approx(
            roc_auc_score(right, confidence), abs=1e-12
        )
        risk = metrics.risk_coverage(-confidence, right)
        assert measures.judge_order(confidence, right) == {
            "auroc": measures.auroc(confidence, right),
            "aurc": risk["area"],
            "aurc_flat": risk["area_random"],
        }
        inside = np.clip(confidence, 0.01, 0.99)
        found = measures.judge_probability(inside, right)
        assert found["brier"] == pytest.approx(brier_score_loss(right, inside), abs=1e-12)
        assert found["nll"] == pytest.approx(log_loss(right, inside), abs=1e-9)
        assert np.isfinite(measures.judge_probability(np.float32(right), ~right)["nll"])
    all_right = {"posterior": measures.judge_order(confidence, confidence > -1)}
    assert np.isnan(all_right["posterior"]["auroc"]) and all_right["posterior"]["aurc"] == 0
    assert "-" in str(measures.tabulate_confidences({"t2i": all_right}))


def test_calibration_error_and_its_floor():
    rng = np.random.default_rng(5)
    p = rng.random(3007)
    right = rng.random(3007) < p
    slow, order, sizes = 0, sorted(range(3007), key=lambda q: p[q]), [201] * 7 + [200] * 8
    for size in sizes:  # a bin counts as its queries
        part, order = order[:size], order[size:]
        slow += (
            size / 3007 * abs(sum(p[q] for q in part) / size - sum(right[q] for q in part) / size)
        )
    error, floor = (measures.judge_probability(p, right)[name] for name in ("ece", "ece_floor"))
    assert error == pytest.approx(slow, abs=1e-12)
    assert floor == pytest.approx(0.8 * np.mean(np.sqrt(p * (1 - p) * 15 / 3007)), rel=0.1)
    assert (
        error < 2 * floor and measures.judge_probability(np.sqrt(p), right)["ece"] > 4 * floor
    )  # overconfident
    bins = measures.reliability(p, right)
    assert bins["queries"] == sizes
    assert sum(
        n / 3007 * abs(a - b) for n, a, b in zip(sizes, bins["p"], bins["right"])
    ) == pytest.approx(slow)


def test_temperature_is_the_one_that_drew_the_right_items():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, 30, generator=generator)
    drawn = torch.multinomial((2.5 * scores).softmax(1), 1, generator=generator)
    right = torch.zeros(4000, 30, dtype=torch.bool).scatter(1, drawn, True)
    assert fit_temperature(scores, right) == pytest.approx(2.5, rel=0.05)
    assert fit_temperature(100 * scores - 7, right) == pytest.approx(0.025, rel=0.05)
    grid = np.linspace(2.2, 2.8, 100)
    losses = [-(t * scores).log_softmax(1)[right].mean() for t in grid]
    assert fit_temperature(scores, right) == pytest.approx(grid[int(np.argmin(losses))], abs=0.01)
    two = right | torch.zeros_like(right).index_fill(
        1, torch.tensor([3]), True
    )  # item 3 is right, too, for all
    losses = [-((t * scores).log_softmax(1).exp() * two).sum(1).log().mean() for t in grid]
    assert fit_temperature(scores, two) == pytest.approx(grid[int(np.argmin(losses))], abs=0.01)


def test_temperature_of_scores_that_tell_nothing():
    own, scores = torch.eye(50, dtype=torch.bool), torch.eye(50)
    scores[0, 1] = 0.9999  # nearly as good as the right one
    for right, said in (
        (~own, "do not tell which items"),
        (own, "every top-1 answer of the dev split is right"),
    ):
        with pytest.raises(ValueError, match=f"no temperature fits: .*{said}"):
            fit_temperature(scores, right)
    with pytest.raises(ValueError, match="all scores of a query are equal"):
        fit_temperature(torch.zeros(4, 5), torch.ones(4, 5, dtype=torch.bool))
