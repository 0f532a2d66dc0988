"""Helpers of several test files: a small model, runs of it, processes, and how a command refuses."""

import atexit
import itertools
import json
import multiprocessing
import os
import pkgutil
import re
import signal
import sys
import tempfile
import time
from multiprocessing import forkserver

import numpy as np
import pytest
import torch

import evaluate
import train
from checkpoint import RunOwner, load_checkpoint
from data import Batch
from losses import SIMILARITIES, list_functions
from model import CNN, build_model
from vocab import END, PAD, SPECIALS, START, Vocabulary

FORMULAS = {name: SIMILARITIES[name].score for name in list_functions()}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What trainings and evaluations run on (tests/on_gpu.sh).
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
# One epoch of a small model on the demo's features. A ./vocab is not read, as commands are called in ROOT, too.
SMALL = (
    "--data_name demo_precomp --embed_size 16 --word_dim 8 --num_epochs 1 --batch_size 32 "
    f"--vocab_threshold 1 --vocab_path none --device {DEVICE} --workers 0"
).split()
# The same, but large enough to learn, and with every step in its log.
LARGER = "--embed_size 32 --word_dim 16 --batch_size 16 --learning_rate 0.005 --log_step 1"
STEPS = [*SMALL, *LARGER.split()]


# Where data and papers that are not ours may lie; CONTRIBUTING.md tells how to get them.
REAL_FOLDERS = [
    os.environ.get("REAL_DATA"),
    os.path.join(ROOT, "data"),
    os.path.join(ROOT, "..", "shared", "data"),
]
PAPER_FOLDERS = [os.environ.get("PAPERS"), os.path.join(ROOT, "..", "shared", "papers")]
REAL_SETS = {
    "f8k": "Flickr8k's photos",
    "f8k_precomp": "Flickr8k's features",
    "f8k_nets": "features of other networks",
    "clip_f8k": "embeddings of CLIP",
    "f8k_people": "Flickr8k's test photos and people's judgements",
}


def real_folder(*names: str) -> str:
    """The folder that holds real data sets of these names. Skips the test where there is none."""
    for folder in filter(None, REAL_FOLDERS):
        if all(os.path.isdir(os.path.join(folder, name)) for name in names):
            return folder
    needs = " and ".join(f"{REAL_SETS[name]} in data/{name}" for name in names)
    pytest.skip(
        f"needs {needs}, or below the folder that REAL_DATA names "
        "(CONTRIBUTING.md, Real data in the tests)"
    )


def papers_folder() -> str:
    """The folder of the papers' texts. Skips the test where there is none."""
    for folder in filter(None, PAPER_FOLDERS):
        if os.path.isdir(folder):
            return folder
    pytest.skip(
        "needs the texts of the papers in the folder that PAPERS names "
        "(CONTRIBUTING.md, Real data in the tests)"
    )


def numbers(*shape, seed=0, dtype=torch.float64) -> torch.Tensor:
    """Standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def pairs(n=6, regions=None, shortest=3) -> Batch:
    """n random pairs of features (n, 9), or regions (n, regions, 9), and captions of 30 words; two of each image."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(shortest, 9, (n,), generator=g)
    tokens = torch.randint(4, 34, (n, int(lengths.max())), generator=g)

    tokens[:, 0] = START
    tokens[torch.arange(n), lengths - 1] = END
    tokens[torch.arange(tokens.shape[1]) >= lengths[:, None]] = PAD

    shape = (n, 9)
    if regions is not None:
        shape = (n, regions, 9)
    images = torch.randn(shape, generator=g)
    return Batch(images, tokens, lengths, torch.arange(n) // 2, torch.arange(n))


def write_precomp(folder, features, captions, split="train", ids=None) -> None:
    """A split in SCAN's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{split}_ims.npy", features)
    (folder / f"{split}_caps.txt").write_text(
        "".join(f"{caption}\n" for caption in captions), encoding="utf-8"
    )
    if ids is not None:
        (folder / f"{split}_ids.txt").write_text("".join(f"{i}\n" for i in ids))


def options(*words):
    """Options of train.py: SMALL and then `words`, which come last and so count."""
    return train.parse_args([*SMALL, *map(str, words)])


def fit(*words) -> None:
    """Train the model that SMALL and `words` describe."""
    assert train.train(options(*words)) == 0


def evaluated(*words) -> dict:
    """The results of evaluate.py."""
    return evaluate.evaluate_retrieval(evaluate.parse_args(["--device", DEVICE, *map(str, words)]))


def resume(run, *words) -> int:
    """The status of a training that goes on in the folder `run`."""
    return train.train(train.parse_args(["--resume", *map(str, (run, *words))]))


def fit_steps(*words) -> None:
    """The same of STEPS."""
    fit(*STEPS, *words)


def built(*words, txt_dim=None):
    """A new model of train.py's options, with small widths unless named, on vectors or regions of 9 numbers."""
    opt = train.parse_args(["--embed_size", "12", "--word_dim", "7", *map(str, words)])
    if opt.img_enc == "auto":
        opt.img_enc = "precomp"
    opt.img_dim = 9
    opt.txt_dim = txt_dim
    torch.manual_seed(0)
    return build_model(opt, Vocabulary([*SPECIALS, *(f"w{k}" for k in range(30))]))


def built_quickly(cnn_type: str, **more) -> CNN:
    """A VGG or AlexNet of random weights, which repeat: 138 million of VGG are drawn in two seconds."""
    with torch.device("meta"):
        cnn = CNN(cnn_type, pretrained=False, **more).eval()
    cnn.to_empty(device="cpu")
    noise = numbers(2**20, dtype=torch.float32)
    with torch.no_grad():
        for weights in cnn.parameters():
            scale = (2 / weights[0].numel()) ** 0.5
            for part in weights.view(-1).split(len(noise)):
                torch.mul(noise[: len(part)], scale, out=part)
    return cnn


def moved(module):
    """Give BatchNorms scales, shifts and statistics as after some training."""
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for norm in (m for m in module.modules() if isinstance(m, torch.nn.BatchNorm1d)):
            for tensor in (norm.weight, norm.bias, norm.running_mean):
                tensor.copy_(0.5 * torch.randn(tensor.shape, generator=g))
            norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=g))
    return module


