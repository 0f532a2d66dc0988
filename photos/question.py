"""Questions as people type them: unwanted things, unknown words, file names."""
import os
import re
import unicodedata

from cli import check
from data import compose_name, tokenize
from photos.encoder import PhotoEncoder

MINUS = re.compile(r"(?:^|(?<=\s))[-\u2212\u2013](?=[^\W\d_])([^\s]+)")         # also the dashes that phones type
NEGATION = re.compile(r"\b(?:no|not|without|except|excluding)\s+(?:(?:a|an|any|the)\s+)?([^\W\d_]+)", re.IGNORECASE)


def read_question(text: str) -> tuple[str, list[str], list[str]]:
    """Read "dog -beach" as "dog" and what is not wanted, ["beach"], and notes on both.
    Raises InputError for a question that asks for nothing."""
    text = compose_name(text).strip()
    check(text, "an empty question finds nothing; describe a photo in a few words")
    unwanted = [word.rstrip(".,;!?") for word in MINUS.findall(text)]
    rest = " ".join(MINUS.sub(" ", text).split()) if unwanted else text
    check(rest, f"'{text}' says only what is not wanted; say what is, as in 'dog -beach'")
    notes = [f"photos of {' and '.join(unwanted)} are moved down, as by --not"] if unwanted else []
    negation = NEGATION.search(rest)
    if negation:
        notes.append(f"'{negation[0]}' does not leave them out, as the model reads over such words; "
                     f"write -{negation[1]}")
    return rest, unwanted, notes


def read_words(encoder: PhotoEncoder, text: str) -> tuple[list[str], bool]:
    """Sentences on words of a text that the model does not know: misspelt, of another language, nonsense.
    Also False without a word, and where one is known neither to the training captions nor to the sentence network."""
    if hasattr(encoder.vocab, "trigrams"):
        return [], True
    words = [word for word in tokenize(text) if not all(unicodedata.category(x)[0] in "PZ" for x in word)]
    if not words:
        return [f"there is no word in '{text}'"], False
    foreign = [word for word in words if word not in encoder.vocab.index]
    if not encoder.options.text_features:                   # a sentence network knows more words
        return [f"unknown words, which are left out: {quoted(foreign)}"] * bool(foreign), True
    network, notes = encoder.sentence_network, []
    unknown = [word for word in foreign if not network.knows(word)]
    other_language = [word for word in unknown if network.reads(word)]
    misspelt = [word for word in unknown if word not in other_language]
    seldom = [word for word in foreign if word not in unknown]
    if misspelt:
        notes.append(f"not understood: {quoted(misspelt)}; the model does not know "
                     f"{'this word' if len(misspelt) == 1 else 'these words'}")
    if other_language:
        notes.append(f"read as another language: {quoted(other_language)}; the model does not know how many photos fit "
                     "words that are not English")
    if seldom and not other_language:
        notes.append(f"seldom or never in the captions that the model learned from: {quoted(seldom)}")
    encoded = network.tokenizer.encode(text)
    if encoded.overflowing:
        end = max(stop for _, stop in encoded.offsets)
        notes.append(f"only the first {len(text[:end].split()):,} of {len(text.split()):,} words are read")
    return notes, not unknown


def quoted(words: list[str]) -> str:
    return ", ".join(f"'{word}'" for word in dict.fromkeys(words))


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
