"""Checkpoints and run folders; a trained model as a function.

Reading runs no code from a file: torch's restricted unpickler reads our checkpoints and originals,
and calls nothing but the few names in ADMITTED.
"""

import argparse
import contextlib
import errno
import functools
import os
import re
import socket
import time
import warnings
from collections.abc import Callable

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

import numpy as np
import torch
from torch import Tensor

from images import count_regions, move_padding
from losses import Embedding
from methods import originals
from model import TEXT_ENCODERS, VSE, build_model
from options import (
    COMMAND_LINE,
    NOT_STORED,
    Options,
    defaults,
    fill_options,
    list_options,
    resolve,
    training_parser,
)
from utils import (
    FORMAT,
    InputError,
    checksum,
    compute_in_float32,
    has_names,
    identify_file,
    need,
    reason,
    refusing,
    shorten,
    spell_value,
)
from vocab import Vocabulary, tokenize

CAPTIONS_PER_BATCH = 64
OWNER_FILE = ".training"  # of a run folder, which its training holds locked
OWNER_TRIES = 5  # to lock it, a tenth of a second apart
# File of a run with noisy correspondence: the image of each training caption.
NOISE = "noise.npy"
# Options that a resumed run may set anew.
MAY_CHANGE = COMMAND_LINE | set(
    "data_path num_epochs workers amp log_step val_step device word_vectors cnn_weights vocab "
    "noise_file".split()
)
# Starts of the names of the weights that make the means.
MEANS = ("image_tower.trunk.", "image_tower.mean.", "text_tower.trunk.", "text_tower.mean.")
# Files of a run that a new one removes: best model, logs, and what the commands made of it.
MADE_OF_RUN = re.compile(
    r"model_best\.pt|log\.(txt|jsonl)|noise\.npy|pairs\.(csv|png)|events\.out\.tfevents\..+"
    r"|(results|calibration|confidence|people)(_.+)?\.json"
    r"|(uncertainty|uncertain_images|uncertain_captions|retrieval|confidence|people)(_.+)?\.png"
)
FLOAT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WEIGHT_TYPES = (*FLOAT_TYPES, torch.int64, torch.int32, torch.bool)
# Limits of the options, and of the description of the data, in a checkpoint.
MAX_PARTS = 10_000
MAX_DEPTH = 8
SET_BY_DATA = ("img_dim", "n_regions", "txt_dim")  # stored with the options, see `training_parser`
MAX_FEATURES = 2**24
# Names that a checkpoint may call beside torch's own tensors: best_rsum is a number of numpy's,
# whose module has had two names.
MAKE_SCALAR = np.float64().__reduce__()[0]
ADMITTED = [
    (argparse.Namespace, "argparse.Namespace"),
    (np.dtype, "numpy.dtype"),
    (MAKE_SCALAR, "numpy.core.multiarray.scalar"),
    (MAKE_SCALAR, "numpy._core.multiarray.scalar"),
    type(np.dtype("f8")),
    type(np.dtype("f4")),
    type(np.dtype("i8")),
    type(np.dtype("i4")),
]


# ---- the owner of a run folder


