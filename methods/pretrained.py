"""Pretrained transformers, at first frozen or trained: CLIP, SigLIP, ViT, DINOv2, BERT, MiniLM.

    python train.py --data_name f8k --image_model clip --text_model clip --method clip

--image_model and --text_model name folders as `save_pretrained` of the package transformers writes
them. config.json, the weights in safetensors, the tokenizer and the image processor are read as
data: nothing is downloaded, and no code of a folder is run.

A photo is resized, cropped and scaled as the folder's image processor says (`Preparation`), a
caption is cut into word pieces by the folder's tokenizer (`Pieces`, in the place of a vocabulary).
The network (`PretrainedImages`, `PretrainedTexts`) is a trunk like any other: it gives one vector,
and f_emb is a linear layer, or two for a Gaussian.

A checkpoint holds the weights, the tokenizer (as its vocabulary) and the sizes of the network (as
the options image_config and text_config), so it is loaded without the folder.
"""

import base64
import glob
import json
import os
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from images import Photos, import_torchvision
from losses import real_parts
from model import (
    IMAGE_ENCODERS,
    OPTION_DEFAULTS,
    OPTION_RULES,
    TEXT_ENCODERS,
    Encoder,
    build_image_layers,
    build_text_layers,
)
from utils import InputError, at_least_zero, filename, natural, read_json, refusing
from vocab import Tokens, Vocabulary

BACKBONE_RATE = 0.1  # of the other layers' learning rate, unless --backbone_lr says otherwise
CROP_SHARE = (0.9, 1.0)  # of a photo, that a random crop in training keeps, as in open_clip
MAX_CAPTION_PIECES = 10_000  # of a caption, where neither tokenizer nor network says
# Files of which a tokenizer is one, or two; without any, transformers would make up an empty one.
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model")
INSTALL = "pip install -r methods/requirements-pretrained.txt"
# What a config may say that would fetch or choose code; the network is built without it.
IGNORED_SETTINGS = (
    "auto_map",
    "quantization_config",
    "attn_implementation",
    "_attn_implementation",
)


# ---- families of networks, by the model_type of config.json


class Family(NamedTuple):
    """Classes of transformers that make a network, and how its vector is read."""

    network: str
    config: str
    read_vectors: Callable  # (output, mask of real pieces (B, T) or None) -> (B, F)
    arguments: dict = {}  # of the network


def read_image_projection(output, real) -> Tensor:
    """Read CLIP's image embedding, the projection of the pooled state: (B, F)."""
    return output.image_embeds


def read_text_projection(output, real) -> Tensor:
    """Read CLIP's text embedding, the projection of the state at the end of the text: (B, F)."""
    return output.text_embeds


def read_pooled(output, real) -> Tensor:
    """Read what SigLIP pools, by attention over cells, or from the last piece: (B, F)."""
    return output.pooler_output


def read_first_state(output, real) -> Tensor:
    """Read the last state of [CLS]: (B, F)."""
    return output.last_hidden_state[:, 0]


def average_states(output, real) -> Tensor:
    """Average the last states of the real pieces, as sentence-transformers does: (B, F)."""
    states = output.last_hidden_state  # (B, T, F)
    total = (states * real[:, :, None]).sum(1)
    return total / real.sum(1, keepdim=True)


NO_POOLER = {"add_pooling_layer": False}
IMAGE_FAMILIES = {
    "clip": Family("CLIPVisionModelWithProjection", "CLIPVisionConfig", read_image_projection),
    "siglip": Family("SiglipVisionModel", "SiglipVisionConfig", read_pooled),
    "vit": Family("ViTModel", "ViTConfig", read_first_state, NO_POOLER),
    "dinov2": Family("Dinov2Model", "Dinov2Config", read_first_state),
}
TEXT_FAMILIES = {
    "clip": Family("CLIPTextModelWithProjection", "CLIPTextConfig", read_text_projection),
    "siglip": Family("SiglipTextModel", "SiglipTextConfig", read_pooled),
    "bert": Family("BertModel", "BertConfig", average_states, NO_POOLER),
}
ANY_SIZE = ("dinov2",)  # networks that read photos of other sizes than their config says


