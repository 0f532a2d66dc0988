"""The page to search with: what it answers and refuses over HTTP, and that it works in a real browser."""
import contextlib
import io
import os
import re
import signal
import sys
import threading
import time
import urllib.error

import numpy as np
import pytest
from PIL import Image

import cli
from cli import InputError
from photos import page
from photos.searcher import Answer, Found, Searcher
from photos.trust import EMPTY, of_the_set
from tests import browser
from tests.helpers import Command

pytest.importorskip("flask", reason="Flask is not installed (pip install -r requirements-search.txt)")
COLOURS = ["crimson", "seagreen", "royalblue", "orange", "purple", "teal", "gold", "hotpink"]
LEVEL = 0.9


class MadeUp(Searcher):
    """Photos of one colour each. A text finds the photos in their order, the first with the probability that it
    begins with ("0.72 a dog"), the others with shares of the rest."""

    def __init__(self, folder: str, names: list[str], calibrated: bool = True):
        self.folder, self.names, self.calibrated = folder, names, calibrated
        self.count = len(names)
        self.title, self.notes = "Made-up photos", ["a note of the index"]
        self.asked, self.without, self.busy, self.together = [], [], 0, 0

    def find(self, query: str, order: list[int], top: int, first: int, sure: float = 0.72) -> Found:
        self.busy += 1
        self.together = max(self.together, self.busy)
        time.sleep(0.01)
        self.busy -= 1
        p = [sure, *((1 - sure) / 2 ** k for k in range(1, self.count))]
        answers = [Answer(row, self.names[row], 0.9 - 0.01 * place, p[place] if self.calibrated else None,
                          not os.path.exists(self.path_of(row)), place < 3 if self.calibrated else None, -700.0 + row)
                   for place, row in list(enumerate(order))[first:first + top]]
        return Found(query, answers, self.count, sure if self.calibrated else None, -812.5,
                     3 if self.calibrated else None, ["a made-up note"], LEVEL)

    def find_texts(self, texts, top=10, first=0, without=()):
        self.asked.append((texts, top, first)), self.without.append(without)
        if texts == ["xyzzy"]:
            raise InputError("no word of 'xyzzy' is in the vocabulary of 9 words; use words of the training set")
        if texts == ["bug"]:
            raise RuntimeError("a fault of the program")
        share = re.match(r"0\.\d+", texts[0])
        return [self.find(texts[0], list(range(self.count)), top, first, float(share[0]) if share else 0.72)]

    def find_photo(self, photo, top=10, first=0, name="a photo", without=()):
        assert photo.mode == "RGB"
        self.without.append(without)
        self.asked.append((photo.size, photo.getpixel((0, 0)), top, first))
        return self.find("a photo", list(range(self.count))[::-1], top, first)

    def find_row(self, row, top=10, first=0, without=()):
        self.asked.append((row, top, first)), self.without.append(without)
        return self.find(self.names[row], [row, *(k for k in range(self.count) if k != row)], top, first)

    def name_of(self, row):
        return self.names[row]

    def path_of(self, row):
        return os.path.join(self.folder, self.names[row])


def photo_file(path, colour="crimson", size=(60, 40), **more) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.new("RGB", size, colour).save(path, **more)
    return str(path)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> MadeUp:
    """23 photos, some of them of an odd kind. Tests do not change them."""
    folder = tmp_path_factory.mktemp("page") / "photos"
    names = [f"2019/summer/photo {k}.jpg" for k in range(19)]
    for k, name in enumerate(names):
        photo_file(folder / name, COLOURS[k % 8], (60 + 50 * (k % 3), 40 + 40 * (k % 4)))
    names += ["gone.jpg", "a scan.tiff", "dots/\u6d77\u8fb9 \U0001f3d6 <b>&amp;.png", "long" * 40 + ".jpg"]
    for name in names[20:]:
        photo_file(folder / name, "peru", (900, 1200))
    return MadeUp(str(folder), names)


