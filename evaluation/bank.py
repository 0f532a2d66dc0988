"""Query bank normalization: lower the scores of hubs, which score high with all.

With query q, item j and the bank B of other queries of q's kind,

    s'(q, j) = s(q, j) - b_j,    b_j = 1 / beta log mean_{k in B} exp(beta s(k, j)).

Text to image takes b_i from every image, with captions as the bank; image to text takes b_c from
every caption, with images as the bank. A number that is taken from all scores of a query changes no
rank of this query, so one matrix of s(i, c) - b_i - b_c serves both directions. For an ensemble,
the averaged scores are normalized.

Papers: Smith et al. 2017 (inverted softmax); Bogolin et al. 2022 (QB-Norm; here for all queries).
"""

import math

import numpy as np
import torch

import metrics
from data import Gallery
from evaluation.embeddings import Embeddings, Member
from utils import InputError, dev_for_val

MAX_QUERIES = 10_000  # captions of a bank, and images
IMAGES_PER_BLOCK = 1000  # that are scored at once
IMAGES_OF_SPREAD = 1000  # about so many give the deviation of the scores
# Values of beta that are tried, times the standard deviation of the scores, in which similarities
# differ.
BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
DIRECTIONS_OF_TERMS = ("t2i", "i2t")  # in the order of the terms: of images, of captions


def check_splits(split: str, evaluated: str) -> None:
    """Raise InputError on a bank from the evaluated split or from dev."""
    # testall holds test
    evaluated_part = dev_for_val(evaluated).removesuffix("all")
    bank_part = dev_for_val(split).removesuffix("all")
    if evaluated_part == "dev":
        raise InputError(
            f"--bank {split} chooses beta on dev, so the split {evaluated} is not a test of it; "
            "evaluate another split, or leave --bank out"
        )
    if bank_part in (evaluated_part, "dev"):
        raise InputError(
            f"--bank {split} holds queries of dev, which beta is chosen on, or of the split that "
            "is evaluated; name another split, usually train"
        )


def draw_queries(caption_image: np.ndarray, n_images: int, size: int = MAX_QUERIES) -> Gallery:
    """Draw the queries of a bank from a split of M captions of N images.

    These are up to `size` random images, and all captions of the first of them, as long as these
    are at most `size` captions.
    """
    order = np.random.default_rng(0).permutation(n_images)
    captions_of_image = np.bincount(caption_image, minlength=n_images)
    total = np.cumsum(captions_of_image[order])  # (N,) captions up to each image of the order

    first = order[: np.searchsorted(total, size, "right")]
    captions = np.flatnonzero(np.isin(caption_image, first))
    return Gallery(np.sort(order[:size]), captions)


@torch.no_grad()
def item_terms(
    members: list[Member], queries: list[Member], betas: list[float], side: str
) -> np.ndarray:
    """Compute the numbers b to subtract from the items' scores, a row per beta.

    (B, N) of the images of `members` for t2i, (B, M) of their captions for i2t. queries: the bank,
    by the same models.
    """
    pairs = []
    for member, bank in zip(members, queries):
        if side == "t2i":
            pairs.append((member.similarity, member.images, bank.captions))
        else:
            pairs.append((member.similarity, bank.images, member.captions))

    _, images, captions = pairs[0]
    n_items = len(images.mean)
    n_queries = len(captions.mean)
    if side == "i2t":
        n_items, n_queries = n_queries, n_items

    total = torch.full((len(betas), n_items), -torch.inf)
    for rows, scores in metrics.score_blocks(pairs, IMAGES_PER_BLOCK):
        here = rows
        if side == "i2t":
            scores = scores.T  # (items, queries)
            here = slice(None)
        part = torch.stack([torch.logsumexp(beta * scores.float(), 1) for beta in betas])
        total[:, here] = torch.logaddexp(total[:, here], part.cpu())

    log_mean = total - math.log(n_queries)
    return (log_mean / torch.tensor(betas)[:, None]).numpy()


def fit_terms(
    members: list[Member], dev: Embeddings, queries: list[Member], split: str
) -> tuple[tuple[np.ndarray, np.ndarray], dict]:
    """Compute terms of images (N,) and captions (M,), and the "bank" of results.json.

    For each direction, beta is the value of BETAS, by the deviation of the scores, with the best
    sum of recalls on dev (the smaller on a tie), or None if no value beats the unnormalized scores:
    then its items lose nothing.

    Args:
        members: whose items get the terms.
        dev: the same models on the dev split.
        queries: the bank, by the same models.
        split: that of the bank.
    """
    without = sum_recalls(dev.scores, dev.caption_image)
    step = 1 + dev.n_images // IMAGES_OF_SPREAD
    spread = float(dev.scores[::step].std(dtype=np.float64))

    betas = []
    if spread > 0:
        betas = [value / spread for value in BETAS]
    best = dict(without)
    best_beta = {"t2i": None, "i2t": None}
    if betas:
        of_images = item_terms(dev.members, queries, betas, "t2i")  # (B, N)
        of_captions = item_terms(dev.members, queries, betas, "i2t")  # (B, M)
        for beta, images, captions in zip(betas, of_images, of_captions):
            scores = dev.scores - images[:, None] - captions
            for side, recalls in sum_recalls(scores, dev.caption_image).items():
                if recalls > best[side]:
                    best[side] = recalls
                    best_beta[side] = beta

    terms = []
    for side, items in zip(DIRECTIONS_OF_TERMS, (members[0].images, members[0].captions)):
        if best_beta[side]:
            terms.append(item_terms(members, queries, [best_beta[side]], side)[0])
        else:
            terms.append(np.zeros(len(items.mean), np.float32))
    report = {
        "split": split,
        "captions": len(queries[0].captions.mean),
        "images": len(queries[0].images.mean),
        "beta": best_beta,
        "dev_images": dev.n_images,
        "dev_rsum": sum(best.values()),
        "dev_rsum_without": sum(without.values()),
    }
    return tuple(terms), report


def sum_recalls(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, float]:
    """Sum the recalls of each direction: {"t2i", "i2t"}, in percent."""
    result = metrics.retrieval(scores, caption_image)
    sums = {}
    for side in DIRECTIONS_OF_TERMS:
        sums[side] = sum(result[side][f"r{k}"] for k in metrics.RECALLS)
    return sums
