"""Opens what is evaluated: trained models, embeddings of any model, ready matrices of scores.

Loading runs no code from a file: weights_only=True for checkpoints, allow_pickle=False for arrays.
"""
import argparse
import difflib
import glob
import os
import zipfile
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

import metrics
from checkpoints import load_checkpoint, load_model, weights_of
from cli import InputError, torch_device
from data import Split, check_extractors, read_split
from evaluation import bank, items, variances
from evaluation.arrays import embedding_of, lengths, named_similarity, text_of
from evaluation.encoding import Activations, Opened, Widened, encode
from evaluation.phrases import validate_phrases
from evaluation.subjects import Bank, Gallery, Member, Subject, Variances, refuse_other_kind
from evaluation.variances import Fit
from files.reading import FAULTS, holds_arrays, read_array, read_arrays
from files.writing import output, save_arrays
from inputs import Photos, Tokens
from model import OF_VECTORS, JointEmbedding
from options.from_data import check_fits
from options.phrases import regions_of
from parallel import processes
from readers.phrases import PhraseSplit, refuse_phrases
from similarities import SIMILARITIES, Cosine
from text import Vocabulary


@torch.no_grad()
def validate(model: JointEmbedding, split: Split, tokens: Tokens, device, workers: int = 0) -> dict:
    """Recalls of one split as `metrics.retrieval` returns them. "hbr" is DMSM's harmonic mean of the best ranks of
    images, "alike" the mean cosine of two images and that of two captions, 1 where all are one point. Of phrases: as
    `validate_phrases`."""
    if isinstance(split, PhraseSplit):
        return validate_phrases(model, split, tokens, device)
    images, captions = encode(model, split, tokens, device, workers=workers)
    columns = model.similarity.columns(images, captions)
    i2t, t2i = metrics.ranks_by_blocks(columns, split.caption_image, len(images.mean))
    i2t = i2t[i2t >= 0]
    return {**metrics.both_directions(i2t, t2i), "hbr": metrics.best_rank_means(i2t)["hbr"],
            "alike": {side: metrics.mean_cosine(e.mean) for side, e in (("images", images), ("captions", captions))}}


def newest_run(root: str = "runs") -> str:
    """The folder of the run whose best model is the newest. Raises InputError where there is no run."""
    paths = glob.glob(os.path.join(root, "**", "model_best.pt"), recursive=True)
    if not paths:
        raise InputError(f"no run is in {root}/; train one with train.py, or name a run folder with --checkpoint")
    return os.path.dirname(max(paths, key=os.path.getmtime))


def output_file(asked: str | None, run: str, name: str, ours, inputs=()) -> str:
    """`asked`, else `name` in a run folder or beside a file. Raises InputError as `files.output` does; a run that does
    not exist is not tried."""
    path = asked or os.path.join(run if os.path.isdir(run) else os.path.dirname(run), name)
    return output(path, ours, inputs) if asked or os.path.exists(run) else path


class Run(NamedTuple):
    """A trained model, in eval mode and on the CPU, and the split that it is evaluated on."""
    model: JointEmbedding
    vocab: Vocabulary
    trained: argparse.Namespace                             # the options of its training
    state: dict                                             # epoch, best_rsum, ...
    folder: tuple[str, str]                                 # data_path and data_name of the split
    split: Split
    notes: list[str]                                        # for the reader of any result

    @property
    def foreign(self) -> bool:
        """Whether the split is of a data set other than that of the training."""
        return self.folder[1] != self.trained.data_name

    def tokens(self):
        """The captions as the model reads them. Those of another data set may consist of unknown words alone."""
        return self.split.encode(self.vocab, known=not self.foreign)


