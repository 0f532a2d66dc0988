"""Where what is evaluated comes from: trained models, embeddings of any origin, ready score matrices.

Loading runs no code from a file: weights_only=True for checkpoints, allow_pickle=False for arrays.
"""
import argparse
import glob
import json
import os
import zipfile
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

import metrics
import originals
from data import Split, image_batches, read_split
from inputs import NoImages, Photos, Tokens
from losses import SIMILARITIES, Embedding
from model import JointEmbedding, build_model, build_vocabulary
from protocols import Subject
from vocab import InputError, Vocabulary, natural, writable

FORMAT = 1                            # of checkpoint.pt and model_best.pt


def load_checkpoint(path: str, name: str = "model_best.pt", vocab: str | None = None) -> dict:
    """Read a run folder's checkpoint or a checkpoint file, without running code from it; InputError if it is not one.

    A checkpoint of the original VSE++ or VSRN is converted; it needs its vocabulary, the JSON file `vocab`.
    """
    path = os.path.join(path, name) if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise InputError(f"there is no checkpoint {path}; give a run folder that holds {name}, or a file")
    stored = originals.read(path)
    if originals.is_original(stored):
        return originals.convert(stored, vocab and Vocabulary.load(vocab).words, path)
    if not isinstance(stored, dict) or not {"format", "options", "vocabulary", "model"} <= set(stored):
        raise InputError(f"{path} is no checkpoint of this project; give one that train.py wrote")
    if stored["format"] != FORMAT:
        raise InputError(f"{path} has checkpoint format {stored['format']}, this version reads format {FORMAT}; use the "
                         "version that wrote it, or train again")
    return stored


def load_weights(model: JointEmbedding, stored: dict, path: str = "the checkpoint") -> None:
    mine, theirs = ({name: tuple(x.shape) for name, x in state.items()} for state in (model.state_dict(), stored["model"]))
    wrong = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    if wrong:
        shapes = [found.get(wrong[0], "absent") for found in (theirs, mine)]
        raise InputError(f"the weights of {path} are not those of a model of these options ({wrong[0]} is {shapes[0]} there "
                         f"and {shapes[1]} here, {len(wrong)} differ); give the sizes, heads, encoders and terms of its "
                         "config.yaml")
    model.load_state_dict(stored["model"])


def load_model(stored: dict) -> tuple[JointEmbedding, Vocabulary, argparse.Namespace]:
    """The model of a checkpoint, in eval mode on the CPU, its vocabulary and its options."""
    from options import parse_args  # which imports this module

    defaults = vars(parse_args([]))                         # of options that are younger than the checkpoint
    opt = argparse.Namespace(**{**defaults, **stored["options"]})
    vocab = build_vocabulary(opt, stored["vocabulary"])
    model = build_model(opt, vocab, pretrained=False)
    load_weights(model, stored)
    return model.eval(), vocab, opt