@pytest.fixture
def client(made_up):
    return page.application(made_up, 0.5).test_client()


@pytest.fixture
def get(client):
    """get(path, **headers): the response to a request for this host."""
    def call(path, **headers):
        return client.get(path, base_url="http://127.0.0.1:8000",
                          headers={name.replace("_", "-"): value for name, value in headers.items()})
    return call


def said(response, status: int) -> str:
    """The one sentence of a refusal."""
    assert response.status_code == status and response.mimetype == "application/json", response.data
    assert set(response.json) == {"error"} and "\n" not in response.json["error"]
    return response.json["error"]


# ---- what is answered

def test_a_text_a_row_and_a_photo_are_answered_as_json(made_up, client, get):
    found = get("/search?q=0.72+a+dog&top=5&first=2").json
    assert made_up.asked[-1] == (["0.72 a dog"], 5, 2)
    assert [answer["row"] for answer in found["answers"]] == [2, 3, 4, 5, 6]
    assert found["answers"][0] == {"row": 2, "name": "2019/summer/photo 2.jpg", "score": 0.88, "p": pytest.approx(0.07),
                                   "gone": False, "in_set": True, "uncertainty": -698.0, "copy": False, "unsure": True}
    assert (found["query"], found["gallery"], found["sure"], found["first"], found["top"]) == ("0.72 a dog", 23, 0.72,
                                                                                               2, 5)
    assert found["said"] == "72% sure of the first photo" and found["notes"] == ["a made-up note"]
    assert found["set_said"] == "with 90% the photo you mean is among the first 3"

    assert get("/search?row=4").json["answers"][0]["row"] == 4 and made_up.asked[-1] == (4, 10, 0)
    with open(made_up.path_of(20), "rb") as f:
        posted = client.post("/photo-query?top=1", data=f.read(), base_url="http://127.0.0.1:8000")
    assert posted.json["answers"][0]["row"] == 22 and made_up.asked[-1][0] == (900, 1200)
    assert get("/about").json == {"title": "Made-up photos", "count": 23, "calibrated": True,
                                  "notes": ["a note of the index"], "unsure": 0.5, "letters": 10_000,
                                  "bytes": 10_000_000, "top": 10}


def test_what_photos_should_not_show_is_read_from_the_address(made_up, client, get):
    assert get("/search?q=a+dog").status_code == 200 and made_up.without[-1] == []
    get("/search?q=a+dog&not=people,+snow,")
    assert made_up.without[-1] == ["people", "snow"]
    get("/search?row=3&not=snow")
    assert made_up.without[-1] == ["snow"]
    with open(made_up.path_of(20), "rb") as f:
        client.post("/photo-query?not=snow", data=f.read(), base_url="http://127.0.0.1:8000")
    assert made_up.without[-1] == ["snow"]
    assert "not= has 21 texts, and at most 20 are read" in said(get("/search?q=a&not=" + "a," * 21), 400)


def test_how_sure_the_first_answer_is_is_said_in_a_sentence(made_up, get):
    for p, sentence in ((0.5, "50% sure of the first photo"),
                        (0.49, "49% sure of the first photo: another may be meant, or none"),
                        (0.999, "over 99% sure of the first photo")):
        found = get(f"/search?q={p}+a+dog").json
        assert found["said"] == sentence
        assert [answer["unsure"] for answer in found["answers"]] == [answer["p"] < 0.5 for answer in found["answers"]]
    assert of_the_set(1, 0.9) == "with 90% the photo you mean is the first"
    for why, shown in ((EMPTY, EMPTY), ("no set: among too many", None)):   # the second is so of every query
        found = page.Page(made_up, 0.5).plain(Found("a", [], 9, 0.9, None, None, [], no_set=why), 1, 0)
        assert (found["set_said"], found["no_set"]) == (shown, why)

    client = page.application(MadeUp(made_up.folder, made_up.names, calibrated=False)).test_client()
    found = client.get("/search?q=a", base_url="http://localhost").json
    assert found["said"] is found["set_said"] is found["answers"][0]["p"] is None
    assert not found["answers"][0]["unsure"]


