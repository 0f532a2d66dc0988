"""What is evaluated, its scores in blocks, the galleries that are searched, and the record of every
query's outcome; and which images and captions these are.

A `Subject` is anything that scores images and captions: trained models, embeddings of any model, or
a ready matrix of scores. Embeddings meet a split, a run meets another run, the members of an
ensemble meet each other: where both sides know their `Items`, by ids, names or texts, they are
compared and put in one order. Differences are reported. Where nothing can be compared, the report
says what is assumed, so that a number is never about other items than those named.
"""
import itertools
import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

import metrics
from cli import InputError, check, reason
from evaluation.annotations import Index
from evaluation.encode import Gallery
from inputs import Photos
from similarities import Cosine, Embedding, Similarity

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


class Order(NamedTuple):
    """Rows of images (N,) and captions (M,) that put items in the order of others, and notes for
    the reader."""
    images: np.ndarray
    captions: np.ndarray
    notes: list[str]

    @property
    def same(self) -> bool:
        return all((rows == np.arange(len(rows))).all() for rows in self[:2])


def of_split(split, data_name: str) -> Items:
    """The items of a `data.Split`."""
    ids = split.image_ids
    numbered = ids is not None and all(isinstance(i, (int, np.integer)) for i in ids)
    names = split.photo_names or (None if numbered or ids is None else [str(i) for i in ids])
    caption_ids = None if split.caption_ids is None else list(map(int, split.caption_ids))
    return Items(split.source, split.caption_image, len(split.images), ids if numbered else None,
                 names, caption_ids, split.captions, data_name, "dev" if split.name == "val"
                 else split.name, caption_names=split.caption_names)


def order_like(mine: Items, theirs: Items) -> Order:
    """The rows of `mine` that put its items in the order of `theirs`. Raises InputError where they
    are other items, or where they contradict each other and nothing tells which is right."""
    refuse_other_split(mine, theirs)
    foreign = unlike(mine.data_name, theirs.data_name)
    notes, rows, columns = [], np.arange(mine.n_images), np.arange(len(mine.owner))
    if mine.captions is not None and mine.captions == theirs.captions and np.array_equal(mine.owner, theirs.owner):
        for kind in ("image_ids", "caption_ids"):     # SCAN numbers rows where VSE++ has COCO's ids
            ids, others = getattr(mine, kind), getattr(theirs, kind)
            if ids is not None and others is not None and list(ids) != list(others):
                notes.append(f"{mine.source} and {theirs.source} have other "
                             f"{kind.replace('_', ' ')}; their captions are the same word for "
                             "word, so the items are taken for the same")
        return Order(rows, columns, notes)
    unknown = []                                            # what no name tells the order of
    by_names = alike(mine.image_names, theirs.image_names)
    known = {"ids": (mine.image_ids, theirs.image_ids), "names": by_names}
    images = matched(mine, theirs, "image", known, notes)
    if images is None:
        unknown.append("images")
    else:
        rows = images
    place = np.argsort(rows)                                # (N,) of each of mine among theirs
    known = {"ids": (mine.caption_ids, theirs.caption_ids),
             "texts": (numbered(place[mine.owner], mine.captions),
                       numbered(theirs.owner, theirs.captions))}
    captions = matched(mine, theirs, "caption", known, notes)
    if captions is None:
        unknown.append("captions")
    else:
        columns = captions
    if mine.assumed:
        check(len(unknown) != 1 or Order(rows, columns, []).same,
              f"{mine.source} has its {'images' if captions is None else 'captions'} in another "
              f"order than {theirs.source}, by their ids or names, and does not say which "
              f"{''.join(unknown)} they belong to; add caption_image, whose caption each is, or "
              f"the ids of the {''.join(unknown)}")
    else:
        wrong = np.flatnonzero(place[mine.owner[columns]] != theirs.owner)
        check(not len(wrong), f"{mine.source} gives {len(wrong)} of its {len(columns)} captions to "
                              f"other images than {theirs.source}: one of the two is wrong about "
                              "whose they are, or no ids tell the order of its captions; compare "
                              "runs on the same split, or add caption_id")
        if unknown == ["images"]:
            unknown = []                   # the same captions, of images that must be the same, too
    notes += contradictions(mine, theirs, rows, columns)
    if foreign:
        check(not unknown, f"{mine.source} is of {mine.data_name} and {theirs.source} of "
                           f"{theirs.data_name}, and no ids tell that their "
                           f"{' and '.join(unknown)} are the same; compare what is of one data "
                           "set, or give both ids")
        notes.append(f"{mine.source} is of {mine.data_name} and {theirs.source} of "
                     f"{theirs.data_name}; what else is known of their items agrees, so they are "
                     "taken for the same")
    if unknown:
        notes.append(f"{mine.source} does not say which {' and '.join(unknown)} it is about: those "
                     f"of {theirs.source} in their order, assumed")
    return Order(rows, columns, notes)


