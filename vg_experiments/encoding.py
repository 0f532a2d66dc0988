"""Crops of photos as a trained model embeds them, with their features cached by content and
extractor.

A crop is identified by the bytes of its photo, its box, and how it is fitted to the network's
input. A crop that was seen before costs no network, and a second model on the same extractor costs
only its tower. Ways to fit a crop:

    stretch   the whole crop, resized to the width and height of the input; nothing is lost, but proportions change
    centre    VSE++'s transform of photos: shorter side to 256, then the middle 224 x 224
    pad       never enlarged, in the middle of the input, edge pixels repeated (demo: things keep their size)
"""
import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from checkpoints import Trained
from cli import Arguments, InputError, check, filename, natural, torch_device
from demo import scenes
from encoders import CNN, CNNS
from features.networks import network
from files.reading import checksum, read_array
from files.writing import save_array
from inputs import Photos, encode_captions
from similarities import Embedding, Similarity
from text import tokenize

FITS = ("stretch", "centre", "pad")
MEAN, STD = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)[..., None, None]
SIDE = 224                            # of a network's input, pixels
BATCH = 64                            # crops or pairs a step
SHARD = 4096                          # crops a file of the cache
DEMO = {960: "demo_scenes global", 192: "demo_scenes regions"}
DEMO_FOLDERS = [
    f"{world}{kind}" for world in scenes.WORLDS for kind in ("_precomp", "_region_precomp")
]


# ---- extractors

class Extractor(NamedTuple):
    """Turns batches of crops into features.

    name: what is recorded of it. side: of the input, in pixels. fit: one of FITS. compute: (n,
    side, side, 3) uint8 -> features.
    """
    name: str
    side: int
    fit: str
    compute: Callable


def demo_extractor(regions: bool, fit: str) -> Extractor:
    """The demo's fixed features of (n, 128, 128, 3) uint8: (n, 960), or (n, 36, 192) with
    regions."""
    def compute(pixels):
        cells = scenes.region_features(pixels)
        return cells.astype(np.float16) if regions else scenes.global_features(cells)
    return Extractor(DEMO[192 if regions else 960], scenes.CANVAS, fit, compute)


def cnn_extractor(cnn: nn.Module, name: str, fit: str, device) -> Extractor:
    """A network's features of (n, 224, 224, 3) uint8: (n, F) float32 or (n, P, F) float16."""
    cnn = cnn.to(device).eval()

    @torch.no_grad()
    def compute(pixels):
        x = (pixels.transpose(0, 3, 1, 2).astype(np.float32) / 255 - MEAN) / STD  # (n, 3, 224, 224)
        y = cnn(torch.from_numpy(x).to(device)).float().cpu().numpy()
        return y.astype(np.float16) if y.ndim == 3 else y
    return Extractor(name, SIDE, fit, compute)


def extractor_for(model: Trained, name: str | None, fit: str | None,
                  weights: str | None) -> Extractor:
    """The extractor of a model's training set. For a model of photos the network is taken out of
    its image tower.

    name: the extractor where the training set does not record it: demo, or a network and a layer
    such as "resnet152 pooled". Raises InputError if it is unknown or does not fit the model.
    """
    tower, trained, run = model.model.image_tower, model.options, model.path
    if isinstance(tower.trunk, CNN):                        # a model of photos
        check(not name, f"--extractor {name}: {run} reads photos with its own {trained.cnn_type}; "
                        "leave the option out")
        trunk, tower.trunk = tower.trunk, Passed()
        state = (x.detach().cpu().numpy() for x in trunk.state_dict().values())
        line = f"{trained.cnn_type} trunk{' cells' * trunk.cells} {checksum(state)}"
        return cnn_extractor(trunk, line, fit or "stretch", model.device)
    recorded = model.extractors.get("ims")
    line = name or recorded or ("demo" if trained.data_name in DEMO_FOLDERS else None)
    check(line, f"{run} was trained on the features of {trained.data_name}, and no features.json "
                "beside them said what made them; name network and layer with --extractor, such as "
                "'resnet152 pooled', or demo")
    if line.split()[0].startswith("demo"):
        check(trained.img_dim in DEMO,
              f"--extractor {line} gives 960 numbers an image or 36 x 192, {run} was trained on "
              f"{trained.img_dim}; name the extractor of its training set")
        return demo_extractor(trained.img_dim == 192, fit or "pad")
    cnn_type, layer, *_ = [*line.split(), None]
    check(cnn_type in CNNS, f"{run}: features by '{line}' cannot be made of new crops here; the "
                            f"networks that can are {', '.join(CNNS)}, or demo")
    cnn, at_hand = network(cnn_type, layer, weights)
    check(not recorded or recorded == at_hand,
          f"{run} was trained on features by '{recorded}' and the network at hand is '{at_hand}'; "
          "give the same weights with --cnn_weights")
    regions = trained.n_regions or 0
    check((cnn.dim, 49 if cnn.cells else 0) == (trained.img_dim, regions),
          f"{at_hand} gives {'49 x ' * cnn.cells}{cnn.dim} numbers an image, {run} was trained on "
          f"{f'{regions} x ' if regions else ''}{trained.img_dim}; name with --extractor what made "
          "its training set")
    return cnn_extractor(cnn, at_hand, fit or "stretch", model.device)


