"""Training images and captions without partners, for jwae.

    python train.py --data_name f8k_precomp --method jwae_mh --supervised_fraction 0.3

jwae section 4: X and Y are unpaired, S is paired. A batch depends on the seed and the number of the step alone, so a
resumed run continues exactly.
"""
import functools

import numpy as np

from data import Batch, Split


@functools.lru_cache(maxsize=4)                             # two sides, and the two rounds that a batch may span
def shuffle(n: int, *seed: int) -> np.ndarray:
    """Random order (n,) of n items."""
    return np.random.default_rng(seed).permutation(n)


class Unpaired:
    """`count` images and captions a step; all come before any comes again.
    readers: {"images" and "captions": what reads their rows}; rows: {the same: (n,)}, of one side or of both."""

    def __init__(self, readers: dict, rows: dict[str, np.ndarray], count: int, seed: int):
        self.readers, self.rows, self.count, self.seed = readers, rows, count, seed

    def draw(self, side: str, step: int) -> np.ndarray:
        """Rows (count,) of step `step`, from 0."""
        rows = self.rows[side]
        rounds, places = np.divmod(np.arange(step * self.count, (step + 1) * self.count), len(rows))
        return np.concatenate([rows[shuffle(len(rows), self.seed, int(side == "captions"), k)[places[rounds == k]]]
                               for k in np.unique(rounds).tolist()])

    def batch(self, step: int) -> Batch:
        """Batch of step `step`, from 0, with None for a side that has no items."""
        read, rows = self.readers, self.rows
        images = read["images"].gather(self.draw("images", step)) if "images" in rows else None
        captions = read["captions"].batch(self.draw("captions", step)) if "captions" in rows else (None, None)
        return Batch(images, *captions, None, None)


def choose_pairs(split: Split, fraction: float, seed: int) -> np.ndarray:
    """Choose captions (m,) of a random `fraction` of the images, of at least one."""
    n = len(split.images)
    images = np.random.default_rng([seed, n]).permutation(n)[:max(1, round(fraction * n))]
    return np.flatnonzero(np.isin(split.caption_image, images))


def build_unpaired(opt, split: Split, tokens, pairs: np.ndarray) -> Unpaired | None:
    """Images and captions beside `pairs` (m,), of sides that have terms without pairs."""
    rest = np.setdiff1d(np.arange(len(split.captions)), pairs)
    rows = {"images": np.unique(split.caption_image[rest]), "captions": rest}
    rows = {side: x for side, x in rows.items()
            if len(x) and (getattr(opt, f"recon_{side}") or getattr(opt, f"prior_{side}") or opt.vae)}
    return Unpaired({"images": split.images, "captions": tokens}, rows, opt.batch_size, opt.seed) if rows else None
