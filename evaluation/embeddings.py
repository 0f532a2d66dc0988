"""Embeddings of images and captions, of models or from files, and ready scores.

Loading runs no code from a file. All that reads a file raises InputError where it is missing, broken or of other
items.
"""
import glob
import math
import os
import re
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
from evaluation.encoding import encode
from files import read_array, read_arrays, refusing, save_arrays
from images import SQUARABLE, Photos, count_repeats
from losses import SIMILARITIES, Embedding, list_functions, uncertainty
from options import check_fits

MOST_DIMENSIONS = 2 ** 16             # of a space, of which an effective dimension is a part
SAVE = ("save the arrays with np.savez('e.npz', image_mean={}, caption_mean={}, caption_image=owner): (N, D), (M, D) "
        "and (M,), the row of each caption's image")


class Member(NamedTuple):
    """The embeddings of one model, and how it compares them."""
    similarity: object                # one of losses.SIMILARITIES, built
    images: Embedding | None          # N items, or None where there are no images
    captions: Embedding | None        # M items


@dataclass
class Embeddings:
    """Embeddings of N images and M captions by models, whose scores are averaged."""
    name: str                                     # the paths of the models, or of the file
    caption_image: np.ndarray                     # (M,) the row of each caption's image
    n_images: int
    members: list[Member] = field(default_factory=list)
    matrix: np.ndarray | None = None              # (N, M) float32, ready scores
    similarity: str = ""
    # what is known of the items: "image_id", "image_name", "caption_id", "caption_name" (NAME#K), "caption" (text)
    ids: dict[str, list] = field(default_factory=dict)
    data_name: str = ""                           # the data set; empty where it is not known
    split: str = ""                               # "dev" for val; empty where it is not known
    folder: str = ""                              # of the data set
    photos: Photos | None = None
    models: list[Trained] = field(default_factory=list)     # none of a file
    bank: tuple | None = None                     # (N,), (M,) that a bank of queries takes from the scores
    judged: dict = field(default_factory=dict)    # matches and ratings of the items, by protocol
    report: dict = field(default_factory=dict)    # parts of results.json: "bank", "unknown_words"
    notes: list[str] = field(default_factory=list)          # what was assumed or left out

    @cached_property
    def scores(self) -> np.ndarray:
        """(N, M) in float32."""
        return metrics.score_matrix(self.members) if self.matrix is None else self.matrix

    @property
    def has_images(self) -> bool:
        return self.matrix is not None or all(m.images is not None for m in self.members)

    @property
    def gaussian(self) -> bool:
        """True if any side of any member has variances."""
        return any(e is not None and e.log_var is not None for m in self.members for e in (m.images, m.captions))

    @property
    def texts(self) -> list[str]:
        """All captions, by number where their texts are not known."""
        return self.ids.get("caption") or [f"caption {m}" for m in range(len(self.caption_image))]

    def index(self, side: str) -> IdIndex:
        """Find the positions of "image" or "caption" ids; raises InputError without ids."""
        return IdIndex(self.ids.get(f"{side}_id"), side, self.name)

    def subset(self, images: np.ndarray) -> "Embeddings":
        """Select the images at positions `images` (n,), rising, and their captions."""
        captions = np.flatnonzero(np.isin(self.caption_image, images))
        return replace(
            self, n_images=len(images), caption_image=np.searchsorted(images, self.caption_image[captions]),
            ids={name: [x[k] for k in (images if name.startswith("image") else captions)]
                 for name, x in self.ids.items()},
            photos=self.photos and Photos([self.photos.paths[i] for i in images]),
            members=[Member(m.similarity, m.images.rows(images), m.captions.rows(captions)) for m in self.members],
            matrix=None if self.matrix is None else self.matrix[np.ix_(images, captions)])


def uncertainties(e: Embeddings, measure=uncertainty) -> dict[str, np.ndarray]:
    """Compute log det Sigma in nats of Gaussian images (N,) and captions (M,).
    The mean over the members. measure: another function Embedding -> (N,)."""
    results = {}
    for side in ("images", "captions"):
        sides = [getattr(m, side) for m in e.members]
        values = [measure(x) for x in sides if x is not None and x.log_var is not None]
        if values:
            results[side] = torch.stack(values).mean(0).cpu().numpy()
    return results


