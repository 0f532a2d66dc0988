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
from evaluation.calibration import Logistic
from evaluation.people import Fits
from evaluation.posterior import temperature
from evaluation.promises import place
from files.reading import FAULTS, read_json, read_lines
from files.writing import remove, save_json
from retrieval.trust import Trust, from_json

ANSWERS, LEARNED = "answers.jsonl", "learned.json"
FORMAT = 1                            # of learned.json
NEEDED = 30                           # questions that a fit needs
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


def fit_votes(trust: Trust, scores: np.ndarray, spread: np.ndarray, right: np.ndarray,
              question: np.ndarray) -> tuple[Fit, Fit]:
    """The probability that a photo fits, by K votes: scores, the captions' mean log-variances,
    votes and numbers of questions (K,). Where there is one already, its logit is scaled and
    shifted. The second figure is the number of photos that it expects to fit of those judged, a
    question, beside the true one."""
    old = Fits(*(trust.fits or (1.0, 0.0, 0.0)))
    x = old.slope * scores + old.log_det * spread + old.bias
    before, after = old(scores, spread), np.empty(len(x))
    if trust.fits is None:
        before[:] = right.mean()
    for q in np.unique(question):
        others = question != q
        after[~others] = Logistic.fit({"x": x[others]}, right[others])({"x": x[~others]})
    of = Logistic.fit({"x": x}, right)
    slope = of.weights[0] / of.std[0] if of.std[0] else 0.0
    bias = of.bias - slope * of.mean[0]
    losses = [float(-np.log(np.where(right, p, 1 - p).clip(1e-6)).mean()) for p in (before, after)]
    better, n = losses[1] < losses[0] and slope > 0, len(np.unique(question))
    new = trust._replace(fits=[slope * old.slope, slope * old.log_det, slope * old.bias + bias])
    return (Fit("photos that fit, log loss of a vote", *losses, better, new),
            Fit(f"photos that fit of those judged, {right.sum() / n:.1f} a question",
                *(float(p.sum() / n) for p in (before, after)), better, new))


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
    trust, lines = searcher.before or Trust(1.0, searcher.count, manifest["images"][1], None, None), []
    fits = []
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
        scores, spread = searcher.scores_of([one.query for one in voted])
        pairs = [(q, row[name], name in one.fit) for q, one in enumerate(voted)
                 for name in one.shown if name in row]
        question, photo, right = (np.array(column) for column in zip(*pairs))
        check(0 < right.sum() < len(right), "all photos that were judged fit, or none, so nothing "
                                            "can be told apart; answer other questions, too")
        fits += fit_votes(trust, scores.double().numpy()[question, photo], spread[question], right, question)
        trust = fits[-1].trust if fits[-1].better else trust
    lines += [f"{'':<58}{'before':>8}{'now':>8}   (each question by a fit to the others)"]
    lines += [f"{one.title:<58}{one.before:>8.2f}{one.after:>8.2f}{'' if one.better else '   not better, so not kept'}"
              for one in fits]
    if not any(one.better for one in fits):
        return [*lines, "nothing became better, so nothing is kept"]
    trust = trust._replace(gallery=searcher.count, data=manifest["images"][1])
    save_json({"learned": FORMAT, "of": of_index(manifest), "questions": len(said),
               "trust": trust._asdict()}, os.path.join(folder, LEARNED))
    return [*lines, f"kept in {os.path.join(folder, LEARNED)}; search.py calibrate {folder} --undo takes it back"]
