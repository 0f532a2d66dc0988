"""Numbers of photos for words and short phrases: is "about 60 of 1,000 photos" true for "a dog"?

    python -m photos.words photos/model --data_path data --data_name f8k_precomp --split dev test
    python -m photos.words RUN --fit                 # fit the numbers on dev, before judging them
    python -m photos.words --data_name mine --write mine_words      # a data set to learn them from

The words and phrases of a split's captions are asked as the page asks them, with OR and -word, and
twenty sentences. The true number counts the photos whose captions name the text, a lower bound: its
words in a row, or all words of a sentence. Names that no caption has should be said to be absent.
"""

if __name__ == "__main__":
    import utils

    utils.start()

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

import utils
from confidence.calibration import calibration_file
from data import Split, is_even, read_extractors, read_precomputed, read_split
from evaluation.report import number, render, table
from images import import_torchvision
from losses import Embedding
from methods.volume import MAX_WORDS_PER_PHRASE, find_naming_photos, read_phrase, stem
from metrics import Sigmoid, spearman
from model import encode
from photos.build import refuse_misfit
from photos.encoder import PhotoEncoder
from photos.index import Index
from photos.question import add_article, is_content, read_question, reads_any_word
from photos.searcher import (
    MIN_EXPECTED,
    MIN_FITTED_PHOTOS,
    Probabilities,
    Searcher,
    copy_to_cpu,
    number_known_words,
    number_range,
    read_probabilities,
)
from utils import (
    Arguments,
    InputError,
    data_set,
    filename,
    need,
    read_json,
    read_lines,
    save_array,
    save_json,
    save_lines,
    split_name,
)
from vocab import MIN_WORD_COUNT, tokenize

SHORT_TEXTS_PER_PHOTO = 5  # behind the captions of a training photo
FITTED_TEXTS = 2000  # short texts that the numbers are fitted to, and half as many longer ones
JUDGED_ANSWERS = 10  # the first ones
MIN_COMMON_PHOTOS = 8  # that name both words of a pair
LEAST_SAID = 0.1  # photos; smaller numbers count as this many in a factor
NAMES_OF_PEOPLE = frozenset(  # as captions call them
    "man men woman women boy boys girl girls child children person people kid kids baby toddler "
    "guy guys lady ladies teenager adult player players skateboarder biker cyclist climber surfer "
    "skier crowd family rider someone hiker swimmer".split()
)
COPY_KEY = "copy_of"  # of features.json: the data set that a copy is of
COPIED_ENDINGS = (
    "_ims.npy",
    "_caps.txt",
    "_caption_image.npy",
    "_num_boxes.npy",
    "_ids.txt",
    "_photos.json",
    "captions.tsv",
)
LANGUAGES = {
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "zh": "Chinese",
    "ja": "Japanese",
    "ru": "Russian",
}
EVERYDAY_WORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "everyday.csv")
ORDINARY_SENTENCES = os.path.join(os.path.dirname(EVERYDAY_WORDS), "ordinary.txt")


def read_everyday_words() -> dict[str, list[str]]:
    """Read everyday words by language, {"en": [...], "de": [...], ...}."""
    with open(EVERYDAY_WORDS, encoding="utf-8", newline="") as f:
        columns = zip(*csv.reader(f))
        return {language: words for language, *words in columns}


def read_class_names() -> list[str]:
    """The names of ImageNet's 1,000 classes."""
    import_torchvision()
    from torchvision.models import ResNet18_Weights

    return ResNet18_Weights.DEFAULT.meta["categories"]


# ---- short texts, and longer ones, that captions name


def list_short_texts(words: Sequence[str]) -> set[str]:
    """List the short texts that a caption (T,) names.

    Its content words, and the last two and three of those in a row: "dog", "black dog", "young
    black dog".
    """
    texts = set()
    run = []  # content words in a row
    for word in [*words, "."]:
        if is_content(word):
            texts.add(word)
            run.append(word)
            continue
        for n in range(2, MAX_WORDS_PER_PHRASE + 1):
            if len(run) >= n:
                texts.add(" ".join(run[-n:]))
        run = []
    return texts


