"""Query-bank normalisation: lower the scores of hubs.
A hub is an item that scores high with every query.

With query q, item j and the bank B of other queries of q's kind,

    s'(q, j) = s(q, j) - b_j,    b_j = 1 / beta log mean_{k in B} exp(beta s(k, j)).

Text to image takes b_i from every image, with captions as the bank; image to text takes b_c from every caption, with
images as the bank. A number that is taken from all scores of a query changes no rank of this query, so one matrix of
s(i, c) - b_i - b_c serves both directions. Of an ensemble the mean of the members' scores is normalised, since this is
what ranks: a hub is a hub of the mean, and there is one beta to choose.

Papers: Smith et al. 2017 (inverted softmax); Bogolin et al. 2022 (QB-Norm; here for all queries alike).
"""
import math

import numpy as np
import torch

import metrics
from cli import InputError, check
from evaluation.embeddings import Embeddings, Member
from evaluation.encode import Gallery

SIZE = 10_000                         # captions of a bank at most, and images
# Values of beta that are tried, times the standard deviation of the scores, which similarities differ in.
GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
ITEMS = {"t2i": "images", "i2t": "captions"}                # what each direction searches
SAME = {"val": "dev", "testall": "test"}    # dev has two names; the images of test are among those of testall


def check_splits(split: str, evaluated: str) -> None:
    """Raise InputError on a bank from the evaluated split or from dev."""
    here, there = (SAME.get(name, name) for name in (evaluated, split))
    check(here != "dev", f"--bank {split} chooses beta on dev, so the split {evaluated} is not a test of it; evaluate "
                         "another split, or leave --bank out")
    check(there not in (here, "dev"),
          f"--bank {split} holds queries of the split that {'is evaluated' if there == here else 'beta is chosen on'}, "
          f"and a bank must be of others; give {'another' if here == 'train' else 'train'}")


def draw_queries(caption_image: np.ndarray, n_images: int, size: int = SIZE) -> Gallery:
    """Draw the queries of a bank from a split of M captions of N images.
    At most `size` images, and all captions of as many of the first of these as give at most `size` captions. Raises
    InputError where one image has more captions."""
    order = np.random.default_rng(0).permutation(n_images)
    total = np.cumsum(np.bincount(caption_image, minlength=n_images)[order])        # (N,) captions up to each
    captions = np.flatnonzero(np.isin(caption_image, order[:np.searchsorted(total, size, "right")]))
    if not len(captions):
        raise InputError(f"a bank of {size} captions is less than the {total[total > 0][0]} captions of one image, "
                         "which are drawn together; name a split with fewer captions an image")
    return Gallery(np.sort(order[:size]), captions)


@torch.no_grad()
def log_mean_exp(blocks, n: int, m: int, betas: list[float], side: str) -> torch.Tensor:
    """1 / beta log mean exp(beta s) of scores (N, M), one row per beta.
    (B, N) over the captions for every image (side "images"), or (B, M) over the images for every caption
    ("captions"). blocks: as `metrics.score_blocks` yields them."""
    total = torch.full((len(betas), n if side == "images" else m), -torch.inf)
    for rows, scores in blocks:
        scores, here = (scores, rows) if side == "images" else (scores.T, slice(None))     # (items, queries)
        part = torch.stack([torch.logsumexp(beta * scores.float(), 1) for beta in betas])
        total[:, here] = torch.logaddexp(total[:, here], part.cpu())
    return (total - math.log(m if side == "images" else n)) / torch.tensor(betas)[:, None]


def item_terms(members: list[Member], queries: list[Member], betas: list[float], side: str,
               block: int = 1000) -> torch.Tensor:
    """Numbers that a direction subtracts from its items' scores, one row per beta.
    (B, N) of the images of `members` for t2i, (B, M) of their captions for i2t. queries: the bank, by the same
    models."""
    pairs = [(m.similarity, m.images, q.captions) if side == "t2i" else (m.similarity, q.images, m.captions)
             for m, q in zip(members, queries)]
    return log_mean_exp(metrics.score_blocks(pairs, block), *(len(e.mean) for e in pairs[0][1:]), betas, ITEMS[side])


@torch.no_grad()
def choose_betas(dev: Embeddings, queries: list[Member], block: int = 1000) -> dict:
    """Choose the beta of GRID with the highest sum of recalls on dev.
    Returns {"beta": {"t2i", "i2t"}, "dev_rsum", "dev_rsum_without"}. A beta is None where none is better than no
    bank; the lower of two equal betas wins.

    dev: the models on the dev split; queries: the bank, by the same models. Raises InputError on scores that are not
    finite.
    """
    def recall_sums(scores) -> dict[str, float]:
        i2t, t2i = metrics.ranks(scores, dev.caption_image)
        result = metrics.both_directions(i2t[i2t >= 0], t2i)
        return {side: sum(result[side][f"r{k}"] for k in metrics.RECALLS) for side in ITEMS}
    without, spread = recall_sums(dev.scores), float(dev.scores[::1 + dev.n_images // 1000].std(dtype=np.float64))
    betas = [value / spread for value in GRID] if spread > 0 else []
    terms = [item_terms(dev.members, queries, betas, side, block).numpy() for side in ITEMS if betas]
    best, beta = dict(without), dict.fromkeys(ITEMS)
    for value, images, captions in zip(betas, *terms):
        for side, recalls in recall_sums(dev.scores - images[:, None] - captions).items():
            if recalls > best[side]:
                best[side], beta[side] = recalls, value
    return {"beta": beta, "dev_rsum": sum(best.values()), "dev_rsum_without": sum(without.values())}


def normalisation(members: list[Member], dev: Embeddings, queries: list[Member], split: str,
                  block: int = 1000) -> tuple[tuple[torch.Tensor, torch.Tensor], dict]:
    """Terms that a bank subtracts from the mean scores of images (N,), captions (M,).
    Also returns the "bank" of results.json. queries: the bank of a split; betas: those of `choose_betas`. A direction
    without a beta subtracts nothing. Raises InputError on scores that are not finite."""
    chosen = choose_betas(dev, queries, block)
    terms = [torch.zeros(len(getattr(members[0], ITEMS[side]).mean)) if beta is None else
             item_terms(members, queries, [beta], side, block)[0] for side, beta in chosen["beta"].items()]
    sizes = {"captions": len(queries[0].captions.mean), "images": len(queries[0].images.mean)}
    return tuple(terms), {"split": split, **sizes, **chosen}
