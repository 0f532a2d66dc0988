"""Pictures: reliability, risk and coverage, queries with their first answers, and numbers of photos that fit."""
import numpy as np

from confidence.calibration import percent
from confidence.measures import MEASURES, Outcomes
from confidence.reliability import reliability
from data import Photos
from evaluation.pictures import ACROSS, Cell, Row, draw_rows, drawing, image_drawer, wrapped
from evaluation.report import SIDES
from metrics import risk_coverage

PICTURES = ("confidence", "confidence_examples")
NUMBERS = "people"                    # the picture of `fitting`
LABELS = {"posterior_grouped": "posterior, summed over its image's captions"}
SHOWN = {"the surest of the right": 4, "the surest of the wrong": 3, "around the median": 3,
         "the least sure": 3}
FRAME = {True: "forestgreen", False: "firebrick"}                  # of right and wrong answers


# ---- confidence

def diagrams(results: dict, seen: dict[str, Outcomes], path: str) -> None:
    """A row for each direction: the reliability of the probability that users are shown, and risk
    by coverage of all measures. results: what `measures.judge` said, by direction."""
    with drawing(path, len(seen), 2, (14.5, 4.6 * len(seen))) as (figure, axes):
        for (left, right), (side, of) in zip(axes, seen.items()):
            draw_reliability(of, results[side], side, left)
            draw_risks(of, side, right)
            for axis in (left, right):
                axis.grid(alpha=0.3)
        figure.subplots_adjust(0.05, 0.14 / len(seen), 0.74, 1 - 0.1 / len(seen), wspace=0.18,
                               hspace=0.28)


def draw_reliability(of: Outcomes, results: dict, side: str, axis) -> None:
    """The diagram of one direction. results: what `measures.judge` said of it."""
    from scipy import stats  # takes a second to import

    best = of.best
    numbers, bins = results[best], reliability(of.confidences[best], of.right)
    p, share, size = (np.array(bins[key]) for key in ("p", "right", "queries"))
    bounds = np.array([stats.binomtest(round(right * n), n).proportion_ci(method="exact")
                       for right, n in zip(share, size.tolist())]).T                       # (2, B)
    # a model that is never sure fills the picture too
    top = min(100, 110 * max(bounds.max(), p.max()))
    axis.plot([0, 100], [0, 100], color="grey", linestyle="--", linewidth=1,
              label="as sure as right")
    axis.errorbar(100 * p, 100 * share, 100 * abs(bounds - share), fmt="o", color="tab:blue",
                  ecolor="lightsteelblue", elinewidth=2, capsize=3,
                  label=f"{len(p)} bins of about {round(size.mean()):,} queries, "
                  "with 95% intervals")
    axis.set(xlim=(0, top), ylim=(-0.02 * top, top), xlabel="how sure the model says it is: mean "
             "posterior, percent", ylabel="right first answers, percent",
             title=f"{SIDES[side]}: ECE {numbers['ece']:.3f} (by chance alone {numbers['ece_floor']:.3f})")
    axis.legend(fontsize=8, loc="lower right")


def draw_risks(of: Outcomes, side: str, axis) -> None:
    """The curves of one direction, the legend beside them from the best measure to the worst."""
    risks = {name: risk_coverage(-value, of.right) for name, value in of.confidences.items()}
    perfect, best = risk_coverage(~of.right, of.right), of.best
    for name, risk in sorted(risks.items(), key=lambda item: item[1]["area"]):
        color, style = MEASURES[name].look
        if name == "posterior" != best:
            color, style = "navy", (0, (1, 1))
        axis.plot(100 * np.array(risk["coverage"]), risk["risk"], color=color, linestyle=style,
                  label=f"{risk['area']:.1f}  {LABELS.get(name) or MEASURES[name].title}",
                  **({"linewidth": 3, "zorder": 3} if name == best
                     else {"linewidth": 1.1, "zorder": 2, "alpha": 0.7}))
    axis.axhline(perfect["area_random"], color="black", linestyle=":", linewidth=1.2,
                 label=f"{perfect['area_random']:.1f}  no knowledge")
    axis.plot(100 * np.array(perfect["coverage"]), perfect["risk"], color="darkgrey", linewidth=2,
              label=f"{perfect['area']:.1f}  perfect order")
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="coverage, percent: only the surest are answered",
             ylabel="wrong first answers, percent", title=f"{SIDES[side]}: risk and coverage")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0,
                handlelength=3.2, title="mean risk (AURC; lower is better)", title_fontsize=8,
                alignment="left")


