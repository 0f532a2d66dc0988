"""Vectors of an index in Milvus, on milvus-lite: answers are those of the file, and what is away is one sentence.
Inner products give the scores of every similarity that is one.

    make test-milvus                          # on a real server, too; `make test` leaves these tests out
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from losses import SIMILARITIES, Embedding
from photos import __main__ as search
from photos.index import Index
from photos.milvus import (
    CONNECT_SECONDS,
    INNER_PRODUCTS,
    Collection,
    product_vectors,
    scores_of_products,
)
from photos.searcher import Probabilities, Searcher
from tests.helpers import FORMULAS, refused
from tests.test_search import KINDS, TEXTS, run
from utils import InputError

N = 40  # images
Q = 6  # queries
D = 48  # dimensions
NAMES = [f"{k % 3}/photo {k}\u00e9.jpg" for k in range(50)]


@pytest.fixture
def lite(tmp_path):
    """The address of a folder of milvus-lite."""
    pytest.importorskip(
        "milvus_lite", reason="milvus-lite is not installed (photos/requirements-milvus.txt)"
    )
    return str(tmp_path / "photos.db")


def check_collection(uri: str) -> None:
    """A collection is made, searched, changed and made again."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(50, 9, generator=generator)
    queries = torch.randn(3, 9, generator=generator)
    photos = Collection(uri, "photos")
    expected = queries @ vectors.T
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(photos, "load", partial(os.kill, os.getpid(), signal.SIGINT))
        photos.build(NAMES[:20], vectors[:20])  # what is half built is built again
    with pytest.raises(
        InputError, match="the collection photos already exists at .*, complete or not"
    ):
        photos.build(NAMES, vectors)
    photos.build(NAMES, vectors, overwrite=True)
    photos = Collection(uri, "photos")  # by another client
    photos.load()

    def products(names):
        return torch.stack([photos.products(query, names) for query in queries])

    torch.testing.assert_close(products(NAMES), expected, rtol=1e-5, atol=1e-5)
    photos.remove(NAMES[:5])
    expected[:, :5] = -torch.inf
    torch.testing.assert_close(products(NAMES), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        products(NAMES[20:]), expected[:, 20:], rtol=1e-5, atol=1e-5
    )  # the index knows these
    photos.build(NAMES[:3], vectors[:3, :4], overwrite=True)
    assert photos.products(queries[0, :4], NAMES).isfinite().sum() == 3


def check_index(uri: str, tmp_path, demo_path, checkpoint) -> None:
    """The same commands give the same answers with the vectors in Milvus, also after changes."""
    words = [
        "index",
        "--checkpoint",
        checkpoint,
        "--data_path",
        demo_path,
        "--images",
        "demo_precomp",
        "--output",
    ]
    run(*words, tmp_path / "here")
    run(*words, tmp_path / "th\u00e9re", "--uri", uri)
    collection = Index.open(str(tmp_path / "th\u00e9re")).collection
    collection.client.release_collection(collection.name)  # as after a restart of the server
    assert len(Index.open(str(tmp_path / "th\u00e9re")).embedding.mean) == 1
    for change in ([], ["remove", "*_00005.png"]):
        for place in ("here", "th\u00e9re"):
            if change:
                run(change[0], tmp_path / place, *change[1:])
        searchers = [Searcher(str(tmp_path / place)) for place in ("here", "th\u00e9re")]
        for searcher in searchers:
            searcher.probabilities = Probabilities(3.0, "demo_precomp")
        a, b = (searcher.find_texts(TEXTS, top=30) for searcher in searchers)
        for one, other in zip(a, b):
            assert [x.name for x in one.answers] == [x.name for x in other.answers]
            assert [x.score for x in one.answers] == pytest.approx(
                [x.score for x in other.answers], abs=1e-3
            )
            assert one.sure == pytest.approx(other.sure, rel=1e-2)


def test_a_collection_gives_what_brute_force_gives(lite):
    check_collection(lite)


def test_answers_are_those_of_the_file(lite, tmp_path, demo_path, small_run, capsys):
    check_index(lite, tmp_path, demo_path, small_run("--sim", "wasserstein"))
    run("info", tmp_path / "th\u00e9re")
    assert "vectors in the collection photos_th__233_re" in capsys.readouterr().out
    found = Searcher(str(tmp_path / "th\u00e9re"))
    with pytest.raises(
        InputError, match="Milvus gives only the best photos, and --not compares all"
    ):
        found.find_texts(TEXTS[:1], without=TEXTS[1:])


def test_similarities_that_are_no_product_stay_in_a_file(
    lite, tmp_path, demo_path, small_run, capsys
):
    refused(
        capsys,
        search.main,
        [
            "index",
            "--checkpoint",
            small_run(*KINDS["mls"]),
            "--data_path",
            demo_path,
            "--images",
            "demo_precomp",
            "--output",
            tmp_path / "there",
            "--uri",
            lite,
        ],
        "Milvus searches by an inner product, and mls cannot be written as one; leave --uri out",
    )
    assert not (tmp_path / "there.npz").exists()


