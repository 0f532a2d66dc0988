"""Uncertainty and ambiguity: `ucmr` Fig. 2, with a test of its direction.

    python -m vg_experiments.uncertainty --checkpoint RUN [RUN ...] --manifest runs/vg/manifest.json

For every threshold: the mean of log det Sigma (nats) of crops A and C and of captions A and C with
95% intervals, and the mean of the paired differences C - A with its interval and the p of a paired
t-test. `ucmr` finds image C above image A (two things are more ambiguous than one) and caption C
below caption A (it says more). The first control shuffles the uncertainties among the items; a
difference that remains is chance. The second control has the size of C without its B: crop D has the
sides of crop C and shows crop A and what lies beyond it on the other side, and caption D joins
caption A with the caption B of another image. The gap between D and A is due to area or length
alone, so C - D is what B adds. Spearman's rho with the area of a crop and the number of words of a
caption is reported, too.

The rows "whole" are `pmrl` Table 3 over many images: A is the mean of an image's three crops (or
their phrases), C the image itself (or its description). There both are larger for the whole. Caption
D joins a phrase with two of another image.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

import numpy as np
from scipy import stats

from cli import check
from evaluation import report
from evaluation.pictures import drawing, picture_file
from files import output, save_json
from losses import uncertainty
from metrics import spearman
from vg_experiments.encoding import list_cases, list_sides, photo_path, read_inputs, run_command, whole_box
from vg_experiments.prepare import CROPS
from vocab import tokenize

SIGNS = {"images": 1, "captions": -1}            # of C - A, as `ucmr` 4.6 finds it
WHOLE_SIGN = 1                                   # of a whole less its parts, as `pmrl` Table 3 has it
CONTROLS = {"images": "A and what is beyond it", "captions": "A and another photo's B"}
VERDICTS = {"holds": "as in the paper", "opposite": "AGAINST the paper", "open": "no difference found"}


def mean_interval(values: np.ndarray) -> dict:
    """Mean and its 95% interval (Student's t)."""
    mean, n = float(np.mean(values)), len(values)
    half = (float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else float("nan"))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def paired_test(a: np.ndarray, c: np.ndarray, sign: int) -> dict:
    """Test the differences C - A of n pairs (n,).

    Returns mean, interval, p of the two-sided paired t-test, verdict, and the percent of pairs in the direction `sign`.
    """
    difference = c - a                                                              # (n,)
    varied = len(a) > 1 and np.ptp(difference) > 1e-9 * np.abs(difference).max()
    p = float(stats.ttest_1samp(difference, 0).pvalue) if varied else float(not difference.any())
    verdict = "open" if p >= 0.05 else "holds" if sign * difference.mean() > 0 else "opposite"
    share = float(100 * np.mean(sign * difference > 0))
    return {**mean_interval(difference), "p": p, "share": share, "verdict": verdict}


def compare_crops(a: np.ndarray, c: np.ndarray, d: np.ndarray, sign: int, rng) -> dict:
    """Compare the uncertainties (n,) of items A and C, and of D (n or none).

    "difference" is C - A, "control" the same of shuffled uncertainties, "other" D - A and "content" C - D.
    """
    shuffled = rng.permutation(np.concatenate([a, c]))
    result = {"a": mean_interval(a), "c": mean_interval(c), "difference": paired_test(a, c, sign),
              "control": paired_test(shuffled[:len(a)], shuffled[len(a):], sign)}
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
    boxes, texts = [], []
    for items in manifest["triplets"].values():
        for t, other in zip(items, items[1:] + items[:1]):
            size = whole_box(manifest, t["image"])[2:]
            boxes.append((photo_path(manifest, t["image"]), box_beyond(t["a"], t["c"], *size)))
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
        result[percent] = compare_crops(a[part], c[part], d[part], SIGNS[side], rng)
        start += len(items)
    return result


def measure_wholes(model, manifest: dict, rng) -> dict:
    """Compare whole images with their crops, and descriptions with their phrases.

    Returns {"images" | "captions": `compare_crops` over images}, with the mean of an image's CROPS items as A, and as D
    that of the phrases joined with two of another image.
    """
    wholes = manifest["wholes"]
    result = {}
    if model.model.image_tower.gaussian:
        crops = [(photo_path(manifest, w["image"]), tuple(box)) for w in wholes for box in w["crops"]]
        photos = [(photo_path(manifest, w["image"]), whole_box(manifest, w["image"])) for w in wholes]
        parts = measure(model.embed_crops(crops)).reshape(-1, CROPS).mean(1)        # (N,)
        result["images"] = compare_crops(parts, measure(model.embed_crops(photos)), parts[:0], WHOLE_SIGN, rng)
    if model.model.text_tower.gaussian:
        phrases = [phrase for w in wholes for phrase in w["captions"]]
        others = [" and ".join([phrase, *other["captions"][1:]])
                  for w, other in zip(wholes, wholes[1:] + wholes[:1]) for phrase in w["captions"]]
        parts, joined = (measure(model.embed_captions(texts)).reshape(-1, CROPS).mean(1) for texts in (phrases, others))
        descriptions = measure(model.embed_captions([w["description"] for w in wholes]))
        result["captions"] = compare_crops(parts, descriptions, joined, WHOLE_SIGN, rng)
    return result


def measure(embedding) -> np.ndarray:
    """log det Sigma of N items in nats, (N,) float64."""
    return uncertainty(embedding).double().cpu().numpy()


def measure_sides(model, manifest: dict) -> dict:
    """Measure a model's sides with variances.

    Returns {"images" | "captions": {percent: `compare_crops`}, "rho_area", "rho_words", "wholes": `measure_wholes`}.
    Raises InputError for a point model and for one trained with --vae.
    """
    check(not model.options.vae,
          f"{model.path} samples points from its Gaussians in training (--vae) and compares points, whose uncertainty "
          "no score uses; train a model of Gaussians, such as --sim wasserstein, or give this one to "
          "vg_experiments.selection")
    result, rng = {}, np.random.default_rng(0)
    boxes, texts = list_sides(list_cases(manifest))                                 # all A, then all C
    other_boxes, other_texts = list_controls(manifest)                              # all D
    if model.model.image_tower.gaussian:
        values = measure(model.embed_crops(boxes + other_boxes))
        result["images"] = measure_triplets("images", values, manifest, rng)
        sizes = [np.prod(whole_box(manifest, t["image"])[2:]) for items in manifest["triplets"].values() for t in items]
        areas = [w * h / size for (_, (*_, w, h)), size in zip(boxes, sizes * 2)]
        result["rho_area"] = spearman(values[:len(boxes)], np.array(areas))
    if model.model.text_tower.gaussian:
        values = measure(model.embed_captions(texts + other_texts))
        result["captions"] = measure_triplets("captions", values, manifest, rng)
        lengths = [len(tokenize(text)) for text in texts]
        result["rho_words"] = spearman(values[:len(texts)], np.array(lengths))
    check(result, f"{model.path} is a point model (--sim {model.options.sim}) and has no uncertainty; train one with a "
                  "Gaussian head, such as --sim wasserstein, or give this one to vg_experiments.selection")
    if manifest["wholes"]:
        result["wholes"] = measure_wholes(model, manifest, rng)
    return result


def draw_reports(reports: dict[str, dict], path: str) -> None:
    """Fig. 2a (images) and 2b (captions), one row per model. Dotted: the control."""
    with drawing(path, len(reports), 2, (9, 3.4 * len(reports))) as (figure, axes):
        for row, (name, sides) in zip(axes, reports.items()):
            for axis, side in zip(row, SIGNS):
                draw_side(axis, side, sides.get(side, {}))
                axis.set_title(f"{name}: {side}" + ", points have none" * (side not in sides), fontsize=10)
        figure.tight_layout()


def draw_side(axis, side: str, entries: dict) -> None:
    """Draw a model's {percent: `compare_crops`} of crops or of captions."""
    percents = [float(percent) for percent in entries]
    for letter, label, colour, sign in (("a", f"{side[:-1]} A", "tab:blue", -1), ("c", f"{side[:-1]} C", "tab:red", 1),
                                        ("d", CONTROLS[side], "tab:gray", 0)):
        lines = [(e[letter]["mean"], e[letter]["low"], e[letter]["high"],
                  (e["a"]["mean"] + e["c"]["mean"] + sign * e["control"]["mean"]) / 2)
                 for e in entries.values() if letter in e]
        if lines:
            mean, low, high, dealt = np.array(lines).T
            axis.errorbar(percents, mean, [mean - low, high - mean], color=colour, marker="o", capsize=3, label=label)
            if sign:
                axis.plot(percents, dealt, ":", color=colour, linewidth=1)
    axis.set(xlabel="area threshold, percent of the image", ylabel="log det Sigma, nats", xticks=percents)
    axis.grid(alpha=0.3)
    axis.margins(y=0.4)                              # room for the legend
    if entries:
        axis.legend(fontsize=8, title="dotted: shuffled variances", title_fontsize=7)


def format_interval(entry: dict, sign: str = "") -> str:
    mean, low, high = (f"{entry[key]:{sign}.2f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def tabulate_sides(name: str, sides: dict) -> tuple:
    """The table of one model (`evaluation.report`), a row for each side and threshold."""
    heads = ["A", "C", "C - A", "p", "pairs", "verdict", "control", "D - A", "C - D"]
    rows = []
    for side in SIGNS:
        entries = {f"{percent}%": entry for percent, entry in sides.get(side, {}).items()}
        if side in sides.get("wholes", {}):
            entries["whole"] = sides["wholes"][side]
        for label, e in entries.items():
            difference = e["difference"]
            control = e["control"]
            cells = [format_interval(e["a"]), format_interval(e["c"]), format_interval(difference, "+"),
                     f"{max(difference['p'], 1e-99):.0e}", f"{difference['share']:.0f}%",
                     VERDICTS[difference["verdict"]], f"{control['mean']:+.2f} (p {control['p']:.2f})"]
            for contrast in ("other", "content"):
                cells.append(format_interval(e[contrast], "+") if contrast in e else "-")
            rows.append((f"{side}, {label}", cells))
    return name, [("", heads)], rows


def write_uncertainty(opt) -> None:
    """The command: print the results, draw the figure and write uncertainty.json."""
    picture = picture_file(os.path.join(opt.output, "uncertainty.png"))
    numbers = output(os.path.join(opt.output, "uncertainty.json"))
    manifest, models, omitted = read_inputs(opt)
    n = len(next(iter(manifest["triplets"].values())))
    reports = {name: measure_sides(model, manifest) for name, model in models.items()}
    print(f"{n:,} triplets at each threshold and {len(manifest['wholes']):,} images with three crops; "
          f"{omitted['table4']} and {omitted['section34']} without a word that all models know left out")
    for name, sides in reports.items():
        print(f"\n{report.text(tabulate_sides(name, sides))}")
        for rho, quantity in (("rho_area", "the area of a crop"), ("rho_words", "the words of a caption")):
            if rho in sides:
                print(f"rho with {quantity} {sides[rho]:+.2f}")
    save_json({"manifest": opt.manifest, "triplets": n, "unknown": omitted["table4"],
               "models": {name: {**models[name].facts, **sides} for name, sides in reports.items()}}, numbers)
    draw_reports(reports, picture)
    print(f"figure in {picture}, numbers in {numbers}")


def main(argv=None) -> None:
    run_command("Measure the uncertainty of crops and captions by area threshold, and test the paper's direction.",
                write_uncertainty, argv)


if __name__ == "__main__":
    main()
