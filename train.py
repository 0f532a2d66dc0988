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
import functools
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
from dataclasses import dataclass

import numpy as np
import torch
import yaml
from tqdm import tqdm

import cli
import metrics
from checkpoint import (
    CHECKPOINTS,
    NOT_KEPT,
    best_of,
    check_new,
    clear_old,
    description_in,
    is_run,
    load_checkpoint,
    load_model,
    load_resumable,
    load_weights,
    resumed_options,
    run_folder,
)
from cli import InputError, check, torch_device
from data import Split, check_extractors, read_split
from evaluation.encode import validate
from files import FORMAT, atomic, clear, read_lines, read_yaml, same_file, save_lines, save_state
from losses import SUMMED
from methods import METHODS
from methods.two_branch import sibling_order
from methods.unpaired import Unpaired, build_unpaired, choose_pairs
from methods.word_vectors import read_word_vectors
from model import VSE, build_model, build_vocabulary
from options import (
    COMMAND_LINE,
    Options,
    check_fits,
    fit_to_data,
    list_options,
    parse_words,
    resolve,
    spell,
    training_parser,
)
from vocab import Vocabulary

CRITIC_RATE = 5e-5    # learning rate of jWAE's critic (`jwae` 5.1)
COLLAPSED = 0.98      # mean cosine of two items from which on a side is nearly one point
# Options that change embeddings and no weight's shape.
COMPUTE = ("feature_norm", "region_norm", "pool", "layer_style", "no_imgnorm", "use_abs", "logvar_norm", "var_min",
           "no_txtnorm", "raw_feature_norm", "text_anchor")


RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))   # torchrun's


def main(argv=None) -> None:
    sys.exit(cli.run("train.py", train, parse_args(argv)))


