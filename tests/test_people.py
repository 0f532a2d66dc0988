"""Numbers of photos that fit, against loops over pairs.
Variances of what is covered, judgements of people; the commands."""

import json
import math
import os
import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import expit

from checkpoint import Trained
from confidence import people
from confidence.posterior import expected_number, rows_of
from data import read_precomputed
from evaluation.embeddings import Embeddings, read_split_for
from losses import Embedding
from methods import volume
from metrics import Sigmoid, fit_logistic
from photos.searcher import SearchResult
from tests.helpers import fit, resume
from tests.test_confidence import drawn
from utils import InputError

PAIRS = "CrowdFlowerAnnotations.txt"
IMAGES = 24  # of the demo's test split


# ---- the probability of a pair


@pytest.mark.parametrize("counted", [False, True])
def test_logistic_has_the_least_log_loss(counted):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 300)) * [[1e-2], [50]] + 3
    count = rng.integers(1, 9, 300)
    y = rng.binomial(count, expit(80 * (x[0] - 3) - 0.02 * (x[1] - 3) - 1)) / count
    n = np.ones(300)
    weights_of_items = None
    if counted:
        n = count
        weights_of_items = torch.from_numpy(n)

    def loss(w):
        z = w[0] * (x[0] - 3) * 100 + w[1] * (x[1] - 3) / 50 + w[2]
        return float((n * (np.logaddexp(0, z) - y * z)).sum())

    tolerances = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000}
    w = optimize.minimize(loss, np.zeros(3), method="Nelder-Mead", options=tolerances).x
    weights, bias = fit_logistic(torch.from_numpy(x), torch.from_numpy(y), weights_of_items)

    assert weights == pytest.approx([100 * w[0], w[1] / 50], rel=1e-4)
    assert bias == pytest.approx(w[2] - 3 * weights[0] - 3 * weights[1], rel=1e-4)
    for same, all_right in ((torch.ones(1, 3), torch.eye(3)[0]), (torch.eye(3)[:1], torch.ones(3))):
        with pytest.raises(InputError, match="no probability of a pair fits"):
            fit_logistic(same, all_right)


@pytest.mark.parametrize("side", ["t2i", "i2t"])
def test_expected_numbers_are_sums_over_the_gallery(monkeypatch, side):
    monkeypatch.setattr("confidence.posterior.CACHED_SCORES", 250)
    subject = drawn(n=20)
    pair = Sigmoid(30.0, -2.0)
    rows = rows_of(subject, side)
    slow = []
    for q in rows.queries:
        total = 0
        for item in range(rows.gallery):
            pair_of_items = (item, q) if side == "t2i" else (q, item)
            total += expit(30 * float(subject.scores[pair_of_items]) - 2)
        slow.append(total)

    assert np.allclose(expected_number(rows, pair), slow, rtol=1e-5)


def test_the_term_is_the_squared_distance_of_log_variances_to_log_shares():
    rng = np.random.default_rng(0)
    term = volume.Volume()
    rows = [3, 1, 1, 7, 0]
    x = torch.from_numpy(rng.normal(size=(5, 1)))
    y = torch.from_numpy(rng.normal(size=(5, 6)))
    term.shares = torch.from_numpy(rng.normal(size=8))
    sides = [SimpleNamespace(embedding=Embedding(torch.zeros(5, 6), log_var)) for log_var in (x, y)]

    found = term(*sides, SimpleNamespace(caption_index=torch.tensor(rows)))

    slow = 0
    for side in (x, y):
        for k, c in enumerate(rows):
            slow += (float(side[k].mean()) - float(term.shares[c])) ** 2 / 5
    assert float(found) == pytest.approx(slow)


# ---- what people said

