"""Where what is evaluated comes from: trained models, embeddings of any origin, ready score matrices.

Loading runs no code from a file: weights_only=True for checkpoints, allow_pickle=False for arrays.
"""
import argparse
import difflib
import glob
import os
import zipfile
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

import metrics
from cli import InputError, torch_device
from data import Split, check_extractors, image_batches, read_split
from evaluation import items
from evaluation.protocols import Subject
from files import FAULTS, holds_arrays, output, read_array, read_arrays, save_arrays
from inputs import SQUARABLE, NoImages, Photos, Tokens
from model import JointEmbedding
from runs import load_checkpoint, load_model
from similarities import SIMILARITIES, Cosine, Embedding
from vocab import Vocabulary


@torch.no_grad()
def encode(model: JointEmbedding, split: Split, tokens: Tokens | None, device, batch_size: int = 128,
           workers: int = 0) -> tuple[Embedding | None, Embedding | None]:
    """Embeddings of all images (N, D) and all captions (M, D) of a split, in their order; the model in eval mode.

    None in place of images that are not at hand, and of captions without `tokens`.
    """
    text_only, sizes = isinstance(split.images, NoImages), () if tokens is None else tokens.length
    total = len(sizes) + (0 if text_only else len(split.images))
    with tqdm(total=total, desc=f"encode {split.name}", disable=None, leave=False) as bar:
        images = []
        for batch in () if text_only else image_batches(split.images, batch_size, workers):
            images.append(model.embed_images(batch.to(device)))
            bar.update(len(batch))
        order, captions = np.argsort(sizes, kind="stable"), []                       # similar lengths: little padding
        for k in range(0, len(order), batch_size):
            numbers, lengths = tokens.batch(order[k:k + batch_size])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))
    return _join(images, np.arange(len(split.images))) if images else None, _join(captions, order) if captions else None


def _join(batches: list[Embedding], order: np.ndarray) -> Embedding:
    """Batches that hold items order[0], order[1], ... as one, item k in row k; parts are zero-padded to the most there are."""
    places, fields = torch.from_numpy(order).split([len(e.mean) for e in batches]), []
    for values in zip(*batches):
        if values[0] is None:
            fields.append(None)
            continue
        sizes = map(max, zip(*(x.shape[1:] for x in values)))
        fields.append(values[0].new_zeros(len(order), *sizes))
        for place, x in zip(places, values):                                        # (b, D) | (b, P, D) | (b,)
            (fields[-1][:, :x.shape[1]] if x.ndim == 3 else fields[-1])[place.to(x.device)] = x
    return Embedding(*fields)


@torch.no_grad()
def validate(model: JointEmbedding, split: Split, tokens: Tokens, device, workers: int = 0) -> dict:
    """Recalls of one split as `metrics.retrieval` gives them; "hbr", DMSM's best rank of the images; and "alike", the mean
    cosines of two images and of two captions, 1 where a side is one point."""
    images, captions = encode(model, split, tokens, device, workers=workers)
    i2t, t2i = metrics.ranks(model.similarity.tiles(images, captions), split.caption_image, len(images.mean))
    i2t = i2t[i2t >= 0]
    return {**metrics.both_directions(i2t, t2i), "hbr": metrics.best_rank_means(i2t)["hbr"],
            "alike": {side: metrics.mean_cosine(e.mean) for side, e in (("images", images), ("captions", captions))}}


def newest_run(root: str = "runs") -> str:
    found = glob.glob(os.path.join(root, "**", "model_best.pt"), recursive=True)
    if not found:
        raise InputError(f"no run is in {root}/; train one with train.py, or name a run folder with --checkpoint")
    return os.path.dirname(max(found, key=os.path.getmtime))


def output_file(given: str | None, run: str, name: str, ours, inputs=()) -> str:
    """`given`, else `name` in a run folder or beside a file, as `files.output` has it; what cannot be there is not tried."""
    path = given or os.path.join(run if os.path.isdir(run) else os.path.dirname(run), name)
    return output(path, ours, inputs) if given or os.path.exists(run) else path


