"""Evaluate image-caption retrieval: trained models, embeddings of any model, or a matrix of scores.

    python evaluate.py                                     # the newest run, its data set, the test split
    python evaluate.py --checkpoint runs/A runs/B          # an ensemble: the mean of their scores
    python evaluate.py --cxc --pmrp --uncertainty          # Crisscrossed Captions, PMRP, what the uncertainty knows
    python evaluate.py --compare runs/A runs/B             # is the difference real?
    python evaluate.py --embeddings clip.npz --cxc         # a model that was not trained here

Prints tables and writes results.json; `--export FILE.npz` keeps the embeddings.
"""
import argparse
import contextlib
import csv
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

import annotations
import metrics
import originals
import protocols
from annotations import MATCH, Index, Pairs, Ratings
from losses import SIMILARITIES, Cosine, Embedding, uncertainty
from protocols import FOLD, Record, Subject
from report import SIDES, comparisons, foreign_words, render, seed_tables, tables
from subjects import load_checkpoint, newest_run, open_embeddings, open_run, open_scores, open_subject, output_file, save_json
from vocab import Arguments, InputError, writable

INSTANCES = "instances_val2014.json"  # COCO's dev and test images are of its 2014 validation set

# ---- what is reported

@dataclass
class Judgements:
    """Matches and ratings beyond the original pairs, as positions in the split."""
    ratings: dict[str, Ratings] | None = None     # of Crisscrossed Captions
    cxc: dict[str, Pairs] | None = None
    codes: np.ndarray | None = None               # (N, K) bool, categories that an image shows
    eccv: dict[str, Pairs] | None = None
    positives: dict[str, tuple[Pairs, int]] | None = None

    def lines(self, n: int, m: int):
        """What was read, for the reader of the report."""
        if self.ratings:
            for kind, rated in self.ratings.items():
                high = int((rated.score >= MATCH[kind]).sum())
                yield f"{kind.upper()}: {len(rated.score):,} rated pairs, {high:,} of them {MATCH[kind]:g} or more"
            for side, pairs in self.cxc.items():
                queries, total = len(np.unique(pairs.query)), n if side[0] == "i" else m
                yield f"CxC {SIDES[side]}: {len(pairs.query):,} matches of {queries:,} queries" + (
                    f"; {total - queries:,} queries without a match do not count" if queries < total else "")
        if self.codes is not None:
            shown, categories = int(self.codes.any(1).sum()), self.codes.shape[1]
            yield f"PMRP: {shown:,} of {n:,} images show at least one of {categories} categories"
        for side, pairs in (self.eccv or {}).items():
            yield f"ECCV {SIDES[side]}: {len(pairs.query):,} matches of {len(np.unique(pairs.query)):,} queries"
        for side, (pairs, without) in (self.positives or {}).items():
            yield f"positives {SIDES[side]}: {len(pairs.query):,} matches of {len(np.unique(pairs.query)):,} queries" + (
                f"; {without:,} queries list none and do not count" if without else "")


def read_judgements(subject: Subject, opt) -> Judgements:
    """Those that the options ask for."""
    found = Judgements()
    if opt.cxc or opt.pmrp or opt.eccv or opt.positives:
        images = Index(subject.image_ids, "image", subject.source)
    if opt.pmrp:
        path = opt.instances or os.path.join(subject.folder, "annotations", INSTANCES)
        found.codes = annotations.read_instances(path, images)
    if opt.cxc or opt.eccv or opt.positives:
        captions = Index(subject.caption_ids, "caption", subject.source)
    if opt.cxc:
        part = "val" if opt.split in ("dev", "val") else "test"
        folder = opt.cxc_path or os.path.normpath(os.path.join(subject.folder, "..", "cxc"))
        found.ratings = annotations.read_cxc(folder, part, images, captions)
        found.cxc = annotations.cxc_pairs(found.ratings, subject.caption_image, opt.cxc_rule)
    if opt.eccv:
        found.eccv = annotations.read_eccv(opt.eccv_path or annotations.eccv_folder(), images, captions)
    if opt.positives:
        found.positives = annotations.read_positives(opt.positives, images, captions)
    return found


