"""Words as numbers: vocabularies, letter trigrams, captions as numbers.

    python vocab.py --data_path data --data_name coco_precomp      # writes ./vocab/coco_precomp_vocab.json
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

from cli import Arguments, check, data_set, filename, positive, run
from data import THRESHOLD, Words, read_split
from files import atomic, output, read_json

TOKENIZER = "nltk.word_tokenize(preserve_line=True), lower case"
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)
# Words that stand in nearly any caption. They and punctuation are counted separately.
FUNCTION_WORDS = frozenset(
    "a about above across after along an and another any around as at be been before behind being below beneath beside "
    "between but by down each for from had has have he her his i in inside into is it its near next no of off on onto "
    "or other our out outside over she so some such that the their them there these they this those through to toward "
    "towards under up upon was we were what when where which while who whose with within without you your".split())


def is_function(word: str) -> bool:
    return word in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)


class Vocabulary:
    """V words and their numbers 0..V-1; 0..3 are `<pad> <start> <end> <unk>`.
    Raises InputError where the words start otherwise or one is repeated."""

    def __init__(self, words: list[str]):
        check(tuple(words[:4]) == SPECIALS, f"a vocabulary starts with {' '.join(SPECIALS)}, this one starts with "
                                            f"{ascii(words[:4])[:80]}")
        repeats = len(words) - len(set(words))
        check(not repeats, f"a vocabulary lists each word once, this one has {repeats} repeats")
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, tokenized: Iterable[list[str]], threshold: int = THRESHOLD) -> "Vocabulary":
        """Words that occur at least `threshold` times, by count, then by the alphabet."""
        return cls.from_counts(as_words(tokenized).count(), threshold)

    @classmethod
    def from_counts(cls, counts: Counter, threshold: int = THRESHOLD) -> "Vocabulary":
        """The same of words that have been counted."""
        words = sorted((w for w, n in counts.items() if n >= threshold and w not in SPECIALS),
                       key=lambda w: (-counts[w], w))
        return cls([*SPECIALS, *words])

    def encode_captions(self, captions: Sequence[list[str]]) -> "Tokens":
        """Turn captions into numbers of `<start> words <end>`; others are `<unk>`."""
        words = as_words(captions)
        number = np.array([self.index.get(word, UNK) for word in words.distinct], np.int64)         # (U,)
        length = words.length + 2
        start = np.cumsum(length) - length

        flat = np.empty(length.sum(), np.int64)
        flat[start] = START
        flat[start + length - 1] = END
        inside = np.ones(len(flat), bool)
        inside[start] = False
        inside[start + length - 1] = False
        flat[inside] = number[words.number]
        return Tokens(flat, length, words.count_in_captions(number != UNK) == 0)

    def save(self, path: str) -> None:
        with atomic(path) as f:
            json.dump({"tokenizer": TOKENIZER, "words": self.words}, f, ensure_ascii=False, indent=0)

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        """Read a vocabulary that `save` wrote. Raises InputError."""
        fix = "build one with `python vocab.py`"
        stored = read_json(path, fix)
        words = stored.get("words") if isinstance(stored, dict) else None
        check(isinstance(words, list) and all(isinstance(word, str) for word in words),
              f'{path} has no list "words" of strings; {fix}')
        return cls(words)


class Trigrams(Vocabulary):
    """A vocabulary that turns words into letter trigrams (dmsm 3.2).
    They are those of its words without the four specials, numbered from 1 in order of first appearance; 0 is padding.
    It is saved and loaded as a list of words, like any vocabulary."""

    def __init__(self, words: list[str]):
        super().__init__(words)
        self.trigrams = list(dict.fromkeys(t for word in self.words[4:] for t in trigrams_of(word)))
        self.trigram_index = {trigram: k for k, trigram in enumerate(self.trigrams, 1)}

    def encode_captions(self, captions: Sequence[list[str]]) -> "TrigramTokens":
        """Letter trigrams of captions, each a list of words."""
        return TrigramTokens(captions, self)


def trigrams_of(word: str) -> list[str]:
    """List the letter trigrams of #word#, in order and with repeats: #ca, cat, at#."""
    marked = f"#{word}#"
    return [marked[k:k + 3] for k in range(len(marked) - 2)]


