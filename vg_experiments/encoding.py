"""Crops of photos and texts, embedded by a trained model.

Features of crops are kept by the bytes of the photo, the box, the fit and the extractor, so a
second model on the same extractor costs only its tower. A crop is resized to the width and height
of the network's input ("stretch"), for an --image_model by its own preparation ("network"). Crops
of the demo's scenes, whose models have seen things at one size, are never enlarged: they lie in the
middle of the input, edge pixels repeated ("pad").
"""

import functools
import os
from collections.abc import Callable

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

import utils
from checkpoint import Trained
from features import filters
from features.networks import NETWORKS, SCENES, Network, rebuild_network
from features.store import Part, compute_missing
from images import read_photo, whole_transform
from losses import Embedding, uncertainty
from methods.pretrained import PretrainedImages
from model import CNN, Precomputed
from utils import Arguments, InputError, checksum, file_digest, filename, torch_device
from vg_experiments.prepare import load_manifest
from vocab import tokenize

INPUT_SIDE = 224  # of a network's input, pixels
CROPS_PER_STEP = 64  # of the extractor
SCORED_PAIRS_PER_BLOCK = 64  # that are scored at a time
CROPS_PER_TOWER_STEP = 128


def build_extractor(model: Trained, weights: str | None) -> tuple[Network, str]:
    """Build the extractor of a model's training set, or its network for photos; and its fit.

    Raises InputError if features.json did not record it, or it cannot be had with the same weights.
    """
    tower = model.model.image_tower
    if isinstance(tower.trunk, (CNN, PretrainedImages)):  # a model of photos
        net = tower.trunk
        tower.trunk = Precomputed(net.dim, normalize=False, average=False)
        fit = "network" if isinstance(net, PretrainedImages) else "stretch"
        return describe_trunk(net, model), fit

    line = model.extractors.get("ims", "an extractor that no features.json beside them named")
    network = rebuild_network(line, model.device, weights)
    if not network:
        raise InputError(
            f"{model.path} was trained on features by {line}, so those of crops cannot be made; "
            f"give a run on features by features.images ({', '.join(NETWORKS)}), or on photos"
        )
    if line.startswith(SCENES):
        return network, "pad"
    return network._replace(transform=whole_transform()), "stretch"


def describe_trunk(net: CNN | PretrainedImages, model: Trained) -> Network:
    """Describe the network of a model of photos as an extractor."""
    digest = checksum(x.detach().cpu().numpy() for x in net.state_dict().values())
    if isinstance(net, PretrainedImages):
        settings = checksum([model.options.image_config.encode(), str(net.normalize).encode()])
        line = f"{net.kind} trunk {digest} {settings}"
        return Network(net, net.preparation.stretch, line, model.device)

    cells = ""
    if net.cells:
        cells = " cells"
    line = f"{model.options.cnn_type} trunk{cells} {digest}"
    return Network(net, whole_transform(), line, model.device)


def cut_box(photo: Image.Image, box, fit: str) -> Image.Image:
    """Cut a box (x, y, width, height) of a photo for the network that has this fit."""
    x, y, w, h = box
    crop = photo.crop((x, y, x + w, y + h))
    if fit == "stretch":
        return crop.resize((INPUT_SIDE, INPUT_SIDE), Image.Resampling.BILINEAR)
    if fit == "network":
        return crop

    side = filters.SCENE_PIXELS
    longer = max(w, h)
    if longer > side:
        w = max(1, round(w * side / longer))
        h = max(1, round(h * side / longer))
        crop = crop.resize((w, h), Image.Resampling.BILINEAR)
    left = (side - w) // 2
    top = (side - h) // 2
    margins = ((top, side - h - top), (left, side - w - left), (0, 0))
    return Image.fromarray(np.pad(np.asarray(crop), margins, mode="edge"))


digest_photo = functools.cache(file_digest)


