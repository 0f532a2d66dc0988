"""MRR and nDCG@10 of any model, and rankings for trec_eval, against loops over their definitions."""

import json
from collections import defaultdict

import numpy as np
import pytest

import evaluate as command
from evaluation import evaluate
from tests import references
from tests.helpers import refused


def made_up(n=30, each=4, seed=0, digits=1):
    """Scores (N, M) with ties in which own pairs stand higher, and the image of each caption (M,), shuffled."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.repeat(np.arange(n), each))
    scores = (np.arange(n)[:, None] == owner) + rng.standard_normal((n, n * each))
    return scores.round(digits).astype(np.float32), owner


def slow_numbers(queries):
    """MRR, nDCG@10, R-precision and mAP@R in percent, of [(scores of a query, its right items)]."""
    rows = [
        (
            1 / (1 + references.slow_rank(*query)),
            references.slow_ndcg(*query),
            *references.slow_precisions(*query),
        )
        for query in queries
    ]
    return {
        **dict(zip(("mrr", "ndcg10", "rp", "map_at_r"), 100 * np.mean(rows, 0))),
        "queries": len(rows),
    }


def test_mrr_and_ndcg_equal_their_definitions(ev):
    """By the command, and by the function, also with a matrix for each direction."""
    scores, owner = made_up()
    expected = {
        side: slow_numbers(rows)
        for side, rows in references.list_queries(scores, owner.tolist()).items()
    }
    means = np.linalg.svd(scores.astype(float), full_matrices=False)
    np.savez(
        "x.npz",
        image_mean=means[0] * means[1],
        caption_mean=means[2].T,
        caption_image=owner,
        similarity="dot",
    )
    found = evaluate(scores=scores, owner=owner, ndcg=True)
    for side, numbers in expected.items():
        assert found["protocols"]["ndcg"][side] == pytest.approx(numbers)
        assert found["protocols"]["ndcg"][side]["mrr"] == pytest.approx(
            100 / found["best_ranks"][side]["hbr"]
        )
    apart = evaluate(scores_i2t=scores, scores_t2i=scores[::-1, ::-1].T, owner=owner, ndcg=True)[
        "protocols"
    ]["ndcg"]
    assert (
        apart["i2t"] == found["protocols"]["ndcg"]["i2t"]
        and apart["t2i"] != found["protocols"]["ndcg"]["t2i"]
    )

    np.save("s.npy", scores[:, np.argsort(owner, kind="stable")])
    own = ev("--scores", "s.npy", "--ndcg")["protocols"]["ndcg"]
    assert own == json.loads(json.dumps(found["protocols"]["ndcg"]))
    assert "ndcg" not in ev("--scores", "s.npy")["protocols"]


def test_ndcg_stands_in_the_table_and_in_comparisons(ev, capsys):
    for k in range(2):
        np.save(f"{k}.npy", np.sort(made_up(seed=k)[0], 1))
    ev("--scores", "0.npy", "--ndcg")
    shown = capsys.readouterr().out
    assert (
        "original pairs, MRR and nDCG@10" in shown
        and "nDCG@10" in shown.split("original pairs, MRR")[1]
    )
    metrics = ev("--compare", "0.npy", "1.npy", "--ndcg")["comparisons"][0]["metrics"]
    assert {"ndcg i2t ndcg10", "ndcg t2i mrr", "ndcg i2t map_at_r"} <= set(metrics)
    assert not any(name.startswith("ndcg") and name.endswith((" r1", "rsum")) for name in metrics)


def read_trec(start):
    """{query: [(item, score)] by rank} and {query: set of right items}."""
    ranked = defaultdict(list)
    right = defaultdict(set)
    for line in open(f"{start}.run", encoding="utf-8"):
        query, q0, item, rank, score, tag = line.split()
        assert q0 == "Q0" and tag == "model" and int(rank) == len(ranked[query]) + 1
        ranked[query].append((item, float(score)))
    for line in open(f"{start}.qrels", encoding="utf-8"):
        query, zero, item, relevance = line.split()
        assert (zero, relevance) == ("0", "1")
        right[query].add(item)
    return ranked, right


@pytest.mark.parametrize("digits", [0, 8])
def test_rankings_for_trec_eval_give_the_recalls(ev, digits):
    scores, owner = made_up(n=40, digits=digits)
    order = np.argsort(owner, kind="stable")
    np.save("s.npy", scores[:, order])
    results = ev("--scores", "s.npy", "--trec", "mine", "--ndcg")["protocols"]
    for side, size in (("i2t", 100), ("t2i", 40)):
        ranked, right = read_trec(f"mine_{side}")
        assert len(ranked) == len(right) == results["full"][side]["queries"]
        for k in (1, 5, 10):
            hits = [
                any(item in right[query] for item, _ in items[:k])
                for query, items in ranked.items()
            ]
            assert 100 * np.mean(hits) == pytest.approx(results["full"][side][f"r{k}"])
        gains = []
        for query, items in ranked.items():
            assert len(items) == size and [s for _, s in items] == sorted(
                (s for _, s in items), reverse=True
            )
            names = [item for item, _ in items]
            gains.append(
                references.slow_ndcg(
                    -np.arange(size),
                    {names.index(x) for x in right[query] if x in names}
                    | {-1 - k for k, x in enumerate(right[query] - set(names))},
                )
            )
        assert 100 * np.mean(gains) == pytest.approx(results["ndcg"][side]["ndcg10"])
    assert read_trec("mine_t2i")[1]["caption7"] == {"image1"}


def test_items_have_their_ids_unless_a_name_has_spaces(ev):
    rng = np.random.default_rng(0)
    x = {
        "image_mean": rng.standard_normal((3, 4)),
        "caption_mean": rng.standard_normal((6, 4)),
        "caption_id": np.arange(6) + 70,
    }
    for names, first in (
        (["a.jpg", "b.jpg", "c.jpg"], "a.jpg"),
        (["a b.jpg", "b.jpg", "c.jpg"], "image0"),
    ):
        np.savez("x.npz", image_name=np.array(names), **x)
        ev("--embeddings", "x.npz", "--trec", "mine")
        assert read_trec("mine_i2t")[1][first] == {"70", "71"}


def test_rankings_have_the_positives_of_the_user(ev):
    rng = np.random.default_rng(0)
    np.savez(
        "x.npz",
        image_mean=rng.standard_normal((3, 4)),
        caption_mean=rng.standard_normal((6, 4)),
        image_id=[1, 2, 3],
        caption_id=np.arange(6),
    )
    with open("p.json", "w", encoding="utf-8") as f:
        json.dump({"t2i": {"4": [1, 3]}}, f)
    ev("--embeddings", "x.npz", "--positives", "p.json", "--trec", "mine")
    assert read_trec("mine_t2i")[1] == {"4": {"1", "3"}}


def test_files_of_rankings_are_not_replaced_unasked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", made_up()[0])
    (tmp_path / "mine_t2i.qrels").write_text("kept")
    refused(
        capsys,
        command.main,
        ["--scores", "s.npy", "--trec", "mine"],
        "mine_t2i.qrels already exists",
    )
    refused(
        capsys,
        command.main,
        ["--compare", "s.npy", "s2.npy", "--trec", "mine"],
        "--trec are of one model",
    )
    assert (tmp_path / "mine_t2i.qrels").read_text() == "kept" and not (
        tmp_path / "mine_i2t.run"
    ).exists()
