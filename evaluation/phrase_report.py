"""Evaluates runs that were trained on phrases and the regions of their photos: what evaluate.py does with these.

Each phrase ranks the proposals of its own photo. Reported are the recalls at IoU 0.5 beside the most that the proposals
allow, by type and number of boxes; with --confidence how sure the first boxes are; with --compare a paired bootstrap.
"""
import os
from collections.abc import Callable

import numpy as np

from checkpoints import load_checkpoint
from cli import InputError, torch_device
from evaluation.boxes_pictures import phrase_examples
from evaluation.compare import common_name, refuse_repeats
from evaluation.confidence_plots import diagrams
from evaluation.localisation import Located, compare, largest_first, locate, measures, sentences, tables
from evaluation.localisation_confidence import SIDE, Phrases, report
from evaluation.open import Where, holds_arrays_only, load_run
from evaluation.phrases import PhraseScores
from files.phrases import PhraseSplit
from files.reading import read_json, read_yaml

BLOCK = 1000                          # of --block, where it is not given
# Options of evaluate.py for images and captions alone.
OF_CAPTIONS = ("sim", "dev_images", "vocab", "fold5", "cxc", "pmrp", "eccv", "positives", "rerank", "bank",
               "uncertainty", "variances", "sets", "absent", "calibration", "calibrate_on", "photos", "ranks", "export")


def is_of_phrases(path: str) -> bool:
    """Whether a run was trained on phrases, by its config.yaml. A file without one is asked itself; what is no run of
    ours is none on phrases."""
    config = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), "config.yaml")
    try:
        if os.path.isfile(config):
            return bool(read_yaml(config)["options"].get("localise"))
        if not os.path.isfile(path) or holds_arrays_only(path):
            return False
        return bool(load_checkpoint(path)["options"].get("localise"))
    except (InputError, TypeError, KeyError, AttributeError):                      # whoever reads it says what is wrong
        return False


def check_options(opt, path: str) -> None:
    given = [name for name in OF_CAPTIONS if getattr(opt, name)] + ["block"] * (opt.block != BLOCK)
    if given:
        raise InputError(f"--{given[0]} is for images and captions, and {path} was trained on phrases and the "
                         "regions of their photos; leave it out")


class Opened:
    """Runs, one or an ensemble, on a split of phrases."""

    def __init__(self, paths: list[str], opt, split: str | None = None):
        where = Where(opt.data_path, opt.data_name, split or opt.split, opt.dev_images, opt.regions)
        runs = []
        for path in paths:
            if not is_of_phrases(path):
                raise InputError(f"{path} was trained on images and captions, and {paths[0]} is judged on phrases; "
                                 "evaluate them apart")
            runs.append(load_run(path, where, runs[0] if runs else None, phrases=True))
            if not isinstance(runs[-1].split, PhraseSplit):
                raise InputError(f"{path} was trained on phrases, and {os.path.join(*runs[-1].folder)} holds none; "
                                 "name data with phrases, or a run on images and captions")
            if not same_boxes(runs[-1].split, runs[0].split):
                raise InputError(f"{path} reads other boxes than {paths[0]}, and an ensemble needs the same; name "
                                 "proposals for all with --regions")
        self.split, self.notes, device = runs[0].split, runs[0].notes, torch_device(opt.device)
        self.folder, self.similarity = runs[0].folder, runs[0].trained.options.sim
        models = [run.trained.to(device).model for run in runs]
        scores = PhraseScores(models, [(run.split.images, run.tokens()) for run in runs], self.split, device,
                              32 * opt.batch_size)
        self.phrases = Phrases(f"{self.folder[1]} {self.split.name}", self.split, scores,
                               scores.phrase_log_det if models[0].text_tower.gaussian else None,
                               scores.region_log_det if models[0].image_tower.gaussian else None,
                               fitting_of(self.split))


def same_boxes(a: PhraseSplit, b: PhraseSplit) -> bool:
    """Whether both splits have the same phrases, their boxes, and the same proposals."""
    return (a.ids == b.ids and a.phrases == b.phrases and np.array_equal(a.truth, b.truth)
            and a.proposals.facts["boxes_sha256"] == b.proposals.facts["boxes_sha256"])


