"""A trained run as a function of one's own captions and photos, without the data that it was trained on.

    from retrieval.encoder import Encoder
    model = Encoder("runs/demo")
    captions, photos = model.captions(["a red circle .", "a star ."]), model.photos(["one.png", "two.png"])
    print(model.similarity(photos, captions))                                       # (2, 2), more is better
"""
import os
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from checkpoints import load_checkpoint, load_model, weights_of
from cli import InputError, torch_device
from evaluation.queries import embed_texts
from features.captions import TfIdf, word_counts
from features.folder import network_of
from features.hglmm import load_arrays
from features.minilm import MiniLM
from features.openclip import ClipCaptions
from features.photos import checksum
from inputs import Photos, eval_transform
from similarities import Embedding
from text import tokenize

BATCH = 64                            # photos or captions per step
BROAD = 1000                          # words of a training whose language can be told by them


class Encoder:
    """The model of a run folder or checkpoint file. It embeds captions, photos and features of photos.

    recipe: how the features of photos are computed (features.folder), where the run reads features. text_weights: the
    weights of the network of its features of captions, where they come with no package. Raises InputError where the
    checkpoint cannot be read.
    """

    def __init__(self, run: str, recipe: dict | None = None, *, device: str = "auto", text_weights: str | None = None):
        stored = load_checkpoint(run)
        self.run, self.recipe, self.device, self.text_weights = run, recipe, torch_device(device), text_weights
        model, self.vocab, self.options = load_model(stored, run)
        self.model, self.similarity = model.to(self.device), model.similarity
        self.extractors = (stored["data"].get("extractors") if "data" in stored else None) or {}
        self.weights = weights_of(model)
        self._features_of_text: Callable[[list[str]], Tensor] | None = None
        self._photo_network = None

    @property
    def reads_photos(self) -> bool:
        """Whether the model computes its features of photos itself."""
        return self.options.img_enc == "cnn" or self.options.img_enc == "pie" and self.options.img_dim is None

    # ---- captions

    @torch.no_grad()
    def captions(self, texts: list[str]) -> Embedding:
        """Captions -> Embedding of (B, D). Raises InputError for a caption without a known word, and where the run
        reads features of captions that cannot be computed here."""
        parts = []
        for k in range(0, len(texts), BATCH):
            some = texts[k:k + BATCH]
            if self.options.text_features:
                features = self.features_of_text(some)
                parts.append(self.model.embed_captions(features.to(self.device), torch.ones(len(some)).long()))
            else:
                parts.append(embed_texts(self.model, self.vocab, some, self.device))
        return join(parts)

    def note_on(self, text: str) -> str | None:
        """What is said of the words of a caption that are not among those of the training captions. A model of words
        leaves them out. One on ready features of captions takes any, but where most are such, and the words of the
        training are many enough to tell, the caption may be of another language than it learned."""
        if hasattr(self.vocab, "trigrams"):
            return None
        words = [word for word in tokenize(text) if any(map(str.isalnum, word))]
        unknown = [word for word in words if word not in self.vocab.index]
        if not self.options.text_features:
            return f"unknown words, which are left out: {', '.join(unknown)}" if unknown else None
        if len(self.vocab) < BROAD or len(unknown) < 3 or 2 * len(unknown) <= len(words):
            return None
        return (f"{len(unknown)} of its {len(words)} words are seldom or never in the captions that the model learned "
                f"from ({', '.join(unknown)}): of another language, or of other things, it may know nothing")

    def features_of_text(self, texts: list[str]) -> Tensor:
        """The features of captions (B, F) that the run was trained on. Raises InputError where they need files that
        are not at hand."""
        if self._features_of_text is None:
            self._features_of_text = self.text_network()
        return self._features_of_text(texts)

    def text_network(self) -> Callable[[list[str]], Tensor]:
        name = self.options.text_features
        line = self.extractors.get(name, "")
        if line.startswith("tfidf"):
            path = os.path.join(self.options.data_path, self.options.data_name, f"{name}_model.npz")
            words = TfIdf(**{key: load_arrays(path, ["words", "idf"])[key] for key in ("words", "idf")})
            if f"{words.line}, fitted {checksum(words.arrays[key] for key in words.names)}" != line:
                raise InputError(f"{path} was fitted again since {self.run} was trained ('{line}'); give the old file")
            return lambda texts: torch.from_numpy(words.rows(word_counts([tokenize(t) for t in texts], words.index)))
        if line.startswith("minilm"):
            network = MiniLM(self.text_weights)
        elif line.startswith("open_clip"):
            network = ClipCaptions(line.split()[1], self.text_weights, None)
        else:
            raise InputError(f"{self.run} reads the features of captions '{name}' ({line or 'of an unknown network'}), "
                             "and only those of minilm, open_clip and tfidf can be computed for a caption of one's "
                             "own; train a run on words, or on one of these")
        if network.line != line:
            raise InputError(f"{self.run} was trained on captions of '{line}', and the network here is "
                             f"'{network.line}'; give the weights of the first with --text_weights")
        network = network.to(self.device)
        return lambda texts: network(list(network.pieces(texts)))

    # ---- photos

    @torch.no_grad()
    def photos(self, photos: list) -> Embedding:
        """Photos, each a path or a PIL.Image, -> Embedding of (B, D). Raises InputError for a photo that cannot be
        read, and where the features that the run reads cannot be computed."""
        network, transform = self.photo_network()
        opened = Photos([x for x in photos if isinstance(x, str)])
        number, images = iter(range(len(photos))), []
        for x in photos:
            images.append(transform(opened.open(next(number)) if isinstance(x, str) else x.convert("RGB")))
        parts = [network(torch.stack(images[k:k + BATCH]).to(self.device)) for k in range(0, len(images), BATCH)]
        return join([self.features(part) for part in parts])

    def photo_network(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Image.Image], Tensor]]:
        """What turns prepared photos (B, 3, H, W) into what the model reads, and what prepares a photo."""
        if self._photo_network is None:
            if self.reads_photos:
                self._photo_network = (lambda x: x), eval_transform()
            elif self.recipe is None:
                raise InputError(f"{self.run} reads features of photos, and those of this index were not written by "
                                 "features.extract images, so a photo cannot be embedded; extract them with it")
            else:
                network, transform, line = network_of(self.recipe, self.device)
                self.refuse_other_features(line)
                self._photo_network = network, transform
        return self._photo_network

    def refuse_other_features(self, line: str | None) -> None:
        """Raises InputError where features of photos are of another extractor than those of the training."""
        trained = self.extractors.get("ims")
        if trained and line and trained != line:
            raise InputError(f"{self.run} was trained on photos of '{trained}', and these features are of '{line}'; "
                             "extract them with the same network")

    @torch.no_grad()
    def features(self, rows) -> Embedding:
        """What the model reads of images, (B, F), (B, P, F) or (B, 3, H, W), -> Embedding of (B, D)."""
        rows = torch.as_tensor(np.asarray(rows) if not torch.is_tensor(rows) else rows).float()
        return self.model.embed_images(rows.to(self.device))


def join(parts: list[Embedding]) -> Embedding:
    """Batches side by side; parts zero-padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    fields = []
    for values in zip(*parts):
        if values[0] is None:
            fields.append(None)
        elif values[0].ndim == 3:
            most = max(x.shape[1] for x in values)
            fields.append(torch.cat([torch.nn.functional.pad(x, (0, 0, 0, most - x.shape[1])) for x in values]))
        else:
            fields.append(torch.cat(values))
    return Embedding(*fields)
