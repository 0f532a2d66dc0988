"""Right and wrong captions of an image: SugarCrepe, ARO and Winoground, for any model.

`read_items` reads a file of --hard_negatives: `Choices` between a right and wrong captions, or
`Quadruples` of two images and two captions. Their captions are not those of the split, so
`judge_models` embeds them by the trained models; arrays.py judges arrays of any model.

Papers: SugarCrepe (Hsieh et al. 2023), ARO (Yuksekgonul et al. 2023), Winoground (Thrush et al.
2022).
"""

import os
import re
from dataclasses import dataclass, field

import numpy as np

import metrics
from evaluation.embeddings import Embeddings, Member
from utils import InputError, need, note_inputs, read_json, read_json_lines, spell_value
from vocab import tokenize

CHOICES_PER_BLOCK = 32  # all pairs of a block are scored, and its diagonal counts
IMAGES_OF_TEXT_ONLY = 256  # their mean score is that of a caption without its image
# Scores that differ by less than this share of their median size differ by the rounding of float32.
ROUNDING = 1e-6
# Names of what an entry holds: the first are ours and SugarCrepe's, the last ARO's.
NAMES_OF_IMAGE = ("image", "filename", "image_id", "image_path")
NAMES_OF_RIGHT = ("caption", "true_caption")
NAMES_OF_WRONG = ("negative_caption", "false_caption")
NAMES_OF_QUADRUPLE = ("image_0", "image_1", "caption_0", "caption_1")
FORM = (
    'give a list of {"image": id, name or row, "caption": text, "negative_caption": text or texts} '
    'or of {"image_0", "image_1", "caption_0", "caption_1"}'
)
# Share in percent that independent scores reach: of the 24 orders of four scores, 4 are right.
CHANCE_OF_QUADRUPLE = {"text": 25.0, "image": 25.0, "group": 100 / 6}


@dataclass
class Choices:
    """K items: an image, a right caption, and one or several wrong ones."""

    image: np.ndarray  # (K,) rows of images
    right: np.ndarray  # (K,) numbers of texts
    wrong: np.ndarray  # (P,) numbers of texts
    item: np.ndarray  # (P,) the item of each wrong caption, rising, each at least once
    texts: list[str] = field(default_factory=list)  # each once; none where they are not known
    left_out: int = 0  # entries of images that the split lacks


@dataclass
class Quadruples:
    """K items: two images and two captions; the first ones and the second ones belong together."""

    image: np.ndarray  # (K, 2) rows of images
    caption: np.ndarray  # (K, 2) numbers of texts
    texts: list[str] = field(default_factory=list)
    left_out: int = 0


# ---- files


def read_all(paths: list[str], e: Embeddings) -> dict[str, Choices | Quadruples]:
    """Read the files of --hard_negatives: {name of the file without its ending: its items}."""
    names = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    if len(set(names)) < len(names):
        names = paths
    # a blank would end the name of a protocol in --compare
    return {"_".join(name.split()): read_items(path, e) for name, path in zip(names, paths)}


def read_items(path: str, e: Embeddings) -> Choices | Quadruples:
    """Read a list of entries of one kind: JSON, an object as SugarCrepe's, or JSON lines.

    Entries of images that are not among those of `e` are left out, and counted. Raises InputError
    where none is left, and on other content.
    """
    entries = read_entries(path)
    finder = ImageFinder(e)
    numbers = TextNumbers(path)
    is_quadruple = set(NAMES_OF_QUADRUPLE) <= set(entries[0])

    images = []
    captions = []
    for entry in entries:
        if is_quadruple:
            rows = [finder.find(entry, (name,), path) for name in NAMES_OF_QUADRUPLE[:2]]
            first = numbers.of_one(entry, NAMES_OF_QUADRUPLE[2:3])
            others = [numbers.of_one(entry, NAMES_OF_QUADRUPLE[3:])]
        else:
            rows = [finder.find(entry, NAMES_OF_IMAGE, path)]
            first = numbers.of_one(entry, NAMES_OF_RIGHT)
            others = numbers.of_several(entry, NAMES_OF_WRONG)
        if None not in rows:
            images.append(rows)
            captions.append([first, *others])

    left_out = len(entries) - len(images)
    if not images:
        image = find_value(entries[0], (*NAMES_OF_IMAGE, *NAMES_OF_QUADRUPLE), path)
        raise InputError(
            f"{path} has {left_out:,} entries, and {e.name} has the images of none, such as "
            f"{spell_value(image)}; name images by the ids or file names of the split, or by row "
            "where it has no ids"
        )

    images = np.array(images, np.int64)
    if is_quadruple:
        return Quadruples(images, np.array(captions, np.int64), numbers.list(), left_out)
    wrong = [of_item[1:] for of_item in captions]
    return Choices(
        images[:, 0],
        np.array([of_item[0] for of_item in captions], np.int64),
        np.concatenate(wrong).astype(np.int64),
        np.repeat(np.arange(len(wrong)), [len(of_item) for of_item in wrong]),
        numbers.list(),
        left_out,
    )