def list_beginnings(words: Sequence[str]) -> list[str]:
    """List the short sentences that a caption (T,) begins with.

    They end before a function word: "a black dog runs" of "a black dog runs through the snow".
    """
    beginnings = []
    for k in range(1, len(words)):
        ends_here = is_content(words[k - 1]) and not is_content(words[k])
        if ends_here and not read_phrase(words[:k]):
            beginnings.append(" ".join(words[:k]))
    return beginnings


def find_showing_photos(
    texts: Iterable[Sequence[str]], captions: Iterable[Sequence[str]], owner: np.ndarray
) -> list[set[int]]:
    """Find the photos whose captions together name all content words of each text.

    captions, owner: as in `find_naming_photos`.
    """
    photos = defaultdict(set)  # {stem: photos}
    for words, photo in zip(captions, owner.tolist()):
        for word in set(words):
            photos[stem(word)].add(photo)

    showing = []
    for words in texts:
        by_word = [photos[stem(word)] for word in words if is_content(word)]
        showing.append(set.intersection(*by_word) if by_word else set())
    return showing


# ---- what a model learns from


def copy_data(source: str, to: str) -> None:
    """Copy the features, captions and names of a data set, and what made the features.

    Features of captions that were added to an earlier copy stay. Numbers of captions and regions
    that the data set no longer says are removed from it.
    """
    os.makedirs(to, exist_ok=True)
    for name in os.listdir(to):
        said = os.path.exists(os.path.join(source, name))
        if name.endswith(("_caption_image.npy", "_num_boxes.npy")) and not said:
            os.remove(os.path.join(to, name))
    extractor = read_extractors(source).get("ims", "")
    facts = {**read_extractors(to), "ims": extractor, COPY_KEY: os.path.basename(source)}
    save_json(facts, os.path.join(to, "features.json"))
    for name in os.listdir(source):
        if name.endswith(COPIED_ENDINGS):
            shutil.copyfile(os.path.join(source, name), os.path.join(to, name))


def keep_row_per_photo(to: str, train: Split) -> None:
    """Give features and ids of a copy that have a row for each caption one for each photo.

    train: its training split, which gets more captions.
    """
    step = train.images.step
    if step > 1:
        save_array(os.path.join(to, "train_ims.npy"), np.array(train.images.array[::step]))
    if step > 1 and train.images.counts is not None:
        counts = np.array(train.images.counts[::step])
        save_array(os.path.join(to, "train_num_boxes.npy"), counts)

    ids_file = os.path.join(to, "train_ids.txt")
    if os.path.exists(ids_file):
        names = train.photo_names or train.image_ids
        if names:
            save_lines(ids_file, [str(name) for name in names])
        else:
            os.remove(ids_file)


def add_words(source: str, to: str) -> None:
    """Write a data set whose training photos have short texts behind the captions that name them.

    Half of the texts have an article. A text that n photos name is drawn with a weight of
    1 / sqrt(n).
    """
    copy_data(source, to)
    train = read_precomputed(to, "train")
    keep_row_per_photo(to, train)
    parts = [[] for _ in range(len(train.images))]  # the captions of each photo
    for caption, photo in zip(train.captions, train.caption_image.tolist()):
        parts[photo].append(caption)

    texts = []  # of each photo
    for part in parts:
        named = set()
        for caption in part:
            named |= list_short_texts(tokenize(caption))
        texts.append(sorted(named) or part)
    count = Counter()  # photos that name a text
    for named in texts:
        count.update(named)

    rng = np.random.default_rng(0)
    lines = []
    owner = []  # the photo of each line
    for photo, (part, named) in enumerate(zip(parts, texts)):
        if not part:
            continue
        lines += part
        weights = np.array([count[text] for text in named]) ** -0.5
        share = weights / weights.sum()
        repeats = len(named) < SHORT_TEXTS_PER_PHOTO
        for text in rng.choice(named, SHORT_TEXTS_PER_PHOTO, replace=repeats, p=share):
            if rng.random() < 0.5:
                text = add_article(text)
            lines.append(text)
        owner += [photo] * (len(lines) - len(owner))
    save_lines(os.path.join(to, "train_caps.txt"), lines)
    owner_file = os.path.join(to, "train_caption_image.npy")
    if not is_even(np.array(owner), len(parts)):
        save_array(owner_file, np.array(owner))
    elif os.path.exists(owner_file):
        os.remove(owner_file)


