"""Search an index for a text or a photo, with how sure each answer is.

How many photos fit a text, and whether the first one is the best match, come from the
calibration.json of the run. `python -m confidence` writes it, and `python -m photos.words RUN --fit`
adds the numbers of photos; photos/model brings both along.
"""
import contextlib
import copy
import math
import os
import re
from collections import defaultdict
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from checkpoint import Trained
from cli import check
from confidence.calibration import FORMAT, calibration_file, percent
from features.folder import count_photos
from files import need, read_json, refusing
from losses import Embedding, cosine, uncertainty, within_modality
from metrics import Sigmoid
from photos.encoder import PhotoEncoder
from photos.index import Index, index_file
from photos.milvus import product_vectors, scores_of_products
from photos.question import (
    content_words,
    find_names,
    list_forms,
    list_words,
    quoted,
    read_question,
    read_words,
    rows_named,
    split_name,
    strip_lead,
)

PHOTOS = 4096                         # photos whose embeddings are compared at a time
NONE = 0.5                            # an expected number of photos below which at most very few fit
GALLERY = 500                         # photos that numbers are fitted for; a smaller dev split stands for as many
FEW = 3                               # photos that fit a text which can mean one of them, at most
LOOKED_AT = 1000                      # best photos whose files are looked for, as some may be gone
UNWANTED_WEIGHT = 2.0                 # of the log probability that a photo shows nothing unwanted
NAME_ODDS = 2.0                       # log odds that a photo gains whose name has all words of a question


# ---- probabilities

class Probabilities(NamedTuple):
    """The map from the scores (Q, N) of queries to probabilities, fitted on images of `data`."""
    temperature: float
    data: str
    words: Sigmoid | None = None      # a photo fits a text; None: not fitted
    least: float = 0.01               # smaller probabilities of `words` are noise of many photos, and count 0
    vocabulary: tuple[str, ...] = ()  # words of the captions of `words`, beside the model's own

    def fit_any(self, queries: Embedding, scores: Tensor) -> Tensor:
        """Probability (N,) that a photo fits at least one of Q texts, by scores (Q, N)."""
        spread = 0 if queries.log_var is None else queries.log_var.mean(1, keepdim=True).double()
        p = self.words(scores.double(), spread)
        return -torch.log1p(-p.clamp(max=1 - 1e-12)).sum(0).expm1()

    def count(self, p: Tensor) -> Tensor:
        """Probabilities as they count in a number of photos: the small ones are 0."""
        return p.masked_fill(p < self.least, 0)


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
                               1 / max(int(t2i["gallery"]), GALLERY),
                               tuple(file.get("vocabulary", ())))
        if file["calibration"] != FORMAT or not 0 < result.temperature < math.inf:
            raise ValueError(f"format {file['calibration']!r}, temperature {result.temperature}")
        if not all(map(math.isfinite, result.words or ())):
            raise ValueError(f"{result.words} is not finite")
        if not all(isinstance(word, str) for word in result.vocabulary):
            raise ValueError("its vocabulary is no list of words")
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
    named: int | None = None          # photos with words of the query in their names, of which
                                      # `expected` is then

    @property
    def number(self) -> int | None:
        """How many photos are said to fit, 0 for none or very few."""
        if self.expected is None:
            return None
        return max(1, round(self.expected)) if self.expected >= NONE else 0

    @property
    def said(self) -> str:
        """Sentence on how many photos fit and how sure the first answer is.
        Parts that are not known are left out, and the second where many or none may be meant."""
        parts, expected = [], self.expected
        if expected is not None:
            parts.append(describe_number(expected, self.named or self.gallery))
        if self.sure is not None and (expected is None or NONE <= expected < FEW + 0.5):
            parts.append(f"{percent(self.sure)} likely that the first photo is the best match")
        return "; ".join(parts)


def number_range(expected: float, photos: int) -> tuple[float, float]:
    """The range of the true number in about three cases of four (docs/search.md)."""
    return expected / 2, min(photos, 2 * expected + 2)


