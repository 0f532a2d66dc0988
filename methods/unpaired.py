"""Training items without their partners: unpaired images and captions (`jwae` is semi-supervised),
and DMSM's negative captions.

    python train.py --data_name f8k_precomp --supervised_fraction 0.3 --txt_enc bigru \\
        --img_layers 1024 --recon_images 0.5 --recon_captions 0.005 --prior_images 0.01 \\
        --prior_captions 0.01

Mahajan et al. 2019, Joint Wasserstein Autoencoders for Aligning Multimodal Embeddings (`jwae`); He
et al. 2015, Joint Learning of Distributed Representations for Images and Texts (`dmsm`). What a
step adds depends only on the seed and the number of the step, so a resumed run continues exactly.
"""
import numpy as np
import torch
import torch.nn.functional as F

from cli import check
from data import Batch, Split, check_extractors, read_split
from methods.jwae import learns_alone


class ShuffledItems:
    """Items of several sources in an endless shuffled order. All items come once before any comes
    again."""

    def __init__(self, sources: list[tuple], seed: tuple):
        """sources: (what to read from, rows of its items (n,), image of each item or -1 (n,)).
        seed: numbers for the random generator."""
        self.sources, self.seed = [source for source, *_ in sources], seed
        self.row = np.concatenate([index for _, index, _ in sources])               # (n,)
        self.image = np.concatenate([image for *_, image in sources])               # (n,)
        self.source = np.repeat(np.arange(len(sources)), [len(index) for _, index, _ in sources])
        self.round, self.order = None, None

    def __len__(self) -> int:
        return len(self.row)

    def draw(self, step: int, count: int) -> list[tuple]:
        """Items step * count ... (step + 1) * count - 1 of the endless order, by source: [(source,
        rows, images)]."""
        places = np.arange(step * count, (step + 1) * count)
        rounds = places // len(self)
        items = np.concatenate([self.shuffled(k)[places[rounds == k] % len(self)]
                                for k in range(rounds[0], rounds[-1] + 1)])
        drawn = [(source, items[self.source[items] == k]) for k, source in enumerate(self.sources)]
        return [(source, self.row[index], self.image[index]) for source, index in drawn
                if len(index)]

    def shuffled(self, k: int) -> np.ndarray:
        """The order of the items in round k, (n,)."""
        if self.round != k:
            self.round, rng = k, np.random.default_rng([*self.seed, k])
            self.order = rng.permutation(len(self))
        return self.order


class Unpaired:
    """What each training step adds to its pairs: up to `count` images and `count` captions that do
    not belong together."""

    def __init__(self, images: ShuffledItems | None, captions: ShuffledItems | None, count: int,
                 data: dict | None = None, field: str = "unpaired"):
        """data: fingerprints of the data sets that are read for it. field: the field of data.Batch
        that holds the added items, "unpaired" or "negatives"."""
        self.images, self.captions, self.count = images, captions, count
        self.data, self.field = data or {}, field

    def batch(self, step: int, share=None) -> Batch:
        """The unpaired items of step `step` (from 0) as a Batch of their own. share: the
        devices.share.Share of the `count` items whose images are read; None: all."""
        images = tokens = lengths = owner = None
        first, last, _ = (share.rows if share else slice(None)).indices(self.count)
        if self.images:
            drawn = self.images.draw(step, self.count)
            starts = np.cumsum([0, *(len(rows) for _, rows, _ in drawn)])
            images = torch.cat([source.gather(rows[max(0, first - start):max(0, last - start)])
                                for (source, rows, _), start in zip(drawn, starts)])
        if self.captions:
            drawn = self.captions.draw(step, self.count)
            read = [source.batch(rows) for source, rows, _ in drawn]           # ((b, T), (b,)) each
            longest = [max(sizes) for sizes in zip(*(x.shape[1:] for x, _ in read))]
            padded = [F.pad(x, [n for size, most in zip(x.shape[:0:-1], longest[::-1])
                                for n in (0, most - size)]) for x, _ in read]     # to T (and K)
            tokens, lengths = torch.cat(padded), torch.cat([length for _, length in read])
            owner = torch.from_numpy(np.concatenate([image for *_, image in drawn]))
        return Batch(images, tokens, lengths, owner, None, share=share)


def choose_pairs(split: Split, fraction: float, seed: int, others: bool = False) -> np.ndarray:
    """The captions (m,) of a random `fraction` of the images, of at least one image: the pairs that
    are known to match. others: those of all other images instead."""
    n = len(split.images)
    images = np.random.default_rng([seed, n]).permutation(n)[:max(1, round(fraction * n))]
    return np.flatnonzero(np.isin(split.caption_image, images, invert=others))


def build_unpaired(opt, split: Split, tokens, pairs: np.ndarray, vocab) -> Unpaired | None:
    """What the options add to `pairs` (m,), the captions of `split` that are trained as pairs, or
    None if they add nothing.

    Raises InputError if the items of another data set do not fit the model, or there are fewer
    captions than --negatives.
    """
    everything = np.arange(len(split.captions))
    if opt.loss == "nll" and opt.negative_source == "set":
        captions = ShuffledItems([(tokens, everything, split.caption_image)], (opt.seed, 2))
        check(opt.negatives <= len(captions), f"--negatives {opt.negatives} is more than the "
                                              f"{len(captions):,} training captions; give fewer")
        return Unpaired(None, captions, opt.negatives, field="negatives")
    sources, data = {"images": [], "captions": []}, {}
    rest = np.setdiff1d(everything, pairs)
    if len(rest):
        left = np.unique(split.caption_image[rest])
        if learns_alone(vars(opt), "images"):
            sources["images"].append((split.images, left, left))
        if learns_alone(vars(opt), "captions"):
            sources["captions"].append((tokens, rest, split.caption_image[rest]))
    if opt.unpaired_images:
        other = read_split(opt.data_path, opt.unpaired_images, "train").require_sound()
        check((other.images.dim, other.images.regions) == (split.images.dim, split.images.regions),
              f"--unpaired_images {opt.unpaired_images} has {other.images.describe()}, "
              f"{opt.data_name} {split.images.describe()}; use features of the same extractor")
        check_extractors(split.extractors, other, None, opt.data_name)
        rows, data["images"] = np.arange(len(other.images)), other.fingerprint()
        sources["images"].append((other.images, rows, np.full(len(rows), -1)))
    if opt.unpaired_captions:
        other = read_split(opt.data_path, opt.unpaired_captions, "train", text_only=True,
                           text_features=opt.text_features).require_sound()
        read = other.encode(vocab, known=False)
        rows = np.arange(len(other.captions))
        if other.text is None:
            rows = np.flatnonzero(~read.unknown)
        check(len(rows), f"--unpaired_captions {opt.unpaired_captions} has no caption with a known "
                         "word; use captions of the same language")
        if other.text is not None:
            check(other.text.dim == split.text.dim,
                  f"--unpaired_captions {opt.unpaired_captions} has features of width "
                  f"{other.text.dim}, {opt.data_name} of width {split.text.dim}; use features of "
                  "the same extractor")
        check_extractors({**(split.extractors or {}), "ims": None}, other, opt.text_features,
                         opt.data_name)
        sources["captions"].append((read, rows, np.full(len(rows), -1)))
        data["captions"] = other.fingerprint()
    images, captions = (ShuffledItems(some, (opt.seed, k)) if some else None
                        for k, some in enumerate(sources.values()))
    return Unpaired(images, captions, opt.batch_size, data) if images or captions else None
