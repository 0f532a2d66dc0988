"""The page to search with: what it answers and refuses over HTTP, and that it works in a real browser."""

import contextlib
import importlib
import io
import os
import re
import signal
import socket
import sys
import threading
import time
import types
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

import utils
from photos import page
from photos.searcher import Hit, Searcher, SearchResult
from tests import browser
from tests.helpers import Command
from utils import InputError

pytest.importorskip(
    "flask", reason="Flask is not installed (pip install -r photos/requirements.txt)"
)
COLOURS = ["crimson", "seagreen", "royalblue", "orange", "purple", "teal", "gold", "hotpink"]


class MadeUp(Searcher):
    """Photos of one colour each. A text finds them in their order, a photo in the reverse one."""

    def __init__(self, folder: str, names: list[str]):
        self.folder = folder
        self.names = names
        self.count = len(names)
        self.calibrated = True
        photos = [types.SimpleNamespace(name=name) for name in names]
        self.index = types.SimpleNamespace(photos=photos)
        self.title = "Made-up photos"
        self.notes = ["a note of the index"]
        self.rows = {name: row for row, name in enumerate(names)}
        self.queries = []
        self.busy = 0
        self.together = 0

    def update(self) -> None:
        """Its photos stay."""

    def find(
        self, query: str, order: list[int], top: int, first: int, sure: float | None
    ) -> SearchResult:
        self.busy += 1
        self.together = max(self.together, self.busy)
        time.sleep(0.01)
        self.busy -= 1
        answers = []
        for position, row in enumerate(order):
            confidence = sure and sure / 2**position
            similarity = 0.9 - 0.01 * row
            hit = Hit(row, self.names[row], similarity, confidence, self.is_gone(row))
            answers.append(hit)
        notes = []
        if "dgo" in query:
            notes.append("no word is known: dgo")
        shown = answers[first : first + top]
        expected = sure and 2.2
        return SearchResult(query, shown, self.count, sure, -812.5, notes, expected=expected)

    def find_texts(self, texts, top=10, first=0, without=()):
        self.queries.append((texts, top, first))
        if texts == ["xyzzy"]:
            raise InputError(
                "no word of 'xyzzy' is in the vocabulary of 9 words; use words of the training set"
            )
        if texts == ["bug"]:
            raise RuntimeError("a fault of the program")
        return [self.find(texts[0], [*range(self.count)], top, first, 0.72)]

    def find_photo(self, photo, top=10, first=0, name="a photo", without=()):
        assert photo.mode == "RGB"
        self.queries.append((photo.size, top, first))
        return self.find(name, [*range(self.count)][::-1], top, first, None)

    def find_row(self, row, top=10, first=0):
        self.queries.append((row, top, first))
        return self.find(
            self.names[row], [k for k in range(self.count) if k != row], top, first, None
        )


def named(name: str, where: str = "photo") -> str:
    return f"/{where}?{urllib.parse.urlencode({'name': name})}"


def photo_file(path, colour="crimson", size=(60, 40), **more) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.new("RGB", size, colour).save(path, **more)
    return str(path)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> MadeUp:
    """124 photos, some of them of an odd kind. Tests do not change them."""
    folder = tmp_path_factory.mktemp("page") / "photos"
    names = [f"2019/summer/photo {k}.jpg" for k in range(120)]
    for k, name in enumerate(names):
        photo_file(folder / name, COLOURS[k % 8], (60 + 50 * (k % 3), 40 + 40 * (k % 4)))
    names[2:2] = [
        "gone.jpg",
        "a scan.tiff",
        "dots/\u6d77\u8fb9 \U0001f3d6 <b>&amp;.png",
        "long" * 40 + ".jpg",
    ]
    for name in names[3:6]:
        photo_file(folder / name, "peru", (900, 1200))
    return MadeUp(str(folder), names)


@pytest.fixture
def client(made_up):
    return page.application(made_up).test_client()


def sentence_of(response, status: int) -> str:
    """The one sentence of a refusal."""
    assert response.status_code == status and response.mimetype == "application/json", response.data
    assert set(response.json) == {"error"} and "\n" not in response.json["error"]
    return response.json["error"]