ITEMS = Embeddings(
    "somewhere", np.array([0, 1, 0, 2]), 3, ids={"image_name": ["a/x.jpg", "y.jpg", "z.jpg"]}
)
CROWD = "x.jpg\tx.jpg#0\t1.0\t3\t0\nx.jpg\ty.jpg#0\t0.333\t1\t2\nz.jpg\tx.jpg#1\t0\t0\t4\nq.jpg\tx.jpg#0\t0\t0\t3\n"
EXPERT = "y.jpg\tx.jpg#0\t1\t1\t2\nz.jpg\ty.jpg#0\t4\t3\t4\nx.jpg\tx.jpg#1\t4\t4\t4\nx.jpg\tz.jpg#0\t1\t2\t3\n"


def written(folder, text, name=PAIRS) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_judgements_of_both_kinds_are_read(tmp_path):
    crowd = people.read_judgements(written(tmp_path, CROWD), ITEMS)
    assert (crowd.image.tolist(), crowd.caption.tolist()) == ([0, 2], [1, 2])
    assert crowd.opinion.tolist() == [1 / 3, 0]
    assert crowd.votes.tolist() == [3, 4] and crowd.ratings is None
    assert (crowd.own, crowd.own_share) == (1, 1.0)

    expert = people.read_judgements(written(tmp_path, EXPERT), ITEMS)
    assert (expert.image.tolist(), expert.caption.tolist(), expert.own) == ([1, 2, 0], [0, 1, 3], 1)
    assert expert.ratings.tolist() == [[1, 1, 2], [4, 3, 4], [1, 2, 3]] and expert.votes is None
    assert expert.opinion == pytest.approx([1 / 9, 8 / 9, 1 / 3])
    ids = ITEMS.ids | {"caption_name": ["y.jpg#4", "x.jpg#2"]}
    items = Embeddings("somewhere", np.array([1, 0]), 3, ids=ids)
    _, captions = people.index_names(items)
    assert captions.find("y.jpg#4") == 0
    assert captions.find("x.jpg#2") == 1
    assert captions.find("x.jpg#1") == -1


@pytest.mark.parametrize(
    "values",
    ["0.7\t1\t2", "66.7\t2\t1", "0.5\t2\t-4", "0\t0\t0", "0.5\t0.5\t0.5", "1\t1e18\t0", "2\t2\t2"],
)
def test_one_odd_line_does_not_make_votes_ratings(tmp_path, values):
    """Its share is mistyped, in percent or has no votes; all lines were read as ratings then."""
    lines = [f"x.jpg\ty.jpg#0\t{yes / 3:.3f}\t{yes}\t{3 - yes}" for yes in (0, 1, 2, 3) * 3]
    lines[4] = f"x.jpg\ty.jpg#0\t{values}"
    message = (
        f"line 5 has the numbers {' '.join(values.split())}, and most lines hold a share of yes from 0 to 1, "
        r"the whole number who said yes .* \(at most 10,000 together\), with share = yes / \(yes \+ no\);"
    )
    with pytest.raises(InputError, match=message):
        people.read_judgements(written(tmp_path, "\n".join(lines)), ITEMS)


def test_shares_in_percent_are_shares_and_what_was_read_is_said(tmp_path):
    percent = CROWD.replace("1.0\t", "100\t").replace("0.333\t", "33.3\t")
    crowd = people.read_judgements(written(tmp_path, CROWD), ITEMS)
    other = people.read_judgements(written(tmp_path, percent), ITEMS)
    assert other.opinion.tolist() == crowd.opinion.tolist()
    assert other.own_share == crowd.own_share == 1
    assert people.describe_judgements(other) == f"{PAIRS}: read as votes on 2 pairs, 3 to 4 a pair"

    expert = people.read_judgements(written(tmp_path, EXPERT), ITEMS)
    sentence = f"{PAIRS}: read as ratings from 1 to 4 of 3 pairs, 3 a pair"
    assert people.describe_judgements(expert) == sentence


