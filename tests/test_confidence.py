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

import metrics
from checkpoint import MADE_OF_RUN, Trained
from confidence import __main__ as confidence
from confidence import calibration, conformal, measures, plots, posterior
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
from utils import InputError

SIDES = ("t2i", "i2t")


def drawn(seed=0, n=40, each=3, noise=0.9, scale=0.1):
    """A subject of ready scores in which an image's captions are nearer to it; captions in random order."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.repeat(np.arange(n), each))
    is_own = np.arange(n)[:, None] == owner
    scores = scale * (is_own + noise * rng.normal(size=(n, n * each)))
    return Embeddings("drawn", owner, n, matrix=scores.astype(np.float32))


def list_rows(e, side):
    """[(scores of a query, the query's image, the image of each item)], images without captions left out."""
    owner = e.caption_image.tolist()
    if side == "t2i":
        return [(e.scores[:, q], image, range(e.n_images)) for q, image in enumerate(owner)]
    return [(e.scores[image], image, owner) for image in sorted(set(owner))]


def slow_answers(e, side, t):
    """Result of `answers`, query by query, from the definitions."""
    found = []
    for row, image, image_of_item in list_rows(e, side):
        top = int(np.argmax(row))
        wrong = [x for x, i in zip(row, image_of_item) if i != image]
        right = image_of_item[top] == image and row[top] > max(wrong)

        p = np.exp(t * row.astype(float))
        p /= p.sum()
        p_of_image = sum(x for x, i in zip(p, image_of_item) if i == image_of_item[top])

        found.append((top, right, row[top], p[top], p_of_image))
    return [np.array(values) for values in zip(*found)]


@pytest.mark.parametrize("side", SIDES)
def test_answers_are_those_of_a_loop_over_queries(monkeypatch, side):
    # Several blocks, the last one smaller.
    monkeypatch.setattr("confidence.posterior.CACHED_SCORES", 250)
    subject = drawn()
    subject.caption_image[:9] = 5  # images of unequal numbers of captions

    found = find_answers(rows_of(subject, side), 12.0)

    for values, expected in zip(found, slow_answers(subject, side, 12.0)):
        assert np.allclose(values, expected, atol=2e-6)


def test_figures_do_not_hang_on_the_last_bits_of_scores():
    """Another product or processor makes the same scores but for their last bits: no figure may move in a digit that is
    printed, three at most. Equal captions of different images, and equal images, tie as queries and as answers."""
    subject = drawn(seed=11, n=120)
    rng = np.random.default_rng(0)
    copied = rng.choice(360, 120)
    replaced = rng.choice(360, 120, replace=False)
    subject.scores[:, replaced] = subject.scores[:, copied]
    copied = rng.choice(120, 20)
    replaced = rng.choice(120, 20, replace=False)
    subject.scores[replaced] = subject.scores[copied]

    def list_figures(scores):
        changed = replace(subject, matrix=scores)
        outcomes = measures.measure_confidences(changed, dict.fromkeys(SIDES, 12.0))
        figures = []
        for outcome in outcomes.values():
            for numbers in measures.judge_confidences(outcome).values():
                figures.append([*numbers.values()])
        return figures

    exact = list_figures(subject.scores)
    for seed in (1, 2, 3):
        last_bits = np.random.default_rng(seed).integers(-2, 3, subject.scores.shape)
        moved = subject.scores + last_bits * np.spacing(subject.scores)
        for values, expected in zip(list_figures(moved), exact):
            assert values == pytest.approx(expected, rel=2e-4, abs=2e-4, nan_ok=True)


def test_a_wrong_item_that_ties_is_no_right_answer():
    scores = np.array([[1, 1, 0.5], [0.2, 1, 1]], np.float32)
    subject = Embeddings("x", np.array([0, 0, 1]), 2, matrix=scores)

    images = find_answers(rows_of(subject, "i2t"), 1.0)
    captions = find_answers(rows_of(subject, "t2i"), 1.0)

    # Two right captions of image 0 tie, and a wrong one with the right one of image 1.
    assert images.right.tolist() == [True, False]
    assert captions.right.tolist() == [True, False, True]


@pytest.mark.parametrize("side", SIDES)
def test_sets_are_those_of_a_loop_over_items(side):
    t = 9.0
    rows = rows_of(drawn(seed=3), side)
    scores, right = (torch.cat(x) for x in zip(*rows.blocks()))

    sizes = conformal.count_items(scores, t, 3.0)
    strange = conformal.compute_nonconformity(scores, right, t)

    for q in range(len(rows.queries)):
        p = (t * scores[q].double()).softmax(0)
        held = {j for j in range(rows.gallery) if -np.log(float(p[j])) <= 3}
        assert len(held) == sizes[q]
        assert any(right[q, j] for j in held) == bool(strange[q] <= 3)


def test_limits_are_of_one_caption_of_each_image():
    # ceil((n + 1) 0.8)
    assert [conformal.conformal_rank(n, 0.2) for n in (4, 39, 40)] == [4, 32, 33]

    subject = drawn()
    rows = conformal.one_query_per_image(subject, "t2i")
    assert sorted(rows.owner) == list(range(40))
    assert (subject.caption_image[rows.queries] == rows.owner).all()
    assert conformal.one_query_per_image(subject, "i2t").queries.tolist() == list(range(40))


def judged(*words):
    """The results of `python -m confidence`."""
    opt = confidence.parse_args([*map(str, words), "--device", "cpu", "--overwrite"])
    return confidence.judge_model(opt)


def exported(run, split, path, *words):
    """Embeddings of a split in a file."""
    what = ["--checkpoint", run, "--split", split]
    outputs = ["--export", path, "--output", f"{path}.json", "--overwrite"]
    evaluated(*what, *outputs, *words)


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
                auroc = other["confidence"][side][name]["auroc"]
                assert auroc == pytest.approx(numbers["auroc"], abs=1e-3)
            coverage, expected = (x["sets"][side]["lac"]["coverage"] for x in (other, direct))
            assert coverage == pytest.approx(expected, abs=0.05)


# ---- the model's own probability


def made_up(n=60, each=2, noise=1.0, seed=0, **arrays):
    """Arrays of embeddings whose captions are near their images."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, 16))
    owner = np.repeat(np.arange(n), each)
    captions = images[owner] + noise * rng.normal(size=(n * each, 16))
    return {
        "image_mean": images,
        "caption_mean": captions,
        "caption_image": owner,
        "image_id": np.arange(n) + 1000 * seed,
        "caption_id": np.arange(n * each),
        **arrays,
    }


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
    stored = json.loads(open("test_calibration.json").read())
    shown = capsys.readouterr().out

    e = made_up()
    images, captions = (
        e[name] / np.linalg.norm(e[name], axis=1, keepdims=True)
        for name in ("image_mean", "caption_mean")
    )
    cosines = captions @ images.T
    top = cosines.max(1)
    right = cosines.argmax(1) == e["caption_image"]

    def softmax(t):
        p = np.exp(t * cosines)
        return (p / p.sum(1, keepdims=True)).max(1)

    pair = stored["pair"]
    slow = {
        "own_softmax": softmax(100.0),
        "posterior": softmax(stored["t2i"]["temperature"]),
        "sigmoid": 1 / (1 + np.exp(-pair["slope"] * top - pair["bias"])),
        "own_sigmoid": 1 / (1 + np.exp(-100 * top + 10)),
    }
    found = results["confidence"]["t2i"]
    assert set(found) == {*slow, "max"}
    assert found["max"]["aurc_flat"] == pytest.approx(100 - 100 * right.mean())
    for kind, p in slow.items():
        assert found[kind]["mean"] == pytest.approx(p.mean(), abs=1e-5)
    own_mean = f"{100 * slow['own_softmax'].mean():.1f}%"
    assert f"the model's own softmax says {own_mean} on average" in shown
    assert "it is too high" in shown
    assert "the model's own sigmoid" in shown

    # Image to text: over all captions of the answer's image.
    p = np.exp(100.0 * cosines.T)
    p /= p.sum(1, keepdims=True)
    of_image = p @ np.eye(len(images))[e["caption_image"]]
    grouped = of_image[np.arange(len(images)), e["caption_image"][p.argmax(1)]]
    found = results["confidence"]["i2t"]
    assert found["own_softmax_grouped"]["mean"] == pytest.approx(grouped.mean(), abs=1e-4)
    assert "own_softmax" not in found
    assert "i2t: the model's own softmax (sum over the captions of an image) says" in shown


# ---- few images: cross-fitting and intervals


def test_cross_fitting_judges_every_query_by_the_other_images(files, capsys):
    """T of each fold is fitted to the queries of other images, over the whole gallery."""
    from sklearn.metrics import brier_score_loss

    files()
    results = judged("test.npz", "--cross_fit", 4)
    shown = capsys.readouterr().out
    assert "judged on 60 images and 120 captions, in 4 folds of the images" in shown

    e = load_file("test.npz")
    order = np.random.default_rng(0).permutation(60)
    for side, n_queries in (("t2i", 120), ("i2t", 60)):
        rows = rows_of(e, side)
        scores, right = join_blocks(rows)
        p = np.zeros(n_queries)
        for k in range(4):
            held = np.isin(rows.owner, order[k::4])
            t = fit_temperature(scores[~held], right[~held])
            p[held] = (t * scores[held].double()).softmax(1).amax(1).numpy()
        hits = (right.gather(1, scores.argmax(1, keepdim=True))[:, 0]).numpy()

        numbers = results["confidence"][side]["posterior"]
        assert numbers["mean"] == pytest.approx(p.mean(), abs=1e-4)
        assert numbers["brier"] == pytest.approx(brier_score_loss(hits, p), abs=1e-4)

    # What is stored is fitted to all.
    stored = json.loads(open("test_calibration.json").read())
    of_all = calibrate(e, "")
    assert stored["t2i"]["temperature"] == pytest.approx(of_all["t2i"]["temperature"])


def test_cross_fitting_of_a_run(learned_runs, tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(learned_runs / "cosine", tmp_path / "run")

    results = judged(run, "--cross_fit", 5, "--split", "dev", "--output", "own.json")

    assert results["images"] == 50
    assert results["captions"] == 250


def test_intervals_cover_what_other_images_show():
    """Those of a bootstrap of images by loops, and of T by fitting it again."""
    e = drawn(seed=5, n=150, noise=0.5)
    outcomes = measures.measure_confidences(e, dict.fromkeys(SIDES, 12.0))["t2i"]
    right = outcomes.right
    p = outcomes.confidences["posterior"].astype(float)
    owner = outcomes.owner
    scores, own = join_blocks(rows_of(e, "t2i"))
    t = fit_temperature(scores, own)

    found = measures.estimate_intervals(outcomes)
    intervals = [
        found["right"],
        found["posterior"]["auroc"],
        found["posterior"]["mean"],
        found["posterior"]["brier"],
        estimate_interval(scores, own, t, owner),
    ]

    rng = np.random.default_rng(1)
    samples = []
    for _ in range(100):
        drawn_images = rng.integers(150, size=150)
        chosen = np.concatenate([np.flatnonzero(owner == image) for image in drawn_images])
        hit = right[chosen]
        gaps = p[chosen][hit][:, None] - p[chosen][~hit]  # of all pairs of a right and a wrong one
        sample = (
            hit.mean(),
            np.mean(gaps > 0) + np.mean(gaps == 0) / 2,  # the AUROC by its definition
            p[chosen].mean(),
            np.mean((p - right)[chosen] ** 2),
            fit_temperature(scores[chosen], own[chosen]),
        )
        samples.append(sample)
    slow_intervals = np.quantile(samples, [0.025, 0.975], axis=0).T

    for (low, high), (slow_low, slow_high) in zip(intervals, slow_intervals):
        assert low < high
        assert abs(low - slow_low) + abs(high - slow_high) < 0.4 * (slow_high - slow_low)


def test_auroc_of_a_sample_is_that_of_its_queries(monkeypatch):
    from sklearn.metrics import roc_auc_score

    monkeypatch.setattr(metrics, "WEIGHTS_OF_SAMPLES", 200)  # two samples at once, and the last one
    confidence, right = guesses(3, n=90, ties=True)
    image = np.arange(90) // 3
    times = np.random.default_rng(0).integers(0, 3, (5, 30))

    found = metrics.sample_auroc(confidence, right, times, image)

    expected = []
    for row in times:
        chosen = np.repeat(np.arange(90), row[image])
        expected.append(roc_auc_score(right[chosen], confidence[chosen]))
    assert found == pytest.approx(expected, abs=1e-12)


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

    folder = judged("clip", "--cross_fit", 5, "--logit_scale", 100)["confidence"]
    one_file = judged("one.npz", "--cross_fit", 5)["confidence"]
    assert folder == one_file
    assert "own_softmax" in folder["t2i"]
    assert os.path.isfile("clip/confidence.json")
    assert os.path.isfile("clip/calibration.json")

    other = judged("one.npz", "--cross_fit", 5, "--logit_scale", 50)["confidence"]
    assert other["t2i"]["own_softmax"]["mean"] < one_file["t2i"]["own_softmax"]["mean"]

    biased = judged("clip", "--cross_fit", 5, "--logit_scale", 100, "--logit_bias", -10)
    assert "own_sigmoid" in biased["confidence"]["t2i"]

    sentence = "clip has to be calibrated on other items; .* or --cross_fit 10"
    refused(capsys, confidence.main, ["clip"], sentence)


def test_numbers_that_rest_on_little_come_with_their_size(files, capsys):
    files()

    judged("test.npz", "--calibrate_on", 0.1, "--sets", 0.2)
    shown = capsys.readouterr().out
    for side, fitted_to, judged_on in (("t2i", 12, 108), ("i2t", 6, 54)):
        temperature_note = (
            rf"note: {side}: T = \S+ is fitted to only {fitted_to} queries, of 6 images; "
            "use at least 100"
        )
        assert re.search(temperature_note, shown)
        assert f"note: {side}: ECE is of 15 bins of about {judged_on / 15:.1f} queries" in shown
    assert "against all others (only 12 matched pairs, of 6 images)" in shown
    assert "note: the sets are fitted to only 6 images; use at least 100" in shown

    np.savez("large.npz", **made_up(n=400, noise=0.9))
    judged("large.npz", "--calibrate_on", 0.5)
    shown = capsys.readouterr().out
    assert "is fitted to only" not in shown
    assert "matched pairs, of" not in shown
    assert "15 bins of about" not in shown


def test_a_temperature_that_rests_on_few_errors_is_said(files, capsys):
    """Where nearly every top-1 answer of dev is right, nothing tells how sure the others are."""
    files()
    np.savez("large.npz", **made_up(n=400, noise=0.3))

    judged("large.npz", "--calibrate_on", 0.5)

    shown = capsys.readouterr().out
    fitted = json.loads(open("large_calibration.json").read())["t2i"]
    assert fitted["wrong"] < 10
    assert (
        f"note: t2i: T = {fitted['temperature']:.4g} rests on {fitted['wrong']} wrong top-1 "
        "answers of dev, so it may be far off; calibrate on more images, so that at least 10 are "
        "wrong"
    ) in shown

    steep = {"temperature": 2653.0, "deviation": 0.1, "wrong": 20, "queries": 500}
    note = (
        "note: i2t: T = 2653 times the deviation of the scores is 265 nats, "
        "so nearly every probability is 0 or 1"
    )
    assert [*measures.doubt_temperature("i2t", steep, 500)] == [note]


# ---- what is refused


def test_what_cannot_be_calibrated_ends_in_a_sentence(files, small_run, capsys):
    run = small_run("--sim", "cosine")
    point, *dev = files()
    half = ["test.npz", "--calibrate_on", 0.5]
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
            "--sets and --variances need images of their own",
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

    scores = np.random.default_rng(0).standard_normal((60, 300)).astype(np.float32)
    np.savez("scores.npz", scores=scores, caption_image=np.arange(300) // 5)
    scores[0, 7] = -np.inf
    np.save("masked.npy", scores)
    for words, said in (
        (["scores.npz", "--calibrate_on", 0.5, "--export", "out.npz"], "and no embeddings, so"),
        (["masked.npy", "--calibrate_on", 0.5], "the scores hold NaN or infinity"),
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
    shown = capsys.readouterr().out
    assert "note: logit_scale 4.6052 is small; CLIP and SigLIP keep the logarithm" in shown


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
        assert sorted(shown) == sorted(set(shown))
        assert len(shown) >= min(n, 5)


@pytest.fixture
def figures(monkeypatch):
    """Contents of the pictures: {file: axes of its curves}, and "rows", those of the last sheet."""
    found = {}

    @contextlib.contextmanager
    def keeping(path, *rest, **more):
        with pictures.drawing(path, *rest, **more) as (figure, axes):
            yield figure, axes
            found[os.path.basename(path)] = axes

    def draw_and_keep_rows(path, title, rows, across):
        found["rows"] = rows
        pictures.draw_rows(path, title, rows, across)

    monkeypatch.setattr(plots, "drawing", keeping)
    monkeypatch.setattr(plots, "draw_rows", draw_and_keep_rows)
    return found


@pytest.fixture
def rows(monkeypatch):
    """Rows of the last sheet of photos, which is not drawn."""
    found = []

    def keep_rows(path, title, rows, across):
        found[:] = rows

    monkeypatch.setattr(plots, "draw_rows", keep_rows)
    return found


def test_a_part_of_the_images_knows_its_own_names():
    """Examples of --calibrate_on are drawn of it."""
    owner = np.array([3, 0, 2, 1, 1])
    scores = np.arange(20).reshape(4, 5)
    names = [f"{k}.jpg" for k in range(4)]
    ids = {"image_name": names, "caption": list("abcde"), "caption_id": list(range(5))}
    whole = Embeddings("x", owner, 4, matrix=scores, photos=Photos(names), ids=ids)

    part = whole.subset(np.array([1, 3]))

    assert part.ids == {
        "image_name": ["1.jpg", "3.jpg"],
        "caption": ["a", "d", "e"],
        "caption_id": [0, 3, 4],
    }
    assert part.photos.paths == ["1.jpg", "3.jpg"]
    assert part.caption_image.tolist() == [1, 0, 0]
    assert part.scores.tolist() == [[5, 8, 9], [15, 18, 19]]


def test_examples_say_what_was_asked_answered_and_how_surely(rows, tmp_path):
    """A photo is told by the red of its first pixel, which is its number."""
    photo_paths = []
    for k in range(2):
        path = str(tmp_path / f"{k}.png")
        Image.new("RGB", (9, 9), (k, 0, 0)).save(path)
        photo_paths.append(path)
    photos = Photos(photo_paths)
    subject = Embeddings("x", np.array([0, 0, 1, 1]), 2, ids={"caption": ["a", "b", "c", "d"]})

    def shown(side, values, right, asked, answers, of):
        confidences = {name: np.array(p) for name, p in values.items()}
        numbers = [np.array(x) for x in (right, asked, answers, of)]
        outcomes = measures.Outcomes(confidences, *numbers)
        plots.draw_examples({side: outcomes}, subject, photos, str(tmp_path / "p.png"))

        cells = []
        for row in rows:
            for cell in row.cells:
                cells.append((cell.photo.getpixel((0, 0))[0], cell.label.splitlines()))
        return cells

    assert shown("t2i", {"posterior": [0.72, 0.3]}, [True, False], [1, 2], [0, 0], [0, 1]) == [
        (0, ["72% sure, right", '"b"']),
        (0, ["30% sure, wrong", '"c"']),
        (1, ["the matched image"]),
    ]

    values = {"posterior": [0.1, 0.1], "posterior_grouped": [0.4, 0.2]}
    assert shown("i2t", values, [False, False], [1, 0], [2, 3], [1, 0]) == [
        (1, ["40% sure, a wrong answer", "scores the same", 'answer: "c"']),
        (0, ["20% sure, wrong", 'answer: "d"', 'matched caption: "a"']),
    ]


def test_a_gaussian_run(learned_runs, tmp_path, figures, monkeypatch, capsys):
    """What is printed, drawn and stored of it, and what a search reads of that."""
    run = shutil.copytree(learned_runs / "wasserstein", tmp_path / "run")

    results = judged(run, "--sets", 0.2, "--photos", learned_runs / "data" / "demo" / "images")

    shown = capsys.readouterr().out
    for line in measures.LEGEND:
        assert line in shown
    for name in plots.PICTURES:
        assert (run / f"{name}.png").stat().st_size > 10_000
        assert MADE_OF_RUN.fullmatch(f"{name}.png")  # they go with a run replaced

    more_measures = {"i2t": {"posterior_grouped"}, "t2i": {"words"}}
    best_measure = {"i2t": "posterior_grouped", "t2i": "posterior"}
    for (left, right), side in zip(figures["confidence.png"], SIDES):
        found = results["confidence"][side]
        assert set(found) == {"posterior", "max", "log_det_query"} | more_measures[side]
        best = found[best_measure[side]]
        assert f"{side}: {100 - best['aurc_flat']:.1f}% of the top-1 answers are right, " in shown

        sets = results["sets"][side]["lac"]
        assert sets["low"] - 0.1 <= sets["coverage"] <= sets["high"] + 0.1
        assert sets["low"] < 0.8 < sets["high"]

        points = left.containers[0].lines[0].get_xydata()  # bins of equal mass
        assert points.mean(0) == pytest.approx([100 * best["mean"], 100 - best["aurc_flat"]], abs=2)
        assert abs(abs(points[:, 0] - points[:, 1]).mean() - 100 * best["ece"]) < 1

        assert len(right.lines) == len(found) + 2  # no knowledge and the perfect order
        (strong,) = (line for line in right.lines if line.get_linewidth() == 3)
        assert strong.get_label().startswith(f"{best['aurc']:.1f}  posterior")
    assert len(figures.pop("rows")) == 8  # four kinds of examples of each direction

    calibration_file = run / "calibration.json"
    stored = json.loads(calibration_file.read_text())
    t = stored["t2i"]["temperature"]
    assert stored["i2t"]["gallery"] == 5 * stored["t2i"]["gallery"] == 250

    # As a search takes it.
    assert read_probabilities(str(run), Trained(str(run)))[:2] == (t, "demo_precomp")
    other = types.SimpleNamespace(weights="other", options=types.SimpleNamespace(sim="wasserstein"))
    sentence = "run with wasserstein, not to the weights of .*run with wass.*; write"
    with pytest.raises(InputError, match=sentence):
        read_probabilities(str(run), other)

    monkeypatch.setattr(plots, "draw_curves", lambda *_: None)  # once is enough

    # Over its own files, and what `photos.words --fit` adds to them stays.
    of_words = {"words": {"slope": 1.0}, "vocabulary": ["zebra"]}
    calibration_file.write_text(json.dumps({**stored, **of_words}))
    assert judged(run)["confidence"] == results["confidence"]
    assert "rows" not in figures
    assert of_words.items() <= json.loads(calibration_file.read_text()).items()
    assert json.loads((run / "confidence.json").read_text())["confidence"] == results["confidence"]

    for broken in ("{}", "[1]", "no JSON"):
        calibration_file.write_text(broken)
        assert judged(run)
        assert read_probabilities(str(run), Trained(str(run)))[0] == t


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
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

    for seed in range(5):
        confidence, right = guesses(seed, ties=ties)

        auroc = metrics.auroc(confidence, right)
        assert auroc == pytest.approx(roc_auc_score(right, confidence), abs=1e-12)

        risk = metrics.risk_coverage(-confidence, right)
        assert measures.judge_order(confidence, right) == {
            "auroc": auroc,
            "aurc": risk["area"],
            "aurc_flat": risk["area_random"],
        }

        inside = np.clip(confidence, 0.01, 0.99)
        found = measures.judge_probability(inside, right)
        assert found["brier"] == pytest.approx(brier_score_loss(right, inside), abs=1e-12)
        assert found["nll"] == pytest.approx(log_loss(right, inside), abs=1e-9)
        assert np.isfinite(measures.judge_probability(np.float32(right), ~right)["nll"])

    all_right = measures.judge_order(confidence, confidence > -1)
    assert np.isnan(all_right["auroc"])
    assert all_right["aurc"] == 0
    assert "-" in str(measures.tabulate_confidences({"t2i": {"posterior": all_right}}))


def test_calibration_error_and_its_floor():
    rng = np.random.default_rng(5)
    p = rng.random(3007)
    right = rng.random(3007) < p

    judgement = measures.judge_probability(p, right)
    error = judgement["ece"]
    floor = judgement["ece_floor"]
    overconfident = measures.judge_probability(np.sqrt(p), right)
    bins = measures.reliability(p, right)

    sizes = [201] * 7 + [200] * 8
    order = sorted(range(3007), key=lambda q: p[q])
    slow_error = 0
    for size in sizes:  # a bin counts as its queries
        part = order[:size]
        order = order[size:]
        mean_p = sum(p[q] for q in part) / size
        mean_right = sum(right[q] for q in part) / size
        slow_error += size / 3007 * abs(mean_p - mean_right)
    assert error == pytest.approx(slow_error, abs=1e-12)

    assert floor == pytest.approx(0.8 * np.mean(np.sqrt(p * (1 - p) * 15 / 3007)), rel=0.1)
    assert error < 2 * floor
    assert overconfident["ece"] > 4 * floor

    assert bins["queries"] == sizes
    gaps = [n / 3007 * abs(a - b) for n, a, b in zip(sizes, bins["p"], bins["right"])]
    assert sum(gaps) == pytest.approx(slow_error)


def test_temperature_is_the_one_that_drew_the_right_items():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, 30, generator=generator)
    drawn = torch.multinomial((2.5 * scores).softmax(1), 1, generator=generator)
    right = torch.zeros(4000, 30, dtype=torch.bool).scatter(1, drawn, True)

    t = fit_temperature(scores, right)
    assert t == pytest.approx(2.5, rel=0.05)
    assert fit_temperature(100 * scores - 7, right) == pytest.approx(0.025, rel=0.05)

    grid = np.linspace(2.2, 2.8, 100)
    losses = [-(t * scores).log_softmax(1)[right].mean() for t in grid]
    assert t == pytest.approx(grid[int(np.argmin(losses))], abs=0.01)

    # Item 3 is right, too, for all.
    two_right = right.clone()
    two_right[:, 3] = True
    losses = [-((t * scores).log_softmax(1).exp() * two_right).sum(1).log().mean() for t in grid]
    best = grid[int(np.argmin(losses))]
    assert fit_temperature(scores, two_right) == pytest.approx(best, abs=0.01)


def test_temperature_of_scores_that_tell_nothing():
    own = torch.eye(50, dtype=torch.bool)
    scores = torch.eye(50)
    scores[0, 1] = 0.9999  # nearly as good as the right one

    for right, said in (
        (~own, r"do not tell matched pairs from others \(the best T is 0\); train longer"),
        (own, "every top-1 answer is right"),
    ):
        with pytest.raises(ValueError, match=f"no temperature fits: .*{said}"):
            fit_temperature(scores, right)
    with pytest.raises(ValueError, match="all scores of a query are equal"):
        fit_temperature(torch.zeros(4, 5), torch.ones(4, 5, dtype=torch.bool))


def test_only_a_model_of_this_repository_is_told_to_train_longer():
    """Each query finds its own target last."""
    e = Embeddings("x", np.arange(20), 20, matrix=-np.eye(20, dtype=np.float32))

    with pytest.raises(InputError, match=r"\(the best T is 0\); check that the rows belong tog"):
        calibrate(e, "")
    with pytest.raises(InputError, match=r"\(the best T is 0\); train longer$"):
        calibrate(replace(e, models=[Trained]), "")


def test_a_pair_is_fitted_to_queries_of_the_whole_split(monkeypatch):
    """Not to the first ones, which may be of one kind."""
    e = drawn()
    fitted = []

    def keep(scores, right):
        fitted.append(scores.reshape(-1, e.n_images))
        return metrics.Sigmoid.fit(scores, right)

    monkeypatch.setattr(posterior, "SCORES_OF_PAIR", 12 * e.n_images)
    monkeypatch.setattr(posterior, "Sigmoid", types.SimpleNamespace(fit=keep))
    calibrate(e, "dev")

    (rows,) = fitted
    queries = [int(np.flatnonzero((e.scores.T == row.numpy()).all(1))[0]) for row in rows]
    assert len(queries) == 12
    assert queries[0] == 0 and queries[-1] == len(e.caption_image) - 1
    assert max(np.diff(queries)) <= 11  # of 120