def import_transformers():
    """Import transformers, which is optional. Raises InputError without it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported: no downloads
    import_torchvision()  # a torchvision that does not fit a CPU's torch would stop it
    fault = "--image_model and --text_model need the package transformers"
    with refusing(fault, INSTALL, ImportError):
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


# ---- a folder of save_pretrained


def read_config(folder: str, families: dict[str, Family], option: str) -> dict:
    """Read the config of the network of a folder, a plain dict with "model_type" of `families`.

    Raises InputError where the folder holds no network of these, or no safetensors.
    """
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        raise InputError(
            f"--{option} {folder} holds no config.json; name a folder that save_pretrained of "
            "transformers wrote"
        )
    whole = read_json(path, "save the model again with save_pretrained")
    given = ""
    if isinstance(whole, dict):
        given = str(whole.get("model_type", ""))
    # a part of CLIP that was saved alone is called clip_vision_model or clip_text_model
    kind = given.removesuffix("_vision_model").removesuffix("_text_model")
    if kind not in families:
        raise InputError(
            f"--{option} {folder} holds a network of the type {ascii(given)[:40]}; give one of the "
            f"types {', '.join(families)}"
        )
    check_safetensors(folder, option)

    config_class = getattr(import_transformers(), families[kind].config)
    with refusing(f"{path} describes no network of the type {kind}", "save the model again"):
        config = config_class.from_pretrained(folder, local_files_only=True).to_dict()
    kept = {name: value for name, value in config.items() if name not in IGNORED_SETTINGS}
    return {**kept, "model_type": kind}


def check_safetensors(folder: str, option: str) -> None:
    """Raise InputError where a folder holds no weights in safetensors."""
    if glob.glob(os.path.join(glob.escape(folder), "*.safetensors")):
        return
    fault = f"--{option} {folder} holds no weights in safetensors"
    if glob.glob(os.path.join(glob.escape(folder), "*.bin")):
        fault += ", and a pickle such as pytorch_model.bin could run code"
    raise InputError(
        f"{fault}; load the model with transformers and save it again with save_pretrained"
    )


def read_image_model(folder: str, option: str = "image_model") -> str:
    """Describe the images' network of a folder as JSON: "config" and "preparation" of photos.

    option: names the folder in messages. Raises InputError where it cannot be read.
    """
    config = read_config(folder, IMAGE_FAMILIES, option)
    preparation = read_preparation(folder, option)
    height, width = preparation["size"]
    fixed = config["model_type"] not in ANY_SIZE
    if fixed and not height == width == config["image_size"]:
        raise InputError(
            f"--{option} {folder}: its image processor gives photos of {width} x {height} "
            f"pixels, and its network reads {config['image_size']} x {config['image_size']}; save "
            "the processor that belongs to it into the folder"
        )
    return json.dumps({"config": config, "preparation": preparation})


def read_text_model(folder: str, option: str = "text_model") -> str:
    """Describe the captions' network of a folder as JSON, its "config", as `read_image_model`."""
    return json.dumps({"config": read_config(folder, TEXT_FAMILIES, option)})


def build_network(description: str, families: dict[str, Family]) -> tuple[nn.Module, Family]:
    """Build a network of random weights from its description by `read_image_model`."""
    transformers = import_transformers()
    config = dict(json.loads(description)["config"])
    family = families[config.pop("model_type")]
    for name in IGNORED_SETTINGS:
        config.pop(name, None)
    settings = getattr(transformers, family.config)(**config)
    build = getattr(transformers, family.network)._from_config
    net = build(settings, attn_implementation="sdpa", dtype=torch.float32, **family.arguments)
    return net, family


