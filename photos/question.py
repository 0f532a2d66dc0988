"""Questions as people type them: alternatives, unwanted things, unknown words, names of files."""

import os
import re
import unicodedata
from typing import NamedTuple

from data import compose_name
from methods.volume import ARTICLES, MAX_WORDS_PER_PHRASE, strip_phrase
from photos.encoder import PhotoEncoder
from utils import InputError
from vocab import FUNCTION_WORDS, tokenize

# -word, also with the dashes that phones type.
MINUS = re.compile(r"(?:^|(?<=\s))[-\u2212\u2013](?=[^\W\d_])([^\s]+)")
NEGATION = re.compile(
    r"\b(?:no|not|without|except|excluding)\s+(?:(?:a|an|any|the)\s+)?([^\W\d_]+)", re.IGNORECASE
)
OR = re.compile(r"(?:^|\s+)OR(?:\s+|$)|\s*\|+\s*")
SMALL_OR = re.compile(r"\s+or\s+")
# "photos of", "show me pictures with", "there is", "my": what people say before what they look for.
LEAD = re.compile(
    r"^(?:(?:(?:show|find|search)(?: me)?(?: for)? )?(?:(?:an?|the|all|any|my|some) )?"
    r"(?:photo|picture|image|pic)s? (?:of|with|showing) "
    r"|there (?:is|are) )?(?:(?:all|any|my|some) )?",
    re.IGNORECASE,
)

WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b")
NAME_WORD = re.compile(r"[^\W_]+")  # of the name of a file
WORD_AND_NUMBER = re.compile(r"([^\W\d_]+)(\d+)|(\d+)([^\W\d_]+)")  # Bild220, 2019summer
YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?=(?:[01]\d[0-3]\d)?(?!\d))")  # also of 20190714

PLURALS = (("s", ""), ("es", ""), ("ies", "y"))  # an ending, and what replaces it
INFLECTIONS = (*PLURALS, ("ed", ""), ("ed", "e"), ("ing", ""), ("ing", "e"))
IRREGULAR_PLURALS = {"men": "man", "women": "woman", "children": "child"}
NUMBER_WORDS = frozenset("one two three four five six seven eight nine ten many several".split())
NO_CONTENT = FUNCTION_WORDS | {"photo", "picture", "image", "can", "seen"}

# Captions say "a man" where anybody would look for people.
PEOPLE_WORDS = frozenset(
    "people person persons human humans somebody someone anybody anyone".split()
)
KINDS_OF_PEOPLE = ("a man", "a woman", "a boy", "a girl", "a child", "a person", "people")

# What nobody can see in a photo, and how to find it all the same.
DATES = re.compile(
    r"\b(?:(?:last|this|next) (?:week|month|year|weekend|night|spring|summer|autumn|fall"
    r"|winter)|yesterday|today|ago|(?:jan|febr)uary|april|june|july|august"
    r"|(?:sept|nov|dec)ember|october|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b",
    re.IGNORECASE,
)
TEXTS_AND_NAMES = re.compile(
    r"\b(?:(?:that|which) (?:says|reads)|saying|the (?:words?|text)|named|called)\b",
    re.IGNORECASE,
)
UNSEEN = {
    DATES: "the model does not see when a photo was taken; a year, as in 'beach 2019', finds "
    "photos by their names and their EXIF data",
    TEXTS_AND_NAMES: "the model reads no text in photos and knows nobody's name; the names of "
    "folders and files are searched",
}

QUOTED_WORDS = 10  # of a note
MIN_NAME_CHARACTERS = 3  # of a word that finds photos by name when it is the whole question
MIN_NAME_CHARACTERS_IN_TEXT = 4  # when there are other words


class Question(NamedTuple):
    """What a text asks for: photos that show one of `wanted`, and nothing of `unwanted`."""

    wanted: list[str]
    unwanted: list[str]
    notes: list[str]  # sentences for whoever asked


# ---- what is wanted and what is not


