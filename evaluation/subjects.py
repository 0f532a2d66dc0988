"""What is evaluated, its scores in blocks, the galleries that are searched, and the record of every
query's outcome; and which images and captions these are.

A `Subject` is anything that scores images and captions: trained models, embeddings of any model, or
a ready matrix of scores. Embeddings meet a split, a run meets another run, the members of an
ensemble meet each other: all have to be of one split, in one order. Where ids, names or texts of
both sides are known they are compared; where none is, the report says what is assumed.
"""
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

import metrics
from cli import InputError, check
from data import Photos
from evaluation.annotations import Index
from evaluation.encode import Gallery
from losses import Embedding, cosine, trait

# ---- whose images and captions

@dataclass
class Items:
    """What is known of N images and M captions; None where it is not known."""
    source: str                       # where they come from, for messages
    owner: np.ndarray                 # (M,) the row of each caption's image
    n_images: int
    image_ids: list[int] | None = None        # N whole numbers
    image_names: list[str] | None = None      # N file names
    caption_ids: list[int] | None = None      # M whole numbers
    captions: list[str] | None = None         # M texts
    data_name: str = ""
    split: str = ""                   # "dev" for val; nothing where it is not known
    assumed: bool = False           # `owner` is a guess: as many captions for every image, in order
    caption_names: list[str] | None = None    # M names NAME#K: caption K, from 0, of photo NAME

    @cached_property
    def image_index(self) -> Index:
        return Index(self.image_ids, "image", self.source)

    @cached_property
    def caption_index(self) -> Index:
        return Index(self.caption_ids, "caption", self.source)


def items_of_split(split, data_name: str) -> Items:
    """The items of a `data.Split`."""
    ids = split.image_ids
    numbered = ids is not None and all(isinstance(i, (int, np.integer)) for i in ids)
    names = split.photo_names or (None if numbered or ids is None else [str(i) for i in ids])
    caption_ids = None if split.caption_ids is None else list(map(int, split.caption_ids))
    return Items(split.source, split.caption_image, len(split.images), ids if numbered else None,
                 names, caption_ids, split.captions, data_name, "dev" if split.name == "val"
                 else split.name, caption_names=split.caption_names)


def refuse_other_items(mine: Items, theirs: Items) -> list[str]:
    """Raise InputError where two sources are of other items, or have them in another order. Returns
    notes on what is assumed."""
    here, there = ((items.n_images, len(items.owner)) for items in (mine, theirs))
    check(here == there, f"{mine.source} has {here[0]} images and {here[1]} captions where what it "
                         f"meets has {there[0]} and {there[1]} of {theirs.source}; compare runs on "
                         "the same split with --data_name and --split")
    foreign = differ(mine.data_name, theirs.data_name)
    check(foreign or not differ(mine.split, theirs.split),
          f"{mine.source} is of the {mine.split} split and {theirs.source} of the {theirs.split} "
          f"split of {mine.data_name or theirs.data_name or 'some data'}; give files of one split")
    check(mine.assumed or np.array_equal(mine.owner, theirs.owner),
          f"{mine.source} gives captions to other images than {theirs.source}; give files of one "
          "split, in its order")
    if mine.captions is not None and mine.captions == theirs.captions:
        return []       # whatever the ids: SCAN numbers rows where VSE++ has COCO's
    known = set()
    for what in ("image ids", "image names", "caption ids"):
        ids, others = (getattr(items, what.replace(" ", "_")) for items in (mine, theirs))
        if ids is not None and others is not None:
            if what == "image names":
                ids, others = (list(map(os.path.basename, names)) for names in (ids, others))
            check(list(ids) == list(others),
                  f"{mine.source} and {theirs.source} have other {what}, or the same in another "
                  "order; give files of one split, in its order")
            known.add(f"{what.split()[0]}s")
    unknown = [what for what in ("images", "captions") if what not in known]
    check(not (foreign and unknown),
          f"{mine.source} is of {mine.data_name} and {theirs.source} of {theirs.data_name}, and no "
          f"ids tell that their {' and '.join(unknown)} are the same; give files of one split")
    return [f"{mine.source} does not say which {' and '.join(unknown)} it is about: those of "
            f"{theirs.source} in their order, assumed"] if unknown else []


def differ(one: str, other: str) -> bool:
    """Whether two names are known and differ."""
    return bool(one and other) and one != other


# ---- what is evaluated

FOLD = 1000                           # images per fold; COCO 1K is the mean of five folds
BLOCK = 1000                          # images that are scored at once


class Member(NamedTuple):
    """One model of an ensemble: how it compares, and what it made of the items."""
    similarity: object                # one of losses.SIMILARITIES, built
    images: Embedding | None          # N items, or None where the images are not at hand
    captions: Embedding | None        # M items


class Bank(NamedTuple):
    """A query-bank normalisation: what is taken from all scores of an item, see `bank`."""
    images: torch.Tensor              # (N,)
    captions: torch.Tensor            # (M,)
    report: dict                    # whose queries, and how beta was chosen: "bank" of results.json