class Passed(nn.Module):
    """Stands in for a trunk whose output was computed before."""

    def forward(self, features: Tensor, lengths=None) -> Tensor:
        return features


# ---- crops

def cut(photo: Image.Image, box, side: int, fit: str) -> np.ndarray:
    """The box (x, y, width, height) of a photo as (side, side, 3) uint8."""
    x, y, w, h = box
    crop = photo.crop((x, y, x + w, y + h))
    if fit == "stretch":
        return np.asarray(crop.resize((side, side), Image.Resampling.BILINEAR))
    if fit == "centre":
        scale = side * 256 / SIDE / min(w, h)
        w, h = (round(side * 256 / SIDE) if n == min(box[2:]) else int(n * scale) for n in (w, h))
        left, top = round((w - side) / 2), round((h - side) / 2)
        crop = crop.resize((w, h), Image.Resampling.BILINEAR)
        return np.asarray(crop.crop((left, top, left + side, top + side)))
    if max(w, h) > side:
        w, h = (max(1, round(n * side / max(w, h))) for n in (w, h))
        crop = crop.resize((w, h), Image.Resampling.BILINEAR)
    left, top = (side - w) // 2, (side - h) // 2
    return np.pad(np.asarray(crop), ((top, side - h - top), (left, side - w - left), (0, 0)),
                  mode="edge")


def key_of(content: str, box, fit: str) -> str:
    """The key of a crop in the cache: sha256 of the photo's digest, the box and the fit."""
    return hashlib.sha256(f"{content} {' '.join(map(str, box))} {fit}".encode()).hexdigest()


class Cache:
    """Features of the crops of one extractor, in files of up to 4,096 crops below a folder; with
    folder None, in memory."""

    def __init__(self, folder: str | None, extractor: Extractor):
        name = hashlib.sha256(extractor.name.encode()).hexdigest()[:12]
        self.folder = folder and os.path.join(folder, f"{extractor.name.split()[0]}_{name}")
        self.place, self.arrays, self.read = {}, [], set()      # key -> (file, row); names of files
        if self.folder:
            os.makedirs(self.folder, exist_ok=True)

    def refresh(self) -> None:
        """Read files that others have written since: another model of this run, or another
        process."""
        for file in sorted(os.listdir(self.folder)) if self.folder else ():
            if file.endswith("_keys.npy") and not file.startswith(".") and file not in self.read:
                fix = f"delete {self.folder}, it is computed again"
                keys, array = (read_array(os.path.join(self.folder, name), fix)
                               for name in (file, file.replace("_keys", "")))
                check(keys.ndim == 1 and keys.dtype.kind == "U" and len(keys) == len(array),
                      f"{os.path.join(self.folder, file)} does not list the rows of the file "
                      f"beside it; {fix}")
                self.take(file, keys.tolist(), array)

    def take(self, file: str, keys: list[str], array: np.ndarray) -> None:
        """Add the rows of one file."""
        self.place.update((key, (len(self.arrays), row)) for row, key in enumerate(keys))
        self.arrays.append(array)
        self.read.add(file)

    def add(self, keys: list[str], features: np.ndarray) -> None:
        """Write the features of new crops. The keys are written last, so a file without keys, from
        a run that was stopped, is overwritten."""
        name = hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
        if self.folder:
            path = os.path.join(self.folder, name)
            save_array(f"{path}.npy", features)
            save_array(f"{path}_keys.npy", np.array(keys))
            features = read_array(f"{path}.npy", "free some room")
        self.take(f"{name}_keys.npy", keys, features)

    def rows(self, keys: list[str]) -> np.ndarray:
        """The features of these crops, (B, ...) float32."""
        places = (self.place[key] for key in keys)
        return np.stack([self.arrays[file][row] for file, row in places]).astype(np.float32)