def test_photos_of_one_name_in_two_folders_are_told_apart(tmp_path):
    names = ["a/x.jpg", "b/x.jpg", "y.jpg"]
    items = Embeddings("somewhere", np.array([0, 1, 2, 2]), 3, ids={"image_name": names})
    lines = ["b/x.jpg\ty.jpg#1", "photos/a/x.jpg\tb/x.jpg#0", "c/y.jpg\ta/x.jpg#0"]
    text = "".join(f"{line}\t3\n" for line in lines)

    found = people.read_judgements(written(tmp_path, text), items)

    assert (found.image.tolist(), found.caption.tolist()) == ([1, 0, 2], [3, 1, 0])
    for line in ("x.jpg\ty.jpg#0", "y.jpg\tx.jpg#0"):
        message = (
            "line 1: .*'x.jpg(#0)?' may be a/x.jpg(#0)? or b/x.jpg(#0)?: write its folder, too"
        )
        with pytest.raises(InputError, match=message):
            people.read_judgements(written(tmp_path, f"{line}\t3\n"), items)


@pytest.mark.parametrize(
    "text,message",
    [
        (
            "x.jpg\ty.jpg#0\t1\t2\nx.jpg\ty.jpg#0\t1\nx.jpg\tz.jpg#0\t1\n",
            "line 1: .* is not a judgement .it has 2 numbers, and most lines have 1.; a line is",
        ),
        ("", "holds no judgement; a line is a photo, a caption NAME#K and ratings"),
        ("x.jpg\ty.jpg#0\n", "line 1: 'x.jpg.*' is not a judgement .*; a line is"),
        ("x.jpg\ty.jpg#0\tnan\n", "line 1: .* is not a judgement"),
        ("x.jpg\ty.jpg#0\t1\nx.jpg\ty.jpg#0\t1\t2\n", "line 2: .* is not a judgement"),
        (
            "x.jpg\tx.jpg#0\t1\t2\t3\n",
            "none of the 1 pairs of .* is of a photo and another photo's caption of somewhere; "
            "name the split",
        ),
    ],
)
def test_what_is_no_judgement_is_refused(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message):
        people.read_judgements(path, ITEMS)

    without_names = Embeddings("x", np.array([0]), 1)
    message = "x does not name its photos, and judgements do; put one name a line"
    with pytest.raises(InputError, match=message):
        people.read_judgements(path, without_names)


