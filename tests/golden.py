"""Golden record: what the commands compute on the demo at 48 images, to prove that a rebuild changes no number.

    python tests/golden.py record before.json                    # about ten minutes on one core
    python tests/golden.py record after.json --repo CHECKOUT     # the same of another checkout
    python tests/golden.py compare before.json after.json        # exits with 1 where they differ
    python tests/golden.py compare before.json after.json --tolerance 1e-9

Every command is called as a user types it, in one process and one folder. The record holds the losses of 20
steps, dev rsum and the state dict's names and shapes of every method; results of evaluations with every
protocol; a confidence, the Visual Genome chain, phrases, extraction, answers of a photo index, and the commands
of all paper tables. Two records of one checkout are equal bit for bit.
"""

import argparse
import contextlib
import glob
import hashlib
import io
import json
import math
import os
import runpy
import shutil
import sys
import tempfile
import traceback
from functools import partial

os.environ["OMP_NUM_THREADS"] = "1"

SMALL = (
    "--embed_size 32 --word_dim 16 --num_epochs 2 --batch_size 24 --vocab_threshold 1 --log_step 1 "
    "--device cpu --workers 0 --data_path data --vocab_path none"
)
SIZES = {
    "dmsm": "--txt_layers 64-32 --img_layers 48 --negatives 20",
    "dmsm_bag": "--txt_layers 64-32 --img_layers 48 --negatives 20",
    "infonce_bag": "--word_dim 32",  # its words are the embedding
    "devise": "--negatives 20 --word_vectors words300.txt --word_dim 300 --embed_size 300",
}
RECORD = {}  # what has been recorded, by name
NOT_COMPARED = {
    "seconds",
    "seconds_full",
    "batch_time",
    "data_time",
    "time",
    "iteration",
    "lr",
    "kind",
    "Eit",
    "versions",
    "git_commit",
    "command",
    "sha256",
    "path",
    "notes",
    "checkpoints",
    "mtime",
    "output",
    "folder",
}


def call(command: str) -> str:
    """Standard output of a command such as "train.py --seed 1" or "-m demo --size 48". Raises where it fails."""
    program, *words = command.split()
    if program == "-m":
        sys.argv = words
    else:
        sys.argv = [os.path.join(sys.path[0], program), *words]

    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if program == "-m":
                runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code not in (0, None):
                raise RuntimeError(f"{command}: {end.code}: {err.getvalue()[-600:]}") from None
    return out.getvalue()


def plain(value):
    """A value of JSON without what differs from call to call."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items() if key not in NOT_COMPARED}
    if isinstance(value, list):
        return [plain(x) for x in value]
    return value


def read_json(path: str):
    with open(path, encoding="utf-8") as f:
        return plain(json.load(f))


def digest(array) -> list:
    """Shape, type and hash of an array's bytes."""
    return [list(array.shape), str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest()[:16]]


def arrays(path: str) -> dict:
    """Shape and hash of each array of an .npz or .npy file."""
    import numpy as np

    named = np.load(path, allow_pickle=False)
    if not path.endswith(".npz"):
        named = {"array": named}

    found = {}
    for name, x in named.items():
        if x.size > 20:
            found[name] = digest(x)
        else:
            found[name] = x.tolist()
    return found


def files(pattern: str) -> dict:
    """Arrays of all files whose paths match a pattern."""
    return {os.path.basename(path): arrays(path) for path in sorted(glob.glob(pattern))}


