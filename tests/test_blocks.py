"""Splits with more scores than are held at once: every protocol gives the numbers of the whole matrix."""

import json

import numpy as np
import pytest

import metrics
from evaluation import protocols
from evaluation.annotations import Crisscrossed
from evaluation.blocks import BlockScores
from evaluation.embeddings import Embeddings, Member
from losses import SIMILARITIES
from options import parse_evaluation
from tests.helpers import evaluated
from tests.test_protocols import M, N, embeddings, problem

SIMS = ["cosine", "wasserstein", "mahalanobis"]


def few_scores(monkeypatch):
    """Hold ten scores at most, and compute four rows at once."""
    monkeypatch.setattr(protocols, "MAX_SCORES", 10)
    monkeypatch.setattr(protocols, "QUERIES_PER_BLOCK", 4)
    monkeypatch.setattr(metrics, "MAX_SCORES_HELD", 10)
    monkeypatch.setattr(metrics, "SCORES_PER_BLOCK", 4 * M)
    monkeypatch.setattr("evaluation.blocks.QUERIES_PER_BLOCK_OF_PAIRS", 7)


def members_of(names):
    members = []
    for seed, name in enumerate(names):
        sides, owner = embeddings(name, seed)
        members.append(Member(SIMILARITIES[name].score, *sides))
    return members, embeddings(names[0])[1]


@pytest.mark.parametrize("names", [*([name] for name in SIMS), SIMS], ids=[*SIMS, "ensemble"])
def test_parts_of_the_scores_are_those_of_the_matrix(names, monkeypatch):
    members, _ = members_of(names)
    whole = metrics.score_matrix(members)
    few_scores(monkeypatch)
    rng = np.random.default_rng(0)
    for blocks, matrix in (
        (BlockScores(members), whole),
        (BlockScores(members).T, whole.T),
        (BlockScores(members).T.T, whole),
    ):
        assert blocks.shape == matrix.shape and len(blocks) == len(matrix)
        rows = rng.integers(0, len(matrix), 6)
        columns = rng.integers(0, matrix.shape[1], 9)
        for index in (rows, 3, slice(1, 4), np.ix_(rows, columns), (rows, columns[:6])):
            np.testing.assert_allclose(blocks[index], matrix[index], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SIMS)
def test_every_protocol_is_computed_in_blocks(name, monkeypatch):
    results = []
    for in_blocks in (False, True):
        subject, _, ratings, pairs = problem(name)
        monkeypatch.setattr(protocols, "IMAGES_PER_FOLD", 3)
        categories = np.random.default_rng(0).random((N, 4)) < 0.4
        subject.judged = {
            "ndcg": protocols.match_original_pairs(subject.caption_image),
            "pmrp": categories,
            "eccv": {side: pairs[side] for side in ("i2t", "t2i")},
            "positives": {"i2t": pairs["i2t"]},
            "cxc": Crisscrossed(ratings, pairs),
        }
        rng = np.random.default_rng(1)
        subject.bank = (
            rng.random(N).astype(np.float32),
            rng.random(M).astype(np.float32),
        )
        if in_blocks:
            few_scores(monkeypatch)
            monkeypatch.setattr(Embeddings, "scores", None)  # the matrix is never made
        opt = parse_evaluation(["--embeddings", "x.npz", "--fold5"])
        results.append(protocols.assess(subject, opt))

    (found, record), (expected, whole) = results[1], results[0]
    names = {"full", "bank", "ndcg", "pmrp", "eccv", "positives", "cxc", "folds5"}
    assert names <= set(found["protocols"])
    assert set(found["protocols"]) == set(expected["protocols"])
    for title, sides in expected["protocols"].items():
        for side, numbers in sides.items():
            assert found["protocols"][title][side] == pytest.approx(numbers), (title, side)
    assert set(record) == set(whole)
    for key, values in whole.items():
        np.testing.assert_allclose(record[key], values)
    assert found["best_ranks"] == expected["best_ranks"] and "notes" not in found


def test_evaluate_prints_all_numbers_of_a_large_split(tmp_path, monkeypatch, undrawn):
    """It left with status 0 and a note in place of the numbers that were asked for."""
    (image, caption), owner = embeddings("cosine")
    np.savez(
        tmp_path / "e.npz",
        image_mean=image.mean,
        caption_mean=caption.mean,
        caption_image=owner,
        similarity="cosine",
    )
    words = ["--embeddings", tmp_path / "e.npz", "--ndcg", "--output", tmp_path / "r.json"]
    expected = evaluated(*words)
    few_scores(monkeypatch)
    found = evaluated(*words, "--overwrite")
    assert found["protocols"] == expected["protocols"]
    assert {"full", "ndcg"} <= set(json.loads((tmp_path / "r.json").read_text())["protocols"])
