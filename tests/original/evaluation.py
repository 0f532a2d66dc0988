"""Ranks, in the calls of Python 2 (see model.py)."""

import numpy
import torch

from model import score


class Meter:
    val = None


class LogCollector:
    def __init__(self):
        self.meters = {}

    def update(self, name, value, count):
        self.meters.setdefault(name, Meter()).val = value

    def __str__(self):
        return str(sorted((name, meter.val) for name, meter in self.meters.iteritems()))


def encode_data(model, loader):
    images = numpy.zeros((len(loader.dataset), model.opt.embed_size))
    captions = numpy.zeros((len(loader.dataset), model.opt.embed_size))
    for features, words, lengths, ids in loader:
        some_images, some_captions = model.embed(features, words, lengths, volatile=True)
        images[ids] = some_images.data.cpu().numpy()
        captions[ids] = some_captions.data.cpu().numpy()
    print(str(model.logger))
    return images, captions


def summarise(ranks, top):
    recalls = [100.0 * (ranks < k).mean() for k in (1, 5, 10)]
    return tuple(recalls + [numpy.floor(numpy.median(ranks)) + 1, ranks.mean() + 1]), (ranks, top)


def i2t(images, captions, measure, return_ranks):
    ranks = numpy.zeros(len(images) / 5)
    scores = score(torch.Tensor(images[::5]), torch.Tensor(captions), measure).numpy()
    for image in range(len(ranks)):
        order = list(numpy.argsort(-scores[image]))
        ranks[image] = min(order.index(caption) for caption in range(5 * image, 5 * image + 5))
    return summarise(ranks, scores.argmax(1))


def t2i(images, captions, measure, return_ranks):
    ranks = numpy.zeros(len(captions))
    scores = score(torch.Tensor(images[::5]), torch.Tensor(captions), measure).numpy()
    for caption in range(len(ranks)):
        ranks[caption] = list(numpy.argsort(-scores[:, caption])).index(caption / 5)
    return summarise(ranks, scores.argmax(0))
