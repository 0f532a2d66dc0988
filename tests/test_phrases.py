"""Phrases and the regions of their photos: what is read, which pairs are labelled, that train.py and evaluate.py go
through with them, and what is refused."""

import itertools
import json
import math
import os
import re
import shutil
import signal

import numpy as np
import pytest
import torch

import metrics
import train as core
from checkpoint import Trained, load_checkpoint
from metrics import box_iou
from phrases import captions, data, evaluate, proposals, regions, train
from phrases.data import DEFAULT_REGIONS, box_geometry, sample_proposals
from phrases.entities import read_entities
from phrases.pooling import SceneRegions
from phrases.posterior import compare_confidences, fit_box_temperature, measure_calibration
from phrases.ranking import PhotoScores, locate, measure_chance, read_for_run
from tests.helpers import log_of, refused, same_weights
from utils import InputError
from vocab import Vocabulary

SMALL = [
    "--data_name",
    "demo_entities",
    "--embed_size",
    "24",
    "--word_dim",
    "12",
    "--num_epochs",
    "10",
    "--batch_size",
    "48",
    "--vocab_threshold",
    "1",
    "--device",
    "cpu",
    "--workers",
    "0",
    "--learning_rate",
    "0.005",
]
WIDTH = SceneRegions.dim


def options(words):
    return core.parse_args(list(map(str, words)), train.phrases_parser())


def read(root: str, split: str, **more):
    return data.read_phrases(os.path.join(root, "demo_entities"), split, DEFAULT_REGIONS, **more)


def iou_of(a, b) -> float:
    return box_iou(a[None], b[None])[0, 0]


@pytest.fixture(scope="module")
def root(tmp_path_factory, demo_path) -> str:
    """A data path with the demo's phrases, proposals near their boxes and anywhere, and their features."""
    path = tmp_path_factory.mktemp("phrases")
    folder = path / "demo_entities"
    shutil.copytree(os.path.join(demo_path, "demo_entities"), folder)
    given = {}
    rng = np.random.default_rng(0)
    for entities in (read_entities(str(folder), split) for split in ("train", "val", "test")):
        for n, photo in enumerate(entities.ids):
            truth = entities.truth[entities.phrase_photo == n]
            corner = rng.integers(0, 100, (10, 2))
            boxes = [
                truth + rng.integers(-1, 2, truth.shape),
                truth + rng.integers(-6, 7, truth.shape),
                np.hstack([corner, corner + rng.integers(8, 60, (10, 2))]),
            ]
            given[photo] = [
                [x1, y1, max(x2, x1), max(y2, y1)]
                for x1, y1, x2, y2 in np.clip(np.concatenate(boxes), 0, 127).tolist()
            ]
    (path / "boxes.json").write_text(json.dumps(given))
    proposals.main(
        [
            "--data_path",
            str(path),
            "--data_name",
            "demo_entities",
            "--from",
            str(path / "boxes.json"),
            "--workers",
            "0",
            "--name",
            "edgeboxes200",
        ]
    )
    regions.main(
        [
            "--data_path",
            str(path),
            "--data_name",
            "demo_entities",
            "--kind",
            "demo",
            "--workers",
            "0",
        ]
    )
    return str(path)


@pytest.fixture
def own(root, tmp_path) -> str:
    """A copy of it to change."""
    shutil.copytree(os.path.join(root, "demo_entities"), tmp_path / "demo_entities")
    return str(tmp_path)


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """run(*words): the folder of a run on it, trained once."""
    made = {}

    def call(*words) -> str:
        if words not in made:
            made[words] = str(tmp_path_factory.mktemp("run") / "run")
            words_of_run = [*SMALL, "--data_path", root, *words, "--logger_name", made[words]]
            assert train.train_phrases(options(words_of_run)) == 0
        return made[words]

    return call


def report(capsys, folder) -> tuple[dict, str]:
    """results.json of a run, and what phrases.evaluate prints."""
    capsys.readouterr()
    evaluate.main(["--checkpoint", folder, "--device", "cpu"])
    return json.load(open(os.path.join(folder, "results.json"))), capsys.readouterr().out


@pytest.fixture(scope="module")
def reports() -> dict:
    """What `report` found of a run, by its folder."""
    return {}