def describe_number(expected: float, photos: int) -> str:
    """Say how many photos fit."""
    if expected < NONE:
        return f"probably none or very few of {count_photos(photos)} show this"
    number = max(1, round_number(expected))
    low, high = map(round_number, number_range(expected, photos))
    verb = "shows" if number == 1 else "show"
    return f"about {number:,} ({low:,} to {high:,}) of {count_photos(photos)} {verb} this"


def round_number(x: float) -> int:
    """Round to a whole number of two digits and zeros."""
    return int(float(f"{round(x):.2g}"))


class Asked(NamedTuple):
    """A question, read beside the names of photos and the words of the training captions."""
    query: str
    wanted: list[str]                 # alternatives for the model
    unwanted: list[str]
    names: list[str]                  # words that the names of the first photos have
    unwanted_names: list[str]         # words that no name may have
    notes: list[str]                  # sentences for whoever asked
    certain: bool                     # all words are known, so that the numbers hold


class Ranking(NamedTuple):
    """How N photos compare with a query; each tensor is (N,), and more is better."""
    order: Tensor                     # photos are listed by it, those at -inf not at all
    scores: Tensor                    # what is shown
    named: Tensor | None = None       # words of the query that a name has: the most come first
    fits: Tensor | None = None        # how much each counts as a photo that fits
    posterior: Tensor | None = None   # its softmax is the probability that a photo is the one meant
    uncertainty: float | None = None  # log det Sigma of the query in nats


