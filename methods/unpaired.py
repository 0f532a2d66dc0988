"""Unpaired training images and captions, from which jwae learns beside its pairs.

    python train.py --data_name f8k_precomp --supervised_fraction 0.3 --txt_enc bigru --img_layers 1024 \\
        --recon_images 0.5 --recon_captions 0.005 --prior_images 0.01 --prior_captions 0.01

jwae 3.2 and 3.3: X and Y are unpaired, S is paired. A batch depends on the seed and the number of the step alone, so a
resumed run continues exactly.
"""
import functools

import numpy as np
import torch
import torch.nn.functional as F

from cli import check
from data import Batch, Features, Split, check_extractors, read_split


@functools.lru_cache(maxsize=4)                             # two sides, and the two rounds that a batch may span
def shuffle(n: int, *seed: int) -> np.ndarray:
    """Random order (n,) of n items."""
    return np.random.default_rng(seed).permutation(n)


class Unpaired:
    """`count` images and captions a step, or one of the two, that do not belong together. All come before any again.
    sources: {"images" and "captions": [(reader, rows (n,) of it), ...]}. data: fingerprints of other data sets."""

    def __init__(self, sources: dict[str, list[tuple]], count: int, seed: int, data: dict):
        self.sources, self.count, self.seed, self.data = sources, count, seed, data

    def draw(self, side: str, step: int) -> list[tuple]:
        """Items of step `step`, from 0: [(reader, rows (b,)), ...], `count` in all."""
        ends = np.cumsum([0, *(len(rows) for _, rows in self.sources[side])]).tolist()
        rounds, places = np.divmod(np.arange(step * self.count, (step + 1) * self.count), ends[-1])
        items = np.concatenate([shuffle(ends[-1], self.seed, int(side == "captions"), k)[places[rounds == k]]
                                for k in np.unique(rounds).tolist()])                                       # (count,)
        parts = [(reader, rows[items[(items >= start) & (items < start + len(rows))] - start])
                 for (reader, rows), start in zip(self.sources[side], ends)]
        return [(reader, rows) for reader, rows in parts if len(rows)]

    def batch(self, step: int) -> Batch:
        """Batch of step `step`, from 0, with None for a side that has no items."""
        images = tokens = lengths = None
        if self.sources["images"]:
            images = torch.cat([reader.gather(rows) for reader, rows in self.draw("images", step)])
        if self.sources["captions"]:
            parts, lengths = zip(*(reader.batch(rows) for reader, rows in self.draw("captions", step)))
            tokens, lengths = pad(parts), torch.cat(lengths)
        return Batch(images, tokens, lengths, None, None)


def pad(parts: list[torch.Tensor]) -> torch.Tensor:
    """Join (b, T) or (b, T, K) of several b, T and K, zero-padded to the largest T and K."""
    for axis in range(1, parts[0].ndim):
        longest = max(part.shape[axis] for part in parts)
        parts = [F.pad(part.transpose(axis, -1), (0, longest - part.shape[axis])).transpose(axis, -1) for part in parts]
    return torch.cat(parts)


def choose_pairs(split: Split, fraction: float, seed: int) -> np.ndarray:
    """Captions (m,) of a random `fraction` of the images, of at least one image: the pairs that are known to match."""
    n = len(split.images)
    images = np.random.default_rng([seed, n]).permutation(n)[:max(1, round(fraction * n))]
    return np.flatnonzero(np.isin(split.caption_image, images))


def build_unpaired(opt, split: Split, tokens, pairs: np.ndarray, vocab) -> Unpaired | None:
    """Unpaired images and captions: those of `split` beside its `pairs` (m,) and of --unpaired_images and
    --unpaired_captions, or None without any. Raises InputError where another data set does not fit the model."""
    rest = np.setdiff1d(np.arange(len(split.captions)), pairs)
    readers = {"images": (split.images, np.unique(split.caption_image[rest])), "captions": (tokens, rest)}
    sources, data = {}, {}
    for side, (reader, rows) in readers.items():
        learns = any(getattr(opt, name) for name in (f"recon_{side}", f"prior_{side}", "vae"))
        sources[side] = [(reader, rows)] if len(rows) and learns else []
        name, captions = getattr(opt, f"unpaired_{side}"), side == "captions"
        if not name:
            continue
        kind = opt.text_features if captions else "ims"
        other = read_split(opt.data_path, name, "train", text_only=captions,
                           text_features=kind if captions else None).require_sound()
        more = other.encode(vocab, known=False) if captions else other.images
        shape, wanted = (getattr(x, "shape", None) for x in (more, reader))
        check(shape == wanted, f"--unpaired_{side} {name} has features of {shape}, {opt.data_name} of {wanted}; use "
                               "features of the same extractor")
        check_extractors({kind: (split.extractors or {}).get(kind)}, other, kind, opt.data_name)
        rows = np.arange(len(more)) if isinstance(more, Features) else np.flatnonzero(~more.unknown)
        check(len(rows), f"--unpaired_captions {name} has no caption with a known word; use captions of one language")
        sources[side].append((more, rows))
        data[side] = other.fingerprint()
    return Unpaired(sources, opt.batch_size, opt.seed, data) if any(sources.values()) else None
