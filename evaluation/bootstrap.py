"""Comparison of models, or of seeds of each, by paired bootstraps over the images of a split.

`compare_groups` takes the results of every run and compares each group of runs with the first one.
The resampling itself is `metrics.paired_bootstrap`.
"""

import os

import numpy as np

import metrics
from evaluation.report import (
    RATINGS,
    comparisons,
    describe_p_values,
    describe_results,
    seed_tables,
    tables,
)


def compare_groups(groups: list[list[str]], runs: dict[str, dict], totals: dict[str, dict]) -> dict:
    """Compare groups of runs with the first group.

    Returns {"runs": `runs`, "groups": {label: {metric: (mean, deviation, number of seeds)}},
    "comparisons": one of `compare_group` for each group but the first}.

    Args:
        groups: paths of the runs of each model, one for each of its seeds.
        runs: {path: its results.json, and "seed": of its training, None where that is unknown}.
        totals: {path: its `Record.totals`}, all over the same images.
    """
    labels = name_groups(groups)
    seeds = {}
    for label, group in zip(labels, groups):
        protocols = [runs[path]["protocols"] for path in group]
        seeds[label] = summarize_seeds([totals[path] for path in group], protocols)

    def seed_of(path: str) -> int:
        return runs[path]["seed"] or 0

    # runs of equal seeds stand at equal positions, so that they can be paired
    ordered = [sorted(group, key=seed_of) for group in groups]
    bootstraps = []
    for label, group in zip(labels[1:], ordered[1:]):
        compared = {"a": labels[0], "b": label}
        compared |= compare_group(ordered[0], group, runs, totals)
        bootstraps.append(compared)
    return {"runs": runs, "groups": seeds, "comparisons": bootstraps}


def compare_group(
    base: list[str], other: list[str], runs: dict[str, dict], totals: dict[str, dict]
) -> dict:
    """Compare the runs of one model with those of the first, both in the order of their seeds.

    Returns {"seeds": their numbers, "pairs": whether runs of equal seeds are compared,
    "metrics": what `metrics.paired_bootstrap` returns}.
    """
    base_seeds = [runs[path]["seed"] for path in base]
    other_seeds = [runs[path]["seed"] for path in other]
    distinct = None not in other_seeds and len(set(other_seeds)) == len(other_seeds)
    pairs = len(base) > 1 and distinct and base_seeds == other_seeds

    base_totals = [totals[path] for path in base]
    other_totals = [totals[path] for path in other]
    shared = set(base_totals[0]).intersection(*base_totals, *other_totals)
    found = metrics.paired_bootstrap(base_totals, other_totals, list_rsums(shared), pairs=pairs)
    return {"seeds": [len(base), len(other)], "pairs": pairs, "metrics": found}


def list_rsums(names) -> dict[str, list[str]]:
    """List {"full rsum": its six recalls, ...} of each protocol that has all six."""
    sums = {}
    for protocol in sorted({name.split()[0] for name in names}):
        terms = []
        for side in ("i2t", "t2i"):
            terms += [f"{protocol} {side} r{k}" for k in metrics.RECALLS]
        if set(terms) <= set(names):
            sums[f"{protocol} rsum"] = terms
    return sums


def summarize_seeds(
    totals: list[dict], protocols: list[dict]
) -> dict[str, tuple[float, float, int]]:
    """Compute {metric: (mean, standard deviation, number of seeds)} of a group.

    totals: of `Record.totals`, per seed; protocols: of results.json, which hold the correlations
    with ratings. Only what all seeds have is summarized; the deviation of one seed is 0.
    """
    values = {}
    for name in totals[0]:
        if all(name in of_seed for of_seed in totals):
            sums = [of_seed[name] for of_seed in totals]
            values[name] = [total.sum() / count.sum() for total, count in sums]

    for name, terms in list_rsums(values).items():
        values[name] = list(np.sum([values[term] for term in terms], 0))

    for kind in RATINGS:
        correlations = [p.get("cxc", {}).get(kind, {}).get("spearman") for p in protocols]
        if None not in correlations:
            values[f"cxc {kind} rho x 100"] = [100 * rho for rho in correlations]

    summary = {}
    for name, of_seeds in values.items():
        deviation = 0.0
        if len(of_seeds) > 1:
            deviation = float(np.std(of_seeds, ddof=1))
        summary[name] = (float(np.mean(of_seeds)), deviation, len(of_seeds))
    return summary


# ---- names of groups


def name_groups(groups: list[list[str]]) -> list[str]:
    """Name each group by `common_name`, or by all its paths where two groups would get one name."""
    labels = [common_name(group) for group in groups]
    if len(set(labels)) < len(labels):
        labels = [",".join(group) for group in groups]
    return labels


def common_name(paths: list[str]) -> str:
    """Shorten runs/A0, runs/A1 to runs/A, or name the first of several folders."""
    paths = [os.path.normpath(path) for path in paths]
    if len(paths) == 1:
        return paths[0]
    shared = os.path.commonprefix(paths).rstrip("_-.")
    folders = {os.path.dirname(path) for path in [shared, *paths]}
    if os.path.basename(shared) and len(folders) == 1:
        return shared
    return paths[0]


# ---- what is printed


def comparison_tables(results: dict) -> list:
    """Build the tables of `compare_groups`.

    Of all runs, of means over seeds where a group has several, and of differences.
    """
    runs = results["runs"]
    groups = results["groups"]
    all_tables = tables(runs)
    if len(runs) > len(groups):
        all_tables += seed_tables(groups)
    all_tables += comparisons(results["comparisons"])
    return all_tables


def describe_comparison(results: dict) -> list[str]:
    """Say what the tables of `comparison_tables` do not show: of each run, then each note once."""
    lines = []
    notes = {}
    for path, of_run in results["runs"].items():
        lines += [f"{path}: {line}" for line in describe_results(of_run)]
        notes |= dict.fromkeys(f"note: {note}" for note in of_run.get("notes", ()))
    return [*lines, *notes, *describe_p_values(results["comparisons"])]
