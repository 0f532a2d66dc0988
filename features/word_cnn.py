"""Fine-tune a network for photos to predict the words of an image's captions. DMSM starts with this
step (`dmsm` 3.1).

    python -m features.word_cnn --data_name coco --cnn_type vgg19 --n_words 1000 --output cnn.pt
    python train.py --data_name coco --cnn_type vgg19 --cnn_weights cnn.pt ...
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

import cli
from cli import (
    Arguments,
    InputError,
    Stopped,
    check,
    data_set,
    filename,
    natural,
    positive,
    torch_device,
    up_to,
    workers,
)
from data import Split, pair_batches, read_split
from encoders import CNN, CNNS, vsepp_linear
from features.captions import places
from files.writing import output, save_state
from inputs import Photos, image_batches
from text import SPECIALS, Vocabulary, is_function


def content_words(captions, count: int) -> list[str]:
    """The `count` most frequent content words of tokenised captions, by count, then alphabetically;
    fewer if there are fewer.

    Function words (vocab.is_function), punctuation and the pieces with an apostrophe that the
    tokenizer makes ('s, n't) are left out.
    """
    return [word for word in Vocabulary.build(captions, 1).words[len(SPECIALS):]
            if not is_function(word) and "'" not in word][:count]


def word_labels(split: Split, words: list[str]) -> np.ndarray:
    """(N, W) bool: whether any caption of an image contains a word."""
    labels = np.zeros((len(split.images), len(words)), bool)
    caption, word = places(split.words, {word: w for w, word in enumerate(words)})
    labels[split.caption_image[caption], word] = True
    return labels


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Average precision of each word over N images: (N, W), (N, W) bool -> (W,) in 0..1; NaN for a
    word that no image has.

    Images are sorted by their scores; at equal scores, those without the word come first, so ties
    count against the model. AP is the mean, over the images with the word, of (number of images
    with the word up to this one) / (place, from 1). Raises ValueError if scores are not finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError("scores hold NaN or infinity, which have no order")
    order = np.lexsort((labels, -scores), axis=0)                 # (N, W), the last key counts most
    relevant = np.take_along_axis(labels, order, axis=0)
    precision = relevant.cumsum(0) / np.arange(1, len(labels) + 1)[:, None]
    with np.errstate(invalid="ignore"):
        return (precision * relevant).sum(0) / labels.sum(0)


def chance_precision(labels: np.ndarray) -> np.ndarray:
    """The expected average precision of a random order, (N, W) bool -> (W,); NaN for a word that no
    image has.

    An image at place k has the word with p = P / N, and then on average (k - 1) (P - 1) / (N - 1)
    before it have it: AP = sum_k (1 + (k - 1) (P - 1) / (N - 1)) / k / N = (H + (N - H) (P - 1) /
    (N - 1)) / N, where H = sum_k 1 / k.
    """
    n, positives = len(labels), labels.sum(0)
    harmonic = (1 / np.arange(1, n + 1)).sum()
    expected = (harmonic + (n - harmonic) * (positives - 1) / max(1, n - 1)) / n
    return np.where(positives > 0, expected, np.nan)


class WordCNN(nn.Module):
    """A network without its classifier, and a linear layer that gives the logits of W words. (B, 3,
    H, W) -> (B, W).

    The input of the linear layer is not l2-normalised. Its biases start at the log-odds of each
    word, from `share` (W,), the share of images that have it.
    """

    def __init__(self, cnn: CNN, share: np.ndarray):
        super().__init__()
        self.cnn, self.words = cnn, vsepp_linear(cnn.dim, len(share))
        odds = torch.logit(torch.from_numpy(share), eps=1e-6)
        with torch.no_grad():
            self.words.bias.copy_(odds)

    def forward(self, photos):
        return self.words(self.cnn(photos))                       # (B, 3, H, W) -> (B, F) -> (B, W)


class NoTokens:
    """Stands in for inputs.Tokens: batches of pairs carry captions, which are not read here."""

    def batch(self, index):
        """One padding token per caption and lengths of 1: (B, 1), (B,)."""
        n = len(index)
        return torch.zeros(n, 1, dtype=torch.int64), torch.ones(n, dtype=torch.int64)


def whole_state(cnn: CNN, cnn_type: str) -> dict:
    """The state dict of a network of 1,000 classes, on the CPU, as --cnn_weights takes it.

    The ImageNet classifier was removed and does not fit what was learned. Zeros replace it; they
    are removed again when the file is read.
    """
    last = {"vgg": "classifier.6", "res": "fc", "eff": "_fc"}[cnn_type[:3]]
    state = {name: x.cpu() for name, x in cnn.net.state_dict().items()}
    return {**state, f"{last}.weight": torch.zeros(1000, cnn.dim),
            f"{last}.bias": torch.zeros(1000)}


def train_epoch(model: WordCNN, optimizer, batches, labels: np.ndarray, count: int,
                title: str) -> float:
    """One epoch over batches of `count` images in all. Returns the mean loss per image in nats.

    The loss of an image is the binary cross-entropy summed over the words. Raises InputError if it
    is not finite.
    """
    model.train()
    total, device = 0.0, next(model.parameters()).device
    with tqdm(total=count, desc=title, disable=None, leave=False) as bar:
        for batch in batches:
            target = torch.from_numpy(labels[batch.image_index.numpy()]).to(device, torch.float32)
            logits = model(batch.images.to(device))                                 # (B, W)
            loss = F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(target)
            if not torch.isfinite(loss):
                raise InputError(f"the loss became {loss.item()} in {title}; lower --learning_rate "
                                 f"{optimizer.param_groups[0]['lr']:g}")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(target)
            bar.update(len(target))
    return total / count


@torch.no_grad()
def word_scores(model: WordCNN, batches) -> np.ndarray:
    """Logits of all words for all images of batches of photos, (N, W)."""
    model.eval()
    device = next(model.parameters()).device
    return np.concatenate([model(photos.to(device)).cpu().numpy() for photos in batches])


def run(opt) -> list[float]:
    """Train and save. Returns the mean average precision on dev, in percent, before training and
    after each epoch.

    Raises InputError if an option or the data set does not fit.
    """
    check(0 < opt.learning_rate < math.inf,
          f"--learning_rate {opt.learning_rate:g} is not a positive number; 1e-4 is usual")
    output(opt.output, overwrite=opt.overwrite)
    device = torch_device(opt.device)
    train, dev = (read_split(opt.data_path, opt.data_name, name) for name in ("train", "dev"))
    check(isinstance(train.images, Photos),
          f"{opt.data_name} has {train.images.describe()}, and a network is fine-tuned on photos "
          "in files; give a data set that has them, such as coco, f30k or demo")
    train.require_sound(), dev.require_sound()
    words = content_words(train.words, opt.n_words)
    check(words, f"the training captions of {opt.data_name} have no content words; there is "
                 "nothing to learn")
    labels, truth = word_labels(train, words), word_labels(dev, words)
    occurs = truth.any(0)                                                           # (W,)
    check(occurs.any(), f"none of the {len(words)} words is in a dev caption of {opt.data_name}; "
                        "raise --n_words")
    torch.manual_seed(opt.seed)
    cnn = CNN(opt.cnn_type, True, opt.cnn_weights, normalise=False)
    model = WordCNN(cnn, labels.mean(0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.learning_rate)
    chance = 100 * chance_precision(truth[:, occurs]).mean()
    print(f"{opt.cnn_type}, {device}: {len(words):,} words from '{words[0]}' to '{words[-1]}', "
          f"{labels.sum(1).mean():.1f} per image; {len(train.images):,} training images, "
          f"{len(dev.images):,} of dev, where {occurs.sum():,} words occur")
    precisions, one = [], np.unique(train.caption_image, return_index=True)[1]  # a caption of each

    def validate(title: str) -> None:
        scores = word_scores(model, image_batches(dev.images, opt.batch_size, opt.workers))
        precision = average_precision(scores[:, occurs], truth[:, occurs]).mean()
        precisions.append(100 * float(precision))
        print(f"{title}: mean average precision on dev {precisions[-1]:.2f}% "
              f"(chance {chance:.2f}%)", flush=True)

    validate("untrained")
    for epoch in range(opt.num_epochs):
        order = np.random.default_rng([opt.seed, epoch]).permutation(one)
        title = f"epoch {epoch + 1}"
        batches = pair_batches(train, NoTokens(), order, opt.batch_size, workers=opt.workers,
                               crop_size=opt.crop_size, seed=(opt.seed, epoch))
        try:
            loss = train_epoch(model, optimizer, batches, labels, len(order), title)
            save_state(whole_state(cnn, opt.cnn_type), opt.output,
                       "make room and name another --output")
            validate(f"{title}, training loss {loss:.3f} nats an image")
        except Stopped as stop:
            stop.advice = (f"{opt.output} holds the last whole epoch"
                           if os.path.exists(opt.output) else "no epoch was whole")
            raise
    print(f"weights for train.py --cnn_type {opt.cnn_type} --cnn_weights {opt.output}")
    return precisions


def main(argv=None) -> None:
    p = Arguments("Fine-tune a network for photos to predict the words of an image's captions.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco",
        help="folder of the data set below --data_path; it must hold photos")
    add("--cnn_type", choices=list(CNNS), default="vgg19", help="network to fine-tune")
    add("--cnn_weights", type=filename, metavar="FILE",
        help="weights to start from (default: those in torch's cache; nothing is downloaded)")
    add("--n_words", type=positive, default=1000,
        help="number of words to predict: the most frequent content words of the training captions")
    add("--num_epochs", type=positive, default=2, help="number of passes over the training images")
    add("--learning_rate", type=float, default=1e-4, help="learning rate of Adam")
    add("--batch_size", type=positive, default=64, help="number of images per step")
    add("--crop_size", type=up_to(4096), default=224,
        help="width and height of the random crops of training photos")
    add("--output", type=filename, metavar="FILE.pt", default="cnn.pt",
        help="file for the weights, written after each epoch")
    add("--overwrite", action="store_true", help="replace the file that is there")
    add("--workers", type=workers, default=min(10, os.cpu_count() or 1),
        help="number of processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="auto takes CUDA if there is a GPU")
    add("--seed", type=natural, default=0,
        help="random seed of the initialisation, the order and the crops")
    cli.run("features.word_cnn", lambda: run(p.parse_args(argv)) and None)


if __name__ == "__main__":
    main()
