"""The options of evaluate.py as rows, and what cannot go together."""
import argparse
import itertools
import os

from cli import (
    InputError,
    data_set,
    filename,
    natural,
    positive,
    split_name,
    within,
    workers,
)
from losses import formulas, trait
from options import SWITCH, Option, Table, flag, refuse

SOURCES = ("checkpoint", "compare", "embeddings", "scores")


def wanted(opt) -> bool:
    """Whether anything is calibrated."""
    return bool(opt.confidence or opt.sets or opt.judgements)


def ready(opt) -> str | None:
    """The file of embeddings or scores that is evaluated; nothing for a run."""
    return opt.embeddings or opt.scores


share = within(lambda x: 0 < x < 1, "a number between 0 and 1, such as 0.1")


def group(text: str) -> str:
    """The type of an item of --compare: a path, or those of several seeds of one model, joined by
    commas."""
    return ",".join(map(filename, text.split(",")))


EVALUATE = Table("Evaluate image-caption retrieval.", {
    "what is evaluated": [
        Option("checkpoint", filename, None, "run folders or checkpoint files; several are an "
               "ensemble (default: the newest run)", metavar="RUN", nargs="+"),
        Option("compare", group, None, "evaluate runs, .npz embeddings or .npy scores by "
               "themselves, and compare each with the first by a paired bootstrap; A0,A1,A2 are "
               "seeds of one model", metavar="RUN", nargs="+"),
        Option("embeddings", filename, None, "embeddings of any model, in the form that --export "
               "writes", metavar="FILE.npz"),
        Option("scores", filename, None, "a matrix of scores, images x captions; higher scores are "
               "better", metavar="FILE.npy"),
        Option("sim", formulas(), None, "similarity of the embeddings of --embeddings (default: "
               "the one that the file names, else cosine), or of a run's means and variances, in "
               "place of its own"),
        Option("data_path", filename, None, "folder that holds the data sets (default: that of the "
               "training)", metavar="FOLDER"),
        Option("data_name", data_set, None, "data set (default: that of the training)"),
        Option("split", split_name, None, "train, dev, test or testall (default: the split that a "
               "file of embeddings names, else test)"),
        Option("dev_images", natural, None, "images of the dev split to take; 0 takes all "
               "(default: as in the training)"),
        Option("vocab", filename, None, "vocabulary of an original VSE++ or VSRN checkpoint "
               "(python vocab.py convert writes it)", metavar="FILE.json"),
    ],
    "protocols": [
        flag("fold5", "also give the mean over five folds of 1,000 images (COCO 1K)"),
        flag("cxc", "Crisscrossed Captions: all four directions, RPC2, STS, SIS and SITS"),
        Option("cxc_path", filename, None, "folder of its csv files (default: DATA_PATH/cxc)",
               metavar="FOLDER"),
        Option("cxc_rule", ["ucmr", "eccv"], "ucmr", "which images and captions match: ucmr, "
               "original pairs and those rated 3 or more; eccv, only the latter"),
        flag("pmrp", "Plausible Match R-Precision, from the instances of COCO"),
        Option("instances", filename, None, "COCO's instances of the images of the split (default: "
               "DATA_PATH/DATA_NAME/annotations/instances_val2014.json)", metavar="FILE.json"),
        flag("eccv", "ECCV Caption, from --eccv_path or the package eccv_caption"),
        Option("eccv_path", filename, None, "folder of eccv_image_to_caption.json and "
               "eccv_caption_to_image.json", metavar="FOLDER"),
        Option("positives", filename, None, 'recalls, R-precision and mAP@R of your own matches: '
               '{"i2t": {image id: [caption ids]}, "t2i": {...}}', metavar="FILE.json"),
        Option("bank", split_name, None, "also rank with query-bank normalisation: what an item "
               "scores with queries of this split, usually train, is taken from its scores, so "
               "that no item is near every query; its beta is chosen on dev", metavar="SPLIT"),
        Option("bank_size", positive, 10_000, "with --bank: how many captions are drawn at most, "
               "and how many images"),
    ],
    "how sure": [
        flag("uncertainty", "what log det Sigma tells about recall: bins, risk and coverage, "
             "pictures"),
        Option("variances", ["volume"], None, "give a point model variances without training: the "
               "share of the training photos that an item fits; the scores stay"),
        Option("variances_from", filename, None, "with --variances and --embeddings: the same "
               "model's embeddings of training pairs", metavar="FILE.npz"),
        Option("control", SWITCH, True, "with --uncertainty: also rank with variances that are "
               "dealt to other items"),
        flag("confidence", "how sure the first answers are: probabilities calibrated on dev, and "
             "what every measure of confidence is worth; writes calibration.json and pictures "
             "beside the results"),
        Option("judgements", filename, None, "what people said of pairs, as Flickr8k's "
               "annotations have it: do scores and measures of uncertainty follow them",
               metavar="FILE", nargs="+"),
        Option("sets", share, None, "sets of answers that hold a right one for 1 - ALPHA of the "
               "queries (split-conformal)", metavar="ALPHA"),
        Option("calibration", filename, None, "with --embeddings or --scores: the same of dev, to "
               "calibrate on"),
        Option("calibrate_on", share, None, "calibrate on a random share of the images, and judge "
               "on the others", metavar="SHARE"),
        Option("photos", filename, None, "with --uncertainty or --confidence: folder of the photos "
               "to draw where the data are precomputed features", metavar="FOLDER"),
    ],
    "what is written": [
        Option("ranks", filename, None, "write the rank of every query to this file",
               metavar="FILE.csv"),
        Option("export", filename, None, "write the embeddings to this file", metavar="FILE.npz"),
        Option("format", ["text", "markdown", "latex", "json"], "text",
               "format of what is printed"),
        Option("output", filename, None, "file of the results (default: results.json in the run "
               "folder, or results_SIM_DATA_SPLIT.json for another similarity, data set or split "
               "than those of the run)"),
        flag("overwrite", "replace the files of --output, --export and --ranks that are there"),
    ],
    "speed and memory": [
        Option("batch_size", positive, 128, "images or captions that are encoded at once"),
        Option("workers", workers, min(10, os.cpu_count() or 1),
               "number of processes that read photos"),
        Option("device", ["auto", "cpu", "cuda"], "auto", "auto takes CUDA where it is present"),
    ],
})


