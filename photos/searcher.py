"""Search an index for a text or a photo, with how certain each answer is.

How many photos fit a text, and whether the first one is the best match, come from the
calibration.json of the run. `python -m confidence` writes it, and `python -m photos.words RUN
--fit` adds the numbers of photos; photos/model has both.
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
from confidence.calibration import CALIBRATION_FORMAT, calibration_file, percent
from features.folder import count_photos
from losses import Embedding, cosine, uncertainty, within_modality
from metrics import Sigmoid
from photos.encoder import PhotoEncoder
from photos.index import Index, index_file
from photos.milvus import product_vectors, scores_of_products
from photos.question import (
    NO_CONTENT,
    find_content_words,
    find_names,
    find_rows_by_name,
    list_forms,
    list_name_words,
    list_words,
    quote_words,
    read_question,
    read_words,
    strip_lead,
)
from utils import InputError, need, read_json, refusing

# Words beside a name that ask for nothing else.
BESIDE_NAMES = (NO_CONTENT - {"inside", "outside"}) | {
    *("photos", "pictures", "images", "pic", "pics", "show", "find", "search", "me"),
}
PHOTOS_PER_BLOCK = 4096  # photos whose embeddings are compared at a time
MIN_EXPECTED = 0.5  # an expected number of photos below which none or very few fit
MIN_FITTED_PHOTOS = 500  # a smaller dev split counts as this many photos
MAX_FEW = 3  # photos that fit a text which may mean one of them
CHECKED_PHOTOS = 1000  # best photos whose files are looked for, as some may be gone
UNWANTED_WEIGHT = 2.0  # of the log probability that a photo shows nothing unwanted
NAME_LOG_ODDS = 2.0  # that a photo gains whose name has all words of a question


# ---- probabilities


class Probabilities(NamedTuple):
    """The map from the scores (Q, N) of queries to probabilities, fitted on images of `data`."""

    temperature: float
    data: str
    words: Sigmoid | None = None  # that a photo fits a text; None: not fitted
    least: float = 0.01  # smaller probabilities of `words` are noise of many photos, and count 0
    vocabulary: tuple[str, ...] = ()  # words of the captions of `words` that the model's lacks

    def fit_any(self, queries: Embedding, scores: Tensor) -> Tensor:
        """Probability (N,) that a photo fits at least one of Q texts, by scores (Q, N)."""
        log_var = 0.0
        if queries.log_var is not None:
            log_var = queries.log_var.mean(1, keepdim=True).double()  # (Q, 1)
        p = self.words(scores.double(), log_var)  # (Q, N)
        return -torch.log1p(-p.clamp(max=1 - 1e-12)).sum(0).expm1()  # 1 - prod_q (1 - p_q)

    def count(self, p: Tensor) -> Tensor:
        """Probabilities as they count in a number of photos: the small ones are 0."""
        return p.masked_fill(p < self.least, 0)


def read_probabilities(run: str, model: Trained) -> Probabilities | None:
    """Read the calibration of a run; None if it was not calibrated.

    Fitted to n photos, it cannot know probabilities below 1 / n (n at least MIN_FITTED_PHOTOS).
    Raises InputError if the file is damaged or of another model.
    """
    path = calibration_file(run)
    again = f"write it again with python -m confidence {run}"
    if not os.path.isfile(path):
        return None

    file = read_json(path, again)
    with refusing(f"{path} is not a calibration", again):
        t2i = file["t2i"]
        similarity = file["similarity"]
        names = " + ".join(file["checkpoints"])
        words = file.get("words")
        if words:
            words = Sigmoid(*(float(words[name]) for name in Sigmoid._fields))
        result = Probabilities(
            temperature=float(t2i["temperature"]),
            data=f"{file['data_name']}",
            words=words,
            least=1 / max(int(t2i["gallery"]), MIN_FITTED_PHOTOS),
            vocabulary=tuple(file.get("vocabulary", ())),
        )
        if file["calibration"] != CALIBRATION_FORMAT or not 0 < result.temperature < math.inf:
            raise ValueError(f"format {file['calibration']!r}, temperature {result.temperature}")
        if words and not all(math.isfinite(number) for number in words):
            raise ValueError(f"{words} is not finite")
        if not all(isinstance(word, str) for word in result.vocabulary):
            raise ValueError("its vocabulary is not a list of words")

    same_model = file.get("weights") == [model.weights] and similarity == model.options.sim
    if not same_model:
        raise InputError(
            f"{path} was fitted to {names} with {similarity}, not to the weights of {run} with "
            f"{model.options.sim}; {again}"
        )
    return result


# ---- answers


class Hit(NamedTuple):
    """A photo of the index as an answer."""

    row: int  # its number in the index, from 0
    name: str  # its path below the photo folder
    score: float  # higher is better
    p: float | None  # posterior over the gallery, 0 to 1; None without calibration
    gone: bool  # whether the file no longer exists


class SearchResult(NamedTuple):
    """The answers to one query, the best first."""

    query: str
    answers: list[Hit]
    gallery: int  # how many photos were searched
    sure: float | None = None  # probability that the first of all is right, 0 to 1
    uncertainty: float | None = None  # log det Sigma of the query in nats
    notes: list[str] = []  # sentences for the reader of these answers
    expected: float | None = None  # how many photos fit; None if that was not fitted
    named: int | None = None  # photos with words of the query in their names; only these count then

    @property
    def number(self) -> int | None:
        """How many photos are said to fit, 0 for none or very few."""
        if self.expected is None:
            return None
        if self.expected < MIN_EXPECTED:
            return 0
        return max(1, round(self.expected))

    @property
    def said(self) -> str:
        """Sentence on how many photos fit and how certain the top-1 answer is.

        Unknown parts are left out, and the second one if many photos or none may be meant.
        """
        parts = []
        means_one = True
        if self.expected is not None:
            parts.append(describe_number(self.expected, self.named or self.gallery))
            means_one = MIN_EXPECTED <= self.expected < MAX_FEW + 0.5
        if self.sure is not None and means_one:
            parts.append(f"{percent(self.sure)} likely that the first photo is the best match")
        return "; ".join(parts)


def number_range(expected: float, photos: int) -> tuple[float, float]:
    """The range in which the true number of photos is expected.

    On 1,000 photos it held for 95% of everyday words and for 68 to 76% of other words and phrases
    (docs/search.md).
    """
    return expected / 2, min(photos, 2 * expected + 2)


def describe_number(expected: float, photos: int) -> str:
    """Say how many photos fit."""
    if expected < MIN_EXPECTED:
        return f"probably none or very few of {count_photos(photos)} show this"

    number = min(photos, max(1, round_number(expected)))
    low, high = number_range(expected, photos)
    low = round_number(low)
    high = min(photos, round_number(high))
    verb = "shows" if number == 1 else "show"
    return f"about {number:,} ({low:,} to {high:,}) of {count_photos(photos)} {verb} this"


def round_number(x: float) -> int:
    """Round to a whole number of two digits and zeros."""
    return int(float(f"{round(x):.2g}"))


def copy_to_cpu(similarity):
    """Return a similarity for embeddings on the CPU; one with weights is copied."""
    if isinstance(similarity, torch.nn.Module):
        return copy.deepcopy(similarity).cpu()
    return similarity


def number_known_words(
    encoder: PhotoEncoder, probabilities: "Probabilities | None"
) -> dict[str, int]:
    """Number the words of a model's training captions, and those that `--fit` added to them."""
    known = dict(encoder.vocab.index)
    if probabilities:
        for word in probabilities.vocabulary:
            known.setdefault(word, len(known))
    return known


