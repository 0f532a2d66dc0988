"""Does a model that is unsure of a query have reason to be? Its confidences against how many items
truly match.

The truth comes from --positives (the demo writes its own: a caption is true of an image if all that
it says holds there), from ECCV Caption's matches, from Crisscrossed Captions' ratings of other
pairs, or, weakly, from how far an image's own captions agree. Another question is answered beside
it: is the model unsure because it has seen no such thing? With --bank, how far the query lies from
the bank's items of its own kind.
"""
import itertools

import numpy as np

from evaluation.calibration import SIDES
from evaluation.confidence import Seen, table, title
from evaluation.subjects import Subject
from metrics import spearman

SHOWN = ("posterior", "posterior_grouped", "overlap", "entropy", "entropy_each", "max", "margin",
         "std", "log_det_query", "trace_query", "stacked")
SOURCES = {"positives": "true matches of --positives", "eccv": "matches of ECCV Caption",
           "cxc": "mean rating of other items in Crisscrossed Captions",
           "fitting": "how many things of the photo the words fit",
           "disagreement": "how little an image's captions agree in words",
           "unfamiliar": "how unfamiliar it is: its distance to the bank"}
COLUMNS = {"rho": "rho", "rho_given_words": "given words", "rho_within_levels": "in levels"}


def partial_spearman(x, y, given) -> float:
    """Spearman's correlation of x (K,) and y (K,) at equal `given` (K,): the partial correlation of
    their ranks.

    NaN where one of the three is constant, or where `given` determines x or y.
    """
    xy, xz, yz = spearman(x, y), spearman(x, given), spearman(y, given)
    left = (1 - xz ** 2) * (1 - yz ** 2)
    return float((xy - xz * yz) / np.sqrt(left)) if left > 1e-12 else float("nan")


def truths(subject: Subject, judged: dict) -> dict[str, dict[str, np.ndarray]]:
    """How ambiguous each query is by the sources at hand: {source: {"t2i" | "i2t": (Q,)}}, NaN
    where it is unknown."""
    n, owner, sources = subject.n_images, subject.caption_image, {}
    sizes = {"i2t": n, "t2i": len(owner)}
    for name in ("positives", "eccv"):
        if name in judged:
            sources[name] = {side: summed(getattr(of, "pairs", of).query, None, sizes[side])
                             for side, of in judged[name].items()}
    if "cxc" in judged:
        rated = judged["cxc"].ratings["sits"]
        other = owner[rated.first] != rated.second
        sources["cxc"] = {
            side: summed(query[other], rated.score[other], sizes[side])
            / np.bincount(query[other], minlength=sizes[side])
            for side, query in (("t2i", rated.first), ("i2t", rated.second))}
    texts = subject.items and subject.items.captions
    if texts:
        sources["disagreement"] = {"i2t": disagreement(texts, owner, n)}
    if subject.bank:
        sources["unfamiliar"] = {side: far.numpy() for side, far in subject.bank.far.items()}
    return sources


def summed(query: np.ndarray, value: np.ndarray | None, queries: int) -> np.ndarray:
    """The sum (Q,) of the values (K,) that each query (K,) has, or how many without values; NaN
    where it has none."""
    count = np.bincount(query, minlength=queries)
    return np.where(count > 0, np.bincount(query, value, minlength=queries), np.nan)


def word_counts(texts: list[str] | None) -> np.ndarray | None:
    """How many words each text has (M,)."""
    return texts and np.array([len(text.split()) for text in texts])


def disagreement(captions: list[str], caption_image: np.ndarray, n: int) -> np.ndarray:
    """1 - the mean Jaccard index of the words of two captions of an image (N,), NaN where it has
    fewer than two."""
    words = [set(text.lower().split()) for text in captions]
    result = np.full(n, np.nan)
    for image in range(n):
        own = [words[m] for m in np.flatnonzero(caption_image == image)]
        shares = [len(a & b) / max(1, len(a | b)) for a, b in itertools.combinations(own, 2)]
        if shares:
            result[image] = 1 - np.mean(shares)
    return result


def report(subject: Subject, judged: dict, seen: dict[str, Seen]) -> dict[str, dict]:
    """{source: {"captions" | "images": {measure: {"rho", "rho_given_words",
    "rho_within_levels"}}}}.

    seen: the answers of each direction, as positions in the subject. rho is Spearman's correlation
    of uncertainty (minus the confidence) with the truth: 1 where the model is the less sure the
    more items match. For captions also at an equal number of words, and, where --positives names
    levels of detail, as the mean over levels.
    """
    words, results = word_counts(subject.items and subject.items.captions), {}
    for source, sides in truths(subject, judged).items():
        levels = judged["positives"].levels if source == "positives" else None
        for side, truth in sides.items():
            of = seen[side]
            known = ~np.isnan(truth[of.asked])
            if known.sum() < 3:
                continue
            queries = of.asked[known]
            given = [None if x is None or side == "i2t" else x[queries] for x in (words, levels)]
            results.setdefault(source, {})[SIDES[side][0]] = {
                name: correlations(-value[known], truth[queries], *given)
                for name, value in of.values.items()}
    return results


def correlations(unsure: np.ndarray, truth: np.ndarray, words, levels=None) -> dict[str, float]:
    """The numbers of `report` for one measure; all arrays (K,), or None where they are not
    known."""
    numbers = {"rho": spearman(unsure, truth)}
    if words is not None:
        numbers["rho_given_words"] = partial_spearman(unsure, truth, words)
    if levels is not None:
        within = [spearman(unsure[levels == level], truth[levels == level])
                  for level in np.unique(levels)]
        within = [rho for rho in within if not np.isnan(rho)]  # a level where all have one match
        numbers["rho_within_levels"] = float(np.mean(within)) if within else float("nan")
    return numbers


def tables(results: dict) -> list:
    """Tables of `report`, of the measures in SHOWN."""
    tables = []
    for source, sides in results.items():
        for side, of in sides.items():
            columns = {key: head for key, head in COLUMNS.items()
                       if any(key in numbers for numbers in of.values())}
            tables.append(table(
                f"{side} as queries: Spearman's rho of uncertainty and {SOURCES[source]}", columns,
                {title(name, side): of[name] for name in of if name in SHOWN}))
    return tables
