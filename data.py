"""Reads image-caption data sets (precomputed features, COCO, Karpathy's JSON), makes batches, and checks data folders.

    python data.py check --data_path data --data_name f8k_precomp

The files in a folder decide how it is read: `{split}_caps.txt` and `{split}_ims.npy` (precomputed features),
`annotations/` with COCO's captions and ids files, or a `dataset_*.json` in Karpathy's layout beside `images/`.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import functools
import glob
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import cli
import inputs
from cli import Arguments, InputError, data_set, filename, reason
from files.reading import as_integers, below, integers, read_coco, read_integers, read_json, read_lines
from files.writing import CHANGING
from inputs import CaptionFeatures, Features, NoImages, Photos, Tokens, TrigramTokens, encode_captions, train_transform
from text import Vocabulary, tokenize

DEV_IMAGES = 1000                     # VSE++ cuts the dev split of precomputed data and of COCO to 5,000 captions
LONGEST = 10_000                      # words of a caption; a longer one would take the network minutes


class Batch(NamedTuple):
    """B matching pairs."""
    images: Tensor                    # (B, F) features | (B, P, F) regions | (B, 3, H, W) photos
    tokens: Tensor                    # (B, T) int64 word numbers, zero-padded
    lengths: Tensor                   # (B,) int64, on the CPU (packing needs them there)
    image_index: Tensor               # (B,) int64, the row of each image in the split
    caption_index: Tensor             # (B,) int64, the row of each caption
    # images and captions that do not belong together (jWAE); fields that it lacks are None
    unpaired: "Batch | None" = None
    negatives: "Batch | None" = None  # captions from the whole training set that the images are compared with (DMSM)

    def to(self, device) -> "Batch":
        return Batch(*(x if x is self.lengths or x is None else x.to(device) if isinstance(x, Batch)
                       else x.to(device, non_blocking=True) for x in self))


@dataclass
class Split:
    """N images and their M captions."""
    name: str
    images: Features | Photos | NoImages
    captions: list[str]
    caption_image: np.ndarray                     # (M,) int64, the row of each caption's image
    source: str                                   # where the captions come from, for messages
    image_ids: list | None = None                 # N integers (COCO's, Karpathy's imgid) or file names
    caption_ids: np.ndarray | None = None         # (M,) int64 (COCO's, Karpathy's sentid)
    photo_names: list | None = None              # N file names, where neither the photos nor image_ids give them
    text: Features | None = None                  # (M, F) features of the captions, where a model reads them
    extractors: dict | None = None                # what made the features, {"ims": name, ...}, from features.json
    notes: list[str] = field(default_factory=list)    # sentences for whoever reads a result on this split

    @cached_property
    def words(self) -> list[list[str]]:
        """The captions as lists of words. They are tokenised only once."""
        return [tokenize(caption)
                for caption in tqdm(self.captions, desc=f"words of {self.name}", disable=None, leave=False)]

    def encode(self, vocab: Vocabulary, known: bool = True) -> Tokens | TrigramTokens | CaptionFeatures:
        """The captions as a model reads them: numbers of words or of letter trigrams, or features. With `known`, raises
        InputError on a caption without any known word."""
        if self.text is not None:
            return CaptionFeatures(self.text)
        tokens = encode_captions(self.words, vocab)
        if known and tokens.unknown.any():
            m = int(tokens.unknown.argmax())
            raise InputError(f"{self.source}, caption {m + 1}: no word of '{self.captions[m]}' is in the vocabulary of "
                             f"{len(vocab)} words; remove it, or train with a lower --vocab_threshold")
        return tokens

    def faults(self, deep: bool = False, images: bool = True):
        """Yield sentences on what is wrong with the contents. `deep` opens every photo and reads every feature. Without
        `images` only the captions are checked."""
        for m, caption in enumerate(self.captions):
            if not caption.strip():
                yield f"{self.source}, caption {m + 1} is empty; every caption needs a word, so fill or remove it"
            elif len(caption) > LONGEST and (len(caption) > 10 * LONGEST or len(caption.split()) > LONGEST):
                yield (f"{self.source}, caption {m + 1} has {len(caption.split()):,} words in {len(caption):,} "
                       f"letters; at most {LONGEST:,} words in {10 * LONGEST:,} letters are read, so shorten or remove "
                       "it")
        yield from self.images.faults(deep) if images else ()
        for what, ids in (("images", self.image_ids), ("captions", self.caption_ids)) if deep and images else ():
            twice = 0 if ids is None else len(ids) - len(set(ids if isinstance(ids, list) else ids.tolist()))
            if twice:
                yield (f"{self.source}: {twice} of {len(ids)} {what} have the id or name of another one; give each its "
                       "own, or leave the ids out")
        if self.text is not None:
            yield from self.text.faults(deep, distinct=False)

    def require_sound(self, images: bool = True) -> "Split":
        for fault in self.faults(images=images):
            raise InputError(fault)
        return self

    def fingerprint(self) -> dict:
        """Sizes and checksums for a run's config.yaml: of all captions, and of the features' shape and 64 rows."""
        found = {"images": len(self.images), "captions": len(self.captions), "images_sha256": self.images.digest(),
                 **inputs.told_of(self.captions)}
        found.update({} if self.text is None else {"text_sha256": self.text.digest()})
        return {**found, "extractors": self.extractors} if self.extractors else found

    def unknown_words(self, vocab: Vocabulary) -> dict[str, int]:
        """How many of all words and of the distinct words the vocabulary does not list, beside the totals. Also how
        many captions have no listed word."""
        unknown = [[word for word in words if word not in vocab.index] for words in self.words]
        return {"words": sum(map(len, self.words)), "unknown_words": sum(map(len, unknown)),
                "distinct": len({word for words in self.words for word in words}),
                "unknown_distinct": len({word for words in unknown for word in words}),
                "captions_without": sum(len(a) == len(b) for a, b in zip(unknown, self.words))}


def read_split(data_path: str, data_name: str, split: str, *, use_restval: bool = False,
               dev_images: int = DEV_IMAGES, text_only: bool = False, text_features: str | None = None) -> Split:
    """Read one split of data_path/data_name. Raises InputError, with one sentence, where it cannot be read.

    split: train, dev (= val), test or testall. dev_images: only the first images of a dev split of precomputed data or
    COCO are kept, as in VSE++; 0 keeps all. text_only: {split}_caps.txt may stand there without features.
    text_features: the name in {split}_{name}.npy, which holds features of the captions of precomputed data.
    """
    root = os.path.join(data_path, data_name)
    if not re.fullmatch(r"[\w-]+", split):
        raise InputError(f"'{split}' is no name of a split; give train, dev, test, testall or what a file of captions "
                         "begins with")
    if not os.path.isdir(root):
        raise InputError(f"there is no folder {root} (--data_path {data_path}, --data_name {data_name}); "
                         f"{inputs.advice(data_name)}")
    names = ("dev", "val") if split in ("dev", "val") else (split,)                 # two names of one split
    if any(os.path.exists(os.path.join(root, CHANGING.format(name))) for name in names):
        raise InputError(f"{root}: the files of split '{split}' do not belong together, as `features.extract images` "
                         "or `demo` was stopped while it put them in their places; call it again")
    karpathy = sorted(glob.glob(os.path.join(root, "dataset*.json")))
    precomputed = glob.glob(os.path.join(root, "*_caps.txt")) or glob.glob(os.path.join(root, "*_ims.npy"))
    if text_features and not precomputed:
        raise InputError(f"--text_features {text_features}: {root} holds photos, and features of captions lie beside "
                         "precomputed ones; extract both with features.extract")
    if os.path.isdir(os.path.join(root, "annotations")):
        result = _read_coco(root, split, use_restval)
    elif karpathy:
        return _read_karpathy(root, karpathy[0], split, use_restval)
    elif precomputed:
        result = _read_precomp(root, split, text_only, text_features)
    else:
        raise InputError(f"{root} holds no data set: looked for {split}_caps.txt and {split}_ims.npy (precomputed), "
                         f"annotations/ (COCO) and dataset_*.json (Karpathy); {inputs.advice(data_name)}")
    return _first_images(result, dev_images) if result.name in ("dev", "val") and dev_images else result


def _first_images(split: Split, n: int) -> Split:
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


def _need(path: str) -> str:
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; {inputs.advice(os.path.basename(os.path.dirname(path)))}")
    return path


def _read_precomp(root: str, split: str, text_only: bool = False, text_features: str | None = None) -> Split:
    if split in ("dev", "val"):  # one split with two names
        split = next((s for s in (split, "dev", "val") if os.path.isfile(os.path.join(root, f"{s}_caps.txt"))), split)
    path = functools.partial("{0}/{1}_{2}".format, root, split)
    if not glob.glob(os.path.join(root, "*_caps.txt")) and os.path.isfile(os.path.join(root, "all_photos.json")):
        raise InputError(f"{root} holds photos without captions, which can be searched; to train on them give "
                         "`features.extract images --photos` a captions.csv")
    source = _need(path("caps.txt"))
    captions, ids, names, notes = read_lines(source), _read_ids(path("img_ids.npy")), _read_ids(path("ids.txt")), []
    if text_only and not os.path.isfile(path("ims.npy")):
        images = NoImages(len(ids or captions[::5]))
        rows = len(images)
    else:
        images = Features(_need(path("ims.npy")))
        rows = len(images.array)
    count = len(captions)
    if not count or not rows or count % rows:
        raise InputError(f"{source} has {count} captions for the {rows} rows of "
                         f"{getattr(images, 'path', 'text-only images')}; there must be the same number of captions "
                         "for every row")
    if isinstance(images, Features) and rows == count:
        images.step = inputs.rows_per_image(images)                                         # SCAN and VSE++ repeat them
    n = len(images)
    if n < count == len(names) and len(set(names)) == count:                        # these name captions
        notes.append(f"{path('ids.txt')} names every caption differently, so it does not say which the images are")
        names = []
    ids, names = (_one_an_image(x, n, count, path(file)) for x, file in ((ids, "img_ids.npy"), (names, "ids.txt")))
    ids_path = path("ann_ids.npy" if os.path.isfile(path("ann_ids.npy")) else "capids.txt")
    caption_ids = _read_ids(ids_path)
    if len(caption_ids) not in (0, count):
        raise InputError(f"{ids_path} has {len(caption_ids)} ids for the {count} captions of {source}; there must be "
                         "one for each caption, in their order")
    for what, x in (("img_ids.npy", ids), ("ids.txt", names)):
        if len(x) not in (0, n):
            raise InputError(f"{path(what)} has {len(x)} ids for {n} images; there must be one for each image or "
                             "caption")
    text = Features(_need(path(f"{text_features}.npy"))) if text_features else None
    if text and text.array.shape[:-1] != (count,):
        raise InputError(f"{text.path} has shape {text.array.shape} for the {count} captions of {source}; give one row "
                         "a caption")
    told = path(f"{text_features}.json")
    if text and os.path.isfile(told) and read_json(told, "extract the features again") != inputs.told_of(captions):
        raise InputError(f"{text.path} was extracted from other captions than {source} holds now; call "
                         "features.extract captions again")
    caption_ids = as_integers(caption_ids)                                     # None for names such as Flickr's x.jpg#0
    return Split(split, images, captions, np.arange(count) // (count // n), source,
                 ids or as_integers(names) or names or None,
                 np.array(caption_ids, np.int64) if caption_ids else None, names or None, text,
                 inputs.extractors(root) or None, notes)


def _one_an_image(x: list, n: int, count: int, path: str) -> list:
    """One id per image, from ids that may be given per caption. Raises InputError where the captions of one image have
    different ids: then not every image has count / n captions one after another."""
    each = count // n
    wrong = next((m for m in range(count) if x[m] != x[m - m % each]), None) if len(x) == count else None
    if wrong is not None:
        first = wrong - wrong % each
        raise InputError(f"{path} gives the captions {first + 1} to {first + each}, which {count} captions for {n} "
                         "images make those of one image, more than one id; let the captions of an image stand "
                         "together, equally many of each")
    return x[::each] if len(x) == count else x


def _read_ids(path: str) -> list:
    """The ids beside a precomputed split, from an .npy file of integers or lines of text. Empty if there is no file."""
    if not os.path.isfile(path):
        return []
    return read_integers(path).tolist() if path.endswith(".npy") else read_lines(path)


def _grouped(name, source, keys, paths, captions, caption_ids=None) -> Split:
    """A Split of photos, from a key and a path per caption. Images come in the order of their first appearance."""
    position = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    path_of = dict(zip(keys, paths))
    return Split(name, Photos([path_of[key] for key in position]), captions,
                 np.array([position[key] for key in keys], np.int64), source, list(position), caption_ids)


def _read_karpathy(root: str, path: str, split: str, use_restval: bool) -> Split:
    wanted = {"dev": {"val"}, "train": {"train", "restval"} if use_restval else {"train"}}.get(split, {split})
    rows, name_of, number, without = [], {}, {}, 0
    try:
        for image in read_json(path)["images"]:
            if image["split"] in wanted:
                name = os.path.join(image.get("filepath", ""), image["filename"])
                key = image.get("cocoid", name)
                if name_of.setdefault(key, name) != name:
                    raise InputError(f"{path} gives the images {name_of[key]} and {name} one cocoid, {key}; give each "
                                     "its own")
                if key in number:
                    raise InputError(f"{path} lists the image {name} twice in split '{split}'; list each once, with "
                                     "all its sentences")
                number[key] = image.get("imgid")
                without += not image["sentences"]
                rows += [(key, name, sentence["raw"], sentence.get("sentid")) for sentence in image["sentences"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not in Karpathy's layout (images with split, filename, sentences with raw): "
                         f"{reason(error)}; fetch it again") from error
    if not rows and without:
        raise InputError(f"{path} has {without:,} images of split '{split}' and not one sentence of them; give every "
                         "image at least one")
    if not rows:
        raise InputError(f"{path} has no images of split '{split}'; the splits are train, val (= dev) and test")
    keys, names, captions, caption_ids = map(list, zip(*rows))
    for name, caption in zip(names, captions):
        if not isinstance(caption, str):
            raise InputError(f"{path}, image {name}: the raw sentence {ascii(caption)[:40]} is no string; put its text "
                             "in quotes")
    photos = [below(os.path.join(root, "images"), name, path) for name in names]
    result = _grouped("dev" if split == "val" else split, path, keys, photos, captions,
                      integers(caption_ids, path, "the sentid") if _own_integers(caption_ids) else None)
    numbers = [number[key] for key in result.image_ids]
    if _own_integers(numbers) and all(key == name for key, name in name_of.items()):            # no cocoid
        result.image_ids, result.photo_names = integers(numbers, path, "the imgid").tolist(), result.image_ids
    if without:
        result.notes.append(f"{path}: {without:,} of {len(number):,} images of split '{split}' have no sentence and "
                            "are left out")
    return result


def _own_integers(ids: list) -> bool:
    """Whether all ids are integers and different from each other."""
    return all(type(i) is int for i in ids) and len(set(ids)) == len(ids)


def _read_coco(root: str, split: str, use_restval: bool) -> Split:
    split = "dev" if split in ("val", "dev") else split
    parts = [(split, "train2014" if split == "train" else "val2014")]
    if use_restval and split == "train":
        parts.append(("restval", "val2014"))                                        # 30,504 images of the 2014 val set
    keys, paths, captions, ids = [], [], [], []
    for part, folder in parts:
        ids_path = os.path.join(root, "annotations", f"coco_{part}_ids.npy")
        json_path = _need(os.path.join(root, "annotations", f"captions_{folder}.json"))
        wanted = read_integers(_need(ids_path))                                    # caption ids
        coco = read_coco(json_path)
        absent = [int(i) for i in wanted if i not in coco.anns]
        if absent:
            raise InputError(f"{ids_path} names {len(absent)} captions that {json_path} lacks, the first is "
                             f"{absent[0]}; the two files must belong together")
        try:
            chosen = [coco.anns[int(i)] for i in wanted]
            keys += [a["image_id"] for a in chosen]
            photos = [coco.imgs[a["image_id"]]["file_name"] for a in chosen]
            captions += [a["caption"].replace("\n", " ").strip() for a in chosen]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{json_path} is no file of COCO's captions ({reason(error)} is missing or no text); "
                             "fetch it again") from error
        paths += [below(os.path.join(root, "images", folder), name, json_path) for name in photos]
        ids += wanted.tolist()
    if not captions:
        raise InputError(f"{ids_path} names no captions; fetch it again")
    return _grouped(split, json_path, keys, paths, captions, np.array(ids, np.int64))


class _PairFetcher:
    """Turns caption indices (B,) into a Batch."""

    def __init__(self, split: Split, tokens: Tokens, crop_size: int | None, seed: tuple):
        self.split, self.tokens, self.crop_size, self.seed = split, tokens, crop_size, seed

    def __getitem__(self, index) -> Batch:
        image_index = self.split.caption_image[index]
        if self.crop_size and isinstance(self.split.images, Photos):
            images = self.augmented(index, image_index)
        else:
            images = self.split.images.gather(image_index)
        return Batch(images, *self.tokens.batch(index), torch.from_numpy(image_index),
                     torch.from_numpy(np.asarray(index)))

    def augmented(self, index, image_index) -> Tensor:
        """Photos, cropped and flipped at random by (seed, epoch, caption) alone; workers or resuming change nothing."""
        transform = train_transform(self.crop_size)
        photos = []
        with torch.random.fork_rng(devices=[]):
            for caption, image in zip(index, image_index):
                seed = np.random.SeedSequence([*self.seed, int(caption)]).generate_state(1, np.uint64)[0]
                torch.default_generator.manual_seed(int(seed))   # torch.manual_seed would seed CUDA's generators too
                photos.append(transform(self.split.images.open(int(image))))
        return torch.stack(photos)                                                  # (B, 3, crop_size, crop_size)


def pair_batches(split: Split, tokens: Tokens, order, batch_size: int, *, workers: int = 0,
                 crop_size: int | None = None,
                 seed: tuple = (0,), skip: int = 0):
    """Yield batches of matching pairs in the given order of captions. The first `skip` batches are left out (resuming).

    With crop_size, photos are augmented as in training, at random by `seed`; without it they are cropped as in tests.
    """
    chunks = inputs.chunks(np.ascontiguousarray(order), batch_size)[skip:]
    return inputs.stream(_PairFetcher(split, tokens, crop_size, seed), chunks, workers * split.images.parallel)


def check(data_path: str, data_name: str, vocab_path: str | None = None, text_features: str | None = None) -> int:
    """Print what a data folder holds and every fault in it. Returns the number of faults."""
    faults, found, first, vocab = [], 0, {}, Vocabulary.load(vocab_path) if vocab_path else None
    root = os.path.join(data_path, data_name)
    text_only = bool(glob.glob(os.path.join(root, "*_caps.txt"))) and not glob.glob(os.path.join(root, "*_ims.npy"))
    required = ("train", "dev", "test")[2 * text_only:] if os.path.isdir(root) else ("train",)
    for name in ("train", "restval", "dev", "test", "testall"):
        try:
            split = read_split(data_path, data_name, name, dev_images=0, text_only=text_only,
                               text_features=text_features)
        except InputError as error:
            if name in required:
                faults.append(str(error))
            continue
        found += 1
        for kind, x in enumerate((split.images, split.text)):
            if isinstance(x, Features) and x.shape != first.setdefault(kind, x).shape:
                faults.append(f"{x.path} has rows of {x.shape}, {first[kind].path} of {first[kind].shape}; extract all "
                              "alike")
        vocab = vocab or Vocabulary.build(split.words)
        known = np.array([word in vocab.index for words in split.words for word in words] or [False])
        for note in split.notes:
            print(f"note: {note}")
        print(f"{name:8}{len(split.images):>8,} images {len(split.captions):>8,} captions  {split.images.describe()}\n"
              f"{'':8}captions of {np.mean([len(w) for w in split.words]):.1f} words; "
              f"{100 * known.mean():.2f}% of the words are in the vocabulary of {len(vocab):,}")
        faults += split.faults(deep=True)
        if not any(not caption.strip() for caption in split.captions):
            try:
                split.encode(vocab)
            except InputError as error:
                faults.append(str(error))
    faults = faults if found else faults[:1]                # no data set at all is one fault, not one per split
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{root}: {found} splits, {len(faults)} faults")
    return len(faults)


def main(argv=None) -> None:
    parser = Arguments("Check a data set.")
    parser.add_argument("command", choices=["check"], help="check: print what the data set holds, and every fault")
    parser.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    parser.add_argument("--data_name", type=data_set, default="coco_precomp",
                        help="folder of the data set below --data_path")
    parser.add_argument("--text_features", metavar="NAME", help="also check features of captions, {split}_NAME.npy")
    parser.add_argument("--vocab", type=filename,
                        help="vocabulary whose coverage is measured (default: words of the training captions)")
    opt = parser.parse_args(argv)
    sys.exit(cli.run("data.py", lambda: int(check(opt.data_path, opt.data_name, opt.vocab, opt.text_features) > 0)))


def check_extractors(trained: dict | None, split: Split, text_features: str | None, path: str) -> None:
    """Raises InputError on features whose recorded extractor (features.json) differs from that in training."""
    for kind in ("ims", text_features):
        before, now = ((made or {}).get(kind) for made in (trained, split.extractors))
        if before and now and before != now:
            what = "image features" if kind == "ims" else f"caption features '{kind}'"
            raise InputError(f"{split.source}: the {what} beside it were made by '{now}', {path} was trained on those "
                             f"of '{before}'; extract them with the same network or vectors")


if __name__ == "__main__":
    main()