@pytest.fixture
def report_once(reports, capsys):
    """report_once(folder): the same as report(capsys, folder), evaluated once."""

    def call(folder) -> tuple[dict, str]:
        if folder not in reports:
            reports[folder] = report(capsys, folder)
        return reports[folder]

    return call


def test_the_data_set_is_flickr30k_entities_unless_named():
    assert options([]).data_name == "f30k_entities"
    assert options(["--data_name", "mine"]).data_name == "mine"


def test_a_split_is_phrases_and_the_regions_of_their_photos(root):
    split = read(root, "train")
    assert split.captions == split.entities.phrases and len(split.images) == len(split.boxes)
    best = split.best_overlaps()
    own = split.best_overlaps(added=False)
    for n in range(12):
        columns = split.columns(n)
        rows = slice(split.start[n], split.start[n + 1])
        assert columns.tolist() == np.flatnonzero(split.caption_image == n).tolist()
        slow = np.zeros((rows.stop - rows.start, len(columns)))
        for k, box in enumerate(split.boxes[rows]):
            slow[k] = [iou_of(box, split.truth[m]) for m in columns]
        np.testing.assert_allclose(split.overlap(n), slow)
        np.testing.assert_allclose(best[columns], slow.max(0))
        np.testing.assert_allclose(own[columns], slow[~split.added[rows]].max(0))
    assert own.min() < 1 == best.min()


def test_geometry_is_five_shares_of_the_photo(root):
    boxes = np.array([[0, 0, 99, 49], [10, 5, 10, 5]], np.float32)
    sizes = np.array([[100, 50], [100, 50]])
    expected = [[0, 0, 1, 1, 1], [0.1, 0.1, 0.11, 0.12, 2e-4]]
    np.testing.assert_allclose(box_geometry(boxes, sizes), expected, rtol=1e-6)

    split = read(root, "test")
    rows = np.array([3, 0, len(split.boxes) - 1])
    gathered = split.images.gather(rows)
    features = np.load(split.images.path)[rows].astype(np.float32)
    assert split.images.dim == WIDTH + 5 and np.array_equal(gathered[:, :WIDTH], features)
    shares = (split.boxes[0] + [0, 0, 1, 1]) / 128  # the demo's photos are 128 x 128
    np.testing.assert_allclose(gathered[1, WIDTH : WIDTH + 4], shares, rtol=1e-6)


# ---- what is learned from


@pytest.mark.parametrize("positive, every", [(0.7, False), (1.0, False), (0.6, True)])
def test_labels_are_those_of_a_loop(root, positive, every):
    split = read(root, "train")
    rule = {"positive": positive, "every": every}
    tokens = split.encode(Vocabulary.build(split.words))
    learnable = np.flatnonzero(split.best_overlaps() >= positive)
    photos = np.unique(split.phrase_photo[learnable])[:6]
    seen = []

    for k, batch in enumerate(data.batches(split, tokens, photos, 2, (0, 3), **rule)):
        photos_of_batch = photos[2 * k : 2 * k + 2]
        drawn = [sample_proposals(split, int(n), (0, 3), **rule) for n in photos_of_batch]
        rows = np.concatenate([rows_of_photo for rows_of_photo, *_ in drawn])
        columns = np.concatenate([columns_of_photo for _, columns_of_photo, *_ in drawn])

        for i, row in enumerate(rows):
            for j, m in enumerate(columns):
                n = split.phrase_photo[m]
                overlap = iou_of(split.boxes[row], split.truth[m])
                own = split.start[n] <= row < split.start[n + 1]
                assert batch.labels[i, j] == own * (int(overlap >= positive) - int(overlap < 0.3))
        assert len(set(rows)) == len(rows)
        assert (batch.labels == 1).any(0).all()  # every phrase has one that fits
        assert torch.equal(batch.images, split.images.gather(rows))
        assert torch.equal(batch.tokens, tokens.batch(columns)[0])

        for n, (own, *_) in zip(photos_of_batch, drawn):
            fits = split.overlap(n) >= positive  # (P, m)
            if every:
                assert len(own) <= 3 * fits.sum()
                assert set(split.start[n] + np.flatnonzero(fits.any(1))) <= set(own)
            else:
                assert len(own) <= 3 * fits.any(0).sum()
        seen += columns.tolist()

    assert seen == [m for m in learnable if split.phrase_photo[m] in photos]


