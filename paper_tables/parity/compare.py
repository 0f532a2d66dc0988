"""Train both sides on equal batches from equal weights; compare losses, weights and evaluation.

Our side is `train.Training` on a data folder, as train.py makes it: its reader, batches, model,
loss and step. The other side is an `Original`, which calls the original's own networks, loss, step
and evaluation.
"""

import contextlib
import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import metrics
import train
from data import Batch, Split
from losses import Embedding, PartBlocks, real_rows
from model import encode
from paper_tables.parity.clone import Clone, bridged, replaced_attributes
from paper_tables.parity.made_up import TOY_CAPTIONS_PER_IMAGE
from utils import InputError, refusing

PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
CELLS = 49  # the 7 x 7 that PVSE and PCME attend to
READS = {
    "vectors": "one vector an image",
    "regions": "regions",
    "cells": "7 x 7 cells",
    "photos": "photos",
}
# Up to these differences in float64 both sides count as equal. Adam divides by the size of a
# gradient, so parameters whose gradient is 0 but for rounding drift apart by more than rounding.
LARGEST = {"loss": 1e-9, "parameters": 1e-6}


# ---- the two sides


class Evaluation(NamedTuple):
    """What an original's evaluation gives on the dev split."""

    images: Embedding  # of N images, by its networks
    captions: Embedding  # of M captions
    i2t: tuple[float, ...]  # R@1, R@5, R@10, median and mean rank of images
    t2i: tuple[float, ...]  # the same of captions
    ranks: tuple | None = None  # 0-based ranks (N,) and (M,), where its code returns them
    score: Callable | None = None  # ours of these embeddings, if not our model's similarity


class Original:
    """One system's original code: networks, loss, step, evaluation. A subclass is one system.

    Args:
        clone: its modules.
        run: our training, with a model that has its first weights.
        flags: of the original's command.
    """

    python2 = False  # whether the clone is for Python 2
    unused: tuple[str, ...] = ()  # modules that it imports and that are of no use here
    sizes = ""  # flags that both commands understand: small sizes
    reads = "vectors"  # of READS
    most_steps: int | None = None  # of a system that would take minutes

    def __init__(self, clone: Clone, run: train.Training, flags: str):
        raise NotImplementedError

    def start_epoch(self, epoch: int) -> None:
        """Do what the original does before an epoch."""

    def step(self, batch: Batch) -> float:
        """Take one step of training, and return the loss before it."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """All weights of the original under the names of our model's."""
        raise NotImplementedError

    def evaluate(self, split: Split, tokens) -> Evaluation:
        """Embed and rank a split."""
        raise NotImplementedError


class System(NamedTuple):
    """A row of the table: two commands that should train the same model."""

    name: str
    clone: str  # of --original
    kind: type[Original]
    theirs: str  # flags of the original, as in its README
    ours: str  # flags of train.py
    changed: str = ""  # what the comparison changes on either side
    differs: str = ""  # why the two differ, where they do


# ---- precision, silence, batches


@contextlib.contextmanager
def precision(name: str):
    """Compute in this precision within a context, also where either code asks for .float()."""
    dtype = PRECISIONS[name]
    to_float = torch.Tensor.float
    if dtype == torch.float64:
        to_float = torch.Tensor.double
    torch.set_default_dtype(dtype)
    try:
        with (
            replaced_attributes(torch, float=dtype),
            replaced_attributes(torch.Tensor, float=to_float),
        ):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def silence():
    """Keep back what both sides print on their way."""
    return contextlib.redirect_stdout(io.StringIO())


def longest_first(batch: Batch) -> Batch:
    """Sort a batch as the originals do, and give its images the precision of the comparison."""
    order = batch.lengths.argsort(descending=True, stable=True)
    images = batch.images[order].to(torch.get_default_dtype())
    return Batch(images, *(values[order] for values in batch[1:5]))


def batches_of(split: Split, tokens, size: int = 100) -> list[Batch]:
    """All pairs of a split in batches, for an original's evaluation."""
    order = np.arange(len(split.captions))
    return [longest_first(batch) for batch in split.batches(tokens, order, size)]


# ---- training


def build_ours(words: str, reads: str) -> train.Training:
    """Build our training from a command line of train.py.

    Raises InputError where the data are not what the original reads.
    """
    opt = train.parse_args([*words.split(), "--device", "cpu", "--workers", "0"])
    run = train.Training(opt, None, torch.device("cpu"))
    check_images(opt, reads)

    def set_precision(tower, inputs):
        return inputs[0].to(torch.get_default_dtype()), *inputs[1:]

    run.model.image_tower.register_forward_pre_hook(set_precision)  # files hold float32
    return run


def check_images(opt, reads: str) -> None:
    """Raise InputError where the images of a data set are not what the original reads."""
    if opt.img_dim is None:
        found = "photos"
        fits = reads == "photos"
    elif opt.n_regions is None:
        found = READS["vectors"]
        fits = reads == "vectors"
    else:
        found = f"{opt.n_regions} regions an image"
        fits = reads == "regions" or reads == "cells" and opt.n_regions == CELLS
    if not fits:
        raise InputError(
            f"{opt.data_name} has {found}, and the original reads {READS[reads]}; name other data"
        )


