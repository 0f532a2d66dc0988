"""Words as numbers: vocabularies, letter trigrams, captions as numbers.

    python vocab.py --data_path data --data_name coco_precomp

writes ./vocab/coco_precomp_vocab.json.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from cli import Arguments, InputError, data_set, filename, positive, run
from data import THRESHOLD, Words, read_split
from files import atomic, output, read_json

TOKENIZER = "nltk.word_tokenize(preserve_line=True), lower case"
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)
# Words that stand in nearly any caption. They and punctuation are counted separately.
FUNCTION_WORDS = frozenset(
    "a about above across after along an and another any around as at be been before behind being "
    "below beneath beside between but by down each for from had has have he her his i in inside "
    "into is it its near next no of off on onto or other our out outside over she so some such "
    "that the their them there these they this those through to toward towards under up upon was "
    "we were what when where which while who whose with within without you your".split())


def is_function(word: str) -> bool:
    """True for a function word, and for a mark without letters or digits."""
    if word in FUNCTION_WORDS:
        return True
    return not any(letter.isalnum() for letter in word)


class Vocabulary:
    """V words and their numbers 0..V-1; 0..3 are `<pad> <start> <end> <unk>`.

    Raises InputError where the words start otherwise or one is repeated.
    """

    def __init__(self, words: list[str]):
        if tuple(words[:4]) != SPECIALS:
            raise InputError(f"a vocabulary starts with {' '.join(SPECIALS)}, this one starts with "
                             f"{ascii(words[:4])[:80]}")
        repeats = len(words) - len(set(words))
        if repeats:
            raise InputError(f"a vocabulary lists each word once, this one has {repeats} repeats")

        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, tokenized: Iterable[list[str]], threshold: int = THRESHOLD) -> "Vocabulary":
        """Collect words that occur at least `threshold` times, by count, then by the alphabet."""
        counts = as_words(tokenized).count()
        return cls.from_counts(counts, threshold)

    @classmethod
    def from_counts(cls, counts: Counter, threshold: int = THRESHOLD) -> "Vocabulary":
        """Do what `build` does with words that have been counted."""
        frequent = []
        for word, count in counts.items():
            if count >= threshold and word not in SPECIALS:
                frequent.append(word)

        frequent.sort(key=lambda word: (-counts[word], word))
        return cls([*SPECIALS, *frequent])

    def encode_captions(self, captions: Sequence[list[str]]) -> "Tokens":
        """Turn captions into numbers of `<start> words <end>`; other words are `<unk>`."""
        words = as_words(captions)
        number = [self.index.get(word, UNK) for word in words.distinct]
        number = np.array(number, np.int64)                 # (U,), of the distinct words

        length = words.length + 2                           # (M,), with <start> and <end>
        start = np.cumsum(length) - length
        end = start + length - 1

        # every place that is neither a start nor an end takes the next word
        flat = np.empty(length.sum(), np.int64)
        flat[start] = START
        flat[end] = END
        inside = np.ones(len(flat), bool)
        inside[start] = False
        inside[end] = False
        flat[inside] = number[words.number]

        n_known = words.count_in_captions(number != UNK)    # (M,)
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
        seen = {}                                           # a dict, as a set has no order
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
    return [marked[k:k + 3] for k in range(len(marked) - 2)]


# ---- captions as numbers

def as_words(captions: Iterable[list[str]]) -> Words:
    """Turn captions, each a list of words, into `data.Words`, if they are not."""
    if isinstance(captions, Words):
        return captions
    return Words(captions)


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
        self.start = np.cumsum(length) - length             # where each caption begins in `flat`

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Return captions `index` (B,) as zero-padded numbers (B, T) and their lengths (B,)."""
        start = self.start[index][:, None]                  # (B, 1)
        length = self.length[index]
        position = np.arange(length.max())                  # (T,)
        real = position < length[:, None]                   # (B, T)

        # padding of the last captions would reach beyond the end of `flat`
        place = np.minimum(start + position, len(self.flat) - 1)
        numbers = self.flat[place] * real
        return torch.from_numpy(numbers), torch.from_numpy(length)


class TrigramTokens(Tokens):
    """Captions as letter trigrams, without `<start>` and `<end>`."""

    def __init__(self, captions: Sequence[list[str]], vocab: Trigrams):
        """Turn tokenised captions into numbers of their U distinct words, and these into trigrams.

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

        known = self.width[1:] > 0                          # (U,)
        n_known = words.count_in_captions(known)            # (M,)
        super().__init__(words.number + np.int64(1), words.length, n_known == 0)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Return captions `index` (B,) as trigrams (B, T, K), zero-padded, and lengths in words.

        K is the largest number of trigrams of a word in this batch.
        """
        words, length = super().batch(index)
        words = words.numpy()                               # (B, T), rows of the table
        most = self.width[words].max(initial=1)
        trigrams = self.table[:, :most][words]              # (U + 1, K) -> (B, T, K)
        return torch.from_numpy(trigrams), length


# ---- the command

def build(opt) -> None:
    """Write the vocabulary of the training captions, or of those of --vocab_splits."""
    path = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
    target = output(path, overwrite=opt.overwrite)

    counts = Counter()
    n_captions = 0
    for name in opt.vocab_splits.split(","):
        split = read_split(opt.data_path, opt.data_name, name,
                           use_restval=opt.use_restval, dev_images=0, text_only=True)
        split.require_sound(images=False)
        counts.update(split.words.count())
        n_captions += len(split.captions)

    vocab = Vocabulary.from_counts(counts, opt.vocab_threshold)
    vocab.save(target)
    print(f"{target}: {len(vocab):,} words seen at least {opt.vocab_threshold} times in "
          f"{n_captions:,} captions")


def main(argv=None) -> None:
    p = Arguments("Build a vocabulary from the captions of a data set.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp",
        help="folder of the data set below --data_path")
    add("--vocab_path", type=filename, default="./vocab/",
        help="folder to write {data_name}_vocab.json to")
    add("--vocab_splits", default="train",
        help="comma-separated splits whose words are counted (original: train,dev)")
    add("--vocab_threshold", type=positive, default=THRESHOLD,
        help="keep words that occur at least this often")
    add("--use_restval", action="store_true", help="count COCO's restval captions as part of train")
    add("--overwrite", action="store_true", help="replace an existing file")
    run("vocab.py", build, p.parse_args(argv))


if __name__ == "__main__":
    main()
