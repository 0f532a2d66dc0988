"""Pictures of answers: every photo in its place with what is said of it, any alphabet, gone and huge photos."""

import contextlib
import itertools
import logging
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from evaluation import pictures
from evaluation.pictures import (
    Cell,
    PhotoRow,
    draw_cell,
    draw_rows,
    drawing,
    figure_in,
    picture_file,
)
from utils import InputError

ALPHABETS = (
    "a dog",
    "\u00e9t\u00e9 \u0142\u00f3d\u017a",
    "\u0441\u043e\u0431\u0430\u043a\u0430",
    "\u03c3\u03ba\u03cd\u03bb\u03bf\u03c2",
    "\u0643\u0644\u0628",
    "\u05db\u05dc\u05d1",
    "\u72ac\u304c\u8d70\u308b",
    "\uac1c",
    "\u0915\u0941\u0924\u094d\u0924\u093e",
    "\u0e2b\u0e21\u0e32",
    "\U0001f415\U0001f3fd beach",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u2764\ufe0f",
    "$5 and $6",
    "\udcff",
    "a\x07b\tc",
    "\U000e0041",
    "e\u0301",
)


@pytest.fixture
def quiet(caplog):
    """Neither warnings nor lines of a log."""
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        yield
    assert caplog.text == ""


@pytest.fixture
def figures(monkeypatch):
    """The figures of `draw_rows`."""
    drawn = []

    @contextlib.contextmanager
    def keeping(*words):
        with figure_in(*words) as figure:
            yield figure
        drawn.append(figure)

    monkeypatch.setattr(pictures, "figure_in", keeping)
    return drawn


@pytest.mark.parametrize("ending", pictures.FORMATS)
def test_any_alphabet_is_drawn_without_a_warning_or_control_characters(tmp_path, quiet, ending):
    with drawing(str(tmp_path / f"p.{ending}"), 1, 1, (8, 6)) as (figure, axes):
        for k, text in enumerate(ALPHABETS):
            weight = "bold" if k % 2 else "normal"
            axis = axes[0, 0]
            axis.text(0, k / 25, text, weight=weight, transform=axis.transAxes)
        axes[0, 0].plot([1], label="\u72ac")
        axes[0, 0].legend(title="\u72ac")
        text = figure.suptitle("".join(ALPHABETS))
    assert (tmp_path / f"p.{ending}").stat().st_size > 1000
    drawn = text.get_text()
    assert drawn.isprintable() and "$5 and $6" in drawn and "\udcff" not in drawn


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
            rows, columns = axis.images[0].get_array().shape[:2]
            assert w / h == pytest.approx(columns / rows)


def test_rows_show_photos_with_what_is_said_of_them_in_their_order(tmp_path, figures, quiet):
    photos = [Image.new("RGB", (9, 9), (k, 0, 0)) for k in range(7)]
    cells = [Cell(photo, f"label {k}", None) for k, photo in enumerate(photos)]
    cells[5] = Cell(photos[5], "label 5", pictures.OWN)
    rows = [
        PhotoRow("long " * 200, "facts", cells),
        PhotoRow("short", "", [Cell("gone", "one\ntwo", "firebrick")]),
        PhotoRow("nothing", "", []),
    ]
    draw_rows(str(tmp_path / "p.png"), "a title", rows, 3)
    axes = [axis for axis in figures[0].axes if axis.axison]
    texts = [[text.get_text() for text in axis.texts] for axis in axes]
    reds = [int(axis.images[0].get_array()[0, 0, 0]) for axis in axes[:7]]
    assert reds == [0, 1, 2, 3, 4, 5, 6] and not axes[7].images
    assert [words[0] for words in texts[:7]] == [f"label {k}" for k in range(7)]
    heading = texts[0][-1].splitlines()
    assert len(heading) == 4 and heading[2].endswith(" ...") and heading[3] == "facts"
    assert all(words[1:] in ([], [""]) for words in texts[1:7])
    assert {*texts[7]} == {"gone", "one\ntwo", "short"}

    frames = ["lightgrey" for _ in range(8)]
    frames[5] = pictures.OWN
    frames[7] = "firebrick"
    drawn = [axis.spines["left"].get_edgecolor() for axis in axes]
    assert drawn == [matplotlib.colors.to_rgba(frame) for frame in frames]
    heights = [round(axis.get_position().y0, 6) for axis in axes]
    assert [sorted({*heights}, reverse=True).index(y) for y in heights] == [0, 0, 0, 1, 1, 1, 2, 3]


def test_no_text_covers_another_or_leaves_the_picture(tmp_path, figures):
    """With long texts, in ordinary letters."""
    heading = "a photo of " + "something quite long " * 40
    cells = [Cell("gone", f"...number {k} of the summer.jpg") for k in range(7)]
    row = PhotoRow(heading, "90% sure of the first photo", cells)
    rows = [row, row]

    draw_rows(str(tmp_path / "p.png"), "99 photos", rows, 5)
    whole = figures[0].bbox
    boxes = [
        text.get_window_extent().padded(-1) for text in figures[0].findobj(Text) if text.get_text()
    ]
    assert len(boxes) == 14 + 14 + 2 + 1  # labels, words in place of photos, headings, the title
    for box in boxes:
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1
        assert whole.y0 <= box.y0 and box.y1 <= whole.y1
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)


def test_a_picture_needs_an_ending_and_replaces_no_named_file_unasked(tmp_path):
    (tmp_path / "mine.png").write_text("")
    with pytest.raises(InputError, match="mine.png already exists; replace it with --overwrite"):
        picture_file(str(tmp_path / "mine.png"), overwrite=False)
    with pytest.raises(InputError, match=r"s.jpg ends in none of \.png"):
        picture_file(str(tmp_path / "s.jpg"))


def test_an_uncertainty_is_a_place_among_the_others():
    ranks = pictures.describe_ranks(np.array([-1405.8, -600.0, -900.0]), "captions")
    assert ranks == [f"more uncertain than {share}% of the captions" for share in (0, 100, 50)]
    assert pictures.describe_ranks(np.array([1.0]), "images") == [""]
