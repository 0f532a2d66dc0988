"""Checkpoints of the original VSE++ and VSRN code, as checkpoints of this project.

    python vocab.py convert coco_precomp_vocab.pkl vocab.json
    python evaluate.py --checkpoint model_best.pth.tar --vocab vocab.json --data_name coco_precomp

The originals pickle an argparse.Namespace and two state dicts. Here they are read by torch's restricted unpickler, which
calls nothing but the few names below; the weights then move to our names, and everything else is ours.
"""
import argparse
import os
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping

import torch
from torch import Tensor

import options
from cli import InputError, reason
from encoders import CNNS
from files import FORMAT


class _Dtype:
    """Stands in for numpy.dtype('f8', False, True): keeps its name and byte order."""

    def __init__(self, code: str, *_):
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple):
        self.order = state[1]


def _scalar(dtype: _Dtype, raw: bytes | str) -> float | int:
    """Stands in for numpy's scalar of 8 or 4 bytes (best_rsum is one): gives a plain number."""
    kinds = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}
    raw = raw.encode("latin1") if isinstance(raw, str) else raw                     # Python 2 knew no bytes
    return struct.unpack((">" if dtype.order == ">" else "<") + kinds[dtype.code], raw)[0]


# What a checkpoint may call beside torch's own tensors, under the names that it calls them by.
ADMITTED = [(argparse.Namespace, "argparse.Namespace"), (_Dtype, "numpy.dtype"),
            *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core"))]


def read(path: str):
    """What a checkpoint file, ours or an original's, holds; nothing from it is run. InputError if it cannot be read."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:                                  # torch packs nothing
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise ValueError("its contents are compressed, which no checkpoint's are")
        with warnings.catch_warnings(), torch.serialization.safe_globals(ADMITTED):
            warnings.simplefilter("ignore")                                         # says that `encoding` has no effect: it has
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")   # strings of Python 2
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        why = (f"it wants to call {wanted[1][:60]}, which no checkpoint needs, and nothing of it was run" if wanted
               else reason(error, 120))
        raise InputError(f"{path} is damaged or no checkpoint of this project, VSE++ or VSRN ({why}); take another one "
                         "or train again") from error


def is_original(stored) -> bool:
    """Whether what `read` gave has the layout of VSE++ and its descendants: {"model": [image, text], "opt": Namespace}."""
    return (isinstance(stored, dict) and isinstance(stored.get("model"), (list, tuple))
            and isinstance(stored.get("opt"), argparse.Namespace))


def convert(stored: dict, words: list[str] | None, path: str) -> dict:
    """A VSE++ or VSRN checkpoint as `read` gave it -> one of ours: format, options, vocabulary, model, state.

    `words` are its vocabulary in index order, which the file does not hold (`python vocab.py convert`). InputError when
    the two do not fit or the checkpoint holds anything that is not carried over.
    """
    parts = [dict(part) if isinstance(part, Mapping) else {} for part in stored["model"]]
    if len(parts) != 2 or not all(isinstance(name, str) and torch.is_tensor(value) for part in parts
                                  for name, value in part.items()):
        raise InputError(f"{path} has a list of {len(parts)} under 'model'; VSE++ and VSRN store the weights of an image and "
                         "of a text encoder there")
    if hasattr(stored["opt"], "cross_attn"):
        raise InputError(f"{path} is a checkpoint of SCAN, whose attention over words and regions is another model; VSE++ and "
                         "VSRN can be read")
    image, text = parts
    for part, name in ((image, "fc.weight"), (text, "embed.weight")):
        if name not in part or part[name].ndim != 2:
            raise InputError(f"{path} has no matrix {name}, which every VSE++ and VSRN checkpoint has; take another one")
    if words is None:
        raise InputError(f"{path} is an original checkpoint, which holds no words; convert its vocabulary with `python "
                         "vocab.py convert OLD NEW.json` and give it with --vocab NEW.json")
    if len(words) != len(text["embed.weight"]):
        raise InputError(f"{path} has vectors for {len(text['embed.weight']):,} words and the vocabulary lists "
                         f"{len(words):,}; convert the one it was trained with")
    for name in [name for name in image if name.endswith(".running_var")]:          # came with torch 0.4.1
        image.setdefault(name.replace("running_var", "num_batches_tracked"), torch.tensor(0))
    settings = _options(stored["opt"], path)
    settings.update(word_dim=text["embed.weight"].shape[1], embed_size=image["fc.weight"].shape[0])
    photos = any(name.startswith("cnn.") for name in image)
    if photos:
        settings.update(img_enc="cnn", img_dim=None)
        model = _rename(image, {**FC, **_cnn_names([name for name in image if name.startswith("cnn.")])}, path)
    else:                                                                           # `finetune` means nothing there
        settings.update(img_enc="precomp", img_dim=image["fc.weight"].shape[1], finetune=False, feature_norm=False)
        graph = any(name.startswith("Rs_GCN_") for name in image)
        batch_norm = graph and "bn.weight" in image                                 # the original's f30k_precomp
        if graph:
            settings.update(img_enc="vsrn", region_norm="regions", region_bn=batch_norm, feature_norm=not batch_norm)
        model = _rename(image, _vsrn_names(batch_norm) if graph else FC, path)
        model = {name: value.squeeze(2) if value.ndim == 3 else value for name, value in model.items()}   # (D, D, 1)
    model |= _rename(text, _text_names(settings["num_layers"]), path)
    state = {name: _number(stored.get(theirs, 0), theirs, path)
             for name, theirs in (("epoch", "epoch"), ("iteration", "Eiters"), ("best_rsum", "best_rsum"))}
    return {"format": FORMAT, "options": settings, "vocabulary": list(words), "model": model, "state": {**state, "step": 0}}


# Options of the originals that mean here what they mean there.
SAME = {"data_name": str, "margin": float, "max_violation": bool, "num_epochs": int, "batch_size": int, "num_layers": int,
        "grad_clip": float, "crop_size": int, "learning_rate": float, "lr_update": int, "finetune": bool, "cnn_type": str,
        "use_abs": bool, "no_imgnorm": bool, "use_restval": bool}


def _options(theirs: argparse.Namespace, path: str) -> dict:
    """Our options, complete and resolved, for theirs; paths and the like stay at our defaults."""
    ours = options.parser().parse_args([])
    for name, kind in SAME.items():
        value = getattr(theirs, name, getattr(ours, name))
        if value is not getattr(ours, name):
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise InputError(f"{path} has the option {name} = {value!r}, which is no {kind.__name__}; take another "
                                 "checkpoint")
            setattr(ours, name, value)
    measure = getattr(theirs, "measure", "cosine")
    if measure not in ("cosine", "order"):
        raise InputError(f"{path} was trained with --measure {measure}; cosine and order can be read")
    if ours.cnn_type not in CNNS:
        raise InputError(f"{path} was trained with --cnn_type {ours.cnn_type}; networks that can be read are {', '.join(CNNS)}")
    ours.sim = {"cosine": "dot", "order": "order"}[measure]                         # their cosine is an inner product
    ours.logger_name = os.path.dirname(path) or "."
    options.resolve(ours)
    return {name: value for name, value in vars(ours).items() if name not in ("resume", "overwrite", "config", "dry_run")}


def _number(value, name: str, path: str) -> float | int:
    if type(value) not in (int, float):
        raise InputError(f"{path} has {name} = {str(value)[:40]!r}, which is no number; take another checkpoint")
    return value


def _rename(state: dict[str, Tensor], names: dict[str, str], path: str) -> dict[str, Tensor]:
    """The tensors of a state dict under our names; every one must be expected, and all that are must be there."""
    unknown, missing = sorted(set(state) - set(names)), sorted(set(names) - set(state))
    if unknown or missing:
        raise InputError(f"{path} {f'holds the weights {unknown[0]}' if unknown else f'lacks the weights {missing[0]}'}, which "
                         f"{'no' if unknown else 'every'} VSE++ or VSRN model of its options has; take another checkpoint")
    if len(set(names.values())) < len(names):
        raise InputError(f"{path} holds some weights twice, under names with and without 'module'; take another checkpoint")
    return {names[name]: value for name, value in state.items()}


# The tables below go from their names to ours.
FC = {f"fc.{kind}": f"image_tower.mean.fc.{kind}" for kind in ("weight", "bias")}
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def _gru(layers: int) -> list[str]:
    return [f"rnn.{kind}_{side}_l{k}" for k in range(layers) for kind in ("weight", "bias") for side in ("ih", "hh")]


def _text_names(layers: int) -> dict[str, str]:
    return {"embed.weight": "text_tower.trunk.table.weight", **{name: f"text_tower.mean.{name}" for name in _gru(layers)}}


def _vsrn_names(batch_norm: bool) -> dict[str, str]:
    names = {f"fc.{kind}": f"image_tower.trunk.fc.{kind}" for kind in ("weight", "bias")}
    names |= {f"img_{name}": f"image_tower.mean.{name}" for name in _gru(1)}
    names |= {f"bn.{kind}": f"image_tower.mean.norm.{kind}" for kind in NORM if batch_norm}
    for k in range(4):
        for theirs, ours in (("g", "g"), ("theta", "theta"), ("phi", "phi"), ("W.0", "out"), ("W.1", "norm")):
            names |= {f"Rs_GCN_{k + 1}.{theirs}.{kind}": f"image_tower.trunk.layers.{k}.{ours}.{kind}"
                      for kind in (NORM if ours == "norm" else NORM[:2])}
    return names


def _cnn_names(theirs: list[str]) -> dict[str, str]:
    """DataParallel puts `module.` before a whole ResNet, or before the layers of VGG's `features`. Older VGGs began their
    classifier with a dropout, so that its two linear layers are 1 and 4 instead of 0 and 3."""
    moved = {"classifier.1.": "classifier.0.", "classifier.4.": "classifier.3."} if "cnn.classifier.1.weight" in theirs else {}
    names = {}
    for name in theirs:
        ours = re.sub(r"^(features\.)?module\.", r"\1", name.removeprefix("cnn."))
        for old, new in moved.items():
            ours = re.sub(f"^{re.escape(old)}", new, ours)
        names[name] = f"image_tower.trunk.net.{ours}"
    return names