class Searcher:
    """Index with the model that embeds queries.
    `top` answers are given, from place `first` on, counted from 0. The find_* raise InputError on a query that cannot
    be embedded.

    checkpoint: the run, where it is no longer where the index was made.
    Raises InputError where index and run do not belong together.
    """

    def __init__(self, index: str, *, checkpoint: str | None = None, device="auto", token: str = ""):
        self.token, self.encoder = token, None
        self.read_index(index)
        manifest = self.index.manifest
        data_path = manifest["features"][0] if manifest["features"] else None
        self.encoder = PhotoEncoder(checkpoint or manifest["run"], device=device, data_path=data_path)
        self.encoder.refuse_other_weights(index, manifest["weights"])
        similarity = self.encoder.similarity
        self.similarity = copy.deepcopy(similarity).cpu() if isinstance(similarity, torch.nn.Module) else similarity
        run = self.encoder.path
        self.probabilities: Probabilities | None = read_probabilities(run, self.encoder)
        self.known_words = dict(self.encoder.vocab.index)
        if self.probabilities:
            for word in self.probabilities.vocabulary:
                self.known_words.setdefault(word, len(self.known_words))
        self.calibrated, self.notes = self.probabilities is not None, []              # sentences on all answers
        if not self.probabilities:
            self.notes = [f"no probabilities: {run} was not calibrated; write its calibration with python -m "
                          f"confidence {run}"]
        elif not f"{self.probabilities.data}_".startswith(re.sub(r"\W+", "_", f"{self.title}_")):  # a name by --train
            self.notes = [f"the numbers were calibrated on photos of {self.probabilities.data}; for "
                          "photos of other things they are rough"]
        if self.counts_photos:
            self.notes.append("the range in brackets holds in about three of four cases")

    def read_index(self, path: str) -> None:
        """Read the index and the words of the names of its photos."""
        changed = os.stat(need(index_file(path), "make an index with python -m photos FOLDER"))
        index = Index.open(path, self.token)
        if self.encoder:
            self.encoder.refuse_other_weights(path, index.manifest["weights"])
        rows_of_word = defaultdict(list)
        years = index.manifest["years"]
        for row, photo in enumerate(index.photos):
            for word in split_name(photo.name) | {*filter(None, [years.get(photo.digest)])}:
                rows_of_word[word].append(row)
        self.index, self.changed = index, (changed.st_ino, changed.st_mtime_ns, changed.st_size)
        self.rows_of_word = dict(rows_of_word)
        self.rows = {name: row for row, name in enumerate(index.names)}
        self.count = len(index)
        self.folder = index.manifest["folder"] or ""
        self.title = index.manifest["data"]

    def update(self) -> None:
        """Read the index again where another process has written it."""
        with contextlib.suppress(FileNotFoundError):
            now = os.stat(self.index.path)
            if (now.st_ino, now.st_mtime_ns, now.st_size) != self.changed:
                self.read_index(self.index.path)

    # ---- queries

    def find_texts(self, texts: list[str], top: int = 10, first: int = 0,
                   without: list[str] = ()) -> list[SearchResult]:
        """Find photos for texts.
        without: texts that the photos should not fit, as after a minus in a text."""
        return [self.find_text(text, top, first, without) for text in texts]

    def find_text(self, text: str, top: int = 10, first: int = 0,
                  without: list[str] = ()) -> SearchResult:
        """Find photos for a text.
        Photos with words in their names that the model does not know come first."""
        rows = rows_named(text, self.index.names)
        if rows:
            note = f"{text:.80} is a photo's name: it stands first, and photos like it follow"
            ranking = self.rank_like(self.embedding(rows[0]), without)
            named = torch.zeros(self.count)
            named[rows] = 1
            return self.answer(text, ranking._replace(named=named), top, first, [note])

        asked = self.read_text(text, without)
        ranking = self.rank_texts(asked.wanted, asked.unwanted)
        if not asked.certain:
            ranking = ranking._replace(fits=None, posterior=None)
        if asked.names:
            ranking = ranking._replace(named=self.count_names(asked.names), posterior=None)
        if asked.unwanted_names:
            ranking.order[self.count_names(asked.unwanted_names) > 0] = -math.inf
        return self.answer(asked.query, ranking, top, first, asked.notes)

    def read_text(self, text: str, without: list[str] = ()) -> Asked:
        """Read what a text asks of the model and of the names of photos. Raises InputError."""
        question = read_question(text)
        parts = [*without, *question.unwanted]
        query = ", not ".join([" OR ".join(question.wanted), *parts])
        wanted, names, notes, known = self.read_parts(question.wanted)
        unwanted, unwanted_names, more_notes, known_too = self.read_parts(parts)
        certain = known and known_too and len(wanted) == len(question.wanted)
        if not wanted and self.encoder.options.text_features:
            wanted = question.wanted                        # they may tell the model something, too
        notes = [*question.notes, *notes, *more_notes]

        where = "in the folder's or the file's name"
        if names:
            named = self.count_names(names)
            first = count_photos(int((named == named.max()).sum()))
            notes.insert(0, f"first come {first} with {quoted(names)} {where}, or as the year")
        if unwanted:
            notes.append(f"photos that seem to show {' or '.join(unwanted)} are listed later")
        if unwanted_names:
            notes.append(f"photos with {quoted(unwanted_names)} {where}, or as the year, are left "
                         "out")
        raised = sorted((content_words(wanted) & self.rows_of_word.keys()) - {*names})
        if raised and self.counts_photos:
            notes.append(f"photos with {quoted(raised)} {where} are listed earlier")
        return Asked(query, wanted, unwanted, names, unwanted_names, notes, certain)

    def read_parts(self, parts: list[str]) -> tuple[list[str], list[str], list[str], bool]:
        """Read parts of a question.
        Returns texts for the model, words of names, notes, and whether all other words are known. A
        part that is a name alone is no text."""
        texts, names, notes, certain = [], [], [], True
        for part in parts:
            own_names, rest = find_names(part, self.known_words, self.rows_of_word)
            names += own_names
            if own_names and not list_words(rest):
                continue
            if self.encoder.options.text_features:
                rest = strip_lead(rest)
            sentences, known = read_words(self.encoder, rest, self.known_words)
            notes += sentences
            certain = certain and known
            texts.append(rest)
        return texts, names, notes, certain

    def count_names(self, words: list[str]) -> Tensor:
        """How many of the words the name of each photo has: (N,)."""
        count = torch.zeros(self.count)
        for word in {*words}:
            count[self.rows_of_word[word]] += 1
        return count

    @property
    def counts_photos(self) -> bool:
        """True if the calibration tells how many photos fit."""
        return bool(self.probabilities and self.probabilities.words)

    def find_photo(self, photo: Image.Image, top: int = 10, first: int = 0, name: str = "a photo",
                   without: list[str] = ()) -> SearchResult:
        """Photos like another one, in RGB."""
        ranking = self.rank_like(self.encoder.photos([photo]).to("cpu"), without)
        return self.answer(name, ranking, top, first, [])

    def find_row(self, row: int, top: int = 10, first: int = 0) -> SearchResult:
        """More like a photo of the index, which is left out."""
        ranking = self.rank_like(self.embedding(row))
        ranking.order[row] = -math.inf
        return self.answer(self.index.photos[row].name, ranking, top, first, [])

    def embedding(self, row: int) -> Embedding:
        """The embedding (1, D) of a photo of the index. With Milvus its file is read."""
        path = self.path_of(row)
        return self.encoder.photos([path]).to("cpu") if self.index.collection else self.index.embedding.rows([row])

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may be there no more."""
        check(0 <= row < self.count, f"there is no photo {row} in the index; its photos are 0 to {self.count - 1}")
        return os.path.join(self.folder, self.index.photos[row].name)

    def is_gone(self, row: int) -> bool:
        """True if a photo is no longer there."""
        return bool(self.folder) and not os.path.isfile(self.path_of(row))

    def as_json(self, result: SearchResult) -> dict:
        """Answers as plain values, with paths beside names; notes on probabilities where these are given."""
        notes = self.notes
        if self.calibrated and result.sure is None and result.expected is None:
            notes = []
        answers = [{**hit._asdict(), "path": self.path_of(hit.row)} for hit in result.answers]
        return {**result._asdict(), "notes": [*result.notes, *notes], "answers": answers}

    # ---- ranking

    def rank_texts(self, wanted: list[str], unwanted: list[str]) -> Ranking:
        """Rank photos of one of the alternatives first, and photos of what is unwanted later."""
        if not wanted:                                      # names alone
            nothing = torch.zeros(self.count)
            return Ranking(nothing, nothing)
        if self.counts_photos:
            return self.rank_by_probability(wanted, unwanted)
        queries, scores = self.score_texts(wanted)                                  # (Q, N)
        order, posterior, spread = scores.max(0).values, None, None
        if unwanted:
            order = self.lower_unwanted(order, unwanted)
        elif len(wanted) == 1:
            spread = spread_of(queries)
            if self.probabilities:
                posterior = self.probabilities.temperature * order.double()
        return Ranking(order, order, posterior=posterior, uncertainty=spread)

    def rank_by_probability(self, wanted: list[str], unwanted: list[str]) -> Ranking:
        """Rank the photos by the probability that they show an alternative and nothing unwanted."""
        of = self.probabilities
        ranking, counting = self.list_forms(wanted)
        queries, scores = self.score_texts(ranking)                                 # (Q, N)
        p = of.fit_any(queries, scores)                                             # (N,)
        fits = of.count(p if counting == ranking else of.fit_any(*self.score_texts(counting)))
        words = content_words(wanted)
        raised = NAME_ODDS * self.count_names(words & self.rows_of_word.keys()) / max(1, len(words))
        if unwanted:
            avoided = of.fit_any(*self.score_texts(self.list_forms(unwanted)[1]))
            order = p.log() + UNWANTED_WEIGHT * torch.log1p(-avoided) + raised
            return Ranking(order, order, fits=fits * (1 - avoided))
        order = p.logit() + raised
        if len(ranking) > 1:
            return Ranking(order, order, fits=fits)
        posterior = of.temperature * scores[0].double()
        return Ranking(order, scores[0], fits=fits, posterior=posterior,
                       uncertainty=spread_of(queries))

    def rank_like(self, photo: Embedding, without: list[str] = ()) -> Ranking:
        """Rank the photos by their similarity with one (1, D).
        Where the similarity needs an image and a caption, the cosine of the means compares."""
        order = self.scores(photo, like=True)
        if without:
            order = self.lower_unwanted(order, without)
        return Ranking(order, order, uncertainty=spread_of(photo))

    def lower_unwanted(self, order: Tensor, unwanted: list[str]) -> Tensor:
        """Lower the scores (N,) of photos by those of unwanted texts, without probabilities."""
        check(not self.index.collection,
              "Milvus gives the best photos alone, and --not compares all; leave --not out, or make the "
              "index without --uri")
        _, scores = self.score_texts(unwanted)
        penalties = [standardise_scores(row).clamp(min=0) for row in scores]
        return standardise_scores(order) - sum(penalties)

    def list_forms(self, texts: list[str]) -> tuple[list[str], list[str]]:
        """Texts that rank the photos, and texts that tell how many fit (`question.list_forms`)."""
        if not self.encoder.options.text_features:
            return texts, texts
        ranking, counting = [], []
        for text in texts:
            ranks, counts = list_forms(text, self.known_words)
            ranking += ranks
            counting += counts
        return ranking, counting

    @torch.no_grad()
    def score_texts(self, texts: list[str]) -> tuple[Embedding, Tensor]:
        """Embed Q texts, and score all photos for each: (Q, N)."""
        queries = self.encoder.captions(texts).to("cpu")
        rows = [self.scores(queries.rows([k])) for k in range(len(texts))]
        return queries, torch.stack(rows)

    @torch.no_grad()
    def scores(self, e: Embedding, like: bool = False) -> Tensor:
        """Scores (N,) of all photos for one query.
        like: the query is a photo that stands for a caption."""
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

    # ---- the answers

    def answer(self, query: str, ranking: Ranking, top: int, first: int,
               notes: list[str]) -> SearchResult:
        """Give the photos of a ranking that are still there, how many fit, and how sure the first is."""
        rows = self.list_rows(ranking, max(first + top, LOOKED_AT))
        gone = {row for row in rows if self.is_gone(row)}
        gallery = self.count
        if gone and len(gone) == len(rows):                 # a disk that is not connected
            notes = [*notes, f"the photos of {self.folder} are not there, so all look gone; put them "
                             "back, or index them where they are now"]
            ranking = ranking._replace(fits=None, posterior=None)
        elif gone:
            gallery -= len(gone)
            rows = [row for row in rows if row not in gone]
            notes = [*notes, f"left out, as the files are gone: {count_photos(len(gone))}; python -m "
                             f"photos add {self.index.path} updates the index"]

        there = ranking.order > -math.inf
        there[[*gone]] = False
        best, expected, named = there, None, None
        if ranking.named is not None:
            best = there & (ranking.named == ranking.named.max())
            named = int(best.sum())
        if ranking.fits is not None:
            expected = ranking.fits[best].sum().item()
        p, sure = None, None
        if ranking.posterior is not None and rows:
            p = ranking.posterior.masked_fill(~there, -math.inf).softmax(0)
            sure = p[rows[0]].item()

        hits = []
        for row in rows[first:first + top]:
            posterior = None if p is None else p[row].item()
            hits.append(Hit(row, self.index.photos[row].name, ranking.scores[row].item(), posterior,
                            row in gone))
        return SearchResult(query, hits, gallery, sure, ranking.uncertainty, notes, expected, named)

    def list_rows(self, ranking: Ranking, most: int) -> list[int]:
        """The first rows of a ranking."""
        rows = ranking.order.argsort(descending=True, stable=True)
        rows = rows[ranking.order[rows] > -math.inf]
        if ranking.named is not None:
            rows = rows[ranking.named[rows].argsort(descending=True, stable=True)]
        return rows[:most].tolist()


def spread_of(queries: Embedding) -> float | None:
    """Log det Sigma of a query in nats; None of a point."""
    return None if queries.log_var is None else uncertainty(queries).item()


def standardise_scores(scores: Tensor) -> Tensor:
    """Scores (N,) less their mean, over their deviation.
    Zeros where all are equal."""
    deviation = scores.std(correction=0)
    return (scores - scores.mean()) / deviation.masked_fill(deviation == 0, 1)
