"""Vocabularies: the command that builds one from captions, or converts one of the originals.
text.py holds the class.

    python vocab.py --data_path data --data_name coco_precomp      # writes ./vocab/coco_precomp_vocab.json
    python vocab.py convert coco_precomp_vocab.pkl new.json        # converts one of VSE++, VSRN or SCAN
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import io
import os
import pickle
import pickletools
import re
import sys

from cli import Arguments, InputError, check, data_set, filename, positive, run, split_names
from data import read_split
from files.reading import plain_file, read_json, refusing
from files.writing import output
from text import SPECIALS, Trigrams, Vocabulary, is_function, tokenize, trigrams_of  # noqa: F401 (part of this module)

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
