"""Train a joint embedding of images and captions as points or Gaussians.

    python train.py --data_name coco_precomp --sim wasserstein

Writes runs/NAME/: config.yaml, vocab.json, log.txt, log.jsonl, tensorboard events, checkpoint.pt (to --resume from) and
model_best.pt (by rsum on the dev split, for evaluate.py).
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import argparse
import contextlib
import os
import sys
import time

import numpy as np
import torch
import yaml
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_avg_fn
from tqdm import tqdm

import cli
import metrics
import runs
from cli import InputError, Stop, Stopped, torch_device
from data import check_extractors, pair_batches, read_split
from evaluation.sources import check_fits, validate
from files import FORMAT, locked, same_file, save_state
from methods.two_branch import sibling_order
from methods.unpaired import build_unpaired, choose_pairs
from model import build_model, build_vocabulary
from options import (
    COMMAND_LINE,
    MAY_CHANGE,
    default_run,
    defaults,
    parser,
    prepare_images,
    prepare_text,
    resolve,
)
from runs import check_values, config_arguments, is_run, load_checkpoint, load_weights
from vocab import Vocabulary

EMA = 0.999                           # share of the average that a step keeps
COLLAPSED = 0.98                      # mean cosine of two items from which on a side is nearly one point
MORE_WARMUP = ", or begin with the sum of violations (--vse_mean_warmup_epochs)"
COMPUTE = ("feature_norm", "region_norm", "pool", "layer_style", "no_imgnorm", "use_abs", "logvar_norm", "var_min", "var_max",
           "no_txtnorm", "raw_feature_norm")                # options that change embeddings and no weight's shape


def make_vocabulary(opt, train) -> tuple[Vocabulary, str]:
    """The words of the vocabulary file of the data set if there is one, else of its captions; and which of the two."""
    path = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
    if os.path.isfile(path):
        given = [name for name in ("vocab_threshold", "vocab_splits") if getattr(opt, name) != defaults()[name]]
        if given:
            raise InputError(f"--{given[0]} {getattr(opt, given[0])} counts words of the captions, and {path} lists the words "
                             "already; leave it out, delete the file, or name another folder with --vocab_path")
        return Vocabulary.load(path), path
    names = [name.strip() for name in opt.vocab_splits.split(",")]
    splits = [train if name == "train" else read_split(opt.data_path, opt.data_name, name, dev_images=0) for name in names]
    return Vocabulary.build((words for split in splits for words in split.words), opt.vocab_threshold), "the captions"


def averaged(model, kind: str):
    """A copy of the model that averages its weights, or None; BatchNorm's statistics are averaged with them."""
    if kind == "none":
        return None
    # swa by name: left to itself torch takes a function on CUDA that cannot average BatchNorm's counter of batches
    how = {"multi_avg_fn": get_ema_multi_avg_fn(EMA)} if kind == "ema" else {"avg_fn": get_swa_avg_fn()}
    return AveragedModel(model, use_buffers=True, **how)


def averaging(opt, epoch: int) -> bool:
    """Whether an epoch lies in the last third."""
    return 3 * epoch >= 2 * opt.num_epochs


def read_otherwise(opt, start: dict | None) -> list[str]:
    """A note where --init_from has weights that, under the options given now, make other embeddings of the same item."""
    theirs = start["options"] if start and opt.resume is None else {}
    unlike = [name for name in COMPUTE if name in theirs and theirs[name] != getattr(opt, name)]
    before, now = (", ".join(f"{name} {options[name]}" for name in unlike) for options in (theirs, vars(opt)))
    told = f"{opt.init_from} was trained with {before}, this run with {now}, so its weights do not embed as they did"
    return [told] if unlike else []


def objective_name(opt) -> str:
    violations = "hardest negative" if opt.max_violation else "sum of violations"
    return f"{violations}, margin {opt.margin}" if opt.loss == "hinge" else opt.loss


def main(argv=None) -> None:
    sys.exit(cli.run("train.py", train, parse_args(argv)))


