"""Run the rows of a paper's table, and print ours beside the published numbers.

A row's commands stand in the table's script as a person types them, in the papers' setting. Here they get the data
path, the seed, the folder of the run, the files that come before them, and for --demo and --f8k other data and smaller
sizes. A run's folder is named after its options, so tables share runs, and a stopped table continues where it
was. The name does not depend on --data_path: other data need another --runs folder.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple

import cli
from cli import Arguments, check, filename, up_to
from evaluation.report import NAMES, SIDES, text
from files import read_json, sha256
from methods import METHODS, REGIONS

# ---- what a table is


class Columns(NamedTuple):
    """Columns that are printed as one table."""
    title: str
    groups: tuple                     # ((heading, ((name, path of the value in the results), ...)), ...)
    run: int = 0                      # which of a row's runs they show

    @property
    def paths(self) -> list[str]:
        return [path for _, names in self.groups for _, path in names]


class Row(NamedTuple):
    """One line of a paper's table.

    A run is the commands of one model: trainings, then one that judges. RUN stands for the folder of the training
    before, {data}/{folder} for that of the data set. A row without runs shows its published numbers only.
    """
    label: str
    published: tuple                  # one number for each column of the table, None where the paper has none
    runs: tuple[tuple[str, ...], ...] = ()


class Table(NamedTuple):
    """Table of a paper. `--list` says what data it needs."""
    title: str                        # names paper and table
    columns: tuple[Columns, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    seeds: int = 1
    f8k: bool = False                 # whether Flickr8k's features can serve it


def recalls(protocol: str = "folds5", title: str = "", run: int = 0, rsum: bool = False, ks=(1, 5, 10),
            before: tuple[str, str] | None = None) -> Columns:
    """Build columns of R@K in both directions, from a protocol of results.json.

    before: a protocol and a measure in it, which gets a column before the recalls of each direction.
    """
    cells = [*([before] if before else []), *((protocol, f"r{k}") for k in ks)]
    groups = [(SIDES[side], tuple((NAMES[key], f"protocols/{name}/{side}/{key}") for name, key in cells))
              for side in ("i2t", "t2i")]
    return Columns(title, (*groups, *[("", (("rsum", f"protocols/{protocol}/rsum"),))] * rsum), run)


# ---- sizes and data

class Scale(NamedTuple):
    """A size at which all runs are made. The options replace the rows' options."""
    description: str
    divide: int = 1                   # divides the sizes of embeddings and layers
    train: str = ""
    rate: str = ""                    # learning rate of Adam, and its reduction
    start: str = ""                   # further options of a run that fine-tuning starts from
    tune: str = ""                    # options of fine-tuning, in place of `rate`
    warmup: int = 0                   # epochs on the sum of violations before a row's hardest negatives


SCALES = {
    "full": Scale("the papers' setting"),
    "demo": Scale("drawn scenes, small models, a few epochs: shows that the table runs, not what the methods do", 16,
                  "--num_epochs 4 --batch_size 64 --log_step 1000 --val_step 100000 --workers 0",
                  "--learning_rate 2e-3 --lr_update 3", "--num_epochs 2", "--num_epochs 1 --learning_rate 1e-4", 2),
    "f8k": Scale("Flickr8k's features, half the embedding and 10 epochs: not the papers' data", 2,
                 "--num_epochs 10 --amp bf16", "--learning_rate 1e-3 --lr_update 6", "",
                 "--num_epochs 3 --learning_rate 1e-4", 1)}
# At small scales: the network of fine-tuned rows, options left out, and options whose numbers are divided.
LITE = "--cnn_type efficientnet_lite0 --crop_size 64"
FULL_ONLY = ("cnn_type", "dev_images", "use_restval", "fold5")
SIZED = ("embed_size", "word_dim", "img_layers", "txt_layers", "dim_hidden", "cite_layers")
HARDEST = ("kl", "minkl", "mahalanobis", "wasserstein")     # beginnings of similarities that need a warm-up there
WORDS = 300                           # numbers of the word vectors of DeViSE
# Features that are extracted: the photos, and how.
EXTRACTED = {"coco_vgg_precomp": ("coco", "--cnn_type vgg19 --layer fc6 --use_restval"),
             "f30k_vgg_precomp": ("f30k", "--cnn_type vgg19 --layer fc6"),
             "coco_halves_precomp": ("coco_halves", "--cnn_type alexnet --layer fc7"),
             "coco_halves_fc6_precomp": ("coco_halves", "--cnn_type alexnet --layer fc6")}