def having(module, **values):
    """A module with other values of its attributes than those of its class."""
    vars(module).update(values)
    return module


def refused(capsys, main, words, message) -> None:
    """Non-zero exit and one line on stderr that says it."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    shown = capsys.readouterr().err
    if isinstance(stop.value.code, str):  # which Python prints as it ends
        shown += stop.value.code
    assert stop.value.code not in (0, None)
    assert len(shown.strip().splitlines()) == 1, shown
    assert re.search(message, shown), shown
    assert "Traceback" not in shown


def vectors_in(path) -> dict[str, np.ndarray]:
    """{word: vector} of a file in word2vec's text form."""
    with open(path, encoding="utf-8") as f:
        return {word: np.array(values, np.float32) for word, *values in map(str.split, [*f][1:])}


def unwritable(folder) -> list[str]:
    """Paths that no file can be written to: a folder, below a file, below what has no folders."""
    (folder / "file").write_text("kept")
    return [str(folder), str(folder / "file" / "below"), "/proc/x/y"]


# Its processes are forked from one that has loaded torch and the commands, and runs no threads. An optimiser would load
# torch._dynamo in each of them, for more than a second.
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["train", "evaluate", "torch._dynamo"]
try:
    import tensorboard_logger  # noqa: F401
except Exception:  # beside protobuf from 3.21 on, where the server would end with a traceback
    pass
else:
    PRELOADED.append("tensorboard_logger")
FORKS.set_forkserver_preload(PRELOADED)


class Command:
    """A function of a module in a process of its own, with a session, outputs and signals as a command has them."""

    def __init__(self, work, *words):
        self.files = [tempfile.NamedTemporaryFile("r") for _ in "12"]
        # Tests work elsewhere, and what is not found is not loaded.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", ROOT)
            forkserver.ensure_running()
        outputs = [f.name for f in self.files]
        self.process = FORKS.Process(target=as_command, args=(work, words, outputs))
        self.process.start()
        self.pid = self.process.pid

    def ended(self, seconds: float = 200) -> tuple[int, str, str]:
        """Its status, stdout and stderr."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"no end after {seconds} s"
        return self.process.exitcode, *(open(f.name).read() for f in self.files)

    def said(self, text: str, seconds: float = 200) -> str:
        """Its stdout so far, as soon as this text stands there."""
        end = time.monotonic() + seconds
        while True:
            alive = self.process.is_alive() and time.monotonic() < end
            with open(self.files[0].name, encoding="utf-8") as f:
                if text in (out := f.read()):
                    return out
            assert alive, f"{text!r} was not said in {seconds} s"
            time.sleep(0.02)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        for file in self.files:
            file.close()


def hold_run(folder: str) -> None:
    """Own a run folder without end, as a training that has done three epochs of twelve."""
    owner = RunOwner(folder)
    owner.take()
    owner.say("epoch 3/12 done")
    print("held", flush=True)
    time.sleep(10_000)


def in_a_process(work, *words) -> tuple[int, str, str]:
    """Status and outputs of an ended `Command`. The status is negative where a signal ended it."""
    with Command(work, *words) as process:
        return process.ended()


def as_command(work, words, outputs: list) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # As Python starts where it is not ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, path in zip((1, 2), outputs):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1) for stream in (1, 2))
    torch.set_num_threads(1)
    try:
        work(*words)
    finally:
        # As Python does where it ends. Here multiprocessing would wait for children that such a function ends.
        atexit._run_exitfuncs()


def act_at(place: str, number: int, act) -> None:
    """From now on this process calls act() before the number-th call of a function, "module.Class.name"."""
    owner, name = place.rsplit(".", 1)
    owner = pkgutil.resolve_name(owner)
    calls = itertools.count(1)
    real = getattr(owner, name)

    def call(*args, **kwargs):
        if next(calls) == number:
            act()
        return real(*args, **kwargs)

    setattr(owner, name, call)


def log_of(folder, keep=None) -> list[dict]:
    """log.jsonl without its clocks; keep: whether a line is wanted."""
    found = []
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as f:
        for text in f:
            line = json.loads(text)
            if keep is None or keep(line):
                line.pop("batch_time", None)
                line.pop("data_time", None)
                found.append(line)
    return found


def same_weights(a, b, name="checkpoint.pt") -> bool:
    a, b = (load_checkpoint(str(folder), name)["model"] for folder in (a, b))
    return set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a)


def same_runs(a, b) -> bool:
    """Weights, Adam's moments, random states, the best model and the log, but for its clocks, to the bit."""
    for name in ("checkpoint.pt", "model_best.pt"):
        x = load_checkpoint(str(a), name)
        y = load_checkpoint(str(b), name)
        parts = ["model", "state"]
        if name == "checkpoint.pt":
            parts.append("rng")
            moments = x["optimizer"]["state"]
            torch.testing.assert_close(moments, y["optimizer"]["state"], rtol=0, atol=0)
        for part in parts:
            torch.testing.assert_close(x[part], y[part], rtol=0, atol=0)
    return log_of(a) == log_of(b)
