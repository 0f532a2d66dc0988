"""What is asked about one subject: the judgements are read, the protocols run and the results
collected.

`PROTOCOLS` lists all protocols: what each needs, how it runs, and whether it also runs over five
folds.
"""
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

import metrics
from cli import check
from evaluation import annotations, protocols, subjects
from evaluation.annotations import MATCH, Crisscrossed, Listed, Pairs
from evaluation.report import SIDES
from evaluation.subjects import Gallery, Member, Record, Subject, means_only
from losses import Embedding, cosine, uncertainty

# the dev and test images of COCO's splits are of its 2014 validation set
INSTANCES = "instances_val2014.json"


class Judgements(dict):
    """Matches and ratings beyond the original pairs, as positions in the split: {protocol: what was
    read for it}."""

    def lines(self, n: int, m: int):
        """Sentences on what was read, for the reader of the report, of N images and M captions."""
        ratings, pairs = self.get("cxc", ({}, {}))
        for kind, rated in ratings.items():
            high = int((rated.score >= MATCH[kind]).sum())
            yield (f"{kind.upper()}: {len(rated.score):,} rated pairs, {high:,} of them "
                   f"{MATCH[kind]:g} or more")
        for side, of in pairs.items():
            queries = n if side[0] == "i" else m
            yield f"CxC {matches(side, of, queries - len(np.unique(of.query)))}"
        if "pmrp" in self:
            shown, categories = int(self["pmrp"].any(1).sum()), self["pmrp"].shape[1]
            yield f"PMRP: {shown:,} of {n:,} images show at least one of {categories} categories"
        for side, of in self.get("eccv", {}).items():
            yield f"ECCV {matches(side, of)}"
        for side, of in self.get("positives", {}).items():
            yield f"positives {matches(side, *of)}"


def matches(side: str, pairs: Pairs, without: int = 0) -> str:
    """How many matches there are, and how many queries have none."""
    told = f"{SIDES[side]}: {len(pairs.query):,} matches of {len(np.unique(pairs.query)):,} queries"
    return told + f"; {without:,} queries without a match do not count" * (without > 0)


class Asked(NamedTuple):
    """What is asked about a subject: options of evaluate.py, by their names."""
    fold5: bool = False
    uncertainty: bool = False
    control: bool = True
    pmrp: bool = False
    instances: str | None = None
    eccv: bool = False
    eccv_path: str | None = None
    positives: str | None = None
    cxc: bool = False
    cxc_path: str | None = None
    cxc_rule: str = "ucmr"


@dataclass
class Task:
    """One subject and what is asked about it. Protocols read all but the last two, and add to
    these."""
    subject: Subject
    judged: Judgements
    asked: Asked
    record: Record = field(default_factory=Record)
    absent: list[str] = field(default_factory=list)           # sentences on what cannot be had

    @cached_property
    def scores(self) -> np.ndarray:
        """The whole matrix of scores (N, M). It is computed at first use and kept until
        `release`."""
        return subjects.score_matrix(self.subject)

    @property
    def columns(self):
        """The scores in blocks: of the whole matrix where that is needed anyway, so that the
        recalls can be read from it, else of the members."""
        if any(protocol.matrix and protocol.asked(self) for protocol in PROTOCOLS.values()):
            return subjects.image_text_of(self.scores)
        return self.subject.columns

    def release(self) -> None:
        """Let go of the matrix of scores, 500 MB for the 5,000 images of COCO's test split."""
        self.__dict__.pop("scores", None)


class Protocol(NamedTuple):
    """One line of PROTOCOLS."""
    run: Callable[[Task, dict], dict]             # (task, {name: galleries}) -> {name: numbers}
    asked: Callable[[Task], bool]                 # do the options ask for it
    read: Callable | None = None                  # (subject, asked) -> its judgements
    title: str = ""                               # in the sentence that says what cannot be had
    images: bool = True                           # needs images
    matrix: bool = False                          # needs the whole matrix of scores
    folds: bool = True                            # --fold5: also runs over the five folds


