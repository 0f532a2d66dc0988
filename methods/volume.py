"""Share of the photos that a caption covers, for `--loss volume`.

A photo of the training split is known by its captions, and a caption covers it as probably as the nearest of these is
of the same photo: p = sigmoid(a s + b), s the largest cosine with one of them, a and b fitted to dev. The share is the
mean of p over the photos. `confidence.volume` gives it to points as their variances.

Of a word or a short phrase it is the share of the photos whose captions name it, with its words in a row, by their
stems: "two dogs run" names "dog". A photo shows more than its captions name, so this share is a lower bound.
"""
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cli import check
from evaluation.encoding import Gallery, encode
from losses import LOSSES, Embedding, PairLoss, unit
from metrics import Sigmoid
from model import VSE

FITTED = 2 ** 22      # pairs of a caption and a photo that a probability is fitted to
ELEMENTS = 2 ** 26    # scores that are computed at a time, 256 MiB
LONGEST = 3           # words of a phrase
ARTICLES = ("a", "an", "the")
Phrase = tuple[str, ...]              # of stems


# ---- words and short phrases

@functools.lru_cache(100_000)
def stem(word: str) -> str:
    from nltk.stem.snowball import SnowballStemmer  # takes a moment to import, and few commands need it

    return SnowballStemmer("english").stem(word)


def read_phrase(words: Sequence[str]) -> Phrase | None:
    """Stem a text (T,) of at most three words, without article and full stop, or None."""
    words = [word for word in words if word != "."]
    words = words[words[:1] != [] and words[0] in ARTICLES:]
    return tuple(map(stem, words)) if 0 < len(words) <= LONGEST else None


def find_naming_photos(phrases: Iterable[Phrase], captions: Iterable[Sequence[str]],
                       owner: np.ndarray) -> dict[Phrase, set[int]]:
    """Find the photos of which a caption names each phrase.
    captions: M lists of words; owner (M,): their photos."""
    photos = {phrase: set() for phrase in phrases}
    for words, photo in zip(captions, owner.tolist()):
        stems = [*map(stem, words)]
        for n in range(1, LONGEST + 1):
            for k in range(len(stems) - n + 1):
                if (phrase := tuple(stems[k:k + n])) in photos:
                    photos[phrase].add(photo)
    return photos


# ---- the share of the photos that a caption covers


def nearest_captions(scores: Tensor, owner: Tensor, photos: int) -> Tensor:
    """Take each photo's largest caption score, or -inf: (B, M), owner (M,) -> (B, N)."""
    best = scores.new_full((len(scores), photos), -torch.inf)
    return best.scatter_reduce(1, owner.to(scores.device).expand_as(scores), scores, "amax")


def log_share(nearest: Tensor, sigmoid: Sigmoid) -> Tensor:
    """Log of the mean probability over the photos that have captions: (B, N) -> (B,)."""
    counted = nearest.isfinite().sum(1)
    return nn.functional.logsigmoid(sigmoid.slope * nearest + sigmoid.bias).logsumexp(1) - counted.log()


def blocks_of_others(captions: Embedding, owner: Tensor, keep_own_photo: bool):
    """Yield (rows, `nearest_captions` (b, N)) of captions among themselves.
    Each is left out of its own photo's captions; without keep_own_photo the whole photo is."""
    x, photos = unit(captions.mean), int(owner.max()) + 1
    for rows in torch.arange(len(x)).split(max(1, ELEMENTS // len(x))):
        scores = x[rows] @ x.T
        scores[torch.arange(len(rows)), rows] = -torch.inf
        nearest = nearest_captions(scores, owner, photos)
        if not keep_own_photo:
            nearest[torch.arange(len(rows)), owner[rows]] = -torch.inf
        yield rows, nearest


def number_photos(owner: np.ndarray) -> Tensor:
    """Photos of captions (M,) numbered from 0 without gaps."""
    return torch.from_numpy(np.unique(owner, return_inverse=True)[1])


@torch.no_grad()
def fit_sigmoid(dev: Embedding, dev_owner: np.ndarray) -> Sigmoid:
    """Fit a and b to the captions of dev (M, D), own photo against all others."""
    owner = number_photos(dev_owner)
    check(torch.bincount(owner).max() > 1,
          "volume learns how alike the captions of a photo are, and no photo of the dev split has two; leave it out")
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(owner)))
    chosen, scores, right = order[:max(2, FITTED // (int(owner.max()) + 1))], [], []
    for rows, nearest in blocks_of_others(dev, owner, keep_own_photo=True):
        nearest = nearest.cpu()
        known = nearest.isfinite() & torch.isin(rows, chosen)[:, None]                              # (b, N)
        scores.append(nearest[known])
        right.append((owner[rows][:, None] == torch.arange(nearest.shape[1]))[known])
    return Sigmoid.fit(torch.cat(scores), torch.cat(right))


@torch.no_grad()
def shares_of_captions(captions: Embedding, owner: np.ndarray, sigmoid: Sigmoid) -> Tensor:
    """Log shares (M,) of training captions (M, D) among the photos of the others."""
    blocks = blocks_of_others(captions, number_photos(owner), keep_own_photo=False)
    return torch.cat([log_share(nearest, sigmoid) for _, nearest in blocks])


def training_shares(model: VSE, train, dev, tokens: dict, device) -> Tensor:
    """Log shares (M,) of the captions of a training split, whose means stay.
    Captions of at most three words are words and phrases to search for. They cover the photos whose captions name
    them."""
    def captions(split, name: str, rows: np.ndarray) -> Embedding:
        return encode(model, split, tokens[name], device, part=Gallery(np.arange(0), rows))[1]
    model.eval()
    phrases = [read_phrase(words) for words in train.words]
    photos = find_naming_photos(filter(None, phrases), train.words, train.caption_image)
    shares = torch.tensor([math.log(len(photos[phrase]) / len(train.images)) if phrase else 0.0 for phrase in phrases])
    long = np.flatnonzero([phrase is None for phrase in phrases])
    if len(long):
        sigmoid = fit_sigmoid(captions(dev, "dev", np.arange(len(dev.captions))), dev.caption_image)
        shares[long] = shares_of_captions(captions(train, "train", long), train.caption_image[long], sigmoid).to(shares)
    model.train()
    return shares.to(device)


# ---- the loss

class Volume(PairLoss):
    """Squared error of mean log-variances from the log share of covered photos.

    Mean over pairs and sides, in nats squared. shares (M,): the log shares of the captions of the training split. An
    image has those of its captions.
    """
    defaults = {"var_min": 1e-6, "logvar_init": -7.0}
    gaussian_sides = 2

    def __init__(self):
        super().__init__()
        self.register_buffer("shares", torch.zeros(0), persistent=False)

    def prepare(self, model: VSE, splits: dict, tokens: dict, device) -> None:
        """Compute the shares of the training captions."""
        self.shares = training_shares(model, splits["train"], splits["dev"], tokens, device)

    def forward(self, image, caption, batch) -> Tensor:
        wanted = self.shares[batch.caption_index.to(self.shares.device)]            # (B,)
        total = 0
        for encoded in (image, caption):
            error = encoded.embedding.log_var.mean(1) - wanted
            total = total + error.square().mean()
        return total


LOSSES["volume"] = Volume
