"""Search an index for a text or a photo, with how sure each answer is.

How many photos fit a text, and whether the first one is the one that is meant, come from the calibration.json of the
run. `python -m confidence` writes it, and `python -m photos.words RUN --fit` adds the numbers of photos; photos/model
brings both along.
"""
import copy
import math
import os
import re
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from checkpoint import Trained
from cli import check
from confidence.calibration import FORMAT, calibration_file, percent
from files import read_json, refusing
from losses import Embedding, cosine, uncertainty, within_modality
from metrics import Sigmoid
from photos.encoder import PhotoEncoder
from photos.index import Index
from photos.milvus import product_vectors, scores_of_products
from photos.question import read_question, read_words, rows_named

PHOTOS = 4096                         # photos whose embeddings are compared at a time
NONE = 0.5                            # an expected number of photos below which none fits
GALLERY = 500                         # photos that numbers are fitted for; a smaller dev split stands for as many
FEW = 3                               # photos that fit a text which can mean one of them, at most


# ---- probabilities

class Probabilities(NamedTuple):
    """The map from the scores (Q, N) of queries to probabilities, fitted on images of `data`."""
    temperature: float
    data: str
    words: Sigmoid | None = None      # a photo fits a text; None: not fitted
    least: float = 0.01               # smaller probabilities of `words` are noise of many photos, and count 0

    def expected_number(self, scores: Tensor, queries: Embedding) -> Tensor:
        """The expected number (Q,) of photos that fit, by scores (Q, N)."""
        spread = 0 if queries.log_var is None else queries.log_var.mean(1, keepdim=True).double()
        p = self.words(scores.double(), spread)
        return p.masked_fill(p < self.least, 0).sum(1)


def read_probabilities(run: str, model: Trained) -> Probabilities | None:
    """Read the calibration of a run, None where it was not calibrated.
    Fitted to n photos, at least GALLERY, it knows no probability below 1 / n. Raises InputError where it is damaged or
    of another model."""
    path, again = calibration_file(run), f"write it again with python -m confidence {run}"
    if not os.path.isfile(path):
        return None
    file = read_json(path, again)
    with refusing(f"{path} is not a calibration", again):
        words, t2i, similarity = file.get("words"), file["t2i"], file["similarity"]
        names = " + ".join(file["checkpoints"])
        result = Probabilities(float(t2i["temperature"]), f"{file['data_name']}",
                               words and Sigmoid(*(float(words[name]) for name in Sigmoid._fields)),
                               1 / max(int(t2i["gallery"]), GALLERY))
        if file["calibration"] != FORMAT or not 0 < result.temperature < math.inf:
            raise ValueError(f"format {file['calibration']!r}, temperature {result.temperature}")
    check((file.get("weights"), similarity) == ([model.weights], model.options.sim),
          f"{path} is of {names} by {similarity} and not of the weights of {run} by {model.options.sim}; {again}")
    return result


# ---- answers

class Hit(NamedTuple):
    """A photo of the index as an answer."""
    row: int                          # its number in the index, from 0
    name: str                         # its path below the photo folder
    score: float                      # higher is better
    p: float | None                   # posterior over the gallery, 0..1; None without calibration
    gone: bool                        # whether the file is there no more


class SearchResult(NamedTuple):
    """The answers to one query, the best first."""
    query: str
    answers: list[Hit]
    gallery: int                      # how many photos were searched
    sure: float | None = None         # probability that the first of all is right, 0..1
    uncertainty: float | None = None  # log det Sigma of the query in nats
    notes: list[str] = []             # sentences for the reader of these answers
    expected: float | None = None     # how many photos fit; None where that was not fitted

    @property
    def said(self) -> str:
        """Sentence on how many photos fit and how sure the first answer is.
        Parts that are not known are left out, and the second where many or none may be meant."""
        parts, expected = [], self.expected
        if expected is not None:
            n = max(1, round(expected))
            parts.append(f"probably none of {self.gallery:,} photos shows this" if expected < NONE else
                         f"about {n:,} of {self.gallery:,} photos show{'s' * (n == 1)} this")
        if self.sure is not None and (expected is None or NONE <= expected < FEW + 0.5):
            parts.append(f"{percent(self.sure)} sure " + ("of the first photo" if expected is None else
                                                          "that the first is the one you mean"))
        return "; ".join(parts)