def read_weights(net: nn.Module, folder: str, family: Family) -> nn.Module:
    """Read the network of a folder, of the kind of `net`. Raises InputError where weights lack."""
    advice = "save the whole model again with save_pretrained"
    with refusing(f"the weights in {folder} cannot be read", advice):
        found, report = type(net).from_pretrained(
            folder,
            config=net.config,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="sdpa",
            dtype=torch.float32,
            output_loading_info=True,
            **family.arguments,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(
            f"{folder} lacks {len(missing)} weights of {family.network} (first: "
            f"{missing[0]}); {advice}"
        )
    return found


# ---- photos as the network wants them


def read_preparation(folder: str, option: str) -> dict:
    """Read the image processor of a folder as plain values.

    "resize": a photo's short side, or [height, width]; "crop": [height, width] of its middle, or
    None; "size": [height, width] of what comes out; "resample": Pillow's number of a filter;
    "scale" of pixels of 0 to 255; "mean" and "std" of each color after that.
    """
    fault = f"--{option} {folder} holds no image processor that can be read"
    advice = "save the model's own there: AutoImageProcessor.from_pretrained(NAME).save_pretrained"
    names = [os.path.join(folder, name) for name in ("preprocessor_config", "processor_config")]
    if not any(os.path.isfile(f"{name}.json") for name in names):
        raise InputError(f"{fault} (there is no preprocessor_config.json); {advice}")
    transformers = import_transformers()
    with refusing(fault, advice):
        given = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        ).to_dict()
        size = given["size"]
        resize = size.get("shortest_edge")
        if resize is None:
            resize = [size["height"], size["width"]]
        crop = None
        if given.get("do_center_crop"):
            crop = [given["crop_size"]["height"], given["crop_size"]["width"]]
        scale = 1.0
        if given.get("do_rescale"):
            scale = given["rescale_factor"]
        mean = [0.0, 0.0, 0.0]
        std = [1.0, 1.0, 1.0]
        resample = int(given["resample"])
        if given.get("do_normalize"):
            mean = [float(value) for value in given["image_mean"]]
            std = [float(value) for value in given["image_std"]]

    out = crop or resize
    if not given.get("do_resize") or isinstance(out, int):
        raise InputError(
            f"{fault} (it leaves photos of different shapes, which cannot stand in one batch); "
            f"{advice}"
        )
    return {
        "resize": resize,
        "crop": crop,
        "size": out,
        "resample": resample,
        "scale": scale,
        "mean": mean,
        "std": std,
    }


class Preparation:
    """What turns a photo into numbers as the network wants them: (3, H, W) float32.

    settings: of `read_preparation`. The steps are those of the image processor of transformers
    that works with Pillow.
    """

    def __init__(self, settings: dict):
        self.resize = settings["resize"]
        self.crop = settings["crop"]
        self.size = settings["size"]
        self.filter = Image.Resampling(settings["resample"])
        self.scale = settings["scale"]
        self.mean = torch.tensor(settings["mean"])[:, None, None]
        self.std = torch.tensor(settings["std"])[:, None, None]

    def __call__(self, photo: Image.Image) -> Tensor:
        """Prepare the middle of a photo, or the whole of it where the processor crops nothing."""
        if isinstance(self.resize, int):
            short, long = sorted(photo.size)
            new_long = int(self.resize * long / short)
            width, height = new_long, self.resize
            if photo.width <= photo.height:
                width, height = self.resize, new_long
        else:
            height, width = self.resize
        photo = photo.resize((width, height), self.filter)

        if self.crop:
            crop_height, crop_width = self.crop
            left = (width - crop_width) // 2
            top = (height - crop_height) // 2
            photo = photo.crop((left, top, left + crop_width, top + crop_height))
        return self.to_numbers(photo)

    def stretch(self, photo: Image.Image) -> Tensor:
        """Prepare all of a photo, without keeping its shape."""
        height, width = self.size
        return self.to_numbers(photo.resize((width, height), self.filter))

    def to_numbers(self, photo: Image.Image) -> Tensor:
        """Scale the pixels of a photo of the right size."""
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1)  # (H, W, 3) -> (3, H, W)
        return (pixels * self.scale - self.mean) / self.std

    def build_augmentation(self) -> Callable:
        """Build a random crop for training. Nothing is flipped: captions say left and right."""
        t = import_torchvision().transforms
        by_name = t.InterpolationMode(self.filter.name.lower())
        crop = t.RandomResizedCrop(self.size, CROP_SHARE, interpolation=by_name)
        return t.Compose([crop, self.to_numbers])


class PreparedPhotos(Photos):
    """Photos of a split as a pretrained network wants them."""

    def __init__(self, photos: Photos, preparation: Preparation):
        super().__init__(photos.paths, photos.advice)
        self.preparation = preparation

    def build_transform(self) -> Callable:
        return self.preparation

    def build_augmentation(self, crop_size: int) -> Callable:
        return self.preparation.build_augmentation()


def prepare_photos(opt, photos: Photos) -> PreparedPhotos:
    """Let photos be prepared as --image_model says."""
    return PreparedPhotos(photos, Preparation(json.loads(opt.image_config)["preparation"]))


# ---- captions as word pieces


