"""VSRN: a graph network over regions, and a caption generator as second loss.

    python train.py --data_name f8k_region_precomp --img_enc vsrn --captioner 1

Li et al. 2019, Visual Semantic Reasoning for Image-Text Matching. The generator follows Venugopalan
et al. 2015 (one GRU reads the regions, another writes) with the attention of Bahdanau et al. 2015.
Its loss is added to the ranking loss, 1 : 1, and it serves training only.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from losses import Term, real_parts, unit
from model import (
    GRU,
    IMAGE_ENCODERS,
    OPTION_RULES,
    TERM_BUILDERS,
    TEXT_ENCODERS,
    BatchNorm,
    Encoder,
    GRUEmbedding,
    pack,
    vsepp_linear,
)
from utils import InputError, flag, weight, width


class Captioner(nn.Module):
    """Caption generator: likelihood of a caption given regions (B, P, D).

    The reader turns regions into states s_p = x_p + GRU(x)_p, x a linear layer of the regions. The
    writer is a GRU that starts from the reader's last state. At each step it attends to the regions
    with the word before and its state h (Bahdanau 2015 eq. 5-6), and a linear layer of h' gives the
    logits of the next word:

        alpha = softmax_p(w . tanh(K s_p + Q [word, h] + b))
        context = sum_p alpha_p s_p
        h' = GRU([word, context], h)

    Dropout: 0.2 of x, 0.5 of h'. In shapes: P regions, H dim_hidden, W word_dim, S packed tokens.

    Args:
        region_dim: D.
        max_len: largest number of tokens of a caption, <start> and <end> among them.
        original: as in the original code, s_p = GRU(x)_p, attention with h alone, which cannot look
            for the object that the word before has begun to name, and dropout of 0.2 of [word,
            context] alone.
    """

    def __init__(
        self,
        region_dim: int,
        vocab_size: int,
        dim_hidden: int = 512,
        max_len: int = 60,
        *,
        word_dim: int = 300,
        original: bool = False,
    ):
        super().__init__()
        self.max_len = max_len
        self.original = original
        query_dim = word_dim + dim_hidden
        if original:
            query_dim = dim_hidden

        self.squeeze = nn.Sequential(nn.Linear(region_dim, dim_hidden), nn.Dropout(0.2))
        self.reader = GRU(dim_hidden, dim_hidden, batch_first=True)
        self.words = nn.Embedding(vocab_size, word_dim)
        self.key = nn.Linear(dim_hidden, dim_hidden, bias=False)
        self.query = nn.Linear(query_dim, dim_hidden)
        self.weight = nn.Linear(dim_hidden, 1, bias=False)  # the softmax would cancel a bias
        self.cell = nn.GRUCell(word_dim + dim_hidden, dim_hidden)
        if original:
            self.drop_input = nn.Dropout(0.2)
            self.dropout = nn.Dropout(0.0)
        else:
            self.drop_input = nn.Dropout(0.0)
            self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(dim_hidden, vocab_size)

    def forward(self, image, caption, batch) -> Tensor:
        """Average -log p(caption | regions), in nats: an extra term of model.VSE."""
        nll = self.nll(image.features, batch.tokens, batch.lengths, batch.n_regions)
        return nll.mean()

    def nll(
        self, regions: Tensor, tokens: Tensor, lengths: Tensor, n_regions: Tensor | None = None
    ) -> Tensor:
        """Compute -log p of captions (B, T) given regions (B, P, D), in nats: (B,).

        Teacher forcing: the true word before is the input of a step. n_regions (B,): how many
        regions are no padding; None: all.
        """
        steps = lengths.cpu().clamp(max=self.max_len) - 1  # (B,) predicted tokens
        inputs = pack(tokens[:, :-1], steps)  # (B, T - 1) -> (S,)
        targets = pack(tokens[:, 1:], steps).data  # (B, T - 1) -> (S,)

        states, last = self.read_regions(regions, n_regions)  # (B, P, H), (B, H)
        order = inputs.sorted_indices
        keys = self.key(states)
        padding = None
        if n_regions is not None:
            padding = ~real_parts(regions, n_regions)[order]  # (B, P)
        outputs = self.write(inputs, states[order], keys[order], last[order], padding)  # (S, H)

        logits = self.out(self.dropout(outputs))  # (S, V)
        nll = F.cross_entropy(logits, targets, reduction="none")  # (S,)
        nll, _ = pad_packed_sequence(inputs._replace(data=nll), batch_first=True)  # (B, T - 1)
        return nll.sum(1)

    def read_regions(
        self, regions: Tensor, n_regions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute states (B, P, H) of regions (B, P, D), and the reader's last (B, H)."""
        squeezed = self.squeeze(regions)  # (B, P, H)
        states, last = self.reader(squeezed, n_regions)
        if n_regions is not None:
            count = regions.shape[1]
            states, _ = pad_packed_sequence(states, batch_first=True, total_length=count)
        if not self.original:
            states = squeezed + states
        return states, last[-1]

    def write(
        self, inputs, states: Tensor, keys: Tensor, h: Tensor, padding: Tensor | None = None
    ) -> Tensor:
        """Run the writer over packed tokens (S,): states h' (S, H).

        Each step computes the captions that have not ended, the longest first, as torch packs them.
        states, keys (B, P, H), h (B, H) and the mask of padding (B, P) are in this order.
        """
        outputs = []
        vectors = self.drop_input(self.words(inputs.data))  # (S,) -> (S, W)
        for words in vectors.split(inputs.batch_sizes.tolist()):  # (n, W)
            n = len(words)
            h = h[:n]
            query = h
            if not self.original:
                query = torch.cat([words, h], 1)
            query = self.query(query)  # (n, H)
            energy = self.weight(torch.tanh(keys[:n] + query[:, None]))  # (n, P, 1)
            if padding is not None:
                energy = energy.masked_fill(padding[:n, :, None], -torch.inf)
            attention = energy[..., 0].softmax(1)  # (n, P)

            context = (attention[:, None] @ states[:n])[:, 0]  # (n, 1, P) (n, P, H) -> (n, H)
            context = self.drop_input(context)
            h = self.cell(torch.cat([words, context], 1), h)  # (n, W + H), (n, H) -> (n, H)
            outputs.append(h)
        return torch.cat(outputs)


