"""Checks what a file of embeddings holds: its means and log-variances, its texts, the lengths of its means."""
import numpy as np
import torch

from cli import InputError
from inputs import SQUARABLE
from model import OF_VECTORS
from similarities import SIMILARITIES, Embedding, Similarity


def embedding_of(arrays: dict, side: str, path: str) -> Embedding:
    """The means and log-variances of one side, "image" or "caption", in float32. Raises InputError where their shapes
    or types do not fit, and on numbers that are not finite."""
    mean, log_var = arrays.get(f"{side}_mean"), arrays.get(f"{side}_log_var")
    fits = mean is not None and mean.ndim == 2 and mean.dtype.kind in "fiu"
    if fits and log_var is not None:
        fits = log_var.shape in (mean.shape, (len(mean), 1)) and log_var.dtype.kind in "fiu"
    if not fits:
        shapes = ", ".join(f"{name} {value.shape} of {value.dtype}" for name, value in arrays.items()) or "nothing"
        raise InputError(f"{path} needs {side}_mean of shape (items, D), and {side}_log_var, where given, of the same "
                         f"shape or (items, 1), both numbers; it holds {shapes}")
    with np.errstate(over="ignore"):                        # which the next lines say in our words
        e = Embedding(*(None if x is None else torch.from_numpy(np.ascontiguousarray(x, np.float32))
                        for x in (mean, log_var)))
    for name, x in ((f"{side}_mean", e.mean), (f"{side}_log_var", e.log_var)):
        if x is not None and not torch.isfinite(x).all():
            raise InputError(f"{path} holds NaN or infinity, or numbers beyond float32, in {name}; check the "
                             "embeddings")
    return e


def text_of(arrays: dict, name: str, path: str) -> str:
    """A single text among arrays, empty where there is none. Raises InputError where the array is no single text."""
    value = arrays.get(name, np.array(""))
    if value.size != 1 or value.dtype.kind not in "US":
        raise InputError(f"{path}: {name} must hold one text, as np.array('...'), and has shape {value.shape} of "
                         f"{value.dtype}; write it so, or leave it out")
    text = value.reshape(-1)[0]
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def lengths(path: str, sides: list[Embedding], normalised: bool) -> list[str]:
    """Notes on means that are all zeros. Raises InputError on means whose norms float32 cannot tell from zero or
    infinity. normalised: whether the similarity divides by the norms."""
    notes = []
    for side, e in zip(("image", "caption"), sides):
        largest = e.mean.abs().amax(1)                                              # (N,)
        least = 1e-6 if normalised else 0.0                 # below, `similarities.unit` does not divide
        odd = (largest > SQUARABLE[1]) | (largest > 0) & (e.mean.norm(dim=1) < least)
        if odd.any():
            k = int(odd.nonzero()[0])
            raise InputError(f"{path}: {side}_mean has values of at most {float(largest[k]):.0e} in row {k}, whose "
                             "squares float32 cannot add up; scale all means alike, to norms near 1")
        zeros = int((largest == 0).sum())
        if zeros:
            notes.append(f"{path}: {zeros:,} of {len(largest):,} {side} means are zeros and score alike with "
                         "everything")
    return notes


def named_similarity(name: str, arrays: dict, path: str) -> Similarity:
    """The similarity of this name, with what it learned. Raises InputError where the file does not tell that."""
    learned = arrays.get("effective_dim")
    if name == "mls" and learned is not None and learned.ndim == 0 and learned.dtype.kind in "fiu" and learned > 0:
        return OF_VECTORS[name](float(learned))
    if name in OF_VECTORS and name != "mls":
        return OF_VECTORS[name]()
    lacks = ("and no number 'effective_dim' above 0, which it learned" if name == "mls" else
             "which cannot be computed from a file of embeddings")
    raise InputError(f"{path} has similarity '{name}', {lacks}; evaluate the run, or rank by another similarity with "
                     f"--sim, one of {', '.join(SIMILARITIES)}")
