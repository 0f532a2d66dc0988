"""Pictures of reliability, risk and coverage, and answers."""

import numpy as np

from confidence.calibration import percent
from confidence.measures import MEASURES, Outcomes, reliability
from evaluation.embeddings import Embeddings
from evaluation.pictures import (
    ACROSS,
    Cell,
    PhotoRow,
    draw_rows,
    drawing,
    list_present,
    mark_first,
    photo_cell,
)
from evaluation.report import SIDES
from images import Photos
from metrics import risk_coverage

PICTURES = ("confidence", "confidence_examples")
# Heading of each part of the examples, and how many it shows.
EXAMPLES = {
    "most confident, right": 4,
    "most confident, wrong": 3,
    "around the median": 3,
    "least confident": 3,
}
COLOR_OF_ANSWER = {True: "forestgreen", False: "firebrick"}  # frame of right and wrong answers


# ---- curves


def draw_curves(outcomes: dict[str, Outcomes], results: dict, path: str) -> None:
    """Draw reliability of the best probability, and risk by coverage.

    results: of `measures.judge_confidences`, by direction.
    """
    rows = len(outcomes)
    with drawing(path, rows, 2, (14.5, 4.6 * rows)) as (figure, axes):
        for (left, right), (side, x) in zip(axes, outcomes.items()):
            draw_reliability(x, results[side][x.best], side, left)
            draw_risks(x, side, right)
            left.grid(alpha=0.3)
            right.grid(alpha=0.3)
        figure.subplots_adjust(
            left=0.05, bottom=0.14 / rows, right=0.74, top=1 - 0.1 / rows, wspace=0.18, hspace=0.28
        )


def draw_reliability(outcomes: Outcomes, numbers: dict, side: str, axis) -> None:
    """Draw share of right answers by mean probability, with Clopper-Pearson intervals.

    Args:
        outcomes: of one direction.
        numbers: of its best probability, of `measures.judge_probability`.
        side: the direction.
        axis: to draw on.
    """
    from scipy import stats  # takes a second to import

    bins = reliability(outcomes.confidences[outcomes.best], outcomes.right)
    p = np.array(bins["p"])  # (B,)
    share = np.array(bins["right"])
    bounds = []
    for right, n in zip(share, bins["queries"]):
        test = stats.binomtest(round(right * n), n)
        bounds.append(test.proportion_ci(method="exact"))
    bounds = np.array(bounds).T  # (2, B)
    size = round(np.mean(bins["queries"]))

    # a model that is never confident fills the picture too
    top = min(100, 110 * max(bounds.max(), p.max()))
    diagonal = {"color": "grey", "linestyle": "--", "linewidth": 1}
    axis.plot([0, 100], [0, 100], label="perfectly calibrated", **diagonal)
    points = {"fmt": "o", "color": "tab:blue", "ecolor": "lightsteelblue"}
    label = f"{len(p)} bins of about {size:,} queries, with 95% intervals"
    axis.errorbar(
        100 * p,
        100 * share,
        100 * abs(bounds - share),
        elinewidth=2,
        capsize=3,
        label=label,
        **points,
    )
    by_chance = f"by chance alone {numbers['ece_floor']:.3f}"
    axis.set(
        xlim=(0, top),
        ylim=(-0.02 * top, top),
        xlabel="confidence: mean posterior, percent",
        ylabel="right top-1 answers, percent",
        title=f"{SIDES[side]}: ECE {numbers['ece']:.3f} ({by_chance})",
    )
    axis.legend(fontsize=8, loc="lower right")


def draw_risks(outcomes: Outcomes, side: str, axis) -> None:
    """Draw wrong answers by coverage of each measure, in the legend the best first."""
    risks = []
    for name, x in outcomes.confidences.items():
        if MEASURES[name].look:
            risk = risk_coverage(-x, outcomes.right)
            risks.append((risk["area"], len(risks), name, risk))  # equal areas: in their order
    for area, _, name, risk in sorted(risks):
        color, style = MEASURES[name].look
        look = {"linewidth": 1.1, "zorder": 2, "alpha": 0.7}
        if name == outcomes.best:
            look = {"linewidth": 3, "zorder": 3, "alpha": 1}
        label = f"{area:.1f}  {MEASURES[name].title}"
        coverage = 100 * np.array(risk["coverage"])
        axis.plot(coverage, risk["risk"], color=color, linestyle=style, label=label, **look)

    perfect = risk_coverage(~outcomes.right, outcomes.right)
    dotted = {"color": "black", "linestyle": ":", "linewidth": 1.2}
    label = f"{perfect['area_random']:.1f}  no knowledge"
    axis.axhline(perfect["area_random"], label=label, **dotted)
    label = f"{perfect['area']:.1f}  perfect order"
    coverage = 100 * np.array(perfect["coverage"])
    axis.plot(coverage, perfect["risk"], color="darkgrey", linewidth=2, label=label)

    axis.set(
        xlim=(0, 100),
        ylim=(0, 100),
        xlabel="coverage: share of queries answered, percent",
        ylabel="wrong top-1 answers, percent",
        title=f"{SIDES[side]}: risk and coverage",
    )
    axis.legend(
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        borderaxespad=0,
        handlelength=3.2,
        title="mean risk (AURC; lower is better)",
        title_fontsize=8,
        alignment="left",
    )


