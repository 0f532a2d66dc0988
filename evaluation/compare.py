"""Comparison of several subjects on one split, or of several seeds of each: results side by side,
paired bootstraps."""
import os
from collections import Counter
from collections.abc import Callable

import numpy as np

import metrics
from cli import InputError
from evaluation import subjects
from evaluation.assess import Asked, assess, read_judgements, without_nan
from evaluation.subjects import Subject


def compare(names: list[str], opened: Callable[[str], Subject], asked: Asked) -> dict:
    """Compares what `names` names, a path each, or the seeds of one model ("A0,A1,A2"); the first
    is the base of all others.

    opened(path): opens one. Returns {"runs": {path: its results}, "groups": {label: {metric: (mean,
    deviation, seeds)}}, "comparisons": [{"a", "b", "seeds", "pairs": whether these are of equal
    seeds, "metrics": what `metrics.paired_bootstrap` returns}]}. Raises InputError on paths that stand
    there twice, and on subjects of other items.
    """
    first, judged = None, None

    def assessed(path: str) -> tuple[dict, dict]:
        nonlocal first, judged
        subject = opened(path)
        if first is None:
            first, judged = subject, read_judgements(subject, asked)
        else:
            take_order_of(first, subject)
        results, record, _ = assess(subject, judged, asked)
        results["seed"] = subject.seed
        return results, record.totals(first.caption_image, first.n_images)
    runs, totals, comparisons = side_by_side(names, assessed)
    seeds = {label: over_seeds(of, [runs[path]["protocols"] for path in group.split(",")])
             for group, (label, of) in zip(names, totals.items())}
    return without_nan({"runs": runs, "groups": seeds, "comparisons": comparisons})


def side_by_side(
    names: list[str],
    assessed: Callable[[str], tuple[dict, dict]],
    sums: Callable | None = None,
    **about,
) -> tuple[dict[str, dict], dict[str, list[dict]], list[dict]]:
    """({path: its results}, {label of a group: totals of each seed}, the comparisons, with what is
    told `about` each).

    assessed(path): results with the run's "seed", and {metric: (total (N,), count (N,))} over images
    as `metrics.paired_bootstrap` takes it; sums(metrics): {name of a sum: its metrics}. Runs of
    equal seeds are pairs where both groups have the same several seeds, in any order. Raises
    InputError on paths that stand there twice.
    """
    groups, runs, totals = {group: group.split(",") for group in names}, {}, {}
    refuse_repeats([path for paths in groups.values() for path in paths])
    for group, paths in groups.items():
        for path in paths:
            runs[path], of = assessed(path)
            totals.setdefault(group, []).append(of)
    label = {group: common_name(paths) for group, paths in groups.items()}
    if len(set(label.values())) < len(groups):
        label = {group: group for group in groups}
    base, *others = groups
    comparisons = []
    for other in others:
        shared = set.intersection(*(set(run) for run in [*totals[base], *totals[other]]))
        (first, a), (second, b) = (
            by_seed([runs[path]["seed"] for path in groups[group]], totals[group])
            for group in (base, other))
        pairs = len(a) > 1 and None not in first and first == second
        comparisons.append(
            {
                "a": label[base],
                "b": label[other],
                **about,
                "seeds": [len(a), len(b)],
                "pairs": pairs,
                "metrics": metrics.paired_bootstrap(a, b, (sums or rsums)(shared), pairs=pairs),
            }
        )
    return runs, {label[group]: of for group, of in totals.items()}, comparisons


def by_seed(seeds: list[int | None], totals: list[dict]) -> tuple[list, list[dict]]:
    """Runs by growing seed; as they are, and [None], where a seed is unknown or stands there twice."""
    if None in seeds or len(set(seeds)) < len(seeds):
        return [None], totals
    order = sorted(range(len(seeds)), key=seeds.__getitem__)
    return [seeds[k] for k in order], [totals[k] for k in order]


def refuse_repeats(paths: list[str]) -> None:
    """Raises InputError where a path is empty or named twice."""
    count = Counter(map(os.path.realpath, paths))
    twice = [path for path in paths if not path or count[os.path.realpath(path)] > 1]
    if twice:
        raise InputError(f"--compare names '{twice[0]}' more than once or names nothing between "
                         "commas; name each run once")


def over_seeds(totals: list[dict], protocols: list[dict]) -> dict[str, tuple[float, float, int]]:
    """{metric: (mean, standard deviation, number of seeds)} of a group. totals: what
    `Record.totals` returns, per seed; protocols: the "protocols" of the results of each seed, which
    hold the rank correlations with ratings."""
    names = [name for name in totals[0] if all(name in t for t in totals)]
    values = {name: [t[name][0].sum() / t[name][1].sum() for t in totals] for name in names}
    values.update({name: [sum(values[term][k] for term in terms) for k in range(len(totals))]
                   for name, terms in rsums(names).items()})
    for kind in ("sts", "sis", "sits"):
        rated = [p.get("cxc", {}).get(kind) for p in protocols]
        if all(rated):
            values[f"cxc {kind} rho x 100"] = [100 * r["spearman"] for r in rated]
    return {name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, len(v))
            for name, v in values.items()}


def take_order_of(first: Subject, subject: Subject) -> None:
    """Put a subject's items in the order of another's. Raises InputError where they are other
    items."""
    rows = subjects.order_like(subject.items, first.items)
    if not rows.same:
        subject.take(rows)
    subject.caption_image, subject.items, subject.photos = first.caption_image, first.items, first.photos
    subject.notes += [note for note in rows.notes if note not in subject.notes]


def common_name(paths: list[str]) -> str:
    """What the last parts of paths in one folder begin with, else the first path: runs/A0, runs/A1
    -> runs/A."""
    paths = [os.path.normpath(path) for path in paths]
    shared = paths[0] if len(paths) == 1 else os.path.commonprefix(paths).rstrip("_-.")
    same = {os.path.dirname(path) for path in [shared, *paths]}
    return shared if os.path.basename(shared) and len(same) == 1 else paths[0]


def rsums(names) -> dict[str, list[str]]:
    """{"full rsum": its six recalls, ...} for each protocol that has all six."""
    sums = {}
    for protocol in sorted({name.split()[0] for name in names}):
        terms = [f"{protocol} {side} r{k}" for side in ("i2t", "t2i") for k in metrics.RECALLS]
        if all(term in names for term in terms):
            sums[f"{protocol} rsum"] = terms
    return sums
