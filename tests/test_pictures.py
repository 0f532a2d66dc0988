"""Pictures of answers: every photo in its place with what is said of it, any alphabet, gone and huge photos."""
import contextlib
import logging
import os
import warnings
from types import SimpleNamespace

import matplotlib
import pytest
from matplotlib.text import Text
from PIL import Image

from cli import InputError
from evaluation import pictures
from evaluation.pictures import Cell, PhotoRow, draw_cell, draw_rows, drawable, drawing, figure_in, picture_file
from images import read_photo
from photos.searcher import Hit, SearchResult, contact_sheet

ALPHABETS = ("a dog", "\u00e9t\u00e9 \u0142\u00f3d\u017a", "\u0441\u043e\u0431\u0430\u043a\u0430",
             "\u03c3\u03ba\u03cd\u03bb\u03bf\u03c2", "\u0643\u0644\u0628", "\u05db\u05dc\u05d1",
             "\u72ac\u304c\u8d70\u308b", "\uac1c", "\u0915\u0941\u0924\u094d\u0924\u093e", "\u0e2b\u0e21\u0e32",
             "\U0001f415\U0001f3fd beach", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f", "$5 and $6",
             "\udcff", "a\x07b\tc", "\U000e0041", "e\u0301")


@pytest.fixture
def quiet(caplog):
    """Neither warnings nor lines of a log."""
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        yield
    assert caplog.text == ""


@pytest.fixture
def drawn(monkeypatch):
    """What each of the axes of `draw_rows` shows: a list of {"texts", "photo", "frame", "at", "window"}."""
    found = []

    @contextlib.contextmanager
    def keeping(*words, **more):
        with figure_in(*words, **more) as figure:
            yield figure
            for axis in figure.axes:
                if axis.axison:
                    found.append({"texts": [text.get_text() for text in axis.texts],
                                  "frame": matplotlib.colors.to_hex(axis.spines["left"].get_edgecolor()),
                                  "photo": axis.images[0].get_array() if axis.images else None,
                                  "at": axis.get_position().bounds, "window": axis.get_window_extent().bounds})
    monkeypatch.setattr(pictures, "figure_in", keeping)
    return found


def file_of(path, colour="crimson", size=(60, 40)) -> str:
    Image.new("RGB", size, colour).save(path)
    return str(path)


def hex_of(colour) -> str:
    return matplotlib.colors.to_hex(colour)


@pytest.mark.parametrize("ending", pictures.FORMATS)
def test_any_alphabet_is_drawn_without_a_warning(tmp_path, quiet, ending):
    for tight in (False, True):
        with drawing(str(tmp_path / f"p.{ending}"), 1, 1, (8, 6), tight) as (figure, axes):
            for k, text in enumerate(ALPHABETS):
                axes[0, 0].text(0, k / 25, text, weight="bold" if k % 2 else "normal", transform=axes[0, 0].transAxes)
            axes[0, 0].plot([1], label="\u72ac")
            axes[0, 0].legend(title="\u72ac")
            figure.suptitle("".join(ALPHABETS))
    assert (tmp_path / f"p.{ending}").stat().st_size > 1000


def test_control_characters_are_left_out():
    assert drawable("a dog,\x07 \u72ac\n$5\udcff") == "a dog, \u72ac\n$5"


def test_a_photo_is_shown_whole_in_the_middle_of_a_square(tmp_path):
    with drawing(str(tmp_path / "p.png"), 1, 3, (6, 3)) as (figure, axes):
        for axis, size in zip(axes[0], ((90, 30), (30, 90), (50, 50))):
            draw_cell(axis, Cell(Image.new("RGB", size, "red"), "", "blue"))
        for axis in axes[0]:
            axis.apply_aspect()
            left, bottom, width, height = axis.get_window_extent().bounds
            assert width == pytest.approx(height)
            x, y, w, h = axis.images[0].get_window_extent().bounds
            assert (x + w / 2, y + h / 2) == pytest.approx((left + width / 2, bottom + height / 2))
            assert max(w / width, h / height) == pytest.approx(1)
            assert w / h == pytest.approx(axis.images[0].get_array().shape[1] / axis.images[0].get_array().shape[0])


