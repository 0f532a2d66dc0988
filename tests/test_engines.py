"""Vectors in a file: what is found is what float64 finds, and no false file is read."""
import os
import pickle
import signal

import numpy as np
import pytest
import torch

from cli import InputError
from retrieval import engines
from retrieval.engines import Flat, top_of, writing
from tests.helpers import in_a_process


def vectors(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def written(folder, array: np.ndarray, half: bool = False, block: int = 7, name: str = "vectors.npy") -> Flat:
    path = str(folder / name)
    with writing(path, *array.shape, half) as write:
        for i in range(0, len(array), block):
            write(torch.from_numpy(array[i:i + block]))
    return Flat(path)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("n_queries", [1, 5])
def test_exact_search_is_that_of_float64(tmp_path, half, n_queries):
    array, queries = vectors(300, 17), vectors(n_queries, 17, 1)
    flat = written(tmp_path, array, half)
    stored = np.load(flat.path)
    assert stored.dtype == (np.float16 if half else np.float32) and (stored == array.astype(stored.dtype)).all()
    truth = queries.astype(np.float64) @ stored.astype(np.float64).T
    for block in (1, 64, 1000):
        for top in (1, 10, 400):
            scores, rows = top_of(flat.products(queries, block), top)
            assert rows.dtype == torch.int64 and all(len(set(row)) == len(row) for row in rows.tolist())
            # two photos whose scores differ by less than float32 can tell may stand either way round
            best = -np.sort(-truth)[:, :top]
            np.testing.assert_allclose(np.take_along_axis(truth, rows.numpy(), 1), best, rtol=0, atol=4e-6)
            np.testing.assert_allclose(scores, best, rtol=1e-4, atol=1e-5)
        assert [start for start, _ in flat.products(queries, block)] == list(range(0, 300, block))
        np.testing.assert_allclose(torch.cat([s for _, s in flat.products(queries, block)], 1), truth, atol=1e-4)
    index = [299, 0, 17, 17]
    assert (flat.rows(np.array(index)).numpy() == stored[index]).all() and flat.rows(index).dtype == torch.float32


@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("top", [1, 4, 100])
def test_equal_scores_and_minus_infinity_are_ranked(block, top):
    rng = np.random.default_rng(top)
    for scores in (rng.integers(3, size=(6, 40)), np.ones((2, 40)), np.arange(80).reshape(2, 40),
                   np.where(np.arange(40) == 1, 1.0, -np.inf)[None]):
        whole = torch.tensor(scores, dtype=torch.float32)
        best, rows = top_of(((i, whole[:, i:i + block]) for i in range(0, 40, block)), top)
        assert (best == whole.sort(1, descending=True).values[:, :top]).all()
        assert (best == whole.gather(1, rows)).all() and all(len(set(row)) == len(row) for row in rows.tolist())


def test_memory_pages_are_released(tmp_path, monkeypatch):
    array = vectors(64, 8)
    flat = written(tmp_path, array)
    monkeypatch.setattr(engines, "RELEASED", 100)
    before = torch.cat([s for _, s in flat.products(array, 10)], 1)
    assert flat.unreturned == 0 and (flat.rows(np.arange(64)).numpy() == array).all() and flat.unreturned == 0
    assert (torch.cat([s for _, s in flat.products(array, 10)], 1) == before).all()


@pytest.mark.parametrize("value, half, says", [
    (70000, True, "row 9 .* holds 70000, and float16 ends at 65504; write it in float32"),
    (np.nan, True, "row 9 .* holds nan"), (np.inf, False, "row 9 .* holds inf")])
def test_numbers_that_cannot_be_kept_are_refused(tmp_path, value, half, says):
    array = vectors(20, 3)
    array[9, 1] = value
    with pytest.raises(InputError, match=says):
        written(tmp_path, array, half)
    assert not os.listdir(tmp_path)


def test_large_numbers_stay_in_float32(tmp_path):
    array = np.full((2, 2), 3e38, np.float32)               # their sum is beyond float32
    assert (written(tmp_path, array).rows([1]).numpy() == array[1]).all()
    assert written(tmp_path, np.full((2, 2), 65504, np.float32), True).rows([0])[0, 0] == 65504


@pytest.mark.parametrize("n", [4, 6, 0])
def test_as_many_vectors_as_announced_must_come(tmp_path, n):
    said = f"to hold {n} vectors and {min(n, 1) * 5} came; an index needs at least one"
    with pytest.raises(InputError, match=said), writing(str(tmp_path / "x"), n, 3, False) as write:
        if n:
            write(torch.zeros(5, 3))
    assert not os.listdir(tmp_path)


def test_false_files_are_refused_in_a_sentence(tmp_path):
    good = open(written(tmp_path, vectors(5, 4), True).path, "rb").read()
    path = tmp_path / "false.npy"
    for data in (b"", pickle.dumps(print), b"\x93NUMPY" + bytes(200), good[:-1], good[:40]):
        path.write_bytes(data)
        with pytest.raises(InputError, match="is not a whole .npy file of numbers .*; make it again with search.py"):
            Flat(str(path))
    for array in (np.zeros(3, np.float32), np.zeros((2, 2)), np.array([[None]])):
        np.save(path, array)
        with pytest.raises(InputError, match="holds float.* of shape .* and no vectors|is not a whole .npy file"):
            Flat(str(path))
    with pytest.raises(InputError, match="is not a whole .npy file"):
        Flat(str(tmp_path / "absent"))


def test_damage_that_no_size_shows(tmp_path):
    path = written(tmp_path, vectors(5, 4)).path
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) - 4 * 4 * 2)
        f.write(np.float32(np.nan).tobytes())
    with pytest.raises(InputError, match="row 3 of .* not finite"):
        list(Flat(path).products(np.ones((1, 4))))


def write_and_die(path: str) -> None:
    with writing(path, 8, 3, True) as write:
        write(torch.ones(4, 3))
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_while_writing_leaves_the_file_as_it_was(tmp_path):
    written(tmp_path, np.zeros((2, 3), np.float32))
    path = str(tmp_path / "vectors.npy")
    assert in_a_process(write_and_die, path).exitcode == -signal.SIGKILL
    assert Flat(path).n == 2
    written(tmp_path, np.zeros((3, 3), np.float32))         # removes what the killed process left
    assert os.listdir(tmp_path) == ["vectors.npy"]
