"""Pictures of reliability, risk and coverage, and answers."""
import numpy as np

from confidence.calibration import percent
from confidence.measures import MEASURES, Outcomes, reliability
from evaluation.embeddings import Embeddings
from evaluation.pictures import ACROSS, Cell, PhotoRow, draw_rows, drawing, list_present, mark_first, photo_cell
from evaluation.report import SIDES
from images import Photos
from metrics import risk_coverage

PICTURES = ("confidence", "confidence_examples")
EXAMPLES = {"most confident, right": 4, "most confident, wrong": 3, "around the median": 3, "least confident": 3}
FRAME = {True: "forestgreen", False: "firebrick"}                  # of right and wrong answers


def draw_curves(outcomes: dict[str, Outcomes], results: dict, path: str) -> None:
    """Draw reliability of the best probability, and risk by coverage.
    results: of `measures.judge_confidences`, by direction."""
    with drawing(path, len(outcomes), 2, (14.5, 4.6 * len(outcomes))) as (figure, axes):
        for (left, right), (side, x) in zip(axes, outcomes.items()):
            draw_reliability(x, results[side][x.best], side, left)
            draw_risks(x, side, right)
            for axis in (left, right):
                axis.grid(alpha=0.3)
        figure.subplots_adjust(0.05, 0.14 / len(outcomes), 0.74, 1 - 0.1 / len(outcomes), wspace=0.18, hspace=0.28)


def draw_reliability(outcomes: Outcomes, numbers: dict, side: str, axis) -> None:
    """Draw share of right answers by mean probability, with Clopper-Pearson intervals."""
    from scipy import stats  # takes a second to import

    bins = reliability(outcomes.confidences[outcomes.best], outcomes.right)
    p, share, size = (np.array(bins[key]) for key in ("p", "right", "queries"))
    bounds = np.array([stats.binomtest(round(right * n), n).proportion_ci(method="exact")
                       for right, n in zip(share, size.tolist())]).T                # (2, B)
    top = min(100, 110 * max(bounds.max(), p.max()))        # a model that is never sure fills the picture too
    axis.plot([0, 100], [0, 100], color="grey", linestyle="--", linewidth=1, label="perfectly calibrated")
    axis.errorbar(100 * p, 100 * share, 100 * abs(bounds - share), fmt="o", color="tab:blue", ecolor="lightsteelblue",
                  elinewidth=2, capsize=3,
                  label=f"{len(p)} bins of about {round(size.mean()):,} queries, with 95% intervals")
    axis.set(xlim=(0, top), ylim=(-0.02 * top, top), xlabel="confidence: mean posterior, percent",
             ylabel="right first answers, percent",
             title=f"{SIDES[side]}: ECE {numbers['ece']:.3f} (by chance alone {numbers['ece_floor']:.3f})")
    axis.legend(fontsize=8, loc="lower right")


def draw_risks(outcomes: Outcomes, side: str, axis) -> None:
    """Draw wrong answers by coverage of each measure, in the legend the best first."""
    risks = {name: risk_coverage(-x, outcomes.right) for name, x in outcomes.confidences.items()
             if MEASURES[name].look}
    perfect = risk_coverage(~outcomes.right, outcomes.right)
    for name, risk in sorted(risks.items(), key=lambda item: item[1]["area"]):
        color, style = MEASURES[name].look
        best = name == outcomes.best
        axis.plot(100 * np.array(risk["coverage"]), risk["risk"], color=color, linestyle=style,
                  linewidth=3 if best else 1.1, zorder=3 if best else 2, alpha=1 if best else 0.7,
                  label=f"{risk['area']:.1f}  {MEASURES[name].title}")
    axis.axhline(perfect["area_random"], color="black", linestyle=":", linewidth=1.2,
                 label=f"{perfect['area_random']:.1f}  no knowledge")
    axis.plot(100 * np.array(perfect["coverage"]), perfect["risk"], color="darkgrey", linewidth=2,
              label=f"{perfect['area']:.1f}  perfect order")
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="coverage: share of queries answered, percent",
             ylabel="wrong first answers, percent", title=f"{SIDES[side]}: risk and coverage")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, handlelength=3.2,
                title="mean risk (AURC; lower is better)", title_fontsize=8, alignment="left")


def choose_examples(sure: np.ndarray, right: np.ndarray, usable: np.ndarray | None = None) -> dict[str, list[int]]:
    """Choose queries to show under each heading of EXAMPLES, each once.
    sure (Q,), right (Q,) bool; usable (Q,) bool: those that can be shown (None: all)."""
    order = np.argsort(-sure, kind="stable")
    if usable is not None:
        order = order[usable[order]]
    candidates = (order[right[order]], order[~right[order]], order[max(0, (len(order) - 3) // 2):], order[::-1])
    used, chosen = set(), {}
    for (heading, count), queries in zip(EXAMPLES.items(), candidates):
        chosen[heading] = [q for q in queries.tolist() if q not in used][:count]
        used.update(chosen[heading])
    return chosen


def draw_examples(outcomes: dict[str, Outcomes], e: Embeddings, photos: Photos, path: str) -> None:
    """Draw queries with their first answers and how sure the model is of them."""
    texts, owner = e.texts, e.caption_image

    def cells(side: str, x: Outcomes, q: int) -> list[Cell]:
        query, answer, right, own = x.queries[q], x.answers[q], bool(x.right[q]), x.owner[q]
        tied = not right and own == (answer if side == "t2i" else owner[answer])
        verdict = "right" if right else "a wrong answer scores the same" if tied else "wrong"
        sure = f"{percent(x.confidences[x.best][q])} sure, {verdict}"
        if side == "i2t":
            lines = [f"answer: \"{texts[answer]}\""]
            if not right and not tied:
                lines.append(f"its own: \"{texts[np.argmax(owner == query)]}\"")
            return [photo_cell(photos, query, sure, *lines, frame=FRAME[right])]
        first = photo_cell(photos, answer, sure, f"\"{texts[query]}\"", frame=FRAME[right])
        return [first] if right or tied else [first, photo_cell(photos, own, "the caption's own")]
    rows = []
    for side, x in outcomes.items():
        shown = list_present(photos)[x.answers if side == "t2i" else x.queries]     # photos that are there
        if side == "t2i":                                   # and captions that differ
            order = x.queries[shown][np.argsort(-x.confidences[x.best][shown], kind="stable")]
            shown &= mark_first(texts, order)[x.queries]
        chosen = choose_examples(x.confidences[x.best], x.right, shown)
        rows += [PhotoRow(f"{SIDES[side]}: {heading}", "", [cell for q in queries for cell in cells(side, x, q)])
                 for heading, queries in chosen.items() if queries]
    draw_rows(path, "How sure the model says it is of its first answer. Right is what the data pair with the query; "
              "other answers may fit too.", rows, ACROSS)
