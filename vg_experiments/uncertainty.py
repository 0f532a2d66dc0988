"""Uncertainty and ambiguity: `ucmr` Fig. 2, with a test of its direction.

    python -m vg_experiments.uncertainty --checkpoint RUN [RUN ...] --manifest runs/vg/manifest.json

For every threshold: the mean of log det Sigma (nats) of crops A and C and of captions A and C with
95% intervals, and the mean of the paired differences C - A with its interval and the p of a paired
t-test. `ucmr` finds image C above image A (two things are more ambiguous than one) and caption C
below caption A (it says more). The first control shuffles the uncertainties among the items; a
difference that remains is chance. The second control has the size of C without its B: crop D has
the sides of crop C and shows crop A and what lies beyond it on the other side, and caption D joins
caption A with the caption B of another image. Any gap between D and A is due to area or length, not
to content, so C - D is what B adds. Spearman's rho with the area of a crop and the number of words
of a caption is reported, too.

The rows "whole" are `pmrl` Table 3 over many images: A is the mean of an image's three crops (or
their phrases), C the image itself (or its description). There both are larger for the whole.
Caption D joins a phrase with two of another image.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os

import numpy as np
from scipy import stats

from evaluation import report
from evaluation.pictures import drawing, picture_file
from evaluation.protocols import replace_nan
from metrics import spearman
from utils import InputError, output, save_json
from vg_experiments.encoding import (
    list_cases,
    list_sides,
    measure,
    photo_path,
    read_inputs,
    run_command,
    whole_box,
)
from vg_experiments.prepare import CROPS_PER_IMAGE
from vocab import tokenize

EXPECTED_SIGNS = {"images": 1, "captions": -1}  # of C - A, as `ucmr` 4.6 finds it
WHOLE_SIGN = 1  # of a whole minus its parts, as `pmrl` Table 3 has it
CONTROL_LABELS = {"images": "A and what is beyond it", "captions": "A and another photo's B"}
VERDICTS = {
    "holds": "as in the paper",
    "opposite": "AGAINST the paper",
    "open": "no difference found",
}
SIGNIFICANCE = 0.05


def mean_interval(values: np.ndarray) -> dict:
    """Compute the mean and its 95% interval (Student's t)."""
    mean = float(np.mean(values))
    n = len(values)
    half = float("nan")
    if n > 1:
        half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def paired_test(a: np.ndarray, c: np.ndarray, sign: int) -> dict:
    """Test the differences C - A of n pairs (n,).

    Returns mean, interval, p of the two-sided paired t-test, verdict, and the percent of pairs in
    the direction `sign`.
    """
    difference = c - a  # (n,)
    varied = len(a) > 1 and np.ptp(difference) > 1e-9 * np.abs(difference).max()
    if varied:
        p = float(stats.ttest_1samp(difference, 0).pvalue)
    else:
        p = float(not difference.any())

    if p >= SIGNIFICANCE:
        verdict = "open"
    elif sign * difference.mean() > 0:
        verdict = "holds"
    else:
        verdict = "opposite"
    share = float(100 * np.mean(sign * difference > 0))
    return {**mean_interval(difference), "p": p, "share": share, "verdict": verdict}


def compare_crops(a: np.ndarray, c: np.ndarray, d: np.ndarray, sign: int, rng) -> dict:
    """Compare the uncertainties (n,) of items A and C, and of D (n or none).

    "difference" is C - A, "control" the same of shuffled uncertainties, "other" D - A and "content"
    C - D. sign: of C - A, as the paper finds it.
    """
    shuffled = rng.permutation(np.concatenate([a, c]))
    shuffled_a, shuffled_c = np.split(shuffled, [len(a)])
    result = {
        "a": mean_interval(a),
        "c": mean_interval(c),
        "difference": paired_test(a, c, sign),
        "control": paired_test(shuffled_a, shuffled_c, sign),
    }
    if len(d):
        result["d"] = mean_interval(d)
        result["other"] = paired_test(a, d, sign)
        result["content"] = paired_test(d, c, sign)
    return result


def box_beyond(a, c, width: int, height: int) -> tuple:
    """Return the box of C's sides that shows A and what lies beyond it, away from B.

    It is C mirrored at the middle of A, and moved into the photo where it leaves it.
    """
    x = 2 * a[0] + a[2] - c[0] - c[2]
    y = 2 * a[1] + a[3] - c[1] - c[3]
    inside_x = min(max(x, 0), width - c[2])
    inside_y = min(max(y, 0), height - c[3])
    return inside_x, inside_y, c[2], c[3]


def list_controls(manifest: dict) -> tuple[list[tuple], list[str]]:
    """List crop D (path, box) and caption D of all triplets, in the order of `list_cases`."""
    boxes = []
    texts = []
    for items in manifest["triplets"].values():
        others = items[1:] + items[:1]
        for t, other in zip(items, others):
            _, _, width, height = whole_box(manifest, t["image"])
            box = box_beyond(t["a"], t["c"], width, height)
            boxes.append((photo_path(manifest, t["image"]), box))
            texts.append(f"{t['caption_a']} and {other['caption_b']}")
    return boxes, texts


def measure_triplets(side: str, values: np.ndarray, manifest: dict, rng) -> dict:
    """Compare crops or captions at each threshold: {percent: `compare_crops`}.

    values (3 n,): uncertainties of all A, then all C, then all D of n triplets.
    """
    result = {}
    a, c, d = np.split(values, 3)
    start = 0
    for percent, items in manifest["triplets"].items():
        part = slice(start, start + len(items))
        result[percent] = compare_crops(a[part], c[part], d[part], EXPECTED_SIGNS[side], rng)
        start += len(items)
    return result


def measure_wholes(model, manifest: dict, rng) -> dict:
    """Compare whole images with their crops, and descriptions with their phrases.

    Returns {"images" | "captions": `compare_crops` over images}, with the mean of an image's crops
    or phrases as A, and as D that of the phrases joined with two of another image.
    """
    wholes = manifest["wholes"]
    result = {}
    if model.model.image_tower.gaussian:
        crops = []
        photos = []
        for whole in wholes:
            path = photo_path(manifest, whole["image"])
            crops += [(path, tuple(box)) for box in whole["crops"]]
            photos.append((path, whole_box(manifest, whole["image"])))
        of_crops = average_parts(measure(model.embed_crops(crops)))
        of_photos = measure(model.embed_crops(photos))
        no_control = of_crops[:0]
        result["images"] = compare_crops(of_crops, of_photos, no_control, WHOLE_SIGN, rng)

    if model.model.text_tower.gaussian:
        phrases = []
        joined = []
        for whole, other in zip(wholes, wholes[1:] + wholes[:1]):
            phrases += whole["captions"]
            for phrase in whole["captions"]:
                joined.append(" and ".join([phrase, *other["captions"][1:]]))
        of_phrases = average_parts(measure(model.embed_captions(phrases)))
        of_joined = average_parts(measure(model.embed_captions(joined)))
        descriptions = [whole["description"] for whole in wholes]
        of_descriptions = measure(model.embed_captions(descriptions))
        result["captions"] = compare_crops(of_phrases, of_descriptions, of_joined, WHOLE_SIGN, rng)
    return result


def average_parts(values: np.ndarray) -> np.ndarray:
    """Average the values of the crops or phrases of each image: (N CROPS_PER_IMAGE,) -> (N,)."""
    return values.reshape(-1, CROPS_PER_IMAGE).mean(1)


def measure_sides(model, manifest: dict) -> dict:
    """Measure a model's sides with variances.

    Returns {"images" | "captions": {percent: `compare_crops`}, "rho_area", "rho_words", "wholes":
    `measure_wholes`}. Raises InputError for a point model and for one trained with --vae.
    """
    if model.options.vae:
        raise InputError(
            f"{model.path} samples points from its Gaussians in training (--vae) and compares "
            "points, whose uncertainty no score uses; train a model of Gaussians, such as --sim "
            "wasserstein, or give this one to vg_experiments.selection"
        )

    rng = np.random.default_rng(0)
    result = {}
    boxes, texts = list_sides(list_cases(manifest))  # all A, then all C
    other_boxes, other_texts = list_controls(manifest)  # all D
    if model.model.image_tower.gaussian:
        values = measure(model.embed_crops(boxes + other_boxes))
        result["images"] = measure_triplets("images", values, manifest, rng)
        areas = list_areas(boxes, manifest)
        result["rho_area"] = spearman(values[: len(boxes)], np.array(areas))
    if model.model.text_tower.gaussian:
        values = measure(model.embed_captions(texts + other_texts))
        result["captions"] = measure_triplets("captions", values, manifest, rng)
        lengths = [len(tokenize(text)) for text in texts]
        result["rho_words"] = spearman(values[: len(texts)], np.array(lengths))

    if not result:
        raise InputError(
            f"{model.path} is a point model (--sim {model.options.sim}) and has no uncertainty; "
            "train one with a Gaussian head, such as --sim wasserstein, or give this one to "
            "vg_experiments.selection"
        )
    if manifest["wholes"]:
        result["wholes"] = measure_wholes(model, manifest, rng)
    return result


def list_areas(crops: list[tuple], manifest: dict) -> list[float]:
    """List the areas of crops A and C of all triplets, as shares of their photos."""
    sizes = []  # of the photos, in the order of A and again of C
    for items in manifest["triplets"].values():
        for t in items:
            _, _, width, height = whole_box(manifest, t["image"])
            sizes.append(width * height)

    areas = []
    for (_, box), size in zip(crops, sizes * 2):
        _, _, width, height = box
        areas.append(width * height / size)
    return areas


def draw_reports(reports: dict[str, dict], path: str) -> None:
    """Draw Fig. 2a (images) and 2b (captions), one row per model. Dotted: the control."""
    size = (9, 3.4 * len(reports))
    with drawing(path, len(reports), 2, size) as (figure, axes):
        for row, (name, sides) in zip(axes, reports.items()):
            for axis, side in zip(row, EXPECTED_SIGNS):
                draw_side(axis, side, sides.get(side, {}))
                title = f"{name}: {side}"
                if side not in sides:
                    title += ", points have none"
                axis.set_title(title, fontsize=10)
        figure.tight_layout()


def draw_side(axis, side: str, entries: dict) -> None:
    """Draw a model's {percent: `compare_crops`} of crops or of captions."""
    item = side[:-1]
    draw_line(axis, entries, "a", f"{item} A", "tab:blue")
    draw_shuffled(axis, entries, -1, "tab:blue")
    draw_line(axis, entries, "c", f"{item} C", "tab:red")
    draw_shuffled(axis, entries, 1, "tab:red")
    draw_line(axis, entries, "d", CONTROL_LABELS[side], "tab:gray")

    axis.set(
        xlabel="area threshold, percent of the image",
        ylabel="log det Sigma, nats",
        xticks=[float(percent) for percent in entries],
    )
    axis.grid(alpha=0.3)
    axis.margins(y=0.4)  # room for the legend
    if entries:
        axis.legend(fontsize=8, title="dotted: shuffled variances", title_fontsize=7)


def draw_line(axis, entries: dict, letter: str, label: str, color: str) -> None:
    """Draw the mean of items with its interval at each threshold."""
    percents = []
    means = []
    below = []
    above = []
    for percent, entry in entries.items():
        if letter not in entry:
            continue
        interval = entry[letter]
        percents.append(float(percent))
        means.append(interval["mean"])
        below.append(interval["mean"] - interval["low"])
        above.append(interval["high"] - interval["mean"])
    if means:
        axis.errorbar(
            percents, means, [below, above], color=color, marker="o", capsize=3, label=label
        )


def draw_shuffled(axis, entries: dict, sign: int, color: str) -> None:
    """Draw the mean of A (sign -1) or C (1) with shuffled uncertainties at each threshold."""
    percents = []
    means = []
    for percent, entry in entries.items():
        total = entry["a"]["mean"] + entry["c"]["mean"]
        percents.append(float(percent))
        means.append((total + sign * entry["control"]["mean"]) / 2)
    if means:
        axis.plot(percents, means, ":", color=color, linewidth=1)


def format_interval(entry: dict, sign: str = "") -> str:
    mean = format(entry["mean"], f"{sign}.2f")
    low = format(entry["low"], f"{sign}.2f")
    high = format(entry["high"], f"{sign}.2f")
    return f"{mean} ({low} to {high})"


def tabulate_sides(name: str, sides: dict) -> tuple:
    """Make the table of one model (`evaluation.report`), a row for each side and threshold."""
    heads = ["A", "C", "C - A", "p", "pairs", "verdict", "control", "D - A", "C - D"]
    rows = []
    for side in EXPECTED_SIGNS:
        entries = {f"{percent}%": entry for percent, entry in sides.get(side, {}).items()}
        if side in sides.get("wholes", {}):
            entries["whole"] = sides["wholes"][side]
        for label, entry in entries.items():
            rows.append((f"{side}, {label}", format_cells(entry)))
    return name, [("", heads)], rows


def format_cells(entry: dict) -> list[str]:
    """Format a `compare_crops` for a row of the table."""
    difference = entry["difference"]
    control = entry["control"]
    cells = [
        format_interval(entry["a"]),
        format_interval(entry["c"]),
        format_interval(difference, "+"),
        f"{max(difference['p'], 1e-99):.0e}",
        f"{difference['share']:.0f}%",
        VERDICTS[difference["verdict"]],
        f"{control['mean']:+.2f} (p {control['p']:.2f})",
    ]
    for contrast in ("other", "content"):
        if contrast in entry:
            cells.append(format_interval(entry[contrast], "+"))
        else:
            cells.append("-")
    return cells


def write_uncertainty(opt) -> None:
    """Print the results, draw the figure and write uncertainty.json."""
    picture = picture_file(os.path.join(opt.output_folder, "uncertainty.png"))
    numbers = output(os.path.join(opt.output_folder, "uncertainty.json"))
    manifest, models, omitted = read_inputs(opt)
    reports = {name: measure_sides(model, manifest) for name, model in models.items()}

    triplets = len(next(iter(manifest["triplets"].values())))
    print(
        f"{triplets:,} triplets at each threshold and {len(manifest['wholes']):,} images with "
        f"three crops; {omitted['table4']} and {omitted['section34']} without a word that all "
        "models know left out"
    )
    for name, sides in reports.items():
        print(f"\n{report.text(tabulate_sides(name, sides))}")
        if "rho_area" in sides:
            print(f"rho with the area of a crop {sides['rho_area']:+.2f}")
        if "rho_words" in sides:
            print(f"rho with the words of a caption {sides['rho_words']:+.2f}")

    results = {
        "manifest": opt.manifest,
        "triplets": triplets,
        "unknown": omitted["table4"],
        "models": {name: {**models[name].facts, **sides} for name, sides in reports.items()},
    }
    save_json(replace_nan(results), numbers)
    draw_reports(reports, picture)
    print(f"figure in {picture}, numbers in {numbers}")


def main(argv=None) -> None:
    run_command(
        "Measure the uncertainty of crops and captions by area threshold, and test the paper's "
        "direction.",
        write_uncertainty,
        argv,
    )


if __name__ == "__main__":
    main()
