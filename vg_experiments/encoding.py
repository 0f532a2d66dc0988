"""Crops of photos and texts, embedded by a trained model.

Features of crops are kept by the bytes of the photo, the box, the fit and the extractor, so a second model on the same
extractor costs only its tower. A crop is resized to the width and height of the network's input ("stretch"). Crops of
the demo's scenes, whose models have seen things at one size, are never enlarged: they lie in the middle of the input,
edge pixels repeated ("pad").
"""
import functools
import os
from collections.abc import Callable
from itertools import chain, compress

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import cli
from checkpoint import Trained
from cli import Arguments, check, filename, torch_device
from features import filters
from features.networks import NETWORKS, SCENES, Network, rebuild_network
from features.store import Part, compute_missing
from files import checksum, file_digest
from images import read_photo, whole_transform
from losses import Embedding
from model import CNN, Precomputed
from vg_experiments.prepare import load_manifest
from vocab import tokenize

SIDE = 224                            # of a network's input, pixels
BATCH = 64                            # crops or pairs a step
EMBEDDED = 128                        # crops that pass the tower at a time


def build_extractor(model: Trained, weights: str | None) -> tuple[Network, str]:
    """Build the extractor of a model's training set, or its network for photos; and its fit.

    Raises InputError if features.json did not record it, or it cannot be had with the same weights.
    """
    tower, options, run = model.model.image_tower, model.options, model.path
    if isinstance(tower.trunk, CNN):                        # a model of photos
        net, tower.trunk = tower.trunk, Precomputed(tower.trunk.dim, normalize=False, average=False)
        digest = checksum(x.detach().cpu().numpy() for x in net.state_dict().values())
        line = f"{options.cnn_type} trunk{' cells' * net.cells} {digest}"
        return Network(net, whole_transform(), line, model.device), "stretch"
    line = model.extractors.get("ims", "an extractor that no features.json beside them named")
    network = rebuild_network(line, model.device, weights)
    check(network, f"{run} was trained on features by {line}, so those of crops cannot be made; give a run on features "
                   f"by features.images ({', '.join(NETWORKS)}), or on photos")
    if line.startswith(SCENES):
        return network, "pad"
    return network._replace(transform=whole_transform()), "stretch"


def cut_box(photo: Image.Image, box, fit: str) -> Image.Image:
    """Cut a box (x, y, width, height) of a photo for the network that has this fit."""
    x, y, w, h = box
    crop, side = photo.crop((x, y, x + w, y + h)), filters.SCENE_PIXELS
    if fit == "stretch":
        return crop.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if max(w, h) > side:
        w, h = (max(1, round(n * side / max(w, h))) for n in (w, h))
        crop = crop.resize((w, h), Image.Resampling.BILINEAR)
    left, top = (side - w) // 2, (side - h) // 2
    return Image.fromarray(np.pad(
        np.asarray(crop), ((top, side - h - top), (left, side - w - left), (0, 0)), mode="edge"))


digest_photo = functools.cache(file_digest)


class CropEncoder(Trained):
    """Trained model with the extractor of its training set, to embed crops and texts.

    cache: the folder that keeps features of crops. Raises InputError if the model reads features of captions, or its
    extractor is not to be had.
    """

    def __init__(self, run: str, device, cache: str, weights: str | None = None, vocab: str | None = None):
        super().__init__(run, device, vocab=vocab)
        check(not self.options.text_features,
              f"{run} reads ready features of captions and knows no words; give a model of words")
        self.network, self.fit = build_extractor(self, weights)
        self.cache = Part(os.path.join(cache, "crops"), self.network.line)
        self.facts = {"checkpoint": run, "sim": self.options.sim, "extractor": self.network.line, "fit": self.fit}

    def embed_crops(self, crops: list[tuple[str, tuple]]) -> Embedding:
        """Embed N crops [(path of a photo, box (x, y, width, height))]."""
        unique, place = number_items(crops)
        features = self.crop_features(unique)
        parts = [self.images(features[k:k + EMBEDDED].astype(np.float32)) for k in range(0, len(unique), EMBEDDED)]
        return Embedding.cat(parts).rows(place)

    def crop_features(self, crops: list[tuple[str, tuple]]) -> np.ndarray:
        """Read features of crops, (N, F) or (N, P, F), or extract them for the cache."""
        keys = [f"{digest_photo(path)} {' '.join(map(str, box))} {self.fit}" for path, box in crops]
        photo = functools.lru_cache(1)(read_photo)

        def read(n: int) -> Tensor:
            path, box = crops[n]
            return self.network.transform(cut_box(photo(path), box, self.fit))

        def encode(values: list[Tensor]) -> np.ndarray:
            y = self.network(values).float().cpu().numpy()                          # (n, F) or (n, P, F)
            return y.astype(np.float16) if y.ndim == 3 else y
        order = sorted(range(len(crops)), key=crops.__getitem__)        # the crops of a photo together: it is read once
        compute_missing(self.cache, {n: keys[n] for n in order}, read, encode, "crops", BATCH, workers=0)
        return np.stack([self.cache[key] for key in keys])

    def embed_captions(self, texts: list[str], any_words: bool = True) -> Embedding:
        """Embed N texts. Without any_words, raises InputError on one of <unk> alone."""
        unique, place = number_items(texts)
        return self.texts(unique, any_words=any_words).rows(place)


