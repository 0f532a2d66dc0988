"""What a data set is once it is read (`Split`), and the readers of precomputed features, COCO and
Karpathy's JSON of photos.

`{split}_caps.txt` and `{split}_ims.npy` are precomputed features, `annotations/` holds COCO's
captions and ids files, and a `dataset_*.json` beside `images/` is in Karpathy's layout. Beside
features without `{split}_caps.txt`, `captions.tsv` has the form of Flickr8k's tokens, NAME#K, a tab
and a text a line: any number of captions of the photos that `{split}_ids.txt` names.
"""
import glob
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor
from tqdm import tqdm

import inputs
from cli import InputError, check, reason
from devices.share import Share
from files import shards
from files.reading import (
    advice,
    as_integers,
    below,
    integers,
    read_coco,
    read_integers,
    read_json,
    read_lines,
)
from inputs import CaptionFeatures, Features, NoImages, Photos, Tokens, TrigramTokens, encode_captions
from text import Vocabulary, tokenize

NAMED = "captions.tsv"
LONGEST = 10_000                   # words of a caption; a longer one would take the network minutes


class Batch(NamedTuple):
    """B matching pairs; or, with `labels`, R regions and M phrases of several photos."""
    # of a shared batch this process's images, and all captions
    images: Tensor                    # (B, F) features | (B, P, F) regions | (B, 3, H, W) photos
    tokens: Tensor                    # (B, T) int64 word numbers, zero-padded
    lengths: Tensor                   # (B,) int64, on the CPU (packing needs them there)
    image_index: Tensor               # (B,) int64, the row of each image in the split
    caption_index: Tensor             # (B,) int64, the row of each caption
    # images and captions that do not belong together (jWAE); fields that it lacks are None
    unpaired: "Batch | None" = None
    # captions from the whole training set that the images are compared with (DMSM)
    negatives: "Batch | None" = None
    # (R, M) int8: a region fits a phrase, 1; does not, -1; is not compared with it, 0
    labels: Tensor | None = None
    # where several processes share a batch: which of its items these are
    share: Share | None = None

    def to(self, device) -> "Batch":
        return self.map(lambda x: x.to(device, non_blocking=True))

    def map(self, f) -> "Batch":
        """f of every tensor but the lengths."""
        return Batch(*(x if x is self.lengths or x is None or isinstance(x, Share) else x.map(f)
                       if isinstance(x, Batch) else f(x) for x in self))


