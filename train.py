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
import threading
import time

import numpy as np
import torch
import yaml
from tqdm import tqdm

import cli
import metrics
from checkpoint import (
    CHECKPOINTS,
    NOT_STORED,
    best_checkpoint,
    check_folder,
    clear_run,
    continues,
    load_checkpoint,
    load_model,
    load_resumable,
    load_weights,
    read_description,
    resumed_options,
)
from cli import InputError, check, torch_device
from data import Split, check_extractors, read_split
from evaluation.encode import validate
from files import FORMAT, atomic, clear, read_lines, save_lines, save_state
from losses import SUMMED
from methods import METHODS
from model import VSE, build_model, build_vocabulary
from options import Options, check_fits, fit_to_data, parse_words, read_config, resolve, training_parser
from vocab import Vocabulary

CRITIC_RATE = 5e-5    # learning rate of jWAE's critic (jwae 5.1)
COLLAPSED = 0.98      # mean cosine of two items from which on a side is nearly one point
# Options that change embeddings and no weight's shape.
COMPUTE = ("feature_norm", "region_norm", "pool", "layer_style", "no_imgnorm", "use_abs", "logvar_norm", "var_min",
           "text_anchor")
RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))   # torchrun's


def main(argv=None) -> None:
    sys.exit(cli.run("train.py", train, parse_args(argv)))


