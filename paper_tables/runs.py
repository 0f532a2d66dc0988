"""Trains and evaluates the rows of tables: data sets, sizes, and the steps of a run in order.

A run's folder is named after its options. Tables therefore share runs, and a stopped run continues
where it was. The name does not depend on --data_path, so other data need another --runs folder.
"""
import fcntl
import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

from checkpoints import MAY_CHANGE
from cli import InputError
from files.reading import SOURCES, read_yaml
from methods import flags
from options.rules import resolve
from options.training import TRAIN

# defaults of embedding, captioner, word vectors
SIZE, HIDDEN, WORDS = "--embed_size 1024", " --dim_hidden 512", 300
VG = "vg_experiments."


@dataclass(frozen=True)
class Run:
    """A model and its evaluation, given by what makes the method.

    `train` begins with the names of the methods of METHODS, if any, and continues with the row's
    own options. It is kept as options alone, so that a run's folder does not depend on how a row is
    written.
    """
    data: str                         # training set, a key of DATA
    train: str = ""               # names of methods, then options of train.py; or options of cca.py
    evaluate: str = ""                # options of evaluate.py
    start: "Run | None" = None        # the run whose weights it starts from
    text: str = ""                  # features in place of captions, or word vectors: a key of TEXTS
    test: str = ""            # data set to evaluate on, a key of DATA (default: the training set's)
    tool: str = "train.py"
    judge: str = "evaluate.py"        # or vg_experiments.NAME

    def __post_init__(self):
        object.__setattr__(self, "train", flags(self.train))


# ---- data sets and sizes

@dataclass(frozen=True)
class Scale:
    """A size at which all runs are made. `divide` divides the sizes of embeddings and layers;
    `train` and the other options replace those of the rows."""
    says: str
    divide: int = 1
    train: str = ""
    rate: str = ""                    # learning rate of Adam, and its reduction
    start: str = ""                   # further options of a run that fine-tuning starts from
    tune: str = ""                    # options of fine-tuning, in place of `rate`
    warmup: int = 0               # epochs on the sum of violations before a row's hardest negatives
    folds: bool = True


SCALES = {
    "full": Scale("the papers' setting"),
    "demo": Scale(
        "drawn scenes, small models, a few epochs: shows that the table runs, not what the methods "
        "do",
        16,
        "--num_epochs 4 --batch_size 64 --log_step 1000 --val_step 100000 --workers 0",
        "--learning_rate 2e-3 --lr_update 3",
        "--num_epochs 2",
        "--num_epochs 1 --learning_rate 1e-4",
        2,
        False,
    ),
    "f8k": Scale(
        "Flickr8k's features, half the embedding and 10 epochs: not the papers' data",
        2,
        "--num_epochs 10 --amp bf16",
        "--learning_rate 1e-3 --lr_update 6",
        "",
        "--num_epochs 3 --learning_rate 1e-4",
        1,
        False,
    ),
}
DEMO_SIZE = 200                       # training images; the test set has half as many


def places(full: str, train: str, evaluate: str, demo: str, f8k: str = "f8k_precomp",
           photos: str = "") -> dict:
    """Scale -> (folder below --data_path, options of train.py, options of evaluate.py)."""
    return {"full": (full, train, evaluate), "demo": (demo, photos, ""), "f8k": (f8k, photos, "")}


LITE = "--cnn_type efficientnet_lite0 --crop_size 64"
PHOTOS = {"coco": "--cnn_type resnet152 --use_restval", "f30k": "--cnn_type resnet152"}
SPLIT = {"coco": "--split testall", "f30k": ""}
DATA = {f"{name}{kind}": place for name, demo in (("coco", "demo"), ("f30k", "other")) for kind, place in {
    "": places(name, PHOTOS[name], "", f"{demo}_precomp"),                  # photos, frozen network
    " tuned": places(name, PHOTOS[name], "", demo, "f8k", LITE),           # photos, trained network
    " cells": places(name, PHOTOS[name], "", f"{demo}_region_precomp", "f8k_region_precomp"),
    " regions": places(f"{name}_precomp", "", SPLIT[name], f"{demo}_region_precomp", "f8k_region_precomp"),
    " fc6": places(f"{name}_vgg_precomp", "", "", f"{demo}_precomp")}.items()}