def test_a_posted_photo_is_turned_as_its_tag_says_and_read_as_rgb(made_up, client):
    exif = Image.Exif()
    exif[0x0112] = 6                                        # a camera held upright
    for mode, kind, more, size in (("RGB", "JPEG", {"exif": exif}, (40, 60)), ("CMYK", "TIFF", {}, (60, 40)),
                                   ("I;16", "PNG", {}, (60, 40))):
        file = io.BytesIO()
        Image.new(mode, (60, 40)).save(file, kind, **more)
        client.post("/photo-query", data=file.getvalue(), base_url="http://127.0.0.1:8000")
        assert made_up.asked[-1][0] == size


@pytest.mark.parametrize("where", ["thumb", "photo"])
def test_every_row_has_its_picture_and_a_browser_asks_for_it_once(made_up, get, where):
    for row in range(made_up.count):
        response = get(f"/{where}/{row}")
        if made_up.names[row] == "gone.jpg":
            assert "is gone; index the folder again" in said(response, 404)
            continue
        with Image.open(io.BytesIO(response.data)) as drawn, Image.open(made_up.path_of(row)) as stored:
            assert response.mimetype == f"image/{drawn.format.lower()}" and response.cache_control.no_cache
            drawn, stored = drawn.convert("RGB"), stored.convert("RGB")
        if where == "photo":
            assert drawn.size == stored.size
        assert max(drawn.size) == (min(400, max(stored.size)) if where == "thumb" else max(stored.size))
        difference = np.array(drawn.getpixel((9, 9))) - np.array(stored.getpixel((9, 9)))
        assert abs(difference).max() < 12
        again = get(f"/{where}/{row}", If_None_Match=response.headers["ETag"])
        assert again.status_code == 304 and not again.data


def test_another_photo_in_the_place_of_one_is_shown(tmp_path):
    client = page.application(MadeUp(str(tmp_path), ["a.png"])).test_client()
    for colour in ("red", "blue"):
        os.utime(photo_file(tmp_path / "a.png", colour), ns=(1, 1 + (colour == "blue")))
        response = client.get("/thumb/0", base_url="http://localhost", headers={"If-None-Match": colour})
        with Image.open(io.BytesIO(response.data)) as drawn:
            red, _, blue = drawn.getpixel((5, 5))
        assert (red > 200, blue > 200) == (colour == "red", colour == "blue")


def test_the_model_is_asked_by_one_thread_at_a_time(made_up):
    app, made_up.together = page.application(made_up), 0

    def ask(k):
        assert app.test_client().get(f"/search?q=thread+{k}", base_url="http://127.0.0.1").status_code == 200
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made_up.together == 1


# ---- what is refused

@pytest.mark.parametrize("address, status, sentence", [
    ("/search", 400, "there is no query; give a text with"), ("/search?q=+", 400, "there is no query"),
    (f"/search?q={'a' * 10_001}", 400, "the query has 10,001 letters, and at most 10,000 are read"),
    ("/search?q=a&row=1", 400, "both q and row are given"), ("/search?q=xyzzy", 400, "no word of 'xyzzy' is in the v"),
    ("/search?q=a&top=ten", 400, "top=ten is not a whole number from 1 to 100"), ("/search?q=a&top=0", 400, "top=0 is"),
    ("/search?q=a&top=101", 400, "top=101 is"), ("/search?q=a&first=-1", 400, "first=-1 is not a whole number from 0"),
    ("/search?q=a&first=23", 400, "first=23 is not a whole number from 0 to 22"), ("/search?q=a&top=", 400, "top= is"),
    ("/search?q=a&first=" + "9" * 5000, 400, "first=999"), ("/search?q=a&top=\u0663", 400, "top="),
    ("/search?row=23", 404, "'23' is no photo of the index; its rows are 0 to 22"), ("/search?row=-1", 404, "no photo"),
    ("/thumb/23", 404, "is no photo of the index"), ("/photo/x", 404, "is no photo of the index"),
    ("/photo/1e1", 404, "is no photo"), ("/thumb/\u0663", 404, "is no photo"), ("/photo/..", 404, "is no photo"),
    ("/photo/../page.py", 404, "nothing at this address"), ("/page.py", 404, "nothing at this address"),
    ("/photo/%2e%2e%2fsearcher.py", 404, "nothing at this address"), ("/..%2f..%2fetc/passwd", 404, "nothing at this"),
    ("/photo/0%00.jpg", 404, "is no photo of the index"), ("/photo-query", 405, "does not take this kind of request")])