def test_what_is_drawn_depends_on_the_seed_and_the_photo_alone(root):
    split = read(root, "train")

    def draw_rows(*seed):
        return sample_proposals(split, 4, seed)[0].tolist()

    assert draw_rows(0, 1) == draw_rows(0, 1) != draw_rows(0, 2)

    drawn = set()
    for seed in range(60):
        drawn.update(draw_rows(seed, 0))
    compared = (split.overlap(4) >= 0.7).any(1) | (split.overlap(4) < 0.3).any(1)
    # over epochs all that can be drawn
    assert drawn == set(split.start[4] + np.flatnonzero(compared))


# ---- training and evaluation

EMBEDDING_NETWORK = ["--method", "embedding_network", "--img_layers", "16"]
KINDS = [
    ("--max_violation",),
    ("--sim", "csd", "--loss", "match", "--var_min", "1e-5", "--logvar_init", "-6"),
    (*EMBEDDING_NETWORK, "--txt_enc", "mean", "--txt_layers", "16"),
]


@pytest.mark.parametrize("words", KINDS)
def test_a_run_learns_which_region_is_meant(root, run, words, report_once):
    folder = run(*words)
    lines = log_of(folder, lambda line: line["kind"] == "validation")
    scores_all_equal = locate(read(root, "val"), lambda *_: np.zeros((1, 1)))
    chance = measure_chance(scores_all_equal)
    assert lines[-1]["rsum"] > 1.2 * chance["rsum"] and lines[-1]["r1"] > 40

    results, said = report_once(folder)
    of = results["localisation"]
    assert of["r1"] > 2 * of["chance"]["r1"] and of["r1"] <= of["r5"] <= of["r10"] <= of["upper"]
    assert results["proposals"]["count"] == 200 and results["baselines"]["largest"]["r1"] < of["r1"]
    assert results["proposals"]["method"] in said and "the largest proposals first" in said


def test_an_evaluation_may_replace_its_own_file(run, report_once, capsys):
    folder = run(*KINDS[0])
    results, _ = report_once(folder)
    assert report(capsys, folder)[0] == results


def test_a_stopped_run_ends_as_the_unbroken_one(root, run, tmp_path, monkeypatch):
    learn = core.Training.learn
    steps = itertools.count(1)

    def stop_at_the_fifth(*args):
        if next(steps) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(*args)

    monkeypatch.setattr(core.Training, "learn", stop_at_the_fifth)
    kind = (*KINDS[0], "--num_epochs", "2")
    words = [*SMALL, "--data_path", root, *kind, "--logger_name", str(tmp_path / "run")]
    assert train.train_phrases(options(words)) == 143
    monkeypatch.setattr(core.Training, "learn", learn)
    assert train.train_phrases(options(["--resume", str(tmp_path / "run")])) == 0
    assert same_weights(tmp_path / "run", run(*kind))


def test_a_run_that_no_longer_gains_stops(root, tmp_path, monkeypatch, capsys):
    """R@1 of dev: 10, 30, 20, 30, and none of the two after the best is better."""
    validations = []
    for r1 in (10.0, 30.0, 20.0, 30.0):
        validations.append({"r1": r1, "r5": 0, "r10": 0, "upper": 100, "rsum": 100 - r1})
    results = iter(validations)
    monkeypatch.setattr(train, "validate_phrases", lambda *_: next(results))
    folder = str(tmp_path / "run")
    words = [*SMALL, "--data_path", root, "--logger_name", folder]

    stopped = options([*words, "--num_epochs", "9", "--select", "r1", "--patience", "2"])
    assert train.train_phrases(stopped) == 0

    best = load_checkpoint(folder, "model_best.pt")["state"]
    last = load_checkpoint(folder, "checkpoint.pt")["state"]
    assert (best["epoch"], best["best_r1"], best["best_rsum"]) == (2, 30, 70)
    assert (last["epoch"], last["waited"]) == (4, 2)
    assert "no better model on dev in 2 epochs, so epoch 4 was the last" in capsys.readouterr().out


