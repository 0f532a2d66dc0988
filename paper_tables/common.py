"""What a table of a paper is, and the command that trains, evaluates, collects and prints one.

    python -m paper_tables.pmrl_table1 --data_path data --dry_run      # the exact commands
    python -m paper_tables.pmrl_table1 --demo                          # the same code on the demo data, small

A row names its method by the options of train.py and evaluate.py; `DATA` and `SCALES` add what the data set and the size
need. A run's folder is named by its options, so tables share runs, and a table that was stopped goes on where it was.
"""
import argparse
import hashlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from statistics import mean, stdev

import yaml

from report import FORMATS, NAMES, SIDES, render
from vocab import Arguments, InputError

SIZE, HIDDEN, WORDS = "--embed_size 1024", " --dim_hidden 512", 300     # defaults of embedding, captioner, word vectors
VG = "vg_experiments."


# ---- what a table is

@dataclass(frozen=True)
class Run:
    """A model and an evaluation of it, as options of the method alone."""
    data: str                         # training set, a key of DATA
    train: str = ""                   # options of train.py, or of cca.py
    evaluate: str = ""                # options of evaluate.py
    start: "Run | None" = None        # whose weights it starts from
    text: str = ""                    # captions as features, or word vectors: a key of TEXTS
    test: str = ""                    # data set to evaluate on, a key of DATA (default: that of the training)
    tool: str = "train.py"
    judge: str = "evaluate.py"        # or vg_experiments.NAME


@dataclass(frozen=True)
class Columns:
    """Columns that print as one table: ((heading, ((name, path of the value in the results), ...)), ...)."""
    title: str
    groups: tuple
    run: int = 0                      # which of a row's runs they show

    @property
    def paths(self) -> list[str]:
        return [path for _, names in self.groups for _, path in names]


@dataclass(frozen=True)
class Row:
    """One line of a paper's table. Without runs its numbers are published only."""
    label: str
    published: tuple                  # one number a column of the table, None where the paper has none
    runs: tuple = ()


@dataclass(frozen=True)
class Table:
    """`title` names paper and table; the script's docstring says what a full run needs."""
    title: str
    columns: tuple
    rows: tuple
    notes: tuple = ()
    seeds: int = 1
    f8k: bool = False                 # whether Flickr8k's features can serve it
    later: str = ""                   # why none of its rows can be run yet
    sums: tuple = ()                  # ((column of a sum, (columns of its parts)), ...), from 0
    misprints: tuple = ()             # labels of rows whose printed sum is not that of their parts

    def __post_init__(self):
        width = sum(len(c.paths) for c in self.columns)
        assert all(len(row.published) == width for row in self.rows), self.title
        assert len({row.label for row in self.rows}) == len(self.rows) and isinstance(self.notes, tuple), self.title


def recalls(protocol: str = "folds5", title: str = "", run: int = 0, rsum: bool = False, ks=(1, 5, 10),
            before: str = "") -> Columns:
    """R@K both ways of a protocol of results.json; `before`: a measure that comes first, as "pmrp pmrp_folds5"."""
    first = before.split()
    groups = [(SIDES[side], (*((NAMES[first[0]], f"protocols/{first[1]}/{side}/{first[0]}") for _ in first[:1]),
                             *((f"R@{k}", f"protocols/{protocol}/{side}/r{k}") for k in ks))) for side in ("i2t", "t2i")]
    return Columns(title, (*groups, *([("", (("rsum", f"protocols/{protocol}/rsum"),))] if rsum else [])), run)


# ---- data sets and sizes

@dataclass(frozen=True)
class Scale:
    """A size of all runs: what divides embeddings and layers, and options that replace the rows' own."""
    says: str
    divide: int = 1
    train: str = ""
    rate: str = ""                    # of Adam, and its reduction
    start: str = ""                   # of what fine-tuning starts from, besides
    tune: str = ""                    # of fine-tuning instead of the rate
    warmup: int = 0                   # first epochs on the sum of violations, where a row has hardest negatives
    folds: bool = True