def test_what_is_no_search_is_refused_in_a_sentence(made_up, get, address, status, sentence):
    before = len(made_up.asked)
    assert sentence in said(get(address), status)
    assert made_up.asked[before:] in ([], [(["xyzzy"], 10, 0)])


def damaged() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((99, 99), 50).save(file, "JPEG")
    return file.getvalue()[:-900]


def huge() -> bytes:
    """A small file of many pixels."""
    file = io.BytesIO()
    Image.new("1", (10_000, 8_001)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("body, status, sentence", [
    (lambda: b"", 400, "there is no photo; send the file as the body"), (lambda: b"<svg/>", 400, "is no whole photo"),
    (damaged, 400, "is no whole photo"), (huge, 400, "has 80,010,000 pixels, and at most 80,000,000"),
    (lambda: bytes(10_000_001), 413, "the request has more than 10,000,000 bytes")])
def test_what_is_no_photo_is_refused_in_a_sentence(made_up, client, body, status, sentence):
    before = len(made_up.asked)
    said_of_it = said(client.post("/photo-query", data=body(), base_url="http://127.0.0.1:8000"), status)
    assert sentence in said_of_it and made_up.asked[before:] == []


@pytest.mark.parametrize("kind", ["the file", "a folder", "beside", "within", "dangling"])
def test_links_that_leave_the_photo_folder_are_not_followed(tmp_path, kind):
    secret = photo_file(tmp_path / "photos-private" / "secret.png")
    inner = photo_file(tmp_path / "photos" / "real" / "b.png")
    link, name = tmp_path / "photos" / "a.png", "a.png"
    if kind == "a folder":
        os.symlink(tmp_path / "photos-private", tmp_path / "photos" / "sub")
        name = "sub/secret.png"
    else:
        os.symlink({"the file": secret, "beside": "../photos-private/secret.png", "within": inner,
                    "dangling": tmp_path / "photos" / "none"}[kind], link)
    client = page.application(MadeUp(str(tmp_path / "photos"), [name])).test_client()
    for where in ("thumb", "photo"):
        response = client.get(f"/{where}/0", base_url="http://localhost")
        if kind == "within":
            assert response.status_code == 200
        elif kind == "dangling":
            assert "is gone" in said(response, 404)
        else:
            assert "is now a link out of the photo folder" in said(response, 403)


def test_a_photo_that_became_something_else_is_not_sent(tmp_path):
    (tmp_path / "a.jpg").write_text("<script>alert(1)</script>")
    (tmp_path / "b.jpg").mkdir()
    client = page.application(MadeUp(str(tmp_path), ["a.jpg", "b.jpg"])).test_client()
    for where in ("thumb", "photo"):
        assert "cannot be read" in said(client.get(f"/{where}/0", base_url="http://localhost"), 400)
        said(client.get(f"/{where}/1", base_url="http://localhost"), 404)


@pytest.mark.parametrize("headers, status", [
    ({"Host": "127.0.0.1:8000"}, 200), ({"Host": "localhost:8000"}, 200), ({"Host": "evil.example:8000"}, 403),
    ({"Host": "127.0.0.1:8001"}, 403), ({"Host": "127.0.0.1"}, 403), ({"Host": "localhost:8000.evil.example"}, 403),
    ({"Host": ""}, 403), ({"Origin": "http://127.0.0.1:8000"}, 200), ({"Origin": "http://localhost:8000"}, 403),
    ({"Origin": "http://127.0.0.1:9999"}, 403), ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
    ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "a link")])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_hosts_and_other_sites_are_refused(client, headers, status, method):
    address = "/thumb/0" if method == "GET" else "/photo-query"
    body = None
    if method == "POST":
        file = io.BytesIO()
        Image.new("RGB", (9, 9)).save(file, "PNG")
        body = file.getvalue()
    response = client.open(address, method=method, data=body, base_url="http://127.0.0.1:8000", headers=headers)
    if status == "a link":                                  # a link of another page may lead here, its form may not
        status = 200 if method == "GET" else 403
    assert response.status_code == status, response.data
    if status == 403:
        said(response, 403)


