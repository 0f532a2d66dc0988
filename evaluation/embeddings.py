"""Embeddings of images and captions, of models or from files, and ready scores.

Loading runs no code from a file: weights_only=True for checkpoints, allow_pickle=False for arrays.
"""
import contextlib
import difflib
import glob
import math
import os
import zipfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

import metrics
from checkpoint import Trained
from cli import InputError, check
from data import Split, check_extractors, read_split
from evaluation.annotations import IdIndex
from evaluation.encode import encode
from files import read_array, read_arrays, save_arrays
from images import Photos
from losses import SIMILARITIES, Embedding, check_sides, cosine, formulas, trait, uncertainty
from options import check_fits

SQUARABLE = 1e18                      # float32 can sum the squares of smaller numbers
MOST_SCORES = 2 ** 30                 # 4 GiB; larger splits can be exported, not ranked


class Member(NamedTuple):
    """The embeddings of one model, and how it compares them."""
    similarity: object                # one of losses.SIMILARITIES, built
    images: Embedding | None          # N items, or None where there are no images
    captions: Embedding | None        # M items


@dataclass
class Embeddings:
    """Embeddings of N images and M captions by one or several models, or scores.
    The scores of several models are averaged."""
    name: str                                     # the paths of the models, or of the file
    caption_image: np.ndarray                     # (M,) the row of each caption's image
    n_images: int
    members: list[Member] = field(default_factory=list)
    matrix: np.ndarray | None = None              # (N, M) float32, ready scores
    similarity: str = ""
    # what is known of the items: "image_id", "image_name", "caption_id", "caption_name" (NAME#K), "caption" (text)
    ids: dict[str, list] = field(default_factory=dict)
    source: str = ""                              # where these are from, for messages
    data_name: str = ""                           # the data set; empty where it is not known
    split: str = ""                               # "dev" for val; empty where it is not known
    folder: str = ""                              # of the data set
    photos: Photos | None = None
    assumed: bool = False                         # caption_image is a guess: M / N captions for each image, in order
    models: list[Trained] = field(default_factory=list)     # none of a file
    bank: tuple | None = None                     # (N,), (M,) that a query bank takes from the scores
    subtracted: tuple | None = None               # (N,), (M,) that `scores` lack
    judged: dict = field(default_factory=dict)    # matches and ratings of the items, by protocol
    report: dict = field(default_factory=dict)    # parts of results.json: "bank", "unknown_words"
    notes: list[str] = field(default_factory=list)          # what was assumed or left out

    @cached_property
    def scores(self) -> np.ndarray:
        """(N, M) in float32."""
        if self.matrix is not None:
            return self.matrix
        scores = metrics.score_matrix(self.members)
        if self.subtracted is not None:
            images, captions = (terms.numpy() for terms in self.subtracted)         # (N,), (M,)
            scores -= images[:, None]
            scores -= captions
        return scores

    @property
    def has_images(self) -> bool:
        return self.matrix is not None or all(m.images is not None for m in self.members)

    @property
    def gaussian(self) -> bool:
        """True if any side of any member has variances."""
        return any(e is not None and e.log_var is not None for m in self.members for e in (m.images, m.captions))

    @property
    def weights(self) -> list[str]:
        """Digests of the models."""
        return [model.weights for model in self.models]

    @property
    def seed(self) -> int | None:
        """The seed of the one model's training."""
        return self.models[0].options.seed if len(self.models) == 1 else None

    def index(self, side: str) -> IdIndex:
        """Positions of ids, of "image" or "caption".
        Raises InputError where they are not known."""
        return IdIndex(self.ids.get(f"{side}_id"), side, self.source)

    def subset(self, images: np.ndarray) -> "Embeddings":
        """The images at positions `images` (n,), rising, and their captions."""
        captions = np.flatnonzero(np.isin(self.caption_image, images))
        return replace(
            self, ids={}, n_images=len(images), caption_image=np.searchsorted(images, self.caption_image[captions]),
            members=[Member(m.similarity, m.images.rows(images), m.captions.rows(captions)) for m in self.members],
            matrix=None if self.matrix is None else self.matrix[np.ix_(images, captions)])