def parse_args(argv=None, p: cli.Arguments | None = None) -> Options:
    """Return the resolved options of the command line. Exits on wrong ones.

    What comes later wins: the options of --method, those of --config, the command line.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    p = p or training_parser()
    opt = p.parse_args(argv)
    if opt.methods:
        for name, m in METHODS.items():
            print(f"{name}: {m.title} ({m.paper})\n    {m.flags}" + f"\n    needs {m.needs}" * bool(m.needs))
        p.exit()
    try:
        words = [*(read_config(opt.config, p) if opt.config else ()), *argv]
        opt = parse_words(p, words)
        if opt.resume is not None:
            opt = resumed_options(p, opt, words)
        resolve(opt)
        if opt.init_from and opt.resume is None:    # a wrong one is refused before data is read
            load_checkpoint(opt.init_from, vocab=opt.vocab)
    except InputError as error:
        needs = METHODS[opt.method].needs if opt.method else ""
        p.error(f"{error}" + f" (--method {opt.method} needs {needs})" * bool(needs))
    return opt


# ---- the training

def fit(opt) -> tuple[VSE, Vocabulary]:
    """Train as resolved options say (options.options). Returns the best model on dev, in eval mode on the CPU, and its
    vocabulary. Raises InputError."""
    status = train(opt)
    if status > 128:
        raise KeyboardInterrupt(status - 128)
    check(status == 0, f"no model came out of the training; look at {opt.logger_name}/log.txt")
    model, vocab, _ = load_model(load_checkpoint(opt.logger_name), opt.logger_name)
    return model, vocab


def train(opt, kind: type["Training"] | None = None) -> int:
    """Train as the options say. Returns the exit status: 0; 1 where no model came out; 128 + signal after Ctrl-C or
    SIGTERM. kind: a subclass of Training for other data."""
    device = join_processes(opt)
    start = None if opt.resume is None else load_resumable(opt.resume)
    if opt.init_from and not start:
        start = load_checkpoint(opt.init_from, vocab=opt.vocab)
    run = (kind or Training)(opt, start, device)
    check_folder(opt)
    facts = run.describe(start)
    if opt.dry_run:
        print(yaml.safe_dump(vars(opt), sort_keys=True) + facts + "\ndry run: nothing was written")
        return 0
    if opt.loss == "volume":
        from methods.volume import training_shares
        run.model.terms["volume"].shares = training_shares(
            run.model, run.splits["train"], run.splits["dev"], run.tokens, device)
    with delayed_signals() as received:
        open_folder(run)
        run.say(f"{facts}\nrun folder {run.folder}")
        run_epochs(run, received)
        return say_end(run, received)


def run_epochs(run: "Training", received: list[int]) -> None:
    """Train epoch by epoch. A validation and a checkpoint follow each epoch, and every --val_step steps.
    received: signals that ask the training to stop."""
    opt, state = run.opt, run.state
    run.model.train()
    patience = opt.patience or torch.inf    # epochs without a better model
    while state["epoch"] < opt.num_epochs and state["waited"] < patience and not received:
        with tqdm(total=run.steps, initial=state["step"], disable=RANK > 0 or None, leave=False,
                  desc=f"epoch {state['epoch'] + 1}/{opt.num_epochs}") as bar:
            clock = time.perf_counter()
            for batch in run.batches():
                data_time = time.perf_counter() - clock
                terms = run.step(batch.to(run.device))
                batch_time, clock = time.perf_counter() - clock, time.perf_counter()
                pairs_per_second = len(batch.lengths) / batch_time
                bar.set_postfix_str(f"loss {sum(terms.values()):.2f}, {pairs_per_second:,.0f} pairs/s", refresh=False)
                bar.update()
                if state["step"] % opt.log_step == 0 or state["step"] == run.steps:
                    log_step(run, terms, pairs_per_second, batch_time, data_time, bar.disable)
                if state["iteration"] % opt.val_step == 0 and state["step"] < run.steps:
                    run.validate()
                if WORLD > 1:
                    share_signals(received, run.device)
                if received:
                    return
        run.record("epoch", {"epoch_loss": state["loss_sum"] / state["loss_count"]}, epoch=state["epoch"] + 1)
        state.update(epoch=state["epoch"] + 1, step=0, loss_sum=0.0, loss_count=0)
        run.validate()


def say_end(run: "Training", received: list[int]) -> int:
    """Say how to go on with a run or to evaluate it. Returns the exit status, 1 where no model came out."""
    state, opt = run.state, run.opt
    if received:
        run.save()
        run.say(f"stopped at {run.place()}; go on with: {sys.executable} {run.program} --resume {run.folder}")
        return 128 + received[0]
    if state["epoch"] < opt.num_epochs:
        run.say(f"no better model on dev in {opt.patience} epochs, so epoch {state['epoch']} was the last")
    evaluate = f"{sys.executable} {run.program.replace('train', 'evaluate')} --checkpoint {run.folder}"
    if RANK or os.path.isfile(os.path.join(run.folder, "model_best.pt")):
        hbr = f", HBR {state['best_hbr']:.2f}, which chose it" * (opt.select == "hbr")
        run.say(f"done: best dev rsum {state['best_rsum']:.1f}{hbr}, of the last epoch {state['rsum']:.1f}; evaluate "
                f"with: {evaluate}")
        return 0
    if state["best_rsum"]:
        run.say(f"done, but model_best.pt, of dev rsum {state['best_rsum']:.1f}, is not in {run.folder} any more; "
                f"evaluate the last weights with: {evaluate}/checkpoint.pt")
    else:
        run.say(f"done, but dev rsum was 0 after every epoch, so {run.folder} holds no model: nothing of what was "
                "learned finds one match; look at log.txt and the data (python data.py check)")
    return 1


@contextlib.contextmanager
def delayed_signals():
    """Context that yields a list of the signals received: Ctrl-C and SIGTERM only add their number, so that the
    training saves after the step at hand and --resume goes on exactly. A second Ctrl-C ends it at once."""
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
    """Join the other processes of torchrun and return the device of this one. All but the first write into a temporary
    folder and say nothing."""
    device = torch_device(opt.device)
    if WORLD > 1:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo",
                                             timeout=datetime.timedelta(hours=2))
        atexit.register(torch.distributed.destroy_process_group)
    if RANK:
        opt.logger_name, sys.stdout = tempfile.mkdtemp(), open(os.devnull, "w")
        atexit.register(shutil.rmtree, opt.logger_name, ignore_errors=True)
    return device


def share_signals(received: list[int], device: torch.device) -> None:
    """Add to `received` a signal that another process has received."""
    number = torch.tensor(max(received, default=0), device=device)
    torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
    received += [int(number)] * (int(number) > 0)


# ---- optimisers and schedule

def build_optimizers(opt, model) -> dict[str, torch.optim.Optimizer]:
    """Build the "optimizer" of all that the model learns but jWAE's critic, and "critic_optimizer", an Adam of its own.
    """
    parameters = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("critic.")]
    check(parameters, "nothing of this model can be learned: neither side has a layer; leave --img_layers 0 or "
                      "--txt_layers 0 out")
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


def rate_share(opt, epoch: int, step: int, steps: int) -> float:
    """Share of --learning_rate that a step of an epoch of `steps` takes, in [0, 1].

    The rate rises in a line over --warmup epochs, then falls tenfold every --lr_update epochs, or as half a cosine to 0
    at the end.
    """
    done = epoch + step / steps                         # epochs, with their fractions
    if done < opt.warmup:
        return (done + 1 / steps) / (opt.warmup + 1 / steps)
    if opt.schedule == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * (done - opt.warmup) / (opt.num_epochs - opt.warmup))
    return 0.1 ** (epoch // opt.lr_update)


def announce(opt, text: str) -> None:
    """Say what the training is about to do, before it has a log."""
    if not opt.dry_run:
        print(text, flush=True)


class Training:
    """A model that learns, its data, its optimisers, its place in the training (`state`), its folder and log.

    A subclass for other data defines read_data, build_model, order, batches, rank_dev and describe_data.
    """
    program = "train.py"

    def __init__(self, opt, start: dict | None, device: torch.device):
        """start: the checkpoint whose weights are taken; with --resume the training continues it."""
        self.opt, self.device, self.folder = opt, device, opt.logger_name
        announce(opt, f"reading {os.path.join(opt.data_path, opt.data_name)}")
        self.state = {"epoch": 0, "step": 0, "iteration": 0, "rsum": 0.0, "best_rsum": 0.0, "best_hbr": 0.0,
                      "best_r1": -1.0, "waited": 0, "loss_sum": 0.0, "loss_count": 0}
        self.read_data(start)
        self.steps = -(-len(self.own_order()) // self.batch_size)                   # of an epoch
        announce(opt, "building the model")
        torch.manual_seed(opt.seed)
        self.model = self.build_model(pretrained=start is None).to(device)
        if start:
            load_weights(self.model, start, opt.init_from or opt.logger_name,
                         means=opt.freeze_means and opt.resume is None)
        self.optimizers = build_optimizers(opt, self.model)
        self.parameters = [p for group in self.optimizers["optimizer"].param_groups for p in group["params"]]
        if opt.resume is not None:
            self.restore(start)
        self.network = self.model
        if WORLD > 1:
            self.network = torch.nn.parallel.DistributedDataParallel(self.model)
            torch.manual_seed(opt.seed + RANK + WORLD * self.state["iteration"])        # noise of its own

    # ---- data

    def read_data(self, start: dict | None) -> None:
        """Read the splits, and settle by them what the options left open. start: a checkpoint whose words are taken.
        Raises InputError where data, options and checkpoint do not fit."""
        opt = self.opt
        train, dev = (read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval,
                                 dev_images=opt.dev_images, text_features=opt.text_features).require_sound()
                      for name in ("train", "dev"))
        for split in (train, dev):
            check(len(split.images) >= 2, f"{split.source} has one image, and there is nothing that a caption of it "
                                          f"could be taken for by mistake; a {split.name} split needs two or more")
        self.check_data(train, dev, start)
        self.pairs, self.batch_size = np.arange(len(train.captions)), opt.batch_size            # (m,) captions
        if opt.supervised_fraction < 1 or opt.unpaired_images or opt.unpaired_captions:
            from methods.unpaired import build_unpaired, choose_pairs
            self.pairs = choose_pairs(train, opt.supervised_fraction, opt.seed)
            self.unpaired = build_unpaired(opt, train, self.tokens["train"], self.pairs, self.vocab)
            if self.unpaired and self.unpaired.data:
                self.fingerprints["unpaired"] = self.unpaired.data
                self.check_fingerprints(start)

    def check_data(self, train: Split, dev: Split, start: dict | None) -> None:
        """Settle the options and the vocabulary by the splits. Raises InputError where they and the checkpoint do not
        fit."""
        opt = self.opt
        fit_to_data(opt, train.images, train.text)
        check_fits(opt, dev.images, dev.text, "the model")
        check_extractors((start or {}).get("data", {}).get("extractors"), train, opt.text_features, str(opt.init_from))
        self.splits, self.unpaired = {"train": train, "dev": dev}, None
        self.fingerprints = {**train.fingerprint(), "dev": dev.fingerprint()}
        self.check_fingerprints(start)
        self.choose_words(train, start)
        self.tokens = {name: split.encode(self.vocab) for name, split in self.splits.items()}

    def check_fingerprints(self, start: dict | None) -> None:
        """Raise InputError where a resumed run would go on with other data."""
        opt, stored = self.opt, {} if self.opt.resume is None else start["data"]
        check(all(stored.get(name, x) == x for name, x in self.fingerprints.items()),
              f"the training data in {os.path.join(opt.data_path, opt.data_name)}, or the unpaired ones, are not those "
              f"of the run in {opt.logger_name}; give its --data_path, or start a new run with --init_from")

    def choose_words(self, train: Split, start: dict | None) -> None:
        """Take the words of the checkpoint, of a file DATA_NAME_vocab.json, or of the captions."""
        opt, path = self.opt, os.path.join(self.opt.vocab_path, f"{self.opt.data_name}_vocab.json")
        if start:
            words, self.words_source = start["vocabulary"], opt.init_from or opt.logger_name
        elif os.path.isfile(path):
            for name in ("vocab_threshold", "vocab_splits"):
                check(getattr(opt, name) == training_parser().get_default(name),
                      f"--{name} {getattr(opt, name)} counts words of the captions, and {path} lists the words "
                      "already; leave it out, delete the file, or name another folder with --vocab_path")
            words, self.words_source = Vocabulary.load(path).words, path
        else:
            splits = [train if name == "train" else read_split(opt.data_path, opt.data_name, name, dev_images=0)
                      for name in opt.vocab_splits.split(",")]
            captions = (caption for split in splits for caption in split.words)
            words, self.words_source = Vocabulary.build(captions, opt.vocab_threshold).words, "the captions"
        self.vocab = build_vocabulary(opt, words)

    def order(self, epoch: int) -> np.ndarray:
        """Captions of an epoch, `pairs` shuffled."""
        rng = np.random.default_rng([self.opt.seed, epoch])
        if self.opt.loss == "two_branch":
            from methods.two_branch import sibling_order
            return self.pairs[sibling_order(self.splits["train"].caption_image[self.pairs], rng)]
        return self.pairs[rng.permutation(len(self.pairs))]

    def own_order(self) -> np.ndarray:
        """Share of `order` of this process in the current epoch; with several, all shares have one even size."""
        order = self.order(self.state["epoch"])
        size = len(order) if WORLD == 1 else len(order) // WORLD // 2 * 2
        return order[RANK * size:(RANK + 1) * size]

    def batches(self):
        """Yield the batches of the current epoch that are still to come."""
        opt, state = self.opt, self.state
        batches = self.splits["train"].batches(
            self.tokens["train"], self.own_order(), self.batch_size, workers=opt.workers,
            seed=(opt.seed, state["epoch"]), skip=state["step"], crop_size=opt.crop_size)
        for iteration, batch in enumerate(batches, state["iteration"]):  # state may lag behind
            yield batch._replace(unpaired=self.unpaired and self.unpaired.batch(iteration * WORLD + RANK))

    # ---- model

    def build_model(self, pretrained: bool) -> torch.nn.Module:
        return build_model(self.opt, self.vocab, pretrained)

    def step(self, batch) -> dict[str, float]:
        """Take one step of every optimiser on the loss, a sum of terms, which it returns. Raises InputError with the
        name of a term that is not finite.

        jWAE's critic keeps its learning rate (jwae 5.1). Its terms and the others share the backward pass and no
        gradient: see losses.py.
        """
        opt, state = self.opt, self.state
        share = rate_share(opt, state["epoch"], state["step"], self.steps)
        for group in self.optimizers["optimizer"].param_groups:
            group["lr"] = group["initial_lr"] * share
        if opt.loss == "hinge":
            warm = state["epoch"] >= opt.vse_mean_warmup_epochs
            self.model.objective.max_violation = opt.max_violation and warm
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=opt.amp == "bf16"):
            terms = self.network(batch)
            loss = sum(terms.values())
        values = torch.stack([*terms.values()]).detach()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, opt.grad_clip or torch.inf)
        *values, norm = torch.cat([values, norm[None]]).tolist()    # where a step waits for the device
        terms = dict(zip(terms, values))
        for name, value in {**{f"the term '{name}'": x for name, x in terms.items()}, "the gradient": norm}.items():
            if not math.isfinite(value):
                raise InputError(f"{name} of the loss became {value} at epoch {state['epoch'] + 1} step "
                                 f"{state['step'] + 1}; the last checkpoint is whole: lower --learning_rate or use "
                                 "--amp off")
        for optimizer in self.optimizers.values():
            optimizer.step()
        pairs = len(batch.lengths)
        state["step"] += 1
        state["iteration"] += 1
        state["loss_sum"] += sum(values) * (1 if opt.loss in SUMMED else pairs)
        state["loss_count"] += pairs
        return terms

    # ---- validation and checkpoints

    def rank_dev(self) -> dict:
        """Recalls of the dev split."""
        return validate(self.model, self.splits["dev"], self.tokens["dev"], self.device, self.opt.workers)

    def validate(self) -> None:
        """Rank the dev split, and write a checkpoint. At the ends of epochs the recalls choose the best model, as in
        VSE++. Of several processes the first one does both, and the others take its state."""
        state, opt = self.state, self.opt
        if RANK == 0:
            self.model.eval()
            result = self.rank_dev()
            self.model.train()
            log_validation(self, result)
            r1 = result["r1"] if "r1" in result else result["i2t"]["r1"] + result["t2i"]["r1"]
            # of variances around frozen means, which rank nothing, the last are the best
            better = result["rsum"] > state["best_rsum"] or (opt.freeze_means and result["rsum"] == state["best_rsum"])
            if opt.select == "hbr":
                better = not 0 < state["best_hbr"] <= result["hbr"]
            elif opt.select == "r1":
                better = r1 > state["best_r1"]
            state["rsum"] = result["rsum"]
            if not state["step"]:
                state["waited"] += 1
                if better:
                    state.update(waited=0, best_rsum=result["rsum"], best_hbr=result.get("hbr", 0.0), best_r1=r1)
                    self.save("model_best.pt", whole=False)
            self.save()
        if WORLD > 1:
            torch.distributed.broadcast_object_list(states := [state])
            state.update(states[0])

    def save(self, name: str = "checkpoint.pt", whole: bool = True) -> None:
        save_state(self.content(whole), os.path.join(self.folder, name), "make room and --resume")

    def content(self, whole: bool = True) -> dict:
        """Content of a checkpoint. whole: with what only --resume needs."""
        options = {name: value for name, value in vars(self.opt).items() if name not in NOT_STORED}
        stored = {"format": FORMAT, "options": options, "vocabulary": self.vocab.words, "state": dict(self.state),
                  "data": self.fingerprints, "model": self.model.state_dict()}
        if whole:
            stored |= {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
            cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
            stored |= {"rng": torch.get_rng_state(), "cuda_rng": cuda}
        return stored

    def restore(self, resumed: dict) -> None:
        """Continue a checkpoint. Raises InputError where its optimisers or random states are of something else."""
        opt, place, steps = self.opt, resumed["state"], self.steps
        fix = "take another one, or start a new run from its weights with --init_from"
        check(place["iteration"] >= place["step"] <= steps and (place["loss_count"] or not place["step"]),
              f"the checkpoint {opt.resume} stands at step {place['step']} of an epoch of {steps}, "
              f"{place['iteration']} in all, with {place['loss_count']} pairs of it seen, which no training writes; "
              f"{fix}")
        try:
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(resumed[name])
            torch.set_rng_state(resumed["rng"])
            if self.device.type == "cuda" and resumed["cuda_rng"]:
                torch.cuda.set_rng_state(resumed["cuda_rng"][0], self.device)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError(f"the checkpoint {opt.resume} holds optimisers or random states of something else "
                             f"({cli.reason(error)}); {fix}") from error
        self.state.update((name, place[name]) for name in self.state if name in place)

    # ---- description and log

    def describe(self, start: dict | None) -> str:
        """Describe model and data in lines for the log. start: the checkpoint that is begun from."""
        opt, start = self.opt, start or {}
        violations = "hardest negative" if opt.max_violation else "sum of violations"
        objective = f"{violations}, margin {opt.margin}" if opt.loss == "hinge" else opt.loss
        objective += ", captions of one image are no negatives" * opt.mask_same_image
        trainable = sum(p.numel() for p in self.parameters)
        notes = [*start.get("notes", ())]
        theirs = start.get("options", {}) if opt.resume is None else {}
        unlike = [f"{name} {theirs[name]} and not {getattr(opt, name)}" for name in COMPUTE
                  if name in theirs and theirs[name] != getattr(opt, name)]
        if unlike:
            notes.append(f"{opt.init_from} was trained with {', '.join(unlike)}, so its weights do not embed as they "
                         "did")
        notes += [*self.splits["train"].notes, *self.splits["dev"].notes]
        return "\n".join([
            f"{opt.data_name}: {self.describe_data()}, {len(self.vocab):,} words of {self.words_source}",
            f"{opt.sim}, image head {opt.image_head}, text head {opt.text_head}, {objective}, embed_size "
            f"{opt.embed_size}, {trainable:,} trainable parameters, {self.device}, seed {opt.seed}",
            *(f"note: {note}" for note in notes)])

    def describe_data(self) -> str:
        train, dev = self.splits["train"], self.splits["dev"]
        chance = metrics.chance(dev.caption_image, len(dev.images))["rsum"]
        return (f"{len(self.pairs):,} training pairs of {len(train.images):,} images, {len(dev.images):,} dev images "
                f"(rsum by chance {chance:.1f})")

    def place(self) -> str:
        """Place in the training, for a line of the log; epochs and steps count from 1."""
        state, epochs = self.state, self.opt.num_epochs
        if not state["step"]:
            return f"epoch {state['epoch']}/{epochs} done" if state["epoch"] else "the start"
        return f"epoch {state['epoch'] + 1}/{epochs} step {state['step']}/{self.steps}"

    def open_log(self) -> None:
        """Open log.txt for people, log.jsonl for programs, and tensorboard events; drop lines of log.jsonl that come
        again."""
        import tensorboard_logger
        self.events = tensorboard_logger.Logger(self.folder, flush_secs=5)
        path = os.path.join(self.folder, "log.txt")
        with open(path, "ab+") as f:                        # it may have been cut off within a line
            f.seek(max(0, f.tell() - 1))
            f.write(b"\n" * (f.read() not in (b"", b"\n")))
        self.text = open(path, "a", encoding="utf-8", errors="backslashreplace")
        path = os.path.join(self.folder, "log.jsonl")
        if os.path.isfile(path):
            save_lines(path, [line for line in read_lines(path) if comes_before(line, self.state)])
        self.json = open(path, "a", encoding="utf-8")

    def say(self, line: str, terminal: bool = True) -> None:
        if terminal:
            with contextlib.suppress(OSError):              # the terminal is gone, the run goes on
                tqdm.write(line)
                sys.stdout.flush()
        self.text.write(line + "\n")
        self.text.flush()

    def record(self, kind: str, scalars: dict, **fields) -> None:
        """Write numbers of kind "step", "validation" or "epoch" to log.jsonl and tensorboard."""
        self.json.write(json.dumps({"iteration": self.state["iteration"], "kind": kind, **fields, **scalars}) + "\n")
        self.json.flush()
        for name, value in scalars.items():
            self.events.log_value(name, value, step=self.state["iteration"])


def log_step(run: Training, terms: dict[str, float], pairs_per_second: float, batch_time: float, data_time: float,
             terminal: bool) -> None:
    """Log a step. Times are in seconds."""
    state, loss, several = run.state, sum(terms.values()), len(terms) > 1
    parts = " = " + " + ".join(f"{name} {term:.4g}" for name, term in terms.items())
    left = batch_time / 60 * (run.steps - state["step"])                            # minutes
    in_all = left + batch_time / 60 * run.steps * (run.opt.num_epochs - state["epoch"] - 1)
    run.say(f"{run.place()}: loss {loss:.4f}{parts * several}, {pairs_per_second:,.0f} pairs/s, {left:.1f} min left in "
            f"epoch, {in_all:.1f} in all", terminal=terminal)
    run.record("step", {
        "epoch": state["epoch"] + 1, "step": state["step"], "Eit": state["iteration"], "Le": loss,
        "lr": run.optimizers["optimizer"].param_groups[0]["lr"], "batch_time": batch_time, "data_time": data_time,
        **(terms if several else {})})


def log_validation(run: Training, result: dict) -> None:
    """Log recalls under VSE++'s names: r1 image to text, r1i text to image. Warn where a side is nearly one point."""
    state = run.state
    if "i2t" in result:
        sides = [(f"{name} ", result[side], f"medr {result[side]['medr']:.0f}")
                 for name, side in (("image to text", "i2t"), ("text to image", "t2i"))]
        scalars = {f"{k}{end}": result[side][k] for side, end in (("i2t", ""), ("t2i", "i"))
                   for k in ("r1", "r5", "r10", "medr", "meanr")}
        scalars |= {"rsum": result["rsum"], "hbr": result["hbr"],
                    **{f"cos_{side}": cosine for side, cosine in result["alike"].items()}}
    else:                                               # phrases in photos
        sides = [("", result, f"of at most {result['upper']:.1f}")]
        scalars = {k: result[k] for k in ("r1", "r5", "r10", "upper", "rsum")}
    shown = [f"{name}R@1 {r['r1']:.1f} R@5 {r['r5']:.1f} R@10 {r['r10']:.1f} {end}" for name, r, end in sides]
    run.say(f"{run.place()}: dev rsum {result['rsum']:.1f} | {' | '.join(shown)}")
    run.record("validation", scalars, epoch=state["epoch"] + (state["step"] > 0), step=state["step"] or run.steps)
    side, cosine = max(result["alike"].items(), key=lambda pair: pair[1])
    if cosine > COLLAPSED and state["epoch"] > 1 and not state["step"]:     # before, it may not have begun to learn
        warmup = ", or begin with the sum of violations (--vse_mean_warmup_epochs)" * bool(run.opt.max_violation)
        run.say(f"warning: two {side} have a mean cosine of {cosine:.3f}, so nearly all are one point; if that stays "
                f"so, lower --learning_rate{warmup}")


