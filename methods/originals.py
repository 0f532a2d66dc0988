"""Checkpoints and vocabularies of the original VSE++ and VSRN code, as ours.

    python evaluate.py --checkpoint model_best.pth.tar --vocab coco_precomp_vocab.pkl \
        --data_name coco_precomp

A checkpoint holds an argparse.Namespace, or a dict, of options and two state dicts, whose weights
get our names. It holds no words.
"""

import argparse
import contextlib
import os
import pickle
import re

import torch
from torch import Tensor

from options import NOT_STORED, options
from utils import FORMAT, InputError, has_names, need, read_json, refusing, spell_value

# Options that mean here what they mean there.
SAME_OPTIONS = (
    "data_name",
    "margin",
    "max_violation",
    "num_epochs",
    "batch_size",
    "num_layers",
    "grad_clip",
    "crop_size",
    "learning_rate",
    "lr_update",
    "finetune",
    "cnn_type",
    "use_abs",
    "no_imgnorm",
    "use_restval",
)
SIM_OF_MEASURE = {"cosine": "dot", "order": "order"}  # our --sim; their cosine is an inner product

# From their names of weights to ours; load_weights refuses what is left over or missing.
TEXT_NAMES = [
    (r"^embed\.", "text_tower.trunk.table."),
    (r"^rnn\.", "text_tower.mean.rnn."),
]
FC_NAMES = [(r"^fc\.", "image_tower.mean.fc.")]
# DataParallel puts `module.` before a whole ResNet, or before the layers of VGG's `features`.
CNN_NAMES = [
    *FC_NAMES,
    (r"^cnn\.(features\.)?module\.", r"cnn.\1"),
    (r"^cnn\.", "image_tower.trunk.net."),
]
# The classifier of older VGGs began with a dropout, so its two linear layers are 1 and 4.
OLD_VGG_NAMES = [
    (r"net\.classifier\.1\.", "net.classifier.0."),
    (r"net\.classifier\.4\.", "net.classifier.3."),
]


def name_graph_layer(match: re.Match) -> str:
    """Name a graph layer of VSRN, which the original counts from 1."""
    number = int(match[1]) - 1
    return f"image_tower.trunk.layers.{number}"


VSRN_NAMES = [
    (r"^fc\.", "image_tower.trunk.fc."),
    (r"^img_", "image_tower.mean."),
    (r"^bn\.", "image_tower.mean.norm."),
    (r"^Rs_GCN_(\d)", name_graph_layer),
    (r"\.W\.0\.", ".out."),
    (r"\.W\.1\.", ".norm."),
]


# ---- checkpoints


def convert_file(stored: dict, path: str, vocab: str | None) -> dict:
    """Convert an original's checkpoint, as checkpoint.read returns it, to ours.

    vocab: the file of its vocabulary. Raises InputError if the two do not fit or the checkpoint
    holds anything that cannot be carried over.
    """
    theirs = stored["opt"]
    if isinstance(theirs, argparse.Namespace):
        theirs = vars(theirs)
    check_parts(stored.get("model"), theirs, path)
    if not vocab:
        raise InputError(
            f"{path} is an original checkpoint, which holds no words; give its vocabulary: "
            "--vocab FILE"
        )
    words = read_vocabulary(vocab)
    settings = convert_options(theirs, path)

    image, text = stored["model"]
    image = leave_out_module(image)
    text = leave_out_module(text)
    check_sizes(image, text, words, path)
    for name in list(image):
        if name.endswith(".running_var"):  # came with torch 0.4.1
            count = name.replace("running_var", "num_batches_tracked")
            image.setdefault(count, torch.tensor(0))

    embed_size, _ = image["fc.weight"].shape
    _, word_dim = text["embed.weight"].shape
    settings["word_dim"] = word_dim
    settings["embed_size"] = embed_size
    image = convert_images(image, settings)

    state = {
        "epoch": stored.get("epoch", 0),
        "iteration": stored.get("Eiters", 0),
        "best_rsum": stored.get("best_rsum", 0),
        "step": 0,
    }
    unchecked = (
        f"{path} holds no words: its vocabulary is taken to be {vocab} since that has as many; "
        "whether they stand in its order is unchecked, and recalls near chance would say that they "
        "do not"
    )
    return {
        "format": FORMAT,
        "options": settings,
        "vocabulary": words,
        "state": {name: plain_number(value) for name, value in state.items()},
        "model": {**image, **rename(text, TEXT_NAMES)},
        "notes": [unchecked],
    }


def check_parts(parts, theirs, path: str) -> None:
    """Raise InputError unless a checkpoint holds two state dicts and options, but not SCAN's."""
    is_pair = isinstance(parts, (list, tuple)) and len(parts) == 2
    has_weights = is_pair and all(has_names(part, torch.is_tensor) for part in parts)
    if not has_weights or not isinstance(theirs, dict) or "cross_attn" in theirs:
        raise InputError(
            f"{path} holds no weights of an image and a text encoder of VSE++ or VSRN (SCAN's "
            "attention is another model); use one of theirs"
        )


def leave_out_module(part: dict) -> dict:
    """Leave out the prefix that DataParallel gives to names."""
    return {name.removeprefix("module."): x for name, x in part.items()}


