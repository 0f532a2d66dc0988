"""Opens what is evaluated: trained models on a split, embeddings of any model, ready matrices of
scores.

Loading runs no code from a file: weights_only=True for checkpoints, allow_pickle=False for arrays.
"""
import difflib
import glob
import os
import zipfile
from typing import NamedTuple

import numpy as np
import torch

from checkpoints import Trained
from cli import InputError, check
from data import SQUARABLE, Photos, Split, check_extractors, named_splits, read_split
from evaluation import bank, volume
from evaluation.encode import encode
from evaluation.subjects import (
    Bank,
    Gallery,
    Items,
    Member,
    Subject,
    Variances,
    items_of_split,
    refuse_other_items,
    refuse_other_kind,
)
from files.reading import FAULTS, read_array, read_arrays
from files.writing import save_arrays
from losses import SIMILARITIES, Embedding, check_sides, cosine, formulas
from options import check_fits


class Where(NamedTuple):
    """Which items. None stands for the data that a run was trained on, and for what a file says of
    itself."""
    data_path: str | None = None
    data_name: str | None = None
    split: str | None = None          # None: test
    dev_images: int | None = None     # of dev, 0 all; None: as in the training
    text_only: bool = False           # whether images may be missing


class How(NamedTuple):
    """On what machine, in what portions. No result depends on it."""
    device: torch.device | str = "cpu"
    batch_size: int = 128             # images or captions that are encoded at once
    workers: int = 0                  # processes that read photos


class Models(NamedTuple):
    """Trained models; several are an ensemble."""
    paths: list[str]                  # run folders or checkpoint files
    sim: str | None = None            # the similarity, in place of their own
    vocab: str | None = None          # the vocabulary of original checkpoints


def newest_run(root: str = "runs") -> str:
    """The folder of the run whose best model is the newest. Raises InputError where there is no
    run."""
    paths = glob.glob(os.path.join(root, "**", "model_best.pt"), recursive=True)
    check(paths, f"no run is in {root}/; train one with train.py, or name a run folder with "
                 "--checkpoint")
    return os.path.dirname(max(paths, key=os.path.getmtime))


def beside_model(run: str, name: str) -> str:
    """The file `name` in a run folder, or beside a checkpoint file."""
    return os.path.join(run if os.path.isdir(run) else os.path.dirname(run), name)


# ---- trained models

class Run(NamedTuple):
    """A trained model and the split that it is evaluated on."""
    trained: Trained
    folder: tuple[str, str]                                 # data_path and data_name of the split
    split: Split

    @property
    def foreign(self) -> bool:
        """Whether the split is of a data set other than that of the training."""
        return self.folder[1] != self.trained.options.data_name

    @property
    def notes(self) -> list[str]:
        """For the reader of any result."""
        return [*self.trained.notes, *self.split.notes]

    def tokens(self):
        """The captions as the model reads them. Those of another data set may consist of unknown
        words alone."""
        return self.split.encode(self.trained.vocab, known=not self.foreign)

    def similarity(self, sim: str | None):
        return SIMILARITIES[sim] if sim else self.trained.similarity

    def encode(self, how: How, part: Gallery | None = None) -> tuple:
        """`encode` of the split, or of a part of it, by the model."""
        return encode(self.trained.to(how.device).model, self.split, self.tokens(),
                      self.trained.device, how.batch_size, how.workers, part)


