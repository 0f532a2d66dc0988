"""Words and their numbers: tokenizer, vocabulary as JSON, and the command that builds or converts one.

    python vocab.py --data_path data --data_name coco_precomp      # writes ./vocab/coco_precomp_vocab.json
    python vocab.py convert coco_precomp_vocab.pkl new.json        # a vocabulary of VSE++, VSRN or SCAN as ours
"""
import argparse
import contextlib
import io
import json
import math
import os
import pickle
import sys
from collections import Counter

from nltk.tokenize import word_tokenize

TOKENIZER = "nltk.word_tokenize(preserve_line=True), lower case"
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)


class InputError(ValueError):
    """Something the user gave cannot be used. Its text is one line: what was given, what is allowed, the fix."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of every option that has one."""

    def _get_help_string(self, action):
        return action.help if action.default in (None, False) else super()._get_help_string(action)


class Arguments(argparse.ArgumentParser):
    """A command line whose errors are one line without the usage; options are never abbreviated."""

    def __init__(self, description: str):
        super().__init__(description=description, allow_abbrev=False, formatter_class=_Defaults)

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}\n")


def number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a finite number")


def natural(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 0")
    return int(text)


def positive(text: str) -> int:
    if natural(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def writable(path: str) -> str:
    """`path`, a file that can be written: its folder is made and opening it is tried, which leaves no trace. Called before
    the work whose results go there; raises InputError."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.lexists(path) and not os.path.isfile(path):
            raise OSError("it is a folder" if os.path.isdir(path) else "it is no plain file")
        for name in (path, path + ".tmp"):                  # many are written under the second name, then renamed
            new = not os.path.lexists(name)
            open(name, "ab").close()
            if new:
                os.remove(name)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error}); name a file in a folder that takes new files") from error
    return path


def tokenize(caption: str) -> list[str]:
    """Lower-cased words and punctuation marks of a caption.

    `preserve_line=True` needs no downloaded sentence model; it differs from VSE++'s call only where a full stop
    stands inside a caption (53 of 200,000 real captions tried).
    """
    return word_tokenize(caption.lower(), preserve_line=True)


class Vocabulary:
    """Maps words to 0..V-1; 0..3 are `<pad> <start> <end> <unk>` as in VSE++."""

    def __init__(self, words: list[str]):
        if tuple(words[:4]) != SPECIALS:
            raise InputError(f"a vocabulary starts with {' '.join(SPECIALS)}, this one starts with {words[:4]}")
        if len(set(words)) != len(words):
            raise InputError(f"a vocabulary lists each word once, this one has {len(words) - len(set(words))} repeats")
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, tokenized, threshold: int = 4) -> "Vocabulary":
        """Words seen at least `threshold` times in an iterable of token lists, by count, then alphabetically."""
        counts = Counter(word for tokens in tokenized for word in tokens)
        kept = sorted((w for w, n in counts.items() if n >= threshold and w not in SPECIALS),
                      key=lambda w: (-counts[w], w))
        return cls([*SPECIALS, *kept])

    def encode(self, tokens: list[str]) -> list[int]:
        """`<start> tokens <end>` as numbers; a word that is not listed becomes `<unk>`."""
        return [START, *(self.index.get(token, UNK) for token in tokens), END]

    def save(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            json.dump({"tokenizer": TOKENIZER, "words": self.words}, f, ensure_ascii=False, indent=0)
        os.replace(path + ".tmp", path)

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        try:
            with open(path, encoding="utf-8") as f:
                stored = json.load(f)
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(f"{path} is not a JSON vocabulary ({error}); build one with `python vocab.py`, or convert one of "
                             "the originals with `python vocab.py convert`") from error
        words = stored.get("words") if isinstance(stored, dict) else None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(f'{path} has no list "words" of strings; build a vocabulary with `python vocab.py`')
        return cls(words)


def read_original(path: str) -> list[str]:
    """The words of a vocabulary that VSE++ or VSRN pickled (under Python 2 or 3) or SCAN wrote as JSON, in index order.

    Runs no code from the file. Raises InputError if it is none.
    """
    try:
        with open(path, "rb") as f:
            content = f.read()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); give a vocabulary of VSE++, VSRN or SCAN") from error
    try:
        fields = json.loads(content) if content.lstrip()[:1] == b"{" else _unpickle(content, path)
    except InputError:
        raise
    except Exception as error:  # a pickle can fail in as many ways as there are instructions in it
        raise InputError(f"{path} is neither a pickled vocabulary nor JSON ({error}); give a vocabulary of VSE++, VSRN or "
                         "SCAN") from error
    if isinstance(fields, dict) and "words" in fields:
        raise InputError(f"{path} is a vocabulary of this project already; use it as it is")
    index, words, size = (fields.get(name) if isinstance(fields, dict) else None for name in ("word2idx", "idx2word", "idx"))
    if not isinstance(index, dict) or not isinstance(words, dict) or type(size) is not int:
        raise InputError(f"{path} lacks one of word2idx, idx2word (dictionaries) and idx (a number), which a vocabulary of "
                         "VSE++, VSRN or SCAN has")
    if not all(type(key) is int or isinstance(key, str) and key.isdecimal() for key in words):
        raise InputError(f"{path} has indices that are no whole numbers; they have to run from 0 without a gap")
    words = {int(key): word for key, word in words.items()}                         # SCAN's JSON turned them into strings
    if sorted(words) != list(range(len(index))) or size != len(index):
        raise InputError(f"{path} numbers {len(index)} words, lists {len(words)} and counts {size}; the indices have to run "
                         "from 0 without a gap")
    words = [words[i] for i in range(len(words))]
    for i, word in enumerate(words):
        if not isinstance(word, str) or index.get(word) != i:
            raise InputError(f"{path} has {word!r} at index {i} and another index for it in word2idx; each word needs one")
    return words


def _unpickle(content: bytes, path: str) -> dict:
    """The fields of a pickled Vocabulary: plain values and one plain class are admitted, and nothing that could act."""
    class Fields:
        """Stands in for the class of the pickle; made anew for each file, so that none leaves a trace in it."""

    def reconstruct(kind, *_):        # how protocols 0 and 1 make an object
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
            raise InputError(f"{path} wants to call {module}.{name}, which no vocabulary needs; nothing of it was run, and "
                             "it is better deleted")

    found = Reader(io.BytesIO(content), encoding="utf-8").load()
    return vars(found) if isinstance(found, Fields) else found


def convert(argv: list[str]) -> None:
    parser = Arguments("Convert a vocabulary of VSE++, VSRN (pickle) or SCAN (JSON) to this project's JSON.")
    parser.prog += " convert"
    parser.add_argument("old", metavar="OLD", help="their file, such as coco_precomp_vocab.pkl")
    parser.add_argument("new", metavar="NEW.json", help="file to write")
    opt = parser.parse_args(argv)
    try:
        vocab = Vocabulary(read_original(opt.old))
        if os.path.exists(opt.new):
            raise InputError(f"{opt.new} is there already; name another file, or delete it first")
        vocab.save(opt.new)
    except (InputError, OSError) as error:
        sys.exit(f"vocab.py: {error}")
    print(f"{opt.new}: the {len(vocab):,} words of {opt.old}")
    raw = [word for word in vocab.words if word[:2] in ("b'", 'b"')]
    if raw:
        print(f"warning: {len(raw)} of its words look like {raw[0]}: they come from captions that Python 3 read as bytes, and "
              "captions read as text hardly contain them", file=sys.stderr)


def main(argv=None) -> None:
    from data import read_split  # data builds on this module

    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["convert"]:
        return convert(argv[1:])
    parser = Arguments("Build a vocabulary from the captions of a data set (or convert one: see `vocab.py convert --help`).")
    parser.add_argument("--data_path", default="data", help="folder that holds the data sets")
    parser.add_argument("--data_name", default="coco_precomp", help="folder of the data set below --data_path")
    parser.add_argument("--vocab_path", default="./vocab/", help="folder to write {data_name}_vocab.json to")
    parser.add_argument("--vocab_splits", default="train",
                        help="comma-separated splits to count (train,dev reproduces the original vocabularies)")
    parser.add_argument("--vocab_threshold", type=int, default=4, help="keep words seen at least this often")
    parser.add_argument("--use_restval", action="store_true", help="count COCO's restval captions with train")
    opt = parser.parse_args(argv)
    try:
        splits = [read_split(opt.data_path, opt.data_name, name.strip(), use_restval=opt.use_restval, dev_images=0)
                  for name in opt.vocab_splits.split(",")]
        path = writable(os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json"))
    except InputError as error:
        sys.exit(f"vocab.py: {error}")
    vocab = Vocabulary.build((words for split in splits for words in split.words), opt.vocab_threshold)
    vocab.save(path)
    print(f"{path}: {len(vocab):,} words seen at least {opt.vocab_threshold} times "
          f"in {sum(len(s.captions) for s in splits):,} captions")


if __name__ == "__main__":
    main()
