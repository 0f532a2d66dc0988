"""Checkpoints as models: those that train.py wrote, and those of the original VSE++ and VSRN code.

    python evaluate.py --checkpoint model_best.pth.tar --vocab coco_precomp_vocab.pkl --data_name coco_precomp

Loading runs no code from a file: torch's restricted unpickler reads both. The originals pickle an
argparse.Namespace and two state dicts; reading them calls nothing but the few names in ADMITTED.
Their weights then get our names.
"""
import argparse
import functools
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from cli import InputError, check, reason
from data import encode_captions
from files.reading import checksum
from files.writing import FORMAT
from losses import Embedding
from model import CNNS, VSE, build_model, build_vocabulary
from options import defaults, imply, list_options, resolve, training_parser
from vocab import Vocabulary, tokenize

BATCH = 64                            # captions per step

# Options that a resumed run may set anew.
MAY_CHANGE = {"data_path", "num_epochs", "workers", "amp", "log_step", "val_step", "device", "logger_name",
              "resume", "overwrite", "dry_run", "config", "word_vectors", "cnn_weights", "vocab"}


def load_checkpoint(path: str, name: str = "model_best.pt", vocab: str | None = None) -> dict:
    """Read a run folder's checkpoint or a checkpoint file, without running code from it; InputError
    if it is not one.

    A checkpoint of the original VSE++ or VSRN is converted; it needs its vocabulary, the JSON file
    `vocab`.
    """
    path = os.path.join(path, name) if os.path.isdir(path) else path
    check(os.path.isfile(path), f"there is no checkpoint {path}; give a run folder that holds "
                                f"{name}, or a file")
    stored = read(path)
    if is_original(stored):
        return original(stored, path, vocab)
    parts = {"format", "options", "vocabulary", "model"}
    check(isinstance(stored, dict) and parts <= set(stored),
          f"{path} is no checkpoint of this project; give one that train.py wrote")
    number = stored["format"]
    if number != FORMAT:
        number = number if type(number) is int else f"of type {type(number).__name__}"
        raise InputError(f"{path} has checkpoint format {number}, this version reads format "
                         f"{FORMAT}; use the version that wrote it, or train again")
    check_contents(stored, path)
    return stored


def original(stored: dict, path: str, vocab: str | None) -> dict:
    """An original's checkpoint converted with the vocabulary of a file, as far as the two can be
    seen to belong together."""
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


# whole numbers of a checkpoint's state
COUNTS = {"epoch", "step", "iteration", "loss_count", "waited"}


def is_dense(value) -> bool:
    """Whether a value is a tensor of ordinary numbers, as weights are: not sparse, quantised or
    complex."""
    return (torch.is_tensor(value) and value.layout == torch.strided
            and not value.is_quantized and not value.is_complex())


def named(values, fits: Callable) -> bool:
    """Whether values are a dict of names, each of which fits."""
    return isinstance(values, dict) and all(
        isinstance(name, str) and fits(value) for name, value in values.items())


def check_contents(stored: dict, path: str) -> None:
    """Refuse a checkpoint whose parts are not of the kinds that train.py writes: what is read of it
    later relies on them."""
    words, state, data = stored["vocabulary"], stored.get("state", {}), stored.get("data", {})
    kinds = {
        "options": named(stored["options"],
                         lambda value: value is None or isinstance(value, (str, int, float))),
        "vocabulary": isinstance(words, list) and all(isinstance(word, str) for word in words),
        "model": named(stored["model"], is_dense),
        "state": isinstance(state, dict) and {"epoch", "best_rsum"} <= set(state) and all(
            type(value) in (int, float) and abs(value) < 2 ** 63        # no NaN either
            and (name not in COUNTS or type(value) is int and value >= 0)
            for name, value in state.items()),
        "data": isinstance(data, dict) and isinstance(data.get("extractors") or {}, dict)}
    for name, right in kinds.items():
        check(right, f"{path} holds something else under '{name}' than train.py writes; it was "
                     "changed or is of another program, so take another one or train again")


