"""Reads a split of a data set, makes batches of it, and checks data folders.

    python data.py check --data_path data --data_name f8k_precomp

The files in a folder decide how it is read: `{split}_caps.txt` and `{split}_ims.npy` (precomputed
features), `annotations/` with COCO's captions and ids files, a `dataset_*.json` in Karpathy's
layout beside `images/` (all three in files/layouts.py), or `Annotations/` and `Sentences/` of
Flickr30k Entities, whose images are regions and whose captions are phrases (files/phrases.py).
"""
if __name__ == "__main__":
    import cli
    cli.set_threads()

import glob
import os
import re
import sys

import numpy as np
import torch
from torch import Tensor

import cli
import inputs
from cli import Arguments, InputError, data_set, filename
from files.entities import SPLITS, check_entities
from files.layouts import Batch, Split, first_images, read_coco_layout, read_karpathy, read_precomputed
from files.phrases import REGIONS, DrawnRegions, Labels, PhraseSplit, draw_phrases, has_phrases, read_phrases
from files.reading import advice
from files.writing import refuse_changing
from inputs import Features, Photos, Tokens, train_transform
from text import Vocabulary

DEV_IMAGES = 1000       # VSE++ cuts the dev split of precomputed data and of COCO to 5,000 captions


def read_split(data_path: str, data_name: str, split: str, *, use_restval: bool = False,
               dev_images: int = DEV_IMAGES, text_only: bool = False,
               text_features: str | None = None, regions: str = REGIONS) -> Split:
    """Read one split of data_path/data_name. Raises InputError, with one sentence, where it cannot
    be read.

    split: train, dev (= val), test or testall. dev_images: only the first images of a dev split of
    precomputed data or COCO are kept, as in VSE++; 0 keeps all. text_only: {split}_caps.txt may
    stand there without features. text_features: the name in {split}_{name}.npy, which holds
    features of the captions of precomputed data. regions: which proposals are read of a data set of
    phrases.
    """
    root = os.path.join(data_path, data_name)
    cli.check(re.fullmatch(r"[\w-]+", split), f"'{split}' is no name of a split; give train, dev, "
              "test, testall or what a file of captions begins with")
    if not os.path.isdir(root):
        raise InputError(f"there is no folder {root} (--data_path {data_path}, --data_name "
                         f"{data_name}); {advice(data_name)}")
    refuse_changing(root, split)
    if has_phrases(root):
        return read_phrases(root, split, regions, text_features, text_only)
    karpathy = sorted(glob.glob(os.path.join(root, "dataset*.json")))
    precomputed = glob.glob(os.path.join(root, "*_caps.txt")) or features_in(root)
    cli.check(precomputed or not text_features,
              f"--text_features {text_features}: {root} holds photos, and features of captions lie "
              "beside precomputed ones; extract both with features.extract")
    if os.path.isdir(os.path.join(root, "annotations")):
        result = read_coco_layout(root, split, use_restval)
    elif karpathy:
        return read_karpathy(root, karpathy[0], split, use_restval)
    elif precomputed:
        result = read_precomputed(root, split, text_only, text_features)
    else:
        raise InputError(f"{root} holds no data set: looked for {split}_caps.txt and "
                         f"{split}_ims.npy (precomputed), annotations/ (COCO) and dataset_*.json "
                         f"(Karpathy); {advice(data_name)}")
    cut = dev_images and split in ("dev", "val")
    return first_images(result, dev_images) if cut else result


def features_in(root: str) -> list[str]:
    """Files of precomputed features of images."""
    return glob.glob(os.path.join(root, "*_ims.npy"))


class _PairFetcher:
    """Turns caption indices (B,) into them and their images. A worker process is given no captions,
    which the process that asks has."""

    def __init__(self, split: Split, crop_size: int | None, seed: tuple):
        self.images, self.caption_image = split.images, split.caption_image
        self.crop_size, self.seed = crop_size, seed

    def __getitem__(self, index) -> tuple[np.ndarray, Tensor]:
        if self.crop_size and isinstance(self.images, Photos):
            return index, self.augmented(index)
        return index, self.images.gather(self.caption_image[index])

    def augmented(self, index) -> Tensor:
        """Photos, cropped and flipped at random by (seed, epoch, caption) alone; workers or
        resuming change nothing."""
        transform = train_transform(self.crop_size)
        photos = []
        with torch.random.fork_rng(devices=[]):
            for caption, image in zip(index, self.caption_image[index]):
                seed = np.random.SeedSequence([*self.seed, int(caption)])
                # torch.manual_seed would seed CUDA's generators too
                torch.default_generator.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
                photos.append(transform(self.images.open(int(image))))
        return torch.stack(photos)                                    # (B, 3, crop_size, crop_size)


def pair_batches(split: Split, tokens: Tokens, order, batch_size: int, *, workers: int = 0,
                 crop_size: int | None = None, seed: tuple = (0,), skip: int = 0):
    """Yield batches of matching pairs in the given order of captions. The first `skip` batches are
    left out (resuming).

    With crop_size, photos are augmented as in training, at random by `seed`; without it they are
    cropped as in tests.
    """
    chunks = inputs.chunks(np.ascontiguousarray(order), batch_size)[skip:]
    fetch = _PairFetcher(split, crop_size, seed)
    for chunk, images in inputs.stream(fetch, chunks, workers * split.images.parallel):
        yield Batch(images, *tokens.batch(chunk), torch.from_numpy(split.caption_image[chunk]),
                    torch.from_numpy(chunk))