def test_every_response_has_the_headers_that_keep_others_out(get):
    for address in ("/", "/page.css", "/page.js", "/icon.svg", "/about", "/search?q=a", "/thumb/0", "/photo/0", "/none",
                    "/search?q=bug"):
        response = get(address)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in response.headers
        picture = address.startswith(("/thumb", "/photo", "/icon"))
        assert response.headers["Cache-Control"] == ("private, no-cache" if picture else "no-store")
    text = get("/").text
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|style=|(src|href)=\"(https?:)?//", text)


# ---- the server

@contextlib.contextmanager
def serving(searcher):
    """The address of a server of this searcher."""
    made = page.server(page.application(searcher, 0.5), 0)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.port}"
    finally:
        made.shutdown()
        thread.join()


def serve_one(folder: str) -> None:
    cli.run("search.py", page.serve, MadeUp(folder, ["a.png"]), 0, 0.5)


def test_the_server_says_where_it_is_and_ends_by_ctrl_c(tmp_path):
    photo_file(tmp_path / "a.png")
    with Command(serve_one, str(tmp_path)) as process:
        line = process.said("/ ")
        port = re.search(r"^Made-up photos: the page is at http://127\.0\.0\.1:(\d+)/ ", line)[1]
        with browser.DIRECT.open(f"http://127.0.0.1:{port}/search?q=a", timeout=20) as response:
            assert response.status == 200
        with pytest.raises(InputError, match=f"port {port} is in use by another program; name a free one with --port"):
            page.serve(MadeUp(str(tmp_path), ["a.png"]), int(port), 0.5)
        os.kill(process.pid, signal.SIGINT)
        status, _, err = process.ended(20)
        assert (status, err) == (0, "the page is closed\n")


@pytest.mark.parametrize("body", [bytes(10_000_001), bytes(20_000_000), [bytes(1_000_000)] * 20])
def test_a_body_above_the_limit_is_answered_and_not_cut_off(made_up, body):
    """Also one that comes in pieces and does not say how long it is."""
    with serving(made_up) as address, pytest.raises(urllib.error.HTTPError) as refusal:
        browser.DIRECT.open(f"{address}/photo-query", body, timeout=20)
    assert refusal.value.code == 413 and "more than 10,000,000 bytes" in refusal.value.read().decode()


def test_without_flask_the_package_is_named(made_up, monkeypatch):
    monkeypatch.setitem(sys.modules, "flask", None)
    with pytest.raises(InputError, match="pip install -r requirements-search.txt"):
        page.application(made_up)


# ---- in a real browser

SHOWN = """return [...document.querySelectorAll('.answer')].map((li) => ({
    name: li.querySelector('.name').title, wide: li.querySelector('img')?.naturalWidth ?? 0,
    gone: !li.querySelector('.gone').hidden, unsure: !li.querySelector('.unsure').hidden,
    dim: getComputedStyle(li.querySelector('img') ?? li).opacity, of_set: li.classList.contains('of-set'),
    place: li.value, alt: li.querySelector('img')?.alt}))"""