# ---- by trained models

def newest_run() -> str:
    """Find the folder of the run in runs/ whose best model is the newest. Raises InputError."""
    paths = glob.glob("runs/**/model_best.pt", recursive=True)
    check(paths, "no run is in runs/ that reached its first validation, which writes model_best.pt; train one, go on "
                 "with one by train.py --resume, or name a run folder with --checkpoint")
    return os.path.dirname(max(paths, key=os.path.getmtime))


def is_run(path: str) -> bool:
    """True unless a path ends as embeddings (.npz) or scores (.npy) do, or is a folder of embeddings."""
    return not path.lower().endswith((".npz", ".npy")) and not is_folder_of_embeddings(path)


def read_split_for(model: Trained, split: str = "test", data_path: str | None = None, data_name: str | None = None, *,
                   dev_images: int | None = None, text_only: bool = False) -> Split:
    """Read a split of the data that a model was trained on, or of others named.
    dev_images: of dev, 0 all, None as in the training."""
    mine, path = model.options, model.path
    result = read_split(data_path or mine.data_path, data_name or mine.data_name, split, text_only=text_only,
                        text_features=mine.text_features,
                        dev_images=mine.dev_images if dev_images is None else dev_images).require_sound()
    result.note_doubts()
    check_fits(mine, result.images, result.text, path)
    check_extractors(model.extractors, result, mine.text_features, path)
    return result


def embed(models: list[Trained], split: str = "test", part=None, *, sim: str | None = None, batch_size: int = 128,
          workers: int = 0, **data) -> Embeddings:
    """Embed a split by one model, or by several of an ensemble, on the device of each.
    part: split -> `encode.Gallery`, the items to embed, which the members then hold alone. sim: the similarity in place
    of the models' own; data: as `read_split_for` takes them, else those of the first model."""
    given = {name: value for name, value in data.items() if value is not None}
    data = {name: getattr(models[0].options, name) for name in ("data_path", "data_name", "dev_images")} | given
    root, e = os.path.join(data["data_path"], data["data_name"]), None
    for model in models:
        mine = model.options
        own = os.path.join(*(given.get(name, getattr(mine, name)) for name in ("data_path", "data_name")))
        check(os.path.realpath(own) == os.path.realpath(root),
              f"{model.path} was trained on {own}, the first run on {root}; an ensemble needs one split, so name the "
              "data of both with --data_name")
        read, foreign = read_split_for(model, split, **data), mine.data_name != data["data_name"]
        e = e or list_items(read, data["data_name"])
        tokens = read.encode(model.vocab)
        images, captions = encode(model.model, read, tokens, model.device, batch_size, workers, part and part(read))
        similarity = model.similarity
        if sim:
            similarity = SIMILARITIES[sim].score
            if images is not None:
                check_sides(sim, images, captions, model.path)
        if foreign and read.text is None:
            e.report["unknown_words"] = read.unknown_words(model.vocab)
        e.members.append(Member(similarity, images, captions))
        e.notes += [note for note in (*model.notes, *read.notes) if note not in e.notes]
    e.name, e.models, e.folder = " + ".join(model.path for model in models), models, root
    e.similarity = sim or " + ".join(dict.fromkeys(model.options.sim for model in models))
    return e


def check_sides(name: str, images: Embedding, captions: Embedding, path: str) -> None:
    """Raise InputError where embeddings of `path` lack what the similarity of that name compares."""
    similarity = SIMILARITIES[name]
    if similarity.parts and (images.parts is None or captions.parts is None):
        raise InputError(f"{path} does not fit --sim {name}: it compares the parts of items, such as regions with "
                         "words, and a side given has means only; embed both by a model of --sim scan or mil, or "
                         "compare means: cosine")

    needed = similarity.gaussian_sides
    gaussian = sum(e.log_var is not None for e in (images, captions))
    if needed in (0, gaussian) or similarity.point_side and gaussian == 1:
        return
    one = ", or on 1" if similarity.point_side else ""
    raise InputError(f"{path} does not fit --sim {name}: it needs variances on {needed} of the two sides, images and "
                     f"captions{one}; {gaussian} of those given have them")


