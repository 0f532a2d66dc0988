"""What a search answers: photos of an index for a text or a photo, with how sure each answer is."""
import copy
import os
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from cli import InputError
from inputs import Photos
from retrieval.cluster import open_index
from retrieval.encoder import Encoder
from retrieval.index import AGAIN, lost_photos
from retrieval.ranking import Ranker
from retrieval.trust import Trust, trust_of
from retrieval.vectors import Asked, vectors_of
from similarities import Embedding, uncertainty

EMPTY = "no set: even the first photo is less probable than those that sets hold, so the right one may not be here"
COPIES = 50                           # answers at least among which copies of the first are sought


class Answer(NamedTuple):
    """A photo of the index as an answer."""
    row: int                          # its number in the index, from 0
    name: str                         # its path below the photo folder
    score: float                      # higher is better
    p: float | None                   # posterior over the gallery, 0..1; None without calibration
    gone: bool                        # whether the file is there no more
    in_set: bool | None               # whether the conformal set holds it; None without one
    uncertainty: float | None         # log det Sigma of the photo in nats; None for points
    copy: bool = False                # whether it is a copy of the first answer of all, or that itself


class Found(NamedTuple):
    """The answers to one query, the best first."""
    query: str
    answers: list[Answer]
    gallery: int                      # how many photos were searched
    sure: float | None                # calibrated probability that the first answer of all, or a copy, is right, 0..1
    uncertainty: float | None         # log det Sigma of the query in nats
    in_set: int | None                # how many photos the conformal set holds; None without one, and for an empty one
    notes: list[str]                  # sentences for the reader of these answers
    level: float | None = None        # how often the conformal set holds the right photo, such as 0.9
    wider: float | None = None        # share of dev's captions with a smaller log det Sigma than the query, 0..1
    no_set: str | None = None         # why no set is given, where one was calibrated
    copies: int = 1                   # how often the first photo is there: copies share its probability


class Searcher:
    """An index with the model that embeds the queries. `top` answers are given, from the one at place `first`, from 0.
    The find_* raise InputError on a query that cannot be embedded.

    checkpoint: the run, where it is no longer where the index was made. calibration: a file in place of the run's own.
    Raises InputError where index and run do not belong together.
    """

    def __init__(self, index: str, *, checkpoint: str | None = None, calibration: str | None = None,
                 device: str = "auto", text_weights: str | None = None, token_file: str | None = None):
        self.index = open_index(index, token_file)
        made = self.index.manifest
        run = checkpoint or made["run"]
        self.encoder = Encoder(run, made["recipe"], device=device, text_weights=text_weights)
        if self.encoder.weights != made["weights"]:
            raise InputError(f"{index} was made by the model with {made['weights']}, and {run} holds one with "
                             f"{self.encoder.weights}; name the run that it was made by with --checkpoint, or {AGAIN}")
        if calibration and made["bank"]:
            raise InputError(f"{index} was calibrated when it was made, as its query bank changes all scores; leave "
                             f"--calibration {calibration} out")
        similarity = copy.deepcopy(self.encoder.similarity).cpu()                   # vectors are compared there
        self.vectors = vectors_of(similarity, self.index.origin, made["half"], made["vectors"])
        self.trust: Trust | None = self.index.trust or (
            None if made["bank"] else trust_of(run, made["weights"], made["similarity"], calibration))
        self.count, self.folder, self.calibrated = len(self.index), made["folder"] or "", self.trust is not None
        self.title = f"{made['data']}, {made['similarity']}"
        self.notes = self.trust.notes(made["images"][1], self.count) if self.trust else [
            f"no probabilities: {run} was not calibrated; write its calibration with evaluate.py --checkpoint {run} "
            "--confidence --sets 0.1"]
        bank = self.index.bank
        self.ranker = Ranker(self.vectors, self.index.engine, self.count,
                             None if bank is None or self.vectors.takes_bank else torch.from_numpy(bank))

    # ---- queries

    def find_texts(self, texts: list[str], top: int = 10, first: int = 0) -> list[Found]:
        for text in texts:
            if not text.strip():
                raise InputError("a query of blanks alone finds nothing; describe a photo in a few words")
        e = on_cpu(self.encoder.captions(texts))
        notes = [self.encoder.note_on(text) for text in texts]
        return self.found(texts, e, self.vectors.queries(e), top, first, self.trust, notes)

    def find_photo(self, photo: Image.Image, top: int = 10, first: int = 0, name: str = "a photo") -> Found:
        """photo: in RGB."""
        e = on_cpu(self.encoder.photos([photo]))
        note = "photos found by a photo have no probability: a run is calibrated for captions"
        return self.found([name], e, self.vectors.queries(e, of_images=True), top, first, None, [note])[0]

    def find_row(self, row: int, top: int = 10, first: int = 0) -> Found:
        """More like a photo of the index."""
        path = self.path_of(row)
        if not os.path.isfile(path):
            raise InputError(f"the photo {path} is gone, so nothing can be compared with it")
        return self.find_photo(Photos([path]).open(0), top, first, *self.index.names([row]))

    @property
    def withdrawn(self) -> str | None:
        """Why there are no sets though some were calibrated."""
        return self.trust and self.trust.no_set(self.count)

    @property
    def rows(self) -> int:
        """Rows of the index are below this."""
        return self.index.rows

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may be there no more."""
        if not 0 <= row < self.rows:
            raise InputError(f"there is no photo {row} in the index; its photos are 0 to {self.rows - 1}")
        return os.path.join(self.folder, *self.index.names([row]))

    # ---- ranking

    def found(self, queries: list[str], e: Embedding, asked: Asked, top: int, first: int, trust: Trust | None,
              notes: list[str | None]) -> list[Found]:
        if trust and self.withdrawn:
            trust = trust._replace(alpha=None, limit=None)
        lost = lost_photos(self.index.folder, self.index.manifest)
        ranking = self.ranker.rank(asked, max(first + top, COPIES), trust)
        of_queries = None if e.log_var is None else uncertainty(e).tolist()
        level = None if trust is None or trust.alpha is None else 1 - trust.alpha
        results = []
        for q, query in enumerate(queries):
            p, rows = None, [row for row in ranking.rows[q].tolist() if row >= 0]
            copies = [0]
            if trust is not None:
                copies = self.ranker.copies(np.array(rows)).nonzero()[0].tolist()
                p = (trust.temperature * ranking.scores[q].double() - ranking.log_total[q]).exp().tolist()
            held = None if ranking.in_set is None else int(ranking.in_set[q]) or None
            shown = slice(first, first + top)
            facts = zip(range(first, len(rows)), *(of(rows[shown]) for of in (self.index.names,
                                                                              self.index.uncertainties)))
            answers = [Answer(rows[k], name, float(ranking.scores[q, k]), p and p[k],
                              bool(self.folder) and not os.path.isfile(os.path.join(self.folder, name)),
                              held and k < held, spread, trust is not None and k in copies)
                       for k, name, spread in facts]
            no_set = None if trust is None or held else self.withdrawn if level is None else EMPTY
            results.append(Found(query, answers, self.count, p and sum(p[k] for k in copies),
                                 of_queries and of_queries[q], held, [note for note in (notes[q], lost) if note],
                                 held and level, trust and of_queries and trust.wider_than(of_queries[q]), no_set,
                                 len(copies)))
        return results


def on_cpu(e: Embedding) -> Embedding:
    return Embedding(*(None if x is None else x.cpu() for x in e))