def test_a_server_that_is_away_is_one_sentence_after_connect_seconds(monkeypatch):
    """Something that does not answer, or no address. No password is shown."""
    pytest.importorskip(
        "pymilvus", reason="pymilvus is not installed (photos/requirements-milvus.txt)"
    )
    assert CONNECT_SECONDS == 6  # which a user waits
    monkeypatch.setattr("photos.milvus.CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        for uri, message in (
            (away, f"no Milvus server answers at {away} within 0.5 seconds"),
            ("photos", "at photos .*illegal.*; start it, or give its address, http://HOST:19530"),
            ("http://user:secret@host", "^--uri holds a user or a password.*--token_file"),
        ):
            with pytest.raises(InputError, match=message) as error:
                Collection(uri, "photos", "user:secret")
            assert "secret" not in str(error.value) and "\n" not in str(error.value)
    assert time.monotonic() - begun < 5


def test_a_server_that_ends_while_it_works_is_one_sentence_at_once(lite, monkeypatch):
    """pymilvus alone would ask for the state of a flush for minutes."""

    def fail(*_, **__):
        raise RuntimeError("nobody there")

    photos = Collection(lite, "photos")
    monkeypatch.setattr("photos.milvus.REPLY_SECONDS", 0.1)

    def flush_for_long(*_, **__):
        time.sleep(9)

    client = SimpleNamespace(flush=flush_for_long, get_server_version=fail)
    monkeypatch.setattr(photos, "client", client)
    begun = time.monotonic()
    message = r"fails at flush of photos \(nobody there\); see its log, and run it again"
    with pytest.raises(InputError, match=message):
        photos.ask("flush", seconds=60)
    assert time.monotonic() - begun < 5


# ---- similarities as inner products


def gaussians(n: int, seed: int, spherical: bool) -> Embedding:
    """Means of norm 1; log-variances near a level of their own."""
    g = torch.Generator().manual_seed(seed)
    variances = 1 if spherical else D
    of_dimensions = 0.3 * torch.randn(n, variances, generator=g)
    level = torch.randn(n, 1, generator=g) - 2
    mean = F.normalize(torch.randn(n, D, generator=g), dim=1)
    return Embedding(mean, of_dimensions + level)


def in_float64(embedding: Embedding) -> Embedding:
    return Embedding(*(None if x is None else x.double() for x in embedding))


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("name", INNER_PRODUCTS)
def test_scores_are_those_of_the_similarity(name, spherical):
    images = gaussians(N, 0, spherical)
    captions = gaussians(Q, 1, spherical)
    if not SIMILARITIES[name].gaussian_sides:
        images = Embedding(images.mean)
        captions = Embedding(captions.mean)
    exact = FORMULAS[name](in_float64(images), in_float64(captions)).T

    origin = Embedding(*(None if x is None else x.mean(0, keepdim=True) for x in images))
    _, queries, number = product_vectors(name, captions, origin)
    stored = product_vectors(name, images, origin)[0]
    products = queries @ stored.T + number[:, None]
    scores = scores_of_products(name, products)
    assert (scores - exact).abs().max() / exact.std() < 2e-5


# ---- on a real server


@pytest.fixture
def started(tmp_path):
    """The address and the process of a server of its own, of the package `milvus` (2.3.5)."""
    pytest.importorskip(
        "milvus", reason="the package milvus is not installed (requirements-dev.txt, Linux x86-64)"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        os.path.join(os.path.dirname(sys.executable), "milvus-server"),
        "--data",
        str(tmp_path / "server"),
        "--proxy-port",
        str(port),
    ]
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        end = time.monotonic() + 120
        while True:
            try:
                Collection(f"http://127.0.0.1:{port}", "none")
                break
            except InputError:
                assert server.poll() is None and time.monotonic() < end, "the server does not start"
        yield f"http://127.0.0.1:{port}", server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # the command, and the server that it started
        server.wait()


@pytest.mark.milvus
def test_a_server_answers_as_a_file_does(started, tmp_path, demo_path, small_run):
    check_collection(started[0])
    check_index(started[0], tmp_path, demo_path, small_run("--sim", "wasserstein"))


@pytest.mark.milvus
def test_a_server_that_is_killed_ends_the_command_within_a_minute(started, monkeypatch):
    address, server = started
    photos = Collection(address, "photos")
    ask = photos.ask

    def kill_at_flush(request: str, **more):
        if request == "flush":
            threading.Timer(0.3, os.killpg, (server.pid, signal.SIGKILL)).start()
        return ask(request, **more)

    monkeypatch.setattr(photos, "ask", kill_at_flush)
    begun = time.monotonic()
    with pytest.raises(
        InputError, match="fails at (flush|load_collection) of photos .*; see its log, and run it"
    ):
        photos.build([f"{k}.jpg" for k in range(2000)], torch.randn(2000, 9))
    assert time.monotonic() - begun < 60
