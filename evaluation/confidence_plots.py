"""Pictures of how sure a model is of its first answers, and whether rightly: `evaluate.py --confidence` draws them."""
import re
import textwrap
from typing import NamedTuple

import numpy as np

from evaluation.confidence import NAMES, Seen, best_name, percent
from evaluation.pictures import THUMBNAIL, drawing, show_photo
from evaluation.selective import exact_interval
from inputs import Photos
from metrics import risk_coverage

PICTURES = ("confidence", "confidence_examples")
SIDES = {"t2i": "text to image", "i2t": "image to text", "phrases": "phrases to boxes"}
LABELS = NAMES | {"posterior_grouped": "posterior, summed over its image's captions",
                  "overlap": "posterior, summed over the boxes at its place", "stacked": "logistic of all measures"}
STYLES = {"posterior": ("tab:blue", "-"), "posterior_grouped": ("tab:blue", "-"), "overlap": ("tab:blue", "-"),
          "isotonic": ("deepskyblue", "--"), "entropy": ("deepskyblue", "-."), "entropy_each": ("deepskyblue", ":"),
          "max": ("tab:green", "-"), "margin": ("tab:green", "--"), "std": ("tab:green", "-."),
          "log_det_query": ("tab:red", "-"), "log_det_answer": ("tab:red", "--"), "trace_query": ("tab:orange", "-"),
          "trace_answer": ("tab:orange", "--"), "stacked": ("tab:purple", "-"),
          "stacked_without_sigma": ("tab:purple", "--")}
SHOWN = {"the surest right answers": 4, "the surest wrong answers": 3, "around the median": 3, "the least sure": 3}
GOOD, BAD = "forestgreen", "firebrick"
WIDTH, HEAD, PHOTO, LINE = 6.4, 0.36, 1.25, 0.15    # of a column, a heading, a photo with its space, in inches


def diagrams(results: dict, seen: dict[str, Seen], path: str) -> None:
    """A row for each direction: the reliability of the probability that users are shown, and risk by coverage of all
    measures. results: what `confidence.judge` found, by direction."""
    with drawing(path, len(seen), 2, (14.5, 4.6 * len(seen))) as (figure, axes):
        for (left, right), (side, of) in zip(axes, seen.items()):
            draw_reliability(results[side][best_name(of.values)], SIDES[side], left)
            draw_risks(of, SIDES[side], right)
            for axis in (left, right):
                axis.grid(alpha=0.3)
        figure.subplots_adjust(0.05, 0.14 / len(seen), 0.74, 1 - 0.1 / len(seen), wspace=0.18, hspace=0.28)


def draw_reliability(numbers: dict, title: str, axis) -> None:
    """The diagram of one direction. numbers: of a probability, with "reliability", "ece" and "ece_floor"."""
    p, share, size = (np.array(numbers["reliability"][key]) for key in ("p", "right", "queries"))
    low, high = exact_interval(np.rint(share * size).astype(int), size)
    top = min(100, 110 * max(high.max(), p.max()))          # a model that is never sure fills the picture too
    axis.plot([0, 100], [0, 100], color="grey", linestyle="--", linewidth=1, label="as sure as right")
    axis.errorbar(100 * p, 100 * share, 100 * np.array([share - low, high - share]), fmt="o", color="tab:blue",
                  ecolor="lightsteelblue", elinewidth=2, capsize=3,
                  label=f"{len(p)} bins of about {round(size.mean()):,} queries, with 95% intervals")
    axis.set(xlim=(0, top), ylim=(-0.02 * top, top), xlabel="how sure the model says it is: mean posterior, percent",
             ylabel="right first answers, percent",
             title=f"{title}: ECE {numbers['ece']:.3f} (by chance alone {numbers['ece_floor']:.3f})")
    axis.legend(fontsize=8, loc="lower right")


def draw_risks(of: Seen, title: str, axis) -> None:
    """The curves of one direction, the legend beside them from the best measure to the worst."""
    curves = {name: risk_coverage(-value, of.right) for name, value in of.values.items()}
    perfect, best = risk_coverage(~of.right, of.right), best_name(of.values)
    for name in sorted(curves, key=lambda name: curves[name]["area"]):
        color, style = STYLES[name]
        strong, curve = name == best, curves[name]
        axis.plot(100 * np.array(curve["coverage"]), curve["risk"], style, label=f"{curve['area']:.1f}  {LABELS[name]}",
                  color=color, alpha=1 if strong else 0.7, linewidth=3 if strong else 1.1, zorder=3 if strong else 2)
        if name == "posterior" and not strong:
            axis.lines[-1].set(linestyle=(0, (1, 1)), color="navy")
    axis.axhline(perfect["area_random"], color="black", linestyle=":", linewidth=1.2,
                 label=f"{perfect['area_random']:.1f}  no knowledge")
    axis.plot(100 * np.array(perfect["coverage"]), perfect["risk"], color="darkgrey", linewidth=2,
              label=f"{perfect['area']:.1f}  perfect order")
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="coverage, percent: only the surest are answered",
             ylabel="wrong first answers, percent", title=f"{title}: risk and coverage")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, handlelength=3.2,
                title="mean risk (AURC; lower is better)", title_fontsize=8, alignment="left")


# ---- examples