def fill(cache: Cache, extractor: Extractor, wanted: list[tuple[str, tuple, str]]) -> dict:
    """Compute the features of those crops (path of the photo, box, key) that the cache lacks.

    A thread cuts the next crops while the network works. Returns {"crops", "seconds",
    "network_seconds"}.
    """
    cache.refresh()
    missing = {key: (path, box) for path, box, key in wanted if key not in cache.place}
    work = sorted(missing.items(), key=lambda item: item[1])             # those of a photo together
    began, busy, keys, features = time.perf_counter(), 0.0, [], []
    opened = {}

    def load(chunk):
        pixels = []
        for _, (path, box) in chunk:
            if path not in opened:
                opened.clear()
                opened[path] = Photos([path]).open(0)
            pixels.append(cut(opened[path], box, extractor.side, extractor.fit))
        return np.stack(pixels)
    chunks = [work[k:k + BATCH] for k in range(0, len(work), BATCH)]
    with (
        ThreadPoolExecutor(1) as pool,
        tqdm(
            total=len(work), desc=f"crops, {extractor.name.split()[0]}", disable=None, leave=False
        ) as bar,
    ):
        coming = pool.submit(load, chunks[0]) if chunks else None
        for k, chunk in enumerate(chunks):
            pixels = coming.result()
            coming = pool.submit(load, chunks[k + 1]) if k + 1 < len(chunks) else None
            start = time.perf_counter()
            features.append(extractor.compute(pixels))
            busy += time.perf_counter() - start
            keys += [key for key, _ in chunk]
            if len(keys) >= SHARD or k + 1 == len(chunks):
                cache.add(keys, np.concatenate(features))
                keys, features = [], []
            bar.update(len(chunk))
    return {"crops": len(work), "seconds": time.perf_counter() - began, "network_seconds": busy}


# ---- models

class Encoder(Trained):
    """A trained model with the extractor of its training set: crops and captions -> Embedding.

    Raises InputError if the model reads ready features of captions, or its extractor is not to be
    had.
    """

    def __init__(self, run: str, device, cache: str | None = None, extractor: str | None = None,
                 fit: str | None = None, weights: str | None = None, vocab: str | None = None):
        super().__init__(run, device, vocab=vocab)
        check(
            not self.options.text_features,
            f"{run} reads ready features of captions and knows no words; give a model of words",
        )
        self.extractor = extractor_for(self, extractor, fit, weights)
        self.cache, self.contents = Cache(cache, self.extractor), {}

    @property
    def name(self) -> str:
        """The name of the run folder."""
        folder = self.path if os.path.isdir(self.path) else os.path.dirname(self.path)
        return os.path.basename(os.path.normpath(folder))

    @property
    def facts(self) -> dict:
        """What reports say about the model."""
        return {"checkpoint": self.path, "sim": self.options.sim,
                "extractor": self.extractor.name, "fit": self.extractor.fit}

    def content(self, path: str) -> str:
        """The sha256 of a photo. Raises InputError if it cannot be read."""
        if path not in self.contents:
            try:
                with open(path, "rb") as f:
                    self.contents[path] = hashlib.file_digest(f, "sha256").hexdigest()
            except OSError as error:
                raise InputError(f"the photo {path} cannot be read ({error.strerror}); fetch it "
                                 "again, or prepare with --skip_missing") from error
        return self.contents[path]

    def crops(self, wanted: list[tuple[str, tuple]], batch: int = 128) -> Embedding:
        """Embedding of N crops: [(path, box (x, y, width, height))] of length N -> Embedding of
        N."""
        keys = [key_of(self.content(path), box, self.extractor.fit) for path, box in wanted]
        took = fill(self.cache, self.extractor, [(*pair, key) for pair, key in zip(wanted, keys)])
        unique, place = distinct(keys)
        embedded = Embedding.cat([self.images(self.cache.rows(unique[k:k + batch]))
                                  for k in range(0, len(unique), batch)])
        if took["crops"]:
            outside = 1 - took["network_seconds"] / took["seconds"]
            print(f"{self.path}: features of {took['crops']:,} crops by {self.extractor.name} "
                  f"({self.extractor.fit}) in {took['seconds']:.1f} s, {100 * outside:.0f}% of it "
                  f"outside the extractor; {len(unique) - took['crops']:,} were at hand")
        return embedded.rows(place.to(self.device))

    def captions(self, texts: list[str]) -> Embedding:
        """Embedding of N texts. Words that are not in the vocabulary are <unk>."""
        unique, place = distinct(texts)
        return self.texts(unique, any_words=True).rows(place.to(self.device))

    def unknown(self, texts: list[str]) -> np.ndarray:
        """(N,) bool: whether no word of a text is known."""
        return encode_captions([tokenize(text) for text in texts], self.vocab).unknown