def train(opt) -> int:
    """Train as the options say; returns the exit status: 0, 1 where no model came out, or 128 + signal after a wished stop."""
    try:
        with contextlib.ExitStack() as held:
            return run_epochs(opt, held)
    except BrokenPipeError:
        raise
    except OSError as error:                                # a log line on a full disk
        raise InputError(f"{opt.logger_name}: {cli.reason(error)}; a checkpoint that it holds is whole: make room, or move "
                         "what is in the way, and --resume") from error


def run_epochs(opt, held: contextlib.ExitStack) -> int:
    """Reading, the epoch loop, validation and checkpoints. What `held` takes in ends with the training: the lock of the run
    folder, the hold of signals."""
    device = torch_device(opt.device)
    going_on = opt.resume is not None and same_file(opt.logger_name, opt.resume if os.path.isdir(opt.resume) else
                                                    os.path.dirname(opt.resume) or ".")
    if not going_on:
        runs.check_new(opt.logger_name, opt.overwrite)
    elif not runs.is_run(opt.logger_name):
        raise InputError(f"--resume {opt.resume} lies in a folder that is no run; name a new folder to go on in with "
                         "--logger_name")
    elif not opt.dry_run:
        held.enter_context(locked(opt.logger_name, "training"))
    resumed = load_resumable(opt.resume) if opt.resume is not None else None
    start = resumed or (load_checkpoint(opt.init_from, vocab=opt.vocab) if opt.init_from else None)

    split = {name: read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval, dev_images=opt.dev_images,
                              text_features=opt.text_features).require_sound() for name in ("train", "dev")}
    prepare_images(opt, split["train"].images)
    prepare_text(opt, split["train"].text)
    check_fits(opt, split["dev"], "the model")
    data = {**split["train"].fingerprint(), "dev": split["dev"].fingerprint()}
    check_data(opt, resumed, data)
    check_extractors(start["data"].get("extractors") if start and "data" in start else None, split["train"],
                     opt.text_features, str(opt.init_from))
    words, source = ((Vocabulary(start["vocabulary"]), opt.init_from or opt.logger_name) if start
                     else make_vocabulary(opt, split["train"]))
    vocab = build_vocabulary(opt, words.words)
    tokens = {name: s.encode(vocab) for name, s in split.items()}
    pairs = choose_pairs(split["train"], opt.supervised_fraction, opt.seed)
    unpaired = build_unpaired(opt, split["train"], tokens["train"], pairs, vocab)
    if unpaired and unpaired.data:
        data["unpaired"] = unpaired.data
        check_data(opt, resumed, data)

    torch.manual_seed(opt.seed)
    model = build_model(opt, vocab, pretrained=start is None).to(device)
    if start:
        load_weights(model, start, opt.init_from or opt.logger_name)
    optimizers = build_optimizers(opt, model)
    parameters = optimizers["optimizer"].param_groups[0]["params"]
    # with bf16 too on CUDA, whose GRUs compute in float16 under either
    scaler = torch.amp.GradScaler(device.type, enabled=opt.amp == "fp16" or opt.amp == "bf16" and device.type == "cuda")
    average = averaged(model, opt.average)
    state = {"epoch": 0, "step": 0, "iteration": 0, "best_rsum": 0.0, "best_hbr": 0.0, "loss_sum": 0.0,
             "loss_count": 0, "due": 0}
    if resumed:
        restore(resumed, opt, optimizers, scaler, average, device)
        state.update(resumed["state"])

    chance = metrics.chance(split["dev"].caption_image, len(split["dev"].images))["rsum"]
    facts = (f"{opt.data_name}: {len(pairs):,} training pairs of {len(split['train'].images):,} images, "
             f"{len(split['dev'].images):,} dev images (rsum by chance {chance:.1f}), {len(vocab):,} words of {source}\n"
             f"{opt.sim}, image head {opt.image_head}, text head {opt.text_head}, {objective_name(opt)}, embed_size "
             f"{opt.embed_size}, {sum(p.numel() for p in parameters):,} trainable parameters, {device}, seed {opt.seed}")
    notes = [*(start or {}).get("notes", ()), *read_otherwise(opt, start), *split["train"].notes, *split["dev"].notes]
    facts = "\n".join([facts, *(f"note: {note}" for note in notes)])
    if opt.dry_run:
        print(yaml.safe_dump(vars(opt), sort_keys=True) + facts + "\ndry run: nothing was written")
        return 0

    stop = held.enter_context(Stop(later=True))
    if not going_on:
        try:
            os.makedirs(opt.logger_name, exist_ok=True)
        except OSError as error:
            raise InputError(f"{opt.logger_name}/config.yaml cannot be written ({error}); name another folder with "
                             "--logger_name") from error
        held.enter_context(locked(opt.logger_name, "training"))
        runs.check_new(opt.logger_name, opt.overwrite)  # another process may have been faster
    options = {key: value for key, value in vars(opt).items() if key not in ("resume", "overwrite", "config", "dry_run")}

    def judged():
        """What is validated and kept as the best: the averaged weights once there are any."""
        return average.module if average and average.n_averaged else model

    def content(whole: bool = True) -> dict:
        """Of a checkpoint; `whole`: with what only --resume needs."""
        held = {"format": FORMAT, "options": options, "vocabulary": vocab.words, "state": dict(state),
                "model": (model if whole else judged()).state_dict(), "data": data}
        if whole:
            held.update({name: optimizer.state_dict() for name, optimizer in optimizers.items()})
            held.update(scaler=scaler.state_dict(), rng=torch.get_rng_state(), cuda_rng=torch.cuda.get_rng_state_all()
                        if device.type == "cuda" else [])
            held.update({"average": average.state_dict()} if average else {})
        return held

    def save(name: str = "checkpoint.pt", whole: bool = True) -> None:
        save_state(content(whole), os.path.join(opt.logger_name, name), "make room and --resume")

    if going_on:
        runs.go_on(opt.logger_name, runs.describe(opt, split), vocab)
    else:
        best = runs.best_of(opt.resume, state["best_rsum"]) if resumed else None
        state.update({} if best else {"best_rsum": 0.0, "best_hbr": 0.0})
        runs.begin(opt.logger_name, runs.describe(opt, split), vocab, content(), best)
    log = runs.Log(opt.logger_name, state, opt.num_epochs)
    log.say(facts + f"\nrun folder {opt.logger_name}")

    def validation() -> None:
        """Recalls on dev, of which those at the ends of epochs choose the best model, as in VSE++; and a checkpoint. Where a
        signal breaks it off it is due again when the run goes on."""
        state["due"], before = 1, torch.get_rng_state()
        try:
            with stop.at_once():
                result = validate(judged().eval(), split["dev"], tokens["dev"], device, opt.workers)
        except Stopped:
            torch.set_rng_state(before)
            return
        finally:
            model.train()
        state["due"] = 0
        log.validation(state, n_steps, result)
        side, cosine = max(result["alike"].items(), key=lambda found: found[1])
        if cosine > COLLAPSED and state["epoch"] > 1 and not state["step"]:     # before, a model may not have begun to learn
            log.say(f"warning: two {side} have a mean cosine of {cosine:.3f}, so nearly all are one point; if that stays so, "
                    f"lower --learning_rate{MORE_WARMUP if opt.max_violation else ''}")
        better = (not 0 < state["best_hbr"] <= result["hbr"] if opt.select == "hbr" else result["rsum"] > state["best_rsum"])
        if not state["step"] and better:
            state.update(best_rsum=result["rsum"], best_hbr=result["hbr"])
            save("model_best.pt", whole=False)
        save()

    def stopped() -> int:
        save()
        due = ", before a validation" * state["due"]
        log.say(f"stopped at {log.where(state, n_steps)}{due}; go on with: python train.py --resume {opt.logger_name}")
        return 128 + stop.received

    model.train()
    n_steps = -(-len(epoch_order(opt, split["train"], pairs, 0)) // opt.batch_size)
    if state["due"]:
        validation()
    while state["epoch"] < opt.num_epochs and not stop.received:
        epoch = state["epoch"]
        for name, optimizer in optimizers.items():          # the critic keeps its rate (`jwae` 5.1)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * (0.1 ** (epoch // opt.lr_update) if name == "optimizer" else 1)
        if opt.loss == "hinge":
            model.objective.max_violation = opt.max_violation and epoch >= opt.vse_mean_warmup_epochs
        order = epoch_order(opt, split["train"], pairs, epoch)
        batches = pair_batches(split["train"], tokens["train"], order, opt.batch_size, workers=opt.workers,
                               crop_size=opt.crop_size, seed=(opt.seed, epoch), skip=state["step"])
        bar = tqdm(total=n_steps, initial=state["step"], desc=f"epoch {epoch + 1}/{opt.num_epochs}", disable=None,
                   leave=False)
        clock = time.perf_counter()
        for batch in batches:
            data_time = time.perf_counter() - clock
            if unpaired:
                batch = batch._replace(unpaired=unpaired.batch(state["iteration"]))
            terms = train_step(model, batch.to(device), optimizers, scaler, parameters, opt, state)
            loss = sum(terms.values())
            if opt.average == "ema" and averaging(opt, epoch):
                average.update_parameters(model)
            batch_time, clock = time.perf_counter() - clock, time.perf_counter()
            state.update(step=state["step"] + 1, iteration=state["iteration"] + 1, loss_sum=state["loss_sum"] + loss,
                         loss_count=state["loss_count"] + len(batch.lengths))
            rate = len(batch.lengths) / batch_time
            bar.set_postfix_str(f"loss {loss:.2f}, {rate:,.0f} pairs/s", refresh=False)
            bar.update()
            if state["step"] % opt.log_step == 0 or state["step"] == n_steps:
                parts = " = " + " + ".join(f"{name} {term:.4g}" for name, term in terms.items()) if len(terms) > 1 else ""
                left = batch_time / 60 * (n_steps - state["step"])              # minutes
                in_all = left + batch_time / 60 * n_steps * (opt.num_epochs - epoch - 1)
                log.say(f"{log.where(state, n_steps)}: loss {loss:.4f}{parts}, {rate:,.0f} pairs/s, {left:.1f} min left in "
                        f"epoch, {in_all:.1f} in all", terminal=bar.disable)
                log.record(state["iteration"], {
                    "epoch": epoch + 1, "step": state["step"], "Eit": state["iteration"], "Le": loss,
                    "lr": optimizers["optimizer"].param_groups[0]["lr"], "batch_time": batch_time, "data_time": data_time,
                    **(terms if parts else {})}, kind="step")
            if state["iteration"] % opt.val_step == 0 and state["step"] < n_steps:
                validation()
            if stop.received:
                bar.close()
                return stopped()
        bar.close()
        log.record(state["iteration"], {"epoch_loss": state["loss_sum"] / state["loss_count"]}, kind="epoch", epoch=epoch + 1)
        state.update(epoch=epoch + 1, step=0, loss_sum=0.0, loss_count=0)
        if opt.average == "swa" and averaging(opt, epoch):
            average.update_parameters(model)
        validation()
    if stop.received:
        return stopped()
    if os.path.isfile(os.path.join(opt.logger_name, "model_best.pt")):
        chosen = f", HBR {state['best_hbr']:.2f}, which chose it" if opt.select == "hbr" else ""
        log.say(f"done: best dev rsum {state['best_rsum']:.1f}{chosen}; evaluate with: python evaluate.py --checkpoint "
                f"{opt.logger_name}")
        return 0
    if state["best_rsum"]:
        log.say(f"done, but model_best.pt, of dev rsum {state['best_rsum']:.1f}, is not in {opt.logger_name} any more; "
                f"evaluate the last weights with: python evaluate.py --checkpoint {opt.logger_name}/checkpoint.pt")
    else:
        log.say(f"done, but dev rsum was 0 after every epoch, so {opt.logger_name} holds no model: nothing of what was learned "
                "finds one match; look at log.txt and the data (python data.py check)")
    return 1


def restore(resumed: dict, opt, optimizers: dict, scaler, average, device) -> None:
    """Optimisers, averages and random states of a checkpoint. Raises InputError where they are of something else."""
    try:
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(resumed[name])
        if resumed["scaler"]:                               # empty where none was needed, as with bf16 on a CPU
            scaler.load_state_dict(resumed["scaler"])
        if average and opt.num_epochs == resumed["options"]["num_epochs"]:          # else the last third is another one
            average.load_state_dict(resumed["average"])
        torch.set_rng_state(resumed["rng"])
        if device.type == "cuda" and resumed["cuda_rng"]:
            torch.cuda.set_rng_state_all(resumed["cuda_rng"])
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"the checkpoint {opt.resume} holds optimisers or random states of something else "
                         f"({cli.reason(error)}); take another one, or start a new run from its weights with "
                         "--init_from") from error