# ---- whose images and captions

def list_items(split: Split, data_name: str) -> Embeddings:
    """The images and captions of a split, without embeddings."""
    ids, names = split.image_ids, split.photo_names
    if ids is not None and not all(isinstance(i, (int, np.integer)) for i in ids):
        ids, names = None, names or [*map(str, ids)]
    known = {"image_id": ids, "image_name": names, "caption": split.captions,
             "caption_id": None if split.caption_ids is None else split.caption_ids.tolist(),
             "caption_name": split.caption_names}
    return Embeddings(split.source, split.caption_image, len(split.images), data_name=data_name,
                      ids={name: x for name, x in known.items() if x is not None}, notes=list(split.notes),
                      split=name_split(split.name), photos=split.images if isinstance(split.images, Photos) else None)


def name_split(split: str) -> str:
    """The name of a split, dev for val."""
    return {"val": "dev"}.get(split, split)


def check_same_items(mine: Embeddings, theirs: Embeddings) -> list[str]:
    """Refuse other items, or another order; return a note where nothing tells."""
    here, there = ((e.n_images, len(e.caption_image)) for e in (mine, theirs))
    check(here == there, f"{mine.name} has {here[0]} images and {here[1]} captions, and {theirs.name} {there[0]} and "
                         f"{there[1]}; give both the same --data_name and --split")
    foreign = mine.data_name and theirs.data_name and mine.data_name != theirs.data_name
    check(foreign or not (mine.split and theirs.split) or mine.split == theirs.split,
          f"{mine.name} is of the {mine.split} split and {theirs.name} of the {theirs.split} split; give files of one "
          "split")
    check(np.array_equal(mine.caption_image, theirs.caption_image),
          f"{mine.name} gives captions to other images than {theirs.name}; give files of one split, in its order")
    shared = set(mine.ids) & set(theirs.ids)
    if "caption" in shared and mine.ids["caption"] == theirs.ids["caption"]:
        return []       # whatever the ids: SCAN numbers rows where VSE++ has COCO's
    keys = shared & {"image_id", "image_name", "caption_id"}
    for key in keys:
        own, others = ([os.path.basename(x) if key == "image_name" else x for x in e.ids[key]] for e in (mine, theirs))
        check(own == others, f"{mine.name} and {theirs.name} have other {key.replace('_', ' ')}s, or the same in "
                             "another order; give files of one split, in its order")
    check("caption" not in shared or any(mine.ids[key] != [*range(len(mine.ids[key]))] for key in keys),
          f"{mine.name} and {theirs.name} have other captions, and no ids (but numbers of rows) that say that their "
          "images are the same; name one split with --data_name and --split")
    return [] if keys else [f"{mine.name} does not say what it is about: the items of {theirs.name}, in their order, "
                              "assumed"]


# ---- files of embeddings

# What a file of embeddings may hold: the number of axes, the kinds of numpy's types, and the same in words.
MATRIX, IDS, NUMBER = (2, "fiu", "numbers (items, D)"), (1, "iu", "whole numbers"), (0, "fiu", "one number")
ARRAYS = {**dict.fromkeys(("image_mean", "caption_mean", "image_log_var", "caption_log_var"), MATRIX),
          **dict.fromkeys(("caption_image", "image_id", "caption_id"), IDS), "image_name": (1, "U", "names"),
          **dict.fromkeys(("effective_dim", "logit_scale", "logit_bias"), NUMBER),
          **dict.fromkeys(("similarity", "data_name", "split"), (0, "U", "one text, as np.array('...')"))}


def export(path: str, e: Embeddings) -> None:
    """Write the embeddings of one model as an .npz, with what is known of the items."""
    similarity, images, captions = e.members[0]
    check(images is not None, f"--export: {e.name} has no images beside it; export a split with features or photos")
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean, "image_log_var": images.log_var,
              "caption_log_var": captions.log_var,
              **{name: e.ids.get(name) for name in ("image_id", "image_name", "caption_id")},
              "effective_dim": similarity.k.item() if e.similarity == "mls" else None,
              "caption_image": e.caption_image, "similarity": e.similarity, "data_name": e.data_name, "split": e.split}
    save_arrays(path, {name: x.cpu().numpy() if torch.is_tensor(x) else np.array(x)
                       for name, x in arrays.items() if x is not None})