# ---- the numbers


def list_usual_words(train: Split) -> list[str]:
    """List the words in the captions of at least MIN_WORD_COUNT photos; `add_words` adds none."""
    of_photo = [set() for _ in range(len(train.images))]
    for words, photo in zip(train.words, train.caption_image.tolist()):
        of_photo[photo].update(words)
    count = Counter()
    for words in of_photo:
        count.update(words)
    return [word for word, photos in count.most_common() if photos >= MIN_WORD_COUNT]


@torch.no_grad()
def fit_numbers(model: PhotoEncoder, train: Split, dev: Split) -> Sigmoid:
    """Fit the probability that a photo of dev fits a text: that its captions name it.

    The texts are short ones of the training captions, and beginnings and whole captions of dev.
    Those of dev fit their own photo, one of at least MIN_FITTED_PHOTOS, so that it counts less if
    dev has fewer photos. Raises InputError if the model learned no short text.
    """
    short = {text for text, words in zip(train.captions, train.words) if read_phrase(words)}
    if not short:
        raise InputError(
            f"{model.path} learned no short texts, so it cannot say how many photos fit a word; "
            "train it with python -m photos FOLDER --train RUN"
        )

    beginnings = set()
    origin: dict[str, set[int]] = defaultdict(set)  # the photos that texts of dev were taken from
    for photo, caption, words in zip(dev.caption_image.tolist(), dev.captions, dev.words):
        origin[caption].add(photo)
        for text in list_beginnings(words):
            beginnings.add(text)
            origin[text].add(photo)

    rng = np.random.default_rng(0)
    few = min(FITTED_TEXTS // 4, len(dev.captions))  # as many beginnings as captions
    samples = ((sorted(short), FITTED_TEXTS), (sorted(beginnings), few), (dev.captions, few))
    texts = []
    for sample, size in samples:
        texts += rng.permutation(sample)[:size].tolist()

    queries = model.captions(texts)
    images, _ = encode(model.model, dev, None, model.device)
    scores = model.similarity(images, queries).T.cpu()  # (Q, N)
    named = mark_naming_photos(texts, [dev])  # (Q, N)
    count = torch.ones(scores.shape)
    for row, text in enumerate(texts):
        count[row, list(origin.get(text, ()))] = min(1.0, len(dev.images) / MIN_FITTED_PHOTOS)
    log_var = None
    if queries.log_var is not None:
        log_var = queries.log_var.mean(1, keepdim=True).cpu().expand_as(scores).flatten()
    return Sigmoid.fit(scores.flatten(), named.flatten(), count.flatten(), log_var)


def mark_naming_photos(texts: list[str], splits: list[Split]) -> Tensor:
    """Mask (Q, N) of the photos whose captions name a text, of all splits in a row.

    They name the words of a short text in a row, and all words of a longer one.
    """
    words = [tokenize(text) for text in texts]
    phrases = [read_phrase(text) for text in words]
    short = [phrase for phrase in phrases if phrase]
    masks = []
    for split in splits:
        naming = find_naming_photos(short, split.words, split.caption_image)
        showing = find_showing_photos(words, split.words, split.caption_image)
        mask = torch.zeros(len(texts), len(split.images), dtype=torch.bool)
        for row, phrase in enumerate(phrases):
            photos = naming[phrase] if phrase else showing[row]
            mask[row, list(photos)] = True
        masks.append(mask)
    return torch.cat(masks, 1)


# ---- the questions

Group = tuple[str, list[str], Tensor | None]  # title, texts (Q,), mask (Q, N) of photos


def list_questions(splits: list[Split], names: list[str]) -> Iterator[Group]:
    """Yield groups of texts to ask, with masks of the photos that name them.

    names: of things; those that no caption has are a group of their own, without a mask.
    """
    everyday = read_everyday_words()
    yield from list_words_and_phrases(splits, everyday["en"])

    named = mark_naming_photos(everyday["en"], splits)
    if named.any(1).all():
        for language, name in LANGUAGES.items():
            yield f"{len(named)} everyday words, in {name}", everyday[language], named
    yield from list_pairs(everyday["en"], named, mark_people(splits))

    sentences = read_lines(ORDINARY_SENTENCES)
    named = mark_naming_photos(sentences, splits)
    known = named.any(1)
    yield f"{len(sentences)} ordinary sentences", [*compress(sentences, known)], named[known]

    names = [name for name in names if read_phrase(tokenize(name))]
    absent = ~mark_naming_photos(names, splits).any(1)
    yield "names that no caption has", [*compress(names, absent)], None


def list_words_and_phrases(splits: list[Split], everyday: list[str]) -> Iterator[Group]:
    """Yield the everyday words among the short texts of captions, and all of these by frequency."""
    count = Counter()
    for split in splits:
        for words in split.words:
            count.update(list_short_texts(words))
    usual = {}  # {phrase: its most frequent form}
    for text, _ in reversed(count.most_common()):
        usual[read_phrase(text.split())] = text

    texts = [*usual.values()]
    named = mark_naming_photos(texts, splits)  # (Q, N)
    true = named.sum(1).numpy()  # (Q,)
    is_word = np.array([len(phrase) == 1 for phrase in usual])
    forms = [usual.get(read_phrase([word])) for word in everyday]
    is_everyday = np.isin(texts, forms) & (true > 0)
    groups = {
        f"{len(everyday)} everyday words": is_everyday & is_word,
        "words of 3 to 9 photos": is_word & (3 <= true) & (true < 10),
        "words of 10 to 29 photos": is_word & (10 <= true) & (true < 30),
        "words of 30 photos and more": is_word & (30 <= true),
        "phrases of 3 photos and more": ~is_word & (3 <= true),
    }
    for title, chosen in groups.items():
        yield title, [*compress(texts, chosen)], named[chosen]


def list_pairs(words: list[str], named: Tensor, people: Tensor) -> Iterator[Group]:
    """Yield questions with OR and with -word, of words that photos name together and alone.

    named (Q, N): the photos that name each word; people (N,): those that name a person.
    """
    with_or = []
    with_minus = []
    with_people = []
    for word, photos in zip(words, named):
        for other, other_photos in zip(words, named):
            if word < other and min(photos.sum(), other_photos.sum()) >= MIN_COMMON_PHOTOS:
                with_or.append((f"{word} OR {other}", photos | other_photos))
            if is_told_apart(photos, other_photos):
                with_minus.append((f"{word} -{other}", photos & ~other_photos))
        if is_told_apart(photos, people):
            with_people.append((f"{word} -people", photos & ~people))

    if people.any():
        yield "people", ["people"], people[None]
    if with_or:
        yield "words joined by OR", *split_pairs(with_or)
    for title, pairs in (("words with -word", with_minus), ("words with -people", with_people)):
        if pairs:
            texts, masks = split_pairs(pairs)
            yield title, texts, masks
            yield f"{title}, left out", [text.split(" -")[0] for text in texts], masks


def split_pairs(pairs: list[tuple[str, Tensor]]) -> tuple[list[str], Tensor]:
    """Texts and masks (N,) as texts (Q,) and a mask (Q, N)."""
    return [text for text, _ in pairs], torch.stack([mask for _, mask in pairs])


def is_told_apart(photos: Tensor, others: Tensor) -> bool:
    """True if enough photos (N,) are among the others, and enough are not."""
    together = (photos & others).sum()
    alone = (photos & ~others).sum()
    return bool(together >= MIN_COMMON_PHOTOS and alone >= JUDGED_ANSWERS)


def mark_people(splits: list[Split]) -> Tensor:
    """Mask (N,) of the photos that a caption says to show a person."""
    masks = []
    for split in splits:
        mask = torch.zeros(len(split.images), dtype=torch.bool)
        for words, photo in zip(split.words, split.caption_image.tolist()):
            if not NAMES_OF_PEOPLE.isdisjoint(words):
                mask[photo] = True
        masks.append(mask)
    return torch.cat(masks)


# ---- how true the numbers are


class GivenPhotos(Searcher):
    """A searcher of photos whose embeddings are given, and which have no files."""

    def __init__(self, encoder: PhotoEncoder, probabilities: Probabilities, photos: Embedding):
        self.encoder = encoder
        self.similarity = copy_to_cpu(encoder.similarity)
        self.known_words = number_known_words(encoder, probabilities)
        self.probabilities = probabilities
        self.index = Index("", {"milvus": []}, [], photos.to("cpu"))
        self.count = len(photos.mean)
        self.rows_of_word = {}


def judge(
    model: PhotoEncoder, probabilities: Probabilities, splits: list[Split], names: list[str]
) -> dict[str, dict]:
    """Judge the numbers said for what the captions of splits name, and for names that none has.

    Returns {group: {"texts": how many, "true", "said": medians, "rho", "factor": median of the
    larger over the smaller, "held": share of the true numbers in the range that is said, "first":
    share of the first ten that is right, "absent": share said to be absent}}.
    """
    photos = Embedding.cat([encode(model.model, split, None, model.device)[0] for split in splits])
    searcher = GivenPhotos(model, probabilities, photos)
    needs_words = not model.options.text_features and not reads_any_word(model)
    results = {}
    for title, texts, named in list_questions(splits, names):
        if needs_words:
            known = [bool({*tokenize(text)} & model.vocab.index.keys()) for text in texts]
            texts = [*compress(texts, known)]
            if named is not None:
                named = named[torch.tensor(known, dtype=torch.bool)]
        if not texts:
            continue

        said = []
        first = []
        for text in texts:
            question = read_question(text)
            ranking = searcher.rank_by_probability(question.wanted, question.unwanted)
            said.append(ranking.fits.sum().item())
            first.append(ranking.order.topk(min(JUDGED_ANSWERS, searcher.count)).indices)
        said = np.array(said)  # (Q,)
        results[title] = {
            "texts": len(texts),
            "said": float(np.median(said)),
            "absent": float((said < MIN_EXPECTED).mean()),
        }
        if named is not None:
            results[title] |= compare_numbers(said, named, torch.stack(first))
    return results


def compare_numbers(said: np.ndarray, named: Tensor, first: Tensor) -> dict[str, float]:
    """Compare numbers (Q,) and the first photos (Q, 10) of texts with those of `named` (Q, N)."""
    true = named.sum(1).numpy()  # (Q,)
    ratio = np.maximum(said, LEAST_SAID) / true
    ranges = np.array([number_range(x, named.shape[1]) for x in said.tolist()])  # (Q, 2)
    held = (np.floor(ranges[:, 0]) <= true) & (true <= ranges[:, 1])
    result = {
        "true": float(np.median(true)),
        "factor": float(np.median(np.maximum(ratio, 1 / ratio))),
        "held": float(held.mean()),
        "first": float(named.gather(1, first).double().mean()),
    }
    if len(said) > 1:
        result["rho"] = spearman(said, true)
    return result


WORD_NUMBER_COLUMNS = {
    "texts": "texts",
    "true": "true",
    "said": "said",
    "rho": "rho",
    "factor": "factor",
    "held": "in range, %",
    "first": "first 10 right, %",
    "absent": "said absent, %",
}


def write_cell(key: str, numbers: dict[str, float]) -> str:
    """A number of a group as a cell of the table; "" where it has none."""
    if key not in numbers:
        return ""
    if key in ("held", "first", "absent"):
        return number(100 * numbers[key], 0)
    digits = 2 if key in ("rho", "factor") else 1
    return number(numbers[key], digits)


# ---- the command


def write_data(opt) -> None:
    """Write the data set of --write. Raises InputError if another one has its name."""
    if not opt.data_name:
        raise InputError(f"--write {opt.write} copies a data set; name that with --data_name")
    if opt.run or opt.fit:
        raise InputError(f"--write {opt.write} reads no run; leave RUN and --fit out")

    data_path = opt.data_path or "data"
    source = os.path.join(data_path, opt.data_name)
    to = os.path.join(data_path, opt.write)
    captions = os.path.join(source, "train_caps.txt")
    need(captions, "name a data set whose training split has captions")
    is_copy = read_extractors(to).get(COPY_KEY) == os.path.basename(source)
    if glob.glob(os.path.join(glob.escape(to), "*")) and not is_copy:
        raise InputError(
            f"{to} already exists and is not a copy of {opt.data_name} by --write; give a name "
            "that is free"
        )
    add_words(source, to)


def fit_run(model: PhotoEncoder, name: str) -> None:
    """Fit the numbers of a run to a data set, and write them to its calibration.json."""
    train, dev = [
        read_split(model.data_path, name, split, dev_images=0) for split in ("train", "dev")
    ]
    for split in (train, dev):
        refuse_misfit(model, split)
    path = calibration_file(model.path)
    calibration = read_json(path, f"write it with python -m confidence {model.path}")
    words = [word for word in list_usual_words(train) if word not in model.vocab.index]
    numbers = fit_numbers(model, train, dev)
    save_json({**calibration, "words": numbers._asdict(), "vocabulary": words}, path)
    print(f"how many photos fit a text: written to {path}")


def judge_run(model: PhotoEncoder, name: str, split_names: list[str]) -> None:
    """Judge the numbers of a run on splits of a data set, and print a table."""
    splits = [read_split(model.data_path, name, split, dev_images=0) for split in split_names]
    for split in splits:
        refuse_misfit(model, split)
    probabilities = read_probabilities(model.path, model)
    if not probabilities or not probabilities.words:
        raise InputError(
            f"{model.path} does not say how many photos fit a word; fit that with python -m "
            f"photos.words {model.path} --fit"
        )
    results = judge(model, probabilities, splits, read_class_names())
    photos = sum(len(split.images) for split in splits)
    title = (
        f"how many of {photos:,} photos fit; true: those with a caption that names it, a lower "
        "bound"
    )
    print(render([table(title, WORD_NUMBER_COLUMNS, results, write_cell)]))


def use_words(opt) -> None:
    """The command."""
    if opt.write:
        write_data(opt)
        return
    model = PhotoEncoder(opt.run, device=opt.device, data_path=opt.data_path)
    name = opt.data_name or model.options.data_name
    if opt.fit:
        fit_run(model, name)
    else:
        judge_run(model, name, opt.split)


def main(argv=None) -> None:
    p = Arguments(
        "Judge how many photos are said to fit words and short phrases, fit that, or write data "
        "for it."
    )
    add = p.add_argument
    add(
        "run",
        type=filename,
        nargs="?",
        metavar="RUN",
        help="run folder (default: photos/model)",
    )
    add(
        "--fit",
        action="store_true",
        help="fit it on the dev split, into the calibration.json of the run",
    )
    add(
        "--write",
        type=data_set,
        metavar="NAME",
        help="only write a copy of --data_name with short texts added after the captions of its "
        "training photos",
    )
    add(
        "--data_path",
        type=filename,
        help="folder of the data sets (default: that of the training)",
    )
    add("--data_name", type=data_set, help="data set to ask about (default: that of the training)")
    add(
        "--split",
        type=split_name,
        nargs="+",
        default=["test"],
        help="splits that are one gallery",
    )
    utils.add_device(p)
    utils.run("photos.words", use_words, p.parse_args(argv))


if __name__ == "__main__":
    main()