class RunOwner:
    """The training that a run folder belongs to, from `take` to `release`.

    It holds a lock on the file OWNER_FILE of the folder. The system gives the lock back when the
    process ends, also when it is killed, so a run can be resumed at once. Worker processes do not
    inherit the lock.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.path = os.path.join(folder, OWNER_FILE)
        self.file = None
        self.directory = None  # open, so that no other folder gets its inode

    def take(self) -> None:
        """Take the folder, which is there. Raises InputError where another training has it."""
        if self.file is not None:
            return

        self.directory = os.open(self.folder, os.O_RDONLY)
        for _ in range(OWNER_TRIES):
            file = open(self.path, "a+", encoding="utf-8")
            if not lock_file(file, exclusive=True):
                # held by a training, or for a moment by a process that looks for one
                file.close()
                time.sleep(0.1)
            elif identify_file(self.path) == identify_file(file.fileno()):
                self.file = file
                self.say("the start")
                return
            else:
                # the previous owner has just removed it
                file.close()

        self.release()
        raise InputError(describe_owner(self.folder))

    def say(self, place: str) -> None:
        """Write the place in the training into the file, for those who ask what the run does."""
        with contextlib.suppress(OSError):  # a full disk
            self.file.seek(0)
            self.file.truncate()
            process = f"process {os.getpid()} on {socket.gethostname()}"
            self.file.write(f"{process}, {place}")
            self.file.flush()

    def check_folder(self) -> None:
        """Raise InputError where the folder was renamed, deleted or replaced."""
        if self.directory is None:
            return
        if identify_file(self.folder) != identify_file(self.directory):
            raise InputError(
                f"the run folder {self.folder} was renamed or deleted during the "
                "training, so nothing more is written; if it was renamed, continue "
                "from its last checkpoint with --resume and its new name"
            )

    def release(self) -> None:
        """Give the folder back."""
        if self.file is not None:
            with contextlib.suppress(OSError):  # the folder may be gone
                if identify_file(self.path) == identify_file(self.file.fileno()):
                    os.remove(self.path)
            self.file.close()
            self.file = None

        if self.directory is not None:
            os.close(self.directory)
            self.directory = None


def lock_file(file, exclusive: bool) -> bool:
    """Lock an open file without waiting; False where another process holds a lock on it."""
    if fcntl is None:
        return True

    kind = fcntl.LOCK_SH
    if exclusive:
        kind = fcntl.LOCK_EX
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        # with another error, the file system has no locks
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def describe_owner(folder: str) -> str:
    """Say that a training goes on in a run folder."""
    owner = ""
    path = os.path.join(folder, OWNER_FILE)
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as f:
        owner = f.read(200)
    if not owner:
        owner = "another process"
    return (
        f"{folder} is in use by a training that still runs ({owner}); wait until it ends, or stop "
        "it, before you resume or replace the run"
    )


def find_training(run: str) -> str | None:
    """Return the place of the training that goes on in a run folder; None without one.

    run: the folder, or a checkpoint in it.
    """
    folder = run
    if not os.path.isdir(run):
        folder = os.path.dirname(run) or "."
    path = os.path.join(folder, OWNER_FILE)
    if not os.path.isfile(path):
        return None

    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as f:
        if not lock_file(f, exclusive=False):
            _, _, place = f.read(200).rpartition(", ")
            return place or "at its start"
    return None


# ---- reading


def read(path: str):
    """Read the content of a checkpoint file; nothing in it is run. Raises InputError."""
    with open(need(path), "rb") as f:
        start = f.read(256)
    if start.lstrip().startswith(b"<"):
        raise InputError(f"{path} is a web page, not a checkpoint; download the file itself")

    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(ADMITTED):
            # a wrong warning: `encoding` has an effect, on Python 2's strings
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, encoding="latin1")
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        call = re.search(r"GLOBAL (\S+)", str(error))
        if call:
            name = call[1][:60]
            why = f"it wants to call {name}, which no checkpoint needs, and nothing of it was run"
        else:
            why = reason(error)
        raise InputError(
            f"{path} is damaged or not a checkpoint of this project, VSE++ or VSRN "
            f"({why}); use another one or train again"
        ) from error


def load_checkpoint(path: str, name: str = "model_best.pt", vocab: str | None = None) -> dict:
    """Read and check checkpoint `name` of a run folder, or a checkpoint file.

    One of an original code base (methods/originals.py) is converted; it needs its vocabulary, the
    JSON file `vocab`. Raises InputError.
    """
    if os.path.isdir(path):
        path = os.path.join(path, name)
    if not os.path.isfile(path):
        advice = f"give a run folder that holds {name}"
        if name != "checkpoint.pt":  # --resume takes no other file
            advice += ", or a file"
        raise InputError(f"there is no checkpoint {path}; {advice}")

    stored = read(path)
    if isinstance(stored, dict) and "opt" in stored:
        stored = originals.convert_file(stored, path, vocab)

    needed = {"format", "options", "vocabulary", "model"}
    if not isinstance(stored, dict) or not needed <= set(stored):
        raise InputError(
            f"{path} is not a checkpoint of this project; give one that train.py wrote"
        )
    if type(stored["format"]) is not int or stored["format"] != FORMAT:
        given = spell_value(stored["format"], 20)
        raise InputError(
            f"{path} has checkpoint format {given}, but this version reads format "
            f"{FORMAT}; use the version that wrote it, or train again"
        )
    check_contents(stored, path)
    return stored


def check_contents(stored: dict, path: str) -> None:
    """Raise InputError where a part of a checkpoint is not of train.py's kind.

    What only --resume reads, optimizers and random states, is checked by `load_optimizer` and
    torch.
    """
    words = stored["vocabulary"]
    notes = stored.get("notes", [])
    data = stored.get("data", {})
    extractors = None
    if isinstance(data, dict):
        extractors = data.get("extractors")
    has_extractors = isinstance(extractors, dict)  # {file: text}; `is_tree` looks at the names
    if has_extractors:
        has_extractors = all(isinstance(name, str) for name in extractors.values())

    kinds = {
        "options": is_tree(stored["options"]),
        "vocabulary": isinstance(words, list) and all(isinstance(word, str) for word in words),
        "model": has_names(stored["model"], is_weight),
        "state": is_state(stored.get("state", {})),
        "data": is_tree(data) and (has_extractors or extractors is None),
        "notes": isinstance(notes, (list, tuple)) and all(isinstance(note, str) for note in notes),
    }
    for name, right in kinds.items():
        if not right:
            raise InputError(
                f"{path} has an invalid '{name}': not what train.py writes, or numbers that are "
                "not finite; take another one or train again"
            )


def is_tree(value) -> bool:
    """True for a dict of names and plain values, or of such dicts, of which there are few.

    A file can repeat a part many times, or within itself, so repeated parts are counted each time.
    """
    if not isinstance(value, dict):
        return False

    rest = [(value, 0)]
    count = 0
    while rest:
        part, depth = rest.pop()
        count += 1
        if count > MAX_PARTS or depth > MAX_DEPTH:
            return False

        if isinstance(part, dict):
            if not all(isinstance(name, str) for name in part) or len(part) > MAX_PARTS:
                return False
            rest += [(entry, depth + 1) for entry in part.values()]
        elif not isinstance(part, (str, int, float, type(None))):
            return False
    return True


def is_weight(x) -> bool:
    """True for a dense tensor on the CPU of finite numbers, each of which its storage holds.

    False for one that is sparse, quantized or a view that repeats a few numbers.
    """
    if not torch.is_tensor(x):
        return False
    if x.layout != torch.strided or x.device.type != "cpu" or x.is_quantized:
        return False
    if x.dtype not in WEIGHT_TYPES:
        return False

    n_bytes = x.numel() * x.element_size()
    if n_bytes > x.untyped_storage().nbytes():
        return False
    return bool(x.isfinite().all())


def is_state(state) -> bool:
    """True for the position in a training and its best recalls."""
    if not isinstance(state, dict) or not {"epoch", "best_rsum"} <= set(state):
        return False

    for name, value in state.items():
        if not isinstance(name, str) or type(value) not in (int, float):
            return False
        if not -1 <= value < 2**53:
            return False
        counts = name in ("epoch", "step", "iteration", "waited")
        if counts and (type(value) is not int or value < 0):
            return False
    return True


def check_options(values: dict, p: argparse.ArgumentParser, path: str) -> None:
    """Raise InputError where an option has a value that the command line would not take.

    values: the options of the checkpoint `path`; p: the parser, whose other options are not
    checked.
    """
    for name, action in list_options(p).items():
        if name not in values or name in NOT_STORED:
            continue
        value = values[name]
        has_choices = action.choices is not None
        if has_choices and value is not None and value not in list(action.choices):
            raise InputError(
                f"{path} was trained with --{name} {spell_value(value)}, which this "
                "code does not have; add it to the code again, or give another run"
            )
        if not is_option_value(value, action):
            raise InputError(
                f"{path} holds --{name} {spell_value(value)}, which is not a valid value; "
                "take another checkpoint or train again"
            )

    for name in SET_BY_DATA:
        value = values.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 < value <= MAX_FEATURES:
            raise InputError(
                f"{path} holds {name} {spell_value(value)}, which is not a valid size; "
                "take another checkpoint or train again"
            )


def is_option_value(value, action: argparse.Action) -> bool:
    """True if an option can have this value after the command line was parsed."""
    if value is None:
        return action.default is None
    if action.nargs == 0:  # a switch
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False

    convert = action.type
    if convert is None:
        return isinstance(value, str)
    try:
        converted = convert(str(value))
    except ValueError:  # InputError is one
        return False
    return isinstance(value, str) == isinstance(converted, str)


# ---- a trained model


def load_weights(
    model: VSE, stored: dict, path: str = "the checkpoint", new_training: bool = False
) -> list[str]:
    """Copy the weights of a checkpoint into a model.

    Args:
        model: of the same sizes, heads, encoders and terms.
        stored: content of the checkpoint.
        path: names it in a message.
        new_training: it may have another loss and other variances: it needs trunks and means, and
            copies the rest where both have it.

    Returns the names of weights that were not copied. Raises InputError where names or shapes
    differ.
    """
    own = model.state_dict()
    given = stored["model"]

    free = set()  # weights that may be in one of the two
    if new_training:
        for name in set(own) ^ set(given):
            if not name.startswith(MEANS):
                free.add(name)

    theirs = {name: tuple(x.shape) for name, x in given.items() if name not in free}
    ours = {name: tuple(x.shape) for name, x in own.items() if name not in free}
    wrong = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if wrong:
        there = theirs.get(wrong[0], "absent")
        here = ours.get(wrong[0], "absent")
        raise InputError(
            f"the weights of {path} do not fit a model of these options ({wrong[0]} "
            f"is {there} there and {here} here, {len(wrong)} differ); give the sizes, "
            "heads, encoders and terms of its config.yaml"
        )

    copied = {name: given[name] for name in theirs}
    model.load_state_dict({**own, **copied})
    return [name for name in own if name not in theirs]


def load_model(
    stored: dict, path: str = "the checkpoint"
) -> tuple[VSE, Vocabulary, argparse.Namespace]:
    """Build the model of a checkpoint, in eval mode on the CPU.

    Returns the model, its vocabulary and options. Raises InputError.
    """
    p = training_parser(foreign_flags=False)
    options = stored["options"]
    unused = {"method"}  # its options say it all
    if options.get("img_dim"):
        unused.add("cnn_type")  # features need no network for photos
    used = {name: value for name, value in options.items() if name not in unused}
    check_options(used, p, path)

    # options that were added after this checkpoint was written get their defaults; hand-edited ones
    # may describe no model
    opt = p.parse_args([])
    vars(opt).update(options)
    with refusing(
        f"the options of {path} do not describe a model", "take another checkpoint or train again"
    ):
        fill_options(opt)
        encoder = TEXT_ENCODERS[opt.txt_enc]
        vocab = encoder.vocabulary(stored["vocabulary"])
        model = build_model(opt, vocab, pretrained=False)

    load_weights(model, stored, path)
    return model.eval(), vocab, opt


class Trained:
    """Trained model, in eval mode, as a function of texts and images.

        model = Trained("runs/demo")
        captions = model.texts(["a red circle .", "a star ."])
        model.similarity(model.images(features), captions)          # (N, 2)

    vocab: the vocabulary of an original checkpoint. Raises InputError where the checkpoint cannot
    be read.
    """

    def __init__(self, path: str, device: torch.device | str = "cpu", *, vocab: str | None = None):
        compute_in_float32()
        stored = load_checkpoint(path, vocab=vocab)
        self.path = path
        self.model, self.vocab, self.options = load_model(stored, path)
        self.similarity = self.model.similarity
        self.state = stored["state"]

        self.notes = list(stored.get("notes", ()))
        self.converted = bool(self.notes)  # from an original checkpoint
        self.training = find_training(path)  # its place, while it goes on
        if self.training:
            self.notes.append(
                f"{path} is still training ({self.training}), so these are not its final numbers"
            )

        data = stored.get("data", {})
        self.extractors = data.get("extractors") or {}  # of its features, by name
        self.device = torch.device(device)
        self.model.to(self.device)

    @functools.cached_property
    def weights(self) -> str:
        """Digest of the weights, by which a model is known wherever its run folder lies."""
        own = [x.cpu().contiguous().numpy() for x in self.model.state_dict().values()]
        if not own:
            # a model of precomputed vectors has no weights, and is known by who made the vectors
            own = [str(self.extractors).encode()]
        return checksum(own)

    @torch.no_grad()
    def texts(
        self,
        texts: list[str],
        network: Callable[[list[str]], Tensor] | None = None,
        any_words: bool = False,
    ) -> Embedding:
        """Embed captions: (B, D).

        A caption without a known word is read as unknown words, as in training.

        Args:
            texts: B captions.
            network: computes the features (B, F) of captions for a run that reads these; without it
                such a run raises InputError.
            any_words: also where no caption has a known word, which raises InputError otherwise.
        """
        if self.options.text_features and not network:
            raise InputError(
                f"{self.path} reads precomputed features of captions and has no vocabulary, so it "
                "cannot embed new captions; use a run on words"
            )

        if not network:
            words = texts
            if not self.vocab.reads_captions:
                words = [tokenize(text) for text in texts]
            tokens = self.vocab.encode_captions(words)
            if tokens.unknown.all() and not any_words:
                which = f"'{shorten(texts[0])}'"
                if len(texts) > 1:
                    which = f"{len(texts):,} texts, the first is {which},"
                raise InputError(
                    f"no word of {which} is in the vocabulary of {len(self.vocab)} "
                    "words; use words of the training set"
                )

        embeddings = []
        for start in range(0, len(texts), CAPTIONS_PER_BATCH):
            batch = texts[start : start + CAPTIONS_PER_BATCH]
            if network:
                numbers = network(batch)  # (B, F)
                lengths = torch.ones(len(batch)).long()  # (B,)
            else:
                index = np.arange(start, start + len(batch))
                numbers, lengths = tokens.batch(index)  # (B, T), (B,)
            numbers = numbers.to(self.device)
            embeddings.append(self.model.embed_captions(numbers, lengths))
        return Embedding.cat(embeddings)

    @torch.no_grad()
    def images(self, rows) -> Embedding:
        """Embed features (B, F), regions (B, P, F) or photos (B, 3, H, W): (B, D).

        Regions of zeros alone are padding.
        """
        if not torch.is_tensor(rows):
            rows = np.asarray(rows)
        rows = torch.as_tensor(rows).float()
        rows = move_padding(rows)
        return self.model.embed_images(rows.to(self.device), count_regions(rows))


# ---- resuming


def resumed_options(p: argparse.ArgumentParser, given: Options, argv: list[str]) -> Options:
    """Merge the options of a resumed run's checkpoint with new ones in `argv`.

    p: the parser of both; given: the options of `argv`, in which `resume` or `logger_name` is the
    run's folder. Both become this folder. Raises InputError where an option may not change.
    """
    fill_options(given)  # its folder
    folder = given.resume or given.logger_name
    if os.path.basename(folder) == "checkpoint.pt":
        folder = os.path.dirname(folder) or "."
    if os.path.isfile(folder):
        raise InputError(
            f"--resume {folder} is a file, and a run continues from its "
            "checkpoint.pt; give its folder, or start a new run from these weights "
            "with --init_from"
        )

    # checkpoints of older versions hold options that are gone
    known = defaults(p)
    options = load_checkpoint(folder, "checkpoint.pt")["options"]
    stored = {}
    for name, value in options.items():
        if name in known and name not in NOT_STORED:
            stored[name] = value
    check_options(stored, p, os.path.join(folder, "checkpoint.pt"))

    p.set_defaults(**stored)
    opt = p.parse_args(argv, Options())
    opt.resume = folder
    opt.logger_name = folder
    resolve(opt)
    opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}

    for name, value in stored.items():
        new = getattr(opt, name)
        same = new in (value, "auto")  # auto: what the data need
        if name not in MAY_CHANGE and not same:
            raise InputError(
                f"--{name} {new} differs from the {value} of the run in {folder}; a "
                "resumed run keeps its options, so leave it out or start a new run "
                "with --init_from"
            )
    return opt
