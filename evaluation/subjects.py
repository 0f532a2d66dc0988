"""What is evaluated, its scores in blocks, the galleries that are searched, and the record of every
query's outcome.

A `Subject` is anything that scores images and captions: trained models, embeddings of any model, or
a ready matrix of scores.
"""
import os
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

import metrics
from cli import InputError
from evaluation.encode import Gallery
from evaluation.items import Items
from inputs import Photos
from similarities import Cosine, Embedding, Similarity

FOLD = 1000                           # images per fold; COCO 1K is the mean of five folds


class Member(NamedTuple):
    """One model of an ensemble: how it compares, and what it made of the items."""
    similarity: Similarity
    images: Embedding | None          # N items, or None where the images are not at hand
    captions: Embedding | None        # M items


class Bank(NamedTuple):
    """A query-bank normalisation: what is taken from all scores of an item, see `bank`."""
    images: torch.Tensor              # (N,)
    captions: torch.Tensor            # (M,)
    report: dict                    # whose queries, and how beta was chosen: "bank" of results.json

    def take(self, rows) -> "Bank":
        """The items in the order `rows` (an items.Order)."""
        return self._replace(images=self.images[rows.images], captions=self.captions[rows.captions])


class Variances(NamedTuple):
    """Variances that point models were given after their training, see `variances`."""
    sides: list[tuple]      # for each member what gives them to its images and what to its captions
    report: dict                      # of which kind, fitted to what: "variances" of results.json
    notes: list[str]                  # for the reader


@dataclass
class Subject:
    """What is evaluated: members, whose scores are averaged, or a ready matrix of scores."""
    name: str
    similarity: str
    caption_image: np.ndarray                     # (M,) the row of each caption's image
    n_images: int
    members: list[Member] = field(default_factory=list)
    scores: np.ndarray | None = None              # (N, M), mapped or in memory
    bank: Bank | None = None                      # of the members' mean scores, with --bank
    variances: Variances | None = None            # that the members were given, with --variances
    items: Items | None = None                    # what is known of the images and captions
    photos: Photos | list[str] | None = None      # the photos, or their file names
    data_name: str = ""
    split: str = ""                               # empty where no split is known
    folder: str = ""                              # folder of the data set
    unknown_words: dict | None = None             # on a data set other than that of the training
    # what was assumed, left out or put in another order
    notes: list[str] = field(default_factory=list)
    # a sentence on each model, none of other embeddings and scores
    models: list[str] = field(default_factory=list)
    # digests of the models, none of other embeddings and scores
    weights: list[str] = field(default_factory=list)

    def take(self, rows) -> None:
        """Put images and captions in the order `rows` (an items.Order)."""
        self.members = [Member(m.similarity, m.images and m.images.rows(rows.images),
                               m.captions and m.captions.rows(rows.captions)) for m in self.members]
        self.scores = None if self.scores is None else self.scores[rows.images][:, rows.captions]
        self.bank = self.bank and self.bank.take(rows)

    @property
    def has_images(self) -> bool:
        return self.scores is not None or all(m.images is not None for m in self.members)

    @property
    def gaussian(self) -> bool:
        """Whether any side of any member has variances."""
        return any(e is not None and e.log_var is not None for m in self.members for e in (m.images, m.captions))


def refuse_other_kind(subject: Subject, other: Subject, option: str, instead: str) -> None:
    """Raises InputError where two files are of the same items, or of embeddings that are not of one
    model. option: the one that names the other file; instead: what to do."""
    def kind(s: Subject):
        return s.similarity, [(m.images.mean.shape[1], m.images.log_var is None,
                               m.captions.log_var is None) for m in s.members]
    if kind(subject) != kind(other):
        raise InputError(f"{option} {other.name} ({other.similarity}, {widths(other)}) is of "
                         f"another model than {subject.name} ({subject.similarity}, "
                         f"{widths(subject)}); give embeddings of the same model")
    for name in ("image_ids", "image_names"):
        ours, theirs = (getattr(s.items, name) for s in (subject, other))
        if ours is not None and theirs is not None and set(ours) & set(theirs):
            raise InputError(f"{option} {other.name} and {subject.name} share "
                             f"{len(set(ours) & set(theirs)):,} images; {instead}")
    if os.path.realpath(other.name) == os.path.realpath(subject.name):
        raise InputError(f"{option} {other.name} is the file to be judged; {instead}")


def widths(subject: Subject) -> str:
    if not subject.members:
        return "scores"
    m = subject.members[0]
    return f"D = {m.images.mean.shape[1]}, {'Gaussian' if subject.gaussian else 'points'}"