# FC7 of val2014 in halves
DATA["coco halves"] = places("coco_halves_precomp", "--dev_images 0", "", "demo_precomp")
DATA["coco halves fc6"] = places("coco_halves_fc6_precomp", "--dev_images 0", "", "demo_precomp")
DATA["f30k phrases"] = places("f30k_entities", "", "", "demo_entities")
TEXTS = {"w2v": "--text_features w2v", "hglmm": "--text_features hglmm",
         "own": "--word_vectors {data}/{folder}/own.txt"}
REGIONS = ["--kind", "cnn", "--cnn_type", "vgg16", "--layer", "fc7"]        # of proposals' features
VECTORS = "GoogleNews-vectors-negative300.bin"
# estimated minutes of an epoch on COCO, for gpu_hours
MINUTES = {"": 5, " tuned": 5, " cells": 5, " regions": 10, " fc6": 0.5, " halves": 0.5,
           " halves fc6": 0.5, " phrases": 12}


def resized(options: str, k: int) -> str:
    """Options whose sizes of embeddings and layers are divided by k. No size falls below 4, and 0
    stays 0."""
    def smaller(found):
        numbers = [n if n == "0" else str(max(4, int(n) // k)) for n in found[2].split("-")]
        return f"--{found[1]} {'-'.join(numbers)}"
    return re.sub(r"--(embed_size|word_dim|img_layers|txt_layers|decoder_dim|dim_hidden|cite_layers) ([\d-]+)", smaller,
                  options)


def training_options(run: Run, scale: str, also: str = "") -> str:
    """The options of train.py that identify a run: all but the data path, the seed and the
    folder."""
    size = SCALES[scale]
    own = " ".join([(SIZE + HIDDEN * ("--captioner" in run.train)) * (size.divide > 1), run.train,
                    TEXTS.get(run.text, "")])
    tuned = "--finetune" in own
    folder, of_data, _ = DATA[run.data][scale]
    words = [f"--data_name {folder}", resized(own, size.divide), size.train,
             size.tune if tuned else size.rate * ("sgd" not in own) + f" {size.start}"
             * run.data.endswith("tuned"), of_data]
    hardest = (re.search(r"--max_violation|--sim (kl|minkl|mahalanobis|wasserstein)", own)
               and "--no-max_violation" not in f"{own} {also}")
    if size.warmup and hardest and not tuned:
        words.append(f"--vse_mean_warmup_epochs {size.warmup}")
    return last(" ".join([*words, also]))


def last(options: str) -> str:
    """Options without repeats: the last value counts, as in argparse, and stands at the place of
    the first."""
    return " ".join({option.split()[0]: option for option in listed(options)}.values())


def listed(options: str) -> list[str]:
    """The options as a list: ["--name value", ...]."""
    return re.findall(r"--\S+(?: (?!--)\S+)*", options)


def evaluation_options(run: Run, scale: str) -> str:
    """The options of evaluate.py for a run, with {data} in place of the data path."""
    folder, _, common = DATA[run.test or run.data][scale]
    words = (
        f"{common} {run.evaluate}" if SCALES[scale].folds else run.evaluate.replace("--fold5", "")
    )
    coco, cxc = ("demo_coco", "demo_cxc") if scale == "demo" else ("coco", "cxc")
    words = words.replace("--cxc", f"--cxc --cxc_path {{data}}/{cxc}").replace(
        "--pmrp", f"--pmrp --instances {{data}}/{coco}/annotations/instances_val2014.json")
    return " ".join(f"{words} {f'--data_name {folder}' * bool(run.test)}".split())


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# ---- steps: commands and the files that they write

class Place(NamedTuple):
    """Where data and runs lie, at which of SCALES, and further options of train.py."""
    data: str
    runs: str
    scale: str
    also: str = ""

    @property
    def folder(self) -> str:
        return os.path.join(self.runs, self.scale)

    @property
    def manifest(self) -> str:
        return os.path.join(self.folder, "vg", "manifest.json")


@dataclass
class Step:
    """A command, the file that shows that it has been run, and what is missing to run it."""
    words: list
    target: str
    log: str = ""
    folder: str = ""                  # folder of the run that it trains, if any
    lacks: str = ""                   # what is missing, as a sentence for the user
    after: str = ""                   # the target has to be newer than this file

    @property
    def done(self) -> bool:
        if self.folder:
            return trained(self.folder) and not self.differs
        return os.path.exists(self.target) and not (
            self.after
            and os.path.exists(self.after)
            and os.path.getmtime(self.after) > os.path.getmtime(self.target)
        )

    @property
    def differs(self) -> list[str]:
        """The options in which the configuration of a run's folder differs from the step's options
        of today: only "config.yaml" where that file cannot be read, nothing where there is none."""
        path = os.path.join(self.folder, "config.yaml")
        if not os.path.exists(path):
            return []
        try:
            stored = dict(read_yaml(path)["options"])
        except (TypeError, KeyError, ValueError):
            return ["config.yaml"]
        try:                             # the run of --init_from may be gone by now: it is not read
            opt = TRAIN.parser().parse_args(self.words[1:])
            resolve(opt)
        except (SystemExit, InputError):
            return ["config.yaml"]
        wanted = vars(opt)
        for options in (wanted, stored):                    # paths to the same folder may differ
            options.update(
                {
                    key: os.path.basename(options[key])
                    for key in ("init_from", "word_vectors")
                    if options.get(key)
                }
            )
        by_data = {"img_enc", "img_dim", "n_regions", "txt_dim", *MAY_CHANGE}
        return [f"--{key} {value}, now {wanted[key]}" for key, value in stored.items()
                if key in wanted and key not in by_data and wanted[key] != value]

    @property
    def command(self) -> list:
        """The words of the command, with --resume or --overwrite where the run's folder holds an
        earlier start."""
        if not self.folder or not os.path.exists(os.path.join(self.folder, "config.yaml")):
            return self.words
        return [*self.words,
                "--resume" if os.path.exists(os.path.join(self.folder, "checkpoint.pt"))
                and not self.differs else "--overwrite"]

    @property
    def shown(self) -> str:
        """The command as a user types it. A comment before it tells where an old run differs from
        the row of today."""
        changed = ""
        if self.folder and self.differs:
            changed = f"# {self.folder} was trained with {'; '.join(self.differs)}\n"
        return changed + shlex.join(["python", *self.command]) if self.words else f"# {self.lacks}"


def trained(folder: str) -> bool:
    """Whether the training of a run is complete."""
    try:
        with open(os.path.join(folder, "log.txt"), encoding="utf-8") as f:
            return "done: best" in (f.readlines() or [""])[-1] and os.path.exists(
                os.path.join(folder, "model_best.pt")
            )
    except FileNotFoundError:
        return False


def preparations(run: Run, place: Place) -> list[Step]:
    """The steps that a run needs before it: demo data, extracted features, word vectors, the
    manifest of `vg`."""
    steps, data = [], place.data
    for key in dict.fromkeys([run.data, run.test or run.data]):
        folder = DATA[key][place.scale][0]
        path = os.path.join(data, folder)
        if place.scale == "demo":
            scenes = folder.split("_")[0]
            steps.append(Step(["-m", "demo", "--data_path", data, "--size", str(DEMO_SIZE),
                               "--scenes", scenes], os.path.join(data, scenes, "scenes.json")))
        elif re.search(r"_(vgg|halves|halves_fc6)_precomp$", folder):
            photos, source = "coco_halves" if "halves" in folder else folder.split("_")[
                0], folder.split("_")[0]
            lacks = missing(data, source)
            if photos != source:
                dealt = os.path.join(data, photos, "dataset_coco_halves.json")
                lacks = "" if os.path.exists(dealt) else lacks
                steps.append(Step(["-m", "paper_tables.coco_halves", "--data_path", data], dealt,
                                  lacks=lacks))
            layer = "fc7" if folder == "coco_halves_precomp" else "fc6"
            steps.append(Step(["-m", "features.extract", "images", "--data_path", data,
                               "--data_name", photos, "--output_name", folder, "--cnn_type",
                               "vgg19", "--layer", layer, *["--use_restval"] * (photos == "coco")],
                              os.path.join(path, "test_ims.npy"), lacks=lacks))
        else:
            steps.append(Step([], path, lacks=missing(data, folder)))
        if folder.endswith("_entities"):
            steps += proposals(data, folder, ["--kind", "demo"] if place.scale == "demo" else REGIONS)
        if run.text == "own":
            steps.append(Step(["-m", "features.word_vectors", "--data_path", data, "--data_name",
                               folder, "--dim", str(WORDS // SCALES[place.scale].divide), "--output",
                               f"{path}/own.txt"], f"{path}/own.txt"))
        elif run.text:
            vectors, small = os.path.join(data, VECTORS), place.scale != "full"
            if small:                         # one file for all sets, as a model fits one extractor
                vectors = os.path.join(data, f"{place.scale}_words.txt")
                steps.append(Step(["-m", "features.word_vectors", "--data_path", data,
                                   "--data_name", DATA["coco"][place.scale][0], "--dim", "48",
                                   "--output", vectors], vectors))
                if place.scale == "demo":
                    steps.insert(-1, replace(steps[0], words=[*steps[0].words[:-1], "demo"],
                                             target=os.path.join(data, "demo", "scenes.json")))
            kind = ["--kind", "hglmm",
                    *(["--n_clusters", "4"] if small else ["--ica", "--pca", "6000"])]
            steps.append(Step(["-m", "features.extract", "captions", "--data_path", data,
                               "--data_name", folder, "--name", run.text, "--word_vectors", vectors,
                               *kind * (run.text == "hglmm"),
                               *["--content_words"] * folder.endswith("_entities")], f"{path}/test_{run.text}.npy",
                              lacks="" if small else missing(data, VECTORS)))
    if run.judge.startswith(VG):
        folder = "vg" if place.scale == "full" else "demo_vg"
        lacks = missing(data, folder) if place.scale == "full" else ""
        steps.append(Step(["-m", VG + "prepare", "--vg", os.path.join(data, folder), "--output",
                           place.manifest], place.manifest, lacks=lacks))
    return steps


def proposals(data: str, folder: str, network: list[str]) -> list[Step]:
    """200 proposals a photo and 500 of the test photos, and their features."""
    steps, where = [], ["--data_path", data, "--data_name", folder]
    for count, splits in ((200, ["train", "val", "test"]), (500, ["test"])):
        name, common = f"edgeboxes{count}", ["--splits", *splits]
        steps += [Step(["-m", "features.proposals", *where, "--count", str(count), "--name", name,
                        *common], os.path.join(data, folder, f"test_{name}.npz")),
                  Step(["-m", "features.extract", "regions", *where, "--proposals", name, *network,
                        *common], os.path.join(data, folder, f"test_{name}_ims.npy"))]
    return steps


def missing(data: str, name: str) -> str:
    """A sentence on what to fetch and where to put it; empty where it is there already."""
    path = os.path.join(data, name)
    if os.path.exists(path):
        return ""
    return f"{path} is not there; put there {SOURCES.get(name, 'the data set')}, or try --demo"


def run_steps(run: Run, seed: int, place: Place) -> tuple[list[Step], str]:
    """All steps of a run in order, and the path of its results."""
    steps, options = preparations(run, place), training_options(run, place.scale, place.also)
    told = {"data": place.data, "folder": DATA[run.data][place.scale][0],
            "start": place.folder}
    # the run that it starts from is trained, not evaluated
    before = run_steps(replace(run.start, data=run.data), seed, place)[0][:-1] if run.start else []
    if before:
        options = f"{options} --init_from {{start}}/{os.path.basename(before[-1].folder)}"
    if run.tool == "cca.py":
        options = f"--data_name {told['folder']} --text {run.text} {run.train}".strip()
    sim = re.findall(r"--sim (\S+)", options)
    kind = "cca" if run.tool == "cca.py" else sim[-1] if sim else "cosine"
    name = f"{told['folder']}_{kind}_{short(' '.join(sorted(listed(options))))}_seed{seed}"
    folder = os.path.join(place.folder, name)
    log = f"{folder}.txt"                               # beside the folder, which is train.py's own
    words = [run.tool, "--data_path", place.data,
             *(word.format(**told) for word in options.split())]
    if run.tool == "cca.py":
        other = ["--test_name", DATA[run.test][place.scale][0]] if run.test else []
        output = os.path.join(folder, "_".join(["cca", *other[1:]]) + ".npz")
        steps.append(Step([*words, *other, "--output", output], output, log))
        subject = ["--embeddings", output]
    else:
        training = Step([*words, "--seed", str(seed), "--logger_name", folder], "", log, folder)
        steps += [training] if training.done else [*before, training]    # done: `start` may be gone
        output, subject = os.path.join(folder, "model_best.pt"), ["--checkpoint", folder]
    if run.judge.startswith(VG):
        name, out = run.judge[len(VG):], os.path.join(folder, "vg")
        results = os.path.join(out, f"{name}.json")
        words = ["-m", run.judge, *subject, "--manifest", place.manifest, "--cache",
                 os.path.join(place.folder, "vg", "cache"), "--output", out]
        steps.append(Step(words, results, log, after=output))
        return steps, results
    options = evaluation_options(run, place.scale)
    results = os.path.join(folder, f"results_{short(options)}.json")
    options = [word.format(**told) for word in options.split()]
    words = ["evaluate.py", *subject, "--data_path", place.data, *options, "--output", results]
    files = {"--cxc": "cxc",
             "--pmrp": "coco/annotations/instances_val2014.json"} if place.scale != "demo" else {}
    needs = [missing(place.data, file) for word, file in files.items() if word in run.evaluate]
    steps.append(Step(words, results, log, lacks=next(filter(None, needs), ""), after=output))
    return steps, results


class Stopped(Exception):
    """The user stopped the table. The command that ran has saved its state."""


def execute(step: Step) -> str:
    """Run a step. Returns one line on what went wrong, or "". The command's output goes to
    step.log. Raises Stopped."""
    if step.lacks and not os.path.exists(step.target):
        return step.lacks
    if not step.words:
        return ""
    for path in (step.log, step.target):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    received = []
    with open(step.log or os.devnull, "a", encoding="utf-8") as log:
        if step.log:
            try:                         # the command holds the lock too, beyond this process's end
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return f"another process is at work in {os.path.splitext(step.log)[0]}; wait for it, or stop it"
        start = log.tell()
        child = subprocess.Popen([sys.executable, "-u", *step.command],
                                 stdout=log if step.log else subprocess.PIPE,
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
    if child.returncode < 0:
        return f"{step.words[0]} was ended by signal {-child.returncode} ({signal.Signals(-child.returncode).name})"
    if step.log:
        with open(step.log, encoding="utf-8", errors="replace") as f:
            f.seek(start)
            said = f.read()
    return ([line for line in (said or "").splitlines() if line.strip()]
            or [f"exit status {child.returncode}"])[-1]
