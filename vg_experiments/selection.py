"""Choosing one of two: `ucmr` Table 4 on triplets of crops, `pmrl` 3.4 on whole images and their crops; models side by side.

    python -m vg_experiments.selection --checkpoint RUN [RUN ...] --manifest runs/vg/manifest.json

Table 4: the query is crop A or C and the choice caption A or C, or the other way round; right is the one of the same letter,
and a tie is wrong. `pmrl` 3.4: the query is the description of a crop or of the whole image (its crops' joined) and the
choice the crop or the image, or the other way round. A model that always takes the shorter caption, or the smaller crop, gets
100 and 0 percent: the mean of the two queries of a direction, 50 by chance, shows what is not such a habit. Intervals and
differences to the first model (95%, p) are of a paired bootstrap over images. Beside a Gaussian model stand its means alone
(their cosine) and, as a control, the model with the variances dealt to other items at random.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import os

import numpy as np

import cli
from cli import Arguments
from evaluation.assess import deal_variances
from files import holds_keys, output, save_json
from metrics import paired_bootstrap
from paper_tables import pmrl_section34, ucmr_table4
from similarities import Cosine, Embedding
from vg_experiments.encoding import Encoder, arguments, common, encoders, known, names, photo_path, whole_box
from vg_experiments.prepare import read_manifest

QUERIES = {"table4": ("crop A", "crop C", "caption A", "caption C"),
           "section34": ("crop description", "image description", "crop", "image")}
TITLES = {"table4": "triplets (`ucmr` Table 4), mean over the thresholds", "section34": "images and crops (`pmrl` 3.4)"}
PAPERS = {kind: {f"{table.title.split()[0]}: {row.label}": row.published for row in table.rows}     # percent, for comparison
          for kind, table in (("table4", ucmr_table4.TABLE), ("section34", pmrl_section34.TABLE))}
MEANS = {"table4": ("images to text", "text to images"), "section34": ("text to images", "images to text")}


def right(model: Encoder, images: Embedding, captions: Embedding, small: np.ndarray, large: np.ndarray, short: np.ndarray,
          long: np.ndarray) -> np.ndarray:
    """(4, K) bool: whether the model is right on item k with the queries image small, image large, caption short, caption
    long; the arguments (K,) are rows of images and of captions."""
    scores = model.scores(images, captions, np.concatenate([small, small, large, large]),
                          np.concatenate([short, long, short, long]))               # at once, so that equal pairs tie
    ss, sl, ls, ll = scores.reshape(4, -1)                                          # image, caption
    return np.stack([ss > sl, ll > ls, ss > ls, ll > sl])


def variants(model: Encoder, images: Embedding, captions: Embedding, seed: int) -> dict[str, tuple]:
    """{row: (similarity or None for the model's own, images, captions)}: the model and, if it is Gaussian, its controls."""
    rows = {"": (None, images, captions)}
    if images.log_var is not None or captions.log_var is not None:
        rows[" means only"] = (Cosine(), Embedding(images.mean), Embedding(captions.mean))
        rows[" variances dealt"] = (None, *deal_variances(images, captions, seed))
    return rows


def firsts(items: list) -> np.ndarray:
    """(N,): where each item stands first."""
    place = {item: k for k, item in reversed(list(enumerate(items)))}
    return np.array([place[item] for item in items])


def judge(model: Encoder, boxes: list, texts: list[str], seed: int, rows: tuple) -> dict[str, np.ndarray]:
    """{variant: (4, K) bool} of items whose crops and captions are rows (small, large, short, long) of boxes and texts."""
    images, captions, own = model.crops(boxes), model.captions(texts), model.model.similarity
    box, text = firsts(boxes), firsts(texts)
    rows, found = (box[rows[0]], box[rows[1]], text[rows[2]], text[rows[3]]), {}
    for name, (similarity, *sides) in variants(model, images, captions, seed).items():
        model.model.similarity = similarity or own
        found[name] = right(model, *sides, *rows)
    model.model.similarity = own
    return found


def table4(model: Encoder, manifest: dict, chosen: dict[str, list[dict]], folder: str | None, seed: int) -> dict:
    """{variant: (thresholds, 4, images) bool}: crop A, crop C, caption A, caption C as queries."""
    triplets = [t for items in chosen.values() for t in items]
    boxes = [(photo_path(manifest, t["image"], folder), tuple(t[which])) for which in "ac" for t in triplets]
    texts = [t[f"caption_{which}"] for which in "ac" for t in triplets]
    k = np.arange(len(triplets))
    found = judge(model, boxes, texts, seed, (k, k + len(k), k, k + len(k)))
    return {name: np.stack(np.split(hits, len(chosen), 1)) for name, hits in found.items()}


def section34(model: Encoder, manifest: dict, wholes: list[dict], folder: str | None, seed: int) -> dict:
    """{variant: (crops, 4, images) bool}: crop description, image description, crop, image as queries."""
    n, m = len(wholes), manifest["crops"]
    paths = [photo_path(manifest, w["image"], folder) for w in wholes]
    boxes = [(path, tuple(w["crops"][j])) for j in range(m) for path, w in zip(paths, wholes)]
    boxes += [(path, whole_box(manifest, w["image"])) for path, w in zip(paths, wholes)]
    texts = [w["captions"][j] for j in range(m) for w in wholes] + [w["description"] for w in wholes]
    crop, image = np.arange(m * n), m * n + np.tile(np.arange(n), m)
    found = judge(model, boxes, texts, seed, (crop, image, crop, image))
    return {name: np.stack(np.split(hits[[2, 3, 0, 1]], m, 1)) for name, hits in found.items()}


def table(kind: str, hits: dict[str, np.ndarray]) -> dict:
    """hits: {row: (G, 4, N) bool} -> {row: {query: what `paired_bootstrap` says of it beside the first row}}, percent. An image
    is resampled with all G of its items."""
    def totals(found):
        each = 100.0 * found.sum(0)                                                 # (4, N)
        pairs = {MEANS[kind][k]: each[2 * k:2 * k + 2].mean(0) for k in (0, 1)}
        counts = np.full(found.shape[2], float(len(found)))
        return {name: (values, counts) for name, values in {**dict(zip(QUERIES[kind], each)), **pairs}.items()}
    first = totals(next(iter(hits.values())))
    result = {}
    for row, found in hits.items():
        mine = totals(found)
        alone = paired_bootstrap({k: (np.zeros_like(v), n) for k, (v, n) in mine.items()}, mine, {}, samples=2000)
        both = paired_bootstrap(first, mine, {}, samples=2000)
        result[row] = {k: {"percent": alone[k]["b"], "low": alone[k]["low"], "high": alone[k]["high"],
                           "difference": {x: both[k][x] for x in ("difference", "low", "high", "p")}} for k in mine}
    return result


def lines(kind: str, rows: dict):
    """A row a model and the papers' rows; below each but the first its differences to the first."""
    columns = (*QUERIES[kind], *MEANS[kind])
    width = max(28, *map(len, rows))
    yield f"{'query':<{width}}" + "".join(f"{column:>21}" for column in columns)
    for k, (row, entries) in enumerate(rows.items()):
        yield f"{row:<{width}}" + "".join(f"{e['percent']:6.1f} [{e['low']:.1f}, {e['high']:.1f}]".rjust(21)
                                          for e in entries.values())
        if k:
            yield f"{'  less the first':<{width}}" + "".join(
                f"{e['difference']['difference']:+6.1f} (p {e['difference']['p']:.3f})".rjust(21) for e in entries.values())
    for row, values in PAPERS[kind].items():
        means = [sum(values[:2]) / 2, sum(values[2:]) / 2]
        yield f"{row:<{width}}" + "".join(f"{value:.1f}".rjust(21) for value in (*values, *means))


def main(argv=None) -> None:
    p = Arguments("Binary selection between crops and between captions.")
    arguments(p)
    cli.run(p.prog, select, p.parse_args(argv))


def select(opt) -> None:
    path = output(os.path.join(opt.output, "selection.json"), holds_keys(
        "manifest", "seed", "images", "unknown", "models", "table4_by_threshold", optional=("table4", "section34")))
    manifest, models = read_manifest(opt.manifest), encoders(opt)
    chosen, without = common(manifest, models)
    wholes = manifest["wholes"]
    kept = known(wholes, lambda w: (*w["captions"], w["description"]), models) if wholes else np.zeros(0, bool)
    wholes = [w for w, keep in zip(wholes, kept) if keep]
    hits = {"table4": {}, "section34": {}}
    for name, model in zip(names(models), models):
        found = {"table4": table4(model, manifest, chosen, opt.vg, opt.seed),
                 "section34": section34(model, manifest, wholes, opt.vg, opt.seed) if wholes else {}}
        for kind, rows in found.items():
            hits[kind].update({name + variant: values for variant, values in rows.items()})
    tables = {kind: table(kind, rows) for kind, rows in hits.items() if rows}
    each = {percent: {row: dict(zip(QUERIES["table4"], (100 * values[g].mean(1)).tolist()))
                      for row, values in hits["table4"].items()} for g, percent in enumerate(chosen)}
    counts = {"table4": (len(next(iter(chosen.values()))), without), "section34": (len(wholes), int((~kept).sum()))}
    for kind, rows in tables.items():
        print(f"\n{TITLES[kind]}: {counts[kind][0]:,} images; {counts[kind][1]} without a word that all models know left out")
        print("\n".join(lines(kind, rows)))
    print("\nevery model is one run: intervals and p cover the choice of images for its very weights, and two seeds of one "
          "method differ as much")
    save_json({"manifest": opt.manifest, "seed": opt.seed, "images": {kind: n for kind, (n, _) in counts.items()},
               "unknown": {kind: n for kind, (_, n) in counts.items()},
               "models": {name: model.facts for name, model in zip(names(models), models)}, **tables,
               "table4_by_threshold": each}, path)
    print(f"\nnumbers, also by threshold, in {path}")


if __name__ == "__main__":
    main()
