"""Trained run as a function of captions and photos (docs/search.md, In a program)."""

import functools
import os

import torch

from checkpoint import Trained
from features.networks import Network, rebuild_network
from features.sentences import SENTENCE_NETWORKS
from images import eval_transform, read_photo
from losses import Embedding
from utils import InputError, torch_device

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model")


class PhotoEncoder(Trained):
    """Trained model that also computes features of photos and of captions.

    run: its folder; None: photos/model. data_path: where its data are, if they have moved since the
    training. Raises InputError if the checkpoint cannot be read.
    """

    def __init__(self, run: str | None = None, *, device="auto", data_path: str | None = None):
        super().__init__(run or SHIPPED, torch_device(str(device)))
        self.run = run and os.path.abspath(run)
        self.data_path = data_path or self.options.data_path

    def refuse_other_weights(self, index: str, weights: str) -> None:
        """Raise InputError if an index was made by a model with other weights."""
        if self.weights != weights:
            raise InputError(
                f"{index} was made by the model with {weights}, and {self.path} holds one with "
                f"{self.weights}; delete the index and make it again, name another file with "
                "--output, or its run with --checkpoint"
            )

    # ---- captions

    def captions(self, texts: list[str]) -> Embedding:
        """Embed captions (B,).

        Raises InputError for a caption without a known word, and if the run reads features of
        captions that cannot be computed here.
        """
        embed = None
        if self.options.text_features:
            embed = self.sentence_network.embed
        return self.texts(texts, embed)

    @functools.cached_property
    def sentence_network(self):
        """The network that made the features of the training captions.

        Raises InputError if another version is installed, or if no network made them.
        """
        name = self.options.text_features
        line = self.extractors.get(name, "")
        kind = line.split(",")[0]
        if kind not in SENTENCE_NETWORKS:
            origin = line or "of an unknown network"
            known = " and ".join(SENTENCE_NETWORKS)
            raise InputError(
                f"{self.path} reads the caption features '{name}' ({origin}), and for a new "
                f"caption only those of {known} can be computed; train a run on words, or on these"
            )

        network = SENTENCE_NETWORKS[kind](self.device)
        if network.line != line:
            raise InputError(
                f"{self.path} was trained on captions of '{line}', and the network here is "
                f"'{network.line}'; install the first"
            )
        return network

    # ---- photos

    @torch.no_grad()
    def photos(self, photos: list) -> Embedding:
        """Embed photos (B,), each a path or a PIL.Image.

        Raises InputError for a photo that cannot be read, and if the features that the run reads
        cannot be computed.
        """
        network = self.photo_network
        pixels = []
        for photo in photos:
            if isinstance(photo, str):
                photo = read_photo(photo, may_be_cut=True)
            pixels.append(network.transform(photo.convert("RGB")))
        return self.images(network(pixels))

    @functools.cached_property
    def photo_network(self) -> Network:
        """Network from photos to the features that the model reads.

        Raises InputError if the run does not say which network made them.
        """
        options = self.options
        reads_pixels = (
            options.img_enc == "cnn" or options.img_enc == "pie" and options.img_dim is None
        )
        if reads_pixels:  # the model has the network within
            return Network(torch.nn.Identity(), eval_transform(), "photos", self.device)

        if options.img_enc == "pretrained":
            preparation = self.model.image_tower.trunk.preparation
            return Network(torch.nn.Identity(), preparation, "photos", self.device)

        line = self.extractors.get("ims", "")
        network = rebuild_network(line, self.device)
        if not network:
            name = ascii(line) if line else "an unnamed network"
            raise InputError(
                f"{self.path} was trained on features of photos of {name}, and those of other "
                "photos cannot be computed from that alone; write them with features.images "
                "--photos, and index them with python -m photos index --images NAME"
            )
        return network