def check_data(opt, resumed: dict | None, data: dict) -> None:
    """Refuse to go on with other data than those of the run, as far as `data` says what they are."""
    if resumed and any(resumed["data"].get(key, value) != value for key, value in data.items()):
        raise InputError(f"the training data in {os.path.join(opt.data_path, opt.data_name)}, or the unpaired ones, are not "
                         f"those of the run in {opt.logger_name}; give its --data_path, or start a new run with --init_from")


def build_optimizers(opt, model) -> dict[str, torch.optim.Optimizer]:
    """"optimizer" of all that the model learns but jWAE's critic; "critic_optimizer" of the critic, an Adam of its own."""
    critic = list(model.critic.parameters()) if model.critic else []
    parameters = [p for p in model.parameters() if p.requires_grad and not any(p is c for c in critic)]
    if not parameters:
        raise InputError("nothing of this model can be learned: neither side has a layer; leave --img_layers 0 or --txt_layers "
                         "0 out")
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[opt.optimizer]
    found = {"optimizer": kind([{"params": parameters, "initial_lr": opt.learning_rate}], lr=opt.learning_rate, fused=True)}
    if critic:
        found["critic_optimizer"] = torch.optim.Adam([{"params": critic, "initial_lr": opt.critic_learning_rate}],
                                                     lr=opt.critic_learning_rate, betas=(0.5, 0.999), fused=True)
    return found


