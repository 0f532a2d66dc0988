"""Embeddings as vectors of an index: inner products of these give scores, or propose what is then scored.

An index is asked for the largest inner products. A separable similarity is one, so `Lifted` vectors give its scores
themselves: an image is the row [A, a] and a query the row [B, 1], and the query's own number b is added afterwards.
min KL is the larger of two such products, each a *channel*. All other similarities hold what they compare, `Whole`
embeddings: the means propose (the nearest mean is an inner product, too), and the similarity itself gives the scores.

A float16 vector holds the numbers that sum up a whole item, such as -|mu|^2, in two columns, their rounded value and
what rounding took: they are large, and float16 has three digits.
"""
from typing import NamedTuple

import torch
from torch import Tensor

from similarities import Cosine, Embedding, MinKL, Separable, Similarity


class Asked(NamedTuple):
    """Q queries as an index is asked."""
    vectors: list[Tensor]             # (Q, K) float32 of each channel
    terms: list[Tensor]               # (Q,) of each channel: what a product lacks to the raw score
    embedding: Embedding              # what was asked
    similarity: Similarity            # what compares it with whole embeddings

    def rows(self, index) -> "Asked":
        """The queries that `index` (a slice) selects."""
        return self._replace(vectors=[x[index] for x in self.vectors], terms=[x[index] for x in self.terms],
                             embedding=self.embedding.rows(index))


def two_columns(x: Tensor) -> Tensor:
    """(N, k) -> (N, 2 k): the values in float16, and the rest of them."""
    rounded = x.half().float()
    return torch.cat([rounded, x - rounded], 1)


def joined(A: Tensor, a: Tensor | None, dim: int, half: bool) -> Tensor:
    """The row [A, a] of every item (N, K). The columns of A beyond a multiple of D sum up an item, as a does."""
    few = A.shape[1] % dim
    numbers = torch.cat([A[:, A.shape[1] - few:], *([] if a is None else [a[:, None]])], 1)
    return torch.cat([A[:, :A.shape[1] - few], two_columns(numbers) if half else numbers], 1)


def asking(B: Tensor, a: bool, dim: int, half: bool) -> Tensor:
    """The row of a query beside `joined` rows: [B, 1], a number for each of their columns."""
    few = B.shape[1] % dim
    numbers = torch.cat([B[:, B.shape[1] - few:], *([B.new_ones(len(B), 1)] if a else [])], 1)
    return torch.cat([B[:, :B.shape[1] - few], numbers, *([numbers] if half else [])], 1)


class LiftedVectors:
    """Vectors whose inner products are the raw scores of a separable similarity, or of the two that min KL takes the
    larger of. origin: see `similarities.Lifted`; half: the index stores float16."""
    def __init__(self, similarity: Similarity, origin: Embedding, half: bool):
        self.similarity, self.origin, self.half = similarity, origin, half
        self.parts = [similarity.kl, similarity.kl_reverse] if isinstance(similarity, MinKL) else [similarity]

    @property
    def takes_bank(self) -> bool:
        """Whether a number that is taken from all scores of an item can lie in its vector: a score that is no product
        but a root of one would not hold it."""
        return all(type(part).finish is Separable.finish for part in self.parts)

    def images(self, e: Embedding, bank: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """What the index holds of N images: (N, K) of every channel, and the rest. bank (N,): taken from the scores."""
        lifts = [part.images(e, self.origin) for part in self.parts]
        return [joined(A, a if bank is None else a - bank, e.mean.shape[1], self.half) for A, a in lifts], None

    def queries(self, e: Embedding, of_images: bool = False) -> Asked:
        """Captions, or images that stand for captions, as queries."""
        lifts = [part.captions(e, self.origin) for part in self.parts]
        return Asked([asking(B, True, e.mean.shape[1], self.half) for B, _ in lifts], [b for _, b in lifts], e,
                     self.similarity)

    def scores(self, products: list[Tensor], asked: Asked, rest=None) -> Tensor:
        """Scores (Q, n) of the products (Q, n) of every channel with some images."""
        finished = [part.finish(x + b[:, None]) for part, x, b in zip(self.parts, products, asked.terms)]
        return finished[0] if len(finished) == 1 else torch.maximum(*finished)


class WholeVectors:
    """Vectors for the nearest means, mu_i . mu_c - |mu_i|^2 / 2, and beside them all that the similarity compares.

    dim: D; log_var: how many numbers a log-variance has, 0 for points; parts: (P, D) of every item, or None.
    """
    takes_bank = False

    def __init__(self, similarity: Similarity, half: bool, dim: int, log_var: int, parts: list[int] | None):
        self.similarity, self.half, self.dim, self.log_var, self.parts = similarity, half, dim, log_var, parts

    def images(self, e: Embedding, bank: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """As of LiftedVectors. The rest (N, R): log-variances, parts, and how many of these are real."""
        assert bank is None
        rest = [] if e.log_var is None else [e.log_var]
        if self.parts is not None:
            n_parts = e.mean.new_full((len(e.mean),), self.parts[0]) if e.n_parts is None else e.n_parts.float()
            rest += [e.parts.flatten(1), n_parts[:, None].to(e.mean.device)]
        return [joined(e.mean, -e.mean.square().sum(1) / 2, self.dim, self.half)], torch.cat(rest, 1) if rest else None

    def queries(self, e: Embedding, of_images: bool = False) -> Asked:
        """As of LiftedVectors. Where the similarity needs an image and a caption, the cosine of the means compares two
        images."""
        similarity = self.similarity
        if of_images and not similarity.within_modality:
            similarity, e = Cosine(), Embedding(e.mean)
        return Asked([asking(e.mean, True, self.dim, self.half)], [e.mean.new_zeros(len(e.mean))], e, similarity)

    def embedding(self, vectors: Tensor, rest: Tensor | None) -> Embedding:
        """What the index holds of images: (n, K) of the channel and the rest (n, R) -> Embedding."""
        log_var, parts, n_parts = None, None, None
        if self.log_var:
            log_var = rest[:, :self.log_var]
        if self.parts is not None:
            parts, n_parts = rest[:, self.log_var:-1].unflatten(1, tuple(self.parts)), rest[:, -1].long()
        return Embedding(vectors[:, :self.dim], log_var, parts, n_parts)

    def scores(self, vectors: Tensor, asked: Asked, rest: Tensor | None) -> Tensor:
        """Scores (Q, n) of images whose vectors (n, K) and rest (n, R) are given."""
        images = self.embedding(vectors, rest)
        if isinstance(asked.similarity, Cosine):
            images = Embedding(images.mean)
        return asked.similarity(images, asked.embedding).T


def described(similarity: Similarity, like: Embedding) -> dict:
    """What an index notes of its vectors. like: some of the embeddings."""
    separable = isinstance(similarity, Separable) and similarity.within_modality or isinstance(similarity, MinKL)
    return {"kind": "lifted" if separable else "whole", "dim": like.mean.shape[1],
            "log_var": 0 if like.log_var is None else like.log_var.shape[1],
            "parts": None if like.parts is None else list(like.parts.shape[1:])}


def vectors_of(similarity: Similarity, origin: Embedding, half: bool, noted: dict) -> LiftedVectors | WholeVectors:
    """The vectors of a similarity, as `described` noted them. Mahalanobis separates, but compares a Gaussian with a
    point, so it holds whole embeddings: photos are then found by photos, too."""
    if noted["kind"] == "lifted":
        return LiftedVectors(similarity, origin, half)
    return WholeVectors(similarity, half, noted["dim"], noted["log_var"], noted["parts"])