VECTORS, INSTANCES = "GoogleNews-vectors-negative300.bin", "coco/annotations/instances_val2014.json"
# Folder or file below --data_path -> where its real data come from (addresses of 2017 to 2026), and what is renamed.
SOURCES = {
    "coco": "COCO's train2014.zip, val2014.zip and annotations_trainval2014.zip (cocodataset.org) and the "
            "coco_*_ids.npy of VSE++ (data.tar of github.com/fartashf/vsepp); photos in images/train2014 and "
            "images/val2014, annotations and ids in annotations/",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features); for CxC, PMRP and ECCV also coco_test_ids.npy of VSE++'s data.tar "
                    "and testall_img_ids.npy; testall_ann_ids.npy holds the first 25,000 of VSE++'s coco_test_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (by a form of the University of Illinois) and dataset_flickr30k.json of Karpathy's "
            "caption_datasets.zip; the folder of photos renamed to images/",
    "f30k_entities": "Annotations/ and Sentences/ of annotations.zip and the splits train.txt, val.txt, test.txt "
                     "(github.com/BryanPlummer/flickr30k_entities), and Flickr30k's photos in images/",
    "f8k": "Flickr8k's photos, Flickr8k_Dataset.zip (by a form of the University of Illinois), and "
           "dataset_flickr8k.json of Karpathy's caption_datasets.zip",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos (features.images --layer cells)",
    INSTANCES: "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions (github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json and photos (visualgenome.org); photos in VG_100K/ "
          "and VG_100K_2/",
    VECTORS: "word2vec's vectors of Google News, 3.4 GiB (code.google.com/archive/p/word2vec)"}
NEVER_RUN = "No row of any table has been run at the papers' size; what that takes has not been measured."


class Place(NamedTuple):
    """Folders of the data and of a scale's runs, and the scale, one of SCALES."""
    data: str
    folder: str
    scale: str


def parse_options(command: str) -> dict[str, str]:
    """Options of a command by name, "" for a switch. The last of equal ones counts, as in argparse."""
    return dict(re.findall(r"--(\S+) ?((?!--)\S*)", command))


def spell_options(options: dict[str, str]) -> str:
    return " ".join(f"--{name} {value}".strip() for name, value in options.items())


def is_tuned(run: tuple[str, ...]) -> bool:
    return any("--finetune" in command for command in run)


def scale_data_set(name: str, run: tuple[str, ...], scale: str) -> str:
    """Data set in the place of `name`: photos to fine-tune on, regions, or vectors."""
    if scale == "full":
        return name
    if name == "f30k_entities":
        return "demo_entities"
    source = "f8k" if scale == "f8k" else "other" if name.startswith("f30k") else "demo"
    method = parse_options(run[0]).get("method")
    regions = name in ("coco_precomp", "f30k_precomp") or method and METHODS[method].needs.startswith(REGIONS)
    return source if is_tuned(run) else f"{source}{'_region' * bool(regions)}_precomp"


def scale_options(command: str, run: tuple[str, ...], scale: str) -> dict[str, str]:
    """The options of a command, on the data sets of a scale."""
    options = {name: scale_data_set(value, run, scale) if name in ("data_name", "test_name") else value
               for name, value in parse_options(command).items()}
    if scale == "full":
        return options
    return {name: value for name, value in options.items() if name not in FULL_ONLY and value != "testall"}


