"""Objectives: what turns the scores of a batch of matching pairs into a loss, and terms that stand beside it.

An objective takes scores (B, B), matching pairs on the diagonal, and `same` (B, B) bool or None, pairs of one image that are
to be left out; it returns the terms of the loss by name, to be summed. Papers: VSE++; PCME (Chun et al. 2021) and PCME++
(Chun 2024); CLIP (Radford et al. 2021) for InfoNCE.
"""
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses import Embedding, hinge, sampled_nll
from two_branch import PairLogistic


class Hinge(nn.Module):
    """Triplet ranking loss, VSE++ eq. 5-6: `losses.hinge`."""

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin, self.max_violation = margin, max_violation

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        return {"hinge": hinge(scores, self.margin, self.max_violation, same)}


class InfoNCE(nn.Module):
    """Symmetric cross-entropy of each caption among the batch's captions and each image among its images (CLIP), in nats.

    A learned temperature, e^-log_scale, starts at 0.07 and stays above 0.01.
    """

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        logits = scores * self.log_scale.clamp(max=math.log(100)).exp()
        if same is not None:
            logits = logits.masked_fill(same & ~torch.eye(len(scores), dtype=torch.bool, device=scores.device), -torch.inf)
        own = torch.arange(len(scores), device=scores.device)
        return {"infonce": (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2}


class Match(nn.Module):
    """Binary cross-entropy of every pair of the batch: does it match? PCME++ eq. 2-4, in nats.

    Summed over the B pairs of an item and averaged over items, as in SigLIP and ProLIP: a mean over all B x B pairs is the same
    objective with gradients B times smaller, of which Adam's epsilon leaves little. The probability of a match is
    sigmoid(scale * score + shift), both learned; `logits` says that scores are logits already, as PCME's are. One matrix
    serves both directions, which are equal. pseudo_positives > 0 adds, at that weight, pairs that score at least as high as the
    true one of their row or column as if they matched. smoothing keeps targets off 0 and 1.
    """

    def __init__(self, logits: bool = False, pseudo_positives: float = 0.0, smoothing: float = 0.0):
        super().__init__()
        self.pseudo_positives, self.smoothing = pseudo_positives, smoothing
        self.scale = None if logits else nn.Parameter(torch.tensor(5.0))
        self.shift = None if logits else nn.Parameter(torch.tensor(5.0))

    def forward(self, scores: Tensor, same: Tensor | None = None) -> dict[str, Tensor]:
        logits = scores if self.scale is None else self.scale * scores + self.shift
        own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        counts = torch.ones_like(own) if same is None else own | ~same              # pairs that count
        target = own.to(logits.dtype) * (1 - 2 * self.smoothing) + self.smoothing
        terms = {"match": F.binary_cross_entropy_with_logits(logits, target, reduction="none")[counts].sum() / len(scores)}
        if self.pseudo_positives:
            best = scores.diagonal()
            nearer = ((scores >= best[:, None]) | (scores >= best)) & ~own & counts
            terms["pseudo_positives"] = self.pseudo_positives * (F.softplus(-logits) * nearer).sum() / len(scores)
        return terms


class SampledNLL(nn.Module):
    """-log P(T+ | I) among the true caption and N others (`dmsm` eq. 2-3), mean over the images, in nats.

    The others are drawn from the batch (`losses.sampled_nll`); or, where `outside` (B, N) is given, are N captions drawn from
    the whole training set, which the images of a batch share, -inf where one belongs to the image itself.
    """

    def __init__(self, gamma: float = 10.0, negatives: int = 40, outside: bool = False):
        super().__init__()
        self.gamma, self.negatives, self.outside = gamma, negatives, outside

    def forward(self, scores: Tensor, same: Tensor | None = None, outside: Tensor | None = None) -> dict[str, Tensor]:
        if outside is None:
            return {"nll": sampled_nll(scores, self.gamma, self.negatives, own=same).mean()}
        own = scores.diagonal()[:, None]                                            # (B, 1)
        logits = self.gamma * torch.cat([own, outside], 1)                          # (B, 1 + N)
        return {"nll": (logits.logsumexp(1) - logits[:, 0]).mean()}


def vib(e: Embedding) -> Tensor:
    """KL(N(mean, Sigma) || N(0, I)) of each item, averaged, in nats: the information bottleneck of PCME and PCME++."""
    variance, square = e.log_var.exp(), e.mean.square()
    return 0.5 * (variance - e.log_var + square - 1).sum(1).mean()


OBJECTIVES = ("hinge", "infonce", "match", "nll", "mse", "two_branch", "logistic")


def build_objective(opt, logits: bool) -> nn.Module | None:
    """The objective that the options name; `logits`: the similarity's scores are log-odds of a match. None: what is trained is
    no function of the scores, and is among the terms of model.build_terms."""
    return {"hinge": lambda: Hinge(opt.margin, opt.max_violation), "infonce": InfoNCE,
            "match": lambda: Match(logits, opt.pseudo_positives, 1e-4 if opt.pseudo_positives else 0.0),
            "nll": lambda: SampledNLL(opt.gamma, opt.negatives, opt.negative_source == "set"),
            "logistic": PairLogistic, "mse": lambda: None, "two_branch": lambda: None}[opt.loss]()