def uncertainties(e: Embeddings, measure=uncertainty) -> dict[str, np.ndarray]:
    """log det Sigma in nats of Gaussian images (N,) and captions (M,).
    Averaged over the members. Or another measure, Embedding -> (N,)."""
    results = {}
    for side in ("images", "captions"):
        sides = [getattr(m, side) for m in e.members]
        values = [measure(x) for x in sides if x is not None and x.log_var is not None]
        if values:
            results[side] = torch.stack(values).mean(0).cpu().numpy()
    return results


def within_modality(similarity, e: Embedding) -> tuple:
    """Similarity and embedding to compare items of one modality.
    The similarity is the cosine of the means where its own needs an image and a caption (Mahalanobis: one Gaussian
    and one point; cross-attention: regions and words)."""
    return (similarity, e) if trait(similarity, "within_modality") else (cosine, Embedding(e.mean))


def blocks_within(e: Embeddings, modality: str, items: np.ndarray, block: int):
    """Yield (rows, scores (b, n)) of images or captions among each other.
    items (n,): positions of "images" or "captions"."""
    members = []
    for m in e.members:
        similarity, x = within_modality(m.similarity, getattr(m, modality))
        x = x if len(items) == len(x.mean) else x.rows(torch.from_numpy(items))
        members.append((similarity, x, x))
    return metrics.score_blocks(members, block)


# ---- by trained models

def newest_run(root: str = "runs") -> str:
    """The folder of the run whose best model is the newest.
    Raises InputError where there is no run."""
    paths = glob.glob(os.path.join(root, "**", "model_best.pt"), recursive=True)
    check(paths, f"no run is in {root}/; train one with train.py, or name a run folder with --checkpoint")
    return os.path.dirname(max(paths, key=os.path.getmtime))


def beside_model(run: str, name: str) -> str:
    """The file `name` in a run folder, or beside a checkpoint file."""
    return os.path.join(run if os.path.isdir(run) else os.path.dirname(run), name)


def tell_kind(path: str) -> str:
    """Tell what a path holds: "embeddings", "scores" or a "run"."""
    if os.path.isfile(path):
        with open(path, "rb") as f:
            if f.read(6) == b"\x93NUMPY":
                return "scores"
        with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:     # a checkpoint is a zip file, too
            if all(name.endswith(".npy") for name in archive.namelist()):
                return "embeddings"
    return {".npz": "embeddings", ".npy": "scores"}.get(os.path.splitext(path)[1].lower(), "run")


def read_split_for(model: Trained, split: str = "test", data_path: str | None = None, data_name: str | None = None, *,
             dev_images: int | None = None, text_only: bool = False) -> Split:
    """Read a split of the data that a model was trained on, or of others named.
    dev_images: of dev, 0 all, None as in the training. Raises InputError where the model cannot take the data."""
    mine, path = model.options, model.path
    result = read_split(data_path or mine.data_path, data_name or mine.data_name, split, text_only=text_only,
                        text_features=mine.text_features,
                        dev_images=mine.dev_images if dev_images is None else dev_images).require_sound()
    check_fits(mine, result.images, result.text, path)
    check_extractors(model.extractors, result, mine.text_features, path)
    return result


