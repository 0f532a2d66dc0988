"""Encodes a split by a model, and ranks it: what training needs of evaluation."""
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

import metrics
from data import Split, chunks, image_batches
from images import NoImages
from model import VSE
from vocab import Tokens


class Gallery(NamedTuple):
    """The items among which is searched, as positions in the split, rising."""
    images: np.ndarray                # (n,) int64
    captions: np.ndarray              # (m,) int64


@torch.no_grad()
def encode(model, split: Split, tokens: Tokens | None, device, batch_size: int = 128,
           workers: int = 0, part: Gallery | None = None) -> tuple:
    """Embed all images (N, D) and captions (M, D) of a split, or of a part of it.

    In their order, by a model in eval mode. None stands for images that are not at hand, and for captions where
    `tokens` is None.
    """
    text_only = isinstance(split.images, NoImages)
    part = part or Gallery(np.arange(len(split.images)),
                           np.arange(0 if tokens is None else len(tokens.length)))
    sizes = () if tokens is None else tokens.length[part.captions]
    rows = part.images[:0 if text_only else None]
    order = np.argsort(sizes, kind="stable")                       # similar lengths: little padding
    images, captions = [], []
    with tqdm(total=len(rows) + len(order), desc=f"encode {split.name}", disable=None,
              leave=False) as bar:
        for batch in image_batches(split.images, batch_size, workers, rows) if len(rows) else ():
            images.append(model.embed_images(batch.to(device)))
            bar.update(len(batch))
        for index in chunks(order, batch_size):
            numbers, lengths = tokens.batch(part.captions[index])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))
    return _join(images, np.arange(len(rows))), _join(captions, order)


def _join(batches: list, order: np.ndarray):
    """Concatenate batches of Embedding or Latent in the order of the items.

    The batches hold the items order[0], order[1], ...; item k becomes row k. Parts are zero-padded.
    """
    if not batches:
        return None
    places, fields = torch.from_numpy(order).split([len(e[0]) for e in batches]), []
    for values in zip(*batches):
        if values[0] is None:
            fields.append(None)
            continue
        sizes = map(max, zip(*(x.shape[1:] for x in values)))
        fields.append(values[0].new_zeros(len(order), *sizes))
        for place, x in zip(places, values):                             # (b, D) | (b, P, D) | (b,)
            (fields[-1][:, :x.shape[1]] if x.ndim == 3 else fields[-1])[place.to(x.device)] = x
    return type(batches[0])(*fields)


@torch.no_grad()
def validate(model: VSE, split: Split, tokens: Tokens, device, workers: int = 0) -> dict:
    """Recalls of one split, as `metrics.retrieval`, with "hbr" and "alike".

    "hbr" is DMSM's harmonic mean of the best ranks of images; "alike" the mean cosine of two images, and of two
    captions, 1 where all are one point.
    """
    images, captions = encode(model, split, tokens, device, workers=workers)
    scores = metrics.score_matrix([(model.similarity, images, captions)])           # (N, M)
    i2t, t2i = metrics.ranks(scores, split.caption_image)
    i2t = i2t[i2t >= 0]
    return {**metrics.both_directions(i2t, t2i), "hbr": metrics.best_rank_means(i2t)["hbr"],
            "alike": {side: metrics.mean_cosine(e.mean) for side,
                      e in (("images", images), ("captions", captions))}}
