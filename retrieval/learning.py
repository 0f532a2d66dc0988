"""What one person said of the answers of an index, and the probabilities that are fitted to it.

    INDEX/answers.jsonl     a line of JSON each time the page was told something
        {"query": "a dog", "meant": "2024/rex.jpg"}                           "this one"
        {"query": "a dog", "fit": ["2024/rex.jpg"], "shown": [...]}           "these fit"; [] if none
        {"query": "a dog", "withdrawn": true}                                 undone
    INDEX/learned.json      what `search.py calibrate` fitted to them

The last line of each kind counts. Nothing else of the index changes, so `calibrate --undo`, which
deletes learned.json, brings back what was said before.
"""
import json
import os
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError, check, reason
from evaluation.posterior import temperature
from evaluation.promises import place
from evaluation.volume import logistic
from files.reading import FAULTS, read_json, read_lines
from files.writing import remove, save_json
from retrieval.trust import Trust, counted, from_json

ANSWERS, LEARNED = "answers.jsonl", "learned.json"
FORMAT = 1                            # of learned.json
NEEDED = 30                           # questions that a fit needs
FEW = 5                               # questions of which none fits, or some, that a limit needs
ALPHA = 0.1                           # sets miss the photo in this share, where no other was asked
AROUND = np.exp(np.linspace(-3, 3, 241))     # temperatures that are compared, over the one before


class Said(NamedTuple):
    """What was said of the answers to a query."""
    query: str
    meant: str | None = None                      # the photo that was meant
    shown: tuple[str, ...] = ()                   # photos that were judged
    fit: frozenset[str] = frozenset()             # and those of them that fit


def keep(folder: str, line: dict) -> int:
    """Write a line of ANSWERS. Returns how many questions have been answered. Raises InputError
    where the folder takes no line."""
    try:
        with open(os.path.join(folder, ANSWERS), "a", encoding="utf-8") as f:
            f.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(f"the answer cannot be kept in {folder} ({reason(error)}); "
                         "make the folder writable") from error
    return len(answered(folder))


def answered(folder: str) -> list[Said]:
    """What stands in ANSWERS. Raises InputError on a line that `keep` did not write."""
    path, found = os.path.join(folder, ANSWERS), {}
    for number, text in enumerate(read_lines(path) if os.path.isfile(path) else [], 1):
        try:
            line = json.loads(text)
            query = line["query"]
            said = found.pop(query, Said(query))
            if "meant" in line:
                said = said._replace(meant=line["meant"] + "")
            elif "shown" in line:
                shown, fit = tuple(line["shown"]), frozenset(line["fit"])
                if not all(isinstance(name, str) for name in shown) or not fit <= {*shown}:
                    raise ValueError("fit names photos that are not shown")
                said = said._replace(shown=shown, fit=fit)
            elif line["withdrawn"]:
                continue
            found[query] = said
        except FAULTS as error:
            raise InputError(f"{path} line {number} is no answer ({reason(error)}); "
                             "delete the line") from error
    return list(found.values())


def of_index(manifest: dict) -> dict:
    """What LEARNED was fitted to: other scores need another fit."""
    bank = manifest["bank"]
    return {"weights": manifest["weights"], "similarity": manifest["similarity"],
            "bank": bank and [bank["split"], bank["beta"]]}


def learned(folder: str, manifest: dict) -> Trust | None:
    """What was learned for the index in a folder; None where nothing was, or for another model.
    Raises InputError where the file is damaged."""
    path = os.path.join(folder, LEARNED)
    if not os.path.isfile(path):
        return None
    fix = f"search.py calibrate {folder} --undo deletes it"
    stored = read_json(path, fix)
    try:
        if stored["learned"] != FORMAT:
            raise ValueError(f"its format is {stored['learned']!r}")
        return from_json(stored["trust"]) if stored["of"] == of_index(manifest) else None
    except FAULTS as error:
        raise InputError(f"{path} is nothing that was learned ({reason(error)}); {fix}") from error


