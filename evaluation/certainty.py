"""`evaluate.py --confidence`, `--sets` and `--absent`: opens the items to calibrate on, fits, judges and reports.

A run is calibrated on its dev split. Embeddings and scores of other models are calibrated on a second file
(--calibration), or on a random part of their images (--calibrate_on), which is then left out of the judgement.
"""
import copy
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from checkpoints import Trained
from cli import InputError, torch_device
from evaluation import ambiguity, confidence, promises
from evaluation.answers import answers, rows_of
from evaluation.assess import uncertainties
from evaluation.confidence import Fitted, Seen
from evaluation.subjects import Member, Subject
from files.reading import FAULTS, read_json, read_lines

FORMAT = 1                            # of calibration.json
LEVELS = 101


class Certainty(NamedTuple):
    """What was found: the parts of results.json, tables and sentences for the reader, calibration.json, and what is
    drawn of each direction with --confidence."""
    results: dict
    tables: list
    lines: list[str]
    calibration: dict
    seen: dict[str, Seen]


def wanted(opt) -> bool:
    return bool(opt.confidence or opt.sets or opt.absent)


def check_options(p, opt) -> None:
    """Ends the program with a sentence where the options of this file do not go together. p: the parser."""
    for name in ("sets", "absent", "calibrate_on"):
        value = getattr(opt, name)
        if value is not None and not 0 < value < 1:
            p.error(f"--{name} {value:g} is no share; give a number between 0 and 1, such as 0.1")
    ready = opt.embeddings or opt.scores
    if opt.negatives and (ready or not opt.absent):
        p.error(f"--negatives {opt.negatives} is for --absent of a trained run, which can embed its captions; leave it "
                "out")
    if not wanted(opt):
        given = next((name for name in ("calibration", "calibrate_on") if getattr(opt, name) is not None), None)
        if given:
            p.error(f"--{given} has no effect without --confidence, --sets or --absent; give both or neither")
        return
    if opt.compare:
        p.error("--confidence, --sets and --absent do not go with --compare; evaluate each by itself")
    if opt.calibration and opt.calibrate_on:
        p.error("--calibration and --calibrate_on both name what to calibrate on; give one of them")
    if opt.calibration and not ready:
        p.error(f"--calibration {opt.calibration} is for --embeddings and --scores: a run is calibrated on its dev "
                "split; leave it out")
    if ready and not opt.calibration and not opt.calibrate_on:
        p.error(f"{ready} has to be calibrated on other items; give those of dev with --calibration FILE, or "
                "--calibrate_on 0.5 to take half of its images")
    if not ready and not opt.calibrate_on and opt.split in ("dev", "val"):
        p.error(f"--split {opt.split} is what a run is calibrated on; judge another split, or give --calibrate_on 0.5 "
                "(images and captions only)")


def part(subject: Subject, images: np.ndarray) -> Subject:
    """The images at positions `images` (n,), rising, and their captions, as a subject of their own."""
    captions = np.flatnonzero(np.isin(subject.caption_image, images))
    new = copy.copy(subject)
    new.members = [Member(m.similarity, m.images.rows(images), m.captions.rows(captions)) for m in subject.members]
    new.scores = None if subject.scores is None else np.asarray(subject.scores)[images][:, captions]
    new.caption_image, new.n_images = np.searchsorted(images, subject.caption_image[captions]), len(images)
    new.items = None
    return new


def to_calibrate_on(subject: Subject, share: float | None,
                    opened: Callable[[], Subject]) -> tuple[Subject, Subject, np.ndarray]:
    """(what is calibrated on, what is judged, the positions of the judged images in the subject). share: a random share
    of the images is calibrated on, else what opened() returns. Raises InputError where there are no images."""
    if not subject.has_images:
        raise InputError(f"{subject.name} has no images to answer with, so there is no confidence to calibrate; name a "
                         "split with images")
    if not share:
        return opened(), subject, np.arange(subject.n_images)
    order = np.random.default_rng(0).permutation(subject.n_images)
    cut = round(share * subject.n_images)
    if not 0 < cut < subject.n_images:
        raise InputError(f"--calibrate_on {share:g} leaves {cut} of {subject.n_images} images to calibrate on; give a "
                         "share that leaves some on both sides")
    kept = np.sort(order[cut:])
    return part(subject, np.sort(order[:cut])), part(subject, kept), kept


