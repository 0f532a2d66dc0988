"""How sure a model is of the first box: confidences against loops, what is fitted on val, and pictures of phrases."""
import os

import numpy as np
import pytest
import torch
from matplotlib import colors
from PIL import Image

from cli import InputError
from confidence.plots import pick
from confidence.posterior import temperature
from evaluation import pictures
from evaluation.report import render
from phrases import confidence
from phrases.confidence import ACROSS, KINDS, assess, calibrate, draw_phrases, pad_scores
from phrases.data import iou, shares
from phrases.evaluate import Phrases
from phrases.ranking import locate, photo_by_photo
from tests.test_localisation import BoxSplit, drawn_scores, made, rows_of, slow_iou

RNG = np.random.default_rng


def knowing(seed: int, photos: int = 150, sigma: bool = False) -> Phrases:
    """Phrases whose scores are the IoU with their truth, or with another box of the photo, and noise, more for some
    phrases than for others. With `sigma` log det Sigma tells how likely it was that another box is meant, which the
    scores do not show."""
    rng = RNG(seed)
    boxes, start, photo, named = [], [0], [], []
    for n in range(photos):
        p = rng.integers(2, 30)
        boxes.append(np.sort(rng.integers(0, 300, (p, 2, 2)), 1).reshape(-1, 4))
        start.append(start[-1] + p)
        for _ in range(rng.integers(0, 7)):
            photo.append(n)
            named.append(boxes[-1][rng.integers(p, size=2)])
    named = np.array(named, float)                                                  # (M, 2, 4): its own, another
    doubt = rng.uniform(0, 0.6 if sigma else 0.1, len(photo))
    meant = np.where(rng.random(len(photo))[:, None] < doubt[:, None], named[:, 1], named[:, 0])
    truth = np.where(rng.random(len(photo))[:, None] < 0.9, named[:, 0], [0, 0, 3, 3])
    split = BoxSplit([str(n) for n in range(photos)], np.tile([300, 300], (photos, 1)), np.concatenate(boxes),
                        np.array(start), [f"a {'very ' * (m % 3)}big dog" for m in range(len(photo))], np.array(photo),
                        truth, [("animals",)] * len(photo), np.ones(len(photo), int))
    noise = rng.uniform(0.02, 0.5, len(photo))

    def scores_of(n, columns):
        near = iou(split.boxes[start[n]:start[n + 1]], meant[columns])
        return (near + noise[columns] * RNG([seed, n]).standard_normal(near.shape)).astype(np.float32)
    scores_of.phrase_log_det = np.log(doubt)
    return Phrases(f"made {seed}", split, scores_of, gaussian=sigma)


def test_confidences_are_those_of_a_loop():
    split, t = made(1), 7.0
    scores_of, whole = drawn_scores(split, 1, 50)
    located = locate(split, scores_of, t)
    assert list(located.confidences) == ["max", "posterior", "overlap"]
    for m in np.flatnonzero(located.first >= 0):
        rows = rows_of(split, m)
        s = whole[rows, m].astype(np.float32).astype(float)
        first = rows.index(located.first[m])
        p = np.exp(t * s) / sum(np.exp(t * s))
        there = [slow_iou(split.boxes[r], split.boxes[located.first[m]]) >= 0.5 for r in rows]
        slow = {"posterior": p[first], "overlap": sum(value for value, near in zip(p, there) if near),
                "max": s[first]}
        assert {name: located.confidences[name][m] for name in slow} == pytest.approx(slow, abs=1e-9)
    assert (located.confidences["overlap"] >= located.confidences["posterior"] - 1e-12).all()
    assert list(locate(split, scores_of).confidences) == ["max"]