def forget(folder: str) -> None:
    """Delete what was learned. Raises InputError where nothing was."""
    path = os.path.join(folder, LEARNED)
    check(os.path.isfile(path), f"{folder} has learned nothing, so there is nothing to undo")
    remove(path)


# ---- fits, each judged on questions that it did not see

class Fit(NamedTuple):
    """A figure before and after, by leave-one-out, and what is kept where it became better."""
    title: str
    before: float
    after: float
    better: bool
    trust: Trust


def fit_meant(trust: Trust, scores: torch.Tensor, meant: torch.Tensor) -> Fit:
    """The temperature by photos that were meant: scores (Q, N), meant (Q,) columns. Left out, a
    question gets the best of AROUND that before for the others."""
    def losses(t: float) -> torch.Tensor:
        return strangeness(scores, meant, t)
    every = torch.stack([losses(t) for t in trust.temperature * AROUND])            # (T, Q)
    best = (every.sum(1, keepdim=True) - every).argmin(0)                           # (Q,)
    right = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, meant[:, None], True)
    before, after = losses(trust.temperature).mean(), every.gather(0, best[None]).mean()
    return Fit("the photo meant, -log p", float(before), float(after), bool(after < before),
               trust._replace(temperature=temperature(scores, right)))


def strangeness(scores: torch.Tensor, meant: torch.Tensor, t: float) -> torch.Tensor:
    """-log p (Q,) of the photos that were meant."""
    return (t * scores).logsumexp(1) - t * scores.gather(1, meant[:, None])[:, 0]


def fit_sets(trust: Trust, scores: torch.Tensor, meant: torch.Tensor) -> Fit:
    """The limit of sets, conformal as `promises.calibrate_sets`: left out, a question is judged by
    the limit of the others. Better is nearer to 1 - alpha."""
    strange, alpha = strangeness(scores, meant, trust.temperature), trust.alpha or ALPHA
    order, n = strange.sort().values, len(meant)
    k = place(n - 1, alpha) - 1                             # among the others, from 0
    limits = torch.where(strange <= order[k], order[k + 1], order[k])               # (n,)
    after = float((strange <= limits).double().mean())
    before = float("nan") if trust.limit is None else float((strange <= trust.limit).double().mean())
    return Fit(f"the photo meant is in the set, of {1 - alpha:.0%}", before, after,
               not abs(before - 1 + alpha) < abs(after - 1 + alpha),
               trust._replace(alpha=alpha, limit=float(order[place(n, alpha) - 1]), set_gallery=None))


def fit_votes(trust: Trust, scores: torch.Tensor, spread: torch.Tensor, judged: torch.Tensor,
              fits: torch.Tensor) -> list[Fit]:
    """The probability that a photo fits, by votes: scores (Q, N), the queries' mean log-variances
    (Q,), which photos were judged and which of these fit (Q, N) bool. Where there is one already,
    its logit is scaled and shifted. With it the number that fit, and below which none does."""
    old = trust.fits or (1.0, 0.0, 0.0)                     # slope, log_det, bias
    x = old[0] * scores + old[1] * spread[:, None] + old[2]                         # (Q, N)
    before, after = x.sigmoid(), torch.empty_like(x)
    if trust.fits is None:
        before[:] = fits[judged].double().mean()
    every, none = range(len(x)), ~fits.any(1)
    others = [[k for k in every if k != q] for q in every]

    def fit(some: list[int]) -> tuple[float, float]:
        of = judged[some]
        (slope,), bias = logistic(x[some][of][None], fits[some][of].double())
        return slope, bias
    for q in every:
        slope, bias = fit(others[q])
        after[q] = (slope * x[q] + bias).sigmoid()
    slope, bias = fit([*every])
    losses = [float(torch.nn.functional.binary_cross_entropy(p[judged], fits[judged].double()))
              for p in (before, after)]
    better = losses[1] < losses[0] and slope > 0
    trust = trust._replace(fits=[slope * old[0], slope * old[1], slope * old[2] + bias])
    made = [Fit("photos that fit, log loss of a vote", *losses, better, trust),
            Fit(f"photos that fit of those judged, {fits.sum() / len(x):.1f} a question",
                *(float(p[judged].sum() / len(x)) for p in (before, after)), better, trust)]
    if better and min(none.sum(), (~none).sum()) >= FEW:
        expected, n = counted(after), counted((slope * x + bias).sigmoid())          # (Q,)
        cuts = [limit_of(expected[others[q]], none[others[q]]) for q in every]
        made.append(Fit("whether any fits, balanced accuracy", balanced(counted(before) < trust.none, none),
                        balanced(expected < torch.tensor(cuts), none), better,
                        trust._replace(none=limit_of(n, none))))
    return made


