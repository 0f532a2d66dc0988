"""What a search answers: photos of an index for a text or a photo, with how sure each answer is."""
import copy
import functools
import os
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from cli import InputError, check
from evaluation.confidence import percent
from evaluation.pictures import IN_SET, Cell, Row, draw_rows, drawable, picture_file, small
from files.photos import day_of
from inputs import Photos
from retrieval.encoder import Encoder
from retrieval.index import fitting, lost_photos
from retrieval.learning import learned
from retrieval.milvus import Milvus, open_index
from retrieval.ranking import Asked, Ranker, Ranking, vectors_of
from retrieval.trust import (
    EMPTY,
    NONE,
    Trust,
    badge_of,
    calibration_of,
    how_many,
    how_sure,
    of_the_query,
    of_the_set,
    trust_in,
)
from similarities import Embedding, uncertainty

COPIES = 50                           # answers at least among which copies of the first are sought
ONCE = 4                              # times as many are sought where near-equal ones are left out
SEVERAL = "a question of several parts has scores alone"
ACROSS, NAME = 5, 28                  # photos in a line of a sheet, letters of a name


class Wanted(NamedTuple):
    """What is asked beside a text or a photo, and which photos may answer."""
    also: tuple[str, ...] = ()        # texts that photos have to fit, too
    without: tuple[str, ...] = ()     # texts that they should not fit
    only: tuple[str, ...] = ()        # names, patterns or folders of the photos that are searched
    since: str = ""                   # their first day, YYYY, YYYY-MM or YYYY-MM-DD
    until: str = ""                   # their last day, in the same form
    once: bool = False                # whether near-equal photos are shown once

    def of(self, query: str) -> str:
        """A query in words, with its other parts."""
        return ", not ".join([" and ".join([query, *self.also]), *self.without])


ANY = Wanted()


class Answer(NamedTuple):
    """A photo of the index as an answer."""
    row: int                      # its number in the index, from 0
    name: str                     # its path below the photo folder
    score: float                  # higher is better
    p: float | None               # posterior over the gallery, 0..1; None without calibration
    gone: bool                    # whether the file is there no more
    in_set: bool | None           # whether the conformal set holds it; None without one
    uncertainty: float | None     # log det Sigma of the photo in nats; None for points
    copy: bool = False            # whether it is a copy of the first answer of all, or that itself


class Found(NamedTuple):
    """The answers to one query, the best first."""
    query: str
    answers: list[Answer]
    gallery: int                  # how many photos were searched
    sure: float | None            # probability that the first of all, or a copy, is right, 0..1
    uncertainty: float | None     # log det Sigma of the query in nats
    in_set: int | None            # photos in the conformal set; None without one, and if empty
    notes: list[str]              # sentences for the reader of these answers
    level: float | None = None    # how often the conformal set holds the right photo, such as 0.9
    wider: float | None = None    # share of dev's captions with a smaller log det Sigma, 0..1
    no_set: str | None = None     # why no set is given, where one was calibrated
    copies: int = 1               # how often the first photo is there: copies share its probability
    expected: float | None = None # how many photos fit, by people's votes; None without these
    none: float = NONE            # below this expected number, none is said to fit

    def said(self, unsure: float) -> str | None:
        """How many photos fit, where that is known, and how sure the first answer is, unless none
        fits. unsure: less than this is not sure."""
        fit = None if self.expected is None else how_many(self.expected, self.gallery, self.query,
                                                            self.none)
        return fit if self.none_fits or self.sure is None else how_sure(self.sure, unsure, self.copies, fit)

    @property
    def none_fits(self) -> bool:
        return self.expected is not None and self.expected < self.none

    @property
    def set_said(self) -> str | None:
        """What is said of the set."""
        if self.in_set is None:
            return EMPTY if self.no_set == EMPTY else None
        return of_the_set(self.in_set, self.level)

    @property
    def query_said(self) -> str | None:
        """What is said of the uncertainty of the query, where no number of photos says it."""
        return None if self.uncertainty is None or self.expected is not None else of_the_query(
            self.uncertainty, self.wider)


