"""Checkpoints of the original VSE++ and VSRN code, as checkpoints of ours.

    python evaluate.py --checkpoint model_best.pth.tar --vocab coco_precomp_vocab.pkl --data_name coco_precomp

They pickle an argparse.Namespace, or a dict, of options and two state dicts, whose weights get our names.
"""
import argparse
import os
import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from checkpoint import has_names, is_dense, without_module
from cli import InputError, check
from files import FORMAT
from model import CNNS
from options import resolve, training_parser
from vocab import Vocabulary


def is_original(stored) -> bool:
    """True if a file has the layout of VSE++ and its descendants.
    {"model": [image, text], "opt": options}."""
    return (isinstance(stored, dict) and isinstance(stored.get("model"), (list, tuple))
            and isinstance(stored.get("opt"), (argparse.Namespace, dict)))


def convert_file(stored: dict, path: str, vocab: str | None) -> dict:
    """Convert an original checkpoint with the vocabulary of a file.
    Raises InputError where something shows that they do not belong together."""
    words = vocab and Vocabulary.load(vocab)
    if words and (words.origin or "").startswith("built"):
        raise InputError(f"{path} cannot belong to the vocabulary {vocab}, which was "
                         f"{words.origin}: the originals number words in an order that cannot be "
                         "built again, so every word would get another one's vector; give the "
                         "vocabulary that it was trained with")
    unchecked = (f"{path} holds no words: its vocabulary is taken to be {vocab} since that has as "
                 "many; whether they stand in its order is unchecked, and recalls near chance "
                 "would say that they do not")
    return {**convert(stored, words and words.words, path), "notes": [unchecked]}


def convert(stored: dict, words: list[str] | None, path: str) -> dict:
    """Convert a VSE++ or VSRN checkpoint, as `read` returns it, to one of ours.
    Keys: format, options, vocabulary, model, state.

    `words` are its vocabulary in the order of the indices, which the file does not hold. Raises InputError if the two
    do not fit or the checkpoint holds anything that cannot be carried over.
    """
    parts = [without_module(dict(part)) if isinstance(part, Mapping) else {} for part in stored["model"]]
    theirs = stored["opt"] if isinstance(stored["opt"], argparse.Namespace) else argparse.Namespace(**stored["opt"])
    check(len(parts) == 2 and all(has_names(part, is_dense) for part in parts),
          f"{path} has a list of {len(parts)} under 'model'; VSE++ and VSRN store the weights of "
          "an image and of a text encoder there")
    check(not hasattr(theirs, "cross_attn"),
          f"{path} is a checkpoint of SCAN, whose attention over words and regions is another "
          "model; VSE++ and VSRN can be read")
    image, text = parts
    for part, name in ((image, "fc.weight"), (text, "embed.weight")):
        check(name in part and part[name].ndim == 2,
              f"{path} has no matrix {name}, which every VSE++ and VSRN checkpoint has; take "
              "another one")
    check(words is not None,
          f"{path} is an original checkpoint, which holds no words; give the vocabulary that it was trained with: "
          "--vocab FILE")
    vectors = text["embed.weight"]
    check(len(words) == len(vectors),
          f"{path} has vectors for {len(vectors):,} words and the vocabulary lists {len(words):,}; "
          "give the one it was trained with")
    for name in [name for name in image if name.endswith(".running_var")]:   # came with torch 0.4.1
        image.setdefault(name.replace("running_var", "num_batches_tracked"), torch.tensor(0))
    settings = _options(theirs, path)
    settings.update(word_dim=vectors.shape[1], embed_size=image["fc.weight"].shape[0])
    if any(name.startswith("cnn.") for name in image):
        settings.update(img_enc="cnn", img_dim=None)
        names = [*CNN, *OLD_VGG * (settings["cnn_type"] != "alexnet" and "cnn.classifier.1.weight" in image)]
    else:                                                           # `finetune` means nothing there
        settings.update(img_enc="precomp", img_dim=image["fc.weight"].shape[1], finetune=False,
                        feature_norm=False)
        names = FC
        image = {name: value.squeeze(2) if value.ndim == 3 else value       # (D, D, 1) -> (D, D)
                 for name, value in image.items()}
    if any(name.startswith("Rs_GCN_") for name in image):
        batch_norm = "bn.weight" in image                              # the original's f30k_precomp
        settings.update(img_enc="vsrn", region_norm="regions", region_bn=batch_norm,
                        feature_norm=not batch_norm)
        names = VSRN
    model = {**_renamed(image, names, path), **_renamed(text, TEXT, path)}
    state = {"step": 0}
    for name, theirs in (("epoch", "epoch"), ("iteration", "Eiters"), ("best_rsum", "best_rsum")):
        value = stored.get(theirs, 0)
        check(isinstance(value, (int, float, np.number)),
              f"{path} has {theirs} = {str(value)[:40]!r}, which is no number; take another "
              "checkpoint")
        state[name] = np.asarray(value).item()
    return {"format": FORMAT, "options": settings, "vocabulary": list(words), "model": model,
            "state": state}


