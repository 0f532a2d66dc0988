"""Evaluate runs of phrases.train: each phrase ranks the box proposals of its own photo.

    python -m phrases.evaluate                                   # the newest run, the test split
    python -m phrases.evaluate --checkpoint runs/A runs/B --regions edgeboxes500_ims
    python -m phrases.evaluate --compare runs/A runs/B           # a paired bootstrap over photos
    python -m phrases.evaluate --confidence                      # how sure the first boxes are

Prints the recalls at IoU 0.5 beside the most that the proposals allow, by type and number of boxes, and
writes results.json. The confidence to use is "overlap", the posterior of all proposals at the place of the
first: the proposals of one object share the mass.
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import cli
import metrics
from checkpoints import Trained
from cli import Arguments, InputError, check, data_set, filename, positive, split_name, torch_device
from data import check_extractors
from evaluation import compare, confidence, report
from evaluation.confidence import Fitted, Seen, percent, title
from evaluation.embeddings import newest_run
from evaluation.pictures import IN_SET, OWN, Cell, Row, draw_rows, small, wrapped
from evaluation.plots import PICTURES, diagrams, pick
from evaluation.posterior import FITTED, temperature
from evaluation.protocols import replace_nan
from files.writing import output, save_json
from options import check_fits
from phrases.data import PhraseSplit, read_phrases, shares
from phrases.entities import photo_paths
from phrases.ranking import (
    RIGHT,
    Located,
    PhraseScores,
    Scored,
    ScoresOf,
    largest_first,
    locate,
    located,
    measures,
    outcomes,
    photo_by_photo,
)

SIDE = "phrases"                      # the name of this direction in results and pictures


# ---- what is evaluated

class Phrases(NamedTuple):
    """The phrases of a split, what scores them, and, of Gaussians, log det Sigma in nats."""
    name: str                         # for the reader, such as "f30k_entities test"
    split: PhraseSplit
    scores_of: ScoresOf
    phrase_log_det: np.ndarray | None = None      # (M,), None where phrases are points
    facts: dict = {"notes": []}                   # what results.json says of it
    seed: int | None = None                       # of the first run's training


def open_phrases(paths: list[str], opt, split_name: str) -> Phrases:
    """Runs, one or an ensemble, on a split of phrases. Raises InputError where they are not of
    these, or where they read other boxes."""
    device, models, split = torch_device(opt.device), [], None
    for path in paths:
        trained = Trained(path, device)
        own = trained.options
        check("positive_iou" in vars(own),
              f"{path} was trained on images and captions; evaluate it with evaluate.py")
        folder = opt.data_path or own.data_path, opt.data_name or own.data_name
        mine = read_phrases(os.path.join(*folder), split_name, opt.regions or own.regions, own.text_features)
        mine.require_sound()
        check_fits(own, mine.images, mine.text, path)
        check_extractors(trained.extractors, mine, own.text_features, path)
        if not models:
            first, split, name = trained, mine, folder[1]
        check(mine.phrases == split.phrases and mine.ids == split.ids,
              f"{path} is judged on other phrases than {paths[0]}; name one split with --data_name")
        check(np.array_equal(mine.boxes, split.boxes),
              f"{path} reads other boxes than {paths[0]}, and an ensemble needs the same; name "
              "proposals for all with --regions")
        tokens = mine.encode(trained.vocab, known=name == own.data_name)
        models.append((trained.model, mine.images, tokens))
    scores = PhraseScores(models, split, device, 32 * opt.batch_size)
    facts = {"checkpoints": paths, "data_name": name, "split": split.name,
             "images": len(split.ids), "captions": len(split.phrases), "protocols": {},
             "similarity": first.options.sim, "notes": [*first.notes, *split.notes]}
    return Phrases(f"{name} {split.name}", split, scores,
                   scores.phrase_log_det if first.model.text_tower.gaussian else None, facts, first.options.seed)


def results_of(of: Phrases, found: Located) -> dict:
    """What results.json holds of the recalls."""
    return {**of.facts, "localisation": measures(found, of.split),
            "proposals": of.split.proposals.facts}


# ---- the commands

def evaluate(paths: list[str], opt) -> tuple[dict, list, list[str], Callable[[Callable[[str], str]], None]]:
    """(results, tables, sentences, what draws the pictures with --confidence: it takes a function that
    names files)."""
    test, sure = open_phrases(paths, opt, opt.split), opt.confidence
    if sure:
        of, found = judge_phrases(open_phrases(paths, opt, "val"), test)
    else:
        found = locate(test.split, test.scores_of)
    results = results_of(test, found)
    results["baselines"] = {"largest": largest_first(test.split)}
    made = tables({paths[0] if len(paths) == 1 else "ensemble": results["localisation"]},
                  {"the largest proposals first": results["baselines"]["largest"]})
    lines = [sentence(results["localisation"]), *assumed(results)]
    if sure:
        results |= {**of.results, "calibration": of.calibration}
        made, lines = made + of.tables, lines + of.lines

    def draw(named: Callable[[str], str]) -> None:
        curves, shown = map(named, PICTURES)
        diagrams(of.results["confidence"], of.seen, curves)
        photos = [os.path.join(test.split.root, "images", f"{n}.jpg") for n in test.split.ids]
        with contextlib.suppress(InputError):               # some are gone, as that picture shows
            photos = photo_paths(test.split.root, test.split.ids)
        phrase_examples(shown, test.split, found, of.seen[SIDE], photos, test.name)
        print(f"how sure the first boxes are in {curves}, phrases in their photos in {shown}",
              file=sys.stderr)
    return results, made, lines, draw


def compare_all(groups: list[str], opt) -> tuple[dict, list, list[str]]:
    """(what a comparison's file holds, tables, sentences): the first run, or seeds joined by
    commas, against each of the others by a paired bootstrap over photos."""
    first = None

    def assessed(path: str) -> tuple[dict, dict]:
        nonlocal first
        of = open_phrases([path], opt, opt.split)
        first = first or of.split
        check(of.split.phrases == first.phrases and of.split.ids == first.ids,
              f"{path} is judged on other phrases than {groups[0]}; name one split with --data_name")
        found = locate(of.split, of.scores_of)
        return {**results_of(of, found), "seed": of.seed}, totals(found, of.split)
    runs, _, comparisons = compare.side_by_side(groups, assessed, lambda names: SUMS, over="photos")
    lines = list(dict.fromkeys(line for of in runs.values() for line in assumed(of)))
    return ({"runs": runs, "groups": {}, "comparisons": comparisons},
            tables({name: of["localisation"] for name, of in runs.items()}), lines)


SUMS = {"rsum": [f"r{k}" for k in metrics.RECALLS]}


def totals(found: Located, split: PhraseSplit) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{"r1" | "r5" | "r10": (total (N,), count (N,))} of the photos that have phrases, in percent,
    as `metrics.paired_bootstrap` takes it."""
    owner = np.unique(split.phrase_photo, return_inverse=True)[1]
    count, values = np.bincount(owner), outcomes(found)
    return {name: (np.bincount(owner, 100.0 * values[name]), count) for name in SUMS["rsum"]}


# ---- tables and sentences

COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "rsum": "rsum", "upper": "any box",
           "pointing": "pointing", "iou": "IoU", "phrases": "phrases"}