def check_fits(opt: argparse.Namespace, split: Split, path: str) -> None:
    """Refuse images and features of captions that the model of `path` cannot take."""
    images, text = split.images, split.text
    if text is not None and text.dim != opt.txt_dim:
        raise InputError(f"{text.path} has features of width {text.dim}, {path} was trained on width {opt.txt_dim}; use "
                         "features of the same vectors")
    if isinstance(images, NoImages):
        return
    needed = "cnn" if isinstance(images, Photos) else "precomp"
    photos = opt.img_enc == "cnn" or (opt.img_enc == "pie" and opt.img_dim is None)
    if photos != (needed == "cnn"):
        kind = {"cnn": "photos", "precomp": "precomputed features", "vsrn": "region features", "pie": "region features",
                "scan": "region features"}
        raise InputError(f"{path} was trained on {kind['cnn' if photos else opt.img_enc]} and the data are {kind[needed]}; "
                         "name data of the same kind with --data_name")
    if opt.img_enc in ("vsrn", "pie", "scan") and not photos and images.array.ndim != 3:
        raise InputError(f"{path} reasons over regions and {images.path} holds one vector an image; give features of shape "
                         "(images, regions, F)")
    if needed == "precomp" and images.dim != opt.img_dim:
        raise InputError(f"{images.path} has features of width {images.dim}, {path} was trained on width {opt.img_dim}; use "
                         "features of the same extractor")
    if opt.n_regions != images.regions and (opt.n_regions or opt.img_enc == "precomp"):
        raise InputError(f"{images.path} has {images.regions or 'no'} regions an image, {path} was trained on "
                         f"{opt.n_regions or 'one vector an image'}; use features of the same extractor")


class Run(NamedTuple):
    """A trained model, in eval mode on the CPU, and the split that it is shown."""
    model: JointEmbedding
    vocab: Vocabulary
    trained: argparse.Namespace                             # the options of its training
    state: dict                                             # epoch, best_rsum, ...
    folder: tuple[str, str]                                 # data_path and data_name of the split
    split: Split
    notes: list[str]                                        # for the reader of any result

    @property
    def foreign(self) -> bool:
        return self.folder[1] != self.trained.data_name

    def tokens(self):
        """The captions as the model reads them; those of another data set may well be of unknown words."""
        return self.split.encode(self.vocab, known=not self.foreign)


def load_run(path: str, opt, first: Run | None = None, *, vocab: str | None = None, dev_images: int | None = None,
             text_only: bool = False) -> Run:
    """The model of a run and the split that `opt` names, else its own; `first`: whose split and scores it shares.

    Raises InputError where the model cannot take the data.
    """
    stored = load_checkpoint(path, vocab=vocab)
    model, words, trained = load_model(stored, path)
    folder, lead = (opt.data_path or trained.data_path, opt.data_name or trained.data_name), first.trained if first else trained
    if first and not opt.data_name and len({os.path.realpath(os.path.join(*f)) for f in (folder, first.folder)}) > 1:
        raise InputError(f"{path} was trained on {os.path.join(*folder)}, the first run on {os.path.join(*first.folder)}; an "
                         "ensemble needs one split, so name the data of both with --data_name")
    folder = first.folder if first else folder
    if first and trained.text_features == lead.text_features:
        split = first.split
    else:
        split = read_split(*folder, opt.split or "test", text_only=text_only, text_features=trained.text_features,
                           dev_images=lead.dev_images if dev_images is None else dev_images).require_sound()
        if first and not items.order_like(items.of_split(split, folder[1]), items.of_split(first.split, folder[1])).same:
            raise InputError(f"{split.source} stands in another order than {first.split.source}; an ensemble needs one split")
    check_fits(trained, split, path)
    check_extractors(stored["data"].get("extractors") if "data" in stored else None, split, trained.text_features, path)
    return Run(model, words, trained, stored["state"], folder, split, [*stored.get("notes", ()), *split.notes])


# What a file of embeddings may hold, and what each array is.
ARRAYS = ("image_mean", "caption_mean", "image_log_var", "caption_log_var", "caption_image", "image_id", "caption_id",
          "image_name", "similarity", "data_name", "split")
is_embeddings = holds_arrays("image_mean", "caption_mean", "caption_image", "similarity", optional=ARRAYS)