@torch.no_grad()
def run_protocols(subject: Subject, judged: Judgements, opt, record: Record) -> tuple[dict, list[str]]:
    """The "protocols" of results.json, and sentences on what cannot be had."""
    if opt.fold5 and subject.n_images < 5 * FOLD:
        raise InputError(f"--fold5 needs 5 x 1,000 images and {subject.name} has {subject.n_images:,}; leave it out or name a "
                         "larger split (COCO: testall for precomputed features)")
    if opt.rerank and not (subject.members and all(similarity.parts for similarity, *_ in subject.members)):
        raise InputError(f"--rerank {opt.rerank} saves time where words are compared with regions, and {subject.name} is "
                         f"scored by {subject.similarity}; leave it out, or evaluate a model of --sim scan")
    results, absent, scores, began, seconds = {}, [], None, time.perf_counter(), {}
    chosen = protocols.folds(subject) if opt.fold5 else None
    every = [(np.arange(subject.n_images), np.arange(len(subject.caption_image)))]
    if subject.has_images:
        several_matches = judged.cxc or judged.eccv or judged.positives or judged.codes is not None
        if several_matches or subject.scores is not None:
            scores = protocols.score_matrix(subject, opt.block)
        variants = {"full": subject.members, "mean_only": means_only(subject),
                    "shuffled": shuffled(subject) if opt.uncertainty and opt.control else []}
        for name, members in variants.items():
            fold_parts = chosen if name != "shuffled" else None
            if members or (name == "full" and scores is not None):
                tile = protocols.image_text(members) if scores is None or name != "full" else protocols.image_text_of(scores)
                for key, part in ((name, None), (f"{name}_folds5".replace("full_", ""), fold_parts)):
                    if part or key == name:
                        results[key] = protocols.plain(subject, record, key, tile, part, opt.block)
                        seconds[key] = time.perf_counter() - began
        if opt.rerank:
            began = time.perf_counter()
            for key, part in (("rerank", None), ("rerank_folds5", chosen)):
                if part or key == "rerank":
                    results[key] = protocols.two_stages(subject, record, key, opt.rerank, part)
                    results["rerank"].setdefault("seconds", time.perf_counter() - began)
            results["rerank"]["seconds_full"] = seconds["full"]
    else:
        absent.append("image to text and text to image: there are no images")
    if scores is not None:
        if judged.codes is not None:
            for key, part in (("pmrp", every), ("pmrp_folds5", chosen)):
                if part:
                    results[key] = protocols.pmrp(scores, judged.codes, subject.caption_image, part, record, key)
        if judged.eccv:
            results["eccv"] = protocols.eccv(scores, judged.eccv, record)
        if judged.positives:
            pairs = {side: found for side, (found, _) in judged.positives.items()}
            results["positives"] = protocols.several(scores, pairs, record, "positives", every, "rp")
            for side, (_, without) in judged.positives.items():
                results["positives"][side]["without"] = without
    elif judged.codes is not None or judged.eccv or judged.positives:
        absent.append("PMRP, ECCV Caption and --positives: there are no images")
    if judged.cxc:
        held, scores, tile = [scores], None, None           # handed over: cxc lets go of the matrix before text to text
        found, lacking = protocols.cxc(subject, held.pop(), judged.ratings, judged.cxc, opt.fold5, record)
        results, absent = {**results, **found}, absent + lacking
    return results, absent


def means_only(subject: Subject) -> list:
    """The members of a Gaussian model as points: the row that shows what the variances do."""
    return [(Cosine(), Embedding(i.mean), Embedding(c.mean)) for _, i, c in subject.members] if subject.gaussian else []