def read_entries(path: str) -> list[dict]:
    """Read the entries of a file, of which there is at least one."""
    need(path, "name a file with --hard_negatives")
    note_inputs(path)
    if path.lower().endswith(".jsonl"):
        entries = [entry for _, entry in read_json_lines(path, FORM)]
    else:
        entries = read_json(path, FORM)
        if isinstance(entries, dict):
            entries = list(entries.values())

    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path} holds no list of entries; {FORM}")
    for entry in entries:
        if not isinstance(entry, dict):
            raise InputError(f"{path} has {spell_value(entry)} as an entry; {FORM}")
    return entries


def find_value(entry: dict, names: tuple[str, ...], path: str):
    """Return the value under the first of several names that an entry has."""
    for name in names:
        if name in entry:
            return entry[name]
    raise InputError(
        f"{path} has an entry without {names[0]}, {spell_value(entry, 100)}; all entries of a file "
        f"are of one kind: {FORM}"
    )


class TextNumbers:
    """Numbers the captions of a file, equal ones alike."""

    def __init__(self, path: str):
        self.path = path
        self.numbers = {}

    def of_one(self, entry: dict, names: tuple[str, ...]) -> int:
        """Number the caption of an entry under one of these names."""
        return self.of_text(find_value(entry, names, self.path), names[0])

    def of_several(self, entry: dict, names: tuple[str, ...]) -> list[int]:
        """Number a caption, or a list of captions, of an entry."""
        captions = find_value(entry, names, self.path)
        if not isinstance(captions, list):
            captions = [captions]
        if not captions:
            raise InputError(f"{self.path} has an entry whose {names[0]} is empty; {FORM}")
        return [self.of_text(caption, names[0]) for caption in captions]

    def of_text(self, caption, name: str) -> int:
        """Number a text. Raises InputError on anything else."""
        if not isinstance(caption, str) or not caption.strip():
            raise InputError(
                f"{self.path} has {spell_value(caption)} as {name}, which is not text; {FORM}"
            )
        return self.numbers.setdefault(caption, len(self.numbers))

    def list(self) -> list[str]:
        """List the texts in the order of their numbers."""
        return list(self.numbers)


class ImageFinder:
    """Finds rows of images by file name, by id, or by number where there are no ids."""

    def __init__(self, e: Embeddings):
        self.n_images = e.n_images
        self.by_id = {int(i): row for row, i in enumerate(e.ids.get("image_id") or ())}
        self.by_name = {}
        for row, name in enumerate(e.ids.get("image_name") or ()):
            base = os.path.basename(name)
            stem = os.path.splitext(base)[0]
            for spelled in {name, base, stem}:
                self.by_name.setdefault(spelled, []).append(row)

    def find(self, entry: dict, names: tuple[str, ...], path: str) -> int | None:
        """Find the row of the image of an entry; None where it is not among those known."""
        image = find_value(entry, names, path)
        if isinstance(image, str):
            return self.find_name(image)
        if not isinstance(image, int) or isinstance(image, bool):
            raise InputError(
                f"{path} has {spell_value(image)} as {names[0]}, which is not an id, a name or a "
                f"row; {FORM}"
            )
        if self.by_id:
            return self.by_id.get(image)
        if 0 <= image < self.n_images:
            return image
        return None

    def find_name(self, name: str) -> int | None:
        """Find an image by its file name, or by the id in it, such as COCO's 000000085329.jpg."""
        rows = self.by_name.get(name) or self.by_name.get(os.path.basename(name)) or []
        if len(rows) == 1:
            return rows[0]
        stem = os.path.splitext(os.path.basename(name))[0]
        digits = re.fullmatch("(.*_)?([0-9]{1,18})", stem)
        if digits:
            return self.by_id.get(int(digits[2]))
        return None