def training(run: str) -> dict:
    """Loss terms of each step, dev results, and the state dict's names and shapes of a run's folder."""
    import torch

    with open(f"{run}/log.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    state = torch.load(f"{run}/checkpoint.pt", weights_only=True)["model"]
    shapes = {name: list(x.shape) for name, x in state.items()}
    content = b"".join(x.contiguous().numpy().tobytes() for x in state.values())
    return {
        "steps": [plain(line) for line in lines if line["kind"] == "step"],
        "dev": [plain(line) for line in lines if line["kind"] == "validation"],
        "shapes": shapes,
        "weights": hashlib.sha256(content).hexdigest()[:16],
    }


def parse_answers(out: str):
    """What a command with --json prints."""
    return plain(json.loads(out))


def list_commands(out: str) -> list[str]:
    """The commands of a table's --dry_run."""
    programs = ("train.py", "evaluate.py", "features.", "phrases.", "cca")
    lines = []
    for line in out.splitlines():
        if any(program in line for program in programs):
            lines.append(" ".join(line.split()))
    return lines


def keep(name: str, command: str, read=None, parse=None) -> None:
    """Call a command and record what came of it, or the end of its error.

    Args:
        name: of the record
        command: as `call` takes it
        read: a function that reads what the command wrote
        parse: in place of `read`, a function of the command's standard output
    """
    try:
        out = call(command)
        if read is not None:
            RECORD[name] = read()
        elif parse is not None:
            RECORD[name] = parse(out)
        else:
            RECORD[name] = "ok"
    except Exception as error:
        RECORD[name] = f"failed: {str(error)[-300:]}"
        if not isinstance(error, RuntimeError):
            traceback.print_exc()
    print(f"{name}: {str(RECORD[name])[:100]}", flush=True)


def keep_training(name: str, words: str, program: str = "train.py") -> None:
    """Train a small model in runs/NAME, and record its losses and weights."""
    run = f"runs/{name}"
    command = f"{program} {SMALL} {words} --logger_name {run}"
    keep(f"train/{name}", command, partial(training, run))


def write_inputs() -> None:
    """Demo data, word vectors, weights of a CNN, ECCV's files, and embeddings of 5,000 images."""
    import numpy as np
    import torch

    call("-m demo --data_path data --size 48")
    captions = {
        split: open(f"data/demo_precomp/{split}_caps.txt", encoding="utf-8").read()
        for split in ("train", "dev", "test")
    }

    words = sorted(set(" ".join(captions.values()).replace("\n", " ").split()))
    rng = np.random.default_rng(0)
    with open("words300.txt", "w", encoding="utf-8") as f:
        for word in words:
            numbers = [f"{x:.5f}" for x in rng.standard_normal(300) / 10]
            f.write(" ".join([word, *numbers]) + "\n")

    os.makedirs("eccv")
    positives = json.load(open("data/demo_precomp/test_positives.json", encoding="utf-8"))
    for side, name in (("i2t", "image_to_caption"), ("t2i", "caption_to_image")):
        with open(f"eccv/eccv_{name}.json", "w", encoding="utf-8") as f:
            json.dump(positives[side], f)

    with open("questions.txt", "w", encoding="utf-8") as f:
        f.write("\n".join(captions["test"].splitlines()[:100:5]) + "\n")

    images = rng.standard_normal((5000, 8)).astype(np.float32)
    own = np.repeat(np.arange(5000), 5)
    texts = images[own] + rng.standard_normal((25000, 8)).astype(np.float32)
    np.savez("many.npz", image_mean=images, caption_mean=texts, caption_image=own)

    from images import import_torchvision

    torch.manual_seed(0)
    torch.save(import_torchvision().models.resnet18(weights=None).state_dict(), "resnet18.pth")


def record_features() -> None:
    """Features of captions, of photos and of regions."""
    keep(
        "features/words",
        "-m features.word_vectors --data_path data --data_name demo_precomp --dim 48 "
        "--output data/words.txt",
    )

    for name, program in (
        ("demo_precomp", "features.captions"),
        ("demo_entities", "phrases.captions"),
    ):
        for kind, more in (
            ("hglmm", "--n_clusters 4 --word_vectors data/words.txt"),
            ("minilm", ""),
            ("tfidf", ""),
            ("mean", "--word_vectors data/words.txt"),
        ):
            data = f"--data_path data --data_name {name}"
            keep(
                f"features/{name}/{kind}",
                f"-m {program} {data} --kind {kind} --name {kind} {more}",
                partial(files, f"data/{name}/*_{kind}.npy"),
            )

    keep(
        "features/regions",
        "-m phrases.proposals --data_path data --data_name demo_entities --count 50",
    )
    keep(
        "features/regions/ims",
        "-m phrases.regions --data_path data --data_name demo_entities "
        "--proposals edgeboxes50 --kind demo --workers 0",
        partial(files, "data/demo_entities/*ims.npy"),
    )

    keep(
        "features/photos",
        "-m features.images --data_path data --photos data/demo_coco/images/val2014 "
        "--cnn_type demo --output_name photos --workers 0",
        partial(files, "data/photos/*.npy"),
    )


def record_training() -> None:
    """Every method that stays, 20 steps; photos through a CNN; a resumed run equals an uninterrupted one."""
    from methods import METHODS, PRETRAINED

    for name in sorted(METHODS):
        needs = METHODS[name].needs
        if needs == PRETRAINED:
            continue  # tests/test_pretrained.py has them
        data = "demo_precomp"
        if "regions" in needs:
            data = "demo_region_precomp"
        features = ""
        if "caption" in needs:
            features = "--text_features hglmm"
        keep_training(name, f"--method {name} --data_name {data} {SIZES.get(name, '')} {features}")

    for name, words in {
        "unpaired": "--method jwae_mh --supervised_fraction 0.5",
        "masked": "--sim wasserstein --mask_same_image",
        "bag": "--loss infonce --txt_enc sum --mask_same_image",
        "minilm": "--loss infonce --no-mask_same_image --text_features minilm",
        "anchor": "--loss infonce --no-mask_same_image --text_features minilm --text_anchor 0.7",
        "volume": "--loss volume --freeze_means --init_from runs/minilm --head spherical_one "
        "--var_layers 16 --text_features minilm",
        "seed1": "--method gcie_wasserstein --seed 1",
        "seed1_vse": "--method vse++ --seed 1",
        "learned": "--sim mls --mask_same_image --num_epochs 12 --learning_rate 0.005 "
        "--log_step 100",
    }.items():
        keep_training(name, f"--data_name demo_precomp {words}")

    photos = (
        "--data_name demo --cnn_type resnet18 --cnn_weights resnet18.pth --crop_size 64 "
        "--num_epochs 1"
    )
    keep_training("photos", photos)
    keep_training("finetuned", f"{photos} --finetune --freeze_bn --init_from runs/photos")
    keep_training("resumed", "--method mls --data_name demo_precomp --num_epochs 1")
    resume = "train.py --resume runs/resumed --num_epochs 2"
    keep("train/resumed", resume, partial(training, "runs/resumed"))

    keep_training(
        "phrases",
        "--data_name demo_entities --method jwae_mh_cite --cite_layers 32-16 --img_layers 32 "
        "--txt_layers 32 --text_features hglmm --regions edgeboxes50_ims",
        "-m phrases.train",
    )


def record_evaluation() -> None:
    """Protocols on a point, a Gaussian, an ensemble, a file of embeddings and scores; a comparison; a confidence."""
    protocols = (
        "--cxc --cxc_path data/demo_cxc "
        "--pmrp --instances data/demo_coco/annotations/instances_val2014.json "
        "--eccv --eccv_path eccv --positives data/demo_precomp/test_positives.json "
    )
    common = "--device cpu --workers 0"

    def evaluate(name: str, words: str, read_more=None) -> None:
        """Keep the results of evaluate.py; those of other commands, {"results": {...}}, are parts of them."""

        def read_results():
            more = {}
            if read_more is not None:
                more = read_more()
            results = read_json(f"{name}.json") | more.pop("results", {})
            return {"results": results, **more}

        command = f"evaluate.py {words} {common} --output {name}.json"
        keep(f"evaluate/{name}", command, read_results)

    def confidence(words: str) -> dict:
        call(f"-m confidence {words} {common} --output confidence.json --overwrite")
        stored = read_json("confidence.json")
        results = {name: stored[name] for name in ("confidence", "sets") if name in stored}
        return {"results": results}

    def volume() -> dict:
        """Its scores are too weak for a temperature, so that the variances alone are looked at."""
        from confidence.__main__ import parse_args
        from confidence.inputs import open_items

        words = (
            "runs/minilm --variances volume --export volume.npz --output confidence.json "
            f"--overwrite {common}"
        )
        variances = plain(open_items(parse_args(words.split()), ())[0].variances)
        call(
            "evaluate.py --embeddings volume.npz --data_path data --data_name demo_precomp "
            f"--uncertainty {common} --output uncertainty.json --overwrite"
        )
        return {
            "results": {
                "uncertainty": read_json("uncertainty.json")["uncertainty"],
                "variances": {name: [value] for name, value in variances.items()},
            }
        }

    evaluate(
        "point",
        f"--checkpoint runs/vse++ {protocols} --export point.npz",
        partial(arrays, "point.npz"),
    )
    evaluate(
        "gaussian",
        f"--checkpoint runs/gcie_wasserstein {protocols} --uncertainty --export gaussian.npz",
        partial(arrays, "gaussian.npz"),
    )

    for split in ("dev", "test"):
        evaluate(
            f"learned_{split}",
            f"--checkpoint runs/learned --split {split} --export learned_{split}.npz",
            partial(arrays, f"learned_{split}.npz"),
        )

    evaluate(
        "mls",
        f"--checkpoint runs/learned {protocols} --uncertainty --bank train",
        partial(confidence, "runs/learned --sets 0.1"),
    )

    evaluate("ensemble", f"--checkpoint runs/vse++ runs/gcie_wasserstein {protocols}")
    evaluate("scan", "--checkpoint runs/scan_t2i")
    evaluate("pcme", "--checkpoint runs/pcme --uncertainty")
    evaluate(
        "embeddings",
        f"--embeddings learned_test.npz --data_path data --data_name demo_precomp {protocols}"
        "--uncertainty",
        partial(confidence, "learned_test.npz --dev learned_dev.npz"),
    )

    evaluate("folds", "--embeddings many.npz --sim cosine --fold5")
    evaluate("volume", "--checkpoint runs/minilm", volume)
    evaluate("compare", "--compare runs/vse++,runs/seed1_vse runs/gcie_wasserstein,runs/seed1")

    def read_phrases():
        return {"results": read_json("phrases.json")}

    keep(
        "evaluate/phrases",
        "-m phrases.evaluate --checkpoint runs/phrases --device cpu --output phrases.json",
        read_phrases,
    )
    keep(
        "cca",
        "-m methods.cca --data_path data --data_name demo_precomp --text tfidf --dim 32 "
        "--output cca.npz",
        partial(arrays, "cca.npz"),
    )


def record_extras() -> None:
    """Visual Genome's chain, photo indexes, and the commands of all tables."""
    runs = "--checkpoint runs/gcie_wasserstein runs/learned"
    keep(
        "vg/prepare",
        "-m vg_experiments.prepare --vg data/demo_vg --output vg/manifest.json",
        partial(read_json, "vg/manifest.json"),
    )

    for name in ("uncertainty", "selection"):
        keep(
            f"vg/{name}",
            f"-m vg_experiments.{name} {runs} --manifest vg/manifest.json --vg data/demo_vg "
            "--output vg --cache vg/cache --device cpu",
            partial(read_json, f"vg/{name}.json"),
        )

    keep(
        "photos/index",
        "-m photos index --checkpoint runs/learned --data_path data --images photos --output index "
        "--device cpu",
    )
    keep(
        "photos/query",
        "-m photos query index --captions questions.txt --top 10 --json --device cpu",
        parse=parse_answers,
    )
    keep("photos/shipped", "-m photos data/demo_coco/images/val2014 --index_only --output shipped")
    keep(
        "photos/shipped/query",
        "-m photos query shipped --captions questions.txt --top 10 --json",
        parse=parse_answers,
    )

    from paper_tables.__main__ import load_tables

    for name, table in load_tables().items():
        scales = ["", "--demo"]
        if table.f8k:
            scales.append("--f8k")
        for scale in scales:
            command = f"-m paper_tables.{name} --dry_run {scale}"
            keep(f"tables/{name}{scale}", command, parse=list_commands)


def make_record(target: str, repo: str) -> None:
    target = os.path.abspath(target)
    folder = tempfile.mkdtemp()
    sys.path.insert(0, os.path.abspath(repo))
    os.chdir(folder)
    import torch

    torch.set_num_threads(1)

    for part in (write_inputs, record_features, record_training, record_evaluation, record_extras):
        part()

    with open(target, "w", encoding="utf-8") as f:
        json.dump(RECORD, f, indent=0, sort_keys=True)
    os.chdir("/")
    shutil.rmtree(folder)
    failed = [name for name, value in RECORD.items() if str(value).startswith("failed")]
    print(f"{len(RECORD)} records in {target}, {len(failed)} failed: {' '.join(failed)}")


def differences(a, b, tolerance: float, path: str = ""):
    """Paths at which two records differ, each with both values."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if key not in a:
                yield f"{path}/{key}", "absent", "there"
            elif key not in b:
                yield f"{path}/{key}", "there", "absent"
            else:
                yield from differences(a[key], b[key], tolerance, f"{path}/{key}")
    elif isinstance(a, list) and isinstance(b, list):
        yield from differences(dict(enumerate(a)), dict(enumerate(b)), tolerance, path)
    elif a != b:
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        if not (numbers and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)):
            yield path, str(a)[:100], str(b)[:100]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("command", choices=["record", "compare"])
    p.add_argument("files", nargs="+", help="of record: the file to write; of compare: two records")
    p.add_argument(
        "--repo",
        default=f"{os.path.dirname(os.path.abspath(__file__))}/..",
        help="checkout to record",
    )
    p.add_argument("--tolerance", type=float, default=0.0)
    opt = p.parse_args()
    if opt.command == "record":
        return make_record(opt.files[0], opt.repo)

    with open(opt.files[0], encoding="utf-8") as f, open(opt.files[1], encoding="utf-8") as g:
        found = list(differences(json.load(f), json.load(g), opt.tolerance))

    for path, x, y in found:
        print(f"{path}: {x} | {y}")
    print(f"{len(found)} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
