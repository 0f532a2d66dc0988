"""Training images and captions without partners, for jwae.

    python train.py --data_name f8k_precomp --method jwae_mh --supervised_fraction 0.3

jwae section 4: X and Y are unpaired, S is paired. A batch depends on the seed and the number of the
step alone, so a resumed run continues exactly.
"""

import functools

import numpy as np

from data import Batch, Split
from images import count_regions


@functools.lru_cache(maxsize=4)  # two sides, and the two rounds that a batch may span
def shuffle(n: int, *seed: int) -> np.ndarray:
    """Order n items at random: (n,)."""
    return np.random.default_rng(seed).permutation(n)


class Unpaired:
    """`count` images and captions a step; all come before any comes again.

    readers: {"images" and "captions": what reads their rows}; rows: {the same: (n,)}, of one side
    or of both.
    """

    def __init__(self, readers: dict, rows: dict[str, np.ndarray], count: int, seed: int):
        self.readers = readers
        self.rows = rows
        self.count = count
        self.seed = seed

    def draw(self, side: str, step: int) -> np.ndarray:
        """Draw the rows (count,) of step `step`, from 0."""
        rows = self.rows[side]
        size = len(rows)
        side_number = int(side == "captions")

        first = step * self.count
        rounds, positions = np.divmod(np.arange(first, first + self.count), size)
        drawn = []
        for number in np.unique(rounds).tolist():
            order = shuffle(size, self.seed, side_number, number)
            drawn.append(rows[order[positions[rounds == number]]])
        return np.concatenate(drawn)

    def batch(self, step: int) -> Batch:
        """Read the batch of step `step`, from 0, with None for a side that has no items."""
        images = None
        n_regions = None
        if "images" in self.rows:
            images = self.readers["images"].gather(self.draw("images", step))
            n_regions = count_regions(images)
        tokens = None
        lengths = None
        if "captions" in self.rows:
            tokens, lengths = self.readers["captions"].batch(self.draw("captions", step))
        return Batch(images, tokens, lengths, None, None, n_regions=n_regions)


def choose_pairs(split: Split, fraction: float, seed: int) -> np.ndarray:
    """Choose captions (m,) of a random `fraction` of the images, of at least one."""
    n = len(split.images)
    count = max(1, round(fraction * n))
    images = np.random.default_rng([seed, n]).permutation(n)[:count]
    return np.flatnonzero(np.isin(split.caption_image, images))


def build_unpaired(opt, split: Split, tokens, pairs: np.ndarray) -> Unpaired | None:
    """Build the images and captions beside `pairs` (m,), of sides that have terms without pairs."""
    captions = np.setdiff1d(np.arange(len(split.captions)), pairs)
    images = np.unique(split.caption_image[captions])
    rows = {}
    if len(images) and (opt.recon_images or opt.prior_images or opt.vae):
        rows["images"] = images
    if len(captions) and (opt.recon_captions or opt.prior_captions or opt.vae):
        rows["captions"] = captions
    if not rows:
        return None
    readers = {"images": split.images, "captions": tokens}
    return Unpaired(readers, rows, opt.batch_size, opt.seed)
