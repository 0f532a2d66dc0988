"""Embeddings of a split by a model, which training needs, too."""
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from data import Split, chunks, stream
from images import NoImages
from losses import Embedding
from vocab import Tokens


class Gallery(NamedTuple):
    """The items among which is searched, as positions in the split, rising."""
    images: np.ndarray                # (n,) int64
    captions: np.ndarray              # (m,) int64


@torch.no_grad()
def encode(model, split: Split, tokens: Tokens | None, device, batch_size: int = 128, workers: int = 0,
           part: Gallery | None = None) -> tuple:
    """Embed all images (N, D) and captions (M, D) of a split, or of a part of it.
    In their order, by a model in eval mode. None stands for images that are not at hand, and for captions where
    `tokens` is None."""
    text_only = isinstance(split.images, NoImages)
    part = part or Gallery(np.arange(len(split.images)), np.arange(0 if tokens is None else len(tokens.length)))
    sizes = () if tokens is None else tokens.length[part.captions]
    rows = part.images[:0 if text_only else None]
    order = np.argsort(sizes, kind="stable")                # similar lengths: little padding
    images, captions = [], []
    on_gpu = torch.device(device).type == "cuda"
    with tqdm(total=len(rows) + len(order), desc=f"encode {split.name}", disable=None, leave=False) as bar:
        for batch in stream(split.images.gather, chunks(rows, batch_size),
                            workers * split.images.parallel, on_gpu) if len(rows) else ():
            images.append(model.embed_images(batch.to(device, non_blocking=on_gpu)))
            bar.update(len(batch))
        for index in chunks(order, batch_size):
            numbers, lengths = tokens.batch(part.captions[index])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))
    return (Embedding.cat(images) if images else None,
            Embedding.cat(captions).rows(torch.from_numpy(np.argsort(order))) if captions else None)