class GraphLayer(nn.Module):
    """v + norm(out(R g(v))), R = theta(v) phi(v)^T / P: (B, P, D) -> (B, P, D).

    The scale and shift of the norm start at 0, so an untrained layer is the identity. Of images
    with padding P is each one's own number of regions, and no region is related to padding.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.g = nn.Linear(dim, dim)
        self.theta = nn.Linear(dim, dim)
        self.phi = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.norm = BatchNorm(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, v: Tensor, lengths: Tensor | None = None) -> Tensor:
        products = self.theta(v) @ self.phi(v).transpose(1, 2)  # (B, P, P)
        if lengths is None:
            relation = products / v.shape[1]
            y = self.out(relation @ self.g(v))  # (B, P, D)
            return v + self.norm(y.flatten(0, 1)).view_as(v)  # statistics over batch and regions

        real = real_parts(v, lengths)[:, :, None]  # (B, P, 1)
        relation = products / lengths.to(v.device)[:, None, None]
        y = self.out(relation @ self.g(v).masked_fill(~real, 0))  # (B, P, D)
        normed = self.norm(y[real[:, :, 0]])  # (R, D): statistics over real regions
        return v + torch.zeros_like(y).masked_scatter(real, normed.to(y.dtype))


class RegionGraph(nn.Module):
    """Linear map of regions, norm, four graph layers, norm: (B, P, F) -> (B, P, D).

    Both norms give a region length sqrt(D), entries of order 1: unit-norm regions have entries of
    about 0.02 (D = 2,048) and would be negligible next to the BatchNorms of the graph.

    first_norm=False: as VSRN on Flickr30k. across_regions: unit norm of each feature over the P
    regions, as the original code computes it.
    """

    def __init__(
        self, img_dim: int, embed_size: int, first_norm: bool = True, across_regions: bool = False
    ):
        super().__init__()
        self.dim = embed_size
        self.first_norm = first_norm
        self.across_regions = across_regions
        self.fc = vsepp_linear(img_dim, embed_size)
        layers = [GraphLayer(embed_size) for _ in range(4)]
        self.layers = nn.Sequential(*layers)

    def forward(self, regions: Tensor, lengths: Tensor | None = None) -> Tensor:
        v = self.fc(regions)  # (B, P, F) -> (B, P, D)
        v = clear_padding(v, lengths)
        if self.first_norm:
            v = self.normalize(v)
        for layer in self.layers:
            v = layer(v, lengths)
        return self.normalize(v)

    def normalize(self, v: Tensor) -> Tensor:
        """Scale regions (B, P, D) to length sqrt(D), or features to length 1 across regions."""
        if self.across_regions:
            return unit(v, 1)
        return unit(v, 2) * self.dim**0.5


def clear_padding(v: Tensor, lengths: Tensor | None) -> Tensor:
    """Set what stands behind the first lengths (B,) of regions (B, P, D) to zeros."""
    if lengths is None:
        return v
    return v.masked_fill(~real_parts(v, lengths)[:, :, None], 0)


# ---- what --img_enc vsrn and --captioner name


def build_graph(opt, pretrained: bool) -> RegionGraph:
    """Build the trunk of VSRN's images."""
    across_regions = opt.region_norm == "regions"
    return RegionGraph(opt.img_dim, opt.embed_size, opt.feature_norm, across_regions)


def build_region_gru(opt, inputs: int) -> GRUEmbedding:
    """Build f_emb of VSRN's images, a GRU over the regions."""
    return GRUEmbedding(inputs, opt.embed_size, batch_norm=opt.region_bn)


def build_captioner(opt, vocab, image_dim: int) -> dict[str, Term]:
    """Build the term of the caption generator."""
    original = opt.captioner_original
    captioner = Captioner(image_dim, len(vocab), opt.dim_hidden, original=original)
    return {"captioner": Term(opt.captioner, captioner)}


def check_captioner(opt) -> None:
    """Raise InputError on a caption generator without VSRN's regions or without words."""
    fits = opt.img_enc == "vsrn" and TEXT_ENCODERS[opt.txt_enc].reads == "words"
    if not fits:
        raise InputError(
            f"--captioner {opt.captioner:g} writes captions from VSRN's regions; use "
            "--img_enc vsrn and --txt_enc gru"
        )


VSRN_IMAGE_OPTIONS = {
    "region_norm": (
        ("entries", "regions"),
        "entries",
        "vsrn: scale regions to entries of order 1, or each feature to norm 1 over the regions, as "
        "the original code does",
    ),
    "region_bn": (flag, False, "vsrn: BatchNorm after the GRU, as in the original on Flickr30K"),
}
VSRN_TERM_OPTIONS = {
    "captioner": (weight, 0.0, "vsrn: weight of the caption generator (VSRN: 1)"),
    "captioner_original": (
        flag,
        False,
        "captioner: attend as in VSRN's code, without the previous word",
    ),
    "dim_hidden": (width, 512, "captioner: size of its GRUs"),
}
IMAGE_ENCODERS["vsrn"] = Encoder(
    "regions", build_graph, build_region_gru, defaults={"embed_size": 2048}
)
TERM_BUILDERS["captioner"] = build_captioner
OPTION_RULES["terms"].append((("captioner",), check_captioner))
