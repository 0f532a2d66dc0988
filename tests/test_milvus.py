"""Collections of Milvus against brute force, on milvus-lite: in a folder, and behind an address like a server."""
import contextlib
import os
import signal
import socket
import sys
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cli import InputError
from retrieval import milvus
from retrieval.index import FORMAT, KINDS, Block, Items
from retrieval.milvus import (
    INDEXES,
    RECORD,
    WIDEST,
    Connection,
    Milvus,
    check_finite,
    frame_of,
    padded,
    photos_given,
    photos_stored,
    stored_width,
)
from tests.helpers import Command

pymilvus = pytest.importorskip("pymilvus", reason="pymilvus is not installed (requirements-milvus.txt)")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed (requirements-milvus.txt)")

CHANNELS, REST, NOWHERE = [9, 4], 6, "no folder"


class World:
    """Random photos and queries, and the answers by definition."""

    def __init__(self, n: int = 200, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.names = [f"{i % 3}/photo {i}é.jpg" for i in range(n)]
        self.uncertainties = np.where(np.arange(n) % 4, generator.normal(size=n), np.nan).astype(np.float32)
        self.vectors = [torch.from_numpy(generator.normal(size=(n, k)).astype(np.float32)) for k in CHANNELS]
        self.rest = torch.from_numpy(generator.normal(size=(n, REST)).astype(np.float32))
        self.queries = [torch.from_numpy(generator.normal(size=(5, k)).astype(np.float32)) for k in CHANNELS]

    def begin(self, engine):
        return engine.begin(SimpleNamespace(takes_bank=True), Block(self.vectors, self.rest))

    def add(self, engine, start=0, stop=None):
        """Add the photos start .. stop - 1, which have these rows where no others were added."""
        part = slice(start, stop)
        rows = range(len(self.names))[part]
        engine.add(Block([v[part] for v in self.vectors], self.rest[part]), Items(
            self.names[part], [f"digest {row}" if row % 5 else None for row in rows], self.uncertainties[part],
            np.zeros(len(rows))))

    def best(self, channel, r, among):
        """(Q, r) positions of the best photos of `among`, in float64."""
        scores = self.queries[channel].double() @ self.vectors[channel][among].T.double()
        return scores.argsort(1, descending=True)[:, :r].numpy()

    def check(self, engine, among, rows=None):
        """Everything that can be read of a collection that holds the photos `among`, in `rows`."""
        among = np.asarray(among)
        rows = among if rows is None else np.asarray(rows)
        assert engine.counted("") == len(among) and engine.rows == rows.max() + 1
        listed, names, digests = engine.listed()
        np.testing.assert_array_equal(listed, rows)
        assert names == [self.names[k] for k in among]
        assert digests == [f"digest {k}" if k % 5 else None for k in among]
        for channel, queries in enumerate(self.queries):
            found = engine.search(f"channel{channel}", queries.numpy(), 7)
            np.testing.assert_array_equal(found, rows[self.best(channel, 7, among)])
        asked = [5, -1, 3]
        vectors, rest = engine.fetch(rows[asked])
        for one, given in zip([*vectors, rest], [*self.vectors, self.rest]):
            assert torch.equal(one, given[among[asked]])
        facts = [(self.names[k], None if k % 4 == 0 else pytest.approx(float(self.uncertainties[k])))
                 for k in among[asked]]
        assert engine.facts(rows[asked]) == facts


def nameless(names) -> Items:
    """Photos of which little more is known."""
    return Items(list(names), [None] * len(names), np.full(len(names), np.nan), np.zeros(len(names)))


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


KNOWN = {name: {int: FORMAT, bool: False, list: [], dict: {}, str: "x"}.get(kind) for name, kind in KINDS.items()}
KNOWN["images"] = ["", None, None]


def place(uri, collection="photos"):
    return {"index": FORMAT, "engine": "milvus", "uri": uri, "collection": collection, "removed": []}


def new(uri, collection="photos", method="flat", widths=CHANNELS, rest=REST, **manifest):
    """A collection that is to begin, and that is closed behind a `with`."""
    form = {"widths": list(widths), "rest": rest}
    made = KNOWN | {"method": method, "half": True, "vectors": form} | manifest
    return contextlib.closing(Milvus.create(NOWHERE, made, place(uri, collection)))


def again(uri, collection="photos", writing=False):
    return contextlib.closing(Milvus.open(NOWHERE, place(uri, collection), writing=writing))


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    """Of an index only the collection is of interest here."""
    monkeypatch.setattr(milvus, "save_json", lambda *_: None)


def test_a_folder_and_a_server_give_what_brute_force_gives(tmp_path, address, world, monkeypatch):
    monkeypatch.setattr(milvus, "BATCH_ROWS", 70)
    for uri in (str(tmp_path / "new" / "photos.db"), address):
        with new(uri) as engine:
            assert world.begin(engine) == 0 and engine.rows == 0
            assert engine.manifest["half"] is False           # milvus-lite has no float16, and says so
            assert engine.listed()[1] == []
            world.add(engine)
            engine.finish()
            world.check(engine, np.arange(200))
        with again(uri) as engine:
            assert (len(engine), engine.manifest["method"], engine.manifest["vectors"]["rest"]) == (200, "flat", REST)
            world.check(engine, np.arange(200))
            rows, block = engine.sample
            assert rows.tolist() == list(range(200)) and torch.equal(block.rest, world.rest)
            assert {*engine.candidates(world.queries, 500)[0]} == {*range(200)}


def test_hnsw_finds_what_lies_far_from_the_origin(tmp_path):
    """Vectors like those of lifted Gaussians, on which a graph by plain inner products finds nearly nothing."""
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(2000, 12)) * np.r_[np.ones(11), 4] - np.r_[np.zeros(11), 500]
    queries = np.c_[generator.normal(size=(40, 11)), np.ones(40)].astype(np.float32)
    vectors = vectors.astype(np.float32)
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    best = np.argsort(-exact, axis=1)[:, :10]
    with new(str(tmp_path / "a.db"), method="hnsw", widths=[12], rest=0) as engine:
        parts = [Block([torch.from_numpy(vectors[start:start + 500])], None) for start in range(0, 2000, 500)]
        engine.begin(SimpleNamespace(takes_bank=True), parts[0])
        for part in parts:
            engine.add(part, nameless(["a"] * 500))
        engine.finish()
        client = engine.connection.client
        client.release_collection("photos")                   # what is loaded again is the graph, not the memory
        client.load_collection("photos")
        rows = engine.search("channel0", queries, 10)
        assert np.mean([np.isin(a, b).mean() for a, b in zip(rows, best)]) > 0.95
        (found,), _ = engine.fetch(rows[0])
        np.testing.assert_allclose(found, vectors[rows[0]], rtol=1e-6, atol=1e-5)