def shuffled(subject: Subject, seed: int = 0) -> list:
    """The members with their variances dealt to other items: the row that shows whether it matters whose they are."""
    def dealt(e: Embedding) -> Embedding:
        order = torch.randperm(len(e.mean), generator=torch.Generator().manual_seed(seed)).to(e.mean.device)
        return e if e.log_var is None else e._replace(log_var=e.log_var[order])
    return [(similarity, dealt(i), dealt(c)) for similarity, i, c in subject.members] if subject.gaussian else []


def uncertainties(subject: Subject) -> dict[str, np.ndarray]:
    """log det Sigma of images (N,) and captions (M,) where they are Gaussian, averaged over the members; nats."""
    found = {}
    for which, side in ((1, "images"), (2, "captions")):
        values = [uncertainty(m[which]) for m in subject.members if m[which] is not None and m[which].log_var is not None]
        if values:
            found[side] = torch.stack(values).mean(0).cpu().numpy()
    return found


def assess(subject: Subject, judged: Judgements, opt) -> tuple[dict, Record, dict[str, np.ndarray]]:
    """Everything the options ask about one subject: what results.json holds, the outcome of every query, uncertainties."""
    record, spreads = Record(), uncertainties(subject)
    found, absent = run_protocols(subject, judged, opt, record)
    results = {"checkpoints": subject.name.split(" + "), "data_name": subject.data_name, "split": opt.split,
               "similarity": subject.similarity, "images": subject.n_images, "captions": len(subject.caption_image),
               "protocols": found}
    if found.get("full"):
        results["best_ranks"] = {side: metrics.best_rank_means(rank[~np.isnan(rank)])
                                 for side in ("i2t", "t2i") for rank in [record["full", side, "rank"]]}
    if absent:
        results["absent"] = absent
    if judged.codes is not None and subject.members and subject.has_images:
        results["neighbours"] = protocols.neighbours(subject, judged.codes)
    if subject.unknown_words:
        results["unknown_words"] = subject.unknown_words
    if opt.uncertainty and not spreads:
        raise InputError(f"--uncertainty: {subject.name} has points, which have no uncertainty; evaluate a Gaussian model")
    for side, values in spreads.items():
        report = {"mean": float(values.mean()), "std": float(values.std())}
        if opt.uncertainty and "full" in found:
            ranks = record["full", "i2t" if side == "images" else "t2i", "rank"]
            report.update(protocols.uncertainty_report(values, ranks))
        results.setdefault("uncertainty", {})[side] = report
    return without_nan(results), record, spreads


def without_nan(value):
    """The same with None for NaN, which JSON does not know: a correlation with a constant, say."""
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value


