"""A local page to search with: a text, a photo, or "more like this", and how sure each answer is.

    GET  /                        the page (page.html, page.css, page.js; nothing from elsewhere)
    GET  /about                   what is searched
    GET  /search?q=TEXT           the answers to a text; with top=N and first=N, from 0
    GET  /search?row=N            more like photo N
    POST /photo-query             the answers to the photo in the body; with top and first
        all three also with not=, texts that the photos should not fit, a comma between them
    GET  /thumb/ROW, /photo/ROW   a photo of the index, small and whole

It is for the one person at this computer. It listens on 127.0.0.1 alone, and answers neither pages
of other sites nor requests under another host's name. Files are served by their row in the index:
no path from a request is ever opened.
"""
import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping

from PIL import Image, ImageOps

from cli import InputError
from data import PHOTO_FORMATS, in_rgb, photo_formats, read_photo
from files import FAULTS
from photos.searcher import Found, Searcher

# The most of a text, of a request in bytes, of a photo.
LETTERS, BODY, PIXELS = 10_000, 10_000_000, 80_000_000
TOO_MUCH = f"the request has more than {BODY:,} bytes; send a smaller copy of the photo"
PARTS = 20                            # texts that photos should not fit
TOP, MOST = 10, 100                   # answers at a time, unless asked for otherwise, and at most
THUMBNAIL, DRAWN_AT_ONCE = 400, 4     # pixels a side; thumbnails
# Browsers show these as they are.
SHOWN = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp",
         "GIF": "image/gif", "BMP": "image/bmp", "AVIF": "image/avif"}
FILES = {"page.html": "text/html; charset=utf-8", "page.css": "text/css; charset=utf-8",
         "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "Cross-Origin-Resource-Policy": "same-origin",
           "Cross-Origin-Opener-Policy": "same-origin",
           "Content-Security-Policy":
               "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
               "img-src 'self' blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"}