class Pieces(Vocabulary):
    """Tokenizer of a pretrained network, in the place of a vocabulary of words.

    words: two strings, which a checkpoint holds: settings as JSON, and the tokenizer. Its "kind" is
    "tokenizers", a tokenizer.json, or "sentencepiece", SigLIP's spiece.model in base 64.
    "max_length": pieces that are read of a caption; "pad": the number of the piece that fills
    every caption up to that, as SigLIP was trained, or None. Raises InputError on anything else.
    """

    reads_captions = True

    def __init__(self, words: list[str]):
        fault = "the vocabulary is not the tokenizer of a pretrained network"
        with refusing(fault, "take a run of --txt_enc pretrained"):
            settings, content = words
            self.settings = json.loads(settings)
            if not 0 < self.settings["max_length"] <= MAX_CAPTION_PIECES:
                raise ValueError(f"it reads {self.settings['max_length']} pieces of a caption")
            if self.settings["kind"] == "sentencepiece":
                self.tokenizer = load_sentencepiece(content)
                self.index = dict(self.tokenizer.get_vocab())
            else:
                self.tokenizer = load_tokenizers(content, self.settings["max_length"])
                self.index = self.tokenizer.get_vocab()
        self.words = list(words)

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_options(cls, opt) -> "Pieces":
        """Read the tokenizer of --text_model. Raises InputError without one."""
        return read_pieces(opt.text_model, opt.text_config)

    def number(self, captions: list[str]) -> list[list[int]]:
        """Number the word pieces of captions, with those that stand at their ends."""
        if self.settings["kind"] == "tokenizers":
            return [encoded.ids for encoded in self.tokenizer.encode_batch(captions)]
        longest = self.settings["max_length"]
        return self.tokenizer(captions, truncation=True, max_length=longest)["input_ids"]

    def encode_captions(self, captions: list[str]) -> Tokens:
        """Turn captions, as they are written, into numbers of word pieces.

        A list of words, as other vocabularies take it, is read with spaces between them.
        """
        texts = []
        for caption in captions:
            if not isinstance(caption, str):
                caption = " ".join(caption)
            texts.append(caption)
        rows = self.number(texts)
        if self.settings["pad"] is not None:
            missing = [self.settings["max_length"] - len(row) for row in rows]
            rows = [row + [self.settings["pad"]] * count for row, count in zip(rows, missing)]
        lengths = np.array([len(row) for row in rows], np.int64)
        known = np.zeros(len(rows), bool)  # every caption has pieces
        return Tokens(np.concatenate(rows).astype(np.int64), lengths, known)


def load_tokenizers(content: str, max_length: int):
    """Load a tokenizer.json that pads nothing and cuts captions at max_length pieces."""
    from tokenizers import Tokenizer  # comes with transformers

    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def load_sentencepiece(content: str):
    """Load SigLIP's tokenizer from its spiece.model in base 64."""
    transformers = import_transformers()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "spiece.model")
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
        return transformers.SiglipTokenizer(path)


def read_pieces(folder: str, description: str, option: str = "text_model") -> Pieces:
    """Read the tokenizer of a folder, whose network `read_text_model` described.

    Raises InputError without one.
    """
    config = json.loads(description)["config"]
    transformers = import_transformers()
    advice = "save the model's own there: AutoTokenizer.from_pretrained(NAME).save_pretrained"
    fault = f"--{option} {folder} holds no tokenizer that can be read"
    if not any(os.path.isfile(os.path.join(folder, name)) for name in TOKENIZER_FILES):
        raise InputError(f"{fault} (none of {', '.join(TOKENIZER_FILES)} is there); {advice}")
    with refusing(fault, advice):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        positions = config.get("max_position_embeddings", MAX_CAPTION_PIECES)
        settings = {
            "kind": "tokenizers",
            "max_length": min(tokenizer.model_max_length, positions, MAX_CAPTION_PIECES),
            "pad": None,
        }
        if config["model_type"] == "siglip":
            settings["pad"] = tokenizer.pad_token_id

        if isinstance(tokenizer, transformers.SiglipTokenizer):
            settings["kind"] = "sentencepiece"
            with open(tokenizer.vocab_file, "rb") as file:
                content = base64.b64encode(file.read()).decode()
        else:
            content = tokenizer.backend_tokenizer.to_str()
    pieces = Pieces([json.dumps(settings), content])
    largest = max(pieces.index.values())
    if largest >= config["vocab_size"]:
        raise InputError(
            f"--{option} {folder}: its tokenizer numbers pieces up to {largest:,}, and its network "
            f"knows {config['vocab_size']:,}; {advice}"
        )
    return pieces