# ---- readers of judgements, (subject, asked) -> judgements

def read_judgements(subject: Subject, asked: Asked) -> Judgements:
    """Those that the options ask for. Raises InputError on files that are missing, broken or of
    other items."""
    task = Task(subject, Judgements(), asked)
    return Judgements({name: protocol.read(subject, asked) for name, protocol in PROTOCOLS.items()
                       if protocol.read and protocol.asked(task)})


def read_instances(subject: Subject, asked: Asked) -> np.ndarray:
    """(N, K) bool: the categories that each image shows."""
    return annotations.read_instances(
        asked.instances or os.path.join(subject.folder, "annotations", INSTANCES),
        subject.items.image_index)


def read_eccv(subject: Subject, asked: Asked) -> dict[str, Pairs]:
    """The matches of both directions."""
    return annotations.read_eccv(asked.eccv_path or annotations.eccv_folder(),
                                 subject.items.image_index, subject.items.caption_index)


def read_positives(subject: Subject, asked: Asked) -> dict[str, Listed]:
    """The user's own matches, of one direction or both."""
    return annotations.read_positives(asked.positives, subject.items.image_index,
                                      subject.items.caption_index)


def read_cxc(subject: Subject, asked: Asked) -> Crisscrossed:
    """The ratings of the val or test part, and the matches that follow from them."""
    folder = asked.cxc_path or os.path.normpath(os.path.join(subject.folder, "..", "cxc"))
    ratings = annotations.read_cxc(folder, "val" if subject.split in ("dev", "val") else "test",
                                   subject.items.image_index, subject.items.caption_index)
    return Crisscrossed(ratings,
                        annotations.cxc_pairs(ratings, subject.caption_image, asked.cxc_rule))


# ---- the members with the variances of other items

def shuffled(subject: Subject) -> list[Member]:
    """The members with the variances of other items: the row that shows whether it matters whose
    they are."""
    return [Member(m.similarity, *deal_variances(m.images, m.captions)) for m in subject.members]


def deal_variances(images: Embedding, captions: Embedding,
                   seed: int = 0) -> tuple[Embedding, Embedding]:
    """Both sides with the variances of other items; points stay as they are.

    Each side goes round one random circle, so that no item keeps its own variances. The circles are
    drawn one after the other: with as many captions as images, a common one would leave matching
    variances together.
    """
    generator = torch.Generator().manual_seed(seed)

    def dealt(e: Embedding) -> Embedding:
        circle = torch.randperm(len(e.mean), generator=generator).to(e.mean.device)
        if e.log_var is None:
            return e
        log_var = torch.empty_like(e.log_var)
        log_var[circle] = e.log_var[circle.roll(1)]
        return e._replace(log_var=log_var)
    return dealt(images), dealt(captions)


def uses_variances(task: Task) -> bool:
    """Whether any member has variances and compares by them: the cosine looks at means alone, and
    variances that points were given later rank nothing."""
    subject = task.subject
    return subject.gaussian and subject.variances is None and not all(
        m.similarity is cosine for m in subject.members)


def uses_control(task: Task) -> bool:
    """Whether --uncertainty asks for the row of other items' variances."""
    return task.asked.uncertainty and task.asked.control and uses_variances(task)


# ---- how protocols run: (task, galleries, name) -> numbers

def each(run: Callable[[Task, list[Gallery], str], dict]) -> Callable[[Task, dict], dict]:
    """A protocol that runs over everything and then over the folds, each by itself."""
    def over_all(task: Task, galleries: dict[str, list[Gallery]]) -> dict[str, dict]:
        return {name: run(task, parts, name) for name, parts in galleries.items()}
    return over_all


def recalls(columns: Callable[[Task], Callable]) -> Callable[[Task, dict], dict]:
    """A protocol of recalls of the original pairs by the scores columns(task), in blocks."""
    return each(lambda task, galleries, name: protocols.recalls(
        task.subject, columns(task), galleries, task.record, name))


