"""Collections of Milvus against brute force, on milvus-lite: in a folder, and behind an address like a server."""
import os
import socket
import subprocess
import sys
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest

from cli import InputError
from retrieval import connection
from retrieval.milvus import Milvus
from retrieval.milvus_vectors import (
    HALF_MAX,
    INDEXES,
    WIDEST,
    check_finite,
    frame_of,
    frames_read,
    frames_text,
    index_of,
    photos_given,
    photos_stored,
    queries_stored,
    search_params,
    stored_width,
)
from tests.helpers import started

pymilvus = pytest.importorskip("pymilvus", reason="pymilvus is not installed (requirements-milvus.txt)")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed (requirements-milvus.txt)")

CHANNELS, REST = [9, 4], 6
MANIFEST = {"model": "abc", "scale": 1.5}


class World:
    """Random photos and queries, and the answers by definition."""

    def __init__(self, n: int = 200, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.rows = np.arange(n)
        self.names = [f"{i % 3}/photo {i}é.jpg" for i in range(n)]
        self.uncertainties = np.where(np.arange(n) % 4, generator.normal(size=n), np.nan).astype(np.float32)
        self.vectors = [generator.normal(size=(n, k)).astype(np.float32) for k in CHANNELS]
        self.rest = generator.normal(size=(n, REST)).astype(np.float32)
        self.queries = [generator.normal(size=(5, k)).astype(np.float32) for k in CHANNELS]

    def insert(self, engine, start=0, stop=None):
        part = slice(start, stop)
        engine.insert(self.rows[part], self.names[part], self.uncertainties[part], [v[part] for v in self.vectors],
                      self.rest[part], [f"digest {row}" for row in self.rows[part]])

    def best(self, channel, r, among):
        """(Q, r) rows and scores of the best photos of `among`, in float64."""
        scores = self.queries[channel].astype(np.float64) @ self.vectors[channel][among].T.astype(np.float64)
        order = np.argsort(-scores, axis=1)[:, :r]
        return np.asarray(among)[order], np.take_along_axis(scores, order, 1)

    def check(self, engine, among):
        """Everything that can be read of a collection that holds the photos `among`."""
        among = np.asarray(among)
        assert engine.count == len(among) and engine.next_row() == among.max() + 1
        pages = list(engine.all_names(70))
        assert all(len(rows) <= 70 for rows, _, _ in pages)
        np.testing.assert_array_equal(np.concatenate([rows for rows, _, _ in pages]), among)
        assert [name for _, names, _ in pages for name in names] == [self.names[row] for row in among]
        assert [digest for _, _, digests in pages for digest in digests] == [f"digest {row}" for row in among]
        asked = np.append(among[::-1], among.max() + 7)
        np.testing.assert_array_equal(engine.present(asked), asked[:-1])
        for channel in range(len(CHANNELS)):
            rows, scores = engine.candidates(channel, self.queries[channel], 7)
            wanted, exact = self.best(channel, 7, among)
            np.testing.assert_array_equal(rows, wanted)
            np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-5)
        asked = among[[5, -1, 3, 3]]
        vectors, rest = engine.fetch(asked)
        for found, given in zip([*vectors, rest], [*self.vectors, self.rest]):
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, given[asked])
        assert engine.names(asked) == [self.names[row] for row in asked]
        np.testing.assert_array_equal(engine.uncertainties(asked), self.uncertainties[asked])


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a milvus-lite that serves as a server does."""
    from milvus_lite.adapter.grpc.server import start_server_in_thread
    server, db, port = start_server_in_thread(str(tmp_path_factory.mktemp("server") / "data"))
    yield f"http://127.0.0.1:{port}"
    assert server.stop(grace=0).wait(20)
    db.close()


def new(uri, collection="photos", method="flat", manifest=MANIFEST, **settings):
    return Milvus.create(uri, collection, **{"channels": CHANNELS, "rest": REST, "half": True, **settings},
                         method=method, manifest=manifest)


def test_a_folder_and_a_server_give_what_brute_force_gives(tmp_path, address, world):
    for uri in (str(tmp_path / "new" / "photos.db"), address):
        with new(uri) as engine:
            assert (engine.channels, engine.rest, engine.method, engine.state) == (CHANNELS, REST, "flat", "building")
            assert engine.half is False                       # milvus-lite has no float16, and says so
            assert engine.count == engine.next_row() == 0 and list(engine.all_names()) == []
            assert (engine.candidates(0, world.queries[0], 3)[0] == -1).all()
            world.insert(engine)
            engine.finish({"photos": 200})
            records = engine.client.query(engine.side, filter="version >= 0", output_fields=["version"])
            assert len(records) == 1                          # the older ones are gone
            world.check(engine, world.rows)
        with Milvus.open(uri, "photos") as engine:
            assert engine.state == "ready" and engine.manifest() == {"photos": 200}
            world.check(engine, world.rows)


def test_hnsw_finds_what_lies_far_from_the_origin(tmp_path):
    """Vectors like those of lifted Gaussians, on which a graph by plain inner products finds nearly nothing."""
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(2000, 12)) * np.r_[np.ones(11), 4] - np.r_[np.zeros(11), 500]
    queries = np.c_[generator.normal(size=(40, 11)), np.ones(40)].astype(np.float32)
    vectors = vectors.astype(np.float32)
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    best = np.argsort(-exact, axis=1)[:, :10]
    with new(str(tmp_path / "a.db"), method="hnsw", channels=[12], rest=0) as engine:
        for start in range(0, 2000, 500):
            part = range(start, start + 500)
            engine.insert(part, [f"{row}.jpg" for row in part], np.zeros(500), [vectors[start:start + 500]])
        engine.finish()
        engine.client.release_collection("photos")            # what is loaded again is the graph, not the memory
        engine.client.load_collection("photos")
        rows, scores = engine.candidates(0, queries, 10)
        assert np.mean([np.isin(a, b).mean() for a, b in zip(rows, best)]) > 0.95
        np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, 1), rtol=1e-5, atol=1e-3)
        (found,), _ = engine.fetch(rows[0])
        np.testing.assert_allclose(found, vectors[rows[0]], rtol=1e-6, atol=1e-5)


def test_photos_are_deleted_added_and_replaced(address, world):
    with new(address, "changed") as engine:
        world.insert(engine, 0, 150)
        engine.finish()
        engine.delete([149, 7, 1000])
        world.insert(engine, 170, 200)
        world.insert(engine, 20, 40)                          # the same rows again, as after a kill
        left = np.r_[0:7, 8:149, 170:200]
        world.check(engine, left)
        with pytest.raises(InputError, match="photo 7 is not in the collection changed"):
            engine.fetch([8, 7])
        with pytest.raises(InputError, match="not finished.*again"):
            Milvus.open(address, "changed")
        engine.finish()
    with Milvus.open(address, "changed", writing=True) as engine:
        world.check(engine, left)
        rows, scores = engine.candidates(0, world.queries[0], 500)            # more than there are
        assert (rows[:, len(left):] == -1).all() and (scores[:, len(left):] == -np.inf).all()
        assert all(set(row[:len(left)]) == set(left) for row in rows)
        engine.drop()
    with pytest.raises(InputError, match="there is no collection changed"):
        Milvus.open(address, "changed")


def test_small_requests_add_up_to_the_same(address, world, monkeypatch):
    monkeypatch.setattr("retrieval.milvus.BATCH_BYTES", 2000)
    with new(address, "batches") as engine:
        world.insert(engine)
        engine.finish()
        world.check(engine, world.rows)


def test_one_narrow_channel_without_rest(address):
    values = np.arange(6, dtype=np.float32)[:, None]
    with new(address, "narrow", channels=[1], rest=0) as engine:
        engine.insert(range(6), list("abcdef"), np.zeros(6), [values])
        rows, scores = engine.candidates(0, [[2.0], [-1.0]], 2)
        assert rows.tolist() == [[5, 4], [0, 1]] and scores.tolist() == [[10, 8], [0, -1]]
        (vectors,), rest = engine.fetch([4, 2])
        assert vectors.tolist() == [[4], [2]] and rest is None


BUILD = """
import sys
from tests.test_milvus import World, new
engine, world = new(sys.argv[1]), World()
for start in range(engine.next_row(), 200, 20):
    world.insert(engine, start, start + 20)
    print(start, flush=True)
    if sys.argv[2] == "slow" and start == 60:
        sys.stdin.readline()
