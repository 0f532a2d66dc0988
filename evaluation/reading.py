"""Embeddings of any model from files, and precomputed scores.

`load_file` reads an .npz (arrays of ARRAYS or SCORES), a dict of the same in a .pt or .safetensors,
a folder of .npy files, a .parquet with one row per caption, or an .npy of scores, and returns
`Embeddings`. Loading runs no code from a file. All that reads a file raises InputError where it is
missing, broken or of other items.
"""

import glob
import math
import os
import re
import zipfile
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

import metrics
import tables
from data import read_split
from evaluation.embeddings import (
    Embeddings,
    Member,
    check_same_items,
    check_sides,
    list_items,
)
from images import SQUARABLE, count_repeats
from losses import SIMILARITIES, Embedding, list_functions
from utils import InputError, dev_for_val, read_array, read_arrays, refusing

MAX_DIMENSIONS = 2**16  # of a space, of which an effective dimension is a part
SAVE = (
    "save the arrays with np.savez('e.npz', image_mean={}, caption_mean={}, caption_image=owner): "
    "(N, D), (M, D) and (M,), the row of each caption's image"
)


class ArrayKind(NamedTuple):
    """What an array of a file of embeddings has to be."""

    axes: int
    kinds: str  # letters of numpy's types
    words: str  # the same in words


MATRIX = ArrayKind(2, "fiu", "numbers (items, D)")
WHOLE_NUMBERS = ArrayKind(1, "iu", "whole numbers")
NAMES_OF_ITEMS = ArrayKind(1, "U", "names")
ONE_NUMBER = ArrayKind(0, "fiu", "one number")
ONE_TEXT = ArrayKind(0, "U", "one text, as np.array('...')")
# What a file of embeddings may hold.
ARRAYS = {
    "image_mean": MATRIX,
    "caption_mean": MATRIX,
    "image_log_var": MATRIX,
    "caption_log_var": MATRIX,
    "caption_image": WHOLE_NUMBERS,
    "image_id": WHOLE_NUMBERS,
    "caption_id": WHOLE_NUMBERS,
    "image_name": NAMES_OF_ITEMS,
    "effective_dim": ONE_NUMBER,
    "logit_scale": ONE_NUMBER,
    "logit_bias": ONE_NUMBER,
    "similarity": ONE_TEXT,
    "data_name": ONE_TEXT,
    "split": ONE_TEXT,
}


# What a file of scores may hold, images x captions and captions x images, beside names of items.
SCORES = ("scores", "scores_i2t", "scores_t2i")


def is_run(path: str) -> bool:
    """True unless a path ends as embeddings or scores do, or is a folder of embeddings."""
    endings = (".npz", ".npy", ".safetensors", ".parquet")
    if path.lower().endswith(endings) or is_dict_of_embeddings(path):
        return False
    return not is_folder_of_embeddings(path)


def load_file(path: str, sim: str | None = None, by_direction: bool = False, **data) -> Embeddings:
    """Read embeddings (.npz, .pt, .safetensors, .parquet, a folder) or scores of any model.

    Args:
        path: the file; scores are an .npy, or arrays of SCORES in a file of arrays.
        sim: a similarity in place of the file's.
        by_direction: whether a matrix for each direction is read, too.
        data: as `identify_items` takes them.
    """
    if os.path.isdir(path):
        return read_arrays_of_model(path, read_folder(path), sim, **data)
    if path.lower().endswith(".npy"):
        refuse_similarity(path, sim)
        return load_scores(path, **data)

    if is_file_of_torch(path):
        arrays = read_dict_of_torch(path)
    elif path.lower().endswith(".safetensors"):
        arrays = read_safetensors(path)
    elif path.lower().endswith(".parquet"):
        arrays = read_parquet_of_embeddings(path)
    else:
        arrays = read_arrays(path, f"write it with --export, or {SAVE.format('x', 'y')}")
    if not set(arrays).isdisjoint(SCORES):
        refuse_similarity(path, sim)
        return read_matrices(path, arrays, by_direction, **data)
    return read_arrays_of_model(path, arrays, sim, **data)