def training_options(command: str, run: tuple[str, ...], scale: str) -> dict[str, str]:
    """Select the options that identify a training: not its paths, seed and start."""
    command = re.sub(r"--method (\S+)", lambda m: METHODS[m[1]].flags, command)
    options = scale_options(command, run, scale)
    options.pop("init_from", None)
    if scale == "full":
        return options
    small, default_sizes = SCALES[scale], {"embed_size": "1024"}
    if "captioner" in options:
        default_sizes["dim_hidden"] = "512"
    options = {"data_name": options["data_name"], **default_sizes, **options}
    for name in set(SIZED) & set(options):
        options[name] = re.sub(r"[1-9]\d*", lambda n: str(max(4, int(n[0]) // small.divide)), options[name])
    if "finetune" in options:
        return options | parse_options(f"{small.train} {small.tune} {LITE}")
    hardest = "max_violation" in options or options.get("sim", "").startswith(HARDEST)
    changes = [small.train, small.rate * (options.get("optimizer") != "sgd"), f"{small.start} {LITE}" * is_tuned(run),
               f"--vse_mean_warmup_epochs {small.warmup}" * hardest]
    return options | parse_options(" ".join(changes))


# ---- steps: commands and the files that they write

@dataclass
class Step:
    """A command, and the file that shows that it has been run."""
    words: list[str]                  # empty: data that have to be there
    target: str
    log: str = ""
    run: str = ""                     # folder of the run that it trains, if any
    lacks: str = ""                   # of data: what to put there

    @property
    def done(self) -> bool:
        if self.run and os.path.exists(self.target):        # a training that was stopped has a best model, too
            return "done: best" in read_last_line(os.path.join(self.run, "log.txt"))
        return os.path.exists(self.target)

    @property
    def command(self) -> list[str]:
        """The words, with --resume or --overwrite of a training that was stopped."""
        if not (self.run and os.path.exists(os.path.join(self.run, "config.yaml"))):
            return self.words
        resumable = os.path.exists(os.path.join(self.run, "checkpoint.pt"))
        return [*self.words, "--resume" if resumable else "--overwrite"]

    @property
    def line(self) -> str:
        """The command as a user types it, or the data that are missing."""
        if not self.words:
            return "" if self.done else f"# {self.lacks}"
        return "# done: " * self.done + shlex.join(["python", *self.command])


def read_last_line(path: str) -> str:
    """The last line of a file that is not empty, "" where there is none."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as f:
        return ([line.strip() for line in f if line.strip()] or [""])[-1]


def fill_words(command: str, **paths: str) -> list[str]:
    """Split a command at blanks. A word in braces stands for a path."""
    return [word.format(**paths) for word in command.split()]


def require_data(name: str, place: Place) -> Step:
    """The step that asks for data, which the user has to fetch."""
    path = os.path.join(place.data, name)
    return Step([], path, lacks=f"{path} is not there; put there {SOURCES.get(name, 'the data set')}; or try --demo")


def plan_tool(place: Place, command: str, target: str, needs: str = "") -> list[Step]:
    """Step of a module that writes `target`, with {data} in its command.

    needs: data that have to be there as long as the target is not.
    """
    name, dashes, options = command.partition("--")
    words = fill_words(f"-m {name} --data_path {{data}} {dashes}{options}", data=place.data)
    step = Step(words, os.path.join(place.data, target), os.path.join(place.folder, "data.txt"))
    return [*[require_data(needs, place)] * bool(needs and not step.done), step]


def plan_data(folder: str, place: Place) -> list[Step]:
    """The demo's scenes, extracted features, or a folder that has to be there."""
    if place.scale == "demo":
        scenes = folder.split("_")[0]
        return plan_tool(place, f"demo --size 200 --scenes {scenes}", f"{scenes}/scenes.json")
    if folder not in EXTRACTED:
        return [require_data(folder, place)]
    (photos, network), steps = EXTRACTED[folder], []
    if photos == "coco_halves":
        steps = plan_tool(place, "paper_tables.coco_halves", "coco_halves/dataset_coco_halves.json", "coco")
    return [*steps, *plan_tool(place, f"features.images --data_name {photos} --output_name {folder} {network}",
                               f"{folder}/test_ims.npy", "" if steps else photos)]


def plan_proposals(folder: str, place: Place) -> list[Step]:
    """200 proposals a photo, 500 of the test photos, and their features."""
    kind, steps = "demo" if place.scale == "demo" else "cnn --cnn_type vgg16 --layer fc7", []
    for count, splits in ((200, "train val test"), (500, "test")):
        name = f"edgeboxes{count}"
        for program, target in ((f"proposals --data_name {folder} --count {count} --name {name}", f"{name}.npz"),
                                (f"regions --data_name {folder} --proposals {name} --kind {kind}", f"{name}_ims.npy")):
            steps += plan_tool(place, f"phrases.{program} --splits {splits}", f"{folder}/test_{target}")
    return steps


def plan_vectors(kind: str, folder: str, place: Place) -> list[Step]:
    """Steps that make word vectors ("own"), or features of captions ("w2v", "hglmm")."""
    learn = "features.word_vectors --data_name {} --dim {} --output {{data}}/{}"
    if kind == "own":
        file = f"{folder}/own.txt"
        return plan_tool(place, learn.format(folder, WORDS // SCALES[place.scale].divide, file), file)
    file, size, steps = VECTORS, "--ica --pca 6000", []
    if place.scale != "full":               # one file for all sets, as a model fits one extractor
        file, size, source = f"{place.scale}_words.txt", "--n_clusters 4", f"{place.scale}_precomp"
        steps = [*plan_data(source, place), *plan_tool(place, learn.format(source, 48, file), file)]
    content = "--content_words" * folder.endswith("_entities")
    program = "phrases.captions" if content else "features.captions"
    options = f"--kind hglmm {size}" * (kind == "hglmm")
    return [*steps, *plan_tool(place, f"{program} --data_name {folder} --name {kind} --word_vectors {{data}}/{file} "
                                      f"{options} {content}", f"{folder}/test_{kind}.npy", VECTORS * (not steps))]


def plan_preparations(run: tuple[str, ...], place: Place) -> list[Step]:
    """The steps before a run: data, proposals, vectors, Visual Genome's manifest."""
    steps, training, judging = [], parse_options(run[-2]), parse_options(run[-1])
    vectors = training.get("text_features") or training.get("text") or "own" * ("word_vectors" in training)
    names = filter(None, (training["data_name"], training.get("test_name"), judging.get("data_name")))
    for folder in dict.fromkeys(scale_data_set(name, run, place.scale) for name in names):
        steps += plan_data(folder, place)
        if folder.endswith("_entities"):
            steps += plan_proposals(folder, place)
        if vectors:
            steps += plan_vectors(vectors, folder, place)
    if run[-1].startswith("-m vg_experiments"):
        manifest = os.path.join(place.folder, "vg", "manifest.json")
        if place.scale == "full" and not os.path.exists(manifest):
            steps.append(require_data("vg", place))
        vg = os.path.join(place.data, "vg" if place.scale == "full" else "demo_vg")
        words = fill_words("-m vg_experiments.prepare --vg {vg} --output {manifest}", vg=vg, manifest=manifest)
        steps.append(Step(words, manifest, os.path.join(place.folder, "data.txt")))
    return steps


def plan_training(command: str, run: tuple[str, ...], start: str, seed: int, place: Place) -> Step:
    """A training, which starts from the run in the folder `start`, or a fit of CCA."""
    program, cca = command.partition(" --")[0], "methods.cca" in command
    options = scale_options(command, run, place.scale) if cca else training_options(command, run, place.scale)
    if start:
        options["init_from"] = f"{{start}}/{os.path.basename(start)}"
    data, test_name, kind = options["data_name"], options.get("test_name"), options.get("sim", "cosine")
    identity = spell_options({name: value for name, value in sorted(options.items()) if name != "test_name"})
    folder = os.path.join(place.folder, f"{data}_{'cca' if cca else kind}_{sha256(identity)[:8]}_seed{seed}")
    npz = f"cca_{test_name}.npz" if test_name else "cca.npz"
    target = os.path.join(folder, npz if cca else "model_best.pt")
    end = "--output {target}" if cca else f"--seed {seed} --logger_name {{run}}"
    words = fill_words(f"{program} --data_path {{data}} {spell_options(options)} {end}", data=place.data, folder=data,
                       start=os.path.dirname(start), run=folder, target=target)
    return Step(words, target, f"{folder}.txt", "" if cca else folder)


def plan_judging(command: str, run: tuple[str, ...], model: Step, place: Place) -> list[Step]:
    """Steps that evaluate a model, or run an experiment on Visual Genome."""
    program, folder, vg = command.partition(" --")[0], os.path.dirname(model.target), os.path.join(place.folder, "vg")
    paths = {"data": place.data, "model": model.run or model.target, "manifest": os.path.join(vg, "manifest.json"),
             "cache": os.path.join(vg, "cache"), "out": os.path.join(folder, "vg")}
    subject = "--checkpoint {model}" if model.run else "--embeddings {model}"
    if program.startswith("-m vg_experiments"):
        words = f"{program} {subject} --manifest {{manifest}} --cache {{cache}} --output {{out}}"
        target = os.path.join(paths["out"], f"{program.split('.')[-1]}.json")
        return [Step(fill_words(words, **paths), target, model.log)]
    options, needs = scale_options(command, run, place.scale), []
    for flag, option, name in (("cxc", "cxc_path", "cxc"), ("pmrp", "instances", INSTANCES)):
        if flag in options:
            demo = place.scale == "demo"
            options[option] = f"{{data}}/{'demo_' * demo}{name}"
            needs += [] if demo else [require_data(name, place)]
    target = os.path.join(folder, f"results_{sha256(spell_options(options))[:8]}.json")
    words = f"{program} {subject} --data_path {{data}} {spell_options(options)} --output {{results}}"
    return [*needs, Step(fill_words(words, results=target, **paths), target, model.log)]


def plan_run(run: tuple[str, ...], seed: int, place: Place) -> list[Step]:
    """All steps of a run in order; the last one writes the results."""
    models = []
    for command in run[:-1]:
        models.append(plan_training(command, run, models[-1].run if models else "", seed, place))
    return [*plan_preparations(run, place), *models, *plan_judging(run[-1], run, models[-1], place)]


def plan_rows(rows, seeds: int, place: Place) -> list[tuple[str, list[Step]]]:
    """(name, steps) of the runs of rows, each once, seed by seed; CCA has one seed."""
    runs = {(run, seed): f"{row.label}, seed {seed}" for seed in range(seeds) for row in rows for run in row.runs
            if seed == 0 or "methods.cca" not in run[0]}
    return [(name, plan_run(*key, place)) for key, name in runs.items()]


# ---- running them

def run_all(runs: list[tuple[str, list[Step]]]) -> list[str]:
    """Run what is missing of runs (name, steps). Returns a sentence for each failure."""
    failures = []
    for k, (name, steps) in enumerate(runs, 1):
        missing = [] if steps[-1].done else [step for step in steps if not step.done]
        error = next((step.lacks for step in missing if not step.words), "")
        for step in missing:
            if not error:
                print(f"[{k}/{len(runs)}] {name}: {step.line}", file=sys.stderr, flush=True)
                error = run_step(step)
        if error:
            failures.append(f"{name}: {error}")
            print(f"[{k}/{len(runs)}] {failures[-1]}", file=sys.stderr, flush=True)
    return failures


def run_step(step: Step) -> str:
    """Run a step, with output to its log. Returns a line on what went wrong, or ""."""
    for path in (step.log, "" if step.run else step.target):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(step.log, "a", encoding="utf-8") as log:
        child = subprocess.Popen([sys.executable, "-u", *step.command], stdout=log, stderr=subprocess.STDOUT,
                                 start_new_session=True)
        try:
            status = child.wait()
        except KeyboardInterrupt:                           # train.py saves after its step
            child.terminate()
            child.wait()
            raise
    return f"status {status}: {read_last_line(step.log)}" if status else ""


# ---- results

def find_value(results, path: str) -> float | None:
    """Number at a path of keys, `*` the first, or None, as for Sigma of a point."""
    for key in path.split("/"):
        if not isinstance(results, dict):
            return None
        results = next(iter(results.values()), None) if key == "*" else results.get(key)
    return results


def collect_cells(row: Row, columns: Columns, seeds: int, place: Place) -> list[tuple | None]:
    """(mean, standard deviation, seeds) for each column; None without results."""
    plans, cells = [plan_run(row.runs[columns.run], seed, place) for seed in range(seeds) if row.runs], []
    results = [read_json(steps[-1].target, "delete it, and it is made again") for steps in plans if steps[-1].done]
    for path in columns.paths:
        if place.scale != "full":                           # a small test set has no folds
            path = path.replace("folds5", "full").replace("_full", "")
        numbers = [x for x in (find_value(entry, path) for entry in results) if x is not None]
        deviation = stdev(numbers) if len(numbers) > 1 else 0.0
        cells.append((mean(numbers), deviation, len(numbers)) if numbers else None)
    return cells


def tabulate_rows(table: Table, rows: list[Row], seeds: int, place: Place) -> list:
    """Tables of `evaluation.report` with rows of ours, published and difference."""
    tables, start = [], 0
    for columns in table.columns:
        span, lines = slice(start, start + len(columns.paths)), []
        start = span.stop
        known = [x for row in rows for x in row.published[span] if x is not None]
        places = 1 if known and all(round(x, 1) == round(x, 2) for x in known) else 2     # as the paper prints them

        def cell(x: float | None, form: str = "z", places: int = places) -> str:          # z: never -0.0
            return "" if x is None else f"{x:{form}.{places}f}"
        for row in rows:
            cells, published = collect_cells(row, columns, seeds, place), [cell(x) for x in row.published[span]]
            if not any(cells):
                lines.append((f"{row.label}: published{' only' * (not row.runs)}", published))
                continue
            lines.append((f"{row.label}: ours ({max(x[2] for x in cells if x)})",
                          [cell(x[0]) + f" +- {cell(x[1])}" * (x[2] > 1) if x else "" for x in cells]))
            if any(published):
                differences = [cell(x[0] - p, "+z") if x and p is not None else ""
                               for x, p in zip(cells, row.published[span])]
                lines += [("  published", published), ("  difference", differences)]
        tables.append((", ".join(filter(None, (table.title, columns.title))),
                       [(heading, [name for name, _ in names]) for heading, names in columns.groups], lines))
    return tables


# ---- the command

def select_rows(table: Table, only: list[str] | None) -> list[Row]:
    """Rows that --only names, else all. Raises InputError on a name that is of no row."""
    names = {str(k): row for k, row in enumerate(table.rows, 1)} | {row.label: row for row in table.rows}
    for name in only or ():
        check(name in names, f"--only {name} is not a row of {table.title}; its rows are "
                             f"{'; '.join(f'{k} {row.label}' for k, row in enumerate(table.rows, 1))}")
    return list(dict.fromkeys(names[name] for name in only)) if only else list(table.rows)


def build_table_parser(description: str) -> Arguments:
    p = Arguments(description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = p.add_argument
    add("--data_path", type=filename, help="folder that holds the data sets (default: data; with --demo: "
        "data/demo_tables, which it writes)")
    size = p.add_mutually_exclusive_group()
    for scale in ("demo", "f8k"):
        size.add_argument(f"--{scale}", action="store_const", const=scale, dest="scale", default="full",
                          help=SCALES[scale].description)
    add("--seeds", type=up_to(1000), help="how many seeds each row gets, from 0 on (default: the table's)")
    add("--runs", type=filename, default="runs/paper_tables", metavar="FOLDER", help="folder that holds the runs")
    add("--list", action="store_true", help="list how far rows have been run, and the data that are missing")
    return p


def build_place(opt) -> Place:
    data = opt.data_path or ("data/demo_tables" if opt.scale == "demo" else "data")
    return Place(data, os.path.join(opt.runs, opt.scale), opt.scale)


def print_needs(steps: list[Step]) -> None:
    """Say what has to be fetched before these steps."""
    lines = sorted({step.lacks for step in steps if not step.words and not step.done})
    networks = sorted({name for step in steps if not step.done for name in re.findall(r"--cnn_type (\w+)", step.line)})
    lines += [f"Weights that have to be in torch's cache, or in a package: {', '.join(networks)}."] * bool(networks)
    for line in [*lines, NEVER_RUN]:
        print(textwrap.fill(line, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


def list_rows(table: Table, opt) -> None:
    """Print rows of a table, how far they have been run, and what has to be fetched."""
    place, steps = build_place(opt), []
    print(table.title)
    for k, row in enumerate(table.rows, 1):
        if row in select_rows(table, opt.only):
            runs = [run for _, run in plan_rows([row], opt.seeds or table.seeds, place)]
            done = f"{sum(run[-1].done for run in runs)} of {len(runs)} runs done" if runs else "published only"
            print(f"{k:>4}  {row.label:<62} {done}")
            steps += sum(runs, [])
    print_needs(steps)


def run_table(table: Table, opt) -> None:
    """Run what is missing for rows and print them. Exits with 1 if a run failed."""
    place, seeds, rows = build_place(opt), opt.seeds or table.seeds, select_rows(table, opt.only)
    runs = plan_rows(rows, seeds, place)
    if opt.dry_run:
        print(*dict.fromkeys(step.line for _, steps in runs for step in steps if step.line), sep="\n")
        return
    failures = run_all(runs)
    for printed in tabulate_rows(table, rows, seeds, place):
        print(text(printed), end="\n\n")
    print(f"ours: mean and standard deviation over the seeds (their number); {SCALES[opt.scale].description}",
          *table.notes, sep="\n")
    if failures:
        sys.exit(f"{len(failures)} of {len(runs)} runs failed; the first: {failures[0]}")


def main(table: Table, argv=None) -> None:
    """Run a table's script."""
    p = build_table_parser(table.title)
    p.add_argument("--only", nargs="+", metavar="ROW",
                   help="rows to run and print: numbers from 1, or labels")
    p.add_argument("--dry_run", action="store_true", help="print the commands, and run nothing")
    opt = p.parse_args(argv)
    if opt.scale == "f8k" and not table.f8k:
        p.error(f"--f8k: Flickr8k has no data for {table.title}; use --demo, or leave it out with the paper's data "
                "at hand")
    cli.run(p.prog, list_rows if opt.list else run_table, table, opt)