def load_run(path: str, where: Where, first: Run | None = None, *, vocab: str | None = None) -> Run:
    """The model of a run on a split.

    first: the first run of an ensemble, whose split is shared; vocab: the vocabulary of an original
    checkpoint. Raises InputError where the model cannot take the data.
    """
    trained = Trained(path, vocab=vocab)
    mine = trained.options
    folder = where.data_path or mine.data_path, where.data_name or mine.data_name
    lead = first.trained.options if first else mine
    if first and not where.data_name and len({os.path.realpath(os.path.join(*f)) for f in (folder, first.folder)}) > 1:
        raise InputError(f"{path} was trained on {os.path.join(*folder)}, the first run on "
                         f"{os.path.join(*first.folder)}; an ensemble needs one split, so name "
                         "the data of both with --data_name")
    folder = first.folder if first else folder
    if first and mine.text_features == lead.text_features:
        split = first.split
    else:
        split = read_split(*folder, where.split or "test", text_only=where.text_only,
                           text_features=mine.text_features, dev_images=lead.dev_images
                           if where.dev_images is None else where.dev_images).require_sound()
        if first:
            refuse_other_items(*(items_of_split(of, folder[1]) for of in (split, first.split)))
    check_fits(mine, split.images, split.text, path)
    check_extractors(trained.extractors, split, mine.text_features, path)
    return Run(trained, folder, split)


def members_of(models: Models, where: Where, how: How, part=lambda split: None):
    """Yields (run, member) for every model: what it made of a split, or of part(split), a Gallery.
    Raises InputError as `open_run` does."""
    first = None
    for path in models.paths:
        run = load_run(path, where, first, vocab=models.vocab)
        first = first or run
        images, captions = run.encode(how, part(run.split))
        similarity = run.similarity(models.sim)
        if models.sim and images is not None:
            check_similarity(similarity, (images, captions), models.sim, path)
        yield run, Member(similarity, images, captions)


def check_similarity(similarity, sides, sim: str, path: str) -> None:
    """Raises InputError where a similarity cannot compare the embeddings of a model or a file."""
    try:
        check_sides(similarity, sim, *sides)
    except ValueError as error:
        raise InputError(f"{path} does not fit --sim {sim}: {error}") from error


def open_run(models: Models, where: Where, how: How, given: Variances | None = None) -> Subject:
    """Encodes a split by trained models. given: variances for their points (`volumes_of`). Raises
    InputError where a model cannot take the data, or the similarity its embeddings."""
    subject = None
    for k, (run, member) in enumerate(members_of(models, where, how)):
        split, trained, mine = run.split, run.trained, run.trained.options
        subject = subject or of_split(split, " + ".join(models.paths), run.folder)
        subject.notes += [note for note in run.notes if note not in subject.notes]
        if run.foreign and split.text is None:
            subject.unknown_words = split.unknown_words(trained.vocab)
        subject.seed = None if subject.members else mine.seed          # of an ensemble there is none
        subject.members.append(widened(member, given.sides[k]) if given else member)
        subject.weights.append(trained.weights)
        subject.similarity = models.sim or " + ".join(
            dict.fromkeys([*filter(None, [subject.similarity]), mine.sim]))
        subject.models.append(f"{trained.path}: {mine.sim}, image head {mine.image_head}, text "
                              f"head {mine.text_head}, epoch {trained.state['epoch']}, dev rsum "
                              f"{trained.state['best_rsum']:.1f}")
    if given:
        subject.variances = given
        subject.notes += given.notes
    return subject


def members_on(models: Models, where: Where, how: How, split: str,
               part=lambda split: None) -> Subject:
    """What models made of another split of the same data set, to fit on; or of a part of it, where
    caption_image is still that of the whole split."""
    runs, members = zip(*members_of(models, where._replace(split=split, text_only=False), how,
                                    part))
    return Subject(" + ".join(models.paths), "", runs[0].split.caption_image,
                   len(members[0].images.mean), list(members))


def whole(where: Where, subject: Subject) -> Where:
    """Where the other splits are that a subject is judged with: photos by name have none beside
    them, and take those of the run's own data set."""
    return where._replace(data_name=None) if named_splits(subject.folder) else where


def bank_of(subject: Subject, models: Models, where: Where, how: How, split: str,
            size: int) -> Bank:
    """The normalisation of a subject's scores by queries of a split. Its beta is chosen on the dev
    split of the same data set. Raises InputError where the subject has no images."""
    check(subject.has_images,
          f"--bank {split} normalises scores of images and captions, and {subject.name} has no images "
          "to score; leave --bank out, or give a split with features or photos")
    where = whole(where, subject)
    queries = members_on(models, where, how, split,
                         lambda s: bank.draw(s.caption_image, len(s.images), size)).members
    return bank.normalisation(subject.members, members_on(models, where, how, "dev"), queries,
                              split)