@dataclass
class Split:
    """N images and their M captions."""
    name: str
    images: Features | Photos | NoImages
    captions: list[str]
    caption_image: np.ndarray                     # (M,) int64, the row of each caption's image
    source: str                                   # where the captions come from, for messages
    image_ids: list | None = None              # N integers (COCO's, Karpathy's imgid) or file names
    caption_ids: np.ndarray | None = None         # (M,) int64 (COCO's, Karpathy's sentid)
    # N file names, where neither the photos nor image_ids give them
    photo_names: list | None = None
    text: Features | None = None         # (M, F) features of the captions, where a model reads them
    extractors: dict | None = None  # what made the features, {"ims": name, ...}, from features.json
    # sentences for whoever reads a result on this split
    notes: list[str] = field(default_factory=list)
    caption_names: list[str] | None = None        # M names NAME#K, where a file gives them

    @cached_property
    def words(self) -> list[list[str]]:
        """The captions as lists of words. They are tokenised only once."""
        return [tokenize(caption) for caption in tqdm(
            self.captions, desc=f"words of {self.name}", disable=None, leave=False)]

    def encode(self, vocab: Vocabulary,
               known: bool = True) -> Tokens | TrigramTokens | CaptionFeatures:
        """The captions as a model reads them: numbers of words or of letter trigrams, or features.
        With `known`, raises InputError on a caption without any known word."""
        if self.text is not None:
            return CaptionFeatures(self.text)
        tokens = encode_captions(self.words, vocab)
        if known and tokens.unknown.any():
            m = int(tokens.unknown.argmax())
            raise InputError(f"{self.source}, caption {m + 1}: no word of '{self.captions[m]}' is "
                             f"in the vocabulary of {len(vocab)} words; "
                             "remove it, or train with a lower --vocab_threshold")
        return tokens

    def faults(self, deep: bool = False, images: bool = True):
        """Yield sentences on what is wrong with the contents. `deep` opens every photo and reads
        every feature. Without `images` only the captions are checked."""
        for m, caption in enumerate(self.captions):
            if not caption.strip():
                yield (f"{self.source}, caption {m + 1} is empty; every caption needs a word, so "
                       "fill or remove it")
            elif len(caption) > LONGEST and (
                    len(caption) > 10 * LONGEST or len(caption.split()) > LONGEST):
                yield (f"{self.source}, caption {m + 1} has {len(caption.split()):,} words in "
                       f"{len(caption):,} letters; at most {LONGEST:,} words in {10 * LONGEST:,} "
                       "letters are read, so shorten or remove it")
        yield from self.images.faults(deep) if images else ()
        for what, ids in (("images", self.image_ids), ("captions", self.caption_ids)
                          ) if deep and images else ():
            twice = 0 if ids is None else (
                len(ids) - len(set(ids if isinstance(ids, list) else ids.tolist())))
            if twice:
                yield (f"{self.source}: {twice} of {len(ids)} {what} have the id or name of "
                       "another one; give each its own, or leave the ids out")
        if self.text is not None:
            yield from self.text.faults(deep, distinct=False)

    def require_sound(self, images: bool = True) -> "Split":
        for fault in self.faults(images=images):
            raise InputError(fault)
        return self

    def fingerprint(self) -> dict:
        """Sizes and checksums for a run's config.yaml: of all captions, and of the features' shape
        and 64 rows."""
        facts = {"images": len(self.images), "captions": len(self.captions),
                 "images_sha256": self.images.digest(), **inputs.told_of(self.captions)}
        facts.update({} if self.text is None else {"text_sha256": self.text.digest()})
        return {**facts, "extractors": self.extractors} if self.extractors else facts

    def unknown_words(self, vocab: Vocabulary) -> dict[str, int]:
        """How many of all words and of the distinct words the vocabulary does not list, beside the
        totals. Also how many captions have no listed word."""
        unknown = [[word for word in words if word not in vocab.index] for words in self.words]
        return {"words": sum(map(len, self.words)), "unknown_words": sum(map(len, unknown)),
                "distinct": len({word for words in self.words for word in words}),
                "unknown_distinct": len({word for words in unknown for word in words}),
                "captions_without": sum(len(a) == len(b) for a, b in zip(unknown, self.words))}


def read_text_features(path: str, captions: list[str], source: str,
                       what: str = "caption") -> Features:
    """Features of the captions of a split, one row each. Raises InputError where there are none, or
    of others. source: where the captions stand; what: the word for one of them."""
    if not shards.there(path):
        raise InputError(f"there is no file {path} of --text_features; `python -m features.extract "
                         "captions` makes it")
    text, facts = Features(path), path.removesuffix(".npy") + ".json"
    if text.array.shape[:-1] != (len(captions),):
        raise InputError(f"{path} has shape {text.array.shape} for the {len(captions)} {what}s of "
                         f"{source}; give one row a {what}")
    if (os.path.isfile(facts)
            and read_json(facts, "extract the features again") != inputs.told_of(captions)):
        raise InputError(f"{path} was extracted from other {what}s than {source} holds now; call "
                         "features.extract captions again")
    return text


