"""Encodes a split by a trained model: the embeddings of all its items, or what stands around the last linear layers.

`encode` takes anything with JointEmbedding's embed_images and embed_captions: a model as it is, one with its towers
open (`Opened`), or a point model whose embeddings are given variances (`Widened`).
"""
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from data import Split
from evaluation.subjects import Gallery
from inputs import NoImages, Tokens, chunks, image_batches
from model import JointEmbedding, Tower, in_float32
from parallel import processes
from similarities import Embedding


@torch.no_grad()
def encode(model, split: Split, tokens: Tokens | None, device, batch_size: int = 128, workers: int = 0,
           part: Gallery | None = None) -> tuple:
    """Embeddings of all images (N, D) and all captions (M, D) of a split, or of a part of it, in their order; of an
    `Opened` model Activations. The model must be in eval mode.

    None stands for images that are not at hand, and for captions where `tokens` is None. Several processes encode and
    read a part of the batches each, the same batches that one would make, and all get the whole.
    """
    text_only = isinstance(split.images, NoImages)
    part = part or Gallery(np.arange(len(split.images)), np.arange(0 if tokens is None else len(tokens.length)))
    sizes = () if tokens is None else tokens.length[part.captions]
    rows = part.images[:0 if text_only else None]
    order = np.argsort(sizes, kind="stable")                                        # similar lengths: little padding
    of_images, of_captions = (np.concatenate([x[:0], *processes.part(chunks(x, batch_size))]) for x in (rows, order))
    images, captions = [], []
    with tqdm(total=len(of_images) + len(of_captions), desc=f"encode {split.name}", disable=None, leave=False) as bar, \
            processes.all_or_none():
        for batch in image_batches(split.images, batch_size, workers, of_images) if len(of_images) else ():
            images.append(model.embed_images(batch.to(device)))
            bar.update(len(batch))
        for index in chunks(of_captions, batch_size):
            numbers, lengths = tokens.batch(part.captions[index])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))
    return _join(images, np.arange(len(rows))), _join(captions, order)


def _join(batches: list, order: np.ndarray):
    """One Embedding (or Activations) of the batches of all processes, which hold the items order[0], order[1], ...:
    item k in row k, parts zero-padded. None where there are none."""
    batches = processes.gathered(batches)
    if not batches:
        return None
    places, fields = torch.from_numpy(order).split([len(e[0]) for e in batches]), []
    for values in zip(*batches):
        if values[0] is None:
            fields.append(None)
            continue
        sizes = map(max, zip(*(x.shape[1:] for x in values)))
        fields.append(values[0].new_zeros(len(order), *sizes))
        for place, x in zip(places, values):                                        # (b, D) | (b, P, D) | (b,)
            (fields[-1][:, :x.shape[1]] if x.ndim == 3 else fields[-1])[place.to(x.device)] = x
    return type(batches[0])(*fields)


# ---- what stands around the last linear layer of a tower

class Activations(NamedTuple):
    """Of N items, around the last linear layer of their tower, outputs = W inputs + b."""
    inputs: Tensor                    # (N, p) phi
    outputs: Tensor                   # (N, q) g, whose norm is not 1 yet


def last_linear(tower: Tower, *batch) -> str | None:
    """The name of the linear layer that makes the latent (B, D) of a tower, of which the embedding is the direction;
    None where another operation makes it (the state of a GRU, a tanh, a pooling). batch: inputs, and lengths of
    captions, to see which layer it is."""
    made, hooks = {}, []

    def keep(name):
        return lambda layer, inputs, output: made.update({name: output})
    for name, layer in tower.named_modules():
        if isinstance(layer, nn.Linear):
            hooks.append(layer.register_forward_hook(keep(name)))
    try:
        latent = tower(*batch).latent
    finally:
        for hook in hooks:
            hook.remove()
    if tower.use_abs or latent.n_parts is not None:
        return None
    return next((name for name, x in made.items() if x.shape == latent.value.shape and torch.equal(x, latent.value)),
                None)


def around(tower: Tower, layer: str | None, *batch) -> tuple[Embedding, Activations]:
    """The embedding of a batch, and what goes into and comes out of the linear layer of that name. None stands for a
    linear layer behind the tower whose matrix is the identity: both are the embedding's mean."""
    seen = []
    if layer is None:
        e = in_float32(tower(*batch)).embedding
        return e, Activations(e.mean, e.mean)
    hook = tower.get_submodule(layer).register_forward_hook(lambda _, x, y: seen.append((x[0], y)))
    try:
        e = in_float32(tower(*batch)).embedding
    finally:
        hook.remove()
    return e, Activations(*(x.float() for x in seen[-1]))


class Opened:
    """A model whose towers are open: it gives the Activations of its last linear layers in place of embeddings.

    layers: the name of that layer by side, "images" and "captions", known once a batch was encoded (`last_linear`).
    """

    def __init__(self, model: JointEmbedding):
        self.model, self.layers = model, {}

    def embed_images(self, images: Tensor) -> Activations:
        return self.seen("images", self.model.image_tower, images)

    def embed_captions(self, tokens: Tensor, lengths: Tensor) -> Activations:
        return self.seen("captions", self.model.text_tower, tokens, lengths)

    def seen(self, side: str, tower: Tower, *batch) -> Activations:
        if side not in self.layers:
            self.layers[side] = last_linear(tower, *batch)
        return around(tower, self.layers[side], *batch)[1]

    def weights(self) -> dict[str, Tensor]:
        """The matrix W (q, p) of the last linear layer of each side that has one."""
        towers = {"images": self.model.image_tower, "captions": self.model.text_tower}
        return {side: towers[side].get_submodule(layer).weight.detach() for side, layer in self.layers.items()
                if layer is not None}


class Widened:
    """A point model whose embeddings are given variances; their means stay what they are. sides: what gives them to
    images and to captions (`variances`)."""

    def __init__(self, model: JointEmbedding, sides: tuple):
        self.model, self.sides = model, sides

    def embed_images(self, images: Tensor) -> Embedding:
        return self.wide(self.sides[0], self.model.image_tower, images)

    def embed_captions(self, tokens: Tensor, lengths: Tensor) -> Embedding:
        return self.wide(self.sides[1], self.model.text_tower, tokens, lengths)

    def wide(self, side, tower: Tower, *batch) -> Embedding:
        e, seen = around(tower, side.layer, *batch)
        return e._replace(log_var=side.log_var(e, *seen))