# ---- captions as numbers

def as_words(captions: Iterable[list[str]]) -> Words:
    """Captions, each a list of words, as `data.Words`."""
    return captions if isinstance(captions, Words) else Words(captions)


class Tokens:
    """Captions as numbers of words, stored one after another."""

    def __init__(self, flat: np.ndarray, length: np.ndarray, unknown: np.ndarray):
        """flat (S,): the numbers; length (M,): how many of M captions; unknown (M,): captions without any word."""
        self.flat, self.length, self.unknown = flat, length, unknown
        self.start = np.cumsum(length) - length             # where each caption begins in `flat`

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) as zero-padded numbers (B, T) and their lengths (B,)."""
        length = self.length[index]
        position = np.arange(length.max())
        place = np.minimum(self.start[index][:, None] + position, len(self.flat) - 1)       # (B, T)
        return torch.from_numpy(self.flat[place] * (position < length[:, None])), torch.from_numpy(length)


class TrigramTokens(Tokens):
    """Captions as letter trigrams, without `<start>` and `<end>`."""

    def __init__(self, captions: Sequence[list[str]], vocab: Trigrams):
        """captions: tokenised. A caption without any known trigram, or word, is unknown.
        One without any word gets one without trigrams, so that a network has a word to read."""
        words, index = as_words(captions), vocab.trigram_index
        if not words.length.all():
            words = Words(caption or [""] for caption in words)
        # the row of a word is its number in `words` and 1, as 0 is padding
        hashed = [[], *([index[t] for t in trigrams_of(word) if t in index] for word in words.distinct)]
        self.width = np.array([*map(len, hashed)])                    # (U + 1,) trigrams of the distinct words
        self.table = np.zeros((len(hashed), self.width.max(initial=1)), np.int64)           # (U + 1, K)
        self.table[np.arange(self.table.shape[1]) < self.width[:, None]] = [*chain.from_iterable(hashed)]
        known = self.width[1:] > 0                                    # (U,)
        super().__init__(words.number + np.int64(1), words.length, words.count_in_captions(known) == 0)

    def batch(self, index) -> tuple[Tensor, Tensor]:
        """Captions `index` (B,) as trigrams (B, T, K), zero-padded, and lengths in words."""
        words, length = super().batch(index)
        words = words.numpy()
        most = self.width[words].max(initial=1)             # K is the largest number of trigrams in this batch
        return torch.from_numpy(self.table[:, :most][words]), length                # (U + 1, K) -> (B, T, K)


# ---- the command

def build(opt) -> None:
    """Write the vocabulary of the training captions, or of those of --vocab_splits."""
    target = output(os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json"), overwrite=opt.overwrite)
    splits = [read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval, dev_images=0, text_only=True)
              .require_sound(images=False) for name in opt.vocab_splits.split(",")]
    vocab = Vocabulary.from_counts(sum((split.words.count() for split in splits), Counter()), opt.vocab_threshold)
    vocab.save(target)
    count = sum(len(split.captions) for split in splits)
    print(f"{target}: {len(vocab):,} words seen at least {opt.vocab_threshold} times in {count:,} captions")


def main(argv=None) -> None:
    p = Arguments("Build a vocabulary from the captions of a data set.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--vocab_path", type=filename, default="./vocab/", help="folder to write {data_name}_vocab.json to")
    add("--vocab_splits", default="train", help="comma-separated splits whose words are counted (original: train,dev)")
    add("--vocab_threshold", type=positive, default=THRESHOLD, help="keep words that occur at least this often")
    add("--use_restval", action="store_true", help="count COCO's restval captions as part of train")
    add("--overwrite", action="store_true", help="replace an existing file")
    run("vocab.py", build, p.parse_args(argv))


if __name__ == "__main__":
    main()
