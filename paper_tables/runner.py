"""Run the rows of a paper's table, and print ours beside the published numbers.

A row's commands stand in the table's script as a person types them, in the papers' setting. Here they get the data
path, the seed, the run's folder, the files that they need, and for --demo and --f8k other data and smaller sizes. A
run's folder is named after its options, not after --data_path, so tables share runs, and a stopped table continues.
"""
import contextlib
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
from cli import Arguments, InputError, filename, spell_value, up_to
from evaluation.report import NAMES, SIDES, text
from files import read_json, sha256
from methods import METHODS, REGIONS, REGIONS_OR_PHOTOS
from paper_tables.hours import describe_hours, read_measurements, spell_cost

# ---- what a table is

class Columns(NamedTuple):
    """Columns that are printed as one table."""
    title: str
    groups: tuple                     # ((heading, ((name, path of the value in the results), ...)), ...)
    run: int = 0                      # which of a row's runs they show


class Row(NamedTuple):
    """One line of a paper's table.
    A run is the commands of one model: trainings, then one that judges. RUN stands for the folder of the training
    before, {data}/{folder} for that of the data set. A row without runs shows its published numbers only."""
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
    before: a protocol and a measure in it, which gets a column before the recalls of each direction."""
    cells = [*([before] if before else []), *((protocol, f"r{k}") for k in ks)]
    groups = [(SIDES[side], tuple((NAMES[key], f"protocols/{name}/{side}/{key}") for name, key in cells))
              for side in ("i2t", "t2i")]
    return Columns(title, (*groups, *[("", (("rsum", f"protocols/{protocol}/rsum"),))] * rsum), run)


# ---- sizes and data

class Scale(NamedTuple):
    """A size at which all runs are made. The options replace the rows' options."""
    description: str
    data: str = ""                    # what the runs are trained and judged on in place of the paper's data
    divide: int = 1                   # divides the sizes of embeddings and layers
    train: str = ""
    rate: str = ""                    # learning rate of Adam, and its reduction
    start: str = ""                   # further options of a run that fine-tuning starts from
    tune: str = ""                    # options of fine-tuning, in place of `rate`
    warmup: int = 0                   # epochs on the sum of violations before a row's hardest negatives


SCALES = {
    "full": Scale("the papers' setting"),
    "demo": Scale("drawn scenes, small models, a few epochs: shows that the table runs, not what the methods do",
                  "drawn scenes", 16,
                  "--num_epochs 4 --batch_size 64 --log_step 1000 --val_step 100000 --workers 0",
                  "--learning_rate 2e-3 --lr_update 3", "--num_epochs 2", "--num_epochs 1 --learning_rate 1e-4", 2),
    "f8k": Scale("Flickr8k's features, half the embedding and 10 epochs: not the papers' data", "Flickr8k", 2,
                 "--num_epochs 10 --amp bf16", "--learning_rate 1e-3 --lr_update 6", "",
                 "--num_epochs 3 --learning_rate 1e-4", 1)}
# At small scales: the network of fine-tuned rows, options left out, and options whose numbers are divided.
LITE = "--cnn_type efficientnet_lite0 --crop_size 64"
FULL_ONLY = ("cnn_type", "dev_images", "use_restval", "fold5")
SIZED = ("embed_size", "word_dim", "img_layers", "txt_layers", "dim_hidden", "cite_layers")
HARDEST = ("kl", "minkl", "mahalanobis", "wasserstein")     # beginnings of similarities that need a warm-up there
# Features that are extracted: the photos, and how.
EXTRACTED = {"coco_vgg_precomp": ("coco", "--cnn_type vgg19 --layer fc6 --use_restval"),
             "f30k_vgg_precomp": ("f30k", "--cnn_type vgg19 --layer fc6"),
             "coco_halves_precomp": ("coco_halves", "--cnn_type alexnet --layer fc7"),
             "coco_halves_fc6_precomp": ("coco_halves", "--cnn_type alexnet --layer fc6")}