def torch_device(name: str) -> torch.device:
    """auto: CUDA when present."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device is here; use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


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


def validate(model: JointEmbedding, split: Split, tokens: Tokens, device, workers: int = 0) -> dict:
    """Recalls of one split as `metrics.retrieval` gives them."""
    return metrics.retrieval_blocks(model.similarity, *encode(model, split, tokens, device, workers=workers),
                                    split.caption_image)


def run_arguments(p: argparse.ArgumentParser, split: str) -> None:
    """The options of commands that show what one run makes of a split; `split` says what the split is for."""
    p.add_argument("--checkpoint", metavar="RUN", help="run folder or checkpoint file (default: the newest run)")
    p.add_argument("--data_path", help="folder that holds the data sets (default: that of the training)")
    p.add_argument("--data_name", help="data set (default: that of the training)")
    p.add_argument("--split", default="test", help=split)
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    p.add_argument("--workers", type=natural, default=min(10, os.cpu_count() or 1),
                   help="processes that read photos or large feature files")


def newest_run(root: str = "runs") -> str:
    found = glob.glob(os.path.join(root, "**", "model_best.pt"), recursive=True)
    if not found:
        raise InputError(f"no run is in {root}/; train one with train.py, or name a run folder with --checkpoint")
    return os.path.dirname(max(found, key=os.path.getmtime))


def output_file(given: str | None, run: str, name: str) -> str:
    """`given`, else `name` in a run folder or beside a file; `writable`, which is not tried where there is no `run`."""
    path = given or os.path.join(run if os.path.isdir(run) else os.path.dirname(run), name)
    return writable(path) if given or os.path.exists(run) else path


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


def check_extractors(trained: dict | None, split: Split, text_features: str | None, path: str) -> None:
    """Refuse features whose recorded extractor (features.json) is not that of the training."""
    for kind in ("ims", text_features):
        before, now = ((made or {}).get(kind) for made in (trained, split.extractors))
        if before and now and before != now:
            what = "image features" if kind == "ims" else f"caption features '{kind}'"
            raise InputError(f"{split.source}: the {what} beside it were made by '{now}', {path} was trained on those of "
                             f"'{before}'; extract them with the same network or vectors")


class Run(NamedTuple):
    """A trained model, in eval mode on the CPU, and the split that it is shown."""
    model: JointEmbedding
    vocab: Vocabulary
    trained: argparse.Namespace                             # the options of its training
    state: dict                                             # epoch, best_rsum, ...
    folder: tuple[str, str]                                 # data_path and data_name of the split
    split: Split

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
    model, words, trained = load_model(stored)
    folder, lead = (opt.data_path or trained.data_path, opt.data_name or trained.data_name), first.trained if first else trained
    if first and not opt.data_name and len({os.path.realpath(os.path.join(*f)) for f in (folder, first.folder)}) > 1:
        raise InputError(f"{path} was trained on {os.path.join(*folder)}, the first run on {os.path.join(*first.folder)}; an "
                         "ensemble needs one split, so name the data of both with --data_name")
    folder = first.folder if first else folder
    if first and trained.text_features == lead.text_features:
        split = first.split
    else:
        split = read_split(*folder, opt.split, text_only=text_only, text_features=trained.text_features,
                           dev_images=lead.dev_images if dev_images is None else dev_images).require_sound()
    check_fits(trained, split, path)
    check_extractors(stored["data"].get("extractors") if "data" in stored else None, split, trained.text_features, path)
    return Run(model, words, trained, stored["state"], folder, split)


def save_json(value, path: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")
    os.replace(path + ".tmp", path)


def export(path: str, similarity: str, images: Embedding, captions: Embedding, split: Split) -> None:
    """Means, log-variances where there are any, whose caption each is, and ids where known, as .npz."""
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean, "image_log_var": images.log_var,
              "caption_log_var": captions.log_var}
    arrays = {name: value.cpu().numpy() for name, value in arrays.items() if value is not None}
    for ids in (split.image_ids, split.photo_names):
        if ids is not None:
            arrays["image_name" if isinstance(ids[0], str) else "image_id"] = np.array(ids)
    if split.caption_ids is not None:
        arrays["caption_id"] = split.caption_ids
    with open(path + ".tmp", "wb") as f:                    # then renamed: a kill leaves no half of it
        np.savez(f, caption_image=split.caption_image, similarity=np.array(similarity), **arrays)
    os.replace(path + ".tmp", path)


def open_run(paths: list[str], opt) -> Subject:
    """Encode a split by the models of run folders or checkpoint files; several are an ensemble."""
    device, subject, first = torch_device(opt.device), None, None
    for path in paths:
        run = load_run(path, opt, first, vocab=opt.vocab, dev_images=opt.dev_images, text_only=opt.cxc)
        first, split, trained = first or run, run.split, run.trained
        subject = subject or of_split(split, " + ".join(paths), run.folder)
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
        export(opt.export, subject.similarity, images, captions, split)
        held = f"means{' and log-variances' if subject.gaussian else ''} only"
        print(f"embeddings in {opt.export}" + ("" if subject.similarity in SIMILARITIES else
              f": {held}, from which its similarity '{subject.similarity}' cannot be recomputed"))
    return subject


def of_split(split: Split, name: str, folder: tuple[str, str]) -> Subject:
    photos = split.images.paths if isinstance(split.images, Photos) else None
    return Subject(name, "", split.caption_image, len(split.images), source=split.source, image_ids=split.image_ids,
                   caption_ids=None if split.caption_ids is None else split.caption_ids.tolist(), captions=split.captions,
                   photos=photos or split.photo_names, data_name=folder[1], folder=os.path.join(*folder))


def open_embeddings(path: str, opt) -> Subject:
    """Embeddings of any model: the arrays that --export writes (the README lists them)."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:   # an .npy file too
        raise InputError(f"{path} is no .npz file of plain arrays ({error}); write it with --export or np.savez") from error
    sides = []
    for side in ("image", "caption"):
        mean, log_var = arrays.get(f"{side}_mean"), arrays.get(f"{side}_log_var")
        if mean is None or mean.ndim != 2 or mean.dtype.kind not in "fiu" or (
                log_var is not None and log_var.shape not in (mean.shape, (len(mean), 1))):
            held = ", ".join(f"{name} {value.shape}" for name, value in arrays.items()) or "nothing"
            raise InputError(f"{path} needs {side}_mean of shape (items, D), and {side}_log_var, where given, of the same "
                             f"shape or (items, 1); it holds {held}")
        sides.append(Embedding(*(None if x is None else torch.from_numpy(np.ascontiguousarray(x, np.float32))
                                 for x in (mean, log_var))))
    widths = [e.mean.shape[1] for e in sides]
    if widths[0] != widths[1] or not widths[0]:
        raise InputError(f"{path} has image means of width {widths[0]} and caption means of width {widths[1]}; they live in "
                         "one space, so the widths must be equal")
    subject = described(path, opt, len(sides[0].mean), len(sides[1].mean), arrays)
    name = opt.sim or str(arrays.get("similarity", "cosine"))
    if name not in SIMILARITIES:
        raise InputError(f"{path} has similarity '{name}', which cannot be computed from a file of embeddings; evaluate the "
                         f"run, or rank by another similarity with --sim, one of {', '.join(SIMILARITIES)}")
    try:
        SIMILARITIES[name]().check(*sides)
    except ValueError as error:
        raise InputError(f"{path} does not fit --sim {name}: {error}") from error
    subject.similarity, subject.members = name, [(SIMILARITIES[name](), *sides)]
    return subject