def first_images(split: Split, n: int) -> Split:
    """The split, cut to its first n images and their captions."""
    keep = np.flatnonzero(split.caption_image < n)
    if len(keep) == len(split.captions):
        return split
    split.captions = [split.captions[m] for m in keep]
    split.caption_image = split.caption_image[keep]
    split.caption_ids = None if split.caption_ids is None else split.caption_ids[keep]
    if split.text is not None:
        split.text.array = split.text.array[:len(keep)]
    split.image_ids = None if split.image_ids is None else split.image_ids[:n]
    split.photo_names = None if split.photo_names is None else split.photo_names[:n]
    if isinstance(split.images, Photos):
        split.images.paths = split.images.paths[:n]
    elif isinstance(split.images, NoImages):
        split.images.count = n
    else:
        split.images.array = split.images.array[:n * split.images.step]
    return split


# ---- readers

def _need(path: str) -> str:
    if not shards.there(path):
        raise InputError(f"there is no file {path}; "
                         f"{advice(os.path.basename(os.path.dirname(path)))}")
    return path


def read_precomputed(root: str, split: str, text_only: bool = False,
                     text_features: str | None = None) -> Split:
    if split in ("dev", "val"):                             # one split with two names
        split = next((name for name in (split, "dev", "val")
                      if os.path.isfile(os.path.join(root, f"{name}_caps.txt"))), split)

    def path(end: str) -> str:
        return os.path.join(root, f"{split}_{end}")
    if not os.path.isfile(path("caps.txt")) and os.path.isfile(os.path.join(root, NAMED)):
        return read_named(root, split, text_features)
    if (not glob.glob(os.path.join(root, "*_caps.txt"))
            and os.path.isfile(os.path.join(root, "all_photos.json"))):
        raise InputError(f"{root} holds photos without captions, which can be searched; to train on"
                         " them give `features.extract images --photos` a captions.csv")
    source, notes = _need(path("caps.txt")), []
    captions, ids, names = (read_lines(source), _read_ids(path("img_ids.npy")),
                            _read_ids(path("ids.txt")))
    if text_only and not shards.there(path("ims.npy")):
        images = NoImages(len(ids or captions[::5]))
        rows = len(images)
    else:
        images = Features(_need(path("ims.npy")))
        rows = len(images.array)
    count = len(captions)
    if not count or not rows or count % rows:
        raise InputError(f"{source} has {count} captions for the {rows} rows of "
                         f"{getattr(images, 'path', 'text-only images')}; there must be the same "
                         "number of captions for every row")
    if isinstance(images, Features) and rows == count:      # SCAN and VSE++ repeat them
        images.step = inputs.rows_per_image(images)
        if isinstance(images.array, shards.Shards):
            images.array.refuse_cut(images.step)
    n = len(images)
    if n < count == len(names) and len(set(names)) == count:                    # of captions
        notes.append(f"{path('ids.txt')} names every caption differently, so it does not say which "
                     "the images are")
        names = []
    ids, names = (_one_an_image(x, n, count, path(file))
                  for x, file in ((ids, "img_ids.npy"), (names, "ids.txt")))
    ids_path = path("ann_ids.npy" if os.path.isfile(path("ann_ids.npy")) else "capids.txt")
    caption_ids = _read_ids(ids_path)
    if len(caption_ids) not in (0, count):
        raise InputError(f"{ids_path} has {len(caption_ids)} ids for the {count} captions of "
                         f"{source}; there must be one for each caption, in their order")
    text = (read_text_features(path(f"{text_features}.npy"), captions, source)
            if text_features else None)
    caption_ids = as_integers(caption_ids)                  # None for names such as x.jpg#0
    return Split(split, images, captions, np.arange(count) // (count // n), source,
                 ids or as_integers(names) or names or None,
                 np.array(caption_ids, np.int64) if caption_ids else None, names or None, text,
                 inputs.extractors(root) or None, notes)