def train_both(run: train.Training, original: Original, steps: int) -> list[tuple[float, float]]:
    """Train both sides; return the loss of each step, ours and theirs."""
    losses = []
    run.model.train()
    while True:
        original.start_epoch(run.state["epoch"])
        for batch in run.batches(run.order(run.state["epoch"])):
            batch = longest_first(batch)
            ours = sum(run.step(batch).values())
            theirs = original.step(batch)
            losses.append((ours, theirs))
            if len(losses) == steps:
                return losses
        run.state.update(epoch=run.state["epoch"] + 1, step=0)


def compare_losses(losses: list[tuple[float, float]]) -> float:
    """The largest difference of a loss, relative to theirs."""
    return max(abs(ours - theirs) / abs(theirs) for ours, theirs in losses)


def compare_weights(
    model: torch.nn.Module, theirs: dict[str, Tensor], start: dict[str, Tensor]
) -> float:
    """The distance between both models' parameters, relative to how far theirs have moved."""
    apart = 0.0
    moved = 0.0
    for name, ours in model.named_parameters():
        apart += float((ours.detach() - theirs[name]).square().sum())
        moved += float((theirs[name] - start[name]).square().sum())
    return (apart / moved) ** 0.5


# ---- evaluation


@torch.no_grad()
def compare_evaluations(run: train.Training, original: Original) -> dict:
    """Embed dev with both models, then rank the original's embeddings with both programs.

    Returns {"embeddings": the largest difference of a number, or None; "equal": whether all ranks,
    recalls, medians and means are equal; "rsum": ours}.
    """
    split = run.splits["dev"]
    tokens = run.tokens["dev"]
    in_order = np.arange(len(split.captions)) // TOY_CAPTIONS_PER_IMAGE
    if not np.array_equal(split.caption_image, in_order):
        raise InputError(
            f"{split.source} does not hold five captions for each image in turn, as "
            "the originals' evaluation takes for granted; name other data"
        )
    theirs = original.evaluate(split, tokens)
    run.model.eval()
    images, captions = encode(run.model, split, tokens, run.device)

    apart = None
    if theirs.score is None:
        apart = max(
            compare_embeddings(images, theirs.images), compare_embeddings(captions, theirs.captions)
        )
    similarity = theirs.score or run.model.similarity
    scores = metrics.score_matrix([(similarity, theirs.images, theirs.captions)])
    result = metrics.retrieval(scores, split.caption_image)
    numbers = []
    for side in ("i2t", "t2i"):
        numbers += [result[side][name] for name in ("r1", "r5", "r10", "medr", "meanr")]
    equal = np.allclose(numbers, [*theirs.i2t, *theirs.t2i], rtol=0, atol=1e-9)
    if theirs.ranks is not None:
        ranks = metrics.ranks(scores, split.caption_image)
        equal = equal and all(np.array_equal(*pair) for pair in zip(ranks, theirs.ranks))
    return {"embeddings": apart, "equal": bool(equal), "rsum": result["rsum"]}


def compare_embeddings(ours: Embedding, theirs: Embedding) -> float:
    """The largest difference of a number in the embeddings of one side, or in their parts."""
    if theirs.parts is None:
        return float((ours.mean - theirs.mean).abs().max())
    parts = ours.parts
    if isinstance(parts, PartBlocks):
        parts = parts.pad(torch.arange(len(ours.mean)), int(ours.n_parts.max()))
    our_parts = real_rows(parts, ours.n_parts)
    their_parts = real_rows(theirs.parts, theirs.n_parts)
    return float((our_parts - their_parts).abs().max())


# ---- one system


def compare(system: System, path: str, data: str, steps: int, seed: int, name: str) -> dict:
    """Compare one system in one precision, and in float64 its evaluation, too.

    Args:
        path: folder of the clone.
        data: flags that name the data set.
        name: of PRECISIONS.

    Raises InputError where the clone or the data cannot be used.
    """
    kind = system.kind
    words = f"{data} {kind.sizes} {system.ours} --dev_images 60 --seed {seed}"
    with bridged(), precision(name), silence():
        run = build_ours(words, kind.reads)
        torch.manual_seed(seed)
        with refusing(
            f"{path} cannot be used as a clone of {system.clone}",
            "docs/parity.md names the repositories and commits that can",
        ):
            clone = Clone(path, kind.python2, kind.unused)
            original = kind(clone, run, f"{kind.sizes} {system.theirs}")
            start = copy_weights(original)
            run.model.load_state_dict(start)

        losses = train_both(run, original, min(steps, kind.most_steps or steps))
        result = {
            "steps": len(losses),
            "loss": compare_losses(losses),
            "parameters": compare_weights(run.model, copy_weights(original), start),
            "first_loss": losses[0][1],
            "last_loss": losses[-1][1],
        }
        if name == "float64":
            result["evaluation"] = compare_evaluations(run, original)
        return result


def copy_weights(original: Original) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in original.weights().items()}


def is_equal(results: dict[str, dict]) -> bool:
    """Whether both sides are equal but for rounding, by the results of both precisions."""
    exact = results["float64"]
    fits = all(exact[name] <= largest for name, largest in LARGEST.items())
    return fits and exact["evaluation"]["equal"]
