"""Query-bank normalisation: lower the scores of hubs, which score high with all.

With query q, item j and the bank B of other queries of q's kind,

    s'(q, j) = s(q, j) - b_j,    b_j = 1 / beta log mean_{k in B} exp(beta s(k, j)).

Text to image takes b_i from every image, with captions as the bank; image to text takes b_c from every caption, with
images as the bank. A number that is taken from all scores of a query changes no rank of this query, so one matrix of
s(i, c) - b_i - b_c serves both directions. Of an ensemble the mean of the members' scores is normalised.

Papers: Smith et al. 2017 (inverted softmax); Bogolin et al. 2022 (QB-Norm; here for all queries alike).
"""
import math

import numpy as np
import torch

import metrics
from cli import check
from evaluation.embeddings import Embeddings, Member, name_split
from evaluation.encoding import Gallery

SIZE = 10_000                         # captions of a bank at most, and images
BLOCK = 1000                          # images that are scored at once
# Values of beta that are tried, times the standard deviation of the scores, which similarities differ in.
GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SIDES = ("t2i", "i2t")                # directions, in the order of the terms: of images, of captions


def check_splits(split: str, evaluated: str) -> None:
    """Raise InputError on a bank from the evaluated split or from dev."""
    here, there = (name_split(name).removesuffix("all") for name in (evaluated, split))     # testall holds test
    check(here != "dev", f"--bank {split} chooses beta on dev, so the split {evaluated} is not a test of it; evaluate "
                         "another split, or leave --bank out")
    check(there not in (here, "dev"), f"--bank {split} holds queries of dev, which beta is chosen on, or of the split "
                                      "that is evaluated; name another split, usually train")


def draw_queries(caption_image: np.ndarray, n_images: int, size: int = SIZE) -> Gallery:
    """Draw the queries of a bank from a split of M captions of N images.
    At most `size` images, and all captions of as many of the first of these as give at most `size` captions."""
    order = np.random.default_rng(0).permutation(n_images)
    total = np.cumsum(np.bincount(caption_image, minlength=n_images)[order])        # (N,) captions up to each
    captions = np.flatnonzero(np.isin(caption_image, order[:np.searchsorted(total, size, "right")]))
    return Gallery(np.sort(order[:size]), captions)


@torch.no_grad()
def item_terms(members: list[Member], queries: list[Member], betas: list[float], side: str) -> np.ndarray:
    """Compute numbers b to subtract from the items' scores, a row per beta.
    (B, N) of the images of `members` for t2i, (B, M) of their captions for i2t. queries: the bank, by these models."""
    pairs = [(m.similarity, m.images, q.captions) if side == "t2i" else (m.similarity, q.images, m.captions)
             for m, q in zip(members, queries)]
    items, count = (len(e.mean) for e in (pairs[0][1:] if side == "t2i" else pairs[0][:0:-1]))
    total = torch.full((len(betas), items), -torch.inf)
    for rows, scores in metrics.score_blocks(pairs, BLOCK):
        scores, here = (scores, rows) if side == "t2i" else (scores.T, slice(None))         # (items, queries)
        part = torch.stack([torch.logsumexp(beta * scores.float(), 1) for beta in betas])
        total[:, here] = torch.logaddexp(total[:, here], part.cpu())
    return ((total - math.log(count)) / torch.tensor(betas)[:, None]).numpy()


def normalise(members: list[Member], dev: Embeddings, queries: list[Member],
              split: str) -> tuple[tuple[np.ndarray, np.ndarray], dict]:
    """Terms of images (N,) and captions (M,), and the "bank" of results.json.
    They are of `members`. The beta of a direction is the value of GRID with the highest sum of recalls on dev, the
    lower of two that are equal, and None where none is better than no bank: then its items lose nothing. dev: the same
    models on the dev split; queries: the bank of a split, by the same models."""
    def recall_sums(scores: np.ndarray) -> dict[str, float]:
        result = metrics.retrieval(scores, dev.caption_image)
        return {side: sum(result[side][f"r{k}"] for k in metrics.RECALLS) for side in SIDES}
    without, spread = recall_sums(dev.scores), float(dev.scores[::1 + dev.n_images // 1000].std(dtype=np.float64))
    betas = [value / spread for value in GRID] if spread > 0 else []
    on_dev = [item_terms(dev.members, queries, betas, side) for side in SIDES if betas]
    best, beta = dict(without), dict.fromkeys(SIDES)
    for value, images, captions in zip(betas, *on_dev):
        for side, recalls in recall_sums(dev.scores - images[:, None] - captions).items():
            if recalls > best[side]:
                best[side], beta[side] = recalls, value
    terms = [item_terms(members, queries, [beta[side]], side)[0] if beta[side] else
             np.zeros(len(items.mean), np.float32) for side, items in zip(SIDES, members[0][1:])]
    return tuple(terms), {
        "split": split, "captions": len(queries[0].captions.mean), "images": len(queries[0].images.mean), "beta": beta,
        "dev_images": dev.n_images, "dev_rsum": sum(best.values()), "dev_rsum_without": sum(without.values())}