def parse_args(argv=None, p: cli.Arguments | None = None) -> Options:
    """The options of the command line, resolved. Exits on wrong ones.

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
        words = [*(config_arguments(opt.config, p) if opt.config else ()), *argv]
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


def config_arguments(path: str, p: cli.Arguments) -> list[str]:
    """The options of a YAML file as words of a command line. A run's config.yaml gives those that it was asked for,
    from which others follow, and never its folder."""
    values, where = read_yaml(path), f"--config {path}"
    check(isinstance(values, dict), f"{where} holds no options by their names")
    if isinstance(values.get("options"), dict):
        values = values["asked"] if isinstance(values.get("asked"), dict) else values["options"]
        known = list_options(p)
        values = {name: value for name, value in values.items() if name in known and name not in COMMAND_LINE}
    for name in values:
        check(name not in COMMAND_LINE,
              f"{where} holds '{name}', which only the command line can say, so that a file of options never names or "
              f"replaces a run, nor starts a command; leave it out and give --{name}")
    return spell(values, p, where)


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
    """Train as the options say. Return the exit status: 0; 1 where no model came out; 128 + signal after a wished
    stop."""
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
            run.model, run.data.train, run.data.dev, run.data.tokens, device)
    with delayed_signals() as received:
        begin(run)
        run.log.say(f"{facts}\nrun folder {run.folder}")
        return run_epochs(run, received)


def run_epochs(run: "Training", received: list[int]) -> int:
    """The loop over epochs and batches. A validation and a checkpoint follow each epoch, and every --val_step steps.
    received: signals that ask it to stop."""
    opt, data, state, log = run.opt, run.data, run.state, run.log
    run.model.train()
    waits = opt.patience or torch.inf       # epochs without a better model
    while state["epoch"] < opt.num_epochs and not received and state["waited"] < waits:
        with tqdm(total=data.steps, initial=state["step"], disable=RANK > 0 or None, leave=False,
                  desc=f"epoch {state['epoch'] + 1}/{opt.num_epochs}") as bar:
            clock = time.perf_counter()
            for batch in data.batches(state):
                data_time = time.perf_counter() - clock
                terms, pairs = run.step(batch.to(run.device))
                batch_time, clock = time.perf_counter() - clock, time.perf_counter()
                bar.set_postfix_str(f"loss {sum(terms.values()):.2f}, {pairs / batch_time:,.0f} pairs/s", refresh=False)
                bar.update()
                if state["step"] % opt.log_step == 0 or state["step"] == data.steps:
                    log.step(run, terms, pairs, batch_time, data_time, bar.disable)
                if state["iteration"] % opt.val_step == 0 and state["step"] < data.steps:
                    validate_on_first(run)
                if stop_is_asked(received, run.device):
                    break
        if received:
            break
        log.record(state["iteration"], {"epoch_loss": state["loss_sum"] / state["loss_count"]}, kind="epoch",
                   epoch=state["epoch"] + 1)
        state.update(epoch=state["epoch"] + 1, step=0, loss_sum=0.0, loss_count=0)
        validate_on_first(run)
    if received:
        run.save()
        log.say(f"stopped at {log.where(state, data.steps)}; go on with: {sys.executable} {run.program} --resume "
                f"{run.folder}")
        return 128 + received[0]
    if state["epoch"] < opt.num_epochs:
        log.say(f"no better model on dev in {opt.patience} epochs, so epoch {state['epoch']} was the last")
    return 0 if RANK else say_end(run)


def say_end(run: "Training") -> int:
    """Say how to evaluate a run. Returns the exit status, 1 where no model came out."""
    state, program = run.state, run.program.replace("train", "evaluate")
    evaluate = f"{sys.executable} {program} --checkpoint {run.folder}"
    if os.path.isfile(os.path.join(run.folder, "model_best.pt")):
        hbr = f", HBR {state['best_hbr']:.2f}, which chose it" if run.opt.select == "hbr" else ""
        run.log.say(f"done: best dev rsum {state['best_rsum']:.1f}{hbr}; evaluate with: {evaluate}")
        return 0
    if state["best_rsum"]:
        run.log.say(f"done, but model_best.pt, of dev rsum {state['best_rsum']:.1f}, is not in {run.folder} any more; "
                    f"evaluate the last weights with: {evaluate}/checkpoint.pt")
    else:
        run.log.say(f"done, but dev rsum was 0 after every epoch, so {run.folder} holds no model: nothing of what was "
                    "learned finds one match; look at log.txt and the data (python data.py check)")
    return 1


@contextlib.contextmanager
def delayed_signals():
    """A context in which Ctrl-C and SIGTERM only add their number to the list that it gives, so that the training saves
    after the step at hand, and --resume goes on exactly. A second Ctrl-C ends it at once."""
    received, before = [], {}

    def receive(number: int, frame) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.append(number)
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)
                  if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- several processes: torchrun --nproc_per_node 2 train.py. Each learns from its own share of the pairs, with the
# negatives of its own batches, and gradients are averaged; rank 0 validates and writes.

def join_processes(opt) -> torch.device:
    """The device of this process, which joins the others of torchrun; all but the first write into a folder of no
    account, and say nothing."""
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


def validate_on_first(run: "Training") -> None:
    """Validate and write on rank 0, whose state the others take."""
    if RANK == 0:
        run.validate()
    if WORLD > 1:
        torch.distributed.broadcast_object_list(states := [run.state])
        run.state.update(states[0])


def stop_is_asked(received: list[int], device: torch.device) -> bool:
    """Whether a signal has reached any process."""
    if WORLD > 1:
        number = torch.tensor(max(received, default=0), device=device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        received += [int(number)] * (int(number) > 0)
    return bool(received)


# ---- a step

def build_optimizers(opt, model) -> dict[str, torch.optim.Optimizer]:
    """"optimizer" of all that the model learns but jWAE's critic; "critic_optimizer" of the critic, an Adam of its own.
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
    """How much of --learning_rate a step of an epoch of `steps` takes. The rate rises in a line over --warmup epochs,
    then falls tenfold every --lr_update epochs, or as half a cosine to 0 at the end."""
    done = epoch + step / steps                         # epochs, with their fractions
    if done < opt.warmup:
        return (done + 1 / steps) / (opt.warmup + 1 / steps)
    if opt.schedule == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * (done - opt.warmup) / (opt.num_epochs - opt.warmup))
    return 0.1 ** (epoch // opt.lr_update)


def train_step(run: "Training", batch) -> dict[str, float]:
    """One step of every optimiser on the loss, a sum of terms, which it returns. Raises InputError with the name of a
    term that is not finite.

    The critic's terms and the others share the backward pass and no gradient: see losses.py.
    """
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=run.opt.amp == "bf16"):
        terms = run.network(batch)
        loss = sum(terms.values())
    values = torch.stack([*terms.values()]).detach()
    for optimizer in run.optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(run.parameters, run.opt.grad_clip or torch.inf)
    *values, norm = torch.cat([values, norm[None]]).tolist()    # where a step waits for the device
    terms = dict(zip(terms, values))
    for name, value in [*((f"the term '{name}'", x) for name, x in terms.items()), ("the gradient", norm)]:
        check(math.isfinite(value), f"{name} of the loss became {value} at epoch {run.state['epoch'] + 1} step "
                                    f"{run.state['step'] + 1}; the last checkpoint is whole: lower --learning_rate or "
                                    "use --amp off")
    for optimizer in run.optimizers.values():
        optimizer.step()
    return terms


