"""A page to search photos with, for the one person at this computer.

    GET  /                        the page (page.html, page.css, page.js; nothing from elsewhere)
    GET  /about                   what is searched
    GET  /search?q=TEXT           the answers to a text as JSON; top=N and offset=N name a part of them
    GET  /search?like=NAME        photos like one of the index
    POST /search                  photos like the one in the body
    GET  /thumb?name=NAME, /photo?name=NAME
                                  a photo of the index as JPEG, of at most 400 and 2,048 pixels a side

It listens on 127.0.0.1 unless `--host` gives another address. It answers neither pages of other sites nor requests
under the name of another host. Of photos it opens those alone whose names are in the index, and no links that lead out
of their folder. An index that another command has changed is read again.
"""
import contextlib
import io
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import webbrowser
from functools import partial
from typing import BinaryIO

from cli import InputError, check
from files import open_plain, refusing
from images import decode_photo
from photos.searcher import Searcher

try:
    import flask
    from werkzeug import serving
    from werkzeug.exceptions import HTTPException
except ImportError as error:
    raise InputError("the page needs Flask; pip install -r photos/requirements.txt") from error

LETTERS, TOP, MOST = 2_000, 10, 200   # of a query; answers to a request unless it says how many, and at most
BYTES = 60_000_000                    # of a photo that is sent
TOO_LARGE = f"this photo has more than {BYTES // 10 ** 6} MB, and the page takes no more; make a smaller copy of it"
NO_PHOTO = ("this file cannot be read as a photo; it is damaged, has more than 170 megapixels, or is none of JPEG, "
            "PNG, WebP, GIF, BMP, TIFF, AVIF and, where pillow-heif is installed, HEIC")
THUMBNAIL, LARGE = 400, 2048          # pixels a side
READING = threading.BoundedSemaphore(4)                     # a large photo takes much memory while it is read
SILENCE = 60                          # seconds after which a client that sends nothing is left
FILES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
           "Content-Security-Policy":
               "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
               "img-src 'self' blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"}
LOCAL = ["127.0.0.1", "localhost", "[::1]"]
EVERYWHERE = "0.0.0.0"
NAME = r"(\[[0-9a-f:]+\]|[a-z0-9_.-]+)"
HOST = re.compile(rf"(?:https?://)?{NAME}(?::[0-9]+)?", re.I)
ADDRESS = re.compile(r"[0-9.]+")      # names of the web are never of digits alone


