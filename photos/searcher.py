"""What a search answers: photos of an index for a text or a photo, with how sure each answer is."""
import math
import os
from itertools import zip_longest
from typing import NamedTuple

import torch
from PIL import Image

from cli import InputError, check
from confidence.calibration import percent
from data import Photos
from evaluation.pictures import IN_SET, Cell, Row, draw_rows, drawable, picture_file, small
from losses import Embedding, uncertainty
from photos.encoder import Encoder
from photos.index import Index
from photos.ranking import Asked, Ranker, on_cpu, vectors_of
from photos.trust import (
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

COPIES = 50                           # answers at least among which copies of the first are sought
SCORES = "answers without what is not wanted have scores alone"
ACROSS, NAME = 5, 28                  # photos in a line of a sheet, letters of a name


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

    def said(self, unsure: float) -> str | None:
        """How many photos fit, where that is known, and how sure the first answer is, unless none
        fits. unsure: less than this is not sure."""
        fit = None if self.expected is None else how_many(self.expected, self.gallery, self.query)
        return fit if self.none_fits or self.sure is None else how_sure(self.sure, unsure, self.copies, fit)

    @property
    def none_fits(self) -> bool:
        return self.expected is not None and self.expected < NONE

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
        self.index = Index.open(index, token)
        manifest = self.index.manifest
        run = checkpoint or manifest["run"]
        self.encoder = Encoder(run, manifest["recipe"], device=device, text_weights=text_weights,
                               data_path=manifest["images"][0])
        self.encoder.refuse_other_weights(index, manifest["weights"])
        if calibration and manifest["bank"]:
            raise InputError(f"{index} was calibrated when it was made, as its query bank changes "
                             f"all scores; leave --calibration {calibration} out")
        similarity = on_cpu(self.encoder.similarity)
        self.vectors = vectors_of(similarity, self.index.origin, manifest["half"],
                                  manifest["form"])
        self.trust: Trust | None = self.index.trust
        if not self.trust and not manifest["bank"]:
            known = calibration_of(run, calibration)
            self.trust = known and trust_in(known, run, manifest["weights"], manifest["similarity"])
        self.count, self.folder = len(self.index), manifest["folder"] or ""
        self.calibrated = self.trust is not None
        self.title = os.path.basename(self.folder) or manifest["data"]
        self.notes = self.trust.notes(manifest["images"][1], self.count) if self.trust else [
            f"no probabilities: {run} was not calibrated; write its calibration with python -m confidence "
            f"{run} --sets 0.1"]
        self.ranker = Ranker(self.vectors, self.index)

    # ---- queries

    def find_texts(self, texts: list[str], top: int = 10, first: int = 0,
                   without: list[str] = ()) -> list[Found]:
        """without: texts that the photos should not fit."""
        if not all(text.strip() for text in texts):
            raise InputError("a query of blanks alone finds nothing; "
                             "describe a photo in a few words")
        e = self.encoder.captions(texts).to("cpu")
        notes = [self.encoder.note_on(text) for text in texts]
        return self.found(texts, e, self.vectors.queries(e), top, first, self.trust, notes, without)

    def find_photo(self, photo: Image.Image, top: int = 10, first: int = 0,
                   name: str = "a photo", without: list[str] = ()) -> Found:
        """photo: in RGB."""
        e = self.encoder.photos([photo]).to("cpu")
        note = "photos found by a photo have no probability: a run is calibrated for captions"
        return self.found([name], e, self.vectors.queries(e, of_images=True), top, first, None,
                          [note], without)[0]

    def find_row(self, row: int, top: int = 10, first: int = 0, without: list[str] = ()) -> Found:
        """More like a photo of the index."""
        path = self.path_of(row)
        if not os.path.isfile(path):
            raise InputError(f"the photo {path} is gone, so nothing can be compared with it")
        return self.find_photo(Photos([path]).open(0), top, first, self.name_of(row), without)

    @property
    def withdrawn(self) -> str | None:
        """Why there are no sets though some were calibrated."""
        return self.trust and self.trust.no_set(self.count)

    def name_of(self, row: int) -> str:
        return self.index.names[row]

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may be there no more."""
        check(0 <= row < self.count,
              f"there is no photo {row} in the index; its photos are 0 to {self.count - 1}")
        return os.path.join(self.folder, self.name_of(row))

    # ---- ranking

    def found(self, queries: list[str], e: Embedding, asked: Asked, top: int, first: int,
              trust: Trust | None, notes: list[str | None], without: list[str]) -> list[Found]:
        if without:
            check(not self.index.collection, "Milvus gives the best photos alone, and --not compares all; leave --not "
                                             "out, or make the index without --uri")
            trust, notes = None, [note or SCORES for note in notes]
        if trust and self.withdrawn:
            trust = trust._replace(alpha=None, limit=None)
        lost = self.index.lost_photos()
        ranking = self.ranker.rank(asked, max(first + top, COPIES), trust, [
            self.vectors.queries(self.encoder.captions([text]).to("cpu")) for text in without])
        spreads = None if e.log_var is None or without else uncertainty(e).tolist()
        results = []
        for q, query in enumerate(queries):
            scores = ranking.scores[q][ranking.scores[q] > -torch.inf]
            rows = ranking.rows[q][:len(scores)]
            result = Found(", not ".join([query, *without]), [], self.count, None, spreads and spreads[q], None,
                           [note for note in (notes[q], lost) if note])
            p, copies = None, []
            if trust is not None:
                copies = self.ranker.copies(rows)
                p = (trust.temperature * scores.double() - ranking.log_total[q]).exp().tolist()
                size = None if ranking.in_set is None else int(ranking.in_set[q]) or None
                no_set = None if size else self.withdrawn if trust.alpha is None else EMPTY
                result = result._replace(
                    sure=sum(p[k] for k in copies), copies=len(copies), in_set=size, no_set=no_set,
                    expected=None if ranking.expected is None else float(ranking.expected[q]),
                    level=size and 1 - trust.alpha, wider=spreads and trust.wider_than(spreads[q]))
            for k, row in list(enumerate(rows.tolist()))[first:first + top]:
                name, spread = self.name_of(row), float(self.index.entries.uncertainty[row])
                result.answers.append(Answer(
                    row, name, float(scores[k]), p and p[k],
                    bool(self.folder) and not os.path.isfile(os.path.join(self.folder, name)),
                    result.in_set and k < result.in_set, None if math.isnan(spread) else spread, k in copies))
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