def announce(opt, text: str) -> None:
    """Say what the training is about to do, before it has a log."""
    if not opt.dry_run:
        print(text, flush=True)


class Training:
    """A model that learns: its data, optimisers, place in the training (`state`), folder and log."""
    program = "train.py"

    def __init__(self, opt, start: dict | None, device: torch.device):
        """start: the checkpoint whose weights are taken; where --resume is given, it goes on."""
        announce(opt, f"reading {os.path.join(opt.data_path, opt.data_name)}")
        self.opt, self.device, self.folder, self.log = opt, device, opt.logger_name, None
        self.data = self.read_data(start)
        announce(opt, "building the model")
        torch.manual_seed(opt.seed)
        self.model = self.build_model(start is None, None if start else read_word_vectors).to(device)
        if start:
            load_weights(self.model, start, opt.init_from or opt.logger_name,
                         means=opt.freeze_means and opt.resume is None)
        self.state = {"epoch": 0, "step": 0, "iteration": 0, "best_rsum": 0.0, "best_hbr": 0.0, "best_r1": -1.0,
                      "waited": 0, "loss_sum": 0.0, "loss_count": 0}
        self.optimizers = build_optimizers(opt, self.model)
        self.parameters = [p for group in self.optimizers["optimizer"].param_groups for p in group["params"]]
        if opt.resume is not None:
            self.restore(start)
        self.network = self.model
        if WORLD > 1:
            self.network = torch.nn.parallel.DistributedDataParallel(self.model)
            torch.manual_seed(opt.seed + RANK + WORLD * self.state["iteration"])        # noise of its own

    def read_data(self, start: dict | None) -> "Data":
        return build_data(self.opt, start)

    def build_model(self, pretrained: bool, vectors) -> torch.nn.Module:
        return build_model(self.opt, self.data.vocab, pretrained, vectors)

    def rank_dev(self) -> dict:
        """Recalls of the dev split."""
        return validate(self.model, self.data.dev, self.data.tokens["dev"], self.device, self.opt.workers)

    def step(self, batch) -> tuple[dict[str, float], int]:
        """Set the learning rates, learn from a batch and count it. Returns the terms of the loss and the number of
        pairs. The critic keeps its rate (`jwae` 5.1)."""
        opt, state = self.opt, self.state
        share = rate_share(opt, state["epoch"], state["step"], self.data.steps)
        for group in self.optimizers["optimizer"].param_groups:
            group["lr"] = group["initial_lr"] * share
        if opt.loss == "hinge":
            warm = state["epoch"] >= opt.vse_mean_warmup_epochs
            self.model.objective.max_violation = opt.max_violation and warm
        terms = train_step(self, batch)
        pairs = len(batch.lengths)
        state["step"] += 1
        state["iteration"] += 1
        state["loss_sum"] += sum(terms.values()) * (1 if opt.loss in SUMMED else pairs)
        state["loss_count"] += pairs
        return terms, pairs

    def validate(self) -> None:
        """Rank the dev split, and write a checkpoint. At the ends of epochs the recalls choose the best model, as in
        VSE++."""
        state, opt = self.state, self.opt
        self.model.eval()
        result = self.rank_dev()
        self.model.train()
        self.log.validation(state, self.data.steps, result)
        side, cosine = max(result["alike"].items(), key=lambda pair: pair[1])
        # before the second epoch a model may not have begun to learn
        if cosine > COLLAPSED and state["epoch"] > 1 and not state["step"]:
            warmup = ", or begin with the sum of violations (--vse_mean_warmup_epochs)"
            self.log.say(f"warning: two {side} have a mean cosine of {cosine:.3f}, so nearly all are one point; if "
                         f"that stays so, lower --learning_rate{warmup * opt.max_violation}")
        r1 = result["r1"] if "r1" in result else result["i2t"]["r1"] + result["t2i"]["r1"]
        # of variances around frozen means, which rank nothing, the last are the best
        better = result["rsum"] > state["best_rsum"] or (opt.freeze_means and result["rsum"] == state["best_rsum"])
        if opt.select == "hbr":
            better = not 0 < state["best_hbr"] <= result["hbr"]
        elif opt.select == "r1":
            better = r1 > state["best_r1"]
        if not state["step"]:
            state["waited"] += 1
            if better:
                state.update(waited=0, best_rsum=result["rsum"], best_hbr=result.get("hbr", 0.0), best_r1=r1)
                self.save("model_best.pt", whole=False)
        self.save()

    def save(self, name: str = "checkpoint.pt", whole: bool = True) -> None:
        save_state(self.content(whole), os.path.join(self.folder, name), "make room and --resume")

    def content(self, whole: bool = True) -> dict:
        """What a checkpoint holds. whole: with what only --resume needs."""
        options = {name: value for name, value in vars(self.opt).items() if name not in NOT_KEPT}
        stored = {"format": FORMAT, "options": options, "vocabulary": self.data.vocab.words, "state": dict(self.state),
                  "data": self.data.fingerprints, "model": self.model.state_dict()}
        if whole:
            stored |= {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
            cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
            stored |= {"rng": torch.get_rng_state(), "cuda_rng": cuda}
        return stored

    def restore(self, resumed: dict) -> None:
        """Go on from a checkpoint. Raises InputError where its optimisers or random states are of something else."""
        opt, at, steps = self.opt, resumed["state"], self.data.steps
        fix = "take another one, or start a new run from its weights with --init_from"
        check(at["iteration"] >= at["step"] <= steps and (at["loss_count"] or not at["step"]),
              f"the checkpoint {opt.resume} stands at step {at['step']} of an epoch of {steps}, {at['iteration']} in "
              f"all, with {at['loss_count']} pairs of it seen, which no training writes; {fix}")
        try:
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(resumed[name])
            torch.set_rng_state(resumed["rng"])
            if self.device.type == "cuda" and resumed["cuda_rng"]:
                torch.cuda.set_rng_state(resumed["cuda_rng"][0], self.device)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError(f"the checkpoint {opt.resume} holds optimisers or random states of something else "
                             f"({cli.reason(error)}); {fix}") from error
        self.state.update((name, at[name]) for name in self.state if name in at)

    def describe(self, start: dict | None) -> str:
        """What is trained on what, in lines for the log. start: the checkpoint that is begun from."""
        opt, data, start = self.opt, self.data, start or {}
        violations = "hardest negative" if opt.max_violation else "sum of violations"
        objective = f"{violations}, margin {opt.margin}" if opt.loss == "hinge" else opt.loss
        trainable = sum(p.numel() for p in self.parameters)
        facts = (f"{opt.data_name}: {data.describe()}, {len(data.vocab):,} words of {data.source}\n"
                 f"{opt.sim}, image head {opt.image_head}, text head {opt.text_head}, {objective}, embed_size "
                 f"{opt.embed_size}, {trainable:,} trainable parameters, {self.device}, seed {opt.seed}")
        notes = [*start.get("notes", ())]
        theirs = start.get("options", {}) if opt.resume is None else {}
        unlike = [f"{name} {theirs[name]} and not {getattr(opt, name)}" for name in COMPUTE
                  if name in theirs and theirs[name] != getattr(opt, name)]
        if unlike:
            notes.append(f"{opt.init_from} was trained with {', '.join(unlike)}, so its weights do not embed as they "
                "did")
        notes += [*data.train.notes, *data.dev.notes]
        return "\n".join([facts, *(f"note: {note}" for note in notes)])


# ---- the folder of a run

def goes_on(opt) -> bool:
    """Whether a run goes on in its own folder."""
    return opt.resume is not None and same_file(opt.logger_name, run_folder(opt.resume))


def check_folder(opt) -> None:
    """Raise InputError where the folder cannot be written to or gone on in."""
    if not goes_on(opt):
        check_new(opt.logger_name, opt.overwrite)
    else:
        check(is_run(opt.logger_name), f"--resume {opt.resume} lies in a folder that is no run; name a new folder to "
                                       "go on in with --logger_name")


def begin(run: Training) -> None:
    """Describe a run in its folder, and open its log. A new run writes the first checkpoint, so that it can always go
    on, and the best model so far of the run gone on from. What a run before has left goes when that checkpoint is on
    the disk."""
    opt, folder = run.opt, run.folder
    if goes_on(opt):
        write_description(run)
    else:
        best = opt.resume and best_of(opt.resume, run.state["best_rsum"])
        if not best:
            run.state.update(best_rsum=0.0, best_hbr=0.0, best_r1=-1.0)
        path = os.path.join(folder, "checkpoint.pt")
        with atomic(path, "wb") as f:
            try:
                torch.save(run.content(), f)
                f.flush()
                os.fsync(f.fileno())
            except (OSError, RuntimeError) as error:
                raise InputError(f"{path} could not be written ({cli.reason(error)}); nothing was replaced: make room, "
                                 "or name a folder elsewhere with --logger_name") from error
            clear_old(folder)
            write_description(run)
            if best:
                with open(best, "rb") as old, atomic(os.path.join(folder, "model_best.pt"), "wb") as new:
                    shutil.copyfileobj(old, new)
    run.log = Log(folder, run.state, opt.num_epochs)


def write_description(run: Training) -> None:
    """Write config.yaml, which holds the command, where the code stood, the data, the options as asked for and as
    resolved, and vocab.json."""
    opt, data = run.opt, run.data
    commit = subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], text=True, capture_output=True, check=False,
                            cwd=os.path.dirname(os.path.abspath(__file__)))
    command = shlex.join(["python", *run.program.split(), *sys.argv[1:]])
    description = {
        "command": command, "git_commit": commit.stdout.strip() or "unknown",
        "versions": {"python": sys.version.split()[0], "torch": str(torch.__version__), "numpy": np.__version__},
        "data": {"train": data.train.fingerprint(), "dev": data.dev.fingerprint()},
        "asked": opt.asked, "options": vars(opt)}
    first = description_in(run.folder) if goes_on(opt) else {}
    if first:                           # else it was lost, and the checkpoint knows the options
        description |= {"resumed_with": [*(first.get("resumed_with") or []), command],
                        **{name: first[name] for name in ("command", "asked") if name in first}}
    with atomic(os.path.join(run.folder, "config.yaml")) as f:
        yaml.safe_dump(description, f, sort_keys=False)
    data.vocab.save(os.path.join(run.folder, "vocab.json"))
    for name in CHECKPOINTS:            # that a process wrote when it was killed
        clear(os.path.join(run.folder, name))