def refuse_gaussian(gaussian: bool, name: str) -> None:
    check(not gaussian, f"--variances volume gives variances to points, and {name} has variances of "
                        "its own; leave it out, or evaluate a point model")


def volumes_of(models: Models, where: Where, how: How) -> Variances:
    """Fit variances for the points of runs to captions of the training split of each one's own data
    set, and to its dev split. Raises InputError on a run with variances of its own."""
    fits, own = [], where._replace(data_name=None, split="train", text_only=False)
    for path in models.paths:
        run, one = load_run(path, own, vocab=models.vocab), models._replace(paths=[path])
        model, split = run.trained.model, run.split
        refuse_gaussian(model.image_tower.gaussian or model.text_tower.gaussian, path)
        drawn = bank.draw(split.caption_image, len(split.images), volume.BANK)
        captions = run.encode(how, Gallery(drawn.images[:0], drawn.captions))[1]
        dev = members_on(one, own, how, "dev")
        sides = volume.fit(run.similarity(models.sim), captions, split.caption_image[drawn.captions],
                           dev.members[0].captions, dev.caption_image)
        fits.append(Fit(path, sides, f"{run.folder[1]} train", *map(len, drawn)))
    return given_variances(fits)


class Fit(NamedTuple):
    """The variances of one model, and what they were fitted to."""
    name: str                         # of the model
    sides: tuple[volume.Volume, volume.Volume]              # of images and of captions
    fitted_on: str
    images: int
    captions: int


def given_variances(fits: list[Fit]) -> Variances:
    """The variances of all members, and what results.json says of them."""
    of_photo = [fit.sides[0].of_photo[:2] for fit in fits]
    notes = [f"{fit.name}: captions of one photo of dev lie no nearer to each other than to those "
             "of others, so that these variances say nothing of how many photos fit"
             for fit, (slope, _) in zip(fits, of_photo) if slope <= 0]
    report = {name: [getattr(fit, name) for fit in fits] for name in ("fitted_on", "images", "captions")}
    return Variances([fit.sides for fit in fits],
                     {"kind": "volume", "of_photo": of_photo, **report}, notes)


def widened(member: Member, sides: tuple[volume.Volume, volume.Volume]) -> Member:
    """A member whose points, of images where there are any, have the variances of both sides."""
    images, captions = (e and volume.widened(e, side)
                        for e, side in zip((member.images, member.captions), sides))
    return Member(member.similarity, images, captions)


def of_split(split: Split, name: str, folder: tuple[str, str]) -> Subject:
    """A subject of the items of a split that has no members yet. folder: (data_path, data_name)."""
    known = items_of_split(split, folder[1])
    return Subject(name, "", split.caption_image, len(split.images), items=known,
                   photos=split.images if isinstance(split.images, Photos) else split.photo_names,
                   data_name=folder[1], split=known.split, folder=os.path.join(*folder),
                   notes=list(split.notes))


# ---- embeddings of any model

# What a file of embeddings may hold, and what each array is.
ARRAYS = ("image_mean", "caption_mean", "image_log_var", "caption_log_var", "caption_image",
          "image_id", "caption_id", "image_name", "similarity", "effective_dim", "data_name",
          "split")


def export(path: str, subject: Subject) -> None:
    """Writes the embeddings of one model as an .npz: means, log-variances where there are any, the
    row of each caption's image, ids where they are known, the name of the similarity with what it
    learned, and the name of the split. Raises InputError where there are no images."""
    (similarity, images, captions), items = subject.members[0], subject.items
    check(images is not None, f"--export: {items.source} has no images beside it; export a split with "
                              "features or photos")
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean,
              "image_log_var": images.log_var, "caption_log_var": captions.log_var,
              "image_id": items.image_ids, "image_name": items.image_names,
              "caption_id": items.caption_ids,
              "effective_dim": similarity.k.item() if subject.similarity == "mls" else None,
              "caption_image": subject.caption_image, "similarity": subject.similarity,
              "data_name": subject.data_name, "split": subject.split}
    save_arrays(path, {name: x.cpu().numpy() if torch.is_tensor(x) else np.array(x)
                       for name, x in arrays.items() if x is not None})