def refuse_other_split(mine: Items, theirs: Items) -> None:
    here, there = ((items.n_images, len(items.owner)) for items in (mine, theirs))
    check(here == there, f"{mine.source} has {here[0]} images and {here[1]} captions where what it "
                         f"meets has {there[0]} and {there[1]} of {theirs.source}; compare runs on "
                         "the same split with --data_name and --split")
    check(unlike(mine.data_name, theirs.data_name) or not unlike(mine.split, theirs.split),
          f"{mine.source} is of the {mine.split} split and {theirs.source} of the {theirs.split} "
          f"split of {mine.data_name or theirs.data_name or 'some data'}; they must be about the "
          "same items, so give both of one split")


def unlike(one: str, other: str) -> bool:
    """Whether two names are known and differ."""
    return bool(one and other) and one != other


def matched(mine: Items, theirs: Items, what: str, known: dict[str, tuple],
            notes: list[str]) -> np.ndarray | None:
    """The rows of mine in the order of theirs, by the first kind of name that both have; None where
    both have none.

    known: {kind: (names of mine, of theirs)}. Adds to `notes` where rows move. Raises InputError
    where mine lacks an item of theirs, or has a name twice.
    """
    for kind, (names, others) in known.items():
        if names is None or others is None:
            continue
        if list(names) == list(others):
            return np.arange(len(names))
        row = {name: k for k, name in enumerate(names)}
        absent = [name for name in others if name not in row]
        if absent or len(row) < len(names):
            lacks = f"the {what}s, as it names some twice"
            if absent:
                first = absent[0][1] if kind == "texts" else absent[0]
                lacks = (f"{len(absent)} of its {len(others)} {what}s, the first is "
                         f"{reason(ValueError(first), 60)}")
            raise InputError(f"{mine.source} is about other items than {theirs.source}: by their "
                             f"{kind} it lacks {lacks}; compare runs on the same split, and give "
                             "embeddings of it")
        rows = np.array([row[name] for name in others])
        moved = np.count_nonzero(rows != np.arange(len(rows)))
        if moved:
            notes.append(f"{mine.source}: {moved:,} of {len(rows):,} {what}s stood in another "
                         f"order and were put in that of {theirs.source} by their {kind}")
        return rows
    return None


def contradictions(mine: Items, theirs: Items, rows: np.ndarray, columns: np.ndarray) -> list[str]:
    """Notes on matched items of which the two sides know different things. Raises InputError where
    that shows other items under the same ids, as two data sets have that both count from 0."""
    notes = []
    for what, names, others, order in (
        ("image names", *alike(mine.image_names, theirs.image_names), rows),
        ("captions", mine.captions, theirs.captions, columns),
    ):
        if names is None or others is None:
            continue
        pairs = [(names[k], name) for k, name in zip(order, others)
                 if letters(names[k]) != letters(name)]
        if len(pairs) > len(others) / 10:
            first, second = (reason(ValueError(name), 40) for name in pairs[0])
            raise InputError(f"{mine.source} and {theirs.source} have the same ids and other "
                             f"{what}, {len(pairs)} of {len(others)}, as '{first}' and "
                             f"'{second}': they are other items; compare runs on the same split")
        if pairs:
            notes.append(f"{mine.source} and {theirs.source} have other {what} in {len(pairs)} of "
                         f"{len(others)} places; their ids agree, so the items are taken for the "
                         "same")
    return notes


def letters(name) -> str:
    """The letters and digits of a name, in small letters: the captions of one data set come in
    several spellings."""
    return "".join(filter(str.isalnum, str(name).lower()))


def alike(mine: list[str] | None, theirs: list[str] | None) -> tuple:
    """File names as they are where they agree, else without their folders where these leave no two
    names alike."""
    if mine is None or theirs is None or set(mine) == set(theirs):
        return mine, theirs
    short = [[os.path.basename(str(name)) for name in names] for names in (mine, theirs)]
    return tuple(short) if all(len(set(names)) == len(names) for names in short) else (mine, theirs)


def numbered(owner: np.ndarray, texts: list[str] | None) -> list[tuple] | None:
    """Names of captions (M,): (image, text, count of equal ones before it); None without texts."""
    count = defaultdict(itertools.count)
    return texts and [(*key, next(count[key])) for key in zip(owner.tolist(), texts)]


# ---- what is evaluated

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
        """The items in the order `rows` (an Order)."""
        return Bank(self.images[rows.images], self.captions[rows.captions], self.report)


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
    # what was assumed, left out or put in another order
    notes: list[str] = field(default_factory=list)
    # a sentence on each model, none of other embeddings and scores
    models: list[str] = field(default_factory=list)
    # digests of the models, none of other embeddings and scores
    weights: list[str] = field(default_factory=list)

    def take(self, rows) -> None:
        """Put images and captions in the order `rows` (an Order)."""
        self.members = [Member(m.similarity, m.images and m.images.rows(rows.images),
                               m.captions and m.captions.rows(rows.captions)) for m in self.members]
        self.scores = None if self.scores is None else self.scores[rows.images][:, rows.captions]
        self.bank = self.bank and self.bank.take(rows)

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
    return mean_of([m.similarity.columns(m.images, m.captions) for m in members])


def means_only(subject: Subject) -> list[Member]:
    """The members as points, compared by the cosine: the row that shows what the variances do."""
    return [Member(Cosine(), Embedding(m.images.mean), Embedding(m.captions.mean))
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
