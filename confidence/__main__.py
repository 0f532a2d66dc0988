"""Calibrate how sure a model is of its top-1 answers, and judge it.

    python -m confidence                                   # the newest run, on its dev and test
    python -m confidence runs/A --sets 0.1                 # also sets that hold a right answer
    python -m confidence clip_test.npz --dev clip_dev.npz  # embeddings of any model
    python -m confidence clip_test.npz --calibrate_on 0.5  # calibrates on half of its images
    python -m confidence clip_test.npz --cross_fit 10      # few images: each tenth by the others

Prints tables and writes confidence.json, calibration.json (python -m photos reads it) and two
pictures.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import sys

import numpy as np

import utils
from confidence import conformal, measures, plots
from confidence.calibration import DIRECTIONS
from confidence.inputs import add_arguments, open_items, share, show_and_save
from confidence.posterior import expected_number, rows_of
from evaluation.embeddings import Embeddings
from evaluation.pictures import locate_photos
from evaluation.report import LEAST_IMAGES
from metrics import Sigmoid
from utils import Arguments, filename


def judge_model(opt) -> dict:
    """Calibrate and judge a model as the options say; return the results. Raises InputError."""
    items, files = open_items(opt, plots.PICTURES)
    dev = items.dev
    test = items.test

    # calibrate and judge
    results, calibration, outcomes = measures.judge_items(
        dev, test, items.source, items.folds, items.logits
    )
    confidences = results["confidence"]
    intervals = results["intervals"]
    tables = measures.tabulate_confidences(confidences)
    lines = list(measures.describe_confidences(confidences, calibration, outcomes, intervals))

    # how many items fit
    pair = Sigmoid(**calibration["pair"])
    for side in DIRECTIONS:
        count = expected_number(rows_of(test, side), pair)
        lines.append(describe_numbers(side, count, pair, dev))
    lines += measures.describe_logits(confidences, intervals)

    # sets with a given coverage
    if opt.sets:
        temperatures = {side: calibration[side]["temperature"] for side in DIRECTIONS}
        results["sets"], limits = conformal.fit_and_judge(dev, test, temperatures, opt.sets)
        calibration["sets"] = limits
        tables += conformal.tabulate_sets(results["sets"], limits["images"])
        if limits["images"] < LEAST_IMAGES:
            lines.append(
                f"note: the sets are fitted to only {limits['images']:,} images; use at least "
                f"{LEAST_IMAGES}"
            )

    # show
    results = show_and_save(results, calibration, tables, lines, items, files)
    curves, examples = [files[name] for name in plots.PICTURES]
    plots.draw_curves(outcomes, confidences, curves)
    print(f"reliability, risk and coverage in {curves}", file=sys.stderr)
    photos = locate_photos(test, opt.photos)
    if photos:
        plots.draw_examples(outcomes, test, photos, examples)
        print(f"answers and how sure they are in {examples}", file=sys.stderr)
    return results


def describe_numbers(side: str, count: np.ndarray, pair: Sigmoid, dev: Embeddings) -> str:
    """Describe the expected number of items that fit each query (Q,).

    Args:
        side: the direction.
        count: (Q,).
        pair: the probability of a pair.
        dev: what it was fitted to.
    """
    size = ""
    if dev.n_images < LEAST_IMAGES:
        size = f" (only {len(dev.caption_image):,} matched pairs, of {dev.n_images:,} images)"
    low, middle, high = np.quantile(count, (0.05, 0.5, 0.95))
    return (
        f"{side}: by p(pair) = sigmoid({pair.slope:.4g} s {pair.bias:+.4g}), fitted to matched "
        f"pairs of dev against all others{size}, {middle:.2g} items fit a query (median; 90% of "
        f"the queries {low:.2g} to {high:.2g})"
    )


def parse_args(argv=None):
    p = Arguments(
        "Measure how confident a model is in its top-1 answers, and whether it is right to be."
    )
    add_arguments(p)
    add = p.add_argument
    add(
        "--calibrate_on",
        type=share,
        metavar="SHARE",
        help="calibrate on a random share of the images, judge the rest",
    )
    add(
        "--cross_fit",
        type=utils.at_least_two,
        metavar="K",
        help="for few images: divide them into K folds at random, and judge each by a temperature "
        "fitted to the others",
    )
    add(
        "--logit_scale",
        type=utils.above_zero,
        metavar="S",
        help="the model's own factor of the cosine, 100 for CLIP: also judge its softmax "
        "(default: what the file names)",
    )
    add(
        "--logit_bias",
        type=utils.number,
        metavar="B",
        help="the model's own bias, as SigLIP has one: also judge its sigmoid",
    )
    add(
        "--sets",
        type=share,
        metavar="ALPHA",
        help="also fit prediction sets, which hold a right answer with probability 1 - ALPHA",
    )
    add(
        "--variances",
        choices=["volume"],
        help="give points variances without training: the volume, the share of the training photos "
        "that an item covers; the scores stay",
    )
    add(
        "--train",
        type=filename,
        metavar="FILE",
        help="with a file and --variances: the same model's file of the training pairs",
    )
    add(
        "--photos",
        type=filename,
        metavar="FOLDER",
        help="folder of the photos to draw, if the data are precomputed features",
    )
    add(
        "--export",
        type=filename,
        metavar="FILE",
        help="write the embeddings that are judged, with their variances",
    )
    p.set_defaults(results="confidence", judgements=None)
    return p.parse_args(argv)


def main(argv=None) -> None:
    utils.run("confidence", judge_model, parse_args(argv))


if __name__ == "__main__":
    main()
