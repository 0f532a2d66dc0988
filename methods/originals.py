"""Checkpoints and vocabularies of the original VSE++ and VSRN code, as ours.

    python evaluate.py --checkpoint model_best.pth.tar --vocab coco_precomp_vocab.pkl --data_name coco_precomp

A checkpoint holds an argparse.Namespace, or a dict, of options and two state dicts, whose weights get our names. It
holds no words.
"""
import argparse
import contextlib
import os
import pickle
import re

import torch
from torch import Tensor

from cli import InputError, check, spell_value
from files import FORMAT, has_names, need, read_json, refusing
from options import NOT_STORED, options

# Options that mean here what they mean there.
SAME = ("data_name", "margin", "max_violation", "num_epochs", "batch_size", "num_layers", "grad_clip", "crop_size",
        "learning_rate", "lr_update", "finetune", "cnn_type", "use_abs", "no_imgnorm", "use_restval")
SIMILARITIES = {"cosine": "dot", "order": "order"}      # of --measure; their cosine is an inner product
# From their names of weights to ours; load_weights refuses what is left over or missing.
TEXT = [(r"^embed\.", "text_tower.trunk.table."), (r"^rnn\.", "text_tower.mean.rnn.")]
FC = [(r"^fc\.", "image_tower.mean.fc.")]
# DataParallel puts `module.` before a whole ResNet, or before the layers of VGG's `features`.
CNN = [*FC, (r"^cnn\.(features\.)?module\.", r"cnn.\1"), (r"^cnn\.", "image_tower.trunk.net.")]
# The classifier of older VGGs began with a dropout, so its two linear layers are 1 and 4.
OLD_VGG = [(r"net\.classifier\.1\.", "net.classifier.0."), (r"net\.classifier\.4\.", "net.classifier.3.")]
VSRN = [(r"^fc\.", "image_tower.trunk.fc."), (r"^img_", "image_tower.mean."), (r"^bn\.", "image_tower.mean.norm."),
        (r"^Rs_GCN_(\d)", lambda m: f"image_tower.trunk.layers.{int(m[1]) - 1}"),
        (r"\.W\.0\.", ".out."), (r"\.W\.1\.", ".norm.")]


# ---- checkpoints

def convert_file(stored: dict, path: str, vocab: str | None) -> dict:
    """Convert an original's checkpoint, as checkpoint.read returns it, to ours.
    vocab: the file of its vocabulary. Raises InputError if the two do not fit or the checkpoint holds anything that
    cannot be carried over."""
    parts, theirs = stored.get("model"), stored["opt"]
    theirs = vars(theirs) if isinstance(theirs, argparse.Namespace) else theirs
    check(isinstance(parts, (list, tuple)) and len(parts) == 2 and isinstance(theirs, dict)
          and all(has_names(part, torch.is_tensor) for part in parts) and "cross_attn" not in theirs,
          f"{path} holds no weights of an image and a text encoder of VSE++ or VSRN (SCAN's attention is another "
          "model); use one of theirs")
    check(vocab, f"{path} is an original checkpoint, which holds no words; give its vocabulary: --vocab FILE")
    words, settings = read_vocabulary(vocab), convert_options(theirs, path)
    image, text = ({name.removeprefix("module."): x for name, x in part.items()} for part in parts)   # DataParallel's
    for part, name in ((image, "fc.weight"), (text, "embed.weight")):
        check(name in part and part[name].ndim == 2,
              f"{path} has no matrix {name}, which every VSE++ and VSRN checkpoint has; use another one")
    (embed_size, img_dim), (n_words, word_dim) = image["fc.weight"].shape, text["embed.weight"].shape
    check(len(words) == n_words, f"{path} has vectors for {n_words:,} words and the vocabulary lists {len(words):,}; "
                                 "give the one it was trained with")
    for name in [name for name in image if name.endswith(".running_var")]:   # came with torch 0.4.1
        image.setdefault(name.replace("running_var", "num_batches_tracked"), torch.tensor(0))
    settings |= {"word_dim": word_dim, "embed_size": embed_size}
    if any(name.startswith("cnn.") for name in image):
        settings |= {"img_enc": "cnn", "img_dim": None}
        names = [*CNN, *OLD_VGG * (settings["cnn_type"] != "alexnet" and "cnn.classifier.1.weight" in image)]
    else:                                                           # `finetune` means nothing there
        settings |= {"img_enc": "precomp", "img_dim": img_dim, "finetune": False, "feature_norm": False}
        names = FC
    if "Rs_GCN_1.g.weight" in image:
        batch_norm = "bn.weight" in image                              # the original's f30k_precomp
        settings |= {"img_enc": "vsrn", "region_norm": "regions", "region_bn": batch_norm,
                     "feature_norm": not batch_norm}
        image = {name: x.squeeze(2) if x.ndim == 3 else x for name, x in image.items()}     # (D, D, 1) -> (D, D)
        names = VSRN
    state = {"epoch": stored.get("epoch", 0), "iteration": stored.get("Eiters", 0),
             "best_rsum": stored.get("best_rsum", 0), "step": 0}
    state = {name: plain_number(value) for name, value in state.items()}
    unchecked = (f"{path} holds no words: its vocabulary is taken to be {vocab} since that has as many; whether they "
                 "stand in its order is unchecked, and recalls near chance would say that they do not")
    return {"format": FORMAT, "options": settings, "vocabulary": words, "state": state,
            "model": {**rename(image, names), **rename(text, TEXT)}, "notes": [unchecked]}