def test_photos_are_removed_and_added(address, world):
    with new(address, "changed") as engine:
        world.begin(engine)
        world.add(engine, 0, 150)
        engine.finish()
        engine.leave_out(engine, np.array([149, 7, 1000]), set())
        world.add(engine, 170, 200)
        photos, rows = np.r_[0:7, 8:149, 170:200], np.r_[0:7, 8:149, 150:180]
        world.check(engine, photos, rows)
        with pytest.raises(InputError, match="photo 7 is not in the collection changed"):
            engine.fetch([8, 7])
        with pytest.raises(InputError, match="not finished.*again"):
            again(address, "changed")
    with again(address, "changed", writing=True) as engine:   # as after a kill
        world.check(engine, photos, rows)
        engine.leave_out(engine, np.array([160]), set())
        world.add(engine, 40, 41)
        photos, rows = np.r_[photos[rows != 160], 40], np.r_[rows[rows != 160], 180]
        world.check(engine, photos, rows)
        engine.finish()
    with again(address, "changed") as engine:
        world.check(engine, photos, rows)
        found = engine.search("channel0", world.queries[0].numpy(), 500)            # more than there are
        assert (found[:, len(rows):] == -1).all()
        assert all(set(row[:len(rows)]) == set(rows) for row in found.tolist())


def test_small_requests_add_up_to_the_same(address, world, monkeypatch):
    monkeypatch.setattr(milvus, "BATCH_BYTES", 2000)
    with new(address, "batches") as engine:
        world.begin(engine)
        world.add(engine)
        engine.finish()
        world.check(engine, np.arange(200))


def test_one_narrow_channel_without_rest(address):
    with new(address, "narrow", widths=[1], rest=0) as engine:
        block = Block([torch.arange(6.0)[:, None]], None)
        engine.begin(SimpleNamespace(takes_bank=True), block)
        engine.add(block, nameless("abcdef"))
        assert engine.search("channel0", np.array([[2.0], [-1.0]]), 2).tolist() == [[5, 4], [0, 1]]
        (vectors,), rest = engine.fetch([4, 2])
        assert vectors.tolist() == [[4], [2]] and rest is None


def build(path: str, until: int | None) -> None:
    """A collection, or its photos up to `until`; then this process waits."""
    milvus.save_json = lambda *_: None
    world = World()
    with new(path) as engine:
        for start in range(world.begin(engine), 200, 20):
            world.add(engine, start, start + 20)
            print(start)
            if start == until:
                signal.pause()
        engine.finish()


