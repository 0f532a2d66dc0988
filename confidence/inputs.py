"""Items to judge and items to calibrate on, from a run or from files.
The test and dev split of a run, or files of any model's embeddings."""
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import cli
from checkpoint import Trained
from cli import Arguments, InputError, check, data_set, filename, positive, split_name, torch_device, within
from confidence import volume
from confidence.measures import check_logits, describe_folds, divide_images
from data import named_splits
from evaluation import bank
from evaluation.embeddings import Embeddings, embed, export, newest_run
from evaluation.encoding import Gallery
from evaluation.outputs import check_outputs, name_file_beside, name_results_file
from evaluation.reading import is_run, load_file
from files import need
from losses import list_functions

share = within(lambda x: 0 < x < 1, "a number between 0 and 1, such as 0.1")


@dataclass
class Items:
    """Embeddings to judge and to calibrate on."""
    whole: Embeddings                 # all items of the split or file
    test: Embeddings                  # those that are judged
    dev: Embeddings                   # those that are calibrated on
    source: str                       # of dev, for the reader
    variances: dict | None = None     # description of given variances
    logits: tuple | None = None       # scale and bias (or None) of the model's own logits
    folds: int = 0                    # of the images, each judged by the others; 0: dev and test are apart


def add_arguments(p: Arguments) -> None:
    """Add the options of what to judge, what to calibrate on and what to write."""
    add = p.add_argument
    add("source", type=filename, nargs="?", metavar="RUN", help="run folder or checkpoint file, embeddings of any "
        "model (.npz) or scores, images x captions (.npy) (default: the newest run)")
    add("--dev", type=filename, metavar="FILE", help="for a file: other items of the same model to calibrate on")
    add("--sim", choices=list_functions(), help="similarity to use (default: of the run or file)")
    add("--data_path", type=filename, metavar="FOLDER", help="folder of the data sets (default: as in training)")
    add("--data_name", type=data_set, help="data set (default: as in training)")
    add("--split", type=split_name, help="split to judge (default: what a file names, else test)")
    add("--output", type=filename, metavar="FILE.json", help="file of the results (default: beside the run or file)")
    add("--overwrite", action="store_true", help="replace existing files that options name")
    add("--batch_size", type=positive, default=128, help="images or captions per step")
    add("--workers", type=cli.workers, default=min(10, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")


def open_items(opt, pictures: tuple[str, ...]) -> tuple[Items, dict[str, str]]:
    """Items of the run or file that the options name, and the files to write by name.
    pictures: names of those that will be drawn. Raises InputError on options, files and outputs that do not fit."""
    if not opt.source:
        opt.source = newest_run()
        print(f"no run given, using the newest: {opt.source}")
    check_arguments(opt)
    model = Trained(opt.source, torch_device(opt.device)) if is_run(opt.source) else None
    target = name_results_file([opt.source], [model] if model else [], opt, opt.results, opt.variances)
    files = {"results": target, "calibration": name_file_beside("calibration", target, opt.results, "json"),
             **{name: name_file_beside(name, target, opt.results) for name in pictures}}
    check_outputs(files.values(), [opt.source, opt.dev, opt.train, *(opt.judgements or ())], opt)
    load = model and partial(embed, [model], data_path=opt.data_path, batch_size=opt.batch_size, workers=opt.workers)
    items = open_run(load, opt) if load else open_file(opt)
    items.logits = read_logits(opt, items.whole)
    if opt.variances:
        give_variances(items, load, opt)
    if opt.export:
        export(opt.export, items.whole)
        print(f"embeddings in {opt.export}")
    return items, files


def check_arguments(opt) -> None:
    """Raise InputError with the first reason why the options do not go together."""
    run = is_run(opt.source)
    if not run and not os.path.isdir(opt.source):
        need(opt.source, "write it with evaluate.py --export or np.savez")
    check(not (run and (opt.dev or opt.train)),
          f"--dev and --train are for embeddings or scores, and {opt.source} is a run with splits of its own; leave "
          "them out")
    ways = sum(map(bool, (opt.dev, opt.calibrate_on, opt.cross_fit)))
    check(ways < 2, "--dev, --calibrate_on and --cross_fit are three ways to say what to calibrate on; give one")
    check(run or ways == 1,
          f"{opt.source} has to be calibrated on other items; give dev's with --dev FILE, or --calibrate_on 0.5 "
          "to take half of its images, or --cross_fit 10 where they are few")
    check(not opt.cross_fit or not (opt.sets or opt.variances),
          "--sets and --variances are fitted to images apart, and --cross_fit judges all images; give --calibrate_on "
          "0.5 in place of it")
    check(not run or opt.calibrate_on or opt.cross_fit or opt.split not in ("dev", "val"),
          f"--split {opt.split} is what a run is calibrated on; judge another split, or give --calibrate_on 0.5")
    check(not opt.source.lower().endswith(".npy") or not (opt.variances or opt.export),
          f"{opt.source} holds ready scores and no embeddings, so --variances and --export do not go with it")
    check(run or bool(opt.variances) == bool(opt.train),
          f"--variances volume needs the training pairs of the same model, and {opt.source} holds those that are "
          "judged; give --variances and --train FILE.npz, or neither")
    check(not opt.variances or opt.split != "train",
          f"--variances {opt.variances} is fitted on the train split, so it must not be judged there; give another "
          "--split")


def open_run(load: Callable, opt) -> Items:
    """Items of the splits of a run, which `load` embeds."""
    whole = load(opt.split or "test", sim=opt.sim, data_name=opt.data_name)
    check(whole.has_images, f"{whole.name} has no images to answer with, so there is no confidence to calibrate; name "
                            "a split with images")
    if opt.calibrate_on:
        return split_items(whole, opt.calibrate_on)
    if opt.cross_fit:
        return Items(whole, whole, whole, describe_folds(opt.cross_fit), folds=opt.cross_fit)
    own = None if named_splits(whole.folder) else opt.data_name             # photos by name have no other splits
    try:
        dev = load("dev", sim=opt.sim, data_name=own)
    except InputError as error:
        raise InputError(f"no dev split to calibrate on: {error}; or give --calibrate_on 0.5") from error
    return Items(whole, whole, dev, f"{dev.data_name} {dev.split}")


def open_file(opt) -> Items:
    """Items of files of embeddings or scores."""
    whole = load_file(opt.source, opt.sim, data_path=opt.data_path, data_name=opt.data_name, split=opt.split)
    if opt.calibrate_on:
        items = split_items(whole, opt.calibrate_on)
    elif opt.cross_fit:
        items = Items(whole, whole, whole, describe_folds(opt.cross_fit), folds=opt.cross_fit)
    else:
        items = Items(whole, whole, load_file(opt.dev, opt.sim, data_path=opt.data_path), opt.dev)
        check_other_items(whole, items.dev, "--dev", "calibrate on other items, or take half of these with "
                                                     "--calibrate_on 0.5")
    return items


def give_variances(items: Items, load: Callable | None, opt) -> None:
    """Give points the variances that training pairs tell, of a run's data or of --train."""
    check(not items.dev.gaussian, f"--variances volume gives variances to points, and {items.dev.name} has variances "
                                  "of its own; leave it out, or give a point model")
    if load:
        def draw(caption_image: np.ndarray, n_images: int) -> np.ndarray:
            return bank.draw_queries(caption_image, n_images, volume.BANK).captions
        train = load("train", lambda split: Gallery(np.arange(0), draw(split.caption_image, len(split.images))))
        name, owner = f"{train.data_name} train", train.caption_image[draw(train.caption_image, train.n_images)]
    else:
        train = load_file(opt.train, opt.sim, data_path=opt.data_path)
        check_other_items(items.whole, train, "--train", "give embeddings of training pairs")
        if opt.dev:
            check_other_items(train, items.dev, "--dev", "calibrate on other items than the training pairs")
        name, owner = train.name, train.caption_image
    similarity, _, captions = train.members[0]
    shares = volume.fit_shares(similarity, captions, owner, items.dev.members[0].captions, items.dev.caption_image)
    items.variances = {"kind": "volume", "of_photo": list(shares.sigmoid[:2]), "fitted_on": name,
                       "images": int(shares.owner.max()) + 1, "captions": len(owner)}
    for e in {id(e): e for e in (items.whole, items.test, items.dev)}.values():
        e.members = [shares.give(e.members[0])]


def read_logits(opt, e: Embeddings) -> tuple[float, float | None] | None:
    """Read logit_scale and logit_bias of the options, or else of a file of embeddings; None without either.

    A note is added where the scale seems to be a logarithm. Raises InputError where they are no factor
    of a cosine and its bias.
    """
    values = {}
    if opt.source.lower().endswith(".npz") and os.path.isfile(opt.source):
        with np.load(opt.source, allow_pickle=False) as arrays:
            values = {name: float(arrays[name].item()) for name in ("logit_scale", "logit_bias") if name in arrays}
    for name in ("logit_scale", "logit_bias"):
        if getattr(opt, name) is not None:
            values[name] = getattr(opt, name)
    return check_logits(values, e)


def describe_sides(e: Embeddings) -> str:
    """Describe a model by its similarity, and by the kind and width of both sides."""
    sides = [side for member in e.members for side in (member.images, member.captions)]
    kinds = ["points" if side.log_var is None else "Gaussians" for side in sides]
    return ", ".join([e.similarity, *(f"{kind} of {side.mean.shape[1]} numbers" for kind, side in zip(kinds, sides))])


def check_other_items(e: Embeddings, other: Embeddings, option: str, instead: str) -> None:
    """Raise InputError unless two files hold different items of one model.
    option: names the other file; instead: what to do."""
    mine, theirs = describe_sides(e), describe_sides(other)
    check(mine == theirs, f"{option} {other.name} ({theirs}) is of another model than {e.name} ({mine}); give "
                          "embeddings of the same model")
    for key in ("image_id", "image_name"):
        shared = set(e.ids.get(key, ())) & set(other.ids.get(key, ()))
        check(not shared, f"{option} {other.name} and {e.name} share {len(shared):,} images; {instead}")
    check(os.path.realpath(other.name) != os.path.realpath(e.name),
          f"{option} {other.name} is the file to be judged; {instead}")


def split_items(whole: Embeddings, part: float) -> Items:
    """A random part of the images to calibrate on, the others to judge."""
    judged, fitted = divide_images(whole, part)
    return Items(whole, judged, fitted, f"a random {part:g} of the images")