FIRST = "return document.querySelector('.answer .name')?.title === arguments[0]"
DROP = """const canvas = new OffscreenCanvas(60, 40), data = new DataTransfer();
canvas.getContext('2d').fillRect(0, 0, 60, 40);
const fire = (name) => document.body.dispatchEvent(
    new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
canvas.convertToBlob().then((blob) => {
    data.items.add(new File([blob], 'dropped.png', {type: 'image/png'}));
    fire('dragenter'); fire('dragover'); window.target = !document.getElementById('drop').hidden; fire('drop'); });"""
ENTER, TAB = "\ue007", "\ue004"


@pytest.fixture(scope="module")
def chromium():
    if not browser.programs():
        pytest.skip("Chromium and chromedriver are not installed")
    with browser.open_browser() as opened:
        opened.look(1200, 900)
        yield opened


@pytest.fixture
def at(chromium, made_up):
    """The address of the page in the browser. At the end, nothing else was asked for, and its console is empty."""
    chromium.requests(), chromium.log("browser")
    with serving(made_up) as address:
        chromium.open(address)
        chromium.wait("return document.getElementById('count').textContent === '23 photos'")
        yield address
        asked, lines = chromium.requests(), chromium.log("browser")
        chromium.open("about:blank")
    assert asked and all(url.startswith((address + "/", f"blob:{address}/")) for url in asked), asked
    assert lines == []


def answers(chromium) -> list[dict]:
    """What the page shows, once its pictures are loaded."""
    chromium.run("document.querySelectorAll('.answer img').forEach((image) => image.loading = 'eager')")
    chromium.wait(browser.READY)
    return chromium.run(SHOWN)


def test_a_text_is_typed_and_its_answers_are_seen(chromium, made_up, at):
    chromium.type("#text", "0.72 a dog" + ENTER)
    chromium.wait(FIRST, made_up.names[0])
    found = answers(chromium)
    assert [answer["name"] for answer in found] == [answer["alt"] for answer in found] == made_up.names[:10]
    assert all(answer["wide"] > 0 for answer in found) and [answer["place"] for answer in found] == [*range(1, 11)]
    assert [answer["unsure"] for answer in found] == [False, *[True] * 9]
    assert {answer["dim"] for answer in found} == {"1"}                         # nothing looks disabled
    assert [answer["of_set"] for answer in found] == [True, True, True, *[False] * 7]
    text = chromium.run("return document.body.innerText")
    for sentence in ("72% sure of the first photo", "with 90% the photo you mean is among the first 3 (framed)",
                     "log det Sigma of the query -812.5 nats", "23 photos searched", "a made-up note",
                     "a note of the index", "1 to 10 of 23"):
        assert sentence in text
    assert chromium.run("return document.querySelector('#sure div').style.width") == "72%"
    assert chromium.run("return location.search") == "?q=0.72+a+dog" and chromium.run(
        "return document.title") == "0.72 a dog - Made-up photos"


def test_what_photos_should_not_show_stands_beside_a_text(chromium, made_up, at):
    chromium.type("#text", "a dog")
    chromium.type("#without input", "people" + ENTER)
    chromium.wait(FIRST, made_up.names[0])
    assert made_up.without[-1] == ["people"] and chromium.run("return location.search") == "?q=a+dog&not=people"
    chromium.run("history.back()")
    chromium.wait("return location.search === ''")
    assert chromium.run("return document.querySelector('#without input').value") == ""


