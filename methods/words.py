"""Words and short phrases of searches, and the photos whose captions name them.

A text names a phrase where it has its words in a row, by their stems: "two dogs run" names "dog". A photo shows more
than its captions name, so the number of photos that name a phrase is a lower bound. A text of more than three words
fits a photo whose captions together name all of its content words.
"""
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from vocab import FUNCTION_WORDS

LONGEST = 3                           # words of a phrase
NO_CONTENT = FUNCTION_WORDS | {"photo", "picture", "image", "can", "seen"}
ARTICLES = ("a", "an", "the")
Phrase = tuple[str, ...]              # of stems


@functools.lru_cache(100_000)
def stem(word: str) -> str:
    from nltk.stem.snowball import SnowballStemmer  # takes a moment to import, and few commands need it

    return SnowballStemmer("english").stem(word)


def read_phrase(words: Sequence[str]) -> Phrase | None:
    """Stem a text (T,) of at most three words, without article and full stop, or None."""
    words = [word for word in words if word != "."]
    words = words[words[:1] != [] and words[0] in ARTICLES:]
    return tuple(map(stem, words)) if 0 < len(words) <= LONGEST else None


def is_content(word: str) -> bool:
    return bool(re.fullmatch("[a-z]{2,}(-[a-z]+)*", word)) and word not in NO_CONTENT


def list_short_texts(words: Sequence[str]) -> set[str]:
    """List the short texts that a caption (T,) names.
    Its content words, and the last two and three of those in a row: "dog", "black dog", "young black dog"."""
    texts, run = set(), []
    for word in [*words, "."]:
        if is_content(word):
            texts.add(word)
            run.append(word)
        else:
            texts |= {" ".join(run[-n:]) for n in range(2, LONGEST + 1) if len(run) >= n}
            run = []
    return texts


def list_beginnings(words: Sequence[str]) -> list[str]:
    """List the short sentences that a caption (T,) begins with.
    They end before a function word: "a black dog runs" of "a black dog runs through the snow"."""
    return [" ".join(words[:k]) for k in range(1, len(words))
            if is_content(words[k - 1]) and not is_content(words[k]) and not read_phrase(words[:k])]


def find_naming_photos(phrases: Iterable[Phrase], captions: Iterable[Sequence[str]],
                       owner: np.ndarray) -> dict[Phrase, set[int]]:
    """Find the photos of which a caption names each phrase.
    captions: M lists of words; owner (M,): their photos."""
    photos = {phrase: set() for phrase in phrases}
    for words, photo in zip(captions, owner.tolist()):
        stems = [*map(stem, words)]
        for n in range(1, LONGEST + 1):
            for k in range(len(stems) - n + 1):
                if (phrase := tuple(stems[k:k + n])) in photos:
                    photos[phrase].add(photo)
    return photos


def find_showing_photos(texts: Iterable[Sequence[str]], captions: Iterable[Sequence[str]],
                        owner: np.ndarray) -> list[set[int]]:
    """Find the photos whose captions together name all content words of each text.
    captions, owner: as in `find_naming_photos`."""
    photos = defaultdict(set)
    for words, photo in zip(captions, owner.tolist()):
        for word in set(words):
            photos[stem(word)].add(photo)
    named = ([photos[stem(word)] for word in words if is_content(word)] for words in texts)
    return [set.intersection(*of_words) if of_words else set() for of_words in named]
