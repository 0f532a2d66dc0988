"""Train a joint embedding of images and captions as points or Gaussians.

    python train.py --data_name coco_precomp --sim wasserstein

Writes runs/NAME/: config.yaml, vocab.json, log.txt, log.jsonl, tensorboard events, checkpoint.pt (to --resume from) and
model_best.pt (by rsum on the dev split, for evaluate.py). The same from a script:

    model, vocab = train.fit(options(sim="wasserstein", data_name="coco_precomp"))

On two GPUs: torchrun --nproc_per_node 2 train.py ...
"""
if __name__ == "__main__":
    import cli
    cli.start("loading torch")

import atexit
import contextlib
import datetime
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
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

import cli
import metrics
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
from cli import InputError, check, torch_device
from data import Split, check_extractors, read_split
from evaluation.encoding import encode
from files import FORMAT, atomic, make_folder, read_lines, read_yaml, refusing, save_array, writable
from losses import LOSSES, PairLoss, unit
from methods import METHODS, OURS, unpaired
from model import TEXT_ENCODERS, VSE, build_model
from options import NOT_STORED, Options, check_fits, fit_to_data, parse_words, read_config, resolve, training_parser
from vocab import Vocabulary

CRITIC_RATE = 5e-5    # learning rate of jWAE's critic (jwae 5.1)
STEP_MINUTES = 10     # that a process waits for another in a step; one that stopped, or whose machine hangs, ends all
VALIDATION_HOURS = 4  # that the others wait while the first process validates
BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")            # of CPUs; the last are ARM's
STEPS_AHEAD = 20      # steps after which the losses are read from a GPU, which is waited for then
COLLAPSED = 0.98      # mean cosine of two items from which on a side is nearly one point
RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))   # torchrun's


def main(argv=None) -> None:
    sys.exit(cli.run("train.py", lambda: train(parse_args(argv))))