class Log:
    """log.txt for people, log.jsonl for programs, tensorboard events; and the terminal. Epochs are counted from 1."""

    def __init__(self, folder: str, state: dict, epochs: int):
        """epochs: of the whole training."""
        import tensorboard_logger

        self.epochs, self.events = epochs, tensorboard_logger.Logger(folder, flush_secs=5)
        path = os.path.join(folder, "log.txt")
        with open(path, "ab+") as f:                        # it may have been cut off within a line
            f.seek(max(0, f.tell() - 1))
            f.write(b"\n" * (f.read() not in (b"", b"\n")))
        self.text = open(path, "a", encoding="utf-8", errors="backslashreplace")
        path = os.path.join(folder, "log.jsonl")
        if os.path.isfile(path):
            save_lines(path, [line for line in read_lines(path) if comes_before(line, state)])
        self.json = open(path, "a", encoding="utf-8")

    def where(self, state: dict, steps: int) -> str:
        """The place in the training that a line is about."""
        if not state["step"]:
            return f"epoch {state['epoch']}/{self.epochs} done" if state["epoch"] else "the start"
        return f"epoch {state['epoch'] + 1}/{self.epochs} step {state['step']}/{steps}"

    def say(self, line: str, terminal: bool = True) -> None:
        if terminal:
            with contextlib.suppress(OSError):              # the terminal is gone, the run goes on
                tqdm.write(line)
                sys.stdout.flush()
        self.text.write(line + "\n")
        self.text.flush()

    def step(self, run: Training, terms: dict[str, float], pairs: int, batch_time: float, data_time: float,
             terminal: bool) -> None:
        """Write a line on a step. Times are in seconds."""
        state, steps, loss, several = run.state, run.data.steps, sum(terms.values()), len(terms) > 1
        parts = " = " + " + ".join(f"{name} {term:.4g}" for name, term in terms.items())
        left = batch_time / 60 * (steps - state["step"])                            # minutes
        in_all = left + batch_time / 60 * steps * (self.epochs - state["epoch"] - 1)
        self.say(f"{self.where(state, steps)}: loss {loss:.4f}{parts * several}, {pairs / batch_time:,.0f} pairs/s, "
                 f"{left:.1f} min left in epoch, {in_all:.1f} in all", terminal=terminal)
        self.record(state["iteration"], {
            "epoch": state["epoch"] + 1, "step": state["step"], "Eit": state["iteration"], "Le": loss,
            "lr": run.optimizers["optimizer"].param_groups[0]["lr"], "batch_time": batch_time, "data_time": data_time,
            **(terms if several else {})}, kind="step")

    def validation(self, state: dict, steps: int, result: dict) -> None:
        """Write recalls under VSE++'s names: r1 image to text, r1i text to image."""
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
        self.say(f"{self.where(state, steps)}: dev rsum {result['rsum']:.1f} | {' | '.join(shown)}")
        self.record(state["iteration"], scalars, kind="validation",
                    epoch=state["epoch"] + (state["step"] > 0), step=state["step"] or steps)

    def record(self, iteration: int, scalars: dict, **fields) -> None:
        self.json.write(json.dumps({"iteration": iteration, **fields, **scalars}) + "\n")
        self.json.flush()
        for name, value in scalars.items():
            self.events.log_value(name, value, step=iteration)