def run_pmrp(task: Task, galleries: list[Gallery], name: str) -> dict:
    return protocols.pmrp(task.scores, task.judged["pmrp"], task.subject.caption_image, galleries,
                          task.record, name)


def run_eccv(task: Task, galleries: list[Gallery], name: str) -> dict:
    return protocols.eccv(task.scores, task.judged["eccv"], task.record)


def run_positives(task: Task, galleries: list[Gallery], name: str, members=None) -> dict:
    """members: what takes the place of the subject's own, as a function of the subject."""
    listed = task.judged["positives"]
    scores = task.scores if members is None else subjects.score_matrix(
        replace(task.subject, members=members(task.subject)))
    numbers = protocols.recalls_of_matches(
        scores, {side: of.pairs for side, of in listed.items()}, galleries, task.record, name, "rp",
        "map_at_r")
    for side, of in listed.items():
        numbers[side]["without"] = of.without
    return numbers


def run_cxc(task: Task, galleries: dict[str, list[Gallery]]) -> dict[str, dict]:
    """Everything and the folds at once: scores within a modality are computed once for both."""
    (ratings, pairs), between, within = task.judged["cxc"], {}, {}
    if task.subject.has_images:
        between = protocols.cxc_between(task.scores, ratings, pairs, galleries, task.record)
        task.release()                                      # text to text needs the room
    else:
        task.absent.append(
            "image-text and image-image retrieval, SITS and SIS: there are no images")
    if task.subject.members:
        within = protocols.cxc_within(task.subject, ratings, pairs, galleries, task.record)
    else:
        task.absent.append("text-text and image-image retrieval, STS and SIS: a score matrix holds "
                           "image-text scores only")
    return {name: {**between.get(name, {}), **within.get(name, {})} for name in galleries}


# To add a protocol:
# 1. Write a function (task, galleries, name) -> its numbers, such as
#    {"i2t": {"mine": 12.5}, "t2i": {...}} in percent. It adds the outcome of every query to
#    task.record under `name` and works for one gallery and for five folds.
# 2. If it needs a file, write a reader (subject, asked) -> what the file holds. The function
#    finds that in task.judged; an option goes to evaluate.py and, by its name, to Asked.
# 3. Add a line here: "mine": Protocol(each(run_mine), lambda task: task.asked.mine, read_mine).
# 4. Add its title to report.TITLES and the heads of new columns to report.NAMES.
PROTOCOLS: dict[str, Protocol] = {
    "full": Protocol(recalls(lambda task: task.columns), lambda task: True,
                     title="image to text and text to image"),
    "bank": Protocol(recalls(lambda task: subjects.normalised(task.columns, task.subject.bank)),
                     lambda task: task.subject.bank is not None),
    "mean_only": Protocol(recalls(lambda task: subjects.image_text(means_only(task.subject))),
                          uses_variances),
    "shuffled": Protocol(recalls(lambda task: subjects.image_text(shuffled(task.subject))),
                         uses_control, folds=False),
    "pmrp": Protocol(each(run_pmrp), lambda task: task.asked.pmrp, read_instances, "PMRP",
                     matrix=True),
    "eccv": Protocol(each(run_eccv), lambda task: task.asked.eccv, read_eccv, "ECCV Caption",
                     matrix=True, folds=False),
    "positives": Protocol(each(run_positives), lambda task: task.asked.positives, read_positives,
                          "--positives", matrix=True, folds=False),
    "positives_mean_only": Protocol(each(partial(run_positives, members=means_only)),
                                    lambda task: task.asked.positives and uses_variances(task),
                                    folds=False),
    "positives_shuffled": Protocol(each(partial(run_positives, members=shuffled)),
                                   lambda task: task.asked.positives and uses_control(task),
                                   folds=False),
    # It lets go of the matrix of scores, so it stands last.
    "cxc": Protocol(run_cxc, lambda task: task.asked.cxc, read_cxc, images=False, matrix=True),
}


