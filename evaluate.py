"""Evaluate image-caption retrieval: trained models, embeddings of any model, or a matrix of scores.

    python evaluate.py                                     # the newest run, its data set, the test split
    python evaluate.py --checkpoint runs/A runs/B          # an ensemble: the mean of their scores
    python evaluate.py --cxc --pmrp --uncertainty          # Crisscrossed Captions, PMRP, what the uncertainty tells
    python evaluate.py --compare runs/A runs/B             # is the difference real?
    python evaluate.py --embeddings clip.npz --cxc         # a model that was not trained here

Prints tables and writes results.json; `--export FILE.npz` keeps the embeddings.
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

import checkpoints
import cli
from cli import InputError, check, torch_device
from data import Photos
from evaluation import bank, certainty, plots, volume
from evaluation.annotations import Pairs
from evaluation.assess import Asked, Judgements, assess, read_judgements, without_nan
from evaluation.certainty import assess_certainty
from evaluation.compare import common_name, compare, refuse_repeats
from evaluation.open import (
    How,
    Models,
    Where,
    bank_of,
    export,
    give_volume,
    kind_of,
    newest_run,
    open_embeddings,
    open_run,
    open_scores,
    volumes_of,
    whole,
)
from evaluation.plots import curves, extremes, locate
from evaluation.report import SIDES, comparisons, doubts, foreign_words, render, seed_tables, tables
from evaluation.subjects import Record, Subject, refuse_other_kind
from files.reading import repeated
from files.writing import atomic, output, save_json
from losses import formulas
from options import evaluation_parser, ready, wanted
from options import parse_evaluation as parse_args

UNCERTAINTY = ("uncertainty", "uncertain_images", "uncertain_captions")       # its pictures
RANKS = ["protocol", "direction", "query", "id", "rank_from_0"]     # columns of --ranks


def rho(value: float | None) -> str:
    """A correlation for a sentence; None where one side is constant."""
    return "undefined" if value is None else f"{value:.3f}"


def sentences(results: dict):
    """Sentences on what the tables do not show."""
    if "unknown_words" in results:
        yield foreign_words(results["data_name"], results["unknown_words"])
    for side, ranks in results.get("best_ranks", {}).items():
        yield (f"best ranks, {SIDES[side]}: harmonic mean {ranks['hbr']:.2f} (HBR), arithmetic "
               f"mean {ranks['abr']:.1f} (ABR)")
    if "neighbours" in results:
        near = results["neighbours"]
        yield (f"the {near['k']} nearest images to each of {near['images']:,} share "
               f"{near['jaccard']:.1f}% of their categories with it (random images: "
               f"{near['chance']:.1f}%)")
    if "bank" in results:
        yield bank.sentence(results["bank"])
    if "variances" in results:
        yield volume.sentence(results["variances"])
    for side, u in results.get("uncertainty", {}).items():
        yield f"uncertainty log det Sigma of the {side}: mean {u['mean']:.2f}, standard deviation {u['std']:.2f} nats"
        if "recall_bins" in u:
            bins, risk = u["recall_bins"], u["risk_coverage"]
            yield ("  R@1 from the surest to the least sure tenth: "
                   f"{' '.join(f'{r:.0f}' for r in bins['recall'])}; Spearman's rho "
                   f"{rho(bins['rho'])} over tenths, {rho(bins['rho_queries'])} over queries")
            yield (f"  answering only the surest: area under risk-coverage {risk['area']:.1f} (no "
                   f"knowledge {risk['area_random']:.1f}, perfect {risk['area_best']:.1f}; lower "
                   "is better)")
    for reason in results.get("absent", ()):
        yield f"not computed: {reason}"


def write_ranks(path: str, subject: Subject, record: Record) -> None:
    """Writes the rank of every query as CSV: protocol, direction, query, its id, 0-based rank of
    its best match."""
    ids = {"i": subject.items.image_ids, "t": subject.items.caption_ids}
    with atomic(path) as f:
        rows = csv.writer(f)
        rows.writerow(RANKS)
        for (protocol, side, name), values in record.items():
            if name == "rank":
                known = ids[side[0]] or [""] * len(values)
                rows.writerows((protocol, side, q, known[q], int(values[q]))
                               for q in np.flatnonzero(~np.isnan(values)))


def show_and_save(results: dict, all_tables: list, lines, target: str, opt) -> None:
    """Prints tables and sentences, unless JSON is to be printed; writes the results."""
    if opt.format != "json":
        print("\n" + render(all_tables, opt.format))
        print("\n".join(lines))
    save_json(results, target)
    print(f"written to {target}")


def run(opt) -> dict:
    """Evaluates as the options say; returns what results.json holds. Raises InputError on wrong
    options and files."""
    out, as_json = sys.stdout, opt.format == "json"
    with contextlib.redirect_stdout(sys.stderr if as_json else out):
        check_vocab(opt)
        check(not opt.photos or os.path.isdir(opt.photos), f"--photos {opt.photos} is no folder; "
              "give the folder of the photos, or leave it out")
        results = compare_many(opt) if opt.compare else evaluate_one(opt)
    if as_json:
        print(json.dumps(results, indent=1), file=out)
    return results


def check_vocab(opt) -> None:
    """Raises InputError on --vocab where no checkpoint is of the original code of VSE++ or VSRN."""
    paths = opt.checkpoint or [path for group in opt.compare or () for path in group.split(",")]
    if opt.vocab and all(map(os.path.exists, paths)):
        files = [path for path in paths
                 if os.path.isfile(path) and not path.endswith((".npz", ".npy"))]
        check(any(checkpoints.is_original(checkpoints.read(file)) for file in files),
              f"--vocab {opt.vocab} is for original checkpoints of VSE++ and VSRN, and none is given; "
              "leave it out")


def compare_many(opt) -> dict:
    """Compares what --compare names, prints tables and writes the results; returns what the file
    holds."""
    target = comparison_file(opt)
    results = compare(opt.compare, lambda path: opened([path], opt, kind_of(path)),
                      taken(Asked, opt))
    all_tables, lines = told_of(results)
    results = without_nan(results)
    pairs = results["comparisons"]
    show_and_save(results, all_tables + comparisons(pairs), [*lines, *doubts(pairs)], target, opt)
    if opt.uncertainty:
        draw_curves({name: r.get("uncertainty", {}) for name, r in results["runs"].items()},
                    partial(beside, target=target))
    return results


def told_of(results: dict) -> tuple[list, list[str]]:
    """The tables and sentences of several subjects."""
    runs = results["runs"]
    all_tables = tables(runs)
    if len(runs) > len(results["groups"]):
        all_tables += seed_tables(results["groups"])
    lines = [f"{name}: {line}" for name, r in runs.items() for line in sentences(r)]
    return all_tables, [*lines,
                        *dict.fromkeys(f"note: {note}" for r in runs.values()
                                       for note in r.get("notes", ()))]


def taken(kind: type, opt):
    """The options of the names of a NamedTuple's fields, as such a tuple."""
    return kind(*(getattr(opt, name) for name in kind._fields))


