"""How a model learns: optimisers, the course of the learning rate, averages of weights."""
import math
from collections.abc import Callable

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_avg_fn

from cli import check

EMA = 0.999                           # share of the average that a step keeps


def build_schedule(opt, steps: int) -> Callable[[int, int], float]:
    """(epoch, step of it) -> how much of --learning_rate that step takes, in epochs of `steps`. The
    rate rises in a line over --warmup epochs, then falls tenfold every --lr_update epochs, or as
    half a cosine to 0 at the end."""
    def share(epoch: int, step: int) -> float:
        done = epoch + step / steps                         # epochs, with their fractions
        if done < opt.warmup:
            return (done + 1 / steps) / (opt.warmup + 1 / steps)
        if opt.schedule == "cosine":
            turn = math.pi * (done - opt.warmup) / (opt.num_epochs - opt.warmup)
            return 0.5 + 0.5 * math.cos(turn)
        return 0.1 ** (epoch // opt.lr_update)
    return share


def averaged(model, kind: str):
    """A copy of the model that averages its weights, or None; BatchNorm's statistics are averaged
    with them."""
    if kind == "none":
        return None
    # swa by name: left to itself torch takes a function on CUDA that cannot average BatchNorm's
    # counter of batches
    how = {"avg_fn": get_swa_avg_fn()}
    if kind == "ema":
        how = {"multi_avg_fn": get_ema_multi_avg_fn(EMA)}
    return AveragedModel(model, use_buffers=True, **how)


def build_optimizers(opt, model) -> dict[str, torch.optim.Optimizer]:
    """"optimizer" of all that the model learns but jWAE's critic; "critic_optimizer" of the critic,
    an Adam of its own."""
    parameters = [p for name, p in model.named_parameters()
                  if p.requires_grad and not name.startswith("critic.")]
    check(parameters, "nothing of this model can be learned: neither side has a layer; leave "
                      "--img_layers 0 or --txt_layers 0 out")
    kind = {"adam": torch.optim.AdamW if opt.weight_decay else torch.optim.Adam,
            "sgd": torch.optim.SGD}[opt.optimizer]
    rate = opt.learning_rate
    groups = [{"params": parameters, "initial_lr": rate}]
    if opt.weight_decay:                      # of matrices, not of biases, norms and single numbers
        groups = [{"params": [p for p in parameters if (p.ndim > 1) == decays],
                   "initial_lr": rate, "weight_decay": opt.weight_decay * decays}
                  for decays in (True, False)]
    optimizers = {"optimizer": kind(groups, lr=rate, fused=True)}
    if model.critic:
        rate = opt.critic_learning_rate
        groups = [{"params": list(model.critic.parameters()), "initial_lr": rate}]
        optimizers["critic_optimizer"] = torch.optim.Adam(groups, lr=rate, betas=(0.5, 0.999),
                                                          fused=True)
    return optimizers