class Searcher:
    """Index with the model that embeds queries.
    `top` answers are given, from place `first` on, counted from 0. The find_* raise InputError on a query that cannot
    be embedded.

    checkpoint: the run, where it is no longer where the index was made.
    Raises InputError where index and run do not belong together.
    """

    def __init__(self, index: str, *, checkpoint: str | None = None, device="auto", token: str = ""):
        self.index = Index.open(index, token)
        manifest = self.index.manifest
        data_path = manifest["features"][0] if manifest["features"] else None
        self.encoder = PhotoEncoder(checkpoint or manifest["run"], device=device, data_path=data_path)
        self.encoder.refuse_other_weights(index, manifest["weights"])
        similarity = self.encoder.similarity
        self.similarity = copy.deepcopy(similarity).cpu() if isinstance(similarity, torch.nn.Module) else similarity
        run = self.encoder.path
        self.probabilities: Probabilities | None = read_probabilities(run, self.encoder)
        self.count, self.folder, self.title = len(self.index), manifest["folder"] or "", manifest["data"]
        self.calibrated, self.notes = self.probabilities is not None, []              # sentences on all answers
        if not self.probabilities:
            self.notes = [f"no probabilities: {run} was not calibrated; write its calibration with python -m "
                          f"confidence {run}"]
        elif not f"{self.probabilities.data}_".startswith(re.sub(r"\W+", "_", f"{self.title}_")):  # a name by --train
            self.notes = [f"the numbers were learned on photos of {self.probabilities.data}; where yours show other "
                          "things, take them as a hint"]

    # ---- queries

    def find_texts(self, texts: list[str], top: int = 10, first: int = 0,
                   without: list[str] = ()) -> list[SearchResult]:
        """Find photos for texts.
        without: texts that the photos should not fit, as after a minus in a text."""
        questions, results = [read_question(text) for text in texts], []
        named = [rows_named(text, self.index.names) for text in texts]
        captions = [rest for (rest, _, _), rows in zip(questions, named) if not rows]
        e, place = self.encoder.captions(captions).to("cpu") if captions else None, iter(range(len(captions)))
        for text, (rest, unwanted, question_notes), rows in zip(texts, questions, named):
            if rows:
                results.append(self.rank(text, self.embedding(rows[0]), top, first, [
                    f"{text} is a photo's name: it stands first, and photos like it follow"], without, rows, like=True))
            else:
                notes, certain = read_words(self.encoder, rest)
                results.append(self.rank(rest, e.rows([next(place)]), top, first, [*question_notes, *notes],
                                         [*without, *unwanted], certain=certain))
        return results

    def find_photo(self, photo: Image.Image, top: int = 10, first: int = 0, name: str = "a photo",
                   without: list[str] = ()) -> SearchResult:
        """Photos like another one, in RGB."""
        return self.rank(name, self.encoder.photos([photo]).to("cpu"), top, first, [], without, like=True)

    def find_row(self, row: int, top: int = 10, first: int = 0) -> SearchResult:
        """More like a photo of the index."""
        e = self.embedding(row)
        return self.rank(self.index.names[row], e, top, first, [], [], like=True)

    def embedding(self, row: int) -> Embedding:
        """The embedding (1, D) of a photo of the index. With Milvus its file is read."""
        path = self.path_of(row)
        return self.encoder.photos([path]).to("cpu") if self.index.collection else self.index.embedding.rows([row])

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may be there no more."""
        check(0 <= row < self.count, f"there is no photo {row} in the index; its photos are 0 to {self.count - 1}")
        return os.path.join(self.folder, self.index.names[row])

    def is_gone(self, row: int) -> bool:
        """True if a photo is no longer there, or is now a link out of its folder."""
        root = os.path.join(os.path.realpath(self.folder), "")
        path = os.path.realpath(self.path_of(row))
        return bool(self.folder) and not (path.startswith(root) and os.path.isfile(path))

    def as_json(self, result: SearchResult) -> dict:
        """Answers as plain values, with paths beside names; notes on probabilities where these are given."""
        notes = [] if self.calibrated and result.sure is None else self.notes
        answers = [{**hit._asdict(), "path": self.path_of(hit.row)} for hit in result.answers]
        return {**result._asdict(), "notes": [*result.notes, *notes], "answers": answers}

    # ---- ranking

    @torch.no_grad()
    def rank(self, query: str, e: Embedding, top: int, first: int, notes: list[str], unwanted: list[str],
             named: list[int] = (), like: bool = False, certain: bool = True) -> SearchResult:
        """Rank the photos for the embedding (1, D) of a query.
        named: photos that stand first. like: the query is a photo that stands for a caption; where the similarity
        needs an image and a caption, the cosine of the means compares. certain: all of its words are known."""
        scores, p, sure, expected = self.scores(e, like), None, None, None
        if unwanted:
            check(not self.index.collection, "Milvus gives the best photos alone, and --not compares all; leave --not "
                                             "out, or make the index without --uri")
            parts = [self.encoder.captions([text]).to("cpu") for text in unwanted]
            penalties = [standardise_scores(self.scores(part)).clamp(min=0) for part in parts]
            scores = standardise_scores(scores) - sum(penalties)
        order = scores.topk(min(first + top, self.count))
        rows = [row for row, score in zip(order.indices.tolist(), order.values.tolist()) if score > -math.inf]
        if self.probabilities and certain and not (unwanted or named or like):
            p = (self.probabilities.temperature * scores.double()).softmax(0)         # each is the one that is meant
            sure = p[rows[0]].item()
            if self.probabilities.words:
                expected = self.probabilities.expected_number(scores[None], e).item()
        rows = [*named, *(row for row in rows if row not in set(named))]
        spread = None if e.log_var is None or unwanted else uncertainty(e).item()
        hits = [Hit(row, self.index.names[row], scores[row].item(), None if p is None else p[row].item(),
                    self.is_gone(row)) for row in rows[first:first + top]]
        if self.folder and not os.path.isdir(self.folder):
            notes = [*notes, f"the folder of the photos, {self.folder}, is not there, so all look gone; put it back, "
                             "or index it where it is now"]
        return SearchResult(", not ".join([query, *unwanted]), hits, self.count, sure, spread, notes, expected)

    def scores(self, e: Embedding, like: bool = False) -> Tensor:
        """Scores (N,) of all photos for one query."""
        similarity, width = self.similarity, self.index.embedding.mean.shape[1]
        check(e.mean.shape[1] == width, f"{self.index.path} holds {width} numbers a photo, and its run computes "
                                        f"{e.mean.shape[1]}; make it again with python -m photos")
        if self.index.collection:
            name, origin = self.index.manifest["similarity"], self.index.embedding
            _, vector, number = product_vectors(name, e, origin)
            return scores_of_products(name, self.index.collection.products(vector[0], self.index.names) + number)
        if like:
            similarity, e = within_modality(similarity, e)
        photos = self.index.embedding if similarity is not cosine else Embedding(self.index.embedding.mean)
        return torch.cat([similarity(photos.rows(slice(k, k + PHOTOS)), e)[:, 0] for k in range(0, self.count, PHOTOS)])


def standardise_scores(scores: Tensor) -> Tensor:
    """Scores (N,) less their mean, over their deviation.
    Zeros where all are equal."""
    deviation = scores.std(correction=0)
    return (scores - scores.mean()) / deviation.masked_fill(deviation == 0, 1)