class Refused(InputError):
    """A request that is not answered. `status`: that of HTTP, 4xx."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


# ---- what is answered, without a word of HTTP

class Page:
    """The answers of a searcher as values for JSON. Its methods raise InputError, also Refused."""

    def __init__(self, searcher: Searcher, unsure: float):
        self.searcher, self.unsure = searcher, unsure
        self.lock = threading.Lock()  # requests come in threads, and the model is one
        # A large photo takes much memory while it is read.
        self.drawing = threading.BoundedSemaphore(DRAWN_AT_ONCE)

    def about(self) -> dict:
        of = self.searcher
        return {"title": of.title, "count": of.count, "calibrated": of.calibrated,
                "notes": of.notes, "unsure": self.unsure, "letters": LETTERS,
                "bytes": BODY, "top": TOP}

    def search(self, asked: Mapping[str, str]) -> dict:
        """The answers to a text or a row. asked: the fields of the address."""
        part = self.part(asked)
        if "row" in asked and "q" in asked:
            raise Refused(400, "both q and row are given; give a text with ?q=, or a photo of "
                               "the index with ?row=")
        if "row" in asked:
            row = self.row(asked["row"])
            with self.lock:
                return self.plain(self.searcher.find_row(row, *part), *part[:2])
        text = asked.get("q", "").strip()
        if not text:
            raise Refused(400, "there is no query; give a text with ?q=")
        if len(text) > LETTERS:
            raise Refused(400, f"the query has {len(text):,} letters, and at most {LETTERS:,} are "
                               "read; give a shorter one")
        with self.lock:
            return self.plain(self.searcher.find_texts([text], *part)[0], *part[:2])

    def photo_query(self, asked: Mapping[str, str], body: bytes) -> dict:
        """The answers to the photo in the file `body`."""
        top, first, without = self.part(asked)
        if len(body) > BODY:          # of a request that did not say how long it would be
            raise Refused(413, TOO_MUCH)
        photo = photo_in(body)
        with self.lock:
            return self.plain(self.searcher.find_photo(photo, top, first, without=without), top, first)

    def part(self, asked: Mapping[str, str]) -> tuple[int, int, list[str]]:
        """Which answers are wanted: (top, first, texts that they should not fit)."""
        without = [*filter(None, map(str.strip, asked.get("not", "").split(",")))]
        if len(without) > PARTS:
            raise Refused(400, f"not= has {len(without)} texts, and at most {PARTS} are read")
        return (number(asked, "top", TOP, 1, MOST),
                number(asked, "first", 0, 0, max(0, self.searcher.count - 1)), without)

    def row(self, text: str) -> int:
        """The row that a request names."""
        if not re.fullmatch("[0-9]{1,12}", text) or int(text) >= self.searcher.count:
            raise Refused(404, f"{ascii(text)[:40]} is no photo of the index; its rows are 0 to "
                               f"{self.searcher.count - 1:,}")
        return int(text)

    def plain(self, result: Found, top: int, first: int) -> dict:
        answers = [{**answer._asdict(), "unsure": answer.p is not None
                    and (result.sure if answer.copy else answer.p) < self.unsure}
                   for answer in result.answers]
        return {**result._asdict(), "answers": answers, "top": top, "first": first,
                "said": result.said(self.unsure), "query_said": result.query_said, "set_said": result.set_said}

    def file_of(self, row: int) -> str:
        """The file of a row. Raises Refused where it is gone, and where a link leads out of the
        photo folder."""
        path = self.searcher.path_of(row)
        inner = os.path.join(os.path.realpath(self.searcher.folder), "")
        if not os.path.realpath(path).startswith(inner):
            raise Refused(403, f"photo {row} is now a link out of the photo folder, and only "
                               "photos within it are shown; index the folder again")
        if not os.path.isfile(path):
            raise Refused(404, f"photo {row} is gone; index the folder again")
        return path

    def thumbnail(self, path: str) -> bytes:
        stat = os.stat(path)
        with self.drawing:
            return thumbnail(path, stat.st_mtime_ns, stat.st_size)


def number(asked: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = asked.get(name, str(default))
    if not re.fullmatch("[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise Refused(400, f"{name}={ascii(text)[1:-1][:40]} is not a whole number from {least} "
                           f"to {most:,}")
    return int(text)


def photo_in(body: bytes) -> Image.Image:
    """The photo in the bytes of a file, as `read_photo` reads it."""
    if not body:
        raise Refused(400, "there is no photo; send the file as the body of the request")
    try:
        with Image.open(io.BytesIO(body), formats=photo_formats()) as image:
            pixels = image.width * image.height
            if pixels <= PIXELS:
                return in_rgb(ImageOps.exif_transpose(image))
    except (*FAULTS, Image.DecompressionBombError) as error:
        raise Refused(400, "the file is no whole photo of a sane size; photos are "
                           f"{', '.join(PHOTO_FORMATS)}") from error
    raise Refused(400, f"the photo has {pixels:,} pixels, and at most {PIXELS:,} are read; make a "
                       "smaller copy of it")


@functools.lru_cache(maxsize=512)
def thumbnail(path: str, changed: int, size: int) -> bytes:
    """A small JPEG of a photo. changed, size: those of the file, so that another one in its place
    is read anew."""
    return jpeg(read_photo(path, THUMBNAIL))


def jpeg(photo: Image.Image) -> bytes:
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=85)
    return file.getvalue()


def shown(path: str) -> tuple[bytes, str]:
    """A photo for a browser, and its media type. Formats that browsers do not show become JPEG."""
    try:
        with Image.open(path, formats=photo_formats()) as image:
            kind = image.format
        if kind in SHOWN:
            with open(path, "rb") as f:
                return f.read(), SHOWN[kind]
    except FAULTS:
        pass                          # the next line says what is wrong with it
    return jpeg(read_photo(path)), "image/jpeg"


# ---- the same over HTTP

def the_flask():
    """The package Flask. Raises InputError where it is not installed."""
    try:
        import flask  # optional: only this page needs it
    except ImportError as error:
        raise InputError("the page needs Flask, which is not installed; "
                         "pip install -r requirements-search.txt") from error
    return flask


def application(searcher: Searcher, unsure: float = 0.0):
    """The flask.Flask that answers for a searcher. unsure: answers of a lower probability are
    marked as not sure."""
    flask = the_flask()
    app = flask.Flask(__name__, static_folder=None, template_folder=None)
    page = Page(searcher, unsure)
    app.config["MAX_CONTENT_LENGTH"] = BODY + 1  # of a longer request, the rest is not read
    app.json.sort_keys = False
    app.before_request(lambda: guard(flask.request))
    app.after_request(finished)
    app.register_error_handler(
        InputError, lambda error: ({"error": str(error)}, getattr(error, "status", 400)))
    app.register_error_handler(Exception, lambda error: failed(app, error))

    for name, kind in FILES.items():
        add_file(app, name, kind)
    app.add_url_rule("/about", view_func=page.about)
    app.add_url_rule("/search", "search", lambda: page.search(flask.request.args))
    app.add_url_rule("/photo-query", "photo_query", methods=["POST"],
                     view_func=lambda: page.photo_query(
                         flask.request.args, flask.request.get_data(cache=False)))

    def picture(row: str, draw):
        path = page.file_of(page.row(row))
        stat = os.stat(path)
        response = flask.Response()
        response.set_etag(hashlib.sha256(f"{path}\0{stat.st_mtime_ns}\0{stat.st_size}".encode(
            errors="surrogateescape")).hexdigest()[:32])
        response.make_conditional(flask.request)  # 304 where the browser has this very picture
        if response.status_code == 200:
            response.data, response.mimetype = draw(path)
        return response
    app.add_url_rule("/thumb/<row>", "thumb", lambda row: picture(
        row, lambda path: (page.thumbnail(path), "image/jpeg")))
    app.add_url_rule("/photo/<row>", "photo", lambda row: picture(row, shown))
    return app


def add_file(app, name: str, kind: str) -> None:
    """Serve a file that stands beside this one; page.html at /."""
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as f:
        content = f.read()
    app.add_url_rule("/" if name == "page.html" else f"/{name}", name,
                     lambda: (content, {"Content-Type": kind}))


def guard(request) -> None:
    """Raises Refused unless a request is for this very server, and comes from its own page, an
    address that was typed, or a program. Another host name that leads here is the trick of DNS
    rebinding, by which a page on the web would read what is served here."""
    host, port = request.headers.get("Host", ""), request.environ["SERVER_PORT"]
    ours = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
    if host not in ours and not (port == "80" and f"{host}:80" in ours):
        raise Refused(403, f"the host {ascii(host)[:60]} is not this server; open "
                           f"http://127.0.0.1:{port}/")
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    link = request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
    if origin not in (None, f"http://{host}") or site not in ("same-origin", "none") and not link:
        raise Refused(403, "this request comes from a page of another site, and only this server's "
                           "own page is answered")


def finished(response):
    """The response with the headers that all have. A browser asks again before it shows a picture
    that it keeps, and keeps nothing else."""
    response.headers.update(HEADERS)
    picture = response.mimetype.startswith("image/") or response.status_code == 304
    response.headers["Cache-Control"] = "private, no-cache" if picture else "no-store"
    return response


def failed(app, error: Exception):
    """What is said of a request that Flask refuses, or on which this program fails: JSON too."""
    status = getattr(error, "code", None)
    if not isinstance(status, int):
        app.log_exception((type(error), error, error.__traceback__))
        return {"error": "the search failed on this request; its terminal says how"}, 500
    sentences = {404: "there is nothing at this address; the page is at /",
                 405: "this address does not take this kind of request",
                 413: TOO_MUCH}
    return {"error": sentences.get(status, "the request cannot be read")}, status


# ---- the server

def server(app, port: int):
    """A server of an application on 127.0.0.1, bound and not yet serving. port: 0 takes a free one.
    Raises InputError where the port is taken."""
    the_flask()
    from werkzeug.serving import WSGIRequestHandler, make_server  # it comes with Flask

    class Handler(WSGIRequestHandler):
        """Writes no line for each request: a page of answers makes dozens."""

        def log_request(self, code="-", size="-") -> None:
            pass

    with socket.socket() as bound:    # werkzeug would end the process where the port is taken
        if os.name == "posix":        # elsewhere the option lets two programs take one port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except OSError as error:
            why = {errno.EADDRINUSE: "is in use by another program",
                   errno.EACCES: "may not be taken by this user"}.get(
                       error.errno, f"cannot be taken ({error.strerror})")
            raise InputError(f"port {port} {why}; name a free one with --port, or 0 for any"
                             ) from error
        bound.listen(128)
        return make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler,
                           fd=bound.fileno())


def serve(searcher: Searcher, port: int, unsure: float) -> None:
    """Serve the page until Ctrl-C. Raises InputError where the port is taken."""
    http = server(application(searcher, unsure), port)
    print(f"{searcher.title}: the page is at http://127.0.0.1:{http.port}/ (Ctrl-C ends it)",
          flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        http.serve_forever()
    print("the page is closed", file=sys.stderr)