def load_run(path: str, opt, first: Run | None = None, *, vocab: str | None = None, dev_images: int | None = None,
             text_only: bool = False, phrases: bool = False) -> Run:
    """The model of a run, and the split that `opt` names, else its own.

    `first` is the first run of an ensemble, whose split is shared. vocab: the vocabulary of an original checkpoint;
    dev_images: as in evaluate.py; text_only: images may be missing; phrases: the run is on phrases. Raises InputError
    where the model cannot take the data.
    """
    stored = load_checkpoint(path, vocab=vocab)
    processes.same(stored["state"], f"{path} changed while the processes read it; call the command again")
    model, words, trained = load_model(stored, path, phrases)
    folder = opt.data_path or trained.data_path, opt.data_name or trained.data_name
    lead = first.trained if first else trained
    if first and not opt.data_name and len({os.path.realpath(os.path.join(*f)) for f in (folder, first.folder)}) > 1:
        raise InputError(f"{path} was trained on {os.path.join(*folder)}, the first run on "
                         f"{os.path.join(*first.folder)}; an ensemble needs one split, so name the data of both with "
                         "--data_name")
    folder = first.folder if first else folder
    if first and trained.text_features == lead.text_features and regions_of(trained) == regions_of(lead):
        split = first.split
    else:
        split = read_split(*folder, opt.split or "test", text_only=text_only, text_features=trained.text_features,
                           dev_images=lead.dev_images if dev_images is None else dev_images,
                           regions=regions_of(trained, getattr(opt, "regions", None))).require_sound()
        of = partial(items.of_split, data_name=folder[1])
        if first and not items.order_like(of(split), of(first.split)).same:
            raise InputError(f"{split.source} stands in another order than {first.split.source}; an ensemble needs one "
                             "split")
    refuse_phrases(split if not phrases else None, path)
    check_fits(trained, split, path)
    check_extractors(stored["data"].get("extractors") if "data" in stored else None, split, trained.text_features, path)
    return Run(model, words, trained, stored["state"], folder, split, [*stored.get("notes", ()), *split.notes])


COUNTS = {1: "one", 5: "five"}
# What a file of embeddings may hold, and what each array is.
ARRAYS = ("image_mean", "caption_mean", "image_log_var", "caption_log_var", "caption_image", "image_id", "caption_id",
          "image_name", "similarity", "effective_dim", "data_name", "split")
is_embeddings = holds_arrays("image_mean", "caption_mean", "caption_image", "similarity", optional=ARRAYS)


def export(path: str, name: str, member: Member, split: Split, data_name: str) -> None:
    """Writes an .npz of means, log-variances where there are any, the row of each caption's image, ids where they are
    known, the name of the similarity with what it learned, and the name of the split."""
    similarity, images, captions = member
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean, "image_log_var": images.log_var,
              "caption_log_var": captions.log_var}
    arrays = {name: value.cpu().numpy() for name, value in arrays.items() if value is not None}
    known = items.of_split(split, data_name)
    for key in ("image_id", "image_name", "caption_id"):
        ids = getattr(known, f"{key}s")
        if ids is not None:
            arrays[key] = np.array(ids)
    if name == "mls":
        arrays["effective_dim"] = np.array(similarity.k.item())
    arrays.update(caption_image=split.caption_image, similarity=np.array(name), data_name=np.array(data_name),
                  split=np.array(known.split))
    save_arrays(path, arrays)


