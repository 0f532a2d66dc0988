"""Turns words into numbers: the tokenizer, vocabularies as JSON, letter trigrams and function
words."""
import json
import re
from collections import Counter
from collections.abc import Iterable

from cli import check
from files.reading import read_json
from files.writing import atomic

TOKENIZER = "nltk.word_tokenize(preserve_line=True), lower case"
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)
# Captions in which the tokenizer would only split off commas and a final full stop. 98% of real
# captions are such, and without the tokenizer they are read 14 times as fast.
PLAIN = re.compile(r"(?:[a-z0-9 ]|-(?!-)|,(?= ))*\.?")
SPLIT = re.compile("cannot|gimme|gonna|gotta|lemme|wanna")    # words that the tokenizer takes apart


def tokenize(caption: str) -> list[str]:
    """The words and punctuation marks of a caption in lower case.

    `preserve_line=True` needs no downloaded sentence model. It differs from VSE++'s call only where
    a full stop stands inside a caption (53 of 200,000 real captions tried).
    """
    text = caption.lower()
    if PLAIN.fullmatch(text) and not SPLIT.search(text):
        return text.replace(",", " ,").removesuffix(".").split() + ["."] * text.endswith(".")
    from nltk.tokenize import word_tokenize  # takes a second to import, and few captions need it

    return word_tokenize(text, preserve_line=True)


class Vocabulary:
    """A list of V words and their numbers 0..V-1.

    Numbers 0..3 are `<pad> <start> <end> <unk>`, as in VSE++. `origin`: where the words come from,
    if that is known. Raises InputError where the words start otherwise or one is repeated.
    """

    origin: str | None = None

    def __init__(self, words: list[str]):
        check(tuple(words[:4]) == SPECIALS, f"a vocabulary starts with {' '.join(SPECIALS)}, this "
                                            f"one starts with {ascii(words[:4])[:80]}")
        repeats = len(words) - len(set(words))
        check(not repeats, f"a vocabulary lists each word once, this one has {repeats} repeats")
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, tokenized, threshold: int = 4) -> "Vocabulary":
        """A vocabulary of the words that occur at least `threshold` times in an iterable of token
        lists.

        Frequent words come first, and equally frequent ones are in alphabetical order.
        """
        counts = Counter(word for tokens in tokenized for word in tokens)
        kept = sorted((w for w, n in counts.items() if n >= threshold and w not in SPECIALS),
                      key=lambda w: (-counts[w], w))
        return cls([*SPECIALS, *kept])

    def encode(self, tokens: list[str]) -> list[int]:
        """The numbers of `<start> tokens <end>`. A word that is not listed becomes `<unk>`."""
        return [START, *(self.index.get(token, UNK) for token in tokens), END]

    def save(self, path: str) -> None:
        stored = {"tokenizer": TOKENIZER, **({"origin": self.origin} if self.origin else {}),
                  "words": self.words}
        with atomic(path) as f:
            json.dump(stored, f, ensure_ascii=False, indent=0)

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        stored = read_json(path, "build a vocabulary with `python vocab.py`, or convert one of the "
                           "originals with `python vocab.py convert`")
        stored = stored if isinstance(stored, dict) else {}
        words, origin = map(stored.get, ("words", "origin"))
        check(isinstance(words, list) and all(isinstance(word, str) for word in words),
              f'{path} has no list "words" of strings; build a vocabulary with `python vocab.py`')
        made = cls(words)
        made.origin = origin if isinstance(origin, str) else None
        return made


# Words that are found in nearly any caption. They and punctuation are counted separately.
FUNCTION_WORDS = frozenset("a about above across after along an and another any around as at be "
                           "been before behind being below beneath beside between but by down each "
                           "for from had has have he her his i in inside into is it its near next "
                           "no of off on onto or other our out outside over she so some such that "
                           "the their them there these they this those through to toward towards "
                           "under up upon was we were what when where which while who whose with "
                           "within without you your".split())


def is_function(word: str) -> bool:
    return word in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)


def trigrams_of(word: str) -> list[str]:
    """The letter trigrams of #word#, in order and with repeats, such as #ca, cat, at# for "cat".

    This is the word hashing of Huang et al. 2013.
    """
    marked = f"#{word}#"
    return [marked[k:k + 3] for k in range(len(marked) - 2)]


class Trigrams(Vocabulary):
    """A vocabulary that turns words into letter trigrams.

    Its trigrams are those of its words without the four specials. They are numbered from 1 in order
    of first appearance, and 0 is padding. It is saved and loaded as a list of words, like any
    vocabulary.
    """

    def __init__(self, words: list[str]):
        super().__init__(words)
        self.trigrams = list(dict.fromkeys(t for word in self.words[4:] for t in trigrams_of(word)))
        self.trigram_index = {trigram: k for k, trigram in enumerate(self.trigrams, 1)}

    def hash(self, words: Iterable[str]) -> list[list[int]]:
        """For each word, the numbers of its known trigrams, with repeats. The word need not be
        listed here.

        A word without known trigrams gets an empty list.
        """
        index = self.trigram_index
        return [[index[t] for t in trigrams_of(word) if t in index] for word in words]