@torch.no_grad()
def pair_scores(similarity: Similarity, images: Embedding, captions: Embedding, i,
                c) -> np.ndarray:
    """Similarity of image i[k] and caption c[k]: (K,) float32, computed in blocks of which the
    diagonals are kept.

    A pair that occurs again has the same score to the last bit, so equal choices are ties.
    """
    pairs, where = np.unique(np.stack([i, c]), axis=1, return_inverse=True)         # (2, P), (K,)
    i, c = torch.from_numpy(pairs).to(images.mean.device)
    blocks = [slice(k, k + BATCH) for k in range(0, len(i), BATCH)]
    scores = [similarity(images.rows(i[block]), captions.rows(c[block])).diagonal()
              for block in blocks]
    return torch.cat(scores).float().cpu().numpy()[where.ravel()]


def distinct(items: list[str]) -> tuple[list[str], Tensor]:
    """The different ones of N items, in their order, and the place of each item there (N,)."""
    place = {item: k for k, item in enumerate(dict.fromkeys(items))}
    return list(place), torch.tensor([place[item] for item in items])


# ---- what the commands share

def run_arguments(p: Arguments) -> None:
    """Add the options that selection and uncertainty share."""
    model_arguments(p)
    add = p.add_argument
    add("--manifest", type=filename, default="runs/vg/manifest.json",
        help="manifest that python -m vg_experiments.prepare wrote")
    add("--vg", type=filename, help="folder of the photos (default: the folder that the "
        "manifest was made from)")
    add("--output", type=filename, default="runs/vg", metavar="FOLDER",
        help="folder to write figures and numbers to")
    add("--seed", type=natural, default=0, help="random seed of the control")


def model_arguments(p: Arguments) -> None:
    """Add the options that say which models are read, how, and how crops are encoded."""
    add = p.add_argument
    add("--checkpoint", type=filename, required=True, nargs="+", metavar="RUN",
        help="run folders or checkpoint files of the models")
    add("--cache", type=filename, default="runs/vg/cache", help="folder to keep the "
        "features of crops in")
    add("--extractor", help="what made the training features, if no features.json "
        "beside them says so: demo, or a network and a layer, such as 'resnet152 "
        "pooled'")
    add("--cnn_weights", type=filename, metavar="FILE",
        help="weights of that network (default: those in torch's cache)")
    add("--vocab", type=filename, metavar="FILE.json",
        help="vocabulary of a checkpoint of the original VSE++ or VSRN")
    add("--fit", choices=FITS, help="how to fit a crop to the input of the network: "
        "stretch (the whole crop, resized), centre (as VSE++) or pad (default: "
        "stretch; demo: pad)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="auto takes CUDA if there is a GPU")


def build_encoders(opt) -> list[Encoder]:
    """The Encoders of --checkpoint."""
    device = torch_device(opt.device)
    return [Encoder(run, device, opt.cache, opt.extractor, opt.fit, opt.cnn_weights, opt.vocab)
            for run in opt.checkpoint]


def names(models) -> list[str]:
    """Short names of runs, all different."""
    short = [model.name for model in models]
    return short if len(set(short)) == len(short) else [model.path for model in models]


def photo_path(manifest: dict, image: int, folder: str | None) -> str:
    """The path of the photo of an image of the manifest."""
    return os.path.join(folder or manifest["folder"], manifest["images"][str(image)]["file"])


def all_known(items: list[dict], texts, models: list[Encoder]) -> np.ndarray:
    """(N,) bool: whether every model knows a word of each of texts(item). All items have the same
    number of texts."""
    flat = [text for item in items for text in texts(item)]
    unknown = np.any([model.unknown(flat) for model in models], 0)
    return ~unknown.reshape(len(items), -1).any(1)


def usable_triplets(manifest: dict, models: list[Encoder]) -> tuple[dict[str, list[dict]], int]:
    """The triplets {threshold: [triplet]} of the images that can be used, and the number of images
    left out.

    An image is used if, at every threshold, every model knows a word of captions A and B. Raises
    InputError if none is left.
    """
    keep = np.all([all_known(items, lambda t: (t["caption_a"], t["caption_b"]), models)
                   for items in manifest["triplets"].values()], 0)
    check(keep.any(),
          f"no triplet is left: {', '.join(model.path for model in models)} know no word of the "
          "captions; give models of the manifest's language")
    return ({percent: [t for t, good in zip(items, keep) if good]
             for percent, items in manifest["triplets"].items()}, int((~keep).sum()))


def ends_of(manifest: dict, triplets_at: dict[str, list[dict]], folder: str | None) -> tuple:
    """Crops (path, box) and captions of n triplets, all A and then all C, 2 n of each."""
    both = [(which, t) for which in "ac" for items in triplets_at.values() for t in items]
    boxes = [(photo_path(manifest, t["image"], folder), tuple(t[which])) for which, t in both]
    return boxes, [t[f"caption_{which}"] for which, t in both]


def whole_box(manifest: dict, image: int) -> tuple:
    """The box (x, y, width, height) of a whole image."""
    size = manifest["images"][str(image)]
    return 0, 0, size["width"], size["height"]