def export(path: str, similarity: str, images: Embedding, captions: Embedding, split: Split, data_name: str) -> None:
    """Means, log-variances where there are any, whose caption each is, ids where known, and of which split, as .npz."""
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean, "image_log_var": images.log_var,
              "caption_log_var": captions.log_var}
    arrays = {name: value.cpu().numpy() for name, value in arrays.items() if value is not None}
    whose = items.of_split(split, data_name)
    for name, ids in (("image_id", whose.image_ids), ("image_name", whose.image_names), ("caption_id", whose.caption_ids)):
        if ids is not None:
            arrays[name] = np.array(ids)
    arrays.update(caption_image=split.caption_image, similarity=np.array(similarity), data_name=np.array(data_name),
                  split=np.array(whose.split))
    save_arrays(path, arrays)


def open_run(paths: list[str], opt) -> Subject:
    """Encode a split by the models of run folders or checkpoint files; several are an ensemble."""
    device, subject, first = torch_device(opt.device), None, None
    for path in paths:
        run = load_run(path, opt, first, vocab=opt.vocab, dev_images=opt.dev_images, text_only=opt.cxc)
        first, split, trained = first or run, run.split, run.trained
        subject = subject or of_split(split, " + ".join(paths), run.folder)
        subject.notes += [note for note in run.notes if note not in subject.notes]
        if run.foreign and split.text is None:
            subject.unknown_words = split.unknown_words(run.vocab)
        images, captions = encode(run.model.to(device), split, run.tokens(), device, opt.batch_size, opt.workers)
        similarity = SIMILARITIES[opt.sim]() if opt.sim else run.model.similarity
        if opt.sim and images is not None:
            try:
                similarity.check(images, captions)
            except ValueError as error:
                raise InputError(f"{path} does not fit --sim {opt.sim}: {error}") from error
        subject.members.append((similarity, images, captions))
        subject.similarity = opt.sim or " + ".join(dict.fromkeys([*filter(None, [subject.similarity]), trained.sim]))
        print(f"{path}: {trained.sim}, image head {trained.image_head}, text head {trained.text_head}, epoch "
              f"{run.state['epoch']}, dev rsum {run.state['best_rsum']:.1f}")
    if opt.export:
        if images is None:
            raise InputError(f"--export: {subject.source} has no images beside it; export a split with features or photos")
        export(opt.export, subject.similarity, images, captions, split, subject.data_name)
        held = f"means{' and log-variances' if subject.gaussian else ''} only"
        print(f"embeddings in {opt.export}" + ("" if subject.similarity in SIMILARITIES else
              f": {held}, from which its similarity '{subject.similarity}' cannot be recomputed"))
    return subject


def of_split(split: Split, name: str, folder: tuple[str, str]) -> Subject:
    whose = items.of_split(split, folder[1])
    return Subject(name, "", split.caption_image, len(split.images), items=whose,
                   photos=split.images if isinstance(split.images, Photos) else split.photo_names,
                   data_name=folder[1], split=whose.split, folder=os.path.join(*folder), notes=list(split.notes))