def test_a_killed_build_goes_on_in_a_new_process(tmp_path, world):
    path = str(tmp_path / "a.db")
    with Command(build, path, 60) as command:
        assert command.said("60\n").split() == ["0", "20", "40", "60"]
        for writing in (False, True):
            with pytest.raises(InputError, match="open already.*another process"):
                again(path, writing=writing)
    with pytest.raises(InputError, match="not finished"):
        again(path)
    with again(path, writing=True) as engine:
        world.check(engine, np.arange(80))
    with Command(build, path, None) as command:
        status, out, err = command.ended()
    assert status == 0 and out.split() == [str(start) for start in range(80, 200, 20)], err
    with again(path) as engine:
        world.check(engine, np.arange(200))


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
                 "alter_collection_properties"):
        monkeypatch.setattr(pymilvus.MilvusClient, name, limited(getattr(pymilvus.MilvusClient, name)))
    # Closing one of a hundred connections takes 0.2 s.
    monkeypatch.setattr(pymilvus.MilvusClient, "close", lambda client: None)
    return lambda n: left.__setitem__(0, n)


def test_a_kill_between_any_two_requests_loses_nothing(address, world, allow):
    """The life of a collection, stopped before its first, second, ... request that changes something."""
    def build(collection):
        with new(address, collection) as engine:
            world.add(engine, world.begin(engine), 100)
            engine.finish()

    def change(collection):
        with again(address, collection, writing=True) as engine:
            engine.leave_out(engine, np.arange(50), set())
            engine.finish()

    def read(collection):
        """What a reader finds: whole, or one of two sentences."""
        try:
            with again(address, collection) as engine:
                world.check(engine, np.arange(50 if len(engine) == 50 else 0, 100))
                return "left" if len(engine) == 50 else "built"
        except InputError as error:
            return "unfinished" if "not finished" in str(error) else "none" if "there is no" in str(error) else error

    steps, after = [build, change], ["built", "left"]
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
        if state != after[done]:
            steps[done](collection)                           # the same call goes on
            assert read(collection) == after[done]
    assert stopped > 8 and found >= {("build", "none"), ("build", "unfinished"), ("change", "unfinished"),
                                     ("change", "built")}


def test_what_others_made_is_left_alone(address, tmp_path, world):
    client = pymilvus.MilvusClient(address)
    schema = client.create_schema()
    schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
    schema.add_field("vector", pymilvus.DataType.FLOAT_VECTOR, dim=9)
    for name, properties in (("theirs", {}), ("odd", {RECORD: "[]"}), ("cut", {RECORD: '{"state": "ready"}'})):
        client.create_collection(name, schema=schema, properties=properties)
        for opened in (lambda name=name: world.begin(new(address, name).thing),
                       lambda name=name: again(address, name)):
            with pytest.raises(InputError, match=f"the collection {name} at .* was not made by this version"):
                opened()
    with new(address, "mine") as engine:
        world.begin(engine)
        world.add(engine)
        for settings, key in (({"widths": [9, 5]}, "vectors"), ({"method": "hnsw"}, "method"), ({"run": "b"}, "run")):
            with new(address, "mine", **settings) as other, \
                    pytest.raises(InputError, match=f"other settings \\({key}\\)"):
                world.begin(other)
        engine.finish()
        with new(address, "mine") as other, pytest.raises(InputError, match="is there already and is finished"):
            world.begin(other)
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
        again(uri)
    assert "secret" not in str(caught.value) and sorted(os.listdir()) == ["file.db"]


def test_no_server(monkeypatch, capfd):
    monkeypatch.setattr(milvus, "CONNECT", 1)
    milvus.import_pymilvus()                              # takes seconds where the cores are busy
    with socket.socket() as closed:                           # bound and not listening: a port that refuses
        closed.bind(("127.0.0.1", 0))
        start = time.monotonic()
        with pytest.raises(InputError, match=r"no Milvus server answers at .* within 1 seconds"):
            Connection(f"http://127.0.0.1:{closed.getsockname()[1]}", token="root:secret")
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
                Connection(f"http://127.0.0.1:{port}", token=token)
            assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    finally:
        assert server.stop(grace=0).wait(20)