SCALES = {
    "full": Scale("the papers' setting"),
    "demo": Scale("drawn scenes, small models, a few epochs: shows that the table runs, not what the methods do", 16,
                  "--num_epochs 4 --batch_size 64 --log_step 1000 --val_step 100000 --workers 0",
                  "--learning_rate 2e-3 --lr_update 3", "--num_epochs 2", "--num_epochs 1 --learning_rate 1e-4", 2, False),
    "f8k": Scale("Flickr8k's features, half the embedding and 10 epochs: not the papers' data", 2,
                 "--num_epochs 10 --amp bf16", "--learning_rate 1e-3 --lr_update 6", "",
                 "--num_epochs 3 --learning_rate 1e-4", 1, False)}
DEMO_SIZE = 200                       # training images; half as many are tested on


def places(full: str, train: str, evaluate: str, demo: str, f8k: str = "f8k_precomp", photos: str = "") -> dict:
    """Scale -> (folder below --data_path, options of train.py, options of evaluate.py)."""
    return {"full": (full, train, evaluate), "demo": (demo, photos, ""), "f8k": (f8k, photos, "")}


LITE = "--cnn_type efficientnet_lite0 --crop_size 64"
PHOTOS = {"coco": "--cnn_type resnet152 --use_restval", "f30k": "--cnn_type resnet152"}
SPLIT = {"coco": "--split testall", "f30k": ""}
DATA = {f"{name}{kind}": place for name, demo in (("coco", "demo"), ("f30k", "other")) for kind, place in {
    "": places(name, PHOTOS[name], "", f"{demo}_precomp"),                                  # photos, the network as it is
    " tuned": places(name, PHOTOS[name], "", demo, "f8k", LITE),                            # photos, the network is trained
    " cells": places(name, PHOTOS[name], "", f"{demo}_region_precomp", "f8k_region_precomp"),
    " regions": places(f"{name}_precomp", "", SPLIT[name], f"{demo}_region_precomp", "f8k_region_precomp"),
    " fc6": places(f"{name}_vgg_precomp", "", "", f"{demo}_precomp")}.items()}
DATA["coco halves"] = places("coco_halves_precomp", "--dev_images 0", "", "demo_precomp")   # FC7 of val2014 in halves
DATA["coco halves fc6"] = places("coco_halves_fc6_precomp", "--dev_images 0", "", "demo_precomp")
TEXTS = {"w2v": "--text_features w2v", "hglmm": "--text_features hglmm",
         "own": "--word_vectors {data}/{folder}/own.txt --freeze_words"}
VECTORS = "GoogleNews-vectors-negative300.bin"
# of an epoch of COCO, for gpu_hours
MINUTES = {"": 5, " tuned": 5, " cells": 5, " regions": 10, " fc6": 0.5, " halves": 0.5, " halves fc6": 0.5}
FETCH = {"coco": "COCO's images, annotations and VSE++'s ids",
         "f30k": "Flickr30k's images and Karpathy's dataset_flickr30k.json",
         "coco_precomp": "SCAN's regions of COCO (31 GiB; for CxC and PMRP also testall_img_ids.npy and testall_ann_ids.npy)",
         "f30k_precomp": "SCAN's regions of Flickr30k",
         "vg": "Visual Genome's image_data.json, region_descriptions.json and photos",
         "f8k_precomp": "features of Flickr8k", "f8k_region_precomp": "region features of Flickr8k",
         "f8k": "Flickr8k's photos and dataset_flickr8k.json", VECTORS: "word2vec's vectors of Google News (3.4 GiB)"}


