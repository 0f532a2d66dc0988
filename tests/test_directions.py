"""Files of scores with a matrix for each direction give the numbers of the function for arrays."""

import json

import numpy as np
import pytest
import torch

import evaluate as command
import metrics
from confidence import __main__ as confidence
from evaluation import evaluate
from tests.helpers import refused
from tests.references import slow_ndcg, slow_precisions, slow_rank

KEPT = ("images", "captions", "similarity", "protocols", "chance", "best_ranks", "ties", "notes")


def matrices(n=30, each=4, seed=0):
    """Scores (N, M) and (M, N) of two kinds, and the image of each caption, in any order."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.repeat(np.arange(n), each))
    near = 2.0 * (owner == np.arange(n)[:, None])
    of_images = near + rng.standard_normal((n, n * each))
    of_captions = (near + rng.standard_normal((n, n * each))).T
    return of_images.astype(np.float32), of_captions.astype(np.float32), owner


def save(path, **arrays):
    if path.endswith(".npz"):
        np.savez(path, **arrays)
    else:
        torch.save(
            {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}, path
        )
    return path


@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_a_matrix_for_each_direction_is_read_from_a_file(ev, ending):
    of_images, of_captions, owner = matrices()
    path = save(f"x.{ending}", scores_i2t=of_images, scores_t2i=of_captions, caption_image=owner)
    own = ev("--scores", path, "--ndcg")
    found = evaluate(scores_i2t=of_images, scores_t2i=of_captions, owner=owner, ndcg=True)
    assert {name: own[name] for name in KEPT if name in own} == json.loads(json.dumps(found))
    apart = [metrics.retrieval(x, owner) for x in (of_images, of_captions.T)]
    full = own["protocols"]["full"]
    assert (full["i2t"], full["t2i"]) == (apart[0]["i2t"], apart[1]["t2i"])
    assert apart[0]["t2i"] != apart[1]["t2i"] and apart[0]["i2t"] != apart[1]["i2t"]
    assert full["rsum"] == pytest.approx(
        sum(full[side][f"r{k}"] for side in ("i2t", "t2i") for k in (1, 5, 10))
    )


def test_numbers_of_each_direction_equal_their_definitions(ev):
    of_images, of_captions, owner = matrices()
    own = ev(
        "--scores",
        save("x.npz", scores_i2t=of_images, scores_t2i=of_captions, caption_image=owner),
        "--ndcg",
    )
    queries = {
        "i2t": [(row, set(np.flatnonzero(owner == i))) for i, row in enumerate(of_images)],
        "t2i": [(row, {int(owner[m])}) for m, row in enumerate(of_captions)],
    }
    for side, rows in queries.items():
        numbers = own["protocols"]["ndcg"][side]
        ranks = [slow_rank(*query) for query in rows]
        precisions = np.array([slow_precisions(*query) for query in rows])
        assert numbers["mrr"] == pytest.approx(100 * np.mean([1 / (1 + rank) for rank in ranks]))
        assert numbers["ndcg10"] == pytest.approx(
            100 * np.mean([slow_ndcg(*query) for query in rows])
        )
        assert [numbers["rp"], numbers["map_at_r"]] == pytest.approx(
            (100 * precisions.mean(0)).tolist()
        )
        assert own["protocols"]["full"][side]["r1"] == pytest.approx(
            100 * np.mean(np.array(ranks) < 1)
        )


def test_one_matrix_in_a_file_of_arrays_is_that_of_an_npy(ev):
    of_images, _, owner = matrices()
    order = np.argsort(owner, kind="stable")
    np.save("x.npy", of_images[:, order])
    found = [
        ev("--scores", "x.npy")["protocols"],
        ev("--scores", save("a.npz", scores=of_images[:, order]))["protocols"],
        ev("--scores", save("b.npz", scores=of_images, caption_image=owner))["protocols"],
    ]
    assert found[0] == found[1] == found[2]


def test_the_same_matrix_twice_is_the_matrix(ev):
    of_images, _, owner = matrices()
    ids = {
        "caption_image": owner,
        "image_id": np.arange(30) + 100,
        "caption_id": np.arange(120) + 1000,
    }
    matched = {
        "i2t": {str(100 + owner[m]): [1000 + m] for m in range(50)},
        "t2i": {"1003": [100, 105]},
    }
    with open("p.json", "w", encoding="utf-8") as f:
        json.dump(matched, f, default=int)
    words = ("--ndcg", "--positives", "p.json", "--trec", "t", "--overwrite")
    texts = []
    for path in (
        save("a.npz", scores=of_images, **ids),
        save("b.npz", scores_i2t=of_images, scores_t2i=of_images.T, **ids),
    ):
        protocols = ev("--scores", path, *words)["protocols"]
        texts.append(
            (
                protocols,
                [
                    open(f"t_{end}").read()
                    for end in ("i2t.run", "t2i.run", "i2t.qrels", "t2i.qrels")
                ],
            )
        )
    assert texts[0] == texts[1]
    with open("p.json", "w", encoding="utf-8") as f:
        json.dump({"t2i": matched["t2i"]}, f, default=int)
    assert set(ev("--scores", "b.npz", "--positives", "p.json")["protocols"]["positives"]) == {
        "t2i"
    }


def test_rankings_of_captions_are_those_of_their_own_matrix(ev):
    of_images, of_captions, owner = matrices()
    ev(
        "--scores",
        save("x.npz", scores_i2t=of_images, scores_t2i=of_captions, caption_image=owner),
        "--trec",
        "t",
    )
    first = open("t_t2i.run").readline().split()
    assert first[:4] == ["caption0", "Q0", f"image{of_captions[0].argmax()}", "1"]
    assert float(first[4]) == pytest.approx(of_captions[0].max())
    first = open("t_i2t.run").readline().split()
    assert first[2] == f"caption{of_images[0].argmax()}"


def test_models_of_two_matrices_are_compared(ev):
    of_images, of_captions, owner = matrices()
    save("a.npz", scores=of_images, caption_image=owner)
    save("b.npz", scores_i2t=of_images, scores_t2i=of_captions, caption_image=owner)
    found = ev("--compare", "a.npz", "b.npz")["comparisons"][0]["metrics"]
    assert found["full i2t r1"]["difference"] == 0
    change = (
        metrics.retrieval(of_captions.T, owner)["t2i"]["r1"]
        - metrics.retrieval(of_images, owner)["t2i"]["r1"]
    )
    assert found["full t2i r1"]["difference"] == pytest.approx(change) and change != 0


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"scores_i2t": (3, 6)}, "x.npz holds scores_i2t; give scores, images x captions, or both"),
        ({"scores": (3, 6), "scores_t2i": (6, 3)}, "holds scores and scores_t2i; give scores"),
        ({"scores_i2t": (3, 6), "scores_t2i": (3, 6)}, "scores_t2i captions x images"),
        (
            {"scores": (3, 6), "image_mean": (3, 2)},
            "holds scores and image_mean, two sources of ranks",
        ),
        ({"scores": (3, 6), "other": (3,)}, "has an array 'other', unknown here"),
        ({"scores": (3, 6), "caption_image": (5,)}, "caption_image must hold"),
    ],
)
def test_other_files_of_scores_are_refused(capsys, tmp_path, monkeypatch, arrays, message):
    monkeypatch.chdir(tmp_path)
    made = {name: np.random.default_rng(0).random(shape) for name, shape in arrays.items()}
    if "caption_image" in made:
        made["caption_image"] = np.zeros(5, int)
    np.savez("x.npz", **made)
    refused(capsys, command.main, ["--scores", "x.npz"], message)


def test_what_reads_one_matrix_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_images, of_captions, owner = matrices()
    save("x.npz", scores_i2t=of_images, scores_t2i=of_captions, caption_image=owner)
    refused(
        capsys,
        confidence.main,
        ["x.npz", "--device", "cpu", "--cross_fit", "10"],
        "a matrix for each direction, which evaluate.py alone",
    )
    refused(
        capsys,
        command.main,
        ["--scores", "x.npz", "--sim", "dot"],
        "--sim dot computes nothing from the scores of",
    )