def pick(sure: np.ndarray, right: np.ndarray, counts: dict[str, int],
         owner) -> dict[str, list[int]]:
    """Which of Q queries are shown, at most so many under each heading (the keys of SHOWN, or some
    of them) and one of each owner: sure (Q,), right (Q,) bool, owner (Q,)."""
    order = np.argsort(-sure, kind="stable")
    parts = dict(zip(SHOWN, (order[right[order]], order[~right[order]],
                             order[max(0, (len(order) - 3) // 2):], order[::-1])))
    taken, chosen = set(), {}
    for heading, count in counts.items():
        for q in parts[heading].tolist():
            if len(chosen.get(heading, ())) < count and owner[q] not in taken:
                chosen.setdefault(heading, []).append(q)
                taken.add(owner[q])
    return chosen


def examples(seen: dict[str, Outcomes], texts: list[str] | None, caption_image: np.ndarray,
             photos: Photos | None, path: str) -> None:
    """Queries with their first answers and how sure the model is of them.

    texts: all captions; caption_image (M,): the row of each caption's image; photos: those of all
    images, or None.
    """
    texts, image = image_drawer(texts, photos, caption_image)

    def cells(side: str, of: Outcomes, q: int, p: float) -> list[Cell]:
        query, answer, right, own = of.queries[q], of.answers[q], bool(of.right[q]), of.owner[q]
        tied = not right and own == (answer if side == "t2i" else caption_image[answer])
        verdict = "right" if right else "a wrong answer scores the same" if tied else "wrong"
        sure = f"{percent(p)} sure, {verdict}"
        if side == "i2t":
            lines = [f"answer: \"{texts[answer]}\""]
            if not right and not tied:
                lines.append(f"its own: \"{texts[np.argmax(caption_image == query)]}\"")
            return [image(query, sure, *lines, frame=FRAME[right])]
        first = image(answer, sure, f"\"{texts[query]}\"", frame=FRAME[right])
        return [first] if right or tied else [first, image(own, "the caption's own")]
    rows = []
    for side, of in seen.items():
        p = of.confidences[of.best]
        rows += [Row(f"{SIDES[side]}: {heading}", "",
                     [cell for q in queries for cell in cells(side, of, q, p[q])])
                 for heading, queries in pick(p, of.right, SHOWN, range(len(p))).items()]
    draw_rows(path, "How sure the model says it is of its first answer. Right is what the data "
              "pair with the query; other answers may fit too.", rows, ACROSS)


# ---- how many fit

def fitting(expected: np.ndarray, people: np.ndarray, texts: list[str] | None, path: str) -> None:
    """Ten captions from the fewest photos that are expected to fit to the most, at equal steps of
    their order, and how many fit by people.

    expected, people (M,): NaN where nobody judged; texts: all captions.
    """
    order = np.argsort(expected, kind="stable")[:np.isfinite(expected).sum()]
    shown = order[np.linspace(0, len(order) - 1, min(10, len(order))).round().astype(int)]
    with drawing(path, 1, 1, (11, 0.6 + 0.46 * len(shown)), tight=True) as (_, axes):
        axis, places = axes[0][0], np.arange(len(shown))[::-1]
        axis.hlines(places, expected[shown], people[shown], color="lightgrey", linewidth=4, zorder=1)
        for value, name, look in ((expected, "expected, by votes on other captions", "o"),
                                  (people, "by people", "D")):
            axis.scatter(value[shown], places, marker=look, label=name, zorder=2)
        axis.set_yticks(places, [wrapped(texts[k] if texts else f"caption {k}", 50, 2)
                                 for k in shown], fontsize=8)
        axis.set(xlim=(0, None), xlabel="how many photos fit",
                 title="Captions at equal steps from the fewest expected to the most")
        axis.grid(axis="x", alpha=0.3)
        axis.legend(fontsize=8, loc="upper right")