def rho(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def sentences(results: dict):
    """What the tables do not show."""
    if "unknown_words" in results:
        yield foreign_words(results["data_name"], results["unknown_words"])
    for side, m in results.get("best_ranks", {}).items():
        yield f"best ranks, {SIDES[side]}: harmonic mean {m['hbr']:.2f} (HBR), arithmetic mean {m['abr']:.1f} (ABR)"
    if "neighbours" in results:
        u = results["neighbours"]
        yield (f"the {u['k']} nearest images to each of {u['images']:,} share {u['jaccard']:.1f}% of their categories with it "
               f"(random images: {u['chance']:.1f}%)")
    if "rerank" in results["protocols"]:
        r = results["protocols"]["rerank"]
        yield (f"re-ranking the {r['keep']:,} nearest by the cosine of the means: {r['i2t']['lost']:.2f}% of the images and "
               f"{r['t2i']['lost']:.2f}% of the captions lose all their matches; {r['seconds']:.2f} s against "
               f"{r['seconds_full']:.2f} s in full, {r['seconds_full'] / r['seconds']:.1f} times as fast")
    for side, u in results.get("uncertainty", {}).items():
        yield f"uncertainty log det Sigma of the {side}: mean {u['mean']:.2f}, standard deviation {u['std']:.2f} nats"
        if "recall_bins" in u:
            bins, risk = u["recall_bins"], u["risk_coverage"]
            yield (f"  R@1 from the surest to the least sure tenth: {' '.join(f'{r:.0f}' for r in bins['recall'])}; Spearman's "
                   f"rho {rho(bins['rho'])} over tenths, {rho(bins['rho_queries'])} over queries")
            yield (f"  answering only the surest: area under risk-coverage {risk['area']:.1f} (no knowledge "
                   f"{risk['area_random']:.1f}, perfect {risk['area_best']:.1f}; lower is better)")
    for reason in results.get("absent", ()):
        yield f"not computed: {reason}"


def write_ranks(path: str, subject: Subject, record: Record) -> None:
    """The rank of every query as CSV: protocol, direction, query, its id, 0-based rank of its best match."""
    ids = {"i": subject.image_ids, "t": subject.caption_ids}
    with open(path, "w", encoding="utf-8", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["protocol", "direction", "query", "id", "rank_from_0"])
        for (protocol, side, name), values in record.items():
            if name == "rank":
                known = ids[side[0]] or [""] * len(values)
                rows.writerows((protocol, side, q, known[q], int(v)) for q, v in enumerate(values) if not np.isnan(v))


def compare(names: list[str], opt) -> dict:
    """Several subjects, or groups of seeds ("A0,A1,A2"), on the same split: tables side by side and paired bootstraps."""
    groups, runs, first, judged = {}, {}, None, None
    given = [path for group in names for path in group.split(",")]
    count = Counter(map(os.path.realpath, given))
    twice = [path for path in given if not path or count[os.path.realpath(path)] > 1]
    if twice:
        raise InputError(f"--compare names '{twice[0]}' more than once or names nothing between commas; name each run once")
    for group in names:
        for path in group.split(","):
            subject = open_subject(path, opt)
            if first is None:
                first, judged = subject, read_judgements(subject, opt)
            elif not np.array_equal(subject.caption_image, first.caption_image) or any(
                    mine and theirs and type(mine[0]) is type(theirs[0]) and mine != theirs for mine, theirs in (
                        (subject.image_ids, first.image_ids), (subject.captions, first.captions))):
                raise InputError(f"--compare: {path} has {subject.n_images} images and {len(subject.caption_image)} captions "
                                 f"of {subject.source}, {first.name} has {first.n_images} and {len(first.caption_image)} of "
                                 f"{first.source}; compare runs on the same split with --data_name and --split")
            results, record, _ = assess(subject, judged, opt)
            runs[path] = results
            groups.setdefault(group, []).append(record.totals(first.caption_image, first.n_images))
    label = {group: common_name(group.split(",")) for group in groups}
    if len(set(label.values())) < len(groups):
        label = {group: group for group in groups}
    mean, seeds = {}, {}
    for group, totals in groups.items():
        names = [name for name in totals[0] if all(name in t for t in totals)]
        mean[group] = {name: tuple(np.mean([t[name] for t in totals], 0)) for name in names}
        values = {name: [t[name][0].sum() / t[name][1].sum() for t in totals] for name in names}
        values.update({name: [sum(values[term][k] for term in terms) for k in range(len(totals))]
                       for name, terms in rsums(names).items()})
        for kind in ("sts", "sis", "sits"):
            rated = [runs[path]["protocols"].get("cxc", {}).get(kind) for path in group.split(",")]
            if all(rated):
                values[f"cxc {kind} rho x 100"] = [100 * r["spearman"] for r in rated]
        seeds[label[group]] = {name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, len(v))
                               for name, v in values.items()}
    base, *others = groups
    found = [{"a": label[base], "b": label[other], "seeds": [len(groups[base]), len(groups[other])],
              "metrics": metrics.paired_bootstrap(mean[base], mean[other], rsums(mean[base].keys() & mean[other].keys()))}
             for other in others]
    return without_nan({"runs": runs, "groups": seeds, "comparisons": found})