def resized(options: str, k: int) -> str:
    """Options with sizes of embeddings and layers divided by k, at least 4; 0 stays."""
    def smaller(found):
        numbers = [n if n == "0" else str(max(4, int(n) // k)) for n in found[2].split("-")]
        return f"--{found[1]} {'-'.join(numbers)}"
    return re.sub(r"--(embed_size|word_dim|img_layers|txt_layers|decoder_dim|dim_hidden) ([\d-]+)", smaller, options)


def training_options(run: Run, scale: str, also: str = "") -> str:
    """What identifies a run: its options of train.py without data path, seed and folder."""
    size = SCALES[scale]
    own = " ".join([(SIZE + HIDDEN * ("--captioner" in run.train)) * (size.divide > 1), run.train, TEXTS.get(run.text, "")])
    tuned = "--finetune" in own
    folder, of_data, _ = DATA[run.data][scale]
    words = [f"--data_name {folder}", resized(own, size.divide), size.train,
             size.tune if tuned else size.rate * ("sgd" not in own) + f" {size.start}" * run.data.endswith("tuned"), of_data]
    hardest = re.search(r"--max_violation|--sim (kl|minkl|mahalanobis|wasserstein)", own) and "--no-max_violation" not in own
    if size.warmup and hardest and not tuned:
        words.append(f"--vse_mean_warmup_epochs {size.warmup}")
    return last(" ".join([*words, also]))


def last(options: str) -> str:
    """Options with only the last of those that are given twice, at the place of the first; as argparse reads them."""
    return " ".join({option.split()[0]: option for option in listed(options)}.values())


def listed(options: str) -> list[str]:
    """["--name value", ...]"""
    return re.findall(r"--\S+(?: (?!--)\S+)*", options)


def evaluation_options(run: Run, scale: str) -> str:
    """Options of evaluate.py, with {data} for the data path."""
    folder, _, common = DATA[run.test or run.data][scale]
    words = f"{common} {run.evaluate}" if SCALES[scale].folds else run.evaluate.replace("--fold5", "")
    coco, cxc = ("demo_coco", "demo_cxc") if scale == "demo" else ("coco", "cxc")
    words = words.replace("--cxc", f"--cxc --cxc_path {{data}}/{cxc}").replace(
        "--pmrp", f"--pmrp --instances {{data}}/{coco}/annotations/instances_val2014.json")
    return " ".join(f"{words} {f'--data_name {folder}' * bool(run.test)}".split())


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# ---- steps: commands and what each leaves

@dataclass
class Step:
    """A command, the file that shows that it has been run, and what is missing for it."""
    words: list
    target: str
    log: str = ""
    folder: str = ""                  # run folder that it trains
    lacks: str = ""
    after: str = ""                   # file that has to be older than the target

    @property
    def done(self) -> bool:
        if self.folder:
            return trained(self.folder) and matches(self)
        return os.path.exists(self.target) and not (
            self.after and os.path.exists(self.after) and os.path.getmtime(self.after) > os.path.getmtime(self.target))

    @property
    def command(self) -> list:
        """The words with what a run that began needs to go on."""
        if not self.folder or not os.path.exists(os.path.join(self.folder, "config.yaml")):
            return self.words
        return [*self.words, "--resume" if os.path.exists(os.path.join(self.folder, "checkpoint.pt")) and matches(self)
                else "--overwrite"]

    @property
    def shown(self) -> str:
        return shlex.join(["python", *self.command])


def trained(folder: str) -> bool:
    """Whether a run has come to its end."""
    try:
        with open(os.path.join(folder, "log.txt"), encoding="utf-8") as f:
            return "done: best" in (f.readlines() or [""])[-1] and os.path.exists(os.path.join(folder, "model_best.pt"))
    except FileNotFoundError:
        return False


def matches(step: Step) -> bool:
    """Whether the configuration that a run folder holds is what the step's options give today."""
    from options import MAY_CHANGE, parse_args  # torch takes seconds to load

    try:
        with open(os.path.join(step.folder, "config.yaml"), encoding="utf-8") as f:
            stored = yaml.safe_load(f)["options"]
    except (FileNotFoundError, TypeError, KeyError, yaml.YAMLError):
        return False
    words, start = step.words[1:], None
    if "--init_from" in words:                              # which may be gone by now
        at = words.index("--init_from")
        start, words = words[at + 1], words[:at] + words[at + 2:]
    try:
        wanted = {**vars(parse_args(words)), "init_from": start}
    except SystemExit:                                      # it has said what is wrong with them
        return False
    by_data = {"img_enc", "img_dim", "n_regions", "txt_dim", *MAY_CHANGE}
    return all(wanted[key] == value for key, value in stored.items() if key in wanted and key not in by_data)


def preparations(run: Run, opt) -> list[Step]:
    """What has to be there before a run: demo data, extracted features, word vectors."""
    steps, data = [], opt.data_path
    for key in dict.fromkeys([run.data, run.test or run.data]):
        folder = DATA[key][opt.scale][0]
        path = os.path.join(data, folder)
        if opt.scale == "demo":
            scenes = folder.split("_")[0]
            steps.append(Step(["demo.py", "--data_path", data, "--size", str(DEMO_SIZE), "--scenes", scenes],
                              os.path.join(data, scenes, f"{scenes}.json")))
        elif re.search(r"_(vgg|halves|halves_fc6)_precomp$", folder):
            photos, source = "coco_halves" if "halves" in folder else folder.split("_")[0], folder.split("_")[0]
            if photos != source:
                steps.append(Step(["-m", "paper_tables.coco_halves", "--data_path", data],
                                  os.path.join(data, photos, "dataset_coco_halves.json"), lacks=missing(data, source)))
            layer = "fc7" if folder == "coco_halves_precomp" else "fc6"
            steps.append(Step(["extract.py", "images", "--data_path", data, "--data_name", photos, "--output_name", folder,
                               "--cnn_type", "vgg19", "--layer", layer, *["--use_restval"] * (photos == "coco")],
                              os.path.join(path, "test_ims.npy"), lacks=missing(data, source)))
        else:
            steps.append(Step([], path, lacks=missing(data, folder)))
        if run.text == "own":
            steps.append(Step(["word_vectors.py", "--data_path", data, "--data_name", folder, "--dim",
                               str(WORDS // SCALES[opt.scale].divide), "--output", f"{path}/own.txt"], f"{path}/own.txt"))
        elif run.text:
            vectors, small = os.path.join(data, VECTORS), opt.scale != "full"
            if small:                                       # one file for all sets: a model fits one extractor's features
                vectors = os.path.join(data, f"{opt.scale}_words.txt")
                steps.append(Step(["word_vectors.py", "--data_path", data, "--data_name", DATA["coco"][opt.scale][0], "--dim",
                                   "48", "--output", vectors], vectors))
                if opt.scale == "demo":
                    steps.insert(-1, replace(steps[0], words=[*steps[0].words[:-1], "demo"],
                                             target=os.path.join(data, "demo", "demo.json")))
            kind = ["--kind", "hglmm", *(["--n_clusters", "4"] if small else ["--ica", "--pca", "6000"])]
            steps.append(Step(["extract.py", "captions", "--data_path", data, "--data_name", folder, "--name", run.text,
                               "--word_vectors", vectors, *kind * (run.text == "hglmm")], f"{path}/test_{run.text}.npy",
                              lacks="" if small else missing(data, VECTORS)))
    if run.judge.startswith(VG):
        folder = "vg" if opt.scale == "full" else "demo_vg"
        steps.append(Step(["-m", VG + "prepare", "--vg", os.path.join(data, folder), "--output", manifest(opt)], manifest(opt),
                          lacks=absent_module("prepare") or (missing(data, folder) if opt.scale == "full" else "")))
    return steps


def manifest(opt) -> str:
    return os.path.join(opt.runs, opt.scale, "vg", "manifest.json")


def missing(data: str, name: str) -> str:
    """What to fetch and where it goes; empty where it is there."""
    path = os.path.join(data, name)
    return "" if os.path.exists(path) else (f"{path} is not there; put {FETCH.get(name, 'the data set')} there (README, "
                                            "Getting data), or try --demo")


def absent_module(name: str) -> str:
    try:
        found = importlib.util.find_spec(VG + name)
    except ModuleNotFoundError:
        found = None
    return "" if found else f"{VG}{name} is not in this repository yet (issue 6); the rows' models can be trained before it is"


def run_steps(run: Run, seed: int, opt) -> tuple[list[Step], str]:
    """All steps of a run in order, and the file of its results."""
    steps, options = preparations(run, opt), training_options(run, opt.scale, opt.also)
    told = {"data": opt.data_path, "folder": DATA[run.data][opt.scale][0], "start": os.path.join(opt.runs, opt.scale)}
    if run.start:
        before = run_steps(replace(run.start, data=run.data), seed, opt)[0][:-1]    # its training, not its evaluation
        steps, options = [*steps, *before], f"{options} --init_from {{start}}/{os.path.basename(before[-1].folder)}"
    if run.tool == "cca.py":
        options = f"--data_name {told['folder']} --text {run.text} {run.train}".strip()
    sim = re.findall(r"--sim (\S+)", options)
    kind = "cca" if run.tool == "cca.py" else sim[-1] if sim else "cosine"
    name = f"{told['folder']}_{kind}_{short(' '.join(sorted(listed(options))))}_seed{seed}"
    folder = os.path.join(opt.runs, opt.scale, name)
    log = os.path.join(folder, "output.txt")
    words = [run.tool, "--data_path", opt.data_path, *(word.format(**told) for word in options.split())]
    if run.tool == "cca.py":
        other = ["--test_name", DATA[run.test][opt.scale][0]] if run.test else []
        output = os.path.join(folder, "_".join(["cca", *other[1:]]) + ".npz")
        steps.append(Step([*words, *other, "--output", output], output, log))
        subject = ["--embeddings", output]
    else:
        steps.append(Step([*words, "--seed", str(seed), "--logger_name", folder], "", log, folder))
        output, subject = os.path.join(folder, "model_best.pt"), ["--checkpoint", folder]
    if run.judge.startswith(VG):
        name, out = run.judge[len(VG):], os.path.join(folder, "vg")
        results = os.path.join(out, f"{name}.json")
        words = ["-m", run.judge, *subject, "--manifest", manifest(opt), "--cache",
                 os.path.join(opt.runs, opt.scale, "vg", "cache"), "--output", out]
        steps.append(Step(words, results, log, lacks=absent_module(name), after=output))
        return steps, results
    options = evaluation_options(run, opt.scale)
    results = os.path.join(folder, f"results_{short(options)}.json")
    options = [word.format(**told) for word in options.split()]
    words = ["evaluate.py", *subject, "--data_path", opt.data_path, *options, "--output", results]
    steps.append(Step(words, results, log, after=output))
    return steps, results


class Stopped(Exception):
    """The user stopped the table; what runs has saved itself."""


def execute(step: Step) -> str:
    """Run a step; what went wrong in one line, or nothing. Its words go to step.log. Raises Stopped."""
    if step.lacks and not os.path.exists(step.target):
        return step.lacks
    if not step.words:
        return ""
    for path in (step.log, step.target):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    received = []
    with open(step.log or os.devnull, "a", encoding="utf-8") as log:
        child = subprocess.Popen([sys.executable, *step.command], stdout=log if step.log else subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, start_new_session=True)

        def stop(number, frame):                            # train.py saves after its step
            received.append(number)
            child.send_signal(signal.SIGTERM)
        before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            said = child.communicate()[0]
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if received:
        raise Stopped
    if child.returncode == 0:
        return ""
    if step.log:
        with open(step.log, encoding="utf-8", errors="replace") as f:
            said = f.read()
    return ([line for line in (said or "").splitlines() if line.strip()] or [f"exit status {child.returncode}"])[-1]


# ---- collecting and printing

def value(results: dict, path: str, folds: bool = True):
    """The number at a path of keys; `*` is the first key; nothing where there is none."""
    for key in (path if folds else path.replace("folds5", "full").replace("_full", "")).split("/"):
        if not isinstance(results, dict):
            return None
        results = next(iter(results.values()), None) if key == "*" else results.get(key)
    return results


def collect(table: Table, rows: list[Row], opt) -> list[dict]:
    """Per row what its seeds gave: [{"label", "seeds", "ours": [(mean, deviation, n) or None a column], "published", "runs":
    whether it has any, "results": their files}]."""
    found = []
    for row in rows:
        ours, folds, seeds, files = [], SCALES[opt.scale].folds, 0, []
        for columns in table.columns:
            run = row.runs[columns.run] if columns.run < len(row.runs) else None
            stored = []
            for seed in range(opt.seeds or table.seeds) if run else ():
                steps, path = run_steps(run, seed, opt)
                if os.path.exists(path) and all(step.done for step in steps if step.folder or step is steps[-1]):
                    with open(path, encoding="utf-8") as f:
                        stored.append(json.load(f))
                    files.append(path)
            seeds = max(seeds, len(stored))
            for path in columns.paths:
                numbers = [v for v in (value(results, path, folds) for results in stored) if v is not None]
                ours.append((mean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0, len(numbers)) if numbers else None)
        found.append({"label": row.label, "seeds": seeds, "ours": ours, "published": list(row.published),
                      "runs": bool(row.runs), "results": list(dict.fromkeys(files))})
    return found


def number(x, places: int) -> str:
    return "" if x is None else f"{round(x, places) + 0.0:.{places}f}"      # never -0.0


def spread(x, places: int) -> str:
    return "" if x is None else number(x[0], places) + f" +- {x[1]:.{places}f}" * (x[2] > 1)


def tables(table: Table, found: list[dict]) -> list:
    """Three lines a row, ours, published and their difference, as tables of report.py."""
    made, at = [], 0
    for columns in table.columns:
        span, lines = slice(at, at + len(columns.paths)), []
        at = span.stop
        known = [p for row in found for p in row["published"][span] if p is not None]
        places = 1 if known and all(round(p, 1) == round(p, 2) for p in known) else 2      # as the paper prints them
        for row in found:
            ours, published = row["ours"][span], row["published"][span]
            if any(ours):
                lines.append((f"{row['label']}: ours ({row['seeds']})", [spread(x, places) for x in ours]))
                if any(p is not None for p in published):
                    lines.append(("  published", [number(x, places) for x in published]))
                    lines.append(("  difference", ["" if x is None or p is None else f"{x[0] - p:+.{places}f}"
                                                   for x, p in zip(ours, published)]))
            else:
                only = "published" if row["runs"] else "published only"
                lines.append((f"{row['label']}: {only}", [number(x, places) for x in published]))
        title = ", ".join(part for part in (table.title, columns.title) if part)
        made.append((title, [(heading, [name for name, _ in names]) for heading, names in columns.groups], lines))
    return made


def printed(table: Table, found: list[dict], opt) -> str:
    if opt.format == "json":
        return json.dumps({"table": table.title, "scale": opt.scale, "columns": [p for c in table.columns for p in c.paths],
                           "rows": found}, indent=1)
    says = [f"ours: mean and standard deviation over the seeds (their number); {SCALES[opt.scale].says}", *table.notes]
    mark = {"text": "", "markdown": "- ", "latex": "% "}[opt.format]
    return render(tables(table, found), opt.format) + "\n\n" + "\n".join(mark + line for line in says)


# ---- the command

def chosen(table: Table, only: list[str]) -> list[Row]:
    """Rows by number from 1, by label, or by a part of it."""
    if not only:
        return list(table.rows)
    rows = []
    for name in only:
        found = [row for k, row in enumerate(table.rows, 1) if name == str(k) or name.lower() == row.label.lower()]
        found = found or [row for row in table.rows if name.lower() in row.label.lower()]
        if not found:
            raise InputError(f"--only {name} is no row of {table.title}; its rows are "
                             f"{'; '.join(f'{k} {row.label}' for k, row in enumerate(table.rows, 1))}")
        rows += [row for row in found if row not in rows]
    return rows


def arguments(what: str) -> Arguments:
    p = Arguments(what)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    add = p.add_argument
    add("--data_path", help="folder that holds the data sets (default: data; with --demo data/demo_tables, which is written)")
    size = p.add_mutually_exclusive_group()
    size.add_argument("--demo", action="store_const", const="demo", dest="scale", help=SCALES["demo"].says)
    size.add_argument("--f8k", action="store_const", const="f8k", dest="scale", help=SCALES["f8k"].says)
    add("--only", nargs="+", metavar="ROW", help="rows by number from 1, label, or a part of it")
    add("--seeds", type=int, help="seeds of every row, from 0 (default: the table's)")
    add("--also", default="", metavar='"OPTIONS"', help='more options of train.py for every row, as --also="--amp bf16"')
    add("--runs", default="runs/paper_tables", metavar="FOLDER", help="where the runs are")
    add("--format", choices=[*FORMATS, "json"], default="text", help="of the printed table")
    add("--dry_run", action="store_true", help="print the commands and run nothing")
    add("--print_only", action="store_true", help="print what there is and run nothing")
    p.set_defaults(scale="full")
    return p


def settle(opt, table: Table) -> None:
    """Refuse what cannot be, before anything runs."""
    if opt.seeds is not None and opt.seeds < 1:
        raise InputError(f"--seeds {opt.seeds} leaves nothing to run; give at least 1")
    if opt.scale == "f8k" and not table.f8k:
        raise InputError(f"--f8k: Flickr8k has no data for {table.title}; take --demo, or leave it out with the paper's data "
                         "at hand")
    if {"{", "}"} & set(opt.also):
        raise InputError(f"--also {opt.also} holds braces, which no option of train.py needs; leave them out")
    opt.data_path = opt.data_path or ("data/demo_tables" if opt.scale == "demo" else "data")


def unique(rows: list[Row], seeds: int) -> list[tuple[str, Run, int]]:
    """(label, run, seed) of all runs of the rows, each once, all rows of a seed before the next seed."""
    return list({(run, seed): (row.label, run, seed) for seed in range(seeds) for row in rows for run in row.runs
                 if run and (run.tool == "train.py" or seed == 0)}.values())


def main(table: Table, says: str = "", argv=None) -> None:
    """The command of a table's script; `says` is the script's docstring."""
    p = arguments(says)
    opt = p.parse_args(argv)
    try:
        settle(opt, table)
        rows = chosen(table, opt.only)
    except InputError as error:
        p.error(str(error))
    if table.later:
        print(table.later, file=sys.stderr)
    todo = unique(rows, opt.seeds or table.seeds)
    failed, shown = [], set()
    for k, (label, run, seed) in enumerate(todo if not opt.print_only else (), 1):
        where = f"[{k}/{len(todo)}] {label}, seed {seed}"
        for step in run_steps(run, seed, opt)[0]:
            if opt.dry_run:
                if (step.words or step.lacks) and step.shown not in shown:
                    print(("# done: " * step.done + step.shown if step.words else "") +
                          f"{'  ' * bool(step.words)}# {step.lacks}" * (bool(step.lacks) and not step.done))
                    shown.add(step.shown)
            elif not step.done:
                if step.words:
                    print(f"{where}: {step.shown}", file=sys.stderr, flush=True)
                try:
                    wrong = execute(step)
                except Stopped:
                    sys.exit(f"stopped at {label}, seed {seed}; the same command goes on")
                if wrong:
                    failed.append(f"{label}, seed {seed}: {wrong}")
                    print(f"{where}: {wrong}", file=sys.stderr, flush=True)
                    break
    if not opt.dry_run:
        print(printed(table, collect(table, rows, opt), opt))
        if failed:
            sys.exit(f"{len(failed)} of {len(todo)} runs failed; the first: {failed[0]}")


def gpu_hours(table: Table) -> float:
    """An estimate for all of a table's runs, each once, at one seed after another: nothing of this has been measured."""
    hours = 0.0
    for run in {run for row in table.rows for run in row.runs if run and run.tool == "train.py"}:
        for part in (run, *([replace(run.start, data=run.data)] if run.start else [])):
            name, _, kind = part.data.partition(" ")
            epochs = [30, *map(int, re.findall(r"--num_epochs (\d+)", part.train))][-1]
            factor = (0.25 if name == "f30k" else 1) * (2 if "--sim scan" in part.train else 1) * (
                4 if "--finetune" in part.train else 1)
            hours += epochs * MINUTES[f" {kind}" if kind else ""] * factor / 60
    return hours * table.seeds