def phrase_batches(split: PhraseSplit, tokens: Tokens, photos, size: int, labels: Labels, *,
                   workers: int = 0, seed: tuple = (0,), skip: int = 0):
    """Yield labelled batches of the proposals and phrases of `size` photos each, in the given order
    of photos. The first `skip` batches are left out (resuming)."""
    chunks = inputs.chunks(np.ascontiguousarray(photos), size)[skip:]
    drawn = (draw_phrases(split, labels, seed, chunk) for chunk in chunks)
    for (rows, columns, label), regions in inputs.stream(
        DrawnRegions(split.images), drawn, workers * split.images.parallel
    ):
        yield Batch(regions, *tokens.batch(columns), torch.from_numpy(rows),
                    torch.from_numpy(columns), labels=torch.from_numpy(label))


def check_extractors(trained: dict | None, split: Split, text_features: str | None,
                     path: str) -> None:
    """Raises InputError on features whose recorded extractor (features.json) differs from that in
    training."""
    for kind in ("ims", text_features):
        before, now = ((made or {}).get(kind) for made in (trained, split.extractors))
        if before and now and before != now:
            what = "image features" if kind == "ims" else f"caption features '{kind}'"
            raise InputError(f"{split.source}: the {what} beside it were made by '{now}', {path} "
                             f"was trained on those of '{before}'; extract them with the same "
                             "network or vectors")


def check_phrases(root: str, regions: str, text_features: str | None) -> int:
    """Print what a folder of Flickr30k Entities holds, the proposals and features in it, too, and
    every fault. Those of the usual name may be missing. Returns the number of faults."""
    lines, faults = check_entities(root)
    for line in lines:
        print(line)
    proposals = regions.rpartition("_")[0]
    for name in () if faults else SPLITS:
        boxes = os.path.join(root, f"{name}_{proposals}.npz")
        if regions == REGIONS and not os.path.isfile(boxes):
            print(f"{name:8}no proposals {proposals} yet: python -m features.proposals writes them")
            continue
        try:
            split = read_phrases(root, name, regions, text_features)
        except InputError as error:
            faults.append(str(error))
            continue
        print(f"{name:8}{len(split.boxes):>8,} proposals  {split.images.describe()}")
        for x in filter(None, (split.images, split.text)):
            faults += x.faults(deep=True, distinct=False)
    return report(f"{root}: ", faults)


def report(found: str, faults: list[str]) -> int:
    """Print faults of a data set. Returns how many there are."""
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{found}{len(faults)} faults")
    return len(faults)


def check(data_path: str, data_name: str, vocab_path: str | None = None,
          text_features: str | None = None, regions: str = REGIONS) -> int:
    """Print what a data folder holds and every fault in it. Returns the number of faults."""
    root = os.path.join(data_path, data_name)
    if has_phrases(root):
        cli.check(not vocab_path, f"--vocab {vocab_path} is for images and captions, and {root} "
                                  "has phrases; leave it out")
        return check_phrases(root, regions, text_features)
    vocab = Vocabulary.load(vocab_path) if vocab_path else None
    faults, splits, first = [], 0, {}
    text_only = bool(glob.glob(os.path.join(root, "*_caps.txt"))) and not features_in(root)
    required = ("train", "dev", "test")[2 * text_only:]
    for name in ("train", "restval", "dev", "test", "testall"):
        try:
            split = read_split(data_path, data_name, name, dev_images=0, text_only=text_only,
                               text_features=text_features)
        except InputError as error:
            faults += [str(error)] * (name in required)
            continue
        splits += 1
        for kind, x in enumerate((split.images, split.text)):
            if isinstance(x, Features) and x.shape != first.setdefault(kind, x).shape:
                faults.append(f"{x.path} has rows of {x.shape}, {first[kind].path} of "
                              f"{first[kind].shape}; extract all alike")
        vocab = vocab or Vocabulary.build(split.words)
        known = [word in vocab.index for words in split.words for word in words] or [False]
        for note in split.notes:
            print(f"note: {note}")
        print(f"{name:8}{len(split.images):>8,} images {len(split.captions):>8,} captions  "
              f"{split.images.describe()}\n{'':8}captions of "
              f"{np.mean([len(words) for words in split.words]):.1f} words; "
              f"{100 * np.mean(known):.2f}% of the words are in the vocabulary of {len(vocab):,}")
        faults += split.faults(deep=True)
        if all(caption.strip() for caption in split.captions):
            try:
                split.encode(vocab)
            except InputError as error:
                faults.append(str(error))
    # no data set at all is one fault, not one per split
    return report(f"{root}: {splits} splits, ", faults if splits else faults[:1])


def main(argv=None) -> None:
    parser = Arguments("Check a data set.")
    parser.add_argument("command", choices=["check"],
                        help="check: print what the data set holds, and every fault")
    parser.add_argument(
        "--data_path", type=filename, default="data", help="folder that holds the data sets"
    )
    parser.add_argument("--data_name", type=data_set, default="coco_precomp",
                        help="folder of the data set below --data_path")
    parser.add_argument(
        "--text_features", metavar="NAME", help="also check features of captions, {split}_NAME.npy"
    )
    parser.add_argument("--regions", type=filename, default=REGIONS, metavar="NAME",
                        help="phrases in photos: check these proposals and features, "
                             "{split}_NAME.npy, too")
    parser.add_argument("--vocab", type=filename,
                        help="vocabulary whose coverage is measured (default: words of the "
                             "training captions)")
    opt = parser.parse_args(argv)
    sys.exit(cli.run("data.py", lambda: int(check(
        opt.data_path, opt.data_name, opt.vocab, opt.text_features, opt.regions) > 0)))


if __name__ == "__main__":
    main()
