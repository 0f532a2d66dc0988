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
import torch
from torch import Tensor
from tqdm import tqdm

import inputs
from cli import InputError, check
from files.reading import (
    INT64,
    advice,
    as_integers,
    below,
    called,
    integers,
    read_array,
    read_coco,
    read_json,
    read_lines,
    refusing,
)
from inputs import Features, NoImages, Photos, Tokens, encode_captions
from text import Vocabulary, tokenize

NAMED = "captions.tsv"
LONGEST = 10_000                   # words of a caption; a longer one would take the network minutes


class Batch(NamedTuple):
    """B matching pairs; or, with `labels`, R regions and M phrases of several photos."""
    images: Tensor                    # (B, F) features | (B, P, F) regions | (B, 3, H, W) photos
    tokens: Tensor                    # (B, T) int64 word numbers, zero-padded
    lengths: Tensor                   # (B,) int64, on the CPU (packing needs them there)
    image_index: Tensor               # (B,) int64, the row of each image in the split
    caption_index: Tensor             # (B,) int64, the row of each caption
    # images and captions that do not belong together (jWAE); fields that it lacks are None
    unpaired: "Batch | None" = None
    # (R, M) int8: a region fits a phrase, 1; does not, -1; is not compared with it, 0
    labels: Tensor | None = None

    def to(self, device) -> "Batch":
        pin = torch.device(device).type == "cuda"           # so that the copy need not wait
        return self.map(lambda x: (x.pin_memory() if pin else x).to(device, non_blocking=True))

    def map(self, f) -> "Batch":
        """f of every tensor but the lengths."""
        return Batch(*(x if x is self.lengths or x is None else x.map(f)
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

    def encode(self, vocab: Vocabulary, known: bool = True) -> Tokens | Features:
        """The captions as a model reads them: numbers of words or of letter trigrams, or features.
        With `known`, raises InputError on a caption without any known word."""
        if self.text is not None:
            return self.text
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
            twice = 0 if ids is None else len(ids) - len(set(ids))
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
        if self.text is not None:
            facts["text_sha256"] = self.text.digest()
        if self.extractors:
            facts["extractors"] = self.extractors
        return facts

    def unknown_words(self, vocab: Vocabulary) -> dict[str, int]:
        """How many of all words and of the distinct words the vocabulary does not list, beside the
        totals. Also how many captions have no listed word."""
        unknown = [[word for word in words if word not in vocab.index] for words in self.words]
        return {"words": sum(map(len, self.words)), "unknown_words": sum(map(len, unknown)),
                "distinct": len(set().union(*self.words)),
                "unknown_distinct": len(set().union(*unknown)),
                "captions_without": sum(len(a) == len(b) for a, b in zip(unknown, self.words))}


def read_text_features(root: str, split: str, name: str, captions: list[str],
                       source: str) -> Features:
    """Features of the captions of a split, {split}_{name}.npy, one row each. Raises InputError
    where there are none, or of others. source: where the captions stand."""
    start = os.path.join(root, f"{split}_{name}")
    path, facts = f"{start}.npy", f"{start}.json"
    check(os.path.isfile(path), f"there is no file {path} of --text_features; `python -m "
                                "features.extract captions` makes it")
    text = Features(path)
    check(text.array.shape[:-1] == (len(captions),),
          f"{path} has shape {text.array.shape} for the {len(captions)} captions of {source}; "
          "give one row a caption")
    check(not os.path.isfile(facts)
          or read_json(facts, "extract the features again") == inputs.told_of(captions),
          f"{path} was extracted from other captions than {source} holds now; call "
          "features.extract captions again")
    return text


def first_images(split: Split, n: int) -> Split:
    """The split, cut to its first n images and their captions."""
    keep = np.flatnonzero(split.caption_image < n)
    split.captions = [split.captions[m] for m in keep]
    split.caption_image = split.caption_image[keep]
    if split.caption_ids is not None:
        split.caption_ids = split.caption_ids[keep]
    if split.text is not None:
        split.text.cut(len(keep))
    split.image_ids, split.photo_names = (x and x[:n] for x in (split.image_ids, split.photo_names))
    split.images.cut(n)
    return split


# ---- readers

def _need(path: str) -> str:
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; "
                         f"{advice(os.path.basename(os.path.dirname(path)))}")
    return path


def read_precomputed(root: str, split: str, text_only: bool = False,
                     text_features: str | None = None) -> Split:
    split = called(split, lambda name: os.path.isfile(os.path.join(root, f"{name}_caps.txt")))
    start = os.path.join(root, split)
    source = f"{start}_caps.txt"
    if not os.path.isfile(source) and os.path.isfile(os.path.join(root, NAMED)):
        return read_named(root, split, text_features)
    check(glob.glob(os.path.join(root, "*_caps.txt"))
          or not os.path.isfile(os.path.join(root, "all_photos.json")),
          f"{root} holds photos without captions, which can be searched; to train on them give "
          "`features.extract images --photos` a captions.csv")
    captions, notes = read_lines(_need(source)), []
    ids, names = _read_ids(f"{start}_img_ids.npy"), _read_ids(f"{start}_ids.txt")
    if text_only and not os.path.isfile(f"{start}_ims.npy"):
        images = NoImages(len(ids or captions[::5]))
    else:
        images = Features(_need(f"{start}_ims.npy"))
    count, rows = len(captions), len(images)
    check(count and count % rows == 0,
          f"{source} has {count} captions for the {rows} rows of "
          f"{getattr(images, 'path', 'text-only images')}; there must be the same number of "
          "captions for every row")
    if isinstance(images, Features) and rows == count:      # SCAN and VSE++ repeat them
        images.step = inputs.rows_per_image(images)
    n = len(images)
    if n < count == len(names) and len(set(names)) == count:                    # of captions
        notes.append(f"{start}_ids.txt names every caption differently, so it does not say which "
                     "the images are")
        names = []
    ids = _one_an_image(ids, n, count, f"{start}_img_ids.npy")
    names = _one_an_image(names, n, count, f"{start}_ids.txt")
    path = f"{start}_ann_ids.npy"
    path = path if os.path.isfile(path) else f"{start}_capids.txt"
    caption_ids = _read_ids(path)
    check(len(caption_ids) in (0, count), f"{path} has {len(caption_ids)} ids for the {count} "
          f"captions of {source}; there must be one for each caption, in their order")
    caption_ids = as_integers(caption_ids)                  # None for names such as x.jpg#0
    return Split(split, images, captions, np.arange(count) // (count // n), source,
                 ids or as_integers(names) or names or None,
                 np.array(caption_ids, np.int64) if caption_ids else None, names or None,
                 read_text_features(root, split, text_features, captions, source)
                 if text_features else None,
                 inputs.extractors(root), notes)


def read_named(root: str, split: str, text_features: str | None = None) -> Split:
    """Features of photos by name, and the captions of NAMED that are of these photos. Raises
    InputError on a line of another form, a name twice, and where no caption is of a photo."""
    source, start = os.path.join(root, NAMED), os.path.join(root, split)
    others = ", ".join(named_splits(root))
    check(os.path.isfile(f"{start}_ims.npy"),
          f"{root} has no features {split}_ims.npy; its captions are of {others or 'no split'}, so "
          f"give --split {others or 'NAME'}")
    names, images = read_lines(_need(f"{start}_ids.txt")), Features(f"{start}_ims.npy")
    place = {name: row for row, name in enumerate(names)}
    check(len(place) == len(names) == len(images),
          f"{start}_ids.txt gives {len(place):,} names in {len(names):,} lines for the "
          f"{len(images):,} photos of {split}_ims.npy; give every photo one of its own")
    lines, rows = read_lines(source), {}
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
    owner, captions = map(list, zip(*rows.values()))
    left = len(lines) - len(rows)
    notes = [f"{left:,} captions of {source} are of other photos and left out"] if left else []
    return Split(split, images, captions, np.array(owner), source, names, None, names,
                 read_text_features(root, split, text_features, captions, source)
                 if text_features else None,
                 inputs.extractors(root), notes, list(rows))


def named_splits(root: str) -> list[str]:
    """The splits whose captions are in NAMED: those with names of photos and no captions of their
    own."""
    if not os.path.isfile(os.path.join(root, NAMED)):
        return []
    starts = [path.removesuffix("_ids.txt") for path in glob.glob(os.path.join(root, "*_ids.txt"))]
    return sorted(os.path.basename(start) for start in starts
                  if not os.path.isfile(f"{start}_caps.txt"))


def _one_an_image(x: list, n: int, count: int, path: str) -> list:
    """One id per image, from ids that may be given per caption, or none.

    Raises InputError for another number of ids, and where the captions of one image have different
    ids: then not every image has count / n captions one after another.
    """
    check(len(x) in (0, n, count), f"{path} has {len(x)} ids for {n} images; there must be one for "
                                   "each image or caption")
    if len(x) != count:
        return x
    each = count // n
    for first in range(0, count, each):
        if len(set(x[first:first + each])) > 1:
            raise InputError(f"{path} gives the captions {first + 1} to {first + each}, which "
                             f"{count} captions for {n} images make those of one image, more than "
                             "one id; let the captions of an image stand together, equally many "
                             "of each")
    return x[::each]


def _read_ids(path: str) -> list:
    """The ids beside a split, from an .npy file of integers or lines of text. Empty if there is no
    file."""
    if not os.path.isfile(path):
        return []
    if not path.endswith(".npy"):
        return read_lines(path)
    array = read_array(path, "fetch or save it again")
    check(array.ndim == 1 and array.dtype.kind in "iu" and array.max(initial=0) <= INT64.max,
          f"{path} is not a whole .npy file of integers (it holds {array.dtype} of shape "
          f"{array.shape}); fetch or save it again")
    return array.tolist()


def _grouped(name: str, source: str, rows: list[tuple]) -> tuple[Split, list]:
    """A Split of photos, from rows (key of the image, path of its photo, caption, id), and the ids
    of the captions. Images come in the order of their first appearance."""
    keys, paths, captions, ids = map(list, zip(*rows))
    path_of = dict(zip(keys, paths))
    position = {key: n for n, key in enumerate(path_of)}
    integers([key for key in position if isinstance(key, int)], source, "an image the id")
    return Split(name, Photos([*path_of.values()]), captions,
                 np.array([position[key] for key in keys], np.int64), source, list(position)), ids


def read_karpathy(root: str, path: str, split: str, use_restval: bool) -> Split:
    parts = {"dev": ["val"], "train": ["train", "restval"][:1 + use_restval]}.get(split, [split])
    names, numbers, rows = {}, {}, []
    with refusing(f"{path} is not in Karpathy's layout, of images with split, filename and "
                  "sentences with raw", "fetch it again"):
        for image in read_json(path)["images"]:
            if image["split"] not in parts:
                continue
            name = os.path.join(image.get("filepath", ""), image["filename"])
            key = image.get("cocoid", name)
            if key in names:
                raise InputError(f"{path} lists the images {names[key]} and {name} of split "
                                 f"'{split}' as one, {key}; list each once, with all its sentences "
                                 "and a cocoid of its own")
            names[key], numbers[key] = name, image.get("imgid")
            photo = below(os.path.join(root, "images"), name, path)
            rows += [(key, photo, sentence["raw"], sentence.get("sentid"))
                     for sentence in image["sentences"]]
    check(names, f"{path} has no images of split '{split}'; the splits are train, val (= dev) and "
                 "test")
    check(rows, f"{path} has {len(names):,} images of split '{split}' and not one sentence of "
                "them; give every image at least one")
    for key, _, caption, _ in rows:
        if not isinstance(caption, str):
            raise InputError(f"{path}, image {names[key]}: the raw sentence {ascii(caption)[:40]} "
                             "is no string; put its text in quotes")
    result, ids = _grouped("dev" if split == "val" else split, path, rows)
    result.caption_ids = _own(ids, path, "the sentid")
    if all(key == name for key, name in names.items()):                             # no cocoid
        numbers = _own([numbers[key] for key in result.image_ids], path, "the imgid")
        if numbers is not None:
            result.photo_names, result.image_ids = result.image_ids, numbers.tolist()
    if without := len(names) - len(result.images):
        result.notes.append(f"{path}: {without:,} of {len(names):,} images of split '{split}' have "
                            "no sentence and are left out")
    return result


def _own(ids: list, path: str, what: str) -> np.ndarray | None:
    """The ids that `path` gives (`integers`), or None unless all are integers and different."""
    different = all(type(i) is int for i in ids) and len(set(ids)) == len(ids)
    return integers(ids, path, what) if different else None


def read_coco_layout(root: str, split: str, use_restval: bool) -> Split:
    split = "dev" if split == "val" else split
    parts = {split: "train2014" if split == "train" else "val2014"}
    if use_restval and split == "train":
        parts["restval"] = "val2014"                            # 30,504 images of the 2014 val set
    rows = []
    for part, folder in parts.items():
        ids_path = os.path.join(root, "annotations", f"coco_{part}_ids.npy")
        json_path = _need(os.path.join(root, "annotations", f"captions_{folder}.json"))
        numbers = _read_ids(_need(ids_path))                                        # caption ids
        coco = read_coco(json_path)
        if absent := [i for i in numbers if i not in coco.anns]:
            raise InputError(f"{ids_path} names {len(absent)} captions that {json_path} lacks, the "
                             f"first is {absent[0]}; the two files must belong together")
        photos = os.path.join(root, "images", folder)
        with refusing(f"{json_path} is no file of COCO's captions, or lacks a field",
                      "fetch it again"):
            for i in numbers:
                key, caption = coco.anns[i]["image_id"], coco.anns[i]["caption"]
                photo = below(photos, coco.imgs[key]["file_name"], json_path)
                rows.append((key, photo, caption.replace("\n", " ").strip(), i))
    check(rows, f"{ids_path} names no captions; fetch it again")
    result, ids = _grouped(split, json_path, rows)
    result.caption_ids = np.array(ids, np.int64)
    return result
