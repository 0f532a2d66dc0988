"""Ranks the photos of an index for queries by the inner products of vectors, or by the similarity.

A similarity of INNER_PRODUCTS is one: an image is the row [A, a] and a query the row [B, 1], and the query's own
number b is added afterwards. For all others an index holds what they compare (`WholeVectors`).

A float16 vector holds the numbers that sum up a whole item, such as -|mu|^2, in two columns, their
rounded value and what rounding took: they are large, and float16 has three digits.
"""
import copy
from typing import NamedTuple

import torch
from torch import Tensor

from losses import Embedding, cosine, negative_root, trait, unit
from photos.trust import Trust

SCORES = 2 ** 26                      # scores that are held at a time, 256 MiB
PHOTOS = 4096                         # photos whose whole embeddings are compared at a time
# Photos whose vectors have a cosine above this are one photo: a file that is there twice, or that
# was hardly changed. Of 900 photos of Flickr8k no two are as near by any of four similarities
# (cosine 0.87, wasserstein 0.90, mls 0.92, kl 0.979 at most), nor are two of the demo's 1,900
# scenes (0.956).
ALIKE = 0.98


# ---- vectors

class Asked(NamedTuple):
    """Q queries as an index is asked."""
    vectors: list[Tensor]             # (Q, K) float32 of each channel
    terms: list[Tensor]               # (Q,) of each channel: what a product lacks to the raw score
    embedding: Embedding              # what was asked
    similarity: object                # what compares it with whole embeddings

    def rows(self, index) -> "Asked":
        """The queries that `index` (a slice) selects."""
        return Asked([x[index] for x in self.vectors], [x[index] for x in self.terms],
                     self.embedding.rows(index), self.similarity)


def joined(A: Tensor, a: Tensor, dim: int, half: bool) -> Tensor:
    """The row [A, a] of every item (N, K). The columns of A beyond a multiple of D sum up an item,
    as a does; for float16 they are two each, the rounded values and the rest of them."""
    whole = A.shape[1] - A.shape[1] % dim
    numbers = torch.cat([A[:, whole:], a[:, None]], 1)
    if half:
        rounded = numbers.half().float()
        numbers = torch.cat([rounded, numbers - rounded], 1)
    return torch.cat([A[:, :whole], numbers], 1)


def asking(B: Tensor, dim: int, half: bool) -> Tensor:
    """The row of a query beside `joined` rows: [B, 1], a number for each of their columns."""
    whole = B.shape[1] - B.shape[1] % dim
    numbers = torch.cat([B[:, whole:], B.new_ones(len(B), 1)], 1)
    return torch.cat([B[:, :whole], numbers, *([numbers] if half else [])], 1)


# Similarities that are inner products of one vector an item: (means x and standard deviations s, both from the
# origin, variances v) -> columns of the image, its number, columns of the caption, its number.