def encode(image: Image.Image, kind: str, **more) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


# ---- what is answered


def test_a_text_a_row_and_a_photo_are_answered_as_json(made_up, client):
    result = client.get("/search?q=a+dog&top=5&offset=2").json
    assert made_up.queries[-1] == (["a dog"], 5, 2)
    assert [answer["row"] for answer in result["answers"]] == [2, 3, 4, 5, 6]
    assert result["answers"][1] == {
        "row": 3,
        "name": "a scan.tiff",
        "path": made_up.path_of(3),
        "p": 0.09,
        "score": pytest.approx(0.87),
        "gone": False,
    }
    assert result["answers"][0]["gone"] and (result["query"], result["gallery"]) == ("a dog", 124)
    assert (
        result["said"]
        == (
            "about 2 (1 to 6) of 124 photos show this; 72% likely that the first photo is the best "
            "match"
        )
        and result["number"] == 2
    )
    like = client.get(f"/search?{urllib.parse.urlencode({'like': made_up.names[4]})}").json
    assert (like["query"], like["number"], made_up.queries[-1]) == (
        made_up.names[4],
        None,
        (4, 10, 0),
    )
    with open(made_up.path_of(3), "rb") as f:
        posted = client.post("/search?top=1&offset=1", data=f.read())
    assert posted.json["answers"][0]["row"] == 122 and made_up.queries[-1] == ((900, 1200), 1, 1)
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright
    client.post("/search", data=encode(Image.new("RGB", (60, 40)), "JPEG", exif=exif))
    assert made_up.queries[-1][0] == (40, 60)  # read as the photos of a folder are
    assert client.get("/about").json == {
        "title": "Made-up photos",
        "count": 124,
        "notes": ["a note of the index"],
        "calibrated": True,
        "letters": 2000,
        "bytes": 60_000_000,
    }


@pytest.mark.parametrize("where, side", [("thumb", 400), ("photo", 2048)])
def test_every_row_has_its_picture_and_a_browser_asks_for_it_once(made_up, client, where, side):
    for row in (0, 2, 3, 4, 5):
        address = named(made_up.names[row], where)
        response = client.get(address)
        if made_up.names[row] == "gone.jpg":
            assert "is gone, or a link out of the photo folder; index the" in sentence_of(
                response, 404
            )
            continue
        with (
            Image.open(io.BytesIO(response.data)) as drawn,
            Image.open(made_up.path_of(row)) as stored,
        ):
            assert drawn.format == "JPEG" and max(drawn.size) == min(side, max(stored.size))
            pixels = zip(
                drawn.convert("RGB").getpixel((9, 9)), stored.convert("RGB").getpixel((9, 9))
            )
            assert max(abs(a - b) for a, b in pixels) < 12
        again = client.get(address, headers={"If-None-Match": response.headers["ETag"]})
        assert again.status_code == 304 and not again.data