def refuse_similarity(path: str, sim: str | None) -> None:
    """Raise InputError where a similarity is named for a file of scores."""
    if sim:
        raise InputError(f"--sim {sim} computes nothing from the scores of {path}; leave it out")


# ---- files of PyTorch


def is_file_of_torch(path: str) -> bool:
    """Return whether a file ends as PyTorch's do, or is one by its content."""
    if not os.path.isfile(path):  # a pipe may never end
        return False
    return path.lower().endswith((".pt", ".pth", ".bin", ".ckpt")) or bool(read_pickle(path))


def is_dict_of_embeddings(path: str) -> bool:
    """Return whether a file of PyTorch holds embeddings, which a checkpoint does not."""
    if not os.path.isfile(path):
        return False
    described = read_pickle(path)
    # whose words may be among those names; a long vocabulary stands before best_rsum
    is_checkpoint = b"best_rsum" in described or b"vocabulary" in described
    names = (b"image_mean", b"caption_image", b"scores")
    return not is_checkpoint and any(name in described for name in names)


def read_pickle(path: str) -> bytes:
    """Read, and do not run, the first MiB of what describes the content of a file of PyTorch."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    with archive.open(name) as file:
                        return file.read(2**20)
    except (OSError, zipfile.BadZipFile):
        pass
    return b""


def read_dict_of_torch(path: str) -> dict[str, np.ndarray]:
    """Read a dict of tensors, numbers and texts, as torch.save writes it. No code of it is run."""
    line = SAVE.format("d['image_mean'].numpy()", "d['caption_mean'].numpy()")
    with refusing(f"{path} cannot be read as a dict of tensors", line):
        found = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(found, dict):
            return {str(name): to_array(x) for name, x in found.items()}
    kind = type(found).__name__
    raise InputError(f"{path} holds a {kind}, not a dict with image_mean and caption_mean; {line}")


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """Read the tensors of a .safetensors, and the texts of its metadata."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise InputError(
            f"{path} needs the package safetensors: pip install safetensors, or "
            f"{SAVE.format('x', 'y')}"
        ) from None

    arrays = {}
    with refusing(f"{path} is damaged or not a .safetensors file", SAVE.format("x", "y")):
        with safe_open(path, framework="pt") as file:
            for name, text in (file.metadata() or {}).items():
                if name in ARRAYS:
                    arrays[name] = np.array(text)
            for name in file.keys():
                arrays[name] = to_array(file.get_tensor(name))
    return arrays


def to_array(x) -> np.ndarray:
    """Convert a tensor, a number, a text or a list of texts to an array."""
    if not isinstance(x, torch.Tensor):
        return np.array(x)
    if x.dtype == torch.bfloat16:  # which numpy lacks
        x = x.float()
    return x.detach().numpy()


# ---- Parquet: one row per caption

# Other names of columns of vectors.
NAMES_OF_VECTORS = {
    "image_embedding": "image_mean",
    "caption_embedding": "caption_mean",
    "text_embedding": "caption_mean",
}
# What tells the images of two rows apart, the first of these that is there.
COLUMNS_OF_IMAGES = ("caption_image", "image_id", "image_name", *tables.IMAGE_COLUMNS)


