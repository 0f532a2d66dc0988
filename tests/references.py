"""Slow twins of what the project does fast: formulas as the papers print them, loops as the originals have them."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor
from torch.distributions import Normal, kl_divergence

# ---- similarities


def normal(mean, log_var):
    return Normal(mean, (log_var / 2).exp().expand_as(mean))


def kl(mean1, log_var1, mean2, log_var2):
    return kl_divergence(normal(mean1, log_var1), normal(mean2, log_var2)).sum(1)


# One image (1, D) against all captions (M, D): means and log-variances, mi, li, mc and lc -> (M,).


def slow_cosine(mi, li, mc, lc):
    return F.cosine_similarity(mi, mc, dim=1)


def slow_dot(mi, li, mc, lc):
    return (mi * mc).sum(1)


def slow_order(mi, li, mc, lc):
    return -(mc - mi).clamp(min=0).square().sum(1).sqrt()


def slow_mahalanobis(mi, li, mc, lc):
    return -((mi - mc).square() / lc.exp()).sum(1).sqrt()


def slow_kl(mi, li, mc, lc):
    return -kl(mi, li, mc, lc)


def slow_kl_reverse(mi, li, mc, lc):
    return -kl(mc, lc, mi, li)


def slow_minkl(mi, li, mc, lc):
    return -torch.minimum(kl(mi, li, mc, lc), kl(mc, lc, mi, li))


def slow_wasserstein(mi, li, mc, lc):
    std_i = li.exp().sqrt()
    std_c = lc.exp().sqrt()
    return -((mi - mc).square() + (std_i - std_c).square()).sum(1).sqrt()


def slow_wasserstein_var(mi, li, mc, lc):
    return -((mi - mc).square() + (li.exp() - lc.exp()).square()).sum(1).sqrt()


def slow_csd(mi, li, mc, lc):
    return -((mi - mc).square() + li.exp() + lc.exp()).sum(1)


BROADCASTS = {
    "cosine": slow_cosine,
    "dot": slow_dot,
    "order": slow_order,
    "mahalanobis": slow_mahalanobis,
    "kl": slow_kl,
    "kl_reverse": slow_kl_reverse,
    "minkl": slow_minkl,
    "wasserstein": slow_wasserstein,
    "wasserstein_var": slow_wasserstein_var,
    "csd": slow_csd,
}


def broadcasts(name: str, images, captions) -> Tensor:
    """Embeddings of images one by one against those of all captions -> (N, M)."""
    assert name in BROADCASTS, (
        f"{name} has no slow twin; write it as a line of BROADCASTS in tests/references.py"
    )
    slow_similarity = BROADCASTS[name]
    log_var = images.log_var
    if log_var is None:
        log_var = images.mean  # any numbers: a point's variance is not read

    rows = [
        slow_similarity(mean[None], v[None], captions.mean, captions.log_var)
        for mean, v in zip(images.mean, log_var)
    ]
    return torch.stack(rows)


# ---- ranking losses

# Terms of one query: its score with its own item, and those with the others that count.


def slow_hinge(own, others, margin=0.2):
    return [max(0.0, margin + x - own) for x in others]


def slow_infonce(own, others, smoothing=0.0):
    z = [x / 0.07 for x in (own, *others)]
    norm = math.log(sum(map(math.exp, z)))
    return (1 - smoothing) * (norm - z[0]) + smoothing * sum(norm - x for x in z) / len(z)


def slow_match(own, others, scale=5.0, shift=5.0, smoothing=0.0):
    p = [1 / (1 + math.exp(-scale * x - shift)) for x in (own, *others)]
    targets = [1 - smoothing, *[smoothing] * len(others)]
    return -sum(t * math.log(x) + (1 - t) * math.log(1 - x) for t, x in zip(targets, p))


def slow_rcl(own, others):
    e = [math.exp(x / 0.05) for x in (own, *others)]
    return -sum(math.log(1 - x / sum(e)) for x in e[1:])


def slow_nll(own, others, gamma=10.0):
    """All others are drawn where a batch has few."""
    return math.log(sum(math.exp(gamma * (x - own)) for x in (own, *others)))


# The loss of a batch from its 2 B queries, first the images and then the captions. It is what losses.py computes by
# matrices, at the default options of train.py.


def sum_hinge(queries):
    return sum(sum(slow_hinge(*query)) for query in queries)


def average_infonce(queries):
    return sum(slow_infonce(*query) for query in queries) / len(queries)


def average_match(queries):
    return sum(slow_match(*query) for query in queries) / len(queries)


def average_rcl(queries):
    return sum(slow_rcl(*query) for query in queries) / len(queries)


def average_nll_of_images(queries):
    images = queries[: len(queries) // 2]
    return sum(slow_nll(*query) for query in images) / len(images)


def slow_logistic(queries):
    """Each matched pair stands in two queries; of the others as many are drawn as there are."""
    losses = [math.log(1 + math.exp(-own)) for own, _ in queries[: len(queries) // 2]]
    for _, others in queries:
        losses += [math.log(1 + math.exp(x)) for x in others]
    return sum(losses) / len(losses)


SLOW_LOSSES = {
    "hinge": sum_hinge,
    "infonce": average_infonce,
    "match": average_match,
    "rcl": average_rcl,
    "nll": average_nll_of_images,
    "logistic": slow_logistic,
}


# ---- cross-attention of words and regions (SCAN)


def pair_score(regions, words, direction, aggregate, scale=6.0, sharpness=9.0):
    """One image (P, D) and one caption (T, D), one query part after the other, as SCAN's paper and code define it."""
    query = regions
    context = words
    if direction == "t2i":
        query = words
        context = regions

    products = torch.stack([torch.stack([c @ q for q in query]) for c in context])  # (C, Q)
    products = torch.where(products > 0, products, 0.1 * products)
    products = torch.stack([row / row.square().sum().sqrt() for row in products])

    cosines = []
    for k, q in enumerate(query):
        weights = (sharpness * products[:, k]).exp()
        mixed = sum(w * c for w, c in zip(weights / weights.sum(), context))  # (D,)
        cosines.append(q @ mixed / (q.norm() * mixed.norm()))
    cosines = torch.stack(cosines)

    if aggregate == "LogSumExp":
        return (scale * cosines).exp().sum().log() / scale
    assert aggregate == "Mean"
    return cosines.mean()


