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

import items
import metrics
import originals
from cli import InputError, data_set, filename, reason, split_name, workers
from data import Split, image_batches, read_split
from files import FAULTS, holds_arrays, output, read_array, read_arrays, save_arrays
from inputs import SQUARABLE, NoImages, Photos, Tokens
from losses import SIMILARITIES, Cosine, Embedding
from model import JointEmbedding, build_model, build_vocabulary
from protocols import Subject
from vocab import Vocabulary

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
        return original(stored, path, vocab)
    if not isinstance(stored, dict) or not {"format", "options", "vocabulary", "model"} <= set(stored):
        raise InputError(f"{path} is no checkpoint of this project; give one that train.py wrote")
    if stored["format"] != FORMAT:
        told = stored["format"] if type(stored["format"]) is int else f"of type {type(stored['format']).__name__}"
        raise InputError(f"{path} has checkpoint format {told}, this version reads format {FORMAT}; use the version that wrote "
                         "it, or train again")
    check_contents(stored, path)
    stored["options"] = modern(stored["options"], path)
    for weights in (stored["model"], stored.get("average", {})):        # the BatchNorm of jWAE's latents had another name
        for name in [name for name in weights if "_tower.whiten." in name]:
            weights[name.replace(".whiten.", ".latent_norm.")] = weights.pop(name)
    return stored


def modern(options: dict, path: str) -> dict:
    """Options of an earlier state of this code by today's names. Raises InputError where this code has no such model."""
    if options.get("region_norm") == "features":            # until the first norm of VSRN's graph had its size
        if options.get("img_enc") == "vsrn":
            raise InputError(f"{path} is a VSRN whose first norm left regions of norm 1, which this version has not "
                             "(--region_norm entries makes them sqrt(D)); evaluate it with the version that trained it, or "
                             "train again")
        options = {**options, "region_norm": "entries"}
    if "latent_bn" in options:                              # until then jWAE's priors were counted times the batch
        batch_norm = {True: "batch", False: "none"}.get(options["latent_bn"])
        weights = {name: options[name] * options.get("batch_size", 128) for name in ("prior_images", "prior_captions")
                   if isinstance(options.get(name), float) and options[name]}
        options = {**options, "latent_norm": batch_norm or ("batch" if weights else None), **weights}
        del options["latent_bn"]
    return options


def original(stored: dict, path: str, vocab: str | None) -> dict:
    """An original's checkpoint converted with the vocabulary of a file, as far as the two can be seen to belong together."""
    given = vocab and Vocabulary.load(vocab)
    if given and (given.origin or "").startswith("built"):
        raise InputError(f"{path} cannot belong to the vocabulary {vocab}, which was {given.origin}: the originals number "
                         "words in an order that cannot be built again, so every word would get another one's vector; convert "
                         "the vocabulary that it was trained with (python vocab.py convert OLD NEW.json)")
    unchecked = (f"{path} holds no words: its vocabulary is taken to be {vocab} since that has as many; whether they stand in "
                 "its order is unchecked, and recalls near chance would say that they do not")
    return {**originals.convert(stored, given and given.words, path), "notes": [unchecked]}


def check_contents(stored: dict, path: str) -> None:
    """Refuse a checkpoint whose parts are not of the kinds that train.py writes: what is read of it later relies on them."""
    plain = (str, int, float, bool, type(None))
    state, data = stored.get("state", {}), stored.get("data", {})
    kinds = {
        "options": isinstance(stored["options"], dict) and all(
            isinstance(key, str) and isinstance(value, plain) for key, value in stored["options"].items()),
        "vocabulary": isinstance(stored["vocabulary"], list) and all(isinstance(word, str) for word in stored["vocabulary"]),
        "model": isinstance(stored["model"], dict) and all(
            isinstance(key, str) and torch.is_tensor(value) for key, value in stored["model"].items()),
        "state": isinstance(state, dict) and {"epoch", "best_rsum"} <= set(state) and all(
            type(value) in (int, float) for value in state.values()),
        "data": isinstance(data, dict) and isinstance(data.get("extractors") or {}, dict)}
    wrong = next((name for name, right in kinds.items() if not right), None)
    if wrong:
        raise InputError(f"{path} holds something else under '{wrong}' than train.py writes; it was changed or is of another "
                         "program, so take another one or train again")


def load_weights(model: JointEmbedding, stored: dict, path: str = "the checkpoint") -> None:
    mine, theirs = ({name: tuple(x.shape) for name, x in state.items()} for state in (model.state_dict(), stored["model"]))
    wrong = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    if wrong:
        shapes = [found.get(wrong[0], "absent") for found in (theirs, mine)]
        raise InputError(f"the weights of {path} are not those of a model of these options ({wrong[0]} is {shapes[0]} there "
                         f"and {shapes[1]} here, {len(wrong)} differ); give the sizes, heads, encoders and terms of its "
                         "config.yaml")
    model.load_state_dict(stored["model"])


def load_model(stored: dict, path: str = "the checkpoint") -> tuple[JointEmbedding, Vocabulary, argparse.Namespace]:
    """The model of a checkpoint, in eval mode on the CPU, its vocabulary and its options."""
    import recipes  # which imports this module

    recipes.check_values(stored["options"], path)
    defaults = vars(recipes.parse_args([]))                 # of options that are younger than the checkpoint
    opt = argparse.Namespace(**{**defaults, **stored["options"]})
    vocab = build_vocabulary(opt, stored["vocabulary"])
    try:
        model = build_model(opt, vocab, pretrained=False)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:    # each value is right, not all together
        raise InputError(f"the options of {path} describe no model ({reason(error)}); it was changed, so take another one or "
                         "train again") from error
    load_weights(model, stored, path)
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


@torch.no_grad()
def validate(model: JointEmbedding, split: Split, tokens: Tokens, device, workers: int = 0) -> dict:
    """Recalls of one split as `metrics.retrieval` gives them; "hbr", DMSM's best rank of the images; and "alike", the mean
    cosines of two images and of two captions, 1 where a side is one point."""
    images, captions = encode(model, split, tokens, device, workers=workers)
    i2t, t2i = metrics.ranks(model.similarity.tiles(images, captions), split.caption_image, len(images.mean))
    i2t = i2t[i2t >= 0]
    return {**metrics.both_directions(i2t, t2i), "hbr": metrics.best_rank_means(i2t)["hbr"],
            "alike": {side: metrics.mean_cosine(e.mean) for side, e in (("images", images), ("captions", captions))}}


def run_arguments(p: argparse.ArgumentParser, split: str) -> None:
    """The options of commands that show what one run makes of a split; `split` says what the split is for."""
    p.add_argument("--checkpoint", type=filename, metavar="RUN", help="run folder or checkpoint file (default: the newest run)")
    p.add_argument("--vocab", type=filename, metavar="FILE.json", help="vocabulary of an original VSE++ or VSRN checkpoint "
                   "(python vocab.py convert)")
    p.add_argument("--data_path", type=filename, help="folder that holds the data sets (default: that of the training)")
    p.add_argument("--data_name", type=data_set, help="data set (default: that of the training)")
    p.add_argument("--split", type=split_name, default="test", help=split)
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    p.add_argument("--workers", type=workers, default=min(10, os.cpu_count() or 1),
                   help="processes that read photos or large feature files")


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
