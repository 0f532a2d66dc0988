"""Objectives for labelled pairs of regions and phrases (jwae 5.2).

A batch has R regions and M phrases of several photos. labels (R, M): 1 where a region fits a
phrase, -1 where it does not, 0 where the two are not compared. An objective reads scores (R, M)
where labels are not 0. Each positive of a phrase weighs 1 / their number, so that a phrase weighs
as much as a caption has in the objective of the same name in losses.py, which these become where
each phrase fits one region and all other pairs are negatives.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import model
from losses import SIMILARITIES, Hinge, InfoNCE, Match, PairLogistic, PairLoss, Term
from methods.two_branch import TwoBranchLoss, distance


def shares(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute each positive's share of its phrase's positives: (R, M) -> (R, M)."""
    positive = labels > 0
    return positive.to(dtype) / positive.sum(0).clamp(min=1)


class LabelledHinge(Hinge):
    """Triplet ranking loss of labelled pairs, >= 0 (VSE++ eq. 5-6).

    For each positive pair (i, j), [margin - s_ij + s_kj]+ over the negative regions k of phrase j
    and [margin - s_ij + s_il]+ over the negative phrases l of region i: their sum, or with
    max_violation the largest of each. Averaged over the positives of a phrase and summed over
    phrases, as VSE++'s is over captions.
    """

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        i, j = (labels > 0).nonzero(as_tuple=True)  # (K,) each, the positive pairs
        positive = scores[i, j, None]  # (K, 1)
        share = shares(labels, scores.dtype)[i, j]  # (K,)

        regions = scores.T[j] - positive + self.margin  # (K, R)
        regions = regions.masked_fill(labels.T[j] >= 0, 0).clamp(min=0)
        phrases = scores[i] - positive + self.margin  # (K, M)
        phrases = phrases.masked_fill(labels[i] >= 0, 0).clamp(min=0)

        if self.max_violation:
            return (share * (regions.amax(1) + phrases.amax(1))).sum()
        return (share * (regions.sum(1) + phrases.sum(1))).sum()


class LabelledLogistic(PairLogistic):
    """CITE's loss log(1 + e^(-y s)) of log-odds s, mean over labels y, in nats, >= 0."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.softplus(-labels * scores)[labels != 0].mean()


class LabelledMatch(Match):
    """Binary cross-entropy, sum over a phrase's labelled pairs, mean, in nats."""

    @classmethod
    def build(cls, opt, similarity):
        return cls(similarity.logits, 0.0, opt.label_smoothing)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        of_pairs = self.cross_entropy(self.logits(scores), labels > 0)  # (R, M)
        return of_pairs[labels != 0].sum() / labels.shape[1]


class LabelledInfoNCE(InfoNCE):
    """InfoNCE of labelled pairs, in nats, with temperature and smoothing.

    Half of: -log of the share that its positives have of a phrase's labelled regions, mean over
    phrases; and the same of a region among phrases, mean over the regions that have positives and
    negatives.
    """

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(scores)
        both = (labels > 0).any(1) & (labels < 0).any(1)  # (R,)
        phrases = self.missed(logits.T, labels.T)  # (M,)
        regions = self.missed(logits[both], labels[both])
        return (phrases.mean() + regions.sum() / both.sum().clamp(min=1)) / 2

    def missed(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute -log of the positives' share of each row: (n, m), (n, m) -> (n,)."""
        counted = labels != 0
        positive = logits.masked_fill(labels <= 0, -torch.inf).logsumexp(1)  # (n,)
        loss = logits.masked_fill(~counted, -torch.inf).logsumexp(1) - positive
        even = positive - logits.masked_fill(~counted, 0).sum(1) / counted.sum(1)  # (n,)
        return loss + self.smoothing * even


class LabelledTwoBranch(TwoBranchLoss):
    """TwoBranchLoss of labelled pairs.

        weights[0]   anchor: the phrase, positive: each of its regions, negatives: its negative
                     regions
        weights[1]   anchor: the region, positive: each of its phrases, negatives: its negative
                     phrases
        weights[2]   anchor: the phrase, positive: the farthest phrase that fits a region of its
                     own, which may be itself, negatives: other phrases that some region of its own
                     does not fit

    Averaged over the positives of a phrase, then over phrases.
    """

    def forward(self, image, caption, batch) -> Tensor:
        """Compute the loss of labelled pairs; batch.labels (R, M).

        image, caption: model.Encoded of regions (R, D) and phrases (M, D), with unit means.
        """
        regions = image.embedding.mean
        phrases = caption.embedding.mean
        labels = batch.labels
        across = distance(regions, phrases)  # (R, M)
        within = distance(phrases, phrases)  # (M, M)
        i, j = (labels > 0).nonzero(as_tuple=True)  # (K,) each, the positive pairs
        share = shares(labels, across.dtype)[i, j] / labels.shape[1]  # (K,), sums to 1

        fits = (labels > 0).to(across.dtype).T  # (M, R)
        misfits = (labels < 0).to(across.dtype)  # (R, M)
        sibling = fits @ fits.T > 0  # (M, M)
        apart = (fits @ misfits > 0) & ~sibling  # (M, M)
        farthest = within.masked_fill(~sibling, 0).amax(1)  # (M,)

        of_regions = self.hardest(across[i, j], across.T[j], labels.T[j] < 0)  # (K,)
        of_phrases = self.hardest(across[i, j], across[i], labels[i] < 0)  # (K,)
        within_phrases = self.hardest(farthest, within, apart)  # (M,)
        total = self.weights[0] * (share * of_regions).sum()
        total = total + self.weights[1] * (share * of_phrases).sum()
        return total + self.weights[2] * within_phrases.mean()


def labelled_scores(similarity, images, captions, labels: Tensor) -> Tensor:
    """Score the pairs whose label is not 0, (R, M); the others have 0."""
    i, j = labels.nonzero(as_tuple=True)  # (K,) each
    if hasattr(similarity, "at"):  # a network of pairs reads these alone
        chosen = similarity.at(images, captions, i, j)
    else:
        chosen = similarity(images, captions)[i, j]
    return chosen.new_zeros(labels.shape).index_put((i, j), chosen)


# ---- the model that is trained with them

# By the name of --loss, the loss of losses.py or methods/ that learns from labelled pairs.
OBJECTIVES = {
    "hinge": LabelledHinge,
    "infonce": LabelledInfoNCE,
    "match": LabelledMatch,
    "logistic": LabelledLogistic,
    "two_branch": LabelledTwoBranch,
}


class PhraseVSE(model.VSE):
    """A joint embedding of regions and phrases; its objective reads scores and labels (R, M)."""

    def ranking_loss(self, regions, phrases, batch) -> Tensor:
        """Compute the objective of the labelled pairs, in float32."""
        with torch.autocast(regions.mean.device.type, enabled=False):
            scores = labelled_scores(self.similarity, regions, phrases, batch.labels)
            return self.objective(scores, batch.labels)


def build_phrase_model(opt, vocab, pretrained: bool = True) -> PhraseVSE:
    """Build a model as model.build_model does, with an objective of labelled pairs."""
    plain = model.build_model(opt, vocab, pretrained)
    terms = dict(plain.extra_terms)
    objective = OBJECTIVES[opt.loss].build(opt, SIMILARITIES[opt.sim])
    if isinstance(objective, PairLoss):
        terms[opt.loss] = Term(objective.weight, objective)
        objective = None
    return PhraseVSE(
        plain.image_tower,
        plain.text_tower,
        plain.similarity,
        objective,
        terms,
        plain.critic,
        loss_name=opt.loss,
    )
