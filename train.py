"""Train a joint embedding of images and captions as points or Gaussians.

    python train.py --data_name coco_precomp --sim wasserstein

Writes runs/NAME/: config.yaml, vocab.json, log.txt, log.jsonl, tensorboard events, checkpoint.pt
(to --resume from) and model_best.pt (by rsum on the dev split, for evaluate.py).
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import contextlib
import math
import signal
import sys
import threading
import time
from typing import NamedTuple

import torch
import yaml
from tqdm import tqdm

import cli
import runs
from checkpoints import load_checkpoint, load_weights
from cli import InputError, check, torch_device
from evaluation.encode import validate
from evaluation.volume import training_shares
from files.writing import FORMAT
from losses import SUMMED
from methods import METHODS
from model import build_model
from optimisation import build_optimizers, build_schedule
from options import Options, parse_words, resolve, training_parser
from runs import NOT_KEPT, Data, Folder, build_data, config_arguments
from vocab import table_for

COLLAPSED = 0.98      # mean cosine of two items from which on a side is nearly one point
# Options that change embeddings and no weight's shape.
COMPUTE = ("feature_norm", "region_norm", "pool", "layer_style", "no_imgnorm", "use_abs",
           "logvar_norm", "var_min", "no_txtnorm", "raw_feature_norm", "text_anchor")


def main(argv=None) -> None:
    sys.exit(cli.run("train.py", train, parse_args(argv)))


# ---- the training

def train(opt) -> int:
    """Train as the options say. Return the exit status: 0; 1 where no model came out; 128 + signal
    after a wished stop."""
    device = torch_device(opt.device)
    folder = Folder(opt.logger_name, opt.resume, opt.overwrite)
    start = folder.checkpoint
    if opt.init_from and not start:
        start = load_checkpoint(opt.init_from, vocab=opt.vocab)
    data = build_data(opt, start)
    run = Training(opt, data, start, device)
    facts = described(opt, data, run, start)
    if opt.dry_run:
        print(yaml.safe_dump(vars(opt), sort_keys=True) + facts + "\ndry run: nothing was written")
        return 0
    if opt.loss == "volume":
        run.model.terms["volume"].shares = training_shares(
            run.model, data.train, data.dev, data.tokens, device)
    with delayed_signals() as received:
        folder.begin(run)
        folder.log.say(f"{facts}\nrun folder {folder.path}")
        return run_epochs(run, folder, received)


@contextlib.contextmanager
def delayed_signals():
    """A context in which Ctrl-C and SIGTERM only add their number to the list that it gives, so
    that the training saves after the step at hand, and --resume goes on exactly. A second Ctrl-C
    ends it at once."""
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


def run_epochs(run: "Training", folder: Folder, received: list[int]) -> int:
    """The loop over epochs and batches. A validation and a checkpoint follow each epoch, and every
    --val_step steps. received: signals that ask it to stop."""
    opt, data, state = run.opt, run.data, run.state
    run.model.train()
    waits = opt.patience or torch.inf       # epochs without a better model
    while state["epoch"] < opt.num_epochs and not received and state["waited"] < waits:
        with tqdm(total=data.steps, initial=state["step"], disable=None, leave=False,
                  desc=f"epoch {state['epoch'] + 1}/{opt.num_epochs}") as bar:
            clock = time.perf_counter()
            for batch in data.batches(state):
                data_time = time.perf_counter() - clock
                terms, pairs = run.step(batch.to(run.device))
                batch_time, clock = time.perf_counter() - clock, time.perf_counter()
                bar.set_postfix_str(f"loss {sum(terms.values()):.2f}, "
                                    f"{pairs / batch_time:,.0f} pairs/s", refresh=False)
                bar.update()
                if state["step"] % opt.log_step == 0 or state["step"] == data.steps:
                    folder.log_step(run, terms, pairs, batch_time, data_time, bar.disable)
                if state["iteration"] % opt.val_step == 0 and state["step"] < data.steps:
                    run.validate(folder)
                if received:
                    break
        if received:
            break
        loss = state["loss_sum"] / state["loss_count"]
        folder.log.record(state["iteration"], {"epoch_loss": loss}, kind="epoch",
                          epoch=state["epoch"] + 1)
        run.end_epoch()
        run.validate(folder)
    if received:
        folder.stopped(run)
        return 128 + received[0]
    if state["epoch"] < opt.num_epochs:
        folder.log.say(f"no better model on dev in {opt.patience} epochs, so epoch {state['epoch']} "
                       "was the last")
    return folder.done(state, opt.select)


class Learner(NamedTuple):
    """What a step of the training needs. model: gives the terms of the loss."""
    model: torch.nn.Module
    optimizers: dict[str, torch.optim.Optimizer]
    parameters: list[torch.nn.Parameter]                    # without those of the critic
    amp: bool                         # the networks compute in bf16
    grad_clip: float


def build_learner(opt, model: torch.nn.Module) -> Learner:
    optimizers = build_optimizers(opt, model)
    parameters = [p for group in optimizers["optimizer"].param_groups for p in group["params"]]
    return Learner(model, optimizers, parameters, opt.amp == "bf16", opt.grad_clip)


def train_step(learner: Learner, batch, where: str) -> dict[str, float]:
    """One step of every optimiser on the loss, a sum of terms, which it returns. where: the place
    in the training. Raises InputError with the name of a term that is not finite.

    The critic's terms and the others share the backward pass and no gradient: see losses.py.
    """
    model, optimizers, parameters, amp, grad_clip = learner
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=amp):
        terms = model(batch)
        loss = sum(terms.values())
    values = torch.stack([*terms.values()]).detach()
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, grad_clip or torch.inf)
    *values, norm = torch.cat([values, norm[None]]).tolist()    # where a step waits for the device
    terms = dict(zip(terms, values))
    wrong = [(f"the term '{name}'", x) for name, x in terms.items() if not math.isfinite(x)]
    if not math.isfinite(norm):
        wrong.append(("the gradient", norm))
    if wrong:
        raise InputError(f"{wrong[0][0]} of the loss became {wrong[0][1]} at {where}; the last "
                         "checkpoint is whole: lower --learning_rate or use --amp off")
    for optimizer in optimizers.values():
        optimizer.step()
    return terms


# ---- what learns

class Training:
    """A model, its optimisers and its place in the run: what a checkpoint holds."""

    def __init__(self, opt, data: Data, start: dict | None, device: torch.device):
        """start: the checkpoint whose weights are taken; where --resume is given, it goes on."""
        torch.manual_seed(opt.seed)
        self.opt, self.data, self.device = opt, data, device
        vectors = None if start else table_for
        self.model = self.build_model(start is None, vectors).to(device)
        if start:
            load_weights(self.model, start, opt.init_from or opt.logger_name,
                         means=opt.freeze_means and opt.resume is None)
        self.state = {"epoch": 0, "step": 0, "iteration": 0, "best_rsum": 0.0, "best_hbr": 0.0,
                      "best_r1": -1.0, "waited": 0, "loss_sum": 0.0, "loss_count": 0}
        self.learner = build_learner(opt, self.model)
        self.rate = build_schedule(opt, data.steps)
        if opt.resume is not None:
            self.restore(start)

    def build_model(self, pretrained: bool, vectors) -> torch.nn.Module:
        return build_model(self.opt, self.data.vocab, pretrained, vectors)

    def rank_dev(self) -> dict:
        """Recalls of the dev split."""
        return validate(self.model, self.data.dev, self.data.tokens["dev"], self.device, self.opt.workers)

    def step(self, batch) -> tuple[dict[str, float], int]:
        """Set the learning rates, learn from a batch and count it. Returns the terms of the loss
        and the number of pairs. The critic keeps its rate (`jwae` 5.1)."""
        opt, state = self.opt, self.state
        share = self.rate(state["epoch"], state["step"])
        for group in self.learner.optimizers["optimizer"].param_groups:
            group["lr"] = group["initial_lr"] * share
        if opt.loss == "hinge":
            warm = state["epoch"] >= opt.vse_mean_warmup_epochs
            self.model.objective.max_violation = opt.max_violation and warm
        terms = train_step(self.learner, batch,
                           f"epoch {state['epoch'] + 1} step {state['step'] + 1}")
        pairs = len(batch.lengths)
        state["step"] += 1
        state["iteration"] += 1
        state["loss_sum"] += sum(terms.values()) * (1 if opt.loss in SUMMED else pairs)
        state["loss_count"] += pairs
        return terms, pairs

    def end_epoch(self) -> None:
        self.state.update(epoch=self.state["epoch"] + 1, step=0, loss_sum=0.0, loss_count=0)

    def validate(self, folder: Folder) -> None:
        """Rank the dev split, and write a checkpoint. At the ends of epochs the recalls choose the
        best model, as in VSE++."""
        state, data, opt = self.state, self.data, self.opt
        self.model.eval()
        result = self.rank_dev()
        self.model.train()
        folder.log.validation(state, data.steps, result)
        side, cosine = max(result["alike"].items(), key=lambda pair: pair[1])
        # before the second epoch a model may not have begun to learn
        if cosine > COLLAPSED and state["epoch"] > 1 and not state["step"]:
            warmup = ", or begin with the sum of violations (--vse_mean_warmup_epochs)"
            folder.log.say(f"warning: two {side} have a mean cosine of {cosine:.3f}, so nearly all "
                           "are one point; if that stays so, lower --learning_rate"
                           + warmup * opt.max_violation)
        r1 = result["r1"] if "r1" in result else result["i2t"]["r1"] + result["t2i"]["r1"]
        # of variances around frozen means, which rank nothing, the last are the best
        better = result["rsum"] > state["best_rsum"] or (
            opt.freeze_means and result["rsum"] == state["best_rsum"])
        if opt.select == "hbr":
            better = not 0 < state["best_hbr"] <= result["hbr"]
        elif opt.select == "r1":
            better = r1 > state["best_r1"]
        if not state["step"]:
            state["waited"] += 1
            if better:
                state.update(waited=0, best_rsum=result["rsum"], best_hbr=result.get("hbr", 0.0),
                             best_r1=r1)
                folder.save(self, "model_best.pt", whole=False)
        folder.save(self)

    def content(self, whole: bool = True) -> dict:
        """What a checkpoint holds. whole: with what only --resume needs."""
        options = {name: value for name, value in vars(self.opt).items() if name not in NOT_KEPT}
        stored = {"format": FORMAT, "options": options, "vocabulary": self.data.vocab.words,
                  "state": dict(self.state), "data": self.data.fingerprints,
                  "model": self.model.state_dict()}
        if whole:
            stored |= {name: part.state_dict() for name, part in self.learner.optimizers.items()}
            cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
            stored |= {"rng": torch.get_rng_state(), "cuda_rng": cuda}
        return stored

    def restore(self, resumed: dict) -> None:
        """Go on from a checkpoint. Raises InputError where its optimisers or random states are of
        something else."""
        opt, at, steps = self.opt, resumed["state"], self.data.steps
        fix = "take another one, or start a new run from its weights with --init_from"
        check(at["iteration"] >= at["step"] <= steps and (at["loss_count"] or not at["step"]),
              f"the checkpoint {opt.resume} stands at step {at['step']} of an epoch of {steps}, "
              f"{at['iteration']} in all, with {at['loss_count']} pairs of it seen, which no "
              f"training writes; {fix}")
        try:
            for name, optimizer in self.learner.optimizers.items():
                optimizer.load_state_dict(resumed[name])
            torch.set_rng_state(resumed["rng"])
            if self.device.type == "cuda" and resumed["cuda_rng"]:
                torch.cuda.set_rng_state(resumed["cuda_rng"][0], self.device)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError(f"the checkpoint {opt.resume} holds optimisers or random states of "
                             f"something else ({cli.reason(error)}); {fix}") from error
        self.state.update((name, at[name]) for name in self.state if name in at)


# ---- the first lines of the log

def described(opt, data: Data, run: Training, start: dict | None) -> str:
    """What is trained on what, in lines for the log. start: the checkpoint that is begun from."""
    violations = "hardest negative" if opt.max_violation else "sum of violations"
    objective = f"{violations}, margin {opt.margin}" if opt.loss == "hinge" else opt.loss
    trainable = sum(p.numel() for p in run.learner.parameters)
    facts = (f"{opt.data_name}: {data.describe()}, {len(data.vocab):,} words of {data.source}\n"
             f"{opt.sim}, image head {opt.image_head}, "
             f"text head {opt.text_head}, {objective}, embed_size {opt.embed_size}, "
             f"{trainable:,} trainable parameters, {run.device}, seed {opt.seed}")
    start = start or {}
    notes = [*start.get("notes", ())]
    theirs = start.get("options", {}) if opt.resume is None else {}
    unlike = [f"{name} {theirs[name]} and not {getattr(opt, name)}" for name in COMPUTE
              if name in theirs and theirs[name] != getattr(opt, name)]
    if unlike:
        notes.append(f"{opt.init_from} was trained with {', '.join(unlike)}, so its weights do not "
                     "embed as they did")
    notes += [*data.train.notes, *data.dev.notes]
    return "\n".join([facts, *(f"note: {note}" for note in notes)])


# ---- the options of a run

def parse_args(argv=None, p: cli.Arguments | None = None) -> Options:
    """The options of the command line, resolved: heads, objective and run folder are filled in.
    Exits on wrong ones.

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
            opt = runs.resumed_options(p, opt, words)
        resolve(opt)
        if opt.init_from and opt.resume is None:    # a wrong one is refused before data is read
            load_checkpoint(opt.init_from, vocab=opt.vocab)
    except InputError as error:
        needs = METHODS[opt.method].needs if opt.method else ""
        p.error(f"{error}" + f" (--method {opt.method} needs {needs})" * bool(needs))
    return opt


if __name__ == "__main__":
    main()
