"""Words as numbers: the tokenizer, vocabularies, letter trigrams, captions as numbers.

    python vocab.py --data_path data --data_name coco_precomp

writes ./vocab/coco_precomp_vocab.json. data.py reads the text of a caption, `tokenize` splits it
into words, `Words` keeps these as numbers of the distinct words, `Vocabulary` numbers the words
that a model knows, and `Tokens` gives a batch of captions as a padded array.
"""

if __name__ == "__main__":
    # data.py, which reads the captions of a data set, builds on this file, so the program that
    # counts their words stands there.
    import os
    import runpy
    import sys

    sys.argv.insert(1, "vocab")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data.py")
    runpy.run_path(program, run_name="__main__")

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from utils import InputError, atomic, read_json

TOKENIZER = "nltk.word_tokenize(preserve_line=True), lower case"
# Captions in which the tokenizer would only split off commas, 's and a final full stop. 99% of real
# captions are such, and without the tokenizer they are read 50 times as fast.
PLAIN_CAPTION = re.compile(r"[a-z0-9 ]*+(?:(?:-(?!-)|,(?= )|'s(?=[ .]|$))[a-z0-9 ]*+)*+\.?")
SPLIT_WORDS = re.compile("cannot|gimme|gonna|gotta|lemme|wanna")  # into two by the tokenizer
MIN_WORD_COUNT = 4  # a vocabulary lists words that occur at least this often
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)
# Words that stand in nearly any caption. They and punctuation are counted separately.
FUNCTION_WORDS = frozenset(
    "a about above across after along an and another any around as at be been before behind being "
    "below beneath beside between but by down each for from had has have he her his i in inside "
    "into is it its near next no of off on onto or other our out outside over she so some such "
    "that the their them there these they this those through to toward towards under up upon was "
    "we were what when where which while who whose with within without you your".split()
)


# ---- captions and their words


def tokenize(caption: str) -> list[str]:
    """Split a caption into its words and punctuation marks, in lower case.

    `preserve_line=True` needs no downloaded sentence model. It differs from VSE++'s call only where
    a full stop stands inside a caption (53 of 200,000 real captions tried).
    """
    text = caption.lower()
    if PLAIN_CAPTION.fullmatch(text) and not SPLIT_WORDS.search(text):
        separated = text.replace("'s", " 's").replace(",", " ,")
        words = separated.removesuffix(".").split()
        if text.endswith("."):
            words.append(".")
        return words

    from nltk.tokenize import word_tokenize  # takes a second to import, and few captions need it

    return word_tokenize(text, preserve_line=True)


def is_function(word: str) -> bool:
    """True for a function word, and for a mark without letters or digits."""
    if word in FUNCTION_WORDS:
        return True
    return not any(character.isalnum() for character in word)


class Words(Sequence):
    """M captions as lists of words, stored as numbers: COCO's 566,435 take 35 MB, as lists 1.2 GB.

    distinct: the U different words, by first appearance.
    number (S,): the number of each word, one caption after another.
    length (M,): how many words each caption has.
    start (M,): the position of its first word in `number`.
    """

    def __init__(self, captions: Iterable[list[str]]):
        """Number the words of M captions, each a list of words."""
        numbering = defaultdict()
        numbering.default_factory = numbering.__len__  # a new word gets the next number
        find_number = numbering.__getitem__
        numbers: list[int] = []
        lengths: list[int] = []
        for words in captions:
            numbers.extend(map(find_number, words))
            lengths.append(len(words))

        self.distinct = list(numbering)
        self.number = np.array(numbers, np.int32)
        self.length = np.array(lengths, np.int64)
        self.start = np.cumsum(self.length) - self.length

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, m):
        """Return the words of caption m, or a list of those of a slice of captions."""
        if isinstance(m, slice):
            return [self[k] for k in range(*m.indices(len(self)))]

        start = self.start[m]
        numbers = self.number[start : start + self.length[m]].tolist()
        return [self.distinct[k] for k in numbers]

    def count(self) -> Counter:
        """Count how often each word occurs."""
        counts = np.bincount(self.number, minlength=len(self.distinct))
        return Counter(dict(zip(self.distinct, counts.tolist())))

    def count_in_captions(self, chosen: np.ndarray) -> np.ndarray:
        """Count the words of each caption (M,) in `chosen`, a mask of the distinct words (U,)."""
        before = np.concatenate([[0], np.cumsum(chosen[self.number])])  # (S + 1,)
        return before[self.start + self.length] - before[self.start]


def as_words(captions: Iterable[list[str]]) -> Words:
    """Turn captions, each a list of words, into `Words`, if they are not."""
    if isinstance(captions, Words):
        return captions
    return Words(captions)


# ---- vocabularies


