"""Vectors in a file: what is written is FAISS's own, what is found is what float64 finds, and no false file is read."""
import os
import pickle
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from cli import InputError
from retrieval.flat import Flat, header, top_of, write_flat

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def vectors(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def written(folder, array: np.ndarray, half: bool, block: int = 7) -> str:
    path = str(folder / "vectors.faiss")
    write_flat(path, (array[i:i + block] for i in range(0, len(array), block)), *array.shape, half)
    return path


def brute(products: np.ndarray, top: int) -> np.ndarray:
    """Rows of the best products (Q, N), one query and one row after another: (Q, top)."""
    return np.array([sorted(range(len(row)), key=lambda i: (-row[i], i))[:top] for row in products])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (20, 6), (9, 33)])
def test_a_file_is_the_one_that_faiss_writes(tmp_path, half, shape):
    faiss = pytest.importorskip("faiss")
    array = vectors(*shape) * 50
    index = (faiss.IndexScalarQuantizer(shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT) if half
             else faiss.IndexFlatIP(shape[1]))
    index.add(array)
    faiss.write_index(index, str(tmp_path / "theirs"))
    path = written(tmp_path, array, half)
    with open(path, "rb") as ours, open(tmp_path / "theirs", "rb") as theirs:
        assert ours.read() == theirs.read()
    there = faiss.read_index(path)
    assert there.ntotal == shape[0] and type(there) is type(index)
    flat = Flat(path)
    assert (flat.n, flat.k, flat.half, len(flat)) == (*shape, half, shape[0])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("n_queries", [1, 5])
def test_exact_search_is_that_of_float64(tmp_path, half, n_queries):
    array, queries = vectors(300, 17), vectors(n_queries, 17, 1)
    flat = Flat(written(tmp_path, array, half))
    kept = array.astype(np.float16).astype(np.float64) if half else array.astype(np.float64)
    truth = queries.astype(np.float64) @ kept.T
    for block in (1, 64, 1000):
        scores, rows = top_of(flat.products(queries, block), 10)
        assert rows.dtype == torch.int64 and (rows.numpy() == brute(truth, 10)).all()
        np.testing.assert_allclose(scores, np.sort(truth)[:, :-11:-1], rtol=1e-5)
        assert [start for start, _ in flat.products(queries, block)] == list(range(0, 300, block))
        np.testing.assert_allclose(torch.cat([s for _, s in flat.products(queries, block)], 1), truth, atol=1e-4)
    index = [299, 0, 17, 17]
    assert (flat.rows(np.array(index)).numpy() == kept[index]).all() and flat.rows(index).dtype == torch.float32
    assert (torch.cat(list(flat.blocks(64))).numpy() == kept).all()


def test_float16_is_close_to_float32(tmp_path):
    array, queries = vectors(200, 64), vectors(3, 64, 1)
    whole = torch.cat([s for _, s in Flat(written(tmp_path, array, False)).products(queries)], 1)
    half = torch.cat([s for _, s in Flat(written(tmp_path, array, True)).products(queries)], 1)
    assert 0 < (whole - half).abs().max() < 2e-3 * whole.abs().max()


@pytest.mark.parametrize("block", [1, 3, 8, 100])
@pytest.mark.parametrize("top", [1, 4, 40, 100])
def test_of_equal_scores_the_lower_row_comes_first(block, top):
    rng = np.random.default_rng(top)
    for scores in (rng.integers(3, size=(6, 40)), np.ones((2, 40)), np.arange(80).reshape(2, 40),
                   -np.arange(80).reshape(2, 40)):
        whole = torch.tensor(scores, dtype=torch.float32)
        best, rows = top_of(((i, whole[:, i:i + block]) for i in range(0, 40, block)), top)
        assert (rows.numpy() == brute(scores, top)).all()
        assert (best == whole.gather(1, rows)).all()


def test_scores_of_minus_infinity_are_found_last():
    scores = torch.tensor([[-torch.inf, 1.0, -torch.inf, -torch.inf]])
    best, rows = top_of(((i, scores[:, i:i + 1]) for i in range(4)), 3)
    assert rows.tolist() == [[1, 0, 2]] and best.tolist() == [[1.0, -torch.inf, -torch.inf]]


def test_one_vector_and_more_wanted_than_there_are(tmp_path):
    flat = Flat(written(tmp_path, vectors(1, 4), False))
    scores, rows = top_of(flat.products(np.ones((2, 4))), 10)
    assert rows.tolist() == [[0], [0]] and torch.isfinite(scores).all()