# ---- what cannot go together

def conflicts(opt):
    """Pairs: whether something cannot work, and the sentence that says so, formatted with the
    options, and the `file` of embeddings or scores, if it is no run."""
    for one, other in itertools.combinations(SOURCES, 2):
        yield getattr(opt, one) and getattr(opt, other), (
            f"--{one} and --{other} both name what to evaluate; give one of them")
    yield opt.compare and len(opt.compare) < 2, (
        "--compare {compare[0]} has nothing to compare with; give at least two runs, or use "
        "--checkpoint")
    for name, source in (("export", "compare"), ("export", "embeddings"), ("export", "scores"),
                         ("ranks", "compare")):
        yield getattr(opt, name) and getattr(opt, source), (
            f"--{name} does not go with --{source}; evaluate a single model for it")
    if wanted(opt):
        yield from of_calibration(opt)
    if opt.variances:
        yield from of_variances(opt)
    yield opt.sim and opt.scores, (
        "--sim {sim} does not go with --scores, a matrix of ready scores; leave it out")


def of_calibration(opt):
    yield opt.compare, (
        "--confidence, --sets and --judgements do not go with --compare; evaluate each "
        "by itself")
    yield opt.judgements and opt.calibrate_on, (
        "--calibrate_on {calibrate_on:g} leaves items out of the judgement, and --judgements "
        "judges all that people saw; calibrate on other items with --calibration FILE")
    yield opt.calibration and not ready(opt), (
        "--calibration {calibration} is for --embeddings or --scores, and a run is calibrated on its "
        "dev split; leave it out")
    yield opt.calibration and opt.calibrate_on, (
        "--calibration and --calibrate_on both name what to calibrate on; give one of them")
    yield ready(opt) and not opt.calibration and not opt.calibrate_on, (
        "{file} has to be calibrated on other items; give those of dev with --calibration FILE, "
        "or --calibrate_on 0.5 to take half of its images")
    yield not ready(opt) and not opt.calibrate_on and opt.split in ("dev", "val"), (
        "--split {split} is what a run is calibrated on; judge another split, or give "
        "--calibrate_on 0.5")


def of_variances(opt):
    yield opt.scores, (
        "--variances {variances} does not go with --scores: ready scores have no embeddings")
    yield opt.compare, (
        "--variances {variances} does not go with --compare: variances change no score, so there "
        "is nothing to compare; evaluate each by itself")
    yield opt.embeddings and not opt.variances_from, (
        "--variances {variances} needs the training pairs of the same model, and {embeddings} "
        "holds those that are judged; give them with --variances_from FILE.npz")
    files = opt.variances_from, opt.calibration
    yield all(files) and len({*map(os.path.realpath, files)}) == 1, (
        "--variances_from and --calibration are both {calibration}; calibration needs other "
        "items, so give training pairs for the one and dev for the other")
    yield opt.sim and trait(formulas()[opt.sim], "gaussian_sides"), (
        "--sim {sim} ranks by variances, and those of --variances {variances} change no score; "
        "leave one of the two out")
    yield opt.split == "train", (
        "--variances {variances} is fitted on the train split, so it must not be judged there; "
        "give another --split")


def parse_args(argv=None) -> argparse.Namespace:
    """The options of the command line. End the program with a sentence where they do not go
    together."""
    p = EVALUATE.parser()
    opt = p.parse_args(argv)
    opt.eccv = opt.eccv or opt.eccv_path is not None
    try:
        refuse(conflicts(opt), opt, file=ready(opt))
    except InputError as error:
        p.error(str(error))
    return opt