def fitting_of(split: PhraseSplit) -> np.ndarray | None:
    """How many things of its photo the words of each phrase fit, (M,), where the data set knows it (the demo does)."""
    path = os.path.join(split.root, f"{split.name}_fitting.json")
    if not os.path.isfile(path):
        return None
    stored = read_json(path, "write the demo data again")
    count = stored.get("count") if isinstance(stored, dict) else None
    if not isinstance(count, list) or len(count) != len(split.phrases):
        raise InputError(f"{path} does not tell how many things each of {len(split.phrases):,} phrases fits; write the "
                         "demo data again")
    return np.array(count, float)


def photos_of(split: PhraseSplit) -> list[str]:
    """The files of the photos; names of none where they are not there, as nothing but a picture needs them."""
    try:
        return split.photos()
    except InputError:
        return [os.path.join(split.root, "images", f"{photo}.jpg") for photo in split.ids]


def results_of(opened: Opened, paths: list[str], located: Located) -> dict:
    """What results.json holds of the recalls."""
    split = opened.split
    return {"checkpoints": paths, "data_name": opened.folder[1], "split": split.name, "images": len(split.ids),
            "captions": len(split.phrases), "similarity": opened.similarity, "protocols": {},
            "localisation": measures(located, split), "proposals": split.proposals.facts, "notes": opened.notes}


def assumed(results: dict) -> list[str]:
    """Sentences on what a result rests on."""
    return [f"proposals: {results['proposals']['method']}", *(f"note: {note}" for note in results["notes"])]


def evaluate(paths: list[str], opt) -> tuple[dict, list, list[str], Callable[[str, str], None] | None]:
    """(results, tables, sentences, with --confidence what draws the pictures: of reliability, of phrases)."""
    check_options(opt, paths[0])
    test, draw = Opened(paths, opt), None
    if opt.confidence:
        dev = Opened(paths, opt, "dev").phrases if test.split.name != "val" else test.phrases
        sure, located = report(dev, test.phrases)
    else:
        located = locate(test.split, test.phrases.scores_of)
    results = results_of(test, paths, located)
    results["baselines"] = {"largest": largest_first(test.split)}
    made = tables({paths[0] if len(paths) == 1 else "ensemble": results["localisation"]},
                  {"the largest proposals first": results["baselines"]["largest"]})
    lines = [*sentences(results["localisation"]), *assumed(results)]
    if opt.confidence:
        results |= {**sure.results, "calibration": sure.calibration}
        made, lines = made + sure.tables, lines + sure.lines

        def draw(curves: str, shown: str) -> None:
            diagrams(sure.results["confidence"], sure.seen, curves)
            phrase_examples(shown, test.split, located, sure.seen[SIDE], photos_of(test.split), test.phrases.name)
    return results, made, lines, draw


def compare_all(groups: list[str], opt) -> tuple[dict, list, list[str]]:
    """(what a comparison's file holds, tables, sentences): the first run, or seeds joined by commas, against each of
    the others by a paired bootstrap over photos."""
    runs, found, split = {}, {}, None
    refuse_repeats([path for group in groups for path in group.split(",")])
    for group in groups:
        for path in group.split(","):
            check_options(opt, path)
            opened = Opened([path], opt)
            if split is not None and (opened.split.phrases != split.phrases or opened.split.ids != split.ids):
                raise InputError(f"{path} is judged on other phrases than {groups[0]}; name one split with --data_name")
            split = opened.split
            located = locate(split, opened.phrases.scores_of)
            found.setdefault(group, []).append(located)
            runs[path] = results_of(opened, [path], located)
    label = {group: common_name(group.split(",")) for group in groups}
    base, *others = groups
    comparisons = [compare(found[base], found[other], split, (label[base], label[other])) for other in others]
    lines = list(dict.fromkeys(line for of in runs.values() for line in assumed(of)))
    return ({"runs": runs, "groups": {}, "comparisons": comparisons},
            tables({name: of["localisation"] for name, of in runs.items()}), lines)
