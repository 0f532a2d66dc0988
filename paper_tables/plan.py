"""The steps of a run: what makes its data, its trainings, and what evaluates the model.

A step is a command and the file that shows that it has been run. Data that cannot be made are steps
without a command, which say what has to be fetched.
"""

import contextlib
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from paper_tables.commands import CCA, Command, run_module, spell_options
from paper_tables.scales import scale_run
from utils import sha256

# Features that are extracted: the photos, and how.
EXTRACTED = {
    "coco_vgg_precomp": ("coco", {"cnn_type": "vgg19", "layer": "fc6", "use_restval": True}),
    "f30k_vgg_precomp": ("f30k", {"cnn_type": "vgg19", "layer": "fc6"}),
    "coco_halves_precomp": ("coco_halves", {"cnn_type": "alexnet", "layer": "fc7"}),
    "coco_halves_fc6_precomp": ("coco_halves", {"cnn_type": "alexnet", "layer": "fc6"}),
}
NEWS_VECTORS = "GoogleNews-vectors-negative300.bin"
COCO_INSTANCES = "coco/annotations/instances_val2014.json"
# Folder or file below --data_path -> where its real data come from (addresses of 2017 to 2026), and
# what is renamed.
DATA_SOURCES = {
    "coco": "COCO's train2014.zip (13.5 GB), val2014.zip (6.6 GB) and annotations_trainval2014.zip "
    "(0.3 GB) (cocodataset.org) and the coco_*_ids.npy of VSE++ (data.tar of "
    "github.com/fartashf/vsepp); photos in images/train2014 and images/val2014, annotations and "
    "ids in annotations/",
    "coco_precomp": "SCAN's region features of COCO, 31 GiB of train alone "
    "(github.com/kuanghuei/SCAN; Kaggle kuanghueilee/scan-features); for CxC, PMRP and ECCV also "
    "coco_test_ids.npy of VSE++'s data.tar and testall_img_ids.npy; testall_ann_ids.npy holds the "
    "first 25,000 of VSE++'s coco_test_ids.npy",
    "f30k_precomp": "SCAN's region features of Flickr30k, 8.6 GB of train "
    "(github.com/kuanghuei/SCAN; Kaggle kuanghueilee/scan-features)",
    "f30k": "Flickr30k's photos (4.4 GB, by a form of the University of Illinois) and "
    "dataset_flickr30k.json of Karpathy's caption_datasets.zip; the folder of photos renamed to "
    "images/",
    "f30k_entities": "Annotations/ and Sentences/ of annotations.zip and the splits train.txt, "
    "val.txt, test.txt (github.com/BryanPlummer/flickr30k_entities), and Flickr30k's photos in "
    "images/",
    "f8k": "Flickr8k_Dataset.zip (photos, 1 GB) and Flickr8k_text.zip, unpacked, which come by a "
    "form of the University of Illinois (forms.illinois.edu/sec/1713398)",
    "f8k_precomp": "features of Flickr8k's photos (VSE++'s data.tar, or features.images)",
    "f8k_region_precomp": "features of regions or cells of Flickr8k's photos (features.images "
    "--layer cells)",
    COCO_INSTANCES: "COCO's instances, in annotations_trainval2014.zip (cocodataset.org)",
    "cxc": "the csv files of Crisscrossed Captions "
    "(github.com/google-research-datasets/Crisscrossed-Captions)",
    "vg": "Visual Genome's image_data.json, region_descriptions.json (0.1 GB) and photos (9.7 and "
    "5.5 GB) (visualgenome.org); photos in VG_100K/ and VG_100K_2/",
    NEWS_VECTORS: "word2vec's vectors of Google News, 3.4 GiB (code.google.com/archive/p/word2vec)",
}


class Setting(NamedTuple):
    """Folders of the data and of a scale's runs, and the scale, one of TABLE_SCALES."""

    data: str
    folder: str
    scale: str


@dataclass
class Step:
    """A command, and the file that shows that it has been run."""

    words: list[str]  # empty: data that have to be there
    target: str
    log: str = ""
    run: str = ""  # folder of the run that it trains, if any
    lacks: str = ""  # of data: what to put there
    network: str = ""  # whose pretrained weights it reads, if any

    @property
    def done(self) -> bool:
        """A training that was stopped has a best model, but its log has no end."""
        if not os.path.exists(self.target):
            return False
        return not self.run or read_last_line(f"{self.run}/log.txt").startswith("done: ")

    @property
    def command(self) -> list[str]:
        """The words, with --resume or --overwrite of a training that was stopped."""
        if not self.run or not os.path.exists(f"{self.run}/config.yaml"):
            return self.words
        if os.path.exists(f"{self.run}/checkpoint.pt"):
            return [*self.words, "--resume"]
        return [*self.words, "--overwrite"]

    @property
    def line(self) -> str:
        """The command as a user types it, or the data that are missing."""
        if not self.words:
            return f"# {self.lacks}"
        return shlex.join(["python", *self.command])