def open_embeddings(path: str, opt) -> Subject:
    """Embeddings of any model: the arrays that --export writes (the README lists them)."""
    arrays = read_arrays(path, "write it with --export or np.savez")
    unknown = next((name for name in arrays if name not in ARRAYS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, ARRAYS, 1, 0.5)
        raise InputError(f"{path} has an array '{unknown[:40]}', which means nothing here"
                         f"{f' (do you mean {near[0]}?)' if near else ''}; it may hold {', '.join(ARRAYS)}")
    sides = []
    for side in ("image", "caption"):
        mean, log_var = arrays.get(f"{side}_mean"), arrays.get(f"{side}_log_var")
        if mean is None or mean.ndim != 2 or mean.dtype.kind not in "fiu" or (
                log_var is not None and (log_var.shape not in (mean.shape, (len(mean), 1)) or log_var.dtype.kind not in "fiu")):
            held = ", ".join(f"{name} {value.shape} of {value.dtype}" for name, value in arrays.items()) or "nothing"
            raise InputError(f"{path} needs {side}_mean of shape (items, D), and {side}_log_var, where given, of the same "
                             f"shape or (items, 1), both numbers; it holds {held}")
        with np.errstate(over="ignore"):                    # which the next lines say in our words
            sides.append(Embedding(*(None if x is None else torch.from_numpy(np.ascontiguousarray(x, np.float32))
                                     for x in (mean, log_var))))
        for name, x in ((f"{side}_mean", sides[-1].mean), (f"{side}_log_var", sides[-1].log_var)):
            if x is not None and not torch.isfinite(x).all():
                raise InputError(f"{path} holds NaN or infinity, or numbers beyond float32, in {name}; check the embeddings")
    widths = [e.mean.shape[1] for e in sides]
    if widths[0] != widths[1] or not widths[0]:
        raise InputError(f"{path} has image means of width {widths[0]} and caption means of width {widths[1]}; they live in "
                         "one space, so the widths must be equal")
    name = opt.sim or text_of(arrays, "similarity", path) or "cosine"
    if name not in SIMILARITIES:
        raise InputError(f"{path} has similarity '{name}', which cannot be computed from a file of embeddings; evaluate the "
                         f"run, or rank by another similarity with --sim, one of {', '.join(SIMILARITIES)}")
    similarity = SIMILARITIES[name]()
    try:
        similarity.check(*sides)
    except ValueError as error:
        raise InputError(f"{path} does not fit --sim {name}: {error}") from error
    subject, order = described(path, opt, len(sides[0].mean), len(sides[1].mean), arrays)
    if not opt.sim and "similarity" not in arrays:
        unused = ", and its variances are not used" if any(e.log_var is not None for e in sides) else ""
        subject.notes.append(f"{path} names no similarity: the cosine of the means is taken{unused} (--sim takes another)")
    subject.notes += lengths(path, sides, isinstance(similarity, Cosine))
    subject.similarity, subject.members = name, [(similarity, *sides)]
    subject.take(order)
    return subject


def text_of(arrays: dict, name: str, path: str) -> str:
    """A single text among arrays, empty where there is none."""
    value = arrays.get(name, np.array(""))
    if value.size != 1 or value.dtype.kind not in "US":
        raise InputError(f"{path}: {name} must hold one text, as np.array('...'), and has shape {value.shape} of "
                         f"{value.dtype}; write it so, or leave it out")
    text = value.reshape(-1)[0]
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def lengths(path: str, sides: list[Embedding], normalised: bool) -> list[str]:
    """Notes on means of zeros. Raises InputError on means whose norms float32 cannot tell."""
    notes = []
    for side, e in zip(("image", "caption"), sides):
        largest = e.mean.abs().amax(1)                                              # (N,)
        least = 1e-6 if normalised else 0.0                 # where `losses.unit` stops to divide
        odd = (largest > SQUARABLE[1]) | (largest > 0) & (e.mean.norm(dim=1) < least)
        if odd.any():
            k = int(odd.nonzero()[0])
            raise InputError(f"{path}: {side}_mean has values of at most {float(largest[k]):.0e} in row {k}, whose squares "
                             "float32 cannot add up; scale all means alike, to norms near 1")
        zeros = int((largest == 0).sum())
        if zeros:
            notes.append(f"{path}: {zeros:,} of {len(largest):,} {side} means are zeros and score alike with everything")
    return notes


def open_scores(path: str, opt) -> Subject:
    """A ready matrix of scores, images x captions, mapped and not read whole."""
    scores = read_array(path, "write it with np.save, images x captions; embeddings go to --embeddings")
    if scores.ndim != 2 or scores.dtype.kind != "f":
        raise InputError(f"{path} holds {scores.dtype} of shape {scores.shape}; scores are floats, images x captions")
    subject, _ = described(path, opt, *scores.shape, {})    # it names no items, so their order is the split's
    some = scores[np.linspace(0, len(scores) - 1, min(len(scores), 50)).astype(int)]
    with np.errstate(over="ignore"):                        # ranking finds infinity in our words
        rounded = some.astype(np.float32)
    lost = sum(len(np.unique(a)) - len(np.unique(b)) for a, b in zip(some, rounded)) if scores.dtype.itemsize > 4 else 0
    if lost:
        subject.notes.append(f"{path}: scores are ranked in float32, where {lost:,} of {some.size:,} looked at are equal to "
                             "another one of their image that they differ from in the file; ties count against the model")
    subject.similarity, subject.scores = "scores", scores
    return subject


def described(path: str, opt, n: int, m: int, arrays: dict) -> tuple[Subject, items.Order]:
    """Whose items a file is about, and the rows that put them in order: those of --data_name's split, with which whatever the
    file says is compared, else what the file says, else m / n captions an image."""
    split, told_split = None, {"val": "dev"}.get(text_of(arrays, "split", path), text_of(arrays, "split", path))
    if opt.split and told_split and {"val": "dev"}.get(opt.split, opt.split) != told_split:
        raise InputError(f"--split {opt.split}: {path} says that it is of the split {told_split}; leave --split out, or give a "
                         "file of the other")
    if opt.data_name:
        folder = opt.data_path or "data", opt.data_name
        split = read_split(*folder, opt.split or "test", dev_images=opt.dev_images or 0, text_only=True)
        if (len(split.images), len(split.captions)) != (n, m):
            raise InputError(f"{path} has {n} images and {m} captions, {opt.data_name} {opt.split or 'test'} has "
                             f"{len(split.images)} and {len(split.captions)}; they must be the same items")
    told = "caption_image" in arrays
    if not told and not split and (not n or m % n):
        raise InputError(f"{path} has {m} captions for {n} images and does not say whose they are; add caption_image, or name "
                         "the split with --data_path, --data_name and --split")
    owner = arrays["caption_image"] if told else np.arange(m) // max(1, m // max(1, n))
    if owner.shape != (m,) or owner.dtype.kind not in "iu" or not m or not (0 <= owner.min() and owner.max() < n):
        raise InputError(f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each one's image")
    for key, count in (("image_id", n), ("caption_id", m), ("image_name", n)):
        kinds = "U" if key == "image_name" else "iu"
        if key in arrays and (arrays[key].shape != (count,) or arrays[key].dtype.kind not in kinds):
            raise InputError(f"{path}: {key} must hold {count} {'names' if key == 'image_name' else 'whole numbers'}, one for "
                             f"each, and has shape {arrays[key].shape} of {arrays[key].dtype}; leave it out or write it again")
    known = {key: None if arrays.get(key) is None else arrays[key].tolist() for key in ("image_id", "image_name", "caption_id")}
    mine = items.Items(path, owner.astype(np.int64), n, known["image_id"], known["image_name"], known["caption_id"], None,
                       text_of(arrays, "data_name", path), told_split, assumed=not told)
    without = n - len(np.unique(owner))
    if split:
        order = items.order_like(mine, items.of_split(split, opt.data_name))
        subject = of_split(split, path, folder)
        subject.notes += order.notes
        return subject, order
    subject = Subject(path, "", mine.owner, n, items=mine, photos=known["image_name"], data_name=os.path.basename(path),
                      split=mine.split or opt.split or "", folder=os.path.join(opt.data_path or "data", "."))
    if without:
        subject.notes.append(f"{path}: {without:,} of {n:,} images have no caption and are no queries, but in the gallery")
    if not told:
        subject.notes.append(f"{path} does not say whose caption each is: {COUNTS.get(m // n, m // n)} caption{'s' * (m != n)} "
                             "per image, in order, assumed (caption_image says it)")
    return subject, items.Order(np.arange(n), np.arange(m), [])


COUNTS = {1: "one", 5: "five"}


def open_subject(path: str, opt) -> Subject:
    """By what a path holds: embeddings (.npz), scores (.npy), else a run."""
    kind = None
    if os.path.isfile(path):
        with open(path, "rb") as f:
            start = f.read(6)
        kind = "scores" if start == b"\x93NUMPY" else "embeddings" if start[:2] == b"PK" and holds_arrays_only(path) else None
    kind = kind or {".npz": "embeddings", ".npy": "scores"}.get(os.path.splitext(path)[1].lower())
    return {"embeddings": open_embeddings, "scores": open_scores}.get(kind, lambda path, opt: open_run([path], opt))(path, opt)


def holds_arrays_only(path: str) -> bool:
    """Whether a zip file is an .npz; a checkpoint is a zip file too."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except FAULTS:
        return False