def open_run(paths: list[str], opt, given: Variances | None = None) -> Subject:
    """Encodes a split by the models of run folders or checkpoint files; several are an ensemble.

    Prints a line per model, and writes the embeddings with --export. given: the variances of --variances where they
    were fitted already. Raises InputError where a model cannot take the data, or --sim its embeddings.
    """
    subject = None
    if opt.bank:
        bank.check_splits(opt.bank, opt.split or "test")
    if opt.variances and not given:
        given = variances_of(paths, opt)
    for path, (run, member) in zip(paths, members_of(paths, opt, given=given)):
        split, trained = run.split, run.trained
        subject = subject or of_split(split, " + ".join(paths), run.folder)
        subject.notes += [note for note in run.notes if note not in subject.notes]
        if run.foreign and split.text is None:
            subject.unknown_words = split.unknown_words(run.vocab)
        subject.members.append(member)
        subject.weights.append(weights_of(run.model))
        subject.similarity = opt.sim or " + ".join(dict.fromkeys([*filter(None, [subject.similarity]), trained.sim]))
        print(f"{path}: {trained.sim}, image head {trained.image_head}, text head {trained.text_head}, epoch "
              f"{run.state['epoch']}, dev rsum {run.state['best_rsum']:.1f}")
    if given:
        subject.variances = given
        subject.notes += given.notes
    if opt.bank:
        subject.bank = bank_of(subject, paths, opt)
    if opt.export:
        if member.images is None:
            raise InputError(f"--export: {subject.source} has no images beside it; export a split with features or "
                             "photos")
        export(opt.export, subject.similarity, member, split, subject.data_name)
        note = (f": means{' and log-variances' if subject.gaussian else ''} only, from which its similarity "
                f"'{subject.similarity}' cannot be recomputed") * (subject.similarity not in OF_VECTORS)
        print(f"embeddings in {opt.export}{note}")
    return subject


def runs_of(paths: list[str], opt):
    """Yields the run of every path, on the split that `opt` names. Raises InputError as `load_run` does."""
    first = None
    for path in paths:
        run = load_run(path, opt, first, vocab=opt.vocab, dev_images=opt.dev_images, text_only=opt.cxc)
        first = first or run
        yield run


def encode_run(run: Run, opt, part: Gallery | None = None, view=None) -> tuple:
    """`encode` of a run's split, or of a part of it, by its model or by a view of it (`encoding`)."""
    device = torch_device(opt.device)
    run.model.to(device)
    return encode(view or run.model, run.split, run.tokens(), device, opt.batch_size, opt.workers, part)


def similarity_of(run: Run, opt):
    """What compares the embeddings of a run: that of --sim, else its own."""
    return SIMILARITIES[opt.sim]() if opt.sim else run.model.similarity


def members_of(paths: list[str], opt, part=lambda split: None, given: Variances | None = None):
    """Yields (run, member) for every path: what the model made of the split that `opt` names, or of part(split), a
    Gallery; with the variances `given`. Raises InputError as `open_run` does."""
    for k, (path, run) in enumerate(zip(paths, runs_of(paths, opt))):
        images, captions = encode_run(run, opt, part(run.split), given and Widened(run.model, given.sides[k]))
        similarity = similarity_of(run, opt)
        if opt.sim and images is not None:
            try:
                similarity.check(images, captions)
            except ValueError as error:
                raise InputError(f"{path} does not fit --sim {opt.sim}: {error}") from error
        yield run, Member(similarity, images, captions)


def with_options(opt, others: dict) -> argparse.Namespace:
    """The options with other values of some."""
    return argparse.Namespace(**{**vars(opt), **others})


def bank_of(subject: Subject, paths: list[str], opt) -> Bank:
    """The normalisation of a subject's scores by queries of the split --bank. Its beta is chosen on the dev split of
    the same data set. Raises InputError where the subject has no images."""
    if not subject.has_images:
        raise InputError(f"--bank {opt.bank} normalises scores of images and captions, and {subject.name} has no "
                         "images to score; leave --bank out, or give a split with features or photos")
    queries = members_on(paths, opt, opt.bank, lambda split: bank.draw(split.caption_image, len(split.images),
                                                                       opt.bank_size)).members
    return bank.normalisation(subject.members, members_on(paths, opt, "dev"), queries, opt.bank, opt.block)


def members_on(paths: list[str], opt, split: str, part=lambda split: None) -> Subject:
    """What models made of another split of the same data set, to fit on; or of a part of it, where caption_image is
    still that of the whole split."""
    runs, members = zip(*members_of(paths, with_options(opt, {"split": split, "cxc": False}), part))
    return Subject(" + ".join(paths), "", runs[0].split.caption_image, len(members[0].images.mean), list(members))


