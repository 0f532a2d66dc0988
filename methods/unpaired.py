"""Unpaired training images and captions, from which jwae learns beside its pairs.

    python train.py --data_name f8k_precomp --supervised_fraction 0.3 --txt_enc bigru \\
        --img_layers 1024 --recon_images 0.5 --recon_captions 0.005 --prior_images 0.01 \\
        --prior_captions 0.01

jwae 3.2 and 3.3: X and Y are unpaired, S is paired. What a step adds depends on the seed and the number of the step
alone, so a resumed run continues exactly.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cli import check
from data import Batch, Features, Split, check_extractors, read_split


class ShuffledItems:
    """Images or captions of one or two data sets in an endless order; all come once before any comes again.

    sources: pairs of a reader and rows (n,) of it.
    """

    def __init__(self, sources: list[tuple], seed: tuple):
        self.readers, self.seed = [reader for reader, _ in sources], seed
        self.row = np.concatenate([rows for _, rows in sources])                    # (n,)
        self.source = np.repeat(np.arange(len(sources)), [len(rows) for _, rows in sources])
        self.round, self.order = None, None

    def draw(self, step: int, count: int) -> list[tuple]:
        """Items step * count ... (step + 1) * count - 1 of the order: [(reader, rows), ...]."""
        rounds, places = np.divmod(np.arange(step * count, (step + 1) * count), len(self.row))
        items = np.concatenate([self.shuffled(k)[places[rounds == k]] for k in np.unique(rounds)])
        rows = [self.row[items[self.source[items] == k]] for k in range(len(self.readers))]
        return [(reader, own) for reader, own in zip(self.readers, rows) if len(own)]

    def shuffled(self, k: int) -> np.ndarray:
        """The order of the items in round k, (n,)."""
        if self.round != k:
            self.round, rng = k, np.random.default_rng([*self.seed, k])
            self.order = rng.permutation(len(self.row))
        return self.order


class Unpaired:
    """`count` images and `count` captions a step, or one of the two, that do not belong together.

    data: fingerprints of the data sets that are read for it.
    """

    def __init__(self, images: ShuffledItems | None, captions: ShuffledItems | None, count: int,
                 data: dict):
        self.images, self.captions, self.count, self.data = images, captions, count, data

    def batch(self, step: int) -> Batch:
        """The unpaired items of step `step`, from 0."""
        images = tokens = lengths = None
        if self.images:
            images = torch.cat([reader.gather(rows)
                                for reader, rows in self.images.draw(step, self.count)])
        if self.captions:
            parts, lengths = zip(*(reader.batch(rows)
                                   for reader, rows in self.captions.draw(step, self.count)))
            tokens, lengths = padded(parts), torch.cat(lengths)
        return Batch(images, tokens, lengths, None, None)


def padded(parts: list[Tensor]) -> Tensor:
    """Join (b, T) or (b, T, K) of several b, T and K, zero-padded to the largest T and K."""
    sizes = [max(size) for size in zip(*(part.shape[1:] for part in parts))]
    return torch.cat([F.pad(part, [n for most, size in zip(sizes[::-1], part.shape[:0:-1])
                                   for n in (0, most - size)]) for part in parts])


def choose_pairs(split: Split, fraction: float, seed: int) -> np.ndarray:
    """The captions (m,) of a random `fraction` of the images, at least one: the pairs that are known to match."""
    n = len(split.images)
    images = np.random.default_rng([seed, n]).permutation(n)[:max(1, round(fraction * n))]
    return np.flatnonzero(np.isin(split.caption_image, images))


def has_side_term(opt, side: str) -> bool:
    """Whether some term of the loss learns from "images" or "captions" alone."""
    return any(getattr(opt, name) for name in (f"recon_{side}", f"prior_{side}", "vae"))


def build_unpaired(opt, split: Split, tokens, pairs: np.ndarray, vocab) -> Unpaired | None:
    """Images and captions of `split` beside its `pairs` (m,), and those of --unpaired_images and --unpaired_captions;
    None without any. Raises InputError where another data set does not fit the model."""
    rest = np.setdiff1d(np.arange(len(split.captions)), pairs)
    own = {"images": (split.images, np.unique(split.caption_image[rest])),
           "captions": (tokens, rest)}
    sides, data = [], {}
    for k, (side, source) in enumerate(own.items()):
        sources = [source] if len(rest) and has_side_term(opt, side) else []
        if getattr(opt, f"unpaired_{side}"):
            reader, rows, data[side] = read_unpaired(opt, side, split, source[0], vocab)
            sources.append((reader, rows))
        sides.append(ShuffledItems(sources, (opt.seed, k)) if sources else None)
    return Unpaired(*sides, opt.batch_size, data) if any(sides) else None


def read_unpaired(opt, side: str, split: Split, paired, vocab) -> tuple:
    """(reader, rows, fingerprint) of the training images or captions of another data set.

    paired: the reader of this side of `split`. Raises InputError where it does not fit.
    """
    name, captions = getattr(opt, f"unpaired_{side}"), side == "captions"
    kind = opt.text_features if captions else "ims"
    other = read_split(opt.data_path, name, "train", text_only=captions,
                       text_features=kind if captions else None).require_sound()
    reader = other.encode(vocab, known=False) if captions else other.images
    shapes = [getattr(x, "shape", "another kind") for x in (reader, paired)]
    check(shapes[0] == shapes[1], f"--unpaired_{side} {name} has features of {shapes[0]}, "
          f"{opt.data_name} of {shapes[1]}; use features of the same extractor")
    check_extractors({kind: (split.extractors or {}).get(kind)}, other, kind, opt.data_name)
    rows = (np.arange(len(reader)) if isinstance(reader, Features)
            else np.flatnonzero(~reader.unknown))
    check(len(rows), f"--unpaired_captions {name} has no caption with a known word; use captions of "
                     "the same language")
    return reader, rows, other.fingerprint()
