"""Embed a split: what training, evaluation and the programs beside the core have in common."""
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
           part: Gallery | None = None) -> tuple[Embedding | None, Embedding | None]:
    """Embed all images (N, D) and captions (M, D) of a split, or of a part of it, in the order of the split.

    Call model.eval() first. The images are None where they are not at hand, the captions where `tokens` is None.
    """
    if part is None:
        count = 0 if tokens is None else len(tokens.length)
        part = Gallery(np.arange(len(split.images)), np.arange(count))
    image_rows = part.images
    if isinstance(split.images, NoImages):
        image_rows = image_rows[:0]
    order = np.arange(0)
    if tokens is not None:
        order = np.argsort(tokens.length[part.captions], kind="stable")     # similar lengths: little padding

    images = []
    captions = []
    on_gpu = torch.device(device).type == "cuda"
    with tqdm(total=len(image_rows) + len(order), desc=f"encode {split.name}", disable=None, leave=False) as bar:
        if len(image_rows):
            readers = workers * split.images.parallel
            for batch in stream(split.images.gather, chunks(image_rows, batch_size), readers, on_gpu):
                images.append(model.embed_images(batch.to(device, non_blocking=on_gpu)))
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
