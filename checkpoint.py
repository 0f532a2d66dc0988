"""Checkpoints: save, load, go on from; a trained model as a function of texts and images; the folder of a run.

Loading runs no code from a file: torch's restricted unpickler reads ours and those of the original VSE++ and VSRN, and
calls nothing but the few names in ADMITTED.
"""
import argparse
import functools
import os
import re
import warnings
import zipfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cli import InputError, check, reason
from data import encode_captions
from files import FORMAT, checksum, read_yaml, readable
from losses import Embedding
from methods.originals import convert_file, is_dense, is_original, named, without_module
from model import VSE, build_model, build_vocabulary
from options import COMMAND_LINE, Options, default_run, defaults, imply, list_options, resolve, training_parser
from vocab import Vocabulary, tokenize

BATCH = 64                            # captions per step

# Options that a resumed run may set anew.
MAY_CHANGE = {"data_path", "num_epochs", "workers", "amp", "log_step", "val_step", "device", "logger_name",
              "resume", "overwrite", "dry_run", "config", "word_vectors", "cnn_weights", "vocab"}


# What a checkpoint may call beside torch's own tensors, under the names that the checkpoint uses:
# best_rsum is a number of numpy's.
ADMITTED = [(argparse.Namespace, "argparse.Namespace"), (np.dtype, "numpy.dtype"),
            *((np.float64().__reduce__()[0], f"numpy.{core}.multiarray.scalar")
              for core in ("core", "_core")),
            *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4"))]


def read(path: str):
    """The content of a checkpoint file, ours or an original one; nothing from it is run. Raises
    InputError if it cannot be read."""
    with open(path, "rb") as f:
        start = f.read(256).lstrip()
    check(not start.startswith(b"<"), f"{path} is a web page, not a checkpoint: it begins with "
                                      f"{ascii(start[:20].decode(errors='replace'))}; download the file itself")
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
        return convert_file(stored, path, vocab)
    parts = {"format", "options", "vocabulary", "model"}
    check(isinstance(stored, dict) and parts <= set(stored),
          f"{path} is no checkpoint of this project; give one that train.py wrote")
    number = stored["format"]
    if number != FORMAT:
        number = number if type(number) is int else f"of type {type(number).__name__}"
        raise InputError(f"{path} has checkpoint format {number}, this version reads format "
                         f"{FORMAT}; use the version that wrote it, or train again")
    if isinstance(stored["model"], dict):
        stored["model"] = without_module(stored["model"])
    if isinstance(stored["options"], argparse.Namespace):
        stored["options"] = vars(stored["options"])
    check_contents(stored, path)
    return stored


COUNTS = {"epoch", "step", "iteration", "loss_count", "waited"}       # whole numbers of a state


def check_contents(stored: dict, path: str) -> None:
    """Raise InputError where parts of a checkpoint are not of the kinds that train.py writes, on which all that reads
    it later relies."""
    def is_plain(value) -> bool:
        return value is None or isinstance(value, (str, int, float))

    def is_count(value) -> bool:
        return type(value) is int and 0 <= value < 2 ** 63

    words, state, data = stored["vocabulary"], stored.get("state", {}), stored.get("data", {})
    kinds = {
        "options": named(stored["options"], is_plain),
        "vocabulary": isinstance(words, list) and all(isinstance(word, str) for word in words),
        "model": named(stored["model"], is_dense),
        "state": isinstance(state, dict) and {"epoch", "best_rsum"} <= set(state) and all(
            is_count(value) if name in COUNTS else type(value) in (int, float) and abs(value) < 2 ** 63     # no NaN
            for name, value in state.items()),
        "data": isinstance(data, dict) and all(
            named(value, is_plain if name == "extractors" else lambda _: True) if isinstance(value, dict)
            else is_count(value) if name in ("images", "captions") else is_plain(value)
            for name, value in data.items())}
    for name, right in kinds.items():
        check(right, f"{path} holds something else under '{name}' than train.py writes; it was "
                     "changed or is of another program, so take another one or train again")
    broken = [name for name, x in stored["model"].items() if x.is_floating_point() and not x.isfinite().all()]
    check(not broken, f"{path} has numbers under {broken[:1]} that are not finite, and nothing can be ranked by them; "
                      "take another checkpoint or train again")


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


# ---- the folder of a run

NOT_KEPT = COMMAND_LINE - {"logger_name"}     # options that no checkpoint holds
CHECKPOINTS = ("checkpoint.pt", "model_best.pt")
# Files that evaluate.py and show.py write into a run folder, and the events of tensorboard.
MADE_OF_RUN = re.compile(
    r"(results|calibration|confidence|people)(_.+)?\.json|retrieval\.png|events\.out\.tfevents\..+"
    r"|(uncertainty|uncertain_images|uncertain_captions|confidence|people)(_.+)?\.png")


def description_in(folder: str) -> dict:
    """What a folder's config.yaml holds; nothing where it was lost."""
    try:
        stored = read_yaml(os.path.join(folder, "config.yaml"))
    except InputError:
        return {}
    return stored if isinstance(stored, dict) else {}


def is_run(folder: str) -> bool:
    """Whether train.py made a folder: its config.yaml says so, or, where that was lost, its
    checkpoint.pt."""
    if {"command", "versions", "data", "options"} <= set(description_in(folder)):
        return True
    path, log = (os.path.join(folder, name) for name in ("checkpoint.pt", "log.jsonl"))
    return os.path.isfile(path) and os.path.isfile(log) and readable(load_checkpoint, path)


def check_new(folder: str, overwrite: bool) -> None:
    """Raise InputError unless a new run may go into a folder: one that is not there, an empty one,
    a run that never took a step or, with `overwrite`, any run. A folder of other files is nobody's
    to clear."""
    if not os.path.lexists(folder):
        return
    check(os.path.isdir(folder), f"{folder} is no folder; name another one with --logger_name")
    files = [name for name in sorted(os.listdir(folder)) if not name.endswith(".part")]
    if not files:
        return
    check(is_run(folder), f"{folder} holds {files[0]} and is no run that train.py made; name a "
                          "folder of its own with --logger_name")
    check(overwrite or not set(CHECKPOINTS) & set(files),
          f"{folder} already holds a run; go on with --resume, replace it with --overwrite, or "
          "name another folder with --logger_name")


def clear_old(folder: str) -> None:
    """Remove the files of a run: checkpoints first, so that none ever stands under a new
    description, then logs and `MADE_OF_RUN`. Other files stay."""
    made = [name for name in sorted(os.listdir(folder)) if MADE_OF_RUN.fullmatch(name)]
    for name in [*CHECKPOINTS, "log.txt", "log.jsonl", *made]:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            os.remove(path)


def best_of(source: str, best_rsum: float) -> str | None:
    """The file of the best model of the run gone on from, unless it is of a later epoch."""
    path = os.path.join(run_folder(source), "model_best.pt")
    if not best_rsum or not os.path.isfile(path):
        return None
    return path if load_checkpoint(path)["state"]["best_rsum"] == best_rsum else None


# ---- going on

def resumed_options(p: argparse.ArgumentParser, given: Options, argv: list[str]) -> Options:
    """The options of a run that goes on: those of its checkpoint and, of what may change, those
    given in `argv`. `resume` becomes the checkpoint to read, `logger_name` the folder to write
    to."""
    start = given.resume or given.logger_name or default_run(given)
    checkpoint = load_resumable(start)
    known = defaults(p)
    stored = {name: value for name, value in checkpoint["options"].items()
              if name in known and name not in NOT_KEPT}   # older ones hold others, too
    check_values(stored, start)
    p.set_defaults(**stored)
    opt = p.parse_args(argv, Options())
    opt.resume, opt.logger_name = start, given.logger_name or run_folder(start)
    resolve(opt)
    opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}
    changed = [key for key in stored if key in vars(opt) and key not in MAY_CHANGE
               and getattr(opt, key) not in (stored[key], "auto")]  # auto: what the data need
    if changed:
        raise InputError(f"--{changed[0]} {getattr(opt, changed[0])} differs from the "
                         f"{stored[changed[0]]} of the run in {start}; a resumed run keeps its "
                         "options, so leave it out or start a new run with --init_from")
    newest = os.path.join(opt.logger_name, "checkpoint.pt")
    if os.path.isfile(start) and os.path.isfile(newest) and not os.path.samefile(start, newest):
        reached, at = (c["state"]["iteration"] for c in (load_checkpoint(newest), checkpoint))
        raise InputError(f"{opt.logger_name} has a checkpoint.pt of its own, at step {reached:,} "
                         f"of the run where {start} is at step {at:,}; go on from {start} in a new "
                         "folder with --logger_name NEW, or leave the file's name out to go on "
                         "from checkpoint.pt")
    return opt


def load_resumable(path: str) -> dict:
    """A checkpoint that holds all that going on needs. Raises InputError."""
    stored = load_checkpoint(path, "checkpoint.pt")
    parts = {**stored, **stored.get("state", {})}
    for name in ("optimizer", "rng", "state", "data", "step", "iteration", "loss_sum",
                 "loss_count"):
        check(name in parts, f"{path} holds a model but no {name}, so training cannot go on "
                             "exactly; resume the run's checkpoint.pt (--resume RUN), or start a "
                             "new run from these weights with --init_from")
    return stored


def run_folder(path: str) -> str:
    """The folder of a run, or of a checkpoint file."""
    return os.path.dirname(path) or "." if os.path.isfile(path) else path
