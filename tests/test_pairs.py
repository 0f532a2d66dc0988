"""python -m confidence.pairs: wrong captions are found by models that did not learn from them."""

import csv
import math

import numpy as np
import pytest
import torch
from PIL import Image

from checkpoint import MADE_OF_RUN
from confidence import pairs
from confidence.measures import auroc
from files import save_array
from losses import Embedding, cosine
from tests.helpers import fit, refused

IMAGES, EACH = 300, 2


@pytest.fixture(scope="module")
def drawn_path(tmp_path_factory):
    """Features of images and captions that are linear in what both are of, and the names of the photos."""
    folder, rng = tmp_path_factory.mktemp("drawn") / "mine", np.random.default_rng(0)
    folder.mkdir()
    image_map, caption_map = rng.normal(size=(2, 8, 12))
    for split, n in (("train", IMAGES), ("dev", 60), ("test", 60)):
        subject = rng.normal(size=(n, 8))
        captions = np.repeat(subject, EACH, 0) + 0.2 * rng.normal(size=(n * EACH, 8))
        save_array(folder / f"{split}_ims.npy", (subject @ image_map).astype(np.float32))
        save_array(folder / f"{split}_drawn.npy", (captions @ caption_map).astype(np.float32))
        (folder / f"{split}_caps.txt").write_text(
            "".join(f"photo {k // EACH} , {k}\n" for k in range(n * EACH))
        )
        (folder / f"{split}_ids.txt").write_text("".join(f"{k}.jpg\n" for k in range(n)))
    return str(folder.parent)


@pytest.fixture(scope="module")
def words(drawn_path):
    return [
        "--data_path",
        drawn_path,
        "--data_name",
        "mine",
        "--text_features",
        "drawn",
        "--embed_size",
        "8",
        "--loss",
        "infonce",
        "--num_epochs",
        "12",
        "--learning_rate",
        "0.01",
    ]


def find_pairs(run, *more) -> list[dict]:
    """The rows of pairs.csv."""
    pairs.main([str(run), "--device", "cpu", "--workers", "0", *map(str, more)])
    with open(run / "pairs.csv", encoding="utf-8", newline="") as f:
        return [*csv.DictReader(f)]


def test_wrong_captions_come_first(tmp_path, words, capsys, monkeypatch):
    run, drawn = tmp_path / "run", []
    monkeypatch.setattr(
        pairs, "draw_rows", lambda path, title, rows, across: drawn.extend(rows[0].cells)
    )
    for k in range(IMAGES):
        Image.new("RGB", (2, 2), (k % 256, k // 256, 0)).save(tmp_path / f"{k}.jpg", "PNG")
    fit(*words, "--noise_ratio", 0.2, "--logger_name", run)
    capsys.readouterr()
    rows = find_pairs(run, "--photos", tmp_path)
    shown, paired = capsys.readouterr().out, np.load(run / "noise.npy")
    number = [int(row["caption"].split()[-1]) for row in rows]
    p, wrong = (
        np.array([float(row["probability"]) for row in rows]),
        paired != np.arange(IMAGES * EACH) // EACH,
    )
    assert sorted(number) == [*range(IMAGES * EACH)] and (np.diff(p) >= 0).all()
    assert [row["image"] for row in rows] == [f"{paired[m]}.jpg" for m in number]
    assert [row["known"] == "wrong" for row in rows] == wrong[number].tolist()
    area = auroc(p, ~wrong[number])  # p is rounded, and then ties
    assert area > 0.97 and abs(float(shown.split("AUROC ")[1]) - area) < 0.005
    assert abs(len(p) - p.sum() - wrong.sum()) < 0.03 * len(p)  # how many are wrong is learned, too
    found, hit = int((p < 0.5).sum()), int(wrong[number][p < 0.5].sum())
    assert (
        f"{found} of {len(p)} captions do not seem to fit" in shown
        and f"{hit} of them among the {found}" in shown
    )
    assert (
        len(drawn) == 20
        and [cell.frame == "firebrick" for cell in drawn] == wrong[number[:20]].tolist()
    )
    assert all(rows[k]["caption"] in cell.label.replace("\n", " ") for k, cell in enumerate(drawn))
    assert [
        red + 256 * green for red, green, _ in (cell.photo.getpixel((0, 0)) for cell in drawn)
    ] == [paired[m] for m in number[:20]]


def test_no_model_judges_an_image_that_it_learned_from(tmp_path, words, monkeypatch):
    run, seen = tmp_path / "run", []
    fit(*words, "--num_epochs", 1, "--logger_name", run)
    judge = pairs.judge_fold
    monkeypatch.setattr(
        pairs, "judge_fold", lambda model, t: seen.append((t.held, t.order(0))) or judge(model, t)
    )
    rows = find_pairs(run, "--folds", 3)
    assert (
        sorted(np.concatenate([held for held, _ in seen])) == [*range(IMAGES * EACH)]
        and len(seen) == 3
    )
    for held, learned in seen:
        assert len(held) + len(learned) == IMAGES * EACH and not {*held // EACH} & {
            *learned // EACH
        }
    assert "known" not in rows[0] and not (run / "pairs.png").exists()
    assert MADE_OF_RUN.fullmatch("pairs.csv") and MADE_OF_RUN.fullmatch("pairs.png")


def test_what_cannot_be_judged_is_refused(tmp_path, words, capsys, monkeypatch):
    run, second = (str(tmp_path / name) for name in ("run", "second"))
    for more in ([run], [second, "--init_from", run]):
        fit(*words, "--num_epochs", 1, "--logger_name", *more)
    for source, message in (
        (f"{run}/model_best.pt", "is not a folder; name a run"),
        (second, f"initialized from {run}"),
    ):
        refused(capsys, pairs.main, [source], message)
    monkeypatch.setattr(pairs, "train", lambda *_: 130)  # after Ctrl-C
    refused(
        capsys,
        pairs.main,
        [run],
        "the training of fold 1 ended with status 130, so no caption is judged",
    )


def test_log_posteriors_equal_loops(monkeypatch):
    monkeypatch.setattr(pairs, "PAIRS_PER_BLOCK", 3)
    monkeypatch.setattr(pairs, "ITEMS_PER_BLOCK_OF_GALLERY", 4)
    g = torch.Generator().manual_seed(0)
    images, captions = (
        Embedding(torch.randn(n, 5, generator=g, dtype=torch.float64)) for n in (6, 11)
    )
    owner, t = np.array([0, 5, 5, 1, 2, 3, 4, 0, 1, 2, 2]), 7.0
    s = cosine(images, captions).numpy()
    expected = [
        2 * t * s[i, m]
        - math.log(np.mean([math.exp(t * x) for x in s[:, m]]))
        - math.log(np.mean([math.exp(t * x) for x in s[i]]))
        for m, i in enumerate(owner)
    ]
    assert np.allclose(
        pairs.log_posteriors(cosine, images, captions, owner, t), expected, rtol=1e-12
    )


@pytest.mark.parametrize("share", [0.4, 0.8, 0.99])
def test_the_share_of_right_pairs_is_learned_from_log_odds(share):
    rng, n = np.random.default_rng(0), 20_000
    right = rng.random(n) < share
    z = rng.normal(np.where(right, 1.5, -1.5), 1)  # log-odds of two normals: 3 z
    p = pairs.fit_prior(3 * z)
    assert abs(p.mean() - share) < 0.02
    low = p < 0.5
    assert abs(p[low].mean() - right[low].mean()) < 0.1
