"""Items to judge and items to calibrate on, from a run or from files; and what is written of them.

The items are the test and dev split of a run, or embeddings of any model from files.
"""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import utils
from checkpoint import Trained
from confidence import volume
from confidence.measures import check_logits, describe_folds, divide_images
from data import Gallery, Split, named_splits
from evaluation import bank
from evaluation.embeddings import Embeddings, embed, export, newest_run
from evaluation.protocols import replace_nan
from evaluation.reading import is_run, load_file
from evaluation.report import check_outputs, name_file_beside, name_results_file, render
from losses import list_functions
from utils import (
    Arguments,
    InputError,
    data_set,
    filename,
    limited,
    need,
    positive,
    save_json,
    split_name,
    torch_device,
)

share = limited("a number between 0 and 1, such as 0.1", above=0, below=1)


@dataclass
class Items:
    """Embeddings to judge and to calibrate on."""

    whole: Embeddings  # all items of the split or file
    test: Embeddings  # those that are judged
    dev: Embeddings  # those that are calibrated on
    source: str  # of dev, for the reader
    variances: dict | None = None  # description of assigned variances
    logits: tuple | None = None  # scale and bias (or None) of the model's own logits
    folds: int = 0  # of the images, each judged by the others; 0: dev and test are apart


def add_arguments(p: Arguments) -> None:
    """Add the options of what to judge, what to calibrate on and what to write."""
    add = p.add_argument
    add(
        "source",
        type=filename,
        nargs="?",
        metavar="RUN",
        help="run folder or checkpoint file, embeddings of any model (.npz) or scores, images x "
        "captions (.npy) (default: the newest run)",
    )
    add(
        "--dev",
        type=filename,
        metavar="FILE",
        help="with a file in place of RUN: the same model's file of other items, to calibrate on",
    )
    add(
        "--sim",
        choices=list_functions(),
        help="similarity to use (default: of the run or file)",
    )
    add(
        "--data_path",
        type=filename,
        metavar="FOLDER",
        help="folder of the data sets (default: as in training)",
    )
    add("--data_name", type=data_set, help="data set (default: as in training)")
    add(
        "--split",
        type=split_name,
        help="split to judge (default: what a file names, else test)",
    )
    add(
        "--output",
        type=filename,
        metavar="FILE.json",
        help="file of the results (default: beside the run or file)",
    )
    add("--overwrite", action="store_true", help="replace existing files that options name")
    add("--batch_size", type=positive, default=128, help="images or captions per step")
    utils.add_workers(p)
    utils.add_device(p)


def open_items(opt, pictures: tuple[str, ...]) -> tuple[Items, dict[str, str]]:
    """Open the items of the run or file that the options name.

    Returns them, and the files to write by name. pictures: names of those that will be drawn.
    Raises InputError on options, files and outputs that do not fit.
    """
    if not opt.source:
        opt.source = newest_run()
        print(f"no run given, using the newest: {opt.source}")
    check_arguments(opt)

    models = []
    if is_run(opt.source):
        models = [Trained(opt.source, torch_device(opt.device))]
    target = name_results_file([opt.source], models, opt, opt.results, opt.variances)
    files = {
        "results": target,
        "calibration": name_file_beside("calibration", target, opt.results, "json"),
    }
    for name in pictures:
        files[name] = name_file_beside(name, target, opt.results)
    inputs = [opt.source, opt.dev, opt.train, *(opt.judgements or ())]
    check_outputs(files.values(), inputs, opt)

    load = None  # embeds a split
    if models:
        settings = {"batch_size": opt.batch_size, "workers": opt.workers}
        load = partial(embed, models, data_path=opt.data_path, **settings)
        items = open_run(load, opt)
    else:
        items = open_file(opt)
    if not items.whole.members:
        refuse_changes_of_embeddings(opt)
    items.logits = read_logits(opt, items.whole)
    if opt.variances:
        assign_variances(items, load, opt)
    if opt.export:
        export(opt.export, items.whole)
        print(f"embeddings in {opt.export}")
    return items, files


def check_arguments(opt) -> None:
    """Raise InputError with the first reason why the options do not go together."""
    run = is_run(opt.source)
    if not run and not os.path.isdir(opt.source):
        need(opt.source, "write it with evaluate.py --export or np.savez")
    if run and (opt.dev or opt.train):
        raise InputError(
            f"--dev and --train are for embeddings or scores, and {opt.source} is a run with "
            "splits of its own; leave them out"
        )

    ways = sum(bool(way) for way in (opt.dev, opt.calibrate_on, opt.cross_fit))
    if ways > 1:
        raise InputError(
            "--dev, --calibrate_on and --cross_fit are three ways to say what to calibrate on; "
            "give one"
        )
    if not run and ways == 0:
        raise InputError(
            f"{opt.source} has to be calibrated on other items; give dev's with --dev FILE, or "
            "--calibrate_on 0.5 to take half of its images, or --cross_fit 10 where they are few"
        )
    if opt.cross_fit and (opt.sets or opt.variances):
        raise InputError(
            "--sets and --variances need images of their own to be fitted to, and --cross_fit "
            "judges all images; use --calibrate_on 0.5 instead"
        )
    if run and ways == 0 and opt.split in ("dev", "val"):
        raise InputError(
            f"--split {opt.split} is what a run is calibrated on; judge another split, or give "
            "--calibrate_on 0.5"
        )
    check_variances(opt, run)