def read_parquet_of_embeddings(path: str) -> dict[str, np.ndarray]:
    """Read columns of vectors, and what names their images, as arrays of ARRAYS.

    Rows of one image, by caption_image, its id, its name or its path, hold its vector each. Single
    texts and numbers, such as similarity, are read from the metadata of the schema.
    """
    table = tables.read_parquet(path)
    arrays = {}
    for name, kind in ARRAYS.items():
        text = (table.schema.metadata or {}).get(name.encode())
        if text is not None and kind == ONE_TEXT:
            arrays[name] = np.array(text.decode())
        elif text is not None and kind == ONE_NUMBER:
            with refusing(f"{path}: {name} in its metadata is not a number", "write it as such"):
                arrays[name] = np.array(float(text))
    for name in table.column_names:
        wanted = NAMES_OF_VECTORS.get(name, name)
        if ARRAYS.get(wanted) == MATRIX:
            arrays[wanted] = tables.read_vectors(table.column(name), f"{path}, {name}")
        elif name == "caption_id":
            arrays[name] = np.array(table.column(name).to_pylist())
    if "image_mean" not in arrays or "caption_mean" not in arrays:
        raise InputError(
            f"{path} has the columns {', '.join(table.column_names)[:200]}; embeddings are read "
            "from columns image_mean and caption_mean, a list of numbers in each row, a row a "
            "caption"
        )

    for name in COLUMNS_OF_IMAGES:
        if name in table.column_names:
            keep_images_of_rows(path, arrays, name, table.column(name).to_pylist())
            break
    return arrays


def keep_images_of_rows(path: str, arrays: dict[str, np.ndarray], name: str, keys: list) -> None:
    """Keep the vector of each image once, in place, and add caption_image.

    keys (M,): of the column `name` of the file `path`, equal for the rows of one image. Rows of
    images are numbered by caption_image, else in the order in which they come. Raises InputError on
    a row without a key.
    """
    # Hugging Face's feature Image is {"bytes", "path"}
    keys = [key.get("path") if isinstance(key, dict) else key for key in keys]
    for m, key in enumerate(keys):
        if not isinstance(key, (int, float, str)):
            raise InputError(
                f"{path}: row {m + 1} does not name its image in the column {name}; add a column "
                "image_id or image_name that is equal for the captions of one image"
            )

    first = {}  # {key: the first row of the image}
    for m, key in enumerate(keys):
        first.setdefault(key, m)
    order = list(first)
    numbered = name == "caption_image" and sorted(order) == list(range(len(order)))
    if numbered:
        order = sorted(order)
    position = {key: n for n, key in enumerate(order)}

    rows = [first[key] for key in order]
    for side in ("image_mean", "image_log_var"):
        if side in arrays:
            arrays[side] = arrays[side][rows]
    arrays["caption_image"] = np.array([position[key] for key in keys], np.int64)
    if name != "caption_image":
        kind = "image_id" if all(isinstance(key, int) for key in order) else "image_name"
        arrays[kind] = np.array(order)


# ---- arrays of embeddings


def read_arrays_of_model(
    path: str, arrays: dict[str, np.ndarray], sim: str | None = None, **data
) -> Embeddings:
    """Read the arrays of a file of embeddings, which ARRAYS lists.

    Args:
        path: names them in sentences.
        arrays: by name.
        sim: a similarity in place of the one that they name.
        data: as `identify_items` takes them.
    """
    arrays = check_arrays(path, arrays)
    name = sim or arrays.get("similarity") or "cosine"
    similarity = read_similarity(name, arrays.get("effective_dim", 0), path)

    images = read_side(arrays, "image", path, name)
    captions = read_side(arrays, "caption", path, name)
    if name in ("dot", "order"):
        images, captions = scale_points(images, captions)
    check_widths(path, name, images, captions)
    check_sides(name, images, captions, path)

    m = len(captions.mean)
    repeats, notes = count_rows_of_image(path, m, arrays)
    if repeats > 1:
        images = images.rows(slice(None, None, repeats))
        keep_one_row_of_image(arrays, m, repeats)

    notes += describe_degenerate(path, "image", images.mean, name)
    notes += describe_degenerate(path, "caption", captions.mean, name)
    if not sim and "similarity" not in arrays:
        unused = ""
        if images.log_var is not None or captions.log_var is not None:
            unused = ", and its variances are not used"
        notes.append(
            f"{path} names no similarity; using the cosine of the means{unused} "
            "(--sim chooses another)"
        )

    e = identify_items(path, len(images.mean), m, arrays, **data)
    members = [Member(similarity, images, captions)]
    logits = {key: arrays[key] for key in ("logit_scale", "logit_bias") if key in arrays}
    return replace(e, members=members, similarity=name, notes=[*e.notes, *notes], logits=logits)