def parse_args(argv=None, p: cli.Arguments | None = None) -> Options:
    """Return the resolved options of the command line. Exits on wrong ones.
    What comes later wins: the options of --method, those of --config, the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    p = p or training_parser()
    opt = p.parse_args(argv)
    if opt.methods:
        print_methods()
        p.exit()
    try:
        words = [*(read_config(opt.config, p) if opt.config else ()), *argv]
        opt = parse_words(p, words)
        if opt.resume is not None:
            opt = resumed_options(p, opt, words)
        resolve(opt)
    except InputError as error:
        message = str(error)
        if opt.method and METHODS[opt.method].needs and opt.method not in message:
            message += f" (--method {opt.method} needs {METHODS[opt.method].needs_in_words})"
        p.error(message)
    return opt


def print_methods() -> None:
    """Print the methods of papers, then our own recipes, each with its options and what it needs."""
    for heading, ours in (("Methods of papers", False), ("Recipes of ours", True)):
        print(f"{heading}:\n")
        for name, method in METHODS.items():
            if method.paper.startswith(OURS) != ours:
                continue
            print(f"{name}: {method.title} ({method.paper})")
            print(textwrap.fill(method.flags, 100, initial_indent="    ", subsequent_indent="    ",
                                break_on_hyphens=False))
            if method.needs:
                print(f"    needs {method.needs_in_words}")
        print()


# ---- the training

def fit(opt) -> tuple[VSE, Vocabulary]:
    """Train with resolved options (options.options).
    Returns the best model on dev, in eval mode on the CPU, and its vocabulary. Raises InputError."""
    status = train(opt)
    check(status == 0, f"the training ended with status {status}; look at {opt.logger_name}/log.txt")
    model, vocab, _ = load_model(load_checkpoint(opt.logger_name), opt.logger_name)
    return model, vocab


def train(opt, kind: type["Training"] | None = None) -> int:
    """Train with parsed options and return the exit status.
    0; 1 if no model came out; 128 + signal after Ctrl-C or SIGTERM. kind: a subclass of Training for other data."""
    device = join_processes(opt) if WORLD > 1 else torch_device(opt.device)
    owner = RunOwner(opt.logger_name)
    try:
        return train_in(owner, opt, kind or Training, device)
    finally:
        owner.release()


def train_in(owner: RunOwner, opt, kind: type["Training"], device: torch.device) -> int:
    """Train in a folder that `owner` takes; see `train`."""
    folder = opt.logger_name
    start = None
    if opt.resume is not None:
        if not opt.dry_run and os.path.isdir(folder):
            owner.take()                                    # before the checkpoint is read, which another may replace
        start = load_checkpoint(opt.resume, "checkpoint.pt")
    else:
        if find_training(folder):
            raise InputError(describe_owner(folder))
        if opt.init_from:
            start = load_checkpoint(opt.init_from, vocab=opt.vocab)
    run = kind(opt, start, device)
    run.owner = owner
    if opt.resume is None:
        check_folder(opt)
    facts = run.describe(start)
    if opt.dry_run:
        print(yaml.safe_dump(vars(opt), sort_keys=True) + facts + "\ndry run: nothing was written")
        return 0
    for term in run.model.terms.values():
        if isinstance(term, PairLoss):
            term.prepare(run.model, run.splits, run.tokens, device)
    with delayed_signals() as received, contextlib.closing(run):
        run.open_folder()
        run.say(f"{facts}\nrun folder {folder}")
        run_epochs(run, received)
        if received:
            run.save()
            run.say(f"stopped at {run.place()}; continue with: {sys.executable} {run.program} --resume {folder}")
            return 128 + received[0]
        owner.check_folder()
        state = run.state
        if state["epoch"] < opt.num_epochs:
            run.say(f"no better model on dev in {opt.patience} epochs, so epoch {state['epoch']} was the last")
        if not RANK and not os.path.isfile(os.path.join(folder, "model_best.pt")):
            run.say(f"done, but {folder} holds no model_best.pt: dev rsum was 0 after every epoch; look at log.txt and "
                    f"the data (python {run.data_check})")
            return 1
        run.say(f"done: best dev rsum {state['best_rsum']:.1f}, of the last epoch {state['rsum']:.1f}; evaluate with: "
                f"{sys.executable} {run.program.replace('train', 'evaluate')} --checkpoint {folder}")
        return 0


def check_folder(opt) -> None:
    """Raise InputError where a new run would replace files that are not a run's, or a run without --overwrite, or a
    file that it was started from."""
    folder = opt.logger_name
    if not os.path.isdir(folder):
        return
    files = sorted(name for name in os.listdir(folder) if name[0] != ".")
    if not files:
        return
    if not {"checkpoint.pt", "model_best.pt"} & {*files}:
        raise InputError(f"{folder} holds {files[0]} and is not a run that train.py made; name a folder of its own "
                         "with --logger_name")
    if not opt.overwrite:
        raise InputError(f"{folder} already holds a run; continue with --resume, replace it with --overwrite, or name "
                         "another folder with --logger_name")
    started_from = [path for path in (opt.init_from, opt.noise_file, opt.word_vectors, opt.cnn_weights, opt.vocab)
                    if path]
    if opt.init_from and os.path.isdir(opt.init_from):
        started_from.append(os.path.join(opt.init_from, "model_best.pt"))
    read = {cli.identify_file(path) for path in started_from}
    for name in files:
        path = os.path.join(folder, name)
        if (name == "checkpoint.pt" or MADE_OF_RUN.fullmatch(name)) and cli.identify_file(path) in read:
            raise InputError(f"{path} is an input, and --overwrite would remove it; name another folder with "
                             "--logger_name")


def run_epochs(run: "Training", received: list[int]) -> None:
    """Train epoch by epoch, with a validation and a checkpoint after each.
    received: signals that ask the training to stop."""
    opt, state = run.opt, run.state
    run.model.train()
    patience = opt.patience or math.inf     # epochs without a better model
    on_cpu = run.device.type == "cpu"
    while state["epoch"] < opt.num_epochs and state["waited"] < patience and not received:
        pace = Pace()
        order = run.order(state["epoch"])[RANK * run.share:(RANK + 1) * run.share]
        for batch in tqdm(run.batches(order), f"epoch {state['epoch'] + 1}/{opt.num_epochs}", run.steps, leave=False,
                          initial=state["step"], disable=RANK > 0 or None):
            pace.add_wait()
            run.learn(batch.to(run.device))
            logs = state["step"] % opt.log_step == 0 or state["step"] == run.steps
            validates = state["iteration"] % opt.val_step == 0 and state["step"] < run.steps
            if on_cpu or logs or validates or len(run.unread) == STEPS_AHEAD:
                terms = run.read_terms()
            pace.add_step(len(batch.lengths))
            if logs:
                run.log_step(terms, pace)
                pace = Pace()
            if validates:
                run.validate()
                pace = Pace()
            if WORLD > 1:
                share_signals(received, run.device)
            if received:
                run.read_terms()
                return
        state.update(epoch=state["epoch"] + 1, step=0)
        run.validate()


class Pace:
    """How long the steps since the last line of the log took, and waited for their data."""

    def __init__(self):
        self.start = self.before = time.perf_counter()
        self.steps = self.pairs = 0
        self.waited = 0.0             # seconds

    def add_wait(self) -> None:
        """To be called when the data of a step are there."""
        self.waited += time.perf_counter() - self.before

    def add_step(self, pairs: int) -> None:
        """To be called after a step."""
        self.before = time.perf_counter()
        self.steps += 1
        self.pairs += pairs


@contextlib.contextmanager
def delayed_signals():
    """Record Ctrl-C and SIGTERM in a list within a context, and do nothing else.
    The training finishes its step and saves, so --resume continues exactly. A second Ctrl-C ends it at once."""
    received, handlers = [], {}

    def receive(number: int, frame) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.append(number)
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)
                    if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# ---- several processes: torchrun --nproc_per_node 2 train.py. Each learns from its own share of the pairs, with the
# negatives of its own batches, and gradients are averaged; rank 0 validates and writes.

def join_processes(opt) -> torch.device:
    """Join the other processes of torchrun; return the device of this one.
    All but the first write into a temporary folder and say nothing."""
    device = torch_device(opt.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo",
                                         timeout=datetime.timedelta(minutes=STEP_MINUTES))
    atexit.register(torch.distributed.destroy_process_group)
    if RANK == 0:
        print(f"{WORLD} processes; where one does not answer for {STEP_MINUTES:g} minutes in a step, or "
              f"{VALIDATION_HOURS:g} hours in a validation, all end", flush=True)
    if RANK:
        opt.logger_name, sys.stdout = tempfile.mkdtemp(), open(os.devnull, "w")
        atexit.register(shutil.rmtree, opt.logger_name, ignore_errors=True)
    return device


def share_signals(received: list[int], device: torch.device) -> None:
    """Add to `received` a signal that another process has received."""
    number = torch.tensor(max(received, default=0), device=device)
    torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
    received += [int(number)] * (int(number) > 0)


# ---- optimisers

def build_optimizers(opt, model) -> dict[str, torch.optim.Optimizer]:
    """Build the "optimizer" and, for jWAE's critic, an Adam, "critic_optimizer"."""
    parameters = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("critic.")]
    kind = {"adam": torch.optim.AdamW if opt.weight_decay else torch.optim.Adam, "sgd": torch.optim.SGD}[opt.optimizer]
    rate = opt.learning_rate
    groups = [{"params": parameters, "initial_lr": rate}]
    if opt.weight_decay:                      # of matrices, not of biases, norms and single numbers
        groups = [{"params": [p for p in parameters if (p.ndim > 1) == decays], "initial_lr": rate,
                   "weight_decay": opt.weight_decay * decays} for decays in (True, False)]
    optimizers = {"optimizer": kind(groups, lr=rate, fused=True)}
    if model.critic:
        groups = [{"params": list(model.critic.parameters()), "initial_lr": CRITIC_RATE}]
        optimizers["critic_optimizer"] = torch.optim.Adam(groups, lr=CRITIC_RATE, betas=(0.5, 0.999), fused=True)
    return optimizers