def test_the_model_is_asked_by_one_thread_at_a_time(made_up):
    app = page.application(made_up)
    made_up.together = 0
    before = len(made_up.queries)

    def search(k):
        return app.test_client().get(f"/search?q=thread+{k}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(search, range(8)))

    assert made_up.together == 1 and len(made_up.queries) == before + 8


# ---- what is refused


@pytest.mark.parametrize(
    "address, status, sentence",
    [
        ("/search?q=+", 400, "there is nothing to search for; describe a photo"),
        (
            f"/search?q={'a' * 2_001}",
            400,
            "the text has 2,001 characters, and at most 2,000 are read",
        ),
        ("/search?q=xyzzy", 400, "no word of 'xyzzy' is in the v"),
        ("/search?q=bug", 500, "the search failed;"),
        ("/search?q=a&top=ten", 400, "top=ten is not a whole number from 1 to 200"),
        ("/search?q=a&top=201", 400, "top="),
        ("/search?q=a&offset=" + "9" * 5000, 400, "offset=999"),
        ("/search?q=a&top=\u0663", 400, "top="),
        ("/search?like=124", 404, "there is no photo 124 here"),
        ("/thumb", 404, "no photo"),
        ("/photo?name=..", 404, "there is no photo"),
        ("/photo/../page.py", 404, "nothing at this address"),
        ("/page.py", 404, "nothing at this address"),
        ("/photo?name=%2e%2e%2fsearcher.py", 404, "there is no photo"),
        ("/..%2f..%2fetc/passwd", 404, "nothing at this"),
        ("/photo?name=0%00.jpg", 404, "there is no photo"),
        ("/photo?name=/etc/passwd", 404, "there is no photo"),
    ],
)
def test_what_is_no_search_is_refused_in_a_sentence(client, address, status, sentence):
    assert sentence in sentence_of(client.get(address), status)


@pytest.mark.parametrize(
    "body, status, sentence",
    [
        (b"", 400, "this file is empty"),
        (b"<svg/>", 400, "cannot be read as a photo"),
        (encode(Image.effect_noise((99, 99), 50), "JPEG")[:300], 400, "it is damaged"),
        ("200 megapixels", 400, "has more than 170 megapixels"),
    ],
)
def test_what_is_no_photo_is_refused_in_a_sentence(made_up, client, body, status, sentence):
    if body == "200 megapixels":  # not encoded where this test is not run
        body = encode(Image.new("1", (20_000, 10_000)), "PNG", compress_level=1)
    before = len(made_up.queries)
    assert sentence in sentence_of(client.post("/search", data=body), status)
    assert len(made_up.queries) == before


@pytest.mark.parametrize("kind", ["a file", "a folder", "within", "dangling"])
def test_links_that_leave_the_photo_folder_are_not_followed(tmp_path, kind):
    photo_file(
        tmp_path / "photos-private" / "a.png"
    )  # beside it, with a name that begins as its own
    photo_file(tmp_path / "photos" / "real" / "b.png")
    target, name = {
        "a file": ("../photos-private/a.png", "a.png"),
        "a folder": ("../photos-private", "sub/a.png"),
        "within": ("real/b.png", "a.png"),
        "dangling": ("none", "a.png"),
    }[kind]
    os.symlink(target, tmp_path / "photos" / name.split("/")[0])
    client = page.application(MadeUp(str(tmp_path / "photos"), [name])).test_client()
    for where in ("thumb", "photo"):
        response = client.get(named(name, where))
        assert response.status_code == (200 if kind == "within" else 404), response.data


def test_a_photo_that_became_something_else_is_not_sent(tmp_path):
    client = page.application(MadeUp(str(tmp_path), ["a.bmp", "b.jpg"])).test_client()
    (tmp_path / "b.jpg").mkdir()
    sentence_of(client.get(named("b.jpg")), 404)
    os.utime(photo_file(tmp_path / "a.bmp", "red"), ns=(1, 1))
    tag = client.get(named("a.bmp", "thumb")).headers["ETag"]
    os.utime(photo_file(tmp_path / "a.bmp", "blue"), ns=(1, 2))  # of the same size
    response = client.get(named("a.bmp", "thumb"), headers={"If-None-Match": tag})
    assert response.status_code == 200
    assert Image.open(io.BytesIO(response.data)).getpixel((5, 5))[2] > 200
    (tmp_path / "a.bmp").write_text("<script>alert(1)</script>")
    assert "cannot be read" in sentence_of(client.get(named("a.bmp")), 400)
    os.remove(tmp_path / "a.bmp")
    os.mkfifo(tmp_path / "a.bmp")  # which nobody writes to
    assert "is gone, or a link out of" in sentence_of(client.get(named("a.bmp")), 404)


def test_a_link_that_is_put_in_the_place_of_a_photo_is_not_followed(tmp_path, monkeypatch):
    """Nor one in the place of its folder, after the look at the path and before the file is opened."""
    photo_file(tmp_path / "photos" / "sub" / "a.png")
    photo_file(tmp_path / "private" / "a.png")
    client = page.application(MadeUp(str(tmp_path / "photos"), ["sub/a.png"])).test_client()
    look = os.path.realpath
    changes = []

    def change_after_the_look(path):
        real = look(path)
        if str(path).endswith("a.png"):
            changes.pop()()
        return real

    monkeypatch.setattr(os.path, "realpath", change_after_the_look)
    sub = tmp_path / "photos" / "sub"

    def link_the_photo():
        os.remove(sub / "a.png")
        os.symlink(tmp_path / "private" / "a.png", sub / "a.png")

    def link_the_folder():
        os.rename(sub, tmp_path / "away")
        os.symlink(tmp_path / "private", sub)

    def change_nothing():
        pass

    changes += [link_the_folder, link_the_photo, change_nothing]
    assert client.get(named("sub/a.png")).status_code == 200
    for _ in range(2):
        assert "is gone, or a link out of" in sentence_of(client.get(named("sub/a.png")), 404)
        if changes:
            os.remove(sub / "a.png")
            photo_file(sub / "a.png")


# a link of another page may lead here (by GET), its form may not (by POST)
@pytest.mark.parametrize(
    "headers, statuses",
    [
        ({"Host": "localhost:9000"}, (200, 200)),
        ({"Host": "[::1]:9000"}, (200, 200)),
        ({"Host": "LOCALHOST"}, (200, 200)),
        ({"Host": "evil.example:8000"}, (403, 403)),
        ({"Host": "10.0.0.7:8000"}, (403, 403)),
        ({"Host": ""}, (403, 403)),
        ({"Host": "localhost:8000.evil.example"}, (403, 403)),
        ({"Host": "localhost.evil.example"}, (403, 403)),
        ({"Host": "localhost:9000", "Origin": "http://localhost:9000"}, (200, 200)),
        ({"Origin": "null"}, (403, 403)),
        ({"Origin": "https://evil.example"}, (403, 403)),
        ({"Origin": "http://10.0.0.7"}, (403, 403)),
        ({"Sec-Fetch-Site": "same-origin"}, (200, 200)),
        ({"Sec-Fetch-Site": "cross-site"}, (403, 403)),
        ({"Sec-Fetch-Site": "same-site"}, (403, 403)),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, (200, 403)),
    ],
)
def test_other_hosts_and_other_sites_are_refused(client, headers, statuses):
    photo = encode(Image.new("RGB", (9, 9)), "PNG")
    for method, status in zip(("GET", "POST"), statuses):
        response = client.open("/search?q=a", method=method, data=photo, headers=headers)
        assert response.status_code == status, response.data