def common_name(paths: list[str]) -> str:
    """runs/A0, runs/A1 -> runs/A: what the last parts of paths in one folder begin with, else the first path."""
    paths = [os.path.normpath(path) for path in paths]
    shared = paths[0] if len(paths) == 1 else os.path.commonprefix(paths).rstrip("_-.")
    same = {os.path.dirname(path) for path in [shared, *paths]}
    return shared if os.path.basename(shared) and len(same) == 1 else paths[0]


def rsums(names) -> dict[str, list[str]]:
    """{"full rsum": its six recalls, ...} for the protocols of which all six are there."""
    found = {}
    for protocol in sorted({name.split()[0] for name in names}):
        terms = [f"{protocol} {side} r{k}" for side in ("i2t", "t2i") for k in metrics.RECALLS]
        if all(term in names for term in terms):
            found[f"{protocol} rsum"] = terms
    return found


def show(made: list, lines, opt) -> None:
    if opt.format != "json":
        print("\n" + render(made, opt.format))
        print("\n".join(lines))


def write(results: dict, output: str) -> None:
    save_json(results, output)
    print(f"written to {output}")


def run(opt) -> dict:
    """Evaluate as the options say; returns what results.json holds."""
    out, as_json = sys.stdout, opt.format == "json"
    with contextlib.redirect_stdout(sys.stderr if as_json else out):
        check_vocab(opt)
        if opt.photos and not os.path.isdir(opt.photos):
            raise InputError(f"--photos {opt.photos} is no folder; give the folder of the photos, or leave it out")
        results = several(opt) if opt.compare else one(opt)
    if as_json:
        print(json.dumps(results, indent=1), file=out)
    return results


def check_vocab(opt) -> None:
    """Refuse --vocab where none of the checkpoints is an original's."""
    paths = opt.checkpoint or [path for group in opt.compare or () for path in group.split(",")]
    files = [path for path in paths if os.path.isfile(path) and not path.endswith((".npz", ".npy"))]
    if opt.vocab and all(map(os.path.exists, paths)) and not any(originals.is_original(originals.read(f)) for f in files):
        raise InputError(f"--vocab {opt.vocab} is for original checkpoints of VSE++ and VSRN, and none is given; leave it out")


def several(opt) -> dict:
    """Compare subjects as --compare names them."""
    output = writable(opt.output or "comparison.json")
    results = compare(opt.compare, opt)
    made = tables({name: r["protocols"] for name, r in results["runs"].items()})
    if any(n > 1 for group in results["groups"].values() for *_, n in group.values()):
        made += seed_tables(results["groups"])
    lines = [f"{name}: {line}" for name, r in results["runs"].items() for line in sentences(r)]
    show(made + comparisons(results["comparisons"]), lines, opt)
    write(results, output)
    if opt.uncertainty:
        draw_curves({name: r.get("uncertainty", {}) for name, r in results["runs"].items()}, output)
    return results


def one(opt) -> dict:
    """Evaluate one subject: a run, an ensemble, embeddings or scores."""
    given = opt.embeddings or opt.scores
    paths = [given] if given else opt.checkpoint or [newest_run()]
    if not given and not opt.checkpoint:
        print(f"no --checkpoint given, taking the newest run: {paths[0]}")
    if opt.export and len(paths) > 1:
        raise InputError(f"--export writes one model's embeddings, and {len(paths)} checkpoints were given; export each alone")
    for path in filter(None, (opt.export, opt.ranks)):
        writable(path)
    output = output_file(opt.output, paths[0], "" if opt.output else default_name(paths, opt))
    subject = (open_embeddings(given, opt) if opt.embeddings else open_scores(given, opt) if opt.scores
               else open_run(paths, opt))
    judged = read_judgements(subject, opt)
    results, record, spreads = assess(subject, judged, opt)
    print(f"\n{results['data_name']} {opt.split}: {subject.n_images:,} images, {len(subject.caption_image):,} captions"
          + (f", mean of the scores of {len(paths)} models" if len(paths) > 1 else ""))
    show(tables({subject.name: results["protocols"]}),
         [*judged.lines(subject.n_images, len(subject.caption_image)), *sentences(results)], opt)
    if opt.ranks:
        write_ranks(opt.ranks, subject, record)
        print(f"ranks of all queries in {opt.ranks}")
    write(results, output)
    if opt.uncertainty:
        draw_curves({subject.name: results["uncertainty"]}, output)
        draw_extremes(subject, spreads, judged, opt, output)
    return results