def variances_of(paths: list[str], opt) -> Variances:
    """The variances of --variances for the points of runs, fitted to items of the training split of each one's own data
    set, drawn as a bank is. Raises InputError on a run with variances of its own, and where Laplace's approximation
    does not fit its similarity."""
    fits = []
    for path in paths:
        own = with_options(opt, {"data_name": None, "cxc": False, "split": "train"})
        run = next(runs_of([path], own))
        model, similarity, owner = run.model, similarity_of(run, opt), run.split.caption_image
        variances.refuse_gaussian(model.image_tower.gaussian or model.text_tower.gaussian, path, opt.variances)
        drawn, scale = bank.draw(owner, len(run.split.images)), None
        if opt.variances == "knn":
            sides = variances.fit_knn(similarity, *encode_run(run, opt, drawn), opt.neighbours)
        else:
            variances.refuse_no_cosine(similarity, path)
            scale = variances.scale_of(model.objective) or variances.fitted_scale(members_on([path], own, "dev"))
            (drawn, owner), opened = variances.pairs(drawn, owner), Opened(model)
            both = encode_run(run, opt, drawn, opened)
            opened.layers = processes.from_first(dict, opened.layers)
            sides = variances.fit_laplace(*both, owner, scale, opened.layers, opened.weights())
        fits.append(Fit(path, sides, f"{run.folder[1]} train", *map(len, drawn), scale))
    return variances.gathered(opt.variances, fits)


def variances_from(train: Subject, opt) -> Variances:
    """The same for embeddings, fitted to those of training pairs. The softmax of Laplace's approximation has the
    temperature of --calibration, where that is given, else of these pairs."""
    similarity, *both = train.members[0]
    drawn, owner, scale = bank.draw(train.caption_image, train.n_images), train.caption_image, None
    if opt.variances == "laplace":
        variances.refuse_no_cosine(similarity, train.name)
        scale = variances.fitted_scale(open_embeddings(opt.calibration, plain(opt)) if opt.calibration else train)
        drawn, owner = variances.pairs(drawn, owner)
    images, captions = (e.rows(torch.from_numpy(rows)) for e, rows in zip(both, drawn))
    if opt.variances == "knn":
        sides = variances.fit_knn(similarity, images, captions, opt.neighbours)
    else:
        sides = variances.fit_laplace(*(Activations(e.mean, e.mean) for e in (images, captions)), owner, scale, {}, {})
    return variances.gathered(opt.variances, [Fit(train.name, sides, train.name, *map(len, drawn), scale)])


def of_split(split: Split, name: str, folder: tuple[str, str]) -> Subject:
    """A subject of the items of a split that has no members yet. folder: (data_path, data_name)."""
    known = items.of_split(split, folder[1])
    return Subject(name, "", split.caption_image, len(split.images), items=known,
                   photos=split.images if isinstance(split.images, Photos) else split.photo_names,
                   data_name=folder[1], split=known.split, folder=os.path.join(*folder), notes=list(split.notes))


