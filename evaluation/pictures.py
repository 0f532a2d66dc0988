"""Pictures of retrieval and of uncertainty (`ucmr` Fig. 4-7).

matplotlib's font has the alphabets of Europe and the Middle East. Where a font for Chinese, Japanese and Korean is
installed, a line in matplotlibrc adds it: `font.family: DejaVu Sans, Noto Sans CJK JP`.
"""
import contextlib
import os
import sys
import textwrap
import warnings
from typing import NamedTuple

import numpy as np
from PIL import Image

from cli import check
from data import Photos
from evaluation.annotations import Pairs
from evaluation.embeddings import Embeddings, uncertainties
from files import atomic, below, note_inputs, output

FORMATS = ("png", "pdf", "svg")
DPI = 80                              # pixels an inch
THUMBNAIL = 256                       # pixels a side of a photo within a picture
OWN = "limegreen"                     # frame of the right answer
TILE, LINE, GAP, TITLE = 2.0, 0.16, 0.14, 0.42              # inches: a photo, a line of text, between rows, the title
MOST, MATCHES, ACROSS, LETTERS = 5, 3, 6, 30    # items drawn, matches of each; photos, letters in a line


def picture_file(path: str, inputs=(), overwrite: bool = True) -> str:
    """Return the path of a picture, if it may be drawn there; as `files.output`."""
    check(os.path.splitext(path)[1][1:].lower() in FORMATS,
          f"{path} ends in none of .{', .'.join(FORMATS)}, which pictures are drawn as; give it such an ending")
    return output(path, inputs, overwrite)


@contextlib.contextmanager
def figure_in(path: str, size: tuple[float, float]):
    """Yield an empty figure of this size in inches, and write its picture at the end.
    Neither a window system nor pyplot's state is touched. Texts are drawn as they are, where matplotlib would read two
    $ as a formula."""
    import matplotlib  # takes a second to start, and most commands draw nothing
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings(), atomic(path, "wb") as f:
        warnings.filterwarnings("ignore", "Glyph|Matplotlib currently does not support")
        figure = Figure(figsize=size)
        yield figure
        for text in figure.findobj(Text):                   # without control characters
            text.set_text("".join(letter for letter in text.get_text() if letter == "\n" or letter.isprintable()))
        figure.savefig(f, format=os.path.splitext(path)[1][1:].lower(), dpi=DPI)


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
    photo: Image.Image | str          # or a text in its place, such as "gone"
    label: str = ""                   # above it: name, score, uncertainty
    frame: str | None = None          # colour of its frame; None: thin and grey


class PhotoRow(NamedTuple):
    """A query with its photos."""
    query: str                        # a text of any length
    facts: str                        # a line below it
    cells: list[Cell]


def draw_rows(path: str, title: str, rows: list[PhotoRow], across: int) -> None:
    """Draw queries with their photos, `across` in a line."""
    width, lines = max(6, TILE * across), []                # lines: (text above the first photo, its lines, cells)
    for row in rows:
        heading = "\n".join(filter(None, (wrapped(text, int(11 * width)) for text in (row.query, row.facts))))
        for k in range(0, len(row.cells) or 1, across):
            cells = row.cells[k:k + across]
            lines.append((heading * (k == 0), max((len(cell.label.splitlines()) for cell in cells), default=0), cells))
    heads = [GAP + LINE * (len(heading.splitlines()) + labels) for heading, labels, _ in lines]
    height = TITLE + sum(heads) + TILE * len(lines)
    with figure_in(path, (width, height)) as figure:
        figure.suptitle(wrapped(title, int(12 * width), 1), fontsize=10, y=1 - 0.12 / height, va="top")
        y = height - TITLE
        for head, (heading, labels, cells) in zip(heads, lines):
            y -= head + TILE
            axes = [figure.add_axes([(k + 0.03) * TILE / width, (y + 0.03 * TILE) / height,
                                     0.94 * TILE / width, 0.94 * TILE / height]) for k in range(len(cells) or 1)]
            for axis, cell in zip(axes, cells):
                draw_cell(axis, cell)
            if not cells:
                axes[0].axis("off")
            write_above(axes[0], heading, 4 + 72 * LINE * labels, fontsize=9, weight="bold")


def draw_cell(axis, cell: Cell) -> None:
    """Draw a photo whole in a framed square, or a text on grey; its label above."""
    width, height = getattr(cell.photo, "size", (1, 1))
    if isinstance(cell.photo, str):
        axis.set(facecolor="gainsboro", aspect="equal")
        axis.text(0.5, 0.5, cell.photo, transform=axis.transAxes, ha="center", va="center", color="dimgrey")
    else:
        axis.imshow(np.asarray(cell.photo))
    side = max(width, height)
    left, bottom = (width - side) / 2 - 0.5, (height + side) / 2 - 0.5
    axis.set(xticks=[], yticks=[], xlim=(left, left + side), ylim=(bottom, bottom - side))
    for spine in axis.spines.values():
        spine.set(color=cell.frame or "lightgrey", linewidth=4 if cell.frame else 1)
    write_above(axis, cell.label, 3, fontsize=8)


def write_above(axis, text: str, points: float, **look) -> None:
    """Write a text so many points above an axis, however large that is."""
    axis.annotate(text, (0, 1), (0, points), "axes fraction", "offset points", va="bottom", annotation_clip=False,
                  **look)