def default_name(paths: list[str], opt) -> str:
    """The file of results: results.json is of the test split of a run's own data, others say what they are of."""
    if opt.embeddings or opt.scores:
        return f"{os.path.splitext(os.path.basename(paths[0]))[0]}_results.json"
    name = "results" if len(paths) == 1 else "results_ensemble"
    if opt.data_name or opt.split != "test":
        own = load_checkpoint(paths[0], vocab=opt.vocab)["options"]["data_name"]
        data_name = opt.data_name or own
        name += f"_{data_name}_{opt.split}".replace(os.sep, "_") if (data_name, opt.split) != (own, "test") else ""
    return f"{name}.json"


def picture(name: str, output: str) -> str:
    """A picture's file beside those of the results; of results_DATA_SPLIT.json it is name_DATA_SPLIT.png."""
    folder, file = os.path.split(output)
    of_data = os.path.splitext(file)[0].removeprefix("results") if file.startswith("results") else ""
    return os.path.join(folder, f"{name}{of_data}.png")


def draw_curves(reports: dict, output: str) -> None:
    from plots import curves  # matplotlib takes a second to start

    path = picture("uncertainty", output)
    if not any("recall_bins" in side for report in reports.values() for side in report.values()):
        return                                              # a text-only split has no recalls
    curves(reports, path)
    print(f"recall by uncertainty in {path}", file=sys.stderr)


def draw_extremes(subject: Subject, spreads: dict, judged: Judgements, opt, output: str) -> None:
    from plots import extremes, locate

    own = Pairs.of(subject.caption_image, np.arange(len(subject.caption_image)))
    matches = judged.cxc or {"i2t": own, "t2i": own.swapped()}
    photos = locate(subject.photos, opt.photos)
    for side, values in spreads.items():
        path = picture(f"uncertain_{side}", output)
        extremes(values, matches["i2t" if side == "images" else "t2i"], subject.captions, photos, subject.caption_image,
                 side == "images", path)
        print(f"most and least uncertain {side} in {path}", file=sys.stderr)


