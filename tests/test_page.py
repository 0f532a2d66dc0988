"""The page to search with: what it answers and refuses over HTTP, and that it works in a real browser."""
import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from cli import InputError
from retrieval import page
from retrieval.searcher import Answer, Found, Searcher
from tests import browser
from tests.helpers import ROOT

pytest.importorskip("flask", reason="Flask is not installed (pip install -r requirements-search.txt)")
COLOURS = ["crimson", "seagreen", "royalblue", "orange", "purple", "teal", "gold", "hotpink"]
LEVEL = 0.9


class MadeUp(Searcher):
    """Photos of one colour each. A text finds the photos in their order, the first with the probability that it
    begins with ("0.72 a dog"), the others with shares of the rest."""

    def __init__(self, folder: str, names: list[str], calibrated: bool = True):
        self.folder, self.names, self.calibrated = folder, names, calibrated
        self.count, self.title, self.notes = len(names), "Made-up photos", []
        self.asked, self.busy, self.together = [], 0, 0

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

    def find_texts(self, texts, top=10, first=0):
        self.asked.append((texts, top, first))
        if texts == ["xyzzy"]:
            raise InputError("no word of 'xyzzy' is in the vocabulary of 9 words; use words of the training set")
        if texts == ["bug"]:
            raise RuntimeError("a fault of the program")
        share = re.match(r"0\.\d+", texts[0])
        return [self.find(texts[0], list(range(self.count)), top, first, float(share[0]) if share else 0.72)]

    def find_photo(self, photo, top=10, first=0):
        assert photo.mode == "RGB"
        self.asked.append((photo.size, photo.getpixel((0, 0)), top, first))
        return self.find("a photo", list(range(self.count))[::-1], top, first)

    def find_row(self, row, top=10, first=0):
        self.asked.append((row, top, first))
        return self.find(self.names[row], [row, *(k for k in range(self.count) if k != row)], top, first)

    def path_of(self, row):
        return os.path.join(self.folder, self.names[row])


def photo_file(path, colour="crimson", size=(60, 40), **more) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.new("RGB", size, colour).save(path, **more)
    return str(path)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> MadeUp:
    """23 photos, some of them of an odd kind. Tests do not change them."""
    folder = tmp_path_factory.mktemp("photos")
    names = [f"2019/summer/photo {k}.jpg" for k in range(19)]
    for k, name in enumerate(names):
        photo_file(folder / name, COLOURS[k % 8], (60 + 50 * (k % 3), 40 + 40 * (k % 4)))
    names += ["gone.jpg", "a scan.tiff", "dots/\u6d77\u8fb9 \U0001f3d6 <b>&amp;.png", "long" * 40 + ".jpg"]
    for name in names[20:]:
        photo_file(folder / name, "peru", (900, 1200))
    return MadeUp(str(folder), names)


@pytest.fixture
def client(made_up):
    return page.application(made_up).test_client()


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