def check_variances(opt, run: bool) -> None:
    """Raise InputError where --variances, --train and --export do not fit a run or a file."""
    if opt.source.lower().endswith(".npy"):
        refuse_changes_of_embeddings(opt)
    if not run and bool(opt.variances) != bool(opt.train):
        raise InputError(
            "--variances volume needs the training pairs of the same model, and "
            f"{opt.source} holds those that are judged; give --variances and --train FILE.npz, or "
            "neither"
        )
    if opt.variances and opt.split == "train":
        raise InputError(
            f"--variances {opt.variances} is fitted on the train split, so it must not be judged "
            "there; give another --split"
        )


def refuse_changes_of_embeddings(opt) -> None:
    """Raise InputError where options need embeddings, and the source holds scores."""
    if opt.variances or opt.export:
        raise InputError(
            f"{opt.source} holds precomputed scores and no embeddings, so --variances and --export "
            "do not go with it; leave them out"
        )


# ---- where the items come from


def open_run(load: Callable, opt) -> Items:
    """Open the items of the splits of a run, which `load` embeds."""
    whole = load(opt.split or "test", sim=opt.sim, data_name=opt.data_name)
    if not whole.has_images:
        raise InputError(
            f"{whole.name} has no images to answer with, so there is no confidence to calibrate; "
            "name a split with images"
        )
    if opt.calibrate_on:
        return split_items(whole, opt.calibrate_on)
    if opt.cross_fit:
        return fold_items(whole, opt.cross_fit)

    data_name = opt.data_name
    if named_splits(whole.folder):  # photos by name have no other splits
        data_name = None
    try:
        dev = load("dev", sim=opt.sim, data_name=data_name)
    except InputError as error:
        raise InputError(
            f"no dev split to calibrate on: {error}; or give --calibrate_on 0.5"
        ) from error
    return Items(whole, whole, dev, f"{dev.data_name} {dev.split}")


def open_file(opt) -> Items:
    """Open the items of files of embeddings or scores."""
    whole = load_file(
        opt.source,
        opt.sim,
        data_path=opt.data_path,
        data_name=opt.data_name,
        split=opt.split,
    )
    if opt.calibrate_on:
        return split_items(whole, opt.calibrate_on)
    if opt.cross_fit:
        return fold_items(whole, opt.cross_fit)

    dev = load_file(opt.dev, opt.sim, data_path=opt.data_path)
    instead = "calibrate on other items, or take half of these with --calibrate_on 0.5"
    check_other_items(whole, dev, "--dev", instead)
    return Items(whole, whole, dev, opt.dev)


def split_items(whole: Embeddings, part: float) -> Items:
    """Take a random part of the images to calibrate on, the others to judge."""
    judged, fitted = divide_images(whole, part)
    return Items(whole, judged, fitted, f"a random {part:g} of the images")


def fold_items(whole: Embeddings, folds: int) -> Items:
    """Take all images to calibrate on and to judge, in folds."""
    return Items(whole, whole, whole, describe_folds(folds), folds=folds)


def check_other_items(e: Embeddings, other: Embeddings, option: str, instead: str) -> None:
    """Raise InputError unless two files hold different items of one model.

    Args:
        e: of the file that is judged.
        other: of the other file.
        option: names the other file.
        instead: what to do.
    """
    mine = describe_sides(e)
    theirs = describe_sides(other)
    if mine != theirs:
        raise InputError(
            f"{option} {other.name} ({theirs}) is of another model than {e.name} ({mine}); give "
            "embeddings of the same model"
        )
    for key in ("image_id", "image_name"):
        shared = set(e.ids.get(key, ())) & set(other.ids.get(key, ()))
        if shared:
            raise InputError(
                f"{option} {other.name} and {e.name} share {len(shared):,} images; {instead}"
            )
    if os.path.realpath(other.name) == os.path.realpath(e.name):
        raise InputError(f"{option} {other.name} is the file to be judged; {instead}")


def describe_sides(e: Embeddings) -> str:
    """Describe a model by its similarity, and by the kind and width of both sides."""
    words = [e.similarity]
    for member in e.members:
        for side in (member.images, member.captions):
            kind = "Gaussians"
            if side.log_var is None:
                kind = "points"
            words.append(f"{kind} of {side.mean.shape[1]} numbers")
    return ", ".join(words)