MEANS = tuple(f"{side}_tower.{part}." for side in ("image", "text") for part in ("trunk", "mean"))


def load_weights(model: VSE, stored: dict, path: str = "the checkpoint",
                 means: bool = False) -> None:
    """Give a model the weights of a checkpoint. means: only of what makes the means; the rest stays
    as it is. Raises InputError where the names or shapes are others."""
    own = model.state_dict()
    theirs, mine = ({name: tuple(x.shape) for name, x in state.items()
                     if not means or name.startswith(MEANS)} for state in (stored["model"], own))
    wrong = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    if wrong:
        there, here = (shapes.get(wrong[0], "absent") for shapes in (theirs, mine))
        raise InputError(f"the weights of {path} are not those of a model of these options "
                         f"({wrong[0]} is {there} there and {here} here, {len(wrong)} differ); "
                         "give the sizes, heads, encoders and terms of its config.yaml")
    model.load_state_dict({**own, **{name: stored["model"][name] for name in theirs}})


def load_model(stored: dict,
               path: str = "the checkpoint") -> tuple[VSE, Vocabulary, argparse.Namespace]:
    """The model of a checkpoint, in eval mode on the CPU, its vocabulary and its options. Raises
    InputError."""
    check_values(stored["options"], path)
    opt = argparse.Namespace(**{**defaults(training_parser()), **stored["options"]})
    imply(opt)                                     # options that are younger than the checkpoint
    vocab = build_vocabulary(opt, stored["vocabulary"])
    try:
        model = build_model(opt, vocab, pretrained=False)
    except InputError:
        raise
    # each value is right, not all together
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise InputError(f"the options of {path} describe no model ({reason(error)}); it was "
                         "changed, so take another one or train again") from error
    load_weights(model, stored, path)
    return model.eval(), vocab, opt


class Trained:
    """A trained model as a function of texts and of what it reads of images, without the data that
    it was trained on.

        model = Trained("runs/demo")
        captions = model.texts(["a red circle .", "a star ."])
        model.similarity(model.images(features), captions)          # (N, 2)

    It is in eval mode. vocab: the vocabulary of an original checkpoint. Raises InputError
    where the checkpoint cannot be read.
    """

    def __init__(self, path: str, device: torch.device | str = "cpu", *, vocab: str | None = None):
        stored = load_checkpoint(path, vocab=vocab)
        self.path = path
        self.model, self.vocab, self.options = load_model(stored, path)
        self.state, self.notes = stored["state"], list(stored.get("notes", ()))
        data = stored.get("data", {})
        self.extractors = data.get("extractors") or {}      # of its features, by name
        self.to(device)

    def to(self, device: torch.device | str) -> "Trained":
        self.device = torch.device(device)
        self.model.to(self.device)
        return self

    @property
    def similarity(self):
        return self.model.similarity

    @functools.cached_property
    def weights(self) -> str:
        """A digest of the weights, by which a model is known wherever its run folder lies."""
        own = [x.cpu().contiguous().numpy() for x in self.model.state_dict().values()]
        return checksum(own or [str(self.extractors).encode()])     # a model of ready vectors has none of its own

    @torch.no_grad()
    def texts(self, texts: list[str], network: Callable[[list[str]], Tensor] | None = None,
              any_words: bool = False) -> Embedding:
        """Captions -> Embedding of (B, D). network: computes the features (B, F) of captions for a
        run that reads these. any_words: of captions without a known word, too. Raises InputError
        for such a caption otherwise, and where such a run gets no network."""
        check(network or not self.options.text_features,
              f"{self.path} reads ready features of captions and knows no words, so a caption of "
              "one's own cannot be embedded; take a run on words")
        embeddings = []
        for start in range(0, len(texts), BATCH):
            some = texts[start:start + BATCH]
            if network:
                numbers, lengths = network(some), torch.ones(len(some)).long()  # (B, F), (B,)
            else:
                tokens = encode_captions([tokenize(text) for text in some], self.vocab)
                check(any_words or not tokens.unknown.any(),
                      f"no word of '{some[tokens.unknown.argmax()]}' is in the vocabulary of "
                      f"{len(self.vocab)} words; use words of the training set")
                numbers, lengths = tokens.batch(np.arange(len(some)))           # (B, T), (B,)
            embeddings.append(self.model.embed_captions(numbers.to(self.device), lengths))
        return Embedding.cat(embeddings)

    @torch.no_grad()
    def images(self, rows) -> Embedding:
        """What the model reads of images, (B, F), (B, P, F) or (B, 3, H, W), -> Embedding of (B,
        D)."""
        rows = torch.as_tensor(rows if torch.is_tensor(rows) else np.asarray(rows)).float()
        return self.model.embed_images(rows.to(self.device))


