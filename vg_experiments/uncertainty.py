"""Uncertainty and ambiguity: `ucmr` Fig. 2, with a test of its direction.

    python -m vg_experiments.uncertainty --checkpoint RUN [RUN ...] --manifest runs/vg/manifest.json

For every threshold: the mean of log det Sigma (nats) of crops A and C and of captions A and C with
95% intervals, and the mean of the paired differences C - A with its interval and the p of a paired
t-test. `ucmr` finds image C above image A (two things are more ambiguous than one) and caption C
below caption A (it says more). The first control shuffles the uncertainties among the items; a
difference that remains is chance. The second control is for captions: D joins caption A with the
caption B of another image. The gap between D and A is due to length alone, so C - D is what belongs
together adds. Spearman's rho with the area of a crop and the number of words of a caption is
reported, too.
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
from vg_experiments.encoding import list_cases, list_sides, read_inputs, run_command, whole_box
from vocab import tokenize

SIGNS = {"images": 1, "captions": -1}            # of C - A, as `ucmr` 4.6 finds it
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


def measure_sides(model, manifest: dict) -> dict:
    """Measure a model's sides with variances.

    Returns {"images" | "captions": {percent: `compare_crops`}, "rho_area", "rho_words"}. Raises InputError for a point
    model and for one trained with --vae.
    """
    check(not model.options.vae,
          f"{model.path} samples points from its Gaussians in training (--vae) and compares points, whose uncertainty "
          "no score uses; train a model of Gaussians, such as --sim wasserstein, or give this one to "
          "vg_experiments.selection")
    result, rng, triplets_at = {}, np.random.default_rng(0), manifest["triplets"]
    (boxes, texts), bounds = list_sides(list_cases(manifest)), np.cumsum([0, *map(len, triplets_at.values())])
    n = bounds[-1]

    def add(side: str, embedding, rho: str, trivial: list) -> None:
        # all A, then all C, then, of captions of several images, all D
        values = uncertainty(embedding).double().cpu().numpy()                      # (2 n or 3 n,)
        result[side] = {percent: compare_crops(*(values[k * n + low:k * n + high] for k in range(3)), SIGNS[side], rng)
                        for percent, low, high in zip(triplets_at, bounds, bounds[1:])}
        result[rho] = spearman(values[:2 * n], np.array(trivial))
    if model.model.image_tower.gaussian:
        sizes = [np.prod(whole_box(manifest, t["image"])[2:]) for items in triplets_at.values() for t in items] * 2
        areas = [w * h / size for (_, (*_, w, h)), size in zip(boxes, sizes)]
        add("images", model.embed_crops(boxes), "rho_area", areas)
    if model.model.text_tower.gaussian:
        others = [f"{t['caption_a']} and {other['caption_b']}"
                  for items in triplets_at.values() for t, other in zip(items, items[1:] + items[:1])]
        add("captions", model.embed_captions(texts + others), "rho_words", [len(tokenize(x)) for x in texts])
    check(result, f"{model.path} is a point model (--sim {model.options.sim}) and has no uncertainty; train one with a "
                  "Gaussian head, such as --sim wasserstein, or give this one to vg_experiments.selection")
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
                                        ("d", "A and another photo's B", "tab:gray", 0)):
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
        for percent, e in sides.get(side, {}).items():
            difference = e["difference"]
            control = e["control"]
            cells = [format_interval(e["a"]), format_interval(e["c"]), format_interval(difference, "+"),
                     f"{max(difference['p'], 1e-99):.0e}", f"{difference['share']:.0f}%",
                     VERDICTS[difference["verdict"]], f"{control['mean']:+.2f} (p {control['p']:.2f})"]
            for contrast in ("other", "content"):
                cells.append(format_interval(e[contrast], "+") if contrast in e else "-")
            rows.append((f"{side}, {percent}%", cells))
    return name, [("", heads)], rows


def write_uncertainty(opt) -> None:
    """The command: print the results, draw the figure and write uncertainty.json."""
    picture = picture_file(os.path.join(opt.output, "uncertainty.png"))
    numbers = output(os.path.join(opt.output, "uncertainty.json"))
    manifest, models, omitted = read_inputs(opt)
    n = len(next(iter(manifest["triplets"].values())))
    reports = {name: measure_sides(model, manifest) for name, model in models.items()}
    print(f"{n:,} triplets at each threshold; {omitted['table4']} images without a word that all models know left out")
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