def open_scores(path: str, opt) -> Subject:
    """A ready matrix of scores, images x captions, mapped and not read whole."""
    try:
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is no whole .npy file of numbers ({error}); write it with np.save") from error
    if not isinstance(scores, np.ndarray):
        raise InputError(f"{path} is no whole .npy file but holds several arrays; give one matrix, or embeddings to "
                         "--embeddings")
    if scores.ndim != 2 or scores.dtype.kind != "f":
        raise InputError(f"{path} holds {scores.dtype} of shape {scores.shape}; scores are floats, images x captions")
    subject = described(path, opt, *scores.shape, {})
    subject.similarity, subject.scores = "scores", scores
    return subject


def described(path: str, opt, n: int, m: int, arrays: dict) -> Subject:
    """Whose caption each is, and ids: from --data_name's split, else from the file, else m / n captions an image."""
    if opt.data_name:
        folder = opt.data_path or "data", opt.data_name
        split = read_split(*folder, opt.split, dev_images=opt.dev_images or 0, text_only=True)
        if (len(split.images), len(split.captions)) != (n, m):
            raise InputError(f"{path} has {n} images and {m} captions, {opt.data_name} {opt.split} has {len(split.images)} and "
                             f"{len(split.captions)}; they must be the same items in the same order")
        return of_split(split, path, folder)
    if "caption_image" not in arrays and (not n or m % n):
        raise InputError(f"{path} has {m} captions for {n} images and does not say whose they are; add caption_image, or name "
                         "the split with --data_path, --data_name and --split")
    caption_image = np.asarray(arrays.get("caption_image", np.arange(m) // max(1, m // max(1, n))))
    if caption_image.shape != (m,) or caption_image.dtype.kind not in "iu" or not m or not (
            0 <= caption_image.min() and caption_image.max() < n):
        raise InputError(f"{path}: caption_image must hold {m} whole numbers from 0 to {n - 1}, the row of each one's image")
    for key, count in (("image_id", n), ("caption_id", m), ("image_name", n)):
        if key in arrays and (arrays[key].shape != (count,) or (key != "image_name" and arrays[key].dtype.kind not in "iu")):
            raise InputError(f"{path}: {key} must hold {count} {'names' if key == 'image_name' else 'whole numbers'}, one for "
                             f"each, and has shape {arrays[key].shape} of {arrays[key].dtype}; leave it out or write it again")
    ids = {key: None if arrays.get(key) is None else arrays[key].tolist() for key in ("image_id", "caption_id")}
    return Subject(path, "", caption_image.astype(np.int64), n, source=path, image_ids=ids["image_id"],
                   caption_ids=ids["caption_id"], photos=arrays["image_name"].tolist() if "image_name" in arrays else None,
                   data_name=os.path.basename(path), folder=os.path.join(opt.data_path or "data", "."))


def open_subject(path: str, opt) -> Subject:
    return (open_embeddings(path, opt) if path.endswith(".npz") else open_scores(path, opt) if path.endswith(".npy")
            else open_run([path], opt))