def open_embeddings(path: str, where: Where, sim: str | None = None) -> Subject:
    """Embeddings of any model: the arrays that --export writes (the documents list them).

    Raises InputError on unknown arrays, on shapes and types that do not fit, on numbers that
    are not finite, and where the items are not those of the split that `where` names.
    """
    arrays = read_arrays(path, "write it with --export or np.savez")
    for name in arrays:
        near = "".join(f" (do you mean {x}?)" for x in difflib.get_close_matches(name, ARRAYS, 1, 0.5))
        check(name in ARRAYS, f"{path} has an array '{name[:40]}', which means nothing here{near}; it "
                              f"may hold {', '.join(ARRAYS)}")
    sides = [embedding_of(arrays, side, path) for side in ("image", "caption")]
    widths = [e.mean.shape[1] for e in sides]
    check(widths[0] == widths[1] > 0,
          f"{path} has image means of width {widths[0]} and caption means of width {widths[1]}; "
          "they live in one space, so the widths must be equal")
    name = sim or text_of(arrays, "similarity", path) or "cosine"
    similarity = named_similarity(name, arrays, path)
    check_similarity(similarity, sides, name, path)
    subject = described(path, where, len(sides[0].mean), len(sides[1].mean), arrays)
    if not sim and "similarity" not in arrays:
        unused = ", and its variances are not used" * any(e.log_var is not None for e in sides)
        subject.notes.append(f"{path} names no similarity: the cosine of the means is "
                             f"taken{unused} (--sim takes another)")
    subject.notes += lengths(path, sides, similarity is cosine)
    subject.similarity, subject.members = name, [Member(similarity, *sides)]
    return subject


def embedding_of(arrays: dict, side: str, path: str) -> Embedding:
    """The means and log-variances of one side, "image" or "caption", in float32. Raises InputError
    where their shapes or types do not fit, and on numbers that are not finite."""
    mean, log_var = arrays.get(f"{side}_mean"), arrays.get(f"{side}_log_var")
    fits = mean is not None and mean.ndim == 2 and mean.dtype.kind in "fiu"
    if fits and log_var is not None:
        fits = log_var.shape in (mean.shape, (len(mean), 1)) and log_var.dtype.kind in "fiu"
    shapes = ", ".join(f"{name} {x.shape} of {x.dtype}" for name, x in arrays.items()) or "nothing"
    check(fits, f"{path} needs {side}_mean of shape (items, D), and {side}_log_var, where given, of "
                f"the same shape or (items, 1), both numbers; it holds {shapes}")
    with np.errstate(over="ignore"):                        # which the next lines say in our words
        e = Embedding(*(None if x is None else torch.from_numpy(np.ascontiguousarray(x, np.float32))
                        for x in (mean, log_var)))
    for name, x in (("mean", e.mean), ("log_var", e.log_var)):
        check(x is None or torch.isfinite(x).all(),
              f"{path} holds NaN or infinity, or numbers beyond float32, in {side}_{name}; check the "
              "embeddings")
    return e


