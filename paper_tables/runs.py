"""Trains and evaluates the rows of tables: data sets, sizes, and the steps of a run in order.

A run's folder is named after its options. Tables therefore share runs, and a stopped run continues
where it was. The name does not depend on --data_path, so other data need another --runs folder.
"""
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import NamedTuple

from files import SOURCES, sha256
from methods import flags

# defaults of embedding, captioner, word vectors
SIZE, HIDDEN, WORDS = "--embed_size 1024", " --dim_hidden 512", 300


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
    evaluator: str = "evaluate.py"
    judge: str = ""                   # a module of vg_experiments, in place of evaluate.py

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


def places(full: str, train: str = "", evaluate: str = "", demo: str = "demo_precomp",
           photos: str = "") -> dict:
    """Scale -> (folder below --data_path, options of train.py, options of evaluate.py)."""
    f8k = re.sub("^(demo|other)", "f8k", demo)
    return {"full": (full, train, evaluate), "demo": (demo, photos, ""), "f8k": (f8k, photos, "")}


LITE = "--cnn_type efficientnet_lite0 --crop_size 64"
DATA = {}
for name, demo, network, split in (
        ("coco", "demo", "--cnn_type resnet152 --use_restval", "--split testall"),
        ("f30k", "other", "--cnn_type resnet152", "")):
    DATA |= {name: places(name, network, demo=f"{demo}_precomp"),                   # frozen network
             f"{name} tuned": places(name, network, demo=demo, photos=LITE),
             f"{name} cells": places(name, network, demo=f"{demo}_region_precomp"),
             f"{name} regions": places(f"{name}_precomp", "", split, f"{demo}_region_precomp"),
             f"{name} fc6": places(f"{name}_vgg_precomp", demo=f"{demo}_precomp")}
# FC7 of val2014 in halves
DATA["coco halves"] = places("coco_halves_precomp", "--dev_images 0")
DATA["coco halves fc6"] = places("coco_halves_fc6_precomp", "--dev_images 0")
DATA["f30k phrases"] = places("f30k_entities", demo="demo_entities")
TEXTS = {"w2v": "--text_features w2v", "hglmm": "--text_features hglmm",
         "own": "--word_vectors {data}/{folder}/own.txt"}
VECTORS = "GoogleNews-vectors-negative300.bin"


