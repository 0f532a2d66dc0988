"""How a model learns: optimisers and the course of the learning rate."""
import math
from collections.abc import Callable

import torch

from cli import check

CRITIC_RATE = 5e-5                    # learning rate of jWAE's critic (`jwae` 5.1)


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
        groups = [{"params": list(model.critic.parameters()), "initial_lr": CRITIC_RATE}]
        optimizers["critic_optimizer"] = torch.optim.Adam(groups, lr=CRITIC_RATE,
                                                          betas=(0.5, 0.999), fused=True)
    return optimizers
