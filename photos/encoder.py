"""Trained run as a function of captions and photos (docs/search.md, In a program)."""
import functools
import os

import torch

from checkpoint import Trained
from cli import check, torch_device
from features.networks import Network, rebuild_network
from features.sentences import SENTENCE_NETWORKS
from images import eval_transform, read_photo
from losses import Embedding

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model")


class PhotoEncoder(Trained):
    """Trained model that also computes features of photos and of captions.

    run: its folder; None: photos/model. data_path: where its data are, if they are no longer where it was trained.
    Raises InputError where the checkpoint cannot be read.
    """

    def __init__(self, run: str | None = None, *, device="auto", data_path: str | None = None):
        super().__init__(run or SHIPPED, torch_device(str(device)))
        self.run = run and os.path.abspath(run)
        self.data_path = data_path or self.options.data_path

    def refuse_other_weights(self, index: str, weights: str) -> None:
        """Raise InputError where an index was made by a model of other weights."""
        check(self.weights == weights,
              f"{index} was made by the model with {weights}, and {self.path} holds one with {self.weights}; delete "
              "the index and make it again, name another file with --output, or its run with --checkpoint")

    # ---- captions

    def captions(self, texts: list[str]) -> Embedding:
        """Embed captions (B,).
        Raises InputError for a caption without a known word, and where the run reads features of captions that cannot
        be computed here."""
        return self.texts(texts, self.sentence_network.embed if self.options.text_features else None)

    @functools.cached_property
    def sentence_network(self):
        """The network that made the features of the training captions.
        Raises InputError where another one is here, or where they were not made by a network."""
        name = self.options.text_features
        line = self.extractors.get(name, "")
        kind = line.split(",")[0]
        check(kind in SENTENCE_NETWORKS,
              f"{self.path} reads the features of captions '{name}' ({line or 'of an unknown network'}), and only "
              f"those of {' and '.join(SENTENCE_NETWORKS)} can be computed for a caption of one's own; train a run on "
              "words, or on one of these")
        network = SENTENCE_NETWORKS[kind](self.device)
        check(network.line == line, f"{self.path} was trained on captions of '{line}', and the network here is "
                                    f"'{network.line}'; install the first")
        return network

    # ---- photos

    @torch.no_grad()
    def photos(self, photos: list) -> Embedding:
        """Embed photos (B,), each a path or a PIL.Image.
        Raises InputError for a photo that cannot be read, and where the features that the run reads cannot be
        computed."""
        network = self.photo_network
        pixels = []
        for photo in photos:
            image = read_photo(photo, may_be_cut=True) if isinstance(photo, str) else photo
            pixels.append(network.transform(image.convert("RGB")))
        return self.images(network(pixels))

    @functools.cached_property
    def photo_network(self) -> Network:
        """Network from photos to the features that the model reads.
        Raises InputError where the run does not say which network made them."""
        of = self.options
        if of.img_enc == "cnn" or of.img_enc == "pie" and of.img_dim is None:       # it computes the features itself
            return Network(torch.nn.Identity(), eval_transform(), "photos", self.device)
        line = self.extractors.get("ims", "")
        built = rebuild_network(line, self.device)
        check(built,
              f"{self.path} was trained on features of photos of {ascii(line) if line else 'an unnamed network'}, and "
              "those of other photos cannot be computed from that alone; write them with features.images --photos, "
              "and index them with python -m photos index --images NAME")
        return built