class Variances(NamedTuple):
    """Variances that point models were given after their training, see `volume`."""
    sides: list[tuple]                # of each member: the Volume of its images, of its captions
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
    seed: int | None = None                       # of the training, None where no one is known
    folder: str = ""                              # folder of the data set
    unknown_words: dict | None = None             # on a data set other than that of the training
    # what was assumed or left out
    notes: list[str] = field(default_factory=list)
    # a sentence on each model, none of other embeddings and scores
    models: list[str] = field(default_factory=list)
    # digests of the models, none of other embeddings and scores
    weights: list[str] = field(default_factory=list)

    @property
    def columns(self):
        """The scores between images and captions, in blocks."""
        return image_text(self.members) if self.scores is None else image_text_of(self.scores)

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
    mine, theirs = kind(subject), kind(other)
    check(mine == theirs, f"{option} {other.name} ({theirs}) is of another model than "
                          f"{subject.name} ({mine}); give embeddings of the same model")
    for name in ("image_ids", "image_names"):
        shared = set(getattr(subject.items, name) or ()) & set(getattr(other.items, name) or ())
        check(not shared, f"{option} {other.name} and {subject.name} share {len(shared):,} images; "
                          f"{instead}")
    check(os.path.realpath(other.name) != os.path.realpath(subject.name),
          f"{option} {other.name} is the file to be judged; {instead}")


def kind(subject: Subject) -> str:
    """What a file holds: its similarity, and the width and the variances of its embeddings."""
    return ", ".join([subject.similarity, *(
        f"{'points' if e.log_var is None else 'Gaussians'} of {e.mean.shape[1]} numbers"
        for m in subject.members for e in (m.images, m.captions))])


class Record(dict):
    """(protocol, direction, "rank" | "rp" | ...) -> one number per query; NaN where a query does
    not count.

    Ranks are 0-based, all other numbers are shares in [0, 1].
    """

    def add(self, protocol: str, side: str, count: int, queries: np.ndarray, **values) -> None:
        """Keep one number for each name of the queries (q,) among `count`; negative numbers mean
        that a query does not count."""
        for name, value in values.items():
            whole = self.setdefault((protocol, side, name), np.full(count, np.nan))
            whole[queries] = np.where(value < 0, np.nan, value)

    def totals(self, caption_image: np.ndarray, n_images: int) -> dict:
        """{metric: (total (N,), count (N,))} per image, as `metrics.paired_bootstrap` takes it;
        percent and 1-based ranks."""
        totals = {}
        for (protocol, side, name), value in self.items():
            known = ~np.isnan(value)
            value = value[known]
            owner = (np.arange(n_images) if side[0] == "i" else caption_image)[known]
            numbers, count = {name: 100 * value}, np.bincount(owner, minlength=n_images)
            if name == "rank":
                numbers = {f"r{k}": 100 * (value < k) for k in metrics.RECALLS}
                numbers["meanr"] = value + 1
            for key, number in numbers.items():
                totals[f"{protocol} {side} {key}"] = np.bincount(owner, number, n_images), count
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
    return mean_of([metrics.score_columns(m.similarity, m.images, m.captions) for m in members])


def means_only(subject: Subject) -> list[Member]:
    """The members as points, compared by the cosine: the row that shows what the variances do."""
    return [Member(cosine, Embedding(m.images.mean), Embedding(m.captions.mean))
            for m in subject.members]


def image_text_of(scores: np.ndarray):
    """The scores of a ready matrix (N, M), in blocks."""
    def of(index):
        # NumPy takes a tensor of one for a number
        return index if isinstance(index, slice) else np.asarray(index)
    return lambda c: (
        lambda i: torch.from_numpy(scores[of(i)][:, of(c)].astype(np.float32, copy=False))
    )


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


def columns_within(similarity, e: Embedding):
    """Scores among the items of one modality, in blocks.

    Some similarities need an image and a caption: the Mahalanobis distance takes one Gaussian and
    one point, cross-attention takes regions and words. There the cosine of the means serves.
    """
    if not trait(similarity, "within_modality"):
        similarity, e = cosine, Embedding(e.mean)
    return metrics.score_columns(similarity, e, e)


@torch.no_grad()
def score_matrix(subject: Subject, block: int = BLOCK) -> np.ndarray:
    """All scores between images and captions, (N, M) in float32: the one copy that rules with
    several matches need."""
    if subject.scores is not None:
        return subject.scores
    columns, n, m = subject.columns, subject.n_images, len(subject.caption_image)
    scores = np.empty((n, m), np.float32)
    for c in slices(m, 5 * block):
        score = columns(c)
        for i in slices(n, block):
            scores[i, c] = score(i).cpu().numpy()
    return scores


def slices(n: int, block: int) -> list[slice]:
    """0, ..., n - 1 in blocks."""
    return [slice(k, min(k + block, n)) for k in range(0, n, block)]


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