HEADINGS = {"by_type": "recall by type of the phrase; a phrase of several types counts in each",
            "by_boxes": "recall by the number of boxes of the phrase"}


def tables(runs: dict[str, dict], baselines: dict[str, dict] | None = None) -> list:
    """Tables of what `measures` returned, by name of the run, as report.py has them: all phrases,
    by type, by number of boxes. baselines: {what it is: `summary` of a ranking that reads no
    phrase}; they close the first table, as does the chance of the first run."""
    first = next(iter(runs.values()))
    made = [("phrase localisation, percent; a box is right from IoU 0.5, any box: the most that a "
             "ranking can reach",
             {**runs, **(baselines or {}), "proposals in random order": first["chance"]})]
    for key, heading in HEADINGS.items():
        groups = {group: {run: of[key][group] for run, of in runs.items()} for group in first[key]}
        if key == "by_type" and groups:
            groups["mean over types (macro)"] = {run: of["macro"] for run, of in runs.items()}
            groups["mean over phrases (micro)"] = runs
        if groups:
            made.append((heading, {report.label(run, group, len(runs) > 1): of
                                   for group, each in groups.items() for run, of in each.items()}))
    return [report.table(heading, COLUMNS, rows, lambda key, of: report.digits(
        key, of, "queries" * (key == "phrases"))) for heading, rows in made]


def sentence(results: dict) -> str:
    """What the tables do not show. results: what `measures` returned."""
    upper = results["upper"]
    reached = f", {100 * results['r1'] / upper:.1f}% of these" if upper else ""
    return (f"the proposals hold a right box for {upper:.1f}% of {results['phrases']:,} phrases of "
            f"{results['photos']:,} photos, and no ranking can be right more often; R@1 is "
            f"{results['r1']:.1f}% of all phrases{reached}; by chance "
            f"{results['chance']['r1']:.1f}%")


