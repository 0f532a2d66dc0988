"""Evaluate image-caption retrieval: runs, embeddings or a matrix of scores.

    python evaluate.py                                     # the newest run, its data set, the test split
    python evaluate.py --checkpoint runs/A runs/B          # an ensemble: the mean of their scores
    python evaluate.py --cxc --pmrp --uncertainty          # Crisscrossed Captions, PMRP, what the uncertainty tells
    python evaluate.py --compare runs/A runs/B             # is the difference real?
    python evaluate.py --embeddings clip.npz --cxc         # a model that was not trained here

Prints tables and writes results.json; `--export FILE.npz` keeps the embeddings.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import glob
import os
import sys
from dataclasses import replace

import numpy as np

import cli
import metrics
from checkpoint import Trained
from cli import InputError, check, torch_device
from data import named_splits
from evaluation import bank, pictures, trec
from evaluation.embeddings import Embeddings, check_same_items, embed, export, is_run, load_file, newest_run
from evaluation.protocols import assess, holds_scores, read_protocol_inputs, replace_nan
from evaluation.report import RATINGS, comparisons, describe_p_values, describe_results, render, seed_tables, tables
from files import output, repeated, save_json
from losses import list_functions
from options import parse_evaluation as parse_args


def evaluate_retrieval(opt) -> dict:
    """Evaluate, print tables, write the results and return them. Raises InputError."""
    check(not opt.photos or os.path.isdir(opt.photos), f"--photos {opt.photos} is not a folder; give the folder of the "
                                                       "photos, or leave it out")
    check(not opt.compare or len(opt.compare) > 1, f"--compare {(opt.compare or [''])[0]} has nothing to compare with; "
                                                   "give at least two runs, or use --checkpoint")
    if opt.compare and (opt.export or opt.retrieval or opt.trec):
        raise InputError("--export, --retrieval and --trec are of one model, and --compare names several; leave them "
                         "out, or use --checkpoint")
    check(not opt.export or not opt.embeddings and len(opt.checkpoint or [""]) == 1,
          "--export writes the embeddings of one run; name it alone with --checkpoint")
    named = opt.checkpoint or [path for group in opt.compare or () for path in group.split(",")]
    twice = repeated(map(os.path.realpath, named))
    check(twice is None, f"--{'compare' if opt.compare else 'checkpoint'} names {twice} more than once; name each once")
    return compare_models(named, opt) if opt.compare else evaluate_one(opt)


def evaluate_one(opt) -> dict:
    """Evaluate a run, an ensemble, embeddings or scores."""
    file = opt.embeddings
    paths = [file] if file else opt.checkpoint or [newest_run()]
    models = {} if file else load_models(paths, opt)
    if models and not opt.checkpoint:
        training = models[paths[0]].training
        unfinished = f", which is still training ({training})" if training else ""
        print(f"no --checkpoint given, using the newest run: {paths[0]}{unfinished}")
    choose_split(models, opt)
    target = results_file(paths, list(models.values()), opt)
    drawn = [*("uncertain_images", "uncertain_captions") * opt.uncertainty, *["retrieval"] * opt.retrieval]
    inputs = list_inputs(paths, opt)
    rankings = trec.list_files(opt.trec) if opt.trec else []
    check_outputs([target, *(beside(name, target) for name in drawn), *rankings], inputs, opt, rankings)
    e = embed_split(list(models.values()), opt) if models else read_embeddings(file, opt)
    e.judged = read_protocol_inputs(e, opt)
    results, _ = assess(e, opt)
    if opt.trec and not holds_scores(e):
        raise InputError(f"--trec needs the scores of all pairs, and {e.name} has no images or too many pairs to hold; "
                         "leave it out, or name a smaller split")
    photos = pictures.locate_photos(e, opt.photos) if opt.uncertainty or opt.retrieval else None
    # every input is read; from here on files are written
    if opt.export:
        export(opt.export, e)
        lacks = (f": means{' and log-variances' * e.gaussian} only, from which its similarity '{e.similarity}' cannot "
                 "be recomputed") * (e.similarity not in (*list_functions(), "mls"))
        print(f"embeddings in {opt.export}{lacks}")
    if opt.trec:
        trec.write_trec(opt.trec, e)
        print(f"rankings and right answers for trec_eval in {opt.trec}_i2t and _t2i, .run and .qrels")
    print(f"\n{' '.join(filter(None, [results['data_name'], e.split]))}: {e.n_images:,} images, "
          f"{len(e.caption_image):,} captions" + f", mean of the scores of {len(paths)} models" * (len(paths) > 1))
    lines = [*describe_results(results), *(f"note: {note}" for note in results.get("notes", ()))]
    write_results(results, tables({e.name: results}), lines, target)
    if photos and opt.retrieval and e.has_images:
        path = beside("retrieval", target)
        pictures.draw_retrieval(e, photos, path)
        print(f"captions and their best images in {path}", file=sys.stderr)
    for side in results["uncertainty"] if photos and opt.uncertainty else ():
        path = beside(f"uncertain_{side}", target)
        pictures.draw_extremes(e, photos, side, path)
        print(f"most and least uncertain {side} in {path}", file=sys.stderr)
    return results


def compare_models(paths: list[str], opt) -> dict:
    """Compare runs, embeddings and scores, or groups of seeds of them, with the first."""
    models = load_models([path for path in paths if is_run(path)], opt)
    choose_split(models, opt)
    names = [os.path.splitext(os.path.basename(os.path.normpath(path.split(",")[0])))[0] for path in opt.compare]
    unfinished = "unfinished" if any(model.training for model in models.values()) else None
    target = opt.output or join_words("comparison", *names, opt.data_name, opt.split, unfinished)
    check_outputs([target], list_inputs(paths, opt), opt)
    results = replace_nan(compare_groups(models, opt))
    runs, pairs = results["runs"], results["comparisons"]
    all_tables = tables(runs) + (seed_tables(results["groups"]) if len(runs) > len(results["groups"]) else [])
    lines = [f"{name}: {line}" for name, r in runs.items() for line in describe_results(r)]
    lines += dict.fromkeys(f"note: {note}" for r in runs.values() for note in r.get("notes", ()))
    write_results(results, all_tables + comparisons(pairs), [*lines, *describe_p_values(pairs)], target)
    return results


# ---- comparison by paired bootstraps of models on one split, or of seeds of each

def compare_groups(models: dict[str, Trained], opt) -> dict:
    """Compare groups with the first, each a path or the seeds of one model, "A0,A1".
    Returns {"runs": {path: its results}, "groups": {label: {metric: (mean, deviation, seeds)}}, "comparisons": [{"a",
    "b", "seeds", "pairs": whether these are of equal seeds, "metrics": what `metrics.paired_bootstrap` returns}]}.
    Raises InputError on other items."""
    paths = [group.split(",") for group in opt.compare]
    runs, totals, first = {}, {}, None
    for path in [path for group in paths for path in group]:
        e = embed_split([models[path]], opt) if path in models else read_embeddings(path, opt)
        if first is None:
            e.judged = read_protocol_inputs(e, opt)
            first = replace(e, members=[], matrix=None)
        else:
            e.notes += [note for note in check_same_items(e, first) if note not in e.notes]
            e.ids, e.photos, e.judged = first.ids, first.photos, first.judged
        results, record = assess(e, opt)
        runs[path] = {**results, "seed": e.models[0].options.seed if e.models else None}
        totals[path] = record.totals(first.caption_image, first.n_images)
    labels = [common_name(group) for group in paths]
    labels = labels if len(set(labels)) == len(labels) else opt.compare
    seeds = {label: summarise_seeds([totals[path] for path in group], [runs[path]["protocols"] for path in group])
             for label, group in zip(labels, paths)}
    # runs of equal seeds stand at equal places
    paths = [sorted(group, key=lambda path: runs[path]["seed"] or 0) for group in paths]
    run_seeds = [[runs[path]["seed"] for path in group] for group in paths]
    base, *others = ([totals[path] for path in group] for group in paths)
    bootstraps = []
    for label, other, other_seeds in zip(labels[1:], others, run_seeds[1:]):
        known = None not in other_seeds and len(set(other_seeds)) == len(other_seeds)
        pairs = len(base) > 1 and known and run_seeds[0] == other_seeds
        sums = list_rsums(set.intersection(*map(set, [*base, *other])))
        bootstraps.append({"a": labels[0], "b": label, "seeds": [len(base), len(other)], "pairs": pairs,
                           "metrics": metrics.paired_bootstrap(base, other, sums, pairs=pairs)})
    return {"runs": runs, "groups": seeds, "comparisons": bootstraps}


def list_rsums(names) -> dict[str, list[str]]:
    """List {"full rsum": its six recalls, ...} of each protocol that has all six."""
    sums = {f"{protocol} rsum": [f"{protocol} {side} r{k}" for side in ("i2t", "t2i") for k in metrics.RECALLS]
            for protocol in sorted({name.split()[0] for name in names})}
    return {name: terms for name, terms in sums.items() if set(terms) <= set(names)}


def summarise_seeds(totals: list[dict], protocols: list[dict]) -> dict[str, tuple[float, float, int]]:
    """Compute {metric: (mean, standard deviation, number of seeds)} of a group.
    totals: of `Record.totals`, per seed; protocols: of results.json, which hold the correlations with ratings."""
    values = {name: [t[name][0].sum() / t[name][1].sum() for t in totals] for name in totals[0]
              if all(name in t for t in totals)}
    values |= {name: list(np.sum([values[term] for term in terms], 0)) for name, terms in list_rsums(values).items()}
    for kind in RATINGS:
        correlations = [p.get("cxc", {}).get(kind, {}).get("spearman") for p in protocols]
        if None not in correlations:
            values[f"cxc {kind} rho x 100"] = [100 * rho for rho in correlations]
    return {name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, len(v))
            for name, v in values.items()}


def common_name(paths: list[str]) -> str:
    """Shorten runs/A0, runs/A1 to runs/A, or name the first of several folders."""
    paths = [os.path.normpath(path) for path in paths]
    shared = paths[0] if len(paths) == 1 else os.path.commonprefix(paths).rstrip("_-.")
    same = {os.path.dirname(path) for path in [shared, *paths]}
    return shared if os.path.basename(shared) and len(same) == 1 else paths[0]


# ---- what is evaluated

def load_models(paths: list[str], opt) -> dict[str, Trained]:
    """Load models, {path: model}, on the device of the options.
    Raises InputError on --vocab where no checkpoint is of the original code of VSE++ or VSRN."""
    models = {path: Trained(path, torch_device(opt.device), vocab=opt.vocab) for path in paths}
    check(not opt.vocab or any(model.converted for model in models.values()),
          f"--vocab {opt.vocab} is for original checkpoints of VSE++ and VSRN, and none is given; leave it out")
    return models


def choose_split(models: dict[str, Trained], opt) -> None:
    """Set a missing --split to testall for protocols of 5,000 images, if it is there."""
    asked = [f"--{name}" for name in ("cxc", "pmrp", "eccv", "fold5") if getattr(opt, name)]
    for model in list(models.values())[:1] if asked and not opt.split else ():
        folder = os.path.join(opt.data_path or model.options.data_path, opt.data_name or model.options.data_name)
        if os.path.isfile(os.path.join(folder, "testall_caps.txt")):
            opt.split = "testall"
            print(f"{' and '.join(asked)} evaluate the split testall of {folder} (--split test takes a part of it)")


def read_embeddings(path: str, opt) -> Embeddings:
    """The embeddings or scores of a file, of the split that the options name."""
    check(not opt.bank, f"--bank {opt.bank} needs a model that embeds the bank, and {path} is of the items of one "
                        "split; leave --bank out, or evaluate a trained run with --checkpoint")
    data = {name: getattr(opt, name) for name in ("data_path", "data_name", "split", "dev_images")}
    return load_file(path, opt.sim, **data)


def embed_split(models: list[Trained], opt) -> Embeddings:
    """Embed the split by models, with the bank of the options; print a line per model."""
    data = {name: getattr(opt, name) for name in ("sim", "data_path", "dev_images", "batch_size", "workers")}
    if opt.bank:
        bank.check_splits(opt.bank, opt.split or "test")
    e = embed(models, opt.split or "test", data_name=opt.data_name, text_only=opt.cxc, **data)
    for model in models:
        mine = model.options
        print(f"{model.path}: {mine.sim}, image head {mine.image_head}, text head {mine.text_head}, epoch "
              f"{model.state['epoch']}, dev rsum {model.state['best_rsum']:.1f}")
    if opt.bank:
        check(e.has_images, f"--bank {opt.bank} normalises scores of images and captions, and {e.name} has no images "
                            "to score; leave --bank out, or give a split with features or photos")
        # photos by name have no other splits; the bank comes from the training data
        data["data_name"] = None if named_splits(e.folder) else opt.data_name
        queries = embed(models, opt.bank, lambda split: bank.draw_queries(split.caption_image, len(split.images)),
                        **data)
        dev = embed(models, "dev", **data)
        e.bank, e.report["bank"] = bank.normalise(e.members, dev, queries.members, opt.bank)
    return e


# ---- what is written

def results_file(paths: list[str], models: list[Trained], opt, name: str = "results", *more: str | None) -> str:
    """Return the path of the results.
    NAME.json in the run folder for the test split of the run's own data by its own similarity, else
    NAME_SIM_DATA_SPLIT.json; FILE_NAME.json beside a file; --output names another. While a run is still training its
    results are called unfinished. more: words at the end."""
    folder, file = (paths[0], "model_best.pt") if os.path.isdir(paths[0]) else os.path.split(paths[0])
    words = [name if file == "model_best.pt" else f"{os.path.splitext(file)[0].removesuffix('.pth')}_{name}"]
    if len(paths) > 1:
        words += ["ensemble", *(os.path.basename(os.path.normpath(path)) for path in paths)]
    if not models:
        words.append(opt.sim)
    for model in models[:1]:
        data, own = (opt.data_name or model.options.data_name, opt.split or "test"), model.options
        words += [opt.sim if opt.sim != own.sim else None, *(data if data != (own.data_name, "test") else ())]
    if any(model.training for model in models):
        more = (*more, "unfinished")
    return opt.output or os.path.join(folder, join_words(*words, *more))


def join_words(*words: str | None) -> str:
    """The name of a .json file of words; None is left out."""
    return "_".join(filter(None, words))[:120].replace(os.sep, "_") + ".json"


def beside(name: str, target: str, results: str = "results", ending: str = "png") -> str:
    """Return the path of another file beside the results.
    NAME_DATA_SPLIT.png beside results_DATA_SPLIT.json, mine_NAME.png beside mine.json."""
    folder, file = os.path.split(target)
    stem = os.path.splitext(file)[0]
    stem = stem.replace(results, name, 1) if results in stem else f"{stem}_{name}"
    return os.path.join(folder, f"{stem}.{ending}")


def list_inputs(paths: list[str], opt) -> list[str]:
    """List the files that models, embeddings and options name; `files.note_inputs` learns of others when they are read.
    """
    inputs = [*paths, opt.vocab, opt.positives, opt.instances]
    for folder, pattern in ((opt.cxc_path, "*.csv"), (opt.eccv_path, "eccv_*.json")):
        if folder:
            inputs += glob.glob(os.path.join(glob.escape(folder), pattern))
    return inputs


def check_outputs(outputs: list[str], inputs: list[str | None], opt, more=()) -> None:
    """Check the files that will be written, and --export, before the work.

    more: those of the outputs that the user names, besides --export and --output. Raises InputError
    where one cannot be written, is named for two things, or exists without --overwrite.
    """
    outputs = [*outputs, *[opt.export] * bool(opt.export)]
    twice = repeated(map(os.path.realpath, outputs))
    check(twice is None, f"--export, --output or a file beside it name one file ({twice}) for two things; name another")
    for path in outputs:
        named = path in (opt.export, opt.output, *more)
        if named or os.path.exists(inputs[0]):              # beside a run that does not exist nothing is tried
            output(path, filter(None, inputs), opt.overwrite or not named)


def write_results(results: dict, all_tables: list, lines: list[str], target: str) -> None:
    """Print tables and sentences; write the results."""
    print("\n" + render(all_tables))
    print("\n".join(lines))
    save_json(results, target)
    print(f"written to {target}")


def main(argv=None) -> None:
    cli.run("evaluate.py", evaluate_retrieval, parse_args(argv))


if __name__ == "__main__":
    main()
