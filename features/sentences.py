"""Sentence vectors of two frozen networks side by side, MiniLM-L6 and USE.

    python -m features.sentences --data_path data --data_name f8k_words_precomp     # fits features/sentences.npy

MiniLM distinguishes English sentences best. USE, the multilingual Universal Sentence Encoder (Yang et al. 2020), reads
sixteen languages: its vectors of "ein Hund" and "a dog" are close. If a text is not English, MiniLM's vector is
estimated from USE's by a linear map, fitted to English captions.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import cli
from cli import Arguments, data_set, filename
from features.minilm import MiniLM
from features.use import USE
from files import checksum, read_array, read_lines, save_array

MAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentences.npy")
SHARE = 2 / 3                         # of MiniLM in the cosine of two captions
ENGLISH = 0.45                        # cosine of MiniLM's vector and its estimate; one of 100 English texts has less
RIDGE = 3.0                           # of the fit of the map


class SentencePair:
    """MiniLM and USE as one encoder: captions -> unit vectors (B, size).

    `line` names both networks and the map. Raises InputError if a package is missing.
    """

    def __init__(self):
        self.use, self.minilm = USE(), MiniLM()
        self.map = read_array(MAP, "it comes with the repository").astype(np.float32)                 # (512, 384)
        self.size = sum(self.map.shape)
        self.line = (f"sentences, {SHARE:.3f} of {self.minilm.line}, the rest of {self.use.line}, "
                     f"map {checksum([self.map])}")

    def to(self, device) -> "SentencePair":
        self.minilm.to(device)
        self.use.to(device)
        return self

    @property
    def tokenizer(self):
        """MiniLM's tokenizer, which cuts long captions."""
        return self.minilm.tokenizer

    def knows(self, word: str) -> bool:
        """True if MiniLM knows an English word."""
        return self.minilm.knows(word)

    def reads(self, word: str) -> bool:
        """True if USE reads a word, which may be of another language."""
        return self.use.reads(word)

    def embed(self, captions: list[str]) -> Tensor:
        """Compute sentence vectors (B, size) of captions.
        A dot product of two is SHARE times MiniLM's, and the rest USE's."""
        minilm = self.minilm.embed(captions)                                                # (B, 384)
        use = self.use.embed(captions)                                                      # (B, 512)
        estimate = F.normalize(use @ torch.from_numpy(self.map).to(minilm))                 # (B, 384)
        foreign = (minilm * estimate).sum(1, keepdim=True) < ENGLISH                        # (B, 1)
        minilm = torch.where(foreign, estimate, minilm)
        return torch.cat([math.sqrt(SHARE) * minilm, math.sqrt(1 - SHARE) * use], 1)


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
