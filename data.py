"""Splits of data sets, their batches, and the check of a data folder.

    python data.py check --data_path data --data_name f8k_precomp

The files of a folder decide how it is read:

    {split}_ims.npy, {split}_caps.txt   features (N, F) or regions (N, P, F); a caption a line (VSE++, SCAN)
    {split}_ims.npy, captions.tsv       the same; captions by the name of their photo, as in Flickr8k.token.txt
    annotations/, images/               COCO's captions, and the caption ids of VSE++'s splits
    dataset_*.json, images/             Karpathy's splits
    Flickr8k.token.txt, lists, photos   Flickr8k as it is published
"""
if __name__ == "__main__":
    import cli
    cli.start()

import atexit
import functools
import glob
import os
import re
import signal
import sys
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

import cli
from cli import Arguments, InputError, check, data_set, filename
from files import (
    HELP,
    below,
    integers,
    need,
    note_inputs,
    read_array,
    read_coco,
    read_json,
    read_lines,
    refusing,
    repeated,
    sha256,
)
from images import Features, NoImages, Photos, count_repeats, count_shared

DEV_IMAGES = 1000                     # VSE++ cuts the dev split of precomputed data and of COCO to 5,000 captions
NAMED_CAPTIONS = "captions.tsv"
# Files of Flickr8k as it is published: the captions, and the names of the photos of each split.
FLICKR8K_CAPTIONS = "Flickr8k.token.txt"
FLICKR8K_LISTS = {"train": "Flickr_8k.trainImages.txt", "dev": "Flickr_8k.devImages.txt",
                  "test": "Flickr_8k.testImages.txt"}
FLICKR8K_SOURCE = ("the University of Illinois gives Flickr8k_text.zip and Flickr8k_Dataset.zip, which holds the "
                   "photos, to everyone who fills in forms.illinois.edu/sec/1713398; unpack both")
DATA_FILES = ("*_caps.txt", "*_ims.npy", "*_ids.txt", "*_ids.npy", "*_capids.txt", NAMED_CAPTIONS, "features.json",
              "dataset*.json", "annotations/*", "Flickr*8k.*.txt", "*/Flickr*8k.*.txt", "*/*/Flickr*8k.*.txt")
THRESHOLD = 4                         # a vocabulary lists words that occur at least this often
# Captions in which the tokenizer would only split off commas, 's and a final full stop. 99% of real captions are such,
# and without the tokenizer they are read 50 times as fast.
PLAIN = re.compile(r"[a-z0-9 ]*+(?:(?:-(?!-)|,(?= )|'s(?=[ .]|$))[a-z0-9 ]*+)*+\.?")
SPLIT = re.compile("cannot|gimme|gonna|gotta|lemme|wanna")    # words that the tokenizer takes apart
AHEAD = 4                             # batches that are read before the GPU needs them
LONGEST = 10_000                      # words and marks of a caption; a longer one would take the network minutes
# Share of the captions of a split that are also training captions, from which it is said.
SHARED_IN_CHECK, SHARED_IN_TRAINING = 0.01, 0.3
LONG_CAPTION = 8                      # words from which captions seldom repeat by chance
NO_CAPTION = {"", "nan", "null", "none", "n/a", "#n/a", "<na>", "undefined"}      # as tables write a missing one
NAMED_LINE = re.compile(r"(\S+#)?\d+\t|\S+\.(jpe?g|png)(#\d+)?\s*[\t|,;]", re.IGNORECASE)   # a photo, then its caption


# ---- captions and their words

def tokenize(caption: str) -> list[str]:
    """The words and punctuation marks of a caption in lower case.
    `preserve_line=True` needs no downloaded sentence model. It differs from VSE++'s call only where a full stop stands
    inside a caption (53 of 200,000 real captions tried)."""
    text = caption.lower()
    if PLAIN.fullmatch(text) and not SPLIT.search(text):
        return text.replace("'s", " 's").replace(",", " ,").removesuffix(".").split() + ["."] * text.endswith(".")
    from nltk.tokenize import word_tokenize  # takes a second to import, and few captions need it

    return word_tokenize(text, preserve_line=True)


def count_words(caption: str) -> int:
    """Count the words and punctuation marks that a network reads of a caption.
    Of one that is too long by its letters alone, only what stands between blanks is counted."""
    if len(caption) > 10 * LONGEST:
        return len(caption.split())
    return len(tokenize(caption))


def join_words(caption: str) -> str:
    """A caption in lower case with single blanks, to be compared."""
    return " ".join(caption.lower().split())


def shorten(text: str, most: int = 60) -> str:
    """Cut a text for a sentence to `most` letters."""
    return text if len(text) <= most else f"{text[:most - 3]}..."


class Words(Sequence):
    """Captions (M) as lists of words, which are stored as numbers: COCO's 566,435 take 35 MB, and as lists 1.2 GB.

    distinct: the U different words, by first appearance. number (S,): of each word, one caption after another. length
    (M,): words of each caption. start (M,): the place of its first word in `number`.
    """

    def __init__(self, captions: Iterable[list[str]]):
        """captions: M lists of words."""
        place = _Numbering()
        find_place = place.__getitem__
        numbers: list[int] = []
        lengths: list[int] = []
        for words in captions:
            numbers.extend(map(find_place, words))
            lengths.append(len(words))
        self.distinct = list(place)
        self.number = np.array(numbers, np.int32)
        self.length = np.array(lengths, np.int64)
        self.start = np.cumsum(self.length) - self.length

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, m):
        """The words of caption m, or a list of those of a slice of captions."""
        if isinstance(m, slice):
            return [self[k] for k in range(*m.indices(len(self)))]
        start = self.start[m]
        return [self.distinct[k] for k in self.number[start:start + self.length[m]].tolist()]

    def count(self) -> Counter:
        """Count how often each word occurs."""
        counts = np.bincount(self.number, minlength=len(self.distinct))
        return Counter(dict(zip(self.distinct, counts.tolist())))

    def count_in_captions(self, chosen: np.ndarray) -> np.ndarray:
        """Count the words of each caption (M,) that are among the `chosen`, a mask of the distinct ones (U,)."""
        before = np.concatenate([[0], np.cumsum(chosen[self.number])])
        return before[self.start + self.length] - before[self.start]