def asked_of(opt) -> tuple[Where, How]:
    where = Where(opt.data_path, opt.data_name, opt.split, opt.dev_images,
                  text_only=opt.cxc)
    return where, How(torch_device(opt.device), opt.batch_size, opt.workers)


def opened(paths: list[str], opt, kind: str) -> Subject:
    """What is evaluated: runs, embeddings or scores (`open.kind_of`), with the bank and the
    variances that the options name; prints a line per run."""
    (where, how), models = asked_of(opt), Models(paths, opt.sim, opt.vocab)
    if kind != "run":
        check(not opt.bank, f"--bank {opt.bank} needs a model that embeds the bank, and {paths[0]} is "
                            "of the items of one split; leave --bank out, or evaluate a trained run "
                            "with --checkpoint")
        subject = (open_scores(paths[0], where) if kind == "scores" else
                   open_embeddings(paths[0], where, opt.sim))
        if opt.variances:
            give_volume(subject, where, opt.sim, opt.variances_from, opt.calibration)
        return subject
    if opt.bank:
        bank.check_splits(opt.bank, opt.split or "test")
    subject = open_run(models, where, how,
                       volumes_of(models, where, how) if opt.variances else None)
    print("\n".join(subject.models))
    if opt.bank:
        subject.bank = bank_of(subject, models, where, how, opt.bank, opt.bank_size)
    if opt.export:
        export(opt.export, subject)
        note = (f": means{' and log-variances' * subject.gaussian} only, from which its similarity "
                f"'{subject.similarity}' cannot be recomputed") * (subject.similarity not in (*formulas(), "mls"))
        print(f"embeddings in {opt.export}{note}")
    return subject


def open_dev(subject: Subject, paths: list[str], opt) -> Subject:
    """What a subject is calibrated on: a run on its dev split, embeddings and scores on
    --calibration."""
    where, how = asked_of(opt)
    if not opt.calibration:
        try:
            return open_run(Models(paths, opt.sim, opt.vocab),
                            whole(where, subject)._replace(split="dev"), how, subject.variances)
        except InputError as error:
            raise InputError(
                f"no dev split to calibrate on: {error}; or give --calibrate_on 0.5") from error
    where = where._replace(data_name=None, split=None)
    dev = open_embeddings(opt.calibration, where,
                          opt.sim) if opt.embeddings else open_scores(opt.calibration, where)
    if opt.variances:
        give_volume(dev, where, opt.sim, opt.variances_from, opt.calibration, subject.variances)
    refuse_other_kind(subject, dev, "--calibration",
                      "calibrate on other items, or take half of these with --calibrate_on 0.5")
    return dev


