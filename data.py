"""Splits of data sets, their batches, and the check of a data folder.

    python data.py check --data_path data --data_name f8k_precomp

The files of a folder decide how it is read:

    {split}_ims.npy, {split}_caps.txt   features (N, F) or regions (N, P, F); a caption a line
                                        (VSE++, SCAN)
    {split}_ims.npy, captions.tsv       the same; captions by the name of their photo, as in
                                        Flickr8k.token.txt
    {split}_caption_image.npy           beside {split}_caps.txt: the image of each caption, where
                                        images have different numbers of captions
    {split}.jsonl, .json or .parquet    rows of an image and its captions (tables.py); photos, or
                                        {split}_ims.npy
    annotations/, images/               COCO's captions, and the caption ids of VSE++'s splits
    dataset_*.json, images/             Karpathy's splits
    Flickr8k.token.txt, lists, photos   Flickr8k as it is published

`read_split` reads one split of a folder: a Split of N images and M captions. `Split.encode` turns
its captions into numbers (vocab.py), `Split.batches` gives batches of matched pairs, which `stream`
reads while the model computes.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import atexit
import functools
import glob
import os
import re
import signal
import sys
import unicodedata
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from tqdm import tqdm

import tables
import utils
from images import Features, NoImages, Photos, count_regions, count_repeats, count_shared
from utils import (
    HELP,
    Arguments,
    InputError,
    below,
    data_set,
    filename,
    integers,
    need,
    note_inputs,
    output,
    positive,
    read_array,
    read_coco,
    read_json,
    read_lines,
    refusing,
    repeated,
    sha256,
    shorten,
)
from vocab import MIN_WORD_COUNT, Vocabulary, Words, tokenize

DEV_IMAGES = 1000  # VSE++ cuts the dev split of precomputed data and of COCO to 5,000 captions
BATCHES_AHEAD = 4  # that are read before the GPU needs them
MAX_WORDS_PER_CAPTION = 10_000  # and marks; a longer caption would take the network minutes
MAX_CHARACTERS_PER_CAPTION = 10 * MAX_WORDS_PER_CAPTION
# A note says that captions of a split are also training captions if their share is larger.
SHARE_NOTED_IN_CHECK = 0.01
SHARE_NOTED_IN_TRAINING = 0.3
LONG_CAPTION = 8  # words; captions of as many seldom repeat by chance
NO_CAPTION = {"", "nan", "null", "none", "n/a", "#n/a", "<na>", "undefined"}  # as tables write it
# A line that begins with the name of a photo, before its caption.
NAMED_LINE = re.compile(r"(\S+#)?\d+\t|\S+\.(jpe?g|png)(#\d+)?\s*[\t|,;]", re.IGNORECASE)

# Scripts without spaces between words: a row of letters of Thai and Lao, Burmese, Khmer, Japanese
# or Chinese.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{8}"
)
CAPTIONS_LOOKED_AT = 1000  # for spaces

NAMED_CAPTIONS = "captions.tsv"
# Files of Flickr8k as it is published: the captions, and the names of the photos of each split.
FLICKR8K_CAPTIONS = "Flickr8k.token.txt"
FLICKR8K_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "dev": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
FLICKR8K_SOURCE = (
    "the University of Illinois gives Flickr8k_text.zip and Flickr8k_Dataset.zip, which holds the "
    "photos, to everyone who fills in forms.illinois.edu/sec/1713398; unpack both"
)
# Files of a data set that hold captions, ids and features of images.
DATA_FILES = (
    "*_caps.txt",
    "*_ims.npy",
    "*_ids.txt",
    "*_ids.npy",
    "*_capids.txt",
    "*_caption_image.npy",
    "*_num_boxes.npy",
    NAMED_CAPTIONS,
    "features.json",
    "dataset*.json",
    "*.jsonl",
    "*.parquet",
    "data/*.parquet",
    "train.json",
    "dev.json",
    "val.json",
    "validation.json",
    "test.json",
    "annotations/*",
    "Flickr*8k.*.txt",
    "*/Flickr*8k.*.txt",
    "*/*/Flickr*8k.*.txt",
)


# ---- texts of captions


def count_tokens(caption: str) -> int:
    """Count the words and punctuation marks that a network reads of a caption.

    Of a caption with too many characters, only what stands between spaces is counted.
    """
    if len(caption) > MAX_CHARACTERS_PER_CAPTION:
        return len(caption.split())
    return len(tokenize(caption))


def normalize_caption(caption: str) -> str:
    """Return a caption in lower case with single spaces, to be compared."""
    return " ".join(caption.lower().split())


# ---- batches and splits


class Batch(NamedTuple):
    """B matched pairs."""

    images: Tensor  # (B, F) features | (B, P, F) regions | (B, 3, H, W) photos
    # (B, T) int64 word numbers | (B, T, K) trigrams, both zero-padded | (B, F) caption features
    tokens: Tensor
    lengths: Tensor  # (B,) int64, on the CPU (packing needs them there)
    image_index: Tensor  # (B,) int64, the row of each image in the split
    caption_index: Tensor  # (B,) int64, the row of each caption
    unpaired: "Batch | None" = None  # images and captions of no pairs (jWAE); it has no indices
    # (B,) int64, on the CPU: regions of each image before its padding; None: no image has padding
    n_regions: Tensor | None = None

    def to(self, device) -> "Batch":
        """Move the tensors to a device. Lengths and numbers of regions stay on the CPU."""
        on_gpu = torch.device(device).type == "cuda"
        moved = []
        for value in self:
            if isinstance(value, Batch):
                value = value.to(device)
            elif value is not None and value is not self.lengths and value is not self.n_regions:
                if on_gpu:
                    value = value.pin_memory()  # so that the copy need not wait
                value = value.to(device, non_blocking=True)
            moved.append(value)
        return Batch(*moved)


class Gallery(NamedTuple):
    """The items to search, as ascending positions in the split."""

    images: np.ndarray  # (n,) int64
    captions: np.ndarray  # (m,) int64


@dataclass
class Split:
    """N images and their M captions."""

    kind = "captions"  # what a subclass calls them, for messages
    name: str
    images: Features | Photos | NoImages
    captions: list[str]
    caption_image: np.ndarray  # (M,) int64, the row of each caption's image
    source: str  # where the captions come from, for messages
    image_ids: list | None = None  # N integers (COCO's, Karpathy's imgid) or file names
    caption_ids: np.ndarray | None = None  # (M,) int64 (COCO's, Karpathy's sentid)
    photo_names: list | None = None  # N file names, unless the photos or image_ids give them
    text: Features | None = None  # (M, F) features of the captions, where a model reads them
    extractors: dict | None = None  # {"ims": name, ...}, from features.json
    notes: list[str] = field(default_factory=list)  # for whoever reads a result on this split
    caption_names: list[str] | None = None  # M names NAME#K, where a file gives them
    true_image: np.ndarray | None = None  # (M,) caption_image before `change_pairs`
    uneven: bool = False  # caption_image comes from a file of its own, beside the captions

    @functools.cached_property
    def words(self) -> Words:
        """The captions as lists of words."""
        captions = tqdm(self.captions, f"words of {self.name}", disable=None, leave=False)
        return Words(map(tokenize, captions))

    def encode(self, vocab):
        """Encode captions as a model reads them: `vocab.Tokens`, or features.

        Captions without any known word stand as unknown words alone, as in VSE++, and a note
        counts them. Raises InputError where no caption has a known word.
        """
        if self.text is not None:
            return self.text

        if vocab.reads_captions:
            captions = self.captions
        else:
            captions = self.words
        tokens = vocab.encode_captions(captions)
        unknown = np.flatnonzero(tokens.unknown)
        if len(unknown) == len(self.captions):
            raise InputError(self.describe_foreign(len(vocab)))

        if len(unknown):
            note = self.describe_unknown(unknown)
            if note not in self.notes:
                self.notes.append(note)
        return tokens

    def describe_unknown(self, unknown: np.ndarray) -> str:
        """Count the captions (k,) without a known word, as a note."""
        first = shorten(self.captions[unknown[0]])
        have = "has" if len(unknown) == 1 else "have"
        return (
            f"{len(unknown):,} of {len(self.captions):,} {self.name} {self.kind} {have} no known "
            f"word (first: '{first}'); they are read as unknown words"
        )

    def describe_foreign(self, count: int) -> str:
        """Describe a fault: no caption has a word of a vocabulary of `count` words."""
        return (
            f"{self.source}: no word of its {len(self.captions):,} {self.kind} is in the "
            f"vocabulary of {count:,} words (the first is '{shorten(self.captions[0])}'); give "
            "captions in the language of the vocabulary, or train with the vocabulary of "
            "these captions and a lower --vocab_threshold"
        )

    def batches(
        self,
        tokens,
        order,
        batch_size: int,
        *,
        seed: tuple = (0,),
        skip: int = 0,
        crop_size: int | None = None,
        workers: int = 0,
        pin: bool = False,
    ):
        """Yield batches of matched pairs in an order of captions.

        Args:
            tokens: from `encode`.
            order (m,): rows of captions.
            seed: of random crops and flips of photos.
            skip: batches to leave out, when a run is resumed.
            crop_size: photos are cropped and flipped at random, as in training; without it they are
                cropped as in tests.
            workers: processes that read images.
            pin: the batches go to a GPU, see `stream`.
        """
        parts = chunks(np.ascontiguousarray(order), batch_size)[skip:]
        rows = [self.caption_image[part] for part in parts]
        read = self.images.gather
        threads = pin
        if crop_size and isinstance(self.images, Photos):
            # they draw from torch's generator of the CPU, as the training does beside a thread
            threads = False
            read = functools.partial(self.images.augment, crop_size=crop_size, seed=seed)
            rows = [np.stack([part, images], 1) for part, images in zip(parts, rows)]  # (B, 2)
        if not self.images.parallel:
            workers = 0

        for part, images in zip(parts, stream(read, rows, workers, pin, threads)):
            numbers, lengths = tokens.batch(part)
            image_index = torch.from_numpy(self.caption_image[part])
            captions = torch.from_numpy(part)
            n_regions = count_regions(images)
            yield Batch(images, numbers, lengths, image_index, captions, n_regions=n_regions)

    def place(self, m: int) -> str:
        """Name the position of caption m in the source, for messages."""
        if self.caption_names:
            return f"{self.source}, caption {self.caption_names[m]}"
        unit = "line" if self.source.endswith(".txt") else "caption"
        return f"{self.source}, {unit} {m + 1}"

    def faults(self, deep: bool = False, images: bool = True):
        """Yield sentences on faults of the contents.

        deep: open every photo, read every feature and compare the ids.
        images: without it, captions alone are checked.
        """
        yield from self.find_caption_faults()
        if images:
            yield from self.images.faults(deep)
        if images and deep:
            yield from self.find_repeated_ids()
        if self.text is not None:
            yield from self.text.faults(deep)

    def find_caption_faults(self):
        """Yield sentences on captions that are empty, too long, or begin with a photo's name."""
        for m, caption in enumerate(self.captions):
            text = caption.strip()
            if text.lower() in NO_CAPTION:
                found = ascii(text) if text else "empty"
                yield (
                    f"{self.place(m)}: the caption is {found}; every caption needs words, so write "
                    "or remove it"
                )
            elif (
                len(caption) > MAX_WORDS_PER_CAPTION
            ):  # only such a caption can have too many words
                count = count_tokens(caption)
                characters = len(caption)
                if count > MAX_WORDS_PER_CAPTION or characters > MAX_CHARACTERS_PER_CAPTION:
                    yield (
                        f"{self.place(m)} has {count:,} words in {characters:,} characters; at "
                        f"most {MAX_WORDS_PER_CAPTION:,} words in {MAX_CHARACTERS_PER_CAPTION:,} "
                        "characters are read, so shorten or remove it"
                    )

        named = [m for m, caption in enumerate(self.captions) if NAMED_LINE.match(caption)]
        if named:
            first = ascii(self.captions[named[0]][:40])
            yield (
                f"{self.place(named[0])}: {first} begins with the name of a photo, as do "
                f"{len(named):,} of {len(self.captions):,} captions; leave the names out (cut "
                f"-f2-), or put lines NAME#K, tab, text into {NAMED_CAPTIONS} beside "
                f"{{split}}_ids.txt"
            )

    def find_repeated_ids(self):
        """Yield sentences on ids that two images, or two captions, have."""
        for kind, ids in (("images", self.image_ids), ("captions", self.caption_ids)):
            if ids is None:
                continue
            repeats = len(ids) - len(set(ids))
            if repeats:
                yield (
                    f"{self.source}: {repeats} of {len(ids)} {kind} have the id or name of another "
                    "one; give each its own, or leave the ids out"
                )

    def doubts(self, train: "Split | None" = None, deep: bool = False):
        """Yield (whether it is a fault, sentence) on contents that can be read and look wrong.

        train: a split whose images and captions this one should not hold.
        deep: also read features of more than 4 GiB.
        """
        yield from self.images.doubts(deep)

        captions = self.captions[:CAPTIONS_LOOKED_AT]
        joined = [caption for caption in captions if WITHOUT_SPACES.search(caption)]
        if 2 * len(joined) > len(captions):
            yield (
                False,
                f"{self.source}: the {self.name} captions have no spaces between words (the first "
                f"is {shorten(joined[0])}), and what stands between spaces is read as one word; "
                "put spaces between the words first (with jieba or MeCab), or take --text_model "
                "of a multilingual transformer",
            )
        if train is not None:
            yield from self.compare(train, deep)

    def compare(self, other: "Split", deep: bool = False):
        """Yield (whether it is a fault, sentence) on images and captions that `other` has, too.

        Images are equal by their features, files or names. deep: as `doubts` has it.
        """
        count = len(self.images)
        shared = count_shared(self.images, other.images, deep)
        if shared:
            is_fault = 2 * shared > count
            yield (
                is_fault,
                f"{self.source}: {shared:,} of {count:,} {self.name} images are also in "
                f"{other.name} (the same features or the same file); leave them out of one of "
                "the two",
            )
        names = self.shared_names(other)
        if len(names) > shared:
            yield (
                False,
                f"{self.source}: {len(names):,} of {count:,} {self.name} images have the name or "
                f"id of an image of {other.name} (first: {shorten(str(names[0]))}); if they "
                "are the same photos, leave them out of one of the two",
            )

        known = {normalize_caption(caption) for caption in other.captions}
        captions = [normalize_caption(caption) for caption in self.captions]
        long = [caption for caption in captions if caption.count(" ") >= LONG_CAPTION - 1]
        share = sum(caption in known for caption in captions) / len(captions)
        long_share = sum(caption in known for caption in long) / max(1, len(long))
        least = SHARE_NOTED_IN_CHECK if deep else SHARE_NOTED_IN_TRAINING
        if share >= least:
            is_fault = min(share, long_share) > 0.5
            yield (
                is_fault,
                f"{self.source}: {share:.0%} of the {len(captions):,} {self.name} captions are "
                f"also in {other.name}, word for word, and {long_share:.0%} of those of "
                f"{LONG_CAPTION} words or more; short captions repeat by chance, many long ones "
                "are copies",
            )

    def shared_names(self, other: "Split") -> list:
        """List the names, or else ids, of images that `other` has, too; not row numbers."""
        for name in ("photo_names", "image_ids"):
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if not mine or not theirs or list(map(str, mine)) == list(map(str, range(len(mine)))):
                continue
            known = set(theirs)
            return [key for key in mine if key in known]
        return []

    def note_doubts(self, train: "Split | None" = None) -> None:
        """Add the doubts to the notes, for whoever trains or reads a result."""
        for _, sentence in self.doubts(train):
            self.notes.append(sentence)

    def require_sound(self, images: bool = True) -> "Split":
        """Return the split. Raises InputError with the first of its faults."""
        for fault in self.faults(images=images):
            raise InputError(fault)
        return self

    def cut(self, n: int) -> None:
        """Keep the first n images and their captions."""
        keep = np.flatnonzero(self.caption_image < n)
        self.captions = [self.captions[m] for m in keep]
        self.caption_image = self.caption_image[keep]
        if self.caption_ids is not None:
            self.caption_ids = self.caption_ids[keep]
        if self.caption_names:
            self.caption_names = [self.caption_names[m] for m in keep]
        if self.text is not None:
            self.text.array = self.text.array[keep]  # captions.tsv may list captions in any order

        if self.image_ids:
            self.image_ids = self.image_ids[:n]
        if self.photo_names:
            self.photo_names = self.photo_names[:n]
        self.images.cut(n)

    def fingerprint(self) -> dict:
        """Return sizes and checksums of captions and features, for a run's config.yaml."""
        facts = {
            "images": len(self.images),
            "captions": len(self.captions),
            "images_sha256": self.images.digest(),
            "captions_sha256": sha256("\n".join(self.captions)),
        }
        if self.text is not None:
            facts["text_sha256"] = self.text.digest()
        if self.uneven:
            owner = self.caption_image if self.true_image is None else self.true_image
            facts["caption_image_sha256"] = sha256(owner)
        if self.true_image is not None:
            facts["wrong_captions"] = int(self.wrong.sum())
            facts["pairs_sha256"] = sha256(self.caption_image)
        if self.extractors:
            facts["extractors"] = self.extractors
        return facts

    @property
    def wrong(self) -> np.ndarray:
        """Mask (M,) of the captions that `change_pairs` gave another image."""
        if self.true_image is None:
            return np.zeros(len(self.caption_image), bool)
        return self.caption_image != self.true_image

    def change_pairs(self, ratio: float = 0.0, seed: int = 0, path: str | None = None) -> None:
        """Give captions the images of others ("noisy correspondence", Huang et al. 2021).

        A random `ratio` of them exchange their images, or `read_pairs` reads these from a file.
        """
        images = self.caption_image.copy()
        count = len(self.captions)
        if path:
            images = read_pairs(path, images, len(self.images))
            cause = f"--noise_file {path}"
        else:
            rng = np.random.default_rng(seed)
            chosen = rng.permutation(count)[: int(ratio * count)]
            images[chosen] = images[rng.permutation(chosen)]
            cause = f"--noise_ratio {ratio:g} --noise_seed {seed}"

        self.true_image = self.caption_image
        self.caption_image = images
        wrong = int(self.wrong.sum())
        self.notes.append(
            f"{wrong:,} of {count:,} training captions ({wrong / count:.1%}) are paired with an "
            f"image other than their own ({cause})"
        )

    def unknown_words(self, vocab) -> dict[str, int]:
        """Count words, distinct words and captions that the vocabulary does not know."""
        words = self.words
        unknown = np.array([word not in vocab.index for word in words.distinct], bool)  # (U,)
        per_caption = words.count_in_captions(unknown)  # (M,)
        return {
            "words": len(words.number),
            "unknown_words": int(per_caption.sum()),
            "distinct": len(words.distinct),
            "unknown_distinct": int(unknown.sum()),
            "captions_without": int((per_caption == words.length).sum()),
        }


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