def load_file(path: str, sim: str | None = None, **data) -> Embeddings:
    """Read embeddings of any model (.npz, as `export` writes them, or a folder of .npy files), or scores (.npy).

    sim: a similarity in place of the file's; data: as `identify_items` takes them.
    """
    if os.path.isdir(path):
        return read_arrays_of_model(path, read_folder(path), sim, **data)
    if path.lower().endswith(".npy"):
        check(not sim, f"--sim {sim} computes nothing from the scores of {path}; leave it out")
        return load_scores(path, **data)
    refuse_file_of_torch(path)
    arrays = read_arrays(path, f"write it with --export, or {SAVE.format('x', 'y')}")
    return read_arrays_of_model(path, arrays, sim, **data)


def read_arrays_of_model(path: str, arrays: dict[str, np.ndarray], sim: str | None = None, **data) -> Embeddings:
    """Read the arrays of a file of embeddings, which ARRAYS lists.

    path: names them in sentences; sim, data: as `load_file` takes them.
    """
    arrays = dict(arrays)
    for name, x in arrays.items():
        check(name in ARRAYS, f"{path} has an array '{name[:40]}', unknown here; it may hold {', '.join(ARRAYS)}")
        axes, kinds, words = ARRAYS[name]
        check(x.dtype.kind in kinds and (x.ndim == axes or axes == 0 and x.size == 1),
              f"{path}: {name} must hold {words}, and has shape {x.shape} of {x.dtype}; write it so, or leave it out")
        arrays[name] = x if axes else x.item()
    name = sim or arrays.get("similarity") or "cosine"
    similarity = read_similarity(name, arrays.get("effective_dim", 0), path)
    images, captions = (read_side(arrays, side, path, name) for side in ("image", "caption"))
    if name in ("dot", "order"):
        images, captions = scale_points(images, captions)
    width = max((x.log_var.shape[1] for x in (images, captions) if x.log_var is not None), default=1)
    check(name != "mls" or width == 1, f"{path} has similarity 'mls', of one log-variance an item, and {width} of each"
                                       "; write them as (items, 1), or rank by --sim csd")
    check(images.mean.shape[1] == captions.mean.shape[1] > 0,
          f"{path} has image means of width {images.mean.shape[1]} and caption means of width "
          f"{captions.mean.shape[1]}; they live in one space, so the widths must be equal")
    check_sides(name, images, captions, path)
    m = len(captions.mean)
    of_images = {name: x for name, x in arrays.items() if name.startswith("image_")}
    each, notes = count_rows_of_image(path, m, arrays)
    if each > 1:
        images = images.rows(slice(None, None, each))
        arrays |= {name: x[::each] for name, x in of_images.items() if len(x) == m}
        owner = arrays.get("caption_image")
        if owner is not None and owner.max(initial=0) >= m // each:                 # it counts the repeated rows
            arrays["caption_image"] = owner // each
    for side, x in (("image", images), ("caption", captions)):
        notes += describe_degenerate(path, side, x.mean, name)
    if not sim and "similarity" not in arrays:
        unused = ", and its variances are not used" * any(x.log_var is not None for x in (images, captions))
        notes.append(f"{path} names no similarity; using the cosine of the means{unused} (--sim chooses another)")
    e = identify_items(path, len(images.mean), m, arrays, **data)
    return replace(e, members=[Member(similarity, images, captions)], similarity=name, notes=[*e.notes, *notes])


def refuse_file_of_torch(path: str) -> None:
    """Raise InputError, with the line that converts it, on a file of PyTorch."""
    if not os.path.isfile(path):                            # a pipe may never end
        return
    of_torch = path.lower().endswith((".pt", ".pth", ".bin", ".ckpt"))
    if not of_torch and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            of_torch = any(name.endswith("/data.pkl") for name in archive.namelist())
    if of_torch:
        tensors = (f"d['{side}_mean'].numpy()" for side in ("image", "caption"))
        raise InputError(f"{path} is a file of PyTorch, d = torch.load(...), and embeddings are an .npz; "
                         + SAVE.format(*tensors))


# ---- a folder of .npy files