def test_features_of_phrases_are_extracted_and_trained_on(root, run, capsys):
    captions.main(["--data_path", root, "--data_name", "demo_entities", "--kind", "tfidf"])
    split = read(root, "test", text_features="tfidf")
    assert len(split.text) == len(split.captions) and split.extractors["tfidf"].startswith("tfidf")

    layers = ["--cite_layers", "16-8", "--img_layers", "16", "--txt_layers", "16"]
    folder = run("--method", "cite", *layers, "--text_features", "tfidf")
    results, _ = report(capsys, folder)

    localization = results["localisation"]
    assert results["similarity"] == "cite"
    assert localization["r1"] > localization["chance"]["r1"]


def test_groups_of_seeds_are_compared_photo_by_photo(run, tmp_path, report_once, capsys):
    paths = [run(*KINDS[0]), run(*KINDS[1])]
    base = ["--device", "cpu", "--output", str(tmp_path / "o.json")]
    evaluate.main(["--compare", *paths, *base])

    shown = capsys.readouterr().out
    found = json.load(open(tmp_path / "o.json"))
    right = [report_once(path)[0]["localisation"] for path in paths]
    values = found["comparisons"][0]["metrics"]
    for k in (1, 5, 10):
        entry = values[f"phrases r{k}"]
        assert [entry["a"], entry["b"]] == pytest.approx([x[f"r{k}"] for x in right])
        assert entry["low"] <= entry["difference"] <= entry["high"]
        assert entry["difference"] == pytest.approx(right[1][f"r{k}"] - right[0][f"r{k}"])
    assert "phrases, R@10" in shown
    assert "paired bootstrap over" in " ".join(shown.split())  # a line may end between two words

    for words, message in (
        ([paths[0]], "--compare .* has nothing to compare with"),
        ([",".join(paths), paths[0]], "names .* more than once"),
        ([*paths, "--checkpoint", paths[0]], "leave --checkpoint out"),
    ):
        refused(capsys, evaluate.main, ["--compare", *words, "--device", "cpu"], message)


# ---- the posterior over boxes