def epoch_order(opt, split, pairs: np.ndarray, epoch: int) -> np.ndarray:
    """The captions of an epoch, `pairs` (m,) shuffled; for the Embedding Network captions of an image side by side."""
    rng = np.random.default_rng([opt.seed, epoch])
    if opt.loss == "two_branch":
        return pairs[sibling_order(split.caption_image[pairs], rng)]
    return pairs[rng.permutation(len(pairs))]


def train_step(model, batch, optimizers, scaler, parameters, opt, state) -> dict[str, float]:
    """One step of every optimiser on the loss, a sum of terms, which it returns. A non-finite term ends the run with its name.

    The critic's terms and the others share the backward pass and no gradient: see losses.py.
    """
    dtype = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[opt.amp]
    with torch.autocast(batch.tokens.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        terms = model(batch)
        loss = sum(terms.values())
    if not torch.isfinite(loss):
        wrong = next(name for name, term in terms.items() if not torch.isfinite(term))
        raise InputError(f"the term '{wrong}' of the loss became {terms[wrong].item()} at epoch {state['epoch'] + 1} step "
                         f"{state['step'] + 1}; the last checkpoint is whole: lower --learning_rate or use --amp off")
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizers["optimizer"])
    norm = torch.nn.utils.clip_grad_norm_(parameters, opt.grad_clip or torch.inf)
    if not torch.isfinite(norm) and not scaler.is_enabled():    # the scaler skips such a step
        raise InputError(f"the gradient of the loss became {norm.item()} at epoch {state['epoch'] + 1} step "
                         f"{state['step'] + 1}; the last checkpoint is whole: lower --learning_rate or use --amp off")
    for optimizer in optimizers.values():
        scaler.step(optimizer)
    scaler.update()
    return {name: term.item() for name, term in terms.items()}


