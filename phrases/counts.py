"""Count the photos that show a thing, by its boxes, and those whose captions name it.

    python -m phrases.counts --data_name f30k_entities --splits dev test --words photos/everyday.csv

A photo shows a word if a phrase with that head noun (its last word) has a box. A phrase whose chain
has the flag "scene" counts as well with `--scenes`: the whole photo is its box. Captions name a
word if one of a photo's five has it anywhere. Words are compared by their stems, so "dogs" is
"dog". Words that head a phrase in less than half of their mentions ("black", "soccer") are left
out.

Boxes were drawn for what the captions name. So they tell which mentions are of things that can be
seen, and not what all five captions left out. How many photos more captions would add is estimated
from those that one or two of the five name (Chao 1987, a lower bound).
"""

if __name__ == "__main__":
    import utils

    utils.start()

import csv
import os
from collections import Counter, defaultdict

import numpy as np

import utils
from data import tokenize
from evaluation.report import number, render, table
from methods.volume import stem
from metrics import spearman
from phrases.entities import PHRASE, entities_split, find_truth, read_annotations, read_photo_ids
from utils import Arguments, InputError, data_set, filename, output, positive, read_lines, save_json

MIN_PHOTOS = 10  # that show a word, by default
CAPTIONS_PER_PHOTO = 5
MIN_HEAD_SHARE = 0.5  # of a noun's mentions that head a phrase
COUNT_COLUMNS = {
    "shown": "photos, by boxes",
    "named": "photos, by captions",
    "precision": "precision",
    "one": "one caption",
    "estimated": "estimated photos",
}


class WordCounts:
    """What captions name and photos show, by stem of a word."""

    def __init__(self):
        self.photos = 0
        self.showing = defaultdict(set)  # photos where it heads a phrase with a box
        self.naming = defaultdict(Counter)  # photo: number of its captions that name it
        self.heads = Counter()  # captions where it heads a phrase

    def add_photo(self, root: str, photo: str, scenes: bool) -> None:
        """Read a photo's annotations and captions. scenes: chains with that flag count as shown."""
        self.photos += 1
        annotations = os.path.join(root, "Annotations", f"{photo}.xml")
        _, chains = read_annotations(annotations, [])

        for line in read_lines(os.path.join(root, "Sentences", f"{photo}.txt")):
            heads = set()
            for chain, kinds, text in PHRASE.findall(line):
                head = stem(tokenize(text)[-1])
                heads.add(head)
                truth = find_truth(chain, kinds, chains)
                has_box = not isinstance(truth, str)
                if has_box or scenes and truth == "scene":
                    self.showing[head].add(photo)
            self.heads.update(heads)

            plain = PHRASE.sub(r"\3", line)  # without the marks
            for word in {stem(word) for word in tokenize(plain)}:
                self.naming[word][photo] += 1

    def is_thing(self, word: str) -> bool:
        """Tell whether most mentions of a word head a phrase."""
        return self.heads[word] >= MIN_HEAD_SHARE * self.naming[word].total()

    def compare(self, word: str) -> dict[str, float]:
        """Compare the photos that show a word with those whose captions name it.

        "precision" of the captions, "one", the percent of the shown photos that one caption names,
        on average, and "estimated", how many would be shown if there were any number of captions.
        """
        shown = self.showing[word]
        naming = self.naming[word]
        captions = np.array([naming[photo] for photo in shown])
        once = int((captions == 1).sum())
        twice = int((captions == 2).sum())
        # Chao 1987: photos that no caption names
        sampled = (CAPTIONS_PER_PHOTO - 1) / CAPTIONS_PER_PHOTO
        more = sampled * once * (once - 1) / (2 * (twice + 1))
        return {
            "shown": len(shown),
            "named": len(naming),
            "precision": 100 * len(shown) / len(naming),
            "one": 100 * float(captions.mean()) / CAPTIONS_PER_PHOTO,
            "estimated": len(shown) + more,
        }


def list_words(path: str | None, words: WordCounts, least: int) -> dict[str, str]:
    """List the things that `least` photos show: {word: stem}.

    They are those of a CSV file's first column, or else all.
    """
    stems = {word: word for word in sorted(words.showing)}
    if path:
        stems = {row[0]: stem(row[0]) for row in csv.reader(read_lines(path)) if row}

    things = {}
    for word, stemmed in stems.items():
        photos = words.showing.get(stemmed, ())
        if len(photos) >= least and words.is_thing(stemmed):
            things[word] = stemmed
    return things


def compare_numbers(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Compare two numbers of photos (Q,) of words: rank correlation, median of larger / smaller."""
    factor = np.maximum(a, b) / np.minimum(a, b)
    return {"rho": float(spearman(a, b)), "factor": float(np.median(factor))}


def format_count(column: str, row: dict[str, float]) -> str:
    return number(row[column])


def report_counts(opt) -> None:
    """Print a table by word and the agreement over words, and write both."""
    root = os.path.join(opt.data_path, opt.data_name)
    if opt.output:
        output(opt.output, overwrite=opt.overwrite)

    words = WordCounts()
    for split in dict.fromkeys(opt.splits):  # each once
        for photo in read_photo_ids(root, split):
            words.add_photo(root, photo, opt.scenes)

    rows = {}
    for word, stemmed in list_words(opt.words, words, opt.least).items():
        rows[word] = words.compare(stemmed)
    if not rows:
        raise InputError(
            f"no word is shown by {opt.least} of the {words.photos:,} photos; give a smaller "
            "--least or other --words"
        )

    columns = {}
    medians = {}
    for key in COUNT_COLUMNS:
        columns[key] = np.array([row[key] for row in rows.values()])
        medians[key] = float(np.median(columns[key]))
    summary = {"words": len(rows), "photos": words.photos, "medians": medians}
    for key in ("shown", "estimated"):
        summary[key] = compare_numbers(columns["named"], columns[key])

    heading = (
        f"{words.photos:,} photos; precision: percent of the photos whose captions name it that "
        "show it; one caption: percent of the photos that show it that a single caption names"
    )
    lines = {**rows, "median": medians}
    print(render([table(heading, COUNT_COLUMNS, lines, format_count)]))
    for key in ("shown", "estimated"):
        print(
            f"{len(rows)} words, photos by captions and {COUNT_COLUMNS[key]}: rank correlation "
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
    add(
        "--splits",
        nargs="+",
        type=entities_split,
        default=["test"],
        metavar="SPLIT",
        help="splits to count together, of train, dev and test",
    )
    add(
        "--words",
        type=filename,
        metavar="FILE",
        help="count the words of a CSV file's first column (default: all head nouns)",
    )
    add(
        "--least",
        type=positive,
        default=MIN_PHOTOS,
        metavar="N",
        help="leave out words that fewer photos show",
    )
    add("--scenes", action="store_true", help="phrases with the flag of a scene count as shown")
    add("--output", type=filename, metavar="FILE.json", help="file to write the numbers to")
    add("--overwrite", action="store_true", help="replace an existing file")
    utils.run("phrases.counts", report_counts, p.parse_args(argv))


if __name__ == "__main__":
    main()