@pytest.mark.parametrize(
    "host, answered",
    [
        ("nas.local", "nas.local"),
        ("0.0.0.0", "192.168.1.5:8000"),
        ("192.168.1.5", "192.168.1.5:9000"),
    ],
)
def test_a_host_that_is_named_is_answered_too(made_up, host, answered):
    client = page.application(made_up, host=host).test_client()
    for given, status in (
        (answered, 200),
        ("localhost:9000", 200),
        ("evil.example", 403),
        ("1.2.3.4.example", 403),
    ):
        assert client.get("/about", base_url=f"http://{given}").status_code == status
    assert (
        client.get(
            "/about", base_url=f"http://{answered}", headers={"Origin": "http://6.6.6.6"}
        ).status_code
        == 403
    )


def test_every_response_has_the_headers_that_keep_others_out(client):
    photo = named("2019/summer/photo 0.jpg")
    for address in (
        "/",
        "/page.css",
        "/page.js",
        "/icon.svg",
        "/about",
        "/search?q=a",
        photo,
        "/none",
    ):
        response = client.get(address)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in response.headers
        if address.startswith(("/thumb", "/photo", "/icon")):
            assert response.headers["Cache-Control"] == "private, no-cache"
        else:
            assert response.headers["Cache-Control"] == "no-store"


# ---- the server


