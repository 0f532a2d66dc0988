"""A page to search photos with, for the one person at this computer.

    GET  /                        the page (page.html, page.css, page.js; nothing from elsewhere)
    GET  /about                   what is searched
    GET  /search?q=TEXT           the answers to a text as JSON; top=N and offset=N name a part
    GET  /search?like=NAME        photos similar to one of the index
    POST /search                  photos similar to the one in the body
    GET  /thumb?name=NAME, /photo?name=NAME
                                  a photo of the index as JPEG, at most 400 or 2,048 pixels a side

It listens on 127.0.0.1 unless `--host` gives another address. It answers neither pages of other
sites nor requests under the name of another host. It opens only photos whose names are in the
index, and no links that lead out of their folder. If another command changes the index, it is read
again.
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

from images import decode_photo
from photos.searcher import Searcher
from utils import InputError, open_plain, refusing

try:
    import flask
    from werkzeug import serving
    from werkzeug.exceptions import HTTPException
except ImportError as error:
    raise InputError("the page needs Flask; pip install -r photos/requirements.txt") from error

MAX_QUERY_CHARACTERS = 2_000
DEFAULT_ANSWERS = 10  # to a request that does not say how many
MAX_ANSWERS = 200  # to a request
MAX_PHOTO_BYTES = 60_000_000  # of a photo that is sent
MAX_SIDES = {"thumb": 400, "photo": 2048}  # pixels a side of the pictures that are served
READING_SLOTS = threading.BoundedSemaphore(4)  # a large photo takes much memory while it is read
SILENCE_SECONDS = 60  # after which a client that sends nothing is dropped

TOO_LARGE = (
    f"this photo has more than {MAX_PHOTO_BYTES // 10**6} MB, and the page takes no more; make a "
    "smaller copy of it"
)
NO_PHOTO = (
    "this file cannot be read as a photo; it is damaged, has more than 170 megapixels, or is not "
    "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or, where pillow-heif is installed, HEIC"
)

PAGE_FILES = {
    "page.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
}

LOCAL_NAMES = ["127.0.0.1", "localhost", "[::1]"]
ALL_ADDRESSES = "0.0.0.0"
HOST_NAME = r"(\[[0-9a-f:]+\]|[a-z0-9_.-]+)"
HOST_OR_ORIGIN = re.compile(rf"(?:https?://)?{HOST_NAME}(?::[0-9]+)?", re.I)
IP_ADDRESS = re.compile(r"[0-9.]+")  # names of the web are never of digits alone


def application(searcher: Searcher, host: str = "127.0.0.1") -> flask.Flask:
    """Make the Flask application that answers for a searcher.

    host: one more name or address under which the page is opened; 0.0.0.0 stands for every address.
    """
    app = flask.Flask(__name__, static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_PHOTO_BYTES
    app.before_request(partial(refuse_foreign, host))
    app.after_request(add_headers)
    app.register_error_handler(Exception, describe_failure)
    model = threading.Lock()  # requests come in threads, which share one model

    folder = os.path.dirname(os.path.abspath(__file__))
    for name, kind in PAGE_FILES.items():
        address = "/" + name.replace("page.html", "")
        send = partial(flask.send_file, os.path.join(folder, name), mimetype=kind)
        app.add_url_rule(address, name, send)

    @app.get("/about")
    def about() -> dict:
        with model:
            searcher.update()
        return {
            "title": searcher.title,
            "count": searcher.count,
            "notes": searcher.notes,
            "calibrated": searcher.calibrated,
            "letters": MAX_QUERY_CHARACTERS,
            "bytes": MAX_PHOTO_BYTES,
        }

    @app.route("/search", methods=["GET", "POST"])
    def search() -> dict:
        """Search by the text or name of the address, or by the photo in the body."""
        fields = flask.request.args
        top = read_number("top", DEFAULT_ANSWERS, 1, MAX_ANSWERS)
        offset = read_number("offset", 0, 0, 10**9)
        photo = None
        text = None
        if flask.request.method == "POST":
            photo = read_upload()
        elif "like" not in fields:
            text = read_query()

        with model:
            searcher.update()
            if photo is not None:
                result = searcher.find_photo(photo, top, offset)
            elif text is not None:
                result = searcher.find_texts([text], top, offset)[0]
            else:
                row = find_row_number(searcher, fields["like"])
                result = searcher.find_row(row, top, offset)
            answers = searcher.as_json(result)
        answers |= {"said": result.said, "number": result.number, "notes": result.notes}
        return answers

    @app.get("/<any(thumb, photo):size>")
    def picture(size: str):
        name = flask.request.args.get("name", "")
        find_row_number(searcher, name)
        return send_picture(searcher.folder, name, MAX_SIDES[size])

    return app


# ---- what requests ask for


def find_row_number(searcher: Searcher, name: str) -> int:
    """Find a photo of the index by its name; answer 404 if there is none."""
    if name not in searcher.rows:
        flask.abort(404, f"there is no photo {show(name, 80)} here; search again")
    return searcher.rows[name]


def show(text: str, most: int) -> str:
    """A text of a request in ASCII, cut to `most` characters."""
    return ascii(text)[1:-1][:most]


def read_number(name: str, default: int, least: int, most: int) -> int:
    """Read a number of the address. Raises InputError."""
    text = flask.request.args.get(name, str(default))
    if not re.fullmatch("[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise InputError(f"{name}={show(text, 40)} is not a whole number from {least} to {most:,}")
    return int(text)


def read_query() -> str:
    """Read the text of the address. Raises InputError."""
    text = flask.request.args.get("q", "").strip()
    if not text:
        raise InputError("there is nothing to search for; describe a photo in a few words")
    if len(text) > MAX_QUERY_CHARACTERS:
        raise InputError(
            f"the text has {len(text):,} characters, and at most {MAX_QUERY_CHARACTERS:,} are "
            "read; use fewer words"
        )
    return text


def read_upload():
    """Read the photo in the body as the photos of a folder are read. Raises InputError."""
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(flask.request.stream, file)
        if not file.tell():
            raise InputError("this file is empty; choose a photo")
        file.seek(0)
        try:
            with READING_SLOTS:
                return decode_photo(file)
        except Exception as error:
            raise InputError(NO_PHOTO) from error


# ---- pictures


def send_picture(folder: str, name: str, side: int):
    """Answer with a photo as JPEG, or 304 if the browser has this very picture."""
    try:
        file = open_below(folder, name)
    except OSError:
        flask.abort(
            404,
            f"{show(name, 80)} is gone, or a link out of the photo folder; index the folder again",
        )
    with file:
        stat = os.fstat(file.fileno())
        response = flask.Response(mimetype="image/jpeg")
        response.set_etag(f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}")
        if response.make_conditional(flask.request).status_code == 200:
            with refusing(f"the photo {name} cannot be read", "replace it or fetch it again"):
                response.data = encode_jpeg(file, side)
    return response


def open_below(folder: str, name: str) -> BinaryIO:
    """Open a photo below a folder. Raises OSError if it is none, or leads out of the folder.

    No step of the path may be a link when it is opened, so that none can be put there after the
    check.
    """
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(folder, name))
    steps = os.path.relpath(path, root).split(os.sep)
    if steps[0] == os.pardir:
        raise OSError(f"{name} leads out of {folder}")
    if os.open not in os.supports_dir_fd:  # Windows
        return open_plain(path)

    *folders, last = steps
    position = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for step in folders:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            inner = os.open(step, flags, dir_fd=position)
            os.close(position)
            position = inner
        return open_plain(last, os.O_NOFOLLOW, position)
    finally:
        os.close(position)


def encode_jpeg(file: BinaryIO, side: int) -> bytes:
    """A photo as JPEG of at most `side` pixels a side. Raises what Pillow raises."""
    with READING_SLOTS:
        photo = decode_photo(file, side)
    profile = photo.info.get("icc_profile") or b""
    if profile[16:20] != b"RGB ":  # of the color space; a profile of another one does not fit
        profile = None
    encoded = io.BytesIO()
    photo.save(encoded, "JPEG", quality=85, icc_profile=profile)
    return encoded.getvalue()


# ---- who is answered, and how


def refuse_foreign(host: str) -> None:
    """Answer 403 unless a request is for this computer and from a trusted source.

    Trusted are this page, a typed address and a program. Another name that leads here is the trick
    of DNS rebinding, by which a page on the web would read what is served. Any port will do: those
    of a tunnel and of a container differ from the server's own port.
    """
    headers = flask.request.headers
    given = headers.get("Host", "")
    name = read_host(given)
    names = [*LOCAL_NAMES, host.lower()]
    if host == ALL_ADDRESSES and name and IP_ADDRESS.fullmatch(name):
        names.append(name)
    if name not in names:
        flask.abort(
            403,
            f"{show(given, 60)} is not known as a name of this computer; open the page as "
            "localhost, or start it with --host and that name",
        )

    source = read_host(headers.get("Origin", given))
    from_other_site = headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")
    is_link = flask.request.method == "GET" and headers.get("Sec-Fetch-Mode") == "navigate"
    if source not in names or from_other_site and not is_link:
        flask.abort(
            403, "this request comes from another site, and only this server's own page is answered"
        )


def read_host(header: str) -> str | None:
    """The name of the computer in a Host or Origin header, or None."""
    match = HOST_OR_ORIGIN.fullmatch(header)
    if not match:
        return None
    return match[1].lower()


def add_headers(response):
    """Add the headers of all responses.

    Browsers keep pictures, and ask whether they are still the same.
    """
    response.headers.update(HEADERS)
    is_picture = response.mimetype.startswith("image/") or response.status_code == 304
    response.headers["Cache-Control"] = "private, no-cache" if is_picture else "no-store"
    return response


def describe_failure(error: Exception):
    """The JSON for a request that is refused, or on which this program fails."""
    if isinstance(error, InputError):
        return {"error": str(error)}, 400
    if not isinstance(error, HTTPException):
        flask.current_app.log_exception(sys.exc_info())
        sentence = "the search failed; the terminal that serves the page shows the error"
        return {"error": sentence}, 500
    if error.description != type(error).description:  # this program's sentence
        return {"error": error.description}, error.code
    sentences = {404: "there is nothing at this address; the page is at /", 413: TOO_LARGE}
    return {"error": sentences.get(error.code, "the request cannot be read")}, error.code


# ---- the server


def make_server(app, port: int, host: str = "127.0.0.1"):
    """Bind a server of an application, not yet serving.

    On `host` if it is an address, else on 127.0.0.1. port: 0 takes a free one. Raises InputError if
    it cannot be taken.
    """

    class Handler(serving.WSGIRequestHandler):
        """Writes no line for each request: a page of answers makes dozens."""

        timeout = SILENCE_SECONDS

        def log_request(self, code="-", size="-") -> None:
            pass

    with bind(port, host) as bound:  # werkzeug would end the process if the port is taken
        address, number = bound.getsockname()
        return serving.make_server(
            address, number, app, threaded=True, request_handler=Handler, fd=bound.fileno()
        )


def bind(port: int, host: str) -> socket.socket:
    """Bind a port of `host` if it is an address, else of 127.0.0.1. Raises InputError."""
    if not re.fullmatch(HOST_NAME, host, re.I):
        raise InputError(
            f"--host {host} is not a name or address of a computer; give one such as nas.local or "
            "192.168.1.5"
        )
    address = host if IP_ADDRESS.fullmatch(host) else "127.0.0.1"
    try:
        return socket.create_server((address, port), backlog=128)
    except OSError as error:
        why = error.strerror.split(" (")[0].lower()
        raise InputError(
            f"cannot listen on {address}:{port} ({why}); name a free one with --port (0: "
            "any), or an address of this computer with --host"
        ) from error


def serve(searcher: Searcher, port: int, host: str = "127.0.0.1") -> None:
    """Serve the page until Ctrl-C, and open it if there is a desktop.

    Raises InputError if the port is taken.
    """
    http = make_server(application(searcher, host), port, host)
    open_to_others = IP_ADDRESS.fullmatch(host) and not host.startswith("127.")
    name = "127.0.0.1"
    if open_to_others and host != ALL_ADDRESSES:
        name = host
    address = f"http://{name}:{http.port}/"
    print(f"{searcher.title}: the page is at {address} (Ctrl-C ends it)", flush=True)
    if open_to_others:
        print(
            f"note: anyone who can reach port {http.port} of this computer sees these photos",
            flush=True,
        )

    if has_desktop():
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        http.serve_forever()
    print("the page is closed", file=sys.stderr)


def has_desktop() -> bool:
    """True if a browser would open where the user sits."""
    if "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
