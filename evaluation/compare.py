"""Comparison of models on one split by paired bootstraps, or of seeds of each."""
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import metrics
from evaluation.embeddings import Embeddings, check_same_items
from evaluation.protocols import assess, read_protocol_inputs
from evaluation.report import RATINGS


def compare(groups: list[str], load: Callable[[str], Embeddings], opt) -> dict:
    """Compare groups with the first, each a path or the seeds of one model, "A0,A1".
    load(path): its embeddings. Returns {"runs": {path: its results}, "groups": {label: {metric: (mean, deviation,
    seeds)}}, "comparisons": [{"a", "b", "seeds", "pairs": whether these are of equal seeds, "metrics": what
    `metrics.paired_bootstrap` returns}]}. Raises InputError on other items."""
    paths = [group.split(",") for group in groups]
    runs, totals, first = {}, {}, None
    for path in [path for group in paths for path in group]:
        e = load(path)
        if first is None:
            e.judged = read_protocol_inputs(e, opt)
            first = replace(e, members=[], matrix=None)
        else:
            e.notes += [note for note in check_same_items(e, first) if note not in e.notes]
            e.ids, e.photos, e.judged = first.ids, first.photos, first.judged
        results, record = assess(e, opt)
        runs[path] = {**results, "seed": e.models[0].options.seed if e.models else None}
        totals[path] = record.totals(first.caption_image, first.n_images)
    labels = [common_name(group) for group in paths]
    labels = labels if len(set(labels)) == len(labels) else groups
    seeds = {label: summarise_seeds([totals[path] for path in group], [runs[path]["protocols"] for path in group])
             for label, group in zip(labels, paths)}
    # runs of equal seeds stand at equal places
    paths = [sorted(group, key=lambda path: runs[path]["seed"] or 0) for group in paths]
    run_seeds = [[runs[path]["seed"] for path in group] for group in paths]
    base, *others = ([totals[path] for path in group] for group in paths)
    comparisons = []
    for label, other, other_seeds in zip(labels[1:], others, run_seeds[1:]):
        known = None not in other_seeds and len(set(other_seeds)) == len(other_seeds)
        pairs = len(base) > 1 and known and run_seeds[0] == other_seeds
        sums = list_rsums(set.intersection(*map(set, [*base, *other])))
        comparisons.append({"a": labels[0], "b": label, "seeds": [len(base), len(other)], "pairs": pairs,
                            "metrics": metrics.paired_bootstrap(base, other, sums, pairs=pairs)})
    return {"runs": runs, "groups": seeds, "comparisons": comparisons}


def list_rsums(names) -> dict[str, list[str]]:
    """List {"full rsum": its six recalls, ...} of each protocol that has all six."""
    sums = {f"{protocol} rsum": [f"{protocol} {side} r{k}" for side in ("i2t", "t2i") for k in metrics.RECALLS]
            for protocol in sorted({name.split()[0] for name in names})}
    return {name: terms for name, terms in sums.items() if set(terms) <= set(names)}


def summarise_seeds(totals: list[dict], protocols: list[dict]) -> dict[str, tuple[float, float, int]]:
    """Compute {metric: (mean, standard deviation, number of seeds)} of a group.
    totals: of `Record.totals`, per seed; protocols: of results.json, which hold the correlations with ratings."""
    values = {name: [t[name][0].sum() / t[name][1].sum() for t in totals] for name in totals[0]
              if all(name in t for t in totals)}
    values |= {name: list(np.sum([values[term] for term in terms], 0)) for name, terms in list_rsums(values).items()}
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
