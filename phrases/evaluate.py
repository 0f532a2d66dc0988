"""Evaluate runs of phrases.train: each phrase ranks the proposals of its photo.

    python -m phrases.evaluate                                   # the newest run, the test split
    python -m phrases.evaluate --checkpoint runs/A --regions edgeboxes500_ims

Prints the recalls at IoU 0.5 beside the most that the proposals allow, and writes results.json.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

import cli
from checkpoint import Trained
from cli import Arguments, check, data_set, filename, torch_device
from data import check_extractors
from evaluation import report
from evaluation.embeddings import newest_run
from evaluation.protocols import replace_nan
from files import output, save_json
from options import check_fits
from phrases.data import parse_regions, read_phrases
from phrases.entities import SPLITS
from phrases.ranking import measure_largest_first, validate_phrases

COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "rsum": "rsum", "upper": "any box", "phrases": "phrases"}


def evaluate_run(trained: Trained, opt) -> dict:
    """Results of a run. Raises InputError for runs on captions."""
    path = trained.path
    own = trained.options
    check("positive_iou" in vars(own), f"{path} was trained on images and captions; evaluate it with evaluate.py")
    data_name = opt.data_name or own.data_name
    root = os.path.join(opt.data_path or own.data_path, data_name)
    regions = opt.regions or parse_regions(str(own.regions))
    split = read_phrases(root, opt.split, regions, own.text_features).require_sound()
    check_fits(own, split.images, split.text, path)
    check_extractors(trained.extractors, split, own.text_features, path)
    tokens = split.encode(trained.vocab)
    print(f"{data_name} {split.name}: {len(split.ids):,} photos, {len(split.captions):,} phrases")
    located = validate_phrases(trained.model, split, tokens, trained.device)
    return {"checkpoints": [path], "data_name": data_name, "split": split.name, "images": len(split.ids),
            "captions": len(split.captions), "protocols": {}, "similarity": own.sim,
            "notes": [*trained.notes, *split.notes], "localisation": located,
            "proposals": split.proposals.facts, "baselines": {"largest": measure_largest_first(split)}}


def make_tables(results: dict) -> list:
    """Tables of the results: all phrases beside two baselines, and by type."""
    located = results["localisation"]
    rows = {results["checkpoints"][0]: located, "the largest proposals first": results["baselines"]["largest"],
            "proposals in random order": located["chance"]}
    blocks = (("phrase localisation, percent; a box is right from IoU 0.5, any box: the most that a ranking can reach",
               rows), ("recall by type of the phrase; a phrase of several types counts in each", located["by_type"]))
    return [report.table(heading, COLUMNS, rows, lambda key, of: report.number(of.get(key, "")))
            for heading, rows in blocks]


def results_file(path: str, trained: Trained, opt) -> str:
    """Return the path of the results: results.json is of the run's own data, proposals and test split."""
    words = ["results", opt.data_name, opt.regions]
    if opt.split != "test":
        words.append(opt.split)
    if trained.training:
        words.append("unfinished")
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return os.path.join(folder, f"{'_'.join(filter(None, words)).replace(os.sep, '_')}.json")


def evaluate_and_save(opt) -> None:
    """Evaluate as the options say. Raises InputError on wrong options and files."""
    path = opt.checkpoint or newest_run()
    trained = Trained(path, torch_device(opt.device))
    target = output(opt.output or results_file(path, trained, opt), [path], opt.overwrite or not opt.output)
    results = evaluate_run(trained, opt)
    print("\n".join(["", report.render(make_tables(results)), f"proposals: {results['proposals']['method']}",
                     *(f"note: {note}" for note in results["notes"])]))
    save_json(replace_nan(results), target)
    print(f"written to {target}")


def main(argv=None) -> None:
    p = Arguments("Evaluate the localisation of phrases.")
    add = p.add_argument
    add("--checkpoint", type=filename, metavar="RUN", help="run folder or checkpoint file (default: the newest run)")
    add("--data_path", type=filename, help="folder that holds the data sets (default: as in training)")
    add("--data_name", type=data_set, help="data set (default: as in training)")
    add("--split", choices=SPLITS, default="test", help="split")
    add("--regions", type=parse_regions, metavar="NAME", help="other proposals and their features, {split}_NAME.npy")
    add("--output", type=filename, help="file of the results (default: results.json in the run folder)")
    add("--overwrite", action="store_true", help="replace the file of --output")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    cli.run("phrases.evaluate", evaluate_and_save, p.parse_args(argv))


if __name__ == "__main__":
    main()
