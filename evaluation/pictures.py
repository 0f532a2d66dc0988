"""Pictures of retrieval and of uncertainty (`ucmr` Fig. 4-7).

matplotlib's font has the alphabets of Europe and the Middle East. Where a font for Chinese,
Japanese and Korean is installed, a line in matplotlibrc adds it:
`font.family: DejaVu Sans, Noto Sans CJK JP`.
"""

import contextlib
import os
import sys
import textwrap
import warnings
from typing import NamedTuple

import numpy as np
from PIL import Image

from evaluation.annotations import match_original_pairs
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.protocols import scores_of
from images import Photos
from utils import InputError, atomic, below, note_inputs, output

FORMATS = ("png", "pdf", "svg")
DPI = 80  # pixels an inch
THUMBNAIL = 256  # pixels a side of a photo within a picture
OWN = "limegreen"  # color of the frame of the matched image
# Inches: a photo, a line of text, the space between rows, the title.
TILE = 2.0
LINE = 0.16
GAP = 0.14
TITLE = 0.42
ITEMS_DRAWN = 5
MATCHES_DRAWN = 3  # of each item
ACROSS = 6  # photos in a line
ACROSS_CAPTION = 4  # the same below a caption, which then fits into three lines
LETTERS = 30  # characters in a line below or above a photo


def picture_file(path: str, inputs=(), overwrite: bool = True) -> str:
    """Return the path of a picture, if it may be drawn there; as `utils.output`."""
    if picture_format(path) not in FORMATS:
        raise InputError(
            f"{path} ends in none of .{', .'.join(FORMATS)}, which pictures are drawn as; give it "
            "such an ending"
        )
    return output(path, inputs, overwrite)


def picture_format(path: str) -> str:
    """Return the ending of a path in lower case, without its dot."""
    return os.path.splitext(path)[1][1:].lower()


@contextlib.contextmanager
def figure_in(path: str, size: tuple[float, float]):
    """Yield an empty figure of this size in inches, and write its picture at the end.

    Neither a window system nor pyplot's state is touched. Texts are drawn as they are, where
    matplotlib would read two $ as a formula.
    """
    import matplotlib  # takes a second to start, and most commands draw nothing
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    plain_text = matplotlib.rc_context({"text.parse_math": False})
    with plain_text, warnings.catch_warnings(), atomic(path, "wb") as f:
        warnings.filterwarnings("ignore", "Glyph|Matplotlib currently does not support")
        figure = Figure(figsize=size)
        yield figure

        for text in figure.findobj(Text):  # without control characters
            shown = [c for c in text.get_text() if c == "\n" or c.isprintable()]
            text.set_text("".join(shown))
        figure.savefig(f, format=picture_format(path), dpi=DPI)