engine.finish()
engine.close()
"""


def test_a_killed_build_goes_on_in_a_new_process(tmp_path, world):
    path = str(tmp_path / "a.db")
    with started("-c", BUILD, path, "slow", stdin=subprocess.PIPE, stderr=None) as child:
        assert [child.stdout.readline().strip() for _ in range(4)] == ["0", "20", "40", "60"]
        for writing in (False, True):
            with pytest.raises(InputError, match="open already.*another process"):
                Milvus.open(path, "photos", writing=writing)
    with pytest.raises(InputError, match="not finished"):
        Milvus.open(path, "photos")
    with Milvus.open(path, "photos", writing=True) as engine:
        assert engine.state == "building" and engine.manifest() == MANIFEST
        world.check(engine, np.arange(80))
    with started("-c", BUILD, path, "on") as again:
        assert again.communicate(timeout=200)[0].split() == [str(start) for start in range(80, 200, 20)]
        assert again.returncode == 0
    with Milvus.open(path, "photos") as engine:
        world.check(engine, world.rows)


class Killed(BaseException):
    pass


@pytest.fixture
def allow(monkeypatch):
    """allow(n): the next n requests that change something pass, then Killed is raised instead of each."""
    left = [10 ** 6]

    def limited(request):
        def call(*args, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return request(*args, **options)
        return call
    for name in ("create_collection", "create_index", "load_collection", "upsert", "delete", "flush",
                 "drop_collection"):
        monkeypatch.setattr(pymilvus.MilvusClient, name, limited(getattr(pymilvus.MilvusClient, name)))
    # Closing one of a hundred connections takes 0.2 s.
    monkeypatch.setattr(pymilvus.MilvusClient, "close", lambda client: None)
    return lambda n: left.__setitem__(0, n)


def test_a_kill_between_any_two_requests_loses_nothing(address, world, allow):
    """The life of a collection, stopped before its first, second, ... request that changes something."""
    def build(collection):
        with new(address, collection) as engine:
            world.insert(engine, engine.next_row(), 100)
            engine.finish()

    def change(collection):
        with Milvus.open(address, collection, writing=True) as engine:
            engine.delete(range(50))
            engine.finish({"left": 50})

    def drop(collection):
        with Milvus.open(address, collection, writing=True) as engine:
            engine.drop()

    def read(collection):
        """What a reader finds: whole, or one of two sentences."""
        try:
            with Milvus.open(address, collection) as engine:
                world.check(engine, np.arange(50 if engine.manifest() == {"left": 50} else 0, 100))
                return "left" if engine.manifest() == {"left": 50} else "built"
        except InputError as error:
            return "unfinished" if "not finished" in str(error) else "none" if "there is no" in str(error) else error

    steps, after = [build, change, drop], ["built", "left", "none"]
    found = set()
    for stopped in range(100):
        collection, done = f"killed{stopped}", 0
        allow(stopped)
        try:
            for step in steps:
                step(collection)
                done += 1
        except Killed:
            pass
        allow(10 ** 6)
        if done == len(steps):
            break
        found.add((steps[done].__name__, state := read(collection)))
        assert state in {"unfinished", ["none", *after][done], after[done]}
        if state != after[done] and steps[done] is not drop:
            steps[done](collection)                           # the same call goes on
            assert read(collection) == after[done]
    assert stopped > 15 and found >= {("build", "none"), ("build", "unfinished"), ("change", "unfinished"),
                                      ("change", "built"), ("drop", "left"), ("drop", "unfinished")}


def test_what_others_made_is_left_alone(address, tmp_path, world):
    client = pymilvus.MilvusClient(address)
    schema = client.create_schema()
    schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
    schema.add_field("vector", pymilvus.DataType.FLOAT_VECTOR, dim=9)
    client.create_collection("theirs", schema=schema)
    client.insert("theirs", [{"id": 1, "vector": [0.5] * 9}])
    client.create_collection("odd_manifest", schema=schema)
    for collection, text in (("theirs", "was not made by"), ("odd", "no record of this version")):
        with pytest.raises(InputError, match=text):
            new(address, collection)
        with pytest.raises(InputError, match="there is no collection|no record of this version"):
            Milvus.open(address, collection)
    assert client.query("theirs", ids=[1])[0]["vector"] == [0.5] * 9 and not client.has_collection("theirs_manifest")
    with new(address, "mine") as engine:
        world.insert(engine)
        for settings in ({"channels": [9, 5]}, {"rest": 0}, {"method": "hnsw"}, {"manifest": {"model": "b"}}):
            with pytest.raises(InputError, match=f"other settings \\({[*settings][0]}\\)"):
                new(address, "mine", **settings)
        engine.finish()
        with pytest.raises(InputError, match="is there already and is finished"):
            new(address, "mine")
        engine.client.drop_collection("mine")                 # another program puts its own in the place
        client.create_collection("mine", schema=schema)
        with pytest.raises(InputError, match="fields of the collection mine"):
            Milvus.open(address, "mine")
    client.close()
    folder = tmp_path / "photos.db"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"a photo")
    with pytest.raises(InputError, match="milvus-lite did not make"):
        new(str(folder))
    assert os.listdir(folder) == ["holiday.jpg"]


@pytest.mark.parametrize("uri, text", [
    ("photos", "ends in .db"), ("ftp://host:1", "ftp://"), ("http://", "no address"), ("http://a b", "no address"),
    ("http://me:secret@host:19530", "--token_file"), ("none.db", "no milvus-lite folder"),
    ("file.db", "is a file")])
def test_addresses_that_cannot_be(uri, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.db").write_bytes(b"SQLite format 3")
    with pytest.raises(InputError, match=text) as caught:
        Milvus.open(uri, "photos")
    assert "secret" not in str(caught.value) and sorted(os.listdir()) == ["file.db"]


def test_no_server(monkeypatch, capfd):
    monkeypatch.setattr(connection, "CONNECT", 1)
    connection.import_pymilvus()                              # takes seconds where the cores are busy
    with socket.socket() as closed:                           # bound and not listening: a port that refuses
        closed.bind(("127.0.0.1", 0))
        start = time.monotonic()
        with pytest.raises(InputError, match=r"no Milvus server answers at .* within 1 seconds"):
            Milvus.open(f"http://127.0.0.1:{closed.getsockname()[1]}", "photos", token="root:secret")
    assert time.monotonic() - start < 8                       # by itself pymilvus waits 10
    assert capfd.readouterr() == ("", "")                     # pymilvus would write what it tried


def test_a_wrong_token_is_not_shown():
    import grpc
    from pymilvus.grpc_gen import milvus_pb2_grpc

    class Refusing(milvus_pb2_grpc.MilvusServiceServicer):
        def Connect(self, request, context):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "auth check failure for root:secret")

    server = grpc.server(futures.ThreadPoolExecutor(1))
    milvus_pb2_grpc.add_MilvusServiceServicer_to_server(Refusing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for token, text in (("root:secret", "refuses the token of --token_file"), ("", "wants a token")):
            with pytest.raises(InputError, match=text) as caught:
                Milvus.open(f"http://127.0.0.1:{port}", "photos", token=token)
            assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    finally:
        assert server.stop(grace=0).wait(20)


def test_a_server_that_does_not_go_on_is_left(address, world, monkeypatch):
    """As one that has DiskANN switched off; one that does go on is waited for, however long it takes."""
    monkeypatch.setattr(connection, "STALLED", 0.3)
    monkeypatch.setattr(connection, "POLL", 0.1)
    with new(address, "stalled") as engine:
        world.insert(engine)
        left = iter([*range(9, 0, -1), 0, *[7] * 99])
        monkeypatch.setattr(engine.client, "describe_index", lambda *_, **__: {
            "state": "InProgress", "pending_index_rows": next(left), "total_rows": 10})
        engine.connection.wait_for("index", lambda: engine._indexed("channel0"))
        with pytest.raises(InputError, match="gone on with 'index stalled.*' for .*, 30% is done; .*enableDisk true"):
            engine.finish()
        state = {"state": SimpleNamespace(name="Loading"), "progress": 50}
        monkeypatch.setattr(engine.client, "get_load_state", lambda *_, **__: state)
        with pytest.raises(InputError, match="has not gone on with 'load stalled' for 0.005 minutes, 50% is done"):
            engine.connection.prepare("stalled", {})


def test_what_milvus_cannot_hold(address, world):
    for method in ("ivfpq", "diskann"):
        with pytest.raises(InputError, match=f"milvus-lite has no index of the kind {method}; give flat or hnsw"):
            new(address, "a", method=method)
    with pytest.raises(InputError, match="too long for Milvus"):
        new(address, "a", channels=[WIDEST + 1])
    with pytest.raises(InputError, match="no name of a collection"):
        new(address, "my photos")
    with new(address, "limits") as engine:
        for name in ("x" * 5000, "\udcff.jpg"):
            with pytest.raises(InputError, match="rename the photo"):
                engine.insert([0], [name], [0], [v[:1] for v in world.vectors], world.rest[:1])
        bad = world.rest[:2].copy()
        bad[1, 3] = np.nan
        with pytest.raises(InputError, match="photo 11 has a number in rest that float32 cannot hold"):
            engine.insert([10, 11], ["a", "b"], [0, 0], [v[:2] for v in world.vectors], bad)
        with pytest.raises(InputError, match="1 to 16,384"):
            engine.candidates(0, world.queries[0], 16_385)
        with pytest.raises(InputError, match="at most 65,535 can be stored"):
            engine.finish({"list": "x" * 70_000})
        assert engine.count == 0


def test_half_is_sent_and_read_as_pymilvus_wants_it(world):
    """milvus-lite has no float16, so that only the way through pymilvus's own messages is tried."""
    from pymilvus.client import entity_helper, prepare
    from pymilvus.grpc_gen import common_pb2, schema_pb2
    given = world.vectors[0] - 500                            # float16 has steps of 0.25 there
    frame = frame_of(given, "diskann", True)
    stored = photos_stored(given[:3], frame, "diskann", True)
    assert stored.dtype == np.float16 and stored.shape == (3, 10)
    field = schema_pb2.FieldData(field_name="channel0", type=pymilvus.DataType.FLOAT16_VECTOR)
    for vector in stored:
        entity_helper.pack_field_value_to_field_data(
            vector, field, {"name": "channel0", "type": pymilvus.DataType.FLOAT16_VECTOR})
    read = [entity_helper.extract_row_data_from_fields_data([field], i)["channel0"] for i in range(3)]
    np.testing.assert_allclose(photos_given(read, frame), given[:3], atol=2e-3)
    sent = common_pb2.PlaceholderGroup.FromString(prepare.Prepare._prepare_placeholder_str(list(stored)))
    assert sent.placeholders[0].type == common_pb2.PlaceholderType.Float16Vector
    far = photos_stored(np.full((1, 9), HALF_MAX * 2, np.float32), np.zeros(10, np.float32), "flat", True)
    with pytest.raises(InputError, match="photo 5 has a number in channel0 that float16 cannot hold.*float32"):
        check_finite(far, ["photo 5"], "channel0")