# ---- what is added to them


def assign_variances(items: Items, load: Callable | None, opt) -> None:
    """Give points the variances that training pairs tell, of a run's data or of --train.

    load: embeds a split of the run; None for a file.
    """
    if items.dev.gaussian:
        raise InputError(
            f"--variances volume gives variances to points, and {items.dev.name} has variances of "
            "its own; leave it out, or give a point model"
        )

    if load:
        train = load("train", draw_captions)
        # the members hold the captions of the bank alone
        queries = bank.draw_queries(train.caption_image, train.n_images, volume.BANK)
        owner = train.caption_image[queries.captions]
        name = f"{train.data_name} train"
    else:
        train = load_file(opt.train, opt.sim, data_path=opt.data_path)
        check_other_items(items.whole, train, "--train", "give embeddings of training pairs")
        if opt.dev:
            instead = "calibrate on other items than the training pairs"
            check_other_items(train, items.dev, "--dev", instead)
        owner = train.caption_image
        name = train.name

    similarity, _, captions = train.members[0]
    dev_captions = items.dev.members[0].captions
    shares = volume.fit_shares(similarity, captions, owner, dev_captions, items.dev.caption_image)
    items.variances = {
        "kind": "volume",
        "of_photo": list(shares.sigmoid[:2]),
        "fitted_on": name,
        "images": int(shares.owner.max()) + 1,
        "captions": len(owner),
    }
    # two of the three may be one
    different = {id(e): e for e in (items.whole, items.test, items.dev)}
    for e in different.values():
        e.members = [shares.give(e.members[0])]


def draw_captions(split: Split) -> Gallery:
    """Draw the captions of the bank of `volume` from a split, without images."""
    queries = bank.draw_queries(split.caption_image, len(split.images), volume.BANK)
    return Gallery(np.arange(0), queries.captions)


def read_logits(opt, e: Embeddings) -> tuple[float, float | None] | None:
    """Read logit_scale and logit_bias of the options, or else of a file; None without either.

    A note is added where the scale seems to be a logarithm. Raises InputError where they are no
    factor of a cosine and its bias.
    """
    values = {name: float(value) for name, value in e.logits.items()}
    for name in ("logit_scale", "logit_bias"):
        given = getattr(opt, name)
        if given is not None:
            values[name] = given
    return check_logits(values, e)


# ---- what is written


def show_and_save(
    results: dict,
    calibration: dict,
    tables: list,
    lines: list[str],
    items: Items,
    files: dict[str, str],
) -> dict:
    """Print tables and sentences, and write the results and calibration.json.

    Returns the results with what was judged.

    Args:
        results: what was found.
        calibration: the content of calibration.json.
        tables: of the results.
        lines: sentences on them.
        items: what was judged.
        files: paths, by name.
    """
    e = items.whole
    facts = {
        "checkpoints": [e.name],
        "data_name": e.data_name,
        "split": e.split or None,
        "similarity": e.similarity,
        "images": items.test.n_images,
        "captions": len(items.test.caption_image),
        "calibrated_on": items.source,
    }
    if items.variances:
        facts["variances"] = items.variances
    results = {**facts, "notes": e.notes, **results}

    lines = [describe_items(items), *lines]
    if items.variances:
        lines.append(volume.describe_shares(items.variances))
    lines += [f"note: {note}" for note in e.notes]
    print("\n".join(["", render(tables), *lines]))

    keep_words(calibration, files["calibration"])
    save_json(replace_nan(results), files["results"])
    save_json(replace_nan(calibration), files["calibration"])
    print(f"written to {files['results']}\ncalibration in {files['calibration']}")
    return results


def describe_items(items: Items) -> str:
    """Say how many items were calibrated on and judged."""
    dev = items.dev
    sizes = f"{dev.n_images:,} images and {len(dev.caption_image):,} captions"
    if items.folds:
        return (
            f"judged on {sizes}, in {items.folds} folds of the images: each fold by numbers that "
            "were fitted to the others, over the whole gallery; T and calibration.json are fitted "
            "to all"
        )
    test = items.test
    return (
        f"calibrated on {sizes} ({items.source}), judged on {test.n_images:,} and "
        f"{len(test.caption_image):,}"
    )


def keep_words(calibration: dict, path: str) -> None:
    """Keep what python -m photos.words --fit added to the file for the same weights."""
    # no file, or any other; it is replaced, so it is not read as an input
    unreadable = (OSError, ValueError, RecursionError, LookupError, TypeError)
    with contextlib.suppress(*unreadable), open(path, encoding="utf-8") as f:
        before = json.load(f)
        if before["weights"] == calibration["weights"]:
            for key in ("words", "vocabulary"):
                if key in before:
                    calibration[key] = before[key]