def _prepare_worker(worker: int) -> None:
    """Ignore signals in a worker process: its parent saves, ends the worker and says why."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _hide_lost_parent


def _hide_lost_parent(kind, error, trace) -> None:
    """Show an error of a thread, but not that the parent ended before it took a result."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def stream(read, chunks, workers: int, pin: bool = False, threads: bool = True):
    """Yield read(chunk) of all chunks, in order, by `workers` processes (0: this one).

    pin: for a GPU. The results lie in memory that it copies from while it computes.
    threads: in this process a thread may read them while the GPU computes.
    """
    if workers:
        yield from read_in_processes(read, chunks, workers, pin)
        return
    if not pin:
        yield from map(read, chunks)
        return

    device = torch.cuda.current_device()  # which the thread would not know

    def read_pinned(chunk) -> Tensor:
        return read(chunk).pin_memory()

    if not threads:
        yield from map(read_pinned, chunks)
        return

    def prepare_thread() -> None:
        torch.cuda.set_device(device)

    yield from read_ahead(read_pinned, chunks, prepare_thread)


def read_in_processes(read, chunks, workers: int, pin: bool):
    """Yield read(chunk) of all chunks, in order, by `workers` processes, as `stream` does."""
    loader = DataLoader(
        _Reader(read),
        sampler=chunks,
        batch_size=None,
        num_workers=workers,
        collate_fn=torch.nn.Identity(),
        worker_init_fn=_prepare_worker,
        pin_memory=pin,
        generator=torch.Generator(),  # torch's own is the training's
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    results = iter(loader)
    lost = False

    def end() -> None:
        if lost or any(worker.exitcode for worker in results._workers):
            # A killed worker may hold a lock for which the loader's own end would wait.
            results._shutdown = True
            signal_handling._remove_worker_pids(id(results))
        try:
            results._shutdown_workers()
        finally:
            for worker in results._workers:  # they ignore SIGTERM
                if worker.is_alive():
                    worker.kill()

    atexit.register(end)  # multiprocessing would wait for the workers
    try:
        for result in results:
            if isinstance(result, InputError):
                raise result
            yield result
    except (ConnectionError, EOFError) as error:  # it ended while it handed over a result
        lost = True
        raise RuntimeError("DataLoader worker exited unexpectedly") from error
    finally:
        end()
        atexit.unregister(end)


def read_ahead(read, chunks, prepare=None):
    """Yield read(chunk) of all chunks, in order.

    A thread reads the next BATCHES_AHEAD of them meanwhile, after prepare().
    """
    pool = ThreadPoolExecutor(1, initializer=prepare)
    coming: deque[Future] = deque()
    try:
        for chunk in chunks:
            coming.append(pool.submit(read, chunk))
            if len(coming) > BATCHES_AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def chunks(order, batch_size: int) -> list[np.ndarray]:
    """Cut an order (m,) into parts of batch_size; the last one may be smaller."""
    return [order[k : k + batch_size] for k in range(0, len(order), batch_size)]


# ---- the layouts


def read_split(
    data_path: str,
    data_name: str,
    split: str,
    *,
    use_restval: bool = False,
    dev_images: int = DEV_IMAGES,
    text_only: bool = False,
    text_features: str | None = None,
) -> Split:
    """Read one split of data_path/data_name. Raises InputError on what is wrong in it.

    Args:
        split: train, dev (= val), test or testall.
        use_restval: add COCO's restval images to train.
        dev_images: keep only the first images of a dev split, except in Karpathy's layout, as in
            VSE++; 0 keeps all.
        text_only: {split}_caps.txt may be there without features.
        text_features: the NAME in {split}_NAME.npy, features of the captions of precomputed data.
    """
    root = os.path.join(data_path, data_name)
    if not os.path.isdir(root):
        raise InputError(
            f"there is no folder {root} (--data_path {data_path}, --data_name {data_name}); {HELP}"
        )
    note_inputs(*list_data_files(root))

    karpathy = sorted(glob.glob(os.path.join(glob.escape(root), "dataset*.json")))
    own_captions = glob.glob(os.path.join(glob.escape(root), "*_caps.txt"))
    photos = True
    if os.path.isdir(os.path.join(root, "annotations")):
        result = read_coco_layout(root, split, use_restval)
    elif karpathy:
        result = read_karpathy(root, karpathy[0], split, use_restval)
    elif not own_captions and holds_flickr8k(root):
        result = read_flickr8k(root, split)
    elif not own_captions and holds_rows(root):
        result = read_rows_layout(root, split)
        photos = isinstance(result.images, Photos)
    else:
        photos = False
        result = read_precomputed(root, split)
    if isinstance(result.images, NoImages) and not text_only:
        advice = describe_conversion(root, result.name) or HELP
        path = f"{os.path.join(root, result.name)}_ims.npy"
        raise InputError(f"there is no file {path}; {advice}")

    if text_features and photos:
        raise InputError(
            f"--text_features {text_features}: {root} holds photos, and features of captions need "
            "precomputed features of images; extract both with features.images"
        )
    result.extractors = read_extractors(root)
    if text_features:
        result.text = read_text_features(root, result, text_features)
    if split in ("dev", "val") and not karpathy and 0 < dev_images < len(result.images):
        result.cut(dev_images)
    return result


def list_data_files(root: str) -> list[str]:
    """List the files of a folder that hold captions, ids and features of images, of all splits."""
    paths = []
    for pattern in DATA_FILES:
        paths += glob.glob(os.path.join(glob.escape(root), pattern))
    return paths


def read_precomputed(root: str, split: str) -> Split:
    """Read features and captions of a split in SCAN's layout, a caption a line."""
    texts = glob.glob(os.path.join(glob.escape(root), "*_caps.txt"))
    features = glob.glob(os.path.join(glob.escape(root), "*_ims.npy"))
    if not texts and not features:
        raise InputError(
            f"{root} holds no data set: looked for {split}_caps.txt and {split}_ims.npy "
            f"(precomputed), {split}.jsonl or .parquet (rows), annotations/ (COCO), dataset_*.json "
            f"(Karpathy) and {FLICKR8K_CAPTIONS} (Flickr8k); {HELP}"
        )
    if split in ("dev", "val"):
        split = find_dev_name(root, split)

    start = os.path.join(root, split)
    source = f"{start}_caps.txt"
    if not os.path.isfile(source):
        if os.path.isfile(os.path.join(root, NAMED_CAPTIONS)):
            return read_named(root, split)
        raise InputError(f"there is no file {source}; {HELP}")

    captions = read_lines(source)
    count = len(captions)
    owner = None
    owner_path = f"{start}_caption_image.npy"
    if os.path.isfile(owner_path):
        owner = read_owner(owner_path, count)
    images = read_precomputed_images(start, count, owner)
    n = len(images)
    if owner is None or not count:
        owner = assume_owner(start, captions, n)
    uneven = not is_even(owner, n)

    notes = []
    if uneven:
        notes += describe_uneven(owner, n, source)
    if isinstance(images, NoImages):
        conversion = describe_conversion(root, split)
        if conversion:
            notes.append(f"no {split}_ims.npy, so captions alone are read; {conversion}")

    names = read_image_ids(f"{start}_ids.txt", n, owner)
    numbers = read_image_ids(f"{start}_img_ids.npy", n, owner)
    photo_names = None
    if names and isinstance(names[0], str):
        photo_names = names

    caption_ids, path = read_caption_ids(root, split, source, count)
    if os.path.basename(path) == COCO_TEST_IDS:
        notes.append(f"the caption ids of {source} come from {path}, in its order")

    return Split(
        split,
        images,
        captions,
        owner,
        source,
        image_ids=numbers or names or None,
        caption_ids=caption_ids,
        photo_names=photo_names,
        notes=notes,
        uneven=uneven,
    )


def find_dev_name(root: str, split: str) -> str:
    """Return the name of the dev split in a folder, "dev" or "val": `split` if it has both."""
    for name in (split, "dev", "val"):
        if os.path.isfile(os.path.join(root, f"{name}_caps.txt")):
            return name
    return split


def read_owner(path: str, count: int) -> np.ndarray:
    """Read the row of the image of each of `count` captions: (M,).

    Raises InputError on an array of another form.
    """
    owner = read_array(path, "write it with np.save")
    whole = owner.dtype.kind in "iu" and owner.shape == (count,)
    if not whole or owner.min(initial=0) < 0:
        raise InputError(
            f"{path} holds {owner.dtype} of shape {owner.shape}; it must hold the row of each "
            f"caption's image, ({count},) whole numbers from 0"
        )
    return owner.astype(np.int64)


def is_even(owner: np.ndarray, n: int) -> bool:
    """True if n images have equally many captions, in their order.

    owner (M,): the row of each caption's image.
    """
    each, rest = divmod(len(owner), max(1, n))
    return not rest and np.array_equal(owner, np.arange(len(owner)) // max(1, each))


def assume_owner(start: str, captions: list[str], n: int) -> np.ndarray:
    """Give n images their captions in order, as START_ids.txt says or equally many: (M,) rows."""
    count = len(captions)
    ids = read_ids(f"{start}_ids.txt")
    if n < len(ids) == count and len(set(ids)) == n:  # an id for each caption
        rows = [0]
        for before, name in zip(ids, ids[1:]):
            rows.append(rows[-1] + int(name != before))
        if rows[-1] + 1 == n:  # the captions of an image stand together
            return np.array(rows, np.int64)

    if not count or count % n:
        raise InputError(
            f"{start}_caps.txt has {count} captions for the {n} rows of {start}_ims.npy, not the "
            f"same number for each{describe_blank_line(captions)}; if images have different "
            f"numbers of captions, save the row of each caption's image, ({count},) whole numbers "
            f"from 0 to {n - 1}, with np.save('{start}_caption_image.npy', rows), or write the "
            f"name of each caption's image into {start}_ids.txt"
        )
    return np.arange(count) // (count // n)


def describe_uneven(owner: np.ndarray, n: int, source: str) -> list[str]:
    """Note how many captions N images have. owner (M,): the row of each caption's image."""
    counts = np.bincount(owner, minlength=n)  # (N,)
    if counts.min() == counts.max():
        return []
    notes = [f"{source}: {counts.min()} to {counts.max()} captions an image"]
    without = int((counts == 0).sum())
    if without:
        notes[0] += f"; {without:,} of {n:,} images have none and are only answers, never queries"
    return notes


def read_precomputed_images(
    start: str, count: int, owner: np.ndarray | None = None
) -> Features | NoImages:
    """Open START_ims.npy, the features of the images of `count` captions; it may be missing.

    Without features there are as many images as ids, or as `owner` names, the row of each caption's
    image (M,), else a fifth of the captions. Raises InputError where a row is missing.
    """
    path = f"{start}_ims.npy"
    if not os.path.isfile(path):
        ids = read_ids(f"{start}_img_ids.npy")
        if ids:
            return NoImages(len(ids))
        if owner is not None:
            return NoImages(int(owner.max(initial=-1)) + 1)
        return NoImages(count if count % 5 else count // 5)

    images = Features(path)
    read_num_boxes(f"{start}_num_boxes.npy", images)
    if owner is not None:
        check_owner(owner, images, start)
        return images
    if len(images) == count:
        images.step = count_repeats(images.array, path)
        if not images.step:  # all rows are equal: VSE++'s layout, if it can be
            images.step = 1 if count % 5 else 5
    return images


def read_num_boxes(path: str, images: Features) -> None:
    """Set the number of regions of each image (N,) from a file, if it is there.

    Raises InputError on an array of another form.
    """
    if not os.path.isfile(path):
        return
    counts = read_array(path, "write it with np.save")
    rows = len(images.array)
    whole = counts.dtype.kind in "iu" and counts.shape == (rows,)
    if images.regions is None or not whole or counts.min() < 1 or counts.max() > images.regions:
        raise InputError(
            f"{path} holds {counts.dtype} of shape {counts.shape}; it must hold the number of "
            f"regions of each row of {images.path}, of shape {images.array.shape}: ({rows},) whole "
            f"numbers from 1 to {images.regions or 'P'}"
        )
    images.set_counts(counts.astype(np.int64))


def check_owner(owner: np.ndarray, images: Features, start: str) -> None:
    """Raise InputError where captions have no row of START_ims.npy, or each a row of its own.

    owner (M,): the row of each caption's image. Rows that repeat evenly, as in VSE++'s files, are
    read.
    """
    n = len(images)
    count = len(owner)
    last = int(owner.max(initial=-1))
    if last >= n:
        raise InputError(
            f"{start}_caption_image.npy names the image {last}, and {images.path} has the rows 0 "
            f"to {n - 1}; use files that belong together"
        )
    if n < count or last + 1 == n or not repeats_images(images.array, owner):
        return

    each = count // (last + 1)
    if not np.array_equal(owner, np.arange(count) // each):
        raise InputError(
            f"{images.path} has a row for each of {count:,} captions, and these belong to "
            f"{last + 1:,} images; keep a row for each image: np.save(path, "
            "array[np.unique(owner, return_index=True)[1]])"
        )
    images.step = each


def repeats_images(array: np.ndarray, owner: np.ndarray) -> bool:
    """True if row m of (M, ...) holds the image of caption m, for the first captions.

    owner (M,): the row of each caption's image, if each image has one.
    """
    first = {}
    for m, image in enumerate(owner[:100].tolist()):
        before = first.setdefault(image, m)
        if not np.array_equal(array[before], array[m], equal_nan=True):
            return False
    return len(first) < min(100, len(owner))


def describe_blank_line(captions: list[str]) -> str:
    """Name the first empty caption, for a sentence; "" without one."""
    for number, caption in enumerate(captions, 1):
        if not caption.strip():
            return f"; its line {number} is empty"
    return ""


def read_caption_ids(
    root: str, split: str, source: str, count: int
) -> tuple[np.ndarray | None, str]:
    """Read the integer ids of the `count` captions of `source`, None without any.

    Also returns the path of their file, "" without one.
    """
    start = os.path.join(root, split)
    paths = [f"{start}_ann_ids.npy", f"{start}_capids.txt"]
    if split == "testall":
        paths.append(os.path.join(root, COCO_TEST_IDS))
    present = [path for path in paths if os.path.isfile(path)]
    if not present:
        return None, ""

    path = present[0]
    ids = read_ids(path)
    if len(ids) not in (0, count):
        raise InputError(
            f"{path} has {len(ids)} ids for the {count} captions of {source}; there must be one "
            "for each caption, in their order"
        )
    if not ids or isinstance(ids[0], str):
        return None, path
    return np.array(ids, np.int64), path


# Files of features in other forms, and the line that converts them.
CONVERSIONS = {
    ".npz": "import numpy as np; a = np.load('{0}'); np.save('{1}', a[a.files[0]])",
    ".h5": "import h5py, numpy as np; f = h5py.File('{0}'); np.save('{1}', f[list(f)[0]][:])",
    ".pt": "import torch, numpy as np; "
    "np.save('{1}', torch.load('{0}', map_location='cpu').numpy())",
    ".mat": "import scipy.io, numpy as np; a = scipy.io.loadmat('{0}'); "
    "np.save('{1}', a[list(a)[-1]])",
    ".pkl": "import numpy as np; np.save('{1}', np.load('{0}', allow_pickle=True))",
    ".npy": "import numpy as np; np.save('{1}', np.load('{0}'))",
    ".csv": "import numpy as np; np.save('{1}', np.loadtxt('{0}', delimiter=',', dtype='f4'))",
    ".safetensors": "from safetensors.numpy import load_file; import numpy as np; "
    "a = load_file('{0}'); np.save('{1}', a[list(a)[0]])",
}
CONVERSIONS[".hdf5"] = CONVERSIONS[".h5"]
CONVERSIONS[".pth"] = CONVERSIONS[".pt"]
CONVERSIONS[".pickle"] = CONVERSIONS[".pkl"]
MAYBE_FEATURES = (".npy", ".pkl", ".pickle", ".csv")  # or anything else, by the ending alone
FEATURES_NAME = re.compile("ims|img|image|feat", re.IGNORECASE)  # in a name of such a file
IDS_NAME = re.compile(r".*_(img_ids|ann_ids|ids|caption_image|num_boxes)\.npy")
COCO_TEST_IDS = "coco_test_ids.npy"  # VSE++'s ids of the captions of testall


def find_foreign_features(root: str, split: str = "") -> str | None:
    """Find a file of features of a split, or of any, that is not {split}_ims.npy."""
    for name in sorted(os.listdir(root)):
        ending = os.path.splitext(name)[1].lower()
        if ending not in CONVERSIONS or name.endswith("_ims.npy") or IDS_NAME.fullmatch(name):
            continue
        looks_so = FEATURES_NAME.search(name) or ending not in MAYBE_FEATURES
        of_split = split in name or not re.search("train|dev|val|test", name)
        if looks_so and of_split:
            return os.path.join(root, name)
    return None


def describe_conversion(root: str, split: str) -> str:
    """Say how to convert features of a split from another form; "" where there are none."""
    path = find_foreign_features(root, split)
    if path is None:
        return ""
    ending = os.path.splitext(path)[1].lower()
    line = CONVERSIONS[ending].format(path, os.path.join(root, f"{split}_ims.npy"))
    return (
        f"features are read from .npy files, so convert {os.path.basename(path)} (its array may "
        "have "
        f'another name): python -c "{line}"'
    )


def read_named(root: str, split: str) -> Split:
    """Read features of photos by name, and their captions in captions.tsv."""
    source = os.path.join(root, NAMED_CAPTIONS)
    start = os.path.join(root, split)
    if not os.path.isfile(f"{start}_ims.npy"):
        splits = ", ".join(named_splits(root))
        raise InputError(
            f"{root} has no features {split}_ims.npy; its captions are of {splits or 'no split'}, "
            f"so give --split {splits or 'NAME'}"
        )

    names = read_lines(need(f"{start}_ids.txt", HELP))
    images = Features(f"{start}_ims.npy")
    read_num_boxes(f"{start}_num_boxes.npy", images)
    row = {compose_name(name): n for n, name in enumerate(names)}
    if not len(row) == len(names) == len(images):
        raise InputError(
            f"{start}_ids.txt gives {len(row):,} names in {len(names):,} lines for the "
            f"{len(images):,} photos of {split}_ims.npy; give every photo one of its own"
        )

    keys = []
    captions = []
    caption_image = []
    others = 0
    for key, (name, text) in read_caption_lines(source).items():
        image = row.get(compose_name(name))
        if image is None:
            others += 1
            continue
        keys.append(key)
        captions.append(text)
        caption_image.append(image)
    if not captions:
        raise InputError(
            f"{source} has no caption of the {len(names):,} photos of {split}_ids.txt; give "
            "captions and photos that belong together"
        )

    notes = []
    if others:
        notes.append(f"{others:,} captions of {source} are of other photos and left out")
    return Split(
        split,
        images,
        captions,
        np.array(caption_image),
        source,
        image_ids=names,
        photo_names=names,
        notes=notes,
        caption_names=keys,
    )


def read_caption_lines(path: str) -> dict[str, tuple[str, str]]:
    """Read captions by the name of their photo from lines NAME#K, tab, text.

    Returns {"NAME#K": (NAME, text)}. Blank lines are skipped, and a line that is repeated counts
    once. Raises InputError on other lines, and where two captions have one NAME#K.
    """
    captions = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"((.+)#[0-9]+)\t(.*)", line)
        if not match or captions.get(match[1], match.groups()[1:]) != match.groups()[1:]:
            raise InputError(
                f"{path}, line {number}: {ascii(line[:60])} is not a new NAME#K, tab, text; write "
                "every caption once, as in Flickr8k.token.txt"
            )
        captions[match[1]] = match[2], match[3]
    return captions


def compose_name(name: str) -> str:
    """Compose the accents of a file's name (NFC), which macOS stores apart."""
    return unicodedata.normalize("NFC", name)


def named_splits(root: str) -> list[str]:
    """List the splits of a folder whose captions are in captions.tsv."""
    if not os.path.isfile(os.path.join(root, NAMED_CAPTIONS)):
        return []

    names = []
    for path in glob.glob(os.path.join(glob.escape(root), "*_ids.txt")):
        start = path.removesuffix("_ids.txt")
        if not os.path.isfile(f"{start}_caps.txt"):
            names.append(os.path.basename(start))
    return sorted(names)


# ---- rows of images and captions


def holds_rows(root: str) -> bool:
    """True if a folder without captions in SCAN's layout holds tables of rows."""
    has_names = os.path.isfile(os.path.join(root, NAMED_CAPTIONS))
    return not has_names and tables.holds_tables(root)


def read_rows_layout(root: str, split: str) -> Split:
    """Read a split of rows of an image and its captions.

    Rows of one image are one image. Its features are in {split}_ims.npy, or its photo is read.
    """
    table = tables.read_rows(root, split)
    source = tables.find_tables(root, split)[0]
    name = "dev" if split == "val" else split
    keys = {}  # {image: its row among the images}
    captions = []
    owner = []
    image_of_row = []
    for number, row in enumerate(table):
        key = row.image
        if key is None:
            key = ("row", number)
        image = keys.setdefault(key, len(keys))
        image_of_row.append(image)
        captions += row.captions
        owner += [image] * len(row.captions)
    n = len(keys)
    owner = np.array(owner, np.int64)
    if not captions:
        raise InputError(f"{source} has no caption of the split {split}; give each row some")

    images = NoImages(n)
    paths = [key for key in keys if isinstance(key, str)]
    start = os.path.join(root, name)
    if os.path.isfile(f"{start}_ims.npy"):
        images = Features(f"{start}_ims.npy")
        read_num_boxes(f"{start}_num_boxes.npy", images)
        check_features_of_rows(images, np.array(image_of_row), n, source)
    elif len(paths) == n:
        images = Photos([find_photo_of_row(root, path, source) for path in paths])

    image_ids = None
    if not any(isinstance(key, tuple) for key in keys):
        image_ids = list(keys)
        if len(paths) < n:  # numbers among them
            numbers = distinct_ids(image_ids, source, "the image")
            image_ids = None
            if numbers is not None:
                image_ids = numbers.tolist()
    uneven = not is_even(owner, n)
    return Split(
        name,
        images,
        captions,
        owner,
        source,
        image_ids=image_ids,
        photo_names=paths if len(paths) == n else None,
        notes=describe_uneven(owner, n, source) if uneven else [],
        uneven=uneven,
    )


def check_features_of_rows(images: Features, image_of_row: np.ndarray, n: int, source: str) -> None:
    """Raise InputError unless there is a row of features for each of n images, in their order.

    image_of_row (R,): the image of each row of the table, for which features may stand, too.
    """
    count = len(image_of_row)
    if len(images) == count > n:
        check_owner(image_of_row, images, images.path.removesuffix("_ims.npy"))
    if len(images) != n:
        raise InputError(
            f"{source} has {n:,} images in {count:,} rows, and {images.path} {len(images.array):,} "
            "rows of features; give one for each image, in the order of their first rows"
        )


def find_photo_of_row(root: str, name: str, source: str) -> str:
    """Find the photo that a row names: a path below the folder or its images/, or a whole path."""
    if re.match(r"[a-z0-9]+://", name, re.IGNORECASE):
        raise InputError(
            f"{source} names the photo {shorten(name)}, an address; fetch the photos first "
            "(img2dataset does), and give their paths"
        )
    if os.path.isabs(name):
        return name
    path = below(root, name, source)
    in_images = os.path.join(root, "images", name)
    if not os.path.isfile(path) and os.path.isfile(in_images):
        return in_images
    return path


# ---- ids, features of captions, files beside them


def read_ids(path: str) -> list:
    """Read ids from an .npy file of integers, or lines of text; [] without a file.

    Lines are integers if all of them have 1 to 18 digits.
    """
    if not os.path.isfile(path):
        return []

    if not path.endswith(".npy"):
        lines = read_lines(path)
        if all(re.fullmatch("[0-9]{1,18}", line) for line in lines):
            return [int(line) for line in lines]
        return lines

    array = read_array(path, "fetch or save it again")
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    if not whole or array.max(initial=0) > np.iinfo(np.int64).max:
        raise InputError(
            f"{path} is not a whole .npy file of integers (it holds {array.dtype} of shape "
            f"{array.shape}); save it again"
        )
    return array.tolist()


def read_image_ids(path: str, n: int, owner: np.ndarray) -> list:
    """Read one id per image of n images; [] without a file.

    owner (M,): the row of each caption's image. The file may give one id per caption. Captions of
    an image must then have one id. Ids that differ for all captions name no images.
    """
    count = len(owner)
    ids = read_ids(path)
    if len(ids) not in (0, n, count):
        raise InputError(
            f"{path} has {len(ids)} ids for {n} images; give one for each image or caption"
        )
    if len(ids) <= n:
        return ids
    if len(set(ids)) == count:
        return []

    of_image = {}
    for m, image in enumerate(owner.tolist()):
        if of_image.setdefault(image, ids[m]) != ids[m]:
            rows = np.flatnonzero(owner == image)
            raise InputError(
                f"{path} gives the captions {rows[0] + 1} to {rows[-1] + 1}, which {count} "
                f"captions for {n} images make those of one image, more than one id; let the "
                "captions of an image stand together"
            )
    if len(of_image) < n:  # images without captions have none
        return []
    return [of_image[image] for image in range(n)]


def read_text_features(
    root: str, split: Split, name: str, program: str = "features.captions"
) -> Features:
    """Read features of captions, {split}_{name}.npy, which `program` writes."""
    start = os.path.join(root, f"{split.name}_{name}")
    path = f"{start}.npy"
    if not os.path.isfile(path):
        raise InputError(
            f"there is no file {path}, features of captions; make it with python -m {program} "
            f"--data_name {os.path.basename(root)}, or save your own vectors there with np.save, "
            "one row per caption"
        )

    text = Features(path)
    count = len(split.captions)
    if text.array.shape[:-1] != (count,):
        raise InputError(
            f"{path} has shape {text.array.shape} for the {count} captions of {split.source}; give "
            "one row per caption"
        )

    stored = None
    if os.path.isfile(f"{start}.json"):
        stored = read_json(f"{start}.json", "extract the features again")
    expected = {"captions_sha256": split.fingerprint()["captions_sha256"]}
    if stored not in (None, expected):
        raise InputError(
            f"{path} was extracted from other captions than {split.source} holds now; run "
            f"{program} again"
        )
    return text


def read_pairs(path: str, caption_image: np.ndarray, n: int) -> np.ndarray:
    """Read the images of M captions from a file of noisy correspondence of N images: (M,).

    NCR publishes (M,), the image of each caption. DECL (Qin et al. 2022) publishes (N,), the image
    that takes the position of each image, with all captions of it.
    """
    file = read_array(path, "fetch it again, or write it with np.save")
    count = len(caption_image)
    if file.dtype.kind not in "iu" or file.shape not in ((count,), (n,)):
        raise InputError(
            f"{path} holds {file.dtype} of shape {file.shape}; noisy pairs are whole numbers, "
            f"({count},) the image of each training caption (NCR), or ({n},) the image that "
            "replaces each image (DECL)"
        )
    if file.min() < 0 or file.max() >= n:
        raise InputError(
            f"{path} has numbers from {file.min()} to {file.max()}, and the {n:,} training images "
            f"are numbered from 0 to {n - 1}; use the file of this data set"
        )
    images = np.array(file, np.int64)
    if len(images) == count:
        return images
    return images[caption_image]


def read_extractors(folder: str) -> dict[str, str]:
    """Read a folder's features.json, {file suffix: extractor}, which may be missing."""
    path = os.path.join(folder, "features.json")
    if not os.path.isfile(path):
        return {}
    stored = read_json(path, "delete it and extract again")
    if not isinstance(stored, dict) or not all(isinstance(x, str) for x in stored.values()):
        raise InputError(
            f"{path} is not a JSON object, file suffix to extractor; delete it and extract again"
        )
    return stored


def check_extractors(
    trained: dict | None, split: Split, text_features: str | None, path: str
) -> None:
    """Raise InputError on features of another extractor than in training.

    Args:
        trained: {file suffix: extractor} of the training, None where it is not known.
        split: whose features are compared.
        text_features: the suffix of features of captions.
        path: the trained model, for the message.
    """
    for kind in ("ims", text_features):
        before = (trained or {}).get(kind)
        now = (split.extractors or {}).get(kind)
        if before and now and before != now:
            features = "image features" if kind == "ims" else f"caption features '{kind}'"
            raise InputError(
                f"{split.source}: the {features} in its folder were made by '{now}', but {path} "
                f"was trained on features of '{before}'; extract them with the same network or "
                "vectors"
            )


# ---- Karpathy's JSON


def read_karpathy(root: str, path: str, split: str, use_restval: bool = False) -> Split:
    """Read photos and captions of a split in Karpathy's JSON.

    Ids are cocoid, else imgid, else names of files; and sentid.
    """
    parts = [split]
    if split == "dev":
        parts = ["val"]
    elif split == "train" and use_restval:
        parts = ["train", "restval"]

    entries = {}
    captions = []
    form = "images with split, filename and sentences with raw"
    with refusing(f"{path} is not in Karpathy's layout, of {form}", "fetch it again"):
        for image in read_json(path)["images"]:
            if image["split"] not in parts:
                continue
            name = os.path.join(image.get("filepath", ""), image["filename"])
            key = image.get("cocoid", name)
            if key in entries:
                raise InputError(
                    f"{path} lists the image {name} of split '{split}' or its cocoid, {key}, "
                    "twice; list each once, with all its sentences and a cocoid of its own"
                )
            entries[key] = image
            photo = below(os.path.join(root, "images"), name, path)
            for sentence in image["sentences"]:
                captions.append((key, photo, sentence["raw"], sentence.get("sentid")))
    if not captions:
        raise InputError(
            f"{path} has no sentence of split '{split}' ({len(entries):,} images); the splits are "
            "train, val (= dev) and test"
        )

    result = group_captions(split, path, captions)
    if not any("cocoid" in image for image in entries.values()):
        image_ids = [entries[key].get("imgid") for key in result.image_ids]
        numbers = distinct_ids(image_ids, path, "the imgid")
        if numbers is not None:
            result.photo_names = result.image_ids
            result.image_ids = numbers.tolist()

    without = len(entries) - len(result.images)
    if without:
        result.notes.append(
            f"{path}: {without:,} of {len(entries):,} images of split '{split}' have no sentence "
            "and are left out"
        )
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
    for folder in list_subfolders(root):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    return None


def need_flickr8k_file(root: str, name: str) -> str:
    """Find a file of Flickr8k's text below a folder. Raises InputError, with its source."""
    path = find_flickr8k_file(root, name)
    if path is None:
        raise InputError(
            f"there is no file {name} in {root} or a folder below it; {FLICKR8K_SOURCE} into {root}"
        )
    return path


def holds_flickr8k(root: str) -> bool:
    """True if a folder without captions of its own holds Flickr8k's text, and no features."""
    if glob.glob(os.path.join(glob.escape(root), "*_ims.npy")):
        return False
    names = (FLICKR8K_CAPTIONS, *FLICKR8K_LISTS.values())
    return any(find_flickr8k_file(root, name) for name in names)


def read_flickr8k(root: str, split: str) -> Split:
    """Read photos and captions of a split of Flickr8k as it is published.

    The photos stand in the order of their list, the captions of each by number. Photos that are in
    no list, and their captions, belong to no split. Raises InputError where a file is missing.
    """
    if split == "val":
        split = "dev"
    if split not in FLICKR8K_LISTS:
        raise InputError(
            f"{root} holds Flickr8k, which has no split '{split}'; its splits are train, dev (= "
            "val) and test"
        )
    source = need_flickr8k_file(root, FLICKR8K_CAPTIONS)
    list_path = need_flickr8k_file(root, FLICKR8K_LISTS[split])

    listed = [line.strip() for line in read_lines(list_path)]
    numbered = {name: {} for name in listed if name}  # {photo: {number: (NAME#K, caption)}}
    if not numbered:
        raise InputError(f"{list_path} names no photo; unpack Flickr8k_text.zip again")
    for key, (name, text) in read_caption_lines(source).items():
        if name in numbered:
            number = int(key.rpartition("#")[2])
            numbered[name][number] = key, text
    names = [name for name in numbered if numbered[name]]
    if not names:
        raise InputError(
            f"{source} has no caption of the {len(numbered):,} photos of {list_path}; use the "
            "files of one copy of Flickr8k"
        )

    keys = []
    captions = []
    caption_image = []
    for image, name in enumerate(names):
        for number in sorted(numbered[name]):
            key, text = numbered[name][number]
            keys.append(key)
            captions.append(text)
            caption_image.append(image)

    notes = []
    if len(names) < len(numbered):
        first = next(name for name in numbered if not numbered[name])
        notes.append(
            f"{list_path}: {len(numbered) - len(names):,} of {len(numbered):,} photos have no "
            f"caption in {source} and are left out (first: {first})"
        )

    folder = find_photo_folder(root, names)
    paths = [below(folder, name, list_path) for name in names]
    return Split(
        split,
        Photos(paths, f"{FLICKR8K_SOURCE} into {root}"),
        captions,
        np.array(caption_image, np.int64),
        source,
        image_ids=names,
        photo_names=names,
        notes=notes,
        caption_names=keys,
    )


def find_photo_folder(root: str, names: list[str]) -> str:
    """Find the folder that holds most of the photos; images/ where none holds any.

    The archive calls it Flicker8k_Dataset.
    """
    wanted = set(names)
    found = os.path.join(root, "images")
    best = 0
    for folder in list_subfolders(root):
        count = len(wanted.intersection(os.listdir(folder)))
        if count > best:
            found = folder
            best = count
    return found


# ---- COCO


def read_coco_layout(root: str, split: str, use_restval: bool = False) -> Split:
    """Read photos and captions of a split in COCO's annotations, of 2014 or 2017.

    VSE++'s splits by their files of caption ids, which are the same in both years. Without these
    files the splits of 2017: train, and val as dev.
    """
    if split == "val":
        split = "dev"
    parts = [split]
    if use_restval and split == "train":
        parts.append("restval")  # 30,504 images of val2014

    captions = []
    sources = []
    for part in parts:
        ids_path = os.path.join(root, "annotations", f"coco_{part}_ids.npy")
        of_2017 = list_coco_2017(root)
        if of_2017 and not os.path.isfile(ids_path):
            files = [choose_coco_2017(part, of_2017, root)]
            of_part = read_coco_captions(None, files)
        else:
            need(ids_path, HELP)
            files = of_2017 or [find_coco_2014(root, part)]
            of_part = read_coco_captions(ids_path, files)
        if not of_part:
            raise InputError(f"{ids_path} names no captions; fetch it again")
        captions += of_part
        sources += [path for path, _ in files]
    return group_captions(split, " and ".join(dict.fromkeys(sources)), captions)


def find_coco_2014(root: str, part: str) -> tuple[str, str]:
    """Find the captions and the photos of a part of VSE++'s splits. Raises InputError."""
    year = "train2014" if part == "train" else "val2014"
    path = need(os.path.join(root, "annotations", f"captions_{year}.json"), HELP)
    return path, os.path.join(root, "images", year)


def list_coco_2017(root: str) -> list[tuple[str, str]]:
    """List the captions of 2017 and the folders of their photos, where those of 2014 are absent."""
    folder = os.path.join(root, "annotations")
    if glob.glob(os.path.join(glob.escape(folder), "captions_*2014.json")):
        return []
    files = []
    for year in ("train2017", "val2017"):
        path = os.path.join(folder, f"captions_{year}.json")
        if os.path.isfile(path):
            files.append((path, os.path.join(root, "images", year)))
    return files


def choose_coco_2017(part: str, files: list[tuple[str, str]], root: str) -> tuple[str, str]:
    """Choose the captions and photos of a split of 2017. Raises InputError where it has none."""
    name = {"train": "train2017", "dev": "val2017"}.get(part)
    for path, photos in files:
        if os.path.basename(photos) == name:
            return path, photos
    raise InputError(
        f"{root} has no captions of the split {part}: COCO 2017 gives those of train and val (= "
        "dev), and none of test2017; evaluate with --split dev --dev_images 0, or put VSE++'s "
        f"coco_{part}_ids.npy into annotations/ for its splits"
    )


def read_coco_captions(ids_path: str | None, files: list[tuple[str, str]]) -> list[tuple]:
    """Read the captions of a file of ids, or all, from COCO's annotations and their photos.

    files: paths of annotations, and folders of their photos. Returns (id of the image, path of the
    photo, text, id of the caption) in the order of the ids.
    """
    annotations = [(read_coco(path), path, photos) for path, photos in files]
    found = {}  # {id of the caption: where it is}
    for source in annotations:
        for i in source[0].anns:
            found.setdefault(i, source)
    ids = list(found)
    if ids_path:
        ids = read_ids(ids_path)
    absent = [i for i in ids if i not in found]
    if absent:
        paths = " and ".join(path for path, _ in files)
        lack = "lack" if len(files) > 1 else "lacks"
        raise InputError(
            f"{ids_path} names {len(absent)} captions that {paths} {lack} (first: "
            f"{absent[0]}); the files must belong together"
        )
    twice = repeated(ids)
    if twice is not None:
        raise InputError(f"{ids_path} names the caption {twice} twice; name each once")

    captions = []
    for i in ids:
        coco, path, photos = found[i]
        fault = f"{path} is not a file of COCO's captions, or lacks a field"
        with refusing(fault, "fetch it again"):
            image = coco.anns[i]["image_id"]
            photo = below(photos, coco.imgs[image]["file_name"], path)
            text = coco.anns[i]["caption"].replace("\n", " ").strip()
            captions.append((image, photo, text, i))
    return captions


def group_captions(name: str, source: str, captions: list[tuple]) -> Split:
    """Build a Split of photos, in the order of their first caption.

    captions: (id of the image, path of the photo, text, id of the caption).
    """
    photos = {}  # {id of the image: path}
    position = {}  # {id of the image: row}
    caption_image = []
    texts = []
    ids = []
    for image, photo, text, i in captions:
        photos[image] = photo
        row = position.setdefault(image, len(position))
        caption_image.append(row)
        texts.append(text)
        ids.append(i)

    integers([image for image in photos if isinstance(image, int)], source, "an image the id")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"{source}: the caption {text!a:.80} is not a string; put its text in quotes"
            )

    return Split(
        "dev" if name == "val" else name,
        Photos(list(photos.values())),
        texts,
        np.array(caption_image, np.int64),
        source,
        image_ids=list(photos),
        caption_ids=distinct_ids(ids, source, "a caption the id"),
    )


def distinct_ids(ids: list, path: str, what: str) -> np.ndarray | None:
    """Return the ids from `path`, or None unless all are integers and different."""
    if not all(type(i) is int for i in ids) or len(set(ids)) < len(ids):
        return None
    return integers(ids, path, what)


# ---- python data.py check

# Splits that should share no images; COCO's testall holds its test images.
APART = {
    ("dev", "train"),
    ("test", "train"),
    ("testall", "train"),
    ("test", "dev"),
    ("testall", "dev"),
}


def check_data_set(data_path: str, data_name: str) -> int:
    """Print what a data folder holds and every fault; return the number of faults."""
    root = os.path.join(data_path, data_name)
    text_only = holds_captions_alone(root)
    named = named_splits(root)
    needed = ["train", "dev", "test"]
    if named:
        needed = named
    elif text_only:
        needed = ["test"]

    splits: list[Split] = []
    faults: list[str] = []
    for name in dict.fromkeys(("train", "restval", "dev", "test", "testall", *named)):
        try:
            split = read_split(data_path, data_name, name, dev_images=0, text_only=text_only)
        except InputError as error:
            if name in needed:
                faults.append(str(error))
            continue
        splits.append(split)
        faults += check_one_split(split, name, splits)

    if splits:
        faults += check_words(splits)
    else:
        faults = faults[:1]  # no data at all is one fault
    for fault in faults:
        print(f"fault: {fault}")
    plural = "" if len(faults) == 1 else "s"
    print(f"{root}: {len(splits)} splits, {len(faults)} fault{plural}")
    return len(faults)


def holds_captions_alone(root: str) -> bool:
    """True if a folder holds captions, a caption a line, and no features in any form."""
    captions = glob.glob(os.path.join(glob.escape(root), "*_caps.txt"))
    features = glob.glob(os.path.join(glob.escape(root), "*_ims.npy"))
    return bool(captions) and not features and not find_foreign_features(root)


def check_one_split(split: Split, name: str, splits: list[Split]) -> list[str]:
    """Print what a split holds and what looks wrong in it; return its faults.

    name: under which it was read.
    splits: those of the folder so far. Its features should fit those of the first, and dev and test
    should share no image with train, nor test with dev.
    """
    images = split.images
    first = splits[0]
    size = f"{len(images):>8,} images {len(split.captions):>8,} captions"
    print(f"{name:8}{size}  {images.describe()}", *split.notes, sep="\nnote: ")

    faults = list(split.faults(deep=True))
    if isinstance(images, Features) and not fit_together(images, first.images):
        faults.append(
            f"{images.path} has rows of {images.shape}, {first.images.path} of "
            f"{first.images.shape}; extract all alike"
        )

    doubts = list(split.doubts(deep=True))
    for other in splits[:-1]:
        if (name, other.name) in APART:
            doubts += split.compare(other, deep=True)
    for is_fault, sentence in doubts:
        if is_fault:
            faults.append(sentence)
        else:
            print(f"note: {sentence}")
    return faults


def fit_together(images: Features, others: Features) -> bool:
    """True if one model reads the features of two splits; padding may be of different lengths."""
    if images.shape == others.shape:
        return True
    both_regions = len(images.shape) == len(others.shape) == 2
    padded = both_regions and (images.is_padded() or others.is_padded())
    return padded and images.dim == others.dim


def check_words(splits: list[Split]) -> list[str]:
    """Print how many captions have no word of the training vocabulary; return the faults."""
    if splits[0].name != "train":
        return []

    listed = set()
    for word, count in splits[0].words.count().items():
        if count >= MIN_WORD_COUNT:
            listed.add(word)

    faults = []
    for split in splits:
        unknown = []
        for m, words in enumerate(split.words):
            if words and listed.isdisjoint(words):
                unknown.append(m)
        if len(unknown) == len(split.captions):
            faults.append(split.describe_foreign(len(listed)))
        elif unknown:
            print(f"note: {split.describe_unknown(np.array(unknown))}")
    return faults


def main(argv=None) -> None:
    p = Arguments("Check a data set.")
    help = "check: print what the data set holds, and every fault"
    p.add_argument("command", choices=["check"], help=help)
    add_data_set(p)
    opt = p.parse_args(argv)

    def check_and_fail() -> int:
        n_faults = check_data_set(opt.data_path, opt.data_name)
        return int(n_faults > 0)

    sys.exit(utils.run("data.py", check_and_fail))


def add_data_set(p: Arguments) -> None:
    """Add the options that name a data set."""
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    help = "folder of the data set below --data_path"
    add("--data_name", type=data_set, default="coco_precomp", help=help)


# ---- python vocab.py, which starts `python data.py vocab`


def write_vocabulary(opt) -> None:
    """Write the vocabulary of the training captions, or of those of --vocab_splits."""
    path = os.path.join(opt.vocab_path, f"{opt.data_name}_vocab.json")
    target = output(path, overwrite=opt.overwrite)

    counts = Counter()
    n_captions = 0
    for name in opt.vocab_splits.split(","):
        split = read_split(
            opt.data_path,
            opt.data_name,
            name,
            use_restval=opt.use_restval,
            dev_images=0,
            text_only=True,
        )
        split.require_sound(images=False)
        counts.update(split.words.count())
        n_captions += len(split.captions)

    vocab = Vocabulary.from_counts(counts, opt.vocab_threshold)
    vocab.save(target)
    print(
        f"{target}: {len(vocab):,} words seen at least {opt.vocab_threshold} times in "
        f"{n_captions:,} captions"
    )


def vocabulary_main(argv=None) -> None:
    p = Arguments("Build a vocabulary from the captions of a data set.", prog="vocab.py")
    add_data_set(p)
    add = p.add_argument
    help = "folder to write {data_name}_vocab.json to"
    add("--vocab_path", type=filename, default="./vocab/", help=help)
    help = "comma-separated splits whose words are counted (original: train,dev)"
    add("--vocab_splits", default="train", help=help)
    help = "keep words that occur at least this often"
    add("--vocab_threshold", type=positive, default=MIN_WORD_COUNT, help=help)
    add("--use_restval", action="store_true", help="count COCO's restval captions as part of train")
    add("--overwrite", action="store_true", help="replace an existing file")
    utils.run("vocab.py", write_vocabulary, p.parse_args(argv))


if __name__ == "__main__":
    if sys.argv[1:2] == ["vocab"]:
        vocabulary_main(sys.argv[2:])
    else:
        main()
