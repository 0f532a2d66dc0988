"""Evaluate runs of phrases.train: each phrase ranks the proposals of its photo.

    python -m phrases.evaluate                                   # the newest run, the test split
    python -m phrases.evaluate --checkpoint runs/A --regions edgeboxes500_ims
    python -m phrases.evaluate --compare A0,A1,A2 B0,B1,B2       # is the difference real?

Prints the recalls at IoU 0.5 beside the most that the proposals allow, and how well the posterior
over the boxes tells right top-1 boxes from wrong ones. Writes results.json.
--compare tests differences from the first group of seeds by a paired bootstrap over photos and
seeds.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os

import utils
from checkpoint import Trained
from evaluation import bootstrap, report
from evaluation.embeddings import newest_run
from evaluation.protocols import replace_nan
from phrases.data import parse_regions
from phrases.entities import entities_split
from phrases.posterior import add_posterior, describe_posterior, tabulate_posterior
from phrases.ranking import (
    measure_largest_first,
    measure_localisation,
    rank_photos,
    read_for_run,
    score_photos,
    total_by_photo,
)
from utils import (
    Arguments,
    InputError,
    data_set,
    filename,
    output,
    repeated,
    save_json,
    torch_device,
)

LOCALIZATION_COLUMNS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "rsum": "rsum",
    "upper": "any box",
    "phrases": "phrases",
}


def evaluate_run(trained: Trained, opt) -> tuple[dict, dict]:
    """Evaluate a run.

    Returns its results, and `total_by_photo`. Raises InputError for runs on captions.
    """
    path = trained.path
    own = trained.options
    if "positive_iou" not in vars(own):
        raise InputError(f"{path} was trained on images and captions; evaluate it with evaluate.py")
    data_name = opt.data_name or own.data_name
    root = os.path.join(opt.data_path or own.data_path, data_name)
    regions = opt.regions or parse_regions(str(own.regions))

    split, scores = read_for_run(trained, root, opt.split, regions)
    photos = len(split.ids)
    phrases = len(split.captions)
    print(f"{data_name} {split.name}: {photos:,} photos, {phrases:,} phrases")

    scored = list(score_photos(split, scores))
    located = rank_photos(scored)
    results = {
        "checkpoints": [path],
        "data_name": data_name,
        "split": split.name,
        "images": photos,
        "captions": phrases,
        "protocols": {},
        "similarity": own.sim,
        "notes": [*trained.notes, *split.notes],
        "localisation": measure_localisation(located, split),
        "proposals": split.proposals.facts,
        "baselines": {"largest": measure_largest_first(split)},
    }
    if not opt.compare:
        add_posterior(results, trained, scores, scored, root, regions)
    return results, total_by_photo(located, split)


def make_tables(results: dict) -> list:
    """Make tables of the results: all phrases beside two baselines, by type, and the posterior."""
    located = results["localisation"]
    rows = {
        results["checkpoints"][0]: located,
        "the largest proposals first": results["baselines"]["largest"],
        "proposals in random order": located["chance"],
    }
    of_all = report.table(
        "phrase localization, percent; a box is right from IoU 0.5, any box: the most that a "
        "ranking can reach",
        LOCALIZATION_COLUMNS,
        rows,
        format_result,
    )
    by_type = report.table(
        "recall by type of the phrase; a phrase of several types counts in each",
        LOCALIZATION_COLUMNS,
        located["by_type"],
        format_result,
    )
    tables = [of_all, by_type]
    if "posterior" in results:
        tables.append(tabulate_posterior(results["posterior"]))
    return tables


def format_result(column: str, row: dict) -> str:
    return report.number(row.get(column, ""))


def results_file(path: str, trained: Trained, opt) -> str:
    """Return the path of the results.

    results.json is of the run's own data, proposals and test split.
    """
    words = ["results", opt.data_name, opt.regions]
    if opt.split != "test":
        words.append(opt.split)
    if trained.training:
        words.append("unfinished")
    name = "_".join(filter(None, words)).replace(os.sep, "_")

    folder = path
    if not os.path.isdir(path):
        folder = os.path.dirname(path)
    return os.path.join(folder, f"{name}.json")


def evaluate_and_save(opt) -> None:
    """Evaluate as the options say. Raises InputError on wrong options and files."""
    if opt.compare:
        compare_runs(opt)
        return

    path = opt.checkpoint or newest_run()
    trained = Trained(path, torch_device(opt.device))
    target = opt.output or results_file(path, trained, opt)
    target = output(target, [path], opt.overwrite or not opt.output)

    results, _ = evaluate_run(trained, opt)
    print(f"\n{report.render(make_tables(results))}")
    if "posterior" in results:
        print(describe_posterior(results["posterior"]))
    print(f"proposals: {results['proposals']['method']}")
    for note in results["notes"]:
        print(f"note: {note}")
    save_json(replace_nan(results), target)
    print(f"written to {target}")


def parse_group(text: str) -> list[str]:
    """Parse paths of the seeds of one model, joined by commas."""
    return [filename(path) for path in text.split(",")]


def compare_runs(opt) -> None:
    """Compare groups of runs, each of several seeds, with the first.

    Raises InputError on less than two groups.
    """
    if opt.checkpoint:
        raise InputError("--compare names the runs; leave --checkpoint out")
    if len(opt.compare) < 2:
        raise InputError(
            f"--compare {','.join(opt.compare[0])} has nothing to compare with; give at least two "
            "runs, or groups of seeds such as A0,A1,A2 B0,B1,B2"
        )
    paths = []
    for group in opt.compare:
        paths += group
    twice = repeated([os.path.realpath(path) for path in paths])
    if twice is not None:
        raise InputError(f"--compare names {twice} more than once; name each run once")
    if opt.output:
        output(opt.output, paths, opt.overwrite)

    runs = {}
    totals = {}
    for path in paths:
        trained = Trained(path, torch_device(opt.device))
        results, totals[path] = evaluate_run(trained, opt)
        runs[path] = {**results, "seed": trained.options.seed}
    sets = {(results["data_name"], results["captions"]) for results in runs.values()}
    if len(sets) > 1:
        raise InputError(
            "the runs of --compare were trained on different data sets; name one with --data_name"
        )

    compared = bootstrap.compare_groups(opt.compare, runs, totals)
    tables = report.comparisons(compared["comparisons"])
    if len(paths) > len(opt.compare):
        tables = [*report.seed_tables(compared["groups"]), *tables]
    print(f"\n{report.render(tables)}")
    for line in bootstrap.describe_comparison(compared):
        print(line)
    if opt.output:
        save_json(replace_nan(compared), opt.output)
        print(f"written to {opt.output}")


def main(argv=None) -> None:
    p = Arguments("Evaluate the localization of phrases in photos.")
    add = p.add_argument
    add(
        "--checkpoint",
        type=filename,
        metavar="RUN",
        help="run folder or checkpoint file (default: the newest run)",
    )
    add(
        "--compare",
        type=parse_group,
        nargs="+",
        metavar="RUN",
        help="test the difference of runs from the first; "
        "seeds of one model are joined by commas: A0,A1,A2 B0,B1,B2",
    )
    add(
        "--data_path",
        type=filename,
        help="folder that holds the data sets (default: as in training)",
    )
    add("--data_name", type=data_set, help="data set (default: as in training)")
    help = "train, dev or test"
    add("--split", type=entities_split, default="test", metavar="SPLIT", help=help)
    add(
        "--regions",
        type=parse_regions,
        metavar="NAME",
        help="other proposals and their features, {split}_NAME.npy",
    )
    add(
        "--output",
        type=filename,
        metavar="FILE.json",
        help="file of the results (default: results.json in the run folder)",
    )
    add("--overwrite", action="store_true", help="replace the file of --output")
    utils.add_device(p)
    utils.run("phrases.evaluate", evaluate_and_save, p.parse_args(argv))


if __name__ == "__main__":
    main()