def test_memory_pages_are_released(tmp_path, monkeypatch):
    array = vectors(64, 8)
    flat = Flat(written(tmp_path, array, False))
    monkeypatch.setattr("retrieval.flat.RELEASED", 100)
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
    assert (Flat(written(tmp_path, array, False)).rows([1]).numpy() == array[1]).all()
    assert Flat(written(tmp_path, np.full((2, 2), 65504, np.float32), True)).rows([0])[0, 0] == 65504


@pytest.mark.parametrize("n", [4, 6])
def test_as_many_vectors_as_announced_must_come(tmp_path, n):
    with pytest.raises(InputError, match=f"to hold {n} vectors and 5 came"):
        write_flat(str(tmp_path / "x"), [vectors(5, 3)], n, 3, False)
    with pytest.raises(InputError, match="at least one"):
        write_flat(str(tmp_path / "x"), [], 0, 3, False)
    assert not os.listdir(tmp_path)


def false_files(folder):
    """Bytes of files that are not whole files of this kind, by name."""
    with open(written(folder, vectors(5, 4), True), "rb") as f:
        good = f.read()
    with open(written(folder, vectors(5, 4), False), "rb") as f:
        flat = f.read()
    yield "nothing", b""
    yield "letters", b"IxFI"
    yield "pickle", pickle.dumps(print)
    yield "numpy", b"\x93NUMPY" + bytes(200)
    for name, data in (("half", good), ("flat", flat)):
        yield f"{name}, cut", data[:-1]
        yield f"{name}, cut in the header", data[:40]
        yield f"{name}, with more behind", data + b"\0"
        yield f"{name}, other n", data[:8] + struct.pack("<q", 6) + data[16:]
        yield f"{name}, negative n", data[:8] + struct.pack("<q", -5) + data[16:]
        yield f"{name}, huge n", data[:8] + struct.pack("<q", 2 ** 62) + data[16:]
        yield f"{name}, other k", data[:4] + struct.pack("<i", 8) + data[8:]
        yield f"{name}, k of 0", data[:4] + struct.pack("<i", 0) + data[8:]
        yield f"{name}, untrained", data[:32] + b"\0" + data[33:]
        yield f"{name}, metric L2", data[:33] + struct.pack("<i", 1) + data[37:]
    yield "flat, other count", header(5, 4, False)[:-8] + struct.pack("<Q", 2 ** 63) + flat[45:]
    yield "half, codes of 8 bits", good[:37] + struct.pack("<i", 0) + good[41:]


def test_false_files_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "false.faiss"
    for name, data in false_files(tmp_path):
        path.write_bytes(data)
        with pytest.raises(InputError, match="is not a whole FAISS file"):
            Flat(str(path))
            pytest.fail(name)
    for wrong in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match="is not a whole FAISS file"):
            Flat(str(wrong))


def test_other_indexes_of_faiss_are_refused(tmp_path):
    faiss = pytest.importorskip("faiss")
    path = str(tmp_path / "other.faiss")
    for index in (faiss.IndexFlatL2(4), faiss.IndexHNSWFlat(4, 8), faiss.IndexScalarQuantizer(
            4, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)):
        index.train(vectors(10, 4))
        index.add(vectors(10, 4))
        faiss.write_index(index, path)
        with pytest.raises(InputError, match="is not a whole FAISS file"):
            Flat(path)


def test_queries_must_fit_and_numbers_must_be_finite(tmp_path):
    path = written(tmp_path, vectors(5, 4), False)
    with pytest.raises(InputError, match=r"queries of shape \(2, 3\) do not fit"):
        next(Flat(path).products(np.ones((2, 3))))
    with open(path, "r+b") as f:                            # damage that no size shows
        f.seek(len(header(5, 4, False)) + 4 * 4 * 3)
        f.write(struct.pack("<f", np.nan))
    with pytest.raises(InputError, match="row 3 of .* not finite"):
        list(Flat(path).products(np.ones((1, 4))))


KILLED = """
import os, signal, sys
import numpy as np
from retrieval.flat import write_flat
def blocks():
    yield np.ones((4, 3), np.float32)
    os.kill(os.getpid(), signal.SIGKILL)
write_flat(sys.argv[1], blocks(), 8, 3, True)
"""


def test_a_kill_while_writing_leaves_the_file_as_it_was(tmp_path):
    path = str(tmp_path / "x.faiss")
    for there in (False, True):
        if there:
            write_flat(path, [np.zeros((2, 3), np.float32)], 2, 3, True)
        done = subprocess.run([sys.executable, "-c", KILLED, path], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert os.path.exists(path) == there
    assert Flat(path).n == 2
    write_flat(path, Flat(path).blocks(1), 2, 3, True)      # removes what the killed process left
    assert os.listdir(tmp_path) == ["x.faiss"]