@torch.no_grad()
def pair_scores(similarity, images: Embedding, captions: Embedding, i, c) -> np.ndarray:
    """Score image i[k] and caption c[k]: (K,) float32, the same for equal pairs.

    Computed in blocks, of which only the diagonals are kept.
    """
    pairs, where = np.unique(np.stack([i, c]), axis=1, return_inverse=True)         # (2, P), (K,)
    blocks = zip(*(x.split(BATCH) for x in torch.from_numpy(pairs).to(images.mean.device)))
    scores = [similarity(images.rows(i), captions.rows(c)).diagonal() for i, c in blocks]
    return torch.cat(scores).float().cpu().numpy()[where.ravel()]


def number_items(items: list) -> tuple[list, np.ndarray]:
    """List the distinct items of N, in their order, and each item's place among them (N,)."""
    place = {}
    rows = np.array([place.setdefault(item, len(place)) for item in items])
    return list(place), rows


# ---- what the commands share

def build_parser(description: str) -> Arguments:
    """Build a parser with the options that say which models and crops are read."""
    p = Arguments(description)
    add = p.add_argument
    add("--checkpoint", type=filename, required=True, nargs="+", metavar="RUN", help="run folders or checkpoint files")
    add("--cache", type=filename, default="runs/vg/cache", help="folder to keep the features of crops in")
    add("--cnn_weights", type=filename, metavar="FILE",
        help="weights of the network that made the training features (default: ImageNet's)")
    add("--vocab", type=filename, metavar="FILE.json", help="vocabulary of a checkpoint of the original VSE++ or VSRN")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
    add("--manifest", type=filename, default="runs/vg/manifest.json", help="manifest that vg_experiments.prepare wrote")
    add("--vg", type=filename, help="folder of the photos (default: the folder that the manifest was made from)")
    return p


def run_command(description: str, work: Callable, argv) -> None:
    """Run selection or uncertainty, which have the same options."""
    p = build_parser(description)
    p.add_argument("--output", type=filename, default="runs/vg", metavar="FOLDER",
                   help="folder to write figures and numbers to")
    cli.run(p.prog, work, p.parse_args(argv))


def build_encoders(opt) -> dict[str, CropEncoder]:
    """Build encoders of --checkpoint, by run folders' names, or by paths if two agree."""
    device = torch_device(opt.device)
    folders = (run if os.path.isdir(run) else os.path.dirname(run) for run in opt.checkpoint)
    names = [os.path.basename(os.path.normpath(folder)) for folder in folders]
    return {name: CropEncoder(run, device, opt.cache, opt.cnn_weights, opt.vocab)
            for name, run in zip(names if len(set(names)) == len(names) else opt.checkpoint, opt.checkpoint)}


def photo_path(manifest: dict, image: int) -> str:
    return os.path.join(manifest["folder"], manifest["images"][str(image)]["file"])


def whole_box(manifest: dict, image: int) -> tuple:
    """Return the box (x, y, width, height) of a whole image."""
    size = manifest["images"][str(image)]
    return 0, 0, size["width"], size["height"]


def read_inputs(opt) -> tuple[dict, dict[str, CropEncoder], dict[str, int]]:
    """Read manifest and models. Left out, and counted, are images of whose captions some model knows no word.

    Of a triplet these are A and B at every threshold. Raises InputError if no triplet is left.
    """
    manifest, models = load_manifest(opt.manifest, opt.vg), build_encoders(opt)
    images, wholes = list(zip(*manifest["triplets"].values())), manifest["wholes"]  # an image's triplets
    captions_of = [[t[key] for t in own for key in ("caption_a", "caption_b")] for own in images]
    parts_of = [[*w["captions"], w["description"]] for w in wholes]
    texts = list(dict.fromkeys(chain(*captions_of, *parts_of)))
    words, unknown = list(map(tokenize, texts)), set()
    for model in models.values():
        unknown.update(compress(texts, model.vocab.encode_captions(words).unknown))
    images, usable = ([item for item, own in zip(items, texts_of) if unknown.isdisjoint(own)]
                      for items, texts_of in ((images, captions_of), (wholes, parts_of)))
    check(images, f"no triplet is left: {', '.join(models)} know no word of the captions; give models of the "
                  "manifest's language")
    omitted = {"table4": len(captions_of) - len(images), "section34": len(wholes) - len(usable)}
    triplets = dict(zip(manifest["triplets"], map(list, zip(*images))))
    return {**manifest, "triplets": triplets, "wholes": usable}, models, omitted


def list_cases(manifest: dict) -> list[tuple]:
    """List the (path of the photo, box A, box C, caption A, caption C) of all triplets."""
    return [(photo_path(manifest, t["image"]), tuple(t["a"]), tuple(t["c"]), t["caption_a"], t["caption_c"])
            for items in manifest["triplets"].values() for t in items]


def list_sides(cases: list[tuple]) -> tuple[list[tuple], list[str]]:
    """List the crops (path, box) and the texts of n cases: all small ones, then all large ones, 2 n of each."""
    paths, small, large, short, long = zip(*cases)
    return [*zip(paths, small), *zip(paths, large)], [*short, *long]
