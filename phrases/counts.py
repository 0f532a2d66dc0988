"""Count the photos that show a thing, by its boxes, and those whose captions name it.

    python -m phrases.counts --data_name f30k_entities --splits val test --words photos/everyday.csv

A photo shows a word if a phrase with that head noun (its last word) has a box. A phrase whose chain has the flag
"scene" counts as well with `--scenes`: the whole photo is its box. Captions name a word if one of a photo's five has
it anywhere. Words are compared by their stems, so "dogs" is "dog". Words that head a phrase in less than half of their
mentions ("black", "soccer") are left out.

Boxes were drawn for what the captions name. So they tell which mentions are of things that can be seen, and not what
all five captions left out. How many photos more captions would add is estimated from those that one or two of the five
name (Chao 1987, a lower bound).
"""

if __name__ == "__main__":
    import cli

    cli.start()

import csv
import os
from collections import Counter, defaultdict

import numpy as np

import cli
from cli import Arguments, InputError, data_set, filename, positive
from data import tokenize
from evaluation.report import number, render, table
from files import output, read_lines, save_json
from methods.volume import stem
from metrics import spearman
from phrases.entities import PHRASE, SPLITS, find_truth, read_annotations, read_photo_ids

LEAST_PHOTOS = 10  # that show a word, by default
CAPTIONS = 5  # of each photo
HEAD_SHARE = 0.5  # of a noun's mentions, at least, that head a phrase
COLUMNS = {
    "shown": "photos, by boxes",
    "named": "photos, by captions",
    "precision": "precision",
    "one": "one caption",
    "estimated": "estimated photos",
}


class Words:
    """What captions name and photos show, by stem of a word."""

    def __init__(self):
        self.photos = 0
        self.showing = defaultdict(set)  # photos where it heads a phrase with a box
        self.naming = defaultdict(Counter)  # photo: number of its captions that name it
        self.heads = Counter()  # captions where it heads a phrase

    def add_photo(self, root: str, photo: str, scenes: bool) -> None:
        """Read a photo's annotations and captions. scenes: chains with that flag count as shown."""
        self.photos += 1
        chains = read_annotations(os.path.join(root, "Annotations", f"{photo}.xml"), [])[1]
        for line in read_lines(os.path.join(root, "Sentences", f"{photo}.txt")):
            heads = set()
            for chain, kinds, text in PHRASE.findall(line):
                head = stem(tokenize(text)[-1])
                heads.add(head)
                truth = find_truth(chain, kinds, chains)
                if truth == "scene" and scenes or not isinstance(truth, str):
                    self.showing[head].add(photo)
            self.heads.update(heads)
            plain = PHRASE.sub(lambda match: match[3], line)
            for word in set(map(stem, tokenize(plain))):
                self.naming[word][photo] += 1

    def is_thing(self, word: str) -> bool:
        return self.heads[word] >= HEAD_SHARE * self.naming[word].total()

    def compare(self, word: str) -> dict[str, float]:
        """Compare the photos that show a word with those whose captions name it.

        "precision" of the captions, "one", the percent of the shown photos that one caption names, on average, and
        "estimated", how many would be shown if there were any number of captions.
        """
        shown, naming = self.showing[word], self.naming[word]
        captions = np.array([naming[photo] for photo in shown])
        once, twice = (int((captions == k).sum()) for k in (1, 2))
        more = (CAPTIONS - 1) / CAPTIONS * once * (once - 1) / (2 * (twice + 1))
        return {
            "shown": len(shown),
            "named": len(naming),
            "precision": 100 * len(shown) / len(naming),
            "one": 100 * float(captions.mean()) / CAPTIONS,
            "estimated": len(shown) + more,
        }


def list_words(path: str | None, words: Words, least: int) -> dict[str, str]:
    """List the things that `least` photos show, of a CSV file's first column, or else all: {word: stem}."""
    stems = {word: word for word in sorted(words.showing)}
    if path:
        stems = {row[0]: stem(row[0]) for row in csv.reader(read_lines(path)) if row}
    shown = {word: own for word, own in stems.items() if len(words.showing.get(own, ())) >= least}
    return {word: own for word, own in shown.items() if words.is_thing(own)}


def compare_numbers(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Compare two numbers of photos (Q,) of words: rank correlation, median of larger / smaller."""
    factor = np.maximum(a, b) / np.minimum(a, b)
    return {"rho": float(spearman(a, b)), "factor": float(np.median(factor))}


def report_counts(opt) -> None:
    """The command: print a table by word and the agreement over words, and write both."""
    root = os.path.join(opt.data_path, opt.data_name)
    if opt.output:
        output(opt.output, overwrite=opt.overwrite)
    words = Words()
    for split in opt.splits:
        for photo in read_photo_ids(root, split):
            words.add_photo(root, photo, opt.scenes)

    rows = {
        word: words.compare(own) for word, own in list_words(opt.words, words, opt.least).items()
    }
    if not rows:
        raise InputError(
            f"no word is shown by {opt.least} of the {words.photos:,} photos; give a smaller --least or "
            "other --words"
        )

    columns = {key: np.array([row[key] for row in rows.values()]) for key in COLUMNS}
    medians = {key: float(np.median(values)) for key, values in columns.items()}
    summary = {"words": len(rows), "photos": words.photos, "medians": medians}
    for key in ("shown", "estimated"):
        summary[key] = compare_numbers(columns["named"], columns[key])

    heading = (
        f"{words.photos:,} photos; percent of the captions' photos that show it, and of "
        "the shown photos that one caption names"
    )
    lines = {**rows, "median": medians}
    print(render([table(heading, COLUMNS, lines, lambda key, of: number(of[key]))]))
    for key in ("shown", "estimated"):
        print(
            f"{len(rows)} words, photos by captions and {COLUMNS[key]}: rank correlation "
            f"{summary[key]['rho']:.3f}, median factor {summary[key]['factor']:.2f}"
        )
    if opt.output:
        save_json({**summary, "by_word": rows}, opt.output)


def main(argv=None) -> None:
    p = Arguments(
        "Count the photos that show words by their boxes, and those whose captions name them."
    )
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, required=True, help="a data set like Flickr30k Entities")
    add("--splits", nargs="+", choices=SPLITS, default=["test"], help="splits to count together")
    add(
        "--words",
        type=filename,
        metavar="FILE",
        help="count the words of a CSV file's first column (default: all head nouns)",
    )
    add(
        "--least",
        type=positive,
        default=LEAST_PHOTOS,
        metavar="N",
        help="leave out words that fewer photos show",
    )
    add("--scenes", action="store_true", help="phrases with the flag of a scene count as shown")
    add("--output", type=filename, metavar="FILE.json", help="file to write the numbers to")
    add("--overwrite", action="store_true", help="replace an existing file")
    cli.run("phrases.counts", report_counts, p.parse_args(argv))


if __name__ == "__main__":
    main()
