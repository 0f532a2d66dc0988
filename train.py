"""Train a joint embedding of images and captions as points or Gaussians.

    python train.py --data_name coco_precomp --sim wasserstein

Writes runs/NAME/: config.yaml, vocab.json, log.txt, log.jsonl, tensorboard events, checkpoint.pt (to --resume from) and
model_best.pt (by rsum on the dev split, for evaluate.py).
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import contextlib
import math
import os
import sys
import time

import torch
import yaml
from tqdm import tqdm

import cli
import runs
from checkpoints import load_checkpoint, load_weights
from cli import InputError, Stop, Stopped, torch_device
from devices.compiling import compile_parts
from devices.feeding import on_device
from devices.load import Load
from devices.precision import always_alike, full_float32, use_tf32
from evaluation.described import described
from evaluation.encode import validate
from features.word_vectors import table_for
from files.log import Log, NoLog
from files.writing import FORMAT, locked, same_file, save_state
from methods import METHODS
from model import build_model
from optimisation import averaged, build_optimizers, share_of_rate
from options import parser, resolve
from options.rules import refuse_several
from parallel import processes
from runs import COMMAND_LINE, NOT_KEPT, Data, Options, config_arguments, load_data

COLLAPSED = 0.98                      # mean cosine of two items from which on a side is nearly one point
MORE_WARMUP = ", or begin with the sum of violations (--vse_mean_warmup_epochs)"


def main(argv=None) -> None:
    sys.exit(cli.run("train.py", train, parse_args(argv), several=True))


# ---- the training

def train(opt) -> int:
    """Train as the options say. Returns the exit status: 0, 1 where no model came out, or 128 + signal after a wished
    stop."""
    device = processes.local(set_device(opt))
    # held: the lock of the run folder, the hold of signals
    with explained(opt), processes.joined(device), contextlib.ExitStack() as held:
        refuse_several(opt, processes.count())
        resumed = check_folder(opt, held)
        start = resumed or (load_checkpoint(opt.init_from, vocab=opt.vocab) if opt.init_from else None)
        data = load_data(opt, start, resumed)
        run = Training(opt, data, start, resumed, device)
        facts = described(opt, data, run, start)
        if opt.dry_run:
            if processes.first():
                print(yaml.safe_dump(vars(opt), sort_keys=True) + facts + "\ndry run: nothing was written")
            return 0
        stop = held.enter_context(Stop(later=True))
        fed = data.feed(device)
        folder = Folder(opt, data, run, stop, held, resumed)
        folder.log.say("\n".join(filter(None, [facts, fed, f"run folder {opt.logger_name}"])))
        return run_epochs(opt, data, run, folder)


def run_epochs(opt, data: "Data", run: "Training", folder: "Folder") -> int:
    """The loop over epochs and batches; validation and a checkpoint after each epoch and every --val_step steps."""
    run.model.train()
    if run.state["due"]:                                    # a signal broke the last validation off
        folder.validate()
    while run.state["epoch"] < opt.num_epochs and not folder.stopping():
        with tqdm(total=data.steps, initial=run.state["step"], desc=f"epoch {run.state['epoch'] + 1}/{opt.num_epochs}",
                  disable=None, leave=False) as bar:
            clock = time.perf_counter()
            for batch in on_device(data.batches(run.state), run.device, data.ahead):
                data_time = time.perf_counter() - clock
                run.begin_step()
                terms = train_step(run.ddp, batch, run.optimizers, run.scaler, run.parameters, opt, run.state)
                pairs = len(batch.lengths)
                run.count(terms, pairs)
                batch_time, clock = time.perf_counter() - clock, time.perf_counter()
                folder.log_step(terms, pairs / batch_time, batch_time, data_time, bar)
                if run.state["iteration"] % opt.val_step == 0 and run.state["step"] < data.steps:
                    folder.validate()
                if folder.stopping():
                    break
        if folder.signal:
            break
        folder.end_epoch()
        folder.validate()
    return folder.stopped() if folder.stopping() else folder.done()


def train_step(model, batch, optimizers, scaler, parameters, opt, state) -> dict[str, float]:
    """One step of every optimiser on the loss, a sum of terms, which it returns. A non-finite term ends the run with
    its name.

    The critic's terms and the others share the backward pass and no gradient: see losses.py.
    """
    dtype = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[opt.amp]
    with torch.autocast(batch.tokens.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        terms = model(batch)
        loss = sum(terms.values())
    told = torch.stack([*terms.values()]).detach()
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizers["optimizer"])
    norm = torch.nn.utils.clip_grad_norm_(parameters, opt.grad_clip or torch.inf)
    *told, norm = torch.cat([told, norm[None]]).tolist()    # where a step waits for the device
    terms = dict(zip(terms, told))
    wrong = [(f"the term '{name}'", term) for name, term in terms.items() if not math.isfinite(term)]
    if not math.isfinite(norm) and not scaler.is_enabled():     # the scaler skips such a step
        wrong.append(("the gradient", norm))
    if wrong:
        raise InputError(f"{wrong[0][0]} of the loss became {wrong[0][1]} at epoch {state['epoch'] + 1} step "
                         f"{state['step'] + 1}; the last checkpoint is whole: lower --learning_rate or use --amp off")
    for optimizer in optimizers.values():
        scaler.step(optimizer)
    scaler.update()
    return terms


def set_device(opt) -> torch.device:
    """Choose the device, the precision of its products and whether it always adds in the same order."""
    always_alike(opt.deterministic)                         # before CUDA begins
    device = torch_device(opt.device)
    use_tf32(opt.tf32)
    return device


@contextlib.contextmanager
def explained(opt):
    """Says of an OSError, such as a log line on a full disk, what is left of the run."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{opt.logger_name}: {cli.reason(error)}; a checkpoint that it holds is whole: make room, or "
                         "move what is in the way, and --resume") from error