def check_values(stored: dict, path: str) -> None:
    """Raise InputError on options of a checkpoint that the command line would not have taken: no
    model can be built of them."""
    known = list_options(training_parser())
    for name, value in stored.items():
        option = known.get(name)
        if option is None or value is None or name in MAY_CHANGE:
            continue
        try:
            right = (isinstance(value, bool) if option.nargs == 0 else value in option.choices if option.choices
                     else (option.type or str)(str(value)) == value)
        except ValueError:
            right = False
        check(right, f"{path} has the option {name} = {ascii(value)[:40]}, which train.py would not "
                     "take; it was changed, so take another checkpoint")


# ---- checkpoints of the originals

# What a checkpoint may call beside torch's own tensors, under the names that the checkpoint uses:
# best_rsum is a number of numpy's.
ADMITTED = [(argparse.Namespace, "argparse.Namespace"), (np.dtype, "numpy.dtype"),
            *((np.float64().__reduce__()[0], f"numpy.{core}.multiarray.scalar")
              for core in ("core", "_core")),
            *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4"))]


def read(path: str):
    """The content of a checkpoint file, ours or an original one; nothing from it is run. Raises
    InputError if it cannot be read."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:                             # torch packs nothing
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise ValueError("its contents are compressed, which no checkpoint's are")
        with warnings.catch_warnings(), torch.serialization.safe_globals(ADMITTED):
            warnings.simplefilter("ignore")                        # wrong: `encoding` has an effect
            # Python 2's strings
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        why = (f"it wants to call {wanted[1][:60]}, which no checkpoint needs, and nothing of it "
               "was run" if wanted else reason(error, 120))
        raise InputError(f"{path} is damaged or no checkpoint of this project, VSE++ or VSRN "
                         f"({why}); take another one or train again") from error


def is_original(stored) -> bool:
    """Whether what `read` returned has the layout of VSE++ and its descendants: {"model": [image,
    text], "opt": Namespace}."""
    return (isinstance(stored, dict) and isinstance(stored.get("model"), (list, tuple))
            and isinstance(stored.get("opt"), argparse.Namespace))


def convert(stored: dict, words: list[str] | None, path: str) -> dict:
    """A VSE++ or VSRN checkpoint, as `read` returned it, -> one of ours: format, options,
    vocabulary, model, state.

    `words` are its vocabulary in the order of the indices, which the file does not hold.
    Raises InputError if the two do not fit or the checkpoint holds anything that cannot be carried over.
    """
    parts = [dict(part) if isinstance(part, Mapping) else {} for part in stored["model"]]
    check(len(parts) == 2 and all(named(part, is_dense) for part in parts),
          f"{path} has a list of {len(parts)} under 'model'; VSE++ and VSRN store the weights of "
          "an image and of a text encoder there")
    check(not hasattr(stored["opt"], "cross_attn"),
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
    settings = _options(stored["opt"], path)
    settings.update(word_dim=vectors.shape[1], embed_size=image["fc.weight"].shape[0])
    if any(name.startswith("cnn.") for name in image):
        settings.update(img_enc="cnn", img_dim=None)
        names = [*CNN, *OLD_VGG * ("cnn.classifier.1.weight" in image)]
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
    """Our options, complete and resolved, for those of the original; paths and the like keep our
    defaults."""
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