@contextlib.contextmanager
def drawing(path: str, rows: int, columns: int, size: tuple[float, float]):
    """Yield (figure, axes (rows, columns)) of `figure_in`."""
    with figure_in(path, size) as figure:
        yield figure, figure.subplots(rows, columns, squeeze=False)


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """Wrap the text into at most so many lines."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" ..."))


# ---- photos, and rows of them


class Cell(NamedTuple):
    """A photo in a row."""

    photo: Image.Image | str  # or a text in its place, such as "gone"
    label: str = ""  # above it: name, score, uncertainty
    frame: str | None = None  # color of its frame; None: thin and grey


class PhotoRow(NamedTuple):
    """A query with its photos."""

    query: str  # a text of any length
    facts: str  # a line below it
    cells: list[Cell]


class PhotoLine(NamedTuple):
    """A line of a picture, with as many photos of a row as stand side by side."""

    heading: str  # above the first photo; empty in the second line of a row
    label_lines: int  # of the longest label
    cells: list[Cell]

    @property
    def head(self) -> float:
        """Height of the texts above the photos, in inches."""
        return GAP + LINE * (len(self.heading.splitlines()) + self.label_lines)


def divide_rows(rows: list[PhotoRow], across: int, width: float) -> list[PhotoLine]:
    """Divide rows into lines of at most `across` photos, in a picture `width` inches wide."""
    lines = []
    for row in rows:
        texts = [wrapped(text, int(11 * width)) for text in (row.query, row.facts)]
        heading = "\n".join(text for text in texts if text)
        for start in range(0, len(row.cells) or 1, across):
            cells = row.cells[start : start + across]
            label_lines = max((len(cell.label.splitlines()) for cell in cells), default=0)
            lines.append(PhotoLine(heading, label_lines, cells))
            heading = ""
    return lines


def draw_rows(path: str, title: str, rows: list[PhotoRow], across: int) -> None:
    """Draw queries with their photos, `across` in a line."""
    width = max(6, TILE * across)
    lines = divide_rows(rows, across, width)
    height = TITLE + sum(line.head for line in lines) + TILE * len(lines)

    with figure_in(path, (width, height)) as figure:
        title = wrapped(title, int(12 * width), 1)
        figure.suptitle(title, fontsize=10, y=1 - 0.12 / height, va="top")
        y = height - TITLE
        for line in lines:
            y -= line.head + TILE
            axes = []
            for k in range(len(line.cells) or 1):
                left = (k + 0.03) * TILE / width
                bottom = (y + 0.03 * TILE) / height
                box = [left, bottom, 0.94 * TILE / width, 0.94 * TILE / height]
                axes.append(figure.add_axes(box))

            for axis, cell in zip(axes, line.cells):
                draw_cell(axis, cell)
            if not line.cells:
                axes[0].axis("off")
            above = 4 + 72 * LINE * line.label_lines
            write_above(axes[0], line.heading, above, fontsize=9, weight="bold")


def draw_cell(axis, cell: Cell) -> None:
    """Draw a photo whole in a framed square, or a text on grey; its label above."""
    width, height = getattr(cell.photo, "size", (1, 1))
    if isinstance(cell.photo, str):
        axis.set(facecolor="gainsboro", aspect="equal")
        look = {"ha": "center", "va": "center", "color": "dimgrey"}
        axis.text(0.5, 0.5, cell.photo, transform=axis.transAxes, **look)
    else:
        axis.imshow(np.asarray(cell.photo))

    side = max(width, height)
    left = (width - side) / 2 - 0.5
    bottom = (height + side) / 2 - 0.5
    axis.set(xticks=[], yticks=[], xlim=(left, left + side), ylim=(bottom, bottom - side))

    color = "lightgrey"
    linewidth = 1
    if cell.frame:
        color = cell.frame
        linewidth = 4
    for spine in axis.spines.values():
        spine.set(color=color, linewidth=linewidth)
    write_above(axis, cell.label, 3, fontsize=8)


def write_above(axis, text: str, points: float, **look) -> None:
    """Write a text so many points above an axis, however large that is."""
    corner = {"xy": (0, 1), "xycoords": "axes fraction"}
    shift = {"xytext": (0, points), "textcoords": "offset points"}
    axis.annotate(text, **corner, **shift, va="bottom", annotation_clip=False, **look)


def locate_photos(e: Embeddings, folder: str | None) -> Photos | None:
    """Find the photos of all images, in the split or `folder`; None if there are none.

    Some of them may be missing, which is said; `list_present` tells which.
    """
    paths = []
    if e.photos:
        paths = e.photos.paths
    elif folder:
        names = e.ids.get("image_name", ())
        paths = [below(folder, name, "the list of photos") for name in names]

    fault = ""
    absent = [path for path in paths if not os.path.isfile(path)]
    if absent:
        fault = f"{len(absent):,} of {len(paths):,} photos are missing (first: {absent[0]})"
    elif not paths and folder:
        fault = "the data name no photos"
    elif not paths:
        fault = "the photos are not at hand; name their folder with --photos"

    if len(absent) == len(paths):
        print(f"no examples are drawn: {fault}", file=sys.stderr)
        return None
    if fault:
        print(f"examples are drawn of the photos that are there: {fault}", file=sys.stderr)
    note_inputs(*paths)
    return Photos(paths)


def list_present(photos: Photos) -> np.ndarray:
    """Mask the photos whose files are there: (N,) bool."""
    return np.array([os.path.isfile(path) for path in photos.paths])


def mark_first(texts: list[str], order: np.ndarray) -> np.ndarray:
    """Mask the texts (M,) that come first, in this order, among those that are the same."""
    seen = set()
    first = np.zeros(len(texts), bool)
    for m in order.tolist():
        text = " ".join(texts[m].lower().split())
        first[m] = text not in seen
        seen.add(text)
    return first


def photo_cell(photos: Photos, i: int, *lines: str, frame: str | None = None) -> Cell:
    """Make a cell of photo i, or of a word where its file is missing, below lines of text."""
    photo = "missing"
    if os.path.isfile(photos.paths[int(i)]):
        photo = photos.open(int(i), THUMBNAIL)
    label = "\n".join(wrapped(line, LETTERS) for line in lines if line)
    return Cell(photo, label, frame)


# ---- pictures of an evaluation


def percent_smaller(values: np.ndarray) -> np.ndarray:
    """Compute for each value (N,), N >= 2, the percentage of the others that are smaller: (N,).

    Equal values have the same percentage.
    """
    smaller = np.searchsorted(np.sort(values), values, side="left")
    return 100 * smaller / (len(values) - 1)


def describe_ranks(values: np.ndarray, plural: str) -> list[str]:
    """Say of each item (N,) how many of the others have a smaller uncertainty, in percent.

    A log-determinant in nats says nothing to a reader, its rank among the others does.
    """
    if len(values) < 2:
        return ["" for _ in values]
    shares = percent_smaller(values)
    return [f"more uncertain than {share:.0f}% of the {plural}" for share in shares]


def draw_retrieval(e: Embeddings, photos: Photos, path: str) -> None:
    """Draw five captions, from certain to uncertain, each with its five best images.

    They are different captions, of images whose photos are there.
    """
    uncertainty = uncertainties(e).get("captions")
    ranks = None
    order = np.arange(len(e.texts))
    if uncertainty is not None:
        ranks = describe_ranks(uncertainty, "captions")
        order = np.argsort(uncertainty, kind="stable")
    order = order[list_present(photos)[e.caption_image[order]]]
    order = order[mark_first(e.texts, order)[order]]
    chosen = np.linspace(0, len(order) - 1, ITEMS_DRAWN).round().astype(int)

    of_captions = scores_of(e).T  # (M, N)
    if e.matrix_t2i is not None:
        of_captions = e.matrix_t2i.T
    rows = []
    for m in order[np.unique(chosen)]:
        scores = of_captions[m]
        own = e.caption_image[m]
        cells = []
        for i in np.argsort(-scores, kind="stable")[:ITEMS_DRAWN]:
            frame = None
            if i == own:
                frame = OWN
            cells.append(photo_cell(photos, i, f"score {scores[i]:.3f}", frame=frame))

        rank = int((scores >= scores[own]).sum())
        facts = f"the matched image has rank {rank:,} of {e.n_images:,}"
        if ranks:
            facts = f"{ranks[m]}; {facts}"
        rows.append(PhotoRow(e.texts[m], facts, cells))
    title = (
        f"{e.data_name} {e.split}, {e.similarity}: the best of {e.n_images:,} images for a "
        "caption; green: the matched image"
    )
    draw_rows(path, title, rows, ITEMS_DRAWN)


def draw_extremes(e: Embeddings, photos: Photos, side: str, path: str) -> None:
    """Draw the most and the least uncertain images or captions with their matches.

    They are different captions, of photos that are there. Matches come from Crisscrossed Captions
    where these were read.
    """
    values = uncertainties(e)[side]
    if "cxc" in e.judged:
        pairs = e.judged["cxc"].pairs
    else:
        pairs = match_original_pairs(e.caption_image)
    present = list_present(photos)
    order = np.argsort(values, kind="stable")
    if side == "images":
        query, item = pairs["i2t"]
        order = order[present[order]]
    else:
        query, item = pairs["t2i"]
        shown = np.zeros(len(values), bool)
        shown[query[present[item]]] = True  # captions with a match that is there
        order = order[shown[order]]
        order = order[mark_first(e.texts, order)[order]]

    rows = []
    for name, queries in (("most uncertain", order[::-1]), ("least uncertain", order)):
        cells = []
        for q in queries[:ITEMS_DRAWN]:
            matches = item[query == q]
            more_extreme = values < values[q]
            if name == "most uncertain":
                more_extreme = values > values[q]
            facts = f"number {more_extreme.sum() + 1:,} of {len(values):,}"
            if len(matches) > MATCHES_DRAWN:
                facts += f", {MATCHES_DRAWN} of {len(matches)} matches"

            if side == "images":
                texts = [e.texts[m] for m in matches[:MATCHES_DRAWN]]
                cells.append(photo_cell(photos, q, facts, *texts))
            else:
                there = matches[present[matches]][:MATCHES_DRAWN]
                best = [photo_cell(photos, i) for i in there]
                rows.append(PhotoRow(e.texts[q], f"{name}: {facts}", best))
        if side == "images":
            rows.append(PhotoRow(f"{name} images", "", cells))

    title = "Images by uncertainty (log det Sigma), with captions that match"
    across = ACROSS
    if side == "captions":
        title = "Captions by uncertainty (log det Sigma), with images that match"
        across = ACROSS_CAPTION
    draw_rows(path, title, rows, across)