def give_volume(subject: Subject, where: Where, sim: str | None, train_file: str,
                dev_file: str | None, given: Variances | None = None) -> None:
    """Give the points of a file variances: those `given`, else as fitted to the training pairs of
    train_file and the pairs of dev_file (None: the same pairs). Raises InputError where the file has
    variances of its own, or the training pairs are the same items or of another model."""
    refuse_gaussian(subject.gaussian, subject.name)
    elsewhere = where._replace(data_name=None, split=None)
    train = open_embeddings(train_file, elsewhere, sim)
    refuse_other_kind(subject, train, "--variances_from", "give embeddings of training pairs")
    if given is None:
        similarity, _, captions = train.members[0]
        dev = open_embeddings(dev_file, elsewhere, sim) if dev_file else train
        sides = volume.fit(similarity, captions, train.caption_image, dev.members[0].captions,
                           dev.caption_image)
        given = given_variances([Fit(train.name, sides, train.name, train.n_images, len(captions.mean))])
    subject.variances = given
    subject.notes += given.notes
    subject.members = list(map(widened, subject.members, given.sides))


def text_of(arrays: dict, name: str, path: str) -> str:
    """A single text among arrays, empty where there is none. Raises InputError where the array is
    no single text."""
    value = arrays.get(name, np.array(""))
    check(value.size == 1 and value.dtype.kind in "US",
          f"{path}: {name} must hold one text, as np.array('...'), and has shape {value.shape} of "
          f"{value.dtype}; write it so, or leave it out")
    text = value.item()
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def lengths(path: str, sides: list[Embedding], normalised: bool) -> list[str]:
    """Notes on means that are all zeros. Raises InputError on means whose norms float32 cannot tell
    from zero or infinity. normalised: whether the similarity divides by the norms."""
    notes = []
    for side, e in zip(("image", "caption"), sides):
        largest = e.mean.abs().amax(1)                                              # (N,)
        least = 1e-6 if normalised else 0.0             # below, `losses.unit` does not divide
        odd = (largest > SQUARABLE[1]) | (largest > 0) & (e.mean.norm(dim=1) < least)
        if odd.any():
            k = int(odd.nonzero()[0])
            raise InputError(f"{path}: {side}_mean has values of at most {float(largest[k]):.0e} "
                             f"in row {k}, whose squares float32 cannot add up; scale all means "
                             "alike, to norms near 1")
        zeros = int((largest == 0).sum())
        if zeros:
            notes.append(f"{path}: {zeros:,} of {len(largest):,} {side} means are zeros and score "
                         "alike with everything")
    return notes


def named_similarity(name: str, arrays: dict, path: str):
    """The similarity of this name, with what it learned. Raises InputError where the file does not
    tell that."""
    learned = arrays.get("effective_dim")
    if name == "mls" and learned is not None and learned.ndim == 0 and learned.dtype.kind in "fiu" and learned > 0:
        return SIMILARITIES[name](float(learned))
    if name in formulas():
        return formulas()[name]
    lacks = ("and no number 'effective_dim' above 0, which it learned" if name == "mls" else
             "which cannot be computed from a file of embeddings")
    raise InputError(f"{path} has similarity '{name}', {lacks}; evaluate the run, or rank by "
                     f"another similarity with --sim, one of {', '.join(formulas())}")


# ---- scores

def open_scores(path: str, where: Where) -> Subject:
    """A ready matrix of scores (N, M), images x captions. It is mapped, not read whole. Raises
    InputError on other shapes and types."""
    scores = read_array(path, "write it with np.save, images x captions; embeddings go to "
                        "--embeddings")
    check(scores.ndim == 2 and scores.dtype.kind == "f",
          f"{path} holds {scores.dtype} of shape {scores.shape}; scores are floats, images x captions")
    # it names no items: their order is that of the split
    subject = described(path, where, *scores.shape, {})
    for what, lines in (("image", scores), ("caption", scores.T)):
        some = lines[np.linspace(0, len(lines) - 1, min(len(lines), 50)).astype(int)]
        with np.errstate(over="ignore"):                    # ranking finds infinity in our words
            rounded = some.astype(np.float32)
        lost = sum(len(np.unique(a)) - len(np.unique(b)) for a, b in zip(some, rounded))
        if lost:
            subject.notes.append(f"{path}: scores are ranked in float32, where {lost:,} of "
                                 f"{some.size:,} looked at are equal to another one of their "
                                 f"{what} that they differ from in the file; ties count against "
                                 "the model")
    subject.similarity, subject.scores = "scores", scores
    return subject