def test_a_photo_is_read_small_and_never_made_larger(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6                                        # turned
    for path in (str(tmp_path / "p.jpg"), str(tmp_path / "p.png")):
        Image.new("RGB", (640, 400)).save(path, exif=exif)
        assert [read_photo(path, most).size[1] for most in (100, 1000)] == [100, 640]


def test_rows_show_photos_with_what_is_said_of_them_in_their_order(tmp_path, drawn, quiet):
    photos = [Image.new("RGB", (9, 9), (k, 0, 0)) for k in range(7)]
    rows = [PhotoRow("long " * 200, "facts", [Cell(photo, f"label {k}", pictures.OWN if k == 5 else None)
                                         for k, photo in enumerate(photos)]),
            PhotoRow("short", "", [Cell("gone", "one\ntwo", "firebrick")]), PhotoRow("nothing", "", [])]
    draw_rows(str(tmp_path / "p.png"), "a title", rows, 3)
    assert [int(cell["photo"][0, 0, 0]) for cell in drawn[:7]] == list(range(7)) and drawn[7]["photo"] is None
    assert [cell["texts"][0] for cell in drawn[:7]] == [f"label {k}" for k in range(7)]
    heading = drawn[0]["texts"][-1].splitlines()
    assert len(heading) == 4 and heading[2].endswith(" ...") and heading[3] == "facts"
    assert all(cell["texts"][1:] in ([], [""]) for cell in drawn[1:7])
    assert set(drawn[7]["texts"]) == {"gone", "one\ntwo", "short"}
    assert [cell["frame"] for cell in drawn] == [hex_of({5: pictures.OWN, 7: "firebrick"}.get(k, "lightgrey"))
                                                 for k in range(8)]
    lines = sorted({round(cell["at"][1], 6) for cell in drawn}, reverse=True)
    assert [lines.index(round(cell["at"][1], 6)) for cell in drawn] == [0, 0, 0, 1, 1, 1, 2, 3]


def test_no_text_of_a_sheet_covers_another_or_leaves_it(tmp_path, sheet):
    """A sheet with the longest possible texts, in ordinary letters."""
    seen = []

    @contextlib.contextmanager
    def keeping(*words, **more):
        with figure_in(*words, **more) as figure:
            yield figure
            seen.extend(text.get_window_extent().padded(-1) for text in figure.findobj(Text) if text.get_text())
            whole = figure.bbox
            assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
                       for box in seen)
            assert not any(a.overlaps(b) for k, a in enumerate(seen) for b in seen[:k])
    names = [f"{'folder name/' * 5}photo number {k} of the summer.jpg" for k in range(7)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "figure_in", keeping)
        sheet(names, [0.9] * 2, query="a photo of " + "something quite long " * 40)
    assert len(seen) == 7 + 7 + 2 + 1                       # labels, headings, the title


# ---- the sheet of a search

@pytest.fixture
def sheet(tmp_path):
    """sheet(names, sure of each query): the path of its sheet, of photos in tmp_path that are not called gone."""
    for k in range(7):
        file_of(tmp_path / f"{k}.png", (10 * k, 0, 0))

    def call(names, sure, query="a dog", calibrated=True, files=None) -> str:
        answers = [Hit(k, name, 0.9 - k / 10, 0.5 ** (k + 1) if calibrated else None, "gone" in name)
                   for k, name in enumerate(names)]
        found = [SearchResult(query, answers, 99, p) for p in sure]
        searcher = SimpleNamespace(count=7, title="photos", path_of=lambda row: str(tmp_path / f"{row}.png"))
        contact_sheet(str(tmp_path / "s.png"), found, searcher, files or [""] * len(found))
        return str(tmp_path / "s.png")
    return call


def test_a_sheet_shows_every_answer_and_how_sure_it_is(sheet, drawn, quiet, tmp_path):
    """And before its answers a photo that was searched with."""
    sheet(["a.png", "gone.png", "\u72ac.png", "e" * 60 + ".png"], [0.72, 0.3])
    first, gone, foreign, long, second, *_ = drawn
    assert first["texts"] == ["a.png", "a dog\n72% sure of the first photo"] and len(drawn) == 8
    assert gone["photo"] is None and "gone" in gone["texts"]
    assert foreign["texts"][0].startswith("\u72ac.png")
    assert long["texts"][0].splitlines()[0] == "..." + "e" * 21 + ".png"
    assert second["texts"][-1] == "a dog\n30% sure of the first photo"
    assert [int(cell["photo"][0, 0, 0]) for cell in (first, foreign, second)] == [0, 20, 0]
    drawn.clear()
    asked = file_of(tmp_path / "mine.png", (99, 0, 0))
    (tmp_path / "torn.png").write_bytes(b"no photo")
    sheet(["a.png"], [None] * 3, calibrated=False, files=["", asked, str(tmp_path / "torn.png")])
    assert [None if cell["photo"] is None else int(cell["photo"][0, 0, 0]) for cell in drawn] == [0, 99, 0, None, 0]
    assert drawn[0]["texts"] == ["a.png", "a dog"]          # without calibration names alone
    assert drawn[1]["texts"][0] == "the query" and "unreadable" in drawn[3]["texts"]


def test_a_picture_needs_an_ending_and_replaces_no_named_file_unasked(tmp_path):
    photo = file_of(tmp_path / "mine.png")
    with pytest.raises(InputError, match="mine.png is there already; replace it with --overwrite"):
        picture_file(photo, overwrite=False)
    with pytest.raises(InputError, match=r"s.jpg ends in none of \.png"):
        picture_file(str(tmp_path / "s.jpg"))


def test_a_sheet_that_would_be_too_tall_is_refused(sheet, tmp_path):
    with pytest.raises(InputError, match=r"400 lines of photos make a picture of .* and at most 65,535 can be drawn; "
                                         "draw fewer queries"):
        sheet(["gone.png"], [0.7] * 400)
    assert not os.path.exists(tmp_path / "s.png")
