"""Vectors whose inner products order photos as a similarity does.
For a database of vectors.

An image is the row [A, a] and a query [B, 1], and A . B + a + b, with the query's own number b, is the score, or minus
its square for the roots of distances. Means are taken from an origin, the average photo, which keeps numbers small.
"""
import torch
from torch import Tensor

from losses import Embedding, negative_root, unit

POWERS = {"wasserstein": 0.5, "wasserstein_var": 1.0}       # roots of squared distances of means and sigma^(2 power)
INNER_PRODUCTS = ("cosine", "dot", "kl", "kl_reverse", "csd", *POWERS)


def distance_vectors(*blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-|x - y|^2 of the blocks (N, D) side by side = 2 x . y - |x|^2 - |y|^2."""
    x = torch.cat(blocks, 1)                                                        # (N, K)
    square = -x.square().sum(1)
    return 2 * x, square, x, square


def kl_vectors(x: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-KL(p || q) (ucmr eq. 4), but for D / 2: columns and number as p, and as q."""
    precision, level = (-log_var).exp(), log_var.sum(1) / 2                         # (N, D), (N,)
    as_q = torch.cat([precision, x * precision], 1)
    return (torch.cat([-(log_var.exp() + x.square()) / 2, x], 1), level + x.shape[1] / 2,
            as_q, -level - (x.square() * precision).sum(1) / 2)


def columns(name: str, e: Embedding, origin: Embedding) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A (N, K) and a (N,) of items as images, and B (N, K) and b (N,) as queries."""
    if name in ("cosine", "dot"):
        x, zero = unit(e.mean) if name == "cosine" else e.mean, e.mean.new_zeros(len(e.mean))
        return x, zero, x, zero
    x, log_var = e.mean - origin.mean, e.log_var.expand_as(e.mean)
    if name in ("kl", "kl_reverse"):
        as_p, of_p, as_q, of_q = kl_vectors(x, log_var)
        return (as_p, of_p, as_q, of_q) if name == "kl" else (as_q, of_q, as_p, of_p)
    if name == "csd":
        doubled, square, plain, _ = distance_vectors(x)
        number = square - log_var.exp().sum(1)
        return doubled, number, plain, number
    power = POWERS[name]
    return distance_vectors(x, (power * log_var).exp() - (power * origin.log_var).exp())


def image_vectors(name: str, e: Embedding, origin: Embedding) -> Tensor:
    """Vectors (N, K + 1) of N images."""
    A, a, _, _ = columns(name, e, origin)
    return torch.cat([A, a[:, None]], 1)


def query_vectors(name: str, e: Embedding, origin: Embedding) -> tuple[Tensor, Tensor]:
    """Vectors (Q, K + 1) of Q queries, and their own numbers (Q,)."""
    _, _, B, b = columns(name, e, origin)
    return torch.cat([B, B.new_ones(len(B), 1)], 1), b


def scores_of_products(name: str, products: Tensor) -> Tensor:
    """Scores of inner products to which the query's own number was added."""
    return negative_root(-products) if name in POWERS else products