VECTORS, INSTANCES = "GoogleNews-vectors-negative300.bin", "coco/annotations/instances_val2014.json"
# Folder or file below --data_path -> where its real data come from (addresses of 2017 to 2026), and what is renamed.
SOURCES = {
    "coco": "COCO's train2014.zip (13.5 GB), val2014.zip (6.6 GB) and annotations_trainval2014.zip (0.3 GB) "
            "(cocodataset.org) and the coco_*_ids.npy of VSE++ (data.tar of github.com/fartashf/vsepp); photos in "
            "images/train2014 and images/val2014, annotations and ids in annotations/",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB of train alone (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features); for CxC, PMRP and ECCV also coco_test_ids.npy of VSE++'s data.tar "
                    "and testall_img_ids.npy; testall_ann_ids.npy holds the first 25,000 of VSE++'s coco_test_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k, 8.6 GB of train (github.com/kuanghuei/SCAN; Kaggle "
                    "kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (4.4 GB, by a form of the University of Illinois) and dataset_flickr30k.json of "
            "Karpathy's caption_datasets.zip; the folder of photos renamed to images/",
    "f30k_entities": "Annotations/ and Sentences/ of annotations.zip and the splits train.txt, val.txt, test.txt "
                     "(github.com/BryanPlummer/flickr30k_entities), and Flickr30k's photos in images/",
    "f8k": "Flickr8k_Dataset.zip (photos, 1 GB) and Flickr8k_text.zip, unpacked, which come by a form of the "
           "University of Illinois (forms.illinois.edu/sec/1713398)",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos (features.images --layer cells)",
    INSTANCES: "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions (github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json (0.1 GB) and photos (9.7 and 5.5 GB) "
          "(visualgenome.org); photos in VG_100K/ and VG_100K_2/",
    VECTORS: "word2vec's vectors of Google News, 3.4 GiB (code.google.com/archive/p/word2vec)"}
LABELS = ("Papers (README.md): pmrl, ucmr: Gaussian embeddings; jwae: Wasserstein autoencoders; dmsm: trigrams.",
          "GCE, GIE, GCIE: captions, images, both are Gaussians; in ucmr, 'ours': both; ft: fine-tuned network.")
COLLAPSED = 1.5                       # times the R@10 of chance: a direction at most this good has learned nothing
AGAIN = "delete it, and it is made again"
LARGEST_RESULT = 1e12
NEVER_RUN = "No row of any table has been run at the papers' size: the data cannot be had here."


class Place(NamedTuple):
    """Folders of the data and of a scale's runs, and the scale, one of SCALES."""
    data: str
    folder: str
    scale: str


# ---- the commands of a run

def parse_command(line: str) -> tuple[str, dict[str, str]]:
    """Read the program of a command, and its options by name, "" for a switch.
    --method stands for its options. The last of equal options counts, as in argparse."""
    line = re.sub(r"--method (\S+)", lambda m: METHODS[m[1]].flags, line)
    return line.partition(" --")[0], dict(re.findall(r"--(\S+) ?((?!--)\S*)", line))


def spell_options(options: dict[str, str]) -> str:
    return " ".join(f"--{name} {value}".strip() for name, value in options.items())


def scale_run(run: tuple[str, ...], scale: str) -> list[tuple[str, dict[str, str]]]:
    """Read the commands of a run, on the data sets of a scale and in its sizes."""
    commands = [parse_command(line) for line in run]
    if scale == "full":
        return commands
    method = re.search(r"--method (\S+)", run[0])
    reads_regions = bool(method) and METHODS[method[1]].needs in (REGIONS, REGIONS_OR_PHOTOS)
    tuned = any("finetune" in options for _, options in commands)

    def replace_data(name: str) -> str:
        """Name photos to fine-tune on, regions or vectors in the place of a data set."""
        if name == "f30k_entities":
            return "demo_entities"
        source = "f8k" if scale == "f8k" else "other" if name.startswith("f30k") else "demo"
        regions = reads_regions or name in ("coco_precomp", "f30k_precomp")
        return source if tuned else f"{source}{'_region' * regions}_precomp"
    scaled = []
    for program, options in commands:
        options = {name: replace_data(value) if name in ("data_name", "test_name") else value
                   for name, value in options.items() if name not in FULL_ONLY and value != "testall"}
        scaled.append((program, shrink(options, SCALES[scale], tuned) if "train" in program else options))
    return scaled


