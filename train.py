"""Train a joint embedding of images and captions as points or Gaussians.

    python train.py --data_name coco_precomp --sim wasserstein

Writes runs/NAME/: config.yaml, vocab.json, log.txt, log.jsonl, tensorboard events, checkpoint.pt
(to --resume from) and model_best.pt (the best on dev, for evaluate.py). The same from a
script:

    model, vocab = train.fit(options(sim="wasserstein", data_name="coco_precomp"))

`train` opens the run folder, `run_epochs` is the loop over epochs and batches, and `Training.learn`
is one step. Training holds model, data and optimizers; programs for other data have a subclass.

On two GPUs: torchrun --nproc_per_node 2 train.py ...
"""

if __name__ == "__main__":
    import utils

    utils.start("loading torch")

import atexit
import contextlib
import datetime
import json
import math
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter

import numpy as np
import torch
import yaml
from tqdm import tqdm

import metrics
import utils
from checkpoint import (
    MADE_OF_RUN,
    NOISE,
    RunOwner,
    describe_owner,
    find_training,
    is_weight,
    load_checkpoint,
    load_model,
    load_weights,
    resumed_options,
)
from data import Split, check_extractors, read_split
from losses import LOSSES, PairLoss, count_gaussian_sides, unit
from methods import METHODS, OURS, pretrained, unpaired
from model import TEXT_ENCODERS, VSE, build_model, encode, prepare_images
from options import (
    NOT_STORED,
    Options,
    check_fits,
    fit_to_data,
    parse_words,
    read_config,
    resolve,
    training_parser,
)
from utils import (
    FORMAT,
    InputError,
    atomic,
    compute_in_float32,
    make_folder,
    read_lines,
    read_yaml,
    refusing,
    save_array,
    torch_device,
    writable,
)
from vocab import Vocabulary

CRITIC_RATE = 5e-5  # learning rate of jWAE's critic (jwae 5.1)
STEP_MINUTES = 10  # of waiting for another process in a step, after which all stop
VALIDATION_HOURS = 4  # of waiting for the first process, which validates
BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")  # of CPUs; the last are ARM's
STEPS_AHEAD = 20  # steps between two readings of the losses from a GPU, each of which waits for it
COLLAPSED_COSINE = 0.98  # a side with a larger mean cosine of two items is nearly one point
RANK = int(os.environ.get("RANK", 0))  # of this process among those of torchrun
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def main(argv=None) -> None:
    def work() -> int:
        return train(parse_args(argv))

    sys.exit(utils.run("train.py", work))


def parse_args(argv=None, p: utils.Arguments | None = None) -> Options:
    """Return the resolved options of the command line. Exits on wrong ones.

    What comes later wins: the options of --method, those of --config, the command line.
    """
    if argv is None:
        argv = sys.argv[1:]
    argv = list(argv)
    if p is None:
        p = training_parser()

    opt = p.parse_args(argv)
    if opt.methods:
        print_methods()
        p.exit()

    try:
        words = argv
        if opt.config:
            words = [*read_config(opt.config, p), *argv]
        opt = parse_words(p, words)
        if opt.resume is not None:
            opt = resumed_options(p, opt, words)
        resolve(opt)
    except InputError as error:
        message = str(error)
        if opt.method and METHODS[opt.method].needs and opt.method not in message:
            needs = METHODS[opt.method].needs_in_words
            message += f" (--method {opt.method} needs {needs})"
        p.error(message)
    return opt