# ---- examples


def choose_examples(
    confidence: np.ndarray, right: np.ndarray, usable: np.ndarray | None = None
) -> dict[str, list[int]]:
    """Choose queries to show under each heading of EXAMPLES, each once.

    confidence (Q,), right (Q,) bool; usable (Q,) bool: those that can be shown (None: all).
    """
    order = np.argsort(-confidence, kind="stable")
    if usable is not None:
        order = order[usable[order]]
    middle = max(0, (len(order) - 3) // 2)
    candidates = (order[right[order]], order[~right[order]], order[middle:], order[::-1])

    used = set()
    chosen = {}
    for (heading, count), queries in zip(EXAMPLES.items(), candidates):
        unused = [q for q in queries.tolist() if q not in used]
        chosen[heading] = unused[:count]
        used.update(chosen[heading])
    return chosen


def draw_examples(outcomes: dict[str, Outcomes], e: Embeddings, photos: Photos, path: str) -> None:
    """Draw queries with their top-1 answers and how sure the model is of them."""
    rows = []
    for side, x in outcomes.items():
        confidence = x.confidences[x.best]
        photo = x.queries
        if side == "t2i":
            photo = x.answers
        shown = list_present(photos)[photo]  # photos that are there
        if side == "t2i":  # and captions that differ
            order = x.queries[shown][np.argsort(-confidence[shown], kind="stable")]
            shown &= mark_first(e.texts, order)[x.queries]

        for heading, queries in choose_examples(confidence, x.right, shown).items():
            cells = []
            for q in queries:
                if side == "t2i":
                    cells += cells_of_caption(x, q, e, photos)
                else:
                    cells.append(cell_of_image(x, q, e, photos))
            if cells:
                rows.append(PhotoRow(f"{SIDES[side]}: {heading}", "", cells))
    title = (
        "How sure the model says it is of its top-1 answer. Right is what the data pair with the "
        "query; other answers may fit too."
    )
    draw_rows(path, title, rows, ACROSS)


def cells_of_caption(x: Outcomes, q: int, e: Embeddings, photos: Photos) -> list[Cell]:
    """Make the cells of caption q as a query: the answer, and the matched photo if not that."""
    caption = x.queries[q]
    answer = x.answers[q]
    own = x.owner[q]
    right = bool(x.right[q])
    first = photo_cell(
        photos,
        answer,
        describe_answer(x, q, tied=own == answer),
        f'"{e.texts[caption]}"',
        frame=COLOR_OF_ANSWER[right],
    )
    if right or own == answer:
        return [first]
    return [first, photo_cell(photos, own, "the matched image")]


def cell_of_image(x: Outcomes, q: int, e: Embeddings, photos: Photos) -> Cell:
    """Make the cell of image q as a query: with the answer, and a matched caption."""
    image = x.queries[q]
    answer = x.answers[q]
    right = bool(x.right[q])
    tied = x.owner[q] == e.caption_image[answer]
    lines = [f'answer: "{e.texts[answer]}"']
    if not right and not tied:
        first_of_image = np.argmax(e.caption_image == image)
        lines.append(f'matched caption: "{e.texts[first_of_image]}"')
    verdict = describe_answer(x, q, tied)
    return photo_cell(photos, image, verdict, *lines, frame=COLOR_OF_ANSWER[right])


def describe_answer(x: Outcomes, q: int, tied: bool) -> str:
    """Say how sure the model is of the answer to query q, and whether it is right.

    tied: an answer that is not right is of the query's image, so a wrong one scores the same.
    """
    verdict = "wrong"
    if x.right[q]:
        verdict = "right"
    elif tied:
        verdict = "a wrong answer scores the same"
    return f"{percent(x.confidences[x.best][q])} sure, {verdict}"
