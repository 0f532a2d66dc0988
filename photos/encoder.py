"""A trained run as a function of one's own captions and photos, without the data that it was
trained on.

    from photos.encoder import Encoder
    model = Encoder("runs/demo")
    captions = model.captions(["a red circle .", "a star ."])
    print(model.similarity(model.photos(["one.png", "two.png"]), captions))     # (2, 2)
"""
import functools
import os
from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor

from checkpoint import BATCH, Trained
from cli import InputError, torch_device
from data import Photos
from features.captions import TfIdf, count_words
from features.hglmm import load_arrays
from features.minilm import MiniLM
from features.networks import build_network
from files import checksum
from images import eval_transform
from losses import Embedding
from photos.index import AGAIN
from vocab import tokenize

BROAD = 1000                          # words of a training whose language can be told by them


class Encoder(Trained):
    """A trained model that also computes the features that it reads, of photos and of captions.

    recipe: how the features of photos are computed (features.folder), where the run reads features.
    text_weights: the weights of the network of its features of captions, where they come with no
    package. data_path: where its data are, if they are no longer where it was trained. Raises
    InputError where the checkpoint cannot be read.
    """

    def __init__(self, run: str, recipe: dict | None = None, *, device="auto",
                 text_weights: str | None = None, data_path: str | None = None):
        super().__init__(run, torch_device(str(device)))
        self.recipe, self.text_weights = recipe, text_weights
        places = [self.options.data_path, data_path or ""]
        self.data_path = next((place for place in places if os.path.isdir(
            os.path.join(place, self.options.data_name))), places[0])

    @property
    def reads_photos(self) -> bool:
        """Whether the model computes its features of photos itself."""
        of = self.options
        return of.img_enc == "cnn" or of.img_enc == "pie" and of.img_dim is None

    def refuse_other_weights(self, index: str, weights: str) -> None:
        """Raises InputError where an index was made by a model of other weights."""
        if self.weights != weights:
            raise InputError(f"{index} was made by the model with {weights}, and {self.path} holds "
                             f"one with {self.weights}; name the run that it was made by with "
                             f"--checkpoint, or {AGAIN}")

    # ---- captions

    def captions(self, texts: list[str]) -> Embedding:
        """Captions -> Embedding of (B, D). Raises InputError for a caption without a known word,
        and where the run reads features of captions that cannot be computed here."""
        return self.texts(texts, self.features_of_text if self.options.text_features else None)

    def note_on(self, text: str) -> str | None:
        """What is said of the words of a caption that are not among those of the training captions.
        A model of words leaves them out. One on ready features of captions takes any, but where
        most are such, and the words of the training are many enough to tell, the caption may be of
        another language than it learned."""
        if hasattr(self.vocab, "trigrams"):
            return None
        words = [word for word in tokenize(text) if any(map(str.isalnum, word))]
        unknown = [word for word in words if word not in self.vocab.index]
        if not self.options.text_features:
            return f"unknown words, which are left out: {', '.join(unknown)}" if unknown else None
        if len(self.vocab) < BROAD or len(unknown) < 3 or 2 * len(unknown) <= len(words):
            return None
        return (f"{len(unknown)} of its {len(words)} words are seldom or never in the captions "
                f"that the model learned from ({', '.join(unknown)}): of another language, or of "
                "other things, it may know nothing")

    @functools.cached_property
    def features_of_text(self) -> Callable[[list[str]], Tensor]:
        """Computes the features of captions (B, F) that the run was trained on. Raises InputError
        where they need files that are not at hand."""
        name = self.options.text_features
        line = self.extractors.get(name, "")
        if line.startswith("tfidf"):
            path = os.path.join(self.data_path, self.options.data_name, f"{name}_model.npz")
            words = TfIdf(**load_arrays(path, ["words", "idf"]))
            if f"{words.line}, fitted {checksum(words.arrays[key] for key in words.names)}" != line:
                raise InputError(f"{path} was fitted again since {self.path} was trained "
                                 f"('{line}'); give the old file")
            return lambda texts: torch.from_numpy(words.rows(count_words(
                [tokenize(text) for text in texts], words.index)))
        if not line.startswith("minilm"):
            raise InputError(f"{self.path} reads the features of captions '{name}' "
                             f"({line or 'of an unknown network'}), and only those of minilm "
                             "and tfidf can be computed for a caption of one's own; "
                             "train a run on words, or on one of these")
        network = MiniLM(self.text_weights)
        if network.line != line:
            raise InputError(f"{self.path} was trained on captions of '{line}', and the network "
                             f"here is '{network.line}'; "
                             "give the weights of the first with --text_weights")
        network = network.to(self.device)
        return lambda texts: network(list(network.pieces(texts)))

    # ---- photos

    @torch.no_grad()
    def photos(self, photos: list) -> Embedding:
        """Photos, each a path or a PIL.Image, -> Embedding of (B, D). Raises InputError for a photo
        that cannot be read, and where the features that the run reads cannot be computed."""
        network, transform = self.photo_network
        images = [transform(Photos([x]).open(0) if isinstance(x, str) else x.convert("RGB"))
                  for x in photos]
        batches = [images[k:k + BATCH] for k in range(0, len(images), BATCH)]
        return Embedding.cat([self.images(network(torch.stack(some).to(self.device)))
                              for some in batches])

    @functools.cached_property
    def photo_network(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Image.Image], Tensor]]:
        """What turns prepared photos (B, 3, H, W) into what the model reads, and what prepares a
        photo."""
        if self.reads_photos:
            return (lambda x: x), eval_transform()
        if self.recipe is None:
            raise InputError(f"{self.path} reads features of photos, and those of this index were "
                             "not written by features.images, so a photo cannot be "
                             "embedded; extract them with it")
        network, transform, line = build_network(self.recipe, self.device)
        self.refuse_other_features(line)
        return network, transform

    def refuse_other_features(self, line: str | None) -> None:
        """Raises InputError where features of photos are of another extractor than those of the
        training."""
        trained = self.extractors.get("ims")
        if trained and line and trained != line:
            raise InputError(f"{self.path} was trained on photos of '{trained}', and these "
                             f"features are of '{line}'; extract them with the same network")
