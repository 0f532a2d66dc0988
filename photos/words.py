"""Numbers of photos for words and short phrases: is "about 60 of 1,000 photos" true for "a dog"?

    python -m photos.words photos/model --data_path data --data_name f8k_precomp --split dev test
    python -m photos.words RUN --fit                 # fit the numbers on dev, before they are judged
    python -m photos.words --data_name mine --write mine_words      # a data set to learn them from

Words and phrases of the captions of a split are asked as the page asks them, with OR and -word, and
twenty sentences. The true number is that of the photos whose captions name the text, a lower bound:
its words in a row, or all of the words of a sentence. Names that no caption has should be said to be
absent.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import csv
import glob
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
import torch
from torch import Tensor

import cli
from cli import Arguments, check, data_set, filename, split_name
from confidence.calibration import calibration_file
from data import Split, read_extractors, read_split
from evaluation.encoding import encode
from evaluation.report import number, render, table
from files import need, read_array, read_json, read_lines, save_json, save_lines
from images import import_torchvision
from losses import Embedding
from methods.volume import MAX_WORDS_PER_PHRASE, find_naming_photos, read_phrase, stem
from metrics import Sigmoid, spearman
from photos.build import refuse_misfit
from photos.encoder import PhotoEncoder
from photos.index import Index
from photos.question import add_article, is_content, read_question
from photos.searcher import GALLERY, NONE, Probabilities, Searcher, number_range, read_probabilities
from vocab import MIN_WORD_COUNT, tokenize

WORDS = 5                             # short texts of each training photo
FITTED = 2000                         # short texts that the numbers are fitted to, and half as many longer ones
FIRST = 10                            # answers that are judged
TOGETHER = 8                          # photos that name both words of a pair, at least
NAMES_OF_PEOPLE = frozenset(          # as captions call them
    "man men woman women boy boys girl girls child children person people kid kids baby toddler guy "
    "guys lady ladies teenager adult player players skateboarder biker cyclist climber surfer skier "
    "crowd family rider someone hiker swimmer".split())
COPY = "copy_of"                      # what features.json calls the data set that a copy is of
LANGUAGES = {"de": "German", "fr": "French", "es": "Spanish", "zh": "Chinese", "ja": "Japanese", "ru": "Russian"}
HERE = os.path.dirname(os.path.abspath(__file__))


def read_everyday_words() -> dict[str, list[str]]:
    """Everyday words by language, {"en": [...], "de": [...], ...}."""
    with open(os.path.join(HERE, "everyday.csv"), encoding="utf-8", newline="") as f:
        return {language: words for language, *words in zip(*csv.reader(f))}


def read_class_names() -> list[str]:
    """The names of ImageNet's 1,000 classes."""
    import_torchvision()
    from torchvision.models import ResNet18_Weights
    return ResNet18_Weights.DEFAULT.meta["categories"]


# ---- short texts, and longer ones, that captions name

def list_short_texts(words: Sequence[str]) -> set[str]:
    """List the short texts that a caption (T,) names.
    Its content words, and the last two and three of those in a row: "dog", "black dog", "young black dog"."""
    texts, run = set(), []
    for word in [*words, "."]:
        if is_content(word):
            texts.add(word)
            run.append(word)
        else:
            texts |= {" ".join(run[-n:]) for n in range(2, MAX_WORDS_PER_PHRASE + 1) if len(run) >= n}
            run = []
    return texts


def list_beginnings(words: Sequence[str]) -> list[str]:
    """List the short sentences that a caption (T,) begins with.
    They end before a function word: "a black dog runs" of "a black dog runs through the snow"."""
    return [" ".join(words[:k]) for k in range(1, len(words))
            if is_content(words[k - 1]) and not is_content(words[k]) and not read_phrase(words[:k])]


def find_showing_photos(texts: Iterable[Sequence[str]], captions: Iterable[Sequence[str]],
                        owner: np.ndarray) -> list[set[int]]:
    """Find the photos whose captions together name all content words of each text.
    captions, owner: as in `find_naming_photos`."""
    photos = defaultdict(set)
    for words, photo in zip(captions, owner.tolist()):
        for word in set(words):
            photos[stem(word)].add(photo)
    named = ([photos[stem(word)] for word in words if is_content(word)] for words in texts)
    return [set.intersection(*of_words) if of_words else set() for of_words in named]


# ---- what a model learns from

def copy_data(source: str, to: str) -> None:
    """Copy the features, captions and names of a data set, and what made the features.
    Features of captions that were added to an earlier copy stay."""
    os.makedirs(to, exist_ok=True)
    save_json({**read_extractors(to), "ims": read_extractors(source).get("ims", ""), COPY: os.path.basename(source)},
              os.path.join(to, "features.json"))
    for name in os.listdir(source):
        if name.endswith(("_ims.npy", "_caps.txt", "_ids.txt", "_photos.json", "captions.tsv")):
            shutil.copyfile(os.path.join(source, name), os.path.join(to, name))