def assess_certainty(dev: Subject, judged_on: Subject, subject: Subject, kept: np.ndarray, judged: dict, opt,
                     paths: list[str] = ()) -> Certainty:
    """All that the options ask, of both directions. dev, judged_on, kept: `to_calibrate_on` of the subject; paths: the
    runs of its members, if it has any."""
    results, lines, made, seen = {}, [], [], {}
    fitted = confidence.fit(dev)
    lines.append(f"calibrated on {dev.n_images:,} images and {len(dev.caption_image):,} captions "
                 f"({calibrated_on(dev, opt)}), judged on {judged_on.n_images:,} and {len(judged_on.caption_image):,}")
    if opt.confidence:
        both = confidence.judge(judged_on, fitted)
        found, values, first = ({side: of[k] for side, of in both.items()} for k in range(3))
        for side, smaller in confidence.galleries(judged_on, fitted).items():
            if smaller:
                found[side]["galleries"] = smaller
        asked = {side: queries_in(subject, kept, side) for side in fitted}
        seen = {side: Seen(values[side], first[side].right, asked[side],
                           items_in(subject, kept, side)[first[side].first]) for side in fitted}
        results["confidence"] = found
        made += confidence.tables(found)
        lines += confidence.sentences(found, fitted)
        unsure = ambiguity.report(subject, judged, values, asked)
        made += ambiguity.tables(unsure, confidence.NAMES)
        if "positives" in unsure:
            results["ambiguity"] = unsure.pop("positives")
        if unsure:
            results["other_truths"] = unsure
    limits, pair = {}, of_one_size(dev, judged_on) if opt.sets or opt.absent else None
    if pair and dev.n_images != judged_on.n_images:
        lines.append(f"a promise holds for galleries of one size, so {pair[0].n_images:,} images at random are taken "
                     "of the larger side")
    if opt.sets:
        results["sets"] = {}
        for side, of in fitted.items():
            limits["images"] = pair[0].n_images
            limits[side], n = promises.calibrate_sets(pair[0], side, of.temperature, opt.sets)
            results["sets"][side] = promises.judge_sets(pair[1], side, of.temperature, opt.sets, limits[side], n)
        made += promises.set_tables(results["sets"])
    if opt.absent:
        own = {}
        if opt.negatives:
            models = (Trained(path, torch_device(opt.device), vocab=opt.vocab) for path in paths)
            own["t2i"] = posterior_of_negatives(read_negatives(opt.negatives), models, pair[1],
                                                fitted["t2i"].temperature)
        results["absent_queries"] = {side: promises.judge_absent(*pair, side, of, opt.absent, own.get(side))
                                     for side, of in fitted.items()}
        lines += promises.absent_sentences(results["absent_queries"])
    return Certainty(results, made, lines, stored(dev, fitted, limits, opt), seen)


def read_negatives(path: str) -> list[str]:
    """The captions of a text file, one per line. Raises InputError where it has none."""
    texts = [line.strip() for line in read_lines(path) if line.strip()]
    if not texts:
        raise InputError(f"--negatives {path} has no caption; write one per line, of things that no image shows")
    return texts


def posterior_of_negatives(texts: list[str], models: Iterable[Trained], subject: Subject, t: float) -> np.ndarray:
    """How sure models are of their first image for each text, at temperature t: (B,). subject: its members are those
    of the models, with the images that are searched. Raises InputError where a model knows no words."""
    members = [Member(m.similarity, m.images, model.texts(texts)) for model, m in zip(models, subject.members)]
    asked = Subject("negatives", subject.similarity, np.zeros(len(texts), int), subject.n_images, members)
    return answers(rows_of(asked, "t2i"), t).posterior


def of_one_size(dev: Subject, judged_on: Subject) -> tuple[Subject, Subject]:
    """Both with as many images as the smaller one has, drawn at random: a limit that was found among few items would
    promise too much among many."""
    size = min(dev.n_images, judged_on.n_images)

    def cut(subject: Subject) -> Subject:
        kept = np.random.default_rng(1).permutation(subject.n_images)[:size]
        return subject if subject.n_images == size else part(subject, np.sort(kept))
    return cut(dev), cut(judged_on)


def calibrated_on(dev: Subject, opt) -> str:
    if opt.calibrate_on:
        return f"a random {opt.calibrate_on:g} of the images"
    return opt.calibration or f"{dev.data_name} {dev.split}"


def queries_in(subject: Subject, kept: np.ndarray, side: str) -> np.ndarray:
    """The positions in the subject of the queries of one direction, where the images at positions `kept` are judged."""
    if side == "i2t":
        return np.intersect1d(kept, subject.caption_image)
    return items_in(subject, kept, "i2t")


def items_in(subject: Subject, kept: np.ndarray, side: str) -> np.ndarray:
    """The positions in the subject of the gallery of one direction, where the images at positions `kept` are judged."""
    return kept if side == "t2i" else np.flatnonzero(np.isin(subject.caption_image, kept))


# ---- calibration.json

def stored(dev: Subject, fitted: dict[str, Fitted], limits: dict, opt) -> dict:
    """What calibration.json holds: what was fitted, on what, at what size of the gallery."""
    return {"calibration": FORMAT, "checkpoints": dev.name.split(" + "),
            **({"weights": dev.weights} if dev.weights else {}), "data_name": dev.data_name,
            "split": calibrated_on(dev, opt), "similarity": dev.similarity, "images": dev.n_images,
            "captions": len(dev.caption_image), **{side: of.plain() for side, of in fitted.items()},
            **({"sets": {"alpha": opt.sets, **limits}} if limits else {}), **quantiles(dev)}