# ---- what learns

class Training:
    """A model, its optimisers and its place in the run: what a checkpoint holds."""

    def __init__(self, opt, data: Data, start: dict | None, resumed: dict | None, device: torch.device):
        torch.manual_seed(opt.seed)
        self.opt, self.data, self.device = opt, data, device
        self.model = build_model(opt, data.vocab, start is None, None if start else table_for).to(device)
        if start:
            load_weights(self.model, start, opt.init_from or opt.logger_name,
                         means=opt.freeze_means and resumed is None)
        self.compiled = compile_parts(self.model, device) if opt.compile else []
        self.optimizers = build_optimizers(opt, self.model)
        self.parameters = [p for group in self.optimizers["optimizer"].param_groups for p in group["params"]]
        # also with bf16 on CUDA, whose GRUs compute in float16 under either
        scaled = opt.amp == "fp16" or opt.amp == "bf16" and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=scaled)
        self.average = averaged(self.model, opt.average)
        self.state = {"epoch": 0, "step": 0, "iteration": 0, "best_rsum": 0.0, "best_hbr": 0.0, "loss_sum": 0.0,
                      "loss_count": 0, "due": 0}
        if resumed:
            self.restore(resumed)
        self.ddp = processes.together(self.model)           # gives terms and gradients

    @property
    def judged(self):
        """What is validated and kept as the best: the averaged weights once there are any."""
        return self.average.module if self.average and self.average.n_averaged else self.model

    @property
    def averages(self) -> bool:
        """Whether the epoch lies in the last third."""
        return 3 * self.state["epoch"] >= 2 * self.opt.num_epochs

    def begin_step(self) -> None:
        """Set the learning rates, and what the hinge counts. The critic keeps its rate (`jwae` 5.1)."""
        opt, epoch = self.opt, self.state["epoch"]
        share = share_of_rate(opt, epoch, self.state["step"], self.data.steps)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * (share if name == "optimizer" else 1)
        if opt.loss == "hinge":
            self.model.objective.max_violation = opt.max_violation and epoch >= opt.vse_mean_warmup_epochs

    def count(self, terms: dict[str, float], pairs: int) -> None:
        """A step is done."""
        if self.opt.average == "ema" and self.averages:
            self.average.update_parameters(self.model)
        state = self.state
        state.update(step=state["step"] + 1, iteration=state["iteration"] + 1,
                     loss_sum=state["loss_sum"] + sum(terms.values()),
                     loss_count=state["loss_count"] + pairs)

    def end_epoch(self) -> None:
        if self.opt.average == "swa" and self.averages:
            self.average.update_parameters(self.model)
        self.state.update(epoch=self.state["epoch"] + 1, step=0, loss_sum=0.0, loss_count=0)

    def content(self, whole: bool = True) -> dict:
        """Of a checkpoint. whole: with what only --resume needs."""
        options = {key: value for key, value in vars(self.opt).items() if key not in NOT_KEPT}
        held = {"format": FORMAT, "options": options, "vocabulary": self.data.vocab.words, "state": dict(self.state),
                "model": (self.model if whole else self.judged).state_dict(), "data": self.data.fingerprints}
        if whole:
            held.update({name: optimizer.state_dict() for name, optimizer in self.optimizers.items()})
            held.update(processes=processes.count(), scaler=self.scaler.state_dict(), rng=torch.get_rng_state(),
                        cuda_rng=[torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else [])
            held.update({"average": self.average.state_dict()} if self.average else {})
        return held

    def restore(self, resumed: dict) -> None:
        """Go on from a checkpoint. Raises InputError where its optimisers or random states are of something else."""
        opt, at = self.opt, resumed["state"]
        if at["step"] > self.data.steps or at["step"] and not at["loss_count"] or at["iteration"] < at["step"]:
            raise InputError(f"the checkpoint {opt.resume} stands at step {at['step']} of an epoch of "
                             f"{self.data.steps}, {at['iteration']} in all, with {at['loss_count']} pairs of it seen, "
                             "which no training writes; take another one, or start a new run from its weights with "
                             "--init_from")
        try:
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(resumed[name])
            if resumed["scaler"]:                           # empty where none was needed, as with bf16 on a CPU
                self.scaler.load_state_dict(resumed["scaler"])
            # else the last third is another one
            if self.average and opt.num_epochs == resumed["options"]["num_epochs"]:
                self.average.load_state_dict(resumed["average"])
            torch.set_rng_state(resumed["rng"])
            if self.device.type == "cuda" and resumed["cuda_rng"]:
                torch.cuda.set_rng_state(resumed["cuda_rng"][0], self.device)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError(f"the checkpoint {opt.resume} holds optimisers or random states of something else "
                             f"({cli.reason(error)}); take another one, or start a new run from its weights with "
                             "--init_from") from error
        self.state.update(resumed["state"])


# ---- the run folder

def check_folder(opt, held: contextlib.ExitStack) -> dict | None:
    """Refuse a folder that cannot be written to; the checkpoint to go on from, where --resume names one. A run that
    goes on in its own folder locks it."""
    if not processes.first():
        return runs.load_resumable(opt.resume) if opt.resume else None
    if opt.resume is None:
        runs.check_new(opt.logger_name, opt.overwrite)
        return None
    if not goes_on(opt):
        runs.check_new(opt.logger_name, opt.overwrite)
    elif not runs.is_run(opt.logger_name):
        raise InputError(f"--resume {opt.resume} lies in a folder that is no run; name a new folder to go on in with "
                         "--logger_name")
    elif not opt.dry_run:
        held.enter_context(locked(opt.logger_name, "training"))
    return runs.load_resumable(opt.resume)


def goes_on(opt) -> bool:
    """Whether a run goes on in its own folder."""
    return opt.resume is not None and same_file(opt.logger_name, opt.resume if os.path.isdir(opt.resume) else
                                                os.path.dirname(opt.resume) or ".")


class Folder:
    """What a run writes: its description, logs and checkpoints."""

    def __init__(self, opt, data: Data, run: Training, stop: Stop, held: contextlib.ExitStack, resumed: dict | None):
        self.opt, self.data, self.run, self.stop, self.path = opt, data, run, stop, opt.logger_name
        self.signal = None                                  # the one that all processes stop for
        if processes.first():
            self.begin(held, resumed)
        processes.wait()                                    # the others until it has; where it fails they end, too
        self.log = Log(self.path, run.state, opt.num_epochs) if processes.first() else NoLog(opt.num_epochs)
        self.load = Load(torch.get_num_threads() if run.device.type == "cpu" else 1)

    def begin(self, held: contextlib.ExitStack, resumed: dict | None) -> None:
        """Lock the folder and describe the run in it."""
        opt, data, run = self.opt, self.data, self.run
        description = runs.describe(opt, {"train": data.train, "dev": data.dev})
        if goes_on(opt):
            runs.go_on(self.path, description, data.vocab)
        else:
            try:
                os.makedirs(self.path, exist_ok=True)
            except OSError as error:
                raise InputError(f"{self.path}/config.yaml cannot be written ({error}); name another folder with "
                                 "--logger_name") from error
            held.enter_context(locked(self.path, "training"))
            runs.check_new(self.path, opt.overwrite)        # another process may have been faster
            best = runs.best_of(opt.resume, run.state["best_rsum"]) if resumed else None
            run.state.update({} if best else {"best_rsum": 0.0, "best_hbr": 0.0})
            runs.begin(self.path, description, data.vocab, run.content(), best)

    def save(self, name: str = "checkpoint.pt", whole: bool = True) -> None:
        if processes.first():
            save_state(self.run.content(whole), os.path.join(self.path, name), "make room and --resume")

    def stopping(self) -> int | None:
        """The signal that came to any process, the same to all; one that comes while they agree counts next time."""
        self.signal = self.signal or processes.agreed(self.stop.received, self.run.device)
        return self.signal

    def log_step(self, terms: dict[str, float], rate: float, batch_time: float, data_time: float, bar) -> None:
        """A line every --log_step steps. rate: pairs per second; times in seconds."""
        state, opt, loss = self.run.state, self.opt, sum(terms.values())
        bar.set_postfix_str(f"loss {loss:.2f}, {rate:,.0f} pairs/s", refresh=False)
        bar.update()
        if state["step"] % opt.log_step and state["step"] != self.data.steps:
            return
        parts = " = " + " + ".join(f"{name} {term:.4g}" for name, term in terms.items()) if len(terms) > 1 else ""
        left = batch_time / 60 * (self.data.steps - state["step"])                  # minutes
        in_all = left + batch_time / 60 * self.data.steps * (opt.num_epochs - state["epoch"] - 1)
        self.log.say(f"{self.log.where(state, self.data.steps)}: loss {loss:.4f}{parts}, {rate:,.0f} pairs/s, "
                     f"{left:.1f} min left in epoch, {in_all:.1f} in all", terminal=bar.disable)
        self.log.record(state["iteration"], {
            "epoch": state["epoch"] + 1, "step": state["step"], "Eit": state["iteration"], "Le": loss,
            "lr": self.run.optimizers["optimizer"].param_groups[0]["lr"], "batch_time": batch_time,
            "data_time": data_time,
            **(terms if parts else {})}, kind="step")
        if note := self.load.note():
            self.log.say(f"{note} {self.path}")

    def end_epoch(self) -> None:
        state = self.run.state
        self.log.record(state["iteration"], {"epoch_loss": state["loss_sum"] / state["loss_count"]}, kind="epoch",
                        epoch=state["epoch"] + 1)
        self.run.end_epoch()

    def validate(self) -> None:
        """Recalls on dev, of which those at the ends of epochs choose the best model, as in VSE++; and a checkpoint.
        Where a signal breaks it off it is due again when the run goes on. Several processes cannot break it off
        together, so a checkpoint stands before it."""
        run, state, opt = self.run, self.run.state, self.opt
        state["due"], before, several = 1, torch.get_rng_state(), processes.count() > 1
        if several:
            self.save()
        try:
            with contextlib.nullcontext() if several else self.stop.at_once(), full_float32():
                result = validate(run.judged.eval(), self.data.dev, self.data.tokens["dev"], run.device, opt.workers)
        except Stopped:
            torch.set_rng_state(before)
            return
        finally:
            run.model.train()
        state["due"] = 0
        self.log.validation(state, self.data.steps, result)
        self.warn_of_collapse(result["alike"])
        better = result["rsum"] > state["best_rsum"]
        if opt.select == "hbr":
            better = not 0 < state["best_hbr"] <= result["hbr"]
        if not state["step"] and better:
            state.update(best_rsum=result["rsum"], best_hbr=result.get("hbr", 0.0))
            self.save("model_best.pt", whole=False)
        self.save()

    def warn_of_collapse(self, cosines: dict[str, float]) -> None:
        """cosines: mean cosine of two items, by side. Before the second epoch a model may not have begun to learn."""
        side, cosine = max(cosines.items(), key=lambda pair: pair[1])
        if cosine > COLLAPSED and self.run.state["epoch"] > 1 and not self.run.state["step"]:
            self.log.say(f"warning: two {side} have a mean cosine of {cosine:.3f}, so nearly all are one point; if "
                         f"that stays so, lower --learning_rate{MORE_WARMUP if self.opt.max_violation else ''}")

    def stopped(self) -> int:
        self.save()
        processes.wait()                                    # for the checkpoint, since torchrun ends all with the first
        due = ", before a validation" * self.run.state["due"]
        self.log.say(f"stopped at {self.log.where(self.run.state, self.data.steps)}{due}; go on with: python train.py "
                     f"--resume {self.path}")
        return 128 + self.signal

    def done(self) -> int:
        state = self.run.state
        processes.wait()
        if os.path.isfile(os.path.join(self.path, "model_best.pt")):
            chosen = f", HBR {state['best_hbr']:.2f}, which chose it" if self.opt.select == "hbr" else ""
            self.log.say(f"done: best dev rsum {state['best_rsum']:.1f}{chosen}; evaluate with: python evaluate.py "
                         f"--checkpoint {self.path}")
            return 0
        if state["best_rsum"]:
            self.log.say(f"done, but model_best.pt, of dev rsum {state['best_rsum']:.1f}, is not in {self.path} any "
                         "more; evaluate the last weights with: python evaluate.py --checkpoint "
                         f"{self.path}/checkpoint.pt")
        else:
            self.log.say(f"done, but dev rsum was 0 after every epoch, so {self.path} holds no model: nothing of what "
                         "was learned finds one match; look at log.txt and the data (python data.py check)")
        return 1


# ---- the options of a run

def parse_args(argv=None) -> Options:
    """Options of the command line, resolved: heads, objective and run folder are filled in. Exits on wrong ones.

    What comes later wins: the options of --method, those of --config, the command line.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    p = parser()
    opt = p.parse_args(argv, Options())
    if opt.methods:
        print("\n".join(method_lines()))
        p.exit()
    try:
        words = [*(config_arguments(opt.config) if opt.config else ()), *argv]
        opt = p.parse_args(words, Options())
        if opt.method:
            opt = p.parse_args([*METHODS[opt.method].flags.split(), *words], Options())
        if opt.resume is not None:
            opt = runs.resumed_options(p, opt, words)
        opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}
        resolve(opt)
        if opt.init_from and opt.resume is None:            # a wrong one is refused before data is read
            load_checkpoint(opt.init_from, vocab=opt.vocab)
    except InputError as error:
        needs = METHODS[opt.method].needs if opt.method else ""
        p.error(f"{error}" + f" (--method {opt.method} needs {needs})" * bool(needs))
    return opt


def method_lines() -> list[str]:
    """What --methods prints: name, title, paper, then the options and what the data must have."""
    return [f"{name}: {m.title} ({m.paper})\n    {m.flags}" + f"\n    needs {m.needs}" * bool(m.needs)
            for name, m in METHODS.items()]


if __name__ == "__main__":
    main()
