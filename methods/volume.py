"""Options that no paper has: variances that tell how many photos fit, and an anchor for means.

    python train.py --config runs/A/config.yaml --init_from runs/A --freeze_means --loss volume \
        --logger_name runs/B
    python train.py --data_name mine --text_features minilm --loss infonce --text_anchor 0.7

--loss volume, --freeze_means, --var_layers and --text_anchor stand here alone: their towers, loss
and rules.

The volume of a caption is the share of the photos that it covers. A photo of the training split is
known by its captions, and a caption covers it as probably as the nearest of these is of the same
photo: p = sigmoid(a s + b), s the largest cosine with one of them, a and b fitted to dev. The share
is the mean of p over the photos. `confidence.volume` gives it to points as their variances.

For a word or short phrase it is the fraction of photos whose captions contain its stemmed words
consecutively: "two dogs run" names "dog". A photo shows more than its captions name, so this
fraction is a lower bound.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from data import Gallery
from losses import LOSSES, Embedding, PairLoss, Term, count_gaussian_sides, unit
from metrics import Sigmoid
from model import (
    IMAGE_ENCODERS,
    OPTION_RULES,
    TERM_BUILDERS,
    TOWER_BUILDERS,
    VSE,
    Corruption,
    Encoded,
    Encoder,
    GaussianTower,
    Latent,
    Layers,
    LinearEmbedding,
    ScaledGaussianTower,
    ScaledLatents,
    Tower,
    VAETower,
    build_latent_norm,
    build_log_var,
    encode,
    gaussian_arguments,
    layer_sizes,
    relu_layers,
)
from utils import InputError, below_one, sizes

FITTED_PAIRS = 2**22  # of a caption and a photo, that a probability is fitted to
VOLUME_SCORES_PER_BLOCK = 2**26  # that are computed at a time, 256 MiB
MAX_WORDS_PER_PHRASE = 3
ARTICLES = ("a", "an", "the")
Phrase = tuple[str, ...]  # of stems


# ---- an anchor: means that keep what given features of captions say


class Anchored(nn.Module):
    """Weighted sum of the cosines of two embeddings: (B, F) -> (B, D + A), of norm 1.

    The cosine is (1 - share) times that of `learned` plus share times that of `given`: of a caption
    its features, of an image their prediction by a layer of its own (anchor). corruption: of what
    `learned` alone reads.
    """

    def __init__(
        self,
        learned: nn.Module,
        given: nn.Module,
        share: float,
        corruption: nn.Module | None = None,
    ):
        super().__init__()
        self.dim = learned.dim + given.dim
        self.learned = learned
        self.given = given
        self.share = share
        self.corruption = corruption

    def forward(self, features: Tensor, lengths=None) -> Latent:
        x = features
        if self.corruption is not None:
            x = self.corruption(features)
        learned = unit(self.learned(x, lengths).value)  # (B, D)
        given = unit(self.given(features, lengths).value)  # (B, A)
        scaled = [(1 - self.share) ** 0.5 * learned, self.share**0.5 * given]
        return Latent(torch.cat(scaled, 1))


def anchor(image: Encoded, caption: Encoded, batch, size: int, share: float) -> Tensor:
    """Compute 1 - cosine of a caption's features and an image's prediction of them, averaged.

    The prediction is Anchored's. The same prediction scores every caption, not only the matched
    one. size: of the features.
    """
    x = image.latent.value[:, -size:].float()  # (B, A)
    y = caption.latent.value[:, -size:].float()  # (B, A)
    return 1 - (x * y).sum(1).mean() / share


def build_anchor(opt, vocab, image_dim: int) -> dict[str, Term]:
    """Build the term of the anchor, where the means learn."""
    if opt.freeze_means:
        return {}
    loss = functools.partial(anchor, size=opt.txt_dim, share=opt.text_anchor)
    return {"anchor": Term(1.0, loss)}


TERM_BUILDERS["text_anchor"] = build_anchor


# ---- towers


class VariancesOfMeans(GaussianTower):
    """Base of towers whose log-variances are computed from the mean and not from the features."""

    learns_one = False  # the layers end in one output

    def compute_log_var(self, x: Tensor, latent: Latent, lengths: Tensor | None) -> Tensor:
        mean = self.to_embedding(latent).mean
        return super().compute_log_var(mean, latent, lengths)


class VariancesOfMeansTower(VariancesOfMeans, ScaledGaussianTower):
    """A Gaussian tower whose log-variances are computed from the mean."""


class VariancesOfMeansVAE(VariancesOfMeans, VAETower):
    """A tower of a VAE whose log-variances are computed from the mean."""


def build_own_tower(opt, encoder: Encoder, head: str, normalize: bool, *data) -> Tower:
    """Build a tower with an anchor, frozen means, or variances computed from the means."""
    trunk = encoder.trunk(opt, *data)
    mean = encoder.embed(opt, trunk.dim)
    corruption = None
    if opt.dropout or opt.feature_noise:
        corruption = Corruption(opt.dropout, opt.feature_noise)
    if opt.text_anchor and encoder.reads == "features":
        # do not add noise to the given features
        mean = Anchored(mean, Layers(opt.txt_dim), opt.text_anchor, corruption)
        corruption = None
    elif opt.text_anchor:
        prediction = LinearEmbedding(trunk.dim, opt.txt_dim)
        mean = Anchored(mean, prediction, opt.text_anchor)

    point = {
        "latent_norm": build_latent_norm(opt.latent_norm, opt.embed_size),
        "corruption": corruption,
        "normalize": normalize,
        "use_abs": opt.use_abs,
    }
    if head == "point":
        tower = ScaledLatents(trunk, mean, **point)
    else:
        kind = choose_gaussian_tower(opt)
        if opt.var_layers:
            log_var = build_var_layers(opt, mean.dim, head)
        else:
            log_var = build_log_var(opt, encoder, trunk.dim)
        tower = kind(trunk, mean, log_var, head, **gaussian_arguments(opt), **point)
    if opt.freeze_means:
        tower.freeze()
    return tower


def choose_gaussian_tower(opt) -> type[ScaledGaussianTower]:
    """Choose the class of a Gaussian tower by --vae and --var_layers."""
    if opt.var_layers and opt.vae:
        return VariancesOfMeansVAE
    if opt.var_layers:
        return VariancesOfMeansTower
    if opt.vae:
        return VAETower
    return ScaledGaussianTower


def build_var_layers(opt, inputs: int, head: str) -> Layers:
    """Build the layers that compute log-variances from a mean (B, inputs)."""
    outputs = inputs
    if head == "spherical_one":
        outputs = 1
    return relu_layers(inputs, layer_sizes(opt.var_layers), outputs)


for option in ("text_anchor", "freeze_means", "var_layers"):
    TOWER_BUILDERS[option] = build_own_tower


# ---- words and short phrases


@functools.lru_cache(100_000)
def stem(word: str) -> str:
    from nltk.stem.snowball import SnowballStemmer  # slow to import, and few commands need it

    return SnowballStemmer("english").stem(word)


def read_phrase(words: Sequence[str]) -> Phrase | None:
    """Stem a text (T,) of at most three words, without article and full stop, or None."""
    words = strip_phrase(words)
    if words is None:
        return None
    return tuple(stem(word) for word in words)


def strip_phrase(words: Sequence[str]) -> list[str] | None:
    """Take article and full stops from a text (T,); None unless one to three words are left."""
    words = [word for word in words if word != "."]
    if words and words[0] in ARTICLES:
        words = words[1:]
    if not words or len(words) > MAX_WORDS_PER_PHRASE:
        return None
    return words


def find_naming_photos(
    phrases: Iterable[Phrase], captions: Iterable[Sequence[str]], owner: np.ndarray
) -> dict[Phrase, set[int]]:
    """Find the photos of which a caption names each phrase.

    captions: M lists of words; owner (M,): their photos.
    """
    photos = {phrase: set() for phrase in phrases}
    for words, photo in zip(captions, owner.tolist()):
        stems = [stem(word) for word in words]
        for length in range(1, MAX_WORDS_PER_PHRASE + 1):
            for first in range(len(stems) - length + 1):
                phrase = tuple(stems[first : first + length])
                if phrase in photos:
                    photos[phrase].add(photo)
    return photos


# ---- the share of the photos that a caption covers


def nearest_captions(scores: Tensor, owner: Tensor, photos: int) -> Tensor:
    """Take each photo's largest caption score, or -inf: (B, M), owner (M,) -> (B, N)."""
    best = scores.new_full((len(scores), photos), -torch.inf)
    photo = owner.to(scores.device).expand_as(scores)  # (B, M)
    return best.scatter_reduce(1, photo, scores, "amax")


