"""What a data set is once it is read: the images and captions of a split, and batches of them."""
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor
from tqdm import tqdm

import inputs
from cli import InputError
from devices.share import Share
from files import shards
from files.reading import read_json
from inputs import CaptionFeatures, Features, NoImages, Photos, Tokens, TrigramTokens, encode_captions
from text import Vocabulary, tokenize

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