@contextlib.contextmanager
def serving(searcher):
    """The address of a server of this searcher."""
    server = page.make_server(page.application(searcher), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()


def serve_one(folder: str) -> None:
    def print_address(address):
        print(f"opened {address}", flush=True)

    page.webbrowser.open = print_address
    os.environ["DISPLAY"] = ":0"
    os.environ.pop("SSH_CONNECTION", None)
    utils.run("photos", page.serve, MadeUp(folder, ["a.png"]), 0)


def test_the_server_says_where_it_is_opens_a_browser_and_ends_by_ctrl_c(tmp_path):
    photo_file(tmp_path / "a.png")
    with Command(serve_one, str(tmp_path)) as process:
        line = process.said("opened ")
        address, port = re.search(
            r"^Made-up photos: the page is at (http://127\.0\.0\.1:(\d+)/) ", line
        ).groups()
        process.said(f"opened {address}")
        assert browser.DIRECT.open(f"{address}search?q=a", timeout=20).status == 200
        message = f"cannot listen on 127.0.0.1:{port} .*in use.*--port"
        with pytest.raises(InputError, match=message):
            page.serve(MadeUp(str(tmp_path), ["a.png"]), int(port))
        os.kill(process.pid, signal.SIGINT)
        status, _, err = process.ended(20)
        assert (status, err) == (0, "the page is closed\n")


@pytest.mark.parametrize("body", [bytes(60_000_001), [bytes(1_000_000)] * 70])
def test_a_body_above_the_limit_is_answered_and_not_cut_off(made_up, body):
    """Also one that comes in pieces and does not say how long it is."""
    with serving(made_up) as address, pytest.raises(urllib.error.HTTPError) as refusal:
        browser.DIRECT.open(f"{address}/search", body, timeout=20)
    assert refusal.value.code == 413 and "more than 60 MB" in refusal.value.read().decode()


def test_slow_clients_keep_nobody_waiting_and_are_left(made_up, monkeypatch):
    monkeypatch.setattr(page, "SILENCE_SECONDS", 1)
    half_of_a_first_line = b"GET /sea"
    half_of_a_photo = (
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n\xff\xd8"
    )
    with serving(made_up) as address, contextlib.ExitStack() as stack:
        server = ("127.0.0.1", int(address.rsplit(":")[-1]))
        slow = []
        for _ in range(30):
            for sent in (half_of_a_photo, half_of_a_first_line):
                connection = stack.enter_context(socket.create_connection(server, 20))
                slow.append((connection, sent))
        for connection, sent in slow:
            connection.sendall(sent)

        thumbnail = address + named(made_up.names[0], "thumb")
        assert browser.DIRECT.open(thumbnail, timeout=5).status == 200
        for connection, _ in slow:
            while connection.recv(10_000):  # until the server closes it
                pass


def test_what_is_no_host_is_refused_and_without_flask_the_package_is_named(made_up, monkeypatch):
    for host in ("http://nas", "a b", "localhost:9000", ""):
        message = "is not a name or address of a computer; give one such as"
        with pytest.raises(InputError, match=message):
            page.serve(made_up, 0, host)
    monkeypatch.delitem(sys.modules, "photos.page")
    monkeypatch.setitem(sys.modules, "flask", None)
    with pytest.raises(InputError, match="pip install -r photos/requirements.txt"):
        importlib.import_module("photos.page")


# ---- in a real browser

TILES = """return [...document.querySelectorAll('#answers li:not(.line)')].map((li) => ({
    name: li.querySelector('.name').title, wide: li.querySelector('img')?.naturalWidth ?? 0,
    gone: li.querySelector('.photo').disabled}))"""
COUNT = "document.querySelectorAll('#answers li:not(.line)').length"
FIRST = "return document.querySelector('#answers .name')?.title === arguments[0]"
FOCUS = "return document.activeElement.querySelector('img')?.alt === arguments[0]"
LARGE = "return viewer.open && large.alt === arguments[0] && large.naturalWidth > 0"
DROP = """const canvas = new OffscreenCanvas(60, 40), data = new DataTransfer();
canvas.getContext('2d').fillRect(0, 0, 60, 40);
const fire = (name) => document.body.dispatchEvent(
    new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
canvas.convertToBlob().then((blob) => {
    data.items.add(new File([blob, new Uint8Array(12e6)], 'dropped.png', {type: 'image/png'}));
    fire('dragenter'); fire('dragover'); window.target = !document.getElementById('drop').hidden; fire('drop'); });"""
ENTER = "\ue007"
TAB = "\ue004"
ESCAPE = "\ue00c"
LEFT = "\ue012"
RIGHT = "\ue014"


@pytest.fixture(scope="module")
def chromium():
    if not browser.programs():
        pytest.skip("Chromium and chromedriver are not installed")
    with browser.open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(chromium, made_up):
    """The address of one server for all tests in the browser, which keeps its photos, as a user's does."""
    with serving(made_up) as address:
        yield address
        chromium.open("about:blank")


@pytest.fixture(params=[(1280, False), (390, True)], ids=["1280 light", "390 dark"])
def at(request, chromium, served):
    """The address of the page in the browser. At the end, nothing else was asked for, and nothing stands out."""
    chromium.look(request.param[0], 900, request.param[1])
    chromium.requests(), chromium.log("browser")
    chromium.open(served)
    chromium.wait("return document.getElementById('count').textContent === '124 photos'")
    yield served
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    back = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", back)[:3])) < 80) == request.param[1]
    urls = chromium.requests()
    lines = chromium.log("browser")
    assert urls and all(url.startswith((served + "/", f"blob:{served}/")) for url in urls), urls
    assert [line for line in lines if "status of 400" not in line["message"]] == []


def test_a_text_is_typed_and_its_answers_are_seen(chromium, made_up, at):
    chromium.type("#text", "a dgo" + ENTER)
    chromium.wait(FIRST, made_up.names[0])
    chromium.wait(browser.READY)
    tiles = chromium.run(TILES)
    assert [tile["name"] for tile in tiles] == made_up.names[:50]
    assert (
        [tile["wide"] > 0 for tile in tiles[:4]]
        == [not tile["gone"] for tile in tiles[:4]]
        == [1, 1, 0, 1]
    )
    text = chromium.run("return document.body.innerText")
    order = [
        "About 2 (1 to 6) of 124 photos show this",
        "72% likely that the first",
        "No word is known: dgo",
        "photo 0.jpg",
        "photo 1.jpg",
        "probably no matches from here on",
        "gone.jpg",
    ]
    places = [text.lower().find(sentence.lower()) for sentence in order]
    assert places == sorted(places) and places[0] >= 0 and "Sigma" not in text and "0.9" not in text
    assert chromium.run("return [location.search, document.title]") == [
        "?q=a+dgo",
        "a dgo - Made-up photos",
    ]
    chromium.run("document.querySelector('#text').value = ''")
    chromium.type("#text", ENTER)  # an empty question leaves nothing stale
    chromium.wait("return !start.hidden && location.search === ''")
    assert chromium.run(TILES) == [] and chromium.run("return result.innerText") == ""
    chromium.type("#text", "xyzzy" + ENTER)
    chromium.wait(
        "return error.textContent.startsWith(\"no word of 'xyzzy' is in the vocabulary\") && !error.hidden"
    )


def test_more_answers_come_as_one_scrolls_and_are_there_on_the_way_back(chromium, made_up, at):
    chromium.open(f"{at}/?q=a+dog")
    chromium.wait(FIRST, made_up.names[0])
    chromium.wait(f"scrollTo(0, 1e6); return {COUNT} === 124 && more.hidden")
    assert [tile["name"] for tile in chromium.run(TILES)] == made_up.names
    chromium.run("document.querySelectorAll('.like')[110].click()")
    chromium.wait("return document.title && location.search.startsWith('?like=')")
    assert (
        chromium.run("return new URLSearchParams(location.search).get('like')")
        == made_up.names[111]
    )
    chromium.wait(
        "return query.innerText.includes('photo 107.jpg')"
    )  # the one that is gone has no link
    chromium.wait(FOCUS, made_up.names[0])
    chromium.run("history.back()")
    chromium.wait(FIRST, made_up.names[0])
    chromium.wait(f"return {COUNT} === 124 && scrollY > 1000")


def test_a_photo_is_viewed_and_arrow_keys_go_through_the_answers(chromium, made_up, at):
    chromium.open(f"{at}/?q=a+dog")
    chromium.wait(FIRST, made_up.names[0])
    chromium.click(".photo")
    chromium.wait(LARGE, made_up.names[0])
    for key, place in (
        (LEFT, 0),
        (RIGHT, 1),
        (RIGHT, 3),
        (RIGHT, 4),
        (LEFT, 3),
    ):  # number 2 is gone
        chromium.press(key)
        chromium.wait(LARGE, made_up.names[place])
    assert chromium.run("return place.textContent") == "4 of 124"  # the line is none
    assert chromium.run("return path.textContent") == made_up.path_of(3)
    chromium.devtools(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    chromium.click("#copy")
    chromium.wait("return copy.textContent === 'Copied'")
    chromium.press(ESCAPE)
    chromium.wait("return !viewer.open")
    chromium.wait(FOCUS, made_up.names[3])
    chromium.press(ENTER)
    chromium.wait(LARGE, made_up.names[3])
    chromium.press(RIGHT)
    chromium.wait(LARGE, made_up.names[4])
    chromium.click("#like")
    chromium.wait(
        "return query.innerText.startsWith('Photos similar to \u6d77')"
    )  # its file, without the folder
    chromium.wait(FOCUS, made_up.names[0])
    assert (
        chromium.run("return !viewer.open && new URLSearchParams(location.search).get('like')")
        == made_up.names[4]
    )
    assert made_up.names[4] not in [tile["name"] for tile in chromium.run(TILES)]


@pytest.mark.parametrize("way", ["chosen", "dropped"])
def test_a_photo_is_the_query(chromium, made_up, at, tmp_path, way):
    if way == "chosen":
        chromium.type("#file", photo_file(tmp_path / "chosen.png"))
    else:
        chromium.run(DROP)  # 12 MB
    chromium.wait(FIRST, made_up.names[-1])
    assert made_up.queries[-1][0] == (60, 40) and chromium.run(
        "return drop.hidden && (window.target ?? true)"
    )
    assert chromium.wait("return document.querySelector('#query img').naturalWidth") == 60
    assert f"Photos similar to {way}.png" in chromium.run("return query.innerText")
    for content, sentence in (
        ("no photo", "this file cannot be read as a photo"),
        ("", "this file is empty"),
    ):
        (tmp_path / "notes.png").write_text(content)
        chromium.type("#file", str(tmp_path / "notes.png"))
        chromium.wait("return error.textContent.startsWith(arguments[0])", sentence)
        assert chromium.run(TILES) == []
    with open(tmp_path / "large.png", "wb") as f:
        f.truncate(61_500_000)
    chromium.type("#file", str(tmp_path / "large.png"))
    chromium.wait(
        "return error.textContent.startsWith('large.png has 62 MB, and the page takes up to 60')"
    )
    chromium.run("location.reload()")
    chromium.wait(
        "return window.error?.textContent.startsWith('this page no longer has the photo of this search')"
    )


def test_every_control_can_be_named_and_reached(chromium, made_up, at):
    """By the keyboard and a reader of the screen: what has the focus has a name and an outline."""
    chromium.open(f"{at}/?q=a+dog")
    chromium.wait(FIRST, made_up.names[0])
    nodes = chromium.devtools("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node["role"]["value"]
        for node in nodes
        if node.get("role", {}).get("value") in ("button", "link", "searchbox", "image")
        and not node.get("ignored")
        and not node["name"]["value"]
    ]
    assert nameless == []
    seen = []
    for _ in range(6):
        chromium.press(TAB)
        seen.append(
            chromium.run(
                "const e = document.activeElement; return [e.id || e.className || e.tagName, "
                "e.id === 'file' || getComputedStyle(e).outlineStyle !== 'none']"
            )
        )
    assert all(outlined for _, outlined in seen) and ["photo", True] in seen, seen
