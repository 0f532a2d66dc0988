"""Photos and captions in the joint space of a CLIP network (Radford et al. 2021) of the package
open_clip_torch.

The weights come from a file that the user has. Nothing is downloaded, and no network is used with
random weights.
"""
import difflib
import logging
import os
import sys
import warnings

import torch
from torch import Tensor, nn

from cli import InputError, check, reason
from files.photos import import_torchvision
from files.reading import checksum

PREPARED = "mean", "std", "interpolation", "resize_mode"   # how published weights want their photos
# Read when huggingface_hub and transformers are imported.
OFFLINE = "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"


def import_open_clip():
    """Import open_clip so that it never goes online. Raises InputError where it is not installed.
    """
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    import_torchvision()
    try:
        import open_clip
    except ImportError as error:
        raise InputError("--kind open_clip needs a package: pip install open_clip_torch") from error
    return open_clip


def configuration(name: str | None) -> dict:
    """open_clip's description of the network `name`. Raises InputError where it has none, or would
    download a part."""
    open_clip = import_open_clip()
    names = open_clip.list_models()
    if name not in names:
        near = difflib.get_close_matches(name or "", names, 8, 0.3) or ["ViT-B-32", "ViT-L-14"]
        raise InputError(f"--model {name} is none of the {len(names)} networks of open_clip; give "
                         f"one such as {', '.join(near)}, or see open_clip.list_models()")
    config = open_clip.get_model_config(name)
    downloaded = config["text_cfg"].get("hf_model_name")
    check(not downloaded,
          f"--model {name} builds its text network from {downloaded} of Hugging Face, and nothing "
          "is downloaded; give a network that is whole in open_clip, such as ViT-B-32")
    return config


def published(name: str, tag: str | None, quick: bool) -> tuple[dict[str, dict], list[str]]:
    """What open_clip knows of the published weights of a network, {tag: settings}; with `tag`, of
    these alone.

    quick: whether the network computes QuickGELU, x sigmoid(1.702 x), in place of GELU. Weights
    that were trained with it load all the same where it computes GELU, and give worse features.
    They are left out; their tags are the second value. Raises InputError if `tag` is one of them,
    or unknown.
    """
    open_clip = import_open_clip()
    settings_of = {each: open_clip.get_pretrained_cfg(name, each)
                   for each in open_clip.list_pretrained_tags_by_model(name)}
    other = [each for each, settings in settings_of.items()
             if settings.get("quick_gelu") and not quick]
    fix = f"give one of {', '.join(settings_of)}" if settings_of else "there are none, so leave it out"
    check(not tag or tag in settings_of, f"--tag {tag} names no published weights of {name}; {fix}")
    check(tag not in other,
          f"--tag {tag}: these weights were trained with QuickGELU, and --model {name} computes "
          f"GELU; give --model {name}-quickgelu")
    return ({tag: settings_of[tag]}, []) if tag else (
        {each: settings_of[each] for each in settings_of if each not in other}, other)


def preparation(name: str, settings_of: dict[str, dict]) -> dict:
    """How the photos of published weights are prepared: PREPARED with its values, or {} where no
    weights are published. Raises InputError where two differ, since the file does not tell which of
    them it holds."""
    ways = {}
    for tag, settings in settings_of.items():
        ways.setdefault(tuple(settings[key] for key in PREPARED), []).append(tag)
    check(len(ways) <= 1,
          f"--model {name} has published weights whose photos are prepared in {len(ways)} ways "
          f"({'; '.join(', '.join(tags) for tags in ways.values())}); say which of them the file "
          "holds: --tag NAME")
    return dict(zip(PREPARED, next(iter(ways), ())))


def check_weights(path: str | None, name: str, settings_of: dict[str, dict]) -> None:
    """Raise InputError, which says where weights can be had, unless `path` is a file."""
    pages = [settings["hf_hub"].split("/")[:2]
             for settings in settings_of.values() if settings.get("hf_hub")]
    where = f"of huggingface.co/{'/'.join(pages[0])}" if pages else "that you trained"
    check(path is not None,
          f"--model {name} needs weights, and nothing is downloaded; give --weights FILE with "
          f"those {where} (open_clip_model.safetensors or open_clip_pytorch_model.bin)")
    check(os.path.isfile(path),
          f"there is no file {path} with weights of {name}; give one with --weights")


