"""Evaluate runs of phrases.train: each phrase ranks the proposals of its photo.

    python -m phrases.evaluate                                   # the newest run, the test split
    python -m phrases.evaluate --checkpoint runs/A runs/B --regions edgeboxes500_ims
    python -m phrases.evaluate --compare runs/A runs/B           # a paired bootstrap over photos

Prints the recalls at IoU 0.5 beside the most that the proposals allow, and writes results.json.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

import numpy as np

import cli
import metrics
from checkpoint import Trained
from cli import Arguments, check, data_set, filename, positive, torch_device
from data import check_extractors
from evaluation import report
from evaluation.compare import side_by_side
from evaluation.embeddings import newest_run
from evaluation.protocols import replace_nan
from files import output, save_json
from options import check_fits
from phrases.data import PhraseSplit, read_phrases
from phrases.entities import SPLITS
from phrases.ranking import Located, PhraseScores, largest_first, locate, measures, outcomes

SUMS = {"rsum": [f"r{k}" for k in metrics.RECALLS]}
COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "rsum": "rsum", "upper": "any box", "pointing": "pointing",
           "iou": "IoU", "phrases": "phrases"}
HEADINGS = {"by_type": "recall by type of the phrase; a phrase of several types counts in each",
            "by_boxes": "recall by the number of boxes of the phrase"}


def evaluate(paths: list[str], opt) -> tuple[dict, Located, PhraseSplit]:
    """Results of a run, or of the mean scores of several; the ranks, the split.

    Raises InputError for runs on captions, or that read other phrases or boxes than the first.
    """
    device, models, first = torch_device(opt.device), [], None
    runs = [Trained(path, device) for path in paths]
    for path, trained in zip(paths, runs):
        own = trained.options
        check("positive_iou" in vars(own), f"{path} was trained on images and captions; evaluate it with evaluate.py")
        root = os.path.join(opt.data_path or own.data_path, opt.data_name or own.data_name)
        split = read_phrases(root, opt.split, opt.regions or own.regions, own.text_features).require_sound()
        check_fits(own, split.images, split.text, path)
        check_extractors(trained.extractors, split, own.text_features, path)
        first = first or split
        check(split.phrases == first.phrases and np.array_equal(split.boxes, first.boxes),
              f"{path} reads other phrases or boxes than {paths[0]}, and an ensemble needs the same; name them for all "
              "with --data_name and --regions")
        models.append((trained.model, split.images, split.encode(trained.vocab, known=not opt.data_name)))
    own = runs[0].options
    data_name = opt.data_name or own.data_name
    print(f"{data_name} {first.name}: {len(first.ids):,} photos, {len(first.phrases):,} phrases"
          + f", mean of the scores of {len(paths)} models" * (len(paths) > 1))
    located = locate(first, PhraseScores(models, first, device, 32 * opt.batch_size))
    results = {"checkpoints": paths, "data_name": data_name, "split": first.name, "images": len(first.ids),
               "captions": len(first.phrases), "protocols": {}, "similarity": own.sim,
               "notes": [*runs[0].notes, *first.notes], "localisation": measures(located, first),
               "proposals": first.proposals.facts, "baselines": {"largest": largest_first(first)}}
    return results | ({"seed": own.seed} if opt.compare else {}), located, first


def compare(groups: list[str], opt) -> dict:
    """Results of runs, and a paired bootstrap over photos of the first against others.

    groups: runs, or seeds joined by commas.
    """
    splits = []

    def assess(path: str) -> tuple[dict, dict]:
        results, located, split = evaluate([path], opt)
        splits.append(split)
        check(split.phrases == splits[0].phrases and split.ids == splits[0].ids,
              f"{path} is judged on other phrases than {groups[0]}; name one split with --data_name")
        return results, totals(located, split)
    runs, _, pairs = side_by_side(groups, assess, lambda names: SUMS, over="photos")
    return {"runs": runs, "groups": {}, "comparisons": pairs}


def totals(located: Located, split: PhraseSplit) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{"r1" | "r5" | "r10": (total (N,), count (N,))} of photos, in percent.
    Photos with phrases."""
    owner = np.unique(split.phrase_photo, return_inverse=True)[1]
    count, values = np.bincount(owner), outcomes(located)
    return {name: (np.bincount(owner, 100.0 * values[name]), count) for name in SUMS["rsum"]}