class Searcher:
    """An index with the model that embeds the queries. `top` answers are given, from the one at
    place `first`, from 0. The find_* raise InputError on a query that cannot be embedded.

    checkpoint: the run, where it is no longer where the index was made. calibration: a file in
    place of the run's own. Raises InputError where index and run do not belong together.
    """

    def __init__(self, index: str, *, checkpoint: str | None = None, calibration: str | None = None,
                 device="auto", text_weights: str | None = None, token: str = ""):
        self.index = open_index(index, token)
        manifest = self.index.manifest
        run = checkpoint or manifest["run"]
        self.encoder = Encoder(run, manifest["recipe"], device=device, text_weights=text_weights,
                               data_path=manifest["images"][0])
        self.encoder.refuse_other_weights(index, manifest["weights"])
        if calibration and manifest["bank"]:
            raise InputError(f"{index} was calibrated when it was made, as its query bank changes "
                             f"all scores; leave --calibration {calibration} out")
        similarity = copy.deepcopy(self.encoder.similarity).cpu()       # vectors are compared there
        self.vectors = vectors_of(similarity, self.index.origin, manifest["half"],
                                  manifest["vectors"])
        self.trust: Trust | None = self.index.trust
        if not self.trust and not manifest["bank"]:
            known = calibration_of(run, calibration)
            self.trust = known and trust_in(known, run, manifest["weights"], manifest["similarity"])
        self.before = self.trust
        self.trust = learned(index, manifest) or self.trust
        self.count, self.folder = len(self.index), manifest["folder"] or ""
        self.calibrated = self.trust is not None
        self.title = os.path.basename(self.folder) or manifest["data"]
        self.notes = self.trust.notes(manifest["images"][1], self.count) if self.trust else [
            f"no probabilities: {run} was not calibrated; write its calibration with evaluate.py "
            f"--checkpoint {run} --confidence --sets 0.1"]
        self.ranker = Ranker(self.vectors, self.index)

    # ---- queries

    def scores_of(self, texts: list[str]) -> tuple[torch.Tensor, np.ndarray]:
        """Scores (Q, N) of all photos, and the mean log-variances (Q,) of the texts, 0 of points."""
        self.refuse_candidates("what was learned")
        e = self.encoder.captions(texts).to("cpu")
        spread = np.zeros(len(texts)) if e.log_var is None else e.log_var.mean(1).double().numpy()
        return self.ranker.all_scores(self.vectors.queries(e)), spread

    def refuse_candidates(self, what: str) -> None:
        """Raises InputError where not all photos can be compared."""
        check(not isinstance(self.index, Milvus),
              f"{self.index.folder} lies in Milvus, which compares a few candidates alone; {what} "
              "needs an index in files: make one without --engine milvus")

    def find_texts(self, texts: list[str], top: int = 10, first: int = 0,
                   wanted: Wanted = ANY) -> list[Found]:
        if not all(text.strip() for text in texts):
            raise InputError("a query of blanks alone finds nothing; "
                             "describe a photo in a few words")
        e = self.encoder.captions(texts).to("cpu")
        notes = [self.encoder.note_on(text) for text in texts]
        return self.found(texts, e, self.vectors.queries(e), top, first, self.trust, notes, wanted)

    def find_photo(self, photo: Image.Image, top: int = 10, first: int = 0,
                   name: str = "a photo", wanted: Wanted = ANY) -> Found:
        """photo: in RGB."""
        e = self.encoder.photos([photo]).to("cpu")
        note = "photos found by a photo have no probability: a run is calibrated for captions"
        return self.found([name], e, self.vectors.queries(e, of_images=True), top, first, None,
                          [note], wanted)[0]

    def find_row(self, row: int, top: int = 10, first: int = 0, wanted: Wanted = ANY) -> Found:
        """More like a photo of the index."""
        path = self.path_of(row)
        if not os.path.isfile(path):
            raise InputError(f"the photo {path} is gone, so nothing can be compared with it")
        return self.find_photo(Photos([path]).open(0), top, first, self.name_of(row), wanted)

    @property
    def withdrawn(self) -> str | None:
        """Why there are no sets though some were calibrated."""
        return self.trust and self.trust.no_set(self.count)

    @property
    def rows(self) -> int:
        """Rows of the index are below this."""
        return self.index.rows

    def name_of(self, row: int) -> str:
        return self.index.facts([row])[0][0]

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may be there no more."""
        if not 0 <= row < self.rows:
            raise InputError(f"there is no photo {row} in the index; its photos are 0 to "
                             f"{self.rows - 1}")
        return os.path.join(self.folder, self.name_of(row))

    # ---- ranking

    @functools.cached_property
    def days(self) -> np.ndarray:
        """(N,) the days on which the photos were taken, YYYY-MM-DD; "" where a file is gone."""
        return np.array([day_of(os.path.join(self.folder, name))
                         for name in self.index.listed()[1]])

    def among(self, wanted: Wanted) -> torch.Tensor | None:
        """Which photos may answer, (N,) bool; None: all. Raises InputError where none may."""
        if not (wanted.only or wanted.since or wanted.until):
            return None
        names = self.index.listed()[1]
        of = fitting(wanted.only or ["*"], set(names), f"of {self.title}",
                     f"search.py info {self.index.folder} --names lists them")
        among = np.array([name in of for name in names])
        if wanted.since or wanted.until:
            low, high = wanted.since or "1", wanted.until or "9"
            among &= (self.days >= low) & (self.days.astype(f"U{len(high)}") <= high)
        check(among.any(), f"no photo of {self.title} is from {wanted.since or 'the first day'} to "
                           f"{wanted.until or 'today'}{' among those of --only' * bool(wanted.only)}; "
                           "give other days")
        return torch.from_numpy(among)

    def ranked(self, asked: Asked, top: int, trust: Trust | None, wanted: Wanted,
               among: torch.Tensor | None) -> Ranking:
        """The ranking of queries with all that is wanted beside them."""
        if not wanted.also and not wanted.without:
            return self.ranker.rank(asked, top, trust, among)
        also, without = ([self.vectors.queries(self.encoder.captions([text]).to("cpu"))
                          for text in texts] for texts in (wanted.also, wanted.without))
        each = [self.ranker.rank_parts([asked.rows(slice(q, q + 1)), *also], without, top, among)
                for q in range(len(asked.embedding.mean))]
        return Ranking(np.concatenate([one.rows for one in each]),
                       torch.cat([one.scores for one in each]), None, None, None)

    def found(self, queries: list[str], e: Embedding, asked: Asked, top: int, first: int,
              trust: Trust | None, notes: list[str | None], wanted: Wanted) -> list[Found]:
        if wanted._replace(once=False) != ANY:
            self.refuse_candidates("a question of several parts, of folders or of days")
        several, among = wanted.also or wanted.without, self.among(wanted)
        if several:
            trust, notes = None, [note or SEVERAL for note in notes]
        if trust and self.withdrawn:
            trust = trust._replace(alpha=None, limit=None)
        lost = lost_photos(self.index.folder, self.index.manifest)
        most = max(first + top, COPIES) * (ONCE if wanted.once else 1)
        ranking = self.ranked(asked, most, trust, wanted, among)
        spreads = None if e.log_var is None or several else uncertainty(e).tolist()
        gallery = self.count if among is None else int(among.sum())
        results = []
        for q, query in enumerate(queries):
            rows = [row for row in ranking.rows[q].tolist() if row >= 0]
            places = np.arange(len(rows))
            if wanted.once:
                places = places[self.ranker.once(np.array(rows))]
            places = places[first:first + top].tolist()
            result = Found(wanted.of(query), [], gallery, None, spreads and spreads[q], None,
                           [note for note in (notes[q], lost) if note])
            p, copies = None, []
            if trust is not None:
                copies = self.ranker.copies(np.array(rows)).nonzero()[0].tolist()
                logits = trust.temperature * ranking.scores[q].double()
                p = (logits - ranking.log_total[q]).exp().tolist()
                size = None if ranking.in_set is None else int(ranking.in_set[q]) or None
                no_set = None if size else self.withdrawn if trust.alpha is None else EMPTY
                result = result._replace(
                    sure=sum(p[k] for k in copies), copies=len(copies), in_set=size, no_set=no_set,
                    expected=None if ranking.expected is None else float(ranking.expected[q]), none=trust.none,
                    level=size and 1 - trust.alpha, wider=spreads and trust.wider_than(spreads[q]))
            facts = self.index.facts([rows[k] for k in places])
            result.answers.extend(
                Answer(rows[k], name, float(ranking.scores[q, k]), p and p[k],
                       bool(self.folder) and not os.path.isfile(os.path.join(self.folder, name)),
                       result.in_set and k < result.in_set, spread, k in copies)
                for k, (name, spread) in zip(places, facts))
            results.append(result)
        return results


# ---- a sheet of answers

def contact_sheet(path: str, results: list[Found], photo_of, title: str, unsure: float = 0.0,
                  asked: list[str | None] = ()) -> None:
    """Draw the answers to queries, each with its name, its score and its probability, and a frame
    where the conformal set holds it.

    photo_of(row): the file of a photo, which may be gone. unsure: a first answer of a lower
    probability is marked. asked: for each query the file of its photo, which is drawn before the
    answers, or None for a text. Raises InputError on a path that `picture_file` refuses, and where
    the picture would be too tall.
    """
    picture_file(path)
    rows = []
    for of, file in zip_longest(results, asked):
        facts = of.said(unsure), of.in_set and f"{of.set_said} (framed)", of.query_said
        cells = [answer_cell(answer, photo_of(answer.row), of.expected is None) for answer in of.answers]
        if cells and of.sure is not None and not of.none_fits:
            cells[0] = cells[0]._replace(badge=badge_of(of.sure, unsure), sure=of.sure >= unsure)
        own = [Cell(small(file), "the query")] if file else []
        rows.append(Row(of.query, "; ".join(filter(None, facts)), own + cells))
    draw_rows(path, title, rows, ACROSS)


def answer_cell(answer: Answer, file: str, spread: bool) -> Cell:
    """An answer in a sheet. file: its photo's; spread: whether its uncertainty is written."""
    numbers = f"{answer.score:.3f}" + ("" if answer.p is None else f", {percent(answer.p)}")
    numbers += f" (unc. {answer.uncertainty:.1f})" if spread and answer.uncertainty is not None else ""
    name = " ".join(drawable(answer.name).split())
    name = name if len(name) <= NAME else f"...{name[3 - NAME:]}"
    return Cell(small(file), f"{name}\n{numbers}", IN_SET if answer.in_set else None)