def quantiles(dev: Subject) -> dict:
    """{"log_det": LEVELS quantiles of the log det Sigma of the captions, from the least to the largest}, by which that
    of a query is told to be small or large; {} where captions are points."""
    values = uncertainties(dev).get("captions")
    return {} if values is None else {"log_det": np.quantile(values, np.linspace(0, 1, LEVELS)).tolist()}


class Calibration(NamedTuple):
    """A calibration.json, and where it lies."""
    path: str
    checkpoints: list[str]
    weights: list[str] | None         # digests of the models (checkpoints.weights_of); None of other embeddings, and in
                                      # files of older versions
    data_name: str
    similarity: str
    fitted: dict[str, Fitted]
    sets: dict | None                 # {"alpha", "images": in the gallery that they were fitted on, direction: {method:
                                      # limit}}; None where --sets was not given, and in files of older versions
    log_det: list[float] | None       # quantiles, see `quantiles`; None where captions are points

    def refuse_other(self, run: str, weights: str) -> None:
        """Raises InputError unless this is of the model with these weights (`checkpoints.weights_of`), which `run`
        holds. A file that names no weights is known by the path of its run, or by the names of its folder and
        its file where it was moved since."""
        def file_of(path: str) -> str:
            file = path.endswith((".pt", ".tar")) and not os.path.isdir(path)
            return os.path.realpath(path if file else os.path.join(path, "model_best.pt"))
        mine, named = file_of(run), file_of(self.checkpoints[0])
        moved = not os.path.exists(named) and named.split(os.sep)[-2:] == mine.split(os.sep)[-2:]
        models, again = " + ".join(self.checkpoints), f"write it again with evaluate.py --confidence --checkpoint {run}"
        if self.weights and self.weights != [weights]:
            raise InputError(f"{self.path} is of the weights of {models}, and {run} has others; {again}")
        if not self.weights and (len(self.checkpoints) > 1 or not (named == mine or moved)):
            raise InputError(f"{self.path} is of {models}, and not of {run}, by their paths, as it names no weights; "
                             f"{again}, or with --checkpoint {self.checkpoints[0]}, and name what it writes with "
                             "--calibration")

    def notes(self, side: str, data_name: str, gallery: int) -> list[str]:
        """Sentences on what is searched and was not calibrated on: other data, a gallery of another size."""
        of, found = self.fitted[side], []
        if data_name != self.data_name:
            found.append(f"the probabilities were calibrated on {self.data_name} and may not hold on {data_name}")
        if gallery != of.gallery:
            found.append(f"the probabilities were calibrated on a gallery of {of.gallery:,} and {gallery:,} are "
                         "searched; they hold best for the size that they were calibrated on")
        return found


def read_calibration(path: str) -> Calibration:
    """What `stored` wrote. Raises InputError on any other file."""
    fix = "write it again with evaluate.py --confidence"
    found = read_json(path, fix)
    try:
        if found["calibration"] != FORMAT:
            raise ValueError(f"its format is {found['calibration']!r}")
        names, data_name, similarity = (found[name] for name in ("checkpoints", "data_name", "similarity"))
        if not (names and isinstance(names, list) and all(isinstance(x, str) for x in (*names, data_name, similarity))):
            raise ValueError("it does not say of which model it is")
        sets = found.get("sets")
        if sets is not None and "images" in sets:           # an older file does not say where its promise holds
            sets = {"alpha": float(sets["alpha"]), "images": int(sets["images"]), **{
                side: {name: float(limit) for name, limit in sets[side].items()} for side in confidence.SIDES}}
        else:
            sets = None
        weights = found.get("weights")
        if weights is not None and not (isinstance(weights, list) and len(weights) == len(names)):
            raise ValueError("it does not say which weights each model has")
        fitted = {side: fitted_of(found[side]) for side in confidence.SIDES}
        return Calibration(path, names, weights, data_name, similarity, fitted, sets,
                           found.get("log_det") and sorted(map(float, found["log_det"])))
    except FAULTS as error:
        raise InputError(f"{path} is no calibration ({error}); {fix}") from error


def calibration_file(run: str) -> str:
    """The calibration that evaluate.py --confidence writes by itself for a run folder or a checkpoint file."""
    folder, file = (run, "model_best.pt") if os.path.isdir(run) else os.path.split(run)
    return os.path.join(folder, f"calibration{'' if file == 'model_best.pt' else '_' + file.split('.')[0]}.json")


def fitted_of(of: dict) -> Fitted:
    logistic = [None if of[name] is None else confidence.Logistic(**of[name]) for name in ("stacked", "without_sigma")]
    t, each = float(of["temperature"]), of["temperature_each"]
    if not 0 < t < np.inf:
        raise ValueError(f"temperature {t}")
    return Fitted(t, None if each is None else float(each), confidence.Isotonic(**of["isotonic"]), *logistic,
                  int(of["queries"]), int(of["gallery"]))
