"""What a search answers: photos of an index for a text or a photo, with how sure each answer is."""
from typing import NamedTuple

from PIL import Image


class Answer(NamedTuple):
    """A photo of the index as an answer."""
    row: int                          # its number in the index, from 0
    name: str                         # its path below the photo folder
    score: float                      # higher is better
    p: float | None                   # posterior over the gallery, 0..1; None without calibration
    gone: bool                        # whether the file is there no more
    in_set: bool | None               # whether the conformal set holds it; None without one
    uncertainty: float | None         # log det Sigma of the photo in nats; None for points


class Found(NamedTuple):
    """The answers to one query, the best first."""
    query: str
    answers: list[Answer]
    gallery: int                      # how many photos were searched
    sure: float | None                # calibrated probability that the first answer of all is right, 0..1
    uncertainty: float | None         # log det Sigma of the query in nats
    in_set: int | None                # how many photos the conformal set holds
    notes: list[str]                  # sentences for the reader of these answers
    level: float | None = None        # how often the conformal set holds the right photo, such as 0.9


class Searcher:
    """An index with the model that embeds the queries. `top` answers are given, from the one at place `first`, from 0.
    The find_* raise InputError on a query that cannot be embedded."""
    count: int                        # photos in the index
    folder: str                       # the photo folder of the index
    title: str                        # what is searched, in a few words
    calibrated: bool                  # whether answers have probabilities
    notes: list[str]                  # sentences for the reader of any answer

    def find_texts(self, texts: list[str], top: int = 10, first: int = 0) -> list[Found]:
        raise NotImplementedError

    def find_photo(self, photo: Image.Image, top: int = 10, first: int = 0) -> Found:
        """photo: in RGB."""
        raise NotImplementedError

    def find_row(self, row: int, top: int = 10, first: int = 0) -> Found:
        """More like a photo of the index."""
        raise NotImplementedError

    def path_of(self, row: int) -> str:
        """folder/name of a photo. The file may be there no more."""
        raise NotImplementedError