def made(seed=0, n=30, m=24, crowd=True, pairs=300):
    """Judgements at random of n photos and m captions, and scores that follow them."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, n, m)
    pairs_drawn = rng.permutation(n * m)[:pairs]
    image = pairs_drawn // m
    caption = pairs_drawn % m
    other = image != owner[caption]
    image = image[other]
    caption = caption[other]
    wide = rng.normal(size=m)
    scores = rng.normal(size=(n, m)) * 0.1
    p = expit(12 * scores[image, caption] + wide[caption] - 0.5)
    if crowd:
        votes = rng.integers(3, 7, len(image))
        opinion = rng.binomial(votes, p) / votes
        of = people.Judgements("f", image, caption, opinion, None, votes, 5, 0.9)
    else:
        ratings = 1 + (4 * p[:, None] + rng.uniform(size=(len(p), 3))).astype(int).clip(0, 3)
        opinion = (ratings.mean(1) - 1) / 3
        of = people.Judgements("f", image, caption, opinion, ratings, None, 0, 1.0)
    return of, scores, owner, wide


def slow_tau(x, y, kind: str) -> float:
    x_signs = []
    y_signs = []
    for i in range(len(x)):
        for j in range(i):
            x_signs.append(np.sign(x[i] - x[j]))
            y_signs.append(np.sign(y[i] - y[j]))
    concordance = sum(a * b for a, b in zip(x_signs, y_signs))

    if kind == "c":
        least = min(len(set(x)), len(set(y)))
        return 200 * concordance * least / (len(x) ** 2 * (least - 1))
    differ_in_x = sum(a != 0 for a in x_signs)
    differ_in_y = sum(b != 0 for b in y_signs)
    return 100 * concordance / math.sqrt(differ_in_x * differ_in_y)


@pytest.mark.parametrize("crowd", [True, False])
def test_agreement_is_that_of_loops_over_pairs_of_pairs(crowd):
    of, scores, *_ = made(crowd=crowd, pairs=120)
    s = scores[of.image, of.caption]
    if crowd:
        kind = "b"
        slow = slow_tau(s, of.opinion, kind)
    else:
        kind = "c"
        slow = slow_tau(np.repeat(s, 3).tolist(), of.ratings.ravel().tolist(), kind)

    found = people.measure_agreement(of, scores)

    assert found["tau"] == pytest.approx(slow) and found["kind"] == kind
    wins = []
    for a in s[of.opinion > 0.5]:
        for b in s[of.opinion <= 0.5]:
            wins.append((a > b) + (a == b) / 2)
    assert found["auroc"] == pytest.approx(np.mean(wins)) and found["pairs"] == len(s)


@pytest.mark.parametrize("side", ["t2i", "i2t"])
def test_what_fits_by_people_is_the_sum_of_shares(side):
    of = made()[0]
    other = made(1, crowd=False)[0]
    total = Counter()
    for i, c, share in zip(of.image, of.caption, of.opinion):
        query = c if side == "t2i" else i
        total[query] += share

    found = people.sum_opinions([other, of], side, 33)

    # shares go before ratings; nobody saw the last ones
    assert np.allclose(found, [total.get(q, np.nan) for q in range(33)], equal_nan=True)


def test_ratings_alone_give_no_map():
    """Rhos are Spearman's, with intervals of one bootstrap."""
    of, scores, owner, _ = made(crowd=False)
    subject = Embeddings("x", owner, 30, matrix=scores)

    found = people.judge_by_people(subject, [of], Sigmoid(5.0, 1.0))

    assert found.keys() == {"files", "captions", "images"}
    assert found.keys() == {"files", "captions", "images"}
    truth = people.sum_opinions([of], "t2i", 24)
    known = ~np.isnan(truth)
    x = found["captions"]["measures"]["max"]
    assert x["rho"] == pytest.approx(stats.spearmanr(scores.max(0)[known], truth[known]).statistic)
    assert x["low"] < x["rho"] < x["high"]

    # files of one name in two folders
    twins = [of._replace(path=f"{folder}/x.txt") for folder in ("a", "b")]
    found = people.judge_by_people(subject, twins, Sigmoid(5.0, 1.0))
    assert list(found["files"]) == ["a/x.txt", "b/x.txt"]


def test_the_probability_of_a_caption_is_learned_from_votes_on_others():
    of, scores, owner, wide = made(n=60, m=60, pairs=3000)
    found = people.judge_votes([of], scores, Sigmoid(5.0, 1.0), wide)

    assert list(found) == ["own pairs", "fitted", "with Sigma"]
    assert found["with Sigma"]["nll"] < found["fitted"]["nll"] < found["own pairs"]["nll"]
    assert found["with Sigma"]["auroc"] > found["fitted"]["auroc"]
    assert found["fitted"]["ece"] < 3 * found["fitted"]["ece_floor"] < found["own pairs"]["ece"]
    # each half's map changes with its own votes alone
    half, _ = next(people.split_halves(60))
    asked = half[of.caption]
    turned_on_one_half = np.where(asked, 1 - of.opinion, of.opinion)
    moved = of._replace(opinion=turned_on_one_half)
    for name, learn in (("judged", half), ("others", ~half)):
        maps = []
        for x in (of, moved):
            rows = learn[x.caption]
            own_scores = scores[x.image, x.caption]
            maps.append(Sigmoid.fit(own_scores[rows], x.opinion[rows], x.votes[rows]))
        assert (maps[0] == maps[1]) == (name == "others")

    assert "with Sigma" not in people.judge_votes([of], scores, Sigmoid(5.0, 1.0), None)