class _Numbering(dict):
    """Numbers keys from 0 as they are first asked for."""

    def __missing__(self, key) -> int:
        self[key] = number = len(self)
        return number


# ---- batches and splits

class Batch(NamedTuple):
    """B matching pairs."""
    images: Tensor                    # (B, F) features | (B, P, F) regions | (B, 3, H, W) photos
    tokens: Tensor                    # (B, T) int64 word numbers, zero-padded
    lengths: Tensor                   # (B,) int64, on the CPU (packing needs them there)
    image_index: Tensor               # (B,) int64, the row of each image in the split
    caption_index: Tensor             # (B,) int64, the row of each caption
    unpaired: "Batch | None" = None   # images and captions that do not belong together (jWAE); it has no indices

    def to(self, device) -> "Batch":
        pin = torch.device(device).type == "cuda"           # so that the copy need not wait
        return Batch(*(x if x is None or x is self.lengths else x.to(device) if isinstance(x, Batch)
                       else (x.pin_memory() if pin else x).to(device, non_blocking=True) for x in self))


@dataclass
class Split:
    """N images and their M captions."""
    kind = "captions"                             # what a subclass calls them, for messages
    name: str
    images: Features | Photos | NoImages
    captions: list[str]
    caption_image: np.ndarray                     # (M,) int64, the row of each caption's image
    source: str                                   # where the captions come from, for messages
    image_ids: list | None = None                 # N integers (COCO's, Karpathy's imgid) or file names
    caption_ids: np.ndarray | None = None         # (M,) int64 (COCO's, Karpathy's sentid)
    photo_names: list | None = None               # N file names, where neither the photos nor image_ids give them
    text: Features | None = None                  # (M, F) features of the captions, where a model reads them
    extractors: dict | None = None                # {"ims": name, ...}, from features.json
    notes: list[str] = field(default_factory=list)          # sentences for whoever reads a result on this split
    caption_names: list[str] | None = None        # M names NAME#K, where a file gives them
    true_image: np.ndarray | None = None          # (M,) caption_image before `change_pairs`

    @functools.cached_property
    def words(self) -> Words:
        """The captions as lists of words."""
        return Words(map(tokenize, tqdm(self.captions, f"words of {self.name}", disable=None, leave=False)))

    def encode(self, vocab):
        """Encode captions as a model reads them: `vocab.Tokens`, or features.

        Captions without any known word stand as unknown words alone, as in VSE++, and a note
        counts them. Raises InputError where no caption has a known word.
        """
        if self.text is not None:
            return self.text

        tokens = vocab.encode_captions(self.words)
        unknown = np.flatnonzero(tokens.unknown)
        if len(unknown) == len(self.captions):
            raise InputError(self.describe_foreign(len(vocab)))

        note = self.describe_unknown(unknown)
        if note and note not in self.notes:
            self.notes.append(note)
        return tokens

    def describe_unknown(self, unknown: np.ndarray) -> str:
        """Count the captions (k,) without a known word, as a note; "" without any."""
        if not len(unknown):
            return ""
        first = shorten(self.captions[unknown[0]])
        have = "has" if len(unknown) == 1 else "have"
        return (f"{len(unknown):,} of {len(self.captions):,} {self.name} {self.kind} {have} no known "
                f"word, the first is '{first}'; they are read as unknown words")

    def describe_foreign(self, count: int) -> str:
        """Describe a fault: no caption has a word of a vocabulary of `count` words."""
        return (f"{self.source}: no word of its {len(self.captions):,} {self.kind} is in the "
                f"vocabulary of {count:,} words (the first is '{shorten(self.captions[0])}'); give "
                "captions in the language of the vocabulary, or train with the vocabulary of "
                "these captions and a lower --vocab_threshold")

    def batches(self, tokens, order, batch_size: int, *, seed: tuple = (0,), skip: int = 0,
                crop_size: int | None = None, workers: int = 0, pin: bool = False):
        """Yield batches of matching pairs in an order of captions (m,).
        tokens: from `encode`. skip: batches to leave out (resuming). With crop_size photos are augmented as in
        training, at random by `seed`; else they are cropped as in tests. pin: see `stream`."""
        parts = chunks(np.ascontiguousarray(order), batch_size)[skip:]
        read, rows = self.images.gather, [self.caption_image[part] for part in parts]
        if crop_size and isinstance(self.images, Photos):
            read = functools.partial(self.images.augment, crop_size=crop_size, seed=seed)
            rows = [np.stack([part, images], 1) for part, images in zip(parts, rows)]       # (B, 2)
        for part, images in zip(parts, stream(read, rows, workers * self.images.parallel, pin)):
            yield Batch(images, *tokens.batch(part), torch.from_numpy(self.caption_image[part]), torch.from_numpy(part))

    def place(self, m: int) -> str:
        """The place of caption m in the source, for messages."""
        if self.caption_names:
            return f"{self.source}, caption {self.caption_names[m]}"
        return f"{self.source}, {'line' if self.source.endswith('.txt') else 'caption'} {m + 1}"

    def faults(self, deep: bool = False, images: bool = True):
        """Yield sentences on faults of the contents; without `images`, of captions alone.
        `deep` opens every photo and reads every feature."""
        for m, caption in enumerate(self.captions):
            if caption.strip().lower() in NO_CAPTION:
                text = ascii(caption.strip()) if caption.strip() else "empty"
                yield f"{self.place(m)}: the caption is {text}; every caption needs words, so write or remove it"
            elif len(caption) > LONGEST:                    # only such a one can have too many words
                count = count_words(caption)
                if count > LONGEST or len(caption) > 10 * LONGEST:
                    yield (f"{self.place(m)} has {count:,} words in {len(caption):,} letters; at most {LONGEST:,} "
                           f"words in {10 * LONGEST:,} letters are read, so shorten or remove it")
        lines = [m for m, caption in enumerate(self.captions) if NAMED_LINE.match(caption)]
        if lines:
            yield (f"{self.place(lines[0])}: {ascii(self.captions[lines[0]][:40])} begins with the name of a photo, as "
                   f"do {len(lines):,} of {len(self.captions):,} captions; leave the names out (cut -f2-), or put "
                   "lines NAME#K, tab, text into captions.tsv beside {split}_ids.txt")
        if images:
            yield from self.images.faults(deep)
        for kind, ids in (("images", self.image_ids), ("captions", self.caption_ids)) if deep and images else ():
            twice = 0 if ids is None else len(ids) - len(set(ids))
            if twice:
                yield (f"{self.source}: {twice} of {len(ids)} {kind} have the id or name of another one; give each its "
                       "own, or leave the ids out")
        if self.text is not None:
            yield from self.text.faults(deep)

    def doubts(self, train: "Split | None" = None, deep: bool = False):
        """Yield (whether it is a fault, sentence) on contents that can be read and look wrong.

        train: a split whose images and captions this one should not hold. deep: also read
        features of more than 4 GiB.
        """
        yield from self.images.doubts(deep)
        if train is None:
            return

        count = len(self.images)
        shared = count_shared(self.images, train.images, deep)
        if shared:
            yield 2 * shared > count, (
                f"{self.source}: {shared:,} of {count:,} {self.name} images are also in {train.name} (the same "
                "features or the same file); leave them out of one of the two")

        known = {join_words(caption) for caption in train.captions}
        captions = [join_words(caption) for caption in self.captions]
        long = [caption for caption in captions if caption.count(" ") >= LONG_CAPTION - 1]
        share = sum(caption in known for caption in captions) / len(captions)
        long_share = sum(caption in known for caption in long) / max(1, len(long))
        if share >= (SHARED_IN_CHECK if deep else SHARED_IN_TRAINING):
            yield min(share, long_share) > 0.5, (
                f"{self.source}: {share:.0%} of the {len(captions):,} {self.name} captions are also in {train.name}, "
                f"word for word, and {long_share:.0%} of those of {LONG_CAPTION} words or more; short captions repeat "
                "by chance, many long ones are copies")

    def note_doubts(self, train: "Split | None" = None) -> None:
        """Add the doubts to the notes, for whoever trains or reads a result."""
        self.notes += [sentence for _, sentence in self.doubts(train)]

    def require_sound(self, images: bool = True) -> "Split":
        """Return the split. Raises InputError with the first of its faults."""
        for fault in self.faults(images=images):
            raise InputError(fault)
        return self

    def cut(self, n: int) -> None:
        """Keep the first n images and their captions."""
        keep = np.flatnonzero(self.caption_image < n)
        self.captions, self.caption_image = [self.captions[m] for m in keep], self.caption_image[keep]
        if self.caption_ids is not None:
            self.caption_ids = self.caption_ids[keep]
        if self.caption_names:
            self.caption_names = [self.caption_names[m] for m in keep]
        if self.text is not None:
            self.text.array = self.text.array[keep]         # captions.tsv may list captions in any order
        self.image_ids, self.photo_names = (x and x[:n] for x in (self.image_ids, self.photo_names))
        self.images.cut(n)

    def fingerprint(self) -> dict:
        """Return sizes and checksums of captions and features, for a run's config.yaml."""
        facts = {"images": len(self.images), "captions": len(self.captions), "images_sha256": self.images.digest(),
                 "captions_sha256": sha256("\n".join(self.captions))}
        if self.text is not None:
            facts["text_sha256"] = self.text.digest()
        if self.true_image is not None:
            facts |= {"wrong_captions": int(self.wrong.sum()), "pairs_sha256": sha256(self.caption_image)}
        return {**facts, "extractors": self.extractors} if self.extractors else facts

    @property
    def wrong(self) -> np.ndarray:
        """Mask (M,) of the captions that `change_pairs` gave another image."""
        return self.caption_image != (self.caption_image if self.true_image is None else self.true_image)

    def change_pairs(self, ratio: float = 0.0, seed: int = 0, path: str | None = None) -> None:
        """Give captions the images of others ("noisy correspondence", Huang et al. 2021).
        A random `ratio` of them exchange their images, or `read_pairs` reads these from a file."""
        images, count = self.caption_image.copy(), len(self.captions)
        if path:
            images, text = read_pairs(path, images, len(self.images)), f"--noise_file {path}"
        else:
            rng = np.random.default_rng(seed)
            chosen = rng.permutation(count)[:int(ratio * count)]
            images[chosen], text = images[rng.permutation(chosen)], f"--noise_ratio {ratio:g} --noise_seed {seed}"
        self.true_image, self.caption_image = self.caption_image, images
        wrong = int(self.wrong.sum())
        self.notes.append(f"{wrong:,} of {count:,} training captions ({wrong / count:.1%}) have another image than "
                          f"theirs by {text}")

    def unknown_words(self, vocab) -> dict[str, int]:
        """Count words, distinct words and captions that the vocabulary does not know."""
        words = self.words
        unknown = np.array([word not in vocab.index for word in words.distinct], bool)              # (U,)
        count = words.count_in_captions(unknown)                                    # (M,)
        return {"words": len(words.number), "unknown_words": int(count.sum()), "distinct": len(words.distinct),
                "unknown_distinct": int(unknown.sum()), "captions_without": int((count == words.length).sum())}