def print_methods() -> None:
    """Print the published methods, then our own recipes, each with its options and its needs."""
    for heading, ours in (("Published methods", False), ("Our own recipes", True)):
        print(f"{heading}:\n")
        for name, method in METHODS.items():
            if method.paper.startswith(OURS) != ours:
                continue
            print(f"{name}: {method.title} ({method.paper})")
            indent = "    "
            flags = textwrap.fill(
                method.flags,
                width=100,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
            print(flags)
            if method.needs:
                print(f"{indent}needs {method.needs_in_words}")
        print()


# ---- the training


def fit(opt) -> tuple[VSE, Vocabulary]:
    """Train with resolved options (options.options).

    Returns the best model on dev, in eval mode on the CPU, and its vocabulary. Raises InputError.
    """
    if WORLD_SIZE > 1:  # only one of the processes has the best model
        raise InputError("train.fit trains in one process; with torchrun, run train.py")
    status = train(opt)
    if status != 0:
        raise InputError(
            f"the training ended with status {status}; look at {opt.logger_name}/log.txt"
        )
    stored = load_checkpoint(opt.logger_name)
    model, vocab, _ = load_model(stored, opt.logger_name)
    return model, vocab


def train(opt, kind: type["Training"] | None = None) -> int:
    """Train with parsed options and return the exit status.

    0; 1 if no model came out; 128 + signal after Ctrl-C or SIGTERM. kind: a subclass of Training
    for other data.
    """
    compute_in_float32()
    if WORLD_SIZE > 1:
        device = join_processes(opt)
    else:
        device = torch_device(opt.device)
    owner = RunOwner(opt.logger_name)
    try:
        return train_in(owner, opt, kind or Training, device)
    finally:
        owner.release()


def train_in(owner: RunOwner, opt, kind: type["Training"], device: torch.device) -> int:
    """Train in a folder that `owner` takes; see `train`."""
    start = read_start(owner, opt)
    run = kind(opt, start, device)
    run.owner = owner
    if opt.resume is None:
        check_folder(opt)

    facts = run.describe(start)
    if opt.dry_run:
        settings = yaml.safe_dump(vars(opt), sort_keys=True)
        print(f"{settings}{facts}\ndry run: nothing was written")
        return 0

    for term in run.model.terms.values():
        if isinstance(term, PairLoss):
            term.prepare(run.model, run.splits, run.tokens, device)

    with delayed_signals() as received, contextlib.closing(run):
        run.open_folder()
        run.say(f"{facts}\nrun folder {opt.logger_name}")
        run_epochs(run, received)
        if received:
            run.save()
            run.say(
                f"stopped at {run.describe_position()}; continue with: {sys.executable} "
                f"{run.program} --resume {opt.logger_name}"
            )
            return 128 + received[0]
        owner.check_folder()
        return report_end(run)


def name_start(opt) -> str:
    """Return the path of the run that a training starts from, for messages."""
    if opt.resume is None and opt.init_from:
        return opt.init_from
    return opt.logger_name


def read_start(owner: RunOwner, opt) -> dict | None:
    """Read the checkpoint of --resume or --init_from that a training starts from, or None.

    Raises InputError where another training has the folder.
    """
    folder = opt.logger_name
    if opt.resume is not None:
        if not opt.dry_run and os.path.isdir(folder):
            owner.take()  # before the checkpoint is read, which another may replace
        return load_checkpoint(opt.resume, "checkpoint.pt")

    if find_training(folder):
        raise InputError(describe_owner(folder))
    if opt.init_from:
        return load_checkpoint(opt.init_from, vocab=opt.vocab)
    return None


def report_end(run: "Training") -> int:
    """Say how a finished training ended; return its exit status, 1 without a best model."""
    opt = run.opt
    state = run.state
    folder = opt.logger_name
    if state["epoch"] < opt.num_epochs:
        run.say(
            f"no better model on dev in {opt.patience} epochs, so epoch {state['epoch']} was the "
            "last"
        )
    if RANK == 0 and not os.path.isfile(os.path.join(folder, "model_best.pt")):
        run.say(
            f"done, but {folder} holds no model_best.pt: dev rsum was 0 after every epoch; look at "
            f"log.txt and the data (python {run.data_check})"
        )
        return 1

    by = ""
    if opt.select != "rsum":
        by = f" by --select {opt.select}"
    evaluation = run.program.replace("train", "evaluate")
    run.say(
        f"done: dev rsum {state['best_rsum']:.1f} of the best model{by}, {state['rsum']:.1f} after "
        "the last epoch; "
        f"evaluate with: {sys.executable} {evaluation} --checkpoint {folder}"
    )
    return 0


def check_folder(opt) -> None:
    """Raise InputError where a new run would replace what it should not.

    These are files that are not a run's, a run without --overwrite, and a file that the new run was
    started from.
    """
    folder = opt.logger_name
    if not os.path.isdir(folder):
        return
    files = sorted(name for name in os.listdir(folder) if name[0] != ".")
    if not files:
        return

    if "checkpoint.pt" not in files and "model_best.pt" not in files:
        raise InputError(
            f"{folder} holds {files[0]} and is not a run that train.py made; name a folder of its "
            "own with --logger_name"
        )
    if not opt.overwrite:
        raise InputError(
            f"{folder} already holds a run; continue with --resume, replace it with --overwrite, "
            "or name another folder with --logger_name"
        )

    inputs = identify_inputs(opt)
    for name in files:
        path = os.path.join(folder, name)
        is_removed = name == "checkpoint.pt" or MADE_OF_RUN.fullmatch(name)
        if is_removed and utils.identify_file(path) in inputs:
            raise InputError(
                f"{path} is an input, and --overwrite would remove it; name another folder with "
                "--logger_name"
            )


def identify_inputs(opt) -> set:
    """Identify the files that a new run is started from, as utils.identify_file does."""
    paths = [opt.init_from, opt.noise_file, opt.word_vectors, opt.cnn_weights, opt.vocab]
    if opt.init_from and os.path.isdir(opt.init_from):
        paths.append(os.path.join(opt.init_from, "model_best.pt"))
    return {utils.identify_file(path) for path in paths if path}


def run_epochs(run: "Training", received: list[int]) -> None:
    """Train epoch by epoch, with a validation and a checkpoint after each.

    received: signals that ask the training to stop.
    """
    opt = run.opt
    state = run.state
    run.model.train()
    patience = opt.patience or math.inf  # epochs without a better model
    on_cpu = run.device.type == "cpu"
    while state["epoch"] < opt.num_epochs and state["waited"] < patience and not received:
        pace = Pace()
        for batch in batches_of_epoch(run):
            pace.add_wait()
            run.learn(batch.to(run.device))

            is_last = state["step"] == run.steps
            logs = state["step"] % opt.log_step == 0 or is_last
            validates = state["iteration"] % opt.val_step == 0 and not is_last
            if on_cpu or logs or validates or len(run.unread) == STEPS_AHEAD:
                terms = run.read_terms()
            pace.add_step(len(batch.lengths))

            if logs:
                run.log_step(terms, pace)
                pace = Pace()
            if validates:
                run.validate()
                pace = Pace()
            if WORLD_SIZE > 1:
                share_signals(received, run.device)
            if received:
                run.read_terms()
                return

        state["epoch"] += 1
        state["step"] = 0
        run.validate()


def batches_of_epoch(run: "Training"):
    """Iterate over the batches of an epoch that this process learns from, with a bar."""
    epoch = run.state["epoch"]
    first = RANK * run.share
    order = run.order(epoch)[first : first + run.share]
    return tqdm(
        run.batches(order),
        f"epoch {epoch + 1}/{run.opt.num_epochs}",
        run.steps,
        leave=False,
        initial=run.state["step"],
        disable=RANK > 0 or None,
    )


class Pace:
    """How long the steps since the last line of the log took, and waited for their data."""

    def __init__(self):
        self.start = time.perf_counter()
        self.before = self.start
        self.steps = 0
        self.pairs = 0
        self.waited = 0.0  # seconds

    def add_wait(self) -> None:
        """Count the time until the data of a step are there."""
        self.waited += time.perf_counter() - self.before

    def add_step(self, pairs: int) -> None:
        """Count a step that has been taken."""
        self.before = time.perf_counter()
        self.steps += 1
        self.pairs += pairs


@contextlib.contextmanager
def delayed_signals():
    """Record Ctrl-C and SIGTERM in a list within a context, and do nothing else.

    The training finishes its step and saves, so --resume continues exactly. A second Ctrl-C ends it
    at once.
    """
    received = []

    def receive(number: int, frame) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                handlers[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# ---- several processes: torchrun --nproc_per_node 2 train.py. Each learns from its own share of
# the pairs, with the negatives of its own batches, and gradients are averaged; rank 0 validates and
# writes.


def join_processes(opt) -> torch.device:
    """Join the other processes of torchrun; return the device of this one.

    All but the first write into a temporary folder and say nothing.
    """
    device = torch_device(opt.device)
    if device.type == "mps":
        raise InputError("--device mps is one GPU; train on it without torchrun")
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    limit = datetime.timedelta(minutes=STEP_MINUTES)
    torch.distributed.init_process_group(backend, timeout=limit)
    atexit.register(torch.distributed.destroy_process_group)

    if RANK == 0:
        print(
            f"{WORLD_SIZE} processes; all of them stop if one does not respond for "
            f"{STEP_MINUTES:g} minutes in a step, or {VALIDATION_HOURS:g} hours in a validation",
            flush=True,
        )
    else:
        opt.logger_name = tempfile.mkdtemp()
        sys.stdout = open(os.devnull, "w")
        atexit.register(shutil.rmtree, opt.logger_name, ignore_errors=True)
    return device


def share_signals(received: list[int], device: torch.device) -> None:
    """Add to `received` a signal that another process has received."""
    number = torch.tensor(max(received, default=0), device=device)
    torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
    if int(number) > 0:
        received.append(int(number))


# ---- optimizers


def build_optimizers(opt, model) -> dict[str, torch.optim.Optimizer]:
    """Build the "optimizer" and, for jWAE's critic, an Adam, "critic_optimizer"."""
    parameters = []
    for name, p in model.named_parameters():
        if p.requires_grad and not name.startswith("critic."):
            parameters.append(p)

    rate = opt.learning_rate
    groups = [{"params": parameters, "initial_lr": rate}]
    if opt.weight_decay:  # of matrices, not of biases, norms and single numbers
        matrices = [p for p in parameters if p.ndim > 1]
        others = [p for p in parameters if p.ndim <= 1]
        groups = [
            {"params": matrices, "initial_lr": rate, "weight_decay": opt.weight_decay},
            {"params": others, "initial_lr": rate, "weight_decay": 0.0},
        ]

    groups = pretrained.split_rates(groups, pretrained.find_backbones(model), opt.backbone_lr)

    if opt.optimizer == "sgd":
        kind = torch.optim.SGD
    elif opt.weight_decay:
        kind = torch.optim.AdamW
    else:
        kind = torch.optim.Adam
    optimizers = {"optimizer": kind(groups, lr=rate, fused=True)}

    if model.critic:
        groups = [{"params": list(model.critic.parameters()), "initial_lr": CRITIC_RATE}]
        optimizers["critic_optimizer"] = torch.optim.Adam(
            groups, lr=CRITIC_RATE, betas=(0.5, 0.999), fused=True
        )
    return optimizers


def load_optimizer(optimizer: torch.optim.Optimizer, stored: dict) -> None:
    """Load what an optimizer remembers of its weights, in their order. Its rates stay.

    Raises ValueError where that does not fit the weights, which torch's fused steps do not notice.
    """
    weights = []
    for group in optimizer.param_groups:
        weights += group["params"]
    memory = stored["state"]
    if not isinstance(memory, dict) or not set(memory) <= set(range(len(weights))):
        raise ValueError("an optimizer remembers other weights")

    for number, entry in memory.items():
        check_memory(optimizer, entry, weights[number])
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": memory, "param_groups": groups})


def check_memory(optimizer: torch.optim.Optimizer, entry: dict, weight: torch.Tensor) -> None:
    """Raise ValueError where what an optimizer remembers of a weight does not fit it."""
    names = {"step", "exp_avg", "exp_avg_sq"}  # of Adam; SGD without momentum remembers nothing
    if isinstance(optimizer, torch.optim.SGD):
        names = set()
        entry = {name: x for name, x in entry.items() if x is not None}
    if set(entry) != names:
        raise ValueError(f"an optimizer remembers {utils.spell_value(list(entry))} of a weight")

    for name, x in entry.items():
        shape = weight.shape
        if name == "step":
            shape = ()
        if not is_weight(x) or x.shape != shape or not x.is_floating_point():
            raise ValueError(
                f"{name} of an optimizer does not fit a weight of {tuple(weight.shape)}"
            )
        if name != "exp_avg" and (x < 0).any():
            raise ValueError(f"{name} of an optimizer is negative")


def has_bf16_units(device: torch.device) -> bool:
    """True if a device multiplies numbers of 16 bits itself.

    A CPU without such units emulates them: a step takes 3 to 12 times as long as in float32.
    """
    if device.type != "cpu":
        return True
    if not hasattr(torch.cpu, "get_capabilities"):  # since torch 2.12
        return False
    units = torch.cpu.get_capabilities()
    return any(units.get(name) for name in BF16_UNITS)


def without_extractors(data: dict) -> dict:
    """Leave the names of extractors out of fingerprints.

    They name those of features that the run does not read, too.
    """
    contents = {}
    for name, value in data.items():
        if name == "dev":
            contents[name] = without_extractors(value)
        elif name != "extractors":
            contents[name] = value
    return contents


class Training:
    """Model, data, optimizers, position in the training (`state`), folder and log.

    A subclass for other data defines read_data, build_model, order, batches and rank_dev.
    """

    program = "train.py"
    data_check = "data.py check"
    owner = None  # of the run folder, a RunOwner
    # files of the log
    numbers = None
    text = None
    events = None
    build_model = staticmethod(build_model)

    def __init__(self, opt, start: dict | None, device: torch.device):
        """start: checkpoint of the first weights; --resume continues that training."""
        self.opt = opt
        self.device = device
        self.state = {
            "epoch": 0,
            "step": 0,
            "iteration": 0,
            "rsum": 0.0,
            "best_rsum": 0.0,
            "best_hbr": 0.0,
            "best_r1": -1.0,
            "waited": 0,
            "warned": 0,
            "processes": WORLD_SIZE,
        }

        print(f"reading {os.path.join(opt.data_path, opt.data_name)}", flush=True)
        self.read_data(start)
        self.share = len(self.order(0))  # items of an epoch, for each process
        if WORLD_SIZE > 1:
            self.share = self.share // WORLD_SIZE // 2 * 2
        self.steps = -(-self.share // self.batch_size)  # of an epoch

        print("building the model", flush=True)
        torch.manual_seed(opt.seed)
        self.model = self.build_model(opt, self.vocab, pretrained=start is None).to(device)
        if start:
            path = name_start(opt)
            fresh = load_weights(self.model, start, path, new_training=opt.resume is None)
            if fresh:
                print(f"not in {path}, so newly initialized: {', '.join(fresh)}")

        self.backbones = pretrained.find_backbones(self.model)
        self.optimizers = build_optimizers(opt, self.model)
        self.parameters = []
        for group in self.optimizers["optimizer"].param_groups:
            self.parameters += group["params"]
        if not self.parameters:
            raise InputError(
                "nothing of this model learns: its embeddings are the given vectors, and its "
                "scores have no scale; give --loss infonce, --sim mls, or layers"
            )
        if opt.resume is not None:
            self.restore(start)

        self.computes_bf16 = opt.amp == "bf16" and has_bf16_units(device)
        # position, names and values of terms of the steps whose values were not waited for
        self.unread: list[tuple[str, list[str], torch.Tensor]] = []
        self.network = self.model
        if WORLD_SIZE > 1:
            # a backbone has no gradients while it is frozen, and parts that nothing reads; nor have
            # variances that no score reads
            has_unused = bool(opt.freeze_epochs or opt.image_model or opt.text_model)
            gaussian = (opt.image_head, opt.text_head) != ("point", "point")
            has_unused = has_unused or gaussian and not count_gaussian_sides(opt)
            self.network = torch.nn.parallel.DistributedDataParallel(
                self.model, find_unused_parameters=has_unused
            )
            limit = datetime.timedelta(hours=VALIDATION_HOURS)
            self.waiting = torch.distributed.new_group(timeout=limit)
            noise_seed = opt.seed + RANK + WORLD_SIZE * self.state["iteration"]  # of its own
            torch.manual_seed(noise_seed)

    # ---- data

    def read_data(self, start: dict | None) -> None:
        """Read the splits, settle what depends on them, and describe them in `sizes`.

        start: a checkpoint whose words are taken. Raises InputError where data, options and
        checkpoint do not fit.
        """
        opt = self.opt
        splits = []
        for name in ("train", "dev"):
            split = read_split(
                opt.data_path,
                opt.data_name,
                name,
                use_restval=opt.use_restval,
                dev_images=opt.dev_images,
                text_features=opt.text_features,
            )
            splits.append(split.require_sound())
        train, dev = splits
        if opt.noise_ratio or opt.noise_file:
            train.change_pairs(opt.noise_ratio, opt.noise_seed, opt.noise_file)
        self.settle_by_data(train, dev, start)

        self.batch_size = opt.batch_size
        self.pairs = np.arange(len(train.captions))  # (m,) captions
        if opt.supervised_fraction < 1:
            self.pairs = unpaired.choose_pairs(train, opt.supervised_fraction, opt.seed)
            tokens = self.tokens["train"]
            self.unpaired = unpaired.build_unpaired(opt, train, tokens, self.pairs)

        chance = metrics.chance(dev.caption_image, len(dev.images))["rsum"]
        self.sizes = (
            f"{len(self.pairs):,} training pairs of {len(train.images):,} images, "
            f"{len(dev.images):,} dev images (rsum by chance {chance:.1f})"
        )

    def settle_by_data(self, train: Split, dev: Split, start: dict | None) -> None:
        """Settle options and vocabulary by the splits; InputError where they do not fit."""
        opt = self.opt
        fit_to_data(opt, train.images, train.text)
        check_fits(opt, dev.images, dev.text, "the model")
        prepare_images(opt, train)
        prepare_images(opt, dev)
        if start:
            extractors = start.get("data", {}).get("extractors")
            check_extractors(extractors, train, opt.text_features, name_start(opt))

        self.splits = {"train": train, "dev": dev}
        self.unpaired = None
        self.fingerprints = {**train.fingerprint(), "dev": dev.fingerprint()}
        self.vocab = self.build_vocabulary(start)
        self.tokens = {name: split.encode(self.vocab) for name, split in self.splits.items()}
        train.note_doubts()
        dev.note_doubts(train)

    def build_vocabulary(self, start: dict | None) -> Vocabulary:
        """Take the words of the checkpoint, else of DATA_NAME_vocab.json, else of the captions."""
        opt = self.opt
        kind = TEXT_ENCODERS[opt.txt_enc].vocabulary
        if start:
            return kind(start["vocabulary"])
        if kind.reads_captions:
            return kind.from_options(opt)

        path = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
        if os.path.isfile(path):
            print(f"using the vocabulary in {path}", flush=True)
            return kind.load(path)

        counts = Counter()
        for name in opt.vocab_splits.split(","):
            if name == "train":
                split = self.splits["train"]
            else:
                split = self.read_words_of(name)
            counts += split.words.count()
        return kind.from_counts(counts, opt.vocab_threshold)

    def read_words_of(self, name: str) -> Split:
        """Read a split of --vocab_splits, all of it, whose words are taken."""
        return read_split(self.opt.data_path, self.opt.data_name, name, dev_images=0)

    def order(self, epoch: int) -> np.ndarray:
        """Order the captions of an epoch: `pairs`, shuffled."""
        rng = np.random.default_rng([self.opt.seed, epoch])
        caption_image = self.splits["train"].caption_image[self.pairs]
        return self.pairs[LOSSES[self.opt.loss].order_pairs(caption_image, rng)]

    def batches(self, order: np.ndarray):
        """Yield the batches of an epoch in this order that are still to come."""
        opt = self.opt
        state = self.state
        batches = self.splits["train"].batches(
            self.tokens["train"],
            order,
            self.batch_size,
            workers=opt.workers,
            seed=(opt.seed, state["epoch"]),
            skip=state["step"],
            crop_size=opt.crop_size,
            pin=self.device.type == "cuda",
        )
        iteration = state["iteration"]  # the state may lag behind
        for batch in batches:
            more = None
            if self.unpaired is not None:
                more = self.unpaired.batch(iteration * WORLD_SIZE + RANK)
            yield batch._replace(unpaired=more)
            iteration += 1

    # ---- model

    def step(self, batch) -> dict[str, float]:
        """Take one step of every optimizer; return the loss, a sum of terms.

        Raises InputError with the name of a term that is not finite.
        """
        self.learn(batch)
        return self.read_terms()

    def learn(self, batch) -> None:
        """Take one step of every optimizer, and do not wait for the device.

        jWAE's critic has a learning rate of its own (jwae 5.1); its terms share no gradient with
        the others.
        """
        opt = self.opt
        state = self.state
        self.set_learning_rate()
        pretrained.thaw_backbones(self.backbones, state["epoch"] >= opt.freeze_epochs)
        if self.model.objective is not None:
            self.model.objective.start_epoch(opt, state["epoch"])

        device_type = batch.tokens.device.type
        with torch.autocast(device_type, torch.bfloat16, enabled=self.computes_bf16):
            terms = self.network(batch)
            loss = sum(terms.values())
        values = torch.stack(list(terms.values())).detach()

        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        max_norm = opt.grad_clip or torch.inf
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm)
        for optimizer in self.optimizers.values():
            optimizer.step()

        state["step"] += 1
        state["iteration"] += 1
        position = f"epoch {state['epoch'] + 1} step {state['step']}"
        values = torch.cat([values, norm[None]])
        self.unread.append((position, [*terms, "gradient"], values))

    def set_learning_rate(self) -> None:
        """Give the optimizer, but not that of the critic, the learning rate of the next step.

        It rises in a line over --warmup epochs, then falls tenfold every --lr_update epochs, or as
        half a cosine to 0 at the end.
        """
        opt = self.opt
        epoch = self.state["epoch"]
        done = epoch + self.state["step"] / self.steps  # epochs, with their fractions
        if done < opt.warmup:
            factor = (done + 1 / self.steps) / (opt.warmup + 1 / self.steps)
        elif opt.schedule == "cosine":
            angle = math.pi * (done - opt.warmup) / (opt.num_epochs - opt.warmup)
            factor = 0.5 + 0.5 * math.cos(angle)
        else:
            factor = 0.1 ** (epoch // opt.lr_update)
        for group in self.optimizers["optimizer"].param_groups:
            group["lr"] = group["initial_lr"] * factor

    def read_terms(self) -> dict[str, float]:
        """Wait for the device; return the terms of the last step.

        Raises InputError with the name and position of the first term that is not finite. The steps
        since then were taken in vain, but nothing of them is saved.
        """
        terms = {}
        for position, names, values in self.unread:
            terms = dict(zip(names, values.tolist()))
            for name, value in terms.items():
                if not math.isfinite(value):
                    raise InputError(self.explain_divergence(name, value, position))
        self.unread.clear()
        terms.pop("gradient", None)
        return terms

    def explain_divergence(self, name: str, value: float, position: str) -> str:
        """Return the sentence for a term, or a norm of the gradient, that is not finite."""
        what = f"the term '{name}' of the loss"
        if name == "gradient":
            what = "the norm of the gradient"
        ways = "start a new run with a lower --learning_rate"
        if self.computes_bf16:
            ways = f"continue from the last checkpoint with --resume and --amp off, or {ways}"
        return f"{what} became {value} at {position}; {ways}"

    # ---- validation and checkpoints

    def rank_dev(self) -> tuple[dict[str, float], str]:
        """Compute recalls of the dev split, by VSE++'s names and in words.

        r1 is image to text, r1i text to image; cos_* the mean cosine of all pairs of images, and of
        captions, 1 where all are one point; with --select hbr, hbr the harmonic mean of the best
        ranks of images (DMSM).
        """
        opt = self.opt
        dev = self.splits["dev"]
        tokens = self.tokens["dev"]
        images, captions = encode(self.model, dev, tokens, self.device, workers=opt.workers)
        members = [(self.model.similarity, images, captions)]
        i2t, t2i = metrics.rank_members(members, dev.caption_image)
        i2t = i2t[i2t >= 0]  # of images that have captions
        result = metrics.both_directions(metrics.summary(i2t), metrics.summary(t2i))

        scalars = {}
        for side, ending in (("i2t", ""), ("t2i", "i")):
            for name in ("r1", "r5", "r10", "medr", "meanr"):
                scalars[name + ending] = result[side][name]
        scalars["rsum"] = result["rsum"]
        scalars["cos_images"] = mean_cosine(images.mean)
        scalars["cos_captions"] = mean_cosine(captions.mean)
        if opt.select == "hbr":
            scalars["hbr"] = metrics.best_rank_means(i2t)["hbr"]

        sides = []
        for name, side in (("image to text", "i2t"), ("text to image", "t2i")):
            form = "{}: R@1 {r1:.1f} R@5 {r5:.1f} R@10 {r10:.1f} medr {medr:.0f}"
            sides.append(form.format(name, **result[side]))
        return scalars, " | ".join(sides)

    def validate(self) -> None:
        """Rank dev and write a checkpoint; at the end of an epoch, choose the best model.

        With several processes the first does so, and the others take its state.
        """
        if RANK == 0:
            self.validate_and_save()
        if WORLD_SIZE > 1:
            states = [self.state]
            torch.distributed.broadcast_object_list(states, group=self.waiting)
            self.state.update(states[0])

    def validate_and_save(self) -> None:
        """Do what `validate` says, in the first process."""
        state = self.state
        self.model.eval()
        scalars, text = self.rank_dev()
        self.model.train()

        self.say(f"{self.describe_position()}: dev rsum {scalars['rsum']:.1f} | {text}")
        epoch = state["epoch"]
        if state["step"] > 0:
            epoch += 1
        self.record("validation", scalars, epoch=epoch, step=state["step"] or self.steps)

        state["rsum"] = scalars["rsum"]
        if state["step"] == 0:
            self.choose_best(scalars)
        self.save()
        if self.owner:
            self.owner.say(self.describe_position())

    def choose_best(self, scalars: dict[str, float]) -> None:
        """Keep the model of this epoch if it is the best so far by --select.

        Warn if the embeddings of a side are nearly one point.
        """
        state = self.state
        select = self.opt.select
        values = {
            "best_rsum": scalars["rsum"],
            "best_hbr": scalars.get("hbr", 0.0),
            "best_r1": scalars["r1"] + scalars.get("r1i", 0.0),
        }
        value = values[f"best_{select}"]
        best = state[f"best_{select}"]

        if select == "hbr":  # a rank: lower is better, 0 is none yet
            better = value < best or not best
        elif self.model.frozen:  # the ranking cannot change, so keep the latest variances
            better = value >= best
        else:
            better = value > best

        state["waited"] += 1
        if better:
            state["waited"] = 0
            state.update(values)
            self.save("model_best.pt")
        self.warn_of_collapse(scalars)

    def warn_of_collapse(self, scalars: dict[str, float]) -> None:
        """Say once, after the first epoch in which it is so, which sides are nearly one point.

        And say what helps.
        """
        opt = self.opt
        collapsed = []
        for side in ("images", "captions"):
            cosine = scalars.get(f"cos_{side}", 0.0)
            if cosine > COLLAPSED_COSINE:
                collapsed.append(f"{side} (mean cosine of two: {cosine:.3f})")
        if not collapsed or self.state["warned"]:
            return

        self.state["warned"] = 1
        advice = LOSSES[opt.loss].advise(opt)
        self.say(
            f"warning: the embeddings of {' and of '.join(collapsed)} are collapsing to one point. "
            f"If dev rsum stays low, {advice}"
        )

    def save(self, name: str = "checkpoint.pt") -> None:
        """Replace a checkpoint; checkpoint.pt holds what only --resume needs, too.

        Raises InputError where it cannot be written; the previous one is intact then.
        """
        folder = self.opt.logger_name
        options = {key: value for key, value in vars(self.opt).items() if key not in NOT_STORED}
        stored = {
            "format": FORMAT,
            "options": options,
            "vocabulary": self.vocab.words,
            "state": dict(self.state),
            "data": self.fingerprints,
            "model": self.model.state_dict(),
        }
        if name == "checkpoint.pt":
            for part, optimizer in self.optimizers.items():
                stored[part] = optimizer.state_dict()
            stored["rng"] = torch.get_rng_state()
            stored["cuda_rng"] = []
            if self.device.type == "cuda":
                stored["cuda_rng"].append(torch.cuda.get_rng_state(self.device))

        path = os.path.join(folder, name)
        if self.owner:
            self.owner.check_folder()
        try:
            with atomic(path, "wb") as f:
                torch.save(stored, f)
        except (OSError, RuntimeError) as error:
            raise InputError(describe_failed_save(error, path)) from error

    def restore(self, resumed: dict) -> None:
        """Continue a checkpoint. Raises InputError where it does not fit."""
        opt = self.opt
        what = (
            f"the checkpoint of {opt.resume} lacks what a training continues from, or holds "
            "something else"
        )
        with refusing(what, "start a new run from its weights with --init_from"):
            self.check_same_data(resumed["data"])
            for name, optimizer in self.optimizers.items():
                load_optimizer(optimizer, resumed[name])
            torch.set_rng_state(resumed["rng"])
            if self.device.type == "cuda" and resumed["cuda_rng"]:
                torch.cuda.set_rng_state(resumed["cuda_rng"][0], self.device)
            self.state.update(resumed["state"])

        # a step's share of the pairs depends on the number of processes
        before = self.state["processes"]
        self.state["processes"] = WORLD_SIZE
        if before != WORLD_SIZE and self.state["step"]:
            epoch = self.state["epoch"] + 1
            print(
                f"epoch {epoch} is begun again, since the number of processes changed from "
                f"{before} to {WORLD_SIZE}"
            )
            self.state["iteration"] -= self.state["step"]  # their lines of the log are dropped
            self.state["step"] = 0

        if not os.path.isfile(os.path.join(opt.resume, "model_best.pt")):
            self.state.update(best_rsum=0.0, best_hbr=0.0, best_r1=-1.0)

    def check_same_data(self, stored: dict) -> None:
        """Raise InputError where the data differ from the stored fingerprints of a checkpoint."""
        opt = self.opt
        before = without_extractors(stored)
        for name, contents in without_extractors(self.fingerprints).items():
            if before.get(name, contents) != contents:
                raise InputError(
                    f"the training data in {os.path.join(opt.data_path, opt.data_name)} differ "
                    f"from the data of the run in {opt.resume}; give its --data_path, or start a "
                    "new run with --init_from"
                )

    # ---- folder and log

    def describe(self, start: dict | None) -> str:
        """Describe model and data, and the notes of the checkpoint `start`, for the log."""
        opt = self.opt
        objective = LOSSES[opt.loss].describe(opt)
        if self.model.mask_same_image:
            objective += ", captions of one image are not negatives"
        weights = sum(p.numel() for p in self.parameters)

        lines = [
            f"{opt.data_name}: {self.sizes}, {len(self.vocab):,} words",
            f"{opt.sim}, image head {opt.image_head}, text head {opt.text_head}, {objective}, "
            f"embed_size {opt.embed_size}, {weights:,} trainable parameters, {self.device}, "
            f"seed {opt.seed}",
        ]
        for note in self.list_notes(start):
            lines.append(f"note: {note}")
        return "\n".join(lines)

    def list_notes(self, start: dict | None) -> list[str]:
        """List the notes of the checkpoint `start`, of the data, and on --amp."""
        notes = []
        if start:
            notes += start.get("notes", ())
        notes += self.splits["train"].notes
        notes += self.splits["dev"].notes
        if self.opt.resume is None and self.opt.init_from:
            for name in ("word_vectors", "cnn_weights"):
                path = getattr(self.opt, name)
                if path:
                    notes.append(f"--{name} {path} is not read: --init_from has these weights")
        if self.opt.amp == "bf16" and not self.computes_bf16:
            notes.append(
                "--amp bf16: this CPU has no bf16 units, so bf16 would be slower than float32; the "
                "networks compute in float32"
            )
        return notes

    def log_step(self, terms: dict[str, float], pace: Pace) -> None:
        """Write the loss of the last step to the log, and the speed since the line before."""
        opt = self.opt
        state = self.state
        seconds = (pace.before - pace.start) / pace.steps
        pairs_per_second = pace.pairs / (pace.before - pace.start)
        steps_left = self.steps * (opt.num_epochs - state["epoch"]) - state["step"]
        minutes_left = steps_left * seconds / 60
        loss = sum(terms.values())
        parts = {}
        if len(terms) > 1:
            parts = terms

        line = f"{self.describe_position()}: loss {loss:.4f}"
        for name, value in parts.items():
            line += f", {name} {value:.4g}"
        self.say(f"{line}, {pairs_per_second:,.0f} pairs/s, {minutes_left:.1f} min left")

        scalars = {
            "epoch": state["epoch"] + 1,
            "step": state["step"],
            "Eit": state["iteration"],
            "Le": loss,
            "lr": self.optimizers["optimizer"].param_groups[0]["lr"],
            "batch_time": seconds,
            "data_time": pace.waited / pace.steps,
            **parts,
        }
        self.record("step", scalars)

    def describe_position(self) -> str:
        """Say where the training is, for a line of the log; epochs and steps count from 1."""
        epoch = self.state["epoch"]
        step = self.state["step"]
        epochs = self.opt.num_epochs
        if step:
            return f"epoch {epoch + 1}/{epochs} step {step}/{self.steps}"
        if epoch:
            return f"epoch {epoch}/{epochs} done"
        return "the start"

    def open_folder(self) -> None:
        """Take the folder, describe the run in it, and open its log.

        A new run first writes a checkpoint, so that it can always continue; then it removes a run
        that it replaces. Raises InputError where another training has the folder, or has left a run
        in it meanwhile.
        """
        opt = self.opt
        folder = opt.logger_name
        make_folder(folder)
        if self.owner:
            self.owner.take()
        if opt.resume is None:
            check_folder(opt)
            self.save()
            for name in os.listdir(folder):
                if MADE_OF_RUN.fullmatch(name):
                    os.remove(os.path.join(folder, name))

        self.write_description(os.path.join(folder, "config.yaml"))
        self.vocab.save(os.path.join(folder, "vocab.json"))
        if opt.noise_ratio or opt.noise_file:
            caption_image = self.splits["train"].caption_image  # (M,), NCR's form
            save_array(os.path.join(folder, NOISE), caption_image)

        self.open_log(os.path.join(folder, "log.jsonl"), os.path.join(folder, "log.txt"))
        self.events = Events(folder)
        if self.events.note:
            self.say(f"note: {self.events.note}")

    def write_description(self, path: str) -> None:
        """Write config.yaml: how the run was started, on what data, and its options.

        A resumed run keeps the former.
        """
        description = None
        if self.opt.resume is not None:
            description = read_description(path)
        if description is None:
            description = {
                "command": shlex.join(["python", *self.program.split(), *sys.argv[1:]]),
                "git_commit": utils.find_commit() or "unknown",
                "versions": {
                    "python": sys.version.split()[0],
                    "torch": str(torch.__version__),
                    "numpy": np.__version__,
                },
                "data": {name: split.fingerprint() for name, split in self.splits.items()},
                "asked": self.opt.asked,
            }
        description = {**description, "options": vars(self.opt)}
        with atomic(path) as f:
            yaml.safe_dump(description, f, sort_keys=False)

    def open_log(self, numbers_path: str, text_path: str) -> None:
        """Open log.jsonl and log.txt.

        Truncated lines of log.jsonl are dropped, and lines that a resumed run will write again.
        """
        lines = []
        if os.path.isfile(numbers_path):
            for line in read_lines(numbers_path):
                if read_iteration(line) <= self.state["iteration"]:
                    lines.append(f"{line}\n")

        writable(numbers_path)
        with atomic(numbers_path) as f:
            f.writelines(lines)
        self.numbers = open(numbers_path, "a", encoding="utf-8")
        self.text = open(writable(text_path), "a", encoding="utf-8", errors="backslashreplace")

    def say(self, line: str) -> None:
        """Write a line to the terminal and to log.txt."""
        if sys.stdout is not None:
            with contextlib.suppress(OSError):  # the terminal is gone, the run goes on
                tqdm.write(line)
                sys.stdout.flush()
        append_line(self.text, line)

    def record(self, kind: str, scalars: dict, **fields) -> None:
        """Write numbers of a "step" or "validation" to log.jsonl and tensorboard."""
        iteration = self.state["iteration"]
        line = {"iteration": iteration, "kind": kind, **fields, **scalars}
        append_line(self.numbers, json.dumps(line))
        for name, value in scalars.items():
            self.events.add(name, value, iteration)

    def close(self) -> None:
        """Close the files of the log.

        What a full disk does not take is lost in silence, as it was said before.
        """
        for file in (self.numbers, self.text, self.events):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


def mean_cosine(means: torch.Tensor) -> float:
    """Average the cosines of all pairs of vectors (N, D), each with itself among them."""
    return float(unit(means).mean(0).square().sum())


def describe_failed_save(error: Exception, path: str) -> str:
    """Say why a checkpoint could not be saved, and what to do."""
    fault = f"{path} could not be saved ({utils.reason(error)})"
    fix = "make room"
    if getattr(error, "errno", None) in utils.FULL:
        fault = utils.describe_full_disk(path)
    elif isinstance(error, PermissionError):
        fix = "change the permissions of the folder"

    if os.path.isfile(os.path.join(os.path.dirname(path), "checkpoint.pt")):
        return f"{fault}; the previous checkpoint is intact: {fix}, then continue with --resume"
    return f"{fault}; {fix} and start again"


def append_line(file, line: str) -> None:
    """Write a line to an open text file at once. An OSError names the file."""
    try:
        file.write(f"{line}\n")
        file.flush()
    except OSError as error:
        error.filename = file.name
        raise


def read_iteration(line: str) -> float:
    """Read the iteration of a line of log.jsonl.

    Infinity where a full disk cut it, or anybody changed it.
    """
    with contextlib.suppress(ValueError, RecursionError):
        entry = json.loads(line)
        if isinstance(entry, dict) and type(entry.get("iteration")) in (int, float):
            return entry["iteration"]
    return math.inf


def read_description(path: str) -> dict | None:
    """Read the config.yaml of a run that is resumed; None where it is lost or broken."""
    if not os.path.isfile(path):
        return None
    description = read_yaml(path)
    if not isinstance(description, dict):
        return None
    return description


class Events:
    """Numbers for tensorboard in a run folder, by the same names and steps whoever writes them.

    tensorboard-logger does. It cannot be imported beside protobuf from 3.21 on, which TensorFlow
    and Colab bring; there `EventFile` takes its place, and without either a `note` says that there
    are none.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.note = ""
        self.add_scalar = None
        self.writer = None
        try:
            from tensorboard_logger import Logger
        except Exception:  # TypeError of protobuf, ImportError of what it needs
            self.open_event_file()
        else:
            logger = Logger(folder, flush_secs=5)
            self.add_scalar = logger.log_value
            self.writer = logger._writer  # its destructor would close it with a traceback

    def open_event_file(self) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except Exception as error:
            self.note = (
                "no events for tensorboard are written, since neither tensorboard-logger nor "
                f"tensorboard can be imported ({utils.reason(error)}); log.jsonl holds the same "
                "numbers"
            )
        else:
            self.writer = EventFile(self.folder, Event, RecordWriter)
            self.add_scalar = self.writer.add_scalar

    def add(self, name: str, value: float, step: int) -> None:
        if self.add_scalar is None:
            return
        try:
            self.add_scalar(name, value, step)
        except OSError as error:
            error.filename = error.filename or os.path.join(self.folder, "events.out.tfevents")
            raise

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class EventFile:
    """A file of tensorboard events, by classes of the package tensorboard.

    torch's SummaryWriter would write it in a thread that opens the file by its name again and
    again: a full disk would print a traceback, and the events of a renamed run would go to
    whatever folder has its old name.

    Args:
        event_class: `Event` of tensorboard.compat.proto.event_pb2.
        writer_class: `RecordWriter` of tensorboard.summary.writer.record_writer.
    """

    def __init__(self, folder: str, event_class, writer_class):
        seconds = int(time.time())
        name = f"events.out.tfevents.{seconds}.{socket.gethostname()}.{os.getpid()}"
        self.event_class = event_class
        self.records = writer_class(open(os.path.join(folder, name), "wb"))
        self.write(file_version="brain.Event:2")

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.write(step=step, summary={"value": [{"tag": name, "simple_value": value}]})

    def write(self, **fields) -> None:
        event = self.event_class(wall_time=time.time(), **fields)
        self.records.write(event.SerializeToString())
        self.records.flush()

    def close(self) -> None:
        self.records.close()


if __name__ == "__main__":
    main()