def distance_vectors(*blocks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-|x - y|^2 of the blocks (N, D) side by side = 2 x . y - |x|^2 - |y|^2."""
    x = torch.cat(blocks, 1)                                                        # (N, K)
    square = -x.square().sum(1)
    return 2 * x, square, x, square


def kl_vectors(x: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-KL(p || q), but for D / 2: columns and number as p, and as q."""
    precision, level = (-log_var).exp(), log_var.sum(1) / 2                         # (N, D), (N,)
    as_q = torch.cat([precision, x * precision], 1)
    return (torch.cat([-(log_var.exp() + x.square()) / 2, x], 1), level + x.shape[1] / 2,
            as_q, -level - (x.square() * precision).sum(1) / 2)


def index_vectors(name: str, e: Embedding, origin: Embedding) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns (N, K) and number (N,) of items as images, and as captions, of a similarity of INNER_PRODUCTS."""
    if name in ("cosine", "dot"):
        x, zero = unit(e.mean) if name == "cosine" else e.mean, e.mean.new_zeros(len(e.mean))
        return x, zero, x, zero
    x, log_var = e.mean - origin.mean, e.log_var.expand_as(e.mean)
    if name in ("kl", "kl_reverse"):
        as_p, of_p, as_q, of_q = kl_vectors(x, log_var)
        return (as_p, of_p, as_q, of_q) if name == "kl" else (as_q, of_q, as_p, of_p)
    if name == "csd":
        columns, square, others, _ = distance_vectors(x)
        number = square - log_var.exp().sum(1)
        return columns, number, others, number
    power = POWERS[name]
    return distance_vectors(x, (power * log_var).exp() - (power * origin.log_var).exp())


POWERS = {"wasserstein": 0.5, "wasserstein_var": 1.0}       # roots of squared distances
INNER_PRODUCTS = ("cosine", "dot", "kl", "kl_reverse", "csd", *POWERS)


class InnerProducts:
    """Vectors whose inner products are the scores of a similarity, or for `POWERS` their squares. origin: average
    embedding (1, D), which keeps the numbers small; half: the index stores float16."""

    def __init__(self, similarity, origin: Embedding, half: bool):
        self.similarity, self.origin, self.half, self.name = similarity, origin, half, similarity.__name__

    @property
    def takes_bank(self) -> bool:
        """Whether an item's vector can hold a number that is taken from its scores: not where they are roots."""
        return self.name not in POWERS

    def images(self, e: Embedding, bank: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """Vectors (N, K) of N images, and no rest. bank (N,): taken from the scores."""
        A, a, _, _ = index_vectors(self.name, e, self.origin)
        return [joined(A, a if bank is None else a - bank, e.mean.shape[1], self.half)], None

    def queries(self, e: Embedding, of_images: bool = False) -> Asked:
        """Captions, or images that stand for captions, as queries."""
        _, _, B, b = index_vectors(self.name, e, self.origin)
        return Asked([asking(B, e.mean.shape[1], self.half)], [b], e, self.similarity)

    def scores(self, products: list[Tensor], asked: Asked) -> Tensor:
        """Scores (Q, n) of the products (Q, n) with some images."""
        raw = products[0] + asked.terms[0][:, None]
        return negative_root(-raw) if self.name in POWERS else raw

    def scores_of(self, vectors: list[Tensor], rest: Tensor | None, asked: Asked) -> Tensor:
        """Scores (Q, n) of images whose vectors (n, K) are given."""
        return self.scores([asked.vectors[0] @ vectors[0].T], asked)


class WholeVectors:
    """The means, with -|mu|^2 / 2 behind them, by which copies are known, and beside them all else
    that the similarity compares.

    dim: D; log_var: how many numbers a log-variance has, 0 for points; parts: (P, D) of every item,
    or None.
    """
    takes_bank = False

    def __init__(self, similarity, half: bool, dim: int, log_var: int,
                 parts: list[int] | None):
        self.similarity, self.half, self.dim = similarity, half, dim
        self.log_var, self.parts = log_var, parts

    def images(self, e: Embedding,
               bank: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """What the index holds of N images: (N, K) of the channel, and the rest (N, R):
        log-variances, parts, and how many of these are real."""
        assert bank is None
        rest = [] if e.log_var is None else [e.log_var]
        if self.parts is not None:
            n_parts = e.n_parts
            if n_parts is None:
                n_parts = torch.full((len(e.mean),), self.parts[0])
            rest += [e.parts.flatten(1), n_parts.float()[:, None].to(e.mean.device)]
        vectors = joined(e.mean, -e.mean.square().sum(1) / 2, self.dim, self.half)
        return [vectors], torch.cat(rest, 1) if rest else None

    def queries(self, e: Embedding, of_images: bool = False) -> Asked:
        """Captions, or images, as queries. Where the similarity needs an image and a caption, the
        cosine of the means compares two images."""
        similarity = self.similarity
        if of_images and not trait(similarity, "within_modality"):
            similarity, e = cosine, Embedding(e.mean)
        return Asked([], [], e, similarity)

    def scores_of(self, vectors: list[Tensor], rest: Tensor | None, asked: Asked) -> Tensor:
        """Scores (Q, n) of images whose vectors (n, K) and rest (n, R) are given."""
        images = Embedding(vectors[0][:, :self.dim])
        if asked.similarity is not cosine:
            if self.log_var:
                images = images._replace(log_var=rest[:, :self.log_var])
            if self.parts is not None:
                parts = rest[:, self.log_var:-1].unflatten(1, tuple(self.parts))
                images = images._replace(parts=parts, n_parts=rest[:, -1].long())
        return asked.similarity(images, asked.embedding).T


def on_cpu(similarity):
    """A similarity on the CPU, where vectors are compared: a copy of a module, or the function itself."""
    return copy.deepcopy(similarity).cpu() if isinstance(similarity, torch.nn.Module) else similarity


def form_of(similarity, like: Embedding, products: bool) -> dict:
    """The part of an index's manifest that describes its vectors. like: some of the embeddings. products: hold inner
    products where the similarity is one, as Milvus needs."""
    lifted = products and getattr(similarity, "__name__", None) in INNER_PRODUCTS
    return {"kind": "lifted" if lifted else "whole", "dim": like.mean.shape[1],
            "log_var": 0 if like.log_var is None else like.log_var.shape[1],
            "parts": None if like.parts is None else list(like.parts.shape[1:])}


def vectors_of(similarity, origin: Embedding, half: bool, form: dict) -> InnerProducts | WholeVectors:
    """The vectors of a similarity, of the form that an index notes."""
    if form["kind"] == "lifted":
        return InnerProducts(similarity, origin, half)
    return WholeVectors(similarity, half, form["dim"], form["log_var"], form["parts"])


# ---- ranking

class Ranking(NamedTuple):
    """The best photos of Q queries."""
    rows: Tensor                  # (Q, top) the best first
    scores: Tensor                # (Q, top)
    log_total: Tensor | None      # (Q,) log sum_j exp(T s_j) over the gallery, with a temperature
    in_set: Tensor | None         # (Q,) how many photos have -log p up to the limit of the sets
    expected: Tensor | None       # (Q,) how many photos fit, where a calibration tells


class Ranker:
    """The photos of an `index.Index`, compared by `vectors`."""

    def __init__(self, vectors: InnerProducts | WholeVectors, index):
        self.vectors, self.index, self.count = vectors, index, len(index)
        self.bank = None              # (N,) what a query bank takes, where no vector can hold it
        if index.manifest["bank"] and not vectors.takes_bank:
            self.bank = torch.from_numpy(index.entries.bank)

    @torch.no_grad()
    def rank(self, asked: Asked, top: int, trust: Trust | None = None, without: list[Asked] = ()) -> Ranking:
        """The best `top` photos of every query.

        without: what photos should not show, each an Asked of one. The score is then z(query) less max(0, z(part)) of
        each, where z is the score less its mean over all photos, over its deviation: a photo that is far from what is
        not wanted gains nothing by being farther.
        """
        step = 1 if without else max(1, SCORES // self.count)
        parts = [self.rank_some(asked.rows(slice(q, q + step)), min(top, self.count), trust, without)
                 for q in range(0, len(asked.embedding.mean), step)]
        return Ranking(*(None if x[0] is None else torch.cat(x) for x in zip(*parts)))

    def rank_some(self, asked: Asked, top: int, trust: Trust | None, without: list[Asked]) -> Ranking:
        scores = self.all_scores(asked)                                             # (Q, N)
        if without:
            scores = standard(scores) - sum(standard(self.all_scores(part)).clamp(min=0) for part in without)
        best = scores.topk(top, dim=1)
        total, in_set, fit = None, None, None
        if trust is not None:
            fit = trust.number(scores, asked.embedding) if trust.fits else None
            logits = trust.temperature * scores.double()
            total = logits.logsumexp(1)
            if trust.limit is not None:
                in_set = (total[:, None] - logits <= trust.limit).sum(1)
        return Ranking(best.indices, best.values, total, in_set, fit)

    def all_scores(self, asked: Asked) -> Tensor:
        """Scores (Q, N) of all photos."""
        if isinstance(self.vectors, InnerProducts):
            scores = self.vectors.scores(self.index.products(asked.vectors), asked)
        else:
            scores = torch.cat([self.vectors.scores_of(*self.index.fetch(rows), asked)
                                for rows in torch.arange(self.count).split(PHOTOS)], 1)
        return scores if self.bank is None else scores - self.bank

    def copies(self, rows: Tensor) -> list[int]:
        """Which of the photos `rows` (R,) are copies of the first of them, as that itself is: their places."""
        x, = self.index.fetch(rows)[0][:1]                                          # (R, K)
        alike = torch.cosine_similarity(x, x[:1]) > ALIKE
        return alike.index_fill(0, torch.tensor([0]), True).nonzero()[:, 0].tolist()


def standard(scores: Tensor) -> Tensor:
    """Scores (Q, N) less their mean over the photos, over their deviation; zeros where all are
    equal."""
    deviation = scores.std(1, correction=0, keepdim=True)
    return (scores - scores.mean(1, keepdim=True)) / deviation.masked_fill(deviation == 0, 1)