def pick(p: np.ndarray, right: np.ndarray) -> dict[str, list[int]]:
    """Which of Q queries are shown, by heading: p (Q,), right (Q,) bool. No query stands under two headings."""
    order = np.argsort(-p, kind="stable")
    hits, middle = right[order], max(0, (len(order) - 3) // 2)
    parts = (order[hits], order[~hits], order[middle:], order[-3:])
    taken, chosen = set(), {}
    for (heading, count), part in zip(SHOWN.items(), parts):
        chosen[heading] = [q for q in part[:count].tolist() if q not in taken]
        taken |= set(chosen[heading])
    return {heading: queries for heading, queries in chosen.items() if queries}


class Card(NamedTuple):
    """A query and its first answer."""
    said: str                         # such as "72% sure, right"
    right: bool
    photos: list[tuple[int, str]]     # images, and what stands above them; the answer of a caption comes first
    lines: list[str]

    @property
    def left(self) -> float:
        """Where its text begins, in inches."""
        return 0.1 + PHOTO * len(self.photos)

    @property
    def height(self) -> float:
        return PHOTO if self.photos else 0.42 + LINE * len(self.wrapped())

    def wrapped(self) -> list[str]:
        most, width = max(1, 4 // len(self.lines)), int((WIDTH - 0.2 - self.left) / 0.066)
        kept = [re.sub(r" (?=[.,]( |\"|$))", "\u00a0", line) for line in self.lines]    # no line begins with a stop
        return [part for line in kept for part in textwrap.wrap(line, width, max_lines=most, placeholder=" ...")]


def card(side: str, of: Seen, q: int, texts: list[str], caption_image: np.ndarray, first: dict, drawn: bool) -> Card:
    """Query q of one direction. first: {image: its first caption}; drawn: photos are at hand, else an image is shown by
    its number and its first caption."""
    query, answer, right = int(of.asked[q]), int(of.answers[q]), bool(of.right[q])
    own = int(caption_image[query]) if side == "t2i" else query
    tied = not right and own == (answer if side == "t2i" else caption_image[answer])
    verdict = "right" if right else "a wrong answer scores the same" if tied else "wrong"

    def named(image: int) -> str:
        return f"[image {image}] {first.get(image, '')}"
    if side == "t2i":
        lines, photos = [f"\"{texts[query]}\""], [(answer, "answer")]
        if not right and not tied:
            photos.append((own, "the caption's own"))
        if not drawn:
            lines += [f"{what}: {named(image)}" for image, what in photos[:1]]
    else:
        lines, photos = [f"answer: \"{texts[answer]}\""], [(query, "")]
        if not drawn:
            lines.insert(0, named(query))
        elif not right and query in first:
            lines.append(f"its own: \"{first[query]}\"")
    return Card(f"{percent(of.values[best_name(of.values)][q])} sure, {verdict}", right, photos if drawn else [], lines)


def examples(seen: dict[str, Seen], texts: list[str] | None, caption_image: np.ndarray, photos: Photos | None,
             path: str) -> None:
    """Queries with their first answers and how sure the model is of them: a column for each direction.

    texts: all captions; caption_image (M,): the row of each caption's image; photos: those of all images, or None.
    """
    texts = texts or [f"caption {m}" for m in range(len(caption_image))]
    first = dict(zip(caption_image[::-1].tolist(), texts[::-1]))
    columns = {}
    for side, of in seen.items():
        chosen = pick(of.values[best_name(of.values)], of.right)
        columns[side] = {heading: [card(side, of, q, texts, caption_image, first, photos is not None) for q in queries]
                         for heading, queries in chosen.items()}
    height = max(sum(HEAD + sum(made.height for made in cards) for cards in groups.values())
                 for groups in columns.values())
    with drawing(path, 1, len(seen), (WIDTH * len(seen), height + 0.95)) as (figure, axes):
        for axis, (side, groups) in zip(axes[0], columns.items()):
            axis.set(xlim=(0, WIDTH), ylim=(-height, 0))
            axis.axis("off")
            axis.text(0.1, 0.1, "captions and the first image found" if side == "t2i" else
                      "images and the first caption found", fontsize=12, weight="bold")
            y = 0.0
            for heading, cards in groups.items():
                axis.text(0.1, y - 0.24, heading, fontsize=9, color="dimgrey", weight="bold")
                axis.plot([0.1, WIDTH - 0.2], [y - 0.3, y - 0.3], color="lightgrey", linewidth=0.8)
                y -= HEAD
                for made in cards:
                    draw_card(made, photos, y, axis, side == "t2i")
                    y -= made.height
        figure.text(0.1 / WIDTH / len(seen), 1 - 0.3 / (height + 0.95), "How sure the model says it is of its first "
                    "answer. Right is what the data pair with the query; other answers may fit too.", fontsize=10)
        figure.subplots_adjust(0, 0.1 / (height + 0.95), 1, 1 - 0.85 / (height + 0.95), wspace=0)


def draw_card(made: Card, photos: Photos | None, y: float, axis, framed: bool) -> None:
    """A card with its upper edge at y, in inches, on an axis in inches. framed: the first photo is the answer."""
    color = GOOD if made.right else BAD
    for k, (image, label) in enumerate(made.photos):
        inset = axis.inset_axes([0.1 + PHOTO * k, y - PHOTO + 0.05, PHOTO - 0.12, PHOTO - 0.22],
                                transform=axis.transData)
        show_photo(inset, photos.open(image, THUMBNAIL), color if framed and not k else None, 2.5)
        inset.set(anchor="NW")
        axis.text(0.1 + PHOTO * k, y - 0.11, label, fontsize=7, color="dimgrey")
    y -= 0.3 if made.photos else 0.22
    axis.text(made.left, y, made.said, fontsize=11, weight="bold", color=color)
    axis.text(made.left, y - 0.08, "\n".join(made.wrapped()), fontsize=9, va="top")