# ---- reading in order

class _Reader:
    """Read in a worker process, where an InputError raised would become a traceback."""

    def __init__(self, read):
        self.read = read

    def __getitem__(self, chunk):
        try:
            return self.read(chunk)
        except InputError as error:
            return error


def _ignore_signals(worker: int) -> None:
    """Ignore Ctrl-C in a worker process: its parent saves first and then ends it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def stream(read, chunks, workers: int, pin: bool = False):
    """Yield read(chunk) of all chunks, in order, by `workers` processes (0: this one).
    pin: for a GPU. The results lie in memory that it copies from while it computes, and are read while it computes,
    in this process by a thread."""
    if not workers and pin:
        device = torch.cuda.current_device()                # which the thread would not know
        yield from read_ahead(lambda chunk: read(chunk).pin_memory(), chunks, lambda: torch.cuda.set_device(device))
        return
    if not workers:
        yield from map(read, chunks)
        return
    loader = DataLoader(_Reader(read), sampler=chunks, batch_size=None, num_workers=workers,
                        collate_fn=torch.nn.Identity(), worker_init_fn=_ignore_signals, pin_memory=pin,
                        generator=torch.Generator(),          # torch's own is the training's
                        multiprocessing_context="fork" if sys.platform == "linux" else None)
    results = iter(loader)
    end = results._shutdown_workers
    atexit.register(end)                      # multiprocessing would wait for them, who ignore its signal
    try:
        for result in results:
            if isinstance(result, InputError):
                raise result
            yield result
    except (ConnectionError, EOFError) as error:            # it ended while it handed over a result
        raise RuntimeError("DataLoader worker exited unexpectedly") from error
    finally:
        end()
        atexit.unregister(end)


def read_ahead(read, chunks, prepare=None):
    """Yield read(chunk) of all chunks, in order. A thread reads the next AHEAD of them meanwhile, after prepare()."""
    pool = ThreadPoolExecutor(1, initializer=prepare)
    coming: deque[Future] = deque()
    try:
        for chunk in chunks:
            coming.append(pool.submit(read, chunk))
            if len(coming) > AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def chunks(order, batch_size: int) -> list[np.ndarray]:
    return [order[k:k + batch_size] for k in range(0, len(order), batch_size)]


# ---- the layouts

def read_split(data_path: str, data_name: str, split: str, *, use_restval: bool = False, dev_images: int = DEV_IMAGES,
               text_only: bool = False, text_features: str | None = None) -> Split:
    """Read one split of data_path/data_name. Raises InputError on what is wrong in it.
    split: train, dev (= val), test or testall. dev_images: only the first images of a dev split of precomputed data or
    COCO are kept, as in VSE++; 0 keeps all. text_only: {split}_caps.txt may be there without features.
    text_features: the name in {split}_{name}.npy, features of the captions of precomputed data."""
    root = os.path.join(data_path, data_name)
    check(os.path.isdir(root), f"there is no folder {root} (--data_path {data_path}, --data_name {data_name}); {HELP}")
    note_inputs(*list_data_files(root))
    karpathy, photos = sorted(glob.glob(os.path.join(root, "dataset*.json"))), True
    if os.path.isdir(os.path.join(root, "annotations")):
        result = read_coco_layout(root, split, use_restval)
    elif karpathy:
        result = read_karpathy(root, karpathy[0], split, use_restval)
    elif holds_flickr8k(root):
        result = read_flickr8k(root, split)
    else:
        result, photos = read_precomputed(root, split), False
        if isinstance(result.images, NoImages):
            check(text_only, f"there is no file {os.path.join(root, result.name)}_ims.npy; "
                             f"{describe_conversion(root, result.name) or HELP}")
    check(not text_features or not photos,
          f"--text_features {text_features}: {root} holds photos, and features of captions lie beside precomputed "
          "ones; extract both with features.images")
    result.extractors = read_extractors(root)
    if text_features:
        result.text = read_text_features(root, result, text_features)
    if split in ("dev", "val") and not karpathy and 0 < dev_images < len(result.images):
        result.cut(dev_images)
    return result


def list_data_files(root: str) -> list[str]:
    """List the files of a data set's folder that hold its captions, ids and features of images, of all splits."""
    return [path for pattern in DATA_FILES for path in glob.glob(os.path.join(glob.escape(root), pattern))]