def test_numbers_are_sums_over_all_photos():
    of, scores, owner, wide = made()
    seen = of.caption != 3  # nobody judged caption 3
    of = of._replace(
        image=of.image[seen],
        caption=of.caption[seen],
        opinion=of.opinion[seen],
        votes=of.votes[seen],
    )

    count = people.estimate_counts([of], scores, owner, wide)

    assert np.isnan(count[3]) and np.isfinite(np.delete(count, 3)).all()

    judged = {}
    for i, c, share, votes in zip(of.image, of.caption, of.opinion, of.votes):
        judged.setdefault((i, c), (share, votes))
    half, others = next(people.split_halves(24))
    known = np.arange(24) != 3
    of_scores = []
    of_variances = []
    shares = []
    weights = []
    for c in np.flatnonzero(others & known):  # learned from the other half
        for i in range(30):
            unjudged = (0.9 * (owner[c] == i), people.VOTES_OF_UNJUDGED)
            share, weight = judged.get((i, c), unjudged)
            of_scores.append(scores[i, c])
            of_variances.append(wide[c])
            shares.append(share)
            weights.append(weight)
    learned = Sigmoid.fit(*map(np.array, (of_scores, shares, weights, of_variances)))

    c = int(np.flatnonzero(half & known)[0])
    expected = sum(float(learned(scores[i, c], wide[c])) for i in range(30))
    assert count[c] == pytest.approx(expected, rel=1e-6)


# ---- captions by name


def named(folder, captions: str, names="x.jpg\ny.jpg\n", photos=2) -> str:
    folder.mkdir(exist_ok=True)
    np.save(folder / "photos_ims.npy", np.ones((photos, 4), np.float32))
    (folder / "photos_ids.txt").write_text(names)
    (folder / "captions.tsv").write_text(captions)
    return str(folder)


def test_captions_are_read_by_the_names_of_their_photos(tmp_path):
    lines = "y.jpg#2\ta cat .\nx.jpg#0\ta dog\ty\nz.jpg#0\ta third\ny.jpg#0\ta bird\n"
    root = named(tmp_path / "d", lines)

    split = read_precomputed(root, "photos")

    assert split.captions == ["a cat .", "a dog\ty", "a bird"]
    assert split.caption_image.tolist() == [1, 0, 1]
    assert split.caption_names == ["y.jpg#2", "x.jpg#0", "y.jpg#0"]
    assert split.image_ids == ["x.jpg", "y.jpg"]
    assert "1 captions of" in split.notes[0]


@pytest.mark.parametrize(
    "captions,names,message",
    [
        ("x.jpg#0\ta\nx.jpg#0\tb\n", "x.jpg\ny.jpg\n", "line 2: .* is not a new NAME#K, tab, text"),
        ("q.jpg#0\ta\n", "x.jpg\ny.jpg\n", "has no caption of the 2 photos of photos_ids.txt"),
        ("x.jpg#0\ta\n", "x.jpg\nx.jpg\n", "gives 1 names in 2 lines for the 2 photos"),
    ],
)
def test_captions_of_another_form_are_refused(tmp_path, captions, names, message):
    with pytest.raises(InputError, match=message):
        read_precomputed(named(tmp_path / "d", captions, names), "photos")
    message = "has no features test_ims.npy; its captions are of photos, so give --split"
    with pytest.raises(InputError, match=message):
        read_precomputed(str(tmp_path / "d"), "test")


# ---- the commands


