"""Pictures of what the uncertainty tells: recall by tenths of uncertainty, risk and coverage, and the most and the
least uncertain items (`ucmr` Fig. 4-7). `evaluate.py --uncertainty` draws them.
"""
import os
import sys
import textwrap

import numpy as np

from evaluation.pictures import THUMBNAIL, drawing, show_photo
from files.reading import below
from files.tars import TarPhotos
from inputs import Photos

SHOWN, MATCHES = 5, 3                 # items at each end, matches of each


def curves(reports: dict[str, dict], path: str) -> None:
    """Recall by tenths of uncertainty, and risk by coverage: a row of pictures per side, a line per run.

    reports: {run: {"images" | "captions": what `protocols.uncertainty_report` returns}}. Other keys may stand beside
    these.
    """
    sides = [side for side in ("images", "captions") if any("recall_bins" in r.get(side, ()) for r in reports.values())]
    with drawing(path, len(sides), 2, (10, 3.6 * len(sides)), tight=True) as (_, axes):
        draw_curves(reports, sides, axes)


def draw_curves(reports: dict[str, dict], sides: list[str], axes) -> None:
    """The curves of `curves` on axes (sides, 2)."""
    for (left, right), side in zip(axes, sides):
        for run, report in reports.items():
            if "recall_bins" not in report.get(side, ()):
                continue
            bins, risk = report[side]["recall_bins"], report[side]["risk_coverage"]
            name = run if bins["rho"] is None else f"{run} (rho {bins['rho']:.2f})"
            left.plot(range(1, len(bins["recall"]) + 1), bins["recall"], marker="o", label=name)
            line, = right.plot(100 * np.array(risk["coverage"]), risk["risk"],
                               label=f"{run} (area {risk['area']:.1f}, perfect {risk['area_best']:.1f})")
            right.axhline(risk["area_random"], color=line.get_color(), linestyle=":", linewidth=1)
        left.set(xlabel=f"tenth of the {side}, from the surest to the least sure", ylabel="R@1, percent",
                 title=f"{side} as queries", ylim=(0, None))
        right.set(xlabel="coverage, percent: only the surest are answered", ylabel="wrong first answers, percent",
                  title="risk and coverage; dotted: no knowledge", ylim=(0, 100))
        for axis in (left, right):
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8).set_in_layout(False)    # a long name may cover the curves, not squeeze them


def extremes(values: np.ndarray, pairs, texts: list[str] | None, photos: Photos | None, caption_image: np.ndarray,
             of_images: bool, path: str) -> None:
    """The most and the least uncertain images, or captions, beside their plausible matches.

    values (Q,): log det Sigma of the queries in nats; pairs: their matches (`annotations.Pairs`); texts: all captions;
    photos: those of all images. Where there are none, an image is shown by the first of its captions. caption_image
    (M,): the row of each caption's image.
    """
    texts = texts or [f"caption {m}" for m in range(len(caption_image))]
    first = dict(zip(caption_image[::-1].tolist(), texts[::-1]))
    order = np.argsort(values, kind="stable")
    columns = {"most uncertain": order[::-1][:SHOWN], "least uncertain": order[:SHOWN]}
    rows = max(len(queries) for queries in columns.values())
    with drawing(path, rows, 2, (13, 1.75 * rows + 0.6), tight=True) as (_, axes):
        draw_extremes(values, pairs, texts, photos, first, of_images, columns, axes)


def draw_extremes(values, pairs, texts, photos, first: dict, of_images: bool, columns: dict, axes) -> None:
    """The items of `extremes` on axes (rows, 2). first: {image: its first caption}; columns: {title: queries}."""
    for axis in axes.flat:
        axis.axis("off")
    for column, (title, queries) in enumerate(columns.items()):
        for row, q in enumerate(queries):
            axis = axes[row, column]
            matches = pairs.item[slice(*np.searchsorted(pairs.query, [q, q + 1]))]
            if of_images:
                thumbnails, lines = [q], [texts[m] for m in matches[:MATCHES]]
            else:
                thumbnails, lines = matches[:MATCHES], [texts[q]]
            if photos is None:
                pictures = [f"[image {image}] {first.get(int(image), '')}" for image in thumbnails]
                lines = [pictures[0].split("]")[0] + "]", *lines] if of_images else [*lines, *pictures]
            for k, image in enumerate(thumbnails if photos is not None else ()):
                show_photo(axis.inset_axes([0.15 * k, 0.02, 0.145, 0.8]), photos.open(int(image), THUMBNAIL))
            space = 0.16 * len(thumbnails) if photos is not None else 0
            width = int(80 * (1 - space))
            wrapped = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="   ")]
            axis.text(space, 0.82, "\n".join(wrapped[:7]), va="top", fontsize=9, transform=axis.transAxes)
            more = f", {MATCHES} of {len(matches)} matches" if len(matches) > MATCHES else ""
            axis.text(0, 0.88, f"{values[q]:.1f} nats{more}", fontsize=8, color="grey", transform=axis.transAxes)
            if not row:
                axis.set_title(f"{title} {'images' if of_images else 'captions'}", fontsize=11)


def locate(photos: Photos | list[str] | None, folder: str | None) -> Photos | None:
    """The photos of all images, or None where a file is missing; says so where `folder` is given.

    photos: those of a split, or their file names in `folder`.
    """
    if isinstance(photos, TarPhotos):
        return photos
    paths = photos.paths if isinstance(photos, Photos) else [
        below(folder, name, "the list of photos") for name in (photos or () if folder else ())]
    absent = [path for path in paths if not os.path.isfile(path)]
    if folder and (absent or not paths):
        what = "none has a name"
        if paths:
            what = f"{len(absent):,} of {len(paths):,} photos are missing, the first is {absent[0]}"
        print(f"--photos {folder}: {what}; the pictures show captions in their place", file=sys.stderr)
    return None if absent or not paths else Photos(paths)