def evaluate_one(opt) -> dict:
    """Evaluates one subject (a run, an ensemble, embeddings or scores), prints tables and writes
    the results; returns what results.json holds."""
    file = ready(opt)
    paths = [file] if file else opt.checkpoint or [newest_run()]
    if not file and not opt.checkpoint:
        print(f"no --checkpoint given, taking the newest run: {paths[0]}")
    refuse_repeats("--checkpoint", paths)
    check(not opt.export or len(paths) == 1, f"--export writes one model's embeddings, and "
                                             f"{len(paths)} checkpoints were given; export each alone")
    target = check_outputs(paths, opt)
    results, all_tables, lines, draw = evaluate_captions(paths, opt)
    results = without_nan(results)
    print(
        f"\n{' '.join(filter(None, [results['data_name'], results['split']]))}: "
        f"{results['images']:,} images, {results['captions']:,} captions"
        + (f", mean of the scores of {len(paths)} models" if len(paths) > 1 else "")
    )
    show_and_save(results, all_tables, lines, target, opt)
    if opt.ranks or opt.uncertainty or wanted(opt):
        draw(partial(beside, target=target))
    return results


def evaluate_captions(
    paths: list[str], opt
) -> tuple[dict, list, list[str], Callable[[Callable], None]]:
    """(results, tables, sentences, what writes all else: it takes a function that names the
    files)."""
    subject = opened(paths, opt, "embeddings" if opt.embeddings else "scores" if opt.scores
                     else "run")
    asked = taken(Asked, opt)
    judged = read_judgements(subject, asked)
    sure = None
    if wanted(opt):                           # first, as it may find that nothing can be calibrated
        sure = assess_certainty(subject, taken(certainty.Asked, opt),
                                lambda: open_dev(subject, paths, opt))
    results, record, uncertainties = assess(subject, judged, asked)
    all_tables = tables({subject.name: results})
    lines = [*judged.lines(subject.n_images, len(subject.caption_image)), *sentences(results)]
    if sure:
        results, all_tables, lines = results | sure.results, all_tables + sure.tables, lines + sure.lines

    def draw(named: Callable[..., str]) -> None:
        if opt.ranks:
            write_ranks(opt.ranks, subject, record)
            print(f"ranks of all queries in {opt.ranks}")
        if sure:
            save_json(without_nan(sure.calibration), named("calibration", ending="json"))
            print(f"calibration in {named('calibration', ending='json')}")
        photos = locate(subject.photos, opt.photos) if opt.uncertainty or opt.confidence else None
        if opt.uncertainty:
            draw_curves({subject.name: results["uncertainty"]}, named)
            draw_extremes(subject, uncertainties, judged, photos, named)
        if opt.confidence:
            curves, shown = map(named, plots.PICTURES)
            plots.diagrams(sure.results["confidence"], sure.seen, curves)
            plots.examples(sure.seen, subject.items.captions, subject.caption_image, photos, shown)
            print(f"reliability, risk and coverage in {curves}\nanswers and how sure they are in "
                  f"{shown}", file=sys.stderr)
        if sure and sure.numbers:
            path = named(plots.NUMBERS)
            plots.fitting(*sure.numbers, subject.items.captions, path)
            print(f"ten captions and how many photos fit them in {path}", file=sys.stderr)
    lines += [f"note: {note}" for note in results.get("notes", ())]
    return results, all_tables, lines, draw


def draw_curves(reports: dict, named: Callable[[str], str]) -> None:
    """Draws `plots.curves` beside the results, and says where."""
    path = named("uncertainty")
    if not any("recall_bins" in side for report in reports.values() for side in report.values()):
        return                                              # a text-only split has no recalls
    curves(reports, path)
    print(f"recall by uncertainty in {path}", file=sys.stderr)


def draw_extremes(subject: Subject, uncertainties: dict, judged: Judgements, photos: Photos | None,
                  named: Callable[[str], str]) -> None:
    """Draws `plots.extremes` of both sides beside the results, and says where."""
    pairs = Pairs.of(subject.caption_image, np.arange(len(subject.caption_image)))
    matches = judged["cxc"].pairs if "cxc" in judged else {"i2t": pairs, "t2i": pairs.swapped()}
    for side, values in uncertainties.items():
        path = named(f"uncertain_{side}")
        extremes(values, matches["i2t" if side == "images" else "t2i"], subject.items.captions,
                 photos, subject.caption_image, side == "images", path)
        print(f"most and least uncertain {side} in {path}", file=sys.stderr)


