"""`evaluate.py --confidence`, `--sets`, `--absent` and `--judgements`: what is fitted on one set of
items, judged on another, reported.

A run is calibrated on its dev split. Embeddings and scores of other models are calibrated on a
second file (--calibration), or on a random part of their images (--calibrate_on), which is then
left out of the judgement.
"""
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from checkpoints import Trained
from cli import check
from evaluation import ambiguity, confidence, people, promises
from evaluation.calibration import SIDES, stored
from evaluation.confidence import Seen
from evaluation.posterior import answers, expected, of_pairs, part, rows_of
from evaluation.subjects import Member, Subject
from evaluation.volume import Sigmoid
from files.reading import read_lines


class Asked(NamedTuple):
    """What is asked about a subject's certainty: options of evaluate.py, by their names."""
    confidence: bool = False
    sets: float | None = None         # share of queries whose set may lack a right answer
    absent: float | None = None       # share of queries without an answer that may get one
    calibrate_on: float | None = None          # share of the images
    calibration: str | None = None    # file of other items
    negatives: str | None = None      # file of captions that no image shows
    judgements: list[str] | None = None        # files of what people said of pairs


class Certainty(NamedTuple):
    """What was found out."""
    results: dict                     # parts of results.json
    tables: list                      # for the reader, as report.py has them
    lines: list[str]                  # sentences beside them
    calibration: dict                 # calibration.json
    seen: dict[str, Seen]             # of each direction, with --confidence; for pictures
    # how many photos fit each caption (M,), expected and by people; None without votes
    numbers: list[np.ndarray] | None = None


def to_calibrate_on(subject: Subject, share: float | None,
                    opened: Callable[[], Subject]) -> tuple[Subject, Subject, np.ndarray]:
    """(what is calibrated on, what is judged, the positions of the judged images in the subject).
    share: a random share of the images is calibrated on, else what opened() returns. Raises
    InputError where there are no images."""
    check(subject.has_images,
          f"{subject.name} has no images to answer with, so there is no confidence to calibrate; "
          "name a split with images")
    if not share:
        return opened(), subject, np.arange(subject.n_images)
    order = np.random.default_rng(0).permutation(subject.n_images)
    cut = round(share * subject.n_images)
    check(0 < cut < subject.n_images,
          f"--calibrate_on {share:g} leaves {cut} of {subject.n_images} images to calibrate on; "
          "give a share that leaves some on both sides")
    judged = np.sort(order[cut:])
    return part(subject, np.sort(order[:cut])), part(subject, judged), judged


def assess_certainty(subject: Subject, judged: dict, asked: Asked, opened: Callable[[], Subject],
                     models: Iterable[Trained] = ()) -> Certainty:
    """All that is asked, of both directions. judged: the judgements of `assess`; opened: see
    `to_calibrate_on`; models: those of the subject's members, which embed captions of one's own."""
    dev, test, images = to_calibrate_on(subject, asked.calibrate_on, opened)
    on = f"a random {asked.calibrate_on:g} of the images" if asked.calibrate_on else (
        asked.calibration or f"{dev.data_name} {dev.split}")
    fitted, results, tables, seen = confidence.fit(dev), {}, [], {}
    pair, numbers = of_pairs(rows_of(dev, "t2i")), None
    calibration = stored(dev, on, fitted) | {"pair": {"slope": pair.slope, "bias": pair.bias}}
    lines = [f"calibrated on {dev.n_images:,} images and {len(dev.caption_image):,} captions "
             f"({on}), judged on {test.n_images:,} and {len(test.caption_image):,}"]
    if asked.confidence:
        worth, seen = confidence.judge_both(test, fitted)
        places = {"images": images,
                  "captions": np.flatnonzero(np.isin(subject.caption_image, images))}
        seen = {side: of._replace(asked=places[SIDES[side][0]][of.asked],
                                  answers=places[SIDES[side][1]][of.answers],
                                  owner=images[of.owner]) for side, of in seen.items()}
        unsure = ambiguity.report(subject, judged, seen)
        tables += confidence.tables(worth) + ambiguity.tables(unsure)
        lines += confidence.sentences(worth, fitted)
        lines += [in_numbers(side, expected(rows_of(test, side), pair), pair) for side in SIDES]
        results = {"confidence": worth, "ambiguity": unsure.pop("positives", None),
                   "other_truths": unsure}
    t = {side: of.temperature for side, of in fitted.items()}
    if (asked.sets or asked.absent) and dev.n_images != test.n_images:
        dev, test = of_one_size(dev, test)
        lines.append(f"a promise holds for galleries of one size, so {test.n_images:,} images at "
                     "random are taken of the larger side")
    if asked.sets:
        results["sets"], calibration["sets"] = promises.sets(dev, test, t, asked.sets)
        tables += promises.set_tables(results["sets"])
    if asked.absent:
        own = {}
        if asked.negatives:
            own["t2i"] = posterior_of_negatives(read_negatives(asked.negatives), models, test, t["t2i"])
        results["absent_queries"] = {
            side: promises.judge_absent(dev, test, side, t[side], asked.absent, pair, own.get(side))
            for side in SIDES}
        lines += promises.absent_sentences(results["absent_queries"])
    if asked.judgements:
        files = [people.read(path, subject.items) for path in asked.judgements]
        results["people"], fits, numbers = people.judge(subject, files, t, pair)
        calibration |= {"fits": fits._asdict()} if fits else {}
        tables += people.tables(results["people"])
    results = {name: of for name, of in results.items() if of}
    return Certainty(results, tables, lines, calibration, seen, numbers)


def in_numbers(side: str, count: np.ndarray, pair: Sigmoid) -> str:
    """What is said of the expected number of items that fit each query (Q,)."""
    low, middle, high = np.quantile(count, (0.05, 0.5, 0.95))
    return (f"{side}: by p(pair) = sigmoid({pair.slope:.4g} s {pair.bias:+.4g}), fitted to own pairs "
            f"of dev against all others, {middle:.2g} items fit a query (median; 90% of the queries "
            f"{low:.2g} to {high:.2g})")


def read_negatives(path: str) -> list[str]:
    """The captions of a text file, one per line. Raises InputError where it has none."""
    texts = [line.strip() for line in read_lines(path) if line.strip()]
    check(texts, f"--negatives {path} has no caption; "
                 "write one per line, of things that no image shows")
    return texts


def posterior_of_negatives(texts: list[str], models: Iterable[Trained], subject: Subject,
                           t: float) -> np.ndarray:
    """How sure models are of their first image for each text, at temperature t: (B,). subject: its
    members are those of the models, with the images that are searched. Raises InputError where a
    model knows no words."""
    members = [Member(m.similarity, m.images, model.texts(texts))
               for model, m in zip(models, subject.members)]
    queries = Subject("negatives", subject.similarity, np.zeros(len(texts), int), subject.n_images,
                      members)
    return answers(rows_of(queries, "t2i"), t).posterior


def of_one_size(dev: Subject, test: Subject) -> tuple[Subject, Subject]:
    """Both with as many images as the smaller one has, drawn at random: a limit that was found
    among few items would promise too much among many."""
    size = min(dev.n_images, test.n_images)
    return tuple(subject if subject.n_images == size else part(subject, np.sort(
        np.random.default_rng(1).permutation(subject.n_images)[:size])) for subject in (dev, test))