def make_scores(seed: int, photos: int = 20, informative: float = 1.0) -> list[PhotoScores]:
    """Scores of photos of different sizes, where a box is right more often the higher it scores."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(photos):
        size = (rng.integers(1, 5), rng.integers(2, 9))  # phrases and boxes
        scores = rng.normal(size=size).astype(np.float32)
        right = rng.random(size) < 0.4 / (1 + np.exp(-informative * 3 * scores))
        made.append(PhotoScores(np.arange(size[0]), np.arange(size[1]), scores, right))
    return made


def slow_loss(photos: list[PhotoScores], t: float) -> float:
    """Minus the mean log of the total probability of a phrase's right boxes."""
    losses = []
    for photo in photos:
        for scores, right in zip(photo.scores.tolist(), photo.right):
            mass = [math.exp(t * score) for score in scores]
            if right.any():
                losses.append(-math.log(sum(itertools.compress(mass, right)) / sum(mass)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_temperature_of_the_posterior_is_the_best_of_a_grid(seed):
    photos = make_scores(seed)
    grid = np.geomspace(0.3, 10, 100)
    best = grid[np.argmin([slow_loss(photos, t) for t in grid])]

    fitted = fit_box_temperature(photos)
    assert fitted["temperature"] == pytest.approx(best, rel=0.035)
    assert slow_loss(photos, fitted["temperature"]) <= slow_loss(photos, best)

    reached = sum(photo.right.any(1).sum() for photo in photos)
    phrases = sum(len(photo.phrases) for photo in photos)
    assert (fitted["fitted_phrases"], fitted["left_out"]) == (reached, phrases - reached)
    assert reached < phrases and not fitted["at_bound"]
    assert fit_box_temperature(photos) == fitted

    scaled = [photo._replace(scores=1024 * photo.scores) for photo in photos]
    assert fit_box_temperature(scaled)["temperature"] * 1024 == pytest.approx(fitted["temperature"])


def test_a_temperature_is_positive_where_no_softmax_fits():
    misleading = fit_box_temperature(make_scores(0, informative=-1))
    photos = make_scores(0)
    perfect = [
        photo._replace(right=photo.scores == photo.scores.max(1)[:, None]) for photo in photos
    ]
    for fitted in (misleading, fit_box_temperature(perfect)):
        assert fitted["at_bound"] and 0 < fitted["temperature"] < np.inf
    assert misleading["temperature"] < 0.01 and fit_box_temperature(perfect)["temperature"] > 100

    wrong = [photo._replace(right=photo.right & False) for photo in photos]
    with pytest.raises(InputError, match="no phrase of dev has a right box"):
        fit_box_temperature(wrong)
    equal = [photo._replace(scores=0 * photo.scores) for photo in photos]
    with pytest.raises(InputError, match="have equal scores"):
        fit_box_temperature(equal)


def slow_auroc(confidence, right) -> float:
    """The mean over all pairs of a right and a wrong answer."""
    wins = []
    for hit in confidence[right]:
        for miss in confidence[~right]:
            wins.append(float(hit > miss) + float(hit == miss) / 2)
    return np.mean(wins)


def test_auroc_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    rank = rng.integers(0, 12, 80)
    right = rng.random(80) < rank / 12
    times = rng.integers(0, 3, 80)  # a phrase of a photo drawn twice counts twice
    assert metrics.auroc(rank, right) == pytest.approx(slow_auroc(rank, right))
    expected = slow_auroc(np.repeat(rank, times), np.repeat(right, times))
    (found,) = metrics.sample_auroc(rank, right, times[None], np.arange(80))
    assert found == pytest.approx(expected)
    assert np.isnan(metrics.auroc(rank, right | True))

    photo = np.arange(80) // 4
    found = compare_confidences({"max": rank / 7, "area": 0 * rank}, right, photo)
    low, high = found["intervals"]["max"]
    assert found["auroc"]["max"] == pytest.approx(slow_auroc(rank, right))
    assert 0.5 < low < found["auroc"]["max"] < high < 1
    assert found["auroc"]["area"] == 0.5 and found["intervals"]["area"] == [0.5, 0.5]


def test_ece_is_the_distance_in_ten_bins_of_equal_mass():
    rng = np.random.default_rng(0)
    p = rng.random(2000)
    calibrated = measure_calibration(p, rng.random(2000) < p)
    assert calibrated["ece"] == pytest.approx(calibrated["ece_floor"], abs=0.01)

    right = rng.random(2000) < p**3
    found = measure_calibration(p, right)
    order = np.argsort(p)
    gaps = []
    for k in range(10):
        part = order[200 * k : 200 * (k + 1)]
        gaps.append(abs(p[part].mean() - right[part].mean()))
    assert found["ece"] == pytest.approx(np.mean(gaps)) and found["ece"] > 0.2
    assert found["mean_probability"] == p.mean() and found["accuracy"] == right.mean()


@pytest.mark.parametrize("kind", KINDS[:2])
def test_results_say_what_the_posterior_over_boxes_knows(root, run, kind, report_once):
    folder = run(*kind)
    results, said = report_once(folder)
    found = results["posterior"]
    measures = ["posterior", "overlap", "max", "words", "area"]
    if kind is KINDS[1]:
        measures += ["log_det_phrase", "log_det_box"]
    assert [*found["auroc"]] == [*found["intervals"]] == measures
    assert found["fitted_on"] == "val" and found["auroc"]["posterior"] > 0.55
    assert 100 * found["accuracy"] == pytest.approx(results["localisation"]["r1"])
    assert f"T = {found['temperature']:.4g}, fitted to {found['fitted_phrases']:,} phrases" in said
    assert "minus the number of words" in said and "is the top-1 box right?" in said

    trained = Trained(folder, "cpu")
    split, scores_of = read_for_run(
        trained, os.path.join(root, "demo_entities"), "test", DEFAULT_REGIONS
    )
    confidence = {name: [] for name in measures}
    right = []
    for n in range(len(split.ids)):
        boxes = split.boxes[split.rows(n)]
        width, height = split.entities.sizes[n]
        columns = split.columns(n)
        words, lengths = scores_of.tokens.batch(columns)
        features = split.images.gather(split.start[n] + np.arange(len(boxes)))
        with torch.no_grad():
            phrases = trained.model.embed_captions(words, lengths)
            regions = trained.model.embed_images(features)
        for k, scores in enumerate(scores_of(n, columns).T):
            top = int(scores.argmax())
            x1, y1, x2, y2 = boxes[top]
            p = torch.from_numpy(found["temperature"] * scores.astype(float)).softmax(0)
            confidence["posterior"].append(float(p[top]))
            near = [iou_of(box, boxes[top]) >= 0.5 for box in boxes]
            confidence["overlap"].append(float(p[near].sum()))
            confidence["max"].append(float(scores[top]))
            confidence["words"].append(-len(split.captions[columns[k]].split()))
            confidence["area"].append((x2 - x1 + 1) * (y2 - y1 + 1) / (width * height))
            if kind is KINDS[1]:
                confidence["log_det_phrase"].append(-float(phrases.log_var[k].sum()))
                confidence["log_det_box"].append(-float(regions.log_var[top].sum()))
            right.append(iou_of(boxes[top], split.truth[columns[k]]) >= 0.5)

    right = np.array(right)
    assert found["mean_probability"] == pytest.approx(np.mean(confidence["posterior"]), abs=1e-5)
    overlap = found["overlap"]["mean_probability"]
    assert overlap == pytest.approx(np.mean(confidence["overlap"]), abs=1e-5)
    for name, values in confidence.items():
        expected = slow_auroc(np.float32(values), right)
        assert found["auroc"][name] == pytest.approx(expected, abs=1e-3), name


def test_the_posterior_is_left_out_without_dev_and_in_sample_on_dev(run, own, tmp_path, capsys):
    folder = run(*KINDS[0])
    base = ["--checkpoint", folder, "--device", "cpu", "--data_path", own, "--overwrite"]
    base += ["--output", str(tmp_path / "o.json")]

    def evaluate_again(*words) -> tuple[dict, str]:
        evaluate.main([*base, *words])
        return json.loads((tmp_path / "o.json").read_text()), capsys.readouterr().out

    whole, _ = evaluate_again()
    on_dev, _ = evaluate_again("--split", "dev")
    assert on_dev["posterior"]["temperature"] == whole["posterior"]["temperature"]
    assert "fitted to these same phrases of dev" in on_dev["notes"][-1]

    os.remove(f"{own}/demo_entities/val.txt")
    without, said = evaluate_again()
    assert "note: the posterior over boxes is left out: there is no file" in said
    assert "is left out" in without.pop("notes")[-1]
    for key in without:
        assert without[key] == whole[key]
    assert set(whole) - set(without) == {"notes", "posterior"}


# ---- what is refused


@pytest.mark.parametrize(
    "words, message",
    [
        (["--data_name", "demo_precomp"], "is not a data set of phrases"),
        (
            ["--regions", "none_ims"],
            "there is no file .*test_none.npz; it is written with python -m phrases.proposals",
        ),
        (
            ["--regions", "edgeboxes200"],
            "names proposals but no features; .* such as edgeboxes200_ims",
        ),
    ],
)
def test_what_evaluate_refuses(run, capsys, words, message):
    words = ["--checkpoint", run(*KINDS[0]), "--device", "cpu", *words]
    refused(capsys, evaluate.main, words, message)


def remove_features(path):
    os.remove(f"{path}/train_edgeboxes200_ims.npy")


def write_three_features(path):
    np.save(f"{path}/train_edgeboxes200_ims.npy", np.zeros((3, 4), np.float16))


def change_nothing(path):
    pass


@pytest.mark.parametrize(
    "change, words, message",
    [
        (remove_features, [], "no file .*train_edgeboxes200_ims.npy"),
        (write_three_features, [], "shape .3, 4., and"),
        (
            change_nothing,
            ["--text_features", "none"],
            "no file .*train_none.npy, .* python -m phrases.captions --data_name",
        ),
        (change_nothing, ["--loss", "nll"], "needs pairs that match one to one"),
        (change_nothing, ["--sim", "scan"], "--sim scan is for images and captions"),
        (change_nothing, ["--sim", "mil"], "--sim mil is for images and captions"),
        (
            change_nothing,
            ["--loss", "match", "--pseudo_positives", "0.1"],
            "--pseudo_positives 0.1 is for images and captions",
        ),
        (change_nothing, ["--sim", "match_prob"], "--sim match_prob is for images and captions"),
        (change_nothing, ["--positive_iou", "0.2"], "--positive_iou 0.2 lies below 0.3"),
    ],
)
def test_what_train_refuses(own, capsys, change, words, message):
    change(os.path.join(own, "demo_entities"))
    refused(capsys, train.main, [*SMALL, "--data_path", own, "--dry_run", *words], message)


def test_names_of_proposals_are_names_and_no_paths(tmp_path, capsys):
    words = ["--data_name", "demo_entities", "--regions", "/dev/zero"]
    message = "'/dev/zero' names no proposals and features; give NAME of {split}_NAME.npy"
    for main in (evaluate.main, train.main, data.main):
        refused(capsys, main, words, message)


def test_the_check_of_a_folder(own, capsys):
    def check(*words) -> int:
        with pytest.raises(SystemExit) as stop:
            data.main(["--data_path", own, "--data_name", "demo_entities", *words])
        return stop.value.code

    assert check() == 0
    said = capsys.readouterr().out
    folder = os.path.join(own, "demo_entities")
    assert "proposals" in said and "phrases" in said and said.rstrip().endswith("0 faults")

    np.load(f"{folder}/test_edgeboxes200_ims.npy", mmap_mode="r+")[-1, -1] = np.nan
    os.remove(f"{folder}/val_edgeboxes200.npz")
    os.remove(f"{folder}/images/{read_entities(folder, 'train').ids[0]}.png")
    assert check() == check("--regions", "other_ims") == 1
    said = capsys.readouterr().out
    assert "NaN or infinity" in said and f"there is no photo {own}" in said
    no_fault = "no proposals yet: python -m phrases.proposals writes them"
    assert said.count(no_fault) == 1
    ends = [line.split(": ")[-1] for line in said.splitlines() if line.endswith(" faults")]
    assert ends == ["2 faults", "3 faults"]


def test_phrases_without_a_known_word_are_read_as_unknown(own, tmp_path, capsys):
    """Real annotations hold names and slips of the pen; one of them must not stop a training."""
    folder = tmp_path / "demo_entities"
    number = itertools.count()

    def make_unknown(match):
        return f"{match[1]} Xyzzy{next(number)}"

    for split in ("train", "val", "test"):
        photo = (folder / f"{split}.txt").read_text().split()[0]
        path = folder / "Sentences" / f"{photo}.txt"
        annotations = path.read_text()
        path.write_text(re.sub(r"(\[/EN#\S+) [^]]+", make_unknown, annotations, count=9))

    words = [*SMALL, "--num_epochs", 1, "--vocab_threshold", 2, "--logger_name", tmp_path / "run"]
    assert train.train_phrases(options(["--data_path", own, *words])) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    sentence = r"have no known word \(first: 'Xyzzy\d+'\); they are read as unknown words"
    for split in ("train", "val"):
        assert re.search(rf"note: \d of \d+ {split} phrases {sentence}", log)

    found, shown = report(capsys, str(tmp_path / "run"))
    assert re.search(rf"note: \d of \d+ test phrases {sentence}", shown)
    assert any(re.search(sentence, note) for note in found["notes"])
    assert found["localisation"]["r1"] > 0


def test_features_of_ones_own_train_and_are_evaluated(own, tmp_path):
    """Each split has a file of its own, which no network of the project made: they were refused as another's."""
    demo = ["--data_path", own, "--data_name", "demo_entities"]
    for split in ("train", "val", "test"):
        features = np.load(f"{own}/demo_entities/{split}_{DEFAULT_REGIONS}.npy")
        file = str(tmp_path / f"{split}.npy")
        np.save(file, features)
        regions.main([*demo, "--name", "mine", "--splits", split, "--given", file])

    words = [*SMALL, "--num_epochs", 1, "--regions", "edgeboxes200_mine"]
    words += ["--vocab_splits", "train,val"]
    run = ["--data_path", own, "--logger_name", tmp_path / "run"]
    assert train.train_phrases(options([*words, *run])) == 0
    evaluate.main(["--checkpoint", str(tmp_path / "run"), "--device", "cpu"])
    assert json.loads((tmp_path / "run" / "results.json").read_text())["localisation"]["r1"] > 0