def check_sizes(image: dict, text: dict, words: list[str], path: str) -> None:
    """Raise InputError where a matrix lacks, or there are not as many vectors as words."""
    for part, name in ((image, "fc.weight"), (text, "embed.weight")):
        if name not in part or part[name].ndim != 2:
            raise InputError(
                f"{path} has no matrix {name}, which every VSE++ and VSRN checkpoint has; use "
                "another one"
            )
    n_words = len(text["embed.weight"])
    if len(words) != n_words:
        raise InputError(
            f"{path} has vectors for {n_words:,} words and the vocabulary lists {len(words):,}; "
            "give the one it was trained with"
        )


def convert_images(image: dict, settings: dict) -> dict[str, Tensor]:
    """Give the weights of an image encoder our names; complete the settings by them."""
    if any(name.startswith("cnn.") for name in image):
        settings |= {"img_enc": "cnn", "img_dim": None}
        names = list(CNN_NAMES)
        if settings["cnn_type"] != "alexnet" and "cnn.classifier.1.weight" in image:
            names += OLD_VGG_NAMES
    else:  # `finetune` means nothing there
        img_dim = image["fc.weight"].shape[1]
        settings |= {"img_enc": "precomp", "img_dim": img_dim}
        settings |= {"finetune": False, "feature_norm": False}
        names = FC_NAMES

    if "Rs_GCN_1.g.weight" in image:
        has_batch_norm = "bn.weight" in image  # the original's f30k_precomp
        settings |= {"img_enc": "vsrn", "region_norm": "regions"}
        settings |= {"region_bn": has_batch_norm, "feature_norm": not has_batch_norm}
        names = VSRN_NAMES
        for name, x in image.items():
            if x.ndim == 3:
                image[name] = x.squeeze(2)  # (D, D, 1) -> (D, D)
    return rename(image, names)


def plain_number(value):
    """Return numpy's or torch's number as Python's.

    Any other value is returned as it is, to be refused with the rest.
    """
    with contextlib.suppress(AttributeError, ValueError, RuntimeError):
        return value.item()
    return value


def convert_options(theirs: dict, path: str) -> dict:
    """Translate options of the original to ours, with our defaults for paths."""
    measure = theirs.get("measure", "cosine")
    if not isinstance(measure, str):
        raise InputError(
            f"{path} holds the measure {spell_value(measure)}; cosine and order can be read"
        )
    if measure not in SIM_OF_MEASURE:
        raise InputError(
            f"{path} was trained with --measure {measure}; cosine and order can be read"
        )

    given = {name: theirs[name] for name in SAME_OPTIONS if name in theirs}
    folder = os.path.dirname(path) or "."
    try:
        ours = options(**given, sim=SIM_OF_MEASURE[measure], logger_name=folder)
    except InputError as error:
        raise InputError(f"{path} has an option that cannot be read: {error}") from error
    return {name: value for name, value in vars(ours).items() if name not in NOT_STORED}


def rename(state: dict[str, Tensor], names: list[tuple]) -> dict[str, Tensor]:
    """Give the tensors of a state dict our names."""
    ours = {}
    for name, value in state.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        ours[name] = value
    return ours


# ---- vocabularies


def read_vocabulary(path: str) -> list[str]:
    """Read the words of VSE++, VSRN (pickles) or SCAN (JSON), by index."""
    fix = "give the vocabulary of VSE++, VSRN or SCAN that the checkpoint was trained with"
    with refusing(f"{path} cannot be read", fix, OSError), open(need(path, fix), "rb") as f:
        is_json = f.read(1) == b"{"
    if is_json:
        fields = read_json(path, fix)
    else:
        fields = unpickle(path, fix)

    index = fields.get("word2idx")
    words = []
    if has_names(index, is_integer):
        words = sorted(index, key=index.get)
    if not words or [index[word] for word in words] != list(range(len(words))):
        raise InputError(
            f"{path} has no word2idx of words whose indices run from 0 without a gap; {fix}"
        )
    return words


def is_integer(value) -> bool:
    return type(value) is int  # True and False are none


def unpickle(path: str, fix: str) -> dict:
    """Read the fields of a pickled vocabulary, of Python 2 or 3.

    Plain values and one plain class are admitted, so that no code from the pickle can run. Raises
    InputError.
    """

    class Fields:
        """Stand-in for the pickled class, a new one for each file that might change it."""

    def make_fields(kind, *_) -> Fields:
        """Make an object as protocols 0 and 1 do."""
        return Fields()

    admitted = {
        ("vocab", "Vocabulary"): Fields,
        ("__main__", "Vocabulary"): Fields,
        ("__builtin__", "object"): object,
        ("builtins", "object"): object,
        ("copy_reg", "_reconstructor"): make_fields,
        ("copyreg", "_reconstructor"): make_fields,
    }

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            if (module, name) not in admitted:
                raise InputError(
                    f"{path} wants to call {module}.{name}, which no vocabulary needs; nothing of "
                    "it was run, and it is better deleted"
                )
            return admitted[module, name]

    # a pickle can fail in as many ways as there are instructions in it
    with refusing(f"{path} is not a pickled vocabulary", fix, Exception), open(path, "rb") as f:
        return vars(Reader(f, encoding="utf-8").load())