def load_optimizer(optimizer: torch.optim.Optimizer, stored: dict) -> None:
    """Load what an optimiser remembers of its weights, in their order. Its rates stay those of the options.
    Raises ValueError where that does not fit the weights, which torch's fused steps do not notice."""
    own = optimizer.state_dict()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    memory = stored["state"]
    if not isinstance(memory, dict) or not set(memory) <= set(range(len(weights))):
        raise ValueError("an optimiser remembers other weights")
    names = {"step", "exp_avg", "exp_avg_sq"}               # of Adam; SGD without momentum remembers nothing
    if isinstance(optimizer, torch.optim.SGD):
        names = set()
    for k, entry in memory.items():
        if isinstance(optimizer, torch.optim.SGD):
            entry = {name: x for name, x in entry.items() if x is not None}
        if set(entry) != names:
            raise ValueError(f"an optimiser remembers {cli.spell_value(list(entry))} of a weight")
        for name, x in entry.items():
            shape = () if name == "step" else weights[k].shape
            if not is_weight(x) or x.shape != shape or not x.is_floating_point():
                raise ValueError(f"{name} of an optimiser does not fit a weight of {tuple(weights[k].shape)}")
            if name != "exp_avg" and (x < 0).any():
                raise ValueError(f"{name} of an optimiser is negative")
    optimizer.load_state_dict({"state": memory, "param_groups": own["param_groups"]})