# In the name of a file, or else of its folders: whose embeddings it holds.
WORDS_OF_SIDE = {"image": ("img", "image"), "caption": ("text", "txt", "cap")}


def find_side(path: str) -> str | None:
    """Tell from a path within a folder whether a file holds "image" or "caption" embeddings; None where it does not."""
    for name in (os.path.basename(path), path):
        sides = [side for side, words in WORDS_OF_SIDE.items() if any(word in name.lower() for word in words)]
        if len(sides) == 1:
            return sides[0]
    return None


def list_arrays_of_sides(folder: str) -> dict[str, list[str]]:
    """List the .npy files below a folder that hold embeddings: {"image": paths, "caption": paths}.

    The parts of one array, NAME_0.npy, NAME_1.npy, ..., stand in the order of their numbers.
    """
    files = {side: [] for side in WORDS_OF_SIDE}
    for path in glob.glob(os.path.join(glob.escape(folder), "**", "*.npy"), recursive=True):
        side = find_side(os.path.relpath(path, folder))
        if side:
            files[side].append(path)
    for paths in files.values():
        paths.sort(key=lambda path: [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", path)])
    return files


def is_folder_of_embeddings(path: str) -> bool:
    """True for a folder with .npy files of images and of captions, and without a checkpoint."""
    if not os.path.isdir(path) or glob.glob(os.path.join(glob.escape(path), "*.pt")):
        return False
    return all(list_arrays_of_sides(path).values())


def read_folder(folder: str) -> dict[str, np.ndarray]:
    """Read embeddings from the .npy files of a folder: {"image_mean": (N, D), "caption_mean": (M, D)}.

    clip-retrieval writes such a folder, img_emb/img_emb_0.npy and text_emb/text_emb_0.npy. Raises
    InputError where a side is missing or has several arrays.
    """
    arrays = {}
    for side, paths in list_arrays_of_sides(folder).items():
        words = " or ".join(WORDS_OF_SIDE[side])
        names = list(dict.fromkeys(re.sub("[0-9]+", "0", path) for path in paths))
        if not paths:
            raise InputError(f"{folder} is a folder without {side} embeddings, an .npy file with {words} in its name; "
                             + SAVE.format("x", "y"))
        if len(names) > 1:
            raise InputError(f"{folder} holds several arrays of {side} embeddings, {paths[0]} and {paths[-1]}; "
                             + SAVE.format(*(f"np.load('FILE of {name}s')" for name in WORDS_OF_SIDE)))

        parts = [read_array(path, "write it with np.save") for path in paths]
        with refusing(f"{paths[0]} and the other parts of {side} embeddings do not fit together",
                      "write arrays (items, D) of one D"):
            arrays[f"{side}_mean"] = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return arrays


def read_side(arrays: dict, side: str, path: str, similarity: str) -> Embedding:
    """Means and log-variances of "image" or "caption", in float32.

    Of means that are compared by the cosine, rows that float32 cannot square are scaled.
    """
    mean, log_var = arrays.get(f"{side}_mean"), arrays.get(f"{side}_log_var")
    check(mean is not None and (log_var is None or log_var.shape in (mean.shape, (len(mean), 1))),
          f"{path} needs {side}_mean of shape (items, D), and {side}_log_var, where given, of the same shape or "
          f"(items, 1); it holds {', '.join(f'{name} {np.shape(x)}' for name, x in arrays.items()) or 'nothing'}")
    scaled = similarity in ("cosine", "dot", "order")
    return Embedding(read_numbers(mean, f"{side}_mean", path, scaled, similarity == "cosine"),
                     None if log_var is None else read_numbers(log_var, f"{side}_log_var", path))


def read_numbers(x: np.ndarray, name: str, path: str, scaled: bool = False,
                 by_rows: bool = False) -> torch.Tensor:
    """Check numbers (N, D), and convert them to float32.

    scaled: numbers of any size are read, in float64 where float32 cannot square them. by_rows:
    rows that float32 cannot square are multiplied by a power of two, which leaves their directions.
    """
    x = np.ascontiguousarray(x, x.dtype if x.dtype.kind == "f" else np.float64)
    if not x.flags.writeable:                               # of a mapped file, which torch would warn of
        x = x.copy()
    largest = float(np.abs(x).max(initial=0))               # of float16, a comparison would warn
    if not np.isfinite(largest) or largest > SQUARABLE and not scaled:
        raise InputError(f"{path} holds NaN, infinity or numbers above {SQUARABLE:g} in {name}, whose squares float32 "
                         "cannot add up; check the embeddings, and scale all means alike")
    if by_rows:
        return metrics.scale_rows(torch.from_numpy(x)).float()
    if scaled and (largest > SQUARABLE or largest < metrics.SMALLEST_SQUARABLE):
        return torch.from_numpy(x).double()
    return torch.from_numpy(np.asarray(x, np.float32))


def scale_points(images: Embedding, captions: Embedding) -> tuple[Embedding, Embedding]:
    """Multiply all means by one power of two where float32 cannot square them; ranks stay."""
    largest = max(float(e.mean.abs().max()) if e.mean.numel() else 0.0 for e in (images, captions))
    if metrics.SMALLEST_SQUARABLE <= largest <= SQUARABLE or largest == 0:
        return tuple(e._replace(mean=e.mean.float()) for e in (images, captions))
    factor = 2.0 ** -max(-1000, min(1000, math.frexp(largest)[1]))
    return tuple(e._replace(mean=(e.mean.double() * factor).float()) for e in (images, captions))


def describe_degenerate(path: str, side: str, mean: torch.Tensor, similarity: str) -> list[str]:
    """Notes on means (N, D) that are all one, or that are zero and so have no direction."""
    if len(mean) > 1 and bool((mean == mean[0]).all()):
        return [f"{path}: all {len(mean):,} rows of {side}_mean are equal, so their ranks are ties"]
    zero = int((mean == 0).all(1).sum())
    if not zero or similarity != "cosine":
        return []
    return [f"{path}: zero vectors in {side}_mean: {zero:,} of {len(mean):,}; they have no direction and score 0 with "
            "every item"]


def count_rows_of_image(path: str, captions: int, arrays: dict) -> tuple[int, list[str]]:
    """Count the equal rows of each image, one a caption in VSE++'s layout and else 1, and note it.

    Ids and names of images, and captions of their own by caption_image, tell equal rows apart.
    """
    rows = len(arrays["image_mean"])
    if rows != captions:
        return 1, []
    vectors = [arrays[name] for name in ("image_mean", "image_log_var") if name in arrays]
    names = [arrays[name] for name in ("image_id", "image_name") if len(arrays.get(name, ())) == rows]
    codes = [np.unique(x, return_inverse=True)[1] for x in names]                   # (N,) whole numbers
    each = math.gcd(*(count_repeats(x, path) for x in (*vectors, *codes))) or 1
    if each == 1:
        return 1, []

    owner = arrays.get("caption_image")
    if owner is not None and not names and owner.max(initial=0) >= rows // each:
        asked = np.unique(owner)                            # rows that captions name
        if len(np.unique(asked // each)) < len(asked):
            return 1, [f"{path}: its {rows:,} rows of images are equal {each} at a time, and caption_image gives "
                       f"equal rows captions of their own, so they count as {rows:,} images; leave caption_image "
                       "out where each image stands once for each of its captions"]
    return each, [describe_repeats(path, rows, each)]


def describe_repeats(path: str, rows: int, each: int) -> str:
    return f"{path}: its {rows:,} rows of images are {rows // each:,} images, each repeated {each} times"


def read_similarity(name: str, effective_dim: float, path: str):
    """Find the similarity of this name, with what it learned."""
    check(effective_dim <= MOST_DIMENSIONS,
          f"{path} has effective_dim {effective_dim:g}, of at most {MOST_DIMENSIONS:,} dimensions; write the number "
          "that the model learned")
    if name == "mls" and effective_dim > 0:
        return SIMILARITIES[name].score(effective_dim)
    lacks = ("and no number 'effective_dim' above 0, which it learned" if name == "mls" else
             "which cannot be computed from a file of embeddings")
    if name not in list_functions():
        raise InputError(f"{path} has similarity '{name}', {lacks}; evaluate the run, or rank by another similarity "
                         f"with --sim, one of {', '.join(list_functions())}")
    return SIMILARITIES[name].score


# ---- matrices of scores

def load_scores(path: str, **data) -> Embeddings:
    """Map a ready matrix of scores (N, M), images x captions."""
    scores = read_array(path, "write it with np.save, images x captions; embeddings go to --embeddings")
    return read_scores(path, scores, **data)


def read_scores(path: str, scores: np.ndarray, owner: np.ndarray | None = None, **data) -> Embeddings:
    """Read a matrix of scores (N, M), images x captions.

    path: names it in sentences; owner: the row of each caption's image (M,), None where it is not
    known; data: as `identify_items` takes them.
    """
    check(scores.ndim == 2 and scores.dtype.kind == "f",
          f"{path} holds {scores.dtype} of shape {scores.shape}; scores are floats, images x captions")
    n, m = scores.shape
    each, turned = 1, False
    if owner is None:                                       # which tells images apart
        if n == m:
            each = count_repeats(scores, path) or 1
        turned = n > m or n == m and each == 1 and count_repeats(scores.T, path) > 1
    if turned:
        raise InputError(f"{path} has {n:,} rows and {m:,} columns and seems turned on its side: rows are images, "
                         "columns captions; save it with np.save(path, scores.T)")
    notes = [describe_repeats(path, n, each)] if each > 1 else []
    arrays = {} if owner is None else {"caption_image": owner}
    e = identify_items(path, n // each, m, arrays, **data)  # it names no items: their order is that of the split
    with np.errstate(over="ignore"):                        # ranking finds infinity in our words
        matrix = scores[::each].astype(np.float32, copy=False)
    return replace(e, matrix=matrix, similarity="scores", notes=[*e.notes, *notes])


# ---- the items of a file

def identify_items(path: str, n: int, m: int, arrays: dict, *, split: str | None = None, data_path: str | None = None,
                   data_name: str | None = None, dev_images: int | None = None) -> Embeddings:
    """The items that a file of N images and M captions is about, without embeddings.
    With a data_name they are those of the split, with which all that the file says is compared. Else they are what the
    file says, else M / N captions per image, in order."""
    stored, split = name_split(arrays.get("split", "")), name_split(split or "")
    check(not (split and stored) or split == stored, f"--split {split}: {path} says that it is of the split {stored}; "
                                                     "leave --split out, or give a file of the other")
    split, owner, theirs, notes = stored or split, arrays.get("caption_image"), None, []
    folder = os.path.join(data_path or "data", data_name or ".")
    if data_name:
        testall = os.path.isfile(os.path.join(folder, "testall_caps.txt"))          # all 5,000 images
        for name in [split] if split else ["test", *["testall"] * testall]:
            theirs = list_items(read_split(data_path or "data", data_name, name, dev_images=dev_images or 0,
                                           text_only=True), data_name)
            there = theirs.n_images, len(theirs.caption_image)
            if there == (n, m):
                break
        check(there == (n, m), f"{path} has {n} images and {m} captions, {data_name} {name} has {there[0]} and "
                               f"{there[1]}; they must be the same items")
        owner = theirs.caption_image if owner is None else owner
    elif owner is None:
        check(n and m % n == 0, f"{path} has {m} captions for {n} images and does not say whose they are; add "
                                "caption_image, or name the split with --data_path, --data_name and --split")
        owner = np.arange(m) // (m // n)
        notes = [f"{path} does not say whose caption each is: {m // n} per image, in order, assumed (caption_image "
                 "says it)"]
    check(len(owner) == m > 0 and 0 <= owner.min() and owner.max() < n,
          f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each one's image")
    ids = {name: arrays[name].tolist() for name in ("image_id", "image_name", "caption_id") if name in arrays}
    for name, x in ids.items():
        count = m if name == "caption_id" else n
        check(len(x) == count, f"{path}: {name} must hold one for each of {count} and holds {len(x)}; leave it out, or "
                               "write it again")
    e = Embeddings(path, owner.astype(np.int64), n, ids=ids, split=split, data_name=arrays.get("data_name", ""),
                   folder=folder, notes=notes)
    if theirs:
        e = replace(theirs, name=path, folder=folder, notes=[*theirs.notes, *check_same_items(e, theirs)])
    return e