class Vocabulary:
    """V words and their numbers 0..V-1; 0..3 are `<pad> <start> <end> <unk>`.

    Raises InputError where the words start otherwise or one is repeated.
    """

    # True where `encode_captions` takes captions as they are written, and `from_options` makes it.
    reads_captions = False

    def __init__(self, words: list[str]):
        if tuple(words[:4]) != SPECIALS:
            raise InputError(
                f"a vocabulary starts with {' '.join(SPECIALS)}, this one starts with "
                f"{ascii(words[:4])[:80]}"
            )
        repeats = len(words) - len(set(words))
        if repeats:
            raise InputError(f"a vocabulary lists each word once, this one has {repeats} repeats")

        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, tokenized: Iterable[list[str]], threshold: int = MIN_WORD_COUNT) -> "Vocabulary":
        """Collect words that occur at least `threshold` times, by count, then by the alphabet."""
        counts = as_words(tokenized).count()
        return cls.from_counts(counts, threshold)

    @classmethod
    def from_counts(cls, counts: Counter, threshold: int = MIN_WORD_COUNT) -> "Vocabulary":
        """Do what `build` does with words that have been counted."""
        frequent = []
        for word, count in counts.items():
            if count >= threshold and word not in SPECIALS:
                frequent.append(word)

        def by_count_then_alphabet(word: str) -> tuple[int, str]:
            return -counts[word], word

        frequent.sort(key=by_count_then_alphabet)
        return cls([*SPECIALS, *frequent])

    def encode_captions(self, captions: Sequence[list[str]]) -> "Tokens":
        """Turn captions into numbers of `<start> words <end>`; other words are `<unk>`."""
        words = as_words(captions)
        number = [self.index.get(word, UNK) for word in words.distinct]
        number = np.array(number, np.int64)  # (U,), of the distinct words

        length = words.length + 2  # (M,), with <start> and <end>
        start = np.cumsum(length) - length
        end = start + length - 1

        # every position that is neither a start nor an end takes the next word
        flat = np.empty(length.sum(), np.int64)
        flat[start] = START
        flat[end] = END
        inside = np.ones(len(flat), bool)
        inside[start] = False
        inside[end] = False
        flat[inside] = number[words.number]

        n_known = words.count_in_captions(number != UNK)  # (M,)
        return Tokens(flat, length, n_known == 0)

    def save(self, path: str) -> None:
        """Write the words to a JSON file, one a line."""
        content = {"tokenizer": TOKENIZER, "words": self.words}
        with atomic(path) as f:
            json.dump(content, f, ensure_ascii=False, indent=0)

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        """Read a vocabulary that `save` wrote. Raises InputError."""
        fix = "build one with `python vocab.py`"
        stored = read_json(path, fix)
        words = None
        if isinstance(stored, dict):
            words = stored.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(f'{path} has no list "words" of strings; {fix}')
        return cls(words)


class Trigrams(Vocabulary):
    """A vocabulary that turns words into letter trigrams (dmsm 3.2).

    They are those of its words without the four specials, numbered from 1 in order of first
    appearance; 0 is padding. It is saved and loaded as a list of words, like any vocabulary.
    """

    def __init__(self, words: list[str]):
        super().__init__(words)
        seen = {}  # a dict, as a set has no order
        for word in self.words[4:]:
            for trigram in trigrams_of(word):
                seen[trigram] = True

        self.trigrams = list(seen)
        self.trigram_index = {trigram: k for k, trigram in enumerate(self.trigrams, 1)}

    def encode_captions(self, captions: Sequence[list[str]]) -> "TrigramTokens":
        """Turn captions, each a list of words, into letter trigrams."""
        return TrigramTokens(captions, self)


def trigrams_of(word: str) -> list[str]:
    """List the letter trigrams of #word#, in order and with repeats: #ca, cat, at#."""
    marked = f"#{word}#"
    return [marked[k : k + 3] for k in range(len(marked) - 2)]


# ---- captions as numbers


class Tokens:
    """Captions as numbers of words, stored one after another."""

    def __init__(self, flat: np.ndarray, length: np.ndarray, unknown: np.ndarray):
        """Keep M captions of S numbers.

        flat (S,): the numbers; length (M,): how many of each caption; unknown (M,): captions
        without any word that is known.
        """
        self.flat = flat
        self.length = length
        self.unknown = unknown
        self.start = np.cumsum(length) - length  # where each caption begins in `flat`

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Return captions `index` (B,) as zero-padded numbers (B, T) and their lengths (B,)."""
        start = self.start[index][:, None]  # (B, 1)
        length = self.length[index]
        position = np.arange(length.max())  # (T,)
        real = position < length[:, None]  # (B, T)

        # padding of the last captions would reach beyond the end of `flat`
        stored_at = np.minimum(start + position, len(self.flat) - 1)
        numbers = self.flat[stored_at] * real
        return torch.from_numpy(numbers), torch.from_numpy(length)


class TrigramTokens(Tokens):
    """Captions as letter trigrams, without `<start>` and `<end>`."""

    def __init__(self, captions: Sequence[list[str]], vocab: Trigrams):
        """Turn tokenized captions into numbers of their U distinct words, and these into trigrams.

        A caption without any known trigram, or word, is unknown. One without any word gets one
        without trigrams, so that a network has a word to read.
        """
        words = as_words(captions)
        if not words.length.all():
            words = Words(caption or [""] for caption in words)

        # the row of a word is its number in `words` and 1, as 0 is padding
        index = vocab.trigram_index
        hashed = [[]]
        for word in words.distinct:
            hashed.append([index[t] for t in trigrams_of(word) if t in index])

        # width (U + 1,): trigrams of a word; table (U + 1, K): their numbers, zero-padded
        self.width = np.array([len(trigrams) for trigrams in hashed])
        most = self.width.max(initial=1)
        self.table = np.zeros((len(hashed), most), np.int64)
        real = np.arange(most) < self.width[:, None]
        self.table[real] = list(chain.from_iterable(hashed))

        known = self.width[1:] > 0  # (U,)
        n_known = words.count_in_captions(known)  # (M,)
        super().__init__(words.number + np.int64(1), words.length, n_known == 0)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Return captions `index` (B,) as trigrams (B, T, K), zero-padded, and lengths in words.

        K is the largest number of trigrams of a word in this batch.
        """
        words, length = super().batch(index)
        words = words.numpy()  # (B, T), rows of the table
        most = self.width[words].max(initial=1)
        trigrams = self.table[:, :most][words]  # (U + 1, K) -> (B, T, K)
        return torch.from_numpy(trigrams), length