def has_bf16_units(device: torch.device) -> bool:
    """True if a device multiplies numbers of 16 bits itself.
    A CPU without such units emulates them: a step takes 3 to 12 times as long as in float32."""
    units = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}         # since torch 2.12
    return device.type != "cpu" or any(units.get(name) for name in BF16_UNITS)


def known_contents(data: dict) -> dict:
    """Fingerprints without the names of extractors, among which are those of features that the run does not read."""
    return {name: known_contents(x) if name == "dev" else x for name, x in data.items() if name != "extractors"}


class Training:
    """Model, data, optimisers, place in the training (`state`), folder and log.
    A subclass for other data defines read_data, build_model, order, batches and rank_dev."""
    program, data_check = "train.py", "data.py check"
    owner = None                      # of the run folder, a RunOwner
    numbers = text = events = None    # files of the log
    build_model = staticmethod(build_model)

    def __init__(self, opt, start: dict | None, device: torch.device):
        """start: checkpoint of the first weights; --resume continues that training."""
        self.opt, self.device = opt, device
        self.state = {"epoch": 0, "step": 0, "iteration": 0, "rsum": 0.0, "best_rsum": 0.0, "best_hbr": 0.0,
                      "best_r1": -1.0, "waited": 0, "warned": 0}
        print(f"reading {os.path.join(opt.data_path, opt.data_name)}", flush=True)
        self.read_data(start)
        items = len(self.order(0))
        self.share = items if WORLD == 1 else items // WORLD // 2 * 2               # of an epoch, for each process
        self.steps = -(-self.share // self.batch_size)                              # of an epoch
        print("building the model", flush=True)
        torch.manual_seed(opt.seed)
        self.model = self.build_model(opt, self.vocab, pretrained=start is None).to(device)
        if start:
            fresh = load_weights(self.model, start, opt.init_from or opt.logger_name,
                                 new_training=opt.resume is None)
            if fresh:
                print(f"not in {opt.init_from} and begun anew: {', '.join(fresh)}")
        self.optimizers = build_optimizers(opt, self.model)
        self.parameters = [p for group in self.optimizers["optimizer"].param_groups for p in group["params"]]
        if opt.resume is not None:
            self.restore(start)
        self.computes_bf16 = opt.amp == "bf16" and has_bf16_units(device)
        self.unread: list[tuple[str, list[str], torch.Tensor]] = []     # place, names and values of terms of steps
        self.network = self.model
        if WORLD > 1:
            self.network = torch.nn.parallel.DistributedDataParallel(self.model)
            self.waiting = torch.distributed.new_group(timeout=datetime.timedelta(hours=VALIDATION_HOURS))
            torch.manual_seed(opt.seed + RANK + WORLD * self.state["iteration"])        # noise of its own

    # ---- data

    def read_data(self, start: dict | None) -> None:
        """Read the splits, settle what depends on them, and describe them in `sizes`.
        start: a checkpoint whose words are taken. Raises InputError where data, options and checkpoint do not fit."""
        opt = self.opt
        train, dev = (read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval,
                                 dev_images=opt.dev_images, text_features=opt.text_features).require_sound()
                      for name in ("train", "dev"))
        if opt.noise_ratio or opt.noise_file:
            train.change_pairs(opt.noise_ratio, opt.noise_seed, opt.noise_file)
        self.check_data(train, dev, start)
        self.pairs, self.batch_size = np.arange(len(train.captions)), opt.batch_size            # (m,) captions
        if opt.supervised_fraction < 1:
            self.pairs = unpaired.choose_pairs(train, opt.supervised_fraction, opt.seed)
            self.unpaired = unpaired.build_unpaired(opt, train, self.tokens["train"], self.pairs)
        chance = metrics.chance(dev.caption_image, len(dev.images))["rsum"]
        self.sizes = (f"{len(self.pairs):,} training pairs of {len(train.images):,} images, {len(dev.images):,} dev "
                      f"images (rsum by chance {chance:.1f})")

    def check_data(self, train: Split, dev: Split, start: dict | None) -> None:
        """Settle options and vocabulary by the splits; InputError where they do not fit.
        Words are those of the checkpoint, of DATA_NAME_vocab.json, or of the captions."""
        opt = self.opt
        fit_to_data(opt, train.images, train.text)
        check_fits(opt, dev.images, dev.text, "the model")
        if start:
            check_extractors(start.get("data", {}).get("extractors"), train, opt.text_features, str(opt.init_from))
        self.splits, self.unpaired = {"train": train, "dev": dev}, None
        self.fingerprints = {**train.fingerprint(), "dev": dev.fingerprint()}
        kind, path = TEXT_ENCODERS[opt.txt_enc].vocabulary, os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
        if start:
            self.vocab = kind(start["vocabulary"])
        elif os.path.isfile(path):
            print(f"taking the words of {path}", flush=True)
            self.vocab = kind.load(path)
        else:
            splits = [train if name == "train" else read_split(opt.data_path, opt.data_name, name, dev_images=0)
                      for name in opt.vocab_splits.split(",")]
            counts = sum((split.words.count() for split in splits), Counter())
            self.vocab = kind.from_counts(counts, opt.vocab_threshold)
        self.tokens = {name: split.encode(self.vocab) for name, split in self.splits.items()}
        train.note_doubts()
        dev.note_doubts(train)

    def order(self, epoch: int) -> np.ndarray:
        """Captions of an epoch, `pairs` shuffled."""
        rng = np.random.default_rng([self.opt.seed, epoch])
        owner = self.splits["train"].caption_image[self.pairs]
        return self.pairs[LOSSES[self.opt.loss].order_pairs(owner, rng)]

    def batches(self, order: np.ndarray):
        """Yield the batches of an epoch in this order that are still to come."""
        opt, state = self.opt, self.state
        batches = self.splits["train"].batches(
            self.tokens["train"], order, self.batch_size, workers=opt.workers, seed=(opt.seed, state["epoch"]),
            skip=state["step"], crop_size=opt.crop_size, pin=self.device.type == "cuda")
        for iteration, batch in enumerate(batches, state["iteration"]):  # state may lag behind
            yield batch._replace(unpaired=self.unpaired and self.unpaired.batch(iteration * WORLD + RANK))

    # ---- model

    def step(self, batch) -> dict[str, float]:
        """Take one step of every optimiser; return the loss, a sum of terms.
        Raises InputError with the name of a term that is not finite."""
        self.learn(batch)
        return self.read_terms()

    def learn(self, batch) -> None:
        """Take one step of every optimiser, and do not wait for the device.
        The learning rate rises in a line over --warmup epochs, then falls tenfold every --lr_update epochs, or as half
        a cosine to 0 at the end. jWAE's critic keeps its own (jwae 5.1); its terms share no gradient with the others.
        """
        opt, state = self.opt, self.state
        done = state["epoch"] + state["step"] / self.steps                          # epochs, with their fractions
        if done < opt.warmup:
            factor = (done + 1 / self.steps) / (opt.warmup + 1 / self.steps)
        elif opt.schedule == "cosine":
            factor = 0.5 + 0.5 * math.cos(math.pi * (done - opt.warmup) / (opt.num_epochs - opt.warmup))
        else:
            factor = 0.1 ** (state["epoch"] // opt.lr_update)
        for group in self.optimizers["optimizer"].param_groups:
            group["lr"] = group["initial_lr"] * factor
        if self.model.objective is not None:
            self.model.objective.start_epoch(opt, state["epoch"])
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.computes_bf16):
            terms = self.network(batch)
            loss = sum(terms.values())
        values = torch.stack([*terms.values()]).detach()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, opt.grad_clip or torch.inf)
        for optimizer in self.optimizers.values():
            optimizer.step()
        state["step"] += 1
        state["iteration"] += 1
        place = f"epoch {state['epoch'] + 1} step {state['step']}"
        self.unread.append((place, [*terms, "gradient"], torch.cat([values, norm[None]])))

    def read_terms(self) -> dict[str, float]:
        """Wait for the device; return the terms of the last step.
        Raises InputError with the name and place of the first term that is not finite. The steps since then were taken
        in vain, but nothing of them is saved."""
        terms = {}
        for place, names, values in self.unread:
            terms = dict(zip(names, values.tolist()))
            for name, value in terms.items():
                check(math.isfinite(value), f"the term '{name}' of the loss became {value} at {place}; the last "
                                            "checkpoint is whole: lower --learning_rate or use --amp off")
        self.unread.clear()
        terms.pop("gradient", None)
        return terms

    # ---- validation and checkpoints

    def rank_dev(self) -> tuple[dict[str, float], str]:
        """Recalls of the dev split, by VSE++'s names and in words.
        r1 is image to text, r1i text to image; cos_* the mean cosine of all pairs of images, and of captions, 1
        where all are one point; with --select hbr, hbr the harmonic mean of the best ranks of images (DMSM)."""
        dev = self.splits["dev"]
        images, captions = encode(self.model, dev, self.tokens["dev"], self.device, workers=self.opt.workers)
        i2t, t2i = metrics.rank_members([(self.model.similarity, images, captions)], dev.caption_image)
        i2t = i2t[i2t >= 0]                                 # of images that have captions
        result = metrics.both_directions(metrics.summary(i2t), metrics.summary(t2i))
        scalars = {f"{name}{end}": result[side][name] for side, end in (("i2t", ""), ("t2i", "i"))
                   for name in ("r1", "r5", "r10", "medr", "meanr")}
        scalars |= {"rsum": result["rsum"], "cos_images": float(unit(images.mean).mean(0).square().sum()),
                    "cos_captions": float(unit(captions.mean).mean(0).square().sum())}
        if self.opt.select == "hbr":
            scalars["hbr"] = metrics.best_rank_means(i2t)["hbr"]
        text = "{}: R@1 {r1:.1f} R@5 {r5:.1f} R@10 {r10:.1f} medr {medr:.0f}"
        return scalars, " | ".join(text.format(name, **result[side])
                                   for name, side in (("image to text", "i2t"), ("text to image", "t2i")))

    def validate(self) -> None:
        """Rank dev and write a checkpoint; at the end of an epoch, choose the best model.
        With several processes the first does so, and the others take its state."""
        state = self.state
        if RANK == 0:
            self.model.eval()
            scalars, text = self.rank_dev()
            self.model.train()
            self.say(f"{self.place()}: dev rsum {scalars['rsum']:.1f} | {text}")
            self.record("validation", scalars, epoch=state["epoch"] + (state["step"] > 0),
                        step=state["step"] or self.steps)
            state["rsum"] = scalars["rsum"]
            if not state["step"]:
                self.choose_best(scalars)
            self.save()
            if self.owner:
                self.owner.say(self.place())
        if WORLD > 1:
            states = [state]
            torch.distributed.broadcast_object_list(states, group=self.waiting)
            state.update(states[0])

    def choose_best(self, scalars: dict[str, float]) -> None:
        """Keep the model of this epoch if it is the best so far by --select.
        Warn if the embeddings of a side are nearly one point."""
        state, opt = self.state, self.opt
        values = {"best_rsum": scalars["rsum"], "best_hbr": scalars.get("hbr", 0.0),
                  "best_r1": scalars["r1"] + scalars.get("r1i", 0.0)}
        value, best = values[f"best_{opt.select}"], state[f"best_{opt.select}"]
        # of variances around frozen means, which rank nothing, the last are the best
        better = value > best or self.model.frozen and value == best
        if opt.select == "hbr":                             # a rank: lower is better, 0 is none yet
            better = value < best or not best
        state["waited"] = 0 if better else state["waited"] + 1
        if better:
            state.update(values)
            self.save("model_best.pt")
        self.warn_of_collapse(scalars)

    def warn_of_collapse(self, scalars: dict[str, float]) -> None:
        """Say once, after the first epoch in which it is so, which sides are nearly one point, and what helps."""
        state, opt = self.state, self.opt
        collapsed = []
        for side in ("images", "captions"):
            cosine = scalars.get(f"cos_{side}", 0.0)
            if cosine > COLLAPSED:
                collapsed.append(f"{side} (mean cosine of two: {cosine:.3f})")
        if not collapsed or state["warned"]:
            return

        state["warned"] = 1
        self.say(f"warning: the embeddings of {' and of '.join(collapsed)} are collapsing to one point. If dev rsum "
                 f"stays low, {LOSSES[opt.loss].advise(opt)}")

    def save(self, name: str = "checkpoint.pt") -> None:
        """Replace a checkpoint; checkpoint.pt holds what only --resume needs, too.
        Raises InputError where it cannot be written; the one before it is whole then."""
        options = {option: value for option, value in vars(self.opt).items() if option not in NOT_STORED}
        stored = {"format": FORMAT, "options": options, "vocabulary": self.vocab.words, "state": dict(self.state),
                  "data": self.fingerprints, "model": self.model.state_dict()}
        if name == "checkpoint.pt":
            stored |= {part: optimizer.state_dict() for part, optimizer in self.optimizers.items()}
            cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
            stored |= {"rng": torch.get_rng_state(), "cuda_rng": cuda}
        path = os.path.join(self.opt.logger_name, name)
        if self.owner:
            self.owner.check_folder()
        try:
            with atomic(path, "wb") as f:
                torch.save(stored, f)
        except (OSError, RuntimeError) as error:
            fault = f"{path} could not be saved ({cli.reason(error)})"
            fix = "make room"
            if getattr(error, "errno", None) in cli.FULL:
                fault = cli.describe_full_disk(path)
            elif isinstance(error, PermissionError):
                fix = "change the permissions of the folder"
            if os.path.isfile(os.path.join(self.opt.logger_name, "checkpoint.pt")):
                raise InputError(f"{fault}; the one before it is whole: {fix} and --resume") from error
            raise InputError(f"{fault}; {fix} and start again") from error

    def restore(self, resumed: dict) -> None:
        """Continue a checkpoint. Raises InputError where it does not fit."""
        opt = self.opt
        with refusing(f"the checkpoint of {opt.resume} lacks what a training continues from, or holds something else",
                      "start a new run from its weights with --init_from"):
            before = known_contents(resumed["data"])
            check(all(before.get(name, x) == x for name, x in known_contents(self.fingerprints).items()),
                  f"the training data in {os.path.join(opt.data_path, opt.data_name)} differ from the data of the run "
                  f"in {opt.resume}; give its --data_path, or start a new run with --init_from")
            for name, optimizer in self.optimizers.items():
                load_optimizer(optimizer, resumed[name])
            torch.set_rng_state(resumed["rng"])
            if self.device.type == "cuda" and resumed["cuda_rng"]:
                torch.cuda.set_rng_state(resumed["cuda_rng"][0], self.device)
            self.state.update(resumed["state"])
        if not os.path.isfile(os.path.join(opt.resume, "model_best.pt")):
            self.state.update(best_rsum=0.0, best_hbr=0.0, best_r1=-1.0)

    # ---- folder and log

    def describe(self, start: dict | None) -> str:
        """Describe model and data, and the notes of the checkpoint `start`, for the log."""
        opt = self.opt
        objective = LOSSES[opt.loss].describe(opt)
        if opt.mask_same_image:
            objective += ", captions of one image are not negatives"
        weights = sum(p.numel() for p in self.parameters)
        notes = [*(start or {}).get("notes", ()), *self.splits["train"].notes, *self.splits["dev"].notes]
        if opt.amp == "bf16" and not self.computes_bf16:
            notes.append("--amp bf16: this CPU has no bf16 units and would be slower than in float32, so the networks "
                         "compute in float32")
        return "\n".join([
            f"{opt.data_name}: {self.sizes}, {len(self.vocab):,} words",
            f"{opt.sim}, image head {opt.image_head}, text head {opt.text_head}, {objective}, embed_size "
            f"{opt.embed_size}, {weights:,} trainable parameters, {self.device}, seed {opt.seed}",
            *(f"note: {note}" for note in notes)])

    def log_step(self, terms: dict[str, float], pace: Pace) -> None:
        """Write the loss of the last step, and the speed of the steps since the line before, to the log."""
        opt, state = self.opt, self.state
        seconds = (pace.before - pace.start) / pace.steps
        left = (self.steps * (opt.num_epochs - state["epoch"]) - state["step"]) * seconds / 60
        parts = terms if len(terms) > 1 else {}
        loss = sum(terms.values())

        line = f"{self.place()}: loss {loss:.4f}"
        for name, value in parts.items():
            line += f", {name} {value:.4g}"
        self.say(f"{line}, {pace.pairs / (pace.before - pace.start):,.0f} pairs/s, {left:.1f} min left")
        self.record("step", {
            "epoch": state["epoch"] + 1, "step": state["step"], "Eit": state["iteration"], "Le": loss,
            "lr": self.optimizers["optimizer"].param_groups[0]["lr"], "batch_time": seconds,
            "data_time": pace.waited / pace.steps, **parts})

    def place(self) -> str:
        """Place in the training, for a line of the log; epochs and steps count from 1."""
        state, epochs = self.state, self.opt.num_epochs
        if not state["step"]:
            return f"epoch {state['epoch']}/{epochs} done" if state["epoch"] else "the start"
        return f"epoch {state['epoch'] + 1}/{epochs} step {state['step']}/{self.steps}"

    def open_folder(self) -> None:
        """Take the folder, describe the run in it, and open its log.
        A new run first writes a checkpoint, so that it can always continue; then it removes a run that it replaces.
        Raises InputError where another training has the folder, or has left a run in it meanwhile."""
        opt, folder = self.opt, self.opt.logger_name
        make_folder(folder)
        if self.owner:
            self.owner.take()
        if opt.resume is None:
            check_folder(opt)
            self.save()
            for name in filter(MADE_OF_RUN.fullmatch, os.listdir(folder)):
                os.remove(os.path.join(folder, name))
        self.write_description(os.path.join(folder, "config.yaml"))
        self.vocab.save(os.path.join(folder, "vocab.json"))
        if opt.noise_ratio or opt.noise_file:
            save_array(os.path.join(folder, NOISE), self.splits["train"].caption_image)             # (M,), NCR's form
        self.open_log(os.path.join(folder, "log.jsonl"), os.path.join(folder, "log.txt"))
        self.events = Events(folder)
        if self.events.note:
            self.say(f"note: {self.events.note}")

    def write_description(self, path: str) -> None:
        """Write config.yaml: how the run was started, on what data, and its options. A resumed run keeps the former."""
        description = read_description(path) if self.opt.resume is not None else None
        if description is None:
            commit = subprocess.run("git rev-parse --verify -q HEAD", shell=True, text=True, capture_output=True,
                                    check=False, cwd=os.path.dirname(os.path.abspath(__file__)))
            description = {
                "command": shlex.join(["python", *self.program.split(), *sys.argv[1:]]),
                "git_commit": commit.stdout.strip() or "unknown",
                "versions": {"python": sys.version.split()[0], "torch": str(torch.__version__),
                             "numpy": np.__version__},
                "data": {name: split.fingerprint() for name, split in self.splits.items()}, "asked": self.opt.asked}
        with atomic(path) as f:
            yaml.safe_dump({**description, "options": vars(self.opt)}, f, sort_keys=False)

    def open_log(self, numbers_path: str, text_path: str) -> None:
        """Open log.jsonl, without lines that come again, and log.txt."""
        lines = []
        for line in read_lines(numbers_path) if os.path.isfile(numbers_path) else ():
            if read_iteration(line) <= self.state["iteration"]:
                lines.append(line)
        writable(numbers_path)
        with atomic(numbers_path) as f:
            f.writelines(f"{line}\n" for line in lines)
        self.numbers = open(numbers_path, "a", encoding="utf-8")
        self.text = open(writable(text_path), "a", encoding="utf-8", errors="backslashreplace")

    def say(self, line: str) -> None:
        """Write a line to the terminal and to log.txt."""
        if sys.stdout is not None:
            with contextlib.suppress(OSError):              # the terminal is gone, the run goes on
                tqdm.write(line)
                sys.stdout.flush()
        append_line(self.text, line)

    def record(self, kind: str, scalars: dict, **fields) -> None:
        """Write numbers of a "step" or "validation" to log.jsonl and tensorboard."""
        line = {"iteration": self.state["iteration"], "kind": kind, **fields, **scalars}
        append_line(self.numbers, json.dumps(line))
        for name, value in scalars.items():
            self.events.add(name, value, self.state["iteration"])

    def close(self) -> None:
        """Close the files of the log. What a full disk does not take is lost in silence, as it was said before."""
        for file in (self.numbers, self.text, self.events):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