def embed(models: list[Trained], split: str = "test", part=None, *, sim: str | None = None, batch_size: int = 128,
          workers: int = 0, **data) -> Embeddings:
    """Embed a split by one model, or by several of an ensemble, on the device of each.

    part: split -> `encode.Gallery`, the items to embed; caption_image still names rows of the whole split. sim: the
    similarity in place of the models' own; data: as `read_split_for` takes them. Raises InputError where a model
    cannot take the data, or the similarity its embeddings.
    """
    lead, given = models[0].options, data.pop("data_name", None)
    path, name = data.pop("data_path", None), given or lead.data_name
    root = os.path.join(path or lead.data_path, name)
    if data.get("dev_images") is None:
        data["dev_images"] = lead.dev_images
    first, e = None, None
    for model in models:
        mine = model.options
        own = os.path.join(path or mine.data_path, given or mine.data_name)
        check(os.path.realpath(own) == os.path.realpath(root),
              f"{model.path} was trained on {own}, the first run on {root}; an ensemble needs one split, so name the "
              "data of both with --data_name")
        read = first
        if not e or mine.text_features != lead.text_features:
            read = read_split_for(model, split, *os.path.split(root), **data)
        if not e:
            first, e = read, list_items(read, name)
        elif read is not first:
            check_same_items(list_items(read, name), e)
        foreign, chosen = mine.data_name != name, part and part(read)
        tokens = read.encode(model.vocab, known=not foreign)            # other data may have unknown words alone
        images, captions = encode(model.model, read, tokens, model.device, batch_size, workers, chosen)
        similarity = formulas()[sim] if sim else model.similarity
        if sim and images is not None:
            check_similarity(similarity, (images, captions), sim, model.path)
        if foreign and read.text is None:
            e.report["unknown_words"] = read.unknown_words(model.vocab)
        e.members.append(Member(similarity, images, captions))
        e.notes += [note for note in (*model.notes, *read.notes) if note not in e.notes]
    if part:
        e = replace(e, caption_image=e.caption_image[chosen.captions], n_images=len(chosen.images), ids={})
    e.name, e.models, e.folder = " + ".join(model.path for model in models), models, root
    e.similarity = sim or " + ".join(dict.fromkeys(model.options.sim for model in models))
    return e


def check_similarity(similarity, sides, sim: str, path: str) -> None:
    """Raise InputError where a similarity cannot compare these embeddings."""
    try:
        check_sides(similarity, sim, *sides)
    except ValueError as error:
        raise InputError(f"{path} does not fit --sim {sim}: {error}") from error


# ---- whose images and captions

def list_items(split: Split, data_name: str) -> Embeddings:
    """The images and captions of a split, without embeddings."""
    ids = split.image_ids
    numbered = ids is not None and all(isinstance(i, (int, np.integer)) for i in ids)
    names = split.photo_names or (None if numbered or ids is None else [str(i) for i in ids])
    known = {"image_id": ids if numbered else None, "image_name": names, "caption": split.captions,
             "caption_id": None if split.caption_ids is None else list(map(int, split.caption_ids)),
             "caption_name": split.caption_names}
    return Embeddings("", split.caption_image, len(split.images), source=split.source, data_name=data_name,
                      ids={name: x for name, x in known.items() if x is not None}, notes=list(split.notes),
                      split={"val": "dev"}.get(split.name, split.name),
                      photos=split.images if isinstance(split.images, Photos) else None)


def check_same_items(mine: Embeddings, theirs: Embeddings) -> list[str]:
    """Raise InputError where two are of other items, or in another order.
    Return notes on what is assumed."""
    here, there = ((e.n_images, len(e.caption_image)) for e in (mine, theirs))
    check(here == there, f"{mine.source} has {here[0]} images and {here[1]} captions where what it meets has "
                         f"{there[0]} and {there[1]} of {theirs.source}; compare runs on the same split with "
                         "--data_name and --split")
    foreign = mine.data_name and theirs.data_name and mine.data_name != theirs.data_name
    check(foreign or not (mine.split and theirs.split) or mine.split == theirs.split,
          f"{mine.source} is of the {mine.split} split and {theirs.source} of the {theirs.split} split; give files of "
          "one split")
    check(mine.assumed or np.array_equal(mine.caption_image, theirs.caption_image),
          f"{mine.source} gives captions to other images than {theirs.source}; give files of one split, in its order")
    if "caption" in mine.ids and mine.ids["caption"] == theirs.ids.get("caption"):
        return []       # whatever the ids: SCAN numbers rows where VSE++ has COCO's
    known = set()
    for key in {"image_id", "image_name", "caption_id"} & set(mine.ids) & set(theirs.ids):
        own, others = (list(map(os.path.basename, e.ids[key])) if key == "image_name" else list(e.ids[key])
                       for e in (mine, theirs))
        check(own == others, f"{mine.source} and {theirs.source} have other {key.replace('_', ' ')}s, or the same in "
                             "another order; give files of one split, in its order")
        known.add(f"{key.split('_')[0]}s")
    unknown = [side for side in ("images", "captions") if side not in known]
    return [f"{mine.source} does not say which {' and '.join(unknown)} it is about: those of {theirs.source} in their "
            "order, assumed"] if unknown else []