def test_pages_turn_and_the_back_button_returns(chromium, made_up, at):
    chromium.open(f"{at}/?q=a+dog&first=10")                # a link
    chromium.wait(FIRST, made_up.names[10])
    chromium.click("#next")
    chromium.wait(FIRST, made_up.names[20])
    scan, odd, long = answers(chromium)
    assert scan["name"] == "a scan.tiff" and scan["wide"] > 0 and odd["name"] == made_up.names[21] and odd["wide"] > 0
    assert chromium.run("return document.querySelector('#next').hasAttribute('href')") is False
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")        # a name of 164 letters
    chromium.run("history.back()")
    chromium.wait(FIRST, made_up.names[10])
    gone = answers(chromium)[9]
    assert gone == {**gone, "name": "gone.jpg", "gone": True, "wide": 0}
    chromium.click("#previous")
    chromium.wait(FIRST, made_up.names[0])
    assert chromium.run("return document.querySelector('#text').value") == "a dog"
    chromium.run("history.back()")                          # to the link
    chromium.wait(FIRST, made_up.names[10])


def test_more_like_this_by_the_keyboard(chromium, made_up, at):
    chromium.open(f"{at}/?q=a+dog&top=4")
    chromium.wait(FIRST, made_up.names[0])
    chromium.run("document.querySelectorAll('.photo')[2].focus()")
    chromium.press(TAB)
    assert chromium.run("return document.activeElement.ariaLabel") == f"more like {made_up.names[2]}"
    chromium.press(ENTER)
    chromium.wait(FIRST, made_up.names[2])
    assert len(answers(chromium)) == 4
    assert chromium.run("return location.search") == "?row=2&top=4" and "photos like" in chromium.run(
        "return document.querySelector('#asked').innerText")
    chromium.press("/")
    assert chromium.run("return document.activeElement.id") == "text"
    chromium.run("history.back()")
    chromium.wait(FIRST, made_up.names[0])


@pytest.mark.parametrize("how", ["chosen", "dropped"])
def test_a_photo_is_the_query_when_it_is(chromium, made_up, at, tmp_path, how):
    last = made_up.names[::-1]
    if how == "chosen":
        chromium.type("#file", photo_file(tmp_path / "mine.png"))
    else:
        chromium.run(DROP)
    chromium.wait(FIRST, last[0])
    assert made_up.asked[-1][0] == (60, 40)
    assert how == "chosen" or chromium.run("return window.target")
    assert chromium.run("return document.querySelector('#drop').hidden")
    assert chromium.wait("return document.querySelector('#asked img').naturalWidth") == 60
    assert ("mine.png" if how == "chosen" else "dropped.png") in chromium.run("return asked.innerText")
    chromium.click("#next")
    chromium.wait(FIRST, last[10])
    chromium.run("history.back()")
    chromium.wait(FIRST, last[0])


def test_what_is_refused_is_said_in_place(chromium, made_up, at, tmp_path):
    chromium.type("#text", "xyzzy" + ENTER)
    chromium.wait("return error.textContent.startsWith(\"no word of 'xyzzy' is in the vocabulary\") && !error.hidden")
    assert answers(chromium) == []
    (tmp_path / "notes.png").write_text("no photo")
    chromium.type("#file", str(tmp_path / "notes.png"))
    chromium.wait("return error.textContent.startsWith('the file is no whole photo')")
    (tmp_path / "large.png").write_bytes(bytes(10_000_001))
    chromium.type("#file", str(tmp_path / "large.png"))
    chromium.wait("return error.textContent.startsWith('large.png has 10,000,001 bytes')")
    chromium.run("location.reload()")
    chromium.wait("return window.error?.textContent.startsWith('The photo of this search is no longer at hand')")
    lines = chromium.log("browser")
    assert len(lines) == 2 and all("status of 400" in line["message"] for line in lines)     # and no other line
    chromium.run("document.querySelector('#text').value = ''")
    chromium.type("#text", "a dog" + ENTER)
    chromium.wait(FIRST, made_up.names[0])
    assert chromium.run("return error.hidden")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_without_scrolling_sideways(chromium, made_up, at, dark):
    chromium.look(390, 844, dark)
    chromium.open(f"{at}/?q=a+dog&first=13")
    chromium.wait(FIRST, made_up.names[13])
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    back = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", back)[:3])) < 80) == dark
    chromium.look(1200, 900)
