"""TODO"""
import os
from collections import Counter

import numpy as np

import metrics
from cli import InputError
from evaluation import items
from evaluation.assess import assess, read_judgements, without_nan
from evaluation.protocols import Subject
from evaluation.sources import open_subject


def compare(names: list[str], opt) -> dict:
    """Several subjects, or groups of seeds ("A0,A1,A2"), on the same split: tables side by side and paired bootstraps."""
    groups, runs, first, judged = {}, {}, None, None
    given = [path for group in names for path in group.split(",")]
    count = Counter(map(os.path.realpath, given))
    twice = [path for path in given if not path or count[os.path.realpath(path)] > 1]
    if twice:
        raise InputError(f"--compare names '{twice[0]}' more than once or names nothing between commas; name each run once")
    for group in names:
        for path in group.split(","):
            subject = open_subject(path, opt)
            if first is None:
                first, judged = subject, read_judgements(subject, opt)
            else:
                take_order_of(first, subject)
            results, record, _ = assess(subject, judged, opt)
            runs[path] = results
            groups.setdefault(group, []).append(record.totals(first.caption_image, first.n_images))
    label = {group: common_name(group.split(",")) for group in groups}
    if len(set(label.values())) < len(groups):
        label = {group: group for group in groups}
    seeds = {}
    for group, totals in groups.items():
        names = [name for name in totals[0] if all(name in t for t in totals)]
        values = {name: [t[name][0].sum() / t[name][1].sum() for t in totals] for name in names}
        values.update({name: [sum(values[term][k] for term in terms) for k in range(len(totals))]
                       for name, terms in rsums(names).items()})
        for kind in ("sts", "sis", "sits"):
            rated = [runs[path]["protocols"].get("cxc", {}).get(kind) for path in group.split(",")]
            if all(rated):
                values[f"cxc {kind} rho x 100"] = [100 * r["spearman"] for r in rated]
        seeds[label[group]] = {name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, len(v))
                               for name, v in values.items()}
    base, *others = groups
    found = [{"a": label[base], "b": label[other], "seeds": [len(groups[base]), len(groups[other])],
              "metrics": metrics.paired_bootstrap(groups[base], groups[other], rsums(set.intersection(
                  *(set(run) for run in [*groups[base], *groups[other]]))))} for other in others]
    return without_nan({"runs": runs, "groups": seeds, "comparisons": found})


def take_order_of(first: Subject, subject: Subject) -> None:
    """Put a subject's items in the order of another one's; raises InputError where they are other items."""
    rows = items.order_like(subject.items, first.items)
    if not rows.same:
        subject.take(rows)
    subject.caption_image, subject.items, subject.photos = first.caption_image, first.items, first.photos
    subject.notes += [note for note in rows.notes if note not in subject.notes]


def common_name(paths: list[str]) -> str:
    """runs/A0, runs/A1 -> runs/A: what the last parts of paths in one folder begin with, else the first path."""
    paths = [os.path.normpath(path) for path in paths]
    shared = paths[0] if len(paths) == 1 else os.path.commonprefix(paths).rstrip("_-.")
    same = {os.path.dirname(path) for path in [shared, *paths]}
    return shared if os.path.basename(shared) and len(same) == 1 else paths[0]


def rsums(names) -> dict[str, list[str]]:
    """{"full rsum": its six recalls, ...} for the protocols of which all six are there."""
    found = {}
    for protocol in sorted({name.split()[0] for name in names}):
        terms = [f"{protocol} {side} r{k}" for side in ("i2t", "t2i") for k in metrics.RECALLS]
        if all(term in names for term in terms):
            found[f"{protocol} rsum"] = terms
    return found