def resized(options: str, k: int) -> str:
    """Options whose sizes of embeddings and layers are divided by k. No size falls below 4, and 0
    stays 0."""
    def smaller(found):
        return re.sub(r"[1-9]\d*", lambda n: str(max(4, int(n[0]) // k)), found[0])
    return re.sub("--(embed_size|word_dim|img_layers|txt_layers|dim_hidden|cite_layers) "
                  r"[\d-]+", smaller, options)


def training_options(run: Run, scale: str, also: str = "") -> str:
    """The options of train.py that identify a run: all but the data path, the seed and the
    folder."""
    size = SCALES[scale]
    own = " ".join([(SIZE + HIDDEN * ("--captioner" in run.train)) * (size.divide > 1), run.train,
                    TEXTS.get(run.text, "")])
    tuned = "--finetune" in own
    folder, of_data, _ = DATA[run.data][scale]
    rate = (size.tune if tuned else size.rate * ("sgd" not in own)
            + f" {size.start}" * run.data.endswith("tuned"))
    words = [f"--data_name {folder}", resized(own, size.divide), size.train, rate, of_data]
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
    """A command, the file that shows that it has been run, and what is missing to run it. Without
    words: data that have to be there."""
    words: list
    target: str
    log: str = ""
    folder: str = ""                  # folder of the run that it trains, if any
    lacks: str = ""                   # what is missing, as a sentence for the user
    after: str = ""                   # the target has to be newer than this file

    @property
    def done(self) -> bool:
        if self.folder:
            return trained(self.folder)
        return os.path.exists(self.target) and not (
            self.after
            and os.path.exists(self.after)
            and os.path.getmtime(self.after) > os.path.getmtime(self.target)
        )

    @property
    def command(self) -> list:
        """The words of the command, with --resume or --overwrite where the run's folder holds an
        earlier start, or the target is an older one."""
        if not self.folder:
            again = self.target in self.words and os.path.exists(self.target)
            return [*self.words, *["--overwrite"] * again]
        if not os.path.exists(os.path.join(self.folder, "config.yaml")):
            return self.words
        return [*self.words,
                "--resume" if os.path.exists(os.path.join(self.folder, "checkpoint.pt"))
                else "--overwrite"]

    @property
    def shown(self) -> str:
        """The command as a user types it."""
        return shlex.join(["python", *self.command])

    @property
    def listed(self) -> str:
        """What a dry run prints: the command, whether it is done, and what is missing."""
        if self.words and self.done:
            return f"# done: {self.shown}"
        needs = f"# {self.lacks}" * bool(self.lacks)
        return "  ".join(filter(None, [self.shown, needs])) if self.words else needs


def trained(folder: str) -> bool:
    """Whether the training of a run is complete."""
    try:
        with open(os.path.join(folder, "log.txt"), encoding="utf-8") as f:
            return "done: best" in (f.readlines() or [""])[-1] and os.path.exists(
                os.path.join(folder, "model_best.pt")
            )
    except FileNotFoundError:
        return False


def complete(steps: list[Step]) -> bool:
    """Whether a run has its results, those of the training of today."""
    return steps[-1].done and all(step.done for step in steps if step.folder)


def missing(data: str, name: str) -> str:
    """A sentence on what to fetch and where to put it; empty where it is there already."""
    path = os.path.join(data, name)
    if os.path.exists(path):
        return ""
    return f"{path} is not there; put there {SOURCES.get(name, 'the data set')}, or try --demo"


def spelled(command: str, **paths: str) -> list[str]:
    """The words of a command; a word in braces stands for a path, which may hold blanks."""
    return [word.format(**paths) for word in command.split()]


def tool(place: Place, command: str, target: str, lacks: str = "") -> Step:
    """A step that calls a module on the data, which the command names {data}. target: the file that
    it writes below them."""
    name, dashes, options = command.partition("--")
    return Step(spelled(f"-m {name} --data_path {{data}} {dashes}{options}", data=place.data),
                os.path.join(place.data, target), lacks=lacks)


def preparations(run: Run, place: Place) -> list[Step]:
    """The steps that a run needs before it: data, proposals, vectors, the manifest of `vg`."""
    steps = []
    for key in dict.fromkeys([run.data, run.test or run.data]):
        folder = DATA[key][place.scale][0]
        steps += data_set(folder, place)
        if folder.endswith("_entities"):
            steps += proposals(folder, place)
        if run.text:
            steps += vectors(run.text, folder, place)
    if run.judge:
        vg = "vg" if place.scale == "full" else "demo_vg"
        words = spelled("-m vg_experiments.prepare --vg {vg} --output {manifest}",
                        vg=os.path.join(place.data, vg), manifest=place.manifest)
        steps.append(Step(words, place.manifest,
                          lacks=missing(place.data, vg) if vg == "vg" else ""))
    return steps


def data_set(folder: str, place: Place) -> list[Step]:
    """The demo's scenes, features of VGG-19 where they are the data, or a folder that has to be
    there."""
    data = place.data
    name, _, kind = folder.removesuffix("_precomp").partition("_")
    if place.scale == "demo":
        return [tool(place, f"demo --size {DEMO_SIZE} --scenes {name}", f"{name}/scenes.json")]
    if kind not in ("vgg", "halves", "halves_fc6"):
        return [Step([], os.path.join(data, folder), lacks=missing(data, folder))]
    steps, photos, lacks = [], name, missing(data, name)
    if kind != "vgg":
        photos, dealt = "coco_halves", "coco_halves/dataset_coco_halves.json"
        lacks = "" if os.path.exists(os.path.join(data, dealt)) else lacks
        steps.append(tool(place, "paper_tables.coco_halves", dealt, lacks))
    layer, more = "fc7" if kind == "halves" else "fc6", "--use_restval" * (photos == "coco")
    return [*steps, tool(place, f"features.images --data_name {photos} --output_name "
                         f"{folder} --cnn_type vgg19 --layer {layer} {more}",
                         f"{folder}/test_ims.npy", lacks)]


def proposals(folder: str, place: Place) -> list[Step]:
    """200 proposals a photo and 500 of the test photos, and their features."""
    steps = []
    network = "demo" if place.scale == "demo" else "cnn --cnn_type vgg16 --layer fc7"
    for count, splits in ((200, "train val test"), (500, "test")):
        name = f"edgeboxes{count}"
        steps += [tool(place, f"phrases.proposals --data_name {folder} --count {count} --name "
                       f"{name} --splits {splits}", f"{folder}/test_{name}.npz"),
                  tool(place, f"phrases.regions --data_name {folder} --proposals {name} "
                       f"--kind {network} --splits {splits}", f"{folder}/test_{name}_ims.npy")]
    return steps


def vectors(kind: str, folder: str, place: Place) -> list[Step]:
    """Word vectors of a data set's own captions, or vectors of its captions, of this kind of TEXTS.
    """
    scale, words, before = place.scale, VECTORS, []
    if kind == "own":
        return [tool(place, f"features.word_vectors --data_name {folder} --dim "
                     f"{WORDS // SCALES[scale].divide} --output {{data}}/{folder}/own.txt",
                     f"{folder}/own.txt")]
    if scale != "full":                   # one file for all sets, as a model fits one extractor
        words, of = f"{scale}_words.txt", DATA["coco"][scale][0]
        before = [*data_set(of, place),
                  tool(place, f"features.word_vectors --data_name {of} --dim 48 --output "
                       f"{{data}}/{words}", words)]
    size = "--n_clusters 4" if before else "--ica --pca 6000"
    hglmm = f"--kind hglmm {size}" if kind == "hglmm" else ""
    content = "--content_words" * folder.endswith("_entities")
    program = "phrases.captions" if content else "features.captions"
    return [*before, tool(place, f"{program} --data_name {folder} --name {kind} "
                          f"--word_vectors {{data}}/{words} {hglmm} {content}",
                          f"{folder}/test_{kind}.npy",
                          "" if before else missing(place.data, VECTORS))]


def run_steps(run: Run, seed: int, place: Place) -> list[Step]:
    """All steps of a run in order. The target of the last one is the file of its results."""
    steps, options = preparations(run, place), training_options(run, place.scale, place.also)
    data, other = (DATA[key][place.scale][0] if key else "" for key in (run.data, run.test))
    # the run that it starts from is trained, not evaluated
    before = run_steps(run.start, seed, place)[:-1] if run.start else []
    if before:
        options = f"{options} --init_from {{start}}/{os.path.basename(before[-1].folder)}"
    kind = ["cosine", *re.findall(r"--sim (\S+)", options)][-1]
    if run.tool == "cca.py":
        kind, options = "cca", f"--data_name {data} --text {run.text} {run.train}".strip()
    name = f"{data}_{kind}_{sha256(' '.join(sorted(listed(options))))[:8]}_seed{seed}"
    folder = os.path.join(place.folder, name)
    log = f"{folder}.txt"                               # beside the folder, which is train.py's own
    paths = {"data": place.data, "folder": data, "start": place.folder, "run": folder,
             "out": os.path.join(folder, "vg"), "manifest": place.manifest,
             "cache": os.path.join(place.folder, "vg", "cache")}
    command = f"{run.tool} --data_path {{data}} {options}"
    if run.tool == "cca.py":
        paths["made"] = made = os.path.join(folder, f"cca_{other}.npz" if other else "cca.npz")
        command += f" --test_name {other}" * bool(other) + " --output {made}"
        steps.append(Step(spelled(command, **paths), made, log))
        subject = "--embeddings {made}"
    else:
        made, subject = os.path.join(folder, "model_best.pt"), "--checkpoint {run}"
        training = Step(spelled(f"{command} --seed {seed} --logger_name {{run}}", **paths), "", log,
                        folder)
        steps += [training] if training.done else [*before, training]    # done: `start` may be gone
    if run.judge:
        words = spelled(f"-m vg_experiments.{run.judge} {subject} --manifest {{manifest}} --cache "
                        "{cache} --output {out}", **paths)
        return [*steps, Step(words, os.path.join(paths["out"], f"{run.judge}.json"), log,
                             after=made)]
    options = evaluation_options(run, place.scale)
    results = os.path.join(folder, f"results_{sha256(options)[:8]}.json")
    words = spelled(f"{run.evaluator} {subject} --data_path {{data}} {options} --output {{results}}",
                    results=results, **paths)
    files = {"--cxc": "cxc", "--pmrp": "coco/annotations/instances_val2014.json"}
    needs = [missing(place.data, file) for word, file in files.items()
             if word in run.evaluate and place.scale != "demo"]
    return [*steps, Step(words, results, log, lacks=next(filter(None, needs), ""), after=made)]


# ---- running them

def make(todo: list[tuple[str, list[Step]]], dry_run: bool) -> list[str]:
    """Run what is not done of each run, (its name, its steps in order), or print the commands.
    Returns a sentence for each run that failed."""
    failed = []
    if dry_run:
        for line in dict.fromkeys(step.listed for _, steps in todo for step in steps if step.listed):
            print(line)
        return failed
    for k, (name, steps) in enumerate(todo, 1):
        where = f"[{k}/{len(todo)}] {name}"
        # nothing is trained that cannot be tested
        wrong = next((step.lacks for step in steps
                      if step.lacks and not os.path.exists(step.target)), "")
        for step in steps:
            if not wrong and not step.done:
                print(f"{where}: {step.shown}", file=sys.stderr, flush=True)
                wrong = execute(step)
        if wrong:
            failed.append(f"{name}: {wrong}")
            print(f"{where}: {wrong}", file=sys.stderr, flush=True)
    return failed


def execute(step: Step) -> str:
    """Run a step. Returns one line on what went wrong, or "". The command's output goes to
    step.log."""
    for path in filter(None, [step.log, step.target]):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with (open(step.log, "a+", encoding="utf-8", errors="replace") if step.log
          else tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")) as log:
        start = log.tell()
        child = subprocess.Popen([sys.executable, "-u", *step.command], stdout=log,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = child.wait()
        except KeyboardInterrupt:                           # train.py saves after its step
            child.terminate()
            child.wait()
            raise
        log.seek(start)
        lines = [line for line in log.read().splitlines() if line.strip()]
    if status < 0:
        return f"{step.words[0]} was ended by signal {-status} ({signal.Signals(-status).name})"
    return (lines or [f"exit status {status}"])[-1] if status else ""
