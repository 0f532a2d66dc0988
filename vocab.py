"""Words and numbers: tokenizer, faults of captions, vocabularies, trigrams.

    python vocab.py --data_path data --data_name coco_precomp      # writes ./vocab/coco_precomp_vocab.json
"""
if __name__ == "__main__":
    import cli
    cli.start()

import json
import os
import re
from collections import Counter
from collections.abc import Iterable

from cli import Arguments, check, data_set, filename, positive, run
from files import (
    atomic,
    output,
    read_json,
)

TOKENIZER = "nltk.word_tokenize(preserve_line=True), lower case"
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)
# Captions in which the tokenizer would only split off commas and a final full stop. 98% of real captions are such, and
# without the tokenizer they are read 14 times as fast.
PLAIN = re.compile(r"(?:[a-z0-9 ]|-(?!-)|,(?= ))*\.?")
SPLIT = re.compile("cannot|gimme|gonna|gotta|lemme|wanna")    # words that the tokenizer takes apart
LONGEST = 10_000                      # words of a caption; a longer one would take the network minutes
NO_CAPTION = {"", "nan", "null", "none", "n/a", "#n/a", "<na>", "undefined"}      # as tables write a missing one
NAMED_LINE = re.compile(r"(\S+#)?\d+\t|\S+\.(jpe?g|png)(#\d+)?\s*[\t|,;]", re.IGNORECASE)   # a photo, then its caption
# Words that stand in nearly any caption. They and punctuation are counted separately.
FUNCTION_WORDS = frozenset(
    "a about above across after along an and another any around as at be been before behind being below beneath beside "
    "between but by down each for from had has have he her his i in inside into is it its near next no of off on onto "
    "or other our out outside over she so some such that the their them there these they this those through to toward "
    "towards under up upon was we were what when where which while who whose with within without you your".split())


def tokenize(caption: str) -> list[str]:
    """The words and punctuation marks of a caption in lower case.

    `preserve_line=True` needs no downloaded sentence model. It differs from VSE++'s call only where a full stop stands
    inside a caption (53 of 200,000 real captions tried).
    """
    text = caption.lower()
    if PLAIN.fullmatch(text) and not SPLIT.search(text):
        return text.replace(",", " ,").removesuffix(".").split() + ["."] * text.endswith(".")
    from nltk.tokenize import word_tokenize  # takes a second to import, and few captions need it

    return word_tokenize(text, preserve_line=True)


def caption_faults(captions: list[str], place):
    """Yield sentences on captions that are none.
    place: m -> file and line of caption m."""
    for m, caption in enumerate(captions):
        if caption.strip().lower() in NO_CAPTION:
            text = ascii(caption.strip()) if caption.strip() else "empty"
            yield f"{place(m)}: the caption is {text}; every caption needs words, so write or remove it"
        elif len(caption) > LONGEST and (len(caption) > 10 * LONGEST or len(caption.split()) > LONGEST):
            yield (f"{place(m)} has {len(caption.split()):,} words in {len(caption):,} letters; at most {LONGEST:,} "
                   f"words in {10 * LONGEST:,} letters are read, so shorten or remove it")
    lines = [m for m, caption in enumerate(captions) if NAMED_LINE.match(caption)]
    if lines:
        yield (f"{place(lines[0])}: {ascii(captions[lines[0]][:40])} begins with the name of a photo, as do "
               f"{len(lines):,} of {len(captions):,} captions; leave the names out (cut -f2-), or put lines NAME#K, "
               "tab, text into captions.tsv beside {split}_ids.txt")


def is_function(word: str) -> bool:
    return word in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)


class Vocabulary:
    """V words and their numbers 0..V-1.
    0..3 are `<pad> <start> <end> <unk>`, as in VSE++.

    Raises InputError where the words start otherwise or one is repeated.
    """

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
    def build(cls, tokenized: Iterable[list[str]], threshold: int = 4) -> "Vocabulary":
        """Vocabulary of words that occur at least `threshold` times.
        Sorted by count, then by the alphabet."""
        counts = Counter(word for tokens in tokenized for word in tokens)
        words = sorted((w for w, n in counts.items() if n >= threshold and w not in SPECIALS),
                       key=lambda w: (-counts[w], w))
        return cls([*SPECIALS, *words])

    def encode(self, tokens: list[str]) -> list[int]:
        """Numbers of `<start> tokens <end>`; a word that is not listed becomes `<unk>`."""
        return [START, *(self.index.get(token, UNK) for token in tokens), END]

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

    Its trigrams come from its words without the four specials. They are numbered from 1 in order of first
    appearance, and 0 is padding. It is saved and loaded as a list of words, like any vocabulary.
    """

    def __init__(self, words: list[str]):
        super().__init__(words)
        self.trigrams = list(dict.fromkeys(t for word in self.words[4:] for t in trigrams_of(word)))
        self.trigram_index = {trigram: k for k, trigram in enumerate(self.trigrams, 1)}

    def hash(self, words: Iterable[str]) -> list[list[int]]:
        """Numbers of the known trigrams of each word, with repeats.
        The word need not be listed."""
        index = self.trigram_index
        return [[index[t] for t in trigrams_of(word) if t in index] for word in words]


def trigrams_of(word: str) -> list[str]:
    """Letter trigrams of #word#, in order and with repeats: #ca, cat, at#.
    Huang et al. 2013."""
    marked = f"#{word}#"
    return [marked[k:k + 3] for k in range(len(marked) - 2)]


# ---- the command

def build(opt) -> None:
    """Write the vocabulary of the training captions, or of those of --vocab_splits."""
    from data import read_split  # which imports this module

    target = output(os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json"), overwrite=opt.overwrite)
    splits = [read_split(opt.data_path, opt.data_name, name, use_restval=opt.use_restval, dev_images=0, text_only=True)
              .require_sound(images=False) for name in opt.vocab_splits.split(",")]
    vocab = Vocabulary.build((words for split in splits for words in split.words), opt.vocab_threshold)
    vocab.save(target)
    count = sum(len(split.captions) for split in splits)
    print(f"{target}: {len(vocab):,} words seen at least {opt.vocab_threshold} times in {count:,} captions")


def main(argv=None) -> None:
    parser = Arguments("Build a vocabulary from the captions of a data set.")
    parser.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    parser.add_argument("--data_name", type=data_set, default="coco_precomp",
                        help="folder of the data set below --data_path")
    parser.add_argument("--vocab_path", type=filename, default="./vocab/",
                        help="folder to write {data_name}_vocab.json to")
    parser.add_argument("--vocab_splits", default="train", help="comma-separated splits whose words "
                        "are counted (the originals counted train,dev)")
    parser.add_argument("--vocab_threshold", type=positive, default=4, help="keep words that occur at least this often")
    parser.add_argument("--use_restval", action="store_true", help="count COCO's restval captions as part of train")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    run("vocab.py", build, parser.parse_args(argv))


if __name__ == "__main__":
    main()
