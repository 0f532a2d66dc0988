"""Choice between two: `ucmr` Table 4 (crops), `pmrl` 3.4 (images and crops).

    python -m vg_experiments.selection --checkpoint RUN [RUN ...] --manifest runs/vg/manifest.json

Table 4: the query is crop A or C and the choice is between captions A and C, or the other way
round. The right choice has the letter of the query; a tie is wrong. `pmrl` 3.4: the query is the
description of a crop or of the whole image (the descriptions of its crops joined) and the choice is
between the crop and the image, or the other way round.

A model that always takes the shorter caption, or the smaller crop, gets 100 and 0 percent. So look
at the mean of the two queries of a direction, which is 50 by chance and does not reward such a
habit. Intervals and differences from the first model (95%, p) come from a paired bootstrap over
images. Each Gaussian model is followed by its means alone (their cosine) and, as a control, by the
model with its variances shuffled among the items.

The row "sizes alone" has no model: a text of more words than the median of all is taken for one of
the large image, and a crop of a larger area than the median for one with the long caption. It sees
only the query.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os

import numpy as np

from data import tokenize
from evaluation import report
from evaluation.protocols import shuffle_variances
from losses import Embedding, cosine
from metrics import paired_bootstrap
from utils import output, save_json
from vg_experiments.encoding import (
    CropEncoder,
    list_cases,
    list_sides,
    number_items,
    pair_scores,
    photo_path,
    read_inputs,
    run_command,
    whole_box,
)
from vg_experiments.prepare import CROPS_PER_IMAGE

# The four queries, and the means of the first two and of the last two.
QUERIES = {
    "table4": (
        "crop A",
        "crop C",
        "caption A",
        "caption C",
        "images to text",
        "text to images",
    ),
    "section34": (
        "crop",
        "image",
        "crop description",
        "image description",
        "images to text",
        "text to images",
    ),
}
SIZES_ROW = "sizes alone"  # the row without a model
SELECTION_TITLES = {
    "table4": "triplets (`ucmr` Table 4), mean over the thresholds",
    "section34": "images and crops (`pmrl` 3.4)",
}
SELECTION_SAMPLES = 2000


def correct_choices(
    similarity, images: Embedding, captions: Embedding, i: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """Judge the choices of a similarity in K cases: right (4, K) bool.

    The queries are image small, image large, caption short and caption long.

    Args:
        i: (2, K) rows of images, small and large.
        c: (2, K) rows of captions, short and long.
    """
    rows = i[[0, 0, 1, 1]].ravel()
    columns = c[[0, 1, 0, 1]].ravel()
    scores = pair_scores(similarity, images, captions, rows, columns).reshape(4, -1)
    small_short, small_long, large_short, large_long = scores  # image, caption: (K,) each
    choices = [
        small_short > small_long,
        large_long > large_short,
        small_short > large_short,
        large_long > small_long,
    ]
    return np.stack(choices)


def judge_choices(model: CropEncoder, cases: list[tuple], groups: int) -> dict[str, np.ndarray]:
    """Judge a model and, of Gaussians, its controls: {variant: right (G, 4, N) bool}.

    cases: (path of the photo, small box, large box, short text, long text), N of one group after
    the other.
    """
    boxes, texts = list_sides(cases)
    boxes, i = number_items(boxes)  # equal items tie
    texts, c = number_items(texts)
    images = model.embed_crops(boxes)
    captions = model.embed_captions(texts)

    variants = {"": (model.similarity, images, captions)}
    if images.log_var is not None or captions.log_var is not None:
        means = (Embedding(images.mean), Embedding(captions.mean))
        variants[" means only"] = (cosine, *means)
        shuffled = shuffle_variances(images, captions)
        variants[" variances dealt"] = (model.similarity, *shuffled)

    hits = {}
    for name, variant in variants.items():
        right = correct_choices(*variant, i.reshape(2, -1), c.reshape(2, -1))
        hits[name] = split_groups(right, groups)
    return hits


def judge_sizes(cases: list[tuple], groups: int) -> np.ndarray:
    """Judge the rule that a long text or a large crop is one of the whole: right (G, 4, N) bool.

    cases: as in `judge_choices`. A query is long or large above the median of all queries of its
    kind.
    """
    boxes, texts = list_sides(cases)  # small ones, then large ones
    areas = np.array([width * height for _, (_, _, width, height) in boxes], np.float64)
    lengths = np.array([len(tokenize(text)) for text in texts], np.float64)
    right = []
    for sizes in (areas, lengths):
        small, large = np.split(sizes, 2)
        right += [small < np.median(sizes), large > np.median(sizes)]
    return split_groups(np.stack(right), groups)


def split_groups(right: np.ndarray, groups: int) -> np.ndarray:
    """Split cases of one group after the other: (4, G N) -> (G, 4, N)."""
    return np.stack(np.split(right, groups, 1))


def list_wholes(manifest: dict) -> list[tuple]:
    """List the cases of section 3.4.

    They are of each image the first crop and the whole, then the second, then the third.
    """
    cases = []
    for k in range(CROPS_PER_IMAGE):
        for w in manifest["wholes"]:
            path = photo_path(manifest, w["image"])
            whole = whole_box(manifest, w["image"])
            crop = tuple(w["crops"][k])
            cases.append((path, crop, whole, w["captions"][k], w["description"]))
    return cases


def summarise(kind: str, hits: dict[str, np.ndarray]) -> dict:
    """Summarize the choices: {row: {query: `paired_bootstrap` with the first row}}, in percent.

    hits: {row: (G, 4, N) bool}; an image is resampled with all G of its items.
    """
    first = None
    result = {}
    for row, values in hits.items():
        totals = total_queries(kind, values)
        first = first or totals
        zeros = {query: (np.zeros_like(total), n) for query, (total, n) in totals.items()}
        alone = paired_bootstrap(zeros, totals, {}, samples=SELECTION_SAMPLES)
        compared = paired_bootstrap(first, totals, {}, samples=SELECTION_SAMPLES)

        result[row] = {}
        for query in totals:
            difference = {x: compared[query][x] for x in ("difference", "low", "high", "p")}
            result[row][query] = {
                "percent": alone[query]["b"],
                "low": alone[query]["low"],
                "high": alone[query]["high"],
                "difference": difference,
            }
    return result


def total_queries(kind: str, right: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sum right choices (G, 4, N) over the groups: {query: (percent (N,), number (N,))}."""
    groups, _, images = right.shape
    sums = 100.0 * right.sum(0)  # (4, N)
    counts = np.full(images, float(groups))
    of_queries = [*sums, sums[:2].mean(0), sums[2:].mean(0)]
    return {query: (total, counts) for query, total in zip(QUERIES[kind], of_queries)}