def test_a_server_that_does_not_go_on_is_left(address, world, monkeypatch):
    """As one that has DiskANN switched off; one that does go on is waited for, however long it takes."""
    monkeypatch.setattr(milvus, "STALLED", 0.3)
    monkeypatch.setattr(milvus, "POLL", 0.1)
    with new(address, "stalled") as engine:
        world.begin(engine)
        world.add(engine)
        left, client = iter([*range(9, 0, -1), 0, *[7] * 99]), engine.connection.client
        monkeypatch.setattr(client, "describe_index", lambda *_, **__: {
            "state": "InProgress", "pending_index_rows": next(left), "total_rows": 10})
        engine.connection.wait_for("index", lambda: engine.indexed("channel0"))
        with pytest.raises(InputError, match="gone on with 'index stalled.*' for .*, 30% is done; .*enableDisk and "
                                             "indexNode.enableDisk true"):
            engine.finish()
        state = {"state": SimpleNamespace(name="Loading"), "progress": 50}
        monkeypatch.setattr(client, "get_load_state", lambda *_, **__: state)
        with pytest.raises(InputError, match="has not gone on with 'load stalled' for 0.005 minutes, 50% is done"):
            engine.load()


def test_what_milvus_cannot_hold(address, world):
    for settings, text in (({"method": "ivfpq"}, "milvus-lite has no index of the kind ivfpq; give flat or hnsw"),
                           ({"widths": [WIDEST + 1]}, "too long for Milvus"),
                           ({"bank": {"beta": 1}}, "--bank with --engine")):
        with new(address, "a", **settings) as engine, pytest.raises(InputError, match=text):
            engine.begin(SimpleNamespace(takes_bank="bank" not in settings), None)
    with pytest.raises(InputError, match="no name of a collection"):
        new(address, "my photos")
    with new(address, "limits") as engine:
        world.begin(engine)
        block = Block([v[:2] for v in world.vectors], world.rest[:2].clone())
        for name in ("x" * 5000, "\udcff.jpg"):
            with pytest.raises(InputError, match="rename the photo"):
                engine.add(block, nameless([name, "a"]))
        block.rest[1, 3] = np.nan
        with pytest.raises(InputError, match="photo 1 has a number in rest that float32 cannot hold"):
            engine.add(block, nameless("ab"))
        assert engine.counted("") == 0


def test_half_is_sent_and_read_as_pymilvus_wants_it(world):
    """milvus-lite has no float16, so that only the way through pymilvus's own messages is tried."""
    from pymilvus.client import entity_helper, prepare
    from pymilvus.grpc_gen import common_pb2, schema_pb2
    given = world.vectors[0].numpy() - 500                    # float16 has steps of 0.25 there
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
    with pytest.raises(InputError, match="photo 5 has a number in channel0 that float16 cannot hold.*float32"):
        check_finite(padded(np.full((1, 9), 1e5), 9, True), ["photo 5"], "channel0")


@pytest.mark.parametrize("method", INDEXES)
@pytest.mark.parametrize("half", [False, True])
def test_stored_vectors_keep_inner_products_and_have_one_norm(world, method, half):
    given, queries = world.vectors[0].numpy() * 3 - 200, world.queries[0].numpy()
    frame = frame_of(given[:100], method, half)               # the others may lie beyond R
    stored = photos_stored(given, frame, method, half).astype(np.float64)
    exact = queries.astype(np.float64) @ given.T.astype(np.float64)
    products = padded(queries, stored.shape[1], half) @ stored.T + (queries @ frame[:-1])[:, None]
    np.testing.assert_allclose(products, exact, atol=0.2 if half else 1e-3)
    np.testing.assert_allclose(photos_given(list(stored), frame), given, atol=0.02 if half else 1e-4)
    if method != "flat":
        np.testing.assert_allclose(np.linalg.norm(stored[:100], axis=1), frame[-1], rtol=1e-3)
        longest = np.linalg.norm(given - frame[:-1], axis=1).max()
        assert np.linalg.norm(stored, axis=1).max() < 1.01 * max(frame[-1], longest)


def test_settings_of_the_indexes_fit_milvus():
    for k in (1, 2, 7, 1025, 1026, 2050, WIDEST - 8):
        assert [stored_width(k, method) for method in ("flat", "hnsw", "diskann")] == [max(k, 2), k + 1, k + 1]
        width = stored_width(k, "ivfpq")
        assert k < width <= min(k + 8, WIDEST) and width % 8 == 0
    for r in (1, 200, 5000):
        assert INDEXES["hnsw"][2](r)["ef"] >= r and INDEXES["diskann"][2](r)["search_list"] >= r


def test_a_missing_package_is_named(monkeypatch):
    for package, uri in (("pymilvus", "http://127.0.0.1:1"), ("milvus_lite.server_manager", "a.db")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(InputError, match="pip install -r requirements-milvus.txt"):
                Connection(uri, writing=True)