def read_named(root: str, split: str, text_features: str | None = None) -> Split:
    """Features of photos by name, and the captions of NAMED that are of these photos. Raises
    InputError on a line of another form, a name twice, and where no caption is of a photo."""
    source = os.path.join(root, NAMED)
    others = ", ".join(named_splits(root))
    check(shards.there(os.path.join(root, f"{split}_ims.npy")),
          f"{root} has no features {split}_ims.npy; its captions are of {others or 'no split'}, so "
          f"give --split {others or 'NAME'}")
    names = read_lines(_need(os.path.join(root, f"{split}_ids.txt")))
    images, rows = Features(os.path.join(root, f"{split}_ims.npy")), {}
    check(len(set(names)) == len(names) == len(images),
          f"{root}/{split}_ids.txt gives {len(set(names)):,} names in {len(names):,} lines for the "
          f"{len(images):,} photos of {split}_ims.npy; give every photo one of its own")
    place = {name: row for row, name in enumerate(names)}
    lines = read_lines(source)
    for number, line in enumerate(lines, 1):
        name, tab, text = line.partition("\t")
        photo, mark, k = name.rpartition("#")
        check(tab and mark and k.isdigit() and name not in rows,
              f"{source}, line {number}: {ascii(line[:60])} is no new NAME#K, tab, text; write "
              "every caption once, as in Flickr8k.token.txt")
        if photo in place:
            rows[name] = place[photo], text
    check(rows, f"{source} has no caption of the {len(names):,} photos of {split}_ids.txt; give "
                "captions and photos that belong together")
    owner, captions = zip(*rows.values())
    left = len(lines) - len(rows)
    text = (read_text_features(os.path.join(root, f"{split}_{text_features}.npy"), list(captions),
                               source) if text_features else None)
    notes = [f"{left:,} captions of {source} are of other photos and left out"] if left else []
    return Split(split, images, list(captions), np.array(owner), source, names, None, names, text,
                 inputs.extractors(root) or None, notes, list(rows))


def named_splits(root: str) -> list[str]:
    """The splits whose captions are in NAMED: those with names of photos and no captions of their
    own."""
    splits = [os.path.basename(path).removesuffix("_ids.txt")
              for path in sorted(glob.glob(os.path.join(root, "*_ids.txt")))]
    return [split for split in splits if os.path.isfile(os.path.join(root, NAMED))
            and not os.path.isfile(os.path.join(root, f"{split}_caps.txt"))]


def _one_an_image(x: list, n: int, count: int, path: str) -> list:
    """One id per image, from ids that may be given per caption, or none.

    Raises InputError for another number of ids, and where the captions of one image have different
    ids: then not every image has count / n captions one after another.
    """
    each = count // n
    wrong = (next((m for m in range(count) if x[m] != x[m - m % each]), None)
             if len(x) == count else None)
    if wrong is not None:
        first = wrong - wrong % each
        raise InputError(f"{path} gives the captions {first + 1} to {first + each}, which {count} "
                         f"captions for {n} images make those of one image, more than one id; let "
                         "the captions of an image stand together, equally many of each")
    if len(x) not in (0, n, count):
        raise InputError(f"{path} has {len(x)} ids for {n} images; "
                         "there must be one for each image or caption")
    return x[::each] if len(x) == count else x


def _read_ids(path: str) -> list:
    """The ids beside a precomputed split, from an .npy file of integers or lines of text. Empty if
    there is no file."""
    if not os.path.isfile(path):
        return []
    return read_integers(path).tolist() if path.endswith(".npy") else read_lines(path)


def _grouped(name, source, keys, paths, captions, caption_ids=None) -> Split:
    """A Split of photos, from a key and a path per caption. Images come in the order of their first
    appearance."""
    position = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    integers([key for key in position if isinstance(key, int)], source, "an image the id")
    path_of = dict(zip(keys, paths))
    return Split(name, Photos([path_of[key] for key in position]), captions,
                 np.array([position[key] for key in keys], np.int64), source, list(position),
                 caption_ids)


