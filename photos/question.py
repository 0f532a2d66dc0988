"""Questions as people type them: alternatives, unwanted things, unknown words, names of files."""
import os
import re
import unicodedata
from typing import NamedTuple

from cli import InputError, check
from data import compose_name
from methods.volume import ARTICLES, MAX_WORDS_PER_PHRASE, read_phrase
from photos.encoder import PhotoEncoder
from vocab import FUNCTION_WORDS, tokenize

MINUS = re.compile(r"(?:^|(?<=\s))[-\u2212\u2013](?=[^\W\d_])([^\s]+)")         # also the dashes that phones type
NEGATION = re.compile(r"\b(?:no|not|without|except|excluding)\s+(?:(?:a|an|any|the)\s+)?([^\W\d_]+)", re.IGNORECASE)
OR = re.compile(r"(?:^|\s+)OR(?:\s+|$)|\s*\|+\s*")
SMALL_OR = re.compile(r"\s+or\s+")
# "photos of", "show me pictures with", "there is", "my": what people say before what they look for.
LEAD = re.compile(r"^(?:(?:(?:show|find|search)(?: me)?(?: for)? )?(?:(?:an?|the|all|any|my|some) )?"
                  r"(?:photo|picture|image|pic)s? (?:of|with|showing) "
                  r"|there (?:is|are) )?(?:(?:all|any|my|some) )?", re.IGNORECASE)
WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
NAME_WORD = re.compile(r"[^\W_]+")                          # of the name of a file
WORD_AND_NUMBER = re.compile(r"([^\W\d_]+)(\d+)|(\d+)([^\W\d_]+)")  # Bild220, 2019summer
YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?=(?:[01]\d[0-3]\d)?(?!\d))")        # also of 20190714
PLURALS = (("s", ""), ("es", ""), ("ies", "y"))             # an ending, and what stands in its place
INFLECTIONS = (*PLURALS, ("ed", ""), ("ed", "e"), ("ing", ""), ("ing", "e"))
IRREGULAR = {"men": "man", "women": "woman", "children": "child"}
NUMBERS = {"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "many",
           "several"}
NO_CONTENT = FUNCTION_WORDS | {"photo", "picture", "image", "can", "seen"}
# Captions say "a man" where anybody would look for people.
PEOPLE = {"people", "person", "persons", "human", "humans", "somebody", "someone", "anybody",
          "anyone"}
KINDS_OF_PEOPLE = ("a man", "a woman", "a boy", "a girl", "a child", "a person", "people")
# What nobody can see in a photo, and how to find it all the same.
UNSEEN = {
    re.compile(r"\b(?:(?:last|this|next) (?:week|month|year|weekend|night|spring|summer|autumn|fall"
               r"|winter)|yesterday|today|ago|(?:jan|febr)uary|april|june|july|august"
               r"|(?:sept|nov|dec)ember|october|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b",
               re.IGNORECASE):
        "the model does not see when a photo was taken; a year, as in 'beach 2019', finds photos by "
        "their names and their EXIF data",
    re.compile(r"\b(?:(?:that|which) (?:says|reads)|saying|the (?:words?|text)|named|called)\b",
               re.IGNORECASE):
        "the model reads no text in photos and knows nobody's name; the names of folders and files "
        "are searched"}


class Question(NamedTuple):
    """What a text asks for: photos that show one of `wanted`, and nothing of `unwanted`."""
    wanted: list[str]
    unwanted: list[str]
    notes: list[str]                  # sentences for whoever asked


# ---- what is wanted and what is not

def read_question(text: str) -> Question:
    """Read "dog OR cat -beach". Raises InputError for a question that asks for nothing."""
    text = compose_name(text).strip()
    check(text, "an empty question finds nothing; describe a photo in a few words")
    unwanted = [word.rstrip(".,;!?") for word in MINUS.findall(text)]
    rest = " ".join(MINUS.sub(" ", text).split())
    wanted = split_alternatives(rest)
    if unwanted and not wanted:
        raise InputError(f"'{text:.80}' says only what is not wanted; say what is, as in 'dog -beach'")
    if not wanted:
        raise InputError(f"'{text:.80}' has nothing between its signs for OR; write 'dog OR cat'")
    notes = []
    negation = NEGATION.search(rest)
    if negation:
        notes.append(f"'{negation[0]}' does not leave them out, as the model reads over such words; "
                     f"write -{negation[1]}")
    return Question(wanted, unwanted, notes)


def split_alternatives(text: str) -> list[str]:
    """Split at OR and |, and at "or" between words and short phrases."""
    parts = [part for part in OR.split(text) if part.strip()]
    if len(parts) > 1:
        return parts
    short = SMALL_OR.split(text)
    if len(short) > 1 and all(read_phrase(tokenize(part)) for part in short):
        return short
    return parts


# ---- the words of a text