def list_missing(steps: list[Step]) -> list[Step]:
    """The steps that have to be run before the last one is done."""
    if steps[-1].done:
        return []
    return [step for step in steps if not step.done]


def read_last_line(path: str) -> str:
    """The last line of a file that is not empty, "" where there is none."""
    with (
        contextlib.suppress(FileNotFoundError),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        lines = file.read().strip().splitlines()
        if lines:
            return lines[-1].strip()
    return ""


class Plan:
    """The steps of a run in order; the last one writes the results.

    A word in braces in a command stands for a path. A run's folder and results are named after
    commands with these words, so they do not depend on where the data are.
    """

    def __init__(self, run: tuple[Command, ...], seed: int, setting: Setting):
        self.data, self.folder, self.scale = setting
        self.seed = seed
        self.steps: list[Step] = []

        *trainings, judging = scale_run(run, setting.scale)
        self.prepare(trainings[-1], judging)
        model = None
        for training in trainings:
            model = self.train(training, model)
        self.judge(judging, model)

    def add(
        self, command: Command, target: str, log: str = "", run: str = "", **paths: str
    ) -> Step:
        """Add a step.

        Args:
            command: the values of its options may hold the names of `paths` in braces.
            target: file that shows that it has been run.
            log: file for its output.
            run: folder of the run that it trains, if any.
            paths: beside those of data, target and run.
        """
        paths |= {"data": self.data, "vg": f"{self.folder}/vg", "target": target, "run": run}
        words = [word.format(**paths) for word in command.words]
        log = log or f"{self.folder}/data.txt"
        step = Step(words, target, log, run, network=command.options.get("cnn_type", ""))
        self.steps.append(step)
        return step

    def need(self, name: str) -> None:
        """Ask for data, which the user has to fetch."""
        path = os.path.join(self.data, name)
        source = DATA_SOURCES.get(name, "the data set")
        lacks = f"{path} is not there; put there {source}; or try --demo"
        self.steps.append(Step([], path, lacks=lacks))

    def make(self, command: Command, file: str, needs: str = "") -> None:
        """Call a module that writes a file among the data, and needs other data until then."""
        target = os.path.join(self.data, file)
        if needs and not os.path.exists(target):
            self.need(needs)
        options = {"data_path": "{data}", **command.options}
        self.add(Command(command.program, options), target)

    # ---- data

    def prepare(self, training: Command, judging: Command) -> None:
        """Make data sets, proposals, vectors and Visual Genome's manifest, or ask for them.

        training: the last one. judging: the command that judges the model.
        """
        options = training.options
        features = options.get("text_features") or options.get("text")
        tested = judging.options.get("data_name")
        names = [options["data_name"], options.get("test_name"), tested]
        for name in dict.fromkeys(names):
            if name is None:
                continue
            self.make_data(name)
            if name.endswith("_entities"):
                self.make_proposals(name)
            if features:
                self.make_features(features, name)
            if "word_vectors" in options:
                self.learn_words(name, options["word_dim"], f"{name}/own.txt")
        if "vg_experiments" in judging.program:
            self.make_manifest()

    def make_data(self, name: str) -> None:
        """Draw the demo's scenes, extract features, or ask for a folder."""
        if self.scale == "demo":
            scenes, _, _ = name.partition("_")
            self.make(run_module("demo", size=200, scenes=scenes), f"{scenes}/scenes.json")
            return
        if name not in EXTRACTED:
            self.need(name)
            return

        photos, network = EXTRACTED[name]
        needs = photos
        if photos == "coco_halves":
            dataset = "coco_halves/dataset_coco_halves.json"
            self.make(run_module("paper_tables.coco_halves"), dataset, "coco")
            needs = ""
        extract = run_module("features.images", data_name=photos, output_name=name, **network)
        self.make(extract, f"{name}/test_ims.npy", needs)

    def make_proposals(self, name: str) -> None:
        """Make 200 proposals a photo, 500 of the test photos, and their features."""
        network = {"kind": "cnn", "cnn_type": "vgg16", "layer": "fc7"}
        if self.scale == "demo":
            network = {"kind": "demo"}
        for count, splits in ((200, ["train", "val", "test"]), (500, ["test"])):
            boxes = f"edgeboxes{count}"
            propose = run_module(
                "phrases.proposals", data_name=name, count=count, name=boxes, splits=splits
            )
            self.make(propose, f"{name}/test_{boxes}.npz")
            extract = run_module(
                "phrases.regions", data_name=name, proposals=boxes, **network, splits=splits
            )
            self.make(extract, f"{name}/test_{boxes}_ims.npy")

    def learn_words(self, name: str, dim: int | str, file: str) -> None:
        """Learn word vectors from the captions of a data set."""
        learn = run_module(
            "features.word_vectors", data_name=name, dim=dim, output=f"{{data}}/{file}"
        )
        self.make(learn, file)

    def make_features(self, kind: str, name: str) -> None:
        """Compute features of captions, "w2v" or "hglmm"."""
        file = NEWS_VECTORS
        needs = NEWS_VECTORS
        size = {"ica": True, "pca": 6000}
        if self.scale != "full":  # one file for all sets, as a model fits one extractor
            source = f"{self.scale}_precomp"
            file = f"{self.scale}_words.txt"
            needs = ""
            size = {"n_clusters": 4}
            self.make_data(source)
            self.learn_words(source, 48, file)

        package = "features"
        options = {"data_name": name, "name": kind, "word_vectors": f"{{data}}/{file}"}
        if kind == "hglmm":
            options |= {"kind": "hglmm", **size}
        if name.endswith("_entities"):
            package = "phrases"
            options["content_words"] = True
        self.make(run_module(f"{package}.captions", **options), f"{name}/test_{kind}.npy", needs)

    def make_manifest(self) -> None:
        """Prepare Visual Genome, or the demo's images in its place."""
        manifest = f"{self.folder}/vg/manifest.json"
        vg = "demo_vg"
        if self.scale == "full":
            vg = "vg"
            if not os.path.exists(manifest):
                self.need(vg)
        prepare = run_module("vg_experiments.prepare", vg=f"{{data}}/{vg}", output="{target}")
        self.add(prepare, manifest)

    # ---- the model

    def train(self, training: Command, start: Step | None) -> Step:
        """Train, from the run `start` if there is one, or fit CCA.

        The folder is named after the options.
        """
        program, options = training
        runs = ""
        if start:
            runs, name = os.path.split(start.run)
            del options["init_from"]  # RUN; it stands last
            options["init_from"] = f"{{start}}/{name}"

        data_name = options["data_name"]
        named = {"data_path": "{data}", **options}
        identity = identify_options(options)
        if program == CCA:
            test_name = options.get("test_name")
            file = f"cca_{test_name}.npz" if test_name else "cca.npz"
            folder = os.path.join(self.folder, f"{data_name}_cca_{identity}_seed{self.seed}")
            named["output"] = "{target}"
            return self.add(Command(program, named), f"{folder}/{file}", f"{folder}.txt")

        similarity = options.get("sim", "cosine")
        folder = os.path.join(self.folder, f"{data_name}_{similarity}_{identity}_seed{self.seed}")
        named |= {"seed": self.seed, "logger_name": "{run}"}
        target = f"{folder}/model_best.pt"
        command = Command(program, named)
        return self.add(command, target, f"{folder}.txt", folder, folder=data_name, start=runs)

    def judge(self, judging: Command, model: Step) -> None:
        """Evaluate a model, or run an experiment on Visual Genome."""
        program, options = judging
        if "vg_experiments" in program:
            _, experiment = program.split(".")
            options = {
                "checkpoint": "{model}",
                "manifest": "{vg}/manifest.json",
                "cache": "{vg}/cache",
                "output": "{model}/vg",
            }
            target = f"{model.run}/vg/{experiment}.json"
            self.add(Command(program, options), target, model.log, model=model.run)
            return

        if "cxc" in options:
            options["cxc_path"] = self.find_truth("cxc")
        if "pmrp" in options:
            options["instances"] = self.find_truth(COCO_INSTANCES)
        subject = "checkpoint" if model.run else "embeddings"
        named = {subject: "{model}", "data_path": "{data}", **options, "output": "{target}"}
        identity = sha256(" ".join(spell_options(options)))[:8]
        target = f"{os.path.dirname(model.target)}/results_{identity}.json"
        path = model.run or model.target
        self.add(Command(program, named), target, model.log, model=path)

    def find_truth(self, name: str) -> str:
        """Path of what people or COCO say of the test images; asks for it, or names the demo's."""
        if self.scale == "demo":
            return f"{{data}}/demo_{name}"
        self.need(name)
        return f"{{data}}/{name}"


def identify_options(options: dict) -> str:
    """Hash a training's options, in any order, without the data set that it is tested on."""
    trained = {name: value for name, value in options.items() if name != "test_name"}
    spelled = []
    for name, value in trained.items():
        spelled.append(" ".join(spell_options({name: value})))
    return sha256(" ".join(sorted(spelled)))[:8]


def plan_rows(rows: Iterable, seeds: int, setting: Setting) -> list[tuple[str, list[Step]]]:
    """(name, steps) of the runs of rows, each once, seed by seed; CCA has one seed."""
    runs = {}
    for seed in range(seeds):
        for row in rows:
            for run in row.runs:
                if seed == 0 or run[0].program != CCA:
                    typed = (*map(str, run), seed)
                    runs[typed] = (f"{row.label}, seed {seed}", run, seed)
    return [(name, Plan(run, seed, setting).steps) for name, run, seed in runs.values()]