def read_karpathy(root: str, path: str, split: str, use_restval: bool) -> Split:
    parts = {"dev": {"val"}, "train": {"train", "restval"} if use_restval else {"train"}
             }.get(split, {split})
    rows, name_of, number, without = [], {}, {}, 0
    try:
        for image in read_json(path)["images"]:
            if image["split"] not in parts:
                continue
            name = os.path.join(image.get("filepath", ""), image["filename"])
            key = image.get("cocoid", name)
            if name_of.setdefault(key, name) != name:
                raise InputError(f"{path} gives the images {name_of[key]} and {name} one cocoid, "
                                 f"{key}; give each its own")
            if key in number:
                raise InputError(f"{path} lists the image {name} twice in split '{split}'; list "
                                 "each once, with all its sentences")
            number[key] = image.get("imgid")
            without += not image["sentences"]
            rows += [(key, name, sentence["raw"], sentence.get("sentid"))
                     for sentence in image["sentences"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not in Karpathy's layout (images with split, filename, "
                         f"sentences with raw): {reason(error)}; fetch it again") from error
    if not rows:
        raise InputError(
            f"{path} has {without:,} images of split '{split}' and not one sentence of them; "
            "give every image at least one" if without
            else f"{path} has no images of split '{split}'; "
            "the splits are train, val (= dev) and test")
    keys, names, captions, caption_ids = map(list, zip(*rows))
    for name, caption in zip(names, captions):
        if not isinstance(caption, str):
            raise InputError(f"{path}, image {name}: the raw sentence {ascii(caption)[:40]} is no "
                             "string; put its text in quotes")
    photos = [below(os.path.join(root, "images"), name, path) for name in names]
    result = _grouped("dev" if split == "val" else split, path, keys, photos, captions,
                      integers(caption_ids, path, "the sentid") if _own(caption_ids) else None)
    numbers = [number[key] for key in result.image_ids]
    if _own(numbers) and all(key == name for key, name in name_of.items()):         # no cocoid
        result.photo_names = result.image_ids
        result.image_ids = integers(numbers, path, "the imgid").tolist()
    if without:
        result.notes.append(f"{path}: {without:,} of {len(number):,} images of split '{split}' have"
                            " no sentence and are left out")
    return result


def _own(ids: list) -> bool:
    """Whether all ids are integers and different from each other."""
    return all(type(i) is int for i in ids) and len(set(ids)) == len(ids)


def read_coco_layout(root: str, split: str, use_restval: bool) -> Split:
    split = "dev" if split in ("val", "dev") else split
    parts = [(split, "train2014" if split == "train" else "val2014")]
    if use_restval and split == "train":
        parts.append(("restval", "val2014"))                    # 30,504 images of the 2014 val set
    keys, paths, captions, ids = [], [], [], []
    for part, folder in parts:
        ids_path = os.path.join(root, "annotations", f"coco_{part}_ids.npy")
        json_path = _need(os.path.join(root, "annotations", f"captions_{folder}.json"))
        numbers = read_integers(_need(ids_path)).tolist()                           # caption ids
        coco = read_coco(json_path)
        absent = [i for i in numbers if i not in coco.anns]
        if absent:
            raise InputError(f"{ids_path} names {len(absent)} captions that {json_path} lacks, the "
                             f"first is {absent[0]}; the two files must belong together")
        try:
            entries = [coco.anns[i] for i in numbers]
            keys += [a["image_id"] for a in entries]
            photos = [coco.imgs[a["image_id"]]["file_name"] for a in entries]
            captions += [a["caption"].replace("\n", " ").strip() for a in entries]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{json_path} is no file of COCO's captions ({reason(error)} is "
                             "missing or no text); fetch it again") from error
        paths += [below(os.path.join(root, "images", folder), name, json_path) for name in photos]
        ids += numbers
    if not captions:
        raise InputError(f"{ids_path} names no captions; fetch it again")
    return _grouped(split, json_path, keys, paths, captions, np.array(ids, np.int64))
