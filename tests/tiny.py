"""Every method of the papers at a tiny size, with a batch of pairs."""
import numpy as np
import torch

import train
from data import Batch
from inputs import encode_captions
from methods import METHODS, REGIONS, VECTORS
from model import build_model, build_vocabulary
from text import SPECIALS

PAIRS, REGION, VECTOR = 6, 4, 10       # sizes of a batch, regions of an image, numbers of a vector
SENTENCES = ["a dog runs", "two men on a red bus near water", "a cat", "the bus", "a man and a dog", "water near a cat"]
# Of the layers, options that a method has, in place of hundreds.
SIZES = {"--txt_layers": "12", "--img_layers": "12", "--cite_layers": "8-6", "--decoder_dim": "8", "--dim_hidden": "8"}


def flags_of(name: str, vectors: str) -> list[str]:
    """The options of a method, small. vectors: a file that stands for word vectors."""
    words = METHODS[name].flags.split()
    for option, size in SIZES.items():
        if option in words and words[words.index(option) + 1] != "0":
            words[words.index(option) + 1] = "12-10" if "trigram" in METHODS[name].flags else size
    words += ["--decoder_dim", "8"] * ("--recon_images" in words)
    words += ["--cite_layers", "8-6"] * ("cite" in words) + ["--dim_hidden", "8"] * ("--captioner" in words)
    words += ["--word_vectors", vectors] * ("--freeze_words" in words)
    words += ["--text_features", "x", "--txt_dim", str(VECTOR)] * (METHODS[name].needs == VECTORS)
    return [*words, "--embed_size", "16", "--word_dim", "16", "--device", "cpu"]


def tiny(name: str, vectors: str, *more: str):
    """The model of a method, with what `more` options ask for, and a batch of PAIRS, both from a seed."""
    opt = train.parse_args([*flags_of(name, vectors), *more])
    regions = METHODS[name].needs.startswith(REGIONS)
    opt.img_dim, opt.n_regions = VECTOR, REGION if regions else None
    opt.img_enc = "precomp" if opt.img_enc == "auto" else opt.img_enc
    vocab = build_vocabulary(opt, [*SPECIALS, *sorted({word for line in SENTENCES for word in line.split()})])
    torch.manual_seed(0)
    model = build_model(opt, vocab, pretrained=False)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():                                   # norms that start at 0 would hide what is before them
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    images = torch.rand(PAIRS, *[REGION] * regions, VECTOR, generator=generator)
    if METHODS[name].needs == VECTORS:
        tokens, lengths = torch.rand(PAIRS, VECTOR, generator=generator), torch.ones(PAIRS, dtype=torch.int64)
    else:
        tokens, lengths = encode_captions([line.split() for line in SENTENCES], vocab).batch(np.arange(PAIRS))
    owner = torch.arange(PAIRS) // 2
    return opt, model, Batch(images[owner * 2], tokens, lengths, owner, torch.arange(PAIRS))