def is_content(word: str) -> bool:
    return bool(re.fullmatch("[a-z]{2,}(-[a-z]+)*", word)) and word not in NO_CONTENT


def add_article(text: str) -> str:
    return f"{'an' if text[0].lower() in 'aeiou' else 'a'} {text}"


def is_known(word: str, index: dict[str, int]) -> bool:
    """True if a word or a form of it stands in a vocabulary, {word: number}."""
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
    return WORD.findall(re.sub(r"(?<=\w)['\u2019]s\b", "", text))


def content_words(texts: list[str]) -> set[str]:
    """The words of texts that name things, in lower case."""
    words = [word.lower() for word in list_words(" ".join(texts))]
    return {word for word in words if is_content(word)}


def singular(word: str, index: dict[str, int]) -> str:
    """The singular of a noun, where a vocabulary has it as the more usual word: not of shorts."""
    if word in IRREGULAR:
        return IRREGULAR[word]
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

    index: the vocabulary of the training, the most usual words first. Returns texts that rank the
    photos, and texts that tell how many fit. A noun gets an article, in the number also a plural:
    of short texts the numbers were fitted to, these are the truest (docs/search.md).
    """
    if not all(is_known(word, index) for word in list_words(text)):
        return [text], [text]
    text = text.lower()
    words = [word for word in tokenize(text) if word != "."]
    if words and words[0] in ARTICLES:
        words = words[1:]
    if len(words) == 1 and words[0] in PEOPLE:
        return [*KINDS_OF_PEOPLE], [*KINDS_OF_PEOPLE]
    if not 0 < len(words) <= MAX_WORDS_PER_PHRASE or words[0] in NUMBERS or not all(map(is_content, words)):
        return [text], [text]
    *before, noun = words
    one = add_article(" ".join([*before, singular(noun, index)]))
    many = " ".join(words)
    return [one if singular(noun, index) == noun else many], [one]


def read_words(encoder: PhotoEncoder, text: str, index: dict[str, int]) -> tuple[list[str], bool]:
    """Sentences on words of a text that the model does not know.

    index: the words of the training captions. Also returns whether these have all words of the
    text, without which the numbers of photos do not hold.
    """
    words = list_words(text)
    if not words:
        return [f"there is no word in '{text:.80}'"], False
    if hasattr(encoder.vocab, "trigrams"):
        return [], True
    if not encoder.options.text_features:
        unknown = [word for word in tokenize(text) if word not in index and not is_sign(word)]
        return [f"unknown words, which are left out: {quoted(unknown)}"] * bool(unknown), True
    notes = [sentence for pattern, sentence in UNSEEN.items() if pattern.search(text)]
    unknown = [word for word in words if not is_known(word, index)]
    certain = not notes and not unknown
    if unknown:
        notes.append(f"not in the training captions: {quoted(unknown)}; so there is no estimate of "
                     "how many photos match, and these may be unrelated")
    encoded = encoder.sentence_network.tokenizer.encode(text)
    if encoded.overflowing:
        end = max(stop for _, stop in encoded.offsets)
        notes.append(f"only the first {len(text[:end].split()):,} of {len(text.split()):,} words are read")
    return notes, certain


def is_sign(word: str) -> bool:
    return all(unicodedata.category(letter)[0] in "PZ" for letter in word)


def quoted(words: list[str]) -> str:
    words = [f"'{word:.40}'" for word in dict.fromkeys(words)]
    return ", ".join(words[:10]) + (", and others" if len(words) > 10 else "")


# ---- names of files

def split_name(name: str) -> set[str]:
    """The words, numbers and years of the path of a photo."""
    name = compose_name(name).casefold()
    words = {*NAME_WORD.findall(name), *YEAR.findall(name)}
    for match in filter(None, map(WORD_AND_NUMBER.fullmatch, [*words])):
        words.update(filter(None, match.groups()))
    return words


def find_names(text: str, index: dict[str, int], in_names) -> tuple[list[str], str]:
    """Find the words of a text that the model does not know and that the names of photos have.

    index: the vocabulary of the model. in_names: all words of names. Short words count only beside
    a longer one: many names have an "ein" that nobody means. Returns the words, and the text
    without them.
    """
    words = [*NAME_WORD.finditer(text)]
    names = [word for word in words
             if word[0].casefold() in in_names and not is_known(word[0], index)]
    longest = max((len(word[0]) for word in names), default=0)
    if longest < 3 or longest < 4 and len(words) > 1:
        return [], text
    rest = text
    for word in reversed(names):
        rest = rest[:word.start()] + rest[word.end():]
    return [word[0].casefold() for word in names], " ".join(rest.split())


def rows_named(text: str, names: list[str]) -> list[int]:
    """Photos whose path or file name a text is.
    Without its ending only where the name has a digit (IMG_1234)."""
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
