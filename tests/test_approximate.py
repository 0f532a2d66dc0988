"""Approximate search: what it proposes holds what float64 finds, also after vectors were added, and files are whole."""
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from cli import InputError
from retrieval import engines
from retrieval.engines import Approximate, Projection, build
from tests.test_engines import written

faiss = pytest.importorskip("faiss", reason="FAISS is an optional package (requirements-search.txt)")
METHODS = ("hnsw", "ivfpq")
N, K = 3000, 40


def lifted(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n images and n queries like those of Gaussians: few directions count, and one column is -|x|^2."""
    rng, up = np.random.default_rng(seed), np.random.default_rng(0).standard_normal((8, K - 1))
    images, captions = (rng.standard_normal((n, 8)) @ up + 0.05 * rng.standard_normal((n, K - 1)) for _ in range(2))
    return (np.c_[2 * images, -(images ** 2).sum(1)].astype(np.float32),
            np.c_[captions, np.ones(n)].astype(np.float32))


def true_best(vectors: np.ndarray, queries: np.ndarray, top: int) -> np.ndarray:
    return np.argsort(-(queries.astype(np.float64) @ vectors.T.astype(np.float64)), 1, "stable")[:, :top]


def recall(best: np.ndarray, rows: np.ndarray) -> float:
    return np.mean([len(set(of) & set(found)) / len(of) for of, found in zip(best.tolist(), rows.tolist())])


@pytest.fixture(scope="module")
def photos():
    return lifted(N, 1)


@pytest.mark.parametrize("method", METHODS)
def test_candidates_hold_the_best(tmp_path, photos, method):
    images, captions = photos
    flat, path = written(tmp_path, images), str(tmp_path / "index")
    index = build(flat, method, captions[:1000])
    tuned = index.tune(flat, captions[1000:1400])
    assert (index.index.ntotal, index.method) == (N, method) and tuned.recall10 >= 0.98
    asked = captions[1400:1500]
    best, rows = true_best(images, asked, 10), index.candidates(asked, tuned.depth)
    assert rows.shape == (100, tuned.depth) and rows.dtype == np.int64 and recall(best, rows) > 0.96
    index.save(path)
    again = Approximate.open(path)
    assert again.tuned == tuned and (again.candidates(asked, 20) == index.candidates(asked, 20)).all()


@pytest.mark.parametrize("method", METHODS)
def test_as_many_candidates_as_are_asked_for(tmp_path, photos, method):
    """Also where the lists that were enough for the best ten hold fewer."""
    images, captions = photos
    index = build(written(tmp_path, images), method, captions[:1000])
    index.tune(written(tmp_path, images), captions[1000:1100], 0.5)
    rows = index.candidates(captions[1400:1420], 1500)
    assert (rows >= 0).all() and all(len(set(row)) == 1500 for row in rows.tolist())


@pytest.mark.parametrize("method", METHODS)
def test_added_vectors_are_found_as_if_they_had_been_there(tmp_path, photos, method):
    images, captions = photos
    index = build(written(tmp_path, images[:2500]), method, captions[:1000])
    whole = written(tmp_path, images, name="all.npy")
    index.add(whole)
    fresh = build(whole, method, captions[:1000])
    asked = captions[2000:2200]
    best = true_best(images, asked, 10)
    got, expected = (recall(best, one.candidates(asked, 100, 256)) for one in (index, fresh))
    assert index.index.ntotal == N and got > expected - 0.01 and expected > 0.97
    assert (best >= 2500).any() and set(best[best >= 2500]) & set(index.candidates(asked, 100, 256).ravel())
    index.add(whole)                                        # nothing is left to add
    assert index.index.ntotal == N


def test_a_projection_keeps_products_and_norms():
    images, captions = map(torch.from_numpy, lifted(400, 2))
    of = Projection.learn(images, captions)
    rows, queries = of.rows(images), of.queries(captions)
    assert rows.shape == (400, 96) and np.allclose((rows ** 2).sum(1), of.square, rtol=1e-4)
    truth = (captions @ (images - images.mean(0)).T).double().numpy()
    scale = (truth * (queries @ rows.T)).sum(1) / (truth ** 2).sum(1)               # of each query
    np.testing.assert_allclose(queries @ rows.T, scale[:, None] * truth, atol=1e-3 * np.abs(queries @ rows.T).max())
    distances = ((queries[:, None] - rows[None]) ** 2).sum(2)
    assert (distances.argmin(1) == truth.argmax(1)).mean() > 0.99
    long = of.rows(100 * images)                            # added later, longer than all that were drawn
    assert np.isfinite(long).all() and (long[:, -1] == 0).any()


def test_directions_are_those_that_queries_ask_for():
    """The largest numbers of the vectors are ones that no query reads: plain principal components would keep them."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((500, 200)) * np.r_[np.full(100, 50), np.ones(100)]).float()
    queries = np.c_[np.zeros((500, 100)), rng.standard_normal((500, 10)), np.zeros((500, 90))]
    queries = torch.from_numpy(queries).float()
    of = Projection.learn(images, queries)
    best = true_best(images.numpy(), queries.numpy(), 10)
    assert recall(best, true_best(of.rows(images), of.queries(queries), 10)) > 0.95


@pytest.mark.parametrize("n", [1, 2, 30])
def test_few_vectors(tmp_path, n):
    images, captions = lifted(n, 3)
    flat = written(tmp_path, images)
    index = build(flat, "hnsw", captions[:1])
    rows = index.candidates(captions, 40)
    assert [set(of) for of in rows.tolist()] == [{*range(n), -1}] * n
    assert index.tune(flat, captions).recall10 == 1
    with pytest.raises(InputError, match=f"at least 1,000 vectors, and there are {n}; compare all"):
        build(flat, "ivfpq", captions)


def test_the_least_effort_is_taken_and_a_target_out_of_reach_is_said(tmp_path, photos, monkeypatch):
    images, captions = photos
    flat = written(tmp_path, images)
    index = build(flat, "ivfpq", captions[:1000])
    monkeypatch.setitem(engines.EFFORTS, "ivfpq", (1, 2, 4, 8, 16, 32, 64))
    low, high = (index.tune(flat, captions[1000:1200], target) for target in (0.5, 0.98))
    assert 1 < high.effort and low.effort < high.effort and 0.5 <= low.recall10 < high.recall10
    best = true_best(images, captions[1000:1200], 10)
    assert recall(best, index.candidates(captions[1000:1200], high.depth)) == pytest.approx(high.recall10)
    below = index.candidates(captions[1000:1200], 400, high.effort // 2)
    assert recall(best, below) < 0.99                       # two standard errors above 0.98 are asked for
    monkeypatch.setitem(engines.EFFORTS, "ivfpq", (1,))
    assert index.tune(flat, captions[1000:1200]).recall10 < 0.98 and index.tuned.effort == 1


def false_files(good: bytes):
    """Bytes of files that are no whole index, by name."""
    yield "nothing", b""
    yield "pickle", pickle.dumps(print)
    yield "cut", good[:len(good) // 2]
    yield "a bit flipped", good[:5000] + bytes([good[5000] ^ 1]) + good[5001:]
    arrays = dict(np.load(io.BytesIO(good)))
    other = faiss.serialize_index(faiss.IndexFlatL2(96))
    changes = {"no index in it": {"faiss": other[:10]}, "another index": {"faiss": other},
               "cut index": {"faiss": arrays["faiss"][:-100]}, "other width": {"to_rows": arrays["to_rows"][:, :-1]},
               "other K": {"mean": arrays["mean"][:-1]}, "tuned to text": {"tuned": np.array(["a"])}}
    for name, change in changes.items():
        f = io.BytesIO()
        np.savez(f, **arrays | change)
        yield name, f.getvalue()
    f = io.BytesIO()
    np.savez(f, **{name: x for name, x in arrays.items() if name != "mean"})
    yield "no mean", f.getvalue()
    f = io.BytesIO()
    np.savez(f, **arrays | {"faiss": np.array([print], object)})
    yield "objects", f.getvalue()


def test_false_files_are_refused_in_a_sentence(tmp_path, photos):
    path = tmp_path / "index"
    flat = written(tmp_path, photos[0][:200])
    index = build(flat, "hnsw", photos[1][:100])
    index.tune(flat, photos[1][:100])
    index.save(str(path))
    good = path.read_bytes()
    assert zipfile.is_zipfile(path)
    for name, data in false_files(good):
        path.write_bytes(data)
        with pytest.raises(InputError, match="make it again with search.py index"):
            Approximate.open(str(path))
            pytest.fail(name)
    with pytest.raises(InputError, match="make it again with search.py index"):
        Approximate.open(str(tmp_path / "absent"))


def test_a_failure_while_writing_leaves_the_file_as_it_was(tmp_path, photos, monkeypatch):
    flat, path = written(tmp_path, photos[0][:200]), str(tmp_path / "index")
    index = build(flat, "hnsw", photos[1][:100])
    index.tune(flat, photos[1][:100])
    index.save(path)
    before = sorted(os.listdir(tmp_path))

    def full(f, **arrays):
        f.write(b"half")
        raise OSError("disk full")
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="disk full"):
        index.save(path)
    assert sorted(os.listdir(tmp_path)) == before and Approximate.open(path).index.ntotal == 200


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(InputError, match="pip install -r requirements-search.txt"):
        engines.faiss_module()