@pytest.mark.parametrize("method", INDEXES)
@pytest.mark.parametrize("half", [False, True])
def test_stored_vectors_keep_inner_products_and_have_one_norm(world, method, half):
    given = world.vectors[0] * 3 - 200
    frame = frame_of(given[:100], method, half)               # the others may lie beyond R
    stored = photos_stored(given, frame, method, half).astype(np.float64)
    queries, moved = queries_stored(world.queries[0], frame, method, half)
    exact = world.queries[0].astype(np.float64) @ given.T.astype(np.float64)
    np.testing.assert_allclose(queries @ stored.T + moved[:, None], exact, atol=0.2 if half else 1e-3)
    np.testing.assert_allclose(photos_given(list(stored), frame), given, atol=0.02 if half else 1e-4)
    if method != "flat":
        np.testing.assert_allclose(np.linalg.norm(stored[:100], axis=1), frame[-1], rtol=1e-3)
        assert np.linalg.norm(stored, axis=1).max() < 1.01 * max(frame[-1], np.linalg.norm(given - frame[:-1], 1).max())
    frames = [frame, frame_of(world.vectors[1], method, half)]
    texts = frames_text(frames, 30)
    assert max(map(len, texts)) == 30
    for a, b in zip(frames_read(texts, CHANNELS), frames):
        np.testing.assert_array_equal(a, b)
    assert frames_read(texts[:-1], CHANNELS) is None and frames_read(["no base64"], CHANNELS) is None


def test_settings_of_the_indexes_fit_milvus():
    for k in (1, 2, 7, 1025, 1026, 2050, WIDEST - 8):
        assert [stored_width(k, method) for method in ("flat", "hnsw", "diskann")] == [max(k, 2), k + 1, k + 1]
        width = stored_width(k, "ivfpq")
        name, params = index_of("ivfpq", width)
        assert name == "IVF_PQ" and k < width <= WIDEST and width % params["m"] == 0 and params["m"] >= 1
    for method, option in (("hnsw", "ef"), ("diskann", "search_list")):
        for r, effort in ((10, None), (500, None), (500, 100), (10, 200)):    # both have to be at least r
            assert search_params(method, r, effort)["params"][option] >= max(r, effort or 0)
    assert search_params("ivfpq", 10, 10 ** 6)["params"]["nprobe"] <= INDEXES["ivfpq"][1]["nlist"]
    assert search_params("flat", 10, 5) == {"metric_type": "IP", "params": {}}


def test_a_missing_package_is_named(monkeypatch):
    for package, uri in (("pymilvus", "http://127.0.0.1:1"), ("milvus_lite.server_manager", "a.db")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(InputError, match="pip install -r requirements-milvus.txt"):
                connection.Connection(uri, writing=True)