def open_embeddings(path: str, opt, given: Variances | None = None) -> Subject:
    """Embeddings of any model: the arrays that --export writes (the documents list them).

    given: as of `open_run`. Raises InputError on unknown arrays, on shapes and types that do not fit, on numbers that
    are not finite, and where the items are not those of the split that the options name.
    """
    arrays = read_arrays(path, "write it with --export or np.savez")
    unknown = next((name for name in arrays if name not in ARRAYS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, ARRAYS, 1, 0.5)
        raise InputError(f"{path} has an array '{unknown[:40]}', which means nothing here"
                         f"{f' (do you mean {near[0]}?)' if near else ''}; it may hold {', '.join(ARRAYS)}")
    sides = [embedding_of(arrays, side, path) for side in ("image", "caption")]
    widths = [e.mean.shape[1] for e in sides]
    if widths[0] != widths[1] or not widths[0]:
        raise InputError(f"{path} has image means of width {widths[0]} and caption means of width {widths[1]}; they "
                         "live in one space, so the widths must be equal")
    name = opt.sim or text_of(arrays, "similarity", path) or "cosine"
    similarity = named_similarity(name, arrays, path)
    try:
        similarity.check(*sides)
    except ValueError as error:
        raise InputError(f"{path} does not fit --sim {name}: {error}") from error
    subject, order = described(path, opt, len(sides[0].mean), len(sides[1].mean), arrays)
    if not opt.sim and "similarity" not in arrays:
        unused = ", and its variances are not used" if any(e.log_var is not None for e in sides) else ""
        subject.notes.append(f"{path} names no similarity: the cosine of the means is taken{unused} (--sim takes "
                             "another)")
    subject.notes += lengths(path, sides, isinstance(similarity, Cosine))
    subject.similarity, subject.members = name, [Member(similarity, *sides)]
    subject.take(order)
    if opt.variances:
        give_variances(subject, opt, given)
    return subject


def plain(opt) -> argparse.Namespace:
    """The options as of another file, whose items are of another split."""
    return with_options(opt, {"data_name": None, "split": None, "variances": None})


def give_variances(subject: Subject, opt, given: Variances | None) -> None:
    """Gives the points of a file the variances of --variances, or those `given`. Raises InputError where the file has
    variances of its own, or --variances_from is of the same items or of another model."""
    variances.refuse_gaussian(subject.gaussian, subject.name, opt.variances)
    train = open_embeddings(opt.variances_from, plain(opt))
    refuse_other_kind(subject, train, "--variances_from", "give embeddings of training pairs")
    subject.variances = given = given or variances_from(train, opt)
    subject.notes += given.notes
    subject.members = [Member(m.similarity, *map(variances.widened, (m.images, m.captions), sides))
                       for m, sides in zip(subject.members, given.sides)]


def open_scores(path: str, opt) -> Subject:
    """A ready matrix of scores (N, M), images x captions. It is mapped, not read whole. Raises InputError on other
    shapes and types."""
    scores = read_array(path, "write it with np.save, images x captions; embeddings go to --embeddings")
    if scores.ndim != 2 or scores.dtype.kind != "f":
        raise InputError(f"{path} holds {scores.dtype} of shape {scores.shape}; scores are floats, images x captions")
    subject, _ = described(path, opt, *scores.shape, {})    # it names no items: their order is that of the split
    for what, lines in (("image", scores), ("caption", scores.T)):
        some = lines[np.linspace(0, len(lines) - 1, min(len(lines), 50)).astype(int)]
        with np.errstate(over="ignore"):                    # ranking finds infinity in our words
            rounded = some.astype(np.float32)
        lost = sum(len(np.unique(a)) - len(np.unique(b)) for a, b in zip(some, rounded))
        if lost:
            subject.notes.append(f"{path}: scores are ranked in float32, where {lost:,} of {some.size:,} looked at are "
                                 f"equal to another one of their {what} that they differ from in the file; ties count "
                                 "against the model")
    subject.similarity, subject.scores = "scores", scores
    return subject


def described(path: str, opt, n: int, m: int, arrays: dict) -> tuple[Subject, items.Order]:
    """The items that a file of N images and M captions is about, as a subject without members, and the rows that put
    the file's arrays in their order.

    With --data_name they are those of the split, with which all that the file says is compared. Else they are what the
    file says, else M / N captions per image, in order. Raises InputError where the arrays have other shapes, or other
    items.
    """
    if opt.bank:
        raise InputError(f"--bank {opt.bank} needs a model that embeds the bank, and {path} is of the items of one "
                         "split; leave --bank out, or evaluate a trained run with --checkpoint")
    stored = text_of(arrays, "split", path)
    name = {"val": "dev"}.get(stored, stored)
    if opt.split and name and {"val": "dev"}.get(opt.split, opt.split) != name:
        raise InputError(f"--split {opt.split}: {path} says that it is of the split {name}; leave --split out, or give "
                         "a file of the other")
    split, folder = None, (opt.data_path or "data", opt.data_name)
    if opt.data_name:
        split = read_split(*folder, opt.split or "test", dev_images=opt.dev_images or 0, text_only=True)
        if (len(split.images), len(split.captions)) != (n, m):
            raise InputError(f"{path} has {n} images and {m} captions, {opt.data_name} {opt.split or 'test'} has "
                             f"{len(split.images)} and {len(split.captions)}; they must be the same items")
    mine = items_of(arrays, n, m, path, name, any_owner=split is not None)
    if split:
        order = items.order_like(mine, items.of_split(split, opt.data_name))
        subject = of_split(split, path, folder)
        subject.notes += order.notes
        return subject, order
    subject = Subject(path, "", mine.owner, n, items=mine, photos=mine.image_names, data_name=os.path.basename(path),
                      split=mine.split or opt.split or "", folder=os.path.join(opt.data_path or "data", "."))
    without = n - len(np.unique(mine.owner))
    if without:
        subject.notes.append(f"{path}: {without:,} of {n:,} images have no caption and are no queries, but in the "
                             "gallery")
    if mine.assumed:
        subject.notes.append(f"{path} does not say whose caption each is: {COUNTS.get(m // n, m // n)} "
                             f"caption{'s' * (m != n)} per image, in order, assumed (caption_image says it)")
    return subject, items.Order(np.arange(n), np.arange(m), [])


def items_of(arrays: dict, n: int, m: int, path: str, split: str, any_owner: bool) -> items.Items:
    """What a file of N images and M captions says of its items. any_owner: the split says whose captions they are, so
    the file need not. Raises InputError on arrays of other shapes or types."""
    says_whose = "caption_image" in arrays
    if not says_whose and not any_owner and (not n or m % n):
        raise InputError(f"{path} has {m} captions for {n} images and does not say whose they are; add caption_image, "
                         "or name the split with --data_path, --data_name and --split")
    owner = arrays["caption_image"] if says_whose else np.arange(m) // max(1, m // max(1, n))
    if owner.shape != (m,) or owner.dtype.kind not in "iu" or not m or not (0 <= owner.min() and owner.max() < n):
        raise InputError(f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each one's "
                         "image")
    for key, count in (("image_id", n), ("caption_id", m), ("image_name", n)):
        kinds = "U" if key == "image_name" else "iu"
        if key in arrays and (arrays[key].shape != (count,) or arrays[key].dtype.kind not in kinds):
            raise InputError(f"{path}: {key} must hold {count} {'names' if key == 'image_name' else 'whole numbers'}, "
                             f"one for each, and has shape {arrays[key].shape} of {arrays[key].dtype}; leave it out or "
                             "write it again")
    image_ids, image_names, caption_ids = (None if arrays.get(key) is None else arrays[key].tolist()
                                           for key in ("image_id", "image_name", "caption_id"))
    return items.Items(path, owner.astype(np.int64), n, image_ids, image_names, caption_ids, None,
                       text_of(arrays, "data_name", path), split, assumed=not says_whose)


def open_subject(path: str, opt) -> Subject:
    """Opens a path by what it holds: embeddings (.npz), scores (.npy), else a run."""
    kind = None
    if os.path.isfile(path):
        with open(path, "rb") as f:
            start = f.read(6)
        if start == b"\x93NUMPY":
            kind = ".npy"
        elif start[:2] == b"PK" and holds_arrays_only(path):
            kind = ".npz"
    kind = kind or os.path.splitext(path)[1].lower()
    if kind == ".npz":
        return open_embeddings(path, opt)
    return open_scores(path, opt) if kind == ".npy" else open_run([path], opt)


def holds_arrays_only(path: str) -> bool:
    """Whether a zip file is an .npz; a checkpoint is a zip file too."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except FAULTS:
        return False