# ---- trunks


class PretrainedTrunk(nn.Module):
    """Network of transformers that gives one vector an item, of norm 1 where `normalize`.

    description: of `read_image_model` or `read_text_model`. folder: of its weights.
    """

    families: dict[str, Family]
    finetune = True  # False while it is frozen, in eval mode; see `thaw_backbones`

    def __init__(self, description: str, folder: str, normalize: bool):
        super().__init__()
        self.net, self.family = build_network(description, self.families)
        self.kind = json.loads(description)["config"]["model_type"]
        self.folder = folder
        self.normalize = normalize
        self.dim = self.find_width(self.net.config)

    def find_width(self, config) -> int:
        """Find the size of the vectors."""
        return config.hidden_size

    def read_weights(self) -> None:
        """Read the weights of the folder, for a training that starts from them."""
        self.net = read_weights(self.net, self.folder, self.family)

    def train(self, mode: bool = True):
        return super().train(mode and self.finetune)

    def compute(self, real: Tensor | None = None, **inputs) -> Tensor:
        """Compute vectors (B, F). real (B, T): mask of the pieces that are not padding."""
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            vectors = self.family.read_vectors(self.net(**inputs), real)
            if self.normalize:
                vectors = F.normalize(vectors, dim=-1)
            return vectors


class PretrainedImages(PretrainedTrunk):
    """Network of photos: (B, 3, H, W) -> (B, F)."""

    families = IMAGE_FAMILIES

    def __init__(self, description: str, folder: str, normalize: bool):
        super().__init__(description, folder, normalize)
        self.preparation = Preparation(json.loads(description)["preparation"])

    def find_width(self, config) -> int:
        if hasattr(self.net, "visual_projection"):
            return config.projection_dim
        return config.hidden_size

    def forward(self, photos: Tensor, lengths=None) -> Tensor:
        return self.compute(pixel_values=photos)


class PretrainedTexts(PretrainedTrunk):
    """Network of captions: word pieces (B, T), lengths (B,) -> (B, F)."""

    families = TEXT_FAMILIES

    def find_width(self, config) -> int:
        if hasattr(self.net, "text_projection"):
            return config.projection_dim
        return getattr(config, "projection_size", config.hidden_size)

    def forward(self, pieces: Tensor, lengths: Tensor) -> Tensor:
        real = real_parts(pieces, lengths)  # (B, T)
        return self.compute(real, input_ids=pieces, attention_mask=real.long())


def load_images(folder: str, option: str) -> tuple[PretrainedImages, Preparation]:
    """Load the network of photos of a folder, frozen, and what prepares photos for it."""
    description = read_image_model(folder, option)
    net = PretrainedImages(description, folder, normalize=False)
    net.read_weights()
    return net.eval().requires_grad_(False), net.preparation


def load_texts(folder: str, option: str) -> tuple[PretrainedTexts, Pieces]:
    """Load the network of captions of a folder, frozen, and its tokenizer."""
    description = read_text_model(folder, option)
    net = PretrainedTexts(description, folder, normalize=False)
    net.read_weights()
    return net.eval().requires_grad_(False), read_pieces(folder, description, option)


# ---- a backbone learns later and more slowly than the layers on it


def find_backbones(model: nn.Module) -> list[nn.Module]:
    """List the trunks that were trained before and learn here, those of --finetune among them."""
    found = []
    for module in model.modules():
        if not getattr(module, "finetune", False):
            continue
        if any(weight.requires_grad for weight in module.parameters()):
            found.append(module)
    return found


def thaw_backbones(backbones: list[nn.Module], learn: bool) -> None:
    """Let backbones learn, or freeze them in eval mode, from now on in a training."""
    for trunk in backbones:
        if trunk.finetune != learn:
            trunk.finetune = learn
            trunk.train()


def split_rates(groups: list[dict], backbones: list[nn.Module], factor: float) -> list[dict]:
    """Give the weights of backbones groups of their own, at `factor` of the learning rate.

    groups: of an optimizer, each with "params" and "initial_lr". Other groups stay as they are.
    """
    slow = set()
    for trunk in backbones:
        slow |= {id(weight) for weight in trunk.parameters()}
    if not slow or factor == 1:
        return groups

    result = []
    for group in groups:
        fast_weights = [weight for weight in group["params"] if id(weight) not in slow]
        slow_weights = [weight for weight in group["params"] if id(weight) in slow]
        slow_rate = group["initial_lr"] * factor
        result.append({**group, "params": fast_weights})
        result.append({**group, "params": slow_weights, "initial_lr": slow_rate, "lr": slow_rate})
    return [group for group in result if group["params"]]