def locate_photos(e: Embeddings, folder: str | None) -> Photos | None:
    """Find the photos of all images, in the split or `folder`; None if there are none.

    Some of them may be missing, which is said; `list_present` tells which.
    """
    paths = e.photos.paths if e.photos else [
        below(folder, name, "the list of photos") for name in (e.ids.get("image_name", ()) if folder else ())]
    absent = [path for path in paths if not os.path.isfile(path)]
    missing = f"{len(absent):,} of {len(paths):,} photos are missing, the first is {absent[0]}" if absent else ""
    if paths and len(absent) < len(paths):
        if missing:
            print(f"examples are drawn of the photos that are there: {missing}", file=sys.stderr)
        note_inputs(*paths)
        return Photos(paths)

    fault = missing
    if not missing:
        fault = "the data name no photos" if folder else "the photos are not at hand; name their folder with --photos"
    print(f"no examples are drawn: {fault}", file=sys.stderr)
    return None


def list_present(photos: Photos) -> np.ndarray:
    """Mask the photos whose files are there: (N,) bool."""
    return np.array([os.path.isfile(path) for path in photos.paths])


def mark_first(texts: list[str], order: np.ndarray) -> np.ndarray:
    """Mask the texts (M,) that come first, in this order, among those that are the same."""
    seen, first = set(), np.zeros(len(texts), bool)
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
    return Cell(photo, "\n".join(wrapped(line, LETTERS) for line in lines if line), frame)


# ---- pictures of an evaluation

def describe_ranks(values: np.ndarray, plural: str) -> list[str]:
    """Say of each item (N,) how many of all have a smaller uncertainty, in percent.

    A log-determinant in nats says nothing to a reader, its place among the others does.
    """
    if len(values) < 2:
        return ["" for _ in values]
    smaller = np.searchsorted(np.sort(values), values, side="left")
    shares = 100 * smaller / (len(values) - 1)
    return [f"more uncertain than {share:.0f}% of the {plural}" for share in shares]


def draw_retrieval(e: Embeddings, photos: Photos, path: str) -> None:
    """Draw five captions, from certain to uncertain, each with its five best images.

    They are different captions, of images whose photos are there.
    """
    spread, rows = uncertainties(e), []
    caption_ranks = describe_ranks(spread["captions"], "captions") if "captions" in spread else None
    order = np.argsort(spread.get("captions", np.arange(len(e.texts))), kind="stable")
    order = order[list_present(photos)[e.caption_image[order]]]
    order = order[mark_first(e.texts, order)[order]]
    places = np.unique(np.linspace(0, len(order) - 1, MOST).round().astype(int))
    for m in order[places]:
        score, own = e.scores[:, m], e.caption_image[m]
        facts = [caption_ranks[m]] if caption_ranks else []
        facts.append(f"its own image is number {int((score >= score[own]).sum())} of {e.n_images:,}")
        cells = [photo_cell(photos, i, f"score {score[i]:.3f}", frame=OWN if i == own else None)
                 for i in np.argsort(-score, kind="stable")[:MOST]]
        rows.append(PhotoRow(e.texts[m], "; ".join(facts), cells))
    draw_rows(path, f"{e.data_name} {e.split}, {e.similarity}: the best of {e.n_images:,} images for a caption; green: "
                    "its own", rows, MOST)


def draw_extremes(e: Embeddings, photos: Photos, side: str, path: str) -> None:
    """Draw the most and the least uncertain images or captions with their matches.

    They are different captions, of photos that are there. Matches come from Crisscrossed Captions
    where these were read.
    """
    values, rows = uncertainties(e)[side], []
    own = Pairs.of(e.caption_image, np.arange(len(e.caption_image)))
    pairs = e.judged["cxc"].pairs if "cxc" in e.judged else {"i2t": own, "t2i": own.swapped()}
    query, item = pairs["i2t" if side == "images" else "t2i"]
    order, present = np.argsort(values, kind="stable"), list_present(photos)
    if side == "images":
        order = order[present[order]]
    else:
        shown = np.zeros(len(values), bool)
        shown[query[present[item]]] = True                  # captions with a match that is there
        order = order[shown[order]]
        order = order[mark_first(e.texts, order)[order]]
    for name, queries in (("most uncertain", order[::-1][:MOST]), ("least uncertain", order[:MOST])):
        cells = []
        for q in queries:
            matches = item[query == q]
            more_extreme = values > values[q] if name == "most uncertain" else values < values[q]
            facts = f"number {more_extreme.sum() + 1:,} of {len(values):,}"
            if len(matches) > MATCHES:
                facts += f", {MATCHES} of {len(matches)} matches"
            if side == "images":
                cells.append(photo_cell(photos, q, facts, *(e.texts[m] for m in matches[:MATCHES])))
            else:
                matches = matches[present[matches]]
                best = [photo_cell(photos, i) for i in matches[:MATCHES]]
                rows.append(PhotoRow(e.texts[q], f"{name}: {facts}", best))
        rows += [PhotoRow(f"{name} images", "", cells)] * (side == "images")
    draw_rows(path, f"log det Sigma of {side}, and what matches them", rows, ACROSS)