def check_other_items(e: Embeddings, other: Embeddings, option: str, instead: str) -> None:
    """Raise InputError unless two files hold different items of one model.
    option: names the other file; instead: what to do."""
    mine, theirs = (", ".join([x.similarity, *(
        f"{'points' if side.log_var is None else 'Gaussians'} of {side.mean.shape[1]} numbers"
        for m in x.members for side in m[1:])]) for x in (e, other))
    check(mine == theirs, f"{option} {other.name} ({theirs}) is of another model than {e.name} ({mine}); give "
                          "embeddings of the same model")
    for key in ("image_id", "image_name"):
        shared = set(e.ids.get(key, ())) & set(other.ids.get(key, ()))
        check(not shared, f"{option} {other.name} and {e.name} share {len(shared):,} images; {instead}")
    check(os.path.realpath(other.name) != os.path.realpath(e.name),
          f"{option} {other.name} is the file to be judged; {instead}")


# ---- files of embeddings

# What a file of embeddings may hold.
ARRAYS = ("image_mean", "caption_mean", "image_log_var", "caption_log_var", "caption_image", "image_id", "caption_id",
          "image_name", "similarity", "effective_dim", "logit_scale", "logit_bias", "data_name", "split")


def export(path: str, e: Embeddings) -> None:
    """Write the embeddings of one model as an .npz.
    It holds means, log-variances where there are any, the row of each caption's image, ids where they are known, the
    name of the similarity with what it learned, and the name of the split. Raises InputError where there are no
    images."""
    similarity, images, captions = e.members[0]
    check(images is not None, f"--export: {e.source} has no images beside it; export a split with features or photos")
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean, "image_log_var": images.log_var,
              "caption_log_var": captions.log_var,
              **{name: e.ids.get(name) for name in ("image_id", "image_name", "caption_id")},
              "effective_dim": similarity.k.item() if e.similarity == "mls" else None,
              "caption_image": e.caption_image, "similarity": e.similarity, "data_name": e.data_name, "split": e.split}
    save_arrays(path, {name: x.cpu().numpy() if torch.is_tensor(x) else np.array(x)
                       for name, x in arrays.items() if x is not None})


def load_embeddings(path: str, sim: str | None = None, **data) -> Embeddings:
    """Read embeddings of any model from arrays as `export` writes them.
    docs/evaluation.md lists them.

    sim: a similarity in place of the file's; data: as `identify_items` takes them. Raises InputError on unknown arrays,
    on shapes and types that do not fit, on numbers that are not finite, and where the items are not those of the split.
    """
    arrays = read_arrays(path, "write it with --export or np.savez")
    for name in arrays:
        near = "".join(f" (do you mean {x}?)" for x in difflib.get_close_matches(name, ARRAYS, 1, 0.5))
        check(name in ARRAYS, f"{path} has an array '{name[:40]}', which means nothing here{near}; it "
                              f"may hold {', '.join(ARRAYS)}")
    name = sim or read_word(arrays, "similarity", path) or "cosine"
    similarity = named_similarity(name, arrays, path)
    sides = [read_side(arrays, side, path, similarity is cosine) for side in ("image", "caption")]
    widths = [e.mean.shape[1] for e in sides]
    check(widths[0] == widths[1] > 0, f"{path} has image means of width {widths[0]} and caption means of width "
                                      f"{widths[1]}; they live in one space, so the widths must be equal")
    notes = []
    each = math.gcd(*(count_repeats(arrays[name]) for name in arrays if name.startswith("image_")))
    if each > 1 and len(sides[0].mean) == len(sides[1].mean):
        sides[0] = sides[0].rows(slice(None, None, each))
        arrays = {name: x[::each] if name.startswith("image_") else x // each if name == "caption_image" else x
                  for name, x in arrays.items()}
        notes.append(describe_repeats(path, len(sides[1].mean), each))
    check_similarity(similarity, sides, name, path)
    e = identify_items(path, len(sides[0].mean), len(sides[1].mean), arrays, **data)
    if not sim and "similarity" not in arrays:
        unused = ", and its variances are not used" * any(x.log_var is not None for x in sides)
        notes.append(f"{path} names no similarity; using the cosine of the means{unused} (--sim chooses another)")
    e.notes += notes
    e.similarity, e.members = name, [Member(similarity, *sides)]
    return e


