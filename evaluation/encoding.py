"""Encodes a split: the embeddings of all its items by a trained model."""
import numpy as np
import torch
from tqdm import tqdm

from data import Split
from evaluation.subjects import Gallery
from inputs import NoImages, Tokens, image_batches
from model import JointEmbedding
from similarities import Embedding


@torch.no_grad()
def encode(model: JointEmbedding, split: Split, tokens: Tokens | None, device, batch_size: int = 128,
           workers: int = 0, part: Gallery | None = None) -> tuple[Embedding | None, Embedding | None]:
    """Embeddings of all images (N, D) and all captions (M, D) of a split, or of a part of it, in their order. The model
    must be in eval mode.

    None stands for images that are not at hand, and for captions where `tokens` is None.
    """
    text_only = isinstance(split.images, NoImages)
    part = part or Gallery(np.arange(len(split.images)), np.arange(0 if tokens is None else len(tokens.length)))
    sizes = () if tokens is None else tokens.length[part.captions]
    total = len(sizes) + (0 if text_only else len(part.images))
    with tqdm(total=total, desc=f"encode {split.name}", disable=None, leave=False) as bar:
        images = []
        for batch in () if text_only else image_batches(split.images, batch_size, workers, part.images):
            images.append(model.embed_images(batch.to(device)))
            bar.update(len(batch))
        order, captions = np.argsort(sizes, kind="stable"), []                       # similar lengths: little padding
        for k in range(0, len(order), batch_size):
            numbers, lengths = tokens.batch(part.captions[order[k:k + batch_size]])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))
    return _join(images, np.arange(len(part.images))) if images else None, _join(captions, order) if captions else None


def _join(batches: list, order: np.ndarray):
    """One Embedding (or Activations) of batches that hold the items order[0], order[1], ...: item k in row k, parts
    zero-padded."""
    places, fields = torch.from_numpy(order).split([len(e.mean) for e in batches]), []
    for values in zip(*batches):
        if values[0] is None:
            fields.append(None)
            continue
        sizes = map(max, zip(*(x.shape[1:] for x in values)))
        fields.append(values[0].new_zeros(len(order), *sizes))
        for place, x in zip(places, values):                                        # (b, D) | (b, P, D) | (b,)
            (fields[-1][:, :x.shape[1]] if x.ndim == 3 else fields[-1])[place.to(x.device)] = x
    return type(batches[0])(*fields)
