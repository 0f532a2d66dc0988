"""Choice between two: `ucmr` Table 4 (crops), `pmrl` 3.4 (images and crops).

    python -m vg_experiments.selection --checkpoint RUN [RUN ...] --manifest runs/vg/manifest.json

Table 4: the query is crop A or C and the choice is between captions A and C, or the other way round. The right choice
has the letter of the query; a tie is wrong. `pmrl` 3.4: the query is the description of a crop or of the whole image
(the descriptions of its crops joined) and the choice is between the crop and the image, or the other way round.

A model that always takes the shorter caption, or the smaller crop, gets 100 and 0 percent. So look at the mean of the
two queries of a direction, which is 50 by chance and does not reward such a habit. Intervals and differences from the
first model (95%, p) come from a paired bootstrap over images. Each Gaussian model is followed by its means alone
(their cosine) and, as a control, by the model with its variances dealt to other items at random.

The row "sizes alone" has no model: a text of more words than the median of all is taken for one of the large image, and
a crop of a larger area than the median for one with the long caption. It sees only the query.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

import numpy as np

from data import tokenize
from evaluation import report
from evaluation.protocols import shuffle_variances
from files import output, save_json
from losses import Embedding, cosine
from metrics import paired_bootstrap
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
from vg_experiments.prepare import CROPS

# the four queries, and the means of the first two and of the last two
COLUMNS = {"table4": ("crop A", "crop C", "caption A", "caption C", "images to text", "text to images"),
           "section34": ("crop", "image", "crop description", "image description", "images to text",
                         "text to images")}
SIZES = "sizes alone"                 # the row without a model
TITLES = {"table4": "triplets (`ucmr` Table 4), mean over the thresholds",
          "section34": "images and crops (`pmrl` 3.4)"}


def correct_choices(similarity, images: Embedding, captions: Embedding, i: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Right choices of a similarity in K cases: (4, K) bool.

    The queries are image small, image large, caption short and caption long. i (2, K): rows of images, small and large;
    c (2, K): rows of captions, short and long.
    """
    scores = pair_scores(similarity, images, captions, i[[0, 0, 1, 1]].ravel(), c[[0, 1, 0, 1]].ravel())
    ss, sl, ls, ll = scores.reshape(4, -1)                                          # image, caption
    return np.stack([ss > sl, ll > ls, ss > ls, ll > sl])


def judge_choices(model: CropEncoder, cases: list[tuple], groups: int) -> dict[str, np.ndarray]:
    """Judge a model and, of Gaussians, its controls: {variant: right (G, 4, N) bool}.

    cases: (path of the photo, small box, large box, short text, long text), N of one group after the other.
    """
    (boxes, i), (texts, c) = map(number_items, list_sides(cases))                   # equal items tie
    images, captions, similarity = model.embed_crops(boxes), model.embed_captions(texts), model.similarity
    variants = {"": (similarity, images, captions)}
    if images.log_var is not None or captions.log_var is not None:
        variants[" means only"] = cosine, Embedding(images.mean), Embedding(captions.mean)
        variants[" variances dealt"] = similarity, *shuffle_variances(images, captions)
    hits = {name: correct_choices(*variant, i.reshape(2, -1), c.reshape(2, -1)) for name, variant in variants.items()}
    return {name: np.stack(np.split(values, groups, 1)) for name, values in hits.items()}


def judge_sizes(cases: list[tuple], groups: int) -> np.ndarray:
    """Judge the rule that a long text or a large crop is one of the whole: right (G, 4, N) bool.

    cases: as in `judge_choices`. A query is long or large above the median of all queries of its kind.
    """
    boxes, texts = list_sides(cases)                                                # small ones, then large ones
    areas = np.array([width * height for _, (_, _, width, height) in boxes], np.float64)
    lengths = np.array([len(tokenize(text)) for text in texts], np.float64)
    right = []
    for sizes in (areas, lengths):
        small, large = np.split(sizes, 2)
        right += [small < np.median(sizes), large > np.median(sizes)]
    return np.stack(np.split(np.stack(right), groups, 1))