def test_padding_changes_no_temperature():
    rng = RNG(0)
    scores = torch.from_numpy(rng.standard_normal((200, 9))).float()
    right = torch.zeros(200, 9, dtype=torch.bool)
    right[torch.arange(200), torch.from_numpy(rng.integers(9, size=200))] = True
    scores += right * 1.0
    wide = [torch.cat([x, torch.full((200, 5), fill)], 1) for x, fill in ((scores, -torch.inf), (right, False))]
    assert temperature(wide[0], wide[1].bool()) == pytest.approx(temperature(scores, right), rel=1e-4)
    with pytest.raises(InputError, match="all scores of a query are equal"):
        temperature(torch.where(wide[0].isinf(), wide[0], 1.0), wide[1].bool())


def test_the_temperature_is_that_of_the_least_loss_of_the_right_boxes():
    of = knowing(1)
    scores, right = pad_scores(of.name, list(photo_by_photo(of.split, of.scores_of)))
    located = locate(of.split, of.scores_of)
    assert len(scores) == (located.hits > 0).sum() and right.sum() == located.hits.sum()
    assert scores.shape[1] == np.diff(of.split.start).max()
    assert torch.isneginf(scores).any() and not right[torch.isneginf(scores)].any()
    t = calibrate(of)["temperature"]

    def loss(t):
        total = 0
        for m in np.flatnonzero(located.hits):
            rows = rows_of(of.split, m)
            columns = np.flatnonzero(of.split.phrase_photo == of.split.phrase_photo[m])
            s = of.scores_of(of.split.phrase_photo[m], columns)[:, np.flatnonzero(columns == m)[0]].astype(float)
            p = np.exp(t * s) / np.exp(t * s).sum()
            total -= np.log(sum(q for q, r in zip(p, rows) if iou(of.split.boxes[[r]], of.split.truth[[m]])[0] >= 0.5))
        return total
    assert loss(t) < min(loss(0.93 * t), loss(1.07 * t))


def test_few_phrases_are_drawn_where_there_would_be_too_many_scores(monkeypatch):
    of = knowing(2)
    monkeypatch.setattr(confidence, "FITTED", 10 * np.diff(of.split.start).max() + 1)
    assert len(pad_scores(of.name, list(photo_by_photo(of.split, of.scores_of)))[0]) == 10


def test_scores_are_computed_once():
    of, calls = knowing(3), []

    def counted(n, columns):
        calls.append(n)
        return of.scores_of(n, columns)
    found = calibrate(of._replace(scores_of=counted))
    assert sorted(calls) == sorted(set(of.split.phrase_photo.tolist()))
    assert found == calibrate(of)


def test_confidences_of_points():
    dev, test = knowing(4), knowing(5)
    results, located, seen, table, sentence = assess(dev, test)
    found = results["confidence"]["phrases"]
    assert set(found) == {"posterior", "overlap", "max"}
    assert found["overlap"]["auroc"] > 0.6 and found["overlap"]["ece"] < 0.2
    assert (located.first[seen.phrases] >= 0).all() and (seen.right == located.right[seen.phrases]).all()
    slow = np.mean([a > b for a in seen.values["overlap"][seen.right] for b in seen.values["overlap"][~seen.right]])
    assert found["overlap"]["auroc"] == pytest.approx(slow, abs=1e-3)       # but for ties
    text = render([table]) + sentence
    assert "posterior of all boxes at its place" in text and "Sigma" not in text
    assert f"judged on {len(test.split.phrases):,} of made 5" in text and "T = " in text
    assert results["calibration"] == {"split": "made 4", "phrases": calibrate(dev)}


def test_variances_of_phrases_are_judged_beside_the_scores():
    found = assess(knowing(4, sigma=True), knowing(5, sigma=True))[0]["confidence"]["phrases"]
    assert found["log_det_query"]["auroc"] > 0.6


def test_what_cannot_be_calibrated_is_refused_in_a_sentence():
    of = knowing(4)
    far = of.split._replace(truth=np.tile([0., 0, 1, 1], (len(of.split.truth), 1)))
    with pytest.raises(InputError, match="no phrase of made 4 has a proposal of IoU 0.5"):
        calibrate(of._replace(split=far))
    with pytest.raises(InputError, match="all scores of a query are equal"):
        calibrate(of._replace(scores_of=lambda n, c: np.zeros((of.split.start[n + 1] - of.split.start[n], len(c)))))