def shrink(options: dict[str, str], small: Scale, tuned: bool) -> dict[str, str]:
    """Replace the options of a training by those of a scale. tuned: whether its run ends in fine-tuning."""
    sizes = {"embed_size": "1024"} | ({"dim_hidden": "512"} if "captioner" in options else {})      # the defaults
    options = {"data_name": options["data_name"], **sizes, **options}
    for name in set(SIZED) & set(options):
        options[name] = re.sub(r"[1-9]\d*", lambda n: str(max(4, int(n[0]) // small.divide)), options[name])
    if "finetune" in options:
        changes = f"{small.train} {small.tune} {LITE}"
    else:
        hardest = "max_violation" in options or options.get("sim", "").startswith(HARDEST)
        changes = " ".join([small.train, small.rate * (options.get("optimizer") != "sgd"),
                            f"{small.start} {LITE}" * tuned, f"--vse_mean_warmup_epochs {small.warmup}" * hardest])
    return options | parse_command(changes)[1]


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
        """A training that was stopped has a best model, but its log has no end."""
        return os.path.exists(self.target) and (not self.run or "done: best" in read_last_line(f"{self.run}/log.txt"))

    @property
    def command(self) -> list[str]:
        """The words, with --resume or --overwrite of a training that was stopped."""
        if not (self.run and os.path.exists(f"{self.run}/config.yaml")):
            return self.words
        return [*self.words, "--resume" if os.path.exists(f"{self.run}/checkpoint.pt") else "--overwrite"]

    @property
    def line(self) -> str:
        """The command as a user types it, or the data that are missing."""
        return shlex.join(["python", *self.command]) if self.words else f"# {self.lacks}"


def list_missing(steps: list[Step]) -> list[Step]:
    """The steps that have to be run before the last one is done."""
    return [] if steps[-1].done else [step for step in steps if not step.done]


def read_last_line(path: str) -> str:
    """The last line of a file that is not empty, "" where there is none."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as f:
        return (f.read().strip() or " ").splitlines()[-1].strip()
    return ""


class Plan:
    """The steps of a run in order; the last one writes the results.
    A word in braces of a command stands for a path, which may hold blanks."""

    def __init__(self, run: tuple[str, ...], seed: int, place: Place):
        self.data, self.folder, self.scale = place
        self.seed, self.steps, model = seed, [], None
        *trainings, (program, options) = scale_run(run, place.scale)
        self.prepare(trainings[-1][1], program, options)
        for training in trainings:
            model = self.train(*training, model)
        self.judge(program, options, model)

    def add(self, line: str, target: str, log: str = "", run: str = "", **paths: str) -> Step:
        paths |= {"data": self.data, "vg": f"{self.folder}/vg", "target": target, "run": run}
        words = [word.format(**paths) for word in line.split()]
        self.steps.append(Step(words, target, log or f"{self.folder}/data.txt", run))
        return self.steps[-1]

    def need(self, name: str) -> None:
        """Ask for data, which the user has to fetch."""
        path = os.path.join(self.data, name)
        lacks = f"{path} is not there; put there {SOURCES.get(name, 'the data set')}; or try --demo"
        self.steps.append(Step([], path, lacks=lacks))

    def make(self, module: str, options: str, file: str, needs: str = "") -> None:
        """Call a module that writes a file among the data, and needs other data until then."""
        target = os.path.join(self.data, file)
        if needs and not os.path.exists(target):
            self.need(needs)
        self.add(f"-m {module} --data_path {{data}} {options}", target)

    def prepare(self, training: dict[str, str], program: str, judging: dict[str, str]) -> None:
        """Make data sets, proposals, vectors and Visual Genome's manifest, or ask for them."""
        features = training.get("text_features") or training.get("text")
        names = training["data_name"], training.get("test_name"), judging.get("data_name")
        for name in filter(None, dict.fromkeys(names)):
            self.make_data(name)
            if name.endswith("_entities"):
                self.make_proposals(name)
            if features:
                self.make_features(features, name)
            if "word_vectors" in training:
                self.learn_words(name, training["word_dim"], f"{name}/own.txt")
        if "vg_experiments" in program:
            vg, manifest = "vg" if self.scale == "full" else "demo_vg", f"{self.folder}/vg/manifest.json"
            if vg == "vg" and not os.path.exists(manifest):
                self.need(vg)
            self.add(f"-m vg_experiments.prepare --vg {{data}}/{vg} --output {{target}}", manifest)

    def make_data(self, name: str) -> None:
        """Draw the demo's scenes, extract features, or ask for a folder."""
        if self.scale == "demo":
            scenes = name.split("_")[0]
            return self.make("demo", f"--size 200 --scenes {scenes}", f"{scenes}/scenes.json")
        if name not in EXTRACTED:
            return self.need(name)
        photos, network = EXTRACTED[name]
        if photos == "coco_halves":
            self.make("paper_tables.coco_halves", "", "coco_halves/dataset_coco_halves.json", "coco")
        self.make("features.images", f"--data_name {photos} --output_name {name} {network}", f"{name}/test_ims.npy",
                  "" if photos == "coco_halves" else photos)

    def make_proposals(self, name: str) -> None:
        """Make 200 proposals a photo, 500 of the test photos, and their features."""
        kind = "demo" if self.scale == "demo" else "cnn --cnn_type vgg16 --layer fc7"
        for count, splits in ((200, "train val test"), (500, "test")):
            boxes = f"edgeboxes{count}"
            self.make("phrases.proposals", f"--data_name {name} --count {count} --name {boxes} --splits {splits}",
                      f"{name}/test_{boxes}.npz")
            self.make("phrases.regions", f"--data_name {name} --proposals {boxes} --kind {kind} --splits {splits}",
                      f"{name}/test_{boxes}_ims.npy")

    def learn_words(self, name: str, dim: str, file: str) -> None:
        self.make("features.word_vectors", f"--data_name {name} --dim {dim} --output {{data}}/{file}", file)

    def make_features(self, kind: str, name: str) -> None:
        """Compute features of captions, "w2v" or "hglmm"."""
        file, needs, size = VECTORS, VECTORS, "--ica --pca 6000"
        if self.scale != "full":            # one file for all sets, as a model fits one extractor
            source, file, needs, size = f"{self.scale}_precomp", f"{self.scale}_words.txt", "", "--n_clusters 4"
            self.make_data(source)
            self.learn_words(source, "48", file)
        content = "--content_words" * name.endswith("_entities")
        hglmm = f"--kind hglmm {size}" * (kind == "hglmm")
        self.make(f"{'phrases' if content else 'features'}.captions", f"--data_name {name} --name {kind} "
                  f"--word_vectors {{data}}/{file} {hglmm} {content}", f"{name}/test_{kind}.npy", needs)

    def train(self, program: str, options: dict[str, str], start: Step | None) -> Step:
        """Train, from the run `start` if there is one, or fit CCA. The folder is named after the options."""
        runs, last = os.path.split(start.run if start else "")
        if start:
            del options["init_from"]                        # RUN; it stands last
            options["init_from"] = f"{{start}}/{last}"
        name, test_name, cca = options["data_name"], options.get("test_name"), program == "-m methods.cca"
        identity = sha256(spell_options({key: options[key] for key in sorted(options) if key != "test_name"}))[:8]
        kind = "cca" if cca else options.get("sim", "cosine")
        folder = os.path.join(self.folder, f"{name}_{kind}_{identity}_seed{self.seed}")
        file = "model_best.pt" if not cca else f"cca_{test_name}.npz" if test_name else "cca.npz"
        end = "--output {target}" if cca else f"--seed {self.seed} --logger_name {{run}}"
        return self.add(f"{program} --data_path {{data}} {spell_options(options)} {end}", f"{folder}/{file}",
                        f"{folder}.txt", folder * (not cca), folder=name, start=runs)

    def judge(self, program: str, options: dict[str, str], model: Step) -> None:
        """Evaluate a model, or run an experiment on Visual Genome."""
        if "vg_experiments" in program:
            line = f"{program} --checkpoint {{model}} --manifest {{vg}}/manifest.json --cache {{vg}}/cache"
            self.add(f"{line} --output {{model}}/vg", f"{model.run}/vg/{program.split('.')[-1]}.json", model.log,
                     model=model.run)
            return
        demo = "demo_" * (self.scale == "demo")
        for flag, option, name in (("cxc", "cxc_path", "cxc"), ("pmrp", "instances", INSTANCES)):
            if flag in options:
                options[option] = f"{{data}}/{demo}{name}"
                if not demo:
                    self.need(name)
        words, subject = spell_options(options), "checkpoint" if model.run else "embeddings"
        self.add(f"{program} --{subject} {{model}} --data_path {{data}} {words} --output {{target}}",
                 f"{os.path.dirname(model.target)}/results_{sha256(words)[:8]}.json", model.log,
                 model=model.run or model.target)


def plan_rows(rows, seeds: int, place: Place) -> list[tuple[str, list[Step]]]:
    """(name, steps) of the runs of rows, each once, seed by seed; CCA has one seed."""
    runs = {(run, seed): f"{row.label}, seed {seed}" for seed in range(seeds) for row in rows for run in row.runs
            if seed == 0 or "methods.cca" not in run[0]}
    return [(name, Plan(run, seed, place).steps) for (run, seed), name in runs.items()]


# ---- running them

def run_all(runs: list[tuple[str, list[Step]]]) -> list[str]:
    """Run what is missing of runs (name, steps). Returns a sentence for each failure."""
    failures = []
    for k, (name, steps) in enumerate(runs, 1):
        missing = list_missing(steps)
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
        finally:                                            # after Ctrl-C train.py saves what it has
            child.terminate()
            child.wait()
    return f"status {status}: {read_last_line(step.log)}" if status else ""


# ---- results

def find_value(results, path: str):
    """Value at a path of keys, `*` the first, or None, as for Sigma of a point."""
    for key in path.split("/"):
        if not isinstance(results, dict):
            return None
        results = next(iter(results.values()), None) if key == "*" else results.get(key)
    return results


def is_result(value) -> bool:
    """True for a number of a table: a recall, a rank, an uncertainty."""
    return type(value) in (int, float) and abs(value) < LARGEST_RESULT         # False for NaN and infinity


def collect_cells(steps: list[Step], paths: list[str], place: Place) -> list[tuple | None]:
    """(mean, standard deviation, seeds) for each path, of one step's results a seed; None without results."""
    cells = []
    results = {step.target: read_json(step.target, AGAIN) for step in steps if step.done}
    for path in paths:
        if place.scale != "full":                           # a small test set has no folds
            path = path.replace("folds5", "full").replace("_full", "")
        values = {file: find_value(entry, path) for file, entry in results.items()}
        for file, value in values.items():
            if value is not None and not is_result(value):
                raise InputError(f"{file} holds {spell_value(value)} as {path}, which is no number that evaluate.py "
                                 f"writes; {AGAIN}")
        numbers = [value for value in values.values() if value is not None]
        deviation = stdev(numbers) if len(numbers) > 1 else 0.0
        cells.append((mean(numbers), deviation, len(numbers)) if numbers else None)
    return cells


def is_collapsed(steps: list[Step]) -> bool:
    """True if a judged model of a row (a step a seed) is near chance in one direction."""
    for step in steps:
        if not step.done:
            continue
        results = read_json(step.target, AGAIN)
        for side in ("i2t", "t2i"):
            found = find_value(results, f"protocols/full/{side}/r10")
            chance = find_value(results, f"chance/full/{side}/r10")
            if found is not None and chance is not None and found <= COLLAPSED * chance:
                return True
    return False


def tabulate_rows(table: Table, rows: list[Row], seeds: int, place: Place) -> list:
    """Build tables of `evaluation.report`: rows of this code, the published numbers, the difference.

    On other data than the paper's there is no difference, and the title says which they are.
    """
    other_data = SCALES[place.scale].data
    tables = []
    start = 0
    for title, groups, run in table.columns:
        paths = [path for _, names in groups for _, path in names]
        span = slice(start, start + len(paths))
        start = span.stop
        known = [x for row in rows for x in row.published[span] if x is not None]
        places = 2                                                                  # as the paper prints them
        if known and all(round(x, 1) == round(x, 2) for x in known):
            places = 1

        def spell(x: float | None, form: str = "z", places: int = places) -> str:   # z: never -0.0
            return "" if x is None else f"{x:{form}.{places}f}"

        lines = []
        for row in rows:
            published = row.published[span]
            theirs = [spell(x) for x in published]
            judged = []
            if row.runs:
                judged = [Plan(row.runs[run], seed, place).steps[-1] for seed in range(seeds)]
            cells = collect_cells(judged, paths, place)
            if not any(cells):
                only = "" if row.runs else " only"
                lines.append((f"{row.label}: published{only}", theirs))
                continue

            count = max(x[2] for x in cells if x)
            collapsed = ", collapsed" if is_collapsed(judged) else ""
            lines.append((f"{row.label}: this code ({count}){collapsed}", [spell_cell(x, spell) for x in cells]))
            if any(theirs):
                lines.append(("  published", theirs))
            if any(theirs) and not other_data:
                difference = [spell(x[0] - p, "+z") if x and p is not None else ""
                              for x, p in zip(cells, published)]
                lines.append(("  difference", difference))

        heads = [(heading, [name for name, _ in names]) for heading, names in groups]
        name = table.title
        if other_data:
            name = f"{name}; this code on {other_data}, so the numbers cannot be compared"
        tables.append((f"{name}, {title}" if title else name, heads, lines))
    return tables


def spell_cell(cell: tuple | None, spell) -> str:
    """Write a cell of `collect_cells`: mean, and deviation where there are several seeds."""
    if not cell:
        return ""
    mean_value, deviation, count = cell
    text = spell(mean_value)
    if count > 1:
        text += f" +- {spell(deviation)}"
    return text


# ---- the command

def build_table_parser(description: str) -> Arguments:
    p = Arguments(description)
    add = p.add_argument
    add("--data_path", type=filename, help="folder that holds the data sets (default: data; with --demo: "
        "data/demo_tables, which it writes)")
    size = p.add_mutually_exclusive_group()
    for scale in ("demo", "f8k"):
        size.add_argument(f"--{scale}", action="store_const", const=scale, dest="scale", help=SCALES[scale].description)
    add("--seeds", type=up_to(1000), help="how many seeds each row gets, from 0 on (default: the table's)")
    add("--runs", type=filename, default="runs/paper_tables", metavar="FOLDER", help="folder that holds the runs")
    add("--list", action="store_true", help="list how far rows have been run, and the data that are missing")
    return p


def build_place(opt) -> Place:
    scale = opt.scale or "full"
    return Place(opt.data_path or f"data{'/demo_tables' * (scale == 'demo')}", os.path.join(opt.runs, scale), scale)


def print_needs(steps: list[Step]) -> None:
    """Say what short names mean, and what has to be fetched for these missing steps."""
    lines = sorted({step.lacks for step in steps if not step.words})
    networks = sorted({name for step in steps for name in re.findall(r"--cnn_type (\w+)", step.line)})
    lines += [f"Weights that have to be in torch's cache, or in a package: {', '.join(networks)}."] * bool(networks)
    for line in [*LABELS, *lines, NEVER_RUN, describe_hours(read_measurements())]:
        print(textwrap.fill(line, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


def list_rows(table: Table, opt) -> None:
    """Print rows of a table, how far they have been run, and what has to be fetched."""
    steps = []
    measurements = read_measurements()
    print(table.title)
    for k in opt.only:
        row = table.rows[k - 1]
        runs = [run for _, run in plan_rows([row], opt.seeds or table.seeds, build_place(opt))]
        done = f"{sum(run[-1].done for run in runs)} of {len(runs)} runs done" if runs else "published only"
        cost = spell_cost(row.runs, measurements)
        print(f"{k:>4}  {row.label:<59} {cost:>15}  {done}".rstrip())
        steps += sum(map(list_missing, runs), [])
    print_needs(steps)


def run_table(table: Table, opt) -> None:
    """Run what is missing for rows and print them. Exits with 1 if a run failed."""
    place, seeds, rows = build_place(opt), opt.seeds or table.seeds, [table.rows[k - 1] for k in opt.only]
    runs = plan_rows(rows, seeds, place)
    if opt.dry_run:
        print(*dict.fromkeys(step.line for _, steps in runs for step in list_missing(steps)), sep="\n")
        return
    failures = run_all(runs)
    for printed in tabulate_rows(table, rows, seeds, place):
        print(text(printed), end="\n\n")
    print("this code: mean and standard deviation over the seeds (their number); " + SCALES[place.scale].description,
          "collapsed: nearly all items are one point, so one direction is near chance", *table.notes, sep="\n")
    if failures:
        sys.exit(f"{len(failures)} of {len(runs)} runs failed; the first: {failures[0]}")


def main(table: Table, argv=None) -> None:
    """Run a table's script."""
    p = build_table_parser(table.title)
    p.add_argument("--only", type=up_to(len(table.rows)), nargs="+", metavar="ROW", help="numbers of rows, from 1")
    p.add_argument("--dry_run", action="store_true", help="print the commands, and run nothing")
    opt = p.parse_args(argv)
    opt.only = opt.only or range(1, len(table.rows) + 1)
    if opt.scale == "f8k" and not table.f8k:
        p.error(f"--f8k: Flickr8k has no data for {table.title}; use --demo, or the paper's data")
    cli.run(p.prog, list_rows if opt.list else run_table, table, opt)
