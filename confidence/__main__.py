"""Calibrate how sure a model is of its first answers, and judge it.

    python -m confidence                                          # the newest run: calibrates on dev, judges on test
    python -m confidence runs/A --sets 0.1                        # also sets that hold a right answer 9 times in 10
    python -m confidence clip_test.npz --dev clip_dev.npz         # embeddings of any model
    python -m confidence clip_test.npz --calibrate_on 0.5         # calibrates on half of its images, judges on the rest
    python -m confidence clip_test.npz --cross_fit 10             # few images: judges each tenth by the other nine

Prints tables and writes confidence.json, calibration.json (python -m photos reads it) and two pictures.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import contextlib
import json
import sys

import numpy as np

import cli
from cli import Arguments, filename
from confidence import conformal, measures, plots
from confidence.calibration import DIRECTIONS
from confidence.inputs import Items, add_arguments, open_items, share
from confidence.posterior import expected_number, rows_of
from confidence.volume import describe_shares
from evaluation.embeddings import Embeddings
from evaluation.pictures import locate_photos
from evaluation.protocols import replace_nan
from evaluation.report import LEAST_IMAGES, render
from files import save_json
from metrics import Sigmoid


def judge_model(opt) -> dict:
    """Calibrate and judge a model as the options say; return the results. Raises InputError."""
    items, files = open_items(opt, plots.PICTURES)
    test = items.test
    results, calibration, outcomes = measures.judge_items(items.dev, test, items.source, items.folds, items.logits)
    confidences, intervals = results["confidence"], results["intervals"]
    pair = Sigmoid(**calibration["pair"])
    tables = measures.tabulate_confidences(confidences)
    lines = [*measures.describe_confidences(confidences, calibration, outcomes, intervals),
             *(describe_numbers(side, expected_number(rows_of(test, side), pair), pair, items.dev)
               for side in DIRECTIONS),
             *measures.describe_logits(confidences, intervals)]
    if opt.sets:
        temperatures = {side: calibration[side]["temperature"] for side in DIRECTIONS}
        results["sets"], calibration["sets"] = conformal.fit_and_judge(items.dev, test, temperatures, opt.sets)
        tables += conformal.tabulate_sets(results["sets"], calibration["sets"]["images"])
        if calibration["sets"]["images"] < LEAST_IMAGES:
            lines.append(f"note: the sets are fitted to only {calibration['sets']['images']:,} images; use at least "
                         f"{LEAST_IMAGES}")
    results = show_and_save(results, calibration, tables, lines, items, files)
    curves, shown = map(files.get, plots.PICTURES)
    plots.draw_curves(outcomes, confidences, curves)
    print(f"reliability, risk and coverage in {curves}", file=sys.stderr)
    photos = locate_photos(items.test, opt.photos)
    if photos:
        plots.draw_examples(outcomes, items.test, photos, shown)
        print(f"answers and how sure they are in {shown}", file=sys.stderr)
    return results


def describe_numbers(side: str, count: np.ndarray, pair: Sigmoid, dev: Embeddings) -> str:
    """Describe the expected number of items that fit each query (Q,)."""
    size = ""
    if dev.n_images < LEAST_IMAGES:
        size = f" (only {len(dev.caption_image):,} own pairs, of {dev.n_images:,} images)"
    low, middle, high = np.quantile(count, (0.05, 0.5, 0.95))
    return (f"{side}: by p(pair) = sigmoid({pair.slope:.4g} s {pair.bias:+.4g}), fitted to own pairs of dev against "
            f"all others{size}, {middle:.2g} items fit a query (median; 90% of the queries {low:.2g} to {high:.2g})")


def show_and_save(results: dict, calibration: dict, tables: list, lines: list[str], items: Items, files) -> dict:
    """Print tables and sentences, and write the results and calibration.json.
    Returns the results with what was judged."""
    e, dev, test, variances = items.whole, items.dev, items.test, items.variances
    results = {"checkpoints": [e.name], "data_name": e.data_name, "split": e.split or None, "similarity": e.similarity,
               "images": test.n_images, "captions": len(test.caption_image), "calibrated_on": items.source,
               **({"variances": variances} if variances else {}), "notes": e.notes, **results}
    sizes = f"{dev.n_images:,} images and {len(dev.caption_image):,} captions"
    if items.folds:
        head = (f"judged on {sizes}, in {items.folds} folds of the images: each fold by numbers that were fitted to "
                "the others, over the whole gallery; T and calibration.json are fitted to all")
    else:
        head = (f"calibrated on {sizes} ({items.source}), judged on {test.n_images:,} and "
                f"{len(test.caption_image):,}")
    lines = [head, *lines,
             *([describe_shares(variances)] if variances else []), *(f"note: {note}" for note in e.notes)]
    print("\n".join(["", render(tables), *lines]))
    # no file, or any other; it is replaced, so it is not read as an input
    with (contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError),
          open(files["calibration"], encoding="utf-8") as f):
        before = json.load(f)
        if before["weights"] == calibration["weights"]:     # what python -m photos.words --fit added stays
            calibration["words"] = before["words"]
    save_json(replace_nan(results), files["results"])
    save_json(replace_nan(calibration), files["calibration"])
    print(f"written to {files['results']}\ncalibration in {files['calibration']}")
    return results


def parse_args(argv=None):
    p = Arguments("Tell how sure a model is of its first answers, and whether rightly.")
    add_arguments(p)
    add = p.add_argument
    add("--calibrate_on", type=share, metavar="SHARE", help="calibrate on a random share of the images, judge the rest")
    add("--cross_fit", type=cli.at_least_two, metavar="K",
        help="of few images: deal them to K folds, and judge each by the others")
    add("--logit_scale", type=cli.above_zero, metavar="S", help="the model's own factor of the cosine, 100 for CLIP: "
        "also judge its softmax (default: what the file names)")
    add("--logit_bias", type=cli.number, metavar="B", help="the model's own bias, as SigLIP has one: also judge its "
        "sigmoid")
    add("--sets", type=share, metavar="ALPHA", help="also fit sets that hold a right answer with 1 - ALPHA")
    add("--variances", choices=["volume"], help="give points variances without training: the share of the training "
        "photos that an item fits; the scores stay")
    add("--train", type=filename, metavar="FILE", help="training pairs, for a file with --variances")
    add("--photos", type=filename, metavar="FOLDER", help="photos to draw where the data are precomputed features")
    add("--export", type=filename, metavar="FILE", help="write the embeddings that are judged, with their variances")
    p.set_defaults(results="confidence", judgements=None)
    return p.parse_args(argv)


def main(argv=None) -> None:
    cli.run("confidence", judge_model, parse_args(argv))


if __name__ == "__main__":
    main()