def read_side(arrays: dict, side: str, path: str, normalised: bool) -> Embedding:
    """Read means and log-variances of "image" or "caption", in float32.
    normalised: the similarity divides by the norms. Raises InputError where shapes or types do not fit, and on
    numbers that are not finite or whose squares are not."""
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
              f"{path} holds NaN or infinity, or numbers beyond float32, in {side}_{name}; check the embeddings")
    largest = e.mean.abs().amax(1) if e.mean.shape[1] else torch.zeros(len(e.mean))           # (N,)
    least = 1e-6 if normalised else 0.0                     # below, `losses.unit` does not divide
    odd = (largest > SQUARABLE) | (largest > 0) & (e.mean.norm(dim=1) < least)
    check(not odd.any(), f"{path}: {side}_mean has values of at most {float(largest[odd][:1].sum()):.0e} in a row, "
                         "whose squares float32 cannot add up; scale all means alike, to norms near 1")
    return e


def count_repeats(rows: np.ndarray) -> int:
    """Count how often each row is repeated in turn: 5 in VSE++'s layout.
    There the rows (5N, ...) of images are N images."""
    if len(rows) < 2 or not np.array_equal(rows[0], rows[1]):
        return 1
    turns = [k for k in range(1, len(rows)) if not np.array_equal(rows[k], rows[k - 1])]
    return math.gcd(len(rows), *turns) if turns else 1


def describe_repeats(path: str, rows: int, each: int) -> str:
    return f"{path}: its {rows:,} rows of images are {rows // each:,} images, each repeated {each} times"


def read_word(arrays: dict, name: str, path: str) -> str:
    """A single text among arrays, empty where there is none.
    Raises InputError where the array is not a single text."""
    value = arrays.get(name, np.array(""))
    check(value.size == 1 and value.dtype.kind in "US",
          f"{path}: {name} must hold one text, as np.array('...'), and has shape {value.shape} of "
          f"{value.dtype}; write it so, or leave it out")
    text = value.item()
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def named_similarity(name: str, arrays: dict, path: str):
    """The similarity of this name, with what it learned.
    Raises InputError where the file does not tell that."""
    learned = arrays.get("effective_dim")
    if name == "mls" and learned is not None and learned.ndim == 0 and learned.dtype.kind in "fiu" and learned > 0:
        return SIMILARITIES[name](float(learned))
    lacks = ("and no number 'effective_dim' above 0, which it learned" if name == "mls" else
             "which cannot be computed from a file of embeddings")
    check(name in formulas(), f"{path} has similarity '{name}', {lacks}; evaluate the run, or rank by another "
                              f"similarity with --sim, one of {', '.join(formulas())}")
    return formulas()[name]


# ---- matrices of scores

def load_scores(path: str, **data) -> Embeddings:
    """Map a ready matrix of scores (N, M), images x captions.
    data: as `identify_items` takes them. Raises InputError on other shapes and types."""
    scores = read_array(path, "write it with np.save, images x captions; embeddings go to --embeddings")
    check(scores.ndim == 2 and scores.dtype.kind == "f",
          f"{path} holds {scores.dtype} of shape {scores.shape}; scores are floats, images x captions")
    notes, (n, m) = [], scores.shape
    if n == m:                                              # VSE++'s layout has as many rows as captions
        check(count_repeats(scores[:1].T) == 1 or count_repeats(scores.T) == 1, describe_turned(path, scores.shape))
        each = count_repeats(scores)
        if each > 1:
            scores = scores[::each]
            notes.append(describe_repeats(path, n, each))
    e = identify_items(path, *scores.shape, {}, **data)     # it names no items: their order is that of the split
    e.notes += notes
    with np.errstate(over="ignore"):                        # ranking finds infinity in our words
        e.similarity, e.matrix = "scores", scores.astype(np.float32, copy=False)
    return e