def test_photos_without_proposals_have_no_first_box():
    dev, split = knowing(4), made(12, photos=150)
    _, located, seen, _, sentence = assess(dev, Phrases("some", split, drawn_scores(split, 12)[0]))
    assert (located.first == -1).sum() == 2 == len(split.phrases) - len(seen.right)
    assert "2 have no proposal" in sentence


# ---- pictures

def test_choice_takes_one_phrase_of_each_photo():
    rng = RNG(0)
    sure, right, photo = rng.random(400), rng.random(400) < 0.5, rng.integers(60, size=400)
    counts = dict.fromkeys(KINDS, 4)
    chosen = pick(sure, right, counts, photo)
    taken = sum(chosen.values(), [])
    assert [len(of) for of in chosen.values()] == [4, 4, 4] and len(set(photo[taken])) == 12
    first, wrong, least = (chosen[kind] for kind in KINDS)
    assert right[first].all() and not right[wrong].any() and first[0] == np.argmax(np.where(right, sure, -1))
    assert (np.diff(sure[first]) <= 0).all() and (np.diff(sure[least]) >= 0).all()
    assert chosen == pick(sure, right, counts, photo)
    assert pick(np.ones(2), np.array([True, True]), counts, [0, 0]) == {next(iter(KINDS)): [0]}     # one photo


def test_phrases_are_drawn_with_their_boxes(tmp_path, monkeypatch):
    dev, test = knowing(4), knowing(5, 40)
    _, located, seen, _, _ = assess(dev, test)
    photos = [str(tmp_path / f"{n}.png") for n in range(40)]
    for path in photos[1:]:
        Image.new("RGB", (300, 300), "grey").save(path)
    drawn, real = [], pictures.draw_boxes
    monkeypatch.setattr(pictures, "draw_boxes", lambda axis, size, boxes: (drawn.append((size, boxes)),
                                                                           real(axis, size, boxes)))
    path = str(tmp_path / "phrases.png")
    draw_phrases(path, test.split, located, seen, photos, "made")
    assert os.path.getsize(path) > 10_000 and ACROSS <= len(drawn) <= 3 * ACROSS
    for size, ((first, colour), (truth, own)) in drawn:
        assert size == (256, 256) and own == pictures.OWN
        corners = np.rint(300 * np.array([first, truth]) - [0, 0, 1, 1])
        right = slow_area_iou(*corners) >= 0.5
        assert colour == (pictures.IN_SET if right else "firebrick")


def slow_area_iou(a, b) -> float:
    width, height = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0, None)
    area = [np.prod(x[2:] - x[:2] + 1) for x in (a, b)]
    return width * height / (sum(area) - width * height)


def test_boxes_stand_where_they_are_in_the_photo(tmp_path):
    """The picture's own pixels: a green box around the lower right quarter of a black photo."""
    photo = Image.new("RGB", (200, 100), "black")
    edges = shares(np.array([100, 50, 199, 99]), np.array([200, 100]))
    assert edges.tolist() == [0.5, 0.5, 1, 1]
    path = str(tmp_path / "one.png")
    pictures.draw_rows(path, "", [pictures.Row("q", "", [pictures.Cell(photo, boxes=((edges, pictures.OWN),))])], 1)
    image = np.asarray(Image.open(path).convert("RGB")).astype(int)
    black = np.argwhere((image.max(2) < 10)[100:])          # below the texts
    green = np.argwhere(abs(image[100:] - 255 * np.array(colors.to_rgb(pictures.OWN))).max(2) < 30)
    low, high = black.min(0), black.max(0)
    middle = (low + high) / 2
    assert abs(green.min(0) - middle).max() < 4 and abs(green.max(0) - high).max() < 4
