"""Evaluate image-caption retrieval: trained models, embeddings of any model, or a matrix of scores.

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

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

import cli
from checkpoint import Trained
from cli import check, torch_device
from data import named_splits
from evaluation import bank, pictures
from evaluation.annotations import Pairs
from evaluation.compare import common_name, compare, refuse_repeats
from evaluation.embeddings import (
    Embeddings,
    embed,
    export,
    has_testall,
    kind_of,
    load_embeddings,
    load_scores,
    newest_run,
    uncertainties,
)
from evaluation.protocols import Record, assess, read_judgements, replace_nan
from evaluation.report import comparisons, count_judgements, doubts, render, seed_tables, sentences, tables
from files import atomic, output, repeated, save_json
from losses import formulas
from options import evaluation_parser, ready
from options import parse_evaluation as parse_args

UNCERTAINTY = ("uncertainty", "uncertain_images", "uncertain_captions")       # its pictures
RANKS = ["protocol", "direction", "query", "id", "rank_from_0"]     # columns of --ranks


def write_ranks(path: str, e: Embeddings, record: Record) -> None:
    """Write the rank of every query as CSV: protocol, direction, query, its id, 0-based rank of its best match."""
    ids = {"i": e.ids.get("image_id"), "t": e.ids.get("caption_id")}
    with atomic(path) as f:
        rows = csv.writer(f)
        rows.writerow(RANKS)
        for (protocol, side, name), values in record.items():
            if name == "rank":
                known = ids[side[0]] or [""] * len(values)
                rows.writerows((protocol, side, q, known[q], int(values[q]))
                               for q in np.flatnonzero(~np.isnan(values)))


def show_and_save(results: dict, all_tables: list, lines, target: str, opt) -> None:
    """Print tables and sentences, unless JSON is to be printed; write the results."""
    if opt.format != "json":
        print("\n" + render(all_tables, opt.format))
        print("\n".join(lines))
    save_json(results, target)
    print(f"written to {target}")


def run(opt) -> dict:
    """Evaluate as the options say; returns the results. Raises InputError on wrong options and files."""
    out, as_json = sys.stdout, opt.format == "json"
    with contextlib.redirect_stdout(sys.stderr if as_json else out):
        check(not opt.photos or os.path.isdir(opt.photos), f"--photos {opt.photos} is no folder; "
              "give the folder of the photos, or leave it out")
        results = compare_many(opt) if opt.compare else evaluate_one(opt)
    if as_json:
        print(json.dumps(results, indent=1), file=out)
    return results


# ---- what is evaluated

def load_models(paths: list[str], opt) -> dict[str, Trained]:
    """{path: model} on the device of the options. Raises InputError on --vocab where no checkpoint is of the original
    code of VSE++ or VSRN."""
    models = {path: Trained(path, torch_device(opt.device), vocab=opt.vocab) for path in paths}
    check(not opt.vocab or any(model.notes for model in models.values()),       # which converted ones have
          f"--vocab {opt.vocab} is for original checkpoints of VSE++ and VSRN, and none is given; leave it out")
    return models


def choose_split(models: dict[str, Trained], opt) -> None:
    """Set --split to testall for the protocols that judge 5,000 images, where it was not given and the folder has
    testall."""
    asked = [f"--{name}" for name in ("cxc", "pmrp", "eccv", "fold5") if getattr(opt, name)]
    for model in list(models.values())[:1] if asked and not opt.split else ():
        folder = os.path.join(opt.data_path or model.options.data_path, opt.data_name or model.options.data_name)
        if has_testall(folder):
            opt.split = "testall"
            print(f"{' and '.join(asked)}: taking the split testall of {folder} (--split test takes a part of it)")


def encoding_options(opt) -> dict:
    """Options of data and speed, as `embed` takes them."""
    return {name: getattr(opt, name) for name in ("data_path", "dev_images", "batch_size", "workers")}


def open_file(path: str, kind: str, opt) -> Embeddings:
    """Embeddings or scores of the file that is evaluated."""
    check(not opt.bank, f"--bank {opt.bank} needs a model that embeds the bank, and {path} is of the items of one "
                        "split; leave --bank out, or evaluate a trained run with --checkpoint")
    data = {name: getattr(opt, name) for name in ("data_path", "data_name", "split", "dev_images")}
    return load_scores(path, **data) if kind == "scores" else load_embeddings(path, opt.sim, **data)


def open_runs(models: list[Trained], opt) -> Embeddings:
    """Embeddings of the split by models, with the bank that the options name; prints a line per model, and writes what
    --export names."""
    how = encoding_options(opt)
    if opt.bank:
        bank.check_splits(opt.bank, opt.split or "test")
    e = embed(models, opt.split or "test", sim=opt.sim, data_name=opt.data_name, text_only=opt.cxc, **how)
    for model in models:
        mine = model.options
        print(f"{model.path}: {mine.sim}, image head {mine.image_head}, text head {mine.text_head}, epoch "
              f"{model.state['epoch']}, dev rsum {model.state['best_rsum']:.1f}")
    if opt.bank:
        check(e.has_images, f"--bank {opt.bank} normalises scores of images and captions, and {e.name} has no images "
                            "to score; leave --bank out, or give a split with features or photos")
        how["data_name"] = None if named_splits(e.folder) else opt.data_name     # photos by name have no other splits
        queries = embed(models, opt.bank, lambda s: bank.draw(s.caption_image, len(s.images), opt.bank_size),
                        sim=opt.sim, **how)
        e.bank, e.report["bank"] = bank.normalisation(e.members, embed(models, "dev", sim=opt.sim, **how),
                                                      queries.members, opt.bank)
    if opt.export:
        export(opt.export, e)
        note = (f": means{' and log-variances' * e.gaussian} only, from which its similarity "
                f"'{e.similarity}' cannot be recomputed") * (e.similarity not in (*formulas(), "mls"))
        print(f"embeddings in {opt.export}{note}")
    return e


# ---- the two commands

def compare_many(opt) -> dict:
    """Compare what --compare names, print tables and write the results; returns what the file holds."""
    paths = [path for group in opt.compare for path in group.split(",")]
    refuse_repeats("--compare", paths)
    models = load_models([path for path in paths if kind_of(path) == "run"], opt)
    choose_split(models, opt)
    target = comparison_file(opt)
    results = replace_nan(compare(opt.compare, lambda path: open_runs([models[path]], opt) if path in models else
                                  open_file(path, kind_of(path), opt), opt))
    runs, pairs = results["runs"], results["comparisons"]
    all_tables = tables(runs) + (seed_tables(results["groups"]) if len(runs) > len(results["groups"]) else [])
    lines = [f"{name}: {line}" for name, r in runs.items() for line in sentences(r)]
    lines += dict.fromkeys(f"note: {note}" for r in runs.values() for note in r.get("notes", ()))
    show_and_save(results, all_tables + comparisons(pairs), [*lines, *doubts(pairs)], target, opt)
    if opt.uncertainty:
        draw_curves({name: r.get("uncertainty", {}) for name, r in results["runs"].items()},
                    partial(beside, target=target))
    return results


def evaluate_one(opt) -> dict:
    """Evaluate a run, an ensemble, embeddings or scores, print tables and write the results; returns what results.json
    holds."""
    file = ready(opt)
    paths = [file] if file else opt.checkpoint or [newest_run()]
    if not file and not opt.checkpoint:
        print(f"no --checkpoint given, taking the newest run: {paths[0]}")
    refuse_repeats("--checkpoint", paths)
    check(not opt.export or len(paths) == 1, f"--export writes one model's embeddings, and "
                                             f"{len(paths)} checkpoints were given; export each alone")
    models = {} if file else load_models(paths, opt)
    choose_split(models, opt)
    target = check_outputs(paths, models, opt)
    results, all_tables, lines, draw = evaluate_captions(list(models.values()), opt)
    results = replace_nan(results)
    print(
        f"\n{' '.join(filter(None, [results['data_name'], results['split']]))}: "
        f"{results['images']:,} images, {results['captions']:,} captions"
        + (f", mean of the scores of {len(paths)} models" if len(paths) > 1 else "")
    )
    show_and_save(results, all_tables, lines, target, opt)
    if opt.ranks or opt.uncertainty:
        draw(partial(beside, target=target))
    return results


def evaluate_captions(models: list[Trained], opt) -> tuple[dict, list, list[str], Callable[[Callable], None]]:
    """(results, tables, sentences, what writes all else: it takes a function that names the files)."""
    e = open_runs(models, opt) if models else open_file(ready(opt), "embeddings" if opt.embeddings else "scores", opt)
    e.judged = read_judgements(e, opt)
    results, record = assess(e, opt)
    all_tables, lines = tables({e.name: results}), [*count_judgements(e), *sentences(results)]

    def draw(named: Callable[..., str]) -> None:
        if opt.ranks:
            write_ranks(opt.ranks, e, record)
            print(f"ranks of all queries in {opt.ranks}")
        if opt.uncertainty:
            draw_curves({e.name: results["uncertainty"]}, named)
            draw_extremes(e, pictures.locate(e.photos or e.ids.get("image_name"), opt.photos), named)
    lines += [f"note: {note}" for note in results.get("notes", ())]
    return results, all_tables, lines, draw


def draw_curves(reports: dict, named: Callable[[str], str]) -> None:
    """Draw `pictures.curves` beside the results, and say where."""
    path = named("uncertainty")
    if not any("recall_bins" in side for report in reports.values() for side in report.values()):
        return                                              # a text-only split has no recalls
    pictures.curves(reports, path)
    print(f"recall by uncertainty in {path}", file=sys.stderr)


def draw_extremes(e: Embeddings, photos, named: Callable[[str], str]) -> None:
    """Draw `pictures.extremes` of both sides beside the results, and say where."""
    pairs = Pairs.of(e.caption_image, np.arange(len(e.caption_image)))
    matches = e.judged["cxc"].pairs if "cxc" in e.judged else {"i2t": pairs, "t2i": pairs.swapped()}
    for side, values in uncertainties(e).items():
        path = named(f"uncertain_{side}")
        pictures.extremes(values, matches["i2t" if side == "images" else "t2i"], e.ids.get("caption"), photos,
                          e.caption_image, side == "images", path)
        print(f"most and least uncertain {side} in {path}", file=sys.stderr)


# ---- the files that are written: their names, and what is refused before the work begins

def check_outputs(paths: list[str], models: dict[str, Trained], opt) -> str:
    """The file of results. Raises InputError, before the work, where a file cannot be written, is
    named for two things, or was named and is there without --overwrite."""
    inputs = [path for path in (*paths, opt.vocab, opt.positives, opt.instances) if path]
    folder = paths[0] if os.path.isdir(paths[0]) else os.path.dirname(paths[0])
    target = opt.output or os.path.join(folder, default_name(paths, models, opt))
    named = [path for path in (opt.export, opt.ranks, opt.output) if path]
    drawn = [beside(name, target) for name in UNCERTAINTY * opt.uncertainty]
    outputs = [*named, *[target] * (not opt.output), *drawn]
    twice = repeated(map(os.path.realpath, outputs))
    check(twice is None, f"--export, --ranks, --output or a picture beside it name one file ({twice}) "
                         "for two things; name another")
    for path in outputs:                          # beside a run that does not exist nothing is tried
        if path in named or os.path.exists(paths[0]):
            output(path, inputs, opt.overwrite or path not in named)
    return target


def comparison_file(opt) -> str:
    """The file of a comparison. Raises InputError as `output` does."""
    paths = [path for group in opt.compare for path in group.split(",")]
    name = "_".join(os.path.basename(os.path.splitext(common_name(group.split(",")))[0])
                    for group in opt.compare)
    default = f"comparison_{name[:80]}{of_split(opt)}{suffixes(opt)}.json".replace(os.sep, "_")
    return output(opt.output or default, paths, opt.overwrite or not opt.output)


def default_name(paths: list[str], models: dict[str, Trained], opt) -> str:
    """The file name of the results. results.json holds those of a run's own similarity on the test
    split of its own data; all others say in their names what they hold."""
    of_sim, of_data, file = f"_{opt.sim}" * bool(opt.sim), of_split(opt), os.path.basename(paths[0])
    if ready(opt):
        name = f"{os.path.splitext(file)[0]}_results"
    elif len(paths) > 1:
        runs = "_".join(os.path.basename(os.path.normpath(path)) for path in paths)
        name = f"results_ensemble_{runs[:80]}"
    elif os.path.isdir(paths[0]) or file == "model_best.pt":
        name = "results"
    else:
        name = f"results_{file.split('.')[0]}"
    if (of_data or of_sim) and not ready(opt):
        trained = models[paths[0]].options
        own = opt.data_name in (None, trained.data_name) and opt.split in (None, "test")
        of_data = "" if own else of_split(opt, trained.data_name)
        of_sim *= opt.sim != trained.sim
    return f"{name}{of_sim}{of_data}{suffixes(opt)}.json".replace(os.sep, "_")


def of_split(opt, data_name: str = "") -> str:
    """The part of a file's name that names the data and the split; empty where the options name
    neither."""
    few = "" if opt.dev_images is None else str(opt.dev_images)
    named = filter(None, [opt.data_name or data_name, f"{opt.split or 'test'}{few}"])
    return "_".join(["", *named]) if opt.data_name or opt.split else ""


def suffixes(opt) -> str:
    """The part of a file's name that names the bank; empty without."""
    size = "" if opt.bank_size == evaluation_parser().get_default("bank_size") else opt.bank_size
    return f"_bank_{opt.bank}{size}" * bool(opt.bank)


def beside(name: str, target: str) -> str:
    """The file of a picture beside that of the results: NAME_DATA_SPLIT.png beside
    results_DATA_SPLIT.json, CLIP_NAME.png beside CLIP_results.json, mine_NAME.png beside
    mine.json."""
    folder, file = os.path.split(target)
    stem = os.path.splitext(file)[0]
    stem = stem.replace("results", name, 1) if "results" in stem else f"{stem}_{name}"
    return os.path.join(folder, f"{stem}.png")


def main(argv=None) -> None:
    opt = parse_args(argv)
    cli.run("evaluate.py", lambda: run(opt) and None)


if __name__ == "__main__":
    main()