def add_words(source: str, to: str) -> None:
    """Write a data set whose training photos have WORDS short texts behind their captions, which name them.

    Half of the texts have an article. A text that n photos name is drawn with a weight of 1 / sqrt(n).
    """
    copy_data(source, to)
    path = os.path.join(to, "train_caps.txt")
    captions, photos = read_lines(path), len(read_array(os.path.join(to, "train_ims.npy"), "extract again"))
    each = len(captions) // photos
    parts = [captions[k:k + each] for k in range(0, len(captions), each)]
    texts = [sorted(set().union(*(list_short_texts(tokenize(caption)) for caption in part))) or part for part in parts]
    count = Counter(text for part in texts for text in part)
    rng, lines = np.random.default_rng(0), []
    for part, own in zip(parts, texts):
        weights = np.array([count[text] for text in own]) ** -0.5
        drawn = rng.choice(own, WORDS, replace=len(own) < WORDS, p=weights / weights.sum())
        lines += [*part, *(add_article(text) if rng.random() < 0.5 else text for text in drawn)]
    save_lines(path, lines)


# ---- the numbers

def list_usual_words(train: Split) -> list[str]:
    """The words that captions of at least MIN_WORD_COUNT photos have. Those of `add_words` change nothing."""
    of_photo = [set() for _ in range(len(train.images))]
    for words, photo in zip(train.words, train.caption_image.tolist()):
        of_photo[photo].update(words)
    count = Counter(word for words in of_photo for word in words)
    return [word for word, photos in count.most_common() if photos >= MIN_WORD_COUNT]