def make_tables(runs: dict[str, dict]) -> list:
    """Tables of the results of runs: all phrases, by type and by number of boxes."""
    measured, first = {name: run["localisation"] for name, run in runs.items()}, next(iter(runs.values()))
    blocks = [("phrase localisation, percent; a box is right from IoU 0.5, any box: the most that a ranking can reach",
               {**measured, "the largest proposals first": first["baselines"]["largest"],
                "proposals in random order": first["localisation"]["chance"]})]
    for key, heading in HEADINGS.items():
        groups = {group: {run: of[key][group] for run, of in measured.items()} for group in first["localisation"][key]}
        if key == "by_type" and groups:
            groups["mean over types (macro)"] = {run: of["macro"] for run, of in measured.items()}
            groups["mean over phrases (micro)"] = measured
        blocks.append((heading, {f"{run}: {group}" if len(runs) > 1 else group: numbers
                                 for group, of in groups.items() for run, numbers in of.items()}))
    return [report.table(heading, COLUMNS, rows, lambda key, of: report.number(of.get(key, "")))
            for heading, rows in blocks if rows]


def reach_sentence(results: dict) -> str:
    """A sentence on what proposals allow and a ranking reaches, by its `measures`."""
    upper = results["upper"]
    reached = f", {100 * results['r1'] / upper:.1f}% of these" if upper else ""
    return (f"the proposals hold a right box for {upper:.1f}% of {results['phrases']:,} phrases of "
            f"{results['photos']:,} photos, and no ranking can be right more often; R@1 is {results['r1']:.1f}% of all "
            f"phrases{reached}; by chance {results['chance']['r1']:.1f}%")


def run(opt) -> None:
    """Evaluate as the options say. Raises InputError on wrong options and files."""
    check(not (opt.checkpoint and opt.compare), "--checkpoint and --compare both name what to evaluate; give one")
    check(not opt.compare or len(opt.compare) > 1, f"--compare {opt.compare} is one run; give two, or use --checkpoint")
    paths = [path for group in opt.compare for path in group.split(",")] if opt.compare else opt.checkpoint
    paths = paths or [newest_run()]
    target = output(opt.output or default_file(paths, opt), paths, opt.overwrite or not opt.output)
    if opt.compare:
        results = compare(opt.compare, opt)
        runs, pairs = results["runs"], results["comparisons"]
    else:
        results = evaluate(paths, opt)[0]
        runs, pairs = {"ensemble" if len(paths) > 1 else paths[0]: results}, []
    lines = []
    for r in runs.values():
        lines += [reach_sentence(r["localisation"]), f"proposals: {r['proposals']['method']}",
                  *(f"note: {note}" for note in r["notes"])]
    print("\n".join(["", report.render([*make_tables(runs), *report.comparisons(pairs)], opt.format),
                     *dict.fromkeys(lines), *report.doubts(pairs)]))
    save_json(replace_nan(results), target)
    print(f"written to {target}")


def default_file(paths: list[str], opt) -> str:
    """Name the file of the results: results.json in the run folder, or a longer name.

    results.json holds the results on the run's own data, proposals and test split.
    """
    several = "_".join(os.path.basename(os.path.normpath(path)) for path in paths)[:80] if len(paths) > 1 else ""
    words = ["comparison" if opt.compare else "results", several, opt.data_name, opt.regions,
             opt.split * (opt.split != "test")]
    folder = paths[0] if os.path.isdir(paths[0]) else os.path.dirname(paths[0])
    return os.path.join("" if opt.compare else folder, f"{'_'.join(filter(None, words))}.json")


def parse_args(argv=None):
    p = Arguments("Evaluate the localisation of phrases.")
    add = p.add_argument
    add("--checkpoint", type=filename, metavar="RUN", nargs="+",
        help="run folders or checkpoint files; several are an ensemble (default: the newest run)")
    add("--compare", metavar="RUN", nargs="+",
        help="compare each run, or seeds joined by commas, with the first by a paired bootstrap over photos")
    add("--data_path", type=filename, help="folder that holds the data sets (default: as in training)")
    add("--data_name", type=data_set, help="data set (default: as in training)")
    add("--split", choices=SPLITS, default="test", help="split")
    add("--regions", type=filename, metavar="NAME", help="other proposals and their features, {split}_NAME.npy")
    add("--format", choices=report.FORMATS, default="text", help="format of the tables")
    add("--output", type=filename, help="file of the results (default: results.json in the run folder)")
    add("--overwrite", action="store_true", help="replace the file of --output")
    add("--batch_size", type=positive, default=128, help="32 times as many regions are encoded at once")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    return p.parse_args(argv)


def main(argv=None) -> None:
    cli.run("phrases.evaluate", run, parse_args(argv))


if __name__ == "__main__":
    main()