# ---- the items of a file

def described(path: str, where: Where, n: int, m: int, arrays: dict) -> Subject:
    """The items that a file of N images and M captions is about, as a subject without members.

    With a data_name they are those of the split, with which all that the file says is compared.
    Else they are what the file says, else M / N captions per image, in order. Raises InputError
    where the arrays have other shapes, or other items.
    """
    split, asked = text_of(arrays, "split", path), where.split or "test"
    split = {"val": "dev"}.get(split, split)
    check(not (where.split and split) or {"val": "dev"}.get(asked, asked) == split,
          f"--split {asked}: {path} says that it is of the split {split}; leave --split out, or "
          "give a file of the other")
    folder = where.data_path or "data", where.data_name or "."
    if where.data_name:
        data = read_split(*folder, asked, dev_images=where.dev_images or 0, text_only=True)
        there = len(data.images), len(data.captions)
        check(there == (n, m), f"{path} has {n} images and {m} captions, {where.data_name} {asked} "
                               f"has {there[0]} and {there[1]}; they must be the same items")
        mine = items_of(arrays, n, m, path, split, any_owner=True)
        subject = of_split(data, path, folder)
        subject.notes += refuse_other_items(mine, subject.items)
        return subject
    mine = items_of(arrays, n, m, path, split)
    subject = Subject(path, "", mine.owner, n, items=mine, photos=mine.image_names,
                      data_name=os.path.basename(path), split=split or where.split or "",
                      folder=os.path.join(*folder))
    without = n - len(np.unique(mine.owner))
    if without:
        subject.notes.append(f"{path}: {without:,} of {n:,} images have no caption and are no "
                             "queries, but in the gallery")
    if mine.assumed:
        subject.notes.append(f"{path} does not say whose caption each is: {m // n} per image, in "
                             "order, assumed (caption_image says it)")
    return subject


def items_of(arrays: dict, n: int, m: int, path: str, split: str,
             any_owner: bool = False) -> Items:
    """What a file of N images and M captions says of its items. any_owner: the split says whose
    captions they are, so the file need not. Raises InputError on arrays of other shapes or
    types."""
    assumed = "caption_image" not in arrays
    check(any_owner or not assumed or n and m % n == 0,
          f"{path} has {m} captions for {n} images and does not say whose they are; add "
          "caption_image, or name the split with --data_path, --data_name and --split")
    owner = np.arange(m) // max(1, m // max(1, n)) if assumed else arrays["caption_image"]
    check(owner.shape == (m,) and owner.dtype.kind in "iu" and m and 0 <= owner.min() and owner.max() < n,
          f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each "
          "one's image")
    known = {}
    for key, count, kinds, what in (("image_id", n, "iu", "whole numbers"), ("image_name", n, "U", "names"),
                                    ("caption_id", m, "iu", "whole numbers")):
        if key in arrays:
            x = arrays[key]
            check(x.shape == (count,) and x.dtype.kind in kinds,
                  f"{path}: {key} must hold {count} {what}, one for each, and has shape {x.shape} of "
                  f"{x.dtype}; leave it out or write it again")
            known[f"{key}s"] = x.tolist()
    return Items(path, owner.astype(np.int64), n, **known, split=split, assumed=assumed,
                          data_name=text_of(arrays, "data_name", path))


# ---- anything

def kind_of(path: str) -> str:
    """What a path holds: "embeddings", "scores" or a "run"."""
    if os.path.isfile(path):
        with open(path, "rb") as f:
            if f.read(6) == b"\x93NUMPY":
                return "scores"
        if holds_arrays_only(path):
            return "embeddings"
    ending = os.path.splitext(path)[1].lower()
    return {".npz": "embeddings", ".npy": "scores"}.get(ending, "run")


def holds_arrays_only(path: str) -> bool:
    """Whether a zip file is an .npz; a checkpoint is a zip file too."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except FAULTS:
        return False