# ---- the files that are written: their names, and what is refused before the work begins

def check_outputs(paths: list[str], opt) -> str:
    """The file of results. Raises InputError, before the work, where a file cannot be written, is
    named for two things, or was named and is there without --overwrite."""
    inputs = [path for path in (*paths, opt.vocab, opt.positives, opt.instances, opt.variances_from)
              if path]
    folder = paths[0] if os.path.isdir(paths[0]) else os.path.dirname(paths[0])
    target = opt.output or os.path.join(folder, default_name(paths, opt))
    pictures = [*UNCERTAINTY * opt.uncertainty, *plots.PICTURES * opt.confidence,
                *[plots.NUMBERS] * bool(opt.judgements)]
    named = [path for path in (opt.export, opt.ranks, opt.output) if path]
    outputs = [*named, *[target] * (not opt.output), *(beside(name, target) for name in pictures),
               *[beside("calibration", target, "json")] * wanted(opt)]
    twice = repeated(map(os.path.realpath, outputs))
    check(twice is None, f"--export, --ranks, --output or a picture beside it name one file ({twice}) "
                         "for two things; name another")
    for path in outputs:                          # beside a run that does not exist nothing is tried
        if path in named or os.path.exists(paths[0]):
            output(path, inputs, opt.overwrite or path not in named)
    return target


def comparison_file(opt) -> str:
    """The file of a comparison. Raises InputError as `output` does."""
    paths = [path for group in opt.compare for path in group.split(",")]
    name = "_".join(os.path.basename(os.path.splitext(common_name(group.split(",")))[0])
                    for group in opt.compare)
    default = f"comparison_{name[:80]}{of_split(opt)}{suffixes(opt)}.json".replace(os.sep, "_")
    return output(opt.output or default, paths, opt.overwrite or not opt.output)


def default_name(paths: list[str], opt) -> str:
    """The file name of the results. results.json holds those of a run's own similarity on the test
    split of its own data; all others say in their names what they hold."""
    of_sim, of_data, file = f"_{opt.sim}" * bool(opt.sim), of_split(opt), os.path.basename(paths[0])
    if ready(opt):
        name = f"{os.path.splitext(file)[0]}_results"
    elif len(paths) > 1:
        runs = "_".join(os.path.basename(os.path.normpath(path)) for path in paths)
        name = f"results_ensemble_{runs[:80]}"
    elif os.path.isdir(paths[0]) or file == "model_best.pt":
        name = "results"
    else:
        name = f"results_{file.split('.')[0]}"
    if (of_data or of_sim) and not ready(opt):
        trained = checkpoints.load_checkpoint(paths[0], vocab=opt.vocab)["options"]
        own = opt.data_name in (None, trained["data_name"]) and opt.split in (None, "test")
        of_data = "" if own else of_split(opt, trained["data_name"])
        of_sim *= opt.sim != trained["sim"]
    return f"{name}{of_sim}{of_data}{suffixes(opt)}.json".replace(os.sep, "_")


def of_split(opt, data_name: str = "") -> str:
    """The part of a file's name that names the data and the split; empty where the options name
    neither."""
    few = "" if opt.dev_images is None else str(opt.dev_images)
    named = filter(None, [opt.data_name or data_name, f"{opt.split or 'test'}{few}"])
    return "_".join(["", *named]) if opt.data_name or opt.split else ""


def suffixes(opt) -> str:
    """The part of a file's name that names the bank and the given variances; empty without."""
    size = "" if opt.bank_size == evaluation_parser().get_default("bank_size") else opt.bank_size
    return (f"_bank_{opt.bank}{size}" * bool(opt.bank)
            + f"_{opt.variances}" * bool(opt.variances))


def beside(name: str, target: str, ending: str = "png") -> str:
    """The file of a picture beside that of the results: NAME_DATA_SPLIT.png beside
    results_DATA_SPLIT.json, CLIP_NAME.png beside CLIP_results.json, mine_NAME.png beside
    mine.json."""
    folder, file = os.path.split(target)
    stem = os.path.splitext(file)[0]
    stem = stem.replace("results", name, 1) if "results" in stem else f"{stem}_{name}"
    return os.path.join(folder, f"{stem}.{ending}")


def main(argv=None) -> None:
    opt = parse_args(argv)
    cli.run("evaluate.py", lambda: run(opt) and None)


if __name__ == "__main__":
    main()