def describe_turned(path: str, shape: tuple[int, int]) -> str:
    return (f"{path} has {shape[0]:,} rows and {shape[1]:,} columns and seems turned on its side: rows are images, "
            "columns captions; save it with np.save(path, scores.T)")


# ---- the items of a file

def has_testall(folder: str) -> bool:
    """True if a folder has `testall`, all 5,000 images, beside `test`."""
    return os.path.isfile(os.path.join(folder, "testall_caps.txt"))


def identify_items(path: str, n: int, m: int, arrays: dict, *, split: str | None = None, data_path: str | None = None,
                   data_name: str | None = None, dev_images: int | None = None) -> Embeddings:
    """The items that a file of N images and M captions is about, without embeddings.

    With a data_name they are those of the split, and all that the file says is compared with it. Else they are what the
    file says, else M / N captions per image, in order. Raises InputError where the arrays have other shapes, or other
    items.
    """
    split = {"val": "dev"}.get(split, split)
    e = read_items(path, n, m, arrays, need_owner=not data_name)
    check(not (split and e.split) or split == e.split,
          f"--split {split}: {path} says that it is of the split {e.split}; leave --split out, or give a file of the "
          "other")
    e.split, e.folder = e.split or split or "", os.path.join(data_path or "data", data_name or ".")
    if data_name:
        for name in [e.split] if e.split else ["test", *["testall"] * has_testall(e.folder)]:
            data = read_split(data_path or "data", data_name, name, dev_images=dev_images or 0, text_only=True)
            there = len(data.images), len(data.captions)
            if there == (n, m):
                break
        check(arrays or there != (m, n) or n == m, describe_turned(path, (n, m)))
        check(there == (n, m), f"{path} has {n} images and {m} captions, {data_name} {name} has {there[0]} and "
                               f"{there[1]}; they must be the same items")
        theirs = list_items(data, data_name)
        theirs.notes += check_same_items(e, theirs)
        return replace(theirs, name=path, folder=e.folder)
    without = n - len(np.unique(e.caption_image))
    if without:
        e.notes.append(f"{path}: {without:,} of {n:,} images have no caption and are not queries, but in the gallery")
    if e.assumed:
        e.notes.append(f"{path} does not say whose caption each is: {m // n} per image, in order, assumed "
                       "(caption_image says it)")
    return e


def read_items(path: str, n: int, m: int, arrays: dict, need_owner: bool) -> Embeddings:
    """Read the ids, names and owners of N images and M captions from a file.
    need_owner: nothing else says whose captions they are. Raises InputError on arrays of other shapes or types."""
    assumed = "caption_image" not in arrays
    if need_owner and assumed:
        check(arrays or n <= m, describe_turned(path, (n, m)))
        check(n and m % n == 0, f"{path} has {m} captions for {n} images and does not say whose they are; add "
                                "caption_image, or name the split with --data_path, --data_name and --split")
    owner = np.arange(m) // max(1, m // max(1, n)) if assumed else arrays["caption_image"]
    check(owner.shape == (m,) and owner.dtype.kind in "iu" and m and 0 <= owner.min() and (assumed or owner.max() < n),
          f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each one's image")
    ids = {}
    for key, count, kinds, kind in (("image_id", n, "iu", "whole numbers"), ("image_name", n, "U", "names"),
                                    ("caption_id", m, "iu", "whole numbers")):
        if key in arrays:
            x = arrays[key]
            check(x.shape == (count,) and x.dtype.kind in kinds,
                  f"{path}: {key} must hold {count} {kind}, one for each, and has shape {x.shape} of "
                  f"{x.dtype}; leave it out or write it again")
            ids[key] = x.tolist()
    split = read_word(arrays, "split", path)
    return Embeddings(path, owner.astype(np.int64), n, ids=ids, source=path, assumed=assumed,
                      split={"val": "dev"}.get(split, split), data_name=read_word(arrays, "data_name", path))