class Parts(NamedTuple):
    """Parts of a question, compared with the names of photos and the training captions."""

    texts: list[str]  # for the model
    names: list[str]  # words of names of photos
    notes: list[str]
    known: bool  # the training captions have all words but those of names


class Reading(NamedTuple):
    """What a question asks of the model and of the names of photos."""

    query: str
    wanted: list[str]  # alternatives for the model
    unwanted: list[str]
    names: list[str]  # words that the names of the first photos have
    unwanted_names: list[str]  # words that no name may have
    notes: list[str]  # sentences for whoever asked
    certain: bool  # all words are known, so that the numbers hold


class Ranking(NamedTuple):
    """How N photos compare with a query; each tensor is (N,), and more is better."""

    order: Tensor  # photos are listed by it, and those at -inf are not
    scores: Tensor  # what is shown
    named: Tensor | None = None  # words of the query that a name has: the most come first
    fits: Tensor | None = None  # how much each counts as a photo that fits
    posterior: Tensor | None = None  # its softmax is the probability that a photo is the target
    uncertainty: float | None = None  # log det Sigma of the query in nats


class Searcher:
    """Index with the model that embeds queries.

    The find_* methods give `top` answers from position `first` on, counted from 0. They raise
    InputError for a query that cannot be embedded.

    Args:
        index: its file, with or without .npz.
        checkpoint: the run, if it is no longer where the index was made.
        token: of Milvus, if that holds the vectors.

    Raises InputError if index and run do not belong together.
    """

    def __init__(
        self, index: str, *, checkpoint: str | None = None, device="auto", token: str = ""
    ):
        self.token = token
        self.encoder = None
        self.read_index(index)

        manifest = self.index.manifest
        data_path = manifest["features"][0] if manifest["features"] else None
        run = checkpoint or manifest["run"]
        self.encoder = PhotoEncoder(run, device=device, data_path=data_path)
        self.encoder.refuse_other_weights(index, manifest["weights"])
        self.similarity = copy_to_cpu(self.encoder.similarity)

        self.probabilities = read_probabilities(self.encoder.path, self.encoder)
        self.calibrated = self.probabilities is not None
        self.known_words = number_known_words(self.encoder, self.probabilities)
        self.notes = self.list_notes()

    def list_notes(self) -> list[str]:
        """List the sentences that hold for all answers."""
        if not self.probabilities:
            run = self.encoder.path
            return [
                f"no probabilities: {run} was not calibrated; write its calibration with python -m "
                f"confidence {run}"
            ]

        notes = []
        data = self.probabilities.data
        # --train names its data by the folder, without the links that lead to it
        titles = [self.title]
        if self.folder:
            titles.append(os.path.basename(os.path.realpath(self.folder)))
        titles = [re.sub(r"\W+", "_", title).strip("_") for title in titles]
        trained_on_these = any(f"{data}_".startswith(f"{title}_") for title in titles)
        if not trained_on_these:
            notes.append(
                f"the numbers were calibrated on photos of {data}; for photos of other things they "
                "are rough"
            )
        if self.counts_photos and trained_on_these:
            notes.append(
                "the range in brackets held for 98% of everyday words and for 40% of sentences "
                "when it was tested with a model trained on 400 photos"
            )
        elif self.counts_photos:
            notes.append(
                "the range in brackets held for 95% of everyday words and for 68 to 76% of other "
                "words and phrases when it was tested on 1,000 photos"
            )
        return notes

    def read_index(self, path: str) -> None:
        """Read the index and the words of the names of its photos."""
        file = need(index_file(path), "make an index with python -m photos FOLDER")
        state = describe_state(file)
        index = Index.open(path, self.token)
        if self.encoder:
            self.encoder.refuse_other_weights(path, index.manifest["weights"])

        rows_of_word = defaultdict(list)
        years = index.manifest["years"]
        for row, photo in enumerate(index.photos):
            words = list_name_words(photo.name)
            year = years.get(photo.digest)
            if year:
                words.add(year)
            for word in words:
                rows_of_word[word].append(row)

        self.index = index
        self.state = state
        self.rows_of_word = dict(rows_of_word)
        self.rows = {name: row for row, name in enumerate(index.names)}
        self.count = len(index)
        self.folder = index.manifest["folder"] or ""
        self.title = index.manifest["data"]

    def update(self) -> None:
        """Read the index again if another process has written it."""
        with contextlib.suppress(FileNotFoundError):
            if describe_state(self.index.path) != self.state:
                self.read_index(self.index.path)

    # ---- queries

    def find_texts(
        self, texts: list[str], top: int = 10, first: int = 0, without: list[str] = ()
    ) -> list[SearchResult]:
        """Find photos for texts.

        without: texts that the photos should not fit, as after a minus in a text.
        """
        return [self.find_text(text, top, first, without) for text in texts]

    def find_text(
        self, text: str, top: int = 10, first: int = 0, without: list[str] = ()
    ) -> SearchResult:
        """Find photos for a text.

        Photos with words in their names that the model does not know come first.
        """
        rows = find_rows_by_name(text, self.index.names)
        if rows:
            note = f"{text:.80} is a photo's name: this photo comes first, then similar ones"
            ranking = self.rank_similar(self.embedding(rows[0]), without)
            named = torch.zeros(self.count)
            named[rows] = 1
            return self.answer(text, ranking._replace(named=named), top, first, [note])

        reading = self.read_text(text, without)
        ranking = self.rank_texts(reading.wanted, reading.unwanted)
        if not reading.certain:
            ranking = ranking._replace(fits=None, posterior=None)
        if reading.names:
            ranking = ranking._replace(named=self.count_names(reading.names), posterior=None)
        if reading.unwanted_names:
            ranking.order[self.count_names(reading.unwanted_names) > 0] = -math.inf
        return self.answer(reading.query, ranking, top, first, reading.notes)

    def read_text(self, text: str, without: list[str] = ()) -> Reading:
        """Read what a text asks of the model and of the names of photos. Raises InputError."""
        question = read_question(text)
        unwanted_parts = [*without, *question.unwanted]
        query = ", not ".join([" OR ".join(question.wanted), *unwanted_parts])

        wanted = self.read_parts(question.wanted)
        unwanted = self.read_parts(unwanted_parts)
        all_read = len(wanted.texts) == len(question.wanted)
        texts = wanted.texts
        if not texts and self.encoder.options.text_features:
            # names alone, which may also tell the model something
            texts = [strip_lead(part) for part in question.wanted]

        notes = [*question.notes, *wanted.notes, *unwanted.notes]
        where = "in the folder's or the file's name"
        if wanted.names:
            named = self.count_names(wanted.names)
            first = count_photos(int((named == named.max()).sum()))
            words = quote_words(wanted.names)
            notes.insert(0, f"first come {first} with {words} {where}, or as the year")
        if unwanted.texts:
            notes.append(f"photos that seem to show {' or '.join(unwanted.texts)} are listed later")
        if unwanted.names:
            words = quote_words(unwanted.names)
            notes.append(f"photos with {words} {where}, or as the year, are left out")

        raised = (find_content_words(texts) & self.rows_of_word.keys()) - {*wanted.names}
        if raised and self.counts_photos:
            notes.append(f"photos with {quote_words(sorted(raised))} {where} are listed earlier")
        return Reading(
            query,
            texts,
            unwanted.texts,
            wanted.names,
            unwanted.names,
            notes,
            certain=wanted.known and unwanted.known and all_read,
        )

    def read_parts(self, parts: list[str]) -> Parts:
        """Read parts of a question. A part that is a name alone is no text."""
        texts = []
        names = []
        notes = []
        all_known = True
        for part in parts:
            own_names, rest = find_names(part, self.known_words, self.rows_of_word)
            names += own_names
            other_words = list_words(strip_lead(f"{rest} "))
            if own_names and all(word.lower() in BESIDE_NAMES for word in other_words):
                continue  # "photos of Anna"

            if self.encoder.options.text_features:
                rest = strip_lead(rest)
            sentences, known = read_words(self.encoder, rest, self.known_words)
            notes += sentences
            all_known = all_known and known
            texts.append(rest)
        return Parts(texts, names, notes, all_known)

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

    def find_photo(
        self,
        photo: Image.Image,
        top: int = 10,
        first: int = 0,
        name: str = "a photo",
        without: list[str] = (),
    ) -> SearchResult:
        """Find photos similar to another one, in RGB."""
        ranking = self.rank_similar(self.encoder.photos([photo]).to("cpu"), without)
        return self.answer(name, ranking, top, first, [])

    def find_row(self, row: int, top: int = 10, first: int = 0) -> SearchResult:
        """Find photos similar to one of the index, which is left out."""
        ranking = self.rank_similar(self.embedding(row))
        ranking.order[row] = -math.inf
        return self.answer(self.index.photos[row].name, ranking, top, first, [])

    def embedding(self, row: int) -> Embedding:
        """The embedding (1, D) of a photo of the index. With Milvus its file is read."""
        path = self.path_of(row)
        if self.index.collection:
            return self.encoder.photos([path]).to("cpu")
        return self.index.embedding.rows([row])

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may no longer exist."""
        if not 0 <= row < self.count:
            raise InputError(
                f"there is no photo {row} in the index; its photos are 0 to {self.count - 1}"
            )
        return os.path.join(self.folder, self.index.photos[row].name)

    def is_gone(self, row: int) -> bool:
        """True if the file of a photo no longer exists."""
        return bool(self.folder) and not os.path.isfile(self.path_of(row))

    def as_json(self, result: SearchResult) -> dict:
        """Answers as plain values, with paths and, where there are probabilities, notes on them."""
        notes = self.notes
        if self.calibrated and result.sure is None and result.expected is None:
            notes = []
        answers = [{**hit._asdict(), "path": self.path_of(hit.row)} for hit in result.answers]
        return {**result._asdict(), "notes": [*result.notes, *notes], "answers": answers}

    # ---- ranking

    def rank_texts(self, wanted: list[str], unwanted: list[str]) -> Ranking:
        """Rank photos of one of the alternatives first, and photos of what is unwanted later."""
        if not wanted:  # names alone
            nothing = torch.zeros(self.count)
            return Ranking(nothing, nothing)
        if self.counts_photos:
            return self.rank_by_probability(wanted, unwanted)

        queries, scores = self.score_texts(wanted)  # (Q, N)
        order = scores.max(0).values  # (N,)
        if unwanted:
            order = self.lower_unwanted(order, unwanted)
            return Ranking(order, order)
        if len(wanted) > 1:
            return Ranking(order, order)

        posterior = None
        if self.probabilities:
            posterior = self.probabilities.temperature * order.double()
        return Ranking(order, order, posterior=posterior, uncertainty=measure_uncertainty(queries))

    def rank_by_probability(self, wanted: list[str], unwanted: list[str]) -> Ranking:
        """Rank the photos by the probability that they show an alternative and nothing unwanted."""
        probabilities = self.probabilities
        ranking, counting = self.list_forms(wanted)
        queries, scores = self.score_texts(ranking)  # (Q, N)
        p = probabilities.fit_any(queries, scores)  # (N,)
        p_of_count = p
        if counting != ranking:
            p_of_count = probabilities.fit_any(*self.score_texts(counting))
        fits = probabilities.count(p_of_count)

        words = find_content_words(wanted)
        in_name = self.count_names(words & self.rows_of_word.keys())
        raised = NAME_LOG_ODDS * in_name / max(1, len(words))  # (N,)
        if unwanted:
            _, unwanted_forms = self.list_forms(unwanted)
            avoided = probabilities.fit_any(*self.score_texts(unwanted_forms))
            order = p.log() + UNWANTED_WEIGHT * torch.log1p(-avoided) + raised
            return Ranking(order, order, fits=fits * (1 - avoided))

        order = p.logit() + raised
        if len(ranking) > 1:
            return Ranking(order, order, fits=fits)
        return Ranking(
            order,
            scores[0],
            fits=fits,
            posterior=probabilities.temperature * scores[0].double(),
            uncertainty=measure_uncertainty(queries),
        )

    def rank_similar(self, photo: Embedding, without: list[str] = ()) -> Ranking:
        """Rank the photos by their similarity with one (1, D).

        If the similarity needs an image and a caption, the cosine of the means compares them.
        """
        order = self.scores(photo, like=True)
        if without:
            order = self.lower_unwanted(order, without)
        return Ranking(order, order, uncertainty=measure_uncertainty(photo))

    def lower_unwanted(self, order: Tensor, unwanted: list[str]) -> Tensor:
        """Lower the scores (N,) of photos by those of unwanted texts, without probabilities."""
        if self.index.collection:
            raise InputError(
                "Milvus gives only the best photos, and --not compares all; leave --not out, or "
                "make the index without --uri"
            )
        _, scores = self.score_texts(unwanted)
        penalties = [standardize_scores(row).clamp(min=0) for row in scores]
        return standardize_scores(order) - sum(penalties)

    def list_forms(self, texts: list[str]) -> tuple[list[str], list[str]]:
        """Texts that rank the photos, and texts that tell how many fit (`question.list_forms`)."""
        if not self.encoder.options.text_features:
            return texts, texts

        ranking = []
        counting = []
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
        """Scores (N,) of all photos for one query (1, D).

        like: the query is a photo, which takes the place of a caption.
        """
        photos = self.index.embedding
        size = photos.mean.shape[1]
        if e.mean.shape[1] != size:
            raise InputError(
                f"{self.index.path} holds {size} numbers per photo, but its run computes "
                f"{e.mean.shape[1]}; make it again with python -m photos"
            )
        if self.index.collection:
            return self.score_collection(e)

        similarity = self.similarity
        if like:
            similarity, e = within_modality(similarity, e)
        if similarity is cosine:
            photos = Embedding(photos.mean)

        scores = []
        for start in range(0, self.count, PHOTOS_PER_BLOCK):
            block = photos.rows(slice(start, start + PHOTOS_PER_BLOCK))
            scores.append(similarity(block, e)[:, 0])
        return torch.cat(scores)

    def score_collection(self, e: Embedding) -> Tensor:
        """Scores (N,) of the photos in Milvus for one query (1, D)."""
        name = self.index.manifest["similarity"]
        _, vector, own = product_vectors(name, e, self.index.embedding)
        products = self.index.collection.products(vector[0], self.index.names)
        return scores_of_products(name, products + own)

    # ---- the answers

    def answer(
        self, query: str, ranking: Ranking, top: int, first: int, notes: list[str]
    ) -> SearchResult:
        """Give the best photos whose files exist, how many fit, and how certain the first is."""
        notes = [*notes]
        gallery = self.count
        rows = self.list_rows(ranking, max(first + top, CHECKED_PHOTOS))
        gone = {row for row in rows if self.is_gone(row)}
        if gone and len(gone) == len(rows):  # a disk that is not connected
            notes.append(
                f"the photos of {self.folder} are not there, so all look gone; put them back, or "
                "index them where they are now"
            )
            ranking = ranking._replace(fits=None, posterior=None)
        elif gone:
            gallery -= len(gone)
            rows = [row for row in rows if row not in gone]
            notes.append(
                f"left out, as the files are gone: {count_photos(len(gone))}; python -m photos add "
                f"{self.index.path} updates the index"
            )

        there = ranking.order > -math.inf  # (N,)
        there[[*gone]] = False
        counted = there
        named = None
        if ranking.named is not None:
            counted = there & (ranking.named == ranking.named.max())
            named = int(counted.sum())
        expected = None
        if ranking.fits is not None:
            expected = ranking.fits[counted].sum().item()

        p = None
        sure = None
        if ranking.posterior is not None and rows:
            p = ranking.posterior.masked_fill(~there, -math.inf).softmax(0)  # (N,)
            sure = p[rows[0]].item()

        hits = []
        for row in rows[first : first + top]:
            hit = Hit(
                row,
                self.index.photos[row].name,
                score=ranking.scores[row].item(),
                p=None if p is None else p[row].item(),
                gone=row in gone,
            )
            hits.append(hit)
        return SearchResult(query, hits, gallery, sure, ranking.uncertainty, notes, expected, named)

    def list_rows(self, ranking: Ranking, most: int) -> list[int]:
        """The first rows of a ranking."""
        rows = ranking.order.argsort(descending=True, stable=True)
        rows = rows[ranking.order[rows] > -math.inf]
        if ranking.named is not None:
            rows = rows[ranking.named[rows].argsort(descending=True, stable=True)]
        return rows[:most].tolist()


def describe_state(path: str) -> tuple[int, int, int]:
    """What tells whether a file was written again: inode, time of change in ns, size in bytes."""
    stat = os.stat(path)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def measure_uncertainty(queries: Embedding) -> float | None:
    """Log det Sigma of a query in nats; None for a point."""
    if queries.log_var is None:
        return None
    return uncertainty(queries).item()


def standardize_scores(scores: Tensor) -> Tensor:
    """Subtract the mean of scores (N,) and divide by their deviation; zeros if all are equal."""
    deviation = scores.std(correction=0)
    return (scores - scores.mean()) / deviation.masked_fill(deviation == 0, 1)