# ---- options, and what --img_enc pretrained and --txt_enc pretrained name


def fill_models(opt) -> None:
    """Fill in what a model that is given implies."""
    if opt.image_model and opt.img_enc == "auto":
        opt.img_enc = "pretrained"
    if opt.text_model and opt.txt_enc is None:
        opt.txt_enc = "pretrained"
    if opt.backbone_lr is None and "pretrained" in (opt.img_enc, opt.txt_enc):
        opt.backbone_lr = BACKBONE_RATE


def check_models(opt) -> None:
    """Read what the folders of models say. Raises InputError where they or the options do not fit.

    A resumed run, whose description is stored, reads no folder.
    """
    for option, encoder in (("image_model", "img_enc"), ("text_model", "txt_enc")):
        folder = getattr(opt, option)
        pretrained = getattr(opt, encoder) == "pretrained"
        if pretrained and not folder:
            raise InputError(
                f"--{encoder} pretrained needs a folder that save_pretrained of transformers "
                f"wrote; give it with --{option} DIR"
            )
        if folder and not pretrained:
            raise InputError(
                f"--{option} {folder} is read by --{encoder} pretrained, not by --{encoder} "
                f"{getattr(opt, encoder)}; leave one of the two out"
            )
    learns = opt.finetune or opt.image_model or opt.text_model
    if not learns and (opt.freeze_epochs or opt.backbone_lr != 1):
        raise InputError(
            f"--freeze_epochs {opt.freeze_epochs} and --backbone_lr {opt.backbone_lr:g} are for "
            "networks that were trained before and learn here; give --image_model, --text_model or "
            "--finetune, or leave them out"
        )
    if opt.text_model and opt.word_vectors:
        raise InputError(
            f"--word_vectors {opt.word_vectors} are vectors of words, and --text_model reads word "
            "pieces; leave one of the two out"
        )
    if opt.image_model and not opt.image_config:
        opt.image_config = read_image_model(opt.image_model)
    if opt.text_model and not opt.text_config:
        opt.text_config = read_text_model(opt.text_model)


def build_images(opt, pretrained: bool) -> PretrainedImages:
    """Build the trunk of photos, of random weights."""
    return PretrainedImages(opt.image_config, opt.image_model, opt.feature_norm)


def build_texts(opt, pieces: Pieces, table) -> PretrainedTexts:
    """Build the trunk of captions, of random weights."""
    return PretrainedTexts(opt.text_config, opt.text_model, opt.feature_norm)


PRETRAINED_OPTIONS = {
    "image_model": (
        filename,
        None,
        "folder of a pretrained network of photos (CLIP, SigLIP, ViT, DINOv2), as "
        "save_pretrained of transformers writes it",
    ),
    "text_model": (
        filename,
        None,
        "folder of a pretrained network of captions (CLIP, SigLIP, BERT, MiniLM) and "
        "its tokenizer; it may be the same",
    ),
    "freeze_epochs": (
        natural,
        0,
        "pretrained networks (--image_model, --text_model, --finetune) do not learn in the first "
        "N epochs",
    ),
    "backbone_lr": (
        at_least_zero,
        None,
        "learning rate of pretrained networks, as a factor of that of the other layers; 0: they "
        "do not learn (default: 0.1; --finetune alone: 1)",
    ),
}
IMAGE_ENCODERS["pretrained"] = Encoder(
    "photos",
    build_images,
    build_image_layers,
    layers=True,
    decoder="vector",
    one_vector=True,
    options=PRETRAINED_OPTIONS,
    prepare=prepare_photos,
)
TEXT_ENCODERS["pretrained"] = Encoder(
    "captions",
    build_texts,
    build_text_layers,
    layers=True,
    vocabulary=Pieces,
    options=PRETRAINED_OPTIONS,
)
OPTION_DEFAULTS["backbone_lr"] = 1.0
OPTION_RULES["encoder_defaults"].append((("image_model", "text_model"), fill_models))
OPTION_RULES["encoders"].append((("img_enc", "txt_enc"), check_models))