def read_question(text: str) -> Question:
    """Read "dog OR cat -beach". Raises InputError for a question that asks for nothing."""
    text = compose_name(text).strip()
    if not text:
        raise InputError("an empty question finds nothing; describe a photo in a few words")

    unwanted = [word.rstrip(".,;!?") for word in MINUS.findall(text)]
    rest = " ".join(MINUS.sub(" ", text).split())
    wanted = split_alternatives(rest)
    if unwanted and not wanted:
        raise InputError(
            f"'{text:.80}' says only what is not wanted; say what is, as in 'dog -beach'"
        )
    if not wanted:
        raise InputError(f"'{text:.80}' has no words around OR; write 'dog OR cat'")

    notes = []
    negation = NEGATION.search(rest)
    if negation:
        notes.append(
            f"'{negation[0]}' does not leave them out, because the model ignores such words; "
            f"write -{negation[1]}"
        )
    return Question(wanted, unwanted, notes)


def split_alternatives(text: str) -> list[str]:
    """Split at OR and |, and at "or" between words and short phrases."""
    parts = [part for part in OR.split(text) if part.strip()]
    if len(parts) > 1:
        return parts

    short = SMALL_OR.split(text)
    if len(short) > 1 and all(strip_phrase(tokenize(part)) for part in short):
        return short
    return parts


# ---- the words of a text


def is_content(word: str) -> bool:
    return bool(re.fullmatch("[a-z]{2,}(-[a-z]+)*", word)) and word not in NO_CONTENT


def add_article(text: str) -> str:
    article = "an" if text[0].lower() in "aeiou" else "a"
    return f"{article} {text}"


def is_known(word: str, index: dict[str, int]) -> bool:
    """True if a word or a form of it is in a vocabulary, {word: number}."""
    word = word.lower()
    if word in index:
        return True
    for ending, rest in INFLECTIONS:
        stem = word.removesuffix(ending) + rest
        if word.endswith(ending) and len(stem) > 2 and stem in index:
            return True

    parts = word.split("-")
    if len(parts) > 1:
        return all(is_known(part, index) for part in parts)
    return len(word) > 2 and not word.endswith("s") and f"{word}s" in index


def list_words(text: str) -> list[str]:
    """List the words of a text, without signs: "l'eau" has two, "the man's hat" three."""
    return WORD.findall(POSSESSIVE.sub("", text))


def find_content_words(texts: list[str]) -> set[str]:
    """Find the words of texts that name things, in lower case."""
    words = [word.lower() for word in list_words(" ".join(texts))]
    return {word for word in words if is_content(word)}


def find_singular(word: str, index: dict[str, int]) -> str:
    """Find the singular of a noun, if it is more frequent in a vocabulary: not of shorts."""
    if word in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[word]
    if word.endswith("ss"):
        return word
    for ending, rest in PLURALS:
        stem = word.removesuffix(ending) + rest
        if word.endswith(ending) and index.get(stem, len(index)) < index.get(word, 0):
            return stem
    return word


def strip_lead(text: str) -> str:
    """The thing that a text asks for: "a dog" of "show me photos of a dog"."""
    return LEAD.sub("", text)


def list_forms(text: str, index: dict[str, int]) -> tuple[list[str], list[str]]:
    """Write a text as the captions of a training write it.

    index: the vocabulary of the training, the most frequent words first. Returns texts that rank
    the photos, and texts that tell how many fit. A noun gets an article, and for the number its
    singular: the numbers were fitted to short texts, and these forms give the most accurate ones
    (docs/search.md).
    """
    if not all(is_known(word, index) for word in list_words(text)):
        return [text], [text]

    text = text.lower()
    words = [word for word in tokenize(text) if word != "."]
    if words and words[0] in ARTICLES:
        words = words[1:]
    if len(words) == 1 and words[0] in PEOPLE_WORDS:
        return [*KINDS_OF_PEOPLE], [*KINDS_OF_PEOPLE]

    is_short = 0 < len(words) <= MAX_WORDS_PER_PHRASE
    if not is_short or words[0] in NUMBER_WORDS or not all(is_content(word) for word in words):
        return [text], [text]

    *before, noun = words
    singular = find_singular(noun, index)
    one = add_article(" ".join([*before, singular]))
    if singular == noun:
        return [one], [one]
    return [" ".join(words)], [one]