def refuse_unfit(subject: Subject, asked: Asked) -> None:
    """Raises InputError on --fold5 and --uncertainty where the subject does not allow them."""
    n = subject.n_images
    check(not asked.fold5 or n >= 5 * subjects.FOLD,
          f"--fold5 needs 5 x 1,000 images and {subject.name} has {n:,}; leave it out or name a "
          "larger split (COCO: testall for precomputed features)")
    check(not asked.uncertainty or subject.gaussian,
          f"--uncertainty: {subject.name} has points, which have no uncertainty; evaluate a "
          "Gaussian model, or give them variances with --variances")


@torch.no_grad()
def run_protocols(task: Task) -> dict[str, dict]:
    """The "protocols" of results.json. Raises InputError where the options do not fit the
    subject."""
    refuse_unfit(task.subject, task.asked)
    results = {}
    for name, protocol in PROTOCOLS.items():
        if not protocol.asked(task):
            continue
        if protocol.images and not task.subject.has_images:
            task.absent += [f"{protocol.title}: there are no images"] if protocol.title else []
            continue
        galleries = {name: subjects.everything(task.subject)}
        if task.asked.fold5 and protocol.folds:
            galleries["folds5" if name == "full" else f"{name}_folds5"] = subjects.folds(
                task.subject)
        results |= protocol.run(task, galleries)
    return results


# ---- everything about a subject

def uncertainties(subject: Subject, measure=uncertainty) -> dict[str, np.ndarray]:
    """log det Sigma in nats of images (N,) and captions (M,) where they are Gaussian, averaged over
    the members; or another measure (Embedding -> (N,)) of them."""
    results = {}
    for side in ("images", "captions"):
        sides = [getattr(m, side) for m in subject.members]
        values = [measure(e) for e in sides if e is not None and e.log_var is not None]
        if values:
            results[side] = torch.stack(values).mean(0).cpu().numpy()
    return results


def chances(subject: Subject, over_folds: bool) -> dict[str, dict]:
    """What a random order gives, in the gallery of everything and, where asked, as the mean over
    the folds."""
    owner = subject.caption_image
    results = {"full": metrics.chance(owner, subject.n_images)}
    if over_folds:
        results["folds5"] = metrics.average([
            metrics.chance(owner[captions] - images[0], len(images))
            for images, captions in subjects.folds(subject)])
    return results


def assess(subject: Subject, judged: Judgements,
           asked: Asked) -> tuple[dict, Record, dict[str, np.ndarray]]:
    """All that the options ask about one subject: what results.json holds, the outcome of every
    query, and the uncertainties of `uncertainties`. Raises InputError where the options do not fit
    the subject."""
    task, log_dets = Task(subject, judged, asked), uncertainties(subject)
    numbers = run_protocols(task)
    ranks = {side: task.record["full", side, "rank"] for side in ("i2t", "t2i")
             if "full" in numbers}
    spread = {side: {"mean": float(of.mean()), "std": float(of.std())}
              for side, of in log_dets.items()}
    for queries, of in zip(("images", "captions"), ranks.values()):
        if asked.uncertainty and queries in spread:
            spread[queries] |= protocols.uncertainty_report(log_dets[queries], of)
    shown = "pmrp" in judged and subject.members and subject.has_images
    parts = {"chance": ranks and chances(subject, asked.fold5),
             "bank": subject.bank and subject.bank.report,
             "variances": subject.variances and subject.variances.report,
             "notes": subject.notes,
             "best_ranks": {side: metrics.best_rank_means(of[~np.isnan(of)])
                            for side, of in ranks.items()},
             "absent": task.absent,
             "neighbours": shown and protocols.neighbours(subject, judged["pmrp"]),
             "unknown_words": subject.unknown_words, "uncertainty": spread}
    results = {"checkpoints": subject.name.split(" + "), "data_name": subject.data_name,
               "split": subject.split or None, "similarity": subject.similarity,
               "images": subject.n_images, "captions": len(subject.caption_image),
               "protocols": numbers} | {name: of for name, of in parts.items() if of}
    return without_nan(results), task.record, log_dets


def without_nan(value):
    """The value with None for each NaN (a correlation with a constant, say), which JSON lacks."""
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