# ---- scores


def score_pairs(members: list[Member], image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Score images with captions, pair by pair: (P,) float64.

    members: of all images and texts; image (P,), text (P,): rows of these. Raises InputError on
    scores that are not finite.
    """
    scores = np.empty(len(image), np.float32)
    for start in range(0, len(image), CHOICES_PER_BLOCK):
        block = slice(start, start + CHOICES_PER_BLOCK)
        part = []
        for m in members:
            of_images = m.images.rows(image[block])
            of_texts = m.captions.rows(text[block])
            part.append(Member(m.similarity, of_images, of_texts))
        scores[block] = metrics.score_matrix(part).diagonal()
    return metrics.check_finite(scores).astype(np.float64)


def score_without_image(members: list[Member]) -> np.ndarray:
    """Score all texts without an image of theirs, by their mean score with images: (T,) float64."""
    n = len(members[0].images.mean)
    rows = np.unique(np.linspace(0, n - 1, min(n, IMAGES_OF_TEXT_ONLY)).astype(int))
    part = [Member(m.similarity, m.images.rows(rows), m.captions) for m in members]
    return metrics.check_finite(metrics.score_matrix(part)).mean(0, dtype=np.float64)


# ---- judging


def judge_choices(
    right: np.ndarray, wrong: np.ndarray, item: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compare the scores of right captions (K,) with those of wrong ones (P,) of `item` (P,).

    Returns whether the right one scores highest, and whether it ties with the best wrong one, each
    (K,) bool.
    """
    best = np.full(len(right), -np.inf)
    np.maximum.at(best, item, wrong)
    return compare(right, best)


def judge_quadruples(scores: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Judge scores (K, 2, 2), captions x images, by Winoground's rules.

    Text score: each image scores higher with its matched caption. Image score: each caption scores
    higher with its matched image. Group score: both. Returns each as (K,) bool, and where one of
    the comparisons ties.
    """
    own = np.stack([scores[:, 0, 0], scores[:, 1, 1]])  # (2, K)
    other_caption = np.stack([scores[:, 1, 0], scores[:, 0, 1]])  # of the same image
    other_image = np.stack([scores[:, 0, 1], scores[:, 1, 0]])  # of the same caption

    text, text_ties = compare(own, other_caption)
    image, image_ties = compare(own, other_image)
    outcomes = {"text": text.all(0), "image": image.all(0)}
    outcomes["group"] = outcomes["text"] & outcomes["image"]
    return outcomes, (text_ties | image_ties).any(0)


def compare(right: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tell where right scores are above wrong ones, and where they tie.

    Differences by the rounding of float32 are ties: a model of bags of words scores two orders of
    the same words alike but for the order of its sums.
    """
    sizes = np.abs([right, wrong])
    limit = ROUNDING * np.median(sizes)
    margin = right - wrong
    return margin > limit, np.abs(margin) <= limit


def summarize(outcomes: dict[str, np.ndarray], chance: dict, image: np.ndarray) -> dict[str, dict]:
    """Summarize outcomes {name: (K,) bool}: {name: {"accuracy", "low", "high", "chance"}}, percent.

    The 95% interval is of a bootstrap over the images (K,), each with all its items.
    """
    _, group = np.unique(image, return_inverse=True)
    count = np.bincount(group)
    totals = {}
    for name, right in outcomes.items():
        totals[name] = np.bincount(group, 100.0 * right), count

    result = {}
    for name, (low, high) in metrics.bootstrap_intervals(totals).items():
        accuracy = float(100 * outcomes[name].mean())
        result[name] = {"accuracy": accuracy, "low": low, "high": high, "chance": chance[name]}
    return result


def assess_choices(
    items: Choices, right: np.ndarray, wrong: np.ndarray, text_only: np.ndarray | None = None
) -> tuple[dict, dict[str, np.ndarray]]:
    """Judge choices by the scores of right (K,) and wrong captions (P,).

    text_only (T,): scores of the texts without an image, where they are known. Beside the accuracy
    stand those of captions that are chosen without the image: the longer one, the shorter one, and
    that of the larger `text_only`. Returns numbers, and outcomes {"text": (K,) bool}.
    """
    hits, ties = judge_choices(right, wrong, items.item)
    counts = np.bincount(items.item)  # wrong captions of each item
    chance = float(100 * (1 / (1 + counts)).mean())
    result = {
        "items": len(hits),
        "images": len(np.unique(items.image)),
        "ties": int(ties.sum()),
        **summarize({"text": hits}, {"text": chance}, items.image),
    }

    predictors = {}
    if items.texts:
        words = np.array([len(tokenize(text)) for text in items.texts], np.float64)
        predictors = {"longer": words, "shorter": -words}
    if text_only is not None:
        predictors["text_only"] = text_only
    for name, values in predictors.items():
        trivial, _ = judge_choices(values[items.right], values[items.wrong], items.item)
        result["text"][name] = float(100 * trivial.mean())
    return result, {"text": hits}


def assess_quadruples(items: Quadruples, scores: np.ndarray) -> tuple[dict, dict[str, np.ndarray]]:
    """Judge quadruples by their scores (K, 2, 2), captions x images: numbers and outcomes."""
    outcomes, ties = judge_quadruples(scores)
    result = {
        "items": len(scores),
        "images": len(np.unique(items.image)),
        "ties": int(ties.sum()),
        **summarize(outcomes, CHANCE_OF_QUADRUPLE, items.image[:, 0]),
    }
    return result, outcomes


# ---- trained models


def judge_models(e: Embeddings, items: Choices | Quadruples, record, name: str) -> dict:
    """Judge the trained models of `e`, which embed the captions, and keep outcomes in `record`.

    record: a `protocols.Record`, which gets the outcomes under `name`. Raises InputError where
    there is no model or no image.
    """
    if not e.models:
        raise InputError(
            f"--hard_negatives needs a model that embeds its captions, and {e.name} holds "
            "embeddings or scores; judge these in Python: evaluation.evaluate_hard_negatives"
        )
    if not e.has_images:
        raise InputError(
            f"--hard_negatives compares images with captions, and {e.name} has no images; name "
            "a split with features or photos"
        )

    members = []
    for m, model in zip(e.members, e.models):
        members.append(Member(m.similarity, m.images, model.texts(items.texts)))
    if isinstance(items, Choices):
        right = score_pairs(members, items.image, items.right)
        wrong = score_pairs(members, items.image[items.item], items.wrong)
        result, outcomes = assess_choices(items, right, wrong, score_without_image(members))
        image = items.image
    else:
        result, outcomes = assess_quadruples(items, score_quadruples(members, items))
        image = items.image[:, 0]

    for side, right in outcomes.items():
        record.add(name, side, len(right), np.arange(len(right)), accuracy=right.astype(float))
        record.image_of[name, side] = image
    return {**result, "left_out": items.left_out}


def score_quadruples(members: list[Member], items: Quadruples) -> np.ndarray:
    """Score both captions of each item with both images: (K, 2, 2), captions x images."""
    shape = (len(items.image), 2, 2)
    image = np.broadcast_to(items.image[:, None, :], shape)
    caption = np.broadcast_to(items.caption[:, :, None], shape)
    return score_pairs(members, image.reshape(-1), caption.reshape(-1)).reshape(shape)
