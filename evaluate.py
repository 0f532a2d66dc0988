"""Evaluate image-caption retrieval: runs, embeddings or a matrix of scores.

    python evaluate.py                               # the newest run, its data set, the test split
    python evaluate.py --checkpoint runs/A runs/B    # an ensemble: the mean of their scores
    python evaluate.py --cxc --pmrp --uncertainty    # Crisscrossed Captions, PMRP, uncertainty
    python evaluate.py --compare runs/A runs/B       # is the difference real?
    python evaluate.py --embeddings clip.npz --cxc   # a model that was not trained here

Prints tables and writes results.json; `--export FILE.npz` keeps the embeddings.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import glob
import os
import sys
from dataclasses import replace

import utils
from checkpoint import Trained
from data import Gallery, Split, named_splits
from evaluation import bank, pictures, trec
from evaluation.embeddings import Embeddings, check_same_items, embed, export, newest_run
from evaluation.protocols import assess, holds_scores, read_protocol_inputs, replace_nan
from evaluation.reading import is_run, load_file
from evaluation.report import (
    check_outputs,
    describe_results,
    name_comparison_file,
    name_file_beside,
    name_results_file,
    render,
    tables,
)
from losses import list_functions
from options import parse_evaluation as parse_args
from utils import InputError, repeated, save_json, torch_device

# Options that every split is embedded with.
EMBED_OPTIONS = ("sim", "data_path", "dev_images", "batch_size", "workers")


def evaluate_retrieval(opt) -> dict:
    """Evaluate, print tables, write the results and return them.

    Raises InputError where options, inputs or outputs do not fit.
    """
    check_request(opt)
    if opt.compare:
        return compare_models(opt)

    # load
    paths, models = load_subject(opt)
    choose_split(models, opt)
    target = name_results_file(paths, models, opt)
    check_evaluation_outputs(target, paths, opt)

    # embed
    if models:
        e = embed_split(models, opt)
    else:
        e = read_embeddings(opt.embeddings, opt)

    # score, and rank by each protocol
    e.judged = read_protocol_inputs(e, opt)
    results, _ = assess(e, opt)

    # every input is read before a file is written
    if opt.trec:
        check_rankings(e)
    photos = None
    if opt.uncertainty or opt.retrieval:
        photos = pictures.locate_photos(e, opt.photos)
    if opt.export:
        export_embeddings(e, opt.export)
    if opt.trec:
        trec.write_trec(opt.trec, e)
        print(
            f"rankings and right answers for trec_eval in {opt.trec}_i2t and _t2i, .run and .qrels"
        )

    # tables
    print_heading(e, results, len(paths))
    lines = list(describe_results(results))
    lines += [f"note: {note}" for note in results.get("notes", ())]
    write_results(results, tables({e.name: results}), lines, target)

    if photos:
        draw_pictures(e, photos, results, target, opt)
    return results


def compare_models(opt) -> dict:
    """Compare runs, embeddings and scores, or groups of seeds of them, with the first.

    Prints tables, writes the results and returns them. Raises InputError as `evaluate_retrieval`
    does, and where two runs are not of the same items.
    """
    from evaluation import bootstrap  # here, since an evaluation of one model compares nothing

    # load
    paths = list_compared(opt)
    models = load_models([path for path in paths if is_run(path)], opt)
    choose_split(list(models.values()), opt)
    target = name_comparison_file(models, opt)
    check_outputs([target], list_inputs(paths, opt), opt)

    # embed, score, and rank by each protocol
    runs, totals = assess_runs(paths, models, opt)

    # compare
    groups = [group.split(",") for group in opt.compare]
    results = replace_nan(bootstrap.compare_groups(groups, runs, totals))

    # tables
    all_tables = bootstrap.comparison_tables(results)
    write_results(results, all_tables, bootstrap.describe_comparison(results), target)
    return results


def assess_runs(paths: list[str], models: dict[str, Trained], opt) -> tuple[dict, dict]:
    """Evaluate runs, embeddings and scores, one after the other, on the items of the first.

    Returns {path: its results, and "seed"} and {path: `Record.totals`}. Raises InputError on other
    items.
    """
    runs = {}
    totals = {}
    first = None
    for path in paths:
        if path in models:
            e = embed_split([models[path]], opt)
        else:
            e = read_embeddings(path, opt)

        if first is None:
            e.judged = read_protocol_inputs(e, opt)
            # the items alone, so that the embeddings are let go of
            first = replace(e, members=[], matrix=None, matrix_t2i=None)
        else:
            notes = check_same_items(e, first)
            e.notes += [note for note in notes if note not in e.notes]
            e.ids = first.ids
            e.photos = first.photos
            e.judged = first.judged

        results, record = assess(e, opt)
        seed = None
        if e.models:
            seed = e.models[0].options.seed
        runs[path] = {**results, "seed": seed}
        totals[path] = record.totals(first.caption_image, first.n_images)
    return runs, totals


# ---- what is asked


def check_request(opt) -> None:
    """Raise InputError where options do not go together."""
    if opt.photos and not os.path.isdir(opt.photos):
        raise InputError(
            f"--photos {opt.photos} is not a folder; give the folder of the photos, or leave it out"
        )
    if opt.compare and len(opt.compare) < 2:
        raise InputError(
            f"--compare {opt.compare[0]} has nothing to compare with; give at least "
            "two runs, or use --checkpoint"
        )
    if opt.compare and (opt.export or opt.retrieval or opt.trec):
        raise InputError(
            "--export, --retrieval and --trec are of one model, and --compare names "
            "several; leave them out, or use --checkpoint"
        )
    if opt.photos and not (opt.retrieval or opt.uncertainty):
        raise InputError(
            "--photos is for the pictures of --retrieval and --uncertainty; give one of these, or "
            "leave it out"
        )
    if opt.vocab and opt.embeddings:
        raise InputError(
            f"--vocab {opt.vocab} is for original checkpoints of VSE++ and VSRN, and --embeddings "
            "reads none; leave it out"
        )
    if opt.export and (opt.embeddings or len(opt.checkpoint or [""]) > 1):
        raise InputError(
            "--export writes the embeddings of one run; name it alone with --checkpoint"
        )

    option = "--checkpoint"
    named = opt.checkpoint or []
    if opt.compare:
        option = "--compare"
        named = list_compared(opt)
    twice = repeated([os.path.realpath(path) for path in named])
    if twice is not None:
        raise InputError(f"{option} names {twice} more than once; name each once")


def list_compared(opt) -> list[str]:
    """List the paths of --compare, group by group: A0,A1 B0,B1."""
    paths = []
    for group in opt.compare:
        paths += group.split(",")
    return paths


# ---- what is evaluated


def load_subject(opt) -> tuple[list[str], list[Trained]]:
    """Load the run or the ensemble that is evaluated, by default the newest run.

    Returns its paths and models; for embeddings or scores of a file their path alone.
    """
    if opt.embeddings:
        return [opt.embeddings], []
    if opt.checkpoint:
        return opt.checkpoint, list(load_models(opt.checkpoint, opt).values())

    path = newest_run()
    models = load_models([path], opt)
    training = models[path].training
    unfinished = ""
    if training:
        unfinished = f", which is still training ({training})"
    print(f"no --checkpoint given, using the newest run: {path}{unfinished}")
    return [path], [models[path]]


def load_models(paths: list[str], opt) -> dict[str, Trained]:
    """Load models, {path: model}, on the device of the options.

    Raises InputError on --vocab where no checkpoint is of the original code of VSE++ or VSRN.
    """
    models = {}
    for path in paths:
        models[path] = Trained(path, torch_device(opt.device), vocab=opt.vocab)
    if opt.vocab and not any(model.converted for model in models.values()):
        raise InputError(
            f"--vocab {opt.vocab} is for original checkpoints of VSE++ and VSRN, and "
            "none is given; leave it out"
        )
    return models


def choose_split(models: list[Trained], opt) -> None:
    """Set a missing --split to testall for protocols of 5,000 images, if the data set has it."""
    protocols = ("cxc", "pmrp", "eccv", "fold5")
    asked = [f"--{name}" for name in protocols if getattr(opt, name)]
    if not models or not asked or opt.split:
        return

    own = models[0].options
    folder = os.path.join(opt.data_path or own.data_path, opt.data_name or own.data_name)
    if os.path.isfile(os.path.join(folder, "testall_caps.txt")):
        opt.split = "testall"
        print(
            f"{' and '.join(asked)} evaluate the split testall of {folder} "
            "(--split test takes a part of it)"
        )


def read_embeddings(path: str, opt) -> Embeddings:
    """Read the embeddings or scores of a file, of the split that the options name."""
    if opt.bank:
        raise InputError(
            f"--bank {opt.bank} needs a model that embeds the bank, and {path} is of "
            "the items of one split; leave --bank out, or evaluate a trained run with "
            "--checkpoint"
        )
    return load_file(
        path,
        opt.sim,
        by_direction=True,
        data_path=opt.data_path,
        data_name=opt.data_name,
        split=opt.split,
        dev_images=opt.dev_images,
    )


def embed_split(models: list[Trained], opt) -> Embeddings:
    """Embed the split by models, with the bank of the options; print a line for each model."""
    split = opt.split or "test"
    if opt.bank:
        bank.check_splits(opt.bank, split)

    settings = {name: getattr(opt, name) for name in EMBED_OPTIONS}
    e = embed(models, split, data_name=opt.data_name, text_only=opt.cxc, **settings)
    for model in models:
        own = model.options
        print(
            f"{model.path}: {own.sim}, image head {own.image_head}, text head {own.text_head}, "
            f"epoch {model.state['epoch']}, dev rsum {model.state['best_rsum']:.1f}"
        )

    if opt.bank:
        add_bank(e, models, settings, opt)
    return e


def add_bank(e: Embeddings, models: list[Trained], settings: dict, opt) -> None:
    """Embed the bank of queries and dev, and keep the terms that normalize the scores in e.bank.

    Raises InputError where there are no images to score.
    """
    if not e.has_images:
        raise InputError(
            f"--bank {opt.bank} normalizes scores of images and captions, and "
            f"{e.name} has no images to score; leave --bank out, or give a split "
            "with features or photos"
        )

    def draw_part(split: Split) -> Gallery:
        return bank.draw_queries(split.caption_image, len(split.images))

    # photos by name have no other splits; the bank comes from the training data
    data_name = opt.data_name
    if named_splits(e.folder):
        data_name = None
    queries = embed(models, opt.bank, draw_part, data_name=data_name, **settings)
    dev = embed(models, "dev", data_name=data_name, **settings)
    e.bank, e.report["bank"] = bank.fit_terms(e.members, dev, queries.members, opt.bank)


# ---- which files are read and written


def list_inputs(paths: list[str], opt) -> list[str | None]:
    """List the files that models, embeddings and options name.

    `utils.note_inputs` learns of others when they are read.
    """
    inputs = [*paths, opt.vocab, opt.positives, opt.instances, *(opt.hard_negatives or ())]
    for folder, pattern in ((opt.cxc_path, "*.csv"), (opt.eccv_path, "eccv_*.json")):
        if folder:
            inputs += glob.glob(os.path.join(glob.escape(folder), pattern))
    return inputs


def check_evaluation_outputs(target: str, paths: list[str], opt) -> None:
    """Check the results, pictures and rankings of one evaluation, as `check_outputs` does."""
    outputs = [target]
    if opt.uncertainty:
        outputs.append(name_file_beside("uncertain_images", target))
        outputs.append(name_file_beside("uncertain_captions", target))
    if opt.retrieval:
        outputs.append(name_file_beside("retrieval", target))

    rankings = []
    if opt.trec:
        rankings = trec.list_files(opt.trec)
    check_outputs([*outputs, *rankings], list_inputs(paths, opt), opt, rankings)


def check_rankings(e: Embeddings) -> None:
    """Raise InputError where --trec asks for rankings of scores that cannot be held."""
    if not holds_scores(e):
        raise InputError(
            f"--trec needs the scores of all pairs, and {e.name} has no images or too "
            "many pairs to hold; leave it out, or name a smaller split"
        )


# ---- writing


def export_embeddings(e: Embeddings, path: str) -> None:
    """Write embeddings, and say where their similarity cannot be recomputed from the file."""
    export(path, e)
    lacks = ""
    if e.similarity not in (*list_functions(), "mls"):
        kinds = "means"
        if e.gaussian:
            kinds = "means and log-variances"
        lacks = f": {kinds} only, from which its similarity '{e.similarity}' cannot be recomputed"
    print(f"embeddings in {path}{lacks}")


def print_heading(e: Embeddings, results: dict, models: int) -> None:
    """Print what was evaluated: data set, split, sizes, and the number of models of an ensemble."""
    subject = " ".join(word for word in (results["data_name"], e.split) if word)
    ensemble = ""
    if models > 1:
        ensemble = f", mean of the scores of {models} models"
    print(f"\n{subject}: {e.n_images:,} images, {len(e.caption_image):,} captions{ensemble}")


def draw_pictures(e: Embeddings, photos, results: dict, target: str, opt) -> None:
    """Draw the pictures of --retrieval and --uncertainty beside the results."""
    if opt.retrieval and e.has_images:
        path = name_file_beside("retrieval", target)
        pictures.draw_retrieval(e, photos, path)
        print(f"captions and their best images in {path}", file=sys.stderr)

    if opt.uncertainty:
        for side in results["uncertainty"]:
            path = name_file_beside(f"uncertain_{side}", target)
            pictures.draw_extremes(e, photos, side, path)
            print(f"most and least uncertain {side} in {path}", file=sys.stderr)


def write_results(results: dict, all_tables: list, lines: list[str], target: str) -> None:
    """Print tables and sentences; write the results."""
    print("\n" + render(all_tables))
    print("\n".join(lines))
    save_json(results, target)
    print(f"written to {target}")


def main(argv=None) -> None:
    utils.run("evaluate.py", evaluate_retrieval, parse_args(argv))


if __name__ == "__main__":
    main()