class CropEncoder(Trained):
    """Trained model with the extractor of its training set, to embed crops and texts.

    Args:
        run: run folder or checkpoint file.
        cache: the folder that keeps features of crops.
        weights: of the extractor (default: ImageNet's).
        vocab: of a checkpoint of the original VSE++ or VSRN.

    Raises InputError if the model reads features of captions, or its extractor is not to be had.
    """

    def __init__(
        self, run: str, device, cache: str, weights: str | None = None, vocab: str | None = None
    ):
        super().__init__(run, device, vocab=vocab)
        if self.options.text_features:
            raise InputError(
                f"{run} reads precomputed features of captions and knows no words; give a model "
                "of words"
            )
        self.network, self.fit = build_extractor(self, weights)
        self.cache = Part(os.path.join(cache, "crops"), self.network.line)
        self.facts = {
            "checkpoint": run,
            "sim": self.options.sim,
            "extractor": self.network.line,
            "fit": self.fit,
        }

    def embed_crops(self, crops: list[tuple[str, tuple]]) -> Embedding:
        """Embed N crops [(path of a photo, box (x, y, width, height))]."""
        distinct, position = number_items(crops)
        features = self.crop_features(distinct)
        batches = []
        for start in range(0, len(distinct), CROPS_PER_TOWER_STEP):
            rows = features[start : start + CROPS_PER_TOWER_STEP]
            batches.append(self.images(rows.astype(np.float32)))
        return Embedding.cat(batches).rows(position)

    def crop_features(self, crops: list[tuple[str, tuple]]) -> np.ndarray:
        """Read features of crops, (N, F) or (N, P, F), or extract them for the cache."""
        keys = []
        for path, box in crops:
            numbers = " ".join(str(number) for number in box)
            keys.append(f"{digest_photo(path)} {numbers} {self.fit}")
        open_photo = functools.lru_cache(1)(read_photo)

        def read(n: int) -> Tensor:
            path, box = crops[n]
            return self.network.transform(cut_box(open_photo(path), box, self.fit))

        def encode(values: list[Tensor]) -> np.ndarray:
            features = self.network(values).float().cpu().numpy()  # (n, F) or (n, P, F)
            if features.ndim == 3:
                return features.astype(np.float16)
            return features

        # the crops of a photo together: it is read once
        order = sorted(range(len(crops)), key=crops.__getitem__)
        missing = {n: keys[n] for n in order}
        compute_missing(self.cache, missing, read, encode, "crops", CROPS_PER_STEP, workers=0)
        return np.stack([self.cache[key] for key in keys])

    def embed_captions(self, texts: list[str], any_words: bool = True) -> Embedding:
        """Embed N texts. Without any_words, raises InputError on one of <unk> alone."""
        distinct, position = number_items(texts)
        return self.texts(distinct, any_words=any_words).rows(position)


def measure(embedding: Embedding) -> np.ndarray:
    """Compute log det Sigma of N Gaussians in nats, (N,) float64."""
    return uncertainty(embedding).cpu().double().numpy()


@torch.no_grad()
def pair_scores(similarity, images: Embedding, captions: Embedding, i, c) -> np.ndarray:
    """Score image i[k] and caption c[k]: (K,) float32, the same for equal pairs.

    Computed in blocks, of which only the diagonals are kept.
    """
    pairs, where = np.unique(np.stack([i, c]), axis=1, return_inverse=True)  # (2, P), (K,)
    rows, columns = torch.from_numpy(pairs).to(images.mean.device)  # (P,) each
    scores = []
    for start in range(0, len(rows), SCORED_PAIRS_PER_BLOCK):
        block = slice(start, start + SCORED_PAIRS_PER_BLOCK)
        matrix = similarity(images.rows(rows[block]), captions.rows(columns[block]))
        scores.append(matrix.diagonal())
    return torch.cat(scores).float().cpu().numpy()[where.ravel()]


def number_items(items: list) -> tuple[list, np.ndarray]:
    """List the distinct items of N, in their order, and each item's position among them (N,)."""
    position = {}
    rows = []
    for item in items:
        rows.append(position.setdefault(item, len(position)))
    return list(position), np.array(rows)


# ---- what the commands share


def build_parser(description: str) -> Arguments:
    """Build a parser with the options that say which models and crops are read."""
    p = Arguments(description)
    add = p.add_argument
    add(
        "--checkpoint",
        type=filename,
        required=True,
        nargs="+",
        metavar="RUN",
        help="run folders or checkpoint files",
    )
    add(
        "--cache",
        type=filename,
        default="runs/vg/cache",
        help="folder to keep the features of crops in",
    )
    add(
        "--cnn_weights",
        type=filename,
        metavar="FILE",
        help="weights of the network that made the training features (default: ImageNet's)",
    )
    add(
        "--vocab",
        type=filename,
        metavar="FILE.json",
        help="vocabulary of a checkpoint of the original VSE++ or VSRN",
    )
    utils.add_device(p)
    add(
        "--manifest",
        type=filename,
        default="runs/vg/manifest.json",
        help="manifest that vg_experiments.prepare wrote",
    )
    add(
        "--vg",
        type=filename,
        help="folder of the photos (default: the folder that the manifest was made from)",
    )
    return p


def run_command(description: str, work: Callable, argv) -> None:
    """Run selection or uncertainty, which have the same options."""
    p = build_parser(description)
    p.add_argument(
        "--output_folder",
        type=filename,
        default="runs/vg",
        metavar="FOLDER",
        help="folder to write figures and numbers to",
    )
    p.accept_name("--output", "--output_folder")
    utils.run(p.prog, work, p.parse_args(argv))


def build_encoders(opt) -> dict[str, CropEncoder]:
    """Build encoders of --checkpoint, by run folders' names, or by paths if two agree."""
    device = torch_device(opt.device)
    names = []
    for run in opt.checkpoint:
        folder = run
        if not os.path.isdir(run):
            folder = os.path.dirname(run)
        names.append(os.path.basename(os.path.normpath(folder)))
    if len(set(names)) < len(names):
        names = opt.checkpoint

    encoders = {}
    for name, run in zip(names, opt.checkpoint):
        encoders[name] = CropEncoder(run, device, opt.cache, opt.cnn_weights, opt.vocab)
    return encoders