def log_share(nearest: Tensor, sigmoid: Sigmoid) -> Tensor:
    """Log of the mean probability over the photos that have captions: (B, N) -> (B,)."""
    counted = nearest.isfinite().sum(1)  # (B,)
    log_p = nn.functional.logsigmoid(sigmoid.slope * nearest + sigmoid.bias)  # (B, N)
    return log_p.logsumexp(1) - counted.log()


def blocks_of_others(
    captions: Embedding, owner: Tensor, keep_own_photo: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, `nearest_captions` (b, N)) of captions among themselves.

    Each is left out of the captions of its photo; without keep_own_photo its whole photo is.
    """
    x = unit(captions.mean)
    photos = int(owner.max()) + 1
    rows_per_block = max(1, VOLUME_SCORES_PER_BLOCK // len(x))
    for rows in torch.arange(len(x)).split(rows_per_block):
        numbers = torch.arange(len(rows))
        scores = x[rows] @ x.T
        scores[numbers, rows] = -torch.inf
        nearest = nearest_captions(scores, owner, photos)
        if not keep_own_photo:
            nearest[numbers, owner[rows]] = -torch.inf
        yield rows, nearest


def number_photos(owner: np.ndarray) -> Tensor:
    """Number the photos of captions (M,) from 0 without gaps."""
    _, numbers = np.unique(owner, return_inverse=True)
    return torch.from_numpy(numbers)


@torch.no_grad()
def fit_sigmoid(dev: Embedding, dev_owner: np.ndarray) -> Sigmoid:
    """Fit a and b to the captions of dev (M, D), their photo against all others."""
    owner = number_photos(dev_owner)
    if torch.bincount(owner).max() < 2:
        raise InputError(
            "volume learns how similar the captions of a photo are, and no photo of the dev split "
            "has two; leave it out"
        )
    photos = int(owner.max()) + 1
    order = np.random.default_rng(0).permutation(len(owner))
    count = max(2, FITTED_PAIRS // photos)
    chosen = torch.from_numpy(order)[:count]

    scores = []
    matches = []
    for rows, nearest in blocks_of_others(dev, owner, keep_own_photo=True):
        nearest = nearest.cpu()
        is_chosen = torch.isin(rows, chosen)[:, None]
        known = nearest.isfinite() & is_chosen  # (b, N)
        is_own = owner[rows][:, None] == torch.arange(nearest.shape[1])  # (b, N)
        scores.append(nearest[known])
        matches.append(is_own[known])
    return Sigmoid.fit(torch.cat(scores), torch.cat(matches))


@torch.no_grad()
def shares_of_captions(captions: Embedding, owner: np.ndarray, sigmoid: Sigmoid) -> Tensor:
    """Compute log shares (M,) of training captions (M, D) among the photos of the others."""
    blocks = blocks_of_others(captions, number_photos(owner), keep_own_photo=False)
    return torch.cat([log_share(nearest, sigmoid) for _, nearest in blocks])


def training_shares(model: VSE, train, dev, tokens: dict, device) -> Tensor:
    """Compute log shares (M,) of the captions of a training split, whose means stay.

    Captions of at most three words are words and phrases to search for. They cover the photos whose
    captions name them.
    """

    def embed_captions(split, name: str, rows: np.ndarray) -> Embedding:
        part = Gallery(np.arange(0), rows)
        _, captions = encode(model, split, tokens[name], device, part=part)
        return captions

    model.eval()
    phrases = [read_phrase(words) for words in train.words]
    named = [phrase for phrase in phrases if phrase is not None]
    photos = find_naming_photos(named, train.words, train.caption_image)
    values = []
    for phrase in phrases:
        value = 0.0
        if phrase is not None:
            value = math.log(len(photos[phrase]) / len(train.images))
        values.append(value)
    shares = torch.tensor(values)

    long = np.flatnonzero([phrase is None for phrase in phrases])
    if len(long):
        dev_captions = embed_captions(dev, "dev", np.arange(len(dev.captions)))
        sigmoid = fit_sigmoid(dev_captions, dev.caption_image)
        captions = embed_captions(train, "train", long)
        of_long = shares_of_captions(captions, train.caption_image[long], sigmoid)
        shares[long] = of_long.to(shares)
    model.train()
    return shares.to(device)


# ---- the loss


class Volume(PairLoss):
    """Squared error of mean log-variances from the log share of covered photos.

    Mean over pairs and sides, in nats squared. shares (M,): the log shares of the captions of the
    training split. An image has those of its captions.
    """

    options = {
        "freeze_means": (bool, False, "learn only variances; means stay as in --init_from"),
        "var_layers": (
            sizes,
            None,
            "hidden layers, such as 512-512, that compute variances from the mean (default: a "
            "second copy of the embedding; 256 where --img_layers 0 or --txt_layers 0 leaves "
            "nothing to copy)",
        ),
        "text_anchor": (
            below_one,
            0.0,
            "weight of the anchor: the similarity of a caption's precomputed features "
            "(--text_features) and those predicted from the image (try 0.7)",
        ),
    }
    defaults = {"var_min": 1e-6, "logvar_init": -7.0}
    gaussian_sides = 2

    def __init__(self):
        super().__init__()
        self.register_buffer("shares", torch.zeros(0), persistent=False)

    @classmethod
    def build(cls, opt, similarity):
        return cls()

    def prepare(self, model: VSE, splits: dict, tokens: dict, device) -> None:
        """Compute the shares of the training captions."""
        self.shares = training_shares(model, splits["train"], splits["dev"], tokens, device)

    def forward(self, image, caption, batch) -> Tensor:
        wanted = self.shares[batch.caption_index.to(self.shares.device)]  # (B,)
        total = 0
        for encoded in (image, caption):
            error = encoded.embedding.log_var.mean(1) - wanted
            total = total + error.square().mean()
        return total


LOSSES["volume"] = Volume


# ---- what the options imply, and refused combinations


def fill_var_layers(opt) -> None:
    """Give --var_layers where a Gaussian side has no layers that variances could copy."""
    images = opt.img_layers == "0" and opt.image_head != "point"
    captions = opt.txt_layers == "0" and opt.text_head != "point"
    if opt.var_layers is None and (images or captions):
        opt.var_layers = "256"


def check_means(opt) -> None:
    """Raise InputError where means should stay that are not given."""
    no_layers = opt.img_layers == opt.txt_layers == "0" and opt.txt_enc == "features"
    if opt.loss == "volume" and not (opt.freeze_means or no_layers):
        raise InputError(
            "--loss volume learns variances of given means; give --freeze_means with --init_from "
            "RUN, or --img_layers 0 --txt_layers 0 with --text_features NAME"
        )
    gaussian = opt.image_head != "point" or opt.text_head != "point"
    has_run = opt.init_from or opt.resume is not None
    if opt.freeze_means and not (gaussian and has_run):
        raise InputError(
            "--freeze_means learns variances around the means of a run; give --init_from RUN and a "
            "Gaussian head"
        )
    if opt.freeze_means and not count_gaussian_sides(opt):
        raise InputError(
            f"--freeze_means learns variances, and --sim {opt.sim} reads none; give --loss volume "
            "or a similarity of Gaussians"
        )


def check_anchor(opt) -> None:
    """Raise InputError on --text_anchor where no image can predict the features of its captions."""
    image = IMAGE_ENCODERS.get(opt.img_enc, IMAGE_ENCODERS["precomp"])  # auto: by the data
    one_vector = opt.pool == "mean" and image.one_vector
    fits = opt.text_features and one_vector and opt.loss in ("infonce", "match", "volume")
    reconstructs = opt.recon_images or opt.recon_captions
    has_prior = opt.prior_images or opt.prior_captions
    copies_anchor = "ellipsoidal" in (opt.image_head, opt.text_head) and not opt.var_layers
    if not fits or reconstructs or has_prior or opt.vae or copies_anchor:
        raise InputError(
            f"--text_anchor {opt.text_anchor:g} needs --text_features, one vector per image and "
            "--loss infonce, match or volume, and no autoencoder or ellipsoidal head; leave it out"
        )


OPTION_RULES["defaults"].append((("img_layers", "txt_layers"), fill_var_layers))
OPTION_RULES["heads"].append((("loss", "freeze_means"), check_means))
OPTION_RULES["terms"].append((("text_anchor",), check_anchor))