def read_precomputed(root: str, split: str) -> Split:
    """Read features and captions of a split in SCAN's layout, a caption a line."""
    texts, features = (glob.glob(os.path.join(root, f"*_{kind}")) for kind in ("caps.txt", "ims.npy"))
    check(texts or features,
          f"{root} holds no data set: looked for {split}_caps.txt and {split}_ims.npy (precomputed), annotations/ "
          f"(COCO), dataset_*.json (Karpathy) and {FLICKR8K_CAPTIONS} (Flickr8k); {HELP}")
    if split in ("dev", "val"):                             # one split of two names
        names = [name for name in (split, "dev", "val") if os.path.isfile(os.path.join(root, f"{name}_caps.txt"))]
        split = (names or [split])[0]
    start = os.path.join(root, split)
    source = f"{start}_caps.txt"
    if not os.path.isfile(source):
        check(os.path.isfile(os.path.join(root, NAMED_CAPTIONS)), f"there is no file {source}; {HELP}")
        return read_named(root, split)
    captions = read_lines(source)
    count, features = len(captions), f"{start}_ims.npy"
    if os.path.isfile(features):
        images = Features(features)
        if len(images) == count:
            repeats = count_repeats(images.array, features)
            alike = 5 if count % 5 == 0 else 1              # all rows are equal: VSE++'s layout, if it can be
            images.step = repeats or alike
    else:
        images = NoImages(len(read_ids(f"{start}_img_ids.npy")) or (count if count % 5 else count // 5))
    n, notes = len(images), []
    conversion = describe_conversion(root, split) if isinstance(images, NoImages) else ""
    if conversion:
        notes.append(f"no {split}_ims.npy, so captions alone are read; {conversion}")
    blank = next((f"; its line {m} is empty" for m, caption in enumerate(captions, 1) if not caption.strip()), "")
    check(count and count % n == 0,
          f"{source} has {count} captions for the {n} rows of {features}, not the same number for each{blank}; "
          f"if images have different numbers of captions, write lines NAME#K, tab, text into {NAMED_CAPTIONS} and the "
          f"NAME of each row into {split}_ids.txt, and remove {split}_caps.txt")
    names, ids = (read_image_ids(f"{start}_{end}", n, count) for end in ("ids.txt", "img_ids.npy"))
    paths, coco = [f"{start}_ann_ids.npy", f"{start}_capids.txt"], os.path.join(root, "coco_test_ids.npy")    # VSE++'s
    path = next(filter(os.path.isfile, paths + [coco] * (split == "testall")), paths[1])
    caption_ids = read_ids(path)
    check(len(caption_ids) in (0, count), f"{path} has {len(caption_ids)} ids for the {count} captions of {source}; "
                                          "there must be one for each caption, in their order")
    if path == coco:
        notes.append(f"the caption ids of {source} come from {coco}, in its order")
    return Split(split, images, captions, np.arange(count) // (count // n), source, ids or names or None,
                 None if not caption_ids or isinstance(caption_ids[0], str) else np.array(caption_ids, np.int64),
                 names if names and isinstance(names[0], str) else None, notes=notes)


# Files of features in other forms, and the line that converts them.
CONVERSIONS = {
    ".npz": "import numpy as np; a = np.load('{0}'); np.save('{1}', a[a.files[0]])",
    ".h5": "import h5py, numpy as np; f = h5py.File('{0}'); np.save('{1}', f[list(f)[0]][:])",
    ".pt": "import torch, numpy as np; np.save('{1}', torch.load('{0}', map_location='cpu').numpy())",
    ".mat": "import scipy.io, numpy as np; a = scipy.io.loadmat('{0}'); np.save('{1}', a[list(a)[-1]])",
    ".pkl": "import numpy as np; np.save('{1}', np.load('{0}', allow_pickle=True))",
    ".npy": "import numpy as np; np.save('{1}', np.load('{0}'))",
    ".csv": "import numpy as np; np.save('{1}', np.loadtxt('{0}', delimiter=',', dtype='f4'))",
    ".safetensors": "from safetensors.numpy import load_file; import numpy as np; a = load_file('{0}'); "
                    "np.save('{1}', a[list(a)[0]])",
}
CONVERSIONS |= {".hdf5": CONVERSIONS[".h5"], ".pth": CONVERSIONS[".pt"], ".pickle": CONVERSIONS[".pkl"]}
FEATURES = re.compile("ims|img|image|feat", re.IGNORECASE)            # in a name of such a file
IDS = re.compile(r".*_(img_ids|ann_ids|ids)\.npy")


def find_foreign_features(root: str, split: str = "") -> str | None:
    """Find a file of features of a split, or of any, that is not {split}_ims.npy."""
    for name in sorted(os.listdir(root)):
        ending = os.path.splitext(name)[1].lower()
        if ending not in CONVERSIONS or name.endswith("_ims.npy") or IDS.fullmatch(name):
            continue
        named = FEATURES.search(name) or ending not in (".npy", ".pkl", ".pickle", ".csv")
        of_split = split in name or not re.search("train|dev|val|test", name)
        if named and of_split:
            return os.path.join(root, name)
    return None


def describe_conversion(root: str, split: str) -> str:
    """Say how to convert features of a split from another form; "" where there are none."""
    path = find_foreign_features(root, split)
    if path is None:
        return ""
    line = CONVERSIONS[os.path.splitext(path)[1].lower()].format(path, os.path.join(root, f"{split}_ims.npy"))
    return (f"features are read from .npy files, so convert {os.path.basename(path)} (its array may have another "
            f'name): python -c "{line}"')


def read_named(root: str, split: str) -> Split:
    """Read features of photos by name, and their captions in captions.tsv."""
    source, start = os.path.join(root, NAMED_CAPTIONS), os.path.join(root, split)
    splits = ", ".join(named_splits(root))
    check(os.path.isfile(f"{start}_ims.npy"), f"{root} has no features {split}_ims.npy; its captions are of "
                                              f"{splits or 'no split'}, so give --split {splits or 'NAME'}")
    names, images = read_lines(need(f"{start}_ids.txt", HELP)), Features(f"{start}_ims.npy")
    row = {compose_name(name): n for n, name in enumerate(names)}
    check(len(row) == len(names) == len(images),
          f"{start}_ids.txt gives {len(row):,} names in {len(names):,} lines for the {len(images):,} photos of "
          f"{split}_ims.npy; give every photo one of its own")
    captions, others = {}, 0
    for key, (name, text) in read_caption_lines(source).items():
        if compose_name(name) in row:
            captions[key] = row[compose_name(name)], text
        else:
            others += 1
    check(captions, f"{source} has no caption of the {len(names):,} photos of {split}_ids.txt; give captions and "
                    "photos that belong together")
    caption_image, texts = map(list, zip(*captions.values()))
    notes = [f"{others:,} captions of {source} are of other photos and left out"] if others else []
    return Split(split, images, texts, np.array(caption_image), source, names, photo_names=names, notes=notes,
                 caption_names=list(captions))


def read_caption_lines(path: str) -> dict[str, tuple[str, str]]:
    """Read captions by the name of their photo from lines NAME#K, tab, text: {"NAME#K": (NAME, text)}.

    Blank lines are skipped, and a line that stands there twice counts once. Raises InputError on
    other lines, and where two captions have one NAME#K.
    """
    captions = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"((.+)#[0-9]+)\t(.*)", line)
        if not match or captions.get(match[1], match.groups()[1:]) != match.groups()[1:]:
            raise InputError(f"{path}, line {number}: {ascii(line[:60])} is not a new NAME#K, tab, text; write every "
                             "caption once, as in Flickr8k.token.txt")
        captions[match[1]] = match[2], match[3]
    return captions


def compose_name(name: str) -> str:
    """Compose the accents of a file's name (NFC), which macOS stores apart."""
    return unicodedata.normalize("NFC", name)


def named_splits(root: str) -> list[str]:
    """List the splits of a folder whose captions are in captions.tsv."""
    if not os.path.isfile(os.path.join(root, NAMED_CAPTIONS)):
        return []
    starts = [path.removesuffix("_ids.txt") for path in glob.glob(os.path.join(root, "*_ids.txt"))]
    return sorted(os.path.basename(start) for start in starts if not os.path.isfile(f"{start}_caps.txt"))


def read_ids(path: str) -> list:
    """Ids from an .npy file of integers, or lines of text, integers if all are 1 to 18 digits; [] without a file."""
    if not os.path.isfile(path):
        return []
    if not path.endswith(".npy"):
        lines = read_lines(path)
        return [*map(int, lines)] if all(re.fullmatch("[0-9]{1,18}", line) for line in lines) else lines
    array = read_array(path, "fetch or save it again")
    check(array.ndim == 1 and array.dtype.kind in "iu" and array.max(initial=0) <= np.iinfo(np.int64).max,
          f"{path} is not a whole .npy file of integers (it holds {array.dtype} of shape {array.shape}); save it again")
    return array.tolist()


def read_image_ids(path: str, n: int, count: int) -> list:
    """Read one id per image; the file may give one per caption, or not be there.
    Captions of an image must have one id, else not every image has count / n captions one after another; ids that
    differ for all captions name no images."""
    ids, each = read_ids(path), count // n
    check(len(ids) in (0, n, count), f"{path} has {len(ids)} ids for {n} images; give one for each image or caption")
    if len(ids) <= n:
        return ids
    if len(set(ids)) == count:
        return []
    first = next((k for k in range(0, count, each) if len(set(ids[k:k + each])) > 1), None)
    check(first is None, f"{path} gives the captions {(first or 0) + 1} to {(first or 0) + each}, which {count} "
                         f"captions for {n} images make those of one image, more than one id; let the captions of an "
                         "image stand together, equally many of each")
    return ids[::each]


def read_text_features(root: str, split: Split, name: str, program: str = "features.captions") -> Features:
    """Read features of captions, {split}_{name}.npy, which `program` writes."""
    start = os.path.join(root, f"{split.name}_{name}")
    path, facts, count = f"{start}.npy", f"{start}.json", len(split.captions)
    check(os.path.isfile(path), f"there is no file {path}, features of captions; make it with python -m "
                                f"{program} --data_name {os.path.basename(root)}")
    text = Features(path)
    check(text.array.shape[:-1] == (count,),
          f"{path} has shape {text.array.shape} for the {count} captions of {split.source}; give one row a caption")
    stored = read_json(facts, "extract the features again") if os.path.isfile(facts) else None
    check(stored in (None, {"captions_sha256": split.fingerprint()["captions_sha256"]}),
          f"{path} was extracted from other captions than {split.source} holds now; run {program} again")
    return text


def read_pairs(path: str, caption_image: np.ndarray, n: int) -> np.ndarray:
    """Read the images of M captions from a file of wrong pairs of N images: (M,).
    NCR publishes (M,), the image of each caption; DECL (Qin et al. 2022) publishes (N,), the image that takes the place
    of each image, with all captions of it."""
    file, count = read_array(path, "fetch it again, or write it with np.save"), len(caption_image)
    check(file.dtype.kind in "iu" and file.shape in ((count,), (n,)),
          f"{path} holds {file.dtype} of shape {file.shape}; wrong pairs are whole numbers, ({count},) the image of "
          f"each training caption (NCR), or ({n},) the image in the place of each image (DECL)")
    check(0 <= file.min() and file.max() < n,
          f"{path} has numbers from {file.min()} to {file.max()}, and the {n:,} training images are numbered from 0 to "
          f"{n - 1}; use the file of this data set")
    images = np.array(file, np.int64)
    return images if len(images) == count else images[caption_image]


def read_extractors(folder: str) -> dict[str, str]:
    """Read a folder's features.json, {file suffix: extractor}, which may be missing."""
    path = os.path.join(folder, "features.json")
    stored = read_json(path, "delete it and extract again") if os.path.isfile(path) else {}
    check(isinstance(stored, dict) and all(isinstance(value, str) for value in stored.values()),
          f"{path} is not a JSON object, file suffix to extractor; delete it and extract again")
    return stored


def check_extractors(trained: dict | None, split: Split, text_features: str | None, path: str) -> None:
    """Raise InputError on features of another extractor than in training."""
    for kind in ("ims", text_features):
        before, now = ((made or {}).get(kind) for made in (trained, split.extractors))
        features = "image features" if kind == "ims" else f"caption features '{kind}'"
        check(not before or not now or before == now,
              f"{split.source}: the {features} beside it were made by '{now}', {path} was trained on features of "
              f"'{before}'; extract them with the same network or vectors")


def read_karpathy(root: str, path: str, split: str, use_restval: bool = False) -> Split:
    """Read photos and captions of a split in Karpathy's JSON.
    Ids are cocoid, else imgid, else names of files; and sentid."""
    entries, captions = {}, []
    parts = {"dev": ["val"], "train": ["train", "restval"][:1 + use_restval]}.get(split, [split])
    with refusing(f"{path} is not in Karpathy's layout, of images with split, filename and sentences with raw",
                  "fetch it again"):
        for image in read_json(path)["images"]:
            if image["split"] in parts:
                name = os.path.join(image.get("filepath", ""), image["filename"])
                key = image.get("cocoid", name)
                check(key not in entries, f"{path} lists the image {name} of split '{split}' or its cocoid, {key}, "
                                          "twice; list each once, with all its sentences and a cocoid of its own")
                entries[key], photo = image, below(os.path.join(root, "images"), name, path)
                captions += [(key, photo, sentence["raw"], sentence.get("sentid")) for sentence in image["sentences"]]
    check(captions, f"{path} has no sentence of split '{split}' ({len(entries):,} images); the splits are train, val "
                    "(= dev) and test")
    result = group_captions(split, path, captions)
    if not any("cocoid" in image for image in entries.values()):
        numbers = distinct_ids([entries[key].get("imgid") for key in result.image_ids], path, "the imgid")
        if numbers is not None:
            result.photo_names, result.image_ids = result.image_ids, numbers.tolist()
    if without := len(entries) - len(result.images):
        result.notes.append(f"{path}: {without:,} of {len(entries):,} images of split '{split}' have no sentence and "
                            "are left out")
    return result


# ---- Flickr8k as it is published

def list_subfolders(root: str) -> list[str]:
    """List a folder and those one and two levels below it, into which archives are unpacked."""
    start = glob.escape(root)
    first = sorted(glob.glob(os.path.join(start, "*", "")))
    second = sorted(glob.glob(os.path.join(start, "*", "*", "")))
    return [root, *map(os.path.normpath, first), *map(os.path.normpath, second)]


def find_flickr8k_file(root: str, name: str) -> str | None:
    """Find a file of Flickr8k's text below a folder; None where there is none."""
    paths = [os.path.join(folder, name) for folder in list_subfolders(root)]
    return next(filter(os.path.isfile, paths), None)


def need_flickr8k_file(root: str, name: str) -> str:
    """Find a file of Flickr8k's text below a folder. Raises InputError, with its source, where there is none."""
    path = find_flickr8k_file(root, name)
    if path is None:
        raise InputError(f"there is no file {name} in {root} or a folder below it; {FLICKR8K_SOURCE} into {root}")
    return path


def holds_flickr8k(root: str) -> bool:
    """True if a folder holds a file of Flickr8k's text, and no captions or features of its own."""
    for pattern in ("*_caps.txt", "*_ims.npy"):
        if glob.glob(os.path.join(glob.escape(root), pattern)):
            return False
    names = (FLICKR8K_CAPTIONS, *FLICKR8K_LISTS.values())
    return any(find_flickr8k_file(root, name) for name in names)


def read_flickr8k(root: str, split: str) -> Split:
    """Read photos and captions of a split of Flickr8k as it is published.

    The photos stand in the order of their list, the captions of each by number. Photos that are in no
    list, and their captions, belong to no split. Raises InputError where a file is missing.
    """
    split = "dev" if split == "val" else split
    if split not in FLICKR8K_LISTS:
        raise InputError(f"{root} holds Flickr8k, which has no split '{split}'; its splits are train, dev (= val) and "
                         "test")
    source = need_flickr8k_file(root, FLICKR8K_CAPTIONS)
    list_path = need_flickr8k_file(root, FLICKR8K_LISTS[split])

    listed = [line.strip() for line in read_lines(list_path)]
    own = {name: {} for name in listed if name}             # {photo: {number: (NAME#K, caption)}}
    if not own:
        raise InputError(f"{list_path} names no photo; unpack Flickr8k_text.zip again")
    for key, (name, text) in read_caption_lines(source).items():
        if name in own:
            own[name][int(key.rpartition("#")[2])] = key, text
    names = [name for name in own if own[name]]
    if not names:
        raise InputError(f"{source} has no caption of the {len(own):,} photos of {list_path}; use the files of one "
                         "copy of Flickr8k")

    keys, captions, caption_image = [], [], []
    for image, name in enumerate(names):
        for number in sorted(own[name]):
            key, text = own[name][number]
            keys.append(key)
            captions.append(text)
            caption_image.append(image)

    notes = []
    if len(names) < len(own):
        first = next(name for name in own if not own[name])
        notes.append(f"{list_path}: {len(own) - len(names):,} of {len(own):,} photos have no caption in {source} and "
                     f"are left out, the first is {first}")
    folder = find_photo_folder(root, names)
    photos = Photos([below(folder, name, list_path) for name in names], f"{FLICKR8K_SOURCE} into {root}")
    return Split(split, photos, captions, np.array(caption_image, np.int64), source, names, photo_names=names,
                 notes=notes, caption_names=keys)


def find_photo_folder(root: str, names: list[str]) -> str:
    """Find the folder that holds most of the photos, which the archive calls Flicker8k_Dataset; images/ without any."""
    wanted, best = set(names), 0
    found = os.path.join(root, "images")
    for folder in list_subfolders(root):
        count = len(wanted.intersection(os.listdir(folder)))
        if count > best:
            found = folder
            best = count
    return found


# ---- COCO

def read_coco_layout(root: str, split: str, use_restval: bool = False) -> Split:
    """Read photos and captions of a split of VSE++ in COCO's annotations."""
    split, captions, folder = "dev" if split == "val" else split, [], os.path.join(root, "annotations")
    for part in [split, "restval"][:1 + (use_restval and split == "train")]:        # restval: 30,504 images of val2014
        year = "train2014" if part == "train" else "val2014"
        ids_path, path = (need(os.path.join(folder, name), HELP)
                          for name in (f"coco_{part}_ids.npy", f"captions_{year}.json"))
        ids, coco, photos = read_ids(ids_path), read_coco(path), os.path.join(root, "images", year)
        absent = [i for i in ids if i not in coco.anns]
        check(not absent, f"{ids_path} names {len(absent)} captions that {path} lacks, the first is "
                          f"{(absent or [0])[0]}; the two files must belong together")
        twice = repeated(ids)
        check(twice is None, f"{ids_path} names the caption {twice} twice; name each once")
        with refusing(f"{path} is not a file of COCO's captions, or lacks a field", "fetch it again"):
            captions += [(image, below(photos, coco.imgs[image]["file_name"], path), coco.anns[i]["caption"]
                          .replace("\n", " ").strip(), i) for i in ids for image in [coco.anns[i]["image_id"]]]
    check(captions, f"{ids_path} names no captions; fetch it again")
    return group_captions(split, path, captions)


def group_captions(name: str, source: str, captions: list[tuple]) -> Split:
    """Build a Split of photos, in the order of their first caption.
    captions: (id of the image, path of the photo, text, id of the caption)."""
    images, _, texts, ids = zip(*captions)
    photos = {image: photo for image, photo, *_ in captions}
    position = {image: n for n, image in enumerate(photos)}
    integers([image for image in photos if isinstance(image, int)], source, "an image the id")
    other = next((text for text in texts if not isinstance(text, str)), "")
    check(other == "", f"{source}: the caption {other!a:.80} is not a string; put its text in quotes")
    return Split("dev" if name == "val" else name, Photos([*photos.values()]), list(texts),
                 np.array([position[image] for image in images], np.int64), source, list(photos),
                 distinct_ids(ids, source, "a caption the id"))


def distinct_ids(ids: list, path: str, what: str) -> np.ndarray | None:
    """Return the ids from `path`, or None unless all are integers and different."""
    different = all(type(i) is int for i in ids) and len(set(ids)) == len(ids)
    return integers(ids, path, what) if different else None


# ---- python data.py check

def check_data_set(data_path: str, data_name: str) -> int:
    """Print what a data folder holds and every fault; return the number of faults."""
    root, faults, splits = os.path.join(data_path, data_name), [], []
    text_only = bool(glob.glob(os.path.join(root, "*_caps.txt"))) and not glob.glob(os.path.join(root, "*_ims.npy"))
    if text_only and find_foreign_features(root):
        text_only = False                                   # they are there, in another form
    named = named_splits(root)
    for name in dict.fromkeys(("train", "restval", "dev", "test", "testall", *named)):
        try:
            splits.append(split := read_split(data_path, data_name, name, dev_images=0, text_only=text_only))
        except InputError as error:
            needed = named or (["test"] if text_only else ["train", "dev", "test"])
            faults += [str(error)] * (name in needed)
            continue
        print(f"{name:8}{len(split.images):>8,} images {len(split.captions):>8,} captions  {split.images.describe()}",
              *split.notes, sep="\nnote: ")
        faults += split.faults(deep=True)
        images, first = split.images, splits[0].images
        if isinstance(images, Features) and images.shape != first.shape:
            faults.append(f"{images.path} has rows of {images.shape}, {first.path} of {first.shape}; extract all alike")
        train = splits[0] if splits[0].name == "train" and name in ("dev", "test", "testall") else None
        for is_fault, sentence in split.doubts(train, deep=True):
            if is_fault:
                faults.append(sentence)
            else:
                print(f"note: {sentence}")
    train = splits[0] if splits and splits[0].name == "train" else None             # whose words a vocabulary lists
    count = train.words.count() if train else Counter()
    listed = {word for word in count if count[word] >= THRESHOLD}
    for split in splits if train else ():
        unknown = [m for m, words in enumerate(split.words) if words and listed.isdisjoint(words)]
        if len(unknown) == len(split.captions):
            faults.append(split.describe_foreign(len(listed)))
        elif unknown:
            print(f"note: {split.describe_unknown(np.array(unknown))}")
    faults = faults if splits else faults[:1]               # no data at all is one fault
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{root}: {len(splits)} splits, {len(faults)} fault{'s' * (len(faults) != 1)}")
    return len(faults)


def main(argv=None) -> None:
    p = Arguments("Check a data set.")
    p.add_argument("command", choices=["check"], help="check: print what the data set holds, and every fault")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, default="coco_precomp", help="folder of the data set")
    opt = p.parse_args(argv)
    sys.exit(cli.run("data.py", lambda: int(check_data_set(opt.data_path, opt.data_name) > 0)))


if __name__ == "__main__":
    main()
