"""Vocabularies: the command that builds one from captions, or converts one of the originals.

    python vocab.py --data_path data --data_name coco_precomp      # writes ./vocab/coco_precomp_vocab.json
    python vocab.py convert coco_precomp_vocab.pkl new.json        # converts one of VSE++, VSRN or SCAN
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import io
import json
import os
import pickle
import pickletools
import re
import sys
from collections import Counter
from collections.abc import Iterable

from cli import Arguments, InputError, check, data_set, filename, positive, run, split_names
from files.reading import plain_file, read_json, refusing
from files.writing import atomic, output

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


# ---- the command

TUPLES = 20        # at most in a pickled vocabulary; nested ones could double in size without limit


def read_original(path: str) -> list[str]:
    """The words of an original vocabulary in the order of their indices.

    VSE++ and VSRN pickled theirs (under Python 2 or 3), and SCAN wrote JSON. No code from the file
    is run. Raises InputError if the file is not such a vocabulary.
    """
    give = "give a vocabulary of VSE++, VSRN or SCAN"
    with refusing(f"{path} cannot be read", give, OSError), open(plain_file(path), "rb") as f:
        content = f.read()
    # a pickle can fail in as many ways as there are instructions in it
    with refusing(f"{path} is neither a pickled vocabulary nor JSON", give, Exception):
        text = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
        fields = read_json(path, give) if text else _unpickle(content, path)
    fields = fields if isinstance(fields, dict) else {}
    check("words" not in fields,
          f"{path} is a vocabulary of this project already; use it as it is")
    index, words, size = map(fields.get, ("word2idx", "idx2word", "idx"))
    check(isinstance(index, dict) and isinstance(words, dict) and type(size) is int,
          f"{path} lacks one of word2idx, idx2word (dictionaries) and idx (a number), which a "
          "vocabulary of VSE++, VSRN or SCAN has")
    check(all(type(key) is int or isinstance(key, str) and re.fullmatch("[0-9]{1,9}", key)
              for key in words),
          f"{path} has indices that are no whole numbers; they have to run from 0 without a gap")
    words = {int(key): word for key, word in words.items()}    # JSON has turned SCAN's into strings
    check(size == len(index) and sorted(words) == list(range(size)),
          f"{path} numbers {len(index)} words, lists {len(words)} and counts {size}; the indices "
          "have to run from 0 without a gap")
    words = [words[i] for i in range(size)]
    for i, word in enumerate(words):
        if not isinstance(word, str) or index.get(word) != i:
            said = repr(word) if isinstance(word, (str, int, float)) else f"a {type(word).__name__}"
            raise InputError(f"{path} has {said} at index {i} and another index for it in "
                             "word2idx; each word needs one")
    return words


def _unpickle(content: bytes, path: str) -> dict:
    """The fields of a pickled Vocabulary.

    Only plain values and one plain class are admitted, so that no code from the pickle can run.
    Raises InputError on anything else.
    """
    class Fields:
        """Takes the place of the pickled class. It is made anew for each file, so that no file can
        change it."""

    def reconstruct(kind, *_):        # protocols 0 and 1 make objects by this call
        return Fields()

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            match module, name:
                case ("vocab" | "__main__"), "Vocabulary":
                    return Fields
                case ("copy_reg" | "copyreg"), "_reconstructor":
                    return reconstruct
                case ("__builtin__" | "builtins"), "object":
                    return object
            raise InputError(f"{path} wants to call {module}.{name}, which no vocabulary needs; "
                             "nothing of it was run, and it is better deleted")

    tuples = sum("TUPLE" in code.name or code.name == "FROZENSET" for code,
                 *_ in pickletools.genops(content))
    check(tuples <= TUPLES, f"{path} holds {tuples:,} tuples, which no vocabulary has; nothing of "
                            "it was run, and it is better deleted")
    found = Reader(io.BytesIO(content), encoding="utf-8").load()
    return vars(found) if isinstance(found, Fields) else found


def convert(opt) -> None:
    vocab = Vocabulary(read_original(opt.old))
    vocab.origin = f"converted from {os.path.basename(opt.old)}"
    output(opt.new, [opt.old], opt.overwrite)
    vocab.save(opt.new)
    print(f"{opt.new}: the {len(vocab):,} words of {opt.old}")
    raw = [word for word in vocab.words if word[:2] in ("b'", 'b"')]
    if raw:
        print(f"warning: {len(raw)} of its words look like {raw[0]}: they come from captions that "
              "Python 3 read as bytes, and captions read as text hardly contain them",
              file=sys.stderr)


def build(opt) -> None:
    from data import read_split  # it imports this module

    target = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
    output(target, overwrite=opt.overwrite)
    splits = [read_split(opt.data_path, opt.data_name, name.strip(), use_restval=opt.use_restval,
                         dev_images=0).require_sound()
              for name in opt.vocab_splits.split(",")]
    vocab = Vocabulary.build((words for split in splits for words in split.words),
                             opt.vocab_threshold)
    vocab.origin = f"built from {opt.data_name} {opt.vocab_splits}, words seen {opt.vocab_threshold} times"
    vocab.save(target)
    print(f"{target}: {len(vocab):,} words seen at least {opt.vocab_threshold} times "
          f"in {sum(len(s.captions) for s in splits):,} captions")


def main(argv=None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["convert"]:
        parser = Arguments("Convert a vocabulary of VSE++, VSRN (pickle) or SCAN (JSON) to this "
                           "project's JSON.")
        parser.prog += " convert"
        parser.add_argument("old", metavar="OLD", type=filename, help="their file, such as "
                            "coco_precomp_vocab.pkl")
        parser.add_argument("new", metavar="NEW.json", type=filename, help="file to write")
        parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")
        run("vocab.py", convert, parser.parse_args(argv[1:]))
        return
    parser = Arguments("Build a vocabulary from the captions of a data set (or convert one: see "
                       "`vocab.py convert --help`).")
    parser.add_argument("--data_path", type=filename, default="data", help="folder that holds the "
                        "data sets")
    parser.add_argument("--data_name", type=data_set, default="coco_precomp",
                        help="folder of the data set below --data_path")
    parser.add_argument("--vocab_path", type=filename, default="./vocab/",
                        help="folder to write {data_name}_vocab.json to")
    parser.add_argument("--vocab_splits", type=split_names, default="train", help="comma-separated "
                        "splits whose words are counted (the originals counted train,dev)")
    parser.add_argument("--vocab_threshold", type=positive, default=4, help="keep words that occur "
                        "at least this often")
    parser.add_argument("--use_restval", action="store_true", help="count COCO's restval captions "
                        "as part of train")
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")
    run("vocab.py", build, parser.parse_args(argv))


if __name__ == "__main__":
    main()
