"""Comparison of models on one split by paired bootstraps, or of seeds of each."""
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import metrics
from cli import check
from evaluation.embeddings import Embeddings, check_same_items
from evaluation.protocols import assess, read_protocol_inputs
from evaluation.report import RATINGS
from files import repeated


def compare(groups: list[str], load: Callable[[str], Embeddings], opt) -> dict:
    """Compare groups with the first, each a path or the seeds of one model, "A0,A1".

    load(path): its embeddings. Returns {"runs": {path: its results}, "groups": {label: {metric: (mean, deviation,
    seeds)}}, "comparisons": [{"a", "b", "seeds", "pairs": whether these are of equal seeds, "metrics": what
    `metrics.paired_bootstrap` returns}]}. Raises InputError on other items.
    """
    first = None

    def assess_path(path: str) -> tuple[dict, dict]:
        nonlocal first
        e = load(path)
        if first is None:
            e.judged = read_protocol_inputs(e, opt)
            first = replace(e, members=[], matrix=None)
        else:
            e.notes += [note for note in check_same_items(e, first) if note not in e.notes]
            e.ids, e.photos, e.judged = first.ids, first.photos, first.judged
        results, record = assess(e, opt)
        seed = e.models[0].options.seed if e.models else None
        return {**results, "seed": seed}, record.totals(first.caption_image, first.n_images)
    runs, totals, comparisons = side_by_side(groups, assess_path)
    seeds = {label: over_seeds(runs_of, [runs[path]["protocols"] for path in group.split(",")])
             for group, (label, runs_of) in zip(groups, totals.items())}
    return {"runs": runs, "groups": seeds, "comparisons": comparisons}


def rsums(names) -> dict[str, list[str]]:
    """List {"full rsum": its six recalls, ...} of each protocol that has all six."""
    sums = {f"{protocol} rsum": [f"{protocol} {side} r{k}" for side in ("i2t", "t2i") for k in metrics.RECALLS]
            for protocol in sorted({name.split()[0] for name in names})}
    return {name: terms for name, terms in sums.items() if set(terms) <= set(names)}


def side_by_side(groups: list[str], assess_path: Callable[[str], tuple[dict, dict]], sums: Callable = rsums,
                 **about) -> tuple[dict[str, dict], dict[str, list[dict]], list[dict]]:
    """Assess every path, and compare each group with the first.

    assess_path(path): results with the run's "seed", and {metric: (total (N,), count (N,))} over images as
    `metrics.paired_bootstrap` takes it; sums(metrics): {name of a sum: its metrics}. Returns {path: its results},
    {label of a group: totals of each seed}, and the comparisons, each with `about`. Runs of equal seeds are pairs where
    both groups have the same several seeds, in any order. Raises InputError on paths that stand there twice.
    """
    paths = [group.split(",") for group in groups]
    twice = repeated(os.path.realpath(path) for group in paths for path in group)
    check(twice is None, f"--compare names {twice} more than once; name each run once")
    assessed = {path: assess_path(path) for group in paths for path in group}
    labels = [common_name(group) for group in paths]
    labels = labels if len(set(labels)) == len(labels) else groups
    totals = {label: [assessed[path][1] for path in group] for label, group in zip(labels, paths)}
    (seeds, base), *others = (sort_by_seed([assessed[path][0]["seed"] for path in group], totals[label])
                              for label, group in zip(labels, paths))
    comparisons = []
    for label, (other_seeds, other) in zip(labels[1:], others):
        shared = set.intersection(*map(set, [*base, *other]))
        pairs = len(base) > 1 and None not in seeds and seeds == other_seeds
        comparisons.append({
            "a": labels[0], "b": label, **about, "seeds": [len(base), len(other)], "pairs": pairs,
            "metrics": metrics.paired_bootstrap(base, other, sums(shared), pairs=pairs)})
    return {path: results for path, (results, _) in assessed.items()}, totals, comparisons


def sort_by_seed(seeds: list[int | None], totals: list[dict]) -> tuple[list, list[dict]]:
    """Runs by growing seed; as they are, and [None], where seeds are unknown or equal."""
    if None in seeds or len(set(seeds)) < len(seeds):
        return [None], totals
    order = np.argsort(seeds)
    return [seeds[k] for k in order], [totals[k] for k in order]


def over_seeds(totals: list[dict], protocols: list[dict]) -> dict[str, tuple[float, float, int]]:
    """Compute {metric: (mean, standard deviation, number of seeds)} of a group.

    totals: what `Record.totals` returns, per seed; protocols: of the results of each seed, which hold the rank
    correlations with ratings.
    """
    values = {name: [t[name][0].sum() / t[name][1].sum() for t in totals] for name in totals[0]
              if all(name in t for t in totals)}
    values |= {name: list(np.sum([values[term] for term in terms], 0)) for name, terms in rsums(values).items()}
    for kind in RATINGS:
        correlations = [p.get("cxc", {}).get(kind, {}).get("spearman") for p in protocols]
        if None not in correlations:
            values[f"cxc {kind} rho x 100"] = [100 * rho for rho in correlations]
    return {name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, len(v))
            for name, v in values.items()}


def common_name(paths: list[str]) -> str:
    """Shorten runs/A0, runs/A1 to runs/A, or name the first of several folders."""
    paths = [os.path.normpath(path) for path in paths]
    shared = paths[0] if len(paths) == 1 else os.path.commonprefix(paths).rstrip("_-.")
    same = {os.path.dirname(path) for path in [shared, *paths]}
    return shared if os.path.basename(shared) and len(same) == 1 else paths[0]