def list_wholes(manifest: dict) -> list[tuple]:
    """List the cases of section 3.4: of each image the first crop and the whole, then the second, then the third."""
    return [(photo_path(manifest, w["image"]), tuple(w["crops"][k]), whole_box(manifest, w["image"]), w["captions"][k],
             w["description"]) for k in range(CROPS) for w in manifest["wholes"]]


def summarise(kind: str, hits: dict[str, np.ndarray]) -> dict:
    """{row: {query: `paired_bootstrap` with the first row}}, in percent.

    hits: {row: (G, 4, N) bool}; an image is resampled with all G of its items.
    """
    totals, result = {}, {}
    for row, values in hits.items():
        sums, counts = 100.0 * values.sum(0), np.full(values.shape[2], float(len(values)))          # (4, N), (N,)
        totals[row] = {query: (total, counts) for query, total in zip(
            COLUMNS[kind], [*sums, sums[:2].mean(0), sums[2:].mean(0)])}
        zeros = {query: (np.zeros_like(total), n) for query, (total, n) in totals[row].items()}
        first = next(iter(totals.values()))
        alone, beside = (paired_bootstrap(other, totals[row], {}, samples=2000) for other in (zeros, first))
        result[row] = {
            query: {"percent": alone[query]["b"], "low": alone[query]["low"], "high": alone[query]["high"],
                    "difference": {x: beside[query][x] for x in ("difference", "low", "high", "p")}}
            for query in totals[row]}
    return result


def render_table(kind: str, title: str, rows: dict) -> str:
    """The table: a row per model, and below it its differences from the first model."""
    lines = []
    for row, entries in rows.items():
        lines.append((row, [f"{e['percent']:.1f} [{e['low']:.1f}, {e['high']:.1f}]" for e in entries.values()]))
        if len(lines) > 1:
            lines.append(("  less the first", [f"{e['difference']['difference']:+.1f} (p {e['difference']['p']:.3f})"
                                               for e in entries.values()]))
    return report.text((title, [("", COLUMNS[kind])], lines))


def write_selection(opt) -> None:
    """The command: print the tables and write selection.json."""
    path = output(os.path.join(opt.output, "selection.json"))
    manifest, models, omitted = read_inputs(opt)
    cases = {"table4": (list_cases(manifest), len(manifest["triplets"])), "section34": (list_wholes(manifest), CROPS)}
    hits = {kind: {name + variant: values for name, model in models.items()
                   for variant, values in judge_choices(model, items, groups).items()}
            for kind, (items, groups) in cases.items() if items}
    for kind, rows in hits.items():
        rows[SIZES] = judge_sizes(*cases[kind])
    tables = {kind: summarise(kind, rows) for kind, rows in hits.items()}
    by_threshold = {percent: {row: dict(zip(COLUMNS["table4"], (100 * values[g].mean(1)).tolist()))
                              for row, values in hits["table4"].items()}
                    for g, percent in enumerate(manifest["triplets"])}
    images = {kind: len(items) // groups for kind, (items, groups) in cases.items()}
    for kind, rows in tables.items():
        title = (f"{TITLES[kind]}: {images[kind]:,} images; {omitted[kind]} without a word that all models know left "
                 "out")
        print(f"\n{render_table(kind, title, rows)}")
    print("\nevery model is one run: intervals and p cover the choice of images for its very weights, and two seeds of "
          "one method differ as much")
    save_json({"manifest": opt.manifest, "images": images, "unknown": omitted,
               "models": {name: model.facts for name, model in models.items()},
               **tables, "table4_by_threshold": by_threshold}, path)
    print(f"\nnumbers, also by threshold, in {path}")


def main(argv=None) -> None:
    run_command("Test how often models choose the right one of two crops or of two captions.", write_selection, argv)


if __name__ == "__main__":
    main()