def parse_args(argv=None) -> argparse.Namespace:
    p = Arguments("Evaluate image-caption retrieval.")
    add = p.add_argument
    add("--checkpoint", nargs="+", metavar="RUN", help="run folders or checkpoint files (default: the newest run); several are "
        "an ensemble")
    add("--compare", nargs="+", metavar="RUN", help="runs, .npz embeddings or .npy scores, each alone, and paired bootstraps "
        "against the first; A0,A1,A2 are seeds of one model")
    add("--embeddings", metavar="FILE.npz", help="embeddings of any model, as --export writes them")
    add("--scores", metavar="FILE.npy", help="a ready matrix of scores, images x captions, higher is better")
    add("--sim", choices=list(SIMILARITIES), help="similarity of --embeddings (default: what the file says, else cosine), or "
        "of a run's means and variances instead of its own")
    add("--data_path", help="folder that holds the data sets (default: that of the training)")
    add("--data_name", help="data set (default: that of the training)")
    add("--split", default="test", help="train, dev, test or testall")
    add("--dev_images", type=int, help="images of the dev split; 0: all (default: as in training)")
    add("--vocab", metavar="FILE.json", help="vocabulary of an original VSE++ or VSRN checkpoint (python vocab.py convert)")
    add("--fold5", action="store_true", help="also the mean over five folds of 1,000 images (COCO 1K)")
    add("--cxc", action="store_true", help="Crisscrossed Captions: all four directions, RPC2, STS, SIS and SITS")
    add("--cxc_path", metavar="FOLDER", help="its csv files (default: DATA_PATH/cxc)")
    add("--cxc_rule", choices=["ucmr", "eccv"], default="ucmr", help="matches of image and caption: original pairs and those "
        "rated 3 or more, or only the latter")
    add("--pmrp", action="store_true", help="Plausible Match R-Precision from COCO instances")
    add("--instances", metavar="FILE.json", help="instances of the split's images (default: "
        "DATA_PATH/DATA_NAME/annotations/" + INSTANCES + ")")
    add("--eccv", action="store_true", help="ECCV Caption, from --eccv_path or the package eccv_caption")
    add("--eccv_path", metavar="FOLDER", help="folder of eccv_image_to_caption.json and eccv_caption_to_image.json")
    add("--positives", metavar="FILE.json", help="recalls and R-precision of your own matches: "
        '{"i2t": {image id: [caption ids]}, "t2i": {...}}')
    add("--rerank", type=int, default=0, metavar="K", help="--sim scan: also in two stages, the cosine of the means keeps the "
        "K nearest of each query and attention re-ranks them; reports what that loses and saves")
    add("--uncertainty", action="store_true", help="what log det Sigma says about recall: bins, risk-coverage, pictures")
    add("--control", action=argparse.BooleanOptionalAction, default=True,
        help="with --uncertainty: also rank with the variances dealt to other items")
    add("--photos", metavar="FOLDER", help="photos of precomputed features, for the pictures")
    add("--ranks", metavar="FILE.csv", help="write the rank of every query")
    add("--export", metavar="FILE.npz", help="write the embeddings")
    add("--format", choices=["text", "markdown", "latex", "json"], default="text", help="of what is printed")
    add("--output", metavar="FILE", help="write the results there (default: results.json in the run folder, and "
        "results_DATA_SPLIT.json of other data or splits than the run's own test split)")
    add("--batch_size", type=int, default=128, help="images or captions encoded at once")
    add("--block", type=int, default=1000, help="images scored at once: memory grows with it, results do not change")
    add("--workers", type=int, default=min(10, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    opt = p.parse_args(argv)
    opt.eccv = opt.eccv or opt.eccv_path is not None
    if opt.batch_size < 1 or opt.block < 1 or opt.workers < 0 or (opt.dev_images or 0) < 0:
        p.error("--batch_size and --block must be at least 1, --workers and --dev_images at least 0")
    if opt.rerank < 0:
        p.error(f"--rerank {opt.rerank} is no number of items to keep; give at least 1, 100 is usual, or leave it out")
    given = [name for name in ("checkpoint", "compare", "embeddings", "scores") if getattr(opt, name)]
    if len(given) > 1:
        p.error(f"--{given[0]} and --{given[1]} both name what to evaluate; give one of them")
    if opt.compare and len(opt.compare) < 2:
        p.error(f"--compare {opt.compare[0]} has nothing to compare with; give at least two runs, or use --checkpoint")
    wrong = [name for name in ("export", "ranks") if getattr(opt, name) and given and given[0] != "checkpoint"
             and not (name == "ranks" and given[0] != "compare")]
    if wrong:
        p.error(f"--{wrong[0]} does not go with --{given[0]}; evaluate a single model for it")
    if opt.sim and opt.scores:
        p.error(f"--sim {opt.sim} does not go with --scores, a matrix of ready scores; leave it out")
    for name, needed in (("instances", "pmrp"), ("cxc_path", "cxc"), ("cxc_rule", "cxc"), ("photos", "uncertainty"),
                         ("control", "uncertainty")):
        if getattr(opt, name) != p.get_default(name) and not getattr(opt, needed):
            p.error(f"--{'no-' * (name == 'control')}{name} has no effect without --{needed}; give both or neither")
    return opt


def main(argv=None) -> None:
    opt = parse_args(argv)
    try:
        run(opt)
    except ValueError as error:       # InputError, and what metrics say of scores that cannot be ranked
        sys.exit(f"evaluate.py: {error}")


if __name__ == "__main__":
    main()