def read_weights(model: nn.Module, path: str, name: str) -> None:
    """Load a complete state dict from a local file, without running code from it. Raises
    InputError."""
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file
            state = load_file(path)
        else:
            # of a TorchScript archive, which is refused
            with warnings.catch_warnings(action="ignore"):
                state = torch.load(path, map_location="cpu", weights_only=True)
        state = state.get("state_dict",
                          state)              # of a checkpoint that open_clip's training wrote
        model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    # a pickle, zip or key fault: all mean that the file is not this network's
    except Exception as error:
        raise InputError(f"{path} does not hold the weights of {name} ({reason(error)}); give a "
                         "state dict of this network, "
                         "in safetensors or as torch.save writes it") from error


class Clip(nn.Module):
    """A frozen network of open_clip with the weights of a file. `dim`: the width D of the joint
    space.

    `weights`: their checksum, the same for photos and captions. `prepared`: see `preparation`, of a
    network for photos.
    """

    def __init__(self, name: str, weights: str | None, tag: str | None, *, photos: bool):
        super().__init__()
        open_clip, config = import_open_clip(), configuration(name)
        tokenizer = config["text_cfg"].get("hf_tokenizer_name")
        check(not tokenizer or photos,
              f"--model {name} reads captions by the tokenizer {tokenizer} of Hugging Face, and "
              "nothing is downloaded; its photos can be extracted, or give a network such as "
              "ViT-B-32")
        settings_of, other = published(name, tag, bool(config.get("quick_gelu")))
        self.prepared = preparation(name, settings_of) if photos else {}
        check_weights(weights, name, settings_of)
        logging.disable(logging.WARNING)     # that the weights are random, as they are for a moment
        try:
            self.net = open_clip.create_model(
                name, pretrained_text=False).eval().requires_grad_(False)
        finally:
            logging.disable(logging.NOTSET)
        read_weights(self.net, weights, name)
        if other:
            print(f"warning: --model {name} computes GELU; if {weights} holds "
                  f"{' or '.join(other)}, give --model {name}-quickgelu", file=sys.stderr)
        self.dim = config["embed_dim"]
        self.weights = f"weights {checksum(x.numpy() for x in self.net.state_dict().values())}"


class ClipPhotos(Clip):
    """Photos (B, 3, H, W), prepared by `transform`, -> their embeddings (B, D), not normalised."""
    regions = None

    def __init__(self, name: str, weights: str | None, tag: str | None):
        super().__init__(name, weights, tag, photos=True)
        settings = {**self.net.visual.preprocess_cfg, **self.prepared}
        self.transform = import_open_clip().image_transform(
            settings["size"], is_train=False, mean=settings["mean"], std=settings["std"],
            interpolation=settings["interpolation"], resize_mode=settings["resize_mode"])
        self.line = (f"open_clip {name} encode_image, not normalised, photos "
                     f"{checksum([str(settings).encode()])}, {self.weights}")

    @torch.inference_mode()
    def forward(self, photos: Tensor) -> Tensor:
        return self.net.encode_image(photos, normalize=False)


class ClipCaptions(Clip):
    """Captions -> their embeddings (B, size), not normalised, by `pieces` and a call with those of
    a batch."""

    def __init__(self, name: str, weights: str | None, tag: str | None):
        super().__init__(name, weights, tag, photos=False)
        self.size, self.tokenizer = self.dim, import_open_clip().get_tokenizer(name)
        self.line = f"open_clip {name} encode_text, not normalised, {self.weights}"

    def pieces(self, captions: list[str]) -> Tensor:
        """The numbers of the word pieces of each caption, filled up or cut to the length that the
        network reads."""
        return self.tokenizer(captions)                                             # (M, T)

    @torch.inference_mode()
    def forward(self, pieces: list[Tensor]) -> Tensor:
        return self.net.encode_text(torch.stack(pieces).to(next(self.net.parameters()).device),
                                    normalize=False)