def photo_path(manifest: dict, image: int) -> str:
    return os.path.join(manifest["folder"], manifest["images"][str(image)]["file"])


def whole_box(manifest: dict, image: int) -> tuple:
    """Return the box (x, y, width, height) of a whole image."""
    size = manifest["images"][str(image)]
    return 0, 0, size["width"], size["height"]


def read_inputs(opt) -> tuple[dict, dict[str, CropEncoder], dict[str, int]]:
    """Read manifest and models; leave out images of whose captions some model knows no word.

    Of a triplet the captions are A and B at every threshold. Returns the manifest without them, the
    models, and how many were left out. Raises InputError if no triplet is left.
    """
    manifest = leave_out_resized(load_manifest(opt.manifest, opt.vg))
    models = build_encoders(opt)
    triplets = list(zip(*manifest["triplets"].values()))  # of each image, one a threshold
    wholes = manifest["wholes"]
    texts_of_triplets = [list_triplet_texts(of_image) for of_image in triplets]
    texts_of_wholes = [[*whole["captions"], whole["description"]] for whole in wholes]

    unknown = find_unknown(models, texts_of_triplets + texts_of_wholes)
    triplets = keep_known(triplets, texts_of_triplets, unknown)
    known_wholes = keep_known(wholes, texts_of_wholes, unknown)
    if not triplets:
        raise InputError(
            f"no triplet is left: {', '.join(models)} know no word of the captions; give models of "
            "the manifest's language"
        )

    omitted = {
        "table4": len(texts_of_triplets) - len(triplets),
        "section34": len(wholes) - len(known_wholes),
    }
    by_threshold = {}
    for percent, entries in zip(manifest["triplets"], zip(*triplets)):
        by_threshold[percent] = list(entries)
    return {**manifest, "triplets": by_threshold, "wholes": known_wholes}, models, omitted


def leave_out_resized(manifest: dict) -> dict:
    """Leave out photos that have another size than a manifest says, whose boxes would not fit.

    Prints how many. Raises InputError if none is left.
    """
    entries = [*manifest["wholes"]]
    for of_percent in manifest["triplets"].values():
        entries += of_percent
    images = {entry["image"] for entry in entries}
    resized = {image for image in images if not has_listed_size(manifest, image)}
    if not resized:
        return manifest

    first = photo_path(manifest, min(resized))
    fault = (
        f"{len(resized):,} of {len(images):,} photos have another size than the manifest says "
        f"(first: {first})"
    )
    if resized == images:
        raise InputError(f"{fault}; give the folder of its photos with --vg")
    print(f"note: {fault}, and are left out")

    def keep(of_images: list[dict]) -> list[dict]:
        return [entry for entry in of_images if entry["image"] not in resized]

    triplets = {percent: keep(of_all) for percent, of_all in manifest["triplets"].items()}
    return {**manifest, "triplets": triplets, "wholes": keep(manifest["wholes"])}


def has_listed_size(manifest: dict, image: int) -> bool:
    """Return whether a photo has the size of the manifest, True if it cannot be read."""
    try:
        with Image.open(photo_path(manifest, image)) as photo:
            size = photo.size
            turned = photo.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except (OSError, ValueError, SyntaxError):
        return True
    if turned:
        size = size[::-1]
    return (0, 0, *size) == whole_box(manifest, image)


def list_triplet_texts(triplets: tuple[dict]) -> list[str]:
    """List captions A and B of the triplets of an image."""
    texts = []
    for triplet in triplets:
        texts += [triplet["caption_a"], triplet["caption_b"]]
    return texts


def find_unknown(models: dict[str, CropEncoder], texts_of: list[list[str]]) -> set[str]:
    """Find the texts without a word that all models know."""
    texts = {}  # a dict keeps their order
    for of_item in texts_of:
        texts |= dict.fromkeys(of_item)
    words = [tokenize(text) for text in texts]

    unknown = set()
    for model in models.values():
        tokens = model.vocab.encode_captions(words)
        for text, is_unknown in zip(texts, tokens.unknown):
            if is_unknown:
                unknown.add(text)
    return unknown


def keep_known(items: list, texts_of: list[list[str]], unknown: set[str]) -> list:
    """Keep the items none of whose texts is unknown."""
    return [item for item, texts in zip(items, texts_of) if unknown.isdisjoint(texts)]


def list_cases(manifest: dict) -> list[tuple]:
    """List the (path of the photo, box A, box C, caption A, caption C) of all triplets."""
    cases = []
    for entries in manifest["triplets"].values():
        for t in entries:
            path = photo_path(manifest, t["image"])
            cases.append((path, tuple(t["a"]), tuple(t["c"]), t["caption_a"], t["caption_c"]))
    return cases


def list_sides(cases: list[tuple]) -> tuple[list[tuple], list[str]]:
    """List the crops (path, box) and the texts of n cases.

    All small ones come first, then all large ones, 2 n of each.
    """
    paths, small, large, short, long = zip(*cases)
    return [*zip(paths, small), *zip(paths, large)], [*short, *long]