def plain_number(value):
    """Return numpy's or torch's number as Python's; any other value as it is, to be refused with the rest."""
    with contextlib.suppress(AttributeError, ValueError, RuntimeError):
        return value.item()
    return value


def convert_options(theirs: dict, path: str) -> dict:
    """Translate options of the original to ours, with our defaults for paths."""
    measure = theirs.get("measure", "cosine")
    if not isinstance(measure, str):
        raise InputError(f"{path} holds the measure {spell_value(measure)}; cosine and order can be read")
    check(measure in SIMILARITIES, f"{path} was trained with --measure {measure}; cosine and order can be read")
    given = {name: theirs[name] for name in SAME if name in theirs}
    try:
        ours = options(**given, sim=SIMILARITIES[measure], logger_name=os.path.dirname(path) or ".")
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
        pickled = f.read(1) != b"{"
    index = (unpickle(path, fix) if pickled else read_json(path, fix)).get("word2idx")
    words = sorted(index, key=index.get) if has_names(index, lambda i: type(i) is int) else []
    check(words and [index[word] for word in words] == [*range(len(words))],
          f"{path} has no word2idx of words whose indices run from 0 without a gap; {fix}")
    return words


def unpickle(path: str, fix: str) -> dict:
    """Read the fields of a pickled vocabulary, of Python 2 or 3.
    Plain values and one plain class are admitted, so that no code from the pickle can run. Raises InputError."""
    class Fields:
        """Stand-in for the pickled class, a new one for each file that might change it."""

    admitted = {("vocab", "Vocabulary"): Fields, ("__main__", "Vocabulary"): Fields,
                ("__builtin__", "object"): object, ("builtins", "object"): object,
                **dict.fromkeys([("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")],
                                lambda kind, *_: Fields())}            # how protocols 0 and 1 make objects

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            check((module, name) in admitted, f"{path} wants to call {module}.{name}, which no vocabulary needs; "
                                              "nothing of it was run, and it is better deleted")
            return admitted[module, name]

    # a pickle can fail in as many ways as there are instructions in it
    with refusing(f"{path} is not a pickled vocabulary", fix, Exception), open(path, "rb") as f:
        return vars(Reader(f, encoding="utf-8").load())