class Options(argparse.Namespace):
    """The options of train.py, resolved. `asked`, which is not among vars(): the same as they were asked for."""
    __slots__ = ("asked",)


def parse_args(argv=None) -> Options:
    """Options of the command line, resolved: heads, objective and run folder are filled in. Exits on wrong ones."""
    argv = list(sys.argv[1:] if argv is None else argv)
    p = parser()
    opt = p.parse_args(argv, Options())
    try:
        if opt.config:
            opt = p.parse_args(config_arguments(opt.config, p) + argv, Options())
        if opt.resume is not None:
            opt = resumed_options(p, opt, argv)
        opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}
        resolve(opt)
        if opt.init_from and opt.resume is None:            # a wrong one is refused before data load
            load_checkpoint(opt.init_from, vocab=opt.vocab)
    except InputError as error:
        p.error(str(error))
    return opt


def resumed_options(p: argparse.ArgumentParser, given: Options, argv: list[str]) -> Options:
    """The options of a run that goes on: those of its checkpoint and, of what may change, those given. `resume` becomes the
    checkpoint to read, `logger_name` the folder to write to."""
    start = given.resume or given.logger_name or default_run(given)
    checkpoint = load_resumable(start)
    stored = checkpoint["options"]
    check_values(stored, start)
    p.set_defaults(**stored)
    opt = p.parse_args(config_arguments(given.config, p) + argv if given.config else argv, Options())
    opt.resume, opt.logger_name = start, given.logger_name or run_folder(start)
    resolve(opt)
    changed = [key for key in stored if key in vars(opt) and key not in MAY_CHANGE
               and getattr(opt, key) not in (stored[key], "auto")]                  # auto: what the data need, as before
    if changed:
        raise InputError(f"--{changed[0]} {getattr(opt, changed[0])} differs from the {stored[changed[0]]} of the run in "
                         f"{start}; a resumed run keeps its options, so leave it out or start a new run with --init_from")
    newest = os.path.join(opt.logger_name, "checkpoint.pt")
    if os.path.isfile(start) and os.path.isfile(newest) and not os.path.samefile(start, newest):
        reached, at = (c["state"]["iteration"] for c in (load_checkpoint(newest), checkpoint))
        raise InputError(f"{opt.logger_name} has a checkpoint.pt of its own, at step {reached:,} of the run where {start} is "
                         f"at step {at:,}; go on from {start} in a new folder with --logger_name NEW, or leave the file's name "
                         "out to go on from checkpoint.pt")
    return opt


def load_resumable(path: str) -> dict:
    """A checkpoint that holds all that going on needs. Raises InputError."""
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "checkpoint.pt")) and is_run(path):
        raise InputError(f"{path} has no checkpoint.pt: it was stopped before its first step, so there is nothing to go on "
                         "from; start it again with the command that its config.yaml holds")
    stored = load_checkpoint(path, "checkpoint.pt")
    lacking = [name for name in ("optimizer", "scaler", "rng", "state", "data") if name not in stored]
    lacking += [name for name in ("step", "iteration", "loss_sum", "loss_count") if name not in stored.get("state", {})]
    if lacking:
        raise InputError(f"{path} holds a model but no {lacking[0]}, so training cannot go on exactly; resume the run's "
                         "checkpoint.pt (--resume RUN), or start a new run from these weights with --init_from")
    return stored


def run_folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.isfile(path) else path


if __name__ == "__main__":
    main()