def reads_any_word(encoder: PhotoEncoder) -> bool:
    """True for a model that reads the characters or pieces of words, and needs to know none."""
    return hasattr(encoder.vocab, "trigrams") or encoder.vocab.reads_captions


def read_words(encoder: PhotoEncoder, text: str, index: dict[str, int]) -> tuple[list[str], bool]:
    """Find words of a text that the model does not know.

    index: the words of the training captions. Returns (notes, known). `known` is False if the text
    has no word, or one that is not in the training captions; then there is no number of photos.
    """
    words = list_words(text)
    if not words:
        return [f"there is no word in '{text:.80}'"], False
    if reads_any_word(encoder):
        return [], True

    if not encoder.options.text_features:
        unknown = [word for word in tokenize(text) if word not in index and not is_sign(word)]
        if not unknown:
            return [], True
        return [f"unknown words, which are left out: {quote_words(unknown)}"], True

    notes = [sentence for pattern, sentence in UNSEEN.items() if pattern.search(text)]
    unknown = [word for word in words if not is_known(word, index)]
    known = not notes and not unknown
    if unknown:
        notes.append(
            f"not in the training captions: {quote_words(unknown)}; so there is no estimate of "
            "how many photos match, and these may be unrelated"
        )

    encoded = encoder.sentence_network.tokenizer.encode(text)
    if encoded.overflowing:
        end = max(stop for _, stop in encoded.offsets)
        read = len(text[:end].split())
        notes.append(f"only the first {read:,} of {len(text.split()):,} words are read")
    return notes, known


def is_sign(word: str) -> bool:
    """True for punctuation and spaces."""
    return all(unicodedata.category(character)[0] in "PZ" for character in word)


def quote_words(words: list[str]) -> str:
    """Join the first words in quotes, each once."""
    words = [f"'{word:.40}'" for word in dict.fromkeys(words)]
    joined = ", ".join(words[:QUOTED_WORDS])
    if len(words) > QUOTED_WORDS:
        joined += ", and others"
    return joined


# ---- names of files


def list_name_words(name: str) -> set[str]:
    """List the words, numbers and years of the path of a photo."""
    name = compose_name(name).casefold()
    words = {*NAME_WORD.findall(name), *YEAR.findall(name)}
    for word in [*words]:
        match = WORD_AND_NUMBER.fullmatch(word)
        if match:
            words.update(part for part in match.groups() if part)
    return words


def find_names(text: str, index: dict[str, int], in_names) -> tuple[list[str], str]:
    """Find the words of a text that the model does not know and that the names of photos have.

    index: the vocabulary of the model. in_names: all words of names. Short words count only if a
    longer one is among them: many names have an "ein" that nobody searches for. Returns the words,
    and the text without them.
    """
    words = [*NAME_WORD.finditer(text)]
    names = []
    for word in words:
        if word[0].casefold() in in_names and not is_known(word[0], index):
            names.append(word)

    least = MIN_NAME_CHARACTERS if len(words) <= 1 else MIN_NAME_CHARACTERS_IN_TEXT
    longest = max((len(word[0]) for word in names), default=0)
    if longest < least:
        return [], text

    rest = text
    for word in reversed(names):
        rest = rest[: word.start()] + rest[word.end() :]
    return [word[0].casefold() for word in names], " ".join(rest.split())


def find_rows_by_name(text: str, names: list[str]) -> list[int]:
    """Find the photos whose path or file name a text is.

    The ending may be omitted only if the name has a digit (IMG_1234).
    """
    text = compose_name(text).strip().casefold()
    if not re.search(r"\.\w{2,5}$|\d", text):
        return []

    rows = []
    for row, name in enumerate(names):
        path = compose_name(name).casefold()
        file = path.rsplit("/", 1)[-1]
        stem = os.path.splitext(file)[0]
        if text in (path, file) or text == stem and re.search(r"\d", stem):
            rows.append(row)
    return rows