def application(searcher: Searcher, host: str = "127.0.0.1") -> flask.Flask:
    """Flask application that answers for a searcher.
    host: one more name or address under which the page is opened; 0.0.0.0 stands for every address.
    """
    app = flask.Flask(__name__, static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BYTES
    model = threading.Lock()          # requests come in threads, and the model is one
    app.before_request(lambda: refuse_foreign(flask.request, host))
    app.after_request(add_headers)
    app.register_error_handler(Exception, describe_failure)
    for name, kind in FILES.items():
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
        app.add_url_rule("/" + name.replace("page.html", ""), name, partial(flask.send_file, path, mimetype=kind))

    @app.get("/about")
    def about() -> dict:
        with model:
            searcher.update()
        return {"title": searcher.title, "count": searcher.count, "notes": searcher.notes,
                "calibrated": searcher.calibrated, "letters": LETTERS, "bytes": BYTES}

    @app.route("/search", methods=["GET", "POST"])
    def search() -> dict:
        """Search by the text or name of the address, or by the photo in the body."""
        fields = flask.request.args
        top, offset = read_number("top", TOP, 1, MOST), read_number("offset", 0, 0, 10 ** 9)
        if flask.request.method == "POST":
            find, query = searcher.find_photo, read_upload()
        elif "like" in fields:
            find, query = find_like, fields["like"]
        else:
            find, query = lambda text, *place: searcher.find_texts([text], *place)[0], fields.get("q", "").strip()
            check(query, "there is nothing to search for; describe a photo in a few words")
            check(len(query) <= LETTERS, f"the text has {len(query):,} letters, and at most {LETTERS:,} are read; use "
                                         "fewer words")
        with model:
            searcher.update()
            result = find(query, top, offset)
            answers = searcher.as_json(result)
        return {**answers, "said": result.said, "number": result.number, "notes": result.notes}

    def find_like(name: str, *place: int):
        return searcher.find_row(row_of(name), *place)

    def row_of(name: str) -> int:
        if name not in searcher.rows:
            flask.abort(404, f"there is no photo {ascii(name)[1:-1][:80]} here; search again")
        return searcher.rows[name]

    @app.get("/<any(thumb, photo):size>")
    def picture(size: str):
        """A photo as JPEG, or 304 where the browser has this very picture."""
        name, side = flask.request.args.get("name", ""), {"thumb": THUMBNAIL, "photo": LARGE}[size]
        row_of(name)
        try:
            file = open_below(searcher.folder, name)
        except OSError:
            flask.abort(404, f"{ascii(name)[1:-1][:80]} is gone, or a link out of the photo folder; "
                             "index the folder again")
        with file:
            stat, response = os.fstat(file.fileno()), flask.Response(mimetype="image/jpeg")
            response.set_etag(f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}")
            if response.make_conditional(flask.request).status_code == 200:
                with refusing(f"the photo {name} cannot be read", "replace it or fetch it again"):
                    response.data = encode_jpeg(file, side)
        return response
    return app


def open_below(folder: str, name: str) -> BinaryIO:
    """Open a photo below a folder. Raises OSError where it is none, or leads out of the folder.
    No step of the way may be a link when it is opened, so that none can be put there after the look."""
    root, path = os.path.realpath(folder), os.path.realpath(os.path.join(folder, name))
    steps = os.path.relpath(path, root).split(os.sep)
    if steps[0] == os.pardir:
        raise OSError(f"{name} leads out of {folder}")
    if os.open not in os.supports_dir_fd:                   # Windows
        return open_plain(path)
    *folders, last = steps
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for step in folders:
            inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        return open_plain(last, os.O_NOFOLLOW, place)
    finally:
        os.close(place)


def read_number(name: str, default: int, least: int, most: int) -> int:
    """A number of the address."""
    text = flask.request.args.get(name, str(default))
    check(re.fullmatch("[0-9]{1,12}", text) and least <= int(text) <= most,
          f"{name}={ascii(text)[1:-1][:40]} is not a whole number from {least} to {most:,}")
    return int(text)


def read_upload():
    """The photo in the body, read as the photos of a folder are."""
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(flask.request.stream, file)
        check(file.tell(), "this file is empty; choose a photo")
        file.seek(0)
        try:
            with READING:
                return decode_photo(file)
        except Exception as error:
            raise InputError(NO_PHOTO) from error


def encode_jpeg(file: BinaryIO, side: int) -> bytes:
    """A photo as JPEG of at most `side` pixels a side. Raises what Pillow raises."""
    with READING:
        photo = decode_photo(file, side)
    colours, encoded = photo.info.get("icc_profile") or b"", io.BytesIO()
    photo.save(encoded, "JPEG", quality=85, icc_profile=colours if colours[16:20] == b"RGB " else None)
    return encoded.getvalue()


def refuse_foreign(request, host: str) -> None:
    """Answer 403 unless a request is for this computer and from a trusted source.
    Trusted are this page, a typed address and a program.

    Another name that leads here is the trick of DNS rebinding, by which a page on the web would read what is served.
    Any port will do: a tunnel's and a container's differ from the server's own port.
    """
    given = request.headers.get("Host", "")
    name, source = (match and match[1].lower() for match in map(HOST.fullmatch, (
        given, request.headers.get("Origin", given))))
    names = [*LOCAL, host.lower()]
    if host == EVERYWHERE and name and ADDRESS.fullmatch(name):
        names.append(name)
    if name not in names:
        flask.abort(403, f"{ascii(given)[1:-1][:60]} is not known as a name of this computer; open the page as "
                         "localhost, or start it with --host and that name")
    link = request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
    if source not in names or request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not link:
        flask.abort(403, "this request comes from another site, and only this server's own page is answered")


def add_headers(response):
    """Add the headers of all responses.
    Browsers keep pictures, and ask whether they are still the same."""
    response.headers.update(HEADERS)
    picture = response.mimetype.startswith("image/") or response.status_code == 304
    response.headers["Cache-Control"] = "private, no-cache" if picture else "no-store"
    return response


def describe_failure(error: Exception):
    """The JSON for a request that is refused, or on which this program fails."""
    if isinstance(error, InputError):
        return {"error": str(error)}, 400
    if not isinstance(error, HTTPException):
        flask.current_app.log_exception(sys.exc_info())
        return {"error": "the search failed here; the terminal in which the page was started says how"}, 500
    if error.description != type(error).description:        # this program's sentence
        return {"error": error.description}, error.code
    sentences = {404: "there is nothing at this address; the page is at /", 413: TOO_LARGE}
    return {"error": sentences.get(error.code, "the request cannot be read")}, error.code


# ---- the server

def make_server(app, port: int, host: str = "127.0.0.1"):
    """Bind a server of an application, not yet serving.
    On `host` if it is an address, else on 127.0.0.1.

    port: 0 takes a free one. Raises InputError where it cannot be taken.
    """
    class Handler(serving.WSGIRequestHandler):
        """Writes no line for each request: a page of answers makes dozens."""
        timeout = SILENCE

        def log_request(self, code="-", size="-") -> None:
            pass

    with bind(port, host) as bound:   # werkzeug would end the process where the port is taken
        address, number = bound.getsockname()
        return serving.make_server(address, number, app, threaded=True, request_handler=Handler,
                                   fd=bound.fileno())


def bind(port: int, host: str) -> socket.socket:
    """Bind a port of `host` if it is an address, else of 127.0.0.1. Raises InputError if it cannot."""
    check(re.fullmatch(NAME, host, re.I),
          f"--host {host} is not a name or address of a computer; give one such as nas.local or "
          "192.168.1.5")
    address = host if ADDRESS.fullmatch(host) else "127.0.0.1"
    try:
        return socket.create_server((address, port), backlog=128)
    except OSError as error:
        raise InputError(f"port {port} of {address} cannot be taken ({error.strerror.split(' (')[0].lower()}); "
                         "name a free one with --port (0: any), or an address of this computer with --host") from error


def serve(searcher: Searcher, port: int, host: str = "127.0.0.1") -> None:
    """Serve the page until Ctrl-C, and open it where there is a desktop.
    Raises InputError where the port is taken."""
    http = make_server(application(searcher, host), port, host)
    open_to_others = ADDRESS.fullmatch(host) and not host.startswith("127.")
    address = f"http://{host if open_to_others and host != EVERYWHERE else '127.0.0.1'}:{http.port}/"
    print(f"{searcher.title}: the page is at {address} (Ctrl-C ends it)", flush=True)
    if open_to_others:
        print(f"note: everybody who reaches port {http.port} of this computer sees these photos", flush=True)
    desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if desktop and "SSH_CONNECTION" not in os.environ:    # else it would open before nobody
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        http.serve_forever()
    print("the page is closed", file=sys.stderr)
