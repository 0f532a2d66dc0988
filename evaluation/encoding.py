"""Embed a split: what training, evaluation and the programs beside the core have in common."""

from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from data import Split, chunks, stream
from images import NoImages, count_regions
from losses import Embedding
from vocab import Tokens


class Gallery(NamedTuple):
    """The items among which is searched, as positions in the split, rising."""

    images: np.ndarray  # (n,) int64
    captions: np.ndarray  # (m,) int64


@torch.no_grad()
def encode(
    model,
    split: Split,
    tokens: Tokens | None,
    device,
    batch_size: int = 128,
    workers: int = 0,
    part: Gallery | None = None,
) -> tuple[Embedding | None, Embedding | None]:
    """Embed all images (N, D) and captions (M, D) of a split, in its order.

    Call model.eval() first. The images are None where they are not at hand, the captions where
    `tokens` is None.

    Args:
        model: with embed_images and embed_captions.
        split: to embed.
        tokens: its captions, (M,) lengths and numbers.
        device: that of the model.
        batch_size: images or captions per step.
        workers: processes that read photos.
        part: the items to embed; None: all.
    """
    if part is None:
        count = 0
        if tokens is not None:
            count = len(tokens.length)
        part = Gallery(np.arange(len(split.images)), np.arange(count))
    image_rows = part.images
    if isinstance(split.images, NoImages):
        image_rows = image_rows[:0]
    order = np.arange(0)
    if tokens is not None:
        # captions of similar lengths stand in one batch: little padding
        order = np.argsort(tokens.length[part.captions], kind="stable")

    images = []
    captions = []
    on_gpu = torch.device(device).type == "cuda"
    count = len(image_rows) + len(order)
    with tqdm(total=count, desc=f"encode {split.name}", disable=None, leave=False) as bar:
        if len(image_rows):
            batches = chunks(image_rows, batch_size)
            readers = workers * split.images.parallel
            for batch in stream(split.images.gather, batches, readers, on_gpu):
                padded = count_regions(batch)
                batch = batch.to(device, non_blocking=on_gpu)
                if padded is None:
                    images.append(model.embed_images(batch))
                else:
                    images.append(model.embed_images(batch, padded))
                bar.update(len(batch))
        for index in chunks(order, batch_size):
            numbers, lengths = tokens.batch(part.captions[index])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))

    of_images = None
    if images:
        of_images = Embedding.cat(images)
    of_captions = None
    if captions:
        in_order = torch.from_numpy(np.argsort(order))
        of_captions = Embedding.cat(captions).rows(in_order)
    return of_images, of_captions
