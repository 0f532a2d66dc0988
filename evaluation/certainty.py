"""`evaluate.py --confidence`, `--sets` and `--judgements`: what is fitted on one set of
items, judged on another, reported.

A run is calibrated on its dev split. Embeddings and scores of other models are calibrated on a
second file (--calibration), or on a random part of their images (--calibrate_on), which is then
left out of the judgement.
"""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cli import check
from evaluation import confidence, people, promises
from evaluation.calibration import SIDES, stored
from evaluation.confidence import Seen
from evaluation.posterior import expected, of_pairs, part, rows_of
from evaluation.subjects import Subject
from evaluation.volume import Sigmoid


class Asked(NamedTuple):
    """What is asked about a subject's certainty: options of evaluate.py, by their names."""
    confidence: bool = False
    sets: float | None = None         # share of queries whose set may lack a right answer
    calibrate_on: float | None = None          # share of the images
    calibration: str | None = None    # file of other items
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


def assess_certainty(subject: Subject, asked: Asked, opened: Callable[[], Subject]) -> Certainty:
    """All that is asked, of both directions. opened: see `to_calibrate_on`."""
    dev, test, images = to_calibrate_on(subject, asked.calibrate_on, opened)
    on = f"a random {asked.calibrate_on:g} of the images" if asked.calibrate_on else (
        asked.calibration or f"{dev.data_name} {dev.split}")
    fitted, results, tables, seen = confidence.fit(dev), {}, [], {}
    pair, numbers = of_pairs(rows_of(dev, "t2i")), None
    calibration = stored(dev, on, fitted) | {"pair": {"slope": pair.slope, "bias": pair.bias}}
    lines = [f"calibrated on {dev.n_images:,} images and {len(dev.caption_image):,} captions "
             f"({on}), judged on {test.n_images:,} and {len(test.caption_image):,}"]
    if asked.confidence:
        worth, seen = {}, confidence.look(test, {side: of.temperature for side, of in fitted.items()})
        for side in seen:
            worth[side], seen[side] = confidence.judge(seen[side])
        places = {"images": images,
                  "captions": np.flatnonzero(np.isin(subject.caption_image, images))}
        seen = {side: of._replace(asked=places[SIDES[side][0]][of.asked],
                                  answers=places[SIDES[side][1]][of.answers],
                                  owner=images[of.owner]) for side, of in seen.items()}
        tables += confidence.tables(worth)
        lines += confidence.sentences(worth, fitted, seen)
        lines += [in_numbers(side, expected(rows_of(test, side), pair), pair) for side in SIDES]
        results["confidence"] = worth
    t = {side: of.temperature for side, of in fitted.items()}
    if asked.sets and dev.n_images != test.n_images:
        dev, test = of_one_size(dev, test)
        lines.append(f"a promise holds for galleries of one size, so {test.n_images:,} images at "
                     "random are taken of the larger side")
    if asked.sets:
        results["sets"], calibration["sets"] = promises.sets(dev, test, t, asked.sets)
        tables += promises.set_tables(results["sets"])
    if asked.judgements:
        files = [people.read(path, subject.items) for path in asked.judgements]
        results["people"], fits, numbers = people.judge(subject, files, t, pair)
        calibration |= {"fits": fits._asdict()} if fits else {}
        tables += people.tables(results["people"])
    return Certainty(results, tables, lines, calibration, seen, numbers)


def in_numbers(side: str, count: np.ndarray, pair: Sigmoid) -> str:
    """What is said of the expected number of items that fit each query (Q,)."""
    low, middle, high = np.quantile(count, (0.05, 0.5, 0.95))
    return (f"{side}: by p(pair) = sigmoid({pair.slope:.4g} s {pair.bias:+.4g}), fitted to own pairs "
            f"of dev against all others, {middle:.2g} items fit a query (median; 90% of the queries "
            f"{low:.2g} to {high:.2g})")


def of_one_size(dev: Subject, test: Subject) -> tuple[Subject, Subject]:
    """Both with as many images as the smaller one has, drawn at random: a limit that was found
    among few items would promise too much among many."""
    size = min(dev.n_images, test.n_images)
    return tuple(subject if subject.n_images == size else part(subject, np.sort(
        np.random.default_rng(1).permutation(subject.n_images)[:size])) for subject in (dev, test))