def comes_before(line: str, state: dict) -> bool:
    """Whether a line of log.jsonl was written before the checkpoint of `state`, or is nobody's."""
    try:
        return json.loads(line)["iteration"] <= state["iteration"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return not line.startswith('{"iteration"')


# ---- the folder of a run

def open_folder(run: Training) -> None:
    """Describe a run in its folder, and open its log. A new run writes the first checkpoint, so that it can always go
    on, and copies the best model so far of the run that it continues. An old run is removed when that checkpoint is on
    the disk."""
    opt, folder = run.opt, run.folder
    if continues(opt):
        write_description(run)
        run.open_log()
        return
    best = opt.resume and best_checkpoint(opt.resume, run.state["best_rsum"])
    if not best:
        run.state.update(best_rsum=0.0, best_hbr=0.0, best_r1=-1.0)
    path = os.path.join(folder, "checkpoint.pt")
    with atomic(path, "wb") as f:
        try:
            torch.save(run.content(), f)
            f.flush()
            os.fsync(f.fileno())
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path} could not be written ({cli.reason(error)}); nothing was replaced: make room, or "
                             "name a folder elsewhere with --logger_name") from error
        clear_run(folder)
        write_description(run)
        if best:
            with open(best, "rb") as old, atomic(os.path.join(folder, "model_best.pt"), "wb") as new:
                shutil.copyfileobj(old, new)
    run.open_log()