def test_a_run_is_judged_by_people(small_run, tmp_path, demo_path, capsys):
    """On the demo's test split by name, with two captions a photo, and votes."""
    run = small_run("--sim", "wasserstein", to=tmp_path / "run")
    data = os.path.join(demo_path, "demo_precomp")
    os.symlink(data, tmp_path / "demo_precomp")
    texts = []
    with open(os.path.join(data, "test_caps.txt"), encoding="utf-8") as f:
        for m, text in enumerate(f):
            if m % 5 in (1, 3):
                texts.append(f"{m // 5}.jpg#{m % 5}\t{text}")
    names = "".join(f"{i}.jpg\n" for i in range(IMAGES))
    named(tmp_path / "named", "".join(texts), names)
    shutil.copy(os.path.join(data, "test_ims.npy"), tmp_path / "named" / "photos_ims.npy")

    rng = np.random.default_rng(0)
    lines = []
    for i in range(IMAGES):
        for k in (1, 3):
            for photo, yes in enumerate(rng.integers(0, 4, IMAGES)):
                lines.append(f"{photo}.jpg\t{i}.jpg#{k}\t{yes / 3:.3f}\t{yes}\t{3 - yes}\n")
    votes = written(tmp_path, "".join(lines))

    of_photos = ["--data_path", str(tmp_path), "--data_name", "named", "--split", "photos"]
    people.main([str(run), *of_photos, "--judgements", votes])

    shown = capsys.readouterr().out
    for sentence in (
        "people's judgements of pairs",
        "tau-b",
        "the probability that a judged pair fits",
        "captions as queries: Spearman's rho",
        "log det Sigma of the query",
        "calibrated on",
        "(demo_precomp dev)",
    ):
        assert sentence in shown, sentence
    found = json.loads((run / "people_named_photos.json").read_text())["people"]
    assert found["files"][PAIRS]["pairs"] == 2 * IMAGES * (IMAGES - 1)
    assert found["files"][PAIRS]["own"] == 2 * IMAGES
    assert found["captions"]["queries"] == 2 * IMAGES and found["images"]["queries"] == IMAGES
    measures = found["captions"]["measures"]
    assert {"log_det_query", "expected", "expected_by_votes", "words", "rarity"} <= set(measures)
    assert set(measures["log_det_query"]["given"]) == {"words", "rarity", "all"}
    assert "given" not in measures["words"]
    assert "minus the number of words" in " ".join(shown.split()) and "given words" in shown
    assert not {"words", "rarity"} & set(found["images"]["measures"])


def test_heads_learn_shares_of_frozen_means_also_after_a_stop(small_run, demo_path, tmp_path):
    """Of epochs that rank alike the last is the best."""
    point = small_run("--sim", "cosine")
    start = ["--data_path", demo_path, "--sim", "cosine", "--init_from", point]
    learn_shares = ["--freeze_means", "--loss", "volume", "--num_epochs", 2]

    fit(*start, *learn_shares, "--logger_name", tmp_path / "run")

    best = torch.load(tmp_path / "run" / "model_best.pt", weights_only=True)["model"]
    last = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"]
    for name in last:
        assert torch.equal(best[name], last[name]) and "shares" not in name

    assert resume(tmp_path / "run", "--num_epochs", 3) == 0
    model = Trained(str(tmp_path / "run"))
    own = read_split_for(model, "train")
    dev = read_split_for(model, "dev")
    tokens = {"train": own.encode(model.vocab), "dev": dev.encode(model.vocab)}
    shares = volume.training_shares(model.model, own, dev, tokens, "cpu")
    assert len(shares) == len(own.captions) and (shares < 0).all() and shares.std() > 0


def test_what_is_said_of_how_many_fit():
    for expected, sure, said in (
        (0.03, 0.3, "probably none or very few of 1,900 photos show this"),
        (0.6, None, "about 1 (0 to 3) of 1,900 photos shows this"),
        (12.4, 0.3, "about 12 (6 to 27) of 1,900 photos show this"),  # many may be meant
        (367.4, None, "about 370 (180 to 740) of 1,900 photos show this"),  # two digits
        (1200, None, "about 1,200 (600 to 1,900) of 1,900 photos show this"),
        (
            1.6,
            0.3,
            "about 2 (1 to 5) of 1,900 photos show this; 30% likely that the first photo is the best match",
        ),
        (None, 0.3, "30% likely that the first photo is the best match"),
        (None, None, ""),
    ):
        assert SearchResult("a", [], 1900, sure, expected=expected).said == said