def comes_before(line: str, state: dict) -> bool:
    """Whether a line of log.jsonl stays when a run goes on from `state`: what was logged after its checkpoint comes
    again. Lines that somebody else wrote stay, but for one that was torn off."""
    try:
        return json.loads(line)["iteration"] <= state["iteration"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return not line.startswith('{"iteration"')


# ---- what a run is trained on

@dataclass
class Data:
    """What a run is trained on and validated with, and how its batches are made."""
    train: Split
    dev: Split
    vocab: Vocabulary
    source: str                       # where the vocabulary's words come from
    tokens: dict                      # of "train" and "dev": the captions as the model reads them
    pairs: np.ndarray                 # (m,) training captions whose images are known
    unpaired: Unpaired | None
    fingerprints: dict                # what a run that goes on must find again
    batch_size: int                   # how many of `order` a batch holds
    seed: int
    workers: int = 0
    crop_size: int | None = None
    siblings: bool = False            # captions of an image stand side by side

    @functools.cached_property
    def steps(self) -> int:
        """Per epoch."""
        return -(-len(self.own_order(0)) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The captions of an epoch: `pairs` shuffled."""
        rng = np.random.default_rng([self.seed, epoch])
        if self.siblings:
            return self.pairs[sibling_order(self.train.caption_image[self.pairs], rng)]
        return self.pairs[rng.permutation(len(self.pairs))]

    def own_order(self, epoch: int) -> np.ndarray:
        """The share of `order` of this process; with several, all shares have one even size."""
        order = self.order(epoch)
        size = len(order) if WORLD == 1 else len(order) // WORLD // 2 * 2
        return order[RANK * size:(RANK + 1) * size]

    def describe(self) -> str:
        """What is learned from and validated on, in a line."""
        chance = metrics.chance(self.dev.caption_image, len(self.dev.images))["rsum"]
        return (f"{len(self.pairs):,} training pairs of {len(self.train.images):,} images, "
                f"{len(self.dev.images):,} dev images (rsum by chance {chance:.1f})")

    def batches(self, state: dict):
        """The batches of the current epoch that are still to come."""
        batches = self.train.batches(self.tokens["train"], self.own_order(state["epoch"]), self.batch_size,
                                     workers=self.workers, seed=(self.seed, state["epoch"]), skip=state["step"],
                                     crop_size=self.crop_size)
        for iteration, batch in enumerate(batches, state["iteration"]):  # state may lag behind
            yield batch._replace(unpaired=self.unpaired and self.unpaired.batch(iteration * WORLD + RANK))


def build_data(opt, start: dict | None) -> Data:
    """Read the splits, and settle by them what the options left open. start: a checkpoint whose words are taken, and
    which goes on where --resume is given. Raises InputError where data, options and checkpoint do not fit."""
    train, dev = (read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval,
                             dev_images=opt.dev_images, text_features=opt.text_features).require_sound()
                  for name in ("train", "dev"))
    for split in (train, dev):
        check(len(split.images) >= 2, f"{split.source} has one image, and there is nothing that a caption of it could "
                                      f"be taken for by mistake; a {split.name} split needs two or more")
    fit_to_data(opt, train.images, train.text)
    check_fits(opt, dev.images, dev.text, "the model")
    fingerprints = {**train.fingerprint(), "dev": dev.fingerprint()}
    extractors = start["data"].get("extractors") if start and "data" in start else None
    check_extractors(extractors, train, opt.text_features, str(opt.init_from))
    words, source = ((start["vocabulary"], opt.init_from or opt.logger_name) if start else build_word_list(opt, train))
    vocab = build_vocabulary(opt, words)
    tokens = {"train": train.encode(vocab), "dev": dev.encode(vocab)}
    pairs = choose_pairs(train, opt.supervised_fraction, opt.seed)
    unpaired = build_unpaired(opt, train, tokens["train"], pairs, vocab)
    if unpaired and unpaired.data:
        fingerprints["unpaired"] = unpaired.data
    stored = {} if opt.resume is None else start["data"]
    check(all(stored.get(name, x) == x for name, x in fingerprints.items()),
          f"the training data in {os.path.join(opt.data_path, opt.data_name)}, or the unpaired ones, are not those of "
          f"the run in {opt.logger_name}; give its --data_path, or start a new run with --init_from")
    return Data(train, dev, vocab, source, tokens, pairs, unpaired, fingerprints, opt.batch_size, opt.seed, opt.workers,
                opt.crop_size, opt.loss == "two_branch")


def build_word_list(opt, train: Split) -> tuple[list[str], str]:
    """The words of the vocabulary file of the data set if there is one, else of its captions; and which of the two."""
    path = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
    if os.path.isfile(path):
        for name in ("vocab_threshold", "vocab_splits"):
            check(getattr(opt, name) == training_parser().get_default(name),
                  f"--{name} {getattr(opt, name)} counts words of the captions, and {path} lists the words already; "
                  "leave it out, delete the file, or name another folder with --vocab_path")
        return Vocabulary.load(path).words, path
    splits = [train if name == "train" else read_split(opt.data_path, opt.data_name, name, dev_images=0)
              for name in opt.vocab_splits.split(",")]
    captions = (words for split in splits for words in split.words)
    return Vocabulary.build(captions, opt.vocab_threshold).words, "the captions"


if __name__ == "__main__":
    main()