def assumed(results: dict) -> list[str]:
    """Sentences on what a result rests on."""
    return [f"proposals: {results['proposals']['method']}",
            *(f"note: {note}" for note in results["notes"])]


# ---- how sure

def padded(name: str, photos: list[Scored]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores (Q, G) of the phrases that some proposal is right for, and which proposals these
    are (Q, G) bool. G is their largest number of proposals, and -inf stands where a photo has
    fewer. Q is cut at random where there would be more than FITTED scores. name: of the data."""
    pairs = [(scores, hits) for photo in photos
             for scores, hits in zip(photo.scores, photo.overlap >= RIGHT) if hits.any()]
    check(pairs, f"no phrase of {name} has a proposal of IoU {RIGHT} with its box, so nothing can "
                 "be calibrated; extract more proposals, or leave --confidence out")
    most = FITTED // max(len(scores) for scores, _ in pairs)
    if len(pairs) > most:
        pairs = [pairs[k] for k in np.random.default_rng(0).permutation(len(pairs))[:most]]
    scores, right = ([torch.from_numpy(of) for of in side] for side in zip(*pairs))
    return pad_sequence(scores, True, -torch.inf), pad_sequence(right, True)


def look(of: Phrases, found: Located) -> Seen:
    """The first boxes of the phrases that have one: those of photos with proposals."""
    asked = np.flatnonzero(found.first >= 0)
    first = found.first[asked]
    values = {name: value[asked] for name, value in found.confidences.items()}
    if of.phrase_log_det is not None:
        values["log_det_query"] = -np.asarray(of.phrase_log_det, np.float64)[asked]
    return Seen(of.name, values, found.right[asked], asked, first, of.split.phrase_photo[asked],
                int(found.proposals.max()))


def fit(dev: Phrases) -> Fitted:
    """The temperature of the posterior over the proposals. Raises InputError where none fits."""
    photos = list(photo_by_photo(dev.split, dev.scores_of))
    seen = look(dev, located(dev.split, photos))
    return Fitted(temperature(*padded(dev.name, photos)), len(seen.right), seen.gallery)


def judge_phrases(dev: Phrases, test: Phrases) -> tuple[confidence.Report, Located]:
    """What is fitted on dev and judged on test, and what was found for the phrases of test."""
    fitted = fit(dev)
    found = locate(test.split, test.scores_of, fitted.temperature)
    worth, seen = confidence.judge(look(test, found))
    results, made = {"confidence": {SIDE: worth}}, confidence.tables({SIDE: worth})
    lines = list(sure_sentences(worth, fitted, dev, test, seen))
    return confidence.Report(results, made, lines, {"split": dev.name, SIDE: fitted._asdict()},
                     {SIDE: seen}), found


def sure_sentences(worth: dict, fitted: Fitted, dev: Phrases, test: Phrases, seen: Seen):
    """What the tables of `judge_phrases` do not show."""
    best = confidence.best_name(seen.values)
    without = len(test.split.phrase_photo) - len(seen.right)
    yield from confidence.LEGEND
    yield confidence.in_words(SIDE, worth, seen)
    yield (f"calibrated on {len(dev.split.phrase_photo):,} phrases of {dev.name}, judged on "
           f"{len(test.split.phrase_photo):,} of {test.name}; T = {fitted.temperature:.4g}, over "
           f"up to {fitted.gallery:,} proposals of a photo")
    if without:
        yield (f"{without:,} phrases of photos without proposals have no first box and are not "
               "among these")
    mean = percent(float(np.mean(seen.values[best])))
    yield (f"{title(best, SIDE)}: mean {mean}, {100 * seen.right.mean():.1f}"
           f"% are right, ECE {worth[best]['ece']:.3f} (by chance alone "
           f"{worth[best]['ece_floor']:.3f}), AUROC {worth[best]['auroc']:.3f}")


# ---- a picture of phrases in their photos

WRONG = "firebrick"                   # a first box; IN_SET: a right one, OWN: the truth
ACROSS, LETTERS = 5, 28               # photos of each kind, letters in a line above a photo
LEGEND = "green: the box of the phrase; blue: the box found first, red where it is wrong"
KINDS = {"the surest of the right": LEGEND,
         "the surest of the wrong": f"out of reach: no proposal has an IoU of {RIGHT} with the box "
                                    "of the phrase",
         "the least sure": ""}        # what is shown, and what is said of it


def phrase_examples(path: str, split: PhraseSplit, found: Located, seen: Seen, photos: list[str],
                    heading: str) -> None:
    """Draw phrases with their photos, their boxes and how sure the model is that the first one is
    right. photos: the file of each of the N photos, which may be gone."""
    def cell(q: int) -> Cell:
        m = int(seen.asked[q])
        n = split.phrase_photo[m]
        colour = IN_SET if found.right[m] else WRONG
        boxes = ((shares(split.boxes[found.first[m]], split.sizes[n]), colour),
                 (shares(split.truth[m], split.sizes[n]), OWN))
        outcome = f"IoU {found.iou[m]:.2f}" if found.rank[m] >= 0 else "out of reach"
        sure = f"{percent(p[q])} sure, {outcome}"
        label = f"{wrapped(split.phrases[m], LETTERS, 2)}\n{sure}"
        return Cell(small(photos[n]), label, boxes=boxes)
    p = seen.values[confidence.best_name(seen.values)]
    # one of each photo, as the same words stand in several of its sentences
    chosen = pick(p, seen.right, dict.fromkeys(KINDS, ACROSS), seen.owner)
    draw_rows(path, heading, [Row(kind, KINDS[kind], list(map(cell, some)))
                              for kind, some in chosen.items()], ACROSS)


# ---- the command

def run(opt) -> None:
    """Evaluate as the options say. Raises InputError on wrong options and files."""
    check(not (opt.checkpoint and opt.compare), "--checkpoint and --compare both name what to evaluate; give one")
    check(not opt.compare or len(opt.compare) > 1 and not opt.confidence,
          "--compare needs two runs or more, and is of their recalls alone; leave --confidence out")
    check(not opt.confidence or opt.split not in ("val", "dev"),
          f"--split {opt.split} is what the confidence is calibrated on; judge another split")
    paths = [path for group in opt.compare for path in group.split(",")] if opt.compare else opt.checkpoint
    paths = paths or [newest_run()]
    target = output(opt.output or default_file(paths, opt), paths, opt.overwrite or not opt.output)
    if opt.compare:
        results, tables, lines = compare_all(opt.compare, opt)
        pairs = results["comparisons"]
        tables, lines = tables + report.comparisons(pairs), [*lines, *report.doubts(pairs)]
    else:
        results, tables, lines, draw = evaluate(paths, opt)
        print(f"{results['data_name']} {results['split']}: {results['images']:,} photos, "
              f"{results['captions']:,} phrases"
              + f", mean of the scores of {len(paths)} models" * (len(paths) > 1))
    print("\n" + report.render(tables, opt.format))
    print("\n".join(lines))
    save_json(replace_nan(results), target)
    print(f"written to {target}")
    if opt.confidence:
        stem, _ = os.path.splitext(os.path.basename(target))
        stem = stem if "results" in stem else f"results_{stem}"
        draw(lambda name: os.path.join(os.path.dirname(target), f"{stem.replace('results', name, 1)}.png"))


def default_file(paths: list[str], opt) -> str:
    """The file of the results: results.json holds those of a run on its own data, proposals and test split."""
    several = "_".join(os.path.basename(os.path.normpath(path)) for path in paths)[:80] if len(paths) > 1 else ""
    words = filter(None, ["comparison" if opt.compare else "results", several, opt.data_name, opt.regions,
                          opt.split if opt.split != "test" else ""])
    folder = paths[0] if os.path.isdir(paths[0]) else os.path.dirname(paths[0])
    return os.path.join("" if opt.compare else folder, f"{'_'.join(words)}.json")


def parse_args(argv=None):
    p = Arguments("Evaluate the localisation of phrases.")
    add = p.add_argument
    add("--checkpoint", type=filename, metavar="RUN", nargs="+",
        help="run folders or checkpoint files; several are an ensemble (default: the newest run)")
    add("--compare", metavar="RUN", nargs="+",
        help="compare each run, or seeds joined by commas, with the first by a paired bootstrap over photos")
    add("--data_path", type=filename, help="folder that holds the data sets (default: that of the training)")
    add("--data_name", type=data_set, help="data set (default: that of the training)")
    add("--split", type=split_name, default="test", help="train, val or test")
    add("--regions", type=filename, metavar="NAME",
        help="other proposals of the photos, and their features, {split}_NAME.npy")
    add("--confidence", action="store_true",
        help="how sure the first boxes are, calibrated on val, with pictures beside the results")
    add("--format", choices=report.FORMATS, default="text", help="format of the tables")
    add("--output", type=filename, help="file of the results (default: results.json in the run folder)")
    add("--overwrite", action="store_true", help="replace the file of --output")
    add("--batch_size", type=positive, default=128, help="32 times as many regions are encoded at once")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes CUDA where it is present")
    return p.parse_args(argv)


def main(argv=None) -> None:
    cli.run("phrases.evaluate", run, parse_args(argv))


if __name__ == "__main__":
    main()