def render_table(kind: str, title: str, rows: dict) -> str:
    """Render the table: a row per model, and below it its differences from the first model."""
    lines = []
    for row, entries in rows.items():
        percents = []
        differences = []
        for e in entries.values():
            percents.append(f"{e['percent']:.1f} [{e['low']:.1f}, {e['high']:.1f}]")
            difference = e["difference"]
            differences.append(f"{difference['difference']:+.1f} (p {difference['p']:.3f})")
        lines.append((row, percents))
        if len(lines) > 1:
            lines.append(("  minus the first", differences))
    return report.text((title, [("", QUERIES[kind])], lines))


def judge_rows(models: dict[str, CropEncoder], cases: list[tuple], groups: int) -> dict:
    """Judge all models, their controls and the rule of sizes: {row: right (G, 4, N)}."""
    rows = {}
    for name, model in models.items():
        for variant, right in judge_choices(model, cases, groups).items():
            rows[name + variant] = right
    rows[SIZES_ROW] = judge_sizes(cases, groups)
    return rows


def average_by_threshold(rows: dict[str, np.ndarray], percents) -> dict:
    """Average the choices between triplets: {percent: {row: {query: percent right}}}."""
    by_threshold = {}
    for g, percent in enumerate(percents):
        by_threshold[percent] = {}
        for row, right in rows.items():
            shares = (100 * right[g].mean(1)).tolist()
            by_threshold[percent][row] = dict(zip(QUERIES["table4"], shares))
    return by_threshold


def write_selection(opt) -> None:
    """Print the tables and write selection.json."""
    path = output(os.path.join(opt.output_folder, "selection.json"))
    manifest, models, omitted = read_inputs(opt)
    cases = {
        "table4": (list_cases(manifest), len(manifest["triplets"])),
        "section34": (list_wholes(manifest), CROPS_PER_IMAGE),
    }
    images = {}
    hits = {}
    for kind, (items, groups) in cases.items():
        images[kind] = len(items) // groups
        if items:
            hits[kind] = judge_rows(models, items, groups)

    tables = {kind: summarise(kind, rows) for kind, rows in hits.items()}
    for kind, rows in tables.items():
        title = (
            f"{SELECTION_TITLES[kind]}: {images[kind]:,} images; {omitted[kind]} without a word "
            "that all models know left out"
        )
        print(f"\n{render_table(kind, title, rows)}")
    print(
        "\nevery model is one run: intervals and p cover the choice of images for its very "
        "weights, and two seeds of one method differ as much"
    )

    results = {
        "manifest": opt.manifest,
        "images": images,
        "unknown": omitted,
        "models": {name: model.facts for name, model in models.items()},
        **tables,
        "table4_by_threshold": average_by_threshold(hits["table4"], manifest["triplets"]),
    }
    save_json(results, path)
    print(f"\nnumbers, also by threshold, in {path}")


def main(argv=None) -> None:
    run_command(
        "Test how often models choose the right one of two crops or of two captions.",
        write_selection,
        argv,
    )


if __name__ == "__main__":
    main()