def check_arrays(path: str, arrays: dict[str, np.ndarray]) -> dict:
    """Return arrays by name, arrays of one value as this value.

    Raises InputError on unknown names, types and shapes.
    """
    checked = {}
    for name, x in arrays.items():
        if name not in ARRAYS:
            raise InputError(
                f"{path} has an array '{name[:40]}', unknown here; it may hold {', '.join(ARRAYS)}"
            )
        axes, kinds, words = ARRAYS[name]
        one_value = axes == 0 and x.size == 1
        if x.dtype.kind not in kinds or not (x.ndim == axes or one_value):
            raise InputError(
                f"{path}: {name} must hold {words}, and has shape {x.shape} of {x.dtype}; write it "
                "so, or leave it out"
            )
        if axes == 0:
            x = x.item()
        checked[name] = x
    return checked


def read_similarity(name: str, effective_dim: float, path: str):
    """Find the similarity of this name, with what it learned."""
    if not effective_dim <= MAX_DIMENSIONS:  # NaN, too
        raise InputError(
            f"{path} has effective_dim {effective_dim:g}, of at most {MAX_DIMENSIONS:,} "
            "dimensions; write the number that the model learned"
        )
    if name in list_functions():
        return SIMILARITIES[name].score
    if name == "mls" and effective_dim > 0:
        return SIMILARITIES[name].score(effective_dim)

    lacks = "which cannot be computed from a file of embeddings"
    if name == "mls":
        lacks = "and no number 'effective_dim' above 0, which it learned"
    raise InputError(
        f"{path} has similarity '{name}', {lacks}; evaluate the run, or rank by another similarity "
        f"with --sim, one of {', '.join(list_functions())}"
    )


def read_side(arrays: dict, side: str, path: str, similarity: str) -> Embedding:
    """Read means and log-variances of "image" or "caption", in float32.

    Of means that are compared by the cosine, rows that float32 cannot square are scaled.
    """
    mean = arrays.get(f"{side}_mean")
    log_var = arrays.get(f"{side}_log_var")
    right = mean is not None
    if right and log_var is not None:
        right = log_var.shape in (mean.shape, (len(mean), 1))
    if not right:
        held = ", ".join(f"{name} {np.shape(x)}" for name, x in arrays.items())
        raise InputError(
            f"{path} needs {side}_mean of shape (items, D), and {side}_log_var, where given, of "
            f"the same shape or (items, 1); it holds {held or 'nothing'}"
        )

    any_size = similarity in ("cosine", "dot", "order")
    mean = read_numbers(mean, f"{side}_mean", path, any_size, similarity == "cosine")
    if log_var is not None:
        log_var = read_numbers(log_var, f"{side}_log_var", path)
    return Embedding(mean, log_var)


def read_numbers(
    x: np.ndarray, name: str, path: str, any_size: bool = False, by_rows: bool = False
) -> torch.Tensor:
    """Check numbers (N, D), and convert them to float32.

    Args:
        x: the array.
        name: its name.
        path: its file.
        any_size: numbers of any size are read, in float64 where float32 cannot square them.
        by_rows: rows that float32 cannot square are multiplied by a power of two, which leaves
            their directions.
    """
    dtype = x.dtype.newbyteorder("=")  # torch reads no other byte order
    if dtype.kind != "f" or dtype.itemsize > 8:
        dtype = np.float64
    x = np.ascontiguousarray(x, dtype)
    if not x.flags.writeable:  # of a mapped file, which torch would warn of
        x = x.copy()

    largest = float(np.abs(x).max(initial=0))  # of float16, a comparison would warn
    if not np.isfinite(largest) or largest > SQUARABLE and not any_size:
        raise InputError(
            f"{path} holds NaN, infinity or numbers above {SQUARABLE:g} in {name}, whose squares "
            "float32 cannot add up; check the embeddings, and scale all means alike"
        )
    if by_rows:
        return metrics.scale_rows(torch.from_numpy(x)).float()
    if any_size and (largest > SQUARABLE or largest < metrics.SMALLEST_SQUARABLE):
        return torch.from_numpy(x).double()
    return torch.from_numpy(np.asarray(x, np.float32))