def append_line(file, line: str) -> None:
    """Write a line to an open text file at once. An OSError names the file."""
    try:
        file.write(f"{line}\n")
        file.flush()
    except OSError as error:
        error.filename = file.name
        raise


def read_iteration(line: str) -> float:
    """Read the iteration of a line of log.jsonl; infinity where a full disk cut it, or anybody changed it."""
    with contextlib.suppress(ValueError, RecursionError):
        entry = json.loads(line)
        iteration = entry.get("iteration") if isinstance(entry, dict) else None
        if type(iteration) in (int, float):
            return iteration
    return math.inf


def read_description(path: str) -> dict | None:
    """Read the config.yaml of a run that is resumed; None where it is lost or holds anything else."""
    if not os.path.isfile(path):
        return None
    description = read_yaml(path)
    return description if isinstance(description, dict) else None


class Events:
    """Numbers for tensorboard in a run folder, by the same names and steps whoever writes them.

    tensorboard-logger does. It cannot be imported beside protobuf from 3.21 on, which TensorFlow and Colab bring; there
    torch's SummaryWriter takes its place, and without either a `note` says that there are none.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.note = ""
        self.add_scalar = None
        self.writer = None
        try:
            from tensorboard_logger import Logger
        except Exception:                                   # TypeError of protobuf, ImportError of what it needs
            self.open_summary_writer()
        else:
            logger = Logger(folder, flush_secs=5)
            self.add_scalar = logger.log_value
            self.writer = logger._writer                    # its destructor would close it with a traceback

    def open_summary_writer(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except Exception as error:
            self.note = (f"no events for tensorboard are written, since neither tensorboard-logger nor tensorboard can "
                         f"be imported ({cli.reason(error)}); log.jsonl holds the same numbers")
        else:
            self.writer = SummaryWriter(self.folder, flush_secs=5)
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


if __name__ == "__main__":
    main()