@torch.no_grad()
def fit_numbers(model: PhotoEncoder, train: Split, dev: Split) -> Sigmoid:
    """Fit the probability that a photo of dev fits a text: that its captions name it.
    The texts are short ones of the training captions, and beginnings and whole captions of dev. Those of dev fit their
    own photo, one of at least GALLERY, so that it counts less where dev has fewer photos. Raises InputError where the
    model learned no short text."""
    texts = sorted({text for text, words in zip(train.captions, train.words) if read_phrase(words)})
    check(texts, f"{model.path} learned no short texts, so it cannot say how many photos fit a word; train it with "
                 "python -m photos FOLDER --train RUN")
    own: dict[str, set[int]] = {}                           # photos that texts of dev were taken from
    for photo, caption, words in zip(dev.caption_image.tolist(), dev.captions, dev.words):
        for text in (caption, *list_beginnings(words)):
            own.setdefault(text, set()).add(photo)
    beginnings = sorted({text for words in dev.words for text in list_beginnings(words)})
    rng = np.random.default_rng(0)
    few = min(FITTED // 4, len(dev.captions))               # as many beginnings as captions
    samples = ((texts, FITTED), (beginnings, few), (dev.captions, few))
    texts = [text for sample, size in samples for text in rng.permutation(sample)[:size].tolist()]
    queries, images = model.captions(texts), encode(model.model, dev, None, model.device)[0]
    scores, named = model.similarity(images, queries).T.cpu(), mark_naming_photos(texts, [dev])           # (Q, N)
    count = torch.ones(scores.shape)
    for row, text in enumerate(texts):
        count[row, list(own.get(text, ()))] = min(1.0, len(dev.images) / GALLERY)
    v = None if queries.log_var is None else queries.log_var.mean(1, keepdim=True).cpu().expand_as(scores).flatten()
    return Sigmoid.fit(scores.flatten(), named.flatten(), count.flatten(), v)


def mark_naming_photos(texts: list[str], splits: list[Split]) -> Tensor:
    """Mask (Q, N) of the photos whose captions name a text.
    The words of a short text in a row, all words of a longer one. The photos of all splits stand side by side."""
    words = [tokenize(text) for text in texts]
    phrases, tables = [*map(read_phrase, words)], []
    for split in splits:
        naming = find_naming_photos(filter(None, phrases), split.words, split.caption_image)
        showing = find_showing_photos(words, split.words, split.caption_image)
        tables.append(torch.zeros(len(texts), len(split.images), dtype=torch.bool))
        for row, phrase in enumerate(phrases):
            tables[-1][row, list(naming[phrase] if phrase else showing[row])] = True
    return torch.cat(tables, 1)


def list_questions(splits: list[Split], names: list[str]) -> Iterator[tuple[str, list[str], Tensor | None]]:
    """Yield groups of texts to ask: title, texts (Q,), and mask (Q, N) of the photos that name them.

    names: of things; those that no caption has are a group of their own, without a mask.
    """
    count: Counter = Counter(text for split in splits for words in split.words for text in list_short_texts(words))
    usual = {read_phrase(text.split()): text for text, _ in reversed(count.most_common())}            # form of a phrase
    texts, words = [*usual.values()], read_everyday_words()
    named = mark_naming_photos(texts, splits)                                             # (Q, N)
    true, one = named.sum(1).numpy(), np.array([len(phrase) == 1 for phrase in usual])
    everyday = np.isin(texts, [usual.get(read_phrase([word])) for word in words["en"]]) & (true > 0)
    groups = {f"{len(words['en'])} everyday words": everyday & one,
              "words of 3 to 9 photos": one & (3 <= true) & (true < 10),
              "words of 10 to 29 photos": one & (10 <= true) & (true < 30),
              "words of 30 photos and more": one & (30 <= true), "phrases of 3 photos and more": ~one & (3 <= true)}
    for title, chosen in groups.items():
        yield title, [texts[row] for row in np.flatnonzero(chosen)], named[chosen]
    shown = mark_naming_photos(words["en"], splits)
    for language, name in LANGUAGES.items() if shown.any(1).all() else ():
        yield f"{len(shown)} everyday words, in {name}", words[language], shown
    yield from list_pairs(words["en"], shown, mark_people(splits))
    sentences = read_lines(os.path.join(HERE, "ordinary.txt"))
    shown = mark_naming_photos(sentences, splits)
    known = shown.any(1)
    yield f"{len(sentences)} ordinary sentences", [*compress(sentences, known)], shown[known]
    names = [name for name in names if read_phrase(tokenize(name))]
    absent = ~mark_naming_photos(names, splits).any(1)
    yield "names that no caption has", [*compress(names, absent)], None


def list_pairs(words: list[str], named: Tensor,
               people: Tensor) -> Iterator[tuple[str, list[str], Tensor]]:
    """Yield questions with OR and with -word, of words that photos name together and alone.

    named (Q, N): the photos that name each word; people (N,): those that name a person.
    """
    with_or, with_minus, with_people = [], [], []
    for word, photos in zip(words, named):
        for other, other_photos in zip(words, named):
            if word < other and min(photos.sum(), other_photos.sum()) >= TOGETHER:
                with_or.append((f"{word} OR {other}", photos | other_photos))
            if is_told_apart(photos, other_photos):
                with_minus.append((f"{word} -{other}", photos & ~other_photos))
        if is_told_apart(photos, people):
            with_people.append((f"{word} -people", photos & ~people))
    if people.any():
        yield "people", ["people"], people[None]
    for title, pairs in (("words joined by OR", with_or), ("words with -word", with_minus),
                         ("words with -people", with_people)):
        if not pairs:
            continue
        texts, masks = zip(*pairs)
        yield title, [*texts], torch.stack(masks)
        if pairs is not with_or:
            yield f"{title}, left out", [text.split(" -")[0] for text in texts], torch.stack(masks)


def is_told_apart(photos: Tensor, others: Tensor) -> bool:
    """True if enough photos (N,) are among the others, and enough are not."""
    return bool((photos & others).sum() >= TOGETHER and (photos & ~others).sum() >= FIRST)


def mark_people(splits: list[Split]) -> Tensor:
    """Mask (N,) of the photos that a caption says to show a person."""
    masks = []
    for split in splits:
        masks.append(torch.zeros(len(split.images), dtype=torch.bool))
        for words, photo in zip(split.words, split.caption_image.tolist()):
            if not NAMES_OF_PEOPLE.isdisjoint(words):
                masks[-1][photo] = True
    return torch.cat(masks)


class GivenPhotos(Searcher):
    """A searcher of photos whose embeddings are at hand, and which have no files."""

    def __init__(self, encoder: PhotoEncoder, probabilities: Probabilities, photos: Embedding):
        self.encoder, self.similarity = encoder, encoder.similarity
        self.known_words = encoder.vocab.index
        self.probabilities = probabilities
        self.index = Index("", {"milvus": []}, [], photos.to("cpu"))
        self.count, self.rows_of_word = len(photos.mean), {}


def judge(model: PhotoEncoder, probabilities: Probabilities, splits: list[Split], names: list[str]) -> dict[str, dict]:
    """Judge the numbers said for what the captions of splits name, and for names that none has.

    Returns {group: {"texts": how many, "true", "said": medians, "rho", "factor": median of the
    larger over the smaller, "held": share of the true numbers in the range that is said, "first":
    share of the first ten that is right, "absent": share said to be absent}}.
    """
    photos = Embedding.cat([encode(model.model, split, None, model.device)[0] for split in splits])
    searcher = GivenPhotos(model, probabilities, photos)
    results = {}
    for title, texts, named in list_questions(splits, names):
        if not texts:
            continue
        questions = [read_question(text) for text in texts]
        rankings = [searcher.rank_by_probability(question.wanted, question.unwanted)
                    for question in questions]
        said = np.array([ranking.fits.sum().item() for ranking in rankings])
        results[title] = {"texts": len(texts), "said": float(np.median(said)), "absent": float((said < NONE).mean())}
        if named is not None:
            true = named.sum(1).numpy()
            most = min(FIRST, searcher.count)
            first = torch.stack([ranking.order.topk(most).indices for ranking in rankings])
            ratio = np.maximum(said, 0.1) / true
            low, high = zip(*(number_range(number, searcher.count) for number in said.tolist()))
            results[title] |= {"true": float(np.median(true)),
                               "factor": float(np.median(np.maximum(ratio, 1 / ratio))),
                               "held": float(((np.floor(low) <= true) & (true <= np.array(high))).mean()),
                               "first": float(named.gather(1, first).double().mean())}
            if len(texts) > 1:
                results[title]["rho"] = spearman(said, true)
    return results


COLUMNS = {"texts": "texts", "true": "true", "said": "said", "rho": "rho", "factor": "factor",
           "held": "in range, %", "first": "first 10 right, %", "absent": "said absent, %"}


def cell(key: str, numbers: dict[str, float]) -> str:
    if key in ("held", "first", "absent"):
        return number(100 * numbers[key], 0) if key in numbers else ""
    return number(numbers.get(key, ""), 2 if key in ("rho", "factor") else 1)


# ---- the command

def write_data(opt) -> None:
    """Write the data set of --write. Raises InputError where another one is there."""
    check(opt.data_name, f"--write {opt.write} copies a data set; name that with --data_name")
    check(not (opt.run or opt.fit), f"--write {opt.write} reads no run; leave RUN and --fit out")
    source, to = (os.path.join(opt.data_path or "data", name) for name in (opt.data_name, opt.write))
    need(os.path.join(source, "train_caps.txt"), "name a data set whose training split has captions")
    there = glob.glob(os.path.join(glob.escape(to), "*"))
    check(not there or read_extractors(to).get(COPY) == os.path.basename(source),
          f"{to} already exists and is no copy of {opt.data_name} by --write; give a name that is free")
    add_words(source, to)


def use_words(opt) -> None:
    """The command."""
    if opt.write:
        write_data(opt)
        return
    model = PhotoEncoder(opt.run, device=opt.device, data_path=opt.data_path)
    name, path = opt.data_name or model.options.data_name, calibration_file(model.path)
    splits = [read_split(model.data_path, name, split, dev_images=0) for split in (
        ("train", "dev") if opt.fit else opt.split)]
    if opt.fit:
        calibration = read_json(path, f"write it with python -m confidence {model.path}")
        words = [word for word in list_usual_words(splits[0]) if word not in model.vocab.index]
        numbers = fit_numbers(model, *splits)
        save_json({**calibration, "words": numbers._asdict(), "vocabulary": words}, path)
        print(f"how many photos fit a text: written to {path}")
        return
    for split in splits:
        refuse_misfit(model, split)
    probabilities = read_probabilities(model.path, model)
    check(probabilities and probabilities.words, f"{model.path} does not say how many photos fit a word; fit that with "
                                                 f"python -m photos.words {model.path} --fit")
    results = judge(model, probabilities, splits, read_class_names())
    photos = sum(len(split.images) for split in splits)
    print(render([table(f"how many of {photos:,} photos fit; true: those with a caption that names it, a lower bound",
                        COLUMNS, results, cell)]))


def main(argv=None) -> None:
    p = Arguments("Judge how many photos are said to fit words and short phrases, fit that, or write data for it.")
    p.add_argument("run", type=filename, nargs="?", metavar="RUN", help="run folder (default: photos/model)")
    p.add_argument("--fit", action="store_true", help="fit it on the dev split, into the calibration.json of the run")
    p.add_argument("--write", type=data_set, metavar="NAME", help="write a copy of --data_name with short texts behind "
                   "the captions of its training photos, and do no more")
    p.add_argument("--data_path", type=filename, help="folder of the data sets (default: that of the training)")
    p.add_argument("--data_name", type=data_set, help="data set that is asked (default: that of the training)")
    p.add_argument("--split", type=split_name, nargs="+", default=["test"], help="splits that are one gallery")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    cli.run("photos.words", use_words, p.parse_args(argv))


if __name__ == "__main__":
    main()