def write_description(run: Training) -> None:
    """Write config.yaml, which holds the command, where the code stood, the data, the options as asked for and as
    resolved, and vocab.json."""
    opt = run.opt
    commit = subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], text=True, capture_output=True, check=False,
                            cwd=os.path.dirname(os.path.abspath(__file__)))
    command = shlex.join(["python", *run.program.split(), *sys.argv[1:]])
    description = {
        "command": command, "git_commit": commit.stdout.strip() or "unknown",
        "versions": {"python": sys.version.split()[0], "torch": str(torch.__version__), "numpy": np.__version__},
        "data": {name: split.fingerprint() for name, split in run.splits.items()},
        "asked": opt.asked, "options": vars(opt)}
    first = read_description(run.folder) if continues(opt) else {}
    if first:                           # else it was lost, and the checkpoint knows the options
        description |= {"resumed_with": [*(first.get("resumed_with") or []), command],
                        **{name: first[name] for name in ("command", "asked") if name in first}}
    with atomic(os.path.join(run.folder, "config.yaml")) as f:
        yaml.safe_dump(description, f, sort_keys=False)
    run.vocab.save(os.path.join(run.folder, "vocab.json"))
    for name in CHECKPOINTS:            # that a process wrote when it was killed
        clear(os.path.join(run.folder, name))


if __name__ == "__main__":
    main()
