"""Fine-tune a network for photos on the words of captions (`dmsm` 3.1).

    python -m features.word_cnn --data_name coco --cnn_type vgg19 --n_words 1000 --output cnn.pt
    python train.py --data_name coco --cnn_type vgg19 --cnn_weights cnn.pt ...
"""
if __name__ == "__main__":
    import cli
    cli.start()

import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

import cli
from cli import Arguments, above_zero, check, data_set, filename, natural, positive, torch_device, up_to, workers
from data import Split, read_split
from features.captions import find_words
from files import output, save_state
from images import Photos
from model import CNN, CNNS, vsepp_linear
from vocab import SPECIALS, Tokens, Vocabulary, is_function


def choose_words(captions, count: int) -> list[str]:
    """Choose the `count` most frequent content words of tokenised captions.

    Function words, punctuation and pieces with an apostrophe ('s, n't) are none.
    """
    return [word for word in Vocabulary.build(captions, 1).words[len(SPECIALS):]
            if not is_function(word) and "'" not in word][:count]


def label_images(split: Split, words: list[str]) -> np.ndarray:
    """Mark the words that any caption of an image contains: (N, W) bool."""
    labels = np.zeros((len(split.images), len(words)), bool)
    caption, word = find_words(split.words, {word: w for w, word in enumerate(words)})
    labels[split.caption_image[caption], word] = True
    return labels


def add_word_layer(cnn: CNN, share: np.ndarray) -> nn.Sequential:
    """Put a linear layer to the logits of W words, (B, F) -> (B, W), on a network.

    Its biases start at the log-odds of `share` (W,), the share of images with a word.
    """
    linear = vsepp_linear(cnn.dim, len(share))
    with torch.no_grad():
        linear.bias.copy_(torch.logit(torch.from_numpy(share), eps=1e-6))
    return nn.Sequential(cnn, linear)


def make_state(cnn: CNN, cnn_type: str) -> dict:
    """Make a state dict for --cnn_weights, with zeros as the classifier."""
    last = {"vgg": "classifier.6", "ale": "classifier.6", "res": "fc", "eff": "_fc"}[cnn_type[:3]]
    state = {name: x.cpu() for name, x in cnn.net.state_dict().items()}
    return {**state, f"{last}.weight": torch.zeros(1000, cnn.dim), f"{last}.bias": torch.zeros(1000)}


def train_epoch(model: nn.Module, optimizer, batches, labels: np.ndarray, device) -> float:
    """Train on batches of photos, labels (N, W), and return the mean loss of an image.

    The loss is the binary cross-entropy summed over the words, in nats. Raises InputError if it is not finite.
    """
    model.train()
    total, count = 0.0, 0
    for batch in tqdm(batches, desc="steps", disable=None, leave=False):
        target = torch.from_numpy(labels[batch.image_index.numpy()]).to(device, torch.float32)              # (B, W)
        logits = model(batch.images.to(device))
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(target)
        check(math.isfinite(loss.item()), f"the loss became {loss.item()}; lower --learning_rate "
                                          f"{optimizer.param_groups[0]['lr']:g}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * len(target), count + len(target)
    return total / count


def tune_network(opt) -> None:
    """Train, and save after each epoch. Raises InputError on other data sets."""
    output(opt.output, overwrite=opt.overwrite)
    device = torch_device(opt.device)
    train = read_split(opt.data_path, opt.data_name, "train")
    check(isinstance(train.images, Photos),
          f"{opt.data_name} has {train.images.describe()}, and a network is fine-tuned on photos; give a data set that "
          "has them, such as coco, f30k or demo")
    words = choose_words(train.require_sound().words, opt.n_words)
    check(words, f"no caption of {opt.data_name} has a content word; give other captions")
    labels = label_images(train, words)
    torch.manual_seed(opt.seed)
    cnn = CNN(opt.cnn_type, True, opt.cnn_weights, normalise=False)
    model = add_word_layer(cnn, labels.mean(0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.learning_rate)
    first = np.unique(train.caption_image, return_index=True)[1]                    # (N,), a caption of each image
    unread = Tokens([[0]] * len(train.captions), [False] * len(train.captions))
    for epoch in range(opt.num_epochs):
        order = np.random.default_rng([opt.seed, epoch]).permutation(first)
        batches = train.batches(unread, order, opt.batch_size, workers=opt.workers, crop_size=opt.crop_size,
                                seed=(opt.seed, epoch))
        loss = train_epoch(model, optimizer, batches, labels, device)
        save_state(make_state(cnn, opt.cnn_type), opt.output, "make room and name another --output")
        print(f"epoch {epoch + 1}: loss {loss:.3f} nats an image", flush=True)
    print(f"weights for train.py --cnn_type {opt.cnn_type} --cnn_weights {opt.output}")


def main(argv=None) -> None:
    p = Arguments("Fine-tune a network for photos to predict the words of an image's captions.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco", help="data set of photos, a folder below --data_path")
    add("--cnn_type", choices=list(CNNS), default="vgg19", help="network to fine-tune")
    add("--cnn_weights", type=filename, metavar="FILE", help="weights to start from (default: those in torch's cache)")
    add("--n_words", type=positive, default=1000, help="words to predict: the most frequent content words in training")
    add("--num_epochs", type=positive, default=2, help="passes over the training images")
    add("--learning_rate", type=above_zero, default=1e-4, help="learning rate of Adam")
    add("--batch_size", type=positive, default=64, help="images per step")
    add("--crop_size", type=up_to(4096), default=224, help="side of the random crops of training photos, in pixels")
    add("--output", type=filename, metavar="FILE.pt", default="cnn.pt", help="weights, written after each epoch")
    add("--overwrite", action="store_true", help="replace an existing file")
    add("--workers", type=workers, default=min(10, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    add("--seed", type=natural, default=0, help="random seed of the initialisation, the order and the crops")
    cli.run("features.word_cnn", tune_network, p.parse_args(argv))


if __name__ == "__main__":
    main()