# Options of the originals that mean here what they mean there.
SAME = {"data_name": str, "margin": float, "max_violation": bool, "num_epochs": int,
        "batch_size": int, "num_layers": int, "grad_clip": float, "crop_size": int,
        "learning_rate": float, "lr_update": int, "finetune": bool, "cnn_type": str,
        "use_abs": bool, "no_imgnorm": bool, "use_restval": bool}


def _options(theirs: argparse.Namespace, path: str) -> dict:
    """Translate options of the original to ours, complete and resolved.
    Paths and the like keep our defaults."""
    ours = training_parser().parse_args([])
    for name, kind in SAME.items():
        value = getattr(theirs, name, getattr(ours, name))
        if value is not getattr(ours, name):
            check(type(value) is kind or kind is float and type(value) is int,
                  f"{path} has the option {name} = {value!r}, which is no {kind.__name__}; take "
                  "another checkpoint")
            setattr(ours, name, value)
    measure = getattr(theirs, "measure", "cosine")
    check(measure in ("cosine", "order"),
          f"{path} was trained with --measure {measure}; cosine and order can be read")
    check(ours.cnn_type in CNNS, f"{path} was trained with --cnn_type {ours.cnn_type}; networks "
                                 f"that can be read are {', '.join(CNNS)}")
    ours.sim = {"cosine": "dot", "order": "order"}[measure]       # their cosine is an inner product
    ours.logger_name = os.path.dirname(path) or "."
    resolve(ours)
    return {name: value for name, value in vars(ours).items()
            if name not in ("resume", "overwrite", "config", "dry_run")}


def _renamed(state: dict[str, Tensor], names: list[tuple], path: str) -> dict[str, Tensor]:
    """The tensors of a state dict under our names."""
    ours = {}
    for name, value in state.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        ours[name] = value
    check(len(ours) == len(state), f"{path} holds some weights twice, under names with and without "
                                   "'module'; take another checkpoint")
    return ours


# From their names to ours; load_weights refuses what is left over or missing.
TEXT = [(r"^embed\.", "text_tower.trunk.table."), (r"^rnn\.", "text_tower.mean.rnn.")]
FC = [(r"^fc\.", "image_tower.mean.fc.")]
# DataParallel puts `module.` before a whole ResNet, or before the layers of VGG's `features`.
CNN = [*FC, (r"^cnn\.(features\.)?module\.", r"cnn.\1"), (r"^cnn\.", "image_tower.trunk.net.")]
# The classifier of older VGGs began with a dropout, so its two linear layers are 1 and 4.
OLD_VGG = [(r"net\.classifier\.1\.", "net.classifier.0."),
           (r"net\.classifier\.4\.", "net.classifier.3.")]
VSRN = [(r"^fc\.", "image_tower.trunk.fc."), (r"^img_", "image_tower.mean."),
        (r"^bn\.", "image_tower.mean.norm."),
        (r"^Rs_GCN_(\d)", lambda m: f"image_tower.trunk.layers.{int(m[1]) - 1}"),
        (r"\.W\.0\.", ".out."), (r"\.W\.1\.", ".norm.")]