def scale_points(images: Embedding, captions: Embedding) -> tuple[Embedding, Embedding]:
    """Multiply all means by one power of two where float32 cannot square them; ranks stay."""
    largest = 0.0
    for side in (images, captions):
        if side.mean.numel():
            largest = max(largest, float(side.mean.abs().max()))

    scaled = []
    for side in (images, captions):
        mean = side.mean
        if largest > SQUARABLE or 0 < largest < metrics.SMALLEST_SQUARABLE:
            exponent = math.frexp(largest)[1]
            mean = mean.double() * 2.0 ** -max(-1000, min(1000, exponent))
        scaled.append(side._replace(mean=mean.float()))
    return tuple(scaled)


def check_widths(path: str, name: str, images: Embedding, captions: Embedding) -> None:
    """Raise InputError where the widths of means differ, or mls has several variances an item."""
    for side in (images, captions):
        if name == "mls" and side.log_var is not None and side.log_var.shape[1] != 1:
            raise InputError(
                f"{path} has similarity 'mls', which needs one log-variance per item, "
                f"but {side.log_var.shape[1]} of each; write them as (items, 1), or rank by "
                "--sim csd"
            )

    width_of_images = images.mean.shape[1]
    width_of_captions = captions.mean.shape[1]
    if width_of_images != width_of_captions or width_of_captions == 0:
        raise InputError(
            f"{path} has image means of width {width_of_images} and caption means of width "
            f"{width_of_captions}; they live in one space, so the widths must be equal"
        )


def describe_degenerate(path: str, side: str, mean: torch.Tensor, similarity: str) -> list[str]:
    """Note means (N, D) that are all one, or that are zero and so have no direction."""
    if len(mean) > 1 and bool((mean == mean[0]).all()):
        return [f"{path}: all {len(mean):,} rows of {side}_mean are equal, so their ranks are ties"]

    zero = int((mean == 0).all(1).sum())
    if not zero or similarity != "cosine":
        return []
    return [
        f"{path}: zero vectors in {side}_mean: {zero:,} of {len(mean):,}; they have no direction "
        "and score 0 with every item"
    ]


# ---- rows of images that repeat, as in VSE++'s files