# ---- ranks, recalls and precisions


def slow_rank(row, positives):
    """Number of non-positive items that score at least as high as the best positive."""
    best = max(row[p] for p in positives)
    return sum(1 for g, score in enumerate(row) if g not in positives and score >= best)


def slow_summary(ranks):
    ordered = sorted(ranks)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return {
        **{f"r{k}": 100 * sum(r < k for r in ranks) / len(ranks) for k in (1, 5, 10)},
        "medr": middle // 1 + 1,
        "meanr": sum(ranks) / len(ranks) + 1,
        "queries": len(ranks),
    }


def list_queries(scores, caption_image):
    """{direction: [(scores of a query, its right items)]}; images without captions are not queries."""
    n, m = scores.shape

    images = []
    for i in range(n):
        captions = [c for c in range(m) if caption_image[c] == i]
        if captions:
            images.append((scores[i], captions))

    captions = [(scores[:, c], [caption_image[c]]) for c in range(m)]
    return {"i2t": images, "t2i": captions}


def slow_retrieval(scores, caption_image):
    """Both directions by loops."""
    return slow_full(list_queries(scores, caption_image))


def slow_full(queries):
    result = {}
    rsum = 0
    for side in ("i2t", "t2i"):
        ranks = [slow_rank(*query) for query in queries[side]]
        result[side] = slow_summary(ranks)
        for k in (1, 5, 10):
            rsum += result[side][f"r{k}"]
    return {**result, "rsum": rsum}


# Protocols of the original pairs, of `list_queries`: what evaluation/protocols.py computes by matrices.
SLOW_PROTOCOLS = {"full": slow_full}


def slow_precisions(row, positives):
    """R-precision and AP@R, (1 / R) sum over k = 1 .. R of (share of positives in the top k) x (item k is one). What
    is excluded (-inf) is not a part of the gallery; where scores tie, non-positives stand first."""
    gallery = [g for g in range(len(row)) if row[g] > -np.inf]
    gallery.sort(key=lambda g: (-row[g], g in positives))
    hit = [g in positives for g in gallery]
    r = len(positives)

    average_precision = 0
    for k in range(1, r + 1):
        if k <= len(hit) and hit[k - 1]:
            average_precision += sum(hit[:k]) / k
    return sum(hit[:r]) / r, average_precision / r


def slow_ndcg(row, positives, k=10):
    """Sum over positives at rank r <= k of 1 / log2(1 + r), by that of the best order."""
    gallery = sorted(range(len(row)), key=lambda g: (-row[g], g in positives))
    gain = sum(1 / math.log2(1 + r) for r, g in enumerate(gallery[:k], 1) if g in positives)
    return gain / sum(1 / math.log2(1 + r) for r in range(1, min(k, len(positives)) + 1))


# ---- Fisher vectors


def fisher_vectors(mixture, sets: list) -> np.ndarray:
    """Fisher vectors (n_sets, 2 K D) of sets of word vectors (T, D), each word counted once where it stands."""
    length = [len(words) for words in sets]
    x = np.concatenate([words for words in sets if len(words)])

    set_of_word = np.repeat(np.arange(len(sets)), length)
    word = np.arange(len(x))
    counts = csr_array((np.ones(len(x)), (set_of_word, word)), (len(sets), len(x)))
    return mixture.fisher_of_counts(x, counts)