def balanced(said: torch.Tensor, true: torch.Tensor) -> float:
    """The mean of the shares (Q,) bool that are said rightly, of those that are so and are not."""
    return float((said[true].double().mean() + (~said[~true]).double().mean()) / 2)


def limit_of(expected: torch.Tensor, none: torch.Tensor) -> float:
    """The expected number (Q,) below which it is said best that none fits, (Q,) bool: halfway, of
    their logarithms, between two of them."""
    order = expected.double().clamp(min=1e-6).sort().values.log()
    cuts = ((order[1:] + order[:-1]) / 2).exp().tolist()
    return max(cuts, key=lambda cut: balanced(expected < cut, none))


def calibrate(searcher) -> list[str]:
    """Fit what turns scores into probabilities to what was said of the answers of a Searcher, and
    write LEARNED. Returns what is said of it, in lines. Raises InputError where too few questions
    were answered."""
    folder, manifest = searcher.index.folder, searcher.index.manifest
    row = {name: k for k, name in enumerate(searcher.index.listed()[1])}
    said = answered(folder)
    meant = [one for one in said if one.meant in row]
    voted = [one for one in said if row.keys() & one.shown]
    check(max(len(meant), len(voted)) >= NEEDED,
          f"{folder} has {len(meant)} questions with the photo that was meant and {len(voted)} with "
          f"photos that fit or none, and a fit needs {NEEDED} of a kind; answer more on the page of "
          f"search.py serve {folder}")
    trust, fits = searcher.before or Trust(1.0, searcher.count, manifest["images"][1], None, None), []
    if len(meant) >= NEEDED:
        scores = searcher.scores_of([one.query for one in meant])[0].double()       # (Q, N)
        photos = torch.tensor([row[one.meant] for one in meant])                    # (Q,)
        if searcher.before is None:
            right = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, photos[:, None], True)
            trust = trust._replace(temperature=temperature(scores, right))
        for fit in (fit_meant, fit_sets):
            fits.append(fit(trust, scores, photos))
            trust = fits[-1].trust if fits[-1].better else trust
    if len(voted) >= NEEDED:
        scores, spread = searcher.scores_of([one.query for one in voted])           # (Q, N), (Q,)
        judged, fit = torch.zeros(2, *scores.shape, dtype=torch.bool)
        for q, one in enumerate(voted):
            judged[q, [row[name] for name in one.shown if name in row]] = True
            fit[q, [row[name] for name in one.fit if name in row]] = True
        fits += fit_votes(trust, scores.double(), torch.from_numpy(spread), judged, fit)
        trust = fits[-1].trust if fits[-1].better else trust
    lines = [f"{'':<58}{'before':>8}{'now':>8}   (each question by a fit to the others)"]
    for one in fits:
        before = "-" if np.isnan(one.before) else f"{one.before:.2f}"
        lines.append(f"{one.title:<58}{before:>8}{one.after:>8.2f}"
                     + "   no better, and not kept" * (not one.better))
    if not any(one.better for one in fits):
        return [*lines, "nothing became better, so nothing is kept"]
    trust = trust._replace(gallery=searcher.count, data=manifest["images"][1])
    save_json({"learned": FORMAT, "of": of_index(manifest), "questions": len(said),
               "trust": trust._asdict()}, os.path.join(folder, LEARNED))
    return [*lines, f"kept in {os.path.join(folder, LEARNED)}; search.py calibrate {folder} --undo "
                    "takes it back"]