def count_rows_of_image(path: str, captions: int, arrays: dict) -> tuple[int, list[str]]:
    """Count the equal rows of each image, one a caption in VSE++'s layout and else 1, and note it.

    Ids and names of images, and captions of their own by caption_image, tell equal rows apart.
    """
    rows = len(arrays["image_mean"])
    if rows != captions:
        return 1, []

    vectors = [arrays[name] for name in ("image_mean", "image_log_var") if name in arrays]
    names = []
    for key in ("image_id", "image_name"):
        if len(arrays.get(key, ())) == rows:
            names.append(np.unique(arrays[key], return_inverse=True)[1])  # (N,) whole numbers
    counts = [count_repeats(x, path) for x in vectors + names]
    repeats = math.gcd(*counts) or 1
    if repeats == 1:
        return 1, []

    owner = arrays.get("caption_image")
    if owner is not None and not names and owner.max(initial=0) >= rows // repeats:
        named = np.unique(owner)  # rows that captions name
        if len(np.unique(named // repeats)) < len(named):
            return 1, [
                f"{path}: its {rows:,} rows of images repeat in groups of {repeats}, but "
                "caption_image gives the copies different captions, so they count as "
                f"{rows:,} images; if each image is only repeated once per caption, leave "
                "caption_image out"
            ]
    return repeats, [describe_repeats(path, rows, repeats)]


def keep_one_row_of_image(arrays: dict, rows: int, repeats: int) -> None:
    """Keep every `repeats`-th of the rows of images, in place, and count caption_image by them."""
    for name, x in arrays.items():
        if name.startswith("image_") and len(x) == rows:
            arrays[name] = x[::repeats]

    owner = arrays.get("caption_image")
    if owner is not None and owner.max(initial=0) >= rows // repeats:
        arrays["caption_image"] = owner // repeats  # it counts the repeated rows


def describe_repeats(path: str, rows: int, repeats: int) -> str:
    """Note how many images there are in so many rows."""
    return (
        f"{path}: its {rows:,} rows of images are {rows // repeats:,} images, each repeated "
        f"{repeats} times"
    )


# ---- a folder of .npy files

# In the name of a file, or else of its folders: whose embeddings it holds.
WORDS_OF_SIDE = {"image": ("img", "image"), "caption": ("text", "txt", "cap")}


def find_side(path: str) -> str | None:
    """Tell from a path in a folder whose embeddings a file holds: "image", "caption" or None."""
    for name in (os.path.basename(path), path):
        sides = []
        for side, words in WORDS_OF_SIDE.items():
            if any(word in name.lower() for word in words):
                sides.append(side)
        if len(sides) == 1:
            return sides[0]
    return None


def list_arrays_of_sides(folder: str) -> dict[str, list[str]]:
    """List the .npy files in a folder that hold embeddings: {"image": paths, "caption": paths}.

    The parts of one array, NAME_0.npy, NAME_1.npy, ..., stand in the order of their numbers.
    """
    files = {side: [] for side in WORDS_OF_SIDE}
    for path in glob.glob(os.path.join(glob.escape(folder), "**", "*.npy"), recursive=True):
        side = find_side(os.path.relpath(path, folder))
        if side:
            files[side].append(path)
    for paths in files.values():
        paths.sort(key=split_at_numbers)
    return files


def split_at_numbers(path: str) -> list[str | int]:
    """Split a path into texts and whole numbers, so that part 10 comes after part 9."""
    parts = re.split("([0-9]+)", path)
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts


def is_folder_of_embeddings(path: str) -> bool:
    """True for a folder with .npy files of images and of captions, and without a checkpoint."""
    if not os.path.isdir(path) or glob.glob(os.path.join(glob.escape(path), "*.pt")):
        return False
    return all(list_arrays_of_sides(path).values())


def read_folder(folder: str) -> dict[str, np.ndarray]:
    """Read the .npy files of a folder: {"image_mean": (N, D), "caption_mean": (M, D)}.

    clip-retrieval writes such a folder, img_emb/img_emb_0.npy and text_emb/text_emb_0.npy.
    caption_image.npy is read, too, if it is there. Raises InputError where a side is missing or has
    several arrays.
    """
    arrays = {}
    owner_file = os.path.join(folder, "caption_image.npy")
    if os.path.isfile(owner_file):
        arrays["caption_image"] = read_array(owner_file, "write it with np.save")
    for side, paths in list_arrays_of_sides(folder).items():
        if not paths:
            words = " or ".join(WORDS_OF_SIDE[side])
            raise InputError(
                f"{folder} is a folder without {side} embeddings, an .npy file with {words} in its "
                f"name; {SAVE.format('x', 'y')}"
            )
        names = {re.sub("[0-9]+", "0", path) for path in paths}
        if len(names) > 1:
            line = SAVE.format("np.load('FILE of images')", "np.load('FILE of captions')")
            raise InputError(
                f"{folder} holds several arrays of {side} embeddings, {paths[0]} and {paths[-1]}; "
                f"{line}"
            )

        parts = [read_array(path, "write it with np.save") for path in paths]
        mean = parts[0]
        if len(parts) > 1:
            what = f"{paths[0]} and the other parts of {side} embeddings do not fit together"
            with refusing(what, "write arrays (items, D) of one D"):
                mean = np.concatenate(parts)
        arrays[f"{side}_mean"] = mean
    return arrays


# ---- matrices of scores


def load_scores(path: str, **data) -> Embeddings:
    """Map a precomputed matrix of scores (N, M), images x captions."""
    fix = f"write scores with np.save, images x captions; for embeddings, {SAVE.format('x', 'y')}"
    return read_scores(path, read_array(path, fix), **data)


def read_matrices(path: str, arrays: dict, by_direction: bool, **data) -> Embeddings:
    """Read the scores of a file, one matrix for both directions or one for each.

    arrays: "scores" (N, M), or "scores_i2t" (N, M) and "scores_t2i" (M, N), and what ARRAYS has of
    the items. Raises InputError on others, and on two matrices where `by_direction` is False.
    """
    names = [name for name in SCORES if name in arrays]
    items = {name: x for name, x in arrays.items() if name not in SCORES}
    if names not in (["scores"], ["scores_i2t", "scores_t2i"]):
        raise InputError(
            f"{path} holds {' and '.join(names)}; give scores, images x captions, or both "
            "scores_i2t, images x captions, and scores_t2i, captions x images"
        )
    vectors = [name for name in items if name.endswith(("_mean", "_log_var"))]
    if vectors:
        raise InputError(
            f"{path} holds {names[0]} and {vectors[0]}, two sources of ranks; give scores, or "
            "embeddings"
        )
    items = check_arrays(path, items)
    if names == ["scores"]:
        return read_scores(path, arrays["scores"], items, **data)

    if not by_direction:
        raise InputError(
            f"{path} holds a matrix for each direction, which evaluate.py alone reads; give one "
            "matrix, scores, images x captions"
        )
    first = arrays["scores_i2t"]
    second = arrays["scores_t2i"]
    if first.shape != second.shape[::-1]:
        raise InputError(
            f"{path}: scores_i2t has shape {first.shape} and scores_t2i {second.shape}; scores_i2t "
            "is images x captions, scores_t2i captions x images"
        )
    return join_matrices([read_scores(path, x, items, **data) for x in (first, second.T)])


def join_matrices(parts: list[Embeddings]) -> Embeddings:
    """Join the scores of one or two directions, which are of the same items."""
    e = parts[0]
    if len(parts) == 1:
        return e
    if parts[1].n_images != e.n_images:
        raise InputError(
            f"{e.name}: rows of images repeat in one direction and not in the other; give "
            "caption_image, the row of each caption's image"
        )
    notes = dict.fromkeys([*e.notes, *parts[1].notes])
    return replace(e, matrix_t2i=parts[1].matrix, notes=list(notes))


def read_scores(path: str, scores: np.ndarray, items: dict | None = None, **data) -> Embeddings:
    """Read a matrix of scores (N, M), images x captions.

    Args:
        path: names it in sentences.
        scores: the matrix; rows of images may repeat, as in VSE++'s files.
        items: what is known of the items, arrays of ARRAYS such as caption_image.
        data: as `identify_items` takes them.
    """
    if scores.ndim != 2 or scores.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds {scores.dtype} of shape {scores.shape}; scores are numbers, images x "
            "captions"
        )

    n, m = scores.shape
    repeats = 1
    arrays = dict(items or {})
    if "caption_image" not in arrays:  # which tells images apart
        if n == m:
            repeats = count_repeats(scores, path) or 1
        square = n == m and repeats == 1
        if n > m or square and count_repeats(scores.T, path) > 1:
            raise InputError(
                f"{path} has {n:,} rows and {m:,} columns and seems transposed: rows are images, "
                "columns captions; save it with np.save(path, scores.T)"
            )

    # a matrix names no items: their order is that of the split
    e = identify_items(path, n // repeats, m, arrays, **data)
    notes = list(e.notes)
    if repeats > 1:
        notes.append(describe_repeats(path, n, repeats))
    with np.errstate(over="ignore"):  # ranking reports infinity
        matrix = scores[::repeats].astype(np.float32, copy=False)
    return replace(e, matrix=matrix, similarity="scores", notes=notes)


# ---- the items of a file


def identify_items(
    path: str,
    n: int,
    m: int,
    arrays: dict,
    *,
    split: str | None = None,
    data_path: str | None = None,
    data_name: str | None = None,
    dev_images: int | None = None,
) -> Embeddings:
    """Find the items that a file of N images and M captions is about, without embeddings.

    With a data_name they are those of the split, with which all that the file says is compared.
    Else they are what the file says, else M / N captions per image, in order.

    Args:
        path: of the file.
        n: number of images.
        m: number of captions.
        arrays: of the file, with what it says of the items.
        split: its name; None: what the file says.
        data_path: folder of the data sets.
        data_name: the data set.
        dev_images: of dev, 0 or None all.
    """
    stored = dev_for_val(arrays.get("split", ""))
    given = dev_for_val(split or "")
    if given and stored and given != stored:
        raise InputError(
            f"--split {given}: {path} says that it is of the split {stored}; leave --split out, or "
            "give a file of the other"
        )

    split = stored or given
    folder = os.path.join(data_path or "data", data_name or ".")
    owner = arrays.get("caption_image")
    theirs = None
    notes = []
    if data_name:
        theirs = find_items(path, n, m, split, data_path or "data", data_name, dev_images or 0)
        if owner is None:
            owner = theirs.caption_image
    elif owner is None:
        owner = assume_order(path, n, m)
        notes.append(
            f"{path} does not say which image each caption belongs to, so {m // n} per image, in "
            "order, are assumed; add caption_image to say it"
        )

    if len(owner) != m or m == 0 or owner.min() < 0 or owner.max() >= n:
        raise InputError(
            f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each "
            "one's image"
        )
    e = Embeddings(
        path,
        owner.astype(np.int64),
        n,
        ids=read_ids_of_items(path, arrays, n, m),
        data_name=arrays.get("data_name", ""),
        split=split,
        folder=folder,
        notes=notes,
    )
    if theirs is None:
        return e
    notes = [*theirs.notes, *check_same_items(e, theirs)]
    return replace(theirs, name=path, folder=folder, notes=notes)


def find_items(
    path: str, n: int, m: int, split: str, data_path: str, data_name: str, dev_images: int
) -> Embeddings:
    """List the items of the split that has N images and M captions.

    split: its name; without one it is test, or testall where the data set has it. Raises InputError
    where the sizes differ.
    """
    splits = [split]
    if not split:
        splits = ["test"]
        if os.path.isfile(os.path.join(data_path, data_name, "testall_caps.txt")):
            splits.append("testall")  # all 5,000 images

    for name in splits:
        read = read_split(data_path, data_name, name, dev_images=dev_images, text_only=True)
        items = list_items(read, data_name)
        if (items.n_images, len(items.caption_image)) == (n, m):
            return items
    raise InputError(
        f"{path} has {n} images and {m} captions, but {data_name} {name} has {items.n_images} and "
        f"{len(items.caption_image)}; they must be the same items"
    )


def assume_order(path: str, n: int, m: int) -> np.ndarray:
    """Give each image M / N captions, in order: the row of each caption's image (M,)."""
    if n == 0 or m % n:
        raise InputError(
            f"{path} has {m} captions for {n} images and does not say whose they are; add "
            "caption_image, or name the split with --data_path, --data_name and --split"
        )
    return np.arange(m) // (m // n)


def read_ids_of_items(path: str, arrays: dict, n: int, m: int) -> dict[str, list]:
    """Read the ids and names of a file of N images and M captions. Raises InputError on others."""
    ids = {}
    for name, count in (("image_id", n), ("image_name", n), ("caption_id", m)):
        if name not in arrays:
            continue
        ids[name] = arrays[name].tolist()
        if len(ids[name]) != count:
            raise InputError(
                f"{path}: {name} must hold one for each of {count} and holds {len(ids[name])}; "
                "leave it out, or write it again"
            )
    return ids
