"""python -m confidence.pairs: wrong captions are found by models that did not learn from them."""

import csv
import math

import numpy as np
import pytest
import torch
from PIL import Image

from checkpoint import MADE_OF_RUN
from confidence import pairs
from losses import Embedding, cosine
from metrics import auroc
from tests.helpers import fit, refused
from utils import save_array

IMAGES = 300
EACH = 2


@pytest.fixture(scope="module")
def drawn_path(tmp_path_factory):
    """Features of images and captions that are linear in what both are of, and the names of the photos."""
    folder = tmp_path_factory.mktemp("drawn") / "mine"
    rng = np.random.default_rng(0)
    folder.mkdir()
    image_map, caption_map = rng.normal(size=(2, 8, 12))
    for split, n in (("train", IMAGES), ("dev", 60), ("test", 60)):
        subject = rng.normal(size=(n, 8))
        captions = np.repeat(subject, EACH, 0) + 0.2 * rng.normal(size=(n * EACH, 8))
        save_array(folder / f"{split}_ims.npy", (subject @ image_map).astype(np.float32))
        save_array(folder / f"{split}_drawn.npy", (captions @ caption_map).astype(np.float32))
        lines = [f"photo {k // EACH} , {k}\n" for k in range(n * EACH)]
        (folder / f"{split}_caps.txt").write_text("".join(lines))
        (folder / f"{split}_ids.txt").write_text("".join(f"{k}.jpg\n" for k in range(n)))
    return str(folder.parent)


@pytest.fixture(scope="module")
def words(drawn_path):
    data = ["--data_path", drawn_path, "--data_name", "mine", "--text_features", "drawn"]
    schedule = ["--num_epochs", "8", "--learning_rate", "0.01"]
    return [*data, "--embed_size", "8", "--loss", "infonce", *schedule]


def find_pairs(run, *more) -> list[dict]:
    """The rows of pairs.csv."""
    pairs.main([str(run), "--device", "cpu", "--workers", "0", *map(str, more)])
    with open(run / "pairs.csv", encoding="utf-8", newline="") as f:
        return [*csv.DictReader(f)]


def test_wrong_captions_come_first(tmp_path, words, capsys, monkeypatch):
    run = tmp_path / "run"
    drawn = []

    def note_cells(path, title, rows, across):
        drawn.extend(rows[0].cells)

    monkeypatch.setattr(pairs, "draw_rows", note_cells)
    for k in range(IMAGES):
        Image.new("RGB", (2, 2), (k % 256, k // 256, 0)).save(tmp_path / f"{k}.jpg", "PNG")
    fit(*words, "--noise_ratio", 0.2, "--logger_name", run)
    capsys.readouterr()

    rows = find_pairs(run, "--photos", tmp_path)

    shown = capsys.readouterr().out
    paired = np.load(run / "noise.npy")
    number = [int(row["caption"].split()[-1]) for row in rows]
    p = np.array([float(row["probability"]) for row in rows])
    wrong = paired != np.arange(IMAGES * EACH) // EACH
    assert sorted(number) == [*range(IMAGES * EACH)] and (np.diff(p) >= 0).all()
    assert [row["image"] for row in rows] == [f"{paired[m]}.jpg" for m in number]
    assert [row["known"] == "wrong" for row in rows] == wrong[number].tolist()
    area = auroc(p, ~wrong[number])  # p is rounded, and then ties
    assert area > 0.97 and abs(float(shown.split("AUROC ")[1]) - area) < 0.005
    assert abs(len(p) - p.sum() - wrong.sum()) < 0.03 * len(p)  # how many are wrong is learned, too
    found = int((p < 0.5).sum())
    hit = int(wrong[number][p < 0.5].sum())
    assert f"{found} of {len(p)} captions do not seem to fit" in shown
    assert f"{hit} of them among the {found}" in shown

    assert len(drawn) == 20
    assert [cell.frame == "firebrick" for cell in drawn] == wrong[number[:20]].tolist()
    for row, cell, m in zip(rows, drawn, number):
        assert row["caption"] in cell.label.replace("\n", " ")
        red, green, _ = cell.photo.getpixel((0, 0))
        assert red + 256 * green == paired[m]


def test_no_model_judges_an_image_that_it_learned_from(tmp_path, words, monkeypatch):
    run = tmp_path / "run"
    seen = []
    fit(*words, "--num_epochs", 1, "--logger_name", run)
    judge = pairs.judge_fold

    def note_and_judge(model, training):
        seen.append((training.held, training.order(0)))
        return judge(model, training)

    monkeypatch.setattr(pairs, "judge_fold", note_and_judge)

    rows = find_pairs(run, "--folds", 3)

    judged = np.concatenate([held for held, _ in seen])
    assert sorted(judged) == [*range(IMAGES * EACH)] and len(seen) == 3
    for held, learned in seen:
        assert len(held) + len(learned) == IMAGES * EACH
        assert not {*held // EACH} & {*learned // EACH}
    assert "known" not in rows[0] and not (run / "pairs.png").exists()
    assert MADE_OF_RUN.fullmatch("pairs.csv") and MADE_OF_RUN.fullmatch("pairs.png")


def test_what_cannot_be_judged_is_refused(tmp_path, words, capsys, monkeypatch):
    run = str(tmp_path / "run")
    second = str(tmp_path / "second")
    for more in ([run], [second, "--init_from", run]):
        fit(*words, "--num_epochs", 1, "--logger_name", *more)
    for source, message in (
        (f"{run}/model_best.pt", "is not a folder; name a run"),
        (second, f"initialized from {run}"),
    ):
        refused(capsys, pairs.main, [source], message)
    monkeypatch.setattr(pairs, "train", lambda *_: 130)  # after Ctrl-C
    message = "the training of fold 1 ended with status 130, so no caption is judged"
    refused(capsys, pairs.main, [run], message)


def test_log_posteriors_equal_loops(monkeypatch):
    monkeypatch.setattr(pairs, "PAIRS_PER_BLOCK", 3)
    monkeypatch.setattr(pairs, "ITEMS_PER_BLOCK_OF_GALLERY", 4)
    g = torch.Generator().manual_seed(0)
    images = Embedding(torch.randn(6, 5, generator=g, dtype=torch.float64))
    captions = Embedding(torch.randn(11, 5, generator=g, dtype=torch.float64))
    owner = np.array([0, 5, 5, 1, 2, 3, 4, 0, 1, 2, 2])
    t = 7.0

    found = pairs.log_posteriors(cosine, images, captions, owner, t)

    s = cosine(images, captions).numpy()
    expected = []
    for m, i in enumerate(owner):
        over_images = math.log(np.mean([math.exp(t * x) for x in s[:, m]]))
        over_captions = math.log(np.mean([math.exp(t * x) for x in s[i]]))
        expected.append(2 * t * s[i, m] - over_images - over_captions)
    assert np.allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("share", [0.4, 0.8, 0.99])
def test_the_share_of_right_pairs_is_learned_from_log_odds(share):
    rng = np.random.default_rng(0)
    n = 20_000
    right = rng.random(n) < share
    z = rng.normal(np.where(right, 1.5, -1.5), 1)  # log-odds of two normals: 3 z
    p = pairs.fit_prior(3 * z)
    assert abs(p.mean() - share) < 0.02
    low = p < 0.5
    assert abs(p[low].mean() - right[low].mean()) < 0.1