class Record(dict):
    """(protocol, direction, "rank" | "rp" | ...) -> one number per query; NaN where a query does
    not count.

    Ranks are 0-based, all other numbers are shares in [0, 1].
    """

    def add(self, protocol: str, side: str, **values) -> None:
        """Keep one number per query for each name; negative numbers mean that a query does not
        count."""
        for name, value in values.items():
            value = np.asarray(value, float)
            self[protocol, side, name] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """{metric: (total (N,), count (N,))} per image, as `metrics.paired_bootstrap` takes it;
        percent and 1-based ranks."""
        totals = {}
        for (protocol, side, name), value in self.items():
            owner = np.arange(n_images) if side in ("i2t", "i2i") else caption_image
            known = ~np.isnan(value)
            numbers = {name: 100 * value}
            if name == "rank":
                numbers = {f"r{k}": 100.0 * (value < k) for k in metrics.RECALLS} | {"meanr": value
                                                                                     + 1}
            for key, number in numbers.items():
                totals[f"{protocol} {side} {key}"] = tuple(np.bincount(owner[known],
                                                                       x[known].astype(float),
                                                                       n_images) for x in (number,
                                                                                           np.ones(
                    len(value))))
        return totals


# ---- scores in blocks: columns(c)(i), as `Similarity.columns` returns them

def mean_of(columns: list):
    """The mean of several models' scores (the papers' ensembles), in blocks."""
    if len(columns) == 1:
        return columns[0]

    def column(c):
        blocks = [one(c) for one in columns]
        return lambda i: sum(score(i) for score in blocks) / len(blocks)
    return column


def image_text(members: list[Member]):
    """Scores between images and captions, in blocks: those of one model, or the mean of several."""
    return mean_of([m.similarity.columns(m.images, m.captions) for m in members])


def image_text_of(scores: np.ndarray):
    """The scores of a ready matrix (N, M), in blocks."""
    def of(index):
        # NumPy takes a tensor of one for a number
        return index if isinstance(index, slice) else np.asarray(index)
    return lambda c: lambda i: torch.from_numpy(scores[of(i)][:, of(c)].astype(np.float32,
                                                                               copy=False))


def normalised(columns, bank: Bank):
    """The scores less what the bank takes from the image and from the caption, in blocks."""
    def column(c):
        score, of_captions = columns(c), bank.captions[c]

        def block(i):
            scores = score(i)
            return scores - bank.images[i, None].to(scores.device) - of_captions.to(scores.device)
        return block
    return column


def within_modality(subject: Subject, side: str):
    """Scores among the images (side "images") or among the captions ("captions"), in blocks;
    queries are rows."""
    return mean_of([columns_within(m.similarity, getattr(m, side)) for m in subject.members])


def columns_within(similarity: Similarity, e: Embedding):
    """Scores among the items of one modality, in blocks.

    Some similarities need an image and a caption: the Mahalanobis distance takes one Gaussian and
    one point, cross-attention takes regions and words. There the cosine of the means serves.
    """
    if not similarity.within_modality:
        similarity, e = Cosine(), Embedding(e.mean)
    return similarity.columns(e, e)


@torch.no_grad()
def score_matrix(subject: Subject, block: int) -> np.ndarray:
    """All scores between images and captions, (N, M) in float32: the one copy that rules with
    several matches need."""
    if subject.scores is not None:
        return subject.scores
    columns, n, m = image_text(subject.members), subject.n_images, len(subject.caption_image)
    scores = np.empty((n, m), np.float32)
    for c in (slice(k, min(k + 5 * block, m)) for k in range(0, m, 5 * block)):
        score = columns(c)
        for i in (slice(k, min(k + block, n)) for k in range(0, n, block)):
            scores[i, c] = score(i).cpu().numpy()
    return scores


def finite(block: np.ndarray) -> np.ndarray:
    """The block as it is. Raises InputError where it holds NaN or infinity."""
    if not np.isfinite(block).all():
        raise InputError(metrics.NOT_FINITE)
    return block


# ---- galleries

def everything(subject: Subject) -> list[Gallery]:
    """One gallery of all images and captions."""
    return [Gallery(np.arange(subject.n_images), np.arange(len(subject.caption_image)))]


def folds(subject: Subject) -> list[Gallery]:
    """The five folds of COCO 1K: sequential images, and the captions of each fold's images."""
    starts, owner = range(0, 5 * FOLD, FOLD), subject.caption_image
    return [Gallery(np.arange(k, k + FOLD), np.flatnonzero((owner >= k) & (owner < k + FOLD)))
            for k in starts]


def mean_over(results: list[dict]) -> dict:
    """The mean over galleries; the numbers themselves where there is one gallery."""
    return metrics.average(results) if len(results) > 1 else results[0]
